//! UDP sockets (RFC 768, RFC 1122 section 4.1).
//!
//! As streams do, they move cursors of shared rings and publish nothing. What a socket sends is on
//! its way when the call returns, in the order of the calls; what arrives waits in a bounded queue,
//! and is dropped and counted when that is full.
//!
//! In a stack of several groups each group has queues of its own for every socket. A peer's
//! datagrams arrive in the group that the hash of the flow names, and what is sent to the peer
//! leaves from there; so both keep their order, and peers spread over the groups. A call that
//! receives looks at the queues in turn.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::io;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::Duration;

use dominoes::{EventCount, Watch};

use super::current::each_address;
use super::interfaces;
use super::multicast::Membership;
use super::poller::{Interest, Target, Watched};
use super::shared::{Shared, Taken, UserId};
use super::wait::{WaitPolicy, WaitUntil};
use super::{Sockets, valid_ttl};
use crate::error::SocketError;
use crate::io::stream::{DeliveryCursor, StreamRef};
use crate::io::world::{Command, World};
use crate::ip::route::{AddressKind, Site};
use crate::keys::Domain;
use crate::log::request::{Address, ConnId, Endpoint, Families, Flow};
use crate::state::demux::Grouping;
use crate::udp::record::{self, HEADER, Header, MAX_PAYLOAD};

/// Time to live of what we send, unless told otherwise (RFC 1122 section 3.2.1.7).
const TTL: u8 = 64;

impl Sockets {
    /// A UDP socket at `port`, or with 0 at a port that is free. Never blocks.
    ///
    /// # Errors
    /// [`SocketError::PortTaken`], [`SocketError::NoRoom`], [`SocketError::Down`].
    pub fn bind_udp(&self, port: u16) -> Result<UdpSocket, SocketError> {
        self.bind_udp_for(Families::Both, port)
    }

    /// As [`Sockets::bind_udp`], for datagrams of `families` alone. A port has one socket, whomever
    /// it is for.
    ///
    /// # Errors
    /// As [`Sockets::bind_udp`].
    pub fn bind_udp_for(&self, families: Families, port: u16) -> Result<UdpSocket, SocketError> {
        self.bind_udp_at(None, families, port)
    }

    /// As [`Sockets::bind_udp_for`], at one interface if there are several.
    pub(super) fn bind_udp_at(
        &self,
        interface: Option<usize>,
        families: Families,
        port: u16,
    ) -> Result<UdpSocket, SocketError> {
        self.check_up()?;
        let world = self.world();
        let mut table = world.socket_table();
        let random = |count| world.random_port(Domain::UdpPort, count);
        let (socket, port) = table.bindings.bind(port, &world.limits, random)?;
        // While the socket table is held, so that what begins and ends reaches the pumps in this
        // order.
        for (index, world) in self.worlds().iter().enumerate() {
            let takes = interface.is_none_or(|interface| interface == index);
            world.command(Command::Bind {
                socket,
                port,
                families: takes.then_some(families),
            });
        }
        drop(table);
        let worlds = self.worlds.clone();
        let readers = worlds.iter().map(|_| Shared::default());
        let news = Arc::new(News::default());
        Ok(UdpSocket::over(&Arc::new(UdpShared {
            readers: readers.collect(),
            next: AtomicUsize::new(0),
            grouping: Grouping::new(&world.keys, worlds.len() as u16),
            watch: Arc::clone(&news) as Arc<dyn Watch>,
            news,
            worlds,
            socket,
            port,
            interface,
            families,
            remote: Shared::default(),
            groups: Shared::new(Vec::new()),
            read_wait: WaitPolicy::default(),
            write_wait: WaitPolicy::default(),
            ttl: AtomicU8::new(TTL),
            tos: AtomicU8::new(0),
            broadcast: AtomicBool::new(false),
        })))
    }
}

/// What both halves of a socket, and all its clones, share. When the last of them goes, so does the
/// socket.
pub(super) struct UdpShared {
    /// One for each group of the stack.
    worlds: Arc<[Arc<World>]>,
    pub(super) socket: ConnId,
    port: u16,
    /// The only interface that it uses, if it is bound to an address of one.
    interface: Option<usize>,
    pub(super) families: Families,
    /// How far the queue of each group was read.
    readers: Box<[Shared<DeliveryCursor>]>,
    /// Whose queue is looked at first.
    next: AtomicUsize,
    /// Which group has a peer.
    grouping: Grouping,
    /// Where news of all queues comes to, if there are several; and what brings them there.
    news: Arc<News>,
    watch: Arc<dyn Watch>,
    /// The peer's end, of a connected socket; taken by each call that sends.
    remote: Shared<Option<SocketAddr>>,
    /// Groups that it listens to, each with a source or with all.
    pub(super) groups: Shared<Vec<Membership>>,
    read_wait: WaitPolicy,
    write_wait: WaitPolicy,
    ttl: AtomicU8,
    tos: AtomicU8,
    broadcast: AtomicBool,
}

