//! The interfaces of a stack: the choice among several for a packet, and their changes.

use core::net::{IpAddr, SocketAddr};
use core::ops::Range;
use std::sync::Arc;

use super::Sockets;
use crate::error::SocketError;
use crate::io::rx::addresses::InterfaceChange;
use crate::io::world::{Command, World};
use crate::ip::route::{MAX_ADDRESSES, MAX_ROUTES, Route, may_be_ours_v4};
use crate::ip::v6::may_be_ours;
use crate::log::request::Address;

/// A snapshot of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InterfaceStatus {
    /// Its link-layer address.
    pub mac: [u8; 6],
    /// The most bytes of a packet.
    pub mtu: u16,
    /// Whether its link is up: no call has set it down, and the device accepts frames, as far as
    /// it reports this.
    pub is_up: bool,
    /// Its addresses; IPv6 addresses only once no other host is known to have them.
    pub addresses: Vec<IpAddr>,
    /// Servers of names that the link has: of DHCP, of DHCPv6, and of router advertisements (RFC
    /// 8106).
    pub dns_servers: Vec<IpAddr>,
    /// Domains in which names are looked up, from these sources.
    pub search_domains: Vec<String>,
}

impl Sockets {
    /// The interfaces of the stack, in the order of their numbers; the first is 1.
    pub fn interfaces(&self) -> Vec<InterfaceStatus> {
        let status = |world: &Arc<World>| {
            let v4 = world.addresses_v4();
            let v6 = world.v6().addresses.into_iter().map(|own| own.address);
            let names = world.names();
            InterfaceStatus {
                mac: world.mac,
                mtu: world.limits.mtu,
                is_up: !world.is_link_down() && !world.is_device_refusing(),
                addresses: v4.into_iter().chain(v6).map(Address::ip).collect(),
                dns_servers: names.servers.into_iter().map(Address::ip).collect(),
                search_domains: names.domains,
            }
        };
        self.first_groups().map(status).collect()
    }

    /// Adds an address to the interface with this number; the first is 1. The first `prefix` bits
    /// of the address name its network. The stack uses an IPv4 address as soon as it has
    /// processed the call, and an IPv6 address once it knows that no other host has it, which
    /// takes a second or two. An interface has up to 64 addresses of each family. Packets of IPv4
    /// come from the address on the network of their next hop, or else from the first address; if
    /// the first is removed, the next one becomes the first. A device that accepts frames for
    /// certain addresses only (AF_XDP) then accepts this one, too; if it fails, the error is
    /// among the errors of the device. Never blocks.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if there is no such interface, the address is not the address of
    /// a single host, the prefix is longer than an address, or the interface has no IPv6;
    /// [`SocketError::AddressTaken`] if the stack has it; [`SocketError::TooManyAddresses`] if
    /// the interface has 64 of this family; [`SocketError::Down`].
    pub fn add_address(
        &self,
        interface: u32,
        address: IpAddr,
        prefix: u8,
    ) -> Result<(), SocketError> {
        self.check_up()?;
        let group = self.numbered(interface)?;
        let world = &self.worlds()[group];
        let is_possible = match address {
            IpAddr::V4(address) => prefix <= 32 && may_be_ours_v4(address),
            IpAddr::V6(address) => prefix <= 128 && may_be_ours(address) && world.has_v6(),
        };
        if !is_possible {
            return Err(SocketError::Invalid);
        }
        if with_address(self.worlds(), address.into()).is_some() {
            return Err(SocketError::AddressTaken);
        }
        let count = match address {
            IpAddr::V4(_) => world.addresses_v4().len(),
            IpAddr::V6(_) => world.v6().addresses.len(),
        };
        if count >= MAX_ADDRESSES {
            return Err(SocketError::TooManyAddresses);
        }
        self.change(group, InterfaceChange::Add { address, prefix });
        Ok(())
    }

