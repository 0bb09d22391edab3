//! Multicast groups of UDP sockets, over both families, in every variant and in three groups: the
//! reports to routers, and the datagrams that arrive. The tests write the far side's frames byte by
//! byte.

#![cfg(feature = "testkit")]

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dominoes_netstack::time::Duration;
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{SocketError, UdpSocket};
use dominoes_testkit::hand::{self, Scripted, Shape};
use dominoes_testkit::packet::{Family, Mac, Path, mac_of, udp, v6_of};

const US: [u8; 4] = [10, 0, 0, 1];
const PEER: [u8; 4] = [10, 0, 0, 2];
const OTHER: [u8; 4] = [10, 0, 0, 3];
const GROUP: [u8; 4] = [239, 1, 2, 3];
const SECOND: [u8; 4] = [239, 1, 2, 4];
const PORT: u16 = 5000;

/// Modes of a record (RFC 3376 section 4.2.12, RFC 3810 section 5.2.12).
const IS_INCLUDE: u8 = 1;
const IS_EXCLUDE: u8 = 2;
const TO_INCLUDE: u8 = 3;
const TO_EXCLUDE: u8 = 4;
const ALLOW: u8 = 5;
const BLOCK: u8 = 6;

/// A stack that uses one family.
struct Host {
    family: Family,
    stack: Scripted,
}

/// A record as a router reads it: mode, group, sources.
type Record = (u8, IpAddr, Vec<IpAddr>);

impl Host {
    fn new(family: Family, shape: Shape) -> Host {
        println!("{shape}, {family}");
        let config = hand::ipv6().address(v6_of(US), 64);
        let setup = Setup::new(US.into(), 24, [1, 7]).ipv6(config);
        let stack = Scripted::new(shape, setup);
        let mut host = Host { family, stack };
        // Another test checks the messages about addresses.
        host.pass(Duration::from_secs(10));
        host
    }

    fn address(&self, address: [u8; 4]) -> IpAddr {
        self.family.address(address)
    }

    fn bind(&self, port: u16) -> UdpSocket {
        self.stack.sockets().bind_udp(port).unwrap()
    }

    /// Does all current work. Returns the frames that left.
    fn turn(&mut self) -> Vec<Vec<u8>> {
        self.stack.turn()
    }

    /// Lets time pass. Returns the reports that left meanwhile.
    fn pass(&mut self, time: Duration) -> Vec<Record> {
        let sent = self.stack.pass(time);
        sent.iter().flat_map(|frame| records(frame)).collect()
    }

    /// Receives a datagram from `from` to a group.
    fn says(&mut self, from: [u8; 4], to: [u8; 4], port: u16, payload: &[u8]) {
        let to_mac = match self.family {
            Family::V4 => [1, 0, 0x5e, to[1] & 0x7f, to[2], to[3]],
            Family::V6 => [0x33, 0x33, to[0], to[1], to[2], to[3]],
        };
        let path = Path::new(from, to).to_mac(to_mac);
        let frame = self.family.write(&udp(path, (4000, port), payload));
        self.stack.receive(frame.expect("it can be said"));
    }

    /// A router queries a group, or all groups (zeros). Returns the reports within a second.
    fn asks(&mut self, group: [u8; 4], len: usize) -> Vec<Record> {
        let frame = match self.family {
            Family::V4 => igmp_query(group, len),
            Family::V6 => mld_query(group, len + 16),
        };
        self.stack.script.push(frame);
        self.pass(Duration::from_secs(2))
    }
}

fn sum(bytes: &[u8]) -> u16 {
    dominoes_testkit::packet::sum(bytes)
}

