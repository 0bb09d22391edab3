//! Handlers of events, and the hardware units that they control.
//!
//! Everything belongs to one of two halves, which share only the three indices in [`CardShared`]:
//! [`SendHalf`] has the DMA read channel and the MAC's transmit channel, [`ReceiveHalf`] the DMA
//! write channel and the MAC's receive channel. So they run on two processors without mutual
//! exclusion, which the compiler checks. A handler never waits: it enqueues a transfer and
//! returns, and an event reports the completion.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use rtrb::{Consumer, Producer};

use super::event::NicEvent;
use super::host::ReturnDescriptor;
use super::memory::{CardShared, FIRST, SendDescriptor};
use crate::frame::zeroed;
use crate::{DeviceError, DeviceRx, DeviceTx, Frame, RxChecksum, RxMeta, TxFrame, TxMeta, checked};

/// Most frames that the MAC exchanges with the wire at once.
const MAC_BATCH: usize = 32;

/// A function of the firmware that checks the checksums of each received frame.
#[derive(Clone)]
pub struct Inspect(Arc<InspectFn>);

type InspectFn = dyn Fn(&[u8]) -> RxChecksum + Send + Sync;

impl Inspect {
    /// Calls `inspect` in the handler of [`NicEvent::ReceiveComplete`].
    pub fn new(inspect: impl Fn(&[u8]) -> RxChecksum + Send + Sync + 'static) -> Self {
        Inspect(Arc::new(inspect))
    }

    fn apply(&self, frame: &mut Frame) {
        if frame.meta.checksum == RxChecksum::Verify {
            frame.meta.checksum = (self.0)(frame);
        }
    }
}

impl fmt::Debug for Inspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspect").finish_non_exhaustive()
    }
}

/// Limits of the firmware.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// Most descriptors, transfers or frames per call of a handler.
    pub(crate) batch: usize,
    /// Most transfers that wait in a DMA channel.
    pub(crate) channel: usize,
    /// Capacity of the card's transmit buffer and of its receive buffer, in frames.
    pub(crate) buffered: usize,
    /// Number of descriptors after which an index is passed to the host.
    pub(crate) coalesced: u32,
}

/// A transfer from the host's memory.
#[derive(Debug)]
enum DmaRead {
    SendDescriptors(u32),
    ReceiveDescriptors(u32),
    Frame(SendDescriptor),
}

/// A completed transfer from the host's memory.
#[derive(Debug)]
enum ReadDone {
    SendDescriptors(u32),
    ReceiveDescriptors(u32),
    /// The buffer of a frame that was read.
    Frame(Box<[u8]>),
}

/// A frame for the MAC to send once its bytes are in the transmit buffer.
#[derive(Debug)]
struct MacDescriptor {
    len: usize,
    meta: TxMeta,
}

/// Sends, and fetches descriptors: processor B of the partition.
pub(crate) struct SendHalf {
    shared: Arc<CardShared>,
    bounds: Bounds,
    // In the host's memory.
    send_ring: Consumer<SendDescriptor>,
    receive_ring: Consumer<Box<[u8]>>,
    spent: Producer<Box<[u8]>>,
    // In the card's memory.
    local_sends: VecDeque<SendDescriptor>,
    local_receives: Producer<Box<[u8]>>,
    dma: VecDeque<DmaRead>,
    dma_done: VecDeque<ReadDone>,
    mac: VecDeque<MacDescriptor>,
    /// Frames in the transmit buffer, and its free buffers.
    buffered: VecDeque<Box<[u8]>>,
    free: Vec<Box<[u8]>>,
    wire: Box<dyn DeviceTx>,
    // Indices.
    sends_requested: u32,
    sends_fetched: u32,
    sends_begun: u32,
    sends_consumed: u32,
    sends_reported: u32,
    receives_requested: u32,
    receives_fetched: u32,
}

/// The rings that the sending half reads and writes.
pub(crate) struct SendRings {
    pub(crate) send: Consumer<SendDescriptor>,
    pub(crate) receive: Consumer<Box<[u8]>>,
    pub(crate) spent: Producer<Box<[u8]>>,
    pub(crate) local_receives: Producer<Box<[u8]>>,
}

