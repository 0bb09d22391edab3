//! Stacks on threads, and application threads that register, drop and wake.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dominoes_drivers::memory::{self, MemoryConfig, MemoryDevice};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::{SocketError, Stack, TcpListener, TcpStream};
use dominoes_testkit::Rng;

use super::*;
use crate::support::LONG;

const VARIANTS: [Variant; 3] = [Variant::Single, Variant::Locked(2), Variant::Replicated(2)];

fn pair(variant: Variant) -> (Stack, Stack) {
    let (left, right) = memory::pair(MemoryConfig::default());
    let start = |address, variant: Variant, device: MemoryDevice| {
        let builder = Stack::builder(address).variant(variant.kind());
        builder.replicas(variant.workers()).start(device).unwrap()
    };
    (
        start("10.0.0.1/24", variant, left),
        start("10.0.0.2/24", Variant::Single, right),
    )
}

fn server_at(port: u16) -> SocketAddr {
    SocketAddr::new([10, 0, 0, 1].into(), port)
}

/// A connection that echoes all bytes to the peer.
struct Echo {
    stream: TcpStream,
    /// Bytes read and not yet written.
    held: Vec<u8>,
    ended: bool,
}

impl Echo {
    fn new(stream: TcpStream) -> Echo {
        Echo {
            stream,
            held: Vec::new(),
            ended: false,
        }
    }

    /// Echoes until a call would wait. Returns false when all is done.
    fn go_on(&mut self) -> bool {
        loop {
            while !self.held.is_empty() {
                match self.stream.try_write(&self.held) {
                    Ok(len) => drop(self.held.drain(..len)),
                    Err(SocketError::WouldBlock) => return true,
                    Err(_) => return false,
                }
            }
            if self.ended {
                return false;
            }
            self.held.resize(3000, 0);
            let read = self.stream.try_read(&mut self.held);
            self.held.truncate(read.unwrap_or(0));
            match read {
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(SocketError::WouldBlock) => return true,
                Err(_) => return false,
            }
        }
    }
}

const LISTENER: Token = Token(usize::MAX);

/// A server that runs all its connections on the calling thread.
struct Server {
    poller: Arc<Poller>,
    listener: TcpListener,
    trigger: Trigger,
    connections: HashMap<usize, Echo>,
    next: usize,
    served: usize,
}

impl Server {
    fn new(listener: TcpListener, trigger: Trigger) -> Server {
        let poller = Arc::new(Poller::new().unwrap());
        poller
            .register(&listener, LISTENER, Interest::READABLE, trigger)
            .unwrap();
        Server {
            poller,
            listener,
            trigger,
            connections: HashMap::new(),
            next: 0,
            served: 0,
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.try_accept() {
            let token = Token(self.next);
            self.next += 1;
            let registered = self
                .poller
                .register(&stream, token, self.interest(0), self.trigger);
            registered.unwrap();
            self.connections.insert(token.0, Echo::new(stream));
        }
    }

    /// The interest in a connection that holds `held` bytes.
    fn interest(&self, held: usize) -> Interest {
        match (self.trigger, held) {
            (Trigger::Edge, _) => Interest::BOTH,
            (Trigger::Level, 0) => Interest::READABLE,
            (Trigger::Level, _) => Interest::WRITABLE,
        }
    }

    fn serve(&mut self, event: Event) {
        if event.token == LISTENER {
            return self.accept();
        }
        // The connection may have ended since this event was queued.
        let Some(echo) = self.connections.get_mut(&event.token.0) else {
            return;
        };
        let before = echo.held.len();
        if echo.go_on() {
            let now = echo.held.len();
            if (before == 0) != (now == 0) && self.trigger == Trigger::Level {
                let echo = &self.connections[&event.token.0];
                let interest = self.interest(now);
                let modified =
                    self.poller
                        .modify(&echo.stream, event.token, interest, self.trigger);
                modified.unwrap();
            }
        } else {
            self.connections.remove(&event.token.0);
            self.served += 1;
        }
    }

    /// Serves until this many connections have ended.
    fn run(&mut self, connections: usize) {
        let mut events = Vec::with_capacity(32);
        while self.served < connections {
            let len = self.poller.wait(&mut events, Some(LONG));
            assert!(len > 0, "nothing is ready, and {} have ended", self.served);
            for event in &events {
                self.serve(*event);
            }
        }
    }
}

/// Connects, writes bytes while it reads their echo, and checks them.
fn client(stack: &Stack, number: u64, bytes: usize) {
    let stream = stack.connect(server_at(7)).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut rng = Rng::new(number);
    let sent: Vec<u8> = (0..bytes).map(|_| rng.next() as u8).collect();
    let (mut reader, mut writer) = stream.split();
    thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&sent).unwrap();
            writer.shutdown();
        });
        let mut heard = Vec::new();
        reader.read_to_end(&mut heard).unwrap();
        assert!(heard == sent, "{} of {bytes} bytes", heard.len());
    });
}

