//! From records in the receive ring to text that is read.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use dominoes::ExclusiveGuard;
use rustls::AlertDescription;

use super::error::TlsError;
use super::record::{ALERT, APPLICATION_DATA, HANDSHAKE, HEADER, Keys, Version, body_len};
use super::session::Session;
use crate::error::SocketError;
use crate::io::stream::{DeliveryCursor, StreamRef};
use crate::io::units::{Claim, TextBuffer, UnitState};

/// Records in a row that bring the reader nothing, besides the KeyUpdates that we asked for. More of
/// them are a flood: each costs us more than the peer, a KeyUpdate most.
const MAX_QUIET: u32 = 32;
/// The longest message after the handshake. A ticket, the only long one, has up to 2^16 bytes and a
/// little more (RFC 8446 section 4.6.1), but none that a server of today sends comes near.
const MAX_MESSAGE: usize = 1 << 16;

const HELLO_REQUEST: u8 = 0;
const CLIENT_HELLO: u8 = 1;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// A record to be opened.
#[derive(Default)]
pub(super) struct OpenUnit {
    /// Where the record stands in the receive stream.
    offset: u64,
    record_len: usize,
    /// With which key and number it was, or is to be, opened.
    keys: Option<Arc<Keys>>,
    seq: u64,
    text: TextBuffer,
    /// Content type and length of the text, or what is wrong.
    outcome: Option<Result<(u8, usize), AlertDescription>>,
}

/// Finds records in the receive ring, on whichever thread has it.
pub(super) struct Receiver {
    cursor: DeliveryCursor,
    /// Where the next record begins.
    next: u64,
    /// Where the bytes end that are needed to go on.
    wanted: u64,
    keys: Arc<Keys>,
    /// Number of the next record.
    seq: u64,
    /// What stands at `next` is no record.
    is_over: bool,
    #[cfg(feature = "prepared")]
    numbers: Numbers,
}

/// After how many records their numbers begin with 0 again (feature `prepared`).
#[cfg(feature = "prepared")]
#[derive(Clone, Copy)]
struct Numbers(u64);

#[cfg(feature = "prepared")]
impl Numbers {
    const GROWING: Numbers = Numbers(u64::MAX);

    fn wrap(self, seq: &mut u64) {
        if *seq >= self.0 {
            *seq = 0;
        }
    }
}

impl Receiver {
    /// `next`: how far the application has read.
    pub(super) fn new(keys: &Arc<Keys>, seq: u64, next: u64) -> Receiver {
        Receiver {
            cursor: DeliveryCursor::default(),
            next,
            wanted: 0,
            keys: Arc::clone(keys),
            seq,
            is_over: false,
            #[cfg(feature = "prepared")]
            numbers: Numbers::GROWING,
        }
    }
}

impl Session {
    /// Makes units of all records that have arrived, unless another thread is doing it.
    pub(super) fn scan(&self) -> bool {
        let receiver = self.receiver.try_take();
        receiver.is_some_and(|mut receiver| self.scan_with(&mut receiver))
    }

    /// Whether a record may have arrived that is no unit yet.
    pub(super) fn has_record(&self) -> bool {
        let Ok(stream) = self.half.stream() else {
            return true;
        };
        // A thread that scans meanwhile may have looked before.
        self.receiver.try_take().is_none_or(|mut receiver| {
            stream.follow(&mut receiver.cursor);
            !receiver.is_over && receiver.cursor.arrived >= receiver.wanted
        })
    }

    /// Returns whether there are new units.
    fn scan_with(&self, receiver: &mut Receiver) -> bool {
        let Ok(stream) = self.half.stream() else {
            return false;
        };
        stream.follow(&mut receiver.cursor);
        let mut found = false;
        while !receiver.is_over {
            let Receiver { next, keys, .. } = &*receiver;
            let arrived = receiver.cursor.arrived.saturating_sub(*next);
            if arrived < HEADER as u64 {
                receiver.wanted = next + HEADER as u64;
                break;
            }
            let header = header(&stream, *next);
            let (record_len, bad) = match body_len(keys, &header) {
                Ok(len) => (HEADER + len, None),
                Err(alert) => (HEADER, Some(Err(alert))),
            };
            if arrived < record_len as u64 {
                receiver.wanted = next + record_len as u64;
                break;
            }
            let pushed = self.opening.push(|unit| {
                *unit = OpenUnit {
                    offset: *next,
                    record_len,
                    keys: Some(Arc::clone(keys)),
                    seq: receiver.seq,
                    text: TextBuffer::default(),
                    outcome: bad,
                };
            });
            if !pushed {
                // The reader scans when it has taken one.
                receiver.wanted = u64::MAX;
                break;
            }
            found = true;
            receiver.is_over = bad.is_some();
            receiver.next += record_len as u64;
            receiver.seq += 1;
            #[cfg(feature = "prepared")]
            receiver.numbers.wrap(&mut receiver.seq);
        }
        found
    }

