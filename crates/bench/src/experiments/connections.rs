//! The same payload over more connections.

use super::lineup::{Panel, Wanted};
use super::{Ask, Experiment};
use crate::drivers::Direction;
use crate::paper;
use crate::ratio::{Target, case};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "connections",
    about: "1, 8 and 64 connections: groups that arrange themselves, replicas of one group, plain partitioning (groups of one side by side), a lock",
    ask: Ask::Compare(panels),
    published: paper::CONNECTIONS,
};

/// Bytes that the send or receive rings of all connections make up at most.
const RINGS: u32 = 8 << 20;

fn panels(wanted: &Wanted) -> Vec<Panel> {
    let one = |(direction, what): (Direction, &str)| {
        let mut panel = wanted.panel(what, direction, wanted.base);
        let mut targets = Vec::new();
        for &connections in &wanted.connections {
            let share = RINGS / connections.max(1) as u32;
            let workload = Workload {
                connections,
                ring_bytes: wanted.base.ring_bytes.min(1 << share.max(1024).ilog2()),
                ..wanted.base
            };
            let name = format!("{connections} conn.");
            let names = ["single", "groups", "replicated", "partitioned", "locked*"];
            panel = panel.case(wanted, &names, &name, workload);
            // However many there are, groups should be as fast as what people do otherwise: a lock
            // around one state, or connections dealt out to cores.
            for other in ["locked-mutex", "locked-mcs", "partitioned"] {
                for ours in ["groups", "replicated"] {
                    targets.push(Target::of(
                        format!("{what}, {connections} connections, {ours} / {other}"),
                        case(ours, 2, &name),
                        case(other, 2, &name),
                        1.0,
                    ));
                }
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
