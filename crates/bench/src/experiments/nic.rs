//! The programmable network card: what each handler of its firmware costs, and what several
//! processors gain.
//!
//! Two clocks. In *processor time* the card is driven by hand on one thread: each call of a handler
//! is timed and added to the clock of its processor, hardware units take no time, and a processor
//! without an event continues when another raises one. So any number of processors is measured
//! on any number of cores, as if each had a core and nothing waited for memory
//! of the other. Where any processor runs any handler, one that needs a half of the firmware waits
//! for it; on threads it takes another event meanwhile, so there the figure is a lower bound. In
//! *wall time* the processors are threads, beside one that plays host and wire. A last table counts
//! what each handler executes.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use dominoes_drivers::memory::{self, MemoryConfig, MemoryDevice};
use dominoes_drivers::nic::{Card, CardStep, Firmware, Inspect, Nic, NicConfig, NicEvent};
use dominoes_drivers::{Device, DeviceRx, DeviceTx, RxChecksum, TxFrame};
use dominoes_netstack::Stack;
use dominoes_netstack::router::Router;
use smoltcp::wire::checksum;

use super::{Clock, Experiment, parts};
use crate::instructions::{Case, functions};
use crate::lineup::Wanted;
use crate::named;
use crate::paper;
use crate::spread::Spread;
use crate::targets;
use crate::topology::Calm;

mod tables;

use tables::{ByFirmware, EventRow, Found, Row};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "nic",
    about: "firmware of a programmable network card on one processor, partitioned, and shared out",
    besides: |wanted, _, progress| {
        let mut tables = measure(wanted, progress)?.tables();
        let directory = targets::directory().join("nic");
        let units = counted().units;
        let counted = parts::can_play().and_then(|()| functions::count_card(&directory, units));
        tables.push(tables::instructions(counted));
        Ok(tables)
    },
    besides_takes: |wanted| ROUND * wanted.side_rounds as u32,
    ..Experiment::NONE
};

/// Payload of datagrams, from frames of 64 bytes to 1518 with their check sequence.
const SIZES: [usize; 6] = [18, 200, 400, 800, 1200, 1472];
/// Headers of a datagram: Ethernet, IPv4, UDP.
const HEADERS: usize = 14 + 20 + 8;
/// Other bytes of a frame on a gigabit Ethernet: check sequence, preamble and gap.
const AROUND: usize = 4 + 20;
/// Frames that the host, and the far end, pass on at once.
const BURST: usize = 4;
/// Frames under way each way, at most.
const WINDOW: usize = 32;
/// Frames of one measurement in processor time, each way.
const FRAMES: usize = 8_000;
/// Datagrams there and back of one measurement.
const PINGS: usize = 1_000;
/// The approximate time of a round.
const ROUND: Duration = Duration::from_secs(3);
/// Longer calls are the machine's, not the handler's.
const LONGEST: f64 = 20_000.0;
/// Frames per second of the released firmware, both ways together, with frames of 1518 bytes:
/// 938 Mbit/s of datagrams (figure 10). What one processor does is scaled to that.
const RELEASED_FRAMES: f64 = 938e6 / (1472.0 * 8.0);

/// The firmware that is compared, the paper's first.
const FIRMWARE: [(Firmware, &str); 4] = [
    (Firmware::Uniprocessor, "uniprocessor"),
    (Firmware::Partitioned, "partitioned"),
    (Firmware::Dynamic(2), "dynamic-2"),
    (Firmware::Copies(2), "copies-2"),
];

named! {
    /// Which way datagrams go.
    enum Traffic {
        /// From the host to the wire.
        Send = "send",
        /// From the wire to the host.
        Receive = "receive",
        /// Both at once.
        Both = "both ways",
    }
}

/// A card with a host on one side and a far end on the other.
struct Fixture {
    card: Card,
    host: (Box<dyn DeviceRx>, Box<dyn DeviceTx>),
    far: (Box<dyn DeviceRx>, Box<dyn DeviceTx>),
    frame: Vec<u8>,
    /// Nanoseconds of inspection so far.
    inspected: Arc<AtomicU64>,
}

fn halves(device: impl Device + 'static) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
    Box::new(device).split()
}

fn wire() -> (MemoryDevice, MemoryDevice) {
    memory::pair(MemoryConfig::default().queue_depth(256).rx_pool(256))
}

