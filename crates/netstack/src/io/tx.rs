//! Numbered transmit slots: outgoing frame k is built in slot k modulo their number.
//!
//! Slots are claimed and published by chunks of up to 32 frames in a row, or by parts of one. A
//! chunk has two words, each with the chunk's lap around the ring and a bit for each of its frames:
//!
//! ```text
//!          taken                                        ready
//! (lap, 0000)                                   (lap, 0000)
//! (lap, 0110)  claim, a CAS by the builder
//!                                               (lap, 0110)  publish, when both frames are built
//! (lap, 1111)                                   (lap, 1111)
//! (lap + 1, 0)                                  (lap + 1, 0) when all of the chunk have left
//! ```
//!
//! `apply` numbers frames, and never one whose slot belongs to a chunk of which a frame has not
//! left: it counts `sent`, which the transmit pump has published, by whole chunks
//! (`FrameNumbers::update_sent`). So the slot of a numbered frame is free when somebody comes to
//! build it, and nobody waits. A builder takes what is its own of a chunk by one compare-and-swap,
//! and the transmitter finds all of it by one load.
//!
//! Where the device lets builders do part of its work ([`TxPrepare`]), they do so before they
//! publish, and the transmitter names slots to the device instead of frames.
//!
//! A claim that is dropped before it is published, also by unwinding, clears its bits: all of its
//! frames count as not begun.
//!
//! # Sending past a hole
//!
//! A frame whose builder was interrupted in the middle holds up those behind it, of other
//! connections, too. When enough of them are ready, the transmitter sends past it: to the receiver
//! that is a reordering, which TCP bears. It notes a frame that is sent so until all before it have
//! left, and does not send it again; `sent`, and so credit and the use of slots, count the prefix
//! alone.
//!
//! A second builder of the same frame finds its bit set, or another lap. That is no race for memory
//! but a sign that two replicas did not agree, and [`TxRing::claim`] says so.

#[cfg(all(test, netstack_loom))]
mod loom_models;
mod pump;
#[cfg(all(test, not(netstack_loom)))]
mod tests;

use core::cell::UnsafeCell;
use core::hint;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use arrayvec::ArrayVec;
use crossbeam_utils::CachePadded;
use dominoes_drivers::{TxFrame, TxMeta, TxPrepare};

use crate::config::tx_chunk;
use crate::io::prefetch::{prefetch_at, prefetch_of};
use crate::io::stream::BorrowedPayload;
use crate::io::sync::{AtomicU64, Shadow};

pub(crate) use pump::TxPump;

/// The most frames of a chunk: as many as its words have bits for.
const MAX_CHUNK: usize = 32;
/// Frames that are prepared for the device by one call, at most: so few that all of them are in the
/// nearest cache when it reads them.
const PREPARED_TOGETHER: usize = 8;

/// The smallest page of memory of any system, in bytes.
const PAGE: usize = 4096;

/// Slots behind a hole that one call looks at.
const MAX_SCAN: u64 = 8;

/// The word of a chunk in lap `lap`, of which 32 bits count.
const fn word(lap: u64, frames: u32) -> u64 {
    lap << 32 | frames as u64
}

/// Has the system give memory to these zeros now. Otherwise each page would stop the worker that
/// is the first to write it: the first lap over the slots would be several times as slow as others.
fn touch(zeros: &mut [u8]) {
    for page in zeros.chunks_mut(PAGE) {
        // A value that the compiler does not know, so it cannot leave the store out.
        page[0] = hint::black_box(0);
    }
    if let Some(last) = zeros.last_mut() {
        *last = hint::black_box(0);
    }
}

/// A bit for each frame of a chunk.
struct Chunk {
    /// Frames that a builder has taken.
    taken: AtomicU64,
    /// Frames that are built.
    ready: AtomicU64,
}

#[derive(Clone, Copy, Default)]
struct Built {
    /// Of what the slot holds, headers included.
    len: u32,
    head: u32,
    meta: TxMeta,
    /// Whether what follows in the frame lies elsewhere.
    is_carried: bool,
}

