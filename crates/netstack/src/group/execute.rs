//! How a worker performs effects.
//!
//! A worker begins a batch ([`BatchRecords`](dominoes::BatchRecords)) before it performs one of its
//! effects, performs them in ascending order, and releases the batch before its step ends. Frames
//! belong to the owner of their chunk, and are begun and built in one go ([`tx`](crate::io::tx)).
//! This file does the worker's own share: its cursor passes a piece of its own only when that piece
//! is done, by this worker or by one that stole it. While another worker has begun the work at the
//! cursor, the cursor waits. Any worker, this one included, can [steal](super::steal) the work
//! after it.

use dominoes::{BegunBatch, Seq, WorkState};

use super::pending::{Applied, Cursor, PendingEffects, piece};
use super::worker::ReplicatedWorker;
use crate::group::{FaultHooks, ReplicatedShared};
use crate::io::perform;
use crate::io::perform::BuiltHeaders;
use crate::io::world::Wakes;
use crate::io::{BatchFrames, FrameRecycler};
use crate::log::effect::Effect;
use crate::stats::EffectStats;

/// A worker's share: how far it is performed, and what performing needs.
pub(crate) struct Share<T> {
    pub(crate) cursor: Cursor,
    /// About how many payload bytes its own requests have that are prepared and not performed. When
    /// this reaches `ahead_bytes`, the worker prepares no more of its own and claims no frames; it
    /// parses and publishes only if a batch of any worker waits for that.
    pub(crate) prepared_bytes: usize,
    /// Headers of the frames built last, for the next ones that have the same.
    pub(crate) headers: BuiltHeaders,
    pub(crate) stats: EffectStats,
    /// Faults of a test. `T::ACTIVE`: the worker has fault hooks.
    pub(crate) hooks: T,
    /// Used frames that this worker has still to return to the device.
    pub(crate) recycler: Box<FrameRecycler>,
}

/// A worker while it performs effects. It releases what it has begun when this is dropped, also by
/// unwinding.
pub(crate) struct Executor<'a, T: FaultHooks> {
    pub(crate) id: usize,
    pub(crate) shared: &'a ReplicatedShared,
    pub(crate) share: &'a mut Share<T>,
    /// Applications to be woken up.
    wakes: Wakes<'a>,
    /// The batch of the request at the cursor, if this worker has begun it. Its effects before the
    /// cursor are done.
    pub(crate) begun: Option<BegunBatch<'a, BatchFrames>>,
    /// Effects performed, and times that frames were built.
    pub(crate) done: usize,
}

impl<'a, T: FaultHooks> Executor<'a, T> {
    /// Worker `id`, which has this `share`.
    #[inline(always)]
    pub(crate) fn new(id: usize, shared: &'a ReplicatedShared, share: &'a mut Share<T>) -> Self {
        Executor {
            id,
            shared,
            share,
            wakes: Wakes::new(&shared.world),
            begun: None,
            done: 0,
        }
    }

    /// Does one step of this worker's share: an effect, or at most `frames` frames of one.
    ///
    /// # Errors
    /// [`WorkState::Begun`] if another worker has begun the next piece, [`WorkState::Free`] if
    /// frames remain, [`WorkState::Done`] if nothing is pending.
    #[inline]
    fn step(&mut self, pending: &PendingEffects, frames: u32) -> Result<(), WorkState> {
        let Cursor { seq, number, .. } = self.share.cursor;
        let Some(applied) = pending.request(seq) else {
            return Err(WorkState::Done);
        };
        let mine = usize::from(applied.in_batch.primary) == self.id;
        if number == applied.effects {
            if mine {
                if applied.in_batch.left == 0 {
                    self.perform_piece(applied, number, None)?;
                }
                self.count_request(applied);
            }
            self.share.cursor.next_request();
            return Ok(());
        }
        let effect = pending.effect(&self.share.cursor);
        if effect.frames().is_some() {
            self.build_own_frames(applied, effect, frames)?;
        } else if mine {
            self.perform_piece(applied, number, Some(effect))?;
        }
        self.share.cursor.next_effect();
        Ok(())
    }

