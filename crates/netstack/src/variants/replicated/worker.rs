//! One replica, and its share of the work.

use core::any::Any;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::Ordering;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;

use dominoes::{Seq, Spin, Subscription};

use super::alone::Company;
use super::handover::{Arrival, Exit, Snapshot};
use super::hands::{Hands, Held, Step, pinned};
use super::kept::{Cursor, Kept};
use super::late::{BITE, Walk, Watch};
use super::members::Crews;
use super::primaries::{Owner, Primaries};
use super::{RxSide, STORED, Shared, Tamper};
use crate::digest::{MAX_RUN, Request};
use crate::effect::Effect;
use crate::engine::Shelf;
use crate::engine::direct::Direct;
use crate::engine::perform::Template;
use crate::engine::pump::BATCH;
use crate::engine::replica::Replica;
use crate::engine::world::Wakes;
use crate::stats::{EffectStats, PumpStats};
use crate::time::{Duration, Instant};

/// Turns without work after which a worker sends what others built.
const IDLE: u32 = 16;
/// Requests that a worker applies before it looks at anything else.
const APPLY_BATCH: usize = 64;
/// Frames that nobody sends for so long are sent by whoever sees it, be it busy with other work: a few chunks are built in
/// that time.
const UNSENT: Duration = Duration::from_micros(50);

/// Whether a worker stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Member,
    /// It was asked to leave, and does when its share below this position is performed.
    Leaving(Seq),
    /// It has left, and only is to be dropped.
    Gone,
    /// It differed from the majority, or comes anew, and waits for a state.
    Waiting,
    /// It has no state, and waits to be wanted.
    Resting,
    /// It was given a state, which is to be proven.
    Proving,
    /// It was to come, and is not wanted any more.
    Withdrawn,
}

/// One replica, and its share of the work.
pub struct Worker<T: Tamper = ()> {
    pub(super) id: usize,
    pub(super) shared: Arc<Shared>,
    pub(super) log: Subscription<Request, Spin>,
    pub(super) replica: Replica,
    pub(super) kept: Kept,
    /// Whose work is whose.
    pub(super) crews: Crews,
    /// Whether it stays.
    pub(super) standing: Standing,
    /// The position below which a majority has its state, if that is asked for.
    pub(super) confirmed: Seq,
    /// How it comes by the state that it waits for.
    pub(super) arrival: Arrival,
    /// Fingerprints of positions that it came to before its state was proven.
    pub(super) unposted: Vec<(Seq, u64)>,
    /// Next request to be looked at for preparing.
    prepared: Seq,
    /// Payload octets of requests that are prepared and not performed.
    ahead: usize,
    /// How far its own share is performed.
    pub(super) cursor: Cursor,
    /// What `performed` was last told.
    told: Seq,
    watch: Watch,
    /// Since when frames wait and nobody sends any, and how many had been sent then.
    unsent: (Instant, u64),
    /// Turns in a row without work.
    idle: u32,
    /// Whether the last turn found any.
    was_busy: bool,
    /// Whether others work, too.
    pub(super) company: Company,
    /// What it does without the log.
    pub(super) direct: Direct,
    /// Frames whose work this worker completed.
    pub(super) shelf: Shelf,
    tamper: T,
    /// Whether `tamper` has the effects of a request in its hands.
    tampering: bool,
    pub(super) template: Template,
    pub(super) stats: EffectStats,
}

