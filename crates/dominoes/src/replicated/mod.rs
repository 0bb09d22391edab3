//! [`Replicated`]: any state, copied for each NUMA node or core, with local reads.
//!
//! Each replica is a copy of the state. Every change is an operation in one log, which each replica
//! applies in order. A read needs no entry of the log: it looks whether the replica of this core
//! lacks a published one, applies the log to the replica if so, unless another thread has, and
//! reads it. This is node replication (Calciu et al., "Black-box Concurrent Data Structures for
//! NUMA Architectures", ASPLOS 2017).
//!
//! It needs no threads: a thread that needs a replica's state applies the log to it. Handles of one
//! replica combine their writes: one thread, the combiner, publishes all that the others posted, in
//! one batch, applies it and hands out the answers. [`Group`](crate::Group) is the counterpart with
//! a thread for each replica, for work on the entries; nothing outside its threads can read its
//! states. Nor is the log that of a group, whose threads publish and read many entries at a time:
//! here each write and each read looks at one entry.
//!
//! # Guarantees
//!
//! - *Linearizable.* [`write`](ReplicaHandle::write), [`submit`](ReplicaHandle::submit) and
//!   [`read`](ReplicaHandle::read) each take effect at one moment between call and return: a write
//!   when it is published, a read when its replica reached the tail that the read saw.
//! - *Readers* of one replica do not wait for each other, and write to no cache line that another
//!   core reads. They wait only for the writer of the replica that they read, and it for them. On
//!   Linux a read has no locked instruction unless another thread writes to the same replica.
//! - *Bounded.* The log has a fixed capacity. A write that finds it full applies it to the slowest
//!   replica. If that is impossible, because a reader holds that replica or it is being copied,
//!   the write fails after [`ReplicatedBuilder::patience`] and names the replica.
//! - *Panics.* If [`StateMachine::apply`] panics, the replica loses its state, and takes a copy of
//!   another replica's when a handle next needs it. The operation stays in the log. If it panics in
//!   every replica, the state is lost, and all calls report that. A panic in the closure of a read
//!   unwinds into its caller and harms nothing else. A destructor of an operation may panic in any
//!   handle's write, which then has no effect on the writes that it had combined.
//! - *Progress.* A thread that is preempted while it combines or applies delays the handles of its
//!   replica, and while it publishes (a move and a store), all writers.
//! - *No allocation* for an operation that is read, written or submitted.
//!
//! ```
//! use dominoes::replicated::{MapOp, Replicated};
//! use std::collections::HashMap;
//!
//! let map = Replicated::new(HashMap::new())?; // a replica for each NUMA node
//! let mut handle = map.handle()?; // one for each thread
//! assert_eq!(handle.write(MapOp::Insert("a", 1))?, None);
//! assert_eq!(handle.write(MapOp::Insert("a", 2))?, Some(1));
//! assert_eq!(handle.read(|map| map.get("a").copied())?, Some(2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod barrier;
mod builder;
mod collections;
mod handle;
#[cfg(test)]
mod linearizable;
#[expect(unsafe_code, reason = "it decides who accesses which entry of the log")]
mod op_log;
mod replica;
#[expect(unsafe_code, reason = "it lends the state to readers or to one writer")]
mod state_lock;
mod steps;

pub use builder::ReplicatedBuilder;
pub use collections::MapOp;
pub use handle::ReplicaHandle;
pub use replica::ReplicaStatus;

use crate::{
    Seq,
    sync::{Arc, Ordering},
};
use replica::{Backoff, Shared};
use std::{collections::BTreeMap, error::Error, fmt};

/// State that changes by operations.
pub trait StateMachine: Clone + Send + Sync {
    /// A change of the state.
    type Op: Send + Sync;
    /// The result of a change, for the thread that wrote it.
    type Answer: Send;

    /// Changes the state. It must be deterministic: it reads the state and the operation, and
    /// nothing else, so that all replicas that apply the same operations are equal.
    fn apply(&mut self, op: &Self::Op) -> Self::Answer;

    /// Begins a copy of this state for a replica that joins or is repaired. By default, `None`, the
    /// state is cloned at once, and handles of the replica that is copied only read meanwhile. A
    /// large state is better copied in pieces, between which they write.
    fn pieces<'a>(&self) -> Option<Box<dyn Pieces<Self> + 'a>>
    where
        Self: 'a,
    {
        None
    }
}

/// A copy of a state, made piece by piece while the state changes.
pub trait Pieces<M: StateMachine>: Send {
    /// Copies the next piece of the state as it is now. Returns whether it was the last one.
    fn copy(&mut self, state: &M) -> bool;

