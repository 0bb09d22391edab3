//! A worker: one replica, and its share of the work.

use core::any::Any;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::Ordering;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;

use dominoes::group::WorkerState;
use dominoes::{Seq, Spin, Subscription};

use super::assign::{Owner, Primaries};
use super::epochs::Epochs;
use super::execute::{Executor, HeldUnits, Step, pinned};
use super::pending::{Cursor, PendingEffects};
use super::slots::Snapshot;
use super::solo::LogMode;
use super::steal::{STEAL_BATCH, Scan, Stragglers};
use crate::group::{FaultHooks, RxSide, STORED, Shared};
use crate::io::FrameRecycler;
use crate::io::direct::DirectLog;
use crate::io::perform::Template;
use crate::io::rx::BATCH;
use crate::io::world::Wakes;
use crate::log::effect::Effect;
use crate::log::request::{MAX_RUN, Request};
use crate::state::apply::Replica;
use crate::stats::{EffectStats, PumpStats};
use crate::time::{Duration, Instant};

/// Turns without work after which a worker sends frames that others built.
const IDLE_TURNS: u32 = 16;
/// Requests that a worker applies before it does other work.
const APPLY_BATCH: usize = 64;
/// If frames wait and none was sent for so long, any worker sends, even a busy one. Building a few
/// chunks of frames takes about as long.
const SEND_TAKEOVER: Duration = Duration::from_micros(50);

/// A worker: one replica, and its share of the work.
pub struct Worker<T: FaultHooks = ()> {
    pub(crate) id: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) log: Subscription<Request, Spin>,
    pub(crate) replica: Replica,
    pub(crate) pending: PendingEffects,
    /// Which replicas own which work.
    pub(crate) epochs: Epochs,
    /// What it is doing in its group.
    pub(crate) state: WorkerState,
    /// With [`Layout::confirm`](crate::group::Layout), the position up to which a majority has its
    /// state.
    pub(crate) confirmed: Seq,
    /// What it was before it waited for a state.
    pub(crate) before: WorkerState,
    /// Fingerprints of positions that it reached before the join check was over.
    pub(crate) unposted: Vec<(Seq, u64)>,
    /// Next request to consider for preparing.
    prepared: Seq,
    /// Payload bytes of this worker's requests from its cursor to `prepared`: they limit how far it
    /// works ahead.
    prepared_bytes: usize,
    /// How far its own share is performed.
    pub(crate) cursor: Cursor,
    /// The value that it last stored in `performed`.
    reported: Seq,
    stragglers: Stragglers,
    /// Since when frames wait and none was sent, and how many had been sent then.
    unsent: (Instant, u64),
    /// Turns in a row without work.
    idle: u32,
    /// Whether the last turn found work.
    was_busy: bool,
    /// Whether it uses the log.
    pub(crate) log_mode: LogMode,
    /// Its state for working without the log.
    pub(crate) direct: DirectLog,
    /// Frames whose work this worker completed.
    pub(crate) recycler: FrameRecycler,
    hooks: T,
    /// Whether `hooks` is changing the effects of a request.
    in_hooks: bool,
    pub(crate) template: Template,
    pub(crate) stats: EffectStats,
}

impl<T: FaultHooks> Worker<T> {
    /// A worker that goes on from `snapshot`, in a slot that is reserved for it.
    pub(crate) fn new(id: usize, shared: Arc<Shared>, snapshot: Snapshot, hooks: T) -> Self {
        // The slot's counters go on.
        let stats = shared.shares[id].load();
        let Snapshot {
            replica,
            log,
            pending,
            epochs,
        } = snapshot;
        // ORDERING: Relaxed: this thread, or the one that made this worker, stored it last.
        let reported = shared.performed[id].load(Ordering::Relaxed);
        Worker {
            id,
            stragglers: Stragglers::new(shared.layout.slot_count()),
            shared,
            log,
            prepared: replica.position(),
            confirmed: replica.position(),
            before: WorkerState::Active,
            unposted: Vec::new(),
            cursor: Cursor::at_first(&pending),
            replica,
            pending,
            epochs,
            state: WorkerState::Active,
            prepared_bytes: 0,
            reported,
            unsent: (Instant::ZERO, 0),
            idle: 0,
            was_busy: false,
            log_mode: LogMode::Logged,
            direct: DirectLog::default(),
            recycler: FrameRecycler::default(),
            hooks,
            in_hooks: false,
            template: Template::default(),
            stats,
        }
    }

