//! The receiving side of an interface: decides about each frame.

use std::sync::Arc;

use dominoes_drivers::{
    DeviceError, DeviceRx, Frame, GsoKind, RxChecksum, checked, complete_checksum,
};

use super::{Port, RouterShared, RouterStats};
use crate::host::ArpMeaning;
use crate::ip::fragment::{cut_frame, cut_packet};
use crate::ip::identification::Identifications;
use crate::ip::rate_limit::{RateLimit, TokenBucket};
use crate::ip::reassembly::{Reassembled, Reassembly, ReassemblyLimits};
use crate::ip::{fragment, whole};
use crate::keys::{KeyUse, Keys};
use crate::packet as wire;
use crate::packet::flow::{Address, Mac};
use crate::packet::{ETHERNET_HEADER, Forwarded, IcmpError, Packet};
use crate::time::{Duration, Instant};

/// The most frames that are taken from a device at once.
const BATCH: usize = 64;
/// The least time between two defences of an address (RFC 5227 section 1.1).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// Receives frames at one interface.
pub(super) struct Input {
    index: usize,
    rx: Box<dyn DeviceRx>,
    pub(super) shared: Arc<RouterShared>,
    reassembly: Reassembly,
    reports: RateLimit,
    /// The limit of reports of packets that are too long. It is separate because connections
    /// stall without these reports, and other hosts can forge packets that use up the other
    /// limit.
    too_long: RateLimit,
    idents: Identifications,
    defences: TokenBucket,
    is_announced: bool,
    stats: RouterStats,
    claimed: Vec<Frame>,
    /// Frames to send for each interface, with their next hops.
    outgoing: Vec<Vec<(Address, Frame)>>,
    /// Frames to return to the device.
    done: Vec<Frame>,
    /// The last error of the device.
    pub(super) trouble: Option<DeviceError>,
    /// The device is gone, so no more frames arrive.
    pub(super) is_gone: bool,
}

impl Input {
    pub(super) fn new(
        shared: Arc<RouterShared>,
        index: usize,
        count: u16,
        rx: Box<dyn DeviceRx>,
        keys: &Keys,
    ) -> Self {
        let outgoing = shared.ports.iter().map(|_| Vec::new()).collect();
        Input {
            index,
            rx,
            shared,
            reassembly: Reassembly::new(ReassemblyLimits::default()),
            reports: RateLimit::new(keys, KeyUse::ErrorLimit),
            too_long: RateLimit::new(keys, KeyUse::TooLongLimit),
            idents: Identifications::new(keys, index as u16, count),
            defences: TokenBucket::new(1, DEFEND_INTERVAL),
            is_announced: false,
            stats: RouterStats::default(),
            claimed: Vec::new(),
            outgoing,
            done: Vec::new(),
            trouble: None,
            is_gone: false,
        }
    }

    fn port(&self) -> &Port {
        &self.shared.ports[self.index]
    }

    /// One turn: receives frames, decides about them, sends frames, and runs timers.
    pub(super) fn turn(&mut self, now: Instant) -> usize {
        let mut claimed = std::mem::take(&mut self.claimed);
        if let Err(error) = checked::claim(&mut *self.rx, BATCH, &mut claimed) {
            self.fail(error);
        }
        let mut done = claimed.len();
        self.stats.received += claimed.len() as u64;
        for frame in claimed.drain(..) {
            self.frame(now, frame);
        }
        self.claimed = claimed;
        self.on_time(now);
        for index in 0..self.outgoing.len() {
            done += self.send(index, now);
        }
        checked::release(&mut *self.rx, &mut self.done);
        if done > 0 {
            *self.port().stats() = self.stats;
        }
        done
    }

    /// Passes frames to an interface.
    fn send(&mut self, index: usize, now: Instant) -> usize {
        let Input {
            shared,
            outgoing,
            done,
            trouble,
            ..
        } = self;
        let is_own = index == self.index;
        if outgoing[index].is_empty() && !is_own {
            return 0;
        }
        let port = &shared.ports[index];
        let mut output = port.output();
        for (next_hop, frame) in outgoing[index].drain(..) {
            output.send_to(port, next_hop, frame, now);
        }
        match output.flush(done) {
            Ok(sent) => {
                if output.has_backlog() && !is_own {
                    // The interface's own thread continues.
                    port.waker.wake();
                }
                sent
            }
            Err(error) => {
                output.discard(done);
                *trouble = Some(error);
                0
            }
        }
    }

