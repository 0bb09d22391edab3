//! The threads of a stack: one for each worker, and replacements for threads that fail.

use std::collections::VecDeque;
#[cfg(feature = "kill")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use dominoes::{Context, ContextHandle, Domain, Meter, Turn};

use super::Clock;
use super::core_clock::CoreClock;
use super::driven::DrivenWorker;
use super::handover::Done;
use crate::error::{ConfigError, StackError};
use crate::io::sleep::RECHECK;
use crate::io::view::Gauge;
use crate::io::world::World;
use crate::socket::poller::hold_wakeups;
use crate::time::{Duration, Instant};
use crate::variants::{Handle, Joining, Worker};

/// A busy thread posts its counters and its load this often, however long its turns take: also if
/// it fails soon.
const POST_INTERVAL: Duration = Duration::from_millis(2);

/// The threads of a stack, and everything that starting another one requires.
pub(super) struct Threads {
    /// Start of the thread names; distinguishes groups.
    name_prefix: String,
    cores: Vec<usize>,
    clock: Clock,
    world: Arc<World>,
    handle: Arc<dyn Handle>,
    /// The first worker, if threads that wait may drive it.
    driven: Option<Arc<DrivenWorker>>,
    contexts: Mutex<Vec<ContextHandle>>,
    failures: Mutex<Failures>,
    failed: Condvar,
    /// A bit for each replica whose thread must unwind.
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
        world: Arc<World>,
        handle: Arc<dyn Handle>,
        driven: Option<Arc<DrivenWorker>>,
    ) -> Arc<Threads> {
        Arc::new(Threads {
            name_prefix,
            cores,
            clock,
            world,
            handle,
            driven,
            contexts: Mutex::default(),
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

    /// Starts the thread of a worker.
    pub(super) fn spawn(self: &Arc<Self>, worker: Box<dyn Worker>) -> Result<(), StackError> {
        self.spawn_occupant(worker.id(), worker.name(), Occupant::Worker(worker))
    }

    fn spawn_occupant(
        self: &Arc<Self>,
        id: usize,
        name: String,
        occupant: Occupant,
    ) -> Result<(), StackError> {
        let domain = WorkerDomain {
            name: format!("{}{name}", self.name_prefix),
            id,
            occupant,
            threads: Arc::clone(self),
            next_post: Instant::ZERO,
            gauge: Gauge::default(),
            core_clock: self.handle.autoscales().then(CoreClock::default),
        };
        let core = self.cores.get(id).copied();
        let domain: Box<dyn Domain> = match self.driven.as_ref().filter(|_| id == 0) {
            Some(driven) => Box::new(driven.domain(domain)),
            None => Box::new(domain),
        };
        let context = Context::spawn(&format!("dominoes-{id}"), core, vec![domain])?;
        let mut contexts = self.contexts();
        contexts.retain(|context| !context.is_finished());
        let is_pinned = context.pinned();
        contexts.push(context);
        match core.filter(|_| !is_pinned) {
            Some(core) => Err(StackError::Config(ConfigError::OutOfRange {
                field: "pin",
                value: core as u64,
                allowed: "the number of a core that this process may use",
            })),
            None => Ok(()),
        }
    }

    /// Starts the thread that replaces failed workers.
    pub(super) fn watch(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let threads = Arc::clone(self);
        let watch = move || {
            while let Some(replica) = threads.next_failure() {
                // If there is no state to take over, or no thread can be started, the other
                // replicas continue without it.
                let _ = threads.add(Some(replica));
            }
        };
        let named = std::thread::Builder::new().name("dominoes-watch".into());
        named.spawn(watch)
    }

    pub(super) fn handle(&self) -> &dyn Handle {
        &*self.handle
    }

    /// Makes the thread of replica `replica` unwind in its next turn in which it can be replaced.
    #[cfg(feature = "kill")]
    pub(super) fn kill(&self, replica: usize) {
        self.killed.fetch_or(1 << replica, Ordering::Relaxed);
        self.handle.wake_all();
        self.world.wake_pump();
    }

    /// Starts a thread that joins the group, in slot `replica` or in any free one.
    pub(super) fn add(self: &Arc<Self>, replica: Option<usize>) -> Result<usize, StackError> {
        let joining = self.handle.join(replica)?;
        let replica = joining.id();
        let name = format!("replica {replica}");
        self.spawn_occupant(replica, name, Occupant::Joining(joining))?;
        Ok(replica)
    }

    /// Reports that the thread of replica `replica` failed: it ended without leaving.
    fn report_failure(&self, replica: usize) {
        self.failures().replicas.push_back(replica);
        self.failed.notify_all();
    }

    /// Waits for the next failure. `None` once failed replicas are no longer replaced.
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

    /// The worker that threads that wait may drive.
    pub(super) fn driven(&self) -> Option<&DrivenWorker> {
        self.driven.as_deref()
    }

    pub(super) fn end_watch(&self) {
        // Sleeping workers wake up and see that the stack is shut down.
        self.handle.wake_all();
        self.failures().over = true;
        self.failed.notify_all();
    }
}

/// The work of a worker's thread.
enum Occupant {
    /// A replica that waits for a copy of the state.
    Joining(Box<dyn Joining>),
    Worker(Box<dyn Worker>),
    /// A worker that has left.
    Gone,
}

/// What the thread of a worker runs.
pub(super) struct WorkerDomain {
    name: String,
    id: usize,
    occupant: Occupant,
    threads: Arc<Threads>,
    /// When the counters and the gauge of load are to be posted.
    next_post: Instant,
    gauge: Gauge,
    /// For autoscaling, once the thread runs.
    core_clock: Option<CoreClock>,
}

impl WorkerDomain {
    /// Becomes a worker once it has the state.
    fn join(&mut self) -> Turn {
        match &mut self.occupant {
            Occupant::Joining(joining) if !self.threads.world.is_down() => {
                let Some(worker) = joining.try_join() else {
                    return Turn::Idle;
                };
                self.occupant = Occupant::Worker(worker);
                Turn::Worked
            }
            _ => Turn::Finished,
        }
    }

    /// Whether it is a worker without which the others have nothing to do, and which works without
    /// them.
    pub(super) fn is_alone(&self) -> bool {
        #[cfg(feature = "kill")]
        if self.threads.killed.load(Ordering::Relaxed) & 1 << self.id != 0 {
            return false;
        }
        matches!(&self.occupant, Occupant::Worker(worker) if worker.is_alone())
    }

    /// What its worker has done.
    pub(super) fn done(&self) -> Done {
        let Occupant::Worker(worker) = &self.occupant else {
            return Done::default();
        };
        let effects = worker.stats().effects;
        Done {
            frames: effects.frames,
            sent: effects.sent_bytes,
            received: effects.delivered_bytes,
        }
    }

    /// Sleeps in the device until there may be work, or until the stack has the age `until`. `now`
    /// is its age.
    pub(super) fn sleep_until(&mut self, now: Instant, until: Instant) {
        let Occupant::Worker(worker) = &mut self.occupant else {
            return;
        };
        worker.post();
        self.gauge.show(worker.stats(), 0);
        let mut deadline = worker.next_deadline().min(until);
        if worker.waits_for_others() {
            deadline = deadline.min(now + RECHECK.into());
        }
        worker.wait_alone((deadline, now), &mut || false);
    }

    /// Ends the thread. If the worker has left the group, frees its slot at once.
    fn finish(&mut self) -> Turn {
        if !self.threads.world.is_down() {
            self.occupant = Occupant::Gone;
        }
        Turn::Finished
    }

    #[cfg(feature = "kill")]
    fn is_killed(&self) -> bool {
        let killed = &self.threads.killed;
        let me = 1 << self.id;
        killed.load(Ordering::Relaxed) & me != 0
            && matches!(&self.occupant, Occupant::Worker(worker) if worker.is_replaceable())
            && killed.fetch_and(!me, Ordering::Relaxed) & me != 0
    }
}

impl Domain for WorkerDomain {
    fn run(&mut self) -> Turn {
        #[cfg(feature = "kill")]
        if self.is_killed() {
            std::panic::resume_unwind(Box::new("killed"));
        }
        let Occupant::Worker(worker) = &mut self.occupant else {
            return self.join();
        };
        if !worker.attend() {
            return self.finish();
        }
        let now = self.threads.clock.now();
        if let Some(time) = self.core_clock.as_mut().and_then(|clock| clock.read(now)) {
            worker.note_core_time(time);
        }
        if hold_wakeups(|| worker.turn(now)) > 0 && !worker.is_aside() {
            if now >= self.next_post {
                let lag = worker.lag();
                self.gauge.show(worker.stats(), lag);
                worker.post();
                self.next_post = now + POST_INTERVAL;
            }
            return Turn::Worked;
        }
        if worker.rest(now) {
            return Turn::Worked;
        }
        if !worker.attend() {
            return self.finish();
        }
        if worker.lag() > 0 {
            self.gauge.meter().waited();
        }
        Turn::Idle
    }

    fn park(&mut self) {
        match &mut self.occupant {
            Occupant::Worker(worker) => {
                worker.post();
                let lag = worker.lag();
                self.gauge.show(worker.stats(), lag);
                worker.wait(self.threads.clock.now());
            }
            Occupant::Joining(joining) => joining.wait(),
            Occupant::Gone => {}
        }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn id(&self) -> u64 {
        self.id as u64
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
        let has_failed = worker.is_replaceable() && !self.threads.world.is_down();
        // Free the slot before the failure is reported.
        drop(worker);
        if has_failed {
            self.threads.report_failure(self.id);
        }
    }
}
