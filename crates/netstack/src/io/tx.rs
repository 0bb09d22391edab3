//! Numbered transmit slots: outgoing frame k is built in slot k modulo their number.
//!
//! `apply` numbers frames, and never one at or past `sent` plus the number of slots, where `sent`
//! is a count that the transmit pump has published. So the slot of a numbered frame is free when
//! somebody comes to build it, and nobody waits. Each slot has a stamp:
//!
//! ```text
//! Free(k)  --claim, a CAS by whoever builds frame k-->  Taken(k)  --publish-->  Ready(k)
//!    ^                                                                            |
//!    '--- Free(k + slots): frame k and all before it have gone to the device ----'
//! ```
//!
//! # Sending past a hole
//!
//! A frame whose builder was interrupted in the middle holds up those behind it, of other
//! connections, too. When enough of them are ready, the transmitter sends past it: to the receiver
//! that is a reordering, which TCP bears. A frame sent so is `Sent(k)` until all before it have
//! left, and is not sent again; `sent`, and so credit and the use of slots, count the prefix alone.
//!
//! A second builder of the same frame finds the stamp moved on. That is no race for memory but a
//! sign that two replicas did not agree, and [`TxRing::claim`] says so.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use arrayvec::ArrayVec;
use crossbeam_utils::CachePadded;
use dominoes_drivers::{TxFrame, TxMeta};

use crate::io::prefetch::{prefetch_at, prefetch_of};
use crate::io::stream::BorrowedPayload;
use crate::io::sync::{AtomicU64, Shadow};

const FREE: u64 = 0;
const TAKEN: u64 = 1;
const READY: u64 = 2;
const SENT: u64 = 3;

/// Slots behind a hole that one call looks at.
const MAX_SCAN: u64 = 8;

const fn stamp(frame: u64, state: u64) -> u64 {
    (frame << 2) | state
}

struct Slot {
    stamp: AtomicU64,
    /// Length and metadata of the built frame.
    built: UnsafeCell<Built>,
}

#[derive(Clone, Copy)]
struct Built {
    head: u32,
    /// Of what the slot holds, headers included.
    len: u32,
    meta: TxMeta,
    /// What follows that in the frame.
    payload: Option<BorrowedPayload>,
}

/// The slots and their memory.
pub(crate) struct TxRing {
    slots: Box<[Slot]>,
    memory: Box<[UnsafeCell<u8>]>,
    slot_len: usize,
    sent: CachePadded<AtomicU64>,
    /// Of each slot, what it holds.
    shadow: Shadow,
}

