//! Several addresses of each family at one interface: the stack serves, answers for and defends
//! each of them, and packets are sent from the one that fits. Over both families and in every
//! variant.

#![cfg(feature = "testkit")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::time::Duration;
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Families, SocketError, Sockets, Stack, StackError, TcpStream};
use dominoes_testkit::hand::{self, Scripted, Shape, Wired, address, prefix};
use dominoes_testkit::packet::{self, EVERY_MAC, ICMP, Path, SYN, Segment, TCP, mac_of};

const PORT: u16 = 7;
/// Link-layer addresses are derived from these.
const US: packet::Address = [10, 0, 0, 1];
const PEER: packet::Address = [10, 0, 0, 2];

/// A host on networks 0 and 1.
fn setup(host: u8) -> Setup {
    [true, false]
        .into_iter()
        .fold(hand::setup(0, host).announce(true), |setup, is_v4| {
            setup.also(address(is_v4, 1, host), prefix(is_v4))
        })
}

/// Opens a connection to `to`, and returns both ends with the address that it comes from.
fn opened(fixture: &mut Wired, from: &Sockets, to: &Sockets, at: IpAddr) -> [TcpStream; 2] {
    let listener = to.listen(PORT, 8).unwrap();
    let mut connecting = from.begin_connect(SocketAddr::new(at, PORT)).unwrap();
    for _ in 0..10 {
        fixture.turn();
        if let Some(mut stream) = connecting.try_finish().unwrap() {
            fixture.turn();
            let (mut there, peer) = listener.try_accept().unwrap();
            assert_eq!(stream.local_addr().unwrap(), peer);
            assert_eq!(there.local_addr().unwrap().ip(), at);
            stream.try_write(b"there").unwrap();
            there.try_write(b"back").unwrap();
            fixture.turn();
            assert_eq!(there.try_read(&mut [0; 8]), Ok(5));
            assert_eq!(stream.try_read(&mut [0; 8]), Ok(4));
            return [stream, there];
        }
    }
    panic!("nobody answers at {at}");
}

/// Everything goes both ways between the hosts' addresses on a network, and on no other.
fn check(fixture: &mut Wired, is_v4: bool, net: u8) {
    let (ours, theirs) = (fixture.sockets(), fixture.peer());
    let [our, their] = [1, 2].map(|host| address(is_v4, net, host));
    let [there, _] = opened(fixture, &theirs, &ours, our);
    assert_eq!(there.local_addr().unwrap().ip(), their);
    let [here, _] = opened(fixture, &ours, &theirs, their);
    assert_eq!(here.local_addr().unwrap().ip(), our);
    drop([there, here]);

    let mut own = ours.bind_udp(PORT).unwrap();
    let mut peer = theirs.bind_udp(PORT).unwrap();
    own.try_send_to(b"hello", SocketAddr::new(their, PORT))
        .unwrap();
    fixture.turn();
    let (from, to) = (SocketAddr::new(our, PORT), SocketAddr::new(their, PORT));
    assert_eq!(peer.try_recv_from(&mut [0; 8]), Ok((5, from)));
    peer.try_send_to(b"yourself", from).unwrap();
    fixture.turn();
    assert_eq!(own.try_recv_from(&mut [0; 8]), Ok((8, to)));
    if is_v4 {
        let all = SocketAddr::new(address(true, net, 255), PORT);
        assert_eq!(own.try_send_to(b"all", all), Err(SocketError::NotAllowed));
        own.set_broadcast(true).unwrap();
        own.try_send_to(b"all", all).unwrap();
        fixture.turn();
        assert_eq!(peer.try_recv_from(&mut [0; 8]), Ok((3, from)));
        peer.set_broadcast(true).unwrap();
        peer.try_send_to(b"all", all).unwrap();
        fixture.turn();
        assert_eq!(own.try_recv_from(&mut [0; 8]), Ok((3, to)));
    }

    for (pinging, at) in [(&ours, their), (&theirs, our), (&ours, our)] {
        let ping = pinging.open_echo().unwrap();
        ping.send(at, 1, b"data").unwrap();
        fixture.turn();
        assert_eq!(ping.try_recv().unwrap().from, at);
    }
    // To itself, from the same address.
    let [own, _] = opened(fixture, &ours, &ours, our);
    assert_eq!(own.local_addr().unwrap().ip(), our);
}

