//! Which neighbour gets a packet (RFC 1122 section 3.3.1).

use core::cmp::Reverse;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::HashMap;

use super::v6::{self, Place, is_in};
use crate::packet::flow::Address;

/// Addresses of each family that an interface may have, at most, those that it makes among them.
pub const MAX_ADDRESSES: usize = 64;

/// Routes that may be added to an interface that has fewer.
pub const MAX_ROUTES: usize = 1024;

/// Packets for a network go through a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network; bits behind the prefix do not count.
    pub network: IpAddr,
    /// Length of its prefix in bits, 0 to 32, or of IPv6 0 to 128. The longest prefix that fits
    /// decides.
    pub prefix: u8,
    /// The neighbour that forwards, an address of the same family.
    pub via: IpAddr,
    /// Of routes with prefixes as long, the lowest decides. The networks of our own addresses come
    /// before all routes, default gateways have 0, and routers that advertise themselves come last.
    pub metric: u32,
}

impl Route {
    /// Whether both go through the same neighbour to the same network, with the same metric.
    pub fn is_same(&self, other: &Route) -> bool {
        let bits = match self.network {
            IpAddr::V4(_) => 96 + self.prefix.min(32),
            IpAddr::V6(_) => self.prefix,
        };
        let [network, to] = [self, other].map(|route| Address::from(route.network));
        (self.order(), self.via) == (other.order(), other.via) && is_in(to, network, bits)
    }

    /// Whether the gateway is of the family of the network, and the prefix not longer than an
    /// address.
    pub fn is_sound(&self) -> bool {
        let most = if self.network.is_ipv4() { 32 } else { 128 };
        self.network.is_ipv4() == self.via.is_ipv4() && self.prefix <= most
    }

    /// What comes first is looked up first: the longest prefix, of equal ones the lowest metric.
    pub const fn order(&self) -> (Reverse<u8>, u32) {
        (Reverse(self.prefix), self.metric)
    }

    /// Adds this to routes that are in order: behind those that are equal in that.
    pub fn add_to(self, routes: &mut Vec<Route>) {
        let at = routes.partition_point(|known| known.order() <= self.order());
        routes.insert(at, self);
    }

    /// To all networks of the family of `via`.
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

/// How a packet gets on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Who gets its frames.
    pub hop: Address,
    /// Length of the prefix that said so.
    pub prefix: u8,
    /// Of equal prefixes, the one of the least metric is taken.
    pub metric: u32,
}

impl Way {
    /// The metric of routers that advertise themselves.
    pub const ADVERTISED: u32 = u32::MAX;

    /// Straight to a host on a network of ours.
    pub const fn near(host: Address, prefix: u8) -> Self {
        Way {
            hop: host,
            prefix,
            metric: 0,
        }
    }

    /// Of ways by different interfaces, the greatest is taken.
    pub const fn rank(&self) -> (u8, Reverse<u32>) {
        (self.prefix, Reverse(self.metric))
    }
}

/// A way as it is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedWay {
    /// First address of the destinations.
    pub network: Address,
    /// Length of its prefix, in bits.
    pub prefix: u8,
    /// Of equal prefixes, the one of the least metric is taken.
    pub metric: u32,
    /// Who forwards, unless the network is that of the link.
    pub via: Option<Address>,
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

/// The network bits of `address` under `prefix`.
fn network(address: Address, prefix: u8) -> u32 {
    let mask = u32::MAX
        .checked_shl(32 - u32::from(prefix.min(32)))
        .unwrap_or(0);
    address.v4_bits() & mask
}

/// Whether an address may be given to the stack by hand.
pub const fn may_be_ours_v4(address: Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

/// What an address stands for, as we see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    /// Ours alone.
    Local,
    /// Everybody's on our link: 255.255.255.255, our network's broadcast address, or a group of
    /// IPv6 that we listen to.
    Broadcast,
    /// Somebody else's.
    Remote,
}

/// Where we are in the network, and the ways out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Our first IPv4 address; [`Site::NO_V4`] if there is none.
    pub address: Address,
    /// Length of its prefix, in bits.
    pub prefix: u8,
    /// The others, in the order in which we got them.
    others: Vec<PlaceV4>,
    /// Our place in IPv6 now.
    pub v6: Place,
    /// In order; of equal ones, the one that was named first.
    routes: Vec<Route>,
}

impl Site {
    /// Stands for our IPv4 address if there is none: no packet has it.
    pub const NO_V4: Address = Address::v6([0; 16]);

    /// `gateway` forwards what no route is for.
    pub fn new(address: Address, prefix: u8, gateway: Option<IpAddr>, routes: &[Route]) -> Self {
        let mut routes = routes.to_vec();
        routes.retain(|route| route.network.is_ipv4());
        routes.extend(gateway.map(Route::default_via));
        routes.sort_by_key(Route::order);
        Site {
            address,
            prefix,
            others: Vec::new(),
            v6: Place::default(),
            routes,
        }
    }

