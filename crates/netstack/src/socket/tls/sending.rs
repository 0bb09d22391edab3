//! Sent content other than the application's text: KeyUpdates and alerts.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use rustls::AlertDescription;

use super::super::stage::{Codec, UNITS};
use super::error::TlsError;
use super::record::{ALERT, HANDSHAKE, Keys, Version};
use super::session::{CONTROL_ROOM, Sender, Session};
use crate::error::SocketError;
use crate::io::stream::StreamRef;

/// Records of a key that are reserved for these.
const CONTROL_RECORDS: u64 = 16;

impl Session {
    /// Replaces the key before a record of the application, if the peer asks for it or the key is
    /// used up.
    pub(super) fn before_record(
        &self,
        sender: &mut Sender,
        stream: &StreamRef<'_>,
    ) -> Result<ControlFlow<(), bool>, TlsError> {
        let limit = self.extra.limit.load(Ordering::Relaxed);
        let is_used_up = sender.number + CONTROL_RECORDS >= limit;
        if is_used_up && self.extra.version == Version::Tls12 {
            return Err(TlsError::KeyExhausted);
        }
        // ORDERING: Relaxed, here and elsewhere: only its own value counts.
        if !is_used_up && !self.extra.owes_update.load(Ordering::Relaxed) {
            return Ok(ControlFlow::Continue(true));
        }
        Ok(match self.update(sender, stream, false)? {
            true => ControlFlow::Continue(false),
            false => ControlFlow::Break(()),
        })
    }

    /// Makes a record of other content than the application's. Returns false if there is no room
    /// for it.
    pub(super) fn push_control(
        &self,
        sender: &mut Sender,
        stream: &StreamRef<'_>,
        content: u8,
        text: &[u8],
    ) -> bool {
        let len = text.len() + sender.codec.overhead();
        self.push(sender, stream, (content, text), len)
    }

    /// Sends a KeyUpdate, and changes to the next key (RFC 8446 section 4.6.3). `asks`: asks the
    /// peer to do so as well. Returns false if there is no room for it.
    fn update(
        &self,
        sender: &mut Sender,
        stream: &StreamRef<'_>,
        asks: bool,
    ) -> Result<bool, TlsError> {
        let message = [24, 0, 0, 1, u8::from(asks)];
        let room = stream.ring_room_behind(sender.end);
        if self.sealing.len() >= UNITS || room < message.len() + sender.codec.overhead() {
            return Ok(false);
        }
        let Some(keys) = self.extra.kernel().next_keys(false) else {
            sender.over = Some(TlsError::KeyExhausted);
            return Err(TlsError::KeyExhausted);
        };
        if asks {
            // Counted before it is sent, and so before it is answered.
            self.extra.asked_updates.fetch_add(1, Ordering::Relaxed);
        } else {
            // A request that comes from now on gets another one.
            self.extra.owes_update.store(false, Ordering::Relaxed);
        }
        let pushed = self.push_control(sender, stream, HANDSHAKE, &message);
        (sender.codec, sender.number) = (Arc::new(keys), 0);
        Ok(pushed)
    }

    /// Sends a KeyUpdate for the application.
    pub(super) fn update_keys(&self) -> Result<(), TlsError> {
        let mut sender = self.sender();
        let stream = self.half.stream()?;
        self.check_open(&sender, &stream)?;
        if self.extra.version == Version::Tls12 {
            return Err(SocketError::Invalid.into());
        }
        let room = stream.writable_behind(sender.end);
        let has_room = room > sender.codec.overhead() + CONTROL_ROOM;
        if !has_room || self.sealing.len() + Keys::CONTROL_UNITS >= UNITS {
            stream.fell_short();
            return Err(SocketError::WouldBlock.into());
        }
        if !self.update(&mut sender, &stream, true)? {
            return Err(SocketError::WouldBlock.into());
        }
        self.seal_all();
        Ok(())
    }

    /// Sends a warning that changes nothing.
    pub(super) fn warn(&self, alert: AlertDescription) {
        let mut sender = self.sender();
        if let Ok(stream) = self.half.stream()
            && sender.over.is_none()
            && self.sealing.len() + Keys::CONTROL_UNITS < UNITS
        {
            self.push_control(&mut sender, &stream, ALERT, &[1, alert.into()]);
            self.seal_all();
        }
    }
}
