//! One state, one lock around it, and any thread may process any packet.
//!
//! The baseline of lock-based parallel stacks: packet-level parallelism with one lock for a
//! connection's state, "TCP-1" of E. M. Nahum, D. J. Yates, J. F. Kurose, D. Towsley, *Performance
//! issues in parallelized network protocols* (OSDI 1994), section 3, which was faster there than
//! every finer division. The state machine is the one of the other variants. Checksums are verified
//! before the lock, payload is copied and frames are built behind it:
//!
//! 1. a [`Worker`] takes the receive pump, if it is free, and carries away at most 32 frames as
//!    requests;
//! 2. it verifies their checksums ([`Worker::prepare`]);
//! 3. it takes the lock and applies them ([`Worker::apply`]): here frames and deliveries get their
//!    numbers, so that what follows needs no ticket to keep its order;
//! 4. it performs what they asked for ([`Worker::perform`]), while others hold the lock;
//! 5. if it held the transmit pump last, or has nothing to do, it sends what is ready.
//!
//! Batches may overtake each other between 1 and 3. That is the *misordering* of the paper's Table
//! 1: TCP sees segments out of order that the network did not reorder. [`LockStats`] counts it, and
//! waiting.
//!
//! # What bounds the rest
//! A request enters only if everything a [`Layout::window`] before it is done with. So while
//! delivery j is not stamped, at most two windows of requests are applied after it: those that
//! entered before its request and had not been applied, and those that may enter after it. There
//! are twice as many delivery slots as requests in the window, hence none is stamped a round too
//! early. A preempted carrier delays the others once the window is used up.

mod batch;
mod lock;

pub use lock::{Lock, LockKind, Mcs, Mutex};

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;
use dominoes::Exclusive;
use dominoes_drivers::Device;

use crate::config::{Limits, setters};
use crate::error::ConfigError;
use crate::io::Run;
use crate::io::rx::{RxPump, TxPump};
use crate::io::world::{Wakes, World};
use crate::log::effect::{Effect, EffectSink};
use crate::log::request::{Kind, Request, Verdict};
use crate::socket::Sockets;
use crate::state::apply::{Replica, Requests};
use crate::stats::{EffectStats, PumpStats};
use crate::time::Instant;
use crate::variants::Setup;
use batch::{Batch, Intake, Item};

/// A worker's word while it carries nothing.
const IDLE: u64 = u64::MAX;

/// How long the lock is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// For all requests of a batch, which come from at most 32 frames.
    #[default]
    Batch,
    /// For one request, which is a run of segments.
    Run,
}

/// How a group is laid out. Nothing here changes the protocol.
///
/// ```
/// use dominoes_netstack::variants::locked::{Hold, Layout};
///
/// let layout = Layout::default().workers(4).hold(Hold::Run);
/// assert_eq!((layout.workers, layout.window), (4, 512));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layout {
    /// Workers, 1 to 56. Default 2.
    pub workers: usize,
    /// Requests in flight, a power of two, 64 to 65536. Default 512.
    pub window: usize,
    /// How long the lock is held. Default: for a batch.
    pub hold: Hold,
    /// Whether the order in which requests went through the lock is kept, for [`Group::order`]. It
    /// grows without bound; for tests. Default: no.
    pub keep_order: bool,
}

impl Default for Layout {
    fn default() -> Self {
        Layout {
            workers: 2,
            window: 512,
            hold: Hold::Batch,
            keep_order: false,
        }
    }
}

impl Layout {
    setters! {
        workers: usize;
        window: usize;
        hold: Hold;
        keep_order: bool;
    }

    fn check(&self) -> Result<(), ConfigError> {
        let fail = |field, value: usize, allowed| {
            Err(ConfigError::OutOfRange {
                field,
                value: value as u64,
                allowed,
            })
        };
        if !(1..=56).contains(&self.workers) {
            return fail("workers", self.workers, "1 to 56");
        }
        if !self.window.is_power_of_two() || !(64..=1 << 16).contains(&self.window) {
            return fail("window", self.window, "a power of two, 64 to 65536");
        }
        Ok(())
    }
}

/// What a worker met at the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStats {
    /// Times it took the lock.
    pub acquisitions: u64,
    /// ... of which somebody else held it.
    pub contended: u64,
    /// Nanoseconds that it waited in these. A free lock is not timed; a taken one costs two looks
    /// at the clock.
    pub waited_ns: u64,
    /// Segments that it applied.
    pub segments: u64,
    /// ... of which a segment that the pump took later, of any connection, had gone through the
    /// lock before.
    pub misordered: u64,
}

/// What the lock guards.
struct State {
    replica: Replica,
    /// Position behind the newest run that was applied.
    newest: u64,
    order: Option<Vec<u64>>,
}

impl State {
    /// Applies what a worker carries, and puts the effects behind those that it has.
    fn apply(&mut self, items: &mut [Item], effects: &mut Vec<Effect>, stats: &mut LockStats) {
        let State {
            replica,
            newest,
            order,
        } = self;
        let begin = effects.len();
        let sink = &mut OfOne { effects, begin };
        let mut carried = BatchRequests {
            items,
            reached: 0,
            newest,
            order,
            stats,
        };
        replica.apply_each(&mut carried, sink);
    }
}

