//! Policies that choose the replica which does the costly work of a request.
//!
//! A policy answers one question of a replica: is this piece of work mine? Exactly one replica
//! must get yes. There are two ways to achieve that. With a [`PrimaryPolicy`], all replicas
//! compute the same answer from common knowledge, without atomics. With [`Greedy`], they race to
//! write a word. Both implement [`Assignment`], so a loop that takes one as a type parameter works
//! with any of them, without dynamic dispatch.
//!
//! | policy | primary | agreed by | in the dissertation |
//! |---|---|---|---|
//! | [`ByPosition`] | chunk `c` goes to replica `c % replicas` | arithmetic | |
//! | [`Greedy`] | the first replica that asks | one compare-and-swap per chunk | section 3.2.4, algorithm 1 |
//! | [`ByPublisher`] | named by the publisher | the stamp in the entry | sections 3.2.4, 6.1.4 |
//! | [`ByKind`] | each kind of work has separate replicas | arithmetic | sections 3.1.4, 5.4.4 |
//! | [`ByLoad`] | chunks follow measured speed | weights in the log | answers section 6.1.4 |
//!
//! The dissertation is C. D. Sizemore, *Parallel network protocol stacks using replication*,
//! University of New Mexico, 2011.

mod greedy;
mod load;

pub use greedy::Greedy;
pub use load::{Balancer, ByLoad, Weights};

/// A kind of work, numbered by the user from 0, for example deliveries and outgoing frames. Each
/// kind numbers its chunks separately.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkKind(pub u8);

/// A piece of work with one primary: a chunk of entries, or a chunk of other items that `apply`
/// numbers.
///
/// ```
/// use dominoes::{WorkKind, Work};
/// let frames = WorkKind(1);
/// let work = Work::chunk(7).of(frames).stamped(2);
/// assert_eq!((work.chunk, work.kind, work.stamp), (7, frames, Some(2)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Work {
    /// The kind of work.
    pub kind: WorkKind,
    /// The chunk's number within its kind, ascending from 0.
    pub chunk: u64,
    /// The primary named by the publisher, if any; equal in all entries of the chunk.
    pub stamp: Option<u16>,
}

impl Work {
    /// A chunk of kind 0, without a stamp.
    #[inline]
    pub const fn chunk(chunk: u64) -> Self {
        Work {
            kind: WorkKind(0),
            chunk,
            stamp: None,
        }
    }

    /// Sets the kind.
    #[inline]
    pub const fn of(self, kind: WorkKind) -> Self {
        Work { kind, ..self }
    }

    /// Sets the primary that the publisher named.
    #[inline]
    pub const fn stamped(self, replica: u16) -> Self {
        Work {
            stamp: Some(replica),
            ..self
        }
    }
}

/// Computes the primary of a chunk of positions. Every replica must compute the same one.
pub trait PrimaryPolicy {
    /// The primary, below `replicas`, of chunk number `chunk` of kind 0. [`Assignment`] reduces a
    /// larger number modulo `replicas`, so that some replica does the work.
    fn primary(&self, chunk: u64, replicas: usize) -> usize;

    /// The primary, below `replicas`, of `work`. By default ignores the kind and the stamp.
    #[inline]
    fn primary_of(&self, work: Work, replicas: usize) -> usize {
        self.primary(work.chunk, replicas)
    }
}

/// Decides which work a replica does: each piece belongs to exactly one replica.
///
/// Every [`PrimaryPolicy`] implements it. The answer for a piece of work does not change, so
/// asking again is allowed. No call waits.
///
/// ```
/// use dominoes::{Assignment, ByPosition, Greedy, Work};
///
/// fn share_of<A: Assignment>(policy: &A, replica: usize) -> usize {
///     (0..12).filter(|c| policy.is_mine(Work::chunk(*c), replica, 3)).count()
/// }
/// assert_eq!(share_of(&ByPosition, 0), 4);
/// let greedy = Greedy::new(&[16]);
/// assert_eq!((share_of(&greedy, 0), share_of(&greedy, 1)), (12, 0)); // first come, first served
/// ```
pub trait Assignment {
    /// Whether replica `me`, one of `replicas`, is the primary of `work`.
    fn is_mine(&self, work: Work, me: usize, replicas: usize) -> bool;
}

