//! An interface that takes every address, and listeners that let the application decide about a
//! connection before its handshake goes on: over both families and in every variant.

#![cfg(feature = "testkit")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration as StdDuration;

use dominoes_drivers::LinkType;
use dominoes_drivers::memory::MemoryConfig;
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::Duration;
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Arriving, Connecting, SocketError, Sockets};
use dominoes_testkit::hand::{self, Scripted, Shape, Wired, address, address_v6};
use dominoes_testkit::packet::{ACK, FIN, Header, RST, SYN, Segment};

/// Addresses that nobody here has.
const FAR: [&str; 2] = ["203.0.113.9", "2001:db8:9::9"];

fn setup(host: u8) -> Setup {
    let config = hand::ipv6().address(address_v6(0, host), 0);
    let setup = Setup::new(address(true, 0, host), 0, [u64::from(host), 7]);
    setup.ipv6(config)
}

fn link() -> MemoryConfig {
    MemoryConfig::default().link(LinkType::Ip)
}

/// A stack that takes every address, and a host that sends to them.
fn wired(shape: Shape) -> Wired {
    Wired::over(shape, [setup(1).any_address(true), setup(2)], link())
}

fn far(is_v4: bool, port: u16) -> SocketAddr {
    SocketAddr::new(FAR[usize::from(!is_v4)].parse().unwrap(), port)
}

/// Both ends of a connection that is accepted.
fn accept(fixture: &mut Wired, arriving: Arriving, mut theirs: Connecting) {
    let (peer, destination) = (arriving.peer(), arriving.destination());
    let mut ours = arriving.accept().unwrap();
    fixture.turn();
    let mut ours = ours.try_finish().unwrap().expect("established");
    let mut theirs = theirs.try_finish().unwrap().expect("established");
    assert_eq!(ours.local_addr().unwrap(), destination);
    assert_eq!(theirs.peer_addr().unwrap(), destination);
    assert_eq!(theirs.local_addr().unwrap(), peer);
    theirs.try_write(b"there").unwrap();
    ours.try_write(b"back").unwrap();
    fixture.turn();
    assert_eq!(ours.try_read(&mut [0; 8]), Ok(5));
    assert_eq!(theirs.try_read(&mut [0; 8]), Ok(4));
}

fn arriving(fixture: &mut Wired, to: SocketAddr) -> Connecting {
    let opening = fixture.peer().begin_connect(to).unwrap();
    fixture.turn();
    opening
}

#[test]
fn each_connection_waits_for_a_decision() {
    for mut fixture in Shape::all().map(wired) {
        let listener = fixture.sockets().listen_any(64).unwrap();
        for is_v4 in [true, false] {
            for port in [1, 80, 65_535] {
                let to = far(is_v4, port);
                let mut theirs = arriving(&mut fixture, to);
                assert!(theirs.try_finish().unwrap().is_none());
                let arrived = listener.try_next().unwrap();
                assert_eq!(arrived.destination(), to);
                accept(&mut fixture, arrived, theirs);

                let mut theirs = arriving(&mut fixture, to);
                listener.try_next().unwrap().refuse();
                fixture.turn();
                assert_eq!(theirs.try_finish().unwrap_err(), SocketError::Refused);

                let mut theirs = arriving(&mut fixture, to);
                drop(listener.try_next().unwrap());
                fixture.turn();
                assert!(theirs.try_finish().unwrap().is_none());
                drop(theirs);
                fixture.turn();
            }
        }
        assert_eq!(listener.try_next().map(drop), Err(SocketError::WouldBlock));
    }
}

#[test]
fn a_syn_that_is_sent_again_arrives_once() {
    for mut fixture in Shape::all().map(wired) {
        let listener = fixture.sockets().listen_any_port(80, 4).unwrap();
        let theirs = arriving(&mut fixture, far(true, 80));
        // Two retransmissions.
        fixture.pass(Duration::from_secs(4));
        let arrived = listener.try_next().unwrap();
        assert_eq!(listener.try_next().map(drop), Err(SocketError::WouldBlock));
        accept(&mut fixture, arrived, theirs);
    }
}

