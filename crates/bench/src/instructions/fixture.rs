//! A device for counting: its far side sends an exact number of segments, all of one
//! kind.
//!
//! As in the bench `scalability`, the peer is prebuilt frames whose sequence numbers and checksums
//! are patched when they are claimed, and that reads the headers of the stack's frames. It can
//! also use timestamps, vouch for checksums, and speak IPv6. Nothing in it is random, and it
//! runs on one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dominoes_drivers::memory::peer::headers::{
    self, Ends, HEADERS_LEN, IPV6_LONGER, Numbers, Patch, TcpHeader, flags,
};
use dominoes_drivers::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, Frame, RxChecksum,
    RxChecksumSupport, RxStats, TxFrame, TxStats,
};
use dominoes_testkit::packet::{self, Family};

use crate::drivers::Direction;
use crate::workload;

/// First sequence number of the peer.
const PEER_ISS: u32 = 0x4000_0000;
/// Window scale of the peer: with a full window field, 8 MB.
const PEER_SCALE: u8 = 7;
/// What the peer's clock shows, always.
const PEER_TIME: u32 = 77;
/// Bytes of a timestamps option with its padding (RFC 7323 appendix A).
const TIMESTAMPS: u32 = 12;
/// Frames in circulation.
const FRAMES: usize = 1024;

/// What the peer is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// What segments travel in.
    pub(super) family: Family,
    /// Which way payload goes.
    pub(super) direction: Direction,
    /// Bytes of payload in a segment.
    pub(super) segment: u32,
    /// Whether segments carry timestamps (RFC 7323).
    pub(super) timestamps: bool,
    /// Whether the device verifies and completes checksums.
    pub(super) verifies_checksums: bool,
    /// Whether every segment with payload has PSH, so that none can be merged with the next one.
    pub(super) pushed: bool,
}

/// Shared by both halves and the counting code. Everything happens on one thread; the words are
/// atomic because the halves of a device may go to different ones.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// The stack's first sequence number and TSval, high half and low half, once known.
    syn: AtomicU64,
    /// 1 once `syn` is known.
    known: AtomicU64,
    /// 1 if the stack asks how the peer is reached.
    is_asked: AtomicU64,
    /// Right edge of the stack's window.
    edge: AtomicU64,
    /// Payload bytes that the stack sent, in order.
    received: AtomicU64,
    /// Payload bytes that the peer may have sent altogether.
    allowed: AtomicU64,
    /// What should not have happened.
    faults: AtomicU64,
}

// ORDERING: Relaxed throughout, one thread.
const ORDER: Ordering = Ordering::Relaxed;

impl Link {
    /// Lets the peer send this number of bytes more.
    pub(super) fn allow(&self, bytes: u64) {
        self.allowed.fetch_add(bytes, ORDER);
    }

    /// Payload bytes that arrived at the peer.
    pub(super) fn received(&self) -> u64 {
        self.received.load(ORDER)
    }

    /// Frames that were out of order, repeated or unexpected.
    pub(super) fn faults(&self) -> u64 {
        self.faults.load(ORDER)
    }
}

/// The device. The headers of its segments are `LONGER` bytes longer than in
/// IPv4; it is no field, so that looking at it costs no instruction.
struct ScriptedDevice<const LONGER: usize> {
    plan: Plan,
    rx: ScriptedRx<LONGER>,
    tx: ScriptedTx<LONGER>,
}

/// A device, and its counters.
pub(super) fn device(plan: Plan) -> (Box<dyn Device>, Arc<Link>) {
    let link = Arc::new(Link::default());
    let device: Box<dyn Device> = match plan.family {
        Family::V4 => Box::new(ScriptedDevice::<0>::new(plan, &link)),
        Family::V6 => Box::new(ScriptedDevice::<IPV6_LONGER>::new(plan, &link)),
    };
    (device, link)
}

