//! First come, first served.

use super::{Assignment, Work, WorkKind};
use crate::sync::{AtomicU64, Ordering};
use std::fmt;

/// The first replica that asks is primary: one compare-and-swap per chunk, on a word beside the
/// log (dissertation, section 3.2.4, algorithm 1, and section 6.1.4).
///
/// It adapts at once to a slow replica, since that one asks later for everything. The price is a
/// shared word per chunk, and shares that drift (figure 6.1).
///
/// The chunk's number selects its word, which stores the newest chunk taken through it. So asking
/// again gives the same answer, and a replica that asks so late that the word has a later chunk
/// gets no: another replica took its chunk long ago. No call waits: a swap that fails shows who took
/// the chunk. A replica may also ask on behalf of another one, which then has the chunk.
///
/// # Precondition
/// Chunks that use the same word, `words` apart, must not be open at the same time: before any
/// replica asks for chunk `c + words`, some replica has asked for chunk `c`. For chunks of entries
/// this holds if there are as many words as the ring has chunks of slots, and each replica asks
/// before it releases. For numbered work it holds if numbers are handed out within a credit of
/// that size.
pub struct Greedy {
    /// One row of words per kind.
    words: Box<[Box<[AtomicU64]>]>,
}

/// Bits of a word for the taker; the bits above hold the chunk's number plus one, modulo 2^48.
const TAKER_BITS: u32 = 16;

#[inline]
fn word(chunk: u64, taker: usize) -> u64 {
    (chunk + 1) << TAKER_BITS | taker as u64
}

/// Compares the chunk in the word `found` with `chunk`, modulo 2^48. Two such chunks are far less
/// than 2^47 apart, since they are open or were recently.
#[inline]
fn compare(found: u64, chunk: u64) -> std::cmp::Ordering {
    let ahead = (found >> TAKER_BITS).wrapping_sub(chunk + 1) << TAKER_BITS;
    (ahead as i64).cmp(&0)
}

impl Greedy {
    /// `words[k]` words for the chunks of kind `k`: at least as many as can be open at the same
    /// time.
    ///
    /// # Panics
    /// If a number of words is not a power of two.
    pub fn new(words: &[usize]) -> Self {
        let line = |&n: &usize| {
            assert!(n.is_power_of_two(), "{n} words are not a power of two");
            (0..n).map(|_| AtomicU64::new(0)).collect()
        };
        Greedy {
            words: words.iter().map(line).collect(),
        }
    }

    /// The replica that took `work`, if `work` is the newest chunk taken through its word.
    ///
    /// # Panics
    /// If there are no words for the kind.
    pub fn taker(&self, work: Work) -> Option<usize> {
        let found = self.at(work.kind, work.chunk).load(Ordering::Relaxed);
        compare(found, work.chunk)
            .is_eq()
            .then_some((found & ((1 << TAKER_BITS) - 1)) as usize)
    }

    /// Whether a later chunk was taken through the word of `work`, so that `work` itself was taken
    /// long ago.
    ///
    /// # Panics
    /// If there are no words for the kind.
    pub fn is_past(&self, work: Work) -> bool {
        let found = self.at(work.kind, work.chunk).load(Ordering::Relaxed);
        compare(found, work.chunk).is_gt()
    }

    #[inline]
    fn at(&self, kind: WorkKind, chunk: u64) -> &AtomicU64 {
        let line = &self.words[usize::from(kind.0)];
        &line[chunk as usize & (line.len() - 1)]
    }
}

impl Assignment for Greedy {
    /// Takes the work for `me` unless another replica has.
    ///
    /// # Panics
    /// If there are no words for the kind, or `me` is 65,536 or more.
    #[inline]
    fn is_mine(&self, work: Work, me: usize, _replicas: usize) -> bool {
        assert!(me < 1 << TAKER_BITS, "replica {me} does not fit a word");
        let at = self.at(work.kind, work.chunk);
        let mine = word(work.chunk, me);
        // Relaxed throughout: the word decides which replica works and publishes nothing. The work
        // itself came with the log.
        let found = at.load(Ordering::Relaxed);
        if compare(found, work.chunk).is_ge() {
            return found == mine;
        }
        // Only takers of this very chunk can intervene, otherwise both chunks would be open. One of
        // them may have asked on behalf of `me`.
        match at.compare_exchange(found, mine, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(now) => now == mine,
        }
    }
}

impl fmt::Debug for Greedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<usize> = self.words.iter().map(|line| line.len()).collect();
        f.debug_struct("Greedy").field("words", &words).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn asking_again_gives_the_same_answer() {
        let greedy = Greedy::new(&[4]);
        for chunk in 0..20 {
            let work = Work::chunk(chunk);
            assert_eq!(greedy.taker(work), None);
            let first = (chunk % 3) as usize;
            assert!(greedy.is_mine(work, first, 3));
            for me in (0..3).chain(0..3) {
                assert_eq!(greedy.is_mine(work, me, 3), me == first);
            }
            assert_eq!(greedy.taker(work), Some(first));
        }
    }

    #[test]
    fn one_that_comes_a_lap_late_takes_nothing() {
        let greedy = Greedy::new(&[4]);
        for chunk in 0..10 {
            assert!(greedy.is_mine(Work::chunk(chunk), 0, 2));
        }
        for chunk in 0..10 {
            assert!(!greedy.is_mine(Work::chunk(chunk), 1, 2));
            assert_eq!(greedy.is_past(Work::chunk(chunk)), chunk < 6);
        }
        assert!(!greedy.is_past(Work::chunk(10)));
        assert!(greedy.is_mine(Work::chunk(10), 1, 2));
    }

    #[test]
    fn one_takes_a_chunk_where_the_numbers_in_its_word_begin_anew() {
        let greedy = Greedy::new(&[4]);
        for chunk in (1 << 48) - 9..(1 << 48) + 9 {
            let work = Work::chunk(chunk);
            // The word as the chunk of the previous lap left it.
            let last = word(chunk - 4, 1);
            greedy.at(work.kind, chunk).store(last, Ordering::Relaxed);
            assert_eq!(greedy.taker(work), None);
            assert!(greedy.is_mine(work, 0, 2) && greedy.is_mine(work, 0, 2));
            assert!(!greedy.is_mine(work, 1, 2));
            assert_eq!(greedy.taker(work), Some(0));
            assert!(greedy.is_past(Work::chunk(chunk - 4)));
            assert!(!greedy.is_mine(Work::chunk(chunk - 4), 1, 2));
        }
    }

    #[test]
    fn kinds_do_not_share_words() {
        let greedy = Greedy::new(&[2, 2]);
        assert!(greedy.is_mine(Work::chunk(0), 0, 2));
        assert!(greedy.is_mine(Work::chunk(0).of(WorkKind(1)), 1, 2));
    }

    #[test]
    fn threads_that_race_take_each_chunk_once() {
        const CHUNKS: u64 = 20_000;
        let greedy = Greedy::new(&[CHUNKS.next_power_of_two() as usize]);
        let taken: Vec<u64> = std::thread::scope(|scope| {
            let run = |me| {
                let greedy = &greedy;
                move || {
                    (0..CHUNKS)
                        .filter(|c| greedy.is_mine(Work::chunk(*c), me, 4))
                        .count()
                }
            };
            let threads: Vec<_> = (0..4).map(|me| scope.spawn(run(me))).collect();
            threads
                .into_iter()
                .map(|t| t.join().unwrap() as u64)
                .collect()
        });
        assert_eq!(taken.iter().sum::<u64>(), CHUNKS, "{taken:?}");
    }
}
