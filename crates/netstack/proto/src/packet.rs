//! Reads and writes packet headers; the only module that names the header-parsing crate.
//!
//! Parsing accepts any bytes and never panics; emitting panics if the buffer is too small for
//! the headers.

pub mod checksum;
pub mod dhcp;
#[cfg(feature = "dns")]
pub mod dns;
mod echo;
pub mod flow;
mod forward;
mod header_template;
mod icmp;
pub mod icmp_error;
pub mod icmpv6;
pub mod igmp;
mod ip;
pub mod ipv6;
pub mod mld;
pub mod ndp;
mod udp;

use crate::packet::flow::{Address, Flow, IpFields};
use core::net::Ipv4Addr;

use smoltcp::wire as sw;

pub use crate::packet::icmp_error::TcpError;
pub use echo::{echo_of, echo_request};
pub use forward::{
    Forwarded, decrement_ttl, forwarded, options, set_internetwork_control, set_link,
};
pub use header_template::{Acknowledged, HeaderTemplate, HeaderTemplateV6, Template};
pub use icmp::{IcmpError, UdpError, echo_reply, error_about};
pub use ip::{
    ICMP, IP_HEADERS, IpHeaders, UDP, emit_ip, fragment_header, ip_headers_len, set_dont_fragment,
    set_piece,
};
pub use ipv6::{ICMPV6, IPV6_MIN_MTU, Problem, is_ipv6};
pub use udp::{
    UDP_HEADER, Udp, UdpDatagram, UdpHeaders, emit_udp, set_udp_checksum, udp_checksummed,
    udp_datagram,
};

/// Bytes of an Ethernet header.
pub const ETHERNET_HEADER: usize = sw::ETHERNET_HEADER_LEN;
/// Maximum number of header bytes of a frame: Ethernet, IPv6 and TCP with all options we send.
pub const MAX_HEADERS: usize = ETHERNET_HEADER + 40 + 60;

/// Why a frame could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A length field or the frame itself is too short.
    Truncated,
    /// The IPv4 header checksum is wrong.
    IpChecksum,
    /// The checksum of an ICMPv6 message is wrong.
    Checksum,
    /// Options do not parse.
    Options,
}

/// The content of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Packet {
    /// ARP over Ethernet for IPv4.
    Arp(Arp),
    /// A TCP segment.
    Tcp(Tcp),
    /// An ICMP echo request.
    EchoRequest {
        /// The host that is asked.
        dst: Address,
    },
    /// An ICMP echo reply.
    EchoReply {
        /// The host that asked.
        dst: Address,
    },
    /// An ICMP error about a segment.
    TcpError(TcpError),
    /// A UDP datagram.
    Udp(Udp),
    /// An ICMP error about one of our UDP datagrams.
    UdpError {
        /// The error.
        error: UdpError,
        /// The host to which the error was sent.
        dst: Address,
    },
    /// A router reports that our ICMPv6 message or later fragment exceeds the next link's MTU.
    TooBig {
        /// The host to which the report was sent.
        dst: Address,
        /// Source and destination of the packet.
        sent: (Address, Address),
        /// Length of the packet, in bytes.
        len: u16,
        /// MTU of that link, in bytes.
        mtu: u16,
    },
    /// A fragment of a packet.
    Fragment {
        /// The receiver.
        dst: Address,
    },
    /// An IPv4 packet of a protocol that we do not support.
    OtherProtocol {
        /// The receiver.
        dst: Address,
    },
    /// An IPv6 packet that cannot be processed, and why.
    Problem {
        /// The receiver.
        dst: Address,
        /// The problem.
        problem: Problem,
    },
    /// An IPv6 message of neighbour discovery or of multicast listeners.
    Link {
        /// The receiver.
        dst: Address,
    },
    /// Anything else that is not handled.
    Unknown,
}

/// An ARP message (RFC 826).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Request, or reply.
    pub request: bool,
    /// Sender's link-layer address.
    pub sender_mac: [u8; 6],
    /// Sender's address.
    pub sender: Address,
    /// Target's address.
    pub target: Address,
}

