//! The join check: whether a state that one worker gives to another is correct.
//!
//! A replica's state may be corrupt without having been found yet. If the replica gives this state
//! away, two replicas have it, and soon they are the majority. So with three or more replicas, a
//! joiner's state counts only when more than half of the replicas have it, including its source.
//! They do not stop for the check. Each worker at the joiner's position or later attests to its
//! state: it records a fingerprint of the whole state, with its position, in the slot table. The
//! joiner, whose reader holds the log, applies requests up to that position and compares. Until
//! then it performs nothing, gives its state to no other worker, and has no vote.
//!
//! A source that is gone, or whose slot has another worker, may have been found to be wrong. Then
//! the joiner refuses its snapshot, and gets one from another worker.
//!
//! With two replicas there is no majority, and the joiner accepts any snapshot.

use super::membership::MembershipTable;
use crate::Seq;

/// A worker's statement about its state at a position.
struct Attestation {
    id: usize,
    position: Seq,
    fingerprint: u64,
}

/// A snapshot, and the attestations of the other workers.
pub(super) struct JoinCheck<R> {
    /// `None` once the joiner has it.
    snapshot: Option<R>,
    source: usize,
    /// The position at which the source became active: its slot may have another worker by now.
    source_since: Seq,
    /// The position that the joiner has, or applies up to: earlier attestations come too late.
    position: Seq,
    /// The workers that have attested.
    attested: u64,
    /// The attestations that are not compared yet.
    attestations: Vec<Attestation>,
    /// The workers that have an equal state, including the source, and the workers that have a
    /// different one.
    agree: u64,
    differ: u64,
}

/// The result of a join check so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// More than half of the active workers have the state.
    Passed,
    /// More than half of them have a different one, or the source is gone.
    Failed,
    /// There is no majority.
    Undecided,
    /// Another worker attested at this position, up to which the joiner has to apply.
    ContinueTo(Seq),
    /// Not enough workers have attested.
    Open,
}

impl<R> JoinCheck<R> {
    pub(super) fn new(source: usize, source_since: Seq, position: Seq, snapshot: R) -> Self {
        JoinCheck {
            source,
            source_since,
            position,
            snapshot: Some(snapshot),
            attested: 1 << source,
            attestations: Vec::new(),
            agree: 1 << source,
            differ: 0,
        }
    }

    pub(super) fn take_snapshot(&mut self) -> Option<R> {
        self.snapshot.take()
    }

    pub(super) fn source(&self) -> usize {
        self.source
    }

    pub(super) fn differ(&self) -> u64 {
        self.differ
    }

    /// Whether the source has been active since it gave the snapshot.
    pub(super) fn source_stays(&self, table: &MembershipTable, active: u64) -> bool {
        active >> self.source & 1 != 0 && table.since(self.source) == self.source_since
    }

    /// Lets worker `id`, which is at `position`, attest to its state. Returns false if it must
    /// first reach a later position.
    pub(super) fn attest(
        &mut self,
        id: usize,
        position: Seq,
        fingerprint: impl FnOnce() -> u64,
    ) -> bool {
        if self.attested >> id & 1 != 0 {
            return true;
        }
        if position < self.position {
            return false;
        }
        self.attested |= 1 << id;
        self.attestations.push(Attestation {
            id,
            position,
            fingerprint: fingerprint(),
        });
        true
    }

    /// Compares the attestations at the joiner's position with its state. Only `active` workers
    /// count.
    pub(super) fn evaluate(
        &mut self,
        position: Seq,
        fingerprint: impl FnOnce() -> u64,
        active: u64,
    ) -> CheckResult {
        self.position = position;
        let here = |attestation: &Attestation| attestation.position == position;
        if self.attestations.iter().any(here) {
            let fingerprint = fingerprint();
            for attestation in self.attestations.iter().filter(|one| here(one)) {
                match attestation.fingerprint == fingerprint {
                    true => self.agree |= 1 << attestation.id,
                    false => self.differ |= 1 << attestation.id,
                }
            }
            self.attestations.retain(|attestation| !here(attestation));
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
        let positions = self.attestations.iter().map(|one| one.position);
        let Some(next) = positions.min() else {
            return CheckResult::Open;
        };
        self.position = next;
        CheckResult::ContinueTo(next)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_state_passes_when_more_than_half_have_it_and_half_of_them_are_not_enough() {
        let (joiner, other) = (|| 7, || 8);
        // The source has the joiner's state.
        let split = |voters: usize| {
            (1..=voters)
                .flat_map(move |agree| (0..=voters - agree).map(move |wrong| (agree, wrong)))
        };
        for voters in 1..=6 {
            for (agree, differ) in split(voters) {
                let mut check = JoinCheck::new(0, 0, 5, ());
                for id in 1..agree + differ {
                    let theirs = if id < agree { joiner } else { other };
                    assert!(!check.attest(id, 4, theirs), "it is behind the joiner");
                    assert!(check.attest(id, 5, theirs));
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
                let found = check.evaluate(5, joiner, (1 << voters) - 1);
                assert!(found == expected, "{agree} and {differ} of {voters}");
            }
        }
    }

    #[test]
    fn a_joiner_goes_on_to_the_first_position_that_another_worker_attested_to() {
        let mut check = JoinCheck::new(0, 0, 5, ());
        assert!(check.attest(2, 9, || 2) && check.attest(1, 7, || 1));
        let active = 0b111;
        let found = check.evaluate(5, || unreachable!("none attested at 5"), active);
        assert_eq!(found, CheckResult::ContinueTo(7));
        assert!(!check.attest(3, 6, || 1), "the joiner is on its way to 7");
        assert_eq!(check.evaluate(7, || 1, active), CheckResult::Passed);
    }
}
