//! Packets of IPv6 (RFC 8200).

use core::net::Ipv6Addr;

use smoltcp::wire::{IpProtocol, checksum};

use super::{ETHERNET, Mac, TCP, UDP, sum};

/// The protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;
/// Bytes before the payload of an IPv6 packet; extension headers are part of the payload.
pub const LOWER: usize = ETHERNET + 40;

/// Sender and receiver of a frame of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Ethernet address of the sender.
    pub from_mac: Mac,
    /// Ethernet address of the receiver.
    pub to_mac: Mac,
    /// Address of the sender.
    pub from: Ipv6Addr,
    /// Address of the receiver.
    pub to: Ipv6Addr,
    /// The remaining hops.
    pub hop_limit: u8,
}

/// The group that receives solicitations for `address` (RFC 4291 section 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// The Ethernet address of a group (RFC 2464 section 7).
pub fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// The sum over the pseudo-header of a packet and `transport` (RFC 8200 section 8.1), folded and
/// not complemented.
pub fn transport_sum(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, transport: &[u8]) -> u16 {
    let protocol = IpProtocol::from(protocol);
    let pseudo = checksum::pseudo_header_v6(&from, &to, protocol, transport.len() as u32);
    checksum::combine(&[pseudo, sum(transport)])
}

/// A frame with an IPv6 header and `payload`, whose first header has the number `next`. A
/// checksum of TCP, UDP or ICMPv6 directly after the IPv6 header is made right.
pub fn frame(path: Path, next: u8, payload: &[u8]) -> Vec<u8> {
    let mut payload = payload.to_vec();
    let field = match next {
        TCP => 16,
        UDP => 6,
        ICMPV6 => 2,
        _ => usize::MAX,
    };
    if let Some(place) = payload.get_mut(field..).and_then(|rest| rest.get_mut(..2)) {
        place.fill(0);
        let right = !transport_sum(path.from, path.to, next, &payload);
        payload[field..field + 2].copy_from_slice(&right.to_be_bytes());
    }
    let mut frame = [path.to_mac, path.from_mac].concat();
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([next, path.hop_limit]);
    frame.extend(path.from.octets());
    frame.extend(path.to.octets());
    frame.extend(payload);
    frame
}

/// A packet of IPv6 in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Sender and receiver.
    pub path: Path,
    /// The number of the header after the IPv6 header.
    pub next: u8,
    /// The bytes after the IPv6 header.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a frame; `None` if it is not IPv6, or its length does not fit.
    pub fn read(frame: &'a [u8]) -> Option<Packet<'a>> {
        let header: &[u8; LOWER] = frame.first_chunk()?;
        let len = usize::from(u16::from_be_bytes([header[18], header[19]]));
        let address = |at: usize| {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&header[at..at + 16]);
            Ipv6Addr::from(bytes)
        };
        let is_ipv6 = header[12..14] == [0x86, 0xdd] && header[14] >> 4 == 6;
        let payload = frame.get(LOWER..LOWER + len)?;
        is_ipv6.then(|| Packet {
            path: Path {
                from_mac: [6, 7, 8, 9, 10, 11].map(|at| header[at]),
                to_mac: [0, 1, 2, 3, 4, 5].map(|at| header[at]),
                from: address(22),
                to: address(38),
                hop_limit: header[21],
            },
            next: header[20],
            payload,
        })
    }

    /// Whether the checksum of a TCP segment, UDP datagram or ICMPv6 message directly after the
    /// header is right; true for anything else.
    pub fn is_right(&self) -> bool {
        let Path { from, to, .. } = self.path;
        !matches!(self.next, TCP | UDP | ICMPV6)
            || transport_sum(from, to, self.next, self.payload) == 0xffff
    }
}
