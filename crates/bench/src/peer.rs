//! The simulated peer: a device whose far side is a sender and a receiver made of prebuilt frames.
//!
//! These are the in-memory drivers of Nahum, Yates, Kurose and Towsley, *Performance issues in parallelized
//! network protocols* (1994), section 2.3: a simulated sender that takes its packets from prebuilt templates,
//! produces them in order and controls its flow by the acknowledgments and windows it is given; a simulated
//! receiver that acknowledges every other packet; both open the connections themselves, and neither has a
//! thread, since the driver borrows that of its caller. Here, whoever holds the receive pump patches the
//! headers of the next prebuilt frames inside [`DeviceRx::claim`]; whoever holds the transmit pump reads the
//! headers of what the stack sends inside [`DeviceTx::transmit`]. The two halves meet in a few atomic words.
//!
//! What differs from theirs: the frames have right checksums, which are patched with the headers (theirs were
//! wrong, and the result ignored), and circulate in a pool that is larger than a cache, as a card's do, in the order of
//! their addresses: it is the same for all rows, in whichever order they give frames back. Frames
//! of several connections come in bursts of at most 8 of one, in turn. With payload both ways,
//! acknowledgments ride on the segments of the sender, and go by themselves when its window is closed.
//!
//! The sender never sends anything twice; the receiver acknowledges a single segment when nothing follows it.
//! Both check what they see: an acknowledgment that repeats the last one while segments are in flight, and a
//! segment that is sent again, are counted, and fail the measurement; the latter is excused where a thread was held up
//! for long. Segments out of order are counted and put into their place, and acknowledged when
//! nothing before them is missing, without the repeated acknowledgments of RFC 5681 section 4.2. What an older
//! frame says of the window is not news (RFC 9293 section 3.10.7.4).

mod pool;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use dominoes_drivers::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, Frame, RxChecksum, RxChecksumSupport,
    RxMeta, RxStats, TxChecksum, TxFrame, TxStats, Waker,
};

use dominoes_netstack::processor::Processor;

use crate::headers::{self, Ends, HEADERS, Numbers, Patch, flags};
use crate::inline;
use crate::workload::Workload;
use pool::Pool;

/// Port at which the stack listens for the peer.
pub(crate) const PORT: u16 = 5_001;
/// First sequence number of the peer, on every connection.
const PEER_ISS: u32 = 0x4000_0000;
/// Window scale of the peer: with a full window field, 8 MB.
const PEER_SCALE: u8 = 7;
/// Pure acknowledgments in circulation.
const ACKS: usize = 4096;
/// Octets of their buffers; those of segments are larger.
const ACK_BUFFER: usize = 112;
/// Calls without news after which a segment by itself is acknowledged.
const PATIENCE: u32 = 64;
/// Segments of one connection in a row, if there are several.
const BURST: usize = 8;
/// Segments between two ticks of the peer's timestamp clock: about a millisecond.
const TICK: u64 = 512;

/// What the peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sends as much as the window allows.
    Sender,
    /// Takes what is sent and acknowledges it.
    Receiver,
    /// Both at once, on the same connections.
    Both,
    /// Frames without a connection: no handshake, no window, nothing is read of what is sent but headers.
    Free,
}

/// What both halves, and who measures, share.
#[derive(Debug)]
pub(crate) struct Wire {
    connections: Box<[Shared]>,
    faults: CachePadded<Faults>,
    /// Whether payloads are compared with what they should be.
    verify: AtomicBool,
}

/// What both halves share of one connection.
#[derive(Debug, Default)]
struct Shared {
    /// The stack's first sequence number, in the low half; the high half is not zero once it is known.
    syn: CachePadded<AtomicU64>,
    /// As the stack's newest frame says: its timestamp (high half) and the right edge of its window (low half).
    window: CachePadded<AtomicU64>,
    /// Payload octets that the stack sent, in order.
    received: CachePadded<AtomicU64>,
}

/// What should not happen.
#[derive(Debug, Default)]
struct Faults {
    /// Acknowledgments that repeat the one before.
    duplicate_acks: AtomicU64,
    /// Segments that begin behind the first octet that is missing.
    out_of_order: AtomicU64,
    /// Segments that begin before it.
    sent_again: AtomicU64,
    /// Octets or checksums that are not what they should be.
    wrong: AtomicU64,
    /// Frames that end the connection, or are no TCP.
    unexpected: AtomicU64,
}