// SAFETY: `built` and the slot's memory are written only by who moved the stamp from Free to Taken,
// and read only by the one `Transmitter` after it saw Ready. What frames carry besides may be read
// by any thread.
unsafe impl Sync for TxRing {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for TxRing {}

/// Frame `0` was built already, or is not due: two replicas disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Diverged(pub(crate) u64);

impl TxRing {
    /// `slots` (a power of two) frames of at most `slot_len` bytes, and the one handle that sends
    /// them.
    pub(crate) fn new(slots: usize, slot_len: usize) -> (Arc<TxRing>, Transmitter) {
        assert!(slots.is_power_of_two());
        let slot_len = slot_len.next_multiple_of(64);
        let zeros = vec![0u8; slots * slot_len].into_boxed_slice();
        // SAFETY: `UnsafeCell<u8>` has the layout of `u8`, and the box is the only owner.
        let memory = unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [UnsafeCell<u8>]) };
        let slot = |k: usize| Slot {
            stamp: AtomicU64::new(stamp(k as u64, FREE)),
            built: UnsafeCell::new(Built {
                head: 0,
                len: 0,
                meta: TxMeta::default(),
                payload: None,
            }),
        };
        let ring = Arc::new(TxRing {
            slots: (0..slots).map(slot).collect(),
            memory,
            slot_len,
            sent: CachePadded::new(AtomicU64::new(0)),
            shadow: Shadow::new(slots),
        });
        let transmitter = Transmitter {
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

    fn index(&self, frame: u64) -> usize {
        (frame & (self.slots.len() as u64 - 1)) as usize
    }

    /// Takes the slot of frame `frame`, to build it.
    ///
    /// # Errors
    /// [`Diverged`] if somebody else took it, or its time has not come.
    #[inline]
    pub(crate) fn claim(&self, frame: u64) -> Result<TxClaim<'_>, Diverged> {
        let slot = &self.slots[self.index(frame)];
        slot.stamp
            .compare_exchange(
                stamp(frame, FREE),
                stamp(frame, TAKEN),
                // ORDERING: Acquire, pairs with the Release in `Transmitter::free`: the device has
                // done with what the slot held before.
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .map_err(|_| Diverged(frame))?;
        Ok(TxClaim {
            ring: self,
            frame,
            published: false,
        })
    }

    /// Frames 0 up to this have been taken by the device.
    #[inline]
    pub(crate) fn sent(&self) -> u64 {
        // ORDERING: Acquire, pairs with the Release in `Transmitter::advance`: whoever learns of
        // this count, be it through the log, finds the slots free.
        self.sent.load(Ordering::Acquire)
    }

    /// Frames that are numbered by now, and taken by somebody, are below this.
    pub(crate) fn claimed(&self) -> u64 {
        let claimed = |slot: &Slot| {
            // ORDERING: Acquire, as in `Transmitter::ready`, though nothing is read.
            let word = slot.stamp.load(Ordering::Acquire);
            let frame = word >> 2;
            if word == stamp(frame, FREE) {
                0
            } else {
                frame + 1
            }
        };
        self.slots.iter().map(claimed).max().unwrap_or(0)
    }

    /// Asks the processor for the first `len` bytes of a slot that is to be written soon.
    #[inline]
    pub(crate) fn fetch(&self, frame: u64, len: usize) {
        let index = self.index(frame);
        prefetch_of(&self.slots[index]);
        let start = UnsafeCell::raw_get(&raw const self.memory[index * self.slot_len]);
        prefetch_at(start, len.min(self.slot_len));
    }

    #[inline(always)]
    fn bytes(&self, frame: u64) -> *mut u8 {
        let at = self.index(frame) * self.slot_len;
        UnsafeCell::raw_get(&raw const self.memory[at])
    }
}

/// A slot in the hands of who builds its frame. Dropped unpublished, it is as if nobody had begun.
pub(crate) struct TxClaim<'a> {
    ring: &'a TxRing,
    frame: u64,
    published: bool,
}

impl TxClaim<'_> {
    /// The slot's memory; what it holds is left from an earlier frame.
    #[inline]
    pub(crate) fn buffer(&mut self) -> &mut [u8] {
        self.ring.shadow.write(self.ring.index(self.frame), 1);
        // SAFETY: the stamp says Taken, and only the one who made it so has this claim. The memory
        // is `slot_len` bytes within the ring's, and initialised since `new`.
        unsafe { core::slice::from_raw_parts_mut(self.ring.bytes(self.frame), self.ring.slot_len) }
    }

    /// The first `len` bytes are the frame, `head` of them headers.
    #[inline(always)]
    pub(crate) fn publish(self, head: usize, len: usize, meta: TxMeta) {
        assert!(head <= len);
        self.store(head, len, meta, None);
    }

    /// The first `head` bytes are the frame's headers, and what it carries lies elsewhere.
    #[inline]
    pub(crate) fn publish_with_payload(self, head: usize, carried: BorrowedPayload, meta: TxMeta) {
        self.store(head, head, meta, Some(carried));
    }

    #[inline(always)]
    fn store(mut self, head: usize, len: usize, meta: TxMeta, payload: Option<BorrowedPayload>) {
        assert!(len <= self.ring.slot_len);
        let index = self.ring.index(self.frame);
        let slot = &self.ring.slots[index];
        self.ring.shadow.write(index, 1);
        // SAFETY: as in `buffer`.
        unsafe {
            *slot.built.get() = Built {
                head: head as u32,
                len: len as u32,
                meta,
                payload,
            };
        }
        self.published = true;
        // ORDERING: Release, pairs with the Acquire in `Transmitter::ready`.
        slot.stamp
            .store(stamp(self.frame, READY), Ordering::Release);
    }
}

