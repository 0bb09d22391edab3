//! The multicast ring: claim, show, read. No other file accesses slot memory, except
//! `attachments.rs` for its own values.
//!
//! # Who writes what
//!
//! * `slots`: entry `seq` is in slot `seq & mask`. The publisher that claimed `seq` writes it,
//!   all subscribers read it in place, the holder of `reclaim.lock` empties it (only for
//!   payloads with a destructor).
//! * `tail`: everything below is claimed. `CLOSED` in its top bit ends claiming for good.
//!   Several publishers move it by compare-and-swap; a publisher that is alone does not maintain
//!   it.
//! * `published`: written by a publisher that is alone; everything below is published. With
//!   `MULTI` in its top bit, everything below is published, and `laps` shows the rest.
//! * `laps`: one byte per slot, the low bits of the lap last published there. Meaningful in `MULTI`
//!   mode only.
//! * `limit`: the highest sequence that may be claimed, monotone; shared by several publishers.
//! * `cursors[i]`: everything below is released by subscriber `i`. Written by that subscriber only.
//! * `members`: which cursors count. `epoch` counts joins.
//!
//! # Why no slot is reused too early
//!
//! A claim of `seq` demands `seq < gate + capacity` for some *gate* that was computed before (and
//! for payloads with a destructor, everything below that gate is emptied already). [`Ring::gate`]
//! promises: *every subscription, present or future, has its position at or above the gate;
//! everything below the gate is published, and all use of it is over.* Since `capacity <= slots`,
//! the slot of such a `seq` is free. The promise holds because:
//!
//! * With members, the gate is the least of their cursors, read with Acquire. Without members it
//!   is a prefix known to be published: not simply `tail`, or two publishers one lap apart could
//!   meet in a slot.
//! * *A subscription forked while the cursors are read*: its parent moves on only after the fork
//!   has raised `epoch`, so a thread that has read the parent's new cursor (Acquire) sees the
//!   new epoch and starts again.
//! * *A subscription that joins from now*: it enters `members`, raises `epoch`, passes a SeqCst
//!   fence and then looks how far the channel is published, its position. The gate reads cursors,
//!   passes a SeqCst fence, and reads `epoch` again. If it misses the join, its fence came first,
//!   so the joiner finds published all that the gate found published or released. (The tail would
//!   not do as a position: what is claimed but not published lies below it, and a gate there would
//!   let another publisher into the claimed slot.)
//! * *A place used again*: `epoch` distinguishes the two users, and leaving is a Release on
//!   `members` that the gate acquires.
//!
//! # Alone or not
//!
//! New publishers come from [`Writer::clone`] only, on the thread that owns the cloned one. So a
//! publisher that finds the count at one is alone until it clones itself: it needs neither
//! `tail` nor `laps`, just its own position and one Release store of `published`.
//!
//! * *One to several*, in `clone`: nothing is in flight. All lap bytes are set to "not published"
//!   for the next lap, then `published` gets `MULTI`, then `tail` is stored. A subscriber that
//!   still sees the old `published` finds all there is below it.
//! * *Several to one*, when a publisher finds the count at one: the others have published all
//!   their claims before they gave up their share of the count (Release, Acquire), so `tail` is
//!   its position. Its next entry stores `published` without `MULTI`; until then subscribers
//!   continue to read lap bytes, which are complete.
//! * *A subscriber whose view of `published` is an older `MULTI`* reads lap bytes at its own
//!   position. Bytes are at most two laps behind the position (then: not published) or any
//!   number ahead (then it is published, since a publisher can be ahead only of a reader that
//!   does not gate yet, in [`Ring::prefix`]); a byte shows up to 127 laps ahead, and beyond that
//!   errs to "not published".
//!
//! # Holes
//!
//! There are none. User code (iterators, `Clone`, constructors) never runs between claim and
//! publishing; with several publishers, a batch is collected first. A panic or an early return can
//! therefore leave no claim behind.
//!
//! # Progress
//!
//! Publishing alone is wait-free while there is room, reading always. With several publishers a
//! claim is lock-free; visibility is not: the one total order means that a publisher preempted
//! between claim and show (a move and a byte store) hides all later entries. One thread at a
//! time drops payloads with a destructor, under a lock that no thread waits for: others find no
//! room meanwhile. A subscriber that stalls stops all publishers after `capacity` entries; that
//! is the meaning of lossless. One that dies leaves, and no longer counts.

use crate::{
    Seq,
    slots::Slots,
    sync::{
        Arc, AtomicBool, AtomicU8, AtomicU64, AtomicUsize, LOAD_BEFORE_FENCE, Ordering,
        STORE_AFTER_FENCE, fence,
    },
    wait::Wait,
};
use crossbeam_utils::CachePadded;
use std::{cell::Cell, mem, time::Instant};

/// How many subscriptions a channel can have at a time.
pub const MAX_SUBSCRIBERS: usize = if cfg!(loom) { 4 } else { 64 };

/// In `published`: from this position on look at the lap bytes.
const MULTI: u64 = 1 << 63;
/// In `tail`: nothing can be claimed any more.
const CLOSED: u64 = 1 << 63;

