//! Divergence: finds which replicas are right when they differ, and replaces the others.
//!
//! Replicas post fingerprints of their states at equal positions, and
//! [`Fingerprints::agreement`](dominoes::Fingerprints::agreement) decides which of them are right.
//! A worker that is reported as diverged checks the report, gives up its slot, drops its state, and
//! joins again with a copy from the majority. If every replica of the majority is gone, the state
//! is lost and the stack shuts down (`tests/flips/last.rs`). Without a majority, as with two
//! replicas, the group counts the difference,
//! [`ReplicatedGroup::compare`](crate::group::ReplicatedGroup::compare) returns it, and all
//! replicas continue.
//!
//! By default, the next posted fingerprint reveals a changed state; effects that the replica
//! performed before that are done, and may be wrong. With
//! [`Layout::confirm`](crate::group::Layout), replicas post a fingerprint of the state and the
//! request's effects at every position, and a worker performs an effect only once a majority
//! agrees. Then a changed state cannot affect the network or an application. In return, workers
//! wait for a majority, and each replica computes a fingerprint per request.
//!
//! # What a fingerprint covers
//!
//! Every struct of a connection lists its fields once ([`fields`](crate::tcp::fields)), and the
//! fingerprint is computed from that list. A posted fingerprint covers two connections entirely
//! (the last one touched, and all others in turn), and the sequence numbers of every connection
//! that a request touched. So with a post every E positions and P places, a change shows after at
//! most E times P positions, unless it was overwritten before. P is the highest number of
//! connections that were open at one time, not `Limits::connections`. `tests/flips/bits.rs` flips
//! bits and checks that bound. A change in an idle connection is found when that connection's turn
//! comes.
//!
//! State outside every fingerprint follows from state inside: the table of flows and the heap of
//! deadlines follow from the places; address, keys and counters follow from the log. `limits` never
//! changes.
//!
//! Posts of a worker that left, failed or diverged still count. Otherwise a slow worker could find
//! itself one of two voters at a position where a majority had already agreed.

use dominoes::Seq;
use dominoes::group::{Agreement, WorkerState};

use super::membership::Snapshot;
use super::pending::{Cursor, PendingEffects};
use super::worker::ReplicatedWorker;
use crate::group::{FaultHooks, ReplicatedShared};
use crate::state::apply::ReplicaState;

impl ReplicatedShared {
    /// Posts the fingerprint of worker `id` at `position`, if one is due.
    #[inline(always)]
    pub(super) fn post_if_due(&self, (id, position): (usize, Seq), replica: &ReplicaState) {
        if self.posts.is_due(position) {
            self.post(id, position, replica.post(position / self.posts.every()));
        }
    }

    /// Posts the fingerprint of worker `id` at `position`, and compares it.
    #[inline(never)]
    pub(crate) fn post(&self, id: usize, position: Seq, fingerprint: u64) {
        self.posts.post(id, position, fingerprint);
        self.compare_at(position);
    }

