//! What a worker does while it performs.
//!
//! A piece of work is done by who has begun its unit ([`Units`](dominoes::Units)), in ascending order, and between two
//! steps nothing is begun. Requests have units by primary and chunk of the log, frames by chunks of their numbers.
//! The worker's own share is done here: its cursor passes a piece of it only when that is done, by itself or by
//! somebody who found it late. While a thief has its unit, the cursor stands; what lies behind can still be had by
//! whoever looks for late work ([`late`](super::late)), this worker among them.

use dominoes::{Attachments, Begun, Pin, Seq, Standing};

use super::kept::{Applied, Cursor, Kept, LAST, piece};
use super::members::Crews;
use super::{Shared, Tamper};
use crate::effect::{Effect, SendDatagrams, Transmit};
use crate::engine::perform::{self, Template};
use crate::engine::world::{Wakes, World};
use crate::engine::{Run, Shelf};
use crate::stats::EffectStats;

/// The run at `seq`, from the chunk that `pin` holds; takes another pin if it holds a different one.
#[inline]
pub(super) fn pinned<'a, 's>(
    attachments: &'s Attachments<Run>,
    pin: &'a mut Option<Pin<'s, Run>>,
    seq: Seq,
) -> Option<&'a Run> {
    if pin.as_ref().is_none_or(|pin| !pin.range().contains(&seq)) {
        *pin = None;
        *pin = attachments.pin(seq);
    }
    pin.as_ref()?.get(seq)
}

/// Numbered frames that an effect asks for.
pub(super) trait Numbered {
    /// Number of the first one.
    fn first(&self) -> u64;
    /// How many.
    fn count(&self) -> u32;
    /// Builds frame `i` of them.
    fn build(&self, world: &World, i: u32, template: &mut Template, stats: &mut EffectStats);
    /// Whether they carry payload.
    fn has_text(&self) -> bool;
    /// The effect.
    fn effect(&self) -> Effect;
}

impl Numbered for Transmit {
    #[inline(always)]
    fn first(&self) -> u64 {
        self.first_frame
    }

    #[inline(always)]
    fn count(&self) -> u32 {
        self.count
    }

    #[inline(always)]
    fn build(&self, world: &World, i: u32, template: &mut Template, stats: &mut EffectStats) {
        perform::build(world, self, i, template, stats);
    }

    #[inline(always)]
    fn has_text(&self) -> bool {
        self.payload_len > 0
    }

    fn effect(&self) -> Effect {
        Effect::Transmit(*self)
    }
}

impl Numbered for SendDatagrams {
    fn first(&self) -> u64 {
        self.first_frame
    }

    fn count(&self) -> u32 {
        self.count
    }

    fn build(&self, world: &World, i: u32, _: &mut Template, stats: &mut EffectStats) {
        perform::build_datagram(world, self, i, stats);
    }

    fn has_text(&self) -> bool {
        true
    }

    fn effect(&self) -> Effect {
        Effect::Send(*self)
    }
}

/// What may be done about a piece of work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// It is ours to do now.
    Do,
    /// It is done.
    Pass,
    /// It is not done, and not ours to do now.
    Stop,
}

/// What became of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Something was performed.
    Performed,
    /// The cursor moved over what is done, or is somebody else's.
    Passed,
    /// Somebody else has begun what is next.
    Blocked,
    /// Every applied request is done with.
    End,
}

/// No chunk at all.
const NONE: u64 = u64::MAX;

/// A worker while it performs. What others learn of it in atomic words, they learn once a chunk or at its end: when
/// this is dropped, also by unwinding.
pub(super) struct Hands<'a, T: Tamper> {
    pub(super) id: usize,
    pub(super) shared: &'a Shared,
    pub(super) kept: &'a Kept,
    pub(super) crews: &'a Crews,
    pub(super) cursor: &'a mut Cursor,
    /// Payload octets of requests that are prepared and not performed.
    pub(super) ahead: &'a mut usize,
    pub(super) template: &'a mut Template,
    pub(super) stats: &'a mut EffectStats,
    pub(super) tamper: &'a mut T,
    /// Where frames go that nobody needs any more.
    pub(super) shelf: &'a mut Shelf,
    /// Applications with news.
    pub(super) wakes: Wakes<'a>,
    pub(super) held: Held<'a>,
}

/// What a worker has begun.
pub(super) struct Held<'a> {
    /// The chunk whose frames are being read.
    pin: Option<Pin<'a, Run>>,
    /// Requests of one chunk and one primary. What of them lies before the cursor is done.
    requests: Option<Begun<'a>>,
    /// Which chunk that is.
    chunk: u64,
    owner: usize,
    /// Requests of it that are done with and not reported.
    pub(super) finished: u32,
    /// Outgoing frames of one chunk and row.
    frames: Option<Begun<'a>>,
    /// Which ones.
    frame_chunk: u64,
    frame_row: usize,
}

