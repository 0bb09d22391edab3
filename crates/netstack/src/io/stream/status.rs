//! The status of a connection as its application sees it.

use core::sync::atomic::Ordering;

use super::{StreamRef, UNKNOWN};
use crate::log::effect::ConnectionEvent;

pub(super) const ESTABLISHED: u32 = 1;
const ACKNOWLEDGED: u32 = 2;
pub(super) const RETIRED: u32 = 4;
const RESET: u32 = 8;
const REFUSED: u32 = 16;
const TIMED_OUT: u32 = 32;
const ABORTED: u32 = 64;
const UNREACHABLE: u32 = 128;
const SENT: u32 = 256;
const LOST: u32 = 512;
/// The bits of a connection that ended early.
pub(super) const ERRORS: u32 = RESET | REFUSED | TIMED_OUT | ABORTED | UNREACHABLE | LOST;

/// Why a connection ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    Reset,
    Refused,
    TimedOut,
    Unreachable,
    Aborted,
    AddressLost,
}

/// The status of a connection as far as its application may know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionStatus {
    bits: u32,
}

impl ConnectionStatus {
    pub(crate) fn established(self) -> bool {
        self.bits & ESTABLISHED != 0
    }

    pub(crate) fn all_acknowledged(self) -> bool {
        self.bits & ACKNOWLEDGED != 0
    }

    pub(crate) fn retired(self) -> bool {
        self.bits & RETIRED != 0
    }

    /// The bits that affect reads and writes.
    pub(super) fn lasting(self) -> u32 {
        self.bits & (ESTABLISHED | RETIRED | ERRORS)
    }

    /// Whether the connection is closed, for whatever reason.
    pub(crate) fn is_over(self) -> bool {
        self.retired() || self.end_reason().is_some()
    }

    /// Whether it is closed, and all its frames were sent.
    pub(crate) fn is_sent(self) -> bool {
        self.bits & SENT != 0
    }

    pub(crate) fn end_reason(self) -> Option<EndReason> {
        let table = [
            (REFUSED, EndReason::Refused),
            (RESET, EndReason::Reset),
            (TIMED_OUT, EndReason::TimedOut),
            (UNREACHABLE, EndReason::Unreachable),
            (ABORTED, EndReason::Aborted),
            (LOST, EndReason::AddressLost),
        ];
        table
            .into_iter()
            .find(|(bit, _)| self.bits & bit != 0)
            .map(|(_, ending)| ending)
    }
}

impl StreamRef<'_> {
    /// Stores an event of the connection, which happened when the receive stream was `received`
    /// bytes long.
    pub(crate) fn event(&self, event: ConnectionEvent, received: u64) {
        let ends = !matches!(
            event,
            ConnectionEvent::Established
                | ConnectionEvent::AllAcknowledged
                | ConnectionEvent::PeerFinished { .. }
        );
        if ends {
            // Stored before the bit that makes it valid, which is stored with Release.
            self.stream
                .stack
                .ended_at
                .store(received, Ordering::Relaxed);
        }
        let bit = match event {
            ConnectionEvent::Established => ESTABLISHED,
            ConnectionEvent::AllAcknowledged => ACKNOWLEDGED,
            ConnectionEvent::PeerFinished { end } => {
                // ORDERING: Release, pairs with the Acquire in `peer_end`.
                self.stream.stack.peer_end.store(end, Ordering::Release);
                0
            }
            ConnectionEvent::Reset => RESET,
            ConnectionEvent::Refused => REFUSED,
            ConnectionEvent::TimedOut => TIMED_OUT,
            ConnectionEvent::Unreachable => UNREACHABLE,
            ConnectionEvent::Aborted => ABORTED,
            ConnectionEvent::AddressLost => LOST,
        };
        self.set_status(bit);
    }

    pub(crate) fn retired(&self) {
        self.set_status(RETIRED);
    }

    /// Notes that all frames of a closed connection were sent.
    pub(crate) fn all_sent(&self) {
        self.set_status(SENT);
    }

    fn set_status(&self, bits: u32) {
        // ORDERING: Release, pairs with the Acquire in `status`.
        self.stream.stack.status.fetch_or(bits, Ordering::Release);
        self.notify();
    }

    pub(crate) fn status(&self) -> ConnectionStatus {
        ConnectionStatus {
            // ORDERING: Acquire, pairs with the Release in `set_status`.
            bits: self.stream.stack.status.load(Ordering::Acquire),
        }
    }

    /// How many bytes had been received when the connection was closed; valid once
    /// [`ConnectionStatus::end_reason`] returns a reason.
    pub(crate) fn ended_at(&self) -> u64 {
        self.stream.stack.ended_at.load(Ordering::Relaxed)
    }

    /// The end of the receive stream, once known.
    pub(crate) fn peer_end(&self) -> Option<u64> {
        // ORDERING: Acquire, pairs with the Release in `event`.
        let end = self.stream.stack.peer_end.load(Ordering::Acquire);
        (end != UNKNOWN).then_some(end)
    }
}
