//! Multicast groups that UDP sockets listen to (RFC 1112, RFC 3376, RFC 3810, RFC 4607).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering;
use std::io;
use std::sync::Arc;

use super::interfaces;
use super::udp::{UdpShared, UdpSocket};
use crate::error::SocketError;
use crate::io::world::{Command, World};
use crate::ip::multicast::Member;
use crate::log::request::Address;

/// A group that a socket listens to on an interface, with a source or with all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JoinedGroup {
    interface: usize,
    group: Address,
    source: Option<Address>,
}

/// The most groups and sources per socket.
const MAX_MEMBERSHIPS: usize = 64;

impl UdpSocket {
    /// Listens to `group`, from any sender. Datagrams to the group at the socket's port then
    /// arrive as others do; routers are notified (IGMPv3). `interface` is the address of an
    /// interface of the stack, or 0.0.0.0 for the first one. The device must accept frames for
    /// the group.
    ///
    /// ```
    /// use std::net::Ipv4Addr;
    /// use dominoes_drivers::memory;
    /// use dominoes_netstack::Stack;
    ///
    /// let (device, _other) = memory::pair(Default::default());
    /// let stack = Stack::builder("10.0.0.1/24").start(device)?;
    /// let socket = stack.bind_udp(5353)?;
    /// socket.join_multicast_v4(&Ipv4Addr::new(224, 0, 0, 251), &Ipv4Addr::UNSPECIFIED)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is no group, or the socket already listens to it;
    /// [`SocketError::NoRoute`] for another interface, or if the stack or the socket has no IPv4;
    /// [`SocketError::TooManyGroups`] after 64 groups and sources; [`SocketError::Down`].
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        let interface = self.shared().interface_v4(*interface)?;
        Ok(self.shared().join(interface, (*group).into(), None)?)
    }

    /// As [`UdpSocket::join_multicast_v4`], for IPv6 (MLDv2). `interface` is the number of an
    /// interface: 1 is the first, 0 any.
    ///
    /// # Errors
    /// As [`UdpSocket::join_multicast_v4`].
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        let interface = self.shared().interface_v6(interface)?;
        Ok(self.shared().join(interface, (*group).into(), None)?)
    }

    /// Ends [`UdpSocket::join_multicast_v4`]. A dropped socket leaves its groups.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if the socket does not listen to all sources of the group;
    /// [`SocketError::NoRoute`] for another interface.
    pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        let interface = self.shared().interface_v4(*interface)?;
        Ok(self.shared().leave(interface, (*group).into(), None)?)
    }

    /// As [`UdpSocket::leave_multicast_v4`], for IPv6.
    ///
    /// # Errors
    /// As [`UdpSocket::leave_multicast_v4`].
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        let interface = self.shared().interface_v6(interface)?;
        Ok(self.shared().leave(interface, (*group).into(), None)?)
    }

    /// Listens to datagrams from `source` to `group` (RFC 4607), on the interface towards the
    /// source. A socket may listen to several sources of a group.
    ///
    /// # Errors
    /// As [`UdpSocket::join_multicast_v4`]; [`SocketError::Invalid`] also if the families differ,
    /// if `source` is no single host, or if the socket listens to all sources.
    pub fn join_source(&self, group: IpAddr, source: IpAddr) -> io::Result<()> {
        let interface = self.shared().interface_of(source);
        let source = Some(source.into());
        Ok(self.shared().join(interface, group, source)?)
    }

    /// Ends [`UdpSocket::join_source`].
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if the socket does not listen to this source.
    pub fn leave_source(&self, group: IpAddr, source: IpAddr) -> io::Result<()> {
        let interface = self.shared().interface_of(source);
        let source = Some(source.into());
        Ok(self.shared().leave(interface, group, source)?)
    }

    /// Whether datagrams of this socket to IPv4 groups also go to sockets of its stack, this one
    /// included, that listen to the group on the outgoing interface (RFC 1112 section 6.1).
    /// Default: yes.
    ///
    /// # Errors
    /// None as yet.
    pub fn set_multicast_loop_v4(&self, multicast_loop_v4: bool) -> io::Result<()> {
        let loops = &self.shared().loops_v4;
        loops.store(multicast_loop_v4, Ordering::Relaxed);
        Ok(())
    }

    /// As [`UdpSocket::set_multicast_loop_v4`] set it.
    ///
    /// # Errors
    /// None as yet.
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        Ok(self.shared().loops_v4.load(Ordering::Relaxed))
    }

    /// As [`UdpSocket::set_multicast_loop_v4`], of groups of IPv6.
    ///
    /// # Errors
    /// None as yet.
    pub fn set_multicast_loop_v6(&self, multicast_loop_v6: bool) -> io::Result<()> {
        let loops = &self.shared().loops_v6;
        loops.store(multicast_loop_v6, Ordering::Relaxed);
        Ok(())
    }

    /// As [`UdpSocket::set_multicast_loop_v6`] set it.
    ///
    /// # Errors
    /// None as yet.
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        Ok(self.shared().loops_v6.load(Ordering::Relaxed))
    }
}

