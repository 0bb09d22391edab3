//! Who takes part: seats, who sits on them, and whose work is whose while that changes.
//!
//! A seat is a worker's number. Workers come and go while the group runs, so all others have to agree, for every piece
//! of work, on whose it is, though they hear of a change at different moments. They agree by position: the pump looks
//! who is there whenever it begins a chunk of the log, and leaves the answer, the chunk's *crew*, in a word beside the
//! log before it publishes the chunk's first request. Whoever applies that request reads the word.
//!
//! - The primary of a request is named in the request, out of its chunk's crew.
//! - Frames go by chunks of their own number. A crew that begins at a position has the chunks of frames from the first
//!   on of which no number was given out below that position. Every replica knows which that is.
//!
//! # Who may own work that is not done
//! A worker that keeps requests from `first` on knows all crews that own any of it: the newest, and each older one until
//! `first` is past the position at which the newer one had begun both with requests and with frames. Below the smallest
//! position that any of these seats has told of, everything is done. A seat on none of them has nothing to do there,
//! whoever sits on it.
//!
//! # What a seat tells, when its worker changes
//! `performed[k]` says that the share of seat k below it is done. It says so for whoever will sit there next, too: what is
//! done stays done. A new worker takes over what the one that gave it its state keeps, from `first` on. All below is
//! done, by whomever; so it tells the larger of `first` and what its predecessor told, and raises that from there. The
//! word never falls. A seat that nobody had owns nothing before a crew names it, which happens behind the position of
//! the snapshot; so `first` is true of it as well.
//!
//! The word of a seat that nobody ever had is above everything. It is set to `first` before the seat is shown to be
//! taken, which is before any crew names it.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;

use dominoes::{ByKind, Kind, PrimaryPolicy, Seq, Work};

use super::Layout;

/// Seats of a group, at most. A reader of the log more for each that is being replaced must find room, too.
pub(super) const MAX_SEATS: usize = 56;

/// A set of seats, in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Members {
    mask: u64,
    count: u8,
    ids: [u8; MAX_SEATS],
}

impl Members {
    /// The seats whose bits are set.
    pub(super) fn of(mask: u64) -> Self {
        let mut members = Members {
            mask,
            count: 0,
            ids: [0; MAX_SEATS],
        };
        for id in seats(mask) {
            members.ids[usize::from(members.count)] = id as u8;
            members.count += 1;
        }
        members
    }

    #[inline]
    pub(super) fn mask(&self) -> u64 {
        self.mask
    }

    #[inline]
    pub(super) fn has(&self, id: usize) -> bool {
        self.mask >> id & 1 != 0
    }

    #[inline]
    pub(super) fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// Member `index` of them, in the order of their numbers.
    #[inline]
    pub(super) fn nth(&self, index: usize) -> usize {
        usize::from(self.ids[index])
    }

    /// Chunks in turn.
    #[inline]
    pub(super) fn by_position(&self, chunk: u64) -> usize {
        self.nth((chunk % u64::from(self.count)) as usize)
    }
}

/// The seats whose bits are set, in order.
pub(super) fn seats(mut mask: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        (mask != 0).then(|| {
            let id = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            id
        })
    })
}

/// Those who do the work from a position on.
#[derive(Clone, Debug)]
pub(super) struct Crew {
    members: Members,
    kinds: ByKind,
    /// First position whose primary is one of them.
    from: Seq,
    /// First chunk of frames that is theirs.
    from_frames: u64,
    /// Nothing at or above this position is theirs any more; `NOT_YET` as long as there is no next crew, or frames of
    /// theirs may still be numbered.
    past: Seq,
}

const NOT_YET: Seq = Seq::MAX;

impl Crew {
    fn new(mask: u64, from: Seq, from_frames: u64) -> Self {
        let members = Members::of(mask);
        Crew {
            kinds: ByKind::halves(members.count()),
            members,
            from,
            from_frames,
            past: NOT_YET,
        }
    }

    /// Those who begin a group, seats 0 to `members`.
    pub(super) fn first(members: usize) -> Self {
        Crew::of(u64::MAX >> (64 - members))
    }

