//! A counting semaphore that never blocks.

use crate::{
    WakeSource,
    sync::{AtomicUsize, Ordering},
};

/// Counts permits. No call waits: a handler that finds no permit returns
/// [`Handled::Wait`](crate::Handled::Wait) and is called again later. Meanwhile its context
/// continues with other work, so permits may be released in any order. A domain that registers the
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
    /// A semaphore with this number of permits.
    pub fn new(permits: usize) -> Self {
        Semaphore {
            permits: AtomicUsize::new(permits),
            released: WakeSource::new(),
        }
    }

    /// Takes a permit if there is one. Lock-free.
    pub fn try_take(&self) -> bool {
        // ORDERING: Acquire, pairs with the Release in `release`: the thread that takes a permit
        // sees all that was done before the permit was released.
        self.permits
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |n| n.checked_sub(1))
            .is_ok()
    }

    /// Adds `permits`.
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

    /// Number of permits. May already be out of date.
    pub fn permits(&self) -> usize {
        self.permits.load(Ordering::Relaxed)
    }
}