#[test]
fn every_address_serves_and_its_network_is_reached_from_it() {
    for mut fixture in Wired::all(setup) {
        let sockets = fixture.sockets();
        let listener = sockets.listen(PORT, 4).unwrap();
        assert_eq!(
            listener.local_addr().unwrap(),
            SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT)
        );
        drop(listener);
        fixture.turn();
        for is_v4 in [true, false] {
            (0..2).for_each(|net| check(&mut fixture, is_v4, net));
            // A socket that is bound to one address is not reached at another.
            let at = SocketAddr::new(address(is_v4, 1, 1), PORT + 1);
            let listener = sockets.listen_on(at, 4).unwrap();
            let mut udp = sockets.bind_udp_on(at).unwrap();
            assert_eq!(listener.local_addr().unwrap(), at);
            let theirs = fixture.peer();
            let mut peer = theirs.bind_udp(0).unwrap();
            for net in 0..2 {
                let to = SocketAddr::new(address(is_v4, net, 1), at.port());
                let mut connecting = theirs.begin_connect(to).unwrap();
                peer.try_send_to(b"x", to).unwrap();
                fixture.turn();
                let opened = connecting.try_finish().map(|stream| stream.is_some());
                let heard = udp.try_recv_from(&mut [0; 8]).is_ok();
                match net {
                    1 => assert_eq!((opened, heard), (Ok(true), true)),
                    _ => assert_eq!((opened, heard), (Err(SocketError::Refused), false)),
                }
            }
            // It sends from there, whatever the network of the peer.
            let to = SocketAddr::new(address(is_v4, 0, 2), peer.local_addr().unwrap().port());
            udp.try_send_to(b"hello", to).unwrap();
            fixture.turn();
            assert_eq!(peer.try_recv_from(&mut [0; 8]), Ok((5, at)));
        }
    }
}

#[test]
fn addresses_come_and_go_and_only_connections_of_those_that_go_end() {
    for mut fixture in Wired::all(setup) {
        let (ours, theirs) = (fixture.sockets(), fixture.peer());
        for is_v4 in [true, false] {
            for (sockets, host) in [(&ours, 1), (&theirs, 2)] {
                let own = address(is_v4, 2, host);
                sockets.add_address(1, own, prefix(is_v4)).unwrap();
            }
            fixture.turn();
            (0..3).for_each(|net| check(&mut fixture, is_v4, net));
            let mut connections: Vec<_> = (0..3)
                .map(|net| opened(&mut fixture, &theirs, &ours, address(is_v4, net, 1)))
                .collect();
            // Until all bytes are acknowledged, so that the window is open.
            (0..20).for_each(|_| fixture.turn());
            // First the first address goes, then the last; the others serve as before.
            for gone in [0, 2] {
                ours.remove_address(address(is_v4, gone, 1)).unwrap();
                fixture.turn();
                for (net, [there, here]) in (0..).zip(&mut connections) {
                    let is_gone = net == gone || gone == 2 && net == 0;
                    let sent = there.try_write(b"x");
                    assert!(sent.is_ok());
                    fixture.turn();
                    let got = match is_gone {
                        true => Err(SocketError::AddressLost),
                        false => Ok(1),
                    };
                    assert_eq!(here.try_read(&mut [0; 8]), got, "{is_v4} {net}");
                }
                let from = address(is_v4, gone, 1);
                let bound = ours.bind_udp_on(SocketAddr::new(from, PORT)).unwrap_err();
                assert_eq!(bound, SocketError::NotOurs);
                check(&mut fixture, is_v4, 1);
            }
            ours.add_address(1, address(is_v4, 0, 1), prefix(is_v4))
                .unwrap();
            fixture.turn();
            (0..2).for_each(|net| check(&mut fixture, is_v4, net));
            ours.add_address(1, address(is_v4, 2, 1), prefix(is_v4))
                .unwrap();
            fixture.turn();
        }
    }
}

