//! Which worker sends the frames that are built.

use super::ReplicatedWorker;
use crate::group::FaultHooks;
use crate::group::assign::Owner;
use crate::time::{Duration, Instant};

/// If frames wait and none was sent for so long, any worker sends, even a busy one. Building a few
/// chunks of frames takes about this long.
const SEND_TAKEOVER: Duration = Duration::from_micros(50);

/// Watches whether frames are sent.
#[derive(Clone, Copy, Default)]
pub(super) struct SendWatch {
    /// Since when frames wait and none was sent.
    since: Instant,
    /// How many had been sent then.
    sent: u64,
}

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Sends frames, to the end of a chunk, if this worker owns the next one to be sent (then they
    /// are in the cache of its core) or its owner is unknown, as by default. Sends all if it is
    /// `idle`, or if frames wait too long. Sends nothing if another worker has the transmit pump.
    pub(crate) fn send_in_turn(&mut self, idle: bool) -> usize {
        let sent = self.shared.world.tx.sent();
        let below = if idle || self.is_sender_late(sent) {
            u64::MAX
        } else if self.is_likely_sender(sent) {
            self.own_frames_end(sent)
        } else {
            return 0;
        };
        match self.shared.tx.try_take() {
            Some(mut tx) => tx.turn_below(below),
            None => 0,
        }
    }

    /// The frame number below which this worker may send, from `frame` on: the end of the chunk, or
    /// no limit if no other worker is active.
    #[inline]
    fn own_frames_end(&self, frame: u64) -> u64 {
        match self.shared.membership.is_only_active(self.id) {
            true => u64::MAX,
            false => self.shared.frame_chunk_end(frame),
        }
    }

    /// Whether this worker should send `frame`: it owns the frame, the owner is not active, or the
    /// owner is not known.
    #[inline]
    fn is_likely_sender(&self, frame: u64) -> bool {
        let shared = &self.shared;
        if shared.layout.primaries.claims_frames() {
            return true;
        }
        let chunk = shared.frame_chunk_of(frame);
        match shared.assignment.frame_owner(chunk) {
            Owner::Worker(owner) => owner == self.id || !shared.membership.is_active(owner),
            _ => true,
        }
    }

    /// Whether frames wait and none was sent for [`SEND_TAKEOVER`]. The worker that should send
    /// them may be held up, so this one does, even if it is busy.
    #[inline]
    fn is_sender_late(&mut self, sent: u64) -> bool {
        let now = self.stragglers.now;
        if self.send_watch.sent != sent || self.replica.frames().next == sent {
            self.send_watch = SendWatch { since: now, sent };
            return false;
        }
        now.since(self.send_watch.since) >= SEND_TAKEOVER
    }
}
