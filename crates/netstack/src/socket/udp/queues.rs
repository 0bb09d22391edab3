//! The queues of all groups of a stack for one socket.

use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use dominoes::{EventCount, Watch};

use super::{Received, UdpShared};
use crate::error::SocketError;
use crate::io::stream::{DeliveryCursor, StreamRef};
use crate::io::world::{Command, World};
use crate::ip::route::{AddressKind, Site};
use crate::log::request::{ALL_PORTS, Address, Endpoint, Flow};
use crate::socket::poller::{Interest, Target};
use crate::socket::shared::{Taken, UserId};
use crate::socket::wait::WaitUntil;
use crate::socket::{interfaces, valid_ttl};
use crate::time::Instant;
use crate::udp::record::More;

/// Wakes threads that wait for news of several queues.
#[derive(Debug, Default)]
pub(super) struct News {
    event: EventCount,
}

impl Watch for News {
    fn is_due(&self) -> bool {
        true
    }

    fn fire(self: Arc<Self>) {
        self.event.notify_all();
    }
}

/// A datagram to receive: the group of its queue, the queue, and the queue's cursor.
pub(super) type Oldest<'a> = (usize, StreamRef<'a>, Taken<'a, DeliveryCursor>);

impl UdpShared {
    /// All groups.
    pub(in crate::socket) fn worlds(&self) -> &[Arc<World>] {
        &self.worlds
    }

    /// The first group, whose settings hold for all groups with one device.
    pub(super) fn world(&self) -> &World {
        &self.worlds[0]
    }

