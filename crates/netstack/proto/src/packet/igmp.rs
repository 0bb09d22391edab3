//! IGMP messages (RFC 1112, RFC 2236, RFC 3376), and the records of reports of both families.

use super::checksum::Sum;
use super::{ETHERNET_HEADER, ends_v4};
use crate::packet::flow::Address;

/// The protocol number of IGMP.
const IGMP: u8 = 2;
const QUERY: u8 = 0x11;
const REPORT_V1: u8 = 0x12;
const REPORT_V2: u8 = 0x16;
const LEAVE: u8 = 0x17;
const REPORT_V3: u8 = 0x22;
/// Bytes of the IPv4 header that we send, including the router-alert option (RFC 2113).
const HEADER: usize = 24;
/// The group of routers that process reports of version 3.
const LISTENING_ROUTERS: [u8; 4] = [224, 0, 0, 22];
/// The group of all routers of a link.
const ALL_ROUTERS: [u8; 4] = [224, 0, 0, 2];
/// The group of all hosts of a link, which is never reported.
pub const ALL_HOSTS: [u8; 4] = [224, 0, 0, 1];

/// The meaning of a group record (RFC 3376 section 4.2.12, RFC 3810 section 5.2.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// Only these sources are wanted, as before.
    IsInclude = 1,
    /// All sources except these are wanted, as before.
    IsExclude = 2,
    /// Only these sources are wanted now; before, all except some were.
    ToInclude = 3,
    /// All sources except these are wanted now; before, only some were.
    ToExclude = 4,
    /// These sources are wanted in addition.
    Allow = 5,
    /// These are not wanted any more.
    Block = 6,
}

/// A part of a report: one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The meaning of the sources.
    pub mode: Mode,
    /// The group.
    pub group: Address,
    /// The sources, in the family of the group.
    pub sources: Vec<Address>,
}

impl Record {
    /// Appends the record, in the format of its family.
    pub fn write(&self, message: &mut Vec<u8>) {
        let [high, low] = (self.sources.len() as u16).to_be_bytes();
        message.extend([self.mode as u8, 0, high, low]);
        for address in [&self.group].into_iter().chain(&self.sources) {
            match address.is_v4() {
                true => message.extend(address.v4_bits().to_be_bytes()),
                false => message.extend(address.bytes()),
            }
        }
    }
}

/// A router's query to members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IgmpQuery {
    /// The group in question; zeros for all groups.
    pub group: Address,
    /// Maximum delay of an answer in milliseconds.
    pub most_ms: u64,
    /// IGMP version, 1 to 3.
    pub version: u8,
}

/// The Ethernet address of a group (RFC 1112 section 6.4).
pub fn group_mac(group: Address) -> [u8; 6] {
    let [_, b, c, d] = group.v4_bits().to_be_bytes();
    [1, 0, 0x5e, b & 0x7f, c, d]
}