impl<P: PrimaryPolicy> Assignment for P {
    #[inline]
    fn is_mine(&self, work: Work, me: usize, replicas: usize) -> bool {
        let primary = self.primary_of(work, replicas);
        primary == me || primary >= replicas && replicas > 0 && primary % replicas == me
    }
}

/// Round robin: chunk `c` belongs to replica `c % replicas`. Uses no atomics.
///
/// ```
/// use dominoes::{ByPosition, PrimaryPolicy};
/// assert_eq!(ByPosition.primary(7, 3), 1);
/// ```
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ByPosition;

impl PrimaryPolicy for ByPosition {
    #[inline]
    fn primary(&self, chunk: u64, replicas: usize) -> usize {
        assert!(replicas > 0, "somebody must be primary");
        (chunk % replicas as u64) as usize
    }
}

/// The publisher names the primary in the entry, to keep a series of entries on one replica
/// (dissertation, sections 3.2.4 and 6.1.4). Work without a stamp, or with the stamp of a replica
/// that does not exist, is assigned by position.
///
/// ```
/// use dominoes::{ByPublisher, PrimaryPolicy, Work};
/// assert_eq!(ByPublisher.primary_of(Work::chunk(7).stamped(2), 3), 2);
/// assert_eq!(ByPublisher.primary_of(Work::chunk(7).stamped(9), 3), 1); // 9 has left
/// assert_eq!(ByPublisher.primary_of(Work::chunk(7), 3), 1);
/// ```
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ByPublisher;

impl PrimaryPolicy for ByPublisher {
    #[inline]
    fn primary(&self, chunk: u64, replicas: usize) -> usize {
        ByPosition.primary(chunk, replicas)
    }

    #[inline]
    fn primary_of(&self, work: Work, replicas: usize) -> usize {
        match work.stamp {
            Some(replica) if usize::from(replica) < replicas => replica.into(),
            _ => self.primary(work.chunk, replicas),
        }
    }
}

/// Round robin within the replicas of each kind of work: specialized primaries (dissertation,
/// sections 3.1.4 and 5.4.4), where one domain delivers payload and another makes acknowledgments.
///
/// A kind whose replicas are all absent, or that was not configured, is assigned round robin to
/// all present replicas. So no work is lost if the group is smaller than the policy assumed.
///
/// ```
/// use dominoes::{ByKind, WorkKind, PrimaryPolicy, Work};
/// let (payload, frames) = (WorkKind(0), WorkKind(1));
/// let policy = ByKind::new(&[&[0, 1], &[2]]); // payload to 0 and 1, frames to 2
/// let primary = |chunk, kind| policy.primary_of(Work::chunk(chunk).of(kind), 3);
/// assert_eq!([0, 1, 2, 3].map(|chunk| primary(chunk, payload)), [0, 1, 0, 1]);
/// assert_eq!([0, 1, 2, 3].map(|chunk| primary(chunk, frames)), [2; 4]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByKind {
    /// Per kind, one bit for each replica that takes it.
    takers: Box<[u64]>,
}

impl ByKind {
    /// The replicas `replicas_of[k]` take the work of kind `k`.
    ///
    /// # Panics
    /// If a replica is numbered 64 or more.
    pub fn new(replicas_of: &[&[usize]]) -> Self {
        let bits = |replicas: &&[usize]| {
            replicas.iter().fold(0u64, |bits, &replica| {
                assert!(replica < 64, "replica {replica} is beyond 63");
                bits | 1 << replica
            })
        };
        ByKind {
            takers: replicas_of.iter().map(bits).collect(),
        }
    }

