//! Framed streams with a unit processor of this test: by hand over bad wires, with workers that
//! stall and die, and on threads. The printed seed determines every run.

#![cfg(feature = "testkit")]

use std::cell::Cell;
use std::io::{Read, Write};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::framed::{Aes256, Search};
use dominoes_netstack::framed::{Failure, FramedStream};
use dominoes_netstack::framed::{MAX_PAYLOAD, MAX_UNIT, UnitProcessor};
use dominoes_netstack::testkit::{Variant, stall_in_unit, stalled_in_unit};
use dominoes_netstack::time::Duration;
use dominoes_netstack::{Limits, SocketError, Stack, TcpStream};
use dominoes_testkit::faults::FaultPlan;
use dominoes_testkit::host::Stalls;
use dominoes_testkit::link::{Faults, LinkConfig};
use dominoes_testkit::net::{HostConfig, HostId, Net};
use dominoes_testkit::rng::Cases;
use dominoes_testkit::{Rng, mix};

use crate::support::{carries_text, connect, go_on, text};

const COMMAND: &str = "cargo test -p dominoes-netstack --test main framed";
const VARIANTS: [Variant; 4] = [
    Variant::Single,
    Variant::Replicated(1),
    Variant::Replicated(2),
    Variant::Replicated(4),
];
/// The most payload bytes of a unit.
const PAYLOAD: usize = 3000;
const HEADER: usize = 3;
const SUM: usize = 8;
/// The first byte of each unit.
const MAGIC: u8 = 0x5e;

/// How a processor fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Receive(Failure),
    ReceivePanics,
    ReceivesTooMuch,
    LenPanics,
    Send(Failure),
    SendPanics,
    /// The length of a unit of two bytes is this, or the call panics.
    SentLen(Option<usize>),
}

/// Units with a header that holds the length, the disguised payload, and a checksum over both.
#[derive(Clone, Copy, Debug)]
struct Disguise {
    /// Whether all units have one length, or their header holds it.
    is_fixed: bool,
    /// The stream offset from which on the processor fails, and how.
    fault: Option<(u64, Fault)>,
}

fn key(offset: u64, at: usize) -> u8 {
    mix(offset << 16 | at as u64) as u8 | 1
}

fn sum(offset: u64, bytes: &[u8]) -> [u8; SUM] {
    let add = |sum: u64, byte: &u8| mix(sum ^ u64::from(*byte));
    bytes.iter().fold(offset, add).to_be_bytes()
}

impl Disguise {
    const FIXED: Disguise = Disguise {
        is_fixed: true,
        fault: None,
    };
    const FOUND: Disguise = Disguise {
        is_fixed: false,
        fault: None,
    };

    /// Fails from unit `number` on, if every unit carries one byte.
    fn fails(self, number: u64, fault: Fault) -> Disguise {
        let unit_len = self.sent_len(1) as u64;
        Disguise {
            fault: Some((number * unit_len, fault)),
            ..self
        }
    }

    fn fault(&self, offset: u64) -> Option<Fault> {
        let (from, fault) = self.fault?;
        (offset >= from).then_some(fault)
    }
}

impl UnitProcessor for Disguise {
    fn max_payload(&self) -> usize {
        PAYLOAD
    }

    fn max_unit(&self) -> usize {
        HEADER + PAYLOAD + SUM
    }

    fn header_len(&self) -> usize {
        if self.is_fixed { 0 } else { HEADER }
    }

    fn received_len(&self, _: u64, header: &[u8], _: usize) -> Result<usize, Failure> {
        match *header {
            [] => Ok(self.max_unit()),
            [MAGIC, high, low] => Ok(HEADER + usize::from(u16::from_be_bytes([high, low])) + SUM),
            _ if matches!(self.fault, Some((_, Fault::LenPanics))) => panic!("planted"),
            _ => Err(Failure::Other("no magic")),
        }
    }

