//! TLS whose records all workers of the stack seal and open (feature `rustls`).
//!
//! `rustls` does the handshake, with the application's own [`ClientConfig`] or [`ServerConfig`],
//! and makes the keys. After it the stack does the records: what is written is cut into records of
//! up to 16 KiB, each of which any worker seals into the send ring; what arrives is opened by any
//! worker, record by record. So one TLS stream uses several cores. The order stays that of the
//! stream: only the sealed prefix is sent, only the opened prefix is read.
//!
//! ```
//! use dominoes_drivers::memory::{self, MemoryConfig};
//! use dominoes_netstack::tls::{TlsListener, TlsStream};
//! use dominoes_netstack::Stack;
//! use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
//! use rustls::{ClientConfig, RootCertStore, ServerConfig};
//! use std::io::{Read, Write};
//! use std::sync::Arc;
//!
//! # let root = CertificateDer::from(&include_bytes!("../../tests/data/tls/ca.der")[..]);
//! # let leaf = CertificateDer::from(&include_bytes!("../../tests/data/tls/leaf.der")[..]);
//! # let key = PrivatePkcs8KeyDer::from(&include_bytes!("../../tests/data/tls/leaf.key.der")[..]);
//! let mut roots = RootCertStore::empty();
//! roots.add(root)?;
//! let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
//! let server = ServerConfig::builder()
//!     .with_no_client_auth()
//!     .with_single_cert(vec![leaf], key.into())?;
//!
//! let (left, right) = memory::pair(MemoryConfig::default());
//! let stack = Stack::builder("10.0.0.1/24").replicas(2).start(left)?;
//! let peer = Stack::builder("10.0.0.2/24").start(right)?;
//! let listener = TlsListener::new(stack.listen(443, 16)?, &Arc::new(server));
//! let serving = std::thread::spawn(move || -> std::io::Result<()> {
//!     let (handshake, _) = listener.accept()?;
//!     let mut stream = handshake.finish()?;
//!     let mut heard = String::new();
//!     stream.read_to_string(&mut heard)?;
//!     stream.write_all(heard.to_uppercase().as_bytes())
//! });
//! let name = ServerName::try_from("server.test")?;
//! let mut stream = TlsStream::connect(peer.connect("10.0.0.1:443")?, &Arc::new(client), name)?;
//! stream.write_all(b"hello")?;
//! stream.shutdown_write();
//! let mut heard = String::new();
//! stream.read_to_string(&mut heard)?;
//! assert_eq!(heard, "HELLO");
//! # serving.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is sent when
//! Every write makes records of what it is given, the last of any length; flushing does nothing.
//! Small writes cost a record each: wrap the stream in a [`BufWriter`](std::io::BufWriter).
//! What is longer than 4 KiB is left to the workers; shorter text the writer seals by itself. A
//! thread that finds all units in use, or that waits for bytes which are there, helps.
//!
//! # What it promises
//! - TLS 1.3 and 1.2 with AES-128-GCM, AES-256-GCM and ChaCha20-Poly1305. No early data, no
//!   renegotiation.
//! - Text is in the stack's memory only between the writer and the ring; no frame is built of a
//!   byte that is not sealed. A worker that dies leaves its record to another, which makes the same
//!   bytes of it.
//! - A record that is not authentic, or breaks another rule, ends the connection with its alert;
//!   nothing of it or behind it is read. A stream that ends without close_notify ends for its
//!   reader with [`TlsError::Truncated`].
//! - Keys are replaced when the peer asks, when [`TlsStream::update_keys`] is called, and before
//!   one has sealed 2^24 records with AES-GCM. The peer may send 32 records in a row that carry nothing
//!   for the reader, KeyUpdates among them but for those that were asked for.
//! - Keys are zeroed when they are replaced and when the connection goes; so is text, and before
//!   another connection has its memory.
//! - `Stack::close` lets what was written be sealed, and says close_notify.

mod error;
mod handshake;
#[cfg(feature = "prepared")]
mod prepared;
mod receiving;
mod record;
mod sending;
mod session;

use core::net::SocketAddr;
use core::time::Duration;
use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;

use rustls::client::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::server::ServerConfig;

use self::receiving::Reader;
use self::session::Session;
use super::wait::WaitUntil;
use super::{TcpListener, TcpStream};
use crate::error::SocketError;
use crate::log::request::ConnId;

pub use error::TlsError;
pub use handshake::{TlsHandshake, TlsInfo};
#[cfg(feature = "prepared")]
pub use prepared::{PreparedTls, RecordKey};
#[cfg(all(feature = "testkit", debug_assertions))]
pub use record::nonces::{NonceTally, count_nonces};

/// A TLS connection: bytes in and out, in order. The [module's documentation](self) says what it
/// promises.
///
/// Dropping it, or both halves, sends close_notify and closes it as [`TcpStream`] does.
#[derive(Debug)]
pub struct TlsStream {
    reader: TlsReadHalf,
    writer: TlsWriteHalf,
}