    /// A worker that is parked from the beginning.
    pub(crate) fn parked(id: usize, shared: Arc<Shared>, hooks: T) -> Self {
        let nothing = Snapshot::none(shared.world.limits);
        let mut worker = Worker::new(id, shared, nothing, hooks);
        worker.state = WorkerState::Parked;
        worker
    }

    /// Replaces the worker's state by that of `snapshot`.
    fn restart_from(&mut self, snapshot: Snapshot) {
        let now = self.stragglers.now;
        let Snapshot {
            replica,
            log,
            pending,
            epochs,
        } = snapshot;
        self.stragglers = Stragglers::new(self.shared.layout.slot_count());
        self.stragglers.now = now;
        self.cursor = Cursor::at_first(&pending);
        self.unposted.clear();
        self.prepared_bytes = 0;
        self.unsent = (Instant::ZERO, 0);
        (self.replica, self.log, self.pending, self.epochs) = (replica, log, pending, epochs);
        self.state = WorkerState::JoinCheck;
    }

    /// Takes a snapshot if one is there, and goes on with the join check. Returns whether the
    /// worker is active from now on.
    pub(crate) fn try_join(&mut self) -> bool {
        if self.state == WorkerState::Joining {
            let Some(snapshot) = self.shared.membership.take_snapshot(self.id) else {
                // Skips to the end: the position of a reader that stands still keeps slots of the
                // log from being used again.
                let end = self.log.poll();
                self.log.advance_to(end);
                return false;
            };
            self.restart_from(snapshot);
        }
        self.run_join_check()
    }

    /// Becomes active at the position of its state.
    pub(crate) fn activate(&mut self) {
        self.reported = self
            .shared
            .activate(self.id, self.pending.first, self.replica.position());
        self.prepared = self.replica.position();
        self.confirmed = self.replica.position();
        self.cursor = Cursor::at_first(&self.pending);
        self.unposted = Vec::new();
        self.state = WorkerState::Active;
    }

    /// Handles what concerns this worker in the slot table, if it was notified. Returns whether it
    /// has no state to work with.
    #[inline]
    fn handle_membership(&mut self) -> bool {
        self.shared.membership.is_notified(self.id) && self.handle_notification()
    }

    #[cold]
    fn handle_notification(&mut self) -> bool {
        if self.is_parked() {
            // `return_to_log` stores atomics that belong to the solo worker, so a parked worker
            // must not call it.
            return true;
        }
        // Leaves solo mode: a worker that is given a state may join and leave before the next turn.
        self.return_to_log();
        let shared = Arc::clone(&self.shared);
        shared.membership.clear_notification(self.id);
        if shared.membership.take_divergence_report(self.id)
            && matches!(self.state, WorkerState::Active | WorkerState::Leaving(_))
            && self.leave_if_diverged()
        {
            shared.membership.notify(1 << self.id);
            return true;
        }
        match self.state {
            WorkerState::Gone => {
                shared.membership.notify(1 << self.id);
                return true;
            }
            WorkerState::Parked => {
                (self.state, self.before) = (WorkerState::Joining, WorkerState::Parked);
                shared.membership.notify(1 << self.id);
                return true;
            }
            WorkerState::Joining | WorkerState::JoinCheck => {
                if !self.try_join() {
                    shared.membership.notify(1 << self.id);
                    return true;
                }
                self.count_join();
            }
            WorkerState::Active if shared.membership.is_leaving(self.id) => {
                self.state = WorkerState::Leaving(self.log.poll());
            }
            WorkerState::Active | WorkerState::Leaving(_) | WorkerState::Diverged(_) => {}
        }
        if let WorkerState::Leaving(end) = self.state
            && self.cursor.seq >= end
        {
            if shared.membership.try_leave(self.id) {
                if shared.membership.take_park_request(self.id) {
                    self.park();
                } else {
                    self.state = WorkerState::Gone;
                }
                shared.membership.notify(1 << self.id);
                return true;
            }
            self.state = WorkerState::Active;
        }
        if self.serve_joiners() || self.state != WorkerState::Active {
            shared.membership.notify(1 << self.id);
        }
        false
    }

