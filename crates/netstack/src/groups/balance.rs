//! Which connections go from a group whose core is full to one whose core is idle.
//!
//! Every group tells what part of its time it is busy, and each decides for itself. One that has
//! been busy for nine tenths of [`FULL_INTERVALS`] looks, and sees a group that was busy for seven
//! tenths of the time at most, weighs its connections: bytes in both directions, over
//! [`WEIGH_TIME`]. Then it lets some go to the most idle one, light ones first, which are moved
//! quickly and are disturbed most by a heavy one. So many go that the other group has no more to do
//! than this one afterwards; or one, if the other group then has four fifths at most of what is too
//! much here.
//!
//! Nothing goes back and forth: who gets a connection does not let one go for [`MIN_STAY`], and
//! nobody is full only of what came. Who has had to look at its connections in vain does not do so
//! again before twice as long, up to [`LONGEST_PAUSE`]: each look costs a walk over all of them.
//!
//! A connection that fills its core by itself moves nowhere. What helps it is another replica, if
//! its group has parked ones ([`Layout`](crate::group::Layout::autoscale)). One is
//! unparked only if another group is idle, whose core it may take. As soon as another group is
//! full, the last replica is parked again.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;

use crate::log::request::{ConnId, Flow};
use crate::time::{Duration, Instant};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(5);
/// Looks in a row at which a group is full before it lets something go.
const FULL_INTERVALS: u32 = 4;
/// Busy for so many thousandths of its time, a group is full; for so many at most, idle.
const FULL: u32 = 900;
const IDLE: u32 = 700;
/// How long connections are weighed.
const WEIGH_TIME: Duration = Duration::from_millis(20);
/// Time from one decision to the next, at first...
const PAUSE: Duration = Duration::from_millis(50);
/// ... and at last, if they are in vain.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long a group that got a connection keeps what it has.
const MIN_STAY: Duration = Duration::from_secs(1);
/// What a group said of itself so long ago means nothing any more, unless it said that it sleeps.
const STALE: Duration = Duration::from_millis(50);
/// Connections that go at once, at most.
const MAX_MOVES: usize = 16;

/// How busy a group says that it is: thousandths of its time, whether it sleeps, and when that was.
#[derive(Debug, Default)]
pub(crate) struct Load(AtomicU64);

const ASLEEP: u64 = 1 << 15;

impl Load {
    fn post(&self, now: Instant, busy: u32, asleep: bool) {
        let micros = now.as_nanos() / 1_000;
        let asleep = if asleep { ASLEEP } else { 0 };
        // ORDERING: Relaxed, all in one word.
        self.0
            .store(micros << 16 | asleep | u64::from(busy), Ordering::Relaxed);
    }

    /// What it says at `now`; `None` if it has not said anything for long.
    fn at(&self, now: Instant) -> Option<u32> {
        let word = self.0.load(Ordering::Relaxed);
        // The upper 48 bits, modulo which times are compared, come round after nine years.
        let age = ((now.as_nanos() / 1_000) << 16).wrapping_sub(word & !0xffff) as i64 >> 16;
        let is_old = age > (STALE.as_nanos() / 1_000) as i64;
        match word & ASLEEP != 0 {
            true if is_old => Some(0),
            false if is_old => None,
            _ => Some((word & (ASLEEP - 1)) as u32),
        }
    }
}

/// What a group finds when it looks around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OtherGroups {
    /// The most idle of the others, and how busy it is.
    idlest: Option<(u16, u32)>,
    /// Whether another one is full.
    some_full: bool,
}

impl OtherGroups {
    fn survey(loads: &[Load], ours: u16, now: Instant) -> OtherGroups {
        let others = (0..).zip(loads).filter(|(group, _)| *group != ours);
        let busy = others.filter_map(|(group, load)| Some((group, load.at(now)?)));
        let (mut idlest, mut some_full) = (None, false);
        for (group, busy) in busy {
            some_full |= busy >= FULL;
            if idlest.is_none_or(|(_, least)| busy < least) {
                idlest = Some((group, busy));
            }
        }
        OtherGroups { idlest, some_full }
    }
}

