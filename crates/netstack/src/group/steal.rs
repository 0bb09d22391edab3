//! Stealing: how a worker does the late work of others.
//!
//! A worker retains the effects that it does not perform at once until it sees that all are done
//! ([`PendingEffects`]): the words of its batch and of the chunks of its frames show that.
//! If the oldest ones stay, it scans its pending effects, oldest first, skips those that are done
//! or begun, and takes those that are late and not begun.
//!
//! A scan keeps no state. It begins at the oldest pending request, so when it comes to an effect,
//! it has seen everything before it in the same batch. If it skips an effect that is not done, it
//! skips the rest of that batch too. So work that is not done either was begun by a thread that
//! lives, or can be taken by the next scan of any worker.
//!
//! Work is late when many later requests have been applied, or when it has been the oldest for
//! long. All due work of a worker is late if some of it was found late before and the worker has
//! counted no progress since. Late does not mean failed: a worker that unwound or ended is not
//! active, and any worker may take its share once a part of that is the oldest pending work.
//!
//! # Where a thread may stop
//!
//! A thread may lose its core at any instruction, for as long as the machine likes. What the other
//! workers do depends on where it stopped:
//!
//! - Between two steps: they take the work that it has not begun, once `GroupTuning::steal_after`
//!   later positions were applied or it was the first of all pending work for
//!   `GroupTuning::patience`; from then on at once, until it counts progress.
//! - In the middle of an effect or a frame: they wait for the rest of that batch, or for the frames
//!   that it builds together, at most a chunk, and take its other work.
//! - In a pump: they do other work; input or output waits for its time slice.
//! - Anywhere, and it unwound or ended: they take its share. Its guards release its batch and its roles.
//!
//! A stopped replica lags, and no publisher can reuse the slots of the log that it has
//! not applied. So a log of N requests outlasts a stall of N divided by the requests per second.
//! The transmit pump sends later frames of other connections past a hole ([`tx`](crate::io::tx)).
//!
//! The cursor of a worker does not pass a piece that a thief has begun and not done: if the thief
//! unwinds, the worker does the rest itself.

use dominoes::{Seq, WorkState};

use super::execute::Executor;
use super::pending::{Applied, Cursor, PendingEffects, piece};
use super::worker::ReplicatedWorker;
use crate::group::{FaultHooks, Layout, ReplicatedShared};
use crate::log::effect::Effect;
use crate::time::Instant;

/// Effects and frames that one scan takes before the worker does other work.
const MOST_STOLEN: usize = 64;

/// Which workers are late, as far as a worker knows.
pub(crate) struct Stragglers {
    /// For each worker, its progress when it was found late. It counts as late until it counts more.
    late_at: Box<[Option<u64>]>,
    /// Whether one of them may still be late.
    pub(crate) any: bool,
    /// Another worker has begun the work at this worker's cursor.
    pub(crate) blocked: bool,
    /// The oldest pending request when this worker last checked, and since when it is the oldest.
    oldest: Option<(Seq, Instant)>,
    /// It has been the oldest for too long.
    overdue: bool,
    /// When to check even if there is other work.
    next_check: Instant,
}

impl Stragglers {
    pub(crate) fn new(slots: usize) -> Self {
        Stragglers {
            late_at: vec![None; slots].into_boxed_slice(),
            any: false,
            blocked: false,
            oldest: None,
            overdue: false,
            next_check: Instant::ZERO,
        }
    }

    /// Whether a worker with `pending` pending requests should check how far the others are.
    #[inline]
    pub(crate) fn is_due(
        &self,
        now: Instant,
        (pending, idle): (usize, bool),
        layout: &Layout,
    ) -> bool {
        pending > 0
            && (idle
                || self.any
                || self.blocked
                || now >= self.next_check
                || pending > layout.tuning.steal_after)
    }

