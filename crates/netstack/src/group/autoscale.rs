//! Autoscaling: chooses the number of active replicas.
//!
//! Another replica has a cost: it applies every request once more, and cache lines move between
//! more cores. In return it does a share of the copying, checksums and building of frames. Whether
//! that pays depends on the segments, merging, machine and load. So a group with
//! [`Layout::autoscale`](crate::group::Layout::autoscale) measures it:
//!
//! - If all active replicas were busy at [`BUSY_CHECKS`] consecutive checks, a parked one is
//!   *unparked*. Like every joiner, it begins with a snapshot of the state.
//! - After [`WARM_UP`], the group measures its work per second for [`TRIAL`]. If that has not grown
//!   by an eighth of one replica's previous work, the new replica is *parked* again.
//! - Machine and load change, so the group later tries the opposite: one replica more if one more
//!   did not help before, one less if it did. The first pause is [`FIRST_PAUSE`]; it doubles each
//!   time that the result is confirmed, up to [`LONGEST_PAUSE`]. If the average payload of a
//!   request doubles or halves, the next trial starts at once.
//! - If the load at [`IDLE_CHECKS`] consecutive checks would keep one replica less busy for at most
//!   three quarters of the time, the last one is parked.
//!
//! Work is the number of payload bytes copied in or built into frames, plus [`REQUEST_WEIGHT`] for
//! each request. The worker that has the receive pump checks every [`CHECK_INTERVAL`]. A parked
//! replica keeps only its thread and its slot, so while one replica works, no other has the state.
//!
//! A group of two with autoscaling is mostly as fast as two replicas while the cores are near each
//! other (32 ns for a cache line), and as fast as one while they are far apart (200 ns). The
//! benchmark figures show the exceptions.

use crate::time::{Duration, Instant};

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Consecutive busy checks before the group tries one replica more.
const BUSY_CHECKS: usize = 4;
/// Consecutive checks with little load before one replica is parked.
const IDLE_CHECKS: usize = 20;
/// Time for caches to warm up before a measurement.
const WARM_UP: Duration = Duration::from_millis(10);
/// Time that a measurement takes.
const TRIAL: Duration = Duration::from_millis(20);
/// Shortest time from one trial to the next.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest time from one trial to the next.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// The work that a request counts as in addition to its payload, in bytes.
const REQUEST_WEIGHT: u64 = 64;

/// The total work of all replica slots so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkDone {
    /// Time spent in turns that found work.
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

    /// Average payload bytes per request.
    fn mean_payload(self) -> u64 {
        self.payload_bytes / self.requests.max(1)
    }
}

/// A change of the number of active replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleDecision {
    Keep,
    /// A parked replica becomes active.
    Unpark,
    /// An active replica is parked.
    Park,
}

/// A trial of another number of active replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trial {
    /// Whether it tries one replica more; otherwise, one less.
    more: bool,
    /// The lower of the two numbers that the trial compares.
    fewer: u64,
    /// Work per second before the trial.
    before: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No trial is running.
    Stable,
    /// The number was changed, but caches are not warm yet.
    WarmingUp(Trial),
    /// The group measures the new number.
    Measuring(Trial),
}

/// Decides how many replicas work.
#[derive(Debug)]
pub(crate) struct Autoscaler {
    next_check: Instant,
    /// The times of the last checks, newest first, with the work done until then.
    checks: [(Instant, WorkDone); BUSY_CHECKS + 1],
    phase: Phase,
    /// The time when the phase began, and the work done until then.
    phase_start: (Instant, WorkDone),
    /// Consecutive checks at which all replicas were busy.
    busy_checks: usize,
    /// Consecutive checks at which one replica less would have sufficed.
    idle_checks: usize,
    /// Consecutive checks at which all replicas were needed.
    loaded_checks: usize,
    /// Pause after the next trial, if that confirms the current number.
    pause: Duration,
    /// The time of the next trial, and the average payload of a request in the last one. `None`
    /// before the first trial.
    next_trial: Option<(Instant, u64)>,
    /// Whether the next trial should try one replica more, if it can, rather than one less.
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

    /// Checks at time `now`, with `active` active replicas and the total work `done`. `can_unpark`:
    /// whether another replica may be unparked.
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
        // Replicas that wait for each other are loaded, but not busy all the time.
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

    /// The change that was decided last was not made: the group works as before, and decides
    /// again soon.
    pub(crate) fn change_failed(&mut self) {
        self.phase = Phase::Stable;
        if let Some((at, _)) = &mut self.next_trial {
            *at = self.checks[0].0;
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

    /// Ends a trial: keeps the new number of replicas, or returns to the previous one.
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

    /// Work per second since a check.
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

    /// A model of a group of up to three replicas.
    struct Group {
        autoscaler: Autoscaler,
        now: Instant,
        done: WorkDone,
        active: u64,
        /// The offered load, in percent of the capacity of one replica.
        wanted: u64,
        /// The capacity of 0 to 3 active replicas, in percent of the capacity of one.
        together: [u64; 4],
        /// Payload bytes of a request.
        mean: u64,
        /// How many decisions have no effect.
        refused: u32,
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
                refused: 0,
            }
        }

        /// Lets `ms` milliseconds pass. Returns how often a replica was unparked, and how often one
        /// was parked.
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
                    _ if self.refused > 0 => {
                        self.refused -= 1;
                        self.autoscaler.change_failed();
                    }
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

    /// Lets half a minute pass. Returns, for each number of active replicas, its share of that time
    /// in percent.
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
    fn a_change_that_was_not_made_is_not_undone_and_is_decided_again_soon() {
        let mut group = Group::new([0, 100, 170, 240]);
        while group.active < 2 {
            group.pass(1);
        }
        // The first attempt to unpark the third replica fails.
        group.refused = 1;
        assert_eq!((group.pass(100), group.active), ((1, 0), 3));
        // A trial was in vain, and the first attempt to end it fails.
        let mut group = Group::new([0, 100, 90, 80]);
        while group.active < 2 {
            group.pass(1);
        }
        group.refused = 1;
        assert_eq!((group.pass(70), group.active), ((0, 1), 1));
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
        // Keeps one replica, but does not make it busy enough to try another.
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
