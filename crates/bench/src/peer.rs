//! The simulated peer: a device whose far side is a sender and a receiver made of prebuilt frames.
//!
//! There is no thread behind it. Whoever holds the receive pump patches the headers of the next prebuilt
//! frames inside [`DeviceRx::claim`]; whoever holds the transmit pump reads the headers of what the stack
//! sends inside [`DeviceTx::transmit`]. The two halves meet in a few atomic words.
//!
//! The sender obeys the window and never sends anything twice; the receiver acknowledges every second
//! segment, and a single one when nothing follows it. Both check what they see: an acknowledgment that
//! repeats the last one while segments are in flight, and a segment that does not begin where the last one
//! ended, are counted, and fail the measurement.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use dominoes_drivers::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, Frame, RxStats, TxFrame, TxStats, Waker,
};

use dominoes_netstack::variants::kernel;

use crate::headers::{self, Ends, HEADERS, Patch, flags};
use crate::workload::{self, Workload};

/// Port at which the stack listens for the peer.
pub(crate) const PORT: u16 = 5_001;
/// First sequence number of the peer.
const PEER_ISS: u32 = 0x4000_0000;
/// Window scale of the peer: with a full window field, 8 MB.
const PEER_SCALE: u8 = 7;
/// Pure acknowledgments in circulation.
const ACKS: usize = 4096;
/// Calls without news after which a segment by itself is acknowledged.
const PATIENCE: u32 = 64;

/// What the peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sends as much as the window allows.
    Sender,
    /// Takes what is sent and acknowledges it.
    Receiver,
    /// Frames without a connection: no handshake, no window, nothing is read of what is sent but headers.
    Free,
}

/// What both halves, and who measures, share.
#[derive(Debug)]
pub(crate) struct Wire {
    /// The stack's first sequence number, in the low half; the high half is not zero once it is known.
    syn: CachePadded<AtomicU64>,
    /// As the stack's newest frame says: its acknowledgment number (high half) and the right edge of its
    /// window (low half).
    window: CachePadded<AtomicU64>,
    /// Payload octets that the stack sent, in order.
    received: CachePadded<AtomicU64>,
    faults: CachePadded<Faults>,
    /// Whether payloads are compared with what they should be.
    verify: AtomicBool,
}

/// What should not happen.
#[derive(Debug, Default)]
struct Faults {
    /// Acknowledgments that repeat the one before.
    duplicate_acks: AtomicU64,
    /// Segments that do not begin where the one before ended.
    out_of_order: AtomicU64,
    /// Octets or checksums that are not what they should be.
    wrong: AtomicU64,
    /// Frames that end the connection, or are no TCP.
    unexpected: AtomicU64,
}

impl Wire {
    /// Payload octets that arrived at the peer in order.
    pub(crate) fn received_bytes(&self) -> u64 {
        // ORDERING: Relaxed, a count for who measures.
        self.received.load(Ordering::Relaxed)
    }

    /// Turns the comparison of payloads on or off.
    pub(crate) fn verify(&self, on: bool) {
        // ORDERING: Relaxed, a wish.
        self.verify.store(on, Ordering::Relaxed);
    }

    /// Says what went wrong, if anything did.
    pub(crate) fn check(&self) -> Result<(), String> {
        let faults = [
            (&self.faults.duplicate_acks, "repeated acknowledgments"),
            (
                &self.faults.out_of_order,
                "segments sent again or out of order",
            ),
            (
                &self.faults.wrong,
                "frames with a wrong payload or checksum",
            ),
            (&self.faults.unexpected, "unexpected frames"),
        ];
        for (count, what) in faults {
            // ORDERING: Relaxed, a count.
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                return Err(format!("the peer saw {count} {what}"));
            }
        }
        Ok(())
    }
}

/// A network interface with the simulated peer behind it.
#[derive(Debug)]
pub(crate) struct PeerDevice {
    rx: PeerRx,
    tx: PeerTx,
}

