//! Shared by tests that drive a group and a peer by hand: a connection with known bytes.

use std::io::Write;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::Duration;
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{ConnectionStats, SocketError, Sockets, Stack, TcpStream};
use dominoes_testkit::Rng;
use dominoes_testkit::net::{HostId, Net};

/// Repeated every 16 bytes in every [`text`]; no frame may carry it.
const MARK: [u8; 8] = *b"Unsealed";
/// The most bytes read at once.
const PIECE: usize = 200_000;

/// The stack at 10.0.0.`last`.
pub(crate) fn setup(last: u8) -> Setup {
    Setup::new([10, 0, 0, last].into(), 24, [u64::from(last), 7])
}

/// Longer than any call takes on a busy machine, unless it never returns.
pub(crate) const LONG: std::time::Duration = std::time::Duration::from_secs(300);

/// Runs `what` on a thread and fails if it does not return.
pub(crate) fn in_time<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    let thread = thread::spawn(move || tell.send(what()));
    let result = told.recv_timeout(LONG).expect("the call did not return");
    thread.join().unwrap().unwrap();
    result
}

/// Running stacks at 10.0.0.1 and 10.0.0.2.
pub(crate) fn stacks(variant: Variant) -> [Stack; 2] {
    let (left, right) = memory::pair(MemoryConfig::default());
    [("10.0.0.1/24", left), ("10.0.0.2/24", right)].map(|(address, device)| {
        let builder = Stack::builder(address).variant(variant.kind());
        builder.replicas(variant.workers()).start(device).unwrap()
    })
}

/// The list of the `count` connections of `stack`. On a busy machine a worker may be without a core
/// for longer than [`Stack::connections`] waits; then the list lacks its connections.
pub(crate) fn connections(stack: &Stack, count: usize) -> Vec<ConnectionStats> {
    let mut lists = (0..100).map(|_| stack.connections(usize::MAX));
    let found = lists.find(|list| list.len() == count);
    found.unwrap_or_else(|| panic!("no list of {count} connections"))
}

/// The byte at offset `at` of a stream.
pub(crate) fn pattern_byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The longest virtual time that a connection may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// Opens a connection from the second host to a port of the first, over wires that may be bad.
/// Returns both ends.
pub(crate) fn connect(net: &mut Net, hosts: [HostId; 2], port: u16) -> [TcpStream; 2] {
    let listener = net.sockets(hosts[0]).listen(port, 4).unwrap();
    let remote = net.address_of(hosts[0], port);
    let sockets = net.sockets(hosts[1]).clone();
    let mut opening = sockets.begin_connect(remote).unwrap();
    let mut streams = [None, None];
    net.run(PATIENCE, |_| {
        let [server, client] = &mut streams;
        if client.is_none() {
            *client = match opening.try_finish() {
                // A bad wire sometimes loses every retry.
                Err(SocketError::Unreachable | SocketError::TimedOut) => {
                    opening = sockets.begin_connect(remote)?;
                    None
                }
                opened => opened?,
            };
        }
        *server = server
            .take()
            .or(listener.try_accept().ok().map(|(stream, _)| stream));
        Ok(match (&server, &client) {
            (Some(_), Some(_)) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(0),
        })
    })
    .unwrap();
    streams.map(Option::unwrap)
}

/// Calls `step` while virtual time passes, until it returns true.
pub(crate) fn go_on<E>(net: &mut Net, mut step: impl FnMut() -> Result<bool, E>) -> Result<(), E> {
    let mut failed = None;
    let ran = net.run(PATIENCE, |moment| {
        // Workers may have units to process although no frame is on its way.
        moment.wake_at(moment.now() + Duration::from_micros(500));
        Ok(match step() {
            Ok(false) => ControlFlow::Continue(0),
            Ok(true) => ControlFlow::Break(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })
    });
    assert!(ran.is_ok(), "{ran:?}");
    failed.map_or(Ok(()), Err)
}

/// A call that would block has moved no byte.
fn moved(done: Result<usize, SocketError>) -> u64 {
    match done {
        Ok(bytes) => bytes as u64,
        Err(SocketError::WouldBlock) => 0,
        Err(error) => panic!("{error}"),
    }
}

/// Both ends of a connection.
pub(crate) struct Ends {
    from: TcpStream,
    to: TcpStream,
    buffer: Vec<u8>,
    /// Bytes so far.
    pub(crate) written: u64,
    pub(crate) read: u64,
}

impl Ends {
    /// Opens a connection from the stack of `peer` to 10.0.0.1, the stack of `ours`; `step` drives
    /// both.
    pub(crate) fn open(ours: &Sockets, peer: &Sockets, mut step: impl FnMut()) -> Ends {
        let listener = ours.listen(7, 4).unwrap();
        let at = SocketAddr::new([10, 0, 0, 1].into(), 7);
        let mut opening = peer.begin_connect(at).unwrap();
        let (mut from, mut to) = (None, None);
        loop {
            step();
            from = from.or_else(|| opening.try_finish().unwrap());
            to = to.or_else(|| listener.try_accept().ok());
            if from.is_some() && to.is_some() {
                break;
            }
        }
        Ends {
            from: from.unwrap(),
            to: to.unwrap().0,
            buffer: vec![0; PIECE],
            written: 0,
            read: 0,
        }
    }

    /// Writes up to `most` bytes, as far as there is room, and reads and checks everything that has
    /// arrived.
    pub(crate) fn go_on(&mut self, most: u64) {
        if most > 0 {
            let bytes: Vec<u8> = (self.written..self.written + most)
                .map(pattern_byte)
                .collect();
            self.written += moved(self.from.try_write(&bytes));
        }
        let got = moved(self.to.try_read(&mut self.buffer)) as usize;
        for found in &self.buffer[..got] {
            assert_eq!(*found, pattern_byte(self.read), "byte {}", self.read);
            self.read += 1;
        }
    }
}

/// A text that must be processed before it leaves the host.
pub(crate) fn text(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut text = Vec::with_capacity(len + 16);
    while text.len() < len {
        text.extend_from_slice(&MARK);
        text.extend_from_slice(&rng.next().to_be_bytes());
    }
    text.truncate(len);
    text
}

/// Whether `frame` contains `MARK`, as any 23 consecutive bytes of a [`text`] do.
pub(crate) fn carries_text(frame: &[u8]) -> bool {
    let mut parts = frame.windows(MARK.len());
    parts.any(|part| part == MARK)
}

/// A recording in memory.
#[derive(Clone, Default)]
pub(crate) struct Memory(pub(crate) Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
