//! Tests many mutants in one program, which `.ci/mutants` runs.
//!
//! Compiling costs more than testing, so the sources contain every mutant next to the original
//! code, and an environment variable selects the active one ([`weave`]). Each mutant is then tried
//! with the tests that reach it ([`attempt`]).
//!
//! ```text
//! mutants weave LIST SOURCES                 writes them into a copy of the sources
//! mutants try LIST SOURCES RESULTS K...      tries samples of them, each of every hundredth mutant
//! ```
//!
//! LIST is the output of `cargo mutants --list --json`. `weave` writes `woven.txt` to SOURCES: the
//! names of the mutants that compile. `try` adds a line to RESULTS for each mutant that it has
//! tried, and skips mutants that have one.

mod attempt;
mod weave;

use std::error::Error;
use std::fs;
use std::path::Path;

use serde::Deserialize;

/// A place in a file; both count from 1.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Place {
    line: usize,
    column: usize,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Span {
    start: Place,
}

/// An entry of cargo-mutants' list.
#[derive(Clone, Debug, Deserialize)]
struct Mutant {
    file: String,
    genre: String,
    name: String,
    replacement: String,
    span: Span,
}

/// All mutants of a list. A mutant's number is its index.
fn listed(path: &str) -> Result<Vec<Mutant>, Box<dyn Error>> {
    Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["weave", list, sources] => weave::weave(&listed(list)?, Path::new(sources)),
        ["try", list, sources, results, samples @ ..] => {
            let samples: Result<Vec<usize>, _> =
                samples.iter().map(|sample| sample.parse()).collect();
            attempt::attempt(
                &listed(list)?,
                Path::new(sources),
                Path::new(results),
                &samples?,
            )
        }
        _ => {
            Err("usage: mutants weave LIST SOURCES | mutants try LIST SOURCES RESULTS K...".into())
        }
    }
}
