//! The multicast ring: claim, show, read. No other file accesses slot memory, except
//! `batches.rs` for its own values.
//!
//! # The fields and their writers
//!
//! * `slots`: entry `seq` is in slot `seq & mask`. The publisher that claimed `seq` writes it, all
//!   subscribers read it in place, and the holder of `reclaim.lock` empties it (only for payloads
//!   with a destructor).
//! * `tail`: all positions below are claimed. `CLOSED`, its top bit, ends claiming for good.
//!   Several publishers advance it by compare-and-swap; a sole publisher does not maintain it.
//! * `published`: all positions below are published. A sole publisher advances it. With several
//!   publishers it has `MULTI`, its top bit, and `laps` shows which later positions are published.
//! * `laps`: one byte per slot, the low bits of the lap last published there. Meaningful in `MULTI`
//!   mode only.
//! * `limit`: positions below may be claimed. It only grows; several publishers share it.
//! * `cursors[i]`: subscriber `i` has released all positions below. Only that subscriber writes it.
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
//! * With members, the gate is the lowest of their cursors, read with Acquire. Without members it
//!   is a prefix known to be published. It cannot be `tail`, or two publishers one lap apart could
//!   write to the same slot.
//! * *A subscription forked while the cursors are read*: its parent advances only after the fork
//!   has raised `epoch`, so a thread that has read the parent's new cursor (Acquire) sees the new
//!   epoch and starts again.
//! * *A subscription that joins from now*: it enters `members`, raises `epoch`, passes a SeqCst
//!   fence and then takes the published end of the channel as its position. The gate reads cursors,
//!   passes a SeqCst fence, and reads `epoch` again. If it misses the join, its fence came first,
//!   so the joiner finds everything published that the gate found published or released. (The
//!   joiner cannot take the tail: entries below it may be claimed but not published, and a gate
//!   there would let another publisher into a claimed slot.)
//! * *A place used again*: `epoch` distinguishes the two users, and leaving is a Release on
//!   `members` that the gate acquires.
//!
//! # One publisher or several
//!
//! New publishers come from [`Writer::clone`] only, on the thread that owns the original. So a
//! publisher that finds the count at one is alone until it clones itself: it needs neither `tail`
//! nor `laps`, just its own position and one Release store of `published`.
//!
//! * *One to several*, in `clone`: no claim is unpublished. All lap bytes are set to "not
//!   published" for the next lap, then `published` gets `MULTI`, then `tail` is stored. A
//!   subscriber that still sees the old `published` finds every entry below it.
//! * *Several to one*, when a publisher finds the count at one: each of the others has published
//!   all its claims before it decremented the count (Release, Acquire), so `tail` is the remaining
//!   publisher's position. Its next entry stores `published` without `MULTI`; until then
//!   subscribers continue to read lap bytes, which are complete.
//! * *A subscriber that sees an older `published` with `MULTI`* reads lap bytes from its own
//!   position on. A byte up to two laps before the position's lap means "not published". A byte of
//!   a later lap means "published": a publisher can be ahead only of a reader that does not gate
//!   yet, in [`Ring::prefix`]. That is recognised up to 127 laps ahead; beyond that, the result is
//!   "not published", which is safe.
//!
//! # Holes
//!
//! There are none. User code (iterators, `Clone`, constructors) never runs between claim and
//! publishing; with several publishers, a batch is collected first. So no panic or early return
//! leaves a claim unpublished.
//!
//! # Progress
//!
//! Reading is wait-free, and so is publishing for a sole publisher while there is room. With
//! several publishers a claim is lock-free, but visibility is not: because of the one total order,
//! a publisher preempted between claim and show (a move and a byte store) hides all later entries.
//! One thread at a time drops payloads with a destructor, under a lock that no thread waits for;
//! others find no room meanwhile. A subscriber that stalls stops all publishers after `capacity`
//! entries, because the ring loses nothing. A subscriber whose thread unwinds leaves, and no longer
//! counts.

