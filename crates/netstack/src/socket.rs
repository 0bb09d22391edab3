//! Sockets: listeners and byte streams, blocking or not.
//!
//! A socket never publishes anything. It moves a cursor, raises a flag, and the pump does the rest;
//! it reads and writes the shared rings in place. The `try_` calls never wait and are what a stack
//! driven by hand, or from inside a context, uses; the others wait for another thread to drive the
//! stack.

mod half;
mod open;
mod read;
mod udp;
mod wait;
mod write;

use core::net::SocketAddrV4;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use std::io::{self, BufRead, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;

use crate::config::Keepalive;
use crate::error::SocketError;
use crate::io::processor::InlineStats;
use crate::io::stream::{AppRequest, EndReason, Handle};
use crate::io::world::{AcceptQueue, Command, World};
use crate::keys::Domain;
use crate::log::request::{ConnId, Flow};
use crate::state::ports::ephemeral_from;
use crate::stats::StackStats;

use half::Half;

pub(crate) use wait::WaitUntil;

pub use open::{Connecting, TcpListener};
pub use read::ReadHalf;
pub use udp::{Received, UdpReceiver, UdpSender, UdpSocket};
pub use write::WriteHalf;

/// The sockets of a stack: from here connections are opened and listened for.
#[derive(Clone)]
pub struct Sockets {
    /// One for each group; they have one socket table.
    worlds: Arc<[Arc<World>]>,
    /// Which group opens the next connection.
    turn: Arc<AtomicUsize>,
}

impl Sockets {
    pub(crate) fn new(world: &Arc<World>) -> Self {
        Sockets::over(vec![Arc::clone(world)])
    }

    /// Those of groups that have one socket table, in their order; at least one.
    pub(crate) fn over(worlds: Vec<Arc<World>>) -> Self {
        Sockets {
            worlds: worlds.into(),
            turn: Arc::default(),
        }
    }

    pub(crate) fn worlds(&self) -> &[Arc<World>] {
        &self.worlds
    }

    /// The first group's: what is said of one is said of all, and UDP sockets are its own.
    fn world(&self) -> &Arc<World> {
        &self.worlds[0]
    }

    /// Listens on `port`, or with 0 on one that is free; at most `backlog` connections of each
    /// group wait to be accepted. Never blocks.
    ///
    /// # Errors
    /// [`SocketError::PortTaken`], [`SocketError::Down`].
    pub fn listen(&self, port: u16, backlog: u16) -> Result<TcpListener, SocketError> {
        self.check_up()?;
        let mut table = self.world().socket_table();
        let port = match port {
            0 => {
                let start = self
                    .world()
                    .random_port(Domain::TcpPort, table.next_request_id());
                let is_free = |port: &u16| !table.listeners.contains_key(port);
                let mut ports = ephemeral_from(start as u16);
                ports.find(is_free).ok_or(SocketError::PortTaken)?
            }
            port => port,
        };
        if table.listeners.contains_key(&port) {
            return Err(SocketError::PortTaken);
        }
        let queue = AcceptQueue {
            accepted: vec![0; self.worlds.len()],
            ..AcceptQueue::default()
        };
        table.listeners.insert(port, queue);
        // While the socket table is held, so that listening and not listening reach the log in this
        // order.
        for world in &*self.worlds {
            world.command(Command::Listen { port, backlog });
        }
        drop(table);
        Ok(TcpListener {
            worlds: Arc::clone(&self.worlds),
            port,
            nonblocking: AtomicBool::new(false),
        })
    }

    /// Begins to open a connection. Never blocks.
    ///
    /// # Errors
    /// [`SocketError::Down`]; [`SocketError::Ourselves`] if `remote` is the stack's own address;
    /// [`SocketError::Unreachable`] if it is not that of a single host, such as a broadcast or
    /// multicast address, 0.0.0.0 or 240.0.0.0/4 (RFC 1122 section 4.2.3.10, RFC 6890), and
    /// [`SocketError::Invalid`] if its port is 0.
    pub fn begin_connect(&self, remote: SocketAddrV4) -> Result<Connecting, SocketError> {
        self.check_up()?;
        if self.world().site.is_ourselves(*remote.ip()) {
            return Err(SocketError::Ourselves);
        }
        if !self.world().site.is_one_host(*remote.ip()) {
            return Err(SocketError::Unreachable);
        }
        if remote.port() == 0 {
            return Err(SocketError::Invalid);
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let world = &self.worlds[turn % self.worlds.len()];
        let request_id = world.socket_table().new_request();
        world.command(Command::Open { request_id, remote });
        Ok(Connecting {
            world: Arc::clone(world),
            request_id,
            opened: None,
        })
    }

    /// Opens a connection, and waits until it is established.
    ///
    /// # Errors
    /// As [`Sockets::begin_connect`] and [`Connecting::try_finish`].
    pub fn connect(&self, remote: SocketAddrV4) -> Result<TcpStream, SocketError> {
        self.begin_connect(remote)?.finish()
    }

    /// As [`Sockets::connect`], and gives up after `timeout`.
    ///
    /// # Errors
    /// As [`Connecting::finish_within`].
    pub fn connect_timeout(
        &self,
        remote: SocketAddrV4,
        timeout: Duration,
    ) -> Result<TcpStream, SocketError> {
        self.begin_connect(remote)?.finish_within(timeout)
    }

    /// Counters of a stack that runs on threads of its own; all zero of one that is driven by hand.
    pub fn stats(&self) -> StackStats {
        let stats = self.worlds.iter().map(|world| world.stats());
        stats.fold(StackStats::default(), StackStats::and)
    }

    /// What became of inline processing; all zero without a processor.
    pub fn inline_stats(&self) -> InlineStats {
        let inline = self
            .worlds
            .iter()
            .filter_map(|world| world.streams.inline.as_ref());
        inline.fold(InlineStats::default(), |sum, inline| {
            sum.and(inline.stats())
        })
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
        }
    }
}

/// A connection: bytes in and out, in order.
///
/// Dropping it closes it as `close` does: what was written is still sent, and what arrives
/// afterwards, or was not read, makes us reset it (RFC 1122 section 4.2.2.13).
pub struct TcpStream {
    half: Arc<Half>,
    reader: ReadHalf,
    writer: WriteHalf,
}

impl TcpStream {
    fn new(world: &Arc<World>, stream: Handle, flow: Flow) -> Self {
        let half = Arc::new(Half::new(world, stream, flow));
        TcpStream {
            reader: ReadHalf::new(&half),
            writer: WriteHalf::new(&half),
            half,
        }
    }

    /// The two halves, each for a thread of its own.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        (self.reader, self.writer)
    }

    /// Both halves by reference.
    pub fn halves(&mut self) -> (&mut ReadHalf, &mut WriteHalf) {
        (&mut self.reader, &mut self.writer)
    }

    /// Our end.
    pub fn local_addr(&self) -> SocketAddrV4 {
        self.half.flow.local
    }

    /// The peer's end.
    pub fn peer_addr(&self) -> SocketAddrV4 {
        self.half.flow.remote
    }

    /// The connection's name within its group. Another one when it moves.
    pub fn conn(&self) -> ConnId {
        let stream = self.half.stream();
        stream.map_or(ConnId::NONE, |stream| stream.conn())
    }

    /// Which group of its stack has the connection at present.
    pub fn group(&self) -> usize {
        let stream = self.half.stream();
        usize::from(stream.map_or(self.half.world.group, |stream| stream.home().0))
    }

    /// Asks the stack to let group `group` go on with the connection. It does so a little later, if
    /// there is such a group, it has room, and the connection is established and not over;
    /// [`TcpStream::group`] says so then. Nothing of it is lost, and reads and writes go on
    /// meanwhile.
    #[cfg(feature = "migration")]
    pub fn migrate_to(&self, group: usize) {
        if let (Ok(stream), Ok(group)) = (self.half.stream(), u16::try_from(group)) {
            self.half
                .world
                .request_migration(&stream, self.half.flow, group);
        }
    }

    /// Nothing more will be written: the peer reads the end of the stream after what was (RFC 9293
    /// section 3.10.4).
    pub fn shutdown_write(&mut self) {
        self.writer.shutdown();
    }

    /// As [`ReadHalf::shutdown`], [`TcpStream::shutdown_write`], or both.
    pub fn shutdown(&mut self, how: Shutdown) {
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.reader.shutdown();
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.shutdown_write();
        }
    }

    /// Whether calls return [`SocketError::WouldBlock`] where they would wait. Default: no.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.reader.set_nonblocking(nonblocking);
        self.writer.set_nonblocking(nonblocking);
    }

    /// As [`ReadHalf::set_timeout`].
    ///
    /// # Errors
    /// As [`ReadHalf::set_timeout`].
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.reader.set_timeout(timeout)
    }

    /// As [`WriteHalf::set_timeout`].
    ///
    /// # Errors
    /// As [`WriteHalf::set_timeout`].
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.writer.set_timeout(timeout)
    }

    /// Whether small segments leave at once, though others are in flight (RFC 9293 section 3.7.4).
    /// Default: no.
    pub fn set_nodelay(&self, nodelay: bool) {
        self.writer.set_nodelay(nodelay);
    }

    /// As [`TcpStream::set_nodelay`] set it.
    pub fn nodelay(&self) -> bool {
        self.half.settings().nodelay
    }

    /// Whether, and how, the peer is asked if it is there when it says nothing (RFC 1122 section
    /// 4.2.3.6). A peer that does not answer ends the connection with [`SocketError::TimedOut`].
    /// Default: it is not asked.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if a value is out of its range.
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> Result<(), SocketError> {
        if keepalive.is_some_and(|keepalive| !keepalive.is_valid()) {
            return Err(SocketError::Invalid);
        }
        self.half.set(|stream| stream.set_keepalive(keepalive));
        Ok(())
    }

    /// As [`TcpStream::set_keepalive`] set it.
    pub fn keepalive(&self) -> Option<Keepalive> {
        self.half.settings().keepalive
    }

    /// How long the peer may leave something unanswered before the connection ends with
    /// [`SocketError::TimedOut`] (RFC 9293 section 3.8.3). It is looked at from the first
    /// retransmission on, so shorter times than the retransmission timeout end then. A peer that
    /// keeps its window closed, but answers, may do so for ever.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> Result<(), SocketError> {
        if timeout == Some(Duration::ZERO) {
            return Err(SocketError::Invalid);
        }
        self.half
            .set(|stream| stream.set_user_timeout(timeout.map(Into::into)));
        Ok(())
    }

    /// As [`TcpStream::set_user_timeout`] set it.
    pub fn user_timeout(&self) -> Option<Duration> {
        self.half.settings().user_timeout.map(Into::into)
    }

    /// Hops that packets may make, at least 1 (RFC 1122 section 4.2.4.2). Default 64. What is under
    /// way keeps its own; the handshake is over by then.
    pub fn set_ttl(&self, ttl: u8) {
        self.half.set(|stream| stream.set_ttl(ttl.max(1)));
    }

    /// As [`TcpStream::set_ttl`] set it.
    pub fn ttl(&self) -> u8 {
        self.half.settings().ttl
    }

    /// DSCP (RFC 2474) in the upper six bits. The lower two are ECN's, which the connection sets by
    /// itself (RFC 3168 section 6.1), so they are ignored. Default 0.
    pub fn set_tos(&self, tos: u8) {
        self.half.set(|stream| stream.set_tos(tos & !0b11));
    }

    /// As [`TcpStream::set_tos`] set it.
    pub fn tos(&self) -> u8 {
        self.half.settings().tos
    }

    /// What dropping the connection does. `None`, the default: what was written goes on its way by
    /// itself. Zero: it is given up, and the peer gets a reset. Longer: the thread that drops it
    /// waits so long, at most, for the peer to have everything. A stack that is driven by hand is
    /// not driven by a thread that waits.
    pub fn set_linger(&self, linger: Option<Duration>) {
        self.half.set_linger(linger);
    }

    /// As [`TcpStream::set_linger`] set it.
    pub fn linger(&self) -> Option<Duration> {
        self.half.linger()
    }

    /// As [`ReadHalf::peek`].
    ///
    /// # Errors
    /// As [`ReadHalf::peek`].
    pub fn peek(&mut self, into: &mut [u8]) -> Result<usize, SocketError> {
        self.reader.peek(into)
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
}

impl Read for TcpStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reader.read(into)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.reader.read_vectored(into)
    }
}

impl BufRead for TcpStream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, len: usize) {
        ReadHalf::consume(&mut self.reader, len);
    }
}

impl Write for TcpStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.writer.write(from)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.writer.write_vectored(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
    TcpListener: port;
    Connecting: request_id;
    TcpStream: half;
    ReadHalf: half;
    WriteHalf: half;
    Half: flow;
}

impl core::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sockets")
            .field("address", &self.world().address)
            .finish_non_exhaustive()
    }
}
