//! The device driver, that is, the host's side of sending and receiving through the card.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use rtrb::{Consumer, Producer};

use super::event::NicEvent;
use super::memory::{CardShared, FIRST, SendDescriptor};
use super::threads::CardThreads;
use crate::frame::zeroed;
use crate::{
    Capabilities, DeviceError, DeviceRx, DeviceTx, DeviceWaker, Frame, RxMeta, RxStats, TxFrame,
    TxStats,
};

/// A received frame, as described by the card.
#[derive(Debug)]
pub(crate) struct ReturnDescriptor {
    pub(crate) buffer: Box<[u8]>,
    pub(crate) len: usize,
    pub(crate) meta: RxMeta,
}

/// The sending half of a [`Nic`](super::Nic).
#[derive(Debug)]
pub struct NicTx {
    pub(crate) caps: Capabilities,
    pub(crate) shared: Arc<CardShared>,
    pub(crate) ring: Producer<SendDescriptor>,
    /// Buffers of descriptors that the card has processed.
    pub(crate) spent: Consumer<Box<[u8]>>,
    pub(crate) free: Vec<Box<[u8]>>,
    /// Index up to which descriptors were produced, and index up to which buffers were taken back.
    pub(crate) produced: u32,
    pub(crate) reclaimed: u32,
    pub(crate) stats: TxStats,
    pub(crate) _threads: Arc<CardThreads>,
}

impl NicTx {
    pub(crate) fn new(
        caps: Capabilities,
        shared: Arc<CardShared>,
        ring: Producer<SendDescriptor>,
        spent: Consumer<Box<[u8]>>,
        threads: Arc<CardThreads>,
    ) -> Self {
        let len = caps
            .rx_max_frame
            .max(caps.tso4_max_bytes)
            .max(caps.tso6_max_bytes);
        let len = len.max(caps.uso_max_bytes).max(caps.mtu + super::FRAMING);
        let free = (0..ring.buffer().capacity()).map(|_| zeroed(len)).collect();
        Self {
            caps,
            shared,
            ring,
            spent,
            free,
            produced: FIRST,
            reclaimed: FIRST,
            stats: TxStats::default(),
            _threads: threads,
        }
    }

    /// Takes back the buffers that the card has read.
    fn reclaim(&mut self) {
        let consumer = self.shared.send_consumer.load();
        while self.reclaimed != consumer {
            let Ok(buffer) = self.spent.pop() else { break };
            self.free.push(buffer);
            self.reclaimed = self.reclaimed.wrapping_add(1);
        }
    }
}

impl DeviceTx for NicTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        self.reclaim();
        let (mut taken, mut sent) = (0, 0);
        for frame in frames {
            if !self.caps.admits(frame) {
                self.stats.dropped += 1;
                taken += 1;
                continue;
            }
            if self.free.is_empty() {
                self.reclaim();
            }
            let Some(mut buffer) = self.free.pop() else {
                self.stats.busy += 1;
                break;
            };
            let len = frame.len();
            frame.copy_to(&mut buffer);
            let meta = frame.meta;
            let descriptor = SendDescriptor { buffer, len, meta };
            // There are as many buffers as the ring has entries.
            let pushed = self.ring.push(descriptor);
            debug_assert!(pushed.is_ok(), "more buffers than places");
            self.produced = self.produced.wrapping_add(1);
            self.stats.bytes += len as u64;
            sent += 1;
            taken += 1;
        }
        self.stats.frames += sent;
        if sent > 0 {
            self.shared.send_mailbox.store(self.produced);
            self.shared.raise(NicEvent::Mailbox);
        }
        Ok(taken)
    }

    fn stats(&self) -> TxStats {
        TxStats {
            // ORDERING: Relaxed, a count that orders nothing.
            dropped: self.stats.dropped + self.shared.unsent.load(Relaxed),
            ..self.stats
        }
    }
}

/// The receiving half of a [`Nic`](super::Nic).
#[derive(Debug)]
pub struct NicRx {
    pub(crate) shared: Arc<CardShared>,
    /// Buffers for received frames.
    pub(crate) ring: Producer<Box<[u8]>>,
    pub(crate) returns: Consumer<ReturnDescriptor>,
    pub(crate) free: Vec<Box<[u8]>>,
    pub(crate) buffer_len: usize,
    /// Index up to which buffers were produced.
    produced: u32,
    /// Index up to which frames were claimed.
    consumed: u32,
    stats: RxStats,
    _threads: Arc<CardThreads>,
}

impl NicRx {
    pub(crate) fn new(
        shared: Arc<CardShared>,
        ring: Producer<Box<[u8]>>,
        returns: Consumer<ReturnDescriptor>,
        buffer_len: usize,
        threads: Arc<CardThreads>,
    ) -> Self {
        let free = (0..2 * ring.buffer().capacity()).map(|_| zeroed(buffer_len));
        let mut rx = Self {
            shared,
            free: free.collect(),
            ring,
            returns,
            buffer_len,
            produced: FIRST,
            consumed: FIRST,
            stats: RxStats::default(),
            _threads: threads,
        };
        rx.replenish();
        rx
    }

    /// Produces receive descriptors until the ring is full again.
    fn replenish(&mut self) {
        let before = self.produced;
        let posted = self.produced.wrapping_sub(self.consumed) as usize;
        for _ in posted..self.ring.buffer().capacity() {
            let buffer = self.free.pop().unwrap_or_else(|| {
                self.stats.pool_exhausted += 1;
                zeroed(self.buffer_len)
            });
            if let Err(rtrb::PushError::Full(buffer)) = self.ring.push(buffer) {
                self.free.push(buffer);
                break;
            }
            self.produced = self.produced.wrapping_add(1);
        }
        if self.produced != before {
            self.shared.receive_mailbox.store(self.produced);
            self.shared.raise(NicEvent::Mailbox);
        }
    }
}

impl DeviceRx for NicRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let producer = self.shared.return_producer.load();
        let mut claimed = 0;
        while claimed < max && self.consumed != producer {
            let Ok(returned) = self.returns.pop() else {
                break;
            };
            let ReturnDescriptor { buffer, len, meta } = returned;
            out.push(Frame::from_buffer(buffer, 0, len, meta));
            self.consumed = self.consumed.wrapping_add(1);
            self.stats.bytes += len as u64;
            claimed += 1;
        }
        if claimed == 0 {
            return self.shared.check().map(|()| 0);
        }
        self.stats.frames += claimed as u64;
        self.replenish();
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        let most = 2 * self.ring.buffer().capacity();
        for frame in frames.drain(..) {
            let buffer = frame.into_buffer();
            if buffer.len() == self.buffer_len && self.free.len() < most {
                self.free.push(buffer);
            }
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        let shared = &self.shared;
        shared.interrupt.wait(timeout, || {
            shared.return_producer.load() != self.consumed || shared.is_troubled()
        });
        if shared.return_producer.load() != self.consumed {
            return Ok(());
        }
        shared.check()
    }

    fn waker(&self) -> DeviceWaker {
        let shared = Arc::clone(&self.shared);
        DeviceWaker::new(move || shared.interrupt.wake())
    }

    fn stats(&self) -> RxStats {
        RxStats {
            // ORDERING: Relaxed, a count that orders nothing.
            truncated: self.shared.truncated.load(Relaxed),
            wakes: self.shared.interrupt.wakes(),
            ..self.stats
        }
    }
}

impl Drop for NicRx {
    fn drop(&mut self) {
        self.shared.receiver_gone.store(true, SeqCst);
        // The card discards frames that have arrived.
        self.shared.raise(NicEvent::ReceiveComplete);
    }
}
