//! Descriptors of the kernel beside sockets of a stack.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::thread;

use dominoes_drivers::Device;
use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_drivers::tun::Tun;
use dominoes_netstack::{Stack, TcpStream};

use super::*;

/// The only event of a call that waits.
fn next(poller: &Poller) -> Event {
    let mut events = Vec::with_capacity(8);
    assert_eq!(poller.wait(&mut events, None), 1);
    events[0]
}

#[test]
fn descriptors_are_reported_by_level_or_edge_until_they_are_deregistered_or_closed() {
    let both = [Trigger::Level, Trigger::Edge];
    for (trigger, reported_again) in both.into_iter().zip([1, 0]) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let poller = Poller::new().unwrap();
        let missing = poller.deregister_descriptor(&ours).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let register = || poller.register_descriptor(&ours, Token(1), Interest::READABLE, trigger);
        register().unwrap();
        assert_eq!(register().unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(reported(&poller), []);
        theirs.write_all(b"news").unwrap();
        let event = next(&poller);
        assert!(
            event.token == Token(1) && event.readable && !event.writable,
            "{event:?}"
        );
        assert_eq!(reported(&poller).len(), reported_again);

        let modified = poller.modify_descriptor(&ours, Token(2), Interest::BOTH, trigger);
        modified.unwrap();
        let event = next(&poller);
        assert!(
            event.token == Token(2) && event.readable && event.writable,
            "{event:?}"
        );
        (&ours).read_exact(&mut [0; 4]).unwrap();
        drop(theirs);
        let event = next(&poller);
        assert!(
            event.read_closed && event.write_closed && !event.error,
            "{event:?}"
        );

        poller.deregister_descriptor(&ours).unwrap();
        assert_eq!(reported(&poller), []);
        register().unwrap();
        assert_eq!(reported(&poller).len(), 1);
        drop(ours);
        assert_eq!(reported(&poller), []);
    }
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let poller = Poller::new().unwrap();
    let refused = poller.register_descriptor(&file, Token(0), Interest::READABLE, Trigger::Level);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn neither_descriptors_nor_sockets_keep_the_others_from_a_report() {
    let (left, right) = memory::pair(MemoryConfig::default());
    let server = Stack::builder("10.0.0.1/24").start(left).unwrap();
    let client = Stack::builder("10.0.0.2/24").start(right).unwrap();
    let listener = server.listen(7, 16).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"news").unwrap();
    let (poller, level) = (Poller::new().unwrap(), Trigger::Level);
    let _waiting = client.connect("10.0.0.1:7").unwrap();
    poller
        .register(&listener, Token(2), Interest::READABLE, level)
        .unwrap();
    assert_eq!(next(&poller).token, Token(2));
    poller
        .register_descriptor(&ours, Token(1), Interest::READABLE, level)
        .unwrap();
    let mut events = Vec::with_capacity(1);
    let mut seen = [0; 3];
    for _ in 0..6 {
        poller.wait(&mut events, None);
        events.iter().for_each(|event| seen[event.token.0] += 1);
    }
    assert_eq!(seen, [0, 3, 3]);
}

/// Two stacks that choose how many threads they have.
fn stacks(left: impl Device + 'static, right: impl Device + 'static) -> [Stack; 2] {
    let server = Stack::builder("10.0.0.1/24").start(left).unwrap();
    [server, Stack::builder("10.0.0.2/24").start(right).unwrap()]
}

/// Devices in memory, on which no thread can sleep beside descriptors, and pipes.
fn all_stacks() -> [[Stack; 2]; 2] {
    let (left, right) = memory::pair(MemoryConfig::default());
    let (one, other) = UnixDatagram::pair().unwrap();
    let pipe = |end: UnixDatagram| Tun::from_fd(end.into(), &Tun::options()).unwrap();
    [stacks(left, right), stacks(pipe(one), pipe(other))]
}

/// One thread echoes what arrives at a socket and at a descriptor; others send by turns.
#[test]
fn a_thread_that_waits_for_both_misses_neither() {
    const ROUNDS: usize = 300;
    for [server, client] in all_stacks() {
        let listener = server.listen(7, 16).unwrap();
        let mut asks = client.connect("10.0.0.1:7").unwrap();
        let (mut answers, _) = listener.accept().unwrap();
        answers.set_nonblocking(true).unwrap();
        let (mut kernels, mut far) = UnixStream::pair().unwrap();
        kernels.set_nonblocking(true).unwrap();
        let poller = Poller::new().unwrap();
        let edge = Trigger::Edge;
        poller
            .register(&answers, Token(1), Interest::READABLE, edge)
            .unwrap();
        poller
            .register_descriptor(&kernels, Token(2), Interest::READABLE, edge)
            .unwrap();
        let waker = poller.waker();
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut events = Vec::with_capacity(8);
                while poller.wait(&mut events, None) > 0 {
                    for event in &events {
                        let mut bytes = [0; 64];
                        match event.token {
                            Token(1) => echo(&mut answers, &mut bytes),
                            _ => echo(&mut kernels, &mut bytes),
                        }
                    }
                }
            });
            for round in 0..ROUNDS {
                let mut heard = [0; 2];
                if round % 3 != 1 {
                    asks.write_all(b"ab").unwrap();
                }
                if round % 3 != 0 {
                    far.write_all(b"cd").unwrap();
                    far.read_exact(&mut heard).unwrap();
                    assert_eq!(&heard, b"cd");
                }
                if round % 3 != 1 {
                    asks.read_exact(&mut heard).unwrap();
                    assert_eq!(&heard, b"ab");
                }
            }
            waker.wake();
        });
    }
}

fn echo(stream: &mut (impl Read + Write), bytes: &mut [u8]) {
    while let Ok(len) = stream.read(bytes) {
        assert!(len > 0);
        stream.write_all(&bytes[..len]).unwrap();
    }
}

/// The threads that wait change all the time: one that drives, several of which none can, none.
#[test]
fn no_thread_waits_in_vain_when_others_come_and_go() {
    for [server, client] in all_stacks() {
        let listener = server.listen(7, 16).unwrap();
        let pairs: Vec<(TcpStream, TcpStream)> = (0..3)
            .map(|_| {
                let asks = client.connect("10.0.0.1:7").unwrap();
                (asks, listener.accept().unwrap().0)
            })
            .collect();
        thread::scope(|scope| {
            for (number, (mut asks, mut answers)) in pairs.into_iter().enumerate() {
                // Together, and then the last one alone.
                let rounds = 100 << number;
                scope.spawn(move || {
                    let mut heard = [0; 100];
                    for _ in 0..rounds {
                        asks.write_all(&[7; 100]).unwrap();
                        asks.read_exact(&mut heard).unwrap();
                    }
                });
                scope.spawn(move || {
                    let mut bytes = [0; 100];
                    for _ in 0..rounds {
                        answers.read_exact(&mut bytes).unwrap();
                        answers.write_all(&bytes).unwrap();
                    }
                });
            }
        });
    }
}
