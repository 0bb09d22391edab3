//! Routes that are added and removed while a stack runs: new connections use them, and open
//! connections change to them. Over both families and in every variant.

#![cfg(feature = "testkit")]

use std::net::{IpAddr, SocketAddr};

use dominoes_drivers::memory::MemoryConfig;
use dominoes_netstack::Route;
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::Duration;
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{SocketError, Sockets, TcpListener, TcpStream};
use dominoes_testkit::hand::{self, Scripted, Shape, Wired, address};
use dominoes_testkit::packet::{
    self, ACK, Address, Family, Mac, Path, RST, SYN, Segment, mac_of, v6,
};

const PORT: u16 = 7;
const US: Address = [10, 0, 0, 1];
/// Two neighbours that forward packets, and one that is only a host.
const FIRST: Address = [10, 0, 0, 11];
const SECOND: Address = [10, 0, 0, 12];
const NEAR: Address = [10, 0, 0, 13];
/// Hosts of other networks.
const FAR: Address = [10, 9, 0, 5];
const FARTHER: Address = [10, 8, 0, 5];

fn prefix(family: Family, prefix: u8) -> u8 {
    match family {
        Family::V4 => prefix,
        Family::V6 => 96 + prefix,
    }
}

fn route(family: Family, network: Address, len: u8, via: Address) -> Route {
    Route {
        network: family.address(network),
        prefix: prefix(family, len),
        via: family.address(via),
        metric: 0,
    }
}

/// On a network whose prefix has `len` bits, counted as in IPv4.
fn setup(family: Family, len: u8) -> Setup {
    let setup = match family {
        Family::V4 => Setup::new(US.into(), len, [1, 7]),
        Family::V6 => {
            let setup = Setup::new(family.address(US), prefix(family, len), [1, 7]);
            setup.ipv6(hand::ipv6())
        }
    };
    setup.gateway(family.address(FIRST))
}

/// A stack whose frames the test reads, with neighbours that forward packets.
struct Wire {
    family: Family,
    stack: Scripted,
    /// The neighbours that answer ARP requests, and the addresses that the stack asked for.
    present: Vec<Address>,
    asked: Vec<Address>,
    /// Sent segments, with the link-layer address that each was sent to.
    sent: Vec<(Mac, Segment, Path)>,
    /// IPv6 datagrams and their fragments.
    datagrams: Vec<Vec<u8>>,
}

impl Wire {
    /// In both families, in every variant and in three groups.
    fn all() -> impl Iterator<Item = Wire> {
        Wire::all_with(24)
    }

    /// As [`Wire::all`], on a network whose prefix has `len` bits.
    fn all_with(len: u8) -> impl Iterator<Item = Wire> {
        Family::ALL.into_iter().flat_map(move |family| {
            Shape::all().map(move |shape| {
                let config = MemoryConfig::default().macs(mac_of(US), [0; 6]);
                let mut wire = Wire {
                    family,
                    stack: Scripted::over(shape, setup(family, len), config),
                    present: vec![FIRST, NEAR],
                    asked: Vec::new(),
                    sent: Vec::new(),
                    datagrams: Vec::new(),
                };
                wire.turn();
                wire
            })
        })
    }

    fn sockets(&self) -> Sockets {
        self.stack.sockets()
    }

    /// Does all current work. Present neighbours answer. Checks that replicas agree.
    fn turn(&mut self) {
        for _ in 0..40 {
            self.stack.now += Duration::from_micros(50);
            for frame in self.stack.turn() {
                if frame[12..14] == [0x86, 0xdd] && matches!(frame[20], packet::UDP | 44) {
                    self.datagrams.push(frame.clone());
                }
                // Other IPv6 messages have no counterpart.
                let Some(frame) = self.family.read(&frame) else {
                    continue;
                };
                if let Some(asked) = packet::asked(&frame) {
                    self.asked.push(asked);
                    if self.present.contains(&asked) {
                        self.push(packet::arp_reply(Path::new(asked, US)));
                    }
                } else if let Some(segment) = Segment::read(&frame) {
                    let mut to_mac = [0; 6];
                    to_mac.copy_from_slice(&frame[..6]);
                    let four = |at: usize| [0, 1, 2, 3].map(|byte| frame[at + byte]);
                    let path = Path::new(four(26), four(30));
                    self.sent.push((to_mac, segment, path));
                }
            }
        }
    }

