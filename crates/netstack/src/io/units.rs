//! Units: pieces of a stream that any worker may process, and whose results are used in order.
//!
//! A [`UnitRing`] is a bounded ring of units between one producer and one consumer. Between them,
//! any number of threads begin units, in any order, and process them. The consumer takes the *done
//! prefix*: nothing after the first unit that is not done.
//!
//! ```text
//! free -push-> ready -begin-> begun -done-> done -take-> free, for the unit one round later
//!                ^               |
//!                +---- dropped --+
//! ```
//!
//! If one is dropped without [`BegunUnit::done`], because its thread unwinds, the unit becomes
//! ready again. So a unit may be begun several times, and processing must not change its input
//! until the unit is done. That is why units are sealed and opened from one buffer to another and
//! not in place: a unit that is half sealed in place is neither text nor unit.
//!
//! The state of a slot is one word that includes the number of its unit, so a late thread with an
//! old number changes nothing. The contents of a slot pass from thread to thread with the state,
//! each time by a Release and an Acquire.
//!
//! Workers find units through the [`UnitQueue`] of their stack, which holds everything that has
//! ready units ([`UnitWork`]). A worker that takes an entry out puts it back before it begins, if
//! there is more for others.

use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crossbeam_queue::{ArrayQueue, SegQueue};
use crossbeam_utils::CachePadded;
use dominoes::{TryLock, TryLockGuard};
use zeroize::Zeroize;

use crate::io::sync::{AtomicU64, Shadow};
use crate::log::request::ConnId;

/// A bounded ring of units; see the module's documentation.
pub(crate) struct UnitRing<T> {
    /// Each in a cache line of its own, since different threads process neighbours.
    slots: Box<[CachePadded<Slot<T>>]>,
    /// How many units were pushed; written by the producer.
    pushed: CachePadded<AtomicU64>,
    /// How many units were taken; written by the consumer.
    taken: CachePadded<AtomicU64>,
}

struct Slot<T> {
    /// The number of its unit, and its [`UnitState`].
    word: AtomicU64,
    /// Taken only by the thread that owns it according to the word, so never contended.
    unit: TryLock<Unit<T>>,
}

struct Unit<T> {
    value: T,
    /// Access checks (loom).
    shadow: Shadow,
}

/// The state of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitState {
    /// There is no such unit yet.
    Free,
    /// It can be begun.
    Ready,
    /// A thread is processing it.
    Begun,
    /// It can be taken, in order.
    Done,
}

const STATE_BITS: u32 = 2;

const fn word(number: u64, state: UnitState) -> u64 {
    number << STATE_BITS | state as u64
}

impl<T: Default> UnitRing<T> {
    /// A ring of `len` units, at least 1.
    pub(crate) fn new(len: usize) -> Self {
        let slot = |number| Slot {
            word: AtomicU64::new(word(number, UnitState::Free)),
            unit: TryLock::new(Unit {
                value: T::default(),
                shadow: Shadow::new(1),
            }),
        };
        UnitRing {
            slots: (0..len as u64).map(slot).map(CachePadded::new).collect(),
            pushed: CachePadded::default(),
            taken: CachePadded::default(),
        }
    }
}

impl<T> UnitRing<T> {
    fn slot(&self, number: u64) -> &Slot<T> {
        &self.slots[(number % self.slots.len() as u64) as usize]
    }

    /// Units that are pushed and not taken. Exact for the producer and the consumer while the other
    /// one does not move.
    pub(crate) fn len(&self) -> usize {
        // ORDERING: Relaxed: only a number; no memory is accessed by it.
        let taken = self.taken.load(Ordering::Relaxed);
        self.pushed.load(Ordering::Relaxed).saturating_sub(taken) as usize
    }

    /// Lets `fill` make the next unit. Returns false if the ring is full. Only one thread may push
    /// at a time.
    pub(crate) fn push(&self, fill: impl FnOnce(&mut T)) -> bool {
        self.push_in(UnitState::Ready, fill)
    }

    /// As [`UnitRing::push`], for a unit that is already processed.
    pub(crate) fn push_done(&self, fill: impl FnOnce(&mut T)) -> bool {
        self.push_in(UnitState::Done, fill)
    }

