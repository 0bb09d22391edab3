//! Decides which worker performs which effect.
//!
//! Effects are performed in *chunks* of positions, each of which is a unit of
//! [`Chunks`](crate::Chunks): one word records how far the chunk is performed, and whether a
//! worker has begun it. Chunks go to the active workers in turn. That is only advice: a worker
//! that sees another set of active workers computes another owner, which does no harm, because
//! the word decides. Every worker retains every effect until the word shows that it is
//! performed, so any worker can perform effects that another one has not begun.
//!
//! [`Chunks`](crate::Chunks) decides who begins, and its argument holds here: a worker that reads
//! that an effect is performed sees everything that performing it wrote, and a worker that takes
//! over a chunk continues after the performed effects. All other communication between workers
//! goes through the log, the slot table's lock, or a word of it.
//!
//! A word serves one chunk after another. A worker applies the log only as far as the words
//! reach from its first pending effect, so a chunk begins only after its word's previous chunk
//! is performed.

use super::{
    GroupShared,
    membership::replicas,
    worker::{GroupWorker, Replica},
};
use crate::{BegunChunk, Seq, WorkState};
use std::{collections::VecDeque, sync::PoisonError, time::Instant};

/// The effects that a worker retains, of the applied requests, from the first one on that
/// is not known to be performed.
#[derive(Clone)]
pub(super) struct Pending<E> {
    first: Seq,
    /// `None`: this worker has performed it.
    effects: VecDeque<Option<E>>,
}

impl<E> Pending<E> {
    /// No effects; the next one is at this position.
    pub(super) fn from(first: Seq) -> Self {
        Pending {
            first,
            effects: VecDeque::new(),
        }
    }

    pub(super) fn first(&self) -> Seq {
        self.first
    }

    pub(super) fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }

    /// Adds the effect of the request that was applied last.
    pub(super) fn push(&mut self, effect: E) {
        self.effects.push_back(Some(effect));
    }

    fn end(&self) -> Seq {
        self.first + self.effects.len() as u64
    }
}

impl<S, T, E, A, P> GroupWorker<S, T, E, A, P>
where
    S: Clone,
    T: Send + Sync,
    E: Clone,
    A: Fn(&mut S, Seq, &T) -> E,
    P: Fn(E, Seq),
{
    /// Performs its own share, and late work of others.
    pub(super) fn perform(
        &self,
        replica: &mut Replica<S, T, E>,
        now: Instant,
        most: usize,
    ) -> usize {
        let shared = &*self.shared;
        let owners = shared.membership.staying();
        if owners != replica.owners {
            // The chunks of a worker that is gone go to the others.
            (replica.owners, replica.own) = (owners, replica.pending.first);
        }
        let mut performed = 0;
        while performed < most && replica.own < replica.pending.end() {
            let own = replica.own;
            let end = shared.chunk_end(own).min(replica.pending.end());
            if self.is_mine(owners, own) {
                performed += self.perform_chunk(replica, own, end, most - performed);
                if performed == most {
                    break;
                }
            }
            replica.own = end;
        }
        if performed > 0 {
            self.meter.primary(performed as u64);
        }
        self.forget(replica, now);
        let (mut stolen, mut seq) = (0, replica.pending.first);
        let overdue = self.is_overdue(replica, now);
        while performed + stolen < most && seq < replica.pending.end() {
            let chunk_end = shared.chunk_end(seq);
            if !overdue && replica.pending.end() < chunk_end + shared.settings.steal_after {
                break;
            }
            let end = chunk_end.min(replica.pending.end());
            stolen += self.perform_chunk(replica, seq, end, most - performed - stolen);
            seq = end;
        }
        if stolen > 0 {
            self.meter.stole(stolen as u64);
        }
        performed + stolen
    }

    /// Whether the chunk of `seq` is in this worker's share.
    fn is_mine(&self, owners: u64, seq: Seq) -> bool {
        let count = u64::from(owners.count_ones()).max(1);
        let nth = (self.shared.chunk(seq) % count) as usize;
        replicas(owners).nth(nth) == Some(self.id)
    }

    /// Whether the oldest pending effect has waited for too long.
    fn is_overdue(&self, replica: &Replica<S, T, E>, now: Instant) -> bool {
        let patience = self.shared.settings.patience;
        let since = replica.oldest.map(|(_, since)| since);
        since.is_some_and(|since| now.saturating_duration_since(since) >= patience)
    }

    /// Performs the remaining effects of a chunk, below `end` and at most `most`, unless another
    /// worker has begun the chunk. `seq` is in the chunk.
    fn perform_chunk(
        &self,
        replica: &mut Replica<S, T, E>,
        seq: Seq,
        end: Seq,
        most: usize,
    ) -> usize {
        let shared = &*self.shared;
        if shared.chunks.state(end - 1) != WorkState::Free {
            return 0;
        }
        let Ok(begun) = shared.chunks.begin(seq) else {
            return 0;
        };
        let from = begun.next();
        let end = end.min(from.saturating_add(most as u64));
        let mut attempt = Attempt {
            shared,
            begun,
            effect: None,
        };
        for seq in from..end {
            // Everything below the first pending effect is performed.
            let at = (seq - replica.pending.first) as usize;
            let effect = replica.pending.effects[at].take();
            let effect = effect.expect("what this worker has performed is not begun again");
            attempt.effect = Some(seq);
            (self.code.perform)(effect, seq);
            attempt.effect = None;
            attempt.begun.done(seq);
        }
        end.saturating_sub(from) as usize
    }

    /// Drops the effects that are performed. Returns whether there were any.
    pub(super) fn forget(&self, replica: &mut Replica<S, T, E>, now: Instant) -> bool {
        let shared = &*self.shared;
        let (first, end) = (replica.pending.first, replica.pending.end());
        let mut done = first;
        let is_done = |seq| shared.chunks.state(seq) == WorkState::Done;
        while done < end && is_done(done) {
            // One check for a whole chunk, if all of it is done.
            let last = shared.chunk_end(done).min(end) - 1;
            done = if is_done(last) { last } else { done } + 1;
        }
        replica.pending.effects.drain(..(done - first) as usize);
        replica.pending.first = done;
        replica.own = replica.own.max(done);
        match replica.oldest {
            _ if done == end => replica.oldest = None,
            Some((oldest, _)) if oldest == done => {}
            _ => replica.oldest = Some((done, now)),
        }
        done > first
    }
}

/// A begun chunk while `perform` runs. If that panics, counts the panic, and gives the effect up
/// after too many.
struct Attempt<'a, S, T: Send + Sync, E> {
    shared: &'a GroupShared<S, T, E>,
    begun: BegunChunk<'a>,
    /// The effect that is being performed.
    effect: Option<Seq>,
}

impl<S, T: Send + Sync, E> Drop for Attempt<'_, S, T, E> {
    fn drop(&mut self) {
        let Some(seq) = self.effect else { return };
        let interrupted = self.shared.interrupted.lock();
        let mut interrupted = interrupted.unwrap_or_else(PoisonError::into_inner);
        interrupted.count += 1;
        let is_open = |seq: &Seq| self.shared.chunks.state(*seq) != WorkState::Done;
        interrupted.attempts.retain(|seq, _| is_open(seq));
        let attempts = interrupted.attempts.entry(seq).or_insert(0);
        *attempts += 1;
        if *attempts >= self.shared.settings.attempts {
            interrupted.attempts.remove(&seq);
            interrupted.abandoned += 1;
            self.begun.done(seq);
        }
    }
}
