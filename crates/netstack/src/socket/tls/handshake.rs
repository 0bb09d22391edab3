//! The handshake, which `rustls` does, record by record: what follows it is left in the receive
//! ring.

use core::net::SocketAddr;
use std::io::{self, Read, Write};
use std::sync::Arc;

use rustls::client::{ClientConfig, UnbufferedClientConnection};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ServerConfig, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{CommonState, ConnectionTrafficSecrets, Error, ProtocolVersion, SupportedCipherSuite};

use super::super::TcpStream;
use super::super::stage::Receiver;
use super::TlsStream;
use super::error::TlsError;
use super::record::{APPLICATION_DATA, HEADER, Keys, Version};
use super::session::{Kernel, Protocol, Reader, Sender, Session};
use crate::error::SocketError;

/// The shortest receive buffer that takes a record of any length, and lets the window open again.
const MIN_RECEIVE_BUFFER: u32 = 32 << 10;
/// So many times that length is read of a peer whose handshake has failed.
const DISCARDED: usize = 64;
/// What may stand behind a record's header is shorter than 2^14 + 2048 bytes.
const LONGEST: u16 = (1 << 14) + 2047;
/// A TLS stream is the stream, and its two halves.
const HOLDS: usize = 3;

/// What both ends agreed on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TlsInfo {
    /// The version of the protocol.
    pub version: ProtocolVersion,
    /// The cipher suite.
    pub suite: SupportedCipherSuite,
    /// The application's protocol (RFC 7301), if they agreed on one.
    pub alpn: Option<Vec<u8>>,
    /// The peer's certificates, its own first; empty if it sent none.
    pub peer_certificates: Vec<CertificateDer<'static>>,
    /// Whether it resumes an earlier one.
    pub is_resumed: bool,
}

/// A connection whose TLS handshake is under way.
///
/// [`TlsHandshake::finish`] waits for it, as long as the stream's timeouts allow for each step;
/// [`TlsHandshake::try_finish`] does not wait.
pub struct TlsHandshake {
    stream: TcpStream,
    /// `None` once it is finished.
    side: Option<Side>,
    /// Records that the side has not used up; the last may be incomplete.
    incoming: Vec<u8>,
    /// Where the last one begins.
    last: usize,
    /// Bytes of the whole record before that.
    record_len: usize,
    outgoing: Vec<u8>,
    sent: usize,
    failed: Option<TlsError>,
}

pub(super) enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// What the handshake needs.
pub(super) enum Next {
    /// Another call.
    Call,
    /// A record of the peer.
    Record,
    /// Nothing, perhaps.
    Traffic,
}

