//! Where the time of a case goes: Linux's `perf` notes again and again where the program is.
//!
//! Valgrind counts instructions and measures no time. So the case runs by itself in another
//! process, which `perf record` interrupts some thousand times a second of processor time, and
//! `addr2line` finds the line that each of these places was compiled from. The time of a unit, by
//! the clock and without waits for a core, is divided among lines as the samples are. That is done
//! several times over, since a single run depends on the program's address in memory.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::instructions::Case;
use crate::topology;

/// How long a process does the work of a case.
const LASTS: Duration = Duration::from_millis(400);
/// Samples a second.
const FREQUENCY: &str = "5000";

/// Nanoseconds of a unit in each line of the source, with the lines that it is inlined into, the
/// innermost first; code of other programs has no lines.
pub(super) type Lines = Vec<(Vec<(String, u64)>, f64)>;

/// Does the work of a case, and prints what [`sample`] has to know of this process. In the process
/// that is sampled.
pub(super) fn work(case: &Case) -> Result<(), String> {
    let mut work = (case.make)();
    work(case.units);
    let (begin, waited) = (Instant::now(), topology::waited_ns());
    let mut units = 0;
    while begin.elapsed() < LASTS {
        work(case.units);
        units += case.units;
    }
    let ns = begin.elapsed().as_nanos() as u64 - (topology::waited_ns() - waited);
    let maps = fs::read_to_string("/proc/self/maps").map_err(|e| e.to_string())?;
    let program = fs::read_link("/proc/self/exe").map_err(|e| e.to_string())?;
    let base = base(&maps, &program.to_string_lossy()).ok_or("the program has no place")?;
    println!("{base:x} {}", ns as f64 / units as f64);
    Ok(())
}

/// The address of a program's first byte in the memory that these maps describe.
fn base(maps: &str, program: &str) -> Option<u64> {
    let first = maps.lines().find(|line| {
        line.ends_with(program) && line.split_whitespace().nth(2) == Some("00000000")
    })?;
    u64::from_str_radix(first.split('-').next()?, 16).ok()
}

/// Runs this program again with `arguments`, with which it calls [`work`], and samples it.
///
/// # Errors
/// If `perf` or `addr2line` are not there, may not be used, or fail.
pub(super) fn sample(arguments: &[&str], directory: &Path) -> Result<Lines, String> {
    fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let data = directory.join("perf.data");
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let said = output(
        Command::new("perf")
            .args(["record", "--quiet", "--event", "cpu-clock:u"])
            .args(["--freq", FREQUENCY, "--output"])
            .arg(&data)
            .arg("--")
            .arg(&program)
            .args(arguments),
        "",
    )?;
    let numbers = said.trim().split_once(' ');
    let numbers = numbers.and_then(|(base, ns)| {
        let base = u64::from_str_radix(base, 16).ok()?;
        Some((base, ns.parse::<f64>().ok()?))
    });
    let (base, ns) = numbers.ok_or_else(|| format!("the sampled process said {said:?}"))?;
    let places = output(
        Command::new("perf")
            .args(["script", "--fields", "ip", "--input"])
            .arg(&data),
        "",
    )?;
    let samples = samples(&places, base);
    let asked: String = samples
        .keys()
        .map(|place| format!("{place:#x}\n"))
        .collect();
    let lines = output(
        Command::new("addr2line")
            .args(["--addresses", "--inlines", "--exe"])
            .arg(&program),
        &asked,
    )?;
    let all: u64 = samples.values().sum();
    let found = lines_of(&lines);
    let times = samples.iter().map(|(place, count)| {
        let lines = found.get(place).cloned().unwrap_or_default();
        (lines, ns * *count as f64 / all as f64)
    });
    match all {
        0 => Err("perf took no samples".to_owned()),
        _ => Ok(times.collect()),
    }
}

/// The output of a command that reads `input`.
fn output(command: &mut Command, input: &str) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| format!("{name}: {error}");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let done = thread::scope(|scope| {
        let stdin = child.stdin.take();
        scope.spawn(move || {
            // A command that does not read all input reports the error below.
            stdin.map(|mut stdin| stdin.write_all(input.as_bytes()))
        });
        child.wait_with_output()
    });
    let done = done.map_err(failed)?;
    if !done.status.success() {
        let why = String::from_utf8_lossy(&done.stderr);
        let first = why.lines().find(|line| !line.is_empty());
        return Err(format!("{name}: {}", first.unwrap_or("failed")));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// How often each place of the program at `base` was seen. Code elsewhere is at place
/// 0.
fn samples(places: &str, base: u64) -> HashMap<u64, u64> {
    let mut samples = HashMap::new();
    for line in places.lines() {
        if let Ok(place) = u64::from_str_radix(line.trim(), 16) {
            let place = place.saturating_sub(base);
            *samples.entry(place).or_default() += 1;
        }
    }
    samples
}

/// The lines of each place, from what `addr2line` prints.
fn lines_of(text: &str) -> HashMap<u64, Vec<(String, u64)>> {
    let mut found: HashMap<u64, Vec<(String, u64)>> = HashMap::new();
    let mut place = 0;
    for line in text.lines() {
        if let Some(hex) = line.strip_prefix("0x") {
            place = u64::from_str_radix(hex, 16).unwrap_or(0);
        } else if let Some((file, rest)) = line.rsplit_once(':') {
            let digits = rest.split_whitespace().next().unwrap_or(rest);
            if let Ok(number) = digits.parse() {
                found
                    .entry(place)
                    .or_default()
                    .push((file.to_owned(), number));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_is_where_the_first_byte_of_the_program_lies() {
        let maps = "\
7f00-7f10 r-xp 00000000 08:01 1 /lib/libc.so
55a0-55b0 r-xp 00001000 08:01 2 /bin/bench
5590-55a0 r--p 00000000 08:01 2 /bin/bench
";
        assert_eq!(base(maps, "/bin/bench"), Some(0x5590));
        assert_eq!(base(maps, "/bin/other"), None);
    }

    #[test]
    fn samples_are_counted_by_their_place_in_the_program() {
        let seen = samples("  1010\n  1020\n  1010\n  fff\n\n", 0x1000);
        assert_eq!(seen, HashMap::from([(0x10, 2), (0x20, 1), (0, 1)]));
    }

    #[test]
    fn a_place_has_the_lines_that_it_is_inlined_into() {
        let text = "\
0x0000000000000010
/x/core.rs:7 (discriminator 2)
/x/netstack/src/a.rs:12
0x0000000000000020
??:0
0x0000000000000030
??:?
";
        let found = lines_of(text);
        let at = |file: &str, line| (file.to_owned(), line);
        let inlined = vec![at("/x/core.rs", 7), at("/x/netstack/src/a.rs", 12)];
        assert_eq!(found[&0x10], inlined);
        assert_eq!(found[&0x20], [at("??", 0)]);
        assert!(!found.contains_key(&0x30));
    }
}
