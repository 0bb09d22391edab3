//! Inline processors between two stacks, driven by hand over a bad wire: everything follows from
//! the seeds below.

#![cfg(feature = "testkit")]

use std::sync::Arc;

use dominoes_drivers::memory::{self, Faults, MemoryConfig, MemoryDevice};
use dominoes_netstack::processor::{Failure, InlineStats, Processor, Search, StreamId};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::{self, Setup};
use dominoes_netstack::{Limits, SocketError, TcpStream};
use dominoes_testkit::Rng;

/// MTU 1500 less headers with timestamps.
const SEGMENT: u32 = 1448;
const TAG: usize = 16;
/// Those that are tried here.
const VARIANTS: [Variant; 5] = [
    Variant::Single,
    Variant::Locked(2),
    Variant::Replicated(1),
    Variant::Replicated(2),
    Variant::Replicated(3),
];

/// Two stacks of one variant, a connection between them, and the time.
struct Net {
    stacks: [Box<dyn variants::Variant>; 2],
    ends: [TcpStream; 2],
    now: Instant,
}

type Shared = Arc<dyn Processor>;

impl Net {
    fn new(variant: Variant, faults: Faults, processors: [Shared; 2]) -> Net {
        Net::over(variant, MemoryConfig::default().faults(faults), processors)
    }

    fn over(variant: Variant, config: MemoryConfig, processors: [Shared; 2]) -> Net {
        let (left, right) = memory::pair(config);
        let mut hosts = 1..;
        let mut stack = |device: MemoryDevice, processor: Shared| {
            let host = hosts.next().unwrap();
            let mut setup = Setup::new([10, 0, 0, host].into(), 24, [u64::from(host), 7]);
            let mut limits = Limits::default();
            // Small, so that rings go round and windows close.
            limits.receive_buffer = 1 << 16;
            limits.send_buffer = 1 << 16;
            limits.connections = 4;
            setup.limits = limits;
            setup.processor = Some(processor);
            variant.build(setup, Box::new(device)).unwrap()
        };
        let [a, b] = processors;
        let mut stacks = [stack(left, a), stack(right, b)];
        let listener = stacks[0].sockets().listen(7, 4).unwrap();
        let remote = "10.0.0.1:7".parse().unwrap();
        let mut connecting = stacks[1].sockets().begin_connect(remote).unwrap();
        let (mut now, mut client, mut server) = (Instant::ZERO, None, None);
        while client.is_none() || server.is_none() {
            step(&mut stacks, &mut now);
            client = client.or(connecting.try_finish().unwrap());
            server = server.or(listener.try_accept().ok().map(|(stream, _)| stream));
            assert!(now < Instant::ZERO + Duration::from_secs(60));
        }
        Net {
            stacks,
            ends: [server.unwrap(), client.unwrap()],
            now,
        }
    }

    fn stats(&self) -> [InlineStats; 2] {
        [0, 1].map(|i| self.stacks[i].sockets().inline_stats())
    }

    /// Sends `texts` both ways, each end in writes of `at_once`, and returns what each end read,
    /// and how that ended.
    fn exchange(
        &mut self,
        texts: [&[u8]; 2],
        at_once: usize,
    ) -> [(Vec<u8>, Result<(), SocketError>); 2] {
        let mut written = [0; 2];
        let mut shut = [false; 2];
        let mut read = [Vec::new(), Vec::new()];
        let mut over = [None; 2];
        let limit = self.now + Duration::from_secs(600);
        while over.iter().any(Option::is_none) {
            assert!(
                self.now < limit,
                "{written:?} {:?}",
                read.each_ref().map(Vec::len)
            );
            step(&mut self.stacks, &mut self.now);
            for i in 0..2 {
                let end = &mut self.ends[i];
                let left = &texts[i][written[i]..];
                if left.is_empty() {
                    // Who has nothing to say listens to the end.
                    if !shut[i] && (!texts[i].is_empty() || over[i].is_some()) {
                        shut[i] = true;
                        end.shutdown_write();
                    }
                } else if let Ok(len) = end.try_write(&left[..left.len().min(at_once)]) {
                    written[i] += len;
                }
                let mut buffer = [0; 5000];
                while over[i].is_none() {
                    match end.try_read(&mut buffer) {
                        Ok(0) => over[i] = Some(Ok(())),
                        Ok(len) => read[i].extend(&buffer[..len]),
                        Err(SocketError::WouldBlock) => break,
                        Err(error) => over[i] = Some(Err(error)),
                    }
                }
            }
        }
        let [a, b] = read;
        [(a, over[0].unwrap()), (b, over[1].unwrap())]
    }
}

