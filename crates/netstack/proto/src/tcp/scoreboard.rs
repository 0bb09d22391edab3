//! The scoreboard: the data in flight and its state (RFC 6675), with the times of sending that
//! RFC 8985 requires.
//!
//! Data sent at one instant is one [`SentRange`], however many segments it was; SACK blocks and
//! retransmissions split it. So there are about as many ranges as sending instants.
//! Acknowledgments on the fast path do not look at them: while nothing is known to be lost or
//! out of order, acknowledged ranges are dropped at the next transmission.

use std::collections::VecDeque;

use super::fields::{field_variants, fields};
use crate::seqnum::SeqNum;
use crate::time::Instant;

/// Maximum number of ranges. Above it, neighbours are merged and take the later of their times,
/// or a SACK block is ignored; both only delay a retransmission.
const MAX_RANGES: usize = 512;

/// The capacity that a connection keeps while nothing is in flight.
const IDLE_CAPACITY: usize = 16;

/// Our knowledge about sent data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RangeState {
    /// Neither received nor lost, as far as we know.
    #[default]
    InFlight,
    /// Received, after a gap.
    Sacked,
    /// Counts as lost, and was not retransmitted since.
    Lost,
}

field_variants!(RangeState {
    InFlight,
    Sacked,
    Lost
});

/// Data that was sent at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SentRange {
    pub(super) begin: SeqNum,
    pub(super) end: SeqNum,
    /// When it was last sent. Bytes in ranges that are [`RangeState::Sacked`].
    pub(super) sent_at: Instant,
    pub(super) state: RangeState,
    /// Whether it was sent more than once.
    pub(super) retransmitted: bool,
}

fields!(SentRange, "scoreboard.range", { begin, end, sent_at, state, retransmitted });

impl SentRange {
    /// Bytes of sequence space.
    pub(super) const fn len(&self) -> u32 {
        self.end.since(self.begin)
    }
}

/// Everything between SND.UNA and SND.NXT, as ranges in the order of sequence numbers, without
/// gaps. The first ones may be acknowledged already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scoreboard {
    ranges: VecDeque<SentRange>,
    /// Bytes in those that are [`RangeState::Sacked`].
    sacked: u32,
    /// Bytes in ranges that are [`RangeState::Lost`].
    lost: u32,
}

fields!(Scoreboard, "scoreboard", { ranges, sacked, lost });

impl Scoreboard {
    /// Creates a scoreboard with nothing in flight.
    pub(super) const fn new() -> Self {
        Scoreboard {
            ranges: VecDeque::new(),
            sacked: 0,
            lost: 0,
        }
    }

    /// Bytes received after a gap.
    pub(super) const fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Bytes that are lost and not retransmitted.
    pub(super) const fn lost(&self) -> u32 {
        self.lost
    }

    /// Whether nothing is known to be lost or out of order.
    #[inline]
    pub(super) const fn is_clean(&self) -> bool {
        self.sacked == 0 && self.lost == 0
    }

    /// All ranges, in the order of sequence numbers.
    pub(super) fn ranges(&self) -> impl Iterator<Item = &SentRange> {
        self.ranges.iter()
    }

    /// The range with the lowest numbers.
    pub(super) fn first(&self) -> Option<&SentRange> {
        self.ranges.front()
    }

    /// The range with the highest numbers.
    pub(super) fn last(&self) -> Option<&SentRange> {
        self.ranges.back()
    }

    /// `begin..end` is sent for the first time, after everything else; everything before `una` is
    /// acknowledged.
    pub(super) fn sent(&mut self, una: SeqNum, begin: SeqNum, end: SeqNum, now: Instant) {
        self.acked(una, |_| ());
        let fresh = SentRange {
            begin,
            end,
            sent_at: now,
            state: RangeState::InFlight,
            retransmitted: false,
        };
        let is_full = self.ranges.len() >= MAX_RANGES && !self.merge_neighbors();
        match self.ranges.back_mut() {
            Some(last)
                if last.sent_at == now
                    && last.state == RangeState::InFlight
                    && !last.retransmitted =>
            {
                last.end = end;
            }
            Some(last) if is_full => {
                last.end = end;
                last.sent_at = now;
                match last.state {
                    RangeState::InFlight => {}
                    RangeState::Sacked => self.sacked += fresh.len(),
                    RangeState::Lost => self.lost += fresh.len(),
                }
            }
            _ => self.ranges.push_back(fresh),
        }
    }