    /// Opens a record from the receive ring into its unit.
    pub(super) fn open(&self, mut unit: Claim<'_, OpenUnit>, by_worker: bool) {
        let Ok(stream) = self.half.stream() else {
            return unit.done();
        };
        if unit.outcome.is_none() {
            if unit.text.is_empty() {
                unit.text = self.buffer();
            }
            let opened = open(&stream, &mut unit);
            if by_worker {
                self.half.world.units.in_unit();
            }
            unit.outcome = opened;
        }
        unit.done();
        stream.waiting().notify_all();
    }
}

fn header(stream: &StreamRef<'_>, offset: u64) -> [u8; HEADER] {
    let (a, b) = stream.arrived(offset, HEADER);
    let mut header = [0; HEADER];
    for (to, from) in header.iter_mut().zip(a.iter().chain(b)) {
        *to = *from;
    }
    header
}

/// Opens the record of `unit` with the key that it names.
fn open(
    stream: &StreamRef<'_>,
    unit: &mut OpenUnit,
) -> Option<Result<(u8, usize), AlertDescription>> {
    let keys = unit.keys.as_ref()?;
    let header = header(stream, unit.offset);
    let (a, b) = stream.arrived(unit.offset + HEADER as u64, unit.record_len - HEADER);
    let whole;
    let body = match b {
        [] => a,
        // Where the ring begins anew.
        _ => {
            whole = [a, b].concat();
            &whole
        }
    };
    Some(keys.open(unit.seq, &header, body, &mut unit.text))
}

/// Takes opened records in order.
pub(super) struct Reader {
    session: Arc<Session>,
    cursor: DeliveryCursor,
    /// With which key and number the next record must have been sealed.
    keys: Arc<Keys>,
    seq: u64,
    /// Text of the record that is being read.
    text: TextBuffer,
    at: usize,
    end: usize,
    /// A message that is not complete.
    message: Vec<u8>,
    /// Records since the last that brought something.
    quiet: u32,
    /// Nothing more is read: how it ended.
    over: Option<Result<(), TlsError>>,
    #[cfg(feature = "prepared")]
    numbers: Numbers,
}

impl Reader {
    pub(super) fn new(session: &Arc<Session>, keys: Arc<Keys>, seq: u64) -> Reader {
        Reader {
            session: Arc::clone(session),
            cursor: DeliveryCursor::default(),
            keys,
            seq,
            text: TextBuffer::default(),
            at: 0,
            end: 0,
            message: Vec::new(),
            quiet: 0,
            over: None,
            #[cfg(feature = "prepared")]
            numbers: Numbers::GROWING,
        }
    }

    /// Before any record has arrived.
    #[cfg(feature = "prepared")]
    pub(super) fn repeat_numbers(&mut self, after: u64) {
        self.numbers = Numbers(after);
        take(&self.session).numbers = Numbers(after);
    }

    /// Text that is opened and not read, of one record; empty at the end of the stream.
    pub(super) fn fill(&mut self) -> Result<(), TlsError> {
        while self.at == self.end {
            if let Some(over) = &self.over {
                return over.clone();
            }
            let session = Arc::clone(&self.session);
            let stream = session.half.stream()?;
            if stream.is_read_shut() {
                return Ok(());
            }
            match session.opening.first() {
                UnitState::Done => {
                    let unit = session.opening.take(core::mem::take);
                    if session.scan() {
                        session.share();
                    }
                    if let Some(unit) = unit {
                        self.accept(&stream, unit)?;
                    }
                }
                UnitState::Ready => {
                    if let Some(unit) = session.opening.claim_first() {
                        session.share();
                        session.open(unit, false);
                    }
                }
                // The worker that is at it notifies us.
                UnitState::Claimed => return Err(SocketError::WouldBlock.into()),
                UnitState::Free => self.find_more(&stream)?,
            }
        }
        Ok(())
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.text[self.at..self.end]
    }