/// What a worker carries through the lock.
struct BatchRequests<'a> {
    items: &'a mut [Item],
    /// How many of them were begun.
    reached: usize,
    newest: &'a mut u64,
    order: &'a mut Option<Vec<u64>>,
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

    fn applied(&mut self, sink: &mut OfOne<'_>) {
        let item = &mut self.items[self.reached - 1];
        if item.request.digest.kind == Kind::Segments {
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
        sink.begin = sink.effects.len();
        item.effects_end = sink.begin;
    }
}

/// Takes the effects of one request, behind those of others.
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

/// The receive pump, and how many requests it made.
struct RxSide {
    pump: RxPump,
    next: u64,
}

struct Shared<K: LockKind> {
    world: Arc<World>,
    layout: Layout,
    state: CachePadded<K::Of<State>>,
    rx: Exclusive<RxSide>,
    tx: Exclusive<TxPump>,
    /// Which worker took the transmit pump over last.
    sending: CachePadded<AtomicUsize>,
    /// When the state wants to hear of time, as of the last release of the lock.
    deadline: CachePadded<AtomicU64>,
    /// For each worker, the position of the oldest request it carries.
    oldest_carried: Box<[CachePadded<AtomicU64>]>,
    /// Runs on their way back to the pump.
    back: SegQueue<Vec<Run>>,
}

/// However a test drives it, what it was sent made nothing panic.
#[cfg(feature = "testkit")]
impl<K: LockKind> Drop for Shared<K> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let world = &self.world;
            self.state
                .with(|state| world.assert_no_panics(&state.replica));
        }
    }
}

/// One state and its workers. `K` is the kind of lock.
pub struct Group<K: LockKind> {
    shared: Arc<Shared<K>>,
    workers: Vec<Worker<K>>,
}

impl<K: LockKind> Group<K> {
    /// A group over `device`.
    ///
    /// A recording ([`Setup::recorder`]) has requests in the order of the pump; with several
    /// workers the lock may see another one, see [`Group::order`].
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn new(setup: Setup, layout: Layout, device: Box<dyn Device>) -> Result<Self, ConfigError> {
        layout.check()?;
        let base = setup.build(device, 2 * layout.window)?;
        let state = State {
            replica: Replica::new(base.world.limits),
            newest: 0,
            order: layout.keep_order.then(Vec::new),
        };
        let shared = Arc::new(Shared {
            world: base.world,
            layout,
            state: CachePadded::new(K::Of::new(state)),
            rx: Exclusive::new(RxSide {
                pump: base.rx,
                next: 0,
            }),
            tx: Exclusive::new(base.tx),
            sending: CachePadded::new(AtomicUsize::new(layout.workers - 1)),
            deadline: CachePadded::new(AtomicU64::new(Instant::NEVER.as_nanos())),
            oldest_carried: (0..layout.workers)
                .map(|_| CachePadded::new(AtomicU64::new(IDLE)))
                .collect(),
            back: SegQueue::new(),
        });
        let worker = |id| Worker {
            id,
            shared: Arc::clone(&shared),
            batch: Batch::default(),
        };
        let workers = (0..layout.workers).map(worker).collect();
        Ok(Group { shared, workers })
    }

    /// The workers, to be driven by hand.
    pub fn workers(&mut self) -> &mut [Worker<K>] {
        &mut self.workers
    }

    /// The workers, to be given to threads.
    pub fn into_workers(self) -> Vec<Worker<K>> {
        self.workers
    }

    /// One turn of each worker, in order. Returns how much was done; 0 means that nothing will
    /// happen before [`Group::next_deadline`] unless a frame or an application comes.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.workers.iter_mut().map(|worker| worker.turn(now)).sum()
    }

    /// When time has to be told at the latest: the earliest [`Worker::next_deadline`].
    pub fn next_deadline(&self) -> Instant {
        let deadlines = self.workers.iter().map(Worker::next_deadline);
        deadlines.min().unwrap_or(Instant::NEVER)
    }

    /// The sockets.
    pub fn sockets(&self) -> Sockets {
        Sockets::new(&self.shared.world)
    }

    /// Lets `look` at the state, under the lock.
    pub fn inspect<R>(&self, look: impl FnOnce(&Replica) -> R) -> R {
        self.shared.state.with(|state| look(&state.replica))
    }

    /// Positions of the applied requests in the order of the pump (0 on), listed in the order in
    /// which they went through the lock; empty without [`Layout::keep_order`].
    pub fn order(&self) -> Vec<u64> {
        self.shared
            .state
            .with(|state| state.order.clone().unwrap_or_default())
    }

    /// The recording so far, which ends with this; `None` without one, or while somebody holds the
    /// pump.
    pub fn take_recorder(&mut self) -> Option<crate::io::record::Recorder> {
        self.shared.rx.try_take()?.pump.take_recorder()
    }

    /// The bounds in force, fitted to the device.
    pub fn limits(&self) -> Limits {
        self.shared.world.limits
    }
}