    /// Acknowledges everything before `una`; calls `each` with parts that were not SACKed.
    pub(super) fn acked(&mut self, una: SeqNum, mut each: impl FnMut(&SentRange)) {
        while let Some(first) = self.ranges.front_mut()
            && first.begin.before(una)
        {
            let part = SentRange {
                end: first.end.min(una),
                ..*first
            };
            first.begin = part.end;
            let is_over = first.begin == first.end;
            match part.state {
                RangeState::InFlight => each(&part),
                RangeState::Sacked => self.sacked -= part.len(),
                RangeState::Lost => {
                    self.lost -= part.len();
                    each(&part);
                }
            }
            if is_over {
                self.ranges.pop_front();
            }
        }
        if self.ranges.is_empty() && self.ranges.capacity() > IDLE_CAPACITY {
            // An empty scoreboard needs no memory.
            self.ranges = VecDeque::new();
        }
    }

    /// The peer received `left..right`, which was sent and is not acknowledged; calls `each`
    /// with the ranges that no SACK block had reported.
    pub(super) fn sack(&mut self, left: SeqNum, right: SeqNum, mut each: impl FnMut(&SentRange)) {
        debug_assert!(left.before(right), "{left:?}..{right:?}");
        if self.ranges.len() + 2 > MAX_RANGES && !self.merge_neighbors() {
            return;
        }
        let (from, to) = (self.split_at(left), self.split_at(right));
        for range in self.ranges.range_mut(from..to) {
            let len = range.len();
            match range.state {
                RangeState::Sacked => continue,
                RangeState::InFlight => {}
                RangeState::Lost => self.lost -= len,
            }
            each(range);
            self.sacked += len;
            range.state = RangeState::Sacked;
        }
        // Received ranges do not need their times, so neighbours are merged.
        let last = to.min(self.ranges.len().saturating_sub(1));
        for i in (from.max(1)..=last).rev() {
            let (a, b) = (self.ranges[i - 1], self.ranges[i]);
            if a.state == RangeState::Sacked && b.state == RangeState::Sacked {
                self.ranges[i - 1].end = b.end;
                self.ranges.remove(i);
            }
        }
    }

    /// Marks every range in flight as lost for which `is` returns true. Returns their bytes.
    pub(super) fn mark_lost(&mut self, mut is: impl FnMut(&SentRange) -> bool) -> u32 {
        let before = self.lost;
        for range in &mut self.ranges {
            if range.state == RangeState::InFlight && is(range) {
                range.state = RangeState::Lost;
                self.lost += range.len();
            }
        }
        self.lost - before
    }

    /// Returns all lost ranges to the state in flight.
    pub(super) fn clear_losses(&mut self) {
        for range in &mut self.ranges {
            if range.state == RangeState::Lost {
                range.state = RangeState::InFlight;
            }
        }
        self.lost = 0;
    }

    /// Bytes in flight that were sent more than once.
    pub(super) fn retransmitted(&self) -> u32 {
        let again = |range: &&SentRange| range.retransmitted && range.state == RangeState::InFlight;
        self.ranges.iter().filter(again).map(SentRange::len).sum()
    }

    /// Marks the first bytes in flight, at most `len`, as lost.
    pub(super) fn mark_first_lost(&mut self, len: u32) {
        let Some(begin) = self.first().map(|first| first.begin) else {
            return;
        };
        let at = self.split_at(begin + len).max(1);
        for range in self.ranges.range_mut(..at) {
            if range.state == RangeState::InFlight {
                range.state = RangeState::Lost;
                self.lost += range.len();
            }
        }
    }

    /// The range to retransmit first: its begin, and the end of the lost ranges after it.
    pub(super) fn first_lost(&self) -> Option<(SeqNum, SeqNum)> {
        if self.lost == 0 {
            return None;
        }
        let mut ranges = self.ranges.iter();
        let first = ranges.find(|range| range.state == RangeState::Lost)?;
        let more = ranges.take_while(|range| range.state == RangeState::Lost);
        let end = more.last().map_or(first.end, |last| last.end);
        Some((first.begin, end))
    }

    /// `begin..end` is retransmitted.
    pub(super) fn on_retransmitted(&mut self, begin: SeqNum, end: SeqNum, now: Instant) {
        if self.ranges.len() + 2 > MAX_RANGES {
            self.merge_neighbors();
        }
        let (from, to) = (self.split_at(begin), self.split_at(end));
        for range in self.ranges.range_mut(from..to) {
            match range.state {
                RangeState::InFlight => {}
                RangeState::Sacked => continue,
                RangeState::Lost => self.lost -= range.len(),
            }
            range.state = RangeState::InFlight;
            range.sent_at = now;
            range.retransmitted = true;
        }
    }

