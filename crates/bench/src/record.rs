//! The results of an experiment: panels of rows that took turns, and tables.

pub(crate) mod text;

use serde::Serialize;

use crate::drivers::{Account, Direction, LOCKS};
use crate::lineup::Panel;
use crate::paper::{self, Figure, Measures};
use crate::ratio::{Kept, Pick, Quotient, RatioLine, Rounds, Target};
use crate::slices::{Measured, Sample};
use crate::spread::Spread;
use crate::table::Table;
use crate::topology;
use crate::workload::Workload;

/// One variant on a number of cores.
#[derive(Clone, Debug, Serialize)]
pub struct ResultRow {
    /// Name of the variant.
    pub variant: &'static str,
    /// Threads, one a core unless there are more than the machine has.
    pub cores: usize,
    /// Its other difference from rows of the panel; may be empty.
    pub case: String,
    /// Its workload.
    pub workload: Workload,
    /// Samples that were left out since a thread had to wait for its core.
    pub disturbed_samples: usize,
    /// Whether that would have left none. Then the figures are of all samples.
    pub all_disturbed: bool,
    /// Payload.
    pub gbit_per_s: Spread,
    /// Wall-clock nanoseconds per segment of the whole row.
    pub ns_per_segment: Spread,
    /// Throughput over `single` in the same case, pair by pair.
    pub ratio_to_single: Option<Spread>,
    /// Throughput over `limit` on as many cores in the same case, pair by pair.
    pub ratio_to_limit: Option<Spread>,
    /// Throughput over the same variant on one core in the same case, pair by pair.
    pub speedup: Option<Spread>,
    /// Share of all its cores' time that the simulated device and its peer take; beside a speed-up,
    /// if the row has that peer.
    pub device_share: Option<f64>,
    /// Largest share of a slice that a thread waited for its core.
    pub waited_share_max: f64,
    /// Segments in a run, on average.
    pub segments_per_run: Option<f64>,
    /// Share of one core's time in the receive pump (held and with something to do), summed over
    /// cores.
    pub rx_pump_cores: Option<f64>,
    /// Nanoseconds per frame that the receiving half of the device was held, whose simulated peer
    /// makes the frame meanwhile; and that the receive pump was held.
    pub held_ns: Option<[f64; 2]>,
    /// Share of its time that each core found nothing to do.
    pub idle_share: Vec<f64>,
    /// Requests that each replica had still to apply, on average over its turns.
    pub lag_requests: Vec<f64>,
    /// Share of the payload that each replica was the primary of.
    pub primary_share: Vec<f64>,
    /// Times that the log was full in the slice under observation.
    pub log_full: u64,
    /// Segments that were sent again, since a thread was held up for long.
    pub sent_again: u64,
    /// How long a thread was held up in the worst slice, in milliseconds.
    pub held_up_ms: f64,
    /// Segments that were sent before one that belongs before them, which several cores may do.
    pub out_of_order: u64,
    /// Share of its time that each thread waited for a lock on the state, if there is one.
    pub lock_wait_share: Vec<f64>,
    /// Segments for each time that the lock was taken.
    pub segments_per_lock: Option<f64>,
    /// Share of segments that came to the state after one that had arrived later; where that can
    /// happen.
    pub misordered_share: Option<f64>,
    /// Where there are several locks, the locks with waiters, and the share of all threads'
    /// time that this took.
    pub waits: Vec<(&'static str, f64)>,
    /// Share of counted requests that came after one that TCP had later; if the application counts.
    pub counted_misordered_share: Option<f64>,
}

/// Rows that took turns.
#[derive(Clone, Debug, Serialize)]
pub struct PanelResult {
    /// Its name, unique in the experiment.
    pub name: String,
    /// Which way the payload went.
    pub direction: Direction,
    /// What all rows had in common.
    pub workload: Workload,
    /// Rounds, that is slices of each row.
    pub rounds: usize,
    /// Rounds that were kept although a thread had waited for its core.
    pub disturbed_rounds: usize,
    /// Rounds that were measured again for that reason.
    pub repeated_rounds: usize,
    /// The core each thread ran on, if known.
    pub thread_cores: Vec<Option<usize>>,
    /// Whether every thread was pinned.
    pub pinned: bool,
    /// Threads of the largest row beyond the cores of the machine.
    pub over_committed: usize,
    /// Nanoseconds for a cache line from the first core to the second, just before and just after.
    pub line_transfer_ns: [Option<f64>; 2],
    /// The rows.
    pub rows: Vec<ResultRow>,
    /// The ratios between rows, with their targets.
    pub ratios: Vec<RatioLine>,
    /// Why there are no figures, if the stack failed.
    pub failed: Option<String>,
    /// Why there are no figures, if the machine was disturbed.
    pub disturbed: Option<String>,
}

/// An experiment with all its panels.
#[derive(Clone, Debug, Serialize)]
pub struct ExperimentResult {
    /// Its name.
    pub experiment: &'static str,
    /// Its question.
    pub about: &'static str,
    /// Comparisons.
    pub panels: Vec<PanelResult>,
    /// Conclusions from them, and other measurements.
    pub tables: Vec<Table>,
    /// Published figures on the same question.
    pub published: &'static [Figure],
    /// Other failures than failed panels.
    pub failures: Vec<String>,
    /// How long it took.
    pub seconds: f64,
}

impl ExperimentResult {
    /// Nothing yet, of this experiment.
    pub fn new(experiment: &'static str, about: &'static str) -> ExperimentResult {
        ExperimentResult {
            experiment,
            about,
            panels: Vec::new(),
            tables: Vec::new(),
            published: paper::published(experiment),
            failures: Vec::new(),
            seconds: 0.0,
        }
    }

