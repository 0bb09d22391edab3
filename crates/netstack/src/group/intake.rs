//! Batches of frames between the device and the log.
//!
//! A batch passes three steps, each perhaps on another worker:
//!
//! 1. A worker that has a queue of the device *claims* a batch: it takes frames and a number, and
//!    reads no header except of merged frames. Other workers may claim from
//!    [other queues](crate::io::claim).
//! 2. The worker *parses* its batch, while others claim and parse theirs. Parsing changes nothing
//!    but the parser, so a batch whose worker is held up for [`HELP_AFTER`] is parsed by any other
//!    worker too; the first result counts.
//! 3. The worker that has the receive pump *publishes* parsed batches in the order of their
//!    numbers. The runs of a batch are published together, so they wait until the log has room for
//!    all of them.
//!
//! A worker that has found one lone request after the other [claims](Intake::claim_and_publish) the
//! next frames and publishes them in one step, while no batch waits. It verifies the first few
//! before that.
//!
//! So the log has the batches of each queue in the queue's order, and a worker that fails between
//! two steps delays nothing for longer than [`HELP_AFTER`]. Within a batch, the segments of a flow
//! keep their order. Runs of different flows may change places, and all other frames (datagrams,
//! fragments, ARP) follow the runs. By default the worker that parsed a batch is the primary of its
//! requests: it has the headers in its cache.

use core::sync::atomic::Ordering;

use crossbeam_utils::CachePadded;
use dominoes::group::{MAX_REPLICAS, WorkerState};
use dominoes::{TryLock, TryLockGuard};
use dominoes_drivers::Frame;

use super::execute::Share;
use super::worker::ReplicatedWorker;
use crate::group::{FaultHooks, GroupLog, ReplicatedShared};
use crate::io::claim::{MAX_CLAIM, first_queue};
use crate::io::gro::{Found, Parser};
use crate::io::rx::{Log as _, RESERVED, RxPump};
use crate::io::sync::AtomicU64;
use crate::io::{BatchFrames, ClaimedFrames, FrameRecycler, Run};
use crate::time::{Duration, Instant};

#[cfg(all(test, netstack_loom))]
mod loom_models;

/// Batches that may be claimed and not published.
const WAITING: usize = if cfg!(netstack_loom) { 2 } else { 16 };
/// Age of a claimed batch that is not parsed after which any worker parses it. Parsing a full
/// batch takes a tenth of that.
pub(crate) const HELP_AFTER: Duration = Duration::from_micros(50);

/// The contents of a batch.
#[derive(Default)]
pub(crate) struct Parsed {
    /// `None` between two uses.
    batch: Option<ClaimedFrames>,
    /// The worker that parsed it.
    worker: u8,
    /// Whether another worker claimed it.
    is_helped: bool,
    /// The first `count` are runs of segments that are not published; the rest is overwritten, in
    /// place.
    runs: Vec<Run>,
    count: usize,
    /// Frames that are no segments for us. The first `handled` are done.
    others: Vec<u8>,
    handled: usize,
    segments: u64,
}

impl Found for Parsed {
    #[inline]
    fn run(&mut self, run: &mut Run) {
        if self.count == self.runs.len() {
            self.grow(run);
        }
        self.runs[self.count].set(run);
        self.count += 1;
    }

    fn other(&mut self, index: usize) {
        self.others.push(index as u8);
    }
}

/// A slot for a batch.
#[derive(Default)]
enum WaitingSlot {
    #[default]
    Free,
    /// Claimed at this time.
    Claimed(ClaimedFrames, Instant),
    Parsed(Box<Parsed>),
}

/// Changed by workers that claim from the device.
#[derive(Default)]
struct Claimed {
    /// How many batches were claimed. Changed by the worker that has the slot of the next one.
    count: AtomicU64,
    /// The worker that claimed the latest batch. Above its `WORKER_BITS` is the time in nanoseconds
    /// at which it last found all queues of the device empty, since it took over claiming.
    last_by: AtomicU64,
}

const WORKER_BITS: u32 = 6;
const _: () = assert!(MAX_REPLICAS <= 1 << WORKER_BITS);

/// The batches that are claimed and not published.
pub(crate) struct WaitingBatches {
    slots: Box<[CachePadded<TryLock<WaitingSlot>>]>,
    claimed: CachePadded<Claimed>,
    /// How many were published, and their slots freed. Changed by the worker that has the receive
    /// pump.
    freed: CachePadded<AtomicU64>,
}