    /// Whether there is room for the next unit. For the producer.
    pub(crate) fn has_room(&self) -> bool {
        let number = self.pushed.load(Ordering::Relaxed);
        // ORDERING: Relaxed: `push` checks again.
        self.slot(number).word.load(Ordering::Relaxed) == word(number, UnitState::Free)
    }

    fn push_in(&self, state: UnitState, fill: impl FnOnce(&mut T)) -> bool {
        let number = self.pushed.load(Ordering::Relaxed);
        let slot = self.slot(number);
        // ORDERING: Acquire, pairs with the Release in `take`: the consumer has finished the unit
        // one round before.
        if slot.word.load(Ordering::Acquire) != word(number, UnitState::Free) {
            return false;
        }
        fill(&mut slot.enter().value);
        // ORDERING: Release, pairs with the Acquire in `begin`, and in `take`.
        slot.word.store(word(number, state), Ordering::Release);
        // ORDERING: Release, pairs with the Acquire in `begin`, which looks no farther.
        self.pushed.store(number + 1, Ordering::Release);
        true
    }

    /// Begins the oldest unit that is ready.
    pub(crate) fn begin(&self) -> Option<BegunUnit<'_, T>> {
        // ORDERING: Relaxed: an older number only makes the search begin earlier.
        let taken = self.taken.load(Ordering::Relaxed);
        // ORDERING: Acquire, pairs with the Release in `push`.
        let pushed = self.pushed.load(Ordering::Acquire);
        (taken..pushed).find_map(|number| self.begin_number(number))
    }

    /// Begins the next unit in order, if it is ready. For the consumer.
    pub(crate) fn begin_first(&self) -> Option<BegunUnit<'_, T>> {
        self.begin_number(self.taken.load(Ordering::Relaxed))
    }

    fn begin_number(&self, number: u64) -> Option<BegunUnit<'_, T>> {
        let slot = self.slot(number);
        let ready = word(number, UnitState::Ready);
        if slot.word.load(Ordering::Relaxed) != ready {
            return None;
        }
        let begun = word(number, UnitState::Begun);
        // ORDERING: Acquire, pairs with the Release in `push` and in `BegunUnit::give`.
        slot.word
            .compare_exchange(ready, begun, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        Some(BegunUnit {
            slot,
            number,
            unit: Some(slot.enter()),
        })
    }

    /// Whether a unit is ready.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready().next().is_some()
    }

    /// Whether `count` units are ready.
    pub(crate) fn are_ready(&self, count: usize) -> bool {
        self.ready().take(count).count() == count
    }

    /// The numbers of the units that are ready.
    fn ready(&self) -> impl Iterator<Item = u64> {
        let taken = self.taken.load(Ordering::Relaxed);
        // ORDERING: Relaxed: `begin` checks again.
        let pushed = self.pushed.load(Ordering::Relaxed);
        (taken..pushed).filter(|number| {
            self.slot(*number).word.load(Ordering::Relaxed) == word(*number, UnitState::Ready)
        })
    }

    /// The state of the next unit in order. For the consumer.
    pub(crate) fn first(&self) -> UnitState {
        let number = self.taken.load(Ordering::Relaxed);
        // ORDERING: Relaxed: `begin_first` and `take` check again.
        let found = self.slot(number).word.load(Ordering::Relaxed);
        let states = [UnitState::Ready, UnitState::Begun, UnitState::Done];
        let state = states
            .into_iter()
            .find(|state| word(number, *state) == found);
        state.unwrap_or(UnitState::Free)
    }

    /// If the next unit is done, calls `take` with it and removes it. Only one thread may take at a
    /// time.
    pub(crate) fn take<R>(&self, take: impl FnOnce(&mut T) -> R) -> Option<R> {
        let number = self.taken.load(Ordering::Relaxed);
        let slot = self.slot(number);
        // ORDERING: Acquire, pairs with the Release in `BegunUnit::give`: all writes of the unit's
        // last thread are seen, in the slot and elsewhere.
        if slot.word.load(Ordering::Acquire) != word(number, UnitState::Done) {
            return None;
        }
        let taken = take(&mut slot.enter().value);
        let next = number + self.slots.len() as u64;
        // ORDERING: Release, pairs with the Acquire in `push`.
        slot.word
            .store(word(next, UnitState::Free), Ordering::Release);
        // ORDERING: Release, pairs with the Acquire fence in `Stage::look`.
        self.taken.store(number + 1, Ordering::Release);
        Some(taken)
    }
}

