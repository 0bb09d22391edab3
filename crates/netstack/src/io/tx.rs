//! Numbered transmit slots: outgoing frame k is built in slot k modulo the number of slots.
//!
//! Consecutive frames, up to 32, form a chunk. A chunk has two words, each with the chunk's lap
//! around the ring and one bit per frame; the first one also names the worker that normally builds
//! the chunk's frames, its owner:
//!
//! ```text
//!          begun                                      ready
//! (lap, -, 0000)                                (lap, 0000)
//! (lap, w, 0000)  assign, a CAS by any worker
//! (lap, w, 0110)  begin, a CAS by the builder
//!                                               (lap, 0110)  mark_ready, when both frames are built
//! (lap, w, 1111)                                (lap, 1111)
//! (lap + 1, -, 0)                               (lap + 1, 0) when all of the chunk have left
//! ```
//!
//! These two words say who builds a frame, whether a thread is at it, and whether it is built;
//! nothing else does. (A third one says how frames that are ready are sent, see below.) Any worker
//! may begin a free frame, so a late owner delays nobody for long. While a frame is
//! [begun](WorkState::Begun), a thread works on it: others wait for that thread.
//!
//! `apply` never numbers a frame while its slot's chunk holds an unsent frame of an earlier lap: it
//! rounds `sent`, which the transmit pump publishes, down to whole chunks
//! (`FrameNumbers::update_sent`). So the slot of a numbered frame is free, and no builder waits.
//!
//! If the device lets builders fill in its descriptors ([`TxPrepare`]), they do so before they mark
//! frames ready, and the transmitter passes slot numbers to the device instead of frames. A builder
//! leaves a short frame that it builds by itself, such as an acknowledgment, as it is (plain): to
//! hand over its descriptor would take longer than to send it.
//!
//! [`BegunFrames`] that are dropped before they are ready, also by unwinding, are free again.
//!
//! # Sending past a hole
//!
//! If a builder is interrupted in the middle of a frame, that frame (a hole) delays all later ones,
//! also of other connections. When enough of them are ready, the transmitter sends past the hole:
//! the receiver sees a reordering, which TCP tolerates. The transmitter marks each such frame until
//! all earlier ones have left, so that it is not sent again. `sent`, and thus credit and the reuse
//! of slots, covers only the prefix without holes.
//!
//! No replica asks for a frame whose slot still has an earlier frame, unless its state is wrong:
//! [`TxRing::begin`] then fails with [`WorkState::Free`].

#[cfg(all(test, netstack_loom))]
mod loom_models;
#[cfg(all(test, not(netstack_loom)))]
mod tests;

use core::cell::UnsafeCell;
use core::cmp;
use core::hint;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use arrayvec::ArrayVec;
use crossbeam_utils::CachePadded;
use dominoes::WorkState;
use dominoes_drivers::{DeviceError, DeviceTx, TxFrame, TxMeta, TxPrepare, checked};

use crate::config::tx_chunk;
use crate::io::claim::DEVICE_RETRY_INTERVAL;
use crate::io::prefetch::{prefetch_at, prefetch_of};
use crate::io::rx::FRAMES_A_TURN;
use crate::io::stream::BorrowedPayload;
use crate::io::sync::{AtomicU64, Shadow};
use crate::io::world::World;

/// Most frames in a chunk: the bits of a word.
const MAX_CHUNK: usize = 32;
/// Most frames that one call prepares for the device: few enough that all are in the nearest
/// cache when the call reads them.
const PREPARED_TOGETHER: usize = 8;

/// A frame that is built by itself is plain if it has at most this many bytes.
const MAX_PLAIN: usize = 128;

/// The smallest page of memory of any system, in bytes.
const PAGE: usize = 4096;

/// Chunks from a hole on that one call examines.
const MAX_SCAN: usize = 2;

/// A word has a bit for each frame of the chunk, then 8 bits for the owner, then the lap.
const OWNER_SHIFT: u32 = 32;
const LAP_SHIFT: u32 = 40;

/// The word of a chunk in lap `lap`, modulo 2^24, with a bit for each frame, and no owner.
const fn word(lap: u64, frames: u32) -> u64 {
    lap << LAP_SHIFT | frames as u64
}

/// Compares the lap of the word `found` with `lap`, modulo 2^24. They are far less than 2^23 laps
/// apart: a log holds at most 2^20 requests, each with frames for one lap.
#[inline(always)]
fn compare_lap(found: u64, lap: u64) -> cmp::Ordering {
    let ahead = (found >> LAP_SHIFT).wrapping_sub(lap) << LAP_SHIFT;
    (ahead as i64).cmp(&0)
}

