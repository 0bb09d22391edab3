//! What others are late with: when a worker looks for it, and how it takes it.
//!
//! A worker keeps the effects of every request until it knows that all of them are done ([`Kept`]). Others tell how far
//! they are with their shares, so mostly it forgets requests without a look. Where they fall behind, it walks over what
//! it keeps, oldest first, passes by what is done or begun, and takes what is late and nobody has begun.
//!
//! A walk remembers nothing. It begins at the oldest request that is kept, so whenever it comes to a piece, it has seen
//! all before it in the same unit done: a unit with a piece that it passed by undone is left for the rest of the walk.
//! Whatever is undone is either begun by a thread that lives, or there for the next walk of any worker.
//!
//! Late is what many requests have been applied behind, or what has stood first for long; and all that is due from one
//! that was late before and has told nothing new since. Late is not dead: nobody is presumed anything. A worker that
//! unwound or ended has told so, and its share is everybody's.

use core::sync::atomic::Ordering;

use dominoes::{Seq, Standing};

use super::hands::{Access, Hands, Numbered};
use super::kept::{Kept, LAST, piece};
use super::members::{Crews, seats};
use super::primaries::{Assigned, Owner};
use super::{Layout, Shared, Tamper};
use crate::effect::Effect;
use crate::time::Instant;

/// Effects and frames that a walk takes before its worker looks at anything else.
pub(super) const BITE: usize = 64;

/// What a worker knows of who is late.
pub(super) struct Watch {
    /// For each worker, how far it had told to be when it was found late. As long as it tells nothing new, it
    /// still is.
    suspects: Box<[Option<Seq>]>,
    /// Whether one of them may still be late.
    pub(super) suspecting: bool,
    /// A thief has begun what this worker's cursor is at.
    pub(super) blocked: bool,
    /// Time as last told to this worker.
    pub(super) now: Instant,
    /// What was the oldest that is not done when this worker last had to look, and since when.
    waiting: Option<(Seq, Instant)>,
    /// It has been so for too long.
    impatient: bool,
    /// When to look even if there is other work.
    look_at: Instant,
}

impl Watch {
    pub(super) fn new(seats: usize) -> Self {
        Watch {
            suspects: vec![None; seats].into_boxed_slice(),
            suspecting: false,
            blocked: false,
            now: Instant::ZERO,
            waiting: None,
            impatient: false,
            look_at: Instant::ZERO,
        }
    }

    /// Whether a worker that keeps `pending` requests should look how far the others are.
    #[inline]
    pub(super) fn is_due(&self, pending: usize, idle: bool, layout: &Layout) -> bool {
        pending > 0
            && (idle
                || self.suspecting
                || self.blocked
                || self.now >= self.look_at
                || pending > layout.steal_after + layout.request_chunk)
    }

    /// Looks who is late. Says whether something can be done about it.
    pub(super) fn look(&mut self, shared: &Shared, kept: &Kept, crews: &Crews) -> bool {
        self.look_at = self.now + shared.layout.patience;
        if kept.applied.is_empty() {
            (self.waiting, self.impatient, self.suspecting) = (None, false, false);
            return false;
        }
        match self.waiting {
            Some((seq, since)) if seq == kept.first => {
                self.impatient = self.now.since(since) >= shared.layout.patience;
            }
            _ => {
                self.waiting = Some((kept.first, self.now));
                self.impatient = false;
            }
        }
        self.suspecting = seats(crews.owners()).any(|id| self.suspects(shared, id));
        self.suspecting || self.blocked || self.is_late(shared, kept, kept.first)
    }

    fn suspects(&self, shared: &Shared, owner: usize) -> bool {
        // ORDERING: Relaxed: whether the work is done is asked elsewhere.
        let told = shared.performed[owner].load(Ordering::Relaxed);
        self.suspects[owner] == Some(told) || !shared.roll.is_present(owner)
    }

