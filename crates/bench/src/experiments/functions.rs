//! What each function of the protocol costs, and what would be gained if functions ran side by
//! side.
//!
//! The functions are taken from Kim, Sung and Lee; [`FUNCTIONS`] maps each to our sources. In
//! the parallel structure of the paper some of a component's functions run at the same time: its
//! critical path is the longest of these, and the others one after the other. The estimate is the
//! sum over the critical path, as there, once by instructions and once by time. The stack merges
//! most of these functions, so a last table has the paper's structure: each function by itself.

use std::collections::HashMap;

use super::{Experiment, TABLES, parts};
use crate::instructions::apart::APART;
use crate::instructions::functions::{self, Cost, Costs, Times};
use crate::lineup::Wanted;
use crate::paper::Measure;
use crate::spread::Spread;
use crate::table::{Table, columns};
use crate::targets;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "functions",
    about: "what each function of the protocol costs, in instructions and time, and what functional parallelism would gain",
    besides: |wanted, _, progress| tables(wanted, progress),
    besides_takes: |_| TABLES,
    ..Experiment::NONE
};

/// A function of the paper.
struct Function {
    component: &'static str,
    name: &'static str,
    /// Functions with the same number run at the same time, lower numbers before.
    step: usize,
    /// Files of the stack, with a blank between them, or functions of one as `file::function`;
    /// beginnings of files.
    of: &'static str,
}

const fn function(
    component: &'static str,
    name: &'static str,
    step: usize,
    of: &'static str,
) -> Function {
    Function {
        component,
        name,
        step,
        of,
    }
}

