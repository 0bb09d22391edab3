//! Route lookup: the neighbour that gets a packet (RFC 1122 section 3.3.1).

use core::cmp::Reverse;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::HashMap;

use super::v6::{self, SiteV6, is_in};
use crate::packet::flow::Address;
use crate::packet::ndp;

/// Maximum number of addresses of an interface per family, including those that it forms itself.
pub const MAX_ADDRESSES: usize = 64;

/// An interface with this many routes accepts no more.
pub const MAX_ROUTES: usize = 1024;

/// A route: packets for a network go through a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network; bits after the prefix are ignored.
    pub network: IpAddr,
    /// Prefix length in bits, 0 to 32, or to 128 for IPv6. The longest matching prefix wins.
    pub prefix: u8,
    /// The gateway, an address of the same family. In a list of routes, 0.0.0.0 or `::` if the
    /// network is on the link.
    pub via: IpAddr,
    /// Among routes with equal prefix lengths, the lowest metric wins. On-link networks precede
    /// all routes, default gateways have metric 0, and routers that advertise themselves come last,
    /// with `u32::MAX`.
    pub metric: u32,
}

impl Route {
    /// Whether both have one gateway, one network and one metric.
    pub fn is_same(&self, other: &Route) -> bool {
        let bits = match self.network {
            IpAddr::V4(_) => 96 + self.prefix.min(32),
            IpAddr::V6(_) => self.prefix,
        };
        let [network, to] = [self, other].map(|route| Address::from(route.network));
        (self.order(), self.via) == (other.order(), other.via) && is_in(to, network, bits)
    }

    /// Whether gateway and network have one family, and the prefix is not longer than an address.
    pub fn is_sound(&self) -> bool {
        let most = if self.network.is_ipv4() { 32 } else { 128 };
        self.network.is_ipv4() == self.via.is_ipv4() && self.prefix <= most
    }

    /// The order of lookup: the longest prefix first, then the lowest metric.
    pub const fn order(&self) -> (Reverse<u8>, u32) {
        (Reverse(self.prefix), self.metric)
    }

    /// Inserts this route into ordered `routes`, after equal ones.
    pub fn add_to(self, routes: &mut Vec<Route>) {
        let at = routes.partition_point(|known| known.order() <= self.order());
        routes.insert(at, self);
    }

    /// The default route of the family of `via`.
    pub const fn default_via(via: IpAddr) -> Self {
        let network = match via {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        Route {
            network,
            prefix: 0,
            via,
            metric: 0,
        }
    }
}

/// The result of a route lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The neighbour that gets the frames.
    pub hop: Address,
    /// Length of the matching prefix.
    pub prefix: u8,
    /// Among equal prefixes, the lowest metric wins.
    pub metric: u32,
}

impl Way {
    /// The metric of advertised routers.
    pub const ADVERTISED: u32 = u32::MAX;

    /// The way to a host on one of our networks.
    pub const fn near(host: Address, prefix: u8) -> Self {
        Way {
            hop: host,
            prefix,
            metric: 0,
        }
    }

    /// Among ways through different interfaces, the greatest rank wins.
    pub const fn rank(&self) -> (u8, Reverse<u32>) {
        (self.prefix, Reverse(self.metric))
    }
}

impl From<&Route> for Way {
    fn from(route: &Route) -> Self {
        Way {
            hop: route.via.into(),
            prefix: route.prefix,
            metric: route.metric,
        }
    }
}

/// The network bits of `address` for a prefix length.
fn network(address: Address, prefix: u8) -> u32 {
    let mask = u32::MAX
        .checked_shl(32 - u32::from(prefix.min(32)))
        .unwrap_or(0);
    address.v4_bits() & mask
}

/// Whether a user may assign this address to the stack.
pub const fn may_be_ours_v4(address: Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

/// The kind of an address, from our point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    /// Only ours.
    Local,
    /// An address of all hosts on our link: 255.255.255.255, our network's broadcast address,
    /// or an IPv6 group that we listen to.
    Broadcast,
    /// Any other address.
    Remote,
}

