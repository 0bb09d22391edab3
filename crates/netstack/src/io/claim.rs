//! The receiving half of the device: what takes batches of frames from it, and gives frames back.
//!
//! Claiming reads no header, so a worker has the device for a moment only.

use std::sync::Arc;
use std::time::Duration;

use dominoes_drivers::{DeviceRx, Frame, checked};

use crate::io::FrameRecycler;
use crate::io::run::Batch;
use crate::io::world::World;

/// How long a thread sleeps before it tries again a device that is gone, or offers frames again to
/// one that is down: most devices do not report when they are back.
pub(crate) const DEVICE_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Claims frames from the device.
pub(crate) struct Claimer {
    world: Arc<World>,
    rx: Box<dyn DeviceRx>,
    /// A batch that waits for room in the log, after commands that came before it.
    pub(crate) unpublished: Option<Batch>,
}

impl Claimer {
    pub(crate) fn new(world: Arc<World>, rx: Box<dyn DeviceRx>) -> Self {
        Claimer {
            world,
            rx,
            unpublished: None,
        }
    }

    /// Claims at most `most` frames, which go to the end of `batch`. Returns how many.
    #[inline]
    pub(crate) fn claim(&mut self, most: usize, batch: &mut Vec<Frame>) -> usize {
        let claimed = match checked::claim(&mut *self.rx, most, batch) {
            Ok(claimed) => claimed,
            Err(error) => {
                self.world.device_failed(error);
                0
            }
        };
        match self.world.has_detours() {
            true => self.unless_down(claimed, batch),
            false => claimed,
        }
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
