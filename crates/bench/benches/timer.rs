//! `cargo bench timer [-- --quick] [--rounds N] [--seed N]`
//!
//! What a timer costs, by how many run: starting and cancelling one, and firing one, in a hashed
//! hierarchical wheel, and in a binary heap and a sorted map beside it. Sizemore 2011, section
//! 3.2.5, asks for start and cancel in constant time and gives no figures. Prints nanoseconds per
//! operation, medians with quartiles, and adds a section to the report.

#[path = "../src/timer/mod.rs"]
mod timer;

use dominoes_bench::report::Run;
use dominoes_bench::rounds::{self, Reading};
use dominoes_bench::spread::Spread;
use dominoes_bench::table::{Bar, Bars, Table};
use dominoes_bench::{targets, topology};
use lexopt::prelude::*;
use std::process::ExitCode;
use timer::{AHEAD, Heap, Map, Timers, Wheels, fire, start_cancel};

fn main() -> ExitCode {
    targets::main("timer", run)
}

#[derive(Debug)]
struct Options {
    rounds: usize,
    /// The largest number of timers.
    most: usize,
    seed: u64,
}

fn options(mut arguments: lexopt::Parser) -> Result<Options, lexopt::Error> {
    let mut options = Options {
        rounds: 15,
        most: 1_000_000,
        seed: 1,
    };
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("quick") => (options.rounds, options.most) = (5, 100_000),
            Long("rounds") => options.rounds = arguments.value()?.parse()?,
            Long("seed") => options.seed = arguments.value()?.parse()?,
            other => return Err(other.unexpected()),
        }
    }
    Ok(options)
}

/// One kind of timers of which so many run.
struct Row {
    kind: &'static str,
    running: usize,
    /// Nanoseconds to cancel and start one, and to fire one.
    measure: fn(usize, u64) -> [f64; 2],
}

impl Row {
    fn of<T: Timers>(running: usize) -> Row {
        Row {
            kind: T::NAME,
            running,
            measure: |running, seed| [start_cancel::<T>(running, seed), fire::<T>(running, seed)],
        }
    }
}

fn run(arguments: lexopt::Parser) -> Result<(), String> {
    let options = options(arguments).map_err(|error| error.to_string())?;
    let run = Run::begin("timer", &options);
    topology::pin_to(0);
    timer::verify(options.seed);
    println!("verified: wheel, heap and map fire the same timers in the same order");
    let sizes = [100, 10_000, 100_000, 1_000_000].into_iter();
    let mut rows: Vec<Row> = sizes
        .filter(|running| *running <= options.most)
        .flat_map(|running| {
            [
                Row::of::<Wheels>(running),
                Row::of::<Heap>(running),
                Row::of::<Map>(running),
            ]
        })
        .collect();
    let readings = rounds::by_turns(&mut rows, options.rounds, &mut rounds::tell, |row, _| {
        let ns = (row.measure)(row.running, options.seed);
        Ok::<_, String>(Reading::calm(ns))
    })?;
    let title = format!(
        "ns per operation [quartiles]; deadlines within {AHEAD} ticks, seed {}",
        options.seed
    );
    let mut table = Table::new(title, &["running", "kind", "cancel and start", "fire"]);
    let mut bars = Bars {
        heading: "cancelling a timer and starting another".to_owned(),
        axis: "nanoseconds: median and quartiles".to_owned(),
        ..Bars::default()
    };
    for (row, readings) in rows.iter().zip(&readings) {
        let of = |which: usize| Spread::of(readings.iter().map(|reading| reading.value[which]));
        let [start, fire] = [of(0), of(1)].map(|spread| spread.ok_or("no round"));
        let (start, fire) = (start?, fire?);
        table.row(vec![
            row.running.to_string(),
            row.kind.to_owned(),
            format!("{start:.0}"),
            format!("{fire:.0}"),
        ]);
        let name = format!("{} of {}", row.kind, row.running);
        bars.bars.push(Bar::new(name, row.kind, start, 0));
    }
    table.bars(bars);
    table.keep(&readings);
    table.note(
        "published: Sizemore 2011, section 3.2.5: constant time to start and cancel, without figures",
    );
    run.end(vec![table])
}