fn igmp_query(group: [u8; 4], len: usize) -> Vec<u8> {
    let mut message = vec![0x11, 10, 0, 0];
    message.extend(group);
    message.resize(len, 0);
    let checksum = !sum(&message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let to = if group == [0; 4] {
        [224, 0, 0, 1]
    } else {
        group
    };
    let to_mac: Mac = [1, 0, 0x5e, to[1] & 0x7f, to[2], to[3]];
    dominoes_testkit::packet::ip(Path::new(PEER, to).to_mac(to_mac), 2, &message)
}

fn mld_query(group: [u8; 4], len: usize) -> Vec<u8> {
    let local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
    let (asked, to) = match group {
        [0, ..] => (
            Ipv6Addr::UNSPECIFIED,
            Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
        ),
        group => (v6_of(group), v6_of(group)),
    };
    let mut message = vec![130, 0, 0, 0, 3, 0xe8, 0, 0];
    message.extend(asked.octets());
    message.resize(len, 0);
    let checksum = !dominoes_testkit::packet::v6::transport_sum(local, to, 58, &message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut packet = vec![58, 0, 5, 2, 0, 0, 1, 0];
    packet.extend(message);
    let path = dominoes_testkit::packet::v6::Path {
        from_mac: mac_of(PEER),
        to_mac: dominoes_testkit::packet::v6::group_mac(to),
        from: local,
        to,
        hop_limit: 1,
    };
    dominoes_testkit::packet::v6::frame(path, 0, &packet)
}

/// The records of a report. Checks everything else in it.
fn records(frame: &[u8]) -> Vec<Record> {
    let (message, size) = match (&frame[12..14], frame[20], frame[23]) {
        ([8, 0], _, 2) => {
            assert_eq!(frame[..6], [1, 0, 0x5e, 0, 0, 22]);
            assert_eq!(
                (frame[22], sum(&frame[14..38]), sum(&frame[38..])),
                (1, 0xffff, 0xffff)
            );
            assert_eq!((&frame[30..34], frame[38]), (&[224, 0, 0, 22][..], 0x22));
            (&frame[38..], 4)
        }
        ([0x86, 0xdd], 0, _) if frame[62] == 143 => {
            assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 0x16]);
            assert_eq!(frame[22], 0xfe, "from a link-local address");
            (&frame[62..], 16)
        }
        _ => return Vec::new(),
    };
    let address = |bytes: &[u8]| match <[u8; 4]>::try_from(bytes) {
        Ok(four) => IpAddr::from(four),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()),
    };
    let count = u16::from_be_bytes([message[6], message[7]]);
    let mut rest = &message[8..];
    let mut found = Vec::new();
    for _ in 0..count {
        let sources = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        let (record, after) = rest.split_at(4 + size * (1 + sources));
        let mut addresses = record[4..].chunks(size).map(address);
        let group = addresses.next().unwrap();
        found.push((record[0], group, addresses.collect()));
        rest = after;
    }
    assert!(rest.is_empty());
    found
}

fn join(socket: &UdpSocket, group: IpAddr) -> std::io::Result<()> {
    match group {
        IpAddr::V4(group) => socket.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(group) => socket.join_multicast_v6(&group, 0),
    }
}

fn leave(socket: &UdpSocket, group: IpAddr) -> std::io::Result<()> {
    match group {
        IpAddr::V4(group) => socket.leave_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(group) => socket.leave_multicast_v6(&group, 0),
    }
}

fn received(socket: &mut UdpSocket) -> Option<(Vec<u8>, IpAddr)> {
    let mut buffer = [0; 5000];
    match socket.try_recv_from(&mut buffer) {
        Ok((len, from)) => Some((buffer[..len].to_vec(), from.ip())),
        Err(SocketError::WouldBlock) => None,
        Err(other) => panic!("{other}"),
    }
}

/// Runs a test over both families, in every variant and in three groups.
fn each(test: impl Fn(Host)) {
    for family in Family::ALL {
        for shape in Shape::all() {
            test(Host::new(family, shape));
        }
    }
}

#[test]
fn a_socket_receives_what_its_groups_get_until_it_leaves() {
    each(|mut host| {
        let group = host.address(GROUP);
        let (mut socket, mut other) = (host.bind(PORT), host.bind(PORT + 1));
        host.says(PEER, GROUP, PORT, b"early");
        assert_eq!(received(&mut socket), None);
        join(&socket, group).unwrap();
        host.turn();
        host.says(PEER, GROUP, PORT, b"hello");
        host.says(PEER, GROUP, PORT + 1, b"not for it");
        host.says(PEER, SECOND, PORT, b"another group");
        let hello = (b"hello".to_vec(), host.address(PEER));
        assert_eq!(received(&mut socket), Some(hello));
        assert_eq!(received(&mut socket), None);
        assert_eq!(received(&mut other), None);
        // A closed port gets no error, since the datagram went to a group.
        host.says(PEER, GROUP, 9, b"closed");
        assert!(host.turn().is_empty());
        leave(&socket, group).unwrap();
        host.turn();
        host.says(PEER, GROUP, PORT, b"late");
        assert_eq!(received(&mut socket), None);
    });
}

