//! How many replicas work: as many as bring something.
//!
//! A replica costs the others something, since every request is applied once more, and what a request asks for moves
//! between caches. It brings what there is to copy, sum and build. Which of the two is more depends on segments, merging,
//! machine and load, so a group with [`Layout::adapt`](super::Layout::adapt) does not compute it, but tries:
//!
//! - Have all that work been busy for [`BUSY_LOOKS`] looks, one that rests is *recruited*, and begins with a snapshot of the
//!   state as whoever joins.
//! - After [`SETTLES`] the work done per second is measured for [`TRIAL`]. If it has not grown by an eighth of what each did
//!   before, the recruit goes back to *rest*, and none is tried again for a *pause*: [`PAUSE`] at first, twice as
//!   long after each trial in vain, up to [`LONGEST_PAUSE`].
//! - If what a request is about on average has become twice or half of what it was in vain, the pause is over.
//! - Has so little been done for [`IDLE_LOOKS`] looks that three quarters of the time of one replica less would do, the last
//!   one rests.
//!
//! Work is payload octets, copied in or built into frames, and [`OF_A_REQUEST`] for each request besides. Looks are
//! [`LOOK`] apart, in the turns of whoever takes the receive pump. What rests keeps its thread and its seat, and nothing
//! else.

use crate::time::{Duration, Instant};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// Busy looks in a row before one more is tried.
const BUSY_LOOKS: u32 = 4;
/// Looks in a row with little to do before one less is enough.
const IDLE_LOOKS: u32 = 20;
/// How long a recruit has to warm its caches.
const SETTLES: Duration = Duration::from_millis(10);
/// How long it is measured.
const TRIAL: Duration = Duration::from_millis(20);
/// The shortest pause after a trial in vain.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(16);
/// What a request counts for besides its payload, in octets.
const OF_A_REQUEST: u64 = 64;

/// What all seats have done so far, whoever sat there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    /// Time in turns that found something to do.
    pub(super) busy: Duration,
    /// Payload octets.
    pub(super) octets: u64,
    pub(super) requests: u64,
}

impl Done {
    fn since(self, before: Done) -> Done {
        let busy = self.busy.as_nanos().saturating_sub(before.busy.as_nanos());
        Done {
            busy: Duration::from_nanos(busy),
            octets: self.octets.saturating_sub(before.octets),
            requests: self.requests.saturating_sub(before.requests),
        }
    }

    fn work(self) -> u64 {
        self.octets + OF_A_REQUEST * self.requests
    }

    /// Payload octets of a request on average.
    fn mean(self) -> u64 {
        self.octets / self.requests.max(1)
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Nothing,
    /// One that rests is to work.
    Recruit,
    /// One that works is to rest.
    Rest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The number is right as far as is known.
    Settled,
    /// One was recruited; the work done in a second before.
    Settling(u64),
    /// It is being measured against that.
    Trial(u64),
}

/// Who decides.
#[derive(Debug)]
pub(super) struct Staff {
    next: Instant,
    /// When the last look was, and what had been done by then.
    last: (Instant, Done),
    phase: Phase,
    /// When the phase began, and what had been done by then.
    began: (Instant, Done),
    /// Looks in a row at which all were busy; at which one less would have done.
    busy: u32,
    idle: u32,
    pause: Duration,
    /// Until when nobody is tried, and what requests were about when the last trial was in vain.
    paused: Option<(Instant, u64)>,
}

impl Staff {
    pub(super) fn new() -> Self {
        Staff {
            next: Instant::ZERO,
            last: (Instant::ZERO, Done::default()),
            phase: Phase::Settled,
            began: (Instant::ZERO, Done::default()),
            busy: 0,
            idle: 0,
            pause: PAUSE,
            paused: None,
        }
    }

    /// Whether it is time to look.
    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// `members` work, and have `done` so much by `now`. `can_recruit`: somebody rests.
    pub(super) fn look(
        &mut self,
        now: Instant,
        done: Done,
        members: u64,
        can_recruit: bool,
    ) -> Order {
        self.next = now + LOOK;
        let (then, before) = core::mem::replace(&mut self.last, (now, done));
        let passed = now.since(then).as_nanos();
        // Nobody looked for long because there was nothing to do.
        let lately = done.since(before);
        let busy = lately.busy.as_nanos();
        let all_busy = busy >= members * (passed - passed / 8);
        let one_less_would_do = members > 1 && busy <= (members - 1) * (passed - passed / 4);
        self.busy = if all_busy { self.busy + 1 } else { 0 };
        self.idle = if one_less_would_do { self.idle + 1 } else { 0 };
        match self.phase {
            Phase::Settled => self.settled(now, done, lately.mean(), can_recruit),
            Phase::Settling(before) => {
                if now.since(self.began.0) >= SETTLES {
                    self.enter(Phase::Trial(before));
                }
                Order::Nothing
            }
            Phase::Trial(before) if now.since(self.began.0) >= TRIAL => {
                self.judge(before, members - 1)
            }
            Phase::Trial(_) => Order::Nothing,
        }
    }

