//! ICMP (RFC 792): echo, and errors that we send or receive.

use smoltcp::wire as sw;

use super::ip::{ICMP, IP_HEADERS, IpHeaders, emit_ip};
use crate::packet::flow::{Address, Endpoint};
use crate::packet::{Malformed, Packet, Problem};

/// An error that we report about a packet that cannot be processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// We do not support the protocol (RFC 1122 section 3.2.2.1).
    ProtocolUnreachable,
    /// No socket has the port (RFC 1122 section 4.1.3.1).
    PortUnreachable,
    /// Some fragments did not arrive in time (RFC 1122 section 3.3.2).
    ReassemblyTime,
    /// No route leads to its destination (RFC 1812 section 5.2.7.1).
    NetUnreachable,
    /// Its next hop does not answer (RFC 1812 section 5.2.7.1).
    HostUnreachable,
    /// It is longer than this many bytes, and must not be fragmented (RFC 1191 section 4).
    FragmentationNeeded(u16),
    /// Its time to live is used up (RFC 1812 section 5.3.1).
    TimeExceeded,
    /// This neighbour is a better next hop (RFC 1812 section 5.2.7.2).
    Redirect(Address),
    /// One of its headers cannot be processed (RFC 4443 section 3.4); only for IPv6.
    Problem(Problem),
}

impl IcmpError {
    /// Type and code.
    const fn numbers(self) -> [u8; 2] {
        match self {
            IcmpError::ProtocolUnreachable => [3, 2],
            IcmpError::PortUnreachable => [3, 3],
            IcmpError::ReassemblyTime => [11, 1],
            IcmpError::NetUnreachable => [3, 0],
            IcmpError::HostUnreachable => [3, 1],
            IcmpError::FragmentationNeeded(_) => [3, 4],
            IcmpError::TimeExceeded => [11, 0],
            IcmpError::Redirect(_) => [5, 1],
            // Every parameter problem has these numbers.
            IcmpError::Problem(_) => [12, 0],
        }
    }

    /// The four bytes after the checksum.
    const fn head(self) -> [u8; 4] {
        match self {
            IcmpError::FragmentationNeeded(mtu) => {
                let [high, low] = mtu.to_be_bytes();
                [0, 0, high, low]
            }
            IcmpError::Redirect(gateway) => gateway.v4_bits().to_be_bytes(),
            _ => [0; 4],
        }
    }
}

/// A received error about one of our UDP datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpError {
    /// Type and code.
    pub numbers: [u8; 2],
    /// Our port.
    pub port: u16,
    /// The receiver of the datagram.
    pub remote: Endpoint,
    /// Bytes of its packet; only for IPv6.
    pub len: u16,
    /// With IPv4's type 3 and code 4, or IPv6's type 2: the MTU that packets of this size
    /// exceed; 0 if an old router does not report it (RFC 1191 section 5).
    pub mtu: u16,
}

/// Maximum number of quoted bytes: a whole error has at most 576 (RFC 1812 section 4.3.2.3).
const QUOTE: usize = 576 - 20 - 8;

/// The reply to an ICMP echo request (RFC 792), or `None` if its checksum is wrong. The packet
/// may be longer than the MTU, and the caller has to set the link-layer destination.
pub fn echo_reply(frame: &[u8], src_mac: [u8; 6], ident: u32) -> Option<Vec<u8>> {
    let eth = sw::EthernetFrame::new_checked(frame).ok()?;
    let ip = sw::Ipv4Packet::new_checked(eth.payload()).ok()?;
    let icmp = sw::Icmpv4Packet::new_checked(ip.payload()).ok()?;
    if !icmp.verify_checksum() {
        return None;
    }
    let headers = IpHeaders {
        src_mac,
        dst_mac: [0; 6],
        src: ip.dst_addr().into(),
        dst: ip.src_addr().into(),
        protocol: ICMP,
        ttl: 64,
        tos: ip.dscp() << 2,
        ident,
        label: 0,
        offset: 0,
        more: false,
        payload_len: ip.payload().len(),
    };
    let mut reply = vec![0; IP_HEADERS];
    emit_ip(&mut reply, &headers);
    reply.extend(ip.payload());
    let mut out = sw::Icmpv4Packet::new_unchecked(&mut reply[IP_HEADERS..]);
    out.set_msg_type(sw::Icmpv4Message::EchoReply);
    out.fill_checksum();
    Some(reply)
}

/// The frame that reports `report` about `frame`, from us at `src`; `None` if no error may be
/// reported (RFC 1122 section 3.2.2): about errors, later fragments, and packets whose source
/// is not a single host. The caller checks that the packet was sent to one host, and sets the
/// link-layer destination.
pub fn error_about(
    frame: &[u8],
    report: IcmpError,
    src_mac: [u8; 6],
    src: Address,
    ident: u32,
    mtu: u16,
) -> Option<Vec<u8>> {
    let link = sw::EthernetFrame::new_checked(frame).ok()?;
    let packet = link.payload();
    // The quoted packet may be truncated after its first bytes.
    let ip = sw::Ipv4Packet::new_unchecked(packet.get(..20)?);
    let header_len = usize::from(ip.header_len());
    let from = ip.src_addr();
    let one_host = !(from.is_unspecified()
        || from.is_broadcast()
        || from.is_multicast()
        || from.is_loopback() && !src.ip().is_loopback())
        && link.src_addr().is_unicast();
    let is_error = ip.next_header() == sw::IpProtocol::Icmp
        && !matches!(packet.get(header_len), Some(0 | 8 | 13..=18));
    if !one_host || is_error || ip.frag_offset() != 0 {
        return None;
    }
    let room = usize::from(mtu).saturating_sub(28).min(QUOTE);
    let len = packet.len().min(usize::from(ip.total_len())).min(room);
    let headers = IpHeaders {
        src_mac,
        dst_mac: [0; 6],
        src,
        dst: from.into(),
        protocol: ICMP,
        ttl: 64,
        // Routine (RFC 1122 section 3.2.2).
        tos: 0,
        ident,
        label: 0,
        offset: 0,
        more: false,
        payload_len: 8 + len,
    };
    let mut error = vec![0; IP_HEADERS + 8];
    emit_ip(&mut error, &headers);
    error[IP_HEADERS..IP_HEADERS + 2].copy_from_slice(&report.numbers());
    error[IP_HEADERS + 4..].copy_from_slice(&report.head());
    error.extend(&packet[..len]);
    sw::Icmpv4Packet::new_unchecked(&mut error[IP_HEADERS..]).fill_checksum();
    Some(error)
}

