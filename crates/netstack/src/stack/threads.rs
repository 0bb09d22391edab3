//! The threads of a stack: one for each replica, and others that replace those that fail.

use std::collections::VecDeque;
#[cfg(feature = "kill")]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time;

use dominoes::{Context, ContextHandle, Domain, Meter, Turn};

use super::{Clock, POST_EVERY, SHOW_EVERY};
use crate::error::{MembershipError, StackError};
use crate::group::{JoiningWorker, Shared, Worker};
use crate::io::view::{Counted, Gauge};

/// The threads of a stack, and everything that another one needs.
pub(super) struct Threads {
    /// Begins the names of the threads: tells one group from another.
    name_prefix: String,
    cores: Vec<usize>,
    clock: Clock,
    group: Option<Arc<Shared>>,
    contexts: Mutex<Vec<ContextHandle>>,
    /// How many replicas sleep.
    parked: AtomicUsize,
    failures: Mutex<Failures>,
    failed: Condvar,
    /// A bit for each replica whose thread is to unwind.
    #[cfg(feature = "kill")]
    killed: AtomicU64,
}

#[derive(Default)]
struct Failures {
    replicas: VecDeque<usize>,
    over: bool,
}

impl Threads {
    pub(super) fn new(
        name_prefix: String,
        cores: Vec<usize>,
        clock: Clock,
        group: Option<Arc<Shared>>,
    ) -> Arc<Threads> {
        Arc::new(Threads {
            name_prefix,
            cores,
            clock,
            group,
            contexts: Mutex::default(),
            parked: AtomicUsize::new(0),
            failures: Mutex::default(),
            failed: Condvar::new(),
            #[cfg(feature = "kill")]
            killed: AtomicU64::new(0),
        })
    }

    pub(super) fn contexts(&self) -> MutexGuard<'_, Vec<ContextHandle>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread of replica `replica`.
    pub(super) fn spawn(&self, replica: usize, domain: Box<dyn Domain>) -> Result<(), StackError> {
        let core = self.cores.get(replica).copied();
        let context = Context::spawn(&format!("dominoes-{replica}"), core, vec![domain])?;
        let mut contexts = self.contexts();
        contexts.retain(|context| !context.is_finished());
        contexts.push(context);
        Ok(())
    }

    /// Starts the thread of a worker that begins the group.
    pub(super) fn spawn_worker(self: &Arc<Self>, worker: Worker) -> Result<(), StackError> {
        self.spawn_occupant(worker.id(), Occupant::Worker(Box::new(worker)))
    }

    fn spawn_occupant(
        self: &Arc<Self>,
        replica: usize,
        occupant: Occupant,
    ) -> Result<(), StackError> {
        let domain = WorkerDomain {
            name: format!("{}replica {replica}", self.name_prefix),
            occupant,
            replica,
            threads: Arc::clone(self),
            turns: 0,
            gauge: Gauge::default(),
        };
        self.spawn(replica, Box::new(domain))
    }

    /// Starts the thread that replaces those that fail.
    pub(super) fn watch(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let threads = Arc::clone(self);
        let watch = move || {
            while let Some(replica) = threads.next_failure() {
                // If there is no state to take over, or no thread can be started, the others go on.
                let _ = threads.add(Some(replica));
            }
        };
        let named = std::thread::Builder::new().name("dominoes-watch".into());
        named.spawn(watch)
    }

    pub(super) fn group(&self) -> Option<&Arc<Shared>> {
        self.group.as_ref()
    }

    /// Lets the thread of replica `replica` unwind when it next can.
    #[cfg(feature = "kill")]
    pub(super) fn kill(&self, replica: usize) {
        self.killed.fetch_or(1 << replica, Ordering::Relaxed);
        if let Some(group) = &self.group {
            group.work_event.notify_all();
            group.world.wake_pump();
        }
    }

    /// Starts a thread that joins, in slot `replica` or in any free one.
    pub(super) fn add(self: &Arc<Self>, replica: Option<usize>) -> Result<usize, StackError> {
        let group = self.group.as_ref().ok_or(MembershipError::NoLog)?;
        let joining = JoiningWorker::new(group, replica, ())?;
        let replica = joining.replica();
        self.spawn_occupant(replica, Occupant::Joining(joining))?;
        Ok(replica)
    }

    /// Reports that replica `replica` has failed: it is gone, and had not left.
    fn report_failure(&self, replica: usize) {
        self.failures().replicas.push_back(replica);
        self.failed.notify_all();
    }

