//! Mistakes of a program without `unsafe`: it gets a panic or an error, and neither foreign bytes
//! nor memory that the stack still writes to.
#![forbid(unsafe_code)]

use std::any::Any;
use std::io::BufRead;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;

use dominoes_netstack::framed::{Failure, FramedStream, UnitProcessor};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::Duration;
use dominoes_netstack::tls::{TlsHandshake, TlsStream};
use dominoes_netstack::{Limits, SocketError, TcpStream, Tuning};
use dominoes_testkit::hand::Wired;
use dominoes_testkit::net::{HostConfig, HostId, Net};
use dominoes_testkit::packet::Family;

use crate::support;
use crate::tls::fixture::{TLS13, configs, name};

const RING: u32 = 1 << 12;

/// Two stacks driven by hand, with small rings and room for one connection.
fn pair() -> Wired {
    let limits = Limits::default()
        .connections(1)
        .receive_buffer(RING)
        .send_buffer(RING)
        .udp_sockets(1)
        .udp_receive_buffer(RING)
        .udp_send_buffer(RING);
    Wired::two(
        Variant::Single,
        [1, 2].map(|last| support::setup(last).limits(limits)),
    )
}

/// Consumes more than was lent: this panics, and leaves the stream unchanged.
fn refuses(stream: &mut impl BufRead, len: usize) {
    let result = catch_unwind(AssertUnwindSafe(|| stream.consume(len)));
    assert!(result.is_err(), "{len} bytes were given back");
}

#[test]
fn more_than_was_lent_cannot_be_given_back() {
    let mut pair = pair();
    let (ours, mut theirs) = pair.open(7);
    let (mut ours, _writer) = ours.split();
    refuses(&mut ours, 1);
    theirs.set_nodelay(true).unwrap();
    assert_eq!(theirs.try_write(b"hello"), Ok(5));
    pair.steps(3);
    // Nothing has been lent.
    refuses(&mut ours, 5);
    assert_eq!(ours.try_fill(), Ok(&b"hello"[..]));
    for len in [6, 9, usize::MAX - 999, usize::MAX] {
        refuses(&mut ours, len);
    }
    ours.consume(2);
    refuses(&mut ours, 4);
    assert_eq!(theirs.try_write(b", world"), Ok(7));
    pair.steps(3);
    // Bytes that arrived since were not lent.
    refuses(&mut ours, 4);
    assert_eq!(ours.try_fill(), Ok(&b"llo, world"[..]));
    ours.consume(10);
    assert_eq!(ours.try_fill(), Err(SocketError::WouldBlock));
    refuses(&mut ours, 1);
}

#[test]
fn what_was_shown_can_be_given_back_and_no_more() {
    let mut pair = pair();
    let (ours, mut theirs) = pair.open(7);
    let (mut ours, _writer) = ours.split();
    assert_eq!(theirs.try_write(b"hello"), Ok(5));
    pair.steps(3);
    let mut shown = [0; 3];
    assert_eq!(ours.try_peek(&mut shown), Ok(3));
    refuses(&mut ours, 4);
    ours.consume(3);
    let mut rest = [0; 8];
    assert_eq!(ours.try_read(&mut rest), Ok(2));
    refuses(&mut ours, 1);
    assert_eq!(rest[..2], *b"lo");
}

/// The bytes wrap around the end of the ring, and only the first slice was lent.
#[test]
fn what_lies_behind_the_end_of_the_ring_is_not_lent_with_what_lies_before_it() {
    let mut pair = pair();
    let (ours, mut theirs) = pair.open(7);
    let (mut ours, _writer) = ours.split();
    let (mut sent, mut read) = (0, 0);
    let mut split = false;
    while !split {
        assert!(
            sent < 20 * u64::from(RING),
            "the ring never ended in the middle"
        );
        let bytes: Vec<u8> = (sent..sent + 1000).map(support::pattern_byte).collect();
        sent += theirs.try_write(&bytes).unwrap() as u64;
        pair.steps(20);
        let all = match ours.try_fill_all() {
            Ok((a, b)) => a.len() + b.len(),
            Err(SocketError::WouldBlock) => continue,
            Err(other) => panic!("{other}"),
        };
        let first = ours.try_fill().unwrap().len();
        if first < all {
            refuses(&mut ours, first + 1);
            split = true;
        }
        let mut bytes = vec![0; all];
        assert_eq!(ours.try_read(&mut bytes), Ok(all));
        for found in bytes {
            assert_eq!(found, support::pattern_byte(read), "byte {read}");
            read += 1;
        }
    }
}

