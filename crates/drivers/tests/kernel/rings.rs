//! Mapped rings of packet sockets.

use super::af_packet::a_vlan_tag_is_kept;
use super::interfaces::{Veth, flows_are_spread, ip};
use super::support::packet::{experiment, is_experiment};
use super::support::{Port, TIMEOUT, named};
use super::{Missing, RINGS};
use dominoes_drivers::TxFrame;
use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions, RxRing, Spread};
use libtest_mimic::Trial;
use std::thread;
use std::time::{Duration, Instant};

/// A test of a mapped ring.
type RingTest = fn(RxRing);

pub(crate) fn trials(missing: &Missing) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (kind, ring) in [RINGS[1], RINGS[2]] {
        let tests: [(&str, RingTest); 8] = named! {
            several_threads_read_a_frame_where_it_lies
            nobody_can_write_where_a_frame_lies
            a_frame_that_is_kept_does_not_stop_the_ring
            frames_that_are_all_kept_stay_as_they_came
            frames_outlive_their_device
            the_kernel_notes_when_a_frame_came
            a_full_ring_counts_what_it_drops
            a_vlan_tag_is_kept
        };
        for (name, test) in tests {
            trials.push(missing.packet(&format!("packet_{kind}::{name}"), move || test(ring)));
        }
    }
    let name = "packet_slots::long_frames_keep_their_turn";
    trials.push(missing.packet(name, long_frames_keep_their_turn));
    let name = "packet::flows_stay_with_one_of_several_queues";
    trials.push(missing.packet(name, flows_stay_with_one_of_several_queues));
    trials
}

/// A device with the smallest ring, its interfaces, and a device at the other end.
fn small_ring(ring: RxRing) -> (Veth, Port, Port) {
    let veth = Veth::new();
    let port = veth.open_left_with(AfPacketOptions::default().ring(ring).ring_bytes(0));
    let other = veth.open_right();
    (veth, port, other)
}

/// Sends experimental frames with these numbers.
pub(crate) fn send_experiments(from: &mut Port, to: &Port, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let bytes = experiment(to.mac, from.mac, number, 1514);
        assert_eq!(from.tx.transmit(&[TxFrame::new(&bytes)]), Ok(1));
    }
}

fn several_threads_read_a_frame_where_it_lies(ring: RxRing) {
    let (_veth, mut port, mut other) = small_ring(ring);
    send_experiments(&mut other, &port, 0..2);
    let frames = port.claim_exactly(2, |frame| is_experiment(frame));
    assert!(frames.iter().all(|frame| frame.is_in_place()));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for (number, frame) in (0..).zip(&frames) {
                    assert_eq!(frame.bytes(), experiment(port.mac, other.mac, number, 1514));
                }
            });
        }
    });
    // A copy is writable.
    let mut copy = frames[0].clone();
    assert!(!copy.is_in_place());
    copy.bytes_mut()[20] ^= 1;
    assert_ne!(copy.bytes(), frames[0].bytes());
    assert_eq!(port.rx.stats().copied, 0);
}

fn nobody_can_write_where_a_frame_lies(ring: RxRing) {
    let (_veth, mut port, mut other) = small_ring(ring);
    send_experiments(&mut other, &port, 0..1);
    let frame = port
        .claim_exactly(1, |frame| is_experiment(frame))
        .remove(0);
    assert!(frame.is_in_place());
    let mapping = mapping_of(frame.bytes().as_ptr().addr());
    assert!(mapping.contains(" r--s "), "{mapping}");
}

/// The line of `/proc/self/maps` for the mapping that contains an address.
pub(crate) fn mapping_of(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapping = maps.lines().find(|line| {
        let range = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(range.0)..number(range.1)).contains(&address)
    });
    mapping.expect("the frame lies in a mapping").to_owned()
}

/// Sends many times the capacity of the ring while one frame per round is kept, for several rounds.
fn a_frame_that_is_kept_does_not_stop_the_ring(ring: RxRing) {
    let (_veth, mut port, mut other) = small_ring(ring);
    let mut kept: Vec<dominoes_drivers::Frame> = Vec::new();
    let (rounds, each) = (6, 4000);
    for round in 0..rounds {
        for at in 0..each / 2 {
            let number = round * each + at * 2;
            send_experiments(&mut other, &port, number..number + 2);
            let mut got = port.claim_exactly(2, |frame| is_experiment(frame));
            for (number, frame) in (number..).zip(&got) {
                assert_eq!(frame.bytes()[14..18], number.to_be_bytes());
            }
            if at == 0 {
                kept.push(got.remove(0));
            }
            port.rx.release(&mut got);
            // V3 hands over one block per millisecond, so this would take too long.
            if ring == RxRing::Blocks && at == each / 16 {
                break;
            }
        }
        for (round, frame) in (0..).zip(&kept) {
            let expected = experiment(port.mac, other.mac, round * each, 1514);
            assert_eq!(frame.bytes(), expected, "a frame that was kept has changed");
        }
    }
    let stats = port.rx.stats();
    assert!(stats.copied_out > 0, "{stats:?}");
    assert_eq!(stats.dropped, 0, "{stats:?}");

    // Once they are released, the whole ring is in use again.
    port.rx.release(&mut kept);
    let lap = 10;
    for number in 0..lap {
        send_experiments(&mut other, &port, number..number + 1);
        let mut got = port.claim_exactly(1, |frame| is_experiment(frame));
        assert_eq!(
            got[0].bytes(),
            experiment(port.mac, other.mac, number, 1514)
        );
        assert!(
            number < lap / 2 || got[0].is_in_place(),
            "frame {number} was copied: {:?}",
            port.rx.stats()
        );
        port.rx.release(&mut got);
    }
}