    /// The time of the next timer.
    pub(super) fn next_deadline(&self) -> Instant {
        let neighbors = self.port().output().neighbors.next_deadline();
        neighbors.min(self.reassembly.next_deadline())
    }

    /// Whether frames wait for this interface's device.
    pub(super) fn has_backlog(&self) -> bool {
        self.port().output().has_backlog()
    }

    /// Sleeps until a frame may have arrived.
    pub(super) fn wait(&mut self, timeout: std::time::Duration) {
        if let Err(error) = self.rx.wait(Some(timeout)) {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: DeviceError) {
        self.is_gone = !error.is_temporary();
        self.trouble = Some(error);
    }

    /// Runs timers: announces the address, repeats requests for neighbours, and gives up
    /// neighbours that do not answer and datagrams whose fragments are incomplete.
    fn on_time(&mut self, now: Instant) {
        let shared = Arc::clone(&self.shared);
        let port = &shared.ports[self.index];
        let unsent = {
            let mut output = port.output();
            if !std::mem::replace(&mut self.is_announced, true) {
                output.ask(port, port.site.address, None);
            }
            if output.neighbors.next_deadline() > now {
                Vec::new()
            } else {
                let overdue = output.neighbors.on_time(now);
                output.count_unresolved(overdue.dropped);
                for address in overdue.ask {
                    output.ask(port, address, None);
                }
                for (address, mac) in overdue.poll {
                    output.ask(port, address, Some(mac));
                }
                overdue.unsent
            }
        };
        for frame in unsent {
            self.report(now, &frame, IcmpError::HostUnreachable);
        }
        if self.reassembly.next_deadline() <= now {
            self.reassembly.expire(now);
            for expired in self.reassembly.take_expired() {
                self.report(now, &expired.quoted, IcmpError::ReassemblyTime);
            }
        }
    }

    /// Decides about a frame.
    fn frame(&mut self, now: Instant, frame: Frame) {
        let Some((_, link)) = wire::link(&frame) else {
            self.stats.malformed += 1;
            return self.done.push(frame);
        };
        let is_to_all = link[0] & 1 != 0;
        if link != self.port().mac && !is_to_all {
            self.stats.not_ours += 1;
            return self.done.push(frame);
        }
        match frame[12..14] {
            [0x08, 0x06] => {
                if let Ok(Packet::Arp(arp)) = wire::parse(&frame) {
                    self.arp(now, &arp);
                } else {
                    self.stats.malformed += 1;
                }
                self.done.push(frame);
            }
            [0x08, 0x00] => self.packet(now, frame, is_to_all),
            _ => {
                match frame.without_priority_tag() {
                    Some(untagged) => self.frame(now, untagged),
                    None => self.stats.not_ours += 1,
                }
                self.done.push(frame);
            }
        }
    }

    /// Handles an ARP message (RFC 826): learns the sender's address, and answers requests for
    /// ours.
    fn arp(&mut self, now: Instant, arp: &wire::Arp) {
        let shared = Arc::clone(&self.shared);
        let port = &shared.ports[self.index];
        let meaning = ArpMeaning::of(arp, &port.site, port.mac);
        self.stats.arp += u64::from(meaning != ArpMeaning::Martian);
        match meaning {
            ArpMeaning::Martian => self.stats.martians += 1,
            ArpMeaning::FromUs => {
                if arp.sender_mac != port.mac {
                    self.stats.conflicts += 1;
                    if self.defences.admits(now) {
                        port.output().ask(port, port.site.address, None);
                    }
                }
            }
            ArpMeaning::Message {
                is_neighbor,
                for_us,
                reply,
            } => {
                let mut output = port.output();
                if is_neighbor {
                    let mac = Mac(arp.sender_mac);
                    let learned = output.neighbors.learn(arp.sender, mac, for_us, now);
                    for mut frame in learned.frames {
                        wire::set_link_dst(frame.bytes_mut(), arp.sender_mac);
                        output.push(frame);
                    }
                }
                if let Some(reply) = reply {
                    output.push(Frame::from_bytes(&reply));
                }
            }
        }
    }

    /// Handles a packet in the order of RFC 1812 section 5.2.1.
    fn packet(&mut self, now: Instant, mut frame: Frame, is_to_all: bool) {
        let packet = match wire::forwarded(&frame) {
            Ok(packet) => packet,
            Err(_) => {
                self.stats.malformed += 1;
                return self.done.push(frame);
            }
        };
        // Removes the padding of the link.
        frame.set_len(ETHERNET_HEADER + packet.total_len);
        let Forwarded { src, dst, .. } = packet;
        let is_from_us_or_all = self.shared.is_own(src) || self.shared.is_broadcast(src);
        if self.port().site.is_martian((src, dst)) || is_from_us_or_all || is_nowhere(dst) {
            self.stats.martians += 1;
        } else if is_to_all || dst.is_multicast() || self.shared.is_broadcast(dst) {
            self.stats.not_forwarded += 1;
        } else if self.shared.is_own(dst) {
            self.stats.local += 1;
            self.local(now, &frame);
        } else if is_link_local(src) || is_link_local(dst) || src.is_unspecified() {
            self.stats.not_forwarded += 1;
        } else if packet.is_source_routed {
            self.stats.source_routed += 1;
        } else if self.shared.validate_source && !self.is_behind(src) {
            self.stats.spoofed += 1;
        } else {
            return self.forward(now, frame, &packet);
        }
        self.done.push(frame);
    }

    /// Whether packets to `source` leave through this interface.
    fn is_behind(&self, source: Address) -> bool {
        self.shared
            .route(source)
            .is_some_and(|(port, _)| port == self.index)
    }

    fn forward(&mut self, now: Instant, frame: Frame, packet: &Forwarded) {
        let shared = Arc::clone(&self.shared);
        if packet.ttl <= 1 {
            self.stats.expired += 1;
            return self.refuse(now, frame, IcmpError::TimeExceeded);
        }
        let Some((out, next_hop)) = shared.route(packet.dst) else {
            self.stats.no_route += 1;
            return self.refuse(now, frame, IcmpError::NetUnreachable);
        };
        if out == self.index && shared.ports[out].site.next_hop(packet.src).is_some() {
            self.report(now, &frame, IcmpError::Redirect(next_hop));
        }
        let port = &shared.ports[out];
        let longest = longest_packet(&frame, packet);
        if longest <= usize::from(port.mtu) {
            return self.pass(frame, out, next_hop);
        }
        if packet.dont_fragment {
            self.stats.too_long += 1;
            return self.refuse(now, frame, IcmpError::FragmentationNeeded(port.mtu));
        }
        if frame.meta.gso.is_some() {
            self.stats.unsupported += 1;
            return self.done.push(frame);
        }
        let mut frame = frame;
        complete(&mut frame);
        wire::decrement_ttl(frame.bytes_mut());
        let Some(pieces) = cut_packet(&frame, port.mtu) else {
            self.stats.too_long += 1;
            return self.done.push(frame);
        };
        self.stats.forwarded += 1;
        self.stats.fragmented += 1;
        let pieces = pieces
            .iter()
            .map(|piece| (next_hop, Frame::from_bytes(piece)));
        self.outgoing[out].extend(pieces);
        self.done.push(frame);
    }

    /// Passes a packet that fits to an interface.
    fn pass(&mut self, mut frame: Frame, out: usize, next_hop: Address) {
        wire::decrement_ttl(frame.bytes_mut());
        let caps = &self.shared.ports[out].caps;
        if !caps.tx_checksum && frame.meta.gso.is_none() {
            complete(&mut frame);
        }
        if !caps.admits(&frame.as_tx()) {
            self.stats.unsupported += 1;
            return self.done.push(frame);
        }
        self.stats.forwarded += 1;
        self.outgoing[out].push((next_hop, frame));
    }

    /// Drops a packet, and reports this to its sender.
    fn refuse(&mut self, now: Instant, frame: Frame, report: IcmpError) {
        self.report(now, &frame, report);
        self.done.push(frame);
    }

    /// Sends an ICMP error to the sender of a packet (RFC 1812 section 4.3.2), from the address
    /// of the interface through which the error leaves.
    fn report(&mut self, now: Instant, frame: &[u8], report: IcmpError) {
        let shared = Arc::clone(&self.shared);
        let Some((sender, _)) = wire::ends_v4(frame) else {
            return;
        };
        let Some((out, next_hop)) = shared.route(sender) else {
            return;
        };
        let port = &shared.ports[out];
        let ident = self.idents.take(sender, wire::ICMP, 1).nth(0);
        let address = port.site.address;
        let error = wire::error_about(frame, report, port.mac, address, ident.into(), port.mtu);
        let Some(mut error) = error else {
            return;
        };
        let (limit, rate) = match report {
            IcmpError::FragmentationNeeded(_) => (&mut self.too_long, shared.too_long_rate()),
            _ => (&mut self.reports, shared.rate),
        };
        if limit.admits(now, sender, rate) {
            wire::set_internetwork_control(&mut error);
            self.stats.reports += 1;
            self.outgoing[out].push((next_hop, Frame::from_bytes(&error)));
        } else {
            self.stats.reports_limited += 1;
        }
    }

    /// Handles a packet for one of our addresses.
    fn local(&mut self, now: Instant, frame: &Frame) {
        match wire::parse(frame) {
            Ok(Packet::EchoRequest { .. }) => self.echo(frame),
            Ok(Packet::Fragment { .. }) => {
                let Some(piece) = fragment(frame) else {
                    return;
                };
                if let Reassembled::Complete(datagram) = self.reassembly.insert(&piece, now)
                    && let Some(bytes) = whole(&datagram)
                {
                    self.local(now, &Frame::from_bytes(&bytes));
                }
            }
            Ok(Packet::Udp(_)) => self.report(now, frame, IcmpError::PortUnreachable),
            Ok(Packet::Tcp(_) | Packet::OtherProtocol { .. }) => {
                self.report(now, frame, IcmpError::ProtocolUnreachable);
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// Answers an echo request, in fragments if need be.
    fn echo(&mut self, frame: &Frame) {
        let shared = Arc::clone(&self.shared);
        let Some((sender, _)) = wire::ends_v4(frame) else {
            return;
        };
        let Some((out, next_hop)) = shared.route(sender) else {
            return;
        };
        let ident = self.idents.take(sender, wire::ICMP, 1).nth(0);
        let port = &shared.ports[out];
        let Some(reply) = wire::echo_reply(frame, port.mac, ident.into()) else {
            return;
        };
        self.stats.echo += 1;
        let pieces = cut_frame(reply, port.mtu, ident.into());
        let pieces = pieces
            .iter()
            .map(|piece| (next_hop, Frame::from_bytes(piece)));
        self.outgoing[out].extend(pieces);
    }
}

/// Whether no packet may have this destination (RFC 1812 section 5.3.7): this network, this host,
/// or an unused address.
fn is_nowhere(address: Address) -> bool {
    match address.v4_bits() >> 24 {
        0 | 127 => true,
        240.. => address.v4_bits() != u32::MAX,
        _ => false,
    }
}

/// Whether only hosts on one link know the address (RFC 3927).
const fn is_link_local(address: Address) -> bool {
    address.v4_bits() >> 16 == 0xa9fe
}

/// Completes a checksum that the sender left to a device.
fn complete(frame: &mut Frame) {
    if let RxChecksum::Partial { start, offset } = frame.meta.checksum {
        complete_checksum(frame.bytes_mut(), start, offset);
        frame.meta.checksum = RxChecksum::Verify;
    }
}

/// The length of the packet in bytes, or of the longest packet into which a device will divide
/// it.
fn longest_packet(frame: &Frame, packet: &Forwarded) -> usize {
    let Some(gso) = frame.meta.gso else {
        return packet.total_len;
    };
    let transport = ETHERNET_HEADER + packet.header_len;
    let header = match gso.kind {
        GsoKind::Udp => 8,
        _ => frame
            .get(transport + 12)
            .map_or(20, |byte| usize::from(byte >> 4) * 4),
    };
    (packet.header_len + header + usize::from(gso.size)).min(packet.total_len)
}
