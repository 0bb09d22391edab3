//! Attacks by hosts that know no secret: the reactions of the stack to their frames, and the
//! information in its answers.

use std::collections::HashSet;

use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Limits, SocketError};
use dominoes_testkit::packet::{
    self, ACK, Address, EVERY_MAC, EVERYBODY, FAR as PEER, ICMP, Mac, Path, RST, STACK, SYN,
    Segment, TO_STACK, identification,
};
use dominoes_testkit::{Host, Variant};

const PEER_MAC: Mac = TO_STACK.from_mac;

/// A stack and its link.
struct Fixture {
    host: Host,
    now: Instant,
}

impl Fixture {
    fn new(variant: Variant, limits: Limits, secret: [u64; 2]) -> Fixture {
        let setup = Setup::new(STACK.into(), 24, secret).limits(limits);
        let setup = setup.gateway(PEER.into());
        let host = Host::new(variant, setup, 1).expect("the setup is right");
        let mut fixture = Fixture {
            host,
            now: Instant::from_millis(7),
        };
        // From now on the stack knows the peer's address, so the peer can forward.
        fixture.answers([arp()]);
        fixture
    }

    /// The frames that the stack sends after it has received `frames`.
    fn answers(&mut self, frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
        frames.into_iter().for_each(|frame| self.host.inject(frame));
        while self.host.turn(self.now) > 0 {}
        self.host.take_sent()
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let sent = self.answers([]);
        drop(sent);
    }
}

/// From a host beyond the peer to the stack.
fn from(source: Address) -> Path {
    TO_STACK.source(source)
}

/// A SYN from `port` with all options.
fn syn(source: Address, port: u16) -> Vec<u8> {
    let syn = Segment {
        src_port: port,
        dst_port: 80,
        seq: 1000,
        flags: SYN,
        wnd: 60_000,
        mss: Some(1460),
        scale: Some(7),
        sack_permitted: true,
        timestamps: Some((5, 0)),
        ..Segment::default()
    };
    syn.frame(from(source))
}

fn ping(source: Address) -> Vec<u8> {
    packet::ip(from(source), ICMP, &packet::echo(7, b"ping"))
}

/// A datagram to a port without a socket.
fn closed_port(source: Address, port: u16) -> Vec<u8> {
    packet::udp(from(source), (5000, port), b"x")
}

/// The peer asks for the stack's address by broadcast.
fn arp() -> Vec<u8> {
    packet::arp_request(TO_STACK.to_mac(EVERY_MAC))
}

#[test]
fn nothing_that_comes_from_where_no_single_host_is_gets_an_answer() {
    let sources = [
        [0, 0, 0, 0],
        [0, 1, 2, 3],
        [127, 0, 0, 1],
        [127, 255, 255, 254],
        STACK,
        [10, 0, 0, 255],
        [224, 0, 0, 1],
        [239, 255, 255, 255],
        [240, 0, 0, 1],
        [255, 255, 255, 255],
    ];
    for variant in Variant::ALL {
        let mut scene = Fixture::new(variant, Limits::default(), [1, 2]);
        let _listener = scene.host.sockets().listen(80, 8).unwrap();
        scene.pass(Duration::from_millis(1));
        let mut martians = 0;
        let one_of_each = |source| [syn(source, 4000), ping(source), closed_port(source, 9)];
        for source in sources {
            let frames = one_of_each(source);
            let answers = scene.answers(frames);
            assert!(answers.is_empty(), "{variant}: {source:?} got {answers:?}");
            martians += 3;
            assert_eq!(scene.host.pump_stats().martians, martians, "{source:?}");
        }
        // A frame with a multicast or broadcast source.
        for mac in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [3, 0, 0, 0, 0, 1]] {
            for mut frame in one_of_each(PEER) {
                frame[6..12].copy_from_slice(&mac);
                assert!(scene.answers([frame]).is_empty(), "{variant}: {mac:?}");
                martians += 1;
            }
        }
        assert_eq!(scene.host.pump_stats().martians, martians);
        assert_eq!(scene.host.state_stats().opened, 0);
        // The stack answers all of them if the source is one host.
        assert_eq!(scene.answers(one_of_each(PEER)).len(), 3, "{variant}");
    }
}

