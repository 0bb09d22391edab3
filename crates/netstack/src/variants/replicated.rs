//! One log, a copy of the state per worker, and costly work by each request's primary alone.
//!
//! A [`Group`] is a log with its workers. A [`Worker`] owns one replica of the state; its steps can be called
//! one by one, in any order and interleaving, from one thread or many. [`Worker::turn`] is the order that
//! threads use:
//!
//! 1. take the receive pump if nobody has it, and publish what came in;
//! 2. prepare requests that are this worker's to perform, ahead of everything else, while their payload
//!    stays in the cache;
//! 3. apply the ready prefix of the log;
//! 4. perform those effects whose primary this worker is;
//! 5. take the transmit pump if nobody has it, and send what is ready;
//! 6. if there was nothing to do but the next request is not prepared yet, prepare it for the one who is late.
//!
//! No step waits for another worker. Primaries go by position: requests by chunks of the log, outgoing
//! frames by chunks of their own number, so that one request that causes many frames is many workers' work.

use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use dominoes::{
    Attachments, ByPosition, EventCount, Fingerprints, Mismatch, Pin, PrimaryPolicy, Publisher,
    Role, Seq, Spin, Stocker, Subscription, Verdicts,
};
use dominoes_drivers::Device;

use crate::config::Limits;
use crate::digest::{Kind, Request};
use crate::effect::{Effect, EffectSink};
use crate::engine::Run;
use crate::engine::perform;
use crate::engine::prepare::prepare;
use crate::engine::pump::{Log, RESERVED, RxPump, TxPump};
use crate::engine::record::{Entry, Recorder};
use crate::engine::replica::Replica;
use crate::engine::world::{Wakes, World};
use crate::error::ConfigError;
use crate::socket::Sockets;
use crate::stats::{EffectStats, PostedStats, PumpStats};
use crate::time::Instant;
use crate::variants::Setup;

/// How a group is laid out. Nothing here changes what it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layout {
    /// Workers, and so copies of the state; 1 to 56. Default 2.
    pub replicas: usize,
    /// Requests in flight, a power of two, at least 16. Default 512.
    pub log: usize,
    /// Requests in a row that one worker prepares and performs, a power of two. Default 16.
    pub request_chunk: usize,
    /// Outgoing frames in a row that one worker builds, a power of two. Default 32.
    pub frame_chunk: usize,
    /// Payload octets that a worker prepares ahead of performing them; part of its L2. Default 256 KiB.
    pub ahead_bytes: usize,
    /// Requests whose effects every worker keeps, its own and others'. Default 128.
    pub keep: usize,
    /// Requests between two posted fingerprints. Default 64.
    pub fingerprint_every: u64,
}

impl Default for Layout {
    fn default() -> Self {
        Layout {
            replicas: 2,
            log: 512,
            request_chunk: 16,
            frame_chunk: 32,
            ahead_bytes: 256 << 10,
            keep: 128,
            fingerprint_every: 64,
        }
    }
}

impl Layout {
    fn check(&self) -> Result<(), ConfigError> {
        let fail = |field, value: usize, allowed| {
            Err(ConfigError::OutOfRange {
                field,
                value: value as u64,
                allowed,
            })
        };
        if !(1..=56).contains(&self.replicas) {
            return fail("replicas", self.replicas, "1 to 56");
        }
        if !self.log.is_power_of_two() || self.log < 16 {
            return fail("log", self.log, "a power of two, at least 16");
        }
        if !self.request_chunk.is_power_of_two() || self.request_chunk > self.log / 2 {
            return fail(
                "request_chunk",
                self.request_chunk,
                "a power of two, at most half the log",
            );
        }
        if !self.frame_chunk.is_power_of_two() {
            return fail("frame_chunk", self.frame_chunk, "a power of two");
        }
        if self.fingerprint_every == 0 {
            return fail("fingerprint_every", 0, "at least 1");
        }
        Ok(())
    }
}

