//! What a worker keeps of what it applied: everything that it does not know to be done yet.

use core::hash::{Hash, Hasher};
use std::collections::VecDeque;

use dominoes::Seq;
use siphasher::sip::SipHasher13;

use crate::digest::Request;
use crate::effect::{Effect, EffectSink};

/// Bits of a piece's number that count effects within their request; the rest counts requests.
pub(super) const EFFECT_BITS: u32 = 22;
/// The piece behind a request's effects: with it the request is done.
pub(super) const LAST: u32 = (1 << EFFECT_BITS) - 1;

/// Effect number `effect` of the request at `seq`, as [`Units`](dominoes::Units) count. Counts
/// requests modulo 2^41.
#[inline]
pub(super) const fn piece(seq: Seq, effect: u32) -> u64 {
    (seq << EFFECT_BITS | effect as u64) & (u64::MAX >> 1)
}

/// What a worker keeps of an applied request: how many effects, and where its payload lies.
#[derive(Clone, Copy)]
pub(super) struct Applied {
    pub(super) effects: u32,
    pub(super) len: u32,
    pub(super) seg_len: u32,
    pub(super) payload_offset: u16,
    /// Whom the pump named.
    pub(super) primary: u8,
    /// Whether its payload lies in the receive ring already, where the pump reserved a place.
    pub(super) is_stored: bool,
}

/// The effects of the last requests, of all primaries, oldest first.
#[derive(Clone, Default)]
pub(super) struct Kept {
    /// Position of the oldest request that is kept. All before it are done, by whomever.
    pub(super) first: Seq,
    pub(super) applied: VecDeque<Applied>,
    pub(super) effects: VecDeque<Effect>,
    /// Effects of the request being applied.
    pending: u32,
}

impl EffectSink for Kept {
    #[inline(always)]
    fn push(&mut self, effect: Effect) {
        self.effects.push_back(effect);
        self.pending += 1;
    }

    fn mark(&self) -> usize {
        self.pending as usize
    }

    fn take_back(&mut self, mark: usize) {
        let before = self.effects.len() - self.pending as usize;
        self.effects.truncate(before + mark);
        self.pending = mark as u32;
    }
}

impl Kept {
    /// Nothing, from `first` on.
    pub(super) fn from(first: Seq) -> Self {
        Kept {
            first,
            ..Kept::default()
        }
    }

    /// The request that was applied last is complete: its effects count from now on. Its payload may be stored already.
    pub(super) fn commit(&mut self, request: &Request, is_stored: bool) {
        let (seg_len, payload_offset) = request.layout();
        self.applied.push_back(Applied {
            effects: core::mem::take(&mut self.pending),
            len: request.digest.len,
            seg_len,
            payload_offset: payload_offset as u16,
            primary: request.digest.primary,
            is_stored,
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

    /// What the newest request asks for, as one number.
    pub(super) fn fingerprint(&self) -> u64 {
        let newest = self.applied.back().map_or(0, |newest| newest.effects);
        let mut hasher = SipHasher13::new();
        for effect in self.effects.range(self.effects.len() - newest as usize..) {
            effect.hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The position after the newest request that is kept.
    #[inline]
    pub(super) fn end(&self) -> Seq {
        self.first + self.applied.len() as u64
    }

    /// Forgets requests below `below`. Returns how many effects that were.
    pub(super) fn forget(&mut self, below: Seq) -> usize {
        let before = self.effects.len();
        while self.first < below
            && let Some(oldest) = self.applied.pop_front()
        {
            self.effects.drain(..oldest.effects as usize);
            self.first += 1;
        }
        before - self.effects.len()
    }
}

/// A place in the kept effects: request, effect within it, frame within that.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    pub(super) seq: Seq,
    /// Effects of this request that are behind the cursor.
    pub(super) number: u32,
    /// Frames of this effect that are behind it.
    pub(super) frame: u32,
    /// Index among all kept effects.
    pub(super) effect: usize,
}

impl Cursor {
    /// At the oldest request that is kept.
    pub(super) fn at_first(kept: &Kept) -> Self {
        Cursor {
            seq: kept.first,
            ..Cursor::default()
        }
    }

    #[inline]
    pub(super) fn next_effect(&mut self) {
        self.frame = 0;
        self.effect += 1;
        self.number += 1;
    }

    #[inline]
    pub(super) fn next_request(&mut self) {
        self.seq += 1;
        self.number = 0;
    }
}