    /// Takes in an operation that the state applied after the last piece was copied: changes those
    /// parts of the copy that later pieces do not replace. Called in the order of the log, and not
    /// after the last piece. It must not use a handle, which may wait for the copy.
    fn apply(&mut self, op: &M::Op);

    /// The copy, which must be equal to the state that was passed to the last [`copy`](Self::copy).
    fn finish(self: Box<Self>) -> M;
}

/// Why replicated state refuses a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicatedError {
    /// A setting is out of its range.
    OutOfRange {
        /// The setting.
        field: &'static str,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The replica has 64 handles already.
    NoHandleLeft {
        /// The replica.
        replica: usize,
    },
    /// There is no slot for another replica.
    NoReplicaSlot,
    /// The replica has left, or never joined.
    Left {
        /// The replica.
        replica: usize,
    },
    /// It is the only replica, so it cannot leave.
    LastReplica,
    /// The log is full: this replica has not applied it, and cannot be helped now.
    Stalled {
        /// The replica.
        replica: usize,
    },
    /// Nothing is published at this position yet.
    NotPublished {
        /// The position.
        position: Seq,
    },
    /// Applying an operation to this replica panicked. The replica takes over another one's state.
    Panicked {
        /// The replica.
        replica: usize,
        /// The position of the operation.
        position: Seq,
    },
    /// Cloning the state of this replica panicked.
    ClonePanicked {
        /// The replica.
        replica: usize,
    },
    /// The system refuses membarrier(2), by which a writer of this replica reaches its readers: it
    /// permitted it at first, and now filters the calls of this process. The replica is out of use;
    /// others continue, and those with one handle need no fence.
    NoFence {
        /// The replica.
        replica: usize,
    },
    /// Every replica has failed: the state is lost.
    NoReplicaLeft,
}

impl fmt::Display for ReplicatedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ReplicatedError::*;
        match self {
            OutOfRange { field, allowed } => write!(f, "`{field}` must be {allowed}"),
            NoHandleLeft { replica } => write!(f, "replica {replica} has 64 handles already"),
            NoReplicaSlot => f.write_str("every slot for a replica is taken"),
            Left { replica } => write!(f, "replica {replica} has left"),
            LastReplica => f.write_str("the last replica cannot leave"),
            Stalled { replica } => {
                write!(f, "the log is full: replica {replica} does not apply it")
            }
            NotPublished { position } => write!(f, "nothing is published at position {position}"),
            Panicked { replica, position } => {
                write!(f, "replica {replica} panicked at position {position}")
            }
            ClonePanicked { replica } => write!(f, "cloning replica {replica} panicked"),
            NoFence { replica } => write!(f, "the system refuses the fence of replica {replica}"),
            NoReplicaLeft => f.write_str("every replica has failed"),
        }
    }
}

impl Error for ReplicatedError {}

/// A write that has no answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WriteError<O> {
    /// The operation, if it is not published. `None` if it is in the log, so that the replicas
    /// apply it, and only its answer is lost.
    pub op: Option<O>,
    /// The reason.
    pub why: ReplicatedError,
}

impl<O> fmt::Debug for WriteError<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteError")
            .field("is_published", &self.op.is_none())
            .field("why", &self.why)
            .finish()
    }
}

impl<O> fmt::Display for WriteError<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op {
            Some(_) => write!(f, "nothing is written: {}", self.why),
            None => write!(f, "the answer is lost: {}", self.why),
        }
    }
}

impl<O> Error for WriteError<O> {}

/// Counters of replicated state. Other threads change them meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplicatedStats {
    /// Operations published.
    pub published: u64,
    /// By replica: its status, and how many operations it has applied or taken over.
    pub replicas: Vec<(ReplicaStatus, Seq)>,
    /// Panics in [`StateMachine::apply`].
    pub panicked: u64,
    /// States replaced after a panic or a divergence.
    pub repaired: u64,
    /// Replicas that differed from the majority.
    pub diverged: u64,
    /// Positions at which fingerprints differed without a majority.
    pub undecided: u64,
    /// Times that a writer applied the log to another replica to make room.
    pub helped: u64,
}

/// State with a copy for each NUMA node or core; see the [module](self). Cheap to clone, and may go
/// to any thread.
pub struct Replicated<M: StateMachine> {
    shared: Arc<Shared<M>>,
    /// The replica of each core that has one.
    cores: BTreeMap<usize, usize>,
}

