//! Tries many mutants in one program: `.ci/mutants` says which.
//!
//! Compiling costs more than testing, so every mutant stands in the sources at once, beside what
//! it changes, and a variable of the environment says which of them is active ([`weave`]). Each is
//! then tried with the tests that reach it ([`attempt`]).
//!
//! ```text
//! mutants weave LIST SOURCES                 writes them into a copy of the sources
//! mutants try LIST SOURCES RESULTS K...      tries samples of those, each every hundredth
//! ```
//!
//! LIST is what `cargo mutants --list --json` prints. `weave` leaves `woven.txt` in SOURCES: the
//! names of those that compile so. RESULTS gets a line for each that was tried; what it has is not
//! tried again.

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

/// What cargo-mutants lists.
#[derive(Clone, Debug, Deserialize)]
struct Mutant {
    file: String,
    genre: String,
    name: String,
    replacement: String,
    span: Span,
}

/// All of a list. A mutant's number is its index.
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
