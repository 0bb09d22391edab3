//! What the drivers of a row found out about it while it ran, sample by sample.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dominoes_netstack::time::Instant;

use crate::drivers::Driver;

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

/// Looks at a driver after each of its turns.
pub(crate) trait Look: Send {
    /// `now` is by the row's clock, in nanoseconds.
    fn look(&mut self, driver: &dyn Driver, now: u64);
}

/// A driver that is looked at.
pub(crate) struct Watched<L> {
    pub(crate) driver: Box<dyn Driver>,
    pub(crate) look: L,
}

impl<L: Look> Driver for Watched<L> {
    fn turn(&mut self, now: Instant) -> usize {
        let done = self.driver.turn(now);
        self.look.look(&*self.driver, now.as_nanos());
        done
    }

    fn bytes(&self) -> u64 {
        self.driver.bytes()
    }

    fn verify(&mut self, on: bool) {
        self.driver.verify(on);
    }

    fn sent_again(&self) -> u64 {
        self.driver.sent_again()
    }

    fn out_of_order(&self) -> u64 {
        self.driver.out_of_order()
    }

    fn check(&self) -> Result<(), String> {
        self.driver.check()
    }
}