impl WaitingBatches {
    pub(crate) fn new() -> Self {
        WaitingBatches {
            slots: (0..WAITING).map(|_| Default::default()).collect(),
            claimed: CachePadded::default(),
            freed: CachePadded::default(),
        }
    }

    fn slot(&self, number: u64) -> &TryLock<WaitingSlot> {
        &self.slots[number as usize % WAITING]
    }

    /// Whether a batch is claimed and not published.
    #[inline]
    pub(crate) fn is_any_waiting(&self) -> bool {
        // ORDERING: Acquire, pairs with the Release in `claim`: a batch that another worker
        // claimed is in its slot, or that worker has the slot.
        self.claimed.count.load(Ordering::Acquire) != self.freed.load(Ordering::Relaxed)
    }

    /// The worker that claimed the latest batch, and when it last found the device empty.
    pub(crate) fn last_claimer(&self) -> (usize, Instant) {
        // ORDERING: Relaxed: a hint, and all of it is in this word.
        let word = self.claimed.last_by.load(Ordering::Relaxed);
        let empty_at = Instant::from_nanos(word >> WORKER_BITS);
        ((word & ((1 << WORKER_BITS) - 1)) as usize, empty_at)
    }

    /// Notes that worker `id` found all queues of the device empty, or claimed frames.
    #[inline]
    fn note_claimer(&self, id: usize, now: Instant, is_empty: bool) {
        // The last claimer writes the time of an empty device, and another worker its number.
        if (self.last_claimer().0 == id) == is_empty {
            let empty_at = if is_empty { now.as_nanos() } else { 0 };
            let word = empty_at << WORKER_BITS | id as u64;
            // Two workers with different queues may both write. Either is right for a hint.
            self.claimed.last_by.store(word, Ordering::Relaxed);
        }
    }

    /// Whether there is a slot for another batch.
    #[inline]
    fn has_place(&self) -> bool {
        // ORDERING: Acquire, as in `claim`.
        let freed = self.freed.load(Ordering::Acquire);
        self.claimed.count.load(Ordering::Relaxed) - freed < WAITING as u64
    }

    /// Gives a batch its number and its slot. Returns the frames if there is no slot now. The
    /// caller has the queue that they came from, and so the batches of a queue have ascending
    /// numbers.
    #[inline]
    fn claim(
        &self,
        (id, now): (usize, Instant),
        frames: Vec<Frame>,
    ) -> Result<(u64, ClaimedFrames), Vec<Frame>> {
        loop {
            // ORDERING: Acquire, pairs with the Release in `free_oldest`: the slot is free again,
            // and `number` is not below.
            let freed = self.freed.load(Ordering::Acquire);
            let number = self.claimed.count.load(Ordering::Relaxed);
            if number - freed >= WAITING as u64 {
                return Err(frames);
            }
            let Some(mut slot) = self.slot(number).try_take() else {
                return Err(frames);
            };
            // Only a worker that has this slot can take this number, and all others find the
            // slot taken until the batch is there.
            // ORDERING: Release, pairs with the Acquire in `is_any_waiting`.
            let taken = self.claimed.count.compare_exchange(
                number,
                number + 1,
                Ordering::Release,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                let batch = ClaimedFrames::new(frames);
                *slot = WaitingSlot::Claimed(ClaimedFrames::clone(&batch), now);
                self.note_claimer(id, now, false);
                return Ok((number, batch));
            }
            // A worker with another queue was faster.
        }
    }

    /// Puts the contents of batch `number` into its slot. Returns them if another worker did that
    /// before.
    ///
    /// # Errors
    /// Returns them, too, if the slot is taken at this moment: then the caller must retry.
    fn put(&self, number: u64, parsed: Box<Parsed>) -> Result<Option<Box<Parsed>>, Box<Parsed>> {
        // ORDERING: Acquire, pairs with the Release in `free_oldest`.
        if self.freed.load(Ordering::Acquire) > number {
            return Ok(Some(parsed));
        }
        let Some(mut slot) = self.slot(number).try_take() else {
            return Err(parsed);
        };
        // The slot may hold a later batch by now.
        match &*slot {
            WaitingSlot::Claimed(batch, _) if parsed.is_of(batch) => {
                *slot = WaitingSlot::Parsed(parsed);
                Ok(None)
            }
            _ => Ok(Some(parsed)),
        }
    }

