//! The router, driven by hand: the rules of RFC 1812 as a table, and packets that pass through it.

use std::net::Ipv4Addr;

use dominoes_drivers::memory::{self, ManualDevice, MemoryConfig, Script};
use dominoes_drivers::nic::{Card, Firmware, Nic, NicConfig};
use dominoes_drivers::{Device, Frame, RxChecksum};
use dominoes_netstack::router::{Router, RouterBuilder, RouterStats};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::{Setup, single::Single};
use dominoes_netstack::{ConfigError, Route, StackError};
use dominoes_testkit::packet::{
    self, ACK, Address, ETHERNET, EVERY_MAC, ICMP, LOWER, Path, Right, Segment, UDP, finish, mac_of,
};
use proptest::prelude::*;

use crate::support::Ends;
use Becomes::{Cut, Dropped, Echoed, Error, Forwarded, Redirected};

/// The interfaces: address and MTU.
const PORTS: [(Address, usize); 3] = [
    ([10, 0, 1, 254], 1500),
    ([10, 0, 2, 254], 1500),
    ([10, 0, 3, 254], 1280),
];
/// A host at the first interface.
const HOST: Address = [10, 0, 1, 1];
/// Neighbours that the router knows.
const NEIGHBORS: [(usize, Address); 5] = [
    (0, HOST),
    (0, [10, 0, 1, 9]),
    (1, [10, 0, 2, 1]),
    (1, [10, 0, 2, 9]),
    (2, [10, 0, 3, 1]),
];

/// A router with scripted devices as interfaces.
struct Fixture {
    router: Router,
    scripts: Vec<Script>,
    now: Instant,
}

fn route(network: Address, prefix: u8, via: Address) -> Route {
    Route {
        network: network.into(),
        prefix,
        via: via.into(),
        metric: 0,
    }
}

fn device(index: usize, tso: usize) -> (ManualDevice, Script) {
    let (address, mtu) = PORTS[index];
    let config = MemoryConfig::default().mtu(mtu).tso4_max_bytes(tso);
    memory::scripted_with(config.macs(mac_of(address), [0; 6]))
}

impl Fixture {
    fn new(build: impl FnOnce(RouterBuilder) -> RouterBuilder) -> Fixture {
        Fixture::over(0, build)
    }

    /// With devices that divide frames of up to `tso` bytes.
    fn over(tso: usize, build: impl FnOnce(RouterBuilder) -> RouterBuilder) -> Fixture {
        let mut builder = Router::builder().secret([1, 2]);
        let mut scripts = Vec::new();
        for (index, (address, _)) in PORTS.iter().enumerate() {
            let (device, script) = device(index, tso);
            let [a, b, c, d] = address;
            builder = builder.interface(&format!("{a}.{b}.{c}.{d}/24"), device);
            scripts.push(script);
        }
        let builder = builder
            // Would lead to another neighbour if its metric were not higher.
            .route(Route {
                metric: 1,
                ..route([192, 0, 2, 0], 24, [10, 0, 3, 1])
            })
            .route(route([192, 0, 2, 0], 24, [10, 0, 2, 9]))
            .route(route([192, 0, 2, 128], 25, [10, 0, 3, 1]))
            .route(route([198, 51, 100, 0], 24, [10, 0, 1, 9]));
        let mut fixture = Fixture {
            router: build(builder).build().expect("a router"),
            scripts,
            now: Instant::from_millis(1_000),
        };
        for (port, address) in NEIGHBORS {
            let request = packet::arp_request(Path::new(address, PORTS[port].0));
            fixture.scripts[port].push(request);
        }
        fixture.left();
        fixture
    }

    /// Runs the router until it is idle. Returns the frames that left each interface.
    fn left(&mut self) -> Vec<Vec<Vec<u8>>> {
        while self.router.turn(self.now) > 0 {}
        let sent = self.scripts.iter().map(|script| {
            let frames = script.take_sent().into_iter();
            frames.map(|(bytes, _)| bytes).collect()
        });
        sent.collect()
    }

    /// The frames that leave after a frame arrives at the first interface.
    fn pass(&mut self, frame: Vec<u8>) -> Vec<Vec<Vec<u8>>> {
        self.scripts[0].push(frame);
        self.left()
    }
}

