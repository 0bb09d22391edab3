//! The handshake, which `rustls` does record by record: bytes after it stay in the receive ring.

use core::net::SocketAddr;
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustls::client::{ClientConfig, UnbufferedClientConnection};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ServerConfig, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{AlertDescription, CommonState, ConnectionTrafficSecrets, Error};
use rustls::{ProtocolVersion, SupportedCipherSuite};

use super::super::TcpStream;
use super::super::alone::{Alone, TcpView};
use super::super::half::Least;
use super::super::poller::{Registered, Sealed};
use super::super::wait::{WaitPolicy, WaitUntil};
use super::TlsStream;
use super::error::TlsError;
use super::record::{ALERT, APPLICATION_DATA, CHANGE_CIPHER_SPEC, HANDSHAKE, HEADER, HEARTBEAT};
use super::record::{Keys, Version};
use super::session::{Kernel, Protocol, Reader, Session};
use crate::error::SocketError;
use crate::io::sleep::now;

/// The shortest receive buffer that takes a record of any length, and lets the window open again.
const MIN_RECEIVE_BUFFER: u32 = 32 << 10;
/// How many times that length is read from a peer whose handshake has failed.
const DISCARDED: usize = 64;
/// The most bytes after a record's header: fewer than 2^14 + 2048.
const LONGEST: u16 = (1 << 14) + 2047;
/// The most time for a handshake, by default.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes after the header of the first record, which is not sealed (RFC 8446 section 5.1).
const LONGEST_FIRST: u16 = 1 << 14;

/// The parameters that both ends agreed on.
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
    /// Whether it resumes an earlier session.
    pub is_resumed: bool,
}

/// A connection whose TLS handshake is in progress.
///
/// [`TlsHandshake::finish`] waits for it, with the stream's timeouts for each step;
/// [`TlsHandshake::try_finish`] does not wait. Both give up when it takes too long:
/// [`TlsHandshake::set_timeout`].
pub struct TlsHandshake {
    stream: Alone,
    /// When it gives up.
    deadline: Option<Instant>,
    /// `None` once it is finished.
    side: Option<Side>,
    /// Records that `side` has not consumed; the last may be incomplete.
    incoming: Vec<u8>,
    /// Where the last record begins.
    last: usize,
    /// The length of the whole record before it; 0 before the first.
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
    /// Nothing, unless the handshake continues.
    Traffic,
}

impl TlsHandshake {
    /// Begins as the client. The server's certificate must be for `name`.
    ///
    /// The session's secrets are extracted, so that the stack can process its records, regardless
    /// of `config.enable_secret_extraction`.
    ///
    /// # Errors
    /// [`TlsError::Handshake`] if the configuration does not suit the name;
    /// [`SocketError::NotAlone`]; [`SocketError::BufferTooShort`]: `Limits::receive_buffer` and
    /// `Tuning::receive_buffer` must be 32 KiB or more.
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

    /// Begins as the server. Early data (RFC 8446 section 2.3) is not accepted. Secrets are
    /// extracted as for [`TlsHandshake::client`].
    ///
    /// # Errors
    /// As [`TlsHandshake::client`].
    pub fn server(stream: TcpStream, config: &Arc<ServerConfig>) -> Result<TlsHandshake, TlsError> {
        let config = for_records(config);
        let side = UnbufferedServerConnection::new(config).map_err(TlsError::Handshake)?;
        TlsHandshake::new(stream, Side::Server(side))
    }

    pub(super) fn new(stream: TcpStream, side: Side) -> Result<TlsHandshake, TlsError> {
        let least = Least {
            receive: MIN_RECEIVE_BUFFER,
            send: 1 << 10,
        };
        Ok(TlsHandshake {
            stream: Alone::new(stream, least)?,
            deadline: now().checked_add(TIMEOUT),
            side: Some(side),
            incoming: Vec::new(),
            last: 0,
            record_len: 0,
            outgoing: Vec::new(),
            sent: 0,
            failed: None,
        })
    }

