//! Connections and datagrams whose own end the application chooses, over both families and in every
//! variant.

#![cfg(feature = "testkit")]

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Ipv6Config, SocketError, TcpStream};

use crate::two_hosts::{TwoHosts, address};

const PORT: u16 = 7;

fn v6(net: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, net, 0, 0, 0, 0, 0, host)
}

/// Two addresses of IPv6: one on the link of the other host, and one elsewhere.
fn setup(host: u8) -> Setup {
    let config = Ipv6Config::default()
        .autoconfigure(false)
        .duplicate_probes(0)
        .address(v6(0, host.into()), 64)
        .address(v6(1, host.into()), 64);
    let route = dominoes_netstack::Route {
        network: v6(1, 0).into(),
        prefix: 64,
        via: v6(0, 3 - u16::from(host)).into(),
        metric: 0,
    };
    let setup = Setup::new(address(true, host), 24, [u64::from(host), 7]);
    setup.ipv6(config).route(route)
}

impl TwoHosts {
    fn connect_from(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<TcpStream, SocketError> {
        let mut connecting = self.sockets().begin_connect_from(local, remote)?;
        for _ in 0..10 {
            self.turn();
            if let Some(stream) = connecting.try_finish()? {
                return Ok(stream);
            }
        }
        Err(SocketError::WouldBlock)
    }
}

#[test]
fn a_connection_comes_from_the_end_that_it_was_given_or_is_refused() {
    for mut fixture in TwoHosts::all(setup) {
        let listener = fixture.host.sockets().listen(PORT, 64).unwrap();
        let ours = fixture.sockets().listen(2000, 8).unwrap();
        let mut open = Vec::new();
        for is_v4 in [true, false] {
            let to = SocketAddr::new(address(is_v4, 2), PORT);
            let any: IpAddr = match is_v4 {
                true => Ipv4Addr::UNSPECIFIED.into(),
                false => Ipv6Addr::UNSPECIFIED.into(),
            };
            for port in 1000..1008 {
                for local in [any, address(is_v4, 1)] {
                    let port = port + 100 * u16::from(local == any);
                    let stream = fixture
                        .connect_from(SocketAddr::new(local, port), to)
                        .unwrap();
                    let from = SocketAddr::new(address(is_v4, 1), port);
                    assert_eq!(stream.local_addr().unwrap(), from);
                    assert_eq!(listener.try_accept().unwrap().1, from);
                    open.push(stream);
                    // Both ends are taken now; another peer's end is not.
                    let again = fixture.connect_from(SocketAddr::new(local, port), to);
                    assert_eq!(again.err(), Some(SocketError::PortTaken));
                }
            }
            let chosen = fixture
                .connect_from(SocketAddr::new(address(is_v4, 1), 0), to)
                .unwrap();
            assert_eq!(chosen.local_addr().unwrap().ip(), address(is_v4, 1));
            assert!(listener.try_accept().is_ok());
            // A listener has its port for itself.
            let taken = fixture.connect_from(SocketAddr::new(any, 2000), to);
            assert_eq!(taken.err(), Some(SocketError::PortTaken));
            for host in [2, 3] {
                let foreign = fixture.connect_from(SocketAddr::new(address(is_v4, host), 0), to);
                assert_eq!(foreign.err(), Some(SocketError::NotOurs));
            }
            let mixed = fixture.connect_from(SocketAddr::new(address(!is_v4, 1), 0), to);
            assert_eq!(mixed.err(), Some(SocketError::Invalid));
            // What is of this host alone does not leave it.
            let local = if is_v4 { "127.0.0.1:0" } else { "[::1]:0" };
            let outside = fixture.connect_from(local.parse().unwrap(), to);
            assert_eq!(outside.err(), Some(SocketError::NoRoute));
        }
        // The one of several addresses that no rule would have chosen.
        let to = SocketAddr::new(address(false, 2), PORT);
        let from = SocketAddr::new(v6(1, 1).into(), 1200);
        let stream = fixture.connect_from(from, to).unwrap();
        assert_eq!(stream.local_addr().unwrap(), from);
        assert_eq!(listener.try_accept().unwrap().1, from);
        drop((ours, open));
    }
}

#[test]
fn a_socket_takes_and_sends_by_the_address_that_it_is_bound_to() {
    for mut fixture in TwoHosts::all(setup) {
        let sockets = fixture.sockets();
        let mut host = fixture.host.sockets().bind_udp(PORT).unwrap();
        let to = SocketAddr::new(address(false, 2), PORT);
        let at = SocketAddr::new(v6(1, 1).into(), 3000);
        let mut udp = sockets.bind_udp_on(at).unwrap();
        let listener = sockets.listen_on(at, 8).unwrap();
        assert_eq!(udp.local_addr().unwrap(), at);
        assert_eq!(listener.local_addr().unwrap(), at);
        udp.try_send_to(b"hello", to).unwrap();
        fixture.turn();
        assert_eq!(host.try_recv_from(&mut [0; 8]), Ok((5, at)));
        for (ip, is_taken) in [
            (at.ip(), true),
            (address(false, 1), false),
            (address(true, 1), false),
        ] {
            host.try_send_to(b"hello", SocketAddr::new(ip, 3000))
                .unwrap();
            fixture.turn();
            assert_eq!(udp.try_recv_from(&mut [0; 8]).is_ok(), is_taken, "{ip}");
            let theirs = fixture.host.sockets();
            let mut opening = theirs.begin_connect(SocketAddr::new(ip, 3000)).unwrap();
            fixture.turn();
            match opening.try_finish() {
                Ok(opened) => assert!(opened.is_some() && is_taken, "{ip}"),
                Err(error) => assert!(error == SocketError::Refused && !is_taken, "{ip}"),
            }
        }
        // As std has it.
        let foreign = sockets
            .bind_udp_on("10.0.0.9:0".parse().unwrap())
            .unwrap_err();
        assert_eq!(foreign.kind(), ErrorKind::AddrNotAvailable);
        let taken = sockets.listen_on(at, 8).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }
}