#[test]
fn a_socket_receives_from_the_sources_that_it_asked_for() {
    each(|mut host| {
        let (group, peer, other) = (host.address(GROUP), host.address(PEER), host.address(OTHER));
        let mut socket = host.bind(PORT);
        socket.join_source(group, peer).unwrap();
        host.turn();
        host.says(PEER, GROUP, PORT, b"one");
        host.says(OTHER, GROUP, PORT, b"two");
        assert_eq!(received(&mut socket), Some((b"one".to_vec(), peer)));
        assert_eq!(received(&mut socket), None);
        socket.join_source(group, other).unwrap();
        socket.leave_source(group, peer).unwrap();
        host.turn();
        host.says(PEER, GROUP, PORT, b"one");
        host.says(OTHER, GROUP, PORT, b"two");
        assert_eq!(received(&mut socket), Some((b"two".to_vec(), other)));
        assert_eq!(received(&mut socket), None);
    });
}

#[test]
fn routers_are_told_of_every_change_twice_and_of_all_when_they_ask() {
    let second = Duration::from_secs(1);
    each(|mut host| {
        let (group, peer, other) = (host.address(GROUP), host.address(PEER), host.address(OTHER));
        let twice = |record: Record| vec![record.clone(), record];
        let (first, more) = (host.bind(PORT), host.bind(PORT + 1));
        first.join_source(group, peer).unwrap();
        assert_eq!(host.pass(second), twice((ALLOW, group, vec![peer])));
        more.join_source(group, other).unwrap();
        assert_eq!(host.pass(second), twice((ALLOW, group, vec![other])));
        // Over IPv6 the report also includes the solicited-node groups of our addresses.
        let all = host.asks([0; 4], 12);
        assert!(
            all.contains(&(IS_INCLUDE, group, vec![peer, other])),
            "{all:?}"
        );
        drop(more);
        assert_eq!(host.pass(second), twice((BLOCK, group, vec![other])));
        first.leave_source(group, peer).unwrap();
        join(&first, group).unwrap();
        let changes = host.pass(second);
        assert_eq!(changes[0], (BLOCK, group, vec![peer]));
        assert_eq!(changes[1], (TO_EXCLUDE, group, vec![]));
        assert_eq!(changes.len(), 4);
        assert_eq!(changes[..2], changes[2..]);
        assert_eq!(host.asks(GROUP, 12), [(IS_EXCLUDE, group, vec![])]);
        assert_eq!(host.asks(SECOND, 12), []);
        drop(first);
        assert_eq!(host.pass(second), twice((TO_INCLUDE, group, vec![])));
        assert_eq!(host.asks(GROUP, 12), []);
    });
}

#[test]
fn what_cannot_be_joined_is_refused() {
    each(|host| {
        let (group, peer) = (host.address(GROUP), host.address(PEER));
        let socket = host.bind(PORT);
        let kind = |done: std::io::Result<()>| done.map_err(|error| error.kind());
        let invalid = Err(ErrorKind::InvalidInput);
        assert_eq!(kind(join(&socket, peer)), invalid);
        assert_eq!(kind(leave(&socket, group)), invalid);
        assert_eq!(kind(socket.join_source(group, group)), invalid);
        let loopback = Ipv4Addr::LOCALHOST;
        let wrong = socket.join_multicast_v4(&GROUP.into(), &loopback);
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::NetworkUnreachable);
        let wrong = socket.join_multicast_v6(&v6_of(GROUP), 3);
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::NetworkUnreachable);
        join(&socket, group).unwrap();
        assert_eq!(kind(join(&socket, group)), invalid);
        assert_eq!(kind(socket.join_source(group, peer)), invalid);
        leave(&socket, group).unwrap();
        for last in 0..64 {
            join(&socket, host.address([239, 9, 9, last])).unwrap();
        }
        assert!(join(&socket, host.address([239, 9, 9, 64])).is_err());
    });
}

