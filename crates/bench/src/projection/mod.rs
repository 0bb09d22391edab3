//! What the variants would do with more workers than this machine has cores.
//!
//! A queueing model in virtual time. Its [`programs`] take the steps that the workers of each
//! variant take; the cost of a step is measured with one worker ([`costs`]), how many requests a
//! segment makes is counted in runs by hand ([`counts`]), and the [`engine`] adds what workers wait
//! for on account of each other: exclusive roles, locks, cache lines that another core wrote last,
//! memory. Nothing is fitted: all other parameters are stated here and in [`programs`].
//!
//! The stack itself is not driven in virtual time, since a group has at most 56 workers, and since
//! one call of a worker does several steps at one moment, where the model needs the time between
//! them.

pub(crate) mod costs;
pub(crate) mod counts;
mod engine;
pub(crate) mod linear;
pub(crate) mod papers;
mod programs;
mod replicated;

use costs::Costs;
use engine::{Account, Handover, Machine, Program, Shape, ps};
use programs::{Alone, LockedProgram, MOST, Pipeline, Setting};
use replicated::ReplicatedProgram;
use serde::Serialize;

/// Numbers of workers that are projected.
pub(crate) const WORKERS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Nanoseconds that a line takes from core to core: by which the targets go, first; and others.
pub(crate) const LINES_NS: [f64; 3] = [60.0, 30.0, 120.0];
/// Bytes in a nanosecond that a memory domain moves: eight channels of DDR4-3200 have 205 at most,
/// of which copies reach some four fifths.
pub(crate) const DOMAIN_BYTES_PER_NS: f64 = 160.0;

crate::named! {
    /// The projected rows. Each is compared with the measured row of the same name.
    pub(crate) enum Kind {
        Single = "single",
        LockedMutex = "locked-mutex",
        LockedMcs = "locked-mcs",
        /// One connection, which one worker has.
        Partitioned = "partitioned",
        PartitionedMany = "partitioned, a connection each",
        Pipelined = "pipelined",
        Replicated = "replicated",
    }
}

impl Kind {
    /// The kind whose measured rows test this one.
    pub(crate) fn measured_as(self) -> Kind {
        match self {
            Kind::PartitionedMany => Kind::Partitioned,
            other => other,
        }
    }
}

/// The properties of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Conditions {
    /// Nanoseconds that a line takes from core to core.
    pub(crate) line_ns: f64,
    /// Memory domains.
    pub(crate) domains: usize,
    /// Bytes in a nanosecond that each moves.
    pub(crate) bytes_per_ns: f64,
    /// By how much payload takes longer while two cores work on it.
    pub(crate) two_at_once: f64,
    /// Whether the device is held while the simulated peer writes the headers of frames. If not,
    /// the worker that claims still spends that time, but others can claim meanwhile: a card writes
    /// its headers itself.
    pub(crate) peer_holds: bool,
}

impl Conditions {
    /// A machine that is stated, not measured.
    pub(crate) fn stated(line_ns: f64, domains: usize) -> Conditions {
        Conditions {
            line_ns,
            domains,
            bytes_per_ns: DOMAIN_BYTES_PER_NS,
            two_at_once: 1.0,
            peer_holds: false,
        }
    }
}

/// Nanoseconds of a segment below which something does not let the whole go.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Bound {
    pub(crate) what: &'static str,
    pub(crate) ns: f64,
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Projected {
    /// Nanoseconds of a segment.
    pub(crate) ns: f64,
    /// The nearest first.
    pub(crate) bounds: Vec<Bound>,
    /// Share of their time that the workers were idle, waited for a role or lock, or for memory.
    pub(crate) lost: f64,
    /// Segments of a claim, where that varies.
    pub(crate) claimed: Option<f64>,
}

/// Runs `program` until it is in step, and then for long enough.
fn simulate<P: Program>(
    shape: Shape,
    handovers: &[Handover],
    mut program: P,
) -> (P, f64, Account, u64) {
    let batches = (shape.workers * MOST) as u64;
    let (warm, counted) = (4 * batches + 20_000, 8 * batches + 40_000);
    let mut machine = Machine::new(shape, handovers);
    machine.run(&mut program, |program| program.segments() >= warm);
    let (before, from) = (machine.account(), program.segments());
    machine.run(&mut program, |program| program.segments() >= from + counted);
    let segments = program.segments() - from;
    let account = machine.account().since(&before);
    let ns = account.elapsed as f64 / 1e3 / segments.max(1) as f64;
    (program, ns, account, segments)
}

