//! Our application: it accepts, opens, reads, writes and closes connections, and checks every byte
//! that it reads.

use std::net::SocketAddr;

use dominoes_netstack::{
    AnyListener, Connecting, SocketError, Sockets, TcpListener, TcpStream, UdpSocket,
};
use dominoes_proto::log::request::ConnId;
use dominoes_testkit::packet::FAR;
use dominoes_testkit::{Rng, mix};

use super::peer::{FIRST_PORT, SERVER, keys, pattern};
use super::plan::{App, family};

/// Connections that may wait to be accepted.
const BACKLOG: u16 = 8;
/// The port of the UDP socket.
const DATAGRAMS: u16 = 53;

/// One connection, as the application has it.
pub(crate) struct Connection {
    /// The peer at its other end.
    pub(crate) peer: usize,
    port: usize,
    /// Its name in the stack, equal in every replay of the log.
    pub(crate) id: ConnId,
    stream: Option<TcpStream>,
    /// All bytes that were read.
    pub(crate) received: Vec<u8>,
    pub(crate) written: u64,
    /// The total bytes to write, once decided.
    until: Option<u64>,
    shut: bool,
    /// Whether the peer's stream has been read to its end.
    pub(crate) eof: bool,
    /// The error that ended the connection early, if any.
    pub(crate) ended: Option<SocketError>,
    gives_up_after: Option<usize>,
    /// Whether it was aborted, or dropped early.
    pub(crate) gave_up: bool,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
            .field("received", &self.received.len())
            .field("written", &self.written)
            .field("until", &self.until)
            .field("shut", &self.shut)
            .field("eof", &self.eof)
            .field("ended", &self.ended)
            .field("gave_up", &self.gave_up)
            .finish_non_exhaustive()
    }
}

impl Connection {
    fn new(stream: TcpStream, newest: &[usize]) -> Connection {
        let port = usize::from(stream.peer_addr().unwrap().port() - FIRST_PORT);
        Connection {
            peer: newest.get(port).copied().unwrap_or(port),
            port,
            id: stream.conn(),
            stream: Some(stream),
            received: Vec::new(),
            written: 0,
            until: None,
            shut: false,
            eof: false,
            ended: None,
            gives_up_after: None,
            gave_up: false,
        }
    }

    /// Reads at most `most` bytes and returns their number.
    ///
    /// # Errors
    /// If they differ from the peer's stream.
    pub(crate) fn read(&mut self, seed: u64, most: usize) -> Result<usize, String> {
        let Some(stream) = &mut self.stream else {
            return Ok(0);
        };
        let mut buffer = vec![0; most];
        let got = match stream.try_read(&mut buffer) {
            Ok(0) => {
                self.eof = true;
                0
            }
            Ok(got) => got,
            Err(SocketError::WouldBlock) => 0,
            Err(error) => {
                self.ended = Some(error);
                0
            }
        };
        let (_, key) = keys(seed, self.port);
        let offset = self.received.len();
        let expected = pattern(key, offset as u64, got);
        if let Some(at) = (0..got).find(|&i| expected[i] != buffer[i]) {
            return Err(format!(
                "connection {}: byte {} that was read is {:#04x}, should be {:#04x}",
                self.peer,
                offset + at,
                buffer[at],
                expected[at]
            ));
        }
        self.received.extend(&buffer[..got]);
        Ok(got)
    }

    /// Reads everything available.
    ///
    /// # Errors
    /// As [`Connection::read`].
    pub(crate) fn read_all(&mut self, seed: u64) -> Result<usize, String> {
        let before = self.received.len();
        while self.read(seed, 1 << 14)? > 0 {}
        Ok(self.received.len() - before)
    }

    fn write(&mut self, seed: u64, most: usize) -> usize {
        let Some(stream) = &mut self.stream else {
            return 0;
        };
        if self.shut || self.ended.is_some() {
            return 0;
        }
        let left = self
            .until
            .map_or(u64::MAX, |until| until.saturating_sub(self.written));
        let len = (most as u64).min(left) as usize;
        let (key, _) = keys(seed, self.port);
        match stream.try_write(&pattern(key, self.written, len)) {
            Ok(took) => {
                self.written += took as u64;
                took
            }
            Err(SocketError::WouldBlock) => 0,
            Err(error) => {
                self.ended = Some(error);
                0
            }
        }
    }

