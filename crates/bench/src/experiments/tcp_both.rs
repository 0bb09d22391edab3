//! One connection sends and receives at once.

use super::Experiment;
use crate::drivers::Direction;
use crate::lineup::{Panel, Wanted};
use crate::ratio::ratios;
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
        let targets = ratios! {
            what;
            "2 replicas / single": "replicated" 2 / "single" 1, None;
            "2 replicas / limit": "replicated" 2 / "limit" 2, None;
            "single / smoltcp": "single" 1 / "smoltcp" 1, None;
        };
        panel.rows(wanted, &["*"]).targets(wanted, targets)
    };
    // The largest and the smallest say it all.
    let mut sizes = wanted.segments.clone();
    if sizes.len() > 2 {
        sizes = vec![sizes[0], sizes[sizes.len() - 1]];
    }
    sizes.iter().map(one).collect()
}
