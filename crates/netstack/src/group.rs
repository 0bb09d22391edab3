//! One log, a copy of the state per worker, and costly work by each request's primary alone.
//!
//! A [`ReplicatedGroup`] is a log with its workers. A [`ReplicatedWorker`] owns one replica of the
//! state. Its steps can be called one by one, in any order and interleaving, from one thread or
//! many. Threads have [turns](crate::variants::Worker::turn).
//!
//! No step waits for another worker. The worker that parsed a request is its primary, unless the
//! group has other [`Primaries`]. Outgoing frames are assigned by chunks of their own numbers, so
//! that many workers share the work of a request that causes many frames.

mod apply;
mod aside;
mod autoscale;
mod divergence;
mod execute;
mod intake;
mod layout;
mod lone;
mod membership;
mod pending;
mod primaries;
mod solo;
mod steal;
mod worker;

use aside::{LONE_BYTES, LONE_FRAMES};
use autoscale::{Autoscaler, ScaleDecision, WorkDone};
use intake::WaitingBatches;
pub use layout::{GroupTuning, Layout};
pub use membership::{JoiningWorker, MembershipHandle};
use membership::{Members, Snapshot};
use pending::PendingEffects;
pub use primaries::Primaries;
use primaries::Rule;
pub use worker::ReplicatedWorker;

use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use dominoes::{
    BatchRecords, BatchWriter, ChannelStats, EventCount, Fingerprints, Mismatch, Publisher, Spin,
    TryLock, TryLockGuard, Verdicts,
};
use dominoes_drivers::Device;

use crate::drive::{ByHand, Handle, Joining};
use crate::error::{ConfigError, MembershipError};
use crate::io::claim::{AllQueues, Queues};
use crate::io::prepare::prepare_and_store;
use crate::io::rx::{Log, RxPump};
use crate::io::setup::Setup;
use crate::io::sleep::{Receiving, Sleepers};
use crate::io::tx::TxPump;
use crate::io::world::World;
use crate::io::{BatchFrames, ClaimedFrames, FrameRecycler, Run};
use crate::log::effect::Effect;
use crate::log::request::{InBatch, Request, Verdict};
use crate::socket::Sockets;
use crate::state::apply::ReplicaState;
use crate::stats::{AutoscaleStats, EffectStats, MembershipStats, PostedStats};
use crate::time::{Duration, Instant};

/// Fingerprints that each replica keeps posted for comparison.
const POSTS: usize = 64;
/// What the workers of a group share.
pub(crate) struct ReplicatedShared {
    pub(crate) world: Arc<World>,
    layout: Layout,
    verdicts: Verdicts,
    /// The record of each published batch: its frames, and how far its effects are performed, but
    /// for the building of frames.
    records: Arc<BatchRecords<BatchFrames>>,
    /// The receiving half of the device: its queues.
    pub(crate) queues: Queues,
    /// Batches that are claimed and not published.
    pub(crate) batches: WaitingBatches,
    pub(crate) rx: CachePadded<TryLock<RxSide>>,
    pub(crate) tx: CachePadded<TryLock<TxPump>>,
    /// Who is primary, if that is not as by default.
    rule: Option<Box<Rule>>,
    /// Which slots are active, leaving, parked and so on.
    membership: Members,
    posts: Fingerprints,
    /// For each slot, what its workers performed.
    slot_stats: Box<[CachePadded<PostedStats>]>,
    /// For each slot, how long turns took that found something to do, in ns.
    busy: Box<[CachePadded<AtomicU64>]>,
    /// For each slot, how long its thread used a core and waited for one, in ns.
    core_time: Box<[CachePadded<[AtomicU64; 2]>]>,
    /// What autoscaling did: `AutoscaleStats::to_word`.
    scaled: AtomicU64,
    /// Workers that do not have the receive pump sleep on this.
    pub(crate) work_event: EventCount,
    /// Parked workers sleep on this.
    pub(crate) unpark_event: EventCount,
    pub(crate) sleepers: Sleepers,
    /// The log, for reading its counters.
    pub(crate) log: dominoes::Log<Request, Spin>,
}

