//! ICMPv6 (RFC 4443): echo, and errors that we send or receive.

use super::icmp::{IcmpError, UdpError};
use super::icmp_error::TcpError;
use super::ipv6::{self, Content, ICMPV6, IPV6_HEADERS, IPV6_MIN_MTU, Ipv6Header};
use crate::packet::checksum::Sum;
use crate::packet::flow::{Address, Endpoint};
use crate::packet::{Malformed, Packet, UDP, link};

const TCP: u8 = 6;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
/// The highest type of an error (RFC 4443 section 2.1).
const LAST_ERROR: u8 = 127;
/// A redirect, about which no error is reported (RFC 4443 section 2.4 (e.2)).
const REDIRECT: u8 = 137;
/// Messages of multicast listeners and of neighbour discovery (RFC 2710, RFC 3810, RFC 4861).
const LINK_MESSAGES: [u8; 9] = [130, 131, 132, 133, 134, 135, 136, REDIRECT, 143];
/// Bytes of the header of an echo or an error.
const HEADER: usize = 8;

/// Reads an ICMPv6 message.
///
/// # Errors
/// If it is too short or its checksum is wrong.
pub fn parse(message: &[u8], src: Address, dst: Address) -> Result<Packet, Malformed> {
    let [kind, code, _, _, a, b, c, d] = *message.first_chunk().ok_or(Malformed::Truncated)?;
    let sum = Sum::default().pseudo_header(src, dst, ICMPV6, message.len());
    if !sum.with(message).is_good() {
        return Err(Malformed::Checksum);
    }
    match kind {
        ECHO_REQUEST => Ok(Packet::EchoRequest { dst }),
        ECHO_REPLY => Ok(Packet::EchoReply { dst }),
        1..=4 => {
            let mtu = u32::from_be_bytes([a, b, c, d]);
            let mtu = if kind == 2 { mtu } else { 0 };
            let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
            Ok(about([kind, code], mtu, dst, &message[HEADER..]).unwrap_or(Packet::Unknown))
        }
        kind if LINK_MESSAGES.contains(&kind) => Ok(Packet::Link { dst }),
        _ => Ok(Packet::Unknown),
    }
}

/// Reads an error about a segment or datagram of ours, as far as the error quotes it.
fn about(numbers: [u8; 2], mtu: u16, dst: Address, quoted: &[u8]) -> Option<Packet> {
    // A quoted packet may be truncated, but its length field is not adapted.
    let mut frame = [&[0; 12][..], &[0x86, 0xdd], quoted].concat();
    let len = u16::from_be_bytes(*frame.get(18..20)?.first_chunk()?).saturating_add(40);
    let payload_len = u16::try_from(frame.len().checked_sub(IPV6_HEADERS)?).unwrap_or(u16::MAX);
    frame[18..20].copy_from_slice(&payload_len.to_be_bytes());
    let (local, remote) = ipv6::ends(&frame)?;
    // If no socket sent the packet, only its size matters (RFC 8201 section 4).
    let too_big = || {
        (numbers[0] == 2).then_some(Packet::TooBig {
            dst,
            sent: (local, remote),
            len,
            mtu,
        })
    };
    let (protocol, at) = match ipv6::walk(&frame).ok()?.content {
        Content::Upper {
            protocol: ICMPV6, ..
        } => return too_big(),
        Content::Upper { protocol, at, .. } => (protocol, at),
        // The first fragment of a datagram contains its header.
        Content::Fragment { at, .. } if ipv6::fragment_fields(&frame)?.offset == 0 => {
            match frame[at] {
                ICMPV6 => return too_big(),
                protocol => (protocol, at + ipv6::FRAGMENT_HEADER),
            }
        }
        Content::Fragment { .. } => return too_big(),
        _ => return None,
    };
    let [a, b, c, d, e, f, g, h] = *frame.get(at..)?.first_chunk()?;
    let local = Endpoint::new(local, u16::from_be_bytes([a, b]));
    let remote = Endpoint::new(remote, u16::from_be_bytes([c, d]));
    match protocol {
        TCP => Some(Packet::TcpError(TcpError {
            dst,
            numbers,
            mtu,
            local,
            remote,
            seq: u32::from_be_bytes([e, f, g, h]),
        })),
        UDP => Some(Packet::UdpError {
            error: UdpError {
                numbers,
                port: local.port,
                remote,
                len,
                mtu,
            },
            dst,
        }),
        _ => None,
    }
}

/// A frame with a whole ICMPv6 message after its headers; the checksum in `message` is replaced.
///
/// # Panics
/// If the message has no checksum field.
pub fn frame(header: &Ipv6Header, message: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; IPV6_HEADERS];
    ipv6::emit(
        &mut frame,
        &Ipv6Header {
            next_header: ICMPV6,
            payload_len: message.len(),
            ..*header
        },
    );
    frame.extend(message);
    set_checksum(&mut frame[IPV6_HEADERS..], header.src, header.dst);
    frame
}

