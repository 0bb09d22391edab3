//! IPv6 in every variant: the messages that a stack sends on its link, its answers, and connections
//! and datagrams between two stacks. The tests write the frames of the far side byte by byte.

#![cfg(feature = "testkit")]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::{Deref, DerefMut};

use dominoes_drivers::memory::MemoryConfig;
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::Duration;
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Families, Ipv6Config, SocketError, TcpStream, UdpSocket};
use dominoes_testkit::hand::{self, Scripted};
use dominoes_testkit::packet::v6::{self, ICMPV6, Packet, Path, group_mac, solicited_node};
use dominoes_testkit::packet::{self, Mac, TCP, UDP};
use dominoes_testkit::rng::Rng;

const US: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const PEER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const FAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0xf, 0, 0, 0, 1);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xa);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const MAC: Mac = [2, 0, 0, 0, 0, 1];
const PEER_MAC: Mac = [2, 0, 0, 0, 0, 2];
const PORT: u16 = 7;

/// A host that receives IPv6 packets.
struct Host(Scripted);

impl Deref for Host {
    type Target = Scripted;

    fn deref(&self) -> &Scripted {
        &self.0
    }
}

impl DerefMut for Host {
    fn deref_mut(&mut self) -> &mut Scripted {
        &mut self.0
    }
}

impl Host {
    /// A host at `US` and 10.0.0.1, which uses both addresses at once.
    fn ours(variant: Variant) -> Host {
        Host::with(variant, hand::ipv6().address(US, 64))
    }

    fn with(variant: Variant, config: Ipv6Config) -> Host {
        let setup = Setup::new(Ipv4Addr::new(10, 0, 0, 1).into(), 24, [1, 7]).ipv6(config);
        let mut host = Host::new(variant, MAC, setup);
        host.turn();
        host
    }

    fn new(variant: Variant, mac: Mac, setup: Setup) -> Host {
        let config = MemoryConfig::default().macs(mac, mac);
        Host(Scripted::over(variant, setup, config))
    }

    /// Delivers a packet. Returns the frames sent in response.
    fn receive(&mut self, path: Path, next: u8, payload: &[u8]) -> Vec<Vec<u8>> {
        self.0.receive(v6::frame(path, next, payload))
    }

    /// The peer asks for `US`, so the stack learns the peer's link-layer address.
    fn learn(&mut self, address: Ipv6Addr) {
        let path = Path {
            from: address,
            to: solicited_node(US),
            to_mac: by_group(US),
            ..NEAR
        };
        self.receive(path, ICMPV6, &message(135, 0, US, Some((1, PEER_MAC))));
    }
}

/// From the peer to us.
const PATH: Path = Path {
    from_mac: PEER_MAC,
    to_mac: MAC,
    from: PEER,
    to: US,
    hop_limit: 64,
};

/// The only packet among these frames. Checks its checksum.
fn only(frames: &[Vec<u8>]) -> Packet<'_> {
    let [frame] = frames else {
        panic!("{} frames", frames.len())
    };
    let packet = Packet::read(frame).expect("IPv6");
    assert!(packet.is_right());
    packet
}

/// Two stacks on one link.
struct Pair(Host, Host);

impl Pair {
    fn new(variant: Variant) -> Pair {
        let theirs = Setup::new(PEER.into(), 64, [2, 7]).ipv6(hand::ipv6());
        Pair(
            Host::ours(variant),
            Host::new(Variant::Single, PEER_MAC, theirs),
        )
    }

    /// Carries frames until neither host sends one. Returns the frames.
    fn settle(&mut self) -> Vec<Vec<u8>> {
        hand::settle([&mut self.0, &mut self.1])
    }

    /// As [`Pair::settle`], until `time` has passed.
    fn settle_for(&mut self, time: Duration) -> Vec<Vec<u8>> {
        let mut all = self.settle();
        let until = self.0.now + time;
        loop {
            let next = self.0.next_deadline().min(self.1.next_deadline());
            let next = next.max(self.0.now).min(until);
            (self.0.now, self.1.now) = (next, next);
            all.extend(self.settle());
            if next == until {
                return all;
            }
        }
    }

    /// A connection from the second to the first.
    fn connect(&mut self) -> (TcpStream, TcpStream) {
        let listener = self.0.sockets().listen(PORT, 4).unwrap();
        let to = SocketAddr::new(US.into(), PORT);
        let mut opening = self.1.sockets().begin_connect(to).unwrap();
        self.settle();
        let theirs = opening.try_finish().unwrap().expect("it is open");
        let (ours, from) = listener.try_accept().unwrap();
        assert_eq!(from, theirs.local_addr().unwrap());
        assert_eq!(from.ip(), PEER);
        (ours, theirs)
    }
}

