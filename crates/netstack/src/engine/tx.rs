//! Numbered transmit slots: outgoing frame k is built in slot k modulo their number.
//!
//! `apply` numbers frames, and never one at or past `sent` plus the number of slots, where `sent` is a count
//! that the transmit pump has published. So the slot of a numbered frame is free when somebody comes to
//! build it, and nobody waits. Each slot has a stamp:
//!
//! ```text
//! Free(k)  --claim, a CAS by whoever builds frame k-->  Taken(k)  --publish-->  Ready(k)
//!    ^                                                                            |
//!    '--- Free(k + slots): frame k and all before it have gone to the device ----'
//! ```
//!
//! # Sending past a hole
//!
//! A frame whose builder was interrupted in the middle holds up those behind it, of other connections, too.
//! When enough of them are ready, the transmitter sends past it: to the receiver that is a reordering, which
//! TCP bears. A frame sent so is `Sent(k)` until all before it have left, and is not sent again; `sent`, and
//! so credit and the use of slots, count the prefix alone.
//!
//! A second builder of the same frame finds the stamp moved on. That is no race for memory but a sign that
//! two replicas did not agree, and [`TxRing::claim`] says so.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use arrayvec::ArrayVec;
use crossbeam_utils::CachePadded;
use dominoes_drivers::{TxFrame, TxMeta};

use crate::engine::stream::prefetch_at;

const FREE: u64 = 0;
const TAKEN: u64 = 1;
const READY: u64 = 2;
const SENT: u64 = 3;

/// Slots behind a hole that one call looks at.
const LOOKS: u64 = 8;

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
    len: u32,
    meta: TxMeta,
}

/// The slots and their memory.
pub(crate) struct TxRing {
    slots: Box<[Slot]>,
    memory: Box<[UnsafeCell<u8>]>,
    slot_len: usize,
    sent: CachePadded<AtomicU64>,
}