    /// Checks which workers are late. Returns whether there may be work to steal.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        shared: &ReplicatedShared,
        pending: &PendingEffects,
    ) -> bool {
        self.next_check = now + shared.layout.tuning.patience;
        if pending.applied.is_empty() {
            (self.oldest, self.overdue, self.any) = (None, false, false);
            return false;
        }
        match self.oldest {
            Some((seq, since)) if seq == pending.first => {
                self.overdue = now.since(since) >= shared.layout.tuning.patience;
            }
            _ => {
                self.oldest = Some((pending.first, now));
                self.overdue = false;
            }
        }
        let mut late = self.late_at.iter().enumerate();
        self.any = late.any(|(id, at)| at.is_some_and(|at| at == shared.progress(id)))
            || shared.has_inactive_owner(pending);
        self.any
            || self.blocked
            || self.is_late(shared, pending, &pending.applied[0], pending.first)
    }

    fn is_straggler(&self, shared: &ReplicatedShared, owner: usize) -> bool {
        !shared.membership.is_active(owner)
            || self.late_at[owner].is_some_and(|at| at == shared.progress(owner))
    }

    /// Whether the remaining work of the request at `seq` is late.
    fn is_late(
        &self,
        shared: &ReplicatedShared,
        pending: &PendingEffects,
        applied: &Applied,
        seq: Seq,
    ) -> bool {
        let batch_end = seq + u64::from(applied.in_batch.left) + 1;
        self.overdue || pending.end() >= batch_end + shared.layout.tuning.steal_after as u64
    }

    /// Whether worker `me` may take work of the request at `seq` that `owner` has not begun. If it
    /// is late, records `owner` as late.
    fn may_steal(
        &mut self,
        shared: &ReplicatedShared,
        pending: &PendingEffects,
        me: usize,
        owner: usize,
        seq: Seq,
    ) -> bool {
        if owner == me || self.is_straggler(shared, owner) {
            return true;
        }
        let applied = &pending.applied[(seq - pending.first) as usize];
        let late = self.is_late(shared, pending, applied, seq);
        if late {
            self.late_at[owner] = Some(shared.progress(owner));
            self.any = true;
        }
        late
    }
}

impl ReplicatedShared {
    /// A number that grows when worker `id` makes progress with its share.
    fn progress(&self, id: usize) -> u64 {
        let posted = self.slot_stats[id].load();
        posted.requests + posted.frames
    }

    /// Whether the worker that should do the oldest pending work that is not done is not active.
    fn has_inactive_owner(&self, pending: &PendingEffects) -> bool {
        let Some(oldest) = pending.applied.front() else {
            return false;
        };
        let owner = match self.records.is_done(oldest.in_batch.first(pending.first)) {
            true => self.world.tx.owner(pending.built),
            false => Ok(oldest.in_batch.primary.into()),
        };
        matches!(owner, Ok(id) if !self.membership.is_active(id))
    }
}

