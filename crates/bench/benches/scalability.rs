//! How variants of the stack scale with cores.
//!
//! ```text
//! cargo bench scalability -- [EXPERIMENT]... [--variant A,B] [--cores 1,2] [--quick] [--rounds N]
//!     [--side-rounds N] [--budget SECONDS] [--segment A,B] [--timestamps] [--no-checksum]
//!     [--seed N] [--out DIR] [--store FILE] [--tables] [--resume] [--list]
//! ```
//!
//! Prints one page; with names of experiments or `--tables`, all tables before it. `--store` adds
//! all sections of the report, other bench targets included, to what the outcomes in the README
//! come from.
//!
//! Writes `report.html`, a page with every experiment beside what the papers published, anew after
//! each experiment. `--resume` takes the results of an earlier run with the same options on this
//! machine from these sources, and measures the rest.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dominoes_bench::drivers::VARIANTS;
use dominoes_bench::experiments::{self, EXPERIMENTS, Experiment, Wanted};
use dominoes_bench::report::{self, Directory, Section};
use dominoes_bench::start;
use dominoes_bench::targets::{self, TARGETS};
use dominoes_bench::topology::{self, Machine};
use dominoes_bench::workload::Workload;

/// A slice of a quick run.
const QUICK_SLICE: Duration = Duration::from_millis(50);
/// As on the command line.
const OWN_NAME: &str = "scalability";

#[derive(Debug, clap::Parser)]
struct Options {
    #[arg(value_parser = experiment)]
    experiments: Vec<&'static Experiment>,
    #[arg(long = "variant", value_delimiter = ',', value_parser = variant)]
    variants: Vec<String>,
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = within::<1, 56>)]
    cores: Vec<usize>,
    #[arg(long)]
    quick: bool,
    /// Rounds where a target is, and elsewhere.
    #[arg(long, default_value_t = 40, default_value_if("quick", "true", "7"))]
    rounds: usize,
    #[arg(long, default_value_t = 12, default_value_if("quick", "true", "3"))]
    side_rounds: usize,
    /// The seconds of an experiment.
    #[arg(long, default_value_if("quick", "true", "25"), value_parser = within::<1, 86_400>)]
    budget: Option<usize>,
    #[arg(
        long = "segment",
        value_delimiter = ',',
        default_value = "1448,512,64",
        value_parser = within::<8, 1448>
    )]
    segments: Vec<usize>,
    #[arg(long)]
    timestamps: bool,
    #[arg(long)]
    no_checksum: bool,
    #[arg(long, default_value_t = Workload::default().seed)]
    seed: u64,
    /// Where pictures and figures go; by default the usual directory.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Whether to take the results of an earlier run.
    #[arg(long)]
    resume: bool,
    #[arg(long)]
    list: bool,
    /// Whether to print every table: if experiments are named, or this is.
    #[arg(long)]
    tables: bool,
    /// Where to store what published figures and the README are compared with.
    #[arg(long)]
    store: Option<PathBuf>,
}

fn experiment(name: &str) -> Result<&'static Experiment, String> {
    let found = EXPERIMENTS.iter().find(|one| one.name == name);
    found.ok_or_else(|| "there is no such experiment; see --list".to_owned())
}

fn variant(name: &str) -> Result<String, String> {
    let found = VARIANTS.iter().find(|one| one.name == name);
    let missing = || "there is no such variant; see --list".to_owned();
    found.map(|one| one.name.to_owned()).ok_or_else(missing)
}

fn within<const LEAST: usize, const MOST: usize>(text: &str) -> Result<usize, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (LEAST..=MOST).contains(number));
    number.ok_or_else(|| format!("not from {LEAST} to {MOST}"))
}

impl Options {
    fn wanted(&self) -> Wanted {
        let mut base = Workload {
            segment_bytes: self.segments[0],
            rounds: self.rounds,
            timestamps: self.timestamps,
            checksum: !self.no_checksum,
            seed: self.seed,
            ..Workload::default()
        };
        if self.quick {
            base.slice = QUICK_SLICE;
        }
        Wanted {
            base,
            segments: self.segments.clone(),
            bursts: vec![8, 2, 1],
            connections: vec![1, 8, 64],
            variants: self.variants.clone(),
            cores: self.cores.clone(),
            side_rounds: self.side_rounds,
            budget: self
                .budget
                .map(|seconds| Duration::from_secs(seconds as u64)),
        }
    }
}

fn list() {
    println!("bench targets, by `cargo bench NAME`:");
    for target in TARGETS {
        println!("  {:<13} {} ({})", target.name, target.about, target.takes);
    }
    println!("experiments of scalability:");
    for experiment in EXPERIMENTS {
        let note = if experiment.is_by_name {
            " (only by its name)"
        } else {
            ""
        };
        println!("  {:<13} {}{note}", experiment.name, experiment.about);
    }
    println!("variants:");
    for variant in VARIANTS {
        println!("  {:<13} {}", variant.name, variant.about);
    }
    println!("published figures, and the experiment or bench target that measures them:");
    for (name, figure) in report::figures() {
        println!("  {:<13} {}, {}", name, figure.source, figure.place);
    }
}

