//! Who performs what.
//!
//! Requests have their primary from the pump, which names it as it publishes them; so all workers know the same one
//! without asking each other, and a policy may look at anything the pump can see. Frames have theirs by chunks of
//! their own numbers, since one request may ask for hundreds. Only [`Primaries::Greedy`] is decided later, by whoever
//! comes first.

use dominoes::{
    Assignment, Balancer, ByKind, ByLoad, ByPosition, Greedy, PrimaryPolicy, Seq, Work,
};

use super::{Layout, Shared};
use crate::digest::Request;

/// Who performs what requests ask for, and who builds frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Primaries {
    /// The worker that held the receive pump: it has the frames' headers in its cache, and who has nothing else to do
    /// takes the pump, so the work goes to whoever is free. Frames go by position.
    #[default]
    ByPublisher,
    /// Chunks of the log, and of frames, in turn.
    ByPosition,
    /// Chunks of the log, and of frames, go to who comes first: one compare-and-swap each. Who published prepares.
    Greedy,
    /// Payload, received or sent, by the lower half of the workers; acknowledgments and the rest by the upper half.
    ByKind,
    /// Chunks of the log as the workers keep up with what they were given. Frames go by position. At most 8 workers.
    ByLoad,
}

impl Primaries {
    /// All of them.
    pub const ALL: [Primaries; 5] = [
        Primaries::ByPublisher,
        Primaries::ByPosition,
        Primaries::Greedy,
        Primaries::ByKind,
        Primaries::ByLoad,
    ];
}

/// Payload.
const PAYLOAD: dominoes::Kind = dominoes::Kind(0);
/// Acknowledgments, and whatever moves no payload.
const REST: dominoes::Kind = dominoes::Kind(1);

/// Requests between two looks at how the workers keep up.
const BALANCE_EVERY: u64 = 256;

/// Who is primary of a piece of work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// This worker.
    Worker(usize),
    /// Who comes first, and nobody has.
    Nobody,
    /// It is long done.
    Past,
}

/// What all workers ask.
pub(super) struct Assigned {
    policy: Primaries,
    replicas: usize,
    kinds: ByKind,
    /// Requests are its first kind, frames its second.
    greedy: Greedy,
}

impl Assigned {
    /// For as many chunks of requests and of frames as can be open at once.
    pub(super) fn new(layout: &Layout, request_words: usize, frame_words: usize) -> Self {
        Assigned {
            policy: layout.primaries,
            replicas: layout.replicas,
            kinds: ByKind::halves(layout.replicas),
            greedy: Greedy::new(&[request_words, frame_words]),
        }
    }

    /// Whether worker `id` is primary of a request of chunk `chunk` for which the pump named `named`. Takes it, if
    /// that is the policy.
    #[inline]
    pub(super) fn is_mine(&self, id: usize, chunk: u64, named: u8) -> bool {
        if self.policy == Primaries::Greedy {
            return self.greedy.is_mine(Work::chunk(chunk), id, self.replicas);
        }
        usize::from(named) == id
    }

    /// Who is primary of a request.
    pub(super) fn owner(&self, chunk: u64, named: u8) -> Owner {
        match self.policy {
            Primaries::Greedy => self.taker(Work::chunk(chunk)),
            _ => Owner::Worker(usize::from(named)),
        }
    }

    /// Whether worker `id` is primary of frames of chunk `chunk`, with text or without. Takes them, if that is the
    /// policy.
    #[inline]
    pub(super) fn is_my_frame(&self, id: usize, chunk: u64, text: bool) -> bool {
        match self.policy {
            Primaries::Greedy => {
                let work = Work::chunk(chunk).of(dominoes::Kind(1));
                self.greedy.is_mine(work, id, self.replicas)
            }
            Primaries::ByKind => self.by_kind(chunk, text) == id,
            _ => ByPosition.primary(chunk, self.replicas) == id,
        }
    }