/// Our addresses, networks and routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Our first IPv4 address; [`Site::NO_V4`] if there is none.
    pub address: Address,
    /// Length of its prefix, in bits.
    pub prefix: u8,
    /// The other IPv4 addresses, in the order in which they were added.
    others: Vec<PlaceV4>,
    /// Whether packets to every address of a single host are for us.
    pub takes_any: bool,
    /// Whether we answer hosts on the link that ask who has one of these addresses.
    pub answers_any: bool,
    /// MTU of this link for IPv4 in bytes, if DHCP limits it.
    pub mtu: Option<u16>,
    /// Our current IPv6 addresses and routes.
    pub v6: SiteV6,
    /// In lookup order; among equal ones, in the order of insertion.
    routes: Vec<Route>,
}

impl Site {
    /// Represents a missing IPv4 address; no packet has it.
    pub const NO_V4: Address = Address::v6([0; 16]);

    /// Creates a site; `gateway` is the default route.
    pub fn new(address: Address, prefix: u8, gateway: Option<IpAddr>, routes: &[Route]) -> Self {
        let mut routes = routes.to_vec();
        routes.retain(|route| route.network.is_ipv4());
        routes.extend(gateway.map(Route::default_via));
        routes.sort_by_key(Route::order);
        Site {
            address,
            prefix,
            others: Vec::new(),
            takes_any: false,
            answers_any: false,
            mtu: None,
            v6: SiteV6::default(),
            routes,
        }
    }

    /// Adds an IPv4 address.
    pub fn add_v4(&mut self, address: Address, prefix: u8) {
        if self.has_v4() {
            self.others.push(PlaceV4 { address, prefix });
        } else {
            (self.address, self.prefix) = (address, prefix);
        }
    }

    /// Removes an IPv4 address. If it was the first, the next one becomes the first.
    pub fn remove_v4(&mut self, address: Address) {
        self.others.retain(|own| own.address != address);
        if self.address == address {
            let next = match self.others.is_empty() {
                true => PlaceV4::NOWHERE,
                false => self.others.remove(0),
            };
            (self.address, self.prefix) = (next.address, next.prefix);
        }
    }

    /// Adds an IPv4 route.
    pub fn add_route(&mut self, route: Route) {
        if !self.routes.iter().any(|known| known.is_same(&route)) {
            route.add_to(&mut self.routes);
        }
    }

    /// Removes an IPv4 route.
    pub fn remove_route(&mut self, route: &Route) {
        self.routes.retain(|known| !known.is_same(route));
    }

    /// The routes of a family in order, without advertised routers.
    pub fn routes(&self, is_v4: bool) -> &[Route] {
        match is_v4 {
            true => &self.routes,
            false => &self.v6.routes,
        }
    }

    /// All routes of a family, in lookup order.
    pub fn all_routes(&self, is_v4: bool) -> Vec<Route> {
        let mut near: Vec<_> = match is_v4 {
            true => self
                .places_v4()
                .map(|own| (Address::v4(network(own.address, own.prefix)), own.prefix))
                .collect(),
            false => self.v6.near().collect(),
        };
        near.sort_unstable();
        near.dedup();
        let default = match is_v4 {
            true => Route::default_via(Ipv4Addr::UNSPECIFIED.into()),
            false => Route::default_via(Ipv6Addr::UNSPECIFIED.into()),
        };
        let near = near.into_iter().map(|(network, prefix)| Route {
            network: network.ip(),
            prefix,
            ..default
        });
        let routes = self.routes(is_v4).iter().map(|route| {
            let to = Address::from(route.network);
            let first = match is_v4 {
                true => Address::v4(network(to, route.prefix)),
                false => v6::network(to, route.prefix),
            };
            Route {
                network: first.ip(),
                ..*route
            }
        });
        let routers = self.v6.routers.iter().filter(|_| !is_v4);
        let routers = routers.map(|router| Route {
            metric: Way::ADVERTISED,
            ..Route::default_via(router.ip())
        });
        let mut all: Vec<_> = near.chain(routes).chain(routers).collect();
        // On-link networks precede gateways with equal prefix lengths.
        all.sort_by_key(|route| {
            let is_near = route.via.is_unspecified();
            (Reverse(route.prefix), !is_near, route.metric)
        });
        all
    }

