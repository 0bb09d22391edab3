//! Messages of DHCP (RFC 2131, RFC 2132), and the two of DHCPv6 that ask for information and
//! answer (RFC 8415 section 18.2.6).
//!
//! `smoltcp` has the format of the first. The second needs so few fields that they are read here.

use core::net::Ipv4Addr;

use smoltcp::wire as sw;

use super::checksum::Sum;
use super::{IpHeaders, UDP, UDP_HEADER, UdpHeaders, emit_ip, emit_udp, set_udp_checksum};
use crate::packet::flow::{Address, Endpoint};

pub use sw::DhcpMessageType as DhcpKind;

/// Where servers and clients of DHCP listen.
pub const SERVER_PORT: u16 = 67;
/// As [`SERVER_PORT`].
pub const CLIENT_PORT: u16 = 68;
/// Where servers and clients of DHCPv6 listen.
pub const SERVER_PORT_V6: u16 = 547;
/// As [`SERVER_PORT_V6`].
pub const CLIENT_PORT_V6: u16 = 546;
/// The group of all DHCPv6 servers and relays of a link (RFC 8415 section 7.1).
pub const ALL_SERVERS: Address = Address::of_words([0xff02 << 48, 0x1_0002]);

/// The most values of a list that are read from one message.
pub const MAX_LISTED: usize = 4;

/// Options without a field in `smoltcp`'s type (RFC 2132).
const ROUTERS: u8 = 3;
const HOST_NAME: u8 = 12;
const DOMAIN_NAME: u8 = 15;
const INTERFACE_MTU: u8 = 26;
const CLIENT_IDENTIFIER: u8 = 61;
/// What we ask for: the mask, routers, servers of names, our domain, the MTU, T1 and T2.
const WANTED: [u8; 7] = [1, ROUTERS, 6, DOMAIN_NAME, INTERFACE_MTU, 58, 59];
/// The least bytes of a message: relays drop shorter ones (RFC 1542 section 2.1).
const LEAST: usize = 300;
/// The most bytes of a message that we take: what every host accepts (RFC 2131 section 2).
const LONGEST: u16 = 576;

/// Types and options of DHCPv6 (RFC 8415 sections 7.3 and 21, RFC 3646).
const REPLY: u8 = 7;
const INFORMATION_REQUEST: u8 = 11;
const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const OPTION_REQUEST: u16 = 6;
const ELAPSED_TIME: u16 = 8;
const STATUS_CODE: u16 = 13;
const DNS_SERVERS: u16 = 23;
const DOMAIN_LIST: u16 = 24;
const REFRESH_TIME: u16 = 32;

/// Servers of names, and the domains in which names are looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The servers, the best first.
    pub servers: Vec<Address>,
    /// The domains, in the order of lookup.
    pub domains: Vec<String>,
}

/// A message of ours.
#[derive(Clone, Copy, Debug)]
pub struct DhcpRequest<'a> {
    /// Its type.
    pub kind: DhcpKind,
    /// The number that its answers repeat.
    pub xid: u32,
    /// Seconds since we began to ask.
    pub secs: u16,
    /// Our link-layer address.
    pub mac: [u8; 6],
    /// Our address, if we have it and answer ARP for it.
    pub ours: Option<Address>,
    /// The address that the message is about.
    pub about: Option<Address>,
    /// The server that it is for.
    pub server: Option<Address>,
    /// Our name, up to 63 bytes.
    pub host_name: Option<&'a str>,
    /// The identifier by which servers know us, up to 255 bytes.
    pub client_id: &'a [u8],
}

