//! What a worker keeps of what it applied, and how far it is with it.

use std::collections::VecDeque;

use dominoes::Seq;

use crate::digest::Request;
use crate::effect::{Effect, EffectSink};
use crate::time::Instant;

/// What a worker keeps of an applied request: how many effects, and where its payload lies.
#[derive(Clone, Copy)]
pub(super) struct Applied {
    pub(super) effects: u32,
    pub(super) len: u32,
    pub(super) seg_len: u32,
    pub(super) payload_offset: u16,
    pub(super) publisher: u8,
}

/// The effects of the last requests, of all primaries, oldest first.
#[derive(Default)]
pub(super) struct Kept {
    /// Position of the oldest request that is kept.
    pub(super) first: Seq,
    pub(super) applied: VecDeque<Applied>,
    pub(super) effects: VecDeque<Effect>,
    /// Effects of the request being applied.
    pending: u32,
}

impl EffectSink for Kept {
    fn push(&mut self, effect: Effect) {
        self.effects.push_back(effect);
        self.pending += 1;
    }
}

impl Kept {
    /// The request that was applied last is complete: its effects count from now on.
    pub(super) fn commit(&mut self, request: &Request) {
        let (seg_len, payload_offset) = request.layout();
        self.applied.push_back(Applied {
            effects: core::mem::take(&mut self.pending),
            len: request.digest.len,
            seg_len,
            payload_offset: payload_offset as u16,
            publisher: request.digest.publisher,
        });
    }

    /// Lets `change` at the effects of the request being applied.
    pub(super) fn change_pending(&mut self, change: impl FnOnce(&mut Vec<Effect>)) {
        let from = self.effects.len() - self.pending as usize;
        let mut effects = self.effects.drain(from..).collect();
        change(&mut effects);
        self.pending = effects.len() as u32;
        self.effects.extend(effects);
    }

    /// Forgets requests below `below`.
    pub(super) fn forget(&mut self, below: Seq) {
        while self.first < below
            && let Some(oldest) = self.applied.pop_front()
        {
            self.effects.drain(..oldest.effects as usize);
            self.first += 1;
        }
    }
}

/// A place in the kept effects: request, effect within it, frame within that.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    pub(super) seq: Seq,
    /// Index among all kept effects.
    pub(super) effect: usize,
    /// Effects of this request that are left.
    pub(super) left: u32,
    pub(super) frame: u32,
    /// Whether `left` and `mine` have been set for this request.
    pub(super) begun: bool,
    /// The request's primary.
    pub(super) owner: u8,
    /// Whether that is this worker.
    pub(super) mine: bool,
}

impl Cursor {
    /// Passes over requests that need no look any more, up to `to`.
    pub(super) fn jump(&mut self, kept: &Kept, to: Seq) {
        while self.seq < to {
            let Some(applied) = kept.applied.get((self.seq - kept.first) as usize) else {
                return;
            };
            let left = if self.begun {
                self.left
            } else {
                applied.effects
            };
            self.effect += left as usize;
            self.seq += 1;
            (self.begun, self.frame) = (false, 0);
        }
    }
}

/// What a worker passed over of its own, because a thief was at it. It may not come back to the rest of these
/// chunks, since what stands before may not be done; its rear sees to it that all is.
#[derive(Clone, Copy, Default)]
pub(super) struct Skipped {
    /// The first request in question.
    pub(super) first: Option<Seq>,
    pub(super) requests_below: Seq,
    pub(super) frames_below: u64,
}

/// How far a worker is with its share, and with the others'.
pub(super) struct Share {
    /// Does this worker's share.
    pub(super) front: Cursor,
    /// Everything below it is done, by whomever.
    pub(super) rear: Cursor,
    pub(super) skipped: Skipped,
    /// Payload octets of requests that are prepared and not performed.
    pub(super) ahead: usize,
    /// For each worker, how far it had told to be when it was found late. As long as it tells nothing new, it
    /// still is.
    pub(super) suspects: Box<[Option<u64>]>,
    /// Whether one of them may still be late.
    pub(super) suspecting: bool,
    /// Time as last told to this worker.
    pub(super) now: Instant,
    /// When the rear was last seen to move, or to have nothing before it.
    pub(super) since: Instant,
    /// The rear has stood still for too long.
    pub(super) impatient: bool,
    /// What the others were last told of the front.
    pub(super) told: Seq,
    /// What the others were last told of the rear.
    pub(super) verified: Seq,
}

impl Share {
    pub(super) fn new(replicas: usize) -> Self {
        Share {
            front: Cursor::default(),
            rear: Cursor::default(),
            skipped: Skipped::default(),
            ahead: 0,
            suspects: vec![None; replicas].into_boxed_slice(),
            suspecting: false,
            now: Instant::ZERO,
            since: Instant::ZERO,
            impatient: false,
            told: 0,
            verified: 0,
        }
    }

    /// The position below which this worker's share is performed.
    pub(super) fn performed(&mut self) -> Seq {
        if self
            .skipped
            .first
            .is_some_and(|first| first < self.rear.seq)
        {
            self.skipped.first = None;
        }
        self.skipped.first.unwrap_or(self.front.seq)
    }
}