    /// Compares the fingerprints at `position`, after the caller has posted its own.
    #[cold]
    pub(crate) fn compare_at(&self, position: Seq) {
        let membership = &self.membership;
        match self.posts.agreement(membership, position) {
            Agreement::Majority { wrong, .. } if wrong != 0 => {
                membership.report_divergence(wrong);
                self.world.skip_missing_connections();
                self.wake_workers();
            }
            Agreement::Undecided if membership.voters(position) != 0 => {
                membership.count_undecided();
                self.world.skip_missing_connections();
            }
            _ => {}
        }
    }
}

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Checks a report that this worker diverged, and gives up its state if that is so. Returns
    /// whether it diverged.
    pub(crate) fn leave_if_diverged(&mut self) -> bool {
        let ReplicatedShared {
            membership, posts, ..
        } = &*self.shared;
        let Some((right, first_wrong)) = posts.majority_against(membership, self.id) else {
            return false;
        };
        if matches!(self.state, WorkerState::Leaving(_)) && membership.try_leave(self.id) {
            self.state = WorkerState::Gone;
            return true;
        }
        let diverged = WorkerState::Diverged(right);
        (self.state, self.joined_from) = (WorkerState::Joining, diverged);
        let first = self.share.cursor.seq;
        self.pending = PendingEffects::from(first);
        self.share.cursor = Cursor::at_first(&self.pending);
        // Its posts before that position still count.
        self.shared.posts.forget_from(self.id, first_wrong);
        self.shared.release_slot(self.id, diverged);
        self.shared.world.skip_missing_connections();
        true
    }

    pub(super) fn confirm(&mut self) {
        self.confirm_to(self.replica.position());
    }

    /// Raises the confirmed position as far as a majority agrees with this worker, but not beyond
    /// `position`.
    #[cold]
    fn confirm_to(&mut self, position: Seq) {
        let me = 1u64 << self.id;
        while self.confirmed < position {
            match self.agreement_at(self.confirmed + 1) {
                Agreement::Majority { right, .. } if right & me != 0 => {}
                Agreement::Majority { .. } => {
                    self.shared.membership.report_divergence(me);
                    break;
                }
                Agreement::Open => break,
                // There is no majority: that was counted, and all replicas continue.
                Agreement::Undecided => {}
            }
            self.confirmed += 1;
        }
    }

    fn agreement_at(&self, position: Seq) -> Agreement {
        let shared = &self.shared;
        shared.posts.agreement(&shared.membership, position)
    }

    /// The state and position from which another worker can continue. `None` if the log has no room
    /// for another subscription, or if a majority must confirm this worker's state first.
    pub(crate) fn snapshot(&mut self) -> Option<Snapshot> {
        if self.perform_limit() < self.replica.position() {
            return None;
        }
        let log = self.log.fork().ok()?;
        debug_assert_eq!(log.position(), self.replica.position(), "between two steps");
        Some(Snapshot {
            replica: self.replica.clone(),
            log,
            pending: self.pending.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use dominoes_drivers::memory::{MemoryConfig, pair};

    use super::*;
    use crate::drive::Worker as _;
    use crate::group::{GroupTuning, Layout, ReplicatedGroup};
    use crate::io::setup::Setup;

    fn group(replicas: usize) -> ReplicatedGroup {
        let (device, _) = pair(MemoryConfig::default());
        let layout = Layout::default()
            .replicas(replicas)
            .tuning(GroupTuning::default().fingerprint_every(1));
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        ReplicatedGroup::new(setup, layout, Box::new(device)).unwrap()
    }

    #[test]
    fn those_that_differ_from_more_than_half_of_the_voters_are_reported() {
        for voters in 1..=6 {
            let group = group(voters);
            let shared = group.shared();
            for (alike, others) in (0..=voters).flat_map(|a| (0..=voters - a).map(move |o| (a, o)))
            {
                for id in 0..voters {
                    shared.posts.forget(id);
                }
                (0..alike).for_each(|id| shared.posts.post(id, 1, 7));
                (alike..alike + others).for_each(|id| shared.posts.post(id, 1, 8));
                shared.compare_at(1);
                for id in 0..voters {
                    let is_wrong = match id < alike {
                        true => others > voters / 2,
                        false => id < alike + others && alike > voters / 2,
                    };
                    let reported = shared.membership.take_divergence_report(id);
                    assert_eq!(reported, is_wrong, "{alike} and {others} of {voters}: {id}");
                }
            }
        }
    }

    #[test]
    fn a_worker_that_differs_from_the_majority_confirms_nothing_and_one_that_agrees_does() {
        let (device, _) = pair(MemoryConfig::default());
        let layout = Layout::default().replicas(3).confirm(true);
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let mut group = ReplicatedGroup::new(setup, layout, Box::new(device)).unwrap();
        let now = crate::time::Instant::from_millis(1);
        while group.workers()[0].replica().position() == 0 {
            group.workers()[0].turn(now);
        }
        let position = group.workers()[0].replica().position();
        for id in 1..3 {
            while group.workers()[id].replica().position() < position {
                group.workers()[id].turn(now);
            }
        }
        let shared = std::sync::Arc::clone(group.shared());
        // Two workers post equal values at the next position; the third posts another value.
        let next = position + 1;
        for (id, print) in [7, 7, 8].into_iter().enumerate() {
            shared.posts.post(id, next, print);
        }
        for (id, confirms) in [true, true, false].into_iter().enumerate() {
            let worker = &mut group.workers()[id];
            worker.confirmed = position;
            worker.confirm_to(next);
            assert_eq!(worker.confirmed == next, confirms, "worker {id}");
            assert_eq!(
                shared.membership.take_divergence_report(id),
                !confirms,
                "worker {id}"
            );
        }
    }

    #[test]
    fn of_two_and_of_four_that_are_split_in_halves_all_are_counted_and_none_is_reported() {
        for voters in [2, 4] {
            let group = group(voters);
            let shared = group.shared();
            (0..voters).for_each(|id| shared.posts.post(id, 1, (id % 2) as u64));
            let is_undecided =
                shared.posts.agreement(&shared.membership, 1) == Agreement::Undecided;
            assert!(is_undecided, "{voters}");
            shared.compare_at(1);
            assert!(!(0..voters).any(|id| shared.membership.take_divergence_report(id)));
            assert_eq!(
                shared.posts.agrees_with_majority(&shared.membership, 1, 0),
                None
            );
            assert_eq!(shared.posts.majority_against(&shared.membership, 0), None);
        }
    }
}
