//! The clock of the projection: workers whose steps take virtual time.
//!
//! Each worker has a clock. The worker whose clock shows the earliest time takes the next step of
//! its [`Program`]; of several, the one that was to take it first. So a
//! simulation has one outcome. Times are whole picoseconds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Virtual time, in picoseconds.
pub(crate) type Ps = u64;

/// Picoseconds of `ns` nanoseconds; 0 if that is negative.
pub(crate) fn ps(ns: f64) -> Ps {
    (ns * 1e3).round().max(0.0) as Ps
}

/// Something that one worker has at a time: a role or a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TryLock(pub(crate) usize);

/// The next step of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Works on data that no other worker uses.
    Work(Ps),
    /// Waits for its turn, in the order of arrival, and has `what` for `time`. If another worker
    /// had it last, `lines` cache lines come from there, one after the other, meanwhile.
    Hold { what: TryLock, time: Ps, lines: u32 },
    /// Works for `time`, or longer if memory takes longer to move `bytes`.
    Move { time: Ps, bytes: u64 },
    /// Has found nothing to do, and looks again after this time.
    Idle(Ps),
    /// Does nothing any more.
    Stop,
}

/// What the workers do. Each call ends the last step of `worker` and begins the next one.
pub(crate) trait Program {
    fn step(&mut self, worker: usize, machine: &Machine) -> Step;

    /// Segments that the application has read, or that were sent.
    fn segments(&self) -> u64;
}

/// The machine that a program runs on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    pub(crate) workers: usize,
    /// How long a line takes from core to core within a memory domain.
    pub(crate) line: Ps,
    /// Memory domains; workers and memory are spread evenly over them.
    pub(crate) domains: usize,
    /// Bytes that the memory of one domain moves in a nanosecond. Infinite if it is no bound.
    pub(crate) bytes_per_ns: f64,
}

/// A line between two domains takes this many times as long as one within a domain.
pub(crate) const FAR_LINES: u64 = 2;

impl Shape {
    fn domain(&self, worker: usize) -> usize {
        worker * self.domains / self.workers.max(1)
    }

    /// The time of a line from the core of one worker to the core of another.
    pub(crate) fn line_between(&self, from: usize, to: usize) -> Ps {
        match (from == to, self.domain(from) == self.domain(to)) {
            (true, _) => 0,
            (_, true) => self.line,
            _ => FAR_LINES * self.line,
        }
    }
}

/// How an exclusive is handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handover {
    /// Each waiter looks at another line: one line moves.
    Queue,
    /// All waiters look at one line: each fetches it before the next one has it.
    Crowd,
}

#[derive(Debug)]
struct Held {
    handover: Handover,
    holder: Option<usize>,
    last: Option<usize>,
    waiting: VecDeque<(usize, Ps, u32, Ps)>,
    busy: Ps,
}

/// Where time went.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Account {
    /// Virtual time.
    pub(crate) elapsed: Ps,
    /// For each exclusive, how long a worker had it.
    pub(crate) held: Vec<Ps>,
    /// How long memory was busy, on average over the domains.
    pub(crate) memory: Ps,
    /// Sums over all workers: waiting for an exclusive, for memory, and idle.
    pub(crate) waited: Ps,
    pub(crate) stalled: Ps,
    pub(crate) idle: Ps,
}

impl Account {
    /// The difference between this account and the earlier one.
    pub(crate) fn since(&self, before: &Account) -> Account {
        let held = self.held.iter().zip(&before.held);
        Account {
            elapsed: self.elapsed - before.elapsed,
            held: held.map(|(now, then)| now - then).collect(),
            memory: self.memory - before.memory,
            waited: self.waited - before.waited,
            stalled: self.stalled - before.stalled,
            idle: self.idle - before.idle,
        }
    }
}

/// Workers, exclusives and memory at one moment.
#[derive(Debug)]
pub(crate) struct Machine {
    shape: Shape,
    now: Ps,
    order: u64,
    events: BinaryHeap<Reverse<(Ps, u64, usize)>>,
    held: Vec<Held>,
    /// What each worker has, to be given back when its step ends.
    has: Vec<Option<usize>>,
    memory_free: Vec<Ps>,
    memory_busy: Ps,
    waited: Ps,
    stalled: Ps,
    idle: Ps,
}

