//! Implements the public safe traits so that they break every promise: the stack must not trust the
//! results, and must not show stale bytes in place of output that was never written.

#![cfg(feature = "testkit")]

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration as StdDuration;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_drivers::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, Frame, Gso, GsoKind,
    RxStats, TxFrame, TxPrepare, TxStats,
};
use dominoes_netstack::framed::{
    Failure, FramedReadHalf, FramedStream, FramedWriteHalf, UnitProcessor,
};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::{self, Setup};
use dominoes_netstack::{ByHand, Limits, Recorder, SocketError, Stack, TcpStream, VariantKind};
use dominoes_testkit::device::Around;

use crate::support::{Ends, setup};

const VARIANTS: [Variant; 5] = [
    Variant::Single,
    Variant::Locked(2),
    Variant::Pipelined(2),
    Variant::Replicated(1),
    Variant::Replicated(3),
];

/// The false behaviour of a device.
#[derive(Clone, Copy, Debug)]
enum Lie {
    TakesMoreThanOffered,
    TakesHalfAndSaysAll,
    ClaimsMoreThanItAppends,
    ClaimsLessThanItAppends,
    AppendsMoreThanAsked,
    TakesFramesOfTheCaller,
    FailsWithFrames,
    OddFrames,
}

const LIES: [Lie; 8] = [
    Lie::TakesMoreThanOffered,
    Lie::TakesHalfAndSaysAll,
    Lie::ClaimsMoreThanItAppends,
    Lie::ClaimsLessThanItAppends,
    Lie::AppendsMoreThanAsked,
    Lie::TakesFramesOfTheCaller,
    Lie::FailsWithFrames,
    Lie::OddFrames,
];

struct Half<H> {
    half: H,
    /// Told in some calls only.
    lie: Option<Lie>,
    calls: usize,
}

impl<H> Half<H> {
    fn lie(&mut self) -> Option<Lie> {
        self.calls += 1;
        self.lie.filter(|lie| match lie {
            // Losing frames is rare, so that some frames arrive.
            Lie::TakesHalfAndSaysAll | Lie::TakesFramesOfTheCaller => self.calls.is_multiple_of(30),
            _ => self.calls.is_multiple_of(3),
        })
    }
}

impl DeviceRx for Half<Box<dyn DeviceRx>> {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let lie = self.lie();
        let most = match lie {
            Some(Lie::AppendsMoreThanAsked) => max + 1000,
            _ => max,
        };
        let claimed = self.half.claim(most, out)?;
        match lie {
            Some(Lie::ClaimsMoreThanItAppends) => Ok(usize::MAX),
            Some(Lie::ClaimsLessThanItAppends) => Ok(0),
            Some(Lie::AppendsMoreThanAsked) => {
                out.extend((0..1000).map(|_| Frame::from_bytes(&[])));
                Ok(usize::MAX)
            }
            Some(Lie::TakesFramesOfTheCaller) => {
                out.clear();
                Ok(claimed)
            }
            Some(Lie::FailsWithFrames) => Err(DeviceError::Down {
                interface: "lie".to_owned(),
            }),
            Some(Lie::OddFrames) => {
                for frame in out.iter_mut() {
                    frame.meta.gso = Some(Gso {
                        kind: [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp][self.calls % 3],
                        size: [0, 1, u16::MAX][self.calls / 3 % 3],
                        header_len: u16::MAX,
                    });
                }
                Ok(claimed)
            }
            _ => Ok(claimed),
        }
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        self.half.release(frames);
        if self.lie.is_some() {
            // A device should leave the list empty.
            frames.push(Frame::from_bytes(&[]));
        }
    }

    fn wait(&mut self, timeout: Option<StdDuration>) -> Result<(), DeviceError> {
        self.half.wait(timeout)
    }

    fn waker(&self) -> DeviceWaker {
        self.half.waker()
    }

    fn stats(&self) -> RxStats {
        self.half.stats()
    }
}

impl Half<Box<dyn DeviceTx>> {
    fn taken(
        &mut self,
        offered: usize,
        send: impl FnOnce(&mut dyn DeviceTx, usize) -> Result<usize, DeviceError>,
    ) -> Result<usize, DeviceError> {
        match self.lie() {
            Some(Lie::TakesMoreThanOffered) => {
                send(&mut *self.half, offered)?;
                Ok([offered + 1, offered + 64, usize::MAX][self.calls / 3 % 3])
            }
            Some(Lie::TakesHalfAndSaysAll) => {
                send(&mut *self.half, offered.div_ceil(2))?;
                Ok(usize::MAX)
            }
            _ => send(&mut *self.half, offered),
        }
    }
}

