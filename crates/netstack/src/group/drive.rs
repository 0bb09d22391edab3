//! What drives the workers of a [`ReplicatedGroup`](super::ReplicatedGroup), by hand or on threads.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use dominoes::{ChannelStats, Mismatch};

use super::solo::LogMode;
use super::{FaultHooks, JoiningWorker, ReplicatedShared, ReplicatedWorker};
use crate::drive::{self, CoreTime, Handle, Joining, TurnStep};
use crate::error::MembershipError;
use crate::io::record::{Entry, Recorder};
use crate::io::rx::Log;
use crate::io::sleep::{RECHECK, Sleep, sleep_alone};
use crate::socket::Sockets;
use crate::state::apply::ReplicaState;
use crate::stats::{AutoscaleStats, EffectStats, MembershipStats, PumpStats, WorkerStats};
use crate::time::Instant;

impl Handle for Arc<ReplicatedShared> {
    fn sockets(&self) -> Sockets {
        Sockets::new(&self.world)
    }

    fn compare(&self) -> Result<usize, Mismatch> {
        ReplicatedShared::compare(self)
    }

    fn shares(&self) -> Vec<EffectStats> {
        ReplicatedShared::shares(self)
    }

    fn membership_stats(&self) -> MembershipStats {
        ReplicatedShared::membership_stats(self)
    }

    fn autoscale_stats(&self) -> AutoscaleStats {
        // ORDERING: Relaxed: one word, and a measurement.
        AutoscaleStats::from_word(self.scaled.load(Ordering::Relaxed))
    }

    fn autoscales(&self) -> bool {
        self.layout.autoscale
    }

    fn has_one_active(&self) -> bool {
        self.membership.staying().count_ones() <= 1
    }

    fn log_stats(&self, name: String) -> Option<ChannelStats> {
        Some(self.log.stats(name))
    }

    fn join(&self, replica: Option<usize>) -> Result<Box<dyn Joining>, MembershipError> {
        Ok(Box::new(JoiningWorker::new(self, replica, ())?))
    }

    fn leave(&self, replica: Option<usize>) -> Result<usize, MembershipError> {
        self.request_leave(replica)
    }

    fn replaces_failed(&self) -> bool {
        ReplicatedShared::replaces_failed(self)
    }

    fn wake_all(&self) {
        self.unpark_event.notify_all();
        self.work_event.notify_all();
    }
}

impl<T: FaultHooks> drive::Worker for ReplicatedWorker<T> {
    fn id(&self) -> usize {
        self.id
    }

    fn name(&self) -> String {
        format!("replica {}", self.id)
    }

    /// Joins, leaves or parks if that is asked for.
    #[inline]
    fn begin(&mut self, now: Option<Instant>) -> bool {
        if let Some(now) = now {
            if self.shared.layout.autoscale {
                self.count_busy(now);
            }
            self.stragglers.now = self.stragglers.now.max(now);
        }
        let is_away = self.handle_membership();
        if is_away && now.is_some() {
            self.was_busy = false;
        }
        !is_away
    }

    /// By default the worker that parses a batch is the primary of its requests: frames come in and
    /// go out through the cache of the core that works on them.
    #[inline]
    fn receive(&mut self, now: Instant) -> usize {
        match self.needs_log() {
            true => self.pump_in_turn(now),
            false => self.pump_alone(now),
        }
    }

    #[inline]
    fn process(&mut self) -> usize {
        match self.log_mode {
            LogMode::Solo => self.process_solo(),
            _ => self.process_log(),
        }
    }

    #[inline]
    fn transmit(&mut self, is_idle: bool) -> usize {
        if self.is_solo() {
            return self.send().unwrap_or(0);
        }
        self.idle = match is_idle {
            true => self.idle.saturating_add(1),
            false => 0,
        };
        self.send_in_turn(self.idle >= super::worker::IDLE_TURNS)
    }

    /// If there is nothing else to do, prepares the next request that this replica has to apply,
    /// whichever worker is its primary.
    #[inline]
    fn help(&mut self, is_idle: bool) -> usize {
        if self.is_solo() {
            return 0;
        }
        let stolen = self.steal_if_due(is_idle);
        match is_idle && stolen == 0 {
            true => usize::from(self.prepare_one(self.replica.position())),
            false => stolen,
        }
    }

    #[inline]
    fn serve_units(&mut self) -> usize {
        let shared = &self.shared;
        shared.world.serve_units(|| shared.work_event.notify_all())
    }

    #[inline]
    fn end(&mut self, done: usize) {
        self.was_busy = done > 0;
    }

    fn step(&mut self, step: TurnStep, now: Instant) -> bool {
        let did = |count: Option<usize>| count.is_some_and(|count| count > 0);
        match step {
            TurnStep::Pump => did(self.pump(now)),
            TurnStep::Claim => did(self.claim(now)),
            TurnStep::Parse => self.parse(),
            TurnStep::Publish => did(self.publish(now)),
            TurnStep::Prepare(ahead) => self.prepare(self.replica.position() + ahead),
            TurnStep::Apply => self.apply(),
            TurnStep::Perform => self.perform(),
            TurnStep::Send => did(self.send()),
            TurnStep::SendOne => did(self.send_one()),
            TurnStep::Turn => self.turn(now) > 0,
        }
    }