#[test]
fn a_port_serves_each_address_by_itself() {
    for mut fixture in Wired::all(setup) {
        let (ours, theirs) = (fixture.sockets(), fixture.peer());
        let taken = Some(SocketError::PortTaken);
        for is_v4 in [true, false] {
            let at = [0, 1].map(|net| SocketAddr::new(address(is_v4, net, 1), PORT));
            let listeners = at.map(|at| ours.listen_on(at, 2).unwrap());
            let mut sockets = at.map(|at| ours.bind_udp_on(at).unwrap());
            let wildcard = match is_v4 {
                true => "0.0.0.0:7".parse().unwrap(),
                false => "[::]:7".parse().unwrap(),
            };
            for other in [at[0], at[1], wildcard] {
                assert_eq!(ours.listen_on(other, 2).err(), taken);
                let bound = ours.bind_udp_on(other).unwrap_err();
                assert_eq!(Some(bound), taken);
            }
            assert_eq!(ours.listen(PORT, 2).err(), taken);
            // Each listener has a queue with room for two connections in each group.
            let mut streams = Vec::new();
            for _ in 0..40 {
                let mut connecting = theirs.begin_connect(at[0]).unwrap();
                fixture.turn();
                streams.extend(connecting.try_finish().unwrap());
                drop(connecting);
            }
            for _ in 0..2 {
                let mut connecting = theirs.begin_connect(at[1]).unwrap();
                fixture.turn();
                streams.extend(connecting.try_finish().unwrap());
                let (stream, _) = listeners[1].try_accept().unwrap();
                assert_eq!(stream.local_addr().unwrap(), at[1]);
            }
            let waits = Some(SocketError::WouldBlock);
            assert_eq!(listeners[1].try_accept().err(), waits);
            for _ in 0..2 {
                let (stream, _) = listeners[0].try_accept().unwrap();
                assert_eq!(stream.local_addr().unwrap(), at[0]);
            }
            let mut peer = theirs.bind_udp(PORT).unwrap();
            for (socket, at) in sockets.iter_mut().zip(at) {
                peer.try_send_to(b"hello", at).unwrap();
                fixture.turn();
                let (len, from) = socket.try_recv_from(&mut [0; 8]).unwrap();
                assert_eq!(len, 5);
                socket.try_send_to(b"yourself", from).unwrap();
                fixture.turn();
                assert_eq!(peer.try_recv_from(&mut [0; 8]), Ok((8, at)));
            }
            // One listener ends, and the other still serves.
            let [gone, kept] = listeners;
            let [closed, mut udp] = sockets;
            drop((gone, closed));
            fixture.turn();
            let mut refused = theirs.begin_connect(at[0]).unwrap();
            let mut connecting = theirs.begin_connect(at[1]).unwrap();
            peer.try_send_to(b"hello", at[1]).unwrap();
            fixture.turn();
            assert_eq!(refused.try_finish().err(), Some(SocketError::Refused));
            assert!(connecting.try_finish().unwrap().is_some());
            assert!(kept.try_accept().is_ok());
            assert!(udp.try_recv_from(&mut [0; 8]).is_ok());
            let _again = ours.listen_on(at[0], 2).unwrap();
            let _socket = ours.bind_udp_on(at[0]).unwrap();
        }
        // One for each family.
        let both = [Families::V4, Families::V6];
        let _listeners = both.map(|families| ours.listen_for(families, PORT, 4).unwrap());
        let mut sockets = both.map(|families| ours.bind_udp_for(families, PORT).unwrap());
        assert_eq!(ours.listen(PORT, 2).err(), taken);
        fixture.turn();
        let mut peer = theirs.bind_udp(PORT).unwrap();
        for (socket, is_v4) in sockets.iter_mut().zip([true, false]) {
            let to = SocketAddr::new(address(is_v4, 1, 1), PORT);
            peer.try_send_to(b"hello", to).unwrap();
            fixture.turn();
            let from = SocketAddr::new(address(is_v4, 1, 2), PORT);
            assert_eq!(socket.try_recv_from(&mut [0; 8]), Ok((5, from)));
        }
    }
}