/// Reads a query from an IPv4 frame whose header is right; `None` if it is not a valid query.
pub fn parse(frame: &[u8]) -> Option<IgmpQuery> {
    ends_v4(frame)?;
    let packet = frame.get(ETHERNET_HEADER..)?;
    let header = usize::from(packet[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    let message = packet.get(header..total)?;
    let fields: &[u8; 8] = message.first_chunk()?;
    let is_right = Sum::default().with(message).is_good();
    if packet[9] != IGMP || fields[0] != QUERY || !is_right {
        return None;
    }
    // Queries of versions 1 and 2 have eight bytes; version 1 has no time (RFC 3376 section 7.1).
    let (version, tenths) = match (message.len(), fields[1]) {
        (8, 0) => (1, 100),
        (8, time) => (2, u64::from(time)),
        (12.., time @ 0..128) => (3, u64::from(time)),
        // A floating-point value (RFC 3376 section 4.1.1).
        (12.., time) => (3, u64::from(time & 0xf | 0x10) << ((time >> 4 & 7) + 3)),
        _ => return None,
    };
    Some(IgmpQuery {
        group: [fields[4], fields[5], fields[6], fields[7]].into(),
        most_ms: tenths * 100,
        version,
    })
}

fn frame(src_mac: [u8; 6], src: Address, dst: Address, message: &mut [u8]) -> Vec<u8> {
    let checksum = Sum::default().with(message).finish();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = Vec::with_capacity(ETHERNET_HEADER + HEADER + message.len());
    frame.extend(group_mac(dst));
    frame.extend(src_mac);
    // Internetwork control, don't fragment, one hop (RFC 3376 section 4).
    frame.extend([8, 0, 0x46, 0xc0]);
    frame.extend(((HEADER + message.len()) as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 1, IGMP, 0, 0]);
    frame.extend(src.v4_bits().to_be_bytes());
    frame.extend(dst.v4_bits().to_be_bytes());
    frame.extend([0x94, 4, 0, 0]);
    let checksum = Sum::default().with(&frame[ETHERNET_HEADER..]).finish();
    frame[ETHERNET_HEADER + 10..ETHERNET_HEADER + 12].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(&*message);
    frame
}

/// A frame that reports `records` (RFC 3376 section 4.2).
pub fn report(src_mac: [u8; 6], src: Address, records: &[Record]) -> Vec<u8> {
    let [high, low] = (records.len() as u16).to_be_bytes();
    let mut message = vec![REPORT_V3, 0, 0, 0, 0, 0, high, low];
    for record in records {
        record.write(&mut message);
    }
    frame(src_mac, src, LISTENING_ROUTERS.into(), &mut message)
}

/// A frame that reports one group to a router of an older version (RFC 1112, RFC 2236).
pub fn report_old(src_mac: [u8; 6], src: Address, group: Address, version: u8) -> Vec<u8> {
    let kind = if version == 1 { REPORT_V1 } else { REPORT_V2 };
    let mut message = vec![kind, 0, 0, 0];
    message.extend(group.v4_bits().to_be_bytes());
    frame(src_mac, src, group, &mut message)
}

/// Says to routers of version 2 that we leave a group (RFC 2236 section 3).
pub fn leave(src_mac: [u8; 6], src: Address, group: Address) -> Vec<u8> {
    let mut message = vec![LEAVE, 0, 0, 0];
    message.extend(group.v4_bits().to_be_bytes());
    frame(src_mac, src, ALL_ROUTERS.into(), &mut message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Packet, parse as parse_frame};

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const US: [u8; 4] = [10, 0, 0, 1];
    const GROUP: [u8; 4] = [239, 129, 2, 3];

    #[test]
    fn a_report_goes_to_routers_with_all_records_and_right_checksums() {
        let record = Record {
            mode: Mode::Allow,
            group: GROUP.into(),
            sources: vec![[10, 0, 0, 9].into()],
        };
        let sent = report(MAC, US.into(), &[record]);
        assert_eq!(sent[..6], [1, 0, 0x5e, 0, 0, 22]);
        assert_eq!((sent[22], sent[23]), (1, IGMP));
        assert_eq!(sent[34..38], [0x94, 4, 0, 0]);
        assert!(Sum::default().with(&sent[14..38]).is_good());
        assert!(Sum::default().with(&sent[38..]).is_good());
        assert_eq!(
            sent[42..],
            [0, 0, 0, 1, 5, 0, 0, 1, 239, 129, 2, 3, 10, 0, 0, 9]
        );
        assert!(matches!(
            parse_frame(&sent),
            Ok(Packet::OtherProtocol { .. })
        ));
        let old = report_old(MAC, US.into(), GROUP.into(), 2);
        assert_eq!(old[..6], [1, 0, 0x5e, 1, 2, 3]);
        assert_eq!((old[38], &old[42..]), (REPORT_V2, &GROUP[..]));
        assert_eq!(report_old(MAC, US.into(), GROUP.into(), 1)[38], REPORT_V1);
    }

    #[test]
    fn a_query_says_for_whom_until_when_and_in_which_version() {
        let query = |time, len| {
            let mut message = vec![QUERY, time, 0, 0, 239, 129, 2, 3];
            message.resize(len, 0);
            parse(&frame(MAC, US.into(), ALL_HOSTS.into(), &mut message))
        };
        let expected = |version, most_ms| {
            Some(IgmpQuery {
                group: GROUP.into(),
                most_ms,
                version,
            })
        };
        assert_eq!(query(0, 8), expected(1, 10_000));
        assert_eq!(query(100, 8), expected(2, 10_000));
        assert_eq!(query(10, 12), expected(3, 1000));
        assert_eq!(query(0x80, 12), expected(3, 12_800));
        assert_eq!(query(10, 10), None);
        let mut message = vec![QUERY, 10, 0, 0, 0, 0, 0, 0];
        let mut wrong = frame(MAC, US.into(), ALL_HOSTS.into(), &mut message);
        wrong[40] ^= 1;
        assert_eq!(parse(&wrong), None);
        for len in 0..wrong.len() {
            assert_eq!(parse(&wrong[..len]), None);
        }
    }
}
