//! What the steps of a worker cost, measured with one worker by hand.
//!
//! One thread drives all workers of a stack, step by step, over the simulated peer and with the
//! real kernels, and looks at the clock between the steps. The turns are divided into parts, and
//! the median of the parts counts. What two workers wait for on account of each other is in none of
//! these times: the model adds it.

use std::time::{Duration, Instant};

use dominoes_netstack::framed::MAX_UNIT;
use dominoes_netstack::group::{Layout, ReplicatedGroup, ReplicatedWorker};
use dominoes_netstack::time;
use dominoes_netstack::variants::Worker as _;
use dominoes_netstack::variants::locked;
use dominoes_netstack::variants::single::Single;
use serde::Serialize;

use super::counts::{count, device_ns};
use super::linear::Linear;
use super::programs::MOST;
use crate::drivers::Direction;
use crate::drivers::app::{self, App};
use crate::drivers::partitioned;
use crate::drivers::pipelined;
use crate::drivers::worker::Application as _;
use crate::spread::Spread;
use crate::workload::Workload;

/// Turns that are measured, at least and at most.
const TURNS: (usize, usize) = (64, 4_000);
/// Parts of these turns, in a row, of which the median is taken.
const BLOCKS: usize = 16;
/// How long it may take in all on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the ring that shows the fixed cost of a step: a few dozen segments.
const SMALL: usize = 32;
/// Bytes of receive ring for each worker of the projection.
pub(crate) const RING_FOR_WORKER: usize = 512 << 10;
/// Bytes of the ring by which the costs of larger groups are measured.
const LARGE: u32 = 8 << 20;

/// The steps of `replicated`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Replicated {
    /// With the device, which only one worker has at a time.
    pub(crate) claim: Linear,
    pub(crate) parse: Linear,
    /// With the receive pump, which only one worker has at a time.
    pub(crate) publish: Linear,
    /// Checksums of the worker's own requests, and the copy if there is a place for it.
    pub(crate) prepare: Linear,
    /// By every worker.
    pub(crate) apply: Linear,
    /// Of the worker's own requests or frames; in receiving with the frames of acknowledgments and
    /// the time between two steps.
    pub(crate) perform: Linear,
    /// In sending: with the transmit pump, which only one worker has at a time.
    pub(crate) transmit: Linear,
    /// By the first worker.
    pub(crate) app: Linear,
}

/// The steps of `locked`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Locked {
    /// Segments of a turn: in sending, as many as the acknowledgments that are there allow.
    pub(crate) turn: f64,
    /// Claim, parse and make requests, with the receive pump.
    pub(crate) pump: Linear,
    pub(crate) prepare: Linear,
    /// Under the lock.
    pub(crate) apply: Linear,
    pub(crate) perform: Linear,
    /// In sending: with the transmit pump.
    pub(crate) transmit: Linear,
    pub(crate) app: Linear,
}

/// All that the model knows of one workload.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Costs {
    /// Whether payload is sent; else it is received.
    pub(crate) sends: bool,
    /// Nanoseconds of a segment.
    pub(crate) single: f64,
    /// Nanoseconds of a segment with one replica, which keeps no log.
    pub(crate) solo: f64,
    /// Nanoseconds of a segment in one of several groups over a device, which sort frames by flow.
    pub(crate) partitioned: f64,
    pub(crate) replicated: Replicated,
    pub(crate) locked: Locked,
    /// Stages of a pipeline, a segment: interface, data, protocol.
    pub(crate) stages: [f64; 3],
    /// What the simulated peer takes of a claim, in receiving.
    pub(crate) device: Linear,
    /// By how much payload takes longer with the ring of a large group.
    pub(crate) large_ring: f64,
    /// Requests of a segment.
    pub(crate) requests: f64,
    /// Bytes of a segment that come from memory, and bytes of its frame.
    pub(crate) segment_bytes: usize,
    pub(crate) frame_bytes: usize,
}

/// What one turn of a calibration took: each step in nanoseconds.
struct Turn<const STEPS: usize> {
    segments: usize,
    ns: [f64; STEPS],
}

/// Segments of a turn, and what each of its steps takes: medians of parts of all turns.
struct Median<const STEPS: usize> {
    segments: f64,
    ns: [f64; STEPS],
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    Spread::of(values).map_or(0.0, |spread| spread.median)
}

/// The time of a look at the clock.
fn look_ns() -> f64 {
    median((0..1_000).map(|_| Instant::now().elapsed().as_nanos() as f64))
}

