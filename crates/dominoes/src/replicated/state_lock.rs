//! The lock of one replica. One thread at a time holds its core; the state has many readers, each
//! with its flag, or one writer, which holds the core.
//!
//! A reader writes to its own flag only, so readers on several cores do not wait for each other's
//! cache lines. A writer reads all flags that are in use. A thread that takes the core shuts
//! readers out in the same step, so a write needs one exchange for both.
//!
//! # Why a reader and a writer never meet
//!
//! A reader raises its flag and then reads `holder`; a writer sets `holder` to `CLOSED` and then
//! reads the flags. Both steps are SeqCst on both sides, so at least one of the two sees the other.
//! A reader that sees `CLOSED` lowers its flag and does not read; a writer that sees a flag waits
//! until it is lowered. A place that is taken after the writer read `taken` belongs to a reader
//! whose fence comes later, so that reader sees `CLOSED`. A writer that becomes a reader raises its
//! flag before it releases the core, so the next holder, which acquires the core, sees the flag.
//!
//! # Quiet locks
//!
//! While no other thread writes, a reader need not fence: it raises its flag and reads `holder`
//! with a [light](barrier::light) fence between. The lock is *quiet* then. A writer of a quiet lock
//! that has other readers clears `quiet`, passes the [heavy](barrier::heavy) fence, and reads the
//! flags: either it sees a flag, or that reader sees that the lock is closed. A reader that found
//! the lock quiet looks again after it raised its flag. If it is quiet still, the writer that
//! clears `quiet` will see the flag, and so will all later ones, which do not fence; if not, the
//! reader lowers its flag.
//!
//! A lock becomes quiet when a writer finds that no other reader has a place, as with one thread
//! for each replica, or when a reader has found the state unchanged many times. It changes only
//! while the core is held, so a writer knows it. A reader that takes a place passes a fence, in
//! case the writer that looked for it believes that it is alone.