    /// The connection below: options, information, shutdown. After the handshake, calls act as on a
    /// connection that is gone.
    pub fn get_ref(&self) -> TcpView<'_> {
        self.stream.view(None)
    }

    /// The peer's end.
    ///
    /// # Errors
    /// None as yet.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.stream.half().flow.remote.into())
    }

    /// Limits the time that the handshake may take from now on; `None`: no limit. Default: 30
    /// seconds from its beginning. When the time is over, it fails with [`SocketError::TimedOut`],
    /// and dropping it closes the connection. A [`Poller`](crate::poller::Poller) has no event for
    /// that: a program that waits only there must check when [`TlsHandshake::time_left`] is over.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.deadline = timeout.and_then(|timeout| now().checked_add(timeout));
    }

    /// The time left by [`TlsHandshake::set_timeout`]; `None`: no limit.
    pub fn time_left(&self) -> Option<Duration> {
        let deadline = self.deadline?;
        Some(deadline.saturating_duration_since(now()))
    }

    /// Continues as far as possible without waiting. Returns the stream once the handshake is
    /// finished; must not be called after that.
    ///
    /// # Errors
    /// [`TlsError::Handshake`], after the corresponding alert was sent to the peer;
    /// [`TlsError::Refused`] if the peer does not speak TLS; [`TlsError::Truncated`] if the stream
    /// ends; [`SocketError::TimedOut`] if it took too long; as [`TcpStream::try_read`] and
    /// [`TcpStream::try_write`], except `WouldBlock`.
    pub fn try_finish(&mut self) -> Result<Option<TlsStream>, TlsError> {
        match self.go_on(false) {
            Ok(stream) => Ok(Some(stream)),
            Err(TlsError::Socket(SocketError::WouldBlock)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until the handshake is finished, or takes too long.
    ///
    /// # Errors
    /// As [`TlsHandshake::try_finish`]; [`SocketError::WouldBlock`] where the stream's calls would
    /// return it.
    pub fn finish(mut self) -> Result<TlsStream, TlsError> {
        self.go_on(true)
    }

    fn go_on(&mut self, waits: bool) -> Result<TlsStream, TlsError> {
        let blocked = TlsError::Socket(SocketError::WouldBlock);
        match self.take_steps(waits) {
            Err(error) if error == blocked && self.is_late() => Err(SocketError::TimedOut.into()),
            done => done,
        }
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| now() >= deadline)
    }

    /// The longest wait of a call.
    fn patience(&self, waits: bool, policy: &WaitPolicy) -> WaitUntil {
        match waits {
            true => policy.begin().before(self.deadline),
            false => WaitUntil::Now,
        }
    }

    fn take_steps(&mut self, waits: bool) -> Result<TlsStream, TlsError> {
        loop {
            // A peer that sends a byte now and then never exceeds the timeout of a step.
            if self.is_late() {
                return Err(SocketError::TimedOut.into());
            }
            while self.sent < self.outgoing.len() {
                self.sent += self.write(waits)?;
            }
            self.outgoing.clear();
            self.sent = 0;
            // The records before the one being read. A failed side still has its alert.
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
                    None => self.read_record(waits)?,
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

    /// Makes the last record look incomplete: it failed, and the following calls, which fetch the
    /// alert, must not fail on it again. `rustls` sends one alert.
    fn hide_record(&mut self) {
        let [high, low] = LONGEST.to_be_bytes();
        let begin = self.last.checked_sub(self.record_len);
        // Otherwise it was consumed, at least in part.
        if let Some(begin) = begin
            && let Some(header) = self.incoming.get_mut(begin..begin + HEADER)
        {
            header.copy_from_slice(&[APPLICATION_DATA, 3, 3, high, low]);
            let most = begin + HEADER + usize::from(LONGEST) - 1;
            self.incoming.truncate(most);
            self.last = self.incoming.len();
        }
    }

    /// Reads and drops bytes that have arrived: unread bytes would end the connection with a reset,
    /// perhaps before the alert reaches the peer.
    fn discard(&mut self) {
        let mut scratch = vec![0; MIN_RECEIVE_BUFFER as usize];
        for _ in 0..DISCARDED {
            if !matches!(self.stream.try_read(&mut scratch), Ok(1..)) {
                break;
            }
        }
    }

    /// Reads a whole record, and no byte of the next. Refuses bytes that begin no record.
    fn read_record(&mut self, waits: bool) -> Result<(), TlsError> {
        loop {
            let begun = &self.incoming[self.last..];
            if let Err(alert) = check_header(begun, self.record_len == 0) {
                self.refuse(alert);
                return Ok(());
            }
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
            if self.is_late() {
                return Err(SocketError::TimedOut.into());
            }
            let from = self.incoming.len();
            self.incoming.resize(from + len - had, 0);
            let done = self.read(from, waits);
            let arrived = *done.as_ref().unwrap_or(&0);
            self.incoming.truncate(from + arrived);
            if done? == 0 {
                return Err(TlsError::Truncated);
            }
        }
    }

    /// Reads into `incoming`, from index `from` on.
    fn read(&mut self, from: usize, waits: bool) -> Result<usize, SocketError> {
        let half = Arc::clone(self.stream.half());
        let until = self.patience(waits, &half.read_wait);
        until.retry(&half.world, half.stream()?.waiting(), || {
            self.stream.try_read(&mut self.incoming[from..])
        })
    }

    /// Writes more of `outgoing`.
    fn write(&mut self, waits: bool) -> Result<usize, SocketError> {
        let half = Arc::clone(self.stream.half());
        let until = self.patience(waits, &half.write_wait);
        until.retry(&half.world, half.stream()?.room(), || {
            self.stream.try_write(&self.outgoing[self.sent..])
        })
    }

    /// Refuses bytes that begin no record.
    fn refuse(&mut self, alert: AlertDescription) {
        if self.record_len == 0 {
            // There are no keys yet.
            self.outgoing = vec![ALERT, 3, 3, 0, 2, 2, alert.into()];
            self.failed = Some(TlsError::Refused(alert));
            return;
        }
        // `rustls` may have keys by now, so it must send the alert. It refuses such a header, too.
        let mut header = [0, 3, 3, 0, 1];
        for (to, from) in header.iter_mut().zip(self.incoming.drain(self.last..)) {
            *to = from;
        }
        self.incoming.extend(header);
        self.last = self.incoming.len();
        self.record_len = HEADER;
    }

    /// Takes over the secrets.
    pub(super) fn convert(&mut self) -> Result<TlsStream, TlsError> {
        let side = self.side.take().ok_or(SocketError::NotConnected)?;
        if !self.incoming.is_empty() {
            // `side` got each record when it asked for one, so none may be left.
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
        let protocol = Protocol::new(info, version, kernel, record_limit(&secrets.tx.1));
        // The session owns the connection from now on.
        let gone = self.stream.gone();
        let alone = core::mem::replace(&mut self.stream, gone);
        let (sealed, opened) = (secrets.tx.0, secrets.rx.0);
        let session = Session::new(alone, protocol, (sealing, sealed), (&opening, opened))?;
        let reader = Reader::new(&session, opening, opened);
        Ok(TlsStream::over(&session, reader))
    }
}

/// Checks the bytes of a record's header that have arrived, so that text is not taken for a length.
///
/// # Errors
/// The alert for the peer. If the record is not the first, `rustls` refuses the header, too.
fn check_header(begun: &[u8], is_first: bool) -> Result<(), AlertDescription> {
    let kinds = match is_first {
        true => ALERT..=HANDSHAKE,
        false => CHANGE_CIPHER_SPEC..=HEARTBEAT,
    };
    let longest = if is_first { LONGEST_FIRST } else { LONGEST };
    match *begun {
        [kind, ..] if !kinds.contains(&kind) => Err(AlertDescription::UnexpectedMessage),
        [_, major, ..] if major != 3 => Err(AlertDescription::ProtocolVersion),
        [kind, _, _, high, low, ..] => match u16::from_be_bytes([high, low]) {
            0 if kind != APPLICATION_DATA => Err(AlertDescription::UnexpectedMessage),
            len if len > longest => Err(AlertDescription::RecordOverflow),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Records that a key may seal: for AES-GCM, the number of full-length records that RFC 8446
/// section 5.5 allows; for ChaCha20-Poly1305, the record number is the limit.
fn record_limit(secrets: &ConnectionTrafficSecrets) -> u64 {
    match secrets {
        ConnectionTrafficSecrets::Chacha20Poly1305 { .. } => u64::MAX,
        _ => 1 << 24,
    }
}

/// A configuration that lets secrets be extracted and accepts no early data.
pub(super) fn for_records(config: &Arc<ServerConfig>) -> Arc<ServerConfig> {
    let mut config = Arc::clone(config);
    if !config.enable_secret_extraction || config.max_early_data_size > 0 {
        let config = Arc::make_mut(&mut config);
        config.enable_secret_extraction = true;
        config.max_early_data_size = 0;
    }
    config
}

/// Does the next step of the handshake. Returns how many received bytes were consumed.
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
            // The caller sends it before the next call.
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

/// A server may write before the client has finished; the handshake continues then.
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

impl Sealed for TlsHandshake {
    fn registered(&self) -> Registered<'_> {
        self.stream.registered()
    }
}
