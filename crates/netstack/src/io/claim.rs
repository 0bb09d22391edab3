//! The receiving half of the device: its queues, what takes batches of frames from them, and gives
//! frames back.
//!
//! Claiming reads no header except of merged frames, so a worker has a queue for a moment only.
//!
//! Each queue belongs to one of the active workers, which looks at it first; with more queues than
//! workers, a worker looks at its own in turn. A worker that finds them empty, or taken, looks at
//! all others, and every [`LOOK_AROUND`]th claim begins with any queue. So no queue waits for a
//! worker that sleeps, is held up or has died.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use crossbeam_utils::CachePadded;
use dominoes::group::replicas;
use dominoes::{TryLock, TryLockGuard};
use dominoes_drivers::queues::{self, QueueWait};
use dominoes_drivers::{DeviceError, DeviceRx, Frame, checked};

use crate::io::FrameRecycler;
use crate::io::gro::flow_of;
use crate::io::world::World;
use crate::log::request::{Flow, MAX_RUN};
use crate::packet::{self as wire, Packet};
use crate::seqnum::SeqNum;

/// How long a thread sleeps before it tries again a device that is gone, or offers frames again to
/// one that is down: most devices do not report when they are back.
pub(crate) const DEVICE_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Most frames of a batch: two full runs. Indices of frames and requests in a batch are bytes.
pub(crate) const MAX_CLAIM: usize = 2 * MAX_RUN;
/// Most bytes of a batch that several workers share, unless one frame is longer: a quarter of a
/// window of 1 MiB, so merged frames of one window are not all one worker's.
const BATCH_BYTES: usize = 256 << 10;

/// Most frames that are claimed at once from a device with long frames. A frame may take a system
/// call that copies 64 KB. If frames stay in a ring, as many as a TCP sends in a row, so that all
/// of them are [put in order](put_in_order).
const LONG_CLAIM: usize = 8;
const LONG_CLAIM_IN_PLACE: usize = 32;

/// Claims frames from the device.
pub(crate) struct Claimer {
    world: Arc<World>,
    rx: Box<dyn DeviceRx>,
    /// Whether fewer than [`MAX_CLAIM`] of its frames may exceed [`BATCH_BYTES`].
    has_long_frames: bool,
    /// The most long frames of a claim.
    long_claim: usize,
    /// Frames of the device that are claimed before all others: they did not fit into a batch, or
    /// into the log.
    rest: VecDeque<Frame>,
    /// The queue of the device that it claims from; `None`: all.
    queue: Option<usize>,
    /// Frames that go to this queue; empty between two calls.
    own: Vec<Frame>,
}

impl Claimer {
    /// For a device whose frames have at most `longest` bytes. Long ones are put in order, and
    /// [`claim_batch`](Self::claim_batch) takes fewer of them.
    pub(crate) fn new(world: Arc<World>, rx: Box<dyn DeviceRx>, longest: usize) -> Self {
        Claimer {
            world,
            rx,
            has_long_frames: longest > BATCH_BYTES / MAX_CLAIM,
            long_claim: LONG_CLAIM,
            rest: VecDeque::new(),
            queue: None,
            own: Vec::new(),
        }
    }

    /// Claims from one queue of the device only.
    pub(crate) fn for_queue(self, queue: usize) -> Self {
        Claimer {
            queue: Some(queue),
            ..self
        }
    }

    /// Claims at most `most` frames, which go to the end of `batch`. Returns how many.
    #[inline]
    pub(crate) fn claim(&mut self, most: usize, batch: &mut Vec<Frame>) -> usize {
        let claimed = if self.has_rest() {
            self.claim_rest(most, batch)
        } else {
            let from = batch.len();
            match checked::claim(&mut *self.rx, most, batch) {
                Ok(claimed) => {
                    if let Some(queue) = self.queue {
                        queues::mark(&mut batch[from..], queue);
                    }
                    if self.has_long_frames && claimed > 1 {
                        put_in_order(&mut batch[from..]);
                        self.long_claim = match batch[from].is_in_place() {
                            true => LONG_CLAIM_IN_PLACE,
                            false => LONG_CLAIM,
                        };
                    }
                    claimed
                }
                Err(error) => {
                    self.world.device_failed(error);
                    0
                }
            }
        };
        match self.world.has_detours() {
            true => self.unless_down(claimed, batch),
            false => claimed,
        }
    }

    /// As [`claim`](Self::claim), but at most [`BATCH_BYTES`] or one frame, into an empty `batch`.
    /// Takes hardly more than that from the device, since other workers wait for it meanwhile.
    #[inline]
    pub(crate) fn claim_batch(&mut self, most: usize, batch: &mut Vec<Frame>) -> usize {
        match self.has_long_frames {
            true => self.claim_long(most, batch),
            false => self.claim(most, batch),
        }
    }