impl<T> Slot<T> {
    /// Its unit, for the thread that owns it according to the word.
    fn enter(&self) -> TryLockGuard<'_, Unit<T>> {
        let unit = self.unit.try_take();
        let unit = unit.expect("the word of a slot gives its unit to one thread");
        unit.shadow.write(0, 1);
        unit
    }
}

/// A unit that this thread is processing. Dropping it makes the unit ready again.
pub(crate) struct BegunUnit<'a, T> {
    slot: &'a Slot<T>,
    number: u64,
    /// `None` once it was given back.
    unit: Option<TryLockGuard<'a, Unit<T>>>,
}

impl<T> BegunUnit<'_, T> {
    /// Marks the unit as processed.
    pub(crate) fn done(mut self) {
        self.give(UnitState::Done);
    }

    fn give(&mut self, state: UnitState) {
        if self.unit.take().is_some() {
            // ORDERING: Release, pairs with the Acquire in `begin_number` and in `take`.
            self.slot
                .word
                .store(word(self.number, state), Ordering::Release);
        }
    }
}

impl<T> Deref for BegunUnit<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        let unit = self.unit.as_ref();
        &unit.expect("only giving it back takes it out").value
    }
}

impl<T> DerefMut for BegunUnit<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        let unit = self.unit.as_mut();
        &mut unit.expect("only giving it back takes it out").value
    }
}

impl<T> Drop for BegunUnit<'_, T> {
    fn drop(&mut self) {
        self.give(UnitState::Ready);
    }
}

/// Work that only one thread does at a time, and that no thread waits for. A thread that arrives
/// meanwhile leaves the work to the thread that is doing it, which then does it once more.
#[derive(Default)]
pub(crate) struct Serial {
    /// Calls of `run` since the working thread began.
    calls: AtomicU64,
}

impl Serial {
    /// Calls `work`, unless another thread is working; that thread then calls its own `work` again,
    /// after this call began. If `work` unwinds, so does this call, after the last call of `work`.
    pub(crate) fn run(&self, mut work: impl FnMut()) {
        // ORDERING: AcqRel: Release, pairs with the Acquire of the working thread when it subtracts
        // this call, which then sees everything done before it; Acquire, pairs with the Release of
        // the thread that ended last.
        if self.calls.fetch_add(1, Ordering::AcqRel) != 0 {
            return;
        }
        let (mut seen, mut worked) = (1u64, Ok(()));
        while seen != 0 {
            worked = worked.and(catch_unwind(AssertUnwindSafe(&mut work)));
            // ORDERING: AcqRel, as above.
            seen = self.calls.fetch_add(seen.wrapping_neg(), Ordering::AcqRel) - seen;
        }
        if let Err(panic) = worked {
            resume_unwind(panic);
        }
    }
}

/// Something that has units for workers.
pub(crate) trait UnitWork: Send + Sync {
    /// Processes some units. Called by a worker that took this from the queue. Returns how many. If
    /// there are more units, it calls `more`, which wakes other workers, before it begins one.
    fn serve(self: Arc<Self>, more: &dyn Fn()) -> usize;

    /// Called by the thread that closes the stack. Ends the stream after all present units, once
    /// they are processed, whichever threads process them. Returns its group and connection; `None`
    /// if the stream is gone.
    fn finish(self: Arc<Self>) -> Option<(u16, ConnId)>;
}

/// Length of a buffer: the longest text of a TLS 1.3 record, including padding and type.
pub(crate) const BUFFER_LEN: usize = (16 << 10) + 256;
/// Most buffers that are kept for later use.
const KEPT_BUFFERS: usize = 64;

