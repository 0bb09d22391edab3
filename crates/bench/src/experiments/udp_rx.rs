//! One socket receives, or sends, as fast as it can.

use super::Experiment;
use crate::drivers::{Direction, udp};
use crate::lineup::{Panel, Wanted};
use crate::ratio::{Target, ratios, row};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "udp-rx",
    about: "one UDP socket receives: checksum and copy, application in place",
    panels: |wanted| sweep(wanted, Direction::Receive),
    ..Experiment::NONE
};

pub(super) const SENDING: Experiment = Experiment {
    name: "udp-tx",
    about: "one UDP socket sends: copy and checksum, datagrams lie in the send ring",
    panels: |wanted| sweep(wanted, Direction::Send),
    ..Experiment::NONE
};

/// A panel for each size of datagrams, the first with targets.
fn sweep(wanted: &Wanted, direction: Direction) -> Vec<Panel> {
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
    let mut all = ratios! {
        str::to_owned;
        "on 2 cores / single": "replicated" 2 / "single" 1, None;
        "on 2 cores / limit": "replicated" 2 / "limit" 2, None;
        "on 2 cores / the better lock": "replicated" 2 / "locked*" 2, None;
        "one replica / single": "replicated" 1 / "single" 1, None;
        "limit, 2 cores / 1 core": "limit" 2 / "limit" 1, None;
    };
    all.insert(
        0,
        Target::of_ratios(
            "on 2 cores, speed-up over single / that of limit",
            [row("replicated", 2), row("single", 1)],
            [row("limit", 2), row("limit", 1)],
            None,
        ),
    );
    all
}
