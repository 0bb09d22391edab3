//! What a worker does while it performs: its share, and what others are late with.

use core::ops::{ControlFlow, Range};
use core::sync::atomic::Ordering;

use dominoes::{Attachments, Begun, Pin, Seq, Standing};

use super::share::{Applied, Cursor, Kept, Share};
use super::{Shared, Tamper};
use crate::effect::{Effect, Transmit};
use crate::engine::perform;
use crate::engine::world::Wakes;
use crate::engine::{Run, Shelf};
use crate::stats::EffectStats;

/// Bits of a piece's number that count effects within their request; the rest counts requests.
pub(super) const EFFECT_BITS: u32 = 22;
/// The piece behind a request's effects: with it the request is done.
const LAST: u32 = (1 << EFFECT_BITS) - 1;

/// Effect number `effect` of the request at `seq`, as [`Units`](dominoes::Units) count. Counts
/// requests modulo 2^41.
#[inline]
const fn piece(seq: Seq, effect: u32) -> u64 {
    (seq << EFFECT_BITS | effect as u64) & (u64::MAX >> 1)
}

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

/// A chunk of requests in which this worker has begun what one worker, itself or a late one, is primary for.
/// Dropped, also by unwinding, it tells what is done and lets somebody else go on.
struct Requests<'a> {
    begun: Begun<'a>,
    chunk: Range<Seq>,
    owner: u8,
    finished: u32,
    attachments: &'a Attachments<Run>,
}

impl Requests<'_> {
    fn tell(&mut self) -> u32 {
        match core::mem::take(&mut self.finished) {
            0 => 0,
            finished => self.attachments.done(self.chunk.start, finished),
        }
    }
}

impl Drop for Requests<'_> {
    fn drop(&mut self) {
        self.tell();
    }
}

/// A chunk of frames that this worker has begun.
struct Frames<'a> {
    begun: Begun<'a>,
    chunk: Range<u64>,
}

/// What may be done about a piece of work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// It is ours to do now.
    Do,
    /// It is done, or somebody else's.
    Pass,
    /// It is not done, and not ours to do now.
    Stop,
}

/// A worker while it performs. What others learn of it in atomic words, they learn once a chunk or at its end.
///
/// Two cursors go over the kept effects. The *front* does this worker's share. The *rear* follows: everything
/// below it is done, by whomever; what it finds undone and late it does itself. A piece is done by who has
/// begun its chunk ([`Units`](dominoes::Units)), and between two steps nothing is begun.
pub(super) struct Hands<'a, T: Tamper> {
    id: usize,
    shared: &'a Shared,
    kept: &'a Kept,
    share: &'a mut Share,
    /// Where frames go that nobody needs any more.
    shelf: &'a mut Shelf,
    stats: &'a mut EffectStats,
    tamper: &'a mut T,
    /// The chunk whose frames are being read.
    pin: Option<Pin<'a, Run>>,
    requests: Option<Requests<'a>>,
    frames: Option<Frames<'a>>,
    /// Applications with news.
    wakes: Wakes<'a>,
}

impl<'a, T: Tamper> Hands<'a, T> {
    pub(super) fn new(
        id: usize,
        shared: &'a Shared,
        kept: &'a Kept,
        share: &'a mut Share,
        shelf: &'a mut Shelf,
        stats: &'a mut EffectStats,
        tamper: &'a mut T,
    ) -> Self {
        Hands {
            id,
            shared,
            kept,
            share,
            shelf,
            stats,
            tamper,
            pin: None,
            requests: None,
            frames: None,
            wakes: Wakes::new(&shared.world),
        }
    }

    /// One step of this worker's share: `Break` when every applied request is done with, else whether
    /// something was performed.
    #[inline]
    pub(super) fn step(&mut self) -> ControlFlow<(), bool> {
        self.advance::<false>()
    }

    /// One step of the rear, over work that is done or late: `Break` where it is neither, else whether
    /// something was performed.
    #[cold]
    #[inline(never)]
    pub(super) fn steal(&mut self) -> ControlFlow<(), bool> {
        if self.share.rear.seq >= self.share.front.seq {
            return ControlFlow::Break(());
        }
        self.advance::<true>()
    }

    /// A step of one of the two cursors: of the rear if `LATE`.
    #[inline(always)]
    fn advance<const LATE: bool>(&mut self) -> ControlFlow<(), bool> {
        let mut cursor = if LATE {
            self.share.rear
        } else {
            self.share.front
        };
        let flow = self.step_of::<LATE>(&mut cursor);
        if LATE {
            self.share.rear = cursor;
        } else {
            self.share.front = cursor;
        }
        flow
    }

