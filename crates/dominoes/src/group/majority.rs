//! Compares fingerprints of replicated state at equal positions, to find which replicas are
//! right.
//!
//! A fault can change a replica's state: a bit of memory that flips, or a bug that only one
//! machine shows. Replicas post fingerprints of their states at equal positions. A worker that
//! posts compares the posts of all others at that position, so the last one sees all of them. A
//! value that more than half of the *voters* posted is right. Voters are the active workers that
//! computed their state at the position themselves, rather than taking over a later snapshot,
//! and the workers that posted there and have left since. A decision does not change when
//! workers leave later. The other workers are reported as diverged. A reported worker checks
//! that itself, drops its state, and joins again with a copy from the majority. Without a
//! majority, as with two replicas, the difference is counted, and all continue.

use super::membership::{MembershipTable, replicas};
use crate::{
    Seq,
    sync::{AtomicU64, LOAD_BEFORE_FENCE, Ordering, STORE_AFTER_FENCE, fence},
};
use crossbeam_utils::CachePadded;
use std::{error::Error, fmt};

/// Each replica posts a fingerprint of its state every `every` positions; any thread compares
/// posts at equal positions.
///
/// Posting is wait-free and slows no other thread: each replica writes to its own small ring.
/// Comparing reads all rings and skips posts that are being overwritten.
///
/// ```
/// let fingerprints = dominoes::Fingerprints::new(2, 4, 100);
/// fingerprints.post(0, 100, 0xfeed);
/// fingerprints.post(1, 100, 0xfeed);
/// assert_eq!(fingerprints.compare(), Ok(1));
/// fingerprints.post(0, 200, 0xbeef);
/// fingerprints.post(1, 200, 0xdead);
/// assert_eq!(fingerprints.compare().unwrap_err().position, 200);
/// ```
pub struct Fingerprints {
    every: u64,
    /// The largest power of two that divides `every`, less one.
    low_bits: u64,
    rings: Box<[CachePadded<Box<[Post]>>]>,
}

/// A fingerprint and its position plus one; 0 means none, or one that is being written.
struct Post {
    position: AtomicU64,
    fingerprint: AtomicU64,
}

/// Two replicas posted different fingerprints for one position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The position: the state after all entries below it.
    pub position: Seq,
    /// The replicas that posted there, with their fingerprints.
    pub fingerprints: Vec<(usize, u64)>,
}

impl Mismatch {
    /// The replicas that differ from the majority; `None` if there is no majority.
    pub fn minority(&self) -> Option<Vec<usize>> {
        let votes = |of: u64| {
            self.fingerprints
                .iter()
                .filter(|(_, fingerprint)| *fingerprint == of)
                .count()
        };
        let (_, right) = *self
            .fingerprints
            .iter()
            .find(|(_, f)| votes(*f) * 2 > self.fingerprints.len())?;
        Some(
            self.fingerprints
                .iter()
                .filter(|(_, f)| *f != right)
                .map(|(replica, _)| *replica)
                .collect(),
        )
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replicas differ at position {}:", self.position)?;
        for (replica, fingerprint) in &self.fingerprints {
            write!(f, " {replica}: {fingerprint:#018x}")?;
        }
        Ok(())
    }
}

impl Error for Mismatch {}

impl Fingerprints {
    /// Room for the last `depth` fingerprints of each of `replicas`, posted every `every`
    /// positions.
    ///
    /// # Panics
    /// If `depth` or `every` is 0.
    pub fn new(replicas: usize, depth: usize, every: u64) -> Self {
        assert!(
            depth > 0 && every > 0,
            "fingerprints need a depth and a distance"
        );
        let post = || Post {
            position: AtomicU64::new(0),
            fingerprint: AtomicU64::new(0),
        };
        let ring = || CachePadded::new((0..depth).map(|_| post()).collect());
        Fingerprints {
            every,
            low_bits: (1 << every.trailing_zeros()) - 1,
            rings: (0..replicas).map(|_| ring()).collect(),
        }
    }

    /// The distance between posts.
    pub fn every(&self) -> u64 {
        self.every
    }

    /// Whether a fingerprint is due at `position`.
    #[inline]
    pub fn is_due(&self, position: Seq) -> bool {
        // The division takes long, and is seldom needed.
        position & self.low_bits == 0 && position.is_multiple_of(self.every)
    }