/// The second connection reuses the slot of the first, with its rings.
#[test]
fn no_connection_can_send_what_another_one_wrote() {
    let mut pair = pair();
    let (mut ours, theirs) = pair.open(7);
    assert_eq!(ours.try_write(b"the password"), Ok(12));
    pair.steps(3);
    ours.abort();
    drop(theirs);
    pair.steps(50);
    let (ours, mut theirs) = pair.open(7);
    let (_, mut ours) = ours.split();
    assert_eq!(ours.write_again(100), Ok(0));
    let filled = vec![b'x'; RING as usize - 1];
    assert_eq!(ours.try_write(&filled), Ok(filled.len()));
    assert_eq!(ours.write_again(1), Ok(0));
    let mut seen = Vec::new();
    let mut receive = |pair: &mut Wired, ours: &mut dyn FnMut()| {
        for _ in 0..2000 {
            ours();
            pair.step();
            let mut bytes = vec![0; RING as usize];
            match theirs.try_read(&mut bytes) {
                Ok(len) => seen.extend_from_slice(&bytes[..len]),
                Err(SocketError::WouldBlock) => {}
                Err(other) => panic!("{other}"),
            }
        }
        seen.len()
    };
    assert_eq!(receive(&mut pair, &mut || ()), filled.len());
    // With one more byte, this connection has written all of the ring.
    assert_eq!(ours.try_write(b"y"), Ok(1));
    let mut again = 0;
    receive(&mut pair, &mut || again += ours.write_again(100).unwrap());
    let received = receive(&mut pair, &mut || ());
    assert_eq!(received, RING as usize + again);
    assert!(again > RING as usize, "{again} bytes were sent again");
    let ring: Vec<u8> = filled.into_iter().chain(*b"y").collect();
    for (at, found) in seen.iter().enumerate() {
        assert_eq!(*found, ring[at % ring.len()], "byte {at}");
    }
}

#[test]
fn no_udp_socket_can_send_what_another_one_wrote() {
    let mut pair = pair();
    let mut peer = pair.peer().bind_udp(9).unwrap();
    let to = "10.0.0.2:9".parse().unwrap();
    let mut first = pair.sockets().bind_udp(8).unwrap();
    first.try_send_to(&[b'p'; 1001], to).unwrap();
    pair.steps(5);
    drop(first);
    pair.steps(50);
    let mut bytes = vec![0; 2000];
    while peer.try_recv_from(&mut bytes).is_ok() {}
    let second = pair.sockets().bind_udp(8).unwrap();
    second.connect(to).unwrap();
    let (_, mut second) = second.split();
    let mut filled = 0;
    while let Err(error) = second.try_send_again(50) {
        assert_eq!(error, SocketError::Invalid);
        second.try_send(&[b'x'; 999]).unwrap();
        filled += 1;
        pair.steps(5);
        assert!(filled < 100);
    }
    assert_eq!(
        filled,
        RING.div_ceil(1024),
        "the ring was not written all around"
    );
    let mut seen = 0;
    for _ in 0..200 {
        while let Ok((len, _)) = peer.try_recv_from(&mut bytes) {
            assert!(!bytes[..len].contains(&b'p'), "what another socket wrote");
            seen += 1;
        }
        match second.try_send_again(999) {
            Ok(()) | Err(SocketError::WouldBlock) => {}
            Err(other) => panic!("{other}"),
        }
        pair.step();
    }
    assert!(seen > 50, "{seen} datagrams");
}

/// Units of ten bytes that equal their payload.
#[derive(Debug)]
struct Tens;

impl UnitProcessor for Tens {
    fn max_payload(&self) -> usize {
        10
    }

    fn max_unit(&self) -> usize {
        10
    }

    fn receive(&self, _: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        payload[..10].copy_from_slice(unit);
        Ok(10)
    }

    fn send(&self, _: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        unit[..payload.len()].copy_from_slice(payload);
        Ok(())
    }
}

