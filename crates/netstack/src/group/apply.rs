//! How a worker prepares requests (verifies their frames, which yields their verdicts, and stores
//! payload on the way), and applies them, in the order of the log.
//!
//! The short way: it performs its own batches as it applies them, while all of its earlier work is
//! done. It begins the batch once, applies each request into an empty list, and performs the
//! effects in that list, so it retains none of them. If a frame of a request belongs to another
//! worker, or to a later step, the request's effects become [pending](super::pending), and the
//! [executor](super::execute) continues there. So do the effects of all other requests.

use dominoes::group::WorkerState;
use dominoes::{ReadBatch, Seq, Spin, Subscription, WorkState};

use super::execute::{Executor, Share};
use super::pending::{Applied, PendingEffects};
use super::worker::ReplicatedWorker;
use crate::group::{FaultHooks, ReplicatedShared};
use crate::io::prepare::prepare_and_store;
use crate::io::{BatchFrames, RunFrames};
use crate::log::effect::Effect;
use crate::log::request::{InBatch, Request};
use crate::state::apply::ReplicaState;
use crate::stats::EffectStats;

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// The place of the next request in its batch, if this worker can perform it as it applies it:
    /// it is prepared and this worker's, and all of its earlier work is done.
    #[inline(always)]
    pub(super) fn next_at_once(&self) -> Option<InBatch> {
        let seq = self.replica.position();
        if self.share.cursor.seq != seq || self.shared.layout.confirm {
            return None;
        }
        let in_batch = self.log.get(seq)?.in_batch;
        let is_mine = usize::from(in_batch.primary) == self.id;
        (is_mine && self.shared.verdicts.get(seq).is_some()).then_some(in_batch)
    }

    /// Applies requests of the next batch and performs them at once, if the batch is this worker's
    /// and all of its earlier work is done. Stops after `most_frames` frames. Returns the number of
    /// requests that it applied.
    pub(super) fn apply_at_once(&mut self, most_frames: u32) -> usize {
        let Some(InBatch { left, .. }) = self.next_at_once() else {
            return 0;
        };
        let (id, shared, log) = (self.id, &*self.shared, &self.log);
        let from = self.replica.position();
        let end = from + u64::from(left) + 1;
        let mut executor = Executor::new(id, shared, &mut self.share);
        let (replica, effects) = (&mut self.replica, &mut self.effects);
        let pending = &mut self.pending;
        let frames_end = executor.share.stats.frames + u64::from(most_frames);
        let mut seq = from;
        while seq < end
            && executor.share.stats.frames < frames_end
            && let Some(applied) = apply(executor.share, replica, (shared, log, seq), effects)
        {
            seq += 1;
            shared.post_if_due((id, seq), replica);
            if !executor.perform_at_once(applied, effects, pending, frames_end) {
                break;
            }
        }
        drop(executor);
        let applied = (seq - from) as usize;
        self.log.advance_to(seq);
        applied
    }

    /// Applies at most `most` requests.
    pub(super) fn apply_ready(&mut self, most: usize) -> usize {
        let mut done = 0;
        while done < most && (self.apply_one() || self.apply_for_straggler()) {
            done += 1;
        }
        if done > 0 {
            self.log.advance_to(self.replica.position());
        }
        done
    }

    /// If any worker is late: prepares the next request on behalf of its primary, and applies it.
    /// Returns whether it did.
    fn apply_for_straggler(&mut self) -> bool {
        self.stragglers.any && self.prepare_one(self.replica.position()) && self.apply_one()
    }

    /// Applies the next request if it is published and prepared (if a worker is late, prepares it
    /// before). Returns whether it did.
    pub fn apply(&mut self) -> bool {
        if self.handle_membership() {
            return false;
        }
        self.log.poll();
        self.apply_ready(1) > 0
    }

    #[inline]
    fn apply_one(&mut self) -> bool {
        let seq = self.replica.position();
        let (replica, at) = (&mut self.replica, (&*self.shared, &self.log, seq));
        let Some(applied) = apply(&mut self.share, replica, at, &mut self.effects) else {
            return false;
        };
        self.pending.add(applied, &mut self.effects);
        self.quiet.note(&applied);
        self.post_if_due(seq + 1);
        true
    }

    #[inline(always)]
    fn post_if_due(&mut self, position: Seq) {
        if self.shared.posts.is_due(position) {
            self.post(position);
        }
    }

    #[inline(never)]
    fn post(&mut self, position: Seq) {
        let posts = &self.shared.posts;
        let mut fingerprint = self.replica.post(position / posts.every());
        if self.shared.layout.confirm {
            // The state alone may hide an error, since a wrong value may be overwritten before the
            // next post. So the effects of all requests up to here count, too.
            fingerprint = fingerprint.rotate_left(1) ^ self.pending.fingerprint();
        }
        if self.state == WorkerState::JoinCheck {
            self.unposted.push((position, fingerprint));
            return;
        }
        self.shared.post(self.id, position, fingerprint);
    }
}