    fn receive(&self, offset: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        assert_eq!(payload.len(), MAX_PAYLOAD);
        if let Some(Fault::Receive(failure)) = self.fault(offset) {
            // Must never reach the reader.
            payload.fill(0xee);
            return Err(failure);
        }
        assert_ne!(self.fault(offset), Some(Fault::ReceivePanics), "planted");
        let (bytes, found) = unit.split_last_chunk::<SUM>().ok_or(Failure::Forged)?;
        if sum(offset, bytes) != *found {
            return Err(Failure::Forged);
        }
        let len = usize::from(u16::from_be_bytes([bytes[1], bytes[2]]));
        for (at, (to, from)) in payload.iter_mut().zip(&bytes[HEADER..][..len]).enumerate() {
            *to = from ^ key(offset, at);
        }
        match self.fault(offset) {
            Some(Fault::ReceivesTooMuch) => Ok(MAX_PAYLOAD + 1),
            _ => Ok(len),
        }
    }

    fn sent_len(&self, payload_len: usize) -> usize {
        match self.fault {
            Some((_, Fault::SentLen(len))) if payload_len == 2 => len.expect("planted"),
            _ if self.is_fixed => self.max_unit(),
            _ => HEADER + payload_len + SUM,
        }
    }

    fn send(&self, offset: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        assert!(unit.iter().all(|byte| *byte == 0), "of something else");
        let (bytes, last) = unit.split_at_mut(unit.len() - SUM);
        let [high, low] = (payload.len() as u16).to_be_bytes();
        bytes[..HEADER].copy_from_slice(&[MAGIC, high, low]);
        bytes[HEADER..][..payload.len()].copy_from_slice(payload);
        if let Some(Fault::Send(failure)) = self.fault(offset) {
            return Err(failure);
        }
        assert_ne!(self.fault(offset), Some(Fault::SendPanics), "planted");
        for (at, byte) in bytes[HEADER..][..payload.len()].iter_mut().enumerate() {
            *byte ^= key(offset, at);
        }
        last.copy_from_slice(&sum(offset, bytes));
        Ok(())
    }
}

/// Two hosts, a framed connection between them, and a count of the frames that show plain text.
struct Pair {
    net: Net,
    hosts: [HostId; 2],
    ends: [FramedStream; 2],
    seen: Rc<Cell<usize>>,
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.connections = 4;
    limits.receive_buffer = 1 << 16;
    limits.send_buffer = 1 << 16;
    limits
}

fn host(variant: Variant) -> HostConfig {
    HostConfig::new(variant).limits(limits())
}

/// Both ends of a connection between two hosts.
fn wired(config: HostConfig, seed: u64) -> (Net, [HostId; 2], [TcpStream; 2]) {
    let mut net = Net::new(seed);
    let hosts = [config.clone(), config].map(|host| net.add(host).unwrap());
    let streams = connect(&mut net, hosts, 7);
    (net, hosts, streams)
}

impl Pair {
    fn new<P: UnitProcessor + 'static>(config: HostConfig, seed: u64, processors: [P; 2]) -> Pair {
        Pair::shared(config, seed, processors.map(|one| Arc::new(one) as _))
    }

    fn shared(config: HostConfig, seed: u64, processors: [Arc<dyn UnitProcessor>; 2]) -> Pair {
        let (mut net, hosts, streams) = wired(config, seed);
        let seen = Rc::new(Cell::new(0));
        let count = Rc::clone(&seen);
        net.watch(move |_, _, frame| {
            let carries = carries_text(frame);
            count.set(count.get() + usize::from(carries));
        });
        let mut processors = processors.into_iter();
        let ends = streams.map(|stream| {
            let processor = processors.next().unwrap();
            FramedStream::new(stream, processor).unwrap()
        });
        Pair {
            net,
            hosts,
            ends,
            seen,
        }
    }

    /// Both ends write `texts`, in writes of random length up to `at_once`, and read the other's
    /// text. Returns what each end read and how its reading and writing ended.
    fn exchange(&mut self, texts: [&[u8]; 2], at_once: u64, seed: u64) -> [Heard; 2] {
        let mut rng = Rng::new(seed);
        let mut heard: [Heard; 2] = Default::default();
        let (mut written, mut shut) = ([0; 2], [false; 2]);
        let mut buffer = vec![0; 5000];
        let ends = &mut self.ends;
        let done = go_on(&mut self.net, || {
            for i in 0..2 {
                let (end, heard) = (&mut ends[i], &mut heard[i]);
                let left = &texts[i][written[i]..];
                let len = left.len().min(1 + rng.below(at_once) as usize);
                if len > 0 && heard.written.is_ok() {
                    match end.try_write(&left[..len]) {
                        Err(SocketError::WouldBlock) => {}
                        Ok(len) => written[i] += len,
                        Err(error) => heard.written = Err(error),
                    }
                } else if !shut[i] {
                    end.shutdown_write();
                    shut[i] = true;
                }
                while heard.end.is_none() {
                    match end.try_read(&mut buffer) {
                        Ok(0) => heard.end = Some(Ok(())),
                        Ok(len) => heard.bytes.extend_from_slice(&buffer[..len]),
                        Err(SocketError::WouldBlock) => break,
                        Err(error) => heard.end = Some(Err(error)),
                    }
                }
            }
            let over = heard.iter().all(|heard| heard.end.is_some());
            Ok::<bool, SocketError>(over && shut == [true; 2])
        });
        assert_eq!(done, Ok(()));
        for i in 0..2 {
            let other = texts[1 - i];
            assert!(
                other.starts_with(&heard[i].bytes),
                "{i} reads something else"
            );
        }
        assert_eq!(self.seen.get(), 0, "frames carry text");
        heard
    }
}

