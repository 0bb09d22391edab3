//! What each function of the protocol costs, and what would be gained if functions ran side by side.
//!
//! The functions are those of Kim, Sung and Lee; [`FUNCTIONS`] says what of our sources each is. In
//! the parallel structure of the paper some of a component's functions run at the same time: its
//! critical path is the longest of these, and the others one after the other. The estimate is the
//! sum over the critical path, as there.

use super::lineup::Wanted;
use super::{Ask, Experiment, parts};
use crate::instructions::functions::{self, Cost, Costs};
use crate::paper;
use crate::record::Table;
use crate::report;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "functions",
    about: "what each function of the protocol costs, in instructions, and what functional parallelism would gain",
    ask: Ask::Tables(tables),
    published: paper::FUNCTIONS,
};

/// A function of the paper.
struct Function {
    component: &'static str,
    name: &'static str,
    /// Functions with the same number run at the same time, lower numbers before.
    step: usize,
    /// Files of the stack, or functions of one as `file::function`; files that it begins with.
    of: &'static [&'static str],
}

const fn function(
    component: &'static str,
    name: &'static str,
    step: usize,
    of: &'static [&'static str],
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
                &[
                    "packet/header_template.rs",
                    "packet.rs",
                    "io/gro.rs::matches_template",
                    "packet/ip.rs",
                ],
            ),
            function("IPReceive", "options", 1, &["packet/ip_options.rs"]),
            function("IPReceive", "reassembly", 1, &["ip/reassembly.rs"]),
            function(
                "TCPReceive",
                "connection lookup",
                0,
                &[
                    "io/stream/table.rs",
                    "state/demux.rs",
                    "state/ports.rs",
                    "state/apply/connections.rs",
                ],
            ),
            function(
                "TCPReceive",
                "header checks",
                1,
                &[
                    "tcp/fast_path.rs",
                    "tcp/arrive.rs",
                    "tcp/ack.rs",
                    "state/apply.rs::fast_path",
                    "seqnum.rs",
                ],
            ),
            function(
                "TCPReceive",
                "checksum, with the copy",
                1,
                &["packet/checksum", "io/prepare.rs"],
            ),
            function(
                "TCPReceive",
                "ordering",
                2,
                &[
                    "tcp/reassembly.rs",
                    "tcp/receive_space.rs",
                    "io/stream/delivery.rs",
                    "io/stream/byte_ring.rs",
                ],
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
                &[
                    "tcp/send.rs",
                    "tcp/send_space.rs",
                    "state/apply/schedule.rs",
                    "io/stream/send.rs",
                    "log/effect.rs",
                ],
            ),
            function(
                "TCPSend",
                "header (and that of IP)",
                0,
                &["io/perform/frames.rs", "packet.rs"],
            ),
            function(
                "TCPSend",
                "checksum, with the copy",
                1,
                &[
                    "packet/checksum",
                    "io/stream/byte_ring.rs",
                    "io/prefetch.rs",
                ],
            ),
            function("IPSend", "routing", 0, &["ip/route.rs"]),
            function("IPSend", "address translation", 1, &["ip/neighbor.rs"]),
            function("IPSend", "fragmentation", 1, &["ip/fragment.rs"]),
            function(
                "IPSend",
                "header, identification",
                1,
                &["ip/identification.rs", "packet/ip.rs"],
            ),
        ],
        ["TCPSend", "IPSend"],
    ),
];

impl Function {
    fn has(&self, file: &str, name: &str) -> bool {
        self.of.iter().any(|own| match own.split_once("::") {
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

fn tables(_: &Wanted, progress: &mut dyn FnMut(usize, usize)) -> Result<Vec<Table>, String> {
    progress(0, 1);
    let columns = [
        "component",
        "function",
        "instructions",
        "data reads",
        "data writes",
        "share %",
    ];
    let count = || functions::count(&report::usual().join("functions"));
    let counted = match parts::can_play().and_then(|()| count()) {
        Ok(counted) => counted,
        Err(why) => {
            let mut table = Table::new("a segment of 1412 bytes on one core", &columns);
            table.note(format!("skipped: {why}"));
            return Ok(vec![table]);
        }
    };
    progress(1, 1);
    let directions = FUNCTIONS.iter().zip(&counted);
    Ok(directions
        .map(|(path, costs)| table(path, costs, &columns))
        .collect())
}

fn table((path, functions, components): &Path, costs: &Costs, columns: &[&'static str]) -> Table {
    let mut sums = vec![Cost::default(); functions.len()];
    let (mut rest, mut library) = (Cost::default(), Cost::default());
    for ((file, name), cost) in costs {
        let own = functions
            .iter()
            .position(|function| function.has(file, name));
        let sum = match own {
            Some(own) => &mut sums[own],
            None if file.is_empty() => &mut library,
            None => &mut rest,
        };
        sum.instructions += cost.instructions;
        sum.reads += cost.reads;
        sum.writes += cost.writes;
    }
    let own: f64 = sums
        .iter()
        .chain([&rest])
        .map(|cost| cost.instructions)
        .sum();
    let mut table = Table::new(
        format!("{path}: a segment of 1412 bytes on one core, software checksums"),
        columns,
    );
    let mut row = |component: &str, name: &str, cost: &Cost, counts: bool| {
        let share = 100.0 * cost.instructions / own.max(f64::MIN_POSITIVE);
        table.row(vec![
            component.to_owned(),
            name.to_owned(),
            format!("{:.1}", cost.instructions),
            format!("{:.1}", cost.reads),
            format!("{:.1}", cost.writes),
            if counts {
                format!("{share:.0}")
            } else {
                String::new()
            },
        ]);
    };
    for (function, cost) in functions.iter().zip(&sums) {
        row(function.component, function.name, cost, true);
    }
    row(
        "",
        "between them: requests, effects, numbers, timers, acknowledgments",
        &rest,
        true,
    );
    row("", "device, peer, application and library", &library, false);
    let of = |component: &str| -> Vec<(usize, f64)> {
        let all = functions.iter().zip(&sums);
        let own = all.filter(|(function, _)| function.component == component);
        own.map(|(function, cost)| (function.step, cost.instructions))
            .collect()
    };
    let mut whole = (0.0, 0.0);
    for component in components {
        let costs = of(component);
        let gain = estimate(&costs);
        let sum: f64 = costs.iter().map(|(_, cost)| cost).sum();
        whole = (whole.0 + sum, whole.1 + sum / gain);
        table.measure(*component, gain, false);
        table.note(format!(
            "{component}: {gain:.2} by its critical path, of {sum:.0} instructions"
        ));
    }
    let gain = if whole.1 > 0.0 {
        whole.0 / whole.1
    } else {
        1.0
    };
    table.measure(*path, gain, false);
    let largest = sums
        .iter()
        .map(|cost| cost.instructions)
        .fold(0.0, f64::max);
    let pipelined = if largest > 0.0 {
        whole.0 / largest
    } else {
        1.0
    };
    table.measure(format!("{path}, pipelined"), pipelined, false);
    table.note(format!(
        "{path}: {gain:.2} by critical paths; {pipelined:.2} if every function were a stage of a pipeline; \
         the experiment pipeline measures one"
    ));
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

    #[test]
    fn every_line_of_a_file_belongs_to_the_function_that_names_it() {
        let lookup = &FUNCTIONS[0].1[3];
        assert!(lookup.has("state/demux.rs", "find"));
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