impl Wire {
    /// Payload octets of connection `index` that arrived at the peer in order.
    pub(crate) fn received_bytes(&self, index: usize) -> u64 {
        // ORDERING: Relaxed, a count for who measures.
        self.connections[index].received.load(Ordering::Relaxed)
    }

    /// Turns the comparison of payloads on or off.
    pub(crate) fn verify(&self, on: bool) {
        // ORDERING: Relaxed, a wish.
        self.verify.store(on, Ordering::Relaxed);
    }

    /// Segments that were sent again. Nothing is lost here, so there is no reason to, unless threads of the row
    /// were held up for longer than a retransmission timeout.
    pub(crate) fn sent_again(&self) -> u64 {
        // ORDERING: Relaxed, a count.
        self.faults.sent_again.load(Ordering::Relaxed)
    }

    /// Segments that were sent before one that belongs before them. Stacks may do that where several cores build
    /// frames and one of them is late.
    pub(crate) fn out_of_order(&self) -> u64 {
        // ORDERING: Relaxed, a count.
        self.faults.out_of_order.load(Ordering::Relaxed)
    }

    /// Says what went wrong, if anything did, besides [`Wire::sent_again`] and
    /// [`Wire::out_of_order`].
    pub(crate) fn check(&self) -> Result<(), String> {
        Self::none_of(&[(&self.faults.duplicate_acks, "repeated acknowledgments")])?;
        self.check_reordering()
    }

    /// As [`Wire::check`], of a stack that may reorder what arrives: it repeats acknowledgments then (RFC 5681
    /// section 4.2), which this peer does not take for loss.
    pub(crate) fn check_reordering(&self) -> Result<(), String> {
        Self::none_of(&[
            (
                &self.faults.wrong,
                "frames with a wrong payload or checksum",
            ),
            (&self.faults.unexpected, "unexpected frames"),
        ])
    }

    fn none_of(faults: &[(&AtomicU64, &str)]) -> Result<(), String> {
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
    checksum: bool,
    rx: PeerRx,
    tx: PeerTx,
}

impl PeerDevice {
    /// A device, and what tells of it.
    pub(crate) fn new(role: Role, workload: &Workload) -> (PeerDevice, Arc<Wire>) {
        Self::with_period(role, workload, workload.ring_bytes as usize)
    }