fn step(stacks: &mut [Box<dyn variants::Variant>; 2], now: &mut Instant) {
    let done: usize = stacks.iter_mut().map(|stack| stack.turn(*now)).sum();
    *now += if done > 0 {
        Duration::from_micros(20)
    } else {
        Duration::from_millis(1)
    };
}

fn text(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.next() as u8).collect()
}

/// Whole records of `record` bytes, at least `len` bytes long; tags are zeros, as they are read.
fn records(len: usize, record: usize, seed: u64) -> Vec<u8> {
    let mut text = text(len.next_multiple_of(record), seed);
    for whole in text.chunks_mut(record) {
        whole[record - TAG..].fill(0);
    }
    text
}

fn bad_wire(seed: u64) -> Faults {
    let faults = Faults::new(seed)
        .loss(20_000)
        .duplicate(10_000)
        .reorder(30_000, 8);
    faults.corrupt(5_000)
}

/// Both ends write 300 KB and read what the other wrote. Returns how many records came in pieces.
fn passes(
    processor: &Shared,
    record: usize,
    faults: impl Fn(u64) -> Faults,
    at_once: usize,
) -> u64 {
    let config = |seed| MemoryConfig::default().faults(faults(seed));
    passes_over(processor, record, config, at_once)
}

fn passes_over(
    processor: &Shared,
    record: usize,
    config: impl Fn(u64) -> MemoryConfig,
    at_once: usize,
) -> u64 {
    let mut split = 0;
    for (seed, variant) in (0x5eed_u64..).zip(VARIANTS) {
        let processors = [processor.clone(), processor.clone()];
        let mut net = Net::over(variant, config(seed), processors);
        let texts = [1, 2].map(|i| records(300_000, record, seed * i));
        let [at_server, at_client] = net.exchange([&texts[0], &texts[1]], at_once);
        assert_eq!(at_server.1, Ok(()), "{variant}");
        assert_eq!(at_client.1, Ok(()), "{variant}");
        assert!(at_server.0 == texts[1], "{variant}, seed {seed:#x}");
        assert!(at_client.0 == texts[0], "{variant}, seed {seed:#x}");
        for stats in net.stats() {
            assert_eq!((stats.forged, stats.failed, stats.truncated), (0, 0, 0));
            split += stats.split;
        }
        assert!(net.stacks.iter().all(|stack| stack.compare().is_ok()));
    }
    split
}

/// Bytes differ from what was written by what their position and stream say, and from nothing else.
#[derive(Debug)]
struct Mask;

impl Mask {
    fn pass(stream: &StreamId, offset: u64, from: &[u8], to: &mut [u8]) {
        let key = stream.isn
            ^ u32::from(stream.source.port()) << 8
            ^ u32::from(stream.destination.port());
        for (at, (from, to)) in (offset..).zip(from.iter().zip(to)) {
            *to = from ^ (at.wrapping_mul(u64::from(key)) >> 8) as u8;
        }
    }
}

impl Processor for Mask {
    fn receive(
        &self,
        stream: &StreamId,
        offset: u64,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), Failure> {
        Mask::pass(stream, offset, from, to);
        Ok(())
    }

    fn send(&self, stream: &StreamId, offset: u64, from: &[u8], to: &mut [u8]) {
        Mask::pass(stream, offset, from, to);
    }
}

#[test]
fn a_processor_of_ones_own_meets_every_byte_once_at_its_position() {
    passes(&(Arc::new(Mask) as Shared), 64, bad_wire, 7_001);
}

