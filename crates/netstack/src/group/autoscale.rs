//! Autoscaling: how many replicas work.
//!
//! A replica costs the others something: every request is applied once more, and what a request
//! asks for moves between caches. In return it does a share of the copying, summing and building of
//! frames. Which of the two is more depends on segments, merging, machine and load. So a group with
//! [`Layout::autoscale`](crate::group::Layout::autoscale) does not compute it, but tries:
//!
//! - If all active replicas were busy at [`BUSY_CHECKS`] checks in a row, a parked one is
//!   *unparked*. It begins with a snapshot of the state, as every joiner does.
//! - After [`WARM_UP`], the work done per second is measured for [`TRIAL`]. If it has not grown by
//!   an eighth of what each replica did before, the new one is *parked* again.
//! - The result is tried again later, the other way round, since machine and load change: one
//!   replica more where one more did not help, one less where it did. That happens after
//!   [`FIRST_PAUSE`] at first, and twice as long each time that the result is the same, up to
//!   [`LONGEST_PAUSE`]; at once, if the average payload of a request has doubled or halved.
//! - If so little was done at [`IDLE_CHECKS`] checks in a row that one replica less would be busy
//!   for at most three quarters of the time, the last one is parked.
//!
//! Work is payload bytes, copied in or built into frames, plus [`REQUEST_WEIGHT`] for each request.
//! Checks are [`CHECK_INTERVAL`] apart, in the turns of the worker that has the receive pump. A
//! parked replica keeps its thread and its slot, and nothing else.
//!
//! A parked replica returns by snapshot. A group of two with autoscaling is mostly as fast as two
//! replicas while the cores are near each other (32 ns for a cache line), and as fast as one while
//! they are far apart (200 ns); the figures of the benchmarks say where it is not. While one
//! replica works, no other one has the state.

use crate::time::{Duration, Instant};

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Busy checks in a row before one replica more is tried.
const BUSY_CHECKS: usize = 4;
/// Checks in a row with little to do before one replica is parked.
const IDLE_CHECKS: usize = 20;
/// How long a replica may warm its caches before it is measured.
const WARM_UP: Duration = Duration::from_millis(10);
/// How long it is measured.
const TRIAL: Duration = Duration::from_millis(20);
/// Time from one trial to the next, at first.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Time from one trial to the next, at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// The work that a request counts as besides its payload, in bytes.
const REQUEST_WEIGHT: u64 = 64;

/// What all replica slots have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkDone {
    /// Time in turns that found something to do.
    pub(crate) busy: Duration,
    /// Payload bytes.
    pub(crate) payload_bytes: u64,
    pub(crate) requests: u64,
}

impl WorkDone {
    fn since(self, before: WorkDone) -> WorkDone {
        let busy = self.busy.as_nanos().saturating_sub(before.busy.as_nanos());
        WorkDone {
            busy: Duration::from_nanos(busy),
            payload_bytes: self.payload_bytes.saturating_sub(before.payload_bytes),
            requests: self.requests.saturating_sub(before.requests),
        }
    }

    fn work(self) -> u64 {
        self.payload_bytes + REQUEST_WEIGHT * self.requests
    }

    /// Payload bytes of a request on average.
    fn mean_payload(self) -> u64 {
        self.payload_bytes / self.requests.max(1)
    }
}

/// How the number of active replicas is to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleDecision {
    Keep,
    /// A parked replica becomes active.
    Unpark,
    /// An active replica is parked.
    Park,
}

/// A trial of another number of active replicas. `fewer` is the lower one of the two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trial {
    /// Whether the trial is one of one replica more; of one less otherwise.
    more: bool,
    fewer: u64,
    /// The work done in a second before the trial.
    before: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The number is right as far as is known.
    Stable,
    /// The number was changed, and caches are not warm yet.
    WarmingUp(Trial),
    /// The other number is being measured.
    Measuring(Trial),
}

/// Decides how many replicas work.
#[derive(Debug)]
pub(crate) struct Autoscaler {
    next_check: Instant,
    /// The times of the last checks, newest first, and what had been done by then.
    checks: [(Instant, WorkDone); BUSY_CHECKS + 1],
    phase: Phase,
    /// When the phase began, and what had been done by then.
    phase_start: (Instant, WorkDone),
    /// Checks in a row at which all replicas were busy, at which one less would have done, and at
    /// which there was a load.
    busy_checks: usize,
    idle_checks: usize,
    loaded_checks: usize,
    /// Time from the last trial to the next.
    pause: Duration,
    /// When that is, and the average payload of a request in the last trial. `None` before the
    /// first one.
    next_trial: Option<(Instant, u64)>,
    /// Whether the next trial is one of one replica more, rather than of one less.
    try_more: bool,
}

