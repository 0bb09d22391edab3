//! A stack with two interfaces, and a host on the network of each: over both families, in every
//! variant, and with several groups at each interface.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::thread;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::Route;
use dominoes_netstack::poller::{Interest, Poller, Token, Trigger};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::variants::groups::INBOX;
use dominoes_netstack::variants::{Setup, groups, interfaces};
use dominoes_netstack::{
    Families, Interface, SocketError, Stack, TcpListener, TcpStream, UdpSocket,
};
use dominoes_testkit::hand::{Shape, Wired, address, prefix, setup};

const PORT: u16 = 7;

fn at(is_v4: bool, net: u8, host: u8) -> SocketAddr {
    SocketAddr::new(address(is_v4, net, host), PORT)
}

/// Interfaces 1 and 2 have networks 1 and 2, in which the stack is host 1 and others are host 2.
fn fixture(shape: impl Into<Shape>) -> Wired {
    with(shape, |_, setup| setup)
}

/// As [`fixture`]; `change` alters the setup of each interface, given its number.
fn with(shape: impl Into<Shape>, change: impl Fn(u8, Setup) -> Setup) -> Wired {
    Wired::interfaces(shape, 2, |net, host| match host {
        1 => change(net, setup(net, 1)),
        _ => setup(net, host).gateway(address(true, net, 1)),
    })
}

/// Every shape, and two groups of two replicas at each interface.
fn all() -> impl Iterator<Item = Wired> {
    let shapes = Shape::all().chain([Shape::Groups(Variant::Replicated(2), 2)]);
    shapes.map(fixture)
}

/// Checks that bytes go both ways.
fn check(fixture: &mut Wired, mut ends: [&mut TcpStream; 2]) {
    for _ in 0..2 {
        let [one, other] = &mut ends;
        assert_eq!(one.try_write(b"hello"), Ok(5));
        fixture.turn();
        let mut bytes = [0; 8];
        assert_eq!(other.try_read(&mut bytes), Ok(5));
        assert_eq!(bytes[..5], *b"hello");
        ends.reverse();
    }
}

#[test]
fn connections_come_and_go_by_the_interface_of_their_network() {
    for mut fixture in all() {
        let sockets = fixture.sockets();
        let ours = sockets.listen(PORT, 8).unwrap();
        for is_v4 in [true, false] {
            for net in [1, 2] {
                let host = fixture.hosts[usize::from(net) - 1].sockets();
                let mut there = fixture.connect(&host, at(is_v4, net, 1)).unwrap();
                let (mut here, from) = ours.try_accept().unwrap();
                assert_eq!(from.ip(), address(is_v4, net, 2));
                assert_eq!(here.local_addr().unwrap(), at(is_v4, net, 1));
                check(&mut fixture, [&mut here, &mut there]);

                let theirs = host.listen(PORT + 1, 8).unwrap();
                let to = SocketAddr::new(address(is_v4, net, 2), PORT + 1);
                let mut here = fixture.connect(&sockets, to).unwrap();
                assert_eq!(here.local_addr().unwrap().ip(), address(is_v4, net, 1));
                let (mut there, _) = theirs.try_accept().unwrap();
                check(&mut fixture, [&mut here, &mut there]);
            }
        }
    }
}

#[test]
fn one_udp_socket_hears_and_answers_on_every_interface() {
    for mut fixture in all() {
        let mut ours = fixture.sockets().bind_udp(PORT).unwrap();
        assert!(ours.local_addr().unwrap().ip().is_unspecified());
        let poller = Poller::new().unwrap();
        let registered = poller.register(&ours, Token(1), Interest::READABLE, Trigger::Edge);
        registered.unwrap();
        let mut events = Vec::with_capacity(4);
        poller.events(&mut events);
        for is_v4 in [true, false] {
            for net in [2, 1, 2] {
                let host = fixture.hosts[usize::from(net) - 1].sockets();
                let mut theirs = host.bind_udp(0).unwrap();
                theirs.try_send_to(b"hello", at(is_v4, net, 1)).unwrap();
                fixture.turn();
                assert_eq!(poller.events(&mut events), 1);
                let mut bytes = [0; 8];
                let (len, from) = ours.try_recv_from(&mut bytes).unwrap();
                assert_eq!((len, from.ip()), (5, address(is_v4, net, 2)));
                ours.try_send_to(b"hello yourself", from).unwrap();
                fixture.turn();
                let from = theirs.try_recv_from(&mut bytes).unwrap().1;
                assert_eq!(from, at(is_v4, net, 1));
            }
        }
    }
}