/// The half of a TLS connection that reads.
pub struct TlsReadHalf {
    // Dropped before the connection ends.
    reader: Reader,
    shared: Arc<Shared>,
}

/// The half of a TLS connection that writes.
pub struct TlsWriteHalf {
    shared: Arc<Shared>,
}

/// What both halves share. When the last of them goes, the connection ends.
struct Shared {
    session: Arc<Session>,
    info: TlsInfo,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.session.unwatch();
        self.session.end(None);
    }
}

impl TlsStream {
    fn new(session: &Arc<Session>, reader: Reader, info: TlsInfo) -> TlsStream {
        let session = Arc::clone(session);
        let shared = Arc::new(Shared { session, info });
        TlsStream {
            writer: TlsWriteHalf {
                shared: Arc::clone(&shared),
            },
            reader: TlsReadHalf { shared, reader },
        }
    }

    /// Does the handshake as the client, and waits for it. `name` is what the server's certificate
    /// must be for.
    ///
    /// # Errors
    /// As [`TlsHandshake::client`] and [`TlsHandshake::finish`].
    pub fn connect(
        stream: TcpStream,
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<TlsStream, TlsError> {
        TlsHandshake::client(stream, config, name)?.finish()
    }

    /// Does the handshake as the server, and waits for it.
    ///
    /// # Errors
    /// As [`TlsHandshake::server`] and [`TlsHandshake::finish`].
    pub fn accept(stream: TcpStream, config: &Arc<ServerConfig>) -> Result<TlsStream, TlsError> {
        TlsHandshake::server(stream, config)?.finish()
    }

    /// The two halves, each for a thread of its own.
    pub fn split(self) -> (TlsReadHalf, TlsWriteHalf) {
        (self.reader, self.writer)
    }

    /// Both halves by reference.
    pub fn halves(&mut self) -> (&mut TlsReadHalf, &mut TlsWriteHalf) {
        (&mut self.reader, &mut self.writer)
    }

    /// What both ends agreed on.
    pub fn info(&self) -> &TlsInfo {
        &self.reader.shared.info
    }

    fn session(&self) -> &Arc<Session> {
        self.reader.reader.session()
    }

    /// Our end.
    pub fn local_addr(&self) -> SocketAddr {
        self.session().half.flow.local.into()
    }

    /// The peer's end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.session().half.flow.remote.into()
    }

    /// The connection's name within its group.
    pub fn conn(&self) -> ConnId {
        let stream = self.session().half.stream();
        stream.map_or(ConnId::NONE, |stream| stream.conn())
    }

    /// Whether calls return [`SocketError::WouldBlock`] where they would wait. Default: as the
    /// stream below.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        let half = &self.session().half;
        half.read_wait.set_nonblocking(nonblocking);
        half.write_wait.set_nonblocking(nonblocking);
    }

    /// How long a read waits at most before it returns [`SocketError::WouldBlock`]. Default: as the
    /// stream below.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.session().half.read_wait.set_timeout(timeout)
    }

    /// The same for writes.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.session().half.write_wait.set_timeout(timeout)
    }

    /// As [`TlsWriteHalf::update_keys`].
    ///
    /// # Errors
    /// As [`TlsWriteHalf::update_keys`].
    pub fn update_keys(&mut self) -> Result<(), TlsError> {
        self.writer.update_keys()
    }

    /// As [`TlsWriteHalf::shutdown`].
    pub fn shutdown_write(&mut self) {
        self.writer.shutdown();
    }

    /// As [`TlsReadHalf::try_read`].
    ///
    /// # Errors
    /// As [`TlsReadHalf::try_read`].
    pub fn try_read(&mut self, into: &mut [u8]) -> Result<usize, TlsError> {
        self.reader.try_read(into)
    }

    /// As [`TlsWriteHalf::try_write`].
    ///
    /// # Errors
    /// As [`TlsWriteHalf::try_write`].
    pub fn try_write(&mut self, from: &[u8]) -> Result<usize, TlsError> {
        self.writer.try_write(from)
    }

    /// Sends close_notify, and waits until the peer has everything, or the connection is over for
    /// another reason.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] after `timeout`: what was written goes on its way by itself.
    pub fn close_within(mut self, timeout: Duration) -> Result<(), TlsError> {
        self.shutdown_write();
        let until = WaitUntil::after(timeout);
        Ok(self.session().half.await_end(until)?)
    }
}

impl TlsReadHalf {
    /// Text that was opened and is not read, in place, of one record; empty at the end of the
    /// stream, which the peer has confirmed with close_notify.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there is none yet; [`TlsError::Refused`],
    /// [`TlsError::PeerAlert`], [`TlsError::Truncated`], or how the connection ended.
    pub fn try_fill(&mut self) -> Result<&[u8], TlsError> {
        self.reader.fill()?;
        Ok(self.reader.text())
    }

    /// The first `len` bytes of what was lent have been used.
    ///
    /// # Panics
    /// If there were not so many.
    pub fn consume(&mut self, len: usize) {
        self.reader.consume(len);
    }

