//! How a worker performs effects.
//!
//! A worker begins a batch ([`BatchRecords`](dominoes::BatchRecords)) before it performs one of its
//! effects, performs them in ascending order, and releases the batch before its step ends. Frames
//! belong to the owner of their chunk, and are begun and built in one go
//! ([`tx`](crate::io::tx)). This file does the worker's own share: its cursor passes a piece only
//! when that piece is done, by this worker or by one that stole it. While another worker has begun
//! the work at the cursor, the cursor waits. Any worker, this one included, can
//! [steal](super::steal) the work after it.

use dominoes::{BegunBatch, Seq, WorkState};

use super::pending::{Applied, Cursor, PendingEffects, piece};
use super::worker::ReplicatedWorker;
use crate::group::{FaultHooks, ReplicatedShared};
use crate::io::perform;
use crate::io::perform::BuiltHeaders;
use crate::io::tx::Owner;
use crate::io::world::Wakes;
use crate::io::{BatchRuns, FrameRecycler};
use crate::log::effect::Effect;
use crate::stats::EffectStats;

/// The outcome of a step, or of performing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It performed something, or found it done by another worker.
    Performed,
    /// The cursor passed work that is done, or is another worker's.
    Passed,
    /// Another worker has begun the next piece.
    Blocked,
    /// The cursor has reached the end of the pending effects.
    End,
}

/// A worker while it performs effects. It publishes its progress in atomic words once per chunk,
/// and when this is dropped, also by unwinding.
pub(crate) struct Executor<'a, T: FaultHooks> {
    pub(crate) id: usize,
    pub(crate) shared: &'a ReplicatedShared,
    pub(crate) pending: &'a PendingEffects,
    pub(crate) cursor: &'a mut Cursor,
    /// Payload bytes of requests that are prepared and not performed.
    pub(crate) prepared_bytes: &'a mut usize,
    pub(crate) headers: &'a mut BuiltHeaders,
    pub(crate) stats: &'a mut EffectStats,
    pub(crate) hooks: &'a mut T,
    /// Takes frames that are no longer needed.
    pub(crate) recycler: &'a mut FrameRecycler,
    /// Applications to be woken up.
    pub(crate) wakes: Wakes<'a>,
    /// The batch of the request at the cursor, if this worker has begun it. Its effects before the
    /// cursor are done.
    pub(crate) begun: Option<BegunBatch<'a, BatchRuns>>,
}

/// Makes an executor of the worker `$worker`, which may use its other fields meanwhile.
macro_rules! executor {
    ($worker:expr, $pending:expr, $cursor:expr) => {
        Executor {
            id: $worker.id,
            shared: &$worker.shared,
            pending: $pending,
            cursor: $cursor,
            prepared_bytes: &mut $worker.prepared_bytes,
            headers: &mut $worker.headers,
            stats: &mut $worker.stats,
            hooks: &mut $worker.hooks,
            recycler: &mut $worker.recycler,
            wakes: $crate::io::world::Wakes::new(&$worker.shared.world),
            begun: None,
        }
    };
}
pub(super) use executor;

