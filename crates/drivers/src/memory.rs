//! Devices without hardware: two that are joined in memory, one whose other end is a test, and one
//! whose other end is a simulated [`peer`].
//!
//! [`pair`] behaves like two network cards and a cable. Each direction has a queue of limited
//! depth, and a pool of receive buffers used in turn, so that a large pool passes through memory
//! as a card's would. Sending copies the frame into a buffer of the receiver, as a card does by
//! DMA. It allocates nothing and makes no system call unless a thread sleeps. [`Faults`] make the
//! cable unreliable, in the same way for the same seed.

mod faults;
mod manual;
pub mod peer;

pub(crate) use faults::FaultyWire;
pub use faults::{FaultStats, Faults};
pub use manual::{ManualDevice, Script, scripted, scripted_queues, scripted_with};

use crate::frame::zeroed;
use crate::prepared::PreparedSlots;
use crate::waker::Event;
use crate::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, ETHERNET_HEADER_LEN, Frame,
    IP_MAC, LinkType, RxChecksum, RxChecksumSupport, RxMeta, RxStats, TxChecksum, TxFrame,
    TxPrepare, TxStats, VLAN_TAG_LEN, ip_header,
};
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

crate::settings! {
    /// Configuration of a pair of devices in memory. Both devices are equal.
    #[derive(Clone, Debug, PartialEq)]
    pub struct MemoryConfig {
        /// Longest IP packet, in bytes. Default 1500.
        pub mtu: usize = 1500;
        /// Most frames in flight in each direction; at least 1. Default 512.
        pub queue_depth: usize = 512;
        /// Receive buffers of each device, in frames; at least 1. They are used first in, first
        /// out, so a pool larger than a cache really drops out of it. Default 1024.
        pub rx_pool: usize = 1024;
        /// Whether the receiving device reports complete checksums as valid, as a card with
        /// checksum offload does. Default: no.
        pub rx_checksum_valid: bool = false;
        /// Whether a sender may leave checksums partial. They arrive as [`RxChecksum::Partial`].
        /// Default: no.
        pub tx_checksum: bool = false;
        /// Longest TCP frame to be divided, including headers, in bytes. It arrives undivided. 0,
        /// the default: none. A larger value implies `tx_checksum` and longer receive buffers.
        pub tso4_max_bytes: usize = 0;
        /// As [`tso4_max_bytes`](Self::tso4_max_bytes), for UDP.
        pub uso_max_bytes: usize = 0;
        /// The type of the link. Default: Ethernet.
        pub link: LinkType = LinkType::Ethernet;
        /// Ethernet addresses of the two devices. Default: locally administered ones that end in 1
        /// and 2.
        pub macs: [[u8; 6]; 2] = [[0x02, 0, 0, 0, 0, 1], [0x02, 0, 0, 0, 0, 2]] => none;
        /// Faults on the way to the first and to the second device. Default: none.
        pub faults: [Faults; 2] = [Faults::default(), Faults::default()] => none;
    }
}

impl MemoryConfig {
    crate::settings! {
        /// Sets [`macs`](Self::macs).
        fn macs(self, first: [u8; 6], second: [u8; 6]) { self.macs = [first, second] }

        /// Sets the same [`faults`](Self::faults) in both directions; the second direction gets
        /// another seed, derived from `faults.seed`.
        fn faults(self, faults: Faults) {
            self.faults = [
                faults.clone(),
                Faults {
                    seed: faults.seed ^ 0x5bf0_3635_dcd1_e6a3,
                    ..faults
                },
            ];
        }
    }

    fn capabilities(&self, name: &str) -> Capabilities {
        let mut caps = Capabilities::new(name);
        caps.link = self.link;
        caps.mtu = self.mtu;
        caps.tx_checksum = self.tx_checksum || self.tso4_max_bytes > 0 || self.uso_max_bytes > 0;
        caps.tso4_max_bytes = self.tso4_max_bytes;
        caps.uso_max_bytes = self.uso_max_bytes;
        caps.rx_max_frame = (self.mtu + ETHERNET_HEADER_LEN + VLAN_TAG_LEN)
            .max(self.tso4_max_bytes)
            .max(self.uso_max_bytes);
        caps.rx_checksum = match (self.rx_checksum_valid, caps.tx_checksum) {
            (true, _) => RxChecksumSupport::Always,
            (false, true) => RxChecksumSupport::PerFrame,
            (false, false) => RxChecksumSupport::None,
        };
        caps
    }

