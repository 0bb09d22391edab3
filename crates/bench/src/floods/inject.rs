//! Sends raw frames into an interface at a fixed rate, and holds connections that never open their
//! windows.

use std::collections::HashMap;
use std::error::Error;
use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions, RxRing};
use dominoes_drivers::{Device, DeviceRx, DeviceTx, Frame, TxFrame};
use dominoes_testkit::packet::{ACK, Header, PSH, Path, RST, SYN, Segment};

use super::frames::{Frames, Kind, Link};

/// Frames offered to the interface at once.
const BATCH: usize = 32;
/// How long the sender sleeps between two looks at the clock.
const PAUSE: Duration = Duration::from_millis(1);
/// Frames that are dropped when the sender is late by more.
const BEHIND: u64 = 1_000;
/// Connections that are begun in a second.
const BEGUN_PER_SECOND: u64 = 1_000;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Counts of sent frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    /// Frames that the interface took.
    pub(crate) frames: u64,
    /// Frames that were due, and that the interface did not take or the sender came too late for.
    pub(crate) missed: u64,
    /// Connections that were established.
    pub(crate) established: u64,
    /// Probes of closed windows that were answered.
    pub(crate) answered: u64,
    /// Connections that the server reset.
    pub(crate) reset: u64,
}

/// A raw sender on an interface.
pub(crate) struct Injector {
    rx: Box<dyn DeviceRx>,
    tx: Box<dyn DeviceTx>,
    /// From [`HOLDER`] to the server.
    path: Path,
    frames: Frames,
    sent: Sent,
}

impl Injector {
    /// Opens the interface `name` of this network namespace.
    pub(crate) fn open(
        name: &str,
        server_mac: [u8; 6],
        server: Ipv4Addr,
        port: u16,
        seed: u64,
    ) -> Outcome<Injector> {
        // Few frames wait to be read, since a flood reads none.
        let options = AfPacketOptions::default()
            .ring(RxRing::Slots)
            .ring_bytes(1 << 20)
            .slot_bytes(2_048)
            .receive_buffer(1 << 16);
        let device = AfPacket::open(name, options)?;
        let link = Link {
            mac: device.mac(),
            server_mac,
            server,
            port,
        };
        let (rx, tx) = (Box::new(device) as Box<dyn Device>).split();
        Ok(Injector {
            rx,
            tx,
            path: link.path(HOLDER),
            frames: Frames::new(link, seed),
            sent: Sent::default(),
        })
    }

    /// Sends `per_second` frames of a kind until `ends`.
    pub(crate) fn flood(
        &mut self,
        kind: Kind,
        per_second: u64,
        mut ends: impl FnMut() -> bool,
    ) -> Outcome<Sent> {
        let start = Instant::now();
        while !ends() {
            let due = start.elapsed().as_micros() as u64 * per_second / 1_000_000;
            let mut behind = due.saturating_sub(self.sent.frames + self.sent.missed);
            let late = behind.saturating_sub(BEHIND);
            self.sent.missed += late;
            behind -= late;
            while behind > 0 {
                let count = behind.min(BATCH as u64);
                let frames: Vec<_> = (0..count).map(|_| self.frames.next(kind)).collect();
                self.send(&frames)?;
                behind -= count;
            }
            thread::sleep(PAUSE);
        }
        Ok(self.sent)
    }

    /// Opens `count` connections, sends `request` on each, and announces a closed window until
    /// `ends`. Then it resets them.
    pub(crate) fn close_windows(
        &mut self,
        count: u16,
        request: &[u8],
        mut ends: impl FnMut() -> bool,
    ) -> Outcome<Sent> {
        let start = Instant::now();
        let mut begun = 0;
        // The next sequence number of the server, by port.
        let mut expected: HashMap<u16, u32> = HashMap::new();
        let mut frames: Vec<Frame> = Vec::new();
        while !ends() {
            let due = start.elapsed().as_millis() as u64 * BEGUN_PER_SECOND / 1_000;
            let mut answers = Vec::new();
            while begun < count && u64::from(begun) < due {
                answers.push(syn(FIRST_PORT + begun).frame(self.path));
                begun += 1;
            }
            self.rx.claim(BATCH, &mut frames)?;
            let heard = frames.len();
            for frame in &frames {
                let heard = Header::read(frame.bytes());
                let Some(heard) = heard.filter(|heard| heard.to == HOLDER.octets()) else {
                    continue;
                };
                let answer = self.answer(&heard, &mut expected, request);
                answers.extend(answer);
            }
            self.rx.release(&mut frames);
            self.send(&answers)?;
            if heard < BATCH {
                thread::sleep(PAUSE);
            }
        }
        let resets: Vec<_> = expected
            .keys()
            .map(|&port| {
                let begin = syn(port);
                let reset = Segment {
                    flags: RST,
                    seq: begin.end().wrapping_add(request.len() as u32),
                    scale: None,
                    mss: None,
                    ..begin
                };
                reset.frame(self.path)
            })
            .collect();
        self.send(&resets)?;
        Ok(self.sent)
    }

    fn answer(
        &mut self,
        heard: &Header,
        expected: &mut HashMap<u16, u32>,
        request: &[u8],
    ) -> Option<Vec<u8>> {
        let closed = Segment {
            seq: heard.ack,
            ack: heard.seq.wrapping_add(1),
            flags: ACK,
            wnd: 0,
            scale: None,
            mss: None,
            ..syn(heard.dst_port)
        };
        if heard.has(RST) {
            self.sent.reset += u64::from(expected.remove(&heard.dst_port).is_some());
            return None;
        }
        if heard.has(SYN) {
            if expected.insert(heard.dst_port, closed.ack).is_none() {
                self.sent.established += 1;
            }
            let asks = Segment {
                flags: PSH | ACK,
                payload: request.to_vec(),
                ..closed
            };
            return Some(asks.frame(self.path));
        }
        let next = *expected.get(&heard.dst_port)?;
        // An acknowledgment of the request wants no answer; a probe has a byte, or is from before.
        if heard.payload_len() == 0 && heard.seq == next {
            return None;
        }
        self.sent.answered += 1;
        let again = Segment {
            ack: next,
            ..closed
        };
        Some(again.frame(self.path))
    }

    fn send(&mut self, frames: &[Vec<u8>]) -> Outcome<()> {
        let frames: Vec<_> = frames.iter().map(|frame| TxFrame::new(frame)).collect();
        let taken = self.tx.transmit(&frames)?;
        self.sent.frames += taken as u64;
        self.sent.missed += (frames.len() - taken) as u64;
        Ok(())
    }
}

/// The address of all connections with closed windows, and the first one's port.
const HOLDER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const FIRST_PORT: u16 = 20_000;

fn syn(port: u16) -> Segment {
    Segment {
        src_port: port,
        dst_port: 80,
        seq: u32::from(port) * 1_000,
        flags: SYN,
        wnd: 1_000,
        scale: Some(0),
        mss: Some(1460),
        ..Segment::default()
    }
}