    /// Removes an address from its interface. Its connections end with
    /// [`SocketError::AddressLost`]; their peers get no message, since the stack may no longer
    /// send from the address. Listeners and UDP sockets stay, even those bound to the address: if
    /// the address is added again, they can be reached again. Never blocks.
    ///
    /// ```
    /// use dominoes_drivers::memory::{self, MemoryConfig};
    /// use dominoes_netstack::Stack;
    ///
    /// let (device, _peer) = memory::pair(MemoryConfig::default());
    /// let stack = Stack::builder("10.0.0.1/24").start(device)?;
    /// let sockets = stack.sockets();
    /// sockets.remove_address([10, 0, 0, 1].into())?;
    /// while !sockets.interfaces()[0].addresses.is_empty() {
    ///     std::thread::yield_now();
    /// }
    /// sockets.add_address(1, [10, 0, 0, 9].into(), 24)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SocketError::NotOurs`], [`SocketError::Down`].
    pub fn remove_address(&self, address: IpAddr) -> Result<(), SocketError> {
        self.check_up()?;
        let found = match address.is_loopback() {
            true => None,
            false => with_address(self.worlds(), address.into()),
        };
        let index = found.ok_or(SocketError::NotOurs)?;
        let group = self.groups_of(index).start;
        self.change(group, InterfaceChange::Remove { address });
        Ok(())
    }

    /// Sets the link of the interface with this number up or down; the first is 1. While the link
    /// is down, the interface neither receives nor sends. Opens and datagrams to its networks
    /// return [`SocketError::NoRoute`]. Packets under way are lost, so connections wait for
    /// retransmissions, or time out. Addresses stay. When the link is up again, the stack asks
    /// for neighbours and routers again and announces its addresses. It also does so when a
    /// device that was down accepts frames again. Never blocks.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if there is no such interface; [`SocketError::Down`].
    pub fn set_link_up(&self, interface: u32, is_up: bool) -> Result<(), SocketError> {
        self.check_up()?;
        let group = self.numbered(interface)?;
        self.change(group, InterfaceChange::Link { is_up });
        Ok(())
    }

    /// Gives the lease of DHCP back (RFC 2131 section 4.4.6), and asks for no other; or asks again.
    /// The interface has this number; the first is 1. An interface whose address is `dhcp` asks
    /// from its start; others never do.
    ///
    /// The stack takes the first offer, renews the lease in time, and uses its address, gateways
    /// (after the configured ones), servers of names, and MTU from 576 bytes on. It takes no
    /// address that answers ARP. If the lease ends or a server refuses it, the address is lost as
    /// by [`Sockets::remove_address`]. Opens without a source address wait for the first lease,
    /// up to about a minute. Never blocks.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if there is no such interface; [`SocketError::Down`].
    pub fn set_dhcp(&self, interface: u32, is_on: bool) -> Result<(), SocketError> {
        self.check_up()?;
        let group = self.numbered(interface)?;
        self.change(group, InterfaceChange::Dhcp { is_on });
        Ok(())
    }

    /// The servers of names and domains that the links have.
    #[cfg(feature = "dns")]
    pub(super) fn names(&self) -> (Vec<SocketAddr>, Vec<String>) {
        use crate::packet::dns;

        let mut servers = Vec::new();
        let mut domains = Vec::new();
        for (index, world) in self.first_groups().enumerate() {
            let names = world.names();
            let first = self.groups_of(index).start;
            let ends = names.servers.iter();
            let ends = ends.map(|server| SocketAddr::new(server.ip(), dns::PORT));
            servers.extend(ends.map(|end| scoped(self.worlds(), end, first)));
            domains.extend(names.domains);
        }
        (servers, domains)
    }

