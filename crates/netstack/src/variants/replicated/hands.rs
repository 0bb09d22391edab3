//! What a worker does while it performs, and what it keeps for it.

use core::ops::ControlFlow;
use std::collections::VecDeque;

use dominoes::{Attachments, Pin, Seq};

use super::Shared;
use crate::digest::Request;
use crate::effect::{Effect, EffectSink};
use crate::engine::perform;
use crate::engine::world::Wakes;
use crate::engine::{Run, Shelf};
use crate::stats::EffectStats;

/// What a worker keeps of an applied request: how many effects, and where its payload lies.
#[derive(Clone, Copy)]
pub(super) struct Applied {
    effects: u32,
    len: u32,
    seg_len: u32,
    payload_offset: u16,
    publisher: u8,
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

/// Where a worker stands in performing: request, effect within it, frame within that.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    pub(super) seq: Seq,
    /// Index among all kept effects.
    pub(super) effect: usize,
    /// Effects of this request that are left.
    pub(super) left: u32,
    pub(super) frame: u32,
    /// Whether `left` has been set for this request.
    pub(super) begun: bool,
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

/// A worker while it performs. What others learn of it in atomic words, they learn once a chunk or at its end.
pub(super) struct Hands<'a> {
    pub(super) id: usize,
    pub(super) shared: &'a Shared,
    pub(super) kept: &'a Kept,
    pub(super) ahead: &'a mut usize,
    pub(super) cursor: &'a mut Cursor,
    pub(super) stats: &'a mut EffectStats,
    /// The chunk whose frames are being read.
    pub(super) pin: Option<Pin<'a, Run>>,
    /// Requests of the cursor's chunk that are done with and not reported.
    pub(super) finished: u32,
    /// Where frames go that nobody needs any more.
    pub(super) shelf: &'a mut Shelf,
    pub(super) wakes: Wakes<'a>,
}

impl Hands<'_> {
    /// One step of performing: `Break` when every applied request is done with, else whether something
    /// was performed.
    pub(super) fn step(&mut self) -> ControlFlow<(), bool> {
        let shared = self.shared;
        let cursor = &mut *self.cursor;
        let index = (cursor.seq - self.kept.first) as usize;
        let Some(applied) = self.kept.applied.get(index) else {
            return ControlFlow::Break(());
        };
        let mine = shared.primary_of_request(cursor.seq, applied.publisher) == self.id;
        if !cursor.begun {
            cursor.begun = true;
            cursor.left = applied.effects;
        }
        if cursor.left == 0 {
            if mine {
                self.finished += 1;
                *self.ahead = self.ahead.saturating_sub(applied.len as usize);
            }
            cursor.seq += 1;
            cursor.begun = false;
            if cursor
                .seq
                .is_multiple_of(shared.layout.request_chunk as u64)
            {
                self.leave_chunk();
            }
            return ControlFlow::Continue(false);
        }
        let effect = &self.kept.effects[cursor.effect];
        let mut performed = false;
        match effect {
            Effect::Transmit(transmit) => {
                while cursor.frame < transmit.count {
                    let i = cursor.frame;
                    cursor.frame += 1;
                    if shared.primary_of_frame(transmit.first_frame + u64::from(i)) == self.id {
                        perform::build(&shared.world, transmit, i, self.stats);
                        performed = true;
                        break;
                    }
                }
                if cursor.frame < transmit.count {
                    return ControlFlow::Continue(performed);
                }
            }
            Effect::Deliver(deliver) if mine => {
                match pinned(&shared.attachments, &mut self.pin, cursor.seq) {
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
                performed = true;
                self.wakes.add(deliver.conn);
            }
            Effect::Deliver(_) => {}
            other if mine => {
                perform::tell(&shared.world, other, self.stats);
                performed = true;
                if let Effect::Release { conn, .. } = other {
                    self.wakes.add(*conn);
                }
            }
            _ => {}
        }
        let cursor = &mut *self.cursor;
        cursor.frame = 0;
        cursor.effect += 1;
        cursor.left -= 1;
        ControlFlow::Continue(performed)
    }

    /// The cursor left a chunk, or rests: what was done in it is told. A pin of ours would keep its frames
    /// from going back to the device.
    fn leave_chunk(&mut self) {
        self.pin = None;
        let finished = core::mem::take(&mut self.finished);
        if finished > 0 {
            let attachments = &self.shared.attachments;
            let last = self.cursor.seq - 1;
            if attachments.done(last, finished) as usize == attachments.chunk() {
                attachments.take_out(last, &mut |_, run| self.shelf.put(run));
            }
        }
    }

    /// Nothing more is performed for now.
    pub(super) fn rest(mut self) {
        self.leave_chunk();
    }
}
