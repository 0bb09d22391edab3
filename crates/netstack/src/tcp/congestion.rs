//! How much may be in flight for the network's sake: RFC 5681, RFC 6582 (NewReno), in integers.
//!
//! [`Congestion`] keeps the window and the state of loss recovery; [`Growth`] decides how fast the window
//! opens and how far it falls, so that another algorithm is another variant of it.

use serde::{Deserialize, Serialize};

use crate::seqnum::SeqNum;

/// No window grows beyond this: the largest that RFC 7323 section 2.3 can announce.
const WINDOW_MAX: u32 = 1 << 30;

/// Duplicate acknowledgments that say a segment was lost (RFC 5681 section 3.2).
const DUPLICATES: u8 = 3;

/// What the sender does about loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
enum Phase {
    /// Nothing: no loss is known.
    Open,
    /// Fast recovery (RFC 6582), no partial acknowledgment seen yet.
    Recovery,
    /// Fast recovery, after a partial acknowledgment.
    RecoveryPartial,
}

/// How a congestion window opens and falls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Growth {
    /// RFC 5681 with appropriate byte counting (RFC 3465).
    Reno {
        /// Octets acknowledged since the window last grew in congestion avoidance.
        acked: u32,
    },
}

impl Growth {
    /// The window after `acked` octets were acknowledged outside of recovery.
    fn grown(&mut self, cwnd: u32, ssthresh: u32, acked: u32, mss: u32) -> u32 {
        let Growth::Reno { acked: counted } = self;
        let step = if cwnd < ssthresh {
            // Slow start (RFC 5681 section 3.1), at most L = 2 segments a time (RFC 3465 section 2.2).
            acked.min(2 * mss)
        } else {
            // Congestion avoidance: one segment for each window acknowledged (RFC 3465 section 2.1).
            *counted = counted.saturating_add(acked);
            if *counted < cwnd {
                return cwnd;
            }
            *counted -= cwnd;
            mss
        };
        (cwnd + step).min(WINDOW_MAX)
    }

    /// The threshold after a loss (RFC 5681 section 3.1, equation 4).
    fn fallen(&mut self, flight: u32, mss: u32) -> u32 {
        let Growth::Reno { acked } = self;
        *acked = 0;
        (flight / 2).max(2 * mss)
    }
}

/// What an acknowledgment asks of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing in particular.
    Carry,
    /// Send the first unacknowledged segment again.
    Resend,
}

/// Congestion window and loss recovery of one connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Congestion {
    /// `cwnd`, octets (RFC 5681 section 2).
    cwnd: u32,
    /// `ssthresh`, octets (RFC 5681 section 2).
    ssthresh: u32,
    /// The highest number sent when loss was last noticed (RFC 6582 section 3.2).
    recover: SeqNum,
    phase: Phase,
    /// Duplicate acknowledgments in a row.
    duplicates: u8,
    /// Octets in flight when the first of them came: without what limited transmit sent.
    flight: u32,
    growth: Growth,
}

impl Congestion {
    /// Before the handshake.
    pub(super) fn new(iss: SeqNum) -> Self {
        Congestion {
            cwnd: 0,
            ssthresh: WINDOW_MAX,
            recover: iss,
            phase: Phase::Open,
            duplicates: 0,
            flight: 0,
            growth: Growth::Reno { acked: 0 },
        }
    }

    /// The initial window of RFC 6928 section 2.
    fn initial(mss: u32) -> u32 {
        (10 * mss).min((2 * mss).max(14_600))
    }

    /// The handshake is complete. After a lost SYN the window begins with one segment (RFC 5681
    /// section 3.1).
    pub(super) fn establish(&mut self, mss: u32, syn_lost: bool) {
        self.cwnd = if syn_lost { mss } else { Self::initial(mss) };
    }