impl<T: Tamper> Worker<T> {
    /// A worker that goes on where `snapshot` stands, on a seat that is kept for it.
    pub(super) fn new(id: usize, shared: Arc<Shared>, snapshot: Snapshot, tamper: T) -> Self {
        // What its predecessor performed counts on.
        let stats = shared.shares[id].load();
        let Snapshot {
            replica,
            log,
            kept,
            crews,
        } = snapshot;
        // ORDERING: Relaxed: this thread, or the one that made this worker, stored it last.
        let told = shared.performed[id].load(Ordering::Relaxed);
        Worker {
            id,
            watch: Watch::new(shared.layout.seat_count()),
            shared,
            log,
            prepared: replica.position(),
            confirmed: replica.position(),
            arrival: Arrival::Repaired,
            unposted: Vec::new(),
            cursor: Cursor::at_first(&kept),
            replica,
            kept,
            crews,
            standing: Standing::Member,
            ahead: 0,
            told,
            unsent: (Instant::ZERO, 0),
            idle: 0,
            was_busy: false,
            company: Company::Others,
            direct: Direct::default(),
            shelf: Shelf::default(),
            tamper,
            tampering: false,
            template: Template::default(),
            stats,
        }
    }

    /// A worker that rests from the beginning.
    pub(super) fn resting(id: usize, shared: Arc<Shared>, tamper: T) -> Self {
        let nothing = Snapshot::none(shared.world.limits);
        let mut worker = Worker::new(id, shared, nothing, tamper);
        worker.standing = Standing::Resting;
        worker
    }

    /// Begins anew where `snapshot` stands.
    fn renew(&mut self, snapshot: Snapshot) {
        let now = self.watch.now;
        let Snapshot {
            replica,
            log,
            kept,
            crews,
        } = snapshot;
        self.watch = Watch::new(self.shared.layout.seat_count());
        self.watch.now = now;
        self.cursor = Cursor::at_first(&kept);
        self.unposted.clear();
        self.ahead = 0;
        self.unsent = (Instant::ZERO, 0);
        (self.replica, self.log, self.kept, self.crews) = (replica, log, kept, crews);
        self.standing = Standing::Proving;
    }

    /// Gets a state, if one is there, and goes on until it is proven. Says whether it takes part from now on.
    pub(super) fn try_sit(&mut self) -> bool {
        if self.standing == Standing::Waiting {
            let Some(snapshot) = self.shared.collect(self.id) else {
                // What it does not read would hold the log.
                let end = self.log.poll();
                self.log.advance_to(end);
                return false;
            };
            self.renew(snapshot);
        }
        self.prove()
    }

    /// Takes part from where its state stands.
    pub(super) fn sit(&mut self) {
        self.told = self
            .shared
            .sit(self.id, self.kept.first, self.replica.position());
        self.prepared = self.replica.position();
        self.confirmed = self.replica.position();
        self.cursor = Cursor::at_first(&self.kept);
        self.unposted = Vec::new();
        self.standing = Standing::Member;
    }

    /// Looks into the book if this worker is called. Says whether it has no state to work with.
    #[inline]
    fn attends(&mut self) -> bool {
        self.shared.roll.is_called(self.id) && self.attend()
    }

    #[cold]
    fn attend(&mut self) -> bool {
        if self.is_resting() {
            // Those who work have the words to themselves that it would write.
            return true;
        }
        // Who is given a state may come and go before this worker's next turn.
        self.return_to_log();
        let shared = Arc::clone(&self.shared);
        shared.roll.answer_call(self.id);
        if shared.roll.take_accusation(self.id)
            && matches!(self.standing, Standing::Member | Standing::Leaving(_))
            && self.face_accusation()
        {
            shared.roll.call(1 << self.id);
            return true;
        }
        match self.standing {
            Standing::Gone | Standing::Withdrawn => {
                shared.roll.call(1 << self.id);
                return true;
            }
            Standing::Resting => {
                (self.standing, self.arrival) = (Standing::Waiting, Arrival::Recruited);
                shared.roll.call(1 << self.id);
                return true;
            }
            Standing::Waiting | Standing::Proving => {
                if !self.try_sit() {
                    shared.roll.call(1 << self.id);
                    return true;
                }
                shared.count_arrival(core::mem::replace(&mut self.arrival, Arrival::Repaired));
            }
            Standing::Member if shared.roll.is_leaving(self.id) => {
                self.standing = Standing::Leaving(self.log.poll());
            }
            Standing::Member | Standing::Leaving(_) => {}
        }
        if let Standing::Leaving(end) = self.standing
            && self.cursor.seq >= end
        {
            if shared.may_go(self.id) {
                if shared.roll.takes_rest(self.id) {
                    self.rest();
                } else {
                    self.standing = Standing::Gone;
                }
                shared.roll.call(1 << self.id);
                return true;
            }
            self.standing = Standing::Member;
        }
        if self.serve() || self.standing != Standing::Member {
            shared.roll.call(1 << self.id);
        }
        false
    }

