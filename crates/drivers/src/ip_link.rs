//! Links that carry bare IP packets, without Ethernet.

use crate::ETHERNET_HEADER_LEN;

/// The type of a device's link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkType {
    /// Ethernet: hosts find each other's addresses by ARP and neighbor discovery.
    #[default]
    Ethernet,
    /// Bare IP packets, as in a TUN interface. All hosts are reached through the other end, so there is no
    /// ARP, no neighbor discovery and no duplicate address detection. A frame has a constant
    /// Ethernet header in front of the packet, which never crosses the link ([`ip_header`]).
    Ip,
}

/// Our address in the headers of a [`LinkType::Ip`] device.
pub const IP_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];

/// The address of every other host in the headers of a [`LinkType::Ip`] device.
pub const IP_PEER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 2];

/// The Ethernet header of a packet that a [`LinkType::Ip`] device receives. `None`: it is no
/// packet of IPv4 or IPv6, or shorter than its header.
///
/// The destination is [`IP_MAC`], or the address of all hosts or of the packet's group (RFC 1112
/// section 6.4, RFC 2464 section 7). The source is [`IP_PEER_MAC`].
#[inline]
pub fn ip_header(packet: &[u8]) -> Option<[u8; ETHERNET_HEADER_LEN]> {
    let (destination, kind) = match packet.first()? >> 4 {
        4 if packet.len() >= 20 => {
            let destination = match packet[16..20] {
                [255, 255, 255, 255] => [0xff; 6],
                [224..=239, b, c, d] => [0x01, 0x00, 0x5e, b & 0x7f, c, d],
                _ => IP_MAC,
            };
            (destination, [0x08, 0x00])
        }
        6 if packet.len() >= 40 => {
            let destination = match packet[24..40] {
                [0xff, .., a, b, c, d] => [0x33, 0x33, a, b, c, d],
                _ => IP_MAC,
            };
            (destination, [0x86, 0xdd])
        }
        _ => return None,
    };
    let mut header = [0; ETHERNET_HEADER_LEN];
    header[..6].copy_from_slice(&destination);
    header[6..12].copy_from_slice(&IP_PEER_MAC);
    header[12..].copy_from_slice(&kind);
    Some(header)
}

/// A packet that a [`LinkType::Ip`] device receives, as a frame. `None` as for [`ip_header`].
#[cfg(feature = "smoltcp")]
pub(crate) fn ip_frame(packet: &[u8]) -> Option<crate::Frame> {
    Some(crate::Frame::from_bytes(
        &[&ip_header(packet)?, packet].concat(),
    ))
}

/// Whether a frame of this EtherType can be sent without its Ethernet header.
#[inline]
pub(crate) fn is_ip(head: &[u8]) -> bool {
    matches!(head.get(12..14), Some([0x08, 0x00] | [0x86, 0xdd]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(destination: [u8; 4]) -> Vec<u8> {
        let mut packet = vec![0x45; 20];
        packet[16..].copy_from_slice(&destination);
        packet
    }

    fn v6(first: u8) -> Vec<u8> {
        let mut packet = vec![0x60; 40];
        packet[24] = first;
        packet[36..].copy_from_slice(&[1, 2, 3, 4]);
        packet
    }

    #[test]
    fn the_header_follows_from_the_version_and_the_destination() {
        let of = |packet: Vec<u8>| {
            let header = ip_header(&packet).expect("a packet");
            assert_eq!(header[6..12], IP_PEER_MAC);
            let kind = if packet[0] == 0x45 {
                [8, 0]
            } else {
                [0x86, 0xdd]
            };
            assert_eq!(header[12..], kind);
            <[u8; 6]>::try_from(&header[..6]).expect("six bytes")
        };
        assert_eq!(of(v4([10, 0, 0, 1])), IP_MAC);
        assert_eq!(of(v4([240, 0, 0, 1])), IP_MAC);
        assert_eq!(of(v4([255; 4])), [0xff; 6]);
        assert_eq!(of(v4([239, 0x81, 2, 3])), [0x01, 0x00, 0x5e, 0x01, 2, 3]);
        assert_eq!(of(v6(0xfd)), IP_MAC);
        assert_eq!(of(v6(0xff)), [0x33, 0x33, 1, 2, 3, 4]);
    }

    #[test]
    fn what_is_short_or_of_another_version_is_no_packet() {
        assert_eq!(ip_header(&[]), None);
        assert_eq!(ip_header(&v4([10, 0, 0, 1])[..19]), None);
        assert_eq!(ip_header(&v6(0xfd)[..39]), None);
        for first in (0..=255).filter(|first| first >> 4 != 4 && first >> 4 != 6) {
            assert_eq!(ip_header(&[first; 60]), None);
        }
    }
}
