//! Whether the histories of random programs are linearizable, under schedules from a seed.
//!
//! Threads take turns at the [steps](super::steps), so a seed determines the program, the schedule
//! and the history. The checker follows Wing and Gong ("Testing and verifying concurrent
//! objects", 1993), and remembers configurations as Lowe does (2017).

use super::{Replicated, ReplicatedError, StateMachine, WriteError, steps::Fault};
use std::{
    cell::RefCell,
    collections::HashSet,
    panic::resume_unwind,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }
}

/// Lets one thread at a time run, and switches at random.
struct Schedule {
    state: Mutex<Turns>,
    wakes: Vec<Condvar>,
}

struct Turns {
    current: usize,
    running: Vec<bool>,
    random: Random,
    history: Vec<Operation>,
    /// Number of calls and returns so far.
    events: usize,
}

impl Schedule {
    fn switch(&self, me: usize, ends: bool) {
        let mut turns = self.state.lock().unwrap();
        turns.running[me] = !ends;
        let left: Vec<usize> = (0..self.wakes.len())
            .filter(|id| turns.running[*id])
            .collect();
        if left.is_empty() {
            return;
        }
        let next = turns.random.below(left.len() as u64) as usize;
        turns.current = left[next];
        self.wakes[turns.current].notify_one();
        self.await_turn(me, turns, ends);
    }

    fn await_turn(&self, me: usize, mut turns: std::sync::MutexGuard<'_, Turns>, ends: bool) {
        while turns.current != me && !ends {
            turns = self.wakes[me].wait(turns).unwrap();
        }
    }

    fn event(&self, record: impl FnOnce(&mut Vec<Operation>, usize)) {
        let turns = &mut *self.state.lock().unwrap();
        record(&mut turns.history, turns.events);
        turns.events += 1;
    }
}

/// A thread's schedule, its number there, and the fault to plant.
type Turn = (Arc<Schedule>, usize, Option<Fault>);

thread_local! {
    static TURN: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

pub(super) fn step(_at: &'static str) {
    TURN.with_borrow(|turn| {
        if let Some((schedule, me, _)) = turn {
            schedule.switch(*me, false);
        }
    });
}

pub(super) fn is_planted(fault: Fault) -> bool {
    TURN.with_borrow(|turn| turn.as_ref().is_some_and(|turn| turn.2 == Some(fault)))
}

/// Ends a thread's turns, also when it unwinds.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some((schedule, me, _)) = TURN.take() {
            schedule.switch(me, true);
        }
    }
}

const KEYS: usize = 2;

/// Two registers. Each write has another value, so a read shows which writes it saw last.
#[derive(Clone, Debug)]
struct Registers {
    values: [u8; KEYS],
    dies: Arc<AtomicBool>,
}

impl StateMachine for Registers {
    type Op = (usize, u8);
    type Answer = u8;

    fn apply(&mut self, (key, value): &(usize, u8)) -> u8 {
        let before = std::mem::replace(&mut self.values[*key], *value);
        step("within apply");
        if self.dies.swap(false, Ordering::Relaxed) {
            resume_unwind(Box::new("on purpose"));
        }
        before
    }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// Writes a value; the answer is the one before. `None`: the answer is unknown.
    Write(usize, u8, Option<u8>),
    Read([u8; KEYS]),
}

#[derive(Clone, Debug)]
struct Operation {
    action: Action,
    called: usize,
    /// `usize::MAX` if it never returned, and then it may have no effect.
    returned: usize,
}

/// Whether the operations have an order that explains all results, in which none precedes one that
/// returned before it was called.
fn is_linearizable(history: &[Operation]) -> bool {
    let pending = |(i, op): (usize, &Operation)| u32::from(op.returned == usize::MAX) << i;
    let optional = history
        .iter()
        .enumerate()
        .map(pending)
        .fold(0, |all, bit| all | bit);
    let all = u32::MAX >> (32 - history.len() as u32);
    let mut seen = HashSet::new();
    let mut open = vec![(0u32, [0u8; KEYS])];
    while let Some((done, values)) = open.pop() {
        if done | optional == all {
            return true;
        }
        let left = || {
            history
                .iter()
                .enumerate()
                .filter(|(i, _)| done >> i & 1 == 0)
        };
        let first_return = left().map(|(_, op)| op.returned).min().unwrap_or(0);
        for (i, op) in left().filter(|(_, op)| op.called < first_return) {
            let mut values = values;
            let is_possible = match op.action {
                Action::Read(read) => read == values,
                Action::Write(key, value, answer) => {
                    let before = std::mem::replace(&mut values[key], value);
                    answer.is_none_or(|answer| answer == before)
                }
            };
            if is_possible && seen.insert((done | 1 << i, values)) {
                open.push((done | 1 << i, values));
            }
        }
    }
    history.is_empty()
}

/// What the histories of a run contained.
#[derive(Debug, Default)]
struct Seen {
    operations: usize,
    panicked: u64,
    repaired: u64,
    helped: u64,
}

const THREADS: usize = 3;