    /// Our IPv4 addresses with their networks, in order.
    pub fn places_v4(&self) -> impl DoubleEndedIterator<Item = PlaceV4> + '_ {
        let first = self.has_v4().then(|| self.v4());
        first.into_iter().chain(self.others.iter().copied())
    }

    /// Whether `address` is one of our IPv4 addresses.
    pub fn is_own_v4(&self, address: Address) -> bool {
        address == self.address || self.others.iter().any(|own| own.address == address)
    }

    /// Whether we have several IPv4 addresses.
    pub fn has_several_v4(&self) -> bool {
        !self.others.is_empty()
    }

    /// The first of our IPv4 addresses with the longest prefix that includes `neighbor`.
    fn on_network_of(&self, neighbor: Address) -> Option<PlaceV4> {
        let near = self.places_v4().rev().filter(|own| own.reaches(neighbor));
        near.max_by_key(|own| own.prefix)
    }

    /// The neighbour that gets frames for `remote`, if any: `remote` itself on our own
    /// networks, or the gateway with the longest matching prefix.
    pub fn next_hop(&self, remote: Address) -> Option<Address> {
        self.way(remote).map(|way| way.hop)
    }

    /// Looks up the way to `remote`.
    pub fn way(&self, remote: Address) -> Option<Way> {
        if !remote.is_v4() {
            return self.v6.way(remote);
        }
        if !self.has_v4() {
            return None;
        }
        let near = self.on_network_of(remote);
        let routed = self.routes.iter().find(|route| {
            network(remote, route.prefix) == network(route.network.into(), route.prefix)
        });
        match (near, routed) {
            (Some(own), Some(route)) if route.prefix > own.prefix => Some(route.into()),
            (Some(own), _) => Some(Way::near(remote, own.prefix)),
            (None, routed) => routed.map(Way::from),
        }
    }

    /// Our source address for packets to `remote`; `None` if we have none yet. Of several IPv4
    /// addresses, the one on the network of the next hop, otherwise the first.
    pub fn source(&self, remote: Address) -> Option<Address> {
        if self.is_ourselves(remote) {
            Some(remote)
        } else if remote.is_v4() {
            if !self.has_several_v4() {
                return self.has_v4().then_some(self.address);
            }
            let near = self
                .next_hop(remote)
                .and_then(|hop| self.on_network_of(hop));
            Some(near.map_or(self.address, |own| own.address))
        } else {
            self.v6.source(remote)
        }
    }

    /// Whether we have an IPv4 address.
    pub fn has_v4(&self) -> bool {
        self.address != Self::NO_V4
    }

    /// Whether no legitimate packet can come from `source` to `destination` over a link (RFC
    /// 1122 section 3.2.1.3, RFC 1812 section 5.3.7, RFC 6890): the source is unspecified, is
    /// ours, is a group or broadcast address, or is not in use. Only a host that does not know
    /// its address yet may send from the unspecified address, and only by broadcast.
    #[inline]
    pub fn is_martian(&self, (source, destination): (Address, Address)) -> bool {
        if !source.is_v4() {
            return is_martian_v6(source, destination) || self.v6.has(source);
        }
        self.v4().is_martian((source, destination))
            || self.has_several_v4() && self.classify(source) != AddressKind::Remote
    }

    /// Our first IPv4 address and its network.
    #[inline(always)]
    pub const fn v4(&self) -> PlaceV4 {
        PlaceV4 {
            address: self.address,
            prefix: self.prefix,
        }
    }

    /// Whether `address` can be a single host as a destination: the rules of
    /// [`is_martian`](Self::is_martian) for sources, but our own address is allowed.
    pub fn is_one_host(&self, address: Address) -> bool {
        if !address.is_v4() {
            return !address.is_multicast() && !address.is_unspecified();
        }
        !matches!(address.v4_bits() >> 24, 0 | 224..)
            && self.classify(address) != AddressKind::Broadcast
    }

    /// Whether `address` is ours or loopback (RFC 1122 section 3.2.1.3, (g)).
    pub fn is_ourselves(&self, address: Address) -> bool {
        if address.is_v4() {
            self.is_own_v4(address) || address.ip().is_loopback()
        } else {
            self.v6.has(address) || address.ip().is_loopback() && self.v6.is_anywhere()
        }
    }

    /// Whether connections may have the local address `address`: it is ours, or we take packets to
    /// every address of a single host. Link-local addresses belong to neighbours.
    pub fn takes(&self, address: Address) -> bool {
        self.is_ourselves(address) || self.takes_any && self.may_take(address)
    }

    /// Whether we answer hosts on the link for `address`, which is not ours.
    pub fn answers_for(&self, address: Address) -> bool {
        self.takes_any && self.answers_any && self.may_take(address)
    }

    /// Whether a question for an address that [`answers_for`](Self::answers_for) allows may be sent
    /// to the group `dst`.
    pub fn answers_at(&self, dst: Address) -> bool {
        self.takes_any && self.answers_any && ndp::is_solicited_node(dst)
    }

    fn may_take(&self, address: Address) -> bool {
        let is_near = match address.is_v4() {
            true => !self.has_v4(),
            false => address.is_link_local() || !self.v6.is_anywhere(),
        };
        !is_near && self.is_one_host(address) && !address.ip().is_loopback()
    }

    /// Classifies `address` (RFC 1122 section 3.2.1.3).
    pub fn classify(&self, address: Address) -> AddressKind {
        if !address.is_v4() {
            return match address.is_multicast() {
                _ if self.v6.has(address) => AddressKind::Local,
                true if self.v6.listens_to(address) => AddressKind::Broadcast,
                _ => AddressKind::Remote,
            };
        }
        match self.v4().classify(address) {
            kind if !self.has_several_v4() => kind,
            kind => self.classify_by_all(address, kind),
        }
    }

    /// [`Site::classify`] with several addresses, when our first address yields `kind`. Our own
    /// address is local even if it is the broadcast address of another of our networks.
    #[cold]
    fn classify_by_all(&self, address: Address, kind: AddressKind) -> AddressKind {
        let mut kinds = self.others.iter().map(|own| own.classify(address));
        if self.is_own_v4(address) {
            return AddressKind::Local;
        }
        match kinds.any(|other| other == AddressKind::Broadcast) {
            true => AddressKind::Broadcast,
            false => kind,
        }
    }
}

