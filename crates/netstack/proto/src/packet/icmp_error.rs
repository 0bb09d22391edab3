//! ICMP errors about our segments (RFC 792, RFC 1191 section 4).

use crate::packet::flow::{Address, Endpoint};
use smoltcp::wire as sw;

/// An ICMP error that quotes the beginning of a TCP segment: at least the IPv4 header of 20
/// bytes and the next 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpError {
    /// The host to which the error was sent.
    pub dst: Address,
    /// Type and code.
    pub numbers: [u8; 2],
    /// The MTU that this segment exceeds (type 3, code 4); 0 if not reported.
    pub mtu: u16,
    /// The sender of the segment.
    pub local: Endpoint,
    /// The receiver of the segment.
    pub remote: Endpoint,
    /// Its sequence number.
    pub seq: u32,
}

/// Reads an ICMP message; `None` if it is not an error about a TCP segment, or is damaged.
pub fn parse(ip: &sw::Ipv4Packet<&[u8]>) -> Option<TcpError> {
    let icmp = sw::Icmpv4Packet::new_checked(ip.payload()).ok()?;
    let [kind, code, _, _, _, _, mtu_high, mtu_low, quoted @ ..] = ip.payload() else {
        return None;
    };
    // Destination unreachable, source quench, time exceeded, parameter problem.
    if !matches!(kind, 3 | 4 | 11 | 12) {
        return None;
    }
    let quoted_ip = sw::Ipv4Packet::new_unchecked(quoted.get(..20)?);
    let header_len = usize::from(quoted_ip.header_len());
    let about_tcp = quoted_ip.version() == 4
        && header_len >= 20
        && quoted_ip.next_header() == sw::IpProtocol::Tcp
        && quoted_ip.frag_offset() == 0;
    let [a, b, c, d, e, f, g, h] = *quoted.get(header_len..)?.first_chunk()?;
    (about_tcp && icmp.verify_checksum()).then(|| TcpError {
        dst: ip.dst_addr().into(),
        numbers: [*kind, *code],
        mtu: u16::from_be_bytes([*mtu_high, *mtu_low]),
        local: Endpoint::new(quoted_ip.src_addr().into(), u16::from_be_bytes([a, b])),
        remote: Endpoint::new(quoted_ip.dst_addr().into(), u16::from_be_bytes([c, d])),
        seq: u32::from_be_bytes([e, f, g, h]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::flow::{Flow, IpFields};
    use crate::packet::{ETHERNET_HEADER, Packet, TcpHeaders, emit_tcp, parse};
    use proptest::prelude::*;

    const US: Address = Address::ipv4(10, 0, 0, 1);
    const FAR: Address = Address::ipv4(192, 0, 2, 7);
    const ROUTER: Address = Address::ipv4(10, 0, 0, 254);

    /// A router's error about one of our segments.
    fn error() -> Vec<u8> {
        let headers = TcpHeaders {
            src_mac: [2; 6],
            dst_mac: [4; 6],
            flow: Flow {
                local: Endpoint::new(US, 4000),
                remote: Endpoint::new(FAR, 80),
            },
            seq: 0x0102_0304,
            ack: 0,
            wnd: 0,
            flags: 0,
            timestamps: None,
            mss: None,
            window_scale: None,
            sack_permitted: false,
            sack: crate::packet::SackBlocks::default(),
            ect: false,
            ip: IpFields::DEFAULT,
            label: 0,
            payload_len: 0,
        };
        let mut segment = vec![0; 200];
        emit_tcp(&mut segment, &headers);
        let mut frame = segment[..ETHERNET_HEADER + 20].to_vec();
        frame.extend([3, 4, 0, 0, 0, 0, 0x05, 0x14]);
        frame.extend(&segment[ETHERNET_HEADER..ETHERNET_HEADER + 28]);
        fix_checksums(&mut frame);
        frame
    }

    /// Corrects both checksums, and the outer addresses.
    fn fix_checksums(frame: &mut [u8]) {
        let len = frame.len() - ETHERNET_HEADER;
        let mut ip = sw::Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]);
        ip.set_total_len(len as u16);
        ip.set_next_header(sw::IpProtocol::Icmp);
        ip.set_src_addr(ROUTER.to_v4().expect("one of IPv4"));
        ip.set_dst_addr(US.to_v4().expect("one of IPv4"));
        ip.fill_checksum();
        sw::Icmpv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER + 20..]).fill_checksum();
    }

    #[test]
    fn an_error_names_the_segment_and_the_mtu() {
        let Ok(Packet::TcpError(error)) = parse(&error()) else {
            panic!("not understood")
        };
        let expected = TcpError {
            dst: US,
            numbers: [3, 4],
            mtu: 1300,
            local: Endpoint::new(US, 4000),
            remote: Endpoint::new(FAR, 80),
            seq: 0x0102_0304,
        };
        assert_eq!(error, expected);
    }

    #[test]
    fn a_damaged_error_is_none() {
        let mut damaged = error();
        *damaged.last_mut().expect("it is not empty") ^= 1;
        assert!(!matches!(parse(&damaged), Ok(Packet::TcpError(_))));
        let mut short = error();
        short.truncate(ETHERNET_HEADER + 20 + 8 + 27);
        fix_checksums(&mut short);
        assert!(!matches!(parse(&short), Ok(Packet::TcpError(_))));
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parser_panic(at in 14_usize..80, value in any::<u8>(), len in 0_usize..80, right in any::<bool>()) {
            let mut frame = error();
            let at = at % frame.len();
            frame[at] = value;
            frame.truncate(len);
            if right && at > ETHERNET_HEADER && frame.len() >= ETHERNET_HEADER + 28 {
                fix_checksums(&mut frame);
            }
            let _ = parse(&frame);
        }
    }
}