/// The slots and their memory.
pub(crate) struct TxRing {
    chunks: Box<[CachePadded<Chunk>]>,
    /// log2 of the frames in a chunk, and in the ring.
    chunk_shift: u32,
    slot_shift: u32,
    /// For each slot: length and metadata of the built frame.
    built: Box<[UnsafeCell<Built>]>,
    /// For each slot: what follows what it holds, if that lies elsewhere.
    carried: Box<[UnsafeCell<Option<BorrowedPayload>>]>,
    memory: Box<[UnsafeCell<u8>]>,
    slot_len: usize,
    sent: CachePadded<AtomicU64>,
    /// What builders do to frames for the device, if it has such.
    preparer: Option<Arc<dyn TxPrepare>>,
    /// Of each slot, what it holds.
    shadow: Shadow,
}

// SAFETY: of a slot, `built`, `carried` and the memory are written only by who set its bit in
// `taken`, and read by that one, before it publishes, and by the one `Transmitter` after it saw the
// bit in `ready`. What frames carry
// besides may be read by any thread.
unsafe impl Sync for TxRing {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for TxRing {}

/// Frame `0` was built already, or is not due: two replicas disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Diverged(pub(crate) u64);

impl TxRing {
    /// `slots` (a power of two) frames of at most `slot_len` bytes, and the one handle that sends
    /// them. The first `touched` bytes of each slot are in memory from the start. Builders call
    /// `preparer`, which is for as many slots.
    pub(crate) fn new(
        slots: usize,
        (slot_len, touched): (usize, usize),
        preparer: Option<Arc<dyn TxPrepare>>,
    ) -> (Arc<TxRing>, Transmitter) {
        let chunk = tx_chunk(slots as u64) as usize;
        TxRing::with_chunks(slots, (slot_len, touched), chunk, preparer)
    }