fn frames_that_are_all_kept_stay_as_they_came(ring: RxRing) {
    let (_veth, mut port, mut other) = small_ring(ring);
    let mut kept = Vec::new();
    for number in 0..100 {
        send_experiments(&mut other, &port, number..number + 1);
        kept.extend(port.claim_exactly(1, |frame| is_experiment(frame)));
    }
    for (number, frame) in (0..).zip(&kept) {
        assert_eq!(
            frame.bytes(),
            experiment(port.mac, other.mac, number, 1514),
            "frame {number}"
        );
    }
    let stats = port.rx.stats();
    assert!(stats.copied > 0 && stats.dropped == 0, "{stats:?}");
}

fn frames_outlive_their_device(ring: RxRing) {
    let (veth, mut port, mut other) = small_ring(ring);
    let mac = port.mac;
    send_experiments(&mut other, &port, 0..1);
    let frame = port
        .claim_exactly(1, |frame| is_experiment(frame))
        .remove(0);
    drop(port);
    drop(veth);
    assert!(frame.is_in_place());
    assert_eq!(frame.bytes(), experiment(mac, other.mac, 0, 1514));
}

fn the_kernel_notes_when_a_frame_came(ring: RxRing) {
    let (_veth, mut port, mut other) = small_ring(ring);
    let before = std::time::SystemTime::now();
    send_experiments(&mut other, &port, 0..1);
    let frame = port
        .claim_exactly(1, |frame| is_experiment(frame))
        .remove(0);
    let noted = frame.timestamp().expect("the ring has timestamps");
    // The kernel may use a coarser clock.
    let slack = Duration::from_millis(20);
    assert!(
        noted + slack >= before && noted <= std::time::SystemTime::now() + slack,
        "{before:?} {noted:?}"
    );
    assert_eq!(frame.clone().timestamp(), None);
}

fn a_full_ring_counts_what_it_drops(ring: RxRing) {
    let (_veth, mut port, mut other) = small_ring(ring);
    let count = 6_000;
    send_experiments(&mut other, &port, 0..count);
    let mut frames = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    let mut got = 0;
    while got + port.rx.stats().dropped < count.into() {
        port.rx.claim(32, &mut frames).unwrap();
        got += frames.iter().filter(|frame| is_experiment(frame)).count() as u64;
        port.rx.release(&mut frames);
        assert!(Instant::now() < deadline, "{got} {:?}", port.rx.stats());
    }
    assert!(port.rx.stats().dropped > 100, "{:?}", port.rx.stats());
}

fn long_frames_keep_their_turn() {
    let veth = Veth::new();
    for interface in [&veth.left, &veth.right] {
        ip(&format!("link set {interface} mtu 9000"));
    }
    let mut right = veth.open_right();
    let lens = [60, 4006, 4007, 9014, 1514, 5000, 5000, 60];
    // Without a length of slots there are two rings, whose frames must not change places.
    for (slot, in_place) in [(Some(0), 3990), (Some(12_000), 9014), (None, 9014)] {
        let mut options = AfPacketOptions::default();
        options.slot_bytes = slot;
        let mut left = veth.open_left_with(options);
        let sent: Vec<_> = (0..)
            .zip(lens.iter().cycle().take(80))
            .map(|(number, &len)| experiment(left.mac, right.mac, number, len))
            .collect();
        for frame in &sent {
            assert_eq!(right.tx.transmit(&[TxFrame::new(frame)]), Ok(1));
        }
        let got = left.claim_exactly(sent.len(), |frame| is_experiment(frame));
        for (got, sent) in got.iter().zip(&sent) {
            assert_eq!(got.bytes(), sent, "{} bytes", sent.len());
            assert!(
                got.is_in_place() || sent.len() > in_place,
                "{} bytes",
                sent.len()
            );
        }
        let copied = got.iter().filter(|frame| !frame.is_in_place()).count() as u64;
        assert_eq!(left.rx.stats().copied, copied);
        assert_eq!(copied > 0, slot == Some(0));
    }
}

fn flows_stay_with_one_of_several_queues() {
    let veth = Veth::new();
    let devices = AfPacket::open_queues(&veth.left, &AfPacketOptions::default(), 4, Spread::Flow);
    let mut ports: Vec<_> = devices.unwrap().into_iter().map(Port::new).collect();
    flows_are_spread(&veth.peer().flows_by_queue(&mut ports, 5, None), 5);
}
