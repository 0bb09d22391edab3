//! Payload by one replica, acknowledgments by the other.

use super::lineup::{Panel, Wanted};
use super::{Ask, Experiment};
use crate::paper;
use crate::ratio::{Target, row};
use crate::seats::{self, Direction};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "specialized",
    about: "payload by one replica, acknowledgments by the other, against primaries by position",
    ask: Ask::Compare(panels),
    published: paper::SPECIALIZED,
};

/// The variant whose primaries go by kind of work.
const BY_KIND: &str = "replicated-by-kind";

fn panels(wanted: &Wanted) -> Vec<Panel> {
    let one = |&segment_bytes: &usize| {
        let workload = Workload {
            segment_bytes,
            ..wanted.base
        };
        let panel = wanted.panel(segment_bytes.to_string(), Direction::Receive, workload);
        // Without it there is nothing to compare.
        let panel = if seats::variant(BY_KIND).is_some() {
            panel.rows(wanted, &["single", "replicated", BY_KIND])
        } else {
            panel
        };
        let rounds = panel.rounds;
        let against = |other: &'static str, cores| {
            Target::of(
                format!("{segment_bytes}-byte segments, by kind of work / {other} on {cores}"),
                row(BY_KIND, 2),
                row(other, cores),
                None,
            )
        };
        let targets = vec![against("single", 1), against("replicated", 2)];
        Panel {
            rounds,
            ..panel.targets(wanted, targets)
        }
    };
    wanted.segments.iter().map(one).collect()
}