/// Wakes who waits for news of several queues.
#[derive(Debug, Default)]
struct News {
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

/// A datagram that can be received: whose queue it is in, and the cursor of that.
type Oldest<'a> = (usize, StreamRef<'a>, Taken<'a, DeliveryCursor>);

impl UdpShared {
    /// Those of all groups.
    pub(super) fn worlds(&self) -> &[Arc<World>] {
        &self.worlds
    }

    /// The first group's: what is said of one is said of all that have one device.
    fn world(&self) -> &World {
        &self.worlds[0]
    }

    /// The queues of a group.
    fn queue(&self, group: usize) -> Result<StreamRef<'_>, SocketError> {
        let world = &self.worlds[group];
        if world.is_down() {
            return Err(SocketError::Down);
        }
        // The place stays ours until we let go of it.
        let queue = world.queues.streams.get(self.socket);
        queue.ok_or(SocketError::Aborted)
    }

    /// The group that sends to `remote`, or, if that is not said, to the peer.
    fn group_of(&self, remote: Option<SocketAddr>) -> usize {
        if self.worlds.len() == 1 {
            return 0;
        }
        let peer = || self.remote.with(|remote| *remote);
        remote.or_else(peer).map_or(0, |remote| {
            let interface = self.interface;
            if let Some(index) = interface.or_else(|| interfaces::towards(&self.worlds, remote)) {
                return index;
            }
            let flow = Flow {
                local: Endpoint::new(Address::UNSPECIFIED, self.port),
                remote: remote.into(),
            };
            usize::from(self.grouping.group(&flow))
        })
    }

    /// All groups, beginning with `first` or the one whose turn it is.
    fn in_turn(&self, first: Option<usize>) -> impl Iterator<Item = usize> + use<> {
        let count = self.worlds.len();
        let first = first.unwrap_or_else(|| self.next.load(Ordering::Relaxed));
        (first..first + count).map(move |group| group % count)
    }

    /// What the network reported, if no call has said so.
    fn take_error(&self) -> Result<(), SocketError> {
        let mut worlds = self.worlds.iter();
        worlds.try_for_each(|world| world.queues.take_error(self.socket))
    }

    /// Whether the network reported something that no call has said.
    fn has_error(&self) -> bool {
        let mut worlds = self.worlds.iter();
        worlds.any(|world| world.queues.has_error(self.socket))
    }

    /// A datagram for `user`, in the queue of group `first` or of the one whose turn it is, or else
    /// in that of another one.
    fn oldest(&self, user: UserId, first: Option<usize>) -> Result<Oldest<'_>, SocketError> {
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

