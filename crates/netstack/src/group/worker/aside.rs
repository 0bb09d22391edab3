//! When an idle worker leaves lone requests, such as one byte that is answered, to another one.
//!
//! If two idle workers look for the next request, each look moves the device and both pumps to the
//! core of the other worker, and a request and its answer change cores where it happens. So a
//! worker that has had no share of the work for some turns stays aside while the worker that claimed
//! the latest frames keeps finding the device empty: it applies the log and performs its share, and
//! does not look for more.

use super::ReplicatedWorker;
use crate::group::execute::LONE_FRAMES;
use crate::group::{FaultHooks, Primaries};
use crate::log::request::Request;
use crate::time::{Duration, Instant};

/// A worker may stay aside after this many turns in a row without a share or load.
const QUIET_TURNS: u32 = 16;
/// How long a worker stays aside after the last claimer has found the device empty.
const LOOK_AFTER: Duration = Duration::from_micros(20);
/// A request with more bytes, a batch with more segments or a turn with more than [`LONE_FRAMES`] is
/// load.
const LONE_BYTES: u32 = 4096;
const LONE_SEGMENTS: u8 = 1;

/// Whether a worker is quiet: it has no share of the work, and has seen no load.
#[derive(Default)]
pub(super) struct Quiet {
    /// Turns in a row that were so.
    turns: u32,
    /// Whether it applied a request of another worker that was load.
    saw_load: bool,
    /// Its share, and all frames, at the end of its last turn.
    share: u64,
    frames: u64,
    /// When it next asks whether the last claimer has time.
    ask_at: Instant,
    /// Whether it stays aside in this turn.
    pub(super) is_aside: bool,
}

impl Quiet {
    /// Notes a request that was applied.
    #[inline(always)]
    pub(super) const fn note(&mut self, request: &Request) {
        let digest = &request.digest;
        self.saw_load |= digest.count | digest.left > LONE_SEGMENTS || digest.len > LONE_BYTES;
    }

    /// The worker has slept, so it looks for work again.
    pub(super) const fn wake(&mut self) {
        self.turns = 0;
    }
}

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Whether this worker stays aside in a turn at `now`.
    #[inline]
    pub(super) fn stays_aside(&mut self, now: Instant) -> bool {
        if self.quiet.turns < QUIET_TURNS {
            return false;
        }
        if now >= self.quiet.ask_at {
            let (claimer, empty_at) = self.shared.batches.last_claimer();
            if claimer == self.id || !self.shared.membership.is_active(claimer) {
                return false;
            }
            self.quiet.ask_at = empty_at + LOOK_AFTER;
        }
        now < self.quiet.ask_at
    }

    /// Counts a turn that ends.
    #[inline]
    pub(super) fn count_quiet(&mut self) {
        let share = self.stats.requests + self.stats.frames + self.stats.stolen;
        let frames = self.replica.frames().next;
        let quiet = &mut self.quiet;
        let is_quiet = share == quiet.share
            && frames.wrapping_sub(quiet.frames) <= LONE_FRAMES.into()
            && !core::mem::take(&mut quiet.saw_load)
            && !self.intake.is_busy()
            && self.shared.layout.primaries == Primaries::ByPublisher;
        (quiet.share, quiet.frames) = (share, frames);
        quiet.turns = match is_quiet {
            true => quiet.turns.saturating_add(1),
            false => 0,
        };
    }
}
