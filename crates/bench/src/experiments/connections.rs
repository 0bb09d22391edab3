//! The same payload over more connections.

use super::lineup::{Panel, Wanted};
use super::{Ask, Experiment};
use crate::paper;
use crate::seats::Direction;
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "connections",
    about: "1, 8 and 64 connections in one group",
    ask: Ask::Compare(panels),
    published: paper::CONNECTIONS,
};

/// Octets that the send or receive rings of all connections make up at most.
const RINGS: u32 = 8 << 20;

fn panels(wanted: &Wanted) -> Vec<Panel> {
    let one = |direction, what: &str| {
        let panel = wanted.panel(what, direction, wanted.base);
        wanted
            .connections
            .iter()
            .fold(panel, |panel, &connections| {
                let share = RINGS / connections.max(1) as u32;
                let workload = Workload {
                    connections,
                    ring_bytes: wanted.base.ring_bytes.min(1 << share.max(1024).ilog2()),
                    ..wanted.base
                };
                let case = format!("{connections} conn.");
                panel.case(
                    wanted,
                    &["single", "replicated", "locked*"],
                    &case,
                    workload,
                )
            })
    };
    vec![
        one(Direction::Receive, "receive"),
        one(Direction::Send, "send"),
    ]
}
