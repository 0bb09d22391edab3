//! The lock around one replica's state: many readers, each with its flag, or one writer.
//!
//! A reader writes to its own flag only, so readers on several cores do not wait for each other's
//! cache lines. A writer reads all flags that are in use.
//!
//! # Why a reader and a writer never meet
//!
//! A reader raises its flag and then reads `writing`; a writer raises `writing` and then reads the
//! flags. Both steps are SeqCst on both sides, so at least one of the two sees the other. A reader that sees `writing` lowers its flag and does not
//! read; a writer that sees a flag waits until it is lowered. A place that is taken after the writer
//! read `taken` belongs to a reader whose fence comes later, so that reader sees `writing`.

use super::steps::step;
use crate::{
    Seq,
    sync::{Arc, AtomicBool, AtomicU64, Ordering, Shadow, raise_before_loads},
};
use crossbeam_utils::CachePadded;
use std::{
    array,
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
};

/// How many readers a lock can have.
pub(super) const MAX_READERS: usize = if cfg!(loom) { 4 } else { 64 };

pub(super) struct StateLock<T> {
    /// A writer has the value, or waits for readers to leave.
    writing: AtomicBool,
    /// A writer must replace the value before it is read again.
    suspect: AtomicBool,
    /// How far the log is applied to the value. Written by writers only; it never falls.
    position: AtomicU64,
    /// The places of readers that are in use, a bit each.
    taken: AtomicU64,
    reading: [CachePadded<AtomicBool>; MAX_READERS],
    value: UnsafeCell<T>,
    shadow: Shadow,
}

// SAFETY: readers on several threads hold `&T` at once (hence `Sync`), and a writer on any thread
// holds `&mut T` (hence `Send`), but never both at a time (module documentation).
unsafe impl<T: Send + Sync> Sync for StateLock<T> {}

impl<T> StateLock<T> {
    pub(super) fn new(value: T) -> Self {
        StateLock {
            writing: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            position: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            reading: array::from_fn(|_| CachePadded::new(AtomicBool::new(false))),
            value: UnsafeCell::new(value),
            shadow: Shadow::new(1),
        }
    }

    /// How far the log is applied to the value.
    #[inline(always)]
    pub(super) fn position(&self) -> Seq {
        // ORDERING: Acquire, pairs with the Release in `StateWriteGuard::set_position`: a thread
        // that knows this position reads `writing` as that writer left it, or later.
        self.position.load(Ordering::Acquire)
    }

    /// The places of readers in use, a bit each.
    pub(super) fn readers(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Shuts readers out until the next writer clears the suspicion.
    pub(super) fn suspect(&self) {
        self.suspect.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    /// Shuts new readers out, and waits until the others have left: calls `wait` between two looks,
    /// and gives up if that returns false. `None` also if another writer is there.
    pub(super) fn write(&self, mut wait: impl FnMut() -> bool) -> Option<StateWriteGuard<'_, T>> {
        // As an Acquire it pairs with the Release in `StateWriteGuard::drop`.
        if raise_before_loads(&self.writing) {
            return None;
        }
        // Opens the lock again if `wait` gives up or unwinds.
        let guard = StateWriteGuard { lock: self };
        // ORDERING: Acquire, pairs with the Release in `StateReader::drop`: the reading of a reader
        // that has left for good is over.
        let mut left = self.taken.load(Ordering::Acquire);
        while left != 0 {
            let place = left.trailing_zeros() as usize;
            // ORDERING: SeqCst, pairs with `raise_before_loads` in `StateReader::try_read`; as an
            // Acquire it pairs with the Release in `StateReadGuard::drop`: the reading is over.
            if self.reading[place].load(Ordering::SeqCst) {
                if !wait() {
                    return None;
                }
            } else {
                left &= left - 1;
            }
        }
        Some(guard)
    }
}

/// One reader's place in a lock. Reading needs `&mut`, so a reader reads one value at a time.
pub(super) struct StateReader<T> {
    lock: Arc<StateLock<T>>,
    place: usize,
}

impl<T> StateReader<T> {
    /// Takes a place of the lock, unless all are in use.
    pub(super) fn of(lock: &Arc<StateLock<T>>) -> Option<Self> {
        let mut now = lock.taken.load(Ordering::Relaxed);
        loop {
            let place = now.trailing_ones() as usize;
            if place >= MAX_READERS {
                return None;
            }
            // ORDERING: Acquire, pairs with the Release in `StateReader::drop`: the place's last
            // user has lowered its flag.
            match lock.taken.compare_exchange_weak(
                now,
                now | 1 << place,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    let lock = lock.clone();
                    return Some(StateReader { lock, place });
                }
                Err(found) => now = found,
            }
        }
    }