/// Storage grows beyond the capacity up to this, if the payload has no destructor.
///
/// Writing to a line that the reader's L1 or L2 still holds costs a round trip to the other core; a
/// line that has since left for the shared L3 does not. So the slots should not fit into a core's
/// L2. Measured with 64-byte entries on cores with 1 MiB of L2: 100 million entries a second with 1
/// MiB of slots, 380 million with 2 MiB and more.
const STORAGE_BYTES: usize = 4 << 20;
/// ... and up to this many times the capacity, so that a small channel stays small.
const STORAGE_FACTOR: usize = 64;

/// Why nothing was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Full,
    Closed,
}

/// Words that change only when a subscription joins or leaves, or the channel is closed.
struct Membership {
    /// Places given out.
    taken: AtomicU64,
    /// Places whose cursor counts. A subset of `taken`.
    members: AtomicU64,
    /// Number of joins.
    epoch: AtomicU64,
    /// Places asked to leave.
    evicted: AtomicU64,
    publishers: AtomicUsize,
    /// Set after `CLOSED` in `tail`, so that idle subscribers need not look at the busy word.
    closed: AtomicBool,
}

struct Reclaim {
    lock: AtomicBool,
    /// Entries below are dropped. Written by the holder of `lock`.
    done: AtomicU64,
}

pub(crate) struct Ring<T, W: Wait> {
    slots: Slots<T>,
    laps: Box<[AtomicU8]>,
    mask: u64,
    shift: u32,
    capacity: u64,
    pub(crate) entries: W,
    pub(crate) room: W,
    tail: CachePadded<AtomicU64>,
    published: CachePadded<AtomicU64>,
    limit: CachePadded<AtomicU64>,
    reclaim: CachePadded<Reclaim>,
    membership: CachePadded<Membership>,
    cursors: Box<[CachePadded<AtomicU64>]>,
}

/// Number of slots for a capacity.
fn storage<T>(capacity: usize) -> usize {
    let mut slots = capacity
        .checked_next_power_of_two()
        .expect("the capacity is far too large");
    if !mem::needs_drop::<T>() && !cfg!(loom) {
        // A slot takes a byte at least: that of its lap.
        let size = mem::size_of::<T>().max(1);
        while slots < capacity.saturating_mul(STORAGE_FACTOR)
            && slots.saturating_mul(2).saturating_mul(size) <= STORAGE_BYTES
        {
            slots *= 2;
        }
    }
    slots
}

/// A ring with its first publisher.
pub(crate) fn ring<T: Send + Sync, W: Wait>(
    capacity: usize,
    slots: Option<usize>,
) -> (Writer<T, W>, Arc<Ring<T, W>>) {
    assert!(capacity >= 1, "a channel has a capacity of at least 1");
    let slots = slots.unwrap_or_else(|| storage::<T>(capacity));
    assert!(
        slots >= capacity && slots.is_power_of_two(),
        "{slots} slots for a capacity of {capacity}: it takes a power of two, not below the capacity"
    );
    let word = || CachePadded::new(AtomicU64::new(0));
    let ring = Arc::new(Ring {
        slots: Slots::new(slots),
        laps: (0..slots).map(|_| AtomicU8::new(0)).collect(),
        mask: slots as u64 - 1,
        shift: slots.trailing_zeros(),
        capacity: capacity as u64,
        entries: W::default(),
        room: W::default(),
        tail: word(),
        published: word(),
        limit: word(),
        reclaim: CachePadded::new(Reclaim {
            lock: AtomicBool::new(false),
            done: AtomicU64::new(0),
        }),
        membership: CachePadded::new(Membership {
            taken: AtomicU64::new(0),
            members: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            publishers: AtomicUsize::new(1),
            closed: AtomicBool::new(false),
        }),
        cursors: (0..MAX_SUBSCRIBERS).map(|_| word()).collect(),
    });
    (
        Writer {
            ring: ring.clone(),
            next: 0,
            edge: Cell::new(0),
            limit: 0,
            alone: Cell::new(true),
            times_full: 0,
        },
        ring,
    )
}

impl<T, W: Wait> Ring<T, W> {
    #[inline(always)]
    fn index(&self, seq: Seq) -> usize {
        (seq & self.mask) as usize
    }

    #[inline(always)]
    fn lap(&self, seq: Seq) -> u8 {
        (seq >> self.shift) as u8
    }

    /// Whether a lap byte shows that its entry of this lap is published. The caller knows that
    /// everything below is.
    #[inline(always)]
    fn shows(byte: u8, lap: u8) -> bool {
        byte.wrapping_sub(lap) as i8 >= 0
    }