#[test]
fn a_link_local_address_is_told_and_taken_with_its_interface() {
    for shape in [Variant::Single.into(), Shape::THREE_GROUPS] {
        link_local_addresses_have_their_interface(fixture(shape));
    }
}

fn link_local_addresses_have_their_interface(mut fixture: Wired) {
    let sockets = fixture.sockets();
    let is_local = |address: &Ipv6Addr| address.is_unicast_link_local();
    let own: Vec<_> = sockets
        .ipv6_addresses()
        .into_iter()
        .filter(is_local)
        .collect();
    assert_eq!(own.len(), 2, "one for each interface");
    let mut ours = sockets.bind_udp(PORT).unwrap();
    for (index, own) in own.into_iter().enumerate() {
        let mut theirs = fixture.hosts[index].sockets().bind_udp(0).unwrap();
        theirs
            .try_send_to(b"hello", SocketAddr::new(own.into(), PORT))
            .unwrap();
        fixture.turn();
        let from = ours.try_peek().unwrap().from;
        let SocketAddr::V6(local) = from else {
            panic!("it is IPv6");
        };
        assert!(
            is_local(local.ip()) && local.scope_id() == index as u32 + 1,
            "{from}"
        );
        assert_eq!(ours.try_recv_from(&mut [0; 5]).unwrap().1, from);
        ours.try_send_to(b"hello", from).unwrap();
        // The other network has no such host, and no connection could be opened there.
        let elsewhere = SocketAddrV6::new(*local.ip(), local.port(), 0, 2 - index as u32);
        ours.try_send_to(b"astray", elsewhere.into()).unwrap();
        fixture.turn();
        let mut bytes = [0; 8];
        assert_eq!(theirs.try_recv_from(&mut bytes).unwrap().0, 5);
        assert_eq!(
            theirs.try_recv_from(&mut bytes),
            Err(SocketError::WouldBlock)
        );
    }
}

#[test]
fn the_longest_prefix_of_all_interfaces_decides_and_then_the_lowest_metric() {
    // Networks 3 and 3.128/25 are routed through one host each, which receives and drops packets to
    // them; networks 4 and 5 are routed through both.
    let route = |net, (third, last), prefix, metric| Route {
        network: [10, 0, third, last].into(),
        prefix,
        via: address(true, net, 2),
        metric,
    };
    let mut fixture = with(Variant::Single, |net, setup| {
        let setup = setup
            .route(route(net, (4, 0), 24, 9 - u32::from(net)))
            .route(route(net, (5, 0), 24, 7));
        match net {
            1 => setup
                .gateway(address(true, 1, 2))
                .route(route(net, (3, 128), 25, 9)),
            _ => setup.route(route(net, (3, 0), 24, 0)),
        }
    });
    let mut ours = fixture.sockets().bind_udp(0).unwrap();
    let of_3 = [(5, 2), (127, 2), (129, 1), (255, 1)].map(|(last, net)| ((3, last), net));
    for ((third, last), net) in of_3.into_iter().chain([((4, 5), 2), ((5, 5), 1)]) {
        let before = fixture.hosts.iter().map(|host| host.stats().pump.not_ours);
        let before: Vec<_> = before.collect();
        ours.try_send_to(b"hello", ([10, 0, third, last], PORT).into())
            .unwrap();
        fixture.turn();
        let after = fixture.hosts.iter().map(|host| host.stats().pump.not_ours);
        let came: Vec<_> = after
            .zip(before)
            .map(|(after, before)| after - before)
            .collect();
        assert_eq!(
            came,
            [u64::from(net == 1), u64::from(net == 2)],
            "10.0.{third}.{last}"
        );
    }
    // All other destinations use the default gateway.
    let far = fixture
        .sockets()
        .begin_connect(([192, 0, 2, 1], PORT).into());
    far.unwrap();
    let none = fixture
        .sockets()
        .begin_connect("[2001:db8::1]:7".parse().unwrap());
    assert_eq!(none.unwrap_err(), SocketError::NoRoute);
}

