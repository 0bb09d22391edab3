//! State shared by the two halves of a peer and its handle.

use crossbeam_utils::CachePadded;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Compares payloads with the expected stream, and checksums with the frames that arrived.
pub(super) const VERIFY_FRAMES: u8 = 1;
/// Compares checksums with those of the expected stream.
pub(super) const VERIFY_CHECKSUMS: u8 = 2;

#[derive(Debug)]
pub(super) struct PeerShared {
    pub(super) connections: Box<[SharedConnection]>,
    pub(super) faults: CachePadded<PeerFaults>,
    /// Set by an ARP request of the stack; the peer's answer clears it.
    pub(super) is_asked: AtomicBool,
    /// The checks that are on: `VERIFY_FRAMES` and `VERIFY_CHECKSUMS`.
    pub(super) verify: AtomicU8,
}

/// State of one connection that both halves share.
#[derive(Debug, Default)]
pub(super) struct SharedConnection {
    /// The stack's first sequence number (low half). The high half is not zero once it is known.
    pub(super) syn: CachePadded<AtomicU64>,
    /// From the stack's newest frame: its timestamp (high half) and the right edge of its window
    /// (low half).
    pub(super) window: CachePadded<AtomicU64>,
    /// Payload bytes received from the stack in order.
    pub(super) received: CachePadded<AtomicU64>,
}

/// Counts of faults of the stack.
#[derive(Debug, Default)]
pub(super) struct PeerFaults {
    /// Acknowledgments that repeat the previous one.
    pub(super) repeated_acks: AtomicU64,
    /// Segments that begin after the first missing byte.
    pub(super) out_of_order: AtomicU64,
    /// Segments that begin before it.
    pub(super) sent_again: AtomicU64,
    /// Wrong payloads or checksums.
    pub(super) wrong: AtomicU64,
    /// Frames that end the connection, or are not TCP.
    pub(super) unexpected: AtomicU64,
}

/// Reports, on any thread, the bytes that a peer received and the faults that it saw. Clones
/// report on the same peer.
#[derive(Clone, Debug)]
pub struct PeerHandle {
    pub(super) shared: Arc<PeerShared>,
    /// The checks that are always on.
    pub(super) always: u8,
}

impl PeerHandle {
    /// Payload bytes that the peer received in order on a connection. Connections are numbered
    /// from 0, in the order in which they are opened. 0 for a connection that does not exist.
    pub fn received_bytes(&self, connection: usize) -> u64 {
        let connection = self.shared.connections.get(connection);
        // ORDERING: Relaxed, a count.
        connection.map_or(0, |it| it.received.load(Ordering::Relaxed))
    }

    /// Turns two checks on or off: of the payload, if the peer expects any, and of the checksum
    /// over the frame that arrived. Both are on at first. They take time, so a benchmark turns
    /// them off before it measures.
    pub fn verify(&self, on: bool) {
        let frames = if on { VERIFY_FRAMES } else { 0 };
        // ORDERING: Relaxed, frames in transit may be checked or not.
        self.shared
            .verify
            .store(self.always | frames, Ordering::Relaxed);
    }

    /// Segments that the stack retransmitted. The device loses nothing, so the stack has no reason
    /// to, unless one of its threads was delayed for longer than a retransmission timeout.
    pub fn sent_again(&self) -> u64 {
        // ORDERING: Relaxed, a count.
        self.shared.faults.sent_again.load(Ordering::Relaxed)
    }

    /// Segments that the stack sent ahead of an earlier one. That is allowed where several cores
    /// build frames and one of them is late.
    pub fn out_of_order(&self) -> u64 {
        // ORDERING: Relaxed, a count.
        self.shared.faults.out_of_order.load(Ordering::Relaxed)
    }

    /// Reports the first fault other than [`sent_again`](Self::sent_again) and
    /// [`out_of_order`](Self::out_of_order).
    ///
    /// # Errors
    /// The first kind of fault that occurred, in the order of [`PeerFault`].
    pub fn check(&self) -> Result<(), PeerFault> {
        match count(&self.shared.faults.repeated_acks) {
            0 => self.check_reordering(),
            repeated => Err(PeerFault::RepeatedAcknowledgments(repeated)),
        }
    }

    /// As [`check`](Self::check), for a stack that may reorder the segments it receives. Such a
    /// stack repeats acknowledgments (RFC 5681 section 4.2), so they are not counted as a fault.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
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

/// A kind of fault in the stack's frames, with the number of such frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerFault {
    /// Acknowledgments that repeat the previous one while segments are in flight.
    RepeatedAcknowledgments(u64),
    /// Frames with a wrong payload or checksum.
    Wrong(u64),
    /// Frames that end a connection, belong to none, or are not TCP.
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