impl DeviceTx for Half<Box<dyn DeviceTx>> {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        self.taken(frames.len(), |tx, len| tx.transmit(&frames[..len]))
    }

    fn preparer(&mut self, slots: usize) -> Option<Arc<dyn TxPrepare>> {
        self.half.preparer(slots)
    }

    fn transmit_prepared(&mut self, first: usize, count: usize) -> Result<usize, DeviceError> {
        self.taken(count, |tx, count| tx.transmit_prepared(first, count))
    }

    fn stats(&self) -> TxStats {
        self.half.stats()
    }
}

/// Two stacks, driven by hand.
struct Pair {
    stacks: [variants::ByHand; 2],
    now: Instant,
}

fn small(last: u8) -> Setup {
    let limits = Limits::default().connections(4);
    let limits = limits.receive_buffer(1 << 16).send_buffer(1 << 16);
    setup(last).limits(limits)
}

impl Pair {
    fn new(variant: Variant, setups: [Setup; 2], devices: [Box<dyn Device>; 2]) -> Option<Pair> {
        let [a, b] = setups;
        let [left, right] = devices;
        Some(Pair {
            stacks: [variant.build(a, left).ok()?, variant.build(b, right).ok()?],
            now: Instant::ZERO,
        })
    }

    fn step(&mut self) {
        let done: usize = self.stacks.iter_mut().map(|it| it.turn(self.now)).sum();
        self.now += match done {
            0 => Duration::from_millis(1),
            _ => Duration::from_micros(20),
        };
        assert!(self.now < Instant::ZERO + Duration::from_secs(900));
    }

    /// Both ends of a new connection to the first stack.
    fn connect(&mut self) -> [TcpStream; 2] {
        let listener = self.stacks[0].sockets().listen(7, 4).unwrap();
        let at = "10.0.0.1:7".parse().unwrap();
        let mut opening = self.stacks[1].sockets().begin_connect(at).unwrap();
        let (mut server, mut client) = (None, None);
        while server.is_none() || client.is_none() {
            self.step();
            client = client.or_else(|| opening.try_finish().unwrap());
            server = server.or_else(|| listener.try_accept().ok());
        }
        [server.unwrap().0, client.unwrap()]
    }

    /// Writes `byte` `len` times at one end; returns the bytes read at the other.
    fn pass(
        &mut self,
        (byte, len): (u8, usize),
        mut write: impl FnMut(&[u8]) -> usize,
        mut read: impl FnMut(&mut [u8]) -> usize,
    ) -> Vec<u8> {
        let (bytes, mut written, mut heard) = (vec![byte; len], 0, Vec::new());
        let mut buffer = [0; 5000];
        while heard.len() < len {
            self.step();
            if written < len {
                written += write(&bytes[written..]);
            }
            let got = read(&mut buffer);
            heard.extend_from_slice(&buffer[..got]);
        }
        heard
    }
}

fn memory_pair() -> [Box<dyn Device>; 2] {
    let (left, right) = memory::pair(MemoryConfig::default());
    [Box::new(left), Box::new(right)]
}

#[test]
fn a_device_that_lies_about_its_frames_changes_no_byte() {
    for variant in VARIANTS {
        for lie in LIES {
            println!("{variant}, {lie:?}");
            let devices = memory_pair().map(|device| {
                let (lie, calls) = (Some(lie), 0);
                let liar = Around::new(device).rx(move |half| Half { half, lie, calls });
                Box::new(liar.tx(move |half| Half { half, lie, calls })) as Box<dyn Device>
            });
            let mut pair = Pair::new(variant, [small(1), small(2)], devices).unwrap();
            let [ours, peer] = [0, 1].map(|i| pair.stacks[i].sockets());
            let mut ends = Ends::open(&ours, &peer, || pair.step());
            while ends.read < 200_000 {
                pair.step();
                ends.go_on(5_000.min(200_000 - ends.written));
            }
            for stack in &pair.stacks {
                assert!(stack.compare().is_ok(), "{variant}, {lie:?}");
                assert_eq!(stack.stats().state.panicked, 0, "{variant}, {lie:?}");
            }
        }
    }
}

