//! One log, a copy of the state per worker, and costly work by each request's primary alone.
//!
//! A [`Group`] is a log with its workers. A [`Worker`] owns one replica of the state; its steps can be called
//! one by one, in any order and interleaving, from one thread or many. [`Worker::turn`] is the order that
//! threads use:
//!
//! 1. with the receive pump, if this worker held it last, publish what came in;
//! 2. prepare requests that are this worker's to perform, ahead of everything else, while their payload
//!    stays in the cache;
//! 3. apply the ready prefix of the log;
//! 4. perform those effects whose primary this worker is;
//! 5. with the transmit pump, if this worker held it last, send what is ready;
//! 6. if there was nothing to do, prepare the next request for the one who is late, or take a pump over.
//!
//! No step waits for another worker. Who is primary of what is a choice ([`Primaries`]); outgoing frames always have
//! theirs by chunks of their own number, so that one request that causes many frames is many workers' work.

mod alone;
mod handover;
mod hands;
mod judge;
mod kept;
mod late;
mod members;
mod primaries;
mod proof;
mod staff;
mod tamper;
mod worker;

pub use handover::{Door, Joining};
use handover::{Ledger, NOBODY, Snapshot};
use kept::{EFFECT_BITS, Kept};
use members::{Crews, MAX_SEATS, Roll, seats};
pub use primaries::Primaries;
use primaries::{Assigned, Naming};
use staff::{Done, Order, Staff};
#[cfg(feature = "testkit")]
pub use tamper::Tamper;
#[cfg(not(feature = "testkit"))]
use tamper::Tamper;
pub use worker::Worker;

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use dominoes::{
    Attachments, EventCount, Fingerprints, Mismatch, Publisher, Role, Seq, Spin, Stocker, Units,
    Verdicts,
};
use dominoes_drivers::Device;

use crate::config::{Limits, setters};
use crate::digest::{MAX_RUN, Request};
use crate::effect::Effect;
use crate::engine::Run;
use crate::engine::balance::Balance;
use crate::engine::prepare::{prepare, prepare_and_store};
use crate::engine::pump::{Log, RxPump, TxPump};
use crate::engine::record::{Entry, Recorder};
use crate::engine::replica::Replica;
use crate::engine::world::World;
use crate::error::{ConfigError, MembersError};
use crate::socket::Sockets;
use crate::stats::{EffectStats, MemberStats, PostedStats, PumpStats};
use crate::time::{Duration, Instant};
use crate::variants::Setup;

/// How a group is laid out. Nothing here changes what it computes.
///
/// ```
/// use dominoes_netstack::variants::replicated::{Layout, Primaries};
///
/// let layout = Layout::default().replicas(3).primaries(Primaries::Greedy).confirm(true);
/// assert_eq!((layout.replicas, layout.log), (3, 512));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layout {
    /// Workers at the beginning, and so copies of the state; 1 to 56. Default 2.
    pub replicas: usize,
    /// Workers that there can be at a time; at most 56, or 8 with [`Primaries::ByLoad`]. Below `replicas`: as many as
    /// that. Default 0.
    pub seats: usize,
    /// Whether the group chooses by itself how many of its seats work, 1 to all; it begins with `replicas`. The others rest,
    /// without a state, until those that work have too much to do and one more is found to bring something. Default
    /// false: whoever is there works.
    pub adapt: bool,
    /// Whether a worker that is alone uses the log nevertheless, for measuring what that costs. Default false: a turn of it
    /// does everything at once, as [`single`](crate::variants::single) does, until somebody joins.
    pub always_log: bool,
    /// Whether a [`Stack`](crate::Stack) starts another thread for one that unwound; it gets its state from those that
    /// are left. Default true.
    pub revive: bool,
    /// Who performs what requests ask for. Default [`Primaries::ByPublisher`].
    pub primaries: Primaries,
    /// Requests in flight, a power of two, at least 16. Default 512.
    pub log: usize,
    /// Requests in a row that one worker prepares and performs, a power of two. Default 16.
    pub request_chunk: usize,
    /// Outgoing frames in a row that one worker builds, a power of two. Default 32.
    pub frame_chunk: usize,
    /// Payload octets that a worker prepares ahead of performing them; part of its L2. Default 256 KiB.
    pub ahead_bytes: usize,
    /// How late a worker may be before others do its work: they have applied so many requests behind the chunk
    /// in question. Default 256.
    pub steal_after: usize,
    /// ... or nothing of what is due has been done for so long, by the time that workers are told. Default 200 us.
    pub patience: Duration,
    /// Frames that must be ready behind one that is not before they are sent past it. Above `tx_slots`: never.
    /// Default 256.
    pub past_hole: usize,
    /// ... and turns of the transmit pump that must have found it missing: time for others to build it. Default 256.
    pub hole_turns: u32,
    /// Requests between two posted fingerprints. Default 64.
    pub fingerprint_every: u64,
    /// Whether a worker performs nothing before a majority of the workers has posted the same fingerprint as itself, at
    /// every position. Then a state that was changed behind a worker's back, as by a bit of memory that flips, does no
    /// harm outside if there are three or more; with two there is no majority, and both go on. A worker that
    /// stands still holds up the others if they are no majority without it. Default false.
    pub confirm: bool,
}

