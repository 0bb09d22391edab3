//! The log of operations of replicated state: the one file that accesses its entries.
//!
//! An entry holds an operation, and a word that shows whether it is published. So a reader that has
//! applied everything looks at one cache line, that of the next entry, and a writer takes one from
//! other cores. A [channel](crate::channel()) keeps such words apart, which suits threads that
//! publish or read many entries at a time.
//!
//! # The word of an entry
//!
//! Position `seq` is in entry `seq & mask`, whose word only grows: [`claimed`]`(seq)`,
//! [`published`]`(seq)`, and then both of the next lap.
//!
//! * To claim `seq`, a publisher must have seen everything below published, and changes the word
//!   from the previous lap's [`published`]. Then no other publisher passes `seq` until it is
//!   published, so `seq` and the entries after it, below the limit, belong to this one. It writes
//!   the operations, then the later words, and the word of `seq` last. No user code runs meanwhile.
//! * So when an entry is not published, no later one was, at that moment, part of a call that has
//!   returned. A read through a replica that has applied everything below `seq` misses no
//!   completed write if `seq` is not published.
//!
//! # Why no operation is overwritten while it is read
//!
//! A claim of `seq` demands `seq < gate + capacity`, and there are at least `capacity` entries. The
//! gate is the lowest position of all cursors, present and future: a cursor is made by forking
//! another one, at its position, and the other advances only after `joins` has counted the new one.
//! A thread that has seen the other's new position (Acquire) sees that count, and looks at all cursors
//! again. A place without a cursor is at [`NOWHERE`], and does not count.

use super::replica::drop_quietly;
use crate::{
    MAX_SUBSCRIBERS, Seq,
    sync::{Arc, AtomicU64, Ordering, Shadow},
};
use crossbeam_utils::CachePadded;
use std::{
    cell::UnsafeCell,
    mem::{self, MaybeUninit},
};

const fn claimed(seq: Seq) -> u64 {
    2 * seq + 1
}

const fn published(seq: Seq) -> u64 {
    2 * seq + 2
}

/// No log gets so far, nor does an argument that is below it overflow.
pub(super) const END: Seq = 1 << 62;

/// The position of a place that has no cursor.
const NOWHERE: Seq = Seq::MAX;

#[repr(C)] // A small operation is in the cache line of its word.
struct Entry<O> {
    word: AtomicU64,
    op: UnsafeCell<MaybeUninit<O>>,
}

pub(super) struct OpLog<O> {
    entries: Box<[Entry<O>]>,
    mask: u64,
    pub(super) capacity: u64,
    /// The places of cursors in use, a bit each.
    members: CachePadded<AtomicU64>,
    /// Cursors made so far.
    joins: AtomicU64,
    /// A cursor needs no entry below.
    cursors: Box<[CachePadded<AtomicU64>]>,
    /// Of the operations.
    shadow: Shadow,
}

// SAFETY: threads put operations in and take them out (hence `Send`) and lend them concurrently
// (hence `Sync`), but never while another thread writes them (module documentation).
unsafe impl<O: Send + Sync> Sync for OpLog<O> {}

/// A publisher's knowledge of the log, which lets it seldom read words that others write.
#[derive(Clone, Copy, Default)]
pub(super) struct Known {
    /// Everything below is published.
    pub(super) end: Seq,
    /// Positions below may be claimed.
    limit: Seq,
}

/// Why nothing was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Another thread is publishing.
    Busy,
    Full,
}

impl<O: Send + Sync> OpLog<O> {
    /// A log with its first cursor.
    pub(super) fn new(capacity: usize) -> (Arc<Self>, Cursor<O>) {
        let len = capacity.next_power_of_two();
        let entry = |_| Entry {
            word: AtomicU64::new(0),
            op: UnsafeCell::new(MaybeUninit::uninit()),
        };
        let log = Arc::new(OpLog {
            entries: (0..len).map(entry).collect(),
            mask: len as u64 - 1,
            capacity: capacity as u64,
            members: CachePadded::new(AtomicU64::new(1)),
            joins: AtomicU64::new(1),
            cursors: (0..MAX_SUBSCRIBERS)
                .map(|place| if place == 0 { 0 } else { NOWHERE })
                .map(|position| CachePadded::new(AtomicU64::new(position)))
                .collect(),
            shadow: Shadow::new(len),
        });
        let cursor = Cursor {
            log: log.clone(),
            place: 0,
            position: 0,
            known: Known::default(),
        };
        (log, cursor)
    }

