//! One state guarded by locks; any thread may process any packet.
//!
//! The baseline of lock-based parallel stacks: packet-level parallelism as in E. M. Nahum, D. J.
//! Yates, J. F. Kurose, D. Towsley, *Performance issues in parallelized network protocols* (OSDI
//! 1994). By default one lock guards a connection's state, "TCP-1" of section 5.1, which was faster
//! there than every finer division; [`Granularity`] also has the finer ones. The state machine is
//! the same as in the other variants. Checksums are verified before the lock is taken; payload is
//! copied and frames are built after it is released:
//!
//! 1. a [`LockedWorker`] takes the receive pump, if it is free, and takes a batch of requests, made
//!    from at most [`LockedLayout::claim`] frames at a time;
//! 2. it verifies their checksums ([`LockedWorker::prepare`]);
//! 3. it takes the lock and applies them ([`LockedWorker::apply`]), which numbers frames and
//!    deliveries, so that later steps keep their order without tickets;
//! 4. it performs their effects ([`LockedWorker::perform`]), while other workers hold the lock;
//! 5. if it was the last to run the transmit pump, or is idle, it sends the frames that are ready.
//!
//! Batches may overtake each other between 1 and 3. That is the *misordering* of the paper's Table
//! 1: TCP sees segments out of order that the network did not reorder. [`LockStats`] counts
//! misordered segments and waiting; [`LockedWorker::lock_times`] has the waiting at each lock.
//!
//! The other costs that the paper measures are off by default: [`References`], [`Messages`],
//! [`Counting`] with and without tickets, and `LockedLayout::assume_in_order`.
//!
//! # Bounds
//! A request enters only if every request a [`LockedLayout::window`] or more before it is done. So
//! while delivery j is not stamped, at most two windows of requests are applied after it: one
//! window that had entered before its request but was not yet applied, and one that may enter after
//! it. There are twice as many delivery slots as requests in the window, so no slot is reused while
//! it is not stamped. A worker that is preempted with a batch delays the others once the window is
//! used up.

mod batch;
mod lock;
mod locks;
mod message;

pub use crate::stats::LockStats;
pub use lock::{Lock, LockKind, Mcs, Mutex};
pub use locks::{Granularity, LockName, LockTimes};
pub use message::{Counted, Counting, Messages, References};

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;
use dominoes::{EventCount, TryLock, TryLockGuard};
use dominoes_drivers::Device;

use crate::drive::{self, ByHand, Handle, TurnStep};
use crate::error::ConfigError;
use crate::io::RunFrames;
use crate::io::direct::Receiver;
use crate::io::record::{Entry, Recorder};
use crate::io::rx::{FRAMES_A_TURN, Log};
use crate::io::setup::Setup;
use crate::io::sleep::{Receiving, Sleep, Sleepers, sleep_alone};
use crate::io::tx::TxPump;
use crate::io::world::{Wakes, World};
use crate::log::effect::{Effect, EffectSink};
use crate::log::request::{Request, RequestKind, Verdict};
use crate::socket::Sockets;
use crate::state::apply::{Awaited, ReplicaState, Requests};
use crate::stats::{PumpStats, WorkerStats};
use crate::time::Instant;
use batch::{Batch, Intake, Item};
use locks::Locks;
use message::{Counter, FreeMessages, Sessions};

/// Value of [`LockedShared::oldest_carried`] for a worker whose batch is empty.
const IDLE: u64 = u64::MAX;

/// How many requests a worker applies each time it takes the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// All requests of its batch, made from at most 32 frames at a time.
    #[default]
    Batch,
    /// One request, which is a run of segments.
    Run,
}

dominoes_proto::settings! {
    /// The settings of a group. None of them changes the protocol.
    ///
    /// ```
    /// use dominoes_netstack::variants::locked::{Hold, LockedLayout};
    ///
    /// let layout = LockedLayout::default().workers(4).hold(Hold::Run);
    /// assert_eq!((layout.workers, layout.window), (4, 512));
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LockedLayout {
        /// Workers, 1 to 56. Default 2.
        pub workers: usize = 2, 1..=56, "1 to 56";
        /// Requests in flight, a power of two, 64 to 65536. Default 512.
        pub window: usize = 512, super::WINDOWS, "a power of two, 64 to 65536";
        /// How many requests are applied under the lock at a time. Default: a batch.
        pub hold: Hold = Hold::Batch;
        /// How many locks there are. Default: one.
        pub granularity: Granularity = Granularity::One;
        /// Frames that a worker takes from the device at a time, 1 to 32: with 1, the locks are
        /// taken for each packet. Default 32.
        pub claim: usize = FRAMES_A_TURN, 1..=FRAMES_A_TURN, "1 to 32";
        /// How layers count references. Default: not at all.
        pub references: References = References::None;
        /// Where the memory of messages comes from. Default: there are none.
        pub messages: Messages = Messages::None;
        /// Whether the application counts packets, and in which order. Default: no.
        pub counting: Counting = Counting::None;
        /// Treats each segment of an established connection as the next expected one, wherever it
        /// belongs (the paper's figure 10), to find an upper bound of the cost of misordering.
        /// Streams may arrive permuted; for measuring only. Default: no.
        pub assume_in_order: bool = false;
        /// Records the order in which requests went through the lock, for `LockedGroup::order`. The
        /// record grows without bound; for tests. Default: no.
        pub keep_order: bool = false;
    }
}

