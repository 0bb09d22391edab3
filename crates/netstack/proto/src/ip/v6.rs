//! IPv6 on a link: our addresses, the routers, and their use.
//!
//! [`Ipv6Link`] is the state machine: it forms addresses (RFC 4862, RFC 7217), probes whether
//! other hosts have them, processes router advertisements (RFC 4861 section 6.3), and reports
//! the groups that we listen to (RFC 3810). It sees no frame and no clock: the pump passes
//! messages and the time, and sends the messages that the machine requests. [`SiteV6`] is its
//! result at one moment: our addresses, and our routes.

mod link;
pub(crate) mod names;

use core::net::Ipv6Addr;

use crate::ip::route::{Route, Way};
use crate::packet::dhcp::Names;
use crate::packet::flow::Address;
use crate::packet::ndp;

pub use link::{Action, Ipv6Link, may_be_ours};

crate::settings! {
    /// The IPv6 configuration of a stack.
    ///
    /// ```
    /// use dominoes_proto::ip::v6::Ipv6Config;
    ///
    /// let config = Ipv6Config::default().address("2001:db8::7".parse()?, 64).autoconfigure(false);
    /// assert_eq!(config.addresses.len(), 1);
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[derive(Clone, PartialEq, Eq)]
    pub struct Ipv6Config {
        /// Addresses in addition to the link-local one, each with the prefix length of its network
        /// in bits, 0 to 128. Other addresses with this prefix are neighbours. Default: none.
        pub addresses: Vec<(Ipv6Addr, u8)> = Vec::new() => none;
        /// Whether to solicit and accept routers, and to form addresses from the prefixes that they
        /// advertise (RFC 4862 section 5.5). Default: yes.
        pub autoconfigure: bool = true;
        /// Number of probes for an address, a second apart, before the address is used
        /// (`DupAddrDetectTransmits` of RFC 4862 section 5.1). With 0 it is used at once. Default:
        /// 1.
        pub duplicate_probes: u8 = 1;
        /// Whether routers may redirect a destination to another neighbour, or mark it as a
        /// neighbour itself (RFC 4861 section 8.3). Default: yes.
        pub redirects: bool = true;
        /// Key of the addresses that the stack forms (RFC 7217 section 5): with one key they are
        /// equal at every start, and differ on every link. Default: the secret of the stack.
        pub stable_secret: Option<[u64; 2]> = None => some [u64; 2];
    }
}

impl core::fmt::Debug for Ipv6Config {
    /// Omits the key.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ipv6Config")
            .field("addresses", &self.addresses)
            .field("autoconfigure", &self.autoconfigure)
            .field("duplicate_probes", &self.duplicate_probes)
            .field("redirects", &self.redirects)
            .finish_non_exhaustive()
    }
}

impl Ipv6Config {
    crate::settings! {
        /// Adds to [`addresses`](Self::addresses).
        fn address(self, address: Ipv6Addr, prefix: u8) { self.addresses.push((address, prefix)) }
    }
}

/// One of our addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// The address.
    pub address: Address,
    /// New communication should not begin from it (RFC 4862 section 5.5.4).
    pub is_deprecated: bool,
}

/// Our current addresses and routes in IPv6. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteV6 {
    /// Our addresses that are in use.
    pub addresses: Vec<Own>,
    /// Addresses that are still being probed: not used yet.
    pub tentative: Vec<Address>,
    /// Networks of this link.
    pub on_link: Vec<(Address, u8)>,
    /// Longest prefix first; among equal ones, in the order of insertion.
    pub routes: Vec<Route>,
    /// Default routers, the best first.
    pub routers: Vec<Address>,
    /// Destinations with the next hop of their redirect; equal if the destination is a neighbour.
    pub redirects: Vec<(Address, Address)>,
    /// The hop limit that routers advertise, if they do.
    pub hop_limit: Option<u8>,
    /// MTU of this link in bytes, if routers advertise one.
    pub mtu: Option<u16>,
    /// Servers of names, and domains, from routers and DHCPv6.
    pub names: Names,
}

/// Bits of the prefix of link-local addresses (RFC 4291 section 2.5.6).
const LINK_LOCAL_PREFIX: u8 = 10;

/// Whether `address` is in the network of the first `prefix` bits of `network`.
pub fn is_in(address: Address, network: Address, prefix: u8) -> bool {
    let differ = address.bits() ^ network.bits();
    differ
        .checked_shr(128 - u32::from(prefix.min(128)))
        .unwrap_or(0)
        == 0
}

/// The first `prefix` bits of an address, and zeros.
pub fn network(address: Address, prefix: u8) -> Address {
    let mask = u128::MAX
        .checked_shl(128 - u32::from(prefix.min(128)))
        .unwrap_or(0);
    Address::v6((address.bits() & mask).to_be_bytes())
}

