//! Which worker performs what: the primary of each batch, and the owner of each chunk of frames.
//!
//! The primary of a batch is the worker that parsed it: it has the frames' headers in its cache. A
//! worker with nothing else to do claims the next batch, so the work goes to a free worker. The
//! pump writes the primary beside the batch's requests, so all workers know it without asking each
//! other.
//!
//! One request may ask for hundreds of frames, so frames are assigned separately, by chunks of their
//! own numbers. The first worker that comes to a chunk names its owner in the chunk's word
//! ([`tx`](crate::io::tx)).
//!
//! Workers join and leave meanwhile. A primary that is not active does no more work; any other
//! worker [does it](super::steal). For experiments, another [`Rule`](super::primaries::Rule) may
//! take the place of this one.

use dominoes::Seq;

use super::pending::Applied;
use crate::group::ReplicatedShared;
use crate::io::tx::Owner;
use crate::log::effect::Effect;
use crate::log::request::InBatch;

/// A lone request asks for at most this many frames.
pub(crate) const LONE_FRAMES: u32 = 2;
/// A lone request has at most this many bytes.
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
            && let Some(primary) = rule.name_primary(self, (first, len), has_payload)
        {
            return primary as u8;
        }
        let stays = parser == holder || self.membership.staying() >> parser & 1 != 0;
        if stays { parser } else { holder }
    }

    /// Whether worker `id` is primary of the request at `seq`.
    #[inline]
    pub(super) fn is_primary(&self, id: usize, seq: Seq, in_batch: InBatch) -> bool {
        match &self.rule {
            Some(rule) => rule.is_primary(id, seq, in_batch),
            None => usize::from(in_batch.primary) == id,
        }
    }

    /// The primary of the request at `seq`.
    pub(super) fn primary(&self, seq: Seq, in_batch: InBatch) -> Owner {
        match &self.rule {
            Some(rule) => rule.primary(seq, in_batch),
            None => Owner::Worker(usize::from(in_batch.primary)),
        }
    }

    /// Assigns the chunk of `frame`, unless another worker just did. Worker `id` asks, for the
    /// request at `seq`, which is `applied` and has this `effect`: it has applied what numbers the
    /// frames, and has nothing else to build. So the chunk is its own, but that of a lone request,
    /// which asks for one frame or two, is the primary's. Returns the owner.
    #[inline(never)]
    pub(super) fn assign_frame(
        &self,
        id: usize,
        frame: u64,
        (seq, applied): (Seq, &Applied),
        effect: &Effect,
    ) -> Owner {
        let rule = self.rule.as_ref();
        let owner = rule.and_then(|rule| rule.chunk_owner(self, frame, effect));
        let owner = owner.unwrap_or_else(|| {
            let InBatch { index, left, .. } = applied.in_batch;
            let is_lone = index | left == 0
                && applied.len <= applied.seg_len
                && effect
                    .frames()
                    .is_none_or(|(_, count)| count <= LONE_FRAMES);
            match self.primary(seq, applied.in_batch) {
                Owner::Worker(primary) if is_lone && self.membership.is_active(primary) => primary,
                _ => id,
            }
        });
        self.world.tx.assign(frame, owner)
    }
}
