//! A record for each batch of a log: a value, and one word with the progress of its work.
//!
//! A batch is a range of positions of a log, named by the first of them. Its record is in the slot
//! of that position. The pieces of work of a batch are numbered in the order in which they must be
//! done.
//!
//! # Why the values are sound
//!
//! The word of a slot is `lap (24) | next piece (30) | readers (7) | EMPTY | DONE | BEGUN`; its lap
//! is the position divided by the number of slots, modulo 2^24. The argument holds whatever callers
//! do:
//!
//! 1. Only the [`BatchWriter`] puts values into slots, and only where the word is `EMPTY`. It
//!    stores a word without `EMPTY` after the value.
//! 2. [`BatchRecords::read`] and [`BatchRecords::begin`] succeed only on a word of the batch's own
//!    lap that is neither `DONE` nor `EMPTY`. Each is one compare-and-swap: `read` counts a reader,
//!    `begin` sets `BEGUN`. So `BEGUN` has one holder, and both find a value in the slot.
//! 3. A slot begins `EMPTY` and `DONE`. Later only the holder of `BEGUN` sets `DONE`, as it clears
//!    `BEGUN`. After that no reader enters,
//!    and readers only leave. So exactly one atomic operation leaves a word that is `DONE`, without
//!    readers and not `BEGUN`. Its thread moves the value out, and stores `EMPTY`.
//!
//! Laps wrap around: a caller may find the value of a batch 2^24 laps away, but no empty slot.
//! Destructors are user code: before one runs, its value is out of the slot, and the word is
//! `EMPTY` or, while the `BatchRecords` are dropped, the loop is past the slot.

use crate::{
    Seq,
    slots::Slots,
    sync::{Arc, AtomicU64, Ordering},
};
use crossbeam_utils::CachePadded;
use std::{collections::VecDeque, fmt, mem};

const BEGUN: u64 = 1;
const DONE: u64 = 1 << 1;
const EMPTY: u64 = 1 << 2;
const READER: u64 = 1 << 3;
const READERS: u64 = ((1 << 7) - 1) << 3;
const NEXT_SHIFT: u32 = 10;
const NEXT_BITS: u32 = 30;
const NEXT: u64 = ((1 << NEXT_BITS) - 1) << NEXT_SHIFT;
const LAP_SHIFT: u32 = NEXT_SHIFT + NEXT_BITS;

/// The state of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkState {
    /// It is not done, and no thread has begun its batch or chunk.
    Free,
    /// It is not done, and a thread has begun its batch or chunk.
    Begun,
    /// It is done.
    Done,
}

/// The records of the batches of a log; see [`batch_records`].
pub struct BatchRecords<A> {
    values: Slots<A>,
    words: Box<[CachePadded<AtomicU64>]>,
    mask: u64,
    /// log2 of the number of slots.
    shift: u32,
}

/// Puts records of batches into their slots, for one thread at a time: `Send`, not `Clone`.
pub struct BatchWriter<A> {
    shared: Arc<BatchRecords<A>>,
    /// First position of the next batch.
    next: Seq,
    /// All batches below are done, and their slots are empty.
    done: Seq,
    /// The lengths of the batches from `done` to `next`.
    open: VecDeque<u64>,
}

