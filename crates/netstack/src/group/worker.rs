//! A worker holds one replica of a group's state, and does a share of the group's work.
//!
//! [A turn](crate::drive) is one round of it. These are its steps with the log:
//!
//! - Begin: the worker joins, leaves or parks, if that is asked for or
//!   [stays aside](super::aside).
//! - Receive: it claims a batch of frames from the device, so that no other worker claims them,
//!   parses it, and publishes it: frames become requests. Only the worker that has the
//!   receive pump publishes ([`intake`](super::intake)).
//! - Process: it [prepares](super::apply) requests, which yields their verdicts. A request names
//!   its primary, the worker that normally prepares it and performs its effects. The worker
//!   [applies](super::apply) requests in log order, up to the first without a verdict. Effects that
//!   it does not perform at once are retained ([pending](super::pending)) until they are known to
//!   be done. The worker
//!   [performs](super::execute) those whose primary it is: its share.
//! - Transmit: it sends built frames, to the end of a chunk; if it was idle for a while, beyond it.
//! - Help: it performs work of [stragglers](super::steal), workers that are late. If nothing else
//!   was to do, it prepares the next request, whichever worker is its primary.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use dominoes::group::WorkerState;
use dominoes::{Seq, Spin, Subscription};

use super::aside::Quiet;
use super::execute::Share;
use super::intake::Intake;
use super::membership::Snapshot;
use super::pending::{Cursor, PendingEffects};
use super::solo::LogMode;
use super::steal::Stragglers;
use crate::drive::coalescing::CoalescingDelay;
use crate::drive::{self, CoreTime, TurnStep};
use crate::group::{FaultHooks, ReplicatedShared};
use crate::io::direct::DirectLog;
use crate::io::perform::BuiltHeaders;
use crate::io::record::{Entry, Recorder};
use crate::io::rx::Log;
use crate::io::sleep::{Sleep, sleep_alone};
use crate::log::effect::Effect;
use crate::log::request::Request;
use crate::state::apply::ReplicaState;
use crate::stats::{PumpStats, WorkerStats};
use crate::time::{Duration, Instant};

/// After this many turns in a row without work in [`process_log`](ReplicatedWorker::process_log), a
/// worker sends without regard to the ends of chunks.
pub(super) const IDLE_TURNS: u32 = 16;
/// Once a turn has done this much (requests prepared, requests applied at once, frames sent), it
/// applies no further ones at once; the most that it then applies with pending effects. About two
/// batches of frames, if each frame is a request.
const MOST_APPLIED: usize = 256;

/// If frames wait and none was sent for so long, any worker sends beyond the end of a chunk, even a
/// busy one. Building a few chunks of frames takes about this long.
const SEND_TAKEOVER: Duration = Duration::from_micros(50);

