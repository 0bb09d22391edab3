//! Permits that are asked for and never waited for.

use crate::{
    WakeSource,
    sync::{AtomicUsize, Ordering},
};

/// Counts permits. There is no call that waits: a domain that finds none returns
/// [`Handled::Wait`](crate::Handled::Wait) and is asked again, so its context goes on with other work and
/// permits may be released in any order. A domain that names the
/// [`wake_source`](Self::wake_source) sleeps until permits are released.
///
/// ```
/// let resolved = dominoes::Semaphore::new(0);
/// assert!(!resolved.try_take());
/// resolved.release(1);
/// assert!(resolved.try_take());
/// ```
#[derive(Debug)]
pub struct Semaphore {
    permits: AtomicUsize,
    released: WakeSource,
}

impl Semaphore {
    /// With so many permits.
    pub fn new(permits: usize) -> Self {
        Semaphore {
            permits: AtomicUsize::new(permits),
            released: WakeSource::new(),
        }
    }

    /// Takes a permit if there is one. Lock-free.
    pub fn try_take(&self) -> bool {
        // ORDERING: Acquire, pairs with the Release in `release`: what was done before a permit was
        // given is seen by who takes it.
        self.permits
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |n| n.checked_sub(1))
            .is_ok()
    }

    /// Gives `permits` more.
    pub fn release(&self, permits: usize) {
        // ORDERING: Release, pairs with the Acquire in `try_take`.
        self.permits.fetch_add(permits, Ordering::Release);
        self.released.notify_all();
    }

    /// Notified when permits are released; see
    /// [`Service::with_wake_source`](crate::Service::with_wake_source).
    pub fn wake_source(&self) -> &WakeSource {
        &self.released
    }

    /// Permits that are there. A moment's view.
    pub fn permits(&self) -> usize {
        self.permits.load(Ordering::Relaxed)
    }
}