    /// The queue of a group, and the cursor with all that has arrived before its end; `None` while
    /// another user looks at a datagram there in place.
    fn follow(
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

    /// A datagram of the queue of `group` was taken.
    fn taken(&self, group: usize) {
        if self.worlds.len() > 1 {
            let next = (group + 1) % self.worlds.len();
            self.next.store(next, Ordering::Relaxed);
        }
    }

    fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.world().local_address(self.families).ip(), self.port)
    }

    /// What a poller looks at.
    pub(super) fn target(&self, can: Interest) -> Target {
        Target::Datagrams {
            worlds: Arc::clone(&self.worlds),
            socket: self.socket,
            can,
        }
    }

    /// Tries to receive until it need not wait any more, or patience ends.
    fn receiving<T>(
        &self,
        attempt: impl FnMut() -> Result<T, SocketError>,
    ) -> Result<T, SocketError> {
        let until = self.read_wait.begin();
        if self.worlds.len() == 1 {
            return until.retry(self.queue(0)?.waiting(), attempt);
        }
        let watch = || {
            for group in self.in_turn(None) {
                if let Ok(queue) = self.queue(group) {
                    queue.waiting().watch(&self.watch);
                }
            }
        };
        until.retry_after(watch, &self.news.event, attempt)
    }

    /// The same for sending to `remote`, or the peer.
    fn sending(
        &self,
        until: WaitUntil,
        remote: Option<SocketAddr>,
        attempt: impl FnMut() -> Result<(), SocketError>,
    ) -> Result<(), SocketError> {
        until.retry(self.queue(self.group_of(remote))?.waiting(), attempt)
    }

    /// Whether a datagram may go there.
    fn check(&self, remote: SocketAddr) -> Result<(), SocketError> {
        let address = Address::from(remote.ip());
        if interfaces::is_ourselves(&self.worlds, address) {
            return Err(SocketError::Ourselves);
        }
        let world = match self.world().shared.has_interfaces() {
            true => &self.worlds[self.group_of(Some(remote))],
            false => &self.worlds[0],
        };
        world.with_site_for(address, |site| self.check_at(site, remote))
    }

    fn check_at(&self, site: &Site, remote: SocketAddr) -> Result<(), SocketError> {
        let address = Address::from(remote.ip());
        if remote.port() == 0 {
            return Err(SocketError::Invalid);
        }
        if !self.families.include(address) || !address.is_v4() && site.source(address).is_none() {
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

    /// Stores the peer's end, and tells the pump.
    fn connect(&self, remote: Option<SocketAddr>) -> Result<(), SocketError> {
        if let Some(remote) = remote {
            self.check(remote)?;
        }
        self.remote.with(|place| *place = remote);
        for world in &*self.worlds {
            world.command(Command::Connect {
                socket: self.socket,
                remote: remote.map(Into::into),
            });
        }
        Ok(())
    }

    fn set_ttl(&self, ttl: u32) -> Result<(), SocketError> {
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

/// A socket: datagrams in and out.
///
/// Datagrams for everybody on the link arrive as others do, unless the socket is connected to
/// somebody else. Dropping it sends what is under way, and forgets what arrived.
pub struct UdpSocket {
    pub(super) watched: Watched,
    receiver: UdpReceiver,
    sender: UdpSender,
}

/// The half of a socket that receives. Several may receive of one socket, clones or halves, each
/// datagram goes to one of them; while one looks at a datagram in place, the others wait.
pub struct UdpReceiver {
    pub(super) watched: Watched,
    pub(super) shared: Arc<UdpShared>,
    user: UserId,
    /// Datagrams before its end can be looked at in place.
    lent: DeliveryCursor,
    /// In whose queue one was, if it is not consumed.
    lent_in: Option<usize>,
}

/// The half of a socket that sends.
pub struct UdpSender {
    pub(super) watched: Watched,
    pub(super) shared: Arc<UdpShared>,
    user: UserId,
}

/// A datagram where it lies in its socket's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received<'a> {
    /// Who sent it. Port 0 wants no answer (RFC 768).
    pub from: SocketAddr,
    /// Its bytes, in two parts of which the second is often empty.
    pub parts: (&'a [u8], &'a [u8]),
    /// Hops that its packet had left.
    pub ttl: u8,
    /// DSCP (RFC 2474) in the upper six bits, ECN (RFC 3168) in the lower two.
    pub tos: u8,
}

/// Room for a datagram that [`UdpSocket::recv_many`] fills.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Datagram {
    /// Who sent it. Port 0 wants no answer (RFC 768).
    pub from: SocketAddr,
    /// Hops that its packet had left.
    pub ttl: u8,
    /// DSCP (RFC 2474) in the upper six bits, ECN (RFC 3168) in the lower two.
    pub tos: u8,
    /// As many bytes as there is room for.
    room: Box<[u8]>,
    len: usize,
}

impl Datagram {
    /// Room for `bytes` bytes; what a datagram has more is lost. It has none yet.
    pub fn new(bytes: usize) -> Datagram {
        Datagram {
            from: SocketAddr::new([0, 0, 0, 0].into(), 0),
            ttl: 0,
            tos: 0,
            room: vec![0; bytes].into(),
            len: 0,
        }
    }

    /// What it carries.
    pub fn bytes(&self) -> &[u8] {
        &self.room[..self.len]
    }

    fn fill(&mut self, received: Received<'_>) {
        (self.from, self.ttl, self.tos) = (received.from, received.ttl, received.tos);
        self.len = received.copy_to(&mut self.room);
    }
}

impl UdpSocket {
    fn over(shared: &Arc<UdpShared>) -> Self {
        UdpSocket {
            watched: Watched::default(),
            receiver: UdpReceiver {
                watched: Watched::default(),
                shared: Arc::clone(shared),
                // Of all of them.
                user: shared.readers[0].new_user(),
                lent: DeliveryCursor::default(),
                lent_in: None,
            },
            sender: UdpSender {
                watched: Watched::default(),
                shared: Arc::clone(shared),
                user: shared.remote.new_user(),
            },
        }
    }

    pub(super) fn shared(&self) -> &UdpShared {
        &self.sender.shared
    }

    /// The two halves, each for a thread of its own.
    pub fn split(self) -> (UdpReceiver, UdpSender) {
        (self.receiver, self.sender)
    }

    /// Both halves by reference.
    pub fn halves(&mut self) -> (&mut UdpReceiver, &mut UdpSender) {
        (&mut self.receiver, &mut self.sender)
    }

    /// The same socket once more: each datagram goes to one of them, and all options are shared.
    ///
    /// # Errors
    /// None as yet.
    pub fn try_clone(&self) -> io::Result<UdpSocket> {
        Ok(UdpSocket::over(&self.sender.shared))
    }

    /// What a poller looks at.
    pub(super) fn target(&self) -> Target {
        self.sender.shared.target(Interest::BOTH)
    }

    /// Our end.
    ///
    /// # Errors
    /// None as yet.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shared().local_addr())
    }

    /// The peer's end, of a connected socket.
    ///
    /// # Errors
    /// [`SocketError::NotConnected`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let remote = self.shared().remote.with(|remote| *remote);
        Ok(remote.ok_or(SocketError::NotConnected)?)
    }

    /// As [`UdpSender::connect`], to the first address of several that can be reached.
    ///
    /// # Errors
    /// As [`UdpSender::connect`].
    pub fn connect(&self, remote: impl ToSocketAddrs) -> io::Result<()> {
        each_address(remote, |remote| self.shared().connect(Some(remote)))
    }

    /// As [`UdpSender::disconnect`].
    pub fn disconnect(&mut self) {
        self.sender.disconnect();
    }

    /// As [`UdpSender::set_broadcast`].
    ///
    /// # Errors
    /// None as yet.
    pub fn set_broadcast(&self, allowed: bool) -> io::Result<()> {
        self.shared().broadcast.store(allowed, Ordering::Relaxed);
        Ok(())
    }

    /// As [`UdpSocket::set_broadcast`] set it.
    ///
    /// # Errors
    /// None as yet.
    pub fn broadcast(&self) -> io::Result<bool> {
        Ok(self.shared().broadcast.load(Ordering::Relaxed))
    }

    /// As [`UdpSender::set_ttl`].
    ///
    /// # Errors
    /// As [`UdpSender::set_ttl`].
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        Ok(self.shared().set_ttl(ttl)?)
    }

    /// As [`UdpSocket::set_ttl`] set it.
    ///
    /// # Errors
    /// None as yet.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(self.shared().ttl.load(Ordering::Relaxed).into())
    }

    /// As [`UdpSender::set_tos`].
    pub fn set_tos(&self, tos: u8) {
        self.shared().tos.store(tos, Ordering::Relaxed);
    }

    /// As [`UdpReceiver::set_read_timeout`].
    ///
    /// # Errors
    /// As [`UdpReceiver::set_read_timeout`].
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(self.shared().read_wait.set_timeout(timeout)?)
    }

    /// As [`UdpSocket::set_read_timeout`] set it.
    ///
    /// # Errors
    /// None as yet.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared().read_wait.timeout())
    }

    /// As [`UdpSender::set_write_timeout`].
    ///
    /// # Errors
    /// As [`UdpSender::set_write_timeout`].
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(self.shared().write_wait.set_timeout(timeout)?)
    }

    /// As [`UdpSocket::set_write_timeout`] set it.
    ///
    /// # Errors
    /// None as yet.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared().write_wait.timeout())
    }

    /// Whether calls return [`SocketError::WouldBlock`] where they would wait. Default: no.
    ///
    /// # Errors
    /// None as yet.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.shared().read_wait.set_nonblocking(nonblocking);
        self.shared().write_wait.set_nonblocking(nonblocking);
        Ok(())
    }

    /// What the network reported of datagrams that a connected socket sent, if no call has said so.
    ///
    /// # Errors
    /// None as yet.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.shared().take_error().err().map(io::Error::from))
    }

    /// As [`UdpReceiver::try_peek`].
    ///
    /// # Errors
    /// As [`UdpReceiver::try_peek`].
    pub fn try_peek(&mut self) -> Result<Received<'_>, SocketError> {
        self.receiver.try_peek()
    }

    /// As [`UdpReceiver::try_recv_from`].
    ///
    /// # Errors
    /// As [`UdpReceiver::try_recv_from`].
    pub fn try_recv_from(&mut self, into: &mut [u8]) -> Result<(usize, SocketAddr), SocketError> {
        self.receiver.try_recv_from(into)
    }

    /// As [`UdpReceiver::recv_from`].
    ///
    /// # Errors
    /// As [`UdpReceiver::recv_from`].
    pub fn recv_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receiver.copy_waiting(into, true)
    }

    /// As [`UdpReceiver::recv_from`], and the datagram stays to be received again.
    ///
    /// # Errors
    /// As [`UdpReceiver::recv_from`].
    pub fn peek_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receiver.copy_waiting(into, false)
    }

    /// As [`UdpReceiver::recv_from`], of a connected socket.
    ///
    /// # Errors
    /// As [`UdpReceiver::recv_from`].
    pub fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(into)?.0)
    }

    /// As [`UdpSocket::peek_from`], of a connected socket.
    ///
    /// # Errors
    /// As [`UdpReceiver::recv_from`].
    pub fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.peek_from(into)?.0)
    }

    /// As [`UdpSender::try_send_to`].
    ///
    /// # Errors
    /// As [`UdpSender::try_send_to`].
    pub fn try_send_to(&mut self, from: &[u8], remote: SocketAddr) -> Result<(), SocketError> {
        self.sender.try_send_to(from, remote)
    }

    /// As [`UdpSender::send_to`], to the first address of several that takes it. Returns the length
    /// of the datagram.
    ///
    /// # Errors
    /// As [`UdpSender::send_to`].
    pub fn send_to(&self, from: &[u8], remote: impl ToSocketAddrs) -> io::Result<usize> {
        let until = self.shared().write_wait.begin();
        each_address(remote, |remote| {
            self.sender.put_until(until, from, Some(remote))?;
            Ok(from.len())
        })
    }

    /// As [`UdpSender::send_many`].
    ///
    /// # Errors
    /// As [`UdpSender::send_many`].
    pub fn send_many<'a>(
        &self,
        datagrams: impl IntoIterator<Item = (&'a [u8], SocketAddr)>,
    ) -> io::Result<usize> {
        self.sender.put_many(datagrams)
    }

    /// As [`UdpReceiver::recv_many`].
    ///
    /// # Errors
    /// As [`UdpReceiver::recv_many`].
    pub fn recv_many(&self, into: &mut [Datagram]) -> io::Result<usize> {
        self.receiver.copy_many(into, self.receiver.lent_in)
    }

    /// As [`UdpSender::try_send`].
    ///
    /// # Errors
    /// As [`UdpSender::try_send`].
    pub fn try_send(&mut self, from: &[u8]) -> Result<(), SocketError> {
        self.sender.try_send(from)
    }

    /// As [`UdpSender::send`]. Returns the length of the datagram.
    ///
    /// # Errors
    /// As [`UdpSender::send`].
    pub fn send(&self, from: &[u8]) -> io::Result<usize> {
        let until = self.shared().write_wait.begin();
        self.sender.put_until(until, from, None)?;
        Ok(from.len())
    }
}

