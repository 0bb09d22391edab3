//! More of each thing than a stack has room for: requests of one batch, unresolved neighbours,
//! opens, and fragments of a datagram. In every variant, over both families.

#![cfg(feature = "testkit")]

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dominoes_drivers::memory::MemoryConfig;
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::Duration;
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Limits, SocketError, UdpSocket};
use dominoes_testkit::hand::{self, Scripted};
use dominoes_testkit::packet::v6::{self, ICMPV6, Packet, solicited_node};
use dominoes_testkit::packet::{self, EVERY_MAC, Family, ICMP, Mac, TO_STACK};
use dominoes_testkit::{HostConfig, Net};

const US: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const PEER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const MILLI: Duration = Duration::from_millis(1);

/// A stack that knows a neighbour of each family.
fn fixture(variant: Variant, limits: Limits) -> Scripted {
    let setup = Setup::new(packet::STACK.into(), 16, [1, 7]).limits(limits);
    let setup = setup.ipv6(hand::ipv6().address(US, 64));
    let config = MemoryConfig::default().macs(TO_STACK.to_mac, TO_STACK.from_mac);
    let mut fixture = Scripted::over(variant, setup, config.rx_pool(4096));
    fixture.receive(packet::arp_request(TO_STACK.to_mac(EVERY_MAC)));
    fixture.receive(solicitation());
    fixture
}

fn path(to: Ipv6Addr, to_mac: Mac) -> v6::Path {
    v6::Path {
        from_mac: TO_STACK.from_mac,
        to_mac,
        from: PEER,
        to,
        hop_limit: 255,
    }
}

/// The peer's neighbour solicitation for the stack.
fn solicitation() -> Vec<u8> {
    let mut asks = vec![135, 0, 0, 0, 0, 0, 0, 0];
    asks.extend(US.octets());
    asks.extend([1, 1]);
    asks.extend(TO_STACK.from_mac);
    let group = solicited_node(US);
    v6::frame(path(group, v6::group_mac(group)), ICMPV6, &asks)
}

fn echo_v6() -> Vec<u8> {
    let message = [128, 0, 0, 0, 0, 7, 0, 1, 9, 9];
    v6::frame(path(US, TO_STACK.to_mac), ICMPV6, &message)
}

/// Whether a frame answers a request of the peer.
fn is_answer(frame: &[u8]) -> bool {
    match (&frame[12..14], frame.get(20..22)) {
        ([0x08, 0x06], operation) => operation == Some(&[0, 2]),
        ([0x08, 0x00], _) => packet::protocol(frame) == Some(ICMP),
        _ => matches!(frame[v6::LOWER], 129 | 136) && frame[..6] == TO_STACK.from_mac,
    }
}

/// The neighbour that a frame asks for, if it does.
fn asked(frame: &[u8]) -> Option<IpAddr> {
    if let Some(packet) = Packet::read(frame) {
        let asks = packet.next == ICMPV6 && packet.payload[0] == 135;
        let target = packet.payload.get(8..24)?;
        return asks.then(|| Ipv6Addr::from(<[u8; 16]>::try_from(target).unwrap()).into());
    }
    packet::asked(frame).map(|address| Ipv4Addr::from(address).into())
}

#[test]
fn every_request_of_a_large_batch_is_answered() {
    let requests: [(&str, Vec<u8>); 4] = [
        ("ARP", packet::arp_request(TO_STACK.to_mac(EVERY_MAC))),
        (
            "echo",
            packet::ip(TO_STACK, ICMP, &packet::echo(7, b"ping")),
        ),
        ("solicitation", solicitation()),
        ("echo of IPv6", echo_v6()),
    ];
    for variant in Variant::ALL {
        let mut fixture = fixture(variant, Limits::default());
        for (what, request) in &requests {
            for count in [100, 1000, 4000] {
                (0..count).for_each(|_| fixture.script.push(request.clone()));
                let answers = fixture.turn();
                assert_eq!(
                    answers.iter().filter(|frame| is_answer(frame)).count(),
                    count,
                    "{variant}: {what}"
                );
            }
            // The device accepts a few frames at a time.
            (0..2000).for_each(|_| fixture.script.push(request.clone()));
            let mut answers = 0;
            for _ in 0..410 {
                fixture.script.accept_at_most(Some(5));
                fixture.now += MILLI;
                answers += fixture
                    .turn()
                    .iter()
                    .filter(|frame| is_answer(frame))
                    .count();
            }
            assert_eq!(answers, 2000, "{variant}: {what}, slowly");
            fixture.script.accept_at_most(None);
        }
        let stats = fixture.stacks[0].stats().pump;
        assert_eq!(stats.control_dropped, 0, "{variant}");
    }
}

