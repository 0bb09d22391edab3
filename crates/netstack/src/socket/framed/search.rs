//! A string search: bytes pass unchanged, as they arrive, and occurrences of a set of needles are
//! counted.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::dfa::DFA;
use aho_corasick::{Anchored, MatchKind};

use super::{Failure, MAX_PAYLOAD, Ours, UnitProcessor};

/// Counts occurrences of needles in received and in sent bytes.
///
/// It walks an Aho-Corasick automaton while it copies, which costs four memory operations per byte:
/// it loads the byte, its class and the next state, and stores the byte. That is the load of
/// Sizemore, *Parallel network protocol stacks using replication*, 2011, Fig. 5.4 ("a typical
/// string search").
///
/// # Counts
/// It counts every occurrence within one unit; occurrences may overlap. A unit is up to 16 KiB that
/// one call wrote, or that had arrived when a worker looked. It does not find an occurrence that
/// crosses the boundary of two units, because two workers may process them and neither waits for
/// the other. It may count a unit twice if the first worker dies in it.
pub struct Search {
    automaton: DFA,
    start: StateID,
    received: AtomicU64,
    sent: AtomicU64,
}

impl Search {
    /// Searches for each of `needles`.
    ///
    /// # Errors
    /// If a needle is empty, or the needles make too large an automaton together.
    pub fn new<I: IntoIterator<Item = N>, N: AsRef<[u8]>>(needles: I) -> Result<Search, Failure> {
        let too_large = |_| Failure::Other("the needles make too large an automaton");
        let needles: Vec<N> = needles.into_iter().collect();
        if needles.iter().any(|needle| needle.as_ref().is_empty()) {
            return Err(Failure::Other("a needle is empty"));
        }
        let automaton = DFA::builder()
            .match_kind(MatchKind::Standard)
            .prefilter(false)
            .build(needles)
            .map_err(too_large)?;
        let start = automaton.start_state(Anchored::No);
        let start = start.map_err(|_| Failure::Other("the automaton has no start"))?;
        Ok(Search {
            automaton,
            start,
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        })
    }

    /// Occurrences in received bytes.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Occurrences in sent bytes.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Copies `from` to `to`; returns how many occurrences there were.
    fn pass(&self, from: &[u8], to: &mut [u8]) -> u64 {
        let automaton = &self.automaton;
        let mut state = self.start;
        let mut found = 0;
        for (byte, place) in from.iter().zip(to) {
            *place = *byte;
            state = automaton.next_state(Anchored::No, state, *byte);
            // States with a meaning come first, so a comparison suffices, without a memory access.
            if automaton.is_special(state) && automaton.is_match(state) {
                found += automaton.match_len(state) as u64;
            }
        }
        found
    }
}

impl UnitProcessor for Search {
    fn max_payload(&self) -> usize {
        MAX_PAYLOAD
    }

    fn max_unit(&self) -> usize {
        MAX_PAYLOAD
    }

    fn received_len(&self, _: u64, _: &[u8], arrived: usize) -> Result<usize, Failure> {
        Ok(arrived)
    }

    fn receive(&self, _: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        let found = self.pass(unit, payload);
        if found > 0 {
            self.received.fetch_add(found, Ordering::Relaxed);
        }
        Ok(unit.len())
    }

    fn sent_len(&self, payload_len: usize) -> usize {
        payload_len
    }

    fn send(&self, _: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        let found = self.pass(payload, unit);
        if found > 0 {
            self.sent.fetch_add(found, Ordering::Relaxed);
        }
        Ok(())
    }

    fn writes_all(&self, _: Ours) -> bool {
        true
    }
}

impl fmt::Debug for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Search")
            .field("needles", &self.automaton.patterns_len())
            .field("received", &self.received())
            .field("sent", &self.sent())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(needles: &[Vec<u8>], hay: &[u8]) -> u64 {
        let of = |needle: &Vec<u8>| hay.windows(needle.len()).filter(|w| w == needle).count();
        needles.iter().map(|needle| of(needle) as u64).sum()
    }

    proptest! {
        #[test]
        fn counts_are_those_of_a_plain_loop_and_bytes_pass(
            needles in proptest::collection::vec(proptest::collection::vec(0u8..3, 1..5), 1..6),
            hay in proptest::collection::vec(0u8..3, 0..3000),
        ) {
            let search = Search::new(&needles).unwrap();
            let mut to = vec![9; hay.len()];
            search.receive(0, &hay, &mut to).unwrap();
            prop_assert_eq!(&to, &hay);
            prop_assert_eq!(search.received(), plain(&needles, &hay));
            search.send(0, &hay, &mut to).unwrap();
            prop_assert_eq!(search.sent(), plain(&needles, &hay));
        }
    }

    #[test]
    fn an_empty_needle_is_refused() {
        assert!(Search::new(["a", ""]).is_err());
    }
}