    /// Whether it has a state, and was not asked to leave.
    pub fn is_member(&self) -> bool {
        self.standing == Standing::Member && !self.shared.roll.is_leaving(self.id)
    }

    /// Gives its state away. It has performed its share.
    fn rest(&mut self) {
        self.put_back();
        self.shared.leave(self.id, Exit::Rests);
        self.renew(Snapshot::none(self.shared.world.limits));
        self.standing = Standing::Resting;
    }

    /// Whether this worker brings nothing at present, and so has no state: its turns do nothing until the others have too
    /// much to do.
    pub fn is_resting(&self) -> bool {
        self.standing == Standing::Resting && self.shared.roll.resting() >> self.id & 1 != 0
    }

    /// Whether this worker is the only one that works, and so uses no log.
    pub fn is_alone(&self) -> bool {
        self.company == Company::Nobody
    }

    /// Whether this worker was asked to leave, and has: nothing is left to do but to drop it.
    pub fn has_left(&self) -> bool {
        self.standing == Standing::Gone
    }

    /// Everything that can be done now, once. Returns how much that was.
    ///
    /// Whoever gets a pump keeps it for a chunk of work, all of which then is its own: frames come in and go out
    /// through the cache of the core that works on them.
    pub fn turn(&mut self, now: Instant) -> usize {
        if self.shared.layout.adapt {
            self.count_busy(now);
        }
        self.watch.now = self.watch.now.max(now);
        if self.attends() {
            self.was_busy = false;
            return 0;
        }
        let done = match self.is_in_company() {
            true => self.pump_in_turn(now) + self.do_work(),
            false => self.turn_without_others(now),
        };
        self.was_busy = done > 0;
        done
    }

    /// A turn begins: the time since the last one was spent on work, if that found any.
    fn count_busy(&mut self, now: Instant) {
        if self.was_busy {
            // ORDERING: Relaxed: this worker's own, and for others a measurement.
            let busy = &self.shared.busy[self.id];
            let passed = now.since(self.watch.now).as_nanos();
            busy.store(busy.load(Ordering::Relaxed) + passed, Ordering::Relaxed);
        }
    }

    /// Takes the receive pump, if nobody has it and this worker has not enough to do, for as many frames as make
    /// up a chunk of full runs.
    pub fn pump_in_turn(&mut self, now: Instant) -> usize {
        self.return_to_log();
        if self.ahead >= self.shared.layout.ahead_bytes
            || self.standing != Standing::Member
            || self.shared.rx.is_taken()
        {
            return 0;
        }
        let Some(mut side) = self.shared.rx.try_take() else {
            return 0;
        };
        let (pump, mut log) = side.parts(&self.shared, self.id);
        core::mem::swap(&mut pump.shelf, &mut self.shelf);
        let deadline = self.replica.next_deadline();
        let most = self.shared.layout.request_chunk * MAX_RUN;
        let mut done = 0;
        while done < most {
            let now_done = pump.turn(now, deadline, &mut log);
            done += now_done;
            if now_done < BATCH {
                break;
            }
        }
        core::mem::swap(&mut pump.shelf, &mut self.shelf);
        if self.shared.layout.adapt && side.staff.is_due(now) {
            let RxSide { pump, staff, .. } = &mut *side;
            self.shared.look_at_staff(staff, pump.balance.as_ref(), now);
        }
        drop(side);
        if done > 0 {
            self.shared.bell.notify_all();
        }
        done
    }