    /// Follows the lap bytes from `seq` to the first entry that is not published, but not beyond
    /// `bound`.
    ///
    /// The caller knows everything below `seq` to be published.
    #[inline]
    fn walk(&self, mut seq: Seq, bound: Seq) -> Seq {
        while seq < bound {
            // As far as the lap stays the same.
            let index = self.index(seq);
            let run = ((bound - seq) as usize).min(self.laps.len() - index);
            let lap = self.lap(seq);
            let shown = self.laps[index..index + run]
                .iter()
                .position(|byte| !Self::shows(byte.load(LOAD_BEFORE_FENCE), lap))
                .unwrap_or(run);
            seq += shown as u64;
            if shown < run {
                break;
            }
        }
        // ORDERING: Acquire fence after the relaxed loads of lap bytes, pairs with the Release
        // fence before they were stored, in `Writer::show` and `Writer::clone`.
        fence(Ordering::Acquire);
        seq
    }

    /// The published end of the channel, for a caller that has not followed it: everything below
    /// the result is published.
    fn prefix(&self) -> Seq {
        // ORDERING: Acquire, pairs with the Release in `Writer::claim_shared`: the limit read below
        // is one that allowed these claims, so the walk is no longer than the capacity.
        let tail = self.tail.load(Ordering::Acquire) & !CLOSED;
        // ORDERING: Acquire, pairs with the Release stores in `show_alone` and `Writer::clone`.
        let published = self.published.load(Ordering::Acquire);
        if published & MULTI == 0 {
            return published;
        }
        // A limit is a gate plus the capacity, and below a gate everything is published.
        // ORDERING: Acquire, pairs with the Release in `raise_limit`: that much is published for
        // this thread, too.
        let known = self
            .limit
            .load(Ordering::Acquire)
            .saturating_sub(self.capacity);
        self.walk(known.max(published & !MULTI), tail)
    }

    /// The published end of the channel, for a reader that gates at `position` and knows
    /// everything below `end` to be published.
    #[inline(always)]
    fn look(&self, position: Seq, end: Seq) -> Seq {
        // ORDERING: Acquire, pairs with the Release stores in `show_alone` and `Writer::clone`.
        let published = self.published.load(Ordering::Acquire);
        if published & MULTI == 0 {
            end.max(published)
        } else {
            self.walk(end.max(published & !MULTI), position + self.capacity)
        }
    }

    /// Whether the channel is closed, nothing more will be published, and `end` is its end.
    #[inline]
    fn is_drained(&self, end: Seq) -> bool {
        // Closed first, then the tail: that is the last one. Entries claimed below it may still be
        // on their way.
        self.is_closed() && end >= self.tail()
    }

    /// Every subscription, present or future, has its position at or above the result, and all
    /// use of entries below it is over.
    fn gate(&self) -> Seq {
        let membership = &*self.membership;
        // ORDERING: Acquire, pairs with the Release increment in `Reader::join`: a thread that
        // sees the join here finds its member bit and cursor below.
        let mut epoch = membership.epoch.load(Ordering::Acquire);
        loop {
            // ORDERING: Acquire, pairs with the Release in `Place::leave`: the leaver's reading is
            // over.
            let mut members = membership.members.load(Ordering::Acquire);
            let gate = if members == 0 {
                self.prefix()
            } else {
                let mut least = u64::MAX;
                while members != 0 {
                    let place = members.trailing_zeros() as usize;
                    members &= members - 1;
                    // ORDERING: Acquire, pairs with the Release store in `Reader::advance_to`:
                    // reading below the cursor is over.
                    least = least.min(self.cursors[place].load(Ordering::Acquire));
                }
                least
            };
            // ORDERING: SeqCst fence, pairs with the one in `Reader::from_now`: either the load
            // below sees that join, or the joiner's load of the tail sees everything that was read
            // above.
            fence(Ordering::SeqCst);
            // ORDERING: Acquire, for the next turn, as above.
            let now = membership.epoch.load(Ordering::Acquire);
            if now == epoch {
                return gate;
            }
            epoch = now;
        }
    }

    /// The highest sequence that may be claimed, computed afresh.
    fn fresh_limit(&self) -> Seq {
        let gate = self.gate();
        if mem::needs_drop::<T>() {
            self.drop_below(gate) + self.capacity
        } else {
            gate + self.capacity
        }
    }

    /// Raises the shared limit to `to` unless it is there already; returns what it was.
    fn raise_limit(&self, to: Seq) -> Seq {
        // ORDERING: Release, pairs with the Acquire here and in `claim_shared`, `try_be_alone`
        // and `prefix`: a publisher that learns a limit from another one also learns that the
        // slots below it are free, and that everything below its gate is published.
        let mut now = self.limit.load(Ordering::Acquire);
        // (Not `fetch_max`, which compiles to this loop on x86, and which ThreadSanitizer does
        // not see.)
        while now < to {
            match self
                .limit
                .compare_exchange_weak(now, to, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => break,
                Err(found) => now = found,
            }
        }
        now
    }

