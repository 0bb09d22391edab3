//! Links that carry bare IP packets: a stack neither asks for link-layer addresses nor answers such
//! questions, over both families and in every variant.

#![cfg(feature = "testkit")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_drivers::{Device, IP_MAC, IP_PEER_MAC, LinkType};
use dominoes_netstack::router::Router;
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::{Setup, single::Single};
use dominoes_netstack::{Ipv6Config, Route};
use dominoes_testkit::device::Around;
use dominoes_testkit::hand::{Scripted, Shape, Wired, address, address_v6};
use dominoes_testkit::packet::{self, Path};

const PORT: u16 = 7;

fn link() -> MemoryConfig {
    MemoryConfig::default().link(LinkType::Ip)
}

fn setup(host: u8) -> Setup {
    // As by default, probes and announcements are on.
    let config = Ipv6Config::default().address(address_v6(0, host), 64);
    let setup = Setup::new(address(true, 0, host), 24, [u64::from(host), 7]);
    setup.ipv6(config).announce(true)
}

fn wired(shape: Shape) -> Wired {
    Wired::over(shape, [setup(1), setup(2)], link())
}

#[test]
fn connections_and_datagrams_of_both_families_pass() {
    for mut fixture in Shape::all().map(wired) {
        let (sockets, peer) = (fixture.sockets(), fixture.peer());
        let listeners = [&sockets, &peer].map(|sockets| sockets.listen(PORT, 8).unwrap());
        let mut theirs = peer.bind_udp(9).unwrap();
        let mut ours = sockets.bind_udp(9).unwrap();
        for is_v4 in [true, false] {
            let [us, them] = [1, 2].map(|host| address(is_v4, 0, host));
            for (from, to, listener) in
                [(&sockets, them, &listeners[1]), (&peer, us, &listeners[0])]
            {
                let mut stream = fixture.connect(from, SocketAddr::new(to, PORT)).unwrap();
                let mut accepted = listener.try_accept().unwrap().0;
                assert_eq!(stream.try_write(&[7; 20_000]), Ok(20_000));
                let mut got = 0;
                while got < 20_000 {
                    fixture.turn();
                    got += accepted.try_read(&mut [0; 20_000]).unwrap();
                }
            }
            ours.try_send_to(&[1; 3000], SocketAddr::new(them, 9))
                .unwrap();
            fixture.turn();
            let from = SocketAddr::new(us, 9);
            assert_eq!(theirs.try_recv_from(&mut [0; 4000]), Ok((3000, from)));
            theirs.try_send_to(&[2; 100], from).unwrap();
            fixture.turn();
            let from = SocketAddr::new(them, 9);
            assert_eq!(ours.try_recv_from(&mut [0; 4000]), Ok((100, from)));
        }
        for stack in fixture.stacks.iter().chain(&fixture.hosts) {
            let stats = stack.stats().pump;
            assert_eq!((stats.arp, stats.unknown, stats.malformed), (0, 0, 0));
            assert_eq!((stats.conflicts, stats.neighbor_messages), (0, 0));
        }
    }
}

#[test]
fn datagrams_to_all_and_to_groups_arrive() {
    let (v4, v6) = ("239.1.2.3", "ff15::7");
    for mut fixture in Shape::all().map(wired) {
        let mut ours = fixture.sockets().bind_udp(9).unwrap();
        ours.join_multicast_v4(&v4.parse().unwrap(), &Ipv4Addr::UNSPECIFIED)
            .unwrap();
        ours.join_multicast_v6(&v6.parse().unwrap(), 0).unwrap();
        let mut theirs = fixture.peer().bind_udp(9).unwrap();
        theirs.set_broadcast(true).unwrap();
        fixture.turn();
        for to in [v4, v6, "255.255.255.255"] {
            let to: IpAddr = to.parse().unwrap();
            theirs.try_send_to(b"all", SocketAddr::new(to, 9)).unwrap();
            fixture.turn();
            let got = ours.try_recv_from(&mut [0; 8]).map(|(len, _)| len);
            assert_eq!(got, Ok(3), "{to}");
        }
    }
}

/// What the stack sends about its link: ARP, or a message of neighbor discovery about an address.
fn about_neighbors(frame: &[u8]) -> bool {
    let is_v6 = frame[12..14] == [0x86, 0xdd];
    frame[12..14] == [0x08, 0x06] || is_v6 && frame[20] == 58 && matches!(frame[54], 135 | 136)
}

