//! How variants of the stack scale with cores.
//!
//! ```text
//! cargo bench -p dominoes-bench --bench scalability -- [EXPERIMENT]... [--variant A,B] [--cores 1,2] [--quick]
//!     [--rounds N] [--side-rounds N] [--segment A,B] [--merge on|off|both] [--timestamps] [--no-checksum]
//!     [--connections A,B] [--pool MB] [--ring KB] [--log N] [--seed N] [--json FILE] [--out DIR] [--list]
//! ```

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dominoes_bench::experiments::{EXPERIMENTS, Experiment, Wanted};
use dominoes_bench::plot;
use dominoes_bench::record::{ExperimentResult, Report};
use dominoes_bench::seats::VARIANTS;
use dominoes_bench::topology::{self, Machine};
use dominoes_bench::workload::Workload;
use lexopt::prelude::*;

/// Rounds of a quick run, where a target is and elsewhere.
const QUICK: (usize, usize) = (7, 3);
/// The same of a full run.
const FULL: (usize, usize) = (40, 12);
/// Names of this bench and of its siblings, which are asked for by the same words.
const OWN_NAME: &str = "scalability";
const SIBLINGS: &[&str] = &["channel", "instructions", "micro", "synthetic", "timer"];

#[derive(Debug)]
struct Options {
    experiments: Vec<&'static Experiment>,
    wanted: Wanted,
    json: Option<PathBuf>,
    out: PathBuf,
    list: bool,
    /// Another bench was asked for.
    not_meant: bool,
}

/// Numbers that are separated by commas, each within `range`.
fn numbers(
    parser: &mut lexopt::Parser,
    what: &str,
    range: std::ops::RangeInclusive<usize>,
) -> Result<Vec<usize>, lexopt::Error> {
    let text = parser.value()?.string()?;
    let one = |number: &str| number.parse().ok().filter(|n| range.contains(n));
    let all: Option<Vec<usize>> = text.split(',').map(one).collect();
    all.ok_or_else(|| {
        let (least, most) = (range.start(), range.end());
        format!("{what} takes numbers from {least} to {most}, separated by commas").into()
    })
}

