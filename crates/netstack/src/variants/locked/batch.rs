//! The requests that one worker took from the pump, held until all their effects are performed.

use std::sync::atomic::Ordering;

use super::lock::LockKind;
use super::locks::LockTimes;
use super::message::{Free, Own};
use super::{IDLE, LockStats, LockedShared, State};
use crate::io::perform;
use crate::io::perform::BuiltHeaders;
use crate::io::prepare::prepare;
use crate::io::rx::{Log, RESERVED};
use crate::io::world::Wakes;
use crate::io::{self, Run, RunFrames};
use crate::log::effect::Effect;
use crate::log::request::{Body, Request, RequestKind, Verdict};
use crate::stats::EffectStats;

/// A request in a batch.
pub(super) struct Item {
    pub(super) position: u64,
    pub(super) request: Request,
    pub(super) verdict: Option<Verdict>,
    run: RunFrames,
    /// End of its effects in [`Batch::effects`]; set when it is applied.
    pub(super) effects_end: usize,
    /// Its place in the order in which TCP applied requests with payload.
    pub(super) ticket: Option<u64>,
    message: Option<Own>,
}

/// Requests in the order of the pump: the first `prepared` have their verdict, the first `applied`
/// went through the lock, the first `performed` are performed, and the application counted the
/// first `counted`.
#[derive(Default)]
pub(super) struct Batch {
    items: Vec<Item>,
    prepared: usize,
    applied: usize,
    performed: usize,
    counted: usize,
    effects: Vec<Effect>,
    effects_done: usize,
    headers: BuiltHeaders,
    pub(super) effect_stats: EffectStats,
    /// Counts of segments and of misordered segments only.
    pub(super) lock_stats: LockStats,
    pub(super) times: LockTimes,
    /// Free messages of this worker, used as a stack.
    free: Free,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Prepares the next request: verifies its checksums unless it came with a verdict. Returns
    /// whether there was a request left.
    pub(super) fn prepare_one<K: LockKind>(&mut self, shared: &LockedShared<K>) -> bool {
        let Some(item) = self.items.get_mut(self.prepared) else {
            return false;
        };
        self.prepared += 1;
        let has_frames = item.request.digest.kind.has_frames();
        let Item {
            request,
            run,
            verdict,
            ..
        } = item;
        let mut verify = || {
            if verdict.is_none() {
                *verdict = Some(prepare(request, run));
                self.effect_stats.prepared += u64::from(has_frames);
            }
        };
        if has_frames {
            shared.locks.remove_header(&mut self.times, verify);
        } else {
            verify();
        }
        true
    }

    /// Takes the lock once and applies at most `most` prepared requests. Returns how many.
    pub(super) fn apply<K: LockKind>(&mut self, shared: &LockedShared<K>, most: usize) -> usize {
        let until = self.prepared.min(self.applied.saturating_add(most));
        let Some(items) = self
            .items
            .get_mut(self.applied..until)
            .filter(|items| !items.is_empty())
        else {
            return 0;
        };
        let effects = &mut self.effects;
        let stats = &mut self.lock_stats;
        let receives = items
            .iter()
            .any(|item| item.request.digest.kind.has_frames());
        shared
            .locks
            .with(receives, &mut self.times, |state: &mut State| {
                state.apply(items, effects, stats);
                // ORDERING: Relaxed: hints for when the pump publishes the time or the count of
                // sent frames; `apply` checks them itself.
                let awaited = state.replica.awaited();
                let [time, sent] = &*shared.awaited;
                time.store(awaited.time.as_nanos(), Ordering::Relaxed);
                sent.store(awaited.sent, Ordering::Relaxed);
            });
        let done = until - self.applied;
        self.applied = until;
        done
    }

    /// Performs the effects of the next applied request. If there is none, lets the application
    /// count a request whose ticket has been called. Returns whether there was something to do.
    pub(super) fn perform_one<K: LockKind>(
        &mut self,
        shared: &LockedShared<K>,
        wakes: &mut Wakes<'_>,
    ) -> bool {
        if self.performed == self.applied {
            return self.count_one(shared);
        }
        let item = &self.items[self.performed];
        let effects = &self.effects[self.effects_done..item.effects_end];
        let what = &item.run;
        let (headers, stats) = (&mut self.headers, &mut self.effect_stats);
        let is_sent = |effect: &&Effect| matches!(effect, Effect::Transmit(_) | Effect::Send(_));
        if shared.locks.has_header_locks() && effects.iter().any(|effect| is_sent(&effect)) {
            let others = effects.iter().filter(|effect| !is_sent(effect));
            perform::all(&shared.world, others, what, headers, stats, wakes);
            let sent = effects.iter().filter(is_sent);
            shared.locks.prepend_header(&mut self.times, || {
                perform::all(&shared.world, sent, what, headers, stats, wakes);
            });
        } else {
            perform::all(&shared.world, effects, what, headers, stats, wakes);
        }
        self.effects_done = item.effects_end;
        self.performed += 1;
        true
    }

