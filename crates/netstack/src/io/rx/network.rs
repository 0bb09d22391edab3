//! Packets other than segments in the receive pump: echo requests, fragments, and ICMP errors that
//! we report. None of this is in the log.

use std::sync::Arc;

use dominoes_drivers::Frame;

use crate::io::rx::{Log, RxPump};
use crate::ip::fragment::cut_frame;
use crate::ip::neighbor::Cause;
use crate::ip::rate_limit::Rate;
use crate::ip::reassembly::Reassembled;
use crate::ip::route::AddressKind;
use crate::ip::{fragment, whole};
use crate::packet as wire;
use crate::packet::flow::{Address, Mac};
use crate::packet::{IcmpError, Packet};
use crate::time::Instant;

impl RxPump {
    /// Handles a packet that is no segment for us. `broadcast`: its frame was sent to all hosts.
    pub(crate) fn packet(
        &mut self,
        now: Instant,
        packet: &Packet,
        broadcast: bool,
        frame: &Frame,
        log: &mut impl Log,
    ) {
        // A packet to a single host in a frame to all hosts is a mistake, and dropped (RFC 1122
        // section 3.3.6).
        let ours = |dst| self.is_ours(dst) && !broadcast;
        match *packet {
            Packet::EchoRequest { dst } if ours(dst) => self.echo(now, frame, dst),
            Packet::EchoReply { dst } if ours(dst) => self.take_echo_reply(now, frame),
            // One of IPv6 to a group is answered, too (RFC 4443 section 4.2).
            Packet::EchoRequest { dst } if !dst.is_v4() && self.is_to_all(dst, broadcast) => {
                self.echo(now, frame, dst);
            }
            Packet::Fragment { dst } if ours(dst) || self.is_to_all(dst, broadcast) => {
                if !self.may_be_reassembled(now, frame) {
                    self.stats.fragments += 1;
                    self.stats.bad_fragments += 1;
                    return;
                }
                if let Some(frame) = self.fragment(now, frame) {
                    if self.is_for_this_group(&frame) {
                        self.parse_and_publish(now, &Arc::new(vec![frame]), log);
                    } else {
                        self.stats.not_ours += 1;
                    }
                }
            }
            Packet::OtherProtocol { dst } if dst.is_v4() && broadcast => {
                self.group_query(now, frame.bytes());
            }
            Packet::OtherProtocol { dst } if ours(dst) => {
                self.stats.unknown += 1;
                self.report(now, frame, IcmpError::ProtocolUnreachable);
            }
            Packet::Problem { dst, problem } if ours(dst) || self.is_to_all(dst, broadcast) => {
                self.stats.unknown += 1;
                self.report(now, frame, IcmpError::Problem(problem));
            }
            Packet::TooBig {
                dst,
                sent: (local, remote),
                len,
                mtu,
            } if ours(dst) && self.is_ours(local) => {
                self.stats.network_errors += 1;
                self.too_big(now, remote, (len, mtu));
            }
            Packet::Link { dst } if ours(dst) || self.is_to_all(dst, broadcast) => {
                self.link_message(now, frame.bytes());
            }
            Packet::UdpError { error, dst } if ours(dst) => {
                self.datagram_error(now, dst, &error);
            }
            Packet::Unknown if self.untagged(now, frame, log) => {}
            Packet::Unknown | Packet::Arp(_) => self.stats.unknown += 1,
            _ => self.stats.not_ours += 1,
        }
    }

    /// Whether a packet was addressed to all hosts or a group of ours, and sent in a frame for
    /// them.
    pub(crate) fn is_to_all(&self, dst: Address, broadcast: bool) -> bool {
        broadcast && (self.site.classify(dst) == AddressKind::Broadcast || self.listens_to(dst))
    }

    /// Answers an echo request to `dst`, in fragments if need be (RFC 1122 section 3.2.2.6).
    fn echo(&mut self, now: Instant, frame: &Frame, dst: Address) {
        let mac = self.world.mac;
        let bytes = frame.bytes();
        let sender = wire::ends(bytes).map_or(Address::UNSPECIFIED, |(sender, _)| sender);
        let protocol = if dst.is_v4() {
            wire::ICMP
        } else {
            wire::ICMPV6
        };
        let ident = self.next_ident(sender, protocol);
        let reply = if dst.is_v4() {
            wire::echo_reply(bytes, mac, ident)
        } else {
            self.own_source(sender, dst)
                .and_then(|source| wire::icmpv6::echo_reply(bytes, mac, source))
        };
        let Some(reply) = reply else {
            self.stats.malformed += 1;
            return;
        };
        self.stats.echo += 1;
        let frames = cut_frame(reply, self.path_mtu(sender), ident);
        self.remember_sent(now, sender, frames.iter().map(Vec::len).max());
        self.send_answer(now, sender, frames);
    }

    /// Sends the packet in `frames`, which answers one of `to`. It goes the way of all packets,
    /// wherever the other came from.
    pub(super) fn send_answer(&mut self, now: Instant, to: Address, frames: Vec<Vec<u8>>) {
        self.send_frames(now, Cause::Answer, to, frames);
    }