    /// Waits for the next failure. `None` when no replica is to be replaced any more.
    fn next_failure(&self) -> Option<usize> {
        let mut failures = self.failures();
        loop {
            if failures.over {
                return None;
            }
            if let Some(replica) = failures.replicas.pop_front() {
                return Some(replica);
            }
            failures = self
                .failed
                .wait(failures)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn end_watch(&self) {
        if let Some(group) = &self.group {
            // Parked workers wake up and see that the stack is shut down.
            group.unpark_event.notify_all();
        }
        self.failures().over = true;
        self.failed.notify_all();
    }
}

/// How long a worker sleeps at most while another one is awake, or has work, and may be held up.
const RECHECK: time::Duration = time::Duration::from_millis(1);

/// What a replica's thread runs.
enum Occupant {
    /// A worker that waits for its state.
    Joining(JoiningWorker),
    Worker(Box<Worker>),
    /// Nothing any more.
    Gone,
}

struct WorkerDomain {
    name: String,
    occupant: Occupant,
    replica: usize,
    threads: Arc<Threads>,
    turns: u32,
    gauge: Gauge,
}

/// Posts the counters of a replica, and those of the receive pump if it is free.
fn post(worker: &Worker) {
    let shared = worker.shared();
    let state = worker.replica().stats();
    let pump = shared.rx.try_take().map(|side| side.pump.stats);
    shared.world.post(|posted| {
        posted.state = state;
        posted.pump = pump.unwrap_or(posted.pump);
    });
}

/// Shows how busy its thread is.
fn show(worker: &mut Worker, gauge: &mut Gauge) {
    let stats = worker.stats();
    let counted = Counted {
        handled: worker.replica().stats().requests,
        primary: stats.requests,
        steals: stats.stolen,
    };
    let lag = worker.lag();
    gauge.show(counted, lag);
}

impl WorkerDomain {
    /// Becomes a worker if the state is there.
    fn join(&mut self) -> Turn {
        let Occupant::Joining(joining) = &mut self.occupant else {
            return Turn::Finished;
        };
        if joining.shared().world.is_down() {
            return Turn::Finished;
        }
        match joining.try_join() {
            Some(worker) => {
                self.occupant = Occupant::Worker(Box::new(worker));
                Turn::Worked
            }
            None => Turn::Idle,
        }
    }

    #[cfg(feature = "kill")]
    fn is_killed(&self) -> bool {
        let killed = &self.threads.killed;
        let me = 1 << self.replica;
        killed.load(Ordering::Relaxed) & me != 0
            && killed.fetch_and(!me, Ordering::Relaxed) & me != 0
    }
}

impl Domain for WorkerDomain {
    fn run(&mut self) -> Turn {
        #[cfg(feature = "kill")]
        if matches!(self.occupant, Occupant::Worker(_)) && self.is_killed() {
            std::panic::resume_unwind(Box::new("killed"));
        }
        let Occupant::Worker(worker) = &mut self.occupant else {
            return self.join();
        };
        let world = &worker.shared().world;
        if world.is_down() {
            return Turn::Finished;
        }
        if world.view.is_asked() && worker.is_active() {
            world.view.answer(worker.replica());
        }
        match worker.turn(self.threads.clock.now()) {
            0 if worker.has_left() => {
                self.occupant = Occupant::Gone;
                Turn::Finished
            }
            0 => {
                if worker.lag() > 0 {
                    self.gauge.meter().waited();
                }
                Turn::Idle
            }
            _ => {
                self.turns = self.turns.wrapping_add(1);
                if self.turns.is_multiple_of(SHOW_EVERY) {
                    show(worker, &mut self.gauge);
                }
                if self.turns.is_multiple_of(POST_EVERY) {
                    post(worker);
                }
                Turn::Worked
            }
        }
    }

    /// The last worker to sleep sleeps in the device, and holds the receive pump meanwhile. The
    /// others sleep on an event that is notified when something is published.
    fn park(&mut self) {
        let threads = Arc::clone(&self.threads);
        let worker = match &mut self.occupant {
            Occupant::Worker(worker) => worker,
            Occupant::Joining(joining) => {
                // The worker that gives the state notifies this event. It may be held up.
                let event = &joining.shared().work_event;
                let key = event.prepare();
                event.wait(key, Some(RECHECK));
                return;
            }
            Occupant::Gone => return,
        };
        if worker.is_parked() {
            let shared = worker.shared();
            let key = shared.unpark_event.prepare();
            if worker.is_parked() && !shared.world.is_down() {
                shared.unpark_event.wait(key, None);
            }
            return;
        }
        worker.put_back();
        post(worker);
        show(worker, &mut self.gauge);
        let shared = Arc::clone(worker.shared());
        let world = &shared.world;
        // A hint for choosing where to sleep: correctness relies on the pump being exclusive, and
        // on the event.
        let last = threads.parked.fetch_add(1, Ordering::Relaxed) + 1 >= shared.active_count();
        if last && let Some(mut side) = shared.rx.try_take() {
            world.before_sleep();
            if !worker.has_work() && !side.pump.has_work() && !world.is_down() {
                let deadline = worker.next_deadline().min(side.pump.next_deadline());
                let until = threads.clock.until(deadline);
                let again = worker.has_pending_effects().then_some(RECHECK);
                let next_try = shared.tx.try_take().and_then(|tx| tx.next_try());
                let times = again.into_iter().chain(until).chain(next_try);
                side.pump.wait(times.min());
            }
            world.after_sleep();
        } else {
            let key = shared.work_event.prepare();
            if worker.has_work() || world.is_down() {
                drop(key);
            } else {
                // While a worker is awake, none sleeps in the device. That worker may be held up,
                // so this one comes back for the pumps, and for late work.
                let again = !last || worker.has_pending_effects();
                shared.work_event.wait(key, again.then_some(RECHECK));
            }
        }
        threads.parked.fetch_sub(1, Ordering::Relaxed);
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn id(&self) -> u64 {
        self.replica as u64
    }

    fn meter(&self) -> Option<Arc<Meter>> {
        Some(Arc::clone(self.gauge.meter()))
    }
}

impl Drop for WorkerDomain {
    fn drop(&mut self) {
        let occupant = core::mem::replace(&mut self.occupant, Occupant::Gone);
        let Occupant::Worker(worker) = occupant else {
            return;
        };
        let is_down = worker.shared().world.is_down();
        // The slot is free when the failure is reported.
        drop(worker);
        if !is_down {
            self.threads.report_failure(self.replica);
        }
    }
}