    /// The address of the first or the second device.
    fn mac(&self, index: usize) -> [u8; 6] {
        match self.link {
            LinkType::Ethernet => self.macs[index],
            LinkType::Ip => IP_MAC,
        }
    }
}

/// As [`pair`], for devices that carry bare IP packets ([`LinkType::Ip`]), whatever the link of
/// `config` is: nothing else passes, and the receiver writes the Ethernet header.
pub fn ip_pair(config: MemoryConfig) -> (MemoryDevice, MemoryDevice) {
    pair(config.link(LinkType::Ip))
}

/// Two devices joined in memory: each claims the frames that the other transmits.
pub fn pair(config: MemoryConfig) -> (MemoryDevice, MemoryDevice) {
    let [first, second] = [
        config.capabilities("memory0"),
        config.capabilities("memory1"),
    ];
    let [to_first, to_second] = [0, 1].map(|_| Arc::new(Lane::new(&config, first.rx_max_frame)));
    let device = |index: usize, caps: Capabilities, inbound: &Arc<Lane>, outbound: &Arc<Lane>| {
        MemoryDevice {
            mac: config.mac(index),
            tx: MemoryTx {
                copier: Arc::new(MemoryCopier {
                    caps: caps.clone(),
                    lane: Arc::clone(outbound),
                    rx_checksum: if config.rx_checksum_valid {
                        RxChecksum::Valid
                    } else {
                        RxChecksum::Verify
                    },
                }),
                prepared: None,
                stats: TxStats::default(),
            },
            rx: MemoryRx::new(Arc::clone(inbound), config.faults[index].clone()),
            caps,
        }
    };
    (
        device(0, first, &to_first, &to_second),
        device(1, second, &to_second, &to_first),
    )
}

/// One of two devices that are joined in memory; made by [`pair`].
#[derive(Debug)]
pub struct MemoryDevice {
    caps: Capabilities,
    mac: [u8; 6],
    rx: MemoryRx,
    tx: MemoryTx,
}

/// Implements [`Device`] for a struct with the fields `caps`, `mac`, `rx` and `tx`.
macro_rules! device {
    ($device:ident, $rx:ident, $tx:ident) => {
        impl $device {
            /// Like [`Device::split`], with the concrete types of the halves, for callers that
            /// avoid virtual calls.
            pub fn into_halves(self) -> ($rx, $tx) {
                (self.rx, self.tx)
            }
        }

        impl Device for $device {
            fn capabilities(&self) -> Capabilities {
                self.caps.clone()
            }

            fn mac(&self) -> [u8; 6] {
                self.mac
            }

            fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
                let (rx, tx) = self.into_halves();
                (Box::new(rx), Box::new(tx))
            }
        }
    };
}
use device;

device!(MemoryDevice, MemoryRx, MemoryTx);

/// One direction: frames for the receiver, and free buffers.
#[derive(Debug)]
struct Lane {
    ready: ArrayQueue<Frame>,
    free: ArrayQueue<Box<[u8]>>,
    buffer_len: usize,
    event: CachePadded<Event>,
    pool_exhausted: AtomicU64,
    receiver_gone: AtomicBool,
}

impl Lane {
    fn new(config: &MemoryConfig, buffer_len: usize) -> Self {
        let free = ArrayQueue::new(config.rx_pool.max(1));
        while free.push(zeroed(buffer_len)).is_ok() {}
        Self {
            ready: ArrayQueue::new(config.queue_depth.max(1)),
            free,
            buffer_len,
            event: CachePadded::default(),
            pool_exhausted: AtomicU64::new(0),
            receiver_gone: AtomicBool::new(false),
        }
    }