    fn push(&self, frame: Vec<u8>) {
        self.stack.script.push(self.family.write(&frame).unwrap());
    }

    /// A neighbour claims the link-layer address of another one.
    fn claim(&mut self, neighbor: Address, of: Address) {
        let asks = Path::new(neighbor, US).from_mac(mac_of(of));
        self.push(packet::arp_request(asks));
        self.turn();
    }

    /// Lets `time` pass.
    fn pass(&mut self, time: Duration) {
        let until = self.stack.now + time;
        while self.stack.now < until {
            self.stack.now += Duration::from_millis(100);
            self.turn();
        }
    }

    /// Takes a sent segment, and the link-layer address that it was sent to.
    fn take_segment(&mut self, is: impl Fn(&Segment, Address) -> bool) -> (Mac, Segment) {
        let sent = &mut self.sent;
        let at = sent
            .iter()
            .position(|(_, segment, path)| is(segment, path.to));
        let (mac, segment, _) = sent.remove(at.expect("a segment"));
        (mac, segment)
    }

    /// Opens a connection to a host, through this neighbour.
    fn connect(&mut self, host: Address, through: Address) -> Connection {
        self.sent.clear();
        let to = SocketAddr::new(self.family.address(host), PORT);
        let mut connecting = self.sockets().begin_connect(to).unwrap();
        self.turn();
        let (mac, syn) = self.take_segment(|segment, to| segment.has(SYN) && to == host);
        assert_eq!(mac, mac_of(through));
        let mut connection = Connection {
            host,
            ports: (PORT, syn.src_port),
            stream: None,
            next: 1000,
            acked: syn.seq.wrapping_add(1),
        };
        let answer = connection.segment(SYN | ACK, &[]);
        self.push(answer.frame(Path::new(host, US).from_mac(mac_of(through))));
        connection.next += 1;
        self.turn();
        connection.stream = connecting.try_finish().unwrap();
        assert!(connection.stream.is_some());
        connection
    }

    /// A host opens a connection, through this neighbour.
    fn accept(&mut self, listener: &TcpListener, host: Address, through: Address) -> Connection {
        self.sent.clear();
        let mut connection = Connection {
            host,
            ports: (4000, PORT),
            stream: None,
            next: 1000,
            acked: 0,
        };
        let path = Path::new(host, US).from_mac(mac_of(through));
        self.push(connection.segment(SYN, &[]).frame(path));
        connection.next += 1;
        self.turn();
        let (mac, answer) = self.take_segment(|segment, to| segment.has(SYN) && to == host);
        assert_eq!(mac, mac_of(through));
        connection.acked = answer.seq.wrapping_add(1);
        self.push(connection.segment(ACK, &[]).frame(path));
        self.turn();
        connection.stream = Some(listener.try_accept().unwrap().0);
        connection
    }

    /// Checks that bytes go both ways, ours through this neighbour.
    fn check(&mut self, connection: &mut Connection, through: Address) {
        self.sent.clear();
        let stream = connection.stream.as_mut().unwrap();
        stream.try_write(b"from here").unwrap();
        self.turn();
        let (host, ports) = (connection.host, connection.ports);
        let (mac, segment) = self.take_segment(|segment, to| {
            to == host && (segment.dst_port, segment.src_port) == ports
        });
        assert_eq!(mac, mac_of(through), "{:?}", connection.host);
        assert_eq!(segment.payload, b"from here");
        connection.acked = connection.acked.wrapping_add(9);
        // The answer may arrive through any neighbour.
        let answer = connection.segment(ACK, b"from there");
        self.push(answer.frame(Path::new(connection.host, US).from_mac(mac_of(FIRST))));
        connection.next += 10;
        self.turn();
        let stream = connection.stream.as_mut().unwrap();
        assert_eq!(stream.try_read(&mut [0; 16]), Ok(10));
    }
}

