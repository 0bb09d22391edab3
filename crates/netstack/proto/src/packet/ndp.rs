//! Messages of neighbour discovery (RFC 4861).

use smoltcp::wire as sw;

use super::dhcp::{MAX_LISTED, domains};
use super::icmpv6;
use super::ipv6::{self, Content, Ipv6Header};
use crate::packet::flow::Address;

/// The hop limit that proves that no router forwarded a message (RFC 4861 section 3.1).
const HOP_LIMIT: u8 = 255;

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// Options (RFC 4861 section 4.6).
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
const PREFIX: u8 = 3;
const MTU: u8 = 5;
/// A route (RFC 4191 section 2.3).
const ROUTE: u8 = 24;
/// Options of RFC 8106: servers of names, and domains.
const RECURSIVE_SERVERS: u8 = 25;
const SEARCH_LIST: u8 = 31;

/// Maximum number of prefixes, and of routes, that are read from a router advertisement.
pub const MAX_PREFIXES: usize = 8;

/// The group of all nodes of a link.
pub const ALL_NODES: Address = Address::of_words([0xff02 << 48, 1]);
/// The group of all routers of a link.
pub const ALL_ROUTERS: Address = Address::of_words([0xff02 << 48, 2]);

/// The group in which the owner of `address` is asked for it (RFC 4291 section 2.7.1).
pub const fn solicited_node(address: Address) -> Address {
    let low = address.words()[1] & 0xff_ffff;
    Address::of_words([0xff02 << 48, 1 << 32 | 0xff << 24 | low])
}

/// Whether a group is a solicited-node group.
pub const fn is_solicited_node(group: Address) -> bool {
    let [high, low] = group.words();
    high == 0xff02 << 48 && low >> 24 == 0x01_ff
}

/// The link-layer address of a group (RFC 2464 section 7).
pub const fn group_mac(group: Address) -> [u8; 6] {
    let [a, b, c, d] = group.v4_bits().to_be_bytes();
    [0x33, 0x33, a, b, c, d]
}

/// A prefix that a router advertises (RFC 4861 section 4.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Its first address.
    pub prefix: Address,
    /// Its length, in bits.
    pub len: u8,
    /// Whether its addresses are on this link.
    pub on_link: bool,
    /// Whether hosts form addresses from it (RFC 4862).
    pub autonomous: bool,
    /// Valid lifetime in seconds; [`u32::MAX`] is forever.
    pub valid_s: u32,
    /// Seconds until its addresses are deprecated; [`u32::MAX`] is forever.
    pub preferred_s: u32,
}

/// A route that a router advertises (RFC 4191 section 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteInformation {
    /// The first address of the destinations.
    pub prefix: Address,
    /// The length of their prefix, in bits.
    pub len: u8,
    /// 1: high, 0: medium, -1: low (RFC 4191 section 2.1).
    pub preference: i8,
    /// Lifetime in seconds; [`u32::MAX`] is forever.
    pub lifetime_s: u32,
}

/// The preference in the byte of flags of a router or route; `None` for the reserved value.
const fn preference(flags: u8) -> Option<i8> {
    match flags >> 3 & 0b11 {
        0b00 => Some(0),
        0b01 => Some(1),
        0b11 => Some(-1),
        _ => None,
    }
}

/// A router advertisement (RFC 4861 section 4.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterAdvertisement {
    /// The link-local address of the router.
    pub router: Address,
    /// Its link-layer address, if the message contains it.
    pub mac: Option<[u8; 6]>,
    /// The hop limit with which hosts should send; 0: not specified.
    pub hop_limit: u8,
    /// Seconds for which it is a default router; 0: it is not one.
    pub lifetime_s: u16,
    /// Milliseconds for which a neighbour counts as reachable; 0: not specified.
    pub reachable_ms: u32,
    /// Milliseconds between two solicitations of a neighbour; 0: not specified.
    pub retransmit_ms: u32,
    /// Bytes of a packet that all links here accept, if specified.
    pub mtu: Option<u32>,
    /// Its prefixes, in their order.
    pub prefixes: Vec<Prefix>,
    /// Its preference as a default router, as in [`RouteInformation`].
    pub preference: i8,
    /// Its routes, in their order.
    pub routes: Vec<RouteInformation>,
    /// Whether DHCPv6 has more to say about this link: the M or the O flag.
    pub has_dhcp: bool,
    /// Servers of names, each with its lifetime in seconds (RFC 8106 section 5.1).
    pub servers: Vec<(Address, u32)>,
    /// Domains in which names are looked up, each with its lifetime in seconds (RFC 8106 section
    /// 5.2).
    pub domains: Vec<(String, u32)>,
}

