//! The transmit pump: hands frames to the device in the order of their numbers.

use std::sync::Arc;

use arrayvec::ArrayVec;
use dominoes_drivers::{DeviceError, DeviceTx, TxFrame, checked};

use super::Transmitter;
use crate::io::claim::DEVICE_RETRY_INTERVAL;
use crate::io::rx::FRAMES_A_TURN;
use crate::io::world::World;

/// The transmit pump. It has no thread: any worker may take it for a moment.
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
        let Some(taken) = self.offer::<MAX>(below) else {
            return done + self.send_past_hole::<MAX>();
        };
        match taken {
            Ok(taken) => {
                self.transmitter.advance(taken);
                done += taken;
            }
            Err(error) => self.world.device_failed(error),
        }
        done
    }

    /// Offers frames to the device. Returns how many it took, or `None` if no frame is ready.
    #[inline(always)]
    fn offer<const MAX: usize>(&mut self, below: u64) -> Option<Result<usize, DeviceError>> {
        if self.world.has_detours() {
            return self.offer_or_loop::<MAX>(below);
        }
        if self.transmitter.are_prepared() {
            let (first, count) = self.transmitter.ready_in_a_row(below, MAX);
            let taken =
                (count > 0).then(|| checked::transmit_prepared(&mut *self.tx, first, count));
            return taken.inspect(|taken| self.world.set_device_refuses(taken.is_err()));
        }
        let mut frames = ArrayVec::<_, MAX>::new();
        self.transmitter.ready(below, &mut frames);
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
        self.transmitter.ready(below, &mut frames);
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
        let taken = if self.transmitter.are_prepared() {
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
                let slots = picked.iter().map(|frame| self.transmitter.slot(*frame));
                transmit_one_by_one(&mut *self.tx, slots)
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

/// Sends the prepared frames in these slots one by one. Returns how many the device took.
fn transmit_one_by_one(
    tx: &mut dyn DeviceTx,
    slots: impl Iterator<Item = usize>,
) -> Result<usize, DeviceError> {
    let mut taken = 0;
    for slot in slots {
        match tx.transmit_prepared(slot, 1) {
            Ok(0) => break,
            Ok(_) => taken += 1,
            Err(error) if taken == 0 => return Err(error),
            // The next call reports it.
            Err(_) => break,
        }
    }
    Ok(taken)
}
