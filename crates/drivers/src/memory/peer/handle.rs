//! What the two halves of a peer and its handle share.

use crossbeam_utils::CachePadded;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Payloads are compared with what they should be, and checksums with those of what arrived.
pub(super) const VERIFY_FRAMES: u8 = 1;
/// Checksums are compared with those of what should have arrived.
pub(super) const VERIFY_CHECKSUMS: u8 = 2;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) connections: Box<[SharedConnection]>,
    pub(super) faults: CachePadded<Faults>,
    /// The stack asks how the peer is reached.
    pub(super) is_asked: AtomicBool,
    /// What is compared: `VERIFY_FRAMES` and `VERIFY_CHECKSUMS`.
    pub(super) verify: AtomicU8,
}

/// What both halves share of one connection.
#[derive(Debug, Default)]
pub(super) struct SharedConnection {
    /// The stack's first sequence number, in the low half; the high half is not zero once it is
    /// known.
    pub(super) syn: CachePadded<AtomicU64>,
    /// As the stack's newest frame says: its timestamp (high half) and the right edge of its window
    /// (low half).
    pub(super) window: CachePadded<AtomicU64>,
    /// Payload bytes that the stack sent, in order.
    pub(super) received: CachePadded<AtomicU64>,
}

/// Counts of what should not happen.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Acknowledgments that repeat the one before.
    pub(super) repeated_acks: AtomicU64,
    /// Segments that begin behind the first byte that is missing.
    pub(super) out_of_order: AtomicU64,
    /// Segments that begin before it.
    pub(super) sent_again: AtomicU64,
    /// Payloads or checksums that are not what they should be.
    pub(super) wrong: AtomicU64,
    /// Frames that end the connection, or are no TCP.
    pub(super) unexpected: AtomicU64,
}

/// Reports what a peer received and what was wrong with it, from any thread. Clones report of the
/// same peer.
#[derive(Clone, Debug)]
pub struct PeerHandle {
    pub(super) shared: Arc<Shared>,
    /// What is compared at all times.
    pub(super) always: u8,
}

impl PeerHandle {
    /// Payload bytes of a connection that arrived at the peer in order; connections are counted
    /// from 0, as they are opened. 0 for a connection that does not exist.
    pub fn received_bytes(&self, connection: usize) -> u64 {
        let connection = self.shared.connections.get(connection);
        // ORDERING: Relaxed, a count.
        connection.map_or(0, |it| it.received.load(Ordering::Relaxed))
    }

    /// Turns two checks on or off: of the payload, if the peer expects any, and of the checksum
    /// over the frame that arrived. On at first; they cost time, so a benchmark turns them off
    /// before it measures.
    pub fn verify(&self, on: bool) {
        let frames = if on { VERIFY_FRAMES } else { 0 };
        // ORDERING: Relaxed, frames on their way may be compared or not.
        self.shared
            .verify
            .store(self.always | frames, Ordering::Relaxed);
    }

    /// Segments that the stack sent again. Nothing is lost here, so it has no reason to, unless one
    /// of its threads was held up for longer than a retransmission timeout.
    pub fn sent_again(&self) -> u64 {
        // ORDERING: Relaxed, a count.
        self.shared.faults.sent_again.load(Ordering::Relaxed)
    }

    /// Segments that the stack sent before one that belongs before them. It may, where several
    /// cores build frames and one of them is late.
    pub fn out_of_order(&self) -> u64 {
        // ORDERING: Relaxed, a count.
        self.shared.faults.out_of_order.load(Ordering::Relaxed)
    }

    /// Whether anything was wrong, besides [`sent_again`](Self::sent_again) and
    /// [`out_of_order`](Self::out_of_order).
    ///
    /// # Errors
    /// The first kind of fault that was seen, in the order of [`PeerFault`].
    pub fn check(&self) -> Result<(), PeerFault> {
        match count(&self.shared.faults.repeated_acks) {
            0 => self.check_reordering(),
            repeated => Err(PeerFault::RepeatedAcknowledgments(repeated)),
        }
    }

    /// As [`check`](Self::check), of a stack that may reorder what arrives. It repeats
    /// acknowledgments then (RFC 5681 section 4.2), and they are no fault.
    ///
    /// # Errors
    /// As there.
    pub fn check_reordering(&self) -> Result<(), PeerFault> {
        let faults = &self.shared.faults;
        match (count(&faults.wrong), count(&faults.unexpected)) {
            (0, 0) => Ok(()),
            (0, unexpected) => Err(PeerFault::Unexpected(unexpected)),
            (wrong, _) => Err(PeerFault::Wrong(wrong)),
        }
    }
}

fn count(count: &AtomicU64) -> u64 {
    // ORDERING: Relaxed, a count.
    count.load(Ordering::Relaxed)
}

/// What was wrong with frames of the stack, and with how many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerFault {
    /// Acknowledgments that repeat the one before while segments are in flight.
    RepeatedAcknowledgments(u64),
    /// Frames whose payload or checksum is not what it should be.
    Wrong(u64),
    /// Frames that end a connection, belong to none, or are no TCP.
    Unexpected(u64),
}

impl fmt::Display for PeerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, what) = match self {
            Self::RepeatedAcknowledgments(count) => (count, "repeated acknowledgments"),
            Self::Wrong(count) => (count, "frames with a wrong payload or checksum"),
            Self::Unexpected(count) => (count, "unexpected frames"),
        };
        write!(f, "the peer saw {count} {what}")
    }
}

impl std::error::Error for PeerFault {}