    #[inline(always)]
    fn entry(&self, seq: Seq) -> &Entry<O> {
        let index = (seq & self.mask) as usize;
        debug_assert!(index < self.entries.len());
        // SAFETY: `mask` is the number of entries less one.
        unsafe { self.entries.get_unchecked(index) }
    }

    /// Whether the entry at `seq` is published.
    #[inline(always)]
    pub(super) fn is_published(&self, seq: Seq) -> bool {
        // ORDERING: Acquire, pairs with the Release stores in `publish`: the operation is there.
        let word = self.entry(seq).word.load(Ordering::Acquire);
        word >= published(seq)
    }

    /// The first position from `seq` on that is not published.
    #[inline]
    pub(super) fn end(&self, mut seq: Seq) -> Seq {
        while self.is_published(seq) {
            seq += 1;
        }
        seq
    }

    pub(super) fn has_cursors(&self) -> bool {
        self.members.load(Ordering::Relaxed) != 0
    }

    /// No cursor, present or future, is below this position. `None` if there is no cursor.
    fn gate(&self) -> Option<Seq> {
        // ORDERING: Acquire, pairs with the Release in `Cursor::fork`.
        let mut joins = self.joins.load(Ordering::Acquire);
        loop {
            // ORDERING: Acquire, pairs with the Release in `Cursor::drop`: its reading is over.
            let mut members = self.members.load(Ordering::Acquire);
            let mut gate = NOWHERE;
            while members != 0 {
                let place = members.trailing_zeros() as usize;
                members &= members - 1;
                // ORDERING: Acquire, pairs with the Releases in `Cursor`: reading below is over,
                // and the forks of that cursor are counted.
                gate = gate.min(self.cursors[place].load(Ordering::Acquire));
            }
            // ORDERING: Acquire, for the next round, as above.
            let now = self.joins.load(Ordering::Acquire);
            if now == joins {
                return (gate != NOWHERE).then_some(gate);
            }
            joins = now;
        }
    }

    /// Claims the first position that is not published, for a batch of `len` operations.
    #[inline]
    fn claim(&self, known: &mut Known, len: u64) -> Result<Seq, Refusal> {
        loop {
            let first = known.end;
            if first + len > known.limit {
                known.limit = self.gate().map_or(0, |gate| gate + self.capacity);
                if first + len > known.limit && !self.is_published(first) {
                    return Err(Refusal::Full);
                }
            }
            // At first an exchange: a load would fetch the line from another core a second time.
            // ORDERING: Acquire, pairs with the Release of the previous lap, whose operation is
            // then there.
            if first + len <= known.limit
                && let Ok(_) = self.entry(first).word.compare_exchange(
                    first.checked_sub(self.mask + 1).map_or(0, published),
                    claimed(first),
                    Ordering::Acquire,
                    Ordering::Relaxed,
                )
            {
                return Ok(first);
            }
            known.end = self.end(first);
            if known.end == first {
                return Err(Refusal::Busy);
            }
        }
    }

    /// Puts an operation into an entry, and passes the one of the previous lap to `released`.
    ///
    /// # Safety
    /// The entry is claimed for the caller, and not published.
    #[inline]
    unsafe fn put(&self, seq: Seq, op: O, released: &mut impl FnMut(O)) {
        self.shadow.write((seq & self.mask) as usize);
        let place = self.entry(seq).op.get();
        // SAFETY: the entry is claimed, and no cursor needs the operation of the previous lap, so
        // no other thread uses it (module documentation). From the second lap on there is one,
        // which is taken once.
        unsafe {
            if mem::needs_drop::<O>() && seq > self.mask {
                released((*place).assume_init_read());
            }
            place.write(MaybeUninit::new(op));
        }
    }

    #[inline]
    fn show(&self, seq: Seq) {
        let word = &self.entry(seq).word;
        // ORDERING: Release, pairs with the Acquire in `is_published`.
        word.store(published(seq), Ordering::Release);
    }

