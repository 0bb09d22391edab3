//! The join check: whether a state that one worker gives to another is right.
//!
//! A replica's state may have been changed behind its back, and not have been found yet: a posted
//! fingerprint covers two connections at a time. If it gives its state away, two replicas have it,
//! and before long they are the majority. So where there are three or more replicas, a state counts
//! only when more than half of them have it, its source among them. They do not stop for that. Each
//! worker that is not behind the joiner attests to its state: it records a fingerprint of its whole
//! state, with its position, in the slot table. The joiner, whose reader holds the log, goes on to
//! that position and compares. Until then it performs nothing, gives its state to no other worker,
//! and has no vote.
//!
//! With [`Layout::confirm`](crate::group::Layout), what the joiner computed on the way must be what
//! the majority posted there, since it is going to perform it.
//!
//! If the source is gone, or another worker has its slot, it may have been found to be wrong. Then
//! its snapshot is refused, and another worker is asked.
//!
//! With two replicas there is no majority, and the joiner takes what it gets. The source's pending
//! effects are handed over as they are: only [`Layout::confirm`](crate::group::Layout) checks them.

use std::sync::Arc;

use dominoes::Seq;

use super::pending::{Cursor, PendingEffects};
use super::slots::{Slot, Snapshot};
use super::worker::{Worker, WorkerState};
use crate::group::FaultHooks;
use crate::state::apply::Replica;

/// A worker's statement about its state at a position.
struct Attestation {
    id: usize,
    position: Seq,
    fingerprint: u64,
}

/// A snapshot, and what the other workers attest.
pub(crate) struct JoinCheck {
    /// `None` once the joiner has it.
    snapshot: Option<Snapshot>,
    source: usize,
    /// Where the source's own state began: its slot may have another worker by now.
    source_since: Seq,
    /// The joiner's position.
    position: Seq,
    /// The workers that have attested.
    attested: u64,
    /// The attestations that are not compared yet.
    attestations: Vec<Attestation>,
    /// The workers that have the same state, the source among them, and the workers that have
    /// another one.
    agree: u64,
    differ: u64,
}

/// The result of a join check so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckResult {
    Passed,
    Failed,
    /// There is no majority.
    Undecided,
    /// Another worker attested at this position.
    ContinueTo(Seq),
    Open,
}

impl JoinCheck {
    pub(crate) fn new(source: usize, source_since: Seq, snapshot: Snapshot) -> Self {
        JoinCheck {
            source,
            source_since,
            position: snapshot.replica.position(),
            snapshot: Some(snapshot),
            attested: 1 << source,
            attestations: Vec::new(),
            agree: 1 << source,
            differ: 0,
        }
    }

    pub(crate) fn take_snapshot(&mut self) -> Option<Snapshot> {
        self.snapshot.take()
    }

    /// Worker `id` attests to its state. Returns false if it has not come far enough.
    pub(crate) fn attest(&mut self, id: usize, replica: &Replica) -> bool {
        if self.attested >> id & 1 != 0 {
            return true;
        }
        let position = replica.position();
        if position < self.position {
            return false;
        }
        let fingerprint = replica.whole_fingerprint();
        self.attested |= 1 << id;
        self.attestations.push(Attestation {
            id,
            position,
            fingerprint,
        });
        true
    }

    /// Compares the attestations at the joiner's position with its state. Only `active` workers
    /// count.
    fn evaluate(&mut self, joiner: &Replica, active: u64) -> CheckResult {
        self.position = joiner.position();
        let here = |attestation: &Attestation| attestation.position == self.position;
        if self.attestations.iter().any(here) {
            let fingerprint = joiner.whole_fingerprint();
            for attestation in self
                .attestations
                .iter()
                .filter(|attestation| here(attestation))
            {
                let mask = if attestation.fingerprint == fingerprint {
                    &mut self.agree
                } else {
                    &mut self.differ
                };
                *mask |= 1 << attestation.id;
            }
            let position = self.position;
            self.attestations
                .retain(|attestation| attestation.position != position);
        }
        let voters = active.count_ones();
        let count = |mask: u64| (mask & active).count_ones();
        if 2 * count(self.agree) > voters || voters < 3 && count(self.differ) == 0 {
            return CheckResult::Passed;
        }
        if 2 * count(self.differ) > voters {
            return CheckResult::Failed;
        }
        if voters < 3 || active & !(self.agree | self.differ) == 0 {
            return CheckResult::Undecided;
        }
        let next = self
            .attestations
            .iter()
            .map(|attestation| attestation.position)
            .min();
        next.map_or(CheckResult::Open, CheckResult::ContinueTo)
    }
}

