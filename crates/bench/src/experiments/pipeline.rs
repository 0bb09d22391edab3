//! A pipeline of stages: which stage bounds it, with how many data stages, connections and bytes of
//! window.
//!
//! Few machines have a core for each stage, and here stages would share cores that they should not.
//! So all stages run on one thread, by turns, and each measures how long it is busy. With a core
//! for each, a pipeline is as fast as its busiest stage allows; with few messages on their way, as
//! fast as one message passes through it:
//!
//! ```text
//! ns per segment >= max(interface, data / n, protocol, (interface + data + protocol) * frames of a message / window)
//! ```
//!
//! This leaves out what cache lines cost on their way from core to core. Beside it the pipeline runs
//! on threads, one for payload and one for the other stages, on the cores that there are.
//!
//! A connection stays with its protocol stage: the paper hands connections from one protocol cell to
//! another to balance load, and here connections do not move, since that gained nothing.

use std::time::Duration;

use super::{DIRECTIONS, Experiment, TABLES};
use crate::drivers::Direction;
use crate::drivers::pipelined::{StageCosts, single_cost, stage_costs};
use crate::lineup::{Panel, Wanted};
use crate::paper::Measure;
use crate::ratio::{Target, case};
use crate::record::PanelResult;
use crate::spread::Spread;
use crate::table::{Lines, Table, columns};
use crate::topology::Calm;
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "pipeline",
    about: "stages for frames, payload and headers: 1 to 8 data stages, 1 to 3 connections, windows",
    panels,
    besides: |wanted, result, progress| tables(wanted, &result.panels, progress),
    besides_takes: |_| TABLES,
    ..Experiment::NONE
};

/// Data stages.
const MOST: usize = 8;
/// The same is measured so often; of a busy time the least counts: all else is the machine.
const REPEATED: usize = 3;
/// Frames of a message.
const FRAMES: f64 = 16.0;
/// Windows, in KB.
const WINDOWS: [u32; 8] = [4, 8, 16, 32, 48, 64, 128, 256];
/// Data stages beside the windows.
const BESIDE_WINDOWS: usize = 6;

/// The bound of a pipeline with a core for each stage.
struct Projected {
    ns: f64,
    bound_by: &'static str,
    /// Share of its time that the protocol stage is idle.
    idle: f64,
}

/// What runs on threads: a name, connections, and the window in KB; 0 for the usual one.
const ON_THREADS: [(&str, usize, u32); 4] = [
    ("1 connection", 1, 0),
    ("3 connections", 3, 0),
    ("64 KB", 1, 64),
    ("256 KB", 1, 256),
];

/// The pipeline on the threads that there are.
fn panels(wanted: &Wanted) -> Vec<Panel> {
    let panel = |(direction, what): (Direction, &str)| {
        let mut panel = wanted.panel(what, direction, wanted.base);
        for (name, connections, window) in ON_THREADS {
            let workload = Workload {
                connections,
                ring_bytes: if window > 0 {
                    window << 10
                } else {
                    wanted.base.ring_bytes
                },
                ..wanted.base
            };
            panel = panel.case(wanted, &["single", "pipelined"], name, workload);
        }
        let over = |what: String, one, other| Target::of(what, one, other, None);
        let two = |name| case("pipelined", 2, name);
        let alone = case("single", 1, ON_THREADS[0].0);
        let targets = vec![
            over(
                format!("{what}: pipelined on 2 / single"),
                two(ON_THREADS[0].0),
                alone,
            ),
            over(
                format!("{what}: 64 KB / 256 KB, on 2 threads"),
                two("64 KB"),
                two("256 KB"),
            ),
        ];
        panel.targets(wanted, targets)
    };
    DIRECTIONS.map(panel).into()
}

