//! TLS whose records all workers of the stack seal and open (feature `rustls`).
//!
//! `rustls` does the handshake, with the application's [`ClientConfig`] or [`ServerConfig`], and
//! makes the keys. After that the stack processes the records: written text is cut into records of
//! up to 16 KiB, each of which any worker seals into the send ring; any worker opens a record that
//! has arrived. So one TLS stream uses several cores. The stream keeps its order: only the sealed
//! prefix is sent, only the opened prefix is read.
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
//! The program chooses the cryptography of the handshake: the provider that it enables as a feature
//! of `rustls`, such as `aws_lc_rs` or `ring`, or that it puts into its configuration. Records are
//! always sealed and opened by `aws-lc-rs`: the interface of a provider processes the records of a
//! connection one after another, and here several workers seal and open them at once. A program
//! that may use only its provider's code runs `rustls` over a [`TcpStream`] instead.
//!
//! # Records
//! Every write makes new records of its text, the last of any length; flushing does nothing. Small
//! writes cost a record each: wrap the stream in a [`BufWriter`](std::io::BufWriter). Text of more
//! than 4 KiB is left to the workers; a writer seals shorter text itself. A thread helps if it
//! finds all units in use, or waits for bytes that have arrived and are not opened.
//!
//! # Guarantees
//! - TLS 1.3 and 1.2 with AES-128-GCM, AES-256-GCM and ChaCha20-Poly1305. No early data, no
//!   renegotiation.
//! - Text is in the stack's memory only between the writer and the ring; no frame contains a byte
//!   that is not sealed. If a worker dies, another one makes its record again, with the same bytes.
//! - A record that is not authentic, or breaks another rule, ends the connection with its alert; no
//!   byte of it or of later records is read. Bytes that begin no record get their alert at once,
//!   and a handshake that takes too long ends ([`TlsHandshake::set_timeout`]). A stream that ends
//!   without close_notify ends for its reader with [`TlsError::Truncated`].
//! - Keys are replaced when the peer asks, when [`TlsStream::update_keys`] is called, and before
//!   one has sealed 2^24 records with AES-GCM. The peer may send 32 records or messages in a row
//!   that carry nothing for the reader, including KeyUpdates that we did not ask for.
//! - Keys are zeroed when they are replaced and when the connection is gone; text is zeroed too,
//!   and always before another connection gets its memory.
//! - `Stack::close` waits until written text is sealed, and sends close_notify.

mod error;
mod handshake;
#[cfg(feature = "prepared")]
mod prepared;
mod receiving;
mod record;
mod sending;
mod session;

use core::net::SocketAddr;
use std::io;
use std::sync::Arc;

use rustls::client::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::server::ServerConfig;

use self::record::Keys;
use super::alone::TcpView;
use super::poller::{Interest, Registered, Sealed, Watched};
use super::stage::{Reader, Shared, Stage, stream_of_units};
use super::wait::WaitUntil;
use super::{TcpListener, TcpStream};
use crate::error::SocketError;
use crate::log::request::ConnId;

pub use error::TlsError;
pub use handshake::{TlsHandshake, TlsInfo};
#[cfg(feature = "prepared")]
#[doc(hidden)]
pub use prepared::{PreparedTls, RecordKey};
#[cfg(all(feature = "testkit", debug_assertions))]
#[doc(hidden)]
pub use record::nonces::{NonceTally, count_nonces};

/// A TLS connection: bytes in both directions, in order. For its guarantees see the [module's
/// documentation](self).
///
/// Dropping it, or both halves, sends close_notify and closes it as [`TcpStream`] does.
#[derive(Debug)]
pub struct TlsStream {
    watched: Watched,
    reader: TlsReadHalf,
    writer: TlsWriteHalf,
}

/// The half of a TLS connection that reads.
pub struct TlsReadHalf {
    watched: Watched,
    // Dropped before the connection ends.
    reader: Reader<Keys>,
    shared: Arc<Shared<Keys>>,
}

/// The half of a TLS connection that writes.
pub struct TlsWriteHalf {
    watched: Watched,
    shared: Arc<Shared<Keys>>,
}

stream_of_units!(
    TlsStream,
    TlsReadHalf,
    TlsWriteHalf,
    Keys,
    TlsError,
    "[`TlsError::Refused`], [`TlsError::PeerAlert`], [`TlsError::Truncated`]."
);

impl TlsStream {
    /// Does the handshake as the client, and waits for it. The server's certificate must be for
    /// `name`.
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

    /// The parameters that both ends agreed on.
    pub fn info(&self) -> &TlsInfo {
        &self.stage().extra.info
    }

    /// As [`TlsWriteHalf::update_keys`].
    ///
    /// # Errors
    /// As [`TlsWriteHalf::update_keys`].
    pub fn update_keys(&mut self) -> Result<(), TlsError> {
        self.writer.update_keys()
    }
}

impl TlsWriteHalf {
    /// Changes to a new key, and asks the peer to do so, too (RFC 8446 section 4.6.3).
    ///
    /// # Errors
    /// [`SocketError::Invalid`] with TLS 1.2, [`SocketError::WouldBlock`] if there is no room.
    pub fn update_keys(&mut self) -> Result<(), TlsError> {
        self.shared.0.update_keys()
    }

    /// The number of records that each key may seal; 16 of them are reserved for alerts and
    /// KeyUpdates.
    #[cfg(feature = "testkit")]
    pub fn set_record_limit(&mut self, records: u64) {
        let limit = &self.shared.0.extra.limit;
        limit.store(records, core::sync::atomic::Ordering::Relaxed);
    }
}

/// A port for TLS connections.
#[derive(Debug)]
pub struct TlsListener {
    listener: TcpListener,
    config: Arc<ServerConfig>,
}

impl TlsListener {
    /// Accepts the connections of `listener`.
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

    /// Accepts the next connection and begins its handshake. [Finish](TlsHandshake::finish) it on a
    /// thread that may wait: a silent client delays its caller by up to
    /// [`TlsHandshake::time_left`].
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