impl TlsHandshake {
    /// Begins as the client. `name` is what the server's certificate must be for.
    ///
    /// The session's secrets are extracted, so that its records may be processed here, whatever
    /// `config.enable_secret_extraction` says.
    ///
    /// # Errors
    /// [`TlsError::Handshake`] if the configuration does not suit the name; [`TlsError::NotAlone`],
    /// [`TlsError::BufferTooShort`]; [`SocketError::Invalid`] if the stack has an inline processor.
    pub fn client(
        stream: TcpStream,
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<TlsHandshake, TlsError> {
        let mut config = Arc::clone(config);
        if !config.enable_secret_extraction {
            Arc::make_mut(&mut config).enable_secret_extraction = true;
        }
        let side = UnbufferedClientConnection::new(config, name).map_err(TlsError::Handshake)?;
        TlsHandshake::new(stream, Side::Client(side))
    }

    /// Begins as the server. Early data (RFC 8446 section 2.3) is not accepted. Secrets as for
    /// [`TlsHandshake::client`].
    ///
    /// # Errors
    /// As [`TlsHandshake::client`].
    pub fn server(stream: TcpStream, config: &Arc<ServerConfig>) -> Result<TlsHandshake, TlsError> {
        let config = for_records(config);
        let side = UnbufferedServerConnection::new(config).map_err(TlsError::Handshake)?;
        TlsHandshake::new(stream, Side::Server(side))
    }

    pub(super) fn new(stream: TcpStream, side: Side) -> Result<TlsHandshake, TlsError> {
        let half = &stream.half;
        if Arc::strong_count(half) != HOLDS {
            return Err(TlsError::NotAlone);
        }
        if half.world.streams.inline.is_some() {
            return Err(SocketError::Invalid.into());
        }
        if half.receive_buffer() < MIN_RECEIVE_BUFFER {
            return Err(TlsError::BufferTooShort);
        }
        Ok(TlsHandshake {
            stream,
            side: Some(side),
            incoming: Vec::new(),
            last: 0,
            record_len: 0,
            outgoing: Vec::new(),
            sent: 0,
            failed: None,
        })
    }

    /// The stream below, to set options.
    pub fn get_ref(&self) -> &TcpStream {
        &self.stream
    }

    /// The peer's end.
    ///
    /// # Errors
    /// None as yet.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Goes on as far as possible without waiting. Returns the stream once the handshake is
    /// finished; not to be called after that.
    ///
    /// # Errors
    /// [`TlsError::Handshake`], after the peer was sent the alert that says why;
    /// [`TlsError::Truncated`] if the stream ends; as [`TcpStream::try_read`] and
    /// [`TcpStream::try_write`], but for `WouldBlock`.
    pub fn try_finish(&mut self) -> Result<Option<TlsStream>, TlsError> {
        match self.go_on(TcpStream::try_read, TcpStream::try_write) {
            Ok(stream) => Ok(Some(stream)),
            Err(TlsError::Socket(SocketError::WouldBlock)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until the handshake is finished.
    ///
    /// # Errors
    /// As [`TlsHandshake::try_finish`]; [`SocketError::WouldBlock`] where the stream's calls would
    /// return it.
    pub fn finish(mut self) -> Result<TlsStream, TlsError> {
        let wait = |error: io::Error| SocketError::of(&error).unwrap_or(SocketError::Aborted);
        self.go_on(
            |stream, into| stream.read(into).map_err(wait),
            |stream, from| stream.write(from).map_err(wait),
        )
    }

    fn go_on(
        &mut self,
        read: impl Fn(&mut TcpStream, &mut [u8]) -> Result<usize, SocketError>,
        write: impl Fn(&mut TcpStream, &[u8]) -> Result<usize, SocketError>,
    ) -> Result<TlsStream, TlsError> {
        loop {
            while self.sent < self.outgoing.len() {
                self.sent += write(&mut self.stream, &self.outgoing[self.sent..])?;
            }
            self.outgoing.clear();
            self.sent = 0;
            // Before the record that is being read now. A failed one still has its alert.
            let whole = &mut self.incoming[..self.last];
            let (discard, next) = match &mut self.side {
                Some(Side::Client(side)) => {
                    let status = side.process_tls_records(whole);
                    let (discard, next) = handle(status, &mut self.outgoing);
                    (discard, only_after(next, side))
                }
                Some(Side::Server(side)) => {
                    let status = side.process_tls_records(whole);
                    let (discard, next) = handle(status, &mut self.outgoing);
                    (discard, only_after(next, side))
                }
                None => return Err(SocketError::NotConnected.into()),
            };
            self.incoming.drain(..discard);
            self.last -= discard;
            match next {
                Ok(Next::Call) => {}
                Ok(Next::Traffic) if self.failed.is_none() => return self.convert(),
                Ok(Next::Record | Next::Traffic) => match self.failed.clone() {
                    Some(failed) => {
                        self.discard();
                        return Err(failed);
                    }
                    None => self.read_record(&read)?,
                },
                Err(error) => match self.failed.clone() {
                    // Its alert is sent.
                    Some(failed) => {
                        self.discard();
                        return Err(failed);
                    }
                    None => {
                        self.failed = Some(TlsError::Handshake(error));
                        self.hide_record();
                    }
                },
            }
        }
    }

    /// Makes the last record one that has not arrived as a whole: it failed, and the next calls,
    /// which are for the alert, must not find that out again. `rustls` sends one alert.
    fn hide_record(&mut self) {
        let [high, low] = LONGEST.to_be_bytes();
        let begin = self.last.checked_sub(self.record_len);
        // Otherwise it is used up, at least in part.
        if let Some(begin) = begin
            && let Some(header) = self.incoming.get_mut(begin..begin + HEADER)
        {
            header.copy_from_slice(&[APPLICATION_DATA, 3, 3, high, low]);
            let most = begin + HEADER + usize::from(LONGEST) - 1;
            self.incoming.truncate(most);
            self.last = self.incoming.len();
        }
    }

    /// Reads what has arrived: what is not read would end the connection with a reset, perhaps
    /// before the alert arrives.
    fn discard(&mut self) {
        let mut scratch = vec![0; MIN_RECEIVE_BUFFER as usize];
        for _ in 0..DISCARDED {
            if !matches!(self.stream.try_read(&mut scratch), Ok(1..)) {
                break;
            }
        }
    }

    /// Reads a whole record, and no byte of the next.
    fn read_record(
        &mut self,
        read: impl Fn(&mut TcpStream, &mut [u8]) -> Result<usize, SocketError>,
    ) -> Result<(), TlsError> {
        loop {
            let begun = &self.incoming[self.last..];
            let len = match begun {
                [_, _, _, high, low, ..] => HEADER + usize::from(u16::from_be_bytes([*high, *low])),
                _ => HEADER,
            };
            let had = begun.len();
            if had >= HEADER && had == len {
                self.last += len;
                self.record_len = len;
                return Ok(());
            }
            let from = self.incoming.len();
            self.incoming.resize(from + len - had, 0);
            let done = read(&mut self.stream, &mut self.incoming[from..]);
            let arrived = *done.as_ref().unwrap_or(&0);
            self.incoming.truncate(from + arrived);
            if done? == 0 {
                return Err(TlsError::Truncated);
            }
        }
    }

    /// Takes the secrets over.
    pub(super) fn convert(&mut self) -> Result<TlsStream, TlsError> {
        let side = self.side.take().ok_or(SocketError::NotConnected)?;
        if !self.incoming.is_empty() {
            // Each record was given to it when it asked for one.
            return Err(TlsError::Handshake(Error::HandshakeNotComplete));
        }
        let info = |common: &CommonState| {
            let version = common.protocol_version();
            let suite = common.negotiated_cipher_suite();
            let (version, suite) = version.zip(suite).ok_or(Error::HandshakeNotComplete)?;
            Ok(TlsInfo {
                version,
                suite,
                alpn: common.alpn_protocol().map(<[u8]>::to_vec),
                peer_certificates: common.peer_certificates().unwrap_or_default().to_vec(),
                is_resumed: common.handshake_kind() == Some(rustls::HandshakeKind::Resumed),
            })
        };
        let converted = match side {
            Side::Client(side) => info(&side).and_then(|info| {
                let (secrets, kernel) = side.dangerous_into_kernel_connection()?;
                Ok((info, secrets, Kernel::Client(kernel)))
            }),
            Side::Server(side) => info(&side).and_then(|info| {
                let (secrets, kernel) = side.dangerous_into_kernel_connection()?;
                Ok((info, secrets, Kernel::Server(kernel)))
            }),
        };
        let (info, secrets, kernel) = converted.map_err(TlsError::Handshake)?;
        let version = match info.version {
            ProtocolVersion::TLSv1_3 => Version::Tls13,
            _ => Version::Tls12,
        };
        let [sealing, opening] = [&secrets.tx.1, &secrets.rx.1].map(|secrets| {
            let keys = Keys::new(version, secrets);
            keys.ok_or_else(|| Error::General("a cipher that is not known here".into()))
        });
        let sealing = Arc::new(sealing.map_err(TlsError::Handshake)?);
        let opening = Arc::new(opening.map_err(TlsError::Handshake)?);
        let half = Arc::clone(&self.stream.half);
        let (read, written) = half.stream()?.cursors();
        let protocol = Protocol::new(info, version, kernel, record_limit(&secrets.tx.1));
        let sender = Sender::new(sealing, secrets.tx.0, written);
        let receiver = Receiver::new(&opening, secrets.rx.0, read);
        let session = Session::new(half, protocol, sender, receiver);
        let reader = Reader::new(&session, opening, secrets.rx.0);
        Ok(TlsStream::over(&session, reader))
    }
}

/// Records that may be sealed with a key: of full length as many as RFC 8446 section 5.5 allows for
/// AES-GCM; with ChaCha20-Poly1305 the record number is the limit.
fn record_limit(secrets: &ConnectionTrafficSecrets) -> u64 {
    match secrets {
        ConnectionTrafficSecrets::Chacha20Poly1305 { .. } => u64::MAX,
        _ => 1 << 24,
    }
}

/// A configuration whose secrets may be had, and that accepts no early data.
pub(super) fn for_records(config: &Arc<ServerConfig>) -> Arc<ServerConfig> {
    let mut config = Arc::clone(config);
    if !config.enable_secret_extraction || config.max_early_data_size > 0 {
        let config = Arc::make_mut(&mut config);
        config.enable_secret_extraction = true;
        config.max_early_data_size = 0;
    }
    config
}

/// Does what the handshake asks for. Returns how many received bytes are used up.
pub(super) fn handle<D>(
    status: UnbufferedStatus<'_, '_, D>,
    outgoing: &mut Vec<u8>,
) -> (usize, Result<Next, Error>) {
    let next = match status.state {
        Ok(ConnectionState::EncodeTlsData(mut record)) => {
            let from = outgoing.len();
            let mut len = 0;
            loop {
                outgoing.resize(from + len, 0);
                match record.encode(&mut outgoing[from..]) {
                    Err(EncodeError::InsufficientSize(size)) if size.required_size > len => {
                        len = size.required_size;
                    }
                    Err(error) => break Err(Error::General(error.to_string())),
                    Ok(_) => break Ok(Next::Call),
                }
            }
        }
        Ok(ConnectionState::TransmitTlsData(transmit)) => {
            // It is sent before the next call.
            transmit.done();
            Ok(Next::Call)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Next::Record),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Next::Traffic),
        Ok(_) => Err(Error::HandshakeNotComplete),
        Err(error) => Err(error),
    };
    (status.discard, next)
}

/// A server may write before the client has finished, which is not the end of the handshake.
pub(super) fn only_after(next: Result<Next, Error>, side: &CommonState) -> Result<Next, Error> {
    match next {
        Ok(Next::Traffic) if side.is_handshaking() => Ok(Next::Record),
        next => next,
    }
}

impl core::fmt::Debug for TlsHandshake {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TlsHandshake")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
