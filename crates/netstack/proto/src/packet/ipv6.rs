//! IPv6 headers and their extension headers (RFC 8200).

use smoltcp::wire as sw;

use super::udp;
use crate::packet::flow::Address;
use crate::packet::{ETHERNET_HEADER, Malformed, Packet, Tcp, TcpOptions, icmpv6};

/// Bytes of an Ethernet and an IPv6 header without extension headers.
pub const IPV6_HEADERS: usize = ETHERNET_HEADER + 40;
/// Bytes of a fragment header (RFC 8200 section 4.5).
pub const FRAGMENT_HEADER: usize = 8;
/// The two bits of a fragment header between the offset and the more-fragments bit.
const RESERVED_BITS: u16 = 0b110;
/// Minimum MTU of every link, in bytes of a packet (RFC 8200 section 5).
pub const IPV6_MIN_MTU: u16 = 1280;
/// Protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// Numbers of extension headers.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const NO_NEXT_HEADER: u8 = 59;
const DESTINATION_OPTIONS: u8 = 60;
/// Protocol number of TCP.
pub const TCP: u8 = 6;

/// Limits of extension headers and of options in one of them (RFC 8504 section 5.3).
const MAX_EXTENSIONS: usize = 8;
const MAX_OPTIONS: usize = 8;

/// Codes of a Parameter Problem (RFC 4443 section 3.4).
const ERRONEOUS_FIELD: u8 = 0;
const UNKNOWN_HEADER: u8 = 1;
const UNKNOWN_OPTION: u8 = 2;
/// The first fragment lacks a part of the header chain (RFC 7112 section 5).
const INCOMPLETE_CHAIN: u8 = 3;

/// A problem with a packet, as an error reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The code of an ICMPv6 Parameter Problem (RFC 4443 section 3.4).
    pub code: u8,
    /// Position of the problem, in bytes from the beginning of the IPv6 header.
    pub pointer: u32,
    /// Whether it is also reported for packets to groups (RFC 8200 section 4.2).
    pub even_to_groups: bool,
}

impl Problem {
    const fn new(code: u8, at: usize) -> Self {
        Problem {
            code,
            pointer: (at - ETHERNET_HEADER) as u32,
            even_to_groups: false,
        }
    }

    /// A field with an invalid value, at byte `at` of the frame.
    pub const fn field(at: usize) -> Self {
        Problem::new(ERRONEOUS_FIELD, at)
    }
}

/// The content after the IPv6 header and the extension headers that concern every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A header of the upper layer, at byte `at` of the frame; its number is at `number_at`.
    Upper {
        /// Number of the header.
        protocol: u8,
        /// Byte of the frame that holds that number.
        number_at: usize,
        /// Byte of the frame at which the header begins.
        at: usize,
    },
    /// A fragment header begins at `at`, and its number is at `number_at`.
    Fragment {
        /// Byte of the frame that holds the number of that header.
        number_at: usize,
        /// Byte of the frame at which the header begins.
        at: usize,
    },
    /// Nothing.
    Nothing,
    /// The packet must be dropped, and the problem, if any, be reported.
    Refused(Option<Problem>),
}

/// The content of the packet in a frame, and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The content after the headers.
    pub content: Content,
    /// Whether it is an atomic fragment: a whole packet with a fragment header (RFC 6946).
    pub is_fragment: bool,
    /// Bytes of the frame up to the end of the packet.
    pub end: usize,
}

/// Source and destination of a frame, if it is long enough to have them, is marked as IPv6, and
/// neither is an IPv4-mapped address. Nothing else is checked.
#[inline]
pub fn ends(frame: &[u8]) -> Option<(Address, Address)> {
    let header: &[u8; IPV6_HEADERS] = frame.first_chunk()?;
    let address = |at: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&header[at..at + 16]);
        Address::v6(bytes)
    };
    let (src, dst) = (address(22), address(38));
    // No packet may carry IPv4-mapped addresses, which represent IPv4 here.
    (is_ipv6(frame) && !src.is_v4() && !dst.is_v4()).then_some((src, dst))
}

