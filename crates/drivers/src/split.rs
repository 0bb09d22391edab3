//! Divides one device into parts: a classifier assigns each received frame to a part, and all
//! parts send through the same device.
//!
//! A part that needs a half of the device (receiving or sending) takes it for a moment by one
//! compare-and-swap; no part waits for it. The part that has the receiving half keeps its own
//! frames and puts the others into the inboxes of their parts. An inbox is a lock-free ring: the
//! part with the device writes it, its owner reads it. When an inbox is full, that part loses
//! frames, as a queue of a network card would, and counts them; other parts are not affected.
//!
//! Parts sleep separately. The last one to fall asleep sleeps in the device. A part that wakes up
//! for another reason ends that sleep and receives for all parts while it is awake. So a frame for
//! a sleeping part wakes at most two threads.
//!
//! A card with one queue per core needs no such hand-over: open one device per queue instead.

use std::fmt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::waker::Event;
use crate::{
    AddressFilter, Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, Frame,
    RxStats, TxFrame, TxStats, checked,
};

/// Default capacity of a part's inbox, in frames.
pub const INBOX: usize = 4096;
/// Minimum capacity, in frames, of the queue of frames to release. When it is full, frames are
/// freed.
const BACK: usize = 1024;
/// Frames that a part keeps to release them when it next has the device.
const KEPT: usize = 256;
/// Claims per call while the device yields frames only for other parts.
const ROUNDS: usize = 4;
/// Longest sleep of a part while no thread sleeps in the device, since the thread that is awake
/// may be delayed.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// No part sleeps in the device.
const NOBODY: usize = usize::MAX;

/// The part that gets a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The part of this number. If there is none, the frame is dropped.
    One(usize),
    /// Every part gets a copy.
    All,
}

/// Chooses the target of a frame by its bytes, which begin with the Ethernet header and are
/// otherwise arbitrary.
pub type Classify = dyn Fn(&[u8]) -> Target + Send + Sync;

/// Divides a device into `parts` parts, each with an inbox for `inbox` frames. Either number
/// counts as 1 if it is 0.
///
/// ```
/// use dominoes_drivers::memory::{self, MemoryConfig};
/// use dominoes_drivers::split::{INBOX, Target, split};
/// use dominoes_drivers::{Device, TxFrame};
///
/// let (left, right) = memory::pair(MemoryConfig::default());
/// let (_, mut peer) = Box::new(left).split();
/// // By the last byte of the destination.
/// let parts = split(Box::new(right), 2, INBOX, |frame| Target::One(frame[5].into()));
/// let mut parts = parts.into_iter().map(|part| Box::new(part).split().0);
/// let (mut first, mut second) = (parts.next().unwrap(), parts.next().unwrap());
///
/// let mut frame = [0; 60];
/// frame[5] = 1;
/// peer.transmit(&[TxFrame::new(&frame)])?;
/// let mut frames = Vec::new();
/// assert_eq!(first.claim(32, &mut frames)?, 0);
/// assert_eq!(second.claim(32, &mut frames)?, 1);
/// # Ok::<(), dominoes_drivers::DeviceError>(())
/// ```
pub fn split(
    device: Box<dyn Device>,
    parts: usize,
    inbox: usize,
    classify: impl Fn(&[u8]) -> Target + Send + Sync + 'static,
) -> Vec<SplitDevice> {
    let parts = parts.max(1);
    let (mut caps, mac) = (device.capabilities(), device.mac());
    caps.has_descriptor = false;
    let filter = device.address_filter();
    let (rx, tx) = device.split();
    let part = |_| {
        CachePadded::new(Part {
            event: Event::default(),
            dropped: AtomicU64::new(0),
        })
    };
    let (into, from): (Vec<_>, Vec<_>) = (0..parts).map(|_| RingBuffer::new(inbox.max(1))).unzip();
    let shared = Arc::new(SplitShared {
        waker: rx.waker(),
        rx: Mutex::new(SplitRxSide {
            device: rx,
            inboxes: into,
            batch: Vec::new(),
            sorted: (0..parts).map(|_| Vec::new()).collect(),
            back: Vec::new(),
        }),
        tx: Mutex::new(tx),
        parts: (0..parts).map(part).collect(),
        classify: Box::new(classify),
        awake: AtomicUsize::new(parts),
        sleeper: AtomicUsize::new(NOBODY),
        back: ArrayQueue::new(inbox.max(BACK)),
    });
    from.into_iter()
        .enumerate()
        .map(|(part, inbox)| SplitDevice {
            caps: caps.clone(),
            mac,
            filter: filter.clone(),
            part,
            inbox,
            shared: Arc::clone(&shared),
        })
        .collect()
}

