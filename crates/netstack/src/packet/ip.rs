//! IPv4 headers of everything but TCP, and fragments.

use std::net::Ipv4Addr;

use smoltcp::wire as sw;

use crate::packet::ETHERNET_HEADER;

/// Bytes of an Ethernet and an IPv4 header without options.
pub(crate) const IP_HEADERS: usize = ETHERNET_HEADER + 20;

/// Protocol numbers.
pub(crate) const ICMP: u8 = 1;
pub(crate) const UDP: u8 = 17;

/// What the headers of an outgoing packet say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IpHeaders {
    pub(crate) src_mac: [u8; 6],
    pub(crate) dst_mac: [u8; 6],
    pub(crate) src: Ipv4Addr,
    pub(crate) dst: Ipv4Addr,
    pub(crate) protocol: u8,
    pub(crate) ttl: u8,
    /// DSCP (RFC 2474) and ECN (RFC 3168).
    pub(crate) tos: u8,
    /// Identification: the same in all fragments of a datagram, and in no other for long (RFC
    /// 6864).
    pub(crate) ident: u16,
    /// Place of a fragment in its datagram, in bytes.
    pub(crate) offset: u32,
    /// Whether fragments follow.
    pub(crate) more: bool,
    /// Bytes behind the header.
    pub(crate) payload_len: usize,
}

/// Writes Ethernet and IPv4 headers to the front of `buffer`. Routers may cut the packet.
///
/// # Panics
/// If `buffer` is shorter than [`IP_HEADERS`].
pub(crate) fn emit_ip(buffer: &mut [u8], h: &IpHeaders) {
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
    ip.set_ident(h.ident);
    ip.clear_flags();
    ip.set_more_frags(h.more);
    ip.set_frag_offset(h.offset as u16);
    ip.set_hop_limit(h.ttl);
    ip.set_next_header(sw::IpProtocol::from(h.protocol));
    ip.set_src_addr(h.src);
    ip.set_dst_addr(h.dst);
    ip.fill_checksum();
}

/// What the header of a fragment says, and where its payload lies in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentHeader {
    pub(crate) src: Ipv4Addr,
    pub(crate) dst: Ipv4Addr,
    pub(crate) protocol: u8,
    pub(crate) ident: u16,
    /// Place in its datagram, in bytes.
    pub(crate) offset: u32,
    pub(crate) more: bool,
    pub(crate) ecn: u8,
    /// Bytes of the frame before the payload.
    pub(crate) head: usize,
    /// Bytes of the frame up to its end.
    pub(crate) end: usize,
}

/// Reads the header of a fragment. `None` if the frame is not what [`crate::packet::parse`] called
/// one.
pub(crate) fn fragment_header(frame: &[u8]) -> Option<FragmentHeader> {
    let ip = sw::Ipv4Packet::new_checked(frame.get(ETHERNET_HEADER..)?).ok()?;
    Some(FragmentHeader {
        src: ip.src_addr(),
        dst: ip.dst_addr(),
        protocol: ip.next_header().into(),
        ident: ip.ident(),
        offset: u32::from(ip.frag_offset()),
        more: ip.more_frags(),
        ecn: ip.ecn(),
        head: ETHERNET_HEADER + usize::from(ip.header_len()),
        end: ETHERNET_HEADER + usize::from(ip.total_len()),
    })
}

/// Makes the packet whose header is at the front of `frame` another piece of its datagram, or with
/// offset 0 and nothing behind it the whole. `ce` marks congestion.
///
/// # Panics
/// If `frame` is shorter than its headers.
pub(crate) fn set_piece(frame: &mut [u8], total_len: u16, offset: u32, more: bool, ce: bool) {
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