#[test]
fn an_address_is_answered_at_its_own_interface_alone() {
    let mut fixture = fixture(Variant::Single);
    let _ours = fixture.sockets().listen(PORT, 8).unwrap();
    // To the address of the other interface, through this one.
    let host = fixture.hosts[0].sockets();
    let through = fixture.connect(&host, at(true, 2, 1));
    assert_eq!(through.unwrap_err(), SocketError::WouldBlock);
}

#[test]
fn a_socket_bound_to_an_address_is_bound_to_its_interface() {
    for (is_v4, groups) in [(true, 1), (false, 1), (true, 3), (false, 3)] {
        let mut fixture = fixture(Shape::Groups(Variant::Single, groups));
        let _entered = fixture.sockets().enter();
        let ours = TcpListener::bind(at(is_v4, 2, 1)).unwrap();
        let datagrams = UdpSocket::bind(at(is_v4, 2, 1)).unwrap();
        datagrams.set_nonblocking(true).unwrap();
        for net in [1, 2] {
            let host = fixture.hosts[usize::from(net) - 1].sockets();
            let there = fixture.connect(&host, at(is_v4, net, 1));
            let mut theirs = host.bind_udp(0).unwrap();
            theirs.connect(at(is_v4, net, 1)).unwrap();
            theirs.try_send(b"hello").unwrap();
            fixture.turn();
            if net == 1 {
                assert_eq!(there.unwrap_err(), SocketError::Refused);
                assert_eq!(theirs.try_peek().unwrap_err(), SocketError::Refused);
                let error = datagrams
                    .send_to(b"out", theirs_at(is_v4, net))
                    .unwrap_err();
                assert_eq!(SocketError::of(&error), Some(SocketError::NoRoute));
            } else {
                there.unwrap();
                ours.try_accept().unwrap();
                assert_eq!(datagrams.recv(&mut [0; 8]).unwrap(), 5);
            }
        }
        let elsewhere = UdpSocket::bind(at(is_v4, 3, 1)).unwrap_err();
        assert_eq!(SocketError::of(&elsewhere), Some(SocketError::NotOurs));
    }
}

/// A host on a network that only its own interface leads to.
fn theirs_at(is_v4: bool, net: u8) -> SocketAddr {
    SocketAddr::new(address(is_v4, net, 2), PORT)
}

#[test]
fn a_group_is_heard_on_the_interface_that_was_named() {
    for groups in [1, 3] {
        multicast_is_heard_on_the_second(fixture(Shape::Groups(Variant::Single, groups)));
    }
}

fn multicast_is_heard_on_the_second(mut fixture: Wired) {
    let sockets = fixture.sockets();
    let v4 = Ipv4Addr::new(239, 1, 2, 3);
    let v6: Ipv6Addr = "ff15::3".parse().unwrap();
    let mut ours = sockets.bind_udp(PORT).unwrap();
    ours.join_multicast_v4(&v4, &Ipv4Addr::new(10, 0, 2, 1))
        .unwrap();
    ours.join_multicast_v6(&v6, 2).unwrap();
    let error = ours.join_multicast_v6(&v6, 3).unwrap_err();
    assert_eq!(SocketError::of(&error), Some(SocketError::NoRoute));
    let error = ours
        .leave_multicast_v4(&v4, &Ipv4Addr::UNSPECIFIED)
        .unwrap_err();
    assert_eq!(
        SocketError::of(&error),
        Some(SocketError::Invalid),
        "the first has not"
    );
    fixture.turn();
    let mut heard = |fixture: &mut Wired, net: usize| {
        let mut theirs = fixture.hosts[net - 1].sockets().bind_udp(0).unwrap();
        for group in [v4.into(), v6.into()] {
            let sent = theirs.try_send_to(b"all", SocketAddr::new(group, PORT));
            sent.unwrap();
        }
        fixture.turn();
        let mut count = 0;
        while ours.try_recv_from(&mut [0; 8]).is_ok() {
            count += 1;
        }
        count
    };
    assert_eq!((heard(&mut fixture, 1), heard(&mut fixture, 2)), (0, 2));
}

