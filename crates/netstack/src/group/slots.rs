//! Replica slots: how a worker joins, leaves, parks, and gets its state from another worker.
//!
//! [`Membership`] holds the state of every slot, and decides when a worker gives a snapshot or
//! attests to one. A snapshot is a clone of a worker's replica and its pending effects, with a
//! [fork](Subscription::fork) of its subscription to the log; so all of them are at one position by
//! construction. The joiner reads every later request, since the fork keeps them in the log, and
//! inherits every earlier effect that may not be done.
//!
//! `assign.rs` decides who is primary while the membership changes. `join_check.rs` checks a
//! joiner's state, `divergence.rs` replaces a wrong one, and `autoscale.rs` decides when workers
//! park and unpark.
//!
//! Any worker may do the share of a failed worker at once. [`Stack`](crate::Stack) starts another
//! thread in the slot, unless `GroupTuning::revive` is false.

use std::sync::Arc;

use dominoes::group::{Membership, WorkerState};
use dominoes::{Seq, Spin, Subscription};

use super::pending::PendingEffects;
use super::worker::ReplicatedWorker;
use crate::config::Limits;
use crate::drive::{Joining, Worker};
use crate::error::MembershipError;
use crate::group::{FaultHooks, ReplicatedShared};
use crate::io::sleep::RECHECK;
use crate::log::request::Request;
use crate::state::apply::ReplicaState;

/// Everything that a worker needs to continue from another worker's position.
pub(crate) struct Snapshot {
    pub(crate) replica: ReplicaState,
    pub(crate) log: Subscription<Request, Spin>,
    pub(crate) pending: PendingEffects,
}

impl Snapshot {
    /// An empty state and a subscription to a log that is never written, for a worker that has
    /// no state.
    pub(crate) fn none(limits: Limits) -> Snapshot {
        // A subscription to the group's log would hold up the publisher.
        let (_, log) = dominoes::channel_with_slots::<Request, Spin>(1, 1);
        let log = log.subscribe().expect("a log has room for one reader");
        Snapshot {
            replica: ReplicaState::new(limits),
            log,
            pending: PendingEffects::default(),
        }
    }
}

/// The replica slots of a group, and the snapshots under way between them.
pub(crate) type Members = Membership<Snapshot>;

fn error(error: dominoes::group::ReplicaSlotError) -> MembershipError {
    use dominoes::group::ReplicaSlotError as Error;
    match error {
        Error::NoFreeSlot => MembershipError::NoFreeSlot,
        Error::NoSuchReplica => MembershipError::NoSuchReplica,
        Error::LastReplica => MembershipError::LastReplica,
        _ => MembershipError::NoReplicaLeft,
    }
}

impl ReplicatedShared {
    /// The number of active workers.
    pub(crate) fn active_count(&self) -> usize {
        self.membership.active().count_ones() as usize
    }

    /// Wakes the sleeping workers to act on a change of the membership.
    pub(crate) fn wake_workers(&self) {
        self.work_event.notify_all();
        self.world.wake_pump();
    }

    /// Makes worker `id` active, whose state is at `position`.
    pub(crate) fn activate(&self, id: usize, position: Seq) {
        self.membership.activate(id, position);
        self.membership.end_join(id);
    }

    /// Unparks the first parked worker, unless the slot table is locked. Returns whether it did.
    pub(crate) fn unpark_one(&self) -> bool {
        let is_found = self.membership.unpark_first().is_some();
        if is_found {
            self.wake_workers();
            self.unpark_event.notify_all();
        }
        is_found
    }

    /// Asks the worker with the highest id to park, unless it is the only one, or the slot table is
    /// locked. Returns whether it did.
    pub(crate) fn park_last(&self) -> bool {
        let is_found = self.membership.park_last().is_some();
        if is_found {
            self.work_event.notify_all();
        }
        is_found
    }

    /// Asks worker `id` to leave; without an `id`, the worker with the highest one.
    pub(crate) fn request_leave(&self, id: Option<usize>) -> Result<usize, MembershipError> {
        let id = self.membership.ask_to_leave(id, false).map_err(error)?;
        self.wake_workers();
        Ok(id)
    }