    /// Publishes a batch and then `own`, and returns the position of the first. `released` takes
    /// the operations that all cursors have passed; it must not run code of the user.
    #[inline]
    pub(super) fn publish(
        &self,
        known: &mut Known,
        batch: &mut Vec<O>,
        own: O,
        mut released: impl FnMut(O),
    ) -> Result<Seq, (Refusal, O)> {
        let len = batch.len() as u64;
        let first = match self.claim(known, len + 1) {
            Ok(first) => first,
            Err(refusal) => return Err((refusal, own)),
        };
        let last = first + len;
        for (seq, op) in (first..).zip(batch.drain(..)) {
            // SAFETY: no other thread claims an entry from `first` on until `first` is published.
            unsafe { self.put(seq, op, &mut released) };
        }
        // SAFETY: as above.
        unsafe { self.put(last, own, &mut released) };
        (first..=last).rev().for_each(|seq| self.show(seq));
        known.end = last + 1;
        Ok(first)
    }
}

impl<O> Drop for OpLog<O> {
    fn drop(&mut self) {
        for entry in &mut self.entries {
            if entry.word.load(Ordering::Relaxed) != 0 {
                // SAFETY: a word that is not 0 is a published one, since publishing does not stop
                // half-way, and no other thread has the log. The operation is taken once.
                drop_quietly(unsafe { entry.op.get_mut().assume_init_read() });
            }
        }
    }
}

/// A replica's place in the log. Entries from its position on are not overwritten.
pub(super) struct Cursor<O> {
    log: Arc<OpLog<O>>,
    place: usize,
    position: Seq,
    known: Known,
}

impl<O: Send + Sync> Cursor<O> {
    pub(super) fn position(&self) -> Seq {
        self.position
    }

    /// Looks how far the log is published.
    #[inline]
    pub(super) fn poll(&mut self) -> Seq {
        self.known.end = self.log.end(self.known.end);
        self.known.end
    }

    /// Publishes as [`OpLog::publish`] does.
    #[inline]
    pub(super) fn publish(
        &mut self,
        batch: &mut Vec<O>,
        own: O,
        released: impl FnMut(O),
    ) -> Result<Seq, (Refusal, O)> {
        self.log.publish(&mut self.known, batch, own, released)
    }

    /// The operations from the position to the published end as [`poll`](Self::poll) found it, or
    /// up to `to`.
    #[inline]
    pub(super) fn operations(&self, to: Seq) -> impl Iterator<Item = &O> {
        let log = &*self.log;
        (self.position..self.known.end.min(to)).map(move |seq| {
            log.shadow.read((seq & log.mask) as usize);
            // SAFETY: the entry was seen published, and is not overwritten before this cursor has
            // passed it (module documentation), for which it must not be borrowed.
            unsafe { (*log.entry(seq).op.get()).assume_init_ref() }
        })
    }

    /// Releases everything below `seq`.
    pub(super) fn advance_to(&mut self, seq: Seq) {
        assert!(
            self.position <= seq && seq <= self.known.end,
            "operations up to {seq} cannot be released, they are seen up to {} only",
            self.known.end
        );
        self.position = seq;
        // ORDERING: Release, pairs with the Acquire in `OpLog::gate`.
        self.log.cursors[self.place].store(seq, Ordering::Release);
    }

    /// Another cursor at the same position; `None` if all places are taken.
    pub(super) fn fork(&self) -> Option<Self> {
        let log = &self.log;
        let mut members = log.members.load(Ordering::Relaxed);
        loop {
            let place = members.trailing_ones() as usize;
            if place >= MAX_SUBSCRIBERS {
                return None;
            }
            // ORDERING: Acquire, pairs with the Release in `Drop`: the last user of the place no
            // longer writes to its position.
            match log.members.compare_exchange_weak(
                members,
                members | 1 << place,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    let fork = Cursor {
                        log: log.clone(),
                        place,
                        ..*self
                    };
                    // ORDERING: Release, twice: pair with the Acquires in `OpLog::gate`.
                    log.cursors[place].store(self.position, Ordering::Release);
                    log.joins.fetch_add(1, Ordering::Release);
                    return Some(fork);
                }
                Err(found) => members = found,
            }
        }
    }
}

impl<O> Drop for Cursor<O> {
    fn drop(&mut self) {
        // ORDERING: Release, twice: pair with the Acquires in `OpLog::gate` and `Cursor::fork`.
        self.log.cursors[self.place].store(NOWHERE, Ordering::Release);
        let members = &self.log.members;
        members.fetch_and(!(1 << self.place), Ordering::Release);
    }
}