    /// Whether it has a state, and was not asked to leave.
    pub fn is_active(&self) -> bool {
        self.state == WorkerState::Active && !self.shared.membership.is_leaving(self.id)
    }

    /// Gives up its state. It has performed its share.
    fn park(&mut self) {
        self.put_back();
        self.shared.release_slot(self.id, WorkerState::Parked);
        self.restart_from(Snapshot::none(self.shared.world.limits));
        self.state = WorkerState::Parked;
    }

    /// Whether this worker is parked: its turns do nothing until the others have too much to do.
    pub fn is_parked(&self) -> bool {
        self.state == WorkerState::Parked && self.shared.membership.parked() >> self.id & 1 != 0
    }

    /// Whether this worker is the only active one, and works without the log.
    pub fn is_solo(&self) -> bool {
        self.log_mode == LogMode::Solo
    }

    /// Whether this worker has left as it was asked to. Nothing is left to do but to drop it.
    pub fn has_left(&self) -> bool {
        self.state == WorkerState::Gone
    }

    /// Does everything that can be done now, once. Returns how much that was.
    ///
    /// A worker that gets a pump keeps it for a chunk of work, and is the primary of all of that:
    /// frames come in and go out through the cache of the core that works on them.
    pub fn turn(&mut self, now: Instant) -> usize {
        if self.shared.layout.autoscale {
            self.count_busy(now);
        }
        self.stragglers.now = self.stragglers.now.max(now);
        if self.handle_membership() {
            self.was_busy = false;
            return 0;
        }
        let done = match self.needs_log() {
            true => self.pump_in_turn(now) + self.do_work(),
            false => self.turn_without_log(now),
        };
        self.was_busy = done > 0;
        done
    }

    /// Called when a turn begins: if the last one found work, the time since then counts as busy.
    fn count_busy(&mut self, now: Instant) {
        if self.was_busy {
            // ORDERING: Relaxed: only this worker writes it, and for others it is a measurement.
            let busy = &self.shared.busy[self.id];
            let passed = now.since(self.stragglers.now).as_nanos();
            busy.store(busy.load(Ordering::Relaxed) + passed, Ordering::Relaxed);
        }
    }

    /// Takes the receive pump for as many frames as make up a chunk of full runs. Does nothing if
    /// another worker has the pump, or this one has enough to do.
    pub fn pump_in_turn(&mut self, now: Instant) -> usize {
        self.return_to_log();
        if self.prepared_bytes >= self.shared.layout.tuning.ahead_bytes
            || self.state != WorkerState::Active
            || self.shared.rx.is_taken()
        {
            return 0;
        }
        let Some(mut side) = self.shared.rx.try_take() else {
            return 0;
        };
        let (pump, mut log) = side.parts(&self.shared, self.id);
        core::mem::swap(&mut pump.recycler, &mut self.recycler);
        let deadline = self.replica.next_deadline();
        let most = self.shared.layout.tuning.request_chunk * MAX_RUN;
        let mut done = 0;
        while done < most {
            let now_done = pump.turn(now, deadline, &mut log);
            done += now_done;
            if now_done < BATCH {
                break;
            }
        }
        core::mem::swap(&mut pump.recycler, &mut self.recycler);
        if self.shared.layout.autoscale && side.autoscaler.is_due(now) {
            let RxSide {
                pump, autoscaler, ..
            } = &mut *side;
            self.shared
                .autoscale(autoscaler, pump.balance.as_ref(), now);
        }
        drop(side);
        if done > 0 {
            self.shared.work_event.notify_all();
        }
        done
    }

