//! The state of every replica slot, in atomic words that all workers read.
//!
//! Each word holds one bit per slot. What takes more than a bit, and the order of changes, is in
//! the [slot table](super::slots), which has a lock.
//!
//! A worker is in one of the states that [`WorkerState`](super::WorkerState) names.

use crate::{
    Seq,
    sync::{AtomicU64, Ordering},
};

/// The most replicas of a group. The log needs room for one reader more for each replica that is
/// being replaced.
pub const MAX_REPLICAS: usize = 56;

/// The slots whose bits are set in `mask`, in ascending order.
///
/// ```
/// assert!(dominoes::group::replicas(0b1001_0010).eq([1, 4, 7]));
/// ```
#[inline]
pub fn replicas(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let id = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            id
        })
    })
}

/// Which replicas are active, and which ones are about to change. All workers read it; it is
/// written when a replica joins, leaves, parks or diverges.
#[derive(Debug)]
pub struct MembershipTable {
    /// Slots whose worker is active: it has a state, and performs its share.
    active: AtomicU64,
    /// Slots that have been active at any time.
    ever_active: AtomicU64,
    /// Slots whose worker was asked to leave.
    leaving: AtomicU64,
    /// Slots whose worker was asked to leave and to park.
    to_park: AtomicU64,
    /// Slots whose worker is parked.
    parked: AtomicU64,
    /// Slots whose worker waits for a state, or was given one and is not active yet.
    joining: AtomicU64,
    /// Slots whose worker must look into the slot table.
    notified: AtomicU64,
    /// Slots whose worker was found to differ from the majority.
    diverged: AtomicU64,
    /// For each slot, the position of the snapshot that its worker began with.
    since: Box<[AtomicU64]>,
}