    /// Drops the entries below `gate` unless another thread is doing so; returns the position
    /// below which they are known to be dropped.
    #[cold]
    fn drop_below(&self, gate: Seq) -> Seq {
        // ORDERING: Acquire, pairs with the Release in `Unlock::drop`.
        if self
            .reclaim
            .lock
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            // ORDERING: Acquire, pairs with the Release store below: the slots are empty.
            return self.reclaim.done.load(Ordering::Acquire);
        }
        struct Unlock<'a, T, W: Wait>(&'a Ring<T, W>);
        impl<T, W: Wait> Drop for Unlock<'_, T, W> {
            fn drop(&mut self) {
                // ORDERING: Release, pairs with the Acquire in `drop_below`.
                self.0.reclaim.lock.store(false, Ordering::Release);
                // A publisher that found the lock taken took the channel for full.
                self.0.room.notify();
            }
        }
        let unlock = Unlock(self);
        let mut seq = self.reclaim.done.load(Ordering::Relaxed);
        while seq < gate {
            // SAFETY: the entry is published and no longer used by anyone (promise of `gate`). No
            // publisher claims its slot before `done` has passed it, and the lock keeps other
            // threads from dropping it. `done` moves only after the value is out of the slot, which
            // then counts as empty even if the destructor panics.
            let value = unsafe { self.slots.take(self.index(seq)) };
            seq += 1;
            // ORDERING: Release, pairs with the Acquire load above: the slot is empty.
            self.reclaim.done.store(seq, Ordering::Release);
            drop(value);
        }
        drop(unlock);
        seq
    }

    /// Publishes everything below `end`; for a publisher that is alone.
    #[inline(always)]
    fn show_alone(&self, end: Seq) {
        // ORDERING: Release, pairs with the Acquire loads in `look`, `prefix` and `tail`.
        self.published.store(end, Ordering::Release);
        self.entries.notify();
    }

    /// Drops the entries that all have released. Does nothing for payloads without a destructor.
    pub(crate) fn tidy(&self) {
        if mem::needs_drop::<T>() {
            self.drop_below(self.gate());
        }
    }

    /// Everything below is claimed, as seen now. At or above every published entry the caller knows
    /// of.
    pub(crate) fn tail(&self) -> Seq {
        // ORDERING: Acquire, pairs with the Release stores of `tail` and `published`: a subscriber
        // that has seen the end of claims finds all that was published by then.
        let tail = self.tail.load(Ordering::Acquire) & !CLOSED;
        tail.max(self.published.load(Ordering::Acquire) & !MULTI)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity as usize
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn members(&self) -> u64 {
        self.membership.members.load(Ordering::Relaxed)
    }

    fn evicted(&self) -> u64 {
        self.membership.evicted.load(Ordering::Relaxed)
    }

    pub(crate) fn publishers(&self) -> usize {
        self.membership.publishers.load(Ordering::Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        // ORDERING: Acquire, pairs with the Release in `Writer::close`: the tail seen afterwards is
        // the last one.
        self.membership.closed.load(Ordering::Acquire)
    }

    /// Entries that the slowest subscriber has not released.
    pub(crate) fn len(&self) -> usize {
        let mut members = self.members();
        let tail = self.tail();
        let mut least = tail;
        while members != 0 {
            let place = members.trailing_zeros() as usize;
            members &= members - 1;
            least = least.min(self.cursors[place].load(Ordering::Relaxed));
        }
        (tail - least).min(self.capacity) as usize
    }

    /// How far each member is behind the tail.
    pub(crate) fn lags(&self) -> Vec<(usize, u64)> {
        let tail = self.tail();
        let members = self.members();
        (0..MAX_SUBSCRIBERS)
            .filter(|place| members >> place & 1 == 1)
            .map(|place| {
                (
                    place,
                    tail.saturating_sub(self.cursors[place].load(Ordering::Relaxed)),
                )
            })
            .collect()
    }

    /// Raises the flag that asks the subscriber at `place` to leave. False if there is none.
    pub(crate) fn evict(&self, place: usize) -> bool {
        let there = place < MAX_SUBSCRIBERS && self.members() >> place & 1 == 1;
        if there {
            self.membership
                .evicted
                .fetch_or(1 << place, Ordering::Relaxed);
        }
        there
    }
}

impl<T, W: Wait> Drop for Ring<T, W> {
    fn drop(&mut self) {
        if !mem::needs_drop::<T>() {
            return;
        }
        /// Drops the remaining entries when a destructor panics.
        struct Rest<'a, T> {
            slots: &'a Slots<T>,
            mask: u64,
            next: Seq,
            end: Seq,
        }
        impl<T> Drop for Rest<'_, T> {
            fn drop(&mut self) {
                while self.next < self.end {
                    let index = (self.next & self.mask) as usize;
                    self.next += 1;
                    let again = Rest {
                        slots: self.slots,
                        mask: self.mask,
                        next: self.next,
                        end: self.end,
                    };
                    // SAFETY: `&mut Ring`: no other user is left. Every claim was published, so
                    // the entries from `done` to the tail are there, and each is taken once.
                    let value = unsafe { self.slots.take(index) };
                    drop(value);
                    mem::forget(again);
                }
            }
        }
        drop(Rest {
            slots: &self.slots,
            mask: self.mask,
            next: self.reclaim.done.load(Ordering::Relaxed),
            end: self.tail(),
        });
    }
}