    /// Number of the place, below [`MAX_READERS`].
    pub(super) fn place(&self) -> usize {
        self.place
    }

    /// How far the log is applied to the value.
    #[inline(always)]
    pub(super) fn position(&self) -> Seq {
        self.lock.position()
    }

    /// Whether no writer was there just now. A reader that tries again and again looks here first:
    /// if it raised its flag each time, it could keep a writer waiting.
    pub(super) fn is_open(&self) -> bool {
        !self.lock.writing.load(Ordering::Relaxed)
    }

    /// The value, unless a writer has it or waits for it, or it is suspect.
    #[inline(always)]
    pub(super) fn try_read(&mut self) -> Option<StateReadGuard<'_, T>> {
        let flag = &*self.lock.reading[self.place % MAX_READERS];
        raise_before_loads(flag);
        step("a reader raised its flag");
        // ORDERING: SeqCst, pairs with `raise_before_loads` in `StateLock::write`; as an Acquire it
        // pairs with the Release in `StateWriteGuard::drop`: this thread sees what earlier writers
        // wrote.
        let is_closed = self.lock.writing.load(Ordering::SeqCst) || self.lock.is_suspect();
        let guard = StateReadGuard {
            lock: &self.lock,
            flag,
        };
        (!is_closed).then_some(guard)
    }
}

impl<T> Drop for StateReader<T> {
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the Acquires in `StateReader::of` and `StateLock::write`.
        self.lock
            .taken
            .fetch_and(!(1 << self.place), Ordering::Release);
    }
}

/// A raised flag. It lends the value only after [`StateReader::try_read`] found the lock open.
pub(super) struct StateReadGuard<'a, T> {
    lock: &'a StateLock<T>,
    flag: &'a AtomicBool,
}

impl<T> Deref for StateReadGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        self.lock.shadow.read(0);
        // SAFETY: the flag is raised and the lock was found open after that, so no writer accesses
        // the value until the flag is lowered (module documentation).
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> Drop for StateReadGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the load of the flag in `StateLock::write`.
        self.flag.store(false, Ordering::Release);
    }
}

/// Exclusive access to the value.
pub(super) struct StateWriteGuard<'a, T> {
    lock: &'a StateLock<T>,
}

impl<T> StateWriteGuard<'_, T> {
    /// The log is applied to the value up to here.
    pub(super) fn set_position(&self, position: Seq) {
        // ORDERING: Release, pairs with the Acquire in `StateLock::position`.
        self.lock.position.store(position, Ordering::Release);
    }

    /// The value is a new one.
    pub(super) fn clear_suspicion(&self) {
        self.lock.suspect.store(false, Ordering::Relaxed);
    }
}

impl<T> Deref for StateWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.lock.shadow.read(0);
        // SAFETY: `writing` keeps other writers out, and all readers have left.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for StateWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.lock.shadow.write(0);
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for StateWriteGuard<'_, T> {
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the load of `writing` in `StateReader::try_read` and the
        // Acquire in `StateLock::write`.
        self.lock.writing.store(false, Ordering::Release);
    }
}