use super::{barrier, steps::step};
use crate::{
    Seq,
    sync::{
        Arc, AtomicBool, AtomicU8, AtomicU64, Ordering, Shadow, exchange_before_loads, fence,
        raise_before_loads,
    },
};
use crossbeam_utils::CachePadded;
use std::{
    array,
    cell::UnsafeCell,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

/// How many readers a lock can have.
pub(super) const MAX_READERS: usize = if cfg!(loom) { 4 } else { 64 };

/// No thread holds the core.
const FREE: u8 = 0;
/// A thread holds the core. The state is read only.
const OPEN: u8 = 1;
/// A thread holds the core, and may write to the state once its readers have left.
const CLOSED: u8 = 2;

pub(super) struct StateLock<T, C> {
    holder: AtomicU8,
    /// Readers raise their flags without a fence.
    quiet: AtomicBool,
    /// A writer must replace the state before it is read again.
    suspect: AtomicBool,
    /// How far the log is applied to the state. Written by writers only; it never falls.
    position: AtomicU64,
    /// The places of readers that are in use, a bit each.
    taken: AtomicU64,
    reading: [CachePadded<AtomicBool>; MAX_READERS],
    state: UnsafeCell<T>,
    core: CachePadded<UnsafeCell<C>>,
    /// Of the state and of the core.
    shadow: Shadow,
}

// SAFETY: readers on several threads hold `&T` at once (hence `T: Sync`), and a holder on any
// thread has `&mut T` and `&mut C` (hence `Send`), but never while a reader has `&T` (module
// documentation).
unsafe impl<T: Send + Sync, C: Send> Sync for StateLock<T, C> {}

impl<T, C> StateLock<T, C> {
    pub(super) fn new(state: T, core: C) -> Self {
        StateLock {
            holder: AtomicU8::new(FREE),
            quiet: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            position: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            reading: array::from_fn(|_| CachePadded::new(AtomicBool::new(false))),
            state: UnsafeCell::new(state),
            core: CachePadded::new(UnsafeCell::new(core)),
            shadow: Shadow::new(2),
        }
    }

    /// How far the log is applied to the state.
    #[inline(always)]
    pub(super) fn position(&self) -> Seq {
        // ORDERING: Acquire, pairs with the Release in `CoreGuard::set_position`: a thread that
        // knows this position reads `holder` as that writer left it, or later.
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

    /// Takes the core, unless another thread holds it, and shuts new readers out. `own` is the
    /// place of the caller, if it has one; it must not be reading.
    #[inline]
    pub(super) fn try_take(&self, own: Option<usize>) -> Option<CoreGuard<'_, T, C>> {
        // Load before the exchange: a plain load leaves the cache line shared.
        if self.holder.load(Ordering::Relaxed) != FREE {
            return None;
        }
        // As an Acquire it pairs with the Releases of `FREE`.
        exchange_before_loads(&self.holder, FREE, CLOSED).then(|| CoreGuard {
            lock: self,
            others: own.map_or(u64::MAX, |own| !(1 << own)),
            _not_sync: PhantomData,
        })
    }
}

impl<T, C> StateLock<T, C> {
    /// Makes the lock quiet if the state has not changed since `seen`.
    #[cold]
    fn calm_down(&self, seen: &mut Seq) {
        let now = self.position();
        if std::mem::replace(seen, now) == now
            && barrier::is_available()
            && let Some(_core) = self.try_take(None)
        {
            self.quiet.store(true, Ordering::Relaxed);
        }
    }
}

/// One reader's place in a lock. Reading needs `&mut`, so a reader reads one state at a time.
pub(super) struct StateReader<T, C> {
    lock: Arc<StateLock<T, C>>,
    place: usize,
    /// Reads with a fence, and the position when their number was last a multiple of [`MANY`].
    fenced: u32,
    seen: Seq,
}

/// Reads of an unchanged state after which a lock becomes quiet. They take ten times as long as the
/// heavy fence of the next writer.
const MANY: u32 = 1 << 14;

impl<T, C> StateReader<T, C> {
    /// Takes a place of the lock, unless all are in use.
    pub(super) fn of(lock: &Arc<StateLock<T, C>>) -> Option<Self> {
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
                    // ORDERING: SeqCst, pairs with `exchange_before_loads` in `try_take` and
                    // `write`: a writer that misses the place is seen by its first read.
                    fence(Ordering::SeqCst);
                    return Some(StateReader {
                        lock: lock.clone(),
                        place,
                        fenced: 0,
                        seen: 0,
                    });
                }
                Err(found) => now = found,
            }
        }
    }

    /// Number of the place, below [`MAX_READERS`].
    pub(super) fn place(&self) -> usize {
        self.place
    }

    /// How far the log is applied to the state.
    #[inline(always)]
    pub(super) fn position(&self) -> Seq {
        self.lock.position()
    }

    /// Whether no writer was there just now. A reader that tries again and again looks here first:
    /// if it raised its flag each time, it could keep a writer waiting.
    pub(super) fn is_open(&self) -> bool {
        self.lock.holder.load(Ordering::Relaxed) != CLOSED
    }

    /// The state, unless a writer has it or waits for it, or it is suspect.
    #[inline(always)]
    pub(super) fn try_read(&mut self) -> Option<StateReadGuard<'_, T, C>> {
        let lock = &*self.lock;
        let flag = &*lock.reading[self.place % MAX_READERS];
        let is_quiet = lock.quiet.load(Ordering::Relaxed);
        if is_quiet {
            flag.store(true, Ordering::Relaxed);
            barrier::light();
        } else {
            self.fenced = self.fenced.wrapping_add(1);
            if self.fenced.is_multiple_of(MANY) {
                lock.calm_down(&mut self.seen);
            }
            raise_before_loads(flag);
        }
        step("a reader raised its flag");
        let guard = StateReadGuard { lock, flag };
        // ORDERING: SeqCst, pairs with `exchange_before_loads` in `StateLock::try_take` and
        // `CoreGuard::write`; as an Acquire it pairs with the Releases of `FREE` and `OPEN`: this
        // thread sees what earlier writers wrote.
        let is_open = lock.holder.load(Ordering::SeqCst) != CLOSED && !lock.is_suspect();
        (is_open && (!is_quiet || lock.quiet.load(Ordering::Relaxed))).then_some(guard)
    }
}