    /// Sends frames. The worker that built the next frame to be sent sends it, and the frames
    /// behind it that it built, because they are in its core's cache. Other workers send them if
    /// they are idle for long, or if that worker is late.
    fn send_in_turn(&mut self, idle: bool) -> usize {
        let sent = self.shared.world.tx.sent();
        let below = if idle || self.is_sender_late(sent) {
            u64::MAX
        } else if self.is_likely_sender(sent) {
            self.own_frames_end(sent)
        } else {
            return 0;
        };
        match self.shared.tx.try_take() {
            Some(mut tx) => tx.turn_below(below),
            None => 0,
        }
    }

    /// The end of the frames from `frame` on that this worker may send: that of the chunk, or no
    /// limit if the chunk has one owner.
    #[inline]
    fn own_frames_end(&self, frame: u64) -> u64 {
        let chunk = self.shared.frame_chunk_of(frame);
        match self.epochs.of_frame_chunk(chunk).owners().count() {
            1 => u64::MAX,
            _ => self.shared.frame_chunk_end(frame),
        }
    }

    /// Whether this worker most likely builds frame `frame`, or the worker that should is gone.
    #[inline]
    fn is_likely_sender(&self, frame: u64) -> bool {
        let shared = &self.shared;
        match shared.layout.primaries {
            // Asking for the owner would claim the chunk.
            Primaries::Greedy => true,
            _ => {
                let chunk = shared.frame_chunk_of(frame);
                let membership = &shared.membership;
                match shared
                    .assignment
                    .frame_owner(&self.epochs, membership, chunk, true)
                {
                    Owner::Worker(owner) => owner == self.id || !membership.is_active(owner),
                    _ => true,
                }
            }
        }
    }

    /// Whether frames have been numbered for a while and none was sent. The worker that should send
    /// them may be held up, so this one does, even if it is busy.
    #[inline]
    fn is_sender_late(&mut self, sent: u64) -> bool {
        let now = self.stragglers.now;
        let (since, before) = &mut self.unsent;
        if *before != sent || self.replica.frames().next == sent {
            (*since, *before) = (now, sent);
            return false;
        }
        now.since(*since) >= SEND_TAKEOVER
    }

    /// A turn without the receive pump. The time is that of the last [`turn`](Self::turn).
    pub fn work(&mut self) -> usize {
        if self.handle_membership() {
            return 0;
        }
        self.do_work()
    }

    #[inline]
    pub(crate) fn do_work(&mut self) -> usize {
        self.log.poll();
        let mut done = self.prepare_mine();
        done += self.apply_ready(APPLY_BATCH);
        done += self.perform_and_send();
        self.idle = if done == 0 { self.idle + 1 } else { 0 };
        done += self.send_in_turn(self.idle >= IDLE_TURNS);
        done += self.steal_if_due(done == 0);
        if done == 0 {
            done = usize::from(self.prepare_one(self.replica.position()));
        }
        done
    }

    /// Takes the receive pump for one turn. `None` if another worker has it.
    pub fn pump(&mut self, now: Instant) -> Option<usize> {
        self.stragglers.now = self.stragglers.now.max(now);
        if self.handle_membership() || self.state != WorkerState::Active {
            return None;
        }
        self.return_to_log();
        let mut side = self.shared.rx.try_take()?;
        let (pump, mut log) = side.parts(&self.shared, self.id);
        core::mem::swap(&mut pump.recycler, &mut self.recycler);
        let done = pump.turn(now, self.replica.next_deadline(), &mut log);
        core::mem::swap(&mut pump.recycler, &mut self.recycler);
        drop(side);
        if done > 0 {
            self.shared.work_event.notify_all();
        }
        Some(done)
    }

    /// Prepares the requests of this worker, in order, as far as its budget goes.
    fn prepare_mine(&mut self) -> usize {
        let Worker {
            id,
            shared,
            log,
            replica,
            prepared,
            prepared_bytes,
            stats,
            hooks,
            ..
        } = self;
        let end = log.end();
        let mut done = 0;
        // One pin serves a whole chunk.
        let mut pin = None;
        *prepared = (*prepared).max(replica.position());
        while *prepared < end && *prepared_bytes < shared.layout.tuning.ahead_bytes {
            let seq = *prepared;
            *prepared += 1;
            let Some(request) = log.get(seq) else {
                continue;
            };
            if usize::from(request.digest.primary) != *id {
                continue;
            }
            *prepared_bytes += request.digest.len as usize;
            if shared.verdicts.get(seq).is_none()
                && let Some(run) = pinned(&shared.attachments, &mut pin, seq)
            {
                done += usize::from(shared.prepare(seq, request, run, stats, || {
                    if T::ACTIVE {
                        hooks.before_preparing(seq);
                    }
                }));
            }
        }
        done
    }