/// The headers of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Sender's address.
    pub src: Address,
    /// Receiver's address.
    pub dst: Address,
    /// Sender's port.
    pub src_port: u16,
    /// Receiver's port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// Window field.
    pub wnd: u16,
    /// Control bits.
    pub flags: u8,
    /// Whether the packet arrived with a CE mark (RFC 3168).
    pub ce: bool,
    /// Bytes of the frame before the payload.
    pub payload_offset: u16,
    /// Payload bytes.
    pub payload_len: u32,
    /// TSval and TSecr.
    pub timestamps: Option<(u32, u32)>,
    /// Options other than timestamps.
    pub options: TcpOptions,
}

/// TCP options other than timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Whether at least one of these options was present.
    pub any: bool,
    /// Maximum segment size.
    pub mss: Option<u16>,
    /// Window scale.
    pub window_scale: Option<u8>,
    /// SACK permitted.
    pub sack_permitted: bool,
    /// SACK blocks.
    pub sack: SackBlocks,
}

/// SACK blocks (RFC 2018 section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    /// The number of blocks.
    pub count: u8,
    /// Left and right edges.
    pub edges: [(u32, u32); 4],
}

impl SackBlocks {
    /// The blocks that are present.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.edges.iter().copied().take(usize::from(self.count))
    }

    /// Bytes of the option, including two NOPs that align it.
    const fn option_len(&self) -> usize {
        if self.count == 0 {
            0
        } else {
            4 + 8 * self.count as usize
        }
    }
}

/// The link-layer source and destination of a frame, if it is long enough to have them.
#[inline]
pub fn link(frame: &[u8]) -> Option<([u8; 6], [u8; 6])> {
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, _, _] = *frame.first_chunk()?;
    Some(([s0, s1, s2, s3, s4, s5], [d0, d1, d2, d3, d4, d5]))
}

/// The IPv4 source and destination of a frame, if it is long enough to have them. Nothing else is
/// checked.
#[inline]
pub fn ends_v4(frame: &[u8]) -> Option<(Address, Address)> {
    let header: &[u8; ETHERNET_HEADER + 20] = frame.first_chunk()?;
    let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
    (header[12..14] == [0x08, 0x00])
        .then(|| (Address::ipv4(s0, s1, s2, s3), Address::ipv4(d0, d1, d2, d3)))
}

/// The source and destination in a frame of either family, if it is long enough. No other check.
#[inline]
pub fn ends(frame: &[u8]) -> Option<(Address, Address)> {
    ends_v4(frame).or_else(|| ipv6::ends(frame))
}

/// The number in the four bytes from `at` on.
#[inline(always)]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    // Not by `map` over an array, which becomes a call for each byte.
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Source, destination, and both ports of a TCP segment whose IPv4 header has no options; for
/// IPv6, the last 32 bits of each address. Nothing else is checked; in a fragment other than
/// the first, the ports are unrelated bytes.
#[inline]
pub fn plain_tcp_flow(frame: &[u8]) -> Option<[u32; 3]> {
    let header: &[u8; ETHERNET_HEADER + 24] = frame.first_chunk()?;
    let word = |at: usize| u32_at(header, ETHERNET_HEADER + at);
    let is_plain = header[12..15] == [0x08, 0x00, 0x45] && header[ETHERNET_HEADER + 9] == 6;
    if !is_plain {
        return ipv6::plain_tcp_flow(frame);
    }
    Some([word(12), word(16), word(20)])
}

/// Stores the link-layer destination of a frame that was built without one.
///
/// # Panics
/// If it is shorter than a link-layer address.
pub fn set_link_dst(frame: &mut [u8], dst: [u8; 6]) {
    frame[..6].copy_from_slice(&dst);
}

/// Reads the headers of a frame. Does not check the TCP checksum.
///
/// # Errors
/// Why the frame could not be read.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Packet, Malformed> {
    match parse_plain(frame) {
        Some(tcp) => Ok(Packet::Tcp(tcp)),
        None => parse_any(frame),
    }
}

