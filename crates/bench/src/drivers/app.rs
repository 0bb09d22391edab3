//! The application: it has no thread and touches no payload.

use core::fmt::Display;
use std::sync::Arc;

use dominoes_drivers::Device;
use dominoes_drivers::memory::peer::{PeerHandle, Role};
use dominoes_netstack::config::Limits;
use dominoes_netstack::framed::{FramedReadHalf, FramedStream, FramedWriteHalf};
use dominoes_netstack::stats::{PumpStats, StateStats};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::{ByHand, Setup, Worker};
use dominoes_netstack::{ReadHalf, SocketError, Sockets, TcpListener, TcpStream, WriteHalf};

use crate::drivers::Direction;
use crate::drivers::worker::Application;
use crate::inline::Units;
use crate::peer;
use crate::workload::Workload;

/// Bytes that must be free in the send ring before more is written, at most: half of the ring is
/// enough.
const WRITE: usize = 64 << 10;

/// Pieces that the application reads before others have a turn.
const BURST: usize = 16;

/// Connections that have their turn at a time.
const SERVED: usize = 8;

/// The stack's ends of all connections, in place of an application.
pub(crate) struct App {
    ends: Vec<End>,
    /// Whose turn it is.
    turn: usize,
    peer: PeerHandle,
    /// Whether it reports the peer's counters: one of the applications that share a peer does.
    reports: bool,
    /// Whether the stack may reorder segments; the peer lets that pass then.
    reorders: bool,
    /// Kept so that the port stays open.
    _listener: Arc<TcpListener>,
    workload: Workload,
}

/// One of them.
struct End {
    halves: Halves,
    /// Which connection of the peer this is.
    index: usize,
    /// Which group of the stack has it.
    #[cfg(feature = "report")]
    group: usize,
    direction: Direction,
    read: u64,
    wrong: u64,
    /// What every segment should be, while that is compared.
    payload: Option<Expected>,
    /// Bytes that must be free in the send ring before more is written.
    write: usize,
    /// Every write is a multiple of this many bytes.
    whole: usize,
    /// The first bytes to write: as much as the send ring holds, in whole records. Empty
    /// afterwards.
    first: Vec<u8>,
    ended: Option<SocketError>,
}

impl App {
    /// The stack that `make` builds, and the application on it once the peer's connections are
    /// there.
    pub(crate) fn on<W: Worker + 'static, E: Display>(
        direction: Direction,
        workload: &Workload,
        make: impl FnOnce(Setup, Box<dyn Device>) -> Result<ByHand<W>, E>,
    ) -> Result<(ByHand<W>, App), String> {
        let (device, peer) = peer::new(role(direction), workload)?;
        let stack = make(setup(direction, workload)?, Box::new(device));
        let mut stack = stack.map_err(|error| error.to_string())?;
        let app = App::accept(direction, workload, &stack.sockets(), peer, |now| {
            stack.turn(Instant::from_nanos(now));
        })?;
        Ok((stack, app))
    }

    /// Listens, and turns the stack by `turn` until the peer's connections are there.
    pub(crate) fn accept(
        direction: Direction,
        workload: &Workload,
        sockets: &Sockets,
        peer: PeerHandle,
        mut turn: impl FnMut(u64),
    ) -> Result<App, String> {
        let backlog = workload.connections as u16;
        let listener = sockets
            .listen(peer::port(), backlog)
            .map_err(|e| e.to_string())?;
        let mut ends = Vec::new();
        for now in 0..super::SETUP_NS {
            turn(now);
            match listener.try_accept() {
                Ok((stream, _)) => {
                    #[cfg(feature = "report")]
                    let group = stream.group();
                    let halves = Halves::of(stream, workload)?;
                    ends.push(End {
                        halves,
                        // The peer opens one after the other.
                        index: ends.len(),
                        #[cfg(feature = "report")]
                        group,
                        direction,
                        read: 0,
                        wrong: 0,
                        payload: None,
                        write: WRITE.min(workload.ring_bytes as usize / 2),
                        whole: workload.whole(),
                        first: if direction.sends() {
                            let ring = workload.ring_bytes as usize;
                            let mut first = workload.ring(ring);
                            let all = ring.next_multiple_of(workload.whole());
                            first.extend_from_within(..all - ring);
                            first
                        } else {
                            Vec::new()
                        },
                        ended: None,
                    });
                    if ends.len() == workload.connections {
                        return Ok(App {
                            ends,
                            turn: 0,
                            peer,
                            reports: true,
                            reorders: false,
                            _listener: Arc::new(listener),
                            workload: *workload,
                        });
                    }
                }
                Err(SocketError::WouldBlock) => {}
                Err(other) => return Err(other.to_string()),
            }
        }
        Err("the peer's connections were not established".to_owned())
    }

    /// One application for each group, with the connections of that group, if it has any.
    #[cfg(feature = "report")]
    pub(crate) fn divide(self, groups: usize) -> Vec<App> {
        let mut apps: Vec<App> = (0..groups)
            .map(|group| App {
                ends: Vec::new(),
                turn: 0,
                peer: self.peer.clone(),
                reports: group == 0,
                reorders: self.reorders,
                _listener: Arc::clone(&self._listener),
                workload: self.workload,
            })
            .collect();
        for end in self.ends {
            apps[end.group].ends.push(end);
        }
        apps
    }

    /// For a stack that may reorder segments, which the peer lets pass.
    #[cfg(feature = "report")]
    pub(crate) fn reordering(self) -> App {
        App {
            reorders: true,
            ..self
        }
    }

    fn check_streams(&self) -> Result<(), String> {
        for End {
            ended,
            wrong,
            index,
            ..
        } in &self.ends
        {
            if let Some(ended) = ended {
                return Err(format!("connection {index} ended: {ended}"));
            }
            if *wrong > 0 {
                return Err(format!("{wrong} bytes arrived wrong"));
            }
        }
        Ok(())
    }
}

