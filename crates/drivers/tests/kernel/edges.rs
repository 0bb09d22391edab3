//! Surprises of the kernel: frames that it loses silently, and how the devices report that.

use std::env;
use std::process::Command;

use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions, RxRing};
use dominoes_drivers::af_xdp::{AfXdp, XdpMode};
use dominoes_drivers::{Gso, GsoKind, RxChecksum, TxChecksum, TxFrame, TxMeta, complete_checksum};

use super::af_xdp::{open_xdp, ring_options};
use super::interfaces::{Veth, ip};
use super::support::packet::{self, experiment, is_experiment};
use super::support::{Port, TIMEOUT};
use super::{Missing, OPEN, Trial};
use std::time::Instant;

pub(crate) fn trials(missing: &Missing) -> Vec<Trial> {
    vec![
        missing.xdp(
            "xdp::a_checksum_that_the_peer_left_unfinished_is_not_vouched_for",
            an_unfinished_checksum,
        ),
        missing.xdp(
            "xdp_generic::frames_of_several_segments_are_counted_as_dropped",
            several_segments_at_once,
        ),
        missing.xdp(
            "xdp::a_frame_beyond_a_shrunken_mtu_does_not_stop_the_others",
            a_shrunken_mtu,
        ),
        missing.xdp(
            "xdp::pieces_of_a_long_frame_share_one_checksum",
            a_checksum_over_pieces,
        ),
        missing.xdp(
            "xdp::a_burst_beyond_what_one_call_moves_leaves_whole",
            a_long_burst,
        ),
        missing.packet(
            "packet::frames_of_other_interfaces_stay_away",
            frames_of_other_interfaces,
        ),
        missing.packet(
            "packet::without_offloads_frames_of_several_segments_come_whole",
            several_segments_without_offloads,
        ),
        missing.trial(
            "xdp::a_limit_of_locked_memory_is_named",
            "tools",
            missing.xdp.clone(),
            a_limit_of_locked_memory,
        ),
    ]
}

/// A datagram whose checksum is left to the device, or several of them of `gso` bytes each.
fn datagram(
    veth: &Veth,
    from: &Port,
    to: &Port,
    len: usize,
    gso: Option<u16>,
) -> (Vec<u8>, TxMeta) {
    let path = packet::Path {
        from_mac: from.mac,
        to_mac: to.mac,
        from: (veth.peer().our_address(), 7),
        to: (veth.peer().address(), 7),
    };
    let udp = packet::udp(path, &vec![7; len], gso);
    ([&udp.head[..], &udp.payload].concat(), udp.meta)
}

fn an_unfinished_checksum() {
    let veth = Veth::new();
    for trust in [false, true] {
        let options = ring_options().trust_checksums(trust);
        let device = AfXdp::open(&veth.left, &options).unwrap();
        assert!(
            device
                .advice()
                .is_some_and(|advice| advice.contains("ethtool -K"))
                != trust
        );
        let mut port = Port::new(device);
        let mut other = veth.open_right();
        let (bytes, meta) = datagram(&veth, &other, &port, 100, None);
        let TxChecksum::Partial { start, offset } = meta.checksum else {
            panic!("the test sends an unfinished one");
        };
        let frame = TxFrame {
            meta,
            ..TxFrame::new(&bytes)
        };
        assert_eq!(other.tx.transmit(&[frame]), Ok(1));
        let got = port.claim_exactly(1, |frame| packet::parse_udp(frame).is_some());
        let told = if trust {
            RxChecksum::Valid
        } else {
            RxChecksum::Verify
        };
        assert_eq!(got[0].meta.checksum, told);
        assert_eq!(got[0].bytes(), bytes, "it comes as it was sent");
        let mut complete = bytes.clone();
        assert!(complete_checksum(&mut complete, start, offset));
        assert_ne!(complete, bytes, "who verifies it finds it wrong");
    }
}

fn several_segments_at_once() {
    let veth = Veth::new();
    let mut port = open_xdp(&veth.left, &ring_options().mode(XdpMode::Generic));
    let mut other = veth.open_right();
    let (bytes, meta) = datagram(&veth, &other, &port, 20_000, Some(1000));
    assert!(matches!(
        meta.gso,
        Some(Gso {
            kind: GsoKind::Udp,
            ..
        })
    ));
    let frame = TxFrame {
        meta,
        ..TxFrame::new(&bytes)
    };
    assert_eq!(other.tx.transmit(&[frame]), Ok(1));
    let deadline = Instant::now() + TIMEOUT;
    let mut frames = Vec::new();
    while port.rx.stats().dropped == 0 && port.rx.stats().truncated == 0 {
        port.rx.claim(32, &mut frames).unwrap();
        assert!(
            !frames
                .drain(..)
                .any(|frame| packet::parse_udp(&frame).is_some()),
            "it passes by now: say so in the documents"
        );
        assert!(Instant::now() < deadline, "{:?}", port.rx.stats());
    }
}

fn a_shrunken_mtu() {
    let veth = Veth::new();
    let mut port = open_xdp(&veth.left, &ring_options());
    let mut other = veth.open_right();
    ip(&format!("link set {} mtu 1000", veth.left));
    ip(&format!("link set {} mtu 1000", veth.right));
    // The kernel takes such a frame, drops it, and returns busy.
    let long = experiment(other.mac, port.mac, 1, 1514);
    let short = experiment(other.mac, port.mac, 2, 1014);
    for _ in 0..100 {
        let frames = [TxFrame::new(&long), TxFrame::new(&short)];
        let mut taken = 0;
        let deadline = Instant::now() + TIMEOUT;
        while taken < 2 {
            taken += port.tx.transmit(&frames[taken..]).unwrap();
            assert!(Instant::now() < deadline, "{:?}", port.tx.stats());
        }
        let got = other.claim_exactly(1, |frame| is_experiment(frame));
        assert_eq!(got[0].bytes(), short);
    }
}