    /// The seats whose bits are set, from the beginning.
    pub(super) fn of(mask: u64) -> Self {
        Crew::new(mask, 0, 0)
    }

    #[inline]
    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    /// The member that has work of this kind in chunk `chunk`, by kind.
    pub(super) fn by_kind(&self, chunk: u64, kind: Kind) -> usize {
        let work = Work::chunk(chunk).of(kind);
        self.members
            .nth(self.kinds.primary_of(work, self.members.count()))
    }
}

/// What a worker knows of who takes part: the crew at the position that it has applied to, and older ones that
/// may own work that it keeps.
#[derive(Clone, Debug)]
pub(super) struct Crews {
    now: Crew,
    before: VecDeque<Crew>,
    /// The seats of all of them.
    owners: u64,
    /// Where the next chunk of the log begins.
    next: Seq,
}

impl Crews {
    /// Those of a group that begins with `members`.
    pub(super) fn new(members: usize) -> Self {
        let now = Crew::first(members);
        Crews {
            owners: now.members.mask,
            now,
            before: VecDeque::new(),
            next: 0,
        }
    }

    /// Whether a chunk of the log begins at `seq`, and [`begin`](Self::begin) is to be called before it is applied.
    #[inline]
    pub(super) fn is_due(&self, seq: Seq) -> bool {
        seq == self.next
    }

    /// A chunk of the log begins, whose crew is `mask`. The first frame that it may number is `frame`.
    #[inline]
    pub(super) fn begin(&mut self, mask: u64, layout: &Layout, frame: u64) {
        let at = self.next;
        self.next += layout.request_chunk as u64;
        if mask != self.now.members.mask || !self.before.is_empty() {
            self.change(at, mask, frame, layout.frame_chunk as u64);
        }
    }

    #[cold]
    fn change(&mut self, at: Seq, mask: u64, frame: u64, frame_chunk: u64) {
        // Crews end in the order in which they began.
        let mut heir = self.now.from_frames;
        for crew in self.before.iter_mut().rev() {
            if crew.past == NOT_YET && frame >= heir * frame_chunk {
                crew.past = at;
            }
            heir = crew.from_frames;
        }
        if mask != self.now.members.mask {
            let next = Crew::new(mask, at, frame.div_ceil(frame_chunk));
            let mut last = core::mem::replace(&mut self.now, next);
            if frame.is_multiple_of(frame_chunk) {
                last.past = at;
            }
            self.before.push_back(last);
            self.owners |= mask;
        }
    }

    /// Everything below `first` is done: crews that own nothing else are forgotten.
    #[inline]
    pub(super) fn forget(&mut self, first: Seq) {
        if !self.before.is_empty() {
            self.forget_crews(first);
        }
    }

    #[cold]
    fn forget_crews(&mut self, first: Seq) {
        while self.before.front().is_some_and(|crew| crew.past <= first) {
            self.before.pop_front();
        }
        let masks = self.before.iter().map(|crew| crew.members.mask);
        self.owners = masks.fold(self.now.members.mask, |all, mask| all | mask);
    }

    /// All seats that may own work that is not known to be done.
    #[inline]
    pub(super) fn owners(&self) -> u64 {
        self.owners
    }

    /// Whose chunk `chunk` of frames is.
    #[inline]
    pub(super) fn of_frames(&self, chunk: u64) -> &Crew {
        if chunk >= self.now.from_frames {
            return &self.now;
        }
        self.older(|crew| chunk >= crew.from_frames)
    }

    /// Whose the request at `seq` is.
    #[inline]
    pub(super) fn of_request(&self, seq: Seq) -> &Crew {
        if seq >= self.now.from {
            return &self.now;
        }
        self.older(|crew| seq >= crew.from)
    }

    #[cold]
    fn older(&self, governs: impl Fn(&Crew) -> bool) -> &Crew {
        let found = self.before.iter().rev().find(|crew| governs(crew));
        found.or(self.before.front()).unwrap_or(&self.now)
    }
}

