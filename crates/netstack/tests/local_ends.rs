//! Connections and datagrams whose own end the application chooses, over both families and in every
//! variant.

#![cfg(feature = "testkit")]

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Families, SocketError, UdpSocket};
use dominoes_testkit::hand::{self, Wired, address, address_v6};

const PORT: u16 = 7;

/// Two IPv6 addresses: one on the other host's link, and one elsewhere.
fn setup(host: u8) -> Setup {
    let config = hand::ipv6()
        .address(address_v6(0, host), 64)
        .address(address_v6(1, host), 64);
    let route = dominoes_netstack::Route {
        network: address_v6(1, 0).into(),
        prefix: 64,
        via: address_v6(0, 3 - host).into(),
        metric: 0,
    };
    let setup = Setup::new(address(true, 0, host), 24, [u64::from(host), 7]);
    setup.ipv6(config).route(route)
}

#[test]
fn a_connection_comes_from_the_end_that_it_was_given_or_is_refused() {
    for mut fixture in Wired::all(setup) {
        let listener = fixture.peer().listen(PORT, 64).unwrap();
        let sockets = fixture.sockets();
        let ours = sockets.listen(2000, 8).unwrap();
        let mut open = Vec::new();
        for is_v4 in [true, false] {
            let to = SocketAddr::new(address(is_v4, 0, 2), PORT);
            let any: IpAddr = match is_v4 {
                true => Ipv4Addr::UNSPECIFIED.into(),
                false => Ipv6Addr::UNSPECIFIED.into(),
            };
            for port in 1000..1008 {
                for local in [any, address(is_v4, 0, 1)] {
                    let port = port + 100 * u16::from(local == any);
                    let stream = fixture
                        .connect_from(&sockets, SocketAddr::new(local, port), to)
                        .unwrap();
                    let from = SocketAddr::new(address(is_v4, 0, 1), port);
                    assert_eq!(stream.local_addr().unwrap(), from);
                    assert_eq!(listener.try_accept().unwrap().1, from);
                    open.push(stream);
                    // This pair of ends is in use now.
                    let again = fixture.connect_from(&sockets, SocketAddr::new(local, port), to);
                    assert_eq!(again.err(), Some(SocketError::PortTaken));
                }
            }
            let chosen = fixture
                .connect_from(&sockets, SocketAddr::new(address(is_v4, 0, 1), 0), to)
                .unwrap();
            assert_eq!(chosen.local_addr().unwrap().ip(), address(is_v4, 0, 1));
            assert!(listener.try_accept().is_ok());
            // A listener owns its port.
            let taken = fixture.connect_from(&sockets, SocketAddr::new(any, 2000), to);
            assert_eq!(taken.err(), Some(SocketError::PortTaken));
            for host in [2, 3] {
                let foreign =
                    fixture.connect_from(&sockets, SocketAddr::new(address(is_v4, 0, host), 0), to);
                assert_eq!(foreign.err(), Some(SocketError::NotOurs));
            }
            let mixed =
                fixture.connect_from(&sockets, SocketAddr::new(address(!is_v4, 0, 1), 0), to);
            assert_eq!(mixed.err(), Some(SocketError::Invalid));
            // A loopback address does not leave the host.
            let local = if is_v4 { "127.0.0.1:0" } else { "[::1]:0" };
            let outside = fixture.connect_from(&sockets, local.parse().unwrap(), to);
            assert_eq!(outside.err(), Some(SocketError::NoRoute));
        }
        // The source address that no rule would choose.
        let to = SocketAddr::new(address(false, 0, 2), PORT);
        let from = SocketAddr::new(address_v6(1, 1).into(), 1200);
        let stream = fixture.connect_from(&sockets, from, to).unwrap();
        assert_eq!(stream.local_addr().unwrap(), from);
        assert_eq!(listener.try_accept().unwrap().1, from);
        drop((ours, open));
    }
}