/// Whether a frame is marked as IPv6.
#[inline]
pub fn is_ipv6(frame: &[u8]) -> bool {
    matches!(frame, [_, _, _, _, _, _, _, _, _, _, _, _, 0x86, 0xdd, version, ..] if version >> 4 == 6)
}

/// Remaining hops of the packet in an IPv6 frame.
pub fn hop_limit(frame: &[u8]) -> u8 {
    frame.get(ETHERNET_HEADER + 7).copied().unwrap_or(0)
}

/// Replaces the hop limit of a frame by `map` of its destination and its hop limit.
pub fn map_hop_limit(frame: &mut [u8], map: impl FnOnce(Address, u8) -> u8) {
    if let Some((_, dst)) = ends(frame) {
        frame[ETHERNET_HEADER + 7] = map(dst, frame[ETHERNET_HEADER + 7]);
    }
}

/// DSCP and ECN of an IPv6 frame.
pub fn traffic_class(frame: &[u8]) -> u8 {
    match frame.get(ETHERNET_HEADER..ETHERNET_HEADER + 2) {
        Some([a, b]) => a << 4 | b >> 4,
        _ => 0,
    }
}

/// Walks the headers of an IPv6 packet, in any order (RFC 8200 section 4.1), as far as the
/// frame contains them. The fragment header of an atomic fragment is treated like other
/// extension headers (RFC 6946 section 4).
///
/// # Errors
/// If a length field or the frame is too short.
pub fn walk(frame: &[u8]) -> Result<Found, Malformed> {
    let header: &[u8; IPV6_HEADERS] = frame.first_chunk().ok_or(Malformed::Truncated)?;
    let payload_len = u16::from_be_bytes([header[18], header[19]]);
    let end = IPV6_HEADERS + usize::from(payload_len);
    if !is_ipv6(frame) || end > frame.len() {
        return Err(Malformed::Truncated);
    }
    let mut is_fragment = false;
    let content = walk_extensions(&frame[..end], &mut is_fragment)?;
    Ok(Found {
        content,
        is_fragment,
        end,
    })
}

/// [`walk`] that sets `is_fragment` if there is the header of an atomic fragment.
fn walk_extensions(packet: &[u8], is_fragment: &mut bool) -> Result<Content, Malformed> {
    let (mut number_at, mut at) = (ETHERNET_HEADER + 6, IPV6_HEADERS);
    for _ in 0..=MAX_EXTENSIONS {
        let protocol = packet[number_at];
        let is_options = match protocol {
            HOP_BY_HOP if at == IPV6_HEADERS => true,
            // It may only come right after the IPv6 header (section 4.1).
            HOP_BY_HOP => {
                let problem = Problem::new(UNKNOWN_HEADER, number_at);
                return Ok(Content::Refused(Some(problem)));
            }
            DESTINATION_OPTIONS => true,
            ROUTING => false,
            FRAGMENT => {
                let header = packet.get(at..).and_then(|rest| rest.first_chunk());
                let [_, _, high, low, ..]: [u8; FRAGMENT_HEADER] =
                    *header.ok_or(Malformed::Truncated)?;
                // A nonzero offset, or more fragments.
                if u16::from_be_bytes([high, low]) & !RESERVED_BITS != 0 {
                    return Ok(Content::Fragment { number_at, at });
                }
                *is_fragment = true;
                (number_at, at) = (at, at + FRAGMENT_HEADER);
                continue;
            }
            NO_NEXT_HEADER => return Ok(Content::Nothing),
            _ => {
                return Ok(Content::Upper {
                    protocol,
                    number_at,
                    at,
                });
            }
        };
        let len = packet.get(at + 1).ok_or(Malformed::Truncated)?;
        let behind = at + 8 * (usize::from(*len) + 1);
        let header = packet.get(at..behind).ok_or(Malformed::Truncated)?;
        if is_options {
            if let Some(refused) = look_at_options(&header[2..], at + 2)? {
                return Ok(refused);
            }
        } else if header[3] != 0 {
            // We forward no source-routed packets (section 4.4, RFC 5095).
            return Ok(Content::Refused(Some(Problem::field(at + 2))));
        }
        (number_at, at) = (at, behind);
    }
    Ok(Content::Refused(None))
}