#[test]
fn a_connection_carries_bytes_both_ways() {
    for variant in Variant::ALL {
        let mut pair = Pair::new(variant);
        let (mut ours, mut theirs) = pair.connect();
        let bytes: Vec<u8> = (0..300_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
        for is_ours in [true, false] {
            let (from, to) = match is_ours {
                true => (&mut ours, &mut theirs),
                false => (&mut theirs, &mut ours),
            };
            let (mut sent, mut read, mut passed) = (0, Vec::<u8>::new(), Vec::new());
            while read.len() < bytes.len() {
                if sent < bytes.len() {
                    sent += from.try_write(&bytes[sent..]).unwrap_or(0);
                }
                passed.extend(pair.settle_for(Duration::from_millis(50)));
                let mut piece = [0; 65_536];
                let got = to.try_read(&mut piece).unwrap_or(0);
                read.extend(&piece[..got]);
            }
            assert!(read == bytes, "{variant}");
            for frame in &passed {
                let packet = Packet::read(frame).expect("IPv6");
                assert!(packet.is_right(), "{variant}");
                assert!(frame.len() <= 1514);
                // RFC 6437: a flow has one label, and not zero.
                assert!(packet.next != TCP || frame[15..18] != [0, 0, 0]);
            }
            assert!(passed.iter().any(|frame| frame.len() == 1514), "{variant}");
        }
    }
}

#[test]
fn a_syn_announces_what_the_mtu_leaves_behind_both_headers() {
    for variant in Variant::ALL {
        let mut host = Host::ours(variant);
        host.learn(PEER);
        let _opening = host
            .sockets()
            .begin_connect(SocketAddr::new(PEER.into(), PORT))
            .unwrap();
        let sent = host.turn();
        let syn = only(&sent);
        assert_eq!((syn.next, syn.path.from, syn.path.to), (TCP, US, PEER));
        assert_eq!(syn.path.to_mac, PEER_MAC);
        assert_eq!(syn.payload[20..24], [2, 4, 0x05, 0xa0], "1440");
    }
}

#[test]
fn datagrams_go_both_ways_in_fragments_if_need_be() {
    for variant in Variant::ALL {
        let mut pair = Pair::new(variant);
        let ours = pair.0.sockets().bind_udp(53).unwrap();
        let theirs = pair.1.sockets().bind_udp(54).unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        for len in [0_usize, 1, 1452, 1453, 5_000, 20_000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
            theirs.send_to(&bytes, (US, 53)).unwrap();
            let passed = pair.settle();
            let fragments = passed.iter().filter(|frame| frame[20] == 44).count();
            let expected = if len <= 1452 {
                0
            } else {
                (len + 8).div_ceil(1448)
            };
            assert_eq!(fragments, expected, "{variant}, {len}");
            let mut got = vec![0; 65_536];
            let (read, from) = ours.recv_from(&mut got).unwrap();
            assert_eq!(
                (&got[..read], from),
                (&bytes[..], SocketAddr::new(PEER.into(), 54))
            );
            ours.send_to(&bytes, from).unwrap();
            pair.settle();
            let (read, from) = theirs.recv_from(&mut got).unwrap();
            assert_eq!(
                (&got[..read], from),
                (&bytes[..], SocketAddr::new(US.into(), 53))
            );
        }
    }
}

#[test]
fn a_question_for_our_address_is_answered_and_one_that_a_router_passed_on_is_not() {
    let asks = message(135, 0, US, Some((1, PEER_MAC)));
    for variant in Variant::ALL {
        let mut host = Host::ours(variant);
        let group = solicited_node(US);
        let path = Path {
            to: group,
            to_mac: group_mac(group),
            hop_limit: 255,
            ..PATH
        };
        let sent = host.receive(path, ICMPV6, &asks);
        let answer = only(&sent);
        assert_eq!((answer.path.from, answer.path.to), (US, PEER));
        assert_eq!((answer.path.to_mac, answer.path.hop_limit), (PEER_MAC, 255));
        let mut expected = vec![136, 0, answer.payload[2], answer.payload[3], 0x60, 0, 0, 0];
        expected.extend(US.octets());
        expected.extend([2, 1]);
        expected.extend(MAC);
        assert_eq!(answer.payload, expected);
        let passed_on = Path {
            hop_limit: 254,
            ..path
        };
        assert!(host.receive(passed_on, ICMPV6, &asks).is_empty());
    }
}

#[test]
fn an_address_that_another_host_has_is_not_used() {
    for variant in Variant::ALL {
        let config = Ipv6Config::default().autoconfigure(false).address(US, 64);
        let mut host = Host::with(variant, config.clone());
        let sent = host.pass(Duration::from_millis(999));
        let probes = sent.iter().filter_map(|frame| Packet::read(frame));
        let probes: Vec<_> = probes.filter(|packet| packet.payload[0] == 135).collect();
        assert_eq!(probes.len(), 2, "for it, and for the link-local one");
        for probe in &probes {
            assert!(probe.path.from.is_unspecified() && probe.path.hop_limit == 255);
            assert_eq!(probe.payload.len(), 24, "without an option");
        }
        assert!(host.sockets().ipv6_addresses().is_empty());
        let has = message(136, 0x20, US, Some((2, PEER_MAC)));
        let path = Path {
            from: US,
            to: ALL_NODES,
            to_mac: group_mac(ALL_NODES),
            hop_limit: 255,
            ..PATH
        };
        host.receive(path, ICMPV6, &has);
        host.pass(Duration::from_secs(3));
        let addresses = host.sockets().ipv6_addresses();
        assert_eq!(addresses.len(), 1, "{variant}");
        assert!(addresses[0].is_unicast_link_local());

        let mut free = Host::with(variant, config);
        free.pass(Duration::from_secs(3));
        assert!(free.sockets().ipv6_addresses().contains(&US));
    }
}

#[test]
fn an_open_waits_until_its_address_is_known_to_be_ours() {
    for variant in Variant::ALL {
        let config = Ipv6Config::default().autoconfigure(false).address(US, 64);
        let mut host = Host::with(variant, config);
        let _opening = host
            .sockets()
            .begin_connect(SocketAddr::new(PEER.into(), PORT))
            .unwrap();
        let sent = host.pass(Duration::from_secs(3));
        let asked = |packet: &Packet<'_>| packet.path.from == US && packet.payload[0] == 135;
        let packets = sent.iter().filter_map(|frame| Packet::read(frame));
        assert!(packets.filter(asked).count() > 0, "{variant}");
    }
}

/// An advertisement of a router with this lifetime in seconds, its address, and a prefix.
fn router_says(lifetime: u16, mac: Option<Mac>) -> Vec<u8> {
    let [a, b] = lifetime.to_be_bytes();
    let mut says = vec![134, 0, 0, 0, 64, 0, a, b, 0, 0, 0, 0, 0, 0, 0, 0];
    if let Some(mac) = mac {
        says.extend([1, 1]);
        says.extend(mac);
    }
    says.extend([3, 4, 64, 0xc0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    says.extend(Ipv6Addr::new(0x2001, 0xdb8, 0, 5, 0, 0, 0, 0).octets());
    says
}

/// From a router to all hosts.
const FROM_ROUTER: Path = Path {
    from: ROUTER,
    to: ALL_NODES,
    to_mac: [0x33, 0x33, 0, 0, 0, 1],
    hop_limit: 255,
    ..PATH
};

/// Connections of [`behind_a_router`].
const CONNECTIONS: u64 = 100;

/// A host that opens connections through the router, which it knows.
fn behind_a_router(variant: Variant) -> Host {
    let mut host = Host::with(variant, Ipv6Config::default().duplicate_probes(0));
    host.receive(FROM_ROUTER, ICMPV6, &router_says(1800, Some(PEER_MAC)));
    host.pass(Duration::from_secs(3));
    for port in 0..CONNECTIONS {
        let to = SocketAddr::new(FAR.into(), 1000 + port as u16);
        let _ = host.sockets().begin_connect(to).unwrap();
    }
    host.turn();
    host
}

fn requests(host: &Host) -> u64 {
    host.stacks[0].stats().pump.requests
}

#[test]
fn an_advertisement_that_says_nothing_new_is_no_work_for_connections() {
    for variant in Variant::ALL {
        let mut host = behind_a_router(variant);
        let before = requests(&host);
        for _ in 0..500 {
            host.receive(FROM_ROUTER, ICMPV6, &router_says(1800, Some(PEER_MAC)));
        }
        let work = requests(&host) - before;
        assert!(work < 10, "{variant}: {work} requests");
    }
}

#[test]
fn routers_that_come_and_go_at_once_cost_each_connection_few_changes() {
    let other = Path {
        from: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xb),
        from_mac: [2, 0, 0, 0, 0, 3],
        ..FROM_ROUTER
    };
    for variant in Variant::ALL {
        let mut host = behind_a_router(variant);
        host.receive(other, ICMPV6, &router_says(1800, Some(other.from_mac)));
        let before = requests(&host);
        // The first router in the list leaves, and returns as the last.
        for lifetime in [0, 1800].repeat(500) {
            for (path, mac) in [(FROM_ROUTER, PEER_MAC), (other, other.from_mac)] {
                host.receive(path, ICMPV6, &router_says(lifetime, Some(mac)));
            }
        }
        let work = requests(&host) - before;
        assert!(work < 20 * CONNECTIONS, "{variant}: {work} requests");
        // The stack acts on their last messages a moment later.
        host.receive(other, ICMPV6, &router_says(0, Some(other.from_mac)));
        host.receive(FROM_ROUTER, ICMPV6, &router_says(0, Some(PEER_MAC)));
        host.receive(other, ICMPV6, &router_says(1800, Some(other.from_mac)));
        host.pass(Duration::from_millis(200));
        let to = SocketAddr::new(FAR.into(), 999);
        let _opening = host.sockets().begin_connect(to).unwrap();
        let sent = host.turn();
        let syns = sent.iter().filter_map(|frame| Packet::read(frame));
        let mut syns = syns.filter(|packet| packet.next == TCP);
        assert!(
            syns.all(|syn| syn.path.to_mac == other.from_mac),
            "{variant}"
        );
    }
}

#[test]
fn a_tag_without_a_vlan_is_no_tag() {
    let request = [128, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7];
    let tagged = |mut frame: Vec<u8>, control: u8| {
        frame.splice(12..12, [0x81, 0, 0xe0, control]);
        frame
    };
    let arp = packet::Path::new([10, 0, 0, 2], [10, 0, 0, 1]).to_mac(packet::EVERY_MAC);
    let arp = packet::arp_request(arp);
    for variant in Variant::ALL {
        let mut host = Host::ours(variant);
        host.learn(PEER);
        let to_all = Path {
            to: ALL_NODES,
            to_mac: group_mac(ALL_NODES),
            ..PATH
        };
        let frames = [PATH, to_all].map(|path| v6::frame(path, ICMPV6, &request));
        for frame in frames.into_iter().chain([arp.clone()]) {
            host.script.push(frame.clone());
            let plain = host.turn();
            host.script.push(tagged(frame.clone(), 0));
            assert_eq!(host.turn(), plain, "{variant}");
            assert_eq!(plain.len(), 1);
            host.script.push(tagged(tagged(frame.clone(), 0), 0));
            host.script.push(tagged(frame, 1));
            assert!(host.turn().is_empty());
        }
    }
}

#[test]
fn routers_give_an_address_and_the_way_out() {
    for variant in Variant::ALL {
        let mut host = Host::with(variant, Ipv6Config::default());
        let sent = host.pass(Duration::from_secs(3));
        let asks = |frame: &&Vec<u8>| frame.get(54) == Some(&133);
        assert_eq!(sent.iter().filter(asks).count(), 1);
        let far = SocketAddr::new(FAR.into(), PORT);
        let refused = host.sockets().begin_connect(far).unwrap_err();
        assert_eq!(refused, SocketError::NoRoute);
        host.receive(FROM_ROUTER, ICMPV6, &router_says(1800, Some(PEER_MAC)));
        host.pass(Duration::from_secs(3));
        let addresses = host.sockets().ipv6_addresses();
        let made = addresses
            .iter()
            .find(|address| !address.is_unicast_link_local());
        let made = *made.expect("an address");
        assert_eq!(made.segments()[..4], [0x2001, 0xdb8, 0, 5]);
        let _opening = host.sockets().begin_connect(far).unwrap();
        let sent = host.turn();
        let syn = only(&sent);
        assert_eq!(
            (syn.path.from, syn.path.to, syn.path.to_mac),
            (made, FAR, PEER_MAC)
        );
    }
}

#[test]
fn echo_requests_to_us_and_to_groups_are_answered_by_us() {
    let request = [128, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7];
    for variant in Variant::ALL {
        let mut host = Host::ours(variant);
        host.learn(PEER);
        for (to, to_mac) in [(US, MAC), (ALL_NODES, group_mac(ALL_NODES))] {
            let sent = host.receive(Path { to, to_mac, ..PATH }, ICMPV6, &request);
            let reply = only(&sent);
            assert_eq!((reply.path.from, reply.path.to), (US, PEER));
            assert_eq!(
                (reply.payload[0], &reply.payload[4..]),
                (129, &request[4..])
            );
        }
        let other = Path {
            to: PEER,
            from: FAR,
            ..PATH
        };
        assert!(host.receive(other, ICMPV6, &request).is_empty());
        let long = [&request[..8], &[9; 3_000]].concat();
        let mut first = vec![ICMPV6, 0, 0, 1, 0, 0, 0, 5];
        // The checksum of the whole.
        let whole = v6::frame(PATH, ICMPV6, &long);
        first.extend(&whole[54..54 + 1_448]);
        let mut second = vec![
            ICMPV6,
            0,
            (1_448 >> 8) as u8,
            1_448_u16 as u8 | 1,
            0,
            0,
            0,
            5,
        ];
        second.extend(&whole[54 + 1_448..54 + 2_896]);
        let mut third = vec![ICMPV6, 0, (2_896 >> 8) as u8, 2_896_u16 as u8, 0, 0, 0, 5];
        third.extend(&whole[54 + 2_896..]);
        assert!(host.receive(PATH, 44, &second).is_empty());
        assert!(host.receive(PATH, 44, &third).is_empty());
        assert_eq!(
            host.receive(PATH, 44, &first).len(),
            3,
            "a reply in fragments"
        );
    }
}

#[test]
fn what_cannot_be_served_is_reported_with_its_place() {
    // Number of the first header, what follows, and type, code and pointer of the error.
    type Case<'a> = (u8, &'a [u8], Option<[u8; 3]>);
    let cases: [Case<'_>; 11] = [
        (200, &[0; 8], Some([4, 1, 6])),
        (60, &[59, 0, 1, 4, 0, 0, 0, 0], None),
        (60, &[59, 0, 0x9e, 4, 0, 0, 0, 0], Some([4, 2, 42])),
        (60, &[59, 0, 0x5e, 4, 0, 0, 0, 0], None),
        (43, &[59, 0, 0, 1, 0, 0, 0, 0], Some([4, 0, 42])),
        (43, &[59, 0, 0, 0, 0, 0, 0, 0], None),
        (44, &[17, 0, 0, 1, 0, 0, 0, 1, 9], Some([4, 0, 4])),
        (UDP, &[0, 5, 0, 9, 0, 9, 0, 0, 1], Some([1, 4, 0])),
        // After the header of an atomic fragment.
        (44, &[200, 0, 0, 0, 0, 0, 0, 1, 0], Some([4, 1, 40])),
        (
            44,
            &[60, 9, 0, 6, 0, 0, 0, 1, 59, 0, 0x9e, 4, 0, 0, 0, 0],
            Some([4, 2, 50]),
        ),
        (
            60,
            &[44, 0, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            Some([4, 1, 48]),
        ),
    ];
    for variant in Variant::ALL {
        for (next, payload, expected) in cases {
            let mut host = Host::ours(variant);
            host.learn(PEER);
            let sent = host.receive(PATH, next, payload);
            let got = sent.first().map(|frame| {
                let error = Packet::read(frame).expect("IPv6");
                assert!(error.is_right() && error.path.to == PEER && error.path.from == US);
                let quoted = v6::frame(PATH, next, payload);
                assert_eq!(error.payload[8..], quoted[14..]);
                [error.payload[0], error.payload[1], error.payload[7]]
            });
            assert_eq!(got, expected, "{variant}: {next}, {payload:?}");
        }
        // The stack limits all answers, as it does over IPv4.
        let mut host = Host::ours(variant);
        host.learn(PEER);
        let answers: usize = (0..2_000)
            .map(|_| host.receive(PATH, 200, &[0; 8]).len())
            .sum();
        assert!((1..1_000).contains(&answers), "{answers}");
    }
}

/// A message of a neighbour about `address`, with an option of its link-layer address if it has
/// one.
fn message(kind: u8, flags: u8, address: Ipv6Addr, option: Option<(u8, Mac)>) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend(address.octets());
    if let Some((kind, mac)) = option {
        message.extend([kind, 1]);
        message.extend(mac);
    }
    message
}

/// As [`router_says`], without the network.
fn router_is_there(mac: Option<Mac>) -> Vec<u8> {
    let mut says = router_says(1800, mac);
    says.truncate(says.len() - 32);
    says
}

/// From a neighbour to us, with a hop limit that proves it.
const NEAR: Path = Path {
    hop_limit: 255,
    ..PATH
};

/// The addresses that these frames ask for, and the link-layer addresses that they are sent to.
fn asked(frames: &[Vec<u8>]) -> Vec<(Ipv6Addr, Mac)> {
    let packets = frames.iter().filter_map(|frame| Packet::read(frame));
    let questions = packets.filter(|packet| packet.next == ICMPV6 && packet.payload[0] == 135);
    let asked = questions.map(|packet| {
        let mut target = [0; 16];
        target.copy_from_slice(&packet.payload[8..24]);
        (target.into(), packet.path.to_mac)
    });
    asked.collect()
}

/// The link-layer address to which a solicitation for `address` is multicast.
fn by_group(address: Ipv6Addr) -> Mac {
    group_mac(solicited_node(address))
}

#[test]
fn a_question_that_does_not_say_who_asks_is_answered_after_asking() {
    for variant in Variant::ALL {
        let mut host = Host::ours(variant);
        let asks = message(135, 0, US, None);
        let sent = host.receive(NEAR, ICMPV6, &asks);
        assert_eq!(asked(&sent), [(PEER, by_group(PEER))], "{variant}");
        assert_eq!(sent.len(), 1);
        let says = message(136, 0x60, PEER, Some((2, PEER_MAC)));
        let sent = host.receive(NEAR, ICMPV6, &says);
        let answer = only(&sent);
        assert_eq!((answer.path.to, answer.path.to_mac), (PEER, PEER_MAC));
        assert_eq!(
            answer.payload[..5],
            [136, 0, answer.payload[2], answer.payload[3], 0x60]
        );
        // Now it is known.
        assert_eq!(only(&host.receive(NEAR, ICMPV6, &asks)).payload[0], 136);
    }
}

#[test]
fn who_answers_no_question_but_is_needed_is_asked_five_seconds_later() {
    let says = message(136, 0x20, PEER, Some((2, PEER_MAC)));
    let asks = message(135, 0, US, Some((1, PEER_MAC)));
    let router_says = [router_is_there(None), router_is_there(Some(PEER_MAC))];
    for variant in Variant::ALL {
        // An unsolicited advertisement releases the waiting datagram.
        let mut host = Host::ours(variant);
        let mut socket = host.sockets().bind_udp(0).unwrap();
        socket.try_send_to(b"x", (PEER, PORT).into()).unwrap();
        assert_eq!(asked(&host.turn()), [(PEER, by_group(PEER))]);
        assert_eq!(only(&host.receive(NEAR, ICMPV6, &says)).next, UDP);
        assert!(asked(&host.pass(Duration::from_millis(4_900))).is_empty());
        let sent = host.pass(Duration::from_secs(3));
        assert_eq!(asked(&sent), [(PEER, PEER_MAC); 3], "{variant}");

        // Likewise for a router.
        let heeds_routers = Ipv6Config::default().duplicate_probes(0);
        let mut host = Host::with(variant, heeds_routers.address(US, 64));
        host.receive(FROM_ROUTER, ICMPV6, &router_says[0]);
        let mut socket = host.sockets().bind_udp(0).unwrap();
        socket.try_send_to(b"x", (FAR, PORT).into()).unwrap();
        assert_eq!(asked(&host.turn()), [(ROUTER, by_group(ROUTER))]);
        let sent = host.receive(FROM_ROUTER, ICMPV6, &router_says[1]);
        assert_eq!(only(&sent).next, UDP);
        assert!(asked(&host.pass(Duration::from_millis(4_900))).is_empty());
        let sent = host.pass(Duration::from_millis(200));
        assert_eq!(asked(&sent), [(ROUTER, PEER_MAC)], "{variant}");

        // An answer of ours to a stale neighbour also verifies the neighbour's address.
        let mut host = Host::ours(variant);
        assert_eq!(only(&host.receive(NEAR, ICMPV6, &asks)).payload[0], 136);
        assert!(asked(&host.pass(Duration::from_millis(4_900))).is_empty());
        let sent = host.pass(Duration::from_millis(200));
        assert_eq!(asked(&sent), [(PEER, PEER_MAC)], "{variant}");
        // Its answer makes it reachable, and the stack asks no more.
        let answers = message(136, 0x60, PEER, Some((2, PEER_MAC)));
        assert!(host.receive(NEAR, ICMPV6, &answers).is_empty());
        assert!(asked(&host.pass(Duration::from_secs(20))).is_empty());
    }
}

#[test]
fn what_neighbours_say_in_fragments_is_ignored() {
    let asks = message(135, 0, US, Some((1, PEER_MAC)));
    let says = message(136, 0x60, PEER, Some((2, PEER_MAC)));
    let [from_peer, from_router] = [NEAR, FROM_ROUTER];
    let messages = [
        (from_peer, asks),
        (from_peer, says),
        (from_router, router_is_there(Some(PEER_MAC))),
    ];
    for variant in Variant::ALL {
        let mut host = Host::ours(variant);
        let mut socket = host.sockets().bind_udp(0).unwrap();
        socket.try_send_to(b"x", (PEER, PORT).into()).unwrap();
        assert_eq!(asked(&host.turn()).len(), 1);
        for (path, message) in &messages {
            // The checksum of the whole.
            let whole = v6::frame(*path, ICMPV6, message);
            let atomic = [&[ICMPV6, 0, 0, 0, 0, 0, 0, 7], &whole[54..]].concat();
            assert!(host.receive(*path, 44, &atomic).is_empty(), "{variant}");
            let first = [&[ICMPV6, 0, 0, 1, 0, 0, 0, 8], &whole[54..70]].concat();
            let rest = [&[ICMPV6, 0, 0, 16, 0, 0, 0, 8], &whole[70..]].concat();
            assert!(host.receive(*path, 44, &first).is_empty());
            assert!(host.receive(*path, 44, &rest).is_empty(), "{variant}");
        }
        let mut to_far = host.sockets().bind_udp(0).unwrap();
        let refused = to_far.try_send_to(b"x", (FAR, PORT).into());
        assert_eq!(refused, Err(SocketError::NoRoute));
        // The stack believes the same message without a fragment header.
        let sent = host.receive(from_peer, ICMPV6, &messages[1].1);
        assert_eq!(only(&sent).next, UDP);
    }
}

#[test]
fn an_atomic_fragment_is_a_packet_by_itself() {
    let datagram = |len: usize| {
        let mut datagram = [
            &[0, 5, 0, PORT as u8, 0, 8 + len as u8, 0, 0][..],
            &vec![9; len],
        ]
        .concat();
        let whole = v6::frame(PATH, UDP, &datagram);
        datagram.copy_from_slice(&whole[54..]);
        datagram
    };
    for variant in Variant::ALL {
        let mut host = Host::ours(variant);
        let mut socket = host.sockets().bind_udp(PORT).unwrap();
        host.turn();
        let long = datagram(24);
        let first = [&[UDP, 0, 0, 1, 0, 0, 0, 7], &long[..16]].concat();
        let atomic = [&[UDP, 0, 0, 0, 0, 0, 0, 7][..], &datagram(5)].concat();
        let rest = [&[UDP, 0, 0, 16, 0, 0, 0, 7], &long[16..]].concat();
        for fragment in [first, atomic, rest] {
            host.receive(PATH, 44, &fragment);
        }
        let mut buffer = [0; 64];
        let mut lens = || socket.try_recv_from(&mut buffer).unwrap().0;
        assert_eq!([lens(), lens()], [5, 24], "{variant}");
    }
}

#[test]
fn what_comes_over_the_link_from_an_address_of_ours_is_martian() {
    let from_us = Path { from: US, ..PATH };
    let echo = [128, 0, 0, 0, 1, 2, 3, 4];
    let cases: [(u8, &[u8]); 5] = [
        (ICMPV6, &echo),
        (ICMPV6, &[129, 0, 0, 0, 1, 2, 3, 4]),
        (44, &[UDP, 0, 0, 1, 0, 0, 0, 1, 0, 5, 0, 53, 0, 24, 0, 0]),
        (200, &[0; 8]),
        (UDP, &[0, 5, 0, 9, 0, 9, 0, 0, 1]),
    ];
    for variant in Variant::ALL {
        let mut host = Host::ours(variant);
        host.learn(PEER);
        for (martians, (next, payload)) in (1..).zip(cases) {
            assert!(host.receive(from_us, next, payload).is_empty(), "{variant}");
            assert_eq!(host.stacks[0].stats().pump.martians, martians, "{next}");
        }
        assert_eq!(host.receive(PATH, ICMPV6, &echo).len(), 1);
    }
}

/// A packet too big about a packet of ours.
fn too_big(mtu: u32, quoted: &[u8]) -> Vec<u8> {
    let mut message = vec![2, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(&quoted[14..quoted.len().min(14 + 1_232)]);
    message
}

/// Sends a long datagram. Returns the bytes of its longest packet, and its frames.
fn send_long(host: &mut Host, socket: &UdpSocket) -> (usize, Vec<Vec<u8>>) {
    socket.send_to(&[1; 3_000], (PEER, 9)).unwrap();
    let sent = host.turn();
    (sent.iter().map(Vec::len).max().expect("a frame") - 14, sent)
}

#[test]
fn datagrams_shrink_to_what_the_path_takes_and_never_below_1280() {
    for variant in Variant::ALL {
        let mut host = Host::ours(variant);
        host.learn(PEER);
        let socket = host.sockets().bind_udp(53).unwrap();
        let (most, sent) = send_long(&mut host, &socket);
        assert_eq!(most, 1_496);
        host.receive(PATH, ICMPV6, &too_big(1_279, &sent[0]));
        let most = send_long(&mut host, &socket).0;
        assert_eq!(most, 1_496, "RFC 8201 section 4");
        host.receive(PATH, ICMPV6, &too_big(1_400, &sent[0]));
        let most = send_long(&mut host, &socket).0;
        assert!((1_392..=1_400).contains(&most), "{variant}: {most}");
    }
}

#[test]
fn what_routers_say_of_a_connection_holds_for_datagrams() {
    for variant in Variant::ALL {
        let mut pair = Pair::new(variant);
        let (mut ours, theirs) = pair.connect();
        let host = &mut pair.0;
        let socket = host.sockets().bind_udp(53).unwrap();
        ours.try_write(&[1; 3_000]).unwrap();
        let sent = host.turn();
        assert_eq!(sent[0].len() - 14, 1_500);
        // A forger must know the ports and a sequence number in flight.
        for at in [1, 4] {
            let mut forged = sent[0].clone();
            forged[v6::LOWER + at] ^= 0x40;
            host.receive(PATH, ICMPV6, &too_big(1_400, &forged));
            assert_eq!(send_long(host, &socket).0, 1_496, "{variant}");
        }
        host.receive(PATH, ICMPV6, &too_big(1_400, &sent[0]));
        host.turn();
        let most = send_long(host, &socket).0;
        assert!((1_392..=1_400).contains(&most), "{variant}: {most}");
        drop(theirs);
    }
}

/// RFC 8201 section 4: a packet too big may be about any packet; one path has one MTU.
#[test]
fn what_routers_say_of_echo_replies_and_fragments_holds_for_all() {
    for variant in Variant::ALL {
        for kind in ["echo", "fragmented echo", "second fragment of a datagram"] {
            let mut pair = Pair::new(variant);
            let (mut ours, theirs) = pair.connect();
            let host = &mut pair.0;
            let socket = host.sockets().bind_udp(53).unwrap();
            let mut request = vec![128, 0, 0, 0, 1, 2, 3, 4];
            request.resize(1_400, 9);
            // Nothing of that size has left yet.
            let back = Path {
                from: US,
                to: PEER,
                ..PATH
            };
            let reply = v6::frame(back, ICMPV6, &request);
            host.receive(PATH, ICMPV6, &too_big(1_300, &reply));
            assert_eq!(send_long(host, &socket).0, 1_496, "{variant}, {kind}");
            let sent = match kind {
                "echo" => host.receive(PATH, ICMPV6, &request),
                "fragmented echo" => {
                    let mut all = Vec::new();
                    request.resize(3_000, 9);
                    let whole = v6::frame(PATH, ICMPV6, &request);
                    for (at, more) in [(0, 1), (1_000, 1), (2_000, 0)] {
                        let [a, b] = (at as u16 | more).to_be_bytes();
                        let end = if more == 1 { at + 1_000 } else { 3_000 };
                        let piece = [&[ICMPV6, 0, a, b, 0, 0, 0, 5], &whole[54 + at..54 + end]];
                        all.extend(host.receive(PATH, 44, &piece.concat()));
                    }
                    all
                }
                _ => send_long(host, &socket).1.split_off(1),
            };
            host.receive(PATH, ICMPV6, &too_big(1_300, &sent[0]));
            let most = send_long(host, &socket).0;
            assert!((1_292..=1_300).contains(&most), "{variant}, {kind}: {most}");
            let most = |pair: &mut Pair, stream: &mut TcpStream| {
                stream.try_write(&[7; 20_000]).unwrap();
                let passed = pair.settle();
                let segments = passed.iter().filter(|frame| frame[20] == TCP);
                segments.map(Vec::len).max().expect("a segment") - 14
            };
            assert_eq!(most(&mut pair, &mut ours), 1_300, "{variant}, {kind}");
            // Later connections use it, too.
            let listener = pair.1.sockets().listen(PORT, 4).unwrap();
            let to = SocketAddr::new(PEER.into(), PORT);
            let mut opening = pair.0.sockets().begin_connect(to).unwrap();
            pair.settle();
            let mut later = opening.try_finish().unwrap().expect("it is open");
            let accepted = listener.try_accept().unwrap();
            assert_eq!(most(&mut pair, &mut later), 1_300, "{variant}, {kind}");
            drop((theirs, accepted));
        }
    }
}

/// RFC 4861 section 6.3.4.
#[test]
fn packets_begin_with_the_hop_limit_and_are_as_long_as_routers_say() {
    let mut says = router_says(1800, Some(PEER_MAC));
    says[4] = 17;
    says.extend([5, 1, 0, 0, 0, 0, 0x05, 0x78]);
    for variant in Variant::ALL {
        for heeds in [true, false] {
            let config = hand::ipv6().address(US, 64).autoconfigure(heeds);
            let mut host = Host::with(variant, config);
            host.learn(PEER);
            host.pass(Duration::from_secs(3));
            host.receive(FROM_ROUTER, ICMPV6, &says);
            let limit = if heeds { 17 } else { 64 };
            let socket = host.sockets().bind_udp(53).unwrap();
            let (most, sent) = send_long(&mut host, &socket);
            let expected = if heeds { 1_400 } else { 1_496 };
            assert_eq!(most, expected, "{variant}");
            assert!(sent.iter().all(|frame| frame[21] == limit), "{variant}");
            let request = [128, 0, 0, 0, 1, 2, 3, 4];
            let reply = host.receive(PATH, ICMPV6, &request);
            assert_eq!(only(&reply).path.hop_limit, limit);
            let to = SocketAddr::new(PEER.into(), PORT);
            let _opening = host.sockets().begin_connect(to).unwrap();
            let syn = host.turn();
            assert_eq!(only(&syn).path.hop_limit, limit);
            // The announced MSS follows, as in Linux.
            let mss: u16 = if heeds { 1_340 } else { 1_440 };
            let [high, low] = mss.to_be_bytes();
            assert_eq!(only(&syn).payload[20..24], [2, 4, high, low], "{variant}");
        }
    }
}

/// RFC 4861 sections 8.1 and 8.3.
#[test]
fn a_redirect_counts_from_who_forwards_and_moves_what_is_under_way() {
    let better = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xc);
    let better_mac = [2, 0, 0, 0, 0, 0xc];
    let redirect = |target: Ipv6Addr, destination: Ipv6Addr| {
        let mut says = vec![137, 0, 0, 0, 0, 0, 0, 0];
        says.extend(target.octets());
        says.extend(destination.octets());
        says.extend([2, 1]);
        says.extend(better_mac);
        says
    };
    let to_us = |from, hop_limit| Path {
        from,
        hop_limit,
        to: US,
        ..PATH
    };
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 5);
    let ignored = [
        (to_us(better, 255), redirect(better, FAR)),
        (to_us(ROUTER, 254), redirect(better, FAR)),
        (to_us(ROUTER, 255), redirect(US, FAR)),
        (to_us(ROUTER, 255), redirect(better, group)),
        (to_us(ROUTER, 255), redirect(better, PEER)),
        (to_us(ROUTER, 255), redirect(better, US)),
    ];
    for variant in Variant::ALL {
        for heeds in [true, false] {
            let config = Ipv6Config::default().duplicate_probes(0).address(US, 64);
            let mut host = Host::with(variant, config.redirects(heeds));
            host.receive(FROM_ROUTER, ICMPV6, &router_says(1800, Some(PEER_MAC)));
            host.pass(Duration::from_secs(3));
            let far = SocketAddr::new(FAR.into(), PORT);
            let _opening = host.sockets().begin_connect(far).unwrap();
            assert_eq!(only(&host.turn()).path.to_mac, PEER_MAC);
            for (path, says) in &ignored {
                assert!(host.receive(*path, ICMPV6, says).is_empty());
            }
            let again = host.pass(Duration::from_millis(1_500));
            assert_eq!(only(&again).path.to_mac, PEER_MAC, "{variant}");
            host.receive(to_us(ROUTER, 255), ICMPV6, &redirect(better, FAR));
            let again = host.pass(Duration::from_millis(2_000));
            let expected = if heeds { better_mac } else { PEER_MAC };
            let syns = again.iter().filter_map(|frame| Packet::read(frame));
            let mut syns = syns.filter(|packet| packet.next == TCP);
            let syn = syns.next().expect("a SYN");
            assert_eq!(syn.path.to_mac, expected, "{variant}, {heeds}");
        }
    }
}