/// A connection and what it has carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weighed {
    pub(crate) conn: ConnId,
    pub(crate) flow: Flow,
    /// Bytes in both directions, so far.
    pub(crate) bytes: u64,
}

/// Decides for one group.
#[derive(Debug)]
pub(crate) struct Balance {
    group: u16,
    /// The last turn, and whether it found something to do.
    last: Instant,
    was_busy: bool,
    /// Time spent on work so far.
    busy: Duration,
    /// The last look, how busy it was by then, and how busy the group was before.
    last_survey: (Instant, Duration),
    share: u32,
    /// Looks in a row that found the group full.
    full: u32,
    others: OtherGroups,
    /// When connections were weighed first, and what they had carried.
    weighing: Option<(Instant, HashMap<ConnId, u64>)>,
    /// Whether one connection was found to carry nearly everything.
    is_dominated: bool,
    not_before: Instant,
    pause: Duration,
}

impl Balance {
    pub(crate) fn new(group: u16) -> Self {
        Balance {
            group,
            last: Instant::ZERO,
            was_busy: false,
            busy: Duration::ZERO,
            last_survey: (Instant::ZERO, Duration::ZERO),
            share: 0,
            full: 0,
            others: OtherGroups {
                idlest: None,
                some_full: false,
            },
            weighing: None,
            is_dominated: false,
            not_before: Instant::ZERO,
            pause: PAUSE,
        }
    }

    /// A turn begins at `now`: the time since the last one was spent on work, if that found any.
    pub(crate) fn turn(&mut self, now: Instant, loads: &[Load]) {
        let passed = now.since(self.last);
        if self.was_busy {
            self.busy = self.busy + passed;
        }
        if passed > Duration::ZERO {
            self.was_busy = false;
        }
        self.last = self.last.max(now);
        if now.since(self.last_survey.0) >= INTERVAL {
            self.survey_groups(now, loads);
        }
    }

    /// The turn found something to do.
    pub(crate) fn worked(&mut self) {
        self.was_busy = true;
    }

    /// The group goes to sleep.
    pub(crate) fn sleeps(&self, loads: &[Load]) {
        if let Some(load) = loads.get(usize::from(self.group)) {
            load.post(self.last, self.share, true);
        }
    }

    fn survey_groups(&mut self, now: Instant, loads: &[Load]) {
        let (then, before) = self.last_survey;
        let busy = self.busy.as_nanos() - before.as_nanos();
        self.share = (busy * 1_000 / now.since(then).as_nanos().max(1)).min(1_000) as u32;
        self.last_survey = (now, self.busy);
        if let Some(load) = loads.get(usize::from(self.group)) {
            load.post(now, self.share, false);
        }
        self.full = if self.share >= FULL { self.full + 1 } else { 0 };
        self.others = OtherGroups::survey(loads, self.group, now);
        if self.full == 0 {
            (self.weighing, self.pause) = (None, PAUSE);
        }
    }

    /// Whether some other group has a core to spare.
    fn idle_group(&self) -> Option<(u16, u32)> {
        self.others.idlest.filter(|(_, busy)| *busy <= IDLE)
    }

    /// Whether [`Balance::weigh`] wants to see what each connection has carried.
    #[inline]
    pub(crate) fn needs_weights(&self) -> bool {
        self.full >= FULL_INTERVALS && self.last >= self.not_before && self.may_weigh()
    }

    #[cold]
    fn may_weigh(&self) -> bool {
        let weighed = |(began, _): &(Instant, _)| self.last.since(*began) >= WEIGH_TIME;
        self.idle_group().is_some() && self.weighing.as_ref().is_none_or(weighed)
    }