fn a_checksum_over_pieces() {
    let veth = Veth::new();
    for interface in [&veth.left, &veth.right] {
        ip(&format!("link set {interface} mtu 9000"));
    }
    let mut port = open_xdp(&veth.left, &ring_options());
    assert!(port.caps.tx_checksum, "copied frames can have it done");
    let peer = veth.peer();
    peer.introduce(port.mac);
    let socket = peer.socket();
    let to = socket.local_addr().unwrap().port();
    for len in [100, 4000, 4064, 4065, 8000, 8900] {
        let payload: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let udp = packet::udp(peer.path(&port, 9, to), &payload, None);
        assert_eq!(port.tx.transmit(&[udp.frame()]), Ok(1), "{len}");
        let mut got = vec![0; 10_000];
        let got_len = socket.recv(&mut got).unwrap();
        assert_eq!(got[..got_len], payload, "{len}");
    }
    assert_eq!(port.tx.stats().dropped, 0);
}

fn a_long_burst() {
    const FRAMES: u32 = 500;
    let veth = Veth::new();
    let mut port = open_xdp(&veth.left, &ring_options());
    let options = AfPacketOptions::default().ring(RxRing::Blocks);
    let mut other = Port::new(AfPacket::open(&veth.right, options).unwrap());
    let burst: Vec<_> = (0..FRAMES)
        .map(|number| experiment(other.mac, port.mac, number, 200))
        .collect();
    let frames: Vec<_> = burst.iter().map(|bytes| TxFrame::new(bytes)).collect();
    let mut taken = 0;
    let deadline = Instant::now() + TIMEOUT;
    while taken < frames.len() {
        taken += port.tx.transmit(&frames[taken..]).unwrap();
        assert!(Instant::now() < deadline, "{:?}", port.tx.stats());
    }
    // No later frame is sent that could push the rest out.
    let got = other.claim_exactly(frames.len(), |frame| is_experiment(frame));
    assert!(
        got.iter()
            .zip(&burst)
            .all(|(got, sent)| got.bytes() == sent)
    );
}

/// A socket without virtio headers also receives frames that the peer did not divide. A ring whose
/// slots are as long as the MTU would cut them silently; the device fetches the rest.
fn several_segments_without_offloads() {
    const LEN: usize = 20_000;
    for ring in [RxRing::None, RxRing::Slots, RxRing::Blocks] {
        let veth = Veth::new();
        let options = AfPacketOptions::default().offloads(false).ring(ring);
        let mut port = veth.open_left_with(options);
        let mut other = veth.open_right();
        let (bytes, meta) = datagram(&veth, &other, &port, LEN, Some(1000));
        let frame = TxFrame {
            meta,
            ..TxFrame::new(&bytes)
        };
        assert_eq!(other.tx.transmit(&[frame]), Ok(1));
        let last = experiment(port.mac, other.mac, 7, 100);
        assert_eq!(other.tx.transmit(&[TxFrame::new(&last)]), Ok(1));

        let deadline = Instant::now() + TIMEOUT;
        let (mut whole, mut over) = (0, false);
        while !over {
            assert!(Instant::now() < deadline, "{ring:?}: {:?}", port.rx.stats());
            let mut frames = Vec::new();
            port.rx.claim(32, &mut frames).unwrap();
            for frame in &frames {
                let len = frame.bytes().len();
                assert!(len == bytes.len() || len < 1514, "{ring:?}: cut to {len}");
                whole += u64::from(len == bytes.len());
                over |= is_experiment(frame);
            }
            port.rx.release(&mut frames);
        }
        let stats = port.rx.stats();
        assert_eq!((whole, stats.truncated), (1, 0), "{ring:?}: {stats:?}");
    }
}

fn frames_of_other_interfaces() {
    let (veth, noisy) = (Veth::new(), Veth::new());
    let mut noise = noisy.open_right();
    let bytes = experiment([0xff; 6], noise.mac, 0, 1000);
    for ring in [RxRing::None, RxRing::Slots, RxRing::Blocks] {
        // Sends before, while and after the device opens.
        let send = |noise: &mut Port| {
            assert_eq!(noise.tx.transmit(&[TxFrame::new(&bytes); 32]), Ok(32));
        };
        send(&mut noise);
        let mut port = std::thread::scope(|scope| {
            scope.spawn(|| (0..20).for_each(|_| send(&mut noise)));
            veth.open_left_with(AfPacketOptions::default().ring(ring))
        });
        let mut other = veth.open_right();
        let last = experiment(port.mac, other.mac, 7, 100);
        assert_eq!(other.tx.transmit(&[TxFrame::new(&last)]), Ok(1));
        let got = port.claim_exactly(1, |frame| is_experiment(frame));
        assert_eq!(got[0].bytes(), last, "{ring:?}");
    }
}

fn a_limit_of_locked_memory() -> Result<(), String> {
    let veth = Veth::new();
    let output = Command::new("prlimit")
        .args(["--memlock=65536", "--"])
        .args(["setpriv", "--bounding-set", "-ipc_lock,-sys_admin"])
        .args(["--inh-caps", "-ipc_lock,-sys_admin", "--"])
        .arg(env::current_exe().map_err(|error| error.to_string())?)
        .env(OPEN, format!("xdp:{}", veth.left))
        .output()
        .map_err(|error| format!("needs the command prlimit (util-linux): {error}"))?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    if told.is_empty() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    assert!(
        told.contains("CAP_IPC_LOCK") && told.contains("ulimit -l"),
        "{told}"
    );
    Ok(())
}
