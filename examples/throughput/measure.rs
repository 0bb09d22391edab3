//! Measures the rows of tables in turns, and prints them.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use dominoes_bench::drivers::Row;
pub(crate) use dominoes_bench::drivers::{self, Direction, Variant};
use dominoes_bench::slices::{self, Sample};
use dominoes_bench::spread::Spread;
use dominoes_bench::topology::{self, Distance, Machine};
pub(crate) use dominoes_bench::workload::Processing;
use dominoes_bench::workload::Workload;

use crate::program::{Arguments, Outcome};

/// Turns of each row.
const ROUNDS: usize = 12;
/// Bytes that every row moves, all compared, before it is measured.
const COMPARED: u64 = 16 << 20;
/// Characters of the longest bar.
const BAR: usize = 40;
/// The usual time for a cache line from core to core, where cores share a cache.
const USUAL_NS: &str = "30 to 60 ns";

pub(crate) const USAGE: &str = "  --rounds N          turns of each row in every table [12]
";

/// A table: it compares the variants for one direction and one processing.
pub(crate) struct Table {
    pub(crate) direction: Direction,
    pub(crate) processing: Processing,
    pub(crate) name: &'static str,
    /// Finds a row of the table.
    pub(crate) variant: fn(&str) -> Option<&'static Variant>,
}

pub(crate) struct Options {
    rounds: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { rounds: ROUNDS }
    }
}

impl Options {
    pub(crate) fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "rounds" => self.rounds = arguments.number(1..=1000)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// One row of every table.
struct Line {
    variant: &'static str,
    cores: usize,
    /// The row to compare its rate with.
    base: Option<usize>,
}

/// Measures all tables.
pub(crate) fn run(tables: &[Table], options: &Options) -> Outcome<()> {
    let begin = Instant::now();
    let machine = Machine::here();
    println!(
        "{}, {} cores, Linux {}",
        machine.cpu, machine.cores, machine.kernel
    );
    println!("One TCP connection, segments of 1448 bytes, frames from 64 MB of memory.");
    let lines = lines(machine.cores);
    let mut seen = Seen::default();
    for (number, table) in (1..).zip(tables) {
        let workload = Workload {
            processing: table.processing,
            verify_checksums: true,
            ..Workload::default()
        };
        let mut progress = Progress::new(format!("table {number} of {}", tables.len()));
        let rows = make(&lines, table, &workload, &mut progress)?;
        let show = &mut |done, of| progress.show(&format!("round {done} of {of}"));
        let measured = slices::measure(rows, workload.slice, options.rounds, show)?;
        progress.clear();
        print(table.name, &lines, &measured.rounds);
        seen.record(&lines, &measured.rounds, measured.disturbed);
    }
    seen.explain(machine.cores);
    println!(
        "\nThe first {} MiB of every row were compared byte by byte, the rest by checksum. {:.0} s.",
        COMPARED >> 20,
        begin.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The rows of every table.
fn lines(cores: usize) -> Vec<Line> {
    let line = |variant, cores, base| Line {
        variant,
        cores,
        base,
    };
    let mut lines = vec![line("smoltcp", 1, None), line("single", 1, Some(0))];
    if cores > 1 {
        lines.push(line("replicated", 2, Some(1)));
    }
    if cores > 2 {
        lines.push(line("replicated", cores, Some(1)));
    }
    lines
}

/// Creates the stacks, and lets each move [`COMPARED`] bytes, which are compared.
fn make(
    lines: &[Line],
    table: &Table,
    workload: &Workload,
    progress: &mut Progress,
) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for line in lines {
        progress.show(&format!("comparing every byte, {}", line.variant));
        let variant = (table.variant)(line.variant).ok_or("there is no such variant")?;
        let mut row = (variant.make)(table.direction, workload, line.cores)?;
        row.drive_until(COMPARED)?;
        rows.push(row);
    }
    Ok(rows)
}

/// The median rate of row `row`, in Gbit/s of payload.
fn median(rounds: &[Vec<Sample>], row: usize) -> f64 {
    let rates = rounds.iter().map(|round| round[row].gbit_per_s());
    Spread::of(rates).map_or(0.0, |spread| spread.median)
}

/// The ratio of two rows in each of the rounds that `counts` accepts, as median and quartiles.
fn ratio(
    rounds: &[Vec<Sample>],
    row: usize,
    base: usize,
    counts: impl Fn(&[Sample]) -> bool,
) -> Option<Spread> {
    let rounds = rounds.iter().filter(|round| counts(round));
    Spread::of(rounds.map(|round| round[row].gbit_per_s() / round[base].gbit_per_s()))
}

fn print(name: &str, lines: &[Line], rounds: &[Vec<Sample>]) {
    let rates: Vec<f64> = (0..lines.len()).map(|row| median(rounds, row)).collect();
    let most = rates.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    println!("\n{name}");
    for (row, line) in lines.iter().enumerate() {
        let cores = match line.cores {
            1 => "1 core".to_owned(),
            cores => format!("{cores} cores"),
        };
        let bar = bar(rates[row] / most);
        let ratio = line.base.and_then(|base| {
            let spread = ratio(rounds, row, base, |_| true)?;
            Some(format!(
                "  {:.2}x {} [{:.2} {:.2}]",
                spread.median, lines[base].variant, spread.q1, spread.q3
            ))
        });
        println!(
            "  {:<10} {cores:<7} {bar:<BAR$} {:>6.1} Gbit/s{}",
            line.variant,
            rates[row],
            ratio.unwrap_or_default()
        );
    }
}

/// A bar for `share` of the longest, in eighths of a character.
fn bar(share: f64) -> String {
    const PARTS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (share.clamp(0.0, 1.0) * (8 * BAR) as f64).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(PARTS[eighths % 8]);
    }
    bar
}

/// The remarks about the machine that all tables share.
#[derive(Default)]
struct Seen {
    rounds: usize,
    disturbed: usize,
    /// Rounds of the row with two cores during which the cores were far apart, or near.
    far: usize,
    near: usize,
    /// Ratios to one core while the cores were near, and while they were far apart.
    near_ratios: Vec<f64>,
    far_ratios: Vec<f64>,
}

impl Seen {
    fn record(&mut self, lines: &[Line], rounds: &[Vec<Sample>], disturbed: usize) {
        self.rounds += rounds.len();
        self.disturbed += disturbed;
        let Some((row, line)) = lines.iter().enumerate().find(|(_, line)| line.cores == 2) else {
            return;
        };
        let base = line.base.unwrap_or(0);
        for round in rounds {
            let ratio = round[row].gbit_per_s() / round[base].gbit_per_s();
            match round[row].distance {
                Some(Distance::Near) => {
                    self.near += 1;
                    self.near_ratios.push(ratio);
                }
                Some(Distance::Far) => {
                    self.far += 1;
                    self.far_ratios.push(ratio);
                }
                None => {}
            }
        }
    }

