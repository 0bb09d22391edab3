//! Which worker performs what: the primary of each batch and of each frame.
//!
//! The receive pump chooses a primary for each batch that it publishes, and writes it into the
//! batch's requests. So all workers know it without asking each other, and a policy may use
//! anything that the pump can see. One request may ask for hundreds of frames, so frames are
//! assigned separately, by chunks of their own numbers. By default the first worker that claims a
//! chunk of frames owns it; under [`Primaries::Greedy`] the same holds for batches.

use dominoes::group::{MembershipTable, replicas};
use dominoes::{Assignment, Balancer, ByLoad, Greedy, PrimaryPolicy, Seq, Work};

use super::epochs::{Epoch, Epochs};
use crate::group::{Layout, ReplicatedShared};
use crate::io::claim::MAX_CLAIM;

/// The policy that assigns requests and outgoing frames to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Primaries {
    /// The worker that claimed and parsed the batch: it has the frames' headers in its cache. A
    /// worker with nothing else to do claims the next batch, so the work goes to a free worker.
    /// Commands belong to the worker that published them. Chunks of frames belong to the worker
    /// that claims them first, with one compare-and-swap each: one that has applied what numbers
    /// them and has nothing else to build.
    #[default]
    ByPublisher,
    /// Batches, and chunks of frames, in turn.
    ByPosition,
    /// Batches, and chunks of frames, belong to the worker that claims them first, with one
    /// compare-and-swap each. The worker that parsed a batch prepares it.
    Greedy,
    /// Frames with payload, and batches in which any segment has some, to the lower half of the
    /// workers; acknowledgments and everything else to the upper half.
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

    /// Whether chunks of frames belong to the worker that claims them first.
    pub(crate) const fn claims_frames(self) -> bool {
        matches!(self, Primaries::ByPublisher | Primaries::Greedy)
    }
}

/// Payload.
const PAYLOAD: dominoes::WorkKind = dominoes::WorkKind(0);
/// Acknowledgments, and everything else that moves no payload.
const REST: dominoes::WorkKind = dominoes::WorkKind(1);

/// Requests between two measurements of how well the workers keep up.
const BALANCE_EVERY: u64 = 256;

/// The primary of a piece of work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This worker.
    Worker(usize),
    /// The first worker that claims it; none has.
    Unassigned,
    /// The work is long done.
    Done,
}

/// The assignment of work as all workers read it.
pub(crate) struct WorkAssignment {
    policy: Primaries,
    /// Requests are its first kind of work, frames its second.
    greedy: Greedy,
}

/// The kinds of work for [`Greedy`].
const REQUESTS: dominoes::WorkKind = dominoes::WorkKind(0);
const FRAMES: dominoes::WorkKind = dominoes::WorkKind(1);

impl WorkAssignment {
    /// For as many batches and chunks of frames as can be open at once.
    pub(crate) fn new(layout: &Layout, request_words: usize, frame_words: usize) -> Self {
        WorkAssignment {
            policy: layout.primaries,
            greedy: Greedy::new(&[request_words, frame_words]),
        }
    }

    /// Whether worker `id` is primary of the batch at `first`, whose primary by the pump is
    /// `primary`. Under [`Primaries::Greedy`] this claims the batch.
    #[inline]
    pub(crate) fn is_mine(&self, epochs: &Epochs, id: usize, first: Seq, primary: u8) -> bool {
        if self.policy == Primaries::Greedy {
            return self.claim(epochs.of_request(first), REQUESTS, first, id);
        }
        usize::from(primary) == id
    }

    /// The primary of a batch.
    pub(crate) fn owner(
        &self,
        epochs: &Epochs,
        membership: &MembershipTable,
        first: Seq,
        primary: u8,
    ) -> Owner {
        match self.policy {
            Primaries::Greedy => {
                self.claimed_by(epochs.of_request(first), membership, REQUESTS, first)
            }
            _ => Owner::Worker(usize::from(primary)),
        }
    }

    /// Whether worker `id` is primary of the frames of chunk `chunk`, with payload or without.
    /// If [chunks are claimed](Primaries::claims_frames) this claims the chunk.
    #[inline]
    pub(crate) fn is_my_frame(
        &self,
        epochs: &Epochs,
        id: usize,
        chunk: u64,
        has_payload: bool,
    ) -> bool {
        let epoch = epochs.of_frame_chunk(chunk);
        match self.policy {
            policy if policy.claims_frames() => self.claim(epoch, FRAMES, chunk, id),
            Primaries::ByKind => epoch.by_kind(chunk, kind(has_payload)) == id,
            _ => epoch.owners().by_position(chunk) == id,
        }
    }

