//! One state behind one lock; any core takes any packet.
//!
//! Under contention batches overtake each other on the way to the lock, so in receive the stack
//! repeats acknowledgments. The peer of these rows lets that pass, and takes no repeated
//! acknowledgment for a loss: the rows are better off than they would be with a real peer.

use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::locked::{Group, Hold, Layout, LockKind, Mcs, Mutex, Worker};

use crate::drivers::app::{self, App};
use crate::drivers::{Account, Direction, Driver, Row};
use crate::peer;
use crate::workload::Workload;

struct LockedDriver<K: LockKind> {
    worker: Worker<K>,
    /// With the first worker only.
    app: Option<App>,
}

/// Behind a [`std::sync::Mutex`].
pub(crate) fn mutex(
    direction: Direction,
    workload: &Workload,
    cores: usize,
) -> Result<Row, String> {
    row::<Mutex>("locked-mutex", Hold::Batch, direction, workload, cores)
}

/// Behind a queue lock.
pub(crate) fn mcs(direction: Direction, workload: &Workload, cores: usize) -> Result<Row, String> {
    row::<Mcs>("locked-mcs", Hold::Batch, direction, workload, cores)
}

fn row<K: LockKind>(
    name: &'static str,
    hold: Hold,
    direction: Direction,
    workload: &Workload,
    cores: usize,
) -> Result<Row, String> {
    let (device, peer) = peer::new(app::role(direction), workload)?;
    let setup = app::setup(direction, workload)?;
    let mut layout = Layout::default();
    layout.workers = cores;
    layout.window = workload.log_requests;
    layout.hold = hold;
    let mut group = Group::<K>::new(setup, layout, Box::new(device)).map_err(|e| e.to_string())?;
    let sockets = group.sockets();
    let app = App::accept(direction, workload, &sockets, peer.clone(), |now| {
        group.turn(Instant::from_nanos(now));
    })?;
    let mut app = Some(app);
    let driver = |worker| -> Box<dyn Driver> {
        Box::new(LockedDriver {
            worker,
            app: app.take(),
        })
    };
    let drivers = group.into_workers().into_iter().map(driver).collect();
    Ok(Row::new(name, drivers))
}

impl<K: LockKind> Driver for LockedDriver<K> {
    #[inline]
    fn turn(&mut self, now: Instant) -> usize {
        let done = self.worker.turn(now);
        match &mut self.app {
            Some(app) => done + usize::from(app.turn()),
            None => done,
        }
    }

    fn bytes(&self) -> u64 {
        self.app.as_ref().map_or(0, App::bytes)
    }

    fn verify(&mut self, on: bool) {
        if let Some(app) = &mut self.app {
            app.verify(on);
        }
    }

    fn account(&self) -> Account {
        let effects = self.worker.stats();
        let lock = self.worker.lock_stats();
        let pump = self
            .app
            .as_ref()
            .and_then(|_| self.worker.pump_stats())
            .unwrap_or_default();
        Account {
            primary_bytes: effects.delivered_bytes + effects.sent_bytes,
            segments: pump.segments,
            runs: pump.runs,
            log_full: pump.log_full,
            lock_wait_ns: lock.waited_ns,
            lock_acquired: lock.acquisitions,
            misordered: lock.misordered,
            ..Account::default()
        }
    }

    fn sent_again(&self) -> u64 {
        self.app.as_ref().map_or(0, App::sent_again)
    }

    fn out_of_order(&self) -> u64 {
        self.app.as_ref().map_or(0, App::out_of_order)
    }

    fn check(&self) -> Result<(), String> {
        if let Some(app) = &self.app {
            app.check_reordering()?;
        }
        let bad = self.worker.inspect(|state| state.stats().bad_checksum);
        if bad > 0 {
            return Err(format!("{bad} segments had a bad checksum"));
        }
        match self.worker.stats().diverged {
            0 => Ok(()),
            diverged => Err(format!("{diverged} effects found no place")),
        }
    }
}
