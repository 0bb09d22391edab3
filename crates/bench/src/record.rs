//! Rows of a result: figures with their spread, as a table and as JSON.

use core::fmt::Write;

use serde::Serialize;

use crate::paper::Figure;
use crate::seats::{Account, Direction};
use crate::slices::{Measured, Sample};
use crate::topology::Machine;
use crate::workload::Workload;

/// A median with its quartiles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// A quarter of the values is below.
    pub q1: f64,
    /// Half of them is.
    pub median: f64,
    /// Three quarters are.
    pub q3: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let at = |quarter: f64| {
            let place = quarter * last as f64;
            let (below, part) = (place.floor() as usize, place.fract());
            values[below] + part * (values[(below + 1).min(last)] - values[below])
        };
        Some(Spread {
            q1: at(0.25),
            median: at(0.5),
            q3: at(0.75),
        })
    }
}

/// One variant on so many cores.
#[derive(Clone, Debug, Serialize)]
pub struct ResultRow {
    /// Name of the variant.
    pub variant: &'static str,
    /// Threads, one a core.
    pub cores: usize,
    /// Payload.
    pub gbit_per_s: Spread,
    /// Wall-clock nanoseconds per segment of the whole row.
    pub ns_per_segment: Spread,
    /// Throughput over that of `single`, pair by pair.
    pub ratio_to_single: Option<Spread>,
    /// Throughput over that of `limit` on as many cores, pair by pair.
    pub ratio_to_limit: Option<Spread>,
    /// Throughput over that of the same variant on one core, pair by pair.
    pub speedup: Option<Spread>,
    /// Largest share of a slice that a thread waited for its core.
    pub waited_share_max: f64,
    /// Segments in a run, on average.
    pub segments_per_run: Option<f64>,
    /// Share of one core's time in the receive pump (held and with something to do), summed over cores.
    pub rx_pump_cores: Option<f64>,
    /// Share of its time that each core found nothing to do.
    pub idle_share: Vec<f64>,
    /// Requests that each replica had still to apply, on average over its turns.
    pub lag_requests: Vec<f64>,
    /// Share of the payload that each replica was the primary of.
    pub primary_share: Vec<f64>,
    /// Times that the log was full.
    pub log_full: u64,
}

/// An experiment with all its rows.
#[derive(Clone, Debug, Serialize)]
pub struct ExperimentResult {
    /// Its name.
    pub experiment: &'static str,
    /// Which way the payload went.
    pub direction: Direction,
    /// What all rows had in common.
    pub workload: Workload,
    /// Rounds that were kept although a thread had waited for its core.
    pub disturbed_rounds: usize,
    /// Rounds that were measured again for that reason.
    pub repeated_rounds: usize,
    /// The core each thread ran on, if known.
    pub thread_cores: Vec<Option<usize>>,
    /// Whether every thread was pinned.
    pub pinned: bool,
    /// Nanoseconds for a cache line from the first core to the second, just before and just after.
    pub line_transfer_ns: [Option<f64>; 2],
    /// The rows.
    pub rows: Vec<ResultRow>,
    /// Published figures on the same question.
    pub published: Vec<Figure>,
}

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where it ran.
    pub machine: Machine,
    /// What it found.
    pub experiments: Vec<ExperimentResult>,
}

