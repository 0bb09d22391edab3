//! Which worker performs what: the primary of each batch and of each frame.
//!
//! The receive pump chooses a primary for each batch that it publishes, and writes it into the
//! batch's requests. So all workers know it without asking each other, and a policy may use
//! anything that the pump can see. One request may ask for hundreds of frames, so frames are
//! assigned separately, by chunks of their own numbers. The first worker that comes to a chunk
//! names its owner in the chunk's word ([`tx`](crate::io::tx)): by default itself, else the worker
//! that the policy chooses. Under [`Primaries::Greedy`] the first worker takes batches, too.
//!
//! Workers join and leave meanwhile. A primary that is not active does no more work; any other
//! worker [does it](super::steal).

use core::ops::Range;

use dominoes::group::{MAX_REPLICAS, replicas};
use dominoes::{Assignment, Balancer, ByLoad, Greedy, PrimaryPolicy, Seq, Work, WorkKind};

use super::pending::Applied;
use crate::group::{Layout, ReplicatedShared};
use crate::io::claim::MAX_CLAIM;
use crate::io::tx::Owner;
use crate::log::effect::Effect;
use crate::log::request::InBatch;

/// The policy that assigns requests and outgoing frames to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Primaries {
    /// The worker that claimed and parsed the batch: it has the frames' headers in its cache. A
    /// worker with nothing else to do claims the next batch, so the work goes to a free worker.
    /// Commands belong to the worker that published them. Chunks of frames belong to the worker
    /// that asks first, with one compare-and-swap each: one that has applied what numbers
    /// them and has nothing else to build. If that is a lone request, which asks for one frame or
    /// two, the chunk goes to the request's primary.
    #[default]
    ByPublisher,
    /// Batches, and chunks of frames, in turn.
    ByPosition,
    /// Batches, and chunks of frames, belong to the worker that asks first, with one
    /// compare-and-swap each. The worker that parsed a batch prepares it.
    Greedy,
    /// Batches in which any segment has payload, and chunks whose first frame has some, to the
    /// lower half of the workers; acknowledgments and everything else to the upper half.
    ByKind,
    /// Batches, weighted by how well the workers keep up. Frames are assigned by position. At most
    /// 8 workers.
    ByLoad,
}

impl Primaries {
    /// All policies.
    pub const ALL: [Primaries; 5] = [
        Primaries::ByPublisher,
        Primaries::ByPosition,
        Primaries::Greedy,
        Primaries::ByKind,
        Primaries::ByLoad,
    ];

    /// Whether chunks of frames belong to the worker that asks first.
    pub(crate) const fn first_owns_frames(self) -> bool {
        matches!(self, Primaries::ByPublisher | Primaries::Greedy)
    }
}

/// Requests between two measurements of how well the workers keep up.
const BALANCE_EVERY: u64 = 256;

/// A lone request asks for at most this many frames.
pub(crate) const LONE_FRAMES: u32 = 2;
/// A lone request has at most this many bytes.
pub(crate) const LONE_BYTES: u32 = 4096;

/// A set of replica slots, in ascending order.
#[derive(Clone, Copy)]
struct ReplicaSet {
    mask: u64,
    count: usize,
    ids: [u8; MAX_REPLICAS],
}

impl ReplicaSet {
    /// The set of the slots whose bits are set in `mask`.
    fn of(mask: u64) -> Self {
        let mut ids = [0; MAX_REPLICAS];
        for (place, id) in ids.iter_mut().zip(replicas(mask)) {
            *place = id as u8;
        }
        ReplicaSet {
            mask,
            count: mask.count_ones() as usize,
            ids,
        }
    }

    #[inline]
    fn contains(&self, id: usize) -> bool {
        self.mask >> id & 1 != 0
    }

    /// The slot that is primary of batch or chunk `number` if these are assigned in turn.
    fn by_position(&self, number: u64) -> usize {
        self.in_turn(number, 0..self.count)
    }