/// How the router treats a packet.
#[derive(Clone, Copy, Debug)]
enum Becomes {
    /// It leaves an interface for a neighbour.
    Forwarded(usize, Address),
    /// It leaves an interface in this many fragments.
    Cut(usize, usize),
    /// Its sender gets an ICMP message: type, code, and the four bytes after the checksum.
    Error([u8; 2], [u8; 4]),
    /// It leaves the interface at which it arrived, and its sender is redirected to the nearer
    /// router.
    Redirected(Address),
    /// It is answered.
    Echoed,
    /// Nothing leaves, and this counter is incremented.
    Dropped(&'static str),
}

/// A datagram of the host with `len` bytes of payload.
fn datagram(to: Address, len: usize) -> Vec<u8> {
    let path = Path::new(HOST, to).to_mac(mac_of(PORTS[0].0));
    packet::udp(path, (4000, 9), &vec![0x5a; len])
}

/// A datagram with a VLAN tag.
fn tagged(control: u16) -> Vec<u8> {
    let mut frame = datagram(NEAR, 8);
    let [a, b] = control.to_be_bytes();
    frame.splice(12..12, [0x81, 0, a, b]);
    frame
}

/// A datagram with a modified header.
fn changed(to: Address, len: usize, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = datagram(to, len);
    change(&mut frame);
    finish(&mut frame, Right::ALL);
    frame
}

/// A datagram of which a part is wrong.
fn spoiled(spoil: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = datagram(NEAR, 8);
    spoil(&mut frame);
    frame
}

/// A frame with the padding of its link.
fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    frame.resize(60, 0xee);
    frame
}

/// A fragment with this time to live.
fn piece(ttl: u8, place: (usize, bool), payload: &[u8]) -> Vec<u8> {
    let path = Path::new(HOST, NEAR).to_mac(mac_of(PORTS[0].0));
    let mut frame = packet::fragment(path, UDP, 9, place, payload);
    frame[22] = ttl;
    finish(&mut frame, Right::NETWORK);
    frame
}

/// A datagram with options in its header.
fn with_options(to: Address, options: &[u8]) -> Vec<u8> {
    changed(to, 8, |frame| {
        frame[14] += (options.len() / 4) as u8;
        frame.splice(LOWER..LOWER, options.iter().copied());
    })
}

fn from(source: Address) -> Vec<u8> {
    changed(NEAR, 8, |frame| frame[26..30].copy_from_slice(&source))
}

fn echo(to: Address, len: usize) -> Vec<u8> {
    let path = Path::new(HOST, to).to_mac(mac_of(PORTS[0].0));
    packet::ip(path, ICMP, &packet::echo(7, &vec![3; len]))
}

const NEAR: Address = [10, 0, 2, 1];
const NARROW: Address = [10, 0, 3, 1];
const DONT_FRAGMENT: u8 = 0x40;

/// A rule, its section, a packet, and its treatment.
type Rule = (&'static str, &'static str, fn() -> Vec<u8>, Becomes);

/// A rule in a line.
macro_rules! rules {
    ($($what:literal, $section:literal: $packet:expr => $becomes:expr;)*) => {
        &[$(($what, $section, || $packet, $becomes)),*]
    };
}

