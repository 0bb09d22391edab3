//! A group of one for each core, and connections spread over them by a hash of their flow: plain
//! partitioning.
//!
//! The device has one queue, so whoever finds it free takes frames in for all, and hands over what
//! is not its own. Each group's application runs on the group's core.

use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::groups;
use dominoes_netstack::variants::groups::INBOX;
use dominoes_netstack::variants::single::Single;

use crate::drivers::app::{self, App};
use crate::drivers::{Account, Direction, Driver, Row};
use crate::peer;
use crate::workload::Workload;

struct PartitionDriver {
    single: Single,
    app: App,
}

/// Frames that may wait for one group: all that the windows of all connections let the peer send,
/// since it never sends anything twice.
pub(super) fn inbox(workload: &Workload) -> usize {
    let windows = workload.connections * workload.ring_bytes as usize;
    (2 * windows / workload.segment_bytes)
        .min(workload.frames())
        .max(INBOX)
}

/// The variant on `cores` cores, with as many groups.
pub(crate) fn row(direction: Direction, workload: &Workload, cores: usize) -> Result<Row, String> {
    let (device, peer) = peer::new(app::role(direction), workload)?;
    let setup = app::setup(direction, workload)?;
    let parts = groups::divide(setup, cores, Box::new(device), inbox(workload));
    let mut groups = Vec::new();
    for (setup, part) in parts.map_err(|e| e.to_string())? {
        groups.push(Single::new(setup, Box::new(part)).map_err(|e| e.to_string())?);
    }
    let sockets = groups::sockets(groups.iter().map(Single::sockets));
    let app = App::accept(direction, workload, &sockets, peer.clone(), |now| {
        for group in &mut groups {
            group.turn(Instant::from_nanos(now));
        }
    })?;
    let drivers = groups.into_iter().zip(app.divide(cores));
    let drivers = drivers
        .map(|(single, app)| -> Box<dyn Driver> { Box::new(PartitionDriver { single, app }) });
    Ok(Row::new("partitioned", drivers.collect()))
}

impl Driver for PartitionDriver {
    #[inline]
    fn turn(&mut self, now: Instant) -> usize {
        let done = self.single.turn(now);
        done + usize::from(self.app.turn())
    }

    fn bytes(&self) -> u64 {
        self.app.bytes()
    }

    fn verify(&mut self, on: bool) {
        self.app.verify(on);
    }

    fn account(&self) -> Account {
        let pump = self.single.pump_stats();
        let effects = self.single.effect_stats();
        Account {
            primary_bytes: effects.delivered_bytes + effects.sent_bytes,
            segments: pump.segments,
            runs: pump.runs,
            log_full: pump.log_full,
            ..Account::default()
        }
    }

    fn sent_again(&self) -> u64 {
        self.app.sent_again()
    }

    fn out_of_order(&self) -> u64 {
        self.app.out_of_order()
    }

    fn check(&self) -> Result<(), String> {
        self.app.check()?;
        let bad = self.single.replica().stats().bad_checksum;
        if bad > 0 {
            return Err(format!("{bad} segments had a bad checksum"));
        }
        match self.single.effect_stats().diverged {
            0 => Ok(()),
            diverged => Err(format!("{diverged} effects found no place")),
        }
    }
}