    /// Whether whatever is not done of the request at `seq` is late.
    fn is_late(&self, shared: &Shared, kept: &Kept, seq: Seq) -> bool {
        let layout = &shared.layout;
        let chunk = layout.request_chunk as u64;
        let chunk_end = (seq / chunk + 1) * chunk;
        self.impatient || kept.end() >= chunk_end + layout.steal_after as u64
    }

    /// Whether `me` may take what `owner` has not begun of the request at `seq`.
    fn may_take(
        &mut self,
        shared: &Shared,
        kept: &Kept,
        me: usize,
        owner: usize,
        seq: Seq,
    ) -> bool {
        if owner == me || self.suspects(shared, owner) {
            return true;
        }
        let late = self.is_late(shared, kept, seq);
        if late {
            // ORDERING: Relaxed, as in `suspects`.
            let told = shared.performed[owner].load(Ordering::Relaxed);
            self.suspects[owner] = Some(told);
            self.suspecting = true;
        }
        late
    }
}

/// Where a walk leaves things alone.
#[derive(Default)]
struct Left {
    /// A bit for each primary whose unit of the current chunk is left.
    owners: u64,
    /// Frames of each row below it, from where the walk is on, are left.
    frames_below: [u64; Assigned::FRAME_ROWS],
    /// Something was left that is not done.
    any: bool,
}

/// What a walk did.
pub(super) struct Walk {
    /// Effects performed and frames built.
    pub(super) done: usize,
    /// All requests below it are done, by whomever.
    pub(super) verified: Seq,
}