impl<T: FaultHooks> Executor<'_, T> {
    /// Scans the pending effects below `limit`, and takes at most `most` pieces. The cursor must be
    /// at the oldest request.
    fn scan(
        &mut self,
        pending: &PendingEffects,
        stragglers: &mut Stragglers,
        limit: Seq,
        most: usize,
    ) {
        // Whether what is left of the current batch is skipped.
        let mut skipped = false;
        while self.share.cursor.seq < limit
            && let Some(applied) = pending.request(self.share.cursor.seq)
        {
            let number = self.share.cursor.number;
            if number == applied.effects {
                if applied.in_batch.left == 0 {
                    if self
                        .steal_piece((pending, stragglers), &mut skipped, applied, number)
                        .is_ok()
                    {
                        self.finish_batch();
                    }
                    skipped = false;
                }
                self.share.cursor.next_request();
                continue;
            }
            if self.done == most {
                break;
            }
            let effect = pending.effect(&self.share.cursor);
            if let Some((first, count)) = effect.frames() {
                while self.share.cursor.frame < count && self.done < most {
                    self.steal_frame((pending, stragglers), effect, (first, count));
                }
                if self.share.cursor.frame < count {
                    break;
                }
            } else if self
                .steal_piece((pending, stragglers), &mut skipped, applied, number)
                .is_ok()
            {
                self.execute(applied, effect);
                self.share.stats.stolen +=
                    u64::from(usize::from(applied.in_batch.primary) != self.id);
            }
            self.share.cursor.next_effect();
        }
    }

    /// As [`begin_piece`](Self::begin_piece), for a batch that is perhaps another worker's.
    fn steal_piece(
        &mut self,
        (pending, stragglers): (&PendingEffects, &mut Stragglers),
        skipped: &mut bool,
        applied: &Applied,
        number: u32,
    ) -> Result<(), WorkState> {
        let (shared, seq) = (self.shared, self.share.cursor.seq);
        if *skipped {
            return Err(WorkState::Begun);
        }
        let owner = applied.in_batch.primary.into();
        let found = if self.has_begun_batch(applied) {
            self.begin_piece(applied, number)
        } else {
            let piece = piece(applied.in_batch.index, number);
            match shared.records.state(applied.in_batch.first(seq), piece) {
                WorkState::Free if !stragglers.may_steal(shared, pending, self.id, owner, seq) => {
                    Err(WorkState::Begun)
                }
                WorkState::Free if self.share.hooks.steals_unbegun(seq) => Ok(()),
                WorkState::Free => self.begin_piece(applied, number),
                state => Err(state),
            }
        };
        *skipped |= found == Err(WorkState::Begun);
        found
    }

    /// Builds the cursor's frame, one of `count` from `first` on, if that is due now, and moves the
    /// cursor past the frame, or past its whole chunk if nothing of that may be taken.
    fn steal_frame(
        &mut self,
        (pending, stragglers): (&PendingEffects, &mut Stragglers),
        effect: &Effect,
        (first, count): (u64, u32),
    ) {
        let (shared, seq) = (self.shared, self.share.cursor.seq);
        let tx = &shared.world.tx;
        let frame = first + u64::from(self.share.cursor.frame);
        let owner = tx.owner(frame);
        let found = match (tx.state(frame), owner) {
            (WorkState::Free, Ok(owner))
                if stragglers.may_steal(shared, pending, self.id, owner, seq) =>
            {
                self.build(effect, 1)
            }
            (WorkState::Free, _) => Err(WorkState::Begun),
            (state, _) => Err(state),
        };
        let behind = match found {
            Ok(_) => {
                self.share.stats.stolen += u64::from(owner != Ok(self.id));
                1
            }
            Err(WorkState::Begun) => tx.chunk_end(frame) - frame,
            Err(_) => 1,
        };
        let rest = u64::from(count - self.share.cursor.frame);
        self.share.cursor.frame += behind.min(rest) as u32;
    }
}

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Drops effects that are done, and steals late work, if it is time to check. Returns how much
    /// was done.
    #[inline]
    pub(super) fn steal_if_due(&mut self, idle: bool) -> usize {
        let pending = self.pending.applied.len();
        let about = (pending, idle);
        if !self.stragglers.is_due(self.now, about, &self.shared.layout) {
            return 0;
        }
        self.steal_now(MOST_STOLEN)
    }

    #[inline(never)]
    pub(super) fn steal_now(&mut self, most: usize) -> usize {
        self.forget();
        if !self.stragglers.check(self.now, &self.shared, &self.pending) {
            return 0;
        }
        let stolen = self.scan(most);
        self.forget();
        self.shared.slot_stats[self.id].post(&self.share.stats);
        stolen
    }

    #[cold]
    fn scan(&mut self, most: usize) -> usize {
        let limit = self.perform_limit();
        let own = self.share.cursor;
        self.share.cursor = Cursor::at_first(&self.pending);
        let mut executor = Executor::new(self.id, &self.shared, &mut self.share);
        executor.scan(&self.pending, &mut self.stragglers, limit, most);
        let done = executor.done;
        drop(executor);
        self.share.cursor = own;
        done
    }

    /// Drops effects that are known to be done. Returns whether some applied requests are not yet
    /// known to be done; if so, this worker must not sleep without a deadline.
    pub(crate) fn has_pending_effects(&mut self) -> bool {
        if self.pending.applied.is_empty() {
            return false;
        }
        self.forget();
        !self.pending.applied.is_empty()
    }

    /// Drops pending effects before the cursor that are done.
    fn forget(&mut self) {
        self.pending.forget(self.share.cursor.seq, &self.shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::GroupTuning;

    #[test]
    fn others_are_checked_if_something_is_pending_and_there_is_time_or_need() {
        let tuning = GroupTuning::default().steal_after(100);
        let layout = Layout::default().tuning(tuning);
        let [now, later] = [5, 6].map(Instant::from_millis);
        let quiet = || {
            let mut stragglers = Stragglers::new(2);
            stragglers.next_check = later;
            stragglers
        };
        for (pending, idle, is) in [(0, true, false), (1, true, true), (1, false, false)] {
            assert_eq!(quiet().is_due(now, (pending, idle), &layout), is);
        }
        assert!(!quiet().is_due(now, (100, false), &layout));
        assert!(quiet().is_due(now, (101, false), &layout));
        let reasons: [fn(&mut Stragglers); 3] = [
            |stragglers| stragglers.any = true,
            |stragglers| stragglers.blocked = true,
            |stragglers| stragglers.next_check = Instant::ZERO,
        ];
        for reason in reasons {
            let mut stragglers = quiet();
            reason(&mut stragglers);
            assert!(stragglers.is_due(now, (1, false), &layout));
            assert!(!stragglers.is_due(now, (0, false), &layout));
        }
    }
}
