//! Which worker performs what: the primary of each batch, and the owner of each chunk of frames.
//!
//! The primary of a batch is the worker that parsed it: it has the frames' headers in its cache. A
//! worker with nothing else to do claims the next batch, so the work goes to a free worker. The
//! pump writes the primary beside the batch's requests, so all workers know it without asking each
//! other.
//!
//! One request may ask for hundreds of frames, so frames are assigned separately, by chunks of
//! their own numbers. The first worker that comes to a chunk names its owner in the chunk's word
//! ([`tx`](crate::io::tx)).
//!
//! Workers join and leave meanwhile. A primary that is not active does no more work; any other
//! worker [does it](super::steal). For experiments, another [`Rule`](super::primaries::Rule) may
//! take the place of this one.

use dominoes::{Seq, WorkState};

use super::pending::Applied;
use crate::group::ReplicatedShared;
use crate::log::effect::Effect;
use crate::log::request::InBatch;

/// A lone request asks for at most this many frames.
pub(crate) const LONE_FRAMES: u32 = 2;
/// The pump verifies a lone request with at most this many bytes; one with more is load.
pub(crate) const LONE_BYTES: u32 = 4096;

impl ReplicatedShared {
    /// The primary of the batch of `len` requests that worker `holder` publishes at `first`, and
    /// worker `parser` parsed.
    #[inline]
    pub(super) fn name_primary(
        &self,
        (parser, holder): (u8, u8),
        (first, len): (Seq, usize),
        has_payload: bool,
    ) -> u8 {
        if let Some(rule) = &self.rule
            && let Some(primary) = rule.name_primary(self, holder, (first, len), has_payload)
        {
            return primary;
        }
        let stays = parser == holder || self.membership.staying() >> parser & 1 != 0;
        if stays { parser } else { holder }
    }

    /// Assigns the chunk of `frame`, unless another worker just did. Worker `id` asks, for the
    /// request `applied`, which has this `effect`: it has applied what numbers the frames, and has
    /// nothing else to build. So the chunk is its own, but that of a lone request, which asks for
    /// one frame or two, is the primary's. Returns as
    /// [`TxRing::owner`](crate::io::tx::TxRing::owner).
    #[inline(never)]
    pub(super) fn assign_frame(
        &self,
        id: usize,
        frame: u64,
        applied: &Applied,
        effect: &Effect,
    ) -> Result<usize, WorkState> {
        let rule = self.rule.as_ref();
        let owner = rule.and_then(|rule| rule.chunk_owner(self, frame, effect));
        let owner = owner.unwrap_or_else(|| {
            let InBatch {
                primary,
                index,
                left,
            } = applied.in_batch;
            let primary = usize::from(primary);
            let is_lone = index | left == 0
                && applied.len <= applied.seg_len
                && effect
                    .frames()
                    .is_none_or(|(_, count)| count <= LONE_FRAMES);
            match is_lone && self.membership.is_active(primary) {
                true => primary,
                false => id,
            }
        });
        self.world.tx.assign(frame, owner)
    }
}
