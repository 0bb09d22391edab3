//! The settings of a group, and how it starts.

use super::{
    Code, Divergence, Group, GroupByHand, GroupError, GroupHandle, GroupSettings, GroupShared,
    GroupWorker, MAX_REPLICAS, Membership, Observe, OnDivergence,
    observe::{DivergenceHook, Observer, Prints},
};
use crate::{Chunks, Park, Seq, WakeSource, channel};
use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Settings of a group. Created by [`Group::builder`].
#[must_use = "a builder does nothing until it spawns a group"]
pub struct GroupBuilder<S> {
    state: S,
    replicas: usize,
    slots: usize,
    capacity: usize,
    chunk: usize,
    patience: Duration,
    attempts: u32,
    revive: bool,
    cores: Vec<usize>,
    every: u64,
    fields: &'static [&'static str],
    prints: Option<Prints<S>>,
    hook: DivergenceHook,
}

impl<S> fmt::Debug for GroupBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupBuilder")
            .field("replicas", &self.replicas)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl<S> GroupBuilder<S> {
    /// The most replicas at a time, 1 to 56: room for [`Group::join`]. A value below the initial
    /// number of replicas counts as that number. Default 0.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// Requests that may be published and not yet applied by the slowest replica, at least 4.
    /// Default 1024.
    pub fn capacity(mut self, requests: usize) -> Self {
        self.capacity = requests;
        self
    }

    /// Requests in a row that one worker performs, a power of two, at most the capacity. Default
    /// 16.
    pub fn chunk(mut self, requests: usize) -> Self {
        self.chunk = requests;
        self
    }

    /// Time without progress after which other workers perform a worker's due effects. Default 1
    /// ms.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How many times an effect is begun, at least 1, if `perform` panics in the middle of it.
    /// Default 3.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Whether the thread of a replica that panicked joins again, with a copy of another replica's
    /// state. Default true. Without it the replica's slot is free for [`Group::join`].
    pub fn revive(mut self, revive: bool) -> Self {
        self.revive = revive;
        self
    }

    /// The cores of the replicas' threads, by replica slot. Threads without one run anywhere.
    pub fn cores(mut self, cores: &[usize]) -> Self {
        self.cores = cores.to_vec();
        self
    }

    /// Compares the states every `every` positions, at least 1, field by field.
    pub fn observe(mut self, every: u64) -> Self
    where
        S: Observe + 'static,
    {
        (self.every, self.fields) = (every, S::FIELDS);
        self.prints = Some(Box::new(S::fingerprints));
        self
    }

    /// Compares the states every `every` positions, at least 1, by a fingerprint: equal states must
    /// have equal fingerprints.
    pub fn fingerprint(
        mut self,
        every: u64,
        of: impl Fn(&S) -> u64 + Send + Sync + 'static,
    ) -> Self {
        (self.every, self.fields) = (every, &["state"]);
        self.prints = Some(Box::new(move |state, out| out[0] = of(state)));
        self
    }

    /// Calls `hook` on the thread of a replica when replicas differ: once for the same replicas,
    /// until one of them receives another one's state. The hook decides what happens to the
    /// minority, which is repaired by default.
    pub fn on_divergence(
        mut self,
        hook: impl Fn(&Divergence) -> OnDivergence + Send + Sync + 'static,
    ) -> Self {
        self.hook = Box::new(hook);
        self
    }

    pub(super) fn new(state: S, replicas: usize) -> GroupBuilder<S> {
        GroupBuilder {
            state,
            replicas,
            slots: 0,
            capacity: 1024,
            chunk: 16,
            patience: Duration::from_millis(1),
            attempts: 3,
            revive: true,
            cores: Vec::new(),
            every: 0,
            fields: &[],
            prints: None,
            hook: Box::new(|_| OnDivergence::Repair),
        }
    }

    fn check(&self) -> Result<(), GroupError> {
        let fail = |field, value: u64, allowed| {
            Err(GroupError::OutOfRange {
                field,
                value,
                allowed,
            })
        };
        if !(1..=MAX_REPLICAS).contains(&self.replicas) {
            return fail("replicas", self.replicas as u64, "1 to 56");
        }
        if self.slots > MAX_REPLICAS {
            return fail("slots", self.slots as u64, "0 to 56");
        }
        if !(4..=1 << 32).contains(&self.capacity) {
            return fail("capacity", self.capacity as u64, "4 to 2^32");
        }
        if !self.chunk.is_power_of_two() || self.chunk > self.capacity {
            let allowed = "a power of two, at most the capacity";
            return fail("chunk", self.chunk as u64, allowed);
        }
        if self.attempts == 0 {
            return fail("attempts", 0, "at least 1");
        }
        if self.prints.is_some() && self.every == 0 {
            return fail("every", 0, "at least 1");
        }
        Ok(())
    }

    /// A group whose workers are stepped by hand, in any order and interleaving.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn by_hand<T, E, A, P>(
        self,
        apply: A,
        perform: P,
    ) -> Result<GroupByHand<S, T, E, A, P>, GroupError>
    where
        S: Clone,
        T: Send + Sync,
        A: Fn(&mut S, Seq, &T) -> E,
        P: Fn(E, Seq),
    {
        self.check()?;
        let (publisher, log) = channel::<T, Park>(self.capacity);
        let slots = self.slots.max(self.replicas);
        let words = (2 * self.capacity / self.chunk).next_power_of_two();
        let settings = GroupSettings {
            chunk_shift: self.chunk.trailing_zeros(),
            words: words as u64,
            steal_after: (self.capacity / 4) as u64,
            patience: self.patience,
            attempts: self.attempts,
            revive: self.revive,
        };
        let (every, fields, hook) = (self.every, self.fields, self.hook);
        let observer = |prints| Observer::new(fields, every, slots, prints, hook);
        let shared = Arc::new(GroupShared {
            membership: Membership::new(slots, self.replicas, false),
            chunks: Chunks::new(words, settings.chunk_shift),
            settings,
            observer: self.prints.map(observer),
            meters: (0..slots).map(|_| Arc::default()).collect(),
            publisher: Mutex::new(publisher),
            interrupted: Mutex::default(),
            news: WakeSource::new(),
            log,
        });
        let code = Arc::new(Code { apply, perform });
        let mut workers = Vec::new();
        for id in 0..self.replicas {
            let log = shared.log.subscribe();
            let log = log.expect("a log has room for as many readers as a group has replicas");
            let state = self.state.clone();
            workers.push(GroupWorker::first(&shared, &code, id, state, log));
        }
        Ok(GroupByHand {
            handle: GroupHandle { shared },
            code,
            workers,
        })
    }

    /// Starts the group, with a thread for each replica.
    ///
    /// # Errors
    /// If a setting is out of its range, or a thread cannot be started.
    pub fn spawn<T, E, A, P>(self, apply: A, perform: P) -> Result<Group<S, T, E>, GroupError>
    where
        S: Clone + Send + 'static,
        T: Send + Sync + 'static,
        E: Clone + Send + 'static,
        A: Fn(&mut S, Seq, &T) -> E + Send + Sync + 'static,
        P: Fn(E, Seq) + Send + Sync + 'static,
    {
        let cores = self.cores.clone();
        let GroupByHand {
            handle,
            code,
            workers,
        } = self.by_hand(apply, perform)?;
        let start = move |worker: GroupWorker<S, T, E, A, P>| {
            let core = cores.get(worker.id()).copied();
            worker.spawn(core).map_err(GroupError::Io)
        };
        // If a thread does not start, dropping this ends the threads that did.
        let mut group = Group {
            threads: (0..handle.shared.meters.len()).map(|_| None).collect(),
            shared: handle.shared.clone(),
            start: Box::new(|_| unreachable!("it is replaced below")),
        };
        for worker in workers {
            let id = worker.id();
            group.threads[id] = Some(start(worker)?);
        }
        let shared = handle.shared;
        group.start = Box::new(move |id| start(GroupWorker::joining(&shared, &code, id)));
        Ok(group)
    }
}