/// Records for the batches of a log that has `slots` slots ([`Log::slots`](crate::Log::slots)).
///
/// The single publisher [puts](BatchWriter::put) the record of a batch before it publishes the
/// batch's entries. Other threads [read](BatchRecords::read) the value in place, or
/// [begin](BatchRecords::begin) the batch, do pieces of its work and say how far they came. One
/// thread at a time has begun a batch.
/// A thread that stops before all is done, even by unwinding, leaves the rest to the next one.
/// When all is done, the last thread that leaves the batch gets the value.
///
/// ```
/// let (mut writer, batches) = dominoes::batch_records::<String>(4);
/// assert_eq!(writer.put(3, "three entries".to_string()), Ok(0));
/// assert_eq!((writer.next_seq(), writer.room()), (3, 1));
/// let reading = batches.read(0).unwrap();
/// {
///     let mut mine = batches.begin(0).unwrap();
///     assert_eq!(mine.value(), "three entries");
///     mine.done_before(7); // pieces 0 to 6
/// }
/// let mut mine = batches.begin(0).unwrap();
/// assert!(mine.has_done(6) && !mine.has_done(7));
/// assert_eq!(mine.finish(), None); // still read
/// assert_eq!(reading.release().as_deref(), Some("three entries"));
/// assert_eq!((writer.room(), writer.done()), (4, 3));
/// ```
///
/// Many threads read a value in place, so it must be [`Sync`]; any of them may take it out, so it
/// must be [`Send`]:
///
/// ```compile_fail,E0277
/// dominoes::batch_records::<std::cell::Cell<u32>>(4);
/// ```
///
/// ```compile_fail,E0277
/// dominoes::batch_records::<std::sync::MutexGuard<'static, u32>>(4);
/// ```
///
/// # Panics
/// If `slots` is not a power of two.
pub fn batch_records<A: Send + Sync>(slots: usize) -> (BatchWriter<A>, Arc<BatchRecords<A>>) {
    assert!(
        slots.is_power_of_two(),
        "{slots} slots are not a power of two"
    );
    let shared = Arc::new(BatchRecords {
        values: Slots::new(slots),
        words: (0..slots)
            .map(|_| CachePadded::new(AtomicU64::new(EMPTY | DONE)))
            .collect(),
        mask: slots as u64 - 1,
        shift: slots.trailing_zeros(),
    });
    let writer = BatchWriter {
        shared: shared.clone(),
        next: 0,
        done: 0,
        open: VecDeque::new(),
    };
    (writer, shared)
}

impl<A> BatchRecords<A> {
    /// Pieces of work in a batch, at most. The last of so many is done by [`BegunBatch::finish`].
    pub const MAX_PIECES: u64 = 1 << NEXT_BITS;
    /// The most [`ReadBatch`]es of one batch at a time.
    pub const MAX_READERS: u64 = READERS / READER;

    #[inline]
    fn index(&self, first: Seq) -> usize {
        (first & self.mask) as usize
    }

    #[inline]
    fn lap(&self, first: Seq) -> u64 {
        first >> self.shift << LAP_SHIFT
    }

    #[inline]
    fn is_of(&self, word: u64, first: Seq) -> bool {
        word >> LAP_SHIFT << LAP_SHIFT == self.lap(first)
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.values.len()
    }

    /// The state of piece `piece` of the batch at `first`. It is [`WorkState::Done`], too, if a
    /// later batch has the slot, or if no batch was put at `first`.
    #[inline]
    pub fn state(&self, first: Seq, piece: u64) -> WorkState {
        // ORDERING: Acquire, pairs with the Release in `release` (for an earlier lap by way of
        // `done` and `put`): a thread that finds a piece done sees the writes of doing it.
        let word = self.words[self.index(first)].load(Ordering::Acquire);
        if !self.is_of(word, first) || word & DONE != 0 || piece < (word & NEXT) >> NEXT_SHIFT {
            WorkState::Done
        } else if word & BEGUN != 0 {
            WorkState::Begun
        } else {
            WorkState::Free
        }
    }

    /// Whether all of the batch at `first` is done, or no batch was put there.
    #[inline]
    pub fn is_done(&self, first: Seq) -> bool {
        self.state(first, Self::MAX_PIECES) == WorkState::Done
    }