/// The value inside the lock.
struct State {
    replica: ReplicaState,
    /// One more than the highest position of a run applied so far.
    newest: u64,
    order: Option<Vec<u64>>,
    /// The next ticket, if the application counts.
    tickets: Option<u64>,
    assume_in_order: bool,
}

impl State {
    /// Applies requests of a worker's batch, and appends their effects to `effects`.
    fn apply(&mut self, items: &mut [Item], effects: &mut Vec<Effect>, stats: &mut LockStats) {
        let State {
            replica,
            newest,
            order,
            tickets,
            assume_in_order,
        } = self;
        if *assume_in_order {
            // One at a time, since each may change the expected sequence number.
            for item in items.iter_mut() {
                if let Some(expected) = replica.expected(item.request.digest.hint) {
                    item.request.digest.seg_seq = expected;
                }
                let begin = effects.len();
                let sink = &mut OfOne { effects, begin };
                let mut carried = BatchRequests {
                    items: core::slice::from_mut(item),
                    reached: 0,
                    newest,
                    order,
                    tickets,
                    stats,
                };
                replica.apply_each(&mut carried, sink);
            }
            return;
        }
        let begin = effects.len();
        let sink = &mut OfOne { effects, begin };
        let mut carried = BatchRequests {
            items,
            reached: 0,
            newest,
            order,
            tickets,
            stats,
        };
        replica.apply_each(&mut carried, sink);
    }
}

/// Requests of a batch, as `apply_each` reads them.
struct BatchRequests<'a> {
    items: &'a mut [Item],
    /// How many of them were started.
    reached: usize,
    newest: &'a mut u64,
    order: &'a mut Option<Vec<u64>>,
    tickets: &'a mut Option<u64>,
    stats: &'a mut LockStats,
}

impl Requests<OfOne<'_>> for BatchRequests<'_> {
    fn advance(&mut self) -> bool {
        let more = self.reached < self.items.len();
        self.reached += usize::from(more);
        more
    }

    fn current(&self) -> (&Request, Verdict) {
        let item = &self.items[self.reached - 1];
        (&item.request, item.verdict.unwrap_or(0))
    }

    fn take_effects(&mut self, sink: &mut OfOne<'_>) {
        let item = &mut self.items[self.reached - 1];
        if item.request.digest.kind == RequestKind::Segments {
            let segments = u64::from(item.request.digest.count);
            self.stats.segments += segments;
            if item.position < *self.newest {
                self.stats.misordered += segments;
            } else {
                *self.newest = item.position + 1;
            }
        }
        if let Some(order) = self.order {
            order.push(item.position);
        }
        let own = &sink.effects[sink.begin..];
        let delivers = |effect: &Effect| matches!(effect, Effect::Deliver(_) | Effect::Queue(_));
        if let Some(next) = self.tickets
            && own.iter().any(delivers)
        {
            item.ticket = Some(*next);
            *next += 1;
        }
        sink.begin = sink.effects.len();
        item.effects_end = sink.begin;
    }
}

/// Collects the effects of one request, after the effects of earlier ones.
struct OfOne<'a> {
    effects: &'a mut Vec<Effect>,
    begin: usize,
}

impl EffectSink for OfOne<'_> {
    fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    fn mark(&self) -> usize {
        self.effects.len() - self.begin
    }

    fn take_back(&mut self, mark: usize) {
        self.effects.truncate(self.begin + mark);
    }
}

/// The receive pump, and the position of the next request that it makes.
struct RxSide {
    receiver: Receiver,
    next: u64,
}

