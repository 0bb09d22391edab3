//! One socket receives as fast as it can.

use super::Experiment;
use crate::drivers::{Direction, udp};
use crate::lineup::{Panel, Wanted};
use crate::ratio::{Target, row};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "udp-rx",
    about: "one UDP socket receives: checksum and copy, application in place",
    panels,
    ..Experiment::NONE
};

fn panels(wanted: &Wanted) -> Vec<Panel> {
    sweep(wanted, Direction::Receive)
}

/// A panel for each size of datagrams, the first with targets.
pub(super) fn sweep(wanted: &Wanted, direction: Direction) -> Vec<Panel> {
    let mut panels = Vec::new();
    for (size, &segment_bytes) in wanted.segments.iter().enumerate() {
        let workload = Workload {
            segment_bytes,
            ..wanted.base
        };
        let mut panel = wanted.panel(segment_bytes.to_string(), direction, workload);
        panel.entries = wanted.entries_of(udp::VARIANTS, direction, &["*"], "", workload);
        if size == 0 {
            panel = panel.targets(wanted, targets());
        }
        panels.push(panel);
    }
    panels
}

fn targets() -> Vec<Target> {
    let (ours, single) = (|| row("replicated", 2), || row("single", 1));
    let limit = |cores| row("limit", cores);
    vec![
        Target::of_ratios(
            "on 2 cores, speed-up over single / that of limit",
            [ours(), single()],
            [limit(2), limit(1)],
            None,
        ),
        Target::of("on 2 cores / single", ours(), single(), None),
        Target::of("on 2 cores / limit", ours(), limit(2), None),
        Target::of(
            "on 2 cores / the better lock",
            ours(),
            row("locked*", 2),
            None,
        ),
        Target::of(
            "the better lock, 2 cores / single",
            row("locked*", 2),
            single(),
            None,
        ),
        Target::of("one replica / single", row("replicated", 1), single(), None),
        Target::of("limit, 2 cores / 1 core", limit(2), limit(1), None),
    ]
}
