//! How variants of the stack scale with cores.
//!
//! ```text
//! cargo bench -p dominoes-bench --bench scalability -- [EXPERIMENT]... [--variant A,B] [--cores 1,2] [--quick]
//!     [--rounds N] [--segment BYTES] [--pool MB] [--ring KB] [--log N] [--no-merge] [--seed N] [--json FILE] [--list]
//! ```

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use dominoes_bench::experiments::EXPERIMENTS;
use dominoes_bench::record::Report;
use dominoes_bench::seats::VARIANTS;
use dominoes_bench::topology::{self, Machine};
use dominoes_bench::workload::Workload;
use lexopt::prelude::*;

/// Rounds of a quick sweep.
const QUICK: usize = 20;
/// Names of this bench and of its siblings, which are asked for by the same words.
const OWN_NAME: &str = "scalability";
const SIBLINGS: &[&str] = &["channel", "instructions", "micro"];

#[derive(Debug)]
struct Options {
    experiments: Vec<String>,
    variants: Vec<String>,
    cores: Vec<usize>,
    workload: Workload,
    json: Option<PathBuf>,
    list: bool,
    /// Another bench was asked for.
    not_meant: bool,
}

impl Options {
    fn parse() -> Result<Options, lexopt::Error> {
        let mut options = Options {
            experiments: Vec::new(),
            variants: Vec::new(),
            cores: vec![1, 2],
            workload: Workload::default(),
            json: None,
            list: false,
            not_meant: false,
        };
        let workload = &mut options.workload;
        let mut parser = lexopt::Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                // Cargo says so to every bench.
                Long("bench") => {}
                Long("list") => options.list = true,
                Long("quick") => workload.rounds = QUICK,
                Long("rounds") => workload.rounds = parser.value()?.parse()?,
                Long("segment") => workload.segment_bytes = parser.value()?.parse()?,
                Long("pool") => workload.pool_bytes = parser.value()?.parse::<usize>()? << 20,
                Long("ring") => workload.ring_bytes = parser.value()?.parse::<u32>()? << 10,
                Long("log") => workload.log_requests = parser.value()?.parse()?,
                Long("no-merge") => workload.merge = false,
                Long("seed") => workload.seed = parser.value()?.parse()?,
                Long("json") => options.json = Some(parser.value()?.into()),
                Long("variant") => {
                    let names = parser.value()?.string()?;
                    for name in names.split(',') {
                        if !VARIANTS.iter().any(|variant| variant.name == name) {
                            return Err(format!("there is no variant {name:?}; see --list").into());
                        }
                        options.variants.push(name.to_owned());
                    }
                }
                Long("cores") => {
                    let counts = parser.value()?.string()?;
                    options.cores = counts
                        .split(',')
                        .map(|count| count.parse().ok().filter(|count| (1..=56).contains(count)))
                        .collect::<Option<_>>()
                        .ok_or("--cores takes numbers from 1 to 56, as in 1,2")?;
                }
                // `cargo bench scalability` filters benches by this word: a short look at all experiments.
                Value(word) if word == OWN_NAME => workload.rounds = QUICK,
                Value(word) if SIBLINGS.iter().any(|name| word == *name) => {
                    options.not_meant = true
                }
                Value(word) if EXPERIMENTS.iter().any(|e| word == e.name) => {
                    options.experiments.push(word.string()?);
                }
                other => return Err(other.unexpected()),
            }
        }
        if !(8..=1448).contains(&options.workload.segment_bytes) {
            return Err("--segment takes 8 to 1448".into());
        }
        Ok(options)
    }
}

fn list() {
    println!("experiments:");
    for experiment in EXPERIMENTS {
        println!("  {:<11} {}", experiment.name, experiment.about);
    }
    println!("variants:");
    for variant in VARIANTS {
        println!("  {:<11} {}", variant.name, variant.about);
    }
}

fn run(options: &Options) -> Result<(), String> {
    let machine = Machine::here();
    println!(
        "{}, {} cores, {}, Linux {}, load {}, commit {}",
        machine.cpu,
        machine.cores,
        machine.caches.join(" "),
        machine.kernel,
        machine
            .load_1min
            .map_or_else(|| "?".to_owned(), |load| load.to_string()),
        machine.commit.as_deref().unwrap_or("unknown"),
    );
    let available = topology::cores().len().max(1);
    if options.cores.iter().any(|count| *count > available) {
        println!(
            "over-committed: {available} cores for up to {:?} threads",
            options.cores.iter().max()
        );
    }
    let mut report = Report {
        machine,
        experiments: Vec::new(),
    };
    for experiment in EXPERIMENTS {
        let wanted = options
            .experiments
            .iter()
            .any(|name| name == experiment.name);
        if !wanted && !options.experiments.is_empty() {
            continue;
        }
        let begin = Instant::now();
        let result = experiment.run(&options.workload, &options.variants, &options.cores)?;
        println!(
            "\n{}({:.0} s)",
            result.table(),
            begin.elapsed().as_secs_f64()
        );
        report.experiments.push(result);
    }
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
        std::fs::write(path, json + "\n").map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("scalability: {error}");
            return ExitCode::from(2);
        }
    };
    if options.not_meant {
        return ExitCode::SUCCESS;
    }
    if options.list {
        list();
        return ExitCode::SUCCESS;
    }
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scalability: {error}");
            ExitCode::FAILURE
        }
    }
}