impl Default for Layout {
    fn default() -> Self {
        Layout {
            replicas: 2,
            seats: 0,
            adapt: false,
            always_log: false,
            revive: true,
            primaries: Primaries::ByPublisher,
            log: 512,
            request_chunk: 16,
            frame_chunk: 32,
            ahead_bytes: 256 << 10,
            steal_after: 256,
            patience: Duration::from_micros(200),
            past_hole: 256,
            hole_turns: 256,
            fingerprint_every: 64,
            confirm: false,
        }
    }
}

impl Layout {
    setters! {
        replicas: usize;
        seats: usize;
        adapt: bool;
        always_log: bool;
        revive: bool;
        primaries: Primaries;
        log: usize;
        request_chunk: usize;
        frame_chunk: usize;
        ahead_bytes: usize;
        steal_after: usize;
        patience: Duration;
        past_hole: usize;
        hole_turns: u32;
        fingerprint_every: u64;
        confirm: bool;
    }

    /// Seats that there are: places of workers, taken or not.
    fn seat_count(&self) -> usize {
        self.seats.max(self.replicas)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let fail = |field, value: usize, allowed| {
            Err(ConfigError::OutOfRange {
                field,
                value: value as u64,
                allowed,
            })
        };
        if !(1..=MAX_SEATS).contains(&self.replicas) {
            return fail("replicas", self.replicas, "1 to 56");
        }
        if self.seats > MAX_SEATS {
            return fail("seats", self.seats, "0 to 56");
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
        if self.primaries == Primaries::ByLoad && self.seat_count() > 8 {
            return fail("seats", self.seat_count(), "1 to 8 with primaries by load");
        }
        if self.fingerprint_every == 0 {
            return fail("fingerprint_every", 0, "at least 1");
        }
        Ok(())
    }
}

/// Beside a verdict: the payload was stored while it was verified.
const STORED: u16 = 1 << 13;
const _: () = assert!(MAX_RUN <= 13);

/// Fingerprints that each replica keeps posted for comparison.
const POSTS: usize = 64;
/// What the workers of a group share.
pub(crate) struct Shared {
    pub(crate) world: Arc<World>,
    layout: Layout,
    verdicts: Verdicts,
    attachments: Arc<Attachments<Run>>,
    pub(crate) rx: Role<RxSide>,
    pub(crate) tx: Role<TxPump>,
    /// For each worker, how far what it is primary for is performed in each chunk of requests, transmissions
    /// aside.
    requests: Box<[Units]>,
    /// How far each chunk of frames is built, in rows of those that have one primary.
    frames: [Units; Assigned::FRAME_ROWS],
    assigned: Assigned,
    /// For each seat, the position below which its share of the effects is performed.
    performed: Box<[CachePadded<AtomicU64>]>,
    /// For each worker, the position below which it saw all effects performed.
    verified: Box<[CachePadded<AtomicU64>]>,
    /// Who sits where.
    roll: CachePadded<Roll>,
    ledger: Ledger,
    posts: Fingerprints,
    /// For each worker, what it performed.
    shares: Box<[CachePadded<PostedStats>]>,
    /// For each seat, how long turns took that found something to do, ns.
    busy: Box<[CachePadded<AtomicU64>]>,
    /// Where workers wait that do not hold the pump.
    pub(crate) bell: EventCount,
    /// Where workers wait that rest.
    pub(crate) rest: EventCount,
    /// The log, to be looked at.
    pub(crate) log: dominoes::Log<Request, Spin>,
}

/// The receive pump and the writing end of the log.
pub(crate) struct RxSide {
    pub(crate) pump: RxPump,
    publisher: Publisher<Request, Spin>,
    stocker: Stocker<Run>,
    naming: Naming,
    staff: Staff,
}

impl RxSide {
    fn parts<'a>(&'a mut self, shared: &'a Shared, id: usize) -> (&'a mut RxPump, GroupLog<'a>) {
        let log = GroupLog {
            shared,
            publisher_id: id as u8,
            publisher: &mut self.publisher,
            stocker: &mut self.stocker,
            naming: &mut self.naming,
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

    /// The position below which each of these seats says that its share is performed.
    fn performed_by(&self, owners: u64) -> Seq {
        let performed = seats(owners).map(|id| {
            // ORDERING: Acquire, pairs with the Release in `Worker::after_performing`: what it says is done.
            self.performed[id].load(Ordering::Acquire)
        });
        performed.min().unwrap_or(0)
    }

    /// Whether worker `id` says that its share of the request at `seq` is performed.
    fn has_told(&self, id: usize, seq: Seq) -> bool {
        // ORDERING: Acquire, as in `performed_by`.
        self.performed[id].load(Ordering::Acquire) > seq
    }

    /// Asks whether more should work, or fewer, and lets it be so.
    #[cold]
    fn look_at_staff(&self, staff: &mut Staff, balance: Option<&Balance>, now: Instant) {
        let mut done = Done::default();
        for (share, busy) in self.shares.iter().zip(&self.busy) {
            let share = share.load();
            done.octets += share.delivered_bytes + share.sent_bytes;
            done.requests += share.requests;
            done.busy = done.busy + Duration::from_nanos(busy.load(Ordering::Relaxed));
        }
        let members = u64::from(self.roll.crew().count_ones());
        // Of several groups, one takes no core that another one needs.
        let may = balance.is_none_or(Balance::may_recruit);
        match staff.look(now, done, members, may && self.roll.resting() != 0) {
            Order::Nothing if members > 1 && balance.is_some_and(Balance::should_rest) => {
                self.send_to_rest();
            }
            Order::Nothing => {}
            Order::Recruit => self.recruit(),
            Order::Rest => self.send_to_rest(),
        }
    }

    /// Finds out the verdict of the request at `seq`. Says whether that was to be done: where payload is stored on the way,
    /// it is done once, and `on_begin` is told before.
    fn prepare(
        &self,
        seq: Seq,
        request: &Request,
        run: &Run,
        stats: &mut EffectStats,
        on_begin: impl FnOnce(),
    ) -> bool {
        if run.place.is_none() {
            self.verdicts.set(seq, prepare(request, run));
            stats.prepared += 1;
            return true;
        }
        let Some(begun) = self.verdicts.begin(seq) else {
            return false;
        };
        on_begin();
        let (verdict, is_stored) = prepare_and_store(&self.world, request, run);
        stats.prepared += 1;
        if is_stored {
            stats.stored_ahead += u64::from(request.digest.len);
            begun.set(verdict | STORED);
        } else {
            begun.set(verdict);
        }
        true
    }

    #[inline]
    fn request_chunk_of(&self, seq: Seq) -> u64 {
        seq >> self.layout.request_chunk.trailing_zeros()
    }

    #[inline]
    fn frame_chunk_of(&self, frame: u64) -> u64 {
        frame >> self.layout.frame_chunk.trailing_zeros()
    }

    /// The first frame behind the chunk of frame `frame`.
    #[inline]
    fn frame_chunk_end(&self, frame: u64) -> u64 {
        (frame | (self.layout.frame_chunk as u64 - 1)) + 1
    }
}

/// The log as the pump sees it.
struct GroupLog<'a> {
    shared: &'a Shared,
    publisher: &'a mut Publisher<Request, Spin>,
    stocker: &'a mut Stocker<Run>,
    naming: &'a mut Naming,
    /// Who holds the pump.
    publisher_id: u8,
}

impl Log for GroupLog<'_> {
    fn room(&mut self) -> usize {
        self.stocker.room().min(self.publisher.room())
    }

