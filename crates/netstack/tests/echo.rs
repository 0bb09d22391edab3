//! Echo requests of a stack to other hosts and to itself, over both families and in every variant.

#![cfg(feature = "testkit")]

use std::net::{Ipv4Addr, Ipv6Addr};

use dominoes_netstack::testkit::Variant;
use dominoes_netstack::{EchoSocket, SocketError};
use dominoes_testkit::hand::{Scripted, Wired, address, setup};
use dominoes_testkit::packet;

const NOTHING: Option<SocketError> = Some(SocketError::WouldBlock);

#[test]
fn requests_are_answered_and_each_socket_hears_of_its_own() {
    for mut fixture in Wired::all(|host| setup(0, host)) {
        let sockets = fixture.sockets();
        let pings: [EchoSocket; 3] = [(); 3].map(|()| sockets.open_echo().unwrap());
        assert_ne!(pings[0].ident(), pings[1].ident());
        for is_v4 in [true, false] {
            let local = match is_v4 {
                true => Ipv4Addr::LOCALHOST.into(),
                false => Ipv6Addr::LOCALHOST.into(),
            };
            for to in [address(is_v4, 0, 2), address(is_v4, 0, 1), local] {
                for (sequence, len) in (0..).zip([0, 1, 56, 1472, 1473, 20_000]) {
                    for (number, ping) in (0..).zip(&pings) {
                        let data: Vec<u8> = (0..len).map(|at| (at + number) as u8).collect();
                        ping.send(to, sequence, &data).unwrap();
                    }
                    fixture.turn();
                    for (number, ping) in (0..).zip(&pings) {
                        let reply = ping.try_recv().unwrap();
                        assert_eq!((reply.from, reply.sequence, reply.ttl), (to, sequence, 64));
                        assert_eq!(reply.data.len(), len as usize);
                        assert!(
                            (0..)
                                .zip(&reply.data)
                                .all(|(at, got)| *got == (at + number) as u8)
                        );
                        assert!(reply.round_trip < std::time::Duration::from_millis(3));
                        assert_eq!(ping.try_recv().err(), NOTHING);
                    }
                }
            }
        }
    }
}

#[test]
fn what_nobody_asked_for_is_heard_by_nobody() {
    let us = packet::TO_STACK;
    for variant in Variant::ALL {
        let mut fixture = Scripted::new(variant, setup(0, 1));
        let ping = fixture.sockets().open_echo().unwrap();
        let inject = |fixture: &mut Scripted, ident: u16, sequence: u8, good: bool| {
            let [a, b] = u16::to_be_bytes(ident);
            let mut message = packet::icmp([0, 0], [a, b, 0, sequence], b"data");
            message[3] ^= u8::from(!good);
            fixture.receive(packet::ip(us, packet::ICMP, &message));
        };
        fixture.receive(packet::arp_request(us.to_mac(packet::EVERY_MAC)));
        inject(&mut fixture, ping.ident(), 1, true);
        assert_eq!(
            ping.try_recv().err(),
            NOTHING,
            "{variant}: it asked for nothing"
        );
        ping.send(packet::FAR.into(), 1, b"data").unwrap();
        fixture.turn();
        inject(&mut fixture, ping.ident() ^ 1, 1, true);
        inject(&mut fixture, ping.ident(), 2, true);
        inject(&mut fixture, ping.ident(), 1, false);
        let [a, b] = ping.ident().to_be_bytes();
        let message = packet::icmp([0, 0], [a, b, 0, 1], b"data");
        let other = us.source([10, 0, 0, 77]);
        fixture.receive(packet::ip(other, packet::ICMP, &message));
        assert_eq!(ping.try_recv().err(), NOTHING, "{variant}: not by these");
        inject(&mut fixture, ping.ident(), 1, true);
        inject(&mut fixture, ping.ident(), 1, true);
        assert_eq!(ping.try_recv().unwrap().data, b"data");
        assert_eq!(ping.try_recv().err(), NOTHING, "{variant}: once");
        // One reply more than there is room for: the oldest is dropped.
        for sequence in 0..=256_u16 {
            ping.send(address(true, 0, 1), sequence, b"").unwrap();
            fixture.turn();
        }
        let first = ping.try_recv().unwrap();
        assert_eq!(first.sequence, 1, "{variant}");
        let lost = |fixture: &Scripted| {
            let pump = fixture.stacks[0].stats().pump;
            (pump.echo_replies_unread, pump.echo_requests_forgotten)
        };
        assert_eq!(lost(&fixture), (1, 0), "{variant}");
        // Likewise for requests that no host answers.
        for sequence in 0..1030_u16 {
            ping.send(packet::FAR.into(), sequence, b"").unwrap();
            fixture.turn();
        }
        assert_eq!(lost(&fixture), (1, 6), "{variant}");
    }
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let fixture = Wired::all(|host| setup(0, host)).next().unwrap();
    let ping = fixture.sockets().open_echo().unwrap();
    for (to, error) in [
        ("10.9.0.1", SocketError::NoRoute),
        ("fd09::1", SocketError::NoRoute),
        ("224.0.0.1", SocketError::Unreachable),
        ("10.0.0.255", SocketError::Unreachable),
        ("ff02::1", SocketError::Unreachable),
    ] {
        assert_eq!(ping.send(to.parse().unwrap(), 0, b""), Err(error), "{to}");
    }
    let too_long = ping.send(address(true, 0, 2), 0, &[0; 65_508]);
    assert_eq!(too_long, Err(SocketError::TooLong));
    assert!(ping.set_ttl(0).is_err());
    ping.set_nonblocking(true).unwrap();
    assert!(ping.recv().is_err());
    drop(fixture);
    assert_eq!(ping.try_recv().err(), Some(SocketError::Down));
}