/// Shows the progress of the run, on the standard error stream.
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
            self.clear();
            eprintln!("[{}] {panel}", self.left());
        }
        if self.terminal {
            eprint!("\r  {done} of {of} ");
            // If it cannot be seen, nothing is lost.
            let _ = std::io::stderr().flush();
        }
    }

    /// How long it has taken, and how long it may still take: as much longer than expected as what
    /// is over.
    fn left(&self) -> String {
        let (over, all) = self.expected;
        let elapsed = self.begin.elapsed();
        let left = all.saturating_sub(over).as_secs_f64();
        let slower = match over.as_secs_f64() {
            over if over > 1.0 => (elapsed.as_secs_f64() / over).max(1.0),
            _ => 1.0,
        };
        let minutes = left * slower / 60.0;
        format!(
            "{:>3} s, about {minutes:.1} minutes left from here",
            elapsed.as_secs()
        )
    }

    fn clear(&self) {
        if self.terminal {
            eprint!("\r                    \r");
        }
    }
}

/// All that the figures of an experiment depend on except machine and sources.
fn settings(wanted: &Wanted) -> String {
    format!("{wanted:?}")
}

fn run(mut options: Options) -> Result<(), String> {
    options.tables |= !options.experiments.is_empty();
    if options.experiments.is_empty() {
        options.experiments = EXPERIMENTS.iter().filter(|e| !e.is_by_name).collect();
    }
    let machine = Machine::here();
    println!("{machine}");
    let wanted = &options.wanted();
    let available = topology::cores().len().max(1);
    if wanted.cores.iter().any(|count| *count > available) {
        println!(
            "over-committed: {available} cores for up to {:?} threads",
            wanted.cores.iter().max()
        );
    }
    let out = Output::new(&options)?;
    let settings = settings(wanted);
    let earlier = |experiment: &Experiment| -> Option<Section> {
        let directory = out.directory.as_ref().filter(|_| options.resume)?;
        directory.measured(experiment.name, &settings, &machine)
    };
    let takes = |experiment: &&Experiment| experiment.takes(wanted);
    let to_run = options.experiments.iter().filter(|e| earlier(e).is_none());
    let all: Duration = to_run.map(takes).sum();
    eprintln!(
        "about {:.1} minutes, besides setting up",
        all.as_secs_f64() / 60.0
    );
    let mut progress = Progress {
        begin: Instant::now(),
        expected: (Duration::ZERO, all),
        terminal: std::io::stderr().is_terminal(),
        panel: String::new(),
    };
    let mut sections = Vec::new();
    for experiment in &options.experiments {
        if let Some(section) = earlier(experiment) {
            if options.tables {
                println!("\n{}(measured before)", section.table);
            }
            sections.push(section);
            continue;
        }
        let mut tell = |panel: &str, done, of| progress.tell(panel, done, of);
        let result = experiment.run(wanted, &mut tell);
        progress.expected.0 += takes(experiment);
        progress.clear();
        if options.tables {
            println!("\n{result}({:.0} s)", result.seconds);
        }
        let section = Section::of(&result, settings.clone(), &machine);
        let section = section.map_err(|e| e.to_string())?;
        out.keep(&section)?;
        sections.push(section);
    }
    print!("{}", report::page(&sections));
    println!("{:.0} s in all", progress.begin.elapsed().as_secs_f64());
    out.write_figures(&machine, &sections)?;
    if let Some(directory) = &out.directory {
        println!("the report: {}", directory.page().display());
        if let Some(path) = &options.store {
            directory.store(path, None)?;
        }
    }
    let failures = sections.iter().flat_map(|section| &section.failures);
    let failures: Vec<&str> = failures.map(String::as_str).collect();
    if failures.is_empty() {
        Ok(())
    } else {
        Err(failures.join("; "))
    }
}

/// Where the report, pictures and figures go.
struct Output {
    /// `None` if the usual directory cannot be written, as by another user than the one that built
    /// this.
    directory: Option<Directory>,
}

impl Output {
    /// Makes the directory, before anything is measured.
    fn new(options: &Options) -> Result<Output, String> {
        let path = options.out.clone().unwrap_or_else(targets::directory);
        let probe = path.join(OWN_NAME).with_extension("json");
        let made = std::fs::create_dir_all(&path).and_then(|()| {
            let mut file = std::fs::OpenOptions::new();
            file.create(true).append(true).open(&probe).map(drop)
        });
        match made {
            Ok(()) => Ok(Output {
                directory: Some(Directory::new(path)),
            }),
            Err(error) if options.out.is_some() => Err(format!("{}: {error}", path.display())),
            Err(error) => {
                let path = path.display();
                println!("no report is kept: {path}: {error}; see --out");
                Ok(Output { directory: None })
            }
        }
    }

    fn keep(&self, section: &Section) -> Result<(), String> {
        let directory = self.directory.as_ref();
        directory.map_or(Ok(()), |directory| directory.keep(section))
    }

    /// The figures of all experiments of this run in one file.
    fn write_figures(&self, machine: &Machine, sections: &[Section]) -> Result<(), String> {
        let figures: Vec<&serde_json::Value> = sections.iter().map(|s| &s.figures).collect();
        let all = serde_json::json!({ "machine": machine, "experiments": figures });
        self.directory.as_ref().map_or(Ok(()), |directory| {
            let path = directory.path().join(OWN_NAME).with_extension("json");
            report::write_json(&path, &all)
        })
    }
}

fn main() -> ExitCode {
    if let Some(code) = experiments::play() {
        return code;
    }
    start::main(OWN_NAME, |options: Options| {
        if options.list {
            list();
            return Ok(());
        }
        run(options)
    })
}
