//! One connection receives as fast as it can.

use super::Experiment;
use super::sweep::{Goals, sweep, targets};
use crate::drivers::Direction;
use crate::lineup::{Panel, Wanted};
use crate::ratio::{Target, row};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "tcp-rx",
    about: "one connection receives: checksum and copy, application in place",
    panels,
    ..Experiment::NONE
};

fn panels(wanted: &Wanted) -> Vec<Panel> {
    let goals = Goals {
        single: 1.75,
        lock: Some(1.3),
        smoltcp: Some(3.0),
    };
    let mut targets = targets("receive", &goals);
    targets.push(Target::of(
        "receive, single / smoltcp that acknowledges once for 8",
        row("single", 1),
        row("smoltcp-8", 1),
        None,
    ));
    // What 2 cores could be at best against smoltcp.
    targets.push(Target::of(
        "limit on 2 cores / smoltcp",
        row("limit", 2),
        row("smoltcp", 1),
        None,
    ));
    sweep(wanted, Direction::Receive, targets)
}