impl UdpShared {
    /// The interface that has an address; with none, the first that has IPv4.
    fn interface_v4(&self, address: Ipv4Addr) -> Result<usize, SocketError> {
        let worlds = self.worlds();
        let interface = match address.is_unspecified() {
            true => self.some_interface(|world| world.v4().address.is_v4()),
            // No groups exist on this host alone.
            false if address.is_loopback() => None,
            false => interfaces::with_address(worlds, address.into()),
        };
        interface.ok_or(SocketError::NoRoute)
    }

    /// The interface with a number; with 0, the first that has IPv6.
    fn interface_v6(&self, number: u32) -> Result<usize, SocketError> {
        let interface = match number {
            0 => self.some_interface(World::has_v6),
            _ => interfaces::index_of(self.worlds(), number),
        };
        interface.ok_or(SocketError::NoRoute)
    }

    fn some_interface(&self, has: impl Fn(&World) -> bool) -> Option<usize> {
        interfaces::first_groups(self.worlds()).position(|world| has(world))
    }

    /// The groups of an interface.
    fn groups_at(&self, interface: usize) -> &[Arc<World>] {
        &self.worlds()[interfaces::groups_of(self.worlds(), interface)]
    }

    /// The interface towards a host.
    fn interface_of(&self, host: IpAddr) -> usize {
        interfaces::towards(self.worlds(), SocketAddr::new(host, 0)).unwrap_or(0)
    }

    fn join(
        &self,
        interface: usize,
        group: IpAddr,
        source: Option<Address>,
    ) -> Result<(), SocketError> {
        let world = &self.groups_at(interface)[0];
        let group = Address::from(group);
        let is_host = |source: Address| {
            source.is_v4() == group.is_v4()
                && world.with_site(|site| site.is_one_host(source))
                && !source.ip().is_loopback()
        };
        if !group.is_multicast() || !source.is_none_or(is_host) {
            return Err(SocketError::Invalid);
        }
        let has_family = match group.is_v4() {
            true => world.v4().address.is_v4(),
            false => world.has_v6(),
        };
        if !has_family || !self.binding.families.include(group) {
            return Err(SocketError::NoRoute);
        }
        if world.is_down() {
            return Err(SocketError::Down);
        }
        let new = JoinedGroup {
            interface,
            group,
            source,
        };
        self.groups.with(|groups| {
            let same = |of: &&JoinedGroup| (of.interface, of.group) == (interface, group);
            let mut of_group = groups.iter().filter(same);
            // A socket listens to all sources of a group or to some, not both.
            let is_taken =
                |known: Option<Address>| known == source || known.is_none() != source.is_none();
            if of_group.any(|known| is_taken(known.source)) {
                return Err(SocketError::Invalid);
            }
            if groups.len() == MAX_MEMBERSHIPS {
                return Err(SocketError::TooManyGroups);
            }
            groups.push(new);
            self.tell(new, true);
            Ok(())
        })
    }

    fn leave(
        &self,
        interface: usize,
        group: IpAddr,
        source: Option<Address>,
    ) -> Result<(), SocketError> {
        let what = JoinedGroup {
            interface,
            group: group.into(),
            source,
        };
        self.groups.with(|groups| {
            let at = groups.iter().position(|known| *known == what);
            groups.swap_remove(at.ok_or(SocketError::Invalid)?);
            self.tell(what, false);
            Ok(())
        })
    }

    /// Notifies the pumps, in the order of the calls.
    fn tell(&self, membership: JoinedGroup, listens: bool) {
        let member = Member {
            socket: self.socket,
            group: membership.group,
            source: membership.source,
        };
        for world in self.groups_at(membership.interface) {
            world.command(Command::Member { member, listens });
        }
    }
}