impl<T: FaultHooks> Executor<'_, T> {
    /// Does one step of this worker's share: an effect, or at most `frames` frames of one.
    #[inline]
    pub(crate) fn step(&mut self, frames: u32) -> Step {
        let pending = self.pending;
        let Cursor { seq, number, .. } = *self.cursor;
        let Some(applied) = pending.applied.get((seq - pending.first) as usize) else {
            return Step::End;
        };
        let mine = usize::from(applied.in_batch.primary) == self.id;
        if number == applied.effects {
            if mine
                && applied.in_batch.left == 0
                && let Err(blocked) = self.perform_piece(applied, number, None)
            {
                return blocked;
            }
            if mine {
                *self.prepared_bytes = self.prepared_bytes.saturating_sub(applied.len as usize);
                self.stats.requests += 1;
            }
            self.cursor.next_request();
            return Step::Passed;
        }
        let effect = &pending.effects[self.cursor.effect];
        let mut step = Step::Passed;
        if effect.frames().is_some() {
            match self.build_own_frames(applied, effect, frames) {
                Ok(done) => step = done,
                Err(early) => return early,
            }
        } else if mine {
            match self.perform_piece(applied, number, Some(effect)) {
                Ok(done) => step = done,
                Err(blocked) => return blocked,
            }
        }
        self.cursor.next_effect();
        step
    }

    /// Builds those frames of the cursor's `effect` that belong to this worker, at most `most`. An
    /// error means that frames remain: `most` are built, or another worker has begun the next one.
    /// The request at the cursor is `applied`.
    #[inline(always)]
    pub(crate) fn build_own_frames(
        &mut self,
        applied: &Applied,
        effect: &Effect,
        most: u32,
    ) -> Result<Step, Step> {
        let (first, count) = effect.frames().unwrap_or_default();
        let mut built = 0;
        while self.cursor.frame < count {
            if built == most {
                return Err(Step::Performed);
            }
            let frame = first + u64::from(self.cursor.frame);
            if !self.is_my_frame(frame, applied, effect) {
                // The other frames of its chunk are not this worker's either.
                let next = self.shared.world.tx.chunk_end(frame) - first;
                self.cursor.frame = next.min(u64::from(count)) as u32;
                continue;
            }
            match self.build(effect, most - built) {
                Ok(count) => {
                    built += count;
                    self.cursor.frame += count;
                }
                Err(WorkState::Begun) if built > 0 => return Err(Step::Performed),
                Err(WorkState::Begun) => return Err(Step::Blocked),
                Err(_) => self.cursor.frame += 1,
            }
        }
        Ok(match built {
            0 => Step::Passed,
            _ => Step::Performed,
        })
    }

    /// Whether this worker owns `frame`, for which `effect` asks.
    #[inline(always)]
    fn is_my_frame(&self, frame: u64, applied: &Applied, effect: &Effect) -> bool {
        let owner = match self.shared.world.tx.owner(frame) {
            Owner::Unassigned => self.shared.assign_frame(self.id, frame, applied, effect),
            owner => owner,
        };
        owner == Owner::Worker(self.id)
    }

    /// Performs the cursor's `effect`, number `number` of its request, or if there is none, finishes
    /// its batch. Does nothing if that is done.
    ///
    /// # Errors
    /// [`Step::Blocked`] if another worker has begun the batch.
    #[inline(always)]
    pub(crate) fn perform_piece(
        &mut self,
        applied: &Applied,
        number: u32,
        effect: Option<&Effect>,
    ) -> Result<Step, Step> {
        match (self.begin_piece(applied, number), effect) {
            (Ok(()), Some(effect)) => self.execute(applied, effect),
            (Ok(()), None) => self.finish_batch(),
            (Err(WorkState::Done), _) => {}
            (Err(_), _) => return Err(Step::Blocked),
        }
        Ok(Step::Performed)
    }

    /// Begins the batch of the cursor's request, unless this worker has, so that it may perform
    /// effect `number`; if that is the number of effects, so that it may finish the batch.
    ///
    /// # Errors
    /// The state of that piece of work, if it is done, or another worker has begun the batch.
    #[inline(always)]
    pub(crate) fn begin_piece(&mut self, applied: &Applied, number: u32) -> Result<(), WorkState> {
        if !self.has_begun_batch(applied) {
            self.begin_batch(applied)?;
        }
        match &self.begun {
            Some(begun) if begun.has_done(piece(applied.in_batch.index, number)) => {
                Err(WorkState::Done)
            }
            _ => Ok(()),
        }
    }

    /// Whether this worker has begun the batch of the cursor's request.
    #[inline(always)]
    pub(crate) fn has_begun_batch(&self, applied: &Applied) -> bool {
        let first = applied.in_batch.first(self.cursor.seq);
        let begun = self.begun.as_ref();
        begun.is_some_and(|begun| begun.first() == first)
    }

    #[inline(never)]
    fn begin_batch(&mut self, applied: &Applied) -> Result<(), WorkState> {
        self.release_batch();
        let first = applied.in_batch.first(self.cursor.seq);
        self.begun = Some(self.shared.records.begin(first)?);
        Ok(())
    }

    /// Reports the batch that this worker has begun as done, and recycles its frames.
    pub(crate) fn finish_batch(&mut self) {
        if let Some(begun) = self.begun.take()
            && let Some(runs) = begun.finish()
        {
            self.recycler.put_runs(runs);
        }
    }

    /// Reports which pieces of the begun batch are done, and releases the batch.
    pub(crate) fn release_batch(&mut self) {
        if let Some(mut begun) = self.begun.take() {
            let index = self.cursor.seq - begun.first();
            begun.done_before(piece(index as u8, self.cursor.number));
        }
    }

    /// Builds those frames of the cursor's `effect` that are free, at most `most`, from the cursor
    /// to the end of a chunk; frames of datagrams one by one. Returns how many.
    #[inline(always)]
    pub(crate) fn build(&mut self, effect: &Effect, most: u32) -> Result<u32, WorkState> {
        let Cursor {
            seq, frame: from, ..
        } = *self.cursor;
        let world = &self.shared.world;
        let (hooks, stats) = (&mut *self.hooks, &mut *self.stats);
        let mut begin = |first: u64, most| {
            let begun = world.tx.begin(first + u64::from(from), most);
            begun.inspect_err(|why| stats.diverged += u64::from(*why == WorkState::Free))
        };
        let mut before = || hooks.before_performing(seq, effect);
        match effect {
            Effect::Transmit(transmit) => {
                let begun = begin(transmit.first_frame, most.min(transmit.count - from))?;
                let count = begun.left();
                perform::build_in(world, transmit, (from, begun), self.headers, stats, before);
                Ok(count)
            }
            Effect::Send(send) => {
                let begun = begin(send.first_frame, 1)?;
                before();
                perform::build_datagram_in(world, send, (from, begun), stats);
                Ok(1)
            }
            _ => Err(WorkState::Done),
        }
    }

    /// Performs the cursor's effect, whose batch this worker has begun. The effect transmits
    /// nothing.
    #[inline]
    pub(crate) fn execute(&mut self, applied: &Applied, effect: &Effect) {
        let seq = self.cursor.seq;
        self.hooks.before_performing(seq, effect);
        if self.hooks.finishes_early(seq) {
            return self.finish_batch();
        }
        let begun = self.begun.as_ref();
        let run = begun.and_then(|begun| begun.value().get(applied.in_batch.index));
        let layout = (applied.seg_len, usize::from(applied.payload_offset));
        let about = (layout, run, applied.is_stored);
        perform::one(
            &self.shared.world,
            effect,
            about,
            self.stats,
            &mut self.wakes,
        );
    }
}

