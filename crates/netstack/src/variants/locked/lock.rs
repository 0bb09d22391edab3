//! The two kinds of lock that can guard the state.
//!
//! E. M. Nahum, D. J. Yates, J. F. Kurose, D. Towsley, *Performance issues in parallelized network
//! protocols* (OSDI 1994), section 4, compare them. A plain lock admits threads in any order, so
//! packets overtake each other at it. The lock of J. M. Mellor-Crummey and M. L. Scott (*Algorithms
//! for scalable synchronization on shared-memory multiprocessors*, TOCS 1991) admits them in the
//! order of arrival.

use std::sync::{self, TryLockError};
use std::time::Instant;

use mcslock::raw::yields::backoff;

/// TryLock access to a value.
pub trait Lock<T>: Send + Sync {
    /// A lock around `value`, free.
    fn new(value: T) -> Self;

    /// Calls `what` with the value if the lock is free; otherwise returns `what`.
    fn try_with<R, F: FnOnce(&mut T) -> R>(&self, what: F) -> Result<R, F>;

    /// Waits until the lock is free, then calls `what` with the value.
    ///
    /// # Panics
    /// If an earlier holder panicked and may have left the value half changed, and this kind of
    /// lock detects that.
    fn with<R>(&self, what: impl FnOnce(&mut T) -> R) -> R;
}

/// A kind of lock.
pub trait LockKind: 'static {
    /// The lock of this kind around a `T`.
    type Of<T: Send>: Lock<T>;
    /// The name used in reports.
    const NAME: &'static str;
}

/// [`std::sync::Mutex`]: spins for a moment, then sleeps in the kernel. It is not fair: a running
/// thread may overtake one that is being woken.
#[derive(Clone, Copy, Debug)]
pub struct Mutex;

/// The queue lock of Mellor-Crummey and Scott, from the crate `mcslock`: first come, first served.
/// Each waiter polls its own word, with growing pauses, and finally yields its core.
///
/// It hands the lock to the next waiter even if that thread is not running. With more threads than
/// cores, every such hand-over costs a time slice, or at least a yield: correct, and slow.
#[derive(Clone, Copy, Debug)]
pub struct Mcs;

impl LockKind for Mutex {
    type Of<T: Send> = sync::Mutex<T>;
    const NAME: &'static str = "mutex";
}

impl LockKind for Mcs {
    type Of<T: Send> = backoff::Mutex<T>;
    const NAME: &'static str = "mcs";
}

const HALF: &str = "a holder of the state lock panicked";

impl<T: Send> Lock<T> for sync::Mutex<T> {
    fn new(value: T) -> Self {
        sync::Mutex::new(value)
    }

    #[inline]
    fn try_with<R, F: FnOnce(&mut T) -> R>(&self, what: F) -> Result<R, F> {
        match self.try_lock() {
            Ok(mut guard) => Ok(what(&mut guard)),
            Err(TryLockError::WouldBlock) => Err(what),
            Err(TryLockError::Poisoned(_)) => panic!("{HALF}"),
        }
    }

    #[inline]
    fn with<R>(&self, what: impl FnOnce(&mut T) -> R) -> R {
        what(&mut self.lock().expect(HALF))
    }
}

impl<T: Send> Lock<T> for backoff::Mutex<T> {
    fn new(value: T) -> Self {
        backoff::Mutex::new(value)
    }

    /// Takes the lock only if its queue is empty, so it overtakes no waiter.
    #[inline]
    fn try_with<R, F: FnOnce(&mut T) -> R>(&self, what: F) -> Result<R, F> {
        self.try_lock_then(|value| match value {
            Some(value) => Ok(what(value)),
            None => Err(what),
        })
    }

    #[inline]
    fn with<R>(&self, what: impl FnOnce(&mut T) -> R) -> R {
        self.lock_then(what)
    }
}

/// Calls `what` under `lock`. Returns the nanoseconds that it waited, or `None` if the lock was
/// free.
///
/// Reads the clock only if the lock is taken, and then twice (some 50 ns together).
#[inline]
pub(super) fn timed<T, R>(lock: &impl Lock<T>, what: impl FnOnce(&mut T) -> R) -> (R, Option<u64>) {
    match lock.try_with(what) {
        Ok(result) => (result, None),
        Err(what) => {
            #[expect(
                clippy::disallowed_methods,
                reason = "waiting is measured, and no state is told"
            )]
            let start = Instant::now();
            lock.with(|value| {
                let waited = start.elapsed().as_nanos() as u64;
                (what(value), Some(waited))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts_to_the_sum<K: LockKind>() {
        let lock = K::Of::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        timed(&lock, |count| {
                            let was = *count;
                            // A second holder would begin from the same number.
                            std::thread::yield_now();
                            *count = was + 1;
                        });
                    }
                });
            }
        });
        assert_eq!(lock.with(|count| *count), 8_000, "{}", K::NAME);
    }

    #[test]
    fn every_kind_of_lock_lets_one_in_at_a_time() {
        counts_to_the_sum::<Mutex>();
        counts_to_the_sum::<Mcs>();
    }

    fn refuses_while_taken<K: LockKind>() {
        let lock = K::Of::new(0u64);
        lock.with(|_| {
            assert!(lock.try_with(|count| *count += 1).is_err(), "{}", K::NAME);
        });
        assert!(lock.try_with(|count| *count += 1).is_ok(), "{}", K::NAME);
    }

    #[test]
    fn a_taken_lock_is_refused_to_who_will_not_wait() {
        refuses_while_taken::<Mutex>();
        refuses_while_taken::<Mcs>();
    }
}
