//! `cargo bench [NAME | EXPERIMENT]... [-- OPTIONS]` in the root of the workspace: runs bench
//! targets of `crates/bench`, by default `scalability`.
//!
//! By default Cargo takes the packages of the examples there, so that the first
//! build needs little. The benchmarks need much more, so this target calls Cargo once more.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

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
