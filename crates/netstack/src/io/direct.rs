//! A thread that claims its own frames: `single`, `locked`, `pipelined`, solo mode.
//!
//! The log of one that owns the state alone, in `single` and solo mode, has no ring: the thread
//! verifies, applies and performs the pump's requests at once.

use crate::io::claim::Claimer;
use crate::io::perform::{self, BuiltHeaders};
use crate::io::prepare::prepare_and_store;
use crate::io::rx::{FRAMES_A_TURN, Log, RxPump};
use crate::io::sleep::Receiving;
use crate::io::world::{Wakes, World};
use crate::io::{ClaimedFrames, Run};
use crate::log::effect::{Deliver, Effect, EffectSink, Transmit};
use crate::log::request::{Request, Verdict};
use crate::state::apply::{Awaited, ReplicaState, Requests};
use crate::stats::EffectStats;
use crate::time::Instant;

/// Maximum number of requests that wait at one time.
const ROOM: usize = 1 << 10;

/// The effects of one request. The first effect of a request with payload is nearly always a
/// delivery. It has a separate field, so `take_effects` finds it without a search.
#[derive(Default)]
struct RequestEffects {
    first: Option<Deliver>,
    others: Vec<Effect>,
}

impl EffectSink for RequestEffects {
    #[inline(always)]
    fn make_room(&mut self) {
        self.others.make_room();
    }

    #[inline(always)]
    fn push(&mut self, effect: Effect) {
        match effect {
            Effect::Deliver(deliver) if self.first.is_none() && self.others.is_empty() => {
                self.first = Some(deliver);
            }
            other => self.others.push(other),
        }
    }

    fn mark(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    fn take_back(&mut self, mark: usize) {
        if mark == 0 {
            self.first = None;
        }
        self.others
            .truncate(mark - usize::from(self.first.is_some()));
    }
}

/// The requests that the pump published since the last call of [`DirectLog::work`].
#[derive(Default)]
pub(crate) struct DirectLog {
    /// Those below `done` are done; the pump reclaims their frames. Those from `done` to `end`
    /// wait. The rest is empty, so the pump writes the next request in place.
    runs: Vec<Run>,
    done: usize,
    end: usize,
    effects: RequestEffects,
    /// The position at which the group's log will continue.
    position: u64,
}

impl Log for DirectLog {
    fn room(&mut self) -> usize {
        ROOM - (self.end - self.done)
    }

    #[inline(always)]
    fn publish(&mut self, run: &mut Run) {
        if self.end == self.runs.len() {
            self.grow();
        }
        self.runs[self.end].set(run);
        self.end += 1;
    }

    #[inline]
    fn reclaim(&mut self, each: &mut dyn FnMut(ClaimedFrames)) {
        if self.done > 0 {
            self.reclaim_done(each);
        }
    }

    /// All waiting requests count as one position.
    fn end(&self) -> u64 {
        self.position + u64::from(self.done < self.end)
    }

    fn performed(&mut self) -> u64 {
        self.position + u64::from(self.done == self.end)
    }
}

impl DirectLog {
    #[inline(never)]
    fn reclaim_done(&mut self, each: &mut dyn FnMut(ClaimedFrames)) {
        let done = self.runs[..self.done].iter_mut();
        for batch in done.filter_map(|run| run.frames.batch.take()) {
            // Only this thread has handles of a batch.
            match ClaimedFrames::strong_count(&batch) {
                1 => each(batch),
                _ => drop(batch),
            }
        }
        if self.done < self.end {
            self.runs.rotate_left(self.done);
        }
        self.end -= self.done;
        self.done = 0;
    }

    /// Begins at the position of a log that is completely performed.
    pub(crate) fn begin(&mut self, position: u64) {
        self.position = position;
    }

    #[cold]
    fn grow(&mut self) {
        let empty = Request::tick(Instant::ZERO, 0);
        self.runs.push(Run::bare(empty));
    }

    /// Prepares all waiting requests, then applies and performs them. All checksums come first:
    /// reading bytes that a device wrote is fastest without other work in between. Returns how
    /// many requests were applied.
    #[inline]
    pub(crate) fn work(
        &mut self,
        world: &World,
        replica: &mut ReplicaState,
        headers: &mut BuiltHeaders,
        stats: &mut EffectStats,
    ) -> usize {
        match self.done < self.end {
            true => self.work_waiting(world, replica, headers, stats),
            false => 0,
        }
    }