impl Receiving for TryLockGuard<'_, RxSide> {
    fn has_work(&mut self) -> bool {
        self.receiver.has_work()
    }

    fn next_deadline(&mut self) -> Instant {
        self.receiver.pump.next_deadline()
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.receiver.wait(timeout);
    }
}

struct LockedShared<K: LockKind> {
    world: Arc<World>,
    layout: LockedLayout,
    locks: Locks<K>,
    sessions: Sessions<K>,
    free_messages: FreeMessages<K>,
    counter: Counter<K>,
    rx: TryLock<RxSide>,
    tx: TryLock<TxPump>,
    /// The worker that last took over the transmit pump.
    sending: CachePadded<AtomicUsize>,
    /// What the state has awaited at the last release of the lock: a time, a count of sent frames.
    awaited: CachePadded<[AtomicU64; 2]>,
    /// For each worker, the position of the oldest request it carries.
    oldest_carried: Box<[CachePadded<AtomicU64>]>,
    /// Runs to be returned to the pump.
    back: SegQueue<Vec<RunFrames>>,
    /// Workers that do not have the receive pump sleep on this.
    work_event: EventCount,
    sleepers: Sleepers,
}

/// Fails a test in which the state caught an unexpected panic, however the test drove the group.
#[cfg(feature = "testkit")]
impl<K: LockKind> Drop for LockedShared<K> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let world = &self.world;
            self.locks
                .look(|state| world.assert_no_panics(state.replica.unexpected_panics()));
        }
    }
}

/// One state and its workers, [driven by hand](ByHand). `K` is the kind of lock.
pub type LockedGroup<K> = ByHand<LockedWorker<K>>;

impl<K: LockKind> LockedGroup<K> {
    /// A group over `device`.
    ///
    /// A recording ([`Setup::recorder`]) has requests in the order of the pump; with several
    /// workers the lock may admit them in another order.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn new(
        setup: Setup,
        layout: LockedLayout,
        device: Box<dyn Device>,
    ) -> Result<Self, ConfigError> {
        ConfigError::check(layout.out_of_range())?;
        let base = setup.build(device, 2 * layout.window, layout.workers)?;
        let state = State {
            replica: ReplicaState::new(base.world.limits),
            newest: 0,
            order: layout.keep_order.then(Vec::new),
            tickets: (layout.counting != Counting::None).then_some(0),
            assume_in_order: layout.assume_in_order,
        };
        let shared = Arc::new(LockedShared {
            world: base.world,
            layout,
            locks: Locks::new(layout.granularity, state),
            sessions: Sessions::new(layout.references),
            free_messages: FreeMessages::new(layout.messages),
            counter: Counter::new(layout.counting),
            rx: TryLock::new(RxSide {
                receiver: Receiver::new(base.rx, base.claimer),
                next: 0,
            }),
            tx: TryLock::new(base.tx),
            sending: CachePadded::new(AtomicUsize::new(layout.workers - 1)),
            awaited: CachePadded::new([const { AtomicU64::new(u64::MAX) }; 2]),
            oldest_carried: (0..layout.workers)
                .map(|_| CachePadded::new(AtomicU64::new(IDLE)))
                .collect(),
            back: SegQueue::new(),
            work_event: EventCount::new(),
            sleepers: Sleepers::default(),
        });
        let worker = |id| LockedWorker {
            id,
            shared: Arc::clone(&shared),
            batch: Batch::default(),
        };
        let workers: Vec<_> = (0..layout.workers).map(worker).collect();
        Ok(ByHand::new_over(workers, shared))
    }

    /// Positions of the applied requests in the order of the pump (0 on), listed in the order in
    /// which they went through the lock; empty without [`LockedLayout::keep_order`].
    #[cfg(feature = "testkit")]
    #[doc(hidden)]
    pub fn order(&self) -> Vec<u64> {
        let shared = &self.all_workers()[0].shared;
        shared
            .locks
            .look(|state| state.order.clone().unwrap_or_default())
    }

    /// The counts of the application, with [`LockedLayout::counting`].
    pub fn counted(&self) -> Counted {
        self.all_workers()[0].counted()
    }
}

impl<K: LockKind> Handle for LockedShared<K> {
    fn sockets(&self) -> Sockets {
        Sockets::new(&self.world)
    }

    fn wake_all(&self) {
        self.work_event.notify_all();
    }
}

/// One thread's part: its batch and its counters.
pub struct LockedWorker<K: LockKind> {
    id: usize,
    shared: Arc<LockedShared<K>>,
    batch: Batch,
}

