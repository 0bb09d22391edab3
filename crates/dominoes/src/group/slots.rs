//! Replica slots: how workers join, leave and park, and how they get a state from each other.
//!
//! A worker that needs a state records that in the slot table and notifies the workers that may
//! give it. The first of them that looks at the table, between two steps, gives a *snapshot*: a
//! clone of its state and of everything else at that position of the log. The table has a lock. A
//! worker takes the lock only when a bit in an atomic word shows that the table has something for
//! it; if the lock is taken, the worker continues its work and tries again later. So no worker
//! waits.
//!
//! A snapshot is [checked](super::join_check) before the worker that got it becomes active.

use super::{
    join_check::{CheckResult, JoinCheck},
    membership::MembershipTable,
};
use crate::Seq;
use crossbeam_utils::CachePadded;
use std::{
    error::Error,
    fmt, mem,
    ops::Deref,
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
};

/// The part that a worker has in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// Applies the log, and performs its share.
    Active,
    /// Waits for a snapshot, and has no state.
    Joining,
    /// Was given a state, and the join check is not over: it has no share and no vote.
    JoinCheck,
    /// Was asked to leave, and leaves when its share below this position is performed.
    Leaving(Seq),
    /// Keeps its thread and its slot, has no state, and waits until it is unparked.
    Parked,
    /// Differs from these workers, a bit each: it drops its state and waits for theirs.
    Diverged(u64),
    /// Has left, or never became active and its join was cancelled.
    Gone,
}

/// Counts of membership changes in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MembershipStats {
    /// Replicas that are active now.
    pub active: u64,
    /// Replicas that joined the running group.
    pub joined: u64,
    /// Replicas that left it on request.
    pub left: u64,
    /// Replicas whose thread panicked, or ended otherwise. Other replicas performed their remaining
    /// effects.
    pub failed: u64,
    /// Replicas that differed from the majority, and received its state.
    pub repaired: u64,
    /// Times that a replica was parked, since it did not improve throughput.
    pub parked: u64,
    /// Times that a replica was unparked.
    pub unparked: u64,
    /// Times that replicas differed without a majority.
    pub undecided: u64,
}

impl MembershipStats {
    /// The sums of the counters of two groups.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        MembershipStats {
            active: self.active + other.active,
            joined: self.joined + other.joined,
            left: self.left + other.left,
            failed: self.failed + other.failed,
            repaired: self.repaired + other.repaired,
            parked: self.parked + other.parked,
            unparked: self.unparked + other.unparked,
            undecided: self.undecided + other.undecided,
        }
    }
}

/// Why a replica cannot join a group, or leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicaSlotError {
    /// Every replica slot is taken.
    NoFreeSlot,
    /// No such replica, or it is already leaving.
    NoSuchReplica,
    /// All other replicas have left, or are about to: the state would be lost.
    LastReplica,
    /// Every replica has failed: none has the state any more.
    NoReplicaLeft,
}

impl fmt::Display for ReplicaSlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReplicaSlotError::NoFreeSlot => "every replica slot is taken",
            ReplicaSlotError::NoSuchReplica => "no such replica, or it is leaving",
            ReplicaSlotError::LastReplica => "the last replica cannot leave",
            ReplicaSlotError::NoReplicaLeft => "no replica is left to take a state from",
        })
    }
}

impl Error for ReplicaSlotError {}

/// The state of a replica slot.
enum ReplicaSlot<R> {
    Free,
    /// Its worker waits for a snapshot from one of these workers.
    AwaitsSnapshot(u64),
    /// The snapshot is in the slot or already with its worker, and other workers attest to their
    /// states.
    JoinCheck(Box<JoinCheck<R>>),
    Active,
    /// Its worker has no state, and waits to be unparked.
    Parked,
}

/// The state of all slots.
struct Slots<R> {
    slots: Vec<ReplicaSlot<R>>,
    stats: MembershipStats,
    /// Whether replicas are known to differ without a majority.
    is_undecided: bool,
}

/// The state of all replica slots: the words of a [`MembershipTable`], and a table with a lock for
/// everything larger than a bit. `R` is the snapshot that workers give each other.
///
/// No call waits for a worker. A call that concerns workers [notifies](MembershipTable::notify)
/// them in the table; the caller wakes sleeping workers.
pub struct Membership<R> {
    table: CachePadded<MembershipTable>,
    slots: Mutex<Slots<R>>,
}

