//! The deadlines of connections: a binary heap that finds the entry of each place of the
//! connection table by index.
//!
//! A place has at most one entry, however often its deadline moves, so memory is bounded by the
//! number of places. An entry may be too early, never too late: acknowledgments postpone deadlines,
//! and a connection that is looked at too early sets its next deadline.

use crate::hash::mix;
use crate::time::Instant;

/// Not in the heap.
const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    /// A heap, earliest first; the place decides between equal times.
    heap: Vec<(Instant, u32)>,
    /// For each place, the index of its entry in `heap`.
    position: Vec<u32>,
}

impl Deadlines {
    /// The earliest of all; [`Instant::NEVER`] if there is none.
    pub(super) fn next(&self) -> Instant {
        self.heap.first().map_or(Instant::NEVER, |(at, _)| *at)
    }

    /// Sets the deadline of `place` to `at`, replacing any other.
    pub(super) fn set(&mut self, place: u32, at: Instant) {
        let index = place as usize;
        if index >= self.position.len() {
            self.position.resize(index + 1, NOWHERE);
        }
        let mut i = self.position[index] as usize;
        if i == NOWHERE as usize {
            i = self.heap.len();
            self.heap.push((at, place));
            self.position[index] = i as u32;
        } else {
            self.heap[i].0 = at;
        }
        self.sift(i);
    }

    /// Removes the deadline of `place`.
    pub(super) fn remove(&mut self, place: u32) {
        let Some(position) = self.position.get_mut(place as usize) else {
            return;
        };
        let i = core::mem::replace(position, NOWHERE) as usize;
        if i == NOWHERE as usize {
            return;
        }
        self.heap.swap_remove(i);
        if let Some(&(_, moved)) = self.heap.get(i) {
            self.position[moved as usize] = i as u32;
            self.sift(i);
        }
    }

    /// A fingerprint that does not depend on the order within the heap.
    pub(super) fn fingerprint(&self) -> u64 {
        let entries = self.heap.iter();
        let entries = entries.map(|(at, place)| mix(at.as_nanos() ^ mix(u64::from(*place))));
        entries.fold(0, u64::wrapping_add)
    }

    /// Removes and returns the place with the earliest deadline, if that is due at `now`.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let &(at, place) = self.heap.first()?;
        if at > now {
            return None;
        }
        self.remove(place);
        Some(place)
    }

    /// Moves entry `i` to its position in the heap order.
    fn sift(&mut self, mut i: usize) {
        while i > 0 && self.heap[i] < self.heap[(i - 1) / 2] {
            self.swap(i, (i - 1) / 2);
            i = (i - 1) / 2;
        }
        loop {
            let children = 2 * i + 1..(2 * i + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else {
                return;
            };
            if self.heap[i] <= self.heap[least] {
                return;
            }
            self.swap(i, least);
            i = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for i in [a, b] {
            self.position[self.heap[i].1 as usize] = i as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn fingerprints_tell_deadlines_apart_and_not_the_order_in_which_they_were_set() {
        let mut seen = std::collections::BTreeSet::new();
        for place in 0..40 {
            for at in 1..200 {
                let mut deadlines = Deadlines::default();
                deadlines.set(place, Instant::from_nanos(at));
                assert!(seen.insert(deadlines.fingerprint()), "{place} at {at}");
            }
        }
        let set = |places: &mut dyn Iterator<Item = u32>| {
            let mut deadlines = Deadlines::default();
            places.for_each(|place| deadlines.set(place, Instant::from_nanos(7)));
            deadlines.fingerprint()
        };
        assert_eq!(set(&mut (0..40)), set(&mut (0..40).rev()));
        assert_ne!(set(&mut (0..40)), set(&mut (0..39)));
    }

    proptest! {
        #[test]
        fn it_answers_as_a_sorted_map_would(steps in proptest::collection::vec((0_u32..20, 0_u64..50, 0_u8..8), 0..300)) {
            let mut deadlines = Deadlines::default();
            let mut plain: BTreeMap<u32, Instant> = BTreeMap::new();
            for (place, at, what) in steps {
                let at = Instant::from_nanos(at);
                match what {
                    0..=4 => {
                        deadlines.set(place, at);
                        plain.insert(place, at);
                    }
                    5 => {
                        deadlines.remove(place);
                        plain.remove(&place);
                    }
                    _ => {
                        let due = plain.iter().map(|(place, at)| (*at, *place)).min();
                        let due = due.filter(|(earliest, _)| *earliest <= at).map(|(_, place)| place);
                        prop_assert_eq!(deadlines.pop_due(at), due);
                        if let Some(place) = due {
                            plain.remove(&place);
                        }
                    }
                }
                let next = plain.values().min().copied().unwrap_or(Instant::NEVER);
                prop_assert_eq!(deadlines.next(), next);
                prop_assert_eq!(deadlines.heap.len(), plain.len());
            }
        }
    }
}
