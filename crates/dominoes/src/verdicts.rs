//! One atomic word per slot for results that are computed beside the log.

use crate::{
    Seq,
    sync::{AtomicU64, Ordering},
};
use std::{fmt, mem};

/// One small atomic word per slot for a result that is computed beside the log, before its entry is
/// published or after: 62 bits of payload and a lap bit.
///
/// A word counts as set for the lap in which it was written, so it need not be cleared between
/// laps; but each lap must set every slot that it reads. Two threads may set a word if they
/// computed the same bits. If the computation must not be repeated, the thread that does it
/// [begins](Verdicts::begin) first. Begin and set a word only while a subscription keeps the
/// position in the ring, or before it is published: a late store would overwrite the next lap's
/// word.
///
/// ```
/// let verdicts = dominoes::Verdicts::new(8);
/// assert_eq!(verdicts.get(3), None);
/// verdicts.set(3, 0b101);
/// assert_eq!(verdicts.get(3), Some(0b101));
/// assert_eq!(verdicts.get(3 + 8), None); // same slot, next lap
/// ```
pub struct Verdicts {
    words: Box<[AtomicU64]>,
    mask: u64,
    shift: u32,
}

impl Verdicts {
    const LAP: u64 = 1 << 63;
    const BEGUN: u64 = 1 << 62;
    const BITS: u64 = Self::BEGUN - 1;

    /// Words for `slots` slots, all unset.
    ///
    /// # Panics
    /// If `slots` is not a power of two ([`Log::slots`](crate::Log::slots) is one).
    pub fn new(slots: usize) -> Self {
        assert!(
            slots.is_power_of_two(),
            "{slots} slots are not a power of two"
        );
        Verdicts {
            // Lap 0 writes a clear lap bit, so a set bit means "not yet".
            words: (0..slots).map(|_| AtomicU64::new(Self::LAP)).collect(),
            mask: slots as u64 - 1,
            shift: slots.trailing_zeros(),
        }
    }

    #[inline]
    fn lap(&self, seq: Seq) -> u64 {
        (seq >> self.shift) << 63
    }

    /// Sets the bits of position `seq`.
    ///
    /// # Panics
    /// If `bits` needs more than 62 bits.
    #[inline]
    pub fn set(&self, seq: Seq, bits: u64) {
        assert!(
            bits & !Self::BITS == 0,
            "a verdict has 62 bits, {bits:#x} needs more"
        );
        // ORDERING: Release, pairs with the Acquire in `get`: a thread that reads the verdict sees
        // all earlier writes.
        self.words[(seq & self.mask) as usize].store(self.lap(seq) | bits, Ordering::Release);
    }

    /// The bits of position `seq`, or `None` while they are unset.
    #[inline]
    pub fn get(&self, seq: Seq) -> Option<u64> {
        // ORDERING: Acquire, pairs with the Release in `set`.
        let word = self.words[(seq & self.mask) as usize].load(Ordering::Acquire);
        (word & Self::LAP == self.lap(seq)).then_some(word & Self::BITS)
    }

    /// Reserves the computation of the bits of position `seq` for the caller. `None` if they are
    /// set, or another thread has begun.
    #[inline]
    pub fn begin(&self, seq: Seq) -> Option<BegunVerdict<'_>> {
        let word = &self.words[(seq & self.mask) as usize];
        let last = word.load(Ordering::Relaxed);
        if last & Self::LAP == self.lap(seq) || last & Self::BEGUN != 0 {
            return None;
        }
        // ORDERING: Acquire, pairs with the Release in `BegunVerdict::drop`: writes of a thread
        // that gave up are visible.
        word.compare_exchange(
            last,
            last | Self::BEGUN,
            Ordering::Acquire,
            Ordering::Relaxed,
        )
        .ok()?;
        Some(BegunVerdict {
            verdicts: self,
            seq,
        })
    }

    /// Number of words.
    pub fn slots(&self) -> usize {
        self.words.len()
    }
}

impl fmt::Debug for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verdicts")
            .field("slots", &self.words.len())
            .finish()
    }
}

/// A thread's reservation to compute the bits of a position; no other thread computes them
/// meanwhile. If it is dropped without [`BegunVerdict::set`], even by unwinding, another thread
/// may begin.
#[derive(Debug)]
pub struct BegunVerdict<'a> {
    verdicts: &'a Verdicts,
    seq: Seq,
}

impl BegunVerdict<'_> {
    /// Sets the bits, as [`Verdicts::set`] does.
    ///
    /// # Panics
    /// If `bits` needs more than 62 bits.
    #[inline]
    pub fn set(self, bits: u64) {
        self.verdicts.set(self.seq, bits);
        mem::forget(self);
    }
}

impl Drop for BegunVerdict<'_> {
    fn drop(&mut self) {
        let word = &self.verdicts.words[(self.seq & self.verdicts.mask) as usize];
        let last = word.load(Ordering::Relaxed);
        // ORDERING: Release, pairs with the Acquire in `Verdicts::begin`.
        word.store(last & !Verdicts::BEGUN, Ordering::Release);
    }
}
