//! Writes and reads frames for the far side of a stack.
//!
//! No code of the stack is used here, so no test checks the stack with the stack's own code:
//! headers are written byte by byte, and `smoltcp::wire` computes checksums.
//!
//! ```
//! use dominoes_testkit::packet::{self, ACK, Path, Segment};
//!
//! let path = Path::new([10, 0, 0, 2], [10, 0, 0, 1]);
//! let segment = Segment { src_port: 4000, dst_port: 80, seq: 7, flags: ACK, ..Segment::default() };
//! let frame = segment.frame(path);
//! assert_eq!(packet::protocol(&frame), Some(packet::TCP));
//! assert_eq!(Segment::read(&frame).map(|read| read.seq), Some(7));
//! ```

mod family;
pub mod odd;
mod segment;
pub mod v6;

use std::net::Ipv4Addr;

use dominoes_drivers::{GsoKind, TxChecksum, TxMeta};
use smoltcp::wire::{IpProtocol, checksum};

pub use family::{Family, v6_of};
pub use segment::{Header, Segment, tcp_header};

/// An IPv4 address.
pub type Address = [u8; 4];
/// An Ethernet address.
pub type Mac = [u8; 6];

/// The address of the stack in most tests.
pub const STACK: Address = [10, 0, 0, 1];
/// The address of the host at the far side of its link.
pub const FAR: Address = [10, 0, 0, 2];
/// From the far side to the stack.
pub const TO_STACK: Path = Path::new(FAR, STACK);
/// The address of all hosts.
pub const EVERYBODY: Address = [255; 4];
/// The Ethernet address of all hosts of a link.
pub const EVERY_MAC: Mac = [0xff; 6];

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Bytes before the transport header, where IPv4 has no options.
pub const LOWER: usize = 34;

/// The protocol number of ICMP.
pub const ICMP: u8 = 1;
/// The protocol number of TCP.
pub const TCP: u8 = 6;
/// The protocol number of UDP.
pub const UDP: u8 = 17;

/// The sender sends no more data (RFC 9293 section 3.1, as the other flags).
pub const FIN: u8 = 0x01;
/// The sequence number is the initial one.
pub const SYN: u8 = 0x02;
/// The connection is reset.
pub const RST: u8 = 0x04;
/// The receiver should deliver the data at once.
pub const PSH: u8 = 0x08;
/// The acknowledgment number is valid.
pub const ACK: u8 = 0x10;

/// Sender and receiver of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Ethernet address of the sender.
    pub from_mac: Mac,
    /// Ethernet address of the receiver.
    pub to_mac: Mac,
    /// Address of the sender.
    pub from: Address,
    /// Address of the receiver.
    pub to: Address,
}

impl Path {
    /// Between hosts of a simulation: their Ethernet addresses are 02:00 followed by the address.
    pub const fn new(from: Address, to: Address) -> Path {
        Path {
            from_mac: mac_of(from),
            to_mac: mac_of(to),
            from,
            to,
        }
    }

    /// The same from another address with the same Ethernet address.
    #[must_use]
    pub const fn source(self, from: Address) -> Path {
        Path { from, ..self }
    }

    /// The same from another Ethernet address.
    #[must_use]
    pub const fn from_mac(self, from_mac: Mac) -> Path {
        Path { from_mac, ..self }
    }

    /// The same to another Ethernet address.
    #[must_use]
    pub const fn to_mac(self, to_mac: Mac) -> Path {
        Path { to_mac, ..self }
    }

    /// The reverse path.
    #[must_use]
    pub const fn reversed(self) -> Path {
        Path {
            from_mac: self.to_mac,
            to_mac: self.from_mac,
            from: self.to,
            to: self.from,
        }
    }
}

/// The Ethernet address of the host at `address`, in a simulation.
pub const fn mac_of([a, b, c, d]: Address) -> Mac {
    [2, 0, a, b, c, d]
}

/// The sum of RFC 1071, folded and not complemented.
pub fn sum(bytes: &[u8]) -> u16 {
    checksum::data(bytes)
}

/// The sum over the pseudo-header of a packet from `from` to `to` and `transport`, its transport
/// header and payload.
pub fn transport_sum(from: Address, to: Address, protocol: u8, transport: &[u8]) -> u16 {
    let pseudo = pseudo_sum(from, to, protocol, transport.len());
    checksum::combine(&[pseudo, sum(transport)])
}

fn pseudo_sum(from: Address, to: Address, protocol: u8, len: usize) -> u16 {
    let (from, to) = (Ipv4Addr::from(from), Ipv4Addr::from(to));
    checksum::pseudo_header_v4(&from, &to, IpProtocol::from(protocol), len as u32)
}