/// Who sits where. Read by all, written when somebody comes or goes.
pub(super) struct Roll {
    /// Seats whose worker takes part.
    present: AtomicU64,
    /// Seats that somebody has had.
    known: AtomicU64,
    /// Seats whose worker was asked to leave.
    leaving: AtomicU64,
    /// Seats whose worker was asked to leave and to rest.
    tired: AtomicU64,
    /// Seats whose worker rests.
    resting: AtomicU64,
    /// Seats that somebody waits for who wants a state, or has been given one and does not take part yet.
    expected: AtomicU64,
    /// Seats whose worker is to look into the book.
    called: AtomicU64,
    /// Seats whose worker is said to differ from the majority.
    accused: AtomicU64,
    /// The crew of each chunk of the log.
    crews: Box<[AtomicU64]>,
    /// For each seat, the position of the snapshot that its worker began with.
    since: Box<[AtomicU64]>,
}

impl Roll {
    /// For `seats`, the first `members` of which are taken, and as many open chunks of the log; the other seats rest, if
    /// `others_rest`.
    pub(super) fn new(seats: usize, members: usize, chunks: usize, others_rest: bool) -> Self {
        let all = u64::MAX >> (64 - members);
        let others = u64::MAX >> (64 - seats) & !all;
        let resting = if others_rest { others } else { 0 };
        Roll {
            present: AtomicU64::new(all),
            known: AtomicU64::new(all),
            leaving: AtomicU64::new(0),
            tired: AtomicU64::new(0),
            resting: AtomicU64::new(resting),
            expected: AtomicU64::new(0),
            called: AtomicU64::new(resting),
            accused: AtomicU64::new(0),
            crews: (0..chunks).map(|_| AtomicU64::new(all)).collect(),
            since: (0..seats).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Seats whose worker takes part.
    #[inline]
    pub(super) fn present(&self) -> u64 {
        // ORDERING: Acquire, pairs with the Release in `sit`: who is seen there has told how far its share is done.
        self.present.load(Ordering::Acquire)
    }

    /// Whether worker `id` takes part; its share is everybody's if it does not.
    #[inline]
    pub(super) fn is_present(&self, id: usize) -> bool {
        // ORDERING: Relaxed: what is done and what is not stands elsewhere.
        self.present.load(Ordering::Relaxed) >> id & 1 != 0
    }

    /// Those who are given new work: everybody who is not about to leave.
    #[inline]
    pub(super) fn crew(&self) -> u64 {
        self.present() & !self.leaving.load(Ordering::Relaxed)
    }

    /// Seats that somebody has had.
    #[inline]
    pub(super) fn known(&self) -> u64 {
        // ORDERING: Acquire, as in `present`.
        self.known.load(Ordering::Acquire)
    }

    /// Whether some seat stands empty that somebody had.
    #[inline]
    pub(super) fn misses_somebody(&self) -> bool {
        self.known.load(Ordering::Relaxed) & !self.present.load(Ordering::Relaxed) != 0
    }

    /// Leaves the crew of chunk `chunk` of the log for those who will apply it. The pump's.
    #[inline]
    pub(super) fn set_crew(&self, chunk: u64, mask: u64) {
        // ORDERING: Relaxed: the chunk's first request is published behind it. Everybody has read what stood here, since
        // everybody has released the slot that this request gets.
        self.crews[chunk as usize & (self.crews.len() - 1)].store(mask, Ordering::Relaxed);
    }

    /// The crew of chunk `chunk`, whose first request is published, and not applied by the caller.
    #[inline]
    pub(super) fn crew_of(&self, chunk: u64) -> u64 {
        // ORDERING: Relaxed, as in `set_crew`.
        self.crews[chunk as usize & (self.crews.len() - 1)].load(Ordering::Relaxed)
    }

    /// Worker `id` takes part from now on, with the state at `since`. Its share is told of before.
    pub(super) fn sit(&self, id: usize, since: Seq) {
        self.keep(id);
        self.accused.fetch_and(!(1 << id), Ordering::Relaxed);
        self.since[id].store(since, Ordering::Relaxed);
        self.known.fetch_or(1 << id, Ordering::Release);
        // ORDERING: Release, pairs with the Acquire in `present`.
        self.present.fetch_or(1 << id, Ordering::Release);
    }

    /// Worker `id` unwinds, ends, or throws its state away.
    pub(super) fn rise(&self, id: usize) {
        self.present.fetch_and(!(1 << id), Ordering::Release);
        self.leaving.fetch_and(!(1 << id), Ordering::Relaxed);
    }

    /// Asks worker `id` to leave.
    pub(super) fn dismiss(&self, id: usize) {
        self.leaving.fetch_or(1 << id, Ordering::Relaxed);
        self.call(1 << id);
    }

    /// Worker `id` stays.
    pub(super) fn keep(&self, id: usize) {
        self.leaving.fetch_and(!(1 << id), Ordering::Relaxed);
        self.tired.fetch_and(!(1 << id), Ordering::Relaxed);
    }

    /// Worker `id`, when it leaves, is to rest.
    pub(super) fn tire(&self, id: usize) {
        self.tired.fetch_or(1 << id, Ordering::Relaxed);
    }

    /// Whether worker `id` is to rest when it leaves. Asked once.
    pub(super) fn takes_rest(&self, id: usize) -> bool {
        self.tired.fetch_and(!(1 << id), Ordering::Relaxed) >> id & 1 != 0
    }

    /// Worker `id` rests from now on, or does no longer.
    pub(super) fn set_resting(&self, id: usize, rests: bool) {
        // ORDERING: Relaxed: what there is to know stands in the book.
        if rests {
            self.resting.fetch_or(1 << id, Ordering::Relaxed);
        } else {
            self.resting.fetch_and(!(1 << id), Ordering::Relaxed);
        }
    }

    /// Somebody waits for seat `id`.
    pub(super) fn expect(&self, id: usize) {
        // ORDERING: Relaxed: whoever gives away a state has the lock of the book, in which this was said.
        self.expected.fetch_or(1 << id, Ordering::Relaxed);
    }

    /// Who waited for seat `id` sits there, or waits no longer.
    pub(super) fn expect_no_more(&self, id: usize) {
        // ORDERING: Release, pairs with the Acquire in `has_none_but`.
        self.expected.fetch_and(!(1 << id), Ordering::Release);
    }

    /// Whether nobody but worker `id` takes part, nor is about to.
    #[inline]
    pub(super) fn has_none_but(&self, id: usize) -> bool {
        // ORDERING: Acquire, pairs with the Release in `expect_no_more`: who is expected no more is seen to sit.
        self.expected.load(Ordering::Acquire) == 0 && self.present() == 1 << id
    }

    /// Seats whose worker rests.
    #[inline]
    pub(super) fn resting(&self) -> u64 {
        self.resting.load(Ordering::Relaxed)
    }

    pub(super) fn is_leaving(&self, id: usize) -> bool {
        self.leaving.load(Ordering::Relaxed) >> id & 1 != 0
    }

    /// Lets these workers look into the book.
    pub(super) fn call(&self, mask: u64) {
        // ORDERING: Release, pairs with the Acquire in `answer_call`.
        self.called.fetch_or(mask, Ordering::Release);
    }

    #[inline]
    pub(super) fn is_called(&self, id: usize) -> bool {
        self.called.load(Ordering::Relaxed) >> id & 1 != 0
    }

    /// Worker `id` looks now.
    pub(super) fn answer_call(&self, id: usize) {
        // ORDERING: Acquire, pairs with the Release in `call`.
        self.called.fetch_and(!(1 << id), Ordering::Acquire);
    }

    /// Says that these workers differ from the majority.
    pub(super) fn accuse(&self, mask: u64) {
        self.accused.fetch_or(mask, Ordering::Relaxed);
        self.call(mask);
    }

    /// Whether somebody said so of worker `id`. The answer is given once.
    pub(super) fn take_accusation(&self, id: usize) -> bool {
        self.accused.fetch_and(!(1 << id), Ordering::Relaxed) >> id & 1 != 0
    }

    /// Where the worker on seat `id` began.
    pub(super) fn since(&self, id: usize) -> Seq {
        self.since[id].load(Ordering::Relaxed)
    }

    /// Those whose state at `position` is one that they came to by themselves.
    pub(super) fn voters(&self, position: Seq) -> u64 {
        let there = self.present();
        let voters = seats(there).filter(|id| self.since(*id) < position);
        voters.fold(0, |mask, id| mask | 1 << id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let mut layout = Layout::default();
        (layout.request_chunk, layout.frame_chunk) = (4, 8);
        layout
    }

    /// A crew for each chunk of the log, and how many frames were numbered when it began.
    fn crews(chunks: &[(u64, u64)]) -> Crews {
        let mut crews = Crews::new(2);
        for (mask, frame) in chunks {
            assert!(crews.is_due(crews.next));
            crews.begin(*mask, &layout(), *frame);
        }
        crews
    }

    #[test]
    fn chunks_of_frames_keep_their_owner_when_a_crew_changes() {
        let crews = crews(&[(0b11, 0), (0b101, 9), (0b111, 9), (0b110, 40)]);
        let owner = |chunk| crews.of_frames(chunk).members().mask();
        // Frame 9 is in chunk 1, which the first crew has begun.
        assert_eq!([0, 1].map(owner), [0b11; 2]);
        // The third crew begins before a frame of the second's is numbered.
        assert_eq!([2, 3, 4].map(owner), [0b111; 3]);
        assert_eq!([5, 6, 99].map(owner), [0b110; 3]);
        let owner = |seq| crews.of_request(seq).members().mask();
        assert_eq!(
            [0, 3, 4, 7, 8].map(owner),
            [0b11, 0b11, 0b101, 0b101, 0b111]
        );
    }

    #[test]
    fn seats_own_work_until_all_that_a_crew_of_theirs_may_own_is_done() {
        let mut crews = crews(&[(0b11, 0), (0b100, 9)]);
        assert_eq!(crews.owners(), 0b111);
        crews.forget(8);
        assert_eq!(
            crews.owners(),
            0b111,
            "frames 9 to 15 are still to be numbered"
        );
        crews.begin(0b100, &layout(), 15);
        crews.forget(12);
        assert_eq!(crews.owners(), 0b111);
        crews.begin(0b100, &layout(), 16);
        crews.forget(11);
        assert_eq!(crews.owners(), 0b111);
        crews.forget(12);
        assert_eq!(crews.owners(), 0b100);
    }

    #[test]
    fn who_began_with_a_snapshot_votes_behind_its_position() {
        let roll = Roll::new(3, 3, 4, false);
        assert_eq!((roll.voters(0), roll.voters(1)), (0, 0b111));
        roll.rise(2);
        assert_eq!(roll.voters(5), 0b11);
        roll.sit(2, 5);
        assert_eq!((roll.voters(5), roll.voters(6)), (0b11, 0b111));
    }

    #[test]
    fn who_is_asked_to_leave_is_there_and_gets_no_new_work() {
        let roll = Roll::new(3, 3, 4, false);
        roll.dismiss(1);
        assert_eq!((roll.present(), roll.crew()), (0b111, 0b101));
        roll.keep(1);
        assert_eq!(roll.crew(), 0b111);
    }

    #[test]
    fn the_first_request_of_a_crew_is_its_own_when_two_crews_follow_each_other() {
        let crews = crews(&[(0b11, 0), (0b100, 0)]);
        let owner = |seq| crews.of_request(seq).members().mask();
        assert_eq!([3, 4].map(owner), [0b11, 0b100]);
    }

    #[test]
    fn members_go_by_position_over_the_seats_that_are_taken() {
        let members = Members::of(0b1011_0010);
        let found: Vec<usize> = (0..6).map(|chunk| members.by_position(chunk)).collect();
        assert_eq!(found, [1, 4, 5, 7, 1, 4]);
        assert!(members.has(7) && !members.has(6));
    }
}
