//! When an idle worker leaves lone requests, such as one byte that is answered, to another one.
//!
//! If two idle workers look for the next request, each look moves the device and both pumps to the
//! core of the other worker, and a request and its answer change cores where it happens. So a
//! worker that has had no share of the work for some turns stays aside while the worker that
//! claimed the latest frames keeps finding the device empty. It does not look for more, and it
//! rests: it leaves the log alone, too, until it lags by a 16th of it, or for 200 us. Its thread may
//! sleep meanwhile: the other one does lone requests whole, and wakes it for work that two cores
//! can share, or when it has not applied a quarter of the log. Asleep, it still asks every
//! [`RECHECK`](crate::io::sleep::RECHECK) whether that worker is late or gone.

use dominoes::Seq;

use super::pending::Applied;
use super::worker::ReplicatedWorker;
use crate::drive::Worker as _;
use crate::group::FaultHooks;
use crate::io::rx::RxPump;
use crate::time::{Duration, Instant};

/// A worker may stay aside after this many turns in a row without a share or load.
const QUIET_TURNS: u32 = 16;
/// How long a worker stays aside after the last claimer has found the device empty.
const LOOK_AFTER: Duration = Duration::from_micros(20);
/// The longest time without a look at the log, if few requests come meanwhile.
const LATEST_LOOK: Duration = Duration::from_micros(200);
/// A lone request asks for at most this many frames.
pub(super) const LONE_FRAMES: u32 = 2;
/// The pump verifies a lone request with at most this many bytes; one with more is load.
pub(super) const LONE_BYTES: u32 = 4096;
/// A request with more segments than this or more than [`LONE_BYTES`], one that more requests than
/// this follow in its batch, or a turn with more than [`LONE_FRAMES`] and than requests is load.
const LONE_SEGMENTS: u8 = 1;
/// After this number of lone requests in a row, a worker expects another one.
const LONE_IN_A_ROW: u8 = 8;

/// Whether a worker is quiet: it has no share of the work, and has seen no load.
#[derive(Default)]
pub(super) struct Quiet {
    /// Turns in a row that were so.
    turns: u32,
    /// Whether it applied a request that was load.
    saw_load: bool,
    /// Its share, all frames and all requests, at the end of its last turn.
    share: u64,
    frames: u64,
    requests: Seq,
    /// When it next asks whether the last claimer has time.
    ask_at: Instant,
    /// When it looks at the log, at the latest.
    look_at: Instant,
    /// Whether it stays aside in this turn.
    pub(super) is_aside: bool,
    /// Whether it rests in this turn.
    pub(super) rests: bool,
    /// Whether its thread is about to sleep.
    pub(super) sleeps: bool,
    /// Whether it published only lone requests in this turn, so that it has not woken the others.
    pub(super) published_lone: bool,
    /// How often in a row it published that, and nothing else.
    lone: u8,
    /// Whether the requests of its last turn asked for few frames.
    few_frames: bool,
    /// The end of the log when it last woke the others; `None` if it has slept since.
    woke_at: Option<Seq>,
}

impl Quiet {
    /// Notes a request that was applied.
    #[inline(always)]
    pub(super) const fn note(&mut self, applied: &Applied) {
        self.saw_load |=
            applied.count | applied.in_batch.left > LONE_SEGMENTS || applied.len > LONE_BYTES;
    }

    /// Whether it is quiet for long enough to stay aside.
    pub(super) const fn is_long_enough(&self) -> bool {
        self.turns >= QUIET_TURNS
    }

    /// Whether it takes frames and publishes them in one step, since few are expected.
    pub(super) const fn is_direct(&self) -> bool {
        self.lone >= LONE_IN_A_ROW
    }

    /// Notes what the pump has published, `done` in all, since it had received `bytes` of payload
    /// in `frames`. Returns whether that was lone requests or nothing.
    #[inline]
    pub(super) fn count_published(
        &mut self,
        (bytes, frames): (u64, u64),
        pump: &RxPump,
        done: usize,
    ) -> bool {
        let is_lone =
            done <= LONE_FRAMES as usize && pump.received - bytes <= u64::from(LONE_BYTES);
        if done > 0 {
            self.published_lone |= is_lone;
            self.lone = match is_lone && pump.stats.frames - frames <= 1 {
                true => self.lone.saturating_add(1),
                false => 0,
            };
        }
        is_lone
    }