#[test]
fn what_is_sent_to_a_group_comes_back_on_the_interface_by_which_it_leaves() {
    for mut fixture in all() {
        let sockets = fixture.sockets();
        let v4 = Ipv4Addr::new(239, 1, 2, 3);
        let v6: Ipv6Addr = "ff15::3".parse().unwrap();
        let mut ours = sockets.bind_udp(PORT).unwrap();
        let second = Ipv4Addr::new(10, 0, 2, 1);
        ours.join_multicast_v4(&v4, &second).unwrap();
        ours.join_multicast_v6(&v6, 2).unwrap();
        fixture.turn();
        for is_v4 in [true, false] {
            let group = match is_v4 {
                true => v4.into(),
                false => v6.into(),
            };
            for net in [1, 2] {
                let from = SocketAddr::new(address(is_v4, net, 1), 0);
                let mut sender = sockets.bind_udp_on(from).unwrap();
                let sent = sender.try_send_to(b"all", SocketAddr::new(group, PORT));
                sent.unwrap();
                fixture.turn();
                let got = ours.try_recv_from(&mut [0; 8]).map(|(_, from)| from.ip());
                let expected = match net {
                    1 => Err(SocketError::WouldBlock),
                    _ => Ok(from.ip()),
                };
                assert_eq!(got, expected, "{group}, {net}");
            }
        }
    }
}

#[test]
fn the_stack_reaches_itself_at_the_address_of_any_interface() {
    for mut fixture in all() {
        let sockets = fixture.sockets();
        let listener = sockets.listen(PORT, 8).unwrap();
        let mut udp = sockets.bind_udp(PORT).unwrap();
        let own = [true, false].map(|is_v4| [1, 2].map(|net| at(is_v4, net, 1)));
        let local = ["127.0.0.1:7", "[::1]:7"].map(|local| local.parse().unwrap());
        for to in own.into_iter().flatten().chain(local) {
            let mut here = fixture.connect(&sockets, to).unwrap();
            let (mut there, from) = listener.try_accept().unwrap();
            assert_eq!(from.ip(), to.ip());
            check(&mut fixture, [&mut here, &mut there]);
            udp.try_send_to(b"hello", to).unwrap();
            fixture.turn();
            assert_eq!(udp.try_recv_from(&mut [0; 8]), Ok((5, to)));
        }
    }
}

#[test]
fn what_cannot_be_joined_is_refused() {
    assert!(interfaces::join([]).is_err());
    assert!(interfaces::join([setup(1, 1), setup(1, 1)]).is_err());
    assert!(interfaces::join((0..65).map(|net| setup(net, 1))).is_err());
    let (first, _) = memory::pair(MemoryConfig::default());
    let (second, _) = memory::pair(MemoryConfig::default());
    let second_one = Interface::new("10.0.2.1/24");
    let builder = Stack::builder("10.0.1.1/24").interface(second_one, second);
    let error = builder.groups(33).start(first).unwrap_err();
    let said = "`groups` is 33; set it to 1 to 64 over all interfaces";
    assert_eq!(error.to_string(), said);
    // Neither can one of several interfaces be divided by itself, nor can a divided one be joined.
    let device = || Box::new(memory::pair(MemoryConfig::default()).0);
    let mut joined = interfaces::join([setup(1, 1), setup(2, 1)]).unwrap();
    let error = groups::divide(joined.remove(0), 2, device(), INBOX).unwrap_err();
    assert!(error.to_string().contains("interfaces::divide"), "{error}");
    let mut divided = groups::divide(setup(1, 1), 2, device(), INBOX).unwrap();
    let error = interfaces::join([divided.remove(0).0, setup(2, 1)]).unwrap_err();
    assert!(error.to_string().contains("divided already"), "{error}");
}