    /// Posts the fingerprint of the state of `replica` after all entries below `position`.
    /// Positions that are not a multiple of [`every`](Self::every) are ignored. Only one thread at
    /// a time posts for a replica.
    ///
    /// # Panics
    /// If there is no such replica.
    pub fn post(&self, replica: usize, position: Seq, fingerprint: u64) {
        let ring = &self.rings[replica];
        if !self.is_due(position) {
            return;
        }
        let post = &ring[(position / self.every % ring.len() as u64) as usize];
        post.position.store(0, Ordering::Relaxed);
        // ORDERING: Release fence, pairs with the Acquire fence in `read`: a reader of the new
        // fingerprint then finds the old position gone.
        fence(Ordering::Release);
        post.fingerprint.store(fingerprint, STORE_AFTER_FENCE);
        // ORDERING: Release, pairs with the Acquire load in `read`: the fingerprint belongs to the
        // position.
        post.position.store(position + 1, Ordering::Release);
    }

    /// Position and fingerprint, if they belong together.
    fn read(post: &Post) -> Option<(Seq, u64)> {
        // ORDERING: Acquire, pairs with the Release store in `post`.
        let position = post.position.load(Ordering::Acquire);
        let fingerprint = post.fingerprint.load(LOAD_BEFORE_FENCE);
        // ORDERING: Acquire fence, pairs with the Release fence in `post`.
        fence(Ordering::Acquire);
        (position != 0 && post.position.load(Ordering::Relaxed) == position)
            .then(|| (position - 1, fingerprint))
    }

    /// The fingerprint of `replica` at `position`, if it is still stored.
    ///
    /// # Panics
    /// If there is no such replica.
    pub fn at(&self, replica: usize, position: Seq) -> Option<u64> {
        let ring = &self.rings[replica];
        let post = &ring[(position / self.every % ring.len() as u64) as usize];
        Self::read(post)
            .filter(|(found, _)| *found == position)
            .map(|(_, print)| print)
    }

    /// All posts of `replica` that are still stored, in no order.
    ///
    /// # Panics
    /// If there is no such replica.
    pub fn all(&self, replica: usize) -> Vec<(Seq, u64)> {
        self.rings[replica].iter().filter_map(Self::read).collect()
    }

    /// Forgets the posts of `replica`, which left or was replaced.
    pub fn forget(&self, replica: usize) {
        for post in self.rings[replica].iter() {
            post.position.store(0, Ordering::Relaxed);
        }
    }

