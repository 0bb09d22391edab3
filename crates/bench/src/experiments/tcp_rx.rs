//! One connection receives as fast as it can.

use super::Experiment;
use crate::paper;
use crate::seats::Direction;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "tcp-rx",
    about: "one connection receives: checksum and copy, application in place",
    direction: Direction::Receive,
    published: paper::TCP_RECEIVE,
};
