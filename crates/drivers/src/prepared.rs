//! Numbered slots for frames that several threads prepare and one thread sends.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One optional value per slot: a prepared frame that has not been sent. A slot is never
/// contended, because its uses alternate: prepare, send, prepare again.
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

    /// Puts `prepared` into a slot. Returns the value that will not be sent: the slot's old one,
    /// or `prepared` itself if there is no such slot.
    #[inline]
    pub(crate) fn put(&self, slot: usize, prepared: T) -> Option<T> {
        match self.slot(slot) {
            Some(mut slot) => slot.replace(prepared),
            None => Some(prepared),
        }
    }

    /// Empties a slot and returns its value. `None` if it was empty.
    #[inline]
    pub(crate) fn take(&self, slot: usize) -> Option<T> {
        self.slot(slot)?.take()
    }
}