/// Makes the system allocate the memory of these zeros now. Otherwise the first write to each page
/// would cause a page fault in a worker, and the first lap over the slots would be several times
/// slower.
fn touch(zeros: &mut [u8]) {
    for page in zeros.chunks_mut(PAGE) {
        // The compiler does not know this value, so it must keep the store.
        page[0] = hint::black_box(0);
    }
    if let Some(last) = zeros.last_mut() {
        *last = hint::black_box(0);
    }
}

/// The owner of a chunk, and a bit for each of its frames.
struct Chunk {
    /// The owner's number plus one, or 0, and the frames that a builder has begun.
    begun: AtomicU64,
    /// Frames that are built.
    ready: AtomicU64,
    /// With a preparer: the plain ones, one bit each, without a lap.
    plain: AtomicU64,
}

#[derive(Clone, Copy, Default)]
struct Built {
    /// Bytes that the slot holds, headers included.
    len: u32,
    head: u32,
    meta: TxMeta,
    /// Whether the frame continues with memory outside the slot.
    is_carried: bool,
}

/// The slots and their memory.
pub(crate) struct TxRing {
    chunks: Box<[CachePadded<Chunk>]>,
    /// log2 of the frames in a chunk, and in the ring.
    chunk_shift: u32,
    slot_shift: u32,
    /// One less than the slots.
    slot_mask: u64,
    /// For each slot: length and metadata of the built frame.
    built: Box<[UnsafeCell<Built>]>,
    /// For each slot: the part of its frame outside the slot, if there is one.
    carried: Box<[UnsafeCell<Option<BorrowedPayload>>]>,
    memory: Box<[UnsafeCell<u8>]>,
    slot_len: usize,
    sent: CachePadded<AtomicU64>,
    /// Prepares frames for the device in their builders' threads, if the device supports that.
    preparer: Option<Arc<dyn TxPrepare>>,
    /// Checks accesses to each slot.
    shadow: Shadow,
}

// SAFETY: `built`, `carried` and the memory of a slot are written only by the builder that set its
// bit in `begun`, and read by that builder before it marks it ready, and by the one `Transmitter`
// after it saw the bit in `ready`. Any thread may read the memory that `carried` refers to.
unsafe impl Sync for TxRing {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for TxRing {}

impl TxRing {
    /// A ring of `slots` (a power of two) frames of at most `slot_len` bytes, and the one handle
    /// that sends them. The first `touched` bytes of each slot are in memory from the start.
    /// Builders call `preparer`, which must also have `slots` slots. A chunk has at most
    /// `most_in_chunk` frames, a power of two.
    pub(crate) fn new(
        slots: usize,
        (slot_len, touched): (usize, usize),
        most_in_chunk: usize,
        preparer: Option<Arc<dyn TxPrepare>>,
    ) -> (Arc<TxRing>, Transmitter) {
        let chunk = most_in_chunk.min(tx_chunk(slots as u64) as usize);
        TxRing::with_chunks(slots, (slot_len, touched), chunk, preparer)
    }