/// A connection, and the state of its peer.
struct Connection {
    host: Address,
    /// The peer's port and ours.
    ports: (u16, u16),
    stream: Option<TcpStream>,
    next: u32,
    acked: u32,
}

impl Connection {
    fn segment(&self, flags: u8, payload: &[u8]) -> Segment {
        Segment {
            src_port: self.ports.0,
            dst_port: self.ports.1,
            seq: self.next,
            ack: self.acked,
            flags,
            wnd: 60_000,
            mss: (flags & SYN != 0).then_some(1440),
            payload: payload.to_vec(),
            ..Segment::default()
        }
    }
}

#[test]
fn connections_follow_a_route_that_comes_and_goes_and_others_stay() {
    for mut wire in Wire::all() {
        let sockets = wire.sockets();
        let listener = sockets.listen(PORT, 8).unwrap();
        wire.turn();
        let mut far: Vec<_> = (0..4).map(|_| wire.connect(FAR, FIRST)).collect();
        far.push(wire.accept(&listener, FAR, FIRST));
        let mut others = [wire.connect(NEAR, NEAR), wire.connect(FARTHER, FIRST)];
        let through = [NEAR, FIRST];
        wire.present.push(SECOND);
        let to_far = route(wire.family, [10, 9, 0, 0], 16, SECOND);
        for _ in 0..2 {
            sockets.add_route(1, to_far).unwrap();
            wire.turn();
            for connection in &mut far {
                wire.check(connection, SECOND);
            }
            for (connection, through) in others.iter_mut().zip(through) {
                wire.check(connection, through);
            }
            far.push(wire.connect(FAR, SECOND));
            sockets.remove_route(1, to_far).unwrap();
            wire.turn();
            for connection in &mut far {
                wire.check(connection, FIRST);
            }
        }
        // Without a route, open connections keep their next hop, and no new one opens.
        let default = route(wire.family, [0; 4], 0, FIRST);
        let default = Route {
            prefix: 0,
            ..default
        };
        sockets.remove_route(1, default).unwrap();
        wire.turn();
        for connection in &mut far {
            wire.check(connection, FIRST);
        }
        let to = SocketAddr::new(wire.family.address(FAR), PORT);
        let refused = sockets.begin_connect(to).err();
        assert_eq!(refused, Some(SocketError::NoRoute));
        let mut udp = sockets.bind_udp(0).unwrap();
        assert_eq!(udp.try_send_to(b"x", to), Err(SocketError::NoRoute));
        sockets.add_route(1, to_far).unwrap();
        wire.turn();
        for connection in &mut far {
            wire.check(connection, SECOND);
        }
    }
}

#[test]
fn a_neighbour_that_moves_takes_along_what_goes_through_it_and_nothing_else() {
    const BESIDE: Address = [10, 0, 0, 14];
    const CLAIMANT: Address = [10, 0, 0, 66];
    for mut wire in Wire::all() {
        let sockets = wire.sockets();
        let listener = sockets.listen(PORT, 8).unwrap();
        // Two hosts share a link-layer address, and one claims to have the router's.
        let known = [
            (FIRST, FIRST),
            (NEAR, NEAR),
            (BESIDE, NEAR),
            (CLAIMANT, FIRST),
        ];
        for (neighbor, of) in known {
            wire.claim(neighbor, of);
        }
        let mut near = [wire.connect(NEAR, NEAR), wire.accept(&listener, NEAR, NEAR)];
        let mut beside = [
            wire.connect(BESIDE, NEAR),
            wire.accept(&listener, BESIDE, NEAR),
        ];
        let mut far = [
            wire.connect(FAR, FIRST),
            wire.connect(FARTHER, FIRST),
            wire.accept(&listener, FAR, FIRST),
        ];
        let mut strange = [wire.connect(CLAIMANT, FIRST)];
        let mut through = [NEAR, NEAR, FIRST, FIRST];
        // From now on neighbours do not answer, but announce their link-layer addresses.
        wire.present.clear();
        let moves = [
            (0, NEAR, NEAR),
            (1, BESIDE, SECOND),
            (3, CLAIMANT, CLAIMANT),
            (2, FIRST, BESIDE),
            (0, NEAR, SECOND),
            (1, BESIDE, NEAR),
            (2, FIRST, FIRST),
        ];
        for (which, neighbor, of) in moves {
            wire.pass(Duration::from_secs(2));
            wire.claim(neighbor, of);
            through[which] = of;
            let all: [&mut [Connection]; 4] = [&mut near, &mut beside, &mut far, &mut strange];
            for (connections, through) in all.into_iter().zip(through) {
                for connection in connections {
                    wire.check(connection, through);
                }
            }
        }
    }
}

