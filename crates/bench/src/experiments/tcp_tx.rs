//! One connection sends as fast as it can.

use super::Experiment;
use super::sweep::{Goals, sweep, targets};
use crate::drivers::Direction;
use crate::lineup::{Panel, Wanted};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "tcp-tx",
    about: "one connection sends: copy and checksum, bytes lie in the send ring",
    panels,
    ..Experiment::NONE
};

fn panels(wanted: &Wanted) -> Vec<Panel> {
    let goals = Goals {
        single: 1.6,
        lock: None,
        smoltcp: None,
    };
    sweep(wanted, Direction::Send, targets("send", &goals))
}