    /// As `new`, with chunks of `chunk` frames, a power of two up to 32 and up to `slots`.
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
                begun: AtomicU64::new(word(0, 0)),
                ready: AtomicU64::new(word(0, 0)),
                plain: AtomicU64::new(0),
            })
        };
        let ring = Arc::new(TxRing {
            chunks: (0..slots / chunk).map(words).collect(),
            chunk_shift: chunk.trailing_zeros(),
            slot_shift: slots.trailing_zeros(),
            slot_mask: slots as u64 - 1,
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
        (frame & self.slot_mask) as usize
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

    /// The first frame after the chunk of frame `frame`.
    #[inline(always)]
    pub(crate) fn chunk_end(&self, frame: u64) -> u64 {
        ((frame >> self.chunk_shift) + 1) << self.chunk_shift
    }

    /// The number of the chunk of frame `frame`, counted from the start.
    #[inline]
    pub(crate) fn chunk_of(&self, frame: u64) -> u64 {
        frame >> self.chunk_shift
    }

    /// The owner of the chunk of frame `frame`: the worker that builds it unless it is late.
    ///
    /// # Errors
    /// [`WorkState::Free`] if it has none yet, [`WorkState::Done`] if all of it has left.
    #[inline(always)]
    pub(crate) fn owner(&self, frame: u64) -> Result<usize, WorkState> {
        let found = self.chunk(frame).begun.load(Ordering::Relaxed);
        match compare_lap(found, self.lap(frame)) {
            cmp::Ordering::Greater => Err(WorkState::Done),
            cmp::Ordering::Less => Err(WorkState::Free),
            cmp::Ordering::Equal => match (found >> OWNER_SHIFT) as u8 {
                0 => Err(WorkState::Free),
                owner => Ok(usize::from(owner) - 1),
            },
        }
    }

    /// Makes `worker` the owner of the chunk of frame `frame`, unless it has one. Returns as
    /// [`owner`](Self::owner); of a chunk that is not due, `worker`, which finds that out when it
    /// begins.
    pub(crate) fn assign(&self, frame: u64, worker: usize) -> Result<usize, WorkState> {
        let owner = (worker as u64 + 1) << OWNER_SHIFT;
        debug_assert!(
            owner < 1 << LAP_SHIFT,
            "worker {worker} does not fit a word"
        );
        let has_none = |found: u64| {
            compare_lap(found, self.lap(frame)).is_eq() && (found >> OWNER_SHIFT) as u8 == 0
        };
        let add = |found| has_none(found).then_some(found | owner);
        let begun = &self.chunk(frame).begun;
        // ORDERING: Relaxed: an owner publishes nothing; whoever builds begins with Acquire.
        let _ = begun.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        match self.owner(frame) {
            Err(WorkState::Free) => Ok(worker),
            owner => owner,
        }
    }

    /// The state of frame `frame`.
    pub(crate) fn state(&self, frame: u64) -> WorkState {
        let found = self.chunk(frame).begun.load(Ordering::Relaxed);
        let free = self.count_free(found, frame);
        free.err().unwrap_or(WorkState::Free)
    }

    /// How many frames can be begun, from frame `first` to the end of its chunk, whose word is
    /// `found`.
    #[cold]
    fn count_free(&self, found: u64, first: u64) -> Result<u32, WorkState> {
        match compare_lap(found, self.lap(first)) {
            cmp::Ordering::Equal => {}
            cmp::Ordering::Greater => return Err(WorkState::Done),
            cmp::Ordering::Less => return Err(WorkState::Free),
        }
        match (found as u32 >> self.bit(first)).trailing_zeros() {
            0 => Err(match self.count_built(first) {
                (cmp::Ordering::Less, _) | (cmp::Ordering::Equal, 0) => WorkState::Begun,
                _ => WorkState::Done,
            }),
            free => Ok(free.min((self.chunk_end(first) - first) as u32)),
        }
    }

    /// How the lap of `ready` of the chunk of frame `first` compares with the frame's; and of its
    /// frames, from `first` on, the number that are built.
    #[inline]
    fn count_built(&self, first: u64) -> (cmp::Ordering, u32) {
        // ORDERING: Acquire, pairs with the Release in `BegunFrames::mark_ready`: the caller sees
        // that the frames were built.
        let found = self.chunk(first).ready.load(Ordering::Acquire);
        let built = (found as u32 >> self.bit(first)).trailing_ones();
        (compare_lap(found, self.lap(first)), built)
    }

    /// Whether all frames below `end` are built. `built` is a number for which that is known, and
    /// grows. Frames that are not due count as built: there is nothing to wait for.
    pub(crate) fn has_built(&self, built: &mut u64, end: u64) -> bool {
        if *built < end {
            *built = (*built).max(self.sent());
        }
        while *built < end {
            *built = match self.count_built(*built) {
                (cmp::Ordering::Equal, 0) => return false,
                (cmp::Ordering::Equal, more) => *built + u64::from(more),
                _ => self.chunk_end(*built),
            };
        }
        true
    }

    /// Begins to build frame `first` and those behind it that are free, at most `most`, up to the
    /// end of the chunk.
    ///
    /// # Errors
    /// The state of frame `first`. [`WorkState::Free`]: nobody may begin it yet, since its slot
    /// still has an earlier frame.
    #[inline(always)]
    pub(crate) fn begin(&self, first: u64, most: u32) -> Result<BegunFrames<'_>, WorkState> {
        debug_assert!(most > 0, "no frame is begun");
        let (chunk, free) = (self.chunk(first), word(self.lap(first), 0));
        let mut count = match most {
            1 => 1,
            _ => most.min((self.chunk_end(first) - first) as u32),
        };
        let mut found = chunk.begun.load(Ordering::Relaxed);
        loop {
            let frames = (u32::MAX >> (32 - count)) << self.bit(first);
            if found & word(u64::MAX, frames) != free {
                count = self.count_free(found, first)?.min(count);
                continue;
            }
            match chunk.begun.compare_exchange(
                found,
                found | word(0, frames),
                // ORDERING: Acquire, pairs with the Release in `free_up_to`: the device no longer
                // reads the slots' earlier frames; and with the Release in `BegunFrames::drop`.
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    return Ok(BegunFrames {
                        ring: self,
                        chunk,
                        frames,
                        prepared: self.index(first),
                        next: self.index(first),
                        end: self.index(first) + count as usize,
                    });
                }
                // Another builder has begun other frames of the chunk.
                Err(now) => found = now,
            }
        }
    }

    /// The number of frames that the device has taken, without holes: all frames below are sent.
    #[inline]
    pub(crate) fn sent(&self) -> u64 {
        // ORDERING: Acquire, pairs with the Release in `Transmitter::advance`: a thread that
        // learns of this count, also through the log, finds the slots free.
        self.sent.load(Ordering::Acquire)
    }

    /// Prefetches the first `len` bytes of a slot that the caller will write soon.
    #[inline(always)]
    pub(crate) fn fetch(&self, frame: u64, len: usize) {
        let index = self.index(frame);
        prefetch_of(&self.built[index]);
        prefetch_at(self.bytes(index), len.min(self.slot_len));
    }

    /// The frame in slot `index`, which is built.
    ///
    /// # Safety
    /// No thread writes the slot, or the memory that it carries, until the last use of the result.
    /// Either the slot is not ready and the caller has begun it, or the caller saw its bit in
    /// `ready` and the frame has not left.
    #[inline(always)]
    unsafe fn frame(&self, index: usize) -> TxFrame<'_> {
        self.shadow.read(index, 1);
        // SAFETY: the builder wrote both before; the caller vouches for the rest.
        let (built, bytes) = unsafe {
            let built = *self.built[index].get();
            let bytes = core::slice::from_raw_parts(self.bytes(index), built.len as usize);
            (built, bytes)
        };
        let (head, mut payload) = bytes.split_at(built.head as usize);
        if built.is_carried {
            // SAFETY: as above; the builder stored it with the rest.
            let carried = unsafe { *self.carried[index].get() };
            // SAFETY: the frame has not left. The world owns the streams, and the owner of the
            // frames that are begun, or the transmitter, has the world.
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

/// Frames of one chunk that this thread has begun and builds one after the other. If they are
/// dropped before they are ready, they are free again.
pub(crate) struct BegunFrames<'a> {
    ring: &'a TxRing,
    chunk: &'a Chunk,
    /// The frames, one bit each as in the chunk's words.
    frames: u32,
    /// The slot of the first frame whose descriptor is not filled in.
    prepared: usize,
    /// The slot of the first frame that is not built, and the end of the slots.
    next: usize,
    end: usize,
}

