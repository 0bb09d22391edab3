//! From text that is written to records in the send ring.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use rustls::AlertDescription;

use super::error::TlsError;
use super::record::{ALERT, APPLICATION_DATA, HANDSHAKE, Keys, MAX_OVERHEAD, MAX_TEXT, Version};
use super::session::{Session, UNITS};
use crate::error::SocketError;
use crate::io::stream::{AppRequest, StreamRef};
use crate::io::units::{Claim, TextBuffer};

/// Text that is no longer is sealed by its writer: handing it over costs more than the cipher. So
/// is text while each worker has a record to seal: that saves a copy.
const SEALED_AT_ONCE: usize = 4 << 10;
/// A record is cut for want of room only if so many bytes fit.
const MIN_PIECE: usize = 512;
/// Room in the send ring that is left to records besides application data: a KeyUpdate and an
/// alert.
const CONTROL_ROOM: usize = 2 * (8 + MAX_OVERHEAD);
/// Units that are left to the same.
const CONTROL_UNITS: usize = 2;
/// Records that are left to the same when a key has sealed all it may.
const CONTROL_RECORDS: u64 = 16;

/// A record to be sealed.
#[derive(Default)]
pub(super) struct SealUnit {
    /// Its text is the beginning.
    text: TextBuffer,
    len: usize,
    content: u8,
    /// `None` while there is no record.
    keys: Option<Arc<Keys>>,
    seq: u64,
    /// Where the record stands in the send stream.
    offset: u64,
    record_len: usize,
}

/// What writers have in turn.
pub(super) struct Sender {
    keys: Arc<Keys>,
    /// Number of the next record.
    seq: u64,
    /// So many records may be sealed with a key (RFC 8446 section 5.5).
    limit: u64,
    /// The end of the last record in the send stream.
    end: u64,
    /// Why nothing more may be written.
    over: Option<TlsError>,
}

impl Sender {
    pub(super) fn new(keys: Keys, seq: u64, limit: u64, end: u64) -> Sender {
        Sender {
            keys: Arc::new(keys),
            seq,
            limit,
            end,
            over: None,
        }
    }

    #[cfg(feature = "testkit")]
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }
}

impl Session {
    /// Makes records of as much of `from` as there is room for, and seals them or leaves that to
    /// workers.
    pub(super) fn write(self: &Arc<Self>, from: &[u8]) -> Result<usize, TlsError> {
        let mut sender = self.sender();
        let stream = self.half.stream()?;
        self.check_open(&sender, &stream)?;
        let mut done = 0;
        while done < from.len() {
            if self.sealing.len() + CONTROL_UNITS >= UNITS {
                // Instead of waiting for a worker.
                if self.seal_one() {
                    continue;
                }
                break;
            }
            let owes = self.owes_update.swap(false, Ordering::AcqRel);
            let is_used_up = sender.seq + CONTROL_RECORDS >= sender.limit;
            if is_used_up && self.version == Version::Tls12 {
                if done > 0 {
                    break;
                }
                return Err(TlsError::KeyExhausted);
            }
            if owes || is_used_up {
                if self.update(&mut sender, &stream, false) {
                    // There is a unit less.
                    continue;
                }
                self.owes_update.store(owes, Ordering::Release);
                break;
            }
            let wanted = (from.len() - done).min(MAX_TEXT);
            let len = wanted.min(room(&sender, &stream));
            if len < wanted.min(MIN_PIECE) {
                stream.fell_short();
                if room(&sender, &stream) < wanted.min(MIN_PIECE) {
                    break;
                }
                continue;
            }
            let text = &from[done..done + len];
            let at_once = len <= SEALED_AT_ONCE || self.sealing.are_ready(self.half.world.workers);
            let made = if at_once {
                self.seal_at_once(&mut sender, &stream, text)
            } else {
                self.push(&mut sender, &stream, APPLICATION_DATA, text)
            };
            if !made {
                break;
            }
            done += len;
        }
        if done == 0 && !from.is_empty() {
            return Err(SocketError::WouldBlock.into());
        }
        self.share();
        Ok(done)
    }

