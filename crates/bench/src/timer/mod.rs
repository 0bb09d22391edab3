//! Timers in a wheel, a heap and a map, doing the same.

use dominoes::{TimerId, Wheel};
use dominoes_testkit::Rng;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashSet},
    time::Instant,
};

/// Deadlines are up to this many ticks ahead: two minutes of milliseconds.
pub(crate) const AHEAD: u64 = 120_000;

/// Keeps timers.
pub(crate) trait Timers: Default {
    const NAME: &'static str;
    type Id: Copy;
    fn start(&mut self, deadline: u64, value: u64) -> Self::Id;
    fn cancel(&mut self, id: Self::Id);
    /// Fires what is due, in order of deadline, then of start.
    fn advance(&mut self, now: u64, fire: impl FnMut(u64, u64));
}

pub(crate) struct Wheels(Wheel<u64>);

impl Default for Wheels {
    fn default() -> Self {
        Wheels(Wheel::new(0))
    }
}

impl Timers for Wheels {
    const NAME: &'static str = "wheel";
    type Id = TimerId;
    fn start(&mut self, deadline: u64, value: u64) -> TimerId {
        self.0.start(deadline, value)
    }
    fn cancel(&mut self, id: TimerId) {
        self.0.cancel(id);
    }
    fn advance(&mut self, now: u64, fire: impl FnMut(u64, u64)) {
        self.0.advance(now, fire);
    }
}

/// A binary heap, with cancelled timers remembered until they come up: the usual way.
#[derive(Default)]
pub(crate) struct Heap {
    heap: BinaryHeap<Reverse<(u64, u64, u64)>>,
    running: HashSet<u64>,
    started: u64,
}

impl Timers for Heap {
    const NAME: &'static str = "binary heap";
    type Id = u64;
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

#[derive(Default)]
pub(crate) struct Map {
    map: BTreeMap<(u64, u64), u64>,
    started: u64,
}

impl Timers for Map {
    const NAME: &'static str = "sorted map";
    type Id = (u64, u64);
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

fn filled<T: Timers>(running: usize, random: &mut Rng) -> (T, Vec<T::Id>) {
    let mut timers = T::default();
    let start = |n: usize| timers.start(1 + random.below(AHEAD), n as u64);
    let ids = (0..running).map(start).collect();
    (timers, ids)
}

/// Nanoseconds to cancel a timer and start another, as each segment does with a retransmission
/// timer, while so many run.
pub(crate) fn start_cancel<T: Timers>(running: usize, seed: u64) -> f64 {
    const TIMES: usize = 100_000;
    let mut random = Rng::new(seed);
    let (mut timers, mut ids) = filled::<T>(running, &mut random);
    let begin = Instant::now();
    for n in 0..TIMES {
        let which = random.below(running as u64) as usize;
        timers.cancel(ids[which]);
        ids[which] = timers.start(1 + random.below(AHEAD), n as u64);
    }
    begin.elapsed().as_nanos() as f64 / TIMES as f64
}

/// Nanoseconds per timer to fire all of them, while time moves on tick by tick.
pub(crate) fn fire<T: Timers>(running: usize, seed: u64) -> f64 {
    let (mut timers, _) = filled::<T>(running, &mut Rng::new(seed));
    let mut fired = 0;
    let begin = Instant::now();
    for now in 1..=AHEAD {
        timers.advance(now, |_, _| fired += 1);
    }
    let took = begin.elapsed().as_nanos() as f64;
    assert_eq!(fired, running, "{} lost timers", T::NAME);
    took / running as f64
}

/// Random starts, cancels and steps of time: everybody must fire the same.
pub(crate) fn verify(seed: u64) {
    fn run<T: Timers>(seed: u64) -> Vec<(u64, u64)> {
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
    let wheel = run::<Wheels>(seed);
    assert!(wheel.len() > 1000, "few timers fired: {}", wheel.len());
    assert!(
        wheel == run::<Heap>(seed),
        "wheel and heap differ, seed {seed}"
    );
    assert!(
        wheel == run::<Map>(seed),
        "wheel and map differ, seed {seed}"
    );
}