impl PeerDevice {
    /// A device, and what tells of it.
    pub(crate) fn new(role: Role, workload: &Workload) -> (PeerDevice, Arc<Wire>) {
        let ends = headers::any_ends();
        debug_assert_eq!(ends.to.port(), PORT);
        let wire = Arc::new(Wire {
            syn: CachePadded::default(),
            window: CachePadded::default(),
            received: CachePadded::default(),
            faults: CachePadded::default(),
            verify: AtomicBool::new(true),
        });
        let device = PeerDevice {
            rx: PeerRx::new(role, workload, ends, Arc::clone(&wire)),
            tx: PeerTx {
                wire: Arc::clone(&wire),
                role,
                scale: 0,
                last: None,
                next: 0,
                received: 0,
                expected: workload::bytes(workload.seed, workload.ring_bytes as usize),
                stats: TxStats::default(),
            },
        };
        (device, wire)
    }

    /// The two halves, without a stack between them.
    pub(crate) fn into_halves(self) -> (PeerRx, PeerTx) {
        (self.rx, self.tx)
    }
}

impl Device for PeerDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("peer0")
    }

    fn mac(&self) -> [u8; 6] {
        headers::any_ends().to_mac
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        (Box::new(self.rx), Box::new(self.tx))
    }
}

/// How far the handshake is (RFC 9293 section 3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Closed,
    SynSent,
    Established,
}

/// The half that the stack receives from.
#[derive(Debug)]
pub(crate) struct PeerRx {
    wire: Arc<Wire>,
    role: Role,
    phase: Phase,
    ends: Ends,
    segment: u32,
    /// Frames with payload, the one that was unused for longest first.
    data: VecDeque<Frame>,
    data_patch: Patch,
    acks: VecDeque<Frame>,
    ack_patch: Patch,
    /// Next octet of the peer's stream.
    offset: u64,
    /// The stack's first sequence number.
    iss: u32,
    /// How much of the stack's stream was acknowledged.
    acked: u64,
    /// How much of it had arrived at the last call, and how often it was the same since.
    heard: u64,
    silence: u32,
    stats: RxStats,
}

impl PeerRx {
    fn new(role: Role, workload: &Workload, ends: Ends, wire: Arc<Wire>) -> Self {
        let segment = headers::frame(&ends, flags::ACK, u16::MAX, &[], &workload.payload());
        let ack = headers::frame(&ends, flags::ACK, u16::MAX, &[], &[]);
        let frames = if role == Role::Receiver {
            0
        } else {
            workload.frames()
        };
        PeerRx {
            data: copies(&segment, workload.buffer_bytes(), frames),
            data_patch: Patch::with_mark(&segment),
            acks: copies(&ack, 112, ACKS),
            ack_patch: Patch::new(&ack),
            wire,
            role,
            phase: if role == Role::Free {
                Phase::Established
            } else {
                Phase::Closed
            },
            ends,
            segment: workload.segment_bytes as u32,
            offset: 0,
            iss: 0,
            acked: 0,
            heard: 0,
            silence: 0,
            stats: RxStats::default(),
        }
    }

    fn handshake(&mut self, out: &mut Vec<Frame>) {
        match self.phase {
            Phase::Closed => {
                let options = headers::syn_options(self.segment as u16, PEER_SCALE);
                let mut syn = headers::frame(&self.ends, flags::SYN, u16::MAX, &options, &[]);
                Patch::new(&syn).bare(&mut syn, PEER_ISS, 0);
                out.push(Frame::from_bytes(&syn));
                self.phase = Phase::SynSent;
            }
            Phase::SynSent => {
                // ORDERING: Acquire, pairs with the Release in `PeerTx::syn`.
                let syn = self.wire.syn.load(Ordering::Acquire);
                if syn >> 32 != 0 {
                    self.iss = syn as u32;
                    self.phase = Phase::Established;
                    self.acknowledge(0, out);
                }
            }
            Phase::Established => {}
        }
    }