const RULES: &[Rule] = rules! {
    "a neighbour on another link", "RFC 1812 5.2.1.2": datagram(NEAR, 18) => Forwarded(1, NEAR);
    "behind a gateway", "RFC 1812 5.2.4.3":
        datagram([192, 0, 2, 1], 18) => Forwarded(1, [10, 0, 2, 9]);
    "the longest prefix", "RFC 1812 5.2.4.3":
        datagram([192, 0, 2, 200], 18) => Forwarded(2, NARROW);
    "the longest packet", "RFC 1812 4.2.2.7": datagram(NEAR, 1472) => Forwarded(1, NEAR);
    "options pass", "RFC 1812 5.2.2": with_options(NEAR, &[1, 7, 3, 4]) => Forwarded(1, NEAR);
    "padding of the link is cut off", "RFC 894": padded(datagram(NEAR, 2)) => Forwarded(1, NEAR);
    "fragments pass", "RFC 1812 5.2.6": piece(64, (800, true), &[1; 800]) => Forwarded(1, NEAR);
    "no route", "RFC 1812 5.2.7.1": datagram([203, 0, 113, 1], 18) => Error([3, 0], [0; 4]);
    "time to live of 1", "RFC 1812 5.3.1":
        changed(NEAR, 18, |f| f[22] = 1) => Error([11, 0], [0; 4]);
    "time to live of 0", "RFC 1812 5.3.1":
        changed(NEAR, 18, |f| f[22] = 0) => Error([11, 0], [0; 4]);
    "time to live of 2", "RFC 1812 5.3.1": changed(NEAR, 18, |f| f[22] = 2) => Forwarded(1, NEAR);
    "too long, and not to be cut", "RFC 1191 4":
        changed(NARROW, 1472, |f| f[20] = DONT_FRAGMENT) => Error([3, 4], [0, 0, 5, 0]);
    "too long", "RFC 791 3.2": datagram(NARROW, 1472) => Cut(2, 2);
    "nearly too long", "RFC 791 3.2": datagram(NARROW, 1252) => Forwarded(2, NARROW);
    "a nearer router", "RFC 1812 5.2.7.2":
        datagram([198, 51, 100, 7], 18) => Redirected([10, 0, 1, 9]);
    "an echo request to the interface", "RFC 1812 4.3.3.6": echo([10, 0, 1, 254], 56) => Echoed;
    "an echo request to another interface", "RFC 1812 4.3.3.6": echo([10, 0, 3, 254], 56) => Echoed;
    "a port of the router", "RFC 1122 4.1.3.1":
        datagram([10, 0, 2, 254], 18) => Error([3, 3], [0; 4]);
    "a protocol of the router", "RFC 1122 3.2.2.1":
        changed([10, 0, 2, 254], 18, |f| f[23] = 99) => Error([3, 2], [0; 4]);
    "from this host", "RFC 1812 5.3.7": from([127, 0, 0, 1]) => Dropped("martians");
    "from this network", "RFC 1812 5.3.7": from([0, 1, 2, 3]) => Dropped("martians");
    "from a group", "RFC 1812 5.3.7": from([224, 0, 0, 1]) => Dropped("martians");
    "from all hosts", "RFC 1812 5.3.7": from([255; 4]) => Dropped("martians");
    "from all hosts of the link", "RFC 1812 5.3.7": from([10, 0, 1, 255]) => Dropped("martians");
    "from all hosts of another link", "RFC 1812 5.3.7":
        from([10, 0, 2, 255]) => Dropped("martians");
    "from the interface itself", "RFC 1812 5.3.7": from([10, 0, 1, 254]) => Dropped("martians");
    "from another interface", "RFC 1812 5.3.7": from([10, 0, 2, 254]) => Dropped("martians");
    "to this host", "RFC 1812 5.3.7": datagram([127, 0, 0, 1], 8) => Dropped("martians");
    "to this network", "RFC 1812 5.3.7": datagram([0, 0, 0, 9], 8) => Dropped("martians");
    "to what is not in use", "RFC 1812 5.3.7": datagram([250, 0, 0, 9], 8) => Dropped("martians");
    "to all hosts", "RFC 1812 5.3.5.1": datagram([255; 4], 8) => Dropped("not_forwarded");
    "to all hosts of another link", "RFC 2644":
        datagram([10, 0, 2, 255], 8) => Dropped("not_forwarded");
    "to a group", "RFC 1812 5.2.1.3": datagram([224, 0, 0, 9], 8) => Dropped("not_forwarded");
    "link-local source", "RFC 3927 7": from([169, 254, 1, 1]) => Dropped("not_forwarded");
    "link-local destination", "RFC 3927 7":
        datagram([169, 254, 1, 1], 8) => Dropped("not_forwarded");
    "one host in a frame to all", "RFC 1812 5.3.4":
        spoiled(|f| f[..6].copy_from_slice(&EVERY_MAC)) => Dropped("not_forwarded");
    "for another station", "RFC 1812 3.3.3": spoiled(|f| f[5] ^= 1) => Dropped("not_ours");
    "a wrong checksum", "RFC 1812 5.2.2": spoiled(|f| f[24] ^= 1) => Dropped("malformed");
    "another version", "RFC 1812 5.2.2": changed(NEAR, 8, |f| f[14] = 0x55) => Dropped("malformed");
    "a header that is too short", "RFC 1812 5.2.2":
        spoiled(|f| f[14] = 0x44) => Dropped("malformed");
    "longer than its frame", "RFC 1812 5.2.2": spoiled(|f| f.truncate(40)) => Dropped("malformed");
    "an option without an end", "RFC 791 3.1":
        with_options(NEAR, &[7, 40, 4, 0]) => Dropped("malformed");
    "a loose source route", "RFC 7126 4.3":
        with_options(NEAR, &[131, 7, 4, 10, 0, 2, 1, 0]) => Dropped("source_routed");
    "a strict source route", "RFC 7126 4.4":
        with_options(NEAR, &[1, 137, 7, 4, 10, 0, 2, 1]) => Dropped("source_routed");
    "an error that expires", "RFC 1812 4.3.2.7": expiring_error() => Dropped("expired");
    "a later fragment that expires", "RFC 1812 4.3.2.7":
        piece(1, (800, false), &[1; 8]) => Dropped("expired");
};

