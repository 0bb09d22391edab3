//! A replica stands still for 100 ms: what the application gets meanwhile, and how deep the log has
//! to be.

use std::time::Duration;

use super::lineup::Wanted;
use super::{Ask, Clock, Experiment, note, repeated, verified};
use crate::drivers::Direction;
use crate::drivers::stall::{STALL, StallLog};
use crate::record::{StallRow, StallsResult};
use crate::slices;
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "stall",
    about: "a replica stands still for 100 ms at full speed, between two turns",
    ask: Ask::Stalls,
    published: &[],
};

/// Stalls of each row.
pub(super) const STALLS: usize = 12;

/// A slice holds several stalls, so that few of them are cut by its end.
pub(super) const SLICE: Duration = Duration::from_secs(2);

/// Requests that the log holds, unless more were asked for: 100 ms in runs of 8 full segments at 40
/// Gbit/s.
const LOG: usize = 1 << 16;

/// One connection on the largest number of cores that was asked for, receiving and sending.
pub(super) fn stalls(
    wanted: &Wanted,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Option<StallsResult>, String> {
    let workload = Workload {
        log_requests: wanted.base.log_requests.max(LOG),
        slice: SLICE,
        ..wanted.base
    };
    let mut result = StallsResult {
        stall_ms: STALL.as_secs_f64() * 1e3,
        workload,
        rows: Vec::new(),
    };
    // By every policy if variants were named, else by the default.
    let names = match wanted.variants.is_empty() {
        true => ["replicated"],
        false => ["replicated*"],
    };
    let cores = wanted.cores.iter().copied().max().unwrap_or(1);
    let mut rows = Vec::new();
    for direction in [Direction::Receive, Direction::Send] {
        let mut entries = wanted.entries(direction, &names, "", workload);
        entries.retain(|entry| entry.cores == cores && cores > 1);
        rows.extend(entries.into_iter().map(|entry| (direction, entry)));
    }
    let mut clock = Clock::new(wanted, rows.len());
    for (direction, entry) in rows {
        let within = clock.row();
        let mut log = None;
        let sampled = repeated(|| {
            let row = (entry.variant.make)(direction, &workload, cores)?;
            let mut row = verified(row, workload.segment_bytes)?;
            let log = log.insert(StallLog::of(&mut row, STALLS, workload.seed));
            slices::sample(row, workload.slice, within, &mut || {
                progress(log.taken(), STALLS);
                log.is_full()
            })
        })?;
        let log = log.ok_or("no row was made")?;
        result.rows.push(StallRow {
            variant: entry.variant.name,
            direction,
            cores,
            samples: log.samples(),
            note: note(sampled, log.taken(), STALLS),
        });
    }
    Ok((!result.rows.is_empty()).then_some(result))
}