    /// All its tables.
    pub fn all_tables(&self) -> impl Iterator<Item = Table> {
        let panels = self.panels.iter().map(PanelResult::table);
        panels.chain(self.tables.iter().cloned())
    }

    /// What published figures are compared with.
    pub fn measures(&self) -> Measures {
        self.all_tables().flat_map(|table| table.measures).collect()
    }
}

impl PanelResult {
    /// Of a panel that has no figures since the stack failed.
    pub(crate) fn failed(panel: &Panel, why: String) -> PanelResult {
        PanelResult {
            failed: Some(why),
            ..PanelResult::without_rows(panel)
        }
    }

    /// Of a panel that has no figures since the machine was disturbed.
    pub(crate) fn disturbed(panel: &Panel, why: String) -> PanelResult {
        PanelResult {
            disturbed: Some(why),
            ..PanelResult::without_rows(panel)
        }
    }

    fn without_rows(panel: &Panel) -> PanelResult {
        let nothing = Panel {
            entries: Vec::new(),
            ..panel.clone()
        };
        PanelResult::empty(&nothing)
    }

    /// Of a panel that has no rows, since no variant can do it or none was asked for.
    pub(crate) fn empty(panel: &Panel) -> PanelResult {
        let nothing = Measured {
            rounds: Vec::new(),
            disturbed: 0,
            repeated: 0,
            accounts: Vec::new(),
            threads: Vec::new(),
            oddities: Vec::new(),
        };
        PanelResult::new(panel, &nothing, [None; 2])
    }

