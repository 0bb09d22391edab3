//! The parts of [`ReplicatedWorker::work`], one by one, so that each can be measured.

use super::{MOST_APPLIED, ReplicatedWorker};
use crate::group::FaultHooks;

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Reads how far the log is published, and prepares this worker's requests. Returns how many.
    pub fn prepare_ahead(&mut self) -> usize {
        self.log.poll();
        self.prepare_mine()
    }

    /// Applies the ready prefix of the log, as far as one turn does. Returns how many requests.
    pub fn apply_all(&mut self) -> usize {
        self.apply_ready(MOST_APPLIED)
    }

    /// Whether it and `other` posted equal fingerprints wherever both posted since `from`.
    pub(crate) fn posted_alike(&self, other: &ReplicatedWorker<T>, from: u64) -> bool {
        let posts = &self.shared.posts;
        let own = posts.all(self.id).into_iter();
        let mut own = own.filter(|(position, _)| *position >= from);
        own.all(|(position, fingerprint)| {
            let theirs = posts.at(other.id, position);
            theirs.is_none_or(|theirs| theirs == fingerprint)
        })
    }

    /// The position of the snapshot that the worker began with. Fingerprints that it posts after
    /// that position count when replicas differ.
    pub fn since(&self) -> u64 {
        self.shared.membership.since(self.id)
    }

    /// Performs all effects whose primary this worker is. Returns how many.
    pub fn perform_all(&mut self) -> usize {
        self.perform_mine(u32::MAX, usize::MAX)
    }
}