#[test]
fn a_device_that_lies_about_what_it_can_do_is_refused_or_used_within_bounds() {
    const ODD: [usize; 5] = [0, 1, 67, 1 << 20, usize::MAX];
    let fields: [fn(&mut Capabilities) -> &mut usize; 6] = [
        |caps| &mut caps.mtu,
        |caps| &mut caps.tso4_max_bytes,
        |caps| &mut caps.tso6_max_bytes,
        |caps| &mut caps.uso_max_bytes,
        |caps| &mut caps.rx_max_frame,
        |caps| &mut caps.max_batch,
    ];
    let mut used = 0;
    for (at, field) in fields.into_iter().enumerate() {
        for (i, value) in ODD.into_iter().enumerate() {
            let variant = VARIANTS[(at + i) % VARIANTS.len()];
            let devices = memory_pair().map(|device| {
                let mut caps = device.capabilities();
                caps.tx_checksum = true;
                caps.added_latency = StdDuration::MAX;
                *field(&mut caps) = value;
                Box::new(Around::new(device).capabilities(caps)) as Box<dyn Device>
            });
            let Some(mut pair) = Pair::new(variant, [small(1), small(2)], devices) else {
                continue;
            };
            used += 1;
            // The wrapped device carries less than it claims, so not every connection opens.
            for _ in 0..200 {
                let at = "10.0.0.1:7".parse().unwrap();
                let _ = pair.stacks[1].sockets().begin_connect(at);
                pair.step();
            }
        }
    }
    assert!(used > 20, "{used}");
}

/// Copies its input to its output, or does nothing if `is_idle`.
#[derive(Debug, Default)]
struct Lazy {
    is_idle: AtomicBool,
    unit: u32,
}

impl Lazy {
    fn work(&self, from: &[u8], to: &mut [u8]) {
        if !self.is_idle.load(Ordering::Relaxed) {
            to[..from.len()].copy_from_slice(from);
        }
    }
}

impl UnitProcessor for Lazy {
    fn max_payload(&self) -> usize {
        self.unit as usize
    }

    fn max_unit(&self) -> usize {
        self.unit as usize
    }

    fn receive(&self, _: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        self.work(unit, payload);
        Ok(unit.len())
    }

    fn send(&self, _: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        self.work(payload, unit);
        Ok(())
    }
}

/// Written by one connection; no other may read it.
const SECRET: u8 = 0xa5;
/// Wraps around the rings several times, in whole units.
const LEN: usize = 1000 * 300;

fn or_nothing<E>(moved: Result<usize, E>) -> usize {
    moved.unwrap_or(0)
}

/// `lazy` processes the bytes of the end `first`. Once `lazy` is idle, both ends must read only
/// zeros, both on a connection that carried other bytes before and on a new one.
fn shows_only_zeros<E>(
    mut pair: Pair,
    lazy: &Lazy,
    mut processed: impl FnMut(TcpStream) -> E,
    write: impl Fn(&mut E, &[u8]) -> usize,
    read: impl Fn(&mut E, &mut [u8]) -> usize,
    what: &str,
) {
    for is_idle in [false, true, true] {
        let [first, mut plain] = pair.connect();
        let mut first = processed(first);
        for (byte, is_idle) in [(SECRET, is_idle), (!SECRET, true)] {
            lazy.is_idle.store(is_idle, Ordering::Relaxed);
            let expected = if is_idle { 0 } else { byte };
            let out = pair.pass(
                (byte, LEN),
                |from| write(&mut first, from),
                |to| or_nothing(plain.try_read(to)),
            );
            assert!(out.iter().all(|byte| *byte == expected), "sent: {what}");
            let heard = pair.pass(
                (byte, LEN),
                |from| or_nothing(plain.try_write(from)),
                |to| read(&mut first, to),
            );
            assert!(heard.iter().all(|byte| *byte == expected), "read: {what}");
        }
    }
}

#[test]
fn a_unit_processor_that_leaves_its_output_as_it_is_shows_zeros_and_no_old_bytes() {
    for variant in VARIANTS {
        for unit in [100, 1000, 3000] {
            let what = format!("framed, units of {unit}, {variant}");
            let lazy = Arc::new(Lazy {
                unit,
                ..Lazy::default()
            });
            let pair = Pair::new(variant, [small(1), small(2)], memory_pair()).unwrap();
            shows_only_zeros(
                pair,
                &lazy,
                |stream| FramedStream::new(stream, lazy.clone()).unwrap(),
                |end, from| or_nothing(end.try_write(from)),
                |end, to| or_nothing(end.try_read(to)),
                &what,
            );
        }
    }
}

