//! Which neighbour gets a packet (RFC 1122 section 3.3.1).

use core::net::Ipv4Addr;

/// Packets for a network go through a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network; bits behind the prefix do not count.
    pub network: Ipv4Addr,
    /// Length of its prefix in bits, 0 to 32. The longest prefix that fits decides.
    pub prefix: u8,
    /// The neighbour that forwards.
    pub via: Ipv4Addr,
}

/// The network bits of `address` under `prefix`.
fn network(address: Ipv4Addr, prefix: u8) -> u32 {
    let mask = u32::MAX
        .checked_shl(32 - u32::from(prefix.min(32)))
        .unwrap_or(0);
    address.to_bits() & mask
}

/// What an address stands for, as we see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressKind {
    /// Ours alone.
    Local,
    /// Everybody's on our link: 255.255.255.255, or our network's broadcast address.
    Broadcast,
    /// Somebody else's.
    Remote,
}

/// Where we are in the network, and the ways out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) address: Ipv4Addr,
    pub(crate) prefix: u8,
    /// Longest prefix first; of equal ones, the one that was named first.
    routes: Vec<Route>,
}

impl Site {
    /// `gateway` forwards what no route is for.
    pub(crate) fn new(
        address: Ipv4Addr,
        prefix: u8,
        gateway: Option<Ipv4Addr>,
        routes: &[Route],
    ) -> Self {
        let mut routes = routes.to_vec();
        routes.extend(gateway.map(|via| Route {
            network: Ipv4Addr::UNSPECIFIED,
            prefix: 0,
            via,
        }));
        routes.sort_by_key(|route| core::cmp::Reverse(route.prefix));
        Site {
            address,
            prefix,
            routes,
        }
    }

    /// Who gets frames for `remote`, if anybody does: itself on our own network, or the gateway of
    /// the longest prefix that fits.
    pub(crate) fn next_hop(&self, remote: Ipv4Addr) -> Option<Ipv4Addr> {
        let fits = |at: Ipv4Addr, prefix| network(remote, prefix) == network(at, prefix);
        let routed = self
            .routes
            .iter()
            .find(|route| fits(route.network, route.prefix));
        match routed {
            Some(route) if route.prefix > self.prefix => Some(route.via),
            _ if fits(self.address, self.prefix) => Some(remote),
            other => other.map(|route| route.via),
        }
    }

    /// Whether no packet can truly come from `source` to `destination` over a link (RFC 1122
    /// section 3.2.1.3, RFC 1812 section 5.3.7, RFC 6890): from nobody, from this host, from
    /// several hosts, or from addresses that are not in use. Only a host that does not know its
    /// address yet may leave that out, in what it sends to everybody.
    #[inline]
    pub(crate) fn is_martian(&self, (source, destination): (Ipv4Addr, Ipv4Addr)) -> bool {
        match source.octets()[0] {
            0 => !(source.is_unspecified() && destination.is_broadcast()),
            127 | 224.. => true,
            _ => self.classify(source) != AddressKind::Remote,
        }
    }

    /// Whether `address` can be a single host that packets are sent to: what is said of sources in
    /// [`is_martian`](Self::is_martian) but for ourselves.
    pub(crate) fn is_one_host(&self, address: Ipv4Addr) -> bool {
        !matches!(address.octets()[0], 0 | 224..)
            && self.classify(address) != AddressKind::Broadcast
    }

    /// Whether packets for `address` would come back to us (RFC 1122 section 3.2.1.3, (g)): there
    /// is no way for them.
    pub(crate) fn is_ourselves(&self, address: Ipv4Addr) -> bool {
        address == self.address || address.is_loopback()
    }

    /// Whether `address` is ours, everybody's, or somebody else's (RFC 1122 section 3.2.1.3).
    pub(crate) fn classify(&self, address: Ipv4Addr) -> AddressKind {
        if address == self.address {
            return AddressKind::Local;
        }
        // A network of two (RFC 3021) or one has no broadcast address.
        let all_ones = network(self.address, self.prefix)
            | u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
        if address.is_broadcast() || self.prefix < 31 && address.to_bits() == all_ones {
            AddressKind::Broadcast
        } else {
            AddressKind::Remote
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);

    #[test]
    fn neighbours_are_reached_directly_and_others_through_the_gateway() {
        let site = Site::new(US, 24, Some(GATEWAY), &[]);
        let near = Ipv4Addr::new(10, 0, 0, 9);
        assert_eq!(site.next_hop(near), Some(near));
        assert_eq!(site.next_hop(Ipv4Addr::new(10, 0, 1, 9)), Some(GATEWAY));
        let far = Ipv4Addr::new(8, 8, 8, 8);
        assert_eq!(Site::new(US, 0, None, &[]).next_hop(far), Some(far));
        assert_eq!(Site::new(US, 24, None, &[]).next_hop(far), None);
    }

    #[test]
    fn the_longest_prefix_decides() {
        let route = |network: [u8; 4], prefix, last| Route {
            network: network.into(),
            prefix,
            via: Ipv4Addr::new(10, 0, 0, last),
        };
        let routes = [
            route([172, 16, 0, 0], 12, 2),
            route([172, 16, 5, 77], 24, 3),
            route([10, 0, 0, 64], 26, 4),
        ];
        let site = Site::new(US, 24, Some(GATEWAY), &routes);
        let via = |remote: [u8; 4]| site.next_hop(remote.into()).map(|hop| hop.octets()[3]);
        assert_eq!(via([172, 17, 0, 1]), Some(2));
        assert_eq!(via([172, 16, 5, 1]), Some(3));
        assert_eq!(via([10, 0, 0, 65]), Some(4));
        assert_eq!(via([10, 0, 0, 66]), Some(4));
        assert_eq!(via([10, 0, 0, 7]), Some(7));
        assert_eq!(via([9, 9, 9, 9]), Some(254));
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
}
