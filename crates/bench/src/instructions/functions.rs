//! What each function of the protocol costs: instructions, data reads and data writes of one
//! segment, by the line of the source they come from, and time, by samples of the same lines.
//!
//! Functions are inlined into each other, so a profile by function would be of little use.
//! Callgrind has the file and line that each instruction was compiled from; `by_function` adds
//! these up by the function that contains the line. Code of a library counts for the function of
//! ours that it was inlined into, and for a library's own functions under their names.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use dominoes_testkit::packet::Family;

use super::callgrind::{self, PARTS};
use super::stack::{self, SEGMENTS, Setting, Use};
use super::{apart, sampled};
use crate::instructions::Case;

/// First argument of a process that executes the cases, for Valgrind to count; with `card`, that
/// of the card; with the number of one of them, that one for `perf` to sample.
pub const INNER: &str = "--functions";
const CARD: &str = "card";

/// Payload of a segment, in bytes, as in Kim, Sung and Lee.
const SEGMENT: u32 = 1412;

/// Instructions, data reads and data writes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Executed instructions.
    pub instructions: f64,
    /// Instructions that read memory.
    pub reads: f64,
    /// Instructions that write memory.
    pub writes: f64,
}

impl Cost {
    /// Adds `times` times what `other` is.
    pub(crate) fn add(&mut self, other: Cost, times: f64) {
        self.instructions += times * other.instructions;
        self.reads += times * other.reads;
        self.writes += times * other.writes;
    }
}

/// The cost of a segment, by file below the stack's sources and function in it; functions of
/// libraries have no file.
pub type Costs = HashMap<(String, String), Cost>;

/// Nanoseconds of a segment, by the same names.
pub type Times = HashMap<(String, String), f64>;

/// Plays the part of a process with these arguments after [`INNER`]; `card` is the case of the card.
pub fn play(arguments: &[String], card: impl FnOnce() -> Case) -> ExitCode {
    let Some(number) = arguments.first() else {
        cases()
            .into_iter()
            .chain(apart::cases())
            .for_each(|case| case.count());
        return ExitCode::SUCCESS;
    };
    if number == CARD {
        card().count();
        return ExitCode::SUCCESS;
    }
    let case = number
        .parse()
        .ok()
        .and_then(|n: usize| cases().into_iter().nth(n));
    let done = case.map_or(Err("no such case".to_owned()), |case| sampled::work(&case));
    let said = done.inspect_err(|error| eprintln!("{INNER} {number}: {error}"));
    ExitCode::from(u8::from(said.is_err()))
}

/// A received segment, each in its own request as in the paper; and a sent one.
pub fn cases() -> [Case; 2] {
    let setting = |using, merge| Setting {
        family: Family::V4,
        using,
        segment: SEGMENT,
        merge,
        timestamps: false,
        verifies_checksums: false,
    };
    [
        stack::single(setting(Use::InPlace, false)),
        stack::single(setting(Use::Send, true)),
    ]
}

/// The costs of both cases and of the paper's functions, each by itself.
///
/// # Errors
/// If Valgrind is not there or fails, or the sources cannot be read.
pub(crate) fn count(directory: &Path) -> Result<([Costs; 2], Vec<Cost>), String> {
    callgrind::version()?;
    let options = ["--cache-sim=yes", "--dump-line=yes"];
    let (profile, _) = callgrind::profile(&[INNER], &options, directory)?;
    let parts = by_function(&profile, &mut Sources::default())?;
    let cases = 2 + apart::APART.len();
    if parts.len() != PARTS * cases + 1 {
        return Err(format!("{} parts of {cases} cases", parts.len()));
    }
    let difference = |case: usize| difference(&parts[PARTS * case..], SEGMENTS);
    let whole = |case| {
        let mut sum = Cost::default();
        let costs = difference(case);
        costs.values().for_each(|cost| sum.add(*cost, 1.0));
        sum
    };
    let apart = (2..cases).map(whole).collect();
    Ok(([difference(0), difference(1)], apart))
}

/// The costs of a datagram each way by function of the card's firmware, on one processor. Its case
/// runs `units` of them.
pub(crate) fn count_card(directory: &Path, units: u64) -> Result<Costs, String> {
    callgrind::version()?;
    let (profile, _) = callgrind::profile(&[INNER, CARD], &["--dump-line=yes"], directory)?;
    let mut sources = Sources {
        ours: of_card,
        ..Sources::default()
    };
    let parts = by_function(&profile, &mut sources)?;
    match parts.len() > PARTS {
        true => Ok(difference(&parts, units)),
        false => Err(format!("{} parts of a case", parts.len())),
    }
}

/// N units of a warm run: what 2N took without what N took.
fn difference(parts: &[Costs], units: u64) -> Costs {
    let mut costs = Costs::new();
    for (part, sign) in [(2, 1.0), (1, -1.0)] {
        for (key, cost) in &parts[part] {
            let times = sign / units as f64;
            costs.entry(key.clone()).or_default().add(*cost, times);
        }
    }
    costs
}

/// The times of case `case` of [`cases`], sampled in another process.
///
/// # Errors
/// If Linux's `perf` or `addr2line` are not there, or may not be used.
pub fn time(case: usize, directory: &Path) -> Result<Times, String> {
    let lines = sampled::sample(&[INNER, &case.to_string()], directory)?;
    let mut sources = Sources::default();
    let mut times = Times::new();
    for (lines, ns) in lines {
        let ours = lines.iter().find_map(|(file, line)| {
            let file = ours(file)?;
            Some((file.to_owned(), sources.function(file, *line).to_owned()))
        });
        *times.entry(ours.unwrap_or_default()).or_default() += ns;
    }
    Ok(times)
}