/// One of our IPv4 addresses, and its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceV4 {
    /// Our address; [`Site::NO_V4`] if there is none.
    pub address: Address,
    /// Length of its prefix, in bits.
    pub prefix: u8,
}

impl PlaceV4 {
    /// No address.
    const NOWHERE: PlaceV4 = PlaceV4 {
        address: Site::NO_V4,
        prefix: 32,
    };
    /// Marks an existing address in [`PlaceV4::to_bits`].
    const SOME: u64 = 1 << 40;

    /// Packs it into a word.
    pub fn to_bits(self) -> u64 {
        match self.address.is_v4() {
            true => Self::SOME | u64::from(self.prefix) << 32 | u64::from(self.address.v4_bits()),
            false => 0,
        }
    }

    /// The inverse of [`PlaceV4::to_bits`].
    #[inline(always)]
    pub const fn of_bits(bits: u64) -> Self {
        match bits & Self::SOME {
            0 => PlaceV4::NOWHERE,
            _ => PlaceV4 {
                address: Address::v4(bits as u32),
                prefix: (bits >> 32) as u8,
            },
        }
    }

    /// Whether `address` is on its network.
    fn reaches(self, address: Address) -> bool {
        network(address, self.prefix) == network(self.address, self.prefix)
    }

    /// [`Site::is_martian`] for IPv4 addresses.
    #[inline]
    pub fn is_martian(self, (source, destination): (Address, Address)) -> bool {
        match source.v4_bits() >> 24 {
            0 => source.v4_bits() != 0 || destination.v4_bits() != u32::MAX,
            127 | 224.. => true,
            _ => self.classify(source) != AddressKind::Remote,
        }
    }