impl<M: StateMachine> Replicated<M> {
    /// Replicates `state`, with initial settings: a replica for each NUMA node.
    ///
    /// # Errors
    /// If a clone of the state panics.
    pub fn new(state: M) -> Result<Self, ReplicatedError> {
        Self::builder(state).build()
    }

    /// Initial settings for `state`.
    pub fn builder(state: M) -> ReplicatedBuilder<M> {
        ReplicatedBuilder::new(state)
    }

    /// A handle of the replica for the core that the calling thread runs on; if there is none, of
    /// the replica with the fewest handles.
    ///
    /// # Errors
    /// If all replicas have their maximum of handles, or none is left.
    pub fn handle(&self) -> Result<ReplicaHandle<M>, ReplicatedError> {
        let here = builder::current_core().and_then(|core| self.cores.get(&core));
        if let Some(Ok(handle)) = here.map(|replica| self.handle_on(*replica)) {
            return Ok(handle);
        }
        let replicas = &self.shared.replicas;
        let active = (0..replicas.len()).filter(|id| replicas[*id].is_active());
        let fewest = active.min_by_key(|id| replicas[*id].state.readers().count_ones());
        self.handle_on(fewest.ok_or(ReplicatedError::NoReplicaLeft)?)
    }

    /// A handle of this replica.
    ///
    /// # Errors
    /// If there is no such replica, or it has its maximum of handles.
    pub fn handle_on(&self, replica: usize) -> Result<ReplicaHandle<M>, ReplicatedError> {
        match self.shared.replicas.get(replica) {
            Some(found) if found.status() != ReplicaStatus::Absent => {
                ReplicaHandle::new(&self.shared, replica)
            }
            _ => Err(ReplicatedError::Left { replica }),
        }
    }

    /// Adds a replica with a copy of another one's state, and returns its number. While the state
    /// or a [piece](StateMachine::pieces) of it is copied, other replicas are read and written; the
    /// one that is copied is only read, as of that moment, and writers wait once the log is full.
    ///
    /// # Errors
    /// If [`ReplicatedBuilder::slots`] replicas are there, cloning panics, or no replica is left.
    pub fn join(&self) -> Result<usize, ReplicatedError> {
        let _changes = self.changes();
        let replicas = self.shared.replicas.iter();
        let mut statuses = replicas.map(|replica| replica.status());
        let absent = statuses.position(|status| status == ReplicaStatus::Absent);
        let id = absent.ok_or(ReplicatedError::NoReplicaSlot)?;
        self.join_at(id)?;
        Ok(id)
    }

    fn join_at(&self, id: usize) -> Result<(), ReplicatedError> {
        let mut core = self.shared.core(id);
        self.shared.adopt(id, &mut core)
    }

    /// Removes a replica. Its handles move to others.
    ///
    /// # Errors
    /// If there is no such replica, or no other is active.
    pub fn leave(&self, replica: usize) -> Result<(), ReplicatedError> {
        let _changes = self.changes();
        let replicas = &self.shared.replicas;
        let status = replicas.get(replica).map(|replica| replica.status());
        if status.is_none_or(|status| status == ReplicaStatus::Absent) {
            return Err(ReplicatedError::Left { replica });
        }
        if !(0..replicas.len()).any(|id| id != replica && replicas[id].is_active()) {
            return Err(ReplicatedError::LastReplica);
        }
        let mut core = self.shared.core(replica);
        self.shared
            .remove_state(replica, &mut core, ReplicaStatus::Absent);
        Ok(())
    }

    fn changes(&self) -> crate::TryLockGuard<'_, ()> {
        let mut backoff = Backoff::new();
        loop {
            if let Some(guard) = self.shared.changes.try_take() {
                return guard;
            }
            backoff.wait();
        }
    }

    /// Counters so far.
    pub fn stats(&self) -> ReplicatedStats {
        let counts = &self.shared.counts;
        let replicas = self.shared.replicas.iter();
        ReplicatedStats {
            published: self.shared.end(),
            replicas: replicas
                .map(|replica| (replica.status(), replica.state.position()))
                .collect(),
            panicked: counts.panicked.load(Ordering::Relaxed),
            repaired: counts.repaired.load(Ordering::Relaxed),
            diverged: counts.diverged.load(Ordering::Relaxed),
            undecided: counts.undecided.load(Ordering::Relaxed),
            helped: counts.helped.load(Ordering::Relaxed),
        }
    }
}

impl<M: StateMachine> Clone for Replicated<M> {
    fn clone(&self) -> Self {
        Replicated {
            shared: self.shared.clone(),
            cores: self.cores.clone(),
        }
    }
}

impl<M: StateMachine> fmt::Debug for Replicated<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicated")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
