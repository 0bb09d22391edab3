//! The rows of the UDP experiments.
//!
//! `single` and `replicated` are the stack with one socket; the application reads datagrams in
//! place, or sends the bytes in the ring. `locked` is `single` with one lock. `limit` does equal
//! copies and checksums without a protocol, as it does for TCP.

use core::fmt::Display;
use std::sync::Arc;

use dominoes_drivers::Device;
use dominoes_drivers::memory::peer::headers::Ends;
use dominoes_netstack::group::{Layout, ReplicatedGroup};
use dominoes_netstack::stats::{PumpStats, StateStats};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::locked;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::variants::{ByHand, Setup, Worker};
use dominoes_netstack::{SocketError, Sockets, UdpReceiver, UdpSender};

use super::worker::{self, Application};
use super::{Direction, Row, limit};
use crate::datagrams::{DatagramDevice, Wire, payload};
use crate::drivers::app;
use crate::workload::{Processing, Workload};

/// Datagrams that the application sends in one turn.
const BURST: usize = 256;

/// One direction, one socket, and payload that is not processed.
fn can(direction: Direction, workload: &Workload) -> bool {
    direction != Direction::Both
        && workload.connections == 1
        && workload.processing == Processing::None
        && workload.checksum
        && !workload.timestamps
}

/// The variants of the UDP experiments, in the order of the table.
pub(crate) const VARIANTS: &[super::Variant] = &[
    super::Variant::new(
        "limit",
        "the same copies and checksums, with no protocol",
        limit::datagrams,
    )
    .scales()
    .can(can),
    super::Variant::new("single", "one core, no log", single).can(can),
    super::Variant::new(
        "locked-mutex",
        "one state behind a mutex, any core takes any packet",
        |direction, workload, cores| {
            behind::<locked::Mutex>("locked-mutex", direction, workload, cores)
        },
    )
    .scales()
    .can(can),
    super::Variant::new(
        "locked-mcs",
        "the same behind a queue lock",
        |direction, workload, cores| {
            behind::<locked::Mcs>("locked-mcs", direction, workload, cores)
        },
    )
    .scales()
    .can(can),
    super::Variant::new(
        "replicated",
        "one log, a copy of the state per core",
        replicated,
    )
    .scales()
    .can(can),
];

/// The application.
struct App {
    receiver: UdpReceiver,
    sender: UdpSender,
    sends: bool,
    wire: Arc<Wire>,
    /// Datagrams read.
    read: u64,
    bytes: u64,
    wrong: u64,
    failed: Option<SocketError>,
    workload: Workload,
    /// The expected bytes of every datagram, except its number, while datagrams are compared.
    expected: Option<Vec<u8>>,
}

impl App {
    fn new(
        direction: Direction,
        workload: &Workload,
        sockets: &Sockets,
        wire: Arc<Wire>,
    ) -> Result<App, String> {
        let ends = Ends::default();
        let socket = sockets.bind_udp(ends.to.port());
        let (receiver, mut sender) = socket.map_err(|e| e.to_string())?.split();
        sender
            .connect(ends.from.into())
            .map_err(|e| e.to_string())?;
        Ok(App {
            receiver,
            sender,
            sends: direction.sends(),
            wire,
            read: 0,
            bytes: 0,
            wrong: 0,
            failed: None,
            workload: *workload,
            expected: None,
        })
    }

    fn receive(&mut self) -> Result<bool, SocketError> {
        let before = self.read;
        loop {
            let datagram = match self.receiver.try_peek() {
                Err(SocketError::WouldBlock) => break,
                other => other?,
            };
            let (a, b) = datagram.parts;
            if let Some(expected) = &self.expected {
                let whole = [a, b].concat();
                self.wrong += u64::from(whole.get(8..) != expected.get(8..));
            }
            self.bytes += (a.len() + b.len()) as u64;
            self.read += 1;
            self.receiver.consume();
        }
        self.wire.has_read(self.read);
        Ok(self.read > before)
    }

    fn send(&mut self) -> Result<bool, SocketError> {
        for i in 0..BURST {
            let sent = match &self.expected {
                Some(payload) => self.sender.try_send(payload),
                None => self.sender.try_send_again(self.workload.segment_bytes),
            };
            match sent {
                Err(SocketError::WouldBlock) => return Ok(i > 0),
                other => other?,
            }
        }
        Ok(true)
    }
}