    /// Counts a request of its own that is performed.
    #[inline(always)]
    pub(crate) fn count_request(&mut self, applied: &Applied) {
        let left = self
            .share
            .prepared_bytes
            .saturating_sub(applied.len as usize);
        self.share.prepared_bytes = left;
        self.share.stats.requests += 1;
    }

    /// Builds those frames of the cursor's `effect` that belong to this worker, at most `most`. The
    /// request at the cursor is `applied`. Returns whether it built all frames.
    ///
    /// # Errors
    /// If frames remain: [`WorkState::Free`] if `most` are built, [`WorkState::Begun`] if another
    /// worker has begun the next one.
    #[inline(always)]
    pub(crate) fn build_own_frames(
        &mut self,
        applied: &Applied,
        effect: &Effect,
        most: u32,
    ) -> Result<bool, WorkState> {
        let (first, count) = effect.frames().unwrap_or_default();
        let mut built = 0;
        while self.share.cursor.frame < count {
            if built == most {
                return Err(WorkState::Free);
            }
            let frame = first + u64::from(self.share.cursor.frame);
            if !self.is_my_frame(frame, applied, effect) {
                // The other frames of its chunk are not this worker's either.
                let next = self.shared.world.tx.chunk_end(frame) - first;
                self.share.cursor.frame = next.min(u64::from(count)) as u32;
                continue;
            }
            match self.build(effect, most - built) {
                Ok(count) => {
                    built += count;
                    self.share.cursor.frame += count;
                }
                Err(WorkState::Begun) => return Err(WorkState::Begun),
                Err(_) => self.share.cursor.frame += 1,
            }
        }
        Ok(built == count)
    }

    /// Whether this worker owns `frame`, for which `effect` asks.
    #[inline(always)]
    fn is_my_frame(&self, frame: u64, applied: &Applied, effect: &Effect) -> bool {
        let owner = match self.shared.world.tx.owner(frame) {
            Err(WorkState::Free) => self.shared.assign_frame(self.id, frame, applied, effect),
            owner => owner,
        };
        owner == Ok(self.id)
    }

    /// Performs the cursor's `effect`, number `number` of its request, or if there is none,
    /// finishes its batch. Does nothing if that is done.
    ///
    /// # Errors
    /// [`WorkState::Begun`] if another worker has begun the batch.
    #[inline(always)]
    pub(crate) fn perform_piece(
        &mut self,
        applied: &Applied,
        number: u32,
        effect: Option<&Effect>,
    ) -> Result<(), WorkState> {
        match (self.begin_piece(applied, number), effect) {
            (Ok(()), Some(effect)) => self.execute(applied, effect),
            (Ok(()), None) => self.finish_batch(),
            (Err(WorkState::Done), _) => {}
            (Err(begun), _) => return Err(begun),
        }
        Ok(())
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
        let first = applied.in_batch.first(self.share.cursor.seq);
        let begun = self.begun.as_ref();
        begun.is_some_and(|begun| begun.first() == first)
    }

    #[inline(never)]
    fn begin_batch(&mut self, applied: &Applied) -> Result<(), WorkState> {
        self.release_batch();
        let first = applied.in_batch.first(self.share.cursor.seq);
        self.begun = Some(self.shared.records.begin(first)?);
        Ok(())
    }

    /// Reports the batch that this worker has begun as done, and recycles its frames.
    pub(crate) fn finish_batch(&mut self) {
        if let Some(begun) = self.begun.take()
            && let Some(runs) = begun.finish()
        {
            self.share.recycler.put_runs(runs);
        }
    }

    /// Reports which pieces of the begun batch are done, and releases the batch.
    pub(crate) fn release_batch(&mut self) {
        if let Some(mut begun) = self.begun.take() {
            let index = self.share.cursor.seq - begun.first();
            begun.done_before(piece(index as u8, self.share.cursor.number));
        }
    }

