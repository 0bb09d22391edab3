//! A thread's way to a replica.

use super::{
    ReplicatedError, StateMachine, WriteError,
    op_log::{END, Known, OpLog, Refusal},
    replica::{Backoff, Core, Shared, drop_quietly},
    state_lock::StateReader,
    steps::{Fault, is_planted, step},
};
use crate::{Seq, sync::Arc};
use std::fmt;

/// Reads and writes a [`Replicated`](super::Replicated) through one replica. Each thread needs its
/// own; it may be sent to another thread.
///
/// If the replica leaves, the handle moves to another one. If the thread ends or panics, between two
/// calls or within `read`, it drops the handle, and others continue.
pub struct ReplicaHandle<M: StateMachine> {
    pub(super) shared: Arc<Shared<M>>,
    /// A second way to the log, with one step less.
    log: Arc<OpLog<M::Op>>,
    known: Known,
    replica: usize,
    reader: StateReader<Option<M>, Core<M>>,
}

impl<M: StateMachine> ReplicaHandle<M> {
    pub(super) fn new(shared: &Arc<Shared<M>>, replica: usize) -> Result<Self, ReplicatedError> {
        let Some(reader) = StateReader::of(&shared.replicas[replica].state) else {
            return Err(ReplicatedError::NoHandleLeft { replica });
        };
        Ok(ReplicaHandle {
            log: shared.log.clone(),
            known: Known::default(),
            shared: shared.clone(),
            replica,
            reader,
        })
    }

    /// The replica that it reads.
    pub fn replica(&self) -> usize {
        self.replica
    }

    /// Changes the state, in all replicas, and returns the answer. When it returns, reads through
    /// every handle see the change.
    ///
    /// If another thread is publishing for this replica, it publishes this operation with its own.
    ///
    /// # Errors
    /// [`WriteError::op`] is the operation, unless it is in the log and only its answer is lost.
    pub fn write(&mut self, mut op: M::Op) -> Result<M::Answer, WriteError<M::Op>> {
        loop {
            let (back, why) = match self.try_write(op) {
                Err(WriteError { op: Some(op), why }) => (op, why),
                other => return other,
            };
            if let Err(why) = self.recover(why) {
                let op = Some(back);
                return Err(WriteError { op, why });
            }
            op = back;
        }
    }

    fn try_write(&mut self, op: M::Op) -> Result<M::Answer, WriteError<M::Op>> {
        step("a write begins");
        let replica = &self.shared.replicas[self.replica];
        let place = self.reader.place();
        if let Some(core) = replica.try_core(place) {
            return self.shared.combine(self.replica, core, place, op);
        }
        let post = &*replica.posts[place];
        post.put(op);
        let mut backoff = Backoff::new();
        loop {
            if let Some(answer) = post.take_answer() {
                return answer;
            }
            match replica.try_core(place) {
                Some(core) => {
                    // None if the last combiner has answered.
                    if let Some(op) = post.withdraw() {
                        return self.shared.combine(self.replica, core, place, op);
                    }
                }
                None => backoff.wait(),
            }
        }
    }

    /// Publishes a change, and returns its position in the log without applying it. Linearizable
    /// reads that begin later see it.
    ///
    /// # Errors
    /// No replica is left, or one holds up the log; the error has the operation.
    pub fn submit(&mut self, mut op: M::Op) -> Result<Seq, WriteError<M::Op>> {
        let (shared, known) = (&*self.shared, &mut self.known);
        let (mut backoff, mut since, mut released) = (Backoff::new(), None, None);
        known.end = known.end.max(self.reader.position());
        loop {
            step("a submission");
            if !shared.log.has_cursors() {
                let why = ReplicatedError::NoReplicaLeft;
                return Err(WriteError { op: Some(op), why });
            }
            let published = self
                .log
                .publish(known, &mut Vec::new(), op, |op| released = Some(op));
            op = match published {
                Ok(position) => {
                    drop_quietly(released);
                    return Ok(position);
                }
                Err((Refusal::Busy, op)) => op,
                Err((Refusal::Full, op)) => match shared.make_room(None, &mut since) {
                    Ok(()) => op,
                    Err(why) => return Err(WriteError { op: Some(op), why }),
                },
            };
            backoff.wait();
        }
    }

