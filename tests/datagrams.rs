//! UDP, fragments and ICMP between whole stacks of every variant, in virtual time.

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};

use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::{Setup, VariantKind};
use dominoes_netstack::{Limits, SocketError, UdpSocket};
use dominoes_testkit::link::Faults;
use dominoes_testkit::packet::{
    self, EVERY_MAC, EVERYBODY, FAR, ICMP, Path, Right, STACK, TO_STACK, UDP,
};
use dominoes_testkit::{Host, HostConfig, HostId, LinkConfig, Net, Rng, Stalls, Variant};

const MILLI: Duration = Duration::from_millis(1);

/// The bytes of datagram `number`, different for all datagrams.
fn payload(number: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(number);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8))
        .flat_map(|_| rng.next().to_le_bytes())
        .collect();
    bytes.truncate(len);
    bytes
}

fn host(net: &mut Net, variant: Variant) -> HostId {
    net.add(HostConfig::new(variant)).unwrap()
}

fn pair(variant: Variant, seed: u64) -> (Net, HostId, HostId) {
    let mut net = Net::new(seed);
    let server = host(&mut net, variant);
    let client = host(&mut net, variant);
    (net, server, client)
}

fn receive(socket: &mut UdpSocket) -> Option<(Vec<u8>, SocketAddr)> {
    let mut buffer = vec![0; 65_536];
    match socket.try_recv_from(&mut buffer) {
        Ok((len, from)) => {
            buffer.truncate(len);
            Some((buffer, from))
        }
        Err(SocketError::WouldBlock) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn datagrams_of_every_length_are_echoed_in_order() {
    let lens = [0, 1, 15, 16, 17, 1471, 1472, 1473, 2952, 2953, 8000, 65_507];
    for variant in Variant::ALL {
        let (mut net, server, client) = pair(variant, 3);
        let mut echo = net.sockets(server).bind_udp(7).unwrap();
        let mut ours = net.sockets(client).bind_udp(0).unwrap();
        let to = net.address_of(server, 7);
        for round in 0..3 {
            for (i, len) in lens.into_iter().enumerate() {
                let number = round * 100 + i as u64;
                ours.try_send_to(&payload(number, len), to).unwrap();
                net.pass(MILLI);
                let (bytes, from) = receive(&mut echo).unwrap_or_else(|| {
                    panic!(
                        "{variant}: {len} bytes, {:?}",
                        net.host(server).pump_stats()
                    )
                });
                assert_eq!(
                    from,
                    SocketAddr::new([10, 0, 0, 2].into(), ours.local_addr().unwrap().port())
                );
                echo.try_send_to(&bytes, from).unwrap();
                net.pass(MILLI);
                let (back, from) = receive(&mut ours).expect("the echo");
                assert_eq!(from, to);
                assert!(
                    back == payload(number, len),
                    "{variant}: {len} bytes differ"
                );
            }
        }
        let compared = net
            .check()
            .unwrap_or_else(|what| panic!("{variant}: {what}"));
        assert!(
            compared > 0 || variant.kind() != VariantKind::Replicated || variant.workers() == 1
        );
    }
}

#[test]
fn what_fits_no_datagram_is_refused() {
    let (net, server, client) = pair(Variant::Single, 1);
    let mut ours = net.sockets(client).bind_udp(0).unwrap();
    let to = net.address_of(server, 7);
    let send = |ours: &mut UdpSocket, len, to| ours.try_send_to(&vec![0; len], to);
    assert_eq!(send(&mut ours, 65_508, to), Err(SocketError::TooLong));
    assert_eq!(send(&mut ours, 70_000, to), Err(SocketError::TooLong));
    let away = "192.168.7.7:9".parse().unwrap();
    assert_eq!(send(&mut ours, 1, away), Err(SocketError::NoRoute));
    assert_eq!(ours.try_send(b"x"), Err(SocketError::NotConnected));
    let everybody = "10.0.0.255:9".parse().unwrap();
    assert_eq!(send(&mut ours, 1, everybody), Err(SocketError::NotAllowed));
}

#[test]
fn over_a_bad_wire_no_datagram_changes_and_the_replicas_agree() {
    let (mut sent_in_all, mut came_in_all) = (0, 0);
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let variants = [
            Variant::Single,
            Variant::Locked(2),
            Variant::Replicated(1),
            Variant::Replicated(2),
            Variant::Replicated(3),
        ];
        let mut net = Net::new(seed);
        let mut add = |net: &mut Net| {
            let faults = Faults::new(0)
                .loss(10_000)
                .duplicate(20_000)
                .reorder(50_000, 5)
                .corrupt(20_000);
            let bad = LinkConfig::default().faults(faults);
            let mut limits = Limits::default();
            limits.tx_slots = 4 << rng.below(5);
            limits.udp_receive_buffer = 1 << (12 + rng.below(5));
            limits.udp_send_buffer = 1 << (12 + rng.below(5));
            limits.mtu = [576, 1500, 9000][rng.below(3) as usize];
            let stalls = Stalls {
                ppm: 2_000,
                longest: MILLI,
            };
            let config = HostConfig::new(variants[rng.below(5) as usize])
                .limits(limits)
                .divides(seed % 4 < 2)
                .stalls(stalls)
                .wires(bad.clone(), bad);
            net.add(config).unwrap()
        };
        let hosts = [add(&mut net), add(&mut net)];
        let mut sockets = hosts.map(|id| net.sockets(id).bind_udp(9).unwrap());
        let to = hosts.map(|id| net.address_of(id, 9));
        let mut sent: HashMap<Vec<u8>, u32> = HashMap::new();
        for number in 0..300 {
            let from = rng.below(2) as usize;
            let len = match rng.below(4) {
                0 => rng.below(64),
                1 => rng.below(3_500),
                _ => rng.below(1_500),
            };
            // Its eight random bytes make it unique.
            let bytes = payload(seed << 20 | number, 8 + len as usize);
            match sockets[from].try_send_to(&bytes, to[1 - from]) {
                Ok(()) => *sent.entry(bytes).or_default() += 1,
                Err(error) => assert!(matches!(
                    error,
                    SocketError::WouldBlock | SocketError::TooLong
                )),
            }
            if rng.chance(300_000) {
                net.pass(Duration::from_micros(rng.below(2_000)));
            }
            if rng.chance(500_000) {
                for socket in &mut sockets {
                    while let Some((bytes, _)) = receive(socket) {
                        assert!(sent.contains_key(&bytes), "seed {seed}: nobody sent this");
                        came_in_all += 1;
                    }
                }
            }
        }
        net.pass(Duration::from_secs(40));
        for socket in &mut sockets {
            while let Some((bytes, _)) = receive(socket) {
                assert!(sent.contains_key(&bytes), "seed {seed}: nobody sent this");
                came_in_all += 1;
            }
        }
        sent_in_all += sent.len();
        net.check()
            .unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    println!("{came_in_all} of {sent_in_all} datagrams came, some twice");
    assert!(came_in_all > sent_in_all / 2);
}

#[test]
fn a_full_queue_drops_what_comes_counts_it_and_takes_more_when_it_was_read() {
    for variant in Variant::ALL {
        let mut limits = Limits::default();
        limits.udp_receive_buffer = 4096;
        let mut net = Net::new(5);
        let server = net.add(HostConfig::new(variant).limits(limits)).unwrap();
        let client = host(&mut net, variant);
        let mut theirs = net.sockets(server).bind_udp(7).unwrap();
        let mut ours = net.sockets(client).bind_udp(0).unwrap();
        let to = net.address_of(server, 7);
        let mut next = 0;
        for _ in 0..3 {
            let first = next;
            for _ in 0..40 {
                ours.try_send_to(&payload(next, 100), to).unwrap();
                next += 1;
            }
            net.pass(MILLI);
            // Each takes 160 bytes.
            for number in first..first + 25 {
                let (bytes, _) = receive(&mut theirs).expect("it fits");
                assert!(bytes == payload(number, 100), "{variant}: {number}");
            }
            assert_eq!(receive(&mut theirs), None);
        }
        assert_eq!(net.host(server).state_stats().queue_full, 3 * 15);
        net.check().unwrap();
    }
}

#[test]
fn a_sender_waits_when_too_much_is_under_way() {
    let mut limits = Limits::default();
    limits.udp_send_buffer = 1024;
    let mut net = Net::new(6);
    let server = host(&mut net, Variant::Single);
    let client = net
        .add(HostConfig::new(Variant::Replicated(2)).limits(limits))
        .unwrap();
    let mut theirs = net.sockets(server).bind_udp(7).unwrap();
    let mut ours = net.sockets(client).bind_udp(0).unwrap();
    let to = net.address_of(server, 7);
    for round in 0..20 {
        for number in 0..2 {
            ours.try_send_to(&payload(number, 400), to).unwrap();
        }
        let third = ours.try_send_to(&payload(2, 400), to);
        assert_eq!(third, Err(SocketError::WouldBlock), "round {round}");
        net.pass(MILLI);
        for number in 0..2 {
            assert!(receive(&mut theirs).is_some_and(|(bytes, _)| bytes == payload(number, 400)));
        }
    }
}

#[test]
fn broadcast_reaches_the_socket_at_the_port_and_is_never_answered_by_an_error() {
    let mut net = Net::new(9);
    let hosts = [
        host(&mut net, Variant::Single),
        host(&mut net, Variant::Replicated(2)),
        host(&mut net, Variant::Single),
    ];
    let mut ours = net.sockets(hosts[0]).bind_udp(9).unwrap();
    let mut theirs = net.sockets(hosts[1]).bind_udp(9).unwrap();
    ours.set_broadcast(true).unwrap();
    for to in ["255.255.255.255:9", "10.0.0.255:9"] {
        ours.try_send_to(b"everybody", to.parse().unwrap()).unwrap();
        net.pass(MILLI);
        assert_eq!(
            receive(&mut theirs).map(|(_, from)| from),
            Some(ours.local_addr().unwrap())
        );
    }
    assert_eq!(net.host(hosts[2]).pump_stats().no_port, 2);
    assert_eq!(net.host(hosts[2]).pump_stats().reports, 0);
    assert_eq!(
        receive(&mut ours),
        None,
        "a link does not bring back what we sent"
    );
}

#[test]
fn a_closed_socket_sends_what_it_has_and_its_port_and_place_are_used_again() {
    for variant in Variant::ALL {
        let mut limits = Limits::default();
        limits.udp_sockets = 1;
        limits.tx_slots = 4;
        let mut net = Net::new(10);
        let server = host(&mut net, Variant::Single);
        let client = net.add(HostConfig::new(variant).limits(limits)).unwrap();
        let mut theirs = net.sockets(server).bind_udp(7).unwrap();
        let to = net.address_of(server, 7);
        for round in 0..10 {
            let mut ours = net.sockets(client).bind_udp(53).unwrap();
            assert_eq!(
                net.sockets(client).bind_udp(53).err(),
                Some(SocketError::PortTaken)
            );
            for number in 0..20 {
                ours.try_send_to(&payload(number, 3_000), to).unwrap();
            }
            drop(ours);
            net.pass(MILLI);
            for number in 0..20 {
                let bytes = receive(&mut theirs).map(|(bytes, _)| bytes);
                assert!(
                    bytes == Some(payload(number, 3_000)),
                    "{variant}, round {round}: {number}"
                );
            }
        }
        net.check().unwrap();
    }
}

#[test]
fn the_first_datagrams_wait_for_the_neighbour_and_are_dropped_if_there_is_none() {
    let (mut net, server, client) = pair(Variant::Replicated(2), 11);
    let mut theirs = net.sockets(server).bind_udp(7).unwrap();
    let mut ours = net.sockets(client).bind_udp(0).unwrap();
    for number in 0..10 {
        ours.try_send_to(&payload(number, 50), net.address_of(server, 7))
            .unwrap();
        ours.try_send_to(b"nobody", "10.0.0.77:7".parse().unwrap())
            .unwrap();
    }
    ours.try_send_to(&payload(10, 5_000), net.address_of(server, 7))
        .unwrap();
    net.pass(MILLI);
    for number in 0..10 {
        assert_eq!(
            receive(&mut theirs).map(|(bytes, _)| bytes),
            Some(payload(number, 50))
        );
    }
    assert!(receive(&mut theirs).is_some_and(|(bytes, _)| bytes == payload(10, 5_000)));
    net.pass(Duration::from_secs(4));
    assert_eq!(net.host(client).pump_stats().unresolved, 10);
}

// One stack, and packets from anywhere.

struct Lone {
    host: Host,
    now: Instant,
}

impl Lone {
    fn new(variant: Variant) -> Self {
        let setup = Setup::new(STACK.into(), 24, [1, 2]).gateway(FAR.into());
        let mut lone = Lone {
            host: Host::new(variant, setup, 1).unwrap(),
            now: Instant::from_millis(1),
        };
        // From now on the stack knows the peer's address, so the peer can forward.
        lone.inject(packet::arp_request(TO_STACK));
        lone
    }

    fn inject(&mut self, frame: Vec<u8>) -> VecDeque<Vec<u8>> {
        self.host.inject(frame);
        self.turn()
    }

    fn turn(&mut self) -> VecDeque<Vec<u8>> {
        while self.host.turn(self.now) > 0 {}
        self.host.take_sent().into()
    }

    fn pass(&mut self, time: Duration) -> VecDeque<Vec<u8>> {
        self.now += time;
        self.turn()
    }
}

#[test]
fn errors_are_reported_no_more_often_than_the_limit() {
    for variant in Variant::ALL {
        let mut lone = Lone::new(variant);
        let mut reports = [0; 2];
        for i in 0..10_000_u32 {
            let [.., a, b] = i.to_be_bytes();
            for (source, reports) in [[10, 0, 0, 2], [10, 9, a, b]].into_iter().zip(&mut reports) {
                let frame = packet::udp(TO_STACK.source(source), (4000, 9), &i.to_be_bytes());
                *reports += lone.inject(frame).len();
            }
        }
        // Per second, 0.5 to 1.5 times 10 to one host, and 0.5 to 1.5 times 1,000 to all.
        assert!((5..15).contains(&reports[0]), "{variant}: {reports:?}");
        let all = reports[0] + reports[1];
        assert!((500..1500).contains(&all), "{variant}: {reports:?}");
        let stats = lone.host.pump_stats();
        assert_eq!(stats.reports + stats.reports_limited, 20_000);
    }
}

#[test]
fn a_ping_of_8000_bytes_is_answered_in_fragments() {
    for variant in Variant::ALL {
        let mut lone = Lone::new(variant);
        let mut sent = VecDeque::new();
        for fragment in packet::fragments(
            TO_STACK,
            ICMP,
            77,
            &packet::echo(7, &payload(1, 8_000)),
            1480,
        ) {
            sent.extend(lone.inject(fragment));
        }
        assert_eq!(sent.len(), 6, "{variant}");
        let reply = packet::reassemble(sent.make_contiguous());
        assert_eq!(reply[..2], [0, 0]);
        assert_eq!(packet::sum(&reply), 0xffff);
        assert!(reply[8..] == payload(1, 8_000));
    }
}

#[test]
fn an_unknown_protocol_is_reported() {
    let mut lone = Lone::new(Variant::Single);
    let sent = lone.inject(packet::ip(TO_STACK, 132, &[0; 30]));
    assert_eq!(sent[0][34..36], [3, 2]);
    let broadcast = packet::ip(Path::new(FAR, EVERYBODY).to_mac(EVERY_MAC), 132, &[0; 30]);
    assert_eq!(lone.inject(broadcast).len(), 0);
}

/// 20,000 first fragments per second for 10 s, from one source, from many, or of one datagram;
/// during and after the flood an honest host sends datagrams in three fragments.
#[test]
fn honest_datagrams_are_served_within_a_second_after_a_flood_of_fragments() {
    for variant in [Variant::Single, Variant::Replicated(2)] {
        for kind in 0..3_u32 {
            let mut lone = Lone::new(variant);
            let mut socket = lone.host.sockets().bind_udp(9).unwrap();
            let filler = payload(9, 1_480);
            for i in 0..200_000_u32 {
                let (source, ident, offset) = match kind {
                    0 => (Ipv4Addr::new(10, 0, 0, 66), i as u16, 0),
                    1 => (Ipv4Addr::from(0x0b00_0000 + i), i as u16, 0),
                    _ => (Ipv4Addr::new(10, 0, 0, 66), 1, (i % 8_000 * 8) as usize),
                };
                let path = TO_STACK.source(source.octets());
                let frame = packet::fragment(path, UDP, ident, (offset, true), &filler);
                lone.host.inject(frame);
                if i % 20 == 0 {
                    lone.pass(MILLI);
                }
            }
            lone.turn();
            let ended = lone.now;
            let datagram = packet::udp(TO_STACK, (4000, 9), &payload(1, 4_000));
            let mut heard = None;
            for fragment in packet::fragments(TO_STACK, UDP, 5, &datagram[packet::LOWER..], 1480) {
                lone.inject(fragment);
                lone.pass(Duration::from_millis(300));
                heard = heard.or_else(|| receive(&mut socket));
            }
            let (bytes, _) = heard.expect("an honest datagram is served");
            assert!(bytes == payload(1, 4_000));
            assert!(lone.now.since(ended) <= Duration::from_secs(1));
        }
    }
}

/// Frames that are nearly right, in every field that a parser reads.
#[test]
fn no_damaged_frame_ends_the_stack_or_parts_its_replicas() {
    let long = packet::udp(TO_STACK, (4000, 9), &payload(1, 3_000));
    let first = packet::fragments(TO_STACK, UDP, 5, &long[packet::LOWER..], 1480);
    let about = packet::quote(TO_STACK.reversed(), UDP, 36, (9, 4000), 16 << 16);
    let mut good = vec![
        packet::udp(TO_STACK, (4000, 9), &payload(2, 100)),
        packet::udp(TO_STACK, (4000, 10), &payload(2, 100)),
        packet::ip(TO_STACK, ICMP, &packet::echo(7, &payload(3, 56))),
        packet::ip(TO_STACK, 132, &[0; 30]),
    ];
    good.extend(first);
    good.push(packet::ip(
        TO_STACK,
        ICMP,
        &packet::icmp_error([3, 3], 0, &about),
    ));
    good.push(packet::arp_request(TO_STACK.to_mac(EVERY_MAC)));
    for (seed, variant) in (1..).zip(Variant::ALL) {
        let mut rng = Rng::new(seed);
        let mut lone = Lone::new(variant);
        let mut socket = lone.host.sockets().bind_udp(9).unwrap();
        for _ in 0..20_000 {
            let mut frame = good[rng.index(good.len())].clone();
            for _ in 0..rng.below(3) {
                let at = 12 + rng.below(frame.len().min(60) as u64 - 12) as usize;
                frame[at] = rng.next() as u8;
            }
            if rng.chance(500_000) {
                packet::finish(&mut frame, Right::NETWORK);
            }
            if rng.chance(100_000) {
                frame.truncate(rng.below(frame.len() as u64) as usize);
            }
            lone.inject(frame);
            if rng.chance(100_000) {
                lone.pass(Duration::from_millis(rng.below(2_000)));
                while receive(&mut socket).is_some() {}
            }
        }
        lone.host
            .check()
            .unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        assert!(lone.host.state_stats().bad_datagrams > 0);
    }
}
