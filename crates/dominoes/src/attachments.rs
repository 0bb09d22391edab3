//! One owned value beside each slot. Values return to the publisher chunk by chunk.
//!
//! # Why attachments are sound
//!
//! Each chunk has a word `lap tag (32) | taking (1) | pins (15) | done (16)`, which all threads
//! change by compare and swap. The argument consists of four facts, none of which depends on the
//! behaviour of callers:
//!
//! 1. Only the `Stocker` writes values: to positions `head..head + slots`, each once, in ascending
//!    order; it stores `stocked` with Release after the value. So a position at or above `head`
//!    and below `stocked` holds a value.
//! 2. Only the thread that set `taking` takes values out, before the tag changes. `taking` is set
//!    by a compare and swap that requires the current tag, no pin and a full done count, so one
//!    thread only succeeds; while it is set, no pin succeeds. If another thread than the
//!    `Stocker`'s has emptied a chunk, `taking` stays set, with a done count of zero, until the
//!    `Stocker` advances the tag.
//! 3. `pin` succeeds only with the current tag and without `taking`. Hence from a successful `pin`
//!    to its drop no thread takes values out of that chunk or writes them again.
//! 4. `Pin::get` returns a reference only to a position below a value of `stocked` that it has
//!    read, and at most `slots` below it. So the position belongs to the lap now in the array,
//!    even if the 32-bit tag has wrapped around.
//!
//! Callbacks and destructors are user code, which may panic or call back. So before either sees a
//! value, the value has been moved out of its slot and the words that record this have been
//! stored. [`Stocker::reclaim`] reopens a chunk after it has taken the last value out and before
//! it passes that value on. `Emptying` marks a chunk as emptied on every exit from
//! [`Attachments::take_out`], and keeps it closed until then.

use crate::{
    Seq,
    slots::Slots,
    sync::{Arc, AtomicU64, Ordering},
};
use crossbeam_utils::CachePadded;
use std::{fmt, mem};

/// The state of one chunk, packed into a word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Chunk(u64);

impl Chunk {
    const DONE: u64 = (1 << 16) - 1;
    const PIN: u64 = 1 << 16;
    const PINS: u64 = ((1 << 15) - 1) << 16;
    const TAKING: u64 = 1 << 31;

    fn open(tag: u32) -> Self {
        Chunk(u64::from(tag) << 32)
    }
    fn tag(self) -> u32 {
        (self.0 >> 32) as u32
    }
    fn done(self) -> u32 {
        (self.0 & Self::DONE) as u32
    }
    fn taking(self) -> bool {
        self.0 & Self::TAKING != 0
    }
    /// The word of a chunk whose values are all out, until the stocker reclaims it.
    fn emptied(tag: u32) -> Self {
        Chunk(Chunk::open(tag).0 | Self::TAKING)
    }
}

/// One value of type `A` beside each slot, put there by the [`Stocker`]; see [`attachments`].
pub struct Attachments<A> {
    values: Slots<A>,
    chunks: Box<[CachePadded<AtomicU64>]>,
    mask: u64,
    /// log2 of the number of slots.
    slot_shift: u32,
    /// log2 of the number of slots in a chunk.
    chunk_shift: u32,
    /// All positions below hold (or held) a value. Written by the stocker only.
    stocked: CachePadded<AtomicU64>,
    /// All positions below were taken back. Written by the stocker only.
    head: CachePadded<AtomicU64>,
}

/// The handle that puts values into [`Attachments`] and takes them back, for one thread. `Send`,
/// not `Clone`.
pub struct Stocker<A> {
    shared: Arc<Attachments<A>>,
    /// Next position to stock.
    next: Seq,
    /// Next position to take back.
    head: Seq,
    /// The chunk of `head` is marked as being taken, and its values from `head` on are still in
    /// their slots. Becomes false as soon as the last value has left its slot, before the callback
    /// sees it: `head` is then in the next chunk, which may have readers.
    taking: bool,
}