    fn claim_long(&mut self, most: usize, batch: &mut Vec<Frame>) -> usize {
        let mut bytes = 0;
        loop {
            let (from, step) = (batch.len(), self.long_claim.min(most - batch.len()));
            let is_of_device = !self.has_rest();
            let claimed = self.claim(step, batch);
            for at in from..batch.len() {
                bytes += batch[at].bytes().len();
                if bytes > BATCH_BYTES && at > 0 {
                    self.unclaim(at, batch);
                    return at;
                }
            }
            if is_of_device && claimed < step || batch.len() == most {
                return batch.len();
            }
        }
    }

    /// Takes the frames of `batch` from `from` on back: the next ones to be claimed.
    #[cold]
    pub(crate) fn unclaim(&mut self, from: usize, batch: &mut Vec<Frame>) {
        let frames = batch.drain(from..).rev();
        frames.for_each(|frame| self.rest.push_front(frame));
    }

    #[cold]
    fn claim_rest(&mut self, most: usize, batch: &mut Vec<Frame>) -> usize {
        let many = most.min(self.rest.len());
        batch.extend(self.rest.drain(..many));
        many
    }

    /// Whether it has frames that the device has given already.
    #[inline]
    pub(crate) fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Gives the last `claimed` frames of `batch` back if an application has set the link down.
    /// Returns how many are left of them.
    #[cold]
    fn unless_down(&mut self, claimed: usize, batch: &mut Vec<Frame>) -> usize {
        if !self.world.is_link_down() {
            return claimed;
        }
        let mut dropped = batch.split_off(batch.len() - claimed);
        self.rx.release(&mut dropped);
        0
    }

    /// Returns the used frames in `recycler`, and the ones that other workers left, to the device.
    /// Frames of other queues stay in `recycler`.
    #[inline]
    pub(crate) fn give_back(&mut self, recycler: &mut FrameRecycler) {
        while !self.world.returned.is_empty()
            && let Some(frame) = self.world.returned.pop()
        {
            recycler.frames.push(frame);
        }
        if !recycler.frames.is_empty() {
            self.put_back(&mut recycler.frames);
        }
    }

    /// Returns frames to the device. If it claims from one queue, frames of others stay.
    pub(crate) fn put_back(&mut self, frames: &mut Vec<Frame>) {
        match self.queue {
            None => checked::release(&mut *self.rx, frames),
            Some(queue) => queues::release(&mut *self.rx, queue, frames, &mut self.own),
        }
    }

    /// The device, for a sleep in this queue and others.
    pub(crate) fn rx(&self) -> &dyn DeviceRx {
        &*self.rx
    }

    /// Sleeps in the device until a frame arrives, a waker is used, or `timeout` is over.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) {
        let waited = self.rx.wait(timeout);
        self.after_wait(waited, timeout);
    }

    /// As [`wait`](Self::wait), in all queues of the device, of which this is the first. Returns
    /// whether another one has a frame or an error.
    pub(crate) fn wait_in(&mut self, queues: &QueueWait, timeout: Option<Duration>) -> bool {
        let waited = queues.wait(&mut *self.rx, timeout);
        let others = waited.as_ref().is_ok_and(|others| *others);
        self.after_wait(waited.map(drop), timeout);
        others
    }

    fn after_wait(&self, waited: Result<(), DeviceError>, timeout: Option<Duration>) {
        if let Err(error) = waited {
            let is_gone = !error.is_temporary();
            self.world.device_failed(error);
            if is_gone {
                // A device that is gone never waits again.
                std::thread::sleep(timeout.map_or(DEVICE_RETRY_INTERVAL, |timeout| {
                    timeout.min(DEVICE_RETRY_INTERVAL)
                }));
            }
        }
    }
}

/// A worker begins one of this many claims with any queue.
const LOOK_AROUND: u32 = 8;

/// The claimers of all queues.
pub(crate) struct Queues {
    claimers: Box<[CachePadded<TryLock<Claimer>>]>,
    /// Sleeps in all of them, if there are several.
    wait: Option<QueueWait>,
}

impl Queues {
    pub(crate) fn new(first: Claimer, more: Vec<Claimer>) -> Self {
        let all = || [&first].into_iter().chain(&more);
        let wait = || QueueWait::new(all().map(Claimer::rx));
        let wait = (!more.is_empty()).then(wait);
        let claimers = [first].into_iter().chain(more);
        let claimers = claimers.map(|claimer| CachePadded::new(TryLock::new(claimer)));
        Queues {
            claimers: claimers.collect(),
            wait,
        }
    }