impl Drop for TxClaim<'_> {
    fn drop(&mut self) {
        if !self.published {
            let slot = &self.ring.slots[self.ring.index(self.frame)];
            // ORDERING: Release, pairs with the Acquire in `claim`: the next one writes after us.
            slot.stamp.store(stamp(self.frame, FREE), Ordering::Release);
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
    /// Frames behind the prefix that are sent.
    beyond: u64,
    /// Frames that were ever sent past a hole.
    passed: u64,
    /// What the device took, if anybody wants to know.
    journal: Option<Vec<Option<u64>>>,
}

impl Transmitter {
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

    /// Frames below `below` that are ready, from the first unsent one on: as many as `out` holds,
    /// up to the first that is not.
    pub(crate) fn ready<'a, const N: usize>(
        &'a self,
        below: u64,
        out: &mut ArrayVec<TxFrame<'a>, N>,
    ) {
        let most = self.next + out.remaining_capacity() as u64;
        for frame in self.next..most.min(below) {
            let slot = &self.ring.slots[self.ring.index(frame)];
            // ORDERING: Acquire, pairs with the Release in `TxClaim::publish`.
            if slot.stamp.load(Ordering::Acquire) != stamp(frame, READY) {
                return;
            }
            out.push(self.frame(slot, frame));
        }
    }

    /// Frames that are ready behind the first unsent one, which is not; and their numbers.
    #[cold]
    pub(crate) fn ready_behind<'a, const N: usize>(
        &'a self,
        out: &mut ArrayVec<TxFrame<'a>, N>,
    ) -> ArrayVec<u64, N> {
        let mut picked = ArrayVec::new();
        for frame in self.next + 1..self.next + self.ring.slots.len() as u64 {
            let slot = &self.ring.slots[self.ring.index(frame)];
            // ORDERING: Acquire, as in `ready`.
            if slot.stamp.load(Ordering::Acquire) == stamp(frame, READY) {
                if out.is_full() {
                    break;
                }
                out.push(self.frame(slot, frame));
                picked.push(frame);
            }
        }
        picked
    }

    /// Frame `frame`, which is ready in `slot`.
    #[inline(always)]
    fn frame<'a>(&'a self, slot: &'a Slot, frame: u64) -> TxFrame<'a> {
        self.ring.shadow.read(self.ring.index(frame), 1);
        // SAFETY: the caller saw Ready, and it stays so until `advance` or `pass`, which need this
        // handle mutably; until then nobody writes the slot.
        let (built, bytes) = unsafe {
            let built = *slot.built.get();
            let bytes = core::slice::from_raw_parts(self.ring.bytes(frame), built.len as usize);
            (built, bytes)
        };
        let (head, mut payload) = bytes.split_at(built.head as usize);
        if let Some(carried) = built.payload {
            // SAFETY: the frame is not sent before `advance` or `pass`, as above. The streams are
            // part of the world, and whoever has this handle has the world.
            payload = unsafe { carried.bytes() };
        }
        TxFrame {
            head,
            payload,
            meta: built.meta,
        }
    }

    /// Whether a frame is ready.
    pub(crate) fn any_ready(&self) -> bool {
        let slot = &self.ring.slots[self.ring.index(self.next)];
        // ORDERING: Acquire, as in `ready`.
        slot.stamp.load(Ordering::Acquire) == stamp(self.next, READY)
    }

    /// `ready` found nothing. Looks at some of the slots behind, and says whether this is a hole to
    /// send past.
    pub(crate) fn look_behind(&mut self) -> bool {
        let hole = &mut self.hole;
        if hole.at != self.next {
            *hole = Hole {
                at: self.next,
                ..Hole::default()
            };
        }
        hole.calls = hole.calls.saturating_add(1);
        if hole.calls < self.calls {
            return false;
        }
        for _ in 0..MAX_SCAN {
            if hole.ready >= self.past {
                return true;
            }
            hole.looked += 1;
            if hole.looked >= self.ring.slots.len() as u64 {
                (hole.looked, hole.ready) = (0, 0);
                return false;
            }
            let frame = self.next + hole.looked;
            let slot = &self.ring.slots[self.ring.index(frame)];
            // ORDERING: Relaxed: only counted here; who sends it looks again.
            let found = slot.stamp.load(Ordering::Relaxed);
            hole.ready += u64::from(found == stamp(frame, READY) || found == stamp(frame, SENT));
        }
        false
    }

    /// The device took the first `count` of what `ready` gave.
    pub(crate) fn advance(&mut self, count: usize) {
        if let Some(journal) = &mut self.journal {
            journal.extend((self.next..self.next + count as u64).map(Some));
        }
        for _ in 0..count {
            self.free(READY);
        }
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
            let slot = &self.ring.slots[self.ring.index(frame)];
            assert_eq!(slot.stamp.load(Ordering::Relaxed), stamp(frame, READY));
            // ORDERING: Relaxed: until the prefix has passed it, the slot is the transmitter's.
            slot.stamp.store(stamp(frame, SENT), Ordering::Relaxed);
        }
        self.beyond += frames.len() as u64;
        self.passed += frames.len() as u64;
    }

    /// The prefix grew, perhaps up to frames that were sent before.
    #[cold]
    fn close_up(&mut self) {
        while self.beyond > 0 {
            let slot = &self.ring.slots[self.ring.index(self.next)];
            if slot.stamp.load(Ordering::Relaxed) != stamp(self.next, SENT) {
                break;
            }
            self.free(SENT);
            self.beyond -= 1;
        }
    }

    /// The slot of the first unsent frame, which has left in `state`, may be used again.
    #[inline]
    fn free(&mut self, state: u64) {
        let slots = self.ring.slots.len() as u64;
        let slot = &self.ring.slots[self.ring.index(self.next)];
        assert_eq!(slot.stamp.load(Ordering::Relaxed), stamp(self.next, state));
        // ORDERING: Release, pairs with the Acquire in `claim`: we have done with the slot.
        slot.stamp
            .store(stamp(self.next + slots, FREE), Ordering::Release);
        self.next += 1;
    }
}

