//! Reassembly: which bytes beyond `rcv_nxt` have arrived (RFC 9293 section 3.10.7.4, seventh step).
//!
//! Only ranges are stored here: the bytes themselves are in the receive ring. Each byte of a new
//! range is reported in exactly one gap.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::fields::fields;
use crate::log::request::Sack;

/// The most ranges that are stored; a segment that would need one more is dropped and retransmitted
/// by the peer. A megabyte in flight may lose a third of its segments before that.
pub(super) const MAX_RANGES: usize = 256;

/// Accepted ranges of the receive stream beyond its gap-free part, ascending and not adjacent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub(super) struct Reassembly {
    /// Begin and end as stream offsets.
    ranges: Vec<(u64, u64)>,
    /// A byte of each of the ranges that changed last, newest first; 0 for none.
    newest: [u64; Sack::MOST],
}

fields!(Reassembly, "reassembly", { ranges, newest });

impl Reassembly {
    /// With nothing out of order.
    pub(super) const fn new() -> Self {
        Reassembly {
            ranges: Vec::new(),
            newest: [0; Sack::MOST],
        }
    }

    /// Whether nothing is out of order.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The end of the last range, 0 without any.
    pub(super) fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |range| range.1)
    }

    /// The range around a byte.
    fn around(&self, byte: u64) -> Option<(u64, u64)> {
        let at = self.ranges.partition_point(|range| range.1 <= byte);
        self.ranges.get(at).copied().filter(|r| r.0 <= byte)
    }

    /// The ranges that changed last, the newest first.
    pub(super) fn newest(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.newest.iter().filter_map(|&byte| self.around(byte))
    }

    /// The first part of `start..end` that has arrived before.
    pub(super) fn overlap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let at = self.ranges.partition_point(|range| range.1 <= start);
        let &(from, to) = self.ranges.get(at)?;
        (from < end).then(|| (from.max(start), to.min(end)))
    }

    /// Adds `start..end`, which lies beyond the gap-free part, and calls `gap` for each part that
    /// had not arrived. Returns false, and adds nothing, if the list is full.
    pub(super) fn insert(&mut self, start: u64, end: u64, mut gap: impl FnMut(u64, u64)) -> bool {
        debug_assert!(start < end, "empty stretch {start}..{end}");
        // first..last: the ranges that touch the new one and are merged with it.
        let first = self.ranges.partition_point(|range| range.1 < start);
        let last = self.ranges.partition_point(|range| range.0 <= end);
        if first == last && self.ranges.len() == MAX_RANGES {
            return false;
        }
        let touched = &self.ranges[first..last];
        gaps(touched, start, end, &mut gap);
        let merged = touched.iter().fold((start, end), |all, range| {
            (all.0.min(range.0), all.1.max(range.1))
        });
        self.ranges.splice(first..last, [merged]);
        self.remember(merged);
        true
    }

    /// Adds `start..end`, which begins at the end of the gap-free part; calls `gap` as above and
    /// returns the new end of the gap-free part.
    pub(super) fn advance(&mut self, start: u64, end: u64, mut gap: impl FnMut(u64, u64)) -> u64 {
        let last = self.ranges.partition_point(|range| range.0 <= end);
        let touched = &self.ranges[..last];
        gaps(touched, start, end, &mut gap);
        let reached = touched.last().map_or(end, |range| range.1.max(end));
        self.ranges.drain(..last);
        if self.ranges.is_empty() {
            *self = Reassembly::new();
        }
        reached
    }

    /// `range` changed last; removes older marks within it.
    fn remember(&mut self, range: (u64, u64)) {
        let mut newest = [0; Sack::MOST];
        newest[0] = range.0;
        let older = self.newest.into_iter();
        let older = older.filter(|&byte| byte != 0 && !(range.0..range.1).contains(&byte));
        for (place, byte) in newest[1..].iter_mut().zip(older) {
            *place = byte;
        }
        self.newest = newest;
    }
}

