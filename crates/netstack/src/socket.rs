//! Sockets: listeners and byte streams, blocking or not.
//!
//! A socket never publishes anything. It moves a cursor, raises a flag, and the pump does the rest; it reads
//! and writes the shared rings in place. The `try_` calls never wait and are what a stack driven by hand, or
//! from inside a context, uses; the others wait for another thread to drive the stack.

use core::net::SocketAddrV4;
use std::io::{self, BufRead, Read, Write};
use std::sync::{Arc, MutexGuard, PoisonError};

use crate::digest::{ConnId, Flow};
use crate::engine::processor::InlineStats;
use crate::engine::stream::{Asked, Ending, Seen, StreamRef};
use crate::engine::world::{AcceptQueue, Answer, Command, Desk, World};
use crate::error::SocketError;

/// The sockets of a stack: from here connections are opened and listened for.
#[derive(Clone)]
pub struct Sockets {
    world: Arc<World>,
}

impl Sockets {
    pub(crate) fn new(world: &Arc<World>) -> Self {
        Sockets {
            world: Arc::clone(world),
        }
    }

    /// Listens on `port`; at most `backlog` connections wait to be accepted. Never blocks.
    ///
    /// # Errors
    /// [`SocketError::PortTaken`], [`SocketError::Down`].
    pub fn listen(&self, port: u16, backlog: u16) -> Result<TcpListener, SocketError> {
        self.up()?;
        let mut desk = self.world.desk();
        if desk.listeners.contains_key(&port) {
            return Err(SocketError::PortTaken);
        }
        desk.listeners.insert(port, AcceptQueue::default());
        // While the desk is held, so that listening and not listening reach the log in this order.
        self.world.command(Command::Listen { port, backlog });
        drop(desk);
        Ok(TcpListener {
            world: Arc::clone(&self.world),
            port,
        })
    }

    /// Begins to open a connection. Never blocks.
    ///
    /// # Errors
    /// [`SocketError::Down`].
    pub fn begin_connect(&self, remote: SocketAddrV4) -> Result<Connecting, SocketError> {
        self.up()?;
        let ticket = self.world.desk().ticket();
        self.world.command(Command::Open { ticket, remote });
        Ok(Connecting {
            world: Arc::clone(&self.world),
            ticket,
            opened: None,
        })
    }

    /// Opens a connection, and waits until it is established.
    ///
    /// # Errors
    /// As [`Connecting::try_finish`].
    pub fn connect(&self, remote: SocketAddrV4) -> Result<TcpStream, SocketError> {
        self.begin_connect(remote)?.finish()
    }

    /// What became of inline processing; all zero without a processor.
    pub fn inline_stats(&self) -> InlineStats {
        let inline = self.world.streams.inline.as_ref();
        inline.map_or_else(InlineStats::default, |inline| inline.stats())
    }

    fn up(&self) -> Result<(), SocketError> {
        if self.world.is_down() {
            Err(SocketError::Down)
        } else {
            Ok(())
        }
    }
}

/// A port that connections arrive at. Dropping it stops listening and resets what was not accepted.
pub struct TcpListener {
    world: Arc<World>,
    port: u16,
}

impl TcpListener {
    /// Takes the next established connection, waiting for it.
    ///
    /// # Errors
    /// [`SocketError::Down`].
    pub fn accept(&self) -> Result<(TcpStream, SocketAddrV4), SocketError> {
        let mut desk = self.world.desk();
        loop {
            match self.take(&mut desk) {
                Err(SocketError::WouldBlock) => {
                    desk = wait(&self.world, desk);
                }
                other => return other,
            }
        }
    }

    /// Takes the next established connection if there is one.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`], [`SocketError::Down`].
    pub fn try_accept(&self) -> Result<(TcpStream, SocketAddrV4), SocketError> {
        self.take(&mut self.world.desk())
    }

