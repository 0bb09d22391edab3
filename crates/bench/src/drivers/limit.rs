//! The same copies and checksums with no protocol: what any variant could reach at best.
//!
//! Receiving: a driver takes the next chunk of frames from the device, verifies their checksums
//! while it copies their payloads into the next pieces of the ring, processes the units there, sends
//! the acknowledgments that the stack would send for them, and so on. Sending: a driver takes the
//! acknowledgments that are there from the device and verifies them; it takes the next chunk of
//! transmit slots, and for each copies headers and payload into it and computes the checksum; it
//! prepares them for the device, and then the device takes them. Chunks are as long as the chunks
//! that have one primary. Nothing is ordered, numbered or waited for; the only things shared are
//! the device and the chunk counter, held once a chunk.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use dominoes_drivers::memory::peer::headers::{self, Ends, HEADERS_LEN, flags};
use dominoes_drivers::memory::peer::{PeerHandle, Role};
use dominoes_drivers::{Device, DeviceRx, DeviceTx, Frame, TxChecksum, TxFrame, TxMeta, TxPrepare};
use dominoes_netstack::framed::MAX_PAYLOAD;
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::kernel;

#[cfg(feature = "report")]
use crate::datagrams::{self, DatagramDevice, Wire};
use crate::drivers::{Direction, Driver, Row, Several};
use crate::inline::Units;
use crate::peer;
use crate::workload::{self, Workload};

/// Frames of a chunk in receiving.
const RECEIVE_CHUNK: usize = 128;
const _: () = assert!(RECEIVE_CHUNK.is_multiple_of(workload::RECORDS));
/// Segments of a piece of the receive ring, which one driver uses at a time. With so few, the pieces
/// fill 99 % of the ring that a connection has: in a smaller one, more would stay in the caches.
const PIECE: usize = 16;
const _: () = assert!(RECEIVE_CHUNK.is_multiple_of(PIECE));
/// Segments for which the stack sends an acknowledgment when more of them are there.
const ACKNOWLEDGED: usize = 32;
/// Frames of a chunk in sending.
const SEND_CHUNK: usize = 32;
/// Bytes of a transmit slot.
const SLOT: usize = 1600;
/// Where the TCP header of a frame begins.
const TCP_START: u16 = 34;
/// Where its sequence number is.
const SEQ: core::ops::Range<usize> = 38..42;

/// Never sleeps: a holder is done in a microsecond or two.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => core::hint::spin_loop(),
        }
    }
}

/// It does not distinguish connections, and its kernel builds no options.
pub(crate) fn can(direction: Direction, workload: &Workload) -> bool {
    let plain = workload.connections == 1 && !(direction.sends() && workload.timestamps);
    plain && super::processes(workload)
}

/// The variant on `cores` cores.
pub(crate) fn row(direction: Direction, workload: &Workload, cores: usize) -> Result<Row, String> {
    if direction == Direction::Both {
        let receive = row(Direction::Receive, workload, cores)?;
        let send = row(Direction::Send, workload, cores)?;
        // A chunk of each in turn.
        let drivers = receive.drivers.into_iter().chain(send.drivers);
        return Ok(Row::new("limit", Several::dealt(drivers, cores)));
    }
    let units = Units::of(workload)?;
    let role = match direction.receives() {
        true => Role::Free,
        false => Role::FreeReceiver,
    };
    let (device, peer) = peer::new(role, workload)?;
    let (rx, mut tx) = Box::new(device).split();
    let empty = headers::tcp_frame(&Ends::default(), flags::ACK, u16::MAX, &[], &[]);
    let header = header_of(&empty);
    if direction.receives() {
        let check = match workload.checksum {
            true => Check::WithCopy,
            false => Check::No,
        };
        let head = workload.head_bytes();
        let acks = Some(Acks { tx, header });
        let driver = ReceiveDriver::new((rx, acks), check, head, units, workload, cores);
        return Ok(on_each("limit", cores, driver));
    }
    let slots = workload.transmit_slots() as usize;
    let preparer = tx.preparer(slots);
    let preparer = preparer.ok_or("the simulated device cannot be prepared for")?;
    let shared = Send {
        acks: Some(Mutex::new(rx)),
        sink: Mutex::new(Sink { tx, next: 0 }),
        preparer: Some(preparer),
        slots: buffers(slots / SEND_CHUNK, SEND_CHUNK * SLOT),
        ring: workload::bytes(workload.seed, workload.ring_bytes as usize),
        header: header.to_vec(),
        segment: workload.segment_bytes,
        fill: match workload.checksum {
            true => Fill::Segment,
            false => Fill::Copy,
        },
        units,
        far: Far::Peer(peer),
    };
    Ok(on_each("limit", cores, SendDriver::new(shared)))
}

