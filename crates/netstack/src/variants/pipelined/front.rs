//! The device as the pumps of a protocol stage see it: frames that data stages have verified, and
//! the device's transmit side, which all protocol stages share.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::Arc;

use dominoes::TryLock;
use dominoes_drivers::{
    AddressFilter, Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, Frame,
    RxStats, TxFrame, TxPrepare, TxStats,
};

use super::message::{Receiver, Sender, WakeUp};

/// The device of a protocol stage.
pub(super) struct Front {
    pub(super) caps: Capabilities,
    pub(super) mac: [u8; 6],
    pub(super) filter: Option<Arc<dyn AddressFilter>>,
    pub(super) inbox: Arc<Inbox>,
    /// Returns frames to the interface stage.
    pub(super) returns: Sender<Vec<Frame>>,
    pub(super) tx: SharedTx,
}

impl Device for Front {
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
        let rx = FrontRx {
            inbox: self.inbox,
            returns: self.returns,
            waiting: Vec::new(),
        };
        (Box::new(rx), Box::new(self.tx))
    }
}

/// Where frames from the data stages arrive.
pub(super) struct Inbox {
    side: TryLock<InboxSide>,
    /// The data stage that owns the payload of the frames claimed last.
    stage: AtomicUsize,
    /// Wakes the protocol stage.
    wake: Arc<WakeUp>,
}

struct InboxSide {
    inputs: Vec<Receiver<Vec<Frame>>>,
    /// The data stage whose message comes next: the interface stage deals them out in turn.
    next: usize,
    /// The rest of the message taken last.
    rest: std::vec::IntoIter<Frame>,
    /// How many messages were taken.
    received: u64,
}

impl Inbox {
    pub(super) fn new(inputs: Vec<Receiver<Vec<Frame>>>, wake: &Arc<WakeUp>) -> Inbox {
        Inbox {
            side: TryLock::new(InboxSide {
                inputs,
                next: 0,
                rest: Vec::new().into_iter(),
                received: 0,
            }),
            stage: AtomicUsize::new(0),
            wake: Arc::clone(wake),
        }
    }

    /// The data stage that owns the payload of the frames claimed last.
    pub(super) fn stage(&self) -> usize {
        // ORDERING: Relaxed, here and in `claim`: only the thread that has the protocol stage uses
        // it.
        self.stage.load(Ordering::Relaxed)
    }

    pub(super) fn is_empty(&self) -> bool {
        let side = self.side.try_take();
        side.is_none_or(|mut side| {
            let next = side.next;
            side.rest.len() == 0 && side.inputs[next].is_empty()
        })
    }

    /// Whether all frames of the first `messages` messages were claimed.
    pub(super) fn has_received(&self, messages: u64) -> bool {
        let side = self.side.try_take();
        side.is_some_and(|side| side.received >= messages && side.rest.len() == 0)
    }

    /// Appends at most `max` frames of one message. Returns how many.
    fn claim(&self, max: usize, out: &mut Vec<Frame>) -> usize {
        let Some(mut side) = self.side.try_take() else {
            return 0;
        };
        // A message may be empty: all of its frames were for other protocol stages.
        while side.rest.len() == 0 {
            let next = side.next;
            let Some(frames) = side.inputs[next].receive() else {
                return 0;
            };
            side.rest = frames.into_iter();
            side.next = (next + 1) % side.inputs.len();
            side.received += 1;
            self.stage.store(next, Ordering::Relaxed);
        }
        let before = out.len();
        out.extend(side.rest.by_ref().take(max));
        out.len() - before
    }
}

/// The receive side.
struct FrontRx {
    inbox: Arc<Inbox>,
    returns: Sender<Vec<Frame>>,
    /// Frames that are kept while the channel is full.
    waiting: Vec<Frame>,
}

impl DeviceRx for FrontRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        Ok(self.inbox.claim(max, out))
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        self.waiting.append(frames);
        if let Err(refused) = self.returns.send(core::mem::take(&mut self.waiting)) {
            self.waiting = refused;
        }
    }

    /// Only the interface stage sleeps in the device.
    fn wait(&mut self, _timeout: Option<Duration>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn waker(&self) -> DeviceWaker {
        let inbox = Arc::clone(&self.inbox);
        DeviceWaker::new(move || inbox.wake.wake())
    }

    fn stats(&self) -> RxStats {
        RxStats::default()
    }
}

/// The transmit side. Only the interface stage uses it.
pub(super) struct SharedTx {
    pub(super) tx: Arc<TryLock<Box<dyn DeviceTx>>>,
    /// Whether there is no other protocol stage.
    pub(super) is_alone: bool,
}

impl DeviceTx for SharedTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        self.tx
            .try_take()
            .map_or(Ok(0), |mut tx| tx.transmit(frames))
    }

    /// Each of several protocol stages has its own slots, but the device can register only one set.
    fn preparer(&mut self, slots: usize) -> Option<Arc<dyn TxPrepare>> {
        match self.is_alone {
            true => self.tx.try_take()?.preparer(slots),
            false => None,
        }
    }

    fn transmit_prepared(&mut self, first: usize, count: usize) -> Result<usize, DeviceError> {
        let tx = self.tx.try_take();
        tx.map_or(Ok(0), |mut tx| tx.transmit_prepared(first, count))
    }

    fn stats(&self) -> TxStats {
        let tx = self.tx.try_take();
        tx.map_or_else(TxStats::default, |tx| tx.stats())
    }
}
