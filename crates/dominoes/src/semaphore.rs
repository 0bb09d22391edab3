//! Permits that are asked for and never waited for.

use crate::sync::{AtomicUsize, Ordering};

/// Counts permits. There is no call that waits: a domain that finds none returns
/// [`Step::Wait`](crate::Step::Wait) and is asked again, so its context goes on with other work and
/// permits may be released in any order.
///
/// ```
/// let resolved = dominoes::Semaphore::new(0);
/// assert!(!resolved.try_take());
/// resolved.release(1);
/// assert!(resolved.try_take());
/// ```
#[derive(Debug)]
pub struct Semaphore(AtomicUsize);

impl Semaphore {
    /// With so many permits.
    pub fn new(permits: usize) -> Self {
        Semaphore(AtomicUsize::new(permits))
    }

    /// Takes a permit if there is one. Lock-free.
    pub fn try_take(&self) -> bool {
        // ORDERING: Acquire, pairs with the Release in `release`: what was done before a permit was
        // given is seen by who takes it.
        self.0
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |n| n.checked_sub(1))
            .is_ok()
    }

    /// Gives `permits` more.
    pub fn release(&self, permits: usize) {
        // ORDERING: Release, pairs with the Acquire in `try_take`.
        self.0.fetch_add(permits, Ordering::Release);
    }

    /// Permits that are there. A moment's view.
    pub fn permits(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
