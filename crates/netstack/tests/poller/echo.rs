//! Echo sockets, over both families: by hand in every variant, and on threads.

use std::io::ErrorKind;
use std::thread;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::{EchoSocket, SocketError, Stack};
use dominoes_testkit::hand::{Wired, address, setup};

use super::*;
use crate::support::LONG;

/// An echo socket, alone in a poller.
fn registered(fixture: &Wired, trigger: Trigger) -> (EchoSocket, Poller) {
    let ping = fixture.sockets().open_echo().unwrap();
    let poller = Poller::new().unwrap();
    let done = poller.register(&ping, Token(4), Interest::READABLE, trigger);
    done.unwrap();
    (ping, poller)
}

#[test]
fn a_reply_is_reported_until_it_is_taken_or_once() {
    for mut fixture in Wired::all(|host| setup(0, host)) {
        for trigger in TRIGGERS {
            let (ping, poller) = registered(&fixture, trigger);
            // Replies to another socket's requests do not reach this one.
            let other = fixture.sockets().open_echo().unwrap();
            let is_level = trigger == Trigger::Level;
            let again = if is_level { vec![4] } else { vec![] };
            let hosts = [(true, 2), (true, 1), (false, 2), (false, 1)];
            for to in hosts.map(|(is_v4, host)| address(is_v4, 0, host)) {
                other.send(to, 0, b"other").unwrap();
                fixture.turn();
                assert_eq!(reported(&poller), [], "{to}");
                ping.send(to, 1, b"first").unwrap();
                fixture.turn();
                assert_eq!(ready(&poller), (vec![4], vec![]), "{to} {trigger:?}");
                assert_eq!(ready(&poller), (again.clone(), vec![]), "{to}");
                // The second reply is an edge, although the first is not taken.
                ping.send(to, 2, b"second").unwrap();
                fixture.turn();
                assert_eq!(ready(&poller), (vec![4], vec![]), "{to} {trigger:?}");
                assert_eq!(ping.try_recv().unwrap().sequence, 1);
                assert_eq!(ready(&poller), (again.clone(), vec![]), "{to}");
                assert_eq!(ping.try_recv().unwrap().sequence, 2);
                assert_eq!(reported(&poller), [], "{to}");
                assert_eq!(ping.try_recv().err(), Some(SocketError::WouldBlock));
            }
        }
    }
}

#[test]
fn a_reply_that_waits_is_reported_to_each_poller_that_asks() {
    let mut fixture = Wired::all(|host| setup(0, host)).next().unwrap();
    for is_v4 in [true, false] {
        let (ping, first) = registered(&fixture, Trigger::Edge);
        ping.send(address(is_v4, 0, 2), 1, b"").unwrap();
        fixture.turn();
        let late = Poller::new().unwrap();
        let register = |poller: &Poller, interest| {
            let done = poller.register(&ping, Token(5), interest, Trigger::Edge);
            done.map_err(|error| error.kind())
        };
        assert_eq!(
            register(&first, Interest::BOTH),
            Err(ErrorKind::AlreadyExists)
        );
        assert_eq!(
            register(&late, Interest::WRITABLE),
            Err(ErrorKind::InvalidInput)
        );
        assert_eq!(register(&late, Interest::BOTH), Ok(()));
        assert_eq!(ready(&first), (vec![4], vec![]));
        assert_eq!(ready(&late), (vec![5], vec![]));
        assert_eq!(reported(&late), []);
        late.modify(&ping, Token(6), Interest::READABLE, Trigger::Level)
            .unwrap();
        assert_eq!(ready(&late), (vec![6], vec![]));
        late.deregister(&ping).unwrap();
        assert_eq!(reported(&late), []);
        assert_eq!(
            late.deregister(&ping).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }
}

#[test]
fn an_echo_socket_that_is_dropped_is_not_reported() {
    let mut fixture = Wired::all(|host| setup(0, host)).next().unwrap();
    for (is_v4, trigger) in [true, false].into_iter().zip(TRIGGERS) {
        // Drop a source whose event is queued.
        let (ping, poller) = registered(&fixture, trigger);
        ping.send(address(is_v4, 0, 2), 1, b"").unwrap();
        fixture.turn();
        drop(ping);
        assert_eq!(reported(&poller), [], "{trigger:?}");
        // Drop a source that waits, before its reply arrives.
        let (ping, poller) = registered(&fixture, trigger);
        assert_eq!(reported(&poller), []);
        ping.send(address(is_v4, 0, 2), 2, b"").unwrap();
        drop(ping);
        fixture.turn();
        assert_eq!(reported(&poller), [], "{trigger:?}");
    }
}

/// Each reply wakes a sleeping thread or finds it awake: a lost wake-up stops the exchange.
#[test]
fn a_thread_that_waits_is_woken_by_every_reply_and_by_the_end_of_the_stack() {
    for variant in [Variant::Single, Variant::Locked(2), Variant::Replicated(2)] {
        for trigger in TRIGGERS {
            let (near, far) = memory::pair(MemoryConfig::default());
            let stack = Stack::builder("10.0.0.1/24")
                .variant(variant.kind())
                .replicas(variant.workers())
                .start(near)
                .unwrap();
            let host = Stack::builder("10.0.0.2/24").start(far).unwrap();
            let open = || stack.sockets().open_echo().unwrap();
            let (ping, idle) = (open(), open());
            let pollers = [&ping, &idle].map(|socket| {
                let poller = Poller::new().unwrap();
                let done = poller.register(socket, Token(1), Interest::READABLE, trigger);
                done.map(|()| poller).unwrap()
            });
            let wait = |poller: &Poller, what: &str| {
                let mut events = Vec::with_capacity(1);
                let len = poller.wait(&mut events, Some(LONG));
                assert!(len > 0, "{variant}, {trigger:?}: {what}");
            };
            let to = [10, 0, 0, 2].into();
            for sequence in 0..300 {
                ping.send(to, sequence, b"x").unwrap();
                let reply = loop {
                    match ping.try_recv() {
                        Err(SocketError::WouldBlock) => wait(&pollers[0], "no reply"),
                        reply => break reply.unwrap(),
                    }
                };
                assert_eq!(reply.sequence, sequence);
            }
            thread::scope(|scope| {
                scope.spawn(|| wait(&pollers[1], "no end"));
                drop(stack);
            });
            assert_eq!(idle.try_recv().err(), Some(SocketError::Down));
            drop(host);
        }
    }
}
