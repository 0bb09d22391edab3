//! UDP sockets (RFC 768, RFC 1122 section 4.1).
//!
//! Like streams, UDP sockets move cursors of shared rings and never publish to the log. When a
//! send returns, the stack sends the datagram by itself, in the order of the calls. Received
//! datagrams wait in a bounded queue; if it is full, the stack drops and counts them.
//!
//! In a stack of several groups, each group has separate queues for every socket. A peer's
//! datagrams arrive in the group to which the flow hashes, and datagrams to the peer leave from
//! there; so both keep their order, and peers spread over the groups. A receiving call checks the
//! queues in turn.

mod queues;
mod receive;
mod send;

use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::io;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::Duration;

use dominoes::Watch;

use super::Sockets;
use super::current::each_address;
use super::multicast::JoinedGroup;
use super::poller::{Interest, Target, Watched};
use super::shared::{Shared, UserId};
use super::wait::WaitPolicy;
use crate::error::SocketError;
use crate::io::stream::DeliveryCursor;
use crate::io::udp_queues::Sharing;
use crate::io::world::{Command, World};
use crate::keys::{Grouping, KeyUse};
use crate::log::request::{ALL_PORTS, Binding, ConnId, Families};
use queues::News;

pub use receive::{Datagram, PacketInfo, Received};

/// Default time to live of sent datagrams (RFC 1122 section 3.2.1.7).
const TTL: u8 = 64;

impl Sockets {
    /// Binds a UDP socket to `port`, or to a free port for 0. Never blocks.
    ///
    /// # Errors
    /// [`SocketError::PortTaken`]; [`SocketError::NoPort`]; [`SocketError::TooManySockets`];
    /// [`SocketError::Down`].
    pub fn bind_udp(&self, port: u16) -> Result<UdpSocket, SocketError> {
        self.bind_udp_for(Families::Both, port)
    }

    /// As [`Sockets::bind_udp`], only for datagrams of `families`. Another socket may have the
    /// port for the other family.
    ///
    /// # Errors
    /// As [`Sockets::bind_udp`].
    pub fn bind_udp_for(&self, families: Families, port: u16) -> Result<UdpSocket, SocketError> {
        self.bind_udp_at((None, families.into()), Some(port), Sharing::default())
    }

    /// As [`Sockets::bind_udp`], only for datagrams to one of our addresses, which may be local
    /// to this host (127.0.0.1, `::1`), without multicast and broadcast. 0.0.0.0 means all of
    /// IPv4, and `::` means all addresses. A socket that is bound to an address sends from it. A
    /// port may have several sockets if no datagram to one host could belong to two of them: a
    /// socket at an address and one at 0.0.0.0 cannot share it.
    ///
    /// # Errors
    /// As [`Sockets::bind_udp`]; [`SocketError::NotOurs`].
    pub fn bind_udp_on(&self, local: SocketAddr) -> Result<UdpSocket, SocketError> {
        let place = self.check_local(local.ip())?;
        self.bind_udp_at(place, Some(local.port()), Sharing::default())
    }

    /// As [`Sockets::bind_udp_on`], or as [`Sockets::bind_udp_for`] if the address is unspecified,
    /// with a port that other sockets of this function may have, too. `newest` and `balanced` are
    /// as `SO_REUSEADDR` and `SO_REUSEPORT` of Linux: both sockets must have set one of them.
    ///
    /// If several sockets could take a datagram, one that is connected to its sender precedes one
    /// that is bound to its destination, and this precedes the others. Among equal ones, a hash of
    /// the sender chooses if all are `balanced`; otherwise the newest takes it. Broadcast and
    /// multicast datagrams go to all.
    ///
    /// # Errors
    /// As [`Sockets::bind_udp_on`].
    pub fn bind_udp_shared(
        &self,
        local: SocketAddr,
        families: Families,
        (newest, balanced): (bool, bool),
    ) -> Result<UdpSocket, SocketError> {
        let place = match local.ip().is_unspecified() {
            true => (None, families.into()),
            false => self.check_local(local.ip())?,
        };
        let sharing = Sharing { newest, balanced };
        self.bind_udp_at(place, Some(local.port()), sharing)
    }

    /// Binds a UDP socket to all ports: it gets the datagrams that no other socket takes, with
    /// [`any_address`](crate::Builder::any_address) those to every address. Their
    /// [`PacketInfo`] names the destination. It sends by [`UdpSocket::send_from`] only.
    ///
    /// ```
    /// use dominoes_drivers::memory::{self, MemoryConfig};
    /// use dominoes_netstack::{Datagram, Stack};
    ///
    /// let (left, right) = memory::ip_pair(MemoryConfig::default());
    /// let proxy = Stack::builder("10.0.0.1/0").any_address().start(left)?;
    /// let client = Stack::builder("10.0.0.2/0").start(right)?;
    /// let (any, asks) = (proxy.sockets().bind_any()?, client.bind_udp(0)?);
    ///
    /// asks.send_to(b"who?", "203.0.113.9:53")?;
    /// let mut question = [Datagram::new(2048)];
    /// any.recv_many(&mut question)?;
    /// let info = question[0].info.unwrap();
    /// assert_eq!((info.local, info.port), ("203.0.113.9".parse()?, 53));
    /// any.send_from(b"me", (info.local, info.port).into(), question[0].from)?;
    /// assert_eq!(asks.recv_from(&mut [0; 16])?.1, "203.0.113.9:53".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SocketError::PortTaken`] if there is such a socket; [`SocketError::TooManySockets`];
    /// [`SocketError::Down`].
    pub fn bind_any(&self) -> Result<UdpSocket, SocketError> {
        self.bind_udp_at((None, Families::Both.into()), None, Sharing::default())
    }