    /// A policy for two kinds: the lower replicas take the first kind, the upper ones the second.
    /// If their number is odd, the first kind has one more; a single replica does everything.
    pub fn halves(replicas: usize) -> Self {
        let (first, second): (Vec<usize>, Vec<usize>) =
            (0..replicas).partition(|replica| *replica < replicas.div_ceil(2));
        Self::new(&[&first, &second])
    }
}

impl PrimaryPolicy for ByKind {
    #[inline]
    fn primary(&self, chunk: u64, replicas: usize) -> usize {
        self.primary_of(Work::chunk(chunk), replicas)
    }

    #[inline]
    fn primary_of(&self, work: Work, replicas: usize) -> usize {
        let there = if replicas < 64 {
            (1u64 << replicas) - 1
        } else {
            u64::MAX
        };
        let takers = self
            .takers
            .get(usize::from(work.kind.0))
            .map_or(0, |takers| takers & there);
        if takers == 0 {
            return ByPosition.primary(work.chunk, replicas);
        }
        let mut rest = takers;
        for _ in 0..work.chunk % u64::from(takers.count_ones()) {
            rest &= rest - 1;
        }
        rest.trailing_zeros() as usize
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn works() -> impl Iterator<Item = Work> {
        (0..3u8).flat_map(|kind| {
            (0..200).map(move |chunk| {
                let work = Work::chunk(chunk).of(WorkKind(kind));
                match chunk % 3 {
                    0 => work,
                    stamp => work.stamped(stamp as u16 * 3),
                }
            })
        })
    }

    /// Checks the obligation of every policy: each piece of work has exactly one primary.
    fn each_piece_has_one_primary(policy: &impl Assignment, replicas: usize) {
        for work in works() {
            let takers = (0..replicas).filter(|me| policy.is_mine(work, *me, replicas));
            assert_eq!(takers.count(), 1, "{work:?} among {replicas}");
        }
    }

    #[test]
    fn every_policy_gives_each_piece_of_work_to_one_replica() {
        for replicas in [1, 2, 3, 5, 8] {
            each_piece_has_one_primary(&ByPosition, replicas);
            each_piece_has_one_primary(&ByPublisher, replicas);
            each_piece_has_one_primary(&ByKind::halves(replicas), replicas);
            each_piece_has_one_primary(&ByKind::new(&[&[63], &[0, 5]]), replicas);
            each_piece_has_one_primary(&Greedy::new(&[256; 3]), replicas);
            let mut load = ByLoad::new(3, 64);
            load.change(WorkKind(1), 50, Weights::of(&[3, 1, 0, 9, 1, 1, 1, 200]));
            each_piece_has_one_primary(&load, replicas);
        }
    }

    /// The number of chunks that each of three threads takes.
    fn shares_of(policy: &(impl Assignment + Sync), chunks: u64) -> Vec<usize> {
        let share = |me| {
            let mine = move |c: &u64| policy.is_mine(Work::chunk(*c), me, 3);
            (0..chunks).filter(mine).count()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|me| scope.spawn(move || share(me))).collect();
            let threads = threads.into_iter();
            threads.map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn by_position_shares_are_equal() {
        assert_eq!(shares_of(&ByPosition, 3000), [1000; 3]);
    }

    #[test]
    fn greedy_shares_add_up() {
        let shares = shares_of(&Greedy::new(&[4096]), 3000);
        assert_eq!(shares.iter().sum::<usize>(), 3000);
    }

    #[test]
    fn halves_keep_kinds_apart_when_there_are_two_replicas() {
        let policy = ByKind::halves(2);
        for chunk in 0..9 {
            assert_eq!(policy.primary_of(Work::chunk(chunk).of(WorkKind(0)), 2), 0);
            assert_eq!(policy.primary_of(Work::chunk(chunk).of(WorkKind(1)), 2), 1);
            assert_eq!(policy.primary_of(Work::chunk(chunk).of(WorkKind(1)), 1), 0);
        }
    }
}
