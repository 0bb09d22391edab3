//! Rows take turns: a slice each, again and again, on threads that are pinned once.
//!
//! A thread drives driver i of every row. Rows with fewer drivers leave the other threads asleep.
//! The measuring thread sleeps, too. Counting begins shortly after the slice, when the row's data
//! is in the caches. A slice in which a thread had to wait for its core is disturbed, and so is its
//! round; disturbed rounds are measured again while there is patience left, and otherwise kept and
//! counted. What looks wrong and may be the machine's doing is a [`Failure::Timing`], for the
//! caller to repeat.
//!
//! Each row has a clock, which stops while the row does: a segment that was sent at the end of
//! a slice is not late at the beginning of the next one, however long that took to come.

use core::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_netstack::time;

use crate::drivers::{Account, Driver, Row};
use crate::topology::{self, Distance, MAY_WAIT};

/// The beginning of a slice, which does not count.
const WARM_UP: Duration = Duration::from_millis(5);
/// Rounds that are measured even if the time is up.
const LEAST_ROUNDS: usize = 2;
/// How long a thread may take to report a slice.
const PATIENCE: Duration = Duration::from_secs(20);

/// Being held up for this time, in one slice, excuses a retransmission. The least timeout is ten
/// times that, but what two threads wait for adds up, and rows on an undisturbed machine wait for a
/// fraction of a millisecond.
const LONG_WAIT: Duration = Duration::from_millis(20);
/// A turn of this length was held up. It takes some ten microseconds. A thread that waits for a
/// core of this machine can read how long that was; one whose core the host gave away, or was
/// stopped, sees no more than this.
const HELD_UP: Duration = Duration::from_millis(1);

/// What one row did in one slice.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "report", derive(serde::Serialize))]
pub struct Sample {
    /// How long was counted.
    pub ns: u64,
    /// Payload bytes meanwhile.
    pub bytes: u64,
    /// Share of the time, 0 to 1, that the row's threads waited for a core; the worst of them.
    pub waited: f64,
    /// How far apart the cores were before the slice and after it; `None` if that changed
    /// meanwhile.
    pub distance: Option<Distance>,
}

impl Sample {
    /// Payload throughput.
    pub fn gbit_per_s(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.ns as f64
    }

    /// Whether a thread waited for its core for so large a part that the sample is not reliable.
    pub fn is_disturbed(&self) -> bool {
        self.waited > MAY_WAIT
    }
}

/// Why there are no figures.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// A row did something that no machine excuses: its bytes are wrong, or a thread
    /// panicked.
    Wrong(String),
    /// A row did something that only delayed threads excuse: it sent something again, or moved
    /// nothing.
    Timing {
        /// The symptom.
        what: String,
        /// How long a thread of the row was held up in the worst slice, as far as it noticed.
        held_up: Duration,
    },
}

impl Failure {
    /// Whether a thread was held up for long enough to explain it.
    pub fn is_explained(&self) -> bool {
        matches!(self, Failure::Timing { held_up, .. } if *held_up >= LONG_WAIT)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Wrong(what) => f.write_str(what),
            Failure::Timing { what, held_up } => {
                write!(
                    f,
                    "{what}; held up for {:.0} ms",
                    held_up.as_secs_f64() * 1e3
                )
            }
        }
    }
}

impl core::error::Error for Failure {}

impl From<String> for Failure {
    fn from(what: String) -> Failure {
        Failure::Wrong(what)
    }
}

/// How [`sample`] went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampled {
    /// Whether it was enough before the time was up.
    pub enough: bool,
    /// Slices that were run.
    pub slices: usize,
    /// Slices in which a thread had to wait for its core.
    pub disturbed: usize,
}

/// All rows, measured.
#[derive(Debug)]
pub struct Measured {
    /// For each round, a sample of each row, in the order of the rows.
    pub rounds: Vec<Vec<Sample>>,
    /// How many of these rounds were disturbed.
    pub disturbed: usize,
    /// How many rounds were measured again.
    pub repeated: usize,
    /// For each row, the accounts of its drivers from a slice under observation.
    pub accounts: Vec<Vec<Account>>,
    /// For each thread, the core that it was on and whether it was pinned.
    pub threads: Vec<(Option<usize>, bool)>,
    /// For each row.
    pub oddities: Vec<Oddities>,
}

/// Events of a row that need an explanation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Oddities {
    /// Segments that were sent again, which is excused where a thread was held up for long.
    pub sent_again: u64,
    /// Segments that were sent out of order.
    pub out_of_order: u64,
    /// How long a thread was held up in the worst slice.
    pub held_up: Duration,
}

