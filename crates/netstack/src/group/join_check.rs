//! The join check of a worker: whether the state that it was given is right.
//!
//! [`Membership::check_join`](dominoes::group::Membership::check_join) compares it with what the
//! other workers attest. The joiner, whose reader holds the log, applies requests up to the
//! positions of their attestations. Until the check is over it performs nothing, gives its state to
//! no other worker, and has no vote.
//!
//! With [`Layout::confirm`](crate::group::Layout), what the joiner computed on the way must be what
//! the majority posted there, since it is going to perform it. The source's pending effects are
//! handed over as they are: only [`Layout::confirm`](crate::group::Layout) checks them.

use std::sync::Arc;

use dominoes::group::{CheckResult, WorkerState};

use super::pending::{Cursor, PendingEffects};
use super::worker::ReplicatedWorker;
use crate::group::FaultHooks;

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
