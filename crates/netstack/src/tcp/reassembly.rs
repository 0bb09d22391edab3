//! Which octets beyond `rcv_nxt` are there already (RFC 9293 section 3.10.7.4, seventh step).
//!
//! Only their places are kept: the octets themselves stand in the receive ring. What a new stretch adds
//! is told as gaps, each octet in exactly one of them.

use serde::{Deserialize, Serialize};

/// Stretches that are remembered; what would need one more is dropped and sent again by the peer.
pub(super) const RANGES: usize = 32;

/// Accepted stretches of the receive stream beyond its gap-free part, ascending, apart from each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub(super) struct Reassembly {
    count: u8,
    /// Begin and end as stream offsets; `(0, 0)` past `count`.
    ranges: [(u64, u64); RANGES],
}

impl Reassembly {
    /// With nothing out of order.
    pub(super) const fn new() -> Self {
        Reassembly {
            count: 0,
            ranges: [(0, 0); RANGES],
        }
    }

    /// How many stretches there are.
    #[cfg(test)]
    pub(super) const fn count(&self) -> u8 {
        self.count
    }

    /// Whether nothing is out of order.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Where the last stretch ends, 0 without any.
    pub(super) fn end(&self) -> u64 {
        self.held().last().map_or(0, |range| range.1)
    }

    fn held(&self) -> &[(u64, u64)] {
        &self.ranges[..usize::from(self.count)]
    }

    /// Takes octets `start..end`, `start` lying beyond the gap-free part, and calls `gap` for each
    /// stretch that was not there. Returns false, and takes nothing, if there is no room to remember it.
    pub(super) fn insert(&mut self, start: u64, end: u64, mut gap: impl FnMut(u64, u64)) -> bool {
        debug_assert!(start < end, "empty stretch {start}..{end}");
        // first..last: the stretches that touch the new one and become one with it.
        let first = self.held().partition_point(|range| range.1 < start);
        let last = self.held().partition_point(|range| range.0 <= end);
        if first == last && usize::from(self.count) == RANGES {
            return false;
        }
        let touched = &self.ranges[first..last];
        gaps(touched, start, end, &mut gap);
        let merged = touched.iter().fold((start, end), |all, range| {
            (all.0.min(range.0), all.1.max(range.1))
        });
        self.replace(first, last, Some(merged));
        true
    }

    /// Takes octets `start..end`, `start` being the end of the gap-free part; calls `gap` as above and
    /// returns where the gap-free part ends now.
    pub(super) fn advance(&mut self, start: u64, end: u64, mut gap: impl FnMut(u64, u64)) -> u64 {
        let last = self.held().partition_point(|range| range.0 <= end);
        let touched = &self.ranges[..last];
        gaps(touched, start, end, &mut gap);
        let reached = touched.last().map_or(end, |range| range.1.max(end));
        self.replace(0, last, None);
        reached
    }

    /// Puts `new` in place of stretches `first..last`.
    fn replace(&mut self, first: usize, last: usize, new: Option<(u64, u64)>) {
        let count = usize::from(self.count);
        let kept = first + usize::from(new.is_some());
        self.ranges.copy_within(last..count, kept);
        if let Some(range) = new {
            self.ranges[first] = range;
        }
        let after = kept + count - last;
        if after < count {
            self.ranges[after..count].fill((0, 0));
        }
        self.count = after as u8;
    }

    /// Names and values of every field.
    pub(super) fn fields(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("reassembly.count", u64::from(self.count));
        for range in &self.ranges {
            each("reassembly.ranges", range.0);
            each("reassembly.ranges", range.1);
        }
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
        assert_eq!((r.count(), r.end()), (1, 50));
        let mut seen = Vec::new();
        assert_eq!(r.advance(0, 7, |a, b| seen.push((a, b))), 50);
        assert_eq!((seen, r.is_empty()), (vec![(0, 5)], true));
    }

    #[test]
    fn the_thirty_third_stretch_is_refused_but_one_that_joins_is_not() {
        let mut r = Reassembly::new();
        for i in 1..=RANGES as u64 {
            assert!(insert(&mut r, i * 10, i * 10 + 5).is_some());
        }
        assert_eq!(insert(&mut r, 1000, 1001), None);
        assert_eq!(insert(&mut r, 15, 20), Some(vec![(15, 20)]));
        assert_eq!(r.count(), 31);
        assert_eq!(r.advance(0, 1, |_, _| ()), 1);
    }

    proptest! {
        #[test]
        fn every_octet_is_told_once(
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
                prop_assert!(r.held().windows(2).all(|w| w[0].1 < w[1].0));
                prop_assert!(r.held().iter().all(|w| w.0 > reached && w.0 < w.1));
            }
            prop_assert!((0..reached).all(|i| seen[i as usize] == 1));
            prop_assert!(seen.iter().all(|&n| n <= 1));
        }
    }
}