impl SendHalf {
    pub(crate) fn new(
        shared: Arc<CardShared>,
        bounds: Bounds,
        rings: SendRings,
        wire: Box<dyn DeviceTx>,
        buffer_len: usize,
    ) -> Self {
        let free = (0..bounds.buffered).map(|_| zeroed(buffer_len)).collect();
        Self {
            shared,
            bounds,
            send_ring: rings.send,
            receive_ring: rings.receive,
            spent: rings.spent,
            local_sends: VecDeque::new(),
            local_receives: rings.local_receives,
            dma: VecDeque::new(),
            dma_done: VecDeque::new(),
            mac: VecDeque::new(),
            buffered: VecDeque::new(),
            free,
            wire,
            sends_requested: FIRST,
            sends_fetched: FIRST,
            sends_begun: FIRST,
            sends_consumed: FIRST,
            sends_reported: FIRST,
            receives_requested: FIRST,
            receives_fetched: FIRST,
        }
    }

    // Handlers.

    /// Fetches the send descriptors that the driver has produced.
    pub(crate) fn send_descriptors_ready(&mut self) {
        let producer = self.shared.send_producer.load();
        let count = producer.wrapping_sub(self.sends_requested);
        if count > 0 {
            self.dma.push_back(DmaRead::SendDescriptors(count));
            self.sends_requested = producer;
        }
    }

    /// Fetches the receive descriptors that the driver has produced.
    pub(crate) fn receive_descriptors_ready(&mut self) {
        let producer = self.shared.receive_producer.load();
        let count = producer.wrapping_sub(self.receives_requested);
        if count > 0 {
            self.dma.push_back(DmaRead::ReceiveDescriptors(count));
            self.receives_requested = producer;
        }
    }

    /// Publishes completed transfers: descriptors to the handlers that wait for them, frames to
    /// the MAC.
    pub(crate) fn dma_read_complete(&mut self) {
        for _ in 0..self.bounds.batch {
            match self.dma_done.pop_front() {
                None => break,
                Some(ReadDone::SendDescriptors(count)) => {
                    self.sends_fetched = self.sends_fetched.wrapping_add(count);
                    self.shared.raise(NicEvent::SendDataReady);
                }
                Some(ReadDone::ReceiveDescriptors(count)) => {
                    self.receives_fetched = self.receives_fetched.wrapping_add(count);
                    let fetched = self.receives_fetched;
                    self.shared.local_receive_producer.store(fetched);
                    // A frame may have waited for these buffers.
                    self.shared.raise(NicEvent::ReceiveComplete);
                }
                Some(ReadDone::Frame(buffer)) => {
                    // `spent` is as long as the send ring, so there is room.
                    let _ = self.spent.push(buffer);
                    self.sends_consumed = self.sends_consumed.wrapping_add(1);
                }
            }
        }
        let unreported = self.sends_consumed.wrapping_sub(self.sends_reported);
        let is_last = self.sends_consumed == self.sends_begun;
        if unreported >= self.bounds.coalesced || unreported > 0 && is_last {
            self.shared.raise(NicEvent::UpdateSendConsumer);
        }
        if !self.dma_done.is_empty() {
            self.shared.raise(NicEvent::DmaReadComplete);
        }
        if self.sends_begun != self.sends_fetched {
            self.shared.raise(NicEvent::SendDataReady);
        }
    }

    /// Fetches frames into the transmit buffer, and queues them for the MAC. If the buffer or the
    /// channel is full, DMA Read Complete or the MAC raises the event again.
    pub(crate) fn send_data_ready(&mut self) {
        for _ in 0..self.bounds.batch {
            let is_full =
                self.dma.len() >= self.bounds.channel || self.mac.len() >= self.bounds.buffered;
            if is_full || self.sends_begun == self.sends_fetched {
                return;
            }
            let Some(descriptor) = self.local_sends.pop_front() else {
                return;
            };
            let (len, meta) = (descriptor.len, descriptor.meta);
            self.mac.push_back(MacDescriptor { len, meta });
            self.dma.push_back(DmaRead::Frame(descriptor));
            self.sends_begun = self.sends_begun.wrapping_add(1);
        }
        if self.sends_begun != self.sends_fetched {
            self.shared.raise(NicEvent::SendDataReady);
        }
    }

    /// Returns the consumer index to pass to the host.
    pub(crate) fn update_send_consumer(&mut self) -> u32 {
        self.sends_reported = self.sends_consumed;
        self.sends_consumed
    }