/// Fingerprints that each replica keeps posted for comparison.
const POSTS: usize = 64;
/// Requests that a worker applies before it looks at anything else.
const APPLY_BATCH: usize = 64;

/// What the workers of a group share.
pub(crate) struct Shared {
    pub(crate) world: Arc<World>,
    layout: Layout,
    verdicts: Verdicts,
    attachments: Arc<Attachments<Run>>,
    pub(crate) rx: Role<RxSide>,
    pub(crate) tx: Role<TxPump>,
    /// Which worker took the receive pump over last.
    receiving: CachePadded<AtomicUsize>,
    /// Which worker took the transmit pump over last.
    sending: CachePadded<AtomicUsize>,
    /// For each worker, the position below which its share of the effects is performed.
    performed: Box<[CachePadded<AtomicU64>]>,
    posts: Fingerprints,
    /// For each worker, what it performed.
    shares: Box<[CachePadded<PostedStats>]>,
    /// Where workers wait that do not hold the pump.
    pub(crate) bell: EventCount,
}

/// The receive pump and the writing end of the log.
pub(crate) struct RxSide {
    pub(crate) pump: RxPump,
    publisher: Publisher<Request, Spin>,
    stocker: Stocker<Run>,
}

impl RxSide {
    fn parts<'a>(&'a mut self, shared: &'a Shared) -> (&'a mut RxPump, GroupLog<'a>) {
        let log = GroupLog {
            shared,
            publisher: &mut self.publisher,
            stocker: &mut self.stocker,
        };
        (&mut self.pump, log)
    }
}

impl Shared {
    pub(crate) fn compare(&self) -> Result<usize, Mismatch> {
        self.posts.compare()
    }

    pub(crate) fn shares(&self) -> Vec<EffectStats> {
        self.shares.iter().map(|share| share.load()).collect()
    }

    #[inline]
    fn primary_of_request(&self, seq: Seq) -> usize {
        ByPosition.primary(
            seq >> self.layout.request_chunk.trailing_zeros(),
            self.layout.replicas,
        )
    }

    #[inline]
    fn primary_of_frame(&self, frame: u64) -> usize {
        ByPosition.primary(
            frame >> self.layout.frame_chunk.trailing_zeros(),
            self.layout.replicas,
        )
    }
}

/// The log as the pump sees it.
struct GroupLog<'a> {
    shared: &'a Shared,
    publisher: &'a mut Publisher<Request, Spin>,
    stocker: &'a mut Stocker<Run>,
}

impl Log for GroupLog<'_> {
    fn room(&mut self) -> usize {
        let next = self.stocker.next_seq();
        if !self.stocker.can_put(next) {
            return 0;
        }
        let chunk = self.shared.attachments.chunk() as u64;
        let left = (chunk - next % chunk) as usize;
        let room = self.publisher.room();
        if left <= RESERVED + 1 && !self.stocker.can_put(next + left as u64) {
            room.min(left)
        } else {
            room
        }
    }

    fn publish(&mut self, request: Request, verdict: Option<u16>, run: Run) {
        let seq = self.stocker.next_seq();
        let stocked = self.stocker.put(seq, run);
        assert!(stocked.is_ok(), "published without room at {seq}");
        if request.digest.kind != Kind::Segments {
            self.shared.verdicts.set(seq, 0);
        } else if let Some(verdict) = verdict {
            self.shared.verdicts.set(seq, verdict);
        }
        let published = self.publisher.try_publish(request);
        assert_eq!(
            published.ok(),
            Some(seq),
            "the log and its frames are out of step"
        );
    }

    fn reclaim(&mut self, each: &mut dyn FnMut(Run)) {
        while self.stocker.reclaim(&mut |_, run| each(run)) {}
    }

    fn published(&self) -> u64 {
        self.stocker.next_seq()
    }

    fn performed(&self) -> u64 {
        let below = self.shared.performed.iter().map(|word| {
            // ORDERING: Acquire, pairs with the Release in `Worker::perform_mine`: what it performed is done.
            word.load(Ordering::Acquire)
        });
        below.min().unwrap_or(0)
    }
}