/// The rows on threads beside the formula.
fn on_threads(
    (direction, what): (Direction, &str),
    panel: &PanelResult,
    slice: Duration,
) -> Result<Table, String> {
    let mut table = Table::new(
        format!("{what}: on threads, and by the formula"),
        &columns(
            "threads | case | ns a segment | quartiles | formula | measured / formula \
             | idle %",
        ),
    );
    for row in panel.rows.iter().filter(|row| row.variant == "pipelined") {
        let costs = costs(direction, &row.workload, (1, 1), slice)?;
        let headers = costs.interface + costs.protocol;
        let formula = match row.cores {
            1 => headers + costs.data,
            _ => headers.max(costs.data),
        };
        let Spread { q1, median, q3 } = row.ns_per_segment;
        let idle: Vec<String> = row
            .idle_share
            .iter()
            .map(|share| format!("{:.0}", 100.0 * share))
            .collect();
        table.row(vec![
            row.cores.to_string(),
            row.case.clone(),
            format!("{median:.0}"),
            format!("{q1:.0} to {q3:.0}"),
            format!("{formula:.0}"),
            format!("{:.2}", median / formula),
            idle.join(", "),
        ]);
        if let (2, "1 connection", Some(idle)) =
            (row.cores, row.case.as_str(), row.idle_share.first())
        {
            let measure = Measure::of(Spread::one(100.0 * idle), 1);
            table.measure(
                format!("{what}: idle on threads"),
                measure.disturbed_if(row.all_disturbed),
            );
        }
    }
    table.note("the formula has no lines from core to core, and its costs are of one thread");
    Ok(table)
}

/// Of these costs with `stages` data stages; at most `window` segments are on their way.
fn project(costs: &StageCosts, stages: usize, window: f64) -> Projected {
    let whole = costs.interface + costs.data + costs.protocol;
    // At least one message is on its way.
    let messages = (window / FRAMES).max(1.0);
    let bounds = [
        (costs.interface, "interface"),
        (costs.data / stages as f64, "data"),
        (costs.protocol, "protocol"),
        (whole / messages, "window"),
    ];
    let (ns, bound_by) =
        bounds.into_iter().fold(
            (0.0, ""),
            |most, bound| if bound.0 > most.0 { bound } else { most },
        );
    Projected {
        ns,
        bound_by,
        idle: 1.0 - costs.protocol / ns,
    }
}

/// The costs of each of [`REPEATED`] measurements.
fn all_costs(
    direction: Direction,
    workload: &Workload,
    stages: (usize, usize),
    slice: Duration,
) -> Result<Vec<StageCosts>, String> {
    let one = |_| stage_costs(direction, workload, stages, slice);
    (0..REPEATED).map(one).collect()
}

/// The least of each cost.
fn least(all: &[StageCosts]) -> StageCosts {
    let of = |cost: fn(&StageCosts) -> f64| all.iter().map(cost).fold(f64::INFINITY, f64::min);
    StageCosts {
        interface: of(|costs| costs.interface),
        data: of(|costs| costs.data),
        protocol: of(|costs| costs.protocol),
    }
}

/// The least of each cost that was measured.
fn costs(
    direction: Direction,
    workload: &Workload,
    stages: (usize, usize),
    slice: Duration,
) -> Result<StageCosts, String> {
    all_costs(direction, workload, stages, slice).map(|all| least(&all))
}

/// The share of the data stages in all that is done, in percent: a value of each measurement.
fn share_of_data(all: &[StageCosts]) -> Option<Measure> {
    let share =
        |costs: &StageCosts| 100.0 * costs.data / (costs.interface + costs.data + costs.protocol);
    Spread::of(all.iter().map(share)).map(|spread| Measure::of(spread, all.len()))
}

fn single(direction: Direction, workload: &Workload, slice: Duration) -> Result<f64, String> {
    let mut least = f64::INFINITY;
    for _ in 0..REPEATED {
        least = least.min(single_cost(direction, workload, slice)?);
    }
    Ok(least)
}