    /// The slot that is primary of batch or chunk `number` if these are assigned by kind.
    fn by_kind(&self, number: u64, has_payload: bool) -> usize {
        let lower = self.count.div_ceil(2);
        match has_payload {
            true => self.in_turn(number, 0..lower),
            // One slot does everything.
            false => self.in_turn(number, lower.min(self.count - 1)..self.count),
        }
    }

    fn in_turn(&self, number: u64, among: Range<usize>) -> usize {
        let index = number % among.len() as u64;
        usize::from(self.ids[among.start + index as usize])
    }
}

/// The words in which workers take batches, as many as can be open at once. `None`: the pump's
/// choice holds.
pub(super) fn takers(layout: &Layout, batches: usize) -> Option<Greedy> {
    (layout.primaries == Primaries::Greedy).then(|| Greedy::new(&[batches]))
}

impl ReplicatedShared {
    /// Whether worker `id` is primary of the request at `seq`. Under [`Primaries::Greedy`] the
    /// worker takes the batch if no other has.
    #[inline]
    pub(super) fn is_primary(&self, id: usize, seq: Seq, in_batch: InBatch) -> bool {
        match &self.takers {
            Some(takers) => takers.is_mine(Work::chunk(in_batch.first(seq)), id, MAX_REPLICAS),
            None => usize::from(in_batch.primary) == id,
        }
    }

    /// The primary of the request at `seq`.
    pub(super) fn primary(&self, seq: Seq, in_batch: InBatch) -> Owner {
        let Some(takers) = &self.takers else {
            return Owner::Worker(usize::from(in_batch.primary));
        };
        let work = Work::chunk(in_batch.first(seq));
        match takers.taker(work) {
            Some(taker) => Owner::Worker(taker),
            None if takers.is_past(work) => Owner::Done,
            // A worker may have taken it between the two reads.
            None => takers.taker(work).map_or(Owner::Unassigned, Owner::Worker),
        }
    }

    /// Assigns the chunk of `frame`, unless another worker just did. Worker `id` asks, for the
    /// request at `seq`, which is `applied` and has this `effect`. Returns the owner.
    #[inline(never)]
    pub(super) fn assign_frame(
        &self,
        id: usize,
        frame: u64,
        (seq, applied): (Seq, &Applied),
        effect: &Effect,
    ) -> Owner {
        let (tx, policy) = (&self.world.tx, self.layout.primaries);
        let (has_payload, count) = match effect {
            Effect::Transmit(transmit) => (transmit.payload_len > 0, transmit.count),
            _ => (true, effect.frames().map_or(0, |(_, count)| count)),
        };
        let owner = if policy.first_owns_frames() {
            let is_lone = applied.in_batch.index | applied.in_batch.left == 0
                && applied.len <= applied.seg_len
                && count <= LONE_FRAMES;
            match self.primary(seq, applied.in_batch) {
                Owner::Worker(primary) if is_lone && self.membership.is_active(primary) => primary,
                _ => id,
            }
        } else {
            let all = ReplicaSet::of(self.membership.staying());
            match policy {
                // The membership changes at this moment.
                _ if all.count == 0 => id,
                Primaries::ByKind => all.by_kind(tx.chunk_of(frame), has_payload),
                _ => all.by_position(tx.chunk_of(frame)),
            }
        };
        tx.assign(frame, owner)
    }
}

/// Chooses the primary of each batch that is published. Belongs to the receive pump.
pub(crate) struct PrimaryNamer {
    policy: Primaries,
    /// How many batches were published.
    batches: u64,
    /// The workers that may be primary of the batch that was published last.
    owners: ReplicaSet,
    load: ByLoad,
    balancer: Option<Balancer>,
    /// For each slot, the requests that were assigned to it.
    given: Vec<u64>,
    /// Position of the next measurement of how well the workers keep up.
    next_balance: Seq,
}