    #[inline(never)]
    fn work_waiting(
        &mut self,
        world: &World,
        replica: &mut ReplicaState,
        headers: &mut BuiltHeaders,
        stats: &mut EffectStats,
    ) -> usize {
        let effects = &mut self.effects;
        let runs = &mut self.runs[self.done..self.end];
        for run in runs.iter_mut().filter(|run| run.verdict.is_none()) {
            let verdict = prepare_and_store(world, &run.request, &run.frames, stats);
            run.verdict = Some(verdict);
        }
        let Some(run) = runs.first() else {
            return 0;
        };
        let mut performing = Performing {
            world,
            headers,
            stats,
            wakes: Wakes::new(world),
            waiting: runs.iter(),
            run,
            applied: 0,
        };
        replica.apply_each(&mut performing, effects);
        let applied = performing.applied;
        drop(performing);
        self.done = self.end;
        applied
    }
}

/// The waiting requests; each is performed as soon as it is applied.
struct Performing<'a> {
    world: &'a World,
    headers: &'a mut BuiltHeaders,
    stats: &'a mut EffectStats,
    wakes: Wakes<'a>,
    waiting: core::slice::Iter<'a, Run>,
    /// The request that is being applied.
    run: &'a Run,
    applied: usize,
}

impl Requests<RequestEffects> for Performing<'_> {
    #[inline(always)]
    fn advance(&mut self) -> bool {
        let next = self.waiting.next();
        self.run = next.unwrap_or(self.run);
        next.is_some()
    }

    #[inline(always)]
    fn current(&self) -> (&Request, Verdict) {
        (&self.run.request, self.run.verdict.unwrap_or(0))
    }

    #[inline(always)]
    fn take_effects(&mut self, asked: &mut RequestEffects) {
        self.applied += 1;
        if let Some(deliver) = &asked.first {
            perform::deliver(self.world, deliver, &self.run.frames, self.stats);
            self.wakes.add(deliver.conn);
            asked.first = None;
        }
        match &asked.others[..] {
            [] => {}
            [Effect::Transmit(transmit)] if transmit.payload_len == 0 => {
                self.acknowledge(transmit);
                asked.others.clear();
            }
            _ => self.others(&mut asked.others),
        }
    }
}

impl Performing<'_> {
    #[inline(never)]
    fn acknowledge(&mut self, transmit: &Transmit) {
        perform::build_bare(self.world, transmit, self.headers, self.stats);
    }

    #[inline(never)]
    fn others(&mut self, effects: &mut Vec<Effect>) {
        perform::all(
            self.world,
            &*effects,
            &self.run.frames,
            self.headers,
            self.stats,
            &mut self.wakes,
        );
        effects.clear();
    }
}

/// Maximum number of batches that are published before the thread does other work.
const MAX_BATCHES: usize = 4;

impl RxPump {
    /// Takes turns while batches are full, but at most [`MAX_BATCHES`]. Returns how much was done.
    /// `others_empty`: the claimer is for all queues of the device, or the others are empty.
    pub(crate) fn turns(
        &mut self,
        now: Instant,
        awaited: Awaited,
        (claimer, others_empty): (&mut Claimer, bool),
        log: &mut impl Log,
    ) -> usize {
        let mut done = 0;
        for _ in 0..MAX_BATCHES {
            let now_done = self.turn(now, awaited, log, |pump, log| {
                let about = (&mut *claimer, FRAMES_A_TURN);
                let (done, is_empty) = pump.claim_and_publish(now, about, log);
                (done, is_empty && others_empty)
            });
            done += now_done;
            if now_done < FRAMES_A_TURN {
                break;
            }
        }
        done
    }
}

/// A receive pump and its device, for a thread that owns both.
pub(crate) struct Receiver {
    pub(crate) pump: RxPump,
    claimer: Claimer,
}

impl Receiver {
    pub(crate) fn new(pump: RxPump, claimer: Claimer) -> Self {
        Receiver { pump, claimer }
    }

    /// As [`RxPump::turn`].
    #[cfg(feature = "pipelined")]
    pub(crate) fn turn(&mut self, now: Instant, awaited: Awaited, log: &mut impl Log) -> usize {
        self.pump.turn(now, awaited, log, |pump, log| {
            pump.claim_and_publish(now, (&mut self.claimer, FRAMES_A_TURN), log)
        })
    }

    /// As [`RxPump::turns`].
    pub(crate) fn turns(&mut self, now: Instant, awaited: Awaited, log: &mut impl Log) -> usize {
        self.pump
            .turns(now, awaited, (&mut self.claimer, true), log)
    }

    /// Whether there is something to publish other than frames in the device.
    pub(crate) fn has_work(&self) -> bool {
        self.claimer.has_rest() || self.pump.has_work()
    }
}

impl Receiving for Receiver {
    fn has_work(&mut self) -> bool {
        Receiver::has_work(self)
    }

    fn next_deadline(&mut self) -> Instant {
        self.pump.next_deadline()
    }

    fn wait(&mut self, timeout: Option<std::time::Duration>) {
        self.claimer.wait(timeout);
    }
}