impl Autoscaler {
    pub(crate) fn new() -> Self {
        Autoscaler {
            next_check: Instant::ZERO,
            checks: [(Instant::ZERO, WorkDone::default()); BUSY_CHECKS + 1],
            phase: Phase::Stable,
            phase_start: (Instant::ZERO, WorkDone::default()),
            busy_checks: 0,
            idle_checks: 0,
            loaded_checks: 0,
            pause: FIRST_PAUSE,
            next_trial: None,
            try_more: true,
        }
    }

    /// Whether it is time for a check.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.next_check
    }

    /// Checks at time `now`, when `active` replicas work and all of them have `done` so much.
    /// `can_unpark` says whether another one may be unparked.
    pub(crate) fn decide(
        &mut self,
        now: Instant,
        done: WorkDone,
        active: u64,
        can_unpark: bool,
    ) -> ScaleDecision {
        self.next_check = now + CHECK_INTERVAL;
        let (then, before) = self.checks[0];
        self.checks.rotate_right(1);
        self.checks[0] = (now, done);
        let passed = now.since(then).as_nanos();
        let recent = done.since(before);
        let busy = recent.busy.as_nanos();
        let all_busy = busy >= active * (passed - passed / 8);
        let one_less_would_do = active > 1 && busy <= (active - 1) * (passed - passed / 4);
        // Replicas that wait for each other are loaded, and not busy all the time.
        let is_loaded = all_busy || active > 1 && !one_less_would_do;
        let count = |checks: usize, is: bool| if is { checks + 1 } else { 0 };
        self.busy_checks = count(self.busy_checks, all_busy);
        self.idle_checks = count(self.idle_checks, one_less_would_do);
        self.loaded_checks = count(self.loaded_checks, is_loaded);
        match self.phase {
            Phase::Stable => self.decide_when_stable(recent.mean_payload(), active, can_unpark),
            Phase::WarmingUp(trial) => {
                if now.since(self.phase_start.0) >= WARM_UP {
                    self.enter(Phase::Measuring(trial));
                }
                ScaleDecision::Keep
            }
            Phase::Measuring(trial) if now.since(self.phase_start.0) >= TRIAL => {
                self.end_trial(trial)
            }
            Phase::Measuring(_) => ScaleDecision::Keep,
        }
    }

    fn decide_when_stable(&mut self, mean: u64, active: u64, can_unpark: bool) -> ScaleDecision {
        if self.idle_checks >= IDLE_CHECKS {
            self.enter(Phase::Stable);
            return ScaleDecision::Park;
        }
        if let Some((at, last_mean)) = self.next_trial {
            let has_changed = mean > 2 * last_mean || 2 * mean < last_mean;
            if has_changed {
                (self.pause, self.try_more) = (FIRST_PAUSE, true);
            } else if self.checks[0].0 < at {
                return ScaleDecision::Keep;
            }
        }
        let try_one_more = can_unpark && self.busy_checks >= BUSY_CHECKS;
        let try_one_less = active > 1 && self.loaded_checks >= BUSY_CHECKS;
        if !try_one_more && !try_one_less {
            return ScaleDecision::Keep;
        }
        let more = try_one_more && (self.try_more || !try_one_less);
        let trial = Trial {
            more,
            fewer: if more { active } else { active - 1 },
            before: self.per_second(self.checks[BUSY_CHECKS]),
        };
        self.enter(Phase::WarmingUp(trial));
        if more {
            ScaleDecision::Unpark
        } else {
            ScaleDecision::Park
        }
    }

    /// Ends a trial.
    fn end_trial(&mut self, trial: Trial) -> ScaleDecision {
        let (now, done) = self.checks[0];
        let after = self.per_second(self.phase_start);
        let mean = done.since(self.phase_start.1).mean_payload();
        let (with_fewer, with_more) = match trial.more {
            true => (trial.before, after),
            false => (after, trial.before),
        };
        let more_helps = with_more >= with_fewer + with_fewer / (8 * trial.fewer);
        let is_news = more_helps == trial.more;
        if is_news {
            // What helped once may help again.
            (self.pause, self.try_more) = (FIRST_PAUSE, trial.more);
            self.next_trial = Some((now, mean));
        } else {
            self.try_more = !trial.more;
            self.next_trial = Some((now + self.pause, mean));
            self.pause = self.pause.times(2).min(LONGEST_PAUSE);
        }
        self.enter(Phase::Stable);
        match (is_news, more_helps) {
            (true, _) => ScaleDecision::Keep,
            (false, true) => ScaleDecision::Unpark,
            (false, false) => ScaleDecision::Park,
        }
    }

    /// Work done per second since a check.
    fn per_second(&self, (then, before): (Instant, WorkDone)) -> u64 {
        let (now, done) = self.checks[0];
        let passed = now.since(then).as_nanos().max(1);
        let work = u128::from(done.since(before).work());
        (work * 1_000_000_000 / u128::from(passed)) as u64
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.phase_start = self.checks[0];
        (self.busy_checks, self.idle_checks, self.loaded_checks) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_payload_and_what_each_request_costs_besides() {
        let done = WorkDone {
            busy: Duration::from_millis(3),
            payload_bytes: 10_000,
            requests: 4,
        };
        assert_eq!(done.work(), 10_000 + 4 * REQUEST_WEIGHT);
        assert_eq!(done.mean_payload(), 2_500);
        assert_eq!(WorkDone::default().mean_payload(), 0);
    }

    /// A group of up to three replicas. What they do together is in percent of what one does alone,
    /// and `wanted` percent are offered.
    struct Group {
        autoscaler: Autoscaler,
        now: Instant,
        done: WorkDone,
        active: u64,
        wanted: u64,
        /// What as many replicas do together, in percent of what one does alone.
        together: [u64; 4],
        /// Payload bytes of a request.
        mean: u64,
    }

    impl Group {
        fn new(together: [u64; 4]) -> Self {
            Group {
                autoscaler: Autoscaler::new(),
                now: Instant::ZERO,
                done: WorkDone::default(),
                active: 1,
                wanted: 1000,
                together,
                mean: 1448,
            }
        }

        /// Lets so many milliseconds pass. Returns how often a replica was unparked, and how often
        /// one was parked.
        fn pass(&mut self, ms: u64) -> (u32, u32) {
            let (mut unparked, mut parked) = (0, 0);
            for _ in 0..ms {
                self.now += Duration::from_millis(1);
                let most = self.together[self.active as usize];
                let work = most.min(self.wanted);
                self.done.requests += work;
                self.done.payload_bytes += work * self.mean;
                let busy = self.active * 1_000_000 * work / most;
                self.done.busy = self.done.busy + Duration::from_nanos(busy);
                if !self.autoscaler.is_due(self.now) {
                    continue;
                }
                let decision =
                    self.autoscaler
                        .decide(self.now, self.done, self.active, self.active < 3);
                match decision {
                    ScaleDecision::Keep => {}
                    ScaleDecision::Unpark => {
                        self.active += 1;
                        unparked += 1;
                    }
                    ScaleDecision::Park => {
                        self.active -= 1;
                        parked += 1;
                    }
                }
                assert!((1..=3).contains(&self.active));
            }
            (unparked, parked)
        }
    }

    /// Lets half a minute pass. Returns in how much of that time how many replicas worked, in
    /// percent.
    fn shares(group: &mut Group) -> [u32; 4] {
        let mut shares = [0; 4];
        for _ in 0..3000 {
            group.pass(10);
            shares[group.active as usize] += 1;
        }
        shares.map(|share| share / 30)
    }

    #[test]
    fn as_many_replicas_work_as_improve_throughput() {
        let mut group = Group::new([0, 100, 170, 240]);
        group.pass(200);
        assert_eq!(group.active, 3);
        assert!(shares(&mut group)[3] >= 97);
        let mut group = Group::new([0, 100, 170, 175]);
        assert!(shares(&mut group)[2] >= 97);
        let mut group = Group::new([0, 100, 90, 80]);
        assert!(shares(&mut group)[1] >= 97);
    }

    #[test]
    fn a_trial_in_vain_is_repeated_ever_less_often() {
        let mut group = Group::new([0, 100, 90, 80]);
        let (unparked, parked) = group.pass(60_000);
        assert_eq!((group.active, unparked), (1, parked));
        // At first, after 1/4, 3/4, 7/4, 15/4, 31/4 seconds, and then every eight.
        assert!((10..=13).contains(&unparked), "{unparked}");
    }

    #[test]
    fn replicas_that_no_longer_improve_throughput_are_parked() {
        let mut group = Group::new([0, 100, 170, 240]);
        group.pass(20_000);
        assert_eq!(group.active, 3);
        // The load has changed: replicas now hinder each other.
        group.together = [0, 100, 80, 60];
        group.pass(9_000);
        assert_eq!(group.active, 1);
        group.together = [0, 100, 170, 240];
        group.pass(9_000);
        assert_eq!(group.active, 3);
    }

    #[test]
    fn a_change_of_load_is_tried_at_once() {
        let mut group = Group::new([0, 100, 90, 80]);
        group.mean = 64;
        group.pass(10_000);
        assert_eq!(group.active, 1);
        (group.mean, group.together) = (1448, [0, 100, 170, 240]);
        group.pass(200);
        assert_eq!(group.active, 3);
    }

    #[test]
    fn replicas_with_little_to_do_are_parked_and_come_back() {
        let mut group = Group::new([0, 100, 170, 240]);
        group.pass(1000);
        group.wanted = 60;
        group.pass(1000);
        assert_eq!(group.active, 1);
        // Enough to keep one, and too little to try another.
        group.wanted = 80;
        assert_eq!(group.pass(1000), (0, 0));
        group.wanted = 1000;
        group.pass(200);
        assert_eq!(group.active, 3);
    }

    #[test]
    fn no_replica_is_unparked_for_work_that_one_can_do() {
        let mut group = Group::new([0, 100, 170, 240]);
        group.wanted = 85;
        assert_eq!(group.pass(10_000), (0, 0));
    }
}
