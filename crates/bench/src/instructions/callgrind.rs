//! Runs this program under callgrind and reads the profile.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::instructions::Case;

/// The function at which callgrind writes the counts since the last time.
const MARK: &str = "*instructions_mark*";
/// Parts that a case writes: up to its first mark, N units, 2N units.
pub(super) const PARTS: usize = 3;

/// The counts of one case.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    /// Instructions per unit.
    pub per_unit: f64,
    /// Instructions per unit in the functions that are reported, too, in their order.
    pub shares: Vec<f64>,
}

/// One part of a profile: the instructions between two marks.
#[derive(Debug, Default, PartialEq)]
struct Part {
    total: u64,
    /// Instructions of each function that was called, callees included.
    inclusive: HashMap<String, u64>,
}

impl Part {
    /// The instructions of a function: the one of that name, if it begins with `::`, else all that
    /// have it in their name.
    fn within(&self, function: &str) -> u64 {
        let is_meant = |name: &str| match function.starts_with("::") {
            true => name.ends_with(function),
            false => name.contains(function),
        };
        let of = |(name, cost): (&String, &u64)| is_meant(name).then_some(*cost);
        self.inclusive.iter().filter_map(of).sum()
    }
}

/// The version of Valgrind that is installed.
///
/// # Errors
/// If it is not installed, with the way to install it.
pub fn version() -> Result<String, String> {
    let run = Command::new("valgrind").arg("--version").output();
    match run {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => Err(
            "Instructions are counted by Valgrind, which is not installed here. \
                  `apt-get install valgrind` (as root) or `dnf install valgrind` installs it."
                .to_owned(),
        ),
    }
}

/// Runs this program again under callgrind with `arguments`, which must make it count exactly
/// `cases`. Returns the counts and the output of the run. Leaves the profile in
/// `directory`.
pub fn count(
    arguments: &[&str],
    cases: &[Case],
    directory: &Path,
) -> Result<(Vec<Counted>, String), String> {
    let options = ["--dump-line=no"];
    let (text, said) = profile(arguments, &options, directory)?;
    let parts = parse(&text)?;
    // The end of the program, after the last mark, is one more part.
    if parts.len() != PARTS * cases.len() + 1 {
        return Err(format!(
            "{} cases wrote {} parts into {}",
            cases.len(),
            parts.len(),
            directory.display()
        ));
    }
    let counted = cases.iter().zip(parts.chunks_exact(PARTS));
    let counted: Result<_, _> = counted
        .map(|(case, parts)| difference(case, parts))
        .collect();
    Ok((counted?, said))
}

/// Runs this program again under callgrind with `arguments`, and callgrind with `options`. Returns
/// the profile, which is left in `directory`, and what the run printed.
pub(super) fn profile(
    arguments: &[&str],
    options: &[&str],
    directory: &Path,
) -> Result<(String, String), String> {
    fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let profile = directory.join("callgrind.out");
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--combine-dumps=yes"])
        .args(["--compress-strings=no", "--compress-pos=no"])
        .args(options)
        .arg(format!("--dump-before={MARK}"))
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(program)
        .args(arguments)
        // Copies by one string instruction would count once per byte.
        .env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-ERMS,-FSRM")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("valgrind: {e}"))?;
    if !run.status.success() {
        return Err(format!("valgrind ended with {}", run.status));
    }
    let said = String::from_utf8_lossy(&run.stdout).trim().to_owned();
    let text = fs::read_to_string(&profile).map_err(|e| format!("{}: {e}", profile.display()))?;
    Ok((text, said))
}

