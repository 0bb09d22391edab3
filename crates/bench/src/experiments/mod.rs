//! Experiments: which rows stand beside each other, and what they are compared with.
//!
//! To add a row, register its variant in [`VARIANTS`](crate::seats::VARIANTS): experiments choose rows by name
//! and by what a variant says it can do. To add an experiment, write a file with its panels beside the others.

mod checksum;
mod connections;
mod inline;
mod joining;
mod lineup;
mod load_share;
mod specialized;
mod stall;
mod sweep;
mod tcp_both;
mod tcp_rx;
mod tcp_tx;
mod udp_rx;
mod udp_tx;
mod warm;

pub use lineup::{Entry, Panel, Wanted};

use std::time::Instant;

use crate::paper::Figure;
use crate::record::{ExperimentResult, PanelResult, SharesResult};
use crate::seats::shares::ShareLog;
use crate::seats::{Direction, Row};
use crate::slices;
use crate::topology;

/// Octets whose arrival is verified, one by one, before anything is measured.
const VERIFIED: u64 = 4 << 20;
/// The same for small segments, which take longer.
const VERIFIED_SMALL: u64 = 1 << 20;

/// One question to the stack.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// As on the command line.
    pub name: &'static str,
    /// In a few words.
    pub about: &'static str,
    /// What is measured.
    pub ask: Ask,
    /// What was published on it.
    pub published: &'static [Figure],
}

/// What an experiment measures.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// Rows that take turns, panel by panel.
    Compare(fn(&Wanted) -> Vec<Panel>),
    /// Shares of replicas over time.
    Shares,
    /// What an application gets while a replica stands still.
    Stalls,
    /// What an application gets while replicas join.
    Joins,
}

/// All experiments, in the order in which they run.
pub const EXPERIMENTS: &[Experiment] = &[
    tcp_rx::EXPERIMENT,
    tcp_tx::EXPERIMENT,
    tcp_both::EXPERIMENT,
    warm::EXPERIMENT,
    checksum::EXPERIMENT,
    inline::EXPERIMENT,
    specialized::EXPERIMENT,
    connections::EXPERIMENT,
    load_share::EXPERIMENT,
    stall::EXPERIMENT,
    joining::EXPERIMENT,
    udp_rx::EXPERIMENT,
    udp_tx::EXPERIMENT,
];

