//! A hashed hierarchical timing wheel (G. Varghese, A. Lauck, *Hashed and hierarchical timing
//! wheels*, SOSP 1987, schemes 6 and 7).
//!
//! Level 0 has a slot per tick, each level above one per 64 slots of the level below. A timer
//! waits in the lowest level that can distinguish its deadline from now. When time reaches its
//! slot there, it moves down, so it moves at most once per level. Slots are doubly linked lists
//! threaded through one vector. A word per level records which of them are occupied, so that
//! passing time without timers costs nothing per tick.

use super::Tick;
use std::cmp::Reverse;

/// log2 of the slots in a level.
const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
/// Number of levels. Together they distinguish deadlines up to 2^36 ticks away. A timer beyond
/// that waits in the top level for more than one round.
const LEVELS: usize = 6;
/// log2 of the ticks per slot of the top level.
const TOP: u32 = BITS * (LEVELS as u32 - 1);
/// Ticks per round of the top level.
const FAR: u64 = 1 << (TOP + BITS);
/// The end of a list.
const NONE: u32 = u32::MAX;

/// Identifies a timer that was started. A timer that has fired or was cancelled is never confused
/// with a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimerId {
    place: u32,
    /// Number of timers started before it.
    started: u64,
}

#[derive(Debug, Clone)]
struct Node<T> {
    /// `None`: the node is free.
    value: Option<T>,
    deadline: Tick,
    /// Number of timers started before it. Orders equal deadlines, and distinguishes the timer
    /// from others that used this node.
    started: u64,
    next: u32,
    previous: u32,
    /// Level and slot of the list that contains this node.
    list: (u8, u8),
}

/// A set of timers. Starting and cancelling take constant time, however many there are.
///
/// Timers fire in the order of their deadlines, and those of one tick in the order in which they
/// were started, however far time advances at once. So replicas that make the same calls see the
/// same expiries, and a wheel can be part of a replicated state like any other value.
///
/// ```
/// let mut wheel = dominoes::Wheel::new(0);
/// let syn = wheel.start(1_000, "retransmit");
/// wheel.start(200, "acknowledge");
/// let mut fired = Vec::new();
/// wheel.advance(500, |deadline, what| fired.push((deadline, what)));
/// assert_eq!(fired, [(200, "acknowledge")]);
/// assert_eq!(wheel.cancel(syn), Some("retransmit"));
/// assert_eq!(wheel.next_deadline(), None);
/// ```
#[derive(Debug, Clone)]
pub struct Wheel<T> {
    /// All timers at or before this have fired.
    now: Tick,
    nodes: Vec<Node<T>>,
    free: u32,
    /// The first and the last timer of each slot.
    heads: [[(u32, u32); SLOTS]; LEVELS],
    /// No occupied slot comes up before this.
    quiet_until: Tick,
    /// One bit per occupied slot.
    occupied: [u64; LEVELS],
    len: usize,
    started: u64,
    /// Timers of the tick that fires now, as start number and node, in reverse order.
    firing: Vec<(u64, u32)>,
}

impl<T> Wheel<T> {
    /// A wheel without timers, at time `now`.
    pub fn new(now: Tick) -> Self {
        Wheel {
            now,
            nodes: Vec::new(),
            free: NONE,
            heads: [[(NONE, NONE); SLOTS]; LEVELS],
            quiet_until: Tick::MAX,
            occupied: [0; LEVELS],
            len: 0,
            started: 0,
            firing: Vec::new(),
        }
    }

    /// The time that the wheel has reached.
    pub fn now(&self) -> Tick {
        self.now
    }

    /// Number of running timers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no timer runs.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Starts a timer that fires when time reaches `deadline`. A deadline in the past fires at the
    /// next tick. Constant time.
    ///
    /// # Panics
    /// If 2^32 - 1 timers run.
    pub fn start(&mut self, deadline: Tick, value: T) -> TimerId {
        let place = match self.free {
            NONE => {
                let place = self.nodes.len() as u32;
                assert!(place != NONE, "too many timers");
                self.nodes.push(Node {
                    value: None,
                    deadline: 0,
                    started: 0,
                    next: NONE,
                    previous: NONE,
                    list: (0, 0),
                });
                place
            }
            place => {
                self.free = self.nodes[place as usize].next;
                place
            }
        };
        let node = &mut self.nodes[place as usize];
        node.value = Some(value);
        node.deadline = deadline.max(self.now.saturating_add(1));
        let started = self.started;
        node.started = started;
        self.started += 1;
        self.len += 1;
        self.link(place);
        TimerId { place, started }
    }