/// Checks options, the first of which is at byte `at` of the frame (RFC 8200 section 4.2).
/// Returns whether the packet is refused for one.
fn look_at_options(mut options: &[u8], mut at: usize) -> Result<Option<Content>, Malformed> {
    const PAD1: u8 = 0;
    const PADN: u8 = 1;
    const ROUTER_ALERT: u8 = 5;
    let mut count = 0;
    while let [kind, rest @ ..] = options {
        if *kind == PAD1 {
            (options, at) = (rest, at + 1);
            continue;
        }
        let len = 2 + usize::from(*rest.first().ok_or(Malformed::Truncated)?);
        let behind = options.get(len..).ok_or(Malformed::Truncated)?;
        count += usize::from(*kind != PADN);
        if count > MAX_OPTIONS {
            return Ok(Some(Content::Refused(None)));
        }
        if !matches!(*kind, PADN | ROUTER_ALERT) {
            let problem = Problem::new(UNKNOWN_OPTION, at);
            match kind >> 6 {
                0 => {}
                1 => return Ok(Some(Content::Refused(None))),
                action => {
                    return Ok(Some(Content::Refused(Some(Problem {
                        even_to_groups: action == 2,
                        ..problem
                    }))));
                }
            }
        }
        (options, at) = (behind, at + len);
    }
    Ok(None)
}

/// Reads the headers of an IPv6 frame. Does not check TCP and UDP checksums.
pub fn parse(frame: &[u8]) -> Result<Packet, Malformed> {
    if let Some(tcp) = parse_plain(frame) {
        return Ok(Packet::Tcp(tcp));
    }
    let (src, dst) = ends(frame).ok_or(Malformed::Truncated)?;
    let Found { content, end, .. } = walk(frame)?;
    match content {
        Content::Upper {
            protocol,
            number_at,
            at,
        } => {
            let upper = &frame[at..end];
            let ce = traffic_class(frame) & 0b11 == 0b11;
            match protocol {
                TCP => super::parse_tcp(upper, (src, dst), ce, at),
                super::UDP => udp::parse_udp(upper, src, dst),
                ICMPV6 => icmpv6::parse(upper, src, dst),
                _ => {
                    let problem = Problem::new(UNKNOWN_HEADER, number_at);
                    Ok(Packet::Problem { dst, problem })
                }
            }
        }
        Content::Fragment { .. } => Ok(Packet::Fragment { dst }),
        Content::Nothing => Ok(Packet::Unknown),
        Content::Refused(Some(problem)) => Ok(Packet::Problem { dst, problem }),
        Content::Refused(None) => Err(Malformed::Options),
    }
}

/// The fast path: no extension headers, and TCP with no options but timestamps in their usual
/// layout. Returns the result of the rest of [`parse`], or `None`.
#[inline]
fn parse_plain(frame: &[u8]) -> Option<Tcp> {
    const AT: usize = IPV6_HEADERS;
    let h: &[u8; AT + 20] = frame.first_chunk()?;
    let short = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
    let long = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
    let payload_len = usize::from(short(18));
    let header_len = usize::from(h[AT + 12] >> 4) * 4;
    let plain = is_ipv6(frame) && h[20] == TCP;
    if !plain || frame.len() < AT + payload_len || payload_len < header_len {
        return None;
    }
    let timestamps = match header_len {
        20 => None,
        32 => Some(super::only_timestamps(
            frame.get(AT + 20..)?.first_chunk()?,
        )?),
        _ => return None,
    };
    let (src, dst) = ends(frame)?;
    Some(Tcp {
        src,
        dst,
        src_port: short(AT),
        dst_port: short(AT + 2),
        seq: long(AT + 4),
        ack: long(AT + 8),
        wnd: short(AT + 14),
        flags: h[AT + 13],
        ce: traffic_class(frame) & 0b11 == 0b11,
        payload_offset: (AT + header_len) as u16,
        payload_len: (payload_len - header_len) as u32,
        timestamps,
        options: TcpOptions::default(),
    })
}

