//! One connection sends as fast as it can.

use super::Experiment;
use crate::paper;
use crate::seats::Direction;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "tcp-tx",
    about: "one connection sends: copy and checksum, bytes lie in the send ring",
    direction: Direction::Send,
    published: paper::TCP_SEND,
};