#[test]
fn of_routes_with_prefixes_as_long_the_lowest_metric_is_taken() {
    for mut wire in Wire::all() {
        let sockets = wire.sockets();
        wire.present.push(SECOND);
        let family = wire.family;
        let metric_of = |metric, via| Route {
            metric,
            ..route(family, [10, 9, 0, 0], 16, via)
        };
        let routes =
            [(7, FIRST), (5, SECOND), (3, NEAR)].map(|(metric, via)| metric_of(metric, via));
        sockets.add_route(1, routes[1]).unwrap();
        sockets.add_route(1, routes[0]).unwrap();
        wire.turn();
        let mut far = wire.connect(FAR, SECOND);
        // The connection changes to a better route, and back.
        sockets.add_route(1, routes[2]).unwrap();
        wire.turn();
        wire.check(&mut far, NEAR);
        let network = family.address([10, 9, 0, 0]);
        let listed = sockets.routes().into_iter();
        let listed = listed.filter(|(_, route)| route.network == network);
        let listed: Vec<_> = listed.map(|(_, route)| route.metric).collect();
        assert_eq!(listed, [3, 5, 7]);
        for (gone, through) in [(routes[2], SECOND), (routes[1], FIRST)] {
            sockets.remove_route(1, gone).unwrap();
            wire.turn();
            wire.check(&mut far, through);
        }
        // Routes with two metrics may use one neighbour.
        sockets.add_route(1, metric_of(8, FIRST)).unwrap();
        wire.turn();
        let again = sockets.add_route(1, metric_of(8, FIRST));
        assert_eq!(again, Err(SocketError::RouteTaken));
        let other = sockets.remove_route(1, metric_of(9, FIRST));
        assert_eq!(other, Err(SocketError::NoSuchRoute));
        sockets.remove_route(1, routes[0]).unwrap();
        wire.turn();
        wire.check(&mut far, FIRST);
    }
}

#[test]
fn a_connection_waits_on_its_old_way_until_the_new_neighbour_answers() {
    for mut wire in Wire::all() {
        let sockets = wire.sockets();
        let mut far = wire.connect(FAR, FIRST);
        // An open that waits for an absent neighbour takes the new route.
        let nobody = [10, 0, 0, 99];
        let to_nobody = route(wire.family, [10, 8, 0, 0], 16, nobody);
        sockets.add_route(1, to_nobody).unwrap();
        wire.turn();
        let to = SocketAddr::new(wire.family.address(FARTHER), PORT);
        let mut waiting = sockets.begin_connect(to).unwrap();
        wire.turn();
        sockets.remove_route(1, to_nobody).unwrap();
        wire.turn();
        let (mac, _) = wire.take_segment(|_, to| to == FARTHER);
        assert_eq!(mac, mac_of(FIRST));
        assert!(waiting.try_finish().unwrap().is_none());

        let to_far = route(wire.family, [10, 9, 0, 0], 24, SECOND);
        sockets.add_route(1, to_far).unwrap();
        wire.turn();
        wire.check(&mut far, FIRST);
        wire.pass(Duration::from_secs(10));
        wire.check(&mut far, FIRST);
        wire.present.push(SECOND);
        wire.pass(Duration::from_secs(2));
        wire.check(&mut far, SECOND);
    }
}

