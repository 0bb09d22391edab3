//! `cargo bench timer [-- --quick] [--rounds N] [--seed N]`
//!
//! What a timer costs, by how many run: starting and cancelling one, and firing one, in a hashed
//! hierarchical wheel, and in a binary heap and a sorted map beside it. Sizemore 2011, section
//! 3.2.5, asks for start and cancel in constant time and gives no figures. Prints nanoseconds per
//! operation, medians with quartiles; writes `target/timer/timer.json` and `timer.svg`.

#[path = "../src/timer/mod.rs"]
mod timer;

use dominoes_bench::{
    spread::Spread,
    targets,
    topology::{self, Machine},
};
use lexopt::prelude::*;
use std::{path::Path, process::ExitCode};
use timer::{Heap, Map, Report, Row, Timers, Wheels, fire, start_cancel};

fn main() -> ExitCode {
    targets::main("timer", run)
}

/// Rounds, the largest number of timers, and the seed.
fn options(mut arguments: lexopt::Parser) -> Result<(usize, usize, u64), lexopt::Error> {
    let (mut rounds, mut most, mut seed) = (15, 1_000_000, 1);
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("quick") => (rounds, most) = (5, 100_000),
            Long("rounds") => rounds = arguments.value()?.parse()?,
            Long("seed") => seed = arguments.value()?.parse()?,
            other => return Err(other.unexpected()),
        }
    }
    Ok((rounds, most, seed))
}

fn run(arguments: lexopt::Parser) -> Result<(), String> {
    let (rounds, most, seed) = options(arguments).map_err(|error| error.to_string())?;
    let machine = Machine::here();
    if let Some(core) = topology::cores().first() {
        core_affinity::set_for_current(*core);
    }
    timer::verify(seed);
    println!("verified: wheel, heap and map fire the same timers in the same order");
    let mut report = Report {
        machine,
        seed,
        rows: Vec::new(),
    };
    for running in [100, 10_000, 100_000, 1_000_000] {
        if running > most {
            continue;
        }
        let mut samples: [[Vec<f64>; 2]; 3] = Default::default();
        for _ in 0..rounds {
            // One after the other within a round.
            measure::<Wheels>(&mut samples[0], running, seed);
            measure::<Heap>(&mut samples[1], running, seed);
            measure::<Map>(&mut samples[2], running, seed);
        }
        let names = [Wheels::NAME, Heap::NAME, Map::NAME];
        for (name, [start, fire]) in names.into_iter().zip(samples) {
            let spread = |values| Spread::of(values).expect("at least one round");
            report.rows.push(Row {
                kind: name,
                running,
                start_cancel_ns: spread(start),
                fire_ns: spread(fire),
            });
        }
    }
    print!("{}", report.table());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("timer");
    report
        .write(&directory)
        .map_err(|error| error.to_string())?;
    println!("wrote timer.json and timer.svg to {}", directory.display());
    Ok(())
}

fn measure<T: Timers>(samples: &mut [Vec<f64>; 2], running: usize, seed: u64) {
    samples[0].push(start_cancel::<T>(running, seed));
    samples[1].push(fire::<T>(running, seed));
}