    /// We have this address of IPv4 from now on, besides those that we have.
    pub fn add_v4(&mut self, address: Address, prefix: u8) {
        if self.has_v4() {
            self.others.push(PlaceV4 { address, prefix });
        } else {
            (self.address, self.prefix) = (address, prefix);
        }
    }

    /// An address of IPv4 is ours no longer. Of those that are left, the next one is the first.
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

    /// Packets for a network of IPv4 go through a gateway from now on.
    pub fn add_route(&mut self, route: Route) {
        if !self.routes.iter().any(|known| known.is_same(&route)) {
            route.add_to(&mut self.routes);
        }
    }

    /// They do not any more.
    pub fn remove_route(&mut self, route: &Route) {
        self.routes.retain(|known| !known.is_same(route));
    }

    /// The routes of a family that do not come from routers, in order.
    pub fn routes(&self, is_v4: bool) -> &[Route] {
        match is_v4 {
            true => &self.routes,
            false => &self.v6.routes,
        }
    }

    /// All ways of a family, as they are looked up.
    pub fn ways(&self, is_v4: bool) -> Vec<ListedWay> {
        let mut near: Vec<_> = match is_v4 {
            true => self
                .places_v4()
                .map(|own| (Address::v4(network(own.address, own.prefix)), own.prefix))
                .collect(),
            false => self.v6.near().collect(),
        };
        near.sort_unstable();
        near.dedup();
        let near = near.into_iter().map(|(network, prefix)| ListedWay {
            network,
            prefix,
            metric: 0,
            via: None,
        });
        let routes = self.routes(is_v4).iter().map(|route| {
            let to = Address::from(route.network);
            ListedWay {
                network: match is_v4 {
                    true => Address::v4(network(to, route.prefix)),
                    false => v6::network(to, route.prefix),
                },
                prefix: route.prefix,
                metric: route.metric,
                via: Some(route.via.into()),
            }
        });
        let routers = self.v6.routers.iter().filter(|_| !is_v4);
        let routers = routers.map(|router| ListedWay {
            network: Address::v6([0; 16]),
            prefix: 0,
            metric: Way::ADVERTISED,
            via: Some(*router),
        });
        let mut ways: Vec<_> = near.chain(routes).chain(routers).collect();
        // The link comes before a neighbour with a prefix as long.
        ways.sort_by_key(|way| (Reverse(way.prefix), way.via.is_some(), way.metric));
        ways
    }

    /// Our addresses of IPv4 with their networks, in order.
    pub fn places_v4(&self) -> impl DoubleEndedIterator<Item = PlaceV4> + '_ {
        let first = self.has_v4().then(|| self.v4());
        first.into_iter().chain(self.others.iter().copied())
    }

    /// Whether it is an address of IPv4 of ours.
    pub fn is_own_v4(&self, address: Address) -> bool {
        address == self.address || self.others.iter().any(|own| own.address == address)
    }

    /// Whether we have several addresses of IPv4.
    pub fn has_several_v4(&self) -> bool {
        !self.others.is_empty()
    }

    /// Which of our addresses of IPv4 is on the network of `neighbor`: of several that with the
    /// longest prefix, of equal ones the first.
    fn on_network_of(&self, neighbor: Address) -> Option<PlaceV4> {
        let near = self.places_v4().rev().filter(|own| own.reaches(neighbor));
        near.max_by_key(|own| own.prefix)
    }

    /// Who gets frames for `remote`, if anybody does: itself on our own networks, or the gateway of
    /// the longest prefix that fits.
    pub fn next_hop(&self, remote: Address) -> Option<Address> {
        self.way(remote).map(|way| way.hop)
    }

    /// How packets to `remote` get on.
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

    /// Which of our addresses packets to `remote` come from. `None` if we have none yet. Of several
    /// of IPv4 it is the one on the network of the neighbour that gets them, or else the first.
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

    /// Whether no packet can truly come from `source` to `destination` over a link (RFC 1122
    /// section 3.2.1.3, RFC 1812 section 5.3.7, RFC 6890): from nobody, from this host, from
    /// several hosts, or from addresses that are not in use. Only a host that does not know its
    /// address yet may leave that out, in what it sends to everybody.
    #[inline]
    pub fn is_martian(&self, (source, destination): (Address, Address)) -> bool {
        if !source.is_v4() {
            return is_martian_v6(source, destination) || self.v6.has(source);
        }
        self.v4().is_martian((source, destination))
            || self.has_several_v4() && self.classify(source) != AddressKind::Remote
    }

    /// Our place in IPv4 by our first address.
    #[inline(always)]
    pub const fn v4(&self) -> PlaceV4 {
        PlaceV4 {
            address: self.address,
            prefix: self.prefix,
        }
    }

    /// Whether `address` can be a single host that packets are sent to: what is said of sources in
    /// [`is_martian`](Self::is_martian) but for ourselves.
    pub fn is_one_host(&self, address: Address) -> bool {
        if !address.is_v4() {
            return !address.is_multicast() && !address.is_unspecified();
        }
        !matches!(address.v4_bits() >> 24, 0 | 224..)
            && self.classify(address) != AddressKind::Broadcast
    }

    /// Whether packets for `address` come back to us (RFC 1122 section 3.2.1.3, (g)): it is ours,
    /// or every host's own.
    pub fn is_ourselves(&self, address: Address) -> bool {
        if address.is_v4() {
            self.is_own_v4(address) || address.ip().is_loopback()
        } else {
            self.v6.has(address) || address.ip().is_loopback() && self.v6.is_anywhere()
        }
    }

    /// Whether `address` is ours, everybody's, or somebody else's (RFC 1122 section 3.2.1.3).
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

    /// As [`Site::classify`], where our first address says `kind`. What is ours is ours, though it
    /// may be everybody's by the network of another one.
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