#[test]
fn an_interface_has_room_for_sixty_four_addresses() {
    let mut fixture = Wired::all(setup).next().unwrap();
    let ours = fixture.sockets();
    let own = |number: u8| IpAddr::from([10, 9, number, 1]);
    for number in 2..64 {
        ours.add_address(1, own(number), 24).unwrap();
        fixture.turn();
    }
    assert_eq!(
        ours.add_address(1, own(64), 24),
        Err(SocketError::TooManyAddresses)
    );
    ours.remove_address(own(7)).unwrap();
    fixture.turn();
    ours.add_address(1, own(64), 24).unwrap();
    fixture.turn();
    let addresses = ours.interfaces().remove(0).addresses;
    assert_eq!(addresses.iter().filter(|own| own.is_ipv4()).count(), 64);
    assert!(addresses.contains(&own(64)) && !addresses.contains(&own(7)));
}

#[test]
fn an_address_is_given_once_and_is_one_host_s() {
    for (second, said) in [
        ("10.0.0.1/16", "an address twice"),
        ("fd00::9/64", "an address twice"),
        ("127.0.0.1/8", "no single host"),
        ("224.0.0.1/24", "no single host"),
    ] {
        let (device, _) = memory::pair(MemoryConfig::default());
        let builder = Stack::builder("10.0.0.1/24")
            .address("fd00::9/64")
            .address(second);
        let error = builder.start(device).unwrap_err();
        assert!(matches!(error, StackError::Config(_)));
        assert!(error.to_string().contains(said), "{error}");
    }
}

/// In every shape, at 10.0.0.1/24 and 10.0.1.1/24, which it announces.
fn announcing() -> impl Iterator<Item = Scripted> {
    let setup = || {
        let setup = Setup::new(address(true, 0, 1), 24, [1, 7]);
        setup.also(address(true, 1, 1), 24).announce(true)
    };
    Shape::all().map(move |shape| Scripted::new(shape, setup()))
}

/// From a host of a network to the stack's address there.
fn path(net: u8) -> Path {
    let path = Path::new([10, 0, net, 2], [10, 0, net, 1]);
    path.from_mac(mac_of(PEER)).to_mac(mac_of(US))
}

/// The sender and the target address of an ARP message.
fn arp_ends(frame: &[u8]) -> (packet::Address, packet::Address) {
    assert_eq!(frame[12..14], [8, 6], "{frame:02x?}");
    let four = |at: usize| [frame[at], frame[at + 1], frame[at + 2], frame[at + 3]];
    (four(28), four(38))
}

