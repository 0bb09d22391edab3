//! Waiting on a file descriptor, with a waker.

use crate::{DeviceWaker, sys};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

thread_local! {
    /// The number of the descriptor beside the device, while this thread waits with
    /// [`wait_beside`], and whether it was readable.
    static BESIDE: Cell<(Option<RawFd>, bool)> = const { Cell::new((None, false)) };
    /// The further queues of the device, which [`wait_for_queues`] watches, likewise.
    static QUEUES: Cell<(Option<RawFd>, bool)> = const { Cell::new((None, false)) };
}

/// A descriptor beside a device.
pub type Beside<'a> = BorrowedFd<'a>;

/// Runs `wait`, which calls [`DeviceRx::wait`](crate::DeviceRx::wait) on this thread. That call
/// also ends when `beside` is readable, if the device
/// [sleeps on descriptors](crate::Capabilities::has_descriptor). Returns whether it was readable.
pub fn wait_beside(beside: Option<Beside<'_>>, wait: impl FnOnce()) -> bool {
    /// Also if `wait` unwinds.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            BESIDE.set((None, false));
        }
    }
    BESIDE.set((beside.map(|fd| fd.as_raw_fd()), false));
    let _end = End;
    wait();
    BESIDE.get().1
}

/// Runs `wait`, which waits for one queue of a device on this thread. It also ends when `queues`
/// is readable. Returns whether it was.
pub(crate) fn wait_for_queues<E>(
    queues: BorrowedFd<'_>,
    wait: impl FnOnce() -> Result<(), E>,
) -> Result<bool, E> {
    /// Also if `wait` unwinds.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            QUEUES.set((None, false));
        }
    }
    QUEUES.set((Some(queues.as_raw_fd()), false));
    let _end = End;
    wait()?;
    Ok(QUEUES.get().1)
}

/// Whether the last wait of this thread has found a descriptor beside the device, or another
/// queue, readable.
pub(crate) fn is_other_ready() -> bool {
    BESIDE.get().1 || QUEUES.get().1
}

/// One thread waits for a device's descriptor, and other threads may wake it.
#[derive(Debug)]
pub(crate) struct FdEvent {
    shared: Arc<FdEventShared>,
    wakes: u64,
}

/// A waker sets `woken` and then reads `waiting`; the waiter sets `waiting` and then reads `woken`.
/// Since all four accesses are sequentially consistent, at least one thread sees the other's write:
/// either the waiter does not sleep, or the waker writes to the descriptor on which it sleeps.
#[derive(Debug)]
struct FdEventShared {
    woken: AtomicBool,
    waiting: AtomicBool,
    event: OwnedFd,
}

impl FdEvent {
    pub(crate) fn new() -> io::Result<Self> {
        let event = sys::eventfd()?;
        let shared = FdEventShared {
            woken: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            event,
        };
        Ok(Self {
            shared: Arc::new(shared),
            wakes: 0,
        })
    }

    pub(crate) fn waker(&self) -> DeviceWaker {
        let shared = Arc::clone(&self.shared);
        DeviceWaker::new(move || {
            if !shared.woken.swap(true, SeqCst) && shared.waiting.load(SeqCst) {
                sys::signal(shared.event.as_fd());
            }
        })
    }

    /// Number of waits that a wake has ended.
    pub(crate) fn wakes(&self) -> u64 {
        self.wakes
    }

    /// Waits until `device` is readable or has an error, a waker is used, or the timeout is over.
    /// Returns whether the device reports an error.
    pub(crate) fn wait(
        &mut self,
        device: BorrowedFd<'_>,
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        self.wait_for_any(&[device], timeout)
    }

    /// As above, for a device with up to two descriptors.
    pub(crate) fn wait_for_any(
        &mut self,
        device: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        let shared = &*self.shared;
        shared.waiting.store(true, SeqCst);
        let ready = if shared.woken.load(SeqCst) {
            Ok(sys::Ready::default())
        } else {
            let others = [BESIDE.get().0, QUEUES.get().0];
            let ready = sys::wait_readable(device, shared.event.as_fd(), others, timeout);
            let found = ready.as_ref().map_or([false; 2], |ready| ready.others);
            BESIDE.set((others[0], found[0]));
            QUEUES.set((others[1], found[1]));
            ready
        };
        shared.waiting.store(false, SeqCst);
        // A waker that saw the flag may write after this; the next wait then returns spuriously.
        if shared.woken.swap(false, SeqCst) {
            self.wakes += 1;
        }
        let ready = ready?;
        if ready.event {
            sys::clear(shared.event.as_fd());
        }
        Ok(ready.device_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_wake_before_the_wait_is_kept_and_used_once() {
        let mut event = FdEvent::new().unwrap();
        let silent = sys::eventfd().unwrap();
        let waker = event.waker();
        waker.wake();
        waker.wake();
        assert!(!event.wait(silent.as_fd(), None).unwrap());
        assert_eq!(event.wakes(), 1);
        event
            .wait(silent.as_fd(), Some(Duration::from_millis(1)))
            .unwrap();
        assert_eq!(event.wakes(), 1);
    }

    #[test]
    fn every_wake_reaches_a_waiter_that_sleeps() {
        let silent = sys::eventfd().unwrap();
        let [mut there, mut back] = [FdEvent::new().unwrap(), FdEvent::new().unwrap()];
        let (wake_there, wake_back) = (there.waker(), back.waker());
        let woken = |event: &mut FdEvent| {
            let before = event.wakes();
            while event.wakes() == before {
                event.wait(silent.as_fd(), None).unwrap();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    woken(&mut there);
                    wake_back.wake();
                }
            });
            for _ in 0..1_000 {
                wake_there.wake();
                woken(&mut back);
            }
        });
        assert_eq!(back.wakes(), 1_000);
    }

    #[test]
    fn a_readable_descriptor_beside_the_device_ends_the_wait_and_no_later_one() {
        let (mut event, silent) = (FdEvent::new().unwrap(), sys::eventfd().unwrap());
        let beside = sys::eventfd().unwrap();
        let mut wait = |beside, time| {
            wait_beside(beside, || {
                event.wait(silent.as_fd(), time).unwrap();
            })
        };
        let moment = Some(Duration::from_millis(1));
        assert!(!wait(Some(beside.as_fd()), moment));
        sys::signal(beside.as_fd());
        assert!(wait(Some(beside.as_fd()), None));
        assert!(!wait(None, moment));
    }

    #[test]
    fn a_readable_device_ends_the_wait() {
        let mut event = FdEvent::new().unwrap();
        let device = sys::eventfd().unwrap();
        sys::signal(device.as_fd());
        event.wait(device.as_fd(), None).unwrap();
        assert_eq!(event.wakes(), 0);
    }
}
