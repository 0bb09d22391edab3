//! Epochs: the replicas that may be primary in each range of log positions.
//!
//! Workers join and leave while the group runs, and each worker learns of a change at a different
//! moment. Yet all of them must agree on the primary of every piece of work. They agree by
//! position: when the receive pump publishes a batch, it reads which replicas are active, and
//! stores that set, the *owners* of the batch, in a word beside the log before it publishes the
//! batch's first request. Every worker reads the word when it applies that request. Consecutive
//! batches with equal owners form an *epoch*.
//!
//! - The primary of a batch is one of its owners. The pump writes it into the requests.
//! - Outgoing frames are assigned by chunks of frame numbers. An epoch that begins at a position
//!   owns the frame chunks from the first one of which no frame was numbered before that position.
//!   Every replica computes the same boundary.
//!
//! # Which replicas may own work that is not done
//! A worker that retains the effects of requests from position `first` on knows every epoch that
//! owns any of them: the current one, and each older one until `first` reaches the position where
//! that epoch's ownership of requests and of frames ends. Every owner of these epochs reports a
//! position; all work below the lowest of them is done. A replica that is not an owner of these
//! epochs owns none of that work.
//!
//! # How a slot's report survives a change of its worker
//! `performed[k]` is a position below which the share of slot k is done. That remains true when the
//! worker is gone. A new worker inherits the pending effects of the worker that gave it its state,
//! from position `first` on; all earlier work is done. So it begins with the larger of `first` and
//! its predecessor's report. The word never decreases. A slot that was never active owns nothing
//! before the first epoch that contains it, and that epoch begins after the snapshot's position; so
//! `first` is correct for it as well.
//!
//! The word of a slot that was never active is larger than every position. It is set to `first`
//! before the slot becomes active, and so before any epoch contains it.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;

use dominoes::group::{MAX_REPLICAS, replicas};
use dominoes::{ByKind, PrimaryPolicy, Seq, Work, WorkKind};

use crate::group::Layout;

/// A set of replica slots, in ascending order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplicaSet {
    mask: u64,
    count: u8,
    ids: [u8; MAX_REPLICAS],
}

impl ReplicaSet {
    /// The set of the slots whose bits are set in `mask`.
    pub(crate) fn of(mask: u64) -> Self {
        let mut set = ReplicaSet {
            mask,
            count: 0,
            ids: [0; MAX_REPLICAS],
        };
        for id in replicas(mask) {
            set.ids[usize::from(set.count)] = id as u8;
            set.count += 1;
        }
        set
    }

    #[inline]
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    #[inline]
    pub(crate) fn contains(&self, id: usize) -> bool {
        self.mask >> id & 1 != 0
    }

    #[inline]
    pub(crate) fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// The slot at `index` in the set.
    #[inline]
    pub(crate) fn nth(&self, index: usize) -> usize {
        usize::from(self.ids[index])
    }

    /// The slot that owns chunk `chunk` if chunks are assigned round-robin.
    #[inline]
    pub(crate) fn by_position(&self, chunk: u64) -> usize {
        self.nth((chunk % u64::from(self.count)) as usize)
    }
}

/// The replicas that may be primary in a range of positions.
#[derive(Clone, Debug)]
pub(crate) struct Epoch {
    owners: ReplicaSet,
    kinds: ByKind,
    /// First position whose primary is one of the owners.
    from: Seq,
    /// First chunk of frames that belongs to this epoch.
    from_frames: u64,
    /// The epoch owns nothing at or above this position. `OPEN_ENDED` until there is a next epoch
    /// and every frame of this one is numbered.
    end: Seq,
}

const OPEN_ENDED: Seq = Seq::MAX;

impl Epoch {
    fn new(mask: u64, from: Seq, from_frames: u64) -> Self {
        let owners = ReplicaSet::of(mask);
        Epoch {
            kinds: ByKind::halves(owners.count()),
            owners,
            from,
            from_frames,
            end: OPEN_ENDED,
        }
    }

    /// The epoch in which a group begins: slots `0..count`.
    pub(crate) fn first(count: usize) -> Self {
        Epoch::of(u64::MAX >> (64 - count))
    }

