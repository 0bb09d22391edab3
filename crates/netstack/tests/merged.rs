//! Frames that hold many datagrams, in every variant and over both families. A device on the same
//! machine, or one that merges received frames, delivers them undivided; others divide them on
//! transmission.

#![cfg(feature = "testkit")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

use dominoes_drivers::memory::MemoryConfig;
use dominoes_drivers::{Frame, Gso, GsoKind, RxChecksum, TxMeta};
use dominoes_netstack::stats::StackStats;
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::Duration;
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Limits, SocketError, UdpSocket};
use dominoes_testkit::Rng;
use dominoes_testkit::hand::{self, Scripted};
use dominoes_testkit::packet::{self, FAR, Family, STACK, TO_STACK, UDP};

const PORT: u16 = 7;
const FROM: u16 = 4000;
/// Bytes of a UDP header.
const UDP_HEADER: u16 = 8;

/// Datagrams that all differ.
fn datagrams(rng: &mut Rng, lens: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    let one = |len| (0..len).map(|_| rng.next() as u8).collect();
    lens.into_iter().map(one).collect()
}

/// The metadata that a device gives with a frame.
#[derive(Clone, Copy, Debug)]
struct Says {
    checksum: RxChecksum,
    kind: GsoKind,
    size: u16,
}

/// A stack over a device whose frames are pushed.
struct Fixture {
    variant: Variant,
    family: Family,
    stack: Scripted,
    socket: UdpSocket,
}

impl Fixture {
    /// All variants over both families, with queues of `queue` bytes.
    fn all(queue: u32) -> impl Iterator<Item = Fixture> {
        let limits = Limits::default().udp_receive_buffer(queue);
        Fixture::all_over(MemoryConfig::default(), limits)
    }

    /// As [`Fixture::all`], over such a device.
    fn all_over(config: MemoryConfig, limits: Limits) -> impl Iterator<Item = Fixture> {
        let with = move |variant| {
            let config = config.clone();
            Family::ALL.map(|family| Fixture::new(variant, family, config.clone(), limits))
        };
        Variant::ALL.into_iter().flat_map(with)
    }

    fn new(variant: Variant, family: Family, config: MemoryConfig, limits: Limits) -> Fixture {
        let mac = packet::mac_of(STACK);
        let mut setup = Setup::new(STACK.into(), 24, [1, 7]).limits(limits);
        if let IpAddr::V6(address) = family.address(STACK) {
            setup = setup.ipv6(hand::ipv6().address(address, 64));
        }
        let stack = Scripted::over(variant, setup, config.macs(mac, mac));
        let socket = stack.sockets().bind_udp(PORT).unwrap();
        let mut fixture = Fixture {
            variant,
            family,
            stack,
            socket,
        };
        fixture.turn();
        fixture
    }

    /// Does all current work; sent frames stay in the script.
    fn turn(&mut self) {
        self.stack.now += Duration::from_micros(50);
        self.stack.work();
    }

    /// A frame with one datagram, or with several datagrams that no device divided.
    fn frame(&self, payload: &[u8]) -> Vec<u8> {
        let frame = packet::udp(TO_STACK, (FROM, PORT), payload);
        self.family.write(&frame).unwrap()
    }

    fn push(&mut self, mut bytes: Vec<u8>, says: Option<Says>) {
        let Some(says) = says else {
            return self.stack.script.push(bytes);
        };
        let lower = self.family.lower() as u16;
        if matches!(says.checksum, RxChecksum::Partial { .. }) {
            self.family.leave_partial(&mut bytes);
        }
        let mut frame = Frame::from_bytes(&bytes);
        frame.meta.checksum = says.checksum;
        frame.meta.gso = Some(Gso {
            kind: says.kind,
            size: says.size,
            header_len: lower + UDP_HEADER,
        });
        self.stack.script.push_frame(frame);
    }

    /// Lets datagrams arrive in one frame.
    fn push_merged(&mut self, datagrams: &[Vec<u8>], checksum: RxChecksum) {
        let says = Says {
            checksum,
            kind: GsoKind::Udp,
            size: datagrams[0].len() as u16,
        };
        self.push(self.frame(&datagrams.concat()), Some(says));
    }

    /// The sum of a pseudo-header only, as a sender on the same machine leaves it.
    fn partial(&self) -> RxChecksum {
        RxChecksum::Partial {
            start: self.family.lower() as u16,
            offset: 6,
        }
    }

    /// Everything that has arrived.
    fn received(&mut self) -> Vec<Vec<u8>> {
        self.received_from(FAR)
    }