impl DhcpRequest<'_> {
    /// The bytes of the message.
    pub fn message(&self) -> Vec<u8> {
        let v4 = |address: Address| Ipv4Addr::from_bits(address.v4_bits());
        let mut options = vec![sw::DhcpOption {
            kind: CLIENT_IDENTIFIER,
            data: self.client_id,
        }];
        options.extend(self.host_name.map(|name| sw::DhcpOption {
            kind: HOST_NAME,
            data: name.as_bytes(),
        }));
        let asks = matches!(self.kind, DhcpKind::Discover | DhcpKind::Request);
        let repr = sw::DhcpRepr {
            message_type: self.kind,
            transaction_id: self.xid,
            secs: self.secs,
            client_hardware_address: sw::EthernetAddress(self.mac),
            client_ip: self.ours.map_or(Ipv4Addr::UNSPECIFIED, v4),
            your_ip: Ipv4Addr::UNSPECIFIED,
            server_ip: Ipv4Addr::UNSPECIFIED,
            router: None,
            subnet_mask: None,
            relay_agent_ip: Ipv4Addr::UNSPECIFIED,
            // Until we have an address, we take only frames to all hosts.
            broadcast: asks && self.ours.is_none(),
            requested_ip: self.about.map(v4),
            client_identifier: None,
            server_identifier: self.server.map(v4),
            parameter_request_list: asks.then_some(&WANTED),
            dns_servers: None,
            max_size: asks.then_some(LONGEST),
            lease_duration: None,
            renew_duration: None,
            rebind_duration: None,
            additional_options: if asks { &options } else { &options[..1] },
        };
        let mut bytes = vec![0; repr.buffer_len().max(LEAST)];
        let mut packet = sw::DhcpPacket::new_unchecked(&mut bytes[..]);
        let emitted = repr.emit(&mut packet);
        debug_assert_eq!(emitted, Ok(()), "the buffer has its length");
        bytes
    }
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhcpAnswer {
    /// Its type.
    pub kind: DhcpKind,
    /// The number of the message that it answers.
    pub xid: u32,
    /// The link-layer address of the client.
    pub mac: [u8; 6],
    /// The identifier of the server.
    pub server: Option<Address>,
    /// The address that the client gets.
    pub yours: Address,
    /// The length of its prefix in bits.
    pub prefix: u8,
    /// Gateways, the best first.
    pub routers: Vec<Address>,
    /// Servers of names, and our domain.
    pub names: Names,
    /// The most bytes of a packet.
    pub mtu: Option<u16>,
    /// Seconds of the lease; [`u32::MAX`]: no end.
    pub lease_s: Option<u32>,
    /// Seconds until we renew (T1).
    pub renew_s: Option<u32>,
    /// Seconds until we ask any server (T2).
    pub rebind_s: Option<u32>,
}

impl DhcpAnswer {
    /// Reads an answer. `None` if it is none, or a field has no possible value.
    pub fn parse(bytes: &[u8]) -> Option<DhcpAnswer> {
        let packet = sw::DhcpPacket::new_checked(bytes).ok()?;
        let repr = sw::DhcpRepr::parse(&packet).ok()?;
        let is_answer = matches!(
            repr.message_type,
            DhcpKind::Offer | DhcpKind::Ack | DhcpKind::Nak
        );
        let mut answer = DhcpAnswer {
            kind: repr.message_type,
            xid: repr.transaction_id,
            mac: repr.client_hardware_address.0,
            server: repr.server_identifier.map(Address::from),
            yours: repr.your_ip.into(),
            prefix: match repr.subnet_mask {
                Some(mask) => prefix_of(mask)?,
                None => class_of(repr.your_ip),
            },
            routers: Vec::new(),
            names: Names::default(),
            mtu: None,
            lease_s: repr.lease_duration,
            renew_s: repr.renew_duration,
            rebind_s: repr.rebind_duration,
        };
        let servers = repr.dns_servers.iter().flatten();
        answer.names.servers = servers.copied().map(Address::from).collect();
        for option in packet.options() {
            match (option.kind, option.data) {
                (ROUTERS, data) => {
                    let all = data.as_chunks::<4>().0.iter().take(MAX_LISTED);
                    let all = all.map(|bytes| Address::v4(u32::from_be_bytes(*bytes)));
                    answer.routers = all.collect();
                }
                (DOMAIN_NAME, data) => answer.names.domains = domain_of(data).into_iter().collect(),
                (INTERFACE_MTU, &[high, low]) => {
                    answer.mtu = Some(u16::from_be_bytes([high, low]));
                }
                _ => {}
            }
        }
        is_answer.then_some(answer)
    }
}

/// The length of a mask, whose ones come first.
fn prefix_of(mask: Ipv4Addr) -> Option<u8> {
    let prefix = mask.to_bits().leading_ones();
    (mask.to_bits().count_ones() == prefix).then_some(prefix as u8)
}

/// The prefix of an address without a mask (RFC 791 section 2.3).
const fn class_of(address: Ipv4Addr) -> u8 {
    match address.to_bits() >> 30 {
        0 | 1 => 8,
        2 => 16,
        _ => 24,
    }
}

/// A domain, perhaps with zeros at its end.
fn domain_of(data: &[u8]) -> Option<String> {
    let text = core::str::from_utf8(data).ok()?.trim_end_matches('\0');
    let is_name = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_name.then(|| text.to_owned())
}