/// N units of a warm run: what 2N took without what N took.
fn difference(case: &Case, parts: &[Part]) -> Result<Counted, String> {
    let per_unit = |cost: &dyn Fn(&Part) -> u64| {
        let (once, twice) = (cost(&parts[1]), cost(&parts[2]));
        (twice as f64 - once as f64) / case.units as f64
    };
    let within = |function: &str| per_unit(&|part| part.within(function));
    let counted = Counted {
        per_unit: if case.within.is_empty() {
            per_unit(&|part| part.total)
        } else {
            let weighed = |(function, share): &(&str, f64)| within(function) * share;
            case.within.iter().map(weighed).sum()
        },
        shares: case
            .shares
            .iter()
            .map(|(_, function)| within(function))
            .collect(),
    };
    // A function that was inlined is never called: better no figure than a wrong one.
    for (function, _) in &case.within {
        if within(function) <= 0.0 {
            return Err(format!("{}: nothing was counted in {function}", case.name));
        }
    }
    if counted.per_unit <= 0.0 {
        return Err(format!("{}: nothing was counted", case.name));
    }
    Ok(counted)
}

/// Reads the parts of a profile without compressed names.
fn parse(text: &str) -> Result<Vec<Part>, String> {
    let mut parts: Vec<Part> = Vec::new();
    let mut callee = "";
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("part:") {
            parts.push(Part::default());
            continue;
        }
        let Some(part) = parts.last_mut() else {
            continue;
        };
        if let Some(total) = line.strip_prefix("summary:") {
            part.total = number(total)?;
        } else if let Some(name) = line.strip_prefix("cfn=") {
            callee = name;
        } else if line.starts_with("calls=") {
            // The next line has the caller's line and the cost of all these calls.
            let cost = lines.next().and_then(|line| line.split(' ').nth(1));
            let cost = number(cost.ok_or("a call without its cost")?)?;
            match part.inclusive.get_mut(callee) {
                Some(sum) => *sum += cost,
                None => {
                    part.inclusive.insert(callee.to_owned(), cost);
                }
            }
        }
    }
    Ok(parts)
}

fn number(text: &str) -> Result<u64, String> {
    let text = text.trim();
    text.parse().map_err(|_| format!("{text:?} is no count"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
# callgrind format
version: 1
part: 1
positions: line
events: Ir
summary: 50

fl=a.rs
fn=main
0 50

part: 2
summary: 130
fn=main
0 10
cfi=b.rs
cfn=bench::step
calls=2 0
0 100
cfn=bench::other
calls=1 0
0 20
fn=other
0 20
cfn=bench::step
calls=1 0
0 15

part: 3
summary: 230
fn=main
cfn=bench::step
calls=4 0
0 215
part: 4
summary: 3
";

    fn case() -> Case {
        Case::new("case", "unit", 10, || |_| ()).shares(&[("other", "::other")])
    }

    #[test]
    fn a_profile_falls_into_parts_with_what_their_functions_took() {
        let parts = parse(PROFILE).unwrap();
        let totals: Vec<_> = parts.iter().map(|part| part.total).collect();
        assert_eq!(totals, [50, 130, 230, 3]);
        assert_eq!(parts[1].within("::step"), 115);
        assert_eq!(parts[1].within("::ste"), 0);
        assert_eq!(parts[1].within("bench::"), 135);
        assert_eq!(parts[0].within("::step"), 0);
    }

    #[test]
    fn a_count_is_the_difference_between_two_measurements() {
        let parts = parse(PROFILE).unwrap();
        let counted = difference(&case(), &parts[..PARTS]).unwrap();
        assert_eq!((counted.per_unit, counted.shares), (10.0, vec![-2.0]));
        let within = difference(&case().within("::step"), &parts[..PARTS]).unwrap();
        assert_eq!(within.per_unit, 10.0);
        let half = difference(&case().partly_within("::step", 0.5), &parts[..PARTS]).unwrap();
        assert_eq!(half.per_unit, 5.0);
    }

    #[test]
    fn a_function_that_nobody_called_is_an_error_and_not_zero() {
        let parts = parse(PROFILE).unwrap();
        assert!(difference(&case().within("::gone"), &parts[..PARTS]).is_err());
    }

    #[test]
    fn what_is_no_profile_is_an_error() {
        assert!(parse("part: 1\nsummary: many\n").is_err());
        assert!(parse("part: 1\ncfn=a\ncalls=1 0\n").is_err());
        assert_eq!(parse("").unwrap(), []);
    }
}
