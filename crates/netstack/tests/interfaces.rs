//! A stack with two interfaces, and a host on the network of each: over both families, in every
//! variant.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::thread;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::group::Layout;
use dominoes_netstack::ip::route::Route;
use dominoes_netstack::poller::{Events, Interest, Poller, Token, Trigger};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::{
    Setup, Variant, VariantKind, groups, interfaces, single::Single,
};
use dominoes_netstack::{
    Families, Interface, Ipv6Config, SocketError, Sockets, Stack, TcpListener, TcpStream, UdpSocket,
};

const PORT: u16 = 7;

/// The address of a host on a network, of either family.
fn address(is_v4: bool, net: u8, host: u8) -> IpAddr {
    match is_v4 {
        true => Ipv4Addr::new(10, 0, net, host).into(),
        false => Ipv6Addr::new(0xfd00, 0, 0, net.into(), 0, 0, 0, host.into()).into(),
    }
}

fn at(is_v4: bool, net: u8, host: u8) -> SocketAddr {
    SocketAddr::new(address(is_v4, net, host), PORT)
}

fn setup(net: u8, host: u8) -> Setup {
    let IpAddr::V6(v6) = address(false, net, host) else {
        unreachable!("it is not IPv4");
    };
    let config = Ipv6Config::default()
        .autoconfigure(false)
        .duplicate_probes(0)
        .address(v6, 64);
    Setup::new(address(true, net, host), 24, [1, u64::from(host)]).ipv6(config)
}

/// Interfaces 1 and 2 have networks 1 and 2, in which the stack is host 1 and others are host 2.
struct Fixture {
    now: Instant,
    stack: Vec<Box<dyn Variant>>,
    hosts: Vec<Single>,
}

impl Fixture {
    fn new(kind: VariantKind) -> Fixture {
        Fixture::with(kind, |_, setup| setup)
    }

    /// What `change` makes of the setup of each interface, by its number.
    fn with(kind: VariantKind, change: impl Fn(u8, Setup) -> Setup) -> Fixture {
        let own = [1, 2].map(|net| change(net, setup(net, 1)));
        let (mut stack, mut hosts) = (Vec::new(), Vec::new());
        for (net, own) in (1..).zip(interfaces::join(own).unwrap()) {
            let (here, there) = memory::pair(MemoryConfig::default());
            let layout = Layout::default().replicas(match kind {
                VariantKind::Replicated => 2,
                _ => 1,
            });
            stack.push(kind.build(own, layout, Box::new(here)).unwrap());
            let theirs = setup(net, 2).gateway(address(true, net, 1));
            hosts.push(Single::new(theirs, Box::new(there)).unwrap());
        }
        let now = Instant::from_millis(1);
        let mut fixture = Fixture { now, stack, hosts };
        fixture.turn();
        fixture
    }

    fn sockets(&self) -> Sockets {
        groups::sockets(self.stack.iter().map(|interface| interface.sockets()))
    }

    /// Lets everything that is on its way arrive.
    fn turn(&mut self) {
        for _ in 0..40 {
            self.now += Duration::from_micros(100);
            for interface in &mut self.stack {
                interface.turn(self.now);
            }
            for host in &mut self.hosts {
                host.turn(self.now);
            }
        }
    }

    /// Opens a connection.
    fn connect(&mut self, from: &Sockets, to: SocketAddr) -> Result<TcpStream, SocketError> {
        let mut connecting = from.begin_connect(to)?;
        for _ in 0..10 {
            self.turn();
            if let Some(stream) = connecting.try_finish()? {
                return Ok(stream);
            }
        }
        Err(SocketError::WouldBlock)
    }

    /// Whether bytes go both ways.
    fn check(&mut self, mut ends: [&mut TcpStream; 2]) {
        for _ in 0..2 {
            let [one, other] = &mut ends;
            assert_eq!(one.try_write(b"hello"), Ok(5));
            self.turn();
            let mut bytes = [0; 8];
            assert_eq!(other.try_read(&mut bytes), Ok(5));
            assert_eq!(bytes[..5], *b"hello");
            ends.reverse();
        }
    }
}

#[test]
fn connections_come_and_go_by_the_interface_of_their_network() {
    for kind in VariantKind::ALL.iter().copied() {
        let mut fixture = Fixture::new(kind);
        let sockets = fixture.sockets();
        let ours = sockets.listen(PORT, 8).unwrap();
        for is_v4 in [true, false] {
            for net in [1, 2] {
                let host = fixture.hosts[usize::from(net) - 1].sockets();
                let mut there = fixture.connect(&host, at(is_v4, net, 1)).unwrap();
                let (mut here, from) = ours.try_accept().unwrap();
                assert_eq!(from.ip(), address(is_v4, net, 2), "{kind}");
                assert_eq!(here.local_addr().unwrap(), at(is_v4, net, 1));
                fixture.check([&mut here, &mut there]);

                let theirs = host.listen(PORT + 1, 8).unwrap();
                let to = SocketAddr::new(address(is_v4, net, 2), PORT + 1);
                let mut here = fixture.connect(&sockets, to).unwrap();
                assert_eq!(here.local_addr().unwrap().ip(), address(is_v4, net, 1));
                let (mut there, _) = theirs.try_accept().unwrap();
                fixture.check([&mut here, &mut there]);
            }
        }
    }
}