    /// The epoch of the slots whose bits are set in `mask`, from position 0.
    pub(crate) fn of(mask: u64) -> Self {
        Epoch::new(mask, 0, 0)
    }

    #[inline]
    pub(crate) fn owners(&self) -> &ReplicaSet {
        &self.owners
    }

    /// The owner that is primary of work of `kind` in chunk `chunk`, if work is assigned by kind.
    pub(crate) fn by_kind(&self, chunk: u64, kind: WorkKind) -> usize {
        let work = Work::chunk(chunk).of(kind);
        self.owners
            .nth(self.kinds.primary_of(work, self.owners.count()))
    }
}

/// The epochs that a worker knows: the one at the position that it applies next, and older ones
/// that may own some of its pending effects.
#[derive(Clone, Debug)]
pub(crate) struct Epochs {
    current: Epoch,
    older: VecDeque<Epoch>,
    /// The union of the owners of all of them.
    owners: u64,
}

impl Epochs {
    /// The epochs of a group that begins with `count` replicas.
    pub(crate) fn new(count: usize) -> Self {
        let current = Epoch::first(count);
        Epochs {
            owners: current.owners.mask,
            current,
            older: VecDeque::new(),
        }
    }

    /// Begins the batch at `at`, whose owners are `mask`, before its first request is applied. The
    /// first frame that it may number is `frame`.
    #[inline]
    pub(crate) fn begin_batch(&mut self, at: Seq, mask: u64, layout: &Layout, frame: u64) {
        if mask != self.current.owners.mask || !self.older.is_empty() {
            self.begin_epoch(at, mask, frame, layout.tuning.frame_chunk as u64);
        }
    }

    #[cold]
    fn begin_epoch(&mut self, at: Seq, mask: u64, frame: u64, frame_chunk: u64) {
        // Epochs end in the order in which they began.
        let mut next_from_frames = self.current.from_frames;
        for epoch in self.older.iter_mut().rev() {
            if epoch.end == OPEN_ENDED && frame >= next_from_frames * frame_chunk {
                epoch.end = at;
            }
            next_from_frames = epoch.from_frames;
        }
        if mask != self.current.owners.mask {
            let next = Epoch::new(mask, at, frame.div_ceil(frame_chunk));
            let mut last = core::mem::replace(&mut self.current, next);
            if frame.is_multiple_of(frame_chunk) {
                last.end = at;
            }
            self.older.push_back(last);
            self.owners |= mask;
        }
    }

    /// Drops the epochs that own no work at or above `first`, since everything below is done.
    #[inline]
    pub(crate) fn forget(&mut self, first: Seq) {
        if !self.older.is_empty() {
            self.forget_epochs(first);
        }
    }

    #[cold]
    fn forget_epochs(&mut self, first: Seq) {
        while self.older.front().is_some_and(|epoch| epoch.end <= first) {
            self.older.pop_front();
        }
        let masks = self.older.iter().map(|epoch| epoch.owners.mask);
        self.owners = masks.fold(self.current.owners.mask, |all, mask| all | mask);
    }

    /// The replicas that may own work that is not known to be done.
    #[inline]
    pub(crate) fn owners(&self) -> u64 {
        self.owners
    }

    /// The epoch that owns chunk `chunk` of frames.
    #[inline]
    pub(crate) fn of_frame_chunk(&self, chunk: u64) -> &Epoch {
        if chunk >= self.current.from_frames {
            return &self.current;
        }
        self.find_older(|epoch| chunk >= epoch.from_frames)
    }

    /// The epoch that owns the request at `seq`.
    #[inline]
    pub(crate) fn of_request(&self, seq: Seq) -> &Epoch {
        if seq >= self.current.from {
            return &self.current;
        }
        self.find_older(|epoch| seq >= epoch.from)
    }

    #[cold]
    fn find_older(&self, governs: impl Fn(&Epoch) -> bool) -> &Epoch {
        let found = self.older.iter().rev().find(|epoch| governs(epoch));
        found.or(self.older.front()).unwrap_or(&self.current)
    }
}