/// An ICMP error about a datagram of another host, with a time to live of 1.
fn expiring_error() -> Vec<u8> {
    let about = packet::quote(Path::new(NEAR, HOST), UDP, 36, (1, 2), 0);
    let path = Path::new(HOST, NEAR).to_mac(mac_of(PORTS[0].0));
    let mut frame = packet::ip(path, ICMP, &packet::icmp_error([3, 3], 0, &about));
    frame[22] = 1;
    finish(&mut frame, Right::NETWORK);
    frame
}

/// The packet of a frame, without link padding.
fn packet_of(frame: &[u8]) -> &[u8] {
    let len = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    &frame[ETHERNET..ETHERNET + len]
}

/// Checks that `frame` is `sent`, one hop further, from interface `port` to the neighbour at `hop`.
fn check_forwarded(sent: &[u8], frame: &[u8], port: usize, hop: Address) {
    assert_eq!(frame[..6], mac_of(hop), "the next hop");
    assert_eq!(frame[6..12], mac_of(PORTS[port].0), "the interface");
    let mut expected = packet_of(sent).to_vec();
    expected[8] -= 1;
    let mut whole = [&frame[..ETHERNET], &expected].concat();
    finish(&mut whole, Right::NETWORK);
    assert_eq!(frame, whole);
}

/// Checks that `frame` is an ICMP message from the first interface to the host about `sent`.
fn check_error(sent: &[u8], frame: &[u8], numbers: [u8; 2], head: [u8; 4]) {
    let ends = [&PORTS[0].0[..], &HOST[..]].concat();
    assert_eq!(
        (&frame[26..34], &frame[..6]),
        (&ends[..], &mac_of(HOST)[..])
    );
    assert_eq!((frame[23], frame[15]), (ICMP, 0xc0), "internetwork control");
    assert_eq!(packet::sum(&frame[ETHERNET..LOWER]), 0xffff);
    assert_eq!(packet::sum(&frame[LOWER..]), 0xffff);
    assert_eq!(frame[LOWER..LOWER + 2], numbers);
    assert_eq!(frame[LOWER + 4..LOWER + 8], head);
    let quoted = &frame[LOWER + 8..];
    assert!(frame.len() <= ETHERNET + 576 && quoted.len() >= 28);
    assert!(
        packet_of(sent).starts_with(quoted),
        "the packet as it arrived"
    );
}