    #[inline]
    const fn count(&mut self, is_quiet: bool) {
        self.turns = match is_quiet {
            true => self.turns.saturating_add(1),
            false => 0,
        };
    }

    /// Counts a turn in which this worker, which stays aside for nobody, found nothing to apply.
    #[inline]
    pub(super) const fn count_idle(&mut self, is_quiet: bool) {
        self.few_frames = true;
        self.count(is_quiet);
    }

    /// The worker is about to sleep. Afterwards it asks at once whether the last claimer has time.
    pub(super) const fn fall_asleep(&mut self) {
        self.ask_at = Instant::ZERO;
        self.woke_at = None;
        self.sleeps = true;
    }
}

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Decides whether this worker stays aside in a turn, which has the time `now` if that may have
    /// passed since `before`, and whether it rests. Then its turn reports work, so that a thread
    /// that drives all workers calls it again: at the same time it looks.
    #[inline]
    pub(super) fn begin_quiet(&mut self, before: Instant, now: Option<Instant>) {
        let asks_at = self.quiet.ask_at;
        let is_aside = now.is_some_and(|now| self.stays_aside(now));
        (self.quiet.is_aside, self.quiet.rests) = (is_aside, false);
        if let Some(now) = now
            && is_aside
            && before < now
        {
            self.quiet.rests = self.quiet.ask_at == asks_at || self.rests_on(now);
        }
    }

    /// Whether this worker, which has just asked, rests on. It looks at the log when it lags by a
    /// 16th of that: each look takes lines of the cache from the worker that publishes, and delays
    /// whatever else its thread does. It rests only until it next asks if it owns the frames that
    /// are numbered next, since others leave them to it for a while.
    #[cold]
    fn rests_on(&mut self, now: Instant) -> bool {
        let lag = self.lag();
        // Without requests, all workers that stay aside find nothing in the same turn.
        if now < self.quiet.look_at && lag > 0 && lag <= self.may_lag() / 4 {
            return true;
        }
        let owner = self.shared.world.tx.owner(self.replica.frames().next);
        self.quiet.look_at = match owner == Ok(self.id) {
            true => Instant::ZERO,
            false => now + LATEST_LOOK,
        };
        false
    }

    /// Whether there are requests for which a thread that wants to sleep must stay awake.
    pub(super) fn has_requests(&mut self) -> bool {
        let may_lag = match self.quiet.sleeps && self.quiet.is_aside {
            true => self.may_lag(),
            false => 0,
        };
        self.log.poll() - self.replica.position() > may_lag
    }

    /// How many requests a worker that stays aside may leave for later.
    fn may_lag(&self) -> u64 {
        self.shared.layout.tuning.log as u64 / 4
    }

    /// Ends a turn in which this worker published only lone requests. Wakes the others if they have
    /// something to do with them, if these asked for many frames, if many came since it last did,
    /// or if it has slept: a worker may sleep without a limit until it learns that another one is
    /// awake.
    pub(super) fn wake_if_due(&mut self) {
        let end = self.log.poll();
        let woke_lately = self
            .quiet
            .woke_at
            .is_some_and(|woke_at| end - woke_at < self.may_lag());
        if woke_lately && self.quiet.few_frames && !self.waits_for_others() {
            return;
        }
        self.quiet.woke_at = Some(end);
        self.shared.work_event.notify_all();
    }

    /// Whether this worker stays aside in a turn at `now`.
    #[inline]
    fn stays_aside(&mut self, now: Instant) -> bool {
        if !self.quiet.is_long_enough() {
            return false;
        }
        if now >= self.quiet.ask_at {
            let (claimer, empty_at) = self.shared.batches.last_claimer();
            if claimer == self.id || !self.shared.membership.is_active(claimer) {
                return false;
            }
            self.quiet.ask_at = empty_at + LOOK_AFTER;
        }
        now < self.quiet.ask_at
    }

    /// Counts a turn that ends.
    #[inline]
    pub(super) fn count_quiet(&mut self) {
        let stats = &self.share.stats;
        let share = stats.requests + stats.frames + stats.stolen;
        let (frames, requests) = (self.replica.frames().next, self.replica.position());
        let quiet = &mut self.quiet;
        let applied = requests.wrapping_sub(quiet.requests);
        quiet.few_frames = frames.wrapping_sub(quiet.frames) <= applied.max(LONE_FRAMES.into());
        let is_quiet = share == quiet.share
            && quiet.few_frames
            && !core::mem::take(&mut quiet.saw_load)
            && !self.intake.is_busy()
            && self.shared.rule.is_none();
        (quiet.share, quiet.frames, quiet.requests) = (share, frames, requests);
        quiet.count(is_quiet);
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU64, Ordering};
    use std::sync::Arc;

    use dominoes::Watch;
    use dominoes_drivers::memory::{MemoryConfig, pair};

    use super::*;
    use crate::group::{Layout, ReplicatedGroup};
    use crate::io::setup::Setup;
    use crate::socket::TcpStream;

    const NOW: Instant = Instant::from_millis(5);

    /// Counts how often sleeping workers are woken.
    #[derive(Debug, Default)]
    struct Woken(AtomicU64);

    impl Watch for Woken {
        fn is_due(&self) -> bool {
            true
        }

        fn fire(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Two workers whose application echoes, and their client.
    struct Fixture {
        workers: Vec<ReplicatedWorker>,
        client: ReplicatedGroup,
        asks: TcpStream,
        answers: TcpStream,
        now: Instant,
        woken: Arc<Woken>,
        /// Turns of the second worker in which it looked at the log.
        looks: u64,
    }

    impl Fixture {
        fn new() -> Self {
            let (here, there) = pair(MemoryConfig::default());
            let group = |last: u8, replicas, device| -> ReplicatedGroup {
                let setup = Setup::new([10, 0, 0, last].into(), 24, [1, u64::from(last)]);
                ReplicatedGroup::new(setup, Layout::default().replicas(replicas), device).unwrap()
            };
            let mut client = group(2, 1, Box::new(there));
            let group = group(1, 2, Box::new(here));
            let listener = group.sockets().listen(7, 1).unwrap();
            let mut workers = group.into_workers();
            let to = "10.0.0.1:7".parse().unwrap();
            let mut opening = client.sockets().begin_connect(to).unwrap();
            let (mut now, mut asks, mut answers) = (NOW, None, None);
            while asks.is_none() || answers.is_none() {
                client.turn(now);
                workers[0].turn(now);
                workers[1].turn(now);
                now += Duration::from_nanos(100);
                if asks.is_none() {
                    asks = opening.try_finish().unwrap();
                }
                answers = answers.or_else(|| listener.try_accept().ok());
            }
            let (asks, (answers, _)) = (asks.unwrap(), answers.unwrap());
            asks.set_nodelay(true).unwrap();
            answers.set_nodelay(true).unwrap();
            let mut fixture = Fixture {
                workers,
                client,
                asks,
                answers,
                now,
                woken: Arc::default(),
                looks: 0,
            };
            for _ in 0..2 * QUIET_TURNS {
                fixture.turns();
            }
            assert!(fixture.workers[1].quiet.is_aside);
            fixture.looks = 0;
            fixture
        }

        /// A turn of each, 100 ns after the last ones.
        fn turns(&mut self) {
            self.client.turn(self.now);
            self.work();
            let second = &mut self.workers[1];
            second.turn(self.now);
            self.looks += u64::from(!second.quiet.rests);
        }

        /// A turn of the first worker and its application.
        fn work(&mut self) {
            let watch: Arc<dyn Watch> = self.woken.clone();
            self.workers[0].shared.work_event.watch(&watch);
            self.workers[0].turn(self.now);
            let mut bytes = [0; 64];
            if let Ok(len) = self.answers.try_read(&mut bytes) {
                self.answers.try_write(&bytes[..len]).unwrap();
            }
            self.now += Duration::from_nanos(100);
        }

        fn exchange(&mut self, mut turns: impl FnMut(&mut Fixture)) {
            self.asks.try_write(&[7]).unwrap();
            let mut byte = [0; 2];
            while self.asks.try_read(&mut byte) != Ok(1) {
                turns(self);
            }
        }

        fn woken(&self) -> u64 {
            self.woken.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn lone_requests_wake_no_worker_before_the_log_is_a_quarter_full_and_it_looks_seldom() {
        let mut fixture = Fixture::new();
        let [begun, woken] = [fixture.now.as_nanos(), fixture.woken()];
        let from = fixture.workers[0].replica.position();
        for _ in 0..1000 {
            fixture.exchange(Fixture::turns);
            fixture.now += Duration::from_micros(5);
        }
        let requests = fixture.workers[0].replica.position() - from;
        let quarter = fixture.workers[0].may_lag();
        let woken = fixture.woken() - woken;
        // Its arrival and its answer: nothing waits for the count of sent frames.
        assert!((2000..2010).contains(&requests), "{requests}");
        assert!(woken <= requests / quarter + 1, "{woken}");
        let looks =
            4 * requests / quarter + (fixture.now.as_nanos() - begun) / LATEST_LOOK.as_nanos();
        assert!(fixture.looks <= looks + 2, "{} of {looks}", fixture.looks);
        assert!(fixture.workers[1].is_aside());
        assert!(fixture.workers[0].expects_lone());
    }

    /// As a thread does, the second worker sleeps until it is woken.
    #[test]
    fn a_worker_aside_sleeps_over_lone_requests_and_is_woken_by_load_and_a_full_log() {
        let mut fixture = Fixture::new();
        fixture.exchange(Fixture::turns);
        fixture.workers[1].quiet.fall_asleep();
        let (quarter, mut woken) = (fixture.workers[0].may_lag(), fixture.woken());
        let alone = |fixture: &mut Fixture| {
            fixture.client.turn(fixture.now);
            fixture.work();
        };
        while fixture.woken() == woken {
            fixture.exchange(alone);
            let lag = fixture.workers[1].lag();
            assert_eq!(fixture.workers[1].has_work(), lag > quarter, "{lag}");
            assert!(
                fixture.workers[1].waits_for_others(),
                "it must not sleep long"
            );
            assert!(lag <= 2 * quarter, "it is never woken");
        }

        // A write that needs many frames.
        woken = fixture.woken();
        fixture.answers.try_write(&[7; 10_000]).unwrap();
        fixture.work();
        assert_eq!(fixture.woken(), woken + 1, "it can build some of them");
        let mut left = 10_000;
        while left > 0 {
            alone(&mut fixture);
            left -= fixture.asks.try_read(&mut [0; 1000]).unwrap_or(0);
        }

        // Load.
        (0..LONE_IN_A_ROW).for_each(|_| fixture.exchange(alone));
        woken = fixture.woken();
        fixture.asks.try_write(&[7; 20_000]).unwrap();
        fixture.client.turn(fixture.now);
        fixture.work();
        assert_eq!(fixture.woken(), woken + 1, "load wakes at once");

        // The first one has slept, and the second one perhaps without a limit.
        while fixture.workers[0].turn(fixture.now) > 0 {}
        fixture.workers[0].quiet.fall_asleep();
        woken = fixture.woken();
        fixture.asks.try_write(&[7]).unwrap();
        while fixture.woken() == woken {
            fixture.client.turn(fixture.now);
            let before = fixture.workers[0].replica.position();
            fixture.work();
            let published = fixture.workers[0].replica.position() > before;
            assert_eq!(fixture.woken() > woken, published);
        }
    }
    /// The worker that claimed it may have failed.
    #[test]
    fn a_batch_that_another_worker_claimed_is_parsed_although_a_lone_request_is_expected() {
        let mut fixture = Fixture::new();
        (0..LONE_IN_A_ROW).for_each(|_| fixture.exchange(Fixture::turns));
        assert!(fixture.workers[0].expects_lone());
        fixture.asks.try_write(&[7]).unwrap();
        fixture.client.turn(fixture.now);
        assert_eq!(fixture.workers[1].claim(fixture.now), Some(1));
        fixture.asks.try_write(&[8]).unwrap();
        let mut answered = 0;
        for _ in 0..2000 {
            fixture.client.turn(fixture.now);
            fixture.work();
            answered += fixture.asks.try_read(&mut [0; 2]).unwrap_or(0);
        }
        assert_eq!(answered, 2);
    }
}
