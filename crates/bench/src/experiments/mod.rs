//! Experiments: which rows stand beside each other, and what they are compared with.

mod tcp_rx;
mod tcp_tx;

use crate::paper::Figure;
use crate::record::ExperimentResult;
use crate::seats::{Direction, Row, VARIANTS};
use crate::slices;
use crate::topology;
use crate::workload::Workload;

/// Octets whose arrival is verified, one by one, before anything is measured.
const VERIFIED: u64 = 8 << 20;

/// One question to the stack.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// As on the command line.
    pub name: &'static str,
    /// In a few words.
    pub about: &'static str,
    /// Which way the payload goes.
    pub direction: Direction,
    /// What was published on it.
    pub published: &'static [Figure],
}

/// All experiments.
pub const EXPERIMENTS: &[Experiment] = &[tcp_rx::EXPERIMENT, tcp_tx::EXPERIMENT];

impl Experiment {
    /// Measures `variants` (all, if empty) on each number of `cores` that they can use.
    ///
    /// # Errors
    /// If there is nothing to measure, or a row cannot be made, or failed its own checks.
    pub fn run(
        &self,
        workload: &Workload,
        variants: &[String],
        cores: &[usize],
    ) -> Result<ExperimentResult, String> {
        let mut rows: Vec<Row> = Vec::new();
        for variant in VARIANTS {
            if !variants.is_empty() && !variants.iter().any(|name| name == variant.name) {
                continue;
            }
            for &count in cores {
                if variant.scales || count == 1 {
                    let mut row = (variant.make)(self.direction, workload, count)?;
                    row.settle(VERIFIED)?;
                    rows.push(row);
                }
            }
        }
        if rows.is_empty() {
            return Err(format!("{}: no variant to be measured", self.name));
        }
        let names: Vec<_> = rows
            .iter()
            .map(|row| (row.variant, row.seats.len()))
            .collect();
        let before = topology::line_transfer_ns();
        let measured = slices::measure(rows, workload.slice, workload.rounds)?;
        let after = topology::line_transfer_ns();
        let published = self.published.to_vec();
        let result = ExperimentResult::new(
            self.name,
            self.direction,
            workload,
            &names,
            &measured,
            published,
        );
        Ok(ExperimentResult {
            line_transfer_ns: [before, after],
            ..result
        })
    }
}