impl<const LONGER: usize> ScriptedDevice<LONGER> {
    fn new(plan: Plan, link: &Arc<Link>) -> Self {
        let empty = headers::tcp_frame(&Ends::default(), flags::ACK, u16::MAX, &[], &[]);
        ScriptedDevice {
            plan,
            rx: ScriptedRx {
                plan,
                link: Arc::clone(link),
                ends: Ends::default(),
                phase: Phase::Closed,
                pool: Vec::new(),
                others: 0,
                patch: Patch::new(&empty),
                len: 0,
                iss: 0,
                offset: 0,
                acked: 0,
                stats: RxStats::default(),
            },
            tx: ScriptedTx {
                link: Arc::clone(link),
                family: plan.family,
                offers_timestamps: plan.timestamps,
                scale: 0,
                next: 0,
                open: false,
                stats: TxStats::default(),
            },
        }
    }
}

impl<const LONGER: usize> Device for ScriptedDevice<LONGER> {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("lab0");
        if self.plan.verifies_checksums {
            capabilities.rx_checksum = RxChecksumSupport::Always;
            capabilities.tx_checksum = true;
        }
        capabilities
    }

    fn mac(&self) -> [u8; 6] {
        Ends::default().to_mac
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        (Box::new(self.rx), Box::new(self.tx))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Closed,
    SynSent,
    Established,
}

struct ScriptedRx<const LONGER: usize> {
    plan: Plan,
    link: Arc<Link>,
    ends: Ends,
    phase: Phase,
    /// Frames of the one kind that is needed: segments with payload, or acknowledgments.
    pool: Vec<Frame>,
    /// Frames of another length that are out.
    others: usize,
    patch: Patch,
    /// Bytes of such a frame.
    len: usize,
    iss: u32,
    /// Next byte of the peer's stream.
    offset: u64,
    /// How much of the stack's stream was acknowledged.
    acked: u64,
    stats: RxStats,
}

/// The timestamps option of every segment.
fn timestamps(echo: u32) -> [u8; TIMESTAMPS as usize] {
    let mut option = [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0];
    option[4..8].copy_from_slice(&PEER_TIME.to_be_bytes());
    option[8..].copy_from_slice(&echo.to_be_bytes());
    option
}

/// The sequence number of byte `offset` of the stream that begins after `iss`.
#[inline]
fn sequence(iss: u32, offset: u64) -> u32 {
    iss.wrapping_add(1).wrapping_add(offset as u32)
}

impl<const LONGER: usize> ScriptedRx<LONGER> {
    /// A frame of the peer, in the family of the plan.
    fn tcp_frame(&self, flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let frame = headers::tcp_frame(&self.ends, flags, u16::MAX, options, payload);
        let frame = self.plan.family.write(&frame);
        frame.expect("every family has segments")
    }

    /// Stores what differs between copies of `frame`.
    fn patch(frame: &mut [u8], numbers: &Numbers) {
        Patch::new(&frame[LONGER..]).bare(&mut frame[LONGER..], numbers);
    }

    fn handshake(&mut self, out: &mut Vec<Frame>) {
        match self.phase {
            Phase::Closed => {
                // Timestamps take their room from every segment, whatever the MSS is (RFC 6691).
                let room = if self.plan.timestamps { TIMESTAMPS } else { 0 };
                let mss = (self.plan.segment + room) as u16;
                let mut options = headers::syn_options(mss, PEER_SCALE, false);
                if self.plan.timestamps {
                    options.extend(timestamps(0));
                }
                let mut syn = self.tcp_frame(flags::SYN, &options, &[]);
                Self::patch(&mut syn, &self.numbers(PEER_ISS, 0));
                out.push(self.finished(&syn));
                self.others += 1;
                self.phase = Phase::SynSent;
            }
            Phase::SynSent => {
                if self.link.is_asked.swap(0, ORDER) == 1 {
                    let answer = self.plan.family.write(&headers::arp_reply(&self.ends));
                    let answer = answer.expect("every family has it");
                    out.push(Frame::from_bytes(&answer));
                    // Beside the answer, the copy of the SYN that waited for it comes back.
                    self.others += 2;
                } else if self.link.known.load(ORDER) == 1 {
                    let syn = self.link.syn.load(ORDER);
                    self.iss = (syn >> 32) as u32;
                    self.phase = Phase::Established;
                    self.establish(syn as u32, out);
                }
            }
            Phase::Established => {}
        }
    }

