//! The path MTU (RFC 1191, RFC 8201), and other ICMP errors about a connection.
//!
//! Anyone can forge ICMP errors. An error counts only if it quotes a number that is in flight
//! (RFC 5927 section 4.1). None closes a connection whose handshake is complete (RFC 5927
//! section 5.2, RFC 5461). If segments of a size have been acknowledged, an error that reports
//! this size as too big counts only after a timeout confirms it (RFC 5927 section 7.2).
//!
//! Where errors are filtered, repeated timeouts of full segments show that their size is too large
//! (RFC 4821 section 7.7, RFC 8899); larger ones are tried again after ten minutes. The path MTU is
//! stored per connection; an accepted error also informs the other connections to the peer.

use super::fields::fields;
use super::{Cx, State, Tcb};
use crate::config::Limits;
use crate::ip::pmtu::LEAST_V4;
use crate::log::effect::{ConnectionEvent, Effect, EffectSink};
use crate::log::request::NetworkError;
use crate::seqnum::SeqNum;
use crate::time::{Duration, Instant};

/// Packets of this size always pass. A forged error must not reduce segments further.
const MIN_PACKET: u16 = LEAST_V4;
/// The same for IPv6, whose networks all take packets of this size (RFC 8200 section 5).
const MIN_PACKET_V6: u16 = 1280;

/// Common sizes of packets in networks (RFC 1191 section 7), for routers that do not report theirs.
const PLATEAUS: [u16; 10] = [
    65_535, 32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, MIN_PACKET,
];

/// The number of consecutive timeouts after which full segments are suspect (R1 of RFC 9293
/// section 3.8.3), and the packet size tried then: BASE_PLPMTU of RFC 8899 section 5.1.2, the
/// size that every host accepts (RFC 791), the minimum.
const BASES: [(u8, u16); 3] = [(3, 1200), (6, 576), (9, MIN_PACKET)];

/// How long a smaller size is kept before a larger one is tried: PMTU_RAISE_TIMER of RFC 8899
/// section 5.1.1, and RFC 1191 section 6.3.
const RAISE_INTERVAL: Duration = Duration::from_secs(600);

/// Retransmissions of a SYN before a soft error fails the open (RFC 5461 section 4).
const MAX_SYN_RETRIES_AFTER_ERROR: u8 = 3;

/// What we know about the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathMtu {
    /// SND.UNA at the latest report that packets do not arrive.
    soft_error: Option<SeqNum>,
    /// Largest payload of a segment that both ends negotiated.
    full: u16,
    /// The payload that segments had before the last increase.
    proven: u16,
    /// Packet size in bytes that the path takes, as known before both ends negotiated.
    path: u16,
    /// The payload size from an error that is not confirmed yet, and SND.UNA when it arrived.
    claimed: Option<(u16, SeqNum)>,
    /// Bytes of the stream that were acknowledged when the payload last changed.
    changed_at: u64,
    /// When to try a larger payload.
    pub(super) raise_at: Instant,
}

fields!(PathMtu, "pmtu", { soft_error, full, proven, path, claimed, changed_at, raise_at });

impl PathMtu {
    pub(super) const fn new() -> Self {
        PathMtu {
            soft_error: None,
            full: 0,
            proven: 0,
            path: u16::MAX,
            claimed: None,
            changed_at: 0,
            raise_at: Instant::NEVER,
        }
    }

    /// Sets the negotiated MSS.
    pub(super) const fn set_negotiated(&mut self, mss: u16) {
        self.full = mss;
        self.proven = mss;
    }

    /// Whether the path MTU was known before both ends negotiated.
    pub(super) const fn is_path_known(&self) -> bool {
        self.path != u16::MAX
    }

    /// The peer responded: clears the reported error.
    pub(super) const fn clear_soft_error(&mut self) {
        self.soft_error = None;
    }
}

impl Tcb {
    /// A router or the peer reports `error` about the segment at `seq`. Returns whether it counts.
    pub fn network_error<S: EffectSink>(
        &mut self,
        seq: SeqNum,
        error: NetworkError,
        cx: &mut Cx<'_, S>,
    ) -> bool {
        let in_flight = seq.at_or_after(self.snd.una) && seq.before(self.snd.max);
        // A keepalive probe has the number before SND.UNA (RFC 1122 section 4.2.3.6).
        let asked = self.keepalive.is_probing() && seq + 1 == self.snd.una;
        if !(in_flight || asked) || matches!(self.state, State::Closed | State::TimeWait) {
            return false;
        }
        let opens = !self.state.is_synchronized();
        match error {
            NetworkError::TooBig { mtu } => {
                let before = self.snd.mss;
                let counts = !opens && in_flight && self.on_packet_too_big(mtu, cx);
                if self.snd.mss < before {
                    self.tell_path(cx);
                }
                return counts;
            }
            NetworkError::Refused if opens => self.fail_open(ConnectionEvent::Refused, cx),
            NetworkError::Prohibited if opens => self.fail_open(ConnectionEvent::Unreachable, cx),
            // RFC 1122 section 4.2.3.9: conditions that may pass must not abort the connection.
            NetworkError::Unreachable | NetworkError::Refused | NetworkError::Prohibited => {
                self.pmtu.soft_error = Some(self.snd.una);
                if self.state == State::SynSent
                    && self.retransmit.retries >= MAX_SYN_RETRIES_AFTER_ERROR
                {
                    self.fail_open(ConnectionEvent::Unreachable, cx);
                }
            }
        }
        true
    }

