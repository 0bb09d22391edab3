//! A [`ReplicatedGroup`] as a variant: what drives its workers by hand or by threads.

use core::marker::PhantomData;
use std::sync::Arc;

use dominoes::{ChannelStats, Mismatch};

use super::{Handle, Joining, Parts, TurnStep, Variant, Worker};
use crate::config::Limits;
use crate::error::MembershipError;
use crate::group::{self, FaultHooks, JoiningWorker, ReplicatedGroup, ReplicatedShared};
use crate::io::record::{Entry, Recorder};
use crate::io::sleep::{RECHECK, Sleep, Sleeper, sleep_alone};
use crate::socket::Sockets;
use crate::state::apply::ReplicaState;
use crate::stats::{EffectStats, MembershipStats, PumpStats, StackStats, StateStats, WorkerStats};
use crate::time::Instant;

impl<T: FaultHooks + Default> Variant for ReplicatedGroup<T> {
    fn turn(&mut self, now: Instant) -> usize {
        ReplicatedGroup::turn(self, now)
    }

    fn next_deadline(&self) -> Instant {
        ReplicatedGroup::next_deadline(self)
    }

    fn wait(&mut self, now: Instant, until: Instant) {
        let deadline = until.min(ReplicatedGroup::next_deadline(self));
        let shared = Arc::clone(self.shared());
        let workers = self.workers();
        let waits = workers
            .iter_mut()
            .any(|worker| worker.has_pending_effects());
        let Some(mut rx) = shared.take_rx() else {
            return;
        };
        let next_try = shared.tx.try_take().and_then(|tx| tx.next_try());
        let times = next_try.into_iter().chain(waits.then_some(RECHECK));
        let has_work = || workers.iter_mut().any(|worker| worker.has_work());
        let when = (deadline, now);
        sleep_alone(&shared.world, &mut rx, when, times.min(), has_work);
    }

    fn has_work(&mut self) -> bool {
        let mut workers = self.workers().iter_mut();
        workers.any(|worker| worker.has_work() || worker.has_pending_effects())
            || self.is_pump_busy()
    }

    fn is_pump_busy(&self) -> bool {
        let side = self.shared().rx.try_take();
        side.is_none_or(|side| side.pump.has_work())
    }

    fn worker_count(&self) -> usize {
        self.all_workers().len()
    }

    fn step(&mut self, worker: usize, step: TurnStep, now: Instant) -> bool {
        let did = |count: Option<usize>| count.is_some_and(|count| count > 0);
        let worker = &mut self.workers()[worker];
        match step {
            TurnStep::Pump => did(worker.pump(now)),
            TurnStep::Claim => did(worker.claim(now)),
            TurnStep::Parse => worker.parse(),
            TurnStep::Publish => did(worker.publish(now)),
            TurnStep::Prepare(ahead) => worker.prepare(worker.replica().position() + ahead),
            TurnStep::Apply => worker.apply(),
            TurnStep::Perform => worker.perform(),
            TurnStep::Send => did(worker.send()),
            TurnStep::SendOne => did(worker.send_one()),
            TurnStep::Turn => worker.turn(now) > 0,
        }
    }

    fn sockets(&self) -> Sockets {
        ReplicatedGroup::sockets(self)
    }

    fn limits(&self) -> Limits {
        ReplicatedGroup::limits(self)
    }

    fn stats(&self) -> StackStats {
        let mut state = None;
        self.inspect(&mut |replica| state = state.or(Some(replica.stats())));
        StackStats {
            pump: self.pump_stats().unwrap_or_default(),
            state: state.unwrap_or_else(StateStats::default),
            membership: self.membership_stats(),
        }
    }

    fn effect_stats(&self) -> EffectStats {
        let shares = self.shared().shares().into_iter();
        shares.fold(EffectStats::default(), EffectStats::and)
    }

    fn inspect(&self, look: &mut dyn FnMut(&ReplicaState)) {
        let workers = self.all_workers().iter();
        let active = workers.filter(|worker| worker.is_active());
        active.for_each(|worker| look(worker.replica()));
    }

    fn compare(&self) -> Result<usize, Mismatch> {
        ReplicatedGroup::compare(self)
    }

    fn replay(&mut self, entry: &Entry) {
        ReplicatedGroup::replay(self, entry);
    }

    fn take_recorder(&mut self) -> Option<Recorder> {
        ReplicatedGroup::take_recorder(self)
    }