    /// The third frame of the handshake, and all frames that will be needed.
    fn establish(&mut self, echo: u32, out: &mut Vec<Frame>) {
        let option = timestamps(echo);
        let options: &[u8] = if self.plan.timestamps { &option } else { &[] };
        let mut ack = self.tcp_frame(flags::ACK, options, &[]);
        let template = match self.plan.direction {
            Direction::Receive | Direction::Both => {
                let payload = workload::bytes(1, self.plan.segment as usize);
                let push = if self.plan.pushed { flags::PSH } else { 0 };
                self.tcp_frame(flags::ACK | push, options, &payload)
            }
            Direction::Send => ack.clone(),
        };
        self.patch = Patch::new(&template[LONGER..]);
        self.len = template.len();
        self.pool = (0..FRAMES).map(|_| self.finished(&template)).collect();
        let numbers = self.numbers(sequence(PEER_ISS, 0), sequence(self.iss, 0));
        Self::patch(&mut ack, &numbers);
        out.push(self.finished(&ack));
        self.others += usize::from(ack.len() != self.len);
    }

    /// The fields that differ between frames. Timestamps do not, since the peer's clock never
    /// advances.
    fn numbers(&self, seq: u32, ack: u32) -> Numbers {
        Numbers {
            source_port: self.ends.from.port(),
            seq,
            ack,
            timestamps: (0, 0),
        }
    }

    fn finished(&self, bytes: &[u8]) -> Frame {
        let mut frame = Frame::from_bytes(bytes);
        if self.plan.verifies_checksums {
            frame.meta.checksum = RxChecksum::Valid;
        }
        frame
    }

    /// Sends the segments that are allowed and fit the window; one that would go past
    /// it waits.
    fn segments(&mut self, max: usize, out: &mut Vec<Frame>) {
        let segment = u64::from(self.plan.segment);
        let allowed = (self.link.allowed.load(ORDER) - self.offset) / segment;
        let edge = self.link.edge.load(ORDER) as u32;
        let open = edge.wrapping_sub(sequence(PEER_ISS, self.offset));
        let open = (open as i32).max(0) as usize / self.plan.segment as usize;
        let count = (allowed as usize).min(open).min(max).min(self.pool.len());
        let ack = sequence(self.iss, self.acked);
        let mut numbers = self.numbers(0, ack);
        // Moved one by one, as a range would be by way of the stack.
        for mut frame in (0..count).map_while(|_| self.pool.pop()) {
            numbers.seq = sequence(PEER_ISS, self.offset);
            self.patch.bare(
                &mut frame.bytes_mut()[LONGER..LONGER + HEADERS_LEN],
                &numbers,
            );
            self.offset += segment;
            out.push(frame);
        }
    }

    /// Acknowledges every second segment.
    fn acknowledgments(&mut self, max: usize, out: &mut Vec<Frame>) {
        let received = self.link.received.load(ORDER);
        let two = u64::from(2 * self.plan.segment);
        let count = ((received - self.acked) / two) as usize;
        let seq = sequence(PEER_ISS, self.offset);
        let count = count.min(max).min(self.pool.len());
        let mut numbers = self.numbers(seq, 0);
        for mut frame in (0..count).map_while(|_| self.pool.pop()) {
            self.acked += two;
            numbers.ack = sequence(self.iss, self.acked);
            self.patch.bare(
                &mut frame.bytes_mut()[LONGER..LONGER + HEADERS_LEN],
                &numbers,
            );
            out.push(frame);
        }
    }
}

