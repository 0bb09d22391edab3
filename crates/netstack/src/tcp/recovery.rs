//! What is done about loss when the peer says what arrived: RACK-TLP (RFC 8985) finds it, the scoreboard of RFC 6675
//! remembers it, proportional rate reduction (RFC 6937) says how fast it is mended.
//!
//! A peer without SACK gets NewReno (RFC 6582), which is `duplicate` here and the rest in `congestion`. What is lost
//! leaves again by one road for both, before anything new: `send_lost` in `send.rs`.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::congestion::AckAction;
use super::fields::{field_variants, fields};
use super::rack::{AckInfo, Rack};
use super::retransmit::{Expiry, Timer};
use super::scoreboard::{RangeState, Scoreboard, SentRange};
use super::send_space::Due;
use super::undo::Cause;

use super::{Cx, Tcb};
use crate::log::effect::EffectSink;
use crate::log::request::{Options, Segment};
use crate::seqnum::SeqNum;
use crate::time::{Duration, Instant};

/// Segments beyond a gap that say a segment was lost, DupThresh (RFC 6675 section 2), less one.
const GAP_SEGMENTS: u32 = 2;

/// The longest that a peer may delay the acknowledgment of a single segment, TLP.max_ack_delay
/// (RFC 8985 section 7.2).
const MAX_ACK_DELAY: Duration = Duration::from_millis(200);

/// A probe comes no sooner than this, 10 ms: a peer close by may be busy for longer than a round trip takes. RFC 8985
/// section 7.2 has no such bound.
const PROBE_MIN: Duration = Duration::from_millis(10);

/// A tail loss probe that is out (RFC 8985 section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[repr(u8)]
pub(super) enum TailProbe {
    /// None.
    None,
    /// One that carried new text.
    New,
    /// One that repeated the last segment: TLP.is_retrans.
    Retransmit,
}

field_variants!(TailProbe {
    None,
    New,
    Retransmit
});

/// How losses are found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub(super) struct Recovery {
    rack: Rack,
    tail_probe: TailProbe,
    /// TLP.end_seq, while a probe is out.
    tail_probe_end: SeqNum,
}

fields!(Recovery, "recovery", { rack, tail_probe, tail_probe_end });

/// What an acknowledgment told.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckReport {
    /// Bytes that arrived and were not known to (DeliveredData, RFC 6937 section 3).
    delivered: u32,
    /// What came twice (RFC 2883).
    pub(super) dsack: Option<(SeqNum, SeqNum)>,
    /// Whether something arrived that counted as lost and had not left again.
    spurious: bool,
    /// Whether there were blocks of what arrived.
    blocks: bool,
    /// Whether a recovery was under way.
    recovering: bool,
}

impl Recovery {
    /// Text begins at `una`.
    pub(super) const fn new(una: SeqNum) -> Self {
        Recovery {
            rack: Rack::new(una),
            tail_probe: TailProbe::None,
            tail_probe_end: una,
        }
    }

    /// Segments pass each other on this path.
    pub(super) const fn reorders(&mut self) {
        self.rack.on_reordering();
    }
}

impl AckReport {
    /// Whether something arrived that counted as lost and had not left again.
    pub(super) const fn has_spurious(&self) -> bool {
        self.spurious
    }
}

impl Tcb {
    /// Whether nothing is known to be lost or out of order: then an acknowledgment is a number and no more.
    pub(super) fn is_clean(&self) -> bool {
        self.scoreboard.is_clean()
            && self.congestion.is_open()
            && self.recovery.tail_probe == TailProbe::None
            && !self.undo.is_awaiting(self.snd.una)
    }

    /// Bytes that are in the network as far as we know: `pipe` of RFC 6675 section 2.
    pub(super) fn pipe(&self) -> u32 {
        let sent = self.snd.nxt.since(self.snd.una);
        sent.saturating_sub(self.scoreboard.sacked() + self.scoreboard.lost())
    }