/// [`super::plain_tcp_flow`] for an IPv6 frame without extension headers: the last 32 bits of
/// both addresses, and the ports.
#[inline]
pub fn plain_tcp_flow(frame: &[u8]) -> Option<[u32; 3]> {
    let header: &[u8; IPV6_HEADERS + 4] = frame.first_chunk()?;
    let is_plain = is_ipv6(frame) && header[20] == TCP;
    let word = |at: usize| super::u32_at(header, at);
    is_plain.then(|| [word(34), word(50), word(54)])
}

/// Number and place of the upper layer's header, whatever the extension headers before it say, and
/// whether one of them is a fragment header; `None` if the frame does not contain it.
pub fn upper_header(frame: &[u8]) -> Option<(u8, usize, bool)> {
    let (mut protocol, mut at) = (*frame.get(ETHERNET_HEADER + 6)?, IPV6_HEADERS);
    let mut is_fragment = false;
    for _ in 0..=MAX_EXTENSIONS {
        let len = match (protocol, frame.get(at..)?) {
            (FRAGMENT, [_, _, high, low, ..]) if (*high, low & !7) == (0, 0) => FRAGMENT_HEADER,
            (FRAGMENT, _) => return None,
            (HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS, [_, len, ..]) => 8 + 8 * usize::from(*len),
            _ => return Some((protocol, at, is_fragment)),
        };
        is_fragment |= protocol == FRAGMENT;
        (protocol, at) = (frame[at], at + len);
    }
    None
}

/// The TCP segment or UDP datagram in a frame that [`parse`] accepted as one, and both addresses.
pub fn upper(frame: &[u8]) -> Option<(Address, Address, core::ops::Range<usize>)> {
    let (src, dst) = ends(frame)?;
    let Found { content, end, .. } = walk(frame).ok()?;
    match content {
        Content::Upper { at, .. } => Some((src, dst, at..end)),
        _ => None,
    }
}

/// [`super::checksummed_at_once`] for an IPv6 frame without extension headers: there, too, both
/// addresses come right before the segment.
#[inline]
pub fn checksummed_at_once(frame: &[u8]) -> Option<&[u8]> {
    let header: &[u8; IPV6_HEADERS] = frame.first_chunk()?;
    let end = IPV6_HEADERS + usize::from(u16::from_be_bytes([header[18], header[19]]));
    if !is_ipv6(frame) || header[20] != TCP {
        return None;
    }
    frame.get(ETHERNET_HEADER + 8..end)
}

/// The fields of an outgoing IPv6 header.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6Header {
    /// Number of the header that follows.
    pub next_header: u8,
    /// Source address.
    pub src: Address,
    /// Destination address.
    pub dst: Address,
    /// Link-layer address of the sender.
    pub src_mac: [u8; 6],
    /// Link-layer address of the next hop.
    pub dst_mac: [u8; 6],
    /// Hops that the packet may make.
    pub hop_limit: u8,
    /// DSCP (RFC 2474) and ECN (RFC 3168).
    pub traffic_class: u8,
    /// Flow label, 20 bits (RFC 6437).
    pub label: u32,
    /// Bytes after the header.
    pub payload_len: usize,
}

/// Writes Ethernet and IPv6 headers to the front of `buffer`.
///
/// # Panics
/// If `buffer` is shorter than [`IPV6_HEADERS`].
pub fn emit(buffer: &mut [u8], h: &Ipv6Header) {
    let (link, rest) = buffer.split_at_mut(ETHERNET_HEADER);
    let mut eth = sw::EthernetFrame::new_unchecked(link);
    eth.set_dst_addr(sw::EthernetAddress(h.dst_mac));
    eth.set_src_addr(sw::EthernetAddress(h.src_mac));
    eth.set_ethertype(sw::EthernetProtocol::Ipv6);
    let mut ip = sw::Ipv6Packet::new_unchecked(&mut rest[..40]);
    ip.set_version(6);
    ip.set_traffic_class(h.traffic_class);
    ip.set_flow_label(h.label);
    ip.set_payload_len(h.payload_len as u16);
    ip.set_next_header(sw::IpProtocol::from(h.next_header));
    ip.set_hop_limit(h.hop_limit);
    ip.set_src_addr(h.src.to_v6());
    ip.set_dst_addr(h.dst.to_v6());
}