    /// Lets the application count the next request: at once if it has no ticket, else once the
    /// ticket is called.
    fn count_one<K: LockKind>(&mut self, shared: &LockedShared<K>) -> bool {
        if !shared.counter.is_on() || self.counted == self.performed {
            return false;
        }
        let ticket = self.items[self.counted].ticket;
        let done = ticket.is_none_or(|ticket| shared.counter.count(ticket, &mut self.times));
        self.counted += usize::from(done);
        done
    }

    /// If the whole batch is done, empties it and returns its runs for the pump.
    pub(super) fn finish<K: LockKind>(
        &mut self,
        shared: &LockedShared<K>,
    ) -> Option<Vec<RunFrames>> {
        if self.items.is_empty() || self.performed < self.items.len() {
            return None;
        }
        if shared.counter.is_on() && self.counted < self.items.len() {
            return None;
        }
        self.effect_stats.requests += self.items.len() as u64;
        let mut runs = Vec::with_capacity(self.items.len());
        for item in self.items.drain(..) {
            if item.request.digest.kind.has_frames() {
                shared.sessions.release(&mut self.times);
            }
            shared
                .free_messages
                .free(item.message, &mut self.free, &mut self.times);
            runs.push(item.run);
        }
        self.effects.clear();
        (self.prepared, self.applied) = (0, 0);
        (self.performed, self.effects_done, self.counted) = (0, 0, 0);
        Some(runs)
    }
}

/// The log as the pump sees it: the batch of one worker.
pub(super) struct Intake<'a, K: LockKind> {
    pub(super) shared: &'a LockedShared<K>,
    pub(super) id: usize,
    /// Position of the next request.
    pub(super) next: &'a mut u64,
    pub(super) batch: &'a mut Batch,
}

impl<K: LockKind> Log for Intake<'_, K> {
    /// Admits no request that is a window or more ahead of the oldest request still in a batch.
    fn room(&mut self) -> usize {
        let performed = self.performed();
        let carried = (*self.next - performed) as usize;
        let layout = &self.shared.layout;
        let room = layout.window.saturating_sub(carried);
        // The pump keeps `RESERVED + 2` of the room free for other requests.
        room.min(layout.claim + RESERVED + 2)
    }

    fn publish(&mut self, run: &mut Run) {
        let request = run.request;
        let position = *self.next;
        *self.next += 1;
        if self.batch.is_empty() {
            // ORDERING: Relaxed: only holders of the pump compare this with positions, and the pump
            // is passed on with Acquire and Release. What matters is the Release that resets it, in
            // `LockedWorker::finish`.
            self.shared.oldest_carried[self.id].store(position, Ordering::Relaxed);
        }
        // These commands (start and stop listening, open and abort, free a stream) may depend on
        // the one before, so they must not overtake each other on the way to the lock. They are
        // rare.
        let in_order = request.digest.kind == RequestKind::Command
            && !matches!(request.body, Body::Progress { .. });
        let mut message = None;
        if request.digest.kind.has_frames() {
            let Batch { free, times, .. } = &mut *self.batch;
            self.shared.sessions.refer(times);
            message = (self.shared.free_messages).take(run.frames.get(0), free, times);
        }
        self.batch.items.push(Item {
            position,
            request,
            verdict: run.verdict,
            run: core::mem::take(&mut run.frames),
            effects_end: 0,
            ticket: None,
            message,
        });
        if in_order {
            while self.batch.prepare_one(self.shared) {}
            self.batch.apply(self.shared, usize::MAX);
        }
    }

    fn reclaim(&mut self, each: &mut dyn FnMut(io::ClaimedFrames)) {
        while let Some(runs) = self.shared.back.pop() {
            let batches = runs.into_iter().filter_map(|run| run.batch);
            batches.for_each(&mut *each);
        }
    }

    fn end(&self) -> u64 {
        *self.next
    }

    fn performed(&mut self) -> u64 {
        let carried = self.shared.oldest_carried.iter().map(|word| {
            // ORDERING: Acquire, pairs with the Release in `LockedWorker::finish`: the batch is
            // performed.
            word.load(Ordering::Acquire)
        });
        let oldest = carried.min().unwrap_or(IDLE);
        oldest.min(*self.next)
    }
}