    /// Clears all SACKs, since the peer may have discarded the data (RFC 2018 section 8).
    pub(super) fn clear_sacks(&mut self) {
        for range in &mut self.ranges {
            if range.state == RangeState::Sacked {
                range.state = RangeState::InFlight;
            }
        }
        self.sacked = 0;
    }

    /// The index of the range that begins at `at`, or of the first one after it; splits the range
    /// around `at`.
    fn split_at(&mut self, at: SeqNum) -> usize {
        let i = self
            .ranges
            .partition_point(|range| range.end.at_or_before(at));
        match self.ranges.get_mut(i) {
            Some(range) if range.begin.before(at) => {
                let rest = SentRange {
                    begin: at,
                    ..*range
                };
                range.end = at;
                self.ranges.insert(i + 1, rest);
                i + 1
            }
            _ => i,
        }
    }

    /// Makes room by merging pairs of neighbours in one state; if there are none, drops the
    /// reports of received data first. Returns whether there is room now.
    fn merge_neighbors(&mut self) -> bool {
        for forget in [false, true] {
            if forget {
                self.clear_sacks();
            }
            let mut pairs = VecDeque::with_capacity(MAX_RANGES);
            let mut joined = false;
            for next in self.ranges.drain(..) {
                match pairs.back_mut() {
                    Some(SentRange {
                        end,
                        sent_at,
                        state,
                        retransmitted,
                        ..
                    }) if !joined
                        && *state == next.state
                        && *retransmitted == next.retransmitted =>
                    {
                        *end = next.end;
                        *sent_at = next.sent_at.max(*sent_at);
                        joined = true;
                    }
                    _ => {
                        pairs.push_back(next);
                        joined = false;
                    }
                }
            }
            self.ranges = pairs;
            if self.ranges.len() + 2 <= MAX_RANGES {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNA: SeqNum = SeqNum(0xffff_ff00);

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    fn flight(sends: &[(u32, u64)]) -> Scoreboard {
        let mut flight = Scoreboard::new();
        let mut begin = UNA;
        for &(len, ms) in sends {
            flight.sent(UNA, begin, begin + len, at(ms));
            begin += len;
        }
        flight
    }

    fn shown(flight: &Scoreboard) -> Vec<(u32, u32, RangeState)> {
        let ranges = flight.ranges.iter();
        let place = |n: SeqNum| n.since(UNA);
        ranges
            .map(|s| (place(s.begin), place(s.end), s.state))
            .collect()
    }

    #[test]
    fn what_is_sent_at_one_moment_is_one_range() {
        let f = flight(&[(1000, 1), (1000, 1), (1000, 2)]);
        let flying = RangeState::InFlight;
        assert_eq!(shown(&f), [(0, 2000, flying), (2000, 3000, flying)]);
    }

    #[test]
    fn blocks_split_ranges_and_sacked_neighbors_merge() {
        use RangeState::{InFlight, Sacked};
        let mut f = flight(&[(4000, 1), (2000, 2)]);
        let mut seen = 0;
        f.sack(UNA + 1000, UNA + 2000, |s| seen += s.len());
        f.sack(UNA + 3000, UNA + 5000, |s| seen += s.len());
        assert_eq!((seen, f.sacked()), (3000, 3000));
        f.sack(UNA + 1000, UNA + 3000, |s| seen += s.len());
        assert_eq!(seen, 4000);
        assert_eq!(
            shown(&f),
            [
                (0, 1000, InFlight),
                (1000, 5000, Sacked),
                (5000, 6000, InFlight)
            ]
        );
        f.acked(UNA + 2000, |s| seen += s.len());
        assert_eq!((seen, f.sacked()), (5000, 3000));
    }

    #[test]
    fn what_is_lost_is_retransmitted_and_its_time_is_new() {
        let mut f = flight(&[(3000, 1), (3000, 2)]);
        f.sack(UNA + 3000, UNA + 6000, |_| ());
        assert_eq!(f.mark_lost(|s| s.sent_at < at(2)), 3000);
        assert_eq!(f.first_lost(), Some((UNA, UNA + 3000)));
        f.on_retransmitted(UNA, UNA + 1000, at(3));
        assert_eq!(f.first_lost(), Some((UNA + 1000, UNA + 3000)));
        assert_eq!(f.lost(), 2000);
        assert!(
            f.first()
                .is_some_and(|s| s.retransmitted && s.sent_at == at(3))
        );
        f.clear_sacks();
        assert_eq!((f.sacked(), f.mark_lost(|_| true)), (0, 4000));
    }

    #[test]
    fn an_idle_scoreboard_keeps_room_for_a_few_ranges() {
        let rests = |count: u64| {
            let sends: Vec<_> = (0..count).map(|i| (10, i)).collect();
            let mut f = flight(&sends);
            let room = f.ranges.capacity();
            f.acked(UNA + 10 * count as u32, |_| ());
            assert!(f.ranges.is_empty());
            (room, f.ranges.capacity())
        };
        assert_eq!(rests(100).1, 0);
        let (before, after) = rests(IDLE_CAPACITY as u64);
        assert_eq!(before, after);
    }

    #[test]
    fn memory_is_bounded_whatever_blocks_say() {
        let mut f = Scoreboard::new();
        let mut begin = UNA;
        for i in 0..3000 {
            f.sent(UNA, begin, begin + 100, at(i));
            begin += 100;
            if i % 2 == 0 {
                f.sack(begin - 100, begin - 50, |_| ());
            }
            assert!(f.ranges.len() <= MAX_RANGES);
        }
        for i in 0..1500 {
            f.sack(UNA + 200 * i, UNA + 200 * i + 1, |_| ());
            assert!(f.ranges.len() <= MAX_RANGES);
        }
    }

    #[test]
    fn too_many_ranges_become_half_as_many_unless_neighbors_differ() {
        let most = MAX_RANGES as u32;
        let sends: Vec<_> = (0..u64::from(most)).map(|i| (100, i)).collect();
        let (begin, end) = (UNA + 100 * most, UNA + 100 * most + 100);

        let mut alike = flight(&sends);
        alike.sent(UNA, begin, end, at(9_999));
        assert_eq!(alike.ranges.len(), MAX_RANGES / 2 + 1);
        let first = alike.first().expect("ranges in flight");
        assert_eq!((first.len(), first.sent_at), (200, at(1)));
        let last = alike.last().expect("ranges in flight");
        assert_eq!((last.len(), last.sent_at), (100, at(9_999)));

        let mut different = flight(&sends);
        different.mark_lost(|range| range.begin.since(UNA) % 200 == 0);
        different.sent(UNA, begin, end, at(9_999));
        assert_eq!(different.ranges.len(), MAX_RANGES);
        let last = different.last().expect("ranges in flight");
        assert_eq!((last.len(), last.sent_at), (200, at(9_999)));

        // New data after lost data, without a range to itself, counts as lost too.
        let mut lost = flight(&sends);
        lost.mark_lost(|range| range.begin.since(UNA) % 200 == 100);
        assert_eq!(lost.lost(), 50 * most);
        lost.sent(UNA, begin, end, at(9_999));
        assert_eq!(lost.lost(), 50 * most + 100);
    }

    proptest! {
        /// Compares with a scoreboard that has an entry for every byte.
        #[test]
        fn every_byte_has_the_state_that_it_was_given(
            acts in proptest::collection::vec((0u8..5, 0u32..100, 1u32..40), 1..60),
        ) {
            let mut f = Scoreboard::new();
            let (mut una, mut nxt) = (0u32, 0u32);
            let mut model = vec![RangeState::InFlight; 8000];
            for (now, (act, place, len)) in acts.into_iter().enumerate() {
                let begin = (una + place).min(nxt);
                let end = (begin + len).min(nxt);
                let range = begin as usize..end as usize;
                let (left, right) = (UNA + begin, UNA + end);
                match act {
                    0 => {
                        f.sent(UNA + una, UNA + nxt, UNA + nxt + len, at(now as u64));
                        nxt += len;
                    }
                    1 if end > una => {
                        f.acked(right, |_| ());
                        una = end;
                    }
                    2 if begin < end => {
                        f.sack(left, right, |_| ());
                        model[range].fill(RangeState::Sacked);
                    }
                    3 => {
                        f.mark_lost(|_| true);
                        for state in &mut model[una as usize..nxt as usize] {
                            if *state == RangeState::InFlight {
                                *state = RangeState::Lost;
                            }
                        }
                    }
                    4 => if let Some((left, right)) = f.first_lost() {
                        let right = right.min(left + len);
                        f.on_retransmitted(left, right, at(now as u64));
                        model[left.since(UNA) as usize..right.since(UNA) as usize]
                            .fill(RangeState::InFlight);
                    },
                    _ => {}
                }
                let mut bytes = Vec::new();
                for s in &f.ranges {
                    prop_assert!(s.begin.before(s.end));
                    bytes.extend(vec![s.state; s.len() as usize]);
                }
                prop_assert_eq!(&bytes[..], &model[una as usize..nxt as usize]);
                let count = |is: RangeState| bytes.iter().filter(|&&state| state == is).count() as u32;
                prop_assert_eq!((f.sacked(), f.lost()), (count(RangeState::Sacked), count(RangeState::Lost)));
            }
        }
    }
}
