//! Stacks driven by hand, so each event is known in advance.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use dominoes::Watch;
use dominoes_netstack::Limits;
use dominoes_netstack::poller::Source;
use dominoes_netstack::poller::direct::Watchable;
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::Duration;
use dominoes_netstack::{Connecting, TcpListener, TcpStream};
use dominoes_testkit::hand::{Wired, setup};

use super::*;

pub(super) const VARIANTS: [Variant; 3] =
    [Variant::Single, Variant::Locked(2), Variant::Replicated(2)];

pub(super) fn ours_at(port: u16) -> SocketAddr {
    SocketAddr::new([10, 0, 0, 1].into(), port)
}

pub(super) fn peer_at(port: u16) -> SocketAddr {
    SocketAddr::new([10, 0, 0, 2].into(), port)
}

/// A stack that is polled, and its peer.
pub(super) fn pair(variant: Variant) -> Wired {
    let small = Limits::default()
        .receive_buffer(1 << 16)
        .send_buffer(1 << 16);
    Wired::two(variant, [1, 2].map(|host| setup(0, host).limits(small)))
}

/// A connection that the peer opens: our end, then the peer's.
pub(super) fn connect(pair: &mut Wired, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let port = listener.local_addr().unwrap().port();
    let mut opening = pair.peer().begin_connect(ours_at(port)).unwrap();
    pair.settle();
    let theirs = opening.try_finish().unwrap().unwrap();
    (listener.try_accept().unwrap().0, theirs)
}

/// A pair, our listener, and a connection.
pub(super) fn connected(variant: Variant) -> (Wired, TcpListener, TcpStream, TcpStream) {
    let mut pair = pair(variant);
    let listener = pair.sockets().listen(7, 16).unwrap();
    let (ours, theirs) = connect(&mut pair, &listener);
    (pair, listener, ours, theirs)
}

/// Reads everything that has arrived. Returns the number of bytes.
pub(super) fn drain(stream: &mut TcpStream) -> usize {
    let mut buffer = [0; 4096];
    let mut all = 0;
    loop {
        match stream.try_read(&mut buffer) {
            Ok(0) | Err(_) => return all,
            Ok(len) => all += len,
        }
    }
}

/// Writes until neither our ring nor the peer's has room.
pub(super) fn fill(pair: &mut Wired, mut write: impl FnMut(&[u8]) -> Result<usize, SocketError>) {
    let mut is_full = false;
    while !is_full {
        is_full = true;
        while write(&[7; 10_000]).is_ok() {
            is_full = false;
        }
        pair.settle();
    }
}

#[test]
fn what_is_ready_when_it_is_registered_is_reported() {
    for variant in VARIANTS {
        let (mut pair, listener, mut ours, mut theirs) = connected(variant);
        let mut udp = pair.sockets().bind_udp(53).unwrap();
        let mut asks = pair.peer().bind_udp(0).unwrap();
        theirs.try_write(b"hello").unwrap();
        asks.try_send_to(b"what?", ours_at(53)).unwrap();
        let _opening = pair.peer().begin_connect(ours_at(7)).unwrap();
        pair.settle();
        for trigger in TRIGGERS {
            let poller = Poller::new().unwrap();
            let register = |socket: &dyn Fn(&Poller)| socket(&poller);
            register(&|p| {
                p.register(&listener, Token(1), Interest::READABLE, trigger)
                    .unwrap()
            });
            register(&|p| {
                p.register(&ours, Token(2), Interest::BOTH, trigger)
                    .unwrap()
            });
            register(&|p| p.register(&udp, Token(3), Interest::BOTH, trigger).unwrap());
            assert_eq!(ready(&poller), (vec![1, 2, 3], vec![2, 3]), "{variant}");
            let again = match trigger {
                Trigger::Level => (vec![1, 2, 3], vec![2, 3]),
                Trigger::Edge => (vec![], vec![]),
            };
            assert_eq!(ready(&poller), again, "{variant}, {trigger:?}");
        }
        // With both pollers gone, no registration of theirs is left to notify.
        assert_eq!(drain(&mut ours), 5);
        assert_eq!(udp.try_recv_from(&mut [0; 16]).unwrap().0, 5);
    }
}