/// A stream whose bytes are units, or why it could not be made.
type Taken = Result<Box<dyn Any>, String>;

/// Every way to make one from a TCP stream.
const TAKERS: [fn(TcpStream) -> Taken; 3] = [
    |stream| match FramedStream::new(stream, Arc::new(Tens)) {
        Ok(framed) => Ok(Box::new(framed)),
        Err(error) => Err(error.to_string()),
    },
    |stream| match TlsHandshake::client(stream, &configs(TLS13).1, name()) {
        Ok(handshake) => Ok(Box::new(handshake)),
        Err(error) => Err(error.to_string()),
    },
    |stream| match TlsHandshake::server(stream, &configs(TLS13).0) {
        Ok(handshake) => Ok(Box::new(handshake)),
        Err(error) => Err(error.to_string()),
    },
];

/// Two hosts of one variant, and connections between them.
fn net_of(variant: Variant, family: Family) -> (Net, [HostId; 2]) {
    let mut net = Net::new(1);
    let limits = Limits::default().connections(16);
    let hosts = [0, 1].map(|_| {
        let host = HostConfig::new(variant).family(family).limits(limits);
        net.add(host).unwrap()
    });
    (net, hosts)
}

/// From two streams, makes one to pass to a taker, and other owners of its connection.
type Sharing = fn(TcpStream, TcpStream) -> (TcpStream, Box<dyn Any>);

/// Each keeps a different part of a stream.
const SHARED: [Sharing; 8] = [
    |stream, _| {
        let clone = stream.try_clone().unwrap();
        (stream, Box::new(clone))
    },
    |stream, _| {
        let (reader, _) = stream.try_clone().unwrap().split();
        (stream, Box::new(reader))
    },
    |stream, _| {
        let (_, writer) = stream.try_clone().unwrap().split();
        (stream, Box::new(writer))
    },
    // A clone replaces the original.
    |mut stream, _| {
        let clone = stream.try_clone().unwrap();
        let old = std::mem::replace(&mut stream, clone);
        (stream, Box::new(old.split().0))
    },
    // Two streams swap halves.
    |mut stream, mut other| {
        std::mem::swap(stream.halves().0, other.halves().0);
        (stream, Box::new(other))
    },
    |mut stream, mut other| {
        std::mem::swap(stream.halves().1, other.halves().1);
        (stream, Box::new(other))
    },
    |mut stream, mut other| {
        let ((a, b), (c, d)) = (stream.halves(), other.halves());
        std::mem::swap(a, c);
        std::mem::swap(b, d);
        (stream, Box::new(other))
    },
    |mut stream, other| {
        let (reader, writer) = other.split();
        let own = std::mem::replace(stream.halves().0, reader);
        (stream, Box::new((own, writer)))
    },
];

#[test]
fn what_somebody_else_can_reach_belongs_to_no_units() {
    for variant in Variant::ALL {
        for family in [Family::V4, Family::V6] {
            let (mut net, hosts) = net_of(variant, family);
            let mut connect = |port| support::connect(&mut net, hosts, port);
            let mut port = 7;
            for (way, share) in SHARED.into_iter().enumerate() {
                let take = TAKERS[way % 3];
                let [one, _there] = connect(port);
                let [other, _there] = connect(port + 1);
                port += 2;
                let (stream, others) = share(one, other);
                let refused = take(stream).err();
                let why = "clones or halves of the stream are in use";
                assert_eq!(refused.as_deref(), Some(why), "{variant:?} {way}");
                drop(others);
            }
        }
    }
}

#[test]
fn what_nobody_else_can_reach_any_more_belongs_to_units() {
    let (mut net, hosts) = net_of(Variant::Single, Family::V4);
    for (number, take) in TAKERS.into_iter().enumerate() {
        let [mut stream, mut there] = support::connect(&mut net, hosts, 7 + number as u16);
        // The clone borrows bytes and room, and returns neither.
        assert_eq!(there.try_write(b"0123456789"), Ok(10));
        net.pass(Duration::from_millis(100));
        let mut clone = stream.try_clone().unwrap();
        assert_eq!(clone.halves().0.try_fill(), Ok(&b"0123456789"[..]));
        std::mem::forget(clone.halves().1.reserve(20));
        let (reader, writer) = clone.split();
        // The halves of the clone replace the original ones.
        *stream.halves().0 = reader;
        *stream.halves().1 = writer;
        let taken = take(stream).unwrap();
        if let Ok(mut framed) = taken.downcast::<FramedStream>() {
            assert_eq!(framed.try_read(&mut [0; 20]), Ok(10));
            assert_eq!(framed.try_write(b"abc"), Ok(3));
            net.pass(Duration::from_millis(100));
            let mut heard = [1; 20];
            assert_eq!(there.try_read(&mut heard), Ok(10));
            assert_eq!(heard[..10], *b"abc\0\0\0\0\0\0\0");
        }
    }
}

