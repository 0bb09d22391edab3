//! Packets other than segments: echo requests, fragments, and ICMP errors that we report.

use crate::host::IpHost;
use crate::ip::fragment::cut_frame;
use crate::ip::neighbor::Cause;
use crate::ip::reassembly::Reassembled;
use crate::ip::{fragment, whole};
use crate::packet as wire;
use crate::packet::flow::Address;
use crate::packet::{IcmpError, Packet};
use crate::time::Instant;

/// The part of a packet that the owner of a host handles.
#[derive(Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing: it is done and counted.
    Nothing,
    /// The frame of a datagram of which all fragments are there now.
    Whole(Vec<u8>),
    /// A reply to an echo request of a user.
    EchoReply,
    /// A router reported that a packet of `len` bytes to `remote` exceeds `mtu`.
    TooBig {
        /// Where the packet went.
        remote: Address,
        /// Its bytes.
        len: u16,
        /// Bytes that pass.
        mtu: u16,
    },
    /// An ICMP error about a datagram of ours.
    DatagramError,
    /// Its EtherType, ICMP type or content is not handled here. It may have a VLAN tag.
    Unknown,
}

impl IpHost {
    /// Handles a packet that is no segment and no datagram. `broadcast`: its frame was sent to all
    /// hosts, or a group of them.
    pub fn packet(&mut self, now: Instant, packet: &Packet, broadcast: bool, frame: &[u8]) -> Left {
        // A packet to a single host in a frame to all hosts is a mistake, and dropped (RFC 1122
        // section 3.3.6).
        let ours = |dst| self.is_ours(dst) && !broadcast;
        match *packet {
            Packet::EchoRequest { dst } if ours(dst) => self.echo(now, frame, dst),
            Packet::EchoReply { dst } if ours(dst) => {
                self.stats.echo_replies += 1;
                return Left::EchoReply;
            }
            // One of IPv6 to a group is answered, too (RFC 4443 section 4.2).
            Packet::EchoRequest { dst } if !dst.is_v4() && self.is_to_all(dst, broadcast) => {
                self.echo(now, frame, dst);
            }
            Packet::Fragment { dst } if ours(dst) || self.is_to_all(dst, broadcast) => {
                self.stats.fragments += 1;
                if !self.may_be_reassembled(now, frame) {
                    self.stats.bad_fragments += 1;
                } else if let Some(whole) = self.fragment(now, frame) {
                    return Left::Whole(whole);
                }
            }
            Packet::OtherProtocol { dst } if dst.is_v4() && broadcast => {
                self.group_query(now, frame);
            }
            Packet::OtherProtocol { dst } if ours(dst) => {
                self.stats.unknown += 1;
                self.report(now, frame, IcmpError::ProtocolUnreachable);
            }
            Packet::Problem { dst, problem } if ours(dst) || self.is_to_all(dst, broadcast) => {
                self.stats.unknown += 1;
                // Of the hosts that share the addresses, one sees a segment or datagram; all or the
                // first see others.
                let upper = wire::ipv6::upper_header(frame);
                let is_alone = matches!(upper, Some((wire::ipv6::TCP | wire::UDP, _, false)));
                if is_alone || self.is_first {
                    self.report(now, frame, IcmpError::Problem(problem));
                }
            }
            Packet::TooBig {
                dst,
                sent: (local, remote),
                len,
                mtu,
            } if ours(dst) && self.is_ours(local) => {
                self.stats.network_errors += 1;
                return Left::TooBig { remote, len, mtu };
            }
            Packet::Link { dst }
                if ours(dst)
                    || self.is_to_all(dst, broadcast)
                    || broadcast && self.site.answers_at(dst) =>
            {
                self.link_message(now, frame);
            }
            Packet::UdpError { dst, .. } if ours(dst) => return Left::DatagramError,
            Packet::Unknown => return Left::Unknown,
            Packet::Arp(_) => self.stats.unknown += 1,
            _ => self.stats.not_ours += 1,
        }
        Left::Nothing
    }

