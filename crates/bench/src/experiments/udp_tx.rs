//! One socket sends as fast as it can.

use super::{Experiment, udp_rx};
use crate::drivers::Direction;
use crate::lineup::{Panel, Wanted};
use crate::paper;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "udp-tx",
    about: "one UDP socket sends: copy and checksum, datagrams lie in the send ring",
    panels,
    published: paper::UDP_SEND,
    ..Experiment::NONE
};

fn panels(wanted: &Wanted) -> Vec<Panel> {
    udp_rx::sweep(wanted, Direction::Send)
}