impl<T: FaultHooks> Worker<T> {
    /// Goes on until the join check has a result. Returns whether the worker is active from now on.
    pub(crate) fn run_join_check(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        loop {
            let mut table = shared.slots.lock();
            let active = shared.membership.active();
            let Slot::JoinCheck(check) = &mut table.slots[self.id] else {
                return false;
            };
            let source = check.source;
            let is_gone =
                active >> source & 1 == 0 || shared.membership.since(source) != check.source_since;
            let mut result = match is_gone && active != 0 {
                // Its source may have been found to differ.
                true => CheckResult::Failed,
                false => check.evaluate(&self.replica, active),
            };
            if result == CheckResult::Passed && shared.layout.confirm {
                let on_the_way = self.unposted.iter();
                let on_the_way = on_the_way
                    .map(|(position, print)| shared.agrees_with_majority(*position, *print));
                result = on_the_way.fold(result, |result, is_right| match is_right {
                    Some(true) => result,
                    Some(false) => CheckResult::Failed,
                    None if result == CheckResult::Passed => CheckResult::Open,
                    None => result,
                });
            }
            let differ = check.differ & active;
            match result {
                CheckResult::Passed | CheckResult::Undecided => table.slots[self.id] = Slot::Active,
                CheckResult::Failed => {
                    let from = if is_gone {
                        active
                    } else {
                        active & !(1 << source)
                    };
                    table.slots[self.id] = Slot::AwaitsSnapshot(from);
                }
                CheckResult::ContinueTo(_) | CheckResult::Open => {}
            }
            drop(table);
            match result {
                CheckResult::Passed => {
                    if differ != 0 {
                        // These workers may be wrong instead. They check that themselves.
                        shared.membership.report_divergence(differ);
                    }
                    self.activate();
                    return true;
                }
                CheckResult::Undecided => {
                    shared.count_undecided();
                    self.activate();
                    return true;
                }
                CheckResult::Failed => {
                    if !is_gone {
                        shared.membership.report_divergence(1 << source);
                    }
                    self.pending = PendingEffects::from(self.replica.position());
                    self.cursor = Cursor::at_first(&self.pending);
                    self.state = WorkerState::Joining;
                    shared.notify(active);
                    return false;
                }
                CheckResult::ContinueTo(position) => {
                    self.log.poll();
                    while self.replica.position() < position {
                        if !self.apply_one() {
                            return false;
                        }
                    }
                    self.log.advance_to(self.replica.position());
                }
                CheckResult::Open => {
                    // Another worker may be able to attest by now.
                    shared.membership.notify(active & !(1 << source));
                    return false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limits;
    use crate::log::request::Request;
    use crate::time::Instant;

    /// A replica that was given a time.
    fn replica_at(limits: Limits, millis: u64) -> Replica {
        let mut replica = Replica::new(limits);
        let tick = Request::tick(Instant::from_millis(millis), 0);
        replica.apply(&tick, 0, &mut Vec::new());
        replica
    }

    #[test]
    fn a_state_passes_when_more_than_half_have_it_and_half_of_them_are_not_enough() {
        let limits = Limits::default();
        let (joiner, other) = (replica_at(limits, 1), replica_at(limits, 2));
        assert_ne!(joiner.whole_fingerprint(), other.whole_fingerprint());
        // The source has it.
        let split = |voters: usize| {
            (1..=voters)
                .flat_map(move |agree| (0..=voters - agree).map(move |wrong| (agree, wrong)))
        };
        for voters in 1..=6 {
            for (agree, differ) in split(voters) {
                let mut check = JoinCheck::new(0, 0, Snapshot::none(limits));
                for id in 1..agree + differ {
                    let theirs = if id < agree { &joiner } else { &other };
                    assert!(check.attest(id, theirs));
                }
                // With two replicas no other worker can attest, so a state that no worker
                // contradicts is taken.
                let expected = if agree > voters / 2 || voters < 3 && differ == 0 {
                    CheckResult::Passed
                } else if differ > voters / 2 {
                    CheckResult::Failed
                } else if voters < 3 || agree + differ == voters {
                    CheckResult::Undecided
                } else {
                    CheckResult::Open
                };
                let found = check.evaluate(&joiner, (1 << voters) - 1);
                assert!(found == expected, "{agree} and {differ} of {voters}");
            }
        }
    }
}