/// One publisher's side of the ring. `Send`, but not `Sync`: the argument of being alone needs
/// it on one thread.
pub(crate) struct Writer<T, W: Wait> {
    ring: Arc<Ring<T, W>>,
    /// Next position to be published, while alone.
    next: Seq,
    /// While alone: the publisher may go up to here. Zero otherwise.
    edge: Cell<Seq>,
    /// The highest limit this publisher has seen, for sharing.
    limit: Seq,
    /// Known to be the only publisher.
    alone: Cell<bool>,
    /// How often a claim was refused because there was no room.
    times_full: u64,
}

impl<T: Send + Sync, W: Wait> Writer<T, W> {
    pub(crate) fn ring(&self) -> &Arc<Ring<T, W>> {
        &self.ring
    }

    pub(crate) fn times_full(&self) -> u64 {
        self.times_full
    }

    /// The position of the next entry: certain if alone, else unless another publisher comes first.
    pub(crate) fn next_seq(&self) -> Seq {
        if self.alone.get() {
            self.next
        } else {
            self.ring.tail()
        }
    }

    /// How many entries may go in now, computed afresh if fewer than `enough` are known to fit.
    pub(crate) fn room(&mut self, enough: u64) -> u64 {
        let limit = if self.alone.get() {
            self.edge.get()
        } else {
            self.limit
        };
        let room = limit.saturating_sub(self.next_seq());
        if room >= enough {
            return room;
        }
        if !self.alone.get() {
            self.try_be_alone();
        }
        if self.alone.get() {
            self.refresh_edge(self.ring.capacity);
            self.edge.get().saturating_sub(self.next)
        } else {
            self.refresh_limit();
            self.limit.saturating_sub(self.next_seq())
        }
    }

    /// Makes sure that `n` entries from the result on are this publisher's to write. While alone
    /// nothing is changed by that; otherwise they are claimed and the caller must show them.
    #[inline(always)]
    fn claim(&mut self, n: u64) -> Result<Seq, Refusal> {
        if self.next + n <= self.edge.get() {
            Ok(self.next)
        } else {
            self.claim_slowly(n)
        }
    }

    #[inline(never)]
    fn claim_slowly(&mut self, n: u64) -> Result<Seq, Refusal> {
        if !self.alone.get() && !self.try_be_alone() {
            return self.claim_shared(n);
        }
        if self.next + n > self.edge.get() {
            self.refresh_edge(n);
            if self.next + n > self.edge.get() {
                self.times_full += 1;
                return Err(Refusal::Full);
            }
        }
        Ok(self.next)
    }

    fn refresh_edge(&mut self, wanted: u64) {
        let mut limit = self.ring.fresh_limit();
        if mem::needs_drop::<T>() {
            // Refreshes again soon: released entries are dropped then.
            limit = limit.min(self.next + wanted.max(self.ring.capacity.div_ceil(4)));
        }
        self.edge.set(self.edge.get().max(limit));
    }

    fn refresh_limit(&mut self) {
        let fresh = self.ring.fresh_limit();
        let before = self.ring.raise_limit(fresh);
        self.limit = self.limit.max(fresh).max(before);
    }

    /// Becomes the publisher that is alone, if the count says so.
    fn try_be_alone(&mut self) -> bool {
        let ring = &*self.ring;
        // ORDERING: Acquire, pairs with the Release decrement in `Writer::drop`: all claims of the
        // others are shown, and `tail` is seen as they left it.
        if ring.membership.publishers.load(Ordering::Acquire) != 1 {
            return false;
        }
        let tail = ring.tail.load(Ordering::Relaxed);
        if tail & CLOSED != 0 {
            return false;
        }
        self.next = tail;
        // ORDERING: Acquire, pairs with the Release in `raise_limit`.
        self.limit = self.limit.max(ring.limit.load(Ordering::Acquire));
        self.edge.set(self.limit);
        self.alone.set(true);
        true
    }

    fn claim_shared(&mut self, n: u64) -> Result<Seq, Refusal> {
        let mut tail = self.ring.tail.load(Ordering::Relaxed);
        loop {
            if tail & CLOSED != 0 {
                return Err(Refusal::Closed);
            }
            if tail + n > self.limit {
                // ORDERING: Acquire, pairs with the Release in `raise_limit`.
                self.limit = self.limit.max(self.ring.limit.load(Ordering::Acquire));
                if tail + n > self.limit {
                    self.refresh_limit();
                    if tail + n > self.limit {
                        self.times_full += 1;
                        return Err(Refusal::Full);
                    }
                }
            }
            // ORDERING: Release, pairs with the Acquire in `Ring::tail` and `Ring::prefix`: a
            // reader of this tail finds the limit that allowed it. Acquire is not needed: the
            // limit orders everything that a claim relies on.
            match self.ring.tail.compare_exchange_weak(
                tail,
                tail + n,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(tail),
                Err(found) => tail = found,
            }
        }
    }

    /// Publishes `n` entries that were claimed and written.
    #[inline(always)]
    fn show(&mut self, seq: Seq, n: u64) {
        if self.alone.get() {
            self.next = seq + n;
            self.ring.show_alone(seq + n);
        } else {
            // ORDERING: Release fence before the relaxed stores of lap bytes, pairs with the
            // Acquire fence in `Ring::walk`.
            fence(Ordering::Release);
            for seq in seq..seq + n {
                self.ring.laps[self.ring.index(seq)].store(self.ring.lap(seq), STORE_AFTER_FENCE);
            }
            self.ring.entries.notify();
        }
    }

