//! Runs the benchmarks of `crates/bench`: `cargo bench WORDS` in the root of the workspace.
//!
//! The packages that cargo takes there by default are those of the examples, so that the first
//! build needs little. The benchmarks need much more, so this target calls
//! `cargo bench -p dominoes-bench -- WORDS`.

use std::env;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    if the_benchmarks_run_anyway() {
        return ExitCode::SUCCESS;
    }
    // Cargo says `--bench` to every bench target, and will say it again.
    let words = env::args_os().skip(1).filter(|word| word != "--bench");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let status = Command::new(&cargo)
        .args(["bench", "--manifest-path", manifest, "--"])
        .args(words)
        .status();
    match status {
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

/// Whether cargo was asked for all packages, so that it runs the benchmarks itself.
fn the_benchmarks_run_anyway() -> bool {
    let parent = |stat: String| {
        Some(
            stat.rsplit_once(')')?
                .1
                .split_whitespace()
                .nth(1)?
                .to_owned(),
        )
    };
    let parent = std::fs::read_to_string("/proc/self/stat")
        .ok()
        .and_then(parent);
    let words = parent.and_then(|id| std::fs::read(format!("/proc/{id}/cmdline")).ok());
    let words = words.unwrap_or_default();
    let mut words = words
        .split(|byte| *byte == 0)
        .take_while(|word| *word != b"--");
    words.any(|word| word == b"--workspace" || word == b"--all")
}
