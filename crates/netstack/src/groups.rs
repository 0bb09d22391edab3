//! The group that receives a frame: the group of its flow, the first, or all.

use dominoes_drivers::split::Target;

use crate::keys::Grouping;
use crate::log::request::Flow;
use crate::log::request::{Address, Endpoint};

const ETHERNET: usize = 14;
const IPV4: [u8; 2] = [8, 0];
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ECHO_REQUEST: u8 = 8;
/// The port of DHCP clients, and of DHCPv6.
const DHCP_CLIENT: [u8; 2] = 68_u16.to_be_bytes();
const DHCP_CLIENT_V6: [u8; 2] = 546_u16.to_be_bytes();

/// The groups that receive a frame. The first group gets malformed frames, and counts them. A
/// message that is answered must go to one group, or its handler must ask `is_first`.
#[inline]
pub(crate) fn target(grouping: &Grouping, frame: &[u8]) -> Target {
    let first = Target::One(0);
    let Some((link, packet)) = frame.split_at_checked(ETHERNET) else {
        return first;
    };
    if link[12..14] != IPV4 {
        return target_v6(grouping, frame);
    }
    let Some(header) = packet.first_chunk::<20>() else {
        return first;
    };
    // It is a fragment: the bit "more fragments" is set, or the offset is not 0.
    if (header[6] & 0x3f) | header[7] != 0 {
        return Target::All;
    }
    let behind = packet.get(4 * usize::from(header[0] & 15)..);
    let behind = behind.and_then(|behind| behind.first_chunk::<4>());
    let Some(&[a, b, c, d]) = behind else {
        return first;
    };
    let address =
        |at: usize| Address::ipv4(header[at], header[at + 1], header[at + 2], header[at + 3]);
    let flow = || Flow {
        local: Endpoint::new(address(16), u16::from_be_bytes([c, d])),
        remote: Endpoint::new(address(12), u16::from_be_bytes([a, b])),
    };
    match header[9] {
        TCP => Target::One(grouping.group(&flow()).into()),
        UDP if !is_to_several(link) && [c, d] != DHCP_CLIENT => {
            Target::One(grouping.group(&flow()).into())
        }
        ICMP if a != ECHO_REQUEST => Target::All,
        _ => first,
    }
}

/// Whether the link address is a multicast or broadcast address. Datagrams to several hosts go to
/// the first group, which delivers them to all sockets that joined. Answers of DHCP servers go to
/// it, too: it has the client.
#[inline]
fn is_to_several(link: &[u8]) -> bool {
    link.first().is_some_and(|byte| byte & 1 != 0)
}

/// As [`target`], for a frame that is not IPv4.
fn target_v6(grouping: &Grouping, frame: &[u8]) -> Target {
    const ICMPV6: u8 = 58;
    const ECHO_REQUEST_V6: u8 = 128;
    const IPV6: usize = ETHERNET + 40;
    if frame[12..14] != [0x86, 0xdd] {
        return Target::All;
    }
    let Some(header) = frame.first_chunk::<IPV6>() else {
        return Target::One(0);
    };
    let (protocol, at) = match upper(frame, header[20]) {
        Some(Upper::Header(protocol, at)) => (protocol, at),
        Some(Upper::Fragment) => return Target::All,
        None => return Target::One(0),
    };
    let Some(&[a, b, c, d]) = frame.get(at..).and_then(|behind| behind.first_chunk()) else {
        return Target::One(0);
    };
    let address = |at: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&header[at..at + 16]);
        Address::v6(bytes)
    };
    let flow = || Flow {
        local: Endpoint::new(address(38), u16::from_be_bytes([c, d])),
        remote: Endpoint::new(address(22), u16::from_be_bytes([a, b])),
    };
    match protocol {
        TCP => Target::One(grouping.group(&flow()).into()),
        // A frame to us alone may carry a datagram to a group.
        UDP if !is_to_several(frame) && header[38] != 0xff && [c, d] != DHCP_CLIENT_V6 => {
            Target::One(grouping.group(&flow()).into())
        }
        ICMPV6 if a != ECHO_REQUEST_V6 => Target::All,
        _ => Target::One(0),
    }
}

/// The content after the extension headers.
enum Upper {
    /// A protocol, and the offset of its header.
    Header(u8, usize),
    Fragment,
}