#[test]
fn a_host_without_an_address_may_speak_to_everybody_and_to_nobody_else() {
    let mut scene = Fixture::new(Variant::Single, Limits::default(), [1, 2]);
    let mut socket = scene.host.sockets().bind_udp(67).unwrap();
    scene.pass(Duration::from_millis(1));
    let discover = packet::udp(from([0; 4]), (68, 67), b"");
    assert!(scene.answers([discover]).is_empty());
    assert_eq!(socket.try_peek().err(), Some(SocketError::WouldBlock));
    let to_everybody = Path::new([0; 4], EVERYBODY).to_mac(EVERY_MAC);
    scene.answers([packet::udp(to_everybody, (68, 67), b"")]);
    assert_eq!(
        socket.try_peek().unwrap().from,
        "0.0.0.0:68".parse().unwrap()
    );
}

#[test]
fn arp_from_addresses_of_no_single_host_is_ignored() {
    let mut scene = Fixture::new(Variant::Single, Limits::default(), [1, 2]);
    scene.pass(Duration::from_millis(1));
    let ask = |sender: [u8; 4], mac: [u8; 6]| {
        let mut frame = arp();
        frame[22..28].copy_from_slice(&mac);
        frame[28..32].copy_from_slice(&sender);
        frame
    };
    for sender in [[127, 0, 0, 1], [10, 0, 0, 255], [224, 0, 0, 1], [255; 4]] {
        assert!(
            scene.answers([ask(sender, PEER_MAC)]).is_empty(),
            "{sender:?}"
        );
    }
    for mac in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
        assert!(scene.answers([ask(PEER, mac)]).is_empty(), "{mac:?}");
    }
    assert_eq!(scene.host.pump_stats().martians, 6);
    assert_eq!(scene.answers([ask(PEER, PEER_MAC)]).len(), 1);
}

#[test]
fn opens_to_what_cannot_be_one_host_fail_at_once() {
    for variant in Variant::ALL {
        let scene = Fixture::new(variant, Limits::default(), [1, 2]);
        let sockets = scene.host.sockets();
        for (to, error) in [
            ("0.0.0.0:80", SocketError::Unreachable),
            ("0.1.2.3:80", SocketError::Unreachable),
            ("10.0.0.255:80", SocketError::Unreachable),
            ("255.255.255.255:80", SocketError::Unreachable),
            ("224.0.0.1:80", SocketError::Unreachable),
            ("240.0.0.1:80", SocketError::Unreachable),
            ("10.0.0.2:0", SocketError::PortZero),
        ] {
            let to = to.parse().unwrap();
            assert_eq!(sockets.begin_connect(to).err(), Some(error), "{to}");
        }
        let mut udp = sockets.bind_udp(0).unwrap();
        for (to, error) in [
            ("0.0.0.0:80", SocketError::Unreachable),
            ("240.0.0.1:80", SocketError::Unreachable),
            ("10.0.0.2:0", SocketError::PortZero),
        ] {
            let to = to.parse().unwrap();
            assert_eq!(udp.try_send_to(b"x", to), Err(error), "{to}");
            assert_eq!(udp.halves().1.connect(to), Err(error), "{to}");
        }
    }
}

#[test]
fn a_listener_at_port_0_gets_one_that_is_free() {
    let scene = Fixture::new(Variant::Single, Limits::default(), [1, 2]);
    let sockets = scene.host.sockets();
    let listeners: Vec<_> = (0..100).map(|_| sockets.listen(0, 1).unwrap()).collect();
    let ports: HashSet<_> = listeners
        .iter()
        .map(|one| one.local_addr().unwrap().port())
        .collect();
    assert!(ports.len() == 100 && ports.iter().all(|port| *port >= 32_768));
}

