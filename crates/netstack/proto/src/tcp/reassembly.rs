//! Reassembly: which bytes beyond `rcv_nxt` have arrived (RFC 9293 section 3.10.7.4, seventh step).
//!
//! Only ranges are stored here: the bytes themselves are in the receive ring. Each byte of a
//! new range is reported in exactly one gap.
//!
//! # Memory
//! A byte after a gap occupies its whole page of the receive ring, so single bytes far apart
//! occupy much more memory than their number. Each range counts with the pages that it touches,
//! and the ranges of all connections of a group share one budget: the group's share of
//! [`Limits::out_of_order`], which the limits of the group hold. A connection may take all free
//! pages once it has received more data in order than its pages hold; before that, a sixteenth
//! of the free pages. So some pages remain for later connections, above all for those whose
//! gaps are likely to be filled. Pages are never taken back: data that we have acknowledged
//! selectively stays (RFC 2018 section 8).

use super::fields::fields;
use crate::config::Limits;
use crate::log::request::Sack;

/// Maximum number of stored ranges; a segment that would need one more is dropped, and the peer
/// retransmits it. A megabyte in flight may lose a third of its segments before that.
pub(super) const MAX_RANGES: usize = 256;

/// Bytes of a page, the unit of memory. Part of the state, so it has one value on every machine.
pub(super) const PAGE: u64 = 4096;

/// Limit of pages for data after gaps of a connection that has `own` pages and has received
/// `in_order` bytes, when all connections together have `held` pages.
pub(super) fn most_pages(limits: &Limits, held: u64, own: u64, in_order: u64) -> u64 {
    let budget = u64::from(limits.out_of_order).max(2 * u64::from(limits.receive_buffer));
    let free = (budget / PAGE).saturating_sub(held);
    if in_order / PAGE > own {
        free
    } else {
        free / 16
    }
}

/// Pages that `range` touches.
const fn pages(range: (u64, u64)) -> u64 {
    (range.1 - 1) / PAGE - range.0 / PAGE + 1
}

/// Why data was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// There are already [`MAX_RANGES`].
    Ranges,
    /// It would take too many pages.
    Pages,
}

/// Accepted ranges of the receive stream beyond its gap-free part, ascending and not adjacent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reassembly {
    /// Begin and end as stream offsets.
    ranges: Vec<(u64, u64)>,
    /// A byte of each of the ranges that changed last, newest first; 0 for none.
    newest: [u64; Sack::MOST],
    /// Pages of all ranges; a page that two ranges touch counts twice.
    pages: u64,
}

fields!(Reassembly, "reassembly", { ranges, newest, pages });

impl Reassembly {
    /// Creates a list with nothing out of order.
    pub(super) const fn new() -> Self {
        Reassembly {
            ranges: Vec::new(),
            newest: [0; Sack::MOST],
            pages: 0,
        }
    }

    /// Pages of the receive ring that the ranges touch, or a few more.
    pub(super) const fn pages(&self) -> u64 {
        self.pages
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

    /// Adds `start..end`, beyond the gap-free part; calls `gap` for each part that is new.
    ///
    /// # Errors
    /// If the list is full, or the ranges would touch more pages than before and more than
    /// `most_pages`. Nothing is added then.
    pub(super) fn insert(
        &mut self,
        start: u64,
        end: u64,
        most_pages: u64,
        mut gap: impl FnMut(u64, u64),
    ) -> Result<(), Refused> {
        debug_assert!(start < end, "empty stretch {start}..{end}");
        // first..last: the ranges that touch the new one and are merged with it.
        let first = self.ranges.partition_point(|range| range.1 < start);
        let last = self.ranges.partition_point(|range| range.0 <= end);
        if first == last && self.ranges.len() == MAX_RANGES {
            return Err(Refused::Ranges);
        }
        let touched = &self.ranges[first..last];
        let merged = touched.iter().fold((start, end), |all, range| {
            (all.0.min(range.0), all.1.max(range.1))
        });
        let before: u64 = touched.iter().copied().map(pages).sum();
        let now = self.pages.saturating_sub(before) + pages(merged);
        if now > self.pages.max(most_pages) {
            return Err(Refused::Pages);
        }
        gaps(touched, start, end, &mut gap);
        self.ranges.splice(first..last, [merged]);
        self.pages = now;
        self.remember(merged);
        Ok(())
    }

    /// Adds `start..end`, which begins at the end of the gap-free part; calls `gap` as above and
    /// returns the new end of the gap-free part.
    pub(super) fn advance(&mut self, start: u64, end: u64, mut gap: impl FnMut(u64, u64)) -> u64 {
        let last = self.ranges.partition_point(|range| range.0 <= end);
        let touched = &self.ranges[..last];
        gaps(touched, start, end, &mut gap);
        let reached = touched.last().map_or(end, |range| range.1.max(end));
        let drained: u64 = self.ranges.drain(..last).map(pages).sum();
        self.pages = self.pages.saturating_sub(drained);
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

/// Calls `gap` for each part of `start..end` that is not in `there`, which is ascending.
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
        r.insert(start, end, u64::MAX, |a, b| seen.push((a, b)))
            .ok()
            .map(|()| seen)
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
    fn a_range_counts_with_the_pages_that_it_touches() {
        let mut r = Reassembly::new();
        let mut insert = |start, end, most| r.insert(start, end, most, |_, _| ());
        assert_eq!(insert(PAGE - 1, PAGE + 1, 1), Err(Refused::Pages));
        assert_eq!(insert(PAGE - 1, PAGE + 1, 2), Ok(()));
        assert_eq!(insert(9 * PAGE, 9 * PAGE + 1, 2), Err(Refused::Pages));
        assert_eq!(insert(9 * PAGE, 9 * PAGE + 1, 3), Ok(()));
        // A range on pages that are already held is accepted, even if none is free.
        assert_eq!(insert(9 * PAGE + 1, 10 * PAGE, 0), Ok(()));
        assert_eq!(r.pages(), 3);
        r.advance(0, PAGE, |_, _| ());
        assert_eq!(r.pages(), 1);
        r.advance(PAGE + 1, 9 * PAGE, |_, _| ());
        assert_eq!(r.pages(), 0);
    }

    #[test]
    fn a_connection_has_what_is_left_and_a_sixteenth_before_it_has_proved_itself() {
        let limits = Limits::default()
            .out_of_order(64 << 20)
            .receive_buffer(1 << 20);
        let most = |held, own, in_order| most_pages(&limits, held, own, in_order);
        assert_eq!((most(0, 0, PAGE), most(0, 0, PAGE - 1)), (16_384, 1024));
        assert_eq!(most(16_000, 9, 10 * PAGE), 384);
        assert_eq!(most(16_000, 10, 10 * PAGE), 24);
        assert_eq!(most(17_000, 0, PAGE), 0);
        // A connection that is alone can fill its ring.
        let limits = limits.out_of_order(0);
        assert_eq!(most_pages(&limits, 256, 256, 1 << 30), 256);
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
                } else if r.insert(start, end, u64::MAX, &mut gap).is_err() {
                    continue;
                }
                prop_assert_eq!(r.pages, r.ranges.iter().copied().map(pages).sum::<u64>());
                prop_assert!((start..end).all(|i| seen[i as usize] == 1));
                prop_assert!(r.ranges.windows(2).all(|w| w[0].1 < w[1].0));
                prop_assert!(r.ranges.iter().all(|w| w.0 > reached && w.0 < w.1));
            }
            prop_assert!((0..reached).all(|i| seen[i as usize] == 1));
            prop_assert!(seen.iter().all(|&n| n <= 1));
        }
    }
}
