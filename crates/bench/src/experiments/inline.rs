//! Payload that is processed in transit: searched, decrypted, encrypted.

use super::{DIRECTIONS, Experiment};
use crate::drivers::{Direction, searched};
use crate::lineup::{Panel, Wanted};
use crate::ratio::{Target, case, ratios};
use crate::workload::{Processing, Workload};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "inline",
    about: "string search and AES-256 on the payload, by the primary alone",
    panels,
    ..Experiment::NONE
};

/// The processing, and the speed-up over `single` that two replicas should reach, receiving and
/// sending.
const CASES: [(Processing, Option<f64>, Option<f64>); 4] = [
    (Processing::None, None, None),
    (Processing::Search, None, None),
    (Processing::Aes256Ctr, Some(1.85), Some(1.85)),
    (Processing::Aes256Gcm, Some(1.9), Some(1.85)),
];

fn panels(wanted: &Wanted) -> Vec<Panel> {
    let one = |(direction, what): (Direction, &str)| {
        let mut panel = wanted.panel(what, direction, wanted.base);
        let mut targets = Vec::new();
        for (processing, receive, send) in CASES {
            let workload = Workload {
                processing,
                ..wanted.base
            };
            let name = processing.name();
            panel = panel.case(wanted, &["limit", "single", "replicated"], name, workload);
            let least = if direction == Direction::Receive {
                receive
            } else {
                send
            };
            targets.push(Target::of(
                format!("{what} with {name}, 2 replicas / single"),
                case("replicated", 2, name),
                case("single", 1, name),
                least,
            ));
            if processing != Processing::None {
                let plain = Processing::None.name();
                targets.push(Target::of(
                    format!("{what}, single with {name} / plain"),
                    case("single", 1, name),
                    case("single", 1, plain),
                    None,
                ));
            }
            targets.push(Target::of(
                format!("{what} with {name}, 2 replicas / limit"),
                case("replicated", 2, name),
                case("limit", 2, name),
                None,
            ));
        }
        panel.targets(wanted, targets)
    };
    let both = DIRECTIONS.map(one);
    both.into_iter().chain([datagrams(wanted)]).collect()
}

/// Datagrams that any worker searches.
fn datagrams(wanted: &Wanted) -> Panel {
    let (direction, processing) = (Direction::Receive, Processing::Search);
    let workload = Workload {
        processing,
        ..wanted.base
    };
    let mut panel = wanted.panel("datagrams, search", direction, workload);
    panel.entries = wanted.entries_of(searched::VARIANTS, direction, &["*"], "", workload);
    let targets = ratios! {
        str::to_owned;
        "datagrams with search, 2 replicas / single": "replicated" 2 / "single" 1, None;
    };
    panel.targets(wanted, targets)
}
