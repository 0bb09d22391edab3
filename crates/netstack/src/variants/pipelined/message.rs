//! The messages that stages exchange, and the channels between stages.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use dominoes::{EventCount, Publisher, Spin, Subscription, TryLock};
use dominoes_drivers::DeviceWaker;

use crate::io::RunFrames;
use crate::log::effect::Effect;
use crate::time::Instant;

/// A run whose payload a data stage owns: the paper's remote buffers. A frame is the address and
/// length of memory; beyond the headers, only that stage reads it.
#[derive(Debug, Default)]
pub(super) struct RemoteRun {
    /// The data stage.
    pub(super) stage: usize,
    pub(super) run: RunFrames,
}

/// The jobs that a protocol stage gives to a data stage, in the order in which it performs them.
#[derive(Default)]
pub(super) struct Jobs {
    /// Runs to deliver, all of them owned by this stage.
    pub(super) runs: Vec<Delivered>,
    /// Deliveries of these runs, in the order of the runs.
    pub(super) effects: Vec<Effect>,
    /// Frames with payload to build.
    pub(super) frames: Vec<Build>,
}

impl Jobs {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.frames.is_empty()
    }
}

/// A run to deliver.
pub(super) struct Delivered {
    pub(super) run: RunFrames,
    /// How many of [`Jobs::effects`] are about it.
    pub(super) effects: usize,
}

/// Some of the frames of an effect.
pub(super) struct Build {
    /// A [`Effect::Transmit`] or [`Effect::Send`].
    pub(super) effect: Effect,
    pub(super) first: u32,
    pub(super) end: u32,
}

/// When the interface stage last emptied the device, and how many messages it had sent by then. The
/// protocol stage uses it to process all frames that arrived before a deadline before it fires the
/// timer.
#[derive(Default)]
pub(super) struct LastLook {
    at: AtomicU64,
    messages: AtomicU64,
}

impl LastLook {
    /// Records that the interface stage found the device empty at `now`, and had then sent `sent`
    /// messages.
    pub(super) fn report(&self, now: Instant, sent: u64) {
        // ORDERING: Relaxed for the count; the Release below publishes it and pairs with the
        // Acquire in `messages_by`.
        self.messages.store(sent, Ordering::Relaxed);
        self.at.store(now.as_nanos(), Ordering::Release);
    }

    /// How many messages may hold frames that had arrived by `deadline`; `None` if the interface
    /// stage has not found the device empty since.
    pub(super) fn messages_by(&self, deadline: Instant) -> Option<u64> {
        // ORDERING: as in `report`. A count from a later look is larger, which is harmless.
        let looked = self.at.load(Ordering::Acquire) >= deadline.as_nanos();
        looked.then(|| self.messages.load(Ordering::Relaxed))
    }
}

/// Wakes a worker, wherever it sleeps.
pub(super) struct WakeUp {
    /// A worker without the interface stage sleeps on this.
    event: EventCount,
    /// Wakes the worker with the interface stage, which sleeps in the device.
    device: DeviceWaker,
    is_in_device: AtomicBool,
}

impl WakeUp {
    pub(super) fn new(device: DeviceWaker) -> WakeUp {
        WakeUp {
            event: EventCount::new(),
            device,
            is_in_device: AtomicBool::new(false),
        }
    }

    /// Call after queuing something for the worker.
    pub(super) fn wake(&self) {
        self.event.notify_all();
        // ORDERING: the fence pairs with the one in `before_device`: either the sleeper sees the
        // message, or this thread sees that it sleeps.
        core::sync::atomic::fence(Ordering::SeqCst);
        if self.is_in_device.load(Ordering::Relaxed) {
            self.device.wake();
        }
    }

    pub(super) fn event(&self) -> &EventCount {
        &self.event
    }

    /// Call before sleeping in the device; look at every channel once more in between.
    pub(super) fn before_device(&self) {
        self.is_in_device.store(true, Ordering::Relaxed);
        // ORDERING: the fence pairs with the one in `wake`.
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    pub(super) fn after_device(&self) {
        self.is_in_device.store(false, Ordering::Relaxed);
    }
}

/// The sending end of a channel between stages.
pub(super) struct Sender<T> {
    publisher: Publisher<TryLock<T>, Spin>,
    wake: Arc<WakeUp>,
}

impl<T: Send> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender {
            publisher: self.publisher.clone(),
            wake: Arc::clone(&self.wake),
        }
    }
}

impl<T: Send> Sender<T> {
    pub(super) fn has_room(&mut self) -> bool {
        self.publisher.room() > 0
    }

    /// Sends a message, and wakes the receiver.
    ///
    /// # Errors
    /// Gives the message back if there is no room.
    pub(super) fn send(&mut self, message: T) -> Result<(), T> {
        match self.publisher.try_publish(TryLock::new(message)) {
            Ok(_) => {
                self.wake.wake();
                Ok(())
            }
            Err(refused) => Err(refused.into_inner().into_inner()),
        }
    }
}

/// The receiving end of a channel; there is one.
pub(super) struct Receiver<T> {
    subscription: Subscription<TryLock<T>, Spin>,
}

impl<T: Send + Default> Receiver<T> {
    /// Takes the next message.
    pub(super) fn receive(&mut self) -> Option<T> {
        let at = self.subscription.position();
        if self.subscription.poll() <= at {
            return None;
        }
        let message = self.subscription.get(at).and_then(TryLock::try_take);
        let message = message.map(|mut message| core::mem::take(&mut *message));
        self.subscription.advance_to(at + 1);
        message
    }

    pub(super) fn is_empty(&mut self) -> bool {
        self.subscription.poll() <= self.subscription.position()
    }
}

/// A channel for at most `capacity` messages to a stage; `wake` wakes the worker of that stage.
pub(super) fn channel<T: Send + Default>(
    capacity: usize,
    wake: &Arc<WakeUp>,
) -> (Sender<T>, Receiver<T>) {
    let (publisher, log) = dominoes::channel(capacity);
    let subscription = log.subscribe().expect("a new channel has no subscriber");
    let sender = Sender {
        publisher,
        wake: Arc::clone(wake),
    };
    (sender, Receiver { subscription })
}
