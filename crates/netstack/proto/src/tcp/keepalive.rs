//! Keepalive (RFC 1122 section 4.2.3.6, RFC 9293 section 3.8.4).
//!
//! The fast path records nothing for it. When the timer expires, the positions of the streams show
//! whether anything was received since the timer was started. The timer is started eight times per
//! idle period, so a segment on the fast path is noticed at most an eighth of that period late.

use super::fields::fields;
use super::retransmit::Timer;
use super::send_space::Due;
use super::{Cx, Tcb};
use crate::config;
use crate::log::effect::EffectSink;
use crate::seqnum::SeqNum;
use crate::time::Instant;

/// The keepalive state of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeepaliveTimer {
    /// When the peer was last known to respond.
    last_response: Instant,
    /// SND.UNA and RCV.NXT when the timer last expired.
    last_positions: (SeqNum, SeqNum),
    /// Probes since then.
    probes_sent: u8,
}

fields!(KeepaliveTimer, "keepalive", { last_response, last_positions, probes_sent });

impl KeepaliveTimer {
    /// The peer responded.
    const fn on_response(&mut self, now: Instant) {
        self.last_response = now;
        self.probes_sent = 0;
    }

    /// Whether a probe is unanswered.
    pub(super) const fn is_probing(&self) -> bool {
        self.probes_sent > 0
    }
}

impl Tcb {
    /// The application turned keepalive on or off, or changed its times.
    pub(super) fn begin_keepalive<S: EffectSink>(&mut self, cx: &Cx<'_, S>) {
        self.timers.stop(Timer::Keepalive);
        self.keepalive.on_response(cx.now);
        if let Some(settings) = self.settings.keepalive {
            self.schedule_keepalive(&settings, cx);
        }
    }

    /// The peer responded without moving a position that [`Tcb::on_keepalive_timeout`] compares;
    /// this also clears a reported error.
    pub(super) fn on_peer_response(&mut self, now: Instant) {
        self.keepalive.on_response(now);
        self.pmtu.clear_soft_error();
    }

    /// Schedules the next check: when the peer may have been silent for long enough, or earlier
    /// to see whether it responded.
    fn schedule_keepalive<S: EffectSink>(&mut self, settings: &config::Keepalive, cx: &Cx<'_, S>) {
        self.keepalive.last_positions = (self.snd.una, self.rcv.nxt);
        let soon = cx.now + settings.idle.divided(8);
        let at = soon.min(self.keepalive.last_response + settings.idle);
        self.timers.start(Timer::Keepalive, at);
    }

    /// Checks whether the peer has responded, and sends a probe if it has not for long enough.
    pub(super) fn on_keepalive_timeout<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        let Some(settings) = self.settings.keepalive else {
            return;
        };
        if self.keepalive.last_positions != (self.snd.una, self.rcv.nxt) {
            self.on_peer_response(cx.now);
        }
        let silence = cx.now.since(self.keepalive.last_response);
        if silence < settings.idle {
            return self.schedule_keepalive(&settings, cx);
        }
        // Data in flight, or a window probe, already demands a response.
        let asks_anyway = self.snd.una != self.snd.max || self.snd.nxt != self.snd.end;
        if asks_anyway || !self.state.carries_data() {
            return self
                .timers
                .start(Timer::Keepalive, cx.now + settings.idle.divided(8));
        }
        let asked = self.keepalive.probes_sent;
        let most = self.settings.user_timeout;
        let too_long = asked > 0 && most.is_some_and(|most| silence >= settings.idle + most);
        if asked >= settings.probes.get() || too_long {
            cx.frames.counts.timed_out += 1;
            let event = self.timeout_event();
            self.reset();
            return self.notify(event, cx);
        }
        self.keepalive.probes_sent += 1;
        self.snd.due = Due::Keepalive;
        self.timers
            .start(Timer::Keepalive, cx.now + settings.interval);
    }
}