#[test]
fn a_device_that_takes_nothing_does_not_stop_what_comes() {
    for variant in Variant::ALL {
        let mut fixture = fixture(variant, Limits::default());
        let mut socket = fixture.sockets().bind_udp(7).unwrap();
        fixture.script.accept_at_most(Some(0));
        let large = packet::echo(7, &[1; 1400]);
        for _ in 0..10 {
            let request = packet::ip(TO_STACK, ICMP, &large);
            (0..1000).for_each(|_| fixture.script.push(request.clone()));
            for _ in 0..100 {
                fixture.now += MILLI;
                fixture.turn();
            }
        }
        fixture.script.push(packet::udp(TO_STACK, (9, 7), b"hello"));
        fixture.turn();
        assert_eq!(socket.try_recv_from(&mut [0; 9]).unwrap().0, 5, "{variant}");
        let stats = fixture.stacks[0].stats().pump;
        assert!(stats.control_dropped > 1000, "{variant}: {stats:?}");
        fixture.script.accept_at_most(None);
        let left = fixture
            .turn()
            .iter()
            .filter(|frame| is_answer(frame))
            .count() as u64;
        // An announcement may be lost as well.
        assert!(
            (10_000..10_003).contains(&(left + stats.control_dropped)),
            "{variant}"
        );
    }
}

/// Neighbours that the stack has never heard of.
fn strangers(is_v4: bool, count: u16) -> Vec<SocketAddr> {
    let address = |i: u16| -> IpAddr {
        let [high, low] = i.to_be_bytes();
        match is_v4 {
            true => Ipv4Addr::new(10, 0, 1 + high, low).into(),
            false => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 1, i).into(),
        }
    };
    (0..count).map(|i| (address(i), 80).into()).collect()
}

#[test]
fn every_neighbour_that_opens_need_is_asked_for() {
    for variant in Variant::ALL {
        for is_v4 in [true, false] {
            let mut fixture = fixture(variant, Limits::default());
            let strangers = strangers(is_v4, 2500);
            let sockets = fixture.sockets();
            let open = |to: &SocketAddr| sockets.begin_connect(*to).unwrap();
            let mut opens: Vec<_> = strangers.iter().map(open).collect();
            let sent = fixture.turn();
            let asked: HashSet<IpAddr> = sent.iter().filter_map(|frame| asked(frame)).collect();
            assert_eq!(asked.len(), strangers.len(), "{variant}");
            assert!(
                opens
                    .iter_mut()
                    .all(|open| matches!(open.try_finish(), Ok(None)))
            );
            fixture.pass(Duration::from_secs(4));
            for open in &mut opens {
                let error = open.try_finish().unwrap_err();
                assert_eq!(error, SocketError::Unreachable, "{variant}");
            }
        }
    }
}

