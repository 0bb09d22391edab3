//! How variants of the stack scale with cores.
//!
//! ```text
//! cargo bench scalability -- [EXPERIMENT]... [--variant A,B] [--cores 1,2] [--quick] [--rounds N]
//!     [--side-rounds N] [--budget SECONDS] [--segment A,B] [--burst A,B] [--timestamps] [--no-checksum]
//!     [--connections A,B] [--pool MB] [--ring KB] [--log N] [--seed N] [--json FILE] [--out DIR] [--list]
//! ```

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dominoes_bench::drivers::VARIANTS;
use dominoes_bench::experiments::{EXPERIMENTS, Experiment, Wanted};
use dominoes_bench::record::{ExperimentResult, Report};
use dominoes_bench::topology::{self, Machine};
use dominoes_bench::workload::Workload;
use dominoes_bench::{plot, targets};
use lexopt::prelude::*;

/// Rounds of a quick run, where a target is and elsewhere.
const QUICK: (usize, usize) = (7, 3);
/// A slice of a quick run, and what an experiment may take then.
const QUICK_SLICE: Duration = Duration::from_millis(50);
const QUICK_BUDGET: Duration = Duration::from_secs(25);
/// The same of a full run.
const FULL: (usize, usize) = (40, 12);
/// As on the command line.
const OWN_NAME: &str = "scalability";