    /// The handshake cannot be completed.
    fn fail_open<S: EffectSink>(&mut self, event: ConnectionEvent, cx: &mut Cx<'_, S>) {
        if self.passive {
            // Back to LISTEN: the application never saw this connection.
            self.enter(State::Closed);
        } else {
            self.fail_with(event, cx);
        }
    }

    /// The event that reports a timeout: the error that the network reported since the last
    /// response, if there was one.
    pub(super) fn timeout_event(&self) -> ConnectionEvent {
        if self.pmtu.soft_error == Some(self.snd.una) {
            ConnectionEvent::Unreachable
        } else {
            ConnectionEvent::TimedOut
        }
    }

    /// Other traffic to the peer showed that packets of more than `mtu` bytes do not get through.
    pub fn path_mtu<S: EffectSink>(&mut self, mtu: u16, cx: &Cx<'_, S>) {
        if self.state.is_synchronized() {
            self.on_packet_too_big(mtu, cx);
            return;
        }
        self.pmtu.path = mtu;
        if self.state == State::SynReceived {
            self.fit_path(cx.now);
        }
    }

    /// Both ends have negotiated: limits segments to the known path MTU.
    #[cold]
    pub(super) fn fit_path(&mut self, now: Instant) {
        let mtu = self.pmtu.path.max(self.min_packet());
        if mtu < self.snd.mss + self.overhead() {
            self.shrink(mtu - self.overhead(), now);
        }
    }

    /// A packet was larger than the path MTU (RFC 1191).
    fn on_packet_too_big<S: EffectSink>(&mut self, mtu: u16, cx: &Cx<'_, S>) -> bool {
        let size = self.snd.mss + self.overhead();
        let mtu = if mtu == 0 {
            // A router from before RFC 1191: the next plateau.
            let next = PLATEAUS.iter().find(|plateau| **plateau < size);
            (*next.unwrap_or(&MIN_PACKET)).max(self.min_packet())
        } else {
            mtu.max(self.min_packet())
        };
        if mtu >= size {
            return false;
        }
        let mss = mtu - self.overhead();
        if self.has_arrived() {
            self.pmtu.claimed = Some((mss, self.snd.una));
        } else {
            self.shrink(mss, cx.now);
            // Data in flight is cut into smaller segments (RFC 1191 section 6.5).
            self.mark_all_lost();
            self.retransmit.on_resent();
        }
        true
    }

    /// Informs the other senders to the peer of the path MTU (RFC 8201 section 5.2).
    fn tell_path<S: EffectSink>(&self, cx: &mut Cx<'_, S>) {
        let (remote, mtu) = (
            self.common.flow.remote.address,
            self.snd.mss + self.overhead(),
        );
        cx.out.push(Effect::PathMtu { remote, mtu });
    }

    /// Whether segments of this size may have arrived, by the number of acknowledged bytes.
    fn has_arrived(&self) -> bool {
        self.snd.una_offset - self.pmtu.changed_at >= u64::from(self.snd.mss)
    }

    /// Bytes of a packet before its payload.
    const fn overhead(&self) -> u16 {
        let headers = match self.common.flow.remote.address.is_v4() {
            true => Limits::HEADERS,
            false => Limits::HEADERS_V6,
        };
        headers + if self.rcv.timestamps { 12 } else { 0 }
    }

    /// Packets of this size always pass.
    const fn min_packet(&self) -> u16 {
        match self.common.flow.remote.address.is_v4() {
            true => MIN_PACKET,
            false => MIN_PACKET_V6,
        }
    }

    /// No segment has more payload than `most` from now on, even if the path takes more.
    pub(super) fn bound_segments(&mut self, most: u16) {
        if !self.state.is_synchronized() {
            // The peer's MSS is not known yet: the call is repeated when it is.
            return;
        }
        let pmtu = &mut self.pmtu;
        pmtu.full = pmtu.full.min(most);
        pmtu.proven = pmtu.proven.min(most);
        if self.snd.mss > most {
            self.resize(most);
        }
    }

    fn shrink(&mut self, mss: u16, now: Instant) {
        self.resize(mss);
        self.pmtu.raise_at = now + RAISE_INTERVAL;
    }

    fn resize(&mut self, mss: u16) {
        self.close_fast_path();
        self.snd.mss = mss;
        self.pmtu.claimed = None;
        self.pmtu.changed_at = self.snd.una_offset;
    }

    /// The retransmission timer has expired: determines whether the segment size may be the reason.
    pub(super) fn detect_black_hole<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        let now = cx.now;
        let snd = &self.snd;
        let mss = snd.mss;
        let sent = snd.max.since(snd.una);
        if snd.data_from(snd.una).min(sent) < u32::from(mss) {
            return;
        }
        if let Some((claimed, una)) = self.pmtu.claimed
            && una == snd.una
            && claimed < mss
        {
            self.shrink(claimed, now);
            return self.tell_path(cx);
        }
        if mss > self.pmtu.proven && !self.has_arrived() {
            // The larger size, which was only a trial, does not pass.
            return self.shrink(self.pmtu.proven, now);
        }
        let tried = BASES
            .iter()
            .find(|(timeouts, _)| *timeouts == self.retransmit.retries);
        if let Some((_, base)) = tried {
            let base = (*base).max(self.min_packet()) - self.overhead();
            if base < mss {
                self.shrink(base, now);
            }
        }
    }

    /// Tries larger segments.
    #[cold]
    pub(super) fn probe_larger(&mut self) {
        self.pmtu.raise_at = Instant::NEVER;
        self.pmtu.proven = self.snd.mss;
        self.resize(self.pmtu.full);
    }
}