    /// Starts the retransmission timer, or, while all is `clean`, that of a probe if it is earlier (RFC 8985
    /// section 7.2).
    #[inline]
    pub(super) fn arm(&mut self, clean: bool, now: Instant) {
        let r = &mut self.retransmit;
        let mut pause = r.rto;
        r.expiry = Expiry::Timeout;
        if clean && self.rcv.sack_permitted && r.srtt != Duration::ZERO {
            r.expiry = Expiry::TailProbe;
            let single = self.snd.nxt.since(self.snd.una) <= u32::from(self.snd.mss);
            let window = if single {
                MAX_ACK_DELAY
            } else {
                Duration::ZERO
            };
            pause = (r.srtt.times(2).max(PROBE_MIN) + window).min(pause);
        }
        self.timers.start(Timer::Retransmit, now + pause);
    }

    /// Takes over what `seg` says of the text in flight, before SND.UNA moves to its acknowledgment.
    pub(super) fn process_blocks(
        &mut self,
        seg: &Segment<'_>,
        cx: &Cx<'_, impl EffectSink>,
    ) -> AckReport {
        let echoed = self.echoed(seg);
        let Tcb {
            scoreboard,
            recovery,
            snd,
            ..
        } = self;
        let info = AckInfo {
            now: cx.now,
            echoed,
            min_rtt: self.retransmit.min_rtt,
        };
        let rack = &mut recovery.rack;
        scoreboard.acked(snd.una, |_| ());
        rack.on_passed(snd.una);
        let before = scoreboard.sacked();
        let una = snd.una.max(seg.ack);
        let mut late = false;
        let mut delivered = |range: &SentRange, rack: &mut Rack| {
            late |= range.state == RangeState::Lost && !range.retransmitted;
            rack.delivered(range, &info);
        };
        scoreboard.acked(una, |range| delivered(range, rack));
        rack.on_passed(una);
        let mut report = AckReport {
            delivered: 0,
            dsack: None,
            spurious: false,
            blocks: false,
            recovering: !self.congestion.is_open(),
        };
        if let (Options::Sack(sack), true) = (seg.options, self.rcv.sack_permitted) {
            // In ascending order: what an earlier acknowledgment should have told is no reordering.
            let mut blocks = *sack;
            let sent = SackBounds {
                una,
                nxt: snd.nxt,
                ack: seg.ack,
                behind: snd.wnd_max,
            };
            report.dsack = sent.dsack(sack.blocks());
            for &(left, right) in blocks.sorted_from(una) {
                if sent.is_in_flight((left, right)) {
                    report.blocks = true;
                    scoreboard.sack(left, right, |range| delivered(range, rack));
                }
            }
        }
        report.spurious = late;
        let moved = una.since(snd.una) + scoreboard.sacked();
        report.delivered = moved.saturating_sub(before);
        report
    }

    /// After SND.UNA has moved: finds what is lost, and how much may leave.
    pub(super) fn respond(
        &mut self,
        seg: &Segment<'_>,
        report: AckReport,
        cx: &Cx<'_, impl EffectSink>,
    ) {
        if report.dsack.is_some() {
            self.recovery.rack.on_spurious_retransmit(self.snd.nxt);
        }
        if self.congestion.is_open() && report.recovering {
            self.recovery.rack.recovered();
        }
        self.end_tail_probe(seg, &report);
        if self.snd.una == self.snd.max {
            return;
        }
        let wait = self.detect(cx.now);
        self.recover(report.delivered);
        if self.timers.runs(Timer::Retransmit) {
            if report.delivered > 0 {
                self.arm(self.is_clean(), cx.now);
            }
        } else if self.snd.una != self.snd.nxt && !self.persists() {
            // Everything in flight is reported to have arrived, and was while the window was closed. The peer may take
            // that back (RFC 2018 section 8).
            self.arm(false, cx.now);
        }
        self.arm_reordering_timer(wait);
    }

