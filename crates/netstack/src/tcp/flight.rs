//! What is in flight, and what became of it: the scoreboard of RFC 6675, kept by the time of sending as RFC 8985
//! wants it.
//!
//! Text that left at one moment is one [`Stretch`], however many segments it was; SACK blocks and retransmissions cut
//! it. So there are about as many stretches as there were moments. Acknowledgments on the short road do not look at
//! them: as long as nothing is known to be lost or to have arrived out of order, old ones are dropped when something
//! is sent.

use std::collections::VecDeque;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::walk::{walk, walk_variants};
use crate::seqnum::SeqNum;
use crate::time::Instant;

/// Stretches that are kept, at most. Where there would be more, neighbours become one that counts as sent when the
/// later one was, or a SACK block is ignored: both only delay a retransmission.
const STRETCHES: usize = 512;

/// Room that a connection keeps while nothing is in flight.
const IDLE: usize = 16;

/// What became of text that was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[repr(u8)]
pub(super) enum Fate {
    /// Nobody knows yet.
    #[default]
    Flying,
    /// It arrived, behind a gap.
    Sacked,
    /// It counts as lost, and was not sent again since.
    Lost,
}

walk_variants!(Fate {
    Flying,
    Sacked,
    Lost
});

/// Text that left at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub(super) struct Stretch {
    pub(super) begin: SeqNum,
    pub(super) end: SeqNum,
    /// When it left last.
    pub(super) sent_at: Instant,
    pub(super) fate: Fate,
    /// Whether it left more than once.
    pub(super) again: bool,
}

walk!(Stretch, "flight.stretch", { begin, end, sent_at, fate, again });

impl Stretch {
    /// Octets of sequence space.
    pub(super) const fn len(&self) -> u32 {
        self.end.since(self.begin)
    }
}

/// Everything between SND.UNA and SND.NXT, as stretches in the order of sequence numbers, without gaps. The first ones
/// may be acknowledged already.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub(super) struct Flight {
    stretches: VecDeque<Stretch>,
    /// Octets in those that are [`Fate::Sacked`].
    sacked: u32,
    /// Octets in those that are [`Fate::Lost`].
    lost: u32,
}

walk!(Flight, "flight", { stretches, sacked, lost });

impl Flight {
    /// With nothing in flight.
    pub(super) const fn new() -> Self {
        Flight {
            stretches: VecDeque::new(),
            sacked: 0,
            lost: 0,
        }
    }

    /// Octets that arrived behind a gap.
    pub(super) const fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Octets that are lost and were not sent again.
    pub(super) const fn lost(&self) -> u32 {
        self.lost
    }

    /// Whether nothing is known to be lost, or to have arrived out of order.
    #[inline]
    pub(super) const fn is_calm(&self) -> bool {
        self.sacked == 0 && self.lost == 0
    }

    /// The stretch with the lowest numbers.
    pub(super) fn first(&self) -> Option<&Stretch> {
        self.stretches.front()
    }

    /// The stretch with the highest numbers.
    pub(super) fn last(&self) -> Option<&Stretch> {
        self.stretches.back()
    }

    /// `begin..end` leaves for the first time, behind everything else; what is before `una` is acknowledged.
    pub(super) fn sent(&mut self, una: SeqNum, begin: SeqNum, end: SeqNum, now: Instant) {
        self.acked(una, |_| ());
        let fresh = Stretch {
            begin,
            end,
            sent_at: now,
            fate: Fate::Flying,
            again: false,
        };
        let is_full = self.stretches.len() >= STRETCHES && !self.squeeze();
        match self.stretches.back_mut() {
            Some(last) if last.sent_at == now && last.fate == Fate::Flying && !last.again => {
                last.end = end;
            }
            Some(last) if is_full => {
                last.end = end;
                last.sent_at = now;
                match last.fate {
                    Fate::Flying => {}
                    Fate::Sacked => self.sacked += fresh.len(),
                    Fate::Lost => self.lost += fresh.len(),
                }
            }
            _ => self.stretches.push_back(fresh),
        }
    }

    /// Everything before `una` is acknowledged; `each` sees what of it was not known to have arrived.
    pub(super) fn acked(&mut self, una: SeqNum, mut each: impl FnMut(&Stretch)) {
        while let Some(first) = self.stretches.front_mut()
            && first.begin.before(una)
        {
            let part = Stretch {
                end: first.end.min(una),
                ..*first
            };
            first.begin = part.end;
            let is_over = first.begin == first.end;
            match part.fate {
                Fate::Flying => each(&part),
                Fate::Sacked => self.sacked -= part.len(),
                Fate::Lost => {
                    self.lost -= part.len();
                    each(&part);
                }
            }
            if is_over {
                self.stretches.pop_front();
            }
        }
        if self.stretches.is_empty() && self.stretches.capacity() > IDLE {
            // What rests needs no memory.
            self.stretches = VecDeque::new();
        }
    }

