//! Clones of sockets: each is registered by itself, and the actions of one on the shared connection
//! are reported to the others.

use std::net::Shutdown;
use std::time::Duration;

use dominoes_netstack::SocketError;

use dominoes_testkit::hand::Wired;

use super::by_hand::{VARIANTS, connected, drain, fill, ours_at, pair};
use super::*;

#[test]
fn each_clone_is_registered_until_it_is_dropped() {
    for variant in VARIANTS {
        for trigger in TRIGGERS {
            let (mut pair, listener, mut ours, mut theirs) = connected(variant);
            let mut udp = pair.sockets().bind_udp(53).unwrap();
            let mut asks = pair.peer().bind_udp(0).unwrap();
            let clones = (
                listener.try_clone().unwrap(),
                ours.try_clone().unwrap(),
                udp.try_clone().unwrap(),
            );
            let poller = Poller::new().unwrap();
            let read = Interest::READABLE;
            poller.register(&listener, Token(1), read, trigger).unwrap();
            poller.register(&clones.0, Token(2), read, trigger).unwrap();
            poller.register(&ours, Token(3), read, trigger).unwrap();
            poller.register(&clones.1, Token(4), read, trigger).unwrap();
            poller.register(&udp, Token(5), read, trigger).unwrap();
            poller.register(&clones.2, Token(6), read, trigger).unwrap();
            assert_eq!(reported(&poller), [], "{variant}");
            let mut news = |pair: &mut Wired| {
                theirs.try_write(b"hello").unwrap();
                asks.try_send_to(b"what?", ours_at(53)).unwrap();
                let opening = pair.peer().begin_connect(ours_at(7)).unwrap();
                pair.settle();
                opening
            };
            let first = news(&mut pair);
            assert_eq!(
                ready(&poller).0,
                [1, 2, 3, 4, 5, 6],
                "{variant} {trigger:?}"
            );
            // One clone takes it away from all.
            listener.try_accept().unwrap();
            assert_eq!(drain(&mut ours), 5);
            assert_eq!(udp.try_recv_from(&mut [0; 8]).unwrap().0, 5);
            assert_eq!(reported(&poller), [], "{variant} {trigger:?}");
            drop(clones);
            let second = news(&mut pair);
            assert_eq!(ready(&poller).0, [1, 3, 5], "{variant} {trigger:?}");
            drop((first, second));
        }
    }
}

#[test]
fn a_listener_that_a_clone_closes_is_reported_to_all() {
    for variant in VARIANTS {
        for trigger in TRIGGERS {
            let pair = pair(variant);
            let sockets = pair.sockets();
            let listener = sockets.listen(7, 4).unwrap();
            let clone = listener.try_clone().unwrap();
            let poller = Poller::new().unwrap();
            let registered = poller.register(&listener, Token(7), Interest::READABLE, trigger);
            registered.unwrap();
            // The waiting thread is asleep, or about to be.
            std::thread::scope(|scope| {
                let closes = scope.spawn(move || clone.close());
                let mut events = Vec::with_capacity(4);
                poller.wait(&mut events, None);
                let [event] = events[..] else {
                    panic!("{variant} {trigger:?}: {events:?}")
                };
                assert!(event.token == Token(7) && event.readable && event.read_closed);
                closes.join().unwrap();
            });
            assert_eq!(listener.try_accept().err(), Some(SocketError::Closed));
            // The port's next listener reports its own events.
            let _next = sockets.listen(7, 4).unwrap();
            let level = usize::from(trigger == Trigger::Level);
            assert_eq!(reported(&poller).len(), level, "{variant}");
        }
    }
}

#[test]
fn what_a_clone_shuts_down_is_reported_once_or_while_it_lasts() {
    for variant in VARIANTS {
        for trigger in TRIGGERS {
            let (mut pair, _listener, mut ours, _theirs) = connected(variant);
            let clone = ours.try_clone().unwrap();
            fill(&mut pair, |bytes| ours.try_write(bytes));
            let poller = Poller::new().unwrap();
            let registered = poller.register(&ours, Token(1), Interest::BOTH, trigger);
            registered.unwrap();
            assert_eq!(
                reported(&poller),
                [],
                "{variant}: full, and nothing to read"
            );
            let level = trigger == Trigger::Level;
            for (how, write_closed) in [(Shutdown::Read, false), (Shutdown::Write, true)] {
                clone.shutdown(how).unwrap();
                let [event] = reported(&poller)[..] else {
                    panic!("{variant} {trigger:?} {how:?}: no event")
                };
                assert!(event.readable && event.read_closed && !event.error);
                let closed = (event.writable, event.write_closed);
                assert_eq!(closed, (write_closed, write_closed), "{variant} {how:?}");
                assert_eq!(reported(&poller).len(), usize::from(level), "{variant}");
            }
            assert_eq!(ours.try_read(&mut [0; 1]), Ok(0));
            assert_eq!(ours.try_write(b"x"), Err(SocketError::ShutDown));
        }
    }
}