    /// Forgets the posts of `replica` at `position` and later.
    ///
    /// # Panics
    /// If there is no such replica.
    pub fn forget_from(&self, replica: usize, position: Seq) {
        for post in self.rings[replica].iter() {
            if Self::read(post).is_none_or(|(found, _)| found >= position) {
                post.position.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Compares all stored posts. Returns how many positions were found in at least two
    /// replicas, all equal.
    ///
    /// # Errors
    /// The earliest position at which replicas differ.
    pub fn compare(&self) -> Result<usize, Mismatch> {
        let mut posts: Vec<(Seq, usize, u64)> = Vec::new();
        for replica in 0..self.rings.len() {
            let of = self.all(replica).into_iter();
            posts.extend(of.map(|(position, print)| (position, replica, print)));
        }
        posts.sort_unstable();
        let mut checked = 0;
        for at in posts.chunk_by(|a, b| a.0 == b.0) {
            if at.iter().any(|(_, _, print)| *print != at[0].2) {
                let of = |(_, replica, print): &(Seq, usize, u64)| (*replica, *print);
                return Err(Mismatch {
                    position: at[0].0,
                    fingerprints: at.iter().map(of).collect(),
                });
            }
            checked += usize::from(at.len() > 1);
        }
        Ok(checked)
    }

    /// The result of comparing the fingerprints at `position`.
    pub fn agreement(&self, table: &MembershipTable, position: Seq) -> Agreement {
        let posted = |id: usize| self.at(id, position);
        let all = replicas(table.ever_active())
            .filter(|id| posted(*id).is_some())
            .fold(0, |all, id| all | 1u64 << id);
        let voters = table.voters(position) | all;
        for print in replicas(all).filter_map(posted) {
            let alike = replicas(all).filter(|id| posted(*id) == Some(print));
            let right = alike.fold(0, |mask, id| mask | 1u64 << id);
            if 2 * right.count_ones() > voters.count_ones() {
                let wrong = all & !right;
                return Agreement::Majority { wrong, right };
            }
        }
        if all == voters {
            Agreement::Undecided
        } else {
            Agreement::Open
        }
    }

    /// The majority that worker `id` differs from at some stored position, and the first
    /// position at which any worker posted another fingerprint.
    pub fn majority_against(&self, table: &MembershipTable, id: usize) -> Option<(u64, Seq)> {
        // Another worker may have had the slot before.
        let posts = self.all(id).into_iter();
        let own = posts.filter(|(position, _)| *position > table.since(id));
        let (mut majority, mut first) = (None, Seq::MAX);
        for (position, print) in own {
            let mut others = replicas(table.ever_active()).filter_map(|id| self.at(id, position));
            if others.any(|other| other != print) {
                first = first.min(position);
            }
            if let Agreement::Majority { wrong, right } = self.agreement(table, position)
                && wrong >> id & 1 != 0
            {
                majority = Some(right);
            }
        }
        majority.map(|right| (right, first))
    }

    /// Whether a majority posted `print` at `position`. `None` if that is not known.
    pub fn agrees_with_majority(
        &self,
        table: &MembershipTable,
        position: Seq,
        print: u64,
    ) -> Option<bool> {
        match self.agreement(table, position) {
            Agreement::Majority { right, .. } => {
                let theirs = replicas(right).find_map(|id| self.at(id, position));
                theirs.map(|theirs| theirs == print)
            }
            Agreement::Open | Agreement::Undecided => None,
        }
    }
}

/// The result of comparing a position's fingerprints. Each replica is one bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// More than half of the voters posted the same.
    Majority {
        /// The replicas that posted another fingerprint.
        wrong: u64,
        /// The replicas that posted the majority's fingerprint.
        right: u64,
    },
    /// Not enough voters have posted yet.
    Open,
    /// All voters have posted, and no more than half agree.
    Undecided,
}

impl fmt::Debug for Fingerprints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fingerprints")
            .field("replicas", &self.rings.len())
            .field("every", &self.every)
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_minority_is_named() {
        let fingerprints = Fingerprints::new(3, 2, 1);
        for (replica, print) in [(0, 5), (1, 6), (2, 5)] {
            fingerprints.post(replica, 9, print);
        }
        let mismatch = fingerprints.compare().unwrap_err();
        assert_eq!(mismatch.position, 9);
        assert_eq!(mismatch.minority(), Some(vec![1]));
        fingerprints.forget(1);
        assert_eq!(fingerprints.compare(), Ok(1));
    }

    #[test]
    fn more_than_half_of_the_voters_are_a_majority_and_half_of_them_are_none() {
        for voters in 1..=6 {
            let table = MembershipTable::new(voters, voters, false);
            let split = (0..=voters).flat_map(|a| (0..=voters - a).map(move |o| (a, o)));
            for (alike, others) in split {
                let posts = Fingerprints::new(voters, 1, 1);
                (0..alike).for_each(|id| posts.post(id, 1, 7));
                (alike..alike + others).for_each(|id| posts.post(id, 1, 8));
                let (left, right) = ((1 << alike) - 1, ((1 << others) - 1) << alike);
                let expected = if alike > voters / 2 {
                    Agreement::Majority {
                        wrong: right,
                        right: left,
                    }
                } else if others > voters / 2 {
                    Agreement::Majority { wrong: left, right }
                } else if alike + others == voters {
                    Agreement::Undecided
                } else {
                    Agreement::Open
                };
                let found = posts.agreement(&table, 1);
                assert_eq!(found, expected, "{alike} and {others} of {voters}");
            }
        }
    }

    #[test]
    fn what_was_posted_up_to_the_snapshot_of_a_worker_does_not_count_for_it() {
        let table = MembershipTable::new(3, 3, false);
        let posts = Fingerprints::new(3, 4, 1);
        table.activate(2, 5);
        [7, 7, 8]
            .into_iter()
            .enumerate()
            .for_each(|(id, print)| posts.post(id, 5, print));
        assert_eq!(posts.majority_against(&table, 2), None);
        [7, 7, 8]
            .into_iter()
            .enumerate()
            .for_each(|(id, print)| posts.post(id, 6, print));
        assert_eq!(posts.majority_against(&table, 2), Some((0b11, 6)));
        assert_eq!(posts.agrees_with_majority(&table, 6, 7), Some(true));
        assert_eq!(posts.agrees_with_majority(&table, 7, 7), None);
    }

    #[test]
    fn different_positions_are_not_compared() {
        let fingerprints = Fingerprints::new(2, 1, 10);
        fingerprints.post(0, 10, 1);
        fingerprints.post(1, 20, 2);
        fingerprints.post(1, 21, 3);
        assert_eq!(fingerprints.compare(), Ok(0));
    }

    #[test]
    fn comparing_while_others_post_never_mixes_positions() {
        let fingerprints = Fingerprints::new(2, 3, 1);
        std::thread::scope(|scope| {
            for replica in 0..2 {
                let fingerprints = &fingerprints;
                scope.spawn(move || {
                    (0..20_000).for_each(|seq| fingerprints.post(replica, seq, seq * 7))
                });
            }
            for _ in 0..2_000 {
                fingerprints.compare().unwrap();
            }
        });
        assert_eq!(fingerprints.compare(), Ok(3));
    }
}