/// The name of a number in the stack's packets, its width in bits, and a function that returns its
/// value in a stack with this secret.
type Field = (&'static str, u32, fn([u64; 2]) -> u64);

fn listening(limits: Limits, secret: [u64; 2]) -> (Fixture, dominoes_netstack::TcpListener) {
    let mut scene = Fixture::new(Variant::Single, limits, secret);
    let listener = scene.host.sockets().listen(80, 8).unwrap();
    scene.pass(Duration::from_millis(1));
    (scene, listener)
}

/// The SYN-ACK that answers the SYN with index `which`.
fn syn_ack(limits: Limits, secret: [u64; 2], which: u16) -> Segment {
    let (mut scene, _listener) = listening(limits, secret);
    let syns = (0..=which).map(|n| syn(PEER, 4000 + n));
    let answers = scene.answers(syns);
    let answers = answers.iter().filter_map(|frame| Segment::read(frame));
    let to = 4000 + which;
    answers
        .into_iter()
        .find(|answer| answer.dst_port == to)
        .expect("a SYN-ACK")
}

fn udp_socket(secret: [u64; 2]) -> (Fixture, dominoes_netstack::UdpSocket) {
    let mut scene = Fixture::new(Variant::Single, Limits::default(), secret);
    let socket = scene.host.sockets().bind_udp(0).unwrap();
    scene.answers([arp()]);
    (scene, socket)
}

const FIELDS: [Field; 9] = [
    ("initial sequence number", 32, |secret| {
        u64::from(syn_ack(Limits::default(), secret, 0).seq)
    }),
    ("timestamp", 32, |secret| {
        let (value, _) = syn_ack(Limits::default(), secret, 0).timestamps.unwrap();
        u64::from(value)
    }),
    ("SYN cookie", 32, |secret| {
        let limits = Limits::default().syn_queue(1);
        u64::from(syn_ack(limits, secret, 1).seq)
    }),
    ("timestamp of a SYN cookie", 32, |secret| {
        let limits = Limits::default().syn_queue(1);
        u64::from(syn_ack(limits, secret, 1).timestamps.unwrap().0)
    }),
    ("identification of an echo reply", 16, |secret| {
        let mut scene = Fixture::new(Variant::Single, Limits::default(), secret);
        u64::from(identification(&scene.answers([ping(PEER)])[0]))
    }),
    ("identification of an ICMP error", 16, |secret| {
        let mut scene = Fixture::new(Variant::Single, Limits::default(), secret);
        u64::from(identification(&scene.answers([closed_port(PEER, 9)])[0]))
    }),
    ("identification of a datagram", 16, |secret| {
        let (mut scene, mut socket) = udp_socket(secret);
        socket
            .try_send_to(b"x", "10.0.0.2:9".parse().unwrap())
            .unwrap();
        let sent = scene.answers([]);
        u64::from(identification(sent.last().expect("the datagram")))
    }),
    ("port of a UDP socket", 15, |secret| {
        let (_, socket) = udp_socket(secret);
        u64::from(socket.local_addr().unwrap().port())
    }),
    ("port of a connection", 15, |secret| {
        let mut scene = Fixture::new(Variant::Single, Limits::default(), secret);
        scene.answers([arp()]);
        let remote = "10.0.0.2:80".parse().unwrap();
        let _opening = scene.host.sockets().begin_connect(remote).unwrap();
        let sent = scene.answers([]);
        let syn = sent.iter().find_map(|frame| Segment::read(frame));
        u64::from(syn.expect("the SYN").src_port)
    }),
];

#[test]
fn every_bit_of_the_secret_changes_half_of_the_bits_of_every_number_that_leaves() {
    let base = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
    for (name, bits, field) in FIELDS {
        let first = field(base);
        assert_eq!(
            first,
            field(base),
            "{name}: the same secret, the same number"
        );
        let mask = (1 << bits) - 1;
        let (mut changed, mut same) = (0, 0);
        for bit in 0..128 {
            let mut secret = base;
            secret[bit / 64] ^= 1 << (bit % 64);
            let difference = (first ^ field(secret)) & mask;
            changed += difference.count_ones();
            same += u32::from(difference == 0);
        }
        let half = 128 * bits / 2;
        assert!(same <= 1, "{name}: {same} of 128 bits change nothing");
        assert!(
            changed.abs_diff(half) < half / 5,
            "{name}: {changed} bits changed, not about {half}"
        );
    }
}

#[test]
fn no_number_that_leaves_is_a_part_of_the_secret() {
    for (name, bits, field) in FIELDS {
        let mut hits = 0;
        for seed in 1..100_u64 {
            let secret = [seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), seed << 40 | seed];
            let (number, mask) = (field(secret), (1_u64 << bits) - 1);
            let windows = (0..64).flat_map(|by| secret.map(|half| half.rotate_right(by) & mask));
            // The first value may be the next one after a part of the secret.
            let near: HashSet<_> = windows
                .flat_map(|w| [w, w.wrapping_add(1), w.wrapping_sub(1)].map(|near| near & mask))
                .collect();
            hits += u32::from(near.contains(&(number & mask)));
        }
        // 384 of at least 2^15 numbers are near: chance explains one seed in a hundred.
        assert!(hits <= 5, "{name}: {hits} of 99");
    }
}