    /// Who is primary of a frame.
    pub(super) fn frame_owner(&self, chunk: u64, text: bool) -> Owner {
        match self.policy {
            Primaries::Greedy => self.taker(Work::chunk(chunk).of(dominoes::Kind(1))),
            Primaries::ByKind => Owner::Worker(self.by_kind(chunk, text)),
            _ => Owner::Worker(ByPosition.primary(chunk, self.replicas)),
        }
    }

    /// Frames of one chunk that have the same primary: their row among the units.
    #[inline]
    pub(super) fn frame_row(&self, text: bool) -> usize {
        usize::from(self.policy == Primaries::ByKind && !text)
    }

    /// Rows of units that frames need.
    pub(super) const FRAME_ROWS: usize = 2;

    fn by_kind(&self, chunk: u64, text: bool) -> usize {
        let kind = if text { PAYLOAD } else { REST };
        self.kinds
            .primary_of(Work::chunk(chunk).of(kind), self.replicas)
    }

    fn taker(&self, work: Work) -> Owner {
        match self.greedy.taker(work) {
            Some(taker) => Owner::Worker(taker),
            None if self.greedy.is_past(work) => Owner::Past,
            // Somebody may have come between the two looks.
            None => self.greedy.taker(work).map_or(Owner::Nobody, Owner::Worker),
        }
    }
}

/// Names primaries: the pump's part.
pub(super) struct Naming {
    policy: Primaries,
    replicas: usize,
    kinds: ByKind,
    load: ByLoad,
    balancer: Option<Balancer>,
    /// Requests that each worker was named for.
    given: Vec<u64>,
    /// Position of the next look at how they keep up.
    next_look: Seq,
}

impl Naming {
    pub(super) fn new(layout: &Layout) -> Self {
        let balanced = layout.primaries == Primaries::ByLoad;
        // A few chunks for everybody are ordinary.
        let slack = 4 * layout.request_chunk as u64;
        Naming {
            policy: layout.primaries,
            replicas: layout.replicas,
            kinds: ByKind::halves(layout.replicas),
            load: ByLoad::new(1, 1),
            balancer: balanced.then(|| Balancer::new(layout.replicas, slack)),
            given: vec![0; layout.replicas],
            next_look: BALANCE_EVERY,
        }
    }

    /// Who is to be primary of the request that worker `publisher` publishes at `seq`.
    #[inline]
    pub(super) fn name(
        &mut self,
        shared: &Shared,
        seq: Seq,
        publisher: u8,
        request: &Request,
    ) -> u8 {
        if matches!(self.policy, Primaries::ByPublisher | Primaries::Greedy) {
            return publisher;
        }
        self.name_by_rule(shared, seq, request) as u8
    }

    #[inline(never)]
    fn name_by_rule(&mut self, shared: &Shared, seq: Seq, request: &Request) -> usize {
        let chunk = shared.request_chunk_of(seq);
        let kind = if request.digest.len > 0 {
            PAYLOAD
        } else {
            REST
        };
        let work = Work::chunk(chunk).of(kind);
        match self.policy {
            Primaries::ByKind => self.kinds.primary_of(work, self.replicas),
            Primaries::ByLoad => {
                if seq >= self.next_look {
                    self.next_look = seq + BALANCE_EVERY;
                    self.balance(shared, chunk + 1);
                }
                let primary = self.load.primary(chunk, self.replicas);
                self.given[primary] += 1;
                primary
            }
            _ => ByPosition.primary(chunk, self.replicas),
        }
    }

    /// From chunk `from` on, shares are as the workers keep up.
    fn balance(&mut self, shared: &Shared, from: u64) {
        let done: Vec<u64> = shared
            .shares
            .iter()
            .map(|share| share.load().requests)
            .collect();
        if let Some(weights) = self
            .balancer
            .as_mut()
            .and_then(|balancer| balancer.sample(&self.given, &done))
        {
            self.load.change(dominoes::Kind(0), from, weights);
        }
    }
}