#[test]
fn nobody_is_asked_and_nobody_is_answered() {
    for shape in Shape::all() {
        let mut host = Scripted::over(shape, setup(1), link());
        let sent = host.pass(Duration::from_secs(20));
        assert!(!sent.iter().any(|frame| about_neighbors(frame)));
        // All are solicitations of routers: there are no groups to report.
        assert!(sent.iter().all(|frame| frame[54] == 133), "{sent:02x?}");
        let places = host.sockets().interfaces()[0].addresses.clone();
        assert!(places.contains(&address(false, 0, 1)), "{places:?}");

        // A solicitation for our address, and an advertisement that claims it.
        let path = packet::v6::Path {
            from_mac: IP_PEER_MAC,
            to_mac: IP_MAC,
            from: address_v6(0, 2),
            to: address_v6(0, 1),
            hop_limit: 255,
        };
        for kind in [135, 136] {
            let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
            message.extend(address_v6(0, 1).octets());
            let frame = packet::v6::frame(path, packet::v6::ICMPV6, &message);
            assert_eq!(host.receive(frame), Vec::<Vec<u8>>::new());
        }
        let stats = host.stacks[0].stats().pump;
        assert_eq!((stats.unknown, stats.conflicts), (2, 0));
    }
}

/// A device with an IP link may still deliver any frame.
#[test]
fn arp_from_a_device_for_ip_is_counted() {
    let macs = MemoryConfig::default().macs(IP_MAC, IP_PEER_MAC);
    let (device, script) = memory::scripted_with(macs);
    let mut caps = device.capabilities();
    caps.link = LinkType::Ip;
    let device = Around::new(device).capabilities(caps);
    let mut stack = Single::new(setup(1), Box::new(device)).unwrap();
    let path = Path {
        from_mac: IP_PEER_MAC,
        to_mac: IP_MAC,
        from: [10, 0, 0, 2],
        to: [10, 0, 0, 1],
    };
    script.push(packet::arp_request(path));
    while stack.turn(Instant::from_millis(1)) > 0 {}
    let stats = stack.stats().pump;
    assert_eq!((stats.unknown, stats.arp), (1, 0));
}

#[test]
fn any_number_of_hosts_is_reached_at_once() {
    const HOSTS: u32 = 3000;
    for shape in [Shape::One(Variant::Single), Shape::THREE_GROUPS] {
        let route = Route {
            network: Ipv4Addr::UNSPECIFIED.into(),
            prefix: 0,
            via: address(true, 0, 2),
            metric: 0,
        };
        let mut host = Scripted::over(shape, setup(1).route(route), link());
        host.turn();
        let mut socket = host.sockets().bind_udp(9).unwrap();
        let mut sent = 0;
        for at in 0..HOSTS {
            let v4 = Ipv4Addr::from(0x0b00_0000 + at * 7919);
            let v6 = Ipv6Addr::from(u128::from(address_v6(0, 0)) + 16 + u128::from(at));
            for to in [IpAddr::from(v4), v6.into()] {
                socket.try_send_to(b"you", SocketAddr::new(to, 9)).unwrap();
            }
            sent += host
                .turn()
                .iter()
                .filter(|frame| !about_neighbors(frame))
                .count();
        }
        assert_eq!(sent, 2 * HOSTS as usize);
    }
}

#[test]
fn a_router_leads_from_an_ethernet_to_bare_packets_and_back() {
    let (ethernet, ethernet_end) = memory::pair(MemoryConfig::default());
    let (tunnel, tunnel_end) = memory::ip_pair(MemoryConfig::default());
    let mut router = Router::builder()
        .interface("10.0.1.254/24", ethernet_end)
        .interface("10.0.2.254/24", tunnel_end)
        .build()
        .unwrap();
    let host = |net, device| {
        let setup = Setup::new(address(true, net, 1), 24, [1, 2]);
        let setup = setup.gateway(address(true, net, 254));
        Single::new(setup, Box::new(device)).unwrap()
    };
    let [mut client, mut server] = [host(1, ethernet), host(2, tunnel)];
    let mut now = Instant::ZERO;
    let listener = server.sockets().listen(PORT, 4).unwrap();
    let to = SocketAddr::new(address(true, 2, 1), PORT);
    let mut connecting = client.sockets().begin_connect(to).unwrap();
    while connecting.try_finish().unwrap().is_none() {
        client.turn(now);
        router.turn(now);
        server.turn(now);
        now += Duration::from_micros(10);
    }
    assert!(listener.try_accept().is_ok());
}