    /// Reports how far apart the cores are, and possible reasons for a hidden gain of the second
    /// core.
    fn explain(&self, cores: usize) {
        println!();
        if let Some(now) = topology::line_transfer_ns() {
            println!(
                "A cache line takes {now:.0} ns from one core to the other now ({USUAL_NS} where cores share a cache)."
            );
            println!(
                "Of {} rounds the cores were near each other in {}, far apart in {}.",
                self.rounds, self.near, self.far
            );
        }
        let median = |ratios: &[f64]| Spread::of(ratios.iter().copied()).map(|s| s.median);
        let ratios = [
            (&self.near_ratios, "near each other"),
            (&self.far_ratios, "far apart"),
        ];
        for (ratios, distance) in ratios {
            if let Some(ratio) = median(ratios) {
                println!("Two cores {distance}: {ratio:.2}x one core, over all tables.");
            }
        }
        if cores < 2 {
            println!(
                "This process may use one core only, so the gain of a second one does not show."
            );
        } else if 4 * self.disturbed > self.rounds {
            println!(
                "The machine is busy: in {} of {} rounds a thread waited for its core, which hides what a second core \
                 brings.",
                self.disturbed, self.rounds
            );
        } else if 2 * self.far > self.rounds {
            println!(
                "The host keeps the two cores far apart at present, which hides what the second one brings: all that \
                 replicas share crosses that distance. Another run may find them near each other."
            );
        }
    }
}

/// Shows progress on the standard error stream if it is a terminal.
struct Progress {
    what: String,
    terminal: bool,
    last: Instant,
}

impl Progress {
    fn new(what: String) -> Progress {
        Progress {
            what,
            terminal: std::io::stderr().is_terminal(),
            last: Instant::now() - Duration::from_secs(1),
        }
    }

    fn show(&mut self, now: &str) {
        if self.terminal && self.last.elapsed() > Duration::from_millis(100) {
            self.last = Instant::now();
            eprint!("\r{:<70}\r{}, {now}", "", self.what);
            // A failure only hides the progress.
            let _ = std::io::stderr().flush();
        }
    }

    fn clear(&self) {
        if self.terminal {
            eprint!("\r{:<70}\r", "");
        }
    }
}
