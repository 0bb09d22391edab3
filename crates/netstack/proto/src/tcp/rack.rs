//! RACK (RFC 8985 sections 5 and 6): detects lost segments by the time at which they were sent.
//!
//! Data is lost if data that was sent later, by more than the reordering window, has arrived.

use super::fields::fields;
use super::retransmit::timestamp;
use super::scoreboard::SentRange;
use crate::seqnum::SeqNum;
use crate::time::{Duration, Instant};

/// Number of recoveries for which a wider reordering window lasts (RFC 8985 section 6.2.4).
const PERSISTS: u8 = 16;

/// The RACK state of RFC 8985 section 5.2, without the estimates of the round trip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rack {
    /// RACK.xmit_ts: the latest sending time of arrived data; [`Instant::ZERO`] before any.
    sent_at: Instant,
    /// RACK.end_seq: the end of that data.
    end: SeqNum,
    /// RACK.rtt: the round trip of that data.
    rtt: Duration,
    /// RACK.fack: the highest number that arrived.
    fack: SeqNum,
    /// RACK.dsack_round: while `widened`, the window widens again only after this.
    round: SeqNum,
    widened: bool,
    /// RACK.reordering_seen.
    reordering: bool,
    /// RACK.reo_wnd_mult.
    mult: u8,
    /// RACK.reo_wnd_persist.
    persists: u8,
}

fields!(Rack, "rack", { sent_at, end, rtt, fack, round, widened, reordering, mult, persists });

/// The parts of an acknowledgment other than numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckInfo {
    pub(super) now: Instant,
    /// TSecr, if timestamps are in use and it shows which copy of a segment arrived.
    pub(super) echoed: Option<u32>,
    /// RACK.min_RTT.
    pub(super) min_rtt: Duration,
}

impl Rack {
    /// The state when data begins at `una`.
    pub(super) const fn new(una: SeqNum) -> Self {
        Rack {
            sent_at: Instant::ZERO,
            end: una,
            rtt: Duration::ZERO,
            fack: una,
            round: una,
            widened: false,
            reordering: false,
            mult: 1,
            persists: 0,
        }
    }

    /// `range` has arrived (RFC 8985 section 6.2, steps 2 and 3).
    pub(super) fn delivered(&mut self, range: &SentRange, info: &AckInfo) {
        if range.end.after(self.fack) {
            self.fack = range.end;
        } else if !range.retransmitted {
            self.reordering = true;
        }
        let rtt = info.now.since(range.sent_at);
        if range.retransmitted {
            // This may be the arrival of the first copy.
            let earlier = |echoed: u32| (echoed.wrapping_sub(timestamp(range.sent_at)) as i32) < 0;
            if info.echoed.is_some_and(earlier) || rtt < info.min_rtt {
                return;
            }
        }
        self.rtt = rtt;
        if (self.sent_at, true) <= (range.sent_at, range.end.after(self.end)) {
            self.sent_at = range.sent_at;
            self.end = range.end;
        }
    }

    /// Acknowledgments on the fast path reached `una`.
    pub(super) fn on_passed(&mut self, una: SeqNum) {
        self.fack = self.fack.max(una);
        if self.widened && una.at_or_after(self.round) {
            self.widened = false;
        }
    }

    /// A retransmission was spurious (RFC 2883): the data that counted as lost was late (RFC
    /// 8985 section 6.2, step 4).
    pub(super) fn on_spurious_retransmit(&mut self, nxt: SeqNum) {
        if !self.widened {
            self.widened = true;
            self.round = nxt;
            self.mult = self.mult.saturating_add(1);
            self.persists = PERSISTS;
        }
    }

    /// Data that counted as lost was only reordered (RFC 8985 section 6.2, step 3).
    pub(super) const fn on_reordering(&mut self) {
        self.reordering = true;
    }

    /// A recovery is over.
    pub(super) const fn recovered(&mut self) {
        self.persists = self.persists.saturating_sub(1);
        if self.persists == 0 {
            self.mult = 1;
        }
    }

    /// RACK.reo_wnd (RFC 8985 section 6.2, step 4); `sure`: a recovery is in progress, or three
    /// segments arrived after a gap.
    pub(super) fn window(&self, sure: bool, min_rtt: Duration, srtt: Duration) -> Duration {
        if sure && !self.reordering {
            return Duration::ZERO;
        }
        let quarter = Duration::from_nanos(min_rtt.as_nanos() / 4);
        quarter.times(u64::from(self.mult)).min(srtt)
    }

    /// The time at which `range` counts as lost unless it arrives earlier; `None` if no data
    /// sent after it has arrived (RFC 8985 section 6.2, step 5).
    pub(super) fn deadline(&self, range: &SentRange, window: Duration) -> Option<Instant> {
        let later = (range.sent_at, range.end.after(self.end)) > (self.sent_at, false);
        (!later && self.sent_at != Instant::ZERO).then(|| range.sent_at + self.rtt + window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::scoreboard::RangeState;

    /// RFC 8985 section 6.2, step 4: at most once per round trip, and for 16 recoveries.
    #[test]
    fn a_spurious_retransmission_widens_the_window_once_a_round_trip() {
        let (una, nxt) = (SeqNum(0xffff_fff0), SeqNum(1000));
        let mut rack = Rack::new(una);
        rack.on_reordering();
        let window = |rack: &Rack| {
            let (min_rtt, srtt) = (Duration::from_millis(40), Duration::from_secs(1));
            rack.window(true, min_rtt, srtt).as_millis()
        };
        assert_eq!(window(&rack), 10);
        rack.on_spurious_retransmit(nxt);
        rack.on_passed(nxt - 1);
        rack.on_spurious_retransmit(nxt + 500);
        assert_eq!(window(&rack), 20, "the round trip is not over");
        rack.on_passed(nxt);
        rack.on_spurious_retransmit(nxt + 500);
        assert_eq!(window(&rack), 30);
        for _ in 1..PERSISTS {
            rack.recovered();
        }
        assert_eq!(window(&rack), 30);
        rack.recovered();
        assert_eq!(window(&rack), 10);
    }

    /// RFC 8985 section 6.2, step 3: arrivals in ascending order are no reordering.
    #[test]
    fn data_below_what_was_acknowledged_on_the_fast_path_shows_reordering() {
        let una = SeqNum(500);
        let info = AckInfo {
            now: Instant::from_millis(9),
            echoed: None,
            min_rtt: Duration::from_millis(1),
        };
        for (passed, is_reordered) in [(500, false), (600, false), (601, true), (900, true)] {
            let mut rack = Rack::new(una);
            rack.on_passed(SeqNum(passed));
            let range = SentRange {
                begin: una,
                end: SeqNum(601),
                sent_at: Instant::from_millis(3),
                state: RangeState::InFlight,
                retransmitted: false,
            };
            rack.delivered(&range, &info);
            assert_eq!(rack.reordering, is_reordered, "{passed}");
        }
    }
}