    /// [`Site::classify`] for an IPv4 address.
    #[inline]
    fn classify(self, address: Address) -> AddressKind {
        if address == self.address {
            return AddressKind::Local;
        }
        // A network of two addresses (RFC 3021) or one has no broadcast address.
        let all_ones = network(self.address, self.prefix)
            | u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
        let bits = address.v4_bits();
        let to_all = bits == u32::MAX || self.prefix < 31 && bits == all_ones;
        if to_all {
            AddressKind::Broadcast
        } else {
            AddressKind::Remote
        }
    }
}

/// Whether no IPv6 packet can come from `source` to `destination` over a link (RFC 4291
/// sections 2.5 and 2.7), independently of our addresses. A host sends from the unspecified
/// address only while it has no other, and only to groups.
#[inline]
pub fn is_martian_v6(source: Address, destination: Address) -> bool {
    let is_nowhere = |address: Address| address.is_unspecified() || address.ip().is_loopback();
    source.is_multicast()
        || source.ip().is_loopback()
        || source.is_unspecified() && !destination.is_multicast()
        || is_nowhere(destination)
}

/// A map from IPv4 prefixes to values; the longest matching prefix wins. A lookup takes one
/// probe per distinct prefix length, however many routes there are.
#[derive(Clone, Debug)]
pub struct RouteTable<T> {
    /// Longest prefix first.
    lengths: Vec<(u8, HashMap<u32, T>)>,
}

impl<T> Default for RouteTable<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> RouteTable<T> {
    /// An empty table.
    pub const fn new() -> Self {
        RouteTable {
            lengths: Vec::new(),
        }
    }

    /// Adds a route, unless there is one to the same network.
    pub fn insert(&mut self, to: Address, prefix: u8, value: T) {
        let place = self.lengths.binary_search_by(|(len, _)| prefix.cmp(len));
        let place = place.unwrap_or_else(|place| {
            self.lengths.insert(place, (prefix, HashMap::new()));
            place
        });
        let routes = &mut self.lengths[place].1;
        routes.entry(network(to, prefix)).or_insert(value);
    }