    fn publish(&mut self, request: &Request, verdict: Option<u16>, run: Run) {
        let mut request = *request;
        let seq = self.stocker.next_seq();
        request.digest.primary = self
            .naming
            .name(self.shared, seq, self.publisher_id, &request);
        let stocked = self.stocker.put(seq, run);
        assert!(stocked.is_ok(), "published without room at {seq}");
        if !request.digest.kind.has_frames() {
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

    fn gap(&self) -> usize {
        let chunk = self.shared.attachments.chunk() as u64;
        (self.stocker.next_seq().next_multiple_of(chunk) - self.stocker.next_seq()) as usize
    }

    fn reclaim(&mut self, each: &mut dyn FnMut(Run)) {
        while self.stocker.reclaim(&mut |_, run| each(run)) {}
    }

    fn published(&self) -> u64 {
        self.stocker.next_seq()
    }

    fn performed(&self) -> u64 {
        let verified = self.shared.verified.iter().map(|word| {
            // ORDERING: Acquire, pairs with the Release in `Worker::help_now`: what it saw done is done.
            word.load(Ordering::Acquire)
        });
        verified.fold(self.shared.performed_by(self.shared.roll.known()), u64::max)
    }
}

/// A log and its workers.
pub struct Group<T: Tamper = ()> {
    shared: Arc<Shared>,
    workers: Vec<Worker<T>>,
    joining: Vec<Joining<T>>,
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
        // As many slots as requests in flight: everything beside them, and the delivery slots of every
        // connection, are as many.
        let slots = layout.log;
        let places = layout.seat_count();
        let (publisher, log) = dominoes::channel_with_slots::<Request, Spin>(slots, slots);
        let mut base = setup.build(device, slots)?;
        base.tx
            .transmitter
            .send_past(layout.past_hole as u64, layout.hole_turns);
        base.rx.stores_ahead = base.world.streams.inline.is_none();
        let request_shift = EFFECT_BITS + layout.request_chunk.trailing_zeros();
        // A frame of the chunk after next is numbered only when all of this one have left.
        let frame_chunks = base.world.limits.tx_slots as usize / layout.frame_chunk;
        let frame_words = 2 * frame_chunks.max(1);
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
                naming: Naming::new(&layout),
                staff: Staff::new(),
            }),
            tx: Role::new(base.tx),
            requests: (0..places)
                .map(|_| Units::new(slots / layout.request_chunk, request_shift))
                .collect(),
            frames: core::array::from_fn(|_| {
                Units::new(frame_words, layout.frame_chunk.trailing_zeros())
            }),
            assigned: Assigned::new(&layout, slots / layout.request_chunk, frame_words),
            performed: (0..places)
                .map(|id| if id < layout.replicas { 0 } else { NOBODY })
                .map(|told| CachePadded::new(AtomicU64::new(told)))
                .collect(),
            verified: (0..places)
                .map(|_| CachePadded::new(AtomicU64::new(0)))
                .collect(),
            roll: CachePadded::new(Roll::new(
                places,
                layout.replicas,
                slots / layout.request_chunk,
                layout.adapt,
            )),
            ledger: Ledger::new(places, layout.replicas, layout.adapt),
            posts: if layout.confirm {
                // Workers may be a log apart, and one may look at positions that are a log older than its own.
                Fingerprints::new(places, 4 * slots, 1)
            } else {
                Fingerprints::new(places, POSTS, layout.fingerprint_every)
            },
            shares: (0..places).map(|_| CachePadded::default()).collect(),
            busy: (0..places).map(|_| CachePadded::default()).collect(),
            bell: EventCount::new(),
            rest: EventCount::new(),
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
            workers.push(Worker::new(
                id,
                Arc::clone(&shared),
                Snapshot {
                    replica: Replica::new(shared.world.limits),
                    log: subscription,
                    kept: Kept::default(),
                    crews: Crews::new(layout.replicas),
                },
                tamper(id),
            ));
        }
        if layout.adapt {
            let others = layout.replicas..places;
            workers.extend(others.map(|id| Worker::resting(id, Arc::clone(&shared), tamper(id))));
        }
        Ok(Group {
            shared,
            workers,
            joining: Vec::new(),
        })
    }

    /// Where workers come and go once these are with their threads.
    pub fn door(&self) -> Door {
        Door::new(&self.shared)
    }

    /// Another worker, on seat `seat` or on any that is free. It sits among the workers once one of them has had a
    /// step, or more than half of three and more, and [`seat`](Self::seat) was called.
    ///
    /// # Errors
    /// If no seat is free, or no worker is left.
    pub fn join(&mut self, seat: Option<usize>, tamper: T) -> Result<usize, MembersError> {
        let joining = Joining::new(&self.shared, seat, tamper)?;
        let seat = joining.seat();
        self.joining.push(joining);
        Ok(seat)
    }

    /// How many wait for a state.
    pub fn joining(&self) -> usize {
        self.joining.len()
    }

    /// Lets those sit who were given a state. Returns how many.
    pub fn seat(&mut self) -> usize {
        let before = self.workers.len();
        for joining in &mut self.joining {
            self.workers.extend(joining.try_sit());
        }
        self.joining.retain(Joining::is_waiting);
        self.workers.len() - before
    }

    /// Asks the worker on seat `seat` to leave, or the one on the last seat. It performs its share first; then
    /// [`Worker::has_left`] says so.
    ///
    /// # Errors
    /// If there is no such worker, or it is the last.
    pub fn leave(&mut self, seat: Option<usize>) -> Result<usize, MembersError> {
        self.shared.dismiss(seat)
    }

    /// Sends the last worker to rest, as [`Layout::adapt`] does, unless it is the only one: it performs its share, and gives
    /// its state away.
    pub fn send_to_rest(&mut self) {
        self.shared.send_to_rest();
    }

    /// Lets a worker that rests come back. It works once it was given a state.
    pub fn recruit(&mut self) {
        self.shared.recruit();
    }

    /// Takes a worker out; what it leaves undone is everybody's when it is dropped.
    ///
    /// # Panics
    /// If there is no worker `index`.
    pub fn take(&mut self, index: usize) -> Worker<T> {
        self.workers.remove(index)
    }

    /// What became of the members so far.
    pub fn member_stats(&self) -> MemberStats {
        self.shared.member_stats()
    }

    /// The workers, to be driven by hand, in the order in which they came.
    pub fn workers(&mut self) -> &mut [Worker<T>] {
        &mut self.workers
    }

    /// The workers, to be given to threads.
    pub fn into_workers(self) -> Vec<Worker<T>> {
        self.workers
    }

    /// One turn of each worker, in order. Returns how much was done. If that is 0, and 0 again, nothing will happen before
    /// [`Group::next_deadline`] unless a frame or an application comes.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.workers.iter_mut().map(|worker| worker.turn(now)).sum()
    }

    /// When time has to be told at the latest: the earliest [`Worker::next_deadline`].
    pub fn next_deadline(&self) -> Instant {
        let deadlines = self.workers.iter().map(Worker::next_deadline);
        deadlines.min().unwrap_or(Instant::NEVER)
    }

    /// Publishes an entry of a recorded log as if it came from the pump, and works until everything it asks
    /// for is done and sent.
    ///
    /// What applications had read by then is up to the caller, who reads through the sockets.
    pub fn replay(&mut self, entry: &Entry) {
        while self.workers.iter_mut().map(Worker::work).sum::<usize>() > 0 {}
        let run = entry.prepare_world(&self.shared.world);
        if let Some(mut side) = self.shared.rx.try_take() {
            let members = || self.workers.iter().filter(|worker| worker.is_member());
            let index = entry.request.digest.primary as usize % members().count().max(1);
            let id = members().nth(index).map_or(0, Worker::id);
            let (_, mut log) = side.parts(&self.shared, id);
            log.reclaim(&mut drop);
            log.publish(&entry.request, entry.verdict, run);
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

    /// Frames that were sent past one that was not built yet; `None` while somebody has the transmit pump.
    pub fn sent_past_holes(&self) -> Option<u64> {
        Some(self.shared.tx.try_take()?.transmitter.passed())
    }

    /// Notes frames from now on, in the order in which the device takes them: their numbers, `None` for one that the pump
    /// built by itself. Returns those noted so far; `None` while somebody has the transmit pump.
    pub fn take_frame_order(&self) -> Option<Vec<Option<u64>>> {
        Some(self.shared.tx.try_take()?.transmitter.journal())
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
