//! Questions to a peer that says nothing (RFC 1122 section 4.2.3.6, RFC 9293 section 3.8.4).
//!
//! The short road notes nothing for them. When the timer expires, where the streams stand tells whether something has
//! come since it was started; it is started eight times while the connection is idle, so what came on that
//! road counts as heard an eighth of that time late, at most.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::retransmit::Timer;
use super::snd::Due;
use super::walk::walk;
use super::{Cx, Tcb};
use crate::config;
use crate::effect::EffectSink;
use crate::seqnum::SeqNum;
use crate::time::Instant;

/// What was last heard of the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub(super) struct Keepalive {
    /// When, as far as it was noticed.
    heard_at: Instant,
    /// SND.UNA and RCV.NXT when the timer was last looked at.
    stood: (SeqNum, SeqNum),
    /// Questions since then.
    asked: u8,
}

walk!(Keepalive, "keepalive", { heard_at, stood, asked });

impl Keepalive {
    /// The peer said something.
    const fn hear(&mut self, now: Instant) {
        self.heard_at = now;
        self.asked = 0;
    }

    /// Whether a question is out that nobody has answered.
    pub(super) const fn asks(&self) -> bool {
        self.asked > 0
    }
}

impl Tcb {
    /// The application wants questions, none, or others than before.
    pub(super) fn begin_keepalive<S: EffectSink>(&mut self, cx: &Cx<'_, S>) {
        self.timers.stop(Timer::Keepalive);
        self.keepalive.hear(cx.now);
        if let Some(wish) = self.settings.keepalive {
            self.watch_peer(&wish, cx);
        }
    }

    /// The peer said something that moves nothing by which [`Tcb::on_keepalive_timeout`] would know, so that what the
    /// network said before is over.
    pub(super) fn hear(&mut self, now: Instant) {
        self.keepalive.hear(now);
        self.path.forget_trouble();
    }

    /// Looks again when the peer may have been silent for long enough, or to see whether it was.
    fn watch_peer<S: EffectSink>(&mut self, wish: &config::Keepalive, cx: &Cx<'_, S>) {
        self.keepalive.stood = (self.snd.una, self.rcv.nxt);
        let soon = cx.now + wish.idle.divided(8);
        let at = soon.min(self.keepalive.heard_at + wish.idle);
        self.timers.start(Timer::Keepalive, at);
    }

    /// Time to look whether the peer has said something.
    pub(super) fn on_keepalive_timeout<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        let Some(wish) = self.settings.keepalive else {
            return;
        };
        if self.keepalive.stood != (self.snd.una, self.rcv.nxt) {
            self.hear(cx.now);
        }
        let silence = cx.now.since(self.keepalive.heard_at);
        if silence < wish.idle {
            return self.watch_peer(&wish, cx);
        }
        // What is in flight, or waits for a window, asks already.
        let asks_anyway = self.snd.una != self.snd.max || self.snd.nxt != self.snd.end;
        if asks_anyway || !self.state.carries_text() {
            return self
                .timers
                .start(Timer::Keepalive, cx.now + wish.idle.divided(8));
        }
        let asked = self.keepalive.asked;
        let most = self.settings.user_timeout;
        let too_long = asked > 0 && most.is_some_and(|most| silence >= wish.idle + most);
        if asked >= wish.probes.get() || too_long {
            let event = self.silence();
            self.reset();
            return self.tell(event, cx);
        }
        self.keepalive.asked += 1;
        self.snd.due = Due::Keepalive;
        self.timers.start(Timer::Keepalive, cx.now + wish.interval);
    }
}
