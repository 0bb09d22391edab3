//! Multicast groups that UDP sockets listen to (RFC 1112, RFC 3376, RFC 3810, RFC 4607).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::io;

use super::udp::{UdpShared, UdpSocket};
use crate::error::SocketError;
use crate::io::world::Command;
use crate::ip::multicast::Member;
use crate::log::request::Address;

/// Groups and sources that a socket listens to, at most.
const MAX_MEMBERSHIPS: usize = 64;

impl UdpSocket {
    /// Listens to `group`, whoever sends to it. Datagrams of the group at the socket's port then
    /// arrive as others do; routers are told (IGMPv3). `interface` is 0.0.0.0, or the address of
    /// the stack. The device has to let frames for the group pass.
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
    /// [`SocketError::Invalid`] if it is no group, or one that the socket listens to already;
    /// [`SocketError::NoRoute`] for another interface, or if the stack or the socket has no IPv4;
    /// [`SocketError::NoRoom`] after 64 groups and sources; [`SocketError::Down`].
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.shared().check_interface(*interface)?;
        Ok(self.shared().join((*group).into(), None)?)
    }

    /// As [`UdpSocket::join_multicast_v4`], for IPv6 (MLDv2). `interface` is 0: there is one.
    ///
    /// # Errors
    /// As [`UdpSocket::join_multicast_v4`].
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        check_index(interface)?;
        Ok(self.shared().join((*group).into(), None)?)
    }

    /// Ends what [`UdpSocket::join_multicast_v4`] began. A socket that is dropped leaves its groups.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if the socket does not listen to all sources of the group;
    /// [`SocketError::NoRoute`] for another interface.
    pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.shared().check_interface(*interface)?;
        Ok(self.shared().leave((*group).into(), None)?)
    }

    /// As [`UdpSocket::leave_multicast_v4`], for IPv6.
    ///
    /// # Errors
    /// As [`UdpSocket::leave_multicast_v4`].
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        check_index(interface)?;
        Ok(self.shared().leave((*group).into(), None)?)
    }

    /// Listens to what `source` sends to `group` (RFC 4607). A socket may listen to several sources
    /// of a group.
    ///
    /// # Errors
    /// As [`UdpSocket::join_multicast_v4`]; [`SocketError::Invalid`] as well if both are of
    /// different families, if `source` is no single host, or if the socket listens to all sources.
    pub fn join_source(&self, group: IpAddr, source: IpAddr) -> io::Result<()> {
        Ok(self.shared().join(group, Some(source.into()))?)
    }

    /// Ends what [`UdpSocket::join_source`] began.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if the socket does not listen to this source.
    pub fn leave_source(&self, group: IpAddr, source: IpAddr) -> io::Result<()> {
        Ok(self.shared().leave(group, Some(source.into()))?)
    }
}

/// There is one interface, and its number is 0.
fn check_index(interface: u32) -> Result<(), SocketError> {
    match interface {
        0 => Ok(()),
        _ => Err(SocketError::NoRoute),
    }
}

impl UdpShared {
    fn check_interface(&self, interface: Ipv4Addr) -> Result<(), SocketError> {
        match interface.is_unspecified() || self.world().site.address == Address::from(interface) {
            true => Ok(()),
            false => Err(SocketError::NoRoute),
        }
    }

    fn join(&self, group: IpAddr, source: Option<Address>) -> Result<(), SocketError> {
        let world = self.world();
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
            true => world.site.has_v4(),
            false => world.shared.v6_version() > 0,
        };
        if !has_family || !self.families.include(group) {
            return Err(SocketError::NoRoute);
        }
        if world.is_down() {
            return Err(SocketError::Down);
        }
        self.groups.with(|groups| {
            let mut of_group = groups.iter().filter(|(of, _)| *of == group);
            // All sources, or some: not both.
            let is_taken =
                |known: Option<Address>| known == source || known.is_none() != source.is_none();
            if of_group.any(|(_, known)| is_taken(*known)) {
                return Err(SocketError::Invalid);
            }
            if groups.len() == MAX_MEMBERSHIPS {
                return Err(SocketError::NoRoom);
            }
            groups.push((group, source));
            self.tell((group, source), true);
            Ok(())
        })
    }

    fn leave(&self, group: IpAddr, source: Option<Address>) -> Result<(), SocketError> {
        let what = (Address::from(group), source);
        self.groups.with(|groups| {
            let at = groups.iter().position(|known| *known == what);
            groups.swap_remove(at.ok_or(SocketError::Invalid)?);
            self.tell(what, false);
            Ok(())
        })
    }

    /// Tells the pump, in the order of the calls.
    fn tell(&self, (group, source): (Address, Option<Address>), listens: bool) {
        let member = Member {
            socket: self.socket,
            group,
            source,
        };
        self.world().command(Command::Member { member, listens });
    }
}