/// Values of type `A` beside the slots of a channel: `slots` as returned by
/// [`Log::slots`](crate::Log::slots), in chunks of `chunk` slots.
///
/// The single publisher stocks position `seq` before it publishes that entry. Other threads
/// [`pin`](Attachments::pin) a chunk to read its values in place, and report slots as
/// [`done`](Attachments::done). The publisher takes a chunk's values back once all its slots are
/// done and no thread has it pinned. It does not wait for the slowest subscriber, which may find
/// that it can no longer pin the chunk.
///
/// ```
/// let (mut stocker, frames) = dominoes::attachments::<String>(4, 2);
/// for seq in 0..4 {
///     stocker.put(seq, format!("frame {seq}")).unwrap();
/// }
/// assert!(!stocker.can_put(4) && stocker.room() == 0);
/// {
///     let pin = frames.pin(1).unwrap();
///     assert_eq!(pin.get(1).unwrap(), "frame 1");
///     frames.done(0, 2);
///     assert!(!stocker.reclaim(&mut |_, _| {})); // still pinned
/// }
/// let mut back = Vec::new();
/// assert!(stocker.reclaim(&mut |seq, frame| back.push((seq, frame))));
/// assert_eq!(back, [(0, "frame 0".to_string()), (1, "frame 1".to_string())]);
/// assert!(frames.pin(1).is_none());
/// assert!(stocker.can_put(4));
/// ```
///
/// Many threads read a value in place, so it must be [`Sync`]; any of them may take it out, so it
/// must be [`Send`]:
///
/// ```compile_fail,E0277
/// dominoes::attachments::<std::cell::Cell<u32>>(4, 2);
/// ```
///
/// ```compile_fail,E0277
/// dominoes::attachments::<std::sync::MutexGuard<'static, u32>>(4, 2);
/// ```
///
/// # Panics
/// If either is not a power of two, or `chunk` is larger than `slots` or than 32768.
pub fn attachments<A: Send + Sync>(
    slots: usize,
    chunk: usize,
) -> (Stocker<A>, Arc<Attachments<A>>) {
    assert!(
        slots.is_power_of_two(),
        "{slots} slots are not a power of two"
    );
    assert!(
        chunk.is_power_of_two(),
        "a chunk of {chunk} slots is not a power of two"
    );
    assert!(
        chunk <= slots && chunk <= 1 << 15,
        "a chunk of {chunk} slots is too large for {slots} slots"
    );
    let shared = Arc::new(Attachments {
        values: Slots::new(slots),
        chunks: (0..slots / chunk)
            .map(|_| CachePadded::new(AtomicU64::new(Chunk::open(0).0)))
            .collect(),
        mask: slots as u64 - 1,
        slot_shift: slots.trailing_zeros(),
        chunk_shift: chunk.trailing_zeros(),
        stocked: CachePadded::new(AtomicU64::new(0)),
        head: CachePadded::new(AtomicU64::new(0)),
    });
    (
        Stocker {
            shared: shared.clone(),
            next: 0,
            head: 0,
            taking: false,
        },
        shared,
    )
}

impl<A> Attachments<A> {
    #[inline]
    fn tag(&self, seq: Seq) -> u32 {
        (seq >> self.slot_shift) as u32
    }

    #[inline]
    fn word(&self, seq: Seq) -> &AtomicU64 {
        &self.chunks[((seq & self.mask) >> self.chunk_shift) as usize]
    }

    #[inline]
    fn index(&self, seq: Seq) -> usize {
        (seq & self.mask) as usize
    }

    /// Number of slots in a chunk.
    pub fn chunk(&self) -> usize {
        1 << self.chunk_shift
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.values.len()
    }