#[test]
fn flows_divide_among_the_groups_of_each_interface() {
    const GROUPS: usize = 3;
    for variant in [Variant::Single, Variant::Replicated(2)] {
        let mut fixture = fixture(Shape::Groups(variant, GROUPS));
        let sockets = fixture.sockets();
        let listener = sockets.listen(PORT, 64).unwrap();
        let mut udp = sockets.bind_udp(PORT).unwrap();
        fixture.turn();
        for is_v4 in [true, false] {
            for net in [2, 1] {
                let interface = usize::from(net - 1);
                let first = interface * GROUPS;
                let host = fixture.hosts[interface].sockets();
                let theirs = host.listen(PORT + 1, 64).unwrap();
                let (mut ends, mut of_groups) = (Vec::new(), [[0; 2 * GROUPS]; 2]);
                for _ in 0..16 {
                    let mut there = fixture.connect(&host, at(is_v4, net, 1)).unwrap();
                    let (mut here, _) = listener.try_accept().unwrap();
                    of_groups[0][here.group()] += 1;
                    check(&mut fixture, [&mut here, &mut there]);
                    let to = SocketAddr::new(address(is_v4, net, 2), PORT + 1);
                    let mut ours = fixture.connect(&sockets, to).unwrap();
                    let mut peer = theirs.try_accept().unwrap().0;
                    of_groups[1][ours.group()] += 1;
                    check(&mut fixture, [&mut ours, &mut peer]);
                    ends.push([here, there, ours, peer]);
                }
                // No group is idle, and no group of the other interface has a connection.
                for counts in of_groups {
                    let own = &counts[first..first + GROUPS];
                    assert!(own.iter().all(|count| *count > 0), "{counts:?}");
                    assert_eq!(own.iter().sum::<i32>(), 16);
                }
                // Datagrams are divided likewise, in both directions.
                let counted = |fixture: &Wired| -> Vec<u64> {
                    let groups = fixture.stacks.iter();
                    groups.map(|group| group.stats().pump.datagrams).collect()
                };
                let before = counted(&fixture);
                for _ in 0..16 {
                    let mut peer = host.bind_udp(0).unwrap();
                    peer.try_send_to(b"hello", at(is_v4, net, 1)).unwrap();
                    fixture.turn();
                    let (len, from) = udp.try_recv_from(&mut [0; 8]).unwrap();
                    assert_eq!((len, from.ip()), (5, address(is_v4, net, 2)));
                    udp.try_send_to(b"yourself", from).unwrap();
                    fixture.turn();
                    let answer = peer.try_recv_from(&mut [0; 8]);
                    assert_eq!(answer, Ok((8, at(is_v4, net, 1))));
                }
                let after = counted(&fixture);
                for (group, (after, before)) in after.iter().zip(before).enumerate() {
                    let is_own = (first..first + GROUPS).contains(&group);
                    assert_eq!(*after > before, is_own, "group {group}");
                }
                // Every group has learnt the link-layer addresses, and only one has answered.
                let ping = host.open_echo().unwrap();
                ping.send(address(is_v4, net, 1), 1, b"data").unwrap();
                fixture.turn();
                assert_eq!(ping.try_recv().unwrap().from, address(is_v4, net, 1));
                assert!(ping.try_recv().is_err());
                let ping = sockets.open_echo().unwrap();
                ping.send(address(is_v4, net, 2), 1, b"data").unwrap();
                fixture.turn();
                assert_eq!(ping.try_recv().unwrap().from, address(is_v4, net, 2));
            }
        }
    }
}

