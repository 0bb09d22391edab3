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
use dominoes::{Seq, WorkState};

use super::execute::{Executor, Step};
use super::pending::{Applied, Cursor, PendingEffects};
use super::prepare::STORED;
use super::worker::ReplicatedWorker;
use crate::group::FaultHooks;
use crate::io::world::Wakes;
use crate::log::effect::Effect;
use crate::log::request::{Request, Verdict};
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
        let ReplicatedWorker {
            id,
            shared,
            log,
            replica,
            pending,
            cursor,
            prepared_bytes,
            headers,
            stats,
            hooks,
            recycler,
            effects,
            ..
        } = self;
        let shared = &**shared;
        let Some(request) = log.get(from) else {
            return 0;
        };
        let in_batch = request.in_batch;
        let is_mine =
            usize::from(in_batch.primary) == *id && shared.is_primary(*id, from, in_batch);
        if !is_mine || shared.verdicts.get(from).is_none() {
            return 0;
        }
        let end = from + u64::from(in_batch.left) + 1;
        let nothing = PendingEffects::default();
        let mut executor = Executor {
            id: *id,
            shared,
            pending: &nothing,
            cursor,
            prepared_bytes,
            headers,
            stats,
            hooks,
            recycler,
            wakes: Wakes::new(&shared.world),
            begun: None,
        };
        let frames_end = executor.stats.frames + u64::from(most_frames);
        let mut seq = from;
        let posts = &shared.posts;
        // Whether a panic comes from applying a request.
        let mut is_applying = false;
        loop {
            let batch = || {
                while seq < end && executor.stats.frames < frames_end {
                    let Some(request) = log.get(seq) else { break };
                    let found = shared.verdicts.get(seq);
                    let mut changed = None;
                    let Some((request, verdict, is_stored)) =
                        ready(executor.hooks, replica, seq, request, found, &mut changed)
                    else {
                        break;
                    };
                    is_applying = true;
                    replica.apply_unguarded(request, verdict, effects);
                    is_applying = false;
                    if T::ACTIVE {
                        executor.hooks.change_effects(seq, effects);
                    }
                    seq += 1;
                    if posts.is_due(seq) {
                        shared.post(*id, seq, replica.post(seq / posts.every()));
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
                Err(panic) => match log.get(seq) {
                    Some(request) if is_applying && replica.position() == seq + 1 => {
                        is_applying = false;
                        replica.recover(panic, request, effects);
                        seq += 1;
                        if posts.is_due(seq) {
                            shared.post(*id, seq, replica.post(seq / posts.every()));
                        }
                        let frames = replica.frames().next;
                        let applied = Applied::new(request, effects.len() as u32, false, frames);
                        if !executor.perform_at_once(applied, effects, pending, frames_end) {
                            break;
                        }
                    }
                    _ => resume_unwind(panic),
                },
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
                Err(panic) => self.after_panic(panic),
            }
            done += 1;
        }
        if done > 0 {
            self.log.advance_to(self.replica.position());
        }
        done
    }

    /// If the panic came from applying a request, completes that request; else resumes the panic.
    #[cold]
    fn after_panic(&mut self, panic: Box<dyn Any + Send>) {
        let seq = self.pending.end();
        match self.log.get(seq) {
            Some(request) if self.replica.position() == seq + 1 && !self.in_hooks => {
                self.replica.recover(panic, request, &mut self.pending);
                let frames = self.replica.frames().next;
                self.pending.commit(request, false, frames);
                self.post_if_due(seq + 1);
            }
            _ => resume_unwind(panic),
        }
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
        let Some(request) = self.log.get(seq) else {
            return false;
        };
        let found = self.shared.verdicts.get(seq);
        let mut changed = None;
        let replica = &mut self.replica;
        let Some((request, verdict, is_stored)) =
            ready(&mut self.hooks, replica, seq, request, found, &mut changed)
        else {
            return false;
        };
        self.replica
            .apply_unguarded(request, verdict, &mut self.pending);
        if T::ACTIVE {
            // A panic in here is not one of the connection.
            self.in_hooks = true;
            self.pending
                .change_uncommitted(|effects| self.hooks.change_effects(seq, effects));
            self.in_hooks = false;
        }
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

/// The `request` at `seq` with its verdict, and whether its payload is stored, if the verdict is
/// known. The hooks of a test may change all of them.
#[inline(always)]
pub(super) fn ready<'a, T: FaultHooks>(
    hooks: &mut T,
    replica: &mut ReplicaState,
    seq: Seq,
    request: &'a Request,
    found: Option<Verdict>,
    changed: &'a mut Option<Request>,
) -> Option<(&'a Request, Verdict, bool)> {
    // `STORED`, a bit in the word of the verdict, means that the worker that verified the checksum
    // copied the payload into the receive ring as well.
    let is_stored = found.is_some_and(|found| found & STORED != 0);
    let verdict = found.map(|found| found & !STORED);
    if !T::ACTIVE {
        return Some((request, verdict?, is_stored));
    }
    hooks.change_state(seq, replica);
    let changed = changed.insert(*request);
    let verdict = hooks.change_verdict(seq, verdict, changed)?;
    hooks.change_request(seq, changed);
    Some((changed, verdict, is_stored))
}

impl<T: FaultHooks> Executor<'_, T> {
    /// Performs the `effects` of the request at the cursor, which was just applied, and moves the
    /// cursor past it. Effects that are not done become `pending`. Returns false if some of them
    /// are this worker's; then the cursor is at the first of these.
    #[inline(always)]
    fn perform_at_once(
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
                match self.begin_piece(applied, number) {
                    Ok(()) => self.execute(applied, effect),
                    Err(WorkState::Done) => {}
                    Err(_) => return Err(Step::Blocked),
                }
                continue;
            };
            self.build_own_frames(applied, effect, most)?;
            if self.stats.frames - before < u64::from(count) {
                done = Step::Passed;
            }
        }
        if applied.in_batch.left == 0 {
            (self.cursor.number, self.cursor.frame) = (applied.effects, 0);
            match self.begin_piece(applied, applied.effects) {
                Ok(()) => self.finish_batch(),
                Err(WorkState::Done) => {}
                Err(_) => return Err(Step::Blocked),
            }
        }
        Ok(done)
    }
}