    /// Publishes `value`, or gives it back.
    #[inline(always)]
    pub(crate) fn try_push(&mut self, value: T) -> Result<Seq, (Refusal, T)> {
        match self.claim(1) {
            Ok(seq) => {
                // SAFETY: the entry is claimed, so its slot is free (module documentation) and this
                // publisher's alone until shown.
                unsafe { self.ring.slots.write(self.ring.index(seq), value) };
                self.show(seq, 1);
                Ok(seq)
            }
            Err(refusal) => Err((refusal, value)),
        }
    }

    /// Publishes all of `values`, which is at most `capacity` long, in one claim, and leaves it
    /// empty; or leaves it as it is.
    pub(crate) fn try_push_all(&mut self, values: &mut Vec<T>) -> Result<Seq, Refusal> {
        let n = values.len();
        let first = self.claim(n as u64)?;
        let index = self.ring.index(first);
        let head = n.min(self.ring.slots.len() - index);
        // SAFETY: as in `try_push`, for two runs of slots. The values move: the vector forgets them
        // before anything else happens.
        unsafe {
            self.ring.slots.copy_in(index, values.as_ptr(), head);
            self.ring
                .slots
                .copy_in(0, values.as_ptr().add(head), n - head);
            values.set_len(0);
        }
        self.show(first, n as u64);
        Ok(first)
    }

    /// Publishes all of `values`, which is at most `capacity` long, in one claim.
    pub(crate) fn try_push_slice(&mut self, values: &[T]) -> Result<Seq, Refusal>
    where
        T: Copy,
    {
        let first = self.claim(values.len() as u64)?;
        let index = self.ring.index(first);
        let (head, rest) = values.split_at(values.len().min(self.ring.slots.len() - index));
        // SAFETY: as in `try_push`, for two runs of slots.
        unsafe {
            self.ring.slots.copy_in(index, head.as_ptr(), head.len());
            self.ring.slots.copy_in(0, rest.as_ptr(), rest.len());
        }
        self.show(first, values.len() as u64);
        Ok(first)
    }

    /// Whether this publisher is alone and has room for `n` entries; `None` if it is not alone.
    #[inline(always)]
    pub(crate) fn can_fill(&mut self, n: usize) -> Option<Result<(), Refusal>> {
        if self.next + n as u64 <= self.edge.get() {
            return Some(Ok(()));
        }
        if !self.alone.get() && !self.try_be_alone() {
            return None;
        }
        Some(self.claim_slowly(n as u64).map(|_| ()))
    }

    /// Publishes up to `n` values straight from an iterator, as one batch; only after
    /// [`can_fill`](Self::can_fill) returned `Some(Ok(()))`.
    ///
    /// If the iterator panics, the values that it yielded before are published.
    #[inline(always)]
    pub(crate) fn fill(
        &mut self,
        n: usize,
        values: impl Iterator<Item = T>,
    ) -> std::ops::Range<Seq> {
        /// Shows the written entries, also when the iterator panics.
        struct Show<'a, T, W: Wait> {
            ring: &'a Ring<T, W>,
            next: &'a mut Seq,
            end: Seq,
        }
        impl<T, W: Wait> Drop for Show<'_, T, W> {
            #[inline(always)]
            fn drop(&mut self) {
                *self.next = self.end;
                self.ring.show_alone(self.end);
            }
        }
        let first = self.next;
        assert!(
            first + n as u64 <= self.edge.get(),
            "a publisher that is alone asks for room before it writes"
        );
        // The iterator cannot reach this publisher, which is borrowed: it stays alone and its
        // position stays.
        let ring = &*self.ring;
        let (slots, mask) = (ring.slots.view(), ring.mask);
        let mut show = Show {
            ring,
            next: &mut self.next,
            end: first,
        };
        for value in values.take(n) {
            // SAFETY: as in `try_push`: below `edge` (which is not zero, so this publisher is
            // alone) slots are free. Nothing is claimed yet, and only what is written will be
            // shown.
            unsafe { slots.write((show.end & mask) as usize, value) };
            show.end += 1;
        }
        first..show.end
    }

    /// Ends claiming for all publishers. Claimed entries will be shown and read.
    pub(crate) fn close(&mut self) {
        let ring = &*self.ring;
        if self.alone.get() {
            // ORDERING: Release, pairs with the Acquire in `Ring::tail`.
            ring.tail.store(self.next | CLOSED, Ordering::Release);
            self.alone.set(false);
            self.edge.set(0);
        } else {
            // ORDERING: Release, as above.
            ring.tail.fetch_or(CLOSED, Ordering::Release);
        }
        // ORDERING: Release, pairs with the Acquire in `Ring::is_closed`.
        ring.membership.closed.store(true, Ordering::Release);
        ring.entries.notify();
        ring.room.notify();
    }
}

