//! Loss recovery: RACK-TLP (RFC 8985) detects loss, the scoreboard of RFC 6675 stores it, and
//! proportional rate reduction (RFC 9937) limits the rate of retransmissions.
//!
//! For a peer without SACK, NewReno (RFC 6582) applies: `duplicate` here, and the rest in
//! `congestion`. In both cases `send_lost` in `send.rs` retransmits lost data before new data is
//! sent.

use super::congestion::AckAction;
use super::fields::{field_variants, fields};
use super::rack::{AckInfo, Rack};
use super::retransmit::{Expiry, Timer};
use super::scoreboard::{RangeState, Scoreboard, SentRange};
use super::send_space::Due;
use super::undo::UndoCause;

use super::{Cx, Tcb};
use crate::log::effect::EffectSink;
use crate::log::request::{Options, Segment};
use crate::seqnum::SeqNum;
use crate::time::{Duration, Instant};

/// Segments beyond a gap that indicate a loss, DupThresh (RFC 6675 section 2), less one.
const GAP_SEGMENTS: u32 = 2;

/// The longest that a peer may delay the acknowledgment of a single segment, TLP.max_ack_delay
/// (RFC 8985 section 7.2).
const MAX_ACK_DELAY: Duration = Duration::from_millis(200);

/// The minimum time before a probe, 10 ms: a nearby peer may be busy for longer than a round
/// trip. RFC 8985 section 7.2 has no such bound.
const PROBE_MIN: Duration = Duration::from_millis(10);

/// The tail loss probe in flight (RFC 8985 section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum TailProbe {
    /// None.
    None,
    /// One with new data.
    New,
    /// One that repeats the last segment: TLP.is_retrans.
    Retransmit,
}

field_variants!(TailProbe {
    None,
    New,
    Retransmit
});

/// The state of loss detection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recovery {
    rack: Rack,
    tail_probe: TailProbe,
    /// TLP.end_seq, while a probe is in flight.
    tail_probe_end: SeqNum,
}

fields!(Recovery, "recovery", { rack, tail_probe, tail_probe_end });

/// The contents of an acknowledgment, as loss detection sees them.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckReport {
    /// Bytes newly known to have arrived (DeliveredData, RFC 9937 section 6).
    delivered: u32,
    /// Whether SND.UNA advances.
    advanced: bool,
    /// A range that arrived twice (RFC 2883).
    pub(super) dsack: Option<(SeqNum, SeqNum)>,
    /// Whether a range arrived that counted as lost and was not retransmitted.
    spurious: bool,
    /// Whether there were SACK blocks of received data.
    blocks: bool,
    /// Whether a recovery was in progress.
    recovering: bool,
}

impl Recovery {
    /// The state when data begins at `una`.
    pub(super) const fn new(una: SeqNum) -> Self {
        Recovery {
            rack: Rack::new(una),
            tail_probe: TailProbe::None,
            tail_probe_end: una,
        }
    }

    /// Notes that this path reorders segments.
    pub(super) const fn on_reordering(&mut self) {
        self.rack.on_reordering();
    }
}

impl AckReport {
    /// Whether a range arrived that counted as lost and was not retransmitted.
    pub(super) const fn has_spurious(&self) -> bool {
        self.spurious
    }
}

impl Tcb {
    /// Whether nothing is known to be lost or out of order, so that an ACK is only a number.
    pub(super) fn is_clean(&self) -> bool {
        self.scoreboard.is_clean()
            && self.congestion.is_open()
            && self.recovery.tail_probe == TailProbe::None
            && !self.undo.is_awaiting(self.snd.una)
    }

    /// The estimate of bytes in the network: `pipe` of RFC 6675 section 2.
    pub(super) fn pipe(&self) -> u32 {
        let sent = self.snd.nxt.since(self.snd.una);
        sent.saturating_sub(self.scoreboard.sacked() + self.scoreboard.lost())
    }

    /// Starts the retransmission timer, or the timer of a tail loss probe if the scoreboard is
    /// `clean` and that is earlier (RFC 8985 section 7.2).
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

