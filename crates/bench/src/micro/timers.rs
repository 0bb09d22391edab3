//! Timers in a wheel, a heap and a map, which `micro` measures.

use dominoes::{TimerId, Wheel};
use dominoes_testkit::Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};

/// Deadlines are up to this many ticks ahead: two minutes of milliseconds.
pub const AHEAD: u64 = 120_000;

/// A collection of timers.
pub trait Timers {
    /// The name of the data structure.
    const NAME: &'static str;
    /// A running timer.
    type Id: Copy;
    /// A collection without timers.
    fn empty() -> Self;
    /// Starts a timer.
    fn start(&mut self, deadline: u64, value: u64) -> Self::Id;
    /// Cancels a timer, if it still runs.
    fn cancel(&mut self, id: Self::Id);
    /// Fires the due timers, in order of deadline, then of start.
    fn advance(&mut self, now: u64, fire: impl FnMut(u64, u64));
}

impl Timers for Wheel<u64> {
    const NAME: &'static str = "wheel";
    type Id = TimerId;
    fn empty() -> Wheel<u64> {
        Wheel::new(0)
    }
    fn start(&mut self, deadline: u64, value: u64) -> TimerId {
        Wheel::start(self, deadline, value)
    }
    fn cancel(&mut self, id: TimerId) {
        Wheel::cancel(self, id);
    }
    fn advance(&mut self, now: u64, fire: impl FnMut(u64, u64)) {
        Wheel::advance(self, now, fire);
    }
}

/// A binary heap that keeps cancelled timers until they are due, as is common.
#[derive(Default)]
pub struct Heap {
    heap: BinaryHeap<Reverse<(u64, u64, u64)>>,
    running: HashSet<u64>,
    started: u64,
}

impl Timers for Heap {
    const NAME: &'static str = "heap";
    type Id = u64;
    fn empty() -> Heap {
        Heap::default()
    }
    fn start(&mut self, deadline: u64, value: u64) -> u64 {
        self.started += 1;
        self.heap.push(Reverse((deadline, self.started, value)));
        self.running.insert(self.started);
        self.started
    }
    fn cancel(&mut self, id: u64) {
        self.running.remove(&id);
    }
    fn advance(&mut self, now: u64, mut fire: impl FnMut(u64, u64)) {
        while let Some(&Reverse((deadline, id, value))) = self.heap.peek() {
            if deadline > now {
                return;
            }
            self.heap.pop();
            if self.running.remove(&id) {
                fire(deadline, value);
            }
        }
    }
}

/// A map sorted by deadline.
#[derive(Default)]
pub struct Map {
    map: BTreeMap<(u64, u64), u64>,
    started: u64,
}

impl Timers for Map {
    const NAME: &'static str = "map";
    type Id = (u64, u64);
    fn empty() -> Map {
        Map::default()
    }
    fn start(&mut self, deadline: u64, value: u64) -> (u64, u64) {
        self.started += 1;
        self.map.insert((deadline, self.started), value);
        (deadline, self.started)
    }
    fn cancel(&mut self, id: (u64, u64)) {
        self.map.remove(&id);
    }
    fn advance(&mut self, now: u64, mut fire: impl FnMut(u64, u64)) {
        while let Some(first) = self.map.first_entry().filter(|first| first.key().0 <= now) {
            let ((deadline, _), value) = first.remove_entry();
            fire(deadline, value);
        }
    }
}

/// A collection with `running` timers, and their ids.
pub fn filled<T: Timers>(running: usize, random: &mut Rng) -> (T, Vec<T::Id>) {
    let mut timers = T::empty();
    let start = |n: usize| timers.start(1 + random.below(AHEAD), n as u64);
    let ids = (0..running).map(start).collect();
    (timers, ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The timers that fire after random starts, cancels and steps of time.
    fn fired<T: Timers>(seed: u64) -> Vec<(u64, u64)> {
        let mut random = Rng::new(seed);
        let (mut timers, mut ids) = filled::<T>(1000, &mut random);
        let (mut now, mut fired) = (0, Vec::new());
        for n in 0..20_000 {
            match random.below(3) {
                0 => ids.push(timers.start(now + 1 + random.below(AHEAD), n)),
                1 => {
                    let which = random.below(ids.len() as u64) as usize;
                    timers.cancel(ids[which]);
                }
                _ => {
                    now += random.below(300);
                    timers.advance(now, |at, value| fired.push((at, value)));
                }
            }
        }
        fired
    }

    #[test]
    fn wheel_heap_and_map_fire_the_same_timers_in_the_same_order() {
        let wheel = fired::<Wheel<u64>>(1);
        assert!(wheel.len() > 1000, "few timers fired: {}", wheel.len());
        assert!(wheel == fired::<Heap>(1), "wheel and heap differ");
        assert!(wheel == fired::<Map>(1), "wheel and map differ");
    }
}