    fn shut_if_all_written(&mut self) {
        if let Some(stream) = &mut self.stream
            && !self.shut
            && self.until == Some(self.written)
        {
            stream.shutdown_write();
            self.shut = true;
        }
    }

    fn give_up(&mut self, abort: bool) {
        if let Some(stream) = self.stream.take() {
            self.gave_up = true;
            if abort {
                stream.abort();
            }
        }
    }

    /// Whether the connection has nothing left to do.
    pub(crate) fn is_over(&self) -> bool {
        self.stream.is_none() || self.ended.is_some() || self.shut && self.eof
    }

    /// Drops the stream of a connection that is over.
    fn close(&mut self) {
        if self.is_over() {
            self.stream = None;
        }
    }
}

/// Where connections come from.
enum Door {
    Listener(TcpListener),
    /// Holds the SYNs for all ports: it accepts those for one, and refuses the others.
    Any {
        listener: AnyListener,
        /// Accepted, but the handshakes are not finished.
        handshakes: Vec<Connecting>,
    },
}

impl Door {
    /// In a quarter of the cases one that holds SYNs.
    fn new(sockets: &Sockets, seed: u64) -> Door {
        if !mix(seed ^ 0xd00).is_multiple_of(4) {
            let listener = sockets.listen(SERVER, BACKLOG);
            return Door::Listener(listener.expect("nobody else listens"));
        }
        Door::Any {
            listener: sockets.listen_any(BACKLOG).expect("nobody else listens"),
            handshakes: Vec::new(),
        }
    }

    /// Passes new connections to `each`, and adds those that it accepts before their handshakes to
    /// `opened`.
    fn take(&mut self, opened: &mut Vec<usize>, mut each: impl FnMut(TcpStream)) {
        let (listener, handshakes) = match self {
            Door::Listener(listener) => {
                while let Ok((stream, _)) = listener.try_accept() {
                    each(stream);
                }
                return;
            }
            Door::Any {
                listener,
                handshakes,
            } => (listener, handshakes),
        };
        while let Ok(arriving) = listener.try_next() {
            match arriving.destination().port() {
                SERVER => {
                    opened.push(0);
                    handshakes.push(arriving.accept().expect("the stack is up"));
                }
                _ => arriving.refuse(),
            }
        }
        handshakes.retain_mut(|handshake| match handshake.try_finish() {
            Ok(None) => true,
            Ok(Some(stream)) => {
                each(stream);
                false
            }
            // The peer tries again.
            Err(_) => false,
        });
    }
}

/// All connections and the UDP socket.
pub(crate) struct Application {
    seed: u64,
    sockets: Sockets,
    door: Door,
    connecting: Vec<(usize, Connecting)>,
    pub(crate) connections: Vec<Connection>,
    /// The newest peer of each port.
    pub(crate) newest: Vec<usize>,
    /// Ports that were connected to, in order; 0 for a connection whose SYN was held. Each took a
    /// request id.
    pub(crate) opened: Vec<usize>,
    /// Peers to which the connection could not be opened.
    pub(crate) failed: Vec<usize>,
    /// Receives datagrams, and sends some.
    udp: UdpSocket,
    /// All received datagrams, with their senders.
    pub(crate) datagrams: Vec<(SocketAddr, Vec<u8>)>,
}