/// The receive pump and the writing end of the log.
pub(crate) struct RxSide {
    pub(crate) pump: RxPump,
    publisher: Publisher<Request, Spin>,
    writer: BatchWriter<BatchFrames>,
    /// How many requests the log had room for at the last look, less those published since.
    room: usize,
    autoscaler: Autoscaler,
}

/// The receive pump and the device, for a worker that sleeps in the device.
pub(crate) struct RxGuard<'a> {
    side: TryLockGuard<'a, RxSide>,
    queues: AllQueues<'a>,
}

impl Receiving for RxGuard<'_> {
    fn has_work(&mut self) -> bool {
        self.side.pump.has_work() || self.queues.has_rest()
    }

    fn next_deadline(&mut self) -> Instant {
        self.side.pump.next_deadline()
    }

    fn wait(&mut self, timeout: Option<core::time::Duration>) {
        self.queues.wait(timeout);
    }
}

impl ReplicatedShared {
    /// Lets worker `id` work with the receive pump, which uses the worker's `recycler` meanwhile:
    /// so frames return to the worker that needs them next. Then autoscales, if that is due. `None`
    /// if another worker has the pump. `verifies`: see [`GroupLog`].
    #[inline(always)]
    fn with_pump<R>(
        &self,
        (id, now): (usize, Instant),
        recycler: &mut Box<FrameRecycler>,
        verifies: Option<&mut EffectStats>,
        work: impl FnOnce(&mut RxPump, &mut GroupLog<'_>) -> R,
    ) -> Option<R> {
        let mut side = self.rx.try_take()?;
        let side = &mut *side;
        let mut log = GroupLog {
            shared: self,
            holder: id as u8,
            publisher: &mut side.publisher,
            writer: &mut side.writer,
            room: &mut side.room,
            verifies,
            verified: 0,
        };
        core::mem::swap(&mut side.pump.recycler, recycler);
        let result = work(&mut side.pump, &mut log);
        core::mem::swap(&mut side.pump.recycler, recycler);
        if self.layout.autoscale && side.autoscaler.is_due(now) {
            self.autoscale(&mut side.autoscaler, now);
        }
        Some(result)
    }

    /// The receive pump and the device, unless a worker has one of them.
    pub(crate) fn take_rx(&self) -> Option<RxGuard<'_>> {
        let side = self.rx.try_take()?;
        let queues = self.queues.try_take_all()?;
        Some(RxGuard { side, queues })
    }

    /// Asks the autoscaler whether one worker more or less should be active, and changes that.
    #[cold]
    fn autoscale(&self, autoscaler: &mut Autoscaler, now: Instant) {
        let mut done = WorkDone::default();
        for (stats, busy) in self.slot_stats.iter().zip(&self.busy) {
            let stats = stats.load();
            done.payload_bytes += stats.delivered_bytes + stats.sent_bytes;
            done.requests += stats.requests;
            done.busy = done.busy + Duration::from_nanos(busy.load(Ordering::Relaxed));
        }
        for place in &self.core_time {
            let [used, waited] = &**place;
            let time = |word: &AtomicU64| Duration::from_nanos(word.load(Ordering::Relaxed));
            done.cores.used = done.cores.used + time(used);
            done.cores.waited = done.cores.waited + time(waited);
        }
        let active = u64::from(self.membership.staying().count_ones());
        let is_made = match autoscaler.decide(now, done, active, self.membership.parked() != 0) {
            ScaleDecision::Keep => true,
            ScaleDecision::Unpark => self.unpark_one(),
            ScaleDecision::Park => self.park_last(),
        };
        if !is_made {
            autoscaler.change_failed();
        }
        let word = autoscaler.stats().to_word();
        // ORDERING: Relaxed: only the worker with the pump writes it, and it is a measurement.
        self.scaled.store(word, Ordering::Relaxed);
    }
}

impl Handle for Arc<ReplicatedShared> {
    fn sockets(&self) -> Sockets {
        Sockets::new(&self.world)
    }

    fn compare(&self) -> Result<usize, Mismatch> {
        self.posts.compare()
    }

    fn shares(&self) -> Vec<EffectStats> {
        self.slot_stats.iter().map(|stats| stats.load()).collect()
    }

    fn membership_stats(&self) -> MembershipStats {
        self.membership.stats()
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
        self.layout.tuning.revive
    }