/// The fast path for nearly every segment: IPv4 without options, not fragmented, and TCP with no
/// options but timestamps in their usual layout. Returns the result of [`parse_any`], or `None`.
#[inline]
fn parse_plain(frame: &[u8]) -> Option<Tcp> {
    const TCP: usize = ETHERNET_HEADER + 20;
    let h: &[u8; TCP + 20] = frame.first_chunk()?;
    let short = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
    let long = |at: usize| u32_at(h, at);
    let ip = |at: usize| ETHERNET_HEADER + at;
    let total = usize::from(short(ip(2)));
    // EtherType, version with header length, protocol, and no fragment.
    let plain =
        short(12) == 0x0800 && h[ip(0)] == 0x45 && h[ip(9)] == 6 && short(ip(6)) & 0x3fff == 0;
    if !plain || frame.len() < ETHERNET_HEADER + total {
        return None;
    }
    let sum: u64 = (0..5).map(|word| u64::from(long(ip(4 * word)))).sum();
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let header_len = usize::from(h[TCP + 12] >> 4) * 4;
    if sum != 0xffff || total < 20 + header_len {
        return None;
    }
    let timestamps = match header_len {
        20 => None,
        32 => Some(only_timestamps(frame.get(TCP + 20..)?.first_chunk()?)?),
        _ => return None,
    };
    Some(Tcp {
        src: Address::v4(long(ip(12))),
        dst: Address::v4(long(ip(16))),
        src_port: short(TCP),
        dst_port: short(TCP + 2),
        seq: long(TCP + 4),
        ack: long(TCP + 8),
        wnd: short(TCP + 14),
        flags: h[TCP + 13],
        ce: h[ip(1)] & 0b11 == 0b11,
        payload_offset: (TCP + header_len) as u16,
        payload_len: (total - 20 - header_len) as u32,
        timestamps,
        options: TcpOptions::default(),
    })
}

fn parse_any(frame: &[u8]) -> Result<Packet, Malformed> {
    if let Some(udp) = udp::parse_plain(frame) {
        return Ok(Packet::Udp(udp));
    }
    let eth = sw::EthernetFrame::new_checked(frame).map_err(|_| Malformed::Truncated)?;
    match eth.ethertype() {
        sw::EthernetProtocol::Ipv4 => parse_ipv4(eth.payload()),
        sw::EthernetProtocol::Ipv6 => ipv6::parse(frame),
        sw::EthernetProtocol::Arp => parse_arp(eth.payload()),
        _ => Ok(Packet::Unknown),
    }
}

fn parse_arp(bytes: &[u8]) -> Result<Packet, Malformed> {
    let packet = sw::ArpPacket::new_checked(bytes).map_err(|_| Malformed::Truncated)?;
    match sw::ArpRepr::parse(&packet) {
        Ok(sw::ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        }) => {
            let request = match operation {
                sw::ArpOperation::Request => true,
                sw::ArpOperation::Reply => false,
                _ => return Ok(Packet::Unknown),
            };
            Ok(Packet::Arp(Arp {
                request,
                sender_mac: source_hardware_addr.0,
                sender: source_protocol_addr.into(),
                target: target_protocol_addr.into(),
            }))
        }
        _ => Ok(Packet::Unknown),
    }
}

fn parse_ipv4(bytes: &[u8]) -> Result<Packet, Malformed> {
    let ip = sw::Ipv4Packet::new_checked(bytes).map_err(|_| Malformed::Truncated)?;
    if ip.version() != 4 || ip.header_len() < 20 {
        return Err(Malformed::Truncated);
    }
    if !ip.verify_checksum() {
        return Err(Malformed::IpChecksum);
    }
    let (src, dst) = (ip.src_addr().into(), ip.dst_addr().into());
    if ip.more_frags() || ip.frag_offset() != 0 {
        return Ok(Packet::Fragment { dst });
    }
    match ip.next_header() {
        sw::IpProtocol::Tcp => {
            let at = ETHERNET_HEADER + usize::from(ip.header_len());
            parse_tcp(ip.payload(), (src, dst), ip.ecn() == 0b11, at)
        }
        sw::IpProtocol::Udp => udp::parse_udp(ip.payload(), src, dst),
        sw::IpProtocol::Icmp => match crate::packet::icmp_error::parse(&ip) {
            Some(error) => Ok(Packet::TcpError(error)),
            None => icmp::parse_icmp(&ip),
        },
        _ => Ok(Packet::OtherProtocol { dst }),
    }
}

