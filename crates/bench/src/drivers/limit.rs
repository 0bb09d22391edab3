//! The same copies and checksums with no protocol: what any variant could reach at best.
//!
//! Receiving: a driver takes the next chunk of frames from the device, verifies their checksums
//! while it copies their payloads into its chunk of the ring, processes the units there, and so on.
//! Sending: a driver takes the next chunk of transmit slots, and for each copies headers and payload
//! into it and computes the checksum; it prepares them for the device, and then the device takes
//! them. Chunks are as long as those that primaries are chosen by.
//! Nothing is ordered, numbered, acknowledged or waited for; the only things shared are the device
//! and the chunk counter, held once a chunk.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use dominoes_drivers::memory::peer::headers::{self, Ends, HEADERS_LEN, flags};
use dominoes_drivers::memory::peer::{PeerHandle, PeerRx, PeerTx, Role};
use dominoes_drivers::{DeviceRx, DeviceTx, Frame, TxChecksum, TxFrame, TxMeta, TxPrepare};
use dominoes_netstack::framed::MAX_PAYLOAD;
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::kernel;

use crate::drivers::{Direction, Driver, Row};
use crate::inline::Units;
use crate::peer;
use crate::workload::{self, Workload};

/// Frames of a chunk in receiving.
const RECEIVE_CHUNK: usize = 128;
const _: () = assert!(RECEIVE_CHUNK.is_multiple_of(workload::RECORDS));
/// Frames of a chunk in sending.
const SEND_CHUNK: usize = 32;
/// Bytes of a transmit slot.
const SLOT: usize = 1600;
/// Where the TCP header of a frame begins.
const TCP_START: u16 = 34;

/// Never sleeps: what it waits for is over in a microsecond or two.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => core::hint::spin_loop(),
        }
    }
}

/// It has no connections to tell apart, and its kernel builds no options.
pub(crate) fn can(direction: Direction, workload: &Workload) -> bool {
    let plain = workload.connections == 1 && !(direction.sends() && workload.timestamps);
    plain && super::processes(workload)
}

/// The variant on `cores` cores.
pub(crate) fn row(direction: Direction, workload: &Workload, cores: usize) -> Result<Row, String> {
    if direction == Direction::Both {
        let receive = row(Direction::Receive, workload, cores)?;
        let send = row(Direction::Send, workload, cores)?;
        let pairs = receive.drivers.into_iter().zip(send.drivers);
        let drivers =
            pairs.map(|(receive, send)| -> Box<dyn Driver> { Box::new(Two { receive, send }) });
        return Ok(Row::new("limit", drivers.collect()));
    }
    let units = Units::of(workload)?;
    let (device, peer) = peer::new(Role::Free, workload)?;
    let (rx, mut tx) = device.into_halves();
    let drivers = match direction {
        Direction::Receive | Direction::Both => {
            let chunk_bytes = RECEIVE_CHUNK * workload.segment_bytes;
            let chunks = (workload.ring_bytes as usize / chunk_bytes).max(cores);
            let shared = Arc::new(Receive {
                source: Mutex::new(Source { rx, next: 0 }),
                ring: buffers(chunks, chunk_bytes),
            });
            on_each(cores, || ReceiveDriver {
                shared: Arc::clone(&shared),
                checksum: workload.checksum,
                units: units.clone(),
                text: vec![0; MAX_PAYLOAD],
                head: workload.head_bytes(),
                segment: workload.segment_bytes,
                frames: Vec::with_capacity(RECEIVE_CHUNK),
                bytes: 0,
                bad: 0,
            })
        }
        Direction::Send => {
            let slots = workload.transmit_slots() as usize;
            let preparer = tx.preparer(slots);
            let preparer = preparer.ok_or("the simulated device cannot be prepared for")?;
            let empty = headers::tcp_frame(&Ends::default(), flags::ACK, u16::MAX, &[], &[]);
            let shared = Arc::new(Send {
                sink: Mutex::new(Sink { tx, next: 0 }),
                preparer,
                slots: buffers(slots / SEND_CHUNK, SEND_CHUNK * SLOT),
                ring: workload::bytes(workload.seed, workload.ring_bytes as usize),
                header: header_of(&empty),
                segment: workload.segment_bytes,
                checksum: workload.checksum,
                units,
                peer,
            });
            on_each(cores, || SendDriver {
                shared: Arc::clone(&shared),
                made: vec![0; SEND_CHUNK * workload.segment_bytes],
                bytes: 0,
            })
        }
    };
    Ok(Row::new("limit", drivers))
}

/// Both directions: a chunk of each in turn.
struct Two {
    receive: Box<dyn Driver>,
    send: Box<dyn Driver>,
}

impl Driver for Two {
    fn turn(&mut self, now: Instant) -> usize {
        self.receive.turn(now) + self.send.turn(now)
    }

    fn bytes(&self) -> u64 {
        self.receive.bytes() + self.send.bytes()
    }

    fn verify(&mut self, on: bool) {
        self.send.verify(on);
    }

    fn check(&self) -> Result<(), String> {
        self.receive.check()?;
        self.send.check()
    }
}

struct Receive {
    source: Mutex<Source>,
    ring: Box<[Mutex<Vec<u8>>]>,
}

struct Source {
    rx: PeerRx,
    next: usize,
}