fn datagram(size: usize) -> Vec<u8> {
    let mut frame = vec![0x5a; HEADERS + size];
    frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    frame
}

/// A heavy handler: the sum that a device with checksum offload computes.
fn sum(frame: &[u8]) -> RxChecksum {
    if checksum::data(&frame[HEADERS - 8..]) == 0 {
        RxChecksum::Verify
    } else {
        RxChecksum::Valid
    }
}

impl Fixture {
    fn new(firmware: Firmware, size: usize, is_heavy: bool) -> Fixture {
        let inspected = Arc::new(AtomicU64::new(0));
        let mut config = NicConfig::default().firmware(firmware);
        if is_heavy {
            let total = Arc::clone(&inspected);
            config = config.inspect(Inspect::new(move |frame| {
                let begin = Instant::now();
                let sum = sum(frame);
                total.fetch_add(begin.elapsed().as_nanos() as u64, Relaxed);
                sum
            }));
        }
        let (near, far) = wire();
        let (nic, card) = Nic::by_hand(&config, near);
        let mut fixture = Fixture {
            card,
            host: halves(nic),
            far: halves(far),
            frame: datagram(size),
            inspected,
        };
        while fixture.card.turn() > 0 {}
        fixture
    }

    /// Passes frames on: from the host, and from the far end.
    fn send(&mut self, [host, far]: [usize; 2]) -> [usize; 2] {
        let frames = [TxFrame::new(&self.frame); WINDOW];
        // Devices in memory cannot fail.
        [
            self.host.1.transmit(&frames[..host]).unwrap_or(0),
            self.far.1.transmit(&frames[..far]).unwrap_or(0),
        ]
    }

    /// Runs all hardware units until none has work.
    fn run_hardware(&mut self) {
        for processor in self.card.processors() {
            for step in &CardStep::ALL[1..] {
                while processor.step(*step) {}
            }
        }
    }

    /// Keeps the card busy with frames to send and to receive; `step` runs a handler, if there is
    /// an event. Returns the frames that arrived.
    fn keep_busy(
        &mut self,
        wanted: [usize; 2],
        mut step: impl FnMut(&mut Fixture) -> bool,
    ) -> usize {
        let (mut sent, mut got) = ([0; 2], [0; 2]);
        let mut idle = 0;
        while got != wanted && idle < 1_000 {
            let mut burst = [0; 2];
            for way in 0..2 {
                let room = WINDOW - (sent[way] - got[way]);
                if room >= BURST {
                    burst[way] = BURST.min(wanted[way] - sent[way]);
                }
            }
            let taken = self.send(burst);
            let handled = step(self);
            let arrived = self.receive();
            for way in 0..2 {
                sent[way] += taken[way];
                got[way] += arrived[way];
            }
            idle = if handled { 0 } else { idle + 1 };
        }
        got[0] + got[1]
    }

    /// Takes frames that have arrived: at the far end, and at the host.
    fn receive(&mut self) -> [usize; 2] {
        let mut frames = Vec::new();
        let mut take = |rx: &mut Box<dyn DeviceRx>| {
            let count = rx.claim(WINDOW, &mut frames).unwrap_or(0);
            rx.release(&mut frames);
            count
        };
        [take(&mut self.far.0), take(&mut self.host.0)]
    }
}

/// The half of the firmware that a handler needs, where locks keep processors apart.
fn half(event: usize) -> Option<usize> {
    match NicEvent::ALL[event] {
        NicEvent::Mailbox => None,
        NicEvent::DmaWriteComplete | NicEvent::ReceiveComplete | NicEvent::UpdateReturnProducer => {
            Some(0)
        }
        _ => Some(1),
    }
}

/// Clocks of processors, in nanoseconds.
struct Processors {
    clocks: Vec<f64>,
    /// When each half of the firmware is free again, where processors share it.
    free: [f64; 2],
    is_shared: bool,
    may_copy: bool,
    /// Which processors found no event, and when the call before ended.
    idle: Vec<bool>,
    last: f64,
    /// What reading the clock costs.
    overhead: f64,
    busy: Vec<f64>,
    events: [f64; NicEvent::COUNT],
}

