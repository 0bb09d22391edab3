//! One log, a copy of the state per core.

#[cfg(feature = "report")]
use std::sync::Arc;
use std::{thread, time};

use dominoes_netstack::ConfigError;
use dominoes_netstack::group::{Layout, ReplicatedGroup, ReplicatedWorker};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::Worker as _;

use crate::drivers::app::App;
#[cfg(feature = "report")]
use crate::drivers::shares::ShareLog;
use crate::drivers::worker::WorkerDriver;
use crate::drivers::{Account, Direction, Driver, Row};
use crate::workload::Workload;

/// A worker whose steps can be observed.
struct ReplicaDriver {
    inner: WorkerDriver<ReplicatedWorker, App>,
    observed: Option<Account>,
    /// Its number, and the log to which it reports its shares, if any.
    #[cfg(feature = "report")]
    shares: Option<(usize, Arc<ShareLog>)>,
    /// Whether it posts its shares.
    reports: bool,
    /// Whether any observation is on.
    watched: bool,
}

pub(crate) fn can(_: Direction, workload: &Workload) -> bool {
    super::processes(workload)
}

/// How long a parked worker sleeps before it checks again.
const REST: time::Duration = time::Duration::from_micros(200);

/// The variant on `cores` cores, with as many replicas. `arrange` changes the default layout, for
/// rows that choose primaries in another way, or let the group choose its replicas.
pub(crate) fn row(
    name: &'static str,
    direction: Direction,
    workload: &Workload,
    cores: usize,
    arrange: impl FnOnce(&mut Layout),
) -> Result<Row, String> {
    let mut layout = Layout::default();
    layout.replicas = cores;
    layout.tuning.log = workload.log_requests;
    arrange(&mut layout);
    let make = |setup, device| {
        let group = ReplicatedGroup::new(setup, layout, device)?;
        Ok::<_, ConfigError>(group.into_by_hand())
    };
    let (group, app) = App::on(direction, workload, make)?;
    let mut app = Some(app);
    let workers = group.into_workers().into_iter();
    let drivers = workers
        .map(|worker| -> Box<dyn Driver> { Box::new(ReplicaDriver::new(worker, app.take())) });
    Ok(Row::new(name, drivers.collect()))
}

impl ReplicaDriver {
    fn new(worker: ReplicatedWorker, app: Option<App>) -> ReplicaDriver {
        ReplicaDriver {
            inner: WorkerDriver::new(worker, app),
            observed: None,
            #[cfg(feature = "report")]
            shares: None,
            reports: false,
            watched: false,
        }
    }

    /// Like [`Driver::turn`], with reports.
    #[cold]
    fn watched_turn(&mut self, now: Instant) -> usize {
        let done = if self.observed.is_some() {
            self.observed_turn(now)
        } else {
            self.plain_turn(now)
        };
        #[cfg(feature = "report")]
        if let Some((id, shares)) = &self.shares {
            let worker = &self.inner.worker;
            let stats = worker.stats().effects;
            let bytes = stats.delivered_bytes + stats.sent_bytes;
            shares.post(*id, bytes, worker.replica().position(), now);
        }
        done
    }

    #[inline]
    fn plain_turn(&mut self, now: Instant) -> usize {
        let done = self.inner.worker.turn(now);
        if done == 0 && self.inner.worker.is_parked() {
            // As a worker's thread in a stack does. Spinning would take time from the other thread
            // of its core.
            thread::sleep(REST);
        }
        done + self.inner.app_turn()
    }

    /// A turn that reads the clock between the steps.
    fn observed_turn(&mut self, now: Instant) -> usize {
        let worker = &mut self.inner.worker;
        let lag = worker.lag();
        let start = time::Instant::now();
        let claimed = worker.claim(now).unwrap_or(0);
        let after_claim = time::Instant::now();
        let parsed = usize::from(worker.parse());
        let before_publishing = time::Instant::now();
        let published = worker.publish(now).unwrap_or(0);
        let after_publishing = time::Instant::now();
        let done = claimed + parsed + published + worker.work() + self.inner.app_turn();
        let end = time::Instant::now();
        if let Some(seen) = &mut self.observed {
            let whole = (end - start).as_nanos() as u64;
            seen.observed_ns += whole;
            seen.turns += 1;
            seen.lag_requests += lag;
            if claimed > 0 {
                seen.claim_ns += (after_claim - start).as_nanos() as u64;
                seen.claimed += claimed as u64;
            }
            if published > 0 {
                seen.rx_pump_ns += (after_publishing - before_publishing).as_nanos() as u64;
            }
            if done == 0 {
                seen.idle_ns += whole;
            }
        }
        done
    }
}

impl Driver for ReplicaDriver {
    #[inline]
    fn turn(&mut self, now: Instant) -> usize {
        if self.watched {
            return self.watched_turn(now);
        }
        self.plain_turn(now)
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn verify(&mut self, on: bool) {
        self.inner.verify(on);
    }

    fn observe(&mut self, on: bool) {
        self.observed = on.then(Account::default);
        self.watched = on || self.reports;
    }

    #[cfg(feature = "report")]
    fn log_shares(&mut self, id: usize, log: Arc<ShareLog>) {
        self.shares = Some((id, log));
        self.reports = true;
        self.watched = true;
    }

    fn account(&self) -> Account {
        let observed = self.observed.unwrap_or_default();
        Account {
            observed_ns: observed.observed_ns,
            claim_ns: observed.claim_ns,
            claimed: observed.claimed,
            rx_pump_ns: observed.rx_pump_ns,
            idle_ns: observed.idle_ns,
            turns: observed.turns,
            lag_requests: observed.lag_requests,
            ..self.inner.account()
        }
    }

    fn sent_again(&self) -> u64 {
        self.inner.sent_again()
    }

    fn out_of_order(&self) -> u64 {
        self.inner.out_of_order()
    }

    fn check(&self) -> Result<(), String> {
        self.inner.check()
    }
}