#[test]
fn level_reports_until_it_is_read_and_edge_what_is_new() {
    for variant in VARIANTS {
        for trigger in TRIGGERS {
            let (mut pair, _listener, mut ours, mut theirs) = connected(variant);
            let poller = Poller::new().unwrap();
            poller
                .register(&ours, Token(9), Interest::READABLE, trigger)
                .unwrap();
            assert_eq!(reported(&poller), []);
            for round in 0..3 {
                theirs.try_write(b"abc").unwrap();
                pair.settle();
                assert_eq!(
                    ready(&poller),
                    (vec![9], vec![]),
                    "{variant} {trigger:?} {round}"
                );
                // Reading a part causes no new edge.
                assert_eq!(ours.try_read(&mut [0; 1]), Ok(1));
                pair.settle();
                let level = trigger == Trigger::Level;
                assert_eq!(reported(&poller).len(), usize::from(level));
                if round > 0 {
                    drain(&mut ours);
                    pair.settle();
                    assert_eq!(reported(&poller), []);
                }
            }
            // An acknowledgment of our bytes is no event for a reader.
            ours.try_write(b"answer").unwrap();
            pair.settle();
            drain(&mut theirs);
            pair.settle();
            assert_eq!(reported(&poller), []);
            theirs.shutdown_write();
            pair.settle();
            let [end] = reported(&poller)[..] else {
                panic!("{variant}: no end")
            };
            assert!(end.readable && end.read_closed && !end.error);
        }
    }
}

#[test]
fn room_is_reported_after_a_write_that_found_too_little() {
    for variant in VARIANTS {
        for trigger in TRIGGERS {
            let (mut pair, _listener, ours, mut theirs) = connected(variant);
            let (_reader, mut writer) = ours.split();
            let poller = Poller::new().unwrap();
            poller
                .register(&writer, Token(1), Interest::WRITABLE, trigger)
                .unwrap();
            assert_eq!(ready(&poller), (vec![], vec![1]));
            for _ in 0..3 {
                // Acknowledged, but never short of room: no edge.
                writer.try_write(&[1; 1000]).unwrap();
                pair.settle();
                drain(&mut theirs);
                pair.settle();
                let level = trigger == Trigger::Level;
                assert_eq!(reported(&poller).len(), usize::from(level), "{variant}");
                fill(&mut pair, |bytes| writer.try_write(bytes));
                assert_eq!(reported(&poller), [], "{variant}, {trigger:?}: it is full");
                while drain(&mut theirs) > 0 {
                    pair.settle();
                }
                assert_eq!(ready(&poller), (vec![], vec![1]), "{variant}, {trigger:?}");
                // A program may write as much as there is room for, and then ask for more.
                let fill_room = |bytes: &[u8]| match writer.room()? {
                    0 => Err(SocketError::WouldBlock),
                    room => writer.try_write(&bytes[..room.min(bytes.len())]),
                };
                fill(&mut pair, fill_room);
                assert_eq!(reported(&poller), [], "{variant}, {trigger:?}: it is full");
                while drain(&mut theirs) > 0 {
                    pair.settle();
                }
                assert_eq!(ready(&poller), (vec![], vec![1]), "{variant}, {trigger:?}");
            }
        }
    }
}

/// A watch is separate from the socket. It may look first after the socket has taken the answer to
/// its open, as a thread of the stack may between two steps of that call.
#[test]
fn a_watch_finds_a_connection_whose_socket_has_taken_the_answer() {
    for variant in VARIANTS {
        let mut pair = pair(variant);
        let _listener = pair.peer().listen(80, 4).unwrap();
        let mut opens = pair.sockets().begin_connect(peer_at(80)).unwrap();
        let watchable = Watchable::new(&opens);
        pair.settle();
        let stream = opens.try_finish().unwrap();
        assert!(stream.is_some(), "{variant}");
        let sight = watchable.look();
        assert!(sight.writable && !sight.error, "{variant}: {sight:?}");
        assert!(
            !sight.readable && !sight.read_closed,
            "{variant}: {sight:?}"
        );
    }
}

/// Counts the news about which it is asked.
#[derive(Debug, Default)]
struct Asked(AtomicU32);