impl Application for App {
    /// Takes what there is to read, in place, and gives the ring back to be sent again as it is.
    /// Returns whether there was anything to do.
    #[inline]
    fn turn(&mut self) -> bool {
        if let [end] = &mut self.ends[..] {
            return end.turn();
        }
        let mut done = false;
        for _ in 0..SERVED.min(self.ends.len()) {
            done |= self.ends[self.turn].turn();
            self.turn = (self.turn + 1) % self.ends.len();
        }
        done
    }

    /// The bytes that were read, and the bytes that arrived at the peer.
    fn bytes(&self) -> u64 {
        let one = |end: &End| {
            let sent = if end.direction.sends() {
                self.peer.received_bytes(end.index)
            } else {
                0
            };
            end.read + sent
        };
        self.ends.iter().map(one).sum()
    }

    fn verify(&mut self, on: bool) {
        self.peer.verify(on);
        for end in &mut self.ends {
            end.payload = on.then(|| Expected::of(&self.workload));
        }
    }

    fn sent_again(&self) -> u64 {
        if self.reports {
            self.peer.sent_again()
        } else {
            0
        }
    }

    fn out_of_order(&self) -> u64 {
        if self.reports {
            self.peer.out_of_order()
        } else {
            0
        }
    }

    fn check(&self) -> Result<(), String> {
        self.check_streams()?;
        let checked = match self.reorders {
            true => self.peer.check_reordering(),
            false => self.peer.check(),
        };
        checked.map_err(|e| e.to_string())
    }

    fn seen(pump: &PumpStats) -> u64 {
        pump.segments
    }

    fn complaints(state: &StateStats) -> Vec<(u64, &'static str)> {
        vec![(state.bad_checksum, "segments had a bad checksum")]
    }
}

impl End {
    fn turn(&mut self) -> bool {
        let mut done = false;
        if self.direction.receives() {
            let received = self.receive();
            done |= self.check_call(received);
        }
        if self.direction.sends() {
            let sent = self.send();
            done |= self.check_call(sent);
        }
        done
    }

    fn check_call(&mut self, done: Result<bool, SocketError>) -> bool {
        match done {
            Ok(done) => done,
            Err(SocketError::WouldBlock) => false,
            Err(other) => {
                self.ended = Some(other);
                false
            }
        }
    }

    fn receive(&mut self) -> Result<bool, SocketError> {
        for i in 0..BURST {
            let filled = match &mut self.halves {
                Halves::Plain(reader, _) => reader.try_fill(),
                Halves::Units { reader, .. } => reader.try_fill(),
            };
            let bytes = match filled {
                Err(SocketError::WouldBlock) => return Ok(i > 0),
                other => other?,
            };
            let len = bytes.len();
            if len == 0 {
                return Err(SocketError::Reset);
            }
            if let Some(payload) = &self.payload {
                self.wrong += differences(self.read, bytes, payload);
            }
            self.read += len as u64;
            match &mut self.halves {
                Halves::Plain(reader, _) => reader.consume(len),
                Halves::Units { reader, .. } => reader.consume(len),
            }
        }
        Ok(true)
    }