/// By edge, a clone that found the bytes held by another clone gets an event when they are
/// released.
#[test]
fn what_a_reader_keeps_and_gives_back_is_news_to_another() {
    for variant in VARIANTS {
        let (mut pair, _listener, mut ours, mut theirs) = connected(variant);
        let mut clone = ours.try_clone().unwrap();
        let mut udp = pair.sockets().bind_udp(53).unwrap();
        let mut other = udp.try_clone().unwrap();
        let mut asks = pair.peer().bind_udp(0).unwrap();
        let poller = Poller::new().unwrap();
        let (read, edge) = (Interest::READABLE, Trigger::Edge);
        poller.register(&clone, Token(1), read, edge).unwrap();
        poller.register(&other, Token(2), read, edge).unwrap();
        for round in 0..3 {
            theirs.try_write(b"some bytes").unwrap();
            asks.try_send_to(b"first", ours_at(53)).unwrap();
            asks.try_send_to(b"second", ours_at(53)).unwrap();
            pair.settle();
            let reader = ours.halves().0;
            assert_eq!(reader.try_fill().unwrap().len(), 10);
            assert_eq!(udp.try_peek().unwrap().parts.0, b"first");
            assert_eq!(ready(&poller).0, [1, 2], "{variant} {round}");
            assert_eq!(clone.try_read(&mut [0; 20]), Err(SocketError::WouldBlock));
            let none = other.try_recv_from(&mut [0; 20]).err();
            assert_eq!(none, Some(SocketError::WouldBlock));
            assert_eq!(reported(&poller), [], "{variant}: they are kept");
            // Consumes a part; the next call releases the rest.
            reader.consume(4);
            assert_eq!(reported(&poller), [], "{variant}: the rest is kept");
            assert_eq!(ours.try_read(&mut [0; 1]), Ok(1));
            udp.halves().0.consume();
            assert_eq!(ready(&poller).0, [1, 2], "{variant} {round}");
            assert_eq!(clone.try_read(&mut [0; 20]), Ok(5));
            let (len, _) = other.try_recv_from(&mut [0; 20]).unwrap();
            assert_eq!(len, 6);
            assert_eq!(reported(&poller), [], "{variant}");
        }
    }
}

/// Likewise for writers: room that another clone had reserved, and room that a reservation lacked.
#[test]
fn room_that_a_writer_reserves_and_gives_back_is_news_to_another() {
    for variant in VARIANTS {
        let (mut pair, _listener, mut ours, mut theirs) = connected(variant);
        let mut clone = ours.try_clone().unwrap();
        let poller = Poller::new().unwrap();
        let (write, edge) = (Interest::WRITABLE, Trigger::Edge);
        poller.register(&clone, Token(1), write, edge).unwrap();
        assert_eq!(ready(&poller).1, [1], "{variant}");
        for _ in 0..3 {
            let reserved = ours.halves().1.reserve(100).unwrap();
            assert_eq!(clone.try_write(b"x"), Err(SocketError::WouldBlock));
            assert_eq!(reported(&poller), [], "{variant}: it is kept");
            reserved.commit(100).unwrap();
            assert_eq!(ready(&poller).1, [1], "{variant}");
        }
        // Until no more room can be reserved.
        fill(&mut pair, |_| {
            let writer = clone.halves().1;
            let reserved = writer.reserve(10_000)?;
            let len = reserved.len();
            reserved.commit(len).map(|()| len)
        });
        assert_eq!(reported(&poller), [], "{variant}: it is full");
        while drain(&mut theirs) > 0 {
            pair.settle();
        }
        assert_eq!(ready(&poller).1, [1], "{variant}");
    }
}

#[test]
fn a_larger_send_buffer_is_room() {
    for variant in VARIANTS {
        for trigger in TRIGGERS {
            let (mut pair, _listener, mut ours, _theirs) = connected(variant);
            let clone = ours.try_clone().unwrap();
            clone.set_send_buffer(Some(1 << 10)).unwrap();
            let poller = Poller::new().unwrap();
            let registered = poller.register(&ours, Token(1), Interest::WRITABLE, trigger);
            registered.unwrap();
            fill(&mut pair, |bytes| ours.try_write(bytes));
            // A probe of the closed window may have made room.
            while ours.try_write(&[7; 1 << 10]).is_ok() {}
            reported(&poller);
            assert_eq!(reported(&poller), [], "{variant}: it is full");
            clone.set_send_buffer(Some(1 << 15)).unwrap();
            assert_eq!(ready(&poller).1, [1], "{variant} {trigger:?}");
        }
    }
}

/// A lingering connection that is dropped with unsent bytes is deregistered when the drop returns,
/// and the drop does not wait.
#[test]
fn a_connection_that_lingers_is_not_reported() {
    for variant in VARIANTS {
        let (mut pair, _listener, mut ours, mut theirs) = connected(variant);
        let poller = Poller::new().unwrap();
        let registered = poller.register(&ours, Token(1), Interest::BOTH, Trigger::Level);
        registered.unwrap();
        ours.set_linger(Some(Duration::from_secs(5)));
        ours.try_write(&[3; 10_000]).unwrap();
        assert_eq!(ready(&poller).1, [1], "{variant}");
        drop(ours);
        assert_eq!(reported(&poller), [], "{variant}");
        theirs.try_write(b"late").unwrap();
        pair.settle();
        assert_eq!(reported(&poller), [], "{variant}");
    }
}