/// A test's hand in one worker: lies that the checks must find. Production code uses `()`.
pub trait Tamper: Send + 'static {
    /// Whether any of the hooks does something.
    const ACTIVE: bool;
    /// Changes a request just before it is applied.
    fn request(&mut self, _seq: u64, _request: &mut Request) {}
    /// Gives a verdict for a request that has none yet, or replaces the one it has.
    fn verdict(&mut self, _seq: u64, verdict: Option<u16>, _request: &Request) -> Option<u16> {
        verdict
    }
    /// Changes what applying the request asked for.
    fn effects(&mut self, _seq: u64, _effects: &mut Vec<Effect>) {}
}

impl Tamper for () {
    const ACTIVE: bool = false;
}

/// A log and its workers.
pub struct Group<T: Tamper = ()> {
    shared: Arc<Shared>,
    workers: Vec<Worker<T>>,
}

impl Group {
    /// A group over `device`.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn new(setup: Setup, layout: Layout, device: Box<dyn Device>) -> Result<Self, ConfigError> {
        Self::with_tampers(setup, layout, device, |_| ())
    }
}

impl<T: Tamper> Group<T> {
    /// A group in which worker i is tampered with by `tamper(i)`.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn with_tampers(
        setup: Setup,
        layout: Layout,
        device: Box<dyn Device>,
        tamper: impl Fn(usize) -> T,
    ) -> Result<Self, ConfigError> {
        layout.check()?;
        let (publisher, log) = dominoes::channel::<Request, Spin>(layout.log);
        let slots = log.slots();
        let base = setup.build(device, slots)?;
        let (stocker, attachments) = dominoes::attachments(slots, layout.request_chunk);
        let shared = Arc::new(Shared {
            world: base.world,
            layout,
            verdicts: Verdicts::new(slots),
            attachments,
            rx: Role::new(RxSide {
                pump: base.rx,
                publisher,
                stocker,
            }),
            tx: Role::new(base.tx),
            receiving: CachePadded::new(AtomicUsize::new(0)),
            sending: CachePadded::new(AtomicUsize::new(layout.replicas - 1)),
            performed: (0..layout.replicas)
                .map(|_| CachePadded::new(AtomicU64::new(0)))
                .collect(),
            posts: Fingerprints::new(layout.replicas, POSTS, layout.fingerprint_every),
            shares: (0..layout.replicas)
                .map(|_| CachePadded::default())
                .collect(),
            bell: EventCount::new(),
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
            workers.push(Worker::new(
                id,
                Arc::clone(&shared),
                subscription,
                tamper(id),
            ));
        }
        Ok(Group { shared, workers })
    }

    /// The workers, to be driven by hand.
    pub fn workers(&mut self) -> &mut [Worker<T>] {
        &mut self.workers
    }

    /// The workers, to be given to threads.
    pub fn into_workers(self) -> Vec<Worker<T>> {
        self.workers
    }

    /// One turn of each worker, in order. Returns how much was done.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.workers.iter_mut().map(|worker| worker.turn(now)).sum()
    }

    /// Publishes an entry of a recorded log as if it came from the pump, and works until everything it asks
    /// for is done and sent.
    ///
    /// What applications had read by then is up to the caller, who reads through the sockets.
    pub fn replay(&mut self, entry: &Entry) {
        while self.workers.iter_mut().map(Worker::work).sum::<usize>() > 0 {}
        let run = entry.prepare_world(&self.shared.world);
        if let Some(mut side) = self.shared.rx.try_take() {
            let (_, mut log) = side.parts(&self.shared);
            log.reclaim(&mut drop);
            log.publish(entry.request, entry.verdict, run);
        }
        while self.workers.iter_mut().map(Worker::work).sum::<usize>() > 0 {}
    }

    /// The sockets.
    pub fn sockets(&self) -> Sockets {
        Sockets::new(&self.shared.world)
    }

    /// Compares the posted fingerprints at equal positions; says how many could be compared.
    ///
    /// # Errors
    /// The first position at which two replicas differ, and which.
    pub fn compare(&self) -> Result<usize, Mismatch> {
        self.shared.compare()
    }

    /// The recording so far, which ends with this.
    pub fn take_recorder(&mut self) -> Option<Recorder> {
        self.shared.rx.try_take()?.pump.take_recorder()
    }

    /// What the pump saw; `None` while somebody holds it.
    pub fn pump_stats(&self) -> Option<PumpStats> {
        self.shared.rx.try_take().map(|rx| rx.pump.stats)
    }

    /// The bounds in force, fitted to the device.
    pub fn limits(&self) -> Limits {
        self.shared.world.limits
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

/// What a worker keeps of an applied request: how many effects, and where its payload lies.
#[derive(Clone, Copy)]
struct Applied {
    effects: u32,
    len: u32,
    seg_len: u32,
    payload_offset: u16,
}

/// The effects of the last requests, of all primaries, oldest first.
#[derive(Default)]
struct Kept {
    /// Position of the oldest request that is kept.
    first: Seq,
    applied: VecDeque<Applied>,
    effects: VecDeque<Effect>,
    /// Effects of the request being applied.
    pending: u32,
}

impl EffectSink for Kept {
    fn push(&mut self, effect: Effect) {
        self.effects.push_back(effect);
        self.pending += 1;
    }
}

impl Kept {
    /// The request that was applied last is complete: its effects count from now on.
    fn commit(&mut self, request: &Request) {
        let (seg_len, payload_offset) = request.layout();
        self.applied.push_back(Applied {
            effects: core::mem::take(&mut self.pending),
            len: request.digest.len,
            seg_len,
            payload_offset: payload_offset as u16,
        });
    }

    /// Lets `change` at the effects of the request being applied.
    fn change_pending(&mut self, change: impl FnOnce(&mut Vec<Effect>)) {
        let from = self.effects.len() - self.pending as usize;
        let mut effects = self.effects.drain(from..).collect();
        change(&mut effects);
        self.pending = effects.len() as u32;
        self.effects.extend(effects);
    }

    /// Forgets requests below `below`.
    fn forget(&mut self, below: Seq) {
        while self.first < below
            && let Some(oldest) = self.applied.pop_front()
        {
            self.effects.drain(..oldest.effects as usize);
            self.first += 1;
        }
    }
}

/// Where a worker stands in performing: request, effect within it, frame within that.
#[derive(Clone, Copy, Default)]
struct Cursor {
    seq: Seq,
    /// Index among all kept effects.
    effect: usize,
    /// Effects of this request that are left.
    left: u32,
    frame: u32,
    /// Whether `left` has been set for this request.
    begun: bool,
}

/// The run at `seq`, from the chunk that `pin` holds; takes another pin if it holds a different one.
#[inline]
fn pinned<'a, 's>(
    attachments: &'s Attachments<Run>,
    pin: &'a mut Option<Pin<'s, Run>>,
    seq: Seq,
) -> Option<&'a Run> {
    if pin.as_ref().is_none_or(|pin| !pin.range().contains(&seq)) {
        *pin = None;
        *pin = attachments.pin(seq);
    }
    pin.as_ref()?.get(seq)
}