    /// Reads the state of this replica after it applied everything that was published when this
    /// call began. So a read sees every write that returned before it began, through any handle.
    ///
    /// The state cannot change while `read` runs. It must not use another handle of the same
    /// replica to write, which would wait for itself.
    ///
    /// # Errors
    /// Every replica has failed.
    #[inline]
    pub fn read<R>(&mut self, read: impl FnOnce(&M) -> R) -> Result<R, ReplicatedError> {
        let position = self.reader.position();
        if is_planted(Fault::TailTooLate) {
            let seen = self.read_from(0, read);
            self.read_from(self.log.end(position), |_| ())?;
            return seen;
        }
        let is_behind = self.log.is_published(position);
        step("a reader knows the tail");
        if is_planted(Fault::ReaderDoesNotHelp) {
            return self.read_from(0, read);
        }
        if !is_behind
            && let Some(state) = self.reader.try_read()
            && let Some(state) = &*state
        {
            return Ok(read(state));
        }
        self.read_slowly(self.log.end(position), read)
    }

    /// Reads the state of this replica as it is, which may lack changes that others have seen. Does
    /// not apply the log.
    ///
    /// # Errors
    /// Every replica has failed.
    #[inline]
    pub fn read_stale<R>(&mut self, read: impl FnOnce(&M) -> R) -> Result<R, ReplicatedError> {
        self.read_from(0, read)
    }

    /// Reads a state that includes the operation at `position`, as
    /// [`submit`](Self::submit) returned it.
    ///
    /// # Errors
    /// Nothing is published at that position yet, or every replica has failed.
    pub fn read_at<R>(
        &mut self,
        position: Seq,
        read: impl FnOnce(&M) -> R,
    ) -> Result<R, ReplicatedError> {
        if position >= END || !self.log.is_published(position) {
            return Err(ReplicatedError::NotPublished { position });
        }
        self.read_from(position + 1, read)
    }

    /// Reads a state to which at least the entries below `tail` are applied.
    #[inline(always)]
    fn read_from<R>(
        &mut self,
        tail: Seq,
        read: impl FnOnce(&M) -> R,
    ) -> Result<R, ReplicatedError> {
        if self.reader.position() >= tail
            && let Some(state) = self.reader.try_read()
            && let Some(state) = &*state
        {
            return Ok(read(state));
        }
        self.read_slowly(tail, read)
    }

    #[cold]
    #[inline(never)]
    fn read_slowly<R>(
        &mut self,
        tail: Seq,
        read: impl FnOnce(&M) -> R,
    ) -> Result<R, ReplicatedError> {
        let mut backoff = Backoff::new();
        loop {
            let why = match self.shared.advance(self.replica, self.reader.place()) {
                Ok(Some(core)) => {
                    // The fingerprint of the applied state may differ from the majority's.
                    let is_right = !self.shared.replicas[self.replica].state.is_suspect();
                    if is_right && let Some(state) = &*core.into_reader(&mut self.reader) {
                        return Ok(read(state));
                    }
                    continue;
                }
                Ok(None) => {
                    backoff.wait();
                    // The thread that has the core may have applied enough.
                    if self.reader.position() >= tail
                        && self.reader.is_open()
                        && let Some(state) = self.reader.try_read()
                        && let Some(state) = &*state
                    {
                        return Ok(read(state));
                    }
                    continue;
                }
                Err(why) => why,
            };
            self.recover(why)?;
        }
    }

    /// Prepares for another attempt after an error that concerns this replica only.
    fn recover(&mut self, why: ReplicatedError) -> Result<(), ReplicatedError> {
        match why {
            ReplicatedError::Left { .. } => self.move_on(),
            // The next attempt gives the replica another one's state.
            ReplicatedError::Panicked { .. } => Ok(()),
            why => Err(why),
        }
    }

    /// Moves to another replica.
    fn move_on(&mut self) -> Result<(), ReplicatedError> {
        let replicas = &self.shared.replicas;
        let mut why = ReplicatedError::NoReplicaLeft;
        for replica in (0..replicas.len()).filter(|id| replicas[*id].is_active()) {
            match ReplicaHandle::new(&self.shared, replica) {
                Ok(other) => {
                    *self = other;
                    return Ok(());
                }
                Err(error) => why = error,
            }
        }
        Err(why)
    }
}

impl<M: StateMachine> fmt::Debug for ReplicaHandle<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicaHandle")
            .field("replica", &self.replica)
            .field("position", &self.reader.position())
            .finish_non_exhaustive()
    }
}
