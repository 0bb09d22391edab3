//! Messages of multicast listeners (RFC 2710, RFC 3810).

use super::icmpv6;
use super::igmp::Record;
use super::ipv6::{self, Content, IPV6_HEADERS};
use super::ndp::{ALL_ROUTERS, group_mac};
use crate::packet::flow::Address;

const QUERY: u8 = 130;
const REPORT_V1: u8 = 131;
const DONE: u8 = 132;
const REPORT_V2: u8 = 143;
/// The group of routers that process reports.
const LISTENING_ROUTERS: Address = Address::of_words([0xff02 << 48, 0x16]);
/// A hop-by-hop header with the router-alert option (RFC 2711) and padding.
const ROUTER_ALERT: [u8; 8] = [ipv6::ICMPV6, 0, 5, 2, 0, 0, 1, 0];

/// A router's query to listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MldQuery {
    /// The group in question; zeros for all groups.
    pub group: Address,
    /// Maximum delay of an answer in milliseconds.
    pub most_ms: u64,
    /// Whether the router supports only version 1 (RFC 3810 section 8.2.1).
    pub is_v1: bool,
}

/// Reads a query from a frame whose ICMPv6 checksum is right. `None` if it is not a valid query
/// (RFC 3810 section 5.1.14): it must come from a router on the link, with the router-alert option.
pub fn parse(frame: &[u8]) -> Option<MldQuery> {
    let (src, _) = ipv6::ends(frame)?;
    let found = ipv6::walk(frame).ok()?;
    let Content::Upper { at, .. } = found.content else {
        return None;
    };
    let bytes = frame.get(at..found.end)?;
    let fields: &[u8; 24] = bytes.first_chunk()?;
    let is_alert = frame[20] == 0 && at > IPV6_HEADERS;
    if fields[0] != QUERY || !src.is_link_local() || ipv6::hop_limit(frame) != 1 || !is_alert {
        return None;
    }
    let code = u64::from(u16::from_be_bytes([fields[4], fields[5]]));
    let is_v1 = bytes.len() == 24;
    if !is_v1 && bytes.len() < 28 {
        return None;
    }
    // From 32,768 on, a floating-point value (RFC 3810 section 5.1.3).
    let millis = if is_v1 || code < 1 << 15 {
        code
    } else {
        (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3)
    };
    let mut group = [0; 16];
    group.copy_from_slice(&fields[8..]);
    Some(MldQuery {
        group: Address::v6(group),
        most_ms: millis,
        is_v1,
    })
}

fn frame(src_mac: [u8; 6], src: Address, dst: Address, message: &mut [u8]) -> Vec<u8> {
    let header = ipv6::Ipv6Header {
        src_mac,
        dst_mac: group_mac(dst),
        src,
        dst,
        next_header: 0,
        hop_limit: 1,
        traffic_class: 0,
        label: 0,
        payload_len: ROUTER_ALERT.len() + message.len(),
    };
    let mut frame = vec![0; IPV6_HEADERS];
    ipv6::emit(&mut frame, &header);
    icmpv6::set_checksum(message, src, dst);
    frame.extend(ROUTER_ALERT);
    frame.extend(&*message);
    frame
}

/// A frame that reports `records` (RFC 3810 section 5.2). `src` is zeros while we have no address.
pub fn report(src_mac: [u8; 6], src: Address, records: &[Record]) -> Vec<u8> {
    let [high, low] = (records.len() as u16).to_be_bytes();
    let mut message = vec![REPORT_V2, 0, 0, 0, 0, 0, high, low];
    for record in records {
        record.write(&mut message);
    }
    frame(src_mac, src, LISTENING_ROUTERS, &mut message)
}

/// Reports one group to a router of version 1 (RFC 2710 section 3).
pub fn report_v1(src_mac: [u8; 6], src: Address, group: Address) -> Vec<u8> {
    message_v1(REPORT_V1, (src_mac, src, group), group)
}

/// Says to routers of version 1 that we leave a group (RFC 2710 section 4).
pub fn done(src_mac: [u8; 6], src: Address, group: Address) -> Vec<u8> {
    message_v1(DONE, (src_mac, src, group), ALL_ROUTERS)
}

fn message_v1(
    kind: u8,
    (src_mac, src, group): ([u8; 6], Address, Address),
    dst: Address,
) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    message.extend(group.bytes());
    frame(src_mac, src, dst, &mut message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::igmp::Mode;
    use crate::packet::{Packet, parse as parse_frame};

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const US: Address = Address::of_words([0xfe80 << 48, 1]);
    const ROUTER: Address = Address::of_words([0xfe80 << 48, 2]);
    const ALL: Address = Address::of_words([0xff02 << 48, 1]);
    const GROUP: Address = Address::of_words([0xff02 << 48, 0x1_ff00_0001]);

    fn query(src: Address, code: u16, len: usize) -> Vec<u8> {
        let [high, low] = code.to_be_bytes();
        let mut message = vec![QUERY, 0, 0, 0, high, low, 0, 0];
        message.extend(GROUP.bytes());
        message.resize(len, 0);
        frame(MAC, src, ALL, &mut message)
    }

    #[test]
    fn a_report_is_addressed_to_listening_routers_and_alerts_those_on_the_way() {
        let record = Record {
            mode: Mode::ToExclude,
            group: GROUP,
            sources: Vec::new(),
        };
        let sent = report(MAC, US, &[record]);
        assert!(matches!(parse_frame(&sent), Ok(Packet::Link { .. })));
        assert_eq!(sent[..6], [0x33, 0x33, 0, 0, 0, 0x16]);
        assert_eq!((sent[20], sent[21]), (0, 1));
        assert_eq!(sent[54..62], ROUTER_ALERT);
        assert_eq!(sent[62], REPORT_V2);
        assert_eq!(sent[68..74], [0, 1, Mode::ToExclude as u8, 0, 0, 0]);
        assert_eq!(sent[74..90], GROUP.bytes());
        let old = report_v1(MAC, US, GROUP);
        assert!(matches!(parse_frame(&old), Ok(Packet::Link { .. })));
        assert_eq!((old[62], &old[70..]), (REPORT_V1, &GROUP.bytes()[..]));
    }

    #[test]
    fn a_query_says_for_whom_and_until_when() {
        let expected = |millis, is_v1| MldQuery {
            group: GROUP,
            most_ms: millis,
            is_v1,
        };
        assert_eq!(parse(&query(ROUTER, 1000, 28)), Some(expected(1000, false)));
        assert_eq!(parse(&query(ROUTER, 1000, 24)), Some(expected(1000, true)));
        let long = parse(&query(ROUTER, 0x8000, 28));
        assert_eq!(long, Some(expected(32_768, false)));
        assert_eq!(parse(&query(GROUP, 1000, 28)), None);
        let mut far = query(ROUTER, 1000, 28);
        far[21] = 2;
        assert_eq!(parse(&far), None);
    }
}