#[derive(Debug)]
struct Heard {
    bytes: Vec<u8>,
    /// How reading ended.
    end: Option<Result<(), SocketError>>,
    written: Result<(), SocketError>,
}

impl Default for Heard {
    fn default() -> Self {
        Heard {
            bytes: Vec::new(),
            end: None,
            written: Ok(()),
        }
    }
}

#[test]
fn units_keep_every_byte_while_workers_stall_and_die_within_them() {
    let deaths = Cases::new("FRAMED", COMMAND, 32).run(|seed| {
        let case = seed as usize;
        let mut faults = Faults::default();
        faults.loss_ppm = 5_000;
        faults.reorder_ppm = 20_000;
        faults.reorder_distance = 4;
        faults.duplicate_ppm = 5_000;
        let wire = LinkConfig::default()
            .delay(core::time::Duration::from_micros(50))
            .faults(faults);
        let stalls = Stalls {
            ppm: 20_000,
            longest: Duration::from_micros(500),
        };
        let deaths = FaultPlan {
            free_slots: 2,
            joins_ppm: 4_000,
            failures_ppm: 500,
            panics_ppm: 8_000,
            ..FaultPlan::default()
        };
        let config = host(VARIANTS[case % 4])
            .stalls(stalls)
            .fault_plan(deaths)
            .wires(wire.clone(), wire);
        let processor = [Disguise::FIXED, Disguise::FOUND][case / 4 % 2];
        let texts = [text(150_000, seed), text(90_000, seed ^ 1)];
        let mut pair = Pair::new(config, seed, [processor; 2]);
        let heard = pair.exchange([&texts[0], &texts[1]], 30_000, seed);
        for (i, heard) in heard.iter().enumerate() {
            let (len, expected) = (heard.bytes.len(), texts[1 - i].len());
            if heard.end != Some(Ok(())) || heard.written.is_err() || len != expected {
                return Err(format!("{i} reads {len} of {expected}: {:?}", heard.end));
            }
        }
        let hosts = pair.hosts.map(|id| pair.net.host(id).fault_stats());
        Ok(hosts
            .iter()
            .map(|stats| stats.failures_in_unit)
            .sum::<u64>())
    });
    assert!(deaths.iter().sum::<u64>() > 10, "{deaths:?}");
}

/// Units of 100 bytes, up to a position where one ends in any case.
#[derive(Debug)]
struct UpTo(u64);

impl UnitProcessor for UpTo {
    fn max_payload(&self) -> usize {
        100
    }

    fn max_unit(&self) -> usize {
        100
    }

    fn received_len(&self, offset: u64, _: &[u8], _: usize) -> Result<usize, Failure> {
        let left = self.0.checked_sub(offset).filter(|left| *left > 0);
        Ok(left.map_or(100, |left| left.min(100) as usize))
    }

    fn receive(&self, _: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        payload
            .iter_mut()
            .zip(unit)
            .for_each(|(to, from)| *to = !from);
        Ok(unit.len())
    }