use crate::{
    Seq,
    slots::{Slots, Staged},
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

/// In `published`: the lap bytes show which positions from this one on are published.
const MULTI: u64 = 1 << 63;
/// In `tail`: nothing can be claimed any more.
const CLOSED: u64 = 1 << 63;

/// If the payload has no destructor, the slots may take up to this many bytes, even if the capacity
/// needs fewer.
///
/// Writing to a line that the reader's L1 or L2 still holds costs a round trip to the other core.
/// Writing to a line that was evicted to the shared L3 does not. So the slots should not fit into a
/// core's L2. Measured with 64-byte entries on cores with 1 MiB of L2: 100 million entries a second
/// with 1 MiB of slots, 380 million with 2 MiB and more.
const STORAGE_BYTES: usize = 4 << 20;
/// The slots may also be up to this many times the capacity, so that a small channel stays small.
const STORAGE_FACTOR: usize = 64;

/// The reason why nothing was claimed.
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
    /// Set after `CLOSED` in `tail`, so that idle subscribers do not read the contended `tail`.
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
        // A slot takes at least one byte, for its lap.
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

    /// Whether a lap byte shows that its entry of this lap is published. Requires that everything
    /// below is published.
    #[inline(always)]
    fn shows(byte: u8, lap: u8) -> bool {
        byte.wrapping_sub(lap) as i8 >= 0
    }

    /// Follows the lap bytes from `seq` to the first entry that is not published, but not beyond
    /// `bound`. Requires that everything below `seq` is published.
    #[inline]
    fn walk(&self, mut seq: Seq, bound: Seq) -> Seq {
        while seq < bound {
            // The slots up to the end of this lap.
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

    /// The published end of the channel, for a caller that knows no earlier end: everything below
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

    /// The published end of the channel, for a reader whose cursor is at `position` and that knows
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
        // Reads `closed` first, so the tail is final. Entries below it may still be unpublished.
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
            // ORDERING: Acquire, pairs with the Release in `CursorSlot::leave`: the leaver's reading
            // is over.
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
            // ORDERING: Acquire, for the next round, as above.
            let now = membership.epoch.load(Ordering::Acquire);
            if now == epoch {
                return gate;
            }
            epoch = now;
        }
    }

    /// Computes the limit below which positions may be claimed.
    fn fresh_limit(&self) -> Seq {
        let gate = self.gate();
        if mem::needs_drop::<T>() {
            self.drop_below(gate) + self.capacity
        } else {
            gate + self.capacity
        }
    }

    /// Raises the shared limit to at least `to`. Returns its previous value.
    fn raise_limit(&self, to: Seq) -> Seq {
        // ORDERING: Release, pairs with the Acquire here and in `claim_shared`, `try_be_alone`
        // and `prefix`: a publisher that learns a limit from another one also learns that the
        // slots below it are free, and that everything below its gate is published.
        let mut now = self.limit.load(Ordering::Acquire);
        // Not `fetch_max`: on x86 it compiles to this loop anyway, and ThreadSanitizer does not see
        // it.
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
                // A publisher that found the lock taken may wait as if the channel were full.
                self.0.room.notify();
            }
        }
        let unlock = Unlock(self);
        let mut seq = self.reclaim.done.load(Ordering::Relaxed);
        while seq < gate {
            // SAFETY: the entry is published and no longer in use (promise of `gate`). No publisher
            // claims its slot before `done` has passed it, and the lock keeps other threads from
            // dropping it. `done` moves only after the value is out of the slot, which then counts
            // as empty even if the destructor panics.
            let value = unsafe { self.slots.take(self.index(seq)) };
            seq += 1;
            // ORDERING: Release, pairs with the Acquire load above: the slot is empty.
            self.reclaim.done.store(seq, Ordering::Release);
            drop(value);
        }
        drop(unlock);
        seq
    }

    /// Publishes everything below `end`, for a sole publisher.
    #[inline(always)]
    fn show_alone(&self, end: Seq) {
        // ORDERING: Release, pairs with the Acquire loads in `look`, `prefix` and `tail`.
        self.published.store(end, Ordering::Release);
        self.entries.notify();
    }

    /// Drops the entries that every subscriber has released. Does nothing for payloads without a
    /// destructor.
    pub(crate) fn tidy(&self) {
        if mem::needs_drop::<T>() {
            self.drop_below(self.gate());
        }
    }

    /// The position below which everything is claimed at this moment. No entry that the caller
    /// knows to be published is at or above it.
    pub(crate) fn tail(&self) -> Seq {
        // ORDERING: Acquire, pairs with the Release stores of `tail` and `published`: a subscriber
        // that has seen the final tail finds everything that was published by then.
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

    /// The number of entries that the slowest subscriber has not released.
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

    /// The place of each member, and how many entries it lags the tail.
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

    /// Raises the flag that asks the subscriber at `place` to leave. Returns false if there is
    /// none.
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
                    // SAFETY: `&mut Ring`: no other user is left. Every claim was published, so the
                    // entries from `done` to the tail exist, and each is taken once.
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

/// One publisher's side of the ring. `Send`, but not `Sync`: a sole publisher stays the only one
/// because no other thread can clone it.
pub(crate) struct Writer<T, W: Wait> {
    ring: Arc<Ring<T, W>>,
    /// The next position, while this publisher is alone.
    next: Seq,
    /// The limit of positions that this publisher may write while it is alone. Zero otherwise.
    edge: Cell<Seq>,
    /// The highest `Ring::limit` that this publisher has seen, while there are several.
    limit: Seq,
    /// Whether this is known to be the only publisher.
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

    /// The position of the next entry. With several publishers, another one may take it first.
    pub(crate) fn next_seq(&self) -> Seq {
        if self.alone.get() {
            self.next
        } else {
            self.ring.tail()
        }
    }

    /// How many entries fit now. Computes the limit again if fewer than `enough` are known to fit.
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

    /// Reserves `n` positions from the result on for this publisher. A sole publisher only checks
    /// for room; otherwise the positions are claimed, and the caller must show them.
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
            // A low edge causes the next refresh soon, which drops released entries.
            limit = limit.min(self.next + wanted.max(self.ring.capacity.div_ceil(4)));
        }
        self.edge.set(self.edge.get().max(limit));
    }

    fn refresh_limit(&mut self) {
        let fresh = self.ring.fresh_limit();
        let before = self.ring.raise_limit(fresh);
        self.limit = self.limit.max(fresh).max(before);
    }

    /// Becomes the sole publisher if the count of publishers is one. Returns whether it is.
    fn try_be_alone(&mut self) -> bool {
        let ring = &*self.ring;
        // ORDERING: Acquire, pairs with the Release decrement in `Writer::drop`: this thread sees
        // the entries of all claims of the others, and the last `tail`.
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
            // reader of this tail finds the limit that allowed it. Acquire is not needed, because
            // the limit orders everything that a claim relies on.
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
            let (index, lap) = (self.ring.index(seq), self.ring.lap(seq));
            let head = (n as usize).min(self.ring.laps.len() - index);
            if n == 1 {
                self.ring.laps[index].store(lap, STORE_AFTER_FENCE);
            } else {
                for byte in &self.ring.laps[index..index + head] {
                    byte.store(lap, STORE_AFTER_FENCE);
                }
                for byte in &self.ring.laps[..n as usize - head] {
                    byte.store(lap.wrapping_add(1), STORE_AFTER_FENCE);
                }
            }
            self.ring.entries.notify();
        }
    }

    /// Publishes `value`, or returns it.
    #[inline(always)]
    pub(crate) fn try_push(&mut self, value: T) -> Result<Seq, (Refusal, T)> {
        match self.claim(1) {
            Ok(seq) => {
                // SAFETY: the entry is claimed, so its slot is free (module documentation), and
                // only this publisher uses it until it is shown.
                unsafe { self.ring.slots.write(self.ring.index(seq), value) };
                self.show(seq, 1);
                Ok(seq)
            }
            Err(refusal) => Err((refusal, value)),
        }
    }

    /// Publishes all of `values`, which is at most `capacity` long, in one claim. Empties it on
    /// success, and leaves it unchanged on failure.
    pub(crate) fn try_push_all(&mut self, values: &mut Staged<T>) -> Result<Seq, Refusal> {
        let n = values.len();
        let first = self.claim(n as u64)?;
        let index = self.ring.index(first);
        let head = n.min(self.ring.slots.len() - index);
        // SAFETY: as in `try_push`, for two runs of slots. The values move: `values` forgets them
        // before any other code runs.
        unsafe {
            self.ring.slots.copy_in(index, values.as_ptr(), head);
            self.ring
                .slots
                .copy_in(0, values.as_ptr().add(head), n - head);
        }
        values.forget();
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
        // The iterator cannot reach this publisher, which is borrowed. So the publisher stays alone
        // and keeps its position.
        let ring = &*self.ring;
        let (slots, mask) = (ring.slots.view(), ring.mask);
        let mut show = Show {
            ring,
            next: &mut self.next,
            end: first,
        };
        for value in values.take(n) {
            // SAFETY: as in `try_push`: below `edge` (which is not zero, so this publisher is
            // alone) slots are free. Nothing is claimed yet, and only written entries will be
            // shown.
            unsafe { slots.write((show.end & mask) as usize, value) };
            show.end += 1;
        }
        first..show.end
    }

    /// Ends claiming for all publishers. Entries that are already claimed will be shown and read.
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
            // No other publisher exists, and no claim is unpublished.
            let next = self.next;
            // ORDERING: Release fence before the lap bytes, pairs with the Acquire fence in
            // `Ring::walk`: if a late reader finds in such a byte that an entry is published, it
            // also sees the entry.
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
        // here, in the last publisher: every claim is shown when the channel closes.
        if ring.membership.publishers.fetch_sub(1, Ordering::AcqRel) == 1 {
            // ORDERING: Release, both as in `close`.
            ring.tail.fetch_or(CLOSED, Ordering::Release);
            ring.membership.closed.store(true, Ordering::Release);
            ring.entries.notify();
            ring.room.notify();
        }
    }
}