/// A worker: holds one replica of a group's state, and does a share of the group's work.
pub struct ReplicatedWorker<T: FaultHooks = ()> {
    pub(crate) id: usize,
    pub(crate) shared: Arc<ReplicatedShared>,
    pub(crate) log: Subscription<Request, Spin>,
    pub(crate) replica: ReplicaState,
    pub(crate) pending: PendingEffects,
    /// Effects of the request that it applies; empty between two requests.
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
    pub(super) prepared: Seq,
    pub(crate) share: Share<T>,
    /// Where the cursor was when it posted its counters.
    pub(super) posted_at: Seq,
    /// The latest time that it was given.
    pub(crate) now: Instant,
    pub(crate) stragglers: Stragglers,
    /// Since when frames wait and none was sent, and how many had been sent then.
    pub(super) unsent_since: Instant,
    pub(super) sent_then: u64,
    /// Turns in a row in which [`process`](drive::Worker::process) found nothing.
    pub(super) idle: u32,
    /// Whether the last turn found work.
    pub(super) was_busy: bool,
    pub(super) quiet: Quiet,
    /// Its short sleeps in solo mode.
    pub(super) coalescing: CoalescingDelay,
    /// Whether it works with the log, or alone and without it (solo mode).
    pub(crate) log_mode: LogMode,
    /// Its state for working without the log.
    pub(crate) direct: DirectLog,
    /// The batch that it claimed and has not parsed, or has parsed and could not hand over yet.
    pub(crate) intake: Intake,
    /// How often it has looked at several queues.
    pub(super) claims: u32,
    /// The time of the turn in which it looked at all queues of the device and found no frame;
    /// [`Instant::NEVER`] if its latest turn found one, or did not look at all queues.
    pub(crate) device_empty_at: Instant,
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
            share: Share {
                cursor: Cursor::at_first(&pending),
                prepared_bytes: 0,
                headers: BuiltHeaders::default(),
                stats,
                hooks,
                recycler: Box::default(),
            },
            replica,
            pending,
            effects: Vec::new(),
            state: WorkerState::Active,
            posted_at: 0,
            unsent_since: Instant::ZERO,
            sent_then: 0,
            idle: 0,
            coalescing: CoalescingDelay::default(),
            was_busy: false,
            quiet: Quiet::default(),
            log_mode: LogMode::Logged,
            direct: DirectLog::default(),
            intake: Intake::new(),
            claims: 0,
            device_empty_at: Instant::NEVER,
        }
    }

    /// Prepares, applies and performs the requests below `end`; it also sends frames in between.
    #[inline(never)]
    fn process_log(&mut self, end: Seq) -> usize {
        // A lone request is often prepared before it is published.
        let from = self.replica.position();
        let is_prepared = from + 1 == end && self.shared.verdicts.get(from).is_some();
        let mut done = match is_prepared && self.share.cursor.seq == from {
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
    pub(super) fn has_done_share(&self, end: Seq) -> bool {
        self.replica.position() == end && self.share.cursor.seq == end
    }

    /// Sends all frames without numbers, and numbered ones: at most
    /// [`FRAMES_A_TURN`](crate::io::rx::FRAMES_A_TURN), and to the end of the chunk of the next one;
    /// beyond it if it is `idle`, if frames wait too long, or if no other worker is active. Sends
    /// nothing if another worker has the transmit pump.
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

    /// Whether the device has taken all frames that this worker knows of and no more, and `sent`
    /// numbered ones.
    #[inline]
    fn has_sent_all(&mut self, sent: u64) -> bool {
        let all = self.shared.world.has_sent_all(self.replica.frames().next);
        if all {
            (self.unsent_since, self.sent_then) = (self.now, sent);
        }
        all
    }

    /// Whether frames wait and none was sent for [`SEND_TAKEOVER`]. The worker that builds them may
    /// be held up.
    #[inline]
    fn is_sender_late(&mut self, sent: u64) -> bool {
        if self.sent_then != sent {
            (self.unsent_since, self.sent_then) = (self.now, sent);
        }
        self.now.since(self.unsent_since) >= SEND_TAKEOVER
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
}

impl<T: FaultHooks> drive::Worker for ReplicatedWorker<T> {
    fn id(&self) -> usize {
        self.id
    }

    fn name(&self) -> String {
        format!("replica {}", self.id)
    }

    #[inline]
    fn turn(&mut self, now: Instant) -> usize {
        match self.expects_lone() {
            true => self.lone_turn(now),
            false => self.whole_turn(now),
        }
    }

    /// Joins, leaves or parks if that is asked for.
    #[inline]
    fn begin(&mut self, now: Option<Instant>) -> Result<(), usize> {
        let before = self.now;
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
        self.begin_quiet(before, now);
        if is_away {
            return Err(0);
        }
        if self.quiet.rests {
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
            || self.share.cursor.seq < self.pending.end() && !self.stragglers.blocked
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
            effects: self.share.stats,
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
        let shared = &*self.shared;
        let active = shared.membership.active();
        let index = u32::from(entry.request.in_batch.primary) % active.count_ones().max(1);
        let id = (0..64)
            .filter(|id| active >> id & 1 == 1)
            .nth(index as usize);
        let by = (id.unwrap_or(0), self.now);
        let published = shared.with_pump(by, &mut self.share.recycler, None, |_, log| {
            let mut run = entry.prepare_world(&shared.world);
            log.publish(&mut run);
        });
        published.is_some()
    }

    fn take_recorder(&mut self) -> Option<Recorder> {
        self.shared.rx.try_take()?.pump.take_recorder()
    }

    fn is_replaceable(&self) -> bool {
        !self.has_left()
    }
}

impl<T: FaultHooks> core::fmt::Debug for ReplicatedWorker<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ReplicatedWorker")
            .field("id", &self.id)
            .field("state", &self.state)
            .field("published", &self.log.end())
            .field("applied", &self.replica.position())
            .field("performed", &self.share.cursor.seq)
            .field("pending_from", &self.pending.first)
            .field("frames", &self.replica.frames().next)
            .field("room", &self.replica.frames().room())
            .field("deadline", &self.replica.next_deadline())
            .finish_non_exhaustive()
    }
}

// The parts of a turn, one by one, so that each can be measured.
#[cfg(feature = "testkit")]
impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Reads how far the log is published, and prepares this worker's requests. Returns how many.
    pub fn prepare_ahead(&mut self) -> usize {
        self.log.poll();
        self.prepare_mine()
    }

    /// Applies the ready prefix of the log, as far as one turn does. Returns how many requests.
    pub fn apply_all(&mut self) -> usize {
        self.apply_ready(MOST_APPLIED)
    }

    /// Whether it and `other` posted equal fingerprints wherever both posted since `from`.
    pub(crate) fn posted_alike(&self, other: &ReplicatedWorker<T>, from: u64) -> bool {
        let posts = &self.shared.posts;
        let own = posts.all(self.id).into_iter();
        let mut own = own.filter(|(position, _)| *position >= from);
        own.all(|(position, fingerprint)| {
            let theirs = posts.at(other.id, position);
            theirs.is_none_or(|theirs| theirs == fingerprint)
        })
    }

    /// The position of the snapshot that the worker began with. Fingerprints that it posts after
    /// that position count when replicas differ.
    pub fn since(&self) -> u64 {
        self.shared.membership.since(self.id)
    }

    /// Performs all effects whose primary this worker is. Returns how many.
    pub fn perform_all(&mut self) -> usize {
        self.perform_mine(u32::MAX, usize::MAX)
    }
}