/// Reads a segment that begins at byte `at` of its frame.
fn parse_tcp(
    raw: &[u8],
    (src, dst): (Address, Address),
    ce: bool,
    at: usize,
) -> Result<Packet, Malformed> {
    let tcp = sw::TcpPacket::new_checked(raw).map_err(|_| Malformed::Truncated)?;
    let header_len = usize::from(tcp.header_len());
    let flags = raw[13];
    let (timestamps, options) = if header_len == 20 {
        (None, TcpOptions::default())
    } else {
        parse_options(tcp.options())
    };
    Ok(Packet::Tcp(Tcp {
        src,
        dst,
        src_port: tcp.src_port(),
        dst_port: tcp.dst_port(),
        seq: tcp.seq_number().0 as u32,
        ack: tcp.ack_number().0 as u32,
        wnd: tcp.window_len(),
        flags,
        ce,
        payload_offset: (at + header_len) as u16,
        payload_len: (raw.len() - header_len) as u32,
        timestamps,
        options,
    }))
}

/// Kind of the SACK option.
const SACK: u8 = 5;

/// The layout of the options in nearly every segment: two NOPs and timestamps.
const ONLY_TIMESTAMPS: [u8; 4] = [1, 1, 8, 10];

/// TSval and TSecr, if the options are only timestamps in their usual layout.
#[inline(always)]
fn only_timestamps(options: &[u8; 12]) -> Option<(u32, u32)> {
    let [a, b, c, d, v0, v1, v2, v3, e0, e1, e2, e3] = *options;
    let val = u32::from_be_bytes([v0, v1, v2, v3]);
    ([a, b, c, d] == ONLY_TIMESTAMPS).then_some((val, u32::from_be_bytes([e0, e1, e2, e3])))
}

fn parse_options(mut bytes: &[u8]) -> (Option<(u32, u32)>, TcpOptions) {
    let mut timestamps = None;
    let mut options = TcpOptions::default();
    if let Ok(bytes) = bytes.try_into()
        && let Some(timestamps) = only_timestamps(bytes)
    {
        return (Some(timestamps), options);
    }
    while !bytes.is_empty() {
        // RFC 9293 section 3.1, MUST-7: after an illegal length nothing can be read.
        let Ok((rest, option)) = sw::TcpOption::parse(bytes) else {
            break;
        };
        if bytes[0] == SACK {
            options.sack = parse_sack(&bytes[2..bytes.len() - rest.len()]);
            options.any = true;
        }
        match option {
            sw::TcpOption::EndOfList => break,
            sw::TcpOption::MaxSegmentSize(mss) => {
                options.mss = Some(mss);
                options.any = true;
            }
            sw::TcpOption::WindowScale(shift) => {
                options.window_scale = Some(shift);
                options.any = true;
            }
            sw::TcpOption::SackPermitted => {
                options.sack_permitted = true;
                options.any = true;
            }
            sw::TcpOption::TimeStamp { tsval, tsecr } => timestamps = Some((tsval, tsecr)),
            _ => {}
        }
        bytes = rest;
    }
    (timestamps, options)
}

/// The blocks of a SACK option; the header-parsing crate reads only three of four.
fn parse_sack(bytes: &[u8]) -> SackBlocks {
    let mut sack = SackBlocks::default();
    for (block, edges) in bytes.chunks_exact(8).zip(&mut sack.edges) {
        let [a, b, c, d, e, f, g, h] = *block else {
            break;
        };
        *edges = (
            u32::from_be_bytes([a, b, c, d]),
            u32::from_be_bytes([e, f, g, h]),
        );
        sack.count += 1;
    }
    sack
}

