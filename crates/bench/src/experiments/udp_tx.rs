//! One socket sends as fast as it can.

use super::{Experiment, udp_rx};
use crate::drivers::Direction;
use crate::lineup::{Panel, Wanted};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "udp-tx",
    about: "one UDP socket sends: copy and checksum, datagrams lie in the send ring",
    panels,
    ..Experiment::NONE
};

fn panels(wanted: &Wanted) -> Vec<Panel> {
    udp_rx::sweep(wanted, Direction::Send)
}