    /// The same, with chunks of `chunk` frames, a power of two up to 32 and up to `slots`.
    fn with_chunks(
        slots: usize,
        (slot_len, touched): (usize, usize),
        chunk: usize,
        preparer: Option<Arc<dyn TxPrepare>>,
    ) -> (Arc<TxRing>, Transmitter) {
        assert!(
            slots.is_power_of_two() && chunk.is_power_of_two() && chunk <= slots.min(MAX_CHUNK)
        );
        let slot_len = slot_len.next_multiple_of(64);
        let mut zeros = vec![0u8; slots * slot_len].into_boxed_slice();
        for slot in zeros.chunks_mut(slot_len) {
            touch(&mut slot[..touched.min(slot_len)]);
        }
        // SAFETY: `UnsafeCell<u8>` has the layout of `u8`, and the box is the only owner.
        let memory = unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [UnsafeCell<u8>]) };
        let words = |_| {
            CachePadded::new(Chunk {
                taken: AtomicU64::new(word(0, 0)),
                ready: AtomicU64::new(word(0, 0)),
            })
        };
        let ring = Arc::new(TxRing {
            chunks: (0..slots / chunk).map(words).collect(),
            chunk_shift: chunk.trailing_zeros(),
            slot_shift: slots.trailing_zeros(),
            built: (0..slots).map(|_| UnsafeCell::default()).collect(),
            carried: (0..slots).map(|_| UnsafeCell::default()).collect(),
            memory,
            slot_len,
            sent: CachePadded::new(AtomicU64::new(0)),
            preparer,
            shadow: Shadow::new(slots),
        });
        let transmitter = Transmitter {
            gone: vec![0; ring.chunks.len()].into_boxed_slice(),
            ring: Arc::clone(&ring),
            next: 0,
            past: u64::MAX,
            calls: u32::MAX,
            hole: Hole::default(),
            beyond: 0,
            passed: 0,
            journal: None,
        };
        (ring, transmitter)
    }

    /// The slot of frame `frame`.
    #[inline(always)]
    fn index(&self, frame: u64) -> usize {
        (frame & ((1 << self.slot_shift) - 1)) as usize
    }

    /// The chunk of frame `frame`.
    #[inline(always)]
    fn chunk_index(&self, frame: u64) -> usize {
        self.index(frame) >> self.chunk_shift
    }

    #[inline(always)]
    fn chunk(&self, frame: u64) -> &Chunk {
        &self.chunks[self.chunk_index(frame)]
    }

    /// How often all slots were used before frame `frame`.
    #[inline(always)]
    fn lap(&self, frame: u64) -> u64 {
        frame >> self.slot_shift
    }

    /// The bit of frame `frame` in the words of its chunk.
    #[inline(always)]
    fn bit(&self, frame: u64) -> u32 {
        (frame & ((1 << self.chunk_shift) - 1)) as u32
    }

    /// The first frame behind the chunk of frame `frame`.
    #[inline(always)]
    pub(crate) fn chunk_end(&self, frame: u64) -> u64 {
        ((frame >> self.chunk_shift) + 1) << self.chunk_shift
    }

    /// Takes the slots of `count` frames from `first` on, to build them. They are of one chunk.
    ///
    /// # Errors
    /// [`Diverged`] if somebody else took one of them, or its time has not come. Then none is
    /// taken.
    #[inline]
    pub(crate) fn claim(&self, first: u64, count: u32) -> Result<TxClaim<'_>, Diverged> {
        debug_assert!(count > 0 && first + u64::from(count) <= self.chunk_end(first));
        let chunk = self.chunk(first);
        let frames = (u32::MAX >> (32 - count)) << self.bit(first);
        let mut found = chunk.taken.load(Ordering::Relaxed);
        loop {
            if found & word(u64::MAX, frames) != word(self.lap(first), 0) {
                return Err(Diverged(first));
            }
            match chunk.taken.compare_exchange(
                found,
                found | word(0, frames),
                // ORDERING: Acquire, pairs with the Release in `Transmitter::free`, that the device
                // has done with what the slots held before, and with the one in `TxClaim::drop`.
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                // Another builder took other frames of the chunk.
                Err(now) => found = now,
            }
        }
        Ok(TxClaim {
            ring: self,
            chunk,
            frames,
            prepared: self.index(first),
            next: self.index(first),
            end: self.index(first) + count as usize,
        })
    }

    /// Frames 0 up to this have been taken by the device.
    #[inline]
    pub(crate) fn sent(&self) -> u64 {
        // ORDERING: Acquire, pairs with the Release in `Transmitter::advance`: whoever learns of
        // this count, be it through the log, finds the slots free.
        self.sent.load(Ordering::Acquire)
    }

    /// Frames that are numbered by now, and taken by somebody, are below this, or are sent.
    pub(crate) fn claimed(&self) -> u64 {
        // Laps that words count are near this one.
        let lap = self.lap(self.sent());
        let claimed = |(index, chunk): (usize, &CachePadded<Chunk>)| {
            // ORDERING: Acquire, as in `Transmitter::ready`, though nothing is read.
            let word = chunk.taken.load(Ordering::Acquire);
            let behind = (word >> 32) as u32;
            let lap = lap.wrapping_add_signed(i64::from(behind.wrapping_sub(lap as u32) as i32));
            let first = (lap << self.slot_shift) + ((index as u64) << self.chunk_shift);
            match word as u32 {
                0 => 0,
                frames => first + u64::from(u32::BITS - frames.leading_zeros()),
            }
        };
        let chunks = self.chunks.iter().enumerate();
        chunks.map(claimed).max().unwrap_or(0)
    }

    /// Asks the processor for the first `len` bytes of a slot that is to be written soon.
    #[inline(always)]
    pub(crate) fn fetch(&self, frame: u64, len: usize) {
        let index = self.index(frame);
        prefetch_of(&self.built[index]);
        prefetch_at(self.bytes(index), len.min(self.slot_len));
    }

    /// The frame in slot `index`, which is built.
    ///
    /// # Safety
    /// Nobody writes the slot, or what it carries, until the last use of what is returned: it is
    /// not published, and the caller has claimed it, or the caller saw its bit in `ready`, and it
    /// has not left.
    #[inline(always)]
    unsafe fn frame(&self, index: usize) -> TxFrame<'_> {
        self.shadow.read(index, 1);
        // SAFETY: whoever built it did so before; the caller vouches for the rest.
        let (built, bytes) = unsafe {
            let built = *self.built[index].get();
            let bytes = core::slice::from_raw_parts(self.bytes(index), built.len as usize);
            (built, bytes)
        };
        let (head, mut payload) = bytes.split_at(built.head as usize);
        if built.is_carried {
            // SAFETY: as above; the builder stored it with the rest.
            let carried = unsafe { *self.carried[index].get() };
            // SAFETY: the frame has not left. The streams are part of the world, and whoever has
            // the claim or the transmitter has the world.
            payload = carried.map_or(&[], |carried| unsafe { carried.bytes() });
        }
        TxFrame {
            head,
            payload,
            meta: built.meta,
        }
    }

    /// The memory of slot `index`.
    #[inline(always)]
    fn bytes(&self, index: usize) -> *mut u8 {
        UnsafeCell::raw_get(&raw const self.memory[index * self.slot_len])
    }
}