    fn wake_all(&self) {
        self.unpark_event.notify_all();
        self.work_event.notify_all();
    }
}

/// The log as the pump sees it.
struct GroupLog<'a> {
    shared: &'a ReplicatedShared,
    publisher: &'a mut Publisher<Request, Spin>,
    writer: &'a mut BatchWriter<BatchFrames>,
    room: &'a mut usize,
    /// The worker that has the pump.
    holder: u8,
    /// Its counters, if it verifies a lone request before it publishes that: no other worker does
    /// meanwhile, so it need not begin a verdict.
    verifies: Option<&'a mut EffectStats>,
    /// How many it verified. It leaves those after the first few to their primaries: it has the
    /// pump.
    verified: u32,
}

impl GroupLog<'_> {
    /// Publishes the requests of a batch that `worker` parsed, and their `frames`; there is room
    /// for them.
    #[inline]
    fn publish_batch(&mut self, worker: u8, runs: &mut [Run], frames: BatchFrames) {
        let has_payload = runs.iter().any(|run| run.request.digest.len > 0);
        let (first, len) = (self.publisher.next_seq(), runs.len());
        *self.room = self.room.saturating_sub(len);
        let by = (worker, self.holder);
        let primary = self.shared.name_primary(by, (first, len), has_payload);
        let put = self.writer.put(len, frames);
        assert!(
            put.is_ok_and(|put| put == first),
            "the log and its batches are out of step at {first}"
        );
        for (index, run) in runs.iter_mut().enumerate() {
            run.request.in_batch = InBatch {
                primary,
                index: index as u8,
                left: (len - 1 - index) as u8,
            };
            if let Some(verdict) = run.verdict {
                self.shared.verdicts.set(first + index as u64, verdict);
            }
        }
        let requests = runs.iter().map(|run| run.request);
        let published = self.publisher.try_publish_all(requests);
        assert!(published.is_ok(), "published without room at {first}");
    }
}

impl Log for GroupLog<'_> {
    /// Looks again only if less than half of the log is known to be free.
    #[inline]
    fn room(&mut self) -> usize {
        if *self.room < self.shared.layout.tuning.log / 2 {
            *self.room = self.writer.room().min(self.publisher.room());
        }
        *self.room
    }

    fn publish(&mut self, run: &mut Run) {
        let about = &run.request.digest;
        if !about.kind.has_frames() {
            run.verdict = Some(0);
        } else if run.verdict.is_none()
            && self.verified < LONE_FRAMES
            && about.len <= LONE_BYTES
            && let Some(stats) = &mut self.verifies
        {
            self.verified += 1;
            let world = &self.shared.world;
            let verdict = prepare_and_store(world, &run.request, &run.frames, stats);
            run.verdict = Some(verdict);
        }
        let frames = BatchFrames::One(core::mem::take(&mut run.frames));
        self.publish_batch(self.holder, core::slice::from_mut(run), frames);
    }

    /// The frames of a batch return as soon as it is done.
    fn reclaim(&mut self, _: &mut dyn FnMut(ClaimedFrames)) {}

    fn end(&self) -> u64 {
        self.writer.next_seq()
    }

    fn performed(&mut self) -> u64 {
        self.writer.done()
    }
}

/// Faults that a test plants in one worker, which the checks must find. Programs use `()`, which
/// plants none: the code that writes into rings trusts what these hooks return.
pub trait FaultHooks: Send + 'static {
    /// Whether any of the hooks does something.
    const ACTIVE: bool;
    /// Changes a request just before it is applied.
    fn change_request(&mut self, _seq: u64, _request: &mut Request) {}
    /// Gives a verdict for a request that has none yet, or replaces the one it has.
    fn change_verdict(
        &mut self,
        _seq: u64,
        verdict: Option<Verdict>,
        _request: &Request,
    ) -> Option<Verdict> {
        verdict
    }
    /// Changes what applying the request asked for.
    fn change_effects(&mut self, _seq: u64, _effects: &mut Vec<Effect>) {}
    /// Called when an effect of the request is about to be performed, or a frame of it to be built;
    /// the worker has begun its batch or chunk. May panic, and may return much later.
    fn before_performing(&mut self, _seq: u64, _effect: &Effect) {}
    /// Called when the payload of the request is about to be stored while it is verified; its
    /// verdict is begun. May panic, and may return much later.
    fn before_preparing(&mut self, _seq: u64) {}
    /// Changes the worker's state before the worker applies the request at `seq`.
    fn change_state(&mut self, _seq: u64, _replica: &mut ReplicaState) {}
    /// Whether to take a late worker's work without beginning it.
    fn steals_unbegun(&mut self, _seq: u64) -> bool {
        false
    }
    /// Whether to mark the batch of the request as done before the next effect is performed.
    fn finishes_early(&mut self, _seq: u64) -> bool {
        false
    }
}