impl<T, C> Drop for StateReader<T, C> {
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the Acquires in `StateReader::of` and `CoreGuard::write`.
        self.lock
            .taken
            .fetch_and(!(1 << self.place), Ordering::Release);
    }
}

/// A raised flag. It lends the state only after [`StateReader::try_read`] found the lock open, or
/// if it was raised by the holder of the core.
pub(super) struct StateReadGuard<'a, T, C> {
    lock: &'a StateLock<T, C>,
    flag: &'a AtomicBool,
}

impl<T, C> Deref for StateReadGuard<'_, T, C> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        self.lock.shadow.read(0);
        // SAFETY: the flag is raised and the lock was open after that, so no writer accesses the
        // state until the flag is lowered (module documentation).
        unsafe { &*self.lock.state.get() }
    }
}

impl<T, C> Drop for StateReadGuard<'_, T, C> {
    #[inline(always)]
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the load of the flag in `CoreGuard::write`.
        self.flag.store(false, Ordering::Release);
    }
}

/// Why the holder of the core cannot write to the state.
#[derive(Debug)]
pub(super) enum Unwritable {
    /// Readers stay.
    IsRead,
    /// The system refuses the [heavy](barrier::heavy) fence, so readers may be there unseen.
    NoFence,
}

/// The core of a replica. Its holder is the only writer of the state.
pub(super) struct CoreGuard<'a, T, C> {
    lock: &'a StateLock<T, C>,
    /// All places but the holder's.
    others: u64,
    /// The guard lends `&C`, so threads may share it only if they may share the core.
    _not_sync: PhantomData<&'a mut C>,
}

impl<'a, T, C> CoreGuard<'a, T, C> {
    /// Lets readers in.
    pub(super) fn open(&mut self) {
        // ORDERING: Release, pairs with the load of `holder` in `StateReader::try_read`.
        self.lock.holder.store(OPEN, Ordering::Release);
    }

    /// Shuts new readers out, and waits until the others have left: calls `wait` between two looks,
    /// and lets readers in again and gives up if that returns false.
    pub(super) fn write(
        &mut self,
        mut wait: impl FnMut() -> bool,
    ) -> Result<(&mut T, &mut C), Unwritable> {
        let lock = self.lock;
        if lock.holder.load(Ordering::Relaxed) == OPEN {
            exchange_before_loads(&lock.holder, OPEN, CLOSED);
        }
        // ORDERING: SeqCst, pairs with the fence in `StateReader::of`; as an Acquire it pairs with
        // the Release in `StateReader::drop`: the reading of a reader that has left is over.
        let mut left = lock.taken.load(Ordering::SeqCst) & self.others;
        // The exchange of `holder` orders this after the last writer's store.
        let is_quiet = lock.quiet.load(Ordering::Relaxed);
        if is_quiet != (left == 0) {
            if is_quiet {
                lock.quiet.store(false, Ordering::Relaxed);
                if !barrier::heavy() {
                    lock.quiet.store(true, Ordering::Relaxed);
                    return Err(Unwritable::NoFence);
                }
            } else if barrier::is_available() {
                lock.quiet.store(true, Ordering::Relaxed);
            }
        }
        while left != 0 {
            let place = left.trailing_zeros() as usize;
            // ORDERING: SeqCst, pairs with `raise_before_loads` in `StateReader::try_read`; as an
            // Acquire it pairs with the Release in `StateReadGuard::drop`: the reading is over.
            if !lock.reading[place].load(Ordering::SeqCst) {
                left &= left - 1;
            } else if !wait() {
                self.open();
                return Err(Unwritable::IsRead);
            }
        }
        lock.shadow.write(0);
        lock.shadow.write(1);
        // SAFETY: the holder of the core is the only writer, all readers have left, and the guard
        // is borrowed mutably. State and core are two values.
        Ok(unsafe { (&mut *lock.state.get(), &mut *lock.core.get()) })
    }

    /// The state, which may have other readers.
    pub(super) fn state(&self) -> &T {
        self.lock.shadow.read(0);
        // SAFETY: the holder of the core is the only writer, and the guard is borrowed.
        unsafe { &*self.lock.state.get() }
    }

