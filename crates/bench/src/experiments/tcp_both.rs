//! One connection sends and receives at once.

use super::Experiment;
use crate::drivers::Direction;
use crate::lineup::{Panel, Wanted};
use crate::ratio::{Target, row};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "tcp-both",
    about: "one connection sends and receives at once",
    panels,
    ..Experiment::NONE
};

fn panels(wanted: &Wanted) -> Vec<Panel> {
    let one = |&segment_bytes: &usize| {
        let workload = Workload {
            segment_bytes,
            ..wanted.base
        };
        let what = |what: &str| format!("both ways, {segment_bytes}-byte segments, {what}");
        let panel = wanted.panel(segment_bytes.to_string(), Direction::Both, workload);
        panel.rows(wanted, &["*"]).targets(
            wanted,
            vec![
                Target::of(
                    what("2 replicas / single"),
                    row("replicated", 2),
                    row("single", 1),
                    None,
                ),
                Target::of(
                    what("2 replicas / limit"),
                    row("replicated", 2),
                    row("limit", 2),
                    None,
                ),
                Target::of(
                    what("single / smoltcp"),
                    row("single", 1),
                    row("smoltcp", 1),
                    None,
                ),
            ],
        )
    };
    // The largest and the smallest say it all.
    let mut sizes = wanted.segments.clone();
    if sizes.len() > 2 {
        sizes = vec![sizes[0], sizes[sizes.len() - 1]];
    }
    sizes.iter().map(one).collect()
}
