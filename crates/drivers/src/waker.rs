//! Waiting without a missed wake-up.

use std::fmt;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Ends a [`DeviceRx::wait`](crate::DeviceRx::wait), from any thread.
///
/// Wakes are sticky: a wake that comes before the wait makes the wait return at once. Several
/// wakes before one wait count as one. Waking makes no system call while no thread waits.
#[derive(Clone)]
pub struct DeviceWaker(Arc<dyn Fn() + Send + Sync>);

impl DeviceWaker {
    /// A waker that calls `wake`, for devices outside this crate.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    /// Ends the current wait, or else the next one.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for DeviceWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceWaker").finish_non_exhaustive()
    }
}

/// An event for one waiting thread and any number of notifiers, for devices in memory.
///
/// The waiter sets `waiting` and then checks its condition; a notifier makes the condition true
/// and then checks `waiting`. The fence between the two steps on each side makes at least one of
/// them see the other. A notifier that sees the flag takes the lock, and the waiter checks again
/// under the lock before it sleeps, so no notification falls between check and sleep.
#[derive(Debug, Default)]
pub(crate) struct Event {
    waiting: AtomicBool,
    woken: AtomicBool,
    wakes: AtomicU64,
    lock: Mutex<()>,
    signal: Condvar,
}

impl Event {
    /// Wakes the waiter, if there is one, because its condition may hold now.
    #[inline]
    pub(crate) fn notify(&self) {
        fence(SeqCst);
        if self.waiting.load(SeqCst) {
            self.signal_waiter();
        }
    }

    /// Ends this wait or the next.
    pub(crate) fn wake(&self) {
        self.woken.store(true, SeqCst);
        self.notify();
    }

    /// Number of waits that a wake has ended.
    pub(crate) fn wakes(&self) -> u64 {
        self.wakes.load(SeqCst)
    }

    /// Waits until `ready` returns true, `wake` is called, or `timeout` is over.
    pub(crate) fn wait(&self, timeout: Option<Duration>, ready: impl Fn() -> bool) {
        if self.done(&ready) {
            return;
        }
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.store(true, SeqCst);
        fence(SeqCst);
        let sleep_on = |_: &mut ()| !self.done(&ready);
        match timeout {
            None => drop(self.signal.wait_while(guard, sleep_on)),
            Some(timeout) => drop(self.signal.wait_timeout_while(guard, timeout, sleep_on)),
        }
        self.waiting.store(false, SeqCst);
    }

    /// Whether [`wake`](Self::wake) was called while no thread waited. Consumes that wake.
    pub(crate) fn take_wake(&self) -> bool {
        self.done(&|| false)
    }

    fn done(&self, ready: &impl Fn() -> bool) -> bool {
        if self.woken.load(SeqCst) && self.woken.swap(false, SeqCst) {
            self.wakes.fetch_add(1, SeqCst);
            return true;
        }
        ready()
    }

    #[cold]
    fn signal_waiter(&self) {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.signal.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::thread;

    #[test]
    fn a_wake_before_the_wait_is_kept_and_used_once() {
        let event = Event::default();
        event.wake();
        event.wake();
        event.wait(None, || false);
        assert_eq!(event.wakes(), 1);
        event.wait(Some(Duration::from_millis(1)), || false);
        assert_eq!(event.wakes(), 1);
    }

    #[test]
    fn every_notification_reaches_a_waiter_that_sleeps() {
        const ROUNDS: u32 = 2_000;
        let (there, back) = (Event::default(), Event::default());
        let (sent, echoed) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    there.wait(None, || sent.load(SeqCst) == round);
                    echoed.store(round, SeqCst);
                    back.notify();
                }
            });
            for round in 1..=ROUNDS {
                sent.store(round, SeqCst);
                there.notify();
                back.wait(None, || echoed.load(SeqCst) == round);
            }
        });
        assert_eq!(echoed.load(SeqCst), ROUNDS);
    }
}