/// Sends to a group at a port.
fn send(socket: &mut UdpSocket, payload: &[u8], group: IpAddr, port: u16) {
    let sent = socket.try_send_to(payload, SocketAddr::new(group, port));
    sent.unwrap();
}

/// Sets whether datagrams that a socket sends to groups of a family come back.
fn set_loop(socket: &UdpSocket, family: Family, comes_back: bool) {
    let done = match family {
        Family::V4 => socket.set_multicast_loop_v4(comes_back),
        Family::V6 => socket.set_multicast_loop_v6(comes_back),
    };
    done.unwrap();
}

/// Everything that a socket has received.
fn all_received(socket: &mut UdpSocket) -> Vec<Vec<u8>> {
    let all = std::iter::from_fn(|| received(socket));
    all.map(|(payload, _)| payload).collect()
}

#[test]
fn what_is_sent_to_a_group_leaves_and_comes_back_to_the_sockets_that_listen() {
    each(|mut host| {
        let (group, us) = (host.address(GROUP), host.address(US));
        let [mut first, mut second, mut not_joined] =
            [0, 1, 2].map(|number| host.bind(PORT + number));
        let mut sender = host.bind(0);
        let from_port = sender.local_addr().unwrap().port();
        join(&first, group).unwrap();
        join(&second, group).unwrap();
        host.turn();
        let mut buffer = [0; 8];
        for (port, socket) in [(PORT, &mut first), (PORT + 1, &mut second)] {
            send(&mut sender, b"hello", group, port);
            let sent = host.turn();
            assert_eq!(sent.len(), 1, "it leaves once");
            assert_eq!(sent[0][0] & 1, 1, "to the group");
            let (len, from) = socket.try_recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], b"hello");
            assert_eq!(from, SocketAddr::new(us, from_port));
            assert_eq!(received(socket), None, "it comes back once");
        }
        // The sender may be one of them.
        send(&mut first, b"own", group, PORT);
        assert_eq!(host.turn().len(), 1);
        assert_eq!(received(&mut first), Some((b"own".to_vec(), us)));
        // Sockets at other ports and sockets that have not joined do not receive it.
        assert_eq!(received(&mut first), None);
        assert_eq!(received(&mut second), None);
        send(&mut sender, b"hello", group, PORT + 2);
        send(&mut sender, b"hello", host.address(SECOND), PORT);
        assert_eq!(host.turn().len(), 2);
        assert_eq!(received(&mut not_joined), None);
        leave(&first, group).unwrap();
        leave(&second, group).unwrap();
        host.pass(Duration::from_secs(2));
        send(&mut sender, b"late", group, PORT);
        assert_eq!(host.turn().len(), 1);
        for mut socket in [first, second, not_joined, sender] {
            assert_eq!(received(&mut socket), None);
        }
    });
}

#[test]
fn a_sender_says_of_each_datagram_whether_it_comes_back() {
    each(|mut host| {
        let (group, family) = (host.address(GROUP), host.family);
        let (mut socket, mut sender) = (host.bind(PORT), host.bind(0));
        join(&socket, group).unwrap();
        host.turn();
        let is_set = |socket: &UdpSocket| match family {
            Family::V4 => socket.multicast_loop_v4().unwrap(),
            Family::V6 => socket.multicast_loop_v6().unwrap(),
        };
        assert!(is_set(&sender));
        for number in 0..40 {
            // The setting at the time of the call counts, not the one when the datagram leaves.
            set_loop(&sender, family, number % 3 == 0);
            assert_eq!(is_set(&sender), number % 3 == 0);
            send(&mut sender, &[number], group, PORT);
        }
        assert_eq!(host.turn().len(), 40);
        let expected: Vec<_> = (0..40).step_by(3).map(|number| vec![number]).collect();
        assert_eq!(all_received(&mut socket), expected);
        // Neither the receiver's setting nor the other family's setting counts.
        let other = Family::ALL.into_iter().find(|other| *other != family);
        set_loop(&socket, family, false);
        set_loop(&sender, other.unwrap(), false);
        set_loop(&sender, family, true);
        send(&mut sender, b"back", group, PORT);
        host.turn();
        assert_eq!(all_received(&mut socket), [b"back"]);
    });
}

