//! Experiments: which rows are compared with each other.
//!
//! To add a row, register its variant in [`VARIANTS`]: experiments choose rows by name and by the
//! abilities of a variant. To add an experiment, write a file with its panels beside the others, a
//! `mod` line below, one in [`EXPERIMENTS`] and a row of the table in `crates/bench/README.md`.
//! What does not compare rows fills its own [`Table`]s.

mod checksum;
mod connections;
mod functions;
mod inline;
mod latency;
mod load_share;
mod locks;
pub(crate) mod nic;
mod parts;
mod pipeline;
mod projection;
mod specialized;
mod sweep;
mod tcp_both;
mod tcp_rx;
mod tcp_tx;
mod tls;
mod udp_rx;
mod warm;

pub use crate::lineup::{Entry, Panel, Wanted};
pub use parts::play;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::drivers::samples::Samples;
use crate::drivers::{Direction, Row, VARIANTS};
use crate::projection::counts;
use crate::record::{ExperimentResult, PanelResult};
use crate::slices::{self, Failure, Sampled};
use crate::table::Table;
use crate::topology;
use crate::workload::Workload;

/// The directions, and their names.
const DIRECTIONS: [(Direction, &str); 2] =
    [(Direction::Receive, "receive"), (Direction::Send, "send")];

/// Bytes whose arrival is verified, one by one, before anything is measured.
const VERIFIED: u64 = 4 << 20;
/// The number for small segments, which take longer.
const VERIFIED_SMALL: u64 = 1 << 20;

/// One question to the stack.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// As on the command line.
    pub name: &'static str,
    /// In a few words.
    pub about: &'static str,
    /// Rows that take turns, panel by panel.
    pub panels: fn(&Wanted) -> Vec<Panel>,
    /// Conclusions from them, and other measurements.
    pub besides: Besides,
    /// How long that takes, about.
    pub besides_takes: fn(&Wanted) -> Duration,
    /// Whether it runs only if it is named: a model that misses a measured row fails the run, and
    /// the measured experiments should not fail with it.
    pub is_by_name: bool,
}

/// Tables for a result that has its panels; the last argument reports progress.
type Besides =
    fn(&Wanted, &mut ExperimentResult, &mut dyn FnMut(usize, usize)) -> Result<Vec<Table>, String>;

impl Experiment {
    /// One that measures nothing.
    const NONE: Experiment = Experiment {
        name: "",
        about: "",
        panels: |_| Vec::new(),
        besides: |_, _, _| Ok(Vec::new()),
        besides_takes: |_| Duration::ZERO,
        is_by_name: false,
    };
}

/// All experiments, in the order in which they run.
pub const EXPERIMENTS: &[Experiment] = &[
    tcp_rx::EXPERIMENT,
    tcp_tx::EXPERIMENT,
    tcp_both::EXPERIMENT,
    warm::EXPERIMENT,
    checksum::EXPERIMENT,
    inline::EXPERIMENT,
    tls::EXPERIMENT,
    specialized::EXPERIMENT,
    connections::EXPERIMENT,
    load_share::EXPERIMENT,
    locks::EXPERIMENT,
    pipeline::EXPERIMENT,
    udp_rx::EXPERIMENT,
    udp_rx::SENDING,
    latency::LATENCY,
    nic::EXPERIMENT,
    functions::EXPERIMENT,
    projection::EXPERIMENT,
];

impl Experiment {
    /// Measures the wanted panels, and reports to `progress`. If a row of a panel cannot be made,
    /// or fails its own checks, the panel's result has the error; if the machine may be the reason,
    /// it is measured up to three times, and then the result is marked as disturbed.
    pub fn run(
        &self,
        wanted: &Wanted,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> ExperimentResult {
        let begin = Instant::now();
        let mut result = ExperimentResult::new(self.name, self.about);
        let panels = (self.panels)(wanted);
        let mut clock = Clock::new(wanted, panels.iter().map(Panel::weight).sum());
        for panel in panels {
            let name = format!("{} {}", self.name, panel.name);
            let mut tell = |done, of| progress(&name, done, of);
            let until = clock.part(panel.weight());
            // The others may still be worth something.
            result
                .panels
                .push(match repeated(|| panel.run(until, &mut tell)) {
                    Ok(Attempt::Done(measured)) => measured,
                    Ok(Attempt::Disturbed(why)) => PanelResult::disturbed(&panel, why),
                    Err(why) => PanelResult::failed(&panel, why),
                });
        }
        let mut tell = |done, of| progress(self.name, done, of);
        match (self.besides)(wanted, &mut result, &mut tell) {
            Ok(tables) => result.tables = tables,
            Err(why) => result.failures.push(format!("{}: {why}", self.name)),
        }
        result.seconds = begin.elapsed().as_secs_f64();
        result
    }

    /// The approximate time of [`Experiment::run`], without setting up.
    pub fn takes(&self, wanted: &Wanted) -> Duration {
        let slices: usize = (self.panels)(wanted).iter().map(Panel::weight).sum();
        let panels = (wanted.base.slice + BETWEEN_SLICES) * slices as u32;
        let whole = panels + (self.besides_takes)(wanted);
        wanted.budget.map_or(whole, |budget| whole.min(budget))
    }
}

/// Between two slices: the cores' distance is looked at, and the second one is not counted from its
/// beginning.
const BETWEEN_SLICES: Duration = Duration::from_millis(10);
/// How often something is measured that fails for reasons which may be the machine's.
const ATTEMPTS: usize = 3;
/// How long tables take, about.
const TABLES: Duration = Duration::from_secs(20);
/// How long a row may take that is driven until it has enough samples.
const ROW: Duration = Duration::from_secs(30);

/// The time that an experiment may take, dealt out to its parts.
struct Clock {
    end: Option<Instant>,
    weight: usize,
}

impl Clock {
    /// For parts that weigh so much together.
    fn new(wanted: &Wanted, weight: usize) -> Clock {
        Clock {
            end: wanted.budget.map(|budget| Instant::now() + budget),
            weight,
        }
    }

