//! Streams whose handshake is done in memory, for benchmarks and for tests that make the peer's
//! records themselves (feature `prepared`).

use std::sync::Arc;

use rustls::client::{ClientConfig, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConfig, UnbufferedServerConnection};
use rustls::{ConnectionTrafficSecrets, Error, ExtractedSecrets};

use super::super::TcpStream;
use super::error::TlsError;
use super::handshake::{Next, Side, TlsHandshake, for_records, handle, only_after};
use super::record::{APPLICATION_DATA, Keys, MAX_TEXT, Version};
use super::{TlsReadHalf, TlsStream};

/// The server's end of a finished handshake.
pub struct PreparedTls(UnbufferedServerConnection);

impl PreparedTls {
    /// Does a handshake in memory. Returns the server's end and the client's secrets. The client's
    /// sending secrets are the server's receiving secrets.
    ///
    /// # Errors
    /// If the configurations are not usable. The client's must let secrets be extracted.
    pub fn new(
        server: &Arc<ServerConfig>,
        client: &Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<(PreparedTls, ExtractedSecrets), Error> {
        let mut server = UnbufferedServerConnection::new(for_records(server))?;
        let mut client = UnbufferedClientConnection::new(Arc::clone(client), name)?;
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        while client.is_handshaking() || server.is_handshaking() || !to_server.is_empty() {
            loop {
                let status = client.process_tls_records(&mut to_client);
                let (discard, next) = handle(status, &mut to_server);
                to_client.drain(..discard);
                if !matches!(only_after(next, &client)?, Next::Call) {
                    break;
                }
            }
            loop {
                let status = server.process_tls_records(&mut to_server);
                let (discard, next) = handle(status, &mut to_client);
                to_server.drain(..discard);
                if !matches!(only_after(next, &server)?, Next::Call) {
                    break;
                }
            }
        }
        let (secrets, _) = client.dangerous_into_kernel_connection()?;
        Ok((PreparedTls(server), secrets))
    }

    /// The server's end on `stream`, whose bytes begin after the handshake.
    ///
    /// # Errors
    /// As [`TlsHandshake::server`].
    pub fn attach(self, stream: TcpStream) -> Result<TlsStream, TlsError> {
        TlsHandshake::new(stream, Side::Server(self.0))?.convert()
    }
}

impl core::fmt::Debug for PreparedTls {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PreparedTls").finish_non_exhaustive()
    }
}

impl TlsReadHalf {
    /// Restarts record numbers at 0 after this many records, so that records which were sealed
    /// before can be received again. A benchmark can do that; elsewhere it would destroy all
    /// secrecy.
    pub fn repeat_numbers(&mut self, after: u64) {
        self.reader.repeat_numbers(after);
    }
}

/// A key of one direction of TLS 1.3, to make a peer's records, or to open and seal outside a
/// connection.
pub struct RecordKey(Keys);

impl RecordKey {
    /// How many bytes a record is longer than its text.
    pub const OVERHEAD: usize = 22;
    /// The longest text of a record, in bytes.
    pub const MAX_TEXT: usize = MAX_TEXT;

    /// The key of one direction of [`ExtractedSecrets`]; `None` if the cipher is not supported.
    pub fn new(secrets: &ConnectionTrafficSecrets) -> Option<RecordKey> {
        Keys::new(Version::Tls13, secrets).map(RecordKey)
    }

    /// Seals `text` as the application data of record `seq`.
    ///
    /// # Panics
    /// If `text` is too long, or `record` is not [`OVERHEAD`](Self::OVERHEAD) longer.
    pub fn seal(&self, seq: u64, text: &[u8], record: &mut [u8]) {
        self.seal_as(seq, APPLICATION_DATA, text, record);
    }

    /// As [`RecordKey::seal`], with any content type (RFC 8446 section 5.1). If it is 0, zeros at
    /// the end of `text` are padding.
    ///
    /// # Panics
    /// As [`RecordKey::seal`].
    pub fn seal_as(&self, seq: u64, content: u8, text: &[u8], record: &mut [u8]) {
        self.0.seal(seq, content, text, record);
    }

    /// Opens a record into `text`, and returns the length of its text; `None` if it is forged, or
    /// `text` is shorter than the record.
    pub fn open(&self, seq: u64, record: &[u8], text: &mut [u8]) -> Option<usize> {
        let (header, body) = record.split_first_chunk()?;
        let (_, len) = self.0.open(seq, header, body, text).ok()?;
        Some(len)
    }
}

impl core::fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RecordKey").finish_non_exhaustive()
    }
}