    fn settled(&mut self, now: Instant, done: Done, mean: u64, can_recruit: bool) -> Order {
        if self.busy == 0 {
            // What is compared with a trial are busy looks.
            self.began = (now, done);
        }
        if self.idle >= IDLE_LOOKS {
            self.enter(Phase::Settled);
            return Order::Rest;
        }
        if let Some((until, in_vain)) = self.paused {
            let is_other = mean > 2 * in_vain || 2 * mean < in_vain;
            if now < until && !is_other {
                return Order::Nothing;
            }
            if is_other {
                self.pause = PAUSE;
            }
            self.paused = None;
        }
        if !can_recruit || self.busy < BUSY_LOOKS {
            return Order::Nothing;
        }
        let before = self.per_second();
        self.enter(Phase::Settling(before));
        Order::Recruit
    }

    /// A trial is over, before which `members` did so much.
    fn judge(&mut self, before: u64, members: u64) -> Order {
        let (now, done) = self.last;
        let after = self.per_second();
        let mean = done.since(self.began.1).mean();
        self.enter(Phase::Settled);
        if after >= before + before / (8 * members.max(1)) {
            self.pause = PAUSE;
            return Order::Nothing;
        }
        self.paused = Some((now + self.pause, mean));
        self.pause = self.pause.times(2).min(LONGEST_PAUSE);
        Order::Rest
    }

    /// Work done in a second, in this phase.
    fn per_second(&self) -> u64 {
        let (now, done) = self.last;
        let passed = now.since(self.began.0).as_nanos().max(1);
        let work = u128::from(done.since(self.began.1).work());
        (work * 1_000_000_000 / u128::from(passed)) as u64
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.began = self.last;
        (self.busy, self.idle) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group of up to three whose replicas do so much, each in percent of one alone, out of `wanted` percent.
    struct Group {
        staff: Staff,
        now: Instant,
        done: Done,
        members: u64,
        wanted: u64,
        /// What as many do together, in percent of one alone.
        together: [u64; 4],
        /// Payload octets of a request.
        mean: u64,
    }

    impl Group {
        fn new(together: [u64; 4]) -> Self {
            Group {
                staff: Staff::new(),
                now: Instant::ZERO,
                done: Done::default(),
                members: 1,
                wanted: 1000,
                together,
                mean: 1448,
            }
        }

        /// Lets so many milliseconds pass. Returns how often somebody was recruited, and sent to rest.
        fn pass(&mut self, ms: u64) -> (u32, u32) {
            let (mut recruited, mut rested) = (0, 0);
            for _ in 0..ms {
                self.now += Duration::from_millis(1);
                let most = self.together[self.members as usize];
                let work = most.min(self.wanted);
                self.done.requests += work;
                self.done.octets += work * self.mean;
                let busy = self.members * 1_000_000 * work / most;
                self.done.busy = self.done.busy + Duration::from_nanos(busy);
                if !self.staff.is_due(self.now) {
                    continue;
                }
                let order = self
                    .staff
                    .look(self.now, self.done, self.members, self.members < 3);
                match order {
                    Order::Nothing => {}
                    Order::Recruit => {
                        self.members += 1;
                        recruited += 1;
                    }
                    Order::Rest => {
                        self.members -= 1;
                        rested += 1;
                    }
                }
                assert!((1..=3).contains(&self.members));
            }
            (recruited, rested)
        }
    }

    #[test]
    fn as_many_work_as_bring_something() {
        let mut group = Group::new([0, 100, 170, 240]);
        assert_eq!(group.pass(1000), (2, 0));
        let mut group = Group::new([0, 100, 170, 175]);
        let (recruited, rested) = group.pass(1000);
        assert_eq!((group.members, recruited), (2, rested + 1));
    }

    #[test]
    fn a_trial_in_vain_is_repeated_ever_less_often() {
        let mut group = Group::new([0, 100, 90, 80]);
        let (recruited, rested) = group.pass(60_000);
        assert_eq!((group.members, recruited), (1, rested));
        // After 1/4, 3/4, 7/4, 15/4, 31/4, 63/4, 127/4, 191/4 seconds, and once at first.
        assert!((7..=9).contains(&recruited), "{recruited}");
    }

    #[test]
    fn other_work_is_tried_at_once() {
        let mut group = Group::new([0, 100, 90, 80]);
        group.mean = 64;
        group.pass(10_000);
        assert_eq!(group.members, 1);
        (group.mean, group.together) = (1448, [0, 100, 170, 240]);
        group.pass(200);
        assert_eq!(group.members, 3);
    }

    #[test]
    fn who_has_little_to_do_rests_and_comes_back() {
        let mut group = Group::new([0, 100, 170, 240]);
        group.pass(1000);
        group.wanted = 60;
        assert_eq!((group.pass(1000), group.members), ((0, 2), 1));
        // Enough for one, but not for nothing.
        group.wanted = 80;
        assert_eq!(group.pass(1000), (0, 0));
        group.wanted = 1000;
        assert_eq!((group.pass(1000).0, group.members), (2, 3));
    }

    #[test]
    fn nobody_is_recruited_for_work_that_one_can_do() {
        let mut group = Group::new([0, 100, 170, 240]);
        group.wanted = 85;
        assert_eq!(group.pass(10_000), (0, 0));
    }
}