    /// Updates the scoreboard from `seg`, before SND.UNA advances to its acknowledgment.
    pub(super) fn process_blocks(
        &mut self,
        seg: &Segment<'_>,
        cx: &Cx<'_, impl EffectSink>,
    ) -> AckReport {
        let echoed = self.echoed(seg.timestamps);
        let Tcb {
            scoreboard,
            recovery,
            snd,
            congestion,
            ..
        } = self;
        let recovering = !congestion.is_open();
        let mut bbr = congestion.bbr();
        let mut info = AckInfo {
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
        let mut delivered = |range: &SentRange, rack: &mut Rack, info: &AckInfo| {
            late |= range.state == RangeState::Lost && !range.retransmitted;
            rack.delivered(range, info);
            if let Some(bbr) = &mut bbr {
                bbr.on_delivered(range, info.now);
            }
        };
        scoreboard.acked(una, |range| delivered(range, rack, &info));
        rack.on_passed(una);
        let mut report = AckReport {
            delivered: 0,
            advanced: una != snd.una,
            dsack: None,
            spurious: false,
            blocks: false,
            recovering,
        };
        if let (Options::Sack(sack), true) = (seg.options, self.rcv.sack_permitted) {
            // In ascending order: a block that an earlier ACK omitted is no reordering.
            let mut blocks = *sack;
            let sent = SackBounds {
                una,
                nxt: snd.nxt,
                ack: seg.ack,
                behind: snd.wnd_max,
            };
            report.dsack = sent.dsack(sack.blocks());
            // A segment beyond a gap is acknowledged with the last TSval before the gap (RFC 7323
            // section 4.3, case (B)), so TSecr does not show which copy arrived.
            info.echoed = None;
            for &(left, right) in blocks.sorted_from(una) {
                if sent.is_in_flight((left, right)) {
                    report.blocks = true;
                    scoreboard.sack(left, right, |range| delivered(range, rack, &info));
                }
            }
        }
        report.spurious = late;
        let moved = una.since(snd.una) + scoreboard.sacked();
        report.delivered = moved.saturating_sub(before);
        report
    }

    /// After SND.UNA has advanced: detects losses, and determines how much may be sent.
    pub(super) fn respond(
        &mut self,
        seg: &Segment<'_>,
        report: AckReport,
        cx: &mut Cx<'_, impl EffectSink>,
    ) {
        if report.dsack.is_some() {
            cx.frames.counts.dsacks_received += 1;
            self.recovery.rack.on_spurious_retransmit(self.snd.nxt);
        }
        if self.congestion.is_open() && report.recovering {
            self.recovery.rack.recovered();
        }
        self.end_tail_probe(seg, &report, cx.now);
        if self.snd.una == self.snd.max {
            return;
        }
        let (lost, wait) = self.detect(cx.now);
        let safe = report.advanced && lost == 0;
        self.recover(report.delivered, safe, cx);
        if self.timers.runs(Timer::Retransmit) {
            if report.delivered > 0 {
                self.arm(self.is_clean(), cx.now);
            }
        } else if self.snd.una != self.snd.nxt && !self.persists() {
            // Everything in flight was reported as received while the window was closed. The
            // peer may withdraw that report (RFC 2018 section 8).
            self.arm(false, cx.now);
        }
        self.arm_reordering_timer(wait);
    }

    /// Marks ranges as lost that should have arrived by now (RFC 8985 section 6.2, step 5).
    /// Returns the number of bytes, and when to check again if a range may just be late.
    fn detect(&mut self, now: Instant) -> (u32, Option<Instant>) {
        let Tcb {
            scoreboard,
            recovery,
            retransmit,
            snd,
            congestion,
            ..
        } = self;
        let many = scoreboard.sacked() > GAP_SEGMENTS * u32::from(snd.mss);
        let mending = !congestion.is_open() || snd.una.before(congestion.recover());
        let sure = many || mending;
        let window = recovery
            .rack
            .window(sure, retransmit.min_rtt, retransmit.srtt);
        let mut wait: Option<Instant> = None;
        let view = congestion.view(now, 0, u32::from(snd.mss));
        let mut bbr = congestion.bbr();
        let lost = scoreboard.mark_lost(|range| match recovery.rack.deadline(range, window) {
            Some(at) if at <= now => {
                if let Some(bbr) = &mut bbr {
                    bbr.on_lost(range, &view);
                }
                true
            }
            Some(at) => {
                wait = wait.max(Some(at));
                false
            }
            None => false,
        });
        (lost, wait)
    }

    /// Checks again at `at`, because ranges may just be late.
    fn arm_reordering_timer(&mut self, at: Option<Instant>) {
        if let Some(at) = at
            && self.timers.runs(Timer::Retransmit)
        {
            self.retransmit.expiry = Expiry::Reordering;
            self.timers.start(Timer::Retransmit, at);
        }
    }

    /// Begins a recovery if there is a new reason for it, and sets how much may be sent in it
    /// after `delivered` more bytes have arrived; `safe`: with no sign of further loss.
    fn recover(&mut self, delivered: u32, safe: bool, cx: &mut Cx<'_, impl EffectSink>) {
        let (una, mss) = (self.snd.una, u32::from(self.snd.mss));
        let is_new = self.congestion.is_open() && una.at_or_after(self.congestion.recover());
        if self.scoreboard.lost() > 0 && is_new {
            let flight = self.snd.nxt.since(una);
            // Bytes that arrived before the recovery; this acknowledgment's arrivals count in it.
            let known = self.scoreboard.sacked().saturating_sub(delivered);
            self.congestion.enter(self.snd.nxt, flight, known, mss);
            self.on_reduction(UndoCause::Loss);
            self.recovery.tail_probe = TailProbe::None;
            cx.frames.counts.sack_recoveries += 1;
        }
        let pipe = self.pipe();
        self.congestion.reduce(delivered, safe, pipe, mss);
    }

    /// The late ranges did not arrive (RFC 8985 section 6.3).
    pub(super) fn on_reordering_timeout<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        self.scoreboard.acked(self.snd.una, |_| ());
        let (_, wait) = self.detect(cx.now);
        self.recover(0, false, cx);
        self.arm(false, cx.now);
        self.arm_reordering_timer(wait);
    }