    fn sent_len(&self, payload_len: usize) -> usize {
        payload_len
    }

    fn send(&self, _: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        unit.iter_mut()
            .zip(payload)
            .for_each(|(to, from)| *to = !from);
        Ok(())
    }
}

#[test]
fn a_unit_may_end_where_its_offset_says() {
    let texts = [text(50_250, 1), text(250, 2)];
    for variant in VARIANTS {
        // Each end knows how much the other one sends.
        let processors = [UpTo(250), UpTo(50_250)];
        let mut pair = Pair::new(host(variant), 1, processors);
        for (heard, text) in pair
            .exchange([&texts[0], &texts[1]], 10_000, 3)
            .iter()
            .zip([250, 50_250])
        {
            assert_eq!((heard.bytes.len(), heard.end), (text, Some(Ok(()))));
        }
    }
}

/// Counts received units of 100 bytes.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

impl UnitProcessor for Counting {
    fn max_payload(&self) -> usize {
        100
    }

    fn max_unit(&self) -> usize {
        100
    }

    fn receive(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<usize, Failure> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(1)
    }

    fn send(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<(), Failure> {
        Ok(())
    }
}

#[test]
fn a_reader_opens_later_units_while_a_worker_is_in_the_first() {
    let (left, right) = memory::pair(MemoryConfig::default());
    let stack = Stack::builder("10.0.0.1/24").replicas(1);
    let stack = stack.start(left).unwrap();
    let peer = Stack::builder("10.0.0.2/24").start(right).unwrap();
    let listener = stack.listen(7, 4).unwrap();
    let mut theirs = peer.connect("10.0.0.1:7").unwrap();
    let counting = Arc::new(Counting::default());
    let (ours, _) = listener.accept().unwrap();
    let mut ours = FramedStream::new(ours, Arc::clone(&counting) as _).unwrap();
    stall_in_unit(&stack.sockets(), true);
    // One segment.
    theirs.write_all(&[1; 300]).unwrap();
    while stalled_in_unit(&stack.sockets()) < 1 {
        thread::yield_now();
    }
    let read = ours.try_read(&mut [0; 3]);
    let received = counting.0.load(Ordering::Relaxed);
    stall_in_unit(&stack.sockets(), false);
    assert_eq!((read, received), (Err(SocketError::WouldBlock), 3));
    ours.read_exact(&mut [0; 3]).unwrap();
    assert_eq!(counting.0.load(Ordering::Relaxed), 3);
}

#[test]
fn a_unit_that_fails_ends_the_connection_and_nothing_of_it_is_read() {
    const PANICKED: Failure = Failure::Other("the processor panicked");
    const MINE: Failure = Failure::Other("of my own");
    let texts = [text(40_000, 1), text(40_000, 2)];
    for (case, variant) in VARIANTS.into_iter().enumerate() {
        for (fault, failure) in [
            (Fault::Receive(Failure::Forged), Failure::Forged),
            (Fault::Receive(MINE), MINE),
            (Fault::ReceivePanics, PANICKED),
            (
                Fault::ReceivesTooMuch,
                Failure::Other("the processor wrote more than there is room for"),
            ),
        ] {
            for unit in [0, 1, 5] {
                let processor = [Disguise::FIXED, Disguise::FOUND][case % 2];
                let processors = [processor.fails(unit, fault), processor];
                let mut pair = Pair::new(host(variant), unit, processors);
                // Each one-byte write makes a whole unit, so the start of each is known.
                let [here, there] = pair.exchange([&texts[0], &texts[1]], 1, 0);
                println!(
                    "{variant:?} {fault:?} {unit}: {:?} {:?}",
                    here.end, there.end
                );
                assert_eq!(here.end, Some(Err(SocketError::Failed(failure))));
                assert_eq!(here.bytes.len() as u64, unit, "a byte each");
                let reset = SocketError::Reset;
                assert_eq!(there.end, Some(Err(reset)));
                let again = pair.ends[0].try_read(&mut [0; 10]);
                assert_eq!(again, Err(SocketError::Failed(failure)), "for good");
                let write = pair.ends[0].try_write(b"more");
                assert_eq!(write, Err(SocketError::Failed(failure)));
            }
        }
    }
}

#[test]
fn a_unit_that_cannot_be_made_is_not_sent_nor_any_behind_it() {
    let texts = [text(90_000, 3), text(90_000, 4)];
    let panicked = Failure::Other("the processor panicked");
    for (case, variant) in VARIANTS.into_iter().enumerate() {
        for (fault, failure) in [
            (Fault::Send(Failure::TooLong), Failure::TooLong),
            (Fault::SendPanics, panicked),
        ] {
            // Writes of one unit, which the writer seals itself, or of several.
            for at_once in [500, 20_000] {
                let unit = 7;
                let processor = [Disguise::FOUND, Disguise::FIXED][case % 2];
                let processors = [processor.fails(unit, fault), processor];
                let mut pair = Pair::new(host(variant), unit, processors);
                let [here, there] = pair.exchange([&texts[0], &texts[1]], at_once, 5);
                let failed = Err(SocketError::Failed(failure));
                println!("{variant:?} {fault:?} {:?} {:?}", here.end, here.written);
                assert_eq!(here.written, failed);
                assert!(matches!(there.end, Some(Err(_))));
                assert!(there.bytes.len() <= unit as usize * PAYLOAD);
                assert!(here.end == Some(failed) || here.bytes.len() == texts[1].len());
            }
        }
    }
}

#[test]
fn a_unit_whose_length_cannot_be_is_not_made_nor_any_behind_it() {
    let too_long = Failure::Other("no unit is that long");
    let panicked = Failure::Other("the processor panicked");
    for variant in VARIANTS {
        for (len, failure) in [
            (Some(0), too_long),
            (Some(HEADER + PAYLOAD + SUM + 1), too_long),
            (None, panicked),
        ] {
            // What one call writes, and how much of that before the unit of two bytes.
            for (write, before) in [(2, None), (PAYLOAD + 2, Some(PAYLOAD))] {
                let processor = Disguise::FOUND.fails(0, Fault::SentLen(len));
                let mut pair = Pair::new(host(variant), 1, [processor, Disguise::FOUND]);
                let [ours, peer] = &mut pair.ends;
                let failed = SocketError::Failed(failure);
                assert_eq!(ours.try_write(b"one"), Ok(3));
                let written = ours.try_write(&vec![1; write]);
                assert_eq!(written, before.ok_or(failed), "{variant:?} {len:?}");
                assert_eq!(ours.try_write(b"three"), Err(failed));
                let (mut heard, mut end) = (0, None);
                go_on(&mut pair.net, || {
                    match peer.try_read(&mut [0; PAYLOAD]) {
                        Ok(len) => heard += len,
                        Err(SocketError::WouldBlock) => {}
                        Err(error) => end = Some(error),
                    }
                    Ok::<bool, SocketError>(end.is_some())
                })
                .unwrap();
                assert_eq!(end, Some(SocketError::Reset));
                assert!(heard <= 3 + before.unwrap_or(0), "{heard}");
                assert_eq!(ours.try_read(&mut [0; 9]), Err(failed));
            }
        }
    }
}

/// The peer is not framed and sends arbitrary bytes.
#[test]
fn what_is_no_unit_is_refused_and_a_stream_that_ends_within_one_is_truncated() {
    let mut two = Vec::new();
    let whole = |offset: usize, payload: &[u8]| {
        let mut unit = vec![0; Disguise::FOUND.sent_len(payload.len())];
        let made = Disguise::FOUND.send(offset as u64, payload, &mut unit);
        made.map(|()| unit).unwrap()
    };
    for payload in [&b"one"[..], b"", b"three"] {
        two.extend(whole(two.len(), payload));
    }
    let long = [MAGIC, 0xff, 0xff];
    let too_long = Failure::Other("no unit is that long");
    let truncated = Err(SocketError::Truncated);
    for variant in VARIANTS {
        for (behind, processor, expected) in [
            (&b""[..], Disguise::FOUND, Ok(())),
            (&b"\x5e"[..], Disguise::FOUND, truncated),
            (&whole(two.len(), b"four")[..10], Disguise::FOUND, truncated),
            (&long, Disguise::FOUND, Err(SocketError::Failed(too_long))),
            (
                &[0; 3],
                Disguise::FOUND,
                Err(SocketError::Failed(Failure::Other("no magic"))),
            ),
            (
                &[0; 3],
                Disguise::FOUND.fails(3, Fault::LenPanics),
                Err(SocketError::Failed(Failure::Other(
                    "the processor panicked",
                ))),
            ),
            (
                // Valid units at the wrong offset.
                &two[..],
                Disguise::FOUND,
                Err(SocketError::Failed(Failure::Forged)),
            ),
        ] {
            let (mut net, _, [ours, mut peer]) = wired(host(variant), 9);
            let mut ours = FramedStream::new(ours, Arc::new(processor)).unwrap();
            let bytes = [&two[..], behind].concat();
            let (mut sent, mut heard, mut end) = (0, Vec::new(), None);
            go_on(&mut net, || {
                match peer.try_write(&bytes[sent..][..(bytes.len() - sent).min(7)]) {
                    _ if sent == bytes.len() => peer.shutdown_write(),
                    Ok(len) => sent += len,
                    Err(error) => assert_eq!(error, SocketError::Reset),
                }
                let (reader, _) = ours.halves();
                match reader.try_fill() {
                    Ok([]) => end = Some(Ok(())),
                    Ok(payload) => {
                        heard.push(payload.to_vec());
                        let len = payload.len();
                        reader.consume(len);
                    }
                    Err(SocketError::WouldBlock) => {}
                    Err(error) => end = Some(Err(error)),
                }
                Ok::<bool, SocketError>(end.is_some())
            })
            .unwrap();
            assert_eq!(end, Some(expected), "{variant:?} {behind:?}");
            assert_eq!(heard, [&b"one"[..], b"three"], "one call lends one unit");
        }
    }
}

#[test]
fn streams_that_cannot_be_framed_are_refused() {
    /// Reports the lengths that it is made with.
    #[derive(Clone, Copy, Debug)]
    struct Lengths(usize, usize, usize);

    impl UnitProcessor for Lengths {
        fn max_payload(&self) -> usize {
            self.0
        }

        fn max_unit(&self) -> usize {
            self.1
        }

        fn header_len(&self) -> usize {
            self.2
        }

        fn receive(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<usize, Failure> {
            Ok(0)
        }

        fn send(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<(), Failure> {
            Ok(())
        }
    }

    let new = |stream, lengths: Lengths| FramedStream::new(stream, Arc::new(lengths)).map(drop);
    let invalid = Err(SocketError::Invalid);
    let cases = [
        (Lengths(1, 1, 1), Ok(())),
        (Lengths(MAX_PAYLOAD, MAX_UNIT, 32), Ok(())),
        (Lengths(0, 1, 0), invalid),
        (Lengths(MAX_PAYLOAD + 1, MAX_UNIT, 0), invalid),
        (Lengths(1, 0, 0), invalid),
        (Lengths(1, MAX_UNIT + 1, 0), invalid),
        (Lengths(1, 5, 6), invalid),
        (Lengths(1, 100, 33), invalid),
    ];
    for (lengths, expected) in cases {
        let (_net, _, [stream, _]) = wired(host(Variant::Single), 1);
        assert_eq!(new(stream, lengths), expected, "{lengths:?}");
    }
    let (_net, _, [stream, peer]) = wired(host(Variant::Single), 1);
    let clone = stream.try_clone().unwrap();
    assert_eq!(new(stream, Lengths(1, 1, 0)), Err(SocketError::NotAlone));
    drop((clone, peer));

    let too_short = Err(SocketError::BufferTooShort);
    let mut short = limits();
    for buffer in [&mut short.receive_buffer, &mut short.send_buffer] {
        *buffer = 1 << 12;
    }
    let config = HostConfig::new(Variant::Single).limits(short);
    for (unit, expected) in [(1 << 11, Ok(())), ((1 << 11) + 1, too_short)] {
        let (_net, _, [stream, _]) = wired(config.clone(), 1);
        assert_eq!(new(stream, Lengths(1, unit, 0)), expected);
    }
}

/// Stops halfway through sealing the unit at `offset` until the test releases it.
#[derive(Debug, Default)]
struct Halts {
    offset: u64,
    /// Whether it has stopped, and whether it may continue.
    state: Mutex<[bool; 2]>,
    changed: Condvar,
}

impl Halts {
    fn at(offset: usize) -> Arc<Halts> {
        Arc::new(Halts {
            offset: offset as u64,
            ..Halts::default()
        })
    }

    fn wait_until_stopped(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !state[0]));
    }

    fn release(&self) {
        self.state.lock().unwrap()[1] = true;
        self.changed.notify_all();
    }
}

impl UnitProcessor for Halts {
    fn max_payload(&self) -> usize {
        4096
    }