#[test]
fn undecided_connections_end_and_those_above_the_backlog_get_no_answer() {
    for mut fixture in Shape::all().map(wired) {
        let groups = fixture.stacks.len() as u64;
        let listener = fixture.sockets().listen_any(3).unwrap();
        listener.set_patience(StdDuration::from_millis(500));
        fixture.turn();
        let mut all: Vec<_> = (0..40)
            .map(|port| arriving(&mut fixture, far(port % 2 == 0, 1000 + port)))
            .collect();
        let mut arrived: Vec<_> = std::iter::from_fn(|| listener.try_next().ok()).collect();
        assert!(arrived.len() as u64 <= 3 * groups && arrived.len() >= 3);
        let held: u64 = fixture
            .stacks
            .iter()
            .map(|it| it.stats().pump.syns_held)
            .sum();
        assert_eq!(held, arrived.len() as u64);
        for opening in &mut all {
            assert!(opening.try_finish().unwrap().is_none());
        }
        drop(all);
        fixture.pass(Duration::from_millis(600));
        let mut late = arrived.remove(0).accept().unwrap();
        fixture.turn();
        assert_eq!(late.try_finish().unwrap_err(), SocketError::TimedOut);
        drop(arrived);
        fixture.turn();
        // There is room again.
        let theirs = arriving(&mut fixture, far(true, 7));
        let arrived = listener.try_next().unwrap();
        accept(&mut fixture, arrived, theirs);
    }
}

#[test]
fn other_listeners_come_first_and_no_two_have_one_port() {
    for mut fixture in Shape::all().map(wired) {
        let sockets = fixture.sockets();
        let plain = sockets.listen(80, 8).unwrap();
        let all = sockets.listen_any(8).unwrap();
        let one = sockets.listen_any_port(81, 8).unwrap();
        let taken = Some(SocketError::PortTaken);
        assert_eq!(sockets.listen_any(8).err(), taken);
        assert_eq!(sockets.listen_any_port(80, 8).err(), taken);
        assert_eq!(sockets.listen_any_port(81, 8).err(), taken);
        assert_eq!(sockets.listen(81, 8).err(), taken);
        assert_eq!(
            sockets.listen_any_port(0, 8).err(),
            Some(SocketError::PortZero)
        );
        fixture.turn();
        for is_v4 in [true, false] {
            for (port, takes) in [(80, 0), (81, 1), (82, 2)] {
                let opening = arriving(&mut fixture, far(is_v4, port));
                let taken = [
                    plain.try_accept().is_ok(),
                    one.try_next().is_ok(),
                    all.try_next().is_ok(),
                ];
                assert_eq!(taken.map(usize::from).iter().sum::<usize>(), 1);
                assert!(taken[takes], "{port}");
                drop(opening);
                fixture.turn();
            }
        }
        // A listener that ends leaves its port to the one for all.
        drop((plain, one));
        fixture.turn();
        for port in [80, 81] {
            let _opening = arriving(&mut fixture, far(true, port));
            assert_eq!(all.try_next().unwrap().destination().port(), port);
        }
        let waiting = arriving(&mut fixture, far(true, 99));
        all.close();
        fixture.turn();
        assert_eq!(all.try_next().map(drop), Err(SocketError::Closed));
        drop(waiting);
        // Nobody listens any more.
        let mut refused = arriving(&mut fixture, far(true, 100));
        assert_eq!(refused.try_finish().unwrap_err(), SocketError::Refused);
    }
}

#[test]
fn a_connection_comes_from_any_address() {
    for mut fixture in Shape::all().map(wired) {
        let listener = fixture.peer().listen(7, 8).unwrap();
        let sockets = fixture.sockets();
        for is_v4 in [true, false] {
            let (from, to) = (far(is_v4, 4000), SocketAddr::new(address(is_v4, 0, 2), 7));
            let mut stream = fixture.connect_from(&sockets, from, to).unwrap();
            let (mut theirs, seen) = listener.try_accept().unwrap();
            assert_eq!((seen, stream.local_addr().unwrap()), (from, from));
            theirs.try_write(b"hello").unwrap();
            fixture.turn();
            assert_eq!(stream.try_read(&mut [0; 8]), Ok(5));
        }
        let refused = |from: &str, to: SocketAddr| {
            let from = SocketAddr::new(from.parse().unwrap(), 4001);
            sockets.begin_connect_from(from, to).map(drop)
        };
        let (v4, v6) = (address(true, 0, 2), address(false, 0, 2));
        for from in ["224.0.0.1", "240.0.0.1", "255.255.255.255"] {
            assert_eq!(
                refused(from, SocketAddr::new(v4, 7)),
                Err(SocketError::NotOurs)
            );
        }
        for from in ["ff02::1", "fe80::9"] {
            assert_eq!(
                refused(from, SocketAddr::new(v6, 7)),
                Err(SocketError::NotOurs)
            );
        }
    }
}