#[test]
fn every_rule_of_forwarding() {
    for (what, section, packet, becomes) in RULES {
        println!("{what} ({section})");
        let mut fixture = Fixture::new(|builder| builder);
        let before = fixture.router.stats();
        let sent = packet();
        let left = fixture.pass(sent.clone());
        let counts = left.iter().map(Vec::len).collect::<Vec<_>>();
        let only = |port: usize, count: usize| {
            let mut expected = vec![0; PORTS.len()];
            expected[port] = count;
            assert_eq!(counts, expected, "frames that leave");
        };
        match *becomes {
            Forwarded(port, hop) => {
                only(port, 1);
                check_forwarded(&sent, &left[port][0], port, hop);
            }
            Cut(port, pieces) => {
                only(port, pieces);
                let mut whole = left[port][0][..LOWER].to_vec();
                whole.extend(packet::reassemble(&left[port]));
                assert_eq!(whole[LOWER..], sent[LOWER..]);
                assert_eq!(whole[22], sent[22] - 1);
            }
            Error(numbers, head) => {
                only(0, 1);
                check_error(&sent, &left[0][0], numbers, head);
            }
            Redirected(hop) => {
                only(0, 2);
                check_error(&sent, &left[0][0], [5, 1], hop);
                check_forwarded(&sent, &left[0][1], 0, hop);
            }
            Echoed => {
                only(0, 1);
                let reply = &left[0][0];
                assert_eq!(reply[LOWER..LOWER + 2], [0, 0]);
                assert_eq!(
                    (&reply[26..30], &reply[30..34]),
                    (&sent[30..34], &sent[26..30])
                );
                assert_eq!(packet::sum(&reply[LOWER..]), 0xffff);
                assert_eq!(reply[LOWER + 4..], sent[LOWER + 4..]);
            }
            Dropped(counter) => {
                assert_eq!(counts, [0; PORTS.len()], "nothing leaves");
                let count = |stats: &RouterStats| {
                    let found = stats.named().find(|(name, _)| *name == counter);
                    found.expect("a counter").1
                };
                let after = fixture.router.stats();
                assert_eq!(count(&after) - count(&before), 1, "{after:?}");
            }
        }
    }
}

/// IEEE 802.1Q section 6.9.1.
#[test]
fn a_tag_without_a_vlan_is_no_tag() {
    let mut fixture = Fixture::new(|builder| builder);
    let left = fixture.pass(tagged(0x6000));
    assert_eq!(left[1].len(), 1);
    check_forwarded(&datagram(NEAR, 8), &left[1][0], 1, NEAR);
    let left = fixture.pass(tagged(0x6001));
    assert!(left.iter().all(Vec::is_empty));
    assert_eq!(fixture.router.stats().not_ours, 1);
}

#[test]
fn a_source_behind_another_interface_is_dropped_if_sources_are_validated() {
    for validate in [false, true] {
        let mut fixture = Fixture::new(|builder| builder.validate_source(validate));
        let left = fixture.pass(from([10, 0, 3, 1]));
        assert_eq!(left[1].len(), usize::from(!validate));
        assert_eq!(fixture.router.stats().spoofed, u64::from(validate));
        // A host on the interface's own link, and one reached through a gateway there.
        for source in [HOST, [198, 51, 100, 3]] {
            assert_eq!(fixture.pass(from(source))[1].len(), 1);
        }
    }
}

#[test]
fn packets_wait_for_a_neighbour_and_are_reported_if_it_does_not_answer() {
    let mut fixture = Fixture::new(|builder| builder);
    let unknown = [10, 0, 2, 77];
    let sent = datagram(unknown, 18);
    let left = fixture.pass(sent.clone());
    assert_eq!(left[1].len(), 1);
    assert_eq!(packet::asked(&left[1][0]), Some(unknown));
    fixture.scripts[1].push(packet::arp_reply(Path::new(unknown, PORTS[1].0)));
    let left = fixture.left();
    check_forwarded(&sent, &left[1][0], 1, unknown);

    let silent = [10, 0, 2, 78];
    let left = fixture.pass(datagram(silent, 18));
    assert_eq!(packet::asked(&left[1][0]), Some(silent));
    let mut asked = 1;
    let error = loop {
        fixture.now = fixture.router.next_deadline();
        let left = fixture.left();
        asked += left[1].len();
        if let Some(error) = left[0].first() {
            break error.clone();
        }
        assert!(asked < 10);
    };
    assert_eq!(asked, 3);
    assert_eq!(
        error[LOWER..LOWER + 2],
        [3, 1],
        "host unreachable (RFC 1812 5.2.7.1)"
    );
    assert_eq!(fixture.router.stats().unresolved, 1);
}