/// The projection of `kind` with a number of workers.
pub(crate) fn project(
    kind: Kind,
    workers: usize,
    costs: &Costs,
    log: usize,
    conditions: &Conditions,
) -> Projected {
    let shape = Shape {
        workers,
        line: ps(conditions.line_ns),
        domains: conditions.domains.min(workers),
        bytes_per_ns: conditions.bytes_per_ns,
    };
    let mut payload = 1.0;
    if workers > 1 {
        payload *= conditions.two_at_once;
    }
    if workers > 2 {
        payload *= costs.large_ring;
    }
    let setting = Setting {
        sends: costs.sends,
        window: counts::ring_bytes(workers) as usize / costs.segment_bytes,
        // A frame that is built is fetched and written back.
        memory_bytes: costs.frame_bytes as u64 * if costs.sends { 2 } else { 1 },
        segment_bytes: costs.segment_bytes,
        requests: costs.requests,
        log,
        payload,
    };
    let alone = |cost: f64, busy: usize| {
        let program = Alone {
            setting: Setting {
                payload: if busy > 1 { payload } else { 1.0 },
                ..setting
            },
            cost,
            busy,
            begun: vec![false; workers],
            done: 0,
        };
        let (_, ns, account, segments) = simulate(shape, &[], program);
        let one = bound("the one worker that has the connection", cost);
        let bounds = if busy > 1 { Vec::new() } else { vec![one] };
        projected(ns, &account, (workers, segments), bounds)
    };
    let Costs {
        mut replicated,
        mut locked,
        mut stages,
        device,
        ..
    } = *costs;
    if !conditions.peer_holds {
        replicated.claim = replicated.claim.less(device);
        replicated.parse = replicated.parse.and(device);
        locked.pump = locked.pump.less(device);
        locked.prepare = locked.prepare.and(device);
        // A stage cannot give it away; it does without.
        stages[0] = (stages[0] - device.each).max(0.0);
    }
    match kind {
        Kind::Single => alone(costs.single, 1),
        Kind::Partitioned => alone(costs.partitioned, 1),
        Kind::PartitionedMany => alone(costs.partitioned, workers),
        Kind::Replicated if workers == 1 => alone(costs.solo, 1),
        Kind::Replicated => {
            let program = ReplicatedProgram::new(replicated, setting, workers);
            let simulated = simulate(shape, &ReplicatedProgram::EXCLUSIVES, program);
            let (program, ns, account, segments) = simulated;
            let bounds = vec![
                bound("the device", held(&account, 0, segments)),
                bound("the receive pump", held(&account, 1, segments)),
                bound("the transmit pump", held(&account, 2, segments)),
                bound("what every worker applies", program.applied_ns()),
                bound("the application's worker", replicated.app.each),
            ];
            Projected {
                claimed: Some(program.segments_of_claim()),
                ..projected(ns, &account, (workers, segments), bounds)
            }
        }
        Kind::LockedMutex | Kind::LockedMcs => {
            let lock = match kind {
                Kind::LockedMutex => Handover::Crowd,
                _ => Handover::Queue,
            };
            let program = LockedProgram::new(locked, setting, workers);
            let exclusives = LockedProgram::exclusives(lock);
            let (_, ns, account, segments) = simulate(shape, &exclusives, program);
            let bounds = vec![
                bound("the receive pump", held(&account, 0, segments)),
                bound("the lock", held(&account, 1, segments)),
                bound("the transmit pump", held(&account, 2, segments)),
            ];
            projected(ns, &account, (workers, segments), bounds)
        }
        Kind::Pipelined => {
            let program = Pipeline::new(stages, setting, workers);
            let (program, ns, account, segments) = simulate(shape, &[], program);
            let bounds = program.bounds(&shape);
            projected(ns, &account, (workers, segments), bounds)
        }
    }
}

fn bound(what: &'static str, ns: f64) -> Bound {
    Bound { what, ns }
}

/// Nanoseconds of a segment that an exclusive was held.
fn held(account: &Account, which: usize, segments: u64) -> f64 {
    account.held[which] as f64 / 1e3 / segments.max(1) as f64
}