/// Applies the request at `seq`, if its verdict is known. Its effects go to `effects`, which is
/// empty. A panic of a connection ends that connection. The hooks of a test, if it has any, may
/// change the state, the verdict, the request and its effects.
#[inline(always)]
pub(super) fn apply<T: FaultHooks>(
    share: &mut Share<T>,
    replica: &mut ReplicaState,
    (shared, log, seq): (&ReplicatedShared, &Subscription<Request, Spin>, Seq),
    effects: &mut Vec<Effect>,
) -> Option<Applied> {
    let (mut request, mut verdict) = (log.get(seq)?, shared.verdicts.get(seq));
    let mut changed;
    if T::ACTIVE {
        share.hooks.change_state(seq, replica);
        changed = *request;
        verdict = Some(share.hooks.change_verdict(seq, verdict, &changed)?);
        share.hooks.change_request(seq, &mut changed);
        request = &changed;
    }
    replica.apply(request, verdict?, effects);
    if T::ACTIVE {
        share.hooks.change_effects(seq, effects);
    }
    Some(Applied::new(request, effects.len(), replica))
}

impl<T: FaultHooks> Executor<'_, T> {
    /// Performs the `effects` of the request at the cursor, which was just applied, and moves the
    /// cursor past it. If any effect is not done, all become `pending`. Returns false if some of
    /// those that are not done are this worker's; then the cursor is at the first of these.
    #[inline(always)]
    pub(super) fn perform_at_once(
        &mut self,
        applied: Applied,
        effects: &mut Vec<Effect>,
        pending: &mut PendingEffects,
        frames_end: u64,
    ) -> bool {
        let performed = self.perform_effects(&applied, effects, frames_end);
        if performed == Ok(true) {
            if pending.applied.is_empty() {
                pending.first += 1;
            } else {
                pending.applied.push_back(Applied {
                    effects: 0,
                    ..applied
                });
            }
            effects.clear();
        } else {
            let first = pending.effects_end();
            pending.add(applied, effects);
            let cursor = &mut self.share.cursor;
            if performed.is_err() {
                cursor.effect = first + u64::from(cursor.number);
                return false;
            }
            cursor.effect = pending.effects_end();
        }
        self.count_request(&applied);
        self.share.cursor.next_request();
        true
    }

    /// Performs the `effects` of the request at the cursor. Returns whether all are done; else
    /// frames of other workers are left. An error means that all from the cursor on are left.
    #[inline(always)]
    fn perform_effects(
        &mut self,
        applied: &Applied,
        effects: &[Effect],
        frames_end: u64,
    ) -> Result<bool, WorkState> {
        let mut done = true;
        for (number, effect) in (0..).zip(effects) {
            (self.share.cursor.number, self.share.cursor.frame) = (number, 0);
            if effect.frames().is_none() {
                self.perform_piece(applied, number, Some(effect))?;
                continue;
            }
            let most = frames_end.saturating_sub(self.share.stats.frames) as u32;
            done &= self.build_own_frames(applied, effect, most)?;
        }
        if applied.in_batch.left == 0 {
            (self.share.cursor.number, self.share.cursor.frame) = (applied.effects, 0);
            self.perform_piece(applied, applied.effects, None)?;
        }
        Ok(done)
    }
}