impl<T: FaultHooks> Drop for Executor<'_, T> {
    fn drop(&mut self) {
        self.release_batch();
    }
}

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Performs this worker's share. After each `frame_chunk` frames it tries to send, so that the
    /// peer need not wait until all of the share is performed.
    pub(super) fn perform_and_send(&mut self) -> usize {
        let most_frames = self.shared.layout.tuning.frame_chunk as u32;
        let mut done = 0;
        loop {
            let (performed, last) = self.perform_mine(most_frames, usize::MAX);
            done += performed;
            if last != Step::Performed {
                return done;
            }
            done += self.send_in_turn(false);
        }
    }

    /// Performs this worker's share, up to `most_frames` frames and `most` pieces. Returns how many
    /// effects, or parts of them, that were, and why it ended: so many are performed
    /// (`Performed`), nothing is left up to the limit (`End`), or another worker has begun the next
    /// piece (`Blocked`).
    pub(super) fn perform_mine(&mut self, most_frames: u32, most: usize) -> (usize, Step) {
        let mut done = 0;
        let limit = self.perform_limit();
        let mut executor = executor!(self, &self.pending, &mut self.cursor);
        let before = executor.stats.frames;
        let last = loop {
            if executor.cursor.seq >= limit {
                break Step::End;
            }
            let built = (executor.stats.frames - before) as u32;
            if built >= most_frames || done == most {
                break Step::Performed;
            }
            match executor.step(most_frames - built) {
                Step::Performed => done += 1,
                Step::Passed => {}
                last => break last,
            }
        };
        drop(executor);
        self.stragglers.blocked = last == Step::Blocked;
        self.post_stats();
        (done, last)
    }

    /// Performs this worker's next effect, or the next frame of one. If there is none, or none can
    /// be performed now, steals late work. Returns whether it performed or stole anything.
    pub fn perform(&mut self) -> bool {
        if self.handle_membership() {
            return false;
        }
        self.perform_mine(1, 1).0 > 0 || self.steal_now(1) > 0
    }

    /// Posts its counters if its cursor has moved.
    pub(super) fn post_stats(&mut self) {
        if self.posted_at != self.cursor.seq {
            self.posted_at = self.cursor.seq;
            self.shared.slot_stats[self.id].post(&self.stats);
        }
    }

    /// The position below which effects may be performed.
    #[inline]
    pub(crate) fn perform_limit(&mut self) -> Seq {
        if !self.shared.layout.confirm {
            return Seq::MAX;
        }
        self.confirm();
        self.confirmed
    }
}