/// Which parts of a frame to make right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// Total length of IPv4, length of UDP.
    pub lengths: bool,
    /// The checksum of the IPv4 header.
    pub network: bool,
    /// The checksum of TCP, UDP or ICMP. It is unchanged in a fragment.
    pub transport: bool,
}

impl Right {
    /// All of them.
    pub const ALL: Right = Right {
        lengths: true,
        network: true,
        transport: true,
    };
    /// The checksum of the IPv4 header alone.
    pub const NETWORK: Right = Right {
        lengths: false,
        network: true,
        transport: false,
    };
}

/// The offset of the transport header according to the IPv4 header; `None` if there is none.
pub fn transport(frame: &[u8]) -> Option<usize> {
    let ihl = usize::from(frame.get(ETHERNET)? & 0xf) * 4;
    (ihl >= 20 && frame.len() >= ETHERNET + ihl).then_some(ETHERNET + ihl)
}

/// Makes lengths and checksums of an IPv4 frame right, as selected by `right`. Leaves other
/// frames unchanged.
pub fn finish(frame: &mut [u8], right: Right) {
    let is_ip = frame.len() >= LOWER && frame[12..14] == [8, 0];
    let Some(at) = transport(frame).filter(|_| is_ip) else {
        return;
    };
    let len = frame.len();
    if right.lengths {
        put(frame, 16, (len - ETHERNET) as u16);
    }
    let (protocol, payload) = (frame[23], len - at);
    let is_fragment = half(frame, 20) & 0x3fff != 0;
    if !is_fragment {
        if right.lengths && protocol == UDP && payload >= 8 {
            put(frame, at + 4, payload as u16);
        }
        let field = match protocol {
            ICMP => 2,
            TCP => 16,
            UDP => 6,
            _ => usize::MAX,
        };
        if right.transport && field < payload.saturating_sub(1) {
            put(frame, at + field, 0);
            let sum = match protocol {
                ICMP => sum(&frame[at..]),
                _ => transport_sum(
                    address(frame, 26),
                    address(frame, 30),
                    protocol,
                    &frame[at..],
                ),
            };
            put(frame, at + field, completed(protocol, !sum));
        }
    }
    if right.network {
        put(frame, 24, 0);
        put(frame, 24, !sum(&frame[ETHERNET..at]));
    }
}

