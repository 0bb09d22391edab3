//! A worker holds one replica of a group's state, and does a share of the group's work.
//!
//! [A turn](crate::drive) is one round of it. These are its steps with the log:
//!
//! - Begin: the worker joins, leaves or parks, if that is asked for (`membership.rs`).
//! - Receive: it claims a batch of frames from the device, so that no other worker reads them,
//!   parses it, and publishes it: frames become requests. Only the worker that has the
//!   receive pump publishes.
//! - Process: it prepares requests, which yields their verdicts. A request names its primary, the
//!   worker that normally prepares it and performs its effects. The worker applies requests in log
//!   order, up to the first without a verdict. Effects are retained (pending) until they are known
//!   to be done. The worker performs those whose primary it is: its share.
//! - Transmit: it sends built frames, to the end of a chunk; all, if it was idle for a while.
//! - Help: it performs work of stragglers, workers that are late. If nothing else was to do, it
//!   prepares the next request, whichever worker is its primary.

mod aside;
mod membership;
#[cfg(feature = "testkit")]
mod steps;

use core::any::Any;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::Ordering;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;

use dominoes::group::WorkerState;
use dominoes::{ReadBatch, Seq, Spin, Subscription};

use super::execute::{Executor, Step};
use super::intake::Intake;
use super::pending::{Cursor, PendingEffects};
use super::queues::{QueueOrder, first_queue};
use super::slots::Snapshot;
use super::solo::LogMode;
use super::steal::{MOST_STOLEN, Stragglers};
use crate::drive::coalescing::CoalescingDelay;
use crate::drive::{self, CoreTime, TurnStep};
use crate::group::{FaultHooks, ReplicatedShared, STORED};
use crate::io::claim::MAX_CLAIM;
use crate::io::direct::DirectLog;
use crate::io::perform::BuiltHeaders;
use crate::io::record::{Entry, Recorder};
use crate::io::rx::Log;
use crate::io::sleep::{Sleep, sleep_alone};
use crate::io::world::Wakes;
use crate::io::{BatchRuns, FrameRecycler};
use crate::log::effect::Effect;
use crate::log::request::{Request, Verdict};
use crate::state::apply::ReplicaState;
use crate::stats::{EffectStats, PumpStats, WorkerStats};
use crate::time::{Duration, Instant};
use aside::{PumpCounts, Quiet};

/// After this many turns in a row without work in [`process_log`](ReplicatedWorker::process_log), a
/// worker sends without regard to the ends of chunks.
const IDLE_TURNS: u32 = 16;
/// Once a turn has applied this many requests at once, it takes no further ones that way; the most
/// that it then applies with pending effects. About two batches of frames, if each frame is a
/// request.
const MOST_APPLIED: usize = 256;

/// If frames wait and none was sent for so long, any worker sends, even a busy one. Building a few
/// chunks of frames takes about this long.
const SEND_TAKEOVER: Duration = Duration::from_micros(50);

/// Watches whether frames are sent.
#[derive(Clone, Copy, Default)]
struct SendWatch {
    /// Since when frames wait and none was sent.
    since: Instant,
    /// How many had been sent then.
    sent: u64,
}

