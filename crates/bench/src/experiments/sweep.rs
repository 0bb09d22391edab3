//! One direction of one connection: all variants with large segments, then what changes with
//! timestamps, and with smaller segments.

use super::lineup::{Panel, Wanted};
use crate::drivers::Direction;
use crate::ratio::{Target, row};
use crate::workload::Workload;

/// The panels, the first with `targets`.
pub(super) fn sweep(wanted: &Wanted, direction: Direction, targets: Vec<Target>) -> Vec<Panel> {
    let mut panels = Vec::new();
    let mut targets = Some(targets);
    for (size, &segment_bytes) in wanted.segments.iter().enumerate() {
        let workload = Workload {
            segment_bytes,
            ..wanted.base
        };
        let panel = wanted.panel(segment_bytes.to_string(), direction, workload);
        let names = [
            "limit",
            "single",
            "replicated",
            "replicated-auto",
            "smoltcp",
        ];
        panels.push(match targets.take() {
            Some(targets) => panel.rows(wanted, &["*"]).targets(wanted, targets),
            None => panel
                .rows(wanted, &names)
                .targets(wanted, side_targets(segment_bytes)),
        });
        if size == 0 && !wanted.base.timestamps {
            let workload = Workload {
                segment_bytes,
                timestamps: true,
                ..wanted.base
            };
            let panel = wanted.panel(format!("{segment_bytes}, timestamps"), direction, workload);
            panels.push(panel.rows(wanted, &["limit", "single", "replicated", "smoltcp"]));
        }
    }
    panels
}

fn side_targets(segment: usize) -> Vec<Target> {
    let what = |what: &str| format!("{segment}-byte segments, {what}");
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
        // A group that may leave its second replica idle.
        Target::of(
            what("the group's own choice / single"),
            row("replicated-auto", 2),
            row("single", 1),
            None,
        ),
    ]
}