    pub(super) fn consume(&mut self, len: usize) {
        let left = self.end - self.at;
        assert!(len <= left, "{len} bytes are given back of {left}");
        self.at += len;
    }

    /// Looks for records; there is no unit.
    fn find_more(&mut self, stream: &StreamRef<'_>) -> Result<(), TlsError> {
        let session = &self.session;
        // What they say comes before the look at the bytes.
        let status = stream.status();
        let peer_end = stream.peer_end();
        let mut receiver = take(session);
        let found = session.scan_with(&mut receiver);
        let arrived = receiver.cursor.arrived;
        drop(receiver);
        if found || session.opening.len() > 0 {
            return Ok(());
        }
        if peer_end == Some(arrived) {
            self.over = Some(Err(TlsError::Truncated));
            return Ok(());
        }
        match status.end_reason() {
            // News of the end may overtake bytes that came before it.
            Some(ending) if stream.ended_at() <= arrived => Err(SocketError::from(ending).into()),
            _ if session.half.world.is_down() => Err(SocketError::Down.into()),
            _ => Err(SocketError::WouldBlock.into()),
        }
    }

    /// Takes a record as the next one.
    fn accept(&mut self, stream: &StreamRef<'_>, mut unit: OpenUnit) -> Result<(), TlsError> {
        let is_ours = unit.keys.as_ref();
        let is_ours = is_ours.is_some_and(|keys| Arc::ptr_eq(keys, &self.keys));
        let is_record = !unit.text.is_empty();
        if is_record && (!is_ours || unit.seq != self.seq) {
            // A KeyUpdate came before it.
            (unit.keys, unit.seq) = (Some(Arc::clone(&self.keys)), self.seq);
            unit.outcome = open(stream, &mut unit);
        }
        stream.follow(&mut self.cursor);
        self.cursor.end = self.cursor.arrived;
        let half = Arc::clone(&self.session.half);
        half.consume(stream, &mut self.cursor, unit.record_len);
        let text = core::mem::replace(&mut self.text, unit.text);
        half.world.units.give_back(text);
        self.seq += 1;
        #[cfg(feature = "prepared")]
        self.numbers.wrap(&mut self.seq);
        let outcome = unit.outcome.unwrap_or(Err(AlertDescription::InternalError));
        let taken = outcome.and_then(|(content, len)| self.take_content(content, len));
        if self.at == self.end {
            half.world.units.give_back(core::mem::take(&mut self.text));
            (self.at, self.end) = (0, 0);
        }
        taken.map_err(|alert| self.refuse(stream, alert))
    }

    fn take_content(&mut self, content: u8, len: usize) -> Result<(), AlertDescription> {
        const UNEXPECTED: AlertDescription = AlertDescription::UnexpectedMessage;
        if content == APPLICATION_DATA && len > 0 {
            self.quiet = 0;
        } else {
            self.quiet += 1;
        }
        // Messages are not interleaved with other records (RFC 8446 section 5.1).
        if content != HANDSHAKE && !self.message.is_empty() {
            return Err(UNEXPECTED);
        }
        match content {
            APPLICATION_DATA => {
                (self.at, self.end) = (0, len);
                Ok(())
            }
            ALERT => match self.text[..len] {
                [level, alert] => self.take_alert(level, alert.into()),
                _ => Err(AlertDescription::DecodeError),
            },
            HANDSHAKE if len > 0 => {
                self.message.extend_from_slice(&self.text[..len]);
                self.take_messages()
            }
            _ => Err(UNEXPECTED),
        }?;
        // Known now: an answer to a KeyUpdate of ours is not counted.
        match self.quiet > MAX_QUIET {
            true => Err(UNEXPECTED),
            false => Ok(()),
        }
    }

    /// RFC 8446 section 6, RFC 5246 section 7.2.
    fn take_alert(&mut self, level: u8, alert: AlertDescription) -> Result<(), AlertDescription> {
        const WARNING: u8 = 1;
        let is_warning = match self.session.version {
            Version::Tls12 => level == WARNING,
            Version::Tls13 => alert == AlertDescription::UserCanceled,
        };
        self.over = match alert {
            AlertDescription::CloseNotify => Some(Ok(())),
            _ if is_warning => return Ok(()),
            _ => Some(Err(TlsError::PeerAlert(alert))),
        };
        if self.over != Some(Ok(())) {
            self.session.end(None);
        }
        Ok(())
    }