    /// The routes of the stack, in the order of lookup, each with the number of its interface (the
    /// first is 1): by interface, IPv4 before IPv6, the longest prefix first, then the lowest
    /// metric. They include the networks of its addresses, whose gateway is 0.0.0.0 or `::`, and for
    /// IPv6 the routers that advertise themselves.
    pub fn routes(&self) -> Vec<(u32, Route)> {
        let mut routes = Vec::new();
        for (number, world) in (1..).zip(self.first_groups()) {
            world.with_site(|site| {
                let all = [true, false].map(|is_v4| site.all_routes(is_v4));
                routes.extend(all.into_iter().flatten().map(|route| (number, route)));
            });
        }
        routes
    }

    /// Sends packets of the interface with this number (the first is 1) to a network through a
    /// gateway, which is a neighbour. The longest prefix decides, then the lowest metric, then
    /// the route that was added first; if that route is removed, the next one replaces it. Prefix
    /// and metric also choose among several interfaces. New connections use the route as soon as
    /// the stack has processed the call. Existing connections of this interface whose next hop
    /// changes use the new next hop once its link-layer address is known; they never change their
    /// interface. Never blocks.
    ///
    /// ```
    /// use dominoes_drivers::memory::{self, MemoryConfig};
    /// use dominoes_netstack::Stack;
    /// use dominoes_netstack::Route;
    ///
    /// let (device, _peer) = memory::pair(MemoryConfig::default());
    /// let stack = Stack::builder("10.0.0.1/24").start(device)?;
    /// let sockets = stack.sockets();
    /// let route = Route {
    ///     network: [10, 9, 0, 0].into(),
    ///     prefix: 16,
    ///     via: [10, 0, 0, 254].into(),
    ///     metric: 0,
    /// };
    /// sockets.add_route(1, route)?;
    /// while sockets.routes().len() < 2 {
    ///     std::thread::yield_now();
    /// }
    /// sockets.remove_route(1, route)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if there is no such interface, the families of gateway and
    /// network differ, the prefix is longer than an address, or the interface has no IPv6;
    /// [`SocketError::NotNeighbor`] if the gateway is on no network of the interface;
    /// [`SocketError::RouteTaken`] if the interface has the route; [`SocketError::TooManyRoutes`]
    /// if it has 1,024 other routes of this family; [`SocketError::Down`].
    pub fn add_route(&self, interface: u32, route: Route) -> Result<(), SocketError> {
        self.check_up()?;
        let group = self.numbered(interface)?;
        let world = &self.worlds()[group];
        let is_v4 = route.network.is_ipv4();
        if !route.is_sound() || !is_v4 && !world.has_v6() {
            return Err(SocketError::Invalid);
        }
        let via = Address::from(route.via);
        world.with_site_for(via, |site| {
            let is_near = site.is_one_host(via) && site.next_hop(via) == Some(via);
            if !is_near || site.is_ourselves(via) {
                return Err(SocketError::NotNeighbor);
            }
            let known = site.routes(is_v4);
            if known.iter().any(|known| known.is_same(&route)) {
                return Err(SocketError::RouteTaken);
            }
            match known.len() {
                MAX_ROUTES.. => Err(SocketError::TooManyRoutes),
                _ => Ok(()),
            }
        })?;
        self.change(group, InterfaceChange::AddRoute(route));
        Ok(())
    }

    /// Removes a route that [`Sockets::add_route`] added, or that the interface had at the start.
    /// Connections follow the remaining routes. Without a route, existing connections keep their
    /// next hop, and new ones fail with [`SocketError::NoRoute`]. Never blocks.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if there is no such interface; [`SocketError::NoSuchRoute`],
    /// [`SocketError::Down`].
    pub fn remove_route(&self, interface: u32, route: Route) -> Result<(), SocketError> {
        self.check_up()?;
        let group = self.numbered(interface)?;
        let world = &self.worlds()[group];
        let is_known = world.with_site_for(route.network.into(), |site| {
            let mut known = site.routes(route.network.is_ipv4()).iter();
            known.any(|known| known.is_same(&route))
        });
        if !is_known {
            return Err(SocketError::NoSuchRoute);
        }
        self.change(group, InterfaceChange::RemoveRoute(route));
        Ok(())
    }