/// Domains as in messages of DNS, without pointers (RFC 8106 section 5.2, RFC 3646 section 4).
/// Those before the first wrong one.
pub fn domains(mut bytes: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    let mut name = String::new();
    while all.len() < MAX_LISTED
        && let Some((len, rest)) = bytes.split_first()
        && let Some((label, rest)) = rest.split_at_checked(usize::from(*len))
    {
        bytes = rest;
        let is_letter = |byte: &u8| byte.is_ascii_graphic() && *byte != b'.';
        if label.is_empty() {
            // Zeros fill the option.
            all.extend(Some(core::mem::take(&mut name)).filter(|name| !name.is_empty()));
        } else if label.len() > 63 || name.len() + label.len() > 253 || !label.iter().all(is_letter)
        {
            break;
        } else {
            if !name.is_empty() {
                name.push('.');
            }
            name.extend(label.iter().copied().map(char::from));
        }
    }
    all
}

/// A request for information. `xid` has 24 bits; `elapsed` is in hundredths of a second since the
/// first of them. Our identifier is our link-layer address (RFC 8415 section 11.4).
pub fn information_request(mac: [u8; 6], xid: u32, elapsed: u16) -> Vec<u8> {
    let [_, a, b, c] = xid.to_be_bytes();
    let mut bytes = vec![INFORMATION_REQUEST, a, b, c];
    let mut option = |kind: u16, data: &[u8]| {
        bytes.extend(kind.to_be_bytes());
        bytes.extend((data.len() as u16).to_be_bytes());
        bytes.extend(data);
    };
    option(CLIENT_ID, &duid(mac));
    let wanted = [DNS_SERVERS, DOMAIN_LIST, REFRESH_TIME].map(u16::to_be_bytes);
    option(OPTION_REQUEST, wanted.as_flattened());
    option(ELAPSED_TIME, &elapsed.to_be_bytes());
    bytes
}

fn duid(mac: [u8; 6]) -> Vec<u8> {
    [&[0, 3, 0, 1][..], &mac].concat()
}

/// The answer to a request for information.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Information {
    /// The number of the request.
    pub xid: u32,
    /// Servers of names, and domains.
    pub names: Names,
    /// Seconds until we ask again, if the server gives them.
    pub refresh_s: Option<u32>,
}

impl Information {
    /// Reads the answer for the client with this link-layer address (RFC 8415 section 16.10).
    /// `None` if it is none, or reports a failure.
    pub fn parse(bytes: &[u8], mac: [u8; 6]) -> Option<Information> {
        let (&[kind, a, b, c], mut rest) = bytes.split_first_chunk()?;
        let mut answer = Information {
            xid: u32::from_be_bytes([0, a, b, c]),
            ..Information::default()
        };
        let (mut is_ours, mut has_server, mut is_failure) = (false, false, false);
        while let Some((&[a, b, c, d], behind)) = rest.split_first_chunk() {
            let len = usize::from(u16::from_be_bytes([c, d]));
            let (data, behind) = behind.split_at_checked(len)?;
            rest = behind;
            match u16::from_be_bytes([a, b]) {
                CLIENT_ID => is_ours = data == duid(mac),
                SERVER_ID => has_server = !data.is_empty(),
                STATUS_CODE => is_failure = data.first_chunk() != Some(&[0, 0]),
                DNS_SERVERS => {
                    let all = data.as_chunks().0.iter().take(MAX_LISTED);
                    answer.names.servers = all.map(|bytes| Address::v6(*bytes)).collect();
                }
                DOMAIN_LIST => answer.names.domains = domains(data),
                REFRESH_TIME => answer.refresh_s = data.try_into().map(u32::from_be_bytes).ok(),
                _ => {}
            }
        }
        let is_answer = kind == REPLY && is_ours && has_server && !is_failure;
        (rest.is_empty() && is_answer).then_some(answer)
    }
}

