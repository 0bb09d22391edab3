//! Whether a read or a write would succeed, as a poller asks on any thread.
//!
//! A look needs neither half of the socket. It follows the delivery slots from the position of the
//! last read, which the reader publishes for this purpose. From there to the newest delivery there
//! are never more deliveries than bytes in the receive ring.

use core::sync::atomic::Ordering;

use super::status;
use super::{DeliveryCursor, SHUT_READ, SHUTDOWN, StreamRef};

/// The state of a stream for its application, at one moment. Each field except `is_writable`
/// changes when there is news, and never returns to an earlier value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// The end of the received bytes.
    pub(crate) received: u64,
    /// How many reads failed because another user held the bytes.
    pub(crate) misses: u64,
    /// How many writes found too little room.
    pub(crate) shortages: u64,
    /// The life of the connection: [`Look::END`] and other bits.
    pub(crate) status: u32,
    /// There are bytes to read.
    pub(crate) has_bytes: bool,
    /// No more bytes will be received, and all received bytes are read.
    pub(crate) is_at_end: bool,
    /// At least a third of the room for writing is free. (With less, writes would be small.)
    pub(crate) has_room: bool,
}

impl Look {
    /// The peer has sent the end of the stream.
    pub(crate) const END: u32 = 1 << 30;
    /// The application will not read any more.
    const SHUT_READ: u32 = 1 << 26;
    /// The application will not write any more.
    const SHUT_WRITE: u32 = 1 << 25;

    /// Whether the connection is established.
    pub(crate) fn is_established(&self) -> bool {
        self.status & status::ESTABLISHED != 0
    }

    /// Whether it was closed early.
    pub(crate) fn has_error(&self) -> bool {
        self.status & status::ERRORS != 0
    }

    /// Whether the connection is closed.
    pub(crate) fn is_over(&self) -> bool {
        self.status & (status::ERRORS | status::RETIRED) != 0
    }

    /// Whether nothing will be received any more.
    pub(crate) fn is_read_over(&self) -> bool {
        self.is_over() || self.status & (Self::END | Self::SHUT_READ) != 0
    }

    /// Whether nothing can be written any more.
    pub(crate) fn is_write_over(&self) -> bool {
        self.is_over() || self.status & Self::SHUT_WRITE != 0
    }
}

impl StreamRef<'_> {
    /// Notes that a read failed because another user held the bytes. That user may leave some of
    /// them.
    #[cold]
    pub(crate) fn missed(&self) {
        self.stream.app.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// The result of a read and of a write now.
    pub(crate) fn look(&self) -> Look {
        let status = self.status();
        let peer_end = self.peer_end();
        let app = &self.stream.app;
        let asked = app.requests.load(Ordering::Acquire);
        let is_read_shut = asked & SHUT_READ != 0;
        // ORDERING: Relaxed both. If the reader advances meanwhile, this may report bytes that were
        // read, as a poller may. It misses no unread bytes.
        let next = app.next.load(Ordering::Relaxed);
        let read = app.read.load(Ordering::Relaxed);
        // Start from the delivery that the reader saw last: its stamp has the end of those before
        // it.
        let mut seen = DeliveryCursor {
            next: next.saturating_sub(1),
            arrived: read,
            end: read,
        };
        self.follow(&mut seen);
        let received = seen.arrived;
        let ended = status.end_reason().is_some() && self.ended_at() <= received;
        let written = app.written.load(Ordering::Relaxed);
        Look {
            received,
            misses: app.misses.load(Ordering::Relaxed),
            shortages: app.shortages.load(Ordering::Relaxed),
            status: status.lasting()
                | if peer_end.is_some() { Look::END } else { 0 }
                | if is_read_shut { Look::SHUT_READ } else { 0 }
                | if asked & SHUTDOWN != 0 {
                    Look::SHUT_WRITE
                } else {
                    0
                },
            has_bytes: received > read,
            is_at_end: peer_end == Some(received) || ended || is_read_shut,
            has_room: self.has_room_behind(written, 1),
        }
    }
}
