//! What 1 to 64 workers would do: a [model](crate::projection) by costs that are measured here, and
//! beside each figure by how much the model misses what this machine has measured.

mod tables;

use super::{Experiment, TABLES};
use crate::drivers::Direction;
use crate::lineup::{Panel, Wanted};
use crate::projection::costs::{self, Costs};
use crate::projection::counts::{self, Count};
use crate::projection::papers;
use crate::projection::{Conditions, Kind, LINES_NS, Projected, WORKERS, project};
use crate::ratio::RatioLine;
use crate::record::{ExperimentResult, PanelResult, ResultRow};
use crate::spread::Spread;
use crate::table::Table;
use crate::topology::{self, Calm};
use crate::workload::{Processing, Workload};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "projection",
    about: "what would 1 to 64 workers do: projected from costs of one worker; where each row stops",
    panels,
    besides: conclude,
    besides_takes: |_| TABLES,
    is_by_name: true,
};

/// The work on the payload.
const KERNELS: [Processing; 2] = [Processing::None, Processing::Aes256Gcm];
/// The most that the model may miss a measured row by.
const MAY_MISS: f64 = 0.1;
/// A measured row does not test the model if its quartiles are further apart, as a share.
const MAY_SPREAD: f64 = 0.2;
/// Nanoseconds of a line above which the cores of this machine were apart.
const NEAR_NS: f64 = 100.0;
/// How often a calibration is tried on a busy machine.
const ATTEMPTS: usize = 3;
/// Workers by hand whose requests are counted.
const COUNTED: [usize; 6] = [1, 2, 8, 16, 32, 56];
/// Payload of the segments that the targets are about.
const TARGET_BYTES: usize = 1448;
/// `replicated` over `single` with a number of workers: plain, and with AES-256-GCM.
const TARGETS: [(usize, f64, f64); 2] = [(8, 6.0, 7.0), (16, 10.0, 13.0)];

/// A case: its name, its direction, and its workload.
type Asked = (String, Direction, Workload);

/// Receiving with every size of segments, and sending with the first.
fn workloads(wanted: &Wanted) -> Vec<Asked> {
    let receive = wanted
        .segments
        .iter()
        .map(|size| (Direction::Receive, *size));
    let send = wanted
        .segments
        .iter()
        .take(1)
        .map(|size| (Direction::Send, *size));
    let mut all = Vec::new();
    for (direction, segment_bytes) in receive.chain(send) {
        let what = if direction.sends() { "send" } else { "receive" };
        for processing in KERNELS {
            let name = format!("{what}, {segment_bytes}, {}", processing.name());
            let workload = Workload {
                segment_bytes,
                processing,
                ring_bytes: counts::ring_bytes(2),
                checksum: true,
                ..wanted.base
            };
            // Short segments have no room for a record of the cipher.
            if crate::inline::Units::of(&workload).is_ok() {
                all.push((name, direction, workload));
            }
        }
    }
    all
}

/// The variants that were asked for.
fn kinds(wanted: &Wanted) -> Vec<Kind> {
    let is_asked = |kind: &Kind| {
        let named = |name: &String| kind.name().split(',').next() == Some(name.as_str());
        wanted.variants.is_empty() || wanted.variants.iter().any(named)
    };
    Kind::ALL.into_iter().filter(is_asked).collect()
}

/// The rows of one and two cores that the model is checked against.
fn panels(wanted: &Wanted) -> Vec<Panel> {
    let names = Kind::ALL.map(Kind::name);
    let one = |(name, direction, workload): Asked| {
        let mut panel = wanted.panel(name, direction, workload);
        panel = panel.rows(wanted, &names);
        panel.entries.retain(|entry| {
            let uses_one = entry.variant.name == Kind::Partitioned.name();
            entry.cores == 1 || entry.cores == 2 && !uses_one
        });
        panel
    };
    workloads(wanted).into_iter().map(one).collect()
}

/// A measured row beside the model's value.
struct Check {
    kind: Kind,
    cores: usize,
    measured: Spread,
    model: f64,
    /// The reason why the row does not test the model, if there is one.
    excuse: Option<&'static str>,
}

impl Check {
    /// By how much the model misses: above nothing if it is too slow. `drift` is how much slower
    /// the machine was when rows were measured than when costs were.
    fn error(&self, drift: f64) -> f64 {
        drift * self.model / self.measured.median - 1.0
    }
}

/// All that was found out about one workload.
struct Case {
    name: String,
    kinds: Vec<Kind>,
    direction: Direction,
    workload: Workload,
    costs: Costs,
    /// Why its costs may be wrong, if the machine was disturbed.
    disturbed: Option<&'static str>,
    /// By how much payload takes longer while two cores work on it here.
    two_at_once: f64,
    checks: Vec<Check>,
}