    /// Octets that may be in flight. The first two duplicate acknowledgments let a new segment out each
    /// (limited transmit, RFC 3042).
    #[inline]
    pub(super) fn allowed(&self, mss: u32) -> u32 {
        if self.phase == Phase::Open {
            self.cwnd + u32::from(self.duplicates.min(DUPLICATES - 1)) * mss
        } else {
            self.cwnd
        }
    }

    /// `cwnd` as it is.
    #[cfg(test)]
    pub(super) const fn window(&self) -> u32 {
        self.cwnd
    }

    /// Whether the retransmission timer keeps running from before this acknowledgment: in fast recovery
    /// it starts again at the first partial one only (RFC 6582 section 3.2, step 3).
    pub(super) fn keeps_timer(&self) -> bool {
        self.phase == Phase::RecoveryPartial
    }

    /// `acked` octets up to `una` were acknowledged; `flight` were in flight before.
    #[inline]
    pub(super) fn on_ack(&mut self, una: SeqNum, acked: u32, flight: u32, mss: u32) -> Verdict {
        self.duplicates = 0;
        if self.phase != Phase::Open {
            return self.on_ack_in_recovery(una, acked, flight, mss);
        }
        // A window that was not used says nothing about the network (RFC 7661 section 4.3).
        if flight >= self.cwnd / 2 {
            self.cwnd = self.growth.grown(self.cwnd, self.ssthresh, acked, mss);
        }
        Verdict::Carry
    }

    /// RFC 6582 section 3.2, step 3.
    fn on_ack_in_recovery(&mut self, una: SeqNum, acked: u32, flight: u32, mss: u32) -> Verdict {
        if una.at_or_after(self.recover) {
            let left = flight.saturating_sub(acked);
            self.cwnd = self.ssthresh.min(left.max(mss) + mss);
            self.phase = Phase::Open;
            return Verdict::Carry;
        }
        self.cwnd = self.cwnd.saturating_sub(acked);
        if acked >= mss {
            self.cwnd += mss;
        }
        self.cwnd = self.cwnd.max(mss);
        self.phase = Phase::RecoveryPartial;
        Verdict::Resend
    }

    /// A duplicate acknowledgment of `una` arrived, `flight` octets being in flight up to `max`
    /// (RFC 5681 section 3.2, RFC 6582 section 3.2).
    pub(super) fn on_duplicate(
        &mut self,
        una: SeqNum,
        max: SeqNum,
        flight: u32,
        mss: u32,
    ) -> Verdict {
        self.duplicates = self.duplicates.saturating_add(1);
        if self.duplicates == 1 {
            self.flight = flight;
        }
        if self.phase != Phase::Open {
            // Another segment has left the network.
            self.cwnd = (self.cwnd + mss).min(WINDOW_MAX);
            return Verdict::Carry;
        }
        // After a timeout, copies of what was sent before it must not look like another loss.
        if self.duplicates != DUPLICATES || !una.after(self.recover) {
            return Verdict::Carry;
        }
        // RFC 5681 section 3.2, step 2: what limited transmit sent must not be counted.
        self.ssthresh = self.growth.fallen(self.flight, mss);
        self.recover = max;
        self.cwnd = (self.ssthresh + u32::from(DUPLICATES) * mss).min(WINDOW_MAX);
        self.phase = Phase::Recovery;
        Verdict::Resend
    }

    /// The retransmission timer expired, for the `first` time for this segment (RFC 5681 section 3.1,
    /// RFC 6582 section 3.2 step 4).
    pub(super) fn on_timeout(&mut self, max: SeqNum, flight: u32, mss: u32, first: bool) {
        if first {
            self.ssthresh = self.growth.fallen(flight, mss);
        }
        self.cwnd = mss;
        self.recover = max;
        self.phase = Phase::Open;
        self.duplicates = 0;
    }

    /// Nothing was sent for longer than a timeout: the old window says nothing any more (RFC 5681
    /// section 4.1).
    pub(super) fn restart(&mut self, mss: u32) {
        self.cwnd = self.cwnd.min(Self::initial(mss));
    }