    /// Keeps the value of the batch at `first` in its slot as long as the [`ReadBatch`] lives.
    /// `None` if the batch is done, or none was put at `first`.
    ///
    /// # Panics
    /// If there are [`MAX_READERS`](Self::MAX_READERS) of it already.
    #[inline]
    pub fn read(&self, first: Seq) -> Option<ReadBatch<'_, A>> {
        let at = &self.words[self.index(first)];
        let mut word = at.load(Ordering::Relaxed);
        loop {
            if !self.is_of(word, first) || word & (DONE | EMPTY) != 0 {
                return None;
            }
            assert!(word & READERS != READERS, "too many threads read a batch");
            // ORDERING: Acquire, pairs with the Release in `BatchWriter::put`: the value is there.
            match at.compare_exchange_weak(
                word,
                word + READER,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    return Some(ReadBatch {
                        batches: self,
                        first,
                    });
                }
                Err(found) => word = found,
            }
        }
    }

    /// Begins the batch at `first` where the previous thread stopped.
    ///
    /// # Errors
    /// [`WorkState::Begun`] if it is begun already, [`WorkState::Done`] if all of it is done, or no
    /// batch was put at `first`.
    #[inline]
    pub fn begin(&self, first: Seq) -> Result<BegunBatch<'_, A>, WorkState> {
        let at = &self.words[self.index(first)];
        // ORDERING: Acquire, as in `state`.
        let mut word = at.load(Ordering::Acquire);
        loop {
            if !self.is_of(word, first) || word & (DONE | EMPTY) != 0 {
                return Err(WorkState::Done);
            }
            if word & BEGUN != 0 {
                return Err(WorkState::Begun);
            }
            // ORDERING: Acquire, pairs with the Release in `release` and in `BatchWriter::put`: the
            // caller continues after the earlier pieces, and the value is there.
            match at.compare_exchange_weak(word, word | BEGUN, Ordering::Acquire, Ordering::Acquire)
            {
                Ok(_) => {
                    let next = (word & NEXT) >> NEXT_SHIFT;
                    return Ok(BegunBatch {
                        batches: self,
                        first,
                        begun_at: next,
                        next,
                    });
                }
                Err(found) => word = found,
            }
        }
    }

    /// The value of the batch at `first`, which the caller reads or has begun.
    #[inline]
    fn value(&self, first: Seq) -> &A {
        // SAFETY: the caller holds a `ReadBatch` or `BegunBatch` as long as the reference lives, so
        // there is a value, and no thread takes it out or writes the slot (facts 1 to 3).
        unsafe { self.values.get(self.index(first)) }
    }

    /// Adds `change`, modulo 2^64, to the word: the caller no longer reads the batch, or no longer
    /// has it begun. Returns the value if the batch is done and the caller was the last one.
    #[inline]
    fn release(&self, first: Seq, change: u64) -> Option<A> {
        let index = self.index(first);
        self.values.touch(index, 1); // For loom: the caller may have read the slot.
        let at = &self.words[index];
        // ORDERING: Release, pairs with the Acquire here and in `begin` and `state`: the caller's
        // work and reading are over. Acquire, for the same of all other threads.
        let word = at.fetch_add(change, Ordering::AcqRel).wrapping_add(change);
        if word & (DONE | READERS | BEGUN) != DONE {
            return None;
        }
        // SAFETY: this operation left the batch done, without readers and not begun, so this thread
        // alone may take the value (fact 3).
        let value = unsafe { self.values.take(index) };
        // ORDERING: Release, pairs with the Acquire in `BatchWriter::done`: the slot is empty.
        at.store(word | EMPTY, Ordering::Release);
        Some(value)
    }
}

impl<A> Drop for BatchRecords<A> {
    fn drop(&mut self) {
        /// Drops the remaining values. If a destructor panics, `again` drops the others.
        struct Rest<'a, A> {
            batches: &'a BatchRecords<A>,
            next: usize,
        }
        impl<A> Drop for Rest<'_, A> {
            fn drop(&mut self) {
                while let Some(word) = self.batches.words.get(self.next) {
                    let index = self.next;
                    self.next += 1;
                    if word.load(Ordering::Relaxed) & EMPTY != 0 {
                        continue;
                    }
                    // SAFETY: `&mut BatchRecords`, so no other thread uses the slot. Its word is
                    // not `EMPTY`, so it holds a value, which is taken once: `next` is past it.
                    let value = unsafe { self.batches.values.take(index) };
                    let again = Rest {
                        next: self.next,
                        ..*self
                    };
                    drop(value);
                    mem::forget(again);
                }
            }
        }
        drop(Rest {
            batches: self,
            next: 0,
        });
    }
}

impl<A> fmt::Debug for BatchRecords<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchRecords")
            .field("slots", &self.slots())
            .finish()
    }
}

impl<A: Send + Sync> BatchWriter<A> {
    /// First position of the next batch.
    #[inline]
    pub fn next_seq(&self) -> Seq {
        self.next
    }

    /// The position below which all batches are done and none is read.
    #[inline]
    pub fn done(&mut self) -> Seq {
        let shared = &*self.shared;
        while let Some(&len) = self.open.front() {
            let word = &shared.words[shared.index(self.done)];
            // ORDERING: Acquire, pairs with the Release in `release`: the caller sees the work of
            // the batch, and the slot is empty.
            if word.load(Ordering::Acquire) & EMPTY == 0 {
                break;
            }
            self.done += len;
            self.open.pop_front();
        }
        self.done
    }

    /// How many positions the next batch may have: the number of slots, less all positions from the
    /// oldest batch on that is not done, or is still read.
    #[inline]
    pub fn room(&mut self) -> usize {
        let open = self.next - self.done();
        self.shared.slots() - open as usize
    }

