//! What checksums in software cost, and whether they still scale.

use super::Experiment;
use crate::drivers::Direction;
use crate::lineup::{Panel, Wanted};
use crate::ratio::{Target, case};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "checksum",
    about: "checksums in software, or by the device",
    panels,
    ..Experiment::NONE
};

const CASES: [(&str, bool); 2] = [("software", true), ("device", false)];

fn panels(wanted: &Wanted) -> Vec<Panel> {
    let one = |(direction, what): (Direction, &str)| {
        let mut panel = wanted.panel(what, direction, wanted.base);
        let mut targets = Vec::new();
        for (name, checksum) in CASES {
            let workload = Workload {
                checksum,
                ..wanted.base
            };
            let names = ["limit", "single", "replicated", "smoltcp"];
            panel = panel.case(wanted, &names, name, workload);
            for (one, cores, other) in [("replicated", 2, "single"), ("single", 1, "smoltcp")] {
                targets.push(Target::of(
                    format!("{what}, checksums by {name}, {one} on {cores} / {other}"),
                    case(one, cores, name),
                    case(other, 1, name),
                    None,
                ));
            }
        }
        let rounds = panel.rounds;
        Panel {
            rounds,
            ..panel.targets(wanted, targets)
        }
    };
    [(Direction::Receive, "receive"), (Direction::Send, "send")]
        .map(one)
        .into()
}