impl Watch for Asked {
    fn is_due(&self) -> bool {
        self.0.fetch_add(1, Relaxed);
        false
    }

    fn fire(self: Arc<Self>) {}
}

/// News for one half would wake a thread that waits at the other one in vain.
#[test]
fn room_is_no_news_for_a_reader_nor_are_bytes_for_a_writer() {
    for variant in VARIANTS {
        let (mut pair, _listener, ours, mut theirs) = connected(variant);
        let (reader, mut writer) = ours.split();
        fill(&mut pair, |bytes| writer.try_write(bytes));
        let asked: [Arc<Asked>; 2] = Default::default();
        let halves = [Watchable::new(&reader), Watchable::new(&writer)];
        for (half, asked) in halves.iter().zip(&asked) {
            half.watch(&(Arc::clone(asked) as _));
        }
        assert!(drain(&mut theirs) > 0);
        pair.settle();
        let asks = asked.each_ref().map(|asked| asked.0.swap(0, Relaxed));
        assert!(asks[0] == 0 && asks[1] > 0, "{variant}: room {asks:?}");
        theirs.try_write(b"bytes").unwrap();
        pair.settle();
        let asks = asked.each_ref().map(|asked| asked.0.swap(0, Relaxed));
        assert!(asks[0] > 0 && asks[1] == 0, "{variant}: bytes {asks:?}");
        drop(theirs);
        pair.settle();
        let asks = asked.each_ref().map(|asked| asked.0.load(Relaxed));
        assert!(asks[0] > 0 && asks[1] > 0, "{variant}: the end {asks:?}");
    }
}

/// Begins to open a connection to the peer, and registers it before or after the stack has
/// processed the call.
fn opening(pair: &mut Wired, poller: &Poller, port: u16, late: bool) -> Connecting {
    let opening = pair.sockets().begin_connect(peer_at(port)).unwrap();
    if late {
        pair.settle();
    }
    let registered = poller.register(&opening, Token(5), Interest::WRITABLE, Trigger::Edge);
    registered.unwrap();
    opening
}

#[test]
fn a_connection_that_opens_is_writable_when_it_is_established_or_refused() {
    for variant in VARIANTS {
        for late in [false, true] {
            for asks in [false, true] {
                let mut pair = pair(variant);
                let _listener = pair.peer().listen(80, 4).unwrap();
                let poller = Poller::new().unwrap();
                let mut opens = opening(&mut pair, &poller, 80, late);
                if asks {
                    // The application finds the stream before the poller looks.
                    pair.stacks[0].turn(pair.now);
                    let opened = opens.try_finish().unwrap();
                    assert!(opened.is_none() || late);
                }
                if !late {
                    assert_eq!(reported(&poller), [], "{variant}");
                }
                pair.settle();
                if !(asks && late) {
                    assert_eq!(ready(&poller), (vec![], vec![5]), "{variant} {late} {asks}");
                    assert!(opens.try_finish().unwrap().is_some());
                }

                let mut refused = opening(&mut pair, &poller, 81, late);
                pair.settle();
                let events = reported(&poller);
                assert!(
                    events.iter().any(|e| e.writable && e.error),
                    "{variant} {events:?}"
                );
                assert_eq!(refused.try_finish().err(), Some(SocketError::Refused));

                let given_up = opening(&mut pair, &poller, 80, late);
                drop(given_up);
                pair.settle();
                assert_eq!(reported(&poller), []);
            }
        }
    }
}

