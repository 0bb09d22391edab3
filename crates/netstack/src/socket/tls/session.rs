//! TLS as a codec of the stage of units: a unit is a record.

use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{AlertDescription, ConnectionTrafficSecrets, Error};

use super::super::stage::{self, Codec, Stage};
use super::error::TlsError;
use super::handshake::TlsInfo;
use super::receiving::Messages;
use super::record::{ALERT, APPLICATION_DATA, HEADER, Keys, MAX_OVERHEAD, MAX_TEXT};
use super::record::{Version, body_len};
use crate::io::stream::StreamRef;

/// A record is shortened for lack of room only if at least this much text fits.
const MIN_PIECE: usize = 512;
/// Room in the send ring that is reserved for records other than application data: a KeyUpdate and
/// an alert.
pub(super) const CONTROL_ROOM: usize = 2 * (8 + MAX_OVERHEAD);

/// One TLS connection after its handshake.
pub(super) type Session = Stage<Keys>;
pub(super) type Sender = stage::Sender<Keys>;
pub(super) type Reader = stage::Reader<Keys>;

/// Makes new keys, and keeps tickets, after the handshake.
pub(super) enum Kernel {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Kernel {
    pub(super) fn is_client(&self) -> bool {
        matches!(self, Kernel::Client(_))
    }

    /// The next key to open with, or to seal with.
    pub(super) fn next_keys(&mut self, receives: bool) -> Option<Keys> {
        let next: Result<(u64, ConnectionTrafficSecrets), Error> = match (self, receives) {
            (Kernel::Client(kernel), true) => kernel.update_rx_secret(),
            (Kernel::Client(kernel), false) => kernel.update_tx_secret(),
            (Kernel::Server(kernel), true) => kernel.update_rx_secret(),
            (Kernel::Server(kernel), false) => kernel.update_tx_secret(),
        };
        // Only TLS 1.3 replaces keys, and a new key begins with record 0.
        let (_, secrets) = next.ok()?;
        Keys::new(Version::Tls13, &secrets)
    }

    /// Keeps a ticket that the server sent.
    pub(super) fn keep_ticket(&mut self, ticket: &[u8]) -> Result<(), AlertDescription> {
        match self {
            Kernel::Client(kernel) => {
                let kept = kernel.handle_new_session_ticket(ticket);
                kept.map_err(|_| AlertDescription::DecodeError)
            }
            Kernel::Server(_) => Err(AlertDescription::UnexpectedMessage),
        }
    }
}

/// The state of a TLS connection in addition to its stage.
pub(super) struct Protocol {
    pub(super) info: TlsInfo,
    pub(super) version: Version,
    kernel: Mutex<Kernel>,
    /// The most records that a key may seal (RFC 8446 section 5.5).
    pub(super) limit: AtomicU64,
    /// The peer has asked for a KeyUpdate.
    pub(super) owes_update: AtomicBool,
    /// Our requests for a KeyUpdate that the peer has not answered.
    pub(super) asked_updates: AtomicU64,
}

impl Protocol {
    pub(super) fn new(info: TlsInfo, version: Version, kernel: Kernel, limit: u64) -> Protocol {
        Protocol {
            info,
            version,
            kernel: Mutex::new(kernel),
            limit: AtomicU64::new(limit),
            owes_update: AtomicBool::new(false),
            asked_updates: AtomicU64::new(0),
        }
    }

    pub(super) fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a KeyUpdate of the peer may answer one of our requests, which then counts as
    /// answered. It may answer several (RFC 8446 section 4.6.3); the others stay open for later
    /// KeyUpdates.
    pub(super) fn takes_answer(&self) -> bool {
        let asked = &self.asked_updates;
        let less = |count: u64| count.checked_sub(1);
        let taken = asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.is_ok()
    }
}

impl Codec for Keys {
    type Fault = AlertDescription;
    type Error = TlsError;
    type Extra = Protocol;
    type Reading = Messages;

    const TEXT: u8 = APPLICATION_DATA;
    const AT_ONCE: usize = 4 << 10;
    const CONTROL_UNITS: usize = 2;

    fn header_len(&self) -> usize {
        HEADER
    }

    fn unit_len(&self, _: u64, header: &[u8], _: usize) -> Result<usize, AlertDescription> {
        let (header, _) = header
            .split_first_chunk()
            .ok_or(AlertDescription::DecodeError)?;
        Ok(HEADER + body_len(self, header)?)
    }

    fn open(
        &self,
        number: u64,
        record: &[u8],
        text: &mut [u8],
    ) -> Result<(u8, usize), AlertDescription> {
        let split = record.split_first_chunk();
        let (header, body) = split.ok_or(AlertDescription::DecodeError)?;
        Keys::open(self, number, header, body, text)
    }

    fn fit(&self, len: usize, room: usize) -> Result<(usize, usize), AlertDescription> {
        let wanted = len.min(MAX_TEXT);
        let len = wanted.min(room.saturating_sub(self.overhead() + CONTROL_ROOM));
        Ok(if len < wanted.min(MIN_PIECE) {
            (0, 0)
        } else {
            (len, len + self.overhead())
        })
    }

    fn least_room(&self) -> usize {
        MIN_PIECE + self.overhead() + CONTROL_ROOM
    }

    fn seal(
        &self,
        number: u64,
        content: u8,
        text: &[u8],
        record: &mut [u8],
    ) -> Result<(), AlertDescription> {
        Keys::seal(self, number, content, text, record);
        Ok(())
    }

    fn refused(alert: AlertDescription) -> TlsError {
        TlsError::Refused(alert)
    }

    fn end_of_stream(_: bool) -> Result<(), TlsError> {
        Err(TlsError::Truncated)
    }

    fn before_unit(
        session: &Session,
        sender: &mut Sender,
        stream: &StreamRef<'_>,
    ) -> Result<ControlFlow<(), bool>, TlsError> {
        session.before_record(sender, stream)
    }

    fn take(reader: &mut Reader, content: u8, len: usize) -> Result<(), AlertDescription> {
        reader.take_content(content, len)
    }

    /// Sends close_notify, or the alert for the fault.
    fn end(
        session: &Session,
        sender: &mut Sender,
        stream: &StreamRef<'_>,
        why: Option<AlertDescription>,
    ) {
        let alert = match why {
            None => [1, 0],
            Some(alert) => [2, alert.into()],
        };
        session.push_control(sender, stream, ALERT, &alert);
    }
}