/// The label of an address in the default policy table (RFC 6724 section 2.1): addresses of equal
/// labels suit each other.
const fn label(address: Address) -> u8 {
    let [high, low] = address.words();
    match (high >> 48, high >> 32) {
        (0x2002, _) => 2,
        (_, 0x2001_0000) => 5,
        (0xfc00..=0xfdff, _) => 13,
        (0xfec0..=0xfeff, _) => 11,
        (0x3ffe, _) => 12,
        (0, 0) if high == 0 && low == 1 => 0,
        (0, 0) if high == 0 && low >> 32 == 0 => 3,
        _ => 1,
    }
}

impl SiteV6 {
    /// The networks of this link, with the lengths of their prefixes.
    pub fn near(&self) -> impl Iterator<Item = (Address, u8)> + '_ {
        let local = Address::of_words([0xfe80 << 48, 0]);
        let local = self.is_anywhere().then_some((local, LINK_LOCAL_PREFIX));
        let on_link = self.on_link.iter();
        let on_link = on_link.map(|(at, prefix)| (network(*at, *prefix), *prefix));
        local.into_iter().chain(on_link)
    }

    /// Whether IPv6 is in use.
    pub fn is_anywhere(&self) -> bool {
        !self.addresses.is_empty() || !self.tentative.is_empty()
    }

    /// Our addresses, including tentative ones.
    pub fn all(&self) -> Vec<Address> {
        let own = self.addresses.iter().map(|own| own.address);
        own.chain(self.tentative.iter().copied()).collect()
    }

    /// Whether `address` is ours and not tentative.
    pub fn has(&self, address: Address) -> bool {
        self.addresses.iter().any(|own| own.address == address)
    }

    /// Whether we listen to a group: all nodes, or the solicited-node group of one of our
    /// addresses (RFC 4291 section 2.8).
    pub fn listens_to(&self, group: Address) -> bool {
        let own = self.addresses.iter().map(|own| own.address);
        let mut all = own.chain(self.tentative.iter().copied());
        group == ndp::ALL_NODES || all.any(|address| ndp::solicited_node(address) == group)
    }

    /// The neighbour that gets frames for `remote`, if any.
    #[cfg(test)]
    pub fn next_hop(&self, remote: Address) -> Option<Address> {
        self.way(remote).map(|way| way.hop)
    }

    /// Looks up the way to `remote` (RFC 4861 section 5.2).
    pub fn way(&self, remote: Address) -> Option<Way> {
        if remote.is_link_local() {
            let near = Way::near(remote, LINK_LOCAL_PREFIX);
            return self.is_anywhere().then_some(near);
        }
        if let Some((_, hop)) = self.redirects.iter().find(|(to, _)| *to == remote) {
            return Some(Way::near(*hop, 128));
        }
        let near = self
            .on_link
            .iter()
            .filter(|(network, len)| is_in(remote, *network, *len));
        let near = near.map(|(_, len)| *len).max();
        let route = self
            .routes
            .iter()
            .find(|route| is_in(remote, route.network.into(), route.prefix));
        match (near, route) {
            (Some(len), Some(route)) if route.prefix > len => Some(route.into()),
            (Some(len), _) => Some(Way::near(remote, len)),
            (None, Some(route)) => Some(route.into()),
            (None, None) => self.routers.first().map(|router| Way {
                hop: *router,
                prefix: 0,
                metric: Way::ADVERTISED,
            }),
        }
    }

    /// Our source address for packets to `remote` (RFC 6724 section 5): of matching scope, not
    /// deprecated, with the same label, and with the longest common prefix, as far as it is the
    /// prefix of a network. `None` if we have no address yet.
    pub fn source(&self, remote: Address) -> Option<Address> {
        let is_local = |address: Address| {
            address.is_link_local() || address.is_multicast() && address.bytes()[1] & 0xf <= 2
        };
        let rank = |own: &&Own| {
            let same_scope = is_local(own.address) == is_local(remote);
            let same_label = label(own.address) == label(remote);
            let networks = self.on_link.iter();
            let networks = networks.filter(|(network, len)| is_in(own.address, *network, *len));
            let most = networks.map(|(_, len)| u32::from(*len)).max().unwrap_or(64);
            let common = (own.address.bits() ^ remote.bits()).leading_zeros();
            (same_scope, !own.is_deprecated, same_label, common.min(most))
        };
        // Among equals, the first.
        let best = self.addresses.iter().rev().max_by_key(rank)?;
        // Routers do not forward packets with link-local sources (RFC 4291 section 2.5.6).
        let may_leave = is_local(remote) || !best.address.is_link_local();
        let is_near = || {
            self.on_link
                .iter()
                .any(|(network, len)| is_in(remote, *network, *len))
        };
        (may_leave || is_near()).then_some(best.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse::<Ipv6Addr>().expect("an address").into()
    }

    fn own(text: &str, is_deprecated: bool) -> Own {
        Own {
            address: address(text),
            is_deprecated,
        }
    }

    fn place() -> SiteV6 {
        SiteV6 {
            addresses: vec![
                own("fe80::1", false),
                own("2001:db8:1::1", false),
                own("2001:db8:2::1", true),
                own("fd00::1", false),
            ],
            tentative: vec![address("2001:db8:9::1")],
            on_link: vec![(address("2001:db8:1::"), 64), (address("fd00::"), 64)],
            routes: vec![
                Route {
                    network: address("2001:db8:1:0:8000::").ip(),
                    prefix: 65,
                    via: address("fe80::7").ip(),
                    metric: 0,
                },
                Route {
                    network: address("2001:db8:5::").ip(),
                    prefix: 48,
                    via: address("fe80::8").ip(),
                    metric: 0,
                },
            ],
            routers: vec![address("fe80::a"), address("fe80::b")],
            redirects: vec![(address("2001:db8:7::5"), address("fe80::c"))],
            ..SiteV6::default()
        }
    }

    #[test]
    fn the_longest_prefix_decides_and_routers_get_the_rest() {
        let hop = |remote| place().next_hop(address(remote)).map(|hop| hop.to_string());
        assert_eq!(hop("fe80::99").as_deref(), Some("fe80::99"));
        assert_eq!(hop("2001:db8:1::5").as_deref(), Some("2001:db8:1::5"));
        assert_eq!(hop("2001:db8:1:0:8000::5").as_deref(), Some("fe80::7"));
        assert_eq!(hop("2001:db8:5::5").as_deref(), Some("fe80::8"));
        assert_eq!(hop("2001:db8:6::5").as_deref(), Some("fe80::a"));
        assert_eq!(hop("2001:db8:7::5").as_deref(), Some("fe80::c"));
        assert_eq!(SiteV6::default().next_hop(address("2001:db8::1")), None);
        assert_eq!(SiteV6::default().next_hop(address("fe80::1")), None);
    }

    #[test]
    fn a_source_is_of_the_scope_of_its_destination_and_not_deprecated() {
        let from = |remote| {
            place()
                .source(address(remote))
                .map(|source| source.to_string())
        };
        assert_eq!(from("fe80::99").as_deref(), Some("fe80::1"));
        assert_eq!(from("ff02::1").as_deref(), Some("fe80::1"));
        assert_eq!(from("2001:db8:1::9").as_deref(), Some("2001:db8:1::1"));
        // Its prefix is longer, but it is deprecated.
        assert_eq!(from("2001:db8:2::9").as_deref(), Some("2001:db8:1::1"));
        assert_eq!(from("fd00::9").as_deref(), Some("fd00::1"));
        let local = SiteV6 {
            addresses: vec![own("fe80::1", false)],
            ..SiteV6::default()
        };
        assert_eq!(local.source(address("2001:db8::1")), None);
        assert_eq!(local.source(address("fe80::2")), Some(address("fe80::1")));
    }

    /// RFC 6724 section 5, rules 6 and 8.
    #[test]
    fn a_source_has_the_label_of_its_destination_and_only_networks_are_compared() {
        for (own_addresses, remote, expected) in [
            (["2002:c000:1::1", "2600::1"], "2003::1", "2600::1"),
            (
                ["2002:c000:1::1", "2600::1"],
                "2002:c000:2::1",
                "2002:c000:1::1",
            ),
            (["2001:0:1::1", "2600::1"], "2001:db8::1", "2600::1"),
            (["fd00::1", "2001:db8::1"], "2600::1", "2001:db8::1"),
            (["fd00::1", "2001:db8::1"], "fdff::1", "fd00::1"),
            (["fec0::1", "2001:db8::1"], "fe00::1", "2001:db8::1"),
            (["3ffe::1", "2001:db8::1"], "3fff::1", "2001:db8::1"),
            (
                ["2001:db8::1", "2001:db8::8000:0:0:2"],
                "2001:db8::8000:0:0:3",
                "2001:db8::1",
            ),
            (
                ["2001:db8::1", "2001:db8:5::8"],
                "2001:db8:5::9",
                "2001:db8:5::8",
            ),
            (
                ["2001:db8:6::1", "2001:db8:6::fff2"],
                "2001:db8:6::fff3",
                "2001:db8:6::fff2",
            ),
        ] {
            let place = SiteV6 {
                addresses: own_addresses.map(|text| own(text, false)).to_vec(),
                on_link: vec![
                    (address("2001:db8:6::"), 120),
                    (address("2001:db8:6::ff00"), 120),
                ],
                ..SiteV6::default()
            };
            assert_eq!(
                place.source(address(remote)),
                Some(address(expected)),
                "{remote}"
            );
        }
    }

    #[test]
    fn groups_of_tentative_addresses_are_listened_to() {
        assert!(place().listens_to(ndp::ALL_NODES));
        assert!(place().listens_to(ndp::solicited_node(address("2001:db8:9::1"))));
        assert!(!place().listens_to(address("ff02::fb")));
        assert!(!place().has(address("2001:db8:9::1")));
    }

    #[test]
    fn any_length_of_a_prefix_is_compared() {
        let (a, b) = (address("2001:db8::1"), address("2001:db8::3"));
        assert!(is_in(a, b, 0) && is_in(a, b, 126) && is_in(a, a, 128));
        assert!(!is_in(a, b, 127) && !is_in(a, b, 128));
    }
}
