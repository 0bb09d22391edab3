//! How a worker applies requests, in the order of the log.
//!
//! The short way: it performs its own batches as it applies them, while all of its earlier work is
//! done. It begins the batch once, applies each request into an empty list, and performs the
//! effects in that list, so it retains none of them. If a frame of a request belongs to another
//! worker, or to a later step, the request's effects become [pending](super::pending), and the
//! [executor](super::execute) continues there. So do the effects of all other requests.

use core::any::Any;
use core::panic::AssertUnwindSafe;
use std::panic::{catch_unwind, resume_unwind};

use dominoes::group::WorkerState;
use dominoes::{Seq, Spin, Subscription};

use super::execute::{Executor, Step, executor};
use super::pending::{Applied, Cursor, PendingEffects};
use super::prepare::STORED;
use super::worker::ReplicatedWorker;
use crate::group::{FaultHooks, ReplicatedShared};
use crate::log::effect::{Effect, EffectSink};
use crate::log::request::Request;
use crate::state::apply::ReplicaState;

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Applies requests of the next batch and performs them at once, if the batch is this worker's
    /// and all of its earlier work is done. Stops after `most_frames` frames. Returns the number of
    /// requests that it applied.
    pub(super) fn apply_at_once(&mut self, most_frames: u32) -> usize {
        let from = self.replica.position();
        if self.cursor.seq != from || self.shared.layout.confirm {
            return 0;
        }
        let (id, shared, log) = (self.id, &*self.shared, &self.log);
        let Some(request) = log.get(from) else {
            return 0;
        };
        let in_batch = request.in_batch;
        if usize::from(in_batch.primary) != id || shared.verdicts.get(from).is_none() {
            return 0;
        }
        let end = from + u64::from(in_batch.left) + 1;
        let mut executor = executor!(self, PendingEffects::NONE, &mut self.cursor);
        let (replica, effects) = (&mut self.replica, &mut self.effects);
        let (pending, in_hooks) = (&mut self.pending, &mut self.in_hooks);
        let frames_end = executor.stats.frames + u64::from(most_frames);
        let mut seq = from;
        let posts = &shared.posts;
        let mut recovered = None;
        loop {
            let batch = || {
                while seq < end && executor.stats.frames < frames_end {
                    let mut changed = None;
                    let found = recovered.take().map(|request| (request, false));
                    let Some((request, is_stored)) = found.or_else(|| {
                        let change = |hooks: &mut T, effects: &mut Vec<_>| {
                            hooks.change_effects(seq, effects);
                        };
                        let hooks = (&mut *executor.hooks, &mut *in_hooks, &mut changed, change);
                        apply(hooks, replica, (shared, log, seq), effects)
                    }) else {
                        break;
                    };
                    seq += 1;
                    if posts.is_due(seq) {
                        shared.post(id, seq, replica.post(seq / posts.every()));
                    }
                    let frames = replica.frames().next;
                    let applied = Applied::new(request, effects.len() as u32, is_stored, frames);
                    if !executor.perform_at_once(applied, effects, pending, frames_end) {
                        break;
                    }
                }
            };
            match catch_unwind(AssertUnwindSafe(batch)) {
                Ok(()) => break,
                Err(panic) => {
                    recovered = Some(recover(panic, *in_hooks, replica, (log, seq), effects));
                }
            }
        }
        drop(executor);
        let applied = (seq - from) as usize;
        self.log.advance_to(seq);
        applied
    }

    /// Applies at most `most` requests. A panic of a connection ends that connection (see
    /// [`ReplicaState::recover`]).
    pub(super) fn apply_ready(&mut self, most: usize) -> usize {
        let mut done = 0;
        loop {
            let batch = || {
                while done < most && (self.apply_one() || self.apply_for_straggler()) {
                    done += 1;
                }
            };
            match catch_unwind(AssertUnwindSafe(batch)) {
                Ok(()) => break,
                Err(panic) => {
                    let seq = self.pending.end();
                    let (replica, at) = (&mut self.replica, (&self.log, seq));
                    let request = recover(panic, self.in_hooks, replica, at, &mut self.pending);
                    let frames = self.replica.frames().next;
                    self.pending.commit(request, false, frames);
                    self.post_if_due(seq + 1);
                }
            }
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
    pub(crate) fn apply_one(&mut self) -> bool {
        let seq = self.replica.position();
        let mut changed = None;
        let change = |hooks: &mut T, pending: &mut PendingEffects| {
            pending.change_uncommitted(|effects| hooks.change_effects(seq, effects));
        };
        let hooks = (&mut self.hooks, &mut self.in_hooks, &mut changed, change);
        let at = (&*self.shared, &self.log, seq);
        let Some((request, is_stored)) = apply(hooks, &mut self.replica, at, &mut self.pending)
        else {
            return false;
        };
        let frames = self.replica.frames().next;
        self.pending.commit(request, is_stored, frames);
        self.quiet.note(request);
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

/// Applies the request at `seq`, whose effects go to `out`, if its verdict is known. Returns it, and
/// whether its payload is stored. The hooks of a test, if it has any, may change the state and the
/// verdict, the request (into `changed`), and by `change` its effects.
#[inline(always)]
pub(super) fn apply<'a, T: FaultHooks, S: EffectSink>(
    (hooks, in_hooks, changed, change): (
        &mut T,
        &mut bool,
        &'a mut Option<Request>,
        impl FnOnce(&mut T, &mut S),
    ),
    replica: &mut ReplicaState,
    (shared, log, seq): (&ReplicatedShared, &'a Subscription<Request, Spin>, Seq),
    out: &mut S,
) -> Option<(&'a Request, bool)> {
    let mut request = log.get(seq)?;
    // `STORED`, a bit in the word of the verdict, means that the worker that verified the checksum
    // copied the payload into the receive ring as well.
    let found = shared.verdicts.get(seq);
    let is_stored = found.is_some_and(|found| found & STORED != 0);
    let mut verdict = found.map(|found| found & !STORED);
    if T::ACTIVE {
        hooks.change_state(seq, replica);
        let changed = changed.insert(*request);
        verdict = Some(hooks.change_verdict(seq, verdict, changed)?);
        hooks.change_request(seq, changed);
        request = changed;
    }
    replica.apply_unguarded(request, verdict?, out);
    if T::ACTIVE {
        // A panic in here is not one of the connection.
        *in_hooks = true;
        change(hooks, out);
        *in_hooks = false;
    }
    Some((request, is_stored))
}

/// If the panic came from applying the request at `seq`, completes that request, whose effects are
/// in `out`, and returns it; else resumes the panic.
#[cold]
pub(super) fn recover<'a>(
    panic: Box<dyn Any + Send>,
    in_hooks: bool,
    replica: &mut ReplicaState,
    (log, seq): (&'a Subscription<Request, Spin>, Seq),
    out: &mut impl EffectSink,
) -> &'a Request {
    match log.get(seq) {
        Some(request) if replica.position() == seq + 1 && !in_hooks => {
            replica.recover(panic, request, out);
            request
        }
        _ => resume_unwind(panic),
    }
}

impl<T: FaultHooks> Executor<'_, T> {
    /// Performs the `effects` of the request at the cursor, which was just applied, and moves the
    /// cursor past it. Effects that are not done become `pending`. Returns false if some of them
    /// are this worker's; then the cursor is at the first of these.
    #[inline(always)]
    pub(super) fn perform_at_once(
        &mut self,
        applied: Applied,
        effects: &mut Vec<Effect>,
        pending: &mut PendingEffects,
        frames_end: u64,
    ) -> bool {
        let performed = self.perform_effects(&applied, effects, frames_end);
        if performed == Ok(Step::Performed) {
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
            self.cursor.effect = pending.effects.len();
            pending.effects.extend(effects.drain(..));
            pending.applied.push_back(applied);
            if performed.is_err() {
                self.cursor.effect += self.cursor.number as usize;
                return false;
            }
            self.cursor.effect = pending.effects.len();
        }
        *self.prepared_bytes = self.prepared_bytes.saturating_sub(applied.len as usize);
        self.stats.requests += 1;
        let effect = self.cursor.effect;
        *self.cursor = Cursor {
            seq: self.cursor.seq + 1,
            effect,
            ..Cursor::default()
        };
        true
    }

    /// Performs the `effects` of the request at the cursor. [`Step::Passed`] means that frames of
    /// other workers are left; an error, that all from the cursor on is.
    #[inline(always)]
    fn perform_effects(
        &mut self,
        applied: &Applied,
        effects: &[Effect],
        frames_end: u64,
    ) -> Result<Step, Step> {
        let mut done = Step::Performed;
        for (number, effect) in (0..).zip(effects) {
            (self.cursor.number, self.cursor.frame) = (number, 0);
            let before = self.stats.frames;
            let most = frames_end.saturating_sub(before) as u32;
            let Some((_, count)) = effect.frames() else {
                self.perform_piece(applied, number, Some(effect))?;
                continue;
            };
            self.build_own_frames(applied, effect, most)?;
            if self.stats.frames - before < u64::from(count) {
                done = Step::Passed;
            }
        }
        if applied.in_batch.left == 0 {
            (self.cursor.number, self.cursor.frame) = (applied.effects, 0);
            self.perform_piece(applied, applied.effects, None)?;
        }
        Ok(done)
    }
}