    #[inline(always)]
    fn step_of<const LATE: bool>(&mut self, cursor: &mut Cursor) -> ControlFlow<(), bool> {
        let index = (cursor.seq - self.kept.first) as usize;
        let Some(&applied) = self.kept.applied.get(index) else {
            return ControlFlow::Break(());
        };
        let seq = cursor.seq;
        if !cursor.begun {
            cursor.begun = true;
            cursor.left = applied.effects;
            let owner = self.shared.primary_of_request(seq, applied.publisher);
            cursor.owner = owner as u8;
            cursor.mine = owner == self.id;
        }
        if cursor.left == 0 {
            match self.request::<LATE>(cursor, LAST) {
                Access::Do => {
                    if let Some(requests) = &mut self.requests {
                        requests.finished += 1;
                        requests.begun.done(piece(seq, LAST));
                    }
                }
                Access::Pass => {}
                Access::Stop => return ControlFlow::Break(()),
            }
            if !LATE && cursor.mine {
                self.share.ahead = self.share.ahead.saturating_sub(applied.len as usize);
            }
            cursor.seq += 1;
            cursor.begun = false;
            if cursor
                .seq
                .is_multiple_of(self.shared.layout.request_chunk as u64)
            {
                self.leave_chunk();
            }
            return ControlFlow::Continue(false);
        }
        let kept = self.kept;
        let effect = &kept.effects[cursor.effect];
        let mut performed = false;
        if let Effect::Transmit(transmit) = effect {
            while cursor.frame < transmit.count {
                let i = cursor.frame;
                let access = self.frame::<LATE>(cursor, transmit);
                if access == Access::Stop {
                    return ControlFlow::Break(());
                }
                if access == Access::Do {
                    if T::ACTIVE {
                        self.tamper.performing(seq, effect);
                    }
                    perform::build(&self.shared.world, transmit, i, self.stats);
                    let frame = transmit.first_frame + u64::from(i);
                    self.built(frame);
                    if LATE {
                        self.stats.stolen +=
                            u64::from(self.shared.primary_of_frame(frame) != self.id);
                    }
                    performed = true;
                    break;
                }
            }
            if cursor.frame < transmit.count {
                return ControlFlow::Continue(performed);
            }
        } else {
            let number = applied.effects - cursor.left;
            match self.request::<LATE>(cursor, number) {
                Access::Do => {
                    if T::ACTIVE {
                        self.tamper.performing(seq, effect);
                    }
                    self.carry_out(seq, &applied, effect);
                    if let Some(requests) = &mut self.requests {
                        requests.begun.done(piece(seq, number));
                    }
                    self.stats.stolen += u64::from(LATE && !cursor.mine);
                    performed = true;
                }
                Access::Pass => {}
                Access::Stop => return ControlFlow::Break(()),
            }
        }
        cursor.frame = 0;
        cursor.effect += 1;
        cursor.left -= 1;
        ControlFlow::Continue(performed)
    }

    /// What was done in a chunk is told, and who was last takes its frames. A pin of ours would keep them from
    /// going back to the device.
    fn leave_chunk(&mut self) {
        self.pin = None;
        if let Some(mut requests) = self.requests.take()
            && requests.tell() as usize == requests.attachments.chunk()
        {
            let shelf = &mut *self.shelf;
            let attachments = requests.attachments;
            attachments.take_out(requests.chunk.start, &mut |_, run| shelf.put(run));
        }
    }

    /// Nothing more is performed for now.
    pub(super) fn rest(mut self) {
        self.leave_chunk();
    }

    /// Performs an effect that is no transmission.
    #[inline]
    fn carry_out(&mut self, seq: Seq, applied: &Applied, effect: &Effect) {
        let shared = self.shared;
        match effect {
            Effect::Deliver(deliver) => {
                match pinned(&shared.attachments, &mut self.pin, seq) {
                    Some(run) => perform::deliver(
                        &shared.world,
                        deliver,
                        applied.seg_len,
                        usize::from(applied.payload_offset),
                        run,
                        self.stats,
                    ),
                    None => self.stats.diverged += 1,
                }
                self.wakes.add(deliver.conn);
            }
            other => {
                perform::tell(&shared.world, other, self.stats);
                if let Effect::Release { conn, .. } = other {
                    self.wakes.add(*conn);
                }
            }
        }
    }

    /// Whether effect number `effect` of the cursor's request, which is no transmission, is to be done now.
    #[inline(always)]
    fn request<const LATE: bool>(&mut self, cursor: &Cursor, effect: u32) -> Access {
        if !LATE && !cursor.mine {
            return Access::Pass;
        }
        let piece = piece(cursor.seq, effect);
        if let Some(requests) = &self.requests
            && requests.owner == cursor.owner
            && requests.chunk.contains(&cursor.seq)
        {
            return if requests.begun.has_done(piece) {
                Access::Pass
            } else {
                Access::Do
            };
        }
        self.begin_requests(LATE, cursor, piece)
    }