/// Calls `gap` for what `start..end` adds to `there`, which is ascending.
fn gaps(there: &[(u64, u64)], start: u64, end: u64, gap: &mut impl FnMut(u64, u64)) {
    let mut at = start;
    for range in there {
        if at < range.0.min(end) {
            gap(at, range.0.min(end));
        }
        at = at.max(range.1);
    }
    if at < end {
        gap(at, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn insert(r: &mut Reassembly, start: u64, end: u64) -> Option<Vec<(u64, u64)>> {
        let mut seen = Vec::new();
        r.insert(start, end, |a, b| seen.push((a, b)))
            .then_some(seen)
    }

    #[test]
    fn a_stretch_over_several_gaps_fills_each_of_them() {
        let mut r = Reassembly::new();
        assert_eq!(insert(&mut r, 10, 20), Some(vec![(10, 20)]));
        assert_eq!(insert(&mut r, 30, 40), Some(vec![(30, 40)]));
        assert_eq!(
            insert(&mut r, 5, 50),
            Some(vec![(5, 10), (20, 30), (40, 50)])
        );
        assert_eq!((r.ranges.len(), r.end()), (1, 50));
        let mut seen = Vec::new();
        assert_eq!(r.advance(0, 7, |a, b| seen.push((a, b))), 50);
        assert_eq!((seen, r.is_empty()), (vec![(0, 5)], true));
    }

    #[test]
    fn one_stretch_too_many_is_refused_but_one_that_joins_is_not() {
        let mut r = Reassembly::new();
        for i in 1..=MAX_RANGES as u64 {
            assert!(insert(&mut r, i * 10, i * 10 + 5).is_some());
        }
        assert_eq!(insert(&mut r, 10_000, 10_001), None);
        assert_eq!(insert(&mut r, 15, 20), Some(vec![(15, 20)]));
        assert_eq!(r.ranges.len(), MAX_RANGES - 1);
        assert_eq!(r.advance(0, 1, |_, _| ()), 1);
    }

    #[test]
    fn the_stretch_that_changed_last_comes_first_and_none_twice() {
        let mut r = Reassembly::new();
        for start in [10, 30, 50, 70, 90, 20] {
            insert(&mut r, start, start + 10);
        }
        let newest: Vec<_> = r.newest().collect();
        assert_eq!(newest, [(10, 40), (90, 100), (70, 80), (50, 60)]);
        assert_eq!(r.overlap(35, 55), Some((35, 40)));
        assert_eq!(r.overlap(40, 55), Some((50, 55)));
        assert_eq!(r.overlap(40, 50), None);
        r.advance(0, 15, |_, _| ());
        let newest: Vec<_> = r.newest().collect();
        assert_eq!(newest, [(90, 100), (70, 80), (50, 60)]);
    }

    proptest! {
        #[test]
        fn every_byte_is_delivered_once(
            stretches in proptest::collection::vec((0u64..300, 1u64..60), 1..80),
        ) {
            let mut r = Reassembly::new();
            let mut seen = [0u8; 400];
            let mut reached = 0;
            for (start, len) in stretches {
                let (start, end) = (start.max(reached), (start + len).max(reached));
                if start == end {
                    continue;
                }
                let mut gap = |a: u64, b: u64| {
                    assert!(a < b);
                    (a..b).for_each(|i| seen[i as usize] += 1);
                };
                if start == reached {
                    reached = r.advance(start, end, &mut gap);
                } else if !r.insert(start, end, &mut gap) {
                    continue;
                }
                prop_assert!((start..end).all(|i| seen[i as usize] == 1));
                prop_assert!(r.ranges.windows(2).all(|w| w[0].1 < w[1].0));
                prop_assert!(r.ranges.iter().all(|w| w.0 > reached && w.0 < w.1));
            }
            prop_assert!((0..reached).all(|i| seen[i as usize] == 1));
            prop_assert!(seen.iter().all(|&n| n <= 1));
        }
    }
}
