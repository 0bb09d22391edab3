//! One group per core, each with one worker, and connections spread over the groups by a hash of
//! their flow: plain partitioning.
//!
//! The device has one queue, so a worker that finds it free receives frames for all groups, and
//! hands over the frames of other groups. Each group's application runs on the group's core.

use core::fmt::Display;

use dominoes_drivers::Device;
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::groups;
use dominoes_netstack::variants::groups::INBOX;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::variants::{ByHand, Setup, Worker};

use crate::drivers::app::{self, App};
use crate::drivers::{Direction, Row, worker};
use crate::peer;
use crate::workload::Workload;

/// Frames that may wait for one group: all that the windows of all connections let the peer send,
/// since it never retransmits.
pub(super) fn inbox(workload: &Workload) -> usize {
    let windows = workload.connections * workload.ring_bytes as usize;
    (2 * windows / workload.segment_bytes)
        .min(workload.frames())
        .max(INBOX)
}

/// The variant on `cores` cores, with as many groups.
pub(crate) fn row(direction: Direction, workload: &Workload, cores: usize) -> Result<Row, String> {
    let setup = app::setup(direction, workload)?;
    let (groups, app) = groups((direction, workload), cores, setup, Single::new)?;
    let groups = groups.into_iter().flat_map(Single::into_workers);
    Ok(worker::row("partitioned", groups, app.divide(cores)))
}

/// `count` groups, each as `make` makes it, and one application for all of them.
pub(crate) fn groups<W: Worker + 'static, E: Display>(
    (direction, workload): (Direction, &Workload),
    count: usize,
    setup: Setup,
    make: impl Fn(Setup, Box<dyn Device>) -> Result<ByHand<W>, E>,
) -> Result<(Vec<ByHand<W>>, App), String> {
    let (device, peer) = peer::new(app::role(direction), workload)?;
    let parts = groups::divide(setup, count, Box::new(device), inbox(workload));
    let mut groups = Vec::new();
    for (setup, part) in parts.map_err(|e| e.to_string())? {
        groups.push(make(setup, Box::new(part)).map_err(|e| e.to_string())?);
    }
    let sockets = groups::sockets(groups.iter().map(ByHand::sockets));
    let app = App::accept(direction, workload, &sockets, peer.clone(), |now| {
        for group in &mut groups {
            group.turn(Instant::from_nanos(now));
        }
    })?;
    Ok((groups, app))
}