/// Like the limit of segments, for datagrams, which have no numbers and are verified before they
/// are copied.
#[cfg(feature = "report")]
pub(crate) fn datagrams(
    direction: Direction,
    workload: &Workload,
    cores: usize,
) -> Result<Row, String> {
    let (device, wire) = DatagramDevice::new(direction.receives(), false, workload);
    let (rx, tx) = Box::new(device).split();
    if direction.receives() {
        let head = datagrams::HEADERS;
        let driver = ReceiveDriver::new((rx, None), Check::Datagram, head, None, workload, cores);
        return Ok(on_each("limit", cores, driver));
    }
    let slots = workload.transmit_slots() as usize;
    let payload = datagrams::payload(workload, 0);
    let whole = headers::udp_frame(&Ends::default(), &payload);
    let shared = Send {
        acks: None,
        sink: Mutex::new(Sink { tx, next: 0 }),
        preparer: None,
        slots: buffers(slots / SEND_CHUNK, SEND_CHUNK * SLOT),
        ring: payload.repeat(workload.ring_bytes as usize / workload.segment_bytes),
        header: whole[..datagrams::HEADERS].to_vec(),
        segment: workload.segment_bytes,
        fill: Fill::Datagram,
        units: None,
        far: Far::Wire(wire),
    };
    Ok(on_each("limit", cores, SendDriver::new(shared)))
}

struct Receive {
    source: Mutex<Source>,
    /// Pieces of equal length.
    ring: Box<[Mutex<Vec<u8>>]>,
    /// Datagrams are not acknowledged.
    acks: Option<Mutex<Acks>>,
}

/// Where acknowledgments are sent.
struct Acks {
    tx: Box<dyn DeviceTx>,
    header: [u8; HEADERS_LEN],
}

/// Sends the acknowledgments of `segments` segments.
pub(super) fn acknowledge(tx: &mut dyn DeviceTx, header: &[u8; HEADERS_LEN], segments: usize) {
    for _ in 0..segments / ACKNOWLEDGED {
        let mut frame = *header;
        kernel::fill(&mut frame, &[]);
        // A simulated device takes every frame.
        let _ = tx.transmit(&[TxFrame::new(&frame)]);
    }
}

/// Claims acknowledgments in place of those in `frames`.
pub(crate) fn claim_acks(rx: &mut dyn DeviceRx, frames: &mut Vec<Frame>) {
    rx.release(frames);
    // A simulated device cannot be down.
    let _ = rx.claim(RECEIVE_CHUNK, frames);
}

/// How many acknowledgments have a wrong checksum.
pub(super) fn count_bad(acks: &[Frame]) -> u64 {
    let good: usize = acks.chunks(32).map(kernel::verify_all).sum();
    (acks.len() - good) as u64
}

struct Source {
    rx: Box<dyn DeviceRx>,
    /// The piece of the ring where the next chunk begins.
    next: usize,
}

/// How checksums are verified.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    No,
    WithCopy,
    #[cfg(feature = "report")]
    Datagram,
}

#[derive(Clone)]
struct ReceiveDriver {
    shared: Arc<Receive>,
    check: Check,
    units: Option<Units>,
    /// The text of a unit.
    text: Vec<u8>,
    /// Bytes of headers, and of payload.
    head: usize,
    segment: usize,
    /// Segments of a piece of the ring.
    piece: usize,
    frames: Vec<Frame>,
    bytes: u64,
    bad: u64,
}

