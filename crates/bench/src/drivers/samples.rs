//! What the drivers of a row found out about it while it ran, sample by sample.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Samples so far, of as many as are wanted.
#[derive(Debug)]
pub(crate) struct Samples<T> {
    wanted: usize,
    taken: Mutex<Vec<T>>,
}

impl<T: Clone> Samples<T> {
    /// None yet.
    pub(crate) fn new(wanted: usize) -> Samples<T> {
        let taken = Mutex::new(Vec::with_capacity(wanted));
        Samples { wanted, taken }
    }

    /// Adds a sample, unless there are enough.
    pub(crate) fn push(&self, sample: T) {
        let mut taken = self.lock();
        if taken.len() < self.wanted {
            taken.push(sample);
        }
    }

    /// How many there are.
    pub(crate) fn taken(&self) -> usize {
        self.lock().len()
    }

    /// How many are wanted.
    pub(crate) fn wanted(&self) -> usize {
        self.wanted
    }

    /// Whether there are as many as are wanted.
    pub(crate) fn is_full(&self) -> bool {
        self.taken() >= self.wanted
    }

    /// As they came.
    pub(crate) fn all(&self) -> Vec<T> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