    /// The oldest batch that is not published, if it is claimed since before `before` and not
    /// parsed.
    fn oldest_unparsed(&self, before: Instant) -> Option<(u64, ClaimedFrames)> {
        let number = self.freed.load(Ordering::Relaxed);
        // ORDERING: Acquire, pairs with the Release in `claim`.
        if number >= self.claimed.count.load(Ordering::Acquire) {
            return None;
        }
        match &*self.slot(number).try_take()? {
            WaitingSlot::Claimed(batch, since) if *since <= before => {
                Some((number, ClaimedFrames::clone(batch)))
            }
            _ => None,
        }
    }

    /// The slot of the oldest batch that is not published, if there is one; `None` if another
    /// worker looks at it at this moment. The caller has the receive pump.
    #[inline]
    fn oldest(&self) -> Option<TryLockGuard<'_, WaitingSlot>> {
        // ORDERING: Relaxed: only the worker that has the receive pump changes it.
        self.slot(self.freed.load(Ordering::Relaxed)).try_take()
    }

    /// Frees the slot of the oldest batch after publishing. Returns the batch's contents.
    #[inline]
    fn free_oldest(&self, mut slot: TryLockGuard<'_, WaitingSlot>) -> Option<Box<Parsed>> {
        let WaitingSlot::Parsed(parsed) = core::mem::take(&mut *slot) else {
            return None;
        };
        drop(slot);
        let number = self.freed.load(Ordering::Relaxed);
        // ORDERING: Release, pairs with the Acquire in `claim` and `put`.
        self.freed.store(number + 1, Ordering::Release);
        Some(parsed)
    }

    /// When any worker may parse the oldest batch, if that is not parsed yet.
    pub(crate) fn next_deadline(&self) -> Instant {
        let number = self.freed.load(Ordering::Relaxed);
        // ORDERING: Acquire, pairs with the Release in `claim`.
        if number >= self.claimed.count.load(Ordering::Acquire) {
            return Instant::NEVER;
        }
        match self.slot(number).try_take().as_deref() {
            Some(WaitingSlot::Claimed(_, since)) => *since + HELP_AFTER,
            _ => Instant::NEVER,
        }
    }
}

/// A worker's part of the three steps.
#[derive(Default)]
pub(crate) struct Intake {
    parser: Parser,
    /// The batch that this worker claimed and has not parsed.
    claimed: Option<(u64, ClaimedFrames)>,
    /// The batch that it parsed, whose slot was taken at that moment.
    parsed: Option<(u64, Box<Parsed>)>,
    /// Kept for reuse.
    #[expect(
        clippy::vec_box,
        reason = "a result goes from worker to worker as a box"
    )]
    spare: Vec<Box<Parsed>>,
}

/// Most results that a worker keeps for reuse.
const MAX_SPARE: usize = 2 * WAITING;

impl Intake {
    pub(crate) fn new() -> Self {
        Intake {
            parser: Parser::new(),
            ..Intake::default()
        }
    }

    fn parse(
        &mut self,
        shared: &ReplicatedShared,
        worker: usize,
        batch: &ClaimedFrames,
    ) -> Box<Parsed> {
        let mut parsed = self.spare.pop().unwrap_or_default();
        parsed.worker = worker as u8;
        parsed.batch = Some(ClaimedFrames::clone(batch));
        parsed.segments = self.parser.parse(&shared.world, batch, &mut *parsed);
        parsed
    }

    /// Whether it has a batch that it has not handed over.
    pub(super) const fn is_busy(&self) -> bool {
        self.claimed.is_some() || self.parsed.is_some()
    }

    /// Drops batches and results that this worker has not handed over; other workers parse those
    /// batches.
    pub(crate) fn abandon(&mut self, recycler: &mut FrameRecycler) {
        if let Some((_, batch)) = self.claimed.take() {
            recycler.put_batch(batch);
        }
        if let Some((_, parsed)) = self.parsed.take() {
            self.recycle(parsed, recycler);
        }
    }

    /// Takes a result that is not needed any more.
    fn recycle(&mut self, mut parsed: Box<Parsed>, recycler: &mut FrameRecycler) {
        if let Some(batch) = parsed.batch.take() {
            recycler.put_batch(batch);
        }
        for run in &mut parsed.runs[..parsed.count] {
            recycler.put(core::mem::take(&mut run.frames));
        }
        parsed.others.clear();
        (parsed.count, parsed.handled, parsed.segments) = (0, 0, 0);
        if self.spare.len() < MAX_SPARE {
            self.spare.push(parsed);
        }
    }
}