    /// What each connection has carried. Returns those that should go, and where.
    pub(crate) fn weigh(
        &mut self,
        connections: impl Iterator<Item = Weighed>,
    ) -> (Vec<Weighed>, u16) {
        let now = self.last;
        let Some((_, before)) = self.weighing.take() else {
            let carried = connections.map(|one| (one.conn, one.bytes));
            self.weighing = Some((now, carried.collect()));
            return (Vec::new(), 0);
        };
        let active = connections.filter_map(|one| {
            let carried = one.bytes.checked_sub(*before.get(&one.conn)?)?;
            (carried > 0).then_some((carried, one))
        });
        let mut active: Vec<_> = active.collect();
        // Lightest first; between equals the place decides.
        active.sort_unstable_by_key(|(carried, one)| (*carried, one.conn.index));
        let sum: u64 = active.iter().map(|(carried, _)| carried).sum();
        let heaviest = active.last().map_or(0, |(carried, _)| *carried);
        self.is_dominated = heaviest * 10 >= sum * 9;
        let Some((to, theirs)) = self.idle_group() else {
            return (Vec::new(), 0);
        };
        let (ours, theirs) = (u64::from(self.share), u64::from(theirs));
        let (mut going, mut gone) = (Vec::new(), 0);
        let most = MAX_MOVES.min(active.len().saturating_sub(1));
        for (carried, one) in active.into_iter().take(most) {
            let load = gone + (carried * ours).div_ceil(sum.max(1));
            let is_fair = theirs + load <= ours.saturating_sub(load);
            let is_better = going.is_empty() && theirs + load <= ours * 4 / 5;
            if !is_fair && !is_better {
                break;
            }
            gone = load;
            going.push(one);
        }
        if going.is_empty() {
            self.not_before = now + self.pause;
            self.pause = Duration::from_nanos(2 * self.pause.as_nanos()).min(LONGEST_PAUSE);
        } else {
            (self.not_before, self.pause) = (now + PAUSE, PAUSE);
            // What is left has to fill the core anew.
            self.full = 0;
        }
        (going, to)
    }

    /// A connection came.
    pub(crate) fn connection_arrived(&mut self) {
        self.not_before = self.not_before.max(self.last + MIN_STAY);
        (self.weighing, self.is_dominated) = (None, false);
    }

    /// Whether another replica may take some other group's core: one connection fills this one's.
    pub(crate) fn may_unpark(&self) -> bool {
        self.is_dominated && self.idle_group().is_some()
    }

    /// Whether another group has too much to do, so that no second replica of this one should be in
    /// its way.
    pub(crate) fn should_park(&self) -> bool {
        self.others.some_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::request::Endpoint;

    /// Groups whose connections bring work as told, each as fast as its core lets them.
    struct Machine {
        now: Instant,
        loads: Vec<Load>,
        groups: Vec<Balance>,
        /// For each connection: its group, and what part of a core it takes, in thousandths.
        connections: Vec<(usize, u64, u64)>,
        moves: Vec<(usize, usize)>,
    }

    fn weighed(index: usize, bytes: u64) -> Weighed {
        let port = index as u16 + 1;
        Weighed {
            conn: ConnId {
                index: index as u32,
                generation: 0,
            },
            flow: Flow {
                local: Endpoint::new([10, 0, 0, 1].into(), 80),
                remote: Endpoint::new([10, 0, 0, 2].into(), port),
            },
            bytes,
        }
    }

    impl Machine {
        fn new(groups: usize, connections: &[(usize, u64)]) -> Self {
            let own = connections.iter().map(|(group, part)| (*group, *part, 0));
            Machine {
                now: Instant::from_millis(1),
                loads: (0..groups).map(|_| Load::default()).collect(),
                groups: (0..groups as u16).map(Balance::new).collect(),
                connections: own.collect(),
                moves: Vec::new(),
            }
        }

        /// What a group's connections want of its core.
        fn wanted(&self, group: usize) -> u64 {
            let own = self.connections.iter().filter(|one| one.0 == group);
            own.map(|one| one.1).sum()
        }

        fn run(&mut self, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                // A millisecond, of which each group works its part.
                for group in 0..self.groups.len() {
                    let wanted = self.wanted(group);
                    let part = wanted.min(1_000);
                    for one in self.connections.iter_mut().filter(|one| one.0 == group) {
                        one.2 += one.1 * part / wanted.max(1);
                    }
                    let balance = &mut self.groups[group];
                    balance.turn(self.now, &self.loads);
                    if part > 0 {
                        balance.worked();
                    }
                    if part < 1_000 {
                        let until = self.now + Duration::from_micros(part);
                        balance.turn(until, &self.loads);
                        balance.sleeps(&self.loads);
                    }
                    if balance.needs_weights() {
                        let own = self.connections.iter().enumerate();
                        let own = own.filter(|(_, one)| one.0 == group);
                        let (going, to) = balance.weigh(own.map(|(i, one)| weighed(i, one.2)));
                        for one in going {
                            let index = one.conn.index as usize;
                            self.connections[index].0 = usize::from(to);
                            self.groups[usize::from(to)].connection_arrived();
                            self.moves.push((index, usize::from(to)));
                        }
                    }
                }
                self.now += Duration::from_millis(1);
            }
        }
    }