    // Hardware.

    /// Performs up to `max` transfers of the DMA read channel. Returns their number.
    pub(crate) fn dma_read(&mut self, max: usize) -> usize {
        let mut performed = 0;
        while performed < max {
            let done = match self.dma.pop_front() {
                None => break,
                Some(DmaRead::SendDescriptors(count)) => {
                    let fetched = (0..count).map_while(|_| self.send_ring.pop().ok());
                    self.local_sends.extend(fetched);
                    ReadDone::SendDescriptors(count)
                }
                Some(DmaRead::ReceiveDescriptors(count)) => {
                    for _ in 0..count {
                        let Ok(buffer) = self.receive_ring.pop() else {
                            break;
                        };
                        let _ = self.local_receives.push(buffer);
                    }
                    ReadDone::ReceiveDescriptors(count)
                }
                Some(DmaRead::Frame(descriptor)) => {
                    let SendDescriptor { buffer, len, .. } = descriptor;
                    // At most as many frames are begun as the transmit buffer holds.
                    let mut place = self.free.pop().unwrap_or_else(|| zeroed(buffer.len()));
                    place[..len].copy_from_slice(&buffer[..len]);
                    self.buffered.push_back(place);
                    ReadDone::Frame(buffer)
                }
            };
            self.dma_done.push_back(done);
            performed += 1;
        }
        if performed > 0 {
            self.shared.raise(NicEvent::DmaReadComplete);
        }
        performed
    }

    /// Sends frames from the transmit buffer. Returns their number.
    pub(crate) fn mac_transmit(&mut self, max: usize) -> usize {
        let frames: Vec<TxFrame<'_>> = self
            .buffered
            .iter()
            .zip(&self.mac)
            .take(max.min(MAC_BATCH))
            .map(|(bytes, descriptor)| TxFrame {
                head: &bytes[..descriptor.len],
                payload: &[],
                meta: descriptor.meta,
            })
            .collect();
        if frames.is_empty() {
            return 0;
        }
        let taken = match checked::transmit(&mut *self.wire, &frames) {
            Ok(taken) => taken,
            Err(error) => {
                // Frames are lost, as on a cable that is not plugged in.
                let lost = frames.len();
                // ORDERING: Relaxed, a count that orders nothing.
                self.shared.unsent.fetch_add(lost as u64, Relaxed);
                self.shared.report(error);
                lost
            }
        };
        let was_full = self.mac.len() >= self.bounds.buffered;
        self.mac.drain(..taken);
        self.free.extend(self.buffered.drain(..taken));
        if was_full && taken > 0 {
            self.shared.raise(NicEvent::SendDataReady);
        }
        taken
    }

    /// Whether frames wait for a busy wire.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.buffered.is_empty()
    }
}

/// Transfers to the host's memory.
#[derive(Debug)]
enum DmaWrite {
    Frame { frame: Frame, buffer: Box<[u8]> },
    ReturnDescriptor { len: usize, meta: RxMeta },
    ReturnProducer(u32),
    SendConsumer(u32),
}

/// A received frame in the handler, with the host buffer that it will be copied to.
#[derive(Debug)]
pub(crate) struct Arrival {
    ticket: u32,
    frame: Frame,
    buffer: Box<[u8]>,
}

impl Arrival {
    /// The costly work on a frame, independent of other frames: copies of the handler do it in
    /// parallel.
    pub(crate) fn inspect(&mut self, inspect: &Inspect) {
        inspect.apply(&mut self.frame);
    }
}

/// Receives: processor A of the partition.
pub(crate) struct ReceiveHalf {
    shared: Arc<CardShared>,
    bounds: Bounds,
    wire: Box<dyn DeviceRx>,
    /// The receive buffer, with frames that have arrived.
    mac: VecDeque<Frame>,
    claimed: Vec<Frame>,
    local_receives: Consumer<Box<[u8]>>,
    receives_taken: u32,
    /// Frames that copies of the handler process, in order of arrival; `None` while one is in
    /// progress. Finished frames wait for earlier ones.
    in_work: VecDeque<Option<(Frame, Box<[u8]>)>>,
    first_in_work: u32,
    dma: VecDeque<DmaWrite>,
    /// Completed transfers that no handler has seen: in total, and of indices.
    dma_done: usize,
    indices_done: usize,
    /// Buffers whose frame has been transferred but whose descriptor has not.
    landed: VecDeque<Box<[u8]>>,
    returns: Producer<ReturnDescriptor>,
    returns_produced: u32,
    returns_reported: u32,
    buffer_len: usize,
}