    /// As [`Sockets::bind_udp_for`], at one of several interfaces; `None`: as
    /// [`Sockets::bind_any`].
    pub(super) fn bind_udp_at(
        &self,
        (interface, binding): (Option<usize>, Binding),
        port: Option<u16>,
        sharing: Sharing,
    ) -> Result<UdpSocket, SocketError> {
        self.check_up()?;
        if !self.worlds().iter().all(|world| world.admits_sockets()) {
            return Err(SocketError::Aborted);
        }
        let world = self.world();
        let mut table = world.socket_table();
        let random = |count| world.random_port(KeyUse::UdpPort, count);
        let (bindings, limits) = (&mut table.bindings, &world.limits);
        let (socket, port) = match port {
            Some(port) => bindings.bind((port, binding, sharing), limits, random)?,
            None => (
                bindings.take(ALL_PORTS, (binding, sharing), limits)?,
                ALL_PORTS,
            ),
        };
        // While the socket table is held, so that sockets begin and end in the same order in all
        // pumps.
        for (index, world) in self.worlds().iter().enumerate() {
            let takes = interface.is_none_or(|own| self.groups_of(own).contains(&index));
            world.command(Command::Bind {
                socket,
                port,
                binding: takes.then_some((binding, sharing.balanced)),
            });
        }
        drop(table);
        let worlds = self.worlds.clone();
        let readers = worlds.iter().map(|_| Shared::default());
        let news = Arc::new(News::default());
        Ok(UdpSocket::over(&Arc::new(UdpShared {
            readers: readers.collect(),
            next: AtomicUsize::new(0),
            grouping: Grouping::new(&world.keys, world.shared.groups_each() as u16),
            watch: Arc::clone(&news) as Arc<dyn Watch>,
            news,
            worlds,
            socket,
            port,
            interface,
            binding,
            remote: Shared::default(),
            groups: Shared::new(Vec::new()),
            read_wait: WaitPolicy::default(),
            write_wait: WaitPolicy::default(),
            ttl: AtomicU8::new(TTL),
            tos: AtomicU8::new(0),
            broadcast: AtomicBool::new(false),
            dont_fragment: AtomicBool::new(false),
            loops_v4: AtomicBool::new(true),
            loops_v6: AtomicBool::new(true),
        })))
    }
}

/// The state that both halves of a socket and all its clones share. When the last of them is
/// dropped, the socket is closed.
pub(super) struct UdpShared {
    /// One for each group of the stack.
    worlds: Arc<[Arc<World>]>,
    pub(super) socket: ConnId,
    port: u16,
    /// The only interface to use, if the socket is bound to one of its addresses.
    interface: Option<usize>,
    pub(super) binding: Binding,
    /// For each group, how far its queue was read.
    readers: Box<[Shared<DeliveryCursor>]>,
    /// The group whose queue is checked next.
    next: AtomicUsize,
    /// Chooses the group of an interface for a peer.
    grouping: Grouping,
    /// If there are several queues, collects the news of all.
    news: Arc<News>,
    watch: Arc<dyn Watch>,
    /// The peer's end, if the socket is connected; every sending call reads it.
    remote: Shared<Option<SocketAddr>>,
    /// Multicast groups to listen to, each with one source or all.
    pub(super) groups: Shared<Vec<JoinedGroup>>,
    read_wait: WaitPolicy,
    write_wait: WaitPolicy,
    ttl: AtomicU8,
    tos: AtomicU8,
    broadcast: AtomicBool,
    dont_fragment: AtomicBool,
    /// Whether IPv4 datagrams to multicast groups also go to sockets of this stack; then the same
    /// for IPv6.
    pub(super) loops_v4: AtomicBool,
    pub(super) loops_v6: AtomicBool,
}

/// A UDP socket: receives and sends datagrams.
///
/// Broadcast datagrams arrive as others do, unless the socket is connected to another peer. When
/// it is dropped, the stack still sends accepted datagrams, and discards received ones.
pub struct UdpSocket {
    pub(super) watched: Watched,
    receiver: UdpReceiver,
    sender: UdpSender,
}