    /// Whoever built the frame that is to be sent next sends, and leaves to others what they build; those do if they are
    /// idle for long, or if that one is late. A device reads a frame, or copies it, and where it was built it is near.
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

    /// The first frame behind `frame`, which is this worker's, that somebody else may be building.
    #[inline]
    fn own_frames_end(&self, frame: u64) -> u64 {
        let chunk = self.shared.frame_chunk_of(frame);
        match self.crews.of_frames(chunk).members().count() {
            1 => u64::MAX,
            _ => self.shared.frame_chunk_end(frame),
        }
    }

    /// Whether this worker most likely builds frame `frame`, or whoever should is missing.
    #[inline]
    fn is_likely_sender(&self, frame: u64) -> bool {
        let shared = &self.shared;
        match shared.layout.primaries {
            // Not to be asked: that would be taking it.
            Primaries::Greedy => true,
            _ => {
                let chunk = shared.frame_chunk_of(frame);
                let roll = &shared.roll;
                match shared.assigned.frame_owner(&self.crews, roll, chunk, true) {
                    Owner::Worker(owner) => owner == self.id || !roll.is_present(owner),
                    _ => true,
                }
            }
        }
    }

    /// Whether frames have been numbered for a while and nobody sent any: who should may be held up, and
    /// this worker, busy as it is, should do it.
    #[inline]
    fn is_sender_late(&mut self, sent: u64) -> bool {
        let now = self.watch.now;
        let (since, before) = &mut self.unsent;
        if *before != sent || self.replica.frames().next == sent {
            (*since, *before) = (now, sent);
            return false;
        }
        now.since(*since) >= UNSENT
    }

    /// A turn without the receive pump: everything that needs no clock.
    pub fn work(&mut self) -> usize {
        if self.attends() {
            return 0;
        }
        self.do_work()
    }

    #[inline]
    pub(super) fn do_work(&mut self) -> usize {
        self.log.poll();
        let mut done = self.prepare_mine();
        done += self.apply_ready(APPLY_BATCH);
        done += self.perform_and_send();
        self.idle = if done == 0 { self.idle + 1 } else { 0 };
        done += self.send_in_turn(self.idle >= IDLE);
        done += self.help(done == 0);
        if done == 0 {
            done = usize::from(self.prepare_one(self.replica.position()));
        }
        done
    }