#[test]
fn addresses_routes_and_links_change_for_all_groups_of_one_interface() {
    for variant in [Variant::Single, Variant::Replicated(2)] {
        let mut fixture = fixture(Shape::Groups(variant, 3));
        let sockets = fixture.sockets();
        let listener = sockets.listen(PORT, 64).unwrap();
        assert_eq!(sockets.interfaces().len(), 2);
        fixture.turn();
        for is_v4 in [true, false] {
            let host = fixture.hosts[1].sockets();
            let own = address(is_v4, 2, 1);
            let mut lost = Vec::new();
            for _ in 0..9 {
                let there = fixture.connect(&host, SocketAddr::new(own, PORT)).unwrap();
                lost.push((there, listener.try_accept().unwrap().0));
            }
            let mut kept = fixture
                .connect(&fixture.hosts[0].sockets(), at(is_v4, 1, 1))
                .unwrap();
            let mut here = listener.try_accept().unwrap().0;
            sockets.remove_address(own).unwrap();
            fixture.turn();
            for (_, here) in &mut lost {
                assert_eq!(here.try_read(&mut [0; 8]), Err(SocketError::AddressLost));
            }
            check(&mut fixture, [&mut here, &mut kept]);
            let prefix = prefix(is_v4);
            sockets.add_address(2, own, prefix).unwrap();
            fixture.turn();
            let behind = address(is_v4, 9, 2);
            host.add_address(1, behind, prefix).unwrap();
            let route = Route {
                network: behind,
                prefix,
                via: address(is_v4, 2, 2),
                metric: 0,
            };
            sockets.add_route(2, route).unwrap();
            fixture.turn();
            let theirs = host.listen(PORT + 1, 64).unwrap();
            for _ in 0..9 {
                let to = SocketAddr::new(behind, PORT + 1);
                let mut here = fixture.connect(&sockets, to).unwrap();
                assert_eq!(here.local_addr().unwrap().ip(), own);
                let mut there = theirs.try_accept().unwrap().0;
                check(&mut fixture, [&mut here, &mut there]);
            }
            sockets.set_link_up(2, false).unwrap();
            fixture.turn();
            let status = sockets.interfaces();
            assert_eq!([status[0].is_up, status[1].is_up], [true, false]);
            let to = SocketAddr::new(behind, PORT + 1);
            let refused = sockets.begin_connect(to).err();
            assert_eq!(refused, Some(SocketError::NoRoute));
            sockets.set_link_up(2, true).unwrap();
            sockets.remove_route(2, route).unwrap();
            fixture.turn();
        }
    }
}

#[test]
fn threads_serve_both_interfaces() {
    for (replicas, groups) in [(1, 1), (2, 1), (1, 2), (2, 2)] {
        let pair = || memory::pair(MemoryConfig::default());
        let ((first, first_end), (second, second_end)) = (pair(), pair());
        let stack = Stack::builder("10.0.1.1/24")
            .replicas(replicas)
            .groups(groups)
            .interface(Interface::new("10.0.2.1/24"), second)
            .start(first)
            .unwrap();
        let ours = stack.bind_udp(PORT).unwrap();
        let echo = thread::spawn(move || {
            let mut bytes = [0; 16];
            while let Ok((len, from)) = ours.recv_from(&mut bytes) {
                ours.send_to(&bytes[..len], from).unwrap();
            }
        });
        let listener = stack.sockets().listen_for(Families::V4, PORT, 8).unwrap();
        let hosts = [(1, first_end), (2, second_end)].map(|(net, end)| {
            thread::spawn(move || {
                let host = Stack::builder(&format!("10.0.{net}.2/24"))
                    .start(end)
                    .unwrap();
                let socket = host.bind_udp(0).unwrap();
                socket.connect(at(true, net, 1)).unwrap();
                for number in 0..100_u32 {
                    socket.send(&number.to_be_bytes()).unwrap();
                    let mut bytes = [0; 16];
                    assert_eq!(socket.recv(&mut bytes).unwrap(), 4);
                    assert_eq!(bytes[..4], number.to_be_bytes());
                }
                let stream = host.connect(at(true, net, 1)).unwrap();
                (host, stream)
            })
        });
        let from = [(); 2].map(|()| listener.accept().unwrap().1.ip());
        assert_ne!(from[0], from[1]);
        drop(hosts.map(|host| host.join().unwrap()));
        stack.compare().unwrap();
        drop(stack);
        echo.join().unwrap();
    }
}