impl BegunFrames<'_> {
    /// How many frames are left to build.
    #[inline(always)]
    pub(crate) fn left(&self) -> u32 {
        (self.end - self.next) as u32
    }

    /// The memory of the next frame's slot. It holds bytes of an earlier frame.
    ///
    /// # Panics
    /// If all frames are built.
    #[inline(always)]
    pub(crate) fn buffer(&mut self) -> &mut [u8] {
        assert!(self.next < self.end, "no frame is left to build");
        self.ring.shadow.write(self.next, 1);
        // SAFETY: the bit is set in `begun`, and only the builder that set it has this value,
        // which names the slot at `next` until its frame is built. The memory is `slot_len`
        // bytes within the ring's, and initialised since `new`.
        unsafe { core::slice::from_raw_parts_mut(self.ring.bytes(self.next), self.ring.slot_len) }
    }

    /// Marks the next frame as built: the first `len` bytes of its slot, of which `head` are
    /// headers. The frame leaves after all of them are ready.
    ///
    /// # Panics
    /// If all frames are built, or this one does not fit its slot.
    #[inline(always)]
    pub(crate) fn built(&mut self, head: usize, len: usize, meta: TxMeta) {
        self.store(head, len, meta, None);
    }

    /// Marks the next frame as built: its headers are the first `head` bytes of its slot, and
    /// its payload is in other memory.
    ///
    /// # Panics
    /// As [`BegunFrames::built`].
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
            self.fill_descriptors();
        }
    }

    /// Marks the frames, all of which are built, as ready. They leave after all earlier frames, but
    /// for those past a hole.
    ///
    /// # Panics
    /// If one is not built.
    #[inline(always)]
    pub(crate) fn mark_ready(mut self) {
        assert!(self.next == self.end, "frames are ready and not built");
        self.fill_descriptors();
        let frames = core::mem::take(&mut self.frames);
        // ORDERING: Release, pairs with the Acquire in `Transmitter::ready_in`.
        self.chunk
            .ready
            .fetch_or(word(0, frames), Ordering::Release);
    }

    /// Fills in the descriptors of the frames that are built and have none, if the device has a
    /// preparer and they are not plain.
    #[inline(always)]
    fn fill_descriptors(&mut self) {
        let first = core::mem::replace(&mut self.prepared, self.next);
        if let Some(preparer) = &self.ring.preparer
            && first < self.next
        {
            let mut frames = ArrayVec::<_, PREPARED_TOGETHER>::new();
            for slot in first..self.next {
                // SAFETY: we have begun and built it, and mark it ready after the last use.
                frames.push(unsafe { self.ring.frame(slot) });
            }
            if self.frames.is_power_of_two() && frames[0].len() <= MAX_PLAIN {
                // ORDERING: Relaxed: `mark_ready` follows.
                (self.chunk.plain).fetch_or(self.frames.into(), Ordering::Relaxed);
            } else {
                preparer.prepare(first, &frames);
            }
        }
    }
}

