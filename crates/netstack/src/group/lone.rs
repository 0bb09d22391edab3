//! A turn of a worker that expects a lone request, such as one byte that is answered.
//!
//! The worker has found one lone request after the other ([aside](super::aside)), and has done all
//! of its work. So it takes the next frames and publishes them in one step, and leaves out the
//! steps that find nothing as long as no request comes.

use super::apply::apply;
use super::execute::{Executor, Share};
use super::solo::LogMode;
use super::worker::{IDLE_TURNS, ReplicatedWorker};
use crate::drive::{self, Worker as _};
use crate::group::FaultHooks;
use crate::log::request::InBatch;
use crate::time::Instant;

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Whether the next turn is [such a one](Self::lone_turn): nothing is asked of this worker, it
    /// has performed all that it applied, no other worker claimed since it did, and no batch waits
    /// to be published.
    #[inline]
    pub(super) fn expects_lone(&self) -> bool {
        self.quiet.is_direct()
            && !self.quiet.is_aside
            && self.log_mode == LogMode::Logged
            && self.may_take_frames()
            && self.pending.applied.is_empty()
            && !self.intake.is_busy()
            && !self.shared.membership.is_notified(self.id)
            && self.needs_log()
            && self.shared.batches.last_claimer().0 == self.id
            && !self.shared.batches.is_any_waiting()
    }

    /// A turn with all steps.
    #[inline(never)]
    pub(super) fn whole_turn(&mut self, now: Instant) -> usize {
        drive::turn(self, now)
    }

    /// As a [whole turn](Self::whole_turn), if a lone request is expected.
    #[inline(never)]
    pub(super) fn lone_turn(&mut self, now: Instant) -> usize {
        if self.shared.layout.autoscale {
            self.count_busy(now);
        }
        self.now = self.now.max(now);
        let queues = self.queues();
        let (shared, awaited) = (&*self.shared, self.replica.awaited());
        let (id, intake, empty_at) = (self.id, &mut self.intake, &mut self.device_empty_at);
        *empty_at = Instant::NEVER;
        let Share {
            stats, recycler, ..
        } = &mut self.share;
        let quiet = &mut self.quiet;
        let received = shared.with_pump((id, now), recycler, Some(stats), |pump, log| {
            let before = (pump.received, pump.stats.frames);
            let received = pump.turn(now, awaited, log, |pump, log| {
                let device = (queues.clone(), &mut *empty_at);
                intake.claim_and_publish((shared, id), device, pump, now, log)
            });
            if received > 0 && !quiet.count_published(before, pump, received) {
                shared.work_event.notify_all();
            }
            received
        });
        let Some(received) = received else {
            return self.whole_turn(now);
        };
        let end = self.log.poll();
        if received == 0 && self.has_done_share(end) {
            self.idle = self.idle.saturating_add(1);
            let done = self.send_in_turn(self.idle >= IDLE_TURNS) + self.serve_units();
            self.was_busy = done > 0;
            self.quiet.count_idle(self.shared.rule.is_none());
            return done;
        }
        let is_lone = end == self.replica.position() + 1;
        let done = match is_lone && self.apply_lone() {
            // The other steps can wait for the next turn, which follows.
            true if self.has_done_share(end) => {
                self.idle = 0;
                received + 1 + self.send_in_turn(false)
            }
            is_applied => received + usize::from(is_applied) + drive::work(self),
        };
        self.end(done);
        done
    }

    /// Applies and performs the request at the end of the log, if it is prepared, this worker is
    /// its primary, and it is a batch by itself. Returns whether it applied it. As
    /// [`apply_at_once`](Self::apply_at_once), for one.
    fn apply_lone(&mut self) -> bool {
        if !self.next_at_once().is_some_and(InBatch::is_alone) {
            return false;
        }
        let (id, shared, log) = (self.id, &*self.shared, &self.log);
        let seq = self.replica.position();
        let Ok(begun) = shared.records.begin(seq) else {
            return false;
        };
        let mut executor = Executor::new(id, shared, &mut self.share);
        executor.begun = Some(begun);
        let (replica, effects) = (&mut self.replica, &mut self.effects);
        let pending = &mut self.pending;
        let at = (shared, log, seq);
        let Some(applied) = apply(executor.share, replica, at, effects) else {
            return false;
        };
        shared.post_if_due((id, seq + 1), replica);
        let frames_end = executor.share.stats.frames + shared.layout.tuning.frame_chunk as u64;
        executor.perform_at_once(applied, effects, pending, frames_end);
        drop(executor);
        self.log.advance_to(seq + 1);
        self.stragglers.blocked = false;
        self.post_stats();
        true
    }
}
