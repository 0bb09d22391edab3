//! The receiving half of the device: what takes batches of frames from it, and gives frames back.
//!
//! Claiming reads no header, so a worker has the device for a moment only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dominoes_drivers::{DeviceRx, Frame, checked};

use crate::io::FrameRecycler;
use crate::io::world::World;
use crate::log::request::MAX_RUN;

/// How long a thread sleeps before it tries again a device that is gone, or offers frames again to
/// one that is down: most devices do not report when they are back.
pub(crate) const DEVICE_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Most frames of a batch: two full runs. Indices of frames and requests in a batch are bytes.
pub(crate) const MAX_CLAIM: usize = 2 * MAX_RUN;
/// Most bytes of a batch that several workers share, unless one frame is longer: a quarter of a
/// window of 1 MiB, so merged frames of one window are not all one worker's.
const BATCH_BYTES: usize = 256 << 10;

/// Most frames that are claimed at once from a device with long frames. A frame may take a system
/// call that copies 64 KB.
const LONG_CLAIM: usize = 8;

/// Claims frames from the device.
pub(crate) struct Claimer {
    world: Arc<World>,
    rx: Box<dyn DeviceRx>,
    /// Whether fewer than [`MAX_CLAIM`] of its frames may exceed [`BATCH_BYTES`].
    has_long_frames: bool,
    /// Frames of the device that are claimed before all others: they did not fit into a batch, or
    /// into the log.
    rest: VecDeque<Frame>,
}

impl Claimer {
    /// For a device that says that its frames have at most `longest` bytes; only
    /// [`claim_batch`](Self::claim_batch) needs that.
    pub(crate) fn new(world: Arc<World>, rx: Box<dyn DeviceRx>, longest: usize) -> Self {
        Claimer {
            world,
            rx,
            has_long_frames: longest > BATCH_BYTES / MAX_CLAIM,
            rest: VecDeque::new(),
        }
    }

    /// Claims at most `most` frames, which go to the end of `batch`. Returns how many.
    #[inline]
    pub(crate) fn claim(&mut self, most: usize, batch: &mut Vec<Frame>) -> usize {
        let claimed = if self.has_rest() {
            self.claim_rest(most, batch)
        } else {
            match checked::claim(&mut *self.rx, most, batch) {
                Ok(claimed) => claimed,
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
            let (from, step) = (batch.len(), LONG_CLAIM.min(most - batch.len()));
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

    /// Returns frames that are no longer needed to the device: those of `recycler`, and those that
    /// other workers left.
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

    /// Returns frames to the device.
    pub(crate) fn put_back(&mut self, frames: &mut Vec<Frame>) {
        checked::release(&mut *self.rx, frames);
    }

    /// Sleeps in the device until a frame arrives, a waker is used, or `timeout` is over.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) {
        if let Err(error) = self.rx.wait(timeout) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::setup::Setup;
    use dominoes_drivers::{Device, memory};

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
}