#[test]
fn one_thread_echoes_all_bytes_of_many_connections() {
    for variant in VARIANTS {
        for trigger in TRIGGERS {
            let (server, clients) = pair(variant);
            let listener = server.listen(7, 64).unwrap();
            thread::scope(|scope| {
                for number in 0..16 {
                    let clients = &clients;
                    scope.spawn(move || client(clients, number, 40_000 + 7 * number as usize));
                }
                Server::new(listener, trigger).run(16);
            });
        }
    }
}

#[test]
fn a_wake_ends_the_wait_that_goes_on_or_the_next_one() {
    let poller = Poller::new().unwrap();
    let mut events = Vec::with_capacity(4);
    let waker = poller.waker();
    waker.wake();
    waker.clone().wake();
    // The two calls of `wake` count as one.
    assert_eq!(poller.wait(&mut events, Some(LONG)), 0);
    assert_eq!(poller.wait(&mut events, Some(Duration::from_millis(2))), 0);
    let (there, back) = (Poller::new().unwrap(), Poller::new().unwrap());
    let (to, fro) = (there.waker(), back.waker());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut events = Vec::with_capacity(1);
            for _ in 0..2000 {
                there.wait(&mut events, None);
                fro.wake();
            }
        });
        for _ in 0..2000 {
            to.wake();
            back.wait(&mut events, None);
        }
    });
}

#[test]
fn a_stack_that_ends_reports_all_that_is_registered() {
    for variant in VARIANTS {
        let (server, client) = pair(variant);
        let listener = server.listen(7, 4).unwrap();
        let _idle = client.connect(server_at(7)).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let udp = server.bind_udp(9).unwrap();
        let poller = Poller::new().unwrap();
        let token = |number| Token(number);
        poller
            .register(&listener, token(1), Interest::READABLE, Trigger::Edge)
            .unwrap();
        poller
            .register(&stream, token(2), Interest::READABLE, Trigger::Edge)
            .unwrap();
        poller
            .register(&udp, token(3), Interest::READABLE, Trigger::Edge)
            .unwrap();
        assert_eq!(reported(&poller), [], "{variant}");
        let end = thread::spawn(move || server.close(Duration::ZERO));
        let mut missing = vec![1, 2, 3];
        let mut events = Vec::with_capacity(4);
        while !missing.is_empty() {
            let len = poller.wait(&mut events, Some(LONG));
            assert!(len > 0, "{variant}: {missing:?}");
            for event in &events {
                missing.retain(|token| *token != event.token.0);
            }
        }
        let _ = end.join().unwrap();
    }
}

/// Threads register, change and drop sockets of one poller while bytes arrive, and one thread
/// waits. Afterwards new events are still reported, and no others.
#[test]
fn registering_and_dropping_races_with_arrivals() {
    for variant in VARIANTS {
        let (server, client) = pair(variant);
        let listener = server.listen(7, 64).unwrap();
        let poller = Poller::new().unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (poller, over) = (&poller, &over);
            let waits = scope.spawn(move || {
                let mut events = Vec::with_capacity(8);
                while !over.load(Ordering::Relaxed) {
                    poller.wait(&mut events, Some(LONG));
                }
            });
            let threads = [0, 1, 2].map(|number: u64| {
                let (client, listener) = (&client, &listener);
                scope.spawn(move || {
                    let mut rng = Rng::new(number);
                    for _ in 0..60 {
                        let mut theirs = client.connect(server_at(7)).unwrap();
                        let (ours, _) = listener.accept().unwrap();
                        let trigger = TRIGGERS[rng.index(2)];
                        // The halves are dropped at different times.
                        let (reader, writer) = ours.split();
                        let token = Token(number as usize);
                        poller
                            .register(&reader, token, Interest::READABLE, trigger)
                            .unwrap();
                        // Another thread may have accepted its other end.
                        let _ = theirs.write_all(&[1; 100]);
                        poller
                            .register(&writer, token, Interest::WRITABLE, trigger)
                            .unwrap();
                        if rng.percent(50) {
                            poller.deregister(&reader).unwrap();
                        }
                        let _ = theirs.write_all(&[2; 100]);
                        if rng.percent(50) {
                            drop(writer);
                            let again = TRIGGERS[rng.index(2)];
                            let _ = poller.modify(&reader, token, Interest::READABLE, again);
                        }
                    }
                })
            });
            let ended = threads.map(|thread| thread.join());
            over.store(true, Ordering::Relaxed);
            poller.waker().wake();
            waits.join().unwrap();
            assert!(ended.iter().all(Result::is_ok));
        });
        assert_eq!(reported(&poller), [], "{variant}: all are gone");
        let mut theirs = client.connect(server_at(7)).unwrap();
        let (ours, _) = listener.accept().unwrap();
        poller
            .register(&ours, Token(9), Interest::READABLE, Trigger::Edge)
            .unwrap();
        theirs.write_all(b"news").unwrap();
        let mut events = Vec::with_capacity(8);
        assert_eq!(poller.wait(&mut events, Some(LONG)), 1);
        assert!(events.iter().all(|event| event.token == Token(9)));
    }
}

