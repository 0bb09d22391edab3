//! UDP headers (RFC 768).

use smoltcp::wire as sw;

use super::ip::{IP_HEADERS, UDP};
use super::ipv6;
use crate::packet::flow::{Address, Endpoint};
use crate::packet::{ETHERNET_HEADER, Malformed, Packet};

/// Bytes of a UDP header.
pub const UDP_HEADER: usize = 8;

/// The headers of a UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Sender's address.
    pub src: Address,
    /// Receiver's address.
    pub dst: Address,
    /// Sender's port; 0 if it wants no answer.
    pub src_port: u16,
    /// Receiver's port.
    pub dst_port: u16,
    /// Payload bytes.
    pub payload_len: u16,
}

/// The fast path: IPv4 without options, not fragmented, with a UDP header that fits. Returns
/// the result of [`parse_udp`], or `None`.
#[inline]
pub(super) fn parse_plain(frame: &[u8]) -> Option<Udp> {
    let h: &[u8; IP_HEADERS + UDP_HEADER] = frame.first_chunk()?;
    let short = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
    let long = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
    let ip = |at: usize| ETHERNET_HEADER + at;
    let total = usize::from(short(ip(2)));
    // EtherType, version with header length, protocol, and no fragment.
    let plain =
        short(12) == 0x0800 && h[ip(0)] == 0x45 && h[ip(9)] == UDP && short(ip(6)) & 0x3fff == 0;
    if !plain || frame.len() < ETHERNET_HEADER + total {
        return None;
    }
    let sum: u64 = (0..5).map(|word| u64::from(long(ip(4 * word)))).sum();
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let len = usize::from(short(IP_HEADERS + 4));
    if sum != 0xffff || len < UDP_HEADER || total < 20 + len {
        return None;
    }
    Some(Udp {
        src: Address::v4(long(ip(12))),
        dst: Address::v4(long(ip(16))),
        src_port: short(IP_HEADERS),
        dst_port: short(IP_HEADERS + 2),
        payload_len: (len - UDP_HEADER) as u16,
    })
}

pub(super) fn parse_udp(udp: &[u8], src: Address, dst: Address) -> Result<Packet, Malformed> {
    let [a, b, c, d, e, f, _, _] = *udp.first_chunk().ok_or(Malformed::Truncated)?;
    let len = u16::from_be_bytes([e, f]);
    if usize::from(len) < UDP_HEADER || usize::from(len) > udp.len() {
        return Err(Malformed::Truncated);
    }
    Ok(Packet::Udp(Udp {
        src,
        dst,
        src_port: u16::from_be_bytes([a, b]),
        dst_port: u16::from_be_bytes([c, d]),
        payload_len: len - UDP_HEADER as u16,
    }))
}

/// The parts of a frame that the primary of a datagram needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpDatagram<'a> {
    /// Sender's address and port.
    pub source: Endpoint,
    /// The destination port.
    pub port: u16,
    /// DSCP and ECN.
    pub tos: u8,
    /// Remaining hops.
    pub ttl: u8,
    /// The payload.
    pub payload: &'a [u8],
}

/// The beginning of the UDP header in a frame, and the end of its payload. `None` if
/// [`crate::packet::parse`] does not accept the frame as a datagram.
fn extent(frame: &[u8]) -> Option<(usize, usize)> {
    if ipv6::is_ipv6(frame) {
        let (_, _, range) = ipv6::upper(frame)?;
        let field = frame.get(range.start + 4..range.start + 6)?;
        let len = usize::from(u16::from_be_bytes([field[0], field[1]]));
        let fits = len >= UDP_HEADER && range.len() >= len;
        return fits.then_some((range.start, range.start + len));
    }
    let header_len = usize::from(*frame.get(ETHERNET_HEADER)? & 0xf) * 4;
    let at = ETHERNET_HEADER + header_len;
    let len = usize::from(u16::from_be_bytes([
        *frame.get(at + 4)?,
        *frame.get(at + 5)?,
    ]));
    (header_len >= 20 && len >= UDP_HEADER && frame.len() >= at + len).then_some((at, at + len))
}

/// Reads the datagram in a frame that [`crate::packet::parse`] accepted as one.
#[inline]
pub fn udp_datagram(frame: &[u8]) -> Option<UdpDatagram<'_>> {
    let (at, end) = extent(frame)?;
    if let Some((src, _)) = ipv6::ends(frame) {
        return Some(UdpDatagram {
            source: Endpoint::new(src, u16::from_be_bytes([frame[at], frame[at + 1]])),
            port: u16::from_be_bytes([frame[at + 2], frame[at + 3]]),
            tos: ipv6::traffic_class(frame),
            ttl: ipv6::hop_limit(frame),
            payload: &frame[at + UDP_HEADER..end],
        });
    }
    let [a, b, c, d] = *frame.get(ETHERNET_HEADER + 12..)?.first_chunk()?;
    Some(UdpDatagram {
        source: Endpoint::new(
            Address::ipv4(a, b, c, d),
            u16::from_be_bytes([frame[at], frame[at + 1]]),
        ),
        port: u16::from_be_bytes([frame[at + 2], frame[at + 3]]),
        tos: frame[ETHERNET_HEADER + 1],
        ttl: frame[ETHERNET_HEADER + 8],
        payload: &frame[at + UDP_HEADER..end],
    })
}

