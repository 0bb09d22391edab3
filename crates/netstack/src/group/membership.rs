//! Replica slots: how a worker joins, leaves, parks, and gets its state from another worker.
//!
//! [`Membership`] holds the state of every slot, and decides when a worker gives a snapshot or
//! attests to one. A snapshot is a clone of a worker's replica and its pending effects, with a
//! [fork](Subscription::fork) of its subscription to the log; so all of them are at one position by
//! construction. The joiner reads every later request, since the fork keeps them in the log, and
//! inherits every earlier effect that may not be done.
//!
//! The join check finds out whether a state that a joiner was given is right:
//! [`Membership::check_join`] compares it with what the other workers attest. The joiner, whose
//! reader holds the log, applies requests up to the positions of their attestations. Until the
//! check is over it performs nothing, gives its state to no other worker, and has no vote. With
//! [`Layout::confirm`](crate::group::Layout), what the joiner computed on the way must be what the
//! majority posted there, since it is going to perform it. The source's pending effects are handed
//! over as they are: only `confirm` checks them.
//!
//! `divergence.rs` replaces a state that turns out to be wrong later, and `autoscale.rs` decides
//! when workers park and unpark.
//!
//! Any worker may do the share of a failed worker at once. [`Stack`](crate::Stack) starts another
//! thread in the slot, unless `GroupTuning::revive` is false.

use std::sync::Arc;

use dominoes::group::{CheckResult, Membership, WorkerState};
use dominoes::{Seq, Spin, Subscription};

