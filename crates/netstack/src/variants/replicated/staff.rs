//! How many replicas work: as many as bring something.
//!
//! A replica costs the others something, since every request is applied once more, and what a request asks for moves
//! between caches. It brings what there is to copy, sum and build. Which of the two is more depends on segments, merging,
//! machine and load, so a group with [`Layout::adapt`](super::Layout::adapt) does not compute it, but tries:
//!
//! - Have all that work been busy for [`BUSY_LOOKS`] looks, one that rests is *recruited*, and begins with a snapshot of the
//!   state as whoever joins.
//! - After [`SETTLES`] the work done per second is measured for [`TRIAL`]. If it has not grown by an eighth of what each did
//!   before, the recruit goes back to *rest*.
//! - What was found is tried again, the other way round, since machine and load change: one more where that was in vain,
//!   one less where more were found to bring something. That is after [`PAUSE`] at first, and twice as long each time that
//!   nothing new is found, up to [`LONGEST_PAUSE`]; at once, if what a request is about on average has become twice or
//!   half of what it was.
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
const BUSY_LOOKS: usize = 4;
/// Looks in a row with little to do before one less is enough.
const IDLE_LOOKS: usize = 20;
/// How long a recruit has to warm its caches.
const SETTLES: Duration = Duration::from_millis(10);
/// How long it is measured.
const TRIAL: Duration = Duration::from_millis(20);
/// Time from one trial to the next, at first.
const PAUSE: Duration = Duration::from_millis(250);
/// ... and at last.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
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

/// What is being tried: another number of members, of which `fewer` is the lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trial {
    /// Whether one was recruited; one was sent to rest otherwise.
    more: bool,
    fewer: u64,
    /// The work done in a second before.
    before: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The number is right as far as is known.
    Settled,
    /// It was changed, and caches are not warm.
    Settling(Trial),
    /// The other number is being measured.
    Trying(Trial),
}

/// Who decides.
#[derive(Debug)]
pub(super) struct Staff {
    next: Instant,
    /// When the last looks were, newest first, and what had been done by then.
    looks: [(Instant, Done); BUSY_LOOKS + 1],
    phase: Phase,
    /// When the phase began, and what had been done by then.
    began: (Instant, Done),
    /// Looks in a row at which all were busy; at which one less would have done; at which there was a load.
    busy: usize,
    idle: usize,
    loaded: usize,
    /// Time from the last trial to the next.
    pause: Duration,
    /// When that is, and what requests were about in the last one; `None` before any.
    again: Option<(Instant, u64)>,
    /// Whether the next one is of one more, rather than of one less.
    up: bool,
}

impl Staff {
    pub(super) fn new() -> Self {
        Staff {
            next: Instant::ZERO,
            looks: [(Instant::ZERO, Done::default()); BUSY_LOOKS + 1],
            phase: Phase::Settled,
            began: (Instant::ZERO, Done::default()),
            busy: 0,
            idle: 0,
            loaded: 0,
            pause: PAUSE,
            again: None,
            up: true,
        }
    }

    /// Whether it is time to look.
    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// `members` work, and all have `done` so much by `now`. `can_recruit`: somebody rests.
    pub(super) fn look(
        &mut self,
        now: Instant,
        done: Done,
        members: u64,
        can_recruit: bool,
    ) -> Order {
        self.next = now + LOOK;
        let (then, before) = self.looks[0];
        self.looks.rotate_right(1);
        self.looks[0] = (now, done);
        let passed = now.since(then).as_nanos();
        let lately = done.since(before);
        let busy = lately.busy.as_nanos();
        let all_busy = busy >= members * (passed - passed / 8);
        let one_less_would_do = members > 1 && busy <= (members - 1) * (passed - passed / 4);
        // Replicas that wait for each other are loaded, and not busy all the time.
        let is_loaded = all_busy || members > 1 && !one_less_would_do;
        let count = |looks: usize, is: bool| if is { looks + 1 } else { 0 };
        self.busy = count(self.busy, all_busy);
        self.idle = count(self.idle, one_less_would_do);
        self.loaded = count(self.loaded, is_loaded);
        match self.phase {
            Phase::Settled => self.settled(lately.mean(), members, can_recruit),
            Phase::Settling(trial) => {
                if now.since(self.began.0) >= SETTLES {
                    self.enter(Phase::Trying(trial));
                }
                Order::Nothing
            }
            Phase::Trying(trial) if now.since(self.began.0) >= TRIAL => self.judge(trial),
            Phase::Trying(_) => Order::Nothing,
        }
    }