    /// Ends worker `id`'s use of its slot, as [`Membership::release`] does. When the last worker
    /// with a state is gone, the stack is shut down.
    pub(crate) fn release_slot(&self, id: usize, state: WorkerState) {
        self.membership.release(id, state);
        // Any worker may do its share at once.
        self.wake_workers();
        if self.active_count() == 0 {
            // Otherwise applications would wait forever.
            self.world.shut_down();
        }
    }
}

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Gives snapshots to workers that wait for one, and attests to snapshots that others gave.
    /// Returns whether something still waits for this worker.
    pub(crate) fn serve_joiners(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let (id, position) = (self.id, self.replica.position());
        let served = shared.membership.serve_joiners(
            id,
            position,
            self,
            |worker| worker.snapshot(),
            |worker| worker.replica.whole_fingerprint(),
        );
        if served.gave {
            shared.wake_workers();
        } else if !served.is_waiting {
            shared.work_event.notify_all();
        }
        served.is_waiting
    }
}

/// Lets workers join and leave a group whose workers run on the caller's own threads.
#[derive(Clone)]
pub struct MembershipHandle {
    shared: Arc<ReplicatedShared>,
}

impl core::fmt::Debug for MembershipHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MembershipHandle").finish_non_exhaustive()
    }
}

impl MembershipHandle {
    pub(crate) fn new(shared: &Arc<ReplicatedShared>) -> MembershipHandle {
        MembershipHandle {
            shared: Arc::clone(shared),
        }
    }

    /// As [`ReplicatedGroup::join`](crate::group::ReplicatedGroup::join), for any free slot.
    ///
    /// # Errors
    /// If no slot is free, or no worker is left.
    pub fn join<T: FaultHooks>(&self, hooks: T) -> Result<JoiningWorker<T>, MembershipError> {
        JoiningWorker::new(&self.shared, None, hooks)
    }

    /// As [`ReplicatedGroup::leave`](crate::group::ReplicatedGroup::leave).
    ///
    /// # Errors
    /// If there is no such worker, or it is the last.
    pub fn leave(&self, slot: usize) -> Result<usize, MembershipError> {
        self.shared.request_leave(Some(slot))
    }
}

/// A worker that waits for its state.
pub struct JoiningWorker<T: FaultHooks = ()> {
    shared: Arc<ReplicatedShared>,
    replica: usize,
    /// `None` once it was given a state.
    hooks: Option<T>,
    /// The worker with a state that is being checked.
    worker: Option<Box<ReplicatedWorker<T>>>,
}

impl<T: FaultHooks> JoiningWorker<T> {
    /// Waits for a state for slot `replica`, or for the first free slot.
    pub(crate) fn new(
        shared: &Arc<ReplicatedShared>,
        slot: Option<usize>,
        hooks: T,
    ) -> Result<Self, MembershipError> {
        let replica = shared.membership.request_snapshot(slot).map_err(error)?;
        shared.wake_workers();
        Ok(JoiningWorker {
            replica,
            shared: Arc::clone(shared),
            hooks: Some(hooks),
            worker: None,
        })
    }

    /// Its replica slot.
    pub fn replica(&self) -> usize {
        self.replica
    }

    /// Whether it still waits for its state or for the join check.
    pub fn is_waiting(&self) -> bool {
        self.hooks.is_some() || self.worker.is_some()
    }

    /// The worker, once its state has passed the join check. `None` before, and after it was
    /// returned.
    pub fn try_join(&mut self) -> Option<ReplicatedWorker<T>> {
        if self.hooks.is_some() {
            let snapshot = self.shared.membership.take_snapshot(self.replica)?;
            let hooks = self.hooks.take()?;
            let shared = Arc::clone(&self.shared);
            let mut worker = ReplicatedWorker::new(self.replica, shared, snapshot, hooks);
            (worker.state, worker.joined_from) = (WorkerState::JoinCheck, WorkerState::Gone);
            self.worker = Some(Box::new(worker));
        }
        let worker = self.worker.as_mut()?;
        if !worker.try_join() {
            return None;
        }
        worker.count_join();
        self.worker.take().map(|worker| *worker)
    }
}

impl<T: FaultHooks> Joining for JoiningWorker<T> {
    fn id(&self) -> usize {
        self.replica()
    }

    fn try_join(&mut self) -> Option<Box<dyn Worker>> {
        Some(Box::new(JoiningWorker::try_join(self)?))
    }

    fn wait(&mut self) {
        // The worker that gives the state notifies this event. It may be held up.
        let event = &self.shared.work_event;
        let key = event.prepare();
        event.wait(key, Some(RECHECK));
    }
}

impl<T: FaultHooks> Drop for JoiningWorker<T> {
    fn drop(&mut self) {
        // Once a worker exists, it releases the slot itself.
        if self.hooks.is_some() {
            let waits = WorkerState::Joining;
            self.shared.membership.release(self.replica, waits);
        }
    }
}