impl ReceiveHalf {
    pub(crate) fn new(
        shared: Arc<CardShared>,
        bounds: Bounds,
        local_receives: Consumer<Box<[u8]>>,
        returns: Producer<ReturnDescriptor>,
        wire: Box<dyn DeviceRx>,
        buffer_len: usize,
    ) -> Self {
        Self {
            shared,
            bounds,
            wire,
            mac: VecDeque::new(),
            claimed: Vec::new(),
            local_receives,
            receives_taken: FIRST,
            in_work: VecDeque::new(),
            first_in_work: 0,
            dma: VecDeque::new(),
            dma_done: 0,
            indices_done: 0,
            landed: VecDeque::new(),
            returns,
            returns_produced: FIRST,
            returns_reported: FIRST,
            buffer_len,
        }
    }

    // Handlers.

    /// Receive Complete: transfers frames to the host, each with a descriptor. Raises the event
    /// again if more frames can be taken; otherwise DMA Read Complete or DMA Write Complete does.
    pub(crate) fn receive_complete(&mut self, inspect: Option<&Inspect>) {
        for _ in 0..self.begin() {
            let (Some(mut frame), Ok(buffer)) = (self.mac.pop_front(), self.local_receives.pop())
            else {
                break;
            };
            self.receives_taken = self.receives_taken.wrapping_add(1);
            if let Some(inspect) = inspect {
                inspect.apply(&mut frame);
            }
            self.transfer(frame, buffer);
        }
        self.end();
    }

    /// The first part of a copy of Receive Complete: takes frames, with a buffer for each.
    pub(crate) fn begin_receive(&mut self, arrivals: &mut Vec<Arrival>) {
        for _ in 0..self.begin() {
            let (Some(frame), Ok(buffer)) = (self.mac.pop_front(), self.local_receives.pop())
            else {
                break;
            };
            self.receives_taken = self.receives_taken.wrapping_add(1);
            let ticket = self.first_in_work.wrapping_add(self.in_work.len() as u32);
            self.in_work.push_back(None);
            arrivals.push(Arrival {
                ticket,
                frame,
                buffer,
            });
        }
        if self.can_receive() {
            self.shared.raise(NicEvent::ReceiveComplete);
        }
    }

    /// The last part of a copy: transfers the frames in order of arrival.
    pub(crate) fn finish_receive(&mut self, arrivals: &mut Vec<Arrival>) {
        for arrival in arrivals.drain(..) {
            let place = arrival.ticket.wrapping_sub(self.first_in_work) as usize;
            self.in_work[place] = Some((arrival.frame, arrival.buffer));
        }
        while let Some(Some(_)) = self.in_work.front() {
            let Some(Some((frame, buffer))) = self.in_work.pop_front() else {
                break;
            };
            self.first_in_work = self.first_in_work.wrapping_add(1);
            self.transfer(frame, buffer);
        }
        self.end();
    }

    /// Number of frames that this call of the handler may take.
    fn begin(&mut self) -> usize {
        if self.shared.receiver_gone.load(SeqCst) {
            self.claimed.extend(self.mac.drain(..));
            checked::release(&mut *self.wire, &mut self.claimed);
            return 0;
        }
        self.receivable().min(self.bounds.batch)
    }

    /// Number of frames that have a buffer, and room in the channel for two transfers each.
    fn receivable(&self) -> usize {
        let producer = self.shared.local_receive_producer.load();
        let buffers = producer.wrapping_sub(self.receives_taken) as usize;
        let transfers = self.dma.len() + 2 * self.in_work.len();
        let room = self.bounds.channel.saturating_sub(transfers).div_ceil(2);
        self.mac.len().min(buffers).min(room)
    }

    fn can_receive(&self) -> bool {
        self.receivable() > 0
    }

    fn transfer(&mut self, frame: Frame, buffer: Box<[u8]>) {
        let (len, meta) = (frame.len(), frame.meta);
        self.dma.push_back(DmaWrite::Frame { frame, buffer });
        self.dma.push_back(DmaWrite::ReturnDescriptor { len, meta });
        self.returns_produced = self.returns_produced.wrapping_add(1);
    }

