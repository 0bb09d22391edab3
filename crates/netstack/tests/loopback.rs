//! A stack that talks to itself, over both families and in every variant: none of these packets
//! reaches its device, and the stack drops frames from the device that look like them.

#![cfg(feature = "testkit")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::Duration;
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Limits, SocketError, Sockets, Stack, TcpListener, TcpStream, UdpSocket};
use dominoes_testkit::hand::{self, Scripted, Shape};
use dominoes_testkit::packet::v6::{self, ICMPV6};
use dominoes_testkit::packet::{self, Mac, SYN, Segment, TCP, UDP};
use std::io::{Read, Write};

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const US_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const MAC: Mac = packet::mac_of([10, 0, 0, 1]);
const PORT: u16 = 7;
/// Bytes that go each way.
const BYTES: usize = 300_000;

/// All addresses of the stack itself.
const OWN: [IpAddr; 5] = [
    IpAddr::V4(US),
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V4(Ipv4Addr::new(127, 9, 8, 7)),
    IpAddr::V6(US_V6),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

fn setup() -> Setup {
    Setup::new(US.into(), 24, [1, 7]).ipv6(hand::ipv6().address(US_V6, 64))
}

/// A stack over a device whose frames are all checked.
struct Fixture(Scripted);

impl Fixture {
    fn new(shape: impl Into<Shape>) -> Fixture {
        Fixture::with(shape, setup())
    }

    fn with(shape: impl Into<Shape>, setup: Setup) -> Fixture {
        let mut fixture = Fixture(Scripted::new(shape, setup));
        fixture.turn();
        fixture
    }

    fn sockets(&self) -> Sockets {
        self.0.sockets()
    }

    /// Does all current work. Only messages about the stack's addresses leave.
    fn turn(&mut self) {
        self.0.now += Duration::from_micros(50);
        for frame in self.0.turn() {
            let is_v4 = frame[12..14] == [8, 0];
            let next = if is_v4 { frame[23] } else { frame[20] };
            assert_ne!(frame[..6], MAC, "{frame:02x?}");
            assert!(!is_v4 && next != TCP && next != UDP, "{frame:02x?}");
        }
    }

    fn connect(&mut self, to: SocketAddr) -> Result<TcpStream, SocketError> {
        let mut connecting = self.sockets().begin_connect(to)?;
        for _ in 0..100 {
            self.turn();
            if let Some(stream) = connecting.try_finish()? {
                return Ok(stream);
            }
        }
        Err(SocketError::WouldBlock)
    }

    /// Sends bytes from `from` to `to`, and checks that all arrive.
    fn transfer(&mut self, from: &mut TcpStream, to: &mut TcpStream) {
        let byte = |at: usize| (at * 7 + at / 251) as u8;
        let (mut written, mut read, mut idle) = (0, 0, 0);
        let mut buffer = vec![0; 20_000];
        while read < BYTES {
            let piece: Vec<u8> = (written..BYTES.min(written + 20_000)).map(byte).collect();
            let before = (written, read);
            if !piece.is_empty() {
                written += from.try_write(&piece).unwrap_or(0);
            }
            self.turn();
            let len = to.try_read(&mut buffer).unwrap_or(0);
            for found in &buffer[..len] {
                assert_eq!(*found, byte(read), "byte {read}");
                read += 1;
            }
            idle = if before == (written, read) {
                idle + 1
            } else {
                0
            };
            assert!(idle < 100_000, "it stands still at {read}");
        }
    }

    /// Checks a connection to `ip` in both directions, and its end.
    fn check_connection(&mut self, listener: &TcpListener, ip: IpAddr) {
        let to = SocketAddr::new(ip, listener.local_addr().unwrap().port());
        let mut here = self.connect(to).unwrap();
        let (mut there, from) = listener.try_accept().unwrap();
        assert_eq!(here.local_addr().unwrap().ip(), ip);
        assert_eq!(here.local_addr().unwrap(), from);
        assert_eq!(there.local_addr().unwrap(), to);
        self.transfer(&mut here, &mut there);
        self.transfer(&mut there, &mut here);
        here.shutdown_write();
        self.turn();
        assert_eq!(there.try_read(&mut [0; 8]), Ok(0));
    }
}

#[test]
fn connections_to_ourselves_carry_bytes_and_reach_no_device() {
    for variant in Variant::ALL {
        let mut fixture = Fixture::new(variant);
        let listener = fixture.sockets().listen(PORT, 8).unwrap();
        for ip in OWN {
            fixture.check_connection(&listener, ip);
            let closed = fixture.connect(SocketAddr::new(ip, PORT + 1));
            assert_eq!(closed.err(), Some(SocketError::Refused), "{variant}");
        }
    }
}

#[test]
fn whatever_we_refuse_ourselves_we_are_told() {
    for variant in Variant::ALL {
        let setup = setup().limits(Limits::default().resets_per_second(0).errors_per_second(0));
        let mut fixture = Fixture::with(variant, setup);
        for ip in OWN {
            let to = SocketAddr::new(ip, PORT);
            let closed = fixture.connect(to);
            assert_eq!(closed.err(), Some(SocketError::Refused), "{variant}");
            let mut datagrams = fixture.sockets().bind_udp(0).unwrap();
            datagrams.connect(to).unwrap();
            datagrams.try_send(b"hello").unwrap();
            fixture.turn();
            let refused = datagrams.try_recv_from(&mut [0; 8]);
            assert_eq!(refused.err(), Some(SocketError::Refused), "{variant}: {ip}");
        }
    }
}

#[test]
fn so_they_do_whichever_groups_their_ends_are_in() {
    let mut fixture = Fixture::new(Shape::THREE_GROUPS);
    let listener = fixture.sockets().listen(PORT, 8).unwrap();
    for ip in OWN.into_iter().cycle().take(20) {
        fixture.check_connection(&listener, ip);
    }
}

#[test]
fn datagrams_to_ourselves_arrive_the_longest_and_the_refused_ones_too() {
    for mut fixture in Shape::all().map(Fixture::new) {
        let sockets = fixture.sockets();
        let mut here = sockets.bind_udp(PORT).unwrap();
        let mut there = sockets.bind_udp(0).unwrap();
        let from_port = there.local_addr().unwrap().port();
        let mut buffer = vec![0; 70_000];
        for ip in OWN {
            let to = SocketAddr::new(ip, PORT);
            for len in [0, 1, 1400, 20_000, 65_000] {
                let sent: Vec<u8> = (0..len).map(|at| (at / 3) as u8).collect();
                there.try_send_to(&sent, to).unwrap();
                fixture.turn();
                let (got, from) = here.try_recv_from(&mut buffer).unwrap();
                assert_eq!(from, SocketAddr::new(ip, from_port));
                assert!(buffer[..got] == sent);
                here.try_send_to(&sent[..len.min(9)], from).unwrap();
                fixture.turn();
                let (got, from) = there.try_recv_from(&mut buffer).unwrap();
                assert_eq!((got, from), (len.min(9), to));
            }
            // The port is closed, and the stack reports it.
            let mut alone = sockets.bind_udp(0).unwrap();
            alone.connect(SocketAddr::new(ip, PORT + 1)).unwrap();
            alone.try_send(b"hello").unwrap();
            fixture.turn();
            let refused = alone.try_recv_from(&mut buffer);
            assert_eq!(refused.err(), Some(SocketError::Refused), "{ip}");
        }
    }
}

#[test]
fn what_is_bound_to_this_host_alone_is_not_heard_from_outside() {
    for variant in Variant::ALL {
        let mut fixture = Fixture::new(variant);
        let sockets = fixture.sockets();
        let _entered = sockets.enter();
        for (ip, peer) in [
            (Ipv4Addr::LOCALHOST.into(), "10.0.0.9:9"),
            (Ipv6Addr::LOCALHOST.into(), "[2001:db8::9]:9"),
        ] {
            let listener = TcpListener::bind((ip, 0)).unwrap();
            let at = listener.local_addr().unwrap();
            assert_eq!(at.ip(), ip);
            fixture.check_connection(&listener, ip);
            let mut udp = UdpSocket::bind(at).unwrap();
            assert_eq!(udp.local_addr().unwrap(), at);
            // Another of our addresses does not lead to it, on the wire or not.
            let other: IpAddr = if ip.is_ipv4() {
                US.into()
            } else {
                US_V6.into()
            };
            let other = SocketAddr::new(other, at.port());
            assert_eq!(fixture.connect(other).err(), Some(SocketError::Refused));
            let mut from = sockets.bind_udp(0).unwrap();
            from.try_send_to(b"hello", other).unwrap();
            fixture.turn();
            let would_block = Some(SocketError::WouldBlock);
            assert_eq!(udp.try_recv_from(&mut [0; 8]).err(), would_block);
            from.try_send_to(b"hello", at).unwrap();
            fixture.turn();
            assert_eq!(udp.try_recv_from(&mut [0; 8]).unwrap().0, 5);
            // It cannot send to other hosts.
            let outside = udp.try_send_to(b"hello", peer.parse().unwrap());
            assert_eq!(outside, Err(SocketError::NoRoute));
        }
    }
}

#[test]
fn frames_of_the_wire_that_look_like_ours_are_dropped() {
    for variant in Variant::ALL {
        let mut fixture = Fixture::new(variant);
        let listener = fixture.sockets().listen(PORT, 8).unwrap();
        let mut udp = fixture.sockets().bind_udp(PORT).unwrap();
        // The loop is in use, and so are its header templates.
        let mut here = fixture.connect(SocketAddr::new(US.into(), PORT)).unwrap();
        let (mut there, _) = listener.try_accept().unwrap();
        fixture.transfer(&mut here, &mut there);
        let own = US.octets();
        let local = Ipv4Addr::LOCALHOST.octets();
        for (from, to) in [(own, own), (local, local), (own, local), (local, own)] {
            let path = packet::Path::new(from, to).from_mac(MAC).to_mac(MAC);
            let syn = Segment {
                src_port: 4000,
                dst_port: PORT,
                flags: SYN,
                ..Segment::default()
            };
            fixture.0.script.push(syn.frame(path));
            fixture.0.script.push(packet::udp(path, (4000, PORT), b"x"));
            let ping = packet::echo(7, b"ping");
            fixture.0.script.push(packet::ip(path, packet::ICMP, &ping));
        }
        for from in [US_V6, Ipv6Addr::LOCALHOST] {
            for to in [US_V6, Ipv6Addr::LOCALHOST] {
                let path = v6::Path {
                    from_mac: MAC,
                    to_mac: MAC,
                    from,
                    to,
                    hop_limit: 64,
                };
                let mut syn = Vec::new();
                packet::tcp_header(&mut syn, (4000, PORT), (1, 0), SYN, 1000, &[]);
                fixture.0.script.push(v6::frame(path, TCP, &syn));
                let mut datagram = Vec::new();
                datagram.extend([4000, PORT, 8, 0].map(u16::to_be_bytes).as_flattened());
                let sum = !v6::transport_sum(from, to, UDP, &datagram);
                datagram[6..].copy_from_slice(&sum.to_be_bytes());
                fixture.0.script.push(v6::frame(path, UDP, &datagram));
                let ping = [128, 0, 0, 0, 0, 7, 0, 1];
                fixture.0.script.push(v6::frame(path, ICMPV6, &ping));
            }
        }
        fixture.turn();
        let stats = fixture.0.stacks[0].stats();
        assert_eq!(stats.state.opened, 2, "{variant}");
        assert_eq!(stats.state.no_connection, 0, "{variant}");
        let would_block = Some(SocketError::WouldBlock);
        assert_eq!(listener.try_accept().err(), would_block);
        assert_eq!(udp.try_recv_from(&mut []).err(), would_block);
    }
}

#[test]
fn threads_of_a_stack_talk_to_themselves() {
    for (variant, replicas, count) in [
        ("single", 1, 1),
        ("locked", 2, 1),
        ("replicated", 2, 1),
        ("single", 1, 2),
    ] {
        let (device, _peer) = memory::pair(MemoryConfig::default());
        let stack = Stack::builder("10.0.0.1/24")
            .variant(variant.parse().unwrap())
            .replicas(replicas)
            .groups(count)
            .start(device)
            .unwrap();
        let listener = stack.listen(PORT, 8).unwrap();
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        });
        let mut stream = stack.connect((Ipv4Addr::LOCALHOST, PORT)).unwrap();
        let sent: Vec<u8> = (0..BYTES).map(|at| (at * 3) as u8).collect();
        stream.write_all(&sent).unwrap();
        stream.shutdown_write();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(got == sent, "{variant}");
        echo.join().unwrap();
        assert!(stack.compare().is_ok());
    }
}
