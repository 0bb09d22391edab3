//! Whose work it is: every way to choose primaries, payload apart from acknowledgments among them.

use super::Experiment;
use crate::drivers::Direction;
use crate::lineup::{Panel, Wanted};
use crate::ratio::{Target, row};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "specialized",
    about: "payload by one replica, acknowledgments by the other, against other ways to choose primaries",
    panels,
    ..Experiment::NONE
};

/// The variant whose primaries go by kind of work.
const BY_KIND: &str = "replicated-by-kind";
/// The others.
const OTHERS: [&str; 4] = [
    "replicated",
    "replicated-by-position",
    "replicated-greedy",
    "replicated-by-load",
];

fn panels(wanted: &Wanted) -> Vec<Panel> {
    let one = |&segment_bytes: &usize| {
        let workload = Workload {
            segment_bytes,
            ..wanted.base
        };
        let panel = wanted
            .panel(segment_bytes.to_string(), Direction::Receive, workload)
            .rows(wanted, &["single", "replicated*"]);
        let against = |other: &'static str, cores| {
            Target::of(
                format!("{segment_bytes}-byte segments, by kind of work / {other} on {cores}"),
                row(BY_KIND, 2),
                row(other, cores),
                None,
            )
        };
        let mut targets = vec![against("single", 1)];
        targets.extend(OTHERS.map(|other| against(other, 2)));
        panel.ratios(targets)
    };
    wanted.segments.iter().map(one).collect()
}
