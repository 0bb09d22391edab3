//! What the network says of the way to the peer: ICMP errors, and how large segments may be.
//!
//! Everybody can forge ICMP errors. One counts only if it quotes a number that is in flight (RFC 5927 section 4.1); none
//! ends a connection whose handshake is complete (RFC 5927 section 5.2, RFC 5461); and one that calls segments too big
//! of whose size some have arrived must wait for a timeout to confirm it (RFC 5927 section 7.2).
//!
//! Where errors do not come through, segments of full size that time out again and again show that something is wrong
//! with their size (RFC 4821 section 7.7, RFC 8899); larger ones are tried anew after ten minutes. What is known of a
//! path is known to its connection alone.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::walk::walk;
use super::{Cx, State, Tcb};
use crate::config::Limits;
use crate::digest::NetworkError;
use crate::effect::{EffectSink, Event};
use crate::seqnum::SeqNum;
use crate::time::{Duration, Instant};

/// Packets of this size pass, whatever somebody says: the least plateau of RFC 1191 section 7 above the 68 octets of
/// RFC 791. What is forged must not cut text into crumbs.
const LEAST: u16 = 296;

/// Sizes of packets that networks have (RFC 1191 section 7), for routers that do not say theirs.
const PLATEAUS: [u16; 10] = [
    65_535, 32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, LEAST,
];

/// After how many timeouts in a row full segments are suspect (R1 of RFC 9293 section 3.8.3), and which packets are tried
/// then: BASE_PLPMTU of RFC 8899 section 5.1.2, what every host takes (RFC 791), the least.
const BASES: [(u8, u16); 3] = [(3, 1200), (6, 576), (9, LEAST)];

/// How long a smaller size is kept before a larger one is tried: PMTU_RAISE_TIMER of RFC 8899 section 5.1.1, and RFC
/// 1191 section 6.3.
const RAISE: Duration = Duration::from_secs(600);

/// Times that a SYN is sent again before an error that may pass ends the open (RFC 5461 section 4).
const PATIENCE: u8 = 3;

/// What is known of the way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub(super) struct Path {
    /// SND.UNA when it was last reported that packets do not arrive.
    trouble: Option<SeqNum>,
    /// Largest payload of a segment that both ends agreed upon.
    full: u16,
    /// The payload that segments had before the last increase.
    proven: u16,
    /// The payload that an error asked for which is not believed yet, and SND.UNA when it came.
    claimed: Option<(u16, SeqNum)>,
    /// Octets of the stream that were acknowledged when the payload last changed.
    changed_at: u64,
    /// When to try a larger payload.
    pub(super) raise_at: Instant,
}

walk!(Path, "path", { trouble, full, proven, claimed, changed_at, raise_at });

impl Path {
    pub(super) const fn new() -> Self {
        Path {
            trouble: None,
            full: 0,
            proven: 0,
            claimed: None,
            changed_at: 0,
            raise_at: Instant::NEVER,
        }
    }

    /// Both ends agreed upon `mss`.
    pub(super) const fn agree(&mut self, mss: u16) {
        self.full = mss;
        self.proven = mss;
    }

    /// The peer was heard: what was reported before is over.
    pub(super) const fn forget_trouble(&mut self) {
        self.trouble = None;
    }
}

impl Tcb {
    /// Somebody on the way, or the peer's host, reports `error` about the segment at `seq`. Returns whether it counts.
    pub fn network_error<S: EffectSink>(
        &mut self,
        seq: SeqNum,
        error: NetworkError,
        cx: &mut Cx<'_, S>,
    ) -> bool {
        let in_flight = seq.at_or_after(self.snd.una) && seq.before(self.snd.max);
        // A question to an idle peer stands one before (RFC 1122 section 4.2.3.6).
        let asked = self.keepalive.asks() && seq + 1 == self.snd.una;
        if !(in_flight || asked) || matches!(self.state, State::Closed | State::TimeWait) {
            return false;
        }
        let opens = !self.state.is_synchronized();
        match error {
            NetworkError::TooBig { mtu } => return !opens && in_flight && self.too_big(mtu, cx),
            NetworkError::Refused if opens => self.cannot_open(Event::Refused, cx),
            NetworkError::Prohibited if opens => self.cannot_open(Event::Unreachable, cx),
            // RFC 1122 section 4.2.3.9: conditions that may pass must not abort the connection.
            NetworkError::Unreachable | NetworkError::Refused | NetworkError::Prohibited => {
                self.path.trouble = Some(self.snd.una);
                if self.state == State::SynSent && self.retransmit.retries >= PATIENCE {
                    self.cannot_open(Event::Unreachable, cx);
                }
            }
        }
        true
    }

