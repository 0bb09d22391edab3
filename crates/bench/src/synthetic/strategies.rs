//! How the state is kept consistent.

use super::{Outcome, WORDS, Work, parallel, plain, request, sequential, table};
use dominoes::{Assignment, Greedy, Log, NoBatch, Publisher, SpinYield, TryLock, channel};
use dominoes_bench::topology;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Requests that a thread takes at once, and entries of the log that have one primary.
const CHUNK: u64 = 8;
/// Entries of the log.
const CAPACITY: usize = 1024;
/// Requests that are put into the log at once.
const PUBLISHED: usize = 256;
/// Chunks that may be open at once, and one on either side that is open in part.
const OPEN: usize = 2 * CAPACITY / CHUNK as usize;

dominoes_bench::named! {
    /// How the state is kept consistent.
    pub(crate) enum Strategy {
        /// One mutex around the whole request: the dissertation's coarse-grained locking.
        CoarseLock = "coarse lock",
        /// One mutex around the sequential part alone, which is fairer to locks.
        StateLock = "lock, state only",
        /// The state is made of atomics, which all threads update.
        Atomics = "atomics",
        /// A copy of the state in each thread. Every copy sees all requests through one log, and
        /// the thread that comes first to a chunk of them does their parallelizable part. If chunks
        /// were dealt out in turn, all threads would wait for the slowest core.
        Replication = "replication",
    }
}

impl Strategy {
    /// Runs all requests on some threads. Returns the slice, and the outcome of each copy of the
    /// state.
    pub(crate) fn run(self, work: Work, on: On) -> (Slice, Vec<Outcome>) {
        match self {
            Strategy::CoarseLock => locked(work, on, true),
            Strategy::StateLock => locked(work, on, false),
            Strategy::Atomics => atomics(work, on),
            Strategy::Replication => replicated(work, on),
        }
    }
}

/// Where a strategy runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct On {
    pub(crate) threads: usize,
    pub(crate) cores: usize,
    /// The core of the first thread; the others follow in turn.
    pub(crate) first: usize,
}

impl On {
    fn is_crowded(self) -> bool {
        self.threads > self.cores
    }
}

/// How a run went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slice {
    /// From the first begin to the last end.
    pub(crate) took: Duration,
    /// The longest that a thread waited for its core although it could have run.
    pub(crate) waited: Duration,
}

/// Runs `body` on pinned threads that begin together: each spins until all are there, since one
/// that slept would come late by the time that waking takes.
fn timed<R: Send>(on: On, body: impl Fn(usize) -> R + Sync) -> (Slice, Vec<R>) {
    let (
        missing,
        On {
            threads,
            cores,
            first,
        },
    ) = (AtomicUsize::new(on.threads), on);
    let results: Vec<(Instant, Instant, Duration, R)> = thread::scope(|scope| {
        let run = |me: usize| {
            let (missing, body) = (&missing, &body);
            move || {
                topology::pin_to((first + me) % cores);
                missing.fetch_sub(1, Ordering::AcqRel);
                while missing.load(Ordering::Acquire) > 0 {
                    if on.is_crowded() {
                        thread::yield_now();
                    } else {
                        std::hint::spin_loop();
                    }
                }
                let (before, begin) = (topology::waited_ns(), Instant::now());
                let result = body(me);
                let end = Instant::now();
                let waited = topology::waited_ns().saturating_sub(before);
                (begin, end, Duration::from_nanos(waited), result)
            }
        };
        let handles: Vec<_> = (0..threads).map(|me| scope.spawn(run(me))).collect();
        handles
            .into_iter()
            .map(|handle| handle.join().expect("no panic"))
            .collect()
    });
    let begin = results.iter().map(|(begin, ..)| *begin).min();
    let end = results.iter().map(|(_, end, ..)| *end).max();
    let slice = Slice {
        took: begin.zip(end).map_or(Duration::ZERO, |(b, e)| e - b),
        waited: results
            .iter()
            .map(|(_, _, w, _)| *w)
            .max()
            .unwrap_or_default(),
    };
    (slice, results.into_iter().map(|(.., r)| r).collect())
}

/// Chunks of requests, first come, first served, as a shared queue would give them out.
fn chunks(next: &AtomicU64, total: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let from = next.fetch_add(CHUNK, Ordering::Relaxed);
        (from < total).then(|| from..(from + CHUNK).min(total))
    })
    .flatten()
}

fn add(sums: Vec<u64>) -> u64 {
    sums.into_iter().fold(0, u64::wrapping_add)
}