/// One thread's part: the requests that it carries, and its counters.
pub struct Worker<K: LockKind> {
    id: usize,
    shared: Arc<Shared<K>>,
    batch: Batch,
}

impl<K: LockKind> Worker<K> {
    /// Everything that can be done now, once. Returns how much that was; 0 means that nothing will
    /// happen before [`Worker::next_deadline`] unless a frame, an application or another worker
    /// does something.
    ///
    /// Waits for nothing but the lock.
    pub fn turn(&mut self, now: Instant) -> usize {
        let mut done = self.pump(now).unwrap_or(0);
        if !self.batch.is_empty() {
            while self.batch.prepare_one() {}
            done += self.apply_and_perform();
        }
        done + self.send_in_turn(done == 0)
    }

    fn apply_and_perform(&mut self) -> usize {
        let most = match self.shared.layout.hold {
            Hold::Batch => usize::MAX,
            Hold::Run => 1,
        };
        let world = &self.shared.world;
        let mut wakes = Wakes::new(world);
        let mut done = 0;
        loop {
            let applied = self.batch.apply(&self.shared, most);
            let mut performed = 0;
            while self.batch.perform_one(world, &mut wakes) {
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

    /// Carries away what the receive pump has, as many batches as `single` works on at a time;
    /// `None` if somebody else holds it, or this worker still carries something.
    pub fn pump(&mut self, now: Instant) -> Option<usize> {
        if !self.batch.is_empty() {
            return None;
        }
        let deadline = self.state_deadline();
        let mut side = self.shared.rx.try_take()?;
        let RxSide { pump, next } = &mut *side;
        let mut intake = Intake {
            shared: &self.shared,
            id: self.id,
            next,
            batch: &mut self.batch,
        };
        Some(pump.turns(now, deadline, &mut intake))
    }

    /// Verifies the checksums of the next request that this worker carries. Says whether there was
    /// one.
    pub fn prepare(&mut self) -> bool {
        self.batch.prepare_one()
    }

    /// Takes the lock and applies the next request that is prepared. Says whether there was one.
    pub fn apply(&mut self) -> bool {
        self.batch.apply(&self.shared, 1) > 0
    }

    /// Performs what the next applied request asked for. Says whether there was one.
    pub fn perform(&mut self) -> bool {
        let world = &self.shared.world;
        let performed = self.batch.perform_one(world, &mut Wakes::new(world));
        self.finish();
        performed
    }

    /// Lets go of a batch that is done with.
    fn finish(&mut self) {
        if let Some(runs) = self.batch.finish() {
            self.shared.back.push(runs);
            // ORDERING: Release, pairs with the Acquire in `Intake::performed`.
            self.shared.oldest_carried[self.id].store(IDLE, Ordering::Release);
        }
    }

    /// As in `replicated`: the last holder sends, others only if they are idle.
    fn send_in_turn(&mut self, idle: bool) -> usize {
        // ORDERING: Relaxed, here and where it is stored: a hint for who should try; the role
        // decides.
        let holder = self.shared.sending.load(Ordering::Relaxed) == self.id;
        if !holder && !idle {
            return 0;
        }
        let done = self.send().unwrap_or(0);
        if done > 0 && !holder {
            self.shared.sending.store(self.id, Ordering::Relaxed);
        }
        done
    }

    /// Takes the transmit pump for one turn; `None` if somebody else has it.
    pub fn send(&mut self) -> Option<usize> {
        Some(self.shared.tx.try_take()?.turn())
    }

    /// When time has to be told at the latest: to the state, as of the last release of the lock,
    /// and to the receive pump, which waits for neighbours to answer and for fragments to arrive.
    /// Of a pump that another worker holds at this moment it says nothing: that worker asks after
    /// its turn.
    pub fn next_deadline(&self) -> Instant {
        let side = self.shared.rx.try_take();
        let pump = side.map_or(Instant::NEVER, |side| side.pump.next_deadline());
        self.state_deadline().min(pump)
    }

    /// When the state wants to hear of time.
    fn state_deadline(&self) -> Instant {
        // ORDERING: Relaxed, as in `Batch::apply`.
        Instant::from_nanos(self.shared.deadline.load(Ordering::Relaxed))
    }

    /// Which worker of the group this is.
    pub fn id(&self) -> usize {
        self.id
    }

    /// What it prepared and performed.
    pub fn stats(&self) -> EffectStats {
        self.batch.effect_stats
    }

    /// What it met at the lock.
    pub fn lock_stats(&self) -> LockStats {
        self.batch.lock_stats
    }

    /// Lets `look` at the state, under the lock.
    pub fn inspect<R>(&self, look: impl FnOnce(&Replica) -> R) -> R {
        self.shared.state.with(|state| look(&state.replica))
    }

    /// What the receive pump saw; `None` while somebody holds it.
    pub fn pump_stats(&self) -> Option<PumpStats> {
        self.shared.rx.try_take().map(|rx| rx.pump.stats)
    }
}
