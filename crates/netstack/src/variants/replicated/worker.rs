//! One replica, and its share of the work.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use dominoes::{Seq, Spin, Subscription};

use super::hands::{Hands, pinned};
use super::share::{Kept, Share};
use super::{Shared, Tamper};
use crate::digest::{MAX_RUN, Request};
use crate::effect::Effect;
use crate::engine::Shelf;
use crate::engine::prepare::prepare;
use crate::engine::pump::BATCH;
use crate::engine::replica::Replica;
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
    share: Share,
    /// Turns of work that saw frames wait and nobody send any, and how many had been sent then.
    unsent: (u32, u64),
    /// Turns in a row without work.
    idle: u32,
    /// Frames whose work this worker completed.
    shelf: Shelf,
    tamper: T,
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
        let share = Share::new(shared.layout.replicas);
        Worker {
            id,
            shared,
            log,
            replica: Replica::new(limits),
            kept: Kept::default(),
            prepared: 0,
            share,
            unsent: (0, 0),
            idle: 0,
            shelf: Shelf::default(),
            tamper,
            stats: EffectStats::default(),
        }
    }

    /// Everything that can be done now, once. Returns how much that was.
    ///
    /// Whoever gets a pump keeps it for a chunk of work, all of which then is its own: frames come in and go out
    /// through the cache of the core that works on them.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.share.now = self.share.now.max(now);
        self.pump_in_turn(now) + self.work()
    }

    /// Takes the receive pump, if nobody has it and this worker has not enough to do, for as many frames as make
    /// up a chunk of full runs.
    pub fn pump_in_turn(&mut self, now: Instant) -> usize {
        if self.share.ahead >= self.shared.layout.ahead_bytes || self.shared.rx.is_taken() {
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
        if !idle
            && self.shared.primary_of_frame(self.shared.world.tx.sent()) != self.id
            && !self.is_sender_late()
        {
            return 0;
        }
        self.send().unwrap_or(0)
    }

    /// Whether frames have been numbered for some turns and nobody sent any: who should may be held up, and
    /// this worker, busy as it is, should do it.
    #[inline]
    fn is_sender_late(&mut self) -> bool {
        let numbered = self.replica.frames().next;
        let sent = self.shared.world.tx.sent();
        let (turns, before) = &mut self.unsent;
        if numbered == sent || *before != sent {
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
        done += self.steal(done == 0);
        if done == 0 {
            done = usize::from(self.prepare(self.replica.position()));
        }
        done
    }

    /// Takes the receive pump for one turn; `None` if somebody else has it.
    pub fn pump(&mut self, now: Instant) -> Option<usize> {
        self.share.now = self.share.now.max(now);
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
            share: Share { ahead, .. },
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
            if shared.primary_of_request(seq, request.digest.publisher) != *id {
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
        self.share.suspecting && self.prepare(self.replica.position()) && self.apply_one()
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
        while let ControlFlow::Continue(performed) = hands.step() {
            done += usize::from(performed);
        }
        hands.rest();
        self.after_performing();
        done
    }

    /// Performs what others are late with, if it is time to look. Returns how much that was.
    #[inline]
    fn steal(&mut self, idle: bool) -> usize {
        let behind = self.share.front.seq - self.share.rear.seq;
        if behind == 0 {
            self.share.since = self.share.now;
            return 0;
        }
        let layout = &self.shared.layout;
        let unsent = self.replica.frames().next.saturating_sub(self.unsent.1);
        let many = (layout.steal_after + layout.frame_chunk) as u64;
        let quiet = !idle && !self.share.suspecting;
        if quiet && behind <= layout.steal_after as u64 && unsent <= many {
            return 0;
        }
        self.steal_now()
    }

    #[cold]
    #[inline(never)]
    fn steal_now(&mut self) -> usize {
        let mut done = 0;
        if self.catch_up() {
            let mut hands = self.hands();
            while let ControlFlow::Continue(performed) = hands.steal() {
                done += usize::from(performed);
            }
            hands.rest();
            self.after_stealing();
        }
        done
    }

    /// Lets the rear pass over what all have told to be done. Says whether something is left before it.
    fn catch_up(&mut self) -> bool {
        let told = self.shared.performed_by_all().min(self.share.front.seq);
        let before = self.share.rear.seq;
        self.share.rear.jump(&self.kept, told);
        self.after_moving(before);
        if self.share.suspecting {
            let suspects = self.share.suspects.iter().zip(&self.shared.performed);
            // ORDERING: Relaxed, as where suspects are told of.
            let mut told = suspects.map(|(s, word)| *s == Some(word.load(Ordering::Relaxed)));
            self.share.suspecting = told.any(|unchanged| unchanged);
        }
        self.share.rear.seq < self.share.front.seq
    }

    /// The rear stood at `before`.
    fn after_moving(&mut self, before: Seq) {
        let share = &mut self.share;
        if share.rear.seq != before || share.rear.seq == share.front.seq {
            share.since = share.now;
        }
        share.impatient = share.now.since(share.since) >= self.shared.layout.patience;
        if share.verified != share.rear.seq {
            share.verified = share.rear.seq;
            // ORDERING: Release, pairs with the Acquire in `GroupLog::performed`.
            self.shared.verified[self.id].store(share.verified, Ordering::Release);
        }
    }

    fn after_stealing(&mut self) {
        let before = self.share.verified;
        self.after_moving(before);
        self.after_performing();
        self.shared.shares[self.id].post(&self.stats);
    }

    /// Performs the next effect, or the next frame of one, whose primary is this worker; else one that its
    /// primary is late with. Says whether there was one.
    pub fn perform(&mut self) -> bool {
        let mut hands = self.hands();
        let mut performed = false;
        while let ControlFlow::Continue(now) = hands.step() {
            if now {
                performed = true;
                break;
            }
        }
        hands.rest();
        self.after_performing();
        performed || self.catch_up() && self.steal_one()
    }

    fn steal_one(&mut self) -> bool {
        let mut hands = self.hands();
        let mut performed = false;
        while let ControlFlow::Continue(now) = hands.steal() {
            if now {
                performed = true;
                break;
            }
        }
        hands.rest();
        self.after_stealing();
        performed
    }

    #[inline]
    fn hands(&mut self) -> Hands<'_, T> {
        Hands::new(
            self.id,
            &self.shared,
            &self.kept,
            &mut self.share,
            &mut self.shelf,
            &mut self.stats,
            &mut self.tamper,
        )
    }

    /// Tells how far this worker is, and forgets what nobody will ask for.
    fn after_performing(&mut self) {
        let told = self.share.performed();
        if self.share.told != told {
            self.share.told = told;
            // ORDERING: Release, pairs with the Acquire in `Shared::performed_by_all`.
            self.shared.performed[self.id].store(told, Ordering::Release);
            self.shared.shares[self.id].post(&self.stats);
            let keep = self.shared.layout.keep as u64;
            if told.saturating_sub(self.share.rear.seq) > keep {
                self.catch_up();
            }
            let below = told.saturating_sub(keep).min(self.share.rear.seq);
            let before = self.kept.effects.len();
            self.kept.forget(below);
            let gone = before - self.kept.effects.len();
            self.share.front.effect -= gone;
            self.share.rear.effect -= gone;
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
        !self.shelf.frames.is_empty()
            || self.log.poll() > self.replica.position()
            || (self.share.front.seq - self.kept.first) < self.kept.applied.len() as u64
            || self.catch_up()
            || self.shared.tx.try_take().is_some_and(|tx| tx.has_work())
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
