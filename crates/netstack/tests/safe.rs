//! What a program without `unsafe` may do wrong: it gets a panic or an error, and neither bytes
//! that are not its own nor memory that the stack still writes to.
#![forbid(unsafe_code)]

use std::io::BufRead;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::{Limits, SocketError, TcpStream};

use crate::support;

const RING: u32 = 1 << 12;

/// Two stacks that are driven by hand, with small rings and few places.
struct Pair {
    ours: Single,
    peer: Single,
    now: Instant,
}

impl Pair {
    fn new() -> Pair {
        let (left, right) = memory::pair(MemoryConfig::default());
        let limits = Limits::default()
            .connections(1)
            .receive_buffer(RING)
            .send_buffer(RING)
            .udp_sockets(1)
            .udp_receive_buffer(RING)
            .udp_send_buffer(RING);
        let make = |last, device| {
            let setup = support::setup(last).limits(limits);
            Single::new(setup, Box::new(device)).unwrap()
        };
        Pair {
            ours: make(1, left),
            peer: make(2, right),
            now: Instant::ZERO,
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_micros(100);
        self.ours.turn(self.now);
        self.peer.turn(self.now);
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }

    /// Our end and the peer's end of a connection that the peer opens.
    fn connect(&mut self) -> (TcpStream, TcpStream) {
        let listener = self.ours.sockets().listen(7, 1).unwrap();
        let at = "10.0.0.1:7".parse().unwrap();
        let mut opening = self.peer.sockets().begin_connect(at).unwrap();
        for _ in 0..100 {
            self.step();
            let accepted = listener.try_accept();
            if let Ok((ours, _)) = accepted {
                loop {
                    self.step();
                    if let Some(theirs) = opening.try_finish().unwrap() {
                        return (ours, theirs);
                    }
                }
            }
        }
        panic!("the connection was not established");
    }
}

/// Gives more back than was lent: a panic, after which the stream is as it was.
fn refuses(stream: &mut impl BufRead, len: usize) {
    let result = catch_unwind(AssertUnwindSafe(|| stream.consume(len)));
    assert!(result.is_err(), "{len} octets were given back");
}

#[test]
fn more_than_was_lent_cannot_be_given_back() {
    let mut pair = Pair::new();
    let (ours, mut theirs) = pair.connect();
    let (mut ours, _writer) = ours.split();
    refuses(&mut ours, 1);
    theirs.set_nodelay(true).unwrap();
    assert_eq!(theirs.try_write(b"hello"), Ok(5));
    pair.steps(3);
    // Nothing was lent yet.
    refuses(&mut ours, 5);
    assert_eq!(ours.try_fill(), Ok(&b"hello"[..]));
    for len in [6, 9, usize::MAX - 999, usize::MAX] {
        refuses(&mut ours, len);
    }
    ours.consume(2);
    refuses(&mut ours, 4);
    assert_eq!(theirs.try_write(b", world"), Ok(7));
    pair.steps(3);
    // What came meanwhile was not lent.
    refuses(&mut ours, 4);
    assert_eq!(ours.try_fill(), Ok(&b"llo, world"[..]));
    ours.consume(10);
    assert_eq!(ours.try_fill(), Err(SocketError::WouldBlock));
    refuses(&mut ours, 1);
}

#[test]
fn what_was_shown_can_be_given_back_and_no_more() {
    let mut pair = Pair::new();
    let (ours, mut theirs) = pair.connect();
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

/// At the end of the ring one slice ends and another begins; the first alone was lent.
#[test]
fn what_lies_behind_the_end_of_the_ring_is_not_lent_with_what_lies_before_it() {
    let mut pair = Pair::new();
    let (ours, mut theirs) = pair.connect();
    let (mut ours, _writer) = ours.split();
    let (mut sent, mut read) = (0, 0);
    let mut split = false;
    while !split {
        assert!(
            sent < 20 * u64::from(RING),
            "the ring never ended in the middle"
        );
        let octets: Vec<u8> = (sent..sent + 1000).map(support::pattern_byte).collect();
        sent += theirs.try_write(&octets).unwrap() as u64;
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
        let mut octets = vec![0; all];
        assert_eq!(ours.try_read(&mut octets), Ok(all));
        for found in octets {
            assert_eq!(found, support::pattern_byte(read), "pattern_byte {read}");
            read += 1;
        }
    }
}

/// The second connection gets the place of the first, with its rings.
#[test]
fn no_connection_can_send_what_another_one_wrote() {
    let mut pair = Pair::new();
    let (mut ours, theirs) = pair.connect();
    assert_eq!(ours.try_write(b"the password"), Ok(12));
    pair.steps(3);
    ours.abort();
    drop(theirs);
    pair.steps(50);
    let (ours, mut theirs) = pair.connect();
    let (_, mut ours) = ours.split();
    assert_eq!(ours.write_again(100), Ok(0));
    let filled = vec![b'x'; RING as usize - 1];
    assert_eq!(ours.try_write(&filled), Ok(filled.len()));
    assert_eq!(ours.write_again(1), Ok(0));
    let mut seen = Vec::new();
    let mut receive = |pair: &mut Pair, ours: &mut dyn FnMut()| {
        for _ in 0..2000 {
            ours();
            pair.step();
            let mut octets = vec![0; RING as usize];
            match theirs.try_read(&mut octets) {
                Ok(len) => seen.extend_from_slice(&octets[..len]),
                Err(SocketError::WouldBlock) => {}
                Err(other) => panic!("{other}"),
            }
        }
        seen.len()
    };
    assert_eq!(receive(&mut pair, &mut || ()), filled.len());
    // One more byte, and all of the ring was written by this connection.
    assert_eq!(ours.try_write(b"y"), Ok(1));
    let mut again = 0;
    receive(&mut pair, &mut || again += ours.write_again(100).unwrap());
    let received = receive(&mut pair, &mut || ());
    assert_eq!(received, RING as usize + again);
    assert!(again > RING as usize, "{again} octets were sent again");
    let ring: Vec<u8> = filled.into_iter().chain(*b"y").collect();
    for (at, found) in seen.iter().enumerate() {
        assert_eq!(*found, ring[at % ring.len()], "pattern_byte {at}");
    }
}

#[test]
fn no_udp_socket_can_send_what_another_one_wrote() {
    let mut pair = Pair::new();
    let mut peer = pair.peer.sockets().bind_udp(9).unwrap();
    let to = "10.0.0.2:9".parse().unwrap();
    let mut first = pair.ours.sockets().bind_udp(8).unwrap();
    first.try_send_to(&[b'p'; 1001], to).unwrap();
    pair.steps(5);
    drop(first);
    pair.steps(50);
    let mut octets = vec![0; 2000];
    while peer.try_recv_from(&mut octets).is_ok() {}
    let second = pair.ours.sockets().bind_udp(8).unwrap();
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
        while let Ok((len, _)) = peer.try_recv_from(&mut octets) {
            assert!(!octets[..len].contains(&b'p'), "what another socket wrote");
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