/// Another thread makes and drops clones, each of which borrows room and bytes.
#[test]
fn units_begin_when_the_last_clone_of_another_thread_has_gone() {
    let (mut net, hosts) = net_of(Variant::Replicated(2), Family::V4);
    for port in 7..15 {
        let [stream, mut there] = support::connect(&mut net, hosts, port);
        assert_eq!(there.try_write(b"0123456789"), Ok(10));
        net.pass(Duration::from_millis(100));
        let mut clone = stream.try_clone().unwrap();
        let (said, heard) = mpsc::channel();
        let other = thread::spawn(move || {
            for round in 0..100 {
                let mut next = clone.try_clone().unwrap();
                if let Ok(mut room) = next.halves().1.reserve(200) {
                    room.fill(7);
                }
                let _ = next.halves().0.try_fill();
                if round == 50 {
                    said.send(()).unwrap();
                }
                clone = next;
            }
        });
        heard.recv().unwrap();
        // Either the connection had other owners, or nothing that they wrote is visible.
        if let Ok(mut framed) = FramedStream::new(stream, Arc::new(Tens)) {
            assert_eq!(framed.try_read(&mut [0; 20]), Ok(10));
            assert_eq!(framed.try_write(b"abc"), Ok(3));
            net.pass(Duration::from_millis(100));
            let mut heard = [1; 20];
            assert_eq!(there.try_read(&mut heard), Ok(10));
            assert_eq!(heard[..10], *b"abc\0\0\0\0\0\0\0");
        }
        other.join().unwrap();
    }
}

#[test]
fn units_do_not_stand_behind_the_end_of_a_stream() {
    for variant in Variant::ALL {
        let (mut net, hosts) = net_of(variant, Family::V4);
        let [mut stream, mut there] = support::connect(&mut net, hosts, 7);
        assert_eq!(stream.try_write(b"before"), Ok(6));
        stream.shutdown_write();
        let mut framed = FramedStream::new(stream, Arc::new(Tens)).unwrap();
        let written = framed.try_write(b"behind");
        assert_eq!(written, Err(SocketError::ShutDown), "{variant:?}");
        net.pass(Duration::from_millis(100));
        let mut heard = [0; 20];
        assert_eq!(there.try_read(&mut heard), Ok(6));
        assert_eq!(there.try_read(&mut heard), Ok(0));
    }
}

/// A read by reference takes the datagram that was lent, and `consume` takes no other.
#[test]
fn a_datagram_that_nobody_saw_is_not_given_back() {
    let mut pair = pair();
    let mut here = pair.sockets().bind_udp(9).unwrap();
    let there = pair.peer().bind_udp(8).unwrap();
    for text in [b"one", b"two", b"six"] {
        there.send_to(text, "10.0.0.1:9").unwrap();
    }
    pair.steps(5);
    assert_eq!(here.try_peek().unwrap().parts.0, b"one");
    let mut heard = [0; 3];
    assert_eq!(here.recv(&mut heard).unwrap(), 3);
    assert_eq!(heard, *b"one");
    here.halves().0.consume();
    assert_eq!(here.try_peek().unwrap().parts.0, b"two");
    here.halves().0.consume();
    assert_eq!(here.try_peek().unwrap().parts.0, b"six");
}

