//! The driver of every variant of our own stack: one of its workers, and an application.

use dominoes_netstack::stats::{PumpStats, StateStats};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::Worker;

use crate::drivers::{Account, Driver, Row};

/// An application on the sockets of a stack.
pub(crate) trait Application: Send {
    /// Returns whether there was anything to do.
    fn turn(&mut self) -> bool;
    /// Payload bytes that it has finished so far.
    fn bytes(&self) -> u64;
    /// As [`Driver::verify`].
    fn verify(&mut self, on: bool);
    /// As [`Driver::sent_again`].
    fn sent_again(&self) -> u64 {
        0
    }
    /// As [`Driver::out_of_order`].
    fn out_of_order(&self) -> u64 {
        0
    }
    /// Returns the first error, if any.
    fn check(&self) -> Result<(), String>;
    /// Segments or datagrams that the pump received.
    fn seen(pump: &PumpStats) -> u64;
    /// Events that must not happen: how many there were, and a description.
    fn complaints(state: &StateStats) -> Vec<(u64, &'static str)>;
}

/// A worker; one worker of a row also has the application.
pub(crate) struct WorkerDriver<W, A> {
    pub(super) worker: W,
    app: Option<A>,
    /// Adds the counters of this kind of worker to its account.
    more: fn(&W, &mut Account),
    /// Turns while it is observed.
    observed: Option<Account>,
}

impl<W: Worker, A: Application> WorkerDriver<W, A> {
    pub(super) fn new(worker: W, app: Option<A>) -> Self {
        WorkerDriver {
            worker,
            app,
            more: |_, _| (),
            observed: None,
        }
    }

    /// A turn between two looks at the clock.
    #[cold]
    fn observed_turn(&mut self, now: Instant) -> usize {
        let begin = std::time::Instant::now();
        let done = self.worker.turn(now) + self.app_turn();
        if let Some(seen) = &mut self.observed {
            let ns = begin.elapsed().as_nanos() as u64;
            seen.observed_ns += ns;
            seen.turns += 1;
            seen.idle_ns += if done == 0 { ns } else { 0 };
        }
        done
    }

    /// Returns whether the application had anything to do.
    #[inline]
    pub(super) fn app_turn(&mut self) -> usize {
        match &mut self.app {
            Some(app) => usize::from(app.turn()),
            None => 0,
        }
    }
}

/// A row of these workers; the first ones have the applications.
pub(super) fn row<W: Worker + 'static, A: Application + 'static>(
    variant: &'static str,
    workers: impl IntoIterator<Item = W>,
    apps: impl IntoIterator<Item = A>,
) -> Row {
    let mut apps = apps.into_iter();
    let driver = |worker| -> Box<dyn Driver> { Box::new(WorkerDriver::new(worker, apps.next())) };
    Row::new(variant, workers.into_iter().map(driver).collect())
}

/// Like [`row`], with accounts completed by `more`.
#[cfg(feature = "report")]
pub(super) fn row_with<W: Worker + 'static, A: Application + 'static>(
    variant: &'static str,
    workers: impl IntoIterator<Item = W>,
    apps: impl IntoIterator<Item = A>,
    more: fn(&W, &mut Account),
) -> Row {
    let mut apps = apps.into_iter();
    let driver = |worker| -> Box<dyn Driver> {
        let driver = WorkerDriver::new(worker, apps.next());
        Box::new(WorkerDriver { more, ..driver })
    };
    Row::new(variant, workers.into_iter().map(driver).collect())
}

/// Fails if `worker` has counted an error.
pub(super) fn check<A: Application>(worker: &impl Worker) -> Result<(), String> {
    let mut wrong = vec![(worker.stats().effects.diverged, "effects found no place")];
    worker.inspect(&mut |replica| wrong.extend(A::complaints(&replica.stats())));
    match wrong.iter().find(|(count, _)| *count > 0) {
        None => Ok(()),
        Some((count, what)) => Err(format!("{count} {what}")),
    }
}

impl<W: Worker, A: Application> Driver for WorkerDriver<W, A> {
    #[inline]
    fn turn(&mut self, now: Instant) -> usize {
        match self.observed {
            None => self.worker.turn(now) + self.app_turn(),
            Some(_) => self.observed_turn(now),
        }
    }

    fn observe(&mut self, on: bool) {
        self.observed = on.then(Account::default);
    }

    fn bytes(&self) -> u64 {
        self.app.as_ref().map_or(0, A::bytes)
    }

    fn verify(&mut self, on: bool) {
        if let Some(app) = &mut self.app {
            app.verify(on);
        }
    }

    fn account(&self) -> Account {
        let stats = self.worker.stats();
        let pump = self.app.as_ref().and_then(|_| self.worker.pump_stats());
        let pump = pump.unwrap_or_default();
        let mut account = Account {
            primary_bytes: stats.effects.delivered_bytes + stats.effects.sent_bytes,
            segments: A::seen(&pump),
            runs: pump.runs,
            log_full: pump.log_full,
            lock_wait_ns: stats.lock.waited_ns,
            lock_acquired: stats.lock.acquisitions,
            misordered: stats.lock.misordered,
            ..self.observed.unwrap_or_default()
        };
        (self.more)(&self.worker, &mut account);
        account
    }

    fn sent_again(&self) -> u64 {
        self.app.as_ref().map_or(0, A::sent_again)
    }

    fn out_of_order(&self) -> u64 {
        self.app.as_ref().map_or(0, A::out_of_order)
    }

    fn check(&self) -> Result<(), String> {
        self.app.as_ref().map_or(Ok(()), A::check)?;
        check::<A>(&self.worker)
    }
}

#[cfg(all(test, feature = "report"))]
mod tests {
    use crate::drivers::{Direction, pipelined};
    use crate::workload::Workload;

    #[test]
    fn an_observed_worker_counts_its_turns_and_the_idle_ones_among_them() {
        let workload = Workload {
            pool_bytes: 1 << 20,
            ..Workload::default()
        };
        let mut row = pipelined::row(Direction::Receive, &workload, 2).unwrap();
        for on in [true, false] {
            row.drivers.iter_mut().for_each(|driver| driver.observe(on));
            row.move_until(row.bytes() + (1 << 20)).unwrap();
            for seen in row.drivers.iter().map(|driver| driver.account()) {
                assert_eq!((seen.turns > 0, seen.observed_ns > 0), (on, on));
                assert!(seen.idle_ns <= seen.observed_ns);
            }
        }
    }
}
