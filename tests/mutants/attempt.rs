//! Tries mutants that are in the sources, each with the tests that reach it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::Mutant;
use crate::weave::{TESTS, cargo};

/// Number of samples into which a list is divided.
const SAMPLES: usize = 100;
/// Tests that take less time run together, before the others.
const SHORT: Duration = Duration::from_millis(100);
/// Tests that take longer do not run, except [`WHATEVER_IT_TAKES`].
const LONG: Duration = Duration::from_secs(1);
/// A mutant is found if its tests take this much longer than ten times their usual time.
const PATIENCE: Duration = Duration::from_secs(20);
/// Long tests that check just the properties that these mutants break.
const WHATEVER_IT_TAKES: [&str; 5] = [
    "agreement::",
    "autoscale::",
    "conformance::",
    "preempt::",
    "simulation::every_schedule",
];

/// Tests of one binary.
struct Stage {
    name: &'static str,
    folder: &'static str,
    /// The beginning of Cargo's name of the binary.
    binary: &'static str,
    filters: &'static [&'static str],
    /// Files whose mutants are not tried with this stage.
    not: Option<&'static str>,
}

const STAGES: [Stage; 5] = [
    Stage {
        name: "script",
        folder: "tests",
        binary: "main-",
        filters: &["conformance::every_rule_is_kept"],
        not: None,
    },
    Stage {
        name: "unit",
        folder: "crates/netstack/proto",
        binary: "dominoes_proto-",
        filters: &[],
        not: None,
    },
    Stage {
        name: "unit",
        folder: "crates/netstack",
        binary: "dominoes_netstack-",
        filters: &[],
        not: None,
    },
    Stage {
        name: "socket",
        folder: "crates/netstack",
        binary: "main-",
        // Tests of the layers above sockets find no other mutants.
        filters: &[
            "--skip=framed::",
            "--skip=poller::",
            "--skip=std_shape::",
            "--skip=tls::",
        ],
        not: None,
    },
    // The other stages cover the mutants of a single connection.
    Stage {
        name: "whole",
        folder: "tests",
        binary: "main-",
        filters: &[
            "agreement::",
            "datagrams::",
            "flips::",
            "hostile::",
            "membership::",
            "preempt::",
            "simulation::every_schedule",
            "untrusted_hosts::",
        ],
        not: Some("crates/netstack/proto/src/tcp/"),
    },
];

/// A test that passes without mutants.
struct Test {
    name: String,
    took: Duration,
    reaches: HashSet<usize>,
}

/// A stage that is compiled.
struct Ready {
    stage: &'static Stage,
    binary: PathBuf,
    folder: PathBuf,
    /// The short ones first.
    tests: Vec<Test>,
}

