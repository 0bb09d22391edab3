//! Datagrams that must not be fragmented: DF, and errors of paths that are too narrow for them.

#![cfg(feature = "testkit")]

use std::net::SocketAddr;

use dominoes_netstack::testkit::{Host, Variant};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{SocketError, UdpSocket};
use dominoes_testkit::net::{HostConfig, Net};
use dominoes_testkit::packet::{self, ETHERNET, FAR, Family, ICMP, LOWER, Path, STACK, TO_STACK};

/// A stack of 10.0.0.1 that knows 10.0.0.2.
struct Stack {
    host: Host,
    now: Instant,
}

impl Stack {
    fn new(variant: Variant) -> Stack {
        println!("{variant}");
        let setup = Setup::new(STACK.into(), 24, [1, 2]);
        let mut stack = Stack {
            host: Host::new(variant, setup, 1).unwrap(),
            now: Instant::from_millis(1),
        };
        stack.host.inject(packet::arp_request(TO_STACK));
        stack.sent();
        stack
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        self.now += Duration::from_millis(1);
        self.host.turn(self.now);
        self.host.take_sent().into_iter().collect()
    }

    /// A router with an MTU of `mtu` reports that it dropped this packet.
    fn drop_packet(&mut self, frame: &[u8], mtu: u16) {
        let about = &frame[ETHERNET..LOWER + 8];
        let error = packet::icmp_error([3, 4], mtu, about);
        let router = TO_STACK.source([10, 0, 0, 9]);
        self.host.inject(packet::ip(router, ICMP, &error));
        self.sent();
    }
}

fn is_df(frame: &[u8]) -> bool {
    assert_eq!(packet::sum(&frame[ETHERNET..LOWER]), 0xffff);
    frame[ETHERNET + 6] & 0x40 != 0
}

fn send(socket: &mut UdpSocket, len: usize, to: [u8; 4]) -> Result<(), SocketError> {
    socket.try_send_to(&vec![7; len], SocketAddr::new(to.into(), 9))
}

#[test]
fn a_datagram_is_sent_whole_with_df_or_refused_with_the_mtu() {
    for variant in Variant::ALL {
        let mut stack = Stack::new(variant);
        let mut socket = stack.host.sockets().bind_udp(5).unwrap();
        send(&mut socket, 1473, FAR).unwrap();
        let frames = stack.sent();
        assert_eq!(frames.len(), 2);
        assert!(frames.iter().all(|frame| !is_df(frame)));

        socket.set_dont_fragment(true);
        let refused = Err(SocketError::LongerThanPath { mtu: 1500 });
        assert_eq!(send(&mut socket, 1473, FAR), refused);
        for len in [1472, 1472, 100] {
            send(&mut socket, len, FAR).unwrap();
        }
        let frames = stack.sent();
        let lens: Vec<_> = frames.iter().map(|frame| frame.len() - LOWER - 8).collect();
        assert_eq!(lens, [1472, 1472, 100]);
        assert!(frames.iter().all(|frame| is_df(frame)));
        // A datagram that waits for its next hop to be resolved also has DF.
        let other = [10, 0, 0, 7];
        send(&mut socket, 1472, other).unwrap();
        assert_eq!(packet::asked(&stack.sent()[0]), Some(other));
        stack
            .host
            .inject(packet::arp_reply(Path::new(other, STACK)));
        let frames = stack.sent();
        assert!(frames.len() == 1 && is_df(&frames[0]));
    }
}

#[test]
fn a_connected_socket_is_told_of_a_path_that_is_narrower_if_it_asked_for_that() {
    for variant in Variant::ALL {
        let mut stack = Stack::new(variant);
        let mut socket = stack.host.sockets().bind_udp(5).unwrap();
        socket.connect(SocketAddr::new(FAR.into(), 9)).unwrap();
        socket.set_dont_fragment(true);
        socket.try_send(&[7; 1400]).unwrap();
        let frames = stack.sent();
        stack.drop_packet(&frames[0], 1280);
        let narrow = Err(SocketError::LongerThanPath { mtu: 1280 });
        assert_eq!(socket.try_send(&[7; 1400]), narrow);
        assert_eq!(socket.try_send(&[7; 1252]), Ok(()));
        let frames = stack.sent();
        // An old router does not report its MTU.
        stack.drop_packet(&frames[0], 0);
        let narrow = Err(SocketError::LongerThanPath { mtu: 68 });
        assert_eq!(socket.try_send(&[7; 1400]), narrow);

        socket.set_dont_fragment(false);
        socket.try_send(&[7; 1400]).unwrap();
        let frames = stack.sent();
        stack.drop_packet(&frames[0], 1280);
        assert_eq!(socket.try_send(&[7; 1400]), Ok(()));
    }
}

#[test]
fn over_ipv6_nothing_is_cut_either() {
    for variant in Variant::ALL {
        let mut net = Net::new(3);
        let config = HostConfig::new(variant).family(Family::V6);
        let [server, client] = [0, 1].map(|_| net.add(config.clone()).unwrap());
        net.pass(Duration::from_secs(3));
        let mut receiving = net.sockets(server).bind_udp(7).unwrap();
        let mut sending = net.sockets(client).bind_udp(0).unwrap();
        let remote = net.address_of(server, 7);
        sending.set_dont_fragment(true);
        assert!(sending.dont_fragment());
        let refused = Err(SocketError::LongerThanPath { mtu: 1500 });
        assert_eq!(sending.try_send_to(&[1; 1453], remote), refused);
        assert_eq!(sending.try_send_to(&[1; 1452], remote), Ok(()));
        net.pass(Duration::from_millis(100));
        let (len, _) = receiving.try_recv_from(&mut [0; 2000]).unwrap();
        assert_eq!(len, 1452);
        assert_eq!(net.host(server).pump_stats().fragments, 0);
    }
}
