//! The threads of a stack: one for each replica, and others in place of those that die.

use std::collections::VecDeque;
#[cfg(feature = "kill")]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time;

use dominoes::{Context, ContextHandle, Domain, Meter, Turn};

use super::{Clock, POST_EVERY, SHOW_EVERY};
use crate::engine::view::{Counted, Gauge};
use crate::error::{MembersError, StackError};
use crate::variants::replicated::{Joining, Shared, Worker};

/// The threads of a stack, and all that another one needs.
pub(super) struct Threads {
    /// Which group of several they are, for their names.
    whose: String,
    cores: Vec<usize>,
    clock: Clock,
    group: Option<Arc<Shared>>,
    contexts: Mutex<Vec<ContextHandle>>,
    /// How many replicas sleep.
    parked: AtomicUsize,
    deaths: Mutex<Deaths>,
    died: Condvar,
    /// Seats whose thread is to unwind.
    #[cfg(feature = "kill")]
    killed: AtomicU64,
}

#[derive(Default)]
struct Deaths {
    seats: VecDeque<usize>,
    over: bool,
}

impl Threads {
    pub(super) fn new(
        whose: String,
        cores: Vec<usize>,
        clock: Clock,
        group: Option<Arc<Shared>>,
    ) -> Arc<Threads> {
        Arc::new(Threads {
            whose,
            cores,
            clock,
            group,
            contexts: Mutex::default(),
            parked: AtomicUsize::new(0),
            deaths: Mutex::default(),
            died: Condvar::new(),
            #[cfg(feature = "kill")]
            killed: AtomicU64::new(0),
        })
    }