#[test]
fn listeners_and_sockets_take_the_families_that_they_are_bound_to() {
    for (families, v4, v6) in [
        (Families::Both, true, true),
        (Families::V4, true, false),
        (Families::V6, false, true),
    ] {
        let mut pair = Pair::new(Variant::Replicated(2));
        let theirs = Setup::new(Ipv4Addr::new(10, 0, 0, 2).into(), 24, [2, 7]);
        pair.1 = Host::new(
            Variant::Single,
            PEER_MAC,
            theirs.ipv6(hand::ipv6().address(PEER, 64)),
        );
        let listener = pair.0.sockets().listen_for(families, PORT, 4).unwrap();
        for (to, takes) in [(Ipv4Addr::new(10, 0, 0, 1).into(), v4), (US.into(), v6)] {
            let to = SocketAddr::new(to, PORT);
            let mut opening = pair.1.sockets().begin_connect(to).unwrap();
            pair.settle();
            match opening.try_finish() {
                Ok(Some(_)) => assert!(takes, "{families:?}"),
                other => {
                    assert!(!takes, "{families:?}");
                    assert_eq!(other.err(), Some(SocketError::Refused));
                }
            }
            assert_eq!(listener.try_accept().is_ok(), takes);
        }
    }
}

#[test]
fn a_stack_without_ipv6_says_and_answers_nothing() {
    for variant in Variant::ALL {
        let setup = Setup::new(Ipv4Addr::new(10, 0, 0, 1).into(), 24, [1, 7]);
        let mut host = Host::new(variant, MAC, setup);
        assert!(host.pass(Duration::from_secs(10)).is_empty());
        assert!(
            host.receive(PATH, ICMPV6, &[128, 0, 0, 0, 0, 0, 0, 0])
                .is_empty()
        );
        let to = SocketAddr::new(PEER.into(), PORT);
        let refused = host.sockets().begin_connect(to).unwrap_err();
        assert_eq!(refused, SocketError::NoRoute);
    }
}