impl UdpReceiver {
    /// How long [`UdpReceiver::recv_from`] waits; `None`, the default, for ever.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.shared.read_wait.set_timeout(timeout)
    }

    /// The oldest datagram in place. It stays the oldest until [`UdpReceiver::consume`].
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there is none; [`SocketError::Refused`] or
    /// [`SocketError::Unreachable`] if the network said so of what a connected socket sent;
    /// [`SocketError::Down`].
    pub fn try_peek(&mut self) -> Result<Received<'_>, SocketError> {
        let (group, _, seen) = self.shared.oldest(self.user, self.lent_in.take())?;
        self.lent = seen.lent_copy();
        seen.keep(self.user);
        self.lent_in = Some(group);
        // The slices borrow `self`, and all that gives their bytes up takes it mutably, or this
        // half keeps the cursor from.
        let received = Received::first(self.shared.queue(group)?.received(&self.lent))?;
        Ok(received.at(&self.shared, group))
    }

    /// The oldest datagram is not needed any more. Does nothing if there is none.
    pub fn consume(&mut self) {
        let shared = &*self.shared;
        for group in shared.in_turn(self.lent_in.take()) {
            if let Ok(queue) = shared.queue(group)
                && let Ok(mut seen) = shared.readers[group].take(self.user, queue.waiting())
                && consume_first(&queue, &mut seen)
            {
                return shared.taken(group);
            }
        }
    }

    /// Takes the oldest datagram: how many bytes were copied to `into`, and who sent it. What
    /// `into` has no room for is lost.
    ///
    /// # Errors
    /// As [`UdpReceiver::try_peek`].
    pub fn try_recv_from(&mut self, into: &mut [u8]) -> Result<(usize, SocketAddr), SocketError> {
        let first = self.lent_in.take();
        self.copy(into, first, true)
    }

    /// As [`UdpReceiver::try_recv_from`], waiting for a datagram.
    ///
    /// # Errors
    /// As [`UdpReceiver::try_peek`]; [`SocketError::WouldBlock`] after the timeout, or if the
    /// socket does not block.
    pub fn recv_from(&mut self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let first = self.lent_in.take();
        let shared = &*self.shared;
        Ok(shared.receiving(|| self.copy(into, first, true))?)
    }

    /// Takes as many datagrams as have arrived and `into` has places for, in the order of arrival of
    /// each peer; waits for the first. Returns how many.
    ///
    /// ```
    /// use dominoes_drivers::memory;
    /// use dominoes_netstack::{Datagram, Stack};
    ///
    /// let (left, right) = memory::pair(Default::default());
    /// let server = Stack::builder("10.0.0.1/24").start(left)?;
    /// let client = Stack::builder("10.0.0.2/24").start(right)?;
    /// let (here, there) = (server.bind_udp(7)?, client.bind_udp(0)?);
    ///
    /// let to = "10.0.0.1:7".parse()?;
    /// assert_eq!(there.send_many([(&b"one"[..], to), (b"two", to)])?, 2);
    /// let mut into = vec![Datagram::new(2048); 16];
    /// let mut got = Vec::new();
    /// while got.len() < 2 {
    ///     let count = here.recv_many(&mut into)?;
    ///     got.extend(into[..count].iter().map(|datagram| datagram.bytes().to_vec()));
    /// }
    /// assert_eq!(got, [b"one", b"two"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpReceiver::recv_from`].
    pub fn recv_many(&mut self, into: &mut [Datagram]) -> io::Result<usize> {
        let first = self.lent_in.take();
        self.copy_many(into, first)
    }

    /// [`UdpReceiver::recv_many`], beginning with the queue that a datagram was lent of.
    fn copy_many(&self, into: &mut [Datagram], first: Option<usize>) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let shared = &*self.shared;
        let attempt = || {
            shared.queue(0)?;
            shared.take_error()?;
            let mut places = into.iter_mut();
            let mut count = 0;
            for group in shared.in_turn(first) {
                let Some((queue, mut seen)) = shared.follow(self.user, group)? else {
                    continue;
                };
                while let Ok(received) = Received::first(queue.received(&seen)) {
                    let Some(place) = places.next() else {
                        return Ok(count);
                    };
                    place.fill(received.at(shared, group));
                    consume_first(&queue, &mut seen);
                    shared.taken(group);
                    count += 1;
                }
            }
            if count > 0 {
                Ok(count)
            } else {
                Err(SocketError::WouldBlock)
            }
        };
        Ok(shared.receiving(attempt)?)
    }

    /// Copies the oldest datagram, if one was lent of the queue of group `first`, that one, and
    /// takes it away if `consumes`.
    fn copy(
        &self,
        into: &mut [u8],
        first: Option<usize>,
        consumes: bool,
    ) -> Result<(usize, SocketAddr), SocketError> {
        let (group, queue, mut seen) = self.shared.oldest(self.user, first)?;
        let received = Received::first(queue.received(&seen))?.at(&self.shared, group);
        let (len, from) = (received.copy_to(into), received.from);
        if consumes {
            consume_first(&queue, &mut seen);
            self.shared.taken(group);
        }
        Ok((len, from))
    }

    /// [`UdpReceiver::copy`] that waits.
    fn copy_waiting(&self, into: &mut [u8], consumes: bool) -> io::Result<(usize, SocketAddr)> {
        let first = self.lent_in;
        let shared = &*self.shared;
        Ok(shared.receiving(|| self.copy(into, first, consumes))?)
    }
}

