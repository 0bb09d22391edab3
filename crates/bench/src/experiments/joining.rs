//! A replica leaves and joins again every 200 ms: what the application gets meanwhile, and how long
//! a join takes.

use std::time::Duration;

use super::{Clock, Experiment, sampled, verified};
use crate::drivers::Direction;
use crate::drivers::joining::{self, JoinSample, PERIOD_NS, SLICE_NS};
use crate::lineup::Wanted;
use crate::record::text::{conditions, known};
use crate::spread::Spread;
use crate::table::{Bar, Bars, Table, columns};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "joining",
    about: "a replica leaves and joins again every 200 ms at full speed",
    besides: |wanted, _, progress| table(wanted, progress),
    besides_takes: |_| SLICE * 2 * 2,
    ..Experiment::NONE
};

/// Joins of each row.
const JOINS: usize = 12;

/// A slice holds many joins, so that few of them are cut by its end.
const SLICE: Duration = Duration::from_secs(2);

const COLUMNS: &str = "row | joins | Gbit/s before | worst slice / before | at least | below 80 %, ms | \
     at most | joining took, ms | at most";

/// One connection on the largest number of cores that was asked for, receiving and sending.
fn table(wanted: &Wanted, progress: &mut dyn FnMut(usize, usize)) -> Result<Vec<Table>, String> {
    let workload = Workload {
        slice: SLICE,
        ..wanted.base
    };
    let [period, slice] = [PERIOD_NS, SLICE_NS].map(|ns| ns / 1_000_000);
    let title = "what an application gets while a replica leaves and joins again";
    let mut table = Table::new(title, &columns(COLUMNS));
    table.conditions = vec![
        conditions(&workload),
        format!("a join every {period} ms; a slice is {slice} ms"),
    ];
    let mut bars = Bars {
        heading: format!(
            "the worst {slice} ms behind a join, in percent of the throughput before it"
        ),
        ..Bars::default()
    };
    let cores = wanted.cores.iter().copied().max().unwrap_or(1);
    let directions = [Direction::Receive, Direction::Send].into_iter();
    let directions: Vec<Direction> = directions
        .filter(|direction| {
            let entries = wanted.entries(*direction, &["replicated"], "", workload);
            cores > 1 && entries.iter().any(|entry| entry.cores == cores)
        })
        .collect();
    let mut clock = Clock::new(wanted, directions.len());
    let mut all = Vec::new();
    for direction in directions {
        let (samples, note) = sampled(&mut clock, &workload, progress, || {
            let (row, samples) = joining::row(direction, &workload, cores, JOINS)?;
            Ok((verified(row, &workload)?, samples))
        })?;
        let name = format!("{cores} replicas, {direction:?}");
        let values = |what: fn(&JoinSample) -> f64| samples.iter().map(what);
        let of = |what, digits| Spread::text(values(what), digits);
        table.row(vec![
            name.clone(),
            samples.len().to_string(),
            of(|s| s.before_gbit_per_s, 2),
            of(|s| s.worst_share, 2),
            known(values(|s| s.worst_share).fold(f64::NAN, f64::min), 2),
            of(|s| s.below_ms, 0),
            known(values(|s| s.below_ms).fold(f64::NAN, f64::max), 0),
            of(|s| s.took_ms, 2),
            known(values(|s| s.took_ms).fold(f64::NAN, f64::max), 2),
        ]);
        if let Some(share) = Spread::of(values(|s| 100.0 * s.worst_share)) {
            let mut bar = Bar::new(name.clone(), "replicated", share, 0);
            bar.text += " %";
            bars.bars.push(bar);
        }
        note.into_iter()
            .for_each(|note| table.note(format!("{name}: {note}")));
        all.push((name, samples));
    }
    table.bars(bars);
    table.keep(&all);
    Ok(if all.is_empty() {
        Vec::new()
    } else {
        vec![table]
    })
}