#[test]
fn errors_are_limited_and_echo_requests_are_put_together_and_answered_in_pieces() {
    let mut fixture = Fixture::new(|builder| builder.errors_per_second(1000, 10));
    for _ in 0..100 {
        fixture.scripts[0].push(changed(NEAR, 18, |frame| frame[22] = 1));
    }
    let left = fixture.left();
    let stats = fixture.router.stats();
    assert!((5..=15).contains(&left[0].len()), "{}", left[0].len());
    assert_eq!(stats.reports, left[0].len() as u64);
    assert_eq!(stats.reports + stats.reports_limited, 100);
    assert_eq!(stats.expired, 100);

    let path = Path::new(HOST, PORTS[2].0).to_mac(mac_of(PORTS[0].0));
    let message = packet::echo(1, &[9; 4000]);
    for piece in packet::fragments(path, ICMP, 5, &message, 1480) {
        fixture.scripts[0].push(piece);
    }
    let left = fixture.left();
    assert_eq!(left[0].len(), 3);
    assert_eq!(packet::reassemble(&left[0])[4..], message[4..]);
}

#[test]
fn errors_about_a_host_do_not_use_up_reports_that_its_packets_are_too_long() {
    let mut fixture = Fixture::new(|builder| builder);
    for _ in 0..100 {
        fixture.scripts[0].push(changed(NEAR, 18, |frame| frame[22] = 1));
    }
    let expired = fixture.left()[0].len();
    assert!((5..=15).contains(&expired), "{expired}");
    for _ in 0..60 {
        fixture.scripts[0].push(changed(NARROW, 1472, |frame| frame[20] = DONT_FRAGMENT));
    }
    assert_eq!(fixture.left()[0].len(), 60);
}

#[test]
fn the_router_announces_and_defends_its_addresses_and_answers_for_no_other() {
    let (device, script) = device(0, 0);
    let builder = Router::builder()
        .secret([1, 2])
        .interface("10.0.1.254/24", device);
    let mut router = builder.build().expect("a router");
    let now = Instant::from_millis(1);
    while router.turn(now) > 0 {}
    let announced = script.take_sent();
    assert_eq!(packet::asked(&announced[0].0), Some(PORTS[0].0));
    let path = Path::new(HOST, PORTS[0].0);
    for (to, answers) in [(PORTS[0].0, 1), (PORTS[1].0, 0), ([10, 0, 1, 7], 0)] {
        script.push(packet::arp_request(Path { to, ..path }));
        while router.turn(now) > 0 {}
        assert_eq!(script.take_sent().len(), answers, "{to:?}");
    }
    for defences in [1, 0] {
        let claim = path.source(PORTS[0].0);
        script.push(packet::arp_request(claim));
        while router.turn(now) > 0 {}
        assert_eq!(script.take_sent().len(), defences);
    }
    assert_eq!(router.stats().conflicts, 2);
}

