//! A turn of a worker that expects a lone request, such as one byte that is answered.
//!
//! The worker has found one lone request after the other ([aside](super::aside)), and has done all
//! of its work. So it takes the next frames and publishes them in one step, and leaves out the
//! steps that find nothing as long as no request comes.

use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use super::apply::{apply, recover};
use super::execute::{Executor, executor};
use super::pending::{Applied, PendingEffects};
use super::solo::LogMode;
use super::worker::{IDLE_TURNS, ReplicatedWorker};
use crate::drive::{self, Worker as _};
use crate::group::FaultHooks;
use crate::time::Instant;

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Whether the next turn is [such a one](Self::lone_turn): nothing is asked of this worker, it
    /// has performed all that it applied, no other worker claimed since it did, and no batch waits
    /// to be parsed.
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
        self.quiet.now = now;
        let queues = self.queues();
        let shared = &*self.shared;
        let Some(mut side) = shared.rx.try_take() else {
            return self.whole_turn(now);
        };
        let (pump, mut log) = side.parts(shared, self.id);
        log.verifies = Some(&mut self.stats);
        core::mem::swap(&mut pump.recycler, &mut self.recycler);
        let before = (pump.received, pump.stats.frames);
        let (id, intake, empty_at) = (self.id, &mut self.intake, &mut self.device_empty_at);
        *empty_at = Instant::NEVER;
        let received = pump.turn(now, self.replica.awaited(), &mut log, |pump, log| {
            let device = (queues.clone(), &mut *empty_at);
            intake.claim_and_publish((shared, id), device, pump, now, log)
        });
        core::mem::swap(&mut pump.recycler, &mut self.recycler);
        if received > 0 && !self.quiet.count_published(before, pump, received) {
            shared.work_event.notify_all();
        }
        if shared.layout.autoscale && side.autoscaler.is_due(now) {
            shared.autoscale(&mut side.autoscaler, now);
        }
        drop(side);
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

    /// Applies and performs the request at the end of the log, if it is prepared, this worker is its
    /// primary, and it is a batch by itself. Returns whether it applied it. As
    /// [`apply_at_once`](Self::apply_at_once), for one.
    fn apply_lone(&mut self) -> bool {
        let (id, shared, log) = (self.id, &*self.shared, &self.log);
        let seq = self.replica.position();
        let Some(request) = log.get(seq) else {
            return false;
        };
        let in_batch = request.in_batch;
        let is_mine = in_batch.index | in_batch.left == 0 && usize::from(in_batch.primary) == id;
        if !is_mine || shared.verdicts.get(seq).is_none() || shared.layout.confirm {
            return false;
        }
        let Ok(begun) = shared.records.begin(seq) else {
            return false;
        };
        let mut executor = executor!(self, PendingEffects::NONE, &mut self.cursor);
        executor.begun = Some(begun);
        let (replica, effects) = (&mut self.replica, &mut self.effects);
        let (pending, in_hooks) = (&mut self.pending, &mut self.in_hooks);
        let changed = &mut None;
        let applying = || {
            let change = |hooks: &mut T, effects: &mut Vec<_>| hooks.change_effects(seq, effects);
            let hooks = (&mut *executor.hooks, &mut *in_hooks, { changed }, change);
            apply(hooks, replica, (shared, log, seq), effects)
        };
        let (request, is_stored) = match catch_unwind(AssertUnwindSafe(applying)) {
            Ok(Some(applied)) => applied,
            Ok(None) => return false,
            Err(panic) => (
                recover(panic, *in_hooks, replica, (log, seq), effects),
                false,
            ),
        };
        let posts = &shared.posts;
        if posts.is_due(seq + 1) {
            shared.post(id, seq + 1, replica.post((seq + 1) / posts.every()));
        }
        let frames = replica.frames().next;
        let applied = Applied::new(request, effects.len() as u32, is_stored, frames);
        let frames_end = executor.stats.frames + shared.layout.tuning.frame_chunk as u64;
        executor.perform_at_once(applied, effects, pending, frames_end);
        drop(executor);
        self.log.advance_to(seq + 1);
        self.stragglers.blocked = false;
        self.post_stats();
        true
    }
}