impl Drop for BegunFrames<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.frames != 0 {
            // ORDERING: Release, pairs with the Acquire in `begin`: the next one writes after us.
            self.chunk
                .begun
                .fetch_and(!word(0, self.frames), Ordering::Release);
        }
    }
}

/// The hole at the transmitter's next frame, as far as it was examined.
#[derive(Clone, Copy, Debug, Default)]
struct Hole {
    /// The frame that is missing.
    at: u64,
    /// A later frame was ready. Until then nothing shows that the frame has a number.
    is_found: bool,
    /// Calls since then that found the frame missing.
    calls: u32,
    /// Slots from the hole on that were examined.
    looked: u64,
    /// Frames among them that are ready or sent.
    ready: u64,
}

/// Sends ready frames in the order of their numbers, but for those past a hole. There is one per
/// ring.
pub(crate) struct Transmitter {
    ring: Arc<TxRing>,
    next: u64,
    /// Ready frames after a hole that are required before the transmitter sends past it.
    past: u64,
    /// Calls that must find a hole before later slots are examined. Most holes are filled soon, or
    /// another worker takes over the late work. Either is better than sending past the hole.
    calls: u32,
    hole: Hole,
    /// For each chunk: its frames that were sent past a hole, a bit each.
    gone: Box<[u32]>,
    /// Frames after the prefix that are sent.
    beyond: u64,
    /// Frames that were ever sent past a hole.
    passed: u64,
    /// The frames that the device took, if a test asked for them.
    journal: Option<Vec<Option<u64>>>,
}

impl Transmitter {
    /// Whether builders prepare their frames for the device.
    pub(crate) fn are_prepared(&self) -> bool {
        self.ring.preparer.is_some()
    }

    /// Whether the next frame is ready and plain.
    #[inline(always)]
    pub(crate) fn is_next_plain(&self) -> bool {
        self.are_prepared() && self.any_ready() && self.prepared_slot(self.next).is_none()
    }

    /// The slot of frame `frame`, which is ready, unless it is plain.
    #[inline]
    pub(crate) fn prepared_slot(&self, frame: u64) -> Option<usize> {
        let is_plain = self.plain_in(frame) >> self.ring.bit(frame) & 1 != 0;
        (!is_plain).then(|| self.ring.index(frame))
    }

    /// The plain frames of the chunk of frame `frame`, after a look at its ready ones.
    #[inline(always)]
    fn plain_in(&self, frame: u64) -> u32 {
        // ORDERING: Relaxed: the look at `ready` was an Acquire, and `plain` changes before it.
        self.ring.chunk(frame).plain.load(Ordering::Relaxed) as u32
    }

    /// Sends past a hole after `calls` calls found it and `frames` later frames are ready; never
    /// by default.
    pub(crate) fn send_past(&mut self, frames: u64, calls: u32) {
        self.past = frames.max(1);
        self.calls = calls;
    }