    /// The handshake cannot be completed.
    fn cannot_open<S: EffectSink>(&mut self, event: Event, cx: &mut Cx<'_, S>) {
        if self.passive {
            // Back to LISTEN, which the connection was never in for its user.
            self.enter(State::Closed);
        } else {
            self.fail(event, cx);
        }
    }

    /// How to tell that nobody answered: if it was reported why since the last answer, by that.
    pub(super) fn silence(&self) -> Event {
        if self.path.trouble == Some(self.snd.una) {
            Event::Unreachable
        } else {
            Event::TimedOut
        }
    }

    /// A packet was larger than the way takes (RFC 1191).
    fn too_big<S: EffectSink>(&mut self, mtu: u16, cx: &Cx<'_, S>) -> bool {
        let size = self.snd.mss + self.overhead();
        let mtu = if mtu == 0 {
            // A router from before RFC 1191: the next plateau.
            let next = PLATEAUS.iter().find(|plateau| **plateau < size);
            *next.unwrap_or(&LEAST)
        } else {
            mtu.max(LEAST)
        };
        if mtu >= size {
            return false;
        }
        let mss = mtu - self.overhead();
        if self.has_arrived() {
            self.path.claimed = Some((mss, self.snd.una));
        } else {
            self.shrink(mss, cx.now);
            // Nothing is wrong but the size: what is in flight is cut anew (RFC 1191 section 6.5).
            self.snd.small = self.snd.una;
            self.lose_all();
            self.retransmit.on_resent();
        }
        true
    }

    /// Whether segments of this size may have arrived: so many octets have.
    fn has_arrived(&self) -> bool {
        self.snd.una_offset - self.path.changed_at >= u64::from(self.snd.mss)
    }

    /// Octets of a packet before its payload.
    const fn overhead(&self) -> u16 {
        Limits::HEADERS + if self.rcv.timestamps { 12 } else { 0 }
    }

    fn shrink(&mut self, mss: u16, now: Instant) {
        self.resize(mss);
        self.path.raise_at = now + RAISE;
    }

    fn resize(&mut self, mss: u16) {
        self.leave_road();
        self.snd.mss = mss;
        self.path.claimed = None;
        self.path.changed_at = self.snd.una_offset;
    }

    /// The retransmission timer has expired: is the size to blame?
    pub(super) fn suspect_size(&mut self, now: Instant) {
        let snd = &self.snd;
        let mss = snd.mss;
        let sent = snd.max.since(snd.una);
        if snd.data_from(snd.una).min(sent) < u32::from(mss) {
            return;
        }
        if let Some((claimed, una)) = self.path.claimed
            && una == snd.una
            && claimed < mss
        {
            return self.shrink(claimed, now);
        }
        if mss > self.path.proven && !self.has_arrived() {
            // What was tried after a while does not pass.
            return self.shrink(self.path.proven, now);
        }
        let tried = BASES
            .iter()
            .find(|(timeouts, _)| *timeouts == self.retransmit.retries);
        if let Some((_, base)) = tried
            && base - self.overhead() < mss
        {
            self.shrink(base - self.overhead(), now);
        }
    }

    /// It is time to see whether larger segments pass.
    #[cold]
    pub(super) fn try_larger(&mut self) {
        self.path.raise_at = Instant::NEVER;
        self.path.proven = self.snd.mss;
        self.resize(self.path.full);
    }
}