#[test]
fn as_many_opens_wait_for_a_neighbour_as_there_may_be_connections() {
    for variant in Variant::ALL {
        for is_v4 in [true, false] {
            let mut fixture = fixture(variant, Limits::default().connections(1000));
            let to = strangers(is_v4, 1)[0];
            let sockets = fixture.sockets();
            let mut opens: Vec<_> = (0..1001)
                .map(|_| sockets.begin_connect(to).unwrap())
                .collect();
            fixture.turn();
            let last = opens.pop().unwrap().try_finish().unwrap_err();
            assert_eq!(last, SocketError::NoRoom, "{variant}");
            assert!(
                opens
                    .iter_mut()
                    .all(|open| matches!(open.try_finish(), Ok(None)))
            );
            fixture.script.push(match to.ip() {
                IpAddr::V4(ip) => packet::arp_reply(TO_STACK.source(ip.octets())),
                IpAddr::V6(ip) => {
                    let mut says = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
                    says.extend(ip.octets());
                    says.extend([2, 1]);
                    says.extend(TO_STACK.from_mac);
                    v6::frame(path(US, TO_STACK.to_mac), ICMPV6, &says)
                }
            });
            let syns = fixture.turn().len();
            assert_eq!(syns, 1000, "{variant}");
        }
    }
}

#[test]
fn who_finds_no_port_and_no_socket_hears_so() {
    for variant in Variant::ALL {
        let mut fixture = fixture(variant, Limits::default().udp_sockets(2));
        let sockets = fixture.sockets();
        let bound = [7, 8].map(|port| sockets.bind_udp(port).unwrap());
        let error = sockets.bind_udp(9).unwrap_err();
        assert_eq!(error, SocketError::TooManySockets);
        assert!(error.to_string().contains("`Limits::udp_sockets`"));
        drop(bound);
        // Listeners occupy all ephemeral ports.
        let listen = |port| sockets.listen(port, 1).unwrap();
        let _listeners: Vec<_> = (32_768..=u16::MAX).map(listen).collect();
        let mut open = sockets
            .begin_connect((IpAddr::from(packet::FAR), 80).into())
            .unwrap();
        fixture.turn();
        assert_eq!(
            open.try_finish().unwrap_err(),
            SocketError::NoPort,
            "{variant}"
        );
    }
}

fn receive(socket: &mut UdpSocket) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 65_536];
    match socket.try_recv_from(&mut buffer) {
        Ok((len, _)) => {
            buffer.truncate(len);
            Some(buffer)
        }
        Err(SocketError::WouldBlock) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_longest_datagrams_arrive_at_any_mtu_also_the_first_ones() {
    let byte = |number: usize, at: usize| (number * 31 + at * 7 + at / 251) as u8;
    for variant in Variant::ALL {
        for (family, mtus) in [
            (Family::V4, [68, 576, 1280, 1500].as_slice()),
            (Family::V6, &[1280, 1500, 9000]),
        ] {
            for (mtu, tx_slots) in mtus.iter().flat_map(|mtu| [(*mtu, 4), (*mtu, 512)]) {
                let mut net = Net::new(u64::from(mtu));
                let limits = Limits::default().mtu(mtu).tx_slots(tx_slots);
                let config = HostConfig::new(variant).family(family).limits(limits);
                let hosts = [(); 2].map(|()| net.add(config.clone()).unwrap());
                net.pass(Duration::from_secs(2));
                let mut sockets = hosts.map(|host| net.sockets(host).bind_udp(7).unwrap());
                for (from, to) in [(0, 1), (1, 0)] {
                    let address = net.address_of(hosts[to], 7);
                    let lens = [65_507, 65_507, 1];
                    for (number, len) in lens.into_iter().enumerate() {
                        let bytes: Vec<u8> = (0..len).map(|at| byte(number, at)).collect();
                        sockets[from].try_send_to(&bytes, address).unwrap();
                        if from == 1 || tx_slots > 4 {
                            net.pass(Duration::from_secs(1));
                        }
                    }
                    net.pass(Duration::from_secs(1));
                    for (number, len) in lens.into_iter().enumerate() {
                        let got = receive(&mut sockets[to]);
                        let got =
                            got.unwrap_or_else(|| panic!("{variant}, {mtu}, {tx_slots}: {number}"));
                        assert_eq!(got.len(), len);
                        assert!(
                            got.iter()
                                .enumerate()
                                .all(|(at, got)| *got == byte(number, at))
                        );
                    }
                }
            }
        }
    }
}
