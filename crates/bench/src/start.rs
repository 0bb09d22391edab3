//! How a bench target starts.

use core::fmt::Display;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::report;
use crate::targets::{self, TARGETS};

/// Runs the target `name` with its options, unless the command line names another one. An error goes
/// to the standard error stream.
///
/// With `--resume`, a target that has a section ends at once if these words gave it on this machine
/// from these sources. `scalability` resumes by itself.
pub fn main<O: clap::Parser, E: Display>(
    name: &str,
    run: impl FnOnce(O) -> Result<(), E>,
) -> ExitCode {
    let Some(mut arguments) = targets::arguments(name) else {
        return ExitCode::SUCCESS;
    };
    let has_section = TARGETS
        .iter()
        .any(|target| target.name == name && target.has_section());
    if has_section && take_resume(&mut arguments) && report::is_kept(name, &arguments) {
        println!("{name}: measured before");
        return ExitCode::SUCCESS;
    }
    go_back();
    let words = [OsString::from(name)].into_iter().chain(arguments);
    let matches = O::command()
        .after_help(head(name))
        .try_get_matches_from(words);
    let options = match matches.and_then(|mut matches| O::from_arg_matches_mut(&mut matches)) {
        Ok(options) => options,
        Err(error) => error.exit(),
    };
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The text at the head of the target's file: what it measures, and what its options do.
fn head(name: &str) -> String {
    let path = format!("{}/benches/{name}.rs", env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(path).unwrap_or_default();
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    lines
        .map(|line| format!("{}\n", line.trim_start()))
        .collect()
}

/// The entry of a bench target that needs Linux: its module `run` has it.
#[macro_export]
macro_rules! main_on_linux {
    () => {
        #[cfg(target_os = "linux")]
        fn main() -> std::process::ExitCode {
            run::main()
        }

        #[cfg(not(target_os = "linux"))]
        fn main() {
            println!("It needs a Linux kernel.");
        }
    };
}

/// Takes `--resume` out of the arguments. Returns whether it was there.
fn take_resume(arguments: &mut Vec<OsString>) -> bool {
    let all = arguments.len();
    arguments.retain(|argument| argument != "--resume");
    arguments.len() < all
}

/// Goes back to the directory in which Cargo was called, from which a user's paths are relative:
/// Cargo starts a bench in its package's.
fn go_back() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let from = std::env::var_os("PWD").map(PathBuf::from);
    if let (Some(from), Ok(root)) = (from, root.canonicalize())
        && from.starts_with(root)
    {
        // If it is gone, the paths are relative to the package.
        let _ = std::env::set_current_dir(from);
    }
}
