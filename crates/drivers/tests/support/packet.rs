//! Packets to send, with the work that they leave to the device, and parsers of received packets.

use dominoes_drivers::{
    Gso, GsoKind, IP_MAC, TxChecksum, TxFrame, TxMeta, complete_checksum, ip_header,
};
use dominoes_testkit::packet::{self, Header, Segment, UDP};
use std::net::Ipv4Addr;

pub use dominoes_testkit::packet::{ACK, LOWER as L4_START, RST, SYN};

/// The EtherType for local experiments, which kernels ignore.
pub const EXPERIMENT: [u8; 2] = [0x88, 0xb5];

/// The protocol for experiments (RFC 3692), which kernels ignore.
const EXPERIMENTAL: u8 = 253;

/// A frame for local experiments of `len` bytes, whose payload is derived from `number`. For IP
/// devices it holds a packet of IPv4 or IPv6.
pub fn experiment(to: [u8; 6], from: [u8; 6], number: u32, len: usize) -> Vec<u8> {
    let mut frame = match [to, from].contains(&IP_MAC) {
        true => experimental_packet(number, len),
        false => [&to[..], &from, &EXPERIMENT].concat(),
    };
    frame.extend(number.to_be_bytes());
    frame.extend((frame.len()..len).map(|at| (number as usize * 31 + at) as u8));
    frame
}

/// The headers of a frame of `len` bytes.
fn experimental_packet(number: u32, len: usize) -> Vec<u8> {
    let (v4, v6) = (len as u16 - 14, len as u16 - 54);
    let packet = if number.is_multiple_of(2) {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, EXPERIMENTAL, 0, 0];
        packet[2..4].copy_from_slice(&v4.to_be_bytes());
        packet.extend([198, 18, 0, 1, 198, 18, 0, 2]);
        packet
    } else {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, EXPERIMENTAL, 64];
        packet[4..6].copy_from_slice(&v6.to_be_bytes());
        packet.extend([0xfd; 32]);
        packet
    };
    [&ip_header(&packet).expect("a packet"), &packet[..]].concat()
}

/// Whether this is a frame for local experiments.
pub fn is_experiment(frame: &[u8]) -> bool {
    let protocol = match frame.get(12..14) {
        Some([0x08, 0x00]) => frame.get(23),
        Some([0x86, 0xdd]) => frame.get(20),
        kind => return kind == Some(&EXPERIMENT),
    };
    protocol == Some(&EXPERIMENTAL)
}

/// Source and destination of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub from_mac: [u8; 6],
    pub to_mac: [u8; 6],
    pub from: (Ipv4Addr, u16),
    pub to: (Ipv4Addr, u16),
}

impl Path {
    fn hosts(&self) -> packet::Path {
        packet::Path {
            from_mac: self.from_mac,
            to_mac: self.to_mac,
            from: self.from.0.octets(),
            to: self.to.0.octets(),
        }
    }
}

/// A frame to send, and the work that it leaves to the device.
#[derive(Clone, Debug)]
pub struct Packet {
    pub head: Vec<u8>,
    pub payload: Vec<u8>,
    pub meta: TxMeta,
}

impl Packet {
    /// Undoes the checksum at `offset` of the transport header. With `gso`, the device must divide
    /// the frame into pieces of that size.
    fn partial(
        mut whole: Vec<u8>,
        payload: &[u8],
        offset: u16,
        gso: Option<(GsoKind, u16)>,
    ) -> Packet {
        packet::leave_partial(&mut whole);
        let payload = whole.split_off(whole.len() - payload.len());
        let header_len = whole.len() as u16;
        let checksum = TxChecksum::Partial {
            start: L4_START as u16,
            offset,
        };
        let gso = gso.map(|(kind, size)| Gso {
            kind,
            size,
            header_len,
        });
        Packet {
            head: whole,
            payload,
            meta: TxMeta { checksum, gso },
        }
    }

    pub fn frame(&self) -> TxFrame<'_> {
        TxFrame {
            head: &self.head,
            payload: &self.payload,
            meta: self.meta,
        }
    }

    /// The same packet with its checksum computed, undivided.
    pub fn completed(&self) -> Vec<u8> {
        let mut bytes = [&self.head[..], &self.payload].concat();
        if let TxChecksum::Partial { start, offset } = self.meta.checksum {
            assert!(complete_checksum(&mut bytes, start, offset));
        }
        bytes
    }
}

/// A UDP packet with a partial checksum, to be divided into datagrams of `size` bytes if given.
pub fn udp(path: Path, payload: &[u8], size: Option<u16>) -> Packet {
    let whole = packet::udp(path.hosts(), (path.from.1, path.to.1), payload);
    Packet::partial(whole, payload, 6, size.map(|size| (GsoKind::Udp, size)))
}

/// The fields of a TCP segment that the tests use.
#[derive(Clone, Copy, Debug)]
pub struct Tcp {
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
}

/// A TCP packet with a partial checksum, to be divided into segments of `size` payload bytes if
/// given. A SYN offers an MSS of 1460 bytes and a window scale of 7.
pub fn tcp(path: Path, tcp: Tcp, payload: &[u8], size: Option<u16>) -> Packet {
    let opens = tcp.flags & SYN != 0;
    let segment = Segment {
        src_port: path.from.1,
        dst_port: path.to.1,
        seq: tcp.seq,
        ack: tcp.ack,
        flags: tcp.flags,
        wnd: u16::MAX,
        mss: opens.then_some(1460),
        scale: opens.then_some(7),
        payload: payload.to_vec(),
        ..Segment::default()
    };
    let gso = size.map(|size| (GsoKind::Tcp4, size));
    Packet::partial(segment.frame(path.hosts()), payload, 16, gso)
}

/// Source port, fields and payload of a received TCP packet. Its checksum may be partial.
pub fn parse_tcp(frame: &[u8]) -> Option<(u16, Tcp, &[u8])> {
    let header = Header::read(frame)?;
    let fields = Tcp {
        seq: header.seq,
        ack: header.ack,
        flags: header.flags,
    };
    let (begin, end) = header.payload;
    Some((header.src_port, fields, &frame[begin..end]))
}

/// The payload of a received UDP packet.
pub fn parse_udp(frame: &[u8]) -> Option<&[u8]> {
    (packet::protocol(frame)? == UDP).then(|| &frame[L4_START + 8..])
}

/// Whether this is an ARP request for `address`.
pub fn is_arp_request(frame: &[u8], address: Ipv4Addr) -> bool {
    packet::asked(frame) == Some(address.octets())
}