impl ReceiveDriver {
    fn new(
        (rx, acks): (Box<dyn DeviceRx>, Option<Acks>),
        check: Check,
        head: usize,
        units: Option<Units>,
        workload: &Workload,
        cores: usize,
    ) -> ReceiveDriver {
        // A unit does not cross the end of a piece.
        let piece = match units {
            None => PIECE,
            Some(_) => RECEIVE_CHUNK,
        };
        let piece_bytes = piece * workload.segment_bytes;
        let pieces = (workload.ring_bytes as usize / piece_bytes).max(cores);
        ReceiveDriver {
            shared: Arc::new(Receive {
                source: Mutex::new(Source { rx, next: 0 }),
                ring: buffers(pieces, piece_bytes),
                acks: acks.map(Mutex::new),
            }),
            check,
            units,
            text: vec![0; MAX_PAYLOAD],
            head,
            segment: workload.segment_bytes,
            piece,
            frames: Vec::new(),
            bytes: 0,
            bad: 0,
        }
    }
}

impl ReceiveDriver {
    /// Copies the payloads of `frames` into piece number `piece`. Returns how many bytes.
    fn fill(&mut self, piece: usize, frames: &[Frame]) -> usize {
        let ring = &self.shared.ring;
        let mut place = lock(&ring[piece % ring.len()]);
        let mut at = 0;
        for frame in frames {
            // A shorter frame is an answer about a neighbour.
            let Some(payload) = frame.bytes().get(self.head..self.head + self.segment) else {
                continue;
            };
            let to = &mut place[at..at + payload.len()];
            let is_good = match self.check {
                Check::WithCopy => kernel::verify_and_copy(frame.bytes(), to),
                Check::No => {
                    to.copy_from_slice(payload);
                    true
                }
                #[cfg(feature = "report")]
                Check::Datagram => {
                    let is_good = kernel::verify_datagram(frame.bytes());
                    to.copy_from_slice(payload);
                    is_good
                }
            };
            self.bad += u64::from(!is_good);
            at += payload.len();
        }
        if let Some(units) = &self.units {
            // Pieces are whole rounds of prebuilt frames then, so each begins at a position like 0.
            let text = place[..at].chunks_exact(units.len);
            for (unit, offset) in text.zip((0..).step_by(units.len)) {
                let done = units.processor.receive(offset, unit, &mut self.text);
                self.bad += u64::from(done.is_err());
            }
        }
        at
    }
}

impl Driver for ReceiveDriver {
    fn turn(&mut self, _now: Instant) -> usize {
        let mut source = lock(&self.shared.source);
        source.rx.release(&mut self.frames);
        // A simulated device cannot be down.
        let claimed = source.rx.claim(RECEIVE_CHUNK, &mut self.frames);
        let first = source.next;
        source.next += RECEIVE_CHUNK / self.piece;
        drop(source);
        let mut done = 0;
        let frames = core::mem::take(&mut self.frames);
        for (frames, piece) in frames.chunks(self.piece).zip(first..) {
            done += self.fill(piece, frames);
        }
        self.frames = frames;
        if let Some(acks) = &self.shared.acks {
            let Acks { tx, header } = &mut *lock(acks);
            acknowledge(&mut **tx, header, done / self.segment);
        }
        self.bytes += done as u64;
        claimed.unwrap_or(0)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn check(&self) -> Result<(), String> {
        match self.bad {
            0 => Ok(()),
            bad => Err(format!("{bad} frames had a bad checksum, or were forged")),
        }
    }
}

/// A row with a copy of `driver` for each core.
fn on_each<D: Driver + Clone + 'static>(name: &'static str, cores: usize, driver: D) -> Row {
    let drivers = (0..cores).map(|_| Box::new(driver.clone()) as Box<dyn Driver>);
    Row::new(name, drivers.collect())
}

/// `count` buffers of `len` bytes.
fn buffers(count: usize, len: usize) -> Box<[Mutex<Vec<u8>>]> {
    (0..count).map(|_| Mutex::new(vec![0; len])).collect()
}

struct Send {
    /// What acknowledgments come from: datagrams have none.
    acks: Option<Mutex<Box<dyn DeviceRx>>>,
    sink: Mutex<Sink>,
    /// Prepares frames for the device before it is taken, if it can.
    preparer: Option<Arc<dyn TxPrepare>>,
    slots: Box<[Mutex<Vec<u8>>]>,
    ring: Vec<u8>,
    header: Vec<u8>,
    segment: usize,
    fill: Fill,
    units: Option<Units>,
    far: Far,
}

struct Sink {
    tx: Box<dyn DeviceTx>,
    next: usize,
}

/// How a slot is filled.
#[derive(Clone, Copy)]
enum Fill {
    /// A segment whose checksum the device completes.
    Copy,
    Segment,
    #[cfg(feature = "report")]
    Datagram,
}

