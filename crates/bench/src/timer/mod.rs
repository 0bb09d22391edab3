//! Timers in a wheel, a heap and a map, doing the same.

use dominoes::{TimerId, Wheel};
use dominoes_bench::record::Table;
use dominoes_bench::report;
use dominoes_bench::spread::Spread;
use dominoes_bench::svg::{Anchor, Canvas, MARGIN, text_width};
use dominoes_bench::topology::Machine;
use dominoes_testkit::Rng;
use serde::Serialize;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashSet},
    path::Path,
    time::Instant,
};

/// Deadlines are up to this many ticks ahead: two minutes of milliseconds.
const AHEAD: u64 = 120_000;

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

#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) kind: &'static str,
    /// Timers that run.
    pub(crate) running: usize,
    pub(crate) start_cancel_ns: Spread,
    pub(crate) fire_ns: Spread,
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) seed: u64,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    pub(crate) fn table(&self) -> Table {
        let title = format!(
            "{}, seed {}; ns per operation [quartiles]; deadlines within {AHEAD} ticks",
            self.machine, self.seed
        );
        let mut table = Table::new(title, &["running", "kind", "cancel and start", "fire"]);
        for row in &self.rows {
            table.row(vec![
                row.running.to_string(),
                row.kind.to_owned(),
                format!("{:.0}", row.start_cancel_ns),
                format!("{:.0}", row.fire_ns),
            ]);
        }
        table.note(
            "published: Sizemore 2011, section 3.2.5: constant time to start and cancel, without figures"
                .to_owned(),
        );
        table
    }

    pub(crate) fn write(&self, directory: &Path) -> Result<(), String> {
        report::write_json(&directory.join("timer.json"), self)?;
        report::write(&directory.join("timer.svg"), &self.picture().finish())
    }

    /// A bar per row, for cancelling and starting.
    fn picture(&self) -> Canvas {
        const SIZE: f64 = 12.0;
        const BAR: f64 = 18.0;
        let mut canvas = Canvas::new(800.0);
        let heading = "nanoseconds to cancel a timer and start another";
        let top = canvas.paragraph((MARGIN, MARGIN + 16.0), 16.0, heading) - 8.0;
        let name = |row: &Row| format!("{} of {}", row.kind, row.running);
        let names = self.rows.iter().map(|row| text_width(&name(row), SIZE));
        let left = MARGIN + names.fold(0.0, f64::max) + 8.0;
        let wide = canvas.width() - left - 60.0;
        let most = self.rows.iter().map(|row| row.start_cancel_ns.median);
        let scale = wide / most.fold(1.0, f64::max);
        for (i, row) in self.rows.iter().enumerate() {
            let y = top + BAR * i as f64;
            let colour = match row.kind == Wheels::NAME {
                true => "#c22222",
                false => "#999999",
            };
            let ns = row.start_cancel_ns.median;
            let base = y + 0.7 * BAR;
            canvas.text((left - 8.0, base), SIZE, Anchor::End, &name(row));
            canvas.rect((left, y + 2.0), (ns * scale, BAR - 4.0), colour);
            let end = (left + ns * scale + 6.0, base);
            canvas.text(end, SIZE, Anchor::Start, &format!("{ns:.0}"));
        }
        canvas
    }
}