/// Without the option everything is as before.
#[test]
fn foreign_addresses_stay_foreign_by_default() {
    for shape in Shape::all() {
        let mut fixture = Wired::over(shape, [setup(1), setup(2)], link());
        let sockets = fixture.sockets();
        let listener = sockets.listen_any(8).unwrap();
        fixture.turn();
        for is_v4 in [true, false] {
            let _opening = arriving(&mut fixture, far(is_v4, 80));
            assert_eq!(listener.try_next().map(drop), Err(SocketError::WouldBlock));
            let to = SocketAddr::new(address(is_v4, 0, 2), 7);
            let refused = sockets.begin_connect_from(far(is_v4, 4000), to).map(drop);
            assert_eq!(refused, Err(SocketError::NotOurs));
            // Connections to our own address arrive all the same.
            let ours = SocketAddr::new(address(is_v4, 0, 1), 80);
            let theirs = arriving(&mut fixture, ours);
            let arrived = listener.try_next().unwrap();
            accept(&mut fixture, arrived, theirs);
        }
    }
}

/// On Ethernet, other hosts find us only if we answer for every address.
#[test]
fn neighbors_find_foreign_addresses_only_if_we_answer_for_them() {
    for shape in Shape::all() {
        for answers in [false, true] {
            let ours = setup(1).any_address(true).answer_for_any_address(answers);
            let ends = [ours, setup(2)];
            let mut fixture = Wired::over(shape, ends, MemoryConfig::default());
            let listener = fixture.sockets().listen_any(8).unwrap();
            for is_v4 in [true, false] {
                let theirs = arriving(&mut fixture, far(is_v4, 80));
                match (listener.try_next(), answers) {
                    (Ok(arrived), true) => accept(&mut fixture, arrived, theirs),
                    (Err(SocketError::WouldBlock), false) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

/// A stack that takes every address, whose link the test writes.
struct Hand {
    host: Scripted,
    sockets: Sockets,
}

const PEER: [u8; 4] = [198, 51, 100, 7];
const DESTINATION: [u8; 4] = [203, 0, 113, 9];

impl Hand {
    fn new(shape: Shape) -> Hand {
        let mut host = Scripted::over(shape, setup(1).any_address(true), link());
        let sockets = host.sockets();
        host.turn();
        Hand { host, sockets }
    }

    fn send(&mut self, from_port: u16, change: impl FnOnce(&mut Segment)) -> Vec<Header> {
        let mut segment = Segment {
            src_port: from_port,
            dst_port: 443,
            seq: 1000,
            flags: SYN,
            wnd: 65_535,
            mss: Some(1400),
            ..Segment::default()
        };
        change(&mut segment);
        let path = dominoes_testkit::packet::Path {
            from_mac: [2; 6],
            to_mac: [2; 6],
            from: PEER,
            to: DESTINATION,
        };
        let sent = self.host.receive(segment.frame(path));
        sent.iter()
            .filter_map(|frame| Header::read(frame))
            .collect()
    }
}

#[test]
fn the_syn_ack_follows_the_decision_and_the_syn_that_came_last() {
    for shape in Shape::all() {
        let mut hand = Hand::new(shape);
        let listener = hand.sockets.listen_any(8).unwrap();
        hand.host.turn();
        assert_eq!(hand.send(1, |_| {}).len(), 0);
        // The same SYN, and one of another attempt between the same ends, with data.
        assert_eq!(hand.send(1, |_| {}).len(), 0);
        let again = |syn: &mut Segment| (syn.seq, syn.payload) = (5000, vec![7; 100]);
        assert_eq!(hand.send(1, again).len(), 0);
        let mut ours = listener.try_next().unwrap().accept().unwrap();
        let sent: Vec<_> = hand.host.turn();
        let answer = Header::read(&sent[0]).unwrap();
        assert_eq!((answer.flags, answer.ack), (SYN | ACK, 5001));
        assert_eq!(listener.try_next().map(drop), Err(SocketError::WouldBlock));
        // A SYN that crossed the SYN-ACK gets it again, and does not arrive.
        let repeated = hand.send(1, again);
        assert_eq!(
            (repeated[0].flags, repeated[0].seq),
            (SYN | ACK, answer.seq)
        );
        assert_eq!(listener.try_next().map(drop), Err(SocketError::WouldBlock));
        let ack = answer.seq + 1;
        hand.send(1, |it| {
            (it.flags, it.seq, it.ack, it.mss) = (ACK, 5001, ack, None)
        });
        assert!(ours.try_finish().unwrap().is_some());
    }
}

#[test]
fn a_refused_syn_gets_one_reset_and_a_peer_that_gave_up_is_reported() {
    for shape in Shape::all() {
        let mut hand = Hand::new(shape);
        let listener = hand.sockets.listen_any(8).unwrap();
        hand.host.turn();
        hand.send(1, |_| {});
        listener.try_next().unwrap().refuse();
        let sent = hand.host.turn();
        let reset = Header::read(&sent[0]).unwrap();
        assert_eq!((sent.len(), reset.flags, reset.ack), (1, RST | ACK, 1001));

        hand.send(2, |_| {});
        let mut ours = listener.try_next().unwrap().accept().unwrap();
        hand.host.turn();
        hand.send(2, |it| (it.flags, it.seq, it.mss) = (RST, 1001, None));
        assert_eq!(ours.try_finish().unwrap_err(), SocketError::Refused);
        // It may try again.
        hand.send(2, |it| it.seq = 9000);
        assert!(listener.try_next().is_ok());
        // Segments that open nothing are answered as ever.
        let reset = hand.send(3, |it| (it.flags, it.ack, it.mss) = (ACK, 77, None));
        assert_eq!((reset[0].flags, reset[0].seq), (RST, 77));
    }
}

/// The replicas drop the first SYN, since its flow still had a connection when it was published.
#[test]
fn a_peer_begins_again_in_time_wait() {
    for shape in Shape::all() {
        let mut hand = Hand::new(shape);
        let listener = hand.sockets.listen_any(8).unwrap();
        hand.host.turn();
        hand.send(1, |_| {});
        let mut ours = listener.try_next().unwrap().accept().unwrap();
        let sent = hand.host.turn();
        let ack = Header::read(&sent[0]).unwrap().seq + 1;
        hand.send(1, |it| {
            (it.flags, it.seq, it.ack, it.mss) = (ACK, 1001, ack, None)
        });
        drop(ours.try_finish().unwrap().expect("established"));
        let sent = hand.host.turn();
        assert_eq!(Header::read(&sent[0]).unwrap().flags, FIN | ACK);
        hand.send(1, |it| {
            (it.flags, it.seq, it.ack, it.mss) = (FIN | ACK, 1001, ack + 1, None)
        });

        assert_eq!(hand.send(1, |it| it.seq = 90_000).len(), 0);
        assert_eq!(hand.send(1, |it| it.seq = 90_000).len(), 0);
        drop(listener.try_next().unwrap().accept());
        assert_eq!(listener.try_next().map(drop), Err(SocketError::WouldBlock));
    }
}

#[test]
fn a_syn_with_a_wrong_checksum_does_not_arrive() {
    for shape in Shape::all() {
        let mut hand = Hand::new(shape);
        let listener = hand.sockets.listen_any(8).unwrap();
        hand.host.turn();
        let path = dominoes_testkit::packet::Path {
            from_mac: [2; 6],
            to_mac: [2; 6],
            from: PEER,
            to: DESTINATION,
        };
        let syn = Segment {
            src_port: 1,
            dst_port: 443,
            flags: SYN,
            ..Segment::default()
        };
        let mut frame = syn.frame(path);
        *frame.last_mut().unwrap() ^= 0x10;
        hand.host.receive(frame);
        assert_eq!(listener.try_next().map(drop), Err(SocketError::WouldBlock));
        let dropped = hand
            .host
            .stacks
            .iter()
            .map(|it| it.stats().pump.syns_dropped);
        assert_eq!(dropped.sum::<u64>(), 1);
    }
}

#[test]
fn an_open_connection_whose_handle_goes_is_reset() {
    for shape in Shape::all() {
        let mut hand = Hand::new(shape);
        let listener = hand.sockets.listen_any(8).unwrap();
        hand.host.turn();
        hand.send(1, |_| {});
        let ours = listener.try_next().unwrap().accept().unwrap();
        hand.host.turn();
        drop(ours);
        let sent = hand.host.turn();
        let flags: Vec<_> = sent.iter().filter_map(|it| Header::read(it)).collect();
        assert!(flags.iter().any(|it| it.flags & RST != 0));
    }
}

#[test]
fn a_flood_costs_no_more_than_the_backlog() {
    for shape in [
        Shape::One(Variant::Single),
        Shape::One(Variant::Replicated(2)),
    ] {
        let mut hand = Hand::new(shape);
        let listener = hand.sockets.listen_any(16).unwrap();
        hand.host.turn();
        for port in 1..5000 {
            assert_eq!(hand.send(port, |_| {}).len(), 0);
        }
        let stats = hand.host.stacks[0].stats();
        assert_eq!((stats.pump.syns_held, stats.pump.syns_dropped), (16, 4983));
        assert_eq!((stats.state.opened, stats.state.cookies_sent), (0, 0));
        assert_eq!(std::iter::from_fn(|| listener.try_next().ok()).count(), 16);
    }
}

#[test]
fn datagrams_to_every_end_are_taken_and_answered_from_it() {
    for mut fixture in Shape::all().map(wired) {
        let sockets = fixture.sockets();
        let mut any = sockets.bind_any().unwrap();
        assert_eq!(sockets.bind_any().err(), Some(SocketError::PortTaken));
        let mut one = sockets.bind_udp(53).unwrap();
        let mut asks = fixture.peer().bind_udp(4000).unwrap();
        fixture.turn();
        for is_v4 in [true, false] {
            for port in [1, 7, 65_535] {
                let to = far(is_v4, port);
                for len in [0, 1, 1400] {
                    asks.try_send_to(&vec![7; len], to).unwrap();
                }
                fixture.turn();
                for len in [0, 1, 1400] {
                    let asked = any.try_peek().unwrap();
                    let (from, info) = (asked.from, asked.info.unwrap());
                    assert_eq!((info.local, info.port), (to.ip(), port));
                    assert_eq!(asked.parts.0.len() + asked.parts.1.len(), len);
                    assert_eq!(any.try_recv_from(&mut [0; 1500]), Ok((len, from)));
                    any.try_send_from(&vec![9; len], to, from).unwrap();
                }
                fixture.turn();
                for len in [0, 1, 1400] {
                    let answer = asks.try_recv_from(&mut [0; 1500]);
                    assert_eq!(answer, Ok((len, to)));
                }
            }
            // A socket that is bound to the port precedes it.
            asks.try_send_to(b"named", far(is_v4, 53)).unwrap();
            fixture.turn();
            assert_eq!(any.try_peek().err(), Some(SocketError::WouldBlock));
            assert_eq!(one.try_recv_from(&mut [0; 8]).unwrap().0, 5);
        }
        let peer = SocketAddr::new(address(true, 0, 2), 4000);
        let refused = |error| Err::<(), _>(error);
        let (ours, v6) = (far(true, 9), far(false, 9));
        assert_eq!(any.try_send_to(b"", peer), refused(SocketError::Invalid));
        assert_eq!(
            any.try_send_from(b"", v6, peer),
            refused(SocketError::Invalid)
        );
        assert_eq!(
            one.try_send_from(b"", ours, peer),
            refused(SocketError::Invalid)
        );
        let group = "224.0.0.1:9".parse().unwrap();
        assert_eq!(
            any.try_send_from(b"", group, peer),
            refused(SocketError::NotOurs)
        );
        let zero = far(true, 0);
        assert_eq!(
            any.try_send_from(b"", zero, peer),
            refused(SocketError::PortZero)
        );
    }
}

#[test]
fn echo_requests_to_every_address_are_answered_from_it() {
    for mut fixture in Shape::all().map(wired) {
        let socket = fixture.peer().open_echo().unwrap();
        for is_v4 in [true, false] {
            let to: IpAddr = far(is_v4, 0).ip();
            socket.send(to, 1, b"hello").unwrap();
            fixture.turn();
            let reply = socket.try_recv().unwrap();
            assert_eq!(reply.from, to);
        }
    }
}