    /// Frames that were sent past a hole so far.
    pub(crate) fn passed(&self) -> u64 {
        self.passed
    }

    /// Begins to record the numbers of frames that the device takes, `None` for a frame without
    /// number. Returns those recorded so far.
    pub(crate) fn journal(&mut self) -> Vec<Option<u64>> {
        self.journal.replace(Vec::new()).unwrap_or_default()
    }

    /// Records that the device took a frame without number.
    pub(crate) fn note_unnumbered(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.push(None);
        }
    }

    /// The built frames of the chunk of frame `frame`, one bit each; 0 if the word is of another
    /// lap.
    #[inline(always)]
    fn ready_in(&self, frame: u64) -> u32 {
        // ORDERING: Acquire, pairs with the Release in `BegunFrames::mark_ready`.
        let found = self.ring.chunk(frame).ready.load(Ordering::Acquire);
        let is_same_lap = found & word(u64::MAX, 0) == word(self.ring.lap(frame), 0);
        if is_same_lap { found as u32 } else { 0 }
    }

    /// As `ready_in`, without the frames that are sent.
    #[inline(always)]
    fn unsent_in(&self, frame: u64) -> u32 {
        self.ready_in(frame) & !self.gone[self.ring.chunk_index(frame)]
    }

    /// Adds ready frames below `below` to `out`, from the first unsent frame up to the first that
    /// is not ready, or is of the other kind, as far as `out` has room.
    #[inline]
    pub(crate) fn ready<'a, const N: usize>(
        &'a self,
        (below, plain): (u64, bool),
        out: &mut ArrayVec<TxFrame<'a>, N>,
    ) {
        self.each_ready((below, plain), out.remaining_capacity(), |frame| {
            // SAFETY: its bit is set in `ready`, and it stays so until `advance`, which needs
            // this handle mutably; until then no thread writes the slot.
            out.push(unsafe { self.ring.frame(self.ring.index(frame)) });
        });
    }

    /// The slot of the first unsent frame, and how many frames [`Transmitter::ready`] finds that
    /// are not plain, if there is room for `most`. They have consecutive slots.
    #[inline]
    pub(crate) fn ready_in_a_row(&self, below: u64, most: usize) -> (usize, usize) {
        let first = self.ring.index(self.next);
        let mut count = 0;
        let most = most.min(self.ring.built.len() - first);
        self.each_ready((below, false), most, |_| count += 1);
        (first, count)
    }

    #[inline(always)]
    fn each_ready(&self, (below, plain): (u64, bool), most: usize, mut each: impl FnMut(u64)) {
        let end = below.min(self.next + most as u64);
        let mut first = self.next;
        while first < end {
            let ready = self.unsent_in(first);
            let others = self.plain_in(first) ^ if plain { u32::MAX } else { 0 };
            let ready = (ready & !others) >> self.ring.bit(first);
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

    /// Adds the ready frames after a hole at the first unsent frame to `out`. Returns their
    /// numbers.
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
                // SAFETY: as in `ready`, with `pass` instead of `advance`.
                out.push(unsafe { self.ring.frame(self.ring.index(frame)) });
                picked.push(frame);
            }
        }
        picked
    }

    /// Whether the next frame is ready.
    pub(crate) fn any_ready(&self) -> bool {
        self.unsent_in(self.next) >> self.ring.bit(self.next) & 1 != 0
    }

    /// Looks for a hole, after `ready` found no frame: examines the slots of a few chunks. Returns
    /// whether the transmitter should send past the hole.
    pub(crate) fn look_behind(&mut self) -> bool {
        if self.past == u64::MAX || self.any_ready() {
            return false;
        }
        let ring = &*self.ring;
        if self.hole.at != self.next {
            self.hole = Hole {
                at: self.next,
                ..Hole::default()
            };
        }
        for _ in 0..MAX_SCAN {
            if self.hole.ready >= self.past {
                break;
            }
            if self.hole.looked >= ring.built.len() as u64 {
                (self.hole.looked, self.hole.ready) = (0, 0);
            }
            let first = self.next + self.hole.looked;
            let ready = self.ready_in(first) >> ring.bit(first);
            self.hole.ready += u64::from(ready.count_ones());
            self.hole.looked = ring.chunk_end(first) - self.next;
        }
        let hole = &mut self.hole;
        hole.is_found |= hole.ready > 0;
        hole.calls = hole.calls.saturating_add(hole.is_found.into());
        hole.calls >= self.calls && hole.ready >= self.past
    }

    /// The device took the first `count` frames that `ready` returned.
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

    /// The device took these frames, which `ready_behind` returned.
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

    /// Advances over frames that were sent past a hole, after the hole was filled.
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

    /// Notes that the frames before `next` have left, and frees each chunk whose last frame is
    /// among them.
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
            // ORDERING: Relaxed: a builder that publishes in the new lap has begun in it before.
            ring.chunks[index].plain.store(0, Ordering::Relaxed);
            ring.chunks[index].ready.store(free, Ordering::Relaxed);
            // ORDERING: Release, pairs with the Acquire in `begin`: this thread no longer reads the
            // slots.
            ring.chunks[index].begun.store(free, Ordering::Release);
        }
    }
}

