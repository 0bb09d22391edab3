//! Living groups, as a stack is asked for them: one for each core, connections spread over them by
//! a hash and moved to where there is room, and in each as many replicas as bring something.
//!
//! A core has the first worker of its own group, and those of the others that mostly rest: one that
//! does costs a look.

use dominoes_netstack::group::{Group, Layout, Worker};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::groups;

use crate::drivers::app::{self, App};
use crate::drivers::worker::{Application, check};
use crate::drivers::{Account, Direction, Driver, Row, partitioned};
use crate::peer;
use crate::workload::Workload;

struct CoreDriver {
    own: Worker,
    app: App,
    /// Of other groups.
    others: Vec<Worker>,
}

/// The variant on `cores` cores, with as many groups of up to as many replicas.
pub(crate) fn row(direction: Direction, workload: &Workload, cores: usize) -> Result<Row, String> {
    let (device, peer) = peer::new(app::role(direction), workload)?;
    let mut setup = app::setup(direction, workload)?;
    setup.balance = true;
    // All connections may come to one group.
    setup.limits.connections *= 2;
    let mut layout = Layout::default();
    (layout.replicas, layout.replica_slots, layout.autoscale) = (1, cores, true);
    layout.tuning.log = workload.log_requests;
    let inbox = partitioned::inbox(workload);
    let parts = groups::divide(setup, cores, Box::new(device), inbox);
    let mut groups = Vec::new();
    for (setup, part) in parts.map_err(|e| e.to_string())? {
        groups.push(Group::new(setup, layout, Box::new(part)).map_err(|e| e.to_string())?);
    }
    let sockets = groups::sockets(groups.iter().map(Group::sockets));
    let app = App::accept(direction, workload, &sockets, peer.clone(), |now| {
        for group in &mut groups {
            group.turn(Instant::from_nanos(now));
        }
    })?;
    let mut workers: Vec<_> = groups
        .into_iter()
        .map(|group| group.into_workers().into_iter())
        .collect();
    let mut drivers = Vec::new();
    for (workers, app) in workers.iter_mut().zip(app.divide(cores)) {
        let own = workers.next().ok_or("a group has a worker")?;
        drivers.push(CoreDriver {
            own,
            app,
            others: Vec::new(),
        });
    }
    for (group, others) in workers.into_iter().enumerate() {
        for (i, worker) in others.enumerate() {
            drivers[(group + 1 + i) % cores].others.push(worker);
        }
    }
    let drivers = drivers
        .into_iter()
        .map(|driver| -> Box<dyn Driver> { Box::new(driver) });
    Ok(Row::new("groups", drivers.collect()))
}

impl CoreDriver {
    fn workers(&self) -> impl Iterator<Item = &Worker> {
        core::iter::once(&self.own).chain(&self.others)
    }
}

impl Driver for CoreDriver {
    #[inline]
    fn turn(&mut self, now: Instant) -> usize {
        let mut done = self.own.turn(now);
        for guest in &mut self.others {
            done += guest.turn(now);
        }
        done + usize::from(self.app.turn())
    }

    fn bytes(&self) -> u64 {
        self.app.bytes()
    }

    fn verify(&mut self, on: bool) {
        self.app.verify(on);
    }

    fn account(&self) -> Account {
        let pump = self.own.pump_stats().unwrap_or_default();
        let effects = self.workers().map(Worker::stats);
        Account {
            primary_bytes: effects.map(|of| of.delivered_bytes + of.sent_bytes).sum(),
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
        self.workers().try_for_each(check::<App>)
    }
}