#[test]
fn a_socket_takes_and_sends_by_the_address_that_it_is_bound_to() {
    for mut fixture in Wired::all(setup) {
        let sockets = fixture.sockets();
        let mut host = fixture.peer().bind_udp(PORT).unwrap();
        let to = SocketAddr::new(address(false, 0, 2), PORT);
        let at = SocketAddr::new(address_v6(1, 1).into(), 3000);
        let mut udp = sockets.bind_udp_on(at).unwrap();
        let listener = sockets.listen_on(at, 8).unwrap();
        assert_eq!(udp.local_addr().unwrap(), at);
        assert_eq!(listener.local_addr().unwrap(), at);
        udp.try_send_to(b"hello", to).unwrap();
        fixture.turn();
        assert_eq!(host.try_recv_from(&mut [0; 8]), Ok((5, at)));
        for (ip, is_taken) in [
            (at.ip(), true),
            (address(false, 0, 1), false),
            (address(true, 0, 1), false),
        ] {
            host.try_send_to(b"hello", SocketAddr::new(ip, 3000))
                .unwrap();
            fixture.turn();
            assert_eq!(udp.try_recv_from(&mut [0; 8]).is_ok(), is_taken, "{ip}");
            let theirs = fixture.peer();
            let mut opening = theirs.begin_connect(SocketAddr::new(ip, 3000)).unwrap();
            fixture.turn();
            match opening.try_finish() {
                Ok(opened) => assert!(opened.is_some() && is_taken, "{ip}"),
                Err(error) => assert!(error == SocketError::Refused && !is_taken, "{ip}"),
            }
        }
        // The error kinds are the ones that std uses.
        let foreign = sockets
            .bind_udp_on("10.0.0.9:0".parse().unwrap())
            .unwrap_err();
        assert_eq!(foreign.kind(), ErrorKind::AddrNotAvailable);
        let taken = sockets.listen_on(at, 8).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }
}

#[test]
fn sockets_that_share_a_port_take_what_they_are_meant_for() {
    for mut fixture in Wired::all(setup) {
        let (sockets, peer) = (fixture.sockets(), fixture.peer());
        let mut senders: Vec<_> = (0..16).map(|_| peer.bind_udp(0).unwrap()).collect();
        let (any, all): (SocketAddr, _) = ("0.0.0.0:3000".parse().unwrap(), Families::Both);
        let here = SocketAddr::new(address(true, 0, 1), 3000);
        let [newest, balanced] = [(true, false), (false, true)];
        let bind = |at: SocketAddr, how| sockets.bind_udp_shared(at, all, how);
        // Each takes the datagrams of all senders; returns how many each of `takers` has got.
        let mut send = |to: SocketAddr, takers: &mut [&mut UdpSocket]| -> Vec<usize> {
            for sender in &mut senders {
                sender.try_send_to(b"one", to).unwrap();
            }
            fixture.turn();
            let count = |taker: &mut UdpSocket| {
                core::iter::from_fn(|| taker.try_recv_from(&mut [0; 8]).ok()).count()
            };
            takers.iter_mut().map(|taker| count(taker)).collect()
        };
        let mut first = bind(any, newest).unwrap();
        for refused in [(false, false), balanced] {
            assert_eq!(bind(here, refused).err(), Some(SocketError::PortTaken));
        }
        let mut second = bind(any, newest).unwrap();
        assert_eq!(send(here, &mut [&mut first, &mut second]), [0, 16]);
        let mut third = bind(here, (true, true)).unwrap();
        assert_eq!(
            send(here, &mut [&mut first, &mut second, &mut third]),
            [0, 0, 16]
        );
        drop(third);
        // The oldest gets its peer's.
        first
            .connect(SocketAddr::new(address(true, 0, 2), 4000))
            .unwrap();
        assert_eq!(send(here, &mut [&mut first, &mut second]), [0, 16]);
        drop(second);
        assert_eq!(send(here, &mut [&mut first]), [0]);
        drop(first);
        // A hash of the sender chooses, and each sender's stay together.
        let mut four: Vec<_> = (0..4)
            .map(|_| bind(any, balanced))
            .map(Result::unwrap)
            .collect();
        let mut takers: Vec<&mut UdpSocket> = four.iter_mut().collect();
        let shares = send(here, &mut takers);
        assert_eq!(shares.iter().sum::<usize>(), 16);
        assert!(shares.iter().all(|share| *share < 16), "{shares:?}");
        assert_eq!(send(here, &mut takers), shares);
    }
}
