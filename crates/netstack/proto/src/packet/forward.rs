//! The header fields that a router reads and writes (RFC 1812 sections 5.2 and 5.3).

use smoltcp::wire as sw;

use crate::packet::flow::Address;
use crate::packet::{ETHERNET_HEADER, Malformed};

/// The header of a packet for another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// Source address.
    pub src: Address,
    /// Destination address.
    pub dst: Address,
    /// Remaining hops.
    pub ttl: u8,
    /// Number of the protocol after its header.
    pub protocol: u8,
    /// Bytes of its header.
    pub header_len: usize,
    /// Bytes of the packet, header included.
    pub total_len: usize,
    /// Whether it must not be fragmented.
    pub dont_fragment: bool,
    /// Whether its header names routers that it has to pass.
    pub is_source_routed: bool,
}

/// Numbers of the source-route options: loose and strict.
const SOURCE_ROUTES: [u8; 2] = [131, 137];

/// Reads and verifies the header of an IPv4 frame (RFC 1812 section 5.2.2).
///
/// # Errors
/// Why the header is invalid.
pub fn forwarded(frame: &[u8]) -> Result<Forwarded, Malformed> {
    let bytes = frame.get(ETHERNET_HEADER..).ok_or(Malformed::Truncated)?;
    let ip = sw::Ipv4Packet::new_checked(bytes).map_err(|_| Malformed::Truncated)?;
    let header_len = usize::from(ip.header_len());
    if ip.version() != 4 || header_len < 20 {
        return Err(Malformed::Truncated);
    }
    if !ip.verify_checksum() {
        return Err(Malformed::IpChecksum);
    }
    let mut is_source_routed = false;
    for option in options(&bytes[20..header_len]) {
        is_source_routed |= SOURCE_ROUTES.contains(&option?[0]);
    }
    Ok(Forwarded {
        src: ip.src_addr().into(),
        dst: ip.dst_addr().into(),
        ttl: ip.hop_limit(),
        protocol: ip.next_header().into(),
        header_len,
        total_len: usize::from(ip.total_len()),
        dont_fragment: ip.dont_frag(),
        is_source_routed,
    })
}

/// The options of a header, each with its number and length (RFC 791 section 3.1).
pub fn options(mut rest: &[u8]) -> impl Iterator<Item = Result<&[u8], Malformed>> {
    std::iter::from_fn(move || {
        let len = match *rest {
            [] | [0, ..] => return None,
            [1, ..] => 1,
            [_, len, ..] if len >= 2 && usize::from(len) <= rest.len() => usize::from(len),
            _ => {
                rest = &[];
                return Some(Err(Malformed::Options));
            }
        };
        let (option, behind) = rest.split_at(len);
        rest = behind;
        Some(Ok(option))
    })
}

/// Decrements the TTL of a frame that [`forwarded`] has read, and its checksum (RFC 1624).
///
/// # Panics
/// If the frame is shorter than its headers.
pub fn decrement_ttl(frame: &mut [u8]) {
    let header = &mut frame[ETHERNET_HEADER..ETHERNET_HEADER + 20];
    let word = |h: &[u8], at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
    let old = word(header, 8);
    header[8] = header[8].saturating_sub(1);
    let new = word(header, 8);
    let sum = u32::from(!word(header, 10)) + u32::from(!old) + u32::from(new);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Stores both link-layer addresses.
///
/// # Panics
/// If the frame is shorter than both.
pub fn set_link(frame: &mut [u8], src: [u8; 6], dst: [u8; 6]) {
    frame[..6].copy_from_slice(&dst);
    frame[6..12].copy_from_slice(&src);
}

/// Marks a packet of ours as internetwork control (RFC 1812 section 4.3.2.5).
///
/// # Panics
/// If the frame is shorter than its headers.
pub fn set_internetwork_control(frame: &mut [u8]) {
    let mut ip = sw::Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]);
    ip.set_dscp(0b110_000);
    ip.fill_checksum();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{IP_HEADERS, IpHeaders, emit_ip};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_checksum_stays_right_until_the_time_to_live_is_over(
            src in any::<u32>(), dst in any::<u32>(), ident in any::<u16>(), ttl in 1_u8..=255, tos in any::<u8>(),
        ) {
            let headers = IpHeaders {
                src_mac: [2; 6],
                dst_mac: [4; 6],
                src: Address::v4(src),
                dst: Address::v4(dst),
                protocol: 17,
                ttl,
                tos,
                ident: ident.into(),
                label: 0,
                offset: 0,
                more: false,
                payload_len: 0,
            };
            let mut frame = vec![0; IP_HEADERS];
            emit_ip(&mut frame, &headers);
            for left in (0..ttl).rev() {
                decrement_ttl(&mut frame);
                prop_assert_eq!(forwarded(&frame).map(|packet| packet.ttl), Ok(left));
            }
            set_internetwork_control(&mut frame);
            prop_assert!(forwarded(&frame).is_ok());
        }

        #[test]
        fn no_frame_makes_reading_a_header_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = forwarded(&bytes);
            options(&bytes).for_each(drop);
        }
    }
}
