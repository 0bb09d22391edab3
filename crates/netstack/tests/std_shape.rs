//! Programs over `std::net`, compiled with its types and with ours under the same names. They run
//! over the host's loopback and over two stacks in memory; both must give equal results.

#![cfg(feature = "testkit")]

use dominoes_netstack::testkit::Variant;
use dominoes_netstack::{SocketError, Sockets, TcpListener};
use std::thread;
use std::time::Duration;

use crate::support::{in_time, stacks};

/// The contents of both modules.
macro_rules! snippets {
    ($($from:tt)*) => {
        use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
        use std::net::Shutdown;
        use std::thread;
        use std::time::Duration;

        use $($from)*::{TcpListener, TcpStream, UdpSocket};

        include!("std_shape/snippets.rs");
    };
}

mod over_the_host {
    /// The host talks to itself.
    #[derive(Clone)]
    pub(super) struct Side;

    impl Side {
        #[expect(clippy::unused_self, reason = "as for stacks")]
        fn enter(&self) -> impl Sized {}

        #[expect(clippy::unused_self, reason = "as for stacks")]
        fn host(&self) -> &str {
            "127.0.0.1"
        }
    }

    snippets!(std::net);
}

mod over_stacks {
    use dominoes_netstack::{Entered, Sockets};

    /// A stack, and its address.
    #[derive(Clone)]
    pub(super) struct Side(pub(super) Sockets, pub(super) &'static str);

    impl Side {
        fn enter(&self) -> Entered {
            self.0.enter()
        }

        fn host(&self) -> &str {
            self.1
        }
    }

    snippets!(dominoes_netstack);
}

#[test]
fn what_is_written_for_std_does_the_same_over_stacks() {
    use over_the_host::Side;
    for (number, (snippet, expected)) in over_the_host::SNIPPETS.iter().enumerate() {
        println!("number {number}, over the host");
        let said = in_time(move || snippet(&Side, &Side));
        assert_eq!(said.unwrap(), *expected, "number {number}, over the host");
    }
    assert_eq!(over_the_host::SNIPPETS.len(), over_stacks::SNIPPETS.len());
    // Workers of `locked` overtake each other, so one may refuse a SYN that comes after a listener.
    for variant in [Variant::Single, Variant::Locked(1), Variant::Replicated(2)] {
        let [server, client] = stacks(variant);
        let sides = [(&server, "10.0.0.1"), (&client, "10.0.0.2")];
        let [server, client] = sides.map(|(stack, at)| over_stacks::Side(stack.sockets(), at));
        for (number, (snippet, expected)) in over_stacks::SNIPPETS.iter().enumerate() {
            let (server, client) = (server.clone(), client.clone());
            println!("number {number}, {variant}");
            let said = in_time(move || snippet(&server, &client));
            assert_eq!(said.unwrap(), *expected, "number {number}, {variant}");
        }
    }
}

#[test]
fn a_listener_that_is_closed_ends_the_accepts_that_wait() {
    let [server, client] = stacks(Variant::Replicated(2));
    let listener = server.listen(7, 4).unwrap();
    let soon = Duration::from_millis(20);
    let late = listener.accept_within(soon).map(drop);
    assert_eq!(late, Err(SocketError::WaitedTooLong));
    listener.set_accept_timeout(Some(soon)).unwrap();
    assert!(listener.accept().is_err());
    listener.set_accept_timeout(None).unwrap();

    let clone: TcpListener = listener.try_clone().unwrap();
    let waiting = thread::spawn(move || clone.accept().map(drop));
    thread::sleep(soon);
    listener.close();
    let error = waiting.join().unwrap().unwrap_err();
    assert_eq!(SocketError::of(&error), Some(SocketError::Closed));
    assert_eq!(listener.try_accept().map(drop), Err(SocketError::Closed));
    // Another listener may have the port now; the closed one takes no connection from it.
    let other = server.listen(7, 4).unwrap();
    let _ours = in_time(move || (client.connect("10.0.0.1:7").unwrap(), client));
    assert_eq!(listener.try_accept().map(drop), Err(SocketError::Closed));
    assert!(other.accept().is_ok());
}

#[test]
fn a_thread_without_sockets_says_so_and_what_is_entered_last_counts() {
    assert_eq!(Sockets::current().map(drop), Err(SocketError::NoStack));
    let [server, client] = stacks(Variant::Single);
    let outer = server.sockets().enter();
    {
        let _inner = client.sockets().enter();
        let inside = TcpListener::bind("0.0.0.0:9")
            .unwrap()
            .local_addr()
            .unwrap();
        assert_eq!(inside.to_string(), "10.0.0.2:9");
    }
    let outside = TcpListener::bind("0.0.0.0:9")
        .unwrap()
        .local_addr()
        .unwrap();
    assert_eq!(outside.to_string(), "10.0.0.1:9");
    drop(outer);
    assert_eq!(Sockets::current().map(drop), Err(SocketError::NoStack));
}

#[test]
fn bytes_reserved_in_the_send_ring_are_zero_and_sent_when_committed() {
    use std::io::{Read, Write};
    let [server, client] = stacks(Variant::Replicated(2));
    let listener = server.listen(7, 4).unwrap();
    let (mut ours, _client) = in_time(move || (client.connect("10.0.0.1:7").unwrap(), client));
    let (mut theirs, _) = listener.accept().unwrap();
    // Leaves non-zero bytes in the ring after it wraps.
    let mut all = vec![0xaa; 1 << 20];
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).unwrap();
        got
    });
    ours.write_all(&all).unwrap();
    let (_, writer) = ours.halves();
    assert_eq!(writer.reserve(0).map(drop), Err(SocketError::Invalid));
    for round in 0..300_u32 {
        let mut place = loop {
            match writer.reserve(5000) {
                Ok(place) => break place,
                Err(SocketError::WouldBlock) => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        assert!(place.iter().all(|byte| *byte == 0), "round {round}");
        let len = place.len() / 2;
        place[..len].fill(round as u8);
        if round % 3 == 0 {
            // Dropped without a commit: nothing is sent.
            continue;
        }
        place.commit(len).unwrap();
        all.extend(vec![round as u8; len]);
    }
    let place = writer.reserve(1).unwrap();
    let more = place.len() + 1;
    assert_eq!(place.commit(more), Err(SocketError::Invalid));
    ours.shutdown_write();
    assert!(reader.join().unwrap() == all);
}

#[test]
fn a_clone_waits_while_bytes_are_lent_in_place_and_goes_on_afterwards() {
    use std::io::{BufRead, Read, Write};
    let [server, client] = stacks(Variant::Single);
    let listener = server.listen(7, 4).unwrap();
    let (mut ours, _client) = in_time(move || (client.connect("10.0.0.1:7").unwrap(), client));
    let (mut theirs, _) = listener.accept().unwrap();
    ours.write_all(b"lent, and read").unwrap();
    while theirs.peek(&mut [0; 14]).unwrap() < 14 {}
    assert_eq!(theirs.unread(), Ok(14));
    assert_eq!(theirs.fill_buf().unwrap().len(), 14);
    let mut clone = theirs.try_clone().unwrap();
    assert_eq!(clone.try_read(&mut [0; 4]), Err(SocketError::WouldBlock));
    let reading = thread::spawn(move || {
        let mut got = [0; 4];
        clone.read_exact(&mut got).unwrap();
        got
    });
    theirs.consume(4);
    thread::sleep(Duration::from_millis(10));
    theirs.consume(6);
    // Dropping releases the rest.
    drop(theirs);
    assert_eq!(&reading.join().unwrap(), b"read");
}