    fn take(&self, desk: &mut Desk) -> Result<(TcpStream, SocketAddrV4), SocketError> {
        if self.world.is_down() {
            return Err(SocketError::Down);
        }
        let queue = desk.listeners.entry(self.port).or_default();
        let Some((conn, remote)) = queue.ready.pop_front() else {
            return Err(SocketError::WouldBlock);
        };
        queue.accepted += 1;
        self.world.command(Command::Accepted {
            port: self.port,
            accepted: queue.accepted,
        });
        let flow = Flow {
            local: self.local_addr(),
            remote,
        };
        Ok((TcpStream::new(&self.world, conn, flow), remote))
    }

    /// Our end.
    pub fn local_addr(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.world.address, self.port)
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let mut desk = self.world.desk();
        let queue = desk.listeners.remove(&self.port).unwrap_or_default();
        self.world.command(Command::Unlisten { port: self.port });
        drop(desk);
        for (conn, _) in queue.ready {
            self.world.abandon(conn);
        }
    }
}

fn wait<'a>(world: &'a World, desk: MutexGuard<'a, Desk>) -> MutexGuard<'a, Desk> {
    let waited = world.desk_bell.wait(desk);
    waited.unwrap_or_else(PoisonError::into_inner)
}

/// A connection that is being opened. Dropping it gives up.
pub struct Connecting {
    world: Arc<World>,
    ticket: u64,
    opened: Option<TcpStream>,
}

impl Connecting {
    /// The connection, once it is established. `None`: not yet.
    ///
    /// # Errors
    /// [`SocketError::Refused`], [`SocketError::TimedOut`], [`SocketError::Unreachable`],
    /// [`SocketError::NoRoom`], [`SocketError::Down`]. After an error or a stream it has nothing more to say.
    pub fn try_finish(&mut self) -> Result<Option<TcpStream>, SocketError> {
        if self.opened.is_none() {
            let mut desk = self.world.desk();
            if self.world.is_down() {
                return Err(SocketError::Down);
            }
            let Some(&Some(answer)) = desk.answers.get(&self.ticket) else {
                return Ok(None);
            };
            desk.answers.remove(&self.ticket);
            match answer {
                Answer::Opened { conn, flow } => {
                    self.opened = Some(TcpStream::new(&self.world, conn, flow));
                }
                Answer::NoRoom => return Err(SocketError::NoRoom),
                Answer::Unreachable => return Err(SocketError::Unreachable),
            }
        }
        let Some(stream) = &self.opened else {
            return Ok(None);
        };
        let life = stream.half.stream()?.life();
        // A reset ends only what was established, though its news may overtake that. What ended the
        // connection since is for the stream to tell.
        if life.established() || life.ending() == Some(Ending::Reset) {
            return Ok(self.opened.take());
        }
        match life.ending() {
            Some(ending) => Err(ending.into()),
            None => Ok(None),
        }
    }

    /// Waits until the connection is established.
    ///
    /// # Errors
    /// As [`Connecting::try_finish`].
    pub fn finish(mut self) -> Result<TcpStream, SocketError> {
        loop {
            if let Some(stream) = self.try_finish()? {
                return Ok(stream);
            }
            match &self.opened {
                Some(stream) => {
                    let half = Arc::clone(&stream.half);
                    let key = half.stream()?.waiting().prepare();
                    if let Some(stream) = self.try_finish()? {
                        return Ok(stream);
                    }
                    half.stream()?.waiting().wait(key, None);
                }
                None => {
                    let desk = self.world.desk();
                    let unanswered = matches!(desk.answers.get(&self.ticket), Some(None));
                    if unanswered && !self.world.is_down() {
                        drop(wait(&self.world, desk));
                    }
                }
            }
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        let answer = self.world.desk().answers.remove(&self.ticket);
        if let Some(Some(Answer::Opened { conn, .. })) = answer {
            self.world.abandon(conn);
        }
    }
}

impl From<Ending> for SocketError {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Reset => SocketError::Reset,
            Ending::Refused => SocketError::Refused,
            Ending::TimedOut => SocketError::TimedOut,
            Ending::Aborted => SocketError::Aborted,
        }
    }
}