fn tables(
    wanted: &Wanted,
    panels: &[PanelResult],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Table>, String> {
    let slice = wanted.base.slice / 4;
    let mut result = Vec::new();
    let all = 2 * (3 * MOST + WINDOWS.len());
    let mut done = 0;
    let mut tell = || {
        done += 1;
        progress(done, all);
    };
    for (direction, what) in DIRECTIONS {
        if let Some(panel) = panels.iter().find(|panel| panel.name == what) {
            result.push(on_threads((direction, what), panel, slice)?);
        }
        result.push(by_stages(wanted, direction, what, slice, &mut tell)?);
        result.push(by_window(wanted, direction, what, slice, &mut tell)?);
    }
    Ok(result)
}

/// A quantity that follows from the least busy times: a single value, of a machine that is not here.
fn projected(value: f64) -> Measure {
    Measure::of(Spread::one(value), 1).projected()
}

/// Figures 2 to 5 of the paper.
fn by_stages(
    wanted: &Wanted,
    direction: Direction,
    what: &str,
    slice: Duration,
    tell: &mut dyn FnMut(),
) -> Result<Table, String> {
    let connections = [1, 2, 3];
    let alone = single(direction, &wanted.base, slice)?;
    let bits = wanted.base.segment_bytes as f64 * 8.0;
    let mut table = Table::new(
        format!(
            "{what}: a core for each stage, projected from busy times; single {alone:.0} ns a segment"
        ),
        &columns(
            "data stages | connections | interface ns | data ns | protocol ns | \
             Gbit/s | / single | protocol idle % | bound by",
        ),
    );
    let mut pays_from = None;
    let mut last = Vec::new();
    let mut measured = Vec::new();
    let names = connections.map(|n| format!("{n} connection{}", if n == 1 { "" } else { "s" }));
    let mut lines: Vec<(String, Vec<(f64, f64)>)> =
        names.into_iter().map(|name| (name, Vec::new())).collect();
    for stages in 1..=MOST {
        for connections in connections {
            let workload = Workload {
                connections,
                ..wanted.base
            };
            let calm = Calm::begin();
            let all = all_costs(direction, &workload, (stages, 1), slice)?;
            let is_disturbed = calm.is_disturbed();
            let costs = least(&all);
            let window = f64::from(workload.ring_bytes) / workload.segment_bytes as f64;
            let bound = project(&costs, stages, window * connections as f64);
            if bound.ns < alone && connections == 1 {
                pays_from.get_or_insert(stages);
            }
            let x = stages as f64;
            let times = alone / bound.ns;
            lines[connections - 1].1.push((x, times));
            if connections == 1 && stages == BESIDE_WINDOWS {
                measured.push(("6 stages / single", projected(times)));
                let share = share_of_data(&all).map(|share| share.disturbed_if(is_disturbed));
                measured.extend(share.map(|share| ("share of data", share)));
            }
            if connections == 1 && stages == MOST {
                measured.push(("protocol idle", projected(100.0 * bound.idle)));
            }
            table.row(vec![
                stages.to_string(),
                connections.to_string(),
                format!("{:.0}", costs.interface),
                format!("{:.0}", costs.data),
                format!("{:.0}", costs.protocol),
                format!("{:.2}", bits / bound.ns),
                format!("{times:.2}"),
                format!("{:.0}", 100.0 * bound.idle),
                bound.bound_by.to_owned(),
            ]);
            if stages == MOST {
                last.push((connections, times, bound.bound_by));
            }
            tell();
        }
    }
    measured.extend(pays_from.map(|n| ("pays from", projected(n as f64))));
    for (name, value) in measured {
        table.measure(format!("{what}: {name}"), value);
    }
    table.lines(Lines {
        x: "data stages".to_owned(),
        y: "throughput over single".to_owned(),
        doubling: false,
        lines,
    });
    // As the paper proposes for later: a protocol stage for each of three connections.
    let workload = Workload {
        connections: 3,
        ..wanted.base
    };
    let several = costs(direction, &workload, (MOST, 3), slice)?;
    let bound = project(&several, MOST, f64::INFINITY);
    table.note(format!(
        "a protocol stage for each of 3 connections, {MOST} data stages: {:.2} Gbit/s, bound by {}",
        bits / bound.ns,
        bound.bound_by
    ));
    let published = match direction {
        Direction::Receive => ("protocol", "3.1 MB/s alone"),
        _ => ("interface", "3.5 MB/s alone, 7.5 MB/s at most"),
    };
    table.note(format!(
        "faster than single from {} data stages on (published: 2, {})",
        pays_from.map_or_else(|| "no number of".to_owned(), |n| n.to_string()),
        published.1,
    ));
    for (connections, ratio, bound_by) in last {
        table.note(format!(
            "{connections} connections, {MOST} data stages: {ratio:.2} of single (published: 2 to 3 with 5 and more), \
             bound by {bound_by} (published: {})",
            published.0,
        ));
    }
    table.note(
        "projected, not measured: without cache lines from core to core; interface includes the simulated device".to_owned(),
    );
    Ok(table)
}

/// Figure 6 of the paper.
fn by_window(
    wanted: &Wanted,
    direction: Direction,
    what: &str,
    slice: Duration,
    tell: &mut dyn FnMut(),
) -> Result<Table, String> {
    let bits = wanted.base.segment_bytes as f64 * 8.0;
    let mut table = Table::new(
        format!("{what}: one connection, {BESIDE_WINDOWS} data stages, by window"),
        &columns("window KB | Gbit/s, projected | bound by | Gbit/s, single"),
    );
    let mut rates = Vec::new();
    for window in WINDOWS {
        let workload = Workload {
            ring_bytes: window << 10,
            ..wanted.base
        };
        // The next larger power of two holds it; the peer sees it by the segments on their way.
        let workload = Workload {
            ring_bytes: workload.ring_bytes.next_power_of_two(),
            ..workload
        };
        let costs = costs(direction, &workload, (BESIDE_WINDOWS, 1), slice)?;
        let segments = f64::from(window << 10) / workload.segment_bytes as f64;
        let bound = project(&costs, BESIDE_WINDOWS, segments);
        let alone = single(direction, &workload, slice)?;
        rates.push((window, bits / bound.ns));
        table.row(vec![
            window.to_string(),
            format!("{:.2}", bits / bound.ns),
            bound.bound_by.to_owned(),
            format!("{:.2}", bits / alone),
        ]);
        tell();
    }
    let most = rates
        .iter()
        .fold(0.0, |most: f64, (_, rate)| most.max(*rate));
    let flat = rates.iter().find(|(_, rate)| *rate >= 0.9 * most);
    let points = rates
        .iter()
        .map(|&(window, rate)| (f64::from(window), rate));
    table.lines(Lines {
        x: "window, KB".to_owned(),
        y: "Gbit/s".to_owned(),
        doubling: true,
        lines: vec![("pipelined".to_owned(), points.collect())],
    });
    if let Some((window, _)) = flat {
        table.measure(format!("{what}: flat from"), projected(f64::from(*window)));
        table.note(format!(
            "within 10 % of the most from {window} KB on (published: 48 KB); follows from {FRAMES} frames a message"
        ));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_a_value_of_each_measurement() {
        let of = |data| StageCosts {
            interface: 10.0,
            data,
            protocol: 10.0,
        };
        let all = [of(80.0), of(30.0), of(60.0)];
        let share = share_of_data(&all).unwrap();
        assert_eq!(
            (share.pairs, share.ours.q1, share.ours.q3),
            (Some(3), 67.5, 77.5)
        );
        assert_eq!(least(&all).data, 30.0);
    }

    #[test]
    fn the_busiest_stage_bounds_a_pipeline() {
        let costs = StageCosts {
            interface: 20.0,
            data: 120.0,
            protocol: 40.0,
        };
        let bound = |stages, window| {
            let projected = project(&costs, stages, window);
            (projected.bound_by, projected.ns.round() as u64)
        };
        assert_eq!(bound(1, 1e9), ("data", 120));
        assert_eq!(bound(4, 1e9), ("protocol", 40));
        assert_eq!(bound(4, 16.0), ("window", 180));
        let idle = project(&costs, 1, 1e9).idle;
        assert!((idle - 2.0 / 3.0).abs() < 1e-9);
    }
}