#[test]
fn merged_and_unfinished_frames_leave_as_the_next_device_can_send_them() {
    // The router completes a partial checksum if the next device cannot.
    let mut fixture = Fixture::new(|builder| builder);
    let sent = datagram(NEAR, 100);
    let mut partial = sent.clone();
    packet::leave_partial(&mut partial);
    let mut frame = Frame::from_bytes(&partial);
    frame.meta.checksum = RxChecksum::Partial {
        start: 34,
        offset: 6,
    };
    fixture.scripts[0].push_frame(frame);
    check_forwarded(&sent, &fixture.left()[1][0], 1, NEAR);

    // Merged segments stay merged if each fits the next link.
    let mut fixture = Fixture::over(65_549, |builder| builder);
    // They also stay merged while they wait for a neighbour to be resolved.
    let unknown = [10, 0, 2, 77];
    for (to, port, fits) in [(NEAR, 1, true), (NARROW, 2, false), (unknown, 1, true)] {
        let path = Path::new(HOST, to).to_mac(mac_of(PORTS[0].0));
        let segment = Segment {
            flags: ACK,
            payload: vec![1; 20_000],
            ..Segment::default()
        };
        let mut bytes = segment.frame(path);
        bytes[20] |= DONT_FRAGMENT;
        finish(&mut bytes, Right::NETWORK);
        let mut frame = Frame::from_bytes(&bytes);
        frame.meta.checksum = RxChecksum::Partial {
            start: 34,
            offset: 16,
        };
        frame.meta.gso = Some(dominoes_drivers::Gso {
            kind: dominoes_drivers::GsoKind::Tcp4,
            size: 1460,
            header_len: 0,
        });
        fixture.scripts[0].push_frame(frame.clone());
        while fixture.router.turn(fixture.now) > 0 {}
        if to == unknown {
            let asks = fixture.scripts[port].take_sent();
            assert_eq!(packet::asked(&asks[0].0), Some(unknown));
            let answer = packet::arp_reply(Path::new(unknown, PORTS[port].0));
            fixture.scripts[port].push(answer);
            while fixture.router.turn(fixture.now) > 0 {}
        }
        let sent = fixture.scripts[port].take_sent();
        assert_eq!(sent.len(), usize::from(fits));
        let errors = fixture.scripts[0].take_sent();
        assert_eq!(errors.len(), usize::from(!fits));
        match sent.first() {
            Some((sent, meta)) => {
                assert_eq!((&sent[..6], meta.gso), (&mac_of(to)[..], frame.meta.gso));
                assert_eq!(sent[LOWER..], bytes[LOWER..]);
            }
            None => assert_eq!(errors[0].0[LOWER..LOWER + 2], [3, 4]),
        }
    }
}

#[test]
fn a_router_that_cannot_be_is_refused() {
    let build = |addresses: &[&str], via: Option<Address>| {
        let mut builder = Router::builder().secret([1, 2]);
        for (index, address) in addresses.iter().enumerate() {
            builder = builder.interface(address, device(index, 0).0);
        }
        if let Some(via) = via {
            builder = builder.route(route([192, 0, 2, 0], 24, via));
        }
        builder.build().map(drop)
    };
    assert!(build(&["10.0.1.254/24"], None).is_ok());
    assert!(build(&["10.0.1.254/24"], Some([10, 0, 1, 1])).is_ok());
    for address in [
        "10.0.1.254",
        "10.0.1.255/24",
        "127.0.0.1/8",
        "224.0.0.1/4",
        "10.0.1.1/33",
    ] {
        let refused = build(&[address], None);
        assert!(matches!(refused, Err(StackError::Address(_))), "{address}");
    }
    let twice = build(&["10.0.1.254/24", "10.0.1.254/16"], None);
    assert!(matches!(twice, Err(StackError::Address(_))));
    // To the router itself, and to no neighbour.
    for via in [[10, 0, 1, 254], [10, 0, 2, 1]] {
        let refused = build(&["10.0.1.254/24"], Some(via));
        assert!(matches!(
            refused,
            Err(StackError::Config(ConfigError::Conflict { .. }))
        ));
    }
    assert!(matches!(build(&[], None), Err(StackError::Config(_))));
    // The router supports IPv4 only.
    let six = build(&["fd00::1/64"], None);
    assert!(matches!(six, Err(StackError::Address(_))));
    for (network, via) in [("fd00::", "10.0.1.1"), ("192.0.2.0", "fd00::1")] {
        let mut over = route([0; 4], 24, [0; 4]);
        (over.network, over.via) = (network.parse().unwrap(), via.parse().unwrap());
        let builder = Router::builder().interface("10.0.1.254/24", device(0, 0).0);
        let refused = builder.route(over).build().map(drop);
        let is_refused = matches!(refused, Err(StackError::Config(_)));
        assert!(is_refused, "{network} by {via}");
    }
}