    /// The primary of a frame.
    pub(crate) fn frame_owner(
        &self,
        epochs: &Epochs,
        membership: &MembershipTable,
        chunk: u64,
        has_payload: bool,
    ) -> Owner {
        let epoch = epochs.of_frame_chunk(chunk);
        match self.policy {
            policy if policy.claims_frames() => self.claimed_by(epoch, membership, FRAMES, chunk),
            Primaries::ByKind => Owner::Worker(epoch.by_kind(chunk, kind(has_payload))),
            _ => Owner::Worker(epoch.owners().by_position(chunk)),
        }
    }

    /// The row of units that counts a frame's chunk: frames of one chunk with different primaries
    /// are in different rows.
    #[inline]
    pub(crate) fn frame_row(&self, has_payload: bool) -> usize {
        usize::from(self.policy == Primaries::ByKind && !has_payload)
    }

    /// Rows of units that frames need.
    pub(crate) const FRAME_ROWS: usize = 2;

    /// Claims the chunk for worker `id` unless another one has. Only owners of the epoch may: the
    /// progress of no other worker would be asked for.
    #[inline]
    fn claim(&self, epoch: &Epoch, kind: dominoes::WorkKind, chunk: u64, id: usize) -> bool {
        let owners = epoch.owners();
        owners.contains(id)
            && self
                .greedy
                .is_mine(Work::chunk(chunk).of(kind), id, owners.count())
    }

    fn claimed_by(
        &self,
        epoch: &Epoch,
        membership: &MembershipTable,
        kind: dominoes::WorkKind,
        chunk: u64,
    ) -> Owner {
        let work = Work::chunk(chunk).of(kind);
        let owners = epoch.owners();
        if let Some(taker) = self.greedy.taker(work) {
            return Owner::Worker(taker);
        }
        if self.greedy.is_past(work) {
            return Owner::Done;
        }
        if membership.active() & owners.mask() == 0 {
            // No owner of the epoch is active any more. The chunk is claimed for one of them: any
            // worker may take over the work of a worker that is gone.
            self.greedy.is_mine(work, owners.nth(0), owners.count());
        }
        // A worker may have claimed it between the two reads.
        self.greedy
            .taker(work)
            .map_or(Owner::Unassigned, Owner::Worker)
    }
}

fn kind(has_payload: bool) -> dominoes::WorkKind {
    if has_payload { PAYLOAD } else { REST }
}

/// Chooses the primary of each batch that is published. Belongs to the receive pump.
pub(crate) struct PrimaryNamer {
    policy: Primaries,
    /// How many batches were published.
    batches: u64,
    /// The epoch of the batch that was published last.
    epoch: Epoch,
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
            epoch: Epoch::first(layout.replicas),
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
        self.begin_batch(shared, first);
        if matches!(self.policy, Primaries::ByPublisher | Primaries::Greedy)
            && self.epoch.owners().contains(usize::from(parser))
        {
            return parser;
        }
        self.name_by_rule(shared, (first, len), has_payload) as u8
    }

    /// Reads which workers may own the batch that begins, and stores that beside the log.
    #[inline]
    fn begin_batch(&mut self, shared: &ReplicatedShared, first: Seq) {
        self.batches += 1;
        let mask = shared.membership.staying();
        // If there are none, the previous owners stay: a worker that joins then finds their work
        // late.
        if mask != self.epoch.owners().mask() && mask != 0 {
            self.change_epoch(shared, mask);
        }
        shared.epoch_owners.set(first, self.epoch.owners().mask());
    }

    #[cold]
    fn change_epoch(&mut self, shared: &ReplicatedShared, mask: u64) {
        let joined = mask & !self.epoch.owners().mask();
        self.epoch = Epoch::of(mask);
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
        let owners = self.epoch.owners();
        match self.policy {
            Primaries::ByKind => self.epoch.by_kind(batch, kind(has_payload)),
            Primaries::ByLoad => {
                let by_position = owners.by_position(batch);
                if first >= self.next_balance {
                    self.next_balance = first + BALANCE_EVERY;
                    self.balance(shared, batch + 1);
                }
                let primary = self.load.primary(batch, self.given.len());
                let is_owner = self.epoch.owners().contains(primary);
                let primary = if is_owner { primary } else { by_position };
                self.given[primary] += len as u64;
                primary
            }
            _ => owners.by_position(batch),
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
            self.load.change(dominoes::WorkKind(0), from, weights);
        }
    }
}