/// The pieces of a received TCP frame that its checksum covers: addresses, and header with payload.
///
/// `None` if [`parse`] does not accept `frame` as a TCP segment.
pub fn checksummed(frame: &[u8]) -> Option<(Address, Address, &[u8])> {
    if is_ipv6(frame) {
        let (src, dst, range) = ipv6::upper(frame)?;
        return Some((src, dst, frame.get(range)?));
    }
    let ip = frame.get(ETHERNET_HEADER..)?;
    let header_len = usize::from(*ip.first()? & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
    let addresses: [u8; 8] = ip.get(12..20)?.try_into().ok()?;
    let [a, b, c, d, e, f, g, h] = addresses;
    Some((
        Address::ipv4(a, b, c, d),
        Address::ipv4(e, f, g, h),
        ip.get(header_len..total)?,
    ))
}

/// [`checksummed`] for IPv4 without options, as one slice from the addresses on.
#[inline]
pub fn checksummed_at_once(frame: &[u8]) -> Option<&[u8]> {
    const ADDRESSES: usize = ETHERNET_HEADER + 12;
    let [_, _, high, low] = *frame.get(ETHERNET_HEADER..)?.first_chunk()?;
    let end = ETHERNET_HEADER + usize::from(u16::from_be_bytes([high, low]));
    if frame[ETHERNET_HEADER] != 0x45 || end < ETHERNET_HEADER + 20 {
        return None;
    }
    frame.get(ADDRESSES..end)
}

/// The headers of an outgoing TCP frame.
#[derive(Clone, Copy, Debug)]
pub struct TcpHeaders {
    /// Our link-layer address.
    pub src_mac: [u8; 6],
    /// Link-layer address of the next hop.
    pub dst_mac: [u8; 6],
    /// Our end, and the peer's.
    pub flow: Flow,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// Window field.
    pub wnd: u16,
    /// Control bits.
    pub flags: u8,
    /// ECN-capable transport, ECT(0) (RFC 3168 section 5).
    pub ect: bool,
    /// The IP header fields that the user set.
    pub ip: IpFields,
    /// Flow label of IPv6 (RFC 6437).
    pub label: u32,
    /// TSval and TSecr.
    pub timestamps: Option<(u32, u32)>,
    /// MSS option.
    pub mss: Option<u16>,
    /// Window scale option.
    pub window_scale: Option<u8>,
    /// SACK-permitted option.
    pub sack_permitted: bool,
    /// SACK option; at most three blocks with timestamps.
    pub sack: SackBlocks,
    /// Bytes of payload that follow the headers.
    pub payload_len: usize,
}

/// Writes Ethernet, IP and TCP headers to the front of `buffer`; the TCP checksum field is
/// zero. Returns the length of the headers in bytes.
///
/// # Panics
/// If `buffer` is shorter than [`MAX_HEADERS`].
pub fn emit_tcp(buffer: &mut [u8], headers: &TcpHeaders) -> usize {
    let options_len = (if headers.mss.is_some() { 4 } else { 0 })
        + (if headers.window_scale.is_some() { 4 } else { 0 })
        + (if headers.sack_permitted { 4 } else { 0 })
        + (if headers.timestamps.is_some() { 12 } else { 0 })
        + headers.sack.option_len();
    let tcp_len = 20 + options_len;
    let at = ip_headers_len(headers.flow.remote.address, false);
    let all = at + tcp_len;
    let buffer = &mut buffer[..all];
    if headers.flow.remote.address.is_v4() {
        emit_ipv4_of_tcp(buffer, headers, tcp_len);
    } else {
        let header = ipv6::Ipv6Header {
            src_mac: headers.src_mac,
            dst_mac: headers.dst_mac,
            src: headers.flow.local.address,
            dst: headers.flow.remote.address,
            next_header: 6,
            hop_limit: headers.ip.ttl,
            traffic_class: headers.ip.tos & !0b11 | if headers.ect { 0b10 } else { 0 },
            label: headers.label,
            payload_len: tcp_len + headers.payload_len,
        };
        ipv6::emit(buffer, &header);
    }
    let bytes = &mut buffer[at..];
    let mut tcp = sw::TcpPacket::new_unchecked(&mut *bytes);
    tcp.set_src_port(headers.flow.local.port);
    tcp.set_dst_port(headers.flow.remote.port);
    tcp.set_seq_number(sw::TcpSeqNumber(headers.seq as i32));
    tcp.set_ack_number(sw::TcpSeqNumber(headers.ack as i32));
    tcp.set_window_len(headers.wnd);
    tcp.clear_flags();
    tcp.set_header_len(tcp_len as u8);
    tcp.set_checksum(0);
    tcp.set_urgent_at(0);
    bytes[13] = headers.flags;
    emit_options(&mut bytes[20..], headers);
    all
}

/// Writes the Ethernet and IPv4 headers of a segment.
fn emit_ipv4_of_tcp(buffer: &mut [u8], headers: &TcpHeaders, tcp_len: usize) {
    let mut eth = sw::EthernetFrame::new_unchecked(&mut buffer[..ETHERNET_HEADER]);
    eth.set_dst_addr(sw::EthernetAddress(headers.dst_mac));
    eth.set_src_addr(sw::EthernetAddress(headers.src_mac));
    eth.set_ethertype(sw::EthernetProtocol::Ipv4);

    let mut ip = sw::Ipv4Packet::new_unchecked(&mut buffer[ETHERNET_HEADER..ETHERNET_HEADER + 20]);
    ip.set_version(4);
    ip.set_header_len(20);
    ip.set_dscp(headers.ip.tos >> 2);
    ip.set_ecn(if headers.ect { 0b10 } else { 0 });
    ip.set_total_len((20 + tcp_len + headers.payload_len) as u16);
    // An atomic datagram: the identification has no meaning (RFC 6864 section 4.1).
    ip.set_ident(0);
    ip.clear_flags();
    ip.set_dont_frag(true);
    ip.set_frag_offset(0);
    ip.set_hop_limit(headers.ip.ttl);
    ip.set_next_header(sw::IpProtocol::Tcp);
    ip.set_src_addr(Ipv4Addr::from_bits(headers.flow.local.address.v4_bits()));
    ip.set_dst_addr(Ipv4Addr::from_bits(headers.flow.remote.address.v4_bits()));
    ip.fill_checksum();
}

fn emit_options(mut out: &mut [u8], headers: &TcpHeaders) {
    if let Some(mss) = headers.mss {
        out = sw::TcpOption::MaxSegmentSize(mss).emit(out);
    }
    if let Some(shift) = headers.window_scale {
        out = sw::TcpOption::NoOperation.emit(out);
        out = sw::TcpOption::WindowScale(shift).emit(out);
    }
    if headers.sack_permitted {
        out = sw::TcpOption::NoOperation.emit(out);
        out = sw::TcpOption::NoOperation.emit(out);
        out = sw::TcpOption::SackPermitted.emit(out);
    }
    if let Some((tsval, tsecr)) = headers.timestamps {
        out[..4].copy_from_slice(&ONLY_TIMESTAMPS);
        out[4..8].copy_from_slice(&tsval.to_be_bytes());
        out[8..12].copy_from_slice(&tsecr.to_be_bytes());
        out = &mut out[12..];
    }
    if headers.sack.count > 0 {
        let len = headers.sack.option_len() as u8 - 2;
        out[..4].copy_from_slice(&[1, 1, SACK, len]);
        for (block, (left, right)) in out[4..].chunks_exact_mut(8).zip(headers.sack.iter()) {
            block[..4].copy_from_slice(&left.to_be_bytes());
            block[4..].copy_from_slice(&right.to_be_bytes());
        }
    }
}

/// Stores sequence number, acknowledgment number and window of a frame whose headers [`emit_tcp`]
/// wrote, and whose TCP header begins at `AT`.
#[inline]
pub fn set_tcp_numbers<const AT: usize>(frame: &mut [u8], seq: u32, ack: u32, wnd: u16) {
    let tcp = &mut frame[AT..][..20];
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&ack.to_be_bytes());
    tcp[14..16].copy_from_slice(&wnd.to_be_bytes());
}

