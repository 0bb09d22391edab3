//! Shares that follow measured speed, without a race for each chunk.
//!
//! Replicas must agree on the primary of a chunk, but their knowledge of each other's speed
//! differs. So the publisher measures ([`Balancer`]) and puts the resulting [`Weights`] into the
//! log as an entry, and every replica changes its table at that position ([`ByLoad`]).

use super::{PrimaryPolicy, Work, WorkKind};
use std::collections::VecDeque;

/// Most replicas that weights cover.
const REPLICAS: usize = 8;
/// Period of a table's pattern, in chunks.
const PATTERN: usize = 64;

/// Relative shares of work for up to 8 replicas. 8 bytes, so that they fit into an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Weights([u8; REPLICAS]);

impl Weights {
    /// The weights of the first replicas; the others get 0.
    ///
    /// # Panics
    /// If there are more than 8.
    pub fn of(weights: &[u8]) -> Self {
        assert!(weights.len() <= REPLICAS, "weights are for 8 replicas");
        let mut all = [0; REPLICAS];
        all[..weights.len()].copy_from_slice(weights);
        Weights(all)
    }

    /// The weights as bytes, for an entry.
    pub const fn to_bytes(self) -> [u8; REPLICAS] {
        self.0
    }

    /// The weights in the bytes of an entry. Any bytes are valid.
    pub const fn from_bytes(bytes: [u8; REPLICAS]) -> Self {
        Weights(bytes)
    }

    /// The primary of each chunk of the pattern, distributed as evenly as possible: the replica
    /// furthest below its due share is next. Uses integers only, so the result is the same on all
    /// machines.
    fn pattern(self) -> [u8; PATTERN] {
        let total: i32 = self.0.iter().map(|w| i32::from(*w)).sum();
        let mut due = [0i32; REPLICAS];
        std::array::from_fn(|_| {
            let mut next = 0;
            for (replica, weight) in self.0.iter().enumerate() {
                due[replica] += i32::from(*weight);
                if due[replica] > due[next] {
                    next = replica;
                }
            }
            due[next] -= total;
            next as u8
        })
    }
}

/// The pattern that applies from chunk `from` on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Era {
    from: u64,
    /// `None`: by position.
    pattern: Option<Box<[u8; PATTERN]>>,
}

/// Assigns chunks by weights from the log.
///
/// A value of this type is part of the replicated state of each replica. It changes only when an
/// entry with [`Weights`] is applied, so all replicas change it at the same position. It uses no
/// atomics, and no replica takes part in the decision. (The dissertation, section 6.1.4, leaves
/// load balancing to first come, first served.)
///
/// Weights must take effect at a chunk about which no replica has asked yet. For chunks of entries
/// that is the first one that begins at or after the entry's position; for numbered work, the
/// first one whose numbers have not been handed out. Earlier work keeps its primary.
///
/// ```
/// use dominoes::{ByLoad, WorkKind, PrimaryPolicy, Weights};
/// let mut policy = ByLoad::new(1, 64);
/// policy.change(WorkKind(0), 8, Weights::of(&[3, 1]));
/// let mine = |chunks: std::ops::Range<u64>| chunks.filter(|c| policy.primary(*c, 2) == 0).count();
/// assert_eq!(mine(0..8), 4); // by position until then
/// assert_eq!(mine(8..72), 48);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ByLoad {
    reach: u64,
    /// By kind; ascending, never empty.
    eras: Box<[VecDeque<Era>]>,
}

impl ByLoad {
    /// A policy for this number of kinds, at first by position. `reach` is the number of chunks of
    /// a kind that may be open at once: replicas never ask about a chunk further below the newest
    /// change.
    pub fn new(kinds: usize, reach: u64) -> Self {
        let first = Era {
            from: 0,
            pattern: None,
        };
        ByLoad {
            reach,
            eras: (0..kinds)
                .map(|_| VecDeque::from([first.clone()]))
                .collect(),
        }
    }