/// The pieces of a received datagram that its checksum covers: source and destination address,
/// and header with payload. The outer option is `None` if there is no datagram, or an IPv6
/// datagram without a checksum (RFC 8200 section 8.1); the inner one if the sender of an IPv4
/// datagram computed no checksum.
pub fn udp_checksummed(frame: &[u8]) -> Option<Option<(Address, Address, &[u8])>> {
    let (at, end) = extent(frame)?;
    if let Some((src, dst)) = ipv6::ends(frame) {
        let has_checksum = frame[at + 6..at + 8] != [0, 0];
        return has_checksum.then(|| Some((src, dst, &frame[at..end])));
    }
    if frame[at + 6..at + 8] == [0, 0] {
        return Some(None);
    }
    let addresses = frame.get(ETHERNET_HEADER + 12..)?;
    let [a, b, c, d, e, f, g, h] = *addresses.first_chunk()?;
    let (src, dst) = (Address::ipv4(a, b, c, d), Address::ipv4(e, f, g, h));
    Some(Some((src, dst, &frame[at..end])))
}

/// The fields of an outgoing UDP header.
#[derive(Clone, Copy, Debug)]
pub struct UdpHeaders {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes after the header.
    pub payload_len: usize,
}

/// Writes a UDP header to the front of `buffer`; the checksum field is left zero.
///
/// # Panics
/// If `buffer` is shorter than [`UDP_HEADER`].
pub fn emit_udp(buffer: &mut [u8], h: &UdpHeaders) {
    let mut udp = sw::UdpPacket::new_unchecked(&mut buffer[..UDP_HEADER]);
    udp.set_src_port(h.src_port);
    udp.set_dst_port(h.dst_port);
    udp.set_len((UDP_HEADER + h.payload_len) as u16);
    udp.set_checksum(0);
}

/// Stores the checksum in a header that [`emit_udp`] wrote. 0 means that there is none, so
/// 0xffff replaces it (RFC 768).
pub fn set_udp_checksum(header: &mut [u8], checksum: u16) {
    let sent = if checksum == 0 { 0xffff } else { checksum };
    header[6..8].copy_from_slice(&sent.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{IpHeaders, emit_ip, parse};
    use proptest::prelude::*;

    fn frame(payload: &[u8]) -> Vec<u8> {
        let ip = IpHeaders {
            src_mac: [2; 6],
            dst_mac: [4; 6],
            src: Address::ipv4(10, 0, 0, 2),
            dst: Address::ipv4(10, 0, 0, 1),
            protocol: UDP,
            ttl: 64,
            tos: 1,
            ident: 7,
            label: 0,
            offset: 0,
            more: false,
            payload_len: UDP_HEADER + payload.len(),
        };
        let udp = UdpHeaders {
            src_port: 5,
            dst_port: 9,
            payload_len: payload.len(),
        };
        let mut frame = vec![0; IP_HEADERS + UDP_HEADER];
        emit_ip(&mut frame, &ip);
        emit_udp(&mut frame[IP_HEADERS..], &udp);
        frame.extend(payload);
        frame
    }

    #[test]
    fn what_is_emitted_parses_back_and_padding_does_not_count() {
        let mut frame = frame(b"hello");
        frame.extend([0; 20]);
        let Ok(Packet::Udp(udp)) = parse(&frame) else {
            panic!("not UDP")
        };
        assert_eq!((udp.src_port, udp.dst_port, udp.payload_len), (5, 9, 5));
        let datagram = udp_datagram(&frame).expect("a datagram");
        assert_eq!(datagram.payload, b"hello");
        assert_eq!(datagram.source, Endpoint::new([10, 0, 0, 2].into(), 5));
        assert_eq!((datagram.tos, datagram.ttl), (1, 64));
        assert_eq!(udp_checksummed(&frame), Some(None));
    }

    #[test]
    fn a_length_that_does_not_fit_is_malformed() {
        for len in [7_u16, 14, u16::MAX] {
            let mut frame = frame(b"hello");
            frame[IP_HEADERS + 4..IP_HEADERS + 6].copy_from_slice(&len.to_be_bytes());
            assert_eq!(parse(&frame).err(), Some(Malformed::Truncated), "{len}");
        }
    }

    proptest! {
        /// The fast path agrees with the slow one, or declines, even if the frame is damaged;
        /// and every parsed datagram can be read.
        #[test]
        fn both_paths_of_the_parser_agree(at in 0_usize..60, value in any::<u8>(), len in 0_usize..70) {
            let mut frame = frame(b"hello, world");
            let at = at % frame.len();
            frame[at] = value;
            if at != ETHERNET_HEADER {
                sw::Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]).fill_checksum();
            }
            frame.truncate(len);
            let long = frame.get(ETHERNET_HEADER..).and_then(|bytes| {
                let ip = sw::Ipv4Packet::new_checked(bytes).ok()?;
                parse_udp(ip.payload(), ip.src_addr().into(), ip.dst_addr().into()).ok()
            });
            if let Some(plain) = parse_plain(&frame) {
                let Some(Packet::Udp(udp)) = long else { panic!("not UDP") };
                prop_assert_eq!(plain, udp);
            }
            if let Ok(Packet::Udp(udp)) = parse(&frame) {
                let datagram = udp_datagram(&frame).expect("it parsed");
                prop_assert_eq!(datagram.payload.len(), usize::from(udp.payload_len));
                prop_assert!(udp_checksummed(&frame).is_some());
            }
        }

        #[test]
        fn no_frame_makes_reading_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = udp_datagram(&bytes);
            let _ = udp_checksummed(&bytes);
        }
    }
}