    fn take_messages(&mut self) -> Result<(), AlertDescription> {
        while let [kind, a, b, c, ..] = self.message[..] {
            let end = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
            if end > MAX_MESSAGE {
                return Err(AlertDescription::DecodeError);
            }
            if self.message.len() < end {
                break;
            }
            let rest = self.message.split_off(end);
            let message = core::mem::replace(&mut self.message, rest);
            self.take_message(kind, &message[4..])?;
        }
        Ok(())
    }

    fn take_message(&mut self, kind: u8, body: &[u8]) -> Result<(), AlertDescription> {
        let session = Arc::clone(&self.session);
        match (session.version, kind) {
            (Version::Tls13, NEW_SESSION_TICKET) => session.kernel().keep_ticket(body),
            (Version::Tls13, KEY_UPDATE) => {
                // The next record has another key, so this one ends here (RFC 8446 section 5.1).
                if !self.message.is_empty() {
                    return Err(AlertDescription::UnexpectedMessage);
                }
                let asks = match body {
                    [0] => false,
                    [1] => true,
                    [_] => return Err(AlertDescription::IllegalParameter),
                    _ => return Err(AlertDescription::DecodeError),
                };
                let keys = session.kernel().next_keys(true);
                self.keys = Arc::new(keys.ok_or(AlertDescription::InternalError)?);
                self.seq = 0;
                if !asks && session.takes_answer() {
                    self.quiet = self.quiet.saturating_sub(1);
                }
                let mut receiver = take(&session);
                receiver.keys = Arc::clone(&self.keys);
                // Those that are units already are opened again.
                receiver.seq = session.opening.len() as u64;
                drop(receiver);
                if asks {
                    // It goes before the next record (RFC 8446 section 4.6.3), once for all that
                    // ask meanwhile.
                    session.owes_update.store(true, Ordering::Release);
                }
                Ok(())
            }
            // Renegotiation, which is refused (RFC 5246 sections 7.4.1.1 and 7.4.1.2).
            (Version::Tls12, HELLO_REQUEST | CLIENT_HELLO)
                if (kind == HELLO_REQUEST) == session.kernel().is_client() =>
            {
                session.warn(AlertDescription::NoRenegotiation);
                Ok(())
            }
            _ => Err(AlertDescription::UnexpectedMessage),
        }
    }

    /// Ends the connection for what the peer sent.
    fn refuse(&mut self, stream: &StreamRef<'_>, alert: AlertDescription) -> TlsError {
        let error = TlsError::Refused(alert);
        (self.at, self.end) = (0, 0);
        self.over = Some(Err(error.clone()));
        self.discard(stream);
        self.session.end(Some(alert));
        error
    }

    /// Reads all that has arrived, and nothing of it: what is not read would end the connection
    /// with a reset, perhaps before the alert arrives.
    fn discard(&mut self, stream: &StreamRef<'_>) {
        let session = Arc::clone(&self.session);
        take(&session).is_over = true;
        loop {
            match session.opening.first() {
                UnitState::Ready => drop(session.opening.claim_first().map(Claim::done)),
                UnitState::Done => drop(session.opening.take(core::mem::take)),
                // It is in use.
                UnitState::Claimed => return,
                UnitState::Free => break,
            }
        }
        stream.follow(&mut self.cursor);
        self.cursor.end = self.cursor.arrived;
        let left = self.cursor.end - stream.cursors().0;
        session
            .half
            .consume(stream, &mut self.cursor, left as usize);
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // What is not read ends the connection with a reset, which may overtake what was written: a
        // record that carries no text is no reason for that.
        if !std::thread::panicking() {
            let _ = self.fill();
        }
        let text = core::mem::take(&mut self.text);
        self.session.half.world.units.give_back(text);
    }
}

/// Waits for a thread that scans, which takes no longer than that.
fn take(session: &Session) -> ExclusiveGuard<'_, Receiver> {
    loop {
        match session.receiver.try_take() {
            Some(receiver) => return receiver,
            None => std::thread::yield_now(),
        }
    }
}