impl<K: LockKind> LockedWorker<K> {
    fn apply_and_perform(&mut self) -> usize {
        let most = match self.shared.layout.hold {
            Hold::Batch => usize::MAX,
            Hold::Run => 1,
        };
        let shared = &self.shared;
        let mut wakes = Wakes::new(&shared.world);
        let mut done = 0;
        loop {
            let applied = self.batch.apply(shared, most);
            let mut performed = 0;
            while self.batch.perform_one(shared, &mut wakes) {
                performed += 1;
            }
            done += performed;
            if applied + performed == 0 {
                break;
            }
        }
        drop(wakes);
        self.finish();
        done
    }

    /// Runs the receive pump, for as many batches of frames as `single` takes in a turn, and keeps
    /// the requests. Returns `None` if another worker holds the pump, or if this worker still has a
    /// batch.
    pub fn pump(&mut self, now: Instant) -> Option<usize> {
        if !self.batch.is_empty() {
            return None;
        }
        let awaited = self.awaited();
        let mut side = self.shared.rx.try_take()?;
        let RxSide { receiver, next } = &mut *side;
        let mut intake = Intake {
            shared: &self.shared,
            id: self.id,
            next,
            batch: &mut self.batch,
        };
        Some(receiver.turns(now, awaited, &mut intake))
    }

    /// What the state has awaited at the last release of the lock.
    fn awaited(&self) -> Awaited {
        // ORDERING: Relaxed, as in `Batch::apply`.
        let [time, sent] = self
            .shared
            .awaited
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed));
        let time = Instant::from_nanos(time);
        Awaited { time, sent }
    }

    /// Verifies the checksums of the next request in this worker's batch. Returns whether there was
    /// one.
    pub fn prepare(&mut self) -> bool {
        self.batch.prepare_one(&self.shared)
    }

    /// Takes the lock and applies the next prepared request. Returns whether there was one.
    pub fn apply(&mut self) -> bool {
        self.batch.apply(&self.shared, 1) > 0
    }

    /// Performs the effects of the next applied request. Returns whether there was one.
    pub fn perform(&mut self) -> bool {
        let shared = &self.shared;
        let performed = self
            .batch
            .perform_one(shared, &mut Wakes::new(&shared.world));
        self.finish();
        performed
    }

    /// Releases the batch if it is done.
    fn finish(&mut self) {
        if let Some(runs) = self.batch.finish(&self.shared) {
            self.shared.back.push(runs);
            // ORDERING: Release, pairs with the Acquire in `Intake::performed`.
            self.shared.oldest_carried[self.id].store(IDLE, Ordering::Release);
        }
    }

    /// Runs the transmit pump for one turn; `None` if another worker has it.
    pub fn send(&mut self) -> Option<usize> {
        Some(self.shared.tx.try_take()?.turn())
    }

    /// This worker's waiting, summed over all locks, and its counts of segments.
    pub fn lock_stats(&self) -> LockStats {
        let counted = self.batch.lock_stats;
        LockStats {
            segments: counted.segments,
            misordered: counted.misordered,
            ..self.batch.times.sum()
        }
    }

    /// This worker's waiting at each lock.
    pub fn lock_times(&self) -> LockTimes {
        self.batch.times
    }

    /// The counts of the application so far, from all workers.
    pub fn counted(&self) -> Counted {
        self.shared.counter.counted()
    }
}

impl<K: LockKind> drive::Worker for LockedWorker<K> {
    fn id(&self) -> usize {
        self.id
    }

    fn name(&self) -> String {
        format!("worker {}", self.id)
    }

    fn receive(&mut self, now: Instant) -> usize {
        let done = self.pump(now).unwrap_or(0);
        if done > 0 {
            // The pump is free again, and there may be more.
            self.shared.work_event.notify_all();
        }
        done
    }

    /// Waits only for the locks.
    fn process(&mut self) -> usize {
        if self.batch.is_empty() {
            return 0;
        }
        while self.batch.prepare_one(&self.shared) {}
        self.apply_and_perform()
    }

    fn transmit(&mut self, is_idle: bool) -> usize {
        // ORDERING: Relaxed, here and where it is stored: a hint which worker should try;
        // `try_take` decides.
        let holder = self.shared.sending.load(Ordering::Relaxed) == self.id;
        if !holder && !is_idle {
            return 0;
        }
        let done = self.send().unwrap_or(0);
        if done > 0 && !holder {
            self.shared.sending.store(self.id, Ordering::Relaxed);
        }
        done
    }

    fn serve_units(&mut self) -> usize {
        let shared = &self.shared;
        shared.world.serve_units(|| shared.work_event.notify_all())
    }