/// Two hosts whose links have an MTU of 1500, and two routers with a link of MTU 1280 between them;
/// with or without cards between the first router and its devices.
fn two_routers(firmware: Option<Firmware>) -> RouterStats {
    let wide = || memory::pair(MemoryConfig::default());
    let narrow = memory::pair(MemoryConfig::default().mtu(1280));
    let ((client, first), (second, server)) = (wide(), wide());
    let mut cards: Vec<Card> = Vec::new();
    let mut on_card = |device: memory::MemoryDevice| -> Box<dyn Device> {
        let Some(firmware) = firmware else {
            return Box::new(device);
        };
        let (nic, card) = Nic::by_hand(&NicConfig::default().firmware(firmware), device);
        cards.push(card);
        Box::new(nic)
    };
    let mut routers = [
        Router::builder()
            .interface("10.0.2.254/24", on_card(first))
            .interface("10.0.9.1/30", on_card(narrow.0))
            .route(route([10, 0, 0, 0], 24, [10, 0, 9, 2])),
        Router::builder()
            .interface("10.0.9.2/30", narrow.1)
            .interface("10.0.0.254/24", second)
            .route(route([0, 0, 0, 0], 0, [10, 0, 9, 1])),
    ]
    .map(|builder| builder.secret([3, 4]).build().expect("a router"));
    let host = |address: Address, gateway: Address, device| {
        let setup = Setup::new(address.into(), 24, [5, 6]).gateway(Ipv4Addr::from(gateway).into());
        Single::new(setup, Box::new(device)).expect("a host")
    };
    let mut client = host([10, 0, 2, 1], [10, 0, 2, 254], client);
    let mut server = host([10, 0, 0, 1], [10, 0, 0, 254], server);
    let (ours, peers) = (server.sockets(), client.sockets());
    let mut now = Instant::ZERO;
    let mut step = || {
        client.turn(now);
        server.turn(now);
        for router in &mut routers {
            router.turn(now);
        }
        for card in &mut cards {
            card.turn();
        }
        now += Duration::from_micros(100);
    };
    let mut ends = Ends::open(&ours, &peers, &mut step);
    for _ in 0..100_000 {
        if ends.read >= 1_000_000 {
            break;
        }
        ends.go_on(20_000);
        step();
    }
    assert!(ends.read >= 1_000_000, "{} bytes arrived", ends.read);
    routers[0].stats()
}

#[test]
fn bytes_pass_two_routers_whose_link_is_narrower_than_the_hosts() {
    for firmware in [
        None,
        Some(Firmware::Uniprocessor),
        Some(Firmware::Partitioned),
    ] {
        let stats = two_routers(firmware);
        assert!(
            stats.too_long > 0 && stats.reports > 0,
            "the path MTU is found: {stats:?}"
        );
        assert_eq!(
            (stats.fragmented, stats.martians, stats.overflowed),
            (0, 0, 0)
        );
    }
}

/// A frame that is nearly valid.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let rules = 0..RULES.len();
    let change = proptest::collection::vec((0_usize..80, any::<u8>()), 0..4);
    (rules, change, 0_usize..100, any::<bool>()).prop_map(|(rule, changes, cut, right)| {
        let mut frame = RULES[rule].2();
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        if cut < 50 {
            frame.truncate(cut * 2);
        }
        if right {
            finish(&mut frame, Right::NETWORK);
        }
        frame
    })
}

proptest! {
    #[test]
    fn no_frame_makes_the_router_panic_and_each_is_counted_once(sent in proptest::collection::vec(frames(), 1..60)) {
        let mut fixture = Fixture::new(|builder| builder);
        let before = fixture.router.stats();
        for frame in sent.iter().filter(|frame| frame.len() >= ETHERNET) {
            fixture.scripts[0].push(frame.clone());
        }
        for frames in fixture.left() {
            for frame in frames {
                let is_right = frame[12..14] != [8, 0] || packet::sum(&frame[ETHERNET..ETHERNET + usize::from(frame[14] & 15) * 4]) == 0xffff;
                prop_assert!(is_right, "a header that leaves is right");
            }
        }
        let sum = |stats: &RouterStats| {
            let outcomes = [
                "forwarded", "local", "arp", "not_ours", "malformed", "martians", "spoofed",
                "not_forwarded", "source_routed", "expired", "no_route", "too_long", "unsupported",
            ];
            stats.named().filter(|(name, _)| outcomes.contains(name)).map(|(_, count)| count).sum::<u64>()
        };
        let after = fixture.router.stats();
        prop_assert_eq!(after.received - before.received, sum(&after) - sum(&before));
    }
}
