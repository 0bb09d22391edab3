//! What checksums in software cost, and whether they still scale; also with the packets of Nahum et
//! al., 4 KB, with a lock that is taken for each packet.

use super::{DIRECTIONS, Experiment};
use crate::drivers::{Direction, locks};
use crate::lineup::{Panel, Wanted};
use crate::ratio::{Target, case};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "checksum",
    about: "checksums in software, or by the device; segments of 4 KB",
    panels,
    ..Experiment::NONE
};

/// The paper's baseline.
const LOCKED: &str = "tcp-1";
/// Payload of a long segment; the MTU grows with it.
pub(super) const LONG: usize = 4096;
const CASES: [(&str, bool, bool); 4] = [
    ("software", true, false),
    ("device", false, false),
    ("4 KB, software", true, true),
    ("4 KB, device", false, true),
];

fn panels(wanted: &Wanted) -> Vec<Panel> {
    let one = |(direction, what): (Direction, &str)| {
        let mut panel = wanted.panel(what, direction, wanted.base);
        let mut targets = Vec::new();
        for (name, checksum, is_long) in CASES {
            let workload = Workload {
                checksum,
                segment_bytes: if is_long {
                    LONG
                } else {
                    wanted.base.segment_bytes
                },
                ..wanted.base
            };
            let names = ["replicated", "single", "limit", "smoltcp"];
            let names = &names[..if is_long { 2 } else { names.len() }];
            panel = panel.case(wanted, names, name, workload);
            let locked = wanted.entries_of(locks::VARIANTS, direction, &[LOCKED], name, workload);
            panel.entries.extend(locked);
            if is_long {
                continue;
            }
            for (one, cores, other) in [("replicated", 2, "single"), ("single", 1, "smoltcp")] {
                targets.push(Target::of(
                    format!("{what}, checksums by {name}, {one} on {cores} / {other}"),
                    case(one, cores, name),
                    case(other, 1, name),
                    None,
                ));
            }
        }
        let replicated = |name| [case("replicated", 2, name), case("single", 1, name)];
        targets.push(Target::of_ratios(
            format!("{what}, replicated: speed-up in software / by the device"),
            replicated("software"),
            replicated("device"),
            None,
        ));
        // What checksums, and long segments, do to the speed-up with a lock.
        let speed_up = |name| [2, 1].map(|cores| case(LOCKED, cores, name));
        for (gains, with, without) in [
            ("checksums", "4 KB, software", "4 KB, device"),
            ("long segments", "4 KB, software", "software"),
        ] {
            targets.push(Target::of_ratios(
                format!("{what}, {LOCKED}: speed-up with {gains} / without"),
                speed_up(with),
                speed_up(without),
                None,
            ));
        }
        panel.ratios(targets)
    };
    DIRECTIONS.map(one).into()
}
