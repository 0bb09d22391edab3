//! Pending effects: a worker keeps the effects of requests that it has applied and does not perform
//! at once, until it knows that they are done.

use core::hash::{Hash, Hasher};
use std::collections::VecDeque;

use dominoes::Seq;
use siphasher::sip::SipHasher13;

use super::ReplicatedShared;
use crate::log::effect::Effect;
use crate::log::request::{InBatch, Request};
use crate::state::apply::ReplicaState;

/// Bits of a piece's number that count effects within their request; the other bits count requests.
const EFFECT_BITS: u32 = 22;
const _: () = assert!(256 << EFFECT_BITS <= dominoes::BatchRecords::<()>::MAX_PIECES);

/// A place in a batch, as [`BatchRecords`](dominoes::BatchRecords) number pieces of work: effect
/// `effect` of request `index`.
#[inline]
pub(crate) const fn piece(index: u8, effect: u32) -> u64 {
    (index as u64) << EFFECT_BITS | effect as u64
}

/// A request that this worker has applied.
#[derive(Clone, Copy)]
pub(crate) struct Applied {
    /// All frames that it and earlier requests number are below this one.
    pub(crate) frames: u64,
    pub(crate) effects: u32,
    /// Its payload, in bytes.
    pub(crate) len: u32,
    /// Segments or datagrams.
    pub(crate) count: u8,
    pub(crate) in_batch: InBatch,
}

impl Applied {
    /// A request that `replica` just applied, which has so many effects.
    #[inline]
    pub(crate) fn new(request: &Request, effects: usize, replica: &ReplicaState) -> Self {
        Applied {
            frames: replica.frames().next,
            effects: effects as u32,
            len: request.digest.len,
            count: request.digest.count,
            in_batch: request.in_batch,
        }
    }
}

/// The effects of the last requests, of all primaries, oldest first.
#[derive(Clone, Default)]
pub(crate) struct PendingEffects {
    /// Position of the oldest pending request. All requests before it are done.
    pub(crate) first: Seq,
    pub(crate) applied: VecDeque<Applied>,
    pub(crate) effects: VecDeque<Effect>,
    /// How many effects were dropped, which is the number of the oldest one.
    dropped: u64,
    /// All frames below are known to be built.
    pub(crate) built: u64,
}

impl PendingEffects {
    /// No effects, from position `first` on.
    pub(crate) fn from(first: Seq) -> Self {
        PendingEffects {
            first,
            ..PendingEffects::default()
        }
    }

    /// Adds a request that was just applied, with its `effects`.
    #[inline(always)]
    pub(crate) fn add(&mut self, applied: Applied, effects: &mut Vec<Effect>) {
        self.effects.extend(effects.iter());
        effects.clear();
        self.applied.push_back(applied);
    }

    /// A hash of the effects of the newest request.
    pub(crate) fn fingerprint(&self) -> u64 {
        let newest = self.applied.back().map_or(0, |newest| newest.effects);
        let mut hasher = SipHasher13::new();
        for effect in self.effects.range(self.effects.len() - newest as usize..) {
            effect.hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The position after the newest pending request.
    #[inline]
    pub(crate) fn end(&self) -> Seq {
        self.first + self.applied.len() as u64
    }

    /// The request at `seq`, if it is pending.
    #[inline]
    pub(crate) fn request(&self, seq: Seq) -> Option<&Applied> {
        self.applied.get((seq - self.first) as usize)
    }

    /// The effect at `cursor`, which is before the end of its request.
    #[inline]
    pub(crate) fn effect(&self, cursor: &Cursor) -> &Effect {
        &self.effects[(cursor.effect - self.dropped) as usize]
    }

    /// The number after the newest effect.
    #[inline]
    pub(crate) fn effects_end(&self) -> u64 {
        self.dropped + self.effects.len() as u64
    }

    /// Drops the oldest requests, below `below`, whose batches are done and whose frames are built,
    /// by any worker.
    pub(crate) fn forget(&mut self, below: Seq, shared: &ReplicatedShared) {
        while self.first < below
            && let Some(oldest) = self.applied.front()
            && shared.records.is_done(oldest.in_batch.first(self.first))
            && shared.world.tx.has_built(&mut self.built, oldest.frames)
        {
            self.dropped += u64::from(oldest.effects);
            self.effects.drain(..oldest.effects as usize);
            self.applied.pop_front();
            self.first += 1;
        }
    }
}

/// A place in the pending effects: request, effect within it, frame within that.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cursor {
    pub(crate) seq: Seq,
    /// Effects of this request that the cursor has passed.
    pub(crate) number: u32,
    /// Frames of this effect that the cursor has passed.
    pub(crate) frame: u32,
    /// Number of the effect among all that ever were pending.
    pub(crate) effect: u64,
}

impl Cursor {
    /// The cursor at the oldest pending request.
    pub(crate) fn at_first(pending: &PendingEffects) -> Self {
        Cursor {
            seq: pending.first,
            effect: pending.dropped,
            ..Cursor::default()
        }
    }

    #[inline]
    pub(crate) fn next_effect(&mut self) {
        self.frame = 0;
        self.effect += 1;
        self.number += 1;
    }

    #[inline]
    pub(crate) fn next_request(&mut self) {
        self.seq += 1;
        (self.number, self.frame) = (0, 0);
    }
}