struct ReceiveDriver {
    shared: Arc<Receive>,
    checksum: bool,
    units: Option<Units>,
    /// What a unit carried.
    text: Vec<u8>,
    /// Bytes of headers, and of payload.
    head: usize,
    segment: usize,
    frames: Vec<Frame>,
    bytes: u64,
    bad: u64,
}

impl Driver for ReceiveDriver {
    fn turn(&mut self, _now: Instant) -> usize {
        let mut source = lock(&self.shared.source);
        source.rx.release(&mut self.frames);
        // A simulated device cannot be down.
        let claimed = source
            .rx
            .claim(RECEIVE_CHUNK, &mut self.frames)
            .unwrap_or(0);
        let chunk = source.next % self.shared.ring.len();
        source.next += 1;
        drop(source);
        let mut place = lock(&self.shared.ring[chunk]);
        let mut at = 0;
        for frame in &self.frames {
            let payload = &frame.bytes()[self.head..][..self.segment];
            let to = &mut place[at..at + payload.len()];
            if self.checksum {
                self.bad += u64::from(!kernel::verify_and_copy(frame.bytes(), to));
            } else {
                to.copy_from_slice(payload);
            }
            at += payload.len();
        }
        if let Some(units) = &self.units {
            // Chunks are whole rounds of prebuilt frames, so each begins at a position like 0.
            let chunk = place[..at].chunks_exact(units.len);
            for (unit, offset) in chunk.zip((0..).step_by(units.len)) {
                let done = units.processor.receive(offset, unit, &mut self.text);
                self.bad += u64::from(done.is_err());
            }
        }
        self.bytes += at as u64;
        claimed
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn check(&self) -> Result<(), String> {
        none_bad(self.bad, "segments had a bad checksum, or were forged")
    }
}

/// A driver for each core.
pub(in crate::drivers) fn on_each<D: Driver + 'static>(
    cores: usize,
    make: impl Fn() -> D,
) -> Vec<Box<dyn Driver>> {
    let drivers = (0..cores).map(|_| Box::new(make()) as Box<dyn Driver>);
    drivers.collect()
}

/// So many buffers of so many bytes.
pub(in crate::drivers) fn buffers(count: usize, len: usize) -> Box<[Mutex<Vec<u8>>]> {
    (0..count).map(|_| Mutex::new(vec![0; len])).collect()
}

/// That `bad` of what came were bad is an error.
pub(in crate::drivers) fn none_bad(bad: u64, what: &str) -> Result<(), String> {
    match bad {
        0 => Ok(()),
        bad => Err(format!("{bad} {what}")),
    }
}

struct Send {
    sink: Mutex<Sink>,
    preparer: Arc<dyn TxPrepare>,
    slots: Box<[Mutex<Vec<u8>>]>,
    ring: Vec<u8>,
    header: [u8; HEADERS_LEN],
    segment: usize,
    checksum: bool,
    units: Option<Units>,
    peer: PeerHandle,
}

struct Sink {
    tx: PeerTx,
    next: usize,
}

struct SendDriver {
    shared: Arc<Send>,
    /// Units of a chunk.
    made: Vec<u8>,
    bytes: u64,
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
        let mut sink = lock(&shared.sink);
        let chunk = sink.next;
        sink.next += 1;
        drop(sink);
        let mut slots = lock(&shared.slots[chunk % shared.slots.len()]);
        let len = HEADERS_LEN + shared.segment;
        // Chunks follow each other in the send ring; one never wraps.
        let stride = SEND_CHUNK * shared.segment;
        let from = chunk % (shared.ring.len() / stride).max(1) * stride;
        if let Some(units) = &shared.units {
            units.sent((chunk * stride) as u64, &mut self.made);
        }
        for (i, slot) in slots.chunks_exact_mut(SLOT).enumerate() {
            let at = (from + i * shared.segment) % shared.ring.len();
            let end = (at + shared.segment).min(shared.ring.len());
            let payload = match &shared.units {
                None => &shared.ring[at..end],
                Some(_) => &self.made[i * shared.segment..][..shared.segment],
            };
            let frame = &mut slot[..HEADERS_LEN + payload.len()];
            frame[..HEADERS_LEN].copy_from_slice(&shared.header);
            frame[38..42].copy_from_slice(&(chunk as u32).to_be_bytes());
            if shared.checksum {
                kernel::fill(frame, payload);
            } else {
                frame[HEADERS_LEN..].copy_from_slice(payload);
            }
        }
        let mut meta = TxMeta::default();
        if !shared.checksum {
            meta.checksum = TxChecksum::Partial {
                start: TCP_START,
                offset: 16,
            };
        }
        let frames: [TxFrame<'_>; SEND_CHUNK] = core::array::from_fn(|i| {
            let (head, payload) = slots[i * SLOT..][..len].split_at(HEADERS_LEN);
            TxFrame {
                head,
                payload,
                meta,
            }
        });
        let first = chunk % shared.slots.len() * SEND_CHUNK;
        shared.preparer.prepare(first, &frames);
        let mut sink = lock(&shared.sink);
        let taken = sink.tx.transmit_prepared(first, SEND_CHUNK).unwrap_or(0);
        drop(sink);
        self.bytes += (taken * shared.segment) as u64;
        taken
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn verify(&mut self, on: bool) {
        self.shared.peer.verify(on);
    }

    fn check(&self) -> Result<(), String> {
        self.shared.peer.check().map_err(|e| e.to_string())
    }
}
