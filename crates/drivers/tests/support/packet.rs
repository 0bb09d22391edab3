//! Just enough of Ethernet, IPv4, UDP and TCP to talk to a kernel.

use dominoes_drivers::{Gso, GsoKind, TxChecksum, TxFrame, TxMeta, complete_checksum};
use std::net::Ipv4Addr;

/// The EtherType for local experiments: no kernel minds such frames.
pub const EXPERIMENT: [u8; 2] = [0x88, 0xb5];

/// Bytes of Ethernet and IPv4 headers.
pub const L4_START: usize = 34;

const UDP: u8 = 17;
const TCP: u8 = 6;

/// Flags of a TCP segment.
pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

/// A frame for local experiments of `len` bytes, whose payload follows from `number`.
pub fn experiment(to: [u8; 6], from: [u8; 6], number: u32, len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &EXPERIMENT, &number.to_be_bytes()].concat();
    frame.extend((frame.len()..len).map(|at| (number as usize * 31 + at) as u8));
    frame
}

/// Whether this is a frame for local experiments.
pub fn is_experiment(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&EXPERIMENT)
}

/// Where a packet comes from and goes to.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub from_mac: [u8; 6],
    pub to_mac: [u8; 6],
    pub from: (Ipv4Addr, u16),
    pub to: (Ipv4Addr, u16),
}

/// A frame to send with what the device is to do to it.
#[derive(Clone, Debug)]
pub struct Packet {
    pub head: Vec<u8>,
    pub payload: Vec<u8>,
    pub meta: TxMeta,
}

impl Packet {
    pub fn frame(&self) -> TxFrame<'_> {
        TxFrame {
            head: &self.head,
            payload: &self.payload,
            meta: self.meta,
        }
    }

    /// The same packet with its checksum done, in one piece.
    pub fn completed(&self) -> Vec<u8> {
        let mut bytes = [&self.head[..], &self.payload].concat();
        if let TxChecksum::Partial { start, offset } = self.meta.checksum {
            assert!(complete_checksum(&mut bytes, start, offset));
        }
        bytes
    }
}

/// A UDP packet with a partial checksum, in datagrams of `size` bytes if it is given.
pub fn udp(path: Path, payload: &[u8], size: Option<u16>) -> Packet {
    let len = (8 + payload.len()) as u16;
    let mut head = [
        path.from.1.to_be_bytes(),
        path.to.1.to_be_bytes(),
        len.to_be_bytes(),
        [0; 2],
    ]
    .concat();
    let gso = size.map(|size| Gso {
        kind: GsoKind::Udp,
        size,
        header_len: (L4_START + 8) as u16,
    });
    head.splice(0..0, below(path, UDP, head.len() + payload.len()));
    partial(head, payload, path, UDP, 6, gso)
}

/// The fields of a TCP segment that the tests care for.
#[derive(Clone, Copy, Debug)]
pub struct Tcp {
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
}

/// A TCP packet with a partial checksum, in segments of `size` payload bytes if it is given. A SYN
/// offers segments of 1460 bytes and a window scale of 7.
pub fn tcp(path: Path, tcp: Tcp, payload: &[u8], size: Option<u16>) -> Packet {
    let options: &[u8] = if tcp.flags & SYN != 0 {
        &[2, 4, 0x05, 0xb4, 1, 3, 3, 7]
    } else {
        &[]
    };
    let mut head = [path.from.1.to_be_bytes(), path.to.1.to_be_bytes()].concat();
    head.extend(tcp.seq.to_be_bytes());
    head.extend(tcp.ack.to_be_bytes());
    head.extend([
        (((20 + options.len()) / 4) << 4) as u8,
        tcp.flags,
        0xff,
        0xff,
        0,
        0,
        0,
        0,
    ]);
    head.extend(options);
    let header_len = (L4_START + head.len()) as u16;
    let gso = size.map(|size| Gso {
        kind: GsoKind::Tcp4,
        size,
        header_len,
    });
    head.splice(0..0, below(path, TCP, head.len() + payload.len()));
    partial(head, payload, path, TCP, 16, gso)
}

/// Ethernet and IPv4 headers for `len` bytes above them.
fn below(path: Path, protocol: u8, len: usize) -> Vec<u8> {
    let total = (20 + len) as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip.extend(path.from.0.octets());
    ip.extend(path.to.0.octets());
    complete_checksum(&mut ip, 0, 10);
    [&path.to_mac[..], &path.from_mac, &[0x08, 0x00], &ip].concat()
}

fn partial(
    mut head: Vec<u8>,
    payload: &[u8],
    path: Path,
    protocol: u8,
    offset: u16,
    gso: Option<Gso>,
) -> Packet {
    let len = (head.len() + payload.len() - L4_START) as u32;
    let pseudo = [path.from.0, path.to.0].map(|ip| ip.to_bits());
    let mut sum = pseudo
        .iter()
        .map(|ip| (ip >> 16) + (ip & 0xffff))
        .sum::<u32>()
        + u32::from(protocol)
        + len;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let field = L4_START + usize::from(offset);
    head[field..field + 2].copy_from_slice(&(sum as u16).to_be_bytes());
    let checksum = TxChecksum::Partial {
        start: L4_START as u16,
        offset,
    };
    Packet {
        head,
        payload: payload.to_vec(),
        meta: TxMeta { checksum, gso },
    }
}

/// A received TCP packet: its source port, fields and payload.
pub fn parse_tcp(frame: &[u8]) -> Option<(u16, Tcp, &[u8])> {
    if frame.get(12..15) != Some(&[0x08, 0x00, 0x45]) || frame[23] != TCP {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let segment = frame.get(L4_START..14 + total)?;
    let word = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().expect("four bytes"));
    let fields = Tcp {
        seq: word(4),
        ack: word(8),
        flags: segment[13],
    };
    Some((
        (word(0) >> 16) as u16,
        fields,
        &segment[usize::from(segment[12] >> 4) * 4..],
    ))
}

/// A received UDP packet: its payload.
pub fn parse_udp(frame: &[u8]) -> Option<&[u8]> {
    let is_udp = frame.get(12..15) == Some(&[0x08, 0x00, 0x45]) && frame[23] == UDP;
    is_udp.then(|| &frame[L4_START + 8..])
}

/// Whether this is an ARP request for `address`.
pub fn is_arp_request(frame: &[u8], address: Ipv4Addr) -> bool {
    frame.get(12..14) == Some(&[0x08, 0x06])
        && frame.get(20..22) == Some(&[0, 1])
        && frame.get(38..42) == Some(&address.octets())
}