impl<T, W: Wait> Clone for Writer<T, W> {
    fn clone(&self) -> Self {
        let ring = &*self.ring;
        if self.alone.get() {
            // No other publisher exists, and nothing is in flight.
            let next = self.next;
            // ORDERING: Release fence before the lap bytes, pairs with the Acquire fence in
            // `Ring::walk`: a byte that a late reader takes for its own entry does mean that the
            // entry is there.
            fence(Ordering::Release);
            // Before `MULTI`: a byte never stored is 0, which in the first lap means "published".
            for seq in next..next + self.ring.slots.len() as u64 {
                ring.laps[ring.index(seq)].store(ring.lap(seq).wrapping_sub(1), STORE_AFTER_FENCE);
            }
            // ORDERING: Release, pairs with the Acquire loads of `published`: a thread that sees
            // `MULTI` sees the lap bytes set up.
            ring.published.store(next | MULTI, Ordering::Release);
            // ORDERING: Release, pairs with the Acquire in `Ring::tail`: a thread that sees a
            // shared claim sees `MULTI`.
            ring.tail.store(next, Ordering::Release);
            ring.raise_limit(self.edge.get());
            self.alone.set(false);
            self.edge.set(0);
        }
        let before = ring.membership.publishers.fetch_add(1, Ordering::Relaxed);
        assert!(before < isize::MAX as usize, "too many publishers");
        Writer {
            ring: self.ring.clone(),
            next: 0,
            edge: Cell::new(0),
            limit: self.limit,
            alone: Cell::new(false),
            times_full: 0,
        }
    }
}

impl<T, W: Wait> Drop for Writer<T, W> {
    fn drop(&mut self) {
        let ring = &*self.ring;
        if self.alone.get() {
            // ORDERING: Release, pairs with the Acquire in `Ring::tail`.
            ring.tail.store(self.next, Ordering::Release);
        }
        // ORDERING: AcqRel: Release pairs with the Acquire in `try_be_alone` and with the Acquire
        // here, in the last publisher: all that was claimed is shown when the channel closes.
        if ring.membership.publishers.fetch_sub(1, Ordering::AcqRel) == 1 {
            // ORDERING: Release, both as in `close`.
            ring.tail.fetch_or(CLOSED, Ordering::Release);
            ring.membership.closed.store(true, Ordering::Release);
            ring.entries.notify();
            ring.room.notify();
        }
    }
}

/// A place among the cursors, held for a subscription that may or may not count.
pub(crate) struct Place<T, W: Wait> {
    ring: Arc<Ring<T, W>>,
    place: usize,
}

impl<T, W: Wait> Place<T, W> {
    fn take(ring: &Arc<Ring<T, W>>) -> Option<Self> {
        let taken = &ring.membership.taken;
        let mut now = taken.load(Ordering::Relaxed);
        loop {
            let place = now.trailing_ones() as usize;
            if place >= MAX_SUBSCRIBERS {
                return None;
            }
            // ORDERING: AcqRel, pairs with the Release in `Place::drop`: the place's last user has
            // stopped writing its cursor.
            match taken.compare_exchange_weak(
                now,
                now | 1 << place,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    ring.membership
                        .evicted
                        .fetch_and(!(1 << place), Ordering::Relaxed);
                    return Some(Place {
                        ring: ring.clone(),
                        place,
                    });
                }
                Err(found) => now = found,
            }
        }
    }

    pub(crate) fn ring(&self) -> &Arc<Ring<T, W>> {
        &self.ring
    }

    pub(crate) fn number(&self) -> usize {
        self.place
    }

    fn join(&self, position: Seq) {
        let ring = &*self.ring;
        // ORDERING: Release, three times: pair with the Acquire loads in `gate`, in the opposite
        // order: epoch, members, cursor.
        ring.cursors[self.place].store(position, Ordering::Release);
        ring.membership
            .members
            .fetch_or(1 << self.place, Ordering::Release);
        ring.membership.epoch.fetch_add(1, Ordering::Release);
    }

    fn leave(&self) {
        // ORDERING: Release, pairs with the Acquire of `members` in `gate`: the leaver's reading is
        // over.
        self.ring
            .membership
            .members
            .fetch_and(!(1 << self.place), Ordering::Release);
        self.ring.room.notify();
        if !thread_panicking() {
            self.ring.tidy();
        }
    }
}

/// A destructor that panics while unwinding would end the process.
fn thread_panicking() -> bool {
    std::thread::panicking()
}

impl<T, W: Wait> Drop for Place<T, W> {
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the AcqRel in `take`.
        self.ring
            .membership
            .taken
            .fetch_and(!(1 << self.place), Ordering::Release);
    }
}

/// One subscriber's side of the ring.
pub(crate) struct Reader<T, W: Wait> {
    place: Option<Place<T, W>>,
    ring: Arc<Ring<T, W>>,
    /// Copy of the cursor: next entry not yet released.
    position: Seq,
    /// Everything from `position` up to here is published.
    end: Seq,
}

