//! Frames that wait in numbered slots, prepared by several threads and sent by one.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// For each slot, what was prepared in it and is not sent. A slot is never contended: it is
/// prepared, then sent, then prepared again.
#[derive(Debug)]
pub(crate) struct PreparedSlots<T>(Box<[Mutex<Option<T>>]>);

impl<T> PreparedSlots<T> {
    pub(crate) fn new(slots: usize) -> Self {
        PreparedSlots((0..slots).map(|_| Mutex::new(None)).collect())
    }

    fn slot(&self, slot: usize) -> Option<MutexGuard<'_, Option<T>>> {
        let slot = self.0.get(slot)?.lock();
        Some(slot.unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts `prepared` into a slot. Returns what was not sent of it: what was in the slot, or, if
    /// there is no such slot, `prepared`.
    #[inline]
    pub(crate) fn put(&self, slot: usize, prepared: T) -> Option<T> {
        match self.slot(slot) {
            Some(mut slot) => slot.replace(prepared),
            None => Some(prepared),
        }
    }

    /// Takes out what is in a slot. `None` if nothing was prepared in it.
    #[inline]
    pub(crate) fn take(&self, slot: usize) -> Option<T> {
        self.slot(slot)?.take()
    }
}