impl Intake {
    /// Publishes the parsed batches, in the order of their numbers, with the receive pump. Returns
    /// how much was done, and whether time may go on. `is_device_empty`: this worker has found no
    /// frame in the device at this time.
    pub(super) fn publish_waiting(
        &mut self,
        (shared, is_device_empty): (&ReplicatedShared, bool),
        pump: &mut RxPump,
        now: Instant,
        log: &mut GroupLog<'_>,
    ) -> (usize, bool) {
        let waiting = &shared.batches;
        let mut done = 0;
        while waiting.is_any_waiting() {
            let Some(mut slot) = waiting.oldest() else {
                return (done, false);
            };
            let WaitingSlot::Parsed(parsed) = &mut *slot else {
                return (done, false);
            };
            let Some(commands) = pump.commands_before_batch(now, log) else {
                return (done, pump.waits_for_control(now));
            };
            done += commands + parsed.publish(pump, &mut self.parser, now, log);
            if !parsed.is_published() {
                // Time continues meanwhile, as if the device had no more.
                let waits = pump.waits_for_control(now);
                pump.stats.log_full += u64::from(!waits);
                return (done, waits);
            }
            let Some(parsed) = waiting.free_oldest(slot) else {
                return (done, false);
            };
            pump.stats.frames += parsed.batch.as_ref().map_or(0, |batch| batch.len()) as u64;
            pump.stats.segments += parsed.segments;
            pump.stats.helped += u64::from(parsed.is_helped);
            self.recycle(parsed, &mut pump.recycler);
        }
        (done, is_device_empty)
    }

    /// Claims frames from the `queues` of the device and publishes them in one step, for worker
    /// `id`; if a batch waits, publishes that instead. Returns as `publish_waiting`. If it finds
    /// all queues empty, sets `empty_at`.
    pub(super) fn claim_and_publish(
        &mut self,
        (shared, id): (&ReplicatedShared, usize),
        (queues, empty_at): (impl Iterator<Item = usize>, &mut Instant),
        pump: &mut RxPump,
        now: Instant,
        log: &mut GroupLog<'_>,
    ) -> (usize, bool) {
        let mut taken = false;
        for queue in queues {
            let Some(mut claimer) = shared.queues.try_take(queue) else {
                taken = true;
                continue;
            };
            // No other worker claims from this queue now. Batches that were claimed from it are
            // older than its frames, and are counted: their workers had it, too.
            if shared.batches.is_any_waiting() {
                drop(claimer);
                return self.publish_waiting((shared, false), pump, now, log);
            }
            // The other way also bounds the bytes, and the share of the log.
            let about = (&mut *claimer, MAX_CLAIM);
            let (done, is_empty) = pump.claim_and_publish(now, about, log);
            if done > 0 {
                shared.batches.note_claimer(id, now, false);
            }
            if done > 0 || !is_empty {
                return (done, false);
            }
        }
        if !taken {
            shared.batches.note_claimer(id, now, true);
            *empty_at = now;
        }
        (0, !taken)
    }
}

impl Parsed {
    fn is_of(&self, batch: &ClaimedFrames) -> bool {
        let own = self.batch.as_ref();
        own.is_some_and(|own| ClaimedFrames::ptr_eq(own, batch))
    }

    #[cold]
    fn grow(&mut self, run: &Run) {
        self.runs.push(Run::bare(run.request));
    }

    fn is_published(&self) -> bool {
        self.count == 0 && self.handled == self.others.len()
    }

    /// Publishes what is left, as far as the log has room. `parser` is the publisher's, and learns
    /// the connections of flows. Returns how much was done.
    fn publish(
        &mut self,
        pump: &mut RxPump,
        parser: &mut Parser,
        now: Instant,
        log: &mut GroupLog<'_>,
    ) -> usize {
        let mut done = 0;
        if self.count <= log.room().saturating_sub(RESERVED + 2) {
            done = self.publish_runs(pump, parser, now, log);
        }
        while self.count == 0 && self.handled < self.others.len() {
            if log.room() <= RESERVED + 2 || pump.waits_for_control(now) {
                break;
            }
            let index = self.others[self.handled];
            if let Some(batch) = &self.batch {
                pump.frame(now, batch, usize::from(index), log);
            }
            self.handled += 1;
            done += 1;
        }
        pump.close_datagrams(now, log);
        done
    }