/// The transmit pump: hands frames to the device in the order of their numbers. It has no thread:
/// any worker may take it for a moment.
pub(crate) struct TxPump {
    world: Arc<World>,
    tx: Box<dyn DeviceTx>,
    pub(crate) transmitter: Transmitter,
    /// A control frame that the device did not take.
    held: Option<Vec<u8>>,
}

impl TxPump {
    pub(crate) fn new(world: Arc<World>, tx: Box<dyn DeviceTx>, transmitter: Transmitter) -> Self {
        TxPump {
            world,
            tx,
            transmitter,
            held: None,
        }
    }

    /// Sends all control frames and at most [`FRAMES_A_TURN`] numbered frames. Returns how many the
    /// device took.
    pub(crate) fn turn(&mut self) -> usize {
        self.send::<FRAMES_A_TURN>(u64::MAX)
    }

    /// As [`TxPump::turn`], but sends only numbered frames below `below`.
    pub(crate) fn turn_below(&mut self, below: u64) -> usize {
        self.send::<FRAMES_A_TURN>(below)
    }

    /// As [`TxPump::turn`], with one numbered frame, for callers that drive the stack step by step.
    pub(crate) fn step(&mut self) -> usize {
        self.send::<1>(u64::MAX)
    }

    fn send<const MAX: usize>(&mut self, below: u64) -> usize {
        let mut done = self.control();
        let first = self.transmitter.next;
        let below = below.min(first + MAX as u64);
        loop {
            match self.offer::<MAX>(below) {
                None if self.transmitter.next == first => {
                    return done + self.send_past_hole::<MAX>();
                }
                None | Some(Ok(0)) => return done,
                Some(Ok(taken)) => {
                    self.transmitter.advance(taken);
                    done += taken;
                }
                Some(Err(error)) => {
                    self.world.device_failed(error);
                    return done;
                }
            }
            // Where builders prepare frames, the next one may have to be sent the other way. The words
            // of a chunk from `below` on are left to its builder.
            let t = &self.transmitter;
            if t.next >= below || !t.are_prepared() || !t.any_ready() {
                return done;
            }
        }
    }

    /// Offers frames to the device that are sent the same way. Returns how many it took, or `None`
    /// if no frame is ready.
    #[inline(always)]
    fn offer<const MAX: usize>(&mut self, below: u64) -> Option<Result<usize, DeviceError>> {
        if self.world.has_detours() {
            return self.offer_or_loop::<MAX>(below);
        }
        let is_plain = self.transmitter.is_next_plain();
        if self.transmitter.are_prepared() && !is_plain {
            let (first, count) = self.transmitter.ready_in_a_row(below, MAX);
            let taken =
                (count > 0).then(|| checked::transmit_prepared(&mut *self.tx, first, count));
            return taken.inspect(|taken| self.world.set_device_refuses(taken.is_err()));
        }
        let mut frames = ArrayVec::<_, MAX>::new();
        self.transmitter.ready((below, is_plain), &mut frames);
        let taken = (!frames.is_empty()).then(|| checked::transmit(&mut *self.tx, &frames));
        taken.inspect(|taken| self.world.set_device_refuses(taken.is_err()))
    }