/// An order to the threads.
#[derive(Clone, Copy)]
struct Order {
    number: u64,
    given: Instant,
    row: usize,
    /// When the row's own clock was at zero.
    clock: Instant,
    slice: Duration,
    observe: bool,
}

#[derive(Default)]
struct Control {
    order: Mutex<Option<Order>>,
    /// No more orders come.
    over: AtomicBool,
    changed: Condvar,
    stop: AtomicBool,
}

impl Control {
    fn give(&self, order: Option<Order>) {
        let mut place = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        // ORDERING: Relaxed, the lock orders it. At the end nothing is to run on.
        self.stop.store(order.is_none(), Ordering::Relaxed);
        match order {
            Some(_) => *place = order,
            None => self.over.store(true, Ordering::Relaxed),
        }
        drop(place);
        self.changed.notify_all();
    }

    /// The next order after number `after`; `None` when there are no more.
    fn next(&self, after: u64) -> Option<Order> {
        let mut place = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.over.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(order) = *place
                && order.number > after
            {
                return Some(order);
            }
            place = self
                .changed
                .wait(place)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The results of a thread in a slice.
struct Driven {
    sample: Sample,
    /// The row's clock at the last turn.
    clock: Duration,
    /// How long turns were held up.
    held_up: Duration,
}

/// Runs one slice of one driver. The first driver ends it for all.
fn drive(driver: &mut dyn Driver, order: Order, first: bool, stop: &AtomicBool) -> Driven {
    driver.observe(order.observe);
    let begin = Instant::now();
    let whole = (begin, driver.bytes(), topology::waited_ns());
    let mut from = None;
    let (mut last, mut held_up) = (begin, Duration::ZERO);
    loop {
        let now = Instant::now();
        if now - last >= HELD_UP {
            held_up += now - last;
        }
        last = now;
        if from.is_none() && now - begin >= WARM_UP {
            from = Some((now, driver.bytes(), topology::waited_ns()));
        }
        let clock = (now - order.clock).as_nanos() as u64;
        driver.turn(time::Instant::from_nanos(clock));
        // ORDERING: Relaxed both, a wish.
        if first && now - begin >= order.slice + WARM_UP {
            stop.store(true, Ordering::Relaxed);
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    // A slice that was over before it was warm has nothing else.
    let (start, bytes, waited) = from.unwrap_or(whole);
    let ns = (start.elapsed().as_nanos() as u64).max(1);
    let sample = Sample {
        ns,
        bytes: driver.bytes() - bytes,
        waited: (topology::waited_ns() - waited) as f64 / ns as f64,
        distance: None,
    };
    Driven {
        sample,
        clock: last - order.clock,
        held_up,
    }
}

/// One thread: pins itself, and drives its driver of whatever row is on.
fn work(
    id: usize,
    mut drivers: Vec<Option<Box<dyn Driver>>>,
    control: &Control,
    done: &mpsc::Sender<Report>,
) -> Vec<Option<Box<dyn Driver>>> {
    let pinned = id < topology::cores().len() && topology::pin_to(id);
    let mut number = 0;
    while let Some(order) = control.next(number) {
        number = order.number;
        if let Some(driver) = drivers.get_mut(order.row).and_then(Option::as_mut) {
            let before = driver.account();
            let late = order.given.elapsed();
            let waited = topology::waited_ns();
            let driven = drive(driver.as_mut(), order, id == 0, &control.stop);
            let waited = Duration::from_nanos(topology::waited_ns() - waited);
            let core = topology::current_core();
            // The measuring thread waits for this, unless another thread panicked.
            let _ = done.send(Report {
                id,
                sample: driven.sample,
                clock: driven.clock,
                missed: late + waited.max(driven.held_up),
                core,
                pinned,
                account: driver.account().since(&before),
            });
        }
    }
    drivers
}

struct Report {
    id: usize,
    sample: Sample,
    clock: Duration,
    /// How long the thread was held up, from when the order was given.
    missed: Duration,
    core: Option<usize>,
    pinned: bool,
    account: Account,
}

/// Gives the orders.
struct Conductor<'a> {
    control: &'a Control,
    done: mpsc::Receiver<Report>,
    number: u64,
    slice: Duration,
    clocks: Vec<Duration>,
    /// For messages.
    names: Vec<String>,
    drivers: Vec<usize>,
    threads: Vec<(Option<usize>, bool)>,
    /// How long a thread of each row was held up in the worst slice, the time included in which it
    /// had its order and did not begin.
    longest_wait: Vec<Duration>,
}

impl Conductor<'_> {
    /// One slice of one row: its sample, and the accounts of its drivers.
    fn slice(&mut self, row: usize, observe: bool) -> Result<(Sample, Vec<Account>), Failure> {
        self.number += 1;
        let begin = Instant::now();
        self.control.give(Some(Order {
            number: self.number,
            given: begin,
            row,
            clock: begin - self.clocks[row],
            slice: self.slice,
            observe,
        }));
        let mut whole = Sample {
            ns: 0,
            bytes: 0,
            waited: 0.0,
            distance: None,
        };
        let mut accounts = vec![Account::default(); self.drivers[row]];
        for _ in 0..self.drivers[row] {
            let report = self
                .done
                .recv_timeout(PATIENCE)
                .map_err(|_| Failure::Timing {
                    what: format!("{}: a thread does not end its slice", self.names[row]),
                    held_up: PATIENCE,
                })?;
            // The first driver's time counts.
            if report.id == 0 {
                whole.ns = report.sample.ns;
            }
            let longest = &mut self.longest_wait[row];
            *longest = report.missed.max(*longest);
            let clock = &mut self.clocks[row];
            *clock = report.clock.max(*clock);
            whole.bytes += report.sample.bytes;
            whole.waited = whole.waited.max(report.sample.waited);
            accounts[report.id] = Account {
                slice_ns: report.sample.ns,
                ..report.account
            };
            self.threads[report.id] = (report.core, report.pinned);
        }
        Ok((whole, accounts))
    }

    /// One slice of every row, beginning with another one each time.
    fn round(&mut self, first: usize) -> Result<Vec<Sample>, Failure> {
        let rows = self.drivers.len();
        let mut samples = vec![
            Sample {
                ns: 1,
                bytes: 0,
                waited: 0.0,
                distance: None,
            };
            rows
        ];
        let mut before = Distance::now();
        for i in 0..rows {
            let row = (first + i) % rows;
            samples[row] = self.slice(row, false)?.0;
            let after = Distance::now();
            samples[row].distance = (before == after).then_some(after);
            before = after;
        }
        Ok(samples)
    }
}

/// Measures `rounds` rounds of all rows, in slices of `slice`, and reports to `progress` how many
/// are done and how many are wanted.
pub fn measure(
    rows: Vec<Row>,
    slice: Duration,
    rounds: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Measured, Failure> {
    measure_until(rows, slice, rounds, None, progress)
}

/// As [`measure`], with fewer rounds, but at least two, if they would take longer than `until`.
pub fn measure_until(
    rows: Vec<Row>,
    slice: Duration,
    rounds: usize,
    until: Option<Instant>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Measured, Failure> {
    let measure = |conductor: &mut Conductor<'_>| conduct(conductor, rounds, until, progress);
    let (measured, oddities) = with_threads(rows, slice, measure)?;
    Ok(Measured {
        oddities,
        ..measured
    })
}

/// Drives a row slice by slice until `enough` returns true, or `within` is over.
pub fn sample(
    row: Row,
    slice: Duration,
    within: Duration,
    enough: &mut dyn FnMut() -> bool,
) -> Result<Sampled, Failure> {
    let begin = Instant::now();
    let (sampled, _) = with_threads(vec![row], slice, |conductor| {
        let mut sampled = Sampled::default();
        loop {
            let (sample, _) = conductor.slice(0, false)?;
            sampled.slices += 1;
            sampled.disturbed += usize::from(sample.is_disturbed());
            sampled.enough = enough();
            if sampled.enough || begin.elapsed() >= within {
                return Ok(sampled);
            }
        }
    })?;
    Ok(sampled)
}

/// Gives the drivers of all rows to threads while `conduct` gives orders, and checks the rows
/// afterwards.
fn with_threads<R>(
    mut rows: Vec<Row>,
    slice: Duration,
    conduct: impl FnOnce(&mut Conductor<'_>) -> Result<R, Failure>,
) -> Result<(R, Vec<Oddities>), Failure> {
    let threads = rows.iter().map(|row| row.drivers.len()).max().unwrap_or(0);
    let lengths: Vec<usize> = rows.iter().map(|row| row.drivers.len()).collect();
    let names = rows.iter().map(|row| format!("{row:?}")).collect();
    let clocks = rows
        .iter()
        .map(|row| Duration::from_nanos(row.clock_ns))
        .collect();
    let mut by_thread: Vec<Vec<Option<Box<dyn Driver>>>> = Vec::new();
    by_thread.resize_with(threads, Vec::new);
    for row in &mut rows {
        let mut drivers = row.drivers.drain(..);
        for thread in &mut by_thread {
            thread.push(drivers.next());
        }
    }
    let control = Control::default();
    let (sender, done) = mpsc::channel();
    thread::scope(|scope| {
        let spawn = |(id, drivers)| {
            let (control, sender) = (&control, sender.clone());
            scope.spawn(move || work(id, drivers, control, &sender))
        };
        let handles: Vec<_> = by_thread.into_iter().enumerate().map(spawn).collect();
        let mut conductor = Conductor {
            control: &control,
            done,
            number: 0,
            slice,
            clocks,
            names,
            drivers: lengths,
            threads: vec![(None, false); threads],
            longest_wait: vec![Duration::ZERO; rows.len()],
        };
        let result = conduct(&mut conductor);
        control.give(None);
        for handle in handles {
            let drivers = handle.join().map_err(|_| "a thread panicked".to_owned())?;
            for (row, driver) in rows.iter_mut().zip(drivers) {
                row.drivers.extend(driver);
            }
        }
        for (row, &held_up) in rows.iter().zip(&conductor.longest_wait) {
            row.check()?;
            let again = row.sent_again();
            if again > 0 && held_up < LONG_WAIT {
                let what = format!("{row:?}: the peer saw {again} segments sent again");
                return Err(Failure::Timing { what, held_up });
            }
        }
        let oddities = rows
            .iter()
            .zip(&conductor.longest_wait)
            .map(|(row, held_up)| Oddities {
                sent_again: row.sent_again(),
                out_of_order: row.out_of_order(),
                held_up: *held_up,
            })
            .collect();
        result.map(|result| (result, oddities))
    })
}

fn conduct(
    conductor: &mut Conductor<'_>,
    rounds: usize,
    until: Option<Instant>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Measured, Failure> {
    // Once for nothing: caches, branch predictors, congestion windows.
    let begin = Instant::now();
    conductor.round(0)?;
    // The slices under observation take as long as a round, and so does the round that is begun
    // last.
    let until = until.and_then(|until| until.checked_sub(2 * begin.elapsed()));
    let mut kept = Vec::new();
    let (mut disturbed, mut repeated) = (0, 0);
    while kept.len() < rounds {
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        if is_over && kept.len() >= LEAST_ROUNDS {
            break;
        }
        let samples = conductor.round(kept.len())?;
        if samples.iter().any(Sample::is_disturbed) {
            if repeated < rounds / 2 && !is_over {
                repeated += 1;
                continue;
            }
            disturbed += 1;
        }
        kept.push(samples);
        progress(kept.len(), rounds);
    }
    let mut accounts = Vec::new();
    for row in 0..conductor.drivers.len() {
        let (last, account) = conductor.slice(row, true)?;
        let before = kept.last().map_or(last, |round: &Vec<Sample>| round[row]);
        if last.bytes + before.bytes == 0 && conductor.slice >= LONG_WAIT {
            return Err(Failure::Timing {
                what: format!("{} stands still", conductor.names[row]),
                held_up: conductor.longest_wait[row],
            });
        }
        accounts.push(account);
    }
    Ok(Measured {
        rounds: kept,
        disturbed,
        repeated,
        accounts,
        threads: conductor.threads.clone(),
        oddities: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    struct Counter {
        turns: u64,
        together: Arc<AtomicU64>,
        latest: time::Instant,
    }

    impl Driver for Counter {
        fn turn(&mut self, now: time::Instant) -> usize {
            assert!(now >= self.latest, "a row's clock went back");
            self.latest = now;
            self.turns += 1;
            self.together.fetch_add(1, Ordering::Relaxed);
            1
        }

        fn bytes(&self) -> u64 {
            self.turns
        }

        fn check(&self) -> Result<(), String> {
            if self.turns > 0 {
                Ok(())
            } else {
                Err("it never had a turn".to_owned())
            }
        }
    }

    #[test]
    fn every_driver_of_every_row_has_its_turn_and_is_counted() {
        let together = Arc::new(AtomicU64::new(0));
        let driver = || -> Box<dyn Driver> {
            Box::new(Counter {
                turns: 0,
                together: Arc::clone(&together),
                latest: time::Instant::ZERO,
            })
        };
        let rows = vec![
            Row::new("one", vec![driver()]),
            Row::new("two", vec![driver(), driver()]),
        ];
        let measured = measure(rows, Duration::from_millis(2), 3, &mut |_, _| ()).unwrap();
        assert_eq!(measured.rounds.len(), 3);
        assert_eq!(
            measured.accounts.iter().map(Vec::len).collect::<Vec<_>>(),
            [1, 2]
        );
        let counted: u64 = measured.rounds.iter().flatten().map(|s| s.bytes).sum();
        assert!(counted > 0 && counted <= together.load(Ordering::Relaxed));
    }

    #[test]
    fn the_clock_of_a_row_stands_still_between_slices() {
        struct Clock(Arc<AtomicU64>);
        impl Driver for Clock {
            fn turn(&mut self, now: time::Instant) -> usize {
                self.0.store(now.as_nanos(), Ordering::Relaxed);
                1
            }

            fn bytes(&self) -> u64 {
                0
            }

            fn check(&self) -> Result<(), String> {
                Ok(())
            }
        }
        const PAUSE: Duration = Duration::from_millis(50);
        let clock = Arc::new(AtomicU64::new(0));
        let row = Row::new("clock", vec![Box::new(Clock(Arc::clone(&clock)))]);
        let (begin, set_up, mut pauses) = (Instant::now(), row.clock_ns, 0);
        let slice = Duration::from_millis(1);
        let within = Duration::from_secs(60);
        let sampled = sample(row, slice, within, &mut || {
            thread::sleep(PAUSE);
            pauses += 1;
            pauses == 3
        });
        assert!(sampled.unwrap().enough);
        let told = Duration::from_nanos(clock.load(Ordering::Relaxed) - set_up);
        assert!(told <= begin.elapsed() - 3 * PAUSE, "{told:?}");
    }

    /// A driver with a given error.
    struct Complains {
        bytes: u64,
        sent_again: u64,
        wrong: bool,
        turn: Duration,
    }

    impl Driver for Complains {
        fn turn(&mut self, _now: time::Instant) -> usize {
            thread::sleep(self.turn);
            self.bytes += 1;
            1
        }

        fn bytes(&self) -> u64 {
            self.bytes
        }

        fn sent_again(&self) -> u64 {
            self.sent_again
        }

        fn check(&self) -> Result<(), String> {
            match self.wrong {
                true => Err("wrong bytes".to_owned()),
                false => Ok(()),
            }
        }
    }

    fn one_slice(sent_again: u64, wrong: bool, turn: Duration) -> Result<Sampled, Failure> {
        let driver = Complains {
            bytes: 0,
            sent_again,
            wrong,
            turn,
        };
        let row = Row::new("complains", vec![Box::new(driver)]);
        sample(row, Duration::from_millis(1), Duration::ZERO, &mut || false)
    }

    #[test]
    fn a_row_without_enough_samples_ends_when_its_time_is_up() {
        let sampled = one_slice(0, false, Duration::ZERO).unwrap();
        assert_eq!((sampled.enough, sampled.slices), (false, 1));
    }

    #[test]
    fn what_is_sent_again_is_excused_if_a_turn_took_long_and_wrong_bytes_are_not() {
        let long = LONG_WAIT + Duration::from_millis(5);
        assert!(one_slice(3, false, long).is_ok());
        let wrong = Failure::Wrong("complains on 1: wrong bytes".to_owned());
        assert_eq!(one_slice(3, true, long), Err(wrong));
    }

    #[test]
    fn only_a_long_wait_explains_a_failure() {
        let timing = |held_up| Failure::Timing {
            what: "it stands still".to_owned(),
            held_up,
        };
        assert!(timing(LONG_WAIT).is_explained());
        assert!(!timing(LONG_WAIT / 2).is_explained());
        assert!(!Failure::Wrong(String::new()).is_explained());
    }

    #[test]
    fn two_rounds_are_measured_although_the_time_is_up() {
        let driver = Complains {
            bytes: 0,
            sent_again: 0,
            wrong: false,
            turn: Duration::ZERO,
        };
        let rows = vec![Row::new("complains", vec![Box::new(driver)])];
        let slice = Duration::from_millis(1);
        let now = Some(Instant::now());
        let measured = measure_until(rows, slice, 1_000, now, &mut |_, _| ()).unwrap();
        assert_eq!((measured.rounds.len(), measured.repeated), (2, 0));
    }
}
