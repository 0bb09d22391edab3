//! Key counts against a checked-in file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::instructions::Case;
use crate::instructions::callgrind::Counted;

/// By how much a count may differ from the file, in either direction, as a share of it.
pub const MARGIN: f64 = 0.03;
/// This number of instructions is no difference, where the margin is less: a call of fifty moves by
/// two or three when the compiler divides unrelated code otherwise.
const FEW: f64 = 3.0;

const HEAD: &str = "\
# Instructions per unit (a call, a segment) of the key cases, and what they were counted with.
# `cargo bench instructions -- --check` fails if one differs by more than 3 %
# (or 3 instructions, if that is more).
# `cargo bench instructions -- --accept` writes this file anew: a change of it belongs into
# the change of code that causes it.

";

/// Tools that counts depend on, in addition to our code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tools {
    /// The compiler.
    pub rustc: String,
    /// Valgrind.
    pub valgrind: String,
    /// The C library.
    pub libc: String,
    /// What the processor can do, as Valgrind shows it; see [`super::processor`].
    pub processor: String,
}

impl Tools {
    /// The tools of this machine, with these names for Valgrind and the processor.
    pub fn here(valgrind: String, processor: String) -> Self {
        let first_line = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            text.lines().next().map(str::to_owned)
        };
        let unknown = || "unknown".to_owned();
        Tools {
            rustc: first_line("rustc", &["--version"]).unwrap_or_else(unknown),
            valgrind,
            libc: first_line("getconf", &["GNU_LIBC_VERSION"]).unwrap_or_else(unknown),
            processor,
        }
    }
}

/// What the file holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accepted {
    /// What the counts were made with.
    pub tools: Tools,
    /// For each key case, instructions per unit.
    pub counts: BTreeMap<String, f64>,
}

impl Accepted {
    /// The counts of key cases.
    pub fn new(tools: Tools, cases: &[Case], counted: &[Counted]) -> Self {
        let key = |(case, counted): (&Case, &Counted)| {
            case.key
                .then(|| (case.name.clone(), round(counted.per_unit)))
        };
        Accepted {
            tools,
            counts: cases.iter().zip(counted).filter_map(key).collect(),
        }
    }

    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let text = toml::to_string(self).map_err(|e| e.to_string())?;
        fs::write(path, HEAD.to_owned() + &text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// These counts with the `newer` ones; with `all`, the newer ones alone.
    #[must_use]
    pub fn updated(mut self, newer: Accepted, all: bool) -> Self {
        if all {
            return newer;
        }
        self.counts.extend(newer.counts);
        Accepted {
            tools: newer.tools,
            counts: self.counts,
        }
    }

    /// Lists the counts of `now` that differ by more than the margin. `all`: every key case
    /// was counted, so that one which is missing is an old one.
    pub fn differences(&self, now: &Accepted, all: bool) -> Vec<String> {
        let mut found = Vec::new();
        for (name, &count) in &now.counts {
            match self.counts.get(name) {
                None => found.push(format!("{name}: {count}, which the file does not have")),
                Some(&accepted) => {
                    let allowed = (accepted * MARGIN).max(FEW);
                    let within = (count - accepted).abs() <= allowed;
                    if !within {
                        let percent = (count / accepted - 1.0) * 100.0;
                        found.push(format!("{name}: {count}, was {accepted} ({percent:+.1} %)"));
                    }
                }
            }
        }
        if all {
            let gone = self
                .counts
                .keys()
                .filter(|name| !now.counts.contains_key(*name));
            found
                .extend(gone.map(|name| format!("{name}: stands in the file, but is not counted")));
        }
        found
    }
}

/// Tenths are enough.
fn round(count: f64) -> f64 {
    (count * 10.0).round() / 10.0
}

/// Checks that this program contains no vector instruction of the checksum's loops as a function:
/// then code between a loop and its selection was not inlined, and the loop makes a call for each
/// instruction. That takes three times as long. Valgrind does not show it for AVX-512, which it
/// does not know.
///
/// # Errors
/// The names of the functions, or why they are not known.
pub fn check_inlining() -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let symbols = Command::new("nm").arg(program).output();
    let symbols = symbols.map_err(|error| format!("nm: {error}; apt-get install binutils"))?;
    let symbols = String::from_utf8_lossy(&symbols.stdout);
    let is_stray = |line: &&str| line.contains("_avg_epu16");
    match symbols.lines().filter(is_stray).collect::<Vec<_>>() {
        stray if stray.is_empty() => Ok(()),
        stray => Err(format!(
            "vector instructions are calls: {}",
            stray.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(counts: &[(&str, f64)]) -> Accepted {
        Accepted {
            tools: Tools {
                rustc: "r".to_owned(),
                valgrind: "v".to_owned(),
                libc: "c".to_owned(),
                processor: "p".to_owned(),
            },
            counts: counts
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect(),
        }
    }

    #[test]
    fn a_difference_above_the_margin_is_found_in_both_directions() {
        let file = accepted(&[("a", 1000.0)]);
        for (count, differs) in [
            (970.1, false),
            (1029.9, false),
            (969.0, true),
            (1031.0, true),
        ] {
            let found = file.differences(&accepted(&[("a", count)]), true);
            assert_eq!(!found.is_empty(), differs, "{count}: {found:?}");
        }
        assert!(
            !file
                .differences(&accepted(&[("a", f64::NAN)]), true)
                .is_empty()
        );
    }

    #[test]
    fn small_counts_may_differ_by_a_few_instructions_and_no_more() {
        let file = accepted(&[("a", 50.0)]);
        assert!(file.differences(&accepted(&[("a", 53.0)]), true).is_empty());
        assert!(!file.differences(&accepted(&[("a", 53.5)]), true).is_empty());
    }

    #[test]
    fn new_and_vanished_cases_are_differences() {
        let file = accepted(&[("a", 5.0), ("b", 5.0)]);
        let now = accepted(&[("b", 5.0), ("c", 5.0)]);
        assert_eq!(file.differences(&now, true).len(), 2);
        // With a filter, a missing case was not asked for.
        assert_eq!(file.differences(&now, false).len(), 1);
    }

    #[test]
    fn accepting_some_keeps_the_others_and_accepting_all_does_not() {
        let file = accepted(&[("a", 5.0), ("b", 5.0)]);
        let now = accepted(&[("b", 7.0)]);
        let some = file.clone().updated(now.clone(), false);
        assert_eq!(some, accepted(&[("a", 5.0), ("b", 7.0)]));
        assert_eq!(file.updated(now.clone(), true), now);
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let path = std::env::temp_dir().join(format!("dominoes-gate-{}", std::process::id()));
        let file = accepted(&[("single/read, 1448", 1234.5), ("b", 6.0)]);
        file.write(&path).unwrap();
        let read = Accepted::read(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(read, Ok(file));
    }

    /// The file in the repository names exactly the cases that the gate watches.
    #[test]
    fn the_checked_in_file_is_about_the_key_cases() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.toml");
        let file = Accepted::read(&path).unwrap();
        let cases = crate::instructions::cases("");
        let mut keys: Vec<_> = cases
            .iter()
            .filter(|case| case.key)
            .map(|case| &case.name)
            .collect();
        keys.sort();
        assert_eq!(file.counts.keys().collect::<Vec<_>>(), keys);
    }
}
