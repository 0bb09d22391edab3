//! Whose work it was, over time.

use super::{Clock, Experiment, ROW, sampled, verified};
use crate::drivers::Direction;
use crate::drivers::shares::{ShareLog, ShareSample};
use crate::lineup::{Entry, Wanted};
use crate::paper::Measure;
use crate::record::text::{conditions, known, nanoseconds};
use crate::spread::Spread;
use crate::table::{Lines, Table};
use crate::topology;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "load-share",
    about: "share of each replica in the payload, every 27,400 requests",
    besides: |wanted, _, progress| tables(wanted, progress),
    besides_takes: |wanted| ROW / 2 * entries(wanted).len() as u32,
    ..Experiment::NONE
};

/// Requests between two samples, as in Sizemore's figure 6.1.
const EVERY: u64 = 27_400;
/// Samples of the shares of replicas.
const SAMPLES: usize = 64;

const COLUMNS: [&str; 4] = ["replica", "share of the payload", "least", "most"];

/// One connection receives on the largest number of cores that was asked for.
fn entries(wanted: &Wanted) -> Vec<Entry> {
    let cores = wanted.cores.iter().copied().max().unwrap_or(1);
    let mut entries = wanted.entries(Direction::Receive, &["replicated*"], "", wanted.base);
    entries.retain(|entry| entry.cores == cores && cores > 1);
    entries
}

/// A table for each variant that has primaries. Its measure is the least share, in percent.
fn tables(wanted: &Wanted, progress: &mut dyn FnMut(usize, usize)) -> Result<Vec<Table>, String> {
    let workload = wanted.base;
    let entries = entries(wanted);
    let mut clock = Clock::new(wanted, entries.len());
    let mut tables = Vec::new();
    for entry in entries {
        let line = nanoseconds(topology::line_transfer_ns());
        let (samples, note) = sampled(&mut clock, &workload, progress, || {
            let row = (entry.variant.make)(Direction::Receive, &workload, entry.cores)?;
            let mut row = verified(row, &workload)?;
            let samples = ShareLog::of(&mut row, EVERY, SAMPLES);
            Ok((row, samples))
        })?;
        let name = entry.variant.name;
        let title = format!("{name} on {}: share of each replica", entry.cores);
        let mut table = Table::new(title, &COLUMNS);
        let times = samples.iter().map(|sample| sample.ms);
        table.conditions = vec![
            conditions(&workload),
            format!(
                "{} samples of {EVERY} requests, each {} ms; a line from core to core {line} ns",
                samples.len(),
                Spread::text(times, 1),
            ),
        ];
        let mut ends = Vec::new();
        for sample in &samples {
            ends.push(ends.last().copied().unwrap_or(0.0) + sample.ms);
        }
        let mut lines = Vec::new();
        for replica in 0..entry.cores {
            let shares: Vec<f64> = samples.iter().map(|sample| sample.share[replica]).collect();
            let extreme = |of: fn(f64, f64) -> f64| shares.iter().copied().fold(f64::NAN, of);
            table.row(vec![
                replica.to_string(),
                Spread::text(shares.iter().copied(), 3),
                known(extreme(f64::min), 3),
                known(extreme(f64::max), 3),
            ]);
            let percent = shares.iter().map(|share| 100.0 * share);
            let points = ends.iter().copied().zip(percent);
            lines.push((format!("replica {replica}"), points.collect()));
        }
        let least = |sample: &ShareSample| 100.0 * sample.share.iter().copied().fold(1.0, f64::min);
        if let Some(least) = Spread::of(samples.iter().map(least)) {
            let measure = Measure::of(least, samples.len());
            table.measure(format!("{name}: least share"), measure);
        }
        note.into_iter().for_each(|note| table.note(note));
        table.lines(Lines {
            x: "ms".to_owned(),
            y: "share in the payload, percent".to_owned(),
            doubling: false,
            lines,
        });
        table.keep(&samples);
        tables.push(table);
    }
    Ok(tables)
}