/// Stores the sequence number of a frame whose headers [`emit_tcp`] wrote, and whose TCP header
/// begins at `AT`.
#[inline(always)]
pub fn set_tcp_sequence<const AT: usize>(frame: &mut [u8], seq: u32) {
    let at = AT + 4;
    frame[at..at + 4].copy_from_slice(&seq.to_be_bytes());
}

/// Stores the TCP checksum of a frame whose headers [`emit_tcp`] wrote, and whose TCP header begins
/// at `AT`.
pub fn set_tcp_checksum<const AT: usize>(frame: &mut [u8], checksum: u16) {
    let at = AT + 16;
    frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// A whole ARP frame: a broadcast request for `target`, or a reply to `to`.
pub fn arp_frame(src_mac: [u8; 6], src: Address, to: Option<[u8; 6]>, target: Address) -> Vec<u8> {
    let repr = sw::ArpRepr::EthernetIpv4 {
        operation: if to.is_some() {
            sw::ArpOperation::Reply
        } else {
            sw::ArpOperation::Request
        },
        source_hardware_addr: sw::EthernetAddress(src_mac),
        source_protocol_addr: Ipv4Addr::from_bits(src.v4_bits()),
        target_hardware_addr: sw::EthernetAddress(to.unwrap_or([0; 6])),
        target_protocol_addr: Ipv4Addr::from_bits(target.v4_bits()),
    };
    let mut frame = vec![0; ETHERNET_HEADER + repr.buffer_len()];
    let mut eth = sw::EthernetFrame::new_unchecked(&mut frame[..]);
    eth.set_dst_addr(sw::EthernetAddress(to.unwrap_or([0xff; 6])));
    eth.set_src_addr(sw::EthernetAddress(src_mac));
    eth.set_ethertype(sw::EthernetProtocol::Arp);
    repr.emit(&mut sw::ArpPacket::new_unchecked(eth.payload_mut()));
    frame
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::packet::flow::Endpoint;
    use proptest::prelude::*;

    /// The headers of a SYN and ACK without options or payload.
    pub(crate) fn headers() -> TcpHeaders {
        TcpHeaders {
            src_mac: [2; 6],
            dst_mac: [4; 6],
            flow: Flow {
                local: Endpoint::new(Address::ipv4(10, 0, 0, 1), 80),
                remote: Endpoint::new(Address::ipv4(10, 0, 0, 2), 4000),
            },
            seq: 0xfedc_ba98,
            ack: 17,
            wnd: 512,
            flags: 0x12,
            ect: false,
            ip: IpFields::DEFAULT,
            label: 0,
            timestamps: Some((1, 2)),
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            sack: SackBlocks::default(),
            payload_len: 3,
        }
    }

    #[test]
    fn sack_blocks_parse_back_however_many_there_are() {
        for count in 1..=4 {
            let mut h = TcpHeaders {
                mss: None,
                window_scale: None,
                sack_permitted: false,
                timestamps: (count < 4).then_some((1, 2)),
                ..headers()
            };
            h.sack.count = count;
            for i in 0..usize::from(count) {
                h.sack.edges[i] = (0xffff_ff00 + i as u32, 77 * i as u32);
            }
            let mut frame = vec![0xaa; 200];
            let len = emit_tcp(&mut frame, &h);
            assert!(len <= MAX_HEADERS);
            frame.truncate(len + h.payload_len);
            let Ok(Packet::Tcp(tcp)) = parse(&frame) else {
                panic!("not TCP")
            };
            assert!(tcp.options.any);
            assert_eq!((tcp.options.sack, tcp.timestamps), (h.sack, h.timestamps));
            assert_eq!(usize::from(tcp.payload_offset), len);
        }
    }

    #[test]
    fn what_is_emitted_parses_back() {
        let h = headers();
        let mut frame = vec![0xaa; 200];
        let len = emit_tcp(&mut frame, &h);
        frame.truncate(len + h.payload_len);
        let Ok(Packet::Tcp(tcp)) = parse(&frame) else {
            panic!("not TCP")
        };
        let Flow { local, remote } = h.flow;
        assert_eq!(Endpoint::new(tcp.src, tcp.src_port), local);
        assert_eq!(Endpoint::new(tcp.dst, tcp.dst_port), remote);
        assert_eq!((tcp.seq, tcp.ack, tcp.wnd), (h.seq, h.ack, h.wnd));
        assert_eq!(tcp.flags, h.flags);
        assert_eq!(tcp.timestamps, h.timestamps);
        assert_eq!(tcp.options.mss, h.mss);
        assert_eq!(tcp.options.window_scale, h.window_scale);
        assert!(tcp.options.sack_permitted);
        assert_eq!(usize::from(tcp.payload_offset), len);
        assert_eq!(tcp.payload_len, 3);
        assert_eq!(link(&frame), Some((h.src_mac, h.dst_mac)));
    }

    #[test]
    fn timestamps_alone_take_the_fast_path_to_the_same_end() {
        let h = TcpHeaders {
            mss: None,
            window_scale: None,
            sack_permitted: false,
            ..headers()
        };
        let mut frame = vec![0; 200];
        let len = emit_tcp(&mut frame, &h);
        frame.truncate(len + 3);
        let Ok(Packet::Tcp(tcp)) = parse(&frame) else {
            panic!("not TCP")
        };
        assert_eq!(tcp.timestamps, Some((1, 2)));
        assert!(!tcp.options.any);
    }

    #[test]
    fn an_arp_request_is_answered_to_who_asked() {
        let ask = arp_frame(
            [2; 6],
            Address::ipv4(10, 0, 0, 1),
            None,
            Address::ipv4(10, 0, 0, 2),
        );
        let Ok(Packet::Arp(arp)) = parse(&ask) else {
            panic!("not ARP")
        };
        assert!(arp.request);
        assert_eq!(arp.sender_mac, [2; 6]);
        assert_eq!(arp.target, Address::ipv4(10, 0, 0, 2));
        assert_eq!(link(&ask), Some(([2; 6], [0xff; 6])));
    }

    proptest! {
        #[test]
        fn no_frame_makes_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let _ = checksummed(&bytes);
            let _ = link(&bytes);
        }

        /// The fast path agrees with the slow one, or declines, even if the frame is damaged.
        #[test]
        fn both_paths_of_the_parser_agree(
            at in 0usize..80,
            value in any::<u8>(),
            len in 0usize..100,
            mend in any::<bool>(),
            timestamps in any::<bool>(),
        ) {
            let mut frame = vec![0; 200];
            let mut headers = headers();
            (headers.mss, headers.window_scale, headers.sack_permitted) = (None, None, false);
            headers.timestamps = headers.timestamps.filter(|_| timestamps);
            headers.payload_len = 3;
            let head = emit_tcp(&mut frame, &headers);
            frame.truncate(head + 3);
            let at = at % frame.len();
            frame[at] = value;
            if mend && at != ETHERNET_HEADER {
                sw::Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]).fill_checksum();
            }
            frame.truncate(len);
            if let Some(plain) = parse_plain(&frame) {
                let Ok(Packet::Tcp(any)) = parse_any(&frame) else { panic!("not TCP") };
                prop_assert_eq!(plain, any);
            }
        }

        #[test]
        fn a_damaged_frame_does_not_make_the_parser_panic(
            at in 0usize..80,
            value in any::<u8>(),
            len in 0usize..100,
        ) {
            let mut frame = vec![0; 200];
            let head = emit_tcp(&mut frame, &headers());
            frame.truncate(head + 3);
            let at = at % frame.len();
            frame[at] = value;
            frame.truncate(len);
            let _ = parse(&frame);
            let _ = checksummed(&frame);
        }
    }
}