impl Options {
    fn parse() -> Result<Options, lexopt::Error> {
        let mut options = Options {
            experiments: Vec::new(),
            wanted: Wanted {
                base: Workload::default(),
                segments: vec![1448, 512, 64],
                merges: vec![true, false],
                connections: vec![1, 8, 64],
                variants: Vec::new(),
                cores: vec![1, 2],
                side_rounds: FULL.1,
            },
            json: None,
            // The directory that this bench was built below.
            out: Path::new(env!("CARGO_TARGET_TMPDIR")).join("../scalability"),
            list: false,
            not_meant: false,
        };
        let wanted = &mut options.wanted;
        let mut rounds = FULL;
        let (mut siblings, mut own) = (false, false);
        let mut parser = lexopt::Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                // Cargo says so to every bench.
                Long("bench") => {}
                Long("list") => options.list = true,
                Long("quick") => rounds = QUICK,
                Long("rounds") => rounds.0 = parser.value()?.parse()?,
                Long("side-rounds") => rounds.1 = parser.value()?.parse()?,
                Long("segment") => {
                    wanted.segments = numbers(&mut parser, "--segment", 8..=1448)?;
                }
                Long("merge") => {
                    wanted.merges = match parser.value()?.string()?.as_str() {
                        "on" => vec![true],
                        "off" => vec![false],
                        "both" => vec![true, false],
                        _ => return Err("--merge takes on, off or both".into()),
                    }
                }
                Long("timestamps") => wanted.base.timestamps = true,
                Long("no-checksum") => wanted.base.checksum = false,
                Long("connections") => {
                    wanted.connections = numbers(&mut parser, "--connections", 1..=4096)?;
                }
                Long("pool") => {
                    wanted.base.pool_bytes = numbers(&mut parser, "--pool", 1..=4096)?[0] << 20;
                }
                Long("ring") => {
                    let ring = numbers(&mut parser, "--ring", 1..=1 << 20)?[0] << 10;
                    wanted.base.ring_bytes = u32::try_from(ring).unwrap_or(u32::MAX);
                }
                Long("log") => wanted.base.log_requests = parser.value()?.parse()?,
                Long("seed") => wanted.base.seed = parser.value()?.parse()?,
                Long("json") => options.json = Some(parser.value()?.into()),
                Long("out") => options.out = parser.value()?.into(),
                Long("variant") => {
                    let names = parser.value()?.string()?;
                    for name in names.split(',') {
                        if !VARIANTS.iter().any(|variant| variant.name == name) {
                            return Err(format!("there is no variant {name:?}; see --list").into());
                        }
                        wanted.variants.push(name.to_owned());
                    }
                }
                Long("cores") => wanted.cores = numbers(&mut parser, "--cores", 1..=56)?,
                // What `cargo bench WORD` says to every bench.
                Value(word) if word == OWN_NAME => own = true,
                Value(word) if SIBLINGS.iter().any(|name| word == *name) => siblings = true,
                Value(word) if EXPERIMENTS.iter().any(|e| word == e.name) => {
                    let chosen = EXPERIMENTS.iter().filter(|e| word == e.name);
                    options.experiments.extend(chosen);
                }
                other => return Err(other.unexpected()),
            }
        }
        (wanted.base.rounds, wanted.side_rounds) = rounds;
        wanted.base.segment_bytes = wanted.segments[0];
        wanted.base.merge = wanted.merges[0];
        options.not_meant = siblings && !own && options.experiments.is_empty();
        if options.experiments.is_empty() {
            options.experiments = EXPERIMENTS.iter().collect();
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

/// Tells how far the run is, on the standard error stream.
struct Progress {
    begin: Instant,
    /// Slices of experiments that are over, and of all.
    slices: (usize, usize),
    terminal: bool,
    panel: String,
}

impl Progress {
    fn tell(&mut self, panel: &str, done: usize, of: usize) {
        if self.panel != panel {
            self.panel = panel.to_owned();
            let (over, all) = self.slices;
            let elapsed = self.begin.elapsed().as_secs();
            let percent = over * 100 / all.max(1);
            self.clear();
            eprintln!("[{elapsed:>3} s, {percent:>2} % when this experiment began] {panel}");
        }
        if self.terminal {
            eprint!("\r  {done} of {of} ");
            // If it cannot be seen, nothing is lost.
            let _ = std::io::stderr().flush();
        }
    }

    fn clear(&self) {
        if self.terminal {
            eprint!("\r                    \r");
        }
    }
}

/// All ratios of a run once more, in one place.
fn summary(results: &[ExperimentResult]) {
    println!("\n== ratios");
    let (mut met, mut with_target, mut missing) = (0, 0, 0);
    for result in results {
        for panel in &result.panels {
            for line in &panel.ratios {
                if line.ratio.is_some() || line.at_least.is_some() {
                    println!("{:<11} {line}", result.experiment);
                }
                with_target += usize::from(line.at_least.is_some());
                met += usize::from(line.met == Some(true));
                missing += usize::from(line.at_least.is_some() && line.met.is_none());
            }
        }
    }
    println!("{met} of {with_target} targets met, {missing} not measured");
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
    let wanted = &options.wanted;
    let available = topology::cores().len().max(1);
    if wanted.cores.iter().any(|count| *count > available) {
        println!(
            "over-committed: {available} cores for up to {:?} threads",
            wanted.cores.iter().max()
        );
    }
    let slices = |experiment: &&Experiment| experiment.slices(wanted);
    let all: usize = options.experiments.iter().map(slices).sum();
    let slice = wanted.base.slice + Duration::from_millis(6);
    eprintln!(
        "about {} slices, {:.0} minutes",
        all,
        (slice * all as u32).as_secs_f64() / 60.0
    );
    let mut progress = Progress {
        begin: Instant::now(),
        slices: (0, all),
        terminal: std::io::stderr().is_terminal(),
        panel: String::new(),
    };
    let mut report = Report {
        machine,
        experiments: Vec::new(),
    };
    for experiment in &options.experiments {
        let mut tell = |panel: &str, done, of| progress.tell(panel, done, of);
        let result = experiment.run(wanted, &mut tell);
        progress.slices.0 += slices(experiment);
        progress.clear();
        println!("\n{}({:.0} s)", result.table(), result.seconds);
        write(options, experiment.name, "svg", plot::svg(&result)?)?;
        report.experiments.push(result);
    }
    summary(&report.experiments);
    println!("{:.0} s in all", progress.begin.elapsed().as_secs_f64());
    let json = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())? + "\n";
    match &options.json {
        Some(path) => {
            std::fs::write(path, json).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        None => write(options, OWN_NAME, "json", Some(json))?,
    }
    let out = options.out.canonicalize();
    let out = out.as_deref().unwrap_or(&options.out).display();
    println!("figures as JSON, pictures as SVG: {out}");
    let failures: Vec<String> = report
        .experiments
        .iter()
        .flat_map(|result| result.panels.iter().map(move |panel| (result, panel)))
        .filter_map(|(result, panel)| {
            let why = panel.failed.as_ref()?;
            Some(format!("{} {}: {why}", result.experiment, panel.name))
        })
        .collect();
    if failures.is_empty() {
        Ok(())
    } else {
        Err(failures.join("; "))
    }
}

fn write(options: &Options, name: &str, kind: &str, content: Option<String>) -> Result<(), String> {
    let Some(content) = content else {
        return Ok(());
    };
    let path = options.out.join(name).with_extension(kind);
    std::fs::create_dir_all(&options.out)
        .and_then(|()| std::fs::write(&path, content))
        .map_err(|e| format!("{}: {e}", path.display()))
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