/// A worker while it performs. What others learn of it in atomic words, they learn once a chunk or at its end.
struct Hands<'a> {
    id: usize,
    shared: &'a Shared,
    kept: &'a Kept,
    ahead: &'a mut usize,
    cursor: &'a mut Cursor,
    stats: &'a mut EffectStats,
    /// The chunk whose frames are being read.
    pin: Option<Pin<'a, Run>>,
    /// Requests of the cursor's chunk that are done with and not reported.
    finished: u32,
    wakes: Wakes<'a>,
}

impl Hands<'_> {
    /// One step of performing: `Break` when every applied request is done with, else whether something
    /// was performed.
    fn step(&mut self) -> ControlFlow<(), bool> {
        let shared = self.shared;
        let cursor = &mut *self.cursor;
        let index = (cursor.seq - self.kept.first) as usize;
        let Some(applied) = self.kept.applied.get(index) else {
            return ControlFlow::Break(());
        };
        let mine = shared.primary_of_request(cursor.seq) == self.id;
        if !cursor.begun {
            cursor.begun = true;
            cursor.left = applied.effects;
        }
        if cursor.left == 0 {
            if mine {
                self.finished += 1;
                *self.ahead = self.ahead.saturating_sub(applied.len as usize);
            }
            cursor.seq += 1;
            cursor.begun = false;
            if cursor
                .seq
                .is_multiple_of(shared.layout.request_chunk as u64)
            {
                self.leave_chunk();
            }
            return ControlFlow::Continue(false);
        }
        let effect = &self.kept.effects[cursor.effect];
        let mut performed = false;
        match effect {
            Effect::Transmit(transmit) => {
                while cursor.frame < transmit.count {
                    let i = cursor.frame;
                    cursor.frame += 1;
                    if shared.primary_of_frame(transmit.first_frame + u64::from(i)) == self.id {
                        perform::build(&shared.world, transmit, i, self.stats);
                        performed = true;
                        break;
                    }
                }
                if cursor.frame < transmit.count {
                    return ControlFlow::Continue(performed);
                }
            }
            Effect::Deliver(deliver) if mine => {
                match pinned(&shared.attachments, &mut self.pin, cursor.seq) {
                    Some(run) => perform::deliver(
                        &shared.world,
                        deliver,
                        applied.seg_len,
                        usize::from(applied.payload_offset),
                        run,
                        self.stats,
                    ),
                    None => self.stats.diverged += 1,
                }
                performed = true;
                self.wakes.add(deliver.conn);
            }
            Effect::Deliver(_) => {}
            other if mine => {
                perform::tell(&shared.world, other, self.stats);
                performed = true;
                if let Effect::Release { conn, .. } = other {
                    self.wakes.add(*conn);
                }
            }
            _ => {}
        }
        let cursor = &mut *self.cursor;
        cursor.frame = 0;
        cursor.effect += 1;
        cursor.left -= 1;
        ControlFlow::Continue(performed)
    }

    /// The cursor left a chunk, or rests: what was done in it is told. A pin of ours would keep its frames
    /// from going back to the device.
    fn leave_chunk(&mut self) {
        self.pin = None;
        let finished = core::mem::take(&mut self.finished);
        if finished > 0 {
            self.shared.attachments.done(self.cursor.seq - 1, finished);
        }
    }

    /// Nothing more is performed for now.
    fn rest(mut self) {
        self.leave_chunk();
    }
}