    /// Raises the events that follow from a call of the handler.
    fn end(&mut self) {
        let can_receive = self.can_receive();
        if can_receive {
            self.shared.raise(NicEvent::ReceiveComplete);
        }
        let unreported = self.returns_produced.wrapping_sub(self.returns_reported);
        // The host may have to take these before it produces buffers for waiting frames.
        let is_last = self.in_work.is_empty() && !can_receive;
        if unreported >= self.bounds.coalesced || unreported > 0 && is_last {
            self.shared.raise(NicEvent::UpdateReturnProducer);
        }
    }

    /// Frames and descriptors need no action; an index that has arrived interrupts the host.
    pub(crate) fn dma_write_complete(&mut self) {
        let was_full = self.dma_done > 0;
        self.dma_done = 0;
        if std::mem::take(&mut self.indices_done) > 0 {
            self.shared.interrupt.notify();
        }
        if was_full && self.can_receive() {
            self.shared.raise(NicEvent::ReceiveComplete);
        }
    }

    /// Transfers the producer index of the return ring.
    pub(crate) fn update_return_producer(&mut self) {
        if self.returns_reported != self.returns_produced {
            self.returns_reported = self.returns_produced;
            let producer = DmaWrite::ReturnProducer(self.returns_produced);
            self.dma.push_back(producer);
        }
    }

    /// Transfers the consumer index of the send ring, as the firmware on one processor does.
    pub(crate) fn write_send_consumer(&mut self, index: u32) {
        self.dma.push_back(DmaWrite::SendConsumer(index));
    }

    // Hardware

    /// Performs up to `max` transfers of the DMA write channel. Returns their number.
    pub(crate) fn dma_write(&mut self, max: usize) -> usize {
        let mut performed = 0;
        while performed < max {
            match self.dma.pop_front() {
                None => break,
                Some(DmaWrite::Frame { frame, mut buffer }) => {
                    buffer[..frame.len()].copy_from_slice(&frame);
                    self.landed.push_back(buffer);
                    self.claimed.push(frame);
                }
                Some(DmaWrite::ReturnDescriptor { len, meta }) => {
                    if let Some(buffer) = self.landed.pop_front() {
                        // `returns` is as long as the receive ring, so there is room.
                        let _ = self.returns.push(ReturnDescriptor { buffer, len, meta });
                    }
                }
                Some(DmaWrite::ReturnProducer(index)) => {
                    self.shared.return_producer.store(index);
                    self.indices_done += 1;
                }
                Some(DmaWrite::SendConsumer(index)) => {
                    self.shared.send_consumer.store(index);
                    self.indices_done += 1;
                }
            }
            performed += 1;
        }
        if performed > 0 {
            checked::release(&mut *self.wire, &mut self.claimed);
            self.dma_done += performed;
            self.shared.raise(NicEvent::DmaWriteComplete);
        }
        performed
    }

    /// Takes up to `max` frames from the wire, as long as the receive buffer has room. Returns
    /// their number.
    pub(crate) fn mac_receive(&mut self, max: usize) -> usize {
        let room = self.bounds.buffered.saturating_sub(self.mac.len());
        let max = max.min(room).min(MAC_BATCH);
        if max == 0 || self.shared.over.load(Relaxed) {
            return 0;
        }
        let claimed = match checked::claim(&mut *self.wire, max, &mut self.claimed) {
            Ok(claimed) => claimed,
            Err(error) => {
                self.shared.report(error);
                return 0;
            }
        };
        if claimed > 0 {
            for frame in self.claimed.drain(..) {
                if frame.len() <= self.buffer_len {
                    self.mac.push_back(frame);
                } else {
                    // ORDERING: Relaxed, a count that orders nothing.
                    self.shared.truncated.fetch_add(1, Relaxed);
                }
            }
            self.shared.raise(NicEvent::ReceiveComplete);
        }
        claimed
    }

    /// Waits until a frame may be ready.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        self.wire.wait(Some(timeout))
    }

    /// Whether the receive buffer has room.
    pub(crate) fn has_room(&self) -> bool {
        self.mac.len() < self.bounds.buffered
    }

    /// The waker of [`wait`](Self::wait).
    pub(crate) fn waker(&self) -> crate::DeviceWaker {
        self.wire.waker()
    }
}
