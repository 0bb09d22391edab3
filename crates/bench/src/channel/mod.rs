//! Throughput and latency of multicast channels: ours beside its nearest relatives, under one
//! driver.
//!
//! Each thread has a core. If there are too few, publishers share the first, and subscribers the
//! second ("split" pinning). Every subscriber of
//! every peer checks the content of each message and the order of each publisher's messages; where
//! the peer promises one order for all, a hash of the order must agree among subscribers. A thread
//! that finds a full or an empty channel spins for a moment and then yields.

pub(crate) mod peers;
pub(crate) mod report;

use dominoes_bench::rounds::Reading;
use dominoes_bench::topology;
use std::{
    hint::black_box,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

/// 64 bytes: publisher, number, and six words that follow from both.
pub(crate) type Message = [u64; 8];

/// Number of the message that ends a publisher's stream.
const END: u64 = u64::MAX;

#[inline(always)]
fn word(publisher: u64, number: u64) -> u64 {
    (publisher << 56 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Makes one publisher's messages.
#[derive(Debug)]
pub(crate) struct Source {
    publisher: u64,
    number: u64,
}

impl Source {
    /// The next message.
    #[inline(always)]
    pub(crate) fn message(&mut self) -> Message {
        let number = self.number;
        self.number += 1;
        Self::with(self.publisher, number)
    }

    #[inline(always)]
    fn with(publisher: u64, number: u64) -> Message {
        let word = word(publisher, number);
        [publisher, number, word, word, word, word, word, word]
    }
}

/// Checks what one subscriber sees.
#[derive(Debug)]
pub(crate) struct Check {
    next: [u64; 8],
    open: usize,
    /// Folds the order, if there is more than one publisher (otherwise the numbers say it all).
    order: u64,
    fold: bool,
}

impl Check {
    fn new(publishers: usize) -> Self {
        Check {
            next: [0; 8],
            open: publishers,
            order: 0,
            fold: publishers > 1,
        }
    }

    /// Takes note of a message.
    ///
    /// # Panics
    /// If it is not the one that is due from its publisher.
    #[inline(always)]
    pub(crate) fn see(&mut self, message: &Message) {
        let [publisher, number, rest @ ..] = *message;
        let word = word(publisher, number);
        let wrong = rest.iter().fold(0, |wrong, found| wrong | (found ^ word));
        let next = &mut self.next[publisher as usize & 7];
        if wrong != 0 || *next != number {
            return self.unusual(message);
        }
        *next = number + 1;
        if self.fold {
            self.order =
                (self.order.rotate_left(7) ^ publisher).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    }

    #[cold]
    fn unusual(&mut self, message: &Message) {
        let [publisher, number, rest @ ..] = *message;
        let word = word(publisher, number);
        assert!(
            rest.iter().all(|found| *found == word),
            "message {number} of publisher {publisher} is torn"
        );
        assert!(
            number == END,
            "message {number} of publisher {publisher} where {} is due",
            self.next[publisher as usize & 7]
        );
        self.open -= 1;
    }

    /// Whether every publisher's stream has ended.
    #[inline(always)]
    pub(crate) fn is_over(&self) -> bool {
        self.open == 0
    }

    fn total(&self) -> u64 {
        self.next.iter().sum()
    }
}

/// Spins for a moment, then yields. Used for every peer that waits by hand.
#[derive(Debug, Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// Waits a little, and longer each time.
    #[inline]
    pub(crate) fn wait(&mut self) {
        if self.0 < 4 {
            self.0 += 1;
            for _ in 0..16 {
                std::hint::spin_loop();
            }
        } else {
            thread::yield_now();
        }
    }

    /// There was something to do.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.0 = 0;
    }
}

/// One publisher of some channel.
pub(crate) trait Tx: Send + 'static {
    /// Publishes one message; waits while the channel is full.
    fn one(&mut self, message: Message);

    /// Publishes `n` messages by the widest call there is.
    fn many(&mut self, n: usize, source: &mut Source) {
        for _ in 0..n {
            self.one(source.message());
        }
    }
}

/// One subscriber of some channel.
pub(crate) trait Rx: Send + 'static {
    /// Shows new messages to `check`; waits if there is nothing.
    fn some(&mut self, check: &mut Check);
}

/// A point of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Point {
    /// Number of publishers.
    pub(crate) publishers: usize,
    /// Number of subscribers.
    pub(crate) subscribers: usize,
    /// Messages per publish call.
    pub(crate) batch: usize,
    /// Bound on messages in flight.
    pub(crate) capacity: usize,
}