impl<const LONGER: usize> DeviceRx for ScriptedRx<LONGER> {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let before = out.len();
        match (self.phase, self.plan.direction) {
            (Phase::Established, Direction::Receive) => self.segments(max, out),
            (Phase::Established, Direction::Send) => self.acknowledgments(max, out),
            _ => self.handshake(out),
        }
        let claimed = out.len() - before;
        self.stats.frames += claimed as u64;
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        if self.others > 0 {
            // Frames of another length were made for the handshake.
            let len = self.len;
            let before = frames.len();
            frames.retain(|frame| frame.bytes().len() == len);
            self.others = self.others.saturating_sub(before - frames.len());
        }
        self.pool.append(frames);
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

struct ScriptedTx<const LONGER: usize> {
    link: Arc<Link>,
    family: Family,
    offers_timestamps: bool,
    scale: u8,
    /// Sequence number that the next segment should begin with.
    next: u32,
    open: bool,
    stats: TxStats,
}

impl<const LONGER: usize> ScriptedTx<LONGER> {
    fn frame(&mut self, frame: &TxFrame<'_>) {
        let read = match LONGER {
            0 => TcpHeader::read,
            _ => TcpHeader::read_ipv6,
        };
        let Some(seen) = read(frame.head) else {
            let asks = self.family.read(frame.head);
            if asks.is_some_and(|asks| packet::asked(&asks).is_some()) {
                self.link.is_asked.store(1, ORDER);
            } else if !is_report(frame.head) {
                self.fault();
            }
            return;
        };
        if seen.flags & (flags::SYN | flags::RST | flags::FIN) != 0 {
            return self.syn(frame, seen);
        }
        let len = frame.len() - seen.headers_len;
        if seen.seq != self.next
            || self.offers_timestamps != (seen.headers_len > HEADERS_LEN + LONGER)
        {
            self.fault();
        }
        self.next = seen.seq.wrapping_add(len as u32);
        self.link
            .received
            .store(self.link.received() + len as u64, ORDER);
        let wnd = u32::from(seen.wnd) << self.scale;
        self.link
            .edge
            .store(u64::from(seen.ack.wrapping_add(wnd)), ORDER);
    }

    fn syn(&mut self, frame: &TxFrame<'_>, seen: TcpHeader) {
        let options = frame
            .head
            .get(HEADERS_LEN + LONGER..seen.headers_len)
            .unwrap_or(&[]);
        let time = time_of(options);
        if seen.flags != flags::SYN | flags::ACK
            || self.open
            || time.is_some() != self.offers_timestamps
        {
            return self.fault();
        }
        self.open = true;
        self.scale = headers::window_scale(options);
        self.next = seen.seq.wrapping_add(1);
        // The window of a SYN is not scaled (RFC 7323 section 2.2).
        self.link
            .edge
            .store(u64::from(seen.ack.wrapping_add(u32::from(seen.wnd))), ORDER);
        let syn = u64::from(seen.seq) << 32 | u64::from(time.unwrap_or(0));
        self.link.syn.store(syn, ORDER);
        self.link.known.store(1, ORDER);
    }

    fn fault(&self) {
        self.link.faults.fetch_add(1, ORDER);
    }
}

/// Whether it is a report of MLDv2 (RFC 3810 section 5.2), which follows IPv6's header and
/// hop-by-hop options.
fn is_report(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x86, 0xdd])
        && frame.get(20) == Some(&0)
        && frame.get(62) == Some(&143)
}

/// TSval, if there is a timestamps option.
fn time_of(mut options: &[u8]) -> Option<u32> {
    loop {
        match *options {
            [8, 10, a, b, c, d, ..] => return Some(u32::from_be_bytes([a, b, c, d])),
            [1, ref rest @ ..] => options = rest,
            [kind, len, ..] if kind > 1 && len >= 2 => {
                options = options.get(usize::from(len)..).unwrap_or(&[]);
            }
            _ => return None,
        }
    }
}

impl<const LONGER: usize> DeviceTx for ScriptedTx<LONGER> {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        for frame in frames {
            self.frame(frame);
        }
        self.stats.frames += frames.len() as u64;
        Ok(frames.len())
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}