#[test]
fn one_udp_socket_hears_and_answers_on_every_interface() {
    for kind in VariantKind::ALL.iter().copied() {
        let mut fixture = Fixture::new(kind);
        let mut ours = fixture.sockets().bind_udp(PORT).unwrap();
        assert!(ours.local_addr().unwrap().ip().is_unspecified());
        let poller = Poller::new().unwrap();
        let registered = poller.register(&ours, Token(1), Interest::READABLE, Trigger::Edge);
        registered.unwrap();
        let mut events = Events::with_capacity(4);
        poller.events(&mut events);
        for is_v4 in [true, false] {
            for net in [2, 1, 2] {
                let host = fixture.hosts[usize::from(net) - 1].sockets();
                let mut theirs = host.bind_udp(0).unwrap();
                theirs.try_send_to(b"hello", at(is_v4, net, 1)).unwrap();
                fixture.turn();
                assert_eq!(poller.events(&mut events), 1, "{kind}");
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
    let mut fixture = Fixture::new(VariantKind::Single);
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
        // The other network has no such host, and the connection would not be opened there either.
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
fn the_longest_prefix_of_all_interfaces_decides() {
    // Networks 3 and 3.128/25 are behind the hosts, which see what is for them and drop it.
    let route = |prefix, last, via| Route {
        network: [10, 0, 3, last].into(),
        prefix,
        via,
    };
    let mut fixture = Fixture::with(VariantKind::Single, |net, setup| match net {
        1 => setup
            .gateway(address(true, 1, 2))
            .route(route(25, 128, address(true, 1, 2))),
        _ => setup.route(route(24, 0, address(true, 2, 2))),
    });
    let mut ours = fixture.sockets().bind_udp(0).unwrap();
    for (last, net) in [(5, 2), (127, 2), (129, 1), (255, 1)] {
        let before = fixture.hosts.iter().map(|host| host.pump_stats().not_ours);
        let before: Vec<_> = before.collect();
        ours.try_send_to(b"hello", ([10, 0, 3, last], PORT).into())
            .unwrap();
        fixture.turn();
        let after = fixture.hosts.iter().map(|host| host.pump_stats().not_ours);
        let came: Vec<_> = after
            .zip(before)
            .map(|(after, before)| after - before)
            .collect();
        assert_eq!(
            came,
            [u64::from(net == 1), u64::from(net == 2)],
            "10.0.3.{last}"
        );
    }
    // Everything else has the default gateway.
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
    let mut fixture = Fixture::new(VariantKind::Single);
    let _ours = fixture.sockets().listen(PORT, 8).unwrap();
    // To the address of the other interface, by way of this one.
    let host = fixture.hosts[0].sockets();
    let through = fixture.connect(&host, at(true, 2, 1));
    assert_eq!(through.unwrap_err(), SocketError::WouldBlock);
}

#[test]
fn a_socket_bound_to_an_address_is_bound_to_its_interface() {
    for is_v4 in [true, false] {
        let mut fixture = Fixture::new(VariantKind::Single);
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

/// A host of a network that no route but its own interface leads to.
fn theirs_at(is_v4: bool, net: u8) -> SocketAddr {
    SocketAddr::new(address(is_v4, net, 2), PORT)
}

#[test]
fn a_group_is_heard_on_the_interface_that_was_named() {
    let mut fixture = Fixture::new(VariantKind::Single);
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
    let mut heard = |fixture: &mut Fixture, net: usize| {
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
fn the_stack_reaches_itself_at_the_address_of_any_interface() {
    for kind in VariantKind::ALL.iter().copied() {
        let mut fixture = Fixture::new(kind);
        let sockets = fixture.sockets();
        let listener = sockets.listen(PORT, 8).unwrap();
        let mut udp = sockets.bind_udp(PORT).unwrap();
        let own = [true, false].map(|is_v4| [1, 2].map(|net| at(is_v4, net, 1)));
        let local = ["127.0.0.1:7", "[::1]:7"].map(|local| local.parse().unwrap());
        for to in own.into_iter().flatten().chain(local) {
            let mut here = fixture.connect(&sockets, to).unwrap();
            let (mut there, from) = listener.try_accept().unwrap();
            assert_eq!(from.ip(), to.ip(), "{kind}");
            fixture.check([&mut here, &mut there]);
            udp.try_send_to(b"hello", to).unwrap();
            fixture.turn();
            assert_eq!(udp.try_recv_from(&mut [0; 8]), Ok((5, to)), "{kind}");
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
    let error = builder.groups(2).start(first).unwrap_err();
    assert!(error.to_string().contains("several interfaces"), "{error}");
}

#[test]
fn threads_serve_both_interfaces() {
    for replicas in [1, 2] {
        let pair = || memory::pair(MemoryConfig::default());
        let ((first, first_end), (second, second_end)) = (pair(), pair());
        let stack = Stack::builder("10.0.1.1/24")
            .replicas(replicas)
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