    #[test]
    fn many_light_connections_spread_over_idle_cores_and_stay_there() {
        let all: Vec<_> = (0..64).map(|_| (0, 40)).collect();
        let mut machine = Machine::new(2, &all);
        machine.run(Duration::from_secs(2));
        let there = machine.connections.iter().filter(|one| one.0 == 1).count();
        assert!((24..=40).contains(&there), "{there}");
        let before = machine.moves.len();
        assert!(before <= 40, "{before}");
        machine.run(Duration::from_secs(10));
        assert_eq!(machine.moves.len(), before, "nothing goes back and forth");
    }

    #[test]
    fn light_ones_leave_a_heavy_one_and_it_stays() {
        let mut machine = Machine::new(2, &[(0, 1_000), (0, 50), (0, 50), (0, 50)]);
        machine.run(Duration::from_secs(2));
        assert_eq!(machine.connections[0].0, 0);
        assert!(machine.connections[1..].iter().all(|one| one.0 == 1));
        assert_eq!(machine.moves.len(), 3);
        // Now it is alone, and another replica may help it.
        machine.run(Duration::from_secs(2));
        assert!(machine.groups[0].may_unpark());
        assert!(!machine.groups[1].may_unpark());
        assert!(machine.groups[1].should_park() && !machine.groups[0].should_park());
        assert_eq!(machine.moves.len(), 3);
    }

    #[test]
    fn of_two_that_each_could_fill_a_core_one_goes() {
        let mut machine = Machine::new(2, &[(0, 1_000), (0, 1_000)]);
        machine.run(Duration::from_secs(5));
        assert_eq!(machine.moves.len(), 1, "{:?}", machine.moves);
    }

    #[test]
    fn nothing_moves_while_all_are_full_or_none_is() {
        for parts in [[600, 600], [100, 880]] {
            let [a, b] = parts;
            let mut machine = Machine::new(2, &[(0, a), (0, a), (1, b), (1, b)]);
            if a == 100 {
                machine.connections.pop();
            }
            machine.run(Duration::from_secs(5));
            assert_eq!(machine.moves, []);
        }
    }

    #[test]
    fn a_load_that_changes_sides_moves_seldom() {
        let mut machine = Machine::new(2, &[(0, 500), (0, 500), (1, 500), (1, 500)]);
        for round in 0..50 {
            // Those of one side rest, those of the other want all.
            for (i, one) in machine.connections.iter_mut().enumerate() {
                one.1 = if i / 2 == round % 2 { 500 } else { 20 };
            }
            machine.run(Duration::from_millis(200));
        }
        assert!(machine.moves.len() <= 25, "{:?}", machine.moves);
    }

    #[test]
    fn who_says_nothing_is_not_idle_and_who_sleeps_is() {
        let load = Load::default();
        let at = Instant::from_millis;
        load.post(at(1_000), 700, false);
        assert_eq!(load.at(at(1_010)), Some(700));
        assert_eq!(load.at(at(1_200)), None);
        load.post(at(1_000), 700, true);
        assert_eq!(load.at(at(1_010)), Some(700));
        assert_eq!(load.at(at(1_200)), Some(0));
    }
}