impl Ready {
    /// The binary, limited in memory and time: a mutant may allocate, count or wait forever.
    fn command(&self, limit: Duration) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", "ulimit -v 8000000; exec timeout \"$@\"", "-"]);
        command.arg(limit.as_secs().to_string());
        command.arg(&self.binary).current_dir(&self.folder);
        command.env("CARGO_MANIFEST_DIR", &self.folder);
        command.env("RUST_TEST_THREADS", "1");
        command.env("RUST_BACKTRACE", "0");
        command.stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Whether all of these tests pass with a mutant.
    fn passes(&self, id: usize, tests: &[&Test]) -> Result<bool, Box<dyn Error>> {
        let took: Duration = tests.iter().map(|test| test.took).sum();
        let mut command = self.command(PATIENCE + 10 * took);
        command.arg("--exact").env("MUTANT", id.to_string());
        command.args(tests.iter().map(|test| &test.name));
        Ok(tests.is_empty() || command.status()?.success())
    }

    /// Whether a test finds a mutant.
    fn finds(&self, id: usize) -> Result<bool, Box<dyn Error>> {
        let reaching = self.tests.iter().filter(|test| test.reaches.contains(&id));
        let (short, others): (Vec<_>, Vec<_>) = reaching.partition(|test| test.took < SHORT);
        if !self.passes(id, &short)? {
            return Ok(true);
        }
        for test in others {
            if !self.passes(id, &[test])? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Runs each test once, and notes which mutants it reaches.
    fn measure(&mut self) -> Result<(), Box<dyn Error>> {
        let mut list = self.command(PATIENCE);
        list.args(["--list", "--format", "terse"]);
        list.args(self.stage.filters);
        let names = String::from_utf8(list.stdout(Stdio::piped()).output()?.stdout)?;
        let reached = std::env::temp_dir().join(format!("mutants-reached-{}", std::process::id()));
        for name in names.lines().filter_map(|line| line.strip_suffix(": test")) {
            let _ = fs::remove_file(&reached);
            let start = Instant::now();
            let mut run = self.command(10 * PATIENCE);
            run.args(["--exact", name]).env("MUTANTS_REACHED", &reached);
            if !run.status()?.success() {
                println!("not run, since it fails without any mutant: {name}");
                continue;
            }
            let took = start.elapsed();
            if took > LONG
                && !WHATEVER_IT_TAKES
                    .iter()
                    .any(|begin| name.starts_with(begin))
            {
                println!("not run, since it takes {took:.1?}: {name}");
                continue;
            }
            let text = fs::read_to_string(&reached).unwrap_or_default();
            self.tests.push(Test {
                name: name.to_owned(),
                took,
                reaches: text.lines().map(str::parse).collect::<Result<_, _>>()?,
            });
        }
        let _ = fs::remove_file(&reached);
        self.tests.sort_by_key(|test| test.took);
        println!("{}: {} tests", self.stage.name, self.tests.len());
        Ok(())
    }
}

#[derive(Deserialize)]
struct Compiled {
    reason: String,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
}

/// Compiles the tests, and runs each once.
fn stages(sources: &Path) -> Result<Vec<Ready>, Box<dyn Error>> {
    let mut build = cargo(sources);
    build.args(["test", "--no-run", "--quiet", "--message-format=json"]);
    build.args(TESTS).stderr(Stdio::inherit());
    let output = build.output()?;
    if !output.status.success() {
        return Err("the tests do not compile".into());
    }
    let mut binaries = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let compiled: Compiled = serde_json::from_str(line)?;
        if let (Some(binary), Some(manifest)) = (compiled.executable, compiled.manifest_path)
            && compiled.reason == "compiler-artifact"
        {
            binaries.push((binary, manifest.with_file_name("")));
        }
    }
    let mut stages = Vec::new();
    for stage in &STAGES {
        let folder = sources.join(stage.folder);
        let binary = binaries.iter().find(|(binary, of)| {
            let name = binary.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(stage.binary) && of.ends_with(stage.folder)
        });
        let (binary, _) = binary.ok_or(format!("no binary for {}", stage.name))?;
        let mut ready = Ready {
            stage,
            binary: binary.clone(),
            folder,
            tests: Vec::new(),
        };
        ready.measure()?;
        stages.push(ready);
    }
    Ok(stages)
}

/// The name of the stage that finds a mutant.
fn found_by(mutant: &Mutant, id: usize, stages: &[Ready]) -> Result<&'static str, Box<dyn Error>> {
    for ready in stages {
        let is_tried = ready
            .stage
            .not
            .is_none_or(|not| !mutant.file.starts_with(not));
        if is_tried && ready.finds(id)? {
            return Ok(ready.stage.name);
        }
    }
    Ok("missed")
}

pub(crate) fn attempt(
    mutants: &[Mutant],
    sources: &Path,
    results: &Path,
    samples: &[usize],
) -> Result<(), Box<dyn Error>> {
    let woven = fs::read_to_string(sources.join("woven.txt"))?;
    let woven: BTreeSet<&str> = woven.lines().collect();
    let tried = fs::read_to_string(results).unwrap_or_default();
    let tried: HashMap<&str, &str> = tried
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .collect();
    let left: Vec<usize> = samples
        .iter()
        .flat_map(|sample| (*sample..mutants.len()).step_by(SAMPLES))
        .filter(|id| {
            let name = mutants[*id].name.as_str();
            woven.contains(name) && !tried.contains_key(name)
        })
        .collect();
    if left.is_empty() {
        return Ok(());
    }
    let stages = stages(sources)?;
    let out = OpenOptions::new().create(true).append(true).open(results)?;
    let (out, next) = (Mutex::new(out), AtomicUsize::new(0));
    let work = || -> Result<(), String> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(&id) = left.get(at) else {
                return Ok(());
            };
            let mutant = &mutants[id];
            let by = found_by(mutant, id, &stages).map_err(|error| error.to_string())?;
            let mut out: std::sync::MutexGuard<'_, File> = out.lock().map_err(|e| e.to_string())?;
            writeln!(out, "{}\t{by}", mutant.name).map_err(|error| error.to_string())?;
            if by == "missed" {
                println!("{} of {}: {by}: {}", at + 1, left.len(), mutant.name);
            }
        }
    };
    thread::scope(|scope| {
        // One more than cores, since some tests wait.
        let threads = 1 + thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(())
    })
}