/// A worker: holds one replica of a group's state, and does a share of the group's work.
pub struct ReplicatedWorker<T: FaultHooks = ()> {
    pub(crate) id: usize,
    pub(crate) shared: Arc<ReplicatedShared>,
    pub(crate) log: Subscription<Request, Spin>,
    pub(crate) replica: ReplicaState,
    pub(crate) pending: PendingEffects,
    /// Effects of a request that it performs at once; empty between two requests.
    pub(super) effects: Vec<Effect>,
    /// Its membership: active, joining, parked, ...
    pub(crate) state: WorkerState,
    /// With [`Layout::confirm`](crate::group::Layout): each fingerprint that it posted, up to this
    /// position of the log, equalled the fingerprint of a majority of the replicas.
    pub(crate) confirmed: Seq,
    /// What `state` was before this worker began to join; `Gone` if it was new.
    pub(crate) joined_from: WorkerState,
    /// Fingerprints that it computed during its join check, in which its state is compared with
    /// the states of others. They do not count yet, so they are kept here and not posted.
    pub(crate) unposted: Vec<(Seq, u64)>,
    /// Next request to consider for preparing.
    prepared: Seq,
    /// About how many payload bytes its own requests have that are prepared and not performed. When
    /// this reaches `ahead_bytes`, the worker prepares no more of its own and claims no frames; it
    /// parses and publishes only if a batch of any worker waits for that.
    pub(super) prepared_bytes: usize,
    /// How far its own share is performed.
    pub(crate) cursor: Cursor,
    /// Where the cursor was when it posted its counters.
    posted_at: Seq,
    /// The latest time that it was given.
    pub(crate) now: Instant,
    pub(crate) stragglers: Stragglers,
    send_watch: SendWatch,
    /// Turns in a row without work.
    pub(super) idle: u32,
    /// Whether the last turn found work.
    pub(super) was_busy: bool,
    quiet: Quiet,
    /// Its short sleeps in solo mode.
    pub(super) coalescing: CoalescingDelay,
    /// Whether it works with the log, or alone and without it (solo mode).
    pub(crate) log_mode: LogMode,
    /// Its state for working without the log.
    pub(crate) direct: DirectLog,
    /// Used frames that this worker has still to return to the device.
    pub(crate) recycler: Box<FrameRecycler>,
    /// The batch that it claimed and has not parsed, or has parsed and could not hand over yet.
    pub(crate) intake: Intake,
    /// How often it has looked at several queues.
    claims: u32,
    /// The time of the turn in which it looked at all queues of the device and found no frame;
    /// [`Instant::NEVER`] if its latest look found one.
    pub(crate) device_empty_at: Instant,
    /// Headers of the frames built last, for the next ones that have the same.
    pub(crate) headers: BuiltHeaders,
    /// Faults of a test. `T::ACTIVE`: the worker has fault hooks.
    pub(super) hooks: T,
    /// Whether `hooks` is changing the effects of a request.
    in_hooks: bool,
    pub(crate) stats: EffectStats,
}

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// A worker that continues from `snapshot`, in a slot that is reserved for it.
    pub(crate) fn new(
        id: usize,
        shared: Arc<ReplicatedShared>,
        snapshot: Snapshot,
        hooks: T,
    ) -> Self {
        // Counting continues where the earlier workers of this slot stopped.
        let stats = shared.slot_stats[id].load();
        let Snapshot {
            replica,
            log,
            pending,
        } = snapshot;
        ReplicatedWorker {
            id,
            now: Instant::ZERO,
            stragglers: Stragglers::new(shared.layout.slot_count()),
            shared,
            log,
            prepared: replica.position(),
            confirmed: replica.position(),
            joined_from: WorkerState::Active,
            unposted: Vec::new(),
            cursor: Cursor::at_first(&pending),
            replica,
            pending,
            effects: Vec::new(),
            state: WorkerState::Active,
            prepared_bytes: 0,
            posted_at: 0,
            send_watch: SendWatch::default(),
            idle: 0,
            coalescing: CoalescingDelay::default(),
            was_busy: false,
            quiet: Quiet::default(),
            log_mode: LogMode::Logged,
            direct: DirectLog::default(),
            recycler: Box::default(),
            intake: Intake::new(),
            claims: 0,
            device_empty_at: Instant::NEVER,
            hooks,
            in_hooks: false,
            headers: BuiltHeaders::default(),
            stats,
        }
    }

    /// A worker that is parked from the beginning.
    pub(crate) fn parked(id: usize, shared: Arc<ReplicatedShared>, hooks: T) -> Self {
        let nothing = Snapshot::none(shared.world.limits);
        let mut worker = ReplicatedWorker::new(id, shared, nothing, hooks);
        worker.state = WorkerState::Parked;
        worker
    }

    /// Whether this worker is the only active one, and works without the log.
    pub fn is_solo(&self) -> bool {
        self.log_mode == LogMode::Solo
    }

    /// If this worker was notified, handles what changed in the membership. Returns true if it is
    /// neither active nor leaving afterwards; then the caller does nothing.
    #[inline]
    pub(crate) fn handle_membership(&mut self) -> bool {
        self.shared.membership.is_notified(self.id) && self.handle_notification()
    }

    /// Whether it is active, and was not asked to leave.
    pub fn is_active(&self) -> bool {
        self.state == WorkerState::Active && !self.shared.membership.is_leaving(self.id)
    }

    /// Called when a turn begins: if the last one found work, the time from the beginning of that
    /// one (`self.now`) to now counts as busy.
    pub(super) fn count_busy(&mut self, now: Instant) {
        if self.was_busy {
            // ORDERING: Relaxed: only this worker writes it, and for others it is a measurement.
            let busy = &self.shared.busy[self.id];
            let passed = now.since(self.now).as_nanos();
            busy.store(busy.load(Ordering::Relaxed) + passed, Ordering::Relaxed);
        }
    }

    /// Leaves solo mode first. Then, if this worker is active: claims a batch of frames, parses it,
    /// and publishes parsed batches, unless another worker has the receive pump. A worker that has
    /// enough to do claims none, and does the rest only if a batch waits to be published. Returns
    /// how many frames it claimed and what it published, added up.
    pub fn pump_in_turn(&mut self, now: Instant) -> usize {
        self.return_to_log();
        if !self.may_take_frames() {
            return 0;
        }
        if self.has_enough() && !self.shared.batches.is_any_waiting() {
            return 0;
        }
        let is_direct = self.quiet.is_direct() && !self.is_parsing_due();
        let claimed = match is_direct {
            true => 0,
            false => self.claim_and_parse(now),
        };
        let Some((done, is_lone)) = self.take_pump(now, is_direct) else {
            return claimed;
        };
        if !is_lone {
            self.shared.work_event.notify_all();
        }
        claimed + done
    }

    fn claim_and_parse(&mut self, now: Instant) -> usize {
        let claimed = self.claim_batch(now).unwrap_or(0);
        self.parse();
        claimed
    }

    /// Whether a batch, of this worker or another one, is claimed and not published.
    #[inline]
    fn is_parsing_due(&self) -> bool {
        self.intake.is_busy() || self.shared.batches.is_any_waiting()
    }

    /// The queues of the device, in the order in which it looks at them now. If it has many used
    /// frames, it returns them first: their queues may be others than those where it looks.
    #[inline]
    pub(super) fn queues(&mut self) -> QueueOrder {
        let first = match self.shared.queues.len() {
            1 => 0,
            count => {
                if self.recycler.frames.len() > MAX_CLAIM {
                    self.return_frames();
                }
                self.claims = self.claims.wrapping_add(1);
                let active = self.shared.membership.staying();
                first_queue(count, (self.id, active), self.claims)
            }
        };
        self.shared.queues.from(first)
    }

    /// Whether it has so much to do that it need not claim more frames.
    #[inline]
    pub(crate) fn has_enough(&self) -> bool {
        self.prepared_bytes >= self.shared.layout.tuning.ahead_bytes
    }

    /// Whether it may claim frames and publish.
    #[inline]
    pub(crate) fn may_take_frames(&self) -> bool {
        self.state == WorkerState::Active
    }

    /// Takes the receive pump for one turn, and wakes the other workers if it published anything.
    pub(crate) fn publish_parsed(&mut self, now: Instant) -> Option<usize> {
        let (done, _) = self.take_pump(now, false)?;
        if done > 0 {
            self.shared.work_event.notify_all();
        }
        Some(done)
    }

    /// Takes the receive pump for one turn: publishes, and autoscales when that is due. The pump
    /// uses this worker's recycler, so frames return to the worker that needs them next. Returns
    /// how much was done, and whether that was lone requests. `None` if another worker has the
    /// pump. `is_direct`: the pump also claims the next frames, and publishes them at once.
    #[inline]
    fn take_pump(&mut self, now: Instant, is_direct: bool) -> Option<(usize, bool)> {
        let queues = is_direct.then(|| self.queues());
        let shared = &*self.shared;
        let mut rx_side = shared.rx.try_take()?;
        let (pump, mut log) = rx_side.parts(shared, self.id);
        log.verifies = is_direct.then_some(&mut self.stats);
        core::mem::swap(&mut pump.recycler, &mut self.recycler);
        let awaited = self.replica.awaited();
        let before = PumpCounts::by(pump);
        let (id, intake, empty_at) = (self.id, &mut self.intake, &mut self.device_empty_at);
        let is_empty = *empty_at == now;
        if is_direct {
            *empty_at = Instant::NEVER;
        }
        let done = pump.turn(now, awaited, &mut log, |pump, log| match &queues {
            None => intake.publish_waiting((shared, is_empty), pump, now, log),
            Some(queues) => {
                let device = (queues.clone(), &mut *empty_at);
                intake.claim_and_publish((shared, id), device, pump, now, log)
            }
        });
        let is_lone = self.quiet.count_published(before, pump, done);
        core::mem::swap(&mut pump.recycler, &mut self.recycler);
        if shared.layout.autoscale && rx_side.autoscaler.is_due(now) {
            shared.autoscale(&mut rx_side.autoscaler, now);
        }
        Some((done, is_lone))
    }

    /// Prepares, applies and performs the requests below `end`; it also sends frames in between.
    #[inline(never)]
    fn process_log(&mut self, end: Seq) -> usize {
        // A lone request is often prepared before it is published.
        let from = self.replica.position();
        let is_prepared = from + 1 == end && self.shared.verdicts.get(from).is_some();
        let mut done = match is_prepared && self.cursor.seq == from {
            true => 0,
            false => self.prepare_mine(),
        };
        let most_frames = self.shared.layout.tuning.frame_chunk as u32;
        while done < MOST_APPLIED {
            match self.apply_at_once(most_frames) {
                0 => break,
                applied => done += applied + self.send_in_turn(false),
            }
            if self.has_done_share(end) {
                self.stragglers.blocked = false;
                self.post_stats();
                return done;
            }
        }
        done += self.apply_ready(MOST_APPLIED);
        done + self.perform_and_send()
    }

    /// Whether it has applied all requests below `end`, and performed its share of them.
    #[inline]
    fn has_done_share(&self, end: Seq) -> bool {
        self.replica.position() == end && self.cursor.seq == end
    }

    /// [Claims](Self::claim) a batch, [parses](Self::parse) it, and [publishes](Self::publish).
    /// Returns the larger of what it claimed and what it published. `None` if another worker has
    /// the receive pump, or if this one is not active or has no replica.
    pub fn pump(&mut self, now: Instant) -> Option<usize> {
        let claimed = self.claim(now).unwrap_or(0);
        self.parse();
        let published = self.publish(now)?;
        Some(published.max(claimed))
    }

    /// Prepares this worker's requests, in order, until `prepared_bytes` reaches `ahead_bytes`.
    fn prepare_mine(&mut self) -> usize {
        let ReplicatedWorker {
            id,
            shared,
            log,
            replica,
            prepared,
            prepared_bytes,
            recycler,
            stats,
            hooks,
            ..
        } = self;
        let end = log.end();
        let mut done = 0;
        let mut reading: Option<ReadBatch<'_, BatchRuns>> = None;
        *prepared = (*prepared).max(replica.position());
        while *prepared < end && *prepared_bytes < shared.layout.tuning.ahead_bytes {
            let seq = *prepared;
            *prepared += 1;
            let Some(request) = log.get(seq) else {
                continue;
            };
            if usize::from(request.in_batch.primary) != *id {
                continue;
            }
            *prepared_bytes += request.digest.len as usize;
            if shared.verdicts.get(seq).is_some() {
                continue;
            }
            let first = request.in_batch.first(seq);
            if reading.as_ref().is_none_or(|batch| batch.first() != first) {
                recycler.put_read(reading.take());
                reading = shared.records.read(first);
            }
            let runs = reading.as_ref().map(ReadBatch::value);
            if let Some(run) = runs.and_then(|runs| runs.get(request.in_batch.index)) {
                done += usize::from(shared.prepare(seq, request, run, stats, || {
                    if T::ACTIVE {
                        hooks.before_preparing(seq);
                    }
                }));
            }
        }
        recycler.put_read(reading);
        done
    }

    /// Prepares the request at `seq`, whichever worker is its primary, if that is still to be done,
    /// and this worker has seen it published and not applied it. Returns whether it did.
    pub fn prepare(&mut self, seq: u64) -> bool {
        if self.handle_membership() {
            return false;
        }
        self.prepare_one(seq)
    }

    pub(super) fn prepare_one(&mut self, seq: u64) -> bool {
        if self.shared.verdicts.get(seq).is_some() {
            return false;
        }
        let Some(request) = self.log.get(seq) else {
            return false;
        };
        let in_batch = request.in_batch;
        let Some(reading) = self.shared.records.read(in_batch.first(seq)) else {
            return false;
        };
        let done = reading.value().get(in_batch.index).is_some_and(|run| {
            self.shared.prepare(seq, request, run, &mut self.stats, || {
                if T::ACTIVE {
                    self.hooks.before_preparing(seq);
                }
            })
        });
        self.recycler.put_read(Some(reading));
        done
    }

    /// Applies at most `most` requests. A panic of a connection ends that connection (see
    /// [`ReplicaState::recover`]).
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

    /// If the panic came from applying a request, completes that request; else resumes the panic.
    #[cold]
    fn after_panic(&mut self, panic: Box<dyn Any + Send>) {
        let seq = self.pending.end();
        match self.log.get(seq) {
            Some(request) if self.replica.position() == seq + 1 && !self.in_hooks => {
                self.replica.recover(panic, request, &mut self.pending);
                let frames = self.replica.frames().next;
                self.pending.commit(request, false, frames);
                self.post_if_due(seq + 1);
            }
            _ => resume_unwind(panic),
        }
    }

    /// If any worker is late: prepares the next request on behalf of its primary, and applies it.
    /// Returns whether it did.
    fn apply_for_straggler(&mut self) -> bool {
        self.stragglers.any && self.prepare_one(self.replica.position()) && self.apply_one()
    }

    /// Applies the next request if it is published and prepared (if a worker is late, prepares it
    /// before). Returns whether it did.
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
        let mut changed = None;
        let replica = &mut self.replica;
        let Some((request, verdict, is_stored)) =
            ready(&mut self.hooks, replica, seq, request, found, &mut changed)
        else {
            return false;
        };
        self.replica
            .apply_unguarded(request, verdict, &mut self.pending);
        if T::ACTIVE {
            // A panic in here is not one of the connection.
            self.in_hooks = true;
            self.pending
                .change_uncommitted(|effects| self.hooks.change_effects(seq, effects));
            self.in_hooks = false;
        }
        let frames = self.replica.frames().next;
        self.pending.commit(request, is_stored, frames);
        self.quiet.note(request);
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
        let mut fingerprint = self.replica.post(position / posts.every());
        if self.shared.layout.confirm {
            // The state alone may hide an error, since a wrong value may be overwritten before the
            // next post. So the effects of all requests up to here count, too.
            fingerprint = fingerprint.rotate_left(1) ^ self.pending.fingerprint();
        }
        if self.state == WorkerState::JoinCheck {
            self.unposted.push((position, fingerprint));
            return;
        }
        self.shared.post(self.id, position, fingerprint);
    }

    /// Performs this worker's share. After each `frame_chunk` frames it tries to send, so that the
    /// peer need not wait until all of the share is performed.
    fn perform_and_send(&mut self) -> usize {
        let most_frames = self.shared.layout.tuning.frame_chunk as u32;
        let mut done = 0;
        loop {
            let (performed, last) = self.perform_mine(most_frames);
            done += performed;
            if last != Step::Performed {
                return done;
            }
            done += self.send_in_turn(false);
        }
    }

    /// Performs this worker's share, up to `most_frames` frames. Returns how many effects, or parts
    /// of them, that were, and why it ended: as many frames are built (`Performed`), nothing is
    /// left up to the limit (`End`), or another worker has begun the next piece (`Blocked`).
    fn perform_mine(&mut self, most_frames: u32) -> (usize, Step) {
        let mut done = 0;
        let limit = self.perform_limit();
        let mut executor = self.executor();
        let before = executor.stats.frames;
        let last = loop {
            if executor.cursor.seq >= limit {
                break Step::End;
            }
            let built = (executor.stats.frames - before) as u32;
            if built >= most_frames {
                break Step::Performed;
            }
            match executor.step(most_frames - built) {
                Step::Performed => done += 1,
                Step::Passed => {}
                last => break last,
            }
        };
        drop(executor);
        self.stragglers.blocked = last == Step::Blocked;
        self.post_stats();
        (done, last)
    }

    /// Performs this worker's next effect, or the next frame of one. If there is none, or none can
    /// be performed now, steals late work. Returns whether it performed or stole anything.
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
        self.post_stats();
        last == Step::Performed || self.steal_now(1) > 0
    }

    fn executor(&mut self) -> Executor<'_, T> {
        Executor {
            id: self.id,
            shared: &self.shared,
            pending: &self.pending,
            cursor: &mut self.cursor,
            prepared_bytes: &mut self.prepared_bytes,
            headers: &mut self.headers,
            stats: &mut self.stats,
            hooks: &mut self.hooks,
            recycler: &mut self.recycler,
            wakes: Wakes::new(&self.shared.world),
            begun: None,
        }
    }

    /// Posts its counters if its cursor has moved.
    fn post_stats(&mut self) {
        if self.posted_at != self.cursor.seq {
            self.posted_at = self.cursor.seq;
            self.shared.slot_stats[self.id].post(&self.stats);
        }
    }

    /// Drops effects that are done, and steals late work, if it is time to check. Returns how much
    /// was done.
    #[inline]
    pub(super) fn steal_if_due(&mut self, idle: bool) -> usize {
        let pending = self.pending.applied.len();
        let about = (pending, idle);
        if !self.stragglers.is_due(self.now, about, &self.shared.layout) {
            return 0;
        }
        self.steal_now(MOST_STOLEN)
    }

    #[inline(never)]
    fn steal_now(&mut self, most: usize) -> usize {
        self.forget();
        if !self.stragglers.check(self.now, &self.shared, &self.pending) {
            return 0;
        }
        let stolen = self.scan(most);
        self.forget();
        self.shared.slot_stats[self.id].post(&self.stats);
        stolen
    }

    #[cold]
    fn scan(&mut self, most: usize) -> usize {
        let limit = self.perform_limit();
        let mut cursor = Cursor::at_first(&self.pending);
        let mut executor = Executor {
            id: self.id,
            shared: &self.shared,
            pending: &self.pending,
            cursor: &mut cursor,
            prepared_bytes: &mut self.prepared_bytes,
            headers: &mut self.headers,
            stats: &mut self.stats,
            hooks: &mut self.hooks,
            recycler: &mut self.recycler,
            wakes: Wakes::new(&self.shared.world),
            begun: None,
        };
        executor.scan(&mut self.stragglers, limit, most)
    }

    /// Drops pending effects before the cursor that are done.
    fn forget(&mut self) {
        self.cursor.effect -= self.pending.forget(self.cursor.seq, &self.shared);
    }

    /// Sends frames, to the end of the chunk of the next one; all if it is `idle`, if frames wait
    /// too long, or if no other worker is active. Sends nothing if another worker has the transmit
    /// pump.
    #[inline]
    pub(crate) fn send_in_turn(&mut self, idle: bool) -> usize {
        let sent = self.shared.world.tx.sent();
        match self.has_sent_all(sent) {
            true => 0,
            false => self.send_from(sent, idle),
        }
    }

    #[inline(never)]
    fn send_from(&mut self, sent: u64, idle: bool) -> usize {
        let sends_all =
            idle || self.is_sender_late(sent) || self.shared.membership.is_only_active(self.id);
        let below = match sends_all {
            true => u64::MAX,
            false => self.shared.world.tx.chunk_end(sent),
        };
        match self.shared.tx.try_take() {
            Some(mut tx) => tx.turn_below(below),
            None => 0,
        }
    }

    /// Whether the device has taken all frames that this worker knows of, and `sent` numbered ones.
    #[inline]
    fn has_sent_all(&mut self, sent: u64) -> bool {
        let all = self.shared.world.has_sent_all(self.replica.frames().next);
        if all {
            self.send_watch = SendWatch {
                since: self.now,
                sent,
            };
        }
        all
    }

    /// Whether frames wait and none was sent for [`SEND_TAKEOVER`]. The worker that builds them may
    /// be held up.
    #[inline]
    fn is_sender_late(&mut self, sent: u64) -> bool {
        let now = self.now;
        if self.send_watch.sent != sent {
            self.send_watch = SendWatch { since: now, sent };
            return false;
        }
        now.since(self.send_watch.since) >= SEND_TAKEOVER
    }

    /// Takes the transmit pump for one turn. `None` if another worker has it.
    pub fn send(&mut self) -> Option<usize> {
        Some(self.shared.tx.try_take()?.turn())
    }

    /// Takes the transmit pump and sends all control frames and one numbered frame. `None` if
    /// another worker has it.
    pub fn send_one(&mut self) -> Option<usize> {
        Some(self.shared.tx.try_take()?.step())
    }

    /// Its copy of the group's state.
    pub fn replica(&self) -> &ReplicaState {
        &self.replica
    }

    /// Effects that are pending here, of all primaries, oldest first.
    pub fn pending_effects(&self) -> impl Iterator<Item = &Effect> {
        self.pending.effects.iter()
    }

    /// The end of the log now, for choosing what to prepare.
    pub fn published(&mut self) -> u64 {
        self.log.poll()
    }

    /// Returns used frames to the device before this worker sleeps. If another worker is claiming
    /// from their queue, it may need frames, so they are left in the place where it looks for them.
    pub(crate) fn put_back(&mut self) {
        if self.recycler.frames.is_empty() {
            return;
        }
        self.return_frames();
        if !self.recycler.frames.is_empty() {
            self.shared.world.give_back(&mut self.recycler.frames);
        }
    }

    /// Returns used frames to those queues of the device that no other worker has.
    fn return_frames(&mut self) {
        let queues = &self.shared.queues;
        for mut claimer in queues.from(0).filter_map(|queue| queues.try_take(queue)) {
            claimer.put_back(&mut self.recycler.frames);
        }
    }

    /// Drops effects that are known to be done. Returns whether some applied requests are not yet
    /// known to be done; if so, this worker must not sleep without a deadline.
    pub(crate) fn has_pending_effects(&mut self) -> bool {
        self.forget();
        !self.pending.applied.is_empty()
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
    fn begin(&mut self, now: Option<Instant>) -> Result<(), usize> {
        if let Some(now) = now {
            if self.shared.layout.autoscale {
                self.count_busy(now);
            }
            self.now = self.now.max(now);
        }
        let is_away = self.handle_membership();
        if is_away && now.is_some() {
            self.was_busy = false;
        }
        self.begin_quiet(now);
        if is_away {
            return Err(0);
        }
        if self.quiet.naps {
            self.was_busy = false;
            return Err(1 + self.serve_units());
        }
        Ok(())
    }

    /// By default the worker that parses a batch is the primary of its requests: frames come in and
    /// go out through the cache of the core that works on them.
    #[inline]
    fn receive(&mut self, now: Instant) -> usize {
        match self.needs_log() {
            true if self.quiet.is_aside => 0,
            true => self.pump_in_turn(now),
            false => self.pump_alone(now),
        }
    }

    #[inline]
    fn process(&mut self) -> usize {
        match self.log_mode {
            LogMode::Solo => self.process_solo(),
            _ => match self.log.poll() {
                end if self.has_done_share(end) => 0,
                end => self.process_log(end),
            },
        }
    }

    #[inline]
    fn transmit(&mut self, is_idle: bool) -> usize {
        if self.is_solo() {
            return match self.shared.world.has_sent_all(self.replica.frames().next) {
                true => 0,
                false => self.send().unwrap_or(0),
            };
        }
        if self.quiet.is_aside {
            return 0;
        }
        self.idle = match is_idle {
            true => self.idle.saturating_add(1),
            false => 0,
        };
        self.send_in_turn(self.idle >= IDLE_TURNS)
    }

    /// If there is nothing else to do, prepares the next request that this replica has to apply,
    /// whichever worker is its primary.
    #[inline]
    fn help(&mut self, is_idle: bool) -> usize {
        if self.is_solo() || self.quiet.is_aside {
            return 0;
        }
        let stolen = self.steal_if_due(is_idle);
        let next = self.replica.position();
        match is_idle && stolen == 0 && next < self.log.end() {
            true => usize::from(self.prepare_one(next)),
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
        if !self.is_solo() {
            self.count_quiet();
        }
        if core::mem::take(&mut self.quiet.published_lone) {
            self.wake_if_due();
        }
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
            || self.has_requests()
            || self.cursor.seq < self.pending.end() && !self.stragglers.blocked
            || self.shared.world.has_units()
            || self.shared.tx.try_take().is_some_and(|tx| tx.has_work())
    }

    fn is_aside(&self) -> bool {
        self.quiet.is_aside && self.quiet.is_long_enough()
    }

    fn is_pump_busy(&self) -> bool {
        let side = self.shared.rx.try_take();
        let queues = self.shared.queues.try_take_all();
        self.needs_pump()
            || side.is_none_or(|side| side.pump.has_work())
            || queues.is_none_or(|queues| queues.has_rest())
    }

    fn needs_pump(&self) -> bool {
        self.shared.world.is_awaited(self.replica.awaited())
    }

    fn waits_for_others(&mut self) -> bool {
        self.lag() > 0
            || self.needs_pump()
            || self.has_pending_effects()
            || self.shared.world.has_unsent(self.replica.frames().next)
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
        self.quiet.fall_asleep();
        let sleep = Sleep {
            world: &shared.world,
            rx: || shared.take_rx(),
            tx: &shared.tx,
            event: &shared.work_event,
            sleepers: &shared.sleepers,
            workers: shared.active_count(),
        };
        sleep.sleep(now, self);
        self.quiet.sleeps = false;
    }

    fn wait_alone(&mut self, when: (Instant, Instant), others_have_work: &mut dyn FnMut() -> bool) {
        self.put_back();
        let shared = Arc::clone(&self.shared);
        let Some(mut rx) = shared.take_rx() else {
            return;
        };
        let next_try = shared.tx.try_take().and_then(|tx| tx.next_try());
        let has_work = || self.has_work() || self.needs_pump() || others_have_work();
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
        let index = u32::from(entry.request.in_batch.primary) % active.count_ones().max(1);
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

/// The `request` at `seq` with its verdict, and whether its payload is stored, if the verdict is
/// known. The hooks of a test may change all of them.
#[inline(always)]
pub(super) fn ready<'a, T: FaultHooks>(
    hooks: &mut T,
    replica: &mut ReplicaState,
    seq: Seq,
    request: &'a Request,
    found: Option<Verdict>,
    changed: &'a mut Option<Request>,
) -> Option<(&'a Request, Verdict, bool)> {
    // `STORED`, a bit in the word of the verdict, means that the worker that verified the checksum
    // copied the payload into the receive ring as well.
    let is_stored = found.is_some_and(|found| found & STORED != 0);
    let verdict = found.map(|found| found & !STORED);
    if !T::ACTIVE {
        return Some((request, verdict?, is_stored));
    }
    hooks.change_state(seq, replica);
    let changed = changed.insert(*request);
    let verdict = hooks.change_verdict(seq, verdict, changed)?;
    hooks.change_request(seq, changed);
    Some((changed, verdict, is_stored))
}

impl<T: FaultHooks> core::fmt::Debug for ReplicatedWorker<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ReplicatedWorker")
            .field("id", &self.id)
            .field("state", &self.state)
            .field("published", &self.log.end())
            .field("applied", &self.replica.position())
            .field("performed", &self.cursor.seq)
            .field("pending_from", &self.pending.first)
            .field("frames", &self.replica.frames().next)
            .field("room", &self.replica.frames().room())
            .field("deadline", &self.replica.next_deadline())
            .finish_non_exhaustive()
    }
}