impl Case {
    /// The worst that the model misses any row of this kind by; `None` if none was measured.
    fn error(&self, kind: Kind) -> Option<f64> {
        let row = kind.measured_as();
        let own = self.checks.iter().filter(|check| check.kind == row);
        own.map(|check| check.error(self.drift()).abs())
            .reduce(f64::max)
    }

    /// Whether the model meets every row of this kind that tests it. If not, the kind is not
    /// projected.
    fn is_projected(&self, kind: Kind) -> bool {
        let row = kind.measured_as();
        let own = self.checks.iter().filter(|check| check.kind == row);
        own.filter(|check| self.tests(check))
            .all(|check| check.error(self.drift()).abs() <= MAY_MISS)
    }

    /// Whether the row tests the model.
    fn tests(&self, check: &Check) -> bool {
        self.disturbed.is_none() && check.excuse.is_none()
    }

    /// What one worker of this kind took, measured and by the model.
    fn one(&self, kind: Kind) -> Option<(f64, f64)> {
        let is_it = |check: &&Check| check.kind == kind && check.cores == 1;
        let check = self.checks.iter().find(is_it)?;
        Some((check.measured.median, check.model))
    }

    /// How much slower the machine was when rows were measured than when costs were: cores of this
    /// machine are shared, and `single` is what costs are taken from. 1 if it was not measured.
    fn drift(&self) -> f64 {
        self.one(Kind::Single)
            .map_or(1.0, |(measured, model)| measured / model)
    }

    fn is_excused(&self, kind: Kind) -> bool {
        let mut own = self.checks.iter().filter(|check| check.kind == kind);
        self.disturbed.is_some() || own.any(|check| check.excuse.is_some())
    }

    /// What all others are compared with, in nanoseconds of a segment.
    fn single_ns(&self, conditions: &Conditions) -> f64 {
        let log = self.workload.log_requests;
        project(Kind::Single, 1, &self.costs, log, conditions).ns
    }

    /// Segments of a claim of `replicated` in the model.
    fn claimed(&self, workers: usize) -> Option<f64> {
        let stated = Conditions::stated(LINES_NS[0], 1);
        let log = self.workload.log_requests;
        project(Kind::Replicated, workers, &self.costs, log, &stated).claimed
    }

    /// Projections for all numbers of workers.
    fn project(&self, kind: Kind, conditions: &Conditions) -> Vec<Projected> {
        let log = self.workload.log_requests;
        let one = |workers| project(kind, workers, &self.costs, log, conditions);
        WORKERS.map(one).into()
    }
}

/// Measures costs on the first core, again while the machine is disturbed.
fn calibrated(
    direction: Direction,
    workload: &Workload,
) -> Result<(Costs, Option<&'static str>), String> {
    let attempt = || -> Result<(Costs, bool), String> {
        topology::pin_to(0);
        let calm = Calm::begin();
        let costs = costs::calibrate(direction, workload)?;
        Ok((costs, !calm.is_disturbed()))
    };
    let mut last = Err("nothing was calibrated".to_owned());
    for _ in 0..ATTEMPTS {
        let joined = std::thread::scope(|scope| scope.spawn(attempt).join());
        let (costs, is_calm) = joined.map_err(|_| "a calibration panicked".to_owned())??;
        if is_calm {
            return Ok((costs, None));
        }
        last = Ok((
            costs,
            Some("its thread waited for a core during calibration"),
        ));
    }
    last
}

fn excuse(panel: &PanelResult, row: &ResultRow) -> Option<&'static str> {
    let is_far = |at: &Option<f64>| at.is_some_and(|ns| ns > NEAR_NS);
    let spread = row.ns_per_segment;
    if row.all_disturbed {
        Some("a thread waited for its core")
    } else if row.cores > 1 && panel.line_transfer_ns.iter().any(is_far) {
        Some("the cores were apart")
    } else if (spread.q3 - spread.q1) / spread.median > MAY_SPREAD {
        Some("its rounds differ too much")
    } else {
        None
    }
}

fn case(asked: Asked, kinds: Vec<Kind>, panel: Option<&PanelResult>) -> Result<Case, String> {
    let (name, direction, workload) = asked;
    let (costs, disturbed) = calibrated(direction, &workload)?;
    let mut case = Case {
        name,
        kinds,
        direction,
        workload,
        costs,
        disturbed,
        two_at_once: 1.0,
        checks: Vec::new(),
    };
    let Some(panel) = panel else { return Ok(case) };
    if panel.rows.iter().any(|row| row.cores == 2) {
        case.two_at_once = counts::two_at_once(direction, &workload)?;
    }
    let lines: Vec<f64> = panel.line_transfer_ns.iter().flatten().copied().collect();
    let here = Conditions {
        line_ns: lines.iter().sum::<f64>() / lines.len().max(1) as f64,
        domains: 1,
        bytes_per_ns: f64::INFINITY,
        peer_holds: true,
        two_at_once: case.two_at_once,
    };
    for row in &panel.rows {
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| kind.name() == row.variant);
        let Some(kind) = kind else { continue };
        let log = workload.log_requests;
        case.checks.push(Check {
            kind,
            cores: row.cores,
            measured: row.ns_per_segment,
            model: project(kind, row.cores, &case.costs, log, &here).ns,
            excuse: excuse(panel, row),
        });
    }
    Ok(case)
}

