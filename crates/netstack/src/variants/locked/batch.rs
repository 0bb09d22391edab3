//! What one worker carries: requests that it took from the pump, until all they ask for is done.

use std::sync::atomic::Ordering;

use super::lock::{LockKind, timed};
use super::{IDLE, LockStats, Shared, State};
use crate::io::Run;
use crate::io::perform;
use crate::io::perform::Template;
use crate::io::prepare::prepare;
use crate::io::rx::Log;
use crate::io::world::{Wakes, World};
use crate::log::effect::Effect;
use crate::log::request::{Body, Kind, Request, Verdict};
use crate::stats::EffectStats;

/// A request on its way.
pub(super) struct Item {
    pub(super) position: u64,
    pub(super) request: Request,
    pub(super) verdict: Option<Verdict>,
    run: Run,
    /// Where its effects end among those of the batch; known once applied.
    pub(super) effects_end: usize,
}

/// Requests in the order of the pump: the first `applied` of them went through the lock, the first
/// `performed` are done with.
#[derive(Default)]
pub(super) struct Batch {
    items: Vec<Item>,
    prepared: usize,
    applied: usize,
    performed: usize,
    effects: Vec<Effect>,
    effects_done: usize,
    template: Template,
    pub(super) effect_stats: EffectStats,
    pub(super) lock_stats: LockStats,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Verifies the checksums of the next request that nobody vouched for. Says whether there was
    /// one left.
    pub(super) fn prepare_one(&mut self) -> bool {
        let Some(item) = self.items.get_mut(self.prepared) else {
            return false;
        };
        self.prepared += 1;
        if item.verdict.is_none() {
            item.verdict = Some(prepare(&item.request, &item.run));
            self.effect_stats.prepared += u64::from(item.request.digest.kind.has_frames());
        }
        true
    }

    /// Takes the lock once and applies at most `most` of what is prepared. Returns how many.
    pub(super) fn apply<K: LockKind>(&mut self, shared: &Shared<K>, most: usize) -> usize {
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
        let ((), waited) = timed(&*shared.state, |state: &mut State| {
            state.apply(items, effects, stats);
            // ORDERING: Relaxed: a hint for when the pump tells of time, and every telling is
            // checked by `apply`.
            let deadline = state.replica.next_deadline().as_nanos();
            shared.deadline.store(deadline, Ordering::Relaxed);
        });
        stats.acquisitions += 1;
        if let Some(waited) = waited {
            stats.contended += 1;
            stats.waited_ns += waited;
        }
        let done = until - self.applied;
        self.applied = until;
        done
    }

    /// Performs what the next applied request asked for. Says whether there was one.
    pub(super) fn perform_one(&mut self, world: &World, wakes: &mut Wakes<'_>) -> bool {
        if self.performed == self.applied {
            return false;
        }
        let item = &self.items[self.performed];
        perform::all(
            world,
            &self.effects[self.effects_done..item.effects_end],
            (&item.request, item.run.payload(false)),
            &mut self.template,
            &mut self.effect_stats,
            wakes,
        );
        self.effects_done = item.effects_end;
        self.performed += 1;
        true
    }

    /// If everything is done: the runs, for the pump, and an empty batch again.
    pub(super) fn finish(&mut self) -> Option<Vec<Run>> {
        if self.items.is_empty() || self.performed < self.items.len() {
            return None;
        }
        self.effect_stats.requests += self.items.len() as u64;
        let runs = self.items.drain(..).map(|item| item.run).collect();
        self.effects.clear();
        (self.prepared, self.applied) = (0, 0);
        (self.performed, self.effects_done) = (0, 0);
        Some(runs)
    }
}

/// The log as the pump sees it: a worker's batch.
pub(super) struct Intake<'a, K: LockKind> {
    pub(super) shared: &'a Shared<K>,
    pub(super) id: usize,
    /// Position of the next request.
    pub(super) next: &'a mut u64,
    pub(super) batch: &'a mut Batch,
}

impl<K: LockKind> Log for Intake<'_, K> {
    /// No request enters that is a window or more ahead of one that is not done with.
    fn room(&mut self) -> usize {
        let carried = (*self.next - self.performed()) as usize;
        self.shared.layout.window.saturating_sub(carried)
    }

    fn publish(&mut self, request: &Request, verdict: Option<Verdict>, run: Run) {
        let position = *self.next;
        *self.next += 1;
        if self.batch.is_empty() {
            // ORDERING: Relaxed: only holders of the pump compare it with positions, and the pump's
            // role hands it on. The Release that matters is the one that takes it back, in
            // `Worker::finish`.
            self.shared.oldest_carried[self.id].store(position, Ordering::Relaxed);
        }
        // Listening and not listening, opening and aborting, freeing a place: of two such commands
        // the second may rest on the first, so they must not overtake each other on the way to the
        // lock. They are rare.
        let in_order =
            request.digest.kind == Kind::Command && !matches!(request.body, Body::Progress { .. });
        self.batch.items.push(Item {
            position,
            request: *request,
            verdict,
            run,
            effects_end: 0,
        });
        if in_order {
            while self.batch.prepare_one() {}
            self.batch.apply(self.shared, usize::MAX);
        }
    }

    fn reclaim(&mut self, each: &mut dyn FnMut(Run)) {
        while let Some(runs) = self.shared.back.pop() {
            runs.into_iter().for_each(&mut *each);
        }
    }

    fn published(&self) -> u64 {
        *self.next
    }

    fn performed(&self) -> u64 {
        let carried = self.shared.oldest_carried.iter().map(|word| {
            // ORDERING: Acquire, pairs with the Release in `Worker::finish`: what it carried is
            // performed.
            word.load(Ordering::Acquire)
        });
        let oldest = carried.min().unwrap_or(IDLE);
        oldest.min(*self.next)
    }
}
