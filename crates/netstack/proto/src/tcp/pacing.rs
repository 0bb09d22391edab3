//! Pacing: BBR (draft-ietf-ccwg-bbr-06) sends a quantum at a time, at the measured rate.
//!
//! The next quantum leaves at a deadline like any other. Times come from the log, so each replica
//! paces equally.

use super::retransmit::Timer;
use super::scoreboard::{RangeState, SentRange};
use super::{Cx, Tcb};
use crate::log::effect::EffectSink;
use crate::time::Instant;

impl Tcb {
    /// The handshake is complete, or the algorithm has changed.
    #[cold]
    pub(super) fn begin_pacing(&mut self, now: Instant) {
        let (mss, has_sack) = (u32::from(self.snd.mss), self.rcv.sack_permitted);
        self.congestion
            .begin_pacing(now, self.retransmit.srtt, mss, has_sack);
    }

    /// Whether BBR looks at each acknowledgment: data is in flight.
    #[inline]
    pub(super) fn is_measured(&self) -> bool {
        self.congestion.is_paced() && self.snd.una != self.snd.nxt
    }

    /// An acknowledgment was processed.
    #[cold]
    pub(super) fn update_pacing(&mut self, now: Instant) {
        let (una, in_flight) = (self.snd.una, self.pipe());
        let mss = u32::from(self.snd.mss);
        self.congestion.set_by_bbr(una, now, in_flight, mss);
    }

    /// Sends what windows and rate allow, and waits for the next quantum.
    #[cold]
    pub(super) fn send_paced<S: EffectSink>(&mut self, room: u32, cx: &mut Cx<'_, S>) -> bool {
        self.before_paced_send(cx.now);
        let is_blocked = self.send_payload(room, cx);
        self.after_paced_send(cx.now);
        is_blocked
    }

    /// Bytes that may be sent at `now` for the sake of the pacing rate.
    #[inline]
    pub(super) fn allowance(&mut self, now: Instant) -> u32 {
        self.congestion
            .bbr()
            .map_or(u32::MAX, |bbr| bbr.allowance(now))
    }

    /// There may be something to send.
    fn before_paced_send(&mut self, now: Instant) {
        let view = self
            .congestion
            .view(now, self.pipe(), u32::from(self.snd.mss));
        if let Some(bbr) = self.congestion.bbr() {
            self.congestion.cwnd = bbr.before_send(&view);
        }
    }

    /// `len` bytes were sent.
    #[cold]
    pub(super) fn count_paced(&mut self, len: u32, now: Instant) {
        // BBR looks at the acknowledgment.
        self.close_fast_path();
        let in_flight = self.pipe();
        let scoreboard = &self.scoreboard;
        if let Some(bbr) = self.congestion.bbr() {
            bbr.on_sent(now, len, in_flight, || {
                let ranges = scoreboard.ranges();
                let unknown = ranges.filter(|range| range.state != RangeState::Sacked);
                let sent_at = unknown.map(|range| range.sent_at);
                sent_at.min().unwrap_or(now)
            });
        }
    }

    /// A timeout: all data in flight counts as lost.
    pub(super) fn count_all_lost(&mut self, now: Instant) {
        let view = self.congestion.view(now, 0, u32::from(self.snd.mss));
        let una = self.snd.una;
        if let Some(bbr) = self.congestion.bbr() {
            let ranges = self.scoreboard.ranges();
            let in_flight =
                |range: &&SentRange| range.state == RangeState::InFlight && range.end.after(una);
            ranges
                .filter(in_flight)
                .for_each(|range| bbr.on_lost(range, &view));
        }
    }

    /// As much was sent as the windows and the rate allow: waits for the next quantum.
    fn after_paced_send(&mut self, now: Instant) {
        let mss = u32::from(self.snd.mss);
        let rest = self.snd.nxt != self.snd.end || self.scoreboard.lost() > 0;
        let is_full = self.congestion.allowed(mss).saturating_sub(self.pipe()) < mss;
        let next = self
            .congestion
            .bbr()
            .and_then(|bbr| bbr.after_send(now, rest, is_full));
        match next {
            Some(at) if self.allowance(now) < mss => self.timers.start(Timer::Pace, at),
            _ => self.timers.stop(Timer::Pace),
        }
    }
}
