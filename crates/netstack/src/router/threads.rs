//! A router on threads, with one for each interface.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dominoes_drivers::DeviceError;

use super::RouterShared;
use super::input::Input;
use crate::error::StackError;
use crate::stack::Clock;

/// The longest sleep, and so the longest delay until the router notices that an interface is up.
const SLEEP: Duration = Duration::from_millis(100);
/// The time between two attempts to send to a busy device.
const RETRY: Duration = Duration::from_micros(100);

/// The threads of a router. Dropping this ends them.
pub(super) struct Threads {
    shared: Arc<RouterShared>,
    running: Arc<Running>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Running {
    over: AtomicBool,
    trouble: Mutex<Option<DeviceError>>,
}

impl Threads {
    pub(super) fn start(inputs: Vec<Input>, shared: Arc<RouterShared>) -> Result<Self, StackError> {
        let mut router = Threads {
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

    pub(super) fn take_device_error(&self) -> Option<DeviceError> {
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

impl Drop for Threads {
    fn drop(&mut self) {
        self.running.over.store(true, SeqCst);
        self.shared.ports.iter().for_each(|port| port.waker.wake());
        for thread in self.threads.drain(..) {
            // The thread has nothing left to report, not even a panic.
            let _ = thread.join();
        }
    }
}