    /// From samples of the panel's rows.
    pub(crate) fn new(
        panel: &Panel,
        measured: &Measured,
        line_transfer_ns: [Option<f64>; 2],
    ) -> PanelResult {
        let names: Vec<(&'static str, usize, String)> = panel
            .entries
            .iter()
            .map(|entry| (entry.variant.name, entry.cores, entry.case.clone()))
            .collect();
        let rounds = Rounds {
            names: &names,
            samples: &measured.rounds,
        };
        let rows = (0..names.len()).filter_map(|row| result_row(panel, measured, &rounds, row));
        let most = names.iter().map(|(_, cores, _)| *cores).max().unwrap_or(0);
        PanelResult {
            name: panel.name.clone(),
            direction: panel.direction,
            workload: panel.workload,
            rounds: measured.rounds.len(),
            disturbed_rounds: measured.disturbed,
            repeated_rounds: measured.repeated,
            thread_cores: measured.threads.iter().map(|(core, _)| *core).collect(),
            pinned: measured.threads.iter().all(|(_, pinned)| *pinned),
            over_committed: most.saturating_sub(topology::cores().len().max(1)),
            line_transfer_ns,
            rows: rows.collect(),
            ratios: panel.targets.iter().map(|t| rounds.line(t)).collect(),
            failed: None,
            disturbed: None,
        }
    }
}

impl PanelResult {
    /// Puts the share of the device beside each speed-up. `ns` is what device and peer take of a
    /// segment of a workload, if it is known.
    ///
    /// # Errors
    /// If a row takes less time than they do.
    pub(crate) fn add_device(
        &mut self,
        ns: impl Fn(&Workload) -> Option<f64>,
    ) -> Result<(), String> {
        for row in self.rows.iter_mut().filter(|row| row.speedup.is_some()) {
            let all = row.ns_per_segment.median * row.cores as f64;
            row.device_share = ns(&row.workload).map(|ns| ns / all);
            if let Some(share) = row.device_share.filter(|share| !(0.0..1.0).contains(share)) {
                let row = format!("{}/{}", row.variant, row.cores);
                return Err(format!(
                    "{row}: device and peer alone take {share:.2} of its time"
                ));
            }
        }
        Ok(())
    }
}

fn result_row(
    panel: &Panel,
    measured: &Measured,
    rounds: &Rounds<'_>,
    row: usize,
) -> Option<ResultRow> {
    let entry = &panel.entries[row];
    let kept = Kept::of(&measured.rounds, &[row]);
    let samples = || kept.rounds.iter().map(move |round| round[row]);
    let pick = |variant, cores| Pick {
        variant,
        cores,
        case: entry.case.clone(),
    };
    let (name, cores) = (entry.variant.name, entry.cores);
    let ratio = |variant, on| {
        let quotient = Quotient::Of(pick(name, cores), pick(variant, on));
        let target = Target {
            what: String::new(),
            quotient,
            at_least: None,
        };
        rounds.line(&target).ratio
    };
    let segment = entry.workload.segment_bytes as f64;
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
    let over = |part: f64, whole: f64| (whole > 0.0).then(|| part / whole);
    let observed = sum(|a| a.observed_ns) > 0.0;
    let each = |wanted: bool, value: &dyn Fn(&Account) -> f64| -> Vec<f64> {
        if wanted {
            accounts.iter().map(value).collect()
        } else {
            Vec::new()
        }
    };
    let performed = sum(|a| a.primary_bytes);
    let locks = sum(|a| a.lock_acquired);
    let waited = measured.rounds.iter().map(|round| round[row].waited);
    Some(ResultRow {
        variant: name,
        cores,
        case: entry.case.clone(),
        workload: entry.workload,
        disturbed_samples: kept.left_out,
        all_disturbed: kept.all_disturbed,
        gbit_per_s: Spread::of(samples().map(|s| s.gbit_per_s()))?,
        ns_per_segment: Spread::of(samples().map(ns))?,
        ratio_to_single: ratio("single", 1),
        ratio_to_limit: ratio("limit", cores),
        speedup: if cores > 1 { ratio(name, 1) } else { None },
        device_share: None,
        waited_share_max: waited.fold(0.0, f64::max),
        segments_per_run: over(sum(|a| a.segments), sum(|a| a.runs)),
        rx_pump_cores: (sum(|a| a.rx_pump_ns) > 0.0).then(|| {
            accounts
                .iter()
                .map(|a| share(a.rx_pump_ns, a.observed_ns as f64))
                .sum()
        }),
        held_ns: (sum(|a| a.claimed) > 0.0).then(|| {
            let per_frame = |held: f64| held / sum(|a| a.claimed);
            [sum(|a| a.claim_ns), sum(|a| a.rx_pump_ns)].map(per_frame)
        }),
        idle_share: each(observed, &|a| share(a.idle_ns, a.observed_ns as f64)),
        lag_requests: each(observed, &|a| share(a.lag_requests, a.turns as f64)),
        primary_share: each(performed > 0.0, &|a| share(a.primary_bytes, performed)),
        log_full: sum(|a| a.log_full) as u64,
        sent_again: measured.oddities[row].sent_again,
        held_up_ms: measured.oddities[row].held_up.as_secs_f64() * 1e3,
        out_of_order: measured.oddities[row].out_of_order,
        // A wait that began before the slice counts in full when it ends.
        lock_wait_share: each(locks > 0.0, &|a| {
            share(a.lock_wait_ns, a.slice_ns as f64).min(1.0)
        }),
        segments_per_lock: over(sum(|a| a.segments), locks),
        misordered_share: over(sum(|a| a.misordered), sum(|a| a.segments)).filter(|_| locks > 0.0),
        waits: (LOCKS.iter().enumerate())
            .map(|(lock, name)| {
                let waited: u64 = accounts.iter().map(|a| a.waits_ns[lock]).sum();
                (*name, share(waited, sum(|a| a.slice_ns)).min(1.0))
            })
            .filter(|(_, share)| *share > 0.0)
            .collect(),
        counted_misordered_share: over(sum(|a| a.counted_misordered), sum(|a| a.counted)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slices::Oddities;
    use std::time::Duration;

    #[test]
    fn quartiles_are_between_their_neighbours() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.q1, spread.median, spread.q3), (1.75, 2.5, 3.25));
        assert_eq!(Spread::of([]), None);
    }

    fn panel() -> (Panel, Measured) {
        let wanted = crate::lineup::Wanted {
            base: Workload::default(),
            segments: vec![1448],
            bursts: vec![8],
            connections: vec![1],
            variants: Vec::new(),
            cores: vec![1, 2],
            side_rounds: 2,
            budget: None,
        };
        let panel = wanted.panel("x", Direction::Receive, wanted.base);
        let panel = panel.rows(&wanted, &["single", "replicated"]);
        let sample = |bytes| Sample {
            ns: 1000,
            bytes,
            waited: 0.0,
            distance: None,
        };
        let measured = Measured {
            // The machine is half as fast in the second round.
            rounds: vec![
                vec![sample(100), sample(90), sample(200)],
                vec![sample(50), sample(45), sample(100)],
            ],
            disturbed: 0,
            repeated: 0,
            accounts: vec![
                vec![Account::default()],
                vec![Account::default()],
                vec![
                    Account {
                        slice_ns: 100_000_000,
                        segments: 1000,
                        lock_acquired: 100,
                        lock_wait_ns: 85_000_000,
                        misordered: 25,
                        ..Account::default()
                    };
                    2
                ],
            ],
            threads: vec![(Some(0), true), (Some(1), true)],
            oddities: vec![
                Oddities::default(),
                Oddities::default(),
                Oddities {
                    sent_again: 3,
                    out_of_order: 5,
                    held_up: Duration::from_millis(300),
                },
            ],
        };
        (panel, measured)
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        let (panel, measured) = panel();
        let result = PanelResult::new(&panel, &measured, [Some(30.0); 2]);
        let ratio = result.rows[2].ratio_to_single.unwrap();
        assert_eq!((ratio.q1, ratio.median, ratio.q3), (2.0, 2.0, 2.0));
        let speedup = result.rows[2].speedup.unwrap().median;
        assert!((speedup - 200.0 / 90.0).abs() < 1e-9);
        assert_eq!(result.rows[2].ratio_to_limit, None);
    }

    #[test]
    fn the_share_of_the_device_is_beside_a_speed_up_and_below_one() {
        let (panel, measured) = panel();
        let mut result = PanelResult::new(&panel, &measured, [None; 2]);
        // A segment takes 7,240 ns in one round and 14,480 ns in the other, on two cores.
        assert_eq!(result.add_device(|_| Some(2_172.0)), Ok(()));
        let shares: Vec<_> = result.rows.iter().map(|row| row.device_share).collect();
        assert_eq!(shares, [None, None, Some(0.1)]);
        assert!(result.table().to_string().contains("10 %"));
        for wrong in [22_000.0, -1.0, f64::NAN] {
            assert!(result.add_device(|_| Some(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(result.add_device(|_| None), Ok(()));
        assert_eq!(result.rows[2].device_share, None);
    }

    #[test]
    fn a_disturbed_sample_counts_in_no_figure_of_its_row() {
        let (panel, mut measured) = panel();
        measured.rounds[1][0].waited = 0.5;
        let result = PanelResult::new(&panel, &measured, [None; 2]);
        let row = &result.rows[0];
        assert_eq!((row.disturbed_samples, row.all_disturbed), (1, false));
        assert_eq!((row.gbit_per_s.median, row.waited_share_max), (0.8, 0.5));
        assert_eq!(result.rows[1].disturbed_samples, 0);
        measured.rounds[0][0].waited = 0.5;
        let result = PanelResult::new(&panel, &measured, [None; 2]);
        assert!(result.rows[0].all_disturbed);
        let table = result.table().to_string();
        assert!(table.contains("single/1: ALL samples disturbed"), "{table}");
    }

    #[test]
    fn a_lock_shows_its_waits_and_its_misordering() {
        let (panel, measured) = panel();
        let result = PanelResult::new(&panel, &measured, [Some(30.0), Some(250.0)]);
        let table = result.table().to_string();
        assert!(table.contains("waits for the lock 85/85 %"), "{table}");
        assert!(table.contains("10.0 segments a lock, 2.50 % misordered"));
        assert!(table.contains("3 segments sent again, a thread having been held up for 300 ms"));
        assert!(table.contains("5 frames sent out of order"));
        assert!(table.contains("core to core 30 ns before, 250 after"));
        assert!(result.rows[0].lock_wait_share.is_empty());
    }
}