impl PrimaryNamer {
    pub(crate) fn new(layout: &Layout) -> Self {
        let balanced = layout.primaries == Primaries::ByLoad;
        // A backlog of a batch is ordinary.
        let slack = MAX_CLAIM as u64;
        let slots = layout.slot_count();
        PrimaryNamer {
            policy: layout.primaries,
            batches: 0,
            owners: ReplicaSet::of(u64::MAX >> (64 - layout.replicas)),
            load: ByLoad::new(1, 1),
            balancer: balanced.then(|| Balancer::new(slots, slack)),
            given: vec![0; slots],
            next_balance: BALANCE_EVERY,
        }
    }

    /// The primary of the batch of `len` requests that is published at `first`, which worker
    /// `parser` parsed.
    #[inline]
    pub(crate) fn name(
        &mut self,
        shared: &ReplicatedShared,
        (first, len): (Seq, usize),
        parser: u8,
        has_payload: bool,
    ) -> u8 {
        self.batches += 1;
        let mask = shared.membership.staying();
        // If there are none, the previous owners stay: a worker that joins then finds that they are
        // not active.
        if mask != self.owners.mask && mask != 0 {
            self.change_owners(shared, mask);
        }
        if matches!(self.policy, Primaries::ByPublisher | Primaries::Greedy)
            && self.owners.contains(usize::from(parser))
        {
            return parser;
        }
        self.name_by_rule(shared, (first, len), has_payload) as u8
    }

    #[cold]
    fn change_owners(&mut self, shared: &ReplicatedShared, mask: u64) {
        let joined = mask & !self.owners.mask;
        self.owners = ReplicaSet::of(mask);
        if self.balancer.is_some() {
            // What other workers did in a slot's place is no backlog of the worker that has the
            // slot now.
            for id in replicas(joined) {
                self.given[id] = shared.slot_stats[id].load().requests;
            }
        }
    }

    #[inline(never)]
    fn name_by_rule(
        &mut self,
        shared: &ReplicatedShared,
        (first, len): (Seq, usize),
        has_payload: bool,
    ) -> usize {
        let batch = self.batches;
        match self.policy {
            Primaries::ByKind => self.owners.by_kind(batch, has_payload),
            Primaries::ByLoad => {
                let by_position = self.owners.by_position(batch);
                if first >= self.next_balance {
                    self.next_balance = first + BALANCE_EVERY;
                    self.balance(shared, batch + 1);
                }
                let primary = self.load.primary(batch, self.given.len());
                let is_owner = self.owners.contains(primary);
                let primary = if is_owner { primary } else { by_position };
                self.given[primary] += len as u64;
                primary
            }
            _ => self.owners.by_position(batch),
        }
    }

    /// From batch `from` on, weights the workers by how well they keep up.
    fn balance(&mut self, shared: &ReplicatedShared, from: u64) {
        let done: Vec<u64> = shared
            .slot_stats
            .iter()
            .map(|share| share.load().requests)
            .collect();
        if let Some(weights) = self
            .balancer
            .as_mut()
            .and_then(|balancer| balancer.sample(&self.given, &done))
        {
            self.load.change(WorkKind(0), from, weights);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_in_turn_to_the_slots_that_are_in_the_set() {
        let owners = ReplicaSet::of(0b1011_0010);
        let found: Vec<usize> = (0..6).map(|number| owners.by_position(number)).collect();
        assert_eq!(found, [1, 4, 5, 7, 1, 4]);
        assert!(owners.contains(7) && !owners.contains(6));
        let kinds =
            |set: ReplicaSet| [true, false].map(|payload| [3, 4].map(|n| set.by_kind(n, payload)));
        assert_eq!(kinds(owners), [[4, 1], [7, 5]]);
        assert_eq!(kinds(ReplicaSet::of(0b100)), [[2; 2]; 2]);
    }
}
