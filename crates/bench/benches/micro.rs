//! `cargo bench micro [FILTER] [-- --quick]`
//!
//! The cost of single calls of the ring and its companions, on one thread with warm caches: no
//! other thread touches a line, so this is the cost of the instructions and not of the distance
//! between cores, which `channel` measures. And the cost of a timer, by the number of running ones,
//! in the hashed hierarchical wheel, a binary heap and a sorted map: Sizemore 2011, section 3.2.5,
//! asks for start and cancel in constant time and gives no figures. Criterion's own options apply;
//! results are in `target/criterion`. About a minute and a half; `--quick` takes a few seconds.
//!
//! Names are `operation/publishers/entries a call/subscriptions`. A publisher is `solo` if there is
//! no other, and `shared` if there is one, which is quiet. Times are per call; throughput is in
//! entries.

use criterion::{BatchSize, Bencher, BenchmarkId, Criterion, Throughput};
use dominoes::replicated::{MapOp, Replicated};
use dominoes::{
    EventCount, Park, ReadBatch, Spin, SpinYield, TryLock, Verdicts, Wait, Wheel, batch_records,
};
use dominoes_bench::micro::timers::{AHEAD, Heap, Map, Timers, filled};
use dominoes_bench::micro::{CAPACITY, Others, Ring};
use dominoes_bench::targets;
use dominoes_testkit::Rng;
use std::{
    collections::HashMap,
    ffi::OsString,
    hint::black_box,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

/// Set in the process whose arguments are for criterion alone, which reads them from the process
/// and not from here.
const ARGUMENTS_ARE_CLEAN: &str = "DOMINOES_BENCH_MICRO";

const BATCHES: [usize; 3] = [1, 16, 64];
const SUBSCRIBERS: [usize; 3] = [1, 2, 4];

fn main() -> ExitCode {
    if std::env::var_os(ARGUMENTS_ARE_CLEAN).is_none() {
        return match targets::arguments("micro") {
            Some(arguments) => again(&arguments),
            None => ExitCode::SUCCESS,
        };
    }
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .sample_size(40)
        .configure_from_args();
    publish(&mut criterion);
    read(&mut criterion);
    refused(&mut criterion);
    members(&mut criterion);
    beside(&mut criterion);
    waiting(&mut criterion);
    replicated(&mut criterion);
    timers::<Wheel<u64>>(&mut criterion);
    timers::<Heap>(&mut criterion);
    timers::<Map>(&mut criterion);
    criterion.final_summary();
    ExitCode::SUCCESS
}

/// Runs this program with `arguments` alone.
fn again(arguments: &[OsString]) -> ExitCode {
    let run = std::env::current_exe().and_then(|program| {
        Command::new(program)
            .args(arguments)
            .arg("--bench")
            .env(ARGUMENTS_ARE_CLEAN, "1")
            .status()
    });
    match run {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("micro: cannot be started again: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Times `call` only, with `rest` after every block of at most `block` calls.
fn in_blocks<T>(
    bencher: &mut Bencher<'_>,
    block: usize,
    state: &mut T,
    before: impl Fn(&mut T, usize),
    call: impl Fn(&mut T),
    rest: impl Fn(&mut T),
) {
    bencher.iter_custom(|iterations| {
        let (mut left, mut time) = (iterations, Duration::ZERO);
        while left > 0 {
            let calls = left.min(block as u64);
            before(state, calls as usize);
            let start = Instant::now();
            for _ in 0..calls {
                call(state);
            }
            time += start.elapsed();
            rest(state);
            left -= calls;
        }
        time
    });
}

fn name(others: Others, batch: usize, subscribers: usize) -> String {
    format!("{}/{batch}/{subscribers}", others.name())
}

/// Publishing while there is room; subscriptions let go of everything outside the time.
fn publish(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("publish");
    for others in [Others::None, Others::Quiet] {
        for batch in BATCHES {
            for subscribers in SUBSCRIBERS {
                group.throughput(Throughput::Elements(batch as u64));
                let id = BenchmarkId::from_parameter(name(others, batch, subscribers));
                group.bench_function(id, |bencher| {
                    let mut ring = Ring::<SpinYield>::new(others, subscribers, batch);
                    in_blocks(
                        bencher,
                        CAPACITY / batch,
                        &mut ring,
                        |_, _| (),
                        Ring::publish,
                        Ring::drain,
                    );
                });
            }
        }
    }
}

/// Taking batches, looking at every entry, and releasing them: one call is all subscriptions, a
/// batch each.
fn read(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("read");
    for batch in BATCHES {
        for subscribers in SUBSCRIBERS {
            group.throughput(Throughput::Elements((batch * subscribers) as u64));
            let id = BenchmarkId::from_parameter(name(Others::None, batch, subscribers));
            group.bench_function(id, |bencher| {
                let mut ring = Ring::<SpinYield>::new(Others::None, subscribers, batch);
                in_blocks(
                    bencher,
                    CAPACITY / batch,
                    &mut ring,
                    |ring, calls| (0..calls).for_each(|_| ring.publish()),
                    |ring| {
                        assert_eq!(ring.read(), (batch * subscribers) as u64);
                    },
                    |_| (),
                );
            });
        }
    }
}

/// A map with two replicas: a write, a read, and a write with the read that applies it elsewhere.
fn replicated(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("replicated");
    let builder = Replicated::builder(HashMap::new()).replicas(2);
    let map = builder.build().expect("the settings are right");
    let [mut here, mut there] = [0, 1].map(|id| map.handle_on(id).expect("it is there"));
    let insert = || MapOp::Insert(black_box(1u64), 1u64);
    group.bench_function("write", |bencher| bencher.iter(|| here.write(insert())));
    group.bench_function("read", |bencher| bencher.iter(|| here.read(HashMap::len)));
    group.bench_function("write, read elsewhere", |bencher| {
        bencher.iter(|| (here.write(insert()), there.read(HashMap::len)));
    });
}

/// The cost of a call that finds the ring full or empty, and of reading a position again or
/// releasing without reading.
fn refused(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("nothing to do");
    for others in [Others::None, Others::Quiet] {
        let id = BenchmarkId::new("try_publish when full", others.name());
        group.bench_function(id, |bencher| {
            let mut ring = Ring::<SpinYield>::new(others, 1, 1);
            (0..CAPACITY).for_each(|_| ring.publish());
            bencher.iter(|| assert!(ring.publisher.try_publish(black_box([0; 8])).is_err()));
        });
    }
    group.bench_function("poll when empty", |bencher| {
        let mut ring = Ring::<SpinYield>::new(Others::None, 1, 1);
        bencher.iter(|| assert_eq!(ring.subscriptions[0].poll(), 0));
    });
    group.bench_function("try_next_batch when empty", |bencher| {
        let mut ring = Ring::<SpinYield>::new(Others::None, 1, 1);
        bencher.iter(|| assert!(ring.subscriptions[0].try_next_batch().is_err()));
    });
    group.bench_function("get", |bencher| {
        let mut ring = Ring::<SpinYield>::new(Others::None, 1, 1);
        ring.publish();
        ring.subscriptions[0].poll();
        bencher.iter(|| black_box(ring.subscriptions[0].get(black_box(0))).is_some());
    });
    group.bench_function("advance_to over one entry", |bencher| {
        let mut ring = Ring::<SpinYield>::new(Others::None, 1, 1);
        in_blocks(
            bencher,
            CAPACITY,
            &mut ring,
            |ring, calls| {
                (0..calls).for_each(|_| ring.publish());
                ring.subscriptions[0].poll();
            },
            |ring| {
                let position = ring.subscriptions[0].position();
                ring.subscriptions[0].advance_to(position + 1);
            },
            |_| (),
        );
    });
}

/// Coming and going.
fn members(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("members");
    for others in [0, 3] {
        let ring = || Ring::<SpinYield>::new(Others::None, 1 + others, 1);
        group.bench_function(
            BenchmarkId::new("subscribe and leave, beside", 1 + others),
            |bencher| {
                let ring = ring();
                bencher.iter(|| drop(ring.log.subscribe().unwrap()));
            },
        );
        group.bench_function(
            BenchmarkId::new("fork and leave, beside", 1 + others),
            |bencher| {
                let ring = ring();
                bencher.iter(|| drop(ring.subscriptions[0].fork().unwrap()));
            },
        );
        group.bench_function(
            BenchmarkId::new("deactivate and activate, beside", others),
            |bencher| {
                let mut ring = ring();
                let mut one = ring.subscriptions.pop();
                bencher.iter(|| one = one.take().map(|one| one.deactivate().activate()));
            },
        );
    }
    group.bench_function("a second publisher comes and goes", |bencher| {
        let ring = Ring::<SpinYield>::new(Others::None, 1, 1);
        bencher.iter(|| drop(ring.publisher.clone()));
    });
    group.bench_function("solo publish after another publisher went", |bencher| {
        bencher.iter_batched_ref(
            || {
                let ring = Ring::<SpinYield>::new(Others::None, 1, 1);
                drop(ring.publisher.clone());
                ring
            },
            Ring::publish,
            BatchSize::NumIterations(8),
        );
    });
}

/// The companions of the slots.
fn beside(criterion: &mut Criterion) {
    const SLOTS: u64 = 1024;
    const CHUNK: u64 = 16;
    let mut group = criterion.benchmark_group("beside");
    group.bench_function("verdict, set", |bencher| {
        let (verdicts, mut seq) = (Verdicts::new(SLOTS as usize), 0);
        bencher.iter(|| {
            verdicts.set(black_box(seq), 5);
            seq += 1;
        });
    });
    group.bench_function("verdict, get", |bencher| {
        let (verdicts, mut seq) = (Verdicts::new(SLOTS as usize), 0);
        (0..SLOTS).for_each(|seq| verdicts.set(seq, 5));
        bencher.iter(|| {
            seq = (seq + 1) % SLOTS;
            verdicts.get(black_box(seq))
        });
    });
    group.bench_function("batches, a record there and back", |bencher| {
        let (mut writer, batches) = batch_records::<u64>(SLOTS as usize);
        bencher.iter(|| {
            let first = writer.put(CHUNK as usize, 7).unwrap();
            batches.begin(first).unwrap().finish()
        });
    });
    group.bench_function("batches, read and release", |bencher| {
        let (mut writer, batches) = batch_records::<u64>(SLOTS as usize);
        writer.put(1, 7).unwrap();
        bencher.iter(|| batches.read(black_box(0)).and_then(ReadBatch::release));
    });
    group.bench_function("role, take and give back", |bencher| {
        let role = TryLock::new(0u64);
        bencher.iter(|| *role.try_take().unwrap() += 1);
    });
}

/// The cost of each wait strategy in a publish that wakes no thread and in a blocking read that
/// does not wait.
fn waiting(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wait strategies");
    one_strategy::<Spin>(&mut group, "spin");
    one_strategy::<SpinYield>(&mut group, "spin then yield");
    one_strategy::<Park>(&mut group, "park");
    group.bench_function("event count, prepare and cancel", |bencher| {
        let event = EventCount::new();
        bencher.iter(|| event.cancel(event.prepare()));
    });
    group.bench_function("event count, notify nobody", |bencher| {
        let event = EventCount::new();
        bencher.iter(|| event.notify_all());
    });
}

fn one_strategy<W: Wait>(
    group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>,
    name: &str,
) {
    group.bench_function(
        BenchmarkId::new("publish and next_batch", name),
        |bencher| {
            let mut ring = Ring::<W>::new(Others::None, 1, 1);
            // A subscription that is nearly up to date would else hang back, which is not waiting.
            ring.subscriptions[0].set_patience(Duration::ZERO);
            bencher.iter(|| {
                ring.publish();
                let batch = ring.subscriptions[0].next_batch();
                black_box(batch.map_or(0, |batch| batch.len()))
            });
        },
    );
}

/// Cancelling a timer and starting another, as each segment does with a retransmission timer, and
/// firing all timers while time moves on tick by tick.
fn timers<T: Timers>(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group(format!("timers in a {}", T::NAME));
    for running in [100, 10_000, 1_000_000] {
        let id = BenchmarkId::new("cancel and start, of", running);
        group.bench_function(id, |bencher| {
            let mut random = Rng::new(1);
            let (mut timers, mut ids) = filled::<T>(running, &mut random);
            bencher.iter(|| {
                let which = random.below(running as u64) as usize;
                timers.cancel(ids[which]);
                ids[which] = timers.start(1 + random.below(AHEAD), 0);
            });
        });
    }
    for running in [100, 10_000] {
        group.throughput(Throughput::Elements(running as u64));
        group.bench_function(BenchmarkId::new("fire all of", running), |bencher| {
            let make = || filled::<T>(running, &mut Rng::new(1)).0;
            let fire = |mut timers: T| {
                let mut fired = 0;
                (1..=AHEAD).for_each(|now| timers.advance(now, |_, _| fired += 1));
                assert_eq!(fired, running, "a timer was lost");
            };
            bencher.iter_batched(make, fire, BatchSize::LargeInput);
        });
    }
}
