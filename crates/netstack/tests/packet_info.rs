//! Information that sockets may request about received datagrams: destination address, interface
//! and time. Over both families and in every variant.

#![cfg(feature = "testkit")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Datagram, Limits};
use dominoes_testkit::hand::{self, Shape, Wired, address};

const PORT: u16 = 7;
/// Bytes of each queue; it wraps around several times.
const QUEUE: u32 = 16 << 10;

/// With a short queue.
fn setup(net: u8, host: u8) -> Setup {
    let limits = Limits::default().udp_receive_buffer(QUEUE);
    hand::setup(net, host).limits(limits)
}

/// Every shape with one interface and with two.
fn all() -> impl Iterator<Item = Wired> {
    let shapes = Shape::all().flat_map(|shape| [(shape, 1), (shape, 2)]);
    shapes.map(|(shape, networks)| Wired::interfaces(shape, networks, setup))
}

#[test]
fn datagrams_say_where_they_were_sent_to_and_when_they_came() {
    for mut fixture in all() {
        let mut ours = fixture.sockets().bind_udp(PORT).unwrap();
        let groups = [IpAddr::from([239, 1, 2, 3]), "ff05::77".parse().unwrap()];
        ours.join_multicast_v4(&Ipv4Addr::new(239, 1, 2, 3), &Ipv4Addr::UNSPECIFIED)
            .unwrap();
        let IpAddr::V6(group) = groups[1] else {
            unreachable!("it is not IPv4");
        };
        ours.join_multicast_v6(&group, 0).unwrap();
        let mut into = vec![Datagram::new(2000); 40];
        for round in 0..12_usize {
            // Requested or not: both kinds of records are in the queue.
            let asked = round % 3 != 0;
            ours.set_packet_info(asked);
            fixture.turn();
            for net in 1..=fixture.hosts.len() {
                let mut theirs = fixture.hosts[net - 1].sockets().bind_udp(0).unwrap();
                theirs.set_broadcast(true).unwrap();
                let net = net as u8;
                let mut to = vec![address(true, net, 1), address(false, net, 1)];
                to.push([10, 0, net, 255].into());
                if net == 1 {
                    to.extend(groups);
                }
                let began = fixture.now;
                for (number, to) in (0..).zip(&to) {
                    let len = round * 97 + number * 31;
                    let text = vec![number as u8; len];
                    theirs
                        .try_send_to(&text, SocketAddr::new(*to, PORT))
                        .unwrap();
                }
                fixture.turn();
                let count = ours.recv_many(&mut into).unwrap();
                let mut got: Vec<_> = into[..count].iter().collect();
                got.sort_by_key(|datagram| datagram.bytes().len());
                assert_eq!(got.len(), to.len());
                for ((number, to), got) in (0..).zip(&to).zip(got) {
                    assert_eq!(got.bytes().len(), round * 97 + number * 31);
                    assert!(got.bytes().iter().all(|byte| *byte == number as u8));
                    assert_eq!(got.info.is_some(), asked);
                    if let Some(info) = got.info {
                        assert_eq!((info.local, info.interface), (*to, net.into()));
                        assert!(began <= info.arrived && info.arrived <= fixture.now);
                    }
                }
                // Likewise in place.
                theirs
                    .try_send_to(b"hello", SocketAddr::new(to[1], PORT))
                    .unwrap();
                fixture.turn();
                let received = ours.try_peek().unwrap();
                assert_eq!(received.parts.0.len() + received.parts.1.len(), 5);
                assert_eq!(received.info.map(|info| info.local), asked.then_some(to[1]));
                assert_eq!(ours.try_recv_from(&mut [0; 8]).unwrap().0, 5);
            }
        }
    }
}

#[test]
fn a_queue_that_is_full_of_such_datagrams_loses_the_others_and_goes_on() {
    for mut fixture in all() {
        let mut ours = fixture.sockets().bind_udp(PORT).unwrap();
        ours.set_packet_info(true);
        fixture.turn();
        let mut theirs = fixture.hosts[0].sockets().bind_udp(0).unwrap();
        let to = SocketAddr::new(address(false, 1, 1), PORT);
        // After this the neighbours know each other.
        theirs.try_send_to(b"hello", to).unwrap();
        fixture.turn();
        assert_eq!(ours.try_recv_from(&mut [0; 8]).unwrap().0, 5);
        for round in 0..20_u8 {
            for _ in 0..(QUEUE / 128 + 10) {
                theirs.try_send_to(&[round; 33], to).unwrap();
            }
            fixture.turn();
            let mut count = 0;
            let mut bytes = [0; 64];
            while let Ok((len, _)) = ours.try_recv_from(&mut bytes) {
                assert!(len == 33 && bytes[..33] == [round; 33]);
                count += 1;
            }
            // A header of 32 bytes, the requested information in another 32, and 64 bytes of padded
            // payload.
            assert_eq!(count, QUEUE / 128);
            fixture.turn();
        }
    }
}