    /// Whether anything may be written.
    fn check_open(&self, sender: &Sender, stream: &StreamRef<'_>) -> Result<(), TlsError> {
        if let Some(over) = &sender.over {
            return Err(over.clone());
        }
        let status = stream.status();
        if let Some(ending) = status.end_reason() {
            return Err(SocketError::from(ending).into());
        }
        if status.retired() {
            return Err(SocketError::ShutDown.into());
        }
        if self.half.world.is_closing() {
            return Err(SocketError::Down.into());
        }
        Ok(())
    }

    /// Makes a unit of a record. False if there is no room for it.
    fn push(&self, sender: &mut Sender, stream: &StreamRef<'_>, content: u8, text: &[u8]) -> bool {
        let record_len = text.len() + sender.keys.overhead();
        if stream.writable_behind(sender.end) < record_len {
            return false;
        }
        let pushed = self.sealing.push(|unit| {
            let mut buffer = self.buffer();
            buffer[..text.len()].copy_from_slice(text);
            *unit = SealUnit {
                text: buffer,
                len: text.len(),
                content,
                keys: Some(Arc::clone(&sender.keys)),
                seq: sender.seq,
                offset: sender.end,
                record_len,
            };
        });
        if pushed {
            sender.seq += 1;
            sender.end += record_len as u64;
        }
        pushed
    }

    /// Makes a record of text where it is to stand, without a unit that others could claim. False
    /// if there is no room for it.
    ///
    /// If the cipher panics, there is no such record, and the next one takes its place and number:
    /// nothing behind the sealed prefix leaves.
    fn seal_at_once(&self, sender: &mut Sender, stream: &StreamRef<'_>, text: &[u8]) -> bool {
        let record_len = text.len() + sender.keys.overhead();
        if stream.writable_behind(sender.end) < record_len || !self.sealing.has_room() {
            return false;
        }
        stream.write_ahead(sender.end, record_len, |record| {
            sender.keys.seal(sender.seq, APPLICATION_DATA, text, record);
        });
        let pushed = self.sealing.push_done(|unit| {
            *unit = SealUnit {
                offset: sender.end,
                record_len,
                ..SealUnit::default()
            };
        });
        debug_assert!(pushed, "only the one who has the sender pushes");
        sender.seq += 1;
        sender.end += record_len as u64;
        self.publish();
        true
    }

    /// Sends a KeyUpdate, and goes on with the next key (RFC 8446 section 4.6.3). `asks`: the peer
    /// is to do the same. False if there is no room for it.
    fn update(&self, sender: &mut Sender, stream: &StreamRef<'_>, asks: bool) -> bool {
        let message = [24, 0, 0, 1, u8::from(asks)];
        let room = stream.writable_behind(sender.end);
        if self.sealing.len() >= UNITS || room < message.len() + sender.keys.overhead() {
            return false;
        }
        let Some(keys) = self.kernel().next_keys(false) else {
            sender.over = Some(TlsError::KeyExhausted);
            return false;
        };
        if asks {
            // Before it is sent, so before it is answered.
            self.asked_updates.fetch_add(1, Ordering::Relaxed);
        }
        let pushed = self.push(sender, stream, HANDSHAKE, &message);
        (sender.keys, sender.seq) = (Arc::new(keys), 0);
        pushed
    }

    /// Whether a KeyUpdate of the peer may be the answer to one of ours; then that has its answer.
    /// One may answer several (RFC 8446 section 4.6.3), whose share is left to others.
    pub(super) fn takes_answer(&self) -> bool {
        let asked = &self.asked_updates;
        let less = |count: u64| count.checked_sub(1);
        let taken = asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.is_ok()
    }