impl ExperimentResult {
    /// From samples of rows that are called `names` and have so many cores.
    pub(crate) fn new(
        experiment: &'static str,
        direction: Direction,
        workload: &Workload,
        names: &[(&'static str, usize)],
        measured: &Measured,
        published: Vec<Figure>,
    ) -> ExperimentResult {
        let samples = |row: usize| measured.rounds.iter().map(move |round| round[row]);
        let find = |name: &str, cores: usize| names.iter().position(|row| *row == (name, cores));
        let ratio = |row: usize, other: Option<usize>| {
            let pair = |(a, b): (Sample, Sample)| a.gbit_per_s() / b.gbit_per_s();
            Spread::of(samples(row).zip(samples(other?)).map(pair))
        };
        let result = |row: usize| {
            let (variant, cores) = names[row];
            let segment = workload.segment_bytes as f64;
            let ns = |s: Sample| s.ns as f64 * segment / s.bytes.max(1) as f64;
            let accounts = &measured.accounts[row];
            let sum = |field: fn(&Account) -> u64| accounts.iter().map(field).sum::<u64>() as f64;
            let share = |part: u64, whole: f64| {
                if whole > 0.0 {
                    part as f64 / whole
                } else {
                    0.0
                }
            };
            let observed = sum(|a| a.observed_ns) > 0.0;
            let each = |value: &dyn Fn(&Account) -> f64| -> Vec<f64> {
                if observed {
                    accounts.iter().map(value).collect()
                } else {
                    Vec::new()
                }
            };
            let performed = sum(|a| a.primary_bytes);
            Some(ResultRow {
                variant,
                cores,
                gbit_per_s: Spread::of(samples(row).map(|s| s.gbit_per_s()))?,
                ns_per_segment: Spread::of(samples(row).map(ns))?,
                ratio_to_single: ratio(row, find("single", 1)),
                ratio_to_limit: ratio(row, find("limit", cores)),
                speedup: (cores > 1).then(|| ratio(row, find(variant, 1))).flatten(),
                waited_share_max: samples(row).map(|s| s.waited).fold(0.0, f64::max),
                segments_per_run: (sum(|a| a.runs) > 0.0)
                    .then(|| sum(|a| a.segments) / sum(|a| a.runs)),
                rx_pump_cores: observed.then(|| {
                    accounts
                        .iter()
                        .map(|a| share(a.rx_pump_ns, a.observed_ns as f64))
                        .sum()
                }),
                idle_share: each(&|a| share(a.idle_ns, a.observed_ns as f64)),
                lag_requests: each(&|a| share(a.lag_requests, a.turns as f64)),
                primary_share: if performed > 0.0 {
                    accounts
                        .iter()
                        .map(|a| share(a.primary_bytes, performed))
                        .collect()
                } else {
                    Vec::new()
                },
                log_full: sum(|a| a.log_full) as u64,
            })
        };
        ExperimentResult {
            experiment,
            direction,
            workload: *workload,
            disturbed_rounds: measured.disturbed,
            repeated_rounds: measured.repeated,
            thread_cores: measured.threads.iter().map(|(core, _)| *core).collect(),
            pinned: measured.threads.iter().all(|(_, pinned)| *pinned),
            line_transfer_ns: [None; 2],
            rows: (0..names.len()).filter_map(result).collect(),
            published,
        }
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> core::fmt::Result {
        let w = &self.workload;
        writeln!(
            out,
            "{}: {}-byte segments, one connection, frame pool {} MB, rings {} KB, log {} requests, merging {}, seed {}",
            self.experiment,
            w.segment_bytes,
            w.pool_bytes >> 20,
            w.ring_bytes >> 10,
            w.log_requests,
            if w.merge { "on" } else { "off" },
            w.seed,
        )?;
        let cores: Vec<String> = self
            .thread_cores
            .iter()
            .map(|core| core.map_or_else(|| "?".to_owned(), |core| core.to_string()))
            .collect();
        writeln!(
            out,
            "{} rounds of {} ms slices; threads on cores {} ({}); a line from core to core {} ns before, {} after; {} rounds measured again, {} kept although disturbed",
            w.rounds,
            w.slice.as_millis(),
            cores.join(", "),
            if self.pinned { "pinned" } else { "not pinned" },
            self.line_transfer_ns[0].map_or_else(|| "?".to_owned(), |ns| format!("{ns:.0}")),
            self.line_transfer_ns[1].map_or_else(|| "?".to_owned(), |ns| format!("{ns:.0}")),
            self.repeated_rounds,
            self.disturbed_rounds,
        )?;
        writeln!(
            out,
            "{:<11} {:>5}  {:>20}  {:>18}  {:>17}  {:>17}  {:>8}",
            "variant", "cores", "Gbit/s", "ns/segment", "/ single", "/ limit", "speed-up"
        )?;
        for row in &self.rows {
            writeln!(
                out,
                "{:<11} {:>5}  {:>20}  {:>18}  {:>17}  {:>17}  {:>8}",
                row.variant,
                row.cores,
                spread(&row.gbit_per_s, 2),
                spread(&row.ns_per_segment, 0),
                row.ratio_to_single
                    .as_ref()
                    .map_or_else(String::new, |r| spread(r, 2)),
                row.ratio_to_limit
                    .as_ref()
                    .map_or_else(String::new, |r| spread(r, 2)),
                row.speedup
                    .as_ref()
                    .map_or_else(String::new, |r| format!("{:.2}", r.median)),
            )?;
        }
        for row in self
            .rows
            .iter()
            .filter(|row| row.segments_per_run.is_some())
        {
            write!(out, "{} on {}:", row.variant, row.cores)?;
            if let Some(run) = row.segments_per_run {
                write!(out, " {run:.2} segments a run")?;
            }
            if let Some(pump) = row.rx_pump_cores {
                write!(
                    out,
                    ", receive pump {} of a core, idle {}, lag {}, log full {}",
                    percent(&[pump]),
                    percent(&row.idle_share),
                    list(&row.lag_requests, |lag| format!("{lag:.1}")),
                    row.log_full,
                )?;
            }
            if row.primary_share.len() > 1 {
                write!(out, ", primary of {}", percent(&row.primary_share))?;
            }
            writeln!(out)?;
        }
        for figure in &self.published {
            writeln!(out, "published: {figure}")?;
        }
        Ok(())
    }
}

fn spread(s: &Spread, digits: usize) -> String {
    format!(
        "{:.digits$} [{:.digits$} {:.digits$}]",
        s.median, s.q1, s.q3
    )
}

fn list(values: &[f64], one: impl Fn(&f64) -> String) -> String {
    values.iter().map(one).collect::<Vec<_>>().join("/")
}

fn percent(shares: &[f64]) -> String {
    list(shares, |share| format!("{:.0}", share * 100.0)) + " %"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_between_their_neighbours() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.q1, spread.median, spread.q3), (1.75, 2.5, 3.25));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        let sample = |bytes| Sample {
            ns: 1000,
            bytes,
            waited: 0.0,
        };
        let measured = Measured {
            // The machine is half as fast in the second round.
            rounds: vec![
                vec![sample(100), sample(200)],
                vec![sample(50), sample(100)],
            ],
            disturbed: 0,
            repeated: 0,
            accounts: vec![vec![Account::default()], vec![Account::default(); 2]],
            threads: vec![(Some(0), true), (Some(1), true)],
        };
        let names = [("single", 1), ("replicated", 2)];
        let result = ExperimentResult::new(
            "x",
            Direction::Receive,
            &Workload::default(),
            &names,
            &measured,
            vec![],
        );
        let ratio = result.rows[1].ratio_to_single.unwrap();
        assert_eq!((ratio.q1, ratio.median, ratio.q3), (2.0, 2.0, 2.0));
        assert!(result.table().contains("replicated"));
    }
}