#[test]
fn what_is_dropped_or_deregistered_is_not_reported() {
    for variant in VARIANTS {
        for trigger in TRIGGERS {
            let (mut pair, listener, ours, mut theirs) = connected(variant);
            let poller = Poller::new().unwrap();
            let (reader, writer) = ours.split();
            poller
                .register(&reader, Token(1), Interest::READABLE, trigger)
                .unwrap();
            poller
                .register(&writer, Token(2), Interest::WRITABLE, trigger)
                .unwrap();
            poller
                .register(&listener, Token(3), Interest::READABLE, trigger)
                .unwrap();
            assert_eq!(ready(&poller), (vec![], vec![2]));
            theirs.try_write(b"news").unwrap();
            pair.settle();
            // Drop a source whose event is queued.
            drop(reader);
            poller.deregister(&writer).unwrap();
            assert_eq!(reported(&poller), [], "{variant}");
            let kind = poller.deregister(&writer).unwrap_err().kind();
            assert_eq!(kind, std::io::ErrorKind::NotFound);
            // Drop a source that waits for an event.
            drop(listener);
            let _ = pair.peer().begin_connect(ours_at(7)).unwrap();
            drop(writer);
            drop(theirs);
            pair.settle();
            assert_eq!(reported(&poller), [], "{variant}");
            // The connection's slot is reused.
            let listener = pair.sockets().listen(8, 4).unwrap();
            let (mut ours, mut theirs) = connect(&mut pair, &listener);
            theirs.try_write(b"other news").unwrap();
            pair.settle();
            assert_eq!(drain(&mut ours), 10);
            assert_eq!(reported(&poller), [], "{variant}");
        }
    }
}

#[test]
fn a_socket_is_registered_once_with_a_poller_and_may_be_with_several() {
    let (mut pair, listener, ours, mut theirs) = connected(Variant::Single);
    let pollers = [0, 1].map(|_| Poller::new().unwrap());
    for (token, poller) in pollers.iter().enumerate() {
        let register = || poller.register(&ours, Token(token), Interest::BOTH, Trigger::Edge);
        register().unwrap();
        let kind = register().unwrap_err().kind();
        assert_eq!(kind, std::io::ErrorKind::AlreadyExists);
        assert_eq!(reported(poller).len(), 1);
    }
    let never = |refused: std::io::Result<()>| {
        assert_eq!(
            refused.unwrap_err().kind(),
            std::io::ErrorKind::InvalidInput
        );
    };
    let poller = &pollers[0];
    never(poller.register(&listener, Token(0), Interest::WRITABLE, Trigger::Edge));
    let missing = poller.modify(&listener, Token(0), Interest::READABLE, Trigger::Edge);
    assert_eq!(missing.unwrap_err().kind(), std::io::ErrorKind::NotFound);
    theirs.try_write(b"x").unwrap();
    pair.settle();
    for (token, poller) in pollers.iter().enumerate() {
        assert_eq!(ready(poller), (vec![token], vec![token]));
    }
    // Another token, interest and trigger.
    poller
        .modify(&ours, Token(70), Interest::READABLE, Trigger::Level)
        .unwrap();
    assert_eq!(ready(poller), (vec![70], vec![]));
    assert_eq!(ready(poller), (vec![70], vec![]));
    poller
        .modify(&ours, Token(71), Interest::WRITABLE, Trigger::Edge)
        .unwrap();
    assert_eq!(ready(poller), (vec![], vec![71]));
    assert_eq!(reported(poller), []);
    let [first, _second] = pollers;
    drop(first);
    theirs.try_write(b"x").unwrap();
    pair.settle();
    let (reader, writer) = ours.split();
    let poller = Poller::new().unwrap();
    never(poller.register(&reader, Token(0), Interest::WRITABLE, Trigger::Edge));
    never(poller.register(&writer, Token(0), Interest::READABLE, Trigger::Edge));
}

#[test]
fn what_does_not_fit_is_reported_next_and_each_gets_its_turn() {
    let mut pair = pair(Variant::Single);
    let listener = pair.sockets().listen(7, 16).unwrap();
    let streams: Vec<_> = (0..5).map(|_| connect(&mut pair, &listener)).collect();
    for trigger in TRIGGERS {
        let poller = Poller::new().unwrap();
        for (token, (ours, _)) in streams.iter().enumerate() {
            poller
                .register(ours, Token(token), Interest::WRITABLE, trigger)
                .unwrap();
        }
        let mut events = Vec::with_capacity(2);
        let mut counts = [0; 5];
        for _ in 0..5 {
            poller.events(&mut events);
            assert!(events.len() <= 2);
            events.iter().for_each(|event| counts[event.token.0] += 1);
        }
        let each = if trigger == Trigger::Level { 2 } else { 1 };
        assert_eq!(counts, [each; 5]);
    }
}