#[test]
fn occurrences_in_segments_are_counted_and_bytes_pass() {
    for variant in VARIANTS {
        let search = Arc::new(Search::new(["needle", "dle n"]).unwrap());
        // Only one end searches, and it only receives.
        let silent = Arc::new(Search::new(["needle"]).unwrap());
        let mut net = Net::new(variant, Faults::new(3), [search.clone(), silent]);
        // 30 bytes at a time are segments of their own, or end to end within one; none is cut but
        // at their ends.
        let line = b"haystack needle needle hay...\n";
        let text = line.repeat(1000);
        let [server, client] = net.exchange([b"", &text], line.len());
        assert_eq!((server.1, client.1), (Ok(()), Ok(())));
        assert!(server.0 == text);
        let cuts = text.len() as u64 / u64::from(SEGMENT) + 1;
        let found = search.received();
        assert!(
            (3000 - cuts..=3000).contains(&found),
            "{found} with {variant}"
        );
        assert_eq!(search.sent(), 0);
    }
}

/// Refuses what is behind `limit`.
#[derive(Debug)]
struct UpTo(u64);

impl Processor for UpTo {
    fn receive(
        &self,
        _: &StreamId,
        offset: u64,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), Failure> {
        if offset + from.len() as u64 > self.0 {
            return Err(Failure::Other("too far"));
        }
        to.copy_from_slice(from);
        Ok(())
    }

    fn send(&self, _: &StreamId, _: u64, from: &[u8], to: &mut [u8]) {
        to.copy_from_slice(from);
    }
}

#[test]
fn a_failure_resets_the_connection_and_what_came_before_is_read() {
    for variant in VARIANTS {
        let text = text(200_000, 9);
        let anything: Shared = Arc::new(UpTo(u64::MAX));
        let mut net = Net::new(variant, Faults::new(4), [Arc::new(UpTo(100_000)), anything]);
        let [server, client] = net.exchange([b"", &text], usize::MAX);
        assert_eq!(server.1, Err(SocketError::Processing), "{variant}");
        assert_eq!(client.1, Err(SocketError::Reset), "{variant}");
        let len = server.0.len();
        assert!(len <= 100_000 && len + SEGMENT as usize > 100_000, "{len}");
        assert!(server.0 == text[..len]);
        assert!(net.stats()[0].failed > 0);
        assert!(net.stacks.iter().all(|stack| stack.compare().is_ok()));
    }
}

#[cfg(feature = "ciphers")]
mod ciphers {
    use super::*;
    use dominoes_netstack::processor::{Aes256Ctr, Aes256Gcm};

    const KEY: [u8; 32] = *b"a key that is no secret to tests";

    #[test]
    fn counter_mode_goes_both_ways_over_a_bad_wire() {
        passes(
            &(Arc::new(Aes256Ctr::new(&KEY)) as Shared),
            64,
            bad_wire,
            7_001,
        );
    }

    #[test]
    fn records_of_a_segment_go_straight_to_the_ring_on_a_good_wire() {
        let gcm: Shared = Arc::new(Aes256Gcm::new(&KEY, SEGMENT).unwrap());
        let split = passes(&gcm, SEGMENT as usize, Faults::new, SEGMENT as usize);
        assert_eq!(split, 0);
    }

    #[test]
    fn records_go_both_ways_over_a_bad_wire_however_they_are_cut() {
        let gcm: Shared = Arc::new(Aes256Gcm::new(&KEY, SEGMENT).unwrap());
        passes(&gcm, SEGMENT as usize, bad_wire, SEGMENT as usize);
        for record in [256, 1000, 1449, 5000] {
            let gcm: Shared = Arc::new(Aes256Gcm::new(&KEY, record).unwrap());
            let split = passes(&gcm, record as usize, bad_wire, 3_001);
            assert!(split > 0, "records of {record} octets are cut by segments");
        }
    }

    #[test]
    fn frames_that_the_device_cuts_carry_many_records() {
        let big = |seed| {
            let config = MemoryConfig::default().faults(bad_wire(seed));
            config.tso4_max_bytes(65_535)
        };
        let ctr: Shared = Arc::new(Aes256Ctr::new(&KEY));
        passes_over(&ctr, 64, big, usize::MAX);
        for record in [SEGMENT, 1000] {
            let gcm: Shared = Arc::new(Aes256Gcm::new(&KEY, record).unwrap());
            passes_over(&gcm, record as usize, big, usize::MAX);
        }
    }

