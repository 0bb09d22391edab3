//! Sockets: listeners and byte streams, blocking or not.
//!
//! A socket never publishes to the log. It reads and writes the shared rings in place, moves a
//! cursor and raises a flag; the pump, which feeds the log, does the rest. The `try_` calls never
//! wait, so a stack that is driven by hand, or from inside a context, uses them. The other calls
//! wait, and need another thread that drives the stack.

mod alone;
mod arriving;
mod current;
mod echo;
pub mod framed;
mod half;
mod interfaces;
mod multicast;
mod open;
pub mod poller;
mod read;
#[cfg(feature = "dns")]
mod resolver;
mod shared;
mod stage;
#[cfg(feature = "rustls")]
pub mod tls;
mod udp;
mod wait;
mod write;

use core::net::{Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::io::{self, BufRead, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, ToSocketAddrs};
use std::sync::Arc;

use crate::config::{Keepalive, Settings, Tuning};
use crate::error::SocketError;
use crate::io::accept::AcceptQueue;
use crate::io::stream::{AppRequest, EndReason};
use crate::io::view::{ConnectionStats, LIST_TIMEOUT};
use crate::io::world::{Command, Options, World};
use crate::ip::neighbor::WaitingOpen;
use crate::keys::{Grouping, KeyUse, ephemeral_from};
use crate::log::request::{Address, Binding, Body, ConnId, Endpoint, Families, Flow};
use crate::stats::StackStats;

use current::each_address;
use half::Half;

pub(crate) use wait::WaitUntil;

pub use alone::TcpView;
pub use arriving::{AnyListener, Arriving};
pub use current::Entered;
pub use echo::EchoSocket;
pub use interfaces::InterfaceStatus;
pub use open::{Connecting, TcpListener};
pub use read::ReadHalf;
#[cfg(feature = "dns")]
pub use resolver::{Resolver, Resolving};
pub use udp::{Datagram, PacketInfo, Received, UdpReceiver, UdpSender, UdpSocket};
pub use write::{Reserved, WriteHalf};

/// The sockets of a stack: opens connections and listens for them.
#[derive(Clone)]
pub struct Sockets {
    /// One for each group; all share one socket table.
    worlds: Arc<[Arc<World>]>,
    /// The group that opens the next connection.
    turn: Arc<AtomicUsize>,
}

impl Sockets {
    pub(crate) fn new(world: &Arc<World>) -> Self {
        Sockets::over(vec![Arc::clone(world)])
    }

    /// Creates the sockets of these groups, in order; they share one socket table. There is at
    /// least one.
    pub(crate) fn over(worlds: Vec<Arc<World>>) -> Self {
        Sockets {
            worlds: worlds.into(),
            turn: Arc::default(),
        }
    }

    pub(crate) fn worlds(&self) -> &[Arc<World>] {
        &self.worlds
    }

    /// The first group, whose settings hold for all.
    fn world(&self) -> &Arc<World> {
        &self.worlds[0]
    }

    /// Listens on `port`, or on a free port for 0. At most `backlog` connections of each group
    /// wait to be accepted. Never blocks.
    ///
    /// # Errors
    /// [`SocketError::PortTaken`], [`SocketError::Down`].
    pub fn listen(&self, port: u16, backlog: u16) -> Result<TcpListener, SocketError> {
        self.listen_for(Families::Both, port, backlog)
    }

    /// As [`Sockets::listen`], only for connections of `families`. Another listener may have the
    /// port for the other family.
    ///
    /// # Errors
    /// As [`Sockets::listen`].
    pub fn listen_for(
        &self,
        families: Families,
        port: u16,
        backlog: u16,
    ) -> Result<TcpListener, SocketError> {
        self.listen_at(None, families.into(), port, backlog)
    }

    /// As [`Sockets::listen`], only for connections to one of our addresses, which may be local
    /// to this host (127.0.0.1, `::1`). 0.0.0.0 means all of IPv4, and `::` means all addresses.
    /// A port may have several listeners if no connection could belong to two of them: a listener
    /// at an address and one at 0.0.0.0 cannot share it.
    ///
    /// # Errors
    /// As [`Sockets::listen`]; [`SocketError::NotOurs`].
    pub fn listen_on(&self, local: SocketAddr, backlog: u16) -> Result<TcpListener, SocketError> {
        let (interface, binding) = self.check_local(local.ip())?;
        self.listen_at(interface, binding, local.port(), backlog)
    }

    /// As [`Sockets::listen_for`], at one of several interfaces.
    fn listen_at(
        &self,
        interface: Option<usize>,
        binding: Binding,
        port: u16,
        backlog: u16,
    ) -> Result<TcpListener, SocketError> {
        self.check_up()?;
        let mut table = self.world().socket_table();
        let port = match port {
            0 => {
                let start = self
                    .world()
                    .random_port(KeyUse::TcpPort, table.next_request_id());
                let is_free = |port: &u16| table.listeners.at(*port).next().is_none();
                let mut ports = ephemeral_from(start as u16);
                ports.find(is_free).ok_or(SocketError::PortTaken)?
            }
            port => port,
        };
        let is_taken = |other: Binding| other.overlaps(&binding);
        if table.listeners.at(port).any(is_taken) || table.arriving.contains_key(&port) {
            return Err(SocketError::PortTaken);
        }
        let queue = AcceptQueue {
            accepted: vec![0; self.worlds.len()],
            is_told: vec![true; self.worlds.len()],
            options: Options {
                settings: self.world().limits.settings(),
                ..Options::default()
            },
            ..AcceptQueue::default()
        };
        let news = Arc::clone(&queue.news);
        table.listeners.insert(port, binding, queue);
        // While the socket table is held, so that starts and ends of listening reach the log in
        // order.
        for (index, world) in self.worlds.iter().enumerate() {
            if interface.is_none_or(|interface| self.groups_of(interface).contains(&index)) {
                world.command(Command::Publish(Body::Listen {
                    port,
                    backlog,
                    binding,
                }));
            }
        }
        drop(table);
        Ok(TcpListener::new(&self.worlds, (port, binding), news))
    }

    /// Begins to open a connection. Never blocks. A connection to an address of the stack, to
    /// 127.0.0.1 or to `::1` reaches the stack's own listeners and never a device.
    ///
    /// # Errors
    /// [`SocketError::Down`]; [`SocketError::Unreachable`] if `remote` is not the address of a
    /// single host, such as a broadcast or multicast address, 0.0.0.0 or 240.0.0.0/4 (RFC 1122
    /// section 4.2.3.10, RFC 6890); [`SocketError::PortZero`] if its port is 0;
    /// [`SocketError::NoRoute`] if no route leads there.
    pub fn begin_connect(&self, remote: SocketAddr) -> Result<Connecting, SocketError> {
        let any = SocketAddr::new(Address::UNSPECIFIED.ip(), 0);
        self.begin_connect_from(any, remote)
    }

    /// As [`Sockets::begin_connect`], from `local`: one of our addresses, or 0.0.0.0 or `::` for
    /// a suitable one; and a port, or 0 for a free one. If there are several interfaces, the
    /// connection uses the one with the address.
    ///
    /// ```
    /// use dominoes_drivers::memory::{self, MemoryConfig};
    /// use dominoes_netstack::Stack;
    ///
    /// let (left, right) = memory::pair(MemoryConfig::default());
    /// let server = Stack::builder("10.0.0.1/24").start(left)?;
    /// let client = Stack::builder("10.0.0.2/24").start(right)?;
    /// let listener = server.listen(7, 128)?;
    /// let (local, remote) = ("10.0.0.2:1023".parse()?, "10.0.0.1:7".parse()?);
    /// let _stream = client.sockets().begin_connect_from(local, remote)?.finish()?;
    /// assert_eq!(listener.accept()?.1, local);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Sockets::begin_connect`]; [`SocketError::NotOurs`] if the address is not ours;
    /// [`SocketError::Invalid`] if its family differs from that of `remote`. The port is checked
    /// later: [`Connecting::try_finish`] returns [`SocketError::PortTaken`] if a listener has it,
    /// or if a connection between the two ends exists.
    pub fn begin_connect_from(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<Connecting, SocketError> {
        self.check_up()?;
        let (address, from) = (Address::from(remote.ip()), Address::from(local.ip()));
        let interface = match from.is_unspecified() {
            true => interfaces::towards(&self.worlds, remote),
            false => {
                let has_several = self.world().shared.has_interfaces();
                let own = interfaces::with_address(&self.worlds, from);
                let own = own.or_else(|| self.taking(from, remote));
                let own = own.ok_or(SocketError::NotOurs)?;
                if from.is_v4() != address.is_v4() {
                    return Err(SocketError::Invalid);
                }
                has_several.then_some(own)
            }
        };
        let groups = self.groups_of(interface.unwrap_or(0));
        let world = &self.worlds[groups.start];
        let is_up = !world.is_link_down();
        world.with_site(|site| {
            if !site.is_one_host(address) {
                return Err(SocketError::Unreachable);
            }
            if remote.port() == 0 {
                return Err(SocketError::PortZero);
            }
            let is_local = address.ip().is_loopback() || from.ip().is_loopback();
            let may_come = || address.is_v4() && !site.has_v4() && world.awaits_lease();
            let leads = || site.next_hop(address).is_some() || may_come();
            let is_there = || is_up && !is_local && leads();
            match site.is_ourselves(address) || is_there() {
                true => Ok(()),
                false => Err(SocketError::NoRoute),
            }
        })?;
        let (local, remote) = (Endpoint::new(from, local.port()), remote.into());
        let group = self.opening_group(Flow { local, remote }, groups.len());
        let world = &self.worlds[groups.start + group];
        let request_id = world.socket_table().new_request(world.limits.settings());
        world.command(Command::Open(WaitingOpen {
            request_id,
            local,
            remote,
        }));
        Ok(Connecting {
            world: Arc::clone(world),
            request_id,
            watched: poller::Watched::default(),
            conn: Arc::default(),
            opened: None,
        })
    }

    /// The interface towards `remote`, if it takes packets to `from` though that is no address of
    /// ours.
    fn taking(&self, from: Address, remote: SocketAddr) -> Option<usize> {
        let interface = interfaces::towards(&self.worlds, remote).unwrap_or(0);
        let world = &self.worlds[self.groups_of(interface).start];
        world
            .with_site_for(from, |site| site.takes(from))
            .then_some(interface)
    }

    /// Chooses one of an interface's `count` groups to open a connection: the group to which its
    /// flow hashes, or, while its port is unknown, the next in turn.
    fn opening_group(&self, flow: Flow, count: usize) -> usize {
        match flow.local.port {
            0 => self.turn.fetch_add(1, Ordering::Relaxed) % count,
            _ => Grouping::new(&self.world().keys, count as u16)
                .group(&flow)
                .into(),
        }
    }

    /// As [`Sockets::connect`], from `local` as in [`Sockets::begin_connect_from`].
    ///
    /// # Errors
    /// As [`Sockets::begin_connect_from`] and [`Connecting::try_finish`].
    pub fn connect_from(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<TcpStream, SocketError> {
        self.begin_connect_from(local, remote)?.finish()
    }

    /// Opens a connection, and waits until it is established.
    ///
    /// # Errors
    /// As [`Sockets::begin_connect`] and [`Connecting::try_finish`]; [`SocketError::NoAddress`]
    /// if `remote` is text that is neither an address nor a name with an address.
    pub fn connect(&self, remote: impl ToSocketAddrs) -> Result<TcpStream, SocketError> {
        let opened = each_address(remote, |remote| self.begin_connect(remote)?.finish());
        opened.map_err(|error| SocketError::of(&error).unwrap_or(SocketError::NoAddress))
    }

    /// As [`Sockets::connect`], and gives up after `timeout`.
    ///
    /// # Errors
    /// As [`Connecting::finish_within`].
    pub fn connect_timeout(
        &self,
        remote: SocketAddr,
        timeout: Duration,
    ) -> Result<TcpStream, SocketError> {
        self.begin_connect(remote)?.finish_within(timeout)
    }

    /// The stack's current IPv6 addresses, link-local ones included, in the order of its
    /// interfaces. The first appears after about a second, when no other host is known to have
    /// it.
    pub fn ipv6_addresses(&self) -> Vec<Ipv6Addr> {
        let places = self.first_groups().map(|world| world.v6());
        let own = places.flat_map(|place| place.addresses);
        own.map(|own| own.address.to_v6()).collect()
    }

    /// Counters of a stack that runs on threads; all zero for a stack that is driven by hand.
    pub fn stats(&self) -> StackStats {
        let stats = self.worlds.iter().map(|world| world.stats());
        stats.fold(StackStats::default(), StackStats::and)
    }

    fn check_up(&self) -> Result<(), SocketError> {
        if self.world().is_closing() {
            Err(SocketError::Down)
        } else {
            Ok(())
        }
    }
}

impl From<EndReason> for SocketError {
    fn from(ending: EndReason) -> Self {
        match ending {
            EndReason::Reset => SocketError::Reset,
            EndReason::Refused => SocketError::Refused,
            EndReason::TimedOut => SocketError::TimedOut,
            EndReason::Unreachable => SocketError::Unreachable,
            EndReason::Aborted => SocketError::Aborted,
            EndReason::AddressLost => SocketError::AddressLost,
        }
    }
}

/// A connection: bytes in and out, in order.
///
/// Dropping it closes it as `close` does: written bytes are still sent, and unread or later bytes
/// cause a reset (RFC 1122 section 4.2.2.13).
///
/// Its bytes have no time of arrival, unlike datagrams ([`UdpSocket::set_packet_info`]): a read
/// joins bytes of several segments, and the threads that copy them would have to store a time for
/// each copy. When a poller reports the stream, a program can ask
/// [`Stack::now`](crate::Stack::now).
pub struct TcpStream {
    watched: poller::Watched,
    half: Arc<Half>,
    reader: ReadHalf,
    writer: WriteHalf,
}

impl TcpStream {
    /// Without a connection if `world` was used for a replay.
    fn new(world: &Arc<World>, conn: ConnId, flow: Flow) -> Self {
        let conn = match world.admits_sockets() {
            true => conn,
            false => ConnId::NONE,
        };
        TcpStream::over(&Arc::new(Half::new(world, conn, flow)))
    }

    fn over(half: &Arc<Half>) -> Self {
        TcpStream {
            watched: poller::Watched::default(),
            reader: ReadHalf::new(half),
            writer: WriteHalf::new(half),
            half: Arc::clone(half),
        }
    }

    /// Splits into two halves, which two threads can use.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        (self.reader, self.writer)
    }

    /// Both halves by reference.
    pub fn halves(&mut self) -> (&mut ReadHalf, &mut WriteHalf) {
        (&mut self.reader, &mut self.writer)
    }

    /// Another handle of the same connection. Each byte is read through one handle only; writes
    /// of all handles form one stream; all options are shared. The connection closes when the
    /// last handle is dropped.
    ///
    /// # Errors
    /// None as yet.
    pub fn try_clone(&self) -> io::Result<TcpStream> {
        Ok(TcpStream::over(&self.half))
    }

    /// Our end.
    ///
    /// # Errors
    /// None as yet.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.half.flow.local.into())
    }

    /// The peer's end, even after the connection has ended.
    ///
    /// # Errors
    /// None as yet.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.half.flow.remote.into())
    }

    /// The connection's name within its group.
    pub fn conn(&self) -> ConnId {
        let stream = self.half.stream();
        stream.map_or(ConnId::NONE, |stream| stream.conn())
    }

    /// The number of the group that has the connection.
    pub fn group(&self) -> usize {
        usize::from(self.half.world.group)
    }

    /// Ends writing: the peer reads the end of the stream after the written bytes (RFC 9293
    /// section 3.10.4).
    pub fn shutdown_write(&self) {
        self.half.shut_write();
    }

    /// As [`ReadHalf::shutdown`], [`TcpStream::shutdown_write`], or both. Calls of other threads
    /// that wait in a closed direction return.
    ///
    /// # Errors
    /// [`SocketError::NotConnected`] if the connection ended early.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let ended = self.half.stream()?.status().end_reason();
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.half.shut_read();
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.half.shut_write();
        }
        match ended {
            Some(_) => Err(SocketError::NotConnected.into()),
            None => Ok(()),
        }
    }

    /// Whether calls return [`SocketError::WouldBlock`] where they would wait. Default: no.
    ///
    /// # Errors
    /// None as yet.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.half.read_wait.set_nonblocking(nonblocking);
        self.half.write_wait.set_nonblocking(nonblocking);
        Ok(())
    }

    /// As [`ReadHalf::set_timeout`].
    ///
    /// # Errors
    /// As [`ReadHalf::set_timeout`].
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(self.half.read_wait.set_timeout(timeout)?)
    }

    /// As [`TcpStream::set_read_timeout`] set it.
    ///
    /// # Errors
    /// None as yet.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.half.read_wait.timeout())
    }

    /// As [`WriteHalf::set_timeout`].
    ///
    /// # Errors
    /// As [`WriteHalf::set_timeout`].
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(self.half.write_wait.set_timeout(timeout)?)
    }

    /// As [`TcpStream::set_write_timeout`] set it.
    ///
    /// # Errors
    /// None as yet.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.half.write_wait.timeout())
    }

    /// Returns how the connection ended, if it ended early and no call has returned this before.
    /// Reads and writes still return it.
    ///
    /// # Errors
    /// None as yet.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.half.take_error().map(io::Error::from))
    }

    /// As [`ReadHalf::unread`].
    ///
    /// # Errors
    /// As [`ReadHalf::unread`].
    pub fn unread(&self) -> Result<usize, SocketError> {
        self.reader.unread()
    }

    /// Whether small segments leave at once, though others are in flight (RFC 9293 section 3.7.4).
    /// Default: no.
    ///
    /// # Errors
    /// None as yet.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.writer.set_nodelay(nodelay);
        Ok(())
    }

    /// As [`TcpStream::set_nodelay`] set it.
    ///
    /// # Errors
    /// None as yet.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.half.settings().nodelay)
    }

    /// Whether, and how, to probe a silent peer (RFC 1122 section 4.2.3.6). A peer that does not
    /// answer ends the connection with [`SocketError::TimedOut`]. Default: no probes.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if a value is out of its range.
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> Result<(), SocketError> {
        self.half.set(|settings| settings.keepalive(keepalive))
    }

    /// As [`TcpStream::set_keepalive`] set it.
    pub fn keepalive(&self) -> Option<Keepalive> {
        self.half.settings().keepalive
    }

    /// How long data may stay unacknowledged before the connection ends with
    /// [`SocketError::TimedOut`] (RFC 9293 section 3.8.3). It is checked from the first
    /// retransmission on, so a shorter time than the retransmission timeout takes effect then. It
    /// does not end a connection whose peer keeps its window closed but answers.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> Result<(), SocketError> {
        let timeout = timeout.map(Into::into);
        self.half.set(|settings| settings.user_timeout(timeout))
    }

    /// As [`TcpStream::set_user_timeout`] set it.
    pub fn user_timeout(&self) -> Option<Duration> {
        self.half.settings().user_timeout.map(Into::into)
    }

    /// Hops that packets may make, 1 to 255 (RFC 1122 section 4.2.4.2). Default 64. Packets under
    /// way and the handshake are not affected.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] out of this range.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = valid_ttl(ttl)?;
        Ok(self.half.set(|settings| settings.ttl(ttl))?)
    }

    /// As [`TcpStream::set_ttl`] set it.
    ///
    /// # Errors
    /// None as yet.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(self.half.settings().ttl.into())
    }

    /// DSCP (RFC 2474) in the upper six bits. The lower two bits are ignored, since the
    /// connection controls ECN (RFC 3168 section 6.1). Default 0.
    pub fn set_tos(&self, tos: u8) {
        // Every value is valid.
        let _ = self.half.set(|settings| settings.tos(tos));
    }

    /// As [`TcpStream::set_tos`] set it.
    pub fn tos(&self) -> u8 {
        self.half.settings().tos
    }

    /// Sets all of the above at once.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if a value is out of its range.
    pub fn set_settings(&self, settings: Settings) -> Result<(), SocketError> {
        self.half.set(|_| settings)
    }

    /// The current settings.
    pub fn settings(&self) -> Settings {
        self.half.settings()
    }

    /// Sets how much memory and network the connection may use, and what dropping it does.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if a value is out of its range.
    pub fn set_tuning(&self, tuning: Tuning) -> Result<(), SocketError> {
        self.half.tune(|_| tuning)
    }

    /// As [`TcpStream::set_tuning`] set it.
    pub fn tuning(&self) -> Tuning {
        self.half.tuning()
    }

    /// As [`Tuning::linger`]: sets what dropping the connection does. `None`, the default: the
    /// stack still sends the written bytes. Zero: the stack discards them and resets the
    /// connection. Longer: the stack resets it after this time, unless the peer has everything.
    /// No thread waits; a thread that wants to wait calls [`TcpStream::close_within`].
    pub fn set_linger(&self, linger: Option<Duration>) {
        let linger = linger.map(Into::into);
        // Any time is valid.
        let _ = self.half.tune(|tuning| tuning.linger(linger));
    }

    /// As [`TcpStream::set_linger`] set it.
    pub fn linger(&self) -> Option<Duration> {
        self.tuning().linger.map(Into::into)
    }

    /// As [`Tuning::notsent_lowat`]; `None`, the default: no bound.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is 0, or, for a stream of units, shorter than the longest
    /// unit.
    pub fn set_notsent_lowat(&self, bytes: Option<u32>) -> Result<(), SocketError> {
        if bytes == Some(0) {
            return Err(SocketError::Invalid);
        }
        let bytes = bytes.unwrap_or(0);
        self.half.tune(|tuning| tuning.notsent_lowat(bytes))
    }

    /// As [`TcpStream::set_notsent_lowat`] set it.
    pub fn notsent_lowat(&self) -> Option<u32> {
        Some(self.tuning().notsent_lowat).filter(|bytes| *bytes > 0)
    }

    /// As [`Tuning::cork`].
    pub fn set_cork(&self, cork: bool) {
        // A flag is always valid.
        let _ = self.half.tune(|tuning| tuning.cork(cork));
    }

    /// The most bytes that may be written but not acknowledged, from 1024 to
    /// [`Limits::send_buffer`](crate::Limits::send_buffer), which `None`, the default, also
    /// means. Within this bound a connection may hold 64 KiB plus twice the bytes that its peer
    /// has acknowledged.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is smaller.
    pub fn set_send_buffer(&self, bytes: Option<u32>) -> Result<(), SocketError> {
        if bytes.is_some_and(|bytes| bytes < self.half.least.send.max(1 << 10)) {
            return Err(SocketError::Invalid);
        }
        let stream = self.half.stream()?;
        stream.set_send_limit(bytes.unwrap_or(0));
        // Waiting writers may have more room now.
        stream.room().notify_all();
        Ok(())
    }

    /// As [`TcpStream::set_send_buffer`] set it.
    ///
    /// # Errors
    /// How the connection ended, if its memory has been freed.
    pub fn send_buffer(&self) -> Result<Option<u32>, SocketError> {
        let bytes = self.half.stream()?.send_limit();
        Ok((bytes > 0).then_some(bytes))
    }

    /// Shuts down the sending side, and waits until the peer has everything or the connection has
    /// ended. The wait does not drive a stack that is driven by hand.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] after `timeout`, when the stack still sends the written bytes;
    /// how the connection ended, if it ended early.
    pub fn close_within(self, timeout: Duration) -> Result<(), SocketError> {
        self.half.shut_write();
        self.half.await_end(WaitUntil::after(timeout))?;
        match self.half.stream()?.status().end_reason() {
            Some(ended) => Err(ended.into()),
            None => Ok(()),
        }
    }

    /// The current state of the connection. A thread of the stack reads it between two of its
    /// turns. `None` if the connection is gone, or no thread does so within
    /// [`LIST_TIMEOUT`](crate::LIST_TIMEOUT), as in a stack that is driven by hand.
    pub fn info(&self) -> Option<ConnectionStats> {
        let (world, conn) = (&self.half.world, self.conn());
        world.view.one(conn, || world.wake_pump(), LIST_TIMEOUT)
    }

    /// As [`Read::read`], but the bytes can be read again.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut into = [IoSliceMut::new(into)];
        Ok(self.reader.copy_waiting(&mut into, false)?)
    }

    /// Ends the connection at once, with a reset (RFC 9293 section 3.10.5).
    pub fn abort(self) {
        self.half.request(AppRequest {
            abort: true,
            ..AppRequest::default()
        });
    }

    /// As [`ReadHalf::try_read`].
    ///
    /// # Errors
    /// As [`ReadHalf::try_read`].
    pub fn try_read(&mut self, into: &mut [u8]) -> Result<usize, SocketError> {
        self.reader.try_read(into)
    }

    /// As [`WriteHalf::try_write`].
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`].
    pub fn try_write(&mut self, from: &[u8]) -> Result<usize, SocketError> {
        self.writer.try_write(from)
    }

    /// As [`WriteHalf::try_write_more`].
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`].
    pub fn try_write_more(&self, from: &[u8]) -> Result<usize, SocketError> {
        self.writer.write_more(from)
    }

    /// As [`WriteHalf::try_write_end`].
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`].
    pub fn try_write_end(&self, from: &[u8]) -> Result<usize, SocketError> {
        self.writer.write_end(from)
    }
}

/// Checks the range of a hop limit.
fn valid_ttl(ttl: u32) -> Result<u8, SocketError> {
    let ttl = u8::try_from(ttl).ok().filter(|ttl| *ttl > 0);
    ttl.ok_or(SocketError::Invalid)
}

/// `Read` and `Write`, by reference or not.
macro_rules! read_and_write {
    ($($stream:ty),*) => {$(
        impl Read for $stream {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                self.read_vectored(&mut [IoSliceMut::new(into)])
            }

            fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                Ok(self.reader.copy_waiting(into, true)?)
            }
        }

        impl Write for $stream {
            fn write(&mut self, from: &[u8]) -> io::Result<usize> {
                self.write_vectored(&[IoSlice::new(from)])
            }

            fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
                Ok(self.writer.write_waiting(from)?)
            }

            /// Returns at once: written bytes are sent without a flush.
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
    )*};
}

read_and_write!(TcpStream, &TcpStream);

impl BufRead for TcpStream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, len: usize) {
        ReadHalf::consume(&mut self.reader, len);
    }
}

macro_rules! debug_as_flow {
    ($($socket:ident: $field:ident;)*) => {$(
        impl core::fmt::Debug for $socket {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($socket)).field(stringify!($field), &self.$field).finish_non_exhaustive()
            }
        }
    )*};
}

debug_as_flow! {
    Connecting: request_id;
    TcpStream: half;
    ReadHalf: half;
    WriteHalf: half;
    Half: flow;
}

impl core::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sockets")
            .field("address", &self.world().v4().address)
            .finish_non_exhaustive()
    }
}