    /// The same for a stack whose send ring is `period` octets long.
    pub(crate) fn with_period(
        role: Role,
        workload: &Workload,
        period: usize,
    ) -> (PeerDevice, Arc<Wire>) {
        let ends = headers::any_ends();
        debug_assert_eq!(ends.to.port(), PORT);
        let connections = workload.connections;
        let wire = Arc::new(Wire {
            connections: (0..connections).map(|_| Shared::default()).collect(),
            faults: CachePadded::default(),
            verify: AtomicBool::new(true),
        });
        let device = PeerDevice {
            checksum: workload.checksum,
            rx: PeerRx::new(role, workload, ends, Arc::clone(&wire)),
            tx: PeerTx {
                wire: Arc::clone(&wire),
                role,
                stamped: workload.timestamps,
                first_port: ends.from.port(),
                connections: vec![Heard::default(); connections],
                current: 0,
                expected: workload.ring(period),
                processor: inline::processor(workload).unwrap_or_default(),
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
        let mut caps = Capabilities::new("peer0");
        if !self.checksum {
            caps.rx_checksum = RxChecksumSupport::Always;
            caps.tx_checksum = true;
        }
        caps
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
    ends: Ends,
    segment: u32,
    stamped: bool,
    /// What all frames say of their checksums.
    checksum: RxChecksum,
    /// Octets at the beginning of a frame that are about to be patched.
    head: usize,
    /// Frames with payload, for each prebuilt payload (one, if all are alike); the one that was unused for longest
    /// first. Stacks give frames back in any order.
    data: Vec<Pool>,
    /// For each of them.
    data_patches: Vec<Patch>,
    /// Whether payloads begin with their offset.
    marked: bool,
    acks: Pool,
    ack_patch: Patch,
    connections: Vec<Told>,
    /// Connections that are established; they are opened one after the other.
    open: usize,
    /// Whose turn it is.
    turn: usize,
    /// Segments sent, of all connections.
    sent: u64,
    stats: RxStats,
}

/// What the sending half knows of one connection.
#[derive(Debug)]
struct Told {
    index: usize,
    phase: Phase,
    /// Next octet of the peer's stream.
    offset: u64,
    /// The stack's first sequence number.
    iss: u32,
    /// How much of the stack's stream was acknowledged.
    acked: u64,
    /// How much of it had arrived at the last call, and how often it was the same since.
    heard: u64,
    silence: u32,
}

impl PeerRx {
    fn new(role: Role, workload: &Workload, ends: Ends, wire: Arc<Wire>) -> Self {
        let options: &[u8] = if workload.timestamps {
            &headers::timestamps(0, 0)
        } else {
            &[]
        };
        let checksum = if workload.checksum {
            RxChecksum::Verify
        } else {
            RxChecksum::Valid
        };
        // If there is no such processor, the stack says so.
        let processed = inline::segments(workload).unwrap_or_default();
        let marked = processed.is_none();
        let payloads = processed.map_or_else(|| vec![workload.payload()], |(all, _)| all);
        let segments: Vec<Vec<u8>> = payloads
            .iter()
            .zip(0..)
            .map(|(payload, id)| {
                let mut f = headers::frame(&ends, flags::ACK, u16::MAX, options, payload);
                headers::identify(&mut f, id);
                f
            })
            .collect();
        let patch = |segment: &Vec<u8>| {
            if marked {
                Patch::with_mark(segment)
            } else {
                Patch::new(segment)
            }
        };
        let ack = headers::frame(&ends, flags::ACK, u16::MAX, options, &[]);
        let frames = if role == Role::Receiver {
            0
        } else {
            workload.frames()
        };
        let count = frames / segments.len();
        let told = |index| Told {
            index,
            phase: Phase::Closed,
            offset: 0,
            iss: 0,
            acked: 0,
            heard: 0,
            silence: 0,
        };
        let meta = RxMeta {
            checksum,
            ..RxMeta::default()
        };
        PeerRx {
            data: segments
                .iter()
                .map(|segment| Pool::new(segment, workload.buffer_bytes(), count, meta))
                .collect(),
            data_patches: segments.iter().map(patch).collect(),
            marked,
            acks: Pool::new(&ack, ACK_BUFFER, ACKS, meta),
            ack_patch: Patch::new(&ack),
            wire,
            role,
            ends,
            segment: workload.segment_bytes as u32,
            stamped: workload.timestamps,
            checksum,
            head: workload.head_bytes() + 4,
            connections: (0..workload.connections).map(told).collect(),
            open: if role == Role::Free {
                workload.connections
            } else {
                0
            },
            turn: 0,
            sent: 0,
            stats: RxStats::default(),
        }
    }

    fn port(&self, index: usize) -> u16 {
        self.ends.from.port() + index as u16
    }

    fn handshake(&mut self, out: &mut Vec<Frame>) {
        let index = self.open;
        match self.connections[index].phase {
            Phase::Closed => {
                // The size that is announced counts no options (RFC 6691).
                let options_len = if self.stamped { headers::STAMP } else { 0 };
                let mss = self.segment as u16 + options_len as u16;
                let options = headers::syn_options(mss, PEER_SCALE, self.stamped);
                let mut syn = headers::frame(&self.ends, flags::SYN, u16::MAX, &options, &[]);
                let numbers = Numbers {
                    port: self.port(index),
                    seq: PEER_ISS,
                    ..Numbers::default()
                };
                Patch::new(&syn).bare(&mut syn, &numbers);
                let mut syn = Frame::from_bytes(&syn);
                syn.meta.checksum = self.checksum;
                out.push(syn);
                self.connections[index].phase = Phase::SynSent;
            }
            Phase::SynSent => {
                // ORDERING: Acquire, pairs with the Release in `PeerTx::syn`.
                let syn = self.wire.connections[index].syn.load(Ordering::Acquire);
                if syn >> 32 != 0 {
                    self.connections[index].iss = syn as u32;
                    self.connections[index].phase = Phase::Established;
                    self.open += 1;
                    self.acknowledge(index, 0, out);
                }
            }
            Phase::Established => {}
        }
    }

    /// The stack's window and timestamp on connection `index`.
    #[inline]
    fn window(&self, index: usize) -> (u32, u32) {
        // ORDERING: Acquire, pairs with the Release in `PeerTx::window`.
        let word = self.wire.connections[index].window.load(Ordering::Acquire);
        (word as u32, (word >> 32) as u32)
    }

    /// The peer's timestamp clock.
    #[inline]
    fn clock(&self) -> u32 {
        (self.sent / TICK) as u32
    }

    /// A pure acknowledgment of the stack's stream up to `upto`.
    fn acknowledge(&mut self, index: usize, upto: u64, out: &mut Vec<Frame>) -> bool {
        let Some(mut frame) = self.acks.take() else {
            return false;
        };
        let told = &self.connections[index];
        let numbers = Numbers {
            port: self.port(index),
            seq: sequence(PEER_ISS, told.offset),
            ack: sequence(told.iss, upto),
            stamp: if self.stamped {
                (self.clock(), self.window(index).1)
            } else {
                (0, 0)
            },
        };
        self.ack_patch.bare(frame.bytes_mut(), &numbers);
        out.push(frame);
        self.connections[index].acked = upto;
        true
    }

    /// Acknowledges every second segment.
    fn acknowledgments(&mut self, index: usize, max: usize, out: &mut Vec<Frame>) {
        // ORDERING: Acquire, pairs with the Release in `PeerTx::settle`.
        let received = self.wire.connections[index]
            .received
            .load(Ordering::Acquire);
        let two = u64::from(2 * self.segment);
        let due = ((received - self.connections[index].acked) / two) as usize;
        self.acks.prefetch(due.min(max - out.len()), HEADERS);
        while out.len() < max && received - self.connections[index].acked >= two {
            let upto = self.connections[index].acked + two;
            if !self.acknowledge(index, upto, out) {
                return;
            }
            self.sent += 2;
        }
        let told = &mut self.connections[index];
        told.silence = if received == told.heard {
            told.silence + 1
        } else {
            0
        };
        told.heard = received;
        if told.silence >= PATIENCE && received > told.acked && out.len() < max {
            self.acknowledge(index, received, out);
        }
    }

    /// Sends segments as far as the window goes, at most until `out` holds `max` frames. Returns how many.
    fn segments(&mut self, index: usize, max: usize, out: &mut Vec<Frame>) -> usize {
        let (edge, echo) = self.window(index);
        let clock = self.clock();
        let told = &mut self.connections[index];
        let left = if self.role == Role::Free {
            usize::MAX
        } else {
            let open = edge.wrapping_sub(sequence(PEER_ISS, told.offset));
            // The edge may lie behind what was sent only for a moment in the handshake.
            (open as i32).max(0) as usize / self.segment as usize
        };
        let rounds = self.data.len();
        let mut kind = if rounds == 1 {
            0
        } else {
            (told.offset / u64::from(self.segment)) as usize % rounds
        };
        let count = left.min(max - out.len());
        let any = !self.data[kind].is_empty();
        if self.role == Role::Both && count > 0 && any {
            // ORDERING: Acquire, pairs with the Release in `PeerTx::settle`.
            let received = &self.wire.connections[index].received;
            told.acked = received.load(Ordering::Acquire);
        }
        let mut numbers = Numbers {
            port: self.ends.from.port() + told.index as u16,
            seq: sequence(PEER_ISS, told.offset),
            ack: sequence(told.iss, told.acked),
            stamp: (clock, echo),
        };
        if rounds == 1 {
            self.data[0].prefetch(count, self.head);
        } else {
            for at in 0..count.min(rounds) {
                self.data[(kind + at) % rounds].prefetch(1, self.head);
            }
        }
        for sent in 0..count {
            let Some(mut frame) = self.data[kind].take() else {
                self.sent += sent as u64;
                return sent;
            };
            let patch = &self.data_patches[kind];
            if self.marked {
                let offset = told.offset as u32;
                patch.marked(frame.bytes_mut(), &numbers, offset);
            } else {
                patch.bare(frame.bytes_mut(), &numbers);
                kind = (kind + 1) % rounds;
            }
            numbers.seq = numbers.seq.wrapping_add(self.segment);
            told.offset += u64::from(self.segment);
            out.push(frame);
        }
        self.sent += count as u64;
        count
    }

    /// The next frames of connection `index`.
    fn serve(&mut self, index: usize, max: usize, out: &mut Vec<Frame>) {
        match self.role {
            Role::Receiver => self.acknowledgments(index, max, out),
            Role::Sender | Role::Free => {
                self.segments(index, max, out);
            }
            Role::Both => {
                if self.segments(index, max, out) == 0 {
                    self.acknowledgments(index, max, out);
                }
            }
        }
    }
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
        let count = self.connections.len();
        if self.open < count {
            self.handshake(out);
        } else if count == 1 {
            self.serve(0, max, out);
        } else {
            let mut without = 0;
            while out.len() < max && without < count {
                let index = self.turn;
                self.turn = (index + 1) % count;
                let had = out.len();
                self.serve(index, max.min(had + BURST), out);
                without = if out.len() == had { without + 1 } else { 0 };
            }
        }
        let claimed = out.len() - before;
        self.stats.frames += claimed as u64;
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        for frame in frames.drain(..) {
            // The two kinds differ in capacity; what is smaller was made for the handshake.
            match frame.capacity() {
                ACK_BUFFER => self.acks.give_back(frame),
                other if other > ACK_BUFFER => {
                    let kind = match self.data.len() {
                        1 => 0,
                        _ => usize::from(headers::identification(&frame)),
                    };
                    self.data[kind].give_back(frame);
                }
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
    stamped: bool,
    first_port: u16,
    connections: Vec<Heard>,
    /// The connection that the last frame belonged to, whose news are not told yet.
    current: usize,
    /// The stack's stream as it is written, repeated.
    expected: Vec<u8>,
    /// What it does to it.
    processor: Option<Arc<dyn Processor>>,
    stats: TxStats,
}

/// What the receiving half knows of one connection.
#[derive(Clone, Debug, Default)]
struct Heard {
    /// Window scale of the stack.
    scale: u8,
    /// Acknowledgment number and window of the newest frame.
    last: Option<(u32, u16)>,
    /// Its timestamp.
    stamp: u32,
    /// Sequence number that the next segment should begin with.
    next: u32,
    received: u64,
    /// What `Shared::received` was told.
    told: u64,
    /// What arrived beyond `next`: sequence numbers of the first octet and of the one behind the last.
    beyond: Vec<(u32, u32)>,
}

impl Heard {
    /// Octets `seq` to `seq + len` have arrived.
    fn take(&mut self, seq: u32, len: u32) {
        let end = seq.wrapping_add(len);
        if seq.wrapping_sub(self.next) as i32 > 0 {
            match self.beyond.last_mut() {
                Some((_, last)) if *last == seq => *last = end,
                _ => self.beyond.push((seq, end)),
            }
            return;
        }
        self.advance(end);
        while let Some(at) =
            (self.beyond.iter()).position(|(begin, _)| begin.wrapping_sub(self.next) as i32 <= 0)
        {
            let (_, end) = self.beyond.swap_remove(at);
            self.advance(end);
        }
    }

    fn advance(&mut self, end: u32) {
        let new = end.wrapping_sub(self.next) as i32;
        if new > 0 {
            self.next = end;
            self.received += u64::from(new as u32);
        }
    }
}

impl PeerTx {
    fn syn(&mut self, index: usize, seen: headers::Seen, options: &[u8]) {
        let heard = &mut self.connections[index];
        heard.scale = headers::window_scale(options);
        heard.next = seen.seq.wrapping_add(1);
        // The window of a SYN is not scaled (RFC 7323 section 2.2).
        let stamp = headers::stamp(options);
        self.window(index, seen.ack.wrapping_add(u32::from(seen.wnd)), stamp);
        // ORDERING: Release, pairs with the Acquire in `PeerRx::handshake`.
        self.wire.connections[index]
            .syn
            .store(1 << 32 | u64::from(seen.seq), Ordering::Release);
    }

    fn window(&self, index: usize, edge: u32, stamp: u32) {
        let word = u64::from(stamp) << 32 | u64::from(edge);
        // ORDERING: Release, pairs with the Acquire in `PeerRx::window`.
        self.wire.connections[index]
            .window
            .store(word, Ordering::Release);
    }

    /// Tells the other half what the last frames of connection `index` changed.
    fn settle(&mut self, index: usize) {
        let heard = &self.connections[index];
        if let Some((ack, wnd)) = heard.last {
            let edge = ack.wrapping_add(u32::from(wnd) << heard.scale);
            self.window(index, edge, heard.stamp);
        }
        let heard = &mut self.connections[index];
        if heard.received != heard.told {
            heard.told = heard.received;
            // ORDERING: Release, pairs with the Acquires in `PeerRx::acknowledgments` and `segments`.
            self.wire.connections[index]
                .received
                .store(heard.received, Ordering::Release);
        }
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
        let index = match self.role {
            Role::Free => 0,
            _ => usize::from(seen.port.wrapping_sub(self.first_port)),
        };
        if index >= self.connections.len() {
            return Self::fault(&faults.unexpected);
        }
        if index != self.current {
            self.settle(self.current);
            self.current = index;
        }
        let faults = &self.wire.faults;
        // ORDERING: Relaxed, a wish.
        if self.wire.verify.load(Ordering::Relaxed) {
            self.verify(index, frame, seen);
        }
        if self.role == Role::Free {
            self.connections[index].received += (frame.len() - seen.head) as u64;
            return;
        }
        if seen.flags & (flags::SYN | flags::RST | flags::FIN) != 0 {
            let first = self.connections[index].last.is_none();
            if seen.flags == flags::SYN | flags::ACK && first {
                self.syn(index, seen, frame.head.get(HEADERS..).unwrap_or(&[]));
            } else {
                Self::fault(&faults.unexpected);
            }
            return;
        }
        let heard = &mut self.connections[index];
        let len = frame.len() - seen.head;
        let ahead = seen.seq.wrapping_sub(heard.next) as i32;
        if ahead != 0 {
            // One without text sends nothing again, however late it comes.
            Self::fault(if ahead > 0 || len == 0 {
                &faults.out_of_order
            } else {
                &faults.sent_again
            });
        }
        heard.take(seen.seq, len as u32);
        if self.stamped {
            heard.stamp = headers::stamp(frame.head.get(HEADERS..).unwrap_or(&[]));
        }
        let now = (seen.ack, seen.wnd);
        if self.role == Role::Sender && len == 0 && heard.last == Some(now) {
            Self::fault(&faults.duplicate_acks);
        }
        let overtaken = |(last, _): (u32, u16)| (seen.ack.wrapping_sub(last) as i32) < 0;
        if heard.last.is_some_and(overtaken) {
            return Self::fault(&faults.out_of_order);
        }
        heard.last = Some(now);
    }

    /// Compares checksum and payload with what they should be.
    fn verify(&self, index: usize, frame: &TxFrame<'_>, seen: headers::Seen) {
        let whole = [frame.head, frame.payload].concat();
        let payload = whole.get(seen.head..).unwrap_or(&[]);
        let heard = &self.connections[index];
        // Before or behind what arrived in order, by so much.
        let ahead = match self.role {
            Role::Free => 0,
            _ => seen.seq.wrapping_sub(heard.next) as i32,
        };
        let offset = heard.received.wrapping_add_signed(i64::from(ahead));
        let at = (offset % self.expected.len() as u64) as usize;
        let expected = self.expected.iter().cycle().skip(at);
        let as_written = match &self.processor {
            _ if self.role == Role::Free => true,
            None => payload.iter().zip(expected).all(|(a, b)| a == b),
            Some(processor) => {
                let written: Vec<u8> = expected.take(payload.len()).copied().collect();
                let mut sent = vec![0; payload.len()];
                processor.send(&inline::name(), offset, &written, &mut sent);
                payload == sent
            }
        };
        let checksum = match frame.meta.checksum {
            TxChecksum::Done => headers::checksum_is_good(&whole),
            // The device's to finish.
            TxChecksum::Partial { .. } => true,
        };
        if !as_written || !checksum {
            Self::fault(&self.wire.faults.wrong);
        }
    }
}

impl DeviceTx for PeerTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        for frame in frames {
            self.frame(frame);
        }
        self.settle(self.current);
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

    /// A frame of the stack on connection `index`, as the peer gets it.
    fn ours(index: u16, flags: u8, seq: u32, ack: u32, wnd: u16, rest: [&[u8]; 2]) -> Vec<u8> {
        let mut frame = headers::frame(&headers::any_ends(), flags, wnd, rest[0], rest[1]);
        // Of segments, nobody looks at the checksum here, nor at the port that is ours.
        let numbers = Numbers {
            port: PORT,
            seq,
            ack,
            stamp: (seq, 0),
        };
        Patch::new(&frame).bare(&mut frame, &numbers);
        frame[36..38].copy_from_slice(&(40_000 + index).to_be_bytes());
        frame
    }

    fn open_all(role: Role, workload: &Workload) -> (PeerRx, PeerTx, Arc<Wire>) {
        let (device, wire) = PeerDevice::new(role, workload);
        wire.verify(false);
        let (mut rx, mut tx) = device.into_halves();
        for index in 0..workload.connections as u16 {
            let syn = claim(&mut rx, 32);
            let seen = headers::read(&syn[0]).unwrap();
            assert_eq!((seen.flags, syn.len()), (flags::SYN, 1));
            assert!(claim(&mut rx, 32).is_empty());
            let options = headers::syn_options(1460, 4, workload.timestamps);
            let both = flags::SYN | flags::ACK;
            let rest = [&options[..], &[]];
            let syn_ack = ours(index, both, 99, PEER_ISS + 1, u16::MAX, rest);
            tx.transmit(&[TxFrame::new(&syn_ack)]).unwrap();
            let ack = claim(&mut rx, 32);
            assert_eq!(
                headers::read(&ack[0]).map(|s| (s.seq, s.ack)),
                Some((PEER_ISS + 1, 100))
            );
        }
        (rx, tx, wire)
    }

    fn open(role: Role) -> (PeerRx, PeerTx, Arc<Wire>) {
        open_all(role, &small())
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
        let ack = ours(0, flags::ACK, 100, upto, 1448 * 2 / 16 + 1, [&[], &[]]);
        tx.transmit(&[TxFrame::new(&ack)]).unwrap();
        assert_eq!(claim(&mut rx, 32).len(), 2);
        assert_eq!(wire.check(), Ok(()));
        tx.transmit(&[TxFrame::new(&ack)]).unwrap();
        assert!(wire.check().is_err());
    }

    #[test]
    fn the_receiver_acknowledges_every_second_segment_and_a_last_one_late() {
        let (mut rx, mut tx, wire) = open(Role::Receiver);
        let segment = |seq| ours(0, flags::ACK, seq, PEER_ISS + 1, 9, [&[], &[1; 1448]]);
        for i in 0..5 {
            tx.transmit(&[TxFrame::new(&segment(100 + 1448 * i))])
                .unwrap();
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
        assert_eq!(wire.received_bytes(0), 5 * 1448);
        tx.transmit(&[TxFrame::new(&segment(100))]).unwrap();
        assert_eq!((wire.sent_again(), wire.received_bytes(0)), (1, 5 * 1448));
        assert_eq!(wire.check(), Ok(()));
        // Half of it is new.
        tx.transmit(&[TxFrame::new(&segment(100 + 4 * 1448 + 724))])
            .unwrap();
        assert_eq!(
            (wire.sent_again(), wire.received_bytes(0)),
            (2, 5 * 1448 + 724)
        );
        assert_eq!(wire.check(), Ok(()));
    }

    #[test]
    fn segments_behind_a_hole_count_when_it_is_filled() {
        let (_, mut tx, wire) = open(Role::Receiver);
        let segment = |seq| ours(0, flags::ACK, seq, PEER_ISS + 1, 9, [&[], &[1; 1448]]);
        for i in [0, 3, 4, 2, 6] {
            tx.transmit(&[TxFrame::new(&segment(100 + 1448 * i))])
                .unwrap();
        }
        assert_eq!((wire.out_of_order(), wire.received_bytes(0)), (4, 1448));
        for (i, upto) in [(1, 5), (5, 7)] {
            tx.transmit(&[TxFrame::new(&segment(100 + 1448 * i))])
                .unwrap();
            assert_eq!(wire.received_bytes(0), upto * 1448);
        }
        // An acknowledgment that was behind the hole, too.
        let late = ours(0, flags::ACK, 100 + 1448, PEER_ISS + 1, 9, [&[], &[]]);
        tx.transmit(&[TxFrame::new(&late)]).unwrap();
        assert_eq!((wire.out_of_order(), wire.sent_again()), (5, 0));
        assert_eq!((wire.received_bytes(0), wire.check()), (7 * 1448, Ok(())));
    }

    #[test]
    fn an_older_acknowledgment_does_not_close_the_window() {
        let (mut rx, mut tx, wire) = open(Role::Sender);
        while !claim(&mut rx, 32).is_empty() {}
        for upto in [45, 30] {
            let ack = PEER_ISS + 1 + upto * 1448;
            let frame = ours(0, flags::ACK, 100, ack, 1448 * 2 / 16 + 1, [&[], &[]]);
            tx.transmit(&[TxFrame::new(&frame)]).unwrap();
        }
        assert_eq!(claim(&mut rx, 32).len(), 2);
        assert_eq!((wire.out_of_order(), wire.check()), (1, Ok(())));
    }

    #[test]
    fn with_payload_both_ways_acknowledgments_ride_on_segments_while_there_are_any() {
        let (mut rx, mut tx, wire) = open(Role::Both);
        let segment = |seq| ours(0, flags::ACK, seq, PEER_ISS + 1, 4096, [&[], &[1; 1448]]);
        tx.transmit(&[TxFrame::new(&segment(100))]).unwrap();
        let frames = claim(&mut rx, 64);
        assert_eq!(frames.len(), 45, "as far as the window goes");
        for frame in &frames {
            assert_eq!(headers::read(frame).unwrap().ack, 100 + 1448);
            assert!(frame.len() > HEADERS);
        }
        for i in 1..4 {
            tx.transmit(&[TxFrame::new(&segment(100 + i * 1448))])
                .unwrap();
        }
        let bare = claim(&mut rx, 64);
        let acks: Vec<_> = bare
            .iter()
            .map(|f| (f.len(), headers::read(f).unwrap().ack))
            .collect();
        assert_eq!(acks, [(HEADERS, 100 + 3 * 1448)]);
        assert_eq!(wire.check(), Ok(()));
    }

    #[test]
    fn processed_frames_have_their_place_in_the_stream_whatever_order_they_come_back_in() {
        let workload = Workload {
            processing: crate::workload::Processing::Aes256Ctr,
            ..small()
        };
        let (mut rx, mut tx, wire) = open_all(Role::Sender, &workload);
        let (segments, _) = inline::segments(&workload).unwrap().unwrap();
        let mut offset = 0;
        for _ in 0..40 {
            let mut frames = claim(&mut rx, 32);
            for frame in &frames {
                assert_eq!(frame[HEADERS..], segments[offset / 1448 % segments.len()]);
                assert!(headers::checksum_is_good(frame));
                offset += 1448;
            }
            frames.reverse();
            rx.release(&mut frames);
            let upto = PEER_ISS + 1 + offset as u32;
            let ack = ours(0, flags::ACK, 100, upto, 4096, [&[], &[]]);
            tx.transmit(&[TxFrame::new(&ack)]).unwrap();
        }
        assert!(offset > 3 * 1448 * segments.len());
        assert_eq!(wire.check(), Ok(()));
    }

    #[test]
    fn connections_take_turns_and_have_windows_of_their_own() {
        let workload = Workload {
            connections: 3,
            timestamps: true,
            ..small()
        };
        let (mut rx, mut tx, wire) = open_all(Role::Sender, &workload);
        let frames = claim(&mut rx, 32);
        let ports: Vec<u16> = frames
            .iter()
            .map(|f| u16::from_be_bytes([f[34], f[35]]))
            .collect();
        assert_eq!(ports[..8], [40_000; 8]);
        assert_eq!(ports[8..16], [40_001; 8]);
        assert_eq!(ports[16..24], [40_002; 8]);
        assert_eq!(ports[24..], [40_000; 8]);
        assert!(frames.iter().all(|f| headers::checksum_is_good(f)));
        while !claim(&mut rx, 32).is_empty() {}
        let upto = PEER_ISS + 1 + 45 * 1448;
        let stamps = headers::timestamps(0, 0);
        let ack = ours(1, flags::ACK, 100, upto, 1448 / 16 + 1, [&stamps, &[]]);
        tx.transmit(&[TxFrame::new(&ack)]).unwrap();
        let more = claim(&mut rx, 32);
        assert_eq!(more.len(), 1);
        assert_eq!(more[0][34..36], 40_001u16.to_be_bytes());
        // The echo is the timestamp of the newest frame of that connection.
        assert_eq!(more[0][HEADERS + 8..HEADERS + 12], 100u32.to_be_bytes());
        assert_eq!(wire.check(), Ok(()));
    }
}
