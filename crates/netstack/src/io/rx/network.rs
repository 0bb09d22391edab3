//! Packets other than segments in the receive pump: echo requests, fragments, and ICMP errors that
//! we report. None of this is in the log.

use std::net::Ipv4Addr;

use dominoes_drivers::Frame;

use crate::io::rx::{Log, RxPump};
use crate::ip::fragment::cut_frame;
use crate::ip::rate_limit::Rate;
use crate::ip::reassembly::Reassembled;
use crate::ip::route::AddressKind;
use crate::ip::{fragment, whole};
use crate::packet as wire;
use crate::packet::{Packet, Report};
use crate::time::Instant;

impl RxPump {
    /// Handles a packet that is no segment for us. `broadcast`: its frame was sent to all hosts.
    pub(crate) fn packet(
        &mut self,
        now: Instant,
        packet: &Packet,
        broadcast: bool,
        frame: Frame,
        log: &mut impl Log,
    ) {
        // A packet to a single host in a frame to all hosts is a mistake, and dropped (RFC 1122
        // section 3.3.6).
        let ours = |dst| self.site.classify(dst) == AddressKind::Local && !broadcast;
        match *packet {
            Packet::EchoRequest { dst } if ours(dst) => self.echo(&frame),
            Packet::Fragment { dst } if ours(dst) || self.is_to_all(dst, broadcast) => {
                if let Some(frame) = self.fragment(now, &frame) {
                    if self.is_for_this_group(&frame) {
                        self.frame(now, frame, log);
                    } else {
                        self.stats.not_ours += 1;
                    }
                }
            }
            Packet::OtherProtocol { dst } if ours(dst) => {
                self.stats.unknown += 1;
                self.report(now, &frame, Report::ProtocolUnreachable);
            }
            Packet::UdpError { error, dst } if ours(dst) => self.datagram_error(&error),
            Packet::Unknown | Packet::Arp(_) => self.stats.unknown += 1,
            _ => self.stats.not_ours += 1,
        }
        self.recycler.frames.push(frame);
    }

    /// Whether a packet was addressed to all hosts, and sent in a frame to all hosts.
    pub(crate) fn is_to_all(&self, dst: Ipv4Addr, broadcast: bool) -> bool {
        broadcast && self.site.classify(dst) == AddressKind::Broadcast
    }

    /// Answers an echo request, in fragments if need be (RFC 1122 section 3.2.2.6).
    fn echo(&mut self, frame: &Frame) {
        let mac = self.world.mac;
        let reply = wire::ends(frame.bytes()).and_then(|(sender, _)| {
            let ident = self.next_ident(sender, wire::ICMP);
            wire::echo_reply(frame.bytes(), mac, ident)
        });
        let Some(reply) = reply else {
            self.stats.malformed += 1;
            return;
        };
        self.stats.echo += 1;
        for frame in cut_frame(reply, self.world.limits.mtu) {
            self.control(frame);
        }
    }

    /// The identification of a packet of `protocol` to `destination`.
    pub(crate) fn next_ident(&mut self, destination: Ipv4Addr, protocol: u8) -> u16 {
        self.idents.take(destination, protocol, 1).nth(0)
    }

    /// Adds a fragment. Returns the frame of the whole datagram, if this was the last fragment
    /// missing.
    fn fragment(&mut self, now: Instant, frame: &Frame) -> Option<Frame> {
        self.stats.fragments += 1;
        match self.reassembly.insert(&fragment(frame.bytes())?, now) {
            Reassembled::Complete(datagram) => {
                let bytes = whole(&datagram)?;
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
            if self.group.is_first() && wire::was_sent_to(&expired.quoted, self.site.address) {
                self.report_about(now, &expired.quoted, Report::ReassemblyTime);
            }
        }
    }

    /// Reports to the sender of a packet that was addressed to us alone why it is not served.
    pub(crate) fn report(&mut self, now: Instant, frame: &Frame, report: Report) {
        self.report_about(now, frame.bytes(), report);
    }

    fn report_about(&mut self, now: Instant, frame: &[u8], report: Report) {
        let Some((sender, _)) = wire::ends(frame) else {
            return;
        };
        let ident = self.next_ident(sender, wire::ICMP);
        let (mac, address) = (self.world.mac, self.site.address);
        let limits = &self.world.limits;
        let Some(error) = wire::error_about(frame, report, mac, address, ident, limits.mtu) else {
            return;
        };
        let rate = Rate {
            total: limits.errors_per_second,
            per_destination: limits.errors_per_destination,
        };
        if self.reports.admits(now, sender, rate) {
            self.stats.reports += 1;
            self.control(error);
        } else {
            self.stats.reports_limited += 1;
        }
    }
}