/// Slots in the hands of who builds their frames, one after the other. Dropped unpublished, it is
/// as if nobody had begun.
pub(crate) struct TxClaim<'a> {
    ring: &'a TxRing,
    chunk: &'a Chunk,
    /// The frames, a bit each as in the chunk's words.
    frames: u32,
    /// The slot of the first frame that is not prepared.
    prepared: usize,
    /// The slot of the first frame that is not built, and the one behind the last.
    next: usize,
    end: usize,
}

impl TxClaim<'_> {
    /// The memory of the next frame's slot; what it holds is left from an earlier frame.
    ///
    /// # Panics
    /// If all frames are built.
    #[inline(always)]
    pub(crate) fn buffer(&mut self) -> &mut [u8] {
        assert!(self.next < self.end, "no frame is left to build");
        self.ring.shadow.write(self.next, 1);
        // SAFETY: the bit is set in `taken`, and only the one who set it has this claim, which
        // names the slot at `next` until its frame is built. The memory is `slot_len` bytes within
        // the ring's, and initialised since `new`.
        unsafe { core::slice::from_raw_parts_mut(self.ring.bytes(self.next), self.ring.slot_len) }
    }

    /// The next frame is built: the first `len` bytes of its slot, `head` of them headers. It
    /// leaves once the claim is published.
    ///
    /// # Panics
    /// If all frames are built, or this one does not fit its slot.
    #[inline(always)]
    pub(crate) fn built(&mut self, head: usize, len: usize, meta: TxMeta) {
        self.store(head, len, meta, None);
    }

    /// The next frame is built: the first `head` bytes of its slot are its headers, and what it
    /// carries lies elsewhere.
    ///
    /// # Panics
    /// As [`TxClaim::built`].
    #[inline(always)]
    pub(crate) fn built_with_payload(
        &mut self,
        head: usize,
        carried: BorrowedPayload,
        meta: TxMeta,
    ) {
        self.store(head, head, meta, Some(carried));
    }

    #[inline(always)]
    fn store(&mut self, head: usize, len: usize, meta: TxMeta, carried: Option<BorrowedPayload>) {
        assert!(self.next < self.end && head <= len && len <= self.ring.slot_len);
        self.ring.shadow.write(self.next, 1);
        let is_carried = carried.is_some();
        // SAFETY: as in `buffer`.
        unsafe {
            if is_carried {
                *self.ring.carried[self.next].get() = carried;
            }
            *self.ring.built[self.next].get() = Built {
                len: len as u32,
                head: head as u32,
                meta,
                is_carried,
            };
        }
        self.next += 1;
        if self.next - self.prepared == PREPARED_TOGETHER {
            self.prepare();
        }
    }

    /// All frames are built, and leave when those before them have.
    ///
    /// # Panics
    /// If one is not built.
    #[inline(always)]
    pub(crate) fn publish(mut self) {
        assert!(self.next == self.end, "frames are published and not built");
        self.prepare();
        let frames = core::mem::take(&mut self.frames);
        // ORDERING: Release, pairs with the Acquire in `Transmitter::ready_in`.
        self.chunk
            .ready
            .fetch_or(word(0, frames), Ordering::Release);
    }

    /// Prepares the frames that are built and not prepared, if the device has such.
    #[inline(always)]
    fn prepare(&mut self) {
        let first = core::mem::replace(&mut self.prepared, self.next);
        if let Some(preparer) = &self.ring.preparer
            && first < self.next
        {
            let mut frames = ArrayVec::<_, PREPARED_TOGETHER>::new();
            for slot in first..self.next {
                // SAFETY: we have claimed it and built it, and publish it after the last use.
                frames.push(unsafe { self.ring.frame(slot) });
            }
            preparer.prepare(first, &frames);
        }
    }
}

impl Drop for TxClaim<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.frames != 0 {
            // ORDERING: Release, pairs with the Acquire in `claim`: the next one writes after us.
            self.chunk
                .taken
                .fetch_and(!word(0, self.frames), Ordering::Release);
        }
    }
}