/// The receiving half of a socket. Several receivers, clones or halves, may share a socket; each
/// datagram goes to one of them. While one has borrowed a datagram in place, the others wait.
pub struct UdpReceiver {
    pub(super) watched: Watched,
    pub(super) shared: Arc<UdpShared>,
    user: UserId,
    /// The end of the datagrams that may be borrowed in place.
    lent: DeliveryCursor,
    /// The group whose queue lent a datagram that is not consumed yet.
    lent_in: Option<usize>,
}

/// The sending half of a socket.
pub struct UdpSender {
    pub(super) watched: Watched,
    pub(super) shared: Arc<UdpShared>,
    user: UserId,
}

impl UdpSocket {
    fn over(shared: &Arc<UdpShared>) -> Self {
        UdpSocket {
            watched: Watched::default(),
            receiver: UdpReceiver {
                watched: Watched::default(),
                shared: Arc::clone(shared),
                // One user for all queues.
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

    /// Splits into two halves, which two threads can use.
    pub fn split(self) -> (UdpReceiver, UdpSender) {
        (self.receiver, self.sender)
    }

    /// Both halves by reference.
    pub fn halves(&mut self) -> (&mut UdpReceiver, &mut UdpSender) {
        (&mut self.receiver, &mut self.sender)
    }

    /// Another handle of the same socket: each datagram goes to one handle, and all options are
    /// shared.
    ///
    /// # Errors
    /// None as yet.
    pub fn try_clone(&self) -> io::Result<UdpSocket> {
        Ok(UdpSocket::over(&self.sender.shared))
    }

    /// The object that a poller checks.
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

    /// The peer's end, if the socket is connected.
    ///
    /// # Errors
    /// [`SocketError::NotConnected`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let remote = self.shared().remote.with(|remote| *remote);
        Ok(remote.ok_or(SocketError::NotConnected)?)
    }

    /// As [`UdpSender::connect`], to the first of several addresses that can be reached.
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

    /// As [`UdpSender::set_dont_fragment`].
    pub fn set_dont_fragment(&self, dont_fragment: bool) {
        let shared = &self.shared().dont_fragment;
        shared.store(dont_fragment, Ordering::Relaxed);
    }

    /// As [`UdpSocket::set_dont_fragment`] set it.
    pub fn dont_fragment(&self) -> bool {
        self.shared().dont_fragment.load(Ordering::Relaxed)
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

    /// Whether later datagrams come with their destination address, interface and time of
    /// arrival, in [`Received::info`] and [`Datagram::info`]. Default: no. If yes, each datagram
    /// takes 32 more bytes of the queue.
    ///
    /// ```
    /// use dominoes_drivers::memory;
    /// use dominoes_netstack::{Datagram, Stack};
    ///
    /// let (left, right) = memory::pair(Default::default());
    /// let server = Stack::builder("10.0.0.1/24").start(left)?;
    /// let client = Stack::builder("10.0.0.2/24").start(right)?;
    /// let (here, there) = (server.bind_udp(7)?, client.bind_udp(0)?);
    /// here.set_packet_info(true);
    /// there.send_to(b"hello", "10.0.0.1:7")?;
    /// let mut into = [Datagram::new(16)];
    /// here.recv_many(&mut into)?;
    /// let info = into[0].info.expect("it was asked for");
    /// assert_eq!((info.local, info.interface), ([10, 0, 0, 1].into(), 1));
    /// println!("it came {:?} ago", server.now().since(info.arrived));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_packet_info(&self, wants_info: bool) {
        let shared = self.shared();
        for world in &*shared.worlds {
            world.command(Command::Info {
                socket: shared.socket,
                wants_info,
            });
        }
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

    /// Takes an error that the network reported about a datagram of a connected socket, if no
    /// call has returned it yet.
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

    /// As [`UdpReceiver::recv_from`], but the datagram can be received again.
    ///
    /// # Errors
    /// As [`UdpReceiver::recv_from`].
    pub fn peek_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receiver.copy_waiting(into, false)
    }

    /// As [`UdpReceiver::recv_from`], for a connected socket.
    ///
    /// # Errors
    /// As [`UdpReceiver::recv_from`].
    pub fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(into)?.0)
    }

    /// As [`UdpSocket::peek_from`], for a connected socket.
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

    /// As [`UdpSender::send_to`], to the first of several addresses that accepts the datagram.
    /// Returns the length of the datagram.
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

    /// As [`UdpSender::try_send_from`].
    ///
    /// # Errors
    /// As [`UdpSender::try_send_from`].
    pub fn try_send_from(
        &mut self,
        from: &[u8],
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(), SocketError> {
        self.sender.try_send_from(from, local, remote)
    }

    /// As [`UdpSender::send_from`]. Returns the length of the datagram.
    ///
    /// # Errors
    /// As [`UdpSender::send_from`].
    pub fn send_from(
        &self,
        from: &[u8],
        local: SocketAddr,
        remote: SocketAddr,
    ) -> io::Result<usize> {
        self.sender.put_from(from, local, remote)?;
        Ok(from.len())
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