/// Stores the checksum of a message.
pub(super) fn set_checksum(message: &mut [u8], src: Address, dst: Address) {
    message[2..4].fill(0);
    let sum = Sum::default().pseudo_header(src, dst, ICMPV6, message.len());
    let checksum = sum.with(message).finish();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
}

/// The reply from `src` to an echo request that [`parse`] read (RFC 4443 section 4.2). The
/// packet may be longer than the MTU, and the caller has to set the link-layer destination.
pub fn echo_reply(request: &[u8], src_mac: [u8; 6], src: Address) -> Option<Vec<u8>> {
    let (sender, _, range) = ipv6::upper(request)?;
    let mut message = request[range].to_vec();
    *message.first_mut()? = ECHO_REPLY;
    let header = Ipv6Header {
        src_mac,
        dst_mac: [0; 6],
        src,
        dst: sender,
        next_header: ICMPV6,
        hop_limit: 64,
        traffic_class: ipv6::traffic_class(request) & !0b11,
        label: 0,
        payload_len: 0,
    };
    Some(frame(&header, &message))
}

/// Whether an error may be reported about the packet in `frame` (RFC 4443 section 2.4 (e)): not
/// about errors and redirects, and not to a sender that is not a single host. `to_group`:
/// whether it was sent to an IP or link-layer multicast address.
fn may_report(frame: &[u8], report: IcmpError, to_group: bool) -> bool {
    let Some((from, to)) = ipv6::ends(frame) else {
        return false;
    };
    let even_to_groups = matches!(report, IcmpError::Problem(problem) if problem.even_to_groups);
    // Only a packet to ourselves comes from a loopback address.
    let is_elsewhere = from.ip().is_loopback() && !to.ip().is_loopback();
    let is_one_host = !from.is_unspecified() && !from.is_multicast() && !is_elsewhere;
    // Whatever the problem in front of it is.
    let is_error = ipv6::upper_header(frame).is_some_and(|(protocol, at, _)| {
        let kind = frame.get(at);
        protocol == ICMPV6 && kind.is_none_or(|kind| *kind <= LAST_ERROR || *kind == REDIRECT)
    });
    is_one_host && !is_error && (!to_group || even_to_groups)
}

/// Type, code, and the four bytes after the checksum; `None` for errors that IPv6 does not have.
fn fields(report: IcmpError) -> Option<([u8; 2], u32)> {
    Some(match report {
        IcmpError::PortUnreachable => ([1, 4], 0),
        IcmpError::ReassemblyTime => ([3, 1], 0),
        IcmpError::Problem(problem) => ([4, problem.code], problem.pointer),
        _ => return None,
    })
}

