//! The same copies and checksums with no protocol: a driver takes the next chunk of frames,
//! verifies eight of them and copies their payloads, and so on; or it fills the next chunk of
//! transmit slots. The only things shared are the device and the chunk counter, held once a chunk.

use std::sync::{Arc, Mutex};

use dominoes_drivers::memory::peer::headers::{Ends, udp_frame};
use dominoes_drivers::{DeviceRx, DeviceTx, Frame, TxFrame, TxMeta};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::kernel;

use crate::datagrams::{DatagramDevice, DatagramRx, DatagramTx, HEADERS, Wire, payload};
use crate::drivers::limit::{buffers, lock, none_bad, on_each};
use crate::drivers::{Direction, Driver, Row};
use crate::workload::Workload;

/// Datagrams whose checksums are verified before they are copied, as in a request.
const RUN: usize = 8;
/// Frames of a chunk in receiving: sixteen requests.
const RECEIVE_CHUNK: usize = 16 * RUN;
/// Frames of a chunk in sending.
const SEND_CHUNK: usize = 32;
/// Bytes of a transmit slot.
const SLOT: usize = 1600;

/// The variant on `cores` cores.
pub(super) fn row(direction: Direction, workload: &Workload, cores: usize) -> Result<Row, String> {
    let (device, wire) = DatagramDevice::new(direction.receives(), false, workload);
    let (rx, tx) = device.into_halves();
    let drivers = if direction.receives() {
        let chunk_bytes = RECEIVE_CHUNK * workload.segment_bytes;
        let chunks = (workload.ring_bytes as usize / chunk_bytes).max(cores);
        let shared = Arc::new(Receive {
            source: Mutex::new((rx, 0)),
            ring: buffers(chunks, chunk_bytes),
        });
        on_each(cores, || ReceiveDriver {
            shared: Arc::clone(&shared),
            segment: workload.segment_bytes,
            frames: Vec::with_capacity(RECEIVE_CHUNK),
            bytes: 0,
            bad: 0,
        })
    } else {
        let slots = workload.transmit_slots() as usize;
        let shared = Arc::new(Send {
            sink: Mutex::new((tx, 0)),
            slots: buffers(slots / SEND_CHUNK, SEND_CHUNK * SLOT),
            ring: payload(workload, 0)
                .repeat(workload.ring_bytes as usize / workload.segment_bytes),
            header: udp_frame(&Ends::default(), &payload(workload, 0))[..HEADERS].to_vec(),
            segment: workload.segment_bytes,
            wire,
        });
        on_each(cores, || SendDriver {
            shared: Arc::clone(&shared),
            bytes: 0,
        })
    };
    Ok(Row::new("limit", drivers))
}

struct Receive {
    /// The device, and how many chunks were taken.
    source: Mutex<(DatagramRx, usize)>,
    ring: Box<[Mutex<Vec<u8>>]>,
}

struct ReceiveDriver {
    shared: Arc<Receive>,
    segment: usize,
    frames: Vec<Frame>,
    bytes: u64,
    bad: u64,
}

impl Driver for ReceiveDriver {
    fn turn(&mut self, _now: Instant) -> usize {
        let mut source = lock(&self.shared.source);
        source.0.release(&mut self.frames);
        // A simulated device cannot be down.
        let claimed = source.0.claim(RECEIVE_CHUNK, &mut self.frames).unwrap_or(0);
        let chunk = source.1 % self.shared.ring.len();
        source.1 += 1;
        drop(source);
        let mut place = lock(&self.shared.ring[chunk]);
        let mut at = 0;
        for run in self.frames.chunks(RUN) {
            for frame in run {
                let is_datagram = frame.len() > HEADERS;
                self.bad += u64::from(is_datagram && !kernel::verify_datagram(frame.bytes()));
            }
            for frame in run {
                let Some(payload) = frame.bytes().get(HEADERS..HEADERS + self.segment) else {
                    continue;
                };
                place[at..at + payload.len()].copy_from_slice(payload);
                at += payload.len();
            }
        }
        self.bytes += at as u64;
        claimed
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn check(&self) -> Result<(), String> {
        none_bad(self.bad, "datagrams had a bad checksum")
    }
}

struct Send {
    /// The device, and how many chunks were begun.
    sink: Mutex<(DatagramTx, usize)>,
    slots: Box<[Mutex<Vec<u8>>]>,
    ring: Vec<u8>,
    header: Vec<u8>,
    segment: usize,
    wire: Arc<Wire>,
}

struct SendDriver {
    shared: Arc<Send>,
    bytes: u64,
}

impl Driver for SendDriver {
    fn turn(&mut self, _now: Instant) -> usize {
        let shared = &*self.shared;
        let mut sink = lock(&shared.sink);
        let chunk = sink.1;
        sink.1 += 1;
        drop(sink);
        let mut slots = lock(&shared.slots[chunk % shared.slots.len()]);
        let len = HEADERS + shared.segment;
        let payloads = shared.ring.len() / shared.segment;
        for (i, slot) in slots.chunks_exact_mut(SLOT).enumerate() {
            let at = (chunk * SEND_CHUNK + i) % payloads * shared.segment;
            let frame = &mut slot[..len];
            frame[..HEADERS].copy_from_slice(&shared.header);
            kernel::fill_datagram(frame, &shared.ring[at..at + shared.segment]);
        }
        let frames: [TxFrame<'_>; SEND_CHUNK] = core::array::from_fn(|i| {
            let (head, payload) = slots[i * SLOT..][..len].split_at(HEADERS);
            TxFrame {
                head,
                payload,
                meta: TxMeta::default(),
            }
        });
        let mut sink = lock(&shared.sink);
        let taken = sink.0.transmit(&frames).unwrap_or(0);
        drop(sink);
        self.bytes += (taken * shared.segment) as u64;
        taken
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn verify(&mut self, on: bool) {
        self.shared.wire.verify(on);
    }

    fn check(&self) -> Result<(), String> {
        self.shared.wire.check()
    }
}