    /// A KeyUpdate that the application asks for.
    pub(super) fn update_keys(self: &Arc<Self>) -> Result<(), TlsError> {
        let mut sender = self.sender();
        let stream = self.half.stream()?;
        self.check_open(&sender, &stream)?;
        if self.version == Version::Tls12 {
            return Err(SocketError::Invalid.into());
        }
        let has_room = room(&sender, &stream) > 0;
        if !has_room || self.sealing.len() + CONTROL_UNITS >= UNITS {
            stream.fell_short();
            return Err(SocketError::WouldBlock.into());
        }
        if !self.update(&mut sender, &stream, true) {
            return Err(SocketError::WouldBlock.into());
        }
        while self.seal_one() {}
        Ok(())
    }

    /// Sends a warning that changes nothing.
    pub(super) fn warn(&self, alert: AlertDescription) {
        let mut sender = self.sender();
        if let Ok(stream) = self.half.stream()
            && sender.over.is_none()
            && self.sealing.len() + CONTROL_UNITS < UNITS
        {
            self.push(&mut sender, &stream, ALERT, &[1, alert.into()]);
            while self.seal_one() {}
        }
    }

    /// Nothing more is written: close_notify, or the alert that says what was wrong, then the end
    /// of the stream.
    pub(super) fn end(&self, why: Option<AlertDescription>) {
        let mut sender = self.sender();
        if sender.over.is_none() {
            let (alert, over) = match why {
                None => ([1, 0], SocketError::ShutDown.into()),
                Some(alert) => ([2, alert.into()], TlsError::Refused(alert)),
            };
            sender.over = Some(over);
            if let Ok(stream) = self.half.stream() {
                self.push(&mut sender, &stream, ALERT, &alert);
            }
        }
        while self.seal_one() {}
        // ORDERING: Release, pairs with the Acquire in `publish`, which then sees all units.
        self.is_ending.store(true, Ordering::Release);
        self.publish();
    }

    /// Seals one record, if one is ready.
    fn seal_one(&self) -> bool {
        let unit = self.sealing.claim();
        unit.map(|unit| self.seal(unit, false)).is_some()
    }

    /// Seals a record from its unit into the send ring.
    pub(super) fn seal(&self, unit: Claim<'_, SealUnit>, by_worker: bool) {
        if let (Ok(stream), Some(keys)) = (self.half.stream(), &unit.keys) {
            stream.write_ahead(unit.offset, unit.record_len, |record| {
                keys.seal(unit.seq, unit.content, &unit.text[..unit.len], record);
                if by_worker {
                    self.half.world.units.in_unit();
                }
            });
        }
        unit.done();
        self.publish();
    }

    /// Moves the cursor of what is written over the sealed prefix.
    fn publish(&self) {
        self.publishing.run(|| {
            let world = &self.half.world;
            let mut end = None;
            while let Some(here) = self.sealing.take(|unit| {
                world.units.give_back(core::mem::take(&mut unit.text));
                unit.keys = None;
                unit.offset + unit.record_len as u64
            }) {
                end = Some(here);
            }
            let Ok(stream) = self.half.stream() else {
                return;
            };
            if let Some(end) = end {
                stream.publish_written(end);
                world.raise(&stream);
                stream.waiting().notify_all();
            }
            // ORDERING: Acquire, pairs with the Release in `end`.
            if self.is_ending.load(Ordering::Acquire)
                && self.sealing.len() == 0
                && !self.has_ended.swap(true, Ordering::Relaxed)
            {
                self.half.request(AppRequest {
                    shutdown: true,
                    ..AppRequest::default()
                });
                stream.waiting().notify_all();
            }
        });
    }
}

/// How much text of a record there is room for.
fn room(sender: &Sender, stream: &StreamRef<'_>) -> usize {
    let room = stream.writable_behind(sender.end);
    room.saturating_sub(sender.keys.overhead() + CONTROL_ROOM)
}