// SAFETY: `built` and the slot's memory are written only by who moved the stamp from Free to Taken, and read
// only by the one `Transmitter` after it saw Ready.
unsafe impl Sync for TxRing {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for TxRing {}

/// Frame `0` was built already, or is not due: two replicas disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Diverged(pub(crate) u64);

impl TxRing {
    /// `slots` (a power of two) frames of at most `slot_len` octets, and the one handle that sends them.
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
            }),
        };
        let ring = Arc::new(TxRing {
            slots: (0..slots).map(slot).collect(),
            memory,
            slot_len,
            sent: CachePadded::new(AtomicU64::new(0)),
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

    #[inline]
    fn stamp_of(&self, frame: u64) -> &AtomicU64 {
        &self.slots[self.index(frame)].stamp
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
                // ORDERING: Acquire, pairs with the Release in `Transmitter::free`: the device has done
                // with what the slot held before.
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
        // ORDERING: Acquire, pairs with the Release in `Transmitter::advance`: whoever learns of this count,
        // be it through the log, finds the slots free.
        self.sent.load(Ordering::Acquire)
    }

    /// Asks the processor for the first `len` octets of a slot that is to be written soon.
    #[inline]
    pub(crate) fn fetch(&self, frame: u64, len: usize) {
        super::stream::prefetch_of(&self.slots[self.index(frame)]);
        prefetch_at(self.bytes(frame), len.min(self.slot_len));
    }

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
        // SAFETY: the stamp says Taken, and only the one who made it so has this claim. The memory is
        // `slot_len` octets within the ring's, and initialised since `new`.
        unsafe { core::slice::from_raw_parts_mut(self.ring.bytes(self.frame), self.ring.slot_len) }
    }

    /// The first `len` octets are the frame, `head` of them headers.
    #[inline]
    pub(crate) fn publish(mut self, head: usize, len: usize, meta: TxMeta) {
        assert!(head <= len && len <= self.ring.slot_len);
        let slot = &self.ring.slots[self.ring.index(self.frame)];
        // SAFETY: as in `buffer`.
        unsafe {
            *slot.built.get() = Built {
                head: head as u32,
                len: len as u32,
                meta,
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
    /// Calls that found it.
    calls: u32,
    /// Slots looked at behind it.
    looked: u64,
    /// Frames among them that could go, or are gone.
    ready: u64,
}

/// Which frames [`Transmitter::ready`] gave, so that [`Transmitter::advance`] knows which were taken.
pub(crate) struct Picked<const N: usize> {
    /// Frames from `next` on, without a gap.
    straight: usize,
    /// All of them, if there are gaps.
    with_gaps: ArrayVec<u64, N>,
}

/// Sends what is ready, in the order of the numbers. There is one per ring.
pub(crate) struct Transmitter {
    ring: Arc<TxRing>,
    next: u64,
    /// Frames that must be ready behind a hole before they are sent past it.
    past: u64,
    /// Calls that must find a hole before anything behind it is looked at: most are filled within a moment, and
    /// work that is late is stolen, which is better.
    calls: u32,
    hole: Hole,
    /// Frames behind the prefix that are sent.
    beyond: u64,
    /// Frames that were ever sent past a hole.
    passed: u64,
    journal: Option<Vec<u64>>,
}

impl Transmitter {
    /// Sends past a hole once `calls` calls have found it and `frames` frames are ready behind it; the default is
    /// never.
    pub(crate) fn send_past(&mut self, frames: u64, calls: u32) {
        self.past = frames.max(1);
        self.calls = calls;
    }

    /// Frames that were sent past a hole so far.
    pub(crate) fn passed(&self) -> u64 {
        self.passed
    }

    /// Notes the numbers of frames from now on, as the device takes them; returns those noted so far.
    pub(crate) fn journal(&mut self) -> Vec<u64> {
        self.journal.replace(Vec::new()).unwrap_or_default()
    }

    /// Frames that can be sent, the first unsent one first: as many as `out` holds, up to the first that is not
    /// ready. If that one has been waited for long enough, also those behind it.
    #[inline]
    pub(crate) fn ready<'a, const N: usize>(
        &'a self,
        out: &mut ArrayVec<TxFrame<'a>, N>,
    ) -> Picked<N> {
        let mut picked = Picked {
            straight: 0,
            with_gaps: ArrayVec::new(),
        };
        if self.beyond > 0 || self.hole.ready >= self.past {
            self.ready_with_gaps(out, &mut picked);
            return picked;
        }
        for frame in self.next..self.next + out.remaining_capacity() as u64 {
            // ORDERING: Acquire, pairs with the Release in `TxClaim::publish`.
            if self.ring.stamp_of(frame).load(Ordering::Acquire) != stamp(frame, READY) {
                break;
            }
            out.push(self.frame(frame));
            picked.straight += 1;
        }
        picked
    }

    #[cold]
    fn ready_with_gaps<'a, const N: usize>(
        &'a self,
        out: &mut ArrayVec<TxFrame<'a>, N>,
        picked: &mut Picked<N>,
    ) {
        let passing = self.hole.ready >= self.past;
        for frame in self.next..self.next + self.ring.slots.len() as u64 {
            // ORDERING: Acquire, as in `ready`.
            let found = self.ring.stamp_of(frame).load(Ordering::Acquire);
            if found == stamp(frame, READY) {
                if out.is_full() {
                    return;
                }
                out.push(self.frame(frame));
                picked.with_gaps.push(frame);
            } else if found != stamp(frame, SENT) && !passing {
                return;
            }
        }
    }

    /// A frame that is ready.
    #[inline]
    fn frame(&self, frame: u64) -> TxFrame<'_> {
        let slot = &self.ring.slots[self.ring.index(frame)];
        // SAFETY: the caller saw Ready, and it stays so until `advance`, which needs this handle mutably; until
        // then nobody writes the slot.
        let (built, bytes) = unsafe {
            let built = *slot.built.get();
            let bytes = core::slice::from_raw_parts(self.ring.bytes(frame), built.len as usize);
            (built, bytes)
        };
        let (head, payload) = bytes.split_at(built.head as usize);
        TxFrame {
            head,
            payload,
            meta: built.meta,
        }
    }

    /// Whether a frame is ready.
    pub(crate) fn any_ready(&self) -> bool {
        // ORDERING: Acquire, as in `ready`.
        self.ring.stamp_of(self.next).load(Ordering::Acquire) == stamp(self.next, READY)
    }

    /// `ready` found nothing: some of the slots behind are looked at, to see whether this is a hole.
    #[inline]
    pub(crate) fn look_behind(&mut self) {
        self.hole.calls = self.hole.calls.saturating_add(1);
        if self.hole.calls < self.calls || self.hole.ready >= self.past {
            return;
        }
        for _ in 0..LOOKS {
            self.hole.looked += 1;
            if self.hole.looked >= self.ring.slots.len() as u64 {
                self.hole.looked = 0;
                self.hole.ready = 0;
                return;
            }
            let frame = self.next + self.hole.looked;
            // ORDERING: Relaxed: only counted here; who sends it looks again.
            let found = self.ring.stamp_of(frame).load(Ordering::Relaxed);
            if found == stamp(frame, READY) || found == stamp(frame, SENT) {
                self.hole.ready += 1;
                if self.hole.ready >= self.past {
                    return;
                }
            }
        }
    }

    /// The device took the first `count` of what `ready` gave.
    pub(crate) fn advance<const N: usize>(&mut self, picked: &Picked<N>, count: usize) {
        if count == 0 {
            return;
        }
        if let Some(journal) = &mut self.journal {
            let straight = self.next..self.next + picked.straight as u64;
            let frames = straight.chain(picked.with_gaps.iter().copied());
            journal.extend(frames.take(count));
        }
        let before = self.next;
        for &frame in picked.with_gaps.iter().take(count) {
            let word = self.ring.stamp_of(frame);
            assert_eq!(word.load(Ordering::Relaxed), stamp(frame, READY));
            // ORDERING: Relaxed: until the prefix has passed it, the slot is the transmitter's.
            word.store(stamp(frame, SENT), Ordering::Relaxed);
            self.beyond += 1;
        }
        for _ in 0..picked.straight.min(count) {
            self.free(READY);
        }
        while self.beyond > 0
            && self.ring.stamp_of(self.next).load(Ordering::Relaxed) == stamp(self.next, SENT)
        {
            self.free(SENT);
            self.beyond -= 1;
        }
        let behind = picked.with_gaps.iter().take(count);
        self.passed += behind.filter(|&&frame| frame >= self.next).count() as u64;
        if self.next != before {
            self.hole = Hole::default();
        }
        // ORDERING: Release, pairs with the Acquire in `TxRing::sent`.
        self.ring.sent.store(self.next, Ordering::Release);
    }

    /// The slot of the first unsent frame, which has left in `state`, may be used again.
    #[inline]
    fn free(&mut self, state: u64) {
        let slots = self.ring.slots.len() as u64;
        let word = self.ring.stamp_of(self.next);
        assert_eq!(word.load(Ordering::Relaxed), stamp(self.next, state));
        // ORDERING: Release, pairs with the Acquire in `claim`: we have done with the slot.
        word.store(stamp(self.next + slots, FREE), Ordering::Release);
        self.next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLS: u32 = 16;

    fn build(ring: &TxRing, frame: u64, bytes: &[u8]) {
        let mut claim = ring.claim(frame).unwrap();
        claim.buffer()[..bytes.len()].copy_from_slice(bytes);
        claim.publish(1, bytes.len(), TxMeta::default());
    }

    fn send_all(transmitter: &mut Transmitter) -> Vec<Vec<u8>> {
        let mut frames = ArrayVec::<_, 8>::new();
        let picked = transmitter.ready(&mut frames);
        let sent: Vec<_> = frames
            .iter()
            .map(|f| [f.head, f.payload].concat())
            .collect();
        drop(frames);
        transmitter.advance(&picked, sent.len());
        if sent.is_empty() {
            transmitter.look_behind();
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
        for _ in 0..CALLS {
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
        assert_eq!(send_all(&mut transmitter), [b"a3", b"a5"]);
        assert_eq!((ring.sent(), transmitter.passed()), (6, 3));
        assert_eq!(transmitter.journal(), [1, 2, 4, 0, 3, 5]);
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
    fn a_claim_dropped_unpublished_can_be_taken_again() {
        let (ring, mut transmitter) = TxRing::new(4, 64);
        drop(ring.claim(0).unwrap());
        build(&ring, 0, b"a0");
        assert_eq!(send_all(&mut transmitter), [b"a0"]);
    }
}