#[cfg(all(test, not(netstack_loom)))]
mod tests {
    use super::*;
    use crate::io::sync::interrupted;

    fn build(ring: &TxRing, frame: u64, bytes: &[u8]) {
        let mut claim = ring.claim(frame).unwrap();
        claim.buffer()[..bytes.len()].copy_from_slice(bytes);
        claim.publish(1, bytes.len(), TxMeta::default());
    }

    const CALLS: u32 = 16;

    fn whole(frames: &[TxFrame<'_>]) -> Vec<Vec<u8>> {
        let both = frames.iter().map(|f| [f.head, f.payload].concat());
        both.collect()
    }

    fn send_all(transmitter: &mut Transmitter) -> Vec<Vec<u8>> {
        let mut frames = ArrayVec::<_, 8>::new();
        transmitter.ready(u64::MAX, &mut frames);
        let mut sent = whole(&frames);
        drop(frames);
        if !sent.is_empty() {
            transmitter.advance(sent.len());
        } else if transmitter.look_behind() {
            let mut frames = ArrayVec::<_, 8>::new();
            let picked = transmitter.ready_behind(&mut frames);
            sent = whole(&frames);
            drop(frames);
            transmitter.pass(&picked);
        }
        sent
    }

    #[test]
    fn frames_leave_past_a_hole_once_enough_are_ready_behind_it_and_each_once() {
        let (ring, mut transmitter) = TxRing::new(8, 64);
        transmitter.send_past(3, CALLS);
        assert_eq!(transmitter.journal(), []);
        for k in [1, 2, 4] {
            build(&ring, k, &[b'a', k as u8]);
        }
        for _ in 1..CALLS {
            assert_eq!(send_all(&mut transmitter), Vec::<Vec<u8>>::new());
        }
        assert_eq!(send_all(&mut transmitter).len(), 3);
        assert_eq!((ring.sent(), transmitter.passed()), (0, 3));
        // Their slots are not free, and nothing goes twice.
        assert_eq!(ring.claim(9).err(), Some(Diverged(9)));
        assert_eq!(send_all(&mut transmitter), Vec::<Vec<u8>>::new());
        build(&ring, 0, b"a0");
        assert_eq!(send_all(&mut transmitter), [b"a0"]);
        assert_eq!(ring.sent(), 3);
        build(&ring, 5, b"a5");
        assert_eq!(send_all(&mut transmitter), Vec::<Vec<u8>>::new());
        build(&ring, 3, b"a3");
        assert_eq!(send_all(&mut transmitter), [b"a3"]);
        assert_eq!(send_all(&mut transmitter), [b"a5"]);
        assert_eq!((ring.sent(), transmitter.passed()), (6, 3));
        transmitter.note_unnumbered();
        let noted = [Some(1), Some(2), Some(4), Some(0), Some(3), Some(5), None];
        assert_eq!(transmitter.journal(), noted);
        build(&ring, 9, b"a9");
        build(&ring, 6, b"a6");
        assert_eq!(send_all(&mut transmitter), [b"a6"]);
    }

    #[test]
    fn a_hole_that_few_frames_wait_behind_is_waited_for() {
        let (ring, mut transmitter) = TxRing::new(8, 64);
        transmitter.send_past(3, CALLS);
        build(&ring, 1, b"b1");
        build(&ring, 7, b"b7");
        for _ in 0..4 * CALLS {
            assert_eq!(send_all(&mut transmitter), Vec::<Vec<u8>>::new());
        }
        build(&ring, 0, b"b0");
        assert_eq!(send_all(&mut transmitter), [b"b0", b"b1"]);
    }

    #[test]
    fn frames_leave_in_the_order_of_their_numbers_however_they_were_built() {
        let (ring, mut transmitter) = TxRing::new(4, 64);
        build(&ring, 1, b"b1");
        assert_eq!(send_all(&mut transmitter), Vec::<Vec<u8>>::new());
        build(&ring, 0, b"a0");
        assert_eq!(send_all(&mut transmitter), [b"a0", b"b1"]);
        assert_eq!(ring.sent(), 2);
        for k in 2..6 {
            build(&ring, k, b"xx");
        }
        assert_eq!(send_all(&mut transmitter).len(), 4);
    }

    #[test]
    fn a_second_builder_of_a_frame_is_found_out() {
        let (ring, mut transmitter) = TxRing::new(4, 64);
        build(&ring, 0, b"a0");
        assert_eq!(ring.claim(0).err(), Some(Diverged(0)));
        assert_eq!(ring.claim(4).err(), Some(Diverged(4)));
        send_all(&mut transmitter);
        assert_eq!(ring.claim(0).err(), Some(Diverged(0)));
        assert!(ring.claim(4).is_ok());
    }

    #[test]
    fn of_two_builders_one_takes_the_slot_wherever_the_other_comes_in_between() {
        let claim = |ring: &TxRing| ring.claim(0).map(core::mem::forget);
        for step in 0.. {
            let (ring, _transmitter) = TxRing::new(4, 64);
            let same = Arc::clone(&ring);
            let (one, other) = interrupted(step, move || claim(&same), || claim(&ring));
            let Some(other) = other else {
                assert!(step > 0, "a slot is taken without any access");
                break;
            };
            let both = [one, other];
            let taken = both.iter().filter(|claim| claim.is_ok()).count();
            assert_eq!(taken, 1, "interrupted before access {step}: {both:?}");
        }
    }

    #[test]
    fn of_threads_that_want_every_frame_one_builds_each() {
        const FRAMES: u64 = 20_000;
        let (ring, mut transmitter) = TxRing::new(64, 64);
        let build_all = || {
            let mut built = 0;
            for frame in 0..FRAMES {
                while frame >= ring.sent() + 64 {
                    std::thread::yield_now();
                }
                if let Ok(claim) = ring.claim(frame) {
                    claim.publish(0, 8, TxMeta::default());
                    built += 1;
                }
            }
            built
        };
        let built: u64 = std::thread::scope(|scope| {
            let builders = [0; 3].map(|_| scope.spawn(build_all));
            let mut sent = 0;
            while sent < FRAMES {
                sent += send_all(&mut transmitter).len() as u64;
            }
            builders.map(|builder| builder.join().unwrap()).iter().sum()
        });
        assert_eq!(built, FRAMES);
    }

    #[test]
    fn a_claim_dropped_unpublished_can_be_taken_again() {
        let (ring, mut transmitter) = TxRing::new(4, 64);
        drop(ring.claim(0).unwrap());
        build(&ring, 0, b"a0");
        assert_eq!(send_all(&mut transmitter), [b"a0"]);
    }

    #[test]
    fn a_borrowed_payload_is_sent_from_the_send_ring() {
        use crate::config::Limits;
        use crate::io::stream::Streams;
        use crate::log::request::ConnId;
        let (ring, mut transmitter) = TxRing::new(4, 64);
        let limits = Limits {
            connections: 1,
            send_buffer: 1024,
            ..Limits::default()
        };
        let streams = Streams::new(&limits, 4, std::net::Ipv4Addr::LOCALHOST);
        let conn = ConnId {
            index: 0,
            generation: 0,
        };
        let stream = streams.get(conn).unwrap();
        assert_eq!(stream.write(b"carried"), 7);
        for (frame, head) in [(0, b"h0"), (1, b"h1")] {
            let mut claim = ring.claim(frame).unwrap();
            claim.buffer()[..2].copy_from_slice(head);
            let carried = stream.borrow_payload(frame, 3).unwrap();
            claim.publish_with_payload(2, carried, TxMeta::default());
        }
        assert!(
            stream.borrow_payload(1023, 2).is_none(),
            "one at the end of the ring, and one at its beginning"
        );
        assert_eq!((ring.claimed(), ring.sent()), (2, 0));
        assert_eq!(send_all(&mut transmitter), [b"h0car", b"h1arr"]);
        assert_eq!((ring.claimed(), ring.sent()), (0, 2));
    }
}

/// Models of the slots under loom (`.ci/run`). Each says what it would catch.
#[cfg(all(test, netstack_loom))]
mod loom_models {
    use loom::thread;