/// Reads the ICMP message of an IPv4 packet.
pub(super) fn parse_icmp(ip: &sw::Ipv4Packet<&[u8]>) -> Result<Packet, Malformed> {
    let icmp = sw::Icmpv4Packet::new_checked(ip.payload()).map_err(|_| Malformed::Truncated)?;
    let dst = ip.dst_addr().into();
    match icmp.msg_type() {
        sw::Icmpv4Message::EchoRequest => Ok(Packet::EchoRequest { dst }),
        sw::Icmpv4Message::EchoReply => Ok(Packet::EchoReply { dst }),
        sw::Icmpv4Message::DstUnreachable => match about_udp(ip.payload()) {
            Some(error) if icmp.verify_checksum() => Ok(Packet::UdpError { error, dst }),
            _ => Ok(Packet::Unknown),
        },
        _ => Ok(Packet::Unknown),
    }
}

/// Reads an error about a UDP datagram, if the message quotes one.
fn about_udp(icmp: &[u8]) -> Option<UdpError> {
    let quoted = icmp.get(8..)?;
    let header_len = usize::from(*quoted.first()? & 0xf) * 4;
    let ip = sw::Ipv4Packet::new_unchecked(quoted.get(..20)?);
    let [a, b, c, d] = *quoted.get(header_len..)?.first_chunk()?;
    let udp = ip.next_header() == sw::IpProtocol::Udp && ip.frag_offset() == 0;
    (udp && header_len >= 20).then(|| UdpError {
        numbers: [icmp[0], icmp[1]],
        port: u16::from_be_bytes([a, b]),
        remote: Endpoint::new(ip.dst_addr().into(), u16::from_be_bytes([c, d])),
        len: 0,
        mtu: match icmp[..2] {
            [3, 4] => u16::from_be_bytes([icmp[6], icmp[7]]),
            _ => 0,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{ETHERNET_HEADER, parse};
    use proptest::prelude::*;

    const US: Address = Address::ipv4(10, 0, 0, 1);
    const PEER: Address = Address::ipv4(10, 0, 0, 2);

    /// A datagram of the peer from port 5 to port 9.
    fn datagram(src: Address, protocol: u8, offset: u32) -> Vec<u8> {
        let headers = IpHeaders {
            src_mac: [2; 6],
            dst_mac: [4; 6],
            src,
            dst: US,
            protocol,
            ttl: 64,
            tos: 0,
            ident: 1,
            label: 0,
            offset,
            more: false,
            payload_len: 12,
        };
        let mut frame = vec![0; IP_HEADERS];
        emit_ip(&mut frame, &headers);
        frame.extend([0, 5, 0, 9, 0, 12, 0, 0, 1, 2, 3, 4]);
        frame
    }

    fn report(frame: &[u8]) -> Option<Vec<u8>> {
        error_about(frame, IcmpError::PortUnreachable, [4; 6], US, 1, 1500)
    }

    #[test]
    fn an_error_quotes_the_packet_and_is_understood_by_its_sender() {
        let error = report(&datagram(PEER, 17, 0)).expect("an error");
        let Ok(Packet::UdpError { error, dst }) = parse(&error) else {
            panic!("not understood")
        };
        let expected = UdpError {
            numbers: [3, 3],
            port: 5,
            remote: Endpoint::new(US, 9),
            len: 0,
            mtu: 0,
        };
        assert_eq!((error, dst), (expected, PEER));
    }

    #[test]
    fn no_error_is_reported_about_errors_later_fragments_and_what_no_single_host_sent() {
        let error = report(&datagram(PEER, 17, 0)).expect("an error");
        assert_eq!(report(&error), None);
        assert_eq!(report(&datagram(PEER, 17, 8)), None);
        for src in [
            Address::UNSPECIFIED,
            Address::v4(u32::MAX),
            Address::ipv4(127, 0, 0, 1),
            Address::ipv4(224, 0, 0, 1),
        ] {
            assert_eq!(report(&datagram(src, 17, 0)), None, "{src}");
        }
        let mut group = datagram(PEER, 17, 0);
        group[6] |= 1;
        assert_eq!(report(&group), None);
    }

    proptest! {
        #[test]
        fn no_frame_makes_icmp_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = echo_reply(&bytes, [0; 6], 0);
            let _ = report(&bytes);
            let _ = about_udp(&bytes);
        }

        #[test]
        fn a_damaged_error_does_not_make_the_parser_panic(at in 14_usize..70, value in any::<u8>(), len in 0_usize..80) {
            let mut error = report(&datagram(PEER, 17, 0)).expect("an error");
            let at = at % error.len();
            error[at] = value;
            sw::Ipv4Packet::new_unchecked(&mut error[ETHERNET_HEADER..]).fill_checksum();
            error.truncate(len);
            let _ = parse(&error);
        }
    }
}