#[test]
fn who_listens_to_one_source_hears_us_if_that_is_ours() {
    each(|mut host| {
        let [group, second, us, peer] = [GROUP, SECOND, US, PEER].map(|one| host.address(one));
        let (mut socket, mut sender) = (host.bind(PORT), host.bind(0));
        socket.join_source(group, peer).unwrap();
        socket.join_source(second, us).unwrap();
        host.turn();
        send(&mut sender, b"for others", group, PORT);
        send(&mut sender, b"for us", second, PORT);
        assert_eq!(host.turn().len(), 2);
        assert_eq!(all_received(&mut socket), [b"for us"]);
        socket.join_source(group, us).unwrap();
        socket.leave_source(second, us).unwrap();
        host.pass(Duration::from_secs(2));
        send(&mut sender, b"for us", group, PORT);
        send(&mut sender, b"for nobody", second, PORT);
        host.turn();
        assert_eq!(all_received(&mut socket), [b"for us"]);
    });
}

/// A hub returns sent frames, and so does a packet socket of Linux.
#[test]
fn what_a_device_hands_back_of_ours_is_not_received() {
    each(|mut host| {
        let (group, family) = (host.address(GROUP), host.family);
        let (mut socket, mut sender) = (host.bind(PORT), host.bind(0));
        join(&socket, group).unwrap();
        host.turn();
        for comes_back in [true, false] {
            set_loop(&sender, family, comes_back);
            for len in [5, 4000] {
                send(&mut sender, &vec![1; len], group, PORT);
                let sent = host.turn();
                assert_eq!(sent.len(), len.div_ceil(1400));
                sent.into_iter()
                    .for_each(|frame| host.stack.script.push(frame));
                host.turn();
                let expected = if comes_back {
                    vec![vec![1; len]]
                } else {
                    vec![]
                };
                assert!(all_received(&mut socket) == expected, "{comes_back}, {len}");
            }
        }
        let martians: u64 = host
            .stack
            .stacks
            .iter()
            .map(|stack| stack.stats().pump.martians)
            .sum();
        assert!(martians >= 4);
    });
}

#[test]
fn datagrams_longer_than_a_packet_come_back_whole() {
    each(|mut host| {
        let group = host.address(GROUP);
        let (mut socket, mut sender) = (host.bind(PORT), host.bind(0));
        join(&socket, group).unwrap();
        host.turn();
        let mut buffer = vec![0; 70_000];
        for len in [0, 1, 1400, 1473, 20_000, 65_507] {
            let sent: Vec<u8> = (0..len).map(|at| (at / 3) as u8).collect();
            send(&mut sender, &sent, group, PORT);
            let frames = host.turn();
            let least = (len / 1500).max(1);
            assert!((least..=least + 3).contains(&frames.len()), "{len}");
            let (got, _) = socket.try_recv_from(&mut buffer).unwrap();
            assert!(buffer[..got] == sent, "{len}");
            let would_block = Some(SocketError::WouldBlock);
            assert_eq!(socket.try_recv_from(&mut buffer).err(), would_block);
        }
        let stats = host.stack.stacks.iter().map(|stack| stack.stats().pump);
        assert_eq!(stats.map(|pump| pump.reassembled).sum::<u64>(), 0);
    });
}

/// More datagrams than may wait at a time to be looped back.
#[test]
fn many_at_once_come_back_in_order() {
    const MANY: u32 = 3000;
    each(|mut host| {
        let group = host.address(GROUP);
        let (mut socket, mut sender) = (host.bind(PORT), host.bind(0));
        join(&socket, group).unwrap();
        host.turn();
        for number in 0..MANY {
            send(&mut sender, &number.to_be_bytes(), group, PORT);
        }
        assert_eq!(host.turn().len(), MANY as usize);
        let expected = (0..MANY).map(|number| number.to_be_bytes().to_vec());
        assert!(all_received(&mut socket) == expected.collect::<Vec<_>>());
    });
}
