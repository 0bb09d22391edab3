//! Groups side by side: every byte arrives, whichever group a connection belongs to and whichever
//! end opened it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::thread;

use dominoes_drivers::Device;
use dominoes_drivers::memory::{self, MemoryConfig, scripted_with};
use dominoes_netstack::poller::{Interest, Poller, Token, Trigger};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::variants::groups;
use dominoes_netstack::variants::groups::INBOX;
use dominoes_netstack::variants::interfaces;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::{Datagram, Limits, SocketError, Stack, StackError, TcpStream, UdpSocket};
use dominoes_testkit::hand::{Scripted, Shape, Wired};
use dominoes_testkit::packet::{self, EVERY_MAC, STACK, SYN, TO_STACK};
use dominoes_testkit::peer::Peer;

use crate::support::connections;

/// Connections that each side opens.
const EACH: usize = 32;
/// Bytes that each connection carries each way.
const BYTES: usize = 96 << 10;
const PORT: u16 = 7;

fn address(last: u8) -> SocketAddr {
    SocketAddr::new([10, 0, 0, last].into(), PORT)
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    (limits.receive_buffer, limits.send_buffer) = (16 << 10, 16 << 10);
    limits
}

/// The last byte of an address.
fn last_byte(end: SocketAddr) -> u8 {
    match end.ip() {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    }
}

/// Byte `at` that the end at `local` writes.
fn pattern_byte(local: SocketAddr, remote: SocketAddr, at: usize) -> u8 {
    let ends = u32::from(local.port()) * 31 + u32::from(remote.port()) * 7;
    (ends as usize + usize::from(last_byte(local)) + at / 3 + at) as u8
}

/// An end with how far it has read and written.
struct End {
    stream: TcpStream,
    read: usize,
    written: usize,
}

impl End {
    /// Reads and writes as much as possible; returns whether it moved a byte.
    fn turn(&mut self) -> bool {
        let (local, remote) = (
            self.stream.local_addr().unwrap(),
            self.stream.peer_addr().unwrap(),
        );
        let mut some = false;
        if self.written < BYTES {
            let len = (BYTES - self.written).min(5000);
            let text: Vec<u8> = (0..len)
                .map(|i| pattern_byte(local, remote, self.written + i))
                .collect();
            match self.stream.try_write(&text) {
                Ok(written) => {
                    self.written += written;
                    some |= written > 0;
                }
                Err(error) => assert_eq!(error, SocketError::WouldBlock),
            }
        }
        let mut text = [0; 5000];
        match self.stream.try_read(&mut text) {
            Ok(len) => {
                assert!(len > 0, "{local} ended after {} bytes", self.read);
                for (i, got) in text[..len].iter().enumerate() {
                    let wanted = pattern_byte(remote, local, self.read + i);
                    assert_eq!(*got, wanted, "byte {} from {remote}", self.read + i);
                }
                self.read += len;
                some = true;
            }
            Err(error) => assert_eq!(error, SocketError::WouldBlock),
        }
        some
    }

    fn is_done(&self) -> bool {
        self.read == BYTES && self.written == BYTES
    }
}

/// Moves everything over all of one side's connections.
fn serve(streams: Vec<TcpStream>) -> Vec<TcpStream> {
    let mut ends: Vec<End> = streams
        .into_iter()
        .map(|stream| End {
            stream,
            read: 0,
            written: 0,
        })
        .collect();
    while !ends.iter().all(End::is_done) {
        let mut some = false;
        for end in &mut ends {
            some |= end.turn();
        }
        if !some {
            thread::yield_now();
        }
    }
    ends.into_iter().map(|end| end.stream).collect()
}

#[test]
fn sixty_four_connections_arrive_whole_over_any_number_of_groups() {
    for (groups, replicas) in [(1, 1), (2, 1), (4, 1), (2, 2)] {
        let (here, there) = memory::pair(MemoryConfig::default().queue_depth(2048));
        let near = Stack::builder("10.0.0.1/24").limits(limits());
        let near = near.groups(groups).replicas(replicas).start(here).unwrap();
        let far = Stack::builder("10.0.0.2/24").limits(limits());
        let far = far.start(there).unwrap();
        let ours = near.listen(PORT, EACH as u16).unwrap();
        let theirs = far.listen(PORT, EACH as u16).unwrap();
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for _ in 0..EACH {
            there.push(far.connect(address(1)).unwrap());
            here.push(ours.accept().unwrap().0);
            here.push(near.connect(address(2)).unwrap());
            there.push(theirs.accept().unwrap().0);
        }
        let mut spread = BTreeMap::new();
        for stream in &here {
            *spread.entry(stream.group()).or_insert(0) += 1;
        }
        assert_eq!(spread.len(), groups, "{spread:?}");
        // Connections that we open go to the groups in turn.
        assert!(spread.values().all(|n| *n >= EACH / groups), "{spread:?}");
        let there = thread::spawn(move || serve(there));
        let here = serve(here);
        let there = there.join().unwrap();
        connections(&near, 2 * EACH);
        assert_eq!(near.snapshot().domains.len(), groups * replicas);
        near.compare().unwrap();
        let stats = near.stats().state;
        assert_eq!((stats.no_connection, stats.bad_checksum), (0, 0));
        drop((here, there));
    }
}