use super::pending::{Cursor, PendingEffects};
use super::steal::Stragglers;
use super::worker::ReplicatedWorker;
use crate::config::Limits;
use crate::drive::{Joining, Worker};
use crate::error::MembershipError;
use crate::group::{FaultHooks, ReplicatedShared};
use crate::io::sleep::RECHECK;
use crate::log::request::Request;
use crate::state::apply::ReplicaState;
use crate::time::Instant;

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

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// A worker that is parked from the beginning.
    pub(crate) fn parked(id: usize, shared: Arc<ReplicatedShared>, hooks: T) -> Self {
        let nothing = Snapshot::none(shared.world.limits);
        let mut worker = ReplicatedWorker::new(id, shared, nothing, hooks);
        worker.state = WorkerState::Parked;
        worker
    }

    /// If this worker was notified, handles what changed in the membership. Returns true if it is
    /// neither active nor leaving afterwards; then the caller does nothing.
    #[inline]
    pub(crate) fn handle_membership(&mut self) -> bool {
        self.shared.membership.is_notified(self.id) && self.handle_notification()
    }

    /// Whether it is active, and was not asked to leave.
    pub fn is_active(&self) -> bool {
        self.state == WorkerState::Active && !self.shared.membership.is_leaving(self.id)
    }

    /// Replaces the replica and all that belongs to its position. The join check comes next.
    fn restart_from(&mut self, snapshot: Snapshot) {
        let Snapshot {
            replica,
            log,
            pending,
        } = snapshot;
        self.stragglers = Stragglers::new(self.shared.layout.slot_count());
        self.share.cursor = Cursor::at_first(&pending);
        self.unposted.clear();
        self.share.prepared_bytes = 0;
        (self.unsent_since, self.sent_then) = (Instant::ZERO, 0);
        (self.replica, self.log, self.pending) = (replica, log, pending);
        self.state = WorkerState::JoinCheck;
    }

    /// Takes a snapshot if one is there, and continues the join check, which compares its replica
    /// with the other ones. Returns whether the worker is active from now on.
    pub(crate) fn try_join(&mut self) -> bool {
        if self.state == WorkerState::Joining {
            let Some(snapshot) = self.shared.membership.take_snapshot(self.id) else {
                // Moves to the end of the log: a reader that does not move holds up the pump.
                let end = self.log.poll();
                self.log.advance_to(end);
                return false;
            };
            self.restart_from(snapshot);
        }
        self.run_join_check()
    }

    /// Becomes active, from its replica's position in the log on.
    pub(crate) fn activate(&mut self) {
        self.shared.activate(self.id, self.replica.position());
        self.prepared = self.replica.position();
        self.confirmed = self.replica.position();
        self.share.cursor = Cursor::at_first(&self.pending);
        self.unposted = Vec::new();
        self.state = WorkerState::Active;
    }

    /// Notifies this worker, so that its next turn calls `handle_notification` once more.
    fn handle_again_next_turn(&self) {
        self.shared.membership.notify(1 << self.id);
    }

    #[cold]
    fn handle_notification(&mut self) -> bool {
        if self.is_parked() {
            // It stays notified, so each turn ends here until the worker is unparked.
            return true;
        }
        // Leaves solo mode, which does not see that the log moves: a worker that gets a snapshot
        // below may join, publish and leave before this worker's next turn.
        self.return_to_log();
        let shared = Arc::clone(&self.shared);
        shared.membership.clear_notification(self.id);
        if shared.membership.take_divergence_report(self.id)
            && matches!(self.state, WorkerState::Active | WorkerState::Leaving(_))
            && self.leave_if_diverged()
        {
            self.handle_again_next_turn();
            return true;
        }
        match self.state {
            WorkerState::Gone => {
                self.handle_again_next_turn();
                return true;
            }
            WorkerState::Parked => {
                (self.state, self.joined_from) = (WorkerState::Joining, WorkerState::Parked);
                self.handle_again_next_turn();
                return true;
            }
            WorkerState::Joining | WorkerState::JoinCheck => {
                if !self.try_join() {
                    self.handle_again_next_turn();
                    return true;
                }
                self.count_join();
            }
            WorkerState::Active if shared.membership.is_leaving(self.id) => {
                self.state = WorkerState::Leaving(self.log.poll());
            }
            WorkerState::Active | WorkerState::Leaving(_) | WorkerState::Diverged(_) => {}
        }
        if let WorkerState::Leaving(end) = self.state
            && self.share.cursor.seq >= end
        {
            if shared.membership.try_leave(self.id) {
                if shared.membership.take_park_request(self.id) {
                    self.park();
                } else {
                    self.state = WorkerState::Gone;
                }
                self.handle_again_next_turn();
                return true;
            }
            // No other worker stays, so the request to leave was withdrawn.
            self.state = WorkerState::Active;
        }
        if self.serve_joiners() || self.state != WorkerState::Active {
            self.handle_again_next_turn();
        }
        false
    }

    /// Gives up its replica, and keeps its replica slot. Its share is performed.
    fn park(&mut self) {
        self.intake.abandon(&mut self.share.recycler);
        self.put_back();
        self.shared.release_slot(self.id, WorkerState::Parked);
        self.restart_from(Snapshot::none(self.shared.world.limits));
        self.state = WorkerState::Parked;
    }

    /// Whether this worker is parked: its turns do nothing until it is unparked.
    pub fn is_parked(&self) -> bool {
        self.state == WorkerState::Parked && self.shared.membership.parked() >> self.id & 1 != 0
    }

    /// Whether this worker has left on request. All that remains is to drop it.
    pub fn has_left(&self) -> bool {
        self.state == WorkerState::Gone
    }

    /// Counts that it became active: new, unparked, or repaired after a divergence.
    pub(crate) fn count_join(&mut self) {
        let joined_from = core::mem::replace(&mut self.joined_from, WorkerState::Active);
        self.shared.membership.count_join(joined_from);
    }

    /// Releases its replica slot. Work that it had begun was released when its last step ended.
    fn release(&mut self) {
        let id = self.id;
        let waits = matches!(self.state, WorkerState::Joining | WorkerState::JoinCheck);
        match self.state {
            WorkerState::Parked => self.shared.membership.release(id, WorkerState::Joining),
            WorkerState::Gone => self.shared.release_slot(id, WorkerState::Gone),
            // It was new, and never became active. (A worker that joins again counts as failed.)
            state if waits && self.joined_from == WorkerState::Gone => {
                self.shared.release_slot(id, state);
            }
            _ => self.shared.release_slot(id, WorkerState::Active),
        }
    }
}

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Continues the join check, until it has a result or must wait. Returns whether the worker is
    /// active from now on.
    pub(crate) fn run_join_check(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        loop {
            let fingerprint = || self.replica.whole_fingerprint();
            let position = self.replica.position();
            let review = |result| self.confirm_join(result);
            match shared
                .membership
                .check_join(self.id, position, fingerprint, review)
            {
                None => return false,
                Some(CheckResult::Passed | CheckResult::Undecided) => {
                    self.activate();
                    return true;
                }
                Some(CheckResult::Failed) => {
                    self.pending = PendingEffects::from(self.replica.position());
                    self.share.cursor = Cursor::at_first(&self.pending);
                    self.state = WorkerState::Joining;
                    shared.wake_workers();
                    return false;
                }
                Some(CheckResult::ContinueTo(position)) => {
                    self.log.poll();
                    let missing = position.saturating_sub(self.replica.position()) as usize;
                    // A panic in the code of a connection closes that connection, as everywhere.
                    if self.apply_ready(missing) < missing {
                        return false;
                    }
                }
                Some(CheckResult::Open) => return false,
            }
        }
    }

    /// With [`Layout::confirm`](crate::group::Layout), a check is passed only if a majority posted
    /// what this worker computed on the way.
    fn confirm_join(&self, result: CheckResult) -> CheckResult {
        let shared = &self.shared;
        if result != CheckResult::Passed || !shared.layout.confirm {
            return result;
        }
        let on_the_way = self.unposted.iter().map(|(position, fingerprint)| {
            shared
                .posts
                .agrees_with_majority(&shared.membership, *position, *fingerprint)
        });
        on_the_way.fold(result, |result, is_right| match is_right {
            Some(true) => result,
            Some(false) => CheckResult::Failed,
            None if result == CheckResult::Passed => CheckResult::Open,
            None => result,
        })
    }
}

impl<T: FaultHooks> Drop for ReplicatedWorker<T> {
    fn drop(&mut self) {
        self.release();
        // A test with fault hooks checks panics by itself.
        #[cfg(feature = "testkit")]
        if !T::ACTIVE {
            self.shared
                .world
                .assert_no_panics(self.replica.unexpected_panics());
        }
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