/// A frame with a datagram of ours, and its checksum.
pub fn datagram(
    (src_mac, dst_mac): ([u8; 6], [u8; 6]),
    (from, to): (Endpoint, Endpoint),
    ident: u32,
    payload: &[u8],
) -> Vec<u8> {
    let ip = IpHeaders {
        src_mac,
        dst_mac,
        src: from.address,
        dst: to.address,
        protocol: UDP,
        ttl: 64,
        tos: 0,
        ident,
        label: 0,
        offset: 0,
        more: false,
        payload_len: UDP_HEADER + payload.len(),
    };
    let udp = UdpHeaders {
        src_port: from.port,
        dst_port: to.port,
        payload_len: payload.len(),
    };
    let mut frame = vec![0; ip.headers_len() + ip.payload_len];
    emit_ip(&mut frame, &ip);
    let datagram = &mut frame[ip.headers_len()..];
    emit_udp(datagram, &udp);
    datagram[UDP_HEADER..].copy_from_slice(payload);
    let sum = Sum::default().pseudo_header(ip.src, ip.dst, UDP, ip.payload_len);
    set_udp_checksum(datagram, sum.with(datagram).finish());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    #[test]
    fn a_mask_is_ones_and_then_zeros() {
        let prefix = |bytes: [u8; 4]| prefix_of(bytes.into());
        assert_eq!(prefix([255, 255, 255, 0]), Some(24));
        assert_eq!(prefix([0; 4]), Some(0));
        assert_eq!(prefix([255; 4]), Some(32));
        assert_eq!(prefix([255, 0, 255, 0]), None);
    }

    #[test]
    fn a_message_has_300_bytes_and_our_identifiers() {
        let request = DhcpRequest {
            kind: DhcpKind::Discover,
            xid: 7,
            secs: 3,
            mac: MAC,
            ours: None,
            about: None,
            server: None,
            host_name: Some("box"),
            client_id: b"\x01abcdef",
        };
        let bytes = request.message();
        assert_eq!(bytes.len(), LEAST);
        let packet = sw::DhcpPacket::new_checked(&bytes[..]).expect("a message");
        let options: Vec<_> = packet.options().map(|one| (one.kind, one.data)).collect();
        assert!(options.contains(&(CLIENT_IDENTIFIER, b"\x01abcdef")));
        assert!(options.contains(&(HOST_NAME, b"box")));
        assert!(packet.flags().contains(sw::DhcpFlags::BROADCAST));
        // It is no answer.
        assert_eq!(DhcpAnswer::parse(&bytes), None);
    }

    #[test]
    fn domains_end_at_the_first_wrong_one() {
        let bytes = b"\x04corp\x07example\0\x04home\0\0\0";
        assert_eq!(domains(bytes), ["corp.example", "home"]);
        assert_eq!(domains(b"\x04home\0\x03a.b\0\x01c\0"), ["home"]);
        assert_eq!(domains(b"\x04home\0\xc0\x00"), ["home"]);
        assert_eq!(domains(b"\x03la"), [""; 0]);
    }

    #[test]
    fn information_counts_if_it_is_for_us_and_names_its_server() {
        let option = |kind: u8, data: &[u8]| [&[0, kind, 0, data.len() as u8][..], data].concat();
        let server = Address::of_words([0x2001_0db8 << 32, 53]);
        let (ours, theirs) = (option(1, &duid(MAC)), option(2, b"server"));
        let names = [
            option(23, &server.bytes()),
            option(24, b"\x04corp\0"),
            option(32, &[0, 0, 1, 0]),
        ]
        .concat();
        let reply = |parts: &[&[u8]]| [&[REPLY, 1, 2, 3][..], &parts.concat()].concat();
        let expected = Information {
            xid: 0x01_0203,
            names: Names {
                servers: vec![server],
                domains: vec!["corp".to_owned()],
            },
            refresh_s: Some(256),
        };
        let good = reply(&[&ours, &theirs, &names]);
        assert_eq!(Information::parse(&good, MAC), Some(expected));
        for bad in [
            reply(&[&theirs, &names]),
            reply(&[&ours, &names]),
            reply(&[&option(1, &duid([9; 6])), &theirs]),
            reply(&[&ours, &theirs, &option(13, &[0, 1])]),
            reply(&[&ours, &theirs, &[0]]),
            information_request(MAC, 0x01_0203, 0),
        ] {
            assert_eq!(Information::parse(&bad, MAC), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_message_makes_reading_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = domains(&bytes);
            let _ = Information::parse(&[&[REPLY, 0, 0, 0][..], &bytes].concat(), MAC);
            let mut message = vec![0; 240];
            message[..3].copy_from_slice(&[2, 1, 6]);
            message[236..].copy_from_slice(&[0x63, 0x82, 0x53, 0x63]);
            message.extend([53, 1, 2]);
            message.extend(&bytes);
            prop_assert!(DhcpAnswer::parse(&message).is_none_or(|answer| answer.prefix <= 32));
            let _ = DhcpAnswer::parse(&bytes);
        }
    }
}