/// The connection whose text a buffer holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner(u64);

/// A buffer of [`BUFFER_LEN`] bytes for text, or empty. Dropping it zeroes it.
#[derive(Default)]
pub(crate) struct TextBuffer {
    bytes: Box<[u8]>,
    owner: Owner,
}

impl Deref for TextBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for TextBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for TextBuffer {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

/// Payload of the panic that [`UnitQueue::fail_after`] planned.
#[cfg(feature = "testkit")]
pub(crate) struct KilledInUnit;

/// The entries with units for the workers of a stack, and buffers for processing them.
pub(crate) struct UnitQueue {
    waiting: SegQueue<Arc<dyn UnitWork>>,
    buffers: ArrayQueue<TextBuffer>,
    /// The last owner that was made.
    owners: AtomicU64,
    /// Owners that are gone. One thread at a time zeroes their text: it takes each buffer out while
    /// it checks the buffer's owner, and another thread would miss that buffer.
    gone: SegQueue<Owner>,
    zeroing: Serial,
    /// The worker that processes the unit after this many more unwinds, counted from 1; 0: no
    /// worker does.
    #[cfg(feature = "testkit")]
    fails_after: core::sync::atomic::AtomicU64,
    /// Whether workers must stop in the middle of units, and how many have.
    #[cfg(feature = "testkit")]
    stalls: (
        core::sync::atomic::AtomicBool,
        core::sync::atomic::AtomicUsize,
    ),
}

impl UnitQueue {
    pub(crate) fn new() -> Self {
        UnitQueue {
            waiting: SegQueue::new(),
            buffers: ArrayQueue::new(KEPT_BUFFERS),
            owners: AtomicU64::new(0),
            gone: SegQueue::new(),
            zeroing: Serial::default(),
            #[cfg(feature = "testkit")]
            fails_after: core::sync::atomic::AtomicU64::new(0),
            #[cfg(feature = "testkit")]
            stalls: Default::default(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds an entry. The caller then wakes a worker.
    pub(crate) fn push(&self, work: Arc<dyn UnitWork>) {
        self.waiting.push(work);
    }

    /// Processes units of the oldest entry, and calls `more` while there are more. Returns how
    /// many.
    pub(crate) fn serve(&self, more: &dyn Fn()) -> usize {
        // Cheaper than an attempt to pop, which fences.
        if self.is_empty() {
            return 0;
        }
        let Some(work) = self.waiting.pop() else {
            return 0;
        };
        if !self.is_empty() {
            more();
        }
        work.serve(more)
    }

    /// Drops all entries; none is served any more.
    pub(crate) fn clear(&self) {
        while self.waiting.pop().is_some() {}
    }

    /// A new owner of buffers, different from all others.
    pub(crate) fn owner(&self) -> Owner {
        // ORDERING: Relaxed, a number.
        Owner(self.owners.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// A buffer with old text of `owner`, or none: text of another owner is zeroed.
    pub(crate) fn buffer(&self, owner: Owner) -> TextBuffer {
        let Some(mut kept) = self.buffers.pop() else {
            let bytes = vec![0; BUFFER_LEN].into_boxed_slice();
            return TextBuffer { bytes, owner };
        };
        if kept.owner != owner {
            kept.bytes.zeroize();
            kept.owner = owner;
        }
        kept
    }

    /// Returns a buffer that is no longer used. Ignores an empty one.
    pub(crate) fn give_back(&self, buffer: TextBuffer) {
        if !buffer.is_empty() {
            // If there is no room, the buffer is dropped, which zeroes its text.
            let _ = self.buffers.push(buffer);
        }
    }

    /// Zeroes the text of `owner` in all buffers that are kept, or lets a thread do so that is
    /// zeroing now.
    pub(crate) fn forget(&self, owner: Owner) {
        self.gone.push(owner);
        self.zeroing.run(|| self.zero_gone());
    }

    fn zero_gone(&self) {
        let gone: Vec<Owner> = core::iter::from_fn(|| self.gone.pop()).collect();
        for _ in 0..self.buffers.len() {
            let Some(mut kept) = self.buffers.pop() else {
                return;
            };
            if gone.contains(&kept.owner) {
                kept.bytes.zeroize();
                kept.owner = Owner::default();
            }
            self.give_back(kept);
        }
    }

    /// Whether any kept buffer holds text.
    #[cfg(feature = "testkit")]
    pub(crate) fn holds_text(&self) -> bool {
        let mut holds = false;
        for _ in 0..self.buffers.len() {
            if let Some(kept) = self.buffers.pop() {
                holds |= kept.iter().any(|byte| *byte != 0);
                self.give_back(kept);
            }
        }
        holds
    }

    /// Makes the worker unwind that processes the unit after the next `units`; `None`: no worker.
    #[cfg(feature = "testkit")]
    pub(crate) fn fail_after(&self, units: Option<u64>) {
        let after = units.map_or(0, |units| units + 1);
        self.fails_after.store(after, Ordering::Relaxed);
    }

    /// Makes workers stop in the middle of units, or lets them continue.
    #[cfg(feature = "testkit")]
    pub(crate) fn stall(&self, stalls: bool) {
        self.stalls.0.store(stalls, Ordering::SeqCst);
    }

    /// How many workers have stopped in the middle of a unit.
    #[cfg(feature = "testkit")]
    pub(crate) fn stalled(&self) -> usize {
        self.stalls.1.load(Ordering::SeqCst)
    }

    /// Called by a worker in the middle of a unit.
    #[inline]
    pub(crate) fn in_unit(&self) {
        #[cfg(feature = "testkit")]
        if self.stalls.0.load(Ordering::Relaxed) {
            self.stalls.1.fetch_add(1, Ordering::SeqCst);
            while self.stalls.0.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            self.stalls.1.fetch_sub(1, Ordering::SeqCst);
        }
        #[cfg(feature = "testkit")]
        if self.fails_after.load(Ordering::Relaxed) > 0
            && self.fails_after.fetch_sub(1, Ordering::Relaxed) == 1
        {
            std::panic::resume_unwind(Box::new(KilledInUnit));
        }
    }
}

#[cfg(all(test, not(netstack_loom)))]
mod tests {
    use super::*;
    use crate::io::sync::interrupted;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::rc::Rc;
    use std::sync::atomic::AtomicUsize;

    fn ring(len: usize, units: u32) -> UnitRing<u32> {
        let ring = UnitRing::new(len);
        for unit in 0..units {
            assert!(ring.push(|place| *place = unit));
        }
        ring
    }

    fn take(ring: &UnitRing<u32>) -> Option<u32> {
        ring.take(|unit| *unit)
    }

    /// Text stays within its connection, and is zeroed when the connection ends.
    #[test]
    fn buffers_are_zeroed_before_another_has_them_and_when_their_owner_goes() {
        let queue = UnitQueue::new();
        let [a, b] = [queue.owner(), queue.owner()];
        assert_ne!(a, b);
        let used = |owner, byte| {
            let mut buffer = queue.buffer(owner);
            buffer.fill(byte);
            queue.give_back(buffer);
        };
        let next = |owner| queue.buffer(owner).iter().copied().max();
        used(a, 7);
        assert_eq!(next(b), Some(0), "text of another connection");

        used(a, 7);
        let [first, second] = [queue.buffer(a), queue.buffer(b)];
        assert_eq!(first[0], 7, "its own is not zeroed for nothing");
        queue.give_back(first);
        queue.give_back(second);
        used(b, 9);
        queue.forget(a);
        let mut left: Vec<u8> = Vec::new();
        while let Some(kept) = queue.buffers.pop() {
            left.push(kept.iter().copied().max().unwrap());
        }
        left.sort_unstable();
        assert_eq!(left, [0, 9], "that of the other is left alone");
    }

    #[test]
    fn text_in_the_hands_of_a_thread_that_zeroes_other_text_is_zeroed_too() {
        let queue = UnitQueue::new();
        let owner = queue.owner();
        let mut buffer = queue.buffer(owner);
        buffer.fill(7);
        let mut held = Some(buffer);
        queue.zeroing.run(|| match held.take() {
            Some(buffer) => {
                queue.forget(owner);
                queue.give_back(buffer);
            }
            None => queue.zero_gone(),
        });
        let kept = queue.buffers.pop().unwrap();
        assert!(kept.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn only_the_done_prefix_is_taken() {
        let ring = ring(4, 3);
        let [a, b] = [ring.begin().unwrap(), ring.begin().unwrap()];
        b.done();
        assert_eq!(ring.first(), UnitState::Begun);
        assert_eq!(take(&ring), None);
        a.done();
        assert_eq!(
            [take(&ring), take(&ring), take(&ring)],
            [Some(0), Some(1), None]
        );
        assert_eq!(ring.first(), UnitState::Ready);
    }

    #[test]
    fn a_full_ring_takes_no_unit_until_the_first_is_taken() {
        let ring = ring(2, 2);
        assert!(!ring.push(|_| panic!("there is no room")));
        ring.begin().unwrap().done();
        assert!(!ring.push(|_| panic!("it is done, but not taken")));
        assert_eq!(take(&ring), Some(0));
        assert!(ring.push(|place| *place = 2));
        assert_eq!(ring.len(), 2);
    }

    #[test]
    fn a_claim_that_unwinds_gives_its_unit_back() {
        let ring = ring(2, 1);
        let dies = || {
            let _claim = ring.begin().unwrap();
            panic!("in the middle of a unit");
        };
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(dies));
        assert!(died.is_err());
        assert!(ring.has_ready());
        ring.begin_first().unwrap().done();
        assert_eq!(take(&ring), Some(0));
    }

    /// Another thread claims before each access of the first claimer: they never get the same unit.
    #[test]
    fn two_that_claim_at_once_have_different_units() {
        let mut steps = 0;
        loop {
            let ring: Rc<UnitRing<u32>> = Rc::new(ring(4, 2));
            let other = Rc::clone(&ring);
            let claim = move || {
                let claim = other.begin().unwrap();
                let unit = *claim;
                claim.done();
                unit
            };
            let (one, two) = interrupted(steps, claim, || {
                let claim = ring.begin()?;
                let unit = *claim;
                claim.done();
                Some(unit)
            });
            let Some(two) = two else { break };
            assert_ne!(one, Some(two), "before access {steps}");
            steps += 1;
        }
        assert!(steps > 3, "{steps}");
    }

    #[test]
    fn work_that_comes_meanwhile_is_done_by_the_thread_that_is_at_it() {
        let serial = Serial::default();
        let runs = AtomicUsize::new(0);
        serial.run(|| {
            if runs.fetch_add(1, Ordering::Relaxed) < 2 {
                serial.run(|| panic!("another thread is at it"));
            }
        });
        assert_eq!(runs.into_inner(), 3);
        let dies = || serial.run(|| panic!("at work"));
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(dies));
        assert!(died.is_err());
        let mut ran = false;
        serial.run(|| ran = true);
        assert!(ran);
    }

    #[test]
    fn work_that_comes_while_its_thread_unwinds_is_done_too() {
        let serial = Serial::default();
        let runs = AtomicUsize::new(0);
        let dies = || {
            serial.run(|| {
                if runs.fetch_add(1, Ordering::Relaxed) == 0 {
                    serial.run(|| panic!("another thread is at it"));
                    panic!("at work");
                }
            });
        };
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(dies));
        assert!(died.is_err());
        assert_eq!(runs.into_inner(), 2);
    }

    proptest! {
        /// Compares with a queue: each unit is processed to its end once, and comes out in its
        /// place.
        #[test]
        fn units_come_out_in_order_however_they_are_claimed(
            len in 1usize..6,
            steps in proptest::collection::vec((0u8..6, any::<prop::sample::Index>()), 1..200),
        ) {
            let ring: UnitRing<(u32, bool)> = UnitRing::new(len);
            let mut expected = VecDeque::new();
            let mut claims: Vec<BegunUnit<'_, (u32, bool)>> = Vec::new();
            let mut next = 0;
            for (step, index) in steps {
                match step {
                    0 => {
                        let pushed = ring.push(|unit| *unit = (next, false));
                        prop_assert_eq!(pushed, expected.len() < len);
                        if pushed {
                            expected.push_back((next, true));
                            next += 1;
                        }
                    }
                    1 => claims.extend(ring.begin()),
                    4 => {
                        let room = ring.has_room();
                        let pushed = ring.push_done(|unit| *unit = (next, true));
                        prop_assert_eq!((pushed, room), (expected.len() < len, pushed));
                        if pushed {
                            expected.push_back((next, true));
                            next += 1;
                        }
                    }
                    2 if !claims.is_empty() => {
                        let mut claim = claims.swap_remove(index.index(claims.len()));
                        prop_assert!(!claim.1, "it was done before");
                        claim.1 = true;
                        claim.done();
                    }
                    3 if !claims.is_empty() => drop(claims.swap_remove(index.index(claims.len()))),
                    _ => {
                        if let Some(unit) = ring.take(|unit| *unit) {
                            prop_assert_eq!(Some(unit), expected.pop_front());
                        }
                    }
                }
                prop_assert_eq!(ring.len(), expected.len());
                prop_assert_eq!(ring.are_ready(1), ring.has_ready());
                prop_assert!(!ring.are_ready(expected.len() + 1));
            }
            claims.clear();
            while let Some(mut claim) = ring.begin() {
                claim.1 = true;
                claim.done();
            }
            while let Some(unit) = ring.take(|unit| *unit) {
                prop_assert_eq!(Some(unit), expected.pop_front());
            }
            prop_assert!(expected.is_empty());
        }
    }
}

#[cfg(all(test, netstack_loom))]
mod loom_models {
    use super::*;
    use loom::thread;

    /// All interleavings with at most two involuntary switches.
    fn model(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(2));
        builder.check(model);
    }

    fn work(ring: &UnitRing<u32>) {
        while let Some(mut claim) = ring.begin() {
            *claim += 10;
            claim.done();
        }
    }

    /// Catches: a unit that two threads process, or that is read before it is made or processed, or
    /// whose slot is filled before it is taken, because `push`, `begin`, `give` or `take` is
    /// Relaxed.
    #[test]
    fn two_workers_process_units_and_the_consumer_takes_them_in_order() {
        model(|| {
            let ring = Arc::new(UnitRing::<u32>::new(2));
            for unit in 0..2 {
                assert!(ring.push(|place| *place = unit));
            }
            let worker = {
                let ring = Arc::clone(&ring);
                thread::spawn(move || work(&ring))
            };
            let mut taken = Vec::new();
            taken.extend(ring.take(|unit| *unit));
            let mut pushed = 2;
            if ring.push(|place| *place = 2) {
                pushed += 1;
            }
            work(&ring);
            taken.extend(ring.take(|unit| *unit));
            worker.join().unwrap();
            work(&ring);
            while let Some(unit) = ring.take(|unit| *unit) {
                taken.push(unit);
            }
            assert_eq!(taken, (10..10 + pushed).collect::<Vec<u32>>());
        });
    }

    /// Catches: a done unit that no thread publishes, because the working thread looked too early
    /// and the other thread left: `Serial` without its count.
    #[test]
    fn the_prefix_is_published_by_whichever_thread_ends_last() {
        model(|| {
            let ring = Arc::new((
                UnitRing::<u32>::new(2),
                Serial::default(),
                AtomicU64::new(0),
            ));
            for unit in 0..2 {
                assert!(ring.0.push(|place| *place = unit));
            }
            let end = |ring: &(UnitRing<u32>, Serial, AtomicU64)| {
                if let Some(claim) = ring.0.begin() {
                    claim.done();
                }
                ring.1.run(|| {
                    while ring.0.take(|_| ()).is_some() {
                        let published = ring.2.load(Ordering::Relaxed);
                        ring.2.store(published + 1, Ordering::Relaxed);
                    }
                });
            };
            let other = Arc::clone(&ring);
            let worker = thread::spawn(move || end(&other));
            end(&ring);
            worker.join().unwrap();
            assert_eq!(ring.2.load(Ordering::Relaxed), 2);
        });
    }
}
