//! How connections end when their stack ends.

#![cfg(feature = "testkit")]

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::{Limits, SocketError, Stack, StackError, TcpStream};

use crate::support::{LONG, stacks};

const VARIANTS: [Variant; 4] = [
    Variant::Single,
    Variant::Locked(2),
    Variant::Replicated(2),
    Variant::Replicated(3),
];

/// Two stacks and a connection between them: the server's end comes first.
fn connected(variant: Variant) -> ((Stack, TcpStream), (Stack, TcpStream)) {
    let [server, client] = stacks(variant);
    let listener = server.listen(7, 4).unwrap();
    let at = SocketAddr::new([10, 0, 0, 1].into(), 7);
    let ours = client.connect(at).unwrap();
    let theirs = listener.accept().unwrap().0;
    ((server, theirs), (client, ours))
}

fn pattern() -> Vec<u8> {
    (0..500_000u32).map(|i| (i * 7 + i / 256) as u8).collect()
}

#[test]
fn what_was_written_arrives_with_the_end_of_the_stream_when_a_stack_is_closed() {
    for variant in VARIANTS {
        for drops in [false, true] {
            let ((server, mut theirs), (_client, mut ours)) = connected(variant);
            // The rest of it is in flight when the stack is closed.
            let reader = thread::spawn(move || {
                let mut all = Vec::new();
                ours.read_to_end(&mut all).unwrap();
                all
            });
            theirs.write_all(&pattern()).unwrap();
            let kept = (!drops).then_some(theirs);
            server.close(LONG).unwrap();
            assert!(reader.join().unwrap() == pattern(), "{variant}");
            let error = kept.map(|mut kept| kept.write(b"x").unwrap_err().kind());
            assert!(matches!(
                error,
                None | Some(ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe)
            ));
        }
    }
}

#[test]
fn dropping_a_stack_resets_its_connections() {
    for variant in VARIANTS.into_iter().take(3) {
        let ((server, theirs), (_client, mut ours)) = connected(variant);
        drop(server);
        let error = ours.read(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        drop(theirs);
    }
}

#[test]
fn a_peer_that_takes_nothing_is_waited_for_no_longer_than_asked_and_then_reset() {
    for variant in VARIANTS.into_iter().take(3) {
        let ((server, mut theirs), (_client, mut ours)) = connected(variant);
        // The peer does not read, so its ring takes two thirds of this, and ours keeps the rest.
        let more = Limits::default().receive_buffer as usize / 2 * 3;
        theirs.write_all(&vec![5; more]).unwrap();
        drop(theirs);
        let closed = server.close(Duration::from_millis(50));
        assert!(
            matches!(closed, Err(StackError::Unacknowledged { connections: 1 })),
            "{closed:?}"
        );
        let error = ours.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_peer_that_still_talks_is_reset_once_it_has_everything() {
    let ((server, mut theirs), (_client, mut ours)) = connected(Variant::Replicated(2));
    theirs.write_all(b"bye").unwrap();
    server.close(LONG).unwrap();
    let mut all = Vec::new();
    ours.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"bye");
    let error = loop {
        match ours.write_all(b"and another thing") {
            Ok(()) => thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn nothing_begins_while_a_stack_is_closed_and_who_waits_is_told() {
    let ((server, mut theirs), (client, ours)) = connected(Variant::Single);
    let listener = server.listen(8, 4).unwrap();
    let sockets = server.sockets();
    let acceptor = thread::spawn(move || {
        let accepted = listener.accept().map(drop);
        accepted.map_err(|error| SocketError::of(&error))
    });
    let writer = thread::spawn(move || {
        loop {
            if let Err(error) = theirs.write(&[5; 10_000]) {
                return error;
            }
        }
    });
    // Its peer reads nothing, so the writer waits for room sooner or later.
    let closer = thread::spawn(move || server.close(Duration::from_millis(100)));
    assert_eq!(acceptor.join().unwrap(), Err(Some(SocketError::Down)));
    assert_eq!(writer.join().unwrap().kind(), ErrorKind::ConnectionAborted);
    let at = ours.local_addr().unwrap();
    assert_eq!(sockets.connect(at).map(drop), Err(SocketError::Down));
    assert_eq!(sockets.listen(9, 1).map(drop), Err(SocketError::Down));
    // Depending on how much the writer could write before, some of it may be cut short.
    let _ = closer.join().unwrap();
    drop((client, ours));
}

#[test]
fn datagrams_leave_before_their_stack_ends() {
    let (left, right) = memory::pair(MemoryConfig::default());
    let server = Stack::builder("10.0.0.1/24").start(left).unwrap();
    let client = Stack::builder("10.0.0.2/24").replicas(2);
    let client = client.start(right).unwrap();
    let theirs = server.bind_udp(7).unwrap();
    let ours = client.bind_udp(0).unwrap();
    let at = SocketAddr::new([10, 0, 0, 1].into(), 7);
    theirs.set_read_timeout(Some(LONG)).unwrap();
    // This resolves the receiver's link-layer address.
    ours.send_to(b"first", at).unwrap();
    theirs.recv_from(&mut [0; 100]).unwrap();
    for i in 0..10u8 {
        ours.send_to(&[i; 100], at).unwrap();
    }
    client.close(LONG).unwrap();
    for i in 0..10u8 {
        let mut heard = [0; 100];
        theirs.recv_from(&mut heard).unwrap();
        assert_eq!(heard, [i; 100]);
    }
}