#[test]
fn groups_and_interfaces_share_what_may_lie_behind_gaps() {
    let setup = || Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
    let whole = setup().limits.out_of_order;
    let device = || Box::new(memory::pair(MemoryConfig::default()).0);
    let parts = groups::divide(setup(), 3, device(), INBOX).unwrap();
    assert!(
        parts
            .iter()
            .all(|(part, _)| part.limits.out_of_order == whole / 3)
    );
    let other = Setup::new([10, 0, 1, 1].into(), 24, [1, 2]);
    let parts = interfaces::join([setup(), other]).unwrap();
    assert!(
        parts
            .iter()
            .all(|part| part.limits.out_of_order == whole / 2)
    );
    let other = Setup::new([10, 0, 1, 1].into(), 24, [1, 2]);
    let both: [(_, Box<dyn Device>); 2] = [(setup(), device()), (other, device())];
    let parts = interfaces::divide(both, 2, INBOX).unwrap();
    let all = parts.iter().map(|(part, _)| part.limits.out_of_order);
    assert_eq!(all.sum::<u32>(), whole);
}

#[test]
fn how_many_groups_there_may_be_is_told() {
    for groups in [0, 65] {
        let (here, _there) = memory::pair(MemoryConfig::default());
        let started = Stack::builder("10.0.0.1/24").groups(groups).start(here);
        let error = started.expect_err("that many are refused");
        assert!(matches!(error, StackError::Config(_)), "{error}");
        assert!(error.to_string().contains("`groups`"), "{error}");
    }
}

fn groups_of(count: usize) -> Shape {
    Shape::Groups(Variant::Single, count)
}

#[test]
fn one_answer_comes_to_what_reaches_all_groups() {
    let mut fixture = Scripted::new(groups_of(2), Setup::new(STACK.into(), 24, [1, 2]));
    let who_has = packet::arp_request(TO_STACK.to_mac(EVERY_MAC));
    let answers = fixture.receive(who_has.clone());
    assert_eq!(answers.len(), 1, "{answers:02x?}");
    assert_eq!(answers[0][20..22], [0, 2], "an ARP reply");
    let heard = fixture.stacks.iter().map(|group| group.stats().pump.arp);
    assert_eq!(heard.sum::<u64>(), 2, "both have heard it");
    // Both groups know the neighbour, so an open in either sends no ARP request.
    let sockets = fixture.sockets();
    let opening: Vec<_> = (0..2)
        .map(|_| sockets.begin_connect(address(2)).unwrap())
        .collect();
    let sent = fixture.receive(who_has);
    let syns = sent.iter().filter(|frame| frame[12..14] == [8, 0]).count();
    assert_eq!((syns, sent.len()), (2, 3));
    drop(opening);
}

#[test]
fn a_group_answers_no_segment_of_another_group_s_flow() {
    let (unused, _) = memory::pair(MemoryConfig::default());
    let setup = Setup::new(STACK.into(), 24, [1, 2]);
    let parts = groups::divide(setup, 2, Box::new(unused), INBOX).unwrap();
    // Each group has a device, on which all frames arrive.
    let mut groups: Vec<_> = parts
        .into_iter()
        .map(|(setup, _)| {
            let mac = TO_STACK.to_mac;
            let (device, wire) = scripted_with(MemoryConfig::default().macs(mac, mac));
            wire.push(packet::arp_reply(TO_STACK));
            let mut group = Single::new(setup, Box::new(device)).unwrap();
            group.turn(Instant::ZERO);
            (group, wire)
        })
        .collect();
    let mut answered = [0; 2];
    for port in 4000..4016 {
        // This port has no listener, so the flow's group sends a reset.
        let syn = Peer::new(TO_STACK, (port, PORT), 1).says(SYN, &[]);
        let answers = groups.iter_mut().map(|(group, wire)| {
            wire.push(syn.clone());
            (0..4).for_each(|_| {
                group.turn(Instant::from_millis(1));
            });
            wire.take_sent().len()
        });
        let answers: Vec<_> = answers.collect();
        assert_eq!(answers.iter().sum::<usize>(), 1, "{port}: {answers:?}");
        answered[usize::from(answers[1] == 1)] += 1;
    }
    let not_ours = groups.iter().map(|(group, _)| group.pump_stats().not_ours);
    assert_eq!(not_ours.collect::<Vec<_>>(), [answered[1], answered[0]]);
    assert!(answered.iter().all(|count| *count > 0), "{answered:?}");
}