    /// As [`TxPump::offer`], when some frames may be for ourselves: these go into a mailbox instead
    /// of the device. While the link is down, all others are dropped.
    #[cold]
    fn offer_or_loop<const MAX: usize>(
        &mut self,
        below: u64,
    ) -> Option<Result<usize, DeviceError>> {
        let mut frames = ArrayVec::<_, MAX>::new();
        let is_plain = self.transmitter.is_next_plain();
        self.transmitter.ready((below, is_plain), &mut frames);
        let comes_back = self.world.comes_back(frames.first()?);
        let mut first = frames.iter();
        if comes_back {
            let first = first.take_while(|frame| self.world.comes_back(frame));
            let taken = first.take_while(|frame| self.world.loop_back(frame));
            return Some(Ok(taken.count()));
        }
        let count = first.position(|frame| self.world.comes_back(frame));
        let count = count.unwrap_or(frames.len());
        if self.world.is_link_down() {
            return Some(Ok(count));
        }
        let taken = if self.transmitter.are_prepared() && !is_plain {
            let (first, count) = self.transmitter.ready_in_a_row(below, count);
            checked::transmit_prepared(&mut *self.tx, first, count)
        } else {
            checked::transmit(&mut *self.tx, &frames[..count])
        };
        self.world.set_device_refuses(taken.is_err());
        Some(taken)
    }

    /// Sends frames past a hole, if the hole has been there for long enough.
    fn send_past_hole<const MAX: usize>(&mut self) -> usize {
        if !self.transmitter.look_behind() {
            return 0;
        }
        let mut frames = ArrayVec::<_, MAX>::new();
        let mut picked = self.transmitter.ready_behind(&mut frames);
        // Frames to ourselves, and all later ones, wait until the hole is filled.
        if let Some(first) = frames.iter().position(|frame| self.world.comes_back(frame)) {
            frames.truncate(first);
            picked.truncate(first);
        }
        if frames.is_empty() {
            return 0;
        }
        let taken = if self.world.is_link_down() {
            Ok(picked.len())
        } else {
            let taken = if self.transmitter.are_prepared() {
                let slots = picked
                    .iter()
                    .map(|frame| self.transmitter.prepared_slot(*frame));
                transmit_one_by_one(&mut *self.tx, slots.zip(&frames))
            } else {
                checked::transmit(&mut *self.tx, &frames)
            };
            self.world.set_device_refuses(taken.is_err());
            taken
        };
        drop(frames);
        match taken {
            Ok(taken) => {
                self.transmitter.pass(&picked[..taken]);
                taken
            }
            Err(error) => {
                self.world.device_failed(error);
                0
            }
        }
    }

    fn control(&mut self) -> usize {
        let mut done = 0;
        if self.held.is_none() && self.world.control.is_empty() {
            return done;
        }
        while let Some(frame) = self.held.take().or_else(|| self.world.control.pop()) {
            let whole = TxFrame::new(&frame);
            let taken = if self.world.comes_back(&whole) {
                Ok(usize::from(self.world.loop_back(&whole)))
            } else if self.world.is_link_down() {
                Ok(1)
            } else {
                let taken = self.tx.transmit(&[whole]);
                self.world.set_device_refuses(taken.is_err());
                taken
            };
            match taken {
                Ok(0) => {
                    self.held = Some(frame);
                    break;
                }
                Ok(_) => {
                    self.world.control.sent(&frame);
                    self.transmitter.note_unnumbered();
                    done += 1;
                }
                Err(error) => {
                    self.held = Some(frame);
                    self.world.device_failed(error);
                    break;
                }
            }
        }
        done
    }

    /// Whether a frame waits to be sent, and the device is not known to refuse frames.
    pub(crate) fn has_work(&self) -> bool {
        self.any_waits() && !self.world.is_device_refusing()
    }

    /// The time until the next attempt, if a frame waits for a device that is down or gone.
    pub(crate) fn next_try(&self) -> Option<std::time::Duration> {
        (self.any_waits() && self.world.is_device_refusing()).then_some(DEVICE_RETRY_INTERVAL)
    }

    fn any_waits(&self) -> bool {
        self.transmitter.any_ready() || self.held.is_some() || !self.world.control.is_empty()
    }
}

/// Sends frames one by one, a prepared one by its slot. Returns how many the device took.
fn transmit_one_by_one<'a>(
    tx: &mut dyn DeviceTx,
    frames: impl Iterator<Item = (Option<usize>, &'a TxFrame<'a>)>,
) -> Result<usize, DeviceError> {
    let mut taken = 0;
    for (slot, frame) in frames {
        let sent = match slot {
            Some(slot) => tx.transmit_prepared(slot, 1),
            None => tx.transmit(core::slice::from_ref(frame)),
        };
        match sent {
            Ok(0) => break,
            Ok(_) => taken += 1,
            Err(error) if taken == 0 => return Err(error),
            // The next call reports it.
            Err(_) => break,
        }
    }
    Ok(taken)
}