    /// Prepares the request at `seq`, whichever worker is its primary, if it is published, not
    /// applied here, and not prepared. Returns whether it did.
    pub fn prepare(&mut self, seq: u64) -> bool {
        if self.handle_membership() {
            return false;
        }
        self.prepare_one(seq)
    }

    fn prepare_one(&mut self, seq: u64) -> bool {
        if self.shared.verdicts.get(seq).is_some() && seq < self.log.end() {
            return false;
        }
        let Some(request) = self.log.get(seq) else {
            return false;
        };
        let Some(pin) = self.shared.attachments.pin(seq) else {
            return false;
        };
        let Some(run) = pin.get(seq) else {
            return false;
        };
        self.shared.prepare(seq, request, run, &mut self.stats, || {
            if T::ACTIVE {
                self.hooks.before_preparing(seq);
            }
        })
    }

    /// Applies at most `most` requests. A panic of a connection ends that connection (see
    /// [`Replica::unwound`]).
    fn apply_ready(&mut self, most: usize) -> usize {
        let mut done = 0;
        loop {
            let batch = || {
                while done < most && (self.apply_one() || self.apply_for_straggler()) {
                    done += 1;
                }
            };
            match catch_unwind(AssertUnwindSafe(batch)) {
                Ok(()) => break,
                Err(panic) => self.after_panic(panic),
            }
            done += 1;
        }
        if done > 0 {
            self.log.advance_to(self.replica.position());
        }
        done
    }

    /// Handles a panic. If a request was being applied, completes it.
    #[cold]
    fn after_panic(&mut self, panic: Box<dyn Any + Send>) {
        let seq = self.pending.end();
        match self.log.get(seq) {
            Some(request) if self.replica.position() == seq + 1 && !self.in_hooks => {
                self.replica.unwound(panic, request, &mut self.pending);
                self.pending.commit(request, false);
                self.post_if_due(seq + 1);
            }
            _ => resume_unwind(panic),
        }
    }

    /// If any worker is late: prepares the next request in the place of its primary, and applies
    /// it. Returns whether it did.
    fn apply_for_straggler(&mut self) -> bool {
        self.stragglers.any && self.prepare_one(self.replica.position()) && self.apply_one()
    }

    /// Applies the next request if it is published and prepared. Returns whether it did.
    pub fn apply(&mut self) -> bool {
        if self.handle_membership() {
            return false;
        }
        self.log.poll();
        self.apply_ready(1) > 0
    }

    #[inline]
    pub(crate) fn apply_one(&mut self) -> bool {
        let seq = self.replica.position();
        let Some(request) = self.log.get(seq) else {
            return false;
        };
        let found = self.shared.verdicts.get(seq);
        let is_stored = found.is_some_and(|found| found & STORED != 0);
        let mut verdict = found.map(|found| found & !STORED);
        let mut changed;
        let mut request = request;
        if T::ACTIVE {
            self.hooks.change_state(seq, &mut self.replica);
            changed = *request;
            verdict = self.hooks.change_verdict(seq, verdict, &changed);
            if verdict.is_some() {
                self.hooks.change_request(seq, &mut changed);
            }
            request = &changed;
        }
        let Some(verdict) = verdict else { return false };
        if self.epochs.is_chunk_start(seq) {
            let chunk = self.shared.request_chunk_of(seq);
            let mask = self.shared.epoch_owners.get(chunk);
            let frame = self.replica.frames().next;
            self.epochs.begin_chunk(mask, &self.shared.layout, frame);
        }
        self.replica
            .apply_in_batch(request, verdict, &mut self.pending);
        if T::ACTIVE {
            // A panic in here is not one of the connection.
            self.in_hooks = true;
            self.pending
                .change_uncommitted(|effects| self.hooks.change_effects(seq, effects));
            self.in_hooks = false;
        }
        self.pending.commit(request, is_stored);
        self.post_if_due(seq + 1);
        true
    }