impl MembershipTable {
    /// For `slots` slots, the first `replicas` of which are active. The other slots are parked if
    /// `others_parked` is set, and free otherwise.
    ///
    /// # Panics
    /// If there are no replicas, fewer slots than replicas, or more than [`MAX_REPLICAS`] slots.
    pub fn new(slots: usize, replicas: usize, others_parked: bool) -> Self {
        assert!(
            (1..=slots).contains(&replicas) && slots <= MAX_REPLICAS,
            "{replicas} replicas in {slots} slots"
        );
        let active = u64::MAX >> (64 - replicas);
        let others = u64::MAX >> (64 - slots) & !active;
        let parked = if others_parked { others } else { 0 };
        MembershipTable {
            active: AtomicU64::new(active),
            ever_active: AtomicU64::new(active),
            leaving: AtomicU64::new(0),
            to_park: AtomicU64::new(0),
            parked: AtomicU64::new(parked),
            joining: AtomicU64::new(0),
            notified: AtomicU64::new(parked),
            diverged: AtomicU64::new(0),
            since: (0..slots).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Slots whose worker is active.
    #[inline]
    pub fn active(&self) -> u64 {
        // ORDERING: Acquire, pairs with the Release in `activate`: a slot that is seen active has
        // reported how far its share is done.
        self.active.load(Ordering::Acquire)
    }

    /// Whether worker `id` is active. If it is not, any other worker may do its share.
    #[inline]
    pub fn is_active(&self, id: usize) -> bool {
        // ORDERING: Relaxed: which work is done is recorded elsewhere.
        self.active.load(Ordering::Relaxed) >> id & 1 != 0
    }

    /// Slots that may get new work: active and not asked to leave.
    #[inline]
    pub fn staying(&self) -> u64 {
        self.active() & !self.leaving.load(Ordering::Relaxed)
    }

    /// Slots that have been active at any time.
    #[inline]
    pub fn ever_active(&self) -> u64 {
        // ORDERING: Acquire, as in `active`.
        self.ever_active.load(Ordering::Acquire)
    }

    /// Worker `id` is active from now on, with the state at `since`. How far its share is done was
    /// reported before.
    pub fn activate(&self, id: usize, since: Seq) {
        self.cancel_leave(id);
        self.diverged.fetch_and(!(1 << id), Ordering::Relaxed);
        self.since[id].store(since, Ordering::Relaxed);
        self.ever_active.fetch_or(1 << id, Ordering::Release);
        // ORDERING: Release, pairs with the Acquire in `active`.
        self.active.fetch_or(1 << id, Ordering::Release);
    }

    /// Worker `id` unwinds, ends, or throws its state away.
    pub fn deactivate(&self, id: usize) {
        self.active.fetch_and(!(1 << id), Ordering::Release);
        self.leaving.fetch_and(!(1 << id), Ordering::Relaxed);
    }

    /// Asks worker `id` to leave.
    pub fn request_leave(&self, id: usize) {
        self.leaving.fetch_or(1 << id, Ordering::Relaxed);
        self.notify(1 << id);
    }

    /// Withdraws the request to leave from worker `id`.
    pub fn cancel_leave(&self, id: usize) {
        self.leaving.fetch_and(!(1 << id), Ordering::Relaxed);
        self.to_park.fetch_and(!(1 << id), Ordering::Relaxed);
    }

    /// Asks worker `id` to park when it leaves.
    pub fn request_park(&self, id: usize) {
        self.to_park.fetch_or(1 << id, Ordering::Relaxed);
    }

    /// Whether worker `id` was asked to park when it leaves. Clears the request.
    #[inline]
    pub fn take_park_request(&self, id: usize) -> bool {
        self.to_park.fetch_and(!(1 << id), Ordering::Relaxed) >> id & 1 != 0
    }

    /// Records whether worker `id` is parked.
    pub fn set_parked(&self, id: usize, is_parked: bool) {
        // ORDERING: Relaxed: the slot table has the details.
        if is_parked {
            self.parked.fetch_or(1 << id, Ordering::Relaxed);
        } else {
            self.parked.fetch_and(!(1 << id), Ordering::Relaxed);
        }
    }

    /// A worker waits for a state for slot `id`.
    pub fn begin_join(&self, id: usize) {
        // ORDERING: Relaxed: this is called with the lock of the slot table, and a worker that
        // gives a state away takes that lock.
        self.joining.fetch_or(1 << id, Ordering::Relaxed);
    }

    /// The worker of slot `id` is active, or does not wait any more.
    pub fn end_join(&self, id: usize) {
        // ORDERING: Release, pairs with the Acquire in `is_only_active`.
        self.joining.fetch_and(!(1 << id), Ordering::Release);
    }

    /// Whether worker `id` is active, and no other one is or is about to be.
    #[inline]
    pub fn is_only_active(&self, id: usize) -> bool {
        // ORDERING: Acquire, pairs with the Release in `end_join`: a worker that no longer joins is
        // seen active.
        self.joining.load(Ordering::Acquire) == 0 && self.active() == 1 << id
    }

    /// Slots whose worker is parked.
    #[inline]
    pub fn parked(&self) -> u64 {
        self.parked.load(Ordering::Relaxed)
    }

    /// Whether worker `id` was asked to leave.
    #[inline]
    pub fn is_leaving(&self, id: usize) -> bool {
        self.leaving.load(Ordering::Relaxed) >> id & 1 != 0
    }

    /// Makes these workers look into the slot table.
    #[inline]
    pub fn notify(&self, mask: u64) {
        // ORDERING: Release, pairs with the Acquire in `clear_notification`.
        self.notified.fetch_or(mask, Ordering::Release);
    }

    /// Whether worker `id` must look into the slot table.
    #[inline]
    pub fn is_notified(&self, id: usize) -> bool {
        self.notified.load(Ordering::Relaxed) >> id & 1 != 0
    }

    /// Worker `id` looks into the slot table now.
    #[inline]
    pub fn clear_notification(&self, id: usize) {
        // ORDERING: Acquire, pairs with the Release in `notify`.
        self.notified.fetch_and(!(1 << id), Ordering::Acquire);
    }

    /// Reports that these workers differ from the majority.
    pub fn report_divergence(&self, mask: u64) {
        self.diverged.fetch_or(mask, Ordering::Relaxed);
        self.notify(mask);
    }

    /// Whether worker `id` was reported to differ from the majority. Clears the report.
    #[inline]
    pub fn take_divergence_report(&self, id: usize) -> bool {
        self.diverged.fetch_and(!(1 << id), Ordering::Relaxed) >> id & 1 != 0
    }

    /// The position of the snapshot that the worker in slot `id` began with.
    #[inline]
    pub fn since(&self, id: usize) -> Seq {
        self.since[id].load(Ordering::Relaxed)
    }

    /// The active workers that computed their state at `position` themselves, rather than taking it
    /// over.
    pub fn voters(&self, position: Seq) -> u64 {
        let active = self.active();
        let voters = replicas(active).filter(|id| self.since(*id) < position);
        voters.fold(0, |mask, id| mask | 1 << id)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_began_with_a_snapshot_votes_behind_its_position() {
        let table = MembershipTable::new(3, 3, false);
        assert_eq!((table.voters(0), table.voters(1)), (0, 0b111));
        table.deactivate(2);
        assert_eq!(table.voters(5), 0b11);
        table.activate(2, 5);
        assert_eq!((table.voters(5), table.voters(6)), (0b11, 0b111));
    }

    #[test]
    fn a_worker_that_is_asked_to_leave_is_active_and_gets_no_new_work() {
        let table = MembershipTable::new(3, 3, false);
        table.request_leave(1);
        assert_eq!((table.active(), table.staying()), (0b111, 0b101));
        table.cancel_leave(1);
        assert_eq!(table.staying(), 0b111);
    }
}