/// Calls the stream that it processes from each of its methods.
#[derive(Debug, Default)]
struct Meddler {
    halves: Mutex<Option<(FramedReadHalf, FramedWriteHalf)>>,
    /// Refused calls, by kind.
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Meddler {
    fn meddle(&self) {
        let Ok(mut halves) = self.halves.try_lock() else {
            return;
        };
        let Some((reader, writer)) = &mut *halves else {
            return;
        };
        let refused = Err(SocketError::InProcessor);
        assert_eq!(reader.try_read(&mut [0; 10]), refused);
        self.reads.fetch_add(1, Ordering::Relaxed);
        assert_eq!(writer.try_write(&[0; 10]), refused);
        self.writes.fetch_add(1, Ordering::Relaxed);
    }
}

impl UnitProcessor for Meddler {
    fn max_payload(&self) -> usize {
        100
    }

    fn max_unit(&self) -> usize {
        100
    }

    fn header_len(&self) -> usize {
        2
    }

    fn received_len(&self, _: u64, _: &[u8], _: usize) -> Result<usize, Failure> {
        self.meddle();
        Ok(100)
    }

    fn receive(&self, _: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        self.meddle();
        payload[..unit.len()].copy_from_slice(unit);
        Ok(unit.len())
    }

    fn sent_len(&self, _: usize) -> usize {
        self.meddle();
        100
    }

    fn send(&self, _: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        self.meddle();
        unit[..payload.len()].copy_from_slice(payload);
        Ok(())
    }
}

#[test]
fn a_unit_processor_that_uses_its_own_stream_is_refused() {
    for variant in VARIANTS {
        println!("{variant}");
        let mut pair = Pair::new(variant, [small(1), small(2)], memory_pair()).unwrap();
        let [ours, mut plain] = pair.connect();
        let meddler = Arc::new(Meddler::default());
        let stream = FramedStream::new(ours, meddler.clone()).unwrap();
        *meddler.halves.lock().unwrap() = Some(stream.split());
        // Workers find and open the units that arrive while this closure does not hold the halves.
        let heard = pair.pass(
            (1, 10_000),
            |from| or_nothing(plain.try_write(from)),
            |to| {
                let mut taken = meddler.halves.lock().unwrap().take();
                let (reader, _) = taken.as_mut().unwrap();
                let read = or_nothing(reader.try_read(to));
                *meddler.halves.lock().unwrap() = taken;
                read
            },
        );
        assert_eq!(heard, [1; 10_000], "{variant}");
        let refused = [&meddler.reads, &meddler.writes].map(|count| count.load(Ordering::Relaxed));
        assert!(refused[0] > 0 && refused[1] > 0, "{variant}: {refused:?}");

        // A stream that its processor drops is reset.
        let [other, mut peer] = pair.connect();
        let dropper = Arc::new(Dropper::default());
        let stream = FramedStream::new(other, dropper.clone()).unwrap();
        *dropper.0.lock().unwrap() = Some(stream);
        assert_eq!(peer.try_write(&[1; 100]), Ok(100));
        let ended = loop {
            pair.step();
            match peer.try_read(&mut [0; 10]) {
                Err(SocketError::WouldBlock) => {}
                ended => break ended,
            }
        };
        assert_eq!(ended, Err(SocketError::Reset), "{variant}");
    }
}

/// Drops the stream that it processes.
#[derive(Debug, Default)]
struct Dropper(Mutex<Option<FramedStream>>);

impl UnitProcessor for Dropper {
    fn max_payload(&self) -> usize {
        100
    }

    fn max_unit(&self) -> usize {
        100
    }

    fn received_len(&self, _: u64, _: &[u8], _: usize) -> Result<usize, Failure> {
        drop(self.0.lock().unwrap().take());
        Ok(100)
    }

