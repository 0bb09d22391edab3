//! `cargo bench [NAME | EXPERIMENT]... [-- OPTIONS]` in the root of the workspace: runs bench
//! targets of `crates/bench`, by default `scalability`. `cargo bench stored` measures all that the
//! READMEs' tables come from, stores it, and makes the tables anew; interrupted, it continues.
//!
//! By default Cargo takes the packages of the examples there, so that the first
//! build needs little. The benchmarks need much more, so this target calls Cargo once more.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitCode};

/// What `stored` measures, each target with its options. The sections are stored at the end, since
/// that changes the sources. Nine rounds leave the five calm pairs that a verdict may need.
const STORED: [&str; 7] = [
    "scalability --quick --budget 60 --rounds 9 --side-rounds 7",
    "scalability projection --quick",
    "synthetic --quick",
    "channel --quick",
    "linux --device v2 --frames small --way receive",
    "field --rounds 2 --seconds 1 --device packet",
    "scalability --quick --budget 60 --rounds 9 --side-rounds 7 --store RESULTS",
];

/// All but the last write into `target/stored.log`: a terminal shows a line for each, and the page
/// of the last.
fn stored(cargo: &OsString, manifest: &Path) -> ExitCode {
    let target = env::current_exe().ok();
    let target = target
        .as_deref()
        .and_then(|program| program.ancestors().nth(3));
    let path = target.unwrap_or(Path::new("target")).join("stored.log");
    let log = match File::create(&path) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    };
    let run = |command: &mut Command| match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("{}: {error}", cargo.display());
            false
        }
    };
    let call = |first: &str| {
        let mut command = Command::new(cargo);
        command.arg(first).arg("--manifest-path").arg(manifest);
        command
    };
    let results = manifest.with_file_name("results.json");
    // A missed target fails a run, whose figures are kept.
    let mut failed = Vec::new();
    for (at, line) in STORED.into_iter().enumerate() {
        let count = STORED.len();
        println!(
            "{} of {count}: {line} (details: {})",
            at + 1,
            path.display()
        );
        let mut words = line.split(' ');
        let mut command = call("bench");
        command.arg("--bench").args(words.next()).arg("--");
        for word in words {
            command.arg(match word {
                "RESULTS" => results.as_os_str(),
                word => word.as_ref(),
            });
        }
        if at + 1 < count
            && let Ok(out) = log.try_clone()
            && let Ok(err) = log.try_clone()
        {
            command.stdout(out).stderr(err);
        }
        if !run(command.arg("--resume")) {
            failed.push(line);
        }
    }
    let mut tables = call("test");
    tables.args(["--quiet", "--lib", "stored"]);
    if !run(tables.env("UPDATE_README", "1")) {
        failed.push("the tables of the READMEs");
    }
    failed.iter().for_each(|line| eprintln!("failed: {line}"));
    ExitCode::from(u8::from(!failed.is_empty()))
}

fn main() -> ExitCode {
    let manifest = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"));
    let benches = manifest.with_file_name("benches");
    let is_option = |word: &OsString| word.to_string_lossy().starts_with('-');
    let is_target = |word: &OsString| benches.join(word).with_extension("rs").is_file();
    // Cargo adds `--bench` to the arguments of every target, and will add it again.
    let arguments = env::args_os().skip(1).filter(|word| word != "--bench");
    let (options, words): (Vec<_>, Vec<_>) = {
        let mut after = false;
        arguments.partition(|word| {
            after |= is_option(word);
            after
        })
    };
    let (mut targets, words): (Vec<_>, Vec<_>) = words.into_iter().partition(is_target);
    if targets.is_empty() {
        targets.push("scalability".into());
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    if words.iter().any(|word| word == "stored") {
        return stored(&cargo, manifest);
    }
    let mut command = Command::new(&cargo);
    command.arg("bench").arg("--manifest-path").arg(manifest);
    for target in targets {
        command.arg("--bench").arg(target);
    }
    match command.arg("--").args(words).args(options).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!(
                "{}: {error}; try `cargo bench -p dominoes-bench`",
                cargo.display()
            );
            ExitCode::FAILURE
        }
    }
}