    /// `left..right`, which was sent and is not acknowledged, has arrived; `each` sees what of it was not known to have.
    pub(super) fn sack(&mut self, left: SeqNum, right: SeqNum, mut each: impl FnMut(&Stretch)) {
        debug_assert!(left.before(right), "{left:?}..{right:?}");
        if self.stretches.len() + 2 > STRETCHES && !self.squeeze() {
            return;
        }
        let (from, to) = (self.cut(left), self.cut(right));
        for stretch in self.stretches.range_mut(from..to) {
            let len = stretch.len();
            match stretch.fate {
                Fate::Sacked => continue,
                Fate::Flying => {}
                Fate::Lost => self.lost -= len,
            }
            each(stretch);
            self.sacked += len;
            stretch.fate = Fate::Sacked;
        }
        // What arrived needs no time: neighbours become one.
        let last = to.min(self.stretches.len().saturating_sub(1));
        for i in (from.max(1)..=last).rev() {
            let (a, b) = (self.stretches[i - 1], self.stretches[i]);
            if a.fate == Fate::Sacked && b.fate == Fate::Sacked {
                self.stretches[i - 1].end = b.end;
                self.stretches.remove(i);
            }
        }
    }

    /// Every stretch in flight that `is` lost is so from now on. Returns how many octets that were.
    pub(super) fn lose(&mut self, mut is: impl FnMut(&Stretch) -> bool) -> u32 {
        let before = self.lost;
        for stretch in &mut self.stretches {
            if stretch.fate == Fate::Flying && is(stretch) {
                stretch.fate = Fate::Lost;
                self.lost += stretch.len();
            }
        }
        self.lost - before
    }

    /// What counts as lost is in flight after all.
    pub(super) fn forget_losses(&mut self) {
        for stretch in &mut self.stretches {
            if stretch.fate == Fate::Lost {
                stretch.fate = Fate::Flying;
            }
        }
        self.lost = 0;
    }

    /// Octets in flight that left more than once.
    pub(super) fn again(&self) -> u32 {
        let again = |stretch: &&Stretch| stretch.again && stretch.fate == Fate::Flying;
        self.stretches.iter().filter(again).map(Stretch::len).sum()
    }

    /// The first octets in flight, `len` at most, are lost.
    pub(super) fn lose_first(&mut self, len: u32) {
        let Some(begin) = self.first().map(|first| first.begin) else {
            return;
        };
        let at = self.cut(begin + len).max(1);
        for stretch in self.stretches.range_mut(..at) {
            if stretch.fate == Fate::Flying {
                stretch.fate = Fate::Lost;
                self.lost += stretch.len();
            }
        }
    }

    /// What to send again first: begin, and end of what is lost behind it.
    pub(super) fn first_lost(&self) -> Option<(SeqNum, SeqNum)> {
        if self.lost == 0 {
            return None;
        }
        let mut stretches = self.stretches.iter();
        let first = stretches.find(|stretch| stretch.fate == Fate::Lost)?;
        let more = stretches.take_while(|stretch| stretch.fate == Fate::Lost);
        let end = more.last().map_or(first.end, |last| last.end);
        Some((first.begin, end))
    }

    /// `begin..end` leaves again.
    pub(super) fn resent(&mut self, begin: SeqNum, end: SeqNum, now: Instant) {
        if self.stretches.len() + 2 > STRETCHES {
            self.squeeze();
        }
        let (from, to) = (self.cut(begin), self.cut(end));
        for stretch in self.stretches.range_mut(from..to) {
            match stretch.fate {
                Fate::Flying => {}
                Fate::Sacked => continue,
                Fate::Lost => self.lost -= stretch.len(),
            }
            stretch.fate = Fate::Flying;
            stretch.sent_at = now;
            stretch.again = true;
        }
    }

    /// The peer may have thrown away what it said has arrived (RFC 2018 section 8).
    pub(super) fn forget_sacks(&mut self) {
        for stretch in &mut self.stretches {
            if stretch.fate == Fate::Sacked {
                stretch.fate = Fate::Flying;
            }
        }
        self.sacked = 0;
    }

    /// The index of the stretch that begins at `at`, or of the first one behind it; cuts the one around it in two.
    fn cut(&mut self, at: SeqNum) -> usize {
        let i = self
            .stretches
            .partition_point(|stretch| stretch.end.at_or_before(at));
        match self.stretches.get_mut(i) {
            Some(stretch) if stretch.begin.before(at) => {
                let rest = Stretch {
                    begin: at,
                    ..*stretch
                };
                stretch.end = at;
                self.stretches.insert(i + 1, rest);
                i + 1
            }
            _ => i,
        }
    }