/// One replica, and its share of the work.
pub struct Worker<T: Tamper = ()> {
    id: usize,
    shared: Arc<Shared>,
    log: Subscription<Request, Spin>,
    replica: Replica,
    kept: Kept,
    /// Next request to be looked at for preparing.
    prepared: Seq,
    /// Payload octets of requests that are prepared and not performed.
    ahead: usize,
    cursor: Cursor,
    /// What `performed` was last told.
    told: Seq,
    tamper: T,
    stats: EffectStats,
}

impl<T: Tamper> Worker<T> {
    fn new(id: usize, shared: Arc<Shared>, log: Subscription<Request, Spin>, tamper: T) -> Self {
        let limits = shared.world.limits;
        Worker {
            id,
            shared,
            log,
            replica: Replica::new(limits),
            kept: Kept::default(),
            prepared: 0,
            ahead: 0,
            cursor: Cursor::default(),
            told: 0,
            tamper,
            stats: EffectStats::default(),
        }
    }

    /// Everything that can be done now, once. Returns how much that was.
    ///
    /// The pumps stay where they are as long as their holders come back for them: what belongs to a pump would
    /// else move from cache to cache with it. Who has nothing else to do takes one over.
    pub fn turn(&mut self, now: Instant) -> usize {
        let mut done = if self.has_receive_pump() {
            self.pump(now).unwrap_or(0)
        } else {
            0
        };
        done += self.work();
        if done == 0 {
            done = self.take_receive_pump(now);
        }
        done
    }