/// A message of neighbour discovery that is valid by RFC 4861 sections 6.1.2, 7.1.1, 7.1.2 and
/// 8.1, as far as the message alone shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NdpMessage {
    /// Asks for the link-layer address of `target`.
    Solicitation {
        /// The sender's address; zeros if it does not have one yet.
        src: Address,
        /// The address in question.
        target: Address,
        /// The sender's link-layer address, if the message contains it.
        mac: Option<[u8; 6]>,
    },
    /// Announces the link-layer address of `target`.
    Advertisement {
        /// The announced address.
        target: Address,
        /// Its link-layer address, if the message contains it.
        mac: Option<[u8; 6]>,
        /// Whether it answers a solicitation.
        solicited: bool,
        /// Whether it replaces a cached address.
        overrides: bool,
        /// Whether the sender is a router.
        router: bool,
    },
    /// A router advertises itself.
    Router(RouterAdvertisement),
    /// A router names a better next hop to `destination` than itself.
    Redirect {
        /// The router that sends the redirect.
        router: Address,
        /// The better next hop.
        target: Address,
        /// The destination to which `target` forwards.
        destination: Address,
        /// The link-layer address of `target`, if the message contains it.
        mac: Option<[u8; 6]>,
    },
}

/// The options of a message that matter here.
#[derive(Debug, Default)]
struct NdpOptions {
    source_mac: Option<[u8; 6]>,
    target_mac: Option<[u8; 6]>,
    prefixes: Vec<Prefix>,
    routes: Vec<RouteInformation>,
    mtu: Option<u32>,
    servers: Vec<(Address, u32)>,
    domains: Vec<(String, u32)>,
}

/// Reads the options; `None` if one has length 0 or a wrong length (RFC 4861 section 4.6).
fn options(mut bytes: &[u8]) -> Option<NdpOptions> {
    let mut options = NdpOptions::default();
    while let [kind, len, ..] = *bytes {
        let len = 8 * usize::from(len);
        if len == 0 {
            return None;
        }
        let (option, rest) = bytes.split_at_checked(len)?;
        let mac = || option.get(2..8)?.try_into().ok();
        match kind {
            // A link-layer address of Ethernet takes 8 bytes (RFC 2464 section 6).
            SOURCE_LINK_ADDRESS | TARGET_LINK_ADDRESS if len != 8 => return None,
            SOURCE_LINK_ADDRESS => options.source_mac = mac(),
            TARGET_LINK_ADDRESS => options.target_mac = mac(),
            PREFIX if len == 32 && options.prefixes.len() < MAX_PREFIXES => {
                options.prefixes.push(prefix(option));
            }
            ROUTE if options.routes.len() < MAX_PREFIXES => options.routes.extend(route(option)),
            MTU if len == 8 => {
                let mtu = option.last_chunk();
                options.mtu = mtu.map(|mtu| u32::from_be_bytes(*mtu));
            }
            RECURSIVE_SERVERS if len % 16 == 8 => {
                let lifetime = super::u32_at(option, 4);
                let all = option[8..].as_chunks().0.iter();
                let all = all.map(|bytes| (Address::v6(*bytes), lifetime));
                let room = MAX_LISTED.saturating_sub(options.servers.len());
                options.servers.extend(all.take(room));
            }
            SEARCH_LIST if len > 8 => {
                let lifetime = super::u32_at(option, 4);
                let all = domains(&option[8..]).into_iter();
                let room = MAX_LISTED.saturating_sub(options.domains.len());
                options
                    .domains
                    .extend(all.map(|name| (name, lifetime)).take(room));
            }
            _ => {}
        }
        bytes = rest;
    }
    bytes.is_empty().then_some(options)
}