    fn receive(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<usize, Failure> {
        Ok(0)
    }

    fn send(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<(), Failure> {
        Ok(())
    }
}

/// Claims to write more bytes than it is given.
struct Greedy;

impl Write for Greedy {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Ok(usize::MAX)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_recording_into_a_writer_that_lies_harms_no_worker() {
    let limits = Limits::default().connections(4);
    let recorder = Recorder::new(Box::new(Greedy), &limits).unwrap();
    let ours = small(1).recorder(recorder);
    let mut pair = Pair::new(Variant::Single, [ours, small(2)], memory_pair()).unwrap();
    let [mut server, mut client] = pair.connect();
    let heard = pair.pass(
        (1, 10_000),
        |from| or_nothing(client.try_write(from)),
        |to| or_nothing(server.try_read(to)),
    );
    assert_eq!(heard, [1; 10_000]);
}

/// Keeps a copy of each frame until it is sent. Panics in a call if the number's lowest bit is set,
/// and shifts the number.
struct Panicking(AtomicU64, Mutex<Vec<Vec<u8>>>);

impl TxPrepare for Panicking {
    fn prepare(&self, first: usize, frames: &[TxFrame<'_>]) {
        let calls = self.0.load(Ordering::Relaxed);
        self.0.store(calls >> 1, Ordering::Relaxed);
        assert!(calls & 1 == 0, "a planned panic");
        for (slot, frame) in self.1.lock().unwrap()[first..].iter_mut().zip(frames) {
            *slot = [frame.head, frame.payload].concat();
        }
    }
}

struct PanickingTx(Box<dyn DeviceTx>, Arc<Panicking>);

impl DeviceTx for PanickingTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        self.0.transmit(frames)
    }

    fn preparer(&mut self, slots: usize) -> Option<Arc<dyn TxPrepare>> {
        self.1.1.lock().unwrap().resize(slots, Vec::new());
        Some(self.1.clone())
    }

    fn transmit_prepared(&mut self, first: usize, count: usize) -> Result<usize, DeviceError> {
        let frames = &self.1.1.lock().unwrap()[first..][..count];
        let frames: Vec<_> = frames.iter().map(|frame| TxFrame::new(frame)).collect();
        self.0.transmit(&frames)
    }

    fn stats(&self) -> TxStats {
        self.0.stats()
    }
}

/// A step that unwound is done in part. A later turn that did the rest, with other frames, would
/// write where an application reads.
#[test]
fn a_worker_that_unwinds_is_not_driven_again() {
    // Builders prepare frames in stacks with several workers.
    let kinds = VariantKind::ALL.iter().copied();
    for kind in kinds.filter(|kind| *kind != VariantKind::Single) {
        let (device, other) = memory::pair(MemoryConfig::default());
        let preparer = Arc::new(Panicking(AtomicU64::new(0), Mutex::default()));
        let panicking = preparer.clone();
        let device = Around::new(device).tx(|tx| PanickingTx(tx, panicking));
        let ours = Stack::builder("10.0.0.1/24").variant(kind).replicas(2);
        let mut ours = ours.by_hand(device).unwrap();
        let mut peer = Stack::builder("10.0.0.2/24").by_hand(other).unwrap();
        let mut now = Instant::ZERO;
        let mut turn = |stack: &mut ByHand| {
            now += Duration::from_millis(1);
            catch_unwind(AssertUnwindSafe(|| while stack.turn(now) > 0 {})).is_err()
        };
        let listener = ours.sockets().listen(7, 4).unwrap();
        let at = "10.0.0.1:7".parse().unwrap();
        let mut opening = peer.sockets().begin_connect(at).unwrap();
        let mut client = loop {
            turn(&mut ours);
            turn(&mut peer);
            if let Some(client) = opening.try_finish().unwrap() {
                break client;
            }
        };
        turn(&mut ours);
        let (mut server, mut writer) = listener.try_accept().unwrap().0.split();

        preparer.0.store(0b101, Ordering::Relaxed);
        let mut unwound = 0;
        for byte in 1..=20 {
            let _ = client.try_write(&[byte; 3000]);
            turn(&mut peer);
            // A short frame by itself is not prepared.
            let _ = writer.try_write(&[byte; 500]);
            unwound += usize::from(turn(&mut ours));
            if let Ok(lent) = server.try_fill() {
                let before = lent.to_vec();
                let _ = client.try_write(&[!byte; 3000]);
                turn(&mut peer);
                unwound += usize::from(turn(&mut ours));
                assert_eq!(lent, before, "{kind:?}");
            }
        }
        assert!([1, 2].contains(&unwound), "{kind:?}: {unwound}");
        let mut buffer = [0; 4096];
        let ended = loop {
            match server.try_read(&mut buffer) {
                Ok(len) if len > 0 => {}
                ended => break ended,
            }
        };
        assert_eq!(ended, Err(SocketError::Down), "{kind:?}");
    }
}