impl Machine {
    /// With an exclusive for each of `handovers`.
    pub(crate) fn new(shape: Shape, handovers: &[Handover]) -> Machine {
        let held = |&handover: &Handover| Held {
            handover,
            holder: None,
            last: None,
            waiting: VecDeque::new(),
            busy: 0,
        };
        Machine {
            shape,
            now: 0,
            order: 0,
            events: BinaryHeap::new(),
            held: handovers.iter().map(held).collect(),
            has: vec![None; shape.workers],
            memory_free: vec![0; shape.domains.max(1)],
            memory_busy: 0,
            waited: 0,
            stalled: 0,
            idle: 0,
        }
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Whether a worker that asks for it now has it at once.
    pub(crate) fn is_free(&self, what: TryLock) -> bool {
        let held = &self.held[what.0];
        held.holder.is_none() && held.waiting.is_empty()
    }

    pub(crate) fn account(&self) -> Account {
        Account {
            elapsed: self.now,
            held: self.held.iter().map(|held| held.busy).collect(),
            memory: self.memory_busy,
            waited: self.waited,
            stalled: self.stalled,
            idle: self.idle,
        }
    }

    fn at(&mut self, time: Ps, worker: usize) {
        self.events.push(Reverse((time, self.order, worker)));
        self.order += 1;
    }

    fn begin_holding(&mut self, what: usize, worker: usize, time: Ps, lines: u32) {
        let shape = self.shape;
        let held = &mut self.held[what];
        let from = held.last.unwrap_or(worker);
        let line = shape.line_between(from, worker);
        let looks = match held.handover {
            Handover::Queue => 0,
            // Half of the waiters fetch the line before the one that gets it.
            Handover::Crowd => held.waiting.len() as u64 * line / 2,
        };
        let whole = time + u64::from(lines) * line + looks;
        held.holder = Some(worker);
        held.busy += whole;
        self.has[worker] = Some(what);
        self.at(self.now + whole, worker);
    }

    fn end_holding(&mut self, worker: usize) {
        let Some(what) = self.has[worker].take() else {
            return;
        };
        let held = &mut self.held[what];
        (held.holder, held.last) = (None, Some(worker));
        if let Some((next, time, lines, since)) = held.waiting.pop_front() {
            self.waited += self.now - since;
            self.begin_holding(what, next, time, lines);
        }
    }

    fn move_bytes(&mut self, time: Ps, bytes: u64) -> Ps {
        let domains = self.memory_free.len() as f64;
        let takes = bytes as f64 / domains / self.shape.bytes_per_ns;
        let takes = if takes.is_finite() { ps(takes) } else { 0 };
        let mut end = self.now + time;
        for free in &mut self.memory_free {
            *free = (*free).max(self.now) + takes;
            end = end.max(*free);
        }
        self.memory_busy += takes;
        self.stalled += end - (self.now + time);
        end
    }

    /// Runs `program` until `is_over`, which is asked after every step, or until every worker has
    /// stopped.
    pub(crate) fn run<P: Program>(&mut self, program: &mut P, is_over: impl Fn(&P) -> bool) {
        if self.events.is_empty() {
            for worker in 0..self.shape.workers {
                self.at(self.now, worker);
            }
        }
        while let Some(Reverse((time, _, worker))) = self.events.pop() {
            self.now = time;
            self.end_holding(worker);
            match program.step(worker, self) {
                Step::Work(time) => self.at(self.now + time, worker),
                Step::Idle(time) => {
                    self.idle += time;
                    // Time has to pass.
                    self.at(self.now + time.max(1), worker);
                }
                Step::Move { time, bytes } => {
                    let end = self.move_bytes(time, bytes);
                    self.at(end, worker);
                }
                Step::Hold { what, time, lines } if self.is_free(what) => {
                    self.begin_holding(what.0, worker, time, lines);
                }
                Step::Hold { what, time, lines } => {
                    let place = (worker, time, lines, self.now);
                    self.held[what.0].waiting.push_back(place);
                }
                Step::Stop => {}
            }
            if is_over(program) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: TryLock = TryLock(0);

    fn shape(workers: usize) -> Shape {
        Shape {
            workers,
            line: 0,
            domains: 1,
            bytes_per_ns: f64::INFINITY,
        }
    }

    /// Items that each take an exclusive part and a part beside it.
    struct Items {
        exclusive: Ps,
        beside: Ps,
        bytes: u64,
        lines: u32,
        is_beside: Vec<bool>,
        done: u64,
    }

    impl Items {
        fn new(workers: usize, exclusive: Ps, beside: Ps) -> Items {
            Items {
                exclusive,
                beside,
                bytes: 0,
                lines: 0,
                is_beside: vec![false; workers],
                done: 0,
            }
        }
    }

    impl Program for Items {
        fn step(&mut self, worker: usize, _: &Machine) -> Step {
            self.is_beside[worker] = !self.is_beside[worker];
            if self.is_beside[worker] {
                return Step::Move {
                    time: self.beside,
                    bytes: self.bytes,
                };
            }
            self.done += 1;
            Step::Hold {
                what: ROLE,
                time: self.exclusive,
                lines: self.lines,
            }
        }

        fn segments(&self) -> u64 {
            self.done
        }
    }

    /// Picoseconds an item, once all are in step.
    fn per_item(shape: Shape, mut items: Items) -> f64 {
        let mut machine = Machine::new(shape, &[Handover::Queue]);
        machine.run(&mut items, |items| items.done >= 1_000);
        let (begin, before) = (machine.now, items.done);
        machine.run(&mut items, |items| items.done >= 11_000);
        (machine.now - begin) as f64 / (items.done - before) as f64
    }

    #[test]
    fn one_worker_does_one_thing_after_the_other() {
        assert_eq!(per_item(shape(1), Items::new(1, 10, 90)), 100.0);
    }

    #[test]
    fn workers_share_what_is_not_exclusive_and_the_exclusive_part_bounds_them() {
        assert_eq!(per_item(shape(5), Items::new(5, 10, 90)), 20.0);
        assert_eq!(per_item(shape(10), Items::new(10, 10, 90)), 10.0);
        for workers in [11, 16, 64] {
            let items = Items::new(workers, 10, 90);
            assert_eq!(per_item(shape(workers), items), 10.0, "{workers} workers");
        }
    }

    #[test]
    fn each_handover_moves_its_lines() {
        let near = Shape {
            line: 60,
            ..shape(32)
        };
        let items = Items {
            lines: 3,
            ..Items::new(32, 10, 90)
        };
        assert_eq!(per_item(near, items), 10.0 + 3.0 * 60.0);
        // One worker has its lines already.
        let alone = Shape {
            line: 60,
            ..shape(1)
        };
        let items = Items {
            lines: 3,
            ..Items::new(1, 10, 90)
        };
        assert_eq!(per_item(alone, items), 100.0);
        // Every waiter is in the other domain in turn, since they wait in the order of arrival.
        let two = Shape { domains: 2, ..near };
        assert_eq!(two.line_between(0, 31), FAR_LINES * 60);
        assert_eq!(two.line_between(0, 15), 60);
    }

    #[test]
    fn a_crowd_fetches_the_line_that_it_waits_for() {
        let near = Shape {
            line: 60,
            ..shape(5)
        };
        let mut items = Items {
            lines: 1,
            ..Items::new(5, 10, 0)
        };
        let mut machine = Machine::new(near, &[Handover::Crowd]);
        machine.run(&mut items, |items| items.done >= 100);
        let (begin, before) = (machine.now, items.done);
        machine.run(&mut items, |items| items.done >= 1_100);
        let each = (machine.now - begin) as f64 / (items.done - before) as f64;
        // Three wait when the next one gets it: the last holder comes back just then, after it.
        assert_eq!(each, 10.0 + 60.0 + 3.0 * 60.0 / 2.0);
    }

    #[test]
    fn memory_bounds_what_all_move() {
        let bounded = |workers, domains| Shape {
            domains,
            bytes_per_ns: 2.0,
            ..shape(workers)
        };
        let items = |workers| Items {
            bytes: 1_000,
            ..Items::new(workers, 0, 100_000)
        };
        // 1,000 bytes take 500 ns of one domain; the rest of an item takes 100 ns.
        assert_eq!(per_item(bounded(16, 1), items(16)), 500_000.0);
        assert_eq!(per_item(bounded(16, 2), items(16)), 250_000.0);
        let unbounded = Shape {
            bytes_per_ns: 1e9,
            ..shape(4)
        };
        assert_eq!(per_item(unbounded, items(4)), 25_000.0);
    }

    #[test]
    fn the_same_happens_every_time() {
        let run = |handover| {
            let near = Shape {
                line: 60,
                domains: 2,
                bytes_per_ns: 3.0,
                ..shape(7)
            };
            let mut items = Items {
                bytes: 77,
                lines: 2,
                ..Items::new(7, 13, 111)
            };
            let mut machine = Machine::new(near, &[handover]);
            machine.run(&mut items, |items| items.done >= 5_000);
            machine.account()
        };
        for handover in [Handover::Crowd, Handover::Queue] {
            assert_eq!(run(handover), run(handover));
        }
    }
}