    /// Keeps the chunk of `seq` from being taken back while the pin lives. `None` if it was taken
    /// back already.
    ///
    /// # Panics
    /// If the chunk already has 32767 pins.
    pub fn pin(&self, seq: Seq) -> Option<Pin<'_, A>> {
        let word = self.word(seq);
        let tag = self.tag(seq);
        let mut now = Chunk(word.load(Ordering::Relaxed));
        loop {
            if now.tag() != tag || now.taking() {
                return None;
            }
            assert!(now.0 & Chunk::PINS != Chunk::PINS, "a chunk has 32767 pins");
            // ORDERING: Acquire, pairs with the Release store at the end of `Stocker::reclaim`, so
            // that values of this lap are written after all accesses of the previous lap.
            match word.compare_exchange_weak(
                now.0,
                now.0 + Chunk::PIN,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(found) => now = Chunk(found),
            }
        }
        // ORDERING: Acquire, pairs with the Release store in `Stocker::put`: positions below
        // `stocked` hold their values.
        let stocked = self.stocked.load(Ordering::Acquire);
        let first = seq & !(self.chunk() as u64 - 1);
        Some(Pin {
            shared: self,
            first,
            stocked: std::cell::Cell::new(stocked),
        })
    }

    /// Reports `n` slots of the chunk of `seq` as done: they are not needed any more. Returns the
    /// number of done slots in the chunk.
    ///
    /// # Panics
    /// If that exceeds the slots of the chunk, or the chunk was taken back already: work was done
    /// twice.
    pub fn done(&self, seq: Seq, n: u32) -> u32 {
        let word = self.word(seq);
        let tag = self.tag(seq);
        let mut now = Chunk(word.load(Ordering::Relaxed));
        loop {
            assert!(
                now.tag() == tag && !now.taking(),
                "slots at {seq} are reported done after their chunk was taken back"
            );
            let done = u64::from(now.done()) + u64::from(n);
            assert!(
                done <= self.chunk() as u64,
                "{done} slots done at {seq} in a chunk of {}",
                self.chunk()
            );
            // ORDERING: Release, pairs with the Acquire compare and swap in `Stocker::reclaim`:
            // the work ends before the values are taken.
            match word.compare_exchange_weak(
                now.0,
                now.0 + u64::from(n),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return done as u32,
                Err(found) => now = Chunk(found),
            }
        }
    }

    /// Takes the values of the chunk of `seq` out, if all its slots are stocked and done and no
    /// thread has it pinned. For the thread that did the work, which has the values in a nearby
    /// cache. The chunk stays closed until the [`Stocker`] reclaims it. False if the values cannot
    /// be taken, or were.
    ///
    /// Passes values to `out` in ascending order. If `out` panics, the remaining values are
    /// dropped.
    pub fn take_out(&self, seq: Seq, out: &mut impl FnMut(Seq, A)) -> bool {
        let chunk = self.chunk() as u64;
        let first = seq & !(chunk - 1);
        let tag = self.tag(first);
        let word = self.word(first);
        let full = Chunk::open(tag).0 | chunk;
        // ORDERING: Acquire, pairs with the Release store in `Stocker::put`.
        let stocked = self.stocked.load(Ordering::Acquire);
        let reach = stocked.wrapping_sub(first);
        if !(chunk..=self.slots() as u64).contains(&reach)
            || word.load(Ordering::Relaxed) != full
            || word
                .compare_exchange(
                    full,
                    full | Chunk::TAKING,
                    // ORDERING: Acquire, pairs with the Release in `done` and in `Pin::drop`: all
                    // use of the values is over.
                    Ordering::Acquire,
                    Ordering::Relaxed,
                )
                .is_err()
        {
            return false;
        }
        let mut rest = Emptying {
            shared: self,
            next: first,
            end: first + chunk,
        };
        while let Some((seq, value)) = rest.next() {
            out(seq, value);
        }
        true
    }

    /// Number of slots reported done in the chunk of `seq`. `None` if it was taken back already.
    pub fn done_count(&self, seq: Seq) -> Option<u32> {
        let now = Chunk(self.word(seq).load(Ordering::Relaxed));
        (now.tag() == self.tag(seq) && !now.taking()).then(|| now.done())
    }
}

/// Empties a chunk for `take_out`. When this is dropped, the chunk is empty.
struct Emptying<'a, A> {
    shared: &'a Attachments<A>,
    next: Seq,
    end: Seq,
}

impl<A> Emptying<'_, A> {
    fn next(&mut self) -> Option<(Seq, A)> {
        if self.next == self.end {
            return None;
        }
        let seq = self.next;
        self.next += 1;
        // SAFETY: `take_out` saw the chunk stocked in this lap and set `taking`, so it has
        // exclusive access to the values (fact 2); `next` has moved past this one.
        Some((seq, unsafe {
            self.shared.values.take(self.shared.index(seq))
        }))
    }
}

impl<A> Drop for Emptying<'_, A> {
    fn drop(&mut self) {
        while self.next().is_some() {}
        let shared = self.shared;
        let last = self.end - 1;
        // ORDERING: Release, pairs with the Acquire load in `Stocker::reclaim`: the slots are
        // empty.
        shared
            .word(last)
            .store(Chunk::emptied(shared.tag(last)).0, Ordering::Release);
    }
}

impl<A> Drop for Attachments<A> {
    fn drop(&mut self) {
        /// Drops the remaining values even if a destructor panics.
        struct Rest<'a, A> {
            shared: &'a Attachments<A>,
            next: Seq,
            end: Seq,
        }
        impl<A> Drop for Rest<'_, A> {
            fn drop(&mut self) {
                let shared = self.shared;
                while self.next < self.end {
                    let seq = self.next;
                    self.next += 1;
                    if shared.word(seq).load(Ordering::Relaxed) == Chunk::emptied(shared.tag(seq)).0
                    {
                        continue;
                    }
                    // SAFETY: `&mut Attachments`, so no other reference exists. Positions
                    // `head..stocked` hold values (fact 1), except for emptied chunks, and each is
                    // taken once, since `next` has moved past it.
                    let value = unsafe { shared.values.take(shared.index(seq)) };
                    let again = Rest { shared, ..*self };
                    drop(value);
                    mem::forget(again);
                }
            }
        }
        drop(Rest {
            shared: self,
            next: self.head.load(Ordering::Relaxed),
            end: self.stocked.load(Ordering::Relaxed),
        });
    }
}