/// A direction: its name, its functions, and the components of its path.
type Path = (&'static str, &'static [Function], [&'static str; 2]);

/// The functions of both directions; the first that names a line has it.
const FUNCTIONS: [Path; 2] = [
    (
        "receive path",
        &[
            function(
                "IPReceive",
                "header checks with checksum (and those of TCP)",
                0,
                "packet/header_template.rs packet.rs io/gro.rs::matches_template packet/ip.rs",
            ),
            function("IPReceive", "options", 1, "packet/forward.rs::options"),
            function("IPReceive", "reassembly", 1, "ip/reassembly.rs"),
            function(
                "TCPReceive",
                "connection lookup",
                0,
                "io/stream/table.rs state/apply/connections.rs",
            ),
            function(
                "TCPReceive",
                "header checks",
                1,
                "tcp/fast_path.rs tcp/arrive.rs tcp/ack.rs state/apply.rs::fast_path seqnum.rs",
            ),
            function(
                "TCPReceive",
                "checksum, with the copy",
                1,
                "packet/checksum io/prepare.rs",
            ),
            function(
                "TCPReceive",
                "ordering",
                2,
                "tcp/reassembly.rs tcp/receive_space.rs io/stream/delivery.rs io/stream/byte_ring.rs",
            ),
        ],
        ["IPReceive", "TCPReceive"],
    ),
    (
        "send path",
        &[
            function(
                "TCPSend",
                "segment",
                0,
                "tcp/send.rs tcp/send_space.rs state/apply/schedule.rs io/stream/send.rs log/effect.rs",
            ),
            function(
                "TCPSend",
                "header (and that of IP)",
                0,
                "io/perform.rs packet.rs",
            ),
            function(
                "TCPSend",
                "checksum, with the copy",
                1,
                "packet/checksum io/stream/byte_ring.rs",
            ),
            function("IPSend", "routing", 0, "ip/route.rs"),
            function("IPSend", "address translation", 1, "ip/neighbor.rs"),
            function("IPSend", "fragmentation", 1, "ip/fragment.rs"),
            function(
                "IPSend",
                "header, identification",
                1,
                "ip/identification.rs packet/ip.rs",
            ),
        ],
        ["TCPSend", "IPSend"],
    ),
];

impl Function {
    fn has(&self, file: &str, name: &str) -> bool {
        self.of.split(' ').any(|own| match own.split_once("::") {
            Some((own_file, own_name)) => own_file == file && own_name == name,
            None => !file.is_empty() && file.starts_with(own),
        })
    }
}

/// The sum over the critical path: 1 if there is nothing.
fn estimate(costs: &[(usize, f64)]) -> f64 {
    let sum: f64 = costs.iter().map(|(_, cost)| cost).sum();
    let last = costs.iter().map(|(step, _)| *step).max().unwrap_or(0);
    let longest = |step: usize| {
        let at = costs.iter().filter(|(own, _)| *own == step);
        at.map(|(_, cost)| *cost).fold(0.0, f64::max)
    };
    let critical: f64 = (0..=last).map(longest).sum();
    if critical > 0.0 { sum / critical } else { 1.0 }
}

/// How often each direction is sampled for times.
const ROUNDS: usize = 5;

const COLUMNS: &str = "component | function | instructions | data reads | data writes | share % | ns | \
     share of ns %";

fn tables(_: &Wanted, progress: &mut dyn FnMut(usize, usize)) -> Result<Vec<Table>, String> {
    progress(0, 1 + ROUNDS);
    let directory = targets::directory().join("functions");
    let counted = parts::can_play().and_then(|()| functions::count(&directory));
    let (counted, apart) = match counted {
        Ok(counted) => counted,
        Err(why) => {
            let mut table = Table::new("a segment of 1412 bytes on one core", &columns(COLUMNS));
            table.note(format!("skipped: {why}"));
            return Ok(vec![table]);
        }
    };
    let mut times: [Vec<Times>; 2] = Default::default();
    let mut sampled = Ok(());
    for round in 0..ROUNDS {
        progress(1 + round, 1 + ROUNDS);
        for (case, times) in times.iter_mut().enumerate() {
            let time = sampled.and_then(|()| functions::time(case, &directory));
            sampled = time.map(|time| times.push(time));
        }
    }
    progress(1 + ROUNDS, 1 + ROUNDS);
    let directions = FUNCTIONS.iter().zip(&counted).zip(&times);
    let merged = directions.map(|((path, costs), times)| {
        let times = sampled.as_ref().map(|()| &times[..]);
        table(path, costs, times.map_err(String::as_str))
    });
    Ok(merged.chain([functions_apart(&apart)]).collect())
}

/// The paper's structure: what each function executes by itself, and the estimates from that.
fn functions_apart(costs: &[Cost]) -> Table {
    let mut table = Table::new(
        "the paper's functions, each called by itself for a segment of 1412 bytes",
        &columns(COLUMNS)[..5],
    );
    for (function, cost) in APART.iter().zip(costs) {
        table.row(vec![
            function.component.to_owned(),
            function.name.to_owned(),
            format!("{:.1}", cost.instructions),
            format!("{:.1}", cost.reads),
            format!("{:.1}", cost.writes),
        ]);
    }
    let steps = |components: &[&str]| -> Vec<(usize, f64)> {
        let of = |(place, name)| {
            let all = APART.iter().zip(costs);
            let own = all.filter(move |(function, _)| function.component == name);
            own.map(move |(function, cost)| (10 * place + function.step, cost.instructions))
        };
        components
            .iter()
            .copied()
            .enumerate()
            .flat_map(of)
            .collect()
    };
    for (path, _, components) in &FUNCTIONS {
        for (name, parts) in components
            .iter()
            .map(|component| (*component, core::slice::from_ref(component)))
            .chain([(*path, &components[..])])
        {
            let gain = estimate(&steps(parts));
            table.measure(format!("{name}, apart"), Measure::exact(gain));
            table.note(format!(
                "{name}, functions apart: {gain:.2} by critical paths"
            ));
        }
    }
    table
}

/// Sums by function, then code of no function, then code outside the stack.
fn sums<T: Copy>(
    functions: &[Function],
    costs: &HashMap<(String, String), T>,
    mut add: impl FnMut(usize, T),
) {
    for ((file, name), cost) in costs {
        let own = functions
            .iter()
            .position(|function| function.has(file, name));
        let rest = functions.len() + usize::from(file.is_empty());
        add(own.unwrap_or(rest), *cost);
    }
}

/// What would be gained, as the paper estimates it.
struct Gains {
    /// For each component, by its critical path, and what all its functions take. No gain of its
    /// own has one that does not have two functions for each segment.
    components: [(Option<f64>, f64); 2],
    /// By both critical paths.
    path: f64,
    /// If every function were a stage of a pipeline.
    pipelined: f64,
}

/// The gains, if functions take these times.
fn gains((_, functions, components): &Path, costs: &[f64]) -> Gains {
    let of = |component: &str| {
        let all = functions.iter().zip(costs);
        let own = all.filter(|(function, _)| function.component == component);
        let own: Vec<_> = own.map(|(function, cost)| (function.step, *cost)).collect();
        let sum: f64 = own.iter().map(|(_, cost)| cost).sum();
        // Less than one instruction, or nanosecond, a segment is work of once a connection.
        let several = own.iter().filter(|(_, cost)| *cost >= 1.0).count() > 1;
        (several.then(|| estimate(&own)), sum)
    };
    let components = components.map(of);
    let whole: f64 = components.iter().map(|(_, sum)| sum).sum();
    let critical: f64 = components
        .iter()
        .map(|(gain, sum)| sum / gain.unwrap_or(1.0))
        .sum();
    let largest = costs[..functions.len()].iter().copied().fold(0.0, f64::max);
    let over = |part: f64| if part > 0.0 { whole / part } else { 1.0 };
    Gains {
        components,
        path: over(critical),
        pipelined: over(largest),
    }
}

/// Adds the gains by instructions to a table, which every run repeats.
fn add_counted(table: &mut Table, path: &Path, costs: &[f64]) {
    let measure = |of: &dyn Fn(&Gains) -> Option<f64>| of(&gains(path, costs)).map(Measure::exact);
    add_gains(table, path, costs, ("", "instructions"), measure);
}

/// Adds the gains by time, from the times of several runs and their medians.
fn add_timed(table: &mut Table, path: &Path, runs: &[Vec<f64>], medians: &[f64]) {
    let measure = |of: &dyn Fn(&Gains) -> Option<f64>| {
        let values = runs.iter().map(|run| of(&gains(path, run)));
        let values: Vec<f64> = values.collect::<Option<_>>()?;
        Spread::of(values).map(|spread| Measure::of(spread, runs.len()))
    };
    add_gains(table, path, medians, (", by time", "ns"), measure);
}

/// Adds the gains to a table: in words by `costs`, and each as `measure` makes it.
fn add_gains(
    table: &mut Table,
    path: &Path,
    costs: &[f64],
    (by, unit): (&str, &str),
    measure: impl Fn(&dyn Fn(&Gains) -> Option<f64>) -> Option<Measure>,
) {
    let (name, _, components) = path;
    let gains = gains(path, costs);
    let mut add = |name: String, of: &dyn Fn(&Gains) -> Option<f64>| {
        if let Some(measure) = measure(of) {
            table.measure(name, measure);
        }
    };
    for (at, component) in components.iter().enumerate() {
        add(format!("{component}{by}"), &|gains| gains.components[at].0);
    }
    add(format!("{name}{by}"), &|gains| Some(gains.path));
    add(format!("{name}, pipelined{by}"), &|gains| {
        Some(gains.pipelined)
    });
    for (component, (gain, sum)) in components.iter().zip(gains.components) {
        let gain = gain.map_or("has no two functions a segment".to_owned(), |gain| {
            format!("{gain:.2} by its critical path")
        });
        table.note(format!("{component}{by}: {gain}, of {sum:.1} {unit}"));
    }
    table.note(format!(
        "{name}{by}: {:.2} by critical paths; {:.2} if every function were a stage of a pipeline; \
         the experiment pipeline measures one",
        gains.path, gains.pipelined
    ));
}

fn table(path: &Path, costs: &Costs, times: Result<&[Times], &str>) -> Table {
    let (name, functions, _) = path;
    let places = functions.len() + 2;
    let mut counted = vec![Cost::default(); places];
    sums(functions, costs, |place, cost: Cost| {
        counted[place].add(cost, 1.0);
    });
    let rounds = times.unwrap_or_default().iter().map(|times| {
        let mut ns = vec![0.0; places];
        sums(functions, times, |place, time: f64| ns[place] += time);
        ns
    });
    let rounds: Vec<Vec<f64>> = rounds.collect();
    let median = |ns: &dyn Fn(&Vec<f64>) -> f64| Spread::of(rounds.iter().map(ns));
    let ns: Option<Vec<f64>> = (0..places)
        .map(|place| Some(median(&|round| round[place])?.median))
        .collect();
    let instructions: Vec<f64> = counted.iter().map(|cost| cost.instructions).collect();
    let share = |costs: &[f64], place: usize| {
        // Code outside the stack does not count.
        let whole: f64 = costs[..places - 1].iter().sum();
        let share = 100.0 * costs[place] / whole.max(f64::MIN_POSITIVE);
        match place + 1 == places {
            true => String::new(),
            false => format!("{share:.0}"),
        }
    };
    let mut table = Table::new(
        format!("{name}: a segment of 1412 bytes on one core, software checksums"),
        &columns(COLUMNS),
    );
    let names = functions.iter().map(|it| (it.component, it.name)).chain([
        (
            "",
            "between them: requests, effects, numbers, timers, acknowledgments",
        ),
        ("", "device, peer, application and library"),
    ]);
    for ((place, cost), (component, function)) in counted.iter().enumerate().zip(names) {
        let timed = ns.as_ref();
        let is_absent = place < functions.len() && cost.instructions == 0.0;
        let absent = if is_absent {
            " (merged, or not on this path)"
        } else {
            ""
        };
        table.row(vec![
            component.to_owned(),
            format!("{function}{absent}"),
            format!("{:.1}", cost.instructions),
            format!("{:.1}", cost.reads),
            format!("{:.1}", cost.writes),
            share(&instructions, place),
            timed.map_or_else(String::new, |ns| format!("{:.1}", ns[place])),
            timed.map_or_else(String::new, |ns| share(ns, place)),
        ]);
    }
    add_counted(&mut table, path, &instructions);
    match (&ns, median(&|round| round.iter().sum())) {
        (Some(ns), Some(whole)) => {
            add_timed(&mut table, path, &rounds, ns);
            table.note(format!(
                "{name}: a segment takes {:.0} ns with all of this, quartiles {:.0} and {:.0} of {} runs; \
                 each function's time is the median of its shares of the samples",
                whole.median,
                whole.q1,
                whole.q3,
                rounds.len()
            ));
        }
        _ => {
            let why = times.err().unwrap_or("nothing was sampled");
            table.note(format!("{name}: no times: {why}"));
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_one_step_run_side_by_side() {
        assert_eq!(estimate(&[(0, 10.0), (1, 30.0), (1, 20.0)]), 1.5);
        assert_eq!(estimate(&[(0, 0.0), (1, 0.0)]), 1.0);
        assert_eq!(estimate(&[]), 1.0);
    }

    /// The paper's structure has every component, and a path is as long as both of its components.
    #[test]
    fn functions_by_themselves_have_the_estimates_of_the_paper() {
        let costs = vec![
            Cost {
                instructions: 10.0,
                ..Cost::default()
            };
            APART.len()
        ];
        let measures = functions_apart(&costs).measures;
        let gain = |name: &str| measures[&format!("{name}, apart")].ours.median;
        assert_eq!([gain("IPReceive"), gain("TCPReceive")], [2.0, 4.0 / 3.0]);
        assert_eq!(gain("receive path"), 8.0 / 5.0);
        assert_eq!([gain("IPSend"), gain("TCPSend")], [5.0 / 3.0, 1.5]);
    }

    #[test]
    fn gains_are_estimated_from_what_functions_take() {
        const STEPS: &[Function] = &[
            function("A", "first", 0, ""),
            function("A", "second", 0, ""),
            function("B", "third", 0, ""),
        ];
        let gains = gains(&("path", STEPS, ["A", "B"]), &[30.0, 30.0, 20.0, 7.0, 90.0]);
        assert_eq!(gains.components, [(Some(2.0), 60.0), (None, 20.0)]);
        assert_eq!((gains.path, gains.pipelined), (80.0 / 50.0, 80.0 / 30.0));
    }

    #[test]
    fn times_stand_beside_instructions_and_what_is_missing_is_said() {
        let key = |file: &str| (file.to_owned(), String::new());
        let cost = Cost {
            instructions: 10.0,
            ..Cost::default()
        };
        let costs = Costs::from([(key("tcp/ack.rs"), cost), (key(""), cost)]);
        let times = [4.0, 6.0, 5.0].map(|ns| Times::from([(key("tcp/ack.rs"), ns)]));
        let path = &FUNCTIONS[0];
        let timed = table(path, &costs, Ok(&times));
        let checks = &timed.rows[4];
        assert_eq!(checks[2..], ["10.0", "0.0", "0.0", "100", "5.0", "100"]);
        assert_eq!(timed.rows[8][2..], ["10.0", "0.0", "0.0", "", "0.0", ""]);
        assert!(timed.measures.contains_key("receive path, by time"));
        assert!(!timed.measures.contains_key("IPReceive, by time"));
        let counted = table(path, &costs, Err("no perf"));
        assert_eq!(counted.rows[4][6..], ["", ""]);
        assert!(!counted.measures.contains_key("receive path, by time"));
        assert!(counted.notes.iter().any(|note| note.ends_with("no perf")));
    }

    #[test]
    fn every_place_that_a_function_names_is_there() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let folders = functions::FOLDERS.map(|folder| crates.join(folder));
        let all = FUNCTIONS.iter().flat_map(|(_, functions, _)| *functions);
        for place in all.flat_map(|function| function.of.split(' ')) {
            let (file, name) = place.split_once("::").unwrap_or((place, ""));
            let found = folders.iter().map(|folder| folder.join(file));
            let found = found.into_iter().find(|path| path.exists());
            let path = found.unwrap_or_else(|| panic!("there is no {file}"));
            if path.is_file() {
                let text = std::fs::read_to_string(path).expect("it is there");
                assert!(
                    name.is_empty() || text.contains(&format!("fn {name}")),
                    "{place}"
                );
            }
        }
    }

    #[test]
    fn every_line_of_a_file_belongs_to_the_function_that_names_it() {
        let lookup = &FUNCTIONS[0].1[3];
        assert!(lookup.has("state/apply/connections.rs", "lookup"));
        assert!(!lookup.has("tcp/ack.rs", "find"));
        let checks = &FUNCTIONS[0].1[4];
        assert!(checks.has("state/apply.rs", "fast_path"));
        assert!(!checks.has("state/apply.rs", "others"));
        assert!(
            !FUNCTIONS[0]
                .1
                .iter()
                .any(|function| function.has("", "memcpy"))
        );
    }
}