#[test]
fn timestamps_of_connections_have_nothing_in_common_and_go_on_at_the_pace_of_the_clock() {
    for limits in [Limits::default(), Limits::default().syn_queue(1)] {
        let stamp = |which| syn_ack(limits, [3, 4], which).timestamps.unwrap().0;
        let stamps: Vec<_> = (1..8).map(stamp).collect();
        for (i, a) in stamps.iter().enumerate() {
            // Eight milliseconds after the start.
            assert!(*a > 1000, "the time since the start: {a}");
            for b in &stamps[..i] {
                assert!(a.abs_diff(*b) > 100_000, "{stamps:?}");
            }
        }
    }
    // Successive connections between two ends continue the clock (RFC 7323 section 5.5).
    let (mut scene, _listener) = listening(Limits::default(), [3, 4]);
    let mut value = || {
        let answers = scene.answers([syn(PEER, 4000)]);
        let answer = Segment::read(&answers[0]).unwrap();
        let reset = Segment {
            src_port: 4000,
            dst_port: 80,
            seq: 1001,
            flags: RST,
            ..Segment::default()
        };
        scene.answers([reset.frame(TO_STACK)]);
        scene.now += Duration::from_secs(10);
        answer.timestamps.unwrap().0
    };
    let [first, second] = [value(), value()];
    let ticks = second.wrapping_sub(first);
    assert!((9_000..11_000).contains(&ticks), "{ticks} ticks in 10 s");
}

#[test]
fn echo_replies_do_not_reveal_how_many_others_ping() {
    let gaps = |others: u8| {
        let mut scene = Fixture::new(Variant::Single, Limits::default(), [9, 9]);
        let mut before = 0;
        let each = (0..400).map(|_| {
            scene.answers((0..others).map(|n| ping([10, 0, 1, n])));
            let ident = identification(&scene.answers([ping(PEER)])[0]);
            std::mem::replace(&mut before, ident).abs_diff(ident)
        });
        let mut gaps: Vec<_> = each.collect();
        gaps.sort_unstable();
        gaps[200]
    };
    for others in [0, 1, 20] {
        // For two independent random 16-bit numbers: 19,195 in the median.
        let median = gaps(others);
        assert!((15_000..23_500).contains(&median), "{others}: {median}");
    }
}

/// The number of ICMP errors to `host`.
fn errors_to(host: [u8; 4], frames: &[Vec<u8>]) -> usize {
    let is_error = |frame: &&Vec<u8>| frame[23] == 1 && frame[34] == 3 && frame[30..34] == host;
    frames.iter().filter(is_error).count()
}

