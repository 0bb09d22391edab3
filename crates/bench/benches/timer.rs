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
use std::{path::Path, process::ExitCode};
use timer::{Heap, Map, Report, Row, Timers, Wheels, fire, start_cancel};

fn main() -> ExitCode {
    let (mut rounds, mut most, mut seed) = (15, 1_000_000, 1);
    let mut args = match targets::arguments("timer") {
        Ok(arguments) => arguments.into_iter(),
        Err(code) => return code,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("an option is followed by its value");
        match arg.as_str() {
            "--quick" => (rounds, most) = (5, 100_000),
            "--rounds" => rounds = value().parse().expect("a number"),
            "--seed" => seed = value().parse().expect("a number"),
            other => unreachable!("{other} is no option of the table of targets"),
        }
    }
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
    match report.write(&directory) {
        Ok(()) => println!("wrote timer.json and timer.svg to {}", directory.display()),
        Err(error) => eprintln!("{error}"),
    }
    ExitCode::SUCCESS
}

fn measure<T: Timers>(samples: &mut [Vec<f64>; 2], running: usize, seed: u64) {
    samples[0].push(start_cancel::<T>(running, seed));
    samples[1].push(fire::<T>(running, seed));
}