impl<A> fmt::Debug for Attachments<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachments")
            .field("slots", &self.slots())
            .field("chunk", &self.chunk())
            .finish()
    }
}

impl<A: Send + Sync> Stocker<A> {
    /// Whether position `seq` can be stocked. False until the chunk that occupies its slots has
    /// been taken back.
    #[inline]
    pub fn can_put(&mut self, seq: Seq) -> bool {
        // A chunk's slots are free only when all its values have been passed on.
        let free = self.head & !(self.shared.chunk() as u64 - 1);
        seq < free + self.shared.slots() as u64
    }

    /// Number of positions that can be stocked before a chunk must be taken back.
    #[inline]
    pub fn room(&self) -> usize {
        let free = self.head & !(self.shared.chunk() as u64 - 1);
        (free + self.shared.slots() as u64 - self.next) as usize
    }

    /// The position that [`put`](Self::put) expects next.
    pub fn next_seq(&self) -> Seq {
        self.next
    }

    /// Stocks position `seq`, or returns the value if [`can_put`](Self::can_put) is false.
    ///
    /// # Panics
    /// If `seq` is not [`next_seq`](Self::next_seq). Every position is stocked once, in ascending
    /// order.
    #[inline]
    pub fn put(&mut self, seq: Seq, value: A) -> Result<(), A> {
        assert!(
            seq == self.next,
            "position {seq} is stocked where {} is due",
            self.next
        );
        if !self.can_put(seq) {
            return Err(value);
        }
        let shared = &*self.shared;
        // SAFETY: the position is below `head + slots`, so the previous lap's value was taken out
        // (fact 2) and has no references left; no reference to the new value exists before
        // `stocked` covers it (fact 4).
        unsafe { shared.values.write(shared.index(seq), value) };
        self.next = seq + 1;
        // ORDERING: Release, pairs with the Acquire loads in `pin` and `Pin::get`, which read the
        // value afterwards.
        shared.stocked.store(self.next, Ordering::Release);
        Ok(())
    }

    /// Takes the next chunk in order back, if all its slots are stocked and done and no thread has
    /// it pinned.
    ///
    /// Passes its values to `out` in ascending order; values that were [taken
    /// out](Attachments::take_out) are gone. One call takes at most one chunk; false means that
    /// none was ready. If `out` panics, its value is lost, and the next call passes on the rest of
    /// the chunk; if it was the last value of a chunk, the chunk is free.
    pub fn reclaim(&mut self, out: &mut impl FnMut(Seq, A)) -> bool {
        let shared = &*self.shared;
        let chunk = shared.chunk() as u64;
        let first = self.head & !(chunk - 1);
        let tag = shared.tag(first);
        let word = shared.word(first);
        // ORDERING: Acquire, pairs with the Release store of the thread that emptied it.
        if !self.taking && word.load(Ordering::Acquire) == Chunk::emptied(tag).0 {
            self.head = first + chunk;
            shared.head.store(self.head, Ordering::Relaxed);
            // ORDERING: Release, pairs with the Acquire in `pin`.
            word.store(Chunk::open(tag.wrapping_add(1)).0, Ordering::Release);
            return true;
        }
        if !self.taking {
            let full = Chunk::open(tag).0 | chunk;
            // ORDERING: Acquire, pairs with the Release in `done` and in `Pin::drop`: all use of
            // the values is over.
            if self.next < first + chunk
                || word.load(Ordering::Relaxed) != full
                || word
                    .compare_exchange(
                        full,
                        full | Chunk::TAKING,
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    )
                    .is_err()
            {
                return false;
            }
            self.taking = true;
        }
        let end = first + chunk;
        while self.head < end {
            let seq = self.head;
            // SAFETY: the chunk is fully stocked and marked as being taken, so no thread reads it
            // (facts 2 and 3). `head` moves past the position before `out` runs, so the slot
            // counts as empty even if `out` panics.
            let value = unsafe { shared.values.take(shared.index(seq)) };
            self.head = seq + 1;
            shared.head.store(self.head, Ordering::Relaxed);
            if self.head == end {
                // `head` is now in the next chunk, which is not being taken. Record that before
                // `out` can panic.
                self.taking = false;
                // ORDERING: Release, pairs with the Acquire in `pin`.
                word.store(Chunk::open(tag.wrapping_add(1)).0, Ordering::Release);
            }
            out(seq, value);
        }
        true
    }