/// What the transmitter learned of the hole before it.
#[derive(Clone, Copy, Debug, Default)]
struct Hole {
    /// The frame that is missing.
    at: u64,
    /// Calls that found it so.
    calls: u32,
    /// Slots looked at behind it.
    looked: u64,
    /// Frames among them that could go, or are gone.
    ready: u64,
}

/// Sends what is ready, in the order of the numbers. There is one per ring.
pub(crate) struct Transmitter {
    ring: Arc<TxRing>,
    next: u64,
    /// Frames that must be ready behind a hole before they are sent past it.
    past: u64,
    /// Calls that must find a hole before anything behind it is looked at: most are filled within a
    /// moment, and work that is late is taken by others, which is better.
    calls: u32,
    hole: Hole,
    /// For each chunk: its frames that were sent past a hole, a bit each.
    gone: Box<[u32]>,
    /// Frames behind the prefix that are sent.
    beyond: u64,
    /// Frames that were ever sent past a hole.
    passed: u64,
    /// What the device took, if anybody wants to know.
    journal: Option<Vec<Option<u64>>>,
}

impl Transmitter {
    /// Whether frames are prepared by those who build them.
    pub(crate) fn are_prepared(&self) -> bool {
        self.ring.preparer.is_some()
    }

    /// The slot of frame `frame`.
    pub(crate) fn slot(&self, frame: u64) -> usize {
        self.ring.index(frame)
    }

    /// Sends past a hole once `calls` calls have found it and `frames` frames are ready behind it;
    /// the default is never.
    pub(crate) fn send_past(&mut self, frames: u64, calls: u32) {
        self.past = frames.max(1);
        self.calls = calls;
    }

    /// Frames that were sent past a hole so far.
    pub(crate) fn passed(&self) -> u64 {
        self.passed
    }

    /// Notes frames from now on, as the device takes them: their numbers, `None` for one that has
    /// none. Returns those noted so far.
    pub(crate) fn journal(&mut self) -> Vec<Option<u64>> {
        self.journal.replace(Vec::new()).unwrap_or_default()
    }