    #[inline(always)]
    fn post_if_due(&mut self, position: Seq) {
        if self.shared.posts.is_due(position) {
            self.post(position);
        }
    }

    #[inline(never)]
    fn post(&mut self, position: Seq) {
        let posts = &self.shared.posts;
        let mut print = self.replica.post(position / posts.every());
        if self.shared.layout.confirm {
            // The next request may overwrite a wrong value in the state, so the effects count, too.
            print = print.rotate_left(1) ^ self.pending.fingerprint();
        }
        if self.state == WorkerState::JoinCheck {
            self.unposted.push((position, print));
            return;
        }
        posts.post(self.id, position, print);
        self.shared.compare_at(position);
    }

    /// Performs this worker's share. Whenever it has built a chunk's worth of frames, it tries to
    /// send: a peer that waits for them is idle meanwhile.
    fn perform_and_send(&mut self) -> usize {
        let most = self.shared.layout.tuning.frame_chunk as u32;
        let mut done = 0;
        loop {
            let (performed, last) = self.perform_mine(most);
            done += performed;
            if last != Step::Performed {
                return done;
            }
            done += self.send_in_turn(false);
        }
    }

    /// Performs this worker's share, up to `most` frames. Returns how much that was, and the
    /// outcome of the last step.
    fn perform_mine(&mut self, most: u32) -> (usize, Step) {
        let mut done = 0;
        let limit = self.perform_limit();
        let mut executor = self.executor();
        let before = executor.stats.frames;
        let last = loop {
            if executor.cursor.seq >= limit {
                break Step::End;
            }
            let built = (executor.stats.frames - before) as u32;
            if built >= most {
                break Step::Performed;
            }
            match executor.step(most - built) {
                Step::Performed => done += 1,
                Step::Passed => {}
                last => break last,
            }
        };
        drop(executor);
        self.stragglers.blocked = last == Step::Blocked;
        self.report_progress();
        (done, last)
    }

    /// Performs this worker's next effect, or the next frame of one; else steals one that is late.
    /// Returns whether there was one.
    pub fn perform(&mut self) -> bool {
        if self.handle_membership() {
            return false;
        }
        let limit = self.perform_limit();
        let mut executor = self.executor();
        let last = loop {
            if executor.cursor.seq >= limit {
                break Step::End;
            }
            match executor.step(1) {
                Step::Passed => {}
                last => break last,
            }
        };
        drop(executor);
        self.stragglers.blocked = last == Step::Blocked;
        self.report_progress();
        last == Step::Performed || self.steal_now(1) > 0
    }