/// Calls its closure when it is dropped, also because a device panics.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// State that all parts share.
struct SplitShared {
    rx: Mutex<SplitRxSide>,
    tx: Mutex<Box<dyn DeviceTx>>,
    parts: Box<[CachePadded<Part>]>,
    classify: Box<Classify>,
    /// Ends a sleep in the device.
    waker: DeviceWaker,
    /// Number of parts that are awake.
    awake: AtomicUsize,
    /// The part that sleeps in the device; `NOBODY` if none does.
    sleeper: AtomicUsize,
    /// Frames to release that their part could not release at once.
    back: ArrayQueue<Frame>,
}

/// The receiving half of the device, and buffers to work with it.
struct SplitRxSide {
    device: Box<dyn DeviceRx>,
    /// The inboxes of all parts. Each gets its frames of a batch at once.
    inboxes: Vec<Producer<Frame>>,
    batch: Vec<Frame>,
    sorted: Box<[Vec<Frame>]>,
    back: Vec<Frame>,
}

struct Part {
    event: Event,
    /// Frames dropped because the inbox was full.
    dropped: AtomicU64,
}

/// Takes a role unless another thread has it.
fn try_take<T>(role: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match role.try_lock() {
        Ok(side) => Some(side),
        // A panic lost at most the batch in hand, which is no worse than frames lost on the wire.
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl SplitShared {
    /// Puts frames into the inbox of `part` and notifies it. Empties `frames`.
    fn enqueue(&self, inbox: &mut Producer<Frame>, part: usize, frames: &mut Vec<Frame>) {
        let room = if inbox.is_abandoned() {
            0
        } else {
            inbox.slots()
        };
        let lost = frames.len().saturating_sub(room);
        frames.truncate(room);
        if lost > 0 {
            // ORDERING: Relaxed, a count.
            self.parts[part].dropped.fetch_add(lost as u64, Relaxed);
        }
        if let Ok(chunk) = inbox.write_chunk_uninit(frames.len()) {
            chunk.fill_from_iter(frames.drain(..));
        }
        self.parts[part].event.notify();
    }

    /// Leaves frames for the next thread that has the device, which releases them.
    fn leave(&self, frames: &mut Vec<Frame>) {
        for frame in frames.drain(..) {
            // A frame that finds the queue full is freed, and its pool makes a new buffer.
            let _ = self.back.push(frame);
        }
    }

    /// Releases frames that other parts left.
    fn give_back(&self, side: &mut SplitRxSide) {
        while let Some(frame) = self.back.pop() {
            side.back.push(frame);
        }
        if !side.back.is_empty() {
            checked::release(&mut *side.device, &mut side.back);
        }
    }

    /// Claims at most `max` frames from the device. Those for part `me` go to `out`, the others to
    /// their parts. Returns the number claimed.
    fn sort(
        &self,
        side: &mut SplitRxSide,
        me: usize,
        max: usize,
        out: &mut Vec<Frame>,
    ) -> Result<usize, DeviceError> {
        let SplitRxSide {
            device,
            inboxes,
            batch,
            sorted,
            ..
        } = side;
        let claimed = checked::claim(&mut **device, max, batch)?;
        for frame in batch.drain(..) {
            match (self.classify)(frame.bytes()) {
                Target::One(part) if part == me => out.push(frame),
                Target::One(part) => {
                    if let Some(frames) = sorted.get_mut(part) {
                        frames.push(frame);
                    }
                }
                Target::All => {
                    for (_, frames) in (0..).zip(&mut **sorted).filter(|(part, _)| *part != me) {
                        frames.push(frame.clone());
                    }
                    out.push(frame);
                }
            }
        }
        for (part, (frames, inbox)) in sorted.iter_mut().zip(inboxes).enumerate() {
            if !frames.is_empty() {
                self.enqueue(inbox, part, frames);
            }
        }
        Ok(claimed)
    }
}

/// One part of a device; made by [`split`].
pub struct SplitDevice {
    caps: Capabilities,
    mac: [u8; 6],
    filter: Option<Arc<dyn AddressFilter>>,
    part: usize,
    inbox: Consumer<Frame>,
    shared: Arc<SplitShared>,
}

impl Device for SplitDevice {
    fn capabilities(&self) -> Capabilities {
        self.caps.clone()
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn address_filter(&self) -> Option<Arc<dyn AddressFilter>> {
        self.filter.clone()
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        let rx = SplitRx {
            shared: Arc::clone(&self.shared),
            me: self.part,
            inbox: self.inbox,
            back: Vec::new(),
            stats: RxStats::default(),
        };
        let tx = SplitTx {
            shared: self.shared,
            stats: TxStats::default(),
        };
        (Box::new(rx), Box::new(tx))
    }
}

impl fmt::Debug for SplitDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplitDevice")
            .field("name", &self.caps.name)
            .field("part", &self.part)
            .finish_non_exhaustive()
    }
}

/// The receiving half of a part.
struct SplitRx {
    shared: Arc<SplitShared>,
    me: usize,
    inbox: Consumer<Frame>,
    /// Frames to release.
    back: Vec<Frame>,
    stats: RxStats,
}

impl SplitRx {
    fn part(&self) -> &Part {
        &self.shared.parts[self.me]
    }

    fn take_inbox(&mut self, most: usize, out: &mut Vec<Frame>) {
        let some = self.inbox.slots().min(most);
        if let Ok(frames) = self.inbox.read_chunk(some) {
            out.extend(frames);
        }
    }

    /// Releases frames that could not be released before. If another thread has the device, leaves
    /// them to that thread.
    fn clear(&mut self) {
        match try_take(&self.shared.rx) {
            Some(mut side) => checked::release(&mut *side.device, &mut self.back),
            None => self.shared.leave(&mut self.back),
        }
    }

    /// Sleeps in the device. `None` if another thread has the device; returns at once while any
    /// part is awake.
    fn sleep_in_device(&self, timeout: Option<Duration>) -> Option<Result<(), DeviceError>> {
        let shared = &*self.shared;
        let mut side = try_take(&shared.rx)?;
        shared.give_back(&mut side);
        // ORDERING: SeqCst, with the loads below, pairs with `wait` of a part that wakes up and
        // with wakers: they see which part sleeps here, or this thread sees their earlier writes.
        shared.sleeper.store(self.me, SeqCst);
        let sleeping = OnDrop(|| shared.sleeper.store(NOBODY, SeqCst));
        let part = self.part();
        let woken = part.event.take_wake() || !self.inbox.is_empty();
        let slept = if woken || shared.awake.load(SeqCst) > 0 {
            Ok(())
        } else {
            side.device.wait(timeout)
        };
        drop(sleeping);
        // The caller looks at everything after this call, so a pending wake has served its purpose.
        let _ = part.event.take_wake();
        Some(slept)
    }

    /// Sleeps until another part hands a frame over or the waker is used.
    fn sleep_aside(&self, mut timeout: Option<Duration>) {
        let (shared, part) = (&*self.shared, self.part());
        let wakes = part.event.wakes();
        loop {
            let covered = shared.sleeper.load(SeqCst) != NOBODY;
            let nap = match timeout {
                Some(left) if covered || left < LOOK_AGAIN => Some(left),
                None if covered => None,
                _ => Some(LOOK_AGAIN),
            };
            part.event.wait(nap, || !self.inbox.is_empty());
            let over = nap == timeout || part.event.wakes() != wakes || !self.inbox.is_empty();
            if over || shared.sleeper.load(SeqCst) == NOBODY {
                return;
            }
            timeout = timeout.map(|left| left.saturating_sub(LOOK_AGAIN));
        }
    }
}

impl DeviceRx for SplitRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let before = out.len();
        let shared = Arc::clone(&self.shared);
        let mut failed = Ok(());
        match try_take(&shared.rx) {
            None => self.take_inbox(max, out),
            Some(mut side) => {
                // Inboxes are filled only by the part that has the device, so the frames in the
                // inbox came before those claimed now.
                self.take_inbox(max, out);
                side.back.append(&mut self.back);
                shared.give_back(&mut side);
                for _ in 0..ROUNDS {
                    let room = max - (out.len() - before);
                    if room == 0 {
                        break;
                    }
                    match shared.sort(&mut side, self.me, room, out) {
                        Ok(0) => break,
                        Ok(_) if out.len() > before => break,
                        Ok(_) => {}
                        Err(error) => {
                            failed = Err(error);
                            break;
                        }
                    }
                }
            }
        }
        let claimed = &out[before..];
        self.stats.frames += claimed.len() as u64;
        self.stats.bytes += claimed.iter().map(|frame| frame.len() as u64).sum::<u64>();
        match failed {
            Err(error) if claimed.is_empty() => Err(error),
            _ => Ok(claimed.len()),
        }
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        self.back.append(frames);
        match try_take(&self.shared.rx) {
            Some(mut side) => checked::release(&mut *side.device, &mut self.back),
            None if self.back.len() > KEPT => self.shared.leave(&mut self.back),
            None => {}
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        let shared = Arc::clone(&self.shared);
        if !self.inbox.is_empty() || self.part().event.take_wake() {
            return Ok(());
        }
        if !self.back.is_empty() {
            self.clear();
        }
        let last = shared.awake.fetch_sub(1, SeqCst) == 1;
        let _asleep = OnDrop(|| {
            shared.awake.fetch_add(1, SeqCst);
            // Parts that are awake receive for all, and cannot while another part sleeps in the
            // device.
            if shared.sleeper.load(SeqCst) != NOBODY {
                shared.waker.wake();
            }
        });
        let slept = if last {
            self.sleep_in_device(timeout)
        } else {
            None
        };
        slept.unwrap_or_else(|| {
            self.sleep_aside(timeout);
            Ok(())
        })
    }

    fn waker(&self) -> DeviceWaker {
        let (shared, me) = (Arc::clone(&self.shared), self.me);
        DeviceWaker::new(move || {
            shared.parts[me].event.wake();
            if shared.sleeper.load(SeqCst) == me {
                shared.waker.wake();
            }
        })
    }

    fn stats(&self) -> RxStats {
        RxStats {
            // ORDERING: Relaxed, a count.
            dropped: self.part().dropped.load(Relaxed),
            wakes: self.part().event.wakes(),
            ..self.stats
        }
    }
}