impl Processors {
    fn new(firmware: Firmware, overhead: f64) -> Processors {
        let count = firmware.processors();
        Processors {
            clocks: vec![0.0; count],
            free: [0.0; 2],
            is_shared: matches!(firmware, Firmware::Dynamic(_) | Firmware::Copies(_)),
            may_copy: matches!(firmware, Firmware::Copies(_)),
            idle: vec![true; count],
            last: 0.0,
            overhead,
            busy: vec![0.0; count],
            events: [0.0; NicEvent::COUNT],
        }
    }

    fn now(&self) -> f64 {
        self.clocks.iter().copied().fold(0.0, f64::max)
    }

    /// Lets all begin at the same time.
    fn align(&mut self) {
        let now = self.now();
        self.clocks.fill(now);
        self.last = now;
        self.free = [now; 2];
    }

    /// Runs the handler that is due first, and then all hardware. Returns when it ended, or `None`
    /// if no processor has an event.
    fn step(&mut self, fixture: &mut Fixture) -> Option<f64> {
        let mut order: Vec<usize> = (0..self.clocks.len()).collect();
        order.sort_by(|a, b| self.clocks[*a].total_cmp(&self.clocks[*b]));
        let mut ended = None;
        for number in order {
            let processor = &mut fixture.card.processors()[number];
            let before = processor.profile().runs;
            let inspected = fixture.inspected.load(Relaxed);
            let begin = Instant::now();
            let handled = processor.step(CardStep::Dispatch);
            let took = begin.elapsed().as_nanos() as f64 - self.overhead;
            if !handled {
                self.idle[number] = true;
                continue;
            }
            if std::mem::take(&mut self.idle[number]) {
                // Its event was raised by the call before, or by the host.
                self.clocks[number] = self.clocks[number].max(self.last);
            }
            let took = took.clamp(1.0, LONGEST);
            let inspected = (fixture.inspected.load(Relaxed) - inspected) as f64;
            let after = fixture.card.processors()[number].profile().runs;
            let event = before.iter().zip(after).position(|(a, b)| *a != b)?;
            self.last = self.charge(number, event, took, inspected);
            ended = Some(self.last);
            break;
        }
        fixture.run_hardware();
        ended
    }

    /// Adds a call of a handler to the clock of its processor.
    fn charge(&mut self, number: usize, event: usize, took: f64, inspected: f64) -> f64 {
        let mut begin = self.clocks[number];
        if let Some(half) = half(event).filter(|_| self.is_shared) {
            begin = begin.max(self.free[half]);
            let is_copy = self.may_copy && NicEvent::ALL[event] == NicEvent::ReceiveComplete;
            let held = if is_copy {
                took - inspected.min(took)
            } else {
                took
            };
            self.free[half] = begin + held;
        }
        self.clocks[number] = begin + took;
        self.busy[number] += took;
        self.events[event] += took;
        begin + took
    }
}

/// What reading the clock twice costs, in nanoseconds.
fn clock_overhead() -> f64 {
    let spans = (0..1_000).map(|_| Instant::now().elapsed().as_nanos() as f64);
    Spread::of(spans).map_or(0.0, |spread| spread.median)
}

/// What one measurement in processor time found.
struct Measured {
    /// Nanoseconds for a frame, whichever way it goes.
    per_frame: f64,
    /// Nanoseconds for a frame in each handler.
    events: [f64; NicEvent::COUNT],
    /// The time of each processor.
    busy: Vec<f64>,
}

/// Keeps the card busy with frames to send, to receive, or both.
fn saturate(
    firmware: Firmware,
    traffic: Traffic,
    size: usize,
    is_heavy: bool,
    overhead: f64,
) -> Measured {
    let mut fixture = Fixture::new(firmware, size, is_heavy);
    let mut processors = Processors::new(firmware, overhead);
    let wanted = match traffic {
        Traffic::Send => [FRAMES, 0],
        Traffic::Receive => [0, FRAMES],
        Traffic::Both => [FRAMES, FRAMES],
    };
    let frames = fixture.keep_busy(wanted, |fixture| processors.step(fixture).is_some());
    let frames = frames.max(1) as f64;
    Measured {
        per_frame: processors.now() / frames,
        events: processors.events.map(|ns| ns / frames),
        busy: processors.busy.iter().map(|ns| ns / frames).collect(),
    }
}