#[test]
fn an_error_that_the_network_reports_ends_the_wait_of_a_datagram_socket_each_time() {
    for variant in VARIANTS {
        let mut pair = pair(variant);
        let mut socket = pair.sockets().bind_udp(0).unwrap();
        socket.connect(peer_at(99)).unwrap();
        let poller = Poller::new().unwrap();
        poller
            .register(&socket, Token(0), Interest::READABLE, Trigger::Edge)
            .unwrap();
        for _ in 0..3 {
            assert_eq!(reported(&poller), [], "{variant}");
            socket.try_send(b"?").unwrap();
            pair.settle();
            let [event] = reported(&poller)[..] else {
                panic!("{variant}: no error")
            };
            assert!(event.readable && event.error);
            assert_eq!(
                socket.try_recv_from(&mut []).err(),
                Some(SocketError::Refused)
            );
            pair.now += Duration::from_secs(2);
        }
    }
}

fn assert_source(_: &impl Source) {}

#[test]
fn halves_of_datagram_sockets_are_sources() {
    let (mut pair, ..) = connected(Variant::Single);
    let (mut receiver, sender) = pair.sockets().bind_udp(5).unwrap().split();
    assert_source(&receiver);
    let poller = Poller::new().unwrap();
    poller
        .register(&receiver, Token(1), Interest::READABLE, Trigger::Edge)
        .unwrap();
    poller
        .register(&sender, Token(2), Interest::WRITABLE, Trigger::Level)
        .unwrap();
    assert_eq!(ready(&poller), (vec![], vec![2]));
    let mut asks = pair.peer().bind_udp(0).unwrap();
    asks.try_send_to(b"1", ours_at(5)).unwrap();
    pair.settle();
    assert_eq!(ready(&poller), (vec![1], vec![2]));
    assert_eq!(receiver.try_recv_from(&mut [0; 8]).unwrap().0, 1);
    drop(sender);
    assert_eq!(reported(&poller), []);
}

/// Threads drive the stacks by hand and sleep between turns: an application's call, a frame and a
/// deadline each wake them. Every connection is opened and used at once, so a lost wake-up, or a
/// sleep past the deadline of a delayed acknowledgment, stalls it.
#[test]
fn a_stack_that_is_driven_by_hand_sleeps_until_there_is_something_to_do() {
    // Each variant sleeps most of the time, so run all at once.
    std::thread::scope(|scope| {
        for variant in VARIANTS {
            scope.spawn(move || sleeps_between_turns(variant));
        }
    });
}

fn sleeps_between_turns(variant: Variant) {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    #[expect(clippy::disallowed_methods, reason = "the stack sleeps in real time")]
    let begin = std::time::Instant::now();
    let mut pair = pair(variant);
    let (sockets, clients) = (pair.sockets(), pair.peer());
    let (ours, peer, start) = (pair.stacks.remove(0), pair.hosts.remove(0), pair.now);
    let over = AtomicBool::new(false);
    let turns = AtomicU64::new(0);
    let drive = |mut stack: dominoes_netstack::variants::ByHand| {
        let clock = || start + Duration::from_nanos(begin.elapsed().as_nanos() as u64);
        while !over.load(Ordering::Relaxed) {
            turns.fetch_add(1, Ordering::Relaxed);
            while stack.turn(clock()) > 0 {}
            // With a bound, in case nothing happens any more.
            stack.wait(clock(), clock() + Duration::from_millis(500));
        }
        // `wait` returns at `until` if nothing else happens.
        let now = clock();
        stack.wait(now, now + Duration::from_millis(1));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| drive(ours));
        scope.spawn(|| drive(peer));
        let listener = sockets.listen(7, 4).unwrap();
        let mut theirs = clients.connect(ours_at(7)).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 3000];
        for _ in 0..100 {
            // The second write waits for the acknowledgment of the first (RFC 1122 section
            // 4.2.3.4), which may be delayed.
            use std::io::{Read, Write};
            theirs.write_all(&[1; 10]).unwrap();
            theirs.write_all(&[2; 10]).unwrap();
            stream.read_exact(&mut buffer[..20]).unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    println!("{variant}: {} turns", turns.load(Ordering::Relaxed));
}