impl FaultHooks for () {
    const ACTIVE: bool = false;
}

/// A log and its workers, [driven by hand](ByHand).
pub struct ReplicatedGroup<T: FaultHooks = ()> {
    by_hand: ByHand<ReplicatedWorker<T>>,
    shared: Arc<ReplicatedShared>,
    joining: Vec<JoiningWorker<T>>,
}

impl<T: FaultHooks> Deref for ReplicatedGroup<T> {
    type Target = ByHand<ReplicatedWorker<T>>;

    fn deref(&self) -> &ByHand<ReplicatedWorker<T>> {
        &self.by_hand
    }
}

impl<T: FaultHooks> DerefMut for ReplicatedGroup<T> {
    fn deref_mut(&mut self) -> &mut ByHand<ReplicatedWorker<T>> {
        &mut self.by_hand
    }
}

impl ReplicatedGroup {
    /// A group over `device`.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn new(setup: Setup, layout: Layout, device: Box<dyn Device>) -> Result<Self, ConfigError> {
        Self::with_fault_hooks(setup, layout, device, |_| ())
    }
}

impl<T: FaultHooks> ReplicatedGroup<T> {
    /// A group in which worker i has the fault hooks `hooks(i)`.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn with_fault_hooks(
        mut setup: Setup,
        layout: Layout,
        device: Box<dyn Device>,
        hooks: impl Fn(usize) -> T,
    ) -> Result<Self, ConfigError> {
        let layout = layout.checked()?;
        setup.frame_chunk = layout.tuning.frame_chunk;
        // As many slots as requests in flight: everything beside them, and the delivery slots of
        // every connection, are as many.
        let slots = layout.tuning.log;
        let slot_count = layout.slot_count();
        let (publisher, log) = dominoes::channel_with_slots::<Request, Spin>(slots, slots);
        let mut base = setup.build_divided(device, Device::split_queues, slots, slot_count)?;
        base.tx
            .transmitter
            .send_past(layout.tuning.past_hole as u64, layout.tuning.hole_turns);
        base.rx.stores_ahead = true;
        let (writer, records) = dominoes::batch_records(slots);
        let shared = Arc::new(ReplicatedShared {
            world: base.world,
            layout,
            verdicts: Verdicts::new(slots),
            records,
            queues: Queues::new(base.claimer, base.more_claimers),
            batches: WaitingBatches::new(),
            rx: TryLock::new(RxSide {
                pump: base.rx,
                publisher,
                writer,
                room: 0,
                autoscaler: Autoscaler::new(),
            })
            .into(),
            tx: TryLock::new(base.tx).into(),
            rule: Rule::of(&layout),
            membership: Members::new(slot_count, layout.replicas, layout.autoscale),
            posts: if layout.confirm {
                // Workers may be a log apart, and one may read positions that are a log older than
                // its own.
                Fingerprints::new(slot_count, 4 * slots, 1)
            } else {
                Fingerprints::new(slot_count, POSTS, layout.tuning.fingerprint_every)
            },
            slot_stats: (0..slot_count).map(|_| CachePadded::default()).collect(),
            busy: (0..slot_count).map(|_| CachePadded::default()).collect(),
            core_time: (0..slot_count).map(|_| CachePadded::default()).collect(),
            scaled: AtomicU64::new(0),
            work_event: EventCount::new(),
            unpark_event: EventCount::new(),
            sleepers: Sleepers::default(),
            log: log.clone(),
        });
        let mut workers = Vec::new();
        for id in 0..layout.replicas {
            let Ok(subscription) = log.subscribe() else {
                return Err(ConfigError::OutOfRange {
                    field: "replicas",
                    value: layout.replicas as u64,
                    allowed: "1 to 56",
                });
            };
            workers.push(ReplicatedWorker::new(
                id,
                Arc::clone(&shared),
                Snapshot {
                    replica: ReplicaState::new(shared.world.limits),
                    log: subscription,
                    pending: PendingEffects::default(),
                },
                hooks(id),
            ));
        }
        if layout.autoscale {
            let parked = layout.replicas..slot_count;
            workers.extend(
                parked.map(|id| ReplicatedWorker::parked(id, Arc::clone(&shared), hooks(id))),
            );
        }
        Ok(ReplicatedGroup {
            by_hand: ByHand::new_over(workers, Arc::new(Arc::clone(&shared))),
            shared,
            joining: Vec::new(),
        })
    }

    /// A handle by which workers join and leave once these workers run on threads.
    pub fn membership(&self) -> MembershipHandle {
        MembershipHandle::new(&self.shared)
    }

    /// Adds a worker, in slot `replica` or in any free one. It is among the workers once one of
    /// them has given it a state, more than half of three or more have attested to that state, and
    /// [`admit`](Self::admit) was called.
    ///
    /// # Errors
    /// If no slot is free, or no worker is left.
    pub fn join(&mut self, replica: Option<usize>, hooks: T) -> Result<usize, MembershipError> {
        let joining = JoiningWorker::new(&self.shared, replica, hooks)?;
        let replica = joining.replica();
        self.joining.push(joining);
        Ok(replica)
    }

    /// How many workers wait for a state.
    pub fn joining(&self) -> usize {
        self.joining.len()
    }

    /// Adds the workers that got their state. Returns how many.
    pub fn admit(&mut self) -> usize {
        let workers = self.by_hand.list();
        let before = workers.len();
        for joining in &mut self.joining {
            workers.extend(joining.try_join().map(Box::new));
        }
        self.joining.retain(JoiningWorker::is_waiting);
        workers.len() - before
    }

    /// Asks the worker in slot `replica` to leave, or the one in the last slot. It performs its
    /// share first; then [`ReplicatedWorker::has_left`] returns true.
    ///
    /// # Errors
    /// If there is no such worker, or it is the last.
    pub fn leave(&mut self, replica: Option<usize>) -> Result<usize, MembershipError> {
        self.shared.request_leave(replica)
    }

    /// Parks the last worker, as [`Layout::autoscale`] does, unless it is the only one. It performs
    /// its share first, and then gives up its state.
    pub fn park(&mut self) {
        self.shared.park_last();
    }

    /// Unparks a parked worker. It is active once it was given a state.
    pub fn unpark(&mut self) {
        self.shared.unpark_one();
    }

    /// Takes a worker out. When it is dropped, any other worker may do its share.
    ///
    /// # Panics
    /// If there is no worker `index`.
    pub fn take(&mut self, index: usize) -> ReplicatedWorker<T> {
        *self.by_hand.list().remove(index)
    }

    /// Its workers with their handle; those that wait for a state no longer do.
    pub fn into_by_hand(self) -> ByHand<ReplicatedWorker<T>> {
        self.by_hand
    }

    /// The workers, to be given to threads.
    pub fn into_workers(self) -> Vec<ReplicatedWorker<T>> {
        self.by_hand.into_workers()
    }

    /// Frames that were sent past one that was not built yet. `None` while a worker has the
    /// transmit pump.
    pub fn sent_past_holes(&self) -> Option<u64> {
        Some(self.shared.tx.try_take()?.transmitter.passed())
    }

    /// Records frames from now on, in the order in which the device takes them: their numbers, or
    /// `None` for one that the pump built by itself. Returns those recorded so far; `None` while a
    /// worker has the transmit pump.
    pub fn take_frame_order(&self) -> Option<Vec<Option<u64>>> {
        Some(self.shared.tx.try_take()?.transmitter.journal())
    }

    #[cfg(test)]
    pub(crate) const fn shared(&self) -> &Arc<ReplicatedShared> {
        &self.shared
    }
}
