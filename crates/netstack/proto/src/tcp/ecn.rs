//! Explicit congestion notification (RFC 3168): negotiated in the handshake. Received marks are
//! echoed until the peer reports that it has reduced its window; an echo reduces our window once a
//! round trip.

use super::Tcb;
use super::receive_space::AckContents;
use crate::config::{Ecn, Limits};
use crate::log::request::{Flags, Segment};
use crate::time::Instant;

/// An ECN-setup SYN (RFC 3168 section 6.1.1).
const SETUP: Flags = Flags::ECE.with(Flags::CWR);

impl Tcb {
    /// The ECN bits of our SYN or SYN-ACK. A retransmitted SYN has none: a middlebox may drop SYNs
    /// with them (section 6.1.1.1).
    pub(super) fn ecn_setup(&self, answers: bool, limits: &Limits) -> Flags {
        if answers && self.snd.ecn {
            Flags::ECE
        } else if !answers && limits.tcp.ecn == Ecn::Request && !self.snd.syn_lost {
            SETUP
        } else {
            Flags(0)
        }
    }

    /// Reads from the SYN, or the SYN-ACK that answers ours, whether the peer supports ECN.
    pub(super) fn agree_on_ecn(&mut self, syn: &Segment<'_>, limits: &Limits) {
        let said = Flags(syn.flags.0 & SETUP.0);
        self.snd.ecn = match limits.tcp.ecn {
            Ecn::Never => false,
            // Both bits in an answer come from a host that reflects bits it does not know.
            Ecn::Request if syn.flags.has(Flags::ACK) => said == Flags::ECE,
            _ => said == SETUP && !syn.flags.has(Flags::ACK),
        };
    }

    /// Whether `seg` reports congestion on the path from us to the peer.
    pub(super) fn echoes_congestion(&self, seg: &Segment<'_>) -> bool {
        self.snd.ecn && seg.flags.has(Flags::ECE) && !seg.flags.has(Flags::SYN)
    }

    /// The peer reported congestion: reduces the window as after a loss, once for the data that
    /// was in flight (section 6.1.2).
    pub(super) fn slow_down(&mut self, now: Instant) {
        let snd = &mut self.snd;
        if self.congestion.is_open() && snd.una.at_or_after(self.congestion.recover()) {
            self.congestion
                .on_congestion_mark(now, snd.nxt, u32::from(snd.mss));
            snd.cwr = true;
        }
    }

    /// Records the congestion marks of the path from the peer to us (section 6.1.3).
    pub(super) fn record_ce_mark(&mut self, seg: &Segment<'_>) {
        if !self.snd.ecn {
            return;
        }
        if seg.flags.has(Flags::CWR) {
            self.rcv.ack_contents.remove(AckContents::CONGESTION);
        }
        if seg.ce && seg.len > 0 {
            self.rcv.ack_contents.add(AckContents::CONGESTION);
        }
    }
}