/// Reads a prefix option of 32 bytes.
fn prefix(option: &[u8]) -> Prefix {
    let seconds = |at: usize| super::u32_at(option, at);
    let mut prefix = [0; 16];
    prefix.copy_from_slice(&option[16..32]);
    Prefix {
        prefix: Address::v6(prefix),
        len: option[2],
        on_link: option[3] & 0x80 != 0,
        autonomous: option[3] & 0x40 != 0,
        valid_s: seconds(4),
        preferred_s: seconds(8),
    }
}

/// Reads a route option; `None` if its prefix does not fit it, or its preference is reserved.
fn route(option: &[u8]) -> Option<RouteInformation> {
    let (len, bits) = (option[2], option.get(8..)?);
    let mut prefix = [0; 16];
    let stored = bits.len().min(16);
    prefix[..stored].copy_from_slice(&bits[..stored]);
    (option.len() <= 24 && usize::from(len) <= 8 * bits.len()).then_some(RouteInformation {
        prefix: Address::v6(prefix),
        len,
        preference: preference(option[3])?,
        lifetime_s: super::u32_at(option, 4),
    })
}

/// Whether the packet in a frame is a message of neighbour discovery, valid or not.
pub fn is_message(frame: &[u8]) -> bool {
    let found = ipv6::walk(frame).map(|found| found.content);
    let Ok(Content::Upper { protocol, at, .. }) = found else {
        return false;
    };
    let kind = frame.get(at).copied().unwrap_or_default();
    protocol == ipv6::ICMPV6 && (ROUTER_SOLICITATION..=REDIRECT).contains(&kind)
}

/// Reads a message from a frame whose ICMPv6 checksum is right. `None` if it is invalid, has a
/// fragment header (RFC 6980 section 5), or is not for hosts.
pub fn parse(frame: &[u8]) -> Option<NdpMessage> {
    let (src, dst) = ipv6::ends(frame)?;
    let found = ipv6::walk(frame).ok()?;
    let Content::Upper { at, .. } = found.content else {
        return None;
    };
    let bytes = frame.get(at..found.end)?;
    let message = sw::Icmpv6Packet::new_checked(bytes).ok()?;
    if found.is_fragment || ipv6::hop_limit(frame) != HOP_LIMIT || message.msg_code() != 0 {
        return None;
    }
    match bytes[0] {
        NEIGHBOR_SOLICITATION => {
            let target = Address::from(message.target_addr());
            let options = options(bytes.get(24..)?)?;
            let is_probe = src.is_unspecified();
            // A sender without an address asks the group, and includes no link-layer address.
            let is_valid = !target.is_multicast()
                && (!is_probe || dst == solicited_node(target) && options.source_mac.is_none());
            is_valid.then_some(NdpMessage::Solicitation {
                src,
                target,
                mac: options.source_mac,
            })
        }
        NEIGHBOR_ADVERTISEMENT => {
            let target = Address::from(message.target_addr());
            let options = options(bytes.get(24..)?)?;
            let flags = bytes[4];
            let solicited = flags & 0x40 != 0;
            let is_valid = !(target.is_multicast() || dst.is_multicast() && solicited);
            is_valid.then_some(NdpMessage::Advertisement {
                target,
                mac: options.target_mac,
                solicited,
                overrides: flags & 0x20 != 0,
                router: flags & 0x80 != 0,
            })
        }
        ROUTER_ADVERTISEMENT => {
            let fields: &[u8; 16] = bytes.first_chunk()?;
            let options = options(&bytes[16..])?;
            let long = |at: usize| super::u32_at(fields, at);
            src.is_link_local().then(|| {
                NdpMessage::Router(RouterAdvertisement {
                    router: src,
                    mac: options.source_mac,
                    hop_limit: fields[4],
                    lifetime_s: u16::from_be_bytes([fields[6], fields[7]]),
                    reachable_ms: long(8),
                    retransmit_ms: long(12),
                    mtu: options.mtu,
                    prefixes: options.prefixes,
                    preference: preference(fields[5]).unwrap_or(0),
                    routes: options.routes,
                    has_dhcp: fields[5] & 0xc0 != 0,
                    servers: options.servers,
                    domains: options.domains,
                })
            })
        }
        REDIRECT => {
            let address = |at: usize| -> Option<Address> {
                Some(Address::v6(*bytes.get(at..)?.first_chunk()?))
            };
            let (target, destination) = (address(8)?, address(24)?);
            let options = options(bytes.get(40..)?)?;
            let is_valid = src.is_link_local()
                && !destination.is_multicast()
                && (target.is_link_local() || target == destination);
            is_valid.then_some(NdpMessage::Redirect {
                router: src,
                target,
                destination,
                mac: options.target_mac,
            })
        }
        _ => None,
    }
}