    /// Sends the packet in `frames` to `to`, whose next hop gets its frames. They wait while that
    /// is not known.
    pub(super) fn send_frames(
        &mut self,
        now: Instant,
        cause: Cause,
        to: Address,
        frames: Vec<Vec<u8>>,
    ) {
        if let Some(mac) = self.resolve_for(cause, now, to) {
            self.deliver(frames, mac);
        } else if let Some(next_hop) = self.site.next_hop(to) {
            self.hold(now, cause, next_hop, frames);
        } else {
            self.stats.unresolved += 1;
        }
    }

    /// Sends frames to a neighbour.
    pub(super) fn deliver(&mut self, frames: impl IntoIterator<Item = Vec<u8>>, to: Mac) {
        for mut frame in frames {
            wire::set_link_dst(&mut frame, to.0);
            self.control(frame);
        }
    }

    /// Holds frames for a neighbour that is not known yet, and asks for it.
    pub(super) fn hold(
        &mut self,
        now: Instant,
        cause: Cause,
        next_hop: Address,
        frames: Vec<Vec<u8>>,
    ) {
        let held = self.neighbors.queue_frames(cause, next_hop, frames, now);
        self.stats.unresolved += held.dropped;
        if held.ask {
            self.request_address(next_hop, None);
        }
    }

    /// From which of our addresses what was sent to `dst` is answered: that one, unless it is a
    /// group.
    fn own_source(&self, sender: Address, dst: Address) -> Option<Address> {
        match self.is_ours(dst) {
            true => Some(dst),
            false => self.site.source(sender),
        }
    }

    /// The identification of a packet of `protocol` to `destination`.
    pub(crate) fn next_ident(&mut self, destination: Address, protocol: u8) -> u32 {
        let one = self.idents.take(destination, protocol, 1);
        match destination.is_v4() {
            true => one.nth(0).into(),
            false => one.nth_wide(0),
        }
    }

    /// Whether a fragment can be a part of a datagram by itself. If it cannot, its sender is told
    /// where IPv6 has it so (RFC 8200 section 4.5).
    fn may_be_reassembled(&mut self, now: Instant, frame: &Frame) -> bool {
        let bytes = frame.bytes();
        if !wire::is_ipv6(bytes) {
            return true;
        }
        match wire::ipv6::fragment_problem(bytes) {
            Some(problem) => {
                self.report(now, frame, IcmpError::Problem(problem));
                false
            }
            None => wire::ipv6::has_whole_chain(bytes),
        }
    }

    /// Adds a fragment. Returns the frame of the whole datagram, if this was the last fragment
    /// missing.
    fn fragment(&mut self, now: Instant, frame: &Frame) -> Option<Frame> {
        self.stats.fragments += 1;
        match self.reassembly.insert(&fragment(frame.bytes())?, now) {
            Reassembled::Complete(datagram) => {
                let bytes = whole(&datagram)?;
                // Neighbours must not say anything in fragments (RFC 6980 section 5).
                if wire::ndp::is_message(&bytes) {
                    self.stats.bad_fragments += 1;
                    return None;
                }
                self.stats.reassembled += 1;
                Some(Frame::from_bytes(&bytes))
            }
            Reassembled::Incomplete | Reassembled::Duplicate => None,
            _ => {
                self.stats.bad_fragments += 1;
                None
            }
        }
    }

    /// Discards datagrams whose fragments take too long, and reports that to their senders.
    pub(crate) fn give_up_fragments(&mut self, now: Instant) {
        if self.reassembly.next_deadline() > now {
            return;
        }
        self.reassembly.expire(now);
        for expired in self.reassembly.take_expired() {
            self.stats.reassembly_timeouts += 1;
            let to = wire::ends(&expired.quoted).map(|(_, to)| to);
            let ours = to.is_some_and(|to| self.is_ours(to));
            if self.group.is_first() && ours {
                self.report_about(now, &expired.quoted, IcmpError::ReassemblyTime);
            }
        }
    }

    /// Reports to the sender of a packet that was addressed to us alone why it is not served.
    pub(crate) fn report(&mut self, now: Instant, frame: &Frame, report: IcmpError) {
        self.report_about(now, frame.bytes(), report);
    }

    fn report_about(&mut self, now: Instant, frame: &[u8], report: IcmpError) {
        let Some((sender, to)) = wire::ends(frame) else {
            return;
        };
        let mac = self.world.mac;
        let error = if sender.is_v4() {
            let ident = self.next_ident(sender, wire::ICMP);
            let mtu = self.world.limits.mtu;
            self.own_source(sender, to)
                .and_then(|source| wire::error_about(frame, report, mac, source, ident, mtu))
        } else {
            self.own_source(sender, to)
                .and_then(|source| wire::icmpv6::error_about(frame, report, mac, source))
        };
        let Some(error) = error else {
            return;
        };
        let limits = &self.world.limits;
        let rate = Rate {
            total: limits.errors_per_second,
            per_destination: limits.errors_per_destination,
        };
        // What we send to ourselves is no stranger's doing.
        let is_looped = self.is_looping() && self.site.is_ourselves(sender);
        if is_looped || self.reports.admits(now, sender, rate) {
            self.stats.reports += 1;
            self.send_answer(now, sender, vec![error]);
        } else {
            self.stats.reports_limited += 1;
        }
    }
}