/// The smallest frames, one each way, on one processor: what Valgrind counts.
pub(crate) fn counted() -> Case {
    Case::new("card", "a frame each way", 512, || {
        let mut fixture = Fixture::new(Firmware::Uniprocessor, SIZES[0], false);
        move |units| {
            fixture.keep_busy([units as usize; 2], |fixture| {
                let handled = fixture.card.processors()[0].step(CardStep::Dispatch);
                fixture.run_hardware();
                handled
            });
        }
    })
}

/// Nanoseconds from a datagram of the host to the answer that the far end gives at once, without
/// what happens on the wire.
fn ping(firmware: Firmware, size: usize, overhead: f64) -> f64 {
    let mut fixture = Fixture::new(firmware, size, false);
    let mut processors = Processors::new(firmware, overhead);
    let mut spans = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        // The rest of the datagram before counts in no latency.
        while processors.step(&mut fixture).is_some() {}
        processors.align();
        let begin = processors.now();
        fixture.send([1, 0]);
        for _ in 0..100 {
            let at = processors.step(&mut fixture);
            let [far, host] = fixture.receive();
            fixture.send([0, far]);
            if let (1.., Some(at)) = (host, at) {
                spans.push(at - begin);
                break;
            }
        }
    }
    Spread::of(spans).map_or(f64::NAN, |spread| spread.median)
}

/// Frames per second on threads: each processor has one, and this one is host and far end.
fn on_threads(
    firmware: Firmware,
    traffic: Traffic,
    size: usize,
    slice: Duration,
) -> Result<f64, String> {
    let (near, far) = wire();
    let config = NicConfig::default().firmware(firmware);
    let nic = Nic::start(&config, near).map_err(|error| error.to_string())?;
    let ((mut host_rx, mut host_tx), (mut far_rx, mut far_tx)) = (halves(nic), halves(far));
    let bytes = datagram(size);
    let frames = [TxFrame::new(&bytes); WINDOW];
    let (mut claimed, mut count) = (Vec::new(), 0);
    let begin = Instant::now();
    while begin.elapsed() < slice {
        let mut done = 0;
        if traffic != Traffic::Receive {
            done += host_tx
                .transmit(&frames)
                .map_err(|error| error.to_string())?;
        }
        if traffic != Traffic::Send {
            done += far_tx
                .transmit(&frames)
                .map_err(|error| error.to_string())?;
        }
        for rx in [&mut host_rx, &mut far_rx] {
            let got = rx
                .claim(2 * WINDOW, &mut claimed)
                .map_err(|error| error.to_string())?;
            rx.release(&mut claimed);
            count += got;
            done += got;
        }
        if done == 0 {
            std::thread::yield_now();
        }
    }
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

/// Services over cards: their names, and whether there is a router between client and server.
const SERVICES: [(&str, bool); 2] = [("server", false), ("router", true)];
/// Bytes that a client gets.
const SERVED: usize = 16 << 20;

/// Gbit/s that a client gets from a server whose card has this firmware, or through a router that
/// has two of them; on threads.
fn serve(firmware: Firmware, is_routed: bool) -> Result<f64, Box<dyn std::error::Error>> {
    let config = NicConfig::default().firmware(firmware);
    let card = |device| Nic::start(&config, device);
    let (client_end, near) = wire();
    let gateway = |net: u8| [10, 0, net, 254].into();
    let client = Stack::builder("10.0.1.1/24")
        .gateway(gateway(1))
        .start(client_end)?;
    let (server, remote, _router) = if is_routed {
        let (far, server_end) = wire();
        let router = Router::builder()
            .interface("10.0.1.254/24", card(near)?)
            .interface("10.0.2.254/24", card(far)?);
        let router = router.build()?.start()?;
        let server = Stack::builder("10.0.2.1/24")
            .gateway(gateway(2))
            .start(server_end)?;
        (server, "10.0.2.1:80", Some(router))
    } else {
        (
            Stack::builder("10.0.1.2/24").start(card(near)?)?,
            "10.0.1.2:80",
            None,
        )
    };
    let listener = server.listen(80, 1)?;
    let serving = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let chunk = vec![0x5a; 256 << 10];
        (0..SERVED / chunk.len()).try_for_each(|_| stream.write_all(&chunk))
    });
    let mut stream = client.connect(remote)?;
    let (begin, mut got, mut buffer) = (Instant::now(), 0, vec![0; 256 << 10]);
    while got < SERVED {
        match stream.read(&mut buffer)? {
            0 => return Err(format!("{got} of {SERVED} bytes arrived").into()),
            len => got += len,
        }
    }
    let took = begin.elapsed().as_secs_f64();
    serving.join().map_err(|_| "the server panicked")??;
    Ok(SERVED as f64 * 8e-9 / took)
}