/// The frame that reports `report` about `about`, from us at `src`; `None` if no error may be
/// reported about it. It quotes as much as fits the minimum MTU (RFC 4443 section 2.4 (c)), and
/// the caller has to set the link-layer destination.
pub fn error_about(
    about: &[u8],
    report: IcmpError,
    src_mac: [u8; 6],
    src: Address,
) -> Option<Vec<u8>> {
    const ROOM: usize = IPV6_MIN_MTU as usize - 40 - HEADER;
    let (from, to) = ipv6::ends(about)?;
    let (_, receiver) = link(about)?;
    let to_group = to.is_multicast() || receiver[0] & 1 != 0;
    if !may_report(about, report, to_group) {
        return None;
    }
    let ([kind, code], field) = fields(report)?;
    let packet = &about[super::ETHERNET_HEADER..];
    let len = usize::from(u16::from_be_bytes([about[18], about[19]])) + 40;
    let quoted = &packet[..packet.len().min(len).min(ROOM)];
    let message = [&[kind, code, 0, 0], &field.to_be_bytes()[..], quoted].concat();
    let header = Ipv6Header {
        src_mac,
        dst_mac: [0; 6],
        src,
        dst: from,
        next_header: ICMPV6,
        hop_limit: 64,
        traffic_class: 0,
        label: 0,
        payload_len: 0,
    };
    Some(frame(&header, &message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::ipv6::Problem;
    use crate::packet::parse as parse_frame;
    use proptest::prelude::*;

    const US: Address = Address::of_words([0x2001_0db8_0000_0000, 1]);
    const PEER: Address = Address::of_words([0x2001_0db8_0000_0000, 2]);
    const GROUP: Address = Address::of_words([0xff02_0000_0000_0000, 1]);

    fn packet(src: Address, dst: Address, next_header: u8, payload: &[u8]) -> Vec<u8> {
        let header = Ipv6Header {
            src_mac: [2; 6],
            dst_mac: [4; 6],
            src,
            dst,
            next_header,
            hop_limit: 64,
            traffic_class: 0,
            label: 0,
            payload_len: payload.len(),
        };
        if next_header == ICMPV6 {
            return frame(&header, payload);
        }
        let mut frame = vec![0; IPV6_HEADERS];
        ipv6::emit(&mut frame, &header);
        frame.extend(payload);
        frame
    }

    fn report(frame: &[u8], report: IcmpError) -> Option<Vec<u8>> {
        error_about(frame, report, [4; 6], US)
    }

    const DATAGRAM: [u8; 12] = [0, 5, 0, 9, 0, 12, 0, 0, 1, 2, 3, 4];

    #[test]
    fn an_error_quotes_the_packet_and_is_understood_by_its_sender() {
        let sent = packet(PEER, US, UDP, &DATAGRAM);
        let error = report(&sent, IcmpError::PortUnreachable).expect("an error");
        let Ok(Packet::UdpError { error, dst }) = parse_frame(&error) else {
            panic!("not understood")
        };
        let expected = UdpError {
            numbers: [1, 4],
            port: 5,
            remote: Endpoint::new(US, 9),
            len: 52,
            mtu: 0,
        };
        assert_eq!((error, dst), (expected, PEER));
    }

    #[test]
    fn a_long_packet_is_quoted_up_to_the_least_mtu() {
        let sent = packet(PEER, US, UDP, &[1; 1400]);
        let error = report(&sent, IcmpError::PortUnreachable).expect("an error");
        assert_eq!(error.len(), 14 + usize::from(IPV6_MIN_MTU));
    }

    #[test]
    fn a_packet_too_big_names_the_segment_and_the_mtu() {
        let segment = [&[0x0f, 0xa0, 0, 80, 1, 2, 3, 4][..], &[0; 12]].concat();
        let sent = packet(US, PEER, TCP, &segment);
        let message = [&[2, 0, 0, 0, 0, 0, 5, 20], &sent[14..]].concat();
        let Ok(Packet::TcpError(error)) = parse_frame(&packet(PEER, US, ICMPV6, &message)) else {
            panic!("not understood")
        };
        let expected = TcpError {
            dst: US,
            numbers: [2, 0],
            mtu: 1300,
            local: Endpoint::new(US, 4000),
            remote: Endpoint::new(PEER, 80),
            seq: 0x0102_0304,
        };
        assert_eq!(error, expected);
    }

    #[test]
    fn no_error_is_reported_about_errors_redirects_groups_and_what_no_host_sent() {
        let about = |src, dst, next_header, payload: &[u8]| {
            let sent = packet(src, dst, next_header, payload);
            report(&sent, IcmpError::PortUnreachable).is_some()
        };
        assert!(about(PEER, US, UDP, &DATAGRAM));
        assert!(about(PEER, US, ICMPV6, &[128, 0, 0, 0, 0, 0, 0, 0]));
        for kind in [1, 4, 100, 127, 137] {
            assert!(
                !about(PEER, US, ICMPV6, &[kind, 0, 0, 0, 0, 0, 0, 0]),
                "{kind}"
            );
        }
        assert!(!about(PEER, GROUP, UDP, &DATAGRAM));
        for src in [GROUP, Address::v6([0; 16]), Address::of_words([0, 1])] {
            assert!(!about(src, US, UDP, &DATAGRAM), "{src}");
        }
        // The exception of RFC 4443 section 2.4 (e.3).
        let even = |even_to_groups| {
            let problem = Problem {
                code: 2,
                pointer: 42,
                even_to_groups,
            };
            report(
                &packet(PEER, GROUP, UDP, &DATAGRAM),
                IcmpError::Problem(problem),
            )
            .is_some()
        };
        assert!(even(true) && !even(false));
    }

    #[test]
    fn an_echo_comes_back_with_its_data() {
        let request = packet(PEER, GROUP, ICMPV6, &[128, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7]);
        let reply = echo_reply(&request, [4; 6], US).expect("a reply");
        assert_eq!(reply[IPV6_HEADERS], ECHO_REPLY);
        assert_eq!(reply[IPV6_HEADERS + 4..], [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(ipv6::ends(&reply), Some((US, PEER)));
        assert!(matches!(
            parse_frame(&reply),
            Ok(Packet::EchoReply { dst: PEER })
        ));
    }

    proptest! {
        #[test]
        fn no_message_makes_icmpv6_panic(bytes in proptest::collection::vec(any::<u8>(), 8..200), kind in prop_oneof![0_u8..5, 128_u8..144]) {
            let mut message = bytes;
            message[0] = kind;
            let frame = packet(PEER, US, ICMPV6, &message);
            let _ = parse_frame(&frame);
            let _ = echo_reply(&frame, [0; 6], US);
            let _ = report(&frame, IcmpError::ReassemblyTime);
        }
    }
}