fn put(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn half(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

fn word(frame: &[u8], at: usize) -> u32 {
    u32::from(half(frame, at)) << 16 | u32::from(half(frame, at + 2))
}

fn address(frame: &[u8], at: usize) -> Address {
    word(frame, at).to_be_bytes()
}

/// An Ethernet and an IPv4 header; [`finish`] sets lengths and checksums.
pub fn headers(path: Path, protocol: u8) -> Vec<u8> {
    let mut frame = Vec::with_capacity(128);
    frame.extend(path.to_mac);
    frame.extend(path.from_mac);
    frame.extend([8, 0, 0x45, 0, 0, 0, 0, 1, 0, 0, 64, protocol, 0, 0]);
    frame.extend(path.from);
    frame.extend(path.to);
    frame
}

/// A fragment of an IPv4 packet, with the payload from `offset` on.
pub fn fragment(
    path: Path,
    protocol: u8,
    ident: u16,
    (offset, more): (usize, bool),
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = headers(path, protocol);
    put(&mut frame, 16, (20 + payload.len()) as u16);
    put(&mut frame, 18, ident);
    put(
        &mut frame,
        20,
        (offset / 8) as u16 | if more { 0x2000 } else { 0 },
    );
    frame.extend(payload);
    finish(&mut frame, Right::NETWORK);
    frame
}

/// A whole packet with this payload.
pub fn ip(path: Path, protocol: u8, payload: &[u8]) -> Vec<u8> {
    fragment(path, protocol, 1, (0, false), payload)
}

/// A packet's payload in fragments of `size` bytes.
pub fn fragments(
    path: Path,
    protocol: u8,
    ident: u16,
    payload: &[u8],
    size: usize,
) -> Vec<Vec<u8>> {
    let count = payload.len().div_ceil(size);
    let one = |(i, piece)| fragment(path, protocol, ident, (i * size, i + 1 < count), piece);
    payload.chunks(size).enumerate().map(one).collect()
}

/// The payload of fragments of one packet, in order.
///
/// # Panics
/// If they are out of order or of different packets.
pub fn reassemble(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut whole = Vec::new();
    for (i, frame) in frames.iter().enumerate() {
        assert_eq!(sum(&frame[ETHERNET..LOWER]), 0xffff);
        assert_eq!(usize::from(half(frame, 16)), frame.len() - ETHERNET);
        assert_eq!(identification(frame), identification(&frames[0]));
        assert_eq!(usize::from(half(frame, 20) & 0x1fff) * 8, whole.len());
        assert_eq!(half(frame, 20) & 0x2000 != 0, i + 1 < frames.len());
        whole.extend(&frame[LOWER..]);
    }
    whole
}

/// A UDP datagram from one port to another.
pub fn udp(path: Path, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut frame = headers(path, UDP);
    frame.extend(ports.0.to_be_bytes());
    frame.extend(ports.1.to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(payload);
    finish(&mut frame, Right::ALL);
    frame
}

/// An ICMP message, for [`ip`]: type and code, the four bytes after the checksum, and the rest.
pub fn icmp([kind, code]: [u8; 2], head: [u8; 4], rest: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend(head);
    message.extend(rest);
    let checksum = !sum(&message);
    put(&mut message, 2, checksum);
    message
}

/// An ICMP echo request (RFC 792), number 1 of `ident`.
pub fn echo(ident: u16, payload: &[u8]) -> Vec<u8> {
    let [high, low] = ident.to_be_bytes();
    icmp([8, 0], [high, low, 0, 1], payload)
}

/// An ICMP error that quotes `about` (RFC 792); `mtu` is the MTU in a report that a packet was
/// too big (RFC 1191 section 4), else 0.
pub fn icmp_error(numbers: [u8; 2], mtu: u16, about: &[u8]) -> Vec<u8> {
    let [high, low] = mtu.to_be_bytes();
    icmp(numbers, [0, 0, high, low], about)
}

/// The header of a packet of `len` bytes, and the next eight bytes: ports and `rest`. Receivers
/// ignore the checksum of a quoted header.
pub fn quote(path: Path, protocol: u8, len: u16, ports: (u16, u16), rest: u32) -> Vec<u8> {
    let mut packet = headers(path, protocol).split_off(ETHERNET);
    put(&mut packet, 2, len);
    packet.extend(ports.0.to_be_bytes());
    packet.extend(ports.1.to_be_bytes());
    packet.extend(rest.to_be_bytes());
    packet
}

/// An ARP message (RFC 826) about the sender, with `target_mac` for the receiver's address.
pub fn arp(path: Path, operation: u16, target_mac: Mac) -> Vec<u8> {
    let mut frame = Vec::with_capacity(42);
    frame.extend(path.to_mac);
    frame.extend(path.from_mac);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4]);
    frame.extend(operation.to_be_bytes());
    frame.extend(path.from_mac);
    frame.extend(path.from);
    frame.extend(target_mac);
    frame.extend(path.to);
    frame
}

/// The sender's request for the Ethernet address of the receiver.
pub fn arp_request(path: Path) -> Vec<u8> {
    arp(path, 1, [0; 6])
}

/// The sender's answer to such a request.
pub fn arp_reply(path: Path) -> Vec<u8> {
    arp(path, 2, path.to_mac)
}

/// The address that an ARP request asks for.
pub fn asked(frame: &[u8]) -> Option<Address> {
    let asks = frame.len() >= 42 && frame[12..14] == [8, 6] && frame[20..22] == [0, 1];
    asks.then(|| address(frame, 38))
}

/// The protocol of an IPv4 packet.
pub fn protocol(frame: &[u8]) -> Option<u8> {
    let is_ip = frame.len() >= LOWER && frame[12..14] == [8, 0];
    is_ip.then(|| frame[23])
}

/// The identification of an IPv4 packet.
///
/// # Panics
/// If the frame is shorter than its header.
pub fn identification(frame: &[u8]) -> u16 {
    half(frame, 18)
}

/// Completes the checksum of a TCP or UDP frame as a device completes a partial one. Returns
/// whether the field held the right partial sum: the sum of the pseudo-header.
///
/// # Panics
/// If the frame is shorter than its headers.
pub fn complete(frame: &mut [u8]) -> bool {
    let (field, pseudo) = partial(frame);
    if half(frame, field) != pseudo {
        return false;
    }
    let checksum = completed(frame[23], !sum(&frame[LOWER..]));
    put(frame, field, checksum);
    true
}

/// A checksum as it is sent: in UDP, 0 would mean that there is none (RFC 768).
fn completed(protocol: u8, checksum: u16) -> u16 {
    match checksum {
        0 if protocol == UDP => 0xffff,
        checksum => checksum,
    }
}

/// The packets that a card sends for a frame: with complete checksums, and one packet for each
/// datagram.
///
/// # Panics
/// If the frame contradicts `meta`, or TCP would have to be divided.
pub fn on_wire(mut frame: Vec<u8>, meta: &TxMeta) -> Vec<Vec<u8>> {
    if meta.checksum == TxChecksum::Done {
        return vec![frame];
    }
    let family = match frame[12..14] {
        [0x86, 0xdd] => Family::V6,
        _ => Family::V4,
    };
    match meta.gso {
        None => {
            assert!(family.complete(&mut frame), "no partial checksum");
            vec![frame]
        }
        Some(gso) => {
            assert_eq!(gso.kind, GsoKind::Udp);
            assert_eq!(usize::from(gso.header_len), family.lower() + 8);
            let packets = family.divide(&frame, gso.size.into());
            packets.expect("a partial checksum")
        }
    }
}

/// Makes the checksum of a TCP or UDP frame partial, as a sender on the same machine leaves it:
/// the sum of the pseudo-header only.
///
/// # Panics
/// If the frame is shorter than its headers.
pub fn leave_partial(frame: &mut [u8]) {
    let (field, pseudo) = partial(frame);
    put(frame, field, pseudo);
}

/// The offset of the checksum of a TCP or UDP frame, and the sum of its pseudo-header.
fn partial(frame: &[u8]) -> (usize, u16) {
    let field = LOWER + if frame[23] == UDP { 6 } else { 16 };
    let (from, to) = (address(frame, 26), address(frame, 30));
    (field, pseudo_sum(from, to, frame[23], frame.len() - LOWER))
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{
        ArpPacket, ArpRepr, EthernetFrame, Icmpv4Packet, Icmpv4Repr, IpAddress, Ipv4Packet,
        Ipv4Repr, TcpControl, TcpPacket, TcpRepr, UdpPacket, UdpRepr,
    };

    const PATH: Path = Path::new([10, 0, 0, 2], [10, 0, 0, 1]);

    /// The payload of a packet according to smoltcp, which verifies all checksums.
    fn payload(frame: &[u8]) -> (Ipv4Repr, &[u8]) {
        let ethernet = EthernetFrame::new_checked(frame).expect("a frame");
        assert_eq!(
            (ethernet.src_addr().0, ethernet.dst_addr().0),
            (PATH.from_mac, PATH.to_mac)
        );
        let packet = Ipv4Packet::new_checked(&frame[ETHERNET..]).expect("a packet");
        let repr = Ipv4Repr::parse(&packet, &ChecksumCapabilities::default()).expect("it is right");
        (repr, &frame[LOWER..])
    }

    fn ends() -> (IpAddress, IpAddress) {
        (
            Ipv4Addr::from(PATH.from).into(),
            Ipv4Addr::from(PATH.to).into(),
        )
    }

    #[test]
    fn segments_are_read_as_they_were_written_and_as_smoltcp_reads_them() {
        let segment = Segment {
            src_port: 4000,
            dst_port: 80,
            seq: 0xffff_fff0,
            ack: 7,
            flags: SYN | ACK,
            wnd: 500,
            mss: Some(1460),
            scale: Some(7),
            sack_permitted: true,
            timestamps: Some((3, 4)),
            payload: b"odd".to_vec(),
            ..Segment::default()
        };
        let frame = segment.frame(PATH);
        let ttl = 64;
        assert_eq!(
            Segment::read(&frame),
            Some(Segment {
                ttl,
                ..segment.clone()
            })
        );
        let (_, bytes) = payload(&frame);
        let packet = TcpPacket::new_checked(bytes).expect("a segment");
        let (from, to) = ends();
        let repr = TcpRepr::parse(&packet, &from, &to, &ChecksumCapabilities::default());
        let repr = repr.expect("it is right");
        assert_eq!(
            (repr.control, repr.window_scale),
            (TcpControl::Syn, Some(7))
        );
        assert_eq!((repr.max_seg_size, repr.payload), (Some(1460), &b"odd"[..]));
        assert_eq!(segment.end(), 0xffff_fff4);
    }

    #[test]
    fn a_damaged_segment_is_not_read() {
        let segment = Segment {
            flags: ACK,
            sack: vec![(1, 2), (5, 9)],
            payload: vec![7; 20],
            ..Segment::default()
        };
        let frame = segment.frame(PATH);
        assert_eq!(
            Segment::read(&frame).map(|read| read.sack),
            Some(segment.sack)
        );
        for at in ETHERNET..frame.len() {
            let mut damaged = frame.clone();
            damaged[at] ^= 4;
            assert_eq!(Segment::read(&damaged), None, "byte {at}");
        }
    }

    #[test]
    fn a_partial_checksum_is_completed_to_the_whole_one() {
        let segment = Segment {
            payload: vec![9; 33],
            ..Segment::default()
        };
        for whole in [segment.frame(PATH), udp(PATH, (5, 9), b"hello")] {
            let mut frame = whole.clone();
            leave_partial(&mut frame);
            assert_ne!(frame, whole);
            assert!(complete(&mut frame));
            assert_eq!(frame, whole);
            assert!(!complete(&mut frame), "it is not partial any more");
        }
    }

    #[test]
    fn datagrams_of_one_frame_become_packets_of_their_own() {
        for family in Family::ALL {
            let mut frame = family.write(&udp(PATH, (5, 9), b"hello, you")).unwrap();
            assert_eq!(family.divide(&frame, 4), None);
            family.leave_partial(&mut frame);
            let packets = family.divide(&frame, 4).unwrap();
            let own = [(1, &b"hell"[..]), (2, b"o, y"), (3, b"ou")];
            let own = own.map(|(ident, text)| {
                let mut packet = udp(PATH, (5, 9), text);
                put(&mut packet, 18, ident);
                finish(&mut packet, Right::ALL);
                family.write(&packet).unwrap()
            });
            assert_eq!(packets, own);
        }
    }

    #[test]
    fn datagrams_messages_and_arp_are_what_smoltcp_reads() {
        let checks = ChecksumCapabilities::default();
        let (from, to) = ends();
        let datagram = udp(PATH, (5, 9), b"hello");
        let packet = UdpPacket::new_checked(payload(&datagram).1).expect("a datagram");
        let repr = UdpRepr::parse(&packet, &from, &to, &checks).expect("it is right");
        assert_eq!(
            (repr.src_port, repr.dst_port, packet.payload()),
            (5, 9, &b"hello"[..])
        );

        let ping = ip(PATH, ICMP, &echo(7, b"there"));
        let packet = Icmpv4Packet::new_checked(payload(&ping).1).expect("a message");
        let request = Icmpv4Repr::EchoRequest {
            ident: 7,
            seq_no: 1,
            data: b"there",
        };
        assert_eq!(Icmpv4Repr::parse(&packet, &checks), Ok(request));

        let about = quote(PATH.reversed(), UDP, 28, (9, 5), 8 << 16);
        let error = ip(PATH, ICMP, &icmp_error([3, 3], 0, &about));
        let packet = Icmpv4Packet::new_checked(payload(&error).1).expect("a message");
        let Ok(Icmpv4Repr::DstUnreachable { header, data, .. }) =
            Icmpv4Repr::parse(&packet, &checks)
        else {
            panic!("it is no error")
        };
        assert_eq!(
            (header.src_addr, header.payload_len),
            (Ipv4Addr::from(PATH.to), 8)
        );
        assert_eq!(data[..4], [0, 9, 0, 5]);

        let question = arp_request(PATH);
        assert_eq!(
            (asked(&question), asked(&arp_reply(PATH))),
            (Some(PATH.to), None)
        );
        let packet = ArpPacket::new_checked(&question[ETHERNET..]).expect("a message");
        assert!(ArpRepr::parse(&packet).is_ok());
    }

    #[test]
    fn fragments_are_put_together_again() {
        let text: Vec<u8> = (0..3000).map(|i| i as u8).collect();
        let pieces = fragments(PATH, UDP, 77, &text, 1480);
        let read = |piece: &Vec<u8>| {
            let packet = Ipv4Packet::new_checked(&piece[ETHERNET..]).expect("a packet");
            assert!(packet.verify_checksum() && packet.ident() == 77);
            (
                packet.frag_offset(),
                packet.more_frags(),
                packet.payload().len(),
            )
        };
        let places: Vec<_> = pieces.iter().map(read).collect();
        assert_eq!(
            places,
            [(0, true, 1480), (1480, true, 1480), (2960, false, 40)]
        );
        assert_eq!(reassemble(&pieces), text);
    }

    #[test]
    fn what_is_not_to_be_right_stays_wrong() {
        let mut frame = udp(PATH, (5, 9), b"hello");
        let right = frame.clone();
        frame[40] ^= 1;
        finish(&mut frame, Right::NETWORK);
        assert_ne!(frame, right);
        finish(&mut frame, Right::ALL);
        assert_eq!(frame, right);
    }
}
