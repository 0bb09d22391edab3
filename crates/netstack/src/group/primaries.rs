//! Which worker performs what: the primary of each batch, and the owner of each chunk of frames.
//!
//! The primary of a batch is the worker that parsed it: it has the frames' headers in its cache. A
//! worker with nothing else to do claims the next batch, so the work goes to a free worker. The
//! pump writes the primary beside the batch's requests, so all workers know it without asking each
//! other.
//!
//! One request may ask for hundreds of frames, so frames are assigned separately, by chunks of
//! their own numbers. The first worker that comes to a chunk names its owner in the chunk's word
//! ([`tx`](crate::io::tx)).
//!
//! Workers join and leave meanwhile. A primary that is not active does no more work; any other
//! worker [does it](super::steal). For experiments, another [`Rule`], which a paper describes, may
//! take the place of this one: a group has none unless its [`Layout`] names one.

use core::ops::Range;

use dominoes::group::replicas;
use dominoes::{Balancer, ByLoad, PrimaryPolicy, Seq, TryLock, WorkKind, WorkState};

use super::aside::LONE_FRAMES;
use super::pending::Applied;
use crate::group::{Layout, ReplicatedShared};
use crate::io::claim::MAX_CLAIM;
use crate::log::effect::Effect;

impl ReplicatedShared {
    /// The primary of the batch of `len` requests that worker `holder` publishes at `first`, and
    /// worker `parser` parsed.
    #[inline]
    pub(super) fn name_primary(
        &self,
        (parser, holder): (u8, u8),
        (first, len): (Seq, usize),
        has_payload: bool,
    ) -> u8 {
        if let Some(rule) = &self.rule
            && let Some(primary) = rule.name_primary(self, holder, (first, len), has_payload)
        {
            return primary;
        }
        let stays = parser == holder || self.membership.staying() >> parser & 1 != 0;
        if stays { parser } else { holder }
    }

    /// Assigns the chunk of `frame`, unless another worker just did. Worker `id` asks, for the
    /// request `applied`, which has this `effect`: it has applied what numbers the frames, and has
    /// nothing else to build. So the chunk is its own, but that of a lone request, which asks for
    /// one frame or two, is the primary's. Returns as
    /// [`TxRing::owner`](crate::io::tx::TxRing::owner).
    #[inline(never)]
    pub(super) fn assign_frame(
        &self,
        id: usize,
        frame: u64,
        applied: &Applied,
        effect: &Effect,
    ) -> Result<usize, WorkState> {
        let rule = self.rule.as_ref();
        let owner = rule.and_then(|rule| rule.chunk_owner(self, frame, effect));
        let owner = owner.unwrap_or_else(|| {
            let primary = usize::from(applied.in_batch.primary);
            let is_lone = applied.in_batch.is_alone()
                && (applied.count <= 1 || applied.len == 0)
                && effect
                    .frames()
                    .is_none_or(|(_, count)| count <= LONE_FRAMES);
            match is_lone && self.membership.is_active(primary) {
                true => primary,
                false => id,
            }
        });
        self.world.tx.assign(frame, owner)
    }
}

/// The policy that assigns requests and outgoing frames to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Primaries {
    /// The worker that parsed the batch: it has the frames' headers in its cache. A worker with
    /// nothing else to do claims and parses the next one, so the work goes to a free worker. If it
    /// leaves the group meanwhile, the worker that publishes the batch.
    /// Commands belong to the worker that published them. Chunks of frames belong to the worker
    /// that asks first, with one compare-and-swap each: one that has applied what numbers
    /// them and has nothing else to build. If that is a lone request, which asks for one frame or
    /// two, the chunk goes to the request's primary.
    #[default]
    ByPublisher,
    /// Batches, and chunks of frames, in turn.
    ByPosition,
    /// Batches, to the worker that publishes them, whoever parsed them: it comes to them first.
    /// Chunks of frames, to the worker that asks first, with one compare-and-swap each.
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
}

/// Requests between two measurements of how well the workers keep up.
const BALANCE_EVERY: u64 = 256;

/// The slot of `mask` that is primary of batch or chunk `number`, if these go in turn.
fn by_position(mask: u64, number: u64) -> usize {
    in_turn(mask, number, 0..u64::from(mask.count_ones()))
}

/// The slot of `mask` that is primary of batch or chunk `number`, if these are assigned by kind.
fn by_kind(mask: u64, number: u64, has_payload: bool) -> usize {
    let count = u64::from(mask.count_ones());
    let lower = count.div_ceil(2);
    match has_payload {
        true => in_turn(mask, number, 0..lower),
        // One slot does everything.
        false => in_turn(mask, number, lower.min(count - 1)..count),
    }
}

fn in_turn(mask: u64, number: u64, among: Range<u64>) -> usize {
    let place = among.start + number % (among.end - among.start);
    replicas(mask).nth(place as usize).unwrap_or(0)
}

