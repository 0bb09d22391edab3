//! Joins, forks, leaves and panics under full load.
//!
//! `cargo run --release --example stress [-- SECONDS]`. A second publisher joins the first one
//! from time to time, so that the channel is sometimes shared and sometimes not. Up to a dozen
//! subscribers join, fork, leave and panic. Every subscriber checks every entry and hashes the
//! order in spans of 256 positions; all subscribers that saw a whole span must agree on its hash.
//! Entries count their drops. Then threads write and read a replicated state whose replicas panic,
//! join and leave. A good run prints a line of counts and `ok` for each.

use dominoes::{
    Park, Publisher, Replicated, SpinYield, StateMachine, Subscription, TryLock, Wait, channel,
    replicated::ReplicaStatus,
};
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

static ALIVE: AtomicI64 = AtomicI64::new(0);
const SPAN: u64 = 256;

/// An owned entry that detects a second drop.
struct Entry {
    publisher: u64,
    number: u64,
    owned: Box<u64>,
}

impl Entry {
    fn new(publisher: u64, number: u64) -> Self {
        ALIVE.fetch_add(1, Relaxed);
        Entry {
            publisher,
            number,
            owned: Box::new(number ^ publisher << 32),
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        assert_eq!(
            *self.owned,
            self.number ^ self.publisher << 32,
            "dropped twice or torn"
        );
        *self.owned = !0;
        assert!(ALIVE.fetch_sub(1, Relaxed) > 0);
    }
}

#[derive(Default)]
struct Shared {
    /// Taken in a loop instead of a mutex, because ThreadSanitizer does not see into std's.
    spans: TryLock<HashMap<u64, u64>>,
    agreed: AtomicU64,
    read: AtomicU64,
    panics: AtomicU64,
    forks: AtomicU64,
    joins: AtomicU64,
    stop: AtomicBool,
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn follow<W: Wait>(
    mut subscription: Subscription<Entry, W>,
    shared: &Arc<Shared>,
    seed: u64,
    depth: u32,
) {
    let mut state = seed | 1;
    let mut last: HashMap<u64, u64> = HashMap::new();
    let mut expected = subscription.position();
    let (mut hash, mut from_start) = (0u64, expected.is_multiple_of(SPAN));
    let mut budget = random(&mut state) % 40_000;
    let mut children = Vec::new();
    let end = catch_unwind(AssertUnwindSafe(|| {
        loop {
            let seen = match subscription.next_batch() {
                None => return,
                Some(batch) => {
                    for (seq, entry) in &batch {
                        assert_eq!(seq, expected, "a gap or a repetition");
                        expected += 1;
                        assert_eq!(
                            *entry.owned,
                            entry.number ^ entry.publisher << 32,
                            "torn entry"
                        );
                        if let Some(number) = last.insert(entry.publisher, entry.number) {
                            assert_eq!(entry.number, number + 1, "order of one publisher");
                        }
                        hash = (hash.rotate_left(9) ^ entry.number ^ entry.publisher << 48)
                            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        if expected.is_multiple_of(SPAN) {
                            if from_start {
                                let mut spans = loop {
                                    match shared.spans.try_take() {
                                        Some(spans) => break spans,
                                        None => thread::yield_now(),
                                    }
                                };
                                let first = *spans.entry(seq / SPAN).or_insert(hash);
                                assert_eq!(first, hash, "two orders in one span");
                                shared.agreed.fetch_add(1, Relaxed);
                            }
                            (hash, from_start) = (0, true);
                        }
                    }
                    batch.len() as u64
                }
            };
            shared.read.fetch_add(seen, Relaxed);
            budget = budget.saturating_sub(seen);
            if budget > 0 || shared.stop.load(Relaxed) {
                continue;
            }
            budget = random(&mut state) % 40_000;
            match random(&mut state) % 4 {
                0 if depth < 2 => {
                    let child = subscription.fork().unwrap();
                    shared.forks.fetch_add(1, Relaxed);
                    let (shared, seed) = (shared.clone(), random(&mut state));
                    children.push(thread::spawn(move || {
                        follow(child, &shared, seed, depth + 1)
                    }));
                }
                1 => {
                    // Panics while it holds a batch, as a handler would.
                    let _batch = subscription.try_next_batch();
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
                2 => {
                    let other = subscription.log().subscribe().unwrap();
                    subscription = std::mem::replace(&mut subscription, other)
                        .deactivate()
                        .activate();
                    expected = subscription.position();
                    (hash, from_start) = (0, expected.is_multiple_of(SPAN));
                    last.clear();
                }
                _ => return,
            }
        }
    }));
    drop(subscription);
    children.into_iter().for_each(|child| child.join().unwrap());
    if let Err(payload) = end {
        assert!(
            payload.downcast_ref::<&str>() == Some(&"on purpose"),
            "a check failed"
        );
        shared.panics.fetch_add(1, Relaxed);
    }
}

fn publish<W: Wait>(publisher: &mut Publisher<Entry, W>, id: u64, shared: &Shared, seed: u64) {
    let mut state = seed | 1;
    let mut number = 0;
    let count = random(&mut state) % 60_000;
    while number < count && !shared.stop.load(Relaxed) {
        let n = 1 + random(&mut state) % 9;
        if n < 6 {
            publisher.publish(Entry::new(id, number)).ok().unwrap();
            number += 1;
        } else {
            let values: Vec<_> = (number..number + n)
                .map(|number| Entry::new(id, number))
                .collect();
            publisher.publish_all(values).ok().unwrap();
            number += n;
        }
    }
}

fn run<W: Wait>(name: &str, capacity: usize, time: Duration) {
    let shared = Arc::new(Shared::default());
    let (publisher, log) = channel::<Entry, W>(capacity);
    let start = Instant::now();
    let root = {
        let (mut publisher, shared) = (publisher, shared.clone());
        thread::spawn(move || {
            let (mut state, mut id) = (77, 0);
            while !shared.stop.load(Relaxed) {
                // Alone, then as one of two, then alone again, perhaps while the other is still
                // finishing.
                publish(&mut publisher, id, &shared, random(&mut state));
                let mut second = publisher.clone();
                let helper = {
                    let (shared, seed) = (shared.clone(), random(&mut state));
                    thread::spawn(move || publish(&mut second, id + 1, &shared, seed))
                };
                publish(&mut publisher, id + 2, &shared, random(&mut state));
                helper.join().unwrap();
                id += 3;
            }
        })
    };
    let joiners: Vec<_> = (0..3u64)
        .map(|joiner| {
            let (log, shared) = (log.clone(), shared.clone());
            thread::spawn(move || {
                let mut state = 1234 + joiner;
                while !shared.stop.load(Relaxed) {
                    shared.joins.fetch_add(1, Relaxed);
                    follow(log.subscribe().unwrap(), &shared, random(&mut state), 0);
                }
            })
        })
        .collect();
    thread::sleep(time);
    shared.stop.store(true, Relaxed);
    root.join().unwrap();
    joiners
        .into_iter()
        .for_each(|joiner| joiner.join().unwrap());
    let published = log.clone();
    drop(log);
    assert_eq!((published.publishers(), published.subscribers()), (0, 0));
    drop(published);
    assert_eq!(ALIVE.load(Relaxed), 0, "values leaked");
    println!(
        "{name}, capacity {capacity}: {} read in {:.1?}, {} joins, {} forks, {} panics, {} spans agreed: ok",
        shared.read.load(Relaxed),
        start.elapsed(),
        shared.joins.load(Relaxed),
        shared.forks.load(Relaxed),
        shared.panics.load(Relaxed),
        shared.agreed.load(Relaxed),
    );
}

/// Numbers that must be equal, and how many operations they are of.
#[derive(Clone)]
struct Numbers([Box<u64>; 8]);

impl StateMachine for Numbers {
    type Op = Entry;
    type Answer = u64;

    fn apply(&mut self, entry: &Entry) -> u64 {
        for number in &mut self.0 {
            **number += 1;
            // Rarely, in one replica.
            if entry.number % 16 == 1 && FAULTS.fetch_sub(1, Relaxed) == 1 {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
        }
        *self.0[0]
    }
}

static FAULTS: AtomicI64 = AtomicI64::new(0);

fn replicate(time: Duration) {
    let state = Numbers(std::array::from_fn(|_| Box::new(0)));
    let builder = Replicated::builder(state).replicas(3).slots(4);
    let replicas = builder.capacity(64).fingerprint(64, |state| *state.0[7]);
    let replicas = replicas.build().unwrap();
    let shared = Arc::new(Shared::default());
    let start = Instant::now();
    let threads: Vec<_> = (0..4u64)
        .map(|id| {
            let (replicas, shared) = (replicas.clone(), shared.clone());
            thread::spawn(move || {
                let (mut last, mut number) = (0, 0);
                while !shared.stop.load(Relaxed) {
                    let mut handle = replicas.handle().unwrap();
                    for _ in 0..1000 {
                        if number % 4 == id {
                            last = handle.write(Entry::new(id, number)).unwrap_or(last);
                        }
                        let count = handle.read(|state| {
                            assert!(state.0.iter().all(|number| *number == state.0[0]), "torn");
                            *state.0[0]
                        });
                        assert!(count.unwrap() >= last, "a stale read");
                        last = count.unwrap();
                        number = (number + 1) % 1000;
                        shared.read.fetch_add(1, Relaxed);
                    }
                }
            })
        })
        .collect();
    let mut round = 0;
    while start.elapsed() < time {
        let stats = replicas.stats().replicas;
        let is_active = |it: &&(ReplicaStatus, u64)| it.0 == ReplicaStatus::Active;
        match round % 3 {
            0 => drop(replicas.join()),
            1 => drop(replicas.leave(round / 3 % 4)),
            // The last replica does not panic.
            _ => FAULTS.store((stats.iter().filter(is_active).count() > 1).into(), Relaxed),
        }
        thread::sleep(Duration::from_millis(1));
        FAULTS.store(0, Relaxed);
        round += 1;
    }
    shared.stop.store(true, Relaxed);
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    let stats = replicas.stats();
    assert_eq!(stats.diverged + stats.undecided, 0, "{stats:?}");
    drop(replicas);
    assert_eq!(ALIVE.load(Relaxed), 0, "values leaked");
    println!(
        "replicated: {} read, {} written, {} panics, {} repaired, {} helped: ok",
        shared.read.load(Relaxed),
        stats.published,
        stats.panicked,
        stats.repaired,
        stats.helped
    );
}

fn main() {
    let seconds: f64 = std::env::args()
        .nth(1)
        .and_then(|arg| arg.parse().ok())
        .unwrap_or(4.0);
    std::panic::set_hook(Box::new(|info| {
        // `resume_unwind` does not call this hook, so only unplanned panics arrive here.
        eprintln!("{info}");
        std::process::exit(1);
    }));
    let time = Duration::from_secs_f64(seconds / 5.0);
    for capacity in [16, 1000] {
        run::<SpinYield>("SpinYield", capacity, time);
        run::<Park>("Park", capacity, time);
    }
    replicate(time);
}
