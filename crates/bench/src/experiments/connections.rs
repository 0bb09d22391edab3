//! The same payload over more connections.

use super::{DIRECTIONS, Experiment};
use crate::drivers::Direction;
use crate::lineup::{Panel, Wanted};
use crate::ratio::{Target, case};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "connections",
    about: "1, 8 and 64 connections, whose segments alternate one by one, by twos and by eights: replicas of one group, partitioning (groups of one side by side), a lock, a lock for each",
    panels,
    ..Experiment::NONE
};

/// Bytes that the send or receive rings of all connections make up at most.
const RINGS: u32 = 8 << 20;

fn panels(wanted: &Wanted) -> Vec<Panel> {
    let one = |(direction, what): (Direction, &str)| {
        let mut panel = wanted.panel(what, direction, wanted.base);
        let mut targets = Vec::new();
        // Acknowledgments of several connections alternate as they come.
        let bursts = |connections: usize| match (connections, direction) {
            (2.., Direction::Receive) => &wanted.bursts[..],
            _ => &[8][..],
        };
        let cases = wanted.connections.iter();
        for (connections, burst) in cases.flat_map(|&n| bursts(n).iter().map(move |&b| (n, b))) {
            let share = RINGS / connections.max(1) as u32;
            let workload = Workload {
                connections,
                burst,
                ring_bytes: wanted.base.ring_bytes.min(1 << share.max(1024).ilog2()),
                ..wanted.base
            };
            let name = match connections {
                2.. if direction == Direction::Receive => format!("{connections} conn. by {burst}"),
                n => format!("{n} conn."),
            };
            let names = [
                "single",
                "replicated",
                "partitioned",
                "locked*",
                "lock-each-mcs",
            ];
            panel = panel.case(wanted, &names, &name, workload);
            // However many there are, replicas should be as fast as what people do otherwise: a
            // lock around one state, or connections dealt out to cores.
            for other in ["locked-mutex", "locked-mcs", "partitioned"] {
                targets.push(Target::of(
                    format!("{what}, {name}, replicated / {other}"),
                    case("replicated", 2, &name),
                    case(other, 2, &name),
                    1.0,
                ));
            }
            targets.push(Target::of(
                format!("{what}, {name}, replicated / single"),
                case("replicated", 2, &name),
                case("single", 1, &name),
                1.2,
            ));
        }
        panel.ratios(targets)
    };
    DIRECTIONS.map(one).into()
}