    /// Copies what was opened and is not read, of one record; 0 at the end of the stream, or if
    /// `into` is empty.
    ///
    /// # Errors
    /// As [`TlsReadHalf::try_fill`].
    pub fn try_read(&mut self, into: &mut [u8]) -> Result<usize, TlsError> {
        if into.is_empty() {
            return Ok(0);
        }
        let text = self.try_fill()?;
        let len = text.len().min(into.len());
        into[..len].copy_from_slice(&text[..len]);
        self.consume(len);
        Ok(len)
    }

    /// Nothing more will be read: from now on this is the end of the stream.
    pub fn shutdown(&mut self) {
        self.shared.session.half.shut_read();
    }

    /// Waits until there is text, or the end.
    fn wait_for_text(&mut self) -> Result<(), TlsError> {
        let half = Arc::clone(&self.shared.session.half);
        let mut other = None;
        let done = half.read_wait.begin().retry(half.stream()?.waiting(), || {
            below(self.reader.fill(), &mut other)
        });
        above(done, other)
    }
}

impl TlsWriteHalf {
    /// Writes as much as there is room for, at least one byte.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there is no room, [`SocketError::ShutDown`], why reading
    /// ended the connection, or how it ended.
    pub fn try_write(&mut self, from: &[u8]) -> Result<usize, TlsError> {
        self.shared.session.write(from)
    }

    /// Goes on with another key, and asks the peer to do so, too (RFC 8446 section 4.6.3).
    ///
    /// # Errors
    /// [`SocketError::Invalid`] with TLS 1.2, [`SocketError::WouldBlock`] if there is no room.
    pub fn update_keys(&mut self) -> Result<(), TlsError> {
        self.shared.session.update_keys()
    }

    /// Lets each key seal so many records; 16 of them are left to alerts and KeyUpdates.
    #[cfg(feature = "testkit")]
    pub fn set_record_limit(&mut self, records: u64) {
        self.shared.session.sender().set_limit(records);
    }

    /// Nothing more will be written: the peer reads the end of the stream after what was.
    pub fn shutdown(&mut self) {
        self.shared.session.end(None);
    }
}

/// An error of TLS as one that ends waiting.
fn below<T>(done: Result<T, TlsError>, other: &mut Option<TlsError>) -> Result<T, SocketError> {
    done.map_err(|error| match error {
        TlsError::Socket(error) => error,
        error => {
            *other = Some(error);
            SocketError::Aborted
        }
    })
}

/// Undoes [`below`].
fn above<T>(done: Result<T, SocketError>, other: Option<TlsError>) -> Result<T, TlsError> {
    done.map_err(|error| other.unwrap_or(error.into()))
}

impl Read for TlsReadHalf {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        self.wait_for_text()?;
        Ok(self.try_read(into)?)
    }
}

impl BufRead for TlsReadHalf {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.wait_for_text()?;
        Ok(self.reader.text())
    }

    fn consume(&mut self, len: usize) {
        TlsReadHalf::consume(self, len);
    }
}

impl Write for TlsWriteHalf {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let session = &self.shared.session;
        let half = &session.half;
        let mut other = None;
        let until = half.write_wait.begin();
        let stream = half.stream()?;
        let done = until.retry(stream.waiting(), || below(session.write(from), &mut other));
        Ok(above(done, other)?)
    }

    /// Returns at once: what was written is on its way whether flushed or not.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TlsStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reader.read(into)
    }
}

impl BufRead for TlsStream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, len: usize) {
        self.reader.consume(len);
    }
}

impl Write for TlsStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.writer.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// A port that TLS connections arrive at.
#[derive(Debug)]
pub struct TlsListener {
    listener: TcpListener,
    config: Arc<ServerConfig>,
}

impl TlsListener {
    /// Serves what arrives at `listener`.
    pub fn new(listener: TcpListener, config: &Arc<ServerConfig>) -> TlsListener {
        TlsListener {
            listener,
            config: handshake::for_records(config),
        }
    }

    /// The listener below, to set options.
    pub fn get_ref(&self) -> &TcpListener {
        &self.listener
    }

    /// Takes the next connection, whose handshake begins. [Finish](TlsHandshake::finish) it where
    /// it may take its time: a client that says nothing holds up whoever waits for it.
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    pub fn accept(&self) -> io::Result<(TlsHandshake, SocketAddr)> {
        let (stream, from) = self.listener.accept()?;
        Ok((TlsHandshake::server(stream, &self.config)?, from))
    }

    /// As [`TlsListener::accept`], without waiting.
    ///
    /// # Errors
    /// As [`TcpListener::try_accept`].
    pub fn try_accept(&self) -> Result<(TlsHandshake, SocketAddr), TlsError> {
        let (stream, from) = self.listener.try_accept()?;
        Ok((TlsHandshake::server(stream, &self.config)?, from))
    }
}

macro_rules! debug_as_session {
    ($($half:ident),*) => {$(
        impl core::fmt::Debug for $half {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($half)).field("session", &self.shared.session).finish_non_exhaustive()
            }
        }
    )*};
}

debug_as_session!(TlsReadHalf, TlsWriteHalf);