    /// Marks as lost what should have arrived by now (RFC 8985 section 6.2, step 5). Returns when to look again, if
    /// something may just be late.
    fn detect(&mut self, now: Instant) -> Option<Instant> {
        let Tcb {
            scoreboard,
            recovery,
            retransmit,
            snd,
            ..
        } = self;
        let many = scoreboard.sacked() > GAP_SEGMENTS * u32::from(snd.mss);
        let mending = !self.congestion.is_open() || snd.una.before(self.congestion.recover());
        let sure = many || mending;
        let window = recovery
            .rack
            .window(sure, retransmit.min_rtt, retransmit.srtt);
        let mut wait: Option<Instant> = None;
        scoreboard.mark_lost(|range| match recovery.rack.deadline(range, window) {
            Some(at) if at <= now => true,
            Some(at) => {
                wait = wait.max(Some(at));
                false
            }
            None => false,
        });
        wait
    }

    /// Something may be late only: looks again then.
    fn arm_reordering_timer(&mut self, at: Option<Instant>) {
        if let Some(at) = at
            && self.timers.runs(Timer::Retransmit)
        {
            self.retransmit.expiry = Expiry::Reordering;
            self.timers.start(Timer::Retransmit, at);
        }
    }

    /// Begins a recovery if there is a new reason for it, and says how much may leave in it.
    fn recover(&mut self, delivered: u32) {
        let (una, mss) = (self.snd.una, u32::from(self.snd.mss));
        let is_new = self.congestion.is_open() && una.at_or_after(self.congestion.recover());
        if self.scoreboard.lost() > 0 && is_new {
            let flight = self.snd.nxt.since(una);
            self.congestion.enter(self.snd.nxt, flight, mss);
            self.on_reduction(Cause::Loss);
            self.recovery.tail_probe = TailProbe::None;
        }
        let pipe = self.pipe();
        self.congestion.reduce(delivered, pipe, mss);
    }

    /// What was late did not come (RFC 8985 section 6.3).
    pub(super) fn on_reordering_timeout<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        self.scoreboard.acked(self.snd.una, |_| ());
        let wait = self.detect(cx.now);
        self.recover(0);
        self.arm(false, cx.now);
        self.arm_reordering_timer(wait);
    }

    /// No acknowledgment for two round trips: the end of what was sent may be lost (RFC 8985 section 7.3).
    pub(super) fn on_tail_probe_timeout<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.snd.due == Due::Nothing {
            self.snd.due = Due::TailProbe;
        }
        self.arm(false, cx.now);
    }

    /// A probe left, and ended at `end`.
    pub(super) const fn probed(&mut self, tail: TailProbe, end: SeqNum) {
        self.close_fast_path();
        self.recovery.tail_probe = tail;
        self.recovery.tail_probe_end = end;
    }

    /// Whether a tail loss probe is what is needed: nobody knows of a loss, and no probe is out.
    pub(super) fn may_probe(&self) -> bool {
        self.is_clean() && self.snd.una != self.snd.nxt
    }

    /// RFC 8985 section 7.4.2.
    fn end_tail_probe(&mut self, seg: &Segment<'_>, report: &AckReport) {
        let end = self.recovery.tail_probe_end;
        if self.recovery.tail_probe == TailProbe::None || seg.ack.before(end) {
            return;
        }
        let again = self.recovery.tail_probe == TailProbe::Retransmit;
        if again && report.dsack.map(|(_, right)| right) != Some(end) {
            if seg.ack.after(end) {
                // The probe mended a loss that nobody else noticed.
                let mss = u32::from(self.snd.mss);
                self.congestion.on_congestion_mark(self.snd.nxt, mss);
            } else if report.delivered > 0 || report.blocks {
                // The original or the probe: the next acknowledgment tells.
                return;
            }
        }
        self.recovery.tail_probe = TailProbe::None;
    }

    /// The timer says that all is lost (RFC 6298 section 5.4): everything that did not arrive is.
    pub(super) fn mark_all_lost(&mut self) {
        self.scoreboard.acked(self.snd.una, |_| ());
        if self
            .scoreboard
            .first()
            .is_some_and(|s| s.state == RangeState::Sacked)
        {
            self.scoreboard.clear_sacks();
        }
        self.scoreboard.mark_lost(|_| true);
        self.recovery.tail_probe = TailProbe::None;
    }

    /// Nothing will be sent any more.
    pub(super) fn clear_scoreboard(&mut self) {
        self.scoreboard = Scoreboard::new();
    }

    /// A duplicate acknowledgment of a peer that does not say what arrived.
    pub(super) fn duplicate(&mut self) {
        let snd = &self.snd;
        let flight = snd.max.since(snd.una);
        let mss = u32::from(snd.mss);
        let verdict = self.congestion.on_duplicate(snd.una, snd.max, flight, mss);
        if verdict == AckAction::Resend {
            self.on_reduction(Cause::Loss);
        }
        self.apply_action(verdict);
    }

    /// Sends the first segment again if the verdict says so.
    #[inline]
    pub(super) fn apply_action(&mut self, verdict: AckAction) {
        if verdict == AckAction::Resend {
            let (una, mss) = (self.snd.una, u32::from(self.snd.mss));
            self.scoreboard.acked(una, |_| ());
            self.scoreboard.mark_first_lost(mss);
            self.snd.due = Due::Resend;
        }
    }
}