/// Decides whether the two cores are as close to each other as they have ever been. On a shared
/// host the time that a cache line takes from core to core changes by several times for seconds on
/// end, so measurements from different times are not comparable.
#[derive(Debug)]
pub(crate) struct Distance {
    /// The shortest time that a line took from core to core, in nanoseconds.
    pub(crate) best_ns: f64,
    /// The remaining time to wait for it to come back.
    budget: Duration,
}

impl Distance {
    /// Looks for the shortest time for a while.
    pub(crate) fn new(budget: Duration) -> Self {
        let best_ns = (0..30).map(|_| line_ns()).fold(f64::INFINITY, f64::min);
        Distance { best_ns, budget }
    }

    /// Measures once while the cores are close, before and after; calm if they were.
    pub(crate) fn measure(&mut self, mut run: impl FnMut() -> f64) -> Reading<f64> {
        let mut are_close = || {
            let now = line_ns();
            self.best_ns = self.best_ns.min(now);
            now < 1.7 * self.best_ns
        };
        loop {
            let start = Instant::now();
            if are_close() {
                let value = run();
                if are_close() {
                    return Reading::calm(value);
                }
            }
            thread::sleep(Duration::from_millis(5));
            match self.budget.checked_sub(start.elapsed()) {
                Some(left) => self.budget = left,
                None => {
                    return Reading {
                        value: run(),
                        is_calm: false,
                    };
                }
            }
        }
    }
}

/// The time that a line takes from core to core now, in nanoseconds; 1 on a machine with one core.
fn line_ns() -> f64 {
    topology::line_transfer_ns().unwrap_or(1.0)
}

/// The core of a thread, publishers first, of `all` threads; `split` if there are too few cores.
fn core(thread: usize, all: usize, split: usize) -> usize {
    match all <= topology::cores().len() {
        true => thread,
        false => split,
    }
}

/// Runs the publishers for `window`, lets the subscribers finish, and returns messages per second
/// as published.
///
/// # Panics
/// If a check fails.
pub(crate) fn drive<X: Tx, R: Rx>(
    point: Point,
    one_order: bool,
    window: Duration,
    txs: Vec<X>,
    rxs: Vec<R>,
) -> f64 {
    assert_eq!(
        (txs.len(), rxs.len()),
        (point.publishers, point.subscribers)
    );
    let all = txs.len() + rxs.len();
    let start = Arc::new(Barrier::new(all + 1));
    let subscribers: Vec<_> = rxs
        .into_iter()
        .zip(point.publishers..)
        .map(|(mut rx, id)| {
            let start = start.clone();
            let mut check = Check::new(point.publishers);
            thread::spawn(move || {
                topology::pin_to(core(id, all, 1));
                start.wait();
                while !check.is_over() {
                    rx.some(&mut check);
                }
                (check, Instant::now())
            })
        })
        .collect();
    let publishers: Vec<_> = txs
        .into_iter()
        .enumerate()
        .map(|(id, mut tx)| {
            let start = start.clone();
            thread::spawn(move || {
                topology::pin_to(core(id, all, 0));
                let mut source = Source {
                    publisher: id as u64,
                    number: 0,
                };
                start.wait();
                // Each publisher reads the clock itself, every 64 messages: a thread that stops
                // them would need a core.
                let begin = Instant::now();
                while begin.elapsed() < window {
                    if point.batch == 1 {
                        for _ in 0..64 {
                            tx.one(source.message());
                        }
                    } else {
                        for _ in 0..64usize.div_ceil(point.batch) {
                            tx.many(point.batch, &mut source);
                        }
                    }
                }
                tx.one(Source::with(id as u64, END));
                (source.number, begin, tx)
            })
        })
        .collect();
    start.wait();
    let published: Vec<_> = publishers
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    let total: u64 = published.iter().map(|(number, ..)| number).sum();
    let seen: Vec<_> = subscribers
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    for (check, _) in &seen {
        assert_eq!(check.total(), total, "every subscriber sees every message");
        assert!(
            !one_order || check.order == seen[0].0.order,
            "all subscribers see one order"
        );
    }
    let begin = published.iter().map(|(_, begin, _)| *begin).min().unwrap();
    let end = seen.iter().map(|(_, end)| *end).max().unwrap();
    black_box(published);
    total as f64 / (end - begin).as_secs_f64()
}