    use super::*;

    /// Builds frame `frame`, unless somebody else has it.
    fn build(ring: &TxRing, frame: u64) -> bool {
        let Ok(mut claim) = ring.claim(frame) else {
            return false;
        };
        claim.buffer()[0] = frame as u8;
        claim.publish(0, 1, TxMeta::default());
        true
    }

    /// Sends what is ready once, and returns the first byte of each frame.
    fn send(transmitter: &mut Transmitter) -> Vec<u8> {
        let mut frames = ArrayVec::<_, 4>::new();
        transmitter.ready(u64::MAX, &mut frames);
        let sent: Vec<u8> = frames.iter().map(|frame| frame.payload[0]).collect();
        drop(frames);
        if !sent.is_empty() {
            transmitter.advance(sent.len());
        }
        sent
    }

    /// Catches: a slot taken without its compare-and-swap; a frame sent before it is written,
    /// because `publish` or `ready` is Relaxed.
    #[test]
    fn two_builders_of_one_frame_and_the_transmitter() {
        loom::model(|| {
            let (ring, mut transmitter) = TxRing::new(1, 64);
            let builders = [0; 2].map(|_| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || build(&ring, 0))
            });
            let mut sent = send(&mut transmitter);
            let built = builders.map(|builder| builder.join().unwrap());
            assert!(built[0] != built[1]);
            sent.extend(send(&mut transmitter));
            assert_eq!(sent, [0]);
        });
    }

    /// Catches: a slot written again while the device still reads it, because `free` or `claim` is
    /// Relaxed; a frame that takes the slot before its time.
    #[test]
    fn a_slot_is_built_in_again_when_the_device_has_done_with_it() {
        loom::model(|| {
            let (ring, mut transmitter) = TxRing::new(1, 64);
            assert!(build(&ring, 0));
            let builder = {
                let ring = Arc::clone(&ring);
                thread::spawn(move || build(&ring, 1))
            };
            let mut sent = send(&mut transmitter);
            if !builder.join().unwrap() {
                assert!(build(&ring, 1));
            }
            sent.extend(send(&mut transmitter));
            assert_eq!(sent, [0, 1]);
        });
    }

    /// Catches: what a builder that gave up had written being written over by the next one at the
    /// same time, because the end of a claim is Relaxed.
    #[test]
    fn a_claim_that_is_given_up_is_taken_over() {
        loom::model(|| {
            let (ring, mut transmitter) = TxRing::new(1, 64);
            let gives_up = {
                let ring = Arc::clone(&ring);
                thread::spawn(move || {
                    if let Ok(mut claim) = ring.claim(0) {
                        claim.buffer()[0] = 9;
                    }
                })
            };
            let built = build(&ring, 0);
            gives_up.join().unwrap();
            assert!(built || build(&ring, 0));
            assert_eq!(send(&mut transmitter), [0]);
        });
    }
}