    /// Puts the record of the next batch, which has `len` positions, into its slot. Returns its
    /// first position.
    ///
    /// # Errors
    /// Returns the value if [`room`](Self::room) is less than `len`.
    ///
    /// # Panics
    /// If `len` is 0.
    #[inline]
    pub fn put(&mut self, len: usize, value: A) -> Result<Seq, A> {
        assert!(len > 0, "a batch has at least one position");
        if self.room() < len {
            return Err(value);
        }
        let (shared, first) = (&*self.shared, self.next);
        let index = shared.index(first);
        // SAFETY: there is one writer. All batches of the previous lap whose slots this one uses
        // are done, and their words are `EMPTY` (see `done`), so no other thread uses the slot
        // until the word is stored (fact 1).
        unsafe { shared.values.write(index, value) };
        // ORDERING: Release, pairs with the Acquire in `read` and `begin`: the value is there.
        shared.words[index].store(shared.lap(first), Ordering::Release);
        self.next += len as u64;
        self.open.push_back(len as u64);
        Ok(first)
    }
}

impl<A> fmt::Debug for BatchWriter<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchWriter")
            .field("next", &self.next)
            .field("done", &self.done)
            .finish()
    }
}

/// Keeps the value of a batch in its slot. `Send`, not `Clone`.
///
/// References to the value cannot outlive it:
///
/// ```compile_fail,E0505
/// let (mut writer, batches) = dominoes::batch_records::<String>(4);
/// writer.put(1, String::new()).unwrap();
/// let reading = batches.read(0).unwrap();
/// let value = reading.value();
/// reading.release();
/// println!("{value:?}");
/// ```
#[derive(Debug)]
pub struct ReadBatch<'a, A> {
    batches: &'a BatchRecords<A>,
    first: Seq,
}

impl<A> ReadBatch<'_, A> {
    /// First position of the batch.
    #[inline]
    pub fn first(&self) -> Seq {
        self.first
    }

    /// The value.
    #[inline]
    pub fn value(&self) -> &A {
        self.batches.value(self.first)
    }

    /// Ends reading. Returns the value if the batch is done and has no other reader. Dropping the
    /// [`ReadBatch`] instead drops the value then.
    #[inline]
    pub fn release(self) -> Option<A> {
        let (batches, first) = (self.batches, self.first);
        mem::forget(self);
        batches.release(first, READER.wrapping_neg())
    }
}

impl<A> Drop for ReadBatch<'_, A> {
    fn drop(&mut self) {
        self.batches.release(self.first, READER.wrapping_neg());
    }
}

/// A batch that this thread has begun. Dropping it, even by unwinding, lets any thread begin the
/// batch.
#[derive(Debug)]
pub struct BegunBatch<'a, A> {
    batches: &'a BatchRecords<A>,
    first: Seq,
    begun_at: u64,
    next: u64,
}

impl<A> BegunBatch<'_, A> {
    /// First position of the batch.
    #[inline]
    pub fn first(&self) -> Seq {
        self.first
    }

    /// The value.
    #[inline]
    pub fn value(&self) -> &A {
        self.batches.value(self.first)
    }

    /// Whether `piece` is done.
    #[inline]
    pub fn has_done(&self, piece: u64) -> bool {
        piece < self.next
    }

    /// Notes that all pieces before `piece` are done, which other threads see when this is dropped.
    ///
    /// # Panics
    /// If `piece` is not below [`BatchRecords::MAX_PIECES`].
    #[inline]
    pub fn done_before(&mut self, piece: u64) {
        assert!(piece < 1 << NEXT_BITS, "a batch has no piece {piece}");
        self.next = self.next.max(piece);
    }

    /// Marks the whole batch as done. Returns the value, unless the batch is still read: then the
    /// last reader gets it.
    #[inline]
    pub fn finish(self) -> Option<A> {
        let change = DONE - BEGUN;
        let (batches, first) = (self.batches, self.first);
        mem::forget(self);
        batches.release(first, change)
    }
}

impl<A> Drop for BegunBatch<'_, A> {
    fn drop(&mut self) {
        let pieces = (self.next - self.begun_at) << NEXT_SHIFT;
        // It is not done, so the value stays.
        self.batches.release(self.first, pieces.wrapping_sub(BEGUN));
    }
}