    pub(super) fn contexts(&self) -> MutexGuard<'_, Vec<ContextHandle>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deaths(&self) -> MutexGuard<'_, Deaths> {
        self.deaths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread that belongs to `seat`.
    pub(super) fn spawn(&self, seat: usize, domain: Box<dyn Domain>) -> Result<(), StackError> {
        let core = self.cores.get(seat).copied();
        let context = Context::spawn(&format!("dominoes-{seat}"), core, vec![domain])?;
        let mut contexts = self.contexts();
        contexts.retain(|context| !context.is_finished());
        contexts.push(context);
        Ok(())
    }

    /// Starts the thread of one of those that begin the group.
    pub(super) fn spawn_worker(self: &Arc<Self>, worker: Worker) -> Result<(), StackError> {
        self.spawn_member(worker.id(), Member::Sitting(Box::new(worker)))
    }

    fn spawn_member(self: &Arc<Self>, seat: usize, member: Member) -> Result<(), StackError> {
        let domain = WorkerDomain {
            name: format!("{}replica {seat}", self.whose),
            member,
            seat,
            threads: Arc::clone(self),
            turns: 0,
            gauge: Gauge::default(),
        };
        self.spawn(seat, Box::new(domain))
    }

    /// Starts the thread that replaces those that die.
    pub(super) fn watch(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let threads = Arc::clone(self);
        let watch = move || {
            while let Some(seat) = threads.next_death() {
                // Without anybody to take the state from, or a thread to be had, the others go on as they are.
                let _ = threads.add(Some(seat));
            }
        };
        let named = std::thread::Builder::new().name("dominoes-watch".into());
        named.spawn(watch)
    }

    pub(super) fn group(&self) -> Option<&Arc<Shared>> {
        self.group.as_ref()
    }

    /// The thread on seat `seat` unwinds when it next can.
    #[cfg(feature = "kill")]
    pub(super) fn kill(&self, seat: usize) {
        self.killed.fetch_or(1 << seat, Ordering::Relaxed);
        if let Some(group) = &self.group {
            group.bell.notify_all();
            group.world.ring();
        }
    }

    /// Starts a thread that joins, on seat `seat` or any that is free.
    pub(super) fn add(self: &Arc<Self>, seat: Option<usize>) -> Result<usize, StackError> {
        let group = self.group.as_ref().ok_or(MembersError::NoLog)?;
        let joining = Joining::new(group, seat, ())?;
        let seat = joining.seat();
        self.spawn_member(seat, Member::Joining(joining))?;
        Ok(seat)
    }

    /// The replica on seat `seat` is no more, and had not left.
    fn report_death(&self, seat: usize) {
        self.deaths().seats.push_back(seat);
        self.died.notify_all();
    }

    /// Waits for the next death; `None` when there is nobody to be replaced any more.
    fn next_death(&self) -> Option<usize> {
        let mut deaths = self.deaths();
        loop {
            if deaths.over {
                return None;
            }
            if let Some(seat) = deaths.seats.pop_front() {
                return Some(seat);
            }
            deaths = self
                .died
                .wait(deaths)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn end_watch(&self) {
        if let Some(group) = &self.group {
            // Who rests sees that the world is down.
            group.rest.notify_all();
        }
        self.deaths().over = true;
        self.died.notify_all();
    }
}

/// How long a worker sleeps at most while another one is up, or has something to do, that may be held up.
const LOOK_AGAIN: time::Duration = time::Duration::from_millis(1);

/// Who sits on a seat.
enum Member {
    /// Somebody who waits for the state.
    Joining(Joining),
    Sitting(Box<Worker>),
    /// Nobody any more.
    Gone,
}

struct WorkerDomain {
    name: String,
    member: Member,
    seat: usize,
    threads: Arc<Threads>,
    turns: u32,
    gauge: Gauge,
}

/// Posts what a replica knows, and what the pump saw if it is free.
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
    /// Sits down if there is a state to sit down with.
    fn join(&mut self) -> Turn {
        let Member::Joining(joining) = &mut self.member else {
            return Turn::Finished;
        };
        if joining.shared().world.is_down() {
            return Turn::Finished;
        }
        match joining.try_sit() {
            Some(worker) => {
                self.member = Member::Sitting(Box::new(worker));
                Turn::Worked
            }
            None => Turn::Idle,
        }
    }

    #[cfg(feature = "kill")]
    fn is_killed(&self) -> bool {
        let killed = &self.threads.killed;
        let me = 1 << self.seat;
        killed.load(Ordering::Relaxed) & me != 0
            && killed.fetch_and(!me, Ordering::Relaxed) & me != 0
    }
}

impl Domain for WorkerDomain {
    fn run(&mut self) -> Turn {
        #[cfg(feature = "kill")]
        if matches!(self.member, Member::Sitting(_)) && self.is_killed() {
            std::panic::resume_unwind(Box::new("killed"));
        }
        let Member::Sitting(worker) = &mut self.member else {
            return self.join();
        };
        let world = &worker.shared().world;
        if world.is_down() {
            return Turn::Finished;
        }
        if world.view.is_asked() && worker.is_member() {
            world.view.answer(worker.replica());
        }
        match worker.turn(self.threads.clock.now()) {
            0 if worker.has_left() => {
                self.member = Member::Gone;
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

    /// The last to park sleeps in the device with the receive pump in its hands; the others on the bell,
    /// which rings when something is published.
    fn park(&mut self) {
        let threads = Arc::clone(&self.threads);
        let worker = match &mut self.member {
            Member::Sitting(worker) => worker,
            Member::Joining(joining) => {
                // Who gives it the state rings; who should may be held up.
                let bell = &joining.shared().bell;
                let key = bell.prepare();
                bell.wait(key, Some(LOOK_AGAIN));
                return;
            }
            Member::Gone => return,
        };
        if worker.is_resting() {
            let shared = worker.shared();
            let key = shared.rest.prepare();
            if worker.is_resting() && !shared.world.is_down() {
                shared.rest.wait(key, None);
            }
            return;
        }
        worker.put_back();
        post(worker);
        show(worker, &mut self.gauge);
        let shared = Arc::clone(worker.shared());
        let world = &shared.world;
        // A hint for who sleeps where: the role and the bell are what is relied on.
        let last = threads.parked.fetch_add(1, Ordering::Relaxed) + 1 >= shared.members();
        if last && let Some(mut side) = shared.rx.try_take() {
            world.before_sleep();
            if !worker.has_work() && !side.pump.has_work() && !world.is_down() {
                let deadline = worker.next_deadline().min(side.pump.next_deadline());
                let until = threads.clock.until(deadline);
                let again = worker.is_behind().then_some(LOOK_AGAIN);
                let next_try = shared.tx.try_take().and_then(|tx| tx.next_try());
                let times = again.into_iter().chain(until).chain(next_try);
                side.pump.wait(times.min());
            }
            world.after_sleep();
        } else {
            let key = shared.bell.prepare();
            if worker.has_work() || world.is_down() {
                drop(key);
            } else {
                // While somebody is up, nobody sleeps in the device. Should that one be held up, this one comes
                // back for the pumps, and for what is late.
                let again = !last || worker.is_behind();
                shared.bell.wait(key, again.then_some(LOOK_AGAIN));
            }
        }
        threads.parked.fetch_sub(1, Ordering::Relaxed);
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn id(&self) -> u64 {
        self.seat as u64
    }

    fn meter(&self) -> Option<Arc<Meter>> {
        Some(Arc::clone(self.gauge.meter()))
    }
}

impl Drop for WorkerDomain {
    fn drop(&mut self) {
        let member = core::mem::replace(&mut self.member, Member::Gone);
        let Member::Sitting(worker) = member else {
            return;
        };
        let is_down = worker.shared().world.is_down();
        // The seat is free when it is told of.
        drop(worker);
        if !is_down {
            self.threads.report_death(self.seat);
        }
    }
}
