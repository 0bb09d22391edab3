//! Lets a thread of the application that waits drive the stack's only worker.
//!
//! A frame then wakes one thread, which takes it from the device, processes it, and returns to the
//! application. A thread in between would cost a second wake-up for each request, and a third
//! thread that needs a core.
//!
//! [`Handover`] chooses the driving thread. A stack hands its worker over if it chooses the number
//! of its threads, has one group, and one replica is active.

use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::{Arc, Weak};

use dominoes::{Domain, Meter, Turn, Watch};
use dominoes_drivers::wait_beside;

use super::Clock;
use super::handover::{Done, Handover};
use super::threads::WorkerDomain;
use crate::io::sleep::{Driven, FULL, Wait, now};
use crate::io::world::World;
use crate::time::Instant;
use crate::variants::Handle;

/// The worker of a stack, which its own thread or a thread that waits drives.
pub(super) struct DrivenWorker {
    handover: Handover<Box<WorkerDomain>>,
    world: Arc<World>,
    handle: Arc<dyn Handle>,
    clock: Clock,
    bell: Arc<dyn Watch>,
}

/// Wakes the thread that sleeps in the device.
#[derive(Debug)]
struct Bell(Weak<World>);

impl Watch for Bell {
    fn is_due(&self) -> bool {
        true
    }

    fn fire(self: Arc<Self>) {
        if let Some(world) = self.0.upgrade() {
            world.wake_device();
        }
    }
}

impl DrivenWorker {
    pub(super) fn new(world: Arc<World>, handle: Arc<dyn Handle>, clock: Clock) -> Arc<Self> {
        Arc::new(DrivenWorker {
            handover: Handover::new(),
            bell: Arc::new(Bell(Arc::downgrade(&world))),
            world,
            handle,
            clock,
        })
    }

    /// The domain of the worker's own thread.
    pub(super) fn domain(self: &Arc<Self>, worker: WorkerDomain) -> DrivenDomain {
        DrivenDomain {
            id: worker.id(),
            name: worker.name().to_owned(),
            meter: worker.meter(),
            worker: Some(Box::new(worker)),
            driven: Arc::clone(self),
        }
    }

    /// Ends the deputy.
    pub(super) fn end(&self) {
        self.handover.end();
        self.world.wake_device();
    }

    /// Waits until no thread has the worker, and drops it.
    pub(super) fn drop_worker(&self) {
        drop(self.handover.take_last());
    }

    fn take(&self) -> Option<Held<'_>> {
        if !self.handle.has_one_active() {
            return None;
        }
        let worker = self
            .handover
            .take(self.clock.now(), || self.world.wake_device());
        worker.map(|worker| Held::new(self, worker))
    }
}

impl Driven for DrivenWorker {
    fn drive(&self, wait: &mut Wait<'_>) -> bool {
        if wait.beside.is_some() && !self.world.has_descriptor {
            return false;
        }
        let Some(mut held) = self.take() else {
            return false;
        };
        let is_over = held.drive(wait);
        held.end(wait.leaves);
        is_over
    }

    fn pass(&self) {
        if let Some(worker) = self.handover.take_unused(self.clock.now()) {
            let mut held = Held::new(self, worker);
            held.turn();
            held.end(Some(FULL));
        }
    }

    fn begin_wait(&self) {
        if self.handover.begin_wait(self.clock.now()) {
            self.world.wake_device();
        }
    }

    fn end_wait(&self) {
        self.handover.end_wait();
    }
}

/// The worker, while a thread that waits has it.
struct Held<'a> {
    driven: &'a DrivenWorker,
    worker: Option<Box<WorkerDomain>>,
    /// Whether the stack had nothing to do.
    has_slept: bool,
    /// What it had done before.
    before: Done,
}

impl<'a> Held<'a> {
    fn new(driven: &'a DrivenWorker, worker: Box<WorkerDomain>) -> Self {
        Held {
            driven,
            before: worker.done(),
            worker: Some(worker),
            has_slept: false,
        }
    }