/// Notes how long the steps of a turn take.
struct Watch<const STEPS: usize> {
    last: Instant,
    look: f64,
    ns: [f64; STEPS],
    next: usize,
}

impl<const STEPS: usize> Watch<STEPS> {
    fn begin(look: f64) -> Self {
        Watch {
            last: Instant::now(),
            look,
            ns: [0.0; STEPS],
            next: 0,
        }
    }

    /// A step ends here.
    fn step(&mut self) {
        let now = Instant::now();
        let ns = (now - self.last).as_nanos() as f64 - self.look;
        self.ns[self.next] = ns.max(0.0);
        self.next += 1;
        self.last = now;
    }
}

/// Turns `turn` until the pool was used once, and then until there are enough turns.
fn measure<const STEPS: usize>(
    workload: &Workload,
    mut turn: impl FnMut(time::Instant, &mut Watch<STEPS>) -> usize,
) -> Result<Median<STEPS>, String> {
    let (look, begin) = (look_ns(), Instant::now());
    let mut warm = workload.frames();
    let mut from = None;
    let mut turns: Vec<Turn<STEPS>> = Vec::new();
    // Of turns without segments, which belong to the next one that has some.
    let mut before = [0.0; STEPS];
    loop {
        let elapsed = begin.elapsed();
        let now = time::Instant::from_nanos(10_000 + elapsed.as_nanos() as u64);
        let mut watch = Watch::begin(look);
        let segments = turn(now, &mut watch);
        if warm > 0 {
            warm = warm.saturating_sub(segments);
        } else if segments == 0 {
            before = core::array::from_fn(|step| before[step] + watch.ns[step]);
        } else {
            let from = *from.get_or_insert(elapsed);
            let ns = core::array::from_fn(|step| before[step] + watch.ns[step]);
            before = [0.0; STEPS];
            turns.push(Turn { segments, ns });
            let is_long = elapsed - from >= workload.slice / 2 && turns.len() >= TURNS.0;
            if is_long || turns.len() >= TURNS.1 {
                break;
            }
        }
        if elapsed > PATIENCE {
            return Err(format!(
                "{} turns with segments when the time was up",
                turns.len()
            ));
        }
    }
    // One turn may build what the next one sends, so single turns say little.
    let blocks = turns.chunks(turns.len().div_ceil(BLOCKS));
    let all = |block: &[Turn<STEPS>]| block.iter().map(|turn| turn.segments).sum::<usize>() as f64;
    let of = |step: usize| {
        let one = |block: &[Turn<STEPS>]| {
            let ns: f64 = block.iter().map(|turn| turn.ns[step]).sum();
            ns / all(block)
        };
        median(blocks.clone().map(one))
    };
    let segments = median(blocks.clone().map(|block| all(block) / block.len() as f64));
    Ok(Median {
        segments,
        ns: core::array::from_fn(|step| segments * of(step)),
    })
}

/// A group of `replicas`, driven by hand.
pub(super) fn group(
    direction: Direction,
    workload: &Workload,
    replicas: usize,
) -> Result<(Vec<ReplicatedWorker>, App), String> {
    let mut layout = Layout::default();
    layout.replicas = replicas;
    layout.tuning.log = workload.log_requests;
    let make = |setup, device| {
        ReplicatedGroup::new(setup, layout, device).map(ReplicatedGroup::into_by_hand)
    };
    let (group, mut app) = App::on(direction, workload, make)?;
    app.verify(false);
    Ok((group.into_workers(), app))
}

/// Segments that the application has read, or the peer, since the last call.
pub(super) fn segments(app: &App, workload: &Workload, moved: &mut u64) -> usize {
    let all = app.bytes() / workload.segment_bytes as u64;
    let new = all - *moved;
    *moved = all;
    new as usize
}

/// The steps of two replicas, of which one claims everything.
type Steps = Median<11>;

/// Claim, parse, publish, prepare, apply and perform of the one that claims; apply and perform of
/// the other one; sending by either, the application, and the rest of both turns.
fn replicated(direction: Direction, workload: &Workload) -> Result<Steps, String> {
    let (mut workers, mut app) = group(direction, workload, 2)?;
    let [first, other] = &mut workers[..] else {
        return Err("not two workers".to_owned());
    };
    let mut moved = 0;
    segments(&app, workload, &mut moved);
    let measured = measure(workload, |now, watch| {
        first.claim(now);
        watch.step();
        first.parse();
        watch.step();
        first.publish(now);
        watch.step();
        first.prepare_ahead();
        watch.step();
        first.apply_all();
        watch.step();
        first.perform_all();
        watch.step();
        other.prepare_ahead();
        other.apply_all();
        watch.step();
        other.perform_all();
        watch.step();
        first.send();
        watch.step();
        app.turn();
        watch.step();
        first.work();
        other.work();
        watch.step();
        segments(&app, workload, &mut moved)
    })?;
    app.check()?;
    Ok(measured)
}