    /// The claimer of a queue, unless a worker has it.
    #[inline]
    pub(crate) fn try_take(&self, queue: usize) -> Option<TryLockGuard<'_, Claimer>> {
        self.claimers[queue].try_take()
    }

    /// All claimers, for a worker that sleeps in the device; `None` if a worker has one of them.
    pub(crate) fn try_take_all(&self) -> Option<AllQueues<'_>> {
        let (first, more) = self.claimers.split_first()?;
        Some(AllQueues {
            first: first.try_take()?,
            more: more
                .iter()
                .map(|claimer| claimer.try_take())
                .collect::<Option<_>>()?,
            wait: self.wait.as_ref(),
        })
    }

    /// How many there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.claimers.len()
    }

    /// All queues, from this one on.
    #[inline]
    pub(crate) fn from(&self, first: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        let count = self.claimers.len();
        let wrap = move |queue| if queue < count { queue } else { queue - count };
        (first..first + count).map(wrap)
    }
}

/// The queue at which worker `id` looks first, if it has looked `claims` times before and the
/// workers in the set `active` receive.
pub(crate) fn first_queue(queues: usize, (id, active): (usize, u64), claims: u32) -> usize {
    let around = (claims / LOOK_AROUND) as usize % queues;
    if claims.is_multiple_of(LOOK_AROUND) {
        return around;
    }
    // A worker of rank r has the queues r, r + n, r + 2n ... if n are active.
    let workers = replicas(active | 1 << id).count();
    let rank = replicas(active).take_while(|other| *other < id).count() % queues;
    let own = (queues - rank).div_ceil(workers);
    rank + workers * (claims as usize % own)
}

/// The claimers of all queues, taken.
pub(crate) struct AllQueues<'a> {
    first: TryLockGuard<'a, Claimer>,
    more: Vec<TryLockGuard<'a, Claimer>>,
    wait: Option<&'a QueueWait>,
}

impl AllQueues<'_> {
    /// Whether one has frames that the device has given already.
    pub(crate) fn has_rest(&self) -> bool {
        self.first.has_rest() || self.more.iter().any(|claimer| claimer.has_rest())
    }

    /// As [`Claimer::wait`], in all queues.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) {
        let Some(wait) = self.wait else {
            return self.first.wait(timeout);
        };
        if self.first.wait_in(wait, timeout) {
            // An error ends further waits until it is reported.
            let more = self.more.iter_mut();
            more.for_each(|claimer| claimer.wait(Some(Duration::ZERO)));
        }
    }
}

/// Puts the merged frames of each flow in the order of their sequence numbers.
///
/// A veth pair has a queue for each core. An acknowledgment that opens a window by a megabyte makes
/// the sender's TCP queue a row of frames on one core, while the sender's thread sends the next
/// frames on another core, which overtake them. If our TCP reported a gap, the sender would send
/// the row again.
fn put_in_order(frames: &mut [Frame]) {
    let mut merged = frames.iter().filter(|frame| frame.meta.gso.is_some());
    if merged.nth(1).is_none() {
        return;
    }
    let mut numbers = ArrayVec::<Option<(Flow, SeqNum)>, MAX_CLAIM>::new();
    for at in 0..frames.len().min(MAX_CLAIM) {
        let number = number_if_merged(&frames[at]);
        let place = number.and_then(|(flow, seq)| {
            let mut own = numbers.iter().rev().flatten().filter(|(of, _)| *of == flow);
            own.next().filter(|(_, last)| last.after(seq))?;
            let is_later = |other: &Option<_>| {
                other.is_some_and(|(of, other): (Flow, SeqNum)| of == flow && other.after(seq))
            };
            numbers.iter().position(is_later)
        });
        let place = place.unwrap_or(at);
        numbers.insert(place, number);
        frames[place..=at].rotate_right(1);
    }
}

