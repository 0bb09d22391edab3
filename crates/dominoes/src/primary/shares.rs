//! How much of the work each replica was primary of, live.

use crate::sync::{AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use std::fmt;

/// Units of work that each replica was primary of, since the start, readable at any time.
///
/// The dissertation's figure 6.1 samples such counts every 27,400 requests and finds that shares
/// drift when primaries are first come, first served. Each replica counts on a cache line of its
/// own, relaxed; a reader that samples disturbs it by a line transfer.
///
/// ```
/// let shares = dominoes::Shares::new(2);
/// shares.add(0, 30);
/// shares.add(1, 10);
/// assert_eq!(shares.counts(), [30, 10]);
/// assert_eq!(shares.parts(), [0.75, 0.25]);
/// ```
pub struct Shares {
    units: Box<[CachePadded<AtomicU64>]>,
}

impl Shares {
    /// Counts for so many replicas, all 0.
    pub fn new(replicas: usize) -> Self {
        let zero = |_| CachePadded::new(AtomicU64::new(0));
        Shares {
            units: (0..replicas).map(zero).collect(),
        }
    }

    /// Counts `units` more for `replica`. Only one thread at a time counts for a replica: this is a
    /// load and a store, which costs less than an atomic addition.
    ///
    /// # Panics
    /// If there is no such replica.
    #[inline]
    pub fn add(&self, replica: usize, units: u64) {
        let at = &self.units[replica];
        let sum = at.load(Ordering::Relaxed).wrapping_add(units);
        at.store(sum, Ordering::Relaxed);
    }

    /// Units of each replica. A moment's view.
    pub fn counts(&self) -> Vec<u64> {
        self.units
            .iter()
            .map(|units| units.load(Ordering::Relaxed))
            .collect()
    }

    /// The part of all units that each replica had, 0 to 1; all 0 before the first.
    pub fn parts(&self) -> Vec<f64> {
        let counts = self.counts();
        let total = counts.iter().sum::<u64>().max(1);
        let part = |count: &u64| *count as f64 / total as f64;
        counts.iter().map(part).collect()
    }

    /// How many replicas are counted.
    pub fn replicas(&self) -> usize {
        self.units.len()
    }
}

impl fmt::Debug for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shares").field(&self.counts()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Assignment, ByPosition, Greedy, Work};

    fn run<A: Assignment + Sync>(policy: &A, chunks: u64, units: u64) -> Vec<u64> {
        let shares = Shares::new(3);
        std::thread::scope(|scope| {
            for me in 0..3 {
                let shares = &shares;
                scope.spawn(move || {
                    let mine = |c: &u64| policy.is_mine(Work::chunk(*c), me, 3);
                    (0..chunks).filter(mine).for_each(|_| shares.add(me, units));
                });
            }
            // Looking meanwhile is allowed, and never finds more than there is.
            for _ in 0..1000 {
                assert!(shares.counts().iter().sum::<u64>() <= chunks * units);
            }
        });
        shares.counts()
    }

    #[test]
    fn by_position_shares_are_equal() {
        assert_eq!(run(&ByPosition, 3000, 16), [16_000; 3]);
    }

    #[test]
    fn greedy_shares_add_up() {
        let counts = run(&Greedy::new(&[4096]), 3000, 16);
        assert_eq!(counts.iter().sum::<u64>(), 48_000);
    }
}