impl Application for App {
    #[inline]
    fn turn(&mut self) -> bool {
        let done = if self.sends {
            self.send()
        } else {
            self.receive()
        };
        match done {
            Ok(done) => done,
            Err(error) => {
                self.failed = Some(error);
                false
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
            + if self.sends {
                self.wire.sent_bytes()
            } else {
                0
            }
    }

    fn verify(&mut self, on: bool) {
        self.expected = on.then(|| payload(&self.workload, 0));
        // Bytes sent from the ring without a write have a correct checksum and any content.
        self.wire.verify(on);
    }

    fn check(&self) -> Result<(), String> {
        if let Some(failed) = self.failed {
            return Err(format!("the socket failed: {failed}"));
        }
        if self.wrong > 0 {
            return Err(format!("{} datagrams arrived wrong", self.wrong));
        }
        self.wire.check()
    }
    fn seen(pump: &PumpStats) -> u64 {
        pump.datagrams
    }

    /// No datagram may be dropped.
    fn complaints(state: &StateStats) -> Vec<(u64, &'static str)> {
        vec![
            (state.bad_datagrams, "datagrams had a bad checksum"),
            (state.queue_full, "datagrams found the queue full"),
            (state.no_socket, "datagrams found no socket"),
        ]
    }
}

fn setup(direction: Direction, workload: &Workload) -> Result<Setup, String> {
    let mut setup = app::setup(direction, workload)?;
    setup.limits.udp_receive_buffer = workload.ring_bytes;
    setup.limits.udp_send_buffer = workload.ring_bytes;
    Ok(setup)
}

/// Turns until the socket exists and the stack knows its peer.
const SETUP_TURNS: u64 = 16;

/// The stack that `make` builds, and its application.
fn stack<W: Worker + 'static, E: Display>(
    direction: Direction,
    workload: &Workload,
    make: impl FnOnce(Setup, Box<dyn Device>) -> Result<ByHand<W>, E>,
) -> Result<(ByHand<W>, App), String> {
    let (device, wire) = DatagramDevice::new(direction.receives(), true, workload);
    let stack = make(setup(direction, workload)?, Box::new(device));
    let mut stack = stack.map_err(|error| error.to_string())?;
    let app = App::new(direction, workload, &stack.sockets(), wire)?;
    for now in 0..SETUP_TURNS {
        stack.turn(Instant::from_nanos(now));
    }
    Ok((stack, app))
}

fn single(direction: Direction, workload: &Workload, _cores: usize) -> Result<Row, String> {
    let (single, app) = stack(direction, workload, Single::new)?;
    Ok(worker::row("single", single.into_workers(), [app]))
}

fn behind<K: locked::LockKind>(
    name: &'static str,
    direction: Direction,
    workload: &Workload,
    cores: usize,
) -> Result<Row, String> {
    let layout = locked::LockedLayout::default()
        .workers(cores)
        .window(workload.log_requests);
    let make = |setup, device| locked::LockedGroup::<K>::new(setup, layout, device);
    let (group, app) = stack(direction, workload, make)?;
    Ok(worker::row(name, group.into_workers(), [app]))
}

fn replicated(direction: Direction, workload: &Workload, cores: usize) -> Result<Row, String> {
    let mut layout = Layout::default();
    layout.replicas = cores;
    layout.tuning.log = workload.log_requests;
    let make = |setup, device| {
        ReplicatedGroup::new(setup, layout, device).map(ReplicatedGroup::into_by_hand)
    };
    let (group, app) = stack(direction, workload, make)?;
    Ok(worker::row("replicated", group.into_workers(), [app]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_udp_moves_verified_datagrams() {
        for segment_bytes in [1448, 64, 1472] {
            let workload = Workload {
                pool_bytes: 4 << 20,
                ring_bytes: 1 << 18,
                segment_bytes,
                ..Workload::default()
            };
            for variant in VARIANTS {
                for direction in [Direction::Receive, Direction::Send] {
                    for cores in if variant.scales { 1..=3 } else { 1..=1 } {
                        let mut row = (variant.make)(direction, &workload, cores).unwrap();
                        row.drive_until(1 << 20)
                            .unwrap_or_else(|e| panic!("{direction:?} {workload:?}: {e}"));
                    }
                }
            }
        }
    }
}
