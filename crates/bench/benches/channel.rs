//! `cargo bench channel [-- --quick] [--rounds N] [--millis N]
//! [--capacity N] [--batch N] [--shape PxS] [--peer NAME]`
//!
//! The multicast ring beside its nearest relatives: 64-byte `Copy` messages, publishers on core 0,
//! subscribers on core 1. Rounds are interleaved: each round measures every peer at every point
//! once; figures are medians over the rounds, with the least and the most in brackets.
//!
//! Peers are compared at equal capacity, the bound on messages in flight. Ours keeps more slots
//! than that where the payload has no destructor (printed first); with `--capacity 65536` all have
//! the same memory. On a machine that does other things as well, run the binary under `chrt -f 5`,
//! and expect to wait for moments in which a line moves between the cores as fast as it can.

#[path = "../src/channel/mod.rs"]
mod channel;

use channel::{
    Distance, Message, Point,
    peers::Peer,
    report::{FIGURE_5_3, PUBLISHED_CAPACITY, Report, Row, TABLE_5_2},
};
use dominoes::{Channel, Lifo, Pool, Publish, SpinYield, Unordered, WorkShare};
use dominoes_bench::{report::Run, rounds, spread::Spread, start, topology};
use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

#[derive(Debug, clap::Parser)]
struct Options {
    #[arg(long, default_value_t = 9, default_value_if("quick", "true", "5"))]
    rounds: usize,
    #[arg(long, default_value_t = 60, default_value_if("quick", "true", "25"))]
    millis: u64,
    #[arg(long)]
    quick: bool,
    #[arg(long = "capacity", default_values_t = [1024, 4096])]
    capacities: Vec<usize>,
    #[arg(long = "batch", default_values_t = [1, 16, 64])]
    batches: Vec<usize>,
    #[arg(
        long = "shape",
        value_parser = shape,
        default_values = ["1x1", "1x2", "1x4", "2x1", "2x2", "2x4", "4x1", "4x2", "4x4"]
    )]
    shapes: Vec<(usize, usize)>,
    #[arg(long = "peer", default_values = Peer::ALL.map(Peer::name))]
    peers: Vec<Peer>,
}

impl Options {
    fn window(&self) -> Duration {
        Duration::from_millis(self.millis)
    }

    /// Whether neither shape, capacity, batch nor peer was chosen.
    fn is_whole(&self) -> bool {
        let channels = (self.shapes.len(), self.peers.len());
        (self.capacities.len(), self.batches.len(), channels) == (2, 3, (9, Peer::ALL.len()))
    }
}

/// How long to wait, altogether, for moments in which the cores are close.
const PATIENCE: Duration = Duration::from_secs(120);

fn shape(text: &str) -> Result<(usize, usize), &'static str> {
    let numbers = text.split_once('x');
    let numbers = numbers.and_then(|(p, s)| Some((p.parse().ok()?, s.parse().ok()?)));
    numbers.ok_or("publishers x subscribers, like 2x4")
}

/// The other shapes of table 5.2 and figure 5.3: ours alone, one message at a time.
fn published_shapes(options: &Options) -> Vec<Row> {
    let figure = FIGURE_5_3.map(|subscribers| (1, subscribers));
    let mut shapes: Vec<(usize, usize)> = TABLE_5_2.iter().map(|(shape, _)| *shape).collect();
    shapes.extend(figure);
    shapes.sort_unstable();
    shapes.dedup();
    shapes.retain(|shape| !options.shapes.contains(shape));
    let row = |(publishers, subscribers)| {
        let point = Point {
            publishers,
            subscribers,
            batch: 1,
            capacity: PUBLISHED_CAPACITY,
        };
        Row::new(point, Peer::Dominoes)
    };
    shapes.into_iter().map(row).collect()
}

fn main() -> ExitCode {
    start::main("channel", run)
}

fn run(options: Options) -> Result<(), String> {
    let run = Run::begin("channel");
    let mut report = Report::default();
    for &capacity in &options.capacities {
        for &batch in &options.batches {
            for &(publishers, subscribers) in &options.shapes {
                let point = Point {
                    publishers,
                    subscribers,
                    batch,
                    capacity,
                };
                let peers = options.peers.iter().filter(|peer| peer.can(point));
                report.rows.extend(peers.map(|peer| Row::new(point, *peer)));
            }
        }
    }
    if options.is_whole() {
        report.rows.extend(published_shapes(&options));
    }
    for &capacity in &options.capacities {
        let (_, log) = dominoes::channel::<Message, dominoes::SpinYield>(capacity);
        println!(
            "dominoes, capacity {capacity}: {} slots, {} KiB of storage",
            log.slots(),
            log.slots() * 64 / 1024
        );
    }
    println!(
        "publishers on core 0, subscribers on core 1, {} rounds of {:?} a point",
        options.rounds,
        options.window()
    );
    let mut distance = Distance::new(PATIENCE);
    let all = rounds::by_turns(
        &mut report.rows,
        options.rounds,
        &mut rounds::tell,
        |row, _| Ok::<_, String>(distance.measure(|| row.peer.run(row.point, options.window()))),
    )?;
    let apart = all.iter().flatten().filter(|reading| !reading.is_calm);
    let share = 100.0 * apart.count() as f64 / (options.rounds * report.rows.len()) as f64;
    for (row, readings) in report.rows.iter_mut().zip(all) {
        row.messages_per_second = readings;
    }
    report
        .figures
        .push(("a line from core to core, ns".to_string(), distance.best_ns));
    report.figures.push((
        "windows with the cores further apart than that in spite of waiting, %".to_string(),
        share,
    ));
    work_sharing(&mut report, options.window());
    latency(&mut report, if options.rounds > 5 { 4000 } else { 1500 });
    run.end(report.tables())
}