    /// Stops a timer and returns its value; `None` if it has fired or was cancelled. Constant time.
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        if !self.runs(id.place, id.started) {
            return None;
        }
        self.unlink(id.place);
        self.release(id.place)
    }

    /// Whether node `place` contains the timer with start number `started`.
    fn runs(&self, place: u32, started: u64) -> bool {
        let node = self.nodes.get(place as usize);
        node.is_some_and(|node| node.started == started && node.value.is_some())
    }

    /// Advances the time to `now` and fires the timers that are due. An earlier `now` has no
    /// effect.
    ///
    /// The cost is constant for each timer that fires or moves down a level, logarithmic in the
    /// number that fire in one tick, and a few words for the time that passes.
    pub fn advance(&mut self, now: Tick, mut fire: impl FnMut(Tick, T)) {
        while let Some((deadline, value)) = self.pop_due(now) {
            fire(deadline, value);
        }
    }

    /// Advances the time towards `now` until a timer is due, and fires that one. Returns its
    /// deadline and its value; `None` when time has reached `now` and no timer is due. Allows
    /// starting and cancelling between two expiries: a timer that has not been returned can still
    /// be cancelled.
    pub fn pop_due(&mut self, now: Tick) -> Option<(Tick, T)> {
        loop {
            while let Some((started, place)) = self.firing.pop() {
                if !self.runs(place, started) {
                    continue; // it was cancelled meanwhile
                }
                self.unlink(place);
                let deadline = self.nodes[place as usize].deadline;
                return self.release(place).map(|value| (deadline, value));
            }
            if self.now >= now {
                return None;
            }
            if now < self.quiet_until {
                self.now = now;
                return None;
            }
            if now - self.now > FAR {
                self.skip_rounds(now);
            }
            // The next tick at which an occupied slot comes up, in any level.
            let next = self.next_event().unwrap_or(Tick::MAX);
            self.quiet_until = next;
            if next > now {
                continue;
            }
            self.now = next;
            for level in (1..LEVELS).rev() {
                // A slot of this level comes up when the time is a multiple of its width.
                if next.is_multiple_of(1 << (BITS * level as u32)) {
                    self.move_down(level, slot(next, level));
                }
            }
            self.gather(slot(next, 0));
        }
    }

    /// If the first timer, or `now`, is rounds of the top level away, advances the time to just
    /// before it. Otherwise the slots of the top level would come up once per round, and the end
    /// of time is 2^28 rounds away.
    #[cold]
    fn skip_rounds(&mut self, now: Tick) {
        let first = self.next_deadline().unwrap_or(now).min(now);
        // All timers are in the top level, where the slot depends on the deadline alone.
        if first.saturating_sub(self.now) > FAR {
            self.now = (first >> TOP << TOP) - 1;
            self.quiet_until = self.now;
        }
    }

    /// The exact time at which the next timer fires; `None` if none runs. Reads the timers of one
    /// slot per level.
    pub fn next_deadline(&self) -> Option<Tick> {
        let mut firing = self.firing.iter();
        if firing.any(|&(started, place)| self.runs(place, started)) {
            return Some(self.now);
        }
        (0..LEVELS)
            .filter_map(|level| {
                let first = self.first_slot(level)?;
                // In the top level a slot also contains timers of later rounds, so its earliest
                // timer may not be the earliest of the level.
                let slots = if level + 1 < LEVELS {
                    first..first + 1
                } else {
                    0..SLOTS
                };
                slots
                    .flat_map(|slot| self.list(level, slot))
                    .map(|node| node.deadline)
                    .min()
            })
            .min()
    }

    /// The timers of a slot.
    fn list(&self, level: usize, slot: usize) -> impl Iterator<Item = &Node<T>> {
        let mut at = self.heads[level][slot].0;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = node.next;
            Some(node)
        })
    }

    /// The first occupied slot of a level after the current one.
    fn first_slot(&self, level: usize) -> Option<usize> {
        let here = slot(self.now, level) as u32;
        // Bit 0 is the next slot, bit 63 the current one, a round later.
        let ahead = self.occupied[level].rotate_right((here + 1) % SLOTS as u32);
        (ahead != 0).then(|| (here + 1 + ahead.trailing_zeros()) as usize % SLOTS)
    }

    /// The next tick at which an occupied slot comes up.
    fn next_event(&self) -> Option<Tick> {
        (0..LEVELS)
            .filter_map(|level| {
                let first = self.first_slot(level)? as u64;
                let shift = BITS * level as u32;
                let round = self.now >> shift;
                let ahead = (first.wrapping_sub(round) & (SLOTS as u64 - 1)).max(1);
                let ahead = if first == round & (SLOTS as u64 - 1) {
                    SLOTS as u64
                } else {
                    ahead
                };
                // After the end of time no slot comes up.
                (round + ahead).checked_mul(1 << shift)
            })
            .min()
    }

    /// The level and slot of a deadline.
    fn home(&self, deadline: Tick) -> (usize, usize) {
        // The highest digit in which the deadline differs from now determines the level.
        let differ = (deadline ^ self.now) | 1;
        let level = ((u64::BITS - 1 - differ.leading_zeros()) / BITS) as usize;
        let level = level.min(LEVELS - 1);
        (level, slot(deadline, level))
    }

    fn link(&mut self, place: u32) {
        let deadline = self.nodes[place as usize].deadline;
        let (level, slot) = self.home(deadline);
        // When its slot comes up. In the top level that may be rounds earlier than the deadline.
        let comes_up = if level + 1 < LEVELS {
            deadline >> (BITS * level as u32) << (BITS * level as u32)
        } else {
            self.now
        };
        self.quiet_until = self.quiet_until.min(comes_up);
        let (_, last) = self.heads[level][slot];
        let node = &mut self.nodes[place as usize];
        node.list = (level as u8, slot as u8);
        node.next = NONE;
        node.previous = last;
        match last {
            NONE => self.heads[level][slot].0 = place,
            last => self.nodes[last as usize].next = place,
        }
        self.heads[level][slot].1 = place;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, place: u32) {
        let node = &self.nodes[place as usize];
        let (previous, next) = (node.previous, node.next);
        let (level, slot) = (usize::from(node.list.0), usize::from(node.list.1));
        match previous {
            NONE => self.heads[level][slot].0 = next,
            previous => self.nodes[previous as usize].next = next,
        }
        match next {
            NONE => self.heads[level][slot].1 = previous,
            next => self.nodes[next as usize].previous = previous,
        }
        if self.heads[level][slot].0 == NONE {
            self.occupied[level] &= !(1 << slot);
        }
    }

    /// Removes the value and frees the node.
    fn release(&mut self, place: u32) -> Option<T> {
        let node = &mut self.nodes[place as usize];
        node.next = self.free;
        self.free = place;
        self.len -= 1;
        node.value.take()
    }

    fn detach(&mut self, level: usize, slot: usize) -> u32 {
        self.occupied[level] &= !(1 << slot);
        std::mem::replace(&mut self.heads[level][slot], (NONE, NONE)).0
    }

    /// Distributes the timers of a slot that has come up to lower levels. In the top level, some
    /// wait for another round.
    fn move_down(&mut self, level: usize, slot: usize) {
        let mut at = self.detach(level, slot);
        while at != NONE {
            let next = self.nodes[at as usize].next;
            self.link(at);
            at = next;
        }
    }

    /// Collects the timers of the current tick. They stay in their list until they fire.
    fn gather(&mut self, slot: usize) {
        let mut at = self.heads[0][slot].0;
        while at != NONE {
            let node = &self.nodes[at as usize];
            debug_assert_eq!(node.deadline, self.now, "level 0 has one tick per slot");
            self.firing.push((node.started, at));
            at = node.next;
        }
        // A list is in the order of starts, except that timers that moved down come after those
        // started here. The last element fires first.
        self.firing.sort_unstable_by_key(|firing| Reverse(firing.0));
    }
}