fn projected(
    ns: f64,
    account: &Account,
    (workers, segments): (usize, u64),
    mut bounds: Vec<Bound>,
) -> Projected {
    let memory = account.memory as f64 / 1e3 / segments.max(1) as f64;
    bounds.push(bound("memory", memory));
    bounds.sort_by(|a, b| b.ns.total_cmp(&a.ns));
    let lost = account.idle + account.waited + account.stalled;
    Projected {
        ns,
        bounds,
        lost: lost as f64 / (account.elapsed.max(1) as f64 * workers as f64),
        claimed: None,
    }
}

/// Workers from which on twice as many gain less than a tenth, of projections for [`WORKERS`].
pub(crate) fn stops_at(projections: &[Projected]) -> Option<usize> {
    let best = |from: usize| {
        let later = projections[from..].iter().map(|projected| projected.ns);
        later.fold(f64::INFINITY, f64::min)
    };
    let mut places = 0..projections.len().saturating_sub(1);
    places.find(|&place| projections[place].ns < 1.1 * best(place + 1))
}

#[cfg(test)]
mod tests {
    use super::costs::{Locked, Replicated};
    use super::linear::Linear;
    use super::*;

    /// Round numbers: 100 ns a segment, of which 80 ns are payload.
    fn costs() -> Costs {
        Costs {
            sends: false,
            single: 100.0,
            solo: 100.0,
            partitioned: 100.0,
            replicated: Replicated {
                claim: Linear::each(2.0),
                parse: Linear::each(10.0),
                publish: Linear::each(1.0),
                prepare: Linear::each(70.0),
                apply: Linear::each(2.0),
                perform: Linear::each(10.0),
                transmit: Linear::each(4.0),
                app: Linear::each(0.5),
            },
            locked: Locked {
                turn: 128.0,
                pump: Linear::each(12.0),
                prepare: Linear::each(60.0),
                apply: Linear::each(8.0),
                perform: Linear::each(20.0),
                transmit: Linear::each(4.0),
                app: Linear::each(0.5),
            },
            stages: [20.0, 70.0, 10.0],
            device: Linear::each(1.0),
            large_ring: 1.0,
            requests: 1.0 / 32.0,
            segment_bytes: 1448,
            frame_bytes: 1502,
        }
    }

    /// A machine on which nothing costs anything between cores.
    fn free() -> Conditions {
        Conditions {
            line_ns: 0.0,
            domains: 1,
            bytes_per_ns: f64::INFINITY,
            two_at_once: 1.0,
            peer_holds: true,
        }
    }

    fn ns(kind: Kind, workers: usize, conditions: &Conditions) -> f64 {
        project(kind, workers, &costs(), 512, conditions).ns
    }

    fn is_near(one: f64, other: f64, share: f64) -> bool {
        (one / other - 1.0).abs() <= share
    }

    #[test]
    fn one_worker_takes_the_sum_of_its_steps() {
        assert_eq!(ns(Kind::Single, 1, &free()), 100.0);
        assert_eq!(ns(Kind::Replicated, 1, &free()), 100.0);
        let locked = ns(Kind::LockedMcs, 1, &free());
        assert!(is_near(locked, 100.5, 0.01), "{locked}");
        let pipelined = ns(Kind::Pipelined, 1, &free());
        assert!(is_near(pipelined, 100.0, 0.01), "{pipelined}");
    }

    #[test]
    fn a_connection_that_one_worker_has_does_not_scale_and_many_do() {
        assert_eq!(ns(Kind::Partitioned, 64, &free()), 100.0);
        let many = ns(Kind::PartitionedMany, 64, &free());
        assert!(is_near(many, 100.0 / 64.0, 0.02), "{many}");
    }

    /// Two workers take P / (1 + L (P - 1)) as long, L what each applies of the other's.
    #[test]
    fn replicas_follow_the_formula_until_a_role_bounds_them() {
        let whole = 95.5;
        for workers in [2.0, 4.0, 8.0] {
            let expected = (whole + 2.0 * (workers - 1.0)) / workers;
            let ns = ns(Kind::Replicated, workers as usize, &free());
            assert!(is_near(ns, expected, 0.08), "{workers}: {ns}, {expected}");
        }
        let many = project(Kind::Replicated, 64, &costs(), 512, &free());
        // What every worker applies, or the device: both take 2 ns.
        assert!(many.ns >= 2.0 && many.bounds[0].ns >= 1.9, "{many:?}");
    }