/// What a block of an acknowledgment may report. Its edges are any two numbers, of which no comparison by itself says
/// much: each is looked at as a distance from one that is known.
struct SackBounds {
    /// SND.UNA once the segment counts.
    una: SeqNum,
    /// Where text begins that was never sent.
    nxt: SeqNum,
    /// SEG.ACK.
    ack: SeqNum,
    /// How far before SEG.ACK a copy of something may arrive, in bytes: the widest window there ever was.
    behind: u32,
}

impl SackBounds {
    /// Whether a block reports that something in flight arrived: it lies behind SND.UNA, which would be larger else,
    /// and is not empty (RFC 2018 sections 3 and 4).
    fn is_in_flight(&self, (left, right): (SeqNum, SeqNum)) -> bool {
        // The byte of a window probe may be acknowledged before it counts as sent.
        let all = self.nxt.max(self.una).since(self.una);
        let (left, right) = (left.since(self.una), right.since(self.una));
        0 < left && left < right && right <= all
    }

    /// What came twice, if the first block says that: it lies before the acknowledgment, by a window at most, or within
    /// the second one, which is in flight (RFC 2883 section 4).
    fn dsack(&self, blocks: &[(SeqNum, SeqNum)]) -> Option<(SeqNum, SeqNum)> {
        let &(left, right) = blocks.first()?;
        let (begin, end) = (self.ack.since(left), self.ack.since(right));
        let is_old = end < begin && begin <= self.behind;
        let within = |&(l, r): &(SeqNum, SeqNum)| {
            let (from, to) = (left.since(l), right.since(l));
            self.is_in_flight((l, r)) && from < to && to <= r.since(l)
        };
        (is_old || blocks.get(1).is_some_and(within)).then_some((left, right))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_what_a_second_block_reports_may_reach_from_its_beginning_to_its_end() {
        let sent = SackBounds {
            una: SeqNum(1),
            nxt: SeqNum(10_001),
            ack: SeqNum(1),
            behind: 30_000,
        };
        let twice = |left: u32, right: u32| {
            let blocks = [(left, right), (3001, 5001)].map(|(l, r)| (SeqNum(l), SeqNum(r)));
            sent.dsack(&blocks).is_some()
        };
        for (left, right) in [(3001, 4001), (4001, 5001), (3001, 5001)] {
            assert!(twice(left, right), "{left} to {right}");
        }
        for (left, right) in [(3000, 4001), (4001, 5002), (5001, 6001), (4001, 4001)] {
            assert!(!twice(left, right), "{left} to {right}");
        }
    }
}