    /// Builds those frames of the cursor's `effect` that are free, at most `most`, from the cursor
    /// to the end of a chunk; frames of datagrams one by one. Returns how many.
    #[inline(always)]
    pub(crate) fn build(&mut self, effect: &Effect, most: u32) -> Result<u32, WorkState> {
        let Share {
            cursor,
            headers,
            stats,
            hooks,
            ..
        } = &mut *self.share;
        let (seq, from) = (cursor.seq, cursor.frame);
        let world = &self.shared.world;
        let mut begin = |first: u64, most| {
            let begun = world.tx.begin(first + u64::from(from), most);
            begun.inspect_err(|why| stats.diverged += u64::from(*why == WorkState::Free))
        };
        let mut before = || hooks.before_performing(seq, effect);
        match effect {
            Effect::Transmit(transmit) => {
                let begun = begin(transmit.first_frame, most.min(transmit.count - from))?;
                let count = begun.left();
                perform::build_in(world, transmit, (from, begun), headers, stats, before);
                self.done += 1;
                Ok(count)
            }
            Effect::Send(send) => {
                let begun = begin(send.first_frame, 1)?;
                before();
                perform::build_datagram_in(world, send, (from, begun), stats);
                self.done += 1;
                Ok(1)
            }
            _ => Err(WorkState::Done),
        }
    }

    /// Performs the cursor's effect, whose batch this worker has begun. The effect transmits
    /// nothing.
    #[inline]
    pub(crate) fn execute(&mut self, applied: &Applied, effect: &Effect) {
        self.done += 1;
        let seq = self.share.cursor.seq;
        self.share.hooks.before_performing(seq, effect);
        if self.share.hooks.finishes_early(seq) {
            return self.finish_batch();
        }
        let begun = self.begun.as_ref();
        let run = begun.and_then(|begun| begun.value().get(applied.in_batch.index));
        let (world, wakes) = (&self.shared.world, &mut self.wakes);
        perform::one(world, effect, run, &mut self.share.stats, wakes);
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
            let before = self.share.stats.frames;
            done += self.perform_mine(most_frames, usize::MAX);
            if self.share.stats.frames - before < u64::from(most_frames) {
                return done;
            }
            done += self.send_in_turn(false);
        }
    }

    /// Performs this worker's share, up to `most_frames` frames and `most` pieces. Returns how many
    /// effects, or parts of them, that were.
    pub(super) fn perform_mine(&mut self, most_frames: u32, most: usize) -> usize {
        let limit = self.perform_limit();
        let mut executor = Executor::new(self.id, &self.shared, &mut self.share);
        let frames_end = executor.share.stats.frames + u64::from(most_frames);
        let mut is_blocked = false;
        while executor.share.cursor.seq < limit && executor.done < most {
            let frames = frames_end.saturating_sub(executor.share.stats.frames) as u32;
            if frames == 0 {
                break;
            }
            if let Err(state) = executor.step(&self.pending, frames) {
                is_blocked = state == WorkState::Begun;
                break;
            }
        }
        let done = executor.done;
        drop(executor);
        self.stragglers.blocked = is_blocked;
        self.post_stats();
        done
    }

    /// Performs this worker's next effect, or the next frame of one. If there is none, or none can
    /// be performed now, steals late work. Returns whether it performed or stole anything.
    pub fn perform(&mut self) -> bool {
        if self.handle_membership() {
            return false;
        }
        self.perform_mine(1, 1) > 0 || self.steal_now(1) > 0
    }

    /// Posts its counters if its cursor has moved.
    pub(super) fn post_stats(&mut self) {
        if self.posted_at != self.share.cursor.seq {
            self.posted_at = self.share.cursor.seq;
            self.shared.slot_stats[self.id].post(&self.share.stats);
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