    /// A pure acknowledgment of the stack's stream up to `upto`.
    fn acknowledge(&mut self, upto: u64, out: &mut Vec<Frame>) -> bool {
        let Some(mut frame) = self.acks.pop_front() else {
            return false;
        };
        let seq = sequence(PEER_ISS, self.offset);
        self.ack_patch
            .bare(frame.bytes_mut(), seq, sequence(self.iss, upto));
        out.push(frame);
        self.acked = upto;
        true
    }

    /// Acknowledges every second segment.
    fn acknowledgments(&mut self, max: usize, out: &mut Vec<Frame>) {
        // ORDERING: Acquire, pairs with the Release in `PeerTx::transmit`.
        let received = self.wire.received.load(Ordering::Acquire);
        let two = u64::from(2 * self.segment);
        while out.len() < max && received - self.acked >= two {
            let upto = self.acked + two;
            if !self.acknowledge(upto, out) {
                return;
            }
        }
        self.silence = if received == self.heard {
            self.silence + 1
        } else {
            0
        };
        self.heard = received;
        if self.silence >= PATIENCE && received > self.acked && out.len() < max {
            self.acknowledge(received, out);
        }
    }

    /// Sends segments as far as the window goes.
    fn segments(&mut self, max: usize, out: &mut Vec<Frame>) {
        let left = if self.role == Role::Free {
            usize::MAX
        } else {
            // ORDERING: Acquire, pairs with the Release in `PeerTx::window`.
            let edge = self.wire.window.load(Ordering::Acquire) as u32;
            let open = edge.wrapping_sub(sequence(PEER_ISS, self.offset));
            // The edge may lie behind what was sent only for a moment in the handshake.
            (open as i32).max(0) as usize / self.segment as usize
        };
        let count = left.min(max - out.len()).min(self.data.len());
        let ack = sequence(self.iss, self.acked);
        for mut frame in self.data.drain(..count) {
            let seq = sequence(PEER_ISS, self.offset);
            self.data_patch
                .marked(frame.bytes_mut(), seq, ack, self.offset as u32);
            self.offset += u64::from(self.segment);
            out.push(frame);
        }
        // A network card leaves headers in a cache; these are fetched into one before their time comes.
        for frame in self.data.iter().take(count) {
            kernel::prefetch(&frame.bytes()[..HEADERS + 4]);
        }
    }
}

/// `count` frames like `bytes` in buffers that begin with a cache line, as a network card's do, so that the
/// headers are one line. For that the allocator is moved on until it gives such buffers, and asked for whole
/// lines from then on.
fn copies(bytes: &[u8], capacity: usize, count: usize) -> VecDeque<Frame> {
    let copy = || {
        let mut frame = Frame::with_capacity(capacity);
        frame.set_len(bytes.len());
        frame.bytes_mut().copy_from_slice(bytes);
        frame
    };
    let mut fillers: Vec<Vec<u8>> = Vec::new();
    while fillers.len() < 16 && !copy().bytes().as_ptr().addr().is_multiple_of(64) {
        fillers.push(Vec::with_capacity(72));
    }
    (0..count).map(|_| copy()).collect()
}

/// The sequence number of octet `offset` of the stream that begins after `iss`.
#[inline]
fn sequence(iss: u32, offset: u64) -> u32 {
    iss.wrapping_add(1).wrapping_add(offset as u32)
}

impl DeviceRx for PeerRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let before = out.len();
        let max = before + max;
        if self.phase != Phase::Established {
            self.handshake(out);
        } else {
            match self.role {
                Role::Receiver => self.acknowledgments(max, out),
                Role::Sender | Role::Free => self.segments(max, out),
            }
        }
        let claimed = out.len() - before;
        self.stats.frames += claimed as u64;
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        for frame in frames.drain(..) {
            // The two kinds differ in capacity; what is neither was made for the handshake.
            match frame.capacity() {
                112 => self.acks.push_back(frame),
                other if other > 112 => self.data.push_back(frame),
                _ => {}
            }
        }
    }

    fn wait(&mut self, _timeout: Option<Duration>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn waker(&self) -> Waker {
        Waker::new(|| ())
    }

    fn stats(&self) -> RxStats {
        self.stats
    }
}