impl<T: Tamper> Hands<'_, T> {
    /// Walks over what is kept below `limit` and takes at most `most` pieces. The cursor is at the oldest request.
    pub(super) fn walk(&mut self, watch: &mut Watch, limit: Seq, most: usize) -> Walk {
        let kept = self.kept;
        let mut walk = Walk {
            done: 0,
            verified: kept.first,
        };
        let mut left = Left::default();
        while self.cursor.seq < limit
            && let Some(applied) = kept.applied.get((self.cursor.seq - kept.first) as usize)
        {
            let number = self.cursor.number;
            if number == applied.effects {
                match self.late_request(watch, &mut left, applied.primary, LAST) {
                    Access::Do => self.held.finished += 1,
                    Access::Pass => {}
                    Access::Stop => left.any = true,
                }
                self.next_request();
                let chunk = self.shared.layout.request_chunk as u64;
                if self.cursor.seq.is_multiple_of(chunk) {
                    left.owners = 0;
                }
                if !left.any {
                    walk.verified = self.cursor.seq;
                }
                continue;
            }
            if walk.done == most {
                break;
            }
            match &kept.effects[self.cursor.effect] {
                Effect::Transmit(transmit) => {
                    walk.done += self.late_frames(watch, &mut left, transmit, most - walk.done);
                    if self.cursor.frame < transmit.count {
                        break;
                    }
                }
                Effect::Send(send) => {
                    walk.done += self.late_frames(watch, &mut left, send, most - walk.done);
                    if self.cursor.frame < send.count {
                        break;
                    }
                }
                effect => match self.late_request(watch, &mut left, applied.primary, number) {
                    Access::Do => {
                        self.carry_out(applied, effect);
                        walk.done += 1;
                        self.stats.stolen += u64::from(!self.is_own(applied.primary));
                    }
                    Access::Pass => {}
                    Access::Stop => left.any = true,
                },
            }
            self.cursor.next_effect();
        }
        walk
    }

    /// Whether piece `number` of the cursor's request is to be taken now.
    fn late_request(
        &mut self,
        watch: &mut Watch,
        left: &mut Left,
        named: u8,
        number: u32,
    ) -> Access {
        let shared = self.shared;
        let seq = self.cursor.seq;
        let owner = match self.owner(named) {
            Owner::Worker(owner) => owner,
            Owner::Past => return Access::Pass,
            Owner::Nobody => {
                left.owners = u64::MAX;
                return Access::Stop;
            }
        };
        if shared.has_told(owner, seq) {
            return Access::Pass;
        }
        if left.owners & 1 << owner != 0 {
            return Access::Stop;
        }
        let found = if self.has_begun_requests(owner) {
            self.request(owner, number)
        } else {
            match shared.requests[owner].standing(piece(seq, number)) {
                Standing::Done => return Access::Pass,
                Standing::Begun => Access::Stop,
                Standing::Free if !watch.may_take(shared, self.kept, self.id, owner, seq) => {
                    Access::Stop
                }
                Standing::Free if T::ACTIVE && self.tamper.takes_unasked(seq) => Access::Do,
                Standing::Free => self.request(owner, number),
            }
        };
        if found == Access::Stop {
            left.owners |= 1 << owner;
        }
        found
    }

    /// Builds at most `most` of the cursor's frames, those that are to be taken now. Returns how many were built.
    fn late_frames(
        &mut self,
        watch: &mut Watch,
        left: &mut Left,
        frames: &impl Numbered,
        most: usize,
    ) -> usize {
        let mut built = 0;
        while self.cursor.frame < frames.count() && built < most {
            built += self.late_frame(watch, left, frames);
        }
        built
    }

    /// Whether the cursor's request, for which the pump named `named`, is this worker's own.
    fn is_own(&self, named: u8) -> bool {
        self.owner(named) == Owner::Worker(self.id)
    }

    fn owner(&self, named: u8) -> Owner {
        let (shared, seq) = (self.shared, self.cursor.seq);
        let chunk = shared.request_chunk_of(seq);
        shared
            .assigned
            .owner(self.crews, &shared.roll, seq, chunk, named)
    }

    /// Builds the cursor's frame if it is to be taken now, and moves on, over all of its chunk if it can. Returns how
    /// many were built.
    fn late_frame(&mut self, watch: &mut Watch, left: &mut Left, frames: &impl Numbered) -> usize {
        let shared = self.shared;
        let frame = frames.first() + u64::from(self.cursor.frame);
        let chunk = shared.frame_chunk_of(frame);
        let chunk_end = shared.frame_chunk_end(frame);
        let text = frames.has_text();
        let row = shared.assigned.frame_row(text);
        let owner = shared
            .assigned
            .frame_owner(self.crews, &shared.roll, chunk, text);
        let (mut built, mut behind) = (0, 1);
        match self.late_frame_access(watch, left, owner, frame, text) {
            Access::Do => {
                self.build(frames, frame);
                self.stats.stolen += u64::from(owner != Owner::Worker(self.id));
                built = 1;
            }
            Access::Pass => {}
            Access::Stop => {
                left.any = true;
                left.frames_below[row] = chunk_end;
                behind = chunk_end - frame;
            }
        }
        let rest = u64::from(frames.count() - self.cursor.frame);
        self.cursor.frame += behind.min(rest) as u32;
        built
    }

    /// Whether frame `frame` of the cursor's request is to be taken now.
    fn late_frame_access(
        &mut self,
        watch: &mut Watch,
        left: &Left,
        owner: Owner,
        frame: u64,
        text: bool,
    ) -> Access {
        let shared = self.shared;
        let seq = self.cursor.seq;
        let owner = match owner {
            Owner::Worker(owner) => owner,
            Owner::Past => return Access::Pass,
            Owner::Nobody => return Access::Stop,
        };
        let row = shared.assigned.frame_row(text);
        if shared.has_told(owner, seq) {
            return Access::Pass;
        }
        if frame < left.frames_below[row] {
            return Access::Stop;
        }
        if self.has_begun_frames(frame, text) {
            return self.frame(frame, text);
        }
        match shared.frames[row].standing(frame) {
            Standing::Done => Access::Pass,
            Standing::Begun => Access::Stop,
            Standing::Free if !watch.may_take(shared, self.kept, self.id, owner, seq) => {
                Access::Stop
            }
            Standing::Free if T::ACTIVE && self.tamper.takes_unasked(seq) => Access::Do,
            Standing::Free => self.frame(frame, text),
        }
    }
}