#[test]
fn every_address_is_announced_answered_for_and_defended() {
    for mut wire in announcing() {
        let own = [0, 1].map(|net| path(net).to);
        let announced = |sent: Vec<Vec<u8>>| {
            let ends = sent.iter().map(|frame| arp_ends(frame));
            ends.map(|(from, to)| {
                assert_eq!(from, to);
                from
            })
            .collect::<Vec<_>>()
        };
        assert_eq!(announced(wire.turn()), own);
        wire.now += Duration::from_millis(1900);
        assert_eq!(wire.turn(), [[0; 0]; 0]);
        wire.now += Duration::from_millis(200);
        assert_eq!(announced(wire.turn()), own);
        wire.now += Duration::from_secs(60);
        assert_eq!(wire.turn(), [[0; 0]; 0]);
        for net in [0, 1] {
            let path = path(net);
            let everybody = path.to_mac(EVERY_MAC);
            // From a host that has an address, and from one that asks whether it may have ours.
            for from in [path.from, [0; 4]] {
                let sent = wire.receive(packet::arp_request(everybody.source(from)));
                assert_eq!(sent.len(), 1);
                assert_eq!(arp_ends(&sent[0]), (path.to, from));
                assert_eq!(sent[0][20..22], [0, 2]);
            }
            // Each address is defended separately: once in ten seconds.
            let claim = packet::arp_request(everybody.source(path.to));
            assert_eq!(announced(wire.receive(claim.clone())), [path.to]);
            wire.now += Duration::from_secs(4);
            assert_eq!(wire.receive(claim), [[0; 0]; 0]);
        }
        // A third address, and no more announcements of a removed one.
        let sockets = wire.sockets();
        sockets.add_address(1, address(true, 2, 1), 24).unwrap();
        assert_eq!(announced(wire.turn()), [path(2).to]);
        sockets.remove_address(address(true, 0, 1)).unwrap();
        wire.turn();
        let claim = path(0).to_mac(EVERY_MAC).source(path(0).to);
        assert_eq!(wire.receive(packet::arp_request(claim)), [[0; 0]; 0]);
        let asked = packet::arp_request(path(0).to_mac(EVERY_MAC));
        assert_eq!(wire.receive(asked), [[0; 0]; 0]);
        wire.now += Duration::from_secs(3);
        assert_eq!(announced(wire.turn()), [path(2).to]);
    }
}

/// A SYN to a port without a listener.
fn syn() -> Segment {
    Segment {
        src_port: 9,
        dst_port: 9,
        flags: SYN,
        ..Segment::default()
    }
}

#[test]
fn neighbours_are_asked_and_errors_reported_from_the_address_of_their_network() {
    for mut wire in announcing() {
        wire.turn();
        wire.now += Duration::from_secs(10);
        wire.turn();
        let sockets = wire.sockets();
        for net in [1, 0] {
            let path = path(net);
            let host = SocketAddr::new(address(true, net, 2), PORT);
            let mut udp = sockets.bind_udp(0).unwrap();
            udp.try_send_to(b"hello", host).unwrap();
            let sent = wire.turn();
            assert_eq!(arp_ends(&sent[0]), (path.to, path.from));
            let sent = wire.receive(packet::arp_reply(path));
            assert_eq!((sent.len(), &sent[0][26..30]), (1, &path.to[..]));
            // No socket has this port.
            let sent = wire.receive(packet::udp(path, (9, 9), b"x"));
            assert_eq!(packet::protocol(&sent[0]), Some(ICMP));
            assert_eq!((&sent[0][26..30], sent[0][34]), (&path.to[..], 3));
            // There is no listener.
            let sent = wire.receive(syn().frame(path));
            assert_eq!(packet::protocol(&sent[0]), Some(TCP));
            assert_eq!(sent[0][26..30], path.to);
            // Packets from our own addresses or from a broadcast address get no answer.
            for from in [
                [10, 0, 0, 1],
                [10, 0, 1, 1],
                [10, 0, 0, 255],
                [10, 0, 1, 255],
            ] {
                let path = path.source(from);
                assert_eq!(wire.receive(syn().frame(path)), [[0; 0]; 0], "{from:?}");
                let datagram = packet::udp(path, (9, 9), b"x");
                assert_eq!(wire.receive(datagram), [[0; 0]; 0], "{from:?}");
            }
        }
        // The frame is for us, but the packet is for another host.
        let astray = Path {
            to: [10, 0, 1, 7],
            ..path(1)
        };
        assert_eq!(wire.receive(syn().frame(astray)), [[0; 0]; 0]);
    }
}