/// The half that the stack sends to.
#[derive(Debug)]
pub(crate) struct PeerTx {
    wire: Arc<Wire>,
    role: Role,
    /// Window scale of the stack.
    scale: u8,
    /// Acknowledgment number and window of the newest frame.
    last: Option<(u32, u16)>,
    /// Sequence number that the next segment should begin with.
    next: u32,
    received: u64,
    /// The stack's stream, repeated.
    expected: Vec<u8>,
    stats: TxStats,
}

impl PeerTx {
    fn syn(&mut self, seen: headers::Seen, options: &[u8]) {
        self.scale = headers::window_scale(options);
        self.next = seen.seq.wrapping_add(1);
        // The window of a SYN is not scaled (RFC 7323 section 2.2).
        self.window(seen.ack, u32::from(seen.wnd));
        // ORDERING: Release, pairs with the Acquire in `PeerRx::handshake`.
        self.wire
            .syn
            .store(1 << 32 | u64::from(seen.seq), Ordering::Release);
    }

    fn window(&self, ack: u32, wnd: u32) {
        let edge = ack.wrapping_add(wnd);
        let word = u64::from(ack) << 32 | u64::from(edge);
        // ORDERING: Release, pairs with the Acquire in `PeerRx::segments`.
        self.wire.window.store(word, Ordering::Release);
    }

    fn fault(count: &AtomicU64) {
        // ORDERING: Relaxed, a count.
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn frame(&mut self, frame: &TxFrame<'_>) {
        let faults = &self.wire.faults;
        let Some(seen) = headers::read(frame.head) else {
            return Self::fault(&faults.unexpected);
        };
        // ORDERING: Relaxed, a wish.
        if self.wire.verify.load(Ordering::Relaxed) {
            self.verify(frame, seen);
        }
        if self.role == Role::Free {
            self.received += (frame.len() - seen.head) as u64;
            return;
        }
        if seen.flags & (flags::SYN | flags::RST | flags::FIN) != 0 {
            if seen.flags == flags::SYN | flags::ACK && self.last.is_none() {
                self.syn(seen, frame.head.get(headers::HEADERS..).unwrap_or(&[]));
            } else {
                Self::fault(&faults.unexpected);
            }
            return;
        }
        let len = frame.len() - seen.head;
        if seen.seq != self.next {
            Self::fault(&faults.out_of_order);
        }
        self.next = seen.seq.wrapping_add(len as u32);
        self.received += len as u64;
        let now = (seen.ack, seen.wnd);
        if self.role == Role::Sender && len == 0 && self.last == Some(now) {
            Self::fault(&faults.duplicate_acks);
        }
        self.last = Some(now);
    }

    /// Compares checksum and payload with what they should be.
    fn verify(&self, frame: &TxFrame<'_>, seen: headers::Seen) {
        let whole = [frame.head, frame.payload].concat();
        let payload = whole.get(seen.head..).unwrap_or(&[]);
        let at = self.received as usize % self.expected.len();
        let mut expected = self.expected.iter().cycle().skip(at);
        let as_written =
            self.role == Role::Free || payload.iter().all(|b| expected.next() == Some(b));
        if !as_written || !headers::checksum_is_good(&whole) {
            Self::fault(&self.wire.faults.wrong);
        }
    }
}

impl DeviceTx for PeerTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        let before = self.received;
        for frame in frames {
            self.frame(frame);
        }
        if let Some((ack, wnd)) = self.last {
            self.window(ack, u32::from(wnd) << self.scale);
        }
        if self.received != before {
            // ORDERING: Release, pairs with the Acquire in `PeerRx::acknowledgments`.
            self.wire.received.store(self.received, Ordering::Release);
        }
        self.stats.frames += frames.len() as u64;
        Ok(frames.len())
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Workload {
        Workload {
            pool_bytes: 1 << 20,
            ..Workload::default()
        }
    }

