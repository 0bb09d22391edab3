//! One replica, and its share of the work.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use dominoes::{Seq, Spin, Subscription};

use super::hands::{Hands, Held, Step, pinned};
use super::kept::{Cursor, Kept};
use super::late::{BITE, Walk, Watch};
use super::{Shared, Tamper};
use crate::digest::{MAX_RUN, Request};
use crate::effect::Effect;
use crate::engine::Shelf;
use crate::engine::perform::Template;
use crate::engine::prepare::prepare;
use crate::engine::pump::BATCH;
use crate::engine::replica::Replica;
use crate::engine::world::Wakes;
use crate::stats::{EffectStats, PumpStats};
use crate::time::Instant;

/// Turns without work after which a worker sends what others built.
const IDLE: u32 = 16;
/// Requests that a worker applies before it looks at anything else.
const APPLY_BATCH: usize = 64;
/// Turns of work after which a worker looks whether the transmit pump still sends.
const TURNS_UNSENT: u32 = 8;

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
    /// How far its own share is performed.
    cursor: Cursor,
    /// What `performed` was last told.
    told: Seq,
    watch: Watch,
    /// Turns of work that saw frames wait and nobody send any, and how many had been sent then.
    unsent: (u32, u64),
    /// Turns in a row without work.
    idle: u32,
    /// Frames whose work this worker completed.
    shelf: Shelf,
    tamper: T,
    template: Template,
    stats: EffectStats,
}

impl<T: Tamper> Worker<T> {
    pub(super) fn new(
        id: usize,
        shared: Arc<Shared>,
        log: Subscription<Request, Spin>,
        tamper: T,
    ) -> Self {
        let limits = shared.world.limits;
        let watch = Watch::new(shared.layout.replicas);
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
            watch,
            unsent: (0, 0),
            idle: 0,
            shelf: Shelf::default(),
            tamper,
            template: Template::default(),
            stats: EffectStats::default(),
        }
    }

    /// Everything that can be done now, once. Returns how much that was.
    ///
    /// Whoever gets a pump keeps it for a chunk of work, all of which then is its own: frames come in and go out
    /// through the cache of the core that works on them.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.watch.now = self.watch.now.max(now);
        self.pump_in_turn(now) + self.work()
    }

    /// Takes the receive pump, if nobody has it and this worker has not enough to do, for as many frames as make
    /// up a chunk of full runs.
    pub fn pump_in_turn(&mut self, now: Instant) -> usize {
        if self.ahead >= self.shared.layout.ahead_bytes || self.shared.rx.is_taken() {
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
        drop(side);
        if done > 0 {
            self.shared.bell.notify_all();
        }
        done
    }

    /// Whoever built the frame that is to be sent next sends; others if they are idle for long, or if that one is
    /// late.
    fn send_in_turn(&mut self, idle: bool) -> usize {
        let sent = self.shared.world.tx.sent();
        if !idle && !self.shared.is_likely_sender(self.id, sent) && !self.is_sender_late(sent) {
            return 0;
        }
        self.send().unwrap_or(0)
    }

    /// Whether frames have been numbered for some turns and nobody sent any: who should may be held up, and
    /// this worker, busy as it is, should do it.
    #[inline]
    fn is_sender_late(&mut self, sent: u64) -> bool {
        let (turns, before) = &mut self.unsent;
        if *before != sent || self.replica.frames().next == sent {
            (*turns, *before) = (0, sent);
            return false;
        }
        *turns += 1;
        *turns >= TURNS_UNSENT
    }

    /// A turn without the receive pump: everything that needs no clock.
    pub fn work(&mut self) -> usize {
        self.log.poll();
        let mut done = self.prepare_mine();
        done += self.apply_ready();
        done += self.perform_mine();
        self.idle = if done == 0 { self.idle + 1 } else { 0 };
        done += self.send_in_turn(self.idle >= IDLE);
        done += self.help(done == 0);
        if done == 0 {
            done = usize::from(self.prepare(self.replica.position()));
        }
        done
    }

    /// Takes the receive pump for one turn; `None` if somebody else has it.
    pub fn pump(&mut self, now: Instant) -> Option<usize> {
        self.watch.now = self.watch.now.max(now);
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
        while done < APPLY_BATCH && (self.apply_one() || self.apply_for_late()) {
            done += 1;
        }
        if done > 0 {
            self.log.advance_to(self.replica.position());
        }
        done
    }

    /// Applies the next request if who should prepare it is late, and so this worker does.
    fn apply_for_late(&mut self) -> bool {
        self.watch.suspecting && self.prepare(self.replica.position()) && self.apply_one()
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
            let turn = position / self.shared.layout.fingerprint_every;
            self.shared
                .posts
                .post(self.id, position, self.replica.post(turn));
        }
        true
    }

    fn perform_mine(&mut self) -> usize {
        let mut done = 0;
        let mut hands = self.hands();
        let last = loop {
            match hands.step() {
                Step::Performed => done += 1,
                Step::Passed => {}
                last => break last,
            }
        };
        drop(hands);
        self.watch.blocked = last == Step::Blocked;
        self.after_performing();
        done
    }

    /// Performs the next effect, or the next frame of one, whose primary is this worker; else one that its
    /// primary is late with. Says whether there was one.
    pub fn perform(&mut self) -> bool {
        let mut hands = self.hands();
        let last = loop {
            match hands.step() {
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
        if self.told != self.cursor.seq {
            self.told = self.cursor.seq;
            // ORDERING: Release, pairs with the Acquire in `Shared::performed_by_all` and `Shared::has_told`.
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
        self.forget(self.shared.performed_by_all());
        if !self.watch.look(&self.shared, &self.kept) {
            return 0;
        }
        let walk = self.walk(most);
        self.forget(walk.verified);
        if self.shared.verified[self.id].load(Ordering::Relaxed) < self.kept.first {
            // ORDERING: Release, pairs with the Acquire in `GroupLog::performed`.
            self.shared.verified[self.id].store(self.kept.first, Ordering::Release);
        }
        self.shared.shares[self.id].post(&self.stats);
        walk.done
    }

    #[cold]
    fn walk(&mut self, most: usize) -> Walk {
        let mut cursor = Cursor::at_first(&self.kept);
        let mut hands = Hands {
            id: self.id,
            shared: &self.shared,
            kept: &self.kept,
            cursor: &mut cursor,
            ahead: &mut self.ahead,
            template: &mut self.template,
            stats: &mut self.stats,
            tamper: &mut self.tamper,
            shelf: &mut self.shelf,
            wakes: Wakes::new(&self.shared.world),
            held: Held::NOTHING,
        };
        hands.walk(&mut self.watch, most)
    }

    /// Forgets requests below `below` that are done, but for what the cursor has not passed.
    fn forget(&mut self, below: Seq) {
        self.cursor.effect -= self.kept.forget(below.min(self.cursor.seq));
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
        self.forget(self.shared.performed_by_all());
        !self.kept.applied.is_empty()
    }

    /// Whether a turn would find something to do.
    pub(crate) fn has_work(&mut self) -> bool {
        self.log.poll() > self.replica.position()
            || self.cursor.seq < self.kept.end() && !self.watch.blocked
            || self.shared.tx.try_take().is_some_and(|tx| tx.has_work())
    }
}

impl<T: Tamper> Drop for Worker<T> {
    fn drop(&mut self) {
        // What it had begun, it let go of on the way here.
        self.shared.leave(self.id);
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
        self.apply_ready()
    }

    /// Performs all effects whose primary this worker is. Returns how many.
    pub fn perform_all(&mut self) -> usize {
        self.perform_mine()
    }
}