/// Groups by hand, and a stack of one group beside them.
fn wired(groups: usize, limits: Limits) -> Wired {
    let setup = |last| Setup::new([10, 0, 0, last].into(), 24, [1, 2]).limits(limits);
    Wired::two(groups_of(groups), [setup(1), setup(2)])
}

/// Datagrams that each group got.
fn datagrams(wire: &Wired) -> Vec<u64> {
    let groups = wire.stacks.iter();
    groups.map(|group| group.stats().pump.datagrams).collect()
}

#[test]
fn peers_of_a_udp_socket_spread_over_the_groups_and_each_keeps_its_order() {
    const PEERS: usize = 24;
    let mut wire = wired(3, Limits::default());
    let mut ours = wire.sockets().bind_udp(PORT).unwrap();
    let far = wire.peer();
    let mut peers: Vec<_> = (0..PEERS).map(|_| far.bind_udp(0).unwrap()).collect();
    // So each side knows the other: few datagrams wait for that.
    peers[0].try_send_to(b"hello", address(1)).unwrap();
    wire.turn();
    assert_eq!(ours.try_recv_from(&mut [0; 8]).unwrap().0, 5);
    let before = datagrams(&wire);
    for number in 0..8_u8 {
        for peer in &mut peers {
            peer.try_send_to(&[number], address(1)).unwrap();
        }
    }
    wire.turn();
    let came = datagrams(&wire).into_iter().zip(before);
    let spread: Vec<_> = came.map(|(all, before)| all - before).collect();
    assert_eq!(spread.iter().sum::<u64>(), 8 * PEERS as u64, "{spread:?}");
    assert!(spread.iter().all(|count| *count > 0), "{spread:?}");
    // One call takes datagrams from several queues.
    ours.set_nonblocking(true).unwrap();
    let mut next = BTreeMap::new();
    let mut into = vec![Datagram::new(16); 5];
    while let Ok(count) = ours.recv_many(&mut into) {
        assert!((1..=5).contains(&count));
        for datagram in &into[..count] {
            let next = next.entry(datagram.from.port()).or_insert(0);
            assert_eq!(datagram.bytes(), [*next], "of {}", datagram.from);
            *next += 1;
            ours.try_send_to(datagram.bytes(), datagram.from).unwrap();
        }
    }
    assert!(
        next.len() == PEERS && next.values().all(|next| *next == 8),
        "{next:?}"
    );
    wire.turn();
    for peer in &mut peers {
        for number in 0..8 {
            let mut into = [0; 9];
            assert_eq!(peer.try_recv_from(&mut into).unwrap(), (1, address(1)));
            assert_eq!(into[0], number);
        }
    }
    // They left from the groups that they had come to.
    let sent = wire
        .stacks
        .iter()
        .map(|group| group.stats().state.sent_datagrams);
    assert_eq!(sent.collect::<Vec<_>>(), spread);
}

#[test]
fn what_a_socket_of_several_groups_looks_at_in_place_stays_the_oldest() {
    let mut wire = wired(2, Limits::default());
    let mut ours = wire.sockets().bind_udp(PORT).unwrap();
    let far = wire.peer();
    let mut peers: Vec<_> = (0..8).map(|_| far.bind_udp(0).unwrap()).collect();
    for peer in &mut peers {
        peer.try_send_to(b"first", address(1)).unwrap();
        wire.turn();
    }
    assert!(datagrams(&wire).iter().all(|count| *count > 0));
    let mut seen = Vec::new();
    let mut clone = ours.try_clone().unwrap();
    for _ in 0..8 {
        let from = ours.try_peek().unwrap().from;
        assert_eq!(ours.try_peek().unwrap().from, from, "it is not consumed");
        // Another user gets one of another queue, if there is one, and gives it back.
        if let Ok(other) = clone.try_peek() {
            assert_ne!(other.from, from);
        }
        let mut into = [0; 8];
        if seen.len() % 2 == 0 {
            drop(clone);
            assert_eq!(ours.try_recv_from(&mut into).unwrap(), (5, from));
            clone = ours.try_clone().unwrap();
        } else {
            ours.halves().0.consume();
        }
        assert!(!seen.contains(&from));
        seen.push(from);
    }
    drop(clone);
    assert_eq!(ours.try_peek().unwrap_err(), SocketError::WouldBlock);
}