/// Where functions begin, by file.
struct Sources {
    starts: HashMap<String, Vec<(u64, String)>>,
    /// The name of a file, if its functions are listed.
    ours: fn(&str) -> Option<&str>,
}

impl Default for Sources {
    fn default() -> Sources {
        let starts = HashMap::new();
        Sources { starts, ours }
    }
}

/// The folders of the stack's sources, below `crates`.
pub(crate) const FOLDERS: [&str; 2] = ["netstack/src/", "netstack/proto/src/"];
/// The folder of the card's firmware, and its files with handlers. Code of other files there counts
/// for the handler that it is inlined into.
const CARD_FOLDER: &str = "drivers/src/nic/";
const HANDLERS: [&str; 2] = ["firmware.rs", "processor.rs"];

fn of_card(path: &str) -> Option<&str> {
    let (_, file) = path.split_once(CARD_FOLDER)?;
    HANDLERS.contains(&file).then_some(file)
}

/// The name of a file below one of [`FOLDERS`].
fn ours(path: &str) -> Option<&str> {
    let within = |folder| path.split_once(folder).map(|(_, file)| file);
    FOLDERS.into_iter().find_map(within)
}

impl Sources {
    /// The function that contains a line of a file of ours; a special name for a line
    /// outside of functions.
    fn function(&mut self, file: &str, line: u64) -> &str {
        let starts = self.starts.entry(file.to_owned()).or_insert_with(|| {
            let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let read = |folder| fs::read_to_string(crates.join(folder).join(file)).ok();
            // Without its source a file is one function.
            let mut folders = FOLDERS.into_iter().chain([CARD_FOLDER]);
            starts(&folders.find_map(read).unwrap_or_default())
        });
        let behind = starts.partition_point(|(start, _)| *start <= line);
        match behind.checked_sub(1) {
            Some(at) => &starts[at].1,
            None => "derived",
        }
    }
}

/// The lines at which functions begin, and their names.
fn starts(text: &str) -> Vec<(u64, String)> {
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(at) = words.iter().position(|word| *word == "fn") else {
            continue;
        };
        let is_head = words[..at].iter().all(|word| {
            word.starts_with("pub")
                || ["const", "unsafe", "in"].contains(word)
                || word.ends_with(')')
        });
        if let (true, Some(name)) = (is_head, words.get(at + 1)) {
            let end = name.find(['(', '<']).unwrap_or(name.len());
            found.push((number, name[..end].to_owned()));
        }
    }
    found
}

/// Reads a profile with lines and without compressed names: for each part the costs by function.
fn by_function(text: &str, sources: &mut Sources) -> Result<Vec<Costs>, String> {
    let mut parts: Vec<Costs> = Vec::new();
    let (mut file, mut function) = ("", "");
    // The function of ours that the current one has last come through.
    let mut within: Option<(String, String)> = None;
    let mut is_call = false;
    for line in text.lines() {
        if line.starts_with("part:") {
            parts.push(Costs::new());
        } else if let Some(name) = line.strip_prefix("fl=") {
            file = name;
        } else if let Some(name) = line.strip_prefix("fi=").or(line.strip_prefix("fe=")) {
            file = name;
        } else if let Some(name) = line.strip_prefix("fn=") {
            (function, within) = (name, None);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            // The cost of a call is counted by the functions that it called.
            if std::mem::take(&mut is_call) {
                continue;
            }
            let Some(part) = parts.last_mut() else {
                continue;
            };
            let mut numbers = line.split(' ').map(|word| {
                let number: Result<u64, _> = word.parse();
                number.map_err(|_| format!("{line:?} is no cost"))
            });
            let line = numbers.next().ok_or("a cost without its line")??;
            let mut next = || numbers.next().unwrap_or(Ok(0)).map(|number| number as f64);
            let cost = Cost {
                instructions: next()?,
                reads: next()?,
                writes: next()?,
            };
            let key = match (sources.ours)(file) {
                Some(file) => {
                    let name = sources.function(file, line).to_owned();
                    within = Some((file.to_owned(), name));
                    within.clone()
                }
                None => within.clone(),
            };
            let key = key.unwrap_or_else(|| (String::new(), function.to_owned()));
            part.entry(key).or_default().add(cost, 1.0);
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_a_source_are_found() {
        let text = "//! fn no\npub(crate) const fn one<T>(x: T) {\n}\n\n    fn two(\n    let f: fn (u8);\n";
        let found = starts(text);
        assert_eq!(found, [(2, "one".to_owned()), (5, "two".to_owned())]);
    }

    #[test]
    fn costs_go_to_the_line_that_they_were_compiled_from() {
        let mut sources = Sources::default();
        let whole = vec![(10, "one".to_owned()), (20, "two".to_owned())];
        sources.starts.insert("a.rs".to_owned(), whole);
        let text = "\
part: 1
fl=/x/netstack/src/a.rs
fn=caller
12 5 1
fi=/lib/core.rs
7 2 1 1
fe=/x/netstack/proto/src/a.rs
calls=1 0
21 1000 900
21 3
fl=/lib/copy.S
fn=memcpy
1 4 2 2
part: 2
";
        let parts = by_function(text, &mut sources).unwrap();
        let of = |file: &str, name: &str| parts[0].get(&(file.to_owned(), name.to_owned()));
        let cost = |instructions, reads, writes| Cost {
            instructions,
            reads,
            writes,
        };
        assert_eq!(of("a.rs", "one"), Some(&cost(7.0, 2.0, 1.0)));
        assert_eq!(of("a.rs", "two"), Some(&cost(3.0, 0.0, 0.0)));
        assert_eq!(of("", "memcpy"), Some(&cost(4.0, 2.0, 2.0)));
        assert!(parts[1].is_empty());
        assert!(by_function("part: 1\n1 x\n", &mut sources).is_err());
    }
}
