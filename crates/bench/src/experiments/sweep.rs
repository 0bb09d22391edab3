//! One direction of one connection: all variants with large segments, then changes by timestamps,
//! and by smaller segments.

use crate::drivers::Direction;
use crate::lineup::{Panel, Wanted};
use crate::ratio::{Target, ratios, row};
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

/// The targets of one direction: minimum ratios of two replicas to another row.
pub(super) struct Goals {
    /// To `single`.
    pub(super) single: f64,
    /// To the better lock, if wanted.
    pub(super) lock: Option<f64>,
    /// To smoltcp, if wanted.
    pub(super) smoltcp: Option<f64>,
}

/// The comparisons of one direction; `what` names the work.
pub(super) fn targets(what: &str, goals: &Goals) -> Vec<Target> {
    let (ours, single) = (|| row("replicated", 2), || row("single", 1));
    let limit = |cores| row("limit", cores);
    let one = || row("replicated", 1);
    let on_two = |than: &str| format!("{what} on 2 cores{than}");
    let mut targets = vec![
        Target::of_ratios(
            on_two(", speed-up over single / that of limit"),
            [ours(), single()],
            [limit(2), limit(1)],
            0.9,
        ),
        Target::of_ratios(
            on_two(", speed-up over one replica / that of limit"),
            [ours(), one()],
            [limit(2), limit(1)],
            0.9,
        ),
    ];
    targets.extend(ratios! {
        on_two;
        " / limit": "replicated" 2 / "limit" 2, 0.8;
        " / single": "replicated" 2 / "single" 1, goals.single;
        " / the better locked": "replicated" 2 / "locked*" 2, goals.lock;
        " / smoltcp": "replicated" 2 / "smoltcp" 1, goals.smoltcp;
    });
    targets.extend(ratios! {
        |than: &str| format!("{what}, {than}");
        "single / smoltcp": "single" 1 / "smoltcp" 1, 1.4;
        "one replica / single": "replicated" 1 / "single" 1, None;
    });
    targets.extend(ratios! {
        str::to_owned;
        "limit, 2 cores / 1 core": "limit" 2 / "limit" 1, None;
    });
    targets
}

fn side_targets(segment: usize) -> Vec<Target> {
    let what = |what: &str| format!("{segment}-byte segments, {what}");
    ratios! {
        what;
        "2 replicas / single": "replicated" 2 / "single" 1, None;
        "2 replicas / limit": "replicated" 2 / "limit" 2, None;
        // A group that may leave its second replica idle.
        "the group's own choice / single": "replicated-auto" 2 / "single" 1, None;
    }
}