impl Steps {
    /// What every worker does with every request, in nanoseconds of a turn.
    fn applied(&self, sends: bool) -> f64 {
        // In receiving the other one performs nothing, but it passes over the requests.
        self.ns[6] + if sends { 0.0 } else { self.ns[7] }
    }

    /// The work of a primary alone. In sending both build their chunks.
    fn performed(&self, sends: bool) -> f64 {
        let own = self.ns[4] + self.ns[5] + self.ns[10] / 2.0;
        let others = if sends { self.ns[7] } else { self.ns[8] };
        (own + others - self.applied(sends)).max(0.0)
    }

    /// What the payload is worked on.
    fn payload(&self, sends: bool) -> f64 {
        (self.ns[3] + self.performed(sends)) / self.segments
    }
}

fn replicated_costs(many: &Steps, few: &Steps, sends: bool) -> Replicated {
    let points = |few_ns: f64, many_ns: f64| {
        Linear::through((few.segments, few_ns), (many.segments, many_ns))
    };
    let through = |step: usize| points(few.ns[step], many.ns[step]);
    let each = |ns: f64| Linear::each(ns / many.segments);
    Replicated {
        claim: through(0),
        parse: through(1),
        publish: through(2),
        prepare: each(many.ns[3]),
        apply: points(few.applied(sends), many.applied(sends)),
        perform: each(many.performed(sends)),
        transmit: if sends { through(8) } else { Linear::default() },
        app: through(9),
    }
}

/// The same with few segments at a time, but with room for the units that a stream has to take.
pub(super) fn small(workload: &Workload) -> Workload {
    let units = if workload.processes() {
        2 * MAX_UNIT
    } else {
        0
    };
    let bytes = (SMALL * workload.segment_bytes)
        .next_power_of_two()
        .max(units);
    Workload {
        ring_bytes: bytes as u32,
        ..*workload
    }
}

/// The steps of one worker of `locked`: pump, prepare, apply, perform, send, application.
fn locked(direction: Direction, workload: &Workload) -> Result<Median<6>, String> {
    let layout = locked::LockedLayout::default()
        .workers(1)
        .window(workload.log_requests);
    let make = |setup, device| locked::LockedGroup::<locked::Mcs>::new(setup, layout, device);
    let (mut group, mut app) = App::on(direction, workload, make)?;
    app.verify(false);
    let mut moved = 0;
    segments(&app, workload, &mut moved);
    let measured = measure(workload, |now, watch| {
        let worker = &mut group.workers()[0];
        worker.pump(now);
        watch.step();
        while worker.prepare() {}
        watch.step();
        while worker.apply() {}
        watch.step();
        while worker.perform() {}
        worker.serve_units();
        watch.step();
        worker.send();
        watch.step();
        app.turn();
        watch.step();
        segments(&app, workload, &mut moved)
    })?;
    app.check()?;
    Ok(measured)
}

pub(super) fn locked_costs(direction: Direction, workload: &Workload) -> Result<Locked, String> {
    let many = locked(direction, workload)?;
    let few = locked(direction, &small(workload))?;
    let sends = direction.sends();
    let send = if sends { 0.0 } else { many.ns[4] };
    let through =
        |step: usize| Linear::through((few.segments, few.ns[step]), (many.segments, many.ns[step]));
    let each = |ns: f64| Linear::each(ns / many.segments);
    Ok(Locked {
        turn: many.segments,
        pump: through(0),
        prepare: each(many.ns[1]),
        apply: through(2),
        perform: each(many.ns[3] + send),
        transmit: if sends { through(4) } else { Linear::default() },
        app: through(5),
    })
}

/// Nanoseconds of a segment where one worker does everything, turn by turn.
fn whole(
    workload: &Workload,
    app: &mut App,
    mut turn: impl FnMut(time::Instant),
) -> Result<f64, String> {
    let mut moved = 0;
    segments(app, workload, &mut moved);
    let measured = measure(workload, |now, watch: &mut Watch<1>| {
        turn(now);
        app.turn();
        watch.step();
        segments(app, workload, &mut moved)
    })?;
    app.check()?;
    Ok(measured.ns[0] / measured.segments)
}