/// The flow and sequence number of a frame that the device merged.
#[inline]
fn number_if_merged(frame: &Frame) -> Option<(Flow, SeqNum)> {
    frame.meta.gso?;
    match wire::parse(frame.bytes()) {
        Ok(Packet::Tcp(tcp)) => Some((flow_of(&tcp), SeqNum(tcp.seq))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::gro::tests::merged;
    use crate::io::setup::Setup;
    use crate::log::request::Flags;
    use dominoes_drivers::{Device, memory};

    /// How often each of four queues is the first one, in `LOOK_AROUND` times as many claims.
    fn firsts(id: usize, active: u64) -> [u32; 4] {
        let mut found = [0; 4];
        for claims in 0..4 * LOOK_AROUND {
            found[first_queue(4, (id, active), claims)] += 1;
        }
        found
    }

    #[test]
    fn each_queue_belongs_to_one_active_worker_and_all_look_around() {
        assert_eq!(firsts(1, 0b0010), [5, 9, 9, 9]);
        // Of workers 0, 2 and 5 the first has two queues.
        let active = 0b10_0101;
        assert_eq!(firsts(0, active)[1..3], [1, 1]);
        assert_eq!(firsts(2, active), [1, 29, 1, 1]);
        assert_eq!(firsts(5, active), [1, 1, 29, 1]);
        // More workers than queues.
        assert_eq!(firsts(4, 0b1_1111), firsts(0, 0b1111));
        for id in 0..4 {
            let own = (0..4).map(|queue| if queue == id { 29 } else { 1 });
            assert!(own.eq(firsts(id, 0b1111)));
        }
    }

    #[test]
    fn a_claim_of_long_frames_is_bounded_and_keeps_their_order() {
        let (device, script) = memory::scripted();
        let (rx, _) = Box::new(device).split();
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let world = setup.build(Box::new(memory::scripted().0), 64, 1);
        let mut claimer = Claimer::new(world.unwrap().world, rx, 65_535);
        let lens = [vec![60_000; 20], vec![60; 300]].concat();
        for (at, len) in lens.iter().enumerate() {
            script.push(vec![at as u8; *len]);
        }
        let mut seen = Vec::new();
        while seen.len() < lens.len() {
            let mut batch = Vec::new();
            assert_eq!(claimer.claim_batch(MAX_CLAIM, &mut batch), batch.len());
            let bytes: usize = batch.iter().map(|frame| frame.bytes().len()).sum();
            assert!((1..=MAX_CLAIM).contains(&batch.len()) && bytes <= BATCH_BYTES);
            assert!(claimer.rest.len() <= LONG_CLAIM);
            seen.extend(
                batch
                    .iter()
                    .map(|frame| (frame.bytes()[0], frame.bytes().len())),
            );
        }
        let expected = lens.iter().enumerate().map(|(at, len)| (at as u8, *len));
        assert!(seen.into_iter().eq(expected));
        assert_eq!(claimer.claim_batch(MAX_CLAIM, &mut Vec::new()), 0);
    }

    #[test]
    fn merged_frames_that_overtook_others_are_claimed_in_their_order() {
        let (device, script) = memory::scripted();
        let (rx, _) = Box::new(device).split();
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let world = setup.build(Box::new(memory::scripted().0), 64, 1);
        let mut claimer = Claimer::new(world.unwrap().world, rx, 65_535);
        // The sequence numbers wrap around. Frame 9 is of another protocol.
        let seq = |at: u32| (at * 50_000).wrapping_sub(100_000);
        for at in [0, 3, 1, 9, 2, 2, 5, 4] {
            script.push_frame(match at {
                9 => Frame::from_bytes(&[9; 60]),
                at => merged(seq(at), 50_000, Flags::ACK),
            });
        }
        let mut seen = Vec::new();
        loop {
            let mut batch = Vec::new();
            if claimer.claim_batch(MAX_CLAIM, &mut batch) == 0 {
                break;
            }
            let number = |frame| number_if_merged(frame).map(|(_, seq)| seq.0);
            seen.extend(batch.iter().map(number));
        }
        let mut expected = [0, 1, 2, 2, 3, 9, 4, 5].map(|at| Some(seq(at)));
        expected[5] = None;
        assert_eq!(seen, expected);
    }

    #[test]
    fn frames_go_back_to_the_queue_that_they_came_from() {
        let pairs = [(); 2].map(|()| memory::pair(memory::MemoryConfig::default().rx_pool(4)));
        let (left, right): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let tx = Box::new(left).split_queues().into_iter();
        let mut tx: Vec<_> = tx.map(|(_, tx)| tx).collect();
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let base = setup.build_divided(Box::new(right), Device::split_queues, 64, 2);
        let base = base.unwrap();
        let mut claimers = [base.claimer].into_iter().chain(base.more_claimers);
        let mut claimers = [(); 2].map(|()| claimers.next().unwrap());
        let mut recycler = FrameRecycler::default();
        for _ in 0..20 {
            for (tx, claimer) in tx.iter_mut().zip(&mut claimers) {
                let frame = dominoes_drivers::TxFrame::new(&[1; 60]);
                assert_eq!(tx.transmit(&[frame; 3]), Ok(3));
                let mut batch = Vec::new();
                assert_eq!(claimer.claim_batch(MAX_CLAIM, &mut batch), 3);
                recycler.frames.append(&mut batch);
            }
            // The first one leaves the frames of the second.
            claimers[0].give_back(&mut recycler);
            assert_eq!(recycler.frames.len(), 3);
            claimers[1].give_back(&mut recycler);
            assert!(recycler.frames.is_empty());
        }
        let exhausted = claimers.map(|claimer| claimer.rx.stats().pool_exhausted);
        assert_eq!(exhausted, [0; 2]);
    }
}
