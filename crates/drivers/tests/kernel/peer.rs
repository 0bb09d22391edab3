//! Devices whose other end is the kernel's stack.

use super::af_xdp::{open_xdp, ring_options};
use super::interfaces::{Peer, TapInterface, Veth, bring_up, ip, tun, wait_until_running};
use super::support::packet::{self, ACK, Path, RST, SYN, Tcp, experiment};
use super::support::{Port, TIMEOUT, named};
use super::tun::adopted;
use super::{Missing, RINGS};
use dominoes_drivers::af_packet::AfPacketOptions;
use dominoes_drivers::af_xdp::{AfXdp, AfXdpOptions};
use dominoes_drivers::tap::Tap;
use dominoes_drivers::tun::Tun;
use dominoes_drivers::{DeviceError, GsoKind, RxChecksum, RxChecksumSupport, TxFrame};
use libtest_mimic::Trial;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// A test of a device whose other end is the kernel.
type PeerTest = fn(Port, Peer);

pub(crate) fn trials(missing: &Missing) -> Vec<Trial> {
    let mut trials = Vec::new();
    let with_peer: [(&str, PeerTest); 6] = named! {
        the_kernel_asks_for_our_address
        a_datagram_reaches_the_kernel
        one_frame_becomes_fifty_datagrams
        tcp_moves_in_large_frames_both_ways
        a_link_that_goes_down_says_so_and_comes_back
        a_deleted_interface_is_gone
    };
    for (name, test) in with_peer {
        for (kind, ring) in RINGS {
            trials.push(missing.packet(&format!("packet_{kind}::{name}"), move || {
                let veth = Veth::new();
                let port = veth.open_left_with(AfPacketOptions::default().ring(ring));
                test(port, veth.peer());
            }));
        }
        // AF_XDP has no merged frames.
        if name != "tcp_moves_in_large_frames_both_ways" {
            trials.push(missing.xdp(&format!("xdp::{name}"), move || {
                let veth = Veth::new();
                let peer = veth.peer();
                let options = ring_options().address(peer.our_address());
                test(open_xdp(&veth.left, &options), peer);
            }));
        }
        if name != "tcp_moves_in_large_frames_both_ways" {
            trials.push(
                missing.xdp(&format!("xdp_sending_packets::{name}"), move || {
                    let veth = Veth::new();
                    let peer = veth.peer();
                    let options = AfXdpOptions::default().address(peer.our_address());
                    test(open_xdp(&veth.left, &options), peer);
                }),
            );
        }
        #[cfg(feature = "pnet")]
        // `Pnet` supports neither checksum offload nor segmentation.
        if [
            "the_kernel_asks_for_our_address",
            "a_deleted_interface_is_gone",
        ]
        .contains(&name)
        {
            trials.push(missing.packet(&format!("pnet::{name}"), move || {
                let veth = Veth::new();
                let port = dominoes_drivers::pnet::Pnet::open(&veth.left).unwrap();
                test(Port::new(port), veth.peer());
            }));
        }
        trials.push(missing.tap(&format!("tap::{name}"), move || {
            let (tap, interface) = TapInterface::new(Tap::options());
            test(tap, interface.peer());
        }));
        // There is no ARP.
        if name != "the_kernel_asks_for_our_address" {
            trials.push(missing.tap(&format!("tun::{name}"), move || {
                let (tun, peer) = tun(Tun::options());
                test(tun, peer);
            }));
            trials.push(
                missing.tap(&format!("tun_of_a_descriptor::{name}"), move || {
                    let (tun, peer) = adopted(true);
                    test(tun, peer);
                }),
            );
        }
        if name != "the_kernel_asks_for_our_address"
            && name != "tcp_moves_in_large_frames_both_ways"
        {
            trials.push(
                missing.tap(&format!("tun_without_headers::{name}"), move || {
                    let (tun, peer) = adopted(false);
                    test(tun, peer);
                }),
            );
        }
    }
    trials.extend([
        missing.trial(
            "packet::tcp_arrives_merged_by_our_interface",
            "tools",
            missing.packet.clone(),
            tcp_arrives_merged_by_our_interface,
        ),
        missing.tap("tap_merged::tcp_leaves_in_large_frames", || {
            let options = Tap::options().segmentation(false).merged(true);
            let (tap, interface) = TapInterface::new(options);
            tcp_leaves_in_large_frames(tap, interface.peer());
        }),
        missing.xdp("xdp_sending_packets::tcp_leaves_in_large_frames", || {
            let veth = Veth::new();
            let peer = veth.peer();
            let options = AfXdpOptions::default()
                .address(peer.our_address())
                .trust_checksums(true);
            tcp_leaves_in_large_frames(Port::new(AfXdp::open(&veth.left, &options).unwrap()), peer);
        }),
    ]);
    trials
}

