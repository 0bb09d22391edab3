//! What every example with a command line does in `main`.

use std::error::Error;
use std::process::ExitCode;

/// A value, or what kept the example from it.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Runs the example with the options of its command line, or prints `usage` where they are `None`:
/// help was asked for. An error goes to the standard error stream, behind the example's `name`.
pub(crate) fn main<O>(
    name: &str,
    usage: &[&str],
    options: Outcome<Option<O>>,
    run: impl FnOnce(&O) -> Outcome<()>,
) -> ExitCode {
    let done = options.and_then(|options| match options {
        None => {
            print!("{}", usage.concat());
            Ok(())
        }
        Some(options) => run(&options),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}