    /// The shared side.
    pub fn attachments(&self) -> &Arc<Attachments<A>> {
        &self.shared
    }
}

impl<A> fmt::Debug for Stocker<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stocker")
            .field("next", &self.next)
            .field("head", &self.head)
            .finish()
    }
}

/// Keeps one chunk of [`Attachments`] from being taken back until it is dropped. `Send`, not
/// `Sync`.
///
/// References from a pin cannot outlive it:
///
/// ```compile_fail,E0505
/// let (_stocker, frames) = dominoes::attachments::<String>(4, 2);
/// let pin = frames.pin(0).unwrap();
/// let frame = pin.get(0);
/// drop(pin);
/// println!("{frame:?}");
/// ```
///
/// ```compile_fail,E0277
/// fn sync<T: Sync>() {}
/// sync::<dominoes::Pin<'_, String>>();
/// ```
pub struct Pin<'a, A> {
    shared: &'a Attachments<A>,
    first: Seq,
    stocked: std::cell::Cell<u64>,
}

impl<A> Pin<'_, A> {
    /// The value beside position `seq`. `None` if it is not in the pinned chunk, or not stocked
    /// yet.
    #[inline]
    pub fn get(&self, seq: Seq) -> Option<&A> {
        let shared = self.shared;
        if seq.wrapping_sub(self.first) >= shared.chunk() as u64 {
            return None;
        }
        if seq >= self.stocked.get() {
            // ORDERING: Acquire, pairs with the Release store in `Stocker::put`.
            self.stocked.set(shared.stocked.load(Ordering::Acquire));
            if seq >= self.stocked.get() {
                return None;
            }
        }
        // After 2^32 laps the tag repeats; the pin then holds the chunk of another lap.
        if self.stocked.get() - seq > shared.slots() as u64 {
            return None;
        }
        // SAFETY: the position is stocked and belongs to the lap now in the array (fact 4), and
        // its chunk stays pinned (fact 3) as long as `self` is borrowed.
        Some(unsafe { shared.values.get(shared.index(seq)) })
    }

    /// The positions of the pinned chunk.
    pub fn range(&self) -> std::ops::Range<Seq> {
        self.first..self.first + self.shared.chunk() as u64
    }
}

impl<A> Drop for Pin<'_, A> {
    fn drop(&mut self) {
        if cfg!(loom) {
            // Show loom that the values are readable up to here.
            for seq in self.range() {
                let _ = self.get(seq);
            }
        }
        // ORDERING: Release, pairs with the Acquire compare and swap in `Stocker::reclaim`: reading
        // is over.
        self.shared
            .word(self.first)
            .fetch_sub(Chunk::PIN, Ordering::Release);
    }
}

impl<A> fmt::Debug for Pin<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("range", &self.range()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Attachments after `laps` laps in which every value was taken back. After 2^32 laps the tags
    /// of all chunks have wrapped around.
    fn after_laps(laps: u64) -> (Stocker<u32>, Arc<Attachments<u32>>) {
        const SLOTS: u64 = 4;
        let (mut stocker, shared) = attachments::<u32>(SLOTS as usize, 2);
        let start = laps * SLOTS;
        (stocker.next, stocker.head) = (start, start);
        shared.stocked.store(start, Ordering::Relaxed);
        shared.head.store(start, Ordering::Relaxed);
        for word in &shared.chunks {
            word.store(Chunk::open(laps as u32).0, Ordering::Relaxed);
        }
        (stocker, shared)
    }

    #[test]
    fn a_position_of_2_pow_32_laps_ago_has_no_value_though_its_chunk_has_the_same_tag() {
        let (mut stocker, shared) = after_laps(1 << 32);
        let start = stocker.next_seq();
        stocker.put(start, 7).unwrap();
        let now = shared.pin(start).unwrap();
        assert_eq!((now.get(start), now.get(start + 1)), (Some(&7), None));
        // The pin of the old position holds the present chunk, and must not return any of its
        // values: neither a stocked one nor, worse, an empty slot.
        let old = shared.pin(0).expect("the tags are the same");
        assert!(old.get(0).is_none(), "a value of another lap");
        assert!(old.get(1).is_none(), "a value that was never stocked");
        drop((now, old));

        stocker.put(start + 1, 8).unwrap();
        assert_eq!(shared.done(start, 2), 2);
        let mut out = Vec::new();
        let mut take = |seq, value| out.push((seq, value));
        assert!(!shared.take_out(0, &mut take), "values of another lap");
        assert!(shared.take_out(start, &mut take));
        assert_eq!(out, [(start, 7), (start + 1, 8)]);
    }
}