    /// Whether this worker was the last to take the receive pump over.
    pub fn has_receive_pump(&self) -> bool {
        // ORDERING: Relaxed, here and where it is stored: a hint for who should try; the role decides.
        self.shared.receiving.load(Ordering::Relaxed) == self.id
    }

    /// Takes the receive pump over for want of anything else to do. Returns how much there was to pump.
    pub fn take_receive_pump(&mut self, now: Instant) -> usize {
        let done = self.pump(now).unwrap_or(0);
        if done > 0 && !self.has_receive_pump() {
            self.shared.receiving.store(self.id, Ordering::Relaxed);
        }
        done
    }

    /// As [`Worker::turn`] does with the receive pump: the last holder sends, others only if they are idle.
    fn send_in_turn(&mut self, idle: bool) -> usize {
        // ORDERING: Relaxed both, as in `has_receive_pump`.
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

    /// A turn without the receive pump: everything that needs no clock.
    pub fn work(&mut self) -> usize {
        self.log.poll();
        let mut done = self.prepare_mine();
        done += self.apply_ready();
        done += self.perform_mine();
        done += self.send_in_turn(done == 0);
        if done == 0 {
            done = usize::from(self.prepare(self.replica.position()));
        }
        done
    }

    /// Takes the receive pump for one turn; `None` if somebody else has it.
    pub fn pump(&mut self, now: Instant) -> Option<usize> {
        let mut side = self.shared.rx.try_take()?;
        let (pump, mut log) = side.parts(&self.shared);
        let done = pump.turn(now, self.replica.next_deadline(), &mut log);
        drop(side);
        if done > 0 {
            self.shared.bell.notify_all();
        }
        Some(done)
    }

    /// Prepares requests of this worker's chunks, in order, as far as the budget goes.
    fn prepare_mine(&mut self) -> usize {
        let Worker {
            id,
            shared,
            log,
            replica,
            prepared,
            ahead,
            stats,
            ..
        } = self;
        let end = log.end();
        let chunk = shared.layout.request_chunk as u64;
        let mut done = 0;
        // One pin serves a whole chunk.
        let mut pin = None;
        *prepared = (*prepared).max(replica.position());
        while *prepared < end && *ahead < shared.layout.ahead_bytes {
            let seq = *prepared;
            if shared.primary_of_request(seq) != *id {
                *prepared = (seq / chunk + 1) * chunk;
                continue;
            }
            *prepared += 1;
            let Some(request) = log.get(seq) else {
                continue;
            };
            *ahead += request.digest.len as usize;
            if shared.verdicts.get(seq).is_none()
                && let Some(run) = pinned(&shared.attachments, &mut pin, seq)
            {
                shared.verdicts.set(seq, prepare(request, run));
                stats.prepared += 1;
                done += 1;
            }
        }
        done
    }

    /// Prepares the request at `seq`, whoever is its primary, if it is published, not applied here, and
    /// nobody prepared it. Says whether it did.
    pub fn prepare(&mut self, seq: u64) -> bool {
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
        self.shared.verdicts.set(seq, prepare(request, run));
        self.stats.prepared += 1;
        true
    }

    fn apply_ready(&mut self) -> usize {
        let mut done = 0;
        while done < APPLY_BATCH && self.apply_one() {
            done += 1;
        }
        if done > 0 {
            self.log.advance_to(self.replica.position());
        }
        done
    }

    /// Applies the next request if it is published and prepared. Says whether it did.
    pub fn apply(&mut self) -> bool {
        self.log.poll();
        let applied = self.apply_one();
        self.log.advance_to(self.replica.position());
        applied
    }

    #[inline]
    fn apply_one(&mut self) -> bool {
        let seq = self.replica.position();
        let Some(request) = self.log.get(seq) else {
            return false;
        };
        let mut verdict = self.shared.verdicts.get(seq);
        let mut changed;
        let mut request = request;
        if T::ACTIVE {
            changed = *request;
            verdict = self.tamper.verdict(seq, verdict, &changed);
            if verdict.is_some() {
                self.tamper.request(seq, &mut changed);
            }
            request = &changed;
        }
        let Some(verdict) = verdict else { return false };
        self.replica.apply(request, verdict, &mut self.kept);
        if T::ACTIVE {
            self.kept
                .change_pending(|effects| self.tamper.effects(seq, effects));
        }
        self.kept.commit(request);
        let position = seq + 1;
        if self.shared.posts.is_due(position) {
            self.shared
                .posts
                .post(self.id, position, self.replica.fold());
        }
        true
    }

    fn perform_mine(&mut self) -> usize {
        let mut done = 0;
        let mut hands = self.hands();
        while let ControlFlow::Continue(performed) = hands.step() {
            done += usize::from(performed);
        }
        hands.rest();
        self.after_performing();
        done
    }

    /// Performs the next effect, or the next frame of one, whose primary is this worker. Says whether there
    /// was one.
    pub fn perform(&mut self) -> bool {
        let mut performed = false;
        let mut hands = self.hands();
        while let ControlFlow::Continue(now) = hands.step() {
            if now {
                performed = true;
                break;
            }
        }
        hands.rest();
        self.after_performing();
        performed
    }

    fn hands(&mut self) -> Hands<'_> {
        Hands {
            id: self.id,
            shared: &self.shared,
            kept: &self.kept,
            ahead: &mut self.ahead,
            cursor: &mut self.cursor,
            stats: &mut self.stats,
            pin: None,
            finished: 0,
            wakes: Wakes::new(&self.shared.world),
        }
    }