impl Held<'_> {
    pub(super) const NOTHING: Self = Held {
        pin: None,
        requests: None,
        chunk: NONE,
        owner: 0,
        finished: 0,
        frames: None,
        frame_chunk: NONE,
        frame_row: 0,
    };
}

impl<T: Tamper> Hands<'_, T> {
    /// One step of this worker's share: an effect, or at most so many frames of one.
    #[inline]
    pub(super) fn step(&mut self, frames: u32) -> Step {
        let kept = self.kept;
        let Cursor { seq, number, .. } = *self.cursor;
        let Some(applied) = kept.applied.get((seq - kept.first) as usize) else {
            return Step::End;
        };
        let chunk = self.shared.request_chunk_of(seq);
        let assigned = &self.shared.assigned;
        let mine = assigned.is_mine(self.crews, self.id, seq, chunk, applied.primary);
        if number == applied.effects {
            if mine {
                match self.request(self.id, LAST) {
                    Access::Do => self.held.finished += 1,
                    Access::Pass => {}
                    Access::Stop => return Step::Blocked,
                }
            }
            if usize::from(applied.primary) == self.id {
                *self.ahead = self.ahead.saturating_sub(applied.len as usize);
                self.stats.requests += 1;
            }
            self.next_request();
            return Step::Passed;
        }
        let mut step = Step::Passed;
        match &kept.effects[self.cursor.effect] {
            Effect::Transmit(transmit) => match self.own_frames(transmit, frames) {
                Ok(done) => step = done,
                Err(early) => return early,
            },
            Effect::Send(send) => match self.own_frames(send, frames) {
                Ok(done) => step = done,
                Err(early) => return early,
            },
            effect if mine => {
                match self.request(self.id, number) {
                    Access::Do => self.carry_out(applied, effect),
                    Access::Pass => {}
                    Access::Stop => return Step::Blocked,
                }
                step = Step::Performed;
            }
            _ => {}
        }
        self.cursor.next_effect();
        step
    }

    /// Builds those of the cursor's frames that are ours, at most `most`. An error: there are more, or somebody else has
    /// begun the next one.
    #[inline(always)]
    fn own_frames(&mut self, frames: &impl Numbered, most: u32) -> Result<Step, Step> {
        let text = frames.has_text();
        let mut built = 0;
        while self.cursor.frame < frames.count() {
            if built == most {
                return Err(Step::Performed);
            }
            let frame = frames.first() + u64::from(self.cursor.frame);
            if !self.has_begun_frames(frame, text) && !self.is_my_frame(frame, text) {
                // Nor are the others of its chunk.
                let next = self.shared.frame_chunk_end(frame) - frames.first();
                self.cursor.frame = next.min(u64::from(frames.count())) as u32;
                continue;
            }
            match self.frame(frame, text) {
                Access::Do => {
                    self.build(frames, frame);
                    built += 1;
                }
                Access::Pass => {}
                Access::Stop if built > 0 => return Err(Step::Performed),
                Access::Stop => return Err(Step::Blocked),
            }
            self.cursor.frame += 1;
        }
        Ok(match built {
            0 => Step::Passed,
            _ => Step::Performed,
        })
    }

    fn is_my_frame(&self, frame: u64, text: bool) -> bool {
        let chunk = self.shared.frame_chunk_of(frame);
        let assigned = &self.shared.assigned;
        assigned.is_my_frame(self.crews, self.id, chunk, text)
    }

    /// The cursor moves on. A pin of ours would keep the frames of a chunk that is left from going back.
    #[inline]
    pub(super) fn next_request(&mut self) {
        let chunk = self.shared.request_chunk_of(self.cursor.seq);
        self.cursor.next_request();
        if self.shared.request_chunk_of(self.cursor.seq) != chunk {
            self.leave_requests();
        }
    }

    /// Whether piece `number` of the cursor's request, whose primary is `owner`, is to be done now.
    #[inline(always)]
    pub(super) fn request(&mut self, owner: usize, number: u32) -> Access {
        let seq = self.cursor.seq;
        let piece = piece(seq, number);
        if !self.has_begun_requests(owner)
            && let Some(found) = self.begin_requests(owner, piece)
        {
            return found;
        }
        match &self.held.requests {
            Some(begun) if begun.has_done(piece) => Access::Pass,
            _ => Access::Do,
        }
    }

    /// Whether the unit of the cursor's request is in our hands.
    #[inline(always)]
    pub(super) fn has_begun_requests(&self, owner: usize) -> bool {
        self.held.chunk == self.shared.request_chunk_of(self.cursor.seq) && self.held.owner == owner
    }

    #[inline(never)]
    fn begin_requests(&mut self, owner: usize, piece: u64) -> Option<Access> {
        self.leave_requests();
        match self.shared.requests[owner].begin(piece) {
            Ok(begun) => {
                self.held.requests = Some(begun);
                self.held.chunk = self.shared.request_chunk_of(self.cursor.seq);
                self.held.owner = owner;
                None
            }
            Err(Standing::Done) => Some(Access::Pass),
            Err(_) => Some(Access::Stop),
        }
    }

    /// What was done of a unit is told, and who was last takes its frames.
    pub(super) fn leave_requests(&mut self) {
        let held = &mut self.held;
        held.pin = None;
        let chunk = core::mem::replace(&mut held.chunk, NONE);
        let Some(mut begun) = held.requests.take() else {
            return;
        };
        begun.done_before(piece(self.cursor.seq, self.cursor.number));
        drop(begun);
        let finished = core::mem::take(&mut held.finished);
        if finished > 0 {
            let attachments = &self.shared.attachments;
            let first = chunk * attachments.chunk() as u64;
            if attachments.done(first, finished) as usize == attachments.chunk() {
                attachments.take_out(first, &mut |_, run| self.shelf.put(run));
            }
        }
    }

    /// Whether frame `frame`, with text or without, is to be built now.
    #[inline(always)]
    pub(super) fn frame(&mut self, frame: u64, text: bool) -> Access {
        if !self.has_begun_frames(frame, text)
            && let Some(found) = self.begin_frames(frame, text)
        {
            return found;
        }
        match &self.held.frames {
            Some(begun) if begun.has_done(frame) => Access::Pass,
            _ => Access::Do,
        }
    }

    #[inline(always)]
    pub(super) fn has_begun_frames(&self, frame: u64, text: bool) -> bool {
        self.held.frame_chunk == self.shared.frame_chunk_of(frame)
            && self.held.frame_row == self.shared.assigned.frame_row(text)
    }

    #[inline(never)]
    fn begin_frames(&mut self, frame: u64, text: bool) -> Option<Access> {
        self.leave_frames();
        let row = self.shared.assigned.frame_row(text);
        match self.shared.frames[row].begin(frame) {
            Ok(begun) => {
                self.held.frames = Some(begun);
                self.held.frame_row = row;
                self.held.frame_chunk = self.shared.frame_chunk_of(frame);
                None
            }
            Err(Standing::Done) => Some(Access::Pass),
            Err(_) => Some(Access::Stop),
        }
    }

    pub(super) fn leave_frames(&mut self) {
        self.held.frames = None;
        self.held.frame_chunk = NONE;
    }

    /// Builds frame `frame` of the cursor's effect, whose unit is held. A unit that is done is let go of.
    #[inline]
    pub(super) fn build(&mut self, frames: &impl Numbered, frame: u64) {
        if T::ACTIVE {
            self.tamper.performing(self.cursor.seq, &frames.effect());
        }
        let (world, i) = (&self.shared.world, self.cursor.frame);
        frames.build(world, i, self.template, self.stats);
        if let Some(begun) = &mut self.held.frames {
            begun.done(frame);
        }
        if self.shared.frame_chunk_of(frame + 1) != self.held.frame_chunk {
            self.leave_frames();
        }
    }

    /// Performs the cursor's effect, which is no transmission and whose unit is held.
    #[inline]
    pub(super) fn carry_out(&mut self, applied: &Applied, effect: &Effect) {
        let shared = self.shared;
        let seq = self.cursor.seq;
        if T::ACTIVE {
            self.tamper.performing(seq, effect);
        }
        match effect {
            Effect::Deliver(deliver) => {
                match pinned(&shared.attachments, &mut self.held.pin, seq) {
                    Some(run) => perform::deliver(
                        &shared.world,
                        deliver,
                        (applied.seg_len, usize::from(applied.payload_offset)),
                        &run.text(applied.is_stored),
                        self.stats,
                    ),
                    None => self.stats.diverged += 1,
                }
                self.wakes.add(deliver.conn);
            }
            Effect::Queue(queue) => {
                match pinned(&shared.attachments, &mut self.held.pin, seq) {
                    Some(run) => perform::queue(&shared.world, queue, &run.frames, self.stats),
                    None => self.stats.diverged += 1,
                }
                self.wakes.add_socket(queue.socket);
            }
            other => {
                perform::tell(&shared.world, other, self.stats);
                self.wakes.after(other);
            }
        }
    }
}

impl<T: Tamper> Drop for Hands<'_, T> {
    fn drop(&mut self) {
        self.leave_requests();
        self.leave_frames();
    }
}