    fn claim(rx: &mut PeerRx, max: usize) -> Vec<Frame> {
        let mut frames = Vec::new();
        assert_eq!(rx.claim(max, &mut frames), Ok(frames.len()));
        frames
    }

    /// A frame of the stack, as the peer gets it.
    fn ours(flags: u8, seq: u32, ack: u32, wnd: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut frame = headers::frame(&headers::any_ends(), flags, wnd, options, payload);
        // Of segments, nobody looks at the checksum here.
        Patch::new(&frame).bare(&mut frame, seq, ack);
        frame
    }

    fn open(role: Role) -> (PeerRx, PeerTx, Arc<Wire>) {
        let (device, wire) = PeerDevice::new(role, &small());
        wire.verify(false);
        let (mut rx, mut tx) = device.into_halves();
        let syn = claim(&mut rx, 32);
        assert_eq!(headers::read(&syn[0]).map(|s| s.flags), Some(flags::SYN));
        assert!(claim(&mut rx, 32).is_empty());
        let options = headers::syn_options(1460, 4);
        let syn_ack = ours(
            flags::SYN | flags::ACK,
            99,
            PEER_ISS + 1,
            u16::MAX,
            &options,
            &[],
        );
        tx.transmit(&[TxFrame::new(&syn_ack)]).unwrap();
        let ack = claim(&mut rx, 32);
        assert_eq!(
            headers::read(&ack[0]).map(|s| (s.seq, s.ack)),
            Some((PEER_ISS + 1, 100))
        );
        (rx, tx, wire)
    }

    #[test]
    fn the_sender_stops_at_the_edge_of_the_window() {
        let (mut rx, mut tx, wire) = open(Role::Sender);
        let mut sent = 0;
        loop {
            let mut frames = claim(&mut rx, 32);
            if frames.is_empty() {
                break;
            }
            assert!(frames.iter().all(|f| headers::checksum_is_good(f)));
            sent += frames.len() as u32;
            rx.release(&mut frames);
        }
        assert_eq!(sent, 65_535 / 1448);
        let upto = PEER_ISS + 1 + sent * 1448;
        let ack = ours(flags::ACK, 100, upto, 1448 * 2 / 16 + 1, &[], &[]);
        tx.transmit(&[TxFrame::new(&ack)]).unwrap();
        assert_eq!(claim(&mut rx, 32).len(), 2);
        assert_eq!(wire.check(), Ok(()));
        tx.transmit(&[TxFrame::new(&ack)]).unwrap();
        assert!(wire.check().is_err());
    }

    #[test]
    fn the_receiver_acknowledges_every_second_segment_and_a_last_one_late() {
        let (mut rx, mut tx, wire) = open(Role::Receiver);
        for i in 0..5 {
            let f = ours(flags::ACK, 100 + 1448 * i, PEER_ISS + 1, 9, &[], &[1; 1448]);
            tx.transmit(&[TxFrame::new(&f)]).unwrap();
        }
        let acks: Vec<_> = claim(&mut rx, 32)
            .iter()
            .map(|f| headers::read(f).unwrap().ack)
            .collect();
        assert_eq!(acks, [100 + 2 * 1448, 100 + 4 * 1448]);
        let late = (0..PATIENCE)
            .map(|_| claim(&mut rx, 32).len())
            .sum::<usize>();
        assert_eq!(late, 1);
        assert_eq!(wire.received_bytes(), 5 * 1448);
        let again = ours(flags::ACK, 100, PEER_ISS + 1, 9, &[], &[1; 1448]);
        tx.transmit(&[TxFrame::new(&again)]).unwrap();
        assert!(wire.check().is_err());
    }
}
