//! Work with an owner that other threads may take over: [`Chunks`].
//!
//! Pieces of work are numbered, and grouped into *chunks* of equal length. A chunk's word holds the
//! number of its first piece that is not done, and one bit: whether a thread has begun the chunk.
//!
//! ```text
//! (next, free) --begin, a CAS by any thread--> (next, begun) --BegunChunk::drop--> (next', free)
//! ```
//!
//! # The argument
//! 1. Only the thread that changed a word from free to begun changes it until it is free again. So
//!    one thread at a time does pieces of a chunk, and the next thread begins after them.
//! 2. `next` never decreases, so no piece is done twice, unless its thread unwound while doing it:
//!    then the piece counts as not done.
//! 3. A chunk is begun only between `begin` and the drop of its [`BegunChunk`]. A thread that stops
//!    outside of that, for however long, delays no other thread. One that stops inside delays the
//!    rest of that chunk and nothing else: the others wait for it, since late does not mean failed.
//!    A thread that unwinds releases its chunk.
//!
//! A word serves one chunk after another. A thread that begins a chunk of a later lap finds a
//! number below its first piece, and treats the chunk as untouched. The user must make sure that a
//! word's chunk is done before the first piece of its next chunk can be begun. Numbers are compared
//! modulo 2^63.

use crate::WorkState;
use crate::sync::{AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use std::fmt;

/// Progress of chunks of work, and whether a thread works on them. One thread at a time can begin a
/// chunk, and continues where the previous one stopped.
///
/// A chunk may be begun only when the chunk that used its word before is done.
///
/// ```
/// use dominoes::{Chunks, WorkState};
/// let chunks = Chunks::new(2, 2); // two words; the first chunk has pieces 0 to 3
/// {
///     let mut mine = chunks.begin(0).unwrap();
///     assert_eq!(mine.next(), 0);
///     mine.done(0); // piece 0
///     assert_eq!(chunks.state(1), WorkState::Begun);
///     assert_eq!(chunks.begin(1).err(), Some(WorkState::Begun));
/// }
/// let mut other = chunks.begin(3).unwrap(); // a chunk at a time, whichever piece is named
/// assert_eq!(other.next(), 1);
/// other.done(3);
/// drop(other);
/// assert_eq!(chunks.begin(0).err(), Some(WorkState::Done));
/// assert_eq!(chunks.state(4), WorkState::Free);
/// ```
pub struct Chunks {
    /// Each word is `next << 1 | begun`.
    words: Box<[CachePadded<AtomicU64>]>,
    /// log2 of the number of pieces in a chunk.
    shift: u32,
}

impl Chunks {
    const BEGUN: u64 = 1;

    /// Creates `words` words, for chunks of 2^`shift` pieces each. No piece is done.
    ///
    /// # Panics
    /// If `words` is not a power of two, or `shift` exceeds 60.
    pub fn new(words: usize, shift: u32) -> Self {
        assert!(
            words.is_power_of_two() && shift <= 60,
            "{words} words are not a power of two, or chunks of 2^{shift} are too long"
        );
        let word = |chunk: u64| CachePadded::new(AtomicU64::new((chunk << shift) << 1));
        Chunks {
            words: (0..words as u64).map(word).collect(),
            shift,
        }
    }

    #[inline]
    fn word(&self, piece: u64) -> &AtomicU64 {
        &self.words[(piece >> self.shift) as usize & (self.words.len() - 1)]
    }

    /// The first piece of the chunk that contains `piece`.
    #[inline]
    pub fn first(&self, piece: u64) -> u64 {
        piece >> self.shift << self.shift
    }

    /// The state of `piece`.
    #[inline]
    pub fn state(&self, piece: u64) -> WorkState {
        // ORDERING: Acquire, pairs with the Release in `BegunChunk::drop`: a thread that reads that
        // a piece is done sees the writes of doing it.
        let word = self.word(piece).load(Ordering::Acquire);
        if is_before(piece, word >> 1) {
            WorkState::Done
        } else if word & Self::BEGUN != 0 {
            WorkState::Begun
        } else {
            WorkState::Free
        }
    }

    /// Begins the chunk of `piece` where the previous thread left off: one compare-and-swap.
    ///
    /// # Errors
    /// [`WorkState::Begun`] if another thread has begun it, [`WorkState::Done`] if all of it is
    /// done.
    #[inline]
    pub fn begin(&self, piece: u64) -> Result<BegunChunk<'_>, WorkState> {
        let word = self.word(piece);
        let first = self.first(piece);
        // ORDERING: Acquire, as in `state`: the caller may learn here that the whole chunk is done.
        let found = word.load(Ordering::Acquire);
        if found & Self::BEGUN != 0 {
            return Err(WorkState::Begun);
        }
        let mut next = found >> 1;
        if is_before(next, first) {
            next = first;
        }
        if !is_before(next, first + (1 << self.shift)) {
            return Err(WorkState::Done);
        }
        // ORDERING: Acquire, pairs with the Release in `BegunChunk::drop`: the caller continues
        // after the earlier pieces.
        match word.compare_exchange(
            found,
            next << 1 | Self::BEGUN,
            Ordering::Acquire,
            Ordering::Relaxed,
        ) {
            Ok(_) => Ok(BegunChunk { word, next }),
            Err(_) => Err(WorkState::Begun),
        }
    }
}

/// Whether `a` comes before `b`, modulo 2^63.
#[inline]
fn is_before(a: u64, b: u64) -> bool {
    ((a.wrapping_sub(b) << 1) as i64) < 0
}

impl fmt::Debug for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunks")
            .field("words", &self.words.len())
            .field("shift", &self.shift)
            .finish()
    }
}

/// A chunk that this thread has begun. Dropping it, even by unwinding, lets any thread begin the
/// chunk.
#[derive(Debug)]
pub struct BegunChunk<'a> {
    word: &'a AtomicU64,
    next: u64,
}

impl BegunChunk<'_> {
    /// The first piece that is not done.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether `piece`, which must be in this chunk, is done.
    #[inline]
    pub fn has_done(&self, piece: u64) -> bool {
        is_before(piece, self.next)
    }

    /// Marks all pieces up to and including `piece` as done.
    #[inline]
    pub fn done(&mut self, piece: u64) {
        debug_assert!(!is_before(piece, self.next), "{piece} was done before");
        self.next = piece.wrapping_add(1) & (u64::MAX >> 1);
    }

    /// Marks all pieces before `piece` as done. Has no effect if more are done already.
    #[inline]
    pub fn done_before(&mut self, piece: u64) {
        if is_before(self.next, piece) {
            self.next = piece & (u64::MAX >> 1);
        }
    }
}

impl Drop for BegunChunk<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the Acquire in `begin` and `state`. A store is enough:
        // no other thread changes a word that is begun.
        self.word.store(self.next << 1, Ordering::Release);
    }
}