    /// Also the time of a batch that is not parsed.
    fn next_deadline(&self) -> Instant {
        let rx_side = self.shared.rx.try_take();
        let pump = rx_side.map_or(Instant::NEVER, |rx_side| rx_side.pump.next_deadline());
        let batches = self.shared.batches.next_deadline();
        self.state_deadline().min(pump).min(batches)
    }

    fn state_deadline(&self) -> Instant {
        self.replica.next_deadline()
    }

    /// Apart from frames in the device, deadlines and late work.
    fn has_work(&mut self) -> bool {
        self.shared.membership.is_notified(self.id)
            || self.shared.batches.is_any_waiting()
            || self.log.poll() > self.replica.position()
            || self.cursor.seq < self.pending.end() && !self.stragglers.blocked
            || self.shared.world.has_units()
            || self.shared.tx.try_take().is_some_and(|tx| tx.has_work())
    }

    fn is_pump_busy(&self) -> bool {
        let side = self.shared.rx.try_take();
        let claimer = self.shared.claimer.try_take();
        side.is_none_or(|side| side.pump.has_work())
            || claimer.is_none_or(|claimer| claimer.has_rest())
    }

    fn waits_for_others(&mut self) -> bool {
        self.has_pending_effects() || self.shared.world.has_unsent(self.replica.frames().next)
    }

    /// The effects are those of all workers that its slot had so far.
    fn stats(&self) -> WorkerStats {
        WorkerStats {
            applied: self.replica.stats().requests,
            effects: self.stats,
            ..WorkerStats::default()
        }
    }

    fn note_core_time(&mut self, used: CoreTime) {
        let place = &self.shared.core_time[self.id];
        for (word, time) in place.iter().zip([used.used, used.waited]) {
            // ORDERING: Relaxed, as for `busy`.
            word.store(time.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Looks at the log, so that [`prepare`](ReplicatedWorker::prepare) can reach all of them.
    fn lag(&mut self) -> u64 {
        self.log.poll() - self.replica.position()
    }

    fn is_alone(&self) -> bool {
        self.is_solo() && !self.needs_log() && self.is_active()
    }

    fn pump_stats(&self) -> Option<PumpStats> {
        self.shared.rx.try_take().map(|rx| rx.pump.stats())
    }

    fn inspect(&self, look: &mut dyn FnMut(&ReplicaState)) {
        if self.is_active() {
            look(&self.replica);
        }
    }

    fn attend(&mut self) -> bool {
        let world = &self.shared.world;
        if world.is_down() || self.has_left() {
            return false;
        }
        if world.view.is_asked() && self.is_active() {
            world.view.answer(&self.replica);
        }
        true
    }

    fn post(&mut self) {
        let state = self.replica.stats();
        // Held until the counters are posted, so that no other worker posts newer ones before.
        let rx = self.shared.rx.try_take();
        self.shared.world.post(|posted| {
            // Another worker may be ahead of this one.
            if state.requests >= posted.state.requests {
                posted.state = state;
            }
            if let Some(rx) = &rx {
                posted.pump = rx.pump.stats();
            }
        });
    }

    fn rest(&mut self, now: Instant) -> bool {
        self.rest_alone(now)
    }

    fn wait(&mut self, now: Instant) {
        let shared = Arc::clone(&self.shared);
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

    fn wait_alone(&mut self, when: (Instant, Instant), others_have_work: &mut dyn FnMut() -> bool) {
        self.put_back();
        let shared = Arc::clone(&self.shared);
        let Some(mut rx) = shared.take_rx() else {
            return;
        };
        let next_try = shared.tx.try_take().and_then(|tx| tx.next_try());
        let has_work = || self.has_work() || others_have_work();
        sleep_alone(&shared.world, &mut rx, when, next_try, has_work);
    }

    fn replay(&mut self, entry: &Entry) -> bool {
        self.return_to_log();
        let shared = Arc::clone(&self.shared);
        let Some(mut side) = shared.rx.try_take() else {
            return false;
        };
        let run = entry.prepare_world(&shared.world);
        let active = shared.membership.active();
        let index = u32::from(entry.request.digest.primary) % active.count_ones().max(1);
        let id = (0..64)
            .filter(|id| active >> id & 1 == 1)
            .nth(index as usize);
        let (_, mut log) = side.parts(&shared, id.unwrap_or(0));
        log.publish(&entry.request, entry.verdict, run);
        true
    }

    fn take_recorder(&mut self) -> Option<Recorder> {
        self.shared.rx.try_take()?.pump.take_recorder()
    }

    fn is_replaceable(&self) -> bool {
        !self.has_left()
    }
}

impl<T: FaultHooks> Joining for JoiningWorker<T> {
    fn id(&self) -> usize {
        self.replica()
    }

    fn try_join(&mut self) -> Option<Box<dyn drive::Worker>> {
        Some(Box::new(JoiningWorker::try_join(self)?))
    }

    fn wait(&mut self) {
        // The worker that gives the state notifies this event. It may be held up.
        let event = &self.shared().work_event;
        let key = event.prepare();
        event.wait(key, Some(RECHECK));
    }
}