    /// Takes the receive pump for one turn; `None` if somebody else has it.
    pub fn pump(&mut self, now: Instant) -> Option<usize> {
        self.watch.now = self.watch.now.max(now);
        if self.attends() || self.standing != Standing::Member {
            return None;
        }
        self.return_to_log();
        let mut side = self.shared.rx.try_take()?;
        let (pump, mut log) = side.parts(&self.shared, self.id);
        core::mem::swap(&mut pump.shelf, &mut self.shelf);
        let done = pump.turn(now, self.replica.next_deadline(), &mut log);
        core::mem::swap(&mut pump.shelf, &mut self.shelf);
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
            tamper,
            ..
        } = self;
        let end = log.end();
        let mut done = 0;
        // One pin serves a whole chunk.
        let mut pin = None;
        *prepared = (*prepared).max(replica.position());
        while *prepared < end && *ahead < shared.layout.ahead_bytes {
            let seq = *prepared;
            *prepared += 1;
            let Some(request) = log.get(seq) else {
                continue;
            };
            if usize::from(request.digest.primary) != *id {
                continue;
            }
            *ahead += request.digest.len as usize;
            if shared.verdicts.get(seq).is_none()
                && let Some(run) = pinned(&shared.attachments, &mut pin, seq)
            {
                done += usize::from(shared.prepare(seq, request, run, stats, || {
                    if T::ACTIVE {
                        tamper.preparing(seq);
                    }
                }));
            }
        }
        done
    }

    /// Prepares the request at `seq`, whoever is its primary, if it is published, not applied here, and
    /// nobody prepared it. Says whether it did.
    pub fn prepare(&mut self, seq: u64) -> bool {
        if self.attends() {
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
                self.tamper.preparing(seq);
            }
        })
    }

    /// Applies at most `most` requests. A panic of a connection ends that connection (see [`Replica::unwound`]).
    fn apply_ready(&mut self, most: usize) -> usize {
        let mut done = 0;
        loop {
            let batch = || {
                while done < most && (self.apply_one() || self.apply_for_late()) {
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

    /// Something unwound among requests. If one was being applied, it is completed.
    #[cold]
    fn after_panic(&mut self, panic: Box<dyn Any + Send>) {
        let seq = self.kept.end();
        match self.log.get(seq) {
            Some(request) if self.replica.position() == seq + 1 && !self.tampering => {
                self.replica.unwound(panic, request, &mut self.kept);
                self.kept.commit(request, false);
                self.post_if_due(seq + 1);
            }
            _ => resume_unwind(panic),
        }
    }

    /// Applies the next request if who should prepare it is late, and so this worker does.
    fn apply_for_late(&mut self) -> bool {
        self.watch.suspecting && self.prepare_one(self.replica.position()) && self.apply_one()
    }

    /// Applies the next request if it is published and prepared. Says whether it did.
    pub fn apply(&mut self) -> bool {
        if self.attends() {
            return false;
        }
        self.log.poll();
        self.apply_ready(1) > 0
    }

    #[inline]
    pub(super) fn apply_one(&mut self) -> bool {
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
            self.tamper.state(seq, &mut self.replica);
            changed = *request;
            verdict = self.tamper.verdict(seq, verdict, &changed);
            if verdict.is_some() {
                self.tamper.request(seq, &mut changed);
            }
            request = &changed;
        }
        let Some(verdict) = verdict else { return false };
        if self.crews.is_due(seq) {
            let chunk = self.shared.request_chunk_of(seq);
            let mask = self.shared.roll.crew_of(chunk);
            let frame = self.replica.frames().next;
            self.crews.begin(mask, &self.shared.layout, frame);
        }
        self.replica
            .apply_in_batch(request, verdict, &mut self.kept);
        if T::ACTIVE {
            // Whoever panics here is not the connection.
            self.tampering = true;
            self.kept
                .change_pending(|effects| self.tamper.effects(seq, effects));
            self.tampering = false;
        }
        self.kept.commit(request, is_stored);
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
            // A change may be overwritten by the request that something comes of it.
            print = print.rotate_left(1) ^ self.kept.fingerprint();
        }
        if self.standing == Standing::Proving {
            self.unposted.push((position, print));
            return;
        }
        posts.post(self.id, position, print);
        self.shared.compare_at(position);
    }

    /// Performs what is this worker's. Whenever it has built as many frames as others build in a row, it looks whether they
    /// can go: who has to wait for them has nothing to do meanwhile.
    fn perform_and_send(&mut self) -> usize {
        let most = self.shared.layout.frame_chunk as u32;
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

    /// Performs what is this worker's, up to so many frames. Returns how much that was, and what the last step came to.
    fn perform_mine(&mut self, most: u32) -> (usize, Step) {
        let mut done = 0;
        let limit = self.limit();
        let mut hands = self.hands();
        let before = hands.stats.frames;
        let last = loop {
            if hands.cursor.seq >= limit {
                break Step::End;
            }
            let built = (hands.stats.frames - before) as u32;
            if built >= most {
                break Step::Performed;
            }
            match hands.step(most - built) {
                Step::Performed => done += 1,
                Step::Passed => {}
                last => break last,
            }
        };
        drop(hands);
        self.watch.blocked = last == Step::Blocked;
        self.after_performing();
        (done, last)
    }

    /// Performs the next effect, or the next frame of one, whose primary is this worker; else one that its
    /// primary is late with. Says whether there was one.
    pub fn perform(&mut self) -> bool {
        if self.attends() {
            return false;
        }
        let limit = self.limit();
        let mut hands = self.hands();
        let last = loop {
            if hands.cursor.seq >= limit {
                break Step::End;
            }
            match hands.step(1) {
                Step::Passed => {}
                last => break last,
            }
        };
        drop(hands);
        self.watch.blocked = last == Step::Blocked;
        self.after_performing();
        last == Step::Performed || self.help_now(1) > 0
    }

    fn hands(&mut self) -> Hands<'_, T> {
        Hands {
            id: self.id,
            shared: &self.shared,
            kept: &self.kept,
            crews: &self.crews,
            cursor: &mut self.cursor,
            ahead: &mut self.ahead,
            template: &mut self.template,
            stats: &mut self.stats,
            tamper: &mut self.tamper,
            shelf: &mut self.shelf,
            wakes: Wakes::new(&self.shared.world),
            held: Held::NOTHING,
        }
    }

    /// Tells how far this worker is.
    fn after_performing(&mut self) {
        // The share of a seat may be known to be done farther than its worker's cursor has come.
        if self.told < self.cursor.seq {
            self.told = self.cursor.seq;
            // ORDERING: Release, pairs with the Acquire in `Shared::performed_by` and `Shared::has_told`.
            self.shared.performed[self.id].store(self.told, Ordering::Release);
            self.shared.shares[self.id].post(&self.stats);
        }
    }

    /// Forgets what is done, and takes what others are late with, if it is time to look. Returns how much that was.
    #[inline]
    fn help(&mut self, idle: bool) -> usize {
        let pending = self.kept.applied.len();
        if !self.watch.is_due(pending, idle, &self.shared.layout) {
            return 0;
        }
        self.help_now(BITE)
    }

    #[inline(never)]
    fn help_now(&mut self, most: usize) -> usize {
        self.forget(self.shared.performed_by(self.crews.owners()));
        if !self.watch.look(&self.shared, &self.kept, &self.crews) {
            // Who is missing tells nothing more; that all is done nevertheless has to be told.
            let told = self.shared.roll.misses_somebody() && self.verify();
            return usize::from(told);
        }
        let walk = self.walk(most);
        self.forget(walk.verified);
        let told = self.verify();
        self.shared.shares[self.id].post(&self.stats);
        walk.done.max(usize::from(told))
    }

    /// Tells that all it has forgotten is done, by whomever. Says whether that was news: the pump may have waited for it.
    fn verify(&self) -> bool {
        let told = self.shared.verified[self.id].load(Ordering::Relaxed);
        if told >= self.kept.first {
            return false;
        }
        // ORDERING: Release, pairs with the Acquire in `GroupLog::performed`.
        self.shared.verified[self.id].store(self.kept.first, Ordering::Release);
        true
    }

    #[cold]
    fn walk(&mut self, most: usize) -> Walk {
        let limit = self.limit();
        let mut cursor = Cursor::at_first(&self.kept);
        let mut hands = Hands {
            id: self.id,
            shared: &self.shared,
            kept: &self.kept,
            crews: &self.crews,
            cursor: &mut cursor,
            ahead: &mut self.ahead,
            template: &mut self.template,
            stats: &mut self.stats,
            tamper: &mut self.tamper,
            shelf: &mut self.shelf,
            wakes: Wakes::new(&self.shared.world),
            held: Held::NOTHING,
        };
        hands.walk(&mut self.watch, limit, most)
    }

    /// Forgets requests below `below` that are done, but for what the cursor has not passed.
    fn forget(&mut self, below: Seq) {
        self.cursor.effect -= self.kept.forget(below.min(self.cursor.seq));
        self.crews.forget(self.kept.first);
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

    /// When time has to be told at the latest: to the state, as far as this worker knows it, and to the receive pump, which
    /// waits for neighbours to answer and for fragments to arrive. Of a pump that another worker holds at this moment it
    /// says nothing: that worker asks after its turn.
    pub fn next_deadline(&self) -> Instant {
        let side = self.shared.rx.try_take();
        let pump = side.map_or(Instant::NEVER, |side| side.pump.next_deadline());
        self.replica.next_deadline().min(pump)
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

    /// Gives frames that are done with back to the device before this worker sleeps. If somebody has the pump, who may
    /// sleep in the device for want of just these frames, they are left for that one.
    pub(crate) fn put_back(&mut self) {
        if self.shelf.frames.is_empty() {
            return;
        }
        match self.shared.rx.try_take() {
            Some(mut side) => side.pump.put_back(&mut self.shelf.frames),
            None => self.shared.world.give_back(&mut self.shelf.frames),
        }
    }

    /// Whether something that others have begun, or are not yet late with, is still to be done: this worker has to look
    /// again.
    pub(crate) fn is_behind(&mut self) -> bool {
        self.forget(self.shared.performed_by(self.crews.owners()));
        !self.kept.applied.is_empty()
    }

    /// Whether a turn would find something to do.
    pub(crate) fn has_work(&mut self) -> bool {
        self.shared.roll.is_called(self.id)
            || self.log.poll() > self.replica.position()
            || self.cursor.seq < self.kept.end() && !self.watch.blocked
            || self.shared.tx.try_take().is_some_and(|tx| tx.has_work())
    }
}

impl<T: Tamper> core::fmt::Debug for Worker<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let shared = &self.shared;
        f.debug_struct("Worker")
            .field("id", &self.id)
            .field("standing", &self.standing)
            .field("published", &self.log.end())
            .field("applied", &self.replica.position())
            .field("performed", &self.cursor.seq)
            .field("kept_from", &self.kept.first)
            .field("told", &self.told)
            .field("frames", &self.replica.frames().next)
            .field("room", &self.replica.frames().room())
            .field("deadline", &self.replica.next_deadline())
            .field("crews", &self.crews)
            .field("all_told", &shared.performed)
            .field("all_verified", &shared.verified)
            .finish_non_exhaustive()
    }
}

impl<T: Tamper> Drop for Worker<T> {
    fn drop(&mut self) {
        self.end();
        // A test that tampers with it says by itself what it expects.
        #[cfg(feature = "testkit")]
        if !T::ACTIVE {
            self.shared.world.assert_no_panics(&self.replica);
        }
    }
}

impl<T: Tamper> Worker<T> {
    fn end(&mut self) {
        if self.standing == Standing::Resting {
            return self.shared.withdraw(self.id);
        }
        // What it had begun, it let go of on the way here.
        let exit = match self.standing {
            Standing::Gone => Exit::Left,
            Standing::Withdrawn => Exit::Withdrew,
            _ => Exit::Died,
        };
        self.shared.leave(self.id, exit);
    }
}

/// The parts of [`Worker::work`], each by itself, so that it can be measured.
#[cfg(feature = "testkit")]
impl<T: Tamper> Worker<T> {
    /// Looks how far the log is published and prepares this worker's requests. Returns how many.
    pub fn prepare_ahead(&mut self) -> usize {
        self.log.poll();
        self.prepare_mine()
    }

    /// Applies the ready prefix of the log, as far as one turn does. Returns how many requests.
    pub fn apply_all(&mut self) -> usize {
        self.apply_ready(APPLY_BATCH)
    }

    /// Whether it and `other` posted the same wherever both did since `from`.
    pub(crate) fn posted_alike(&self, other: &Worker<T>, from: u64) -> bool {
        let posts = &self.shared.posts;
        let own = posts.all(self.id).into_iter();
        let mut own = own.filter(|(position, _)| *position >= from);
        own.all(|(position, print)| {
            let theirs = posts.at(other.id, position);
            theirs.is_none_or(|theirs| theirs == print)
        })
    }

    /// The position behind which its state is one that it came to by itself, and so counts when replicas differ.
    pub fn since(&self) -> u64 {
        self.shared.roll.since(self.id)
    }

    /// Performs all effects whose primary this worker is. Returns how many.
    pub fn perform_all(&mut self) -> usize {
        self.perform_mine(u32::MAX).0
    }
}