    fn step(&mut self, step: TurnStep, now: Instant) -> bool {
        match step {
            TurnStep::Claim | TurnStep::Parse => false,
            TurnStep::Pump | TurnStep::Publish => self.pump(now).is_some_and(|done| done > 0),
            TurnStep::Prepare(_) => self.prepare(),
            TurnStep::Apply => self.apply(),
            TurnStep::Perform => self.perform(),
            TurnStep::Send | TurnStep::SendOne => self.send().is_some_and(|done| done > 0),
            TurnStep::Turn => self.turn(now) > 0,
        }
    }

    fn next_deadline(&self) -> Instant {
        let side = self.shared.rx.try_take();
        let pump = side.map_or(Instant::NEVER, |side| side.receiver.pump.next_deadline());
        self.state_deadline().min(pump)
    }

    fn state_deadline(&self) -> Instant {
        self.awaited().time
    }

    fn needs_pump(&self) -> bool {
        self.shared.world.is_awaited(self.awaited())
    }

    fn has_work(&mut self) -> bool {
        !self.batch.is_empty()
            || self.shared.world.has_units()
            || self.shared.tx.try_take().is_some_and(|tx| tx.has_work())
    }

    fn waits_for_others(&mut self) -> bool {
        let look = |state: &mut State| state.replica.frames().next;
        self.shared.world.has_unsent(self.shared.locks.look(look)) || self.needs_pump()
    }

    fn is_pump_busy(&self) -> bool {
        let side = self.shared.rx.try_take();
        side.is_none_or(|side| side.receiver.has_work()) || self.needs_pump()
    }

    fn stats(&self) -> WorkerStats {
        let effects = self.batch.effect_stats;
        WorkerStats {
            applied: effects.requests,
            effects,
            lock: self.lock_stats(),
        }
    }

    fn pump_stats(&self) -> Option<PumpStats> {
        self.shared.rx.try_take().map(|rx| rx.receiver.pump.stats())
    }

    fn inspect(&self, look: &mut dyn FnMut(&ReplicaState)) {
        if self.id == 0 {
            self.shared.locks.look(|state| look(&state.replica));
        }
    }

    fn attend(&mut self) -> bool {
        let world = &self.shared.world;
        let goes_on = !world.is_down();
        if goes_on && world.view.is_asked() {
            let answer = |state: &mut State| world.view.answer(&state.replica);
            self.shared.locks.look(answer);
        }
        goes_on
    }

    fn post(&mut self) {
        let state = self.shared.locks.look(|state| state.replica.stats());
        let rx = self.shared.rx.try_take();
        self.shared.world.post(|posted| {
            if state.requests >= posted.state.requests {
                posted.state = state;
            }
            if let Some(rx) = &rx {
                posted.pump = rx.receiver.pump.stats();
            }
        });
    }

    fn wait(&mut self, now: Instant) {
        let shared = Arc::clone(&self.shared);
        let sleep = Sleep {
            world: &shared.world,
            rx: || shared.rx.try_take(),
            tx: &shared.tx,
            event: &shared.work_event,
            sleepers: &shared.sleepers,
            workers: shared.layout.workers,
        };
        sleep.sleep(now, self);
    }

    fn wait_alone(&mut self, when: (Instant, Instant), others_have_work: &mut dyn FnMut() -> bool) {
        let shared = Arc::clone(&self.shared);
        let Some(mut side) = shared.rx.try_take() else {
            return;
        };
        let next_try = shared.tx.try_take().and_then(|tx| tx.next_try());
        let has_work = || self.has_work() || self.needs_pump() || others_have_work();
        sleep_alone(&shared.world, &mut side, when, next_try, has_work);
    }

    fn replay(&mut self, entry: &Entry) -> bool {
        let shared = Arc::clone(&self.shared);
        let Some(mut side) = shared.rx.try_take() else {
            return false;
        };
        let mut run = entry.prepare_world(&shared.world);
        let mut intake = Intake {
            shared: &shared,
            id: self.id,
            next: &mut side.next,
            batch: &mut self.batch,
        };
        intake.reclaim(&mut drop);
        intake.publish(&mut run);
        true
    }

    fn take_recorder(&mut self) -> Option<Recorder> {
        self.shared.rx.try_take()?.receiver.pump.take_recorder()
    }
}

/// If a worker panics, its batch is lost and the window never opens again. No application may wait
/// for that, so the stack shuts down.
impl<K: LockKind> Drop for LockedWorker<K> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.world.shut_down();
            self.shared.work_event.notify_all();
        }
    }
}