/// What both halves of a connection share. When the last of them goes, so does the connection's holder.
struct Half {
    world: Arc<World>,
    conn: ConnId,
    flow: Flow,
}

impl Half {
    fn stream(&self) -> Result<StreamRef<'_>, SocketError> {
        // The place stays ours until we let go of it.
        self.world
            .streams
            .get(self.conn)
            .ok_or(SocketError::Aborted)
    }

    fn tell(&self, asked: Asked) {
        if let Ok(stream) = self.stream() {
            stream.ask(asked);
            self.world.raise(&stream);
        }
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.tell(Asked {
            orphan: true,
            ..Asked::default()
        });
    }
}

/// A connection: octets in and out, in order.
///
/// Dropping it closes it as `close` does: what was written is still sent, and what arrives afterwards, or was
/// not read, makes us reset it (RFC 1122 section 4.2.2.13).
pub struct TcpStream {
    half: Arc<Half>,
    reader: ReadHalf,
    writer: WriteHalf,
}

/// The half of a connection that reads.
pub struct ReadHalf {
    half: Arc<Half>,
    seen: Seen,
}

/// The half of a connection that writes.
pub struct WriteHalf {
    half: Arc<Half>,
    shut: bool,
}

impl TcpStream {
    fn new(world: &Arc<World>, conn: ConnId, flow: Flow) -> Self {
        let half = Arc::new(Half {
            world: Arc::clone(world),
            conn,
            flow,
        });
        TcpStream {
            reader: ReadHalf {
                half: Arc::clone(&half),
                seen: Seen::default(),
            },
            writer: WriteHalf {
                half: Arc::clone(&half),
                shut: false,
            },
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

    /// The connection's name within its stack.
    pub fn conn(&self) -> ConnId {
        self.half.conn
    }

    /// Nothing more will be written: the peer reads the end of the stream after what was (RFC 9293
    /// section 3.10.4).
    pub fn shutdown_write(&mut self) {
        self.writer.shutdown();
    }

    /// Ends the connection at once, with a reset (RFC 9293 section 3.10.5).
    pub fn abort(self) {
        self.half.tell(Asked {
            abort: true,
            ..Asked::default()
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

impl ReadHalf {
    /// Received octets in place, as many as lie in a row; empty at the end of the stream.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there are none yet, or how the connection ended.
    pub fn try_fill(&mut self) -> Result<&[u8], SocketError> {
        let stream = self.half.stream()?;
        let life = stream.life();
        let end = stream.peer_end();
        stream.look(&mut self.seen);
        let world = &*self.half.world;
        match &world.streams.inline {
            None => self.seen.end = self.seen.arrived,
            Some(inline) => inline.open(world, &stream, &mut self.seen),
        }
        let (a, b) = stream.received(&self.seen);
        if !a.is_empty() || !b.is_empty() {
            return Ok(if a.is_empty() { b } else { a });
        }
        if end == Some(self.seen.end) {
            return Ok(&[]);
        }
        if let Some(inline) = &world.streams.inline {
            if end == Some(self.seen.arrived) {
                inline.truncated(world, &stream, self.seen.end);
            }
            if stream.failed_at() <= self.seen.end {
                return Err(SocketError::Processing);
            }
        }
        if self.half.world.is_down() {
            return Err(SocketError::Down);
        }
        match life.ending() {
            // News of the end may overtake octets that came before it.
            Some(ending) if stream.ended_at() <= self.seen.end => {
                // A unit that came early may fail before what it waits for is there.
                let failed = ending == Ending::Aborted && stream.has_failed();
                Err(if failed {
                    SocketError::Processing
                } else {
                    ending.into()
                })
            }
            _ => Err(SocketError::WouldBlock),
        }
    }

    /// The first `len` octets of what [`ReadHalf::try_fill`] gave have been used.
    ///
    /// # Panics
    /// If there were not so many.
    pub fn consume(&mut self, len: usize) {
        let Ok(stream) = self.half.stream() else {
            return;
        };
        let mss = u32::from(self.half.world.limits.mss());
        if len > 0 && stream.read(len, &mut self.seen, mss) {
            self.half.world.raise(&stream);
        }
    }

    /// Copies received octets; 0 at the end of the stream, or if `into` is empty.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn try_read(&mut self, into: &mut [u8]) -> Result<usize, SocketError> {
        if into.is_empty() {
            return Ok(0);
        }
        let octets = self.try_fill()?;
        let len = octets.len().min(into.len());
        into[..len].copy_from_slice(&octets[..len]);
        self.consume(len);
        Ok(len)
    }

    fn wait_for_octets(&mut self) -> Result<(), SocketError> {
        loop {
            match self.try_fill() {
                Err(SocketError::WouldBlock) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error),
            }
            let half = Arc::clone(&self.half);
            let waiting = half.stream()?.waiting();
            let key = waiting.prepare();
            match self.try_fill() {
                Err(SocketError::WouldBlock) => {
                    waiting.wait(key, None);
                }
                Ok(_) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Read for ReadHalf {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !into.is_empty() {
            self.wait_for_octets()?;
        }
        Ok(self.try_read(into)?)
    }
}

impl BufRead for ReadHalf {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.wait_for_octets()?;
        Ok(self.try_fill()?)
    }

    fn consume(&mut self, len: usize) {
        ReadHalf::consume(self, len);
    }
}

impl WriteHalf {
    /// Writes as much as there is room for, at least one octet.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there is no room, [`SocketError::ShutDown`], or how the connection ended.
    pub fn try_write(&mut self, from: &[u8]) -> Result<usize, SocketError> {
        let stream = self.check()?;
        let len = stream.write(from);
        if len == 0 && !from.is_empty() {
            return Err(SocketError::WouldBlock);
        }
        self.half.world.raise(&stream);
        Ok(len)
    }

    /// Declares up to `len` octets written, whatever lies in the ring there: for measuring without a copy.
    /// Returns how many there was room for.
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`], but for `WouldBlock`.
    pub fn write_as_is(&mut self, len: usize) -> Result<usize, SocketError> {
        let stream = self.check()?;
        let len = stream.write_as_is(len);
        if len > 0 {
            self.half.world.raise(&stream);
        }
        Ok(len)
    }

    /// How many octets could be written now.
    ///
    /// # Errors
    /// How the connection ended.
    pub fn room(&self) -> Result<usize, SocketError> {
        Ok(self.check()?.writable())
    }

    fn check(&self) -> Result<StreamRef<'_>, SocketError> {
        let stream = self.half.stream()?;
        if self.shut {
            return Err(SocketError::ShutDown);
        }
        let life = stream.life();
        if let Some(ending) = life.ending() {
            return Err(ending.into());
        }
        if life.retired() {
            return Err(SocketError::ShutDown);
        }
        if self.half.world.is_down() {
            return Err(SocketError::Down);
        }
        Ok(stream)
    }

    /// Whether everything written, and the end of the stream, has been acknowledged.
    pub fn all_acknowledged(&self) -> bool {
        self.half
            .stream()
            .is_ok_and(|stream| stream.life().all_acknowledged())
    }

    /// Nothing more will be written.
    pub fn shutdown(&mut self) {
        self.shut = true;
        self.half.tell(Asked {
            shutdown: true,
            ..Asked::default()
        });
    }
}

impl Write for WriteHalf {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        loop {
            match self.try_write(from) {
                Err(SocketError::WouldBlock) => {}
                done => return Ok(done?),
            }
            let half = Arc::clone(&self.half);
            let waiting = half.stream()?.waiting();
            let key = waiting.prepare();
            match self.try_write(from) {
                Err(SocketError::WouldBlock) => {
                    waiting.wait(key, None);
                }
                done => return Ok(done?),
            }
        }
    }

    /// Returns at once: what was written is on its way whether flushed or not.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reader.read(into)
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
    Connecting: ticket;
    TcpStream: half;
    ReadHalf: half;
    WriteHalf: half;
    Half: flow;
}

impl core::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sockets")
            .field("address", &self.world.address)
            .finish_non_exhaustive()
    }
}