    /// Publishes the runs, for which the log has room. Returns how many segments they have.
    fn publish_runs(
        &mut self,
        pump: &mut RxPump,
        parser: &mut Parser,
        now: Instant,
        log: &mut GroupLog<'_>,
    ) -> usize {
        let (mut segments, mut kept) = (0, 0);
        for at in 0..self.count {
            let run = &mut self.runs[at];
            segments += usize::from(run.request.digest.count);
            let known = match pump.is_current(run) {
                true => None,
                false => parser.run_of(&run.flow()),
            };
            if let Some(known) = &known {
                run.set_hint(known);
            }
            let is_kept = pump.sample_run(now, run);
            if let Some(known) = known {
                known.set_hint(run);
            }
            if !is_kept {
                pump.recycler.put(core::mem::take(&mut run.frames));
                continue;
            }
            if kept != at {
                self.runs.swap(kept, at);
            }
            kept += 1;
        }
        self.count = 0;
        if kept > 0 {
            let runs = &mut self.runs[..kept];
            let mut frames = pump.recycler.spare_runs();
            frames.extend(runs.iter_mut().map(|run| core::mem::take(&mut run.frames)));
            log.publish_batch(self.worker, runs, BatchFrames::Parsed(frames));
        }
        segments
    }
}

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Claims a batch of frames and gives back frames that are no longer needed. Returns how many
    /// frames it claimed. `None` if other workers have all queues of the device, if this one has
    /// enough to do, or while its last batch is not parsed.
    pub fn claim(&mut self, now: Instant) -> Option<usize> {
        self.now = self.now.max(now);
        if self.handle_membership() || !self.may_take_frames() {
            return None;
        }
        self.return_to_log();
        self.claim_batch(now)
    }

    /// The same, in a turn.
    #[inline]
    pub(crate) fn claim_batch(&mut self, now: Instant) -> Option<usize> {
        self.device_empty_at = Instant::NEVER;
        if self.intake.is_busy() || self.has_enough() {
            return None;
        }
        let queues = self.queues();
        let shared = &*self.shared;
        // The runs of a batch are published together, and half of the log is known to have room.
        let most = MAX_CLAIM.min(shared.layout.tuning.log / 2 - RESERVED - 2);
        let recycler = &mut self.share.recycler;
        let (mut empty, mut taken) = (0, 0);
        for queue in queues {
            let Some(mut claimer) = shared.queues.try_take(queue) else {
                taken += 1;
                continue;
            };
            claimer.give_back(recycler);
            if !shared.batches.has_place() {
                return Some(0);
            }
            let mut frames = recycler.spare();
            let claimed = claimer.claim_batch(most, &mut frames);
            if claimed == 0 {
                recycler.put_spare(frames);
                empty += 1;
                continue;
            }
            match shared.batches.claim((self.id, now), frames) {
                Ok(batch) => self.intake.claimed = Some(batch),
                Err(mut frames) => {
                    claimer.unclaim(0, &mut frames);
                    recycler.put_spare(frames);
                    return Some(0);
                }
            }
            return Some(claimed);
        }
        if taken == 0 {
            shared.batches.note_claimer(self.id, now, true);
            self.device_empty_at = now;
        }
        (empty > 0).then_some(0)
    }

    /// Parses the batch that this worker claimed; else the oldest batch of another worker that is
    /// late with it. Returns whether it parsed one.
    pub fn parse(&mut self) -> bool {
        let ReplicatedWorker {
            intake,
            shared,
            share: Share { recycler, .. },
            id,
            now,
            ..
        } = self;
        let mut done = false;
        if intake.parsed.is_none() {
            let before = now.before(HELP_AFTER);
            let claimed = intake.claimed.take();
            let is_helped = claimed.is_none();
            let Some((number, batch)) = claimed.or_else(|| shared.batches.oldest_unparsed(before))
            else {
                return false;
            };
            let mut parsed = intake.parse(shared, *id, &batch);
            parsed.is_helped = is_helped;
            recycler.put_batch(batch);
            intake.parsed = Some((number, parsed));
            done = true;
        }
        if let Some((number, parsed)) = intake.parsed.take() {
            match shared.batches.put(number, parsed) {
                Ok(None) => {}
                Ok(Some(late)) => intake.recycle(late, recycler),
                Err(parsed) => intake.parsed = Some((number, parsed)),
            }
        }
        done
    }

    /// Takes the receive pump for one turn: publishes parsed batches, and news of applications.
    /// `None` if another worker has the pump, or if this one is not active or has no state.
    pub fn publish(&mut self, now: Instant) -> Option<usize> {
        self.now = self.now.max(now);
        if self.handle_membership() || !self.may_take_frames() {
            return None;
        }
        self.return_to_log();
        self.publish_parsed(now)
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
        let claimed = self.claim_batch(now).unwrap_or(0);
        self.parse();
        claimed + self.publish_parsed(now).unwrap_or(0)
    }

    /// Whether it has so much to do that it need not claim more frames.
    #[inline]
    pub(crate) fn has_enough(&self) -> bool {
        self.share.prepared_bytes >= self.shared.layout.tuning.ahead_bytes
    }

    /// Whether it may claim frames and publish.
    #[inline]
    pub(crate) fn may_take_frames(&self) -> bool {
        self.state == WorkerState::Active
    }

    /// The queues of the device, in the order in which it looks at them now. If it has many used
    /// frames, it returns them first: their queues may be others than those where it looks.
    #[inline]
    pub(super) fn queues(&mut self) -> impl Iterator<Item = usize> + Clone + use<T> {
        let first = match self.shared.queues.len() {
            1 => 0,
            count => {
                if self.share.recycler.frames.len() > MAX_CLAIM {
                    self.return_frames();
                }
                self.claims = self.claims.wrapping_add(1);
                let active = self.shared.membership.staying();
                first_queue(count, (self.id, active), self.claims)
            }
        };
        self.shared.queues.from(first)
    }

    /// Takes the receive pump for one turn, and publishes. Wakes the other workers, unless there was
    /// nothing to publish but lone requests. Returns how much was done; `None` if another worker has
    /// the pump.
    pub(crate) fn publish_parsed(&mut self, now: Instant) -> Option<usize> {
        let (shared, awaited) = (&*self.shared, self.replica.awaited());
        let (intake, is_empty) = (&mut self.intake, self.device_empty_at == now);
        let (quiet, recycler) = (&mut self.quiet, &mut self.share.recycler);
        let (done, is_lone) = shared.with_pump((self.id, now), recycler, None, |pump, log| {
            let before = (pump.received, pump.stats.frames);
            let done = pump.turn(now, awaited, log, |pump, log| {
                intake.publish_waiting((shared, is_empty), pump, now, log)
            });
            (done, quiet.count_published(before, pump, done))
        })?;
        if !is_lone {
            shared.work_event.notify_all();
        }
        Some(done)
    }

    /// Returns used frames to the device before this worker sleeps. If another worker is claiming
    /// from their queue, it may need frames, so they are left in the place where it looks for them.
    pub(crate) fn put_back(&mut self) {
        if self.share.recycler.frames.is_empty() {
            return;
        }
        self.return_frames();
        if !self.share.recycler.frames.is_empty() {
            self.shared.world.give_back(&mut self.share.recycler.frames);
        }
    }

    /// Returns used frames to those queues of the device that no other worker has.
    fn return_frames(&mut self) {
        let queues = &self.shared.queues;
        for mut claimer in queues.from(0).filter_map(|queue| queues.try_take(queue)) {
            claimer.put_back(&mut self.share.recycler.frames);
        }
    }
}