impl<T, W: Wait> Reader<T, W> {
    /// A reader that sees everything from now on; `None` if all places are taken.
    pub(crate) fn from_now(ring: &Arc<Ring<T, W>>) -> Option<Self> {
        Place::take(ring).map(Self::from_now_at)
    }

    /// As `from_now`, at a place already held.
    pub(crate) fn from_now_at(place: Place<T, W>) -> Self {
        let ring = place.ring.clone();
        // Low enough until the true position is known.
        place.join(ring.prefix());
        // ORDERING: SeqCst fence, pairs with the one in `gate`.
        fence(Ordering::SeqCst);
        let position = ring.prefix();
        // ORDERING: Release, as in `join`.
        ring.cursors[place.place].store(position, Ordering::Release);
        let reader = Reader {
            place: Some(place),
            ring,
            position,
            end: position,
        };
        // User code, which may panic: the reader leaves then.
        reader.ring.room.notify();
        reader
    }

    /// A second reader at the same position; `None` if all places are taken.
    pub(crate) fn fork(&self) -> Option<Self> {
        let place = Place::take(&self.ring)?;
        place.join(self.position);
        Some(Reader {
            place: Some(place),
            ring: self.ring.clone(),
            position: self.position,
            end: self.end,
        })
    }

    /// Stops counting, and keeps the place.
    pub(crate) fn into_place(mut self) -> Place<T, W> {
        let place = self
            .place
            .take()
            .expect("a reader has a place until it is dropped");
        place.leave();
        place
    }

    pub(crate) fn ring(&self) -> &Arc<Ring<T, W>> {
        &self.ring
    }

    #[inline(always)]
    pub(crate) fn number(&self) -> usize {
        self.place.as_ref().map_or(usize::MAX, |place| place.place)
    }

    #[inline(always)]
    pub(crate) fn position(&self) -> Seq {
        self.position
    }

    #[inline(always)]
    pub(crate) fn end(&self) -> Seq {
        self.end
    }

    /// Reads the published end of the channel.
    #[inline(always)]
    pub(crate) fn poll(&mut self) -> Seq {
        self.end = self.ring.look(self.position, self.end);
        self.end
    }

    /// Waits until there is something beyond `end`, or a reason to stop waiting; false if the
    /// deadline passed first.
    pub(crate) fn wait(&mut self, deadline: Option<Instant>) -> bool {
        let (position, end, number) = (self.position, self.end, self.number());
        let ring = &*self.ring;
        let mut ready = || {
            ring.look(position, end) > end
                || ring.evicted() >> number & 1 == 1
                || ring.is_drained(end)
        };
        // A strategy that always says yes holds nobody beyond the deadline.
        ring.entries.wait_until(deadline, &mut ready)
            && (deadline.is_none_or(|deadline| Instant::now() < deadline) || ready())
    }

    /// Whether the channel is closed and `end` is its last position. Otherwise the caller may
    /// have to poll again.
    #[inline]
    pub(crate) fn is_drained(&mut self) -> bool {
        let end = self.poll();
        self.ring.is_drained(end)
    }

    pub(crate) fn is_evicted(&self) -> bool {
        self.ring.evicted() >> self.number() & 1 == 1
    }

    /// The entry at `seq`, if it is in `position..end`.
    #[inline(always)]
    pub(crate) fn get(&self, seq: Seq) -> Option<&T> {
        if seq < self.position || seq >= self.end {
            return None;
        }
        // SAFETY: the entry was seen published, and its slot is not reused before this reader's
        // cursor has passed it (module documentation), which takes `&mut self`.
        Some(unsafe { self.ring.slots.get(self.ring.index(seq)) })
    }

    /// The entries of `from..to`, in two runs of memory.
    #[inline]
    pub(crate) fn slices(&self, from: Seq, to: Seq) -> (&[T], &[T]) {
        assert!(
            self.position <= from && from <= to && to <= self.end,
            "entries {from}..{to} are not within the readable {}..{}",
            self.position,
            self.end
        );
        let index = self.ring.index(from);
        let len = (to - from) as usize;
        let head = len.min(self.ring.slots.len() - index);
        // SAFETY: as in `get`, for each of the entries; there are at most `capacity` of them, so
        // the runs do not overlap.
        unsafe {
            (
                self.ring.slots.slice(index, head),
                self.ring.slots.slice(0, len - head),
            )
        }
    }

    /// Releases everything below `seq`.
    #[inline(always)]
    pub(crate) fn advance_to(&mut self, seq: Seq) {
        assert!(
            seq <= self.end,
            "entries up to {seq} cannot be released, they are seen up to {} only",
            self.end
        );
        if seq <= self.position {
            return;
        }
        if cfg!(loom) {
            // Show loom that the entries were readable up to here.
            for seq in self.position..seq {
                self.ring.slots.touch(self.ring.index(seq), 1);
            }
        }
        self.position = seq;
        // ORDERING: Release, pairs with the Acquire of the cursors in `gate`: reading below is
        // over.
        self.ring.cursors[self.number()].store(seq, Ordering::Release);
        self.ring.room.notify();
    }
}

impl<T, W: Wait> Drop for Reader<T, W> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            place.leave();
        }
    }
}