fn the_kernel_asks_for_our_address(mut port: Port, peer: Peer) {
    let ours = peer.our_address();
    peer.socket().send_to(b"hello", (ours, 9)).unwrap();
    let request = port
        .claim_exactly(1, |frame| packet::is_arp_request(frame, ours))
        .remove(0);
    assert_eq!(request[..6], [0xff; 6]);
    assert_eq!(request[6..12], peer.mac());
}

fn a_datagram_reaches_the_kernel(mut port: Port, peer: Peer) {
    peer.introduce(port.mac);
    let socket = peer.socket();
    let path = peer.path(&port, 7, socket.local_addr().unwrap().port());
    let mut buffer = [0; 2000];

    // First the device computes the checksum, then we do.
    let packet = packet::udp(path, b"left to the device", None);
    let bytes = packet.completed();
    let frame = match port.caps.tx_checksum {
        true => packet.frame(),
        false => TxFrame::new(&bytes),
    };
    assert_eq!(port.tx.transmit(&[frame]), Ok(1));
    let (len, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(
        (&buffer[..len], from.port()),
        (&b"left to the device"[..], 7)
    );
    let bytes = packet::udp(path, b"done by us", None).completed();
    assert_eq!(port.tx.transmit(&[TxFrame::new(&bytes)]), Ok(1));
    assert_eq!(socket.recv(&mut buffer).unwrap(), 10);

    // In the other direction the kernel leaves the checksum to us, and the metadata shows it.
    socket.send_to(b"answer", from).unwrap();
    let answer = port
        .claim_exactly(1, |frame| packet::parse_udp(frame) == Some(b"answer"))
        .remove(0);
    let expected = match port.caps.rx_checksum {
        RxChecksumSupport::PerFrame => RxChecksum::Partial {
            start: 34,
            offset: 6,
        },
        _ => RxChecksum::Verify,
    };
    assert_eq!(answer.meta.checksum, expected);
    assert_eq!(answer.meta.gso, None);
}

fn one_frame_becomes_fifty_datagrams(mut port: Port, peer: Peer) {
    if port.caps.uso_max_bytes == 0 {
        return;
    }
    let socket = peer.socket();
    let path = peer.path(&port, 7, socket.local_addr().unwrap().port());
    let payload: Vec<u8> = (0..50_000u32).map(|at| (at / 1000) as u8).collect();
    let packet = packet::udp(path, &payload, Some(1000));
    assert_eq!(port.tx.transmit(&[packet.frame()]), Ok(1));
    let mut buffer = [0; 2000];
    for number in 0..50 {
        let len = socket.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..len], [number; 1000]);
    }
}

/// A TCP connection from the kernel to us. It sends a megabyte; we acknowledge, and send one large
/// frame back.
fn tcp_moves_in_large_frames_both_ways(port: Port, peer: Peer) {
    tcp_moves(port, peer, 40_000..=65_549);
}

/// The kernel sends frames no longer than the link allows, and accepts longer ones.
fn tcp_leaves_in_large_frames(port: Port, peer: Peer) {
    tcp_moves(port, peer, 1514..=1514);
}

/// Our interface merges segments that the kernel at the other end has divided.
fn tcp_arrives_merged_by_our_interface() -> Result<(), String> {
    let veth = Veth::new();
    let (left, right) = (veth.left.clone(), veth.right.clone());
    for arguments in [
        ["-K", &right, "tso", "off", "gso", "off"],
        ["-K", &left, "gro", "on", "gso", "on"],
    ] {
        let done = Command::new("ethtool").args(arguments).output();
        let done = done.map_err(|error| format!("needs the command ethtool: {error}"))?;
        assert!(done.status.success(), "{done:?}");
    }
    let port = veth.open_left();
    tcp_moves(port, veth.peer(), 2_000..=65_549);
    Ok(())
}

