//! The application: it has no thread of its own, and touches no payload.

use std::sync::Arc;

use dominoes_netstack::{ReadHalf, SocketError, Sockets, TcpListener, WriteHalf};
use std::net::Ipv4Addr;

use dominoes_netstack::config::Limits;
use dominoes_netstack::variants::Setup;

use crate::peer::{PORT, Role, Wire};
use crate::seats::Direction;
use crate::workload::{self, Workload};

/// Octets that must be free in the send ring before more is written.
const WRITE: usize = 64 << 10;

/// One end of the connection, in place of an application.
pub(crate) struct App {
    reader: ReadHalf,
    writer: WriteHalf,
    direction: Direction,
    wire: Arc<Wire>,
    /// Kept so that the port stays open.
    _listener: TcpListener,
    read: u64,
    wrong: u64,
    payload: Option<Vec<u8>>,
    workload: Workload,
    /// What lies in the send ring at first; empty once it does.
    first: Vec<u8>,
    ended: Option<SocketError>,
}

impl App {
    /// Listens, and turns the stack by `turn` until the peer's connection is there.
    pub(crate) fn accept(
        direction: Direction,
        workload: &Workload,
        sockets: &Sockets,
        wire: Arc<Wire>,
        mut turn: impl FnMut(u64),
    ) -> Result<App, String> {
        let listener = sockets.listen(PORT, 1).map_err(|e| e.to_string())?;
        for now in 0..super::SETUP_NS {
            turn(now);
            match listener.try_accept() {
                Ok((stream, _)) => {
                    let (reader, writer) = stream.split();
                    return Ok(App {
                        reader,
                        writer,
                        direction,
                        wire,
                        _listener: listener,
                        read: 0,
                        wrong: 0,
                        payload: None,
                        workload: *workload,
                        first: match direction {
                            Direction::Receive => Vec::new(),
                            Direction::Send => {
                                workload::bytes(workload.seed, workload.ring_bytes as usize)
                            }
                        },
                        ended: None,
                    });
                }
                Err(SocketError::WouldBlock) => {}
                Err(other) => return Err(other.to_string()),
            }
        }
        Err("the peer's connection was not established".to_owned())
    }

    /// Takes what there is to read, in place, or gives the ring back to be sent again as it is. Returns
    /// whether there was anything to do.
    #[inline]
    pub(crate) fn turn(&mut self) -> bool {
        let done = match self.direction {
            Direction::Receive => self.receive(),
            Direction::Send => self.send(),
        };
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
        let mut some = false;
        loop {
            let octets = match self.reader.try_fill() {
                Err(SocketError::WouldBlock) => return Ok(some),
                other => other?,
            };
            let len = octets.len();
            if len == 0 {
                return Err(SocketError::Reset);
            }
            if let Some(payload) = &self.payload {
                self.wrong += differences(self.read, octets, payload);
            }
            self.read += len as u64;
            self.reader.consume(len);
            some = true;
        }
    }

    fn send(&mut self) -> Result<bool, SocketError> {
        let room = self.writer.room()?;
        if !self.first.is_empty() {
            let taken = self.writer.try_write(&self.first)?;
            self.first.drain(..taken);
            return Ok(true);
        }
        if room < WRITE {
            return Ok(false);
        }
        self.writer.write_as_is(room)?;
        Ok(true)
    }

    /// Payload octets that were read, or that arrived at the peer.
    pub(crate) fn bytes(&self) -> u64 {
        match self.direction {
            Direction::Receive => self.read,
            Direction::Send => self.wire.received_bytes(),
        }
    }

    pub(crate) fn verify(&mut self, on: bool) {
        self.wire.verify(on);
        self.payload = on.then(|| self.workload.payload());
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(ended) = &self.ended {
            return Err(format!("the connection ended: {ended}"));
        }
        if self.wrong > 0 {
            return Err(format!("{} octets arrived wrong", self.wrong));
        }
        self.wire.check()
    }
}

/// How many octets of a stream at `offset` are not what the peer sends there.
fn differences(offset: u64, octets: &[u8], payload: &[u8]) -> u64 {
    let len = payload.len() as u64;
    let expected = |at: u64| {
        let (segment, within) = (at / len * len, (at % len) as usize);
        match (segment as u32).to_be_bytes().get(within) {
            Some(mark) => *mark,
            None => payload[within],
        }
    };
    let wrong = octets
        .iter()
        .zip(offset..)
        .filter(|(octet, at)| **octet != expected(*at));
    wrong.count() as u64
}

/// The peer's part for a direction.
pub(crate) fn role(direction: Direction) -> Role {
    match direction {
        Direction::Receive => Role::Sender,
        Direction::Send => Role::Receiver,
    }
}

/// Settings that all variants with a protocol share.
pub(crate) fn setup(direction: Direction, workload: &Workload) -> Setup {
    let mut limits = Limits::default();
    limits.connections = 4;
    limits.receive_buffer = workload.ring_bytes;
    limits.send_buffer = workload.ring_bytes;
    if direction == Direction::Send {
        limits.tx_slots = workload.transmit_slots();
    }
    let secret = [workload.seed, !workload.seed];
    let mut setup = Setup::new(Ipv4Addr::new(10, 0, 0, 1), 24, secret);
    setup.limits = limits;
    setup.merge = workload.merge;
    setup
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_at_the_wrong_place_are_noticed() {
        let payload = vec![7; 100];
        let mut stream = Vec::new();
        for segment in 0u32..3 {
            stream.extend((segment * 100).to_be_bytes());
            stream.extend(&payload[4..]);
        }
        assert_eq!(differences(0, &stream, &payload), 0);
        assert_eq!(differences(150, &stream[150..], &payload), 0);
        stream.swap(103, 203);
        assert!(differences(0, &stream, &payload) > 0);
    }
}