    fn settled(&mut self, mean: u64, members: u64, can_recruit: bool) -> Order {
        if self.idle >= IDLE_LOOKS {
            self.enter(Phase::Settled);
            return Order::Rest;
        }
        if let Some((at, about)) = self.again {
            let is_other = mean > 2 * about || 2 * mean < about;
            if is_other {
                (self.pause, self.up) = (PAUSE, true);
            } else if self.looks[0].0 < at {
                return Order::Nothing;
            }
        }
        let can_do_more = can_recruit && self.busy >= BUSY_LOOKS;
        let can_do_less = members > 1 && self.loaded >= BUSY_LOOKS;
        if !can_do_more && !can_do_less {
            return Order::Nothing;
        }
        let more = can_do_more && (self.up || !can_do_less);
        let trial = Trial {
            more,
            fewer: if more { members } else { members - 1 },
            before: self.per_second(self.looks[BUSY_LOOKS]),
        };
        self.enter(Phase::Settling(trial));
        if more { Order::Recruit } else { Order::Rest }
    }

    /// A trial is over.
    fn judge(&mut self, trial: Trial) -> Order {
        let (now, done) = self.looks[0];
        let after = self.per_second(self.began);
        let mean = done.since(self.began.1).mean();
        let (with_fewer, with_more) = match trial.more {
            true => (trial.before, after),
            false => (after, trial.before),
        };
        let more_pays = with_more >= with_fewer + with_fewer / (8 * trial.fewer);
        let is_news = more_pays == trial.more;
        if is_news {
            // What was good once may be good again.
            (self.pause, self.up) = (PAUSE, trial.more);
            self.again = Some((now, mean));
        } else {
            self.up = !trial.more;
            self.again = Some((now + self.pause, mean));
            self.pause = self.pause.times(2).min(LONGEST_PAUSE);
        }
        self.enter(Phase::Settled);
        match (is_news, more_pays) {
            (true, _) => Order::Nothing,
            (false, true) => Order::Recruit,
            (false, false) => Order::Rest,
        }
    }

    /// Work done in a second since a look.
    fn per_second(&self, (then, before): (Instant, Done)) -> u64 {
        let (now, done) = self.looks[0];
        let passed = now.since(then).as_nanos().max(1);
        let work = u128::from(done.since(before).work());
        (work * 1_000_000_000 / u128::from(passed)) as u64
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.began = self.looks[0];
        (self.busy, self.idle, self.loaded) = (0, 0, 0);
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

    /// Lets half a minute pass, and returns for how much of it how many worked, in percent.
    fn shares(group: &mut Group) -> [u32; 4] {
        let mut shares = [0; 4];
        for _ in 0..3000 {
            group.pass(10);
            shares[group.members as usize] += 1;
        }
        shares.map(|share| share / 30)
    }

    #[test]
    fn as_many_work_as_bring_something() {
        let mut group = Group::new([0, 100, 170, 240]);
        group.pass(200);
        assert_eq!(group.members, 3);
        assert!(shares(&mut group)[3] >= 97);
        let mut group = Group::new([0, 100, 170, 175]);
        assert!(shares(&mut group)[2] >= 97);
        let mut group = Group::new([0, 100, 90, 80]);
        assert!(shares(&mut group)[1] >= 97);
    }

    #[test]
    fn a_trial_in_vain_is_repeated_ever_less_often() {
        let mut group = Group::new([0, 100, 90, 80]);
        let (recruited, rested) = group.pass(60_000);
        assert_eq!((group.members, recruited), (1, rested));
        // At first, after 1/4, 3/4, 7/4, 15/4, 31/4 seconds, and then every eight.
        assert!((10..=13).contains(&recruited), "{recruited}");
    }

    #[test]
    fn what_no_longer_brings_something_rests() {
        let mut group = Group::new([0, 100, 170, 240]);
        group.pass(20_000);
        assert_eq!(group.members, 3);
        // The cores have moved apart.
        group.together = [0, 100, 80, 60];
        group.pass(9_000);
        assert_eq!(group.members, 1);
        group.together = [0, 100, 170, 240];
        group.pass(9_000);
        assert_eq!(group.members, 3);
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
        group.pass(1000);
        assert_eq!(group.members, 1);
        // Enough for one, but not for nothing.
        group.wanted = 80;
        assert_eq!(group.pass(1000), (0, 0));
        group.wanted = 1000;
        group.pass(200);
        assert_eq!(group.members, 3);
    }

    #[test]
    fn nobody_is_recruited_for_work_that_one_can_do() {
        let mut group = Group::new([0, 100, 170, 240]);
        group.wanted = 85;
        assert_eq!(group.pass(10_000), (0, 0));
    }
}
