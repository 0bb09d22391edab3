//! `cargo bench synthetic [-- --quick] [--rounds N] [--threads 1,2,4]`
//!
//! Requests with a sequential part of about 100 ns and 100, 10, 2 or half times as much
//! parallelizable work, on 1 to 16 threads, with a coarse lock around the state, a lock
//! around the sequential part alone, a state of atomics, or a replicated one, fed from one log (Sizemore 2011,
//! section 5.2, figures 5.1 and 5.2). All strategies do the same work, which is verified first.
//!
//! Threads are pinned, thread `t` to core `(t + round) % cores`; more threads than cores are
//! over-committed. Rounds are interleaved: each measures every row once, and speed-ups are taken
//! within a round. A slice in which a thread had to wait for its core is measured again. Prints a
//! table, which becomes a section of `target/scalability/report.html`.

#[path = "../src/synthetic/mod.rs"]
mod synthetic;

use dominoes_bench::start;
use dominoes_bench::{
    report::Run,
    rounds::{self, Reading},
    topology,
};
use std::{process::ExitCode, thread};
use synthetic::{
    RATIOS, Work,
    report::{Report, Row},
    strategies::{On, Strategy, verify},
};

/// How often a slice is measured at most in which another process had a core.
const ATTEMPTS: usize = 9;

#[derive(Debug, clap::Parser)]
struct Options {
    #[arg(long, default_value_t = 9, default_value_if("quick", "true", "5"))]
    rounds: usize,
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2,3,4,6,8,12,16",
        default_value_if("quick", "true", "1,2,4")
    )]
    threads: Vec<usize>,
    #[arg(long)]
    quick: bool,
}

/// Roughly, of one thread's work in a slice.
const MILLIS: f64 = 10.0;
/// Of the sequential part, roughly.
const SEQUENTIAL_NS: f64 = 100.0;
const SEED: u64 = 1;

fn main() -> ExitCode {
    start::main("synthetic", run)
}

fn run(options: Options) -> Result<(), String> {
    let cores = topology::cores().len().max(1);
    let this_run = Run::begin("synthetic");
    let calibrate = || {
        topology::pin_to(0);
        synthetic::calibrate()
    };
    let (sequential_step, parallel_step) =
        thread::scope(|scope| scope.spawn(calibrate).join()).expect("no panic");
    let steps = |ns: f64, step: f64| (ns / step).round().max(1.0) as u32;
    let works = RATIOS.map(|(parallel, sequential)| {
        let parallel_ns = SEQUENTIAL_NS * f64::from(parallel) / f64::from(sequential);
        Work {
            sequential: steps(SEQUENTIAL_NS, sequential_step),
            parallel: steps(parallel_ns, parallel_step),
            requests: (MILLIS * 1e6 / (parallel_ns + SEQUENTIAL_NS)) as u64,
            seed: SEED,
        }
    });
    for work in works {
        verify(
            Work {
                requests: 3001,
                ..work
            },
            cores,
        );
    }
    println!(
        "verified: every strategy leaves the same state; a step takes {sequential_step:.2} ns in the sequential part, {parallel_step:.2} in the other"
    );
    let mut rows = Vec::new();
    for ratio in RATIOS {
        for strategy in Strategy::ALL {
            for &threads in &options.threads {
                rows.push(Row {
                    ratio,
                    strategy,
                    threads,
                    requests_per_second: Vec::new(),
                });
            }
        }
    }
    let before = topology::line_transfer_ns();
    let mut repeated = 0;
    let all = rounds::by_turns(&mut rows, options.rounds, &mut |_, _| (), |row, round| {
        let at = RATIOS.iter().position(|r| *r == row.ratio).expect("listed");
        // Cores differ, on virtual machines from moment to moment: one thread runs on each in turn.
        let on = On {
            threads: row.threads,
            cores,
            first: round % cores,
        };
        // With more threads than cores they always wait, for each other.
        let (attempts, may_wait) = match row.threads <= cores {
            true => (ATTEMPTS, false),
            false => (1, true),
        };
        let (reading, again) = rounds::until_calm(attempts, || {
            let (slice, _) = row.strategy.run(works[at], on);
            Ok::<_, String>(Reading {
                value: works[at].requests as f64 / slice.took.as_secs_f64(),
                is_calm: may_wait || slice.waited < slice.took / 50,
            })
        })?;
        repeated += again;
        Ok::<_, String>(reading)
    })?;
    for (row, readings) in rows.iter_mut().zip(all) {
        row.requests_per_second = readings;
    }
    let readings = rows.iter().flat_map(|row| &row.requests_per_second);
    let disturbed = readings.filter(|reading| !reading.is_calm).count();
    let report = Report {
        cores,
        seed: SEED,
        sequential_ns: SEQUENTIAL_NS,
        line_ns: [before, topology::line_transfer_ns()],
        rows,
    };
    println!(
        "{repeated} slices were measured again because a thread had to wait for its core, {disturbed} kept although one had"
    );
    this_run.end(report.tables())
}
