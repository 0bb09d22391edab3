//! One core, with frames that stay in its caches: what the protocol itself costs.

use super::{DIRECTIONS, Experiment};
use crate::drivers::Direction;
use crate::lineup::{Panel, Wanted};
use crate::ratio::{Target, case};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "warm",
    about: "one core on a warm ring of 64 frames, against smoltcp, with and without checksums",
    panels,
    ..Experiment::NONE
};

/// Frames in the ring.
const FRAMES: usize = 64;
const OFF: &str = "no checksum";

fn panels(wanted: &Wanted) -> Vec<Panel> {
    let warm = wanted.base.warm(FRAMES);
    let off = Workload {
        checksum: false,
        ..warm
    };
    let names = ["limit", "single", "smoltcp*"];
    let one = |(direction, what): (Direction, &str)| {
        let of = |text: &str, which: &str, least| {
            Target::of(
                format!("{what}, warm{text}, single / smoltcp"),
                case("single", 1, which),
                case("smoltcp", 1, which),
                least,
            )
        };
        let mut targets = vec![of("", "", Some(1.8)), of(", no checksum", OFF, None)];
        if direction.receives() {
            targets.push(Target::of(
                "receive, warm, single / smoltcp that acknowledges once for 8",
                case("single", 1, ""),
                case("smoltcp-8", 1, ""),
                None,
            ));
        }
        let alone = Wanted {
            cores: vec![1],
            ..wanted.clone()
        };
        wanted
            .panel(what, direction, warm)
            .rows(&alone, &names)
            .case(&alone, &names, OFF, off)
            .targets(wanted, targets)
    };
    DIRECTIONS.map(one).into()
}