    /// Flips a bit of what leaves at one position.
    #[derive(Debug)]
    struct Tampered<P>(P, u64);

    impl<P: Processor> Processor for Tampered<P> {
        fn unit(&self) -> u32 {
            self.0.unit()
        }

        fn receive(
            &self,
            stream: &StreamId,
            offset: u64,
            from: &[u8],
            to: &mut [u8],
        ) -> Result<(), Failure> {
            self.0.receive(stream, offset, from, to)
        }

        fn send(&self, stream: &StreamId, offset: u64, from: &[u8], to: &mut [u8]) {
            self.0.send(stream, offset, from, to);
            let at = self.1.wrapping_sub(offset);
            if let Some(octet) = usize::try_from(at).ok().and_then(|at| to.get_mut(at)) {
                *octet ^= 0x10;
            }
        }
    }

    #[test]
    fn a_record_that_was_changed_resets_the_connection_and_no_byte_of_it_is_read() {
        // In its text and in its tag; whole records, and such as come in pieces.
        for (record, at) in [
            (SEGMENT, 100),
            (SEGMENT, SEGMENT - 1),
            (1000, 999),
            (3000, 5),
        ] {
            for (variant, good) in VARIANTS
                .into_iter()
                .flat_map(|variant| [(variant, true), (variant, false)])
            {
                let bad = u64::from(record) * 40;
                let gcm = || Aes256Gcm::new(&KEY, record).unwrap();
                let tampered = Tampered(gcm(), bad + u64::from(at));
                let processors: [Shared; 2] = [Arc::new(gcm()), Arc::new(tampered)];
                let seed = u64::from(at);
                let faults = if good {
                    Faults::new(seed)
                } else {
                    bad_wire(seed)
                };
                let mut net = Net::new(variant, faults, processors);
                let text = records(100 * record as usize, record as usize, 5);
                let [server, client] = net.exchange([b"", &text], usize::MAX);
                assert_eq!(server.1, Err(SocketError::Processing), "{variant}");
                assert_eq!(client.1, Err(SocketError::Reset), "{variant}");
                // A record that comes before its turn fails before its turn, too.
                let len = server.0.len();
                assert!(
                    if good {
                        len == bad as usize
                    } else {
                        len <= bad as usize
                    },
                    "{len}"
                );
                assert!(server.0 == text[..len]);
                assert_eq!(net.stats()[0].forged, 1);
                assert!(net.stacks.iter().all(|stack| stack.compare().is_ok()));
            }
        }
    }

    #[test]
    fn a_stream_that_ends_within_a_record_says_so() {
        for variant in VARIANTS {
            let gcm: Shared = Arc::new(Aes256Gcm::new(&KEY, 1000).unwrap());
            let mut net = Net::new(variant, Faults::new(8), [gcm.clone(), gcm]);
            let text = records(5_000, 1000, 5);
            let [server, _] = net.exchange([b"", &text[..4_500]], usize::MAX);
            assert_eq!(server.1, Err(SocketError::Processing));
            assert!(server.0 == text[..4_000]);
            assert_eq!(net.stats()[0].truncated, 1);
        }
    }

    #[test]
    fn another_key_reads_nothing() {
        let one: Shared = Arc::new(Aes256Gcm::new(&KEY, 1000).unwrap());
        let other: Shared = Arc::new(Aes256Gcm::new(&[1; 32], 1000).unwrap());
        let mut net = Net::new(Variant::Replicated(2), Faults::new(8), [one, other]);
        let [server, client] = net.exchange([b"", &records(5_000, 1000, 5)], usize::MAX);
        assert_eq!(server.1, Err(SocketError::Processing));
        assert_eq!(client.1, Err(SocketError::Reset));
        assert!(server.0.is_empty());
    }

    #[test]
    fn a_unit_that_the_rings_cannot_hold_is_refused() {
        let (device, _other) = memory::pair(MemoryConfig::default());
        let mut setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        setup.limits.receive_buffer = 1 << 12;
        setup.processor = Some(Arc::new(Aes256Gcm::new(&KEY, 1025).unwrap()));
        assert!(Variant::Single.build(setup, Box::new(device)).is_err());
    }
}