/// Writes a fragment header to the front of `buffer`: the number of the header that the original
/// packet has next, the offset in bytes, whether others follow, and the identification.
///
/// # Panics
/// If `buffer` is shorter than [`FRAGMENT_HEADER`].
pub fn emit_fragment_header(
    buffer: &mut [u8],
    next_header: u8,
    offset: u32,
    more: bool,
    ident: u32,
) {
    let place = offset as u16 & !7 | u16::from(more);
    buffer[..2].copy_from_slice(&[next_header, 0]);
    buffer[2..4].copy_from_slice(&place.to_be_bytes());
    buffer[4..8].copy_from_slice(&ident.to_be_bytes());
}

/// Turns `frame`, headers without extension headers, into a fragment that carries `payload`.
pub fn make_fragment(frame: &mut Vec<u8>, offset: u32, more: bool, ident: u32, payload: &[u8]) {
    let mut header = [0; FRAGMENT_HEADER];
    emit_fragment_header(&mut header, frame[20], offset, more, ident);
    frame[20] = FRAGMENT;
    let payload_len = (FRAGMENT_HEADER + payload.len()) as u16;
    frame[18..20].copy_from_slice(&payload_len.to_be_bytes());
    frame.extend(header);
    frame.extend(payload);
}

/// The fields of a fragment header, in a frame that [`walk`] found to be a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentFields {
    /// Bytes of the packet before this fragment, a multiple of 8.
    pub offset: u32,
    /// Whether another fragment follows.
    pub more: bool,
    /// Identification: equal in all fragments of a packet.
    pub ident: u32,
    /// Bytes of the frame before the payload, including the fragment header.
    pub head: usize,
    /// Bytes of the frame up to the end of the payload.
    pub end: usize,
}

/// Reads the fragment header of a frame; `None` if it has none.
pub fn fragment_fields(frame: &[u8]) -> Option<FragmentFields> {
    let Found { content, end, .. } = walk(frame).ok()?;
    let Content::Fragment { at, .. } = content else {
        return None;
    };
    let [_, _, a, b, c, d, e, f] = *frame.get(at..)?.first_chunk()?;
    let place = u16::from_be_bytes([a, b]);
    Some(FragmentFields {
        offset: u32::from(place & !7),
        more: place & 1 != 0,
        ident: u32::from_be_bytes([c, d, e, f]),
        head: at + FRAGMENT_HEADER,
        end,
    })
}

/// The problem of a single fragment that has to be reported, if any (RFC 8200 section 4.5).
pub fn fragment_problem(frame: &[u8]) -> Option<Problem> {
    let fields = fragment_fields(frame)?;
    let len = (fields.end - fields.head) as u32;
    if fields.more && !len.is_multiple_of(8) {
        return Some(Problem::field(ETHERNET_HEADER + 4));
    }
    let before = (fields.head - FRAGMENT_HEADER - IPV6_HEADERS) as u32;
    if before + fields.offset + len > u32::from(u16::MAX) {
        return Some(Problem::field(fields.head - FRAGMENT_HEADER + 2));
    }
    (!has_whole_chain(frame)).then(|| Problem::new(INCOMPLETE_CHAIN, ETHERNET_HEADER))
}