#[test]
fn segments_for_addresses_that_are_not_ours_reach_no_listener() {
    let mut syn = vec![
        0x0f, 0xa0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0,
    ];
    for variant in Variant::ALL {
        let mut host = Host::ours(variant);
        let _listener = host.sockets().listen(PORT, 4).unwrap();
        host.learn(PEER);
        for to in [FAR, PEER, Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9)] {
            let from = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 3);
            assert!(
                host.receive(Path { to, from, ..PATH }, TCP, &syn)
                    .is_empty()
            );
        }
        let sent = host.receive(PATH, TCP, &syn);
        assert_eq!(only(&sent).payload[13], 0x12, "{variant}");
        syn[1] += 1;
    }
}

#[test]
fn a_prefix_or_address_that_cannot_be_is_refused() {
    let (device, _) = dominoes_drivers::memory::pair(MemoryConfig::default());
    let config = hand::ipv6().address(Ipv6Addr::LOCALHOST, 64);
    let setup = Setup::new(Ipv4Addr::new(10, 0, 0, 1).into(), 24, [1, 7]);
    assert!(
        Variant::Single
            .build(setup.ipv6(config), Box::new(device))
            .is_err()
    );
    let (device, _) = dominoes_drivers::memory::pair(MemoryConfig::default());
    let mut setup = Setup::new(US.into(), 64, [1, 7]);
    setup.limits.mtu = 1279;
    assert!(Variant::Single.build(setup, Box::new(device)).is_err());
    let (device, _) = dominoes_drivers::memory::pair(MemoryConfig::default());
    let setup = Setup::new(US.into(), 129, [1, 7]);
    assert!(Variant::Single.build(setup, Box::new(device)).is_err());
}