fn conclude(
    wanted: &Wanted,
    result: &mut ExperimentResult,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Table>, String> {
    let workloads = workloads(wanted);
    let kinds = kinds(wanted);
    let is_replicated = kinds.contains(&Kind::Replicated);
    let all = workloads.len() + 1;
    let (mut cases, mut all_tables) = (Vec::new(), Vec::new());
    for (done, asked) in workloads.into_iter().enumerate() {
        progress(done, all);
        let name = asked.0.clone();
        let panel = result.panels.iter().find(|panel| panel.name == name);
        // The others, and the papers' machines, may still be worth something.
        match case(asked, kinds.clone(), panel) {
            Ok(case) => cases.push(case),
            Err(why) => result.failures.push(format!("projection {name}: {why}")),
        }
    }
    progress(all - 1, all);
    if let Some(case) = cases.first().filter(|_| is_replicated) {
        let count = |&workers: &usize| counts::count(case.direction, &case.workload, workers);
        let counts: Result<Vec<Count>, String> = COUNTED.iter().map(count).collect();
        all_tables.push(tables::counted(case, &counts?));
    }
    all_tables.push(tables::measured_costs(&cases));
    all_tables.push(tables::checked(&cases));
    let published = papers::all();
    all_tables.push(tables::validated(&published));
    let is_asked = |case: &&Case| {
        case.direction == Direction::Receive && case.workload.segment_bytes == TARGET_BYTES
    };
    let plain = cases.iter().find(is_asked);
    all_tables.extend(
        published
            .iter()
            .map(|figure| tables::published(figure, plain)),
    );
    result.failures.extend(failures(&cases));
    for case in &cases {
        all_tables.push(tables::table(case));
    }
    for case in cases.iter().filter(is_asked).filter(|_| is_replicated) {
        all_tables.push(tables::sensitivity(case));
        let lines = targets(case);
        if let Some(panel) = result.panels.iter_mut().find(|p| p.name == case.name) {
            panel.ratios.extend(lines);
        }
    }
    Ok(all_tables)
}

/// Rows of the targets that the model misses by more than it may, though the machine was not
/// disturbed. Other rows that it misses are not projected.
fn failures(cases: &[Case]) -> Vec<String> {
    let mut failures = Vec::new();
    for case in cases {
        for check in &case.checks {
            let error = check.error(case.drift());
            let is_asked = check.kind == Kind::Replicated
                && case.direction == Direction::Receive
                && case.workload.segment_bytes == TARGET_BYTES;
            if is_asked && error.abs() > MAY_MISS && case.tests(check) {
                failures.push(format!(
                    "projection {}: the model misses {}/{} by {:+.0} %",
                    case.name,
                    check.kind.name(),
                    check.cores,
                    100.0 * error
                ));
            }
        }
    }
    failures
}

/// What the targets ask for, with the model's error in place of quartiles.
fn targets(case: &Case) -> Vec<RatioLine> {
    let stated = Conditions::stated(LINES_NS[0], 1);
    let is_plain = case.workload.processing == Processing::None;
    let log = case.workload.log_requests;
    let projected = |kind, workers| project(kind, workers, &case.costs, log, &stated).ns;
    let single = case.single_ns(&stated);
    let error = case.error(Kind::Replicated);
    let is_excused = case.is_excused(Kind::Replicated) || error.is_none();
    let one = |(workers, plain, gcm): (usize, f64, f64)| {
        let median = single / projected(Kind::Replicated, workers);
        let (error, least) = (error.unwrap_or(1.0), if is_plain { plain } else { gcm });
        RatioLine {
            what: format!("{}: projected, {workers} replicas / single", case.name),
            rows: vec![format!("replicated/{workers}"), "single/1".to_owned()],
            ratio: Some(Spread {
                q1: median * (1.0 - error),
                median,
                q3: median * (1.0 + error),
            }),
            pairs: case.checks.len(),
            disturbed: 0,
            all_disturbed: is_excused,
            at_least: Some(least),
            met: (!is_excused).then_some(median >= least),
            at: Vec::new(),
        }
    };
    TARGETS.map(one).into()
}