    #[test]
    fn a_lock_ends_at_what_is_exclusive_and_names_it() {
        let many = project(Kind::LockedMcs, 32, &costs(), 512, &free());
        assert!(is_near(many.ns, 12.0, 0.05), "{many:?}");
        assert_eq!(many.bounds[0].what, "the receive pump");
        let slow = Conditions {
            line_ns: 1_000.0,
            ..free()
        };
        let (mcs, mutex) = (Kind::LockedMcs, Kind::LockedMutex);
        let many = project(mcs, 32, &costs(), 512, &slow);
        assert_eq!(many.bounds[0].what, "the lock");
        assert!(ns(mutex, 32, &slow) > many.ns);
    }

    /// What the peer writes is spent, but not in turn, unless it holds the device.
    #[test]
    fn a_peer_that_holds_the_device_bounds_claims() {
        let slow = Costs {
            device: Linear::each(20.0),
            replicated: Replicated {
                claim: Linear::each(21.0),
                ..costs().replicated
            },
            ..costs()
        };
        let with = |peer_holds| {
            let conditions = Conditions {
                peer_holds,
                ..free()
            };
            project(Kind::Replicated, 16, &slow, 512, &conditions)
        };
        let (holds, not) = (with(true), with(false));
        assert!(is_near(holds.ns, 21.0, 0.05), "{holds:?}");
        assert_eq!(holds.bounds[0].what, "the device");
        let whole = 1.0 + 20.0 + 95.5 - 2.0;
        assert!(
            is_near(not.ns, (whole + 2.0 * 15.0) / 16.0, 0.15),
            "{not:?}"
        );
    }

    #[test]
    fn memory_bounds_every_row_alike() {
        let narrow = Conditions {
            bytes_per_ns: 75.1,
            ..free()
        };
        for kind in [Kind::PartitionedMany, Kind::Replicated] {
            let many = project(kind, 64, &costs(), 512, &narrow);
            assert!(is_near(many.ns, 20.0, 0.02), "{kind:?}: {many:?}");
            assert_eq!(many.bounds[0].what, "memory");
            let two = Conditions {
                domains: 2,
                ..narrow
            };
            let twice = ns(kind, 64, &two);
            assert!(is_near(twice, 10.0, 0.1), "{kind:?}: {twice}");
        }
    }

    /// Sending ends at the transmit pump if nothing else comes before it.
    #[test]
    fn the_transmit_pump_bounds_sending() {
        let sends = Costs {
            sends: true,
            replicated: Replicated {
                prepare: Linear::default(),
                perform: Linear::each(80.0),
                ..costs().replicated
            },
            ..costs()
        };
        let few = project(Kind::Replicated, 4, &sends, 512, &free());
        let whole = 2.0 + 10.0 + 1.0 + 2.0 + 80.0 + 4.0 + 0.5;
        let expected = (whole + 2.0 * 3.0) / 4.0;
        assert!(is_near(few.ns, expected, 0.1), "{few:?}, {expected}");
        let many = project(Kind::Replicated, 64, &sends, 512, &free());
        assert!(many.ns >= 3.9, "{many:?}");
        assert_eq!(many.bounds[0].what, "the transmit pump");
        let locked = project(Kind::LockedMcs, 64, &sends, 512, &free());
        assert!(is_near(locked.ns, 12.0, 0.05), "{locked:?}");
    }

    #[test]
    fn a_line_that_takes_longer_never_helps() {
        for kind in Kind::ALL {
            let at = |line_ns| ns(kind, 16, &Conditions { line_ns, ..free() });
            let times = [0.0, 30.0, 60.0, 120.0].map(at);
            let is_rising = times.windows(2).all(|pair| pair[1] >= 0.98 * pair[0]);
            assert!(is_rising, "{kind:?}: {times:?}");
        }
    }

    #[test]
    fn the_same_is_projected_every_time() {
        let stated = Conditions::stated(60.0, 2);
        for kind in Kind::ALL {
            let once = project(kind, 16, &costs(), 512, &stated);
            assert_eq!(once, project(kind, 16, &costs(), 512, &stated));
        }
    }

    #[test]
    fn a_row_stops_where_twice_as_many_workers_gain_little() {
        let of = |ns: &[f64]| -> Vec<Projected> {
            let one = |&ns| Projected {
                ns,
                bounds: Vec::new(),
                lost: 0.0,
                claimed: None,
            };
            ns.iter().map(one).collect()
        };
        assert_eq!(stops_at(&of(&[8.0, 4.0, 2.1, 2.0, 2.0])), Some(2));
        assert_eq!(stops_at(&of(&[8.0, 4.0, 2.0])), None);
        assert_eq!(stops_at(&of(&[8.0, 8.0])), Some(0));
    }
}