fn locked(work: Work, on: On, whole: bool) -> (Slice, Vec<Outcome>) {
    let (state, next) = (Mutex::new(vec![0u64; WORDS]), AtomicU64::new(0));
    let (took, sums) = timed(on, |_| {
        let (table, mut sum) = (table(), 0u64);
        for n in chunks(&next, work.requests) {
            let request = request(work.seed, n);
            let mut guard = state.lock().expect("no panic");
            sequential(request, work.sequential, |i, x| {
                guard[i] = guard[i].wrapping_add(x);
            });
            let held = whole.then_some(guard);
            sum = sum.wrapping_add(parallel(request, work.parallel, &table));
            drop(held);
        }
        sum
    });
    let state = state.into_inner().expect("no panic");
    let sum = add(sums);
    (took, vec![Outcome { state, sum }])
}

fn atomics(work: Work, on: On) -> (Slice, Vec<Outcome>) {
    let state: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    let next = AtomicU64::new(0);
    let (took, sums) = timed(on, |_| {
        let (table, mut sum) = (table(), 0u64);
        for n in chunks(&next, work.requests) {
            let request = request(work.seed, n);
            sequential(request, work.sequential, |i, x| {
                state[i].fetch_add(x, Ordering::Relaxed);
            });
            sum = sum.wrapping_add(parallel(request, work.parallel, &table));
        }
        sum
    });
    let state = state.into_iter().map(AtomicU64::into_inner).collect();
    let sum = add(sums);
    (took, vec![Outcome { state, sum }])
}

/// Puts requests into the log. A thread that finds nothing to read does it, a few at a time.
struct Source {
    publisher: Publisher<u64, SpinYield>,
    next: u64,
}

impl Source {
    fn publish(&mut self, work: Work) {
        if self.next == work.requests {
            self.publisher.close();
            return;
        }
        let mut some = [0; PUBLISHED];
        let n = (work.requests - self.next).min(some.len() as u64);
        for (i, entry) in some[..n as usize].iter_mut().enumerate() {
            *entry = request(work.seed, self.next + i as u64);
        }
        if self
            .publisher
            .try_publish_slice(&some[..n as usize])
            .is_ok()
        {
            self.next += n;
        }
    }
}

fn replicated(work: Work, on: On) -> (Slice, Vec<Outcome>) {
    let (publisher, log): (_, Log<u64, SpinYield>) = channel(CAPACITY);
    let source = TryLock::new(Source { publisher, next: 0 });
    let greedy = Greedy::new(&[OPEN]);
    let subscriptions: Vec<_> = (0..on.threads)
        .map(|_| {
            let subscription = log.subscribe().expect("at most 16 threads");
            TryLock::new(Some(subscription))
        })
        .collect();
    let (took, results) = timed(on, |me| {
        let mut subscription = subscriptions[me]
            .try_take()
            .and_then(|mut mine| mine.take())
            .expect("each thread takes its own, once");
        subscription.set_batch_limit(64);
        let (table, mut state, mut sum) = (table(), vec![0u64; WORDS], 0u64);
        // The chunk that was asked for last, and whether it is this thread's.
        let (mut asked, mut mine) = (u64::MAX, false);
        loop {
            match subscription.try_next_batch() {
                Ok(batch) => {
                    for (seq, &request) in &batch {
                        sequential(request, work.sequential, |i, x| {
                            state[i] = state[i].wrapping_add(x);
                        });
                        let chunk = seq / CHUNK;
                        if chunk != asked {
                            asked = chunk;
                            mine = greedy.is_mine(dominoes::Work::chunk(chunk), me, on.threads);
                        }
                        if mine {
                            sum = sum.wrapping_add(parallel(request, work.parallel, &table));
                        }
                    }
                }
                Err(NoBatch::Closed) => break,
                Err(_) => match source.try_take() {
                    Some(mut source) => {
                        let before = source.next;
                        source.publish(work);
                        if source.next == before && on.is_crowded() {
                            thread::yield_now(); // full: somebody else has to run
                        }
                    }
                    None if on.is_crowded() => thread::yield_now(),
                    None => std::hint::spin_loop(),
                },
            }
        }
        (state, sum)
    });
    let sum = add(results.iter().map(|(_, sum)| *sum).collect());
    let outcome = |(state, _)| Outcome { state, sum };
    (took, results.into_iter().map(outcome).collect())
}

/// Checks that every strategy does the same work, all of it and once.
pub(crate) fn verify(work: Work, cores: usize) {
    let expected = plain(work);
    for strategy in Strategy::ALL {
        for threads in [1, 2, 3, 5] {
            let on = On {
                threads,
                cores,
                first: threads % cores,
            };
            for outcome in strategy.run(work, on).1 {
                assert!(
                    outcome == expected,
                    "{} on {threads} threads computes something else",
                    strategy.name()
                );
            }
        }
    }
}