    fn into_parts(self: Box<Self>) -> Parts {
        let handle = GroupHandle::<T> {
            shared: Arc::clone(self.shared()),
            hooks: PhantomData,
        };
        let worker = |worker| -> Box<dyn Worker> { Box::new(worker) };
        Parts {
            workers: self.into_workers().into_iter().map(worker).collect(),
            handle: Arc::new(handle),
        }
    }
}

struct GroupHandle<T> {
    shared: Arc<ReplicatedShared>,
    hooks: PhantomData<fn() -> T>,
}

impl<T: FaultHooks + Default> Handle for GroupHandle<T> {
    fn compare(&self) -> Result<usize, Mismatch> {
        self.shared.compare()
    }

    fn shares(&self) -> Vec<EffectStats> {
        self.shared.shares()
    }

    fn membership_stats(&self) -> MembershipStats {
        self.shared.membership_stats()
    }

    fn log_stats(&self, name: String) -> Option<ChannelStats> {
        Some(self.shared.log.stats(name))
    }

    fn join(&self, replica: Option<usize>) -> Result<Box<dyn Joining>, MembershipError> {
        Ok(Box::new(JoiningWorker::new(
            &self.shared,
            replica,
            T::default(),
        )?))
    }

    fn leave(&self, replica: Option<usize>) -> Result<usize, MembershipError> {
        self.shared.request_leave(replica)
    }

    fn replaces_failed(&self) -> bool {
        self.shared.replaces_failed()
    }

    fn wake_all(&self) {
        self.shared.unpark_event.notify_all();
        self.shared.work_event.notify_all();
    }
}

impl<T: FaultHooks> Worker for group::ReplicatedWorker<T> {
    fn id(&self) -> usize {
        group::ReplicatedWorker::id(self)
    }

    fn name(&self) -> String {
        format!("replica {}", group::ReplicatedWorker::id(self))
    }

    fn turn(&mut self, now: Instant) -> usize {
        group::ReplicatedWorker::turn(self, now)
    }

    fn next_deadline(&self) -> Instant {
        group::ReplicatedWorker::next_deadline(self)
    }

    fn stats(&self) -> WorkerStats {
        WorkerStats {
            applied: self.replica().stats().requests,
            effects: group::ReplicatedWorker::stats(self),
            ..WorkerStats::default()
        }
    }

    fn lag(&mut self) -> u64 {
        group::ReplicatedWorker::lag(self)
    }

    fn pump_stats(&self) -> Option<PumpStats> {
        group::ReplicatedWorker::pump_stats(self)
    }

    fn inspect(&self, look: &mut dyn FnMut(&ReplicaState)) {
        if self.is_active() {
            look(self.replica());
        }
    }

    fn attend(&mut self) -> bool {
        let world = &self.shared().world;
        if world.is_down() || self.has_left() {
            return false;
        }
        if world.view.is_asked() && self.is_active() {
            world.view.answer(self.replica());
        }
        true
    }

    fn post(&mut self) {
        let state = self.replica().stats();
        let pump = group::ReplicatedWorker::pump_stats(self);
        self.shared().world.post(|posted| {
            posted.state = state;
            posted.pump = pump.unwrap_or(posted.pump);
        });
    }

    fn wait(&mut self, now: Instant) {
        let shared = Arc::clone(self.shared());
        if self.is_parked() {
            let key = shared.unpark_event.prepare();
            if self.is_parked() && !shared.world.is_down() {
                shared.unpark_event.wait(key, None);
            }
            return;
        }
        self.put_back();
        let sleep = Sleep {
            world: &shared.world,
            rx: || shared.take_rx(),
            tx: &shared.tx,
            event: &shared.work_event,
            asleep: &shared.asleep,
            workers: shared.active_count(),
        };
        sleep.sleep(now, self);
    }

    fn is_replaceable(&self) -> bool {
        !self.has_left()
    }
}

impl<T: FaultHooks> Joining for JoiningWorker<T> {
    fn id(&self) -> usize {
        self.replica()
    }

    fn try_join(&mut self) -> Option<Box<dyn Worker>> {
        Some(Box::new(JoiningWorker::try_join(self)?))
    }

    fn wait(&mut self) {
        // The worker that gives the state notifies this event. It may be held up.
        let event = &self.shared().work_event;
        let key = event.prepare();
        event.wait(key, Some(RECHECK));
    }
}

impl<T: FaultHooks> Sleeper for group::ReplicatedWorker<T> {
    fn has_work(&mut self) -> bool {
        group::ReplicatedWorker::has_work(self)
    }

    fn waits_for_others(&mut self) -> bool {
        self.has_pending_effects()
    }

    fn state_deadline(&self) -> Instant {
        self.replica().next_deadline()
    }
}