/// Frames per second that a gigabit Ethernet carries, one way or both.
fn ethernet_limit(traffic: Traffic, size: usize) -> f64 {
    let one_way = 1e9 / ((HEADERS + size + AROUND).max(64 + 20) as f64 * 8.0);
    match traffic {
        Traffic::Both => 2.0 * one_way,
        _ => one_way,
    }
}

/// All of it, in as many rounds as there is time for; at least one.
fn measure(wanted: &Wanted, progress: &mut dyn FnMut(usize, usize)) -> Result<Found, String> {
    let mut clock = Clock::new(wanted, 2);
    let until = clock.part(1);
    let calm = Calm::begin();
    let overhead = clock_overhead();
    let cases: Vec<(Traffic, usize)> = Traffic::ALL
        .into_iter()
        .flat_map(|traffic| SIZES.map(|size| (traffic, size)))
        .collect();
    let rounds = wanted.side_rounds.max(1);
    let count = FIRMWARE.len();
    // By case, then by firmware, the rounds.
    let mut per_frame = vec![vec![Vec::new(); count]; cases.len()];
    let (mut profiles, mut sending) = (Vec::new(), Vec::new());
    let (mut pings, mut heavy) = (vec![Vec::new(); count], vec![Vec::new(); count]);
    for round in 0..rounds {
        progress(round, 2 * rounds);
        if round > 0 && until.is_some_and(|until| Instant::now() > until) {
            break;
        }
        for (number, (firmware, _)) in FIRMWARE.into_iter().enumerate() {
            for (case, (traffic, size)) in cases.iter().enumerate() {
                let measured = saturate(firmware, *traffic, *size, false, overhead);
                per_frame[case][number].push(measured.per_frame);
                match *traffic {
                    Traffic::Both if *size == SIZES[0] => profiles.push((firmware, measured)),
                    Traffic::Send if *size == SIZES[0] => sending.push((firmware, measured)),
                    _ => {}
                }
            }
            pings[number].push(ping(firmware, SIZES[0], overhead));
            let loaded = saturate(firmware, Traffic::Receive, SIZES[5], true, overhead);
            heavy[number].push(loaded.per_frame);
        }
    }
    let is_disturbed = calm.is_disturbed();
    let mut walls = vec![vec![Vec::new(); count]; 3];
    let until = clock.part(1);
    for round in 0..rounds {
        progress(rounds + round, 2 * rounds);
        if round > 0 && until.is_some_and(|until| Instant::now() > until) {
            break;
        }
        for (traffic, walls) in Traffic::ALL.into_iter().zip(&mut walls) {
            for (number, (firmware, _)) in FIRMWARE.into_iter().enumerate() {
                walls[number].push(on_threads(firmware, traffic, SIZES[5], wanted.base.slice)?);
            }
        }
    }
    let mut services = vec![vec![Vec::new(); count]; SERVICES.len()];
    for _ in 0..rounds.min(5) {
        for ((_, is_routed), services) in SERVICES.into_iter().zip(&mut services) {
            for (number, (firmware, _)) in FIRMWARE.into_iter().enumerate() {
                let rate = serve(firmware, is_routed).map_err(|error| error.to_string())?;
                services[number].push(rate);
            }
        }
    }
    let mut rows = Vec::new();
    for ((traffic, size), measured) in cases.iter().zip(&per_frame) {
        for ((_, name), measured) in FIRMWARE.iter().zip(measured) {
            rows.push(Row {
                firmware: name,
                traffic: *traffic,
                size: *size,
                ns_per_frame: Spread::of(measured.iter().copied()),
                speedup: ratios(
                    &measured_of(&per_frame, &cases, *traffic, *size)[0],
                    measured,
                ),
                scaled_mbit_per_s: None,
            });
        }
    }
    scale(&mut rows);
    Ok(Found {
        overhead_ns: overhead,
        rounds: pings[0].len(),
        is_disturbed,
        service_rounds: rounds.min(5),
        events: event_rows(&profiles),
        share_of_a: share_of_a(&profiles),
        share_of_a_sending: share_of_a(&sending),
        busy_share: busy_share(&profiles),
        rows,
        pings: named(&pings),
        heavy: named(&heavy),
        walls: Traffic::ALL
            .into_iter()
            .zip(&walls)
            .map(|(t, w)| (t, named(w)))
            .collect(),
        services: SERVICES
            .into_iter()
            .zip(&services)
            .map(|((name, _), services)| (name, named(services)))
            .collect(),
    })
}