/// The slot of a level that contains a tick.
fn slot(tick: Tick, level: usize) -> usize {
    (tick >> (BITS * level as u32)) as usize & (SLOTS - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn fired<T>(wheel: &mut Wheel<T>, now: Tick) -> Vec<(Tick, T)> {
        let mut all = Vec::new();
        wheel.advance(now, |deadline, value| all.push((deadline, value)));
        all
    }

    #[test]
    fn a_timer_of_any_distance_fires_on_its_tick() {
        for now in [0, 1, 63, 64, 4095, 4096, 1 << 36, (1 << 40) - 1] {
            for bits in 0..45 {
                for distance in [(1u64 << bits) - 1, 1 << bits, (1 << bits) + 1] {
                    let mut wheel = Wheel::new(now);
                    let deadline = now + distance;
                    wheel.start(deadline, ());
                    let due = deadline.max(now + 1);
                    assert_eq!(wheel.next_deadline(), Some(due), "{now} {distance}");
                    assert_eq!(fired(&mut wheel, due - 1), [], "{now} {distance}");
                    assert_eq!(fired(&mut wheel, due), [(due, ())], "{now} {distance}");
                    assert!(wheel.is_empty());
                }
            }
        }
    }

    #[test]
    fn the_end_of_time_is_a_deadline_like_any_other() {
        let mut wheel = Wheel::new(Tick::MAX - 100);
        wheel.start(Tick::MAX, "end");
        assert_eq!(fired(&mut wheel, Tick::MAX - 1), []);
        assert_eq!(fired(&mut wheel, Tick::MAX), [(Tick::MAX, "end")]);
    }

    #[test]
    fn an_old_name_does_not_cancel_a_new_timer() {
        let mut wheel = Wheel::new(0);
        let old = wheel.start(5, 'a');
        assert_eq!(wheel.cancel(old), Some('a'));
        let new = wheel.start(5, 'b');
        assert_eq!(wheel.cancel(old), None);
        assert_eq!(fired(&mut wheel, 5), [(5, 'b')]);
        assert_eq!(wheel.cancel(new), None);
    }

    #[test]
    fn a_panic_while_firing_leaves_the_others_running() {
        let mut wheel = Wheel::new(0);
        for n in 0..3 {
            wheel.start(7, n);
        }
        let mut panicking = std::panic::AssertUnwindSafe(&mut wheel);
        let outcome = std::panic::catch_unwind(move || {
            panicking.advance(7, |_, n| assert_ne!(n, 1, "no good"));
        });
        assert!(outcome.is_err());
        assert_eq!(wheel.len(), 1);
        assert_eq!(wheel.next_deadline(), Some(7));
    }

    #[test]
    fn a_timer_that_is_due_can_be_cancelled_by_one_that_fires_before_it() {
        let mut wheel = Wheel::new(0);
        let ids: Vec<_> = ["a", "b", "c"].map(|name| wheel.start(9, name)).into();
        assert_eq!(wheel.pop_due(20), Some((9, "a")));
        assert_eq!(wheel.cancel(ids[1]), Some("b"));
        assert_eq!(wheel.next_deadline(), Some(9));
        let late = wheel.start(0, "late");
        assert_eq!(wheel.pop_due(20), Some((9, "c")));
        assert_eq!(wheel.pop_due(20), Some((10, "late")));
        assert_eq!(
            (wheel.pop_due(20), wheel.now(), wheel.cancel(late)),
            (None, 20, None)
        );
    }

    #[derive(Debug, Clone)]
    enum Call {
        Start(u64),
        Cancel(usize),
        Advance(u64),
    }

    fn distance() -> impl Strategy<Value = u64> {
        prop_oneof![0..4u64, 0..200u64, 0..10_000u64, (0..1u64 << 38)]
    }

    fn call() -> impl Strategy<Value = Call> {
        prop_oneof![
            4 => distance().prop_map(Call::Start),
            1 => any::<usize>().prop_map(Call::Cancel),
            3 => distance().prop_map(Call::Advance),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

        /// Compared with a sorted map: same expiries, same order, same next deadline.
        #[test]
        fn a_wheel_fires_what_a_sorted_map_would(calls in prop::collection::vec(call(), 1..60)) {
            let mut wheel = Wheel::new(0);
            let mut model = BTreeMap::new();
            let mut ids = Vec::new();
            for (n, call) in calls.into_iter().enumerate() {
                match call {
                    Call::Start(distance) => {
                        let deadline = wheel.now() + distance;
                        let key = (deadline.max(wheel.now() + 1), n);
                        ids.push((wheel.start(deadline, n), key));
                        model.insert(key, n);
                    }
                    Call::Cancel(which) => if !ids.is_empty() {
                        let (id, key) = ids[which % ids.len()];
                        prop_assert_eq!(wheel.cancel(id), model.remove(&key));
                    },
                    Call::Advance(distance) => {
                        let now = wheel.now() + distance;
                        let rest = model.split_off(&(now + 1, 0));
                        let due = std::mem::replace(&mut model, rest);
                        let due: Vec<_> = due.into_iter().map(|((at, _), n)| (at, n)).collect();
                        prop_assert_eq!(fired(&mut wheel, now), due);
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
                prop_assert_eq!(wheel.next_deadline(), model.keys().next().map(|(at, _)| *at));
            }
        }
    }
}