impl Drop for UdpReceiver {
    fn drop(&mut self) {
        if let Some(group) = self.lent_in
            && let Ok(queue) = self.shared.queue(group)
        {
            // What it kept is for the others.
            drop(self.shared.readers[group].take(self.user, queue.waiting()));
        }
    }
}

impl<'a> Received<'a> {
    /// As it is told that it came to group `group` of a socket.
    fn at(mut self, shared: &UdpShared, group: usize) -> Self {
        self.from = interfaces::scoped(&shared.worlds, self.from, group);
        self
    }

    /// Copies what there is room for, and returns how much that is.
    fn copy_to(&self, into: &mut [u8]) -> usize {
        let (a, b) = self.parts;
        let front = a.len().min(into.len());
        into[..front].copy_from_slice(&a[..front]);
        let back = b.len().min(into.len() - front);
        into[front..front + back].copy_from_slice(&b[..back]);
        front + back
    }

    /// The first datagram of a queue that holds these bytes.
    fn first((a, b): (&'a [u8], &'a [u8])) -> Result<Received<'a>, SocketError> {
        // Neither a header nor the ring's length is odd, so headers do not wrap.
        let first = if a.is_empty() { b } else { a };
        let header = Header::read(first).ok_or(SocketError::WouldBlock)?;
        let len = usize::from(header.len);
        let payload = &first[HEADER..];
        let parts = match payload.get(..len) {
            Some(whole) => (whole, &[][..]),
            None => (payload, &b[..len - payload.len()]),
        };
        Ok(Received {
            from: header.remote.into(),
            parts,
            ttl: header.ttl,
            tos: header.tos,
        })
    }
}