    /// Uses these weights from chunk `from` of this kind on. Weights of 0 for all replicas mean by
    /// position. If `from` is below an earlier change, the new change takes effect there.
    ///
    /// # Panics
    /// If the kind does not exist.
    pub fn change(&mut self, kind: WorkKind, from: u64, weights: Weights) {
        let pattern = (weights.0 != [0; REPLICAS]).then(|| Box::new(weights.pattern()));
        let eras = &mut self.eras[usize::from(kind.0)];
        let newest = eras.back().map_or(0, |era| era.from);
        let from = from.max(newest);
        if from == newest {
            eras.pop_back();
        }
        eras.push_back(Era { from, pattern });
        while eras.len() > 1 && eras[1].from.saturating_add(self.reach) <= from {
            eras.pop_front();
        }
    }
}

impl PrimaryPolicy for ByLoad {
    #[inline]
    fn primary(&self, chunk: u64, replicas: usize) -> usize {
        self.primary_of(Work::chunk(chunk), replicas)
    }

    /// Work of an unknown kind, and work of an absent replica, is assigned by position.
    #[inline]
    fn primary_of(&self, work: Work, replicas: usize) -> usize {
        assert!(replicas > 0, "somebody must be primary");
        let era = self
            .eras
            .get(usize::from(work.kind.0))
            .and_then(|eras| eras.iter().rev().find(|era| era.from <= work.chunk));
        if let Some(Era {
            from,
            pattern: Some(pattern),
        }) = era
        {
            let primary = usize::from(pattern[((work.chunk - from) % PATTERN as u64) as usize]);
            if primary < replicas {
                return primary;
            }
        }
        (work.chunk % replicas as u64) as usize
    }
}

/// The publisher's side of [`ByLoad`]: computes weights from counts of work given and done.
///
/// The backlog of a replica is the work that it was given minus the work that it has done. A
/// replica whose backlog is more than twice the smallest one, and more than `slack`, loses an
/// eighth of its weight; the others regain a little. So a replica that keeps up has the full
/// weight, and a slow one settles where it keeps up.
#[derive(Debug, Clone)]
pub struct Balancer {
    slack: u64,
    weights: Vec<u8>,
}

impl Balancer {
    /// The weight of a replica that keeps up.
    const FULL: u8 = 240;
    /// The smallest weight. Without any work, a replica could not show that it has become faster.
    const LEAST: u8 = 4;

    /// A balancer for this number of replicas, at most 8. `slack` is an ordinary backlog in units
    /// of work: a few chunks.
    ///
    /// # Panics
    /// If there are more than 8 replicas.
    pub fn new(replicas: usize, slack: u64) -> Self {
        assert!(replicas <= REPLICAS, "weights are for 8 replicas");
        Balancer {
            slack,
            weights: vec![Self::FULL; replicas],
        }
    }

