//! A router on threads, with one for each interface.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dominoes_drivers::DeviceError;

use super::input::Input;
use super::{RouterShared, RouterStats};
use crate::error::StackError;
use crate::stack::Clock;

/// The longest sleep, and so the longest delay until the router notices that an interface is up.
const SLEEP: Duration = Duration::from_millis(100);
/// The time between two attempts to send to a busy device.
const RETRY: Duration = Duration::from_micros(100);

/// A running router. Dropping it ends its threads.
pub struct RunningRouter {
    shared: Arc<RouterShared>,
    running: Arc<Running>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Running {
    over: AtomicBool,
    trouble: Mutex<Option<DeviceError>>,
}

impl RunningRouter {
    pub(super) fn start(inputs: Vec<Input>, shared: Arc<RouterShared>) -> Result<Self, StackError> {
        let mut router = RunningRouter {
            shared,
            running: Arc::default(),
            threads: Vec::new(),
        };
        let clock = Clock::start();
        for (index, mut input) in inputs.into_iter().enumerate() {
            let running = Arc::clone(&router.running);
            let thread = thread::Builder::new()
                .name(format!("router {index}"))
                .spawn(move || running.run(&mut input, clock))?;
            router.threads.push(thread);
        }
        Ok(router)
    }

    /// The counters since the start.
    pub fn stats(&self) -> RouterStats {
        self.shared.stats()
    }

    /// The last error of a device since the last call. An interface whose device is down
    /// continues when the device is up; an interface whose device is gone has ended.
    pub fn take_device_error(&self) -> Option<DeviceError> {
        self.running.trouble().take()
    }
}

impl Running {
    fn trouble(&self) -> std::sync::MutexGuard<'_, Option<DeviceError>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, input: &mut Input, clock: Clock) {
        while !self.over.load(SeqCst) {
            let done = input.turn(clock.now());
            if done == 0 {
                let left = input.next_deadline().since(clock.now());
                let most = if input.has_backlog() { RETRY } else { SLEEP };
                input.wait(Duration::from(left).min(most));
            }
            if let Some(error) = input.trouble.take() {
                *self.trouble() = Some(error);
                if input.is_gone {
                    return;
                }
                thread::sleep(RETRY);
            }
        }
    }
}

impl Drop for RunningRouter {
    fn drop(&mut self) {
        self.running.over.store(true, SeqCst);
        self.shared.ports.iter().for_each(|port| port.waker.wake());
        for thread in self.threads.drain(..) {
            // The thread has nothing left to report, not even a panic.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for RunningRouter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningRouter")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