fn measured_of<'a>(
    all: &'a [Vec<Vec<f64>>],
    cases: &[(Traffic, usize)],
    traffic: Traffic,
    size: usize,
) -> &'a [Vec<f64>] {
    let place = cases.iter().position(|case| *case == (traffic, size));
    &all[place.unwrap_or(0)]
}

/// How many times as fast the second is, round by round.
fn ratios(first: &[f64], second: &[f64]) -> Option<Spread> {
    Spread::of(
        first
            .iter()
            .zip(second)
            .map(|(first, second)| first / second),
    )
}

fn named(values: &[Vec<f64>]) -> ByFirmware {
    let named = FIRMWARE.iter().zip(values);
    named
        .map(|((_, name), values)| (*name, Spread::of(values.iter().copied())))
        .collect()
}

/// The rate of a card whose one processor is as fast as the paper's, on a gigabit Ethernet.
fn scale(rows: &mut [Row]) {
    let at = |rows: &[Row], firmware: &str, traffic, size| {
        let mut rows = rows.iter();
        let row = rows.find(|r| (r.firmware, r.traffic, r.size) == (firmware, traffic, size))?;
        row.ns_per_frame.map(|ns| ns.median)
    };
    let Some(unit) = at(rows, FIRMWARE[0].1, Traffic::Both, SIZES[5]) else {
        return;
    };
    for row in rows {
        row.scaled_mbit_per_s = row.ns_per_frame.map(|ns| {
            let frames = RELEASED_FRAMES * unit / ns.median;
            frames.min(ethernet_limit(row.traffic, row.size)) * row.size as f64 * 8e-6
        });
    }
}

fn event_rows(profiles: &[(Firmware, Measured)]) -> Vec<EventRow> {
    let alone: Vec<&Measured> = profiles
        .iter()
        .filter(|(firmware, _)| *firmware == Firmware::Uniprocessor)
        .map(|(_, measured)| measured)
        .collect();
    let row = |(number, event): (usize, NicEvent)| {
        let share = |m: &&Measured| m.events[number] / m.events.iter().sum::<f64>();
        EventRow {
            event: event.name(),
            ns_per_frame: Spread::of(alone.iter().map(|m| m.events[number])),
            share: Spread::of(alone.iter().map(share)),
            published: paper::NIC_EVENTS[number],
        }
    };
    NicEvent::ALL.into_iter().enumerate().map(row).collect()
}

/// Processor A's share of what one processor does, as the paper counts it.
fn share_of_a(profiles: &[(Firmware, Measured)]) -> Option<Spread> {
    let of_a = [
        NicEvent::Mailbox,
        NicEvent::DmaWriteComplete,
        NicEvent::ReceiveComplete,
        NicEvent::UpdateReturnProducer,
    ];
    let alone = profiles
        .iter()
        .filter(|(firmware, _)| *firmware == Firmware::Uniprocessor);
    Spread::of(alone.map(|(_, measured)| {
        let part: f64 = of_a
            .iter()
            .map(|event| measured.events[*event as usize])
            .sum();
        part / measured.events.iter().sum::<f64>()
    }))
}

/// Processor A's share of what both processors of the partition do.
fn busy_share(profiles: &[(Firmware, Measured)]) -> Option<Spread> {
    let both = profiles
        .iter()
        .filter(|(firmware, _)| *firmware == Firmware::Partitioned);
    Spread::of(both.map(|(_, measured)| measured.busy[0] / measured.busy.iter().sum::<f64>()))
}