/// Whether a first fragment contains all headers, including that of the upper layer (RFC 8200
/// section 4.5, RFC 7112); true for later fragments.
fn has_whole_chain(frame: &[u8]) -> bool {
    let Some(fields) = fragment_fields(frame) else {
        return false;
    };
    if fields.offset > 0 {
        return true;
    }
    let payload = frame[fields.head..fields.end].to_vec();
    let Some(whole) = without_fragment_header(&frame[..fields.head], &payload, false) else {
        return false;
    };
    match walk(&whole).map(|found| (found.content, found.end)) {
        Ok((Content::Upper { protocol, at, .. }, end)) => {
            let header = match protocol {
                TCP => 20,
                super::UDP | ICMPV6 => 8,
                _ => 0,
            };
            end - at >= header
        }
        Ok((Content::Nothing | Content::Refused(_), _)) => true,
        _ => false,
    }
}

/// The frame in which a datagram would have arrived without fragmentation: `head` is the part
/// of the first fragment before its payload. `None` if it is longer than a packet may be. `ce`
/// marks congestion.
pub fn without_fragment_header(head: &[u8], payload: &[u8], ce: bool) -> Option<Vec<u8>> {
    let headers = head.len().checked_sub(FRAGMENT_HEADER)?;
    let mut frame = [&head[..headers], payload].concat();
    let payload_len = u16::try_from(frame.len().checked_sub(IPV6_HEADERS)?).ok()?;
    // The previous header names the header after the removed one.
    let Content::Fragment { number_at, at } = walk_extensions(head, &mut false).ok()? else {
        return None;
    };
    if at != headers {
        return None;
    }
    frame[number_at] = head[at];
    frame[18..20].copy_from_slice(&payload_len.to_be_bytes());
    if ce {
        frame[ETHERNET_HEADER + 1] |= 0b11 << 4;
    }
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const US: Address = Address::of_words([0x2001_0db8_0000_0000, 1]);
    const PEER: Address = Address::of_words([0x2001_0db8_0000_0000, 2]);

    /// A packet of the peer whose first header after the IPv6 header has this number.
    fn packet(next_header: u8, rest: &[u8]) -> Vec<u8> {
        let header = Ipv6Header {
            src_mac: [2; 6],
            dst_mac: [4; 6],
            src: PEER,
            dst: US,
            next_header,
            hop_limit: 64,
            traffic_class: 0,
            label: 0,
            payload_len: rest.len(),
        };
        let mut frame = vec![0; IPV6_HEADERS];
        emit(&mut frame, &header);
        frame.extend(rest);
        frame
    }

    fn content(next_header: u8, rest: &[u8]) -> Content {
        walk(&packet(next_header, rest))
            .expect("it is whole")
            .content
    }

    fn problem(code: u8, pointer: u32, even_to_groups: bool) -> Content {
        Content::Refused(Some(Problem {
            code,
            pointer,
            even_to_groups,
        }))
    }

    #[test]
    fn extension_headers_are_passed_over_in_any_order() {
        let upper = |number_at, at| Content::Upper {
            protocol: 17,
            number_at,
            at,
        };
        assert_eq!(content(17, &[0; 8]), upper(20, 54));
        let hop = [60, 0, 5, 2, 0, 0, 1, 0];
        let destination = [43, 0, 1, 4, 0, 0, 0, 0];
        let routing = [60, 0, 77, 0, 0, 0, 0, 0];
        let again = [17, 1, 0x1e, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let chain = [&hop[..], &destination, &routing, &again, &[0; 8]].concat();
        assert_eq!(content(0, &chain), upper(78, 94));
        assert_eq!(content(59, &[1, 2, 3]), Content::Nothing);
    }

    #[test]
    fn hop_by_hop_options_stand_first_or_are_an_unknown_header() {
        let chain = [[0, 0, 1, 4, 0, 0, 0, 0], [17, 0, 1, 4, 0, 0, 0, 0]].concat();
        assert_eq!(content(60, &chain), problem(1, 40, false));
        assert_eq!(content(0, &chain), problem(1, 40, false));
    }

    #[test]
    fn the_upper_bits_of_an_unknown_option_say_what_becomes_of_the_packet() {
        let with = |kind: u8| content(60, &[59, 0, 1, 0, kind, 2, 0, 0]);
        assert_eq!(with(0x1e), Content::Nothing);
        assert_eq!(with(0x5e), Content::Refused(None));
        assert_eq!(with(0x9e), problem(2, 44, true));
        assert_eq!(with(0xde), problem(2, 44, false));
    }

    #[test]
    fn a_routing_header_that_is_not_done_is_refused_and_a_done_one_ignored() {
        assert_eq!(content(43, &[59, 0, 0, 0, 0, 0, 0, 0]), Content::Nothing);
        let left = content(43, &[59, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(left, problem(0, 42, false));
    }

    #[test]
    fn headers_and_options_are_bounded() {
        let chain = |count: usize| {
            let mut chain = [60, 0, 1, 4, 0, 0, 0, 0].repeat(count);
            chain[8 * (count - 1)] = 59;
            chain
        };
        assert_eq!(content(60, &chain(8)), Content::Nothing);
        assert_eq!(content(60, &chain(9)), Content::Refused(None));
        let options = |count: usize| {
            let mut header = vec![59, 0];
            header.extend([0x1e, 0].repeat(count));
            header.resize(header.len().next_multiple_of(8), 0);
            header[1] = (header.len() / 8 - 1) as u8;
            header
        };
        assert_eq!(content(60, &options(8)), Content::Nothing);
        assert_eq!(content(60, &options(9)), Content::Refused(None));
    }

    #[test]
    fn an_unknown_header_is_named_by_where_its_number_stands() {
        let frame = packet(60, &[200, 0, 1, 4, 0, 0, 0, 0, 9]);
        let Ok(Packet::Problem { dst, problem }) = parse(&frame) else {
            panic!("not refused")
        };
        assert_eq!((dst, problem.code, problem.pointer), (US, 1, 40));
    }

    #[test]
    fn fragments_that_cannot_be_are_named() {
        let fragment = |place: u16, len: usize| {
            let mut rest = vec![17, 0];
            rest.extend(place.to_be_bytes());
            rest.extend([0, 0, 0, 7]);
            rest.resize(8 + len, 0);
            packet(44, &rest)
        };
        assert_eq!(fragment_problem(&fragment(1, 16)), None);
        let odd = fragment_problem(&fragment(1, 15)).map(|problem| problem.pointer);
        assert_eq!(odd, Some(4));
        let long = fragment_problem(&fragment(0xfff8, 16)).map(|problem| problem.pointer);
        assert_eq!(long, Some(42));
        assert!(has_whole_chain(&fragment(1, 16)));
        assert!(!has_whole_chain(&fragment(1, 0)));
        assert!(has_whole_chain(&fragment(9, 8)));
    }

    proptest! {
        #[test]
        fn no_frame_makes_reading_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), next in any::<u8>()) {
            let _ = parse(&bytes);
            for frame in [&bytes, &packet(next, &bytes)] {
                let _ = parse(frame);
                let _ = upper(frame);
                let _ = checksummed_at_once(frame);
                let _ = fragment_problem(frame);
                let _ = has_whole_chain(frame);
                let _ = plain_tcp_flow(frame);
            }
        }

        /// Both ways to read a segment agree, or the fast one declines.
        #[test]
        fn both_paths_of_the_parser_agree(at in 0_usize..94, value in any::<u8>(), len in 40_usize..100, timestamps in any::<bool>()) {
            let mut segment = vec![0; 40];
            segment[12] = if timestamps { 0x80 } else { 0x50 };
            segment[20..24].copy_from_slice(&crate::packet::ONLY_TIMESTAMPS);
            let mut frame = packet(6, &segment);
            frame[at] = value;
            frame.truncate(len);
            if let Some(plain) = parse_plain(&frame) {
                let (src, dst, range) = upper(&frame).expect("it is TCP");
                let ce = traffic_class(&frame) & 3 == 3;
                let any = super::super::parse_tcp(&frame[range.clone()], (src, dst), ce, range.start);
                let Ok(Packet::Tcp(any)) = any else { panic!("not TCP") };
                prop_assert_eq!(plain, any);
            }
        }
    }
}