fn single(direction: Direction, workload: &Workload) -> Result<f64, String> {
    let (mut single, mut app) = App::on(direction, workload, Single::new)?;
    app.verify(false);
    whole(workload, &mut app, |now| {
        single.turn(now);
    })
}

/// One worker that drives one group, as the row does on one core.
fn partitioned(direction: Direction, workload: &Workload) -> Result<f64, String> {
    let setup = app::setup(direction, workload)?;
    let (mut groups, mut app) = partitioned::groups((direction, workload), 1, setup, Single::new)?;
    app.verify(false);
    whole(workload, &mut app, |now| {
        for group in &mut groups {
            group.turn(now);
        }
    })
}

fn solo(direction: Direction, workload: &Workload) -> Result<f64, String> {
    let (mut workers, mut app) = group(direction, workload, 1)?;
    whole(workload, &mut app, |now| {
        workers[0].turn(now);
    })
}

/// How often everything is measured, in turn: the median counts, since the speed of a shared core
/// changes within seconds.
const TIMES: usize = 3;

/// Measures everything of one workload; takes some three seconds.
pub(crate) fn calibrate(direction: Direction, workload: &Workload) -> Result<Costs, String> {
    let once = |_| calibrate_once(direction, workload);
    let all: Vec<Costs> = (0..TIMES).map(once).collect::<Result<_, _>>()?;
    Ok(Costs::median(&all))
}

impl Costs {
    /// The median of each number.
    fn median(all: &[Costs]) -> Costs {
        let each = |of: &dyn Fn(&Costs) -> f64| median(all.iter().map(of));
        let line = |of: &dyn Fn(&Costs) -> Linear| Linear {
            each: each(&|costs| of(costs).each),
            fixed: each(&|costs| of(costs).fixed),
        };
        let first = all[0];
        Costs {
            single: each(&|costs| costs.single),
            solo: each(&|costs| costs.solo),
            partitioned: each(&|costs| costs.partitioned),
            replicated: Replicated {
                claim: line(&|costs| costs.replicated.claim),
                parse: line(&|costs| costs.replicated.parse),
                publish: line(&|costs| costs.replicated.publish),
                prepare: line(&|costs| costs.replicated.prepare),
                apply: line(&|costs| costs.replicated.apply),
                perform: line(&|costs| costs.replicated.perform),
                transmit: line(&|costs| costs.replicated.transmit),
                app: line(&|costs| costs.replicated.app),
            },
            locked: Locked {
                turn: each(&|costs| costs.locked.turn),
                pump: line(&|costs| costs.locked.pump),
                prepare: line(&|costs| costs.locked.prepare),
                apply: line(&|costs| costs.locked.apply),
                perform: line(&|costs| costs.locked.perform),
                transmit: line(&|costs| costs.locked.transmit),
                app: line(&|costs| costs.locked.app),
            },
            stages: [0, 1, 2].map(|stage| each(&|costs| costs.stages[stage])),
            device: line(&|costs| costs.device),
            large_ring: each(&|costs| costs.large_ring),
            ..first
        }
    }
}

fn calibrate_once(direction: Direction, workload: &Workload) -> Result<Costs, String> {
    let large = Workload {
        ring_bytes: LARGE,
        ..*workload
    };
    let sends = direction.sends();
    let many = replicated(direction, workload)?;
    let few = replicated(direction, &small(workload))?;
    let large = replicated(direction, &large)?.payload(sends);
    let device = if sends {
        Linear::default()
    } else {
        let at = |frames: usize| Ok::<_, String>((frames as f64, device_ns(workload, frames)?));
        Linear::through(at(SMALL)?, at(MOST)?)
    };
    let stages = pipelined::stage_costs(direction, workload, (1, 1), workload.slice / 2)?;
    Ok(Costs {
        sends,
        single: single(direction, workload)?,
        solo: solo(direction, workload)?,
        partitioned: partitioned(direction, workload)?,
        replicated: replicated_costs(&many, &few, sends),
        locked: locked_costs(direction, workload)?,
        stages: [stages.interface, stages.data, stages.protocol],
        device,
        large_ring: (large / many.payload(sends).max(f64::MIN_POSITIVE)).max(1.0),
        requests: count(direction, workload, 2)?.requests,
        segment_bytes: workload.segment_bytes,
        frame_bytes: workload.head_bytes() + workload.segment_bytes,
    })
}