#[test]
fn a_refusal_is_reported_once_whichever_group_sent_the_datagram() {
    let mut wire = wired(3, Limits::default());
    let sockets = wire.sockets();
    // So both sides know each other.
    let mut first = sockets.bind_udp(0).unwrap();
    first.try_send_to(b"hello", address(2)).unwrap();
    wire.turn();
    for _ in 0..9 {
        let mut ours = sockets.bind_udp(0).unwrap();
        ours.connect(address(2)).unwrap();
        wire.turn();
        ours.try_send(b"is anybody there?").unwrap();
        wire.now += Duration::from_secs(2);
        wire.turn();
        assert_eq!(ours.try_peek().unwrap_err(), SocketError::Refused);
        assert_eq!(ours.try_peek().unwrap_err(), SocketError::WouldBlock);
    }
}

#[test]
fn the_place_of_a_udp_socket_is_free_when_all_groups_have_done_with_it() {
    let mut limits = Limits::default();
    limits.udp_sockets = 2;
    let mut wire = wired(3, limits);
    let sockets = wire.sockets();
    for round in 0..20 {
        let bound = [0, 0].map(|_| sockets.bind_udp(0).unwrap());
        assert_eq!(
            sockets.bind_udp(0).unwrap_err(),
            SocketError::TooManySockets
        );
        wire.turn();
        drop(bound);
        assert_eq!(
            sockets.bind_udp(0).unwrap_err(),
            SocketError::TooManySockets
        );
        // One group is late.
        for group in &mut wire.stacks[1..] {
            wire.now += Duration::from_micros(10);
            group.turn(wire.now);
            group.turn(wire.now);
        }
        assert_eq!(
            sockets.bind_udp(0).unwrap_err(),
            SocketError::TooManySockets,
            "round {round}"
        );
        wire.turn();
    }
}

#[test]
fn a_poller_reports_what_arrives_in_any_group() {
    for trigger in [Trigger::Level, Trigger::Edge] {
        let mut wire = wired(3, Limits::default());
        let mut ours = wire.sockets().bind_udp(PORT).unwrap();
        let poller = Poller::new().unwrap();
        poller
            .register(&ours, Token(7), Interest::READABLE, trigger)
            .unwrap();
        let far = wire.peer();
        let mut events = Vec::with_capacity(4);
        for _ in 0..16 {
            assert_eq!(poller.events(&mut events), 0);
            let mut peer = far.bind_udp(0).unwrap();
            peer.try_send_to(b"hello", address(1)).unwrap();
            wire.turn();
            assert_eq!(poller.events(&mut events), 1);
            assert!(
                events
                    .iter()
                    .all(|event| event.readable && event.token == Token(7))
            );
            ours.try_recv_from(&mut [0; 5]).unwrap();
        }
        assert!(datagrams(&wire).iter().all(|count| *count > 0));
    }
}

#[test]
fn threads_wait_for_the_datagrams_of_all_groups() {
    const EACH: u32 = 200;
    let (here, there) = memory::pair(MemoryConfig::default());
    let near = Stack::builder("10.0.0.1/24").groups(3).start(here).unwrap();
    let far = Stack::builder("10.0.0.2/24").start(there).unwrap();
    let ours = near.bind_udp(PORT).unwrap();
    let echo = |socket: UdpSocket| {
        let mut bytes = [0; 64];
        let mut count = 0;
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            socket.send_to(&bytes[..len], from).unwrap();
            count += 1;
        }
        count
    };
    let echoes = [ours.try_clone().unwrap(), ours];
    let echoes = echoes.map(|socket| thread::spawn(move || echo(socket)));
    let askers: Vec<_> = (0..6)
        .map(|_| {
            let socket = far.bind_udp(0).unwrap();
            thread::spawn(move || {
                socket.connect(address(1)).unwrap();
                for number in 0..EACH {
                    socket.send(&number.to_be_bytes()).unwrap();
                    let mut bytes = [0; 8];
                    assert_eq!(socket.recv(&mut bytes).unwrap(), 4);
                    assert_eq!(bytes[..4], number.to_be_bytes());
                }
            })
        })
        .collect();
    askers.into_iter().for_each(|asker| asker.join().unwrap());
    drop(near);
    let counts = echoes.map(|echo| echo.join().unwrap());
    assert_eq!(counts.iter().sum::<u32>(), 6 * EACH);
}