/// The counters of the far side.
enum Far {
    Peer(PeerHandle),
    #[cfg(feature = "report")]
    Wire(Arc<Wire>),
}

#[derive(Clone)]
struct SendDriver {
    shared: Arc<Send>,
    /// Units of a chunk.
    made: Vec<u8>,
    /// Acknowledgments.
    frames: Vec<Frame>,
    bytes: u64,
    bad: u64,
}

impl SendDriver {
    fn new(shared: Send) -> SendDriver {
        SendDriver {
            made: vec![0; SEND_CHUNK * shared.segment],
            shared: Arc::new(shared),
            frames: Vec::new(),
            bytes: 0,
            bad: 0,
        }
    }
}

/// The headers of an empty frame with no TCP checksum, to be followed by a payload.
pub(super) fn header_of(empty: &[u8]) -> [u8; HEADERS_LEN] {
    let mut header = [0; HEADERS_LEN];
    header.copy_from_slice(&empty[..HEADERS_LEN]);
    header[50..52].fill(0);
    header
}

impl Driver for SendDriver {
    fn turn(&mut self, _now: Instant) -> usize {
        let shared = &*self.shared;
        if let Some(acks) = &shared.acks {
            claim_acks(&mut **lock(acks), &mut self.frames);
            if matches!(shared.fill, Fill::Segment) {
                self.bad += count_bad(&self.frames);
            }
        }
        let mut sink = lock(&shared.sink);
        let chunk = sink.next;
        sink.next += 1;
        drop(sink);
        let mut slots = lock(&shared.slots[chunk % shared.slots.len()]);
        let head_len = shared.header.len();
        let len = head_len + shared.segment;
        // Chunks follow each other in the send ring; one never wraps.
        let stride = SEND_CHUNK * shared.segment;
        let from = chunk % (shared.ring.len() / stride).max(1) * stride;
        if let Some(units) = &shared.units {
            units.sent((chunk * stride) as u64, &mut self.made);
        }
        let mut meta = TxMeta::default();
        for (i, slot) in slots.chunks_exact_mut(SLOT).enumerate() {
            let at = (from + i * shared.segment) % shared.ring.len();
            let end = (at + shared.segment).min(shared.ring.len());
            let payload = match &shared.units {
                None => &shared.ring[at..end],
                Some(_) => &self.made[i * shared.segment..][..shared.segment],
            };
            let frame = &mut slot[..head_len + payload.len()];
            frame[..head_len].copy_from_slice(&shared.header);
            let number = (chunk as u32).to_be_bytes();
            match shared.fill {
                #[cfg(feature = "report")]
                Fill::Datagram => kernel::fill_datagram(frame, payload),
                Fill::Segment => {
                    frame[SEQ].copy_from_slice(&number);
                    kernel::fill(frame, payload);
                }
                Fill::Copy => {
                    frame[SEQ].copy_from_slice(&number);
                    frame[head_len..].copy_from_slice(payload);
                    meta.checksum = TxChecksum::Partial {
                        start: TCP_START,
                        offset: 16,
                    };
                }
            }
        }
        let frames: [TxFrame<'_>; SEND_CHUNK] = core::array::from_fn(|i| {
            let (head, payload) = slots[i * SLOT..][..len].split_at(head_len);
            TxFrame {
                head,
                payload,
                meta,
            }
        });
        let first = chunk % shared.slots.len() * SEND_CHUNK;
        let taken = match &shared.preparer {
            Some(preparer) => {
                preparer.prepare(first, &frames);
                lock(&shared.sink).tx.transmit_prepared(first, SEND_CHUNK)
            }
            None => lock(&shared.sink).tx.transmit(&frames),
        };
        let taken = taken.unwrap_or(0);
        self.bytes += (taken * shared.segment) as u64;
        taken
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn verify(&mut self, on: bool) {
        match &self.shared.far {
            Far::Peer(peer) => peer.verify(on),
            #[cfg(feature = "report")]
            Far::Wire(wire) => wire.verify(on),
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.bad > 0 {
            return Err(format!("{} acknowledgments had a bad checksum", self.bad));
        }
        match &self.shared.far {
            Far::Peer(peer) => peer.check().map_err(|e| e.to_string()),
            #[cfg(feature = "report")]
            Far::Wire(wire) => wire.check(),
        }
    }
}