#[cfg(all(test, not(netstack_loom)))]
mod tests {
    use dominoes_drivers::{Device, TxFrame, memory};

    use crate::group::{Layout, ReplicatedGroup};
    use crate::io::setup::Setup;
    use crate::time::Instant;

    /// The first worker publishes every batch, so it has the used frames of both queues, and seldom
    /// looks at the queue of the second one.
    #[test]
    fn a_busy_worker_returns_the_frames_of_queues_where_it_seldom_looks() {
        let pairs = [(); 2].map(|()| memory::pair(memory::MemoryConfig::default().rx_pool(400)));
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let theirs = Box::new(theirs).split_queues().into_iter();
        let mut theirs: Vec<_> = theirs.map(|(_, tx)| tx).collect();
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let layout = Layout::default().replicas(2);
        let mut group = ReplicatedGroup::<()>::new(setup, layout, Box::new(ours)).unwrap();
        let mut claimed = 0;
        for round in 0..50 {
            let now = Instant::from_millis(round);
            for (id, count) in [(1, 30), (0, 90)] {
                let frames = vec![TxFrame::new(&[1; 60]); count];
                assert_eq!(theirs[id].transmit(&frames), Ok(count));
                let worker = &mut group.workers()[id];
                claimed += worker.claim(now).unwrap();
                worker.parse();
            }
            group.workers()[0].publish(now).unwrap();
        }
        assert_eq!(claimed, 50 * (30 + 90));
        for queue in 0..2 {
            let claimer = group.shared().queues.try_take(queue).unwrap();
            assert_eq!(claimer.rx().stats().pool_exhausted, 0);
        }
    }
}