    /// Answers an echo request to `dst`, in fragments if need be (RFC 1122 section 3.2.2.6).
    fn echo(&mut self, now: Instant, frame: &[u8], dst: Address) {
        let mac = self.mac;
        let sender = wire::ends(frame).map_or(Address::UNSPECIFIED, |(sender, _)| sender);
        if sender.is_unspecified() {
            // No packet goes there (RFC 4291 section 2.5.2).
            self.stats.martians += 1;
            return;
        }
        let protocol = if dst.is_v4() {
            wire::ICMP
        } else {
            wire::ICMPV6
        };
        let ident = self.next_ident(sender, protocol);
        let reply = if dst.is_v4() {
            wire::echo_reply(frame, mac, ident)
        } else {
            self.own_source(sender, dst)
                .and_then(|source| wire::icmpv6::echo_reply(frame, mac, source))
        };
        let Some(reply) = reply else {
            self.stats.malformed += 1;
            return;
        };
        self.stats.echo += 1;
        let frames = cut_frame(reply, self.path_mtu(sender), ident);
        self.remember_sent(now, sender, frames.iter().map(Vec::len).max());
        self.send_frames(now, Cause::Answer, sender, frames);
    }

    /// The source address of an answer to a packet for `dst`: `dst` itself, unless it is a group.
    fn own_source(&self, sender: Address, dst: Address) -> Option<Address> {
        match self.is_ours(dst) {
            true => Some(dst),
            false => self.site.source(sender),
        }
    }

    /// Whether a fragment can be a part of a datagram by itself. If it cannot, the host reports an
    /// error to its sender where RFC 8200 section 4.5 demands it.
    fn may_be_reassembled(&mut self, now: Instant, frame: &[u8]) -> bool {
        if !wire::is_ipv6(frame) {
            return true;
        }
        let problem = wire::ipv6::fragment_problem(frame);
        // All hosts that share the addresses see fragments.
        if let Some(problem) = problem.filter(|_| self.is_first) {
            self.report(now, frame, IcmpError::Problem(problem));
        }
        problem.is_none()
    }

    /// Adds a fragment. Returns the frame of the whole datagram, if this was the last fragment
    /// missing.
    fn fragment(&mut self, now: Instant, frame: &[u8]) -> Option<Vec<u8>> {
        match self.reassembly.insert(&fragment(frame)?, now) {
            Reassembled::Complete(datagram) => {
                let bytes = whole(&datagram)?;
                // Neighbours must not say anything in fragments (RFC 6980 section 5).
                if wire::ndp::is_message(&bytes) {
                    self.stats.bad_fragments += 1;
                    return None;
                }
                self.stats.reassembled += 1;
                Some(bytes)
            }
            Reassembled::Incomplete | Reassembled::Duplicate => None,
            _ => {
                self.stats.bad_fragments += 1;
                None
            }
        }
    }

    /// Discards datagrams whose fragments take too long, and reports that to their senders.
    pub(super) fn give_up_fragments(&mut self, now: Instant) {
        self.reassembly.expire(now);
        for expired in self.reassembly.take_expired() {
            self.stats.reassembly_timeouts += 1;
            let to = wire::ends(&expired.quoted).map(|(_, to)| to);
            let ours = to.is_some_and(|to| self.is_ours(to));
            if self.is_first && ours {
                self.report(now, &expired.quoted, IcmpError::ReassemblyTime);
            }
        }
    }

    /// Reports to the sender of a packet that was addressed to us alone why it is not served.
    pub fn report(&mut self, now: Instant, frame: &[u8], report: IcmpError) {
        let Some((sender, to)) = wire::ends(frame) else {
            return;
        };
        let mac = self.mac;
        let error = if sender.is_v4() {
            let ident = self.next_ident(sender, wire::ICMP);
            let mtu = self.mtu;
            self.own_source(sender, to)
                .and_then(|source| wire::error_about(frame, report, mac, source, ident, mtu))
        } else {
            self.own_source(sender, to)
                .and_then(|source| wire::icmpv6::error_about(frame, report, mac, source))
        };
        let Some(error) = error else {
            return;
        };
        // What we send to ourselves is no stranger's doing.
        let is_looped = self.is_looping && self.site.is_ourselves(sender);
        if is_looped || self.error_limit.admits(now, sender, self.error_rate) {
            self.stats.reports += 1;
            self.send_frames(now, Cause::Answer, sender, vec![error]);
        } else {
            self.stats.reports_limited += 1;
        }
    }
}