impl Drop for SplitRx {
    fn drop(&mut self) {
        self.clear();
        self.shared.awake.fetch_sub(1, SeqCst);
        // Sleeping parts may rely on this one to receive for them; one of them may now be the last.
        for part in &self.shared.parts {
            part.event.wake();
        }
    }
}

/// The sending half of a part.
struct SplitTx {
    shared: Arc<SplitShared>,
    stats: TxStats,
}

impl DeviceTx for SplitTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        let Some(mut device) = try_take(&self.shared.tx) else {
            self.stats.busy += 1;
            return Ok(0);
        };
        let taken = checked::transmit(&mut **device, frames)?;
        drop(device);
        let lens = frames[..taken].iter().map(|frame| frame.len() as u64);
        self.stats.bytes += lens.sum::<u64>();
        self.stats.frames += taken as u64;
        self.stats.busy += u64::from(taken < frames.len());
        Ok(taken)
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{self, MemoryConfig, MemoryTx};
    use std::thread;

    /// The peer's sending half, and the receiving halves of `count` parts. A frame's first byte is
    /// the number of its part; 255 means all.
    fn parts(count: usize, inbox: usize) -> (MemoryTx, Vec<Box<dyn DeviceRx>>) {
        let (near, far) = memory::pair(MemoryConfig::default().queue_depth(4096));
        let classify = |frame: &[u8]| match frame.first() {
            Some(255) | None => Target::All,
            Some(part) => Target::One(usize::from(*part)),
        };
        let parts = split(Box::new(near), count, inbox, classify);
        let rx = parts.into_iter().map(|part| Box::new(part).split().0);
        (far.into_halves().1, rx.collect())
    }

    fn send(tx: &mut MemoryTx, part: u8, number: u32) {
        let mut frame = [part; 60];
        frame[20..24].copy_from_slice(&number.to_be_bytes());
        while tx.transmit(&[TxFrame::new(&frame)]).unwrap() == 0 {
            thread::yield_now();
        }
    }

    fn number(frame: &Frame) -> u32 {
        u32::from_be_bytes(frame[20..24].try_into().unwrap())
    }

    #[test]
    fn every_part_gets_its_own_in_order_and_all_get_what_is_for_all() {
        let (mut tx, mut rx) = parts(3, 64);
        for n in 0..30 {
            send(&mut tx, [0, 1, 2, 255, 7][n as usize % 5], n);
        }
        for (i, part) in rx.iter_mut().enumerate() {
            let mut got = Vec::new();
            while part.claim(4, &mut got).unwrap() > 0 {}
            let numbers: Vec<u32> = got.iter().map(number).collect();
            let wanted = (0..30).filter(|n| n % 5 == i as u32 || n % 5 == 3);
            assert_eq!(numbers, wanted.collect::<Vec<_>>(), "part {i}");
            part.release(&mut got);
        }
    }

    #[test]
    fn a_full_inbox_loses_frames_of_its_part_alone_and_counts_them() {
        let (mut tx, mut rx) = parts(2, 4);
        for n in 0..20 {
            send(&mut tx, (n % 2) as u8, n);
        }
        let mut got = Vec::new();
        while rx[0].claim(32, &mut got).unwrap() > 0 {}
        assert_eq!(got.len(), 10);
        got.clear();
        while rx[1].claim(32, &mut got).unwrap() > 0 {}
        assert_eq!(got.iter().map(number).collect::<Vec<_>>(), [1, 3, 5, 7]);
        assert_eq!((rx[0].stats().dropped, rx[1].stats().dropped), (0, 6));
    }

    #[test]
    fn frames_for_a_part_that_is_gone_are_dropped() {
        let (mut tx, mut rx) = parts(2, 4);
        rx.pop();
        for n in 0..20 {
            send(&mut tx, (n % 2) as u8, n);
        }
        let mut got = Vec::new();
        while rx[0].claim(32, &mut got).unwrap() > 0 {}
        assert_eq!(got.len(), 10);
    }

    /// Every part sleeps when it finds nothing; no frame may be overlooked.
    #[test]
    fn parts_that_sleep_are_woken_for_every_frame() {
        const FRAMES: u32 = 3000;
        for count in [1, 2, 4] {
            let (mut tx, rx) = parts(count, 4096);
            thread::scope(|scope| {
                for (i, mut part) in rx.into_iter().enumerate() {
                    scope.spawn(move || {
                        let mut got = Vec::new();
                        let mut next = i as u32;
                        while next < FRAMES {
                            if part.claim(8, &mut got).unwrap() == 0 {
                                part.wait(None).unwrap();
                            }
                            for frame in &got {
                                assert_eq!(number(frame), next);
                                next += count as u32;
                            }
                            part.release(&mut got);
                        }
                    });
                }
                for n in 0..FRAMES {
                    send(&mut tx, (n as usize % count) as u8, n);
                    if n % 64 == 0 {
                        thread::yield_now();
                    }
                }
            });
        }
    }

    /// A receiving half that panics while it sleeps.
    struct Panics(Box<dyn DeviceRx>);

    impl DeviceRx for Panics {
        fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
            self.0.claim(max, out)
        }

        fn release(&mut self, frames: &mut Vec<Frame>) {
            self.0.release(frames);
        }

        fn wait(&mut self, _: Option<Duration>) -> Result<(), DeviceError> {
            panic!("planted");
        }

        fn waker(&self) -> DeviceWaker {
            self.0.waker()
        }

        fn stats(&self) -> RxStats {
            self.0.stats()
        }
    }

    #[test]
    fn a_part_whose_device_panics_sleeps_nowhere() {
        let (near, _far) = memory::pair(MemoryConfig::default());
        let (rx, _) = Box::new(near).split();
        let mut parts = split(Box::new(memory::scripted().0), 1, 4, |_| Target::All);
        let shared = Arc::clone(&parts[0].shared);
        try_take(&shared.rx).unwrap().device = Box::new(Panics(rx));
        let (mut part, _) = Box::new(parts.remove(0)).split();
        let wait = std::panic::AssertUnwindSafe(|| part.wait(None));
        assert!(std::panic::catch_unwind(wait).is_err());
        let (awake, sleeper) = (shared.awake.load(SeqCst), shared.sleeper.load(SeqCst));
        assert_eq!((awake, sleeper), (1, NOBODY));
    }

    #[test]
    fn a_waker_ends_the_sleep_of_its_part_wherever_it_sleeps() {
        let (_tx, rx) = parts(2, 4);
        let wakers: Vec<DeviceWaker> = rx.iter().map(|part| part.waker()).collect();
        thread::scope(|scope| {
            let sleepers: Vec<_> = rx
                .into_iter()
                .map(|mut part| {
                    scope.spawn(move || {
                        while part.stats().wakes == 0 {
                            part.wait(None).unwrap();
                        }
                    })
                })
                .collect();
            for waker in &wakers {
                waker.wake();
            }
            for sleeper in sleepers {
                sleeper.join().unwrap();
            }
        });
    }
}