/// Runs the program of a seed. Returns its history.
fn run(seed: u64, fault: Option<Fault>, seen: &mut Seen) -> Vec<Operation> {
    let schedule = Arc::new(Schedule {
        state: Mutex::new(Turns {
            current: THREADS,
            running: vec![true; THREADS],
            random: Random(seed),
            history: Vec::new(),
            events: 0,
        }),
        wakes: (0..THREADS).map(|_| Condvar::new()).collect(),
    });
    let mut random = Random(!seed);
    let dies = Arc::new(AtomicBool::new(false));
    let values = [0; KEYS];
    let state = Registers {
        values,
        dies: dies.clone(),
    };
    let replicas = Replicated::builder(state)
        .replicas(2)
        .slots(3)
        .capacity(1 + random.below(3) as usize)
        .patience(Duration::MAX)
        .build()
        .unwrap();
    // Faults are planted alone: a panic or a join would hide some of them.
    let is_calm = fault.is_some() || random.below(2) == 0;
    let handles: Vec<_> = [0, 0, 1]
        .map(|replica| replicas.handle_on(replica).unwrap())
        .into();
    let threads: Vec<_> = (0..THREADS)
        .zip(handles)
        .map(|(me, mut handle)| {
            let (schedule, replicas, dies) = (schedule.clone(), replicas.clone(), dies.clone());
            let mut random = Random(random.below(u64::MAX));
            thread::spawn(move || {
                TURN.set(Some((schedule.clone(), me, fault)));
                let _ends = Ends;
                schedule.await_turn(me, schedule.state.lock().unwrap(), false);
                for n in 0..4 {
                    let (key, value) = (random.below(KEYS as u64) as usize, (1 + me * 4 + n) as u8);
                    let mut called = 0;
                    step("between operations");
                    schedule.event(|_, now| called = now);
                    let returns = |action| {
                        schedule.event(|history, returned| {
                            let operation = Operation {
                                action,
                                called,
                                returned,
                            };
                            history.push(operation);
                        });
                    };
                    match random.below(if is_calm { 8 } else { 11 }) {
                        0..3 => match handle.write((key, value)) {
                            Ok(before) => returns(Action::Write(key, value, Some(before))),
                            // It is in the log, and takes effect before this call returns.
                            Err(WriteError { op: None, .. }) => {
                                returns(Action::Write(key, value, None))
                            }
                            Err(WriteError { why, .. }) => {
                                assert_eq!(why, ReplicatedError::NoReplicaLeft)
                            }
                        },
                        3 => {
                            if let Ok(position) = handle.submit((key, value)) {
                                returns(Action::Write(key, value, None));
                                let _ = handle.read_at(position, |_| ());
                            }
                        }
                        4..8 => {
                            let read = handle.read(|state| {
                                step("within a read");
                                state.values
                            });
                            if let Ok(values) = read {
                                returns(Action::Read(values));
                            }
                        }
                        8 => dies.store(true, Ordering::Relaxed),
                        9 => drop(replicas.leave(random.below(3) as usize)),
                        _ => drop(replicas.join()),
                    }
                }
            })
        })
        .collect();
    schedule.state.lock().unwrap().current = 0;
    schedule.wakes[0].notify_one();
    for thread in threads {
        thread.join().unwrap();
    }
    let stats = replicas.stats();
    seen.panicked += stats.panicked;
    seen.repaired += stats.repaired;
    seen.helped += stats.helped;
    let history = schedule.state.lock().unwrap().history.clone();
    seen.operations += history.len();
    history
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("it is a number"))
}

/// The long version: `HISTORIES=100000`. `HISTORIES_FROM` resumes one at the number that it printed
/// last.
#[test]
fn every_history_of_a_random_program_is_linearizable() {
    let (from, count) = (number("HISTORIES_FROM", 0), number("HISTORIES", 2_000));
    let mut seen = Seen::default();
    for seed in from..count {
        let history = run(seed, None, &mut seen);
        assert!(
            is_linearizable(&history),
            "HISTORIES_FROM={seed}: {history:#?}"
        );
        if seed % 10_000 == 9_999 {
            println!("HISTORIES_FROM={}", seed + 1);
        }
    }
    println!("{seen:?}");
    assert!(
        count - from < 1_000 || seen.panicked.min(seen.repaired).min(seen.helped) > 20,
        "{seen:?}"
    );
}

#[test]
fn planted_faults_are_found() {
    for fault in [
        Fault::TailTooLate,
        Fault::ReaderDoesNotHelp,
        Fault::LostCombiner,
    ] {
        let mut seeds = 0..500;
        let found =
            seeds.find(|seed| !is_linearizable(&run(*seed, Some(fault), &mut Seen::default())));
        println!("{fault:?}: found in history {found:?}");
        assert!(found.is_some(), "{fault:?}");
    }
}

#[test]
fn the_checker_accepts_and_rejects_what_it_should() {
    let op = |action, called, returned| Operation {
        action,
        called,
        returned,
    };
    let write = |value, before| Action::Write(0, value, Some(before));
    let read = |value| Action::Read([value, 0]);
    // Concurrent with the write, a read may see either value; afterwards only the new one.
    for (value, called, is_right) in [(0, 1, true), (7, 1, true), (0, 4, false), (7, 4, true)] {
        let history = [op(write(7, 0), 0, 3), op(read(value), called, called + 2)];
        assert_eq!(is_linearizable(&history), is_right, "{history:?}");
    }
    // Two reads one after the other cannot see a write and then no longer see it.
    let history = [op(write(7, 0), 0, 9), op(read(7), 1, 2), op(read(0), 3, 4)];
    assert!(!is_linearizable(&history));
    // Two writes cannot both be the first.
    assert!(!is_linearizable(&[
        op(write(1, 0), 0, 3),
        op(write(2, 0), 1, 2)
    ]));
    // One without a return may have no effect, or any later one.
    let lost = op(Action::Write(0, 5, None), 0, usize::MAX);
    assert!(is_linearizable(&[lost.clone(), op(read(0), 1, 2)]));
    assert!(is_linearizable(&[
        lost,
        op(read(0), 1, 2),
        op(read(5), 3, 4)
    ]));
}