impl<R> Deref for Membership<R> {
    type Target = MembershipTable;

    #[inline(always)]
    fn deref(&self) -> &MembershipTable {
        &self.table
    }
}

/// The result of [`Membership::serve_joiners`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JoinersServed {
    /// The worker gave a snapshot, so the others have to attest.
    pub gave: bool,
    /// The table still has something for this worker.
    pub is_waiting: bool,
}

impl<R> Membership<R> {
    /// For `slots` slots, the first `replicas` of which are active. The other slots are parked if
    /// `others_parked` is set, and free otherwise.
    ///
    /// # Panics
    /// As [`MembershipTable::new`].
    pub fn new(slots: usize, replicas: usize, others_parked: bool) -> Self {
        let slot = |id| match id < replicas {
            true => ReplicaSlot::Active,
            false if others_parked => ReplicaSlot::Parked,
            false => ReplicaSlot::Free,
        };
        Membership {
            table: CachePadded::new(MembershipTable::new(slots, replicas, others_parked)),
            slots: Mutex::new(Slots {
                slots: (0..slots).map(slot).collect(),
                stats: MembershipStats::default(),
                is_undecided: false,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slots<R>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Slots<R>>> {
        match self.slots.try_lock() {
            Ok(table) => Some(table),
            Err(TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The counters so far.
    pub fn stats(&self) -> MembershipStats {
        let mut stats = self.lock().stats;
        stats.active = u64::from(self.active().count_ones());
        stats
    }

    /// Whether any worker has a state, or was given one.
    pub fn has_state(&self) -> bool {
        let is_given = |slot: &ReplicaSlot<R>| matches!(slot, ReplicaSlot::JoinCheck(_));
        self.active() != 0 || self.lock().slots.iter().any(is_given)
    }

    /// Records that a worker waits for a state for slot `id`, or for the first free one, and
    /// notifies the active workers. Returns the slot.
    ///
    /// # Errors
    /// If the slot is not free, or no worker is active.
    pub fn request_snapshot(&self, id: Option<usize>) -> Result<usize, ReplicaSlotError> {
        let mut table = self.lock();
        let sources = self.active();
        if sources == 0 {
            return Err(ReplicaSlotError::NoReplicaLeft);
        }
        let is_free = |slot: &ReplicaSlot<R>| matches!(slot, ReplicaSlot::Free);
        let id = match id {
            Some(id) => Some(id).filter(|id| table.slots.get(*id).is_some_and(is_free)),
            None => table.slots.iter().position(is_free),
        };
        let id = id.ok_or(ReplicaSlotError::NoFreeSlot)?;
        table.slots[id] = ReplicaSlot::AwaitsSnapshot(u64::MAX);
        self.begin_join(id);
        self.notify(sources);
        Ok(id)
    }

    /// The snapshot for slot `id`, if it is there. Otherwise notifies the active workers again.
    pub fn take_snapshot(&self, id: usize) -> Option<R> {
        let mut table = self.lock();
        match &mut table.slots[id] {
            ReplicaSlot::JoinCheck(check) => check.take_snapshot(),
            ReplicaSlot::AwaitsSnapshot(from) => {
                // The workers that may give it have gone.
                let active = self.active();
                if *from & active == 0 {
                    *from = u64::MAX;
                }
                self.notify(active);
                None
            }
            ReplicaSlot::Free | ReplicaSlot::Active | ReplicaSlot::Parked => None,
        }
    }

    /// Counts a worker that became active, by its state before: [`WorkerState::Diverged`],
    /// [`WorkerState::Parked`], or new.
    pub fn count_join(&self, before: WorkerState) {
        let stats = &mut self.lock().stats;
        match before {
            WorkerState::Diverged(_) => stats.repaired += 1,
            WorkerState::Parked => stats.unparked += 1,
            _ => stats.joined += 1,
        }
    }

    /// Lets parked worker `id` join again.
    ///
    /// # Errors
    /// If no such worker is parked, or no worker is active.
    pub fn unpark(&self, id: usize) -> Result<(), ReplicaSlotError> {
        let mut table = self.lock();
        let is_parked = matches!(table.slots.get(id), Some(ReplicaSlot::Parked));
        match is_parked {
            true => self.unpark_slot(&mut table, id),
            false => Err(ReplicaSlotError::NoSuchReplica),
        }
    }

    /// Lets the first parked worker join again. Returns its slot; `None` if no worker is parked, no
    /// worker is active, or the table is locked at this moment.
    pub fn unpark_first(&self) -> Option<usize> {
        let mut table = self.try_lock()?;
        let is_parked = |slot: &ReplicaSlot<R>| matches!(slot, ReplicaSlot::Parked);
        let id = table.slots.iter().position(is_parked)?;
        self.unpark_slot(&mut table, id).ok().map(|()| id)
    }

    fn unpark_slot(&self, table: &mut Slots<R>, id: usize) -> Result<(), ReplicaSlotError> {
        let sources = self.active();
        if sources == 0 {
            return Err(ReplicaSlotError::NoReplicaLeft);
        }
        table.slots[id] = ReplicaSlot::AwaitsSnapshot(u64::MAX);
        self.begin_join(id);
        self.set_parked(id, false);
        self.notify(sources | 1 << id);
        Ok(())
    }

    /// Asks the last worker to park, if another one stays, and the table is not locked at this
    /// moment. Returns its slot.
    pub fn park_last(&self) -> Option<usize> {
        let _lock = self.try_lock()?;
        let staying = self.staying();
        (staying.count_ones() > 1).then(|| {
            let last = staying.ilog2() as usize;
            self.table.request_park(last);
            self.table.request_leave(last);
            last
        })
    }

    /// Whether worker `id`, which was asked to leave, may do so: another one must stay.
    pub fn try_leave(&self, id: usize) -> bool {
        let _lock = self.lock();
        let others = self.staying() & !(1 << id);
        if others == 0 {
            self.cancel_leave(id);
        } else {
            // From here on it does not count as staying when another worker asks to leave.
            self.deactivate(id);
        }
        others != 0
    }

    /// Asks worker `id`, or the last one, to leave its slot, or to park there. Returns its slot.
    ///
    /// # Errors
    /// If there is no such worker, or it is the last.
    pub fn ask_to_leave(&self, id: Option<usize>, park: bool) -> Result<usize, ReplicaSlotError> {
        let table = self.lock();
        let staying = self.staying();
        let last = (staying != 0).then(|| staying.ilog2() as usize);
        let id = id.or(last).ok_or(ReplicaSlotError::NoReplicaLeft)?;
        if id >= table.slots.len() || staying >> id & 1 == 0 {
            return Err(ReplicaSlotError::NoSuchReplica);
        }
        if staying.count_ones() == 1 {
            return Err(ReplicaSlotError::LastReplica);
        }
        if park {
            self.table.request_park(id);
        }
        self.table.request_leave(id);
        Ok(id)
    }

    /// Ends worker `id`'s use of its slot, and counts that by the worker's state:
    ///
    /// - [`Gone`](WorkerState::Gone): it left on request.
    /// - [`Active`](WorkerState::Active), [`Leaving`](WorkerState::Leaving): it failed.
    /// - [`Joining`](WorkerState::Joining), [`JoinCheck`](WorkerState::JoinCheck): its join is
    ///   cancelled, which is not counted.
    /// - [`Parked`](WorkerState::Parked): it parks, and keeps the slot.
    /// - [`Diverged`](WorkerState::Diverged): it waits for a snapshot, in the same slot.
    ///
    /// The worker must have released the units that it had begun.
    pub fn release(&self, id: usize, state: WorkerState) {
        let mut table = self.lock();
        // These workers have no vote, so the others still differ.
        table.is_undecided &= matches!(state, WorkerState::Joining | WorkerState::JoinCheck);
        self.deactivate(id);
        let unused = mem::replace(&mut table.slots[id], ReplicaSlot::Free);
        self.end_join(id);
        match state {
            WorkerState::Gone => table.stats.left += 1,
            WorkerState::Active | WorkerState::Leaving(_) => table.stats.failed += 1,
            WorkerState::Joining | WorkerState::JoinCheck => self.set_parked(id, false),
            WorkerState::Parked => {
                table.stats.parked += 1;
                table.slots[id] = ReplicaSlot::Parked;
                self.set_parked(id, true);
            }
            WorkerState::Diverged(from) => {
                table.slots[id] = ReplicaSlot::AwaitsSnapshot(from);
                self.begin_join(id);
                self.notify(from);
            }
        }
        drop(table);
        // Drops an unused snapshot, which would hold the log.
        drop(unused);
    }

    /// Counts that replicas differ without a majority. Counts it only once until an active worker
    /// leaves, parks or fails; returns whether it counted.
    pub fn count_undecided(&self) -> bool {
        let mut table = self.lock();
        let is_new = !mem::replace(&mut table.is_undecided, true);
        table.stats.undecided += u64::from(is_new);
        is_new
    }

    /// Skips the check of the state that worker `id` was given: its slot is active from now on. The
    /// worker must call [`activate`](MembershipTable::activate).
    pub fn skip_check(&self, id: usize) {
        self.lock().slots[id] = ReplicaSlot::Active;
    }

    /// Gives snapshots to workers that wait for one, and attests to snapshots of others. Worker
    /// `id` calls this at `position` of the log, between two of its steps. Does nothing if the
    /// table is locked at this moment. `snapshot` returns `None` if it cannot give one now.
    pub fn serve_joiners<C>(
        &self,
        id: usize,
        position: Seq,
        worker: &mut C,
        snapshot: impl Fn(&mut C) -> Option<R>,
        fingerprint: impl Fn(&C) -> u64,
    ) -> JoinersServed {
        let mut served = JoinersServed {
            gave: false,
            is_waiting: true,
        };
        let Some(mut table) = self.try_lock() else {
            return served;
        };
        served.is_waiting = false;
        for slot in &mut table.slots {
            match slot {
                ReplicaSlot::AwaitsSnapshot(from) if *from >> id & 1 != 0 => match snapshot(worker)
                {
                    Some(snapshot) => {
                        let check = JoinCheck::new(id, self.since(id), position, snapshot);
                        *slot = ReplicaSlot::JoinCheck(Box::new(check));
                        served.gave = true;
                    }
                    None => served.is_waiting = true,
                },
                ReplicaSlot::JoinCheck(check) => {
                    served.is_waiting |= !check.attest(id, position, || fingerprint(worker));
                }
                _ => {}
            }
        }
        drop(table);
        if served.gave {
            self.notify(self.active() & !(1 << id));
        }
        served
    }

    /// Continues the join check of worker `id`, which is at `position` of the log. `review` may
    /// change the result; it is called under the lock of the table.
    ///
    /// After [`Passed`](CheckResult::Passed) and [`Undecided`](CheckResult::Undecided) the worker
    /// [activates](MembershipTable::activate) its slot. After [`Failed`](CheckResult::Failed) it
    /// drops the state, and waits for another snapshot. Returns `None` without a check in progress.
    pub fn check_join(
        &self,
        id: usize,
        position: Seq,
        fingerprint: impl FnOnce() -> u64,
        review: impl FnOnce(CheckResult) -> CheckResult,
    ) -> Option<CheckResult> {
        let mut table = self.lock();
        let active = self.active();
        let ReplicaSlot::JoinCheck(check) = &mut table.slots[id] else {
            return None;
        };
        let source = check.source();
        let is_gone = !check.source_stays(self, active);
        let result = match is_gone && active != 0 {
            // The source may have been found to differ.
            true => CheckResult::Failed,
            false => check.evaluate(position, fingerprint, active),
        };
        let result = review(result);
        let differ = check.differ() & active;
        match result {
            CheckResult::Passed | CheckResult::Undecided => table.slots[id] = ReplicaSlot::Active,
            CheckResult::Failed => {
                let from = match is_gone {
                    true => active,
                    false => active & !(1 << source),
                };
                table.slots[id] = ReplicaSlot::AwaitsSnapshot(from);
            }
            CheckResult::ContinueTo(_) | CheckResult::Open => {}
        }
        drop(table);
        match result {
            // These workers may be the wrong ones. They compare their states themselves.
            CheckResult::Passed if differ != 0 => self.report_divergence(differ),
            CheckResult::Undecided => drop(self.count_undecided()),
            CheckResult::Failed => {
                if !is_gone {
                    self.report_divergence(1 << source);
                }
                self.notify(active);
            }
            // Another worker may be far enough to attest by now.
            CheckResult::Open => self.notify(active & !(1 << source)),
            CheckResult::Passed | CheckResult::ContinueTo(_) => {}
        }
        Some(result)
    }
}

impl<R> fmt::Debug for Membership<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}