/// Finds the content after the extension headers; `None` for a malformed packet, or one with more
/// than eight of them.
fn upper(frame: &[u8], first: u8) -> Option<Upper> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const FRAGMENT_HEADER: usize = 8;
    const RESERVED_BITS: u16 = 0b110;
    const DESTINATION: u8 = 60;
    let (mut protocol, mut at) = (first, ETHERNET + 40);
    for _ in 0..=8 {
        match protocol {
            HOP_BY_HOP | ROUTING | DESTINATION => {
                let [next, len] = *frame.get(at..)?.first_chunk()?;
                (protocol, at) = (next, at + 8 * (usize::from(len) + 1));
            }
            FRAGMENT => {
                let [next, _, high, low] = *frame.get(at..)?.first_chunk()?;
                // An atomic fragment is a whole datagram (RFC 6946).
                if u16::from_be_bytes([high, low]) & !RESERVED_BITS != 0 {
                    return Some(Upper::Fragment);
                }
                (protocol, at) = (next, at + FRAGMENT_HEADER);
            }
            _ => return Some(Upper::Header(protocol, at)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keys;

    fn grouping(of: u16) -> Grouping {
        Grouping::new(&Keys::new([3, 5]), of)
    }

    fn whose(of: u16, frame: &[u8]) -> Target {
        target(&grouping(of), frame)
    }

    fn packet(protocol: u8, fragment: u16, ports: [u16; 2]) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET];
        frame[12..14].copy_from_slice(&IPV4);
        frame.extend([0x45, 0, 0, 40, 0, 0]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, protocol, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
        frame.extend(ports.map(u16::to_be_bytes).concat());
        frame.extend([0; 16]);
        frame
    }

    #[test]
    fn flows_spread_evenly_and_stay_where_they_are() {
        for (of, protocol) in [1, 2, 3, 8].into_iter().zip([TCP, UDP, TCP, UDP]) {
            let mut count = vec![0usize; usize::from(of)];
            for port in 1000..5000 {
                let frame = packet(protocol, 0x4000, [port, 80]);
                let Target::One(index) = whose(of, &frame) else {
                    panic!("it is for one group");
                };
                assert_eq!(whose(of, &frame), Target::One(index));
                count[index] += 1;
            }
            let fair = 4000 / usize::from(of);
            assert!(
                count.iter().all(|n| n.abs_diff(fair) < fair / 5),
                "{count:?}"
            );
        }
    }

    #[test]
    fn what_names_no_flow_reaches_all_or_the_first() {
        let of = 4;
        let mut arp = packet(0, 0, [0, 0]);
        arp[13] = 6;
        assert_eq!(whose(of, &arp), Target::All);
        assert_eq!(whose(of, &packet(TCP, 0x2000, [1, 2])), Target::All);
        assert_eq!(whose(of, &packet(TCP, 7, [1, 2])), Target::All);
        let icmp = |kind: u16| packet(ICMP, 0, [kind << 8, 0]);
        assert_eq!(whose(of, &icmp(3)), Target::All);
        assert_eq!(whose(of, &icmp(8)), Target::One(0));
        for port in 1..100 {
            let mut to_all = packet(UDP, 0, [port, 2]);
            to_all[0] = 0xff;
            assert_eq!(whose(of, &to_all), Target::One(0));
        }
    }

    #[test]
    fn malformed_frames_reach_the_first_group_only() {
        const ROUTING: u8 = 43;
        const FRAGMENT: u8 = 44;
        let v6 = |first: u8, behind: &[u8]| {
            let mut frame = vec![0; ETHERNET + 40];
            frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            frame[20] = first;
            frame.extend(behind);
            frame
        };
        // Chains that end early, and one of more headers than are read.
        let cut = [&[][..], &[TCP], &[ROUTING, 0, 0, 0, 0, 0, 0, 0]];
        for frame in cut.map(|behind| v6(ROUTING, behind)) {
            assert_eq!(whose(4, &frame), Target::One(0));
        }
        assert_eq!(whose(4, &v6(FRAGMENT, &[TCP, 0, 0])), Target::One(0));
        let long = v6(ROUTING, &[ROUTING, 0, 0, 0, 0, 0, 0, 0].repeat(20));
        assert_eq!(whose(4, &long), Target::One(0));
        assert_eq!(whose(4, &v6(FRAGMENT, &[TCP, 0, 0, 1])), Target::All);
        for len in 0..ETHERNET {
            assert_eq!(whose(4, &long[..len]), Target::One(0));
        }
    }

    #[test]
    fn no_frame_is_too_strange() {
        let whole = packet(TCP, 0, [1, 2]);
        for len in 0..whole.len() {
            let _ = whose(2, &whole[..len]);
            let mut longer = whole.clone();
            longer[ETHERNET] = 0x4f;
            let _ = whose(2, &longer[..len]);
        }
    }
}