#[test]
fn routes_are_listed_and_what_cannot_be_one_is_refused() {
    for family in Family::ALL {
        let mut stack = Scripted::new(Variant::Single, setup(family, 24));
        let sockets = stack.sockets();
        let mut turn = || {
            stack.now += Duration::from_millis(1);
            stack.turn();
        };
        turn();
        let listed = || -> Vec<_> {
            let routes = sockets.routes().into_iter();
            let ours = routes.filter(|(_, route)| match route.network {
                IpAddr::V4(_) => true,
                IpAddr::V6(network) => !network.is_unicast_link_local(),
            });
            ours.map(|(interface, route)| {
                assert_eq!(interface, 1);
                (route.network, route.prefix, route.via)
            })
            .collect()
        };
        let everywhere = match family {
            Family::V4 => IpAddr::from([0; 4]),
            Family::V6 => IpAddr::from([0; 16]),
        };
        let link = (
            family.address([10, 0, 0, 0]),
            prefix(family, 24),
            everywhere,
        );
        let default = (everywhere, 0, family.address(FIRST));
        assert_eq!(listed(), [link, default]);

        // Bits after the prefix do not count.
        let first = route(family, [10, 9, 3, 7], 16, SECOND);
        let same = route(family, [10, 9, 0, 0], 16, SECOND);
        let other = route(family, [10, 9, 0, 0], 16, FIRST);
        let longer = route(family, [10, 9, 1, 0], 28, FIRST);
        sockets.add_route(1, first).unwrap();
        turn();
        assert_eq!(sockets.add_route(1, same), Err(SocketError::RouteTaken));
        sockets.add_route(1, other).unwrap();
        sockets.add_route(1, longer).unwrap();
        turn();
        let via = |route: Route| (route.network, route.prefix, route.via);
        let all = [via(longer), link, via(same), via(other), default];
        assert_eq!(listed(), all);
        sockets.remove_route(1, same).unwrap();
        turn();
        assert_eq!(listed(), [via(longer), link, via(other), default]);
        assert_eq!(sockets.remove_route(1, same), Err(SocketError::NoSuchRoute));

        let far = route(family, [10, 7, 0, 0], 16, [10, 1, 0, 1]);
        let own = route(family, [10, 7, 0, 0], 16, US);
        for gateway in [far, own] {
            let refused = sockets.add_route(1, gateway);
            assert_eq!(refused, Err(SocketError::NotNeighbor));
        }
        let mixed = Route {
            via: match family {
                Family::V4 => Family::V6,
                Family::V6 => Family::V4,
            }
            .address(FIRST),
            ..longer
        };
        let long = Route {
            prefix: 129,
            ..longer
        };
        for wrong in [mixed, long] {
            assert_eq!(sockets.add_route(1, wrong), Err(SocketError::Invalid));
        }
        assert_eq!(sockets.add_route(2, longer), Err(SocketError::Invalid));
        assert_eq!(sockets.remove_route(0, longer), Err(SocketError::Invalid));
        for number in 0..1021_u16 {
            let [a, b] = number.to_be_bytes();
            let route = route(family, [11, a, b, 0], 24, FIRST);
            sockets.add_route(1, route).unwrap();
            if number.is_multiple_of(64) {
                turn();
            }
        }
        turn();
        // The default route, two earlier ones, and these.
        assert_eq!(sockets.add_route(1, first), Err(SocketError::TooManyRoutes));
        drop(stack);
        assert_eq!(sockets.add_route(1, first), Err(SocketError::Down));
    }
}