/// An address of IPv4 that is ours, and its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceV4 {
    /// Our address; [`Site::NO_V4`] if there is none.
    pub address: Address,
    /// Length of its prefix, in bits.
    pub prefix: u8,
}

impl PlaceV4 {
    /// Without an address.
    const NOWHERE: PlaceV4 = PlaceV4 {
        address: Site::NO_V4,
        prefix: 32,
    };
    /// Says [`PlaceV4::to_bits`] that there is an address.
    const SOME: u64 = 1 << 40;

    /// As a word.
    pub fn to_bits(self) -> u64 {
        match self.address.is_v4() {
            true => Self::SOME | u64::from(self.prefix) << 32 | u64::from(self.address.v4_bits()),
            false => 0,
        }
    }

    /// That of [`PlaceV4::to_bits`].
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

    /// Whether a neighbour on its network has `address`.
    fn reaches(self, address: Address) -> bool {
        network(address, self.prefix) == network(self.address, self.prefix)
    }

    /// As [`Site::is_martian`], of addresses of IPv4.
    #[inline]
    pub fn is_martian(self, (source, destination): (Address, Address)) -> bool {
        match source.v4_bits() >> 24 {
            0 => source.v4_bits() != 0 || destination.v4_bits() != u32::MAX,
            127 | 224.. => true,
            _ => self.classify(source) != AddressKind::Remote,
        }
    }

    /// As [`Site::classify`], of an address of IPv4.
    #[inline]
    fn classify(self, address: Address) -> AddressKind {
        if address == self.address {
            return AddressKind::Local;
        }
        // A network of two (RFC 3021) or one has no broadcast address.
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

/// Whether no IPv6 packet can come from `source` to `destination` over a link (RFC 4291 sections
/// 2.5 and 2.7), whoever we are. From no address a host speaks to its neighbours only while it has
/// none.
#[inline]
pub fn is_martian_v6(source: Address, destination: Address) -> bool {
    let is_nowhere = |address: Address| address.is_unspecified() || address.ip().is_loopback();
    source.is_multicast()
        || source.ip().is_loopback()
        || source.is_unspecified() && !destination.is_multicast()
        || is_nowhere(destination)
}

/// Destinations of IPv4 by prefix: what the longest one that fits says. Looking up takes a probe
/// for each length of a prefix that is there, however many routes have it.
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

    /// What the longest prefix that fits says.
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
        // A longer prefix comes before any metric.
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
        // The network of an address of ours comes before a route, whatever its metric.
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
        // Of equal networks the first, of others the smallest; through a gateway that of its own.
        assert_eq!(from(&site, [10, 0, 0, 9]), own(0, 1));
        assert_eq!(from(&site, [10, 0, 1, 9]), own(1, 1));
        assert_eq!(from(&site, [10, 0, 1, 70]), own(1, 66));
        assert_eq!(from(&site, [8, 8, 8, 8]), own(0, 1));
        // To ourselves, and to all hosts of a network.
        assert_eq!(from(&site, [10, 0, 0, 2]), own(0, 2));
        assert_eq!(from(&site, [10, 0, 1, 127]), own(1, 66));
        assert_eq!(from(&site, [255; 4]), own(0, 1));
        let via = [10, 0, 1, 3].into();
        let mut far = Site::new(US, 24, Some(via), &[]);
        far.add_v4(Address::ipv4(10, 0, 1, 1), 25);
        assert_eq!(from(&far, [8, 8, 8, 8]), own(1, 1));
        let near = Address::ipv4(10, 0, 1, 70);
        assert_eq!(site.way(near), Some(Way::near(near, 26)));
        // The next one takes the place of the first.
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
        // The broadcast address of one network is ours in another.
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
