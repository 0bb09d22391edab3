//! A replica leaves and joins again every 200 ms: what the application gets meanwhile, and how long
//! a join takes.

use std::time::Duration;

use super::lineup::Wanted;
use super::{Ask, Clock, Experiment, note, repeated, verified};
use crate::drivers::Direction;
use crate::drivers::joining::{self, PERIOD_NS, SLICE_NS};
use crate::record::{JoinRow, JoinsResult};
use crate::slices;
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "joining",
    about: "a replica leaves and joins again every 200 ms at full speed",
    ask: Ask::Joins,
    published: &[],
};

/// Joins of each row.
pub(super) const JOINS: usize = 12;

/// A slice holds many joins, so that few of them are cut by its end.
pub(super) const SLICE: Duration = Duration::from_secs(2);

/// One connection on the largest number of cores that was asked for, receiving and sending.
pub(super) fn joins(
    wanted: &Wanted,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Option<JoinsResult>, String> {
    let workload = Workload {
        slice: SLICE,
        ..wanted.base
    };
    let mut result = JoinsResult {
        period_ms: PERIOD_NS as f64 / 1e6,
        slice_ms: SLICE_NS as f64 / 1e6,
        workload,
        rows: Vec::new(),
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
    for direction in directions {
        let within = clock.row();
        let mut kept = None;
        let sampled = repeated(|| {
            let (row, log) = joining::row(direction, &workload, cores, JOINS)?;
            let log = kept.insert(log);
            let row = verified(row, workload.segment_bytes)?;
            slices::sample(row, workload.slice, within, &mut || {
                progress(log.taken(), JOINS);
                log.is_full()
            })
        })?;
        let log = kept.ok_or("no row was made")?;
        result.rows.push(JoinRow {
            direction,
            cores,
            samples: log.samples(),
            note: note(sampled, log.taken(), JOINS),
        });
    }
    Ok((!result.rows.is_empty()).then_some(result))
}