#[test]
fn a_network_behind_a_neighbour_is_reached_while_there_is_a_route() {
    for mut fixture in Wired::all(|host| hand::setup(0, host)) {
        let (ours, theirs) = (fixture.sockets(), fixture.peer());
        let listener = theirs.listen(PORT, 8).unwrap();
        let mut peer = theirs.bind_udp(PORT).unwrap();
        let mut udp = ours.bind_udp(0).unwrap();
        for is_v4 in [true, false] {
            let (behind, len): (IpAddr, u8) = match is_v4 {
                true => ([10, 0, 1, 2].into(), 24),
                false => ("fd00:0:0:1::2".parse().unwrap(), 64),
            };
            theirs.add_address(1, behind, len).unwrap();
            fixture.turn();
            let to = SocketAddr::new(behind, PORT);
            let refused = ours.begin_connect(to).err();
            assert_eq!(refused, Some(SocketError::NoRoute));
            let route = Route {
                network: behind,
                prefix: len,
                via: address(is_v4, 0, 2),
                metric: 0,
            };
            ours.add_route(1, route).unwrap();
            fixture.turn();
            let mut connecting = ours.begin_connect(to).unwrap();
            udp.try_send_to(b"hello", to).unwrap();
            fixture.turn();
            assert!(connecting.try_finish().unwrap().is_some());
            assert_eq!(listener.try_accept().unwrap().0.local_addr().unwrap(), to);
            let (len, from) = peer.try_recv_from(&mut [0; 8]).unwrap();
            assert_eq!((len, from.ip()), (5, address(is_v4, 0, 1)));
            ours.remove_route(1, route).unwrap();
            fixture.turn();
            assert_eq!(udp.try_send_to(b"x", to), Err(SocketError::NoRoute));
        }
    }
}

#[test]
fn the_interface_of_a_new_route_is_taken() {
    for variant in Variant::ALL {
        let setup = |net, host| Setup::new([10, 0, net, host].into(), 24, [1, 2]);
        let mut fixture = Wired::interfaces(variant, 2, setup);
        let sockets = fixture.sockets();
        let udp = sockets.bind_udp(PORT).unwrap();
        let to = SocketAddr::new([10, 9, 0, 1].into(), PORT);
        assert!(udp.connect(to).is_err());
        let route = |prefix, net| Route {
            network: [10, 9, 0, 0].into(),
            prefix,
            via: [10, 0, net, 2].into(),
            metric: 0,
        };
        // Each interface has different neighbours.
        let refused = sockets.add_route(1, route(8, 2));
        assert_eq!(refused, Err(SocketError::NotNeighbor));
        sockets.add_route(1, route(8, 1)).unwrap();
        sockets.add_route(2, route(16, 2)).unwrap();
        fixture.turn();
        let listed = sockets.routes();
        let vias: Vec<_> = listed.iter().map(|(at, route)| (*at, route.via)).collect();
        let via = |net: u8| IpAddr::from([10, 0, net, 2]);
        let link = IpAddr::from([0; 4]);
        assert_eq!(vias, [(1, link), (1, via(1)), (2, link), (2, via(2))]);
        let own = |net: u8| IpAddr::from([10, 0, net, 1]);
        let from = |net| SocketAddr::new(own(net), 0);
        // The longer prefix is at the second interface.
        let connecting = sockets.begin_connect(to).unwrap();
        udp.connect(to).unwrap();
        sockets.begin_connect_from(from(1), to).unwrap();
        sockets.remove_route(2, route(16, 2)).unwrap();
        fixture.turn();
        let refused = sockets.begin_connect_from(from(2), to).err();
        assert_eq!(refused, Some(SocketError::NoRoute));
        drop(connecting);
    }
}

/// A segment to a port of ours that has no connection, in a frame from this neighbour.
fn stray(host: Address, from: Address, (src_port, port, flags): (u16, u16, u8)) -> Vec<u8> {
    let segment = Segment {
        src_port,
        dst_port: port,
        seq: 1000,
        flags,
        wnd: 60_000,
        ..Segment::default()
    };
    segment.frame(Path::new(host, US).from_mac(mac_of(from)))
}