/// The kernel sends a megabyte in frames, the longest of which has a length in `expected`; the
/// answer is one frame.
fn tcp_moves(mut port: Port, peer: Peer, expected: RangeInclusive<usize>) {
    const BYTES: usize = 1 << 20;
    const ANSWER: usize = 40 * 1460;
    let byte_at = |at: usize| (at / 7) as u8;
    peer.introduce(port.mac);
    let ours = (peer.our_address(), 9000);
    let kernel = thread::spawn(move || {
        let mut stream = TcpStream::connect(ours).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
            .write_all(&(0..BYTES).map(byte_at).collect::<Vec<_>>())
            .unwrap();
        let mut answer = vec![0; ANSWER];
        stream.read_exact(&mut answer).unwrap();
        answer
    });

    let Port { rx, tx, caps, mac } = port;
    let mut path = Path {
        from_mac: mac,
        to_mac: peer.mac(),
        from: ours,
        to: (peer.address(), 0),
    };
    let mut tx = tx;
    let mut send = |path, fields, payload: &[u8], size| {
        let packet = packet::tcp(path, fields, payload, size);
        assert_eq!(tx.transmit(&[packet.frame()]), Ok(1));
        assert_eq!(tx.stats().dropped, 0);
    };
    port = Port {
        rx,
        tx: Box::new(Mute),
        caps,
        mac,
    };
    let mut next = 0; // the next sequence number expected from the kernel
    let mut received = 0;
    let mut longest = 0;
    let mut large = 0;
    port.claim_while(|frame| {
        let Some((from, fields, payload)) = packet::parse_tcp(&frame) else {
            return true;
        };
        assert_ne!(
            frame.meta.checksum,
            RxChecksum::Verify,
            "the kernel leaves checksums to us"
        );
        if fields.flags & SYN != 0 {
            path.to.1 = from;
            next = fields.seq.wrapping_add(1);
            send(
                path,
                Tcp {
                    seq: 1000,
                    ack: next,
                    flags: SYN | ACK,
                },
                &[],
                None,
            );
        } else if fields.seq == next && !payload.is_empty() {
            assert!(
                payload
                    .iter()
                    .enumerate()
                    .all(|(at, &byte)| byte == byte_at(received + at))
            );
            received += payload.len();
            next = next.wrapping_add(payload.len() as u32);
            longest = longest.max(frame.len());
            if let Some(gso) = frame.meta.gso {
                assert_eq!((gso.kind, gso.size), (GsoKind::Tcp4, 1460));
                assert!(frame.len() > 1514);
                large += 1;
            }
            send(
                path,
                Tcp {
                    seq: 1001,
                    ack: next,
                    flags: ACK,
                },
                &[],
                None,
            );
        } else if !payload.is_empty() {
            // Lost or out of order: request the missing segment.
            send(
                path,
                Tcp {
                    seq: 1001,
                    ack: next,
                    flags: ACK,
                },
                &[],
                None,
            );
        }
        received < BYTES
    });
    assert!(
        expected.contains(&longest) && (large > 0) == (longest > 1514),
        "{large} merged frames, the longest {longest} bytes"
    );

    let answer: Vec<u8> = (0..ANSWER).map(byte_at).collect();
    send(
        path,
        Tcp {
            seq: 1001,
            ack: next,
            flags: ACK,
        },
        &answer,
        Some(1460),
    );
    assert!(kernel.join().unwrap() == answer);
    send(
        path,
        Tcp {
            seq: 1001 + ANSWER as u32,
            ack: next,
            flags: RST | ACK,
        },
        &[],
        None,
    );
}

/// A placeholder for a sending half that is in use elsewhere.
struct Mute;

impl dominoes_drivers::DeviceTx for Mute {
    fn transmit(&mut self, _: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        unreachable!("the sending half is elsewhere")
    }

    fn stats(&self) -> dominoes_drivers::TxStats {
        dominoes_drivers::TxStats::default()
    }
}

/// Waits until the device reports an error.
fn error_of(port: &mut Port) -> DeviceError {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let result = port.rx.wait(Some(Duration::from_millis(200)));
        match result.and_then(|()| port.rx.claim(32, &mut Vec::new()).map(drop)) {
            Err(error) => return error,
            Ok(()) => assert!(Instant::now() < deadline, "no error was reported"),
        }
    }
}

fn a_link_that_goes_down_says_so_and_comes_back(mut port: Port, peer: Peer) {
    let is_tap = peer.ours == peer.kernels;
    let bytes = experiment(peer.mac(), port.mac, 1, 60);
    ip(&format!("link set {} down", peer.ours));
    let down = DeviceError::Down {
        interface: peer.ours.clone(),
    };
    if !is_tap {
        assert_eq!(error_of(&mut port), down);
    }
    assert_eq!(port.tx.transmit(&[TxFrame::new(&bytes)]), Err(down.clone()));
    assert!(down.is_temporary());

    // The error is reported once; later waits last their full time.
    let begin = Instant::now();
    for _ in 0..3 {
        port.rx.wait(Some(Duration::from_millis(50))).unwrap();
        assert_eq!(port.rx.claim(32, &mut Vec::new()), Ok(0));
    }
    assert!(
        begin.elapsed() > Duration::from_millis(140),
        "a wait on a link that is down returned too soon"
    );

    bring_up(&peer.ours);
    wait_until_running(&peer.kernels);
    a_datagram_reaches_the_kernel(port, peer);
}

fn a_deleted_interface_is_gone(mut port: Port, peer: Peer) {
    let bytes = experiment(peer.mac(), port.mac, 1, 60);
    let gone = DeviceError::Gone {
        interface: peer.ours.clone(),
    };
    let ours = peer.ours.clone();
    let deleter = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        ip(&format!("link del {ours}"));
    });
    // The interface goes down first, which the device may report.
    let mut error = error_of(&mut port);
    if error.is_temporary() {
        error = error_of(&mut port);
    }
    deleter.join().unwrap();
    assert_eq!(error, gone);
    assert_eq!(error_of(&mut port), gone, "and stays so");
    assert_eq!(port.tx.transmit(&[TxFrame::new(&bytes)]), Err(gone));
}