    /// Returns the buffer that has been unused for longest, or a new one.
    #[inline]
    fn buffer(&self) -> Box<[u8]> {
        self.free.pop().unwrap_or_else(|| {
            // ORDERING: Relaxed, a count that orders nothing.
            self.pool_exhausted.fetch_add(1, Relaxed);
            zeroed(self.buffer_len)
        })
    }

    /// Returns a frame's buffer to the pool, if it came from here and there is room.
    #[inline]
    fn recycle(&self, frame: Frame) {
        let buffer = frame.into_buffer();
        if buffer.len() == self.buffer_len {
            let _ = self.free.push(buffer);
        }
    }
}

/// The receiving half of a [`MemoryDevice`].
#[derive(Debug)]
pub struct MemoryRx {
    lane: Arc<Lane>,
    wire: Option<Box<FaultyWire>>,
    stats: RxStats,
}

impl MemoryRx {
    fn new(lane: Arc<Lane>, faults: Faults) -> Self {
        let wire = (!faults.is_none()).then(|| Box::new(FaultyWire::new(faults)));
        Self {
            lane,
            wire,
            stats: RxStats::default(),
        }
    }

    /// Counts of the faults on the way to this device.
    pub fn fault_stats(&self) -> FaultStats {
        self.wire
            .as_ref()
            .map(|wire| wire.stats())
            .unwrap_or_default()
    }
}

impl DeviceRx for MemoryRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let before = out.len();
        let lane = &*self.lane;
        match &mut self.wire {
            None => {
                for _ in 0..max {
                    let Some(frame) = lane.ready.pop() else { break };
                    self.stats.bytes += frame.len() as u64;
                    out.push(frame);
                }
            }
            Some(wire) => {
                for _ in 0..max {
                    let next = wire.next(
                        || lane.ready.pop(),
                        || lane.buffer(),
                        |lost| lane.recycle(lost),
                    );
                    let Some(frame) = next else { break };
                    self.stats.bytes += frame.len() as u64;
                    out.push(frame);
                }
            }
        }
        let claimed = out.len() - before;
        self.stats.frames += claimed as u64;
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        for frame in frames.drain(..) {
            self.lane.recycle(frame);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        let held_back = self.wire.as_ref().is_some_and(|wire| wire.holds_frames());
        self.lane
            .event
            .wait(timeout, || held_back || !self.lane.ready.is_empty());
        Ok(())
    }

    fn waker(&self) -> DeviceWaker {
        let lane = Arc::clone(&self.lane);
        DeviceWaker::new(move || lane.event.wake())
    }

    fn stats(&self) -> RxStats {
        RxStats {
            dropped: self.fault_stats().lost,
            pool_exhausted: self.lane.pool_exhausted.load(Relaxed),
            wakes: self.lane.event.wakes(),
            ..self.stats
        }
    }
}

impl Drop for MemoryRx {
    fn drop(&mut self) {
        self.lane.receiver_gone.store(true, Relaxed);
    }
}

/// The sending half of a [`MemoryDevice`].
#[derive(Debug)]
pub struct MemoryTx {
    copier: Arc<MemoryCopier>,
    prepared: Option<Arc<Prepared>>,
    stats: TxStats,
}

/// Copies frames for the other end.
#[derive(Debug)]
struct MemoryCopier {
    caps: Capabilities,
    lane: Arc<Lane>,
    /// The receiver's checksum state for a complete checksum.
    rx_checksum: RxChecksum,
}

impl MemoryCopier {
    /// The copy that the other end receives. `None` for a frame that can never be sent.
    fn copy(&self, frame: &TxFrame<'_>) -> Option<Frame> {
        if !self.caps.admits(frame) {
            return None;
        }
        let mut buffer = self.lane.buffer();
        frame.copy_to(&mut buffer);
        if self.caps.link == LinkType::Ip {
            let (header, packet) = buffer.split_at_mut(ETHERNET_HEADER_LEN);
            let len = frame.len() - ETHERNET_HEADER_LEN;
            header.copy_from_slice(&ip_header(&packet[..len])?);
        }
        let checksum = match frame.meta.checksum {
            TxChecksum::Done => self.rx_checksum,
            TxChecksum::Partial { start, offset } => RxChecksum::Partial { start, offset },
        };
        let meta = RxMeta {
            checksum,
            gso: frame.meta.gso,
        };
        Some(Frame::from_buffer(buffer, 0, frame.len(), meta))
    }
}