/// The median; not a number of nothing.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Spread::of(values).map_or(f64::NAN, |spread| spread.median)
}

/// Messages per second through the kinds of channel that give each entry to one worker, the same
/// core split as above.
fn work_sharing(report: &mut Report, window: Duration) {
    fn run<P: Pool<Message> + 'static>(sides: usize, window: Duration) -> f64 {
        let (publisher, share) = WorkShare::<Message, P, SpinYield>::open(4096);
        let workers: Vec<_> = (0..sides)
            .map(|_| {
                let mut worker = share.join().unwrap();
                thread::spawn(move || {
                    topology::pin_to(1);
                    let (mut count, mut sum) = (0u64, 0u64);
                    while let Ok(message) = worker.take(None) {
                        assert_eq!(message[0], message[7], "torn");
                        count += 1;
                        sum = sum.wrapping_add(message[0]);
                    }
                    (count, sum)
                })
            })
            .collect();
        let start = Instant::now();
        let publishers: Vec<_> = (0..sides)
            .map(|_| {
                let mut publisher = publisher.clone();
                thread::spawn(move || {
                    topology::pin_to(0);
                    let (mut count, mut sum) = (0u64, 0u64);
                    while start.elapsed() < window {
                        for _ in 0..64 {
                            publisher.put([count; 8]).unwrap();
                            sum = sum.wrapping_add(count);
                            count += 1;
                        }
                    }
                    (count, sum)
                })
            })
            .collect();
        drop(publisher);
        let total = |threads: Vec<thread::JoinHandle<(u64, u64)>>| {
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .fold((0, 0u64), |all, one| {
                    (all.0 + one.0, all.1.wrapping_add(one.1))
                })
        };
        let (published, taken) = (total(publishers), total(workers));
        assert_eq!(published, taken, "every entry goes to one worker");
        taken.0 as f64 / start.elapsed().as_secs_f64()
    }
    for sides in [1, 2, 4] {
        let lifo = (0..7).map(|_| run::<Lifo<Message>>(sides, window));
        let unordered = (0..7).map(|_| run::<Unordered<Message>>(sides, window));
        report.figures.push((
            format!("work sharing, LIFO, {sides}x{sides}, million/s"),
            median(lifo) / 1e6,
        ));
        report.figures.push((
            format!("work sharing, unordered, {sides}x{sides}, million/s"),
            median(unordered) / 1e6,
        ));
    }
}

/// Time from a publish to the moment the sleeping subscriber on the other core has the message, in
/// nanoseconds, medians; both kinds of channel in turn.
fn latency(report: &mut Report, times: usize) {
    let base = Instant::now();
    let now = move || base.elapsed().as_nanos() as u64;
    /// Long enough for the subscriber to be asleep.
    const PAUSE: Duration = Duration::from_micros(300);

    let ours = |times: usize| {
        let (mut publisher, log) = dominoes::channel::<u64, dominoes::Park>(64);
        let mut subscription = log.subscribe().unwrap();
        let reader = thread::spawn(move || {
            topology::pin_to(1);
            let mut costs = Vec::new();
            while let Some(batch) = subscription.next_batch() {
                let seen = now();
                costs.extend(batch.iter().map(|(_, sent)| (seen - sent) as f64));
            }
            costs
        });
        topology::pin_to(0);
        for _ in 0..times {
            thread::sleep(PAUSE);
            publisher.publish(now()).unwrap();
        }
        drop(publisher);
        reader.join().unwrap()
    };
    let theirs = |times: usize| {
        let (sender, receiver) = crossbeam_channel::bounded::<u64>(64);
        let reader = thread::spawn(move || {
            topology::pin_to(1);
            let mut costs = Vec::new();
            while let Ok(sent) = receiver.recv() {
                costs.push((now() - sent) as f64);
            }
            costs
        });
        topology::pin_to(0);
        for _ in 0..times {
            thread::sleep(PAUSE);
            sender.send(now()).unwrap();
        }
        drop(sender);
        reader.join().unwrap()
    };
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        here.extend(ours(times / 10));
        there.extend(theirs(times / 10));
    }
    let (here, there) = (median(here), median(there));
    report
        .figures
        .push(("publish to wake-up (Park), ns".to_string(), here));
    report
        .figures
        .push(("crossbeam-channel send to wake-up, ns".to_string(), there));
    report.waking = Some(here / there);
}