    /// Everything that has arrived from `host`.
    fn received_from(&mut self, host: packet::Address) -> Vec<Vec<u8>> {
        let from = SocketAddr::new(self.family.address(host), FROM);
        let mut received = Vec::new();
        let mut buffer = vec![0; 65_536];
        loop {
            match self.socket.try_recv_from(&mut buffer) {
                Ok((len, sender)) => {
                    assert_eq!(sender, from);
                    received.push(buffer[..len].to_vec());
                }
                Err(SocketError::WouldBlock) => return received,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The counters. Checks that every received frame is accounted for.
    fn stats(&self) -> StackStats {
        let stats = self.stack.stacks[0].stats();
        assert_eq!(stats.pump.inputs(), stats.pump.outcomes(), "{stats:?}");
        stats
    }

    fn name(&self) -> String {
        format!("{} over {}", self.variant, self.family)
    }

    /// Takes the frames sent since the last call, to a neighbour that answers.
    fn sent(&mut self) -> Vec<(Vec<u8>, TxMeta)> {
        let mut datagrams = Vec::new();
        loop {
            self.turn();
            let sent = self.stack.script.take_sent();
            if sent.is_empty() {
                return datagrams;
            }
            for (frame, meta) in sent {
                let plain = self.family.read(&frame);
                match plain.as_deref() {
                    Some(plain) if packet::asked(plain) == Some(FAR) => {
                        let answer = self.family.write(&packet::arp_reply(TO_STACK));
                        self.stack.script.push(answer.unwrap());
                    }
                    Some(plain) if packet::protocol(plain) == Some(UDP) => {
                        datagrams.push((frame, meta));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Sends datagrams. Returns the payloads that left, and in how many frames. Checks that no
    /// frame is longer than `longest`, the limit of the device.
    fn exchange(&mut self, datagrams: &[Vec<u8>], longest: usize) -> (Vec<Vec<u8>>, usize) {
        let to = SocketAddr::new(self.family.address(FAR), FROM);
        for datagram in datagrams {
            self.socket.try_send_to(datagram, to).unwrap();
        }
        let sent = self.sent();
        let frames = sent.len();
        let lower = self.family.lower();
        let mut payloads = Vec::new();
        for (frame, meta) in sent {
            if meta.gso.is_some() {
                assert!(frame.len() <= longest, "{} bytes", frame.len());
            }
            let packets = packet::on_wire(frame, &meta);
            assert!(meta.gso.is_none() || (2..=64).contains(&packets.len()));
            for packet in packets {
                assert!(packet.len() <= 1514, "{} bytes", packet.len());
                payloads.push(packet[lower + usize::from(UDP_HEADER)..].to_vec());
            }
        }
        (payloads, frames)
    }
}

/// The longest frame that Linux devices divide.
const LONGEST: usize = 65_549;

fn divides(bytes: usize) -> MemoryConfig {
    MemoryConfig::default().uso_max_bytes(bytes)
}

#[test]
fn each_datagram_of_an_undivided_frame_arrives_whole_and_in_order() {
    const SEED: u64 = 77;
    for mut fixture in Fixture::all(1 << 20) {
        let mut rng = Rng::new(SEED);
        let partial = fixture.partial();
        let checksums = [partial, RxChecksum::Valid, RxChecksum::Verify];
        let mut sizes = vec![(64, 1472, 300), (16, 100, 100), (44, 1448, 1), (2, 1, 1)];
        for _ in 0..20 {
            let (count, size) = (rng.between(2, 64), rng.between(1, 1000));
            sizes.push((count as usize, size as usize, rng.between(1, size) as usize));
        }
        let mut frames = 0;
        for round in sizes.chunks(8) {
            let mut expected = Vec::new();
            for &(count, size, last) in round {
                let most = 60_000 / size;
                let count = count.min(most);
                let lens = (1..count).map(|_| size).chain([last]);
                let merged = datagrams(&mut rng, lens);
                fixture.push_merged(&merged, checksums[rng.index(3)]);
                // Other datagrams come before and after it.
                let len = rng.index(3) * 50;
                let single = datagrams(&mut rng, [len]);
                fixture.push(fixture.frame(&single[0]), None);
                expected.extend(merged.into_iter().chain(single));
                frames += 1;
            }
            fixture.turn();
            let received = fixture.received();
            let name = fixture.name();
            assert_eq!(received.len(), expected.len(), "seed {SEED}: {name}");
            assert!(received == expected, "seed {SEED}: {name}");
        }
        let stats = fixture.stats();
        assert_eq!(stats.pump.split, frames);
        assert_eq!(stats.pump.datagrams, stats.state.datagrams);
        assert_eq!(stats.pump.pieces + frames, stats.state.datagrams);
    }
}

/// As many frames as a batch holds, each with the most datagrams: none needs a second position of
/// the log.
#[test]
fn a_batch_of_undivided_frames_loses_none() {
    for mut fixture in Fixture::all(1 << 21) {
        let mut rng = Rng::new(5);
        let expected = datagrams(&mut rng, [100; 64 * 64]);
        for merged in expected.chunks(64) {
            fixture.push_merged(merged, RxChecksum::Valid);
        }
        fixture.turn();
        assert!(fixture.received() == expected, "{}", fixture.name());
    }
}

#[test]
fn what_does_not_fit_the_queue_is_counted_and_what_comes_after_it_is_not_changed() {
    for mut fixture in Fixture::all(1 << 12) {
        let mut rng = Rng::new(6);
        // Each takes 256 of the 4,096 bytes, with its header.
        let merged = datagrams(&mut rng, [200; 20]);
        fixture.push_merged(&merged, RxChecksum::Valid);
        fixture.turn();
        assert!(fixture.received() == merged[..16], "{}", fixture.name());
        assert_eq!(fixture.stats().state.queue_full, 4);
        for _ in 0..5 {
            let merged = datagrams(&mut rng, [200, 200, 200, 200, 200, 200, 7]);
            fixture.push_merged(&merged, RxChecksum::Valid);
            fixture.turn();
            assert!(fixture.received() == merged, "{}", fixture.name());
        }
    }
}

#[test]
fn frames_that_contradict_themselves_are_dropped_and_counted() {
    const SIZES: RangeInclusive<u16> = 0..=2;
    for mut fixture in Fixture::all(1 << 16) {
        let says = Says {
            checksum: RxChecksum::Valid,
            kind: GsoKind::Udp,
            size: 100,
        };
        let whole = fixture.frame(&[1; 300]);
        // A size of zero, and the kind of TCP segments.
        fixture.push(whole.clone(), Some(Says { size: 0, ..says }));
        let kind = GsoKind::Tcp4;
        fixture.push(whole.clone(), Some(Says { kind, ..says }));
        // Shorter than its headers say, and shorter than its headers.
        for len in [whole.len() - 1, fixture.family.lower() + 5] {
            fixture.push(whole[..len].to_vec(), Some(says));
        }
        fixture.turn();
        assert_eq!(fixture.received(), Vec::<Vec<u8>>::new());
        assert_eq!(fixture.stats().pump.malformed, 4, "{}", fixture.name());
        // A wrong checksum that the device did not verify.
        let mut damaged = whole.clone();
        *damaged.last_mut().unwrap() ^= 1;
        let checksum = RxChecksum::Verify;
        fixture.push(damaged, Some(Says { checksum, ..says }));
        fixture.turn();
        assert_eq!(fixture.received(), Vec::<Vec<u8>>::new());
        assert_eq!(fixture.stats().state.bad_datagrams, 3, "{}", fixture.name());
        // A payload up to the size is one datagram, even an empty one.
        for len in SIZES {
            let datagram = vec![9; len.into()];
            let size = 2;
            fixture.push(fixture.frame(&datagram), Some(Says { size, ..says }));
            fixture.turn();
            assert_eq!(fixture.received(), [datagram]);
        }
        assert_eq!(fixture.stats().pump.split, 1);
    }
}

#[test]
fn a_fragment_is_no_undivided_frame() {
    let (config, limits) = (MemoryConfig::default(), Limits::default());
    let mut fixture = Fixture::new(Variant::Locked(2), Family::V4, config, limits);
    let whole = packet::udp(TO_STACK, (FROM, PORT), &[3; 2000]);
    let says = Says {
        checksum: RxChecksum::Valid,
        kind: GsoKind::Udp,
        size: 100,
    };
    for fragment in packet::fragments(TO_STACK, packet::UDP, 9, &whole[packet::LOWER..], 1000) {
        fixture.push(fragment, Some(says));
    }
    fixture.turn();
    assert_eq!(fixture.received(), [vec![3; 2000]]);
    assert_eq!(fixture.stats().pump.split, 0);
}

#[test]
fn equally_long_datagrams_leave_in_one_frame_and_others_in_their_own() {
    const SEED: u64 = 78;
    for mut fixture in Fixture::all_over(divides(LONGEST), Limits::default()) {
        let mut rng = Rng::new(SEED);
        // The neighbour is not known at first.
        let first = datagrams(&mut rng, [9; 3]);
        assert_eq!(fixture.exchange(&first, LONGEST).0, first);
        for _ in 0..20 {
            let mut lens = Vec::new();
            let mut fewest = 0;
            for _ in 0..rng.between(1, 4) {
                let (count, len) = (rng.between(1, 40), rng.between(1, 1400));
                lens.extend((0..count).map(|_| len as usize));
                fewest += 1;
            }
            let own = datagrams(&mut rng, lens);
            let (left, frames) = fixture.exchange(&own, LONGEST);
            assert!(left == own, "seed {SEED}: {}", fixture.name());
            assert!(frames <= fewest, "seed {SEED}: {}", fixture.name());
        }
        // Empty datagrams, and ascending lengths.
        let own = datagrams(&mut rng, [0, 0, 1, 2, 3, 4]);
        assert_eq!(fixture.exchange(&own, LONGEST), (own, 6));
        // As many as a frame holds, and one more.
        let own = datagrams(&mut rng, [1400; 47]);
        assert_eq!(fixture.exchange(&own, LONGEST), (own, 2));
        let own = datagrams(&mut rng, [10; 65]);
        assert_eq!(fixture.exchange(&own, LONGEST), (own, 2));
    }
}

#[test]
fn no_frame_is_longer_than_its_device_divides() {
    for mut fixture in Fixture::all_over(divides(3000), Limits::default()) {
        let mut rng = Rng::new(79);
        fixture.exchange(&[vec![1]], 3000);
        let own = datagrams(&mut rng, [1400; 6]);
        assert_eq!(fixture.exchange(&own, 3000), (own, 3));
    }
}

#[test]
fn where_nothing_is_divided_each_datagram_has_a_frame() {
    let one = Limits::default().datagrams_per_frame(1);
    let off = Fixture::all_over(divides(LONGEST), one);
    let cannot = Fixture::all_over(MemoryConfig::default().tx_checksum(true), Limits::default());
    for mut fixture in off.chain(cannot) {
        assert_eq!(fixture.stack.stacks[0].limits().datagrams_per_frame, 1);
        let mut rng = Rng::new(80);
        fixture.exchange(&[vec![1]], 0);
        let own = datagrams(&mut rng, [100; 40]);
        assert_eq!(fixture.exchange(&own, 0), (own, 40));
    }
}

#[test]
fn several_datagrams_in_one_frame_reach_a_socket_of_the_same_stack() {
    for mut fixture in Fixture::all_over(divides(LONGEST), Limits::default()) {
        let mut rng = Rng::new(81);
        let to = SocketAddr::new(fixture.family.address(STACK), PORT);
        let own = datagrams(&mut rng, [300; 50].into_iter().chain([7]));
        let mut sender = fixture.stack.sockets().bind_udp(FROM).unwrap();
        for datagram in &own {
            sender.try_send_to(datagram, to).unwrap();
        }
        assert_eq!(fixture.sent(), []);
        assert!(fixture.received_from(STACK) == own, "{}", fixture.name());
        assert_eq!(fixture.stats().pump.split, 1);
    }
}

/// Each datagram is looped back separately, so each leaves in a separate frame.
#[test]
fn datagrams_to_a_group_of_our_own_have_a_frame_each_and_come_back_once() {
    for mut fixture in Fixture::all_over(divides(LONGEST), Limits::default()) {
        let mut rng = Rng::new(82);
        let group = fixture.family.address([239, 1, 2, 3]);
        let joined = match group {
            IpAddr::V4(group) => {
                let interface = Ipv4Addr::UNSPECIFIED;
                fixture.socket.join_multicast_v4(&group, &interface)
            }
            IpAddr::V6(group) => fixture.socket.join_multicast_v6(&group, 0),
        };
        joined.unwrap();
        fixture.turn();
        fixture.stack.script.take_sent();
        let own = datagrams(&mut rng, [300; 50].into_iter().chain([7]));
        let mut sender = fixture.stack.sockets().bind_udp(FROM).unwrap();
        for datagram in &own {
            sender.try_send_to(datagram, (group, PORT).into()).unwrap();
        }
        fixture.turn();
        assert!(fixture.received_from(STACK) == own, "{}", fixture.name());
        let sent = fixture.stack.script.take_sent();
        let is_datagram = |frame: &&(Vec<u8>, TxMeta)| frame.0.len() > 300;
        assert!(sent.iter().all(|(_, meta)| meta.gso.is_none()));
        assert_eq!(sent.iter().filter(is_datagram).count(), 50);
    }
}