/// Each round trip wakes a sleeping thread or finds it awake: a lost wake-up stops the exchange.
#[test]
fn no_wake_up_is_lost_in_many_short_round_trips() {
    for variant in VARIANTS {
        for trigger in TRIGGERS {
            let (server, client) = pair(variant);
            let listener = server.listen(7, 4).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| Server::new(listener, trigger).run(1));
                let mut stream = client.connect(server_at(7)).unwrap();
                stream.set_nodelay(true).unwrap();
                let poller = Poller::new().unwrap();
                poller
                    .register(&stream, Token(0), Interest::READABLE, trigger)
                    .unwrap();
                let mut events = Vec::with_capacity(1);
                let mut byte = [0];
                for round in 0..2000_u32 {
                    stream.try_write(&[round as u8]).unwrap();
                    while stream.try_read(&mut byte).is_err() {
                        let len = poller.wait(&mut events, Some(LONG));
                        assert!(len > 0, "{variant}, {trigger:?}, round {round}");
                    }
                    assert_eq!(byte[0], round as u8);
                }
                drop(stream);
            });
        }
    }
}

/// mio's own echo server over our connections: mio waits, and reports that the poller has events.
#[cfg(target_os = "linux")]
#[test]
fn a_server_that_sleeps_in_mio_echoes_all_bytes() {
    for trigger in TRIGGERS {
        let (server, clients) = pair(Variant::Replicated(2));
        let mut served = Server::new(server.listen(7, 64).unwrap(), trigger);
        let mut poll = mio::Poll::new().unwrap();
        let mut poller = Arc::into_inner(core::mem::replace(
            &mut served.poller,
            Arc::new(Poller::new().unwrap()),
        ))
        .unwrap();
        let registry = poll.registry();
        registry
            .register(&mut poller, mio::Token(1), mio::Interest::READABLE)
            .unwrap();
        served.poller = Arc::new(poller);
        thread::scope(|scope| {
            for number in 0..8 {
                let clients = &clients;
                scope.spawn(move || client(clients, number, 20_000));
            }
            let mut woken = mio::Events::with_capacity(8);
            let mut events = Vec::with_capacity(4);
            while served.served < 8 {
                poll.poll(&mut woken, Some(LONG)).unwrap();
                assert!(
                    !woken.is_empty(),
                    "{trigger:?}: {} have ended",
                    served.served
                );
                // mio reports edges, so take all events.
                while served.poller.events(&mut events) > 0 {
                    for event in &events {
                        served.serve(*event);
                    }
                }
            }
        });
    }
}

/// As `poll` and level-triggered `epoll` see it.
#[cfg(target_os = "linux")]
#[test]
fn the_descriptor_is_readable_while_there_are_events() {
    use rustix::event::{PollFd, PollFlags, poll};
    use std::os::fd::AsFd;

    let is_readable = |poller: &Poller, wait: bool| {
        let fd = poller.as_fd();
        let milliseconds = if wait { 60_000 } else { 0 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], milliseconds).unwrap() > 0
    };
    let (server, client) = pair(Variant::Single);
    let listener = server.listen(7, 4).unwrap();
    let early = Poller::new().unwrap();
    early
        .register(&listener, Token(1), Interest::READABLE, Trigger::Level)
        .unwrap();
    let _stream = client.connect(server_at(7)).unwrap();
    // The connection was queued before the descriptor existed.
    assert!(is_readable(&early, true));
    let mut events = Vec::with_capacity(4);
    assert_eq!(early.wait(&mut events, Some(LONG)), 1);
    assert!(is_readable(&early, false), "by level there is one still");
    let (ours, _) = listener.accept().unwrap();
    assert_eq!(reported(&early), []);
    assert!(!is_readable(&early, false));
    early
        .register(&ours, Token(2), Interest::WRITABLE, Trigger::Edge)
        .unwrap();
    assert!(is_readable(&early, false));
    assert_eq!(reported(&early).len(), 1);
    assert!(!is_readable(&early, false));
    early.waker().wake();
    assert!(is_readable(&early, false));
    assert_eq!(reported(&early), []);
    assert!(!is_readable(&early, false));
    drop(server);
    assert!(is_readable(&early, true), "the stack is gone");
}
