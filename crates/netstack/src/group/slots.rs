//! Replica slots: how a worker joins, leaves, parks, and gets its state from another worker.
//!
//! A snapshot is a clone of a worker's replica, of its pending effects and of the epochs that it
//! knows, together with a [fork](Subscription::fork) of its reader of the log; so all of them are
//! at one position by construction. A worker that needs one records that in the *slot table* and
//! notifies the workers that may give it. The first of them that comes by between two of its own
//! steps gives it. The table has a lock. A worker takes it only when a bit in an atomic word says
//! that there is something for it; if the lock is taken, the worker goes on with its work and comes
//! back.
//!
//! A snapshot is [checked](super::join_check) before the worker that got it becomes active.
//!
//! Nothing stops meanwhile. The joiner reads all requests from the snapshot's position on, since
//! the fork keeps them in the log, and it gets all effects below that position that may not be
//! done.

use core::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dominoes::{Seq, Spin, Subscription};

use super::epochs::Epochs;
use super::join_check::JoinCheck;
use super::pending::PendingEffects;
use super::worker::{Worker, WorkerState};
use crate::config::Limits;
use crate::error::MembershipError;
use crate::group::{FaultHooks, Shared};
use crate::log::request::Request;
use crate::state::apply::Replica;
use crate::stats::MembershipStats;

/// Everything that a worker needs to go on from another worker's position.
pub(crate) struct Snapshot {
    pub(crate) replica: Replica,
    pub(crate) log: Subscription<Request, Spin>,
    pub(crate) pending: PendingEffects,
    pub(crate) epochs: Epochs,
}

impl Snapshot {
    /// The snapshot of a worker without a state: an empty state, and a reader of a log that is
    /// never written.
    pub(crate) fn none(limits: Limits) -> Snapshot {
        // A reader of the group's log would make the publisher wait for it.
        let (_, log) = dominoes::channel_with_slots::<Request, Spin>(1, 1);
        let log = log.subscribe().expect("a log has room for one reader");
        Snapshot {
            replica: Replica::new(limits),
            log,
            pending: PendingEffects::default(),
            epochs: Epochs::new(1),
        }
    }
}

/// The state of a replica slot.
pub(crate) enum Slot {
    Free,
    /// Its worker waits for a snapshot from one of these workers.
    AwaitsSnapshot(u64),
    /// The snapshot is there, or already with its worker, and the other workers attest whether it
    /// is right.
    JoinCheck(Box<JoinCheck>),
    Active,
    /// Its worker has no state, and waits to be unparked.
    Parked,
}

/// Why a worker gets a state.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinReason {
    New,
    /// It had diverged from the majority.
    Repair,
    /// It was parked.
    Unpark,
}

/// Why a worker gives up its slot or its state.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaveReason {
    /// It was asked to leave, and has performed its share.
    Requested,
    /// It never became active.
    JoinCancelled,
    /// It unwound, or was dropped.
    Failed,
    /// It was asked to park, and has performed its share.
    Parked,
    /// It differs from these workers, and wants the state of one of them.
    Diverged(u64),
}

/// The state of all slots.
pub(crate) struct Slots {
    pub(crate) slots: Vec<Slot>,
    stats: MembershipStats,
    /// Replicas are known to differ, and there is no majority.
    is_undecided: bool,
}

/// [`Slots`], behind a lock.
pub(crate) struct SlotTable(Mutex<Slots>);