    /// When a part has to end that begins now and weighs so much.
    fn part(&mut self, weight: usize) -> Option<Instant> {
        let now = Instant::now();
        let left = self.end?.saturating_duration_since(now);
        let share = weight as f64 / self.weight.max(1) as f64;
        self.weight = self.weight.saturating_sub(weight);
        Some(now + left.mul_f64(share.min(1.0)))
    }

    /// How long a row may be driven that is one of `self.weight`.
    fn row(&mut self) -> Duration {
        self.part(1)
            .map_or(ROW, |until| until.saturating_duration_since(Instant::now()))
    }
}

/// Something that was tried, several times if need be.
#[derive(Debug, PartialEq)]
enum Attempt<T> {
    /// It was done.
    Done(T),
    /// It failed each time, and a thread had been held up for long enough to explain it.
    Disturbed(String),
}

/// Does `once`, again if it fails and the machine may be the reason.
///
/// # Errors
/// If it fails and the machine is not the reason.
fn repeated<T>(mut once: impl FnMut() -> Result<T, Failure>) -> Result<Attempt<T>, String> {
    let mut explained = false;
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        match once() {
            Ok(done) => return Ok(Attempt::Done(done)),
            Err(Failure::Wrong(what)) => return Err(what),
            Err(failure) => {
                explained |= failure.is_explained();
                last = failure.to_string();
            }
        }
    }
    let message = format!("{ATTEMPTS} times in turn: {last}");
    match explained {
        true => Ok(Attempt::Disturbed(message)),
        false => Err(message),
    }
}

/// Drives a verified row until it has as many samples as were wanted, or its time is up. Returns
/// the samples and a note on them.
fn sampled<T: Clone>(
    clock: &mut Clock,
    workload: &Workload,
    progress: &mut dyn FnMut(usize, usize),
    mut make: impl FnMut() -> Result<(Row, Arc<Samples<T>>), String>,
) -> Result<(Vec<T>, Option<String>), String> {
    let within = clock.row();
    let mut kept = None;
    let sampled = repeated(|| {
        let (row, samples) = make()?;
        let samples = kept.insert(samples);
        slices::sample(row, workload.slice, within, &mut || {
            progress(samples.taken(), samples.wanted());
            samples.is_full()
        })
    })?;
    let samples = kept.ok_or("no row was made")?;
    let note = note(sampled, samples.taken(), samples.wanted());
    Ok((samples.all(), note))
}

