//! IP headers of all packets except TCP, and fragments.

use core::net::Ipv4Addr;

use smoltcp::wire as sw;

use super::ipv6::{self, FRAGMENT_HEADER, IPV6_HEADERS};
use crate::packet::ETHERNET_HEADER;
use crate::packet::flow::Address;

/// Bytes of an Ethernet and an IPv4 header without options.
pub const IP_HEADERS: usize = ETHERNET_HEADER + 20;

/// Bytes of all headers that we write before the IP payload of a frame to `dst`, including the
/// fragment header of an IPv6 fragment.
#[inline]
pub const fn ip_headers_len(dst: Address, is_fragment: bool) -> usize {
    if dst.is_v4() {
        IP_HEADERS
    } else if is_fragment {
        IPV6_HEADERS + FRAGMENT_HEADER
    } else {
        IPV6_HEADERS
    }
}

/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of UDP.
pub const UDP: u8 = 17;

/// The header fields of an outgoing packet.
#[derive(Clone, Copy, Debug)]
pub struct IpHeaders {
    /// Link-layer address of the sender.
    pub src_mac: [u8; 6],
    /// Link-layer address of the next hop.
    pub dst_mac: [u8; 6],
    /// Source address.
    pub src: Address,
    /// Destination address, of the same family.
    pub dst: Address,
    /// Number of the protocol after the header.
    pub protocol: u8,
    /// Hops that the packet may make.
    pub ttl: u8,
    /// DSCP (RFC 2474) and ECN (RFC 3168).
    pub tos: u8,
    /// Identification: equal in all fragments of a datagram, and in no other datagram for long
    /// (RFC 6864). IPv4 uses its lower half.
    pub ident: u32,
    /// Flow label of IPv6 (RFC 6437).
    pub label: u32,
    /// Offset of a fragment in its datagram, in bytes.
    pub offset: u32,
    /// Whether fragments follow.
    pub more: bool,
    /// Bytes after the header.
    pub payload_len: usize,
}

impl IpHeaders {
    /// Bytes that [`emit_ip`] writes.
    pub const fn headers_len(&self) -> usize {
        ip_headers_len(self.dst, self.offset > 0 || self.more)
    }
}

/// Writes Ethernet and IP headers to the front of `buffer`, [`IpHeaders::headers_len`] bytes.
/// Routers may fragment an IPv4 packet; an IPv6 fragment gets a fragment header.
///
/// # Panics
/// If `buffer` is shorter than the headers.
pub fn emit_ip(buffer: &mut [u8], h: &IpHeaders) {
    if !h.dst.is_v4() {
        return emit_ipv6(buffer, h);
    }
    let (link, rest) = buffer.split_at_mut(ETHERNET_HEADER);
    let mut eth = sw::EthernetFrame::new_unchecked(link);
    eth.set_dst_addr(sw::EthernetAddress(h.dst_mac));
    eth.set_src_addr(sw::EthernetAddress(h.src_mac));
    eth.set_ethertype(sw::EthernetProtocol::Ipv4);
    let mut ip = sw::Ipv4Packet::new_unchecked(&mut rest[..20]);
    ip.set_version(4);
    ip.set_header_len(20);
    ip.set_dscp(h.tos >> 2);
    ip.set_ecn(h.tos & 3);
    ip.set_total_len((20 + h.payload_len) as u16);
    ip.set_ident(h.ident as u16);
    ip.clear_flags();
    ip.set_more_frags(h.more);
    ip.set_frag_offset(h.offset as u16);
    ip.set_hop_limit(h.ttl);
    ip.set_next_header(sw::IpProtocol::from(h.protocol));
    ip.set_src_addr(Ipv4Addr::from_bits(h.src.v4_bits()));
    ip.set_dst_addr(Ipv4Addr::from_bits(h.dst.v4_bits()));
    ip.fill_checksum();
}

/// Forbids routers to fragment the IPv4 packet in this frame (RFC 791 section 3.1, DF).
pub fn set_dont_fragment(frame: &mut [u8]) {
    let mut ip = sw::Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..IP_HEADERS]);
    ip.set_dont_frag(true);
    ip.fill_checksum();
}

fn emit_ipv6(buffer: &mut [u8], h: &IpHeaders) {
    let len = h.headers_len();
    let is_fragment = len > IPV6_HEADERS;
    let header = ipv6::Ipv6Header {
        src_mac: h.src_mac,
        dst_mac: h.dst_mac,
        src: h.src,
        dst: h.dst,
        next_header: if is_fragment { 44 } else { h.protocol },
        hop_limit: h.ttl,
        traffic_class: h.tos,
        label: h.label,
        payload_len: len - IPV6_HEADERS + h.payload_len,
    };
    ipv6::emit(buffer, &header);
    if is_fragment {
        let rest = &mut buffer[IPV6_HEADERS..];
        ipv6::emit_fragment_header(rest, h.protocol, h.offset, h.more, h.ident);
    }
}

/// The header fields of a fragment, and the position of its payload in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// Source address.
    pub src: Address,
    /// Destination address, of the same family.
    pub dst: Address,
    /// 0 for IPv6, where it does not identify a datagram (RFC 8200 section 4.5).
    pub protocol: u8,
    pub ident: u32,
    /// Offset in its datagram, in bytes.
    pub offset: u32,
    pub more: bool,
    pub ecn: u8,
    /// Bytes of the frame before the payload.
    pub head: usize,
    /// Bytes of the frame up to the end of the payload.
    pub end: usize,
}

/// Reads the header of a fragment; `None` unless [`crate::packet::parse`] accepts it as one.
pub fn fragment_header(frame: &[u8]) -> Option<FragmentHeader> {
    if let Some((src, dst)) = ipv6::ends(frame) {
        let fields = ipv6::fragment_fields(frame)?;
        return Some(FragmentHeader {
            src,
            dst,
            protocol: 0,
            ident: fields.ident,
            offset: fields.offset,
            more: fields.more,
            ecn: ipv6::traffic_class(frame) & 0b11,
            head: fields.head,
            end: fields.end,
        });
    }
    let ip = sw::Ipv4Packet::new_checked(frame.get(ETHERNET_HEADER..)?).ok()?;
    Some(FragmentHeader {
        src: ip.src_addr().into(),
        dst: ip.dst_addr().into(),
        protocol: ip.next_header().into(),
        ident: ip.ident().into(),
        offset: u32::from(ip.frag_offset()),
        more: ip.more_frags(),
        ecn: ip.ecn(),
        head: ETHERNET_HEADER + usize::from(ip.header_len()),
        end: ETHERNET_HEADER + usize::from(ip.total_len()),
    })
}

/// Turns the IPv4 packet whose header is at the front of `frame` into another fragment of its
/// datagram, or into the whole datagram (offset 0 and no more fragments). `ce` marks congestion.
///
/// # Panics
/// If `frame` is shorter than its headers.
pub fn set_piece(frame: &mut [u8], total_len: u16, offset: u32, more: bool, ce: bool) {
    let mut ip = sw::Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]);
    ip.set_total_len(total_len);
    ip.clear_flags();
    ip.set_more_frags(more);
    ip.set_frag_offset(offset as u16);
    if ce {
        ip.set_ecn(3);
    }
    ip.fill_checksum();
}
