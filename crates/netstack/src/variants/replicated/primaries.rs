//! Who performs what.
//!
//! Requests have their primary from the pump, which names it as it publishes them; so all workers know the same one
//! without asking each other, and a policy may look at anything the pump can see. Frames have theirs by chunks of
//! their own numbers, since one request may ask for hundreds. Only [`Primaries::Greedy`] is decided later, by whoever
//! comes first.

use dominoes::{Assignment, Balancer, ByLoad, Greedy, PrimaryPolicy, Seq, Work};

use super::members::{Crew, Crews, Roll, seats};
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
    /// Requests are its first kind, frames its second.
    greedy: Greedy,
}

/// Greedy's kinds of work.
const REQUESTS: dominoes::Kind = dominoes::Kind(0);
const FRAMES: dominoes::Kind = dominoes::Kind(1);

impl Assigned {
    /// For as many chunks of requests and of frames as can be open at once.
    pub(super) fn new(layout: &Layout, request_words: usize, frame_words: usize) -> Self {
        Assigned {
            policy: layout.primaries,
            greedy: Greedy::new(&[request_words, frame_words]),
        }
    }

    /// Whether worker `id` is primary of the request at `seq`, of chunk `chunk`, for which the pump named `named`. Takes
    /// it, if that is the policy.
    #[inline]
    pub(super) fn is_mine(
        &self,
        crews: &Crews,
        id: usize,
        seq: Seq,
        chunk: u64,
        named: u8,
    ) -> bool {
        if self.policy == Primaries::Greedy {
            return self.takes(crews.of_request(seq), REQUESTS, chunk, id);
        }
        usize::from(named) == id
    }

    /// Who is primary of a request.
    pub(super) fn owner(
        &self,
        crews: &Crews,
        roll: &Roll,
        seq: Seq,
        chunk: u64,
        named: u8,
    ) -> Owner {
        match self.policy {
            Primaries::Greedy => self.taker(crews.of_request(seq), roll, REQUESTS, chunk),
            _ => Owner::Worker(usize::from(named)),
        }
    }

    /// Whether worker `id` is primary of frames of chunk `chunk`, with text or without. Takes them, if that is the
    /// policy.
    #[inline]
    pub(super) fn is_my_frame(&self, crews: &Crews, id: usize, chunk: u64, text: bool) -> bool {
        let crew = crews.of_frames(chunk);
        match self.policy {
            Primaries::Greedy => self.takes(crew, FRAMES, chunk, id),
            Primaries::ByKind => crew.by_kind(chunk, kind(text)) == id,
            _ => crew.members().by_position(chunk) == id,
        }
    }

    /// Who is primary of a frame.
    pub(super) fn frame_owner(&self, crews: &Crews, roll: &Roll, chunk: u64, text: bool) -> Owner {
        let crew = crews.of_frames(chunk);
        match self.policy {
            Primaries::Greedy => self.taker(crew, roll, FRAMES, chunk),
            Primaries::ByKind => Owner::Worker(crew.by_kind(chunk, kind(text))),
            _ => Owner::Worker(crew.members().by_position(chunk)),
        }
    }

    /// Frames of one chunk that have the same primary: their row among the units.
    #[inline]
    pub(super) fn frame_row(&self, text: bool) -> usize {
        usize::from(self.policy == Primaries::ByKind && !text)
    }

    /// Rows of units that frames need.
    pub(super) const FRAME_ROWS: usize = 2;

    /// First come, first served, among the crew: nobody else would be asked whether it is done.
    #[inline]
    fn takes(&self, crew: &Crew, kind: dominoes::Kind, chunk: u64, id: usize) -> bool {
        let members = crew.members();
        members.has(id)
            && self
                .greedy
                .is_mine(Work::chunk(chunk).of(kind), id, members.count())
    }

    fn taker(&self, crew: &Crew, roll: &Roll, kind: dominoes::Kind, chunk: u64) -> Owner {
        let work = Work::chunk(chunk).of(kind);
        let members = crew.members();
        if let Some(taker) = self.greedy.taker(work) {
            return Owner::Worker(taker);
        }
        if self.greedy.is_past(work) {
            return Owner::Past;
        }
        if roll.present() & members.mask() == 0 {
            // None of the crew will come any more: the chunk goes to one of those that are gone, whose work
            // is everybody's.
            self.greedy.is_mine(work, members.nth(0), members.count());
        }
        // Somebody may have come between the two looks.
        self.greedy.taker(work).map_or(Owner::Nobody, Owner::Worker)
    }
}

fn kind(text: bool) -> dominoes::Kind {
    if text { PAYLOAD } else { REST }
}

/// Names primaries: the pump's part.
pub(super) struct Naming {
    policy: Primaries,
    /// Requests in a chunk, less one.
    within: u64,
    /// The crew of the chunk that is being published.
    crew: Crew,
    load: ByLoad,
    balancer: Option<Balancer>,
    /// Requests that each seat was named for.
    given: Vec<u64>,
    /// Position of the next look at how they keep up.
    next_look: Seq,
}

impl Naming {
    pub(super) fn new(layout: &Layout) -> Self {
        let balanced = layout.primaries == Primaries::ByLoad;
        // A few chunks for everybody are ordinary.
        let slack = 4 * layout.request_chunk as u64;
        let seats = layout.seat_count();
        Naming {
            policy: layout.primaries,
            within: layout.request_chunk as u64 - 1,
            crew: Crew::first(layout.replicas),
            load: ByLoad::new(1, 1),
            balancer: balanced.then(|| Balancer::new(seats, slack)),
            given: vec![0; seats],
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
        if seq & self.within == 0 {
            self.begin_chunk(shared, seq);
        }
        if matches!(self.policy, Primaries::ByPublisher | Primaries::Greedy)
            && self.crew.members().has(usize::from(publisher))
        {
            return publisher;
        }
        self.name_by_rule(shared, seq, request) as u8
    }

    /// Looks who is there, and says so beside the log.
    #[inline]
    fn begin_chunk(&mut self, shared: &Shared, seq: Seq) {
        let mask = shared.roll.crew();
        // With nobody there, those who were: whoever joins takes it for late.
        if mask != self.crew.members().mask() && mask != 0 {
            self.change(shared, mask);
        }
        let chunk = shared.request_chunk_of(seq);
        shared.roll.set_crew(chunk, self.crew.members().mask());
    }

    #[cold]
    fn change(&mut self, shared: &Shared, mask: u64) {
        let joined = mask & !self.crew.members().mask();
        self.crew = Crew::of(mask);
        if self.balancer.is_some() {
            // What others did in a seat's place is no backlog of who sits there now.
            for id in seats(joined) {
                self.given[id] = shared.shares[id].load().requests;
            }
        }
    }

    #[inline(never)]
    fn name_by_rule(&mut self, shared: &Shared, seq: Seq, request: &Request) -> usize {
        let chunk = shared.request_chunk_of(seq);
        let members = self.crew.members();
        match self.policy {
            Primaries::ByKind => self.crew.by_kind(chunk, kind(request.digest.len > 0)),
            Primaries::ByLoad => {
                let by_position = members.by_position(chunk);
                if seq >= self.next_look {
                    self.next_look = seq + BALANCE_EVERY;
                    self.balance(shared, chunk + 1);
                }
                let primary = self.load.primary(chunk, self.given.len());
                let is_there = self.crew.members().has(primary);
                let primary = if is_there { primary } else { by_position };
                self.given[primary] += 1;
                primary
            }
            _ => members.by_position(chunk),
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