    fn send(&mut self) -> Result<bool, SocketError> {
        let writer = match &mut self.halves {
            Halves::Plain(_, writer) => writer,
            Halves::Units {
                writer, units, at, ..
            } => {
                let written = writer.try_write(&units[*at..])?;
                *at = (*at + written) % (units.len() / 2);
                return Ok(true);
            }
        };
        let room = writer.room()?;
        let whole = room / self.whole * self.whole;
        if !self.first.is_empty() {
            let len = whole.min(self.first.len());
            let taken = writer.try_write(&self.first[..len])?;
            self.first.drain(..taken);
            return Ok(taken > 0);
        }
        if room < self.write {
            return Ok(false);
        }
        writer.write_again(whole)?;
        Ok(true)
    }
}

/// The halves of a connection.
enum Halves {
    Plain(ReadHalf, WriteHalf),
    /// Its bytes are units.
    Units {
        reader: FramedReadHalf,
        writer: FramedWriteHalf,
        /// What units carry, twice as much as is written at least.
        units: Vec<u8>,
        /// Where in it the next write begins.
        at: usize,
    },
}

impl Halves {
    fn of(stream: TcpStream, workload: &Workload) -> Result<Halves, String> {
        let Some(units) = Units::of(workload)? else {
            let (reader, writer) = stream.split();
            return Ok(Halves::Plain(reader, writer));
        };
        let stream = FramedStream::new(stream, units.processor).map_err(|e| e.to_string())?;
        let (reader, writer) = stream.split();
        Ok(Halves::Units {
            reader,
            writer,
            units: units.text.repeat(2 * WRITE.div_ceil(units.text.len())),
            at: 0,
        })
    }
}

/// What the application should read of every segment.
pub(super) struct Expected {
    payload: Vec<u8>,
    /// Whether it begins with its offset.
    marked: bool,
}

impl Expected {
    pub(super) fn of(workload: &Workload) -> Expected {
        // An unknown processor has already failed in the peer.
        match Units::of(workload).unwrap_or_default() {
            Some(units) => Expected {
                payload: units.text,
                marked: false,
            },
            None => Expected {
                payload: workload.payload(),
                marked: true,
            },
        }
    }
}

/// How many bytes of a stream at `offset` are not what the peer sends there.
pub(super) fn differences(offset: u64, bytes: &[u8], expected: &Expected) -> u64 {
    let Expected { payload, marked } = expected;
    let len = payload.len() as u64;
    let right = |at: u64| {
        let (segment, within) = (at / len * len, (at % len) as usize);
        match (segment as u32).to_be_bytes().get(within) {
            Some(mark) if *marked => *mark,
            _ => payload[within],
        }
    };
    let wrong = bytes
        .iter()
        .zip(offset..)
        .filter(|(byte, at)| **byte != right(*at));
    wrong.count() as u64
}

/// The peer's part for a direction.
pub(crate) fn role(direction: Direction) -> Role {
    match direction {
        Direction::Receive => Role::Sender,
        Direction::Send => Role::Receiver,
        Direction::Both => Role::Both,
    }
}

/// Settings that all variants with a protocol share.
pub(crate) fn setup(direction: Direction, workload: &Workload) -> Result<Setup, String> {
    let mut limits = Limits::default();
    limits.connections = (2 * workload.connections as u32).max(4);
    limits.receive_buffer = workload.ring_bytes;
    limits.send_buffer = workload.ring_bytes;
    if direction.sends() {
        limits.tx_slots = workload.transmit_slots();
    }
    let mut setup = Setup::new([10, 0, 0, 1].into(), 24, secret(workload.seed));
    setup.limits = limits;
    Ok(setup)
}

/// The keys of a stack.
pub(crate) fn secret(seed: u64) -> [u64; 2] {
    [seed, !seed]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_at_the_wrong_place_are_noticed() {
        let payload = vec![7; 100];
        let expected = Expected {
            payload: payload.clone(),
            marked: true,
        };
        let mut stream = Vec::new();
        for segment in 0u32..3 {
            stream.extend((segment * 100).to_be_bytes());
            stream.extend(&payload[4..]);
        }
        assert_eq!(differences(0, &stream, &expected), 0);
        assert_eq!(differences(150, &stream[150..], &expected), 0);
        stream.swap(103, 203);
        assert!(differences(0, &stream, &expected) > 0);
    }
}