#[test]
fn what_answers_segments_of_no_connection_goes_through_routes_and_neighbours() {
    for mut wire in Wire::all() {
        let sockets = wire.sockets();
        let _listener = sockets.listen(PORT, 8).unwrap();
        wire.turn();
        // No route leads through the neighbour that sends these frames. The last segment claims to
        // come from another neighbour.
        let strays = [
            (FAR, FIRST, (PORT, SYN), SYN | ACK),
            (FARTHER, FIRST, (9, SYN), RST | ACK),
            (NEAR, NEAR, (9, ACK), RST),
        ];
        for (host, through, (port, flags), answer) in strays {
            for src_port in [4000, 4001] {
                wire.asked.clear();
                wire.sent.clear();
                wire.push(stray(host, SECOND, (src_port, port, flags)));
                wire.turn();
                // Each group sends separate ARP requests.
                if wire.stack.stacks.len() == 1 {
                    let is_new = src_port == 4000 && host != FARTHER;
                    assert_eq!(wire.asked.contains(&through), is_new, "{host:?}");
                }
                let sent = wire.take_segment(|segment, to| to == host && segment.flags == answer);
                assert_eq!(sent.0, mac_of(through), "{host:?}");
            }
        }
        // The stack does not answer a segment to which no route leads back.
        let default = route(wire.family, [0; 4], 0, FIRST);
        let default = Route {
            prefix: 0,
            ..default
        };
        sockets.remove_route(1, default).unwrap();
        wire.turn();
        wire.sent.clear();
        wire.push(stray(FARTHER, FIRST, (4002, 9, SYN)));
        wire.turn();
        assert!(wire.sent.is_empty());
    }
}

#[test]
fn a_flood_from_neighbours_that_are_not_there_leaves_room_for_those_that_are() {
    const FLOOD: usize = 2_000;
    for mut wire in Wire::all_with(16) {
        let sockets = wire.sockets();
        let listener = sockets.listen(PORT, 8).unwrap();
        wire.turn();
        wire.asked.clear();
        for i in 0..FLOOD {
            let host = [10, 0, 1 + (i / 200) as u8, 1 + (i % 200) as u8];
            wire.push(stray(host, SECOND, (4000, PORT, SYN)));
            if i % 100 == 99 {
                wire.turn();
            }
        }
        let groups = wire.stack.stacks.len();
        let most = 256 * groups;
        assert!(
            (256..=most).contains(&wire.asked.len()),
            "{}",
            wire.asked.len()
        );
        assert!(wire.sent.is_empty());
        // A neighbour that has spoken to us is served meanwhile; one that has not is served after
        // the stack gives up on the others.
        wire.claim(NEAR, NEAR);
        let mut near = wire.accept(&listener, NEAR, NEAR);
        wire.check(&mut near, NEAR);
        wire.pass(Duration::from_secs(4));
        let stats = wire
            .stack
            .stacks
            .iter()
            .map(|stack| stack.stats().pump.unresolved);
        assert_eq!(stats.sum::<u64>(), FLOOD as u64);
        assert!(wire.asked.len() <= 3 * most + 8, "{}", wire.asked.len());
        wire.accept(&listener, FAR, FIRST);
    }
}

#[test]
fn a_connection_that_a_peer_opened_follows_a_neighbour_that_nobody_heard_of_before() {
    for mut wire in Wire::all_with(16) {
        let listener = wire.sockets().listen(PORT, 8).unwrap();
        wire.turn();
        let mut far = wire.accept(&listener, FAR, FIRST);
        // More hosts announce themselves than the stack remembers.
        wire.present.clear();
        for i in 0..1_500 {
            let host = [10, 0, 1 + (i / 200) as u8, 1 + (i % 200) as u8];
            wire.push(packet::arp_request(Path::new(host, US)));
            if i % 100 == 99 {
                wire.turn();
            }
        }
        for of in [SECOND, NEAR, FIRST] {
            wire.pass(Duration::from_secs(2));
            wire.claim(FIRST, of);
            wire.check(&mut far, of);
        }
    }
}