    fn executor(&mut self) -> Executor<'_, T> {
        Executor {
            id: self.id,
            shared: &self.shared,
            pending: &self.pending,
            epochs: &self.epochs,
            cursor: &mut self.cursor,
            prepared_bytes: &mut self.prepared_bytes,
            template: &mut self.template,
            stats: &mut self.stats,
            hooks: &mut self.hooks,
            recycler: &mut self.recycler,
            wakes: Wakes::new(&self.shared.world),
            held: HeldUnits::NOTHING,
        }
    }

    /// Reports how far this worker has performed its share.
    fn report_progress(&mut self) {
        // `reported` may be ahead of the cursor: an earlier worker of this slot stored it.
        if self.reported < self.cursor.seq {
            self.reported = self.cursor.seq;
            // ORDERING: Release, pairs with the Acquire in `Shared::performed_by` and
            // `Shared::has_reported`.
            self.shared.performed[self.id].store(self.reported, Ordering::Release);
            self.shared.shares[self.id].post(&self.stats);
        }
    }

    /// Drops effects that are done, and steals late work, if it is time to check. Returns how much
    /// was done.
    #[inline]
    fn steal_if_due(&mut self, idle: bool) -> usize {
        let pending = self.pending.applied.len();
        if !self.stragglers.is_due(pending, idle, &self.shared.layout) {
            return 0;
        }
        self.steal_now(STEAL_BATCH)
    }

    #[inline(never)]
    fn steal_now(&mut self, most: usize) -> usize {
        self.forget(self.shared.performed_by(self.epochs.owners()));
        if !self
            .stragglers
            .check(&self.shared, &self.pending, &self.epochs)
        {
            // The pump cannot wait for reports of an empty slot, so this worker reports what it
            // knows to be done.
            let reported = self.shared.membership.misses_a_replica() && self.report_verified();
            return usize::from(reported);
        }
        let scan = self.scan(most);
        self.forget(scan.verified);
        let reported = self.report_verified();
        self.shared.shares[self.id].post(&self.stats);
        scan.done.max(usize::from(reported))
    }

    /// Reports that everything it has dropped is done. Returns whether that was news, for which the
    /// pump may have waited.
    fn report_verified(&self) -> bool {
        let reported = self.shared.verified[self.id].load(Ordering::Relaxed);
        if reported >= self.pending.first {
            return false;
        }
        // ORDERING: Release, pairs with the Acquire in `GroupLog::performed`.
        self.shared.verified[self.id].store(self.pending.first, Ordering::Release);
        true
    }

    #[cold]
    fn scan(&mut self, most: usize) -> Scan {
        let limit = self.perform_limit();
        let mut cursor = Cursor::at_first(&self.pending);
        let mut executor = Executor {
            id: self.id,
            shared: &self.shared,
            pending: &self.pending,
            epochs: &self.epochs,
            cursor: &mut cursor,
            prepared_bytes: &mut self.prepared_bytes,
            template: &mut self.template,
            stats: &mut self.stats,
            hooks: &mut self.hooks,
            recycler: &mut self.recycler,
            wakes: Wakes::new(&self.shared.world),
            held: HeldUnits::NOTHING,
        };
        executor.scan(&mut self.stragglers, limit, most)
    }

    /// Drops requests below `below` that are done, up to its cursor.
    fn forget(&mut self, below: Seq) {
        self.cursor.effect -= self.pending.forget(below.min(self.cursor.seq));
        self.epochs.forget(self.pending.first);
    }

    /// Takes the transmit pump for one turn. `None` if another worker has it.
    pub fn send(&mut self) -> Option<usize> {
        Some(self.shared.tx.try_take()?.turn())
    }

    /// Takes the transmit pump and sends one frame. `None` if another worker has it.
    pub fn send_one(&mut self) -> Option<usize> {
        Some(self.shared.tx.try_take()?.step())
    }

    /// The worker's slot in its group.
    pub fn id(&self) -> usize {
        self.id
    }

    /// The state.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// What it performed.
    pub fn stats(&self) -> EffectStats {
        self.stats
    }

    /// What the group's receive pump counted. `None` while a worker has it.
    pub fn pump_stats(&self) -> Option<PumpStats> {
        self.shared.rx.try_take().map(|rx| rx.pump.stats)
    }

    /// Effects that are pending here, of all primaries, oldest first.
    pub fn pending_effects(&self) -> impl Iterator<Item = &Effect> {
        self.pending.effects.iter()
    }

    /// The latest time for the next [`turn`](Self::turn): the earlier one of the replica's next
    /// deadline and the receive pump's, which waits for answers of neighbours and for fragments. If
    /// another worker has the pump at this moment, that worker asks the pump after its turn.
    pub fn next_deadline(&self) -> Instant {
        let side = self.shared.rx.try_take();
        let pump = side.map_or(Instant::NEVER, |side| side.pump.next_deadline());
        self.replica.next_deadline().min(pump)
    }

    /// Requests that are published and not applied here. [`Worker::apply`] sees what this has seen.
    pub fn lag(&mut self) -> u64 {
        self.log.poll() - self.replica.position()
    }

    /// The end of the log as last seen, for choosing what to prepare.
    pub fn published(&mut self) -> u64 {
        self.log.poll()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns recycled frames to the device before this worker sleeps. If another worker has the
    /// pump, that worker may be blocked in the device for lack of frames, so these are left where
    /// that worker finds them.
    pub(crate) fn put_back(&mut self) {
        if self.recycler.frames.is_empty() {
            return;
        }
        match self.shared.rx.try_take() {
            Some(mut side) => side.pump.put_back(&mut self.recycler.frames),
            None => self.shared.world.give_back(&mut self.recycler.frames),
        }
    }

    /// Drops effects that are known to be done. Returns whether any are left, so that this worker
    /// must not sleep without a deadline.
    pub(crate) fn has_pending_effects(&mut self) -> bool {
        self.forget(self.shared.performed_by(self.epochs.owners()));
        !self.pending.applied.is_empty()
    }

    /// Whether a turn would find something to do.
    pub(crate) fn has_work(&mut self) -> bool {
        self.shared.membership.is_notified(self.id)
            || self.log.poll() > self.replica.position()
            || self.cursor.seq < self.pending.end() && !self.stragglers.blocked
            || self.shared.tx.try_take().is_some_and(|tx| tx.has_work())
    }
}

