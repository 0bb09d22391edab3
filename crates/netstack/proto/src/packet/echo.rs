//! Echo messages of both families (RFC 792, RFC 4443 section 4), for the host that asks.

use smoltcp::wire as sw;

use super::flow::Address;
use super::ip::{ICMP, IP_HEADERS, IpHeaders, emit_ip};
use super::ipv6::{self, ICMPV6, Ipv6Header};
use super::{ETHERNET_HEADER, icmpv6};

/// Types of echo requests.
const REQUEST: u8 = 8;
const REQUEST_V6: u8 = 128;
/// Bytes before the data.
const HEADER: usize = 8;

/// An echo reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    pub from: Address,
    pub ident: u16,
    pub sequence: u16,
    pub ttl: u8,
    pub data: &'a [u8],
}

/// The frame of an echo request, which may exceed the MTU, without a link-layer destination.
pub fn echo_request(
    (src_mac, src): ([u8; 6], Address),
    (dst, ttl): (Address, u8),
    number: u32,
    (ident, sequence): (u16, u16),
    data: &[u8],
) -> Vec<u8> {
    let [a, b] = ident.to_be_bytes();
    let [c, d] = sequence.to_be_bytes();
    let kind = if dst.is_v4() { REQUEST } else { REQUEST_V6 };
    let message = [&[kind, 0, 0, 0, a, b, c, d], data].concat();
    if !dst.is_v4() {
        let header = Ipv6Header {
            src_mac,
            dst_mac: [0; 6],
            src,
            dst,
            next_header: ICMPV6,
            hop_limit: ttl,
            traffic_class: 0,
            label: 0,
            payload_len: 0,
        };
        return icmpv6::frame(&header, &message);
    }
    let headers = IpHeaders {
        src_mac,
        dst_mac: [0; 6],
        src,
        dst,
        protocol: ICMP,
        ttl,
        tos: 0,
        ident: number,
        label: 0,
        offset: 0,
        more: false,
        payload_len: message.len(),
    };
    let mut frame = vec![0; IP_HEADERS];
    emit_ip(&mut frame, &headers);
    frame.extend(message);
    sw::Icmpv4Packet::new_unchecked(&mut frame[IP_HEADERS..]).fill_checksum();
    frame
}

/// Reads an echo reply; `None` if its checksum is wrong, or it is another message.
pub fn echo_of(frame: &[u8]) -> Option<Echo<'_>> {
    let (from, ttl, message) = if super::is_ipv6(frame) {
        // The parser has verified its checksum.
        let (from, _, range) = ipv6::upper(frame)?;
        (from, *frame.get(ETHERNET_HEADER + 7)?, frame.get(range)?)
    } else {
        let ip = sw::Ipv4Packet::new_checked(frame.get(ETHERNET_HEADER..)?).ok()?;
        let message = ip.payload();
        if !sw::Icmpv4Packet::new_checked(message)
            .ok()?
            .verify_checksum()
        {
            return None;
        }
        (ip.src_addr().into(), ip.hop_limit(), message)
    };
    let [_, _, _, _, a, b, c, d] = *message.first_chunk()?;
    Some(Echo {
        from,
        ident: u16::from_be_bytes([a, b]),
        sequence: u16::from_be_bytes([c, d]),
        ttl,
        data: &message[HEADER..],
    })
}