/// Writes on a connection. Returns the first sequence number and the longest text of the sent
/// segments.
fn send_long(wire: &mut Wire, connection: &mut Connection) -> (u32, usize) {
    wire.sent.clear();
    let stream = connection.stream.as_mut().unwrap();
    stream.try_write(&[1; 3_000]).unwrap();
    wire.turn();
    let (host, port) = (connection.host, connection.ports.0);
    let of_it = |(_, segment, path): &&(Mac, Segment, Path)| {
        path.to == host && segment.dst_port == port && !segment.payload.is_empty()
    };
    let sent = || {
        wire.sent
            .iter()
            .filter(of_it)
            .map(|(_, segment, _)| segment)
    };
    let longest = sent().map(|segment| segment.payload.len()).max();
    (sent().next().unwrap().seq, longest.unwrap())
}

/// RFC 8201 section 4, over all groups.
#[test]
fn what_passes_to_a_destination_is_known_to_all_that_is_sent_there() {
    for mut wire in Wire::all() {
        let family = wire.family;
        let mut far: Vec<_> = (0..8).map(|_| wire.connect(FAR, FIRST)).collect();
        let mut farther: Vec<_> = (0..4).map(|_| wire.connect(FARTHER, FIRST)).collect();
        let (seq, longest) = send_long(&mut wire, &mut far[0]);
        assert_eq!(longest, 1440);
        let ports = (far[0].ports.1, far[0].ports.0);
        // The stack ignores an error about a number that is not in flight.
        for (at, seq, expected) in [(1, seq.wrapping_sub(9), 1440), (2, seq, 1240)] {
            let about = packet::quote(Path::new(US, FAR), packet::TCP, 1480, ports, seq);
            let error = packet::icmp_error([3, 4], 1280, &about);
            wire.push(packet::ip(Path::new(FIRST, US), packet::ICMP, &error));
            wire.turn();
            assert_eq!(send_long(&mut wire, &mut far[at]).1, expected);
        }
        for connection in &mut far[3..] {
            assert_eq!(send_long(&mut wire, connection).1, 1240);
        }
        let mut later = wire.connect(FAR, FIRST);
        assert_eq!(send_long(&mut wire, &mut later).1, 1240);
        assert_eq!(send_long(&mut wire, &mut farther[0]).1, 1440);
        if family == Family::V4 {
            continue;
        }
        let socket = wire.sockets().bind_udp(53).unwrap();
        let longest = |wire: &mut Wire, host, payload: &[u8]| {
            wire.datagrams.clear();
            let to = SocketAddr::new(family.address(host), 9);
            socket.send_to(payload, to).unwrap();
            wire.turn();
            let longest = wire.datagrams.iter().max_by_key(|frame| frame.len());
            longest.unwrap().clone()
        };
        assert_eq!(longest(&mut wire, FAR, &[1; 3_000]).len() - 14, 1296);
        // In the other direction: an error about a datagram counts if one of that size was sent
        // there.
        let sent = longest(&mut wire, FARTHER, &[1; 1_400]);
        assert_eq!(sent.len() - 14, 1448);
        for (at, len, expected) in [(1, 1399, 1440), (2, 1400, 1240)] {
            let mut message = vec![2, 0, 0, 0, 0, 0, 5, 20];
            message.extend(&sent[14..]);
            message[12..14].copy_from_slice(&u16::to_be_bytes(len + 8));
            let path = v6::Path {
                from_mac: mac_of(FIRST),
                to_mac: mac_of(US),
                from: packet::v6_of(FIRST),
                to: packet::v6_of(US),
                hop_limit: 64,
            };
            let error = v6::frame(path, v6::ICMPV6, &message[..1_200]);
            wire.stack.script.push(error);
            wire.turn();
            assert_eq!(send_long(&mut wire, &mut farther[at]).1, expected);
        }
    }
}