#[derive(Debug)]
struct Options {
    experiments: Vec<&'static Experiment>,
    wanted: Wanted,
    json: Option<PathBuf>,
    /// Where pictures and figures go; `None` for the usual directory.
    out: Option<PathBuf>,
    list: bool,
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
    fn parse(arguments: Vec<String>) -> Result<Options, lexopt::Error> {
        let mut options = Options {
            experiments: Vec::new(),
            wanted: Wanted {
                base: Workload::default(),
                segments: vec![1448, 512, 64],
                bursts: vec![8, 2, 1],
                connections: vec![1, 8, 64],
                variants: Vec::new(),
                cores: vec![1, 2],
                side_rounds: FULL.1,
                budget: None,
            },
            json: None,
            out: None,
            list: false,
        };
        let wanted = &mut options.wanted;
        let mut rounds = FULL;
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(arg) = parser.next()? {
            match arg {
                Long("list") => options.list = true,
                Long("quick") => {
                    rounds = QUICK;
                    wanted.base.slice = QUICK_SLICE;
                    wanted.budget = wanted.budget.or(Some(QUICK_BUDGET));
                }
                Long("budget") => {
                    let seconds = numbers(&mut parser, "--budget", 1..=86_400)?[0];
                    wanted.budget = Some(Duration::from_secs(seconds as u64));
                }
                Long("rounds") => rounds.0 = parser.value()?.parse()?,
                Long("side-rounds") => rounds.1 = parser.value()?.parse()?,
                Long("segment") => {
                    wanted.segments = numbers(&mut parser, "--segment", 8..=1448)?;
                }
                Long("burst") => {
                    wanted.bursts = numbers(&mut parser, "--burst", 1..=65_536)?;
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
                Long("out") => options.out = Some(parser.value()?.into()),
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
                Value(word) if EXPERIMENTS.iter().any(|e| word == e.name) => {
                    let chosen = EXPERIMENTS.iter().filter(|e| word == e.name);
                    options.experiments.extend(chosen);
                }
                other => return Err(other.unexpected()),
            }
        }
        (wanted.base.rounds, wanted.side_rounds) = rounds;
        wanted.base.segment_bytes = wanted.segments[0];
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
    /// What experiments that are over were expected to take, and all.
    expected: (Duration, Duration),
    terminal: bool,
    panel: String,
}

impl Progress {
    fn tell(&mut self, panel: &str, done: usize, of: usize) {
        if self.panel != panel {
            self.panel = panel.to_owned();
            let (over, all) = self.expected;
            let elapsed = self.begin.elapsed().as_secs();
            let percent = 100.0 * over.as_secs_f64() / all.as_secs_f64().max(1e-3);
            self.clear();
            eprintln!("[{elapsed:>3} s, {percent:>2.0} % when this experiment began] {panel}");
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
    let (mut met, mut with_target, mut missing, mut disturbed) = (0, 0, 0, 0);
    let (mut pairs, mut left_out) = (0, 0);
    for result in results {
        for panel in &result.panels {
            for line in &panel.ratios {
                if line.ratio.is_some() || line.at_least.is_some() {
                    println!("{:<11} {line}", result.experiment);
                }
                with_target += usize::from(line.at_least.is_some());
                met += usize::from(line.met == Some(true));
                let is_missing = line.ratio.is_none();
                missing += usize::from(line.at_least.is_some() && is_missing);
                disturbed += usize::from(line.at_least.is_some() && line.all_disturbed);
                pairs += line.pairs;
                left_out += line.disturbed;
            }
        }
    }
    println!(
        "{met} of {with_target} targets met, {missing} not measured, {disturbed} not judged since every pair was disturbed; \
         {left_out} of {} pairs were disturbed and left out",
        pairs + left_out
    );
    let panels = results.iter().flat_map(|result| &result.panels);
    let without = panels.filter(|panel| panel.disturbed.is_some()).count();
    if without > 0 {
        println!("{without} panels without figures: the machine was disturbed");
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
    let wanted = &options.wanted;
    let available = topology::cores().len().max(1);
    if wanted.cores.iter().any(|count| *count > available) {
        println!(
            "over-committed: {available} cores for up to {:?} threads",
            wanted.cores.iter().max()
        );
    }
    let takes = |experiment: &&Experiment| experiment.takes(wanted);
    let all: Duration = options.experiments.iter().map(takes).sum();
    eprintln!(
        "about {:.1} minutes, besides setting up",
        all.as_secs_f64() / 60.0
    );
    let out = Output::new(options)?;
    let mut progress = Progress {
        begin: Instant::now(),
        expected: (Duration::ZERO, all),
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
        progress.expected.0 += takes(experiment);
        progress.clear();
        println!("\n{}({:.0} s)", result.table(), result.seconds);
        out.write(experiment.name, "svg", plot::svg(&result))?;
        report.experiments.push(result);
    }
    summary(&report.experiments);
    println!("{:.0} s in all", progress.begin.elapsed().as_secs_f64());
    let json = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())? + "\n";
    match &options.json {
        Some(path) => {
            std::fs::write(path, json).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        None => out.write(OWN_NAME, "json", Some(json))?,
    }
    if let Some(directory) = &out.directory {
        println!("figures as JSON, pictures as SVG: {}", directory.display());
    }
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

/// Where pictures and figures go.
struct Output {
    /// `None` if the usual directory cannot be written, as by another user than the one who built
    /// this.
    directory: Option<PathBuf>,
}

impl Output {
    /// Makes the directory, before anything is measured.
    fn new(options: &Options) -> Result<Output, String> {
        // The directory that this bench was built below.
        let usual = || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(OWN_NAME);
        let path = options.out.clone().unwrap_or_else(usual);
        let probe = path.join("scalability.json");
        let made = std::fs::create_dir_all(&path).and_then(|()| {
            let mut file = std::fs::OpenOptions::new();
            file.create(true).append(true).open(&probe).map(drop)
        });
        match made {
            Ok(()) => Ok(Output {
                directory: Some(path),
            }),
            Err(error) if options.out.is_some() => Err(format!("{}: {error}", path.display())),
            Err(error) => {
                let path = path.display();
                println!("neither figures nor pictures are kept: {path}: {error}; see --out");
                Ok(Output { directory: None })
            }
        }
    }

    fn write(&self, name: &str, kind: &str, content: Option<String>) -> Result<(), String> {
        let (Some(directory), Some(content)) = (&self.directory, content) else {
            return Ok(());
        };
        let path = directory.join(name).with_extension(kind);
        std::fs::write(&path, content).map_err(|e| format!("{}: {e}", path.display()))
    }
}

fn main() -> ExitCode {
    let arguments = match targets::arguments(OWN_NAME) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("scalability: {error}");
            return ExitCode::from(2);
        }
    };
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