/// What to know about `got` of `wanted` samples that were taken while a row was driven.
fn note(sampled: Attempt<Sampled>, got: usize, wanted: usize) -> Option<String> {
    let sampled = match sampled {
        Attempt::Done(sampled) => sampled,
        Attempt::Disturbed(why) => return Some(format!("DISTURBED: {why}")),
    };
    let mut notes = Vec::new();
    if !sampled.enough {
        notes.push(format!("{got} of {wanted} samples when the time was up"));
    }
    if sampled.disturbed > 0 {
        notes.push(format!(
            "disturbed: a thread waited for its core in {} of {} slices",
            sampled.disturbed, sampled.slices
        ));
    }
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// Verifies `row`, and moves it by a lap of its transmit slots: nothing touches memory for the
/// first time while it is measured.
fn verified(mut row: Row, workload: &Workload) -> Result<Row, String> {
    row.drive_until(if workload.segment_bytes < 1024 {
        VERIFIED_SMALL
    } else {
        VERIFIED
    })?;
    row.move_until(workload.segment_bytes as u64 * u64::from(workload.transmit_slots()))?;
    Ok(row)
}

impl Panel {
    /// Slices that it takes.
    fn weight(&self) -> usize {
        self.entries.len() * (self.rounds + 2)
    }

    fn run(
        &self,
        until: Option<Instant>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<PanelResult, Failure> {
        if self.entries.is_empty() {
            return Ok(PanelResult::empty(self));
        }
        progress(0, self.rounds);
        let mut rows = Vec::new();
        for entry in &self.entries {
            let row = (entry.variant.make)(self.direction, &entry.workload, entry.cores)?;
            rows.push(verified(row, &entry.workload)?);
        }
        let before = topology::line_transfer_ns();
        let slice = self.workload.slice;
        let measured = slices::measure_until(rows, slice, self.rounds, until, progress)?;
        let after = topology::line_transfer_ns();
        let mut result = PanelResult::new(self, &measured, [before, after]);
        let has_peer = |entry: &Entry| VARIANTS.iter().any(|v| core::ptr::eq(v, entry.variant));
        if self.entries.iter().all(has_peer) {
            // Where there is no peer without a connection, there is no figure.
            result.add_device(|workload| {
                counts::device_ns_per_segment(self.direction, workload).ok()
            })?;
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brief() -> Wanted {
        Wanted {
            base: Workload {
                pool_bytes: 1 << 20,
                slice: Duration::from_millis(1),
                rounds: 2,
                ..Workload::default()
            },
            segments: vec![1448, 64],
            bursts: vec![8, 1],
            connections: vec![1, 3],
            variants: vec!["single".to_owned(), "smoltcp".to_owned()],
            cores: vec![1],
            side_rounds: 1,
            budget: None,
        }
    }

    fn timing(held_up_ms: u64) -> Failure {
        Failure::Timing {
            what: "it stands still".to_owned(),
            held_up: Duration::from_millis(held_up_ms),
        }
    }

    #[test]
    fn what_may_be_the_machine_is_tried_again() {
        let mut attempts = 0;
        let done = repeated(|| {
            attempts += 1;
            match attempts {
                3 => Ok(7),
                _ => Err(timing(0)),
            }
        });
        assert_eq!(done, Ok(Attempt::Done(7)));
        let disturbed = repeated(|| Err::<(), _>(timing(300)));
        assert!(
            matches!(disturbed, Ok(Attempt::Disturbed(_))),
            "{disturbed:?}"
        );
        // Nothing held it up, three times.
        assert!(repeated(|| Err::<(), _>(timing(0))).is_err());
    }

    #[test]
    fn wrong_bytes_fail_at_once() {
        let mut attempts = 0;
        let failed = repeated(|| {
            attempts += 1;
            Err::<(), _>(Failure::Wrong("wrong bytes".to_owned()))
        });
        assert_eq!((failed, attempts), (Err("wrong bytes".to_owned()), 1));
    }

    /// A machine on which nothing moves in time ends in rows that say so.
    #[test]
    fn rows_without_time_say_how_few_samples_they_have() {
        let wanted = Wanted {
            cores: vec![2],
            variants: vec!["replicated".to_owned()],
            budget: Some(Duration::ZERO),
            ..brief()
        };
        let result = load_share::EXPERIMENT.run(&wanted, &mut |_, _, _| ());
        assert!(result.panels.is_empty(), "{:?}", result.panels);
        let table = result.to_string();
        let says_so = ["samples when the time was up", "DISTURBED"];
        assert!(says_so.iter().any(|words| table.contains(words)), "{table}");
    }

    #[test]
    fn parts_share_what_is_left_of_the_time() {
        let wanted = Wanted {
            budget: Some(Duration::from_secs(40)),
            ..brief()
        };
        let mut clock = Clock::new(&wanted, 4);
        let (first, end) = (clock.part(1).unwrap(), clock.end.unwrap());
        assert!(first - Instant::now() <= Duration::from_secs(10));
        assert!(end - first >= Duration::from_secs(29));
        let rest = clock.part(3).unwrap();
        assert!(
            end.max(rest) - end.min(rest) < Duration::from_millis(1),
            "some is left over"
        );
        assert_eq!(Clock::new(&brief(), 4).part(1), None);
    }

    /// Every experiment can be run, and has a result for every target.
    #[test]
    fn every_experiment_runs_and_answers_for_its_targets() {
        let wanted = brief();
        for experiment in EXPERIMENTS {
            let result = experiment.run(&wanted, &mut |_, _, _| ());
            let table = result.to_string();
            assert!(table.contains(experiment.name), "{table}");
            for (panel, measured) in (experiment.panels)(&wanted).iter().zip(&result.panels) {
                assert_eq!(measured.failed, None);
                // What follows from the rows may have ratios, too.
                assert!(panel.targets.len() <= measured.ratios.len());
                assert_eq!(panel.entries.len(), measured.rows.len());
                for line in &measured.ratios {
                    let meant = line.rows.iter().any(|row| row.starts_with("no "));
                    assert_eq!(line.ratio.is_none(), meant, "{line}");
                }
            }
        }
    }
}