impl Application {
    pub(crate) fn new(sockets: Sockets, seed: u64) -> Application {
        let door = Door::new(&sockets, seed);
        let udp = sockets.bind_udp(DATAGRAMS).expect("the port is free");
        Application {
            udp,
            datagrams: Vec::new(),
            seed,
            sockets,
            door,
            connecting: Vec::new(),
            connections: Vec::new(),
            newest: Vec::new(),
            opened: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Begins to open a connection to a port of the far side, at which `peer` waits.
    pub(crate) fn open(&mut self, port: usize, peer: usize) {
        let remote = SocketAddr::new(family(self.seed).address(FAR), FIRST_PORT + port as u16);
        let connecting = self.sockets.begin_connect(remote).expect("the stack is up");
        self.connecting.push((peer, connecting));
        self.opened.push(port);
    }

    /// Accepts connections, and finishes opened ones.
    pub(crate) fn welcome(&mut self) -> usize {
        let before = self.connections.len();
        let newest = &self.newest;
        let (connections, failed) = (&mut self.connections, &mut self.failed);
        self.door.take(&mut self.opened, |stream| {
            connections.push(Connection::new(stream, newest));
        });
        self.connecting
            .retain_mut(|(peer, connecting)| match connecting.try_finish() {
                Ok(None) => true,
                Ok(Some(stream)) => {
                    connections.push(Connection::new(stream, newest));
                    false
                }
                Err(_) => {
                    failed.push(*peer);
                    false
                }
            });
        self.connections.len() - before
    }

    pub(crate) fn of(&self, peer: usize) -> Option<&Connection> {
        self.connections
            .iter()
            .find(|connection| connection.peer == peer)
    }

    pub(crate) fn is_connecting(&self, peer: usize) -> bool {
        self.connecting.iter().any(|(other, _)| *other == peer)
    }

    /// Does one random action.
    ///
    /// # Errors
    /// If a byte read differs from the byte sent.
    pub(crate) fn step(&mut self, app: &App, short: u32, rng: &mut Rng) -> Result<(), String> {
        let known = self.connections.len();
        self.welcome();
        for connection in &mut self.connections[known..] {
            connection.until = rng.per_mille(short).then(|| rng.below(6000));
            let gives_up = rng.per_mille(app.gives_up);
            connection.gives_up_after = gives_up.then(|| rng.index(4000));
        }
        if rng.per_mille(200) {
            self.exchange(rng);
        }
        if self.connections.is_empty() {
            return Ok(());
        }
        let at = rng.index(self.connections.len());
        let connection = &mut self.connections[at];
        if rng.per_mille(app.reads) {
            connection.read(self.seed, 1 + rng.index(app.read_size))?;
        } else if rng.per_mille(900) {
            connection.write(self.seed, 1 + rng.index(app.write_size));
        } else {
            connection.shut_if_all_written();
            connection.close();
        }
        if let Some(after) = connection.gives_up_after
            && connection.received.len() >= after
        {
            connection.give_up(rng.per_mille(500));
        }
        Ok(())
    }

    /// Receives some datagrams, or sends a few, often of equal length.
    fn exchange(&mut self, rng: &mut Rng) {
        if rng.per_mille(500) {
            self.take_datagrams(1 + rng.index(4));
            return;
        }
        let (mut len, mut port) = (rng.index(1_500), 700);
        for _ in 0..=rng.below(4) {
            if rng.per_mille(300) {
                (len, port) = (rng.index(1_500), 700 + rng.below(2) as u16);
            }
            let bytes = vec![rng.next() as u8; len];
            let remote = SocketAddr::new(family(self.seed).address(FAR), port);
            // Without room, the datagram is dropped.
            let _ = self.udp.try_send_to(&bytes, remote);
        }
    }

    /// Receives at most `most` datagrams, and returns their number.
    pub(crate) fn take_datagrams(&mut self, most: usize) -> usize {
        let mut buffer = [0; 1_500];
        for i in 0..most {
            let Ok((len, from)) = self.udp.try_recv_from(&mut buffer) else {
                return i;
            };
            self.datagrams.push((from, buffer[..len].to_vec()));
        }
        most
    }

    /// Stops writing; with `finishes`, also ends our streams.
    pub(crate) fn stop(&mut self, finishes: bool) {
        for connection in &mut self.connections {
            connection.until = finishes.then_some(connection.written);
            connection.shut_if_all_written();
        }
    }

    /// Drops every socket except the listener.
    pub(crate) fn let_go(&mut self) {
        self.connecting.clear();
        if let Door::Any { handshakes, .. } = &mut self.door {
            handshakes.clear();
        }
        for connection in &mut self.connections {
            connection.stream = None;
        }
    }

    /// Reads everything, and finishes connections that came late.
    ///
    /// # Errors
    /// If a byte read differs from the byte sent.
    pub(crate) fn drain(&mut self, finishes: bool) -> Result<usize, String> {
        let known = self.connections.len();
        let mut done = self.take_datagrams(usize::MAX) + self.welcome();
        for connection in &mut self.connections[known..] {
            connection.until = finishes.then_some(0);
            connection.shut_if_all_written();
        }
        for connection in &mut self.connections {
            if !connection.eof && connection.ended.is_none() {
                done += connection.read_all(self.seed)?;
            }
        }
        Ok(done)
    }
}