impl SlotTable {
    pub(crate) fn new(slots: usize, replicas: usize, others_parked: bool) -> Self {
        let slot = |id| {
            if id < replicas {
                Slot::Active
            } else if others_parked {
                Slot::Parked
            } else {
                Slot::Free
            }
        };
        SlotTable(Mutex::new(Slots {
            slots: (0..slots).map(slot).collect(),
            stats: MembershipStats::default(),
            is_undecided: false,
        }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// How many replicas joined, left, failed, and so on, so far.
    pub(crate) fn membership_stats(&self) -> MembershipStats {
        let mut stats = self.slots.lock().stats;
        stats.active = u64::from(self.membership.active().count_ones());
        stats
    }

    /// How many workers are active at this moment.
    pub(crate) fn active_count(&self) -> usize {
        self.membership.active().count_ones() as usize
    }

    /// Records that a worker waits for a state for slot `id`, or for the first free one.
    fn request_snapshot(&self, id: Option<usize>) -> Result<usize, MembershipError> {
        let mut table = self.slots.lock();
        let sources = self.membership.active();
        if sources == 0 {
            return Err(MembershipError::NoReplicaLeft);
        }
        let is_free = |slot: &Slot| matches!(slot, Slot::Free);
        let id = match id {
            Some(id) => Some(id).filter(|id| table.slots.get(*id).is_some_and(is_free)),
            None => table.slots.iter().position(is_free),
        };
        let id = id.ok_or(MembershipError::NoFreeSlot)?;
        table.slots[id] = Slot::AwaitsSnapshot(u64::MAX);
        self.membership.begin_join(id);
        drop(table);
        self.notify(sources);
        Ok(id)
    }

    /// Makes these workers look into the slot table, even if they sleep.
    pub(crate) fn notify(&self, workers: u64) {
        self.membership.notify(workers);
        self.work_event.notify_all();
        self.world.wake_pump();
    }

    /// The snapshot for slot `id`, if it is there.
    pub(crate) fn take_snapshot(&self, id: usize) -> Option<Snapshot> {
        let mut table = self.slots.lock();
        match &mut table.slots[id] {
            Slot::JoinCheck(check) => check.take_snapshot(),
            Slot::AwaitsSnapshot(from) => {
                // The workers that were asked may be gone.
                let active = self.membership.active();
                if *from & active == 0 {
                    *from = u64::MAX;
                }
                self.membership.notify(active);
                None
            }
            Slot::Free | Slot::Active | Slot::Parked => None,
        }
    }

    /// Makes worker `id` active. Its pending effects begin at `first`, and its state is at
    /// `position`. Returns how far its slot's share is reported as done.
    pub(crate) fn activate(&self, id: usize, first: Seq, position: Seq) -> Seq {
        // ORDERING: Relaxed: no other thread changes the word of this slot, and
        // `MembershipTable::activate` publishes it.
        let reported = match self.performed[id].load(Ordering::Relaxed) {
            NEVER_ACTIVE => first,
            reported => reported.max(first),
        };
        // ORDERING: Release, as in `Worker::report_progress`.
        self.performed[id].store(reported, Ordering::Release);
        self.membership.activate(id, position);
        self.membership.end_join(id);
        reported
    }

    /// Counts a worker that became active.
    pub(crate) fn count_join(&self, reason: JoinReason) {
        let stats = &mut self.slots.lock().stats;
        match reason {
            JoinReason::New => stats.joined += 1,
            JoinReason::Repair => stats.repaired += 1,
            JoinReason::Unpark => stats.unparked += 1,
        }
    }

    /// Lets the first parked worker join again, unless the slot table is locked.
    pub(crate) fn unpark_one(&self) {
        let Ok(mut table) = self.slots.0.try_lock() else {
            return;
        };
        let sources = self.membership.active();
        let parked = table
            .slots
            .iter()
            .position(|slot| matches!(slot, Slot::Parked));
        let (Some(id), true) = (parked, sources != 0) else {
            return;
        };
        table.slots[id] = Slot::AwaitsSnapshot(u64::MAX);
        self.membership.begin_join(id);
        drop(table);
        self.membership.set_parked(id, false);
        self.notify(sources | 1 << id);
        self.unpark_event.notify_all();
    }

    /// Asks the last worker to park, if another one stays.
    pub(crate) fn park_last(&self) {
        let Ok(_lock) = self.slots.0.try_lock() else {
            return;
        };
        let staying = self.membership.staying();
        if staying.count_ones() > 1 {
            let last = staying.ilog2() as usize;
            self.membership.request_park(last);
            self.membership.request_leave(last);
            self.work_event.notify_all();
        }
    }

    /// Whether worker `id`, which was asked to leave, may do so: another one must stay.
    pub(crate) fn try_leave(&self, id: usize) -> bool {
        let _lock = self.slots.lock();
        let others = self.membership.staying() & !(1 << id);
        if others == 0 {
            self.membership.cancel_leave(id);
        } else {
            // From here on it does not count as staying for another worker that asks the same.
            self.membership.deactivate(id);
        }
        others != 0
    }

    /// Asks worker `id` to leave, or the last one.
    pub(crate) fn request_leave(&self, id: Option<usize>) -> Result<usize, MembershipError> {
        let _lock = self.slots.lock();
        let staying = self.membership.staying();
        let last = (staying != 0).then(|| staying.ilog2() as usize);
        let id = id.or(last).ok_or(MembershipError::NoReplicaLeft)?;
        if id >= self.performed.len() || staying >> id & 1 == 0 {
            return Err(MembershipError::NoSuchReplica);
        }
        if staying.count_ones() == 1 {
            return Err(MembershipError::LastReplica);
        }
        self.membership.request_leave(id);
        self.work_event.notify_all();
        self.world.wake_pump();
        Ok(id)
    }

    /// Ends worker `id`'s use of its slot. It has released the units that it had begun. When the
    /// last worker with a state is gone, the stack is shut down.
    pub(crate) fn release_slot(&self, id: usize, reason: LeaveReason) {
        let mut table = self.slots.lock();
        table.is_undecided = false;
        self.membership.deactivate(id);
        let unused = core::mem::replace(&mut table.slots[id], Slot::Free);
        self.membership.end_join(id);
        match reason {
            LeaveReason::Requested => table.stats.left += 1,
            LeaveReason::JoinCancelled => {}
            LeaveReason::Failed => table.stats.failed += 1,
            LeaveReason::Parked => {
                table.stats.parked += 1;
                table.slots[id] = Slot::Parked;
                self.membership.set_parked(id, true);
            }
            LeaveReason::Diverged(from) => {
                table.slots[id] = Slot::AwaitsSnapshot(from);
                self.membership.begin_join(id);
                self.membership.notify(from);
            }
        }
        drop(table);
        drop(unused);
        // Any worker may do its share at once.
        self.work_event.notify_all();
        self.world.wake_pump();
        if self.active_count() == 0 {
            // No application may wait for what no worker will do.
            self.world.shut_down();
        }
    }

    /// Counts that replicas differ and there is no majority. Counts it once, until a worker leaves.
    pub(crate) fn count_undecided(&self) {
        let mut table = self.slots.lock();
        if !core::mem::replace(&mut table.is_undecided, true) {
            table.stats.undecided += 1;
        }
    }

    /// Frees slot `id`, whose worker was waiting for a state or parked.
    pub(crate) fn cancel_join(&self, id: usize) {
        self.membership.set_parked(id, false);
        let unused = core::mem::replace(&mut self.slots.lock().slots[id], Slot::Free);
        self.membership.end_join(id);
        // A snapshot that is never taken would hold the log.
        drop(unused);
    }
}

/// What `performed` holds for a slot that was never active.
pub(crate) const NEVER_ACTIVE: Seq = Seq::MAX;

impl<T: FaultHooks> Worker<T> {
    /// Gives snapshots to workers that wait for one, and attests to snapshots that others gave.
    /// Returns whether something still waits for this worker.
    pub(crate) fn serve_joiners(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let Ok(mut table) = shared.slots.0.try_lock() else {
            return true;
        };
        let me = 1u64 << self.id;
        let (mut waiting, mut gave) = (false, false);
        for slot in &mut table.slots {
            match slot {
                Slot::AwaitsSnapshot(from) if *from & me != 0 => match self.snapshot() {
                    Some(snapshot) => {
                        let since = shared.membership.since(self.id);
                        *slot = Slot::JoinCheck(Box::new(JoinCheck::new(self.id, since, snapshot)));
                        gave = true;
                    }
                    None => waiting = true,
                },
                Slot::JoinCheck(check) => waiting |= !check.attest(self.id, &self.replica),
                _ => {}
            }
        }
        drop(table);
        if gave {
            shared.notify(shared.membership.active() & !me);
        } else if !waiting {
            shared.work_event.notify_all();
        }
        waiting
    }
}

/// Lets workers join and leave a group whose workers run on the caller's own threads.
#[derive(Clone)]
pub struct MembershipHandle {
    shared: Arc<Shared>,
}

impl core::fmt::Debug for MembershipHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}

impl MembershipHandle {
    pub(crate) fn new(shared: &Arc<Shared>) -> MembershipHandle {
        MembershipHandle {
            shared: Arc::clone(shared),
        }
    }

    /// As [`Group::join`](crate::group::Group::join), for any free slot.
    ///
    /// # Errors
    /// If no slot is free, or no worker is left.
    pub fn join<T: FaultHooks>(&self, hooks: T) -> Result<JoiningWorker<T>, MembershipError> {
        JoiningWorker::new(&self.shared, None, hooks)
    }

    /// As [`Group::leave`](crate::group::Group::leave).
    ///
    /// # Errors
    /// If there is no such worker, or it is the last.
    pub fn leave(&self, slot: usize) -> Result<usize, MembershipError> {
        self.shared.request_leave(Some(slot))
    }
}

/// A worker that waits for its state.
pub struct JoiningWorker<T: FaultHooks = ()> {
    shared: Arc<Shared>,
    replica: usize,
    /// `None` once it was given a state.
    hooks: Option<T>,
    /// The worker with a state that is being checked.
    worker: Option<Box<Worker<T>>>,
}

impl<T: FaultHooks> JoiningWorker<T> {
    /// Waits for a state for slot `replica`, or for the first free slot.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        slot: Option<usize>,
        hooks: T,
    ) -> Result<Self, MembershipError> {
        Ok(JoiningWorker {
            replica: shared.request_snapshot(slot)?,
            shared: Arc::clone(shared),
            hooks: Some(hooks),
            worker: None,
        })
    }

    /// The slot that it will have.
    pub fn replica(&self) -> usize {
        self.replica
    }

    /// Whether it still waits.
    pub fn is_waiting(&self) -> bool {
        self.hooks.is_some() || self.worker.is_some()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The worker, once its state has passed the join check. `None` before, and after it was
    /// returned.
    pub fn try_join(&mut self) -> Option<Worker<T>> {
        if self.hooks.is_some() {
            let snapshot = self.shared.take_snapshot(self.replica)?;
            let hooks = self.hooks.take()?;
            let shared = Arc::clone(&self.shared);
            let mut worker = Worker::new(self.replica, shared, snapshot, hooks);
            worker.state = WorkerState::JoinCheck;
            self.worker = Some(Box::new(worker));
        }
        if !self.worker.as_mut()?.try_join() {
            return None;
        }
        self.shared.count_join(JoinReason::New);
        self.worker.take().map(|worker| *worker)
    }
}

impl<T: FaultHooks> Drop for JoiningWorker<T> {
    fn drop(&mut self) {
        if let Some(worker) = &mut self.worker {
            worker.state = WorkerState::JoinCancelled;
        } else if self.hooks.is_some() {
            self.shared.cancel_join(self.replica);
        }
    }
}