/// Copies made in advance; `None` for a frame that can never be sent.
#[derive(Debug)]
struct Prepared {
    copier: Arc<MemoryCopier>,
    slots: PreparedSlots<Option<Frame>>,
}

impl TxPrepare for Prepared {
    fn prepare(&self, first: usize, frames: &[TxFrame<'_>]) {
        for (slot, frame) in (first..).zip(frames) {
            self.slots.put(slot, self.copier.copy(frame));
        }
    }
}

impl MemoryTx {
    /// Sends as many of `count` frames as there is room for; `frame` makes each one.
    fn send(&mut self, count: usize, frame: impl Fn(usize) -> Option<Frame>) -> usize {
        let lane = &*self.copier.lane;
        if lane.receiver_gone.load(Relaxed) {
            self.stats.dropped += count as u64;
            return count;
        }
        let (mut taken, mut sent) = (0, 0);
        while taken < count {
            // Only this thread pushes, so a queue with room keeps it.
            if lane.ready.is_full() {
                self.stats.busy += 1;
                break;
            }
            match frame(taken) {
                None => self.stats.dropped += 1,
                Some(frame) => {
                    self.stats.bytes += frame.len() as u64;
                    let pushed = lane.ready.push(frame);
                    debug_assert!(
                        pushed.is_ok(),
                        "a queue with one sender filled up by itself"
                    );
                    sent += 1;
                }
            }
            taken += 1;
        }
        self.stats.frames += sent;
        if sent > 0 {
            lane.event.notify();
        }
        taken
    }
}

impl DeviceTx for MemoryTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        let copier = Arc::clone(&self.copier);
        Ok(self.send(frames.len(), |i| copier.copy(&frames[i])))
    }

    fn preparer(&mut self, slots: usize) -> Option<Arc<dyn TxPrepare>> {
        let prepared = Arc::new(Prepared {
            copier: Arc::clone(&self.copier),
            slots: PreparedSlots::new(slots),
        });
        self.prepared = Some(Arc::clone(&prepared));
        Some(prepared)
    }

    fn transmit_prepared(&mut self, first: usize, count: usize) -> Result<usize, DeviceError> {
        let Some(prepared) = self.prepared.clone() else {
            return Ok(0);
        };
        Ok(self.send(count, |i| prepared.slots.take(first + i).flatten()))
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gso, GsoKind, TxMeta};

    fn frame(number: u8) -> [u8; 60] {
        [number; 60]
    }

    fn halves(config: MemoryConfig) -> (MemoryTx, MemoryRx) {
        let (first, second) = pair(config);
        (first.into_halves().1, second.into_halves().0)
    }

    #[test]
    fn prepared_frames_arrive_as_others_do_and_wait_in_their_slots_for_room() {
        let (mut tx, mut rx) = halves(MemoryConfig::default().queue_depth(2));
        assert_eq!(tx.transmit_prepared(0, 2), Ok(0), "nobody prepares");
        let preparer = tx.preparer(4).unwrap();
        let bytes = [frame(1), frame(2), frame(3)];
        preparer.prepare(1, &bytes.each_ref().map(|bytes| TxFrame::new(bytes)));
        // A frame that can never be sent, and a slot that does not exist.
        preparer.prepare(0, &[TxFrame::new(&[0; 4000])]);
        preparer.prepare(4, &[TxFrame::new(&bytes[0])]);
        assert_eq!(tx.transmit_prepared(0, 4), Ok(3));
        let mut frames = Vec::new();
        rx.claim(9, &mut frames).unwrap();
        assert_eq!(tx.transmit_prepared(3, 1), Ok(1));
        rx.claim(9, &mut frames).unwrap();
        let arrived: Vec<_> = frames.iter().map(|frame| frame.bytes().to_vec()).collect();
        assert_eq!(arrived, bytes);
        let stats = tx.stats();
        assert_eq!((stats.frames, stats.dropped, stats.busy), (3, 1, 1));
        assert_eq!(stats.bytes, 180);
    }

    #[test]
    fn a_full_queue_takes_fewer_and_the_rest_later() {
        let (mut tx, mut rx) = halves(MemoryConfig::default().queue_depth(2));
        let bytes = [frame(1), frame(2), frame(3)];
        let frames = bytes.each_ref().map(|bytes| TxFrame::new(bytes));
        assert_eq!(tx.transmit(&frames), Ok(2));
        assert_eq!(tx.stats().busy, 1);
        let mut got = Vec::new();
        assert_eq!(rx.claim(10, &mut got), Ok(2));
        assert_eq!(tx.transmit(&frames[2..]), Ok(1));
        assert_eq!(rx.claim(10, &mut got), Ok(1));
        assert_eq!(
            got.iter().map(|frame| frame[0]).collect::<Vec<_>>(),
            [1, 2, 3]
        );
    }

    #[test]
    fn buffers_come_back_in_turn_and_dropped_ones_are_replaced() {
        let (mut tx, mut rx) = halves(MemoryConfig::default().rx_pool(2));
        let bytes = frame(7);
        let mut got = Vec::new();
        let mut addresses = Vec::new();
        for _ in 0..6 {
            tx.transmit(&[TxFrame::new(&bytes)]).unwrap();
            rx.claim(1, &mut got).unwrap();
            addresses.push(got[0].bytes().as_ptr() as usize);
            rx.release(&mut got);
        }
        assert_ne!(addresses[0], addresses[1]);
        assert_eq!(addresses[..2], addresses[2..4]);
        assert_eq!(addresses[..2], addresses[4..]);
        assert_eq!(rx.stats().pool_exhausted, 0);
        for _ in 0..3 {
            tx.transmit(&[TxFrame::new(&bytes)]).unwrap();
            rx.claim(1, &mut got).unwrap();
            got.clear();
        }
        assert_eq!(rx.stats().pool_exhausted, 1);
        assert_eq!(rx.stats().frames, 9);
    }

    #[test]
    fn merged_frames_pass_with_their_metadata() {
        let (mut tx, mut rx) = halves(MemoryConfig::default().tso4_max_bytes(65_549));
        let meta = TxMeta {
            checksum: TxChecksum::Partial {
                start: 34,
                offset: 16,
            },
            gso: Some(Gso {
                kind: GsoKind::Tcp4,
                size: 1448,
                header_len: 66,
            }),
        };
        let payload = vec![5; 65_000];
        assert_eq!(
            tx.transmit(&[TxFrame {
                head: &[1; 66],
                payload: &payload,
                meta
            }]),
            Ok(1)
        );
        let mut got = Vec::new();
        rx.claim(1, &mut got).unwrap();
        assert_eq!(got[0].len(), 65_066);
        assert_eq!((got[0][65], got[0][66]), (1, 5));
        assert_eq!(got[0].meta.gso, meta.gso);
        assert_eq!(
            got[0].meta.checksum,
            RxChecksum::Partial {
                start: 34,
                offset: 16
            }
        );
    }

    #[test]
    fn a_receiver_that_vouches_says_so() {
        let (mut tx, mut rx) = halves(MemoryConfig::default().rx_checksum_valid(true));
        tx.transmit(&[TxFrame::new(&frame(1))]).unwrap();
        let mut got = Vec::new();
        rx.claim(1, &mut got).unwrap();
        assert_eq!(got[0].meta.checksum, RxChecksum::Valid);
    }

    #[test]
    fn frames_to_a_receiver_that_is_gone_are_dropped() {
        let (mut tx, rx) = halves(MemoryConfig::default().queue_depth(1));
        drop(rx);
        let bytes = frame(1);
        assert_eq!(tx.transmit(&[TxFrame::new(&bytes); 5]), Ok(5));
        assert_eq!(tx.stats().dropped, 5);
    }
}