    /// The first group of each interface.
    pub(super) fn first_groups(&self) -> impl Iterator<Item = &Arc<World>> {
        first_groups(self.worlds())
    }

    /// The range of an interface's groups among all groups.
    pub(super) fn groups_of(&self, interface: usize) -> Range<usize> {
        groups_of(self.worlds(), interface)
    }

    /// The first group of the interface with this number.
    fn numbered(&self, interface: u32) -> Result<usize, SocketError> {
        let index = index_of(self.worlds(), interface).ok_or(SocketError::Invalid)?;
        Ok(self.groups_of(index).start)
    }

    /// Sends a change to all groups of the interface whose first group is `group`.
    fn change(&self, group: usize, change: InterfaceChange) {
        let each = self.world().shared.groups_each();
        // The table's lock gives all groups the same order of changes.
        let _table = self.world().socket_table();
        for world in &self.worlds()[group..group + each] {
            world.command(Command::Interface(change));
        }
    }
}

/// The interface towards `remote`, if there are several: the one that has this address or that
/// its scope names (RFC 4007 section 6); otherwise the one with the longest matching prefix, then
/// with the lowest metric, then the first. The first if no route leads there.
pub(super) fn towards(worlds: &[Arc<World>], remote: SocketAddr) -> Option<usize> {
    if !worlds[0].shared.has_interfaces() {
        return None;
    }
    if let SocketAddr::V6(remote) = remote
        && let Some(index) = index_of(worlds, remote.scope_id())
    {
        return Some(index);
    }
    let address = Address::from(remote.ip());
    if let Some(own) = with_address(worlds, address) {
        return Some(own);
    }
    let mut best = (0, None);
    for (index, world) in first_groups(worlds).enumerate() {
        let way = match world.is_link_down() {
            true => None,
            false => world.with_site_for(address, |site| site.way(address)),
        };
        let rank = way.map(|way| way.rank());
        if rank > best.1 {
            best = (index, rank);
        }
    }
    Some(best.0)
}

/// The first group of each interface.
pub(super) fn first_groups(worlds: &[Arc<World>]) -> impl Iterator<Item = &Arc<World>> {
    worlds.iter().step_by(worlds[0].shared.groups_each())
}

/// The range of an interface's groups among all groups.
pub(super) fn groups_of(worlds: &[Arc<World>], interface: usize) -> Range<usize> {
    let each = worlds[0].shared.groups_each();
    interface * each..(interface + 1) * each
}

/// The index of the interface with this number; 1 is the first.
pub(super) fn index_of(worlds: &[Arc<World>], number: u32) -> Option<usize> {
    let index = usize::try_from(number).ok()?.checked_sub(1)?;
    (index < first_groups(worlds).count()).then_some(index)
}

/// The number of a group's interface; 1 is the first.
pub(super) fn number_of(worlds: &[Arc<World>], group: usize) -> u32 {
    (group / worlds[0].shared.groups_each()) as u32 + 1
}

/// The interface that has `address`, or the first one if the address is local to this host.
pub(super) fn with_address(worlds: &[Arc<World>], address: Address) -> Option<usize> {
    first_groups(worlds).position(|world| {
        world.with_site_for(address, |site| {
            site.is_ourselves(address) || site.v6.tentative.contains(&address)
        })
    })
}

/// Returns the address of a packet's sender in the form in which the application can use it: with
/// the number of the interface if the address is valid only there.
pub(super) fn scoped(worlds: &[Arc<World>], address: SocketAddr, group: usize) -> SocketAddr {
    match address {
        SocketAddr::V6(mut v6)
            if v6.ip().is_unicast_link_local() && worlds[0].shared.has_interfaces() =>
        {
            v6.set_scope_id(number_of(worlds, group));
            v6.into()
        }
        other => other,
    }
}