    /// Tells how far this worker is, and forgets what nobody will ask for.
    fn after_performing(&mut self) {
        if self.told != self.cursor.seq {
            self.told = self.cursor.seq;
            // ORDERING: Release, pairs with the Acquire in `GroupLog::performed`.
            self.shared.performed[self.id].store(self.told, Ordering::Release);
            self.shared.shares[self.id].post(&self.stats);
            let below = self.told.saturating_sub(self.shared.layout.keep as u64);
            let before = self.kept.effects.len();
            self.kept.forget(below);
            self.cursor.effect -= before - self.kept.effects.len();
        }
    }

    /// Takes the transmit pump for one turn; `None` if somebody else has it.
    pub fn send(&mut self) -> Option<usize> {
        Some(self.shared.tx.try_take()?.turn())
    }

    /// Takes the transmit pump and sends one frame; `None` if somebody else has it.
    pub fn send_one(&mut self) -> Option<usize> {
        Some(self.shared.tx.try_take()?.step())
    }

    /// Which worker of the group this is.
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

    /// What the group's receive pump saw; `None` while somebody holds it.
    pub fn pump_stats(&self) -> Option<PumpStats> {
        self.shared.rx.try_take().map(|rx| rx.pump.stats)
    }

    /// Effects that are kept, of this and of other primaries, oldest first.
    pub fn kept_effects(&self) -> impl Iterator<Item = &Effect> {
        self.kept.effects.iter()
    }

    /// When time has to be told at the latest, as far as this worker knows.
    pub fn next_deadline(&self) -> Instant {
        self.replica.next_deadline()
    }

    /// Publishes are seen by [`Worker::apply`]; requests that are published and not applied here.
    pub fn lag(&mut self) -> u64 {
        self.log.poll() - self.replica.position()
    }

    /// How far the log reaches, as last seen, for choosing what to prepare.
    pub fn published(&mut self) -> u64 {
        self.log.poll()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether a turn would find something to do.
    pub(crate) fn has_work(&mut self) -> bool {
        self.log.poll() > self.replica.position()
            || (self.cursor.seq - self.kept.first) < self.kept.applied.len() as u64
            || self.shared.tx.try_take().is_some_and(|tx| tx.has_work())
    }
}
