//! A replica stalls for 100 ms: the application's throughput meanwhile, and the depth of the log
//! that this takes.

use std::time::Duration;

use super::{Clock, Experiment, sampled, verified};
use crate::drivers::Direction;
use crate::drivers::stall::{STALL, StallLog, StallSample};
use crate::lineup::Wanted;
use crate::record::text::{conditions, known};
use crate::spread::Spread;
use crate::table::{Bar, Bars, Table, columns};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "stall",
    about: "a replica stands still for 100 ms at full speed, between two turns",
    besides: |wanted, _, progress| table(wanted, progress),
    besides_takes: |_| SLICE * 4 * 2,
    ..Experiment::NONE
};

/// Stalls of each row.
const STALLS: usize = 12;

/// Long enough for several stalls, so that its end cuts few of them.
const SLICE: Duration = Duration::from_secs(2);

/// The least capacity of the log: 100 ms in runs of 8 full segments at 40 Gbit/s.
const LOG: usize = 1 << 16;

const COLUMNS: &str = "row | stalls | ms | Gbit/s meanwhile | longest wait, ms | at most | requests \
     behind at the end | at most | sent again";

/// One connection on the largest requested number of cores, receiving and sending.
fn table(wanted: &Wanted, progress: &mut dyn FnMut(usize, usize)) -> Result<Vec<Table>, String> {
    let workload = Workload {
        log_requests: wanted.base.log_requests.max(LOG),
        slice: SLICE,
        ..wanted.base
    };
    let title = "what an application gets while a replica stands still";
    let mut table = Table::new(title, &columns(COLUMNS));
    table.conditions.push(conditions(&workload));
    let mut bars = Bars {
        heading: format!(
            "throughput while a replica stands still for {} ms",
            STALL.as_millis()
        ),
        ..Bars::default()
    };
    // Every policy if variants were named, otherwise the default.
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
    let mut all = Vec::new();
    for (direction, entry) in rows {
        let (samples, note) = sampled(&mut clock, &workload, progress, || {
            let row = (entry.variant.make)(direction, &workload, cores)?;
            let mut row = verified(row, &workload)?;
            let samples = StallLog::of(&mut row, STALLS, workload.seed);
            Ok((row, samples))
        })?;
        let name = format!("{}/{cores}, {direction:?}", entry.variant.name);
        let values = |what: fn(&StallSample) -> f64| samples.iter().map(what);
        let of = |what, digits| Spread::text(values(what), digits);
        let most = |what, digits| known(values(what).fold(f64::NAN, f64::max), digits);
        let rate = |s: &StallSample| s.bytes as f64 * 8.0 / (s.ms * 1e6);
        table.row(vec![
            name.clone(),
            samples.len().to_string(),
            of(|s| s.ms, 0),
            of(rate, 2),
            of(|s| s.longest_wait_ms, 2),
            most(|s| s.longest_wait_ms, 1),
            of(|s| s.depth_requests as f64, 0),
            most(|s| s.depth_requests as f64, 0),
            samples
                .iter()
                .map(|s| s.sent_again)
                .sum::<u64>()
                .to_string(),
        ]);
        if let Some(rate) = Spread::of(values(rate)) {
            let mut bar = Bar::new(name.clone(), entry.variant.name, rate, 2);
            bar.text += " Gbit/s";
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
