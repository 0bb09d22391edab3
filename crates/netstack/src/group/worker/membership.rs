//! How a worker joins its group, is parked (loses its share and its replica), and leaves.

use std::sync::Arc;

use dominoes::group::WorkerState;

use super::ReplicatedWorker;
use crate::group::pending::Cursor;
use crate::group::slots::Snapshot;
use crate::group::steal::Stragglers;
use crate::group::{FaultHooks, ReplicatedShared};
use crate::time::Instant;

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
    pub(super) fn handle_notification(&mut self) -> bool {
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