/// Both ends of a TLS connection, and the handshake that made our end.
fn tls_over(net: &mut Net, [ours, theirs]: [TcpStream; 2]) -> (TlsHandshake, [TlsStream; 2]) {
    let (server, client) = configs(TLS13);
    let mut here = TlsHandshake::server(ours, &server).unwrap();
    let mut there = TlsHandshake::client(theirs, &client, name()).unwrap();
    let mut ends = (None, None);
    while ends.0.is_none() || ends.1.is_none() {
        ends.1 = ends.1.or_else(|| there.try_finish().unwrap());
        ends.0 = ends.0.or_else(|| here.try_finish().unwrap());
        net.pass(Duration::from_millis(10));
    }
    (here, [ends.0.unwrap(), ends.1.unwrap()])
}

#[test]
fn a_view_sets_options_and_ends_a_stream_behind_what_was_written() {
    for variant in Variant::ALL {
        for family in [Family::V4, Family::V6] {
            let (mut net, hosts) = net_of(variant, family);
            let [ours, mut theirs] = support::connect(&mut net, hosts, 7);
            let mut framed = FramedStream::new(ours, Arc::new(Tens)).unwrap();
            assert_eq!(framed.get_ref().ttl().unwrap(), 64);
            framed.get_ref().set_ttl(9).unwrap();
            assert_eq!(framed.get_ref().settings().ttl, 9);
            assert_eq!(framed.try_write(&[7; 100]), Ok(100));
            let (reader, mut writer) = framed.split();
            reader.get_ref().shutdown(Shutdown::Write).unwrap();
            let written = writer.try_write(b"behind");
            assert_eq!(written, Err(SocketError::ShutDown), "{variant:?}");
            net.pass(Duration::from_millis(100));
            let mut heard = [0; 200];
            assert_eq!(theirs.try_read(&mut heard), Ok(100), "{variant:?}");
            assert_eq!(theirs.try_read(&mut heard), Ok(0), "{variant:?}");

            let streams = support::connect(&mut net, hosts, 8);
            let (_, [mut here, mut there]) = tls_over(&mut net, streams);
            assert_eq!(here.try_write(&[7; 9_000]), Ok(9_000));
            here.get_ref().shutdown_write();
            assert_eq!(here.try_write(b"behind"), Err(SocketError::ShutDown.into()));
            net.pass(Duration::from_millis(100));
            let mut heard = [0; 10_000];
            assert_eq!(there.try_read(&mut heard), Ok(9_000), "{variant:?}");
            assert_eq!(
                there.try_read(&mut heard),
                Ok(0),
                "{variant:?}: close_notify"
            );
        }
    }
}

/// The lengths that were checked when units began stay valid.
#[test]
fn a_view_makes_no_buffer_shorter_than_units_need() {
    let (mut net, hosts) = net_of(Variant::Single, Family::V4);
    let streams = support::connect(&mut net, hosts, 7);
    let (_, [here, _there]) = tls_over(&mut net, streams);
    let set = |bytes| {
        here.get_ref()
            .set_tuning(Tuning::default().receive_buffer(bytes))
    };
    assert_eq!(set((32 << 10) - 1), Err(SocketError::Invalid));
    assert_eq!(set(32 << 10), Ok(()));
    assert_eq!(set(0), Ok(()), "the longest");
    let [ours, _theirs] = support::connect(&mut net, hosts, 8);
    let clone = ours.try_clone().unwrap();
    clone.set_send_buffer(Some(1024)).unwrap();
    drop(clone);
    let framed = FramedStream::new(ours, Arc::new(Tens)).unwrap();
    assert!(framed.get_ref().set_send_buffer(Some(1023)).is_err());
    framed.get_ref().set_send_buffer(Some(1024)).unwrap();
}

#[test]
fn a_handshake_that_is_finished_shows_nothing_of_its_connection() {
    let (mut net, hosts) = net_of(Variant::Replicated(2), Family::V4);
    let streams = support::connect(&mut net, hosts, 7);
    let (mut handshake, [mut here, mut there]) = tls_over(&mut net, streams);
    let view = handshake.get_ref();
    view.shutdown_write();
    assert!(view.shutdown(Shutdown::Both).is_err());
    assert!(view.info().is_none());
    view.set_nonblocking(true).unwrap();
    let again = handshake.try_finish().map(drop);
    assert_eq!(again, Err(SocketError::NotConnected.into()));
    drop(handshake);
    assert_eq!(here.try_write(b"text"), Ok(4));
    net.pass(Duration::from_millis(100));
    assert_eq!(there.try_read(&mut [0; 9]), Ok(4));
}