    fn max_unit(&self) -> usize {
        4096
    }

    fn receive(&self, _: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        payload[..unit.len()].copy_from_slice(unit);
        Ok(unit.len())
    }

    fn send(&self, offset: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        unit[..100].copy_from_slice(&payload[..100]);
        if offset == self.offset {
            let mut state = self.state.lock().unwrap();
            state[0] = true;
            self.changed.notify_all();
            let wait = self.changed.wait_while(state, |state| !state[1]);
            drop(wait.unwrap());
        }
        unit.copy_from_slice(payload);
        Ok(())
    }
}

/// The application's thread stops halfway through a unit; workers seal the units after it.
#[test]
fn nothing_of_a_unit_that_is_half_made_is_sent_nor_of_any_behind_it() {
    let sent = text(12 * 4096, 8);
    let whole = 3 * 4096;
    for variant in VARIANTS {
        let (mut net, _, [ours, mut there]) = wired(host(variant), 3);
        let halts = Halts::at(whole);
        let mut ours = FramedStream::new(ours, Arc::clone(&halts) as _).unwrap();
        let (mut heard, mut buffer) = (Vec::new(), vec![0; 5000]);
        let mut read = |net: &mut Net, there: &mut TcpStream, until: usize| {
            let done = go_on(net, || match there.try_read(&mut buffer) {
                Ok(len) => {
                    heard.extend_from_slice(&buffer[..len]);
                    Ok(len == 0 || heard.len() == until)
                }
                Err(SocketError::WouldBlock) => Ok(false),
                Err(error) => Err(error),
            });
            assert_eq!(done, Ok(()));
            assert!(heard.len() == until && heard == sent[..until]);
        };
        assert_eq!(ours.try_write(&sent[..whole]), Ok(whole));
        read(&mut net, &mut there, whole);
        std::thread::scope(|scope| {
            let rest = &sent[whole..];
            let writing = scope.spawn(move || {
                assert_eq!(ours.try_write(rest), Ok(rest.len()));
                // No worker runs before this thread begins the first remaining unit.
                ours.shutdown_write();
                ours
            });
            halts.wait_until_stopped();
            net.pass(Duration::from_secs(1));
            assert_eq!(there.try_read(&mut [0; 10]), Err(SocketError::WouldBlock));
            halts.release();
            drop(writing.join().unwrap());
        });
        read(&mut net, &mut there, sent.len());
    }
}

/// The application's thread seals a unit itself once every worker has one. Workers learn of theirs
/// before it does: they do not wait until a long write ends.
#[test]
fn workers_seal_units_while_the_writer_seals_another() {
    let sent = text(12 * 4096, 9);
    for (variant, workers) in VARIANTS.into_iter().zip([1, 1, 2, 4]) {
        let (mut net, _, [ours, mut there]) = wired(host(variant), 3);
        let halts = Halts::at(workers * 4096);
        let mut ours = FramedStream::new(ours, Arc::clone(&halts) as _).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(ours.try_write(&sent), Ok(sent.len())));
            halts.wait_until_stopped();
            net.pass(Duration::from_secs(1));
            let mut heard = vec![0; sent.len()];
            let arrived = there.try_read(&mut heard);
            halts.release();
            assert_eq!(arrived, Ok(workers * 4096), "{variant:?}");
        });
    }
}