/// Frames of all kinds that a link may carry, each changed at some bytes, cut off, and with a right
/// checksum or not.
#[test]
fn whatever_arrives_an_echo_is_answered_afterwards() {
    let says = router_says(1800, Some(PEER_MAC));
    let asks = message(135, 0, US, Some((1, PEER_MAC)));
    let has = message(136, 0x60, US, Some((2, PEER_MAC)));
    let segment = [
        0x0f, 0xa0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0,
    ];
    let quoted = v6::frame(
        Path {
            from: US,
            to: PEER,
            ..PATH
        },
        TCP,
        &segment,
    );
    let error = too_big(1_300, &quoted);
    let query = [&[130, 0, 0, 0, 0, 10, 0, 0][..], &[0; 20]].concat();
    let behind_options = [&[ICMPV6, 0, 5, 2, 0, 0, 1, 0], &query[..]].concat();
    let kinds: [(u8, Vec<u8>); 10] = [
        (ICMPV6, says),
        (ICMPV6, asks),
        (ICMPV6, has),
        (ICMPV6, error),
        (ICMPV6, vec![128, 0, 0, 0, 1, 2, 3, 4]),
        (0, behind_options),
        (TCP, segment.to_vec()),
        (UDP, vec![0, 5, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4]),
        (44, vec![UDP, 0, 0, 1, 0, 0, 0, 1, 0, 5, 0, 53, 0, 24, 0, 0]),
        (60, vec![43, 0, 1, 4, 0, 0, 0, 0, 59, 0, 0, 0, 0, 0, 0, 0]),
    ];
    for (seed, variant) in Variant::ALL.into_iter().enumerate() {
        let mut rng = Rng::new(0x0060 + seed as u64);
        let mut host = Host::with(
            variant,
            Ipv6Config::default().duplicate_probes(0).address(US, 64),
        );
        let _listener = host.sockets().listen(PORT, 4).unwrap();
        let _socket = host.sockets().bind_udp(53).unwrap();
        for _ in 0..2_000 {
            let (next, payload) = &kinds[rng.below(kinds.len() as u64) as usize];
            let mut payload = payload.clone();
            for _ in 0..rng.below(3) {
                let at = rng.below(payload.len() as u64) as usize;
                payload[at] = rng.next() as u8;
            }
            let path = Path {
                from: [PEER, ROUTER, Ipv6Addr::UNSPECIFIED][rng.below(3) as usize],
                hop_limit: [255, 64, 1][rng.below(3) as usize],
                ..PATH
            };
            let mut frame = v6::frame(path, *next, &payload);
            if rng.below(4) == 0 {
                let at = 14 + rng.below(frame.len() as u64 - 14) as usize;
                frame[at] = rng.next() as u8;
            }
            if rng.below(8) == 0 {
                frame.truncate(rng.below(frame.len() as u64) as usize);
            }
            host.script.push(frame);
            host.turn();
            if rng.below(50) == 0 {
                host.pass(Duration::from_secs(rng.below(100)));
            }
        }
        host.pass(Duration::from_secs(60));
        host.learn(PEER);
        let sent = host.receive(PATH, ICMPV6, &[128, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(only(&sent).payload[0], 129, "{variant}");
    }
}