#[test]
fn counting_icmp_errors_does_not_reveal_the_port_of_a_socket() {
    // A resolver sends requests to 10.0.0.53 from a port that an attacker wants to know, to answer
    // first. The attacker sends datagrams in the name of 10.0.0.53 to 50 ports at a time. Each of
    // them uses up an error of the rate limit, except at the right port. Then he sends some from
    // his own address to closed ports: if more of these are answered, the port was among the 50.
    const SERVER: [u8; 4] = [10, 0, 0, 53];
    const UNKNOWN_HOST: [u8; 4] = [10, 0, 0, 66];
    let mut scene = Fixture::new(Variant::Single, Limits::default(), [11, 12]);
    let resolver = scene.host.sockets().bind_udp(0).unwrap();
    resolver.connect("10.0.0.53:53").unwrap();
    let port = resolver.local_addr().unwrap().port();
    scene.pass(Duration::from_millis(1));
    let mut seen = Vec::new();
    for round in 0..656_u16 {
        scene.now += Duration::from_secs(1);
        // Both announce their link-layer address.
        let asks = |host| packet::arp_request(from(host).to_mac(EVERY_MAC));
        scene.answers([SERVER, UNKNOWN_HOST].map(asks));
        let ports = (0..50).map(|n| 32_768_u16.saturating_add(50 * round + n));
        let probes = ports.map(|port| packet::udp(from(SERVER), (53, port), b"x"));
        let own = (0..50).map(|n| closed_port(UNKNOWN_HOST, 9000 + n));
        let mut count = 0;
        for frame in probes.chain(own) {
            count += errors_to(UNKNOWN_HOST, &scene.answers([frame]));
        }
        seen.push(count);
    }
    let right = seen[usize::from((port - 32_768) / 50)];
    let alike = seen.iter().filter(|count| **count == right).count();
    assert!(
        alike > 20,
        "{alike} of 656 rounds had {right} answers, as the right one"
    );
    let fewest = seen.iter().min();
    assert!(
        fewest >= Some(&5),
        "what he asks for himself is answered: {seen:?}"
    );
}

#[test]
fn no_destination_keeps_another_from_its_errors_resets_and_challenges() {
    for variant in Variant::ALL {
        let (mut scene, _listener) = {
            let mut scene = Fixture::new(variant, Limits::default(), [5, 6]);
            let listener = scene.host.sockets().listen(80, 8).unwrap();
            scene.pass(Duration::from_millis(1));
            (scene, listener)
        };
        let reset_me = |source, port| {
            let stray = Segment {
                src_port: port,
                dst_port: 81,
                seq: 1,
                ack: 1,
                flags: ACK,
                ..Segment::default()
            };
            stray.frame(from(source))
        };
        scene.now += Duration::from_secs(1);
        // Announces its link-layer address, or the stack would have to ask for it first.
        scene.answers([packet::arp_reply(from([10, 0, 0, 66]))]);
        let mut greedy = 0;
        for n in 0..2000 {
            greedy += scene.answers([reset_me([10, 0, 0, 66], 1000 + n)]).len();
            scene.answers([closed_port([10, 0, 0, 66], 9000)]);
        }
        assert!((125..375).contains(&greedy), "{variant}: {greedy}");
        assert_eq!(scene.answers([reset_me(PEER, 7)]).len(), 1, "{variant}");
        assert_eq!(scene.answers([closed_port(PEER, 9)]).len(), 1, "{variant}");
        let withheld = scene.host.state_stats().resets_withheld;
        assert_eq!(withheld, 2000 - greedy as u64);
    }
}

#[test]
fn questions_of_honest_peers_are_answered_however_many_connections_one_host_has() {
    const CONNECTIONS: u16 = 600;
    for variant in Variant::ALL {
        let mut scene = Fixture::new(variant, Limits::default(), [5, 6]);
        let listener = scene.host.sockets().listen(80, CONNECTIONS).unwrap();
        scene.pass(Duration::from_millis(1));
        let mut probes = Vec::new();
        let mut streams = Vec::new();
        for port in 1000..1000 + CONNECTIONS {
            let mut segment = Segment {
                src_port: port,
                dst_port: 80,
                seq: 1000,
                flags: SYN,
                wnd: 60_000,
                ..Segment::default()
            };
            let answers = scene.answers([segment.frame(from(PEER))]);
            let syn_ack = Segment::read(&answers[0]).expect("a SYN-ACK");
            (segment.seq, segment.ack, segment.flags) = (1001, syn_ack.seq.wrapping_add(1), ACK);
            scene.answers([segment.frame(from(PEER))]);
            streams.push(listener.try_accept().expect("it is established"));
            segment.seq = 1000;
            probes.push(segment.frame(from(PEER)));
        }
        scene.now += Duration::from_secs(2);
        let answered = scene.answers(probes).len();
        assert_eq!(answered, usize::from(CONNECTIONS), "{variant}");
        assert_eq!(scene.host.state_stats().challenges_withheld, 0);
    }
}
