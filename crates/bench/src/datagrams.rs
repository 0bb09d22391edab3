//! The far side of the UDP experiments: a sender and a receiver of prebuilt datagrams, as
//! [`dominoes_drivers::memory::peer`] is for TCP.
//!
//! UDP has no window, so the sender reads how much the application has read, and keeps no more
//! under way than fits half of the socket's queue: the bench measures work, not loss, and a
//! datagram that is dropped fails the measurement. Datagrams carry their number, so that one that
//! comes twice, late or not at all is noticed. They circulate in a pool that is larger than a
//! cache, and their frames are not touched when they are handed out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use dominoes_drivers::memory::peer::headers::{Ends, arp_reply, udp_frame};
use dominoes_drivers::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, Frame, RxStats, TxFrame,
    TxStats,
};
use dominoes_netstack::variants::kernel;

use crate::workload::Workload;

/// Bytes before the payload of a datagram.
pub(crate) const HEADERS: usize = 14 + 20 + 8;
/// Bytes that a datagram takes in a socket's queue in addition to its payload.
const RECORD: u64 = 16;
/// Numbers of datagrams begin with this payload byte.
const MARK: usize = 8;

/// Shared by both halves, the application and the measuring thread.
#[derive(Debug)]
pub(crate) struct Wire {
    /// Datagrams that the application has read.
    read: CachePadded<AtomicU64>,
    /// Payload bytes of datagrams that the stack sent.
    sent: CachePadded<AtomicU64>,
    /// Datagrams of the stack that were not as they should be.
    wrong: AtomicU64,
    /// Whether payloads are compared.
    verify: AtomicBool,
}

impl Wire {
    /// Reports how many datagrams the application has read.
    pub(crate) fn has_read(&self, datagrams: u64) {
        // ORDERING: Relaxed, a count that paces the sender.
        self.read.store(datagrams, Ordering::Relaxed);
    }

    /// Payload bytes that the stack sent.
    pub(crate) fn sent_bytes(&self) -> u64 {
        // ORDERING: Relaxed, a count for the measuring thread.
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn verify(&self, on: bool) {
        // ORDERING: Relaxed, a wish.
        self.verify.store(on, Ordering::Relaxed);
    }

    /// Reports the first error, if there is one.
    pub(crate) fn check(&self) -> Result<(), String> {
        // ORDERING: Relaxed, a count.
        match self.wrong.load(Ordering::Relaxed) {
            0 => Ok(()),
            wrong => Err(format!("the peer saw {wrong} wrong datagrams")),
        }
    }
}

/// A network interface with that far side.
#[derive(Debug)]
pub(crate) struct DatagramDevice {
    rx: DatagramRx,
    tx: DatagramTx,
}

impl DatagramDevice {
    /// A device that delivers datagrams, or only takes them; and its counters. `paced`: no more
    /// is under way than was read.
    pub(crate) fn new(brings: bool, paced: bool, workload: &Workload) -> (Self, Arc<Wire>) {
        let wire = Arc::new(Wire {
            read: CachePadded::default(),
            sent: CachePadded::default(),
            wrong: AtomicU64::new(0),
            verify: AtomicBool::new(true),
        });
        let record = (workload.segment_bytes as u64 + RECORD).next_multiple_of(RECORD);
        let frames = if brings { workload.frames() } else { 0 };
        let one = |number: usize| {
            let bytes = udp_frame(&Ends::default(), &payload(workload, number as u64));
            let mut frame = Frame::with_capacity(workload.buffer_bytes());
            frame.set_len(bytes.len());
            frame.bytes_mut().copy_from_slice(&bytes);
            frame
        };
        let mut data: VecDeque<Frame> = (0..frames).map(one).collect();
        // A sender has to know the neighbour.
        let hello = Frame::from_bytes(&arp_reply(&Ends::default()));
        data.push_front(hello);
        let rx = DatagramRx {
            data,
            greeted: false,
            window: if paced {
                (u64::from(workload.ring_bytes) / 2 / record).max(1)
            } else {
                u64::MAX
            },
            handed_out: 0,
            wire: Arc::clone(&wire),
            stats: RxStats::default(),
        };
        let tx = DatagramTx {
            len: HEADERS + workload.segment_bytes,
            expected: payload(workload, 0),
            wire: Arc::clone(&wire),
            sent: 0,
            stats: TxStats::default(),
        };
        (DatagramDevice { rx, tx }, wire)
    }
}

/// The payload of datagram `number`.
pub(crate) fn payload(workload: &Workload, number: u64) -> Vec<u8> {
    let mut payload = workload.payload();
    let marked = MARK.min(payload.len());
    payload[..marked].copy_from_slice(&number.to_be_bytes()[..marked]);
    payload
}

impl Device for DatagramDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("peer0")
    }

    fn mac(&self) -> [u8; 6] {
        Ends::default().to_mac
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        (Box::new(self.rx), Box::new(self.tx))
    }
}