/// The oldest datagram is not needed any more. Returns whether there was one.
fn consume_first(queue: &StreamRef<'_>, seen: &mut DeliveryCursor) -> bool {
    let (a, b) = queue.received(seen);
    let first = if a.is_empty() { b } else { a };
    let header = Header::read(first);
    if let Some(header) = header {
        queue.read(record::len(header.len) as usize, seen, 0);
    }
    header.is_some()
}

impl UdpSender {
    /// From now on the socket sends to `remote` by [`UdpSender::send`], takes datagrams from nobody
    /// else any more, and tells of errors that the network reports (RFC 1122 section 4.1.3.3). What
    /// has arrived already stays.
    ///
    /// # Errors
    /// [`SocketError::NoRoute`] if there is no way, [`SocketError::Invalid`] for port 0,
    /// [`SocketError::NotAllowed`] for a broadcast address.
    pub fn connect(&mut self, remote: SocketAddr) -> Result<(), SocketError> {
        self.shared.connect(Some(remote))
    }

    /// Takes datagrams from everybody again.
    pub fn disconnect(&mut self) {
        // Only an address could be refused.
        let _ = self.shared.connect(None);
    }

    /// Whether datagrams may be sent to everybody on the link. Default: no.
    pub fn set_broadcast(&mut self, allowed: bool) {
        self.shared.broadcast.store(allowed, Ordering::Relaxed);
    }