/// All of `VARIANTS`, and `locked`.
fn with_lock() -> impl Iterator<Item = Variant> {
    VARIANTS.into_iter().chain([Variant::Locked(2)])
}

/// A wire that loses, repeats, reorders and corrupts frames.
fn bad_wire(variant: Variant) -> HostConfig {
    let mut faults = Faults::default();
    faults.loss_ppm = 20_000;
    faults.duplicate_ppm = 10_000;
    faults.reorder_ppm = 30_000;
    faults.reorder_distance = 8;
    faults.corrupt_ppm = 5_000;
    let wire = LinkConfig::default().faults(faults);
    host(variant).wires(wire.clone(), wire)
}

#[test]
fn enciphered_bytes_go_both_ways_over_a_bad_wire_however_they_are_cut() {
    let (one, other) = ([5; 32], [9; 32]);
    for (seed, variant) in (0x5eed..).zip(with_lock()) {
        let ctr = [(one, other), (other, one)]
            .map(|(sent, received)| Arc::new(Aes256::ctr(&sent, &received)) as _);
        let gcm = [(one, other), (other, one)]
            .map(|(sent, received)| Arc::new(Aes256::gcm(&sent, &received)) as _);
        for processors in [ctr, gcm] {
            let mut pair = Pair::shared(bad_wire(variant), seed, processors);
            let texts = [text(200_000, seed), text(150_000, seed ^ 1)];
            let heard = pair.exchange([&texts[0], &texts[1]], 20_000, seed);
            for (i, heard) in heard.iter().enumerate() {
                assert_eq!(
                    (heard.end, heard.written),
                    (Some(Ok(())), Ok(())),
                    "{variant}"
                );
                assert_eq!(heard.bytes.len(), texts[1 - i].len(), "{variant}");
            }
        }
    }
}