/// The half that the stack receives from.
#[derive(Debug)]
pub(crate) struct DatagramRx {
    /// The one that was unused for longest first.
    data: VecDeque<Frame>,
    /// Whether the first frame, which is no datagram, was handed out.
    greeted: bool,
    /// Datagrams that may be under way.
    window: u64,
    handed_out: u64,
    wire: Arc<Wire>,
    stats: RxStats,
}

impl DeviceRx for DatagramRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        if !self.greeted {
            self.greeted = true;
            out.extend(self.data.pop_front());
            return Ok(1);
        }
        // ORDERING: Relaxed, as where it is stored.
        let read = self.wire.read.load(Ordering::Relaxed);
        let left = (read.saturating_add(self.window)).saturating_sub(self.handed_out);
        let count = max.min(left as usize).min(self.data.len());
        out.extend(self.data.drain(..count));
        self.handed_out += count as u64;
        self.stats.frames += count as u64;
        Ok(count)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        let datagrams = frames.drain(..).filter(|frame| frame.len() > HEADERS);
        self.data.extend(datagrams);
    }

    fn wait(&mut self, _timeout: Option<Duration>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn waker(&self) -> DeviceWaker {
        DeviceWaker::new(|| ())
    }

    fn stats(&self) -> RxStats {
        self.stats
    }
}

/// The half that the stack sends to.
#[derive(Debug)]
pub(crate) struct DatagramTx {
    /// Bytes of every frame.
    len: usize,
    /// The payload of datagrams, except their number.
    expected: Vec<u8>,
    wire: Arc<Wire>,
    sent: u64,
    stats: TxStats,
}

impl DatagramTx {
    fn is_right(&self, frame: &TxFrame<'_>, verify: bool) -> bool {
        // EtherType, protocol, and length.
        let plain = frame.head.len() == HEADERS
            && frame.head[12..14] == [8, 0]
            && frame.head[23] == 17
            && frame.len() == self.len;
        if !plain || !verify {
            return plain;
        }
        let whole = [frame.head, frame.payload].concat();
        kernel::verify_datagram(&whole) && frame.payload.get(MARK..) == self.expected.get(MARK..)
    }
}

impl DeviceTx for DatagramTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        // ORDERING: Relaxed, a wish.
        let verify = self.wire.verify.load(Ordering::Relaxed);
        for frame in frames {
            if frame.head.get(12..14) == Some(&[8, 6]) {
                continue;
            }
            if !self.is_right(frame, verify) {
                // ORDERING: Relaxed, a count.
                self.wire.wrong.fetch_add(1, Ordering::Relaxed);
            }
            self.sent += frame.payload.len() as u64;
        }
        // ORDERING: Relaxed, a count for the measuring thread.
        self.wire.sent.store(self.sent, Ordering::Relaxed);
        self.stats.frames += frames.len() as u64;
        Ok(frames.len())
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}