    /// Hops that datagrams may make, 1 to 255 (RFC 1122 section 4.1.4). Default 64.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] out of this range.
    pub fn set_ttl(&mut self, ttl: u32) -> Result<(), SocketError> {
        self.shared.set_ttl(ttl)
    }

    /// How long [`UdpSender::send_to`] waits; `None`, the default, for ever.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.shared.write_wait.set_timeout(timeout)
    }

    /// DSCP (RFC 2474) in the upper six bits, ECN (RFC 3168) in the lower two. Default 0.
    pub fn set_tos(&mut self, tos: u8) {
        self.shared.tos.store(tos, Ordering::Relaxed);
    }

    /// Sends a datagram to `remote`; longer ones than a packet go in fragments.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if too much is under way, [`SocketError::TooLong`] above 65,507
    /// bytes or the send ring's length, [`SocketError::NoRoute`] if no route leads there,
    /// [`SocketError::Unreachable`] if it is not the address of one host, [`SocketError::Invalid`]
    /// for port 0, [`SocketError::NotAllowed`] for a broadcast address without
    /// [`UdpSender::set_broadcast`], or as [`UdpReceiver::try_peek`].
    pub fn try_send_to(&mut self, from: &[u8], remote: SocketAddr) -> Result<(), SocketError> {
        self.put(from, Some(remote))
    }

    /// [`UdpSender::put`] that waits.
    fn put_until(
        &self,
        until: WaitUntil,
        from: &[u8],
        remote: Option<SocketAddr>,
    ) -> Result<(), SocketError> {
        let attempt = || self.put(from, remote);
        self.shared.sending(until, remote, attempt)
    }

    fn put_many<'a>(
        &self,
        datagrams: impl IntoIterator<Item = (&'a [u8], SocketAddr)>,
    ) -> io::Result<usize> {
        let until = self.shared.write_wait.begin();
        let mut sent = 0;
        for (from, remote) in datagrams {
            if sent == 0 {
                self.put_until(until, from, Some(remote))?;
            } else if self.shared.has_error() || self.put(from, Some(remote)).is_err() {
                // The next call says why, if that lasts.
                break;
            }
            sent += 1;
        }
        Ok(sent)
    }

    fn put(&self, from: &[u8], remote: Option<SocketAddr>) -> Result<(), SocketError> {
        self.put_by(from.len(), remote, |queue| {
            queue.write(from);
        })
    }

    /// Sends `len` bytes, which `write` puts into the ring behind the record's header, to `remote`
    /// or the peer that the socket is connected to.
    fn put_by(
        &self,
        bytes: usize,
        remote: Option<SocketAddr>,
        write: impl FnOnce(&StreamRef<'_>),
    ) -> Result<(), SocketError> {
        let place = &*self.shared;
        if let Some(remote) = remote {
            place.check(remote)?;
        }
        let first = place.queue(0)?;
        let connected = place.remote.take(self.user, first.waiting())?;
        let remote = remote.or(*connected).ok_or(SocketError::NotConnected)?;
        place.take_error()?;
        let group = place.group_of(Some(remote));
        let (world, queue) = (&place.worlds[group], place.queue(group)?);
        let len = u16::try_from(bytes).unwrap_or(u16::MAX);
        let record = record::len(len) as usize;
        if bytes > MAX_PAYLOAD || record > world.limits.udp_send_buffer as usize {
            return Err(SocketError::TooLong);
        }
        if queue.writable() < record && queue.fell_short() < record {
            return Err(SocketError::WouldBlock);
        }
        let header = Header {
            remote: remote.into(),
            len,
            ttl: place.ttl.load(Ordering::Relaxed),
            tos: place.tos.load(Ordering::Relaxed),
        };
        queue.write(&header.to_bytes());
        write(&queue);
        // What pads a record is overwritten, too: it may be sent again.
        queue.write(&[0; HEADER][..record - HEADER - bytes]);
        world.raise_socket(&queue);
        Ok(())
    }

    /// As [`UdpSender::try_send`], of `len` bytes that this socket put into its queue one length of
    /// it ([`Limits::udp_send_buffer`](crate::Limits::udp_send_buffer)) before, headers of records
    /// included. They lie there already, so nothing is copied: for measuring.
    ///
    /// # Errors
    /// As [`UdpSender::try_send`]; [`SocketError::Invalid`] until the socket has sent as much as
    /// the queue holds.
    pub fn try_send_again(&mut self, len: usize) -> Result<(), SocketError> {
        let group = self.shared.group_of(None);
        if !self.shared.queue(group)?.was_filled() {
            return Err(SocketError::Invalid);
        }
        self.put_by(len, None, |queue| {
            queue.write_again(len);
        })
    }

    /// Sends datagrams, each to its own destination, in order, while there is room. Waits for room
    /// for the first one. Returns how many were taken: fewer than given if room ends, or before one
    /// that [`UdpSender::send_to`] would refuse.
    ///
    /// # Errors
    /// As [`UdpSender::send_to`], of the first one.
    pub fn send_many<'a>(
        &mut self,
        datagrams: impl IntoIterator<Item = (&'a [u8], SocketAddr)>,
    ) -> io::Result<usize> {
        self.put_many(datagrams)
    }

    /// Sends a datagram to whom the socket is connected.
    ///
    /// # Errors
    /// [`SocketError::NotConnected`], or as [`UdpSender::try_send_to`].
    pub fn try_send(&mut self, from: &[u8]) -> Result<(), SocketError> {
        self.put(from, None)
    }

    /// As [`UdpSender::try_send_to`], waiting for room.
    ///
    /// # Errors
    /// As [`UdpSender::try_send_to`]; `WouldBlock` only after the timeout, or if the socket does
    /// not block.
    pub fn send_to(&mut self, from: &[u8], remote: SocketAddr) -> io::Result<()> {
        let until = self.shared.write_wait.begin();
        Ok(self.put_until(until, from, Some(remote))?)
    }

    /// As [`UdpSender::try_send`], waiting for room.
    ///
    /// # Errors
    /// As [`UdpSender::send_to`].
    pub fn send(&mut self, from: &[u8]) -> io::Result<()> {
        let until = self.shared.write_wait.begin();
        Ok(self.put_until(until, from, None)?)
    }
}

macro_rules! debug_as_port {
    ($($socket:ident: $($field:ident).+;)*) => {$(
        impl core::fmt::Debug for $socket {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($socket)).field("port", &self.$($field).+).finish_non_exhaustive()
            }
        }
    )*};
}

debug_as_port! {
    UdpSocket: sender.shared.port;
    UdpReceiver: shared.port;
    UdpSender: shared.port;
}