/// A slot of a cursor, held for a subscription. Its cursor counts only while the
/// subscription is a member.
pub(crate) struct CursorSlot<T, W: Wait> {
    ring: Arc<Ring<T, W>>,
    place: usize,
}

impl<T, W: Wait> CursorSlot<T, W> {
    fn take(ring: &Arc<Ring<T, W>>) -> Option<Self> {
        let taken = &ring.membership.taken;
        let mut now = taken.load(Ordering::Relaxed);
        loop {
            let place = now.trailing_ones() as usize;
            if place >= MAX_SUBSCRIBERS {
                return None;
            }
            // ORDERING: AcqRel, pairs with the Release in `CursorSlot::drop`: the slot's last user no
            // longer writes its cursor.
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
                    return Some(CursorSlot {
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

impl<T, W: Wait> Drop for CursorSlot<T, W> {
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
    place: Option<CursorSlot<T, W>>,
    ring: Arc<Ring<T, W>>,
    /// A copy of the cursor: the first position not released.
    position: Seq,
    /// Everything below is known to be published.
    end: Seq,
}

impl<T, W: Wait> Reader<T, W> {
    /// A reader of all entries published from now on; `None` if all places are taken.
    pub(crate) fn from_now(ring: &Arc<Ring<T, W>>) -> Option<Self> {
        CursorSlot::take(ring).map(Self::from_now_at)
    }

    /// As `from_now`, at a place that the caller holds.
    pub(crate) fn from_now_at(place: CursorSlot<T, W>) -> Self {
        let ring = place.ring.clone();
        // Holds the gate at or below the true position, which is not known yet.
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
        // User code, which may panic: then `reader` is dropped and leaves.
        reader.ring.room.notify();
        reader
    }

    /// A second reader at the same position; `None` if all places are taken.
    pub(crate) fn fork(&self) -> Option<Self> {
        let place = CursorSlot::take(&self.ring)?;
        place.join(self.position);
        Some(Reader {
            place: Some(place),
            ring: self.ring.clone(),
            position: self.position,
            end: self.end,
        })
    }

    /// Stops counting, and keeps the place.
    pub(crate) fn into_place(mut self) -> CursorSlot<T, W> {
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

    /// Waits until an entry beyond `end` is published, the channel is drained, or this reader is
    /// asked to leave. Returns false if the deadline passed first.
    pub(crate) fn wait(&mut self, deadline: Option<Instant>) -> bool {
        let (position, end, number) = (self.position, self.end, self.number());
        let ring = &*self.ring;
        let mut ready = || {
            ring.look(position, end) > end
                || ring.evicted() >> number & 1 == 1
                || ring.is_drained(end)
        };
        // Checks the deadline, too, in case a wait strategy always returns true.
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
        // cursor has passed it (module documentation), which requires `&mut self`.
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
            // Lets loom check that the entries were readable until now.
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