    /// Makes room by joining neighbours of one fate, two at a time; forgets what arrived if there are none. Returns
    /// whether there is room now.
    fn squeeze(&mut self) -> bool {
        for forget in [false, true] {
            if forget {
                self.forget_sacks();
            }
            let mut pairs = VecDeque::with_capacity(STRETCHES);
            let mut joined = false;
            for next in self.stretches.drain(..) {
                match pairs.back_mut() {
                    Some(Stretch {
                        end,
                        sent_at,
                        fate,
                        again,
                        ..
                    }) if !joined && *fate == next.fate && *again == next.again => {
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
            self.stretches = pairs;
            if self.stretches.len() + 2 <= STRETCHES {
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

    fn flight(sends: &[(u32, u64)]) -> Flight {
        let mut flight = Flight::new();
        let mut begin = UNA;
        for &(len, ms) in sends {
            flight.sent(UNA, begin, begin + len, at(ms));
            begin += len;
        }
        flight
    }

    fn shown(flight: &Flight) -> Vec<(u32, u32, Fate)> {
        let stretches = flight.stretches.iter();
        let place = |n: SeqNum| n.since(UNA);
        stretches
            .map(|s| (place(s.begin), place(s.end), s.fate))
            .collect()
    }

    #[test]
    fn what_left_at_one_moment_is_one_stretch() {
        let f = flight(&[(1000, 1), (1000, 1), (1000, 2)]);
        let flying = Fate::Flying;
        assert_eq!(shown(&f), [(0, 2000, flying), (2000, 3000, flying)]);
    }

    #[test]
    fn blocks_cut_stretches_and_neighbours_that_arrived_join() {
        use Fate::{Flying, Sacked};
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
                (0, 1000, Flying),
                (1000, 5000, Sacked),
                (5000, 6000, Flying)
            ]
        );
        f.acked(UNA + 2000, |s| seen += s.len());
        assert_eq!((seen, f.sacked()), (5000, 3000));
    }

    #[test]
    fn what_is_lost_leaves_again_and_its_time_is_new() {
        let mut f = flight(&[(3000, 1), (3000, 2)]);
        f.sack(UNA + 3000, UNA + 6000, |_| ());
        assert_eq!(f.lose(|s| s.sent_at < at(2)), 3000);
        assert_eq!(f.first_lost(), Some((UNA, UNA + 3000)));
        f.resent(UNA, UNA + 1000, at(3));
        assert_eq!(f.first_lost(), Some((UNA + 1000, UNA + 3000)));
        assert_eq!(f.lost(), 2000);
        assert!(f.first().is_some_and(|s| s.again && s.sent_at == at(3)));
        f.forget_sacks();
        assert_eq!((f.sacked(), f.lose(|_| true)), (0, 4000));
    }

    #[test]
    fn what_rests_keeps_the_room_of_a_few_stretches_and_no_more() {
        let rests = |count: u64| {
            let sends: Vec<_> = (0..count).map(|i| (10, i)).collect();
            let mut f = flight(&sends);
            let room = f.stretches.capacity();
            f.acked(UNA + 10 * count as u32, |_| ());
            assert!(f.stretches.is_empty());
            (room, f.stretches.capacity())
        };
        assert_eq!(rests(100).1, 0);
        let (before, after) = rests(IDLE as u64);
        assert_eq!(before, after);
    }

    #[test]
    fn memory_is_bounded_whatever_blocks_say() {
        let mut f = Flight::new();
        let mut begin = UNA;
        for i in 0..3000 {
            f.sent(UNA, begin, begin + 100, at(i));
            begin += 100;
            if i % 2 == 0 {
                f.sack(begin - 100, begin - 50, |_| ());
            }
            assert!(f.stretches.len() <= STRETCHES);
        }
        for i in 0..1500 {
            f.sack(UNA + 200 * i, UNA + 200 * i + 1, |_| ());
            assert!(f.stretches.len() <= STRETCHES);
        }
    }

    proptest! {
        /// Against a scoreboard that has an entry for every octet.
        #[test]
        fn every_octet_has_the_fate_that_it_was_given(
            acts in proptest::collection::vec((0u8..5, 0u32..100, 1u32..40), 1..60),
        ) {
            let mut f = Flight::new();
            let (mut una, mut nxt) = (0u32, 0u32);
            let mut model = vec![Fate::Flying; 8000];
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
                        model[range].fill(Fate::Sacked);
                    }
                    3 => {
                        f.lose(|_| true);
                        for fate in &mut model[una as usize..nxt as usize] {
                            if *fate == Fate::Flying {
                                *fate = Fate::Lost;
                            }
                        }
                    }
                    4 => if let Some((left, right)) = f.first_lost() {
                        let right = right.min(left + len);
                        f.resent(left, right, at(now as u64));
                        model[left.since(UNA) as usize..right.since(UNA) as usize]
                            .fill(Fate::Flying);
                    },
                    _ => {}
                }
                let mut octets = Vec::new();
                for s in &f.stretches {
                    prop_assert!(s.begin.before(s.end));
                    octets.extend(vec![s.fate; s.len() as usize]);
                }
                prop_assert_eq!(&octets[..], &model[una as usize..nxt as usize]);
                let count = |is: Fate| octets.iter().filter(|&&fate| fate == is).count() as u32;
                prop_assert_eq!((f.sacked(), f.lost()), (count(Fate::Sacked), count(Fate::Lost)));
            }
        }
    }
}
