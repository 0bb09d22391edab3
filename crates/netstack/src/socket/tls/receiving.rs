//! Received content other than the application's text: alerts and messages.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use rustls::AlertDescription;

use super::error::TlsError;
use super::record::{ALERT, APPLICATION_DATA, HANDSHAKE, Version};
use super::session::Reader;

/// The most records and messages in a row that carry nothing for the reader, except KeyUpdates that
/// we asked for. A record counts as one, or as the number of messages that end in it. More are a
/// flood: each costs us more than the peer, a KeyUpdate most.
const MAX_QUIET: u32 = 32;
/// The longest message after the handshake. The only long one, a ticket, may have slightly more
/// than 2^16 bytes (RFC 8446 section 4.6.1), but no current server sends one of nearly that length.
const MAX_MESSAGE: usize = 1 << 16;

const HELLO_REQUEST: u8 = 0;
const CLIENT_HELLO: u8 = 1;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// A reader's state for messages.
#[derive(Default)]
pub(super) struct Messages {
    /// An incomplete message.
    begun: Vec<u8>,
    /// Records and messages since the last one with text, as [`MAX_QUIET`] counts them.
    quiet: u32,
}

impl Reader {
    pub(super) fn take_content(&mut self, content: u8, len: usize) -> Result<(), AlertDescription> {
        const UNEXPECTED: AlertDescription = AlertDescription::UnexpectedMessage;
        if content == APPLICATION_DATA && len > 0 {
            self.reading.quiet = 0;
        } else {
            self.reading.quiet += 1;
        }
        // Messages are not interleaved with other records (RFC 8446 section 5.1).
        if content != HANDSHAKE && !self.reading.begun.is_empty() {
            return Err(UNEXPECTED);
        }
        match content {
            APPLICATION_DATA => {
                self.show(len);
                Ok(())
            }
            ALERT => match *self.opened(len) {
                [level, alert] => self.take_alert(level, alert.into()),
                // RFC 8446 section 5.4.
                [] => Err(UNEXPECTED),
                _ => Err(AlertDescription::DecodeError),
            },
            HANDSHAKE if len > 0 => {
                let mut begun = core::mem::take(&mut self.reading.begun);
                begun.extend_from_slice(self.opened(len));
                let used = self.take_messages(&begun)?;
                begun.drain(..used);
                self.reading.begun = begun;
                Ok(())
            }
            _ => Err(UNEXPECTED),
        }?;
        self.check_flood()
    }

    /// Called once it is known whether we asked for the last message.
    fn check_flood(&self) -> Result<(), AlertDescription> {
        match self.reading.quiet > MAX_QUIET {
            true => Err(AlertDescription::UnexpectedMessage),
            false => Ok(()),
        }
    }

    /// RFC 8446 section 6, RFC 5246 section 7.2.
    fn take_alert(&mut self, level: u8, alert: AlertDescription) -> Result<(), AlertDescription> {
        const WARNING: u8 = 1;
        let is_warning = match self.stage.extra.version {
            Version::Tls12 => level == WARNING,
            Version::Tls13 => alert == AlertDescription::UserCanceled,
        };
        self.over = match alert {
            AlertDescription::CloseNotify => Some(Ok(())),
            _ if is_warning => return Ok(()),
            _ => Some(Err(TlsError::PeerAlert(alert))),
        };
        if self.over != Some(Ok(())) {
            self.stage.end(None);
        }
        Ok(())
    }

    /// Processes the whole messages of `begun`, and returns their length in bytes.
    fn take_messages(&mut self, begun: &[u8]) -> Result<usize, AlertDescription> {
        let mut used = 0;
        while let [kind, a, b, c, ..] = begun[used..] {
            let len = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
            if len > MAX_MESSAGE {
                return Err(AlertDescription::DecodeError);
            }
            let Some(message) = begun[used..].get(..len) else {
                break;
            };
            // The first was counted as its record.
            self.reading.quiet += u32::from(used > 0);
            used += len;
            self.take_message(kind, &message[4..], used == begun.len())?;
            self.check_flood()?;
        }
        Ok(used)
    }

    /// `is_last`: the message is the last of its record.
    fn take_message(
        &mut self,
        kind: u8,
        body: &[u8],
        is_last: bool,
    ) -> Result<(), AlertDescription> {
        let session = Arc::clone(&self.stage);
        let protocol = &session.extra;
        match (protocol.version, kind) {
            (Version::Tls13, NEW_SESSION_TICKET) => protocol.kernel().keep_ticket(body),
            (Version::Tls13, KEY_UPDATE) => {
                // The next record has another key, so this one ends here (RFC 8446 section 5.1).
                if !is_last {
                    return Err(AlertDescription::UnexpectedMessage);
                }
                let asks = match body {
                    [0] => false,
                    [1] => true,
                    [_] => return Err(AlertDescription::IllegalParameter),
                    _ => return Err(AlertDescription::DecodeError),
                };
                let keys = protocol.kernel().next_keys(true);
                self.go_on_with(keys.ok_or(AlertDescription::InternalError)?);
                if !asks && protocol.takes_answer() {
                    self.reading.quiet = self.reading.quiet.saturating_sub(1);
                }
                if asks {
                    // Our KeyUpdate is sent before the next record (RFC 8446 section 4.6.3); one
                    // answers all requests until then.
                    protocol.owes_update.store(true, Ordering::Relaxed);
                }
                Ok(())
            }
            // Renegotiation is refused (RFC 5246 sections 7.4.1.1 and 7.4.1.2).
            (Version::Tls12, HELLO_REQUEST | CLIENT_HELLO)
                if (kind == HELLO_REQUEST) == protocol.kernel().is_client() =>
            {
                session.warn(AlertDescription::NoRenegotiation);
                Ok(())
            }
            _ => Err(AlertDescription::UnexpectedMessage),
        }
    }
}