impl Experiment {
    /// Measures what is wanted, and tells `progress` what it is at and how far. If a row of a panel cannot be
    /// made, or fails its own checks, the panel's result says so.
    pub fn run(
        &self,
        wanted: &Wanted,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> ExperimentResult {
        let begin = Instant::now();
        let mut result = ExperimentResult {
            experiment: self.name,
            about: self.about,
            panels: Vec::new(),
            shares: None,
            stalls: None,
            joins: None,
            published: self.published.to_vec(),
            seconds: 0.0,
        };
        match self.ask {
            Ask::Compare(panels) => {
                for panel in panels(wanted) {
                    let name = format!("{} {}", self.name, panel.name);
                    let mut tell = |done, of| progress(&name, done, of);
                    // The others may still be worth something.
                    let measured = panel
                        .run(&mut tell)
                        .unwrap_or_else(|why| PanelResult::failed(&panel, why));
                    result.panels.push(measured);
                }
            }
            Ask::Stalls => match stall::stalls(wanted, &mut |n, of| progress(self.name, n, of)) {
                Ok(stalls) => result.stalls = stalls,
                Err(why) => {
                    let panel = wanted.panel("stalls", Direction::Receive, wanted.base);
                    result.panels.push(PanelResult::failed(&panel, why));
                }
            },
            Ask::Joins => match joining::joins(wanted, &mut |n, of| progress(self.name, n, of)) {
                Ok(joins) => result.joins = joins,
                Err(why) => {
                    let panel = wanted.panel("joins", Direction::Receive, wanted.base);
                    result.panels.push(PanelResult::failed(&panel, why));
                }
            },
            Ask::Shares => match shares(wanted, &mut |n, of| progress(self.name, n, of)) {
                Ok(shares) => result.shares = shares,
                Err(why) => {
                    let panel = wanted.panel("shares", Direction::Receive, wanted.base);
                    result.panels.push(PanelResult::failed(&panel, why));
                }
            },
        }
        result.seconds = begin.elapsed().as_secs_f64();
        result
    }

    /// How many slices [`Experiment::run`] takes about, for who wants to know how long it will be.
    pub fn slices(&self, wanted: &Wanted) -> usize {
        match self.ask {
            Ask::Compare(panels) => {
                let one = |panel: &Panel| panel.entries.len() * (panel.rounds + 2);
                panels(wanted).iter().map(one).sum()
            }
            Ask::Shares => SHARE_SAMPLES / 4,
            Ask::Stalls => 40 * stall::STALLS,
            Ask::Joins => 40 * joining::JOINS,
        }
    }
}

fn settled(mut row: Row, segment_bytes: usize) -> Result<Row, String> {
    row.settle(if segment_bytes < 1024 {
        VERIFIED_SMALL
    } else {
        VERIFIED
    })?;
    Ok(row)
}

impl Panel {
    fn run(&self, progress: &mut dyn FnMut(usize, usize)) -> Result<PanelResult, String> {
        if self.entries.is_empty() {
            return Ok(PanelResult::empty(self));
        }
        progress(0, self.rounds);
        let mut rows = Vec::new();
        for entry in &self.entries {
            let row = (entry.variant.make)(self.direction, &entry.workload, entry.cores)?;
            rows.push(settled(row, entry.workload.segment_bytes)?);
        }
        let before = topology::line_transfer_ns();
        let slice = self.workload.slice;
        let measured = slices::measure(rows, slice, self.rounds, progress)?;
        let after = topology::line_transfer_ns();
        Ok(PanelResult::new(self, &measured, [before, after]))
    }
}

/// Samples of the shares of replicas.
const SHARE_SAMPLES: usize = 64;

/// One connection receives on the largest number of cores that was asked for, for as long as it takes.
fn shares(
    wanted: &Wanted,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Option<SharesResult>, String> {
    let workload = wanted.base;
    let mut result = SharesResult {
        every_requests: load_share::EVERY,
        workload,
        rows: Vec::new(),
    };
    let cores = wanted.cores.iter().copied().max().unwrap_or(1);
    let entries = wanted.entries(Direction::Receive, &["replicated*"], "", workload);
    let several = entries.iter().filter(|e| e.cores == cores && cores > 1);
    for entry in several {
        let before = topology::line_transfer_ns();
        let row = (entry.variant.make)(Direction::Receive, &workload, cores)?;
        let mut row = settled(row, workload.segment_bytes)?;
        let log = ShareLog::of(&mut row, load_share::EVERY, SHARE_SAMPLES);
        slices::sample(row, workload.slice, &mut || {
            progress(log.taken(), SHARE_SAMPLES);
            log.is_full()
        })?;
        result.rows.push(log.result(entry.variant.name, before));
    }
    Ok((!result.rows.is_empty()).then_some(result))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;
    use std::time::Duration;

    fn brief() -> Wanted {
        Wanted {
            base: Workload {
                pool_bytes: 1 << 20,
                slice: Duration::from_millis(1),
                rounds: 2,
                ..Workload::default()
            },
            segments: vec![1448, 64],
            merges: vec![true, false],
            connections: vec![1, 3],
            variants: vec!["single".to_owned(), "smoltcp".to_owned()],
            cores: vec![1],
            side_rounds: 1,
        }
    }

    /// Every experiment can be run, and says of every target what became of it.
    #[test]
    fn every_experiment_runs_and_answers_for_its_targets() {
        let wanted = brief();
        for experiment in EXPERIMENTS {
            let result = experiment.run(&wanted, &mut |_, _, _| ());
            let table = result.table();
            assert!(table.contains(experiment.name), "{table}");
            let Ask::Compare(panels) = experiment.ask else {
                continue;
            };
            for (panel, measured) in panels(&wanted).iter().zip(&result.panels) {
                assert_eq!(measured.failed, None);
                assert_eq!(panel.targets.len(), measured.ratios.len());
                assert_eq!(panel.entries.len(), measured.rows.len());
                for line in &measured.ratios {
                    let meant = line.rows.iter().any(|row| row.starts_with("no "));
                    assert_eq!(line.ratio.is_none(), meant, "{line}");
                }
            }
        }
    }
}