/// The owners of each batch that can be open, by its first position.
pub(crate) struct EpochOwners(Box<[AtomicU64]>);

impl EpochOwners {
    /// For a log of `slots` slots, a power of two. Slots `0..replicas` own its first batches.
    pub(crate) fn new(slots: usize, replicas: usize) -> Self {
        let mask = u64::MAX >> (64 - replicas);
        EpochOwners((0..slots).map(|_| AtomicU64::new(mask)).collect())
    }

    /// Stores the owners of the batch at `first` for the workers that will apply it. Called by the
    /// receive pump.
    #[inline]
    pub(crate) fn set(&self, first: Seq, mask: u64) {
        // ORDERING: Relaxed: the batch's first request is published after this. All workers have
        // read the word's previous value, because all have released the slot of the log that this
        // request gets.
        self.0[first as usize & (self.0.len() - 1)].store(mask, Ordering::Relaxed);
    }

    /// The owners of the batch at `first`. Its first request is published, and the caller has not
    /// applied it yet.
    #[inline]
    pub(crate) fn get(&self, first: Seq) -> u64 {
        // ORDERING: Relaxed, as in `set`.
        self.0[first as usize & (self.0.len() - 1)].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let mut layout = Layout::default();
        layout.tuning.frame_chunk = 8;
        layout
    }

    /// Epochs of a log with these batches of 4 requests. For each batch: its owners, and how many
    /// frames were numbered before it.
    fn epochs(batches: &[(u64, u64)]) -> Epochs {
        let mut epochs = Epochs::new(2);
        for (i, (mask, frame)) in batches.iter().enumerate() {
            epochs.begin_batch(4 * i as Seq, *mask, &layout(), *frame);
        }
        epochs
    }

    #[test]
    fn chunks_of_frames_keep_their_owner_when_the_epoch_changes() {
        let epochs = epochs(&[(0b11, 0), (0b101, 9), (0b111, 9), (0b110, 40)]);
        let owner = |chunk| epochs.of_frame_chunk(chunk).owners().mask();
        // Frame 9 is in chunk 1, which the first epoch has begun.
        assert_eq!([0, 1].map(owner), [0b11; 2]);
        // The third epoch begins before a frame of the second one is numbered.
        assert_eq!([2, 3, 4].map(owner), [0b111; 3]);
        assert_eq!([5, 6, 99].map(owner), [0b110; 3]);
        let owner = |seq| epochs.of_request(seq).owners().mask();
        assert_eq!(
            [0, 3, 4, 7, 8].map(owner),
            [0b11, 0b11, 0b101, 0b101, 0b111]
        );
    }

    #[test]
    fn replicas_own_work_until_all_that_an_epoch_of_theirs_may_own_is_done() {
        let mut epochs = epochs(&[(0b11, 0), (0b100, 9)]);
        assert_eq!(epochs.owners(), 0b111);
        epochs.forget(8);
        assert_eq!(
            epochs.owners(),
            0b111,
            "frames 9 to 15 are still to be numbered"
        );
        epochs.begin_batch(8, 0b100, &layout(), 15);
        epochs.forget(12);
        assert_eq!(epochs.owners(), 0b111);
        epochs.begin_batch(12, 0b100, &layout(), 16);
        epochs.forget(11);
        assert_eq!(epochs.owners(), 0b111);
        epochs.forget(12);
        assert_eq!(epochs.owners(), 0b100);
    }

    #[test]
    fn the_first_request_of_an_epoch_is_its_own_when_two_epochs_follow_each_other() {
        let epochs = epochs(&[(0b11, 0), (0b100, 0)]);
        let owner = |seq| epochs.of_request(seq).owners().mask();
        assert_eq!([3, 4].map(owner), [0b11, 0b100]);
    }

    #[test]
    fn chunks_go_in_turn_to_the_slots_that_are_in_the_set() {
        let owners = ReplicaSet::of(0b1011_0010);
        let found: Vec<usize> = (0..6).map(|chunk| owners.by_position(chunk)).collect();
        assert_eq!(found, [1, 4, 5, 7, 1, 4]);
        assert!(owners.contains(7) && !owners.contains(6));
    }
}