    /// The weights that follow from the counts of work `given` to each replica and `done` by it.
    /// `Some` if they have changed and should be published.
    ///
    /// # Panics
    /// If the length of `given` or `done` is not the number of replicas.
    pub fn sample(&mut self, given: &[u64], done: &[u64]) -> Option<Weights> {
        assert!(
            given.len() == self.weights.len() && done.len() == self.weights.len(),
            "counts of {} and {} replicas, weights of {}",
            given.len(),
            done.len(),
            self.weights.len()
        );
        let backlog: Vec<u64> = given
            .iter()
            .zip(done)
            .map(|(given, done)| given.saturating_sub(*done))
            .collect();
        let bound = self
            .slack
            .max(backlog.iter().min().map_or(0, |least| least * 2));
        let before = self.weights.clone();
        for (weight, backlog) in self.weights.iter_mut().zip(backlog) {
            *weight = if backlog > bound {
                (*weight - (*weight).div_ceil(8)).max(Self::LEAST)
            } else {
                weight.saturating_add(weight.div_ceil(64)).min(Self::FULL)
            };
        }
        (self.weights != before).then(|| Weights::of(&self.weights))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn share(policy: &ByLoad, replica: usize, chunks: std::ops::Range<u64>) -> usize {
        chunks.filter(|c| policy.primary(*c, 4) == replica).count()
    }

    #[test]
    fn shares_are_as_the_weights_say() {
        for weights in [[1, 1, 1, 1], [3, 1, 0, 0], [9, 4, 2, 1], [255, 255, 1, 1]] {
            let mut policy = ByLoad::new(1, 8);
            policy.change(WorkKind(0), 0, Weights::of(&weights));
            let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            for replica in 0..4 {
                let due = f64::from(weights[replica]) / total * 64.0;
                let has = share(&policy, replica, 0..64) as f64;
                assert!((has - due).abs() <= 1.0, "{weights:?} {replica}: {has}");
            }
        }
    }

    #[test]
    fn work_that_is_open_keeps_its_primary_when_weights_change() {
        let reach = 16;
        let mut policy = ByLoad::new(1, reach);
        let mut told = Vec::new();
        for chunk in 0..500u64 {
            if chunk % 5 == 0 {
                policy.change(
                    WorkKind(0),
                    chunk,
                    Weights::of(&[(chunk % 7) as u8, 3, 1, 9]),
                );
            }
            told.push(policy.primary(chunk, 4));
            for open in chunk.saturating_sub(reach)..=chunk {
                assert_eq!(
                    policy.primary(open, 4),
                    told[open as usize],
                    "{open} at {chunk}"
                );
            }
        }
        assert!(policy.eras[0].len() <= 16 / 5 + 3);
    }

    #[test]
    fn replicas_that_apply_the_same_log_name_the_same_primaries() {
        let changes = [(3, [5, 1]), (2, [1, 9]), (40, [0, 0]), (90, [7, 7])];
        let mut twins = [ByLoad::new(2, 64), ByLoad::new(2, 64)];
        for twin in &mut twins {
            for (from, weights) in changes {
                twin.change(
                    WorkKind(1),
                    from,
                    Weights::from_bytes(Weights::of(&weights).to_bytes()),
                );
            }
        }
        let [a, b] = twins;
        assert_eq!(a, b);
        for chunk in 0..200 {
            let work = Work::chunk(chunk).of(WorkKind(1));
            assert_eq!(a.primary_of(work, 2), b.primary_of(work, 2));
        }
    }

    /// Simulates replicas of different speed in virtual time. Each does its speed in work per
    /// round, and a round brings as much work as all can do together.
    fn settled_share(speeds: [u64; 2]) -> f64 {
        let mut policy = ByLoad::new(1, 1 << 20);
        let mut balancer = Balancer::new(2, 64);
        let mut shares = [0u64; 2];
        let (mut given, mut backlog, mut chunk) = ([0u64; 2], [0u64; 2], 0);
        let per_round = speeds[0] + speeds[1];
        let mut at_half = [0; 2];
        for round in 0..4000 {
            for _ in 0..per_round {
                let primary = policy.primary(chunk, 2);
                chunk += 1;
                given[primary] += 1;
                backlog[primary] += 1;
            }
            for me in 0..2 {
                let done = backlog[me].min(speeds[me]);
                backlog[me] -= done;
                shares[me] += done;
            }
            if let Some(weights) = balancer.sample(&given, &shares) {
                policy.change(WorkKind(0), chunk, weights);
            }
            if round == 2000 {
                at_half = given;
            }
        }
        let late = [given[0] - at_half[0], given[1] - at_half[1]];
        late[0] as f64 / (late[0] + late[1]) as f64
    }

    #[test]
    fn shares_follow_the_speed_of_the_replicas() {
        for speeds in [[30, 10], [10, 10], [8, 32]] {
            let due = speeds[0] as f64 / (speeds[0] + speeds[1]) as f64;
            let has = settled_share(speeds);
            assert!((has - due).abs() < 0.06, "{speeds:?}: {has:.3} of {due:.3}");
        }
    }
}