    /// The value of the longest matching prefix.
    pub fn lookup(&self, address: Address) -> Option<&T> {
        let mut lengths = self.lengths.iter();
        lengths.find_map(|(len, routes)| routes.get(&network(address, *len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Address = Address::ipv4(10, 0, 0, 1);
    const GATEWAY: Address = Address::ipv4(10, 0, 0, 254);

    #[test]
    fn neighbours_are_reached_directly_and_others_through_the_gateway() {
        let site = Site::new(US, 24, Some(GATEWAY.ip()), &[]);
        let near = Address::ipv4(10, 0, 0, 9);
        assert_eq!(site.next_hop(near), Some(near));
        assert_eq!(site.next_hop(Address::ipv4(10, 0, 1, 9)), Some(GATEWAY));
        let far = Address::ipv4(8, 8, 8, 8);
        assert_eq!(Site::new(US, 0, None, &[]).next_hop(far), Some(far));
        assert_eq!(Site::new(US, 24, None, &[]).next_hop(far), None);
    }

    #[test]
    fn the_longest_prefix_decides() {
        let route = |network: [u8; 4], prefix, last| Route {
            network: network.into(),
            prefix,
            via: [10, 0, 0, last].into(),
            metric: 0,
        };
        let routes = [
            route([172, 16, 0, 0], 12, 2),
            route([172, 16, 5, 77], 24, 3),
            route([10, 0, 0, 64], 26, 4),
        ];
        let site = Site::new(US, 24, Some(GATEWAY.ip()), &routes);
        let via = |remote: [u8; 4]| site.next_hop(remote.into()).map(|hop| hop.bytes()[15]);
        assert_eq!(via([172, 17, 0, 1]), Some(2));
        assert_eq!(via([172, 16, 5, 1]), Some(3));
        assert_eq!(via([10, 0, 0, 65]), Some(4));
        assert_eq!(via([10, 0, 0, 66]), Some(4));
        assert_eq!(via([10, 0, 0, 7]), Some(7));
        assert_eq!(via([9, 9, 9, 9]), Some(254));
    }

    #[test]
    fn of_prefixes_as_long_the_lowest_metric_decides_and_then_the_first() {
        let route = |prefix, last, metric| Route {
            network: [172, 16, 0, 0].into(),
            prefix,
            via: [10, 0, 0, last].into(),
            metric,
        };
        let routes = [route(16, 2, 9), route(16, 3, 4), route(16, 4, 4)];
        let mut site = Site::new(US, 24, None, &routes);
        let via = |site: &Site| {
            let hop = site.next_hop([172, 16, 0, 1].into());
            hop.map(|hop| hop.bytes()[15])
        };
        assert_eq!(via(&site), Some(3));
        // A longer prefix precedes any metric.
        site.add_route(route(17, 5, 100));
        assert_eq!(via(&site), Some(5));
        site.remove_route(&route(17, 5, 99));
        assert_eq!(via(&site), Some(5), "there is no such route");
        site.remove_route(&route(17, 5, 100));
        site.add_route(route(16, 6, 3));
        assert_eq!(via(&site), Some(6));
        for (gone, next) in [(routes[0], 6), (route(16, 6, 3), 3), (routes[1], 4)] {
            site.remove_route(&gone);
            assert_eq!(via(&site), Some(next));
        }
        // The on-link network precedes a route, regardless of its metric.
        site.add_v4([172, 16, 0, 9].into(), 16);
        assert_eq!(via(&site), Some(1));
        let [one, other] = [1, 2].map(|metric| Way::from(&route(16, 2, metric)).rank());
        assert!(one > other && Way::from(&route(17, 2, 9)).rank() > one);
    }

    #[test]
    fn the_broadcast_address_is_recognized_and_a_network_of_two_has_none() {
        let site = Site::new(US, 24, None, &[]);
        let whose = |address: [u8; 4]| site.classify(address.into());
        assert_eq!(whose([10, 0, 0, 1]), AddressKind::Local);
        assert_eq!(whose([10, 0, 0, 255]), AddressKind::Broadcast);
        assert_eq!(whose([255, 255, 255, 255]), AddressKind::Broadcast);
        assert_eq!(whose([10, 0, 1, 255]), AddressKind::Remote);
        assert_eq!(
            Site::new(US, 31, None, &[]).classify([10, 0, 0, 0].into()),
            AddressKind::Remote
        );
    }

    /// 10.0.0.1/24, 10.0.1.1/25, 10.0.0.2/24, 10.0.1.66/26.
    fn several() -> Site {
        let mut site = Site::new(US, 24, Some(GATEWAY.ip()), &[]);
        for (net, last, prefix) in [(1, 1, 25), (0, 2, 24), (1, 66, 26)] {
            site.add_v4(Address::ipv4(10, 0, net, last), prefix);
        }
        site
    }

    #[test]
    fn packets_come_from_the_address_on_the_network_of_their_next_hop() {
        let mut site = several();
        let from = |site: &Site, remote: [u8; 4]| site.source(remote.into()).map(Address::ip);
        let own = |net, last| Some(IpAddr::from([10, 0, net, last]));
        // Among equal networks the first, otherwise the smallest; through a gateway, the
        // address on its network.
        assert_eq!(from(&site, [10, 0, 0, 9]), own(0, 1));
        assert_eq!(from(&site, [10, 0, 1, 9]), own(1, 1));
        assert_eq!(from(&site, [10, 0, 1, 70]), own(1, 66));
        assert_eq!(from(&site, [8, 8, 8, 8]), own(0, 1));
        // To ourselves, and to broadcast addresses.
        assert_eq!(from(&site, [10, 0, 0, 2]), own(0, 2));
        assert_eq!(from(&site, [10, 0, 1, 127]), own(1, 66));
        assert_eq!(from(&site, [255; 4]), own(0, 1));
        let via = [10, 0, 1, 3].into();
        let mut far = Site::new(US, 24, Some(via), &[]);
        far.add_v4(Address::ipv4(10, 0, 1, 1), 25);
        assert_eq!(from(&far, [8, 8, 8, 8]), own(1, 1));
        let near = Address::ipv4(10, 0, 1, 70);
        assert_eq!(site.way(near), Some(Way::near(near, 26)));
        // The next one becomes the first.
        site.remove_v4(US);
        assert_eq!(from(&site, [10, 0, 0, 9]), own(0, 2));
        assert_eq!(site.address, Address::ipv4(10, 0, 1, 1));
        for (net, last) in [(1, 1), (0, 2), (1, 66)] {
            assert!(site.has_v4());
            site.remove_v4(Address::ipv4(10, 0, net, last));
            if net == 0 {
                assert_eq!(from(&site, [10, 0, 0, 9]), own(1, 66));
            }
        }
        assert!(!site.has_v4());
        assert_eq!((from(&site, [10, 0, 0, 9]), site.way(near)), (None, None));
        site.add_v4(US, 24);
        assert_eq!(from(&site, [10, 0, 0, 9]), own(0, 1));
    }

    #[test]
    fn every_address_and_network_of_several_is_recognized() {
        let site = several();
        let whose = |address: [u8; 4]| site.classify(address.into());
        for (net, last) in [(0, 1), (0, 2), (1, 1), (1, 66)] {
            assert_eq!(whose([10, 0, net, last]), AddressKind::Local);
            let own = Address::ipv4(10, 0, net, last);
            assert!(site.is_martian((own, US)) && site.is_ourselves(own));
        }
        for (net, last) in [(0, 255), (1, 127)] {
            assert_eq!(whose([10, 0, net, last]), AddressKind::Broadcast);
            assert!(site.is_martian((Address::ipv4(10, 0, net, last), US)));
            assert!(!site.is_one_host(Address::ipv4(10, 0, net, last)));
        }
        assert_eq!(whose([10, 0, 1, 255]), AddressKind::Remote);
        assert!(!site.is_martian((Address::ipv4(10, 0, 1, 255), US)));
        // The broadcast address of one network is our own address in another.
        let mut site = Site::new(US, 24, None, &[]);
        site.add_v4(Address::ipv4(10, 0, 0, 255), 16);
        assert_eq!(site.classify([10, 0, 0, 255].into()), AddressKind::Local);
    }

    #[test]
    fn a_table_answers_as_a_search_through_all_routes_does() {
        let mut state = 1_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 32) as u32
        };
        for _ in 0..20 {
            let mut table = RouteTable::new();
            let mut all: Vec<(Address, u8)> = Vec::new();
            for number in 0..200 {
                // Few bits differ, so that prefixes contain each other.
                let route = (Address::v4(next() & 0xe000_00ff), (next() % 33) as u8);
                all.push(route);
                table.insert(route.0, route.1, number);
            }
            for _ in 0..500 {
                let address = Address::v4(next() & 0xe000_00ff);
                let fits =
                    |(at, prefix): (Address, u8)| network(at, prefix) == network(address, prefix);
                let longest = all
                    .iter()
                    .filter(|route| fits(**route))
                    .map(|route| route.1)
                    .max();
                let expected = all
                    .iter()
                    .position(|route| fits(*route) && Some(route.1) == longest);
                assert_eq!(table.lookup(address).copied(), expected);
            }
        }
        assert_eq!(RouteTable::<u8>::new().lookup(US), None);
    }
}