    /// Releases the core, and becomes this reader, which must be of the same lock.
    pub(super) fn into_reader<'r>(
        self,
        reader: &'r mut StateReader<T, C>,
    ) -> StateReadGuard<'r, T, C> {
        assert!(
            std::ptr::eq(self.lock, &*reader.lock),
            "a reader of another lock"
        );
        let lock = &*reader.lock;
        let flag = &*lock.reading[reader.place % MAX_READERS];
        // The Release of the core, in `drop`, hands it to the next holder.
        flag.store(true, Ordering::Relaxed);
        StateReadGuard { lock, flag }
    }

    /// The log is applied to the state up to here.
    pub(super) fn set_position(&self, position: Seq) {
        // ORDERING: Release, pairs with the Acquire in `StateLock::position`.
        self.lock.position.store(position, Ordering::Release);
    }

    /// Shuts readers out, without waiting for those who are there, until the next writer clears the
    /// suspicion.
    pub(super) fn suspect(&self) {
        self.lock.suspect();
    }

    /// The state is a new one.
    pub(super) fn clear_suspicion(&self) {
        self.lock.suspect.store(false, Ordering::Relaxed);
    }
}

impl<T, C> Deref for CoreGuard<'_, T, C> {
    type Target = C;
    fn deref(&self) -> &C {
        self.lock.shadow.read(1);
        // SAFETY: one thread at a time holds the core, and the guard is borrowed.
        unsafe { &*self.lock.core.get() }
    }
}

impl<T, C> DerefMut for CoreGuard<'_, T, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.lock.shadow.write(1);
        // SAFETY: as above, and borrowed mutably.
        unsafe { &mut *self.lock.core.get() }
    }
}

impl<T, C> Drop for CoreGuard<'_, T, C> {
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the exchange in `StateLock::try_take` and the load in
        // `StateReader::try_read`.
        self.lock.holder.store(FREE, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::{hint::spin_loop, thread};

    /// If `heavy` fences nothing, a quarter of the rounds are wrong. Before it raises its flag, the
    /// reader stores to lines that are in the writer's cache. So it is inside long before its flag
    /// shows it.
    #[test]
    fn a_writer_of_a_quiet_lock_waits_for_a_reader_that_does_not_fence() {
        if !barrier::is_available() {
            return println!("skipped: the system has no membarrier(2)");
        }
        let lock = Arc::new(StateLock::new(AtomicU64::new(0), ()));
        let mut reader = StateReader::of(&lock).unwrap();
        (0..=2 * MANY).for_each(|_| drop(reader.try_read()));
        assert!(lock.quiet.load(Ordering::Relaxed), "the state is unchanged");
        let core = || loop {
            match lock.try_take(None) {
                Some(core) => break core,
                None => thread::yield_now(),
            }
        };
        let lines: [CachePadded<AtomicU64>; 16] = Default::default();
        let store = |value| {
            lines
                .iter()
                .for_each(|it| it.store(value, Ordering::Relaxed))
        };
        let (reads, faults) = (AtomicU64::new(0), AtomicU64::new(0));
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    store(1);
                    if let Some(state) = reader.try_read() {
                        let before = state.load(Ordering::Relaxed);
                        (0..10).for_each(|_| spin_loop());
                        let is_wrong = state.load(Ordering::Relaxed) != before;
                        faults.fetch_add(u64::from(is_wrong), Ordering::Relaxed);
                    }
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
            for round in 0..1_000 {
                let guard = core();
                lock.quiet.store(true, Ordering::Relaxed);
                drop(guard);
                // The reader reads twice, if it runs now.
                let before = reads.load(Ordering::Relaxed);
                let mut spins = 0..1000;
                while spins.next().is_some() && reads.load(Ordering::Relaxed) < before + 2 {
                    spin_loop();
                }
                (0..round % 64).for_each(|_| spin_loop());
                store(2);
                let mut guard = core();
                let write = guard.write(|| {
                    thread::yield_now();
                    true
                });
                *write.unwrap().0.get_mut() += 1;
            }
            ends.store(true, Ordering::Relaxed);
        });
        assert_eq!(faults.into_inner(), 0, "writes during a read");
    }
}