#[test]
fn nothing_is_read_of_records_of_another_key() {
    for variant in with_lock() {
        let [one, other] = [[5; 32], [6; 32]].map(|key| Aes256::gcm(&key, &key));
        let mut pair = Pair::new(host(variant), 3, [one, other]);
        let [here, there] = pair.exchange([&text(90_000, 4), &text(90_000, 5)], 1000, 3);
        let forged = Some(Err(SocketError::Failed(Failure::Forged)));
        assert_eq!((here.end, here.bytes.len()), (forged, 0), "{variant}");
        assert!(matches!(there.end, Some(Err(_))), "{variant}");
    }
}

/// The text to search.
const LINE: &[u8] = b"haystack needle needle hay...\n";

#[test]
fn occurrences_within_units_are_counted_and_bytes_pass_as_they_arrive() {
    let count = |bytes: &[u8]| {
        let of = |needle: &[u8]| {
            bytes
                .windows(needle.len())
                .filter(|at| *at == needle)
                .count()
        };
        of(b"needle") + of(b"dle n")
    };
    let sent = LINE.repeat(1000);
    for variant in with_lock() {
        let (mut net, _, [ours, mut peer]) = wired(bad_wire(variant), 7);
        let search = Arc::new(Search::new(["needle", "dle n"]).unwrap());
        let mut ours = FramedStream::new(ours, Arc::clone(&search) as _).unwrap();
        let (mut there, mut here, mut found) = ([0; 2], [Vec::new(), Vec::new()], 0);
        let mut buffer = vec![0; 5000];
        let waits = |done: Result<usize, SocketError>| match done {
            Err(SocketError::WouldBlock) => 0,
            done => done.unwrap(),
        };
        go_on(&mut net, || {
            let (left, line) = (&sent[there[0]..], &sent[there[1]..]);
            if !left.is_empty() {
                there[0] += waits(peer.try_write(left));
            }
            if !line.is_empty() {
                // Each line is one unit.
                there[1] += waits(ours.try_write(&line[..LINE.len()]));
            }
            let (reader, _) = ours.halves();
            while let Ok(unit) = reader.try_fill() {
                found += count(unit);
                here[0].extend_from_slice(unit);
                let len = unit.len();
                reader.consume(len);
            }
            let len = waits(peer.try_read(&mut buffer));
            here[1].extend_from_slice(&buffer[..len]);
            let all = here.iter().all(|heard| heard.len() >= sent.len());
            Ok::<bool, SocketError>(all)
        })
        .unwrap();
        assert!(here.iter().all(|heard| *heard == sent), "{variant}");
        assert_eq!(search.received(), found as u64, "{variant}");
        assert!(found > 2000, "{variant}: {found}");
        assert_eq!(search.sent(), 3 * 1000, "{variant}");
    }
}