/// A rule that is not the default.
pub(super) struct Rule {
    primaries: Primaries,
    /// Used by the worker that has the receive pump.
    named: TryLock<Named>,
}

/// The batches that have a primary.
struct Named {
    count: u64,
    /// The workers that may be primary of the batch that was published last.
    owners: u64,
    load: ByLoad,
    balancer: Option<Balancer>,
    /// For each slot, the requests that were assigned to it.
    given: Vec<u64>,
    /// Position of the next measurement of how well the workers keep up.
    next_balance: Seq,
}

impl Rule {
    /// The rule of a group with these settings. `None`: the default.
    pub(super) fn of(layout: &Layout) -> Option<Box<Rule>> {
        let primaries = layout.primaries;
        let balancer = (primaries == Primaries::ByLoad)
            // A backlog of a batch is ordinary.
            .then(|| Balancer::new(layout.slot_count(), MAX_CLAIM as u64));
        let named = Named {
            count: 0,
            owners: u64::MAX >> (64 - layout.replicas),
            load: ByLoad::new(1, 1),
            balancer,
            given: vec![0; layout.slot_count()],
            next_balance: BALANCE_EVERY,
        };
        let rule = Rule {
            primaries,
            named: TryLock::new(named),
        };
        (primaries != Primaries::ByPublisher).then(|| Box::new(rule))
    }

    /// The primary of the batch of `len` requests that worker `holder` publishes at `first`. `None`:
    /// as by default.
    pub(super) fn name_primary(
        &self,
        shared: &ReplicatedShared,
        holder: u8,
        (first, len): (Seq, usize),
        has_payload: bool,
    ) -> Option<u8> {
        if self.primaries == Primaries::Greedy {
            return Some(holder);
        }
        let mut named = self.named.try_take()?;
        named.count += 1;
        let mask = shared.membership.staying();
        // If there are none, the previous owners stay; a worker that joins finds them not active.
        if mask != 0 {
            // What other workers did in a slot's place is no backlog of the worker that has the
            // slot now.
            for id in replicas(mask & !named.owners) {
                named.given[id] = shared.slot_stats[id].load().requests;
            }
            named.owners = mask;
        }
        let batch = named.count;
        let primary = match self.primaries {
            Primaries::ByKind => by_kind(named.owners, batch, has_payload),
            Primaries::ByLoad => named.by_load(shared, (first, len)),
            _ => by_position(named.owners, batch),
        };
        Some(primary as u8)
    }

    /// The owner of the chunk of `frame`, for which `effect` asks. `None`: as by default.
    pub(super) fn chunk_owner(
        &self,
        shared: &ReplicatedShared,
        frame: u64,
        effect: &Effect,
    ) -> Option<usize> {
        let staying = shared.membership.staying();
        // The membership may change at this moment.
        if staying == 0 {
            return None;
        }
        let chunk = shared.world.tx.chunk_of(frame);
        Some(match (self.primaries, effect) {
            (Primaries::Greedy, _) => return None,
            (Primaries::ByKind, Effect::Transmit(transmit)) => {
                by_kind(staying, chunk, transmit.payload_len > 0)
            }
            (Primaries::ByKind, _) => by_kind(staying, chunk, true),
            _ => by_position(staying, chunk),
        })
    }
}

impl Named {
    fn by_load(&mut self, shared: &ReplicatedShared, (first, len): (Seq, usize)) -> usize {
        if first >= self.next_balance {
            self.next_balance = first + BALANCE_EVERY;
            self.balance(shared, self.count + 1);
        }
        let primary = self.load.primary(self.count, self.given.len());
        let primary = match self.owners >> primary & 1 {
            0 => by_position(self.owners, self.count),
            _ => primary,
        };
        self.given[primary] += len as u64;
        primary
    }

    /// From batch `from` on, weights the workers by how well they keep up.
    fn balance(&mut self, shared: &ReplicatedShared, from: u64) {
        let done = shared.slot_stats.iter().map(|share| share.load().requests);
        let done = Vec::from_iter(done);
        let balancer = self.balancer.as_mut();
        if let Some(weights) = balancer.and_then(|balancer| balancer.sample(&self.given, &done)) {
            self.load.change(WorkKind(0), from, weights);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_in_turn_to_the_slots_that_are_in_the_set() {
        let owners = 0b1011_0010;
        let found: Vec<usize> = (0..6).map(|number| by_position(owners, number)).collect();
        assert_eq!(found, [1, 4, 5, 7, 1, 4]);
        let kinds = |set| [true, false].map(|payload| [3, 4].map(|n| by_kind(set, n, payload)));
        assert_eq!(kinds(owners), [[4, 1], [7, 5]]);
        assert_eq!(kinds(0b100), [[2; 2]; 2]);
    }
}