    #[inline(never)]
    fn begin_requests(&mut self, late: bool, cursor: &Cursor, piece: u64) -> Access {
        let shared = self.shared;
        let seq = cursor.seq;
        let first = seq & !(shared.layout.request_chunk as u64 - 1);
        let chunk = first..first + shared.layout.request_chunk as u64;
        self.leave_chunk();
        let owner = usize::from(cursor.owner);
        let units = &shared.requests[owner];
        if late {
            if !self.is_late(owner, seq) {
                return Access::Stop;
            }
            match units.standing(piece) {
                Standing::Done => return Access::Pass,
                Standing::Begun => return Access::Stop,
                Standing::Free => {}
            }
            if T::ACTIVE && owner != self.id && self.tamper.takes_unasked(seq) {
                return Access::Do;
            }
        } else if seq < self.share.skipped.requests_below {
            return Access::Pass;
        }
        match units.begin(piece) {
            Ok(begun) => {
                let done = begun.has_done(piece);
                self.requests = Some(Requests {
                    begun,
                    chunk,
                    owner: cursor.owner,
                    finished: 0,
                    attachments: &shared.attachments,
                });
                if done {
                    return Access::Pass;
                }
                Access::Do
            }
            Err(Standing::Done) => Access::Pass,
            Err(_) if late => Access::Stop,
            Err(_) => {
                self.share.skipped.first.get_or_insert(seq);
                self.share.skipped.requests_below = chunk.end;
                Access::Pass
            }
        }
    }

    /// Whether the cursor's frame is to be built now. The cursor moves on, unless it has to stop.
    #[inline(always)]
    fn frame<const LATE: bool>(&mut self, cursor: &mut Cursor, transmit: &Transmit) -> Access {
        let frame = transmit.first_frame + u64::from(cursor.frame);
        let known = self.frames.as_ref();
        if !known.is_some_and(|frames| frames.chunk.contains(&frame)) {
            let chunk = self.shared.layout.frame_chunk as u64;
            let first = frame & !(chunk - 1);
            match self.begin_frames(LATE, cursor.seq, frame, first..first + chunk) {
                Access::Do => {}
                Access::Stop => return Access::Stop,
                Access::Pass => {
                    // What holds for one frame of a chunk that is done or not ours holds for those behind it.
                    let behind = (first + chunk - frame).min(u64::from(transmit.count));
                    cursor.frame = (cursor.frame + behind as u32).min(transmit.count);
                    return Access::Pass;
                }
            }
        }
        cursor.frame += 1;
        match &self.frames {
            Some(frames) if frames.begun.next() == frame => Access::Do,
            Some(frames) => {
                // Somebody was here before; or else numbered frames in another way than this replica.
                self.stats.diverged += u64::from(!frames.begun.has_done(frame));
                Access::Pass
            }
            // Taken unasked.
            None => Access::Do,
        }
    }

    /// Begins a chunk of frames, if it is ours or late. [`Access::Pass`] if that holds for all the rest of it.
    #[inline(never)]
    fn begin_frames(&mut self, late: bool, seq: Seq, frame: u64, chunk: Range<u64>) -> Access {
        let shared = self.shared;
        self.frames = None;
        let owner = shared.primary_of_frame(frame);
        if late {
            if !self.is_late(owner, seq) {
                return Access::Stop;
            }
            if shared.frames.standing(chunk.end - 1) == Standing::Done {
                return Access::Pass;
            }
            if T::ACTIVE && owner != self.id && self.tamper.takes_unasked(seq) {
                return Access::Do;
            }
        } else if owner != self.id || frame < self.share.skipped.frames_below {
            return Access::Pass;
        }
        match shared.frames.begin(frame) {
            Ok(begun) => {
                self.frames = Some(Frames { begun, chunk });
                Access::Do
            }
            Err(Standing::Done) => Access::Pass,
            Err(_) if late => Access::Stop,
            Err(_) => {
                self.share.skipped.first.get_or_insert(seq);
                self.share.skipped.frames_below = chunk.end;
                Access::Pass
            }
        }
    }

    /// A frame is built. A chunk that is done is let go of.
    #[inline]
    fn built(&mut self, frame: u64) {
        if let Some(frames) = &mut self.frames {
            frames.begun.done(frame);
            if frame + 1 == frames.chunk.end {
                self.frames = None;
            }
        }
    }

    /// Whether what `owner` has to do of the request at `seq`, or of frames that it numbered, may be taken: it is
    /// late by the layout's bound in positions, or has told nothing new since it was late before, or nothing has
    /// moved for too long. How many frames were numbered since says nothing: one request may number hundreds.
    fn is_late(&mut self, owner: usize, seq: Seq) -> bool {
        if owner == self.id {
            return true;
        }
        let layout = &self.shared.layout;
        // ORDERING: Relaxed: whether the work is done is asked elsewhere.
        let told = self.shared.performed[owner].load(Ordering::Relaxed);
        if told > seq || self.share.suspects[owner] == Some(told) {
            return true;
        }
        let bound = layout.steal_after as u64;
        let chunk = layout.request_chunk as u64;
        let chunk_end = (seq / chunk + 1) * chunk;
        let applied = self.kept.first + self.kept.applied.len() as u64;
        let late = self.share.impatient || applied >= chunk_end + bound;
        if late {
            self.share.suspects[owner] = Some(told);
            self.share.suspecting = true;
        }
        late
    }
}