impl ReplicatedShared {
    /// Computes the verdict of the request at `seq`, which is not known. If payload is stored on
    /// the way, only one worker does: returns false if another one has begun, and calls `on_begin`
    /// before. Without payload to store, two workers may compute the same verdict.
    #[inline(always)]
    fn prepare(
        &self,
        seq: Seq,
        request: &Request,
        run: &RunFrames,
        stats: &mut EffectStats,
        on_begin: impl FnOnce(),
    ) -> bool {
        let verdict = |stats| prepare_and_store(&self.world, request, run, stats);
        if run.reserved.is_none() {
            self.verdicts.set(seq, verdict(stats));
            return true;
        }
        let Some(begun) = self.verdicts.begin(seq) else {
            return false;
        };
        on_begin();
        begun.set(verdict(stats));
        true
    }
}

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Prepares this worker's requests, in order, until `prepared_bytes` reaches `ahead_bytes`.
    pub(super) fn prepare_mine(&mut self) -> usize {
        let ReplicatedWorker {
            id,
            shared,
            log,
            replica,
            prepared,
            share,
            ..
        } = self;
        let Share {
            prepared_bytes,
            stats,
            hooks,
            recycler,
            ..
        } = share;
        let end = log.end();
        let mut done = 0;
        let mut reading: Option<ReadBatch<'_, BatchFrames>> = None;
        *prepared = (*prepared).max(replica.position());
        while *prepared < end && *prepared_bytes < shared.layout.tuning.ahead_bytes {
            let seq = *prepared;
            *prepared += 1;
            let Some(request) = log.get(seq) else {
                continue;
            };
            if usize::from(request.in_batch.primary) != *id {
                continue;
            }
            *prepared_bytes += request.digest.len as usize;
            if shared.verdicts.get(seq).is_some() {
                continue;
            }
            let first = request.in_batch.first(seq);
            if reading.as_ref().is_none_or(|batch| batch.first() != first) {
                recycler.put_read(reading.take());
                reading = shared.records.read(first);
            }
            let runs = reading.as_ref().map(ReadBatch::value);
            if let Some(run) = runs.and_then(|runs| runs.get(request.in_batch.index)) {
                let on_begin = || hooks.before_preparing(seq);
                done += usize::from(shared.prepare(seq, request, run, stats, on_begin));
            }
        }
        recycler.put_read(reading);
        done
    }

    /// Prepares the request at `seq`, whichever worker is its primary, if that is still to be done,
    /// and this worker has seen it published and not applied it. Returns whether it did.
    pub fn prepare(&mut self, seq: u64) -> bool {
        if self.handle_membership() {
            return false;
        }
        self.prepare_one(seq)
    }

    pub(super) fn prepare_one(&mut self, seq: u64) -> bool {
        if self.shared.verdicts.get(seq).is_some() {
            return false;
        }
        let Some(request) = self.log.get(seq) else {
            return false;
        };
        let in_batch = request.in_batch;
        let Some(reading) = self.shared.records.read(in_batch.first(seq)) else {
            return false;
        };
        let done = reading.value().get(in_batch.index).is_some_and(|run| {
            let Share { hooks, stats, .. } = &mut self.share;
            let on_begin = || hooks.before_preparing(seq);
            (self.shared).prepare(seq, request, run, stats, on_begin)
        });
        self.share.recycler.put_read(Some(reading));
        done
    }
}
