//! Work that has an owner, and that others may take over: [`Units`].
//!
//! Pieces of work are numbered, and follow each other within *units* of equal length. A unit's word
//! holds the number of the first piece that is not done, and one bit: whether somebody has begun.
//!
//! ```text
//! (next, free) --begin, a CAS by owner or thief--> (next, begun) --Begun::drop--> (next', free)
//! ```
//!
//! # The argument
//! 1. Only who moved a word from free to begun changes it until it is free again, so each piece is
//!    done by one thread at a time, and the one after it begins behind what the one before did.
//! 2. `next` never goes back, so no piece is done twice, unless whoever did it unwound in the middle
//!    of it: then the piece counts as not done.
//! 3. Between two uses nothing is begun. A thread that stops there, for however long, holds up
//!    nobody; one that stops in between holds up the rest of that unit and nothing else. It is waited
//!    for: late is not dead. A thread that unwinds lets go on its way out.
//!
//! A word serves unit after unit: one of a later lap finds a number below its first piece, and takes
//! the unit for untouched. Whoever uses it sees to it that a word's unit is done before the first
//! piece of the next one in its place can be begun. Numbers are compared modulo 2^63.

use crate::sync::{AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use std::fmt;

/// Progress in units of work, and who is at it. A unit is begun by one thread at a
/// time, and goes on where the one before let go of it.
///
/// A unit that follows in the place of another may be begun only when that one is done.
///
/// ```
/// use dominoes::{Standing, Units};
/// let units = Units::new(2, 2); // two words; pieces 0 to 3 are the first unit, 4 to 7 the second
/// {
///     let mut mine = units.begin(0).unwrap();
///     assert_eq!(mine.next(), 0);
///     mine.done(0); // piece 0
///     assert_eq!(units.standing(1), Standing::Begun);
///     assert_eq!(units.begin(1).err(), Some(Standing::Begun));
/// }
/// let mut thief = units.begin(3).unwrap(); // a unit at a time, whichever piece is named
/// assert_eq!(thief.next(), 1);
/// thief.done(3);
/// drop(thief);
/// assert_eq!(units.begin(0).err(), Some(Standing::Done));
/// assert_eq!(units.standing(4), Standing::Free);
/// ```
pub struct Units {
    /// `next << 1 | begun` each.
    words: Box<[CachePadded<AtomicU64>]>,
    /// log2 of the pieces in a unit.
    shift: u32,
}

/// How it stands with a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is not done, and nobody has begun its unit.
    Free,
    /// It is not done, and somebody has begun its unit.
    Begun,
    /// It is done.
    Done,
}

impl Units {
    const BEGUN: u64 = 1;

    /// `words` words, for units of 2^`shift` pieces each. Nothing is done.
    ///
    /// # Panics
    /// If `words` is not a power of two, or `shift` above 60.
    pub fn new(words: usize, shift: u32) -> Self {
        assert!(
            words.is_power_of_two() && shift <= 60,
            "{words} words are not a power of two, or units of 2^{shift} are too long"
        );
        let word = |unit: u64| CachePadded::new(AtomicU64::new((unit << shift) << 1));
        Units {
            words: (0..words as u64).map(word).collect(),
            shift,
        }
    }

    #[inline]
    fn word(&self, piece: u64) -> &AtomicU64 {
        &self.words[(piece >> self.shift) as usize & (self.words.len() - 1)]
    }

    /// The first piece of the unit that holds `piece`.
    #[inline]
    pub fn first(&self, piece: u64) -> u64 {
        piece >> self.shift << self.shift
    }

    /// How it stands with `piece`.
    #[inline]
    pub fn standing(&self, piece: u64) -> Standing {
        // ORDERING: Acquire, pairs with the Release in `Begun::drop`: who hears that a piece is done
        // sees what doing it wrote.
        let word = self.word(piece).load(Ordering::Acquire);
        if is_before(piece, word >> 1) {
            Standing::Done
        } else if word & Self::BEGUN != 0 {
            Standing::Begun
        } else {
            Standing::Free
        }
    }

    /// Begins the unit of `piece` where the one before left off: one compare and swap.
    ///
    /// # Errors
    /// [`Standing::Begun`] if somebody else has it, [`Standing::Done`] if all of it is done.
    #[inline]
    pub fn begin(&self, piece: u64) -> Result<Begun<'_>, Standing> {
        let word = self.word(piece);
        let first = self.first(piece);
        // ORDERING: Acquire, as in `standing`, for who learns here that all is done.
        let found = word.load(Ordering::Acquire);
        if found & Self::BEGUN != 0 {
            return Err(Standing::Begun);
        }
        let mut next = found >> 1;
        if is_before(next, first) {
            next = first;
        }
        if !is_before(next, first + (1 << self.shift)) {
            return Err(Standing::Done);
        }
        // ORDERING: Acquire, pairs with the Release in `Begun::drop`: we go on behind what was done.
        match word.compare_exchange(
            found,
            next << 1 | Self::BEGUN,
            Ordering::Acquire,
            Ordering::Relaxed,
        ) {
            Ok(_) => Ok(Begun { word, next }),
            Err(_) => Err(Standing::Begun),
        }
    }
}

/// Whether `a` comes before `b`, modulo 2^63.
#[inline]
fn is_before(a: u64, b: u64) -> bool {
    ((a.wrapping_sub(b) << 1) as i64) < 0
}

impl fmt::Debug for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Units")
            .field("words", &self.words.len())
            .field("shift", &self.shift)
            .finish()
    }
}

/// A unit that this thread has begun. Dropped, also by unwinding, it is free for whoever comes first.
#[derive(Debug)]
pub struct Begun<'a> {
    word: &'a AtomicU64,
    next: u64,
}

impl Begun<'_> {
    /// The first piece that is not done.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether `piece`, which is of this unit, is done.
    #[inline]
    pub fn has_done(&self, piece: u64) -> bool {
        is_before(piece, self.next)
    }

    /// Everything up to and including `piece` is done.
    #[inline]
    pub fn done(&mut self, piece: u64) {
        debug_assert!(!is_before(piece, self.next), "{piece} was done before");
        self.next = piece.wrapping_add(1) & (u64::MAX >> 1);
    }

    /// Everything before `piece` is done, perhaps more than was known.
    #[inline]
    pub fn done_before(&mut self, piece: u64) {
        if is_before(self.next, piece) {
            self.next = piece & (u64::MAX >> 1);
        }
    }
}

impl Drop for Begun<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the Acquire in `begin` and `standing`. A store is enough:
        // nobody else changes a word that is begun.
        self.word.store(self.next << 1, Ordering::Release);
    }
}