impl<T: FaultHooks> core::fmt::Debug for Worker<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let shared = &self.shared;
        f.debug_struct("Worker")
            .field("id", &self.id)
            .field("state", &self.state)
            .field("published", &self.log.end())
            .field("applied", &self.replica.position())
            .field("performed", &self.cursor.seq)
            .field("pending_from", &self.pending.first)
            .field("reported", &self.reported)
            .field("frames", &self.replica.frames().next)
            .field("room", &self.replica.frames().room())
            .field("deadline", &self.replica.next_deadline())
            .field("epochs", &self.epochs)
            .field("all_reported", &shared.performed)
            .field("all_verified", &shared.verified)
            .finish_non_exhaustive()
    }
}

impl<T: FaultHooks> Drop for Worker<T> {
    fn drop(&mut self) {
        self.end();
        // A test with fault hooks checks panics by itself.
        #[cfg(feature = "testkit")]
        if !T::ACTIVE {
            self.shared.world.assert_no_panics(&self.replica);
        }
    }
}

impl<T: FaultHooks> Worker<T> {
    /// Counts that it became active.
    pub(crate) fn count_join(&mut self) {
        let before = core::mem::replace(&mut self.before, WorkerState::Active);
        self.shared.membership.count_join(before);
    }

    fn end(&mut self) {
        let id = self.id;
        let waits = matches!(self.state, WorkerState::Joining | WorkerState::JoinCheck);
        // The units that it had begun are released.
        match self.state {
            WorkerState::Parked => self.shared.membership.release(id, WorkerState::Joining),
            WorkerState::Gone => self.shared.release_slot(id, WorkerState::Gone),
            // It never became active.
            state if waits && self.before == WorkerState::Gone => {
                self.shared.release_slot(id, state);
            }
            _ => self.shared.release_slot(id, WorkerState::Active),
        }
    }
}

/// The parts of [`Worker::work`], one by one, so that each can be measured.
#[cfg(feature = "testkit")]
impl<T: FaultHooks> Worker<T> {
    /// Reads how far the log is published, and prepares this worker's requests. Returns how many.
    pub fn prepare_ahead(&mut self) -> usize {
        self.log.poll();
        self.prepare_mine()
    }

    /// Applies the ready prefix of the log, as far as one turn does. Returns how many requests.
    pub fn apply_all(&mut self) -> usize {
        self.apply_ready(APPLY_BATCH)
    }

    /// Whether it and `other` posted equal fingerprints wherever both posted since `from`.
    pub(crate) fn posted_alike(&self, other: &Worker<T>, from: u64) -> bool {
        let posts = &self.shared.posts;
        let own = posts.all(self.id).into_iter();
        let mut own = own.filter(|(position, _)| *position >= from);
        own.all(|(position, print)| {
            let theirs = posts.at(other.id, position);
            theirs.is_none_or(|theirs| theirs == print)
        })
    }

    /// The position of the snapshot that the worker began with. Fingerprints that it posts behind
    /// it count when replicas differ.
    pub fn since(&self) -> u64 {
        self.shared.membership.since(self.id)
    }

    /// Performs all effects whose primary this worker is. Returns how many.
    pub fn perform_all(&mut self) -> usize {
        self.perform_mine(u32::MAX).0
    }
}