    /// Runs a turn. A panic in it ends the worker, as it would end the worker's thread, and not
    /// the application's.
    fn turn(&mut self) -> Turn {
        let Some(worker) = &mut self.worker else {
            return Turn::Finished;
        };
        catch_unwind(AssertUnwindSafe(|| worker.run())).unwrap_or_else(|_| {
            self.worker = None;
            Turn::Finished
        })
    }

    /// Returns the worker after a wait that `leaves` the driving to others if that pays.
    fn end(self, leaves: Option<u64>) {
        let Some(done) = self.worker.as_ref().map(|worker| worker.done()) else {
            return;
        };
        let least = leaves.filter(|_| !self.has_slept || done.is_much_since(self.before));
        let driven = self.driven;
        drop(self);
        driven.handover.note_wait(least, done, driven.clock.now());
    }

    fn drive(&mut self, wait: &mut Wait<'_>) -> bool {
        let driven = self.driven;
        loop {
            let turn = self.turn();
            if (wait.is_over)() {
                return true;
            }
            let left = wait.left(now());
            if left.is_some_and(|left| left.is_zero()) {
                return true;
            }
            let is_alone = self.worker.as_ref().is_some_and(|worker| worker.is_alone());
            if turn == Turn::Finished || !is_alone || driven.handover.is_wanted() {
                return false;
            }
            if turn == Turn::Idle && self.sleep(wait) {
                return true;
            }
        }
    }

    /// Sleeps in the device until there may be news. Returns whether `wait.beside` is readable.
    fn sleep(&mut self, wait: &mut Wait<'_>) -> bool {
        let driven = self.driven;
        let Some(worker) = &mut self.worker else {
            return false;
        };
        if let Some(event) = wait.event {
            // From here on, news of other threads rings the bell.
            event.watch(&driven.bell);
        }
        let mut is_ready = false;
        if !(wait.is_over)() && !driven.handover.is_wanted() {
            self.has_slept = true;
            let (now, age) = (now(), driven.clock.now());
            let until = wait
                .left(now)
                .map_or(Instant::NEVER, |left| age + left.into());
            let slept = catch_unwind(AssertUnwindSafe(|| {
                wait_beside(wait.beside, || worker.sleep_until(age, until))
            }));
            match slept {
                Ok(ready) => is_ready = ready,
                Err(_) => self.worker = None,
            }
        }
        if let Some(event) = wait.event {
            event.unwatch(&driven.bell);
        }
        is_ready
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let driven = self.driven;
        match self.worker.take() {
            Some(worker) => drop(driven.handover.put(worker, driven.clock.now())),
            None => driven.handover.lose(),
        }
    }
}

/// The worker's own thread.
pub(super) struct DrivenDomain {
    id: u64,
    name: String,
    meter: Option<Arc<Meter>>,
    /// The worker, while this thread drives.
    worker: Option<Box<WorkerDomain>>,
    driven: Arc<DrivenWorker>,
}

impl Domain for DrivenDomain {
    fn run(&mut self) -> Turn {
        let handover = &self.driven.handover;
        let clock = || self.driven.clock.now();
        if handover.is_wanted()
            && let Some(worker) = self.worker.take_if(|worker| worker.is_alone())
        {
            drop(handover.put(worker, clock()));
        }
        if self.worker.is_none() {
            self.worker = handover.stand_in(clock);
        }
        match &mut self.worker {
            Some(worker) => worker.run(),
            None => Turn::Finished,
        }
    }

    fn park(&mut self) {
        if let Some(worker) = &mut self.worker {
            worker.park();
        }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn meter(&self) -> Option<Arc<Meter>> {
        self.meter.clone()
    }
}

impl Drop for DrivenDomain {
    fn drop(&mut self) {
        if self.worker.is_some() {
            self.driven.handover.lose();
        }
    }
}