    /// Names and values of every field.
    pub(super) fn fields(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let Congestion {
            cwnd,
            ssthresh,
            recover,
            phase,
            duplicates,
            flight,
            growth: Growth::Reno { acked },
        } = self;
        each("congestion.cwnd", u64::from(*cwnd));
        each("congestion.ssthresh", u64::from(*ssthresh));
        each("congestion.recover", u64::from(recover.0));
        each("congestion.phase", *phase as u64);
        each("congestion.duplicates", u64::from(*duplicates));
        each("congestion.flight", u64::from(*flight));
        each("congestion.acked", u64::from(*acked));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    fn open() -> Congestion {
        let mut c = Congestion::new(SeqNum(0));
        c.establish(MSS, false);
        c
    }

    #[test]
    fn the_initial_window_is_ten_segments_or_one_after_a_lost_syn() {
        assert_eq!(open().window(), 10 * MSS);
        assert_eq!(Congestion::initial(1460), 14_600);
        assert_eq!(Congestion::initial(9000), 18_000);
        let mut lost = Congestion::new(SeqNum(0));
        lost.establish(MSS, true);
        assert_eq!(lost.window(), MSS);
    }

    #[test]
    fn slow_start_doubles_the_window_in_a_round_trip() {
        let mut c = open();
        for i in 0..5 {
            c.on_ack(SeqNum(2 * MSS * (i + 1)), 2 * MSS, 10 * MSS, MSS);
        }
        assert_eq!(c.window(), 20 * MSS);
    }

    #[test]
    fn congestion_avoidance_adds_one_segment_a_window() {
        let mut c = open();
        c.ssthresh = 10 * MSS;
        for _ in 0..10 {
            c.on_ack(SeqNum(1), MSS, 10 * MSS, MSS);
        }
        assert_eq!(c.window(), 11 * MSS);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut c = open();
        c.on_ack(SeqNum(1), MSS, 2 * MSS, MSS);
        assert_eq!(c.window(), 10 * MSS);
    }

    #[test]
    fn the_third_duplicate_halves_and_resends_and_the_full_ack_ends_recovery() {
        let mut c = open();
        let (una, max) = (SeqNum(500), SeqNum(20_500));
        assert_eq!(c.on_duplicate(una, max, 20_000, MSS), Verdict::Carry);
        assert_eq!(c.allowed(MSS), 11 * MSS);
        assert_eq!(c.on_duplicate(una, max, 20_000, MSS), Verdict::Carry);
        assert_eq!(c.on_duplicate(una, max, 20_000, MSS), Verdict::Resend);
        assert_eq!((c.ssthresh, c.window()), (10 * MSS, 13 * MSS));
        assert_eq!(c.on_duplicate(una, max, 20_000, MSS), Verdict::Carry);
        assert_eq!(c.window(), 14 * MSS);
        // Partial: deflate by what was acknowledged, add one segment, send the next hole.
        assert_eq!(c.on_ack(una + 3000, 3000, 20_000, MSS), Verdict::Resend);
        assert_eq!(c.window(), 12 * MSS);
        assert_eq!(c.on_ack(max, 17_000, 17_000, MSS), Verdict::Carry);
        assert_eq!(c.window(), 2 * MSS);
        assert_eq!((c.phase, c.duplicates), (Phase::Open, 0));
    }

    #[test]
    fn a_timeout_halves_once_and_guards_against_old_duplicates() {
        let mut c = open();
        c.on_timeout(SeqNum(9000), 8000, MSS, true);
        assert_eq!((c.ssthresh, c.window()), (4000, MSS));
        c.on_timeout(SeqNum(9000), 1000, MSS, false);
        assert_eq!(c.ssthresh, 4000);
        for _ in 0..5 {
            assert_eq!(
                c.on_duplicate(SeqNum(3000), SeqNum(9000), 6000, MSS),
                Verdict::Carry
            );
        }
    }
}