    /// The queues of a group for this socket.
    pub(super) fn queue(&self, group: usize) -> Result<StreamRef<'_>, SocketError> {
        let world = &self.worlds[group];
        if world.is_down() {
            return Err(SocketError::Down);
        }
        // The place stays reserved until the socket is dropped.
        let queue = world.queues.streams.get(self.socket);
        queue.ok_or(SocketError::Aborted)
    }

    /// The group that sends to `remote`, or without it, to the peer.
    pub(super) fn group_of(&self, remote: Option<SocketAddr>) -> usize {
        if self.worlds.len() == 1 {
            return 0;
        }
        let peer = || self.remote.with(|remote| *remote);
        remote.or_else(peer).map_or(0, |remote| {
            let interface = self.interface;
            let interface = interface.or_else(|| interfaces::towards(&self.worlds, remote));
            let groups = interfaces::groups_of(&self.worlds, interface.unwrap_or(0));
            if groups.len() == 1 {
                return groups.start;
            }
            let flow = Flow {
                local: Endpoint::new(Address::UNSPECIFIED, self.port),
                remote: remote.into(),
            };
            groups.start + usize::from(self.grouping.group(&flow))
        })
    }

    /// All groups, beginning with `first`, or else with the next in turn.
    pub(super) fn in_turn(&self, first: Option<usize>) -> impl Iterator<Item = usize> + use<> {
        let count = self.worlds.len();
        let first = first.unwrap_or_else(|| self.next.load(Ordering::Relaxed));
        (first..first + count).map(move |group| group % count)
    }

    /// Returns an error that the network reported, unless a call has returned it before.
    pub(super) fn take_error(&self) -> Result<(), SocketError> {
        let mut worlds = self.worlds.iter();
        worlds.try_for_each(|world| world.queues.take_error(self.socket))
    }

    /// Whether the network reported an error that no call has returned.
    pub(super) fn has_error(&self) -> bool {
        let mut worlds = self.worlds.iter();
        worlds.any(|world| world.queues.has_error(self.socket))
    }

    /// Finds a datagram for `user`: first in the queue of group `first`, or of the next group in
    /// turn, then in other queues.
    pub(super) fn oldest(
        &self,
        user: UserId,
        first: Option<usize>,
    ) -> Result<Oldest<'_>, SocketError> {
        self.queue(0)?;
        self.take_error()?;
        for group in self.in_turn(first) {
            if let Some((queue, seen)) = self.follow(user, group)?
                && Received::first(queue.received(&seen)).is_ok()
            {
                return Ok((group, queue, seen));
            }
        }
        Err(SocketError::WouldBlock)
    }

    /// Returns the queue of a group, and its cursor up to the end of the arrived datagrams;
    /// `None` while another user has borrowed a datagram there.
    pub(super) fn follow(
        &self,
        user: UserId,
        group: usize,
    ) -> Result<Option<(StreamRef<'_>, Taken<'_, DeliveryCursor>)>, SocketError> {
        let queue = self.queue(group)?;
        let reader = &self.readers[group];
        let Ok(mut seen) = reader.take_or(user, queue.waiting(), || queue.missed()) else {
            return Ok(None);
        };
        queue.follow(&mut seen);
        seen.end = seen.arrived;
        Ok(Some((queue, seen)))
    }

    /// Notes that a datagram was taken from the queue of `group`.
    pub(super) fn taken(&self, group: usize) {
        if self.worlds.len() > 1 {
            let next = (group + 1) % self.worlds.len();
            self.next.store(next, Ordering::Relaxed);
        }
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.world().local_address(self.binding).ip(), self.port)
    }

    /// The object that a poller checks.
    pub(in crate::socket) fn target(&self, can: Interest) -> Target {
        Target::Datagrams {
            worlds: Arc::clone(&self.worlds),
            socket: self.socket,
            can,
        }
    }

    /// Tries to receive until a datagram arrives, an error occurs or the time is over.
    pub(super) fn receiving<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, SocketError>,
    ) -> Result<T, SocketError> {
        let until = self.read_wait.begin();
        if self.worlds.len() == 1 {
            return until.retry(self.world(), self.queue(0)?.waiting(), attempt);
        }
        let watch = || {
            for group in self.in_turn(None) {
                if let Ok(queue) = self.queue(group) {
                    queue.waiting().watch(&self.watch);
                }
            }
        };
        until.retry(self.world(), &self.news.event, || {
            watch();
            attempt()
        })
    }

    /// As [`UdpShared::receiving`], for sending to `remote` or the peer.
    pub(super) fn sending(
        &self,
        until: WaitUntil,
        remote: Option<SocketAddr>,
        attempt: impl FnMut() -> Result<(), SocketError>,
    ) -> Result<(), SocketError> {
        let queue = self.queue(self.group_of(remote))?;
        until.retry(self.world(), queue.waiting(), attempt)
    }

    /// What precedes the record of a datagram from `local`, for a socket at all ports.
    pub(super) fn local(
        &self,
        world: &World,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<More, SocketError> {
        let address = Address::from(local.ip());
        if self.port != ALL_PORTS || local.is_ipv4() != remote.is_ipv4() {
            return Err(SocketError::Invalid);
        }
        if local.port() == 0 {
            return Err(SocketError::PortZero);
        }
        if !world.with_site_for(address, |site| site.takes(address)) {
            return Err(SocketError::NotOurs);
        }
        Ok(More {
            local: local.into(),
            arrived: Instant::ZERO,
        })
    }

    /// Checks whether a datagram may be sent to `remote`.
    pub(super) fn check(&self, remote: SocketAddr) -> Result<(), SocketError> {
        let address = Address::from(remote.ip());
        let mut world = self.world();
        if world.shared.has_interfaces() {
            world = &self.worlds[self.group_of(Some(remote))];
        }
        let is_up = !world.is_link_down();
        world.with_site_for(address, |site| self.check_at(site, is_up, remote))
    }

    fn check_at(&self, site: &Site, is_up: bool, remote: SocketAddr) -> Result<(), SocketError> {
        let address = Address::from(remote.ip());
        if remote.port() == 0 {
            return Err(SocketError::PortZero);
        }
        let bound = self.binding.address;
        if bound.is_some_and(|bound| !site.is_ourselves(bound)) {
            return Err(SocketError::NotOurs);
        }
        let families = self.binding.families;
        if !families.include(address) || !address.is_v4() && site.source(address).is_none() {
            return Err(SocketError::NoRoute);
        }
        if site.is_ourselves(address) {
            return Ok(());
        }
        // A socket at an address local to this host can only send to this host.
        if !is_up
            || address.ip().is_loopback()
            || bound.is_some_and(|bound| bound.ip().is_loopback())
        {
            return Err(SocketError::NoRoute);
        }
        if address.is_multicast() {
            return Ok(());
        }
        match site.classify(address) {
            AddressKind::Broadcast if !self.broadcast.load(Ordering::Relaxed) => {
                Err(SocketError::NotAllowed)
            }
            AddressKind::Broadcast => Ok(()),
            _ if !site.is_one_host(address) => Err(SocketError::Unreachable),
            _ if site.next_hop(address).is_some() => Ok(()),
            _ => Err(SocketError::NoRoute),
        }
    }

    /// Stores the peer's end, and notifies the pump.
    pub(super) fn connect(&self, remote: Option<SocketAddr>) -> Result<(), SocketError> {
        if let Some(remote) = remote {
            self.check(remote)?;
        }
        // In one step, so that the socket and the pumps agree if several threads connect at once.
        self.remote.with(|place| {
            *place = remote;
            for world in &*self.worlds {
                world.command(Command::Connect {
                    socket: self.socket,
                    remote: remote.map(Into::into),
                });
            }
        });
        Ok(())
    }

    pub(super) fn set_ttl(&self, ttl: u32) -> Result<(), SocketError> {
        self.ttl.store(valid_ttl(ttl)?, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for UdpShared {
    fn drop(&mut self) {
        let mut table = self.worlds[0].socket_table();
        let socket = self.socket;
        table.bindings.unbind(socket);
        for world in &*self.worlds {
            if let Some(queue) = world.queues.streams.get(socket) {
                queue.waiting().unwatch(&self.watch);
            }
            world.command(Command::Unbind { socket });
        }
    }
}