    /// There was no acknowledgment for two round trips: the last segments may be lost (RFC 8985
    /// section 7.3).
    pub(super) fn on_tail_probe_timeout<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.snd.due == Due::Nothing {
            self.snd.due = Due::TailProbe;
        }
        self.arm(false, cx.now);
    }

    /// A probe was sent, and ended at `end`.
    pub(super) const fn probed(&mut self, tail: TailProbe, end: SeqNum) {
        self.close_fast_path();
        self.recovery.tail_probe = tail;
        self.recovery.tail_probe_end = end;
    }

    /// Whether a tail loss probe is allowed: no loss is known, and no probe is in flight.
    pub(super) fn may_probe(&self) -> bool {
        self.is_clean() && self.snd.una != self.snd.nxt
    }

    /// RFC 8985 section 7.4.2.
    fn end_tail_probe(&mut self, seg: &Segment<'_>, report: &AckReport, now: Instant) {
        let end = self.recovery.tail_probe_end;
        if self.recovery.tail_probe == TailProbe::None || seg.ack.before(end) {
            return;
        }
        let again = self.recovery.tail_probe == TailProbe::Retransmit;
        if again && report.dsack.map(|(_, right)| right) != Some(end) {
            if seg.ack.after(end) {
                // The probe repaired a loss that nothing else had detected.
                let mss = u32::from(self.snd.mss);
                self.congestion.on_congestion_mark(now, self.snd.nxt, mss);
            } else if report.delivered > 0 || report.blocks {
                // The original or the probe arrived: the next acknowledgment shows which.
                return;
            }
        }
        self.recovery.tail_probe = TailProbe::None;
    }

    /// Marks all unreported data as lost, after a timeout (RFC 6298 section 5.4).
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

    /// A duplicate acknowledgment from a peer without SACK.
    pub(super) fn duplicate(&mut self, cx: &mut Cx<'_, impl EffectSink>) {
        let snd = &self.snd;
        let flight = snd.max.since(snd.una);
        let mss = u32::from(snd.mss);
        let verdict = self.congestion.on_duplicate(snd.una, snd.max, flight, mss);
        if verdict == AckAction::Resend {
            self.on_reduction(UndoCause::Loss);
            cx.frames.counts.reno_recoveries += 1;
        }
        self.apply_action(verdict);
    }

    /// Retransmits the first segment if `verdict` is [`AckAction::Resend`].
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

/// Bounds of what the blocks of an acknowledgment may report. Their edges are arbitrary numbers, so
/// each is compared as a distance from a known number.
struct SackBounds {
    /// SND.UNA after the segment.
    una: SeqNum,
    /// The first number that was never sent.
    nxt: SeqNum,
    /// SEG.ACK.
    ack: SeqNum,
    /// How far before SEG.ACK a duplicate may arrive, in bytes: the widest window so far.
    behind: u32,
}

impl SackBounds {
    /// Whether a block reports data in flight: it begins after SND.UNA, otherwise SND.UNA would
    /// be larger, and it is not empty (RFC 2018 sections 3 and 4).
    fn is_in_flight(&self, (left, right): (SeqNum, SeqNum)) -> bool {
        // The byte of a window probe may be acknowledged before it counts as sent.
        let all = self.nxt.max(self.una).since(self.una);
        let (left, right) = (left.since(self.una), right.since(self.una));
        0 < left && left < right && right <= all
    }

    /// The range that arrived twice, if the first block reports one: it is before the
    /// acknowledgment, by a window at most, or within the second block, which is in flight (RFC
    /// 2883 section 4).
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
