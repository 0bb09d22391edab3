//! Undo: after a spurious loss detection the congestion window is restored.
//!
//! Late or reordered segments look lost for a while. After a retransmission, three things can show
//! that the first copy has arrived:
//!
//! - The first acknowledgment that advances SND.UNA echoes a timestamp from before the
//!   retransmission (Eifel detection, RFC 3522).
//! - The peer reports that all retransmitted data arrived twice (D-SACK, RFC 3708).
//! - With SACK and without timestamps, after a timeout: data arrived that was not retransmitted
//!   (F-RTO with SACK, RFC 5682 section 3).
//!
//! In each case the windows and the CUBIC curve are restored (RFC 4015 section 3.2, RFC 9438
//! section 4.9), ranges that count as lost are in flight again, and RACK notes that this path
//! reorders.

use super::Tcb;
use super::fields::{field_variants, fields};
use super::recovery::AckReport;
use super::retransmit::Timer;
use crate::log::request::Segment;
use crate::seqnum::SeqNum;
use crate::time::Instant;

/// Why the window was reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum UndoCause {
    /// Later data arrived.
    Loss,
    /// Nothing arrived for too long.
    Timeout,
}

field_variants!(UndoCause { Loss, Timeout });

/// The retransmissions since the window was reduced, while the reduction may be undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Undo {
    /// SND.UNA when the window was reduced.
    marker: SeqNum,
    /// The highest number sent when the window was reduced.
    max: SeqNum,
    cause: UndoCause,
    /// Retransmitted bytes, minus those reported as received twice.
    again: u32,
    /// TSval of the first retransmission.
    resent_at: Option<u32>,
}

fields!(Undo, "undo", { marker, max, cause, again, resent_at });

impl Undo {
    pub(super) const fn new(iss: SeqNum) -> Self {
        Undo {
            marker: iss,
            max: iss,
            cause: UndoCause::Loss,
            again: 0,
            resent_at: None,
        }
    }

    /// `bytes` are retransmitted, with this TSval.
    pub(super) fn resent(&mut self, bytes: u32, timestamp: u32) {
        self.again = self.again.saturating_add(bytes);
        self.resent_at.get_or_insert(timestamp);
    }

    /// Whether bytes from `begin` on are retransmitted because of a timeout.
    pub(super) fn is_for_timeout(&self, begin: SeqNum) -> bool {
        self.cause == UndoCause::Timeout && begin.before(self.max)
    }

    /// Whether the next advance of SND.UNA shows which copy has arrived.
    pub(super) fn is_awaiting(&self, una: SeqNum) -> bool {
        self.resent_at.is_some() && una == self.marker
    }
}

impl Tcb {
    /// The window was reduced because of the data sent so far.
    pub(super) fn on_reduction(&mut self, cause: UndoCause) {
        self.undo = Undo {
            marker: self.snd.una,
            max: self.snd.max,
            cause,
            // A tail loss probe may be in flight.
            again: self.scoreboard.retransmitted(),
            resent_at: None,
        };
    }

    /// Decides whether `seg`, an acceptable segment, shows that there was no loss; if so,
    /// undoes the reduction and returns true. `before` is SND.UNA before `seg`.
    pub(super) fn detect_spurious(
        &mut self,
        seg: &Segment<'_>,
        report: &AckReport,
        before: SeqNum,
        now: Instant,
    ) -> bool {
        let is_spurious = self.congestion.may_undo()
            && (self.is_first_copy(seg, before)
                || self.all_duplicated(report)
                || self.original_arrived(report));
        if is_spurious {
            self.undo_reduction(now);
        }
        is_spurious
    }

    /// RFC 3522 section 3.2, steps 3 to 5.
    fn is_first_copy(&self, seg: &Segment<'_>, before: SeqNum) -> bool {
        let earlier = |(echoed, sent): (u32, u32)| (echoed.wrapping_sub(sent) as i32) < 0;
        let moves = before == self.undo.marker && seg.ack.after(before);
        moves
            && self
                .echoed(seg.timestamps)
                .zip(self.undo.resent_at)
                .is_some_and(earlier)
    }

    /// RFC 3708 section 2: every retransmitted byte was reported as received twice.
    fn all_duplicated(&mut self, report: &AckReport) -> bool {
        let undo = &mut self.undo;
        let Some((left, right)) = report.dsack else {
            return false;
        };
        if undo.again == 0 || left.before(undo.marker) || right.after(undo.max) {
            return false;
        }
        undo.again = undo.again.saturating_sub(right.since(left));
        undo.again == 0 && self.scoreboard.lost() == 0
    }

    /// RFC 5682 section 3.1, step 3.b.
    const fn original_arrived(&self, report: &AckReport) -> bool {
        matches!(self.undo.cause, UndoCause::Timeout)
            && self.rcv.sack_permitted
            && !self.rcv.timestamps
            && report.has_spurious()
    }

    fn undo_reduction(&mut self, now: Instant) {
        self.scoreboard.clear_losses();
        let pipe = self.pipe();
        self.congestion
            .undo(self.snd.una, pipe, u32::from(self.snd.mss));
        if self.undo.cause == UndoCause::Loss {
            self.recovery.on_reordering();
        }
        self.undo.resent_at = None;
        if self.snd.una != self.snd.nxt {
            // Data that waited for a window is in flight again.
            self.timers.stop(Timer::Persist);
            if !self.timers.runs(Timer::Retransmit) {
                self.arm(false, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_acknowledgment_after_a_retransmission_shows_which_copy_arrived() {
        let mut undo = Undo::new(SeqNum(70));
        assert!(!undo.is_awaiting(SeqNum(70)), "nothing was sent again");
        undo.resent(100, 5);
        undo.resent(100, 6);
        assert!(undo.is_awaiting(SeqNum(70)));
        assert!(!undo.is_awaiting(SeqNum(71)), "an acknowledgment came");
        assert_eq!((undo.again, undo.resent_at), (200, Some(5)));
    }
}