fn frame(src_mac: [u8; 6], dst_mac: [u8; 6], src: Address, dst: Address, bytes: &[u8]) -> Vec<u8> {
    let header = Ipv6Header {
        src_mac,
        dst_mac,
        src,
        dst,
        next_header: ipv6::ICMPV6,
        hop_limit: HOP_LIMIT,
        traffic_class: 0,
        label: 0,
        payload_len: 0,
    };
    icmpv6::frame(&header, bytes)
}

fn link_address(kind: u8, mac: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [kind, 1, a, b, c, d, e, f]
}

/// A frame from `src` that asks for `target`: it goes to the solicited-node group, or to a
/// possible owner at `to`. With an unspecified `src` it asks whether the address is in use (RFC
/// 4862 section 5.4.2).
pub fn solicitation(
    src_mac: [u8; 6],
    src: Address,
    to: Option<[u8; 6]>,
    target: Address,
) -> Vec<u8> {
    let mut bytes = vec![NEIGHBOR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend(target.bytes());
    if !src.is_unspecified() {
        bytes.extend(link_address(SOURCE_LINK_ADDRESS, src_mac));
    }
    let group = solicited_node(target);
    match to {
        Some(mac) => frame(src_mac, mac, src, target, &bytes),
        None => frame(src_mac, group_mac(group), src, group, &bytes),
    }
}

/// A frame that announces `target` as ours: to the host that asked, whose link-layer address
/// the caller fills in, or to all nodes. `overrides` another answer (RFC 4861 section 4.4).
pub fn advertisement(
    src_mac: [u8; 6],
    target: Address,
    to: Option<Address>,
    overrides: bool,
) -> Vec<u8> {
    const SOLICITED: u8 = 0x40;
    const OVERRIDE: u8 = 0x20;
    let flags = if overrides { OVERRIDE } else { 0 } | if to.is_some() { SOLICITED } else { 0 };
    let (mac, dst) = to.map_or((group_mac(ALL_NODES), ALL_NODES), |to| ([0; 6], to));
    let mut bytes = vec![NEIGHBOR_ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0];
    bytes.extend(target.bytes());
    bytes.extend(link_address(TARGET_LINK_ADDRESS, src_mac));
    frame(src_mac, mac, target, dst, &bytes)
}

/// A frame that asks all routers to advertise themselves (RFC 4861 section 4.1).
pub fn router_solicitation(src_mac: [u8; 6], src: Address) -> Vec<u8> {
    let mut bytes = vec![ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    if !src.is_unspecified() {
        bytes.extend(link_address(SOURCE_LINK_ADDRESS, src_mac));
    }
    frame(src_mac, group_mac(ALL_ROUTERS), src, ALL_ROUTERS, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Packet, parse as parse_frame};
    use proptest::prelude::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const US: Address = Address::of_words([0xfe80 << 48, 0x0102_0304_0506_0708]);
    const PEER: Address = Address::of_words([0xfe80 << 48, 2]);
    const NOBODY: Address = Address::v6([0; 16]);

    fn read(frame: &[u8]) -> Option<NdpMessage> {
        assert!(matches!(parse_frame(frame), Ok(Packet::Link { .. })));
        parse(frame)
    }

    #[test]
    fn the_group_of_an_address_has_its_last_24_bits() {
        let expected = Address::of_words([0xff02 << 48, 0x1_ff06_0708]);
        assert_eq!(solicited_node(US), expected);
        assert_eq!(group_mac(expected), [0x33, 0x33, 0xff, 6, 7, 8]);
    }

    #[test]
    fn what_is_emitted_parses_back() {
        let asked = solicitation(PEER_MAC, PEER, None, US);
        assert_eq!(asked[..6], [0x33, 0x33, 0xff, 6, 7, 8]);
        let expected = NdpMessage::Solicitation {
            src: PEER,
            target: US,
            mac: Some(PEER_MAC),
        };
        assert_eq!(read(&asked), Some(expected));
        let expected = |solicited| NdpMessage::Advertisement {
            target: US,
            mac: Some(MAC),
            solicited,
            overrides: true,
            router: false,
        };
        let answer = advertisement(MAC, US, Some(PEER), true);
        assert_eq!(read(&answer), Some(expected(true)));
        assert_eq!(
            read(&advertisement(MAC, US, None, true)),
            Some(expected(false))
        );
        assert_eq!(read(&router_solicitation(MAC, US)), None);
    }

    #[test]
    fn a_probe_names_no_sender() {
        let probe = solicitation(MAC, NOBODY, None, US);
        let expected = NdpMessage::Solicitation {
            src: NOBODY,
            target: US,
            mac: None,
        };
        assert_eq!(read(&probe), Some(expected));
        // A probe sent to the address itself is invalid (RFC 4861 section 7.1.1).
        assert_eq!(read(&solicitation(MAC, NOBODY, Some(MAC), US)), None);
    }

    #[test]
    fn a_message_that_a_router_forwarded_or_whose_option_has_no_length_is_invalid() {
        let mut forwarded = solicitation(PEER_MAC, PEER, None, US);
        forwarded[21] = 254;
        assert_eq!(read(&forwarded), None);
        let header = Ipv6Header {
            src_mac: PEER_MAC,
            dst_mac: MAC,
            src: PEER,
            dst: US,
            next_header: ipv6::ICMPV6,
            hop_limit: 255,
            traffic_class: 0,
            label: 0,
            payload_len: 0,
        };
        let mut bytes = vec![NEIGHBOR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend(US.bytes());
        bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(read(&icmpv6::frame(&header, &bytes)), None);
    }

    #[test]
    fn a_router_advertisement_is_read_field_by_field() {
        let mut bytes = vec![ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0x40, 0x07, 0x08];
        bytes.extend([0, 0, 0x75, 0x30, 0, 0, 0x03, 0xe8]);
        bytes.extend(link_address(SOURCE_LINK_ADDRESS, PEER_MAC));
        bytes.extend([5, 1, 0, 0, 0, 0, 0x05, 0x78]);
        bytes.extend([
            3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,
        ]);
        let prefix = Address::of_words([0x2001_0db8_0000_0001, 0]);
        bytes.extend(prefix.bytes());
        bytes.extend([25, 5, 0, 0, 0, 0, 0x0e, 0x10]);
        bytes.extend(US.bytes());
        bytes.extend(prefix.bytes());
        bytes.extend([31, 2, 0, 0, 0, 0, 0, 60]);
        bytes.extend(b"\x04corp\0\0\0");
        let sent = |src| frame(PEER_MAC, group_mac(ALL_NODES), src, ALL_NODES, &bytes);
        let expected = RouterAdvertisement {
            router: PEER,
            mac: Some(PEER_MAC),
            hop_limit: 64,
            lifetime_s: 1800,
            reachable_ms: 30_000,
            retransmit_ms: 1000,
            mtu: Some(1400),
            prefixes: vec![Prefix {
                prefix,
                len: 64,
                on_link: true,
                autonomous: true,
                valid_s: 3600,
                preferred_s: u32::MAX,
            }],
            preference: 0,
            routes: Vec::new(),
            has_dhcp: true,
            servers: vec![(US, 3600), (prefix, 3600)],
            domains: vec![("corp".to_owned(), 60)],
        };
        assert_eq!(read(&sent(PEER)), Some(NdpMessage::Router(expected)));
        // Only link-local addresses identify routers.
        assert_eq!(read(&sent(prefix)), None);
    }

    proptest! {
        #[test]
        fn no_message_makes_reading_panic(bytes in proptest::collection::vec(any::<u8>(), 4..200), kind in 130_u8..144) {
            let mut bytes = bytes;
            (bytes[0], bytes[1]) = (kind, 0);
            let _ = parse(&frame(PEER_MAC, MAC, PEER, US, &bytes));
        }
    }
}