    /// The device took a frame that has no number.
    pub(crate) fn note_unnumbered(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.push(None);
        }
    }

    /// The frames of the chunk of frame `frame` that are built, a bit each, and not those of an
    /// earlier lap.
    #[inline(always)]
    fn ready_in(&self, frame: u64) -> u32 {
        // ORDERING: Acquire, pairs with the Release in `TxClaim::publish`.
        let found = self.ring.chunk(frame).ready.load(Ordering::Acquire);
        let is_same_lap = found & word(u64::MAX, 0) == word(self.ring.lap(frame), 0);
        if is_same_lap { found as u32 } else { 0 }
    }

    /// The same without those that are sent.
    #[inline(always)]
    fn unsent_in(&self, frame: u64) -> u32 {
        self.ready_in(frame) & !self.gone[self.ring.chunk_index(frame)]
    }

    /// Frames below `below` that are ready, from the first unsent one on: as many as `out` holds,
    /// up to the first that is not.
    #[inline]
    pub(crate) fn ready<'a, const N: usize>(
        &'a self,
        below: u64,
        out: &mut ArrayVec<TxFrame<'a>, N>,
    ) {
        self.each_ready(below, out.remaining_capacity(), |frame| {
            // SAFETY: its bit is set in `ready`, and it stays so until `advance`, which needs this
            // handle mutably; until then nobody writes the slot.
            out.push(unsafe { self.ring.frame(self.ring.index(frame)) });
        });
    }

    /// How many frames [`Transmitter::ready`] finds if there is room for `most`, and the slot of
    /// the first. Those that it counts have their slots in a row.
    #[inline]
    pub(crate) fn ready_in_a_row(&self, below: u64, most: usize) -> (usize, usize) {
        let first = self.ring.index(self.next);
        let mut count = 0;
        let most = most.min(self.ring.built.len() - first);
        self.each_ready(below, most, |_| count += 1);
        (first, count)
    }

    #[inline(always)]
    fn each_ready(&self, below: u64, most: usize, mut each: impl FnMut(u64)) {
        let end = below.min(self.next + most as u64);
        let mut first = self.next;
        while first < end {
            let ready = self.unsent_in(first) >> self.ring.bit(first);
            let behind = first + u64::from(ready.trailing_ones());
            let chunk_end = self.ring.chunk_end(first);
            for frame in first..behind.min(end) {
                each(frame);
            }
            if behind < chunk_end {
                return;
            }
            first = chunk_end;
        }
    }

    /// Frames that are ready behind the first unsent one, which is not; and their numbers.
    #[cold]
    pub(crate) fn ready_behind<'a, const N: usize>(
        &'a self,
        out: &mut ArrayVec<TxFrame<'a>, N>,
    ) -> ArrayVec<u64, N> {
        let mut picked = ArrayVec::new();
        for frame in self.next + 1..self.next + self.ring.built.len() as u64 {
            if self.unsent_in(frame) >> self.ring.bit(frame) & 1 != 0 {
                if out.is_full() {
                    break;
                }
                // SAFETY: as in `ready`; the other call is `pass`.
                out.push(unsafe { self.ring.frame(self.ring.index(frame)) });
                picked.push(frame);
            }
        }
        picked
    }

    /// Whether a frame is ready.
    pub(crate) fn any_ready(&self) -> bool {
        self.unsent_in(self.next) >> self.ring.bit(self.next) & 1 != 0
    }

    /// `ready` found nothing. Looks at some of the slots behind, and says whether this is a hole to
    /// send past.
    pub(crate) fn look_behind(&mut self) -> bool {
        if self.hole.at != self.next {
            self.hole = Hole {
                at: self.next,
                ..Hole::default()
            };
        }
        self.hole.calls = self.hole.calls.saturating_add(1);
        if self.hole.calls < self.calls {
            return false;
        }
        for _ in 0..MAX_SCAN {
            if self.hole.ready >= self.past {
                return true;
            }
            self.hole.looked += 1;
            if self.hole.looked >= self.ring.built.len() as u64 {
                (self.hole.looked, self.hole.ready) = (0, 0);
                return false;
            }
            let frame = self.next + self.hole.looked;
            let is_ready = self.ready_in(frame) >> self.ring.bit(frame) & 1;
            self.hole.ready += u64::from(is_ready);
        }
        false
    }

    /// The device took the first `count` of what `ready` gave.
    #[inline]
    pub(crate) fn advance(&mut self, count: usize) {
        let next = self.next + count as u64;
        if let Some(journal) = &mut self.journal {
            journal.extend((self.next..next).map(Some));
        }
        self.free_up_to(next);
        if self.beyond > 0 {
            self.close_up();
        }
        // ORDERING: Release, pairs with the Acquire in `TxRing::sent`.
        self.ring.sent.store(self.next, Ordering::Release);
    }

    /// The device took these frames, which `ready_behind` gave.
    #[cold]
    pub(crate) fn pass(&mut self, frames: &[u64]) {
        if let Some(journal) = &mut self.journal {
            journal.extend(frames.iter().copied().map(Some));
        }
        for &frame in frames {
            let bit = 1 << self.ring.bit(frame);
            assert!(self.unsent_in(frame) & bit != 0);
            self.gone[self.ring.chunk_index(frame)] |= bit;
        }
        self.beyond += frames.len() as u64;
        self.passed += frames.len() as u64;
    }

    /// The prefix grew, perhaps up to frames that were sent before.
    #[cold]
    fn close_up(&mut self) {
        while self.beyond > 0 {
            let gone = self.gone[self.ring.chunk_index(self.next)];
            if gone >> self.ring.bit(self.next) & 1 == 0 {
                break;
            }
            self.beyond -= 1;
            self.free_up_to(self.next + 1);
        }
    }

    /// The frames before `next` have left: the slots of a chunk may be used again when this was its
    /// last one.
    #[inline]
    fn free_up_to(&mut self, next: u64) {
        let ring = &*self.ring;
        while self.next < next {
            let (first, end) = (self.next, ring.chunk_end(self.next));
            self.next = next.min(end);
            if self.next < end {
                return;
            }
            let index = ring.chunk_index(first);
            let all = u32::MAX >> (u32::BITS - (1 << ring.chunk_shift));
            assert_eq!(self.ready_in(first), all, "frames left that are not built");
            self.gone[index] = 0;
            let free = word(ring.lap(first) + 1, 0);
            // ORDERING: Relaxed: who publishes in the new lap has claimed in it before.
            ring.chunks[index].ready.store(free, Ordering::Relaxed);
            // ORDERING: Release, pairs with the Acquire in `claim`: we have done with the slots.
            ring.chunks[index].taken.store(free, Ordering::Release);
        }
    }
}
