//! The tables of the synthetic workload.

use super::strategies::Strategy;
use dominoes_bench::paper::Measure;
use dominoes_bench::rounds::{self, Reading};
use dominoes_bench::spread::Spread;
use dominoes_bench::table::{Bound, Limit, Lines, Table};
use serde::Serialize;

/// One strategy at one ratio on `threads` threads.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) ratio: (u32, u32),
    pub(crate) strategy: Strategy,
    pub(crate) threads: usize,
    /// For each round; calm if no thread had to wait for its core.
    pub(crate) requests_per_second: Vec<Reading<f64>>,
}

#[derive(Debug)]
pub(crate) struct Report {
    /// Cores of the machine.
    pub(crate) cores: usize,
    pub(crate) seed: u64,
    pub(crate) sequential_ns: f64,
    pub(crate) line_ns: [Option<f64>; 2],
    pub(crate) rows: Vec<Row>,
}

/// The limit of replication: P / (1 + L (P - 1)), with L the sequential part of the whole (Sizemore
/// 2011, section 3.1.3), for up to as many threads as cores; with more threads, redundant work
/// replaces useful work.
fn model((parallel, sequential): (u32, u32), threads: usize, cores: usize) -> f64 {
    let l = f64::from(sequential) / f64::from(parallel + sequential);
    let (p, c) = (threads as f64, threads.min(cores) as f64);
    c / (1.0 + l * (p - 1.0))
}

impl Report {
    fn row(&self, ratio: (u32, u32), strategy: Strategy, threads: usize) -> Option<&Row> {
        let wanted =
            |row: &&Row| row.ratio == ratio && row.strategy == strategy && row.threads == threads;
        self.rows.iter().find(wanted)
    }

    /// The rate divided by the rate of this strategy on one thread, round by round, without rounds
    /// in which either was disturbed, and the number of these. If all rounds were disturbed, the
    /// quotients of all rounds and `None`.
    fn speedups(&self, row: &Row) -> Option<(Spread, Option<usize>)> {
        let one = self.row(row.ratio, row.strategy, 1)?;
        let all = rounds::over(&row.requests_per_second, &one.requests_per_second);
        let (kept, left_out) = rounds::kept(&all);
        Some((Spread::of(kept.into_iter().copied())?, left_out))
    }

    fn list<T: PartialEq>(&self, of: impl Fn(&Row) -> T) -> Vec<T> {
        let mut all = Vec::new();
        for row in &self.rows {
            let value = of(row);
            if !all.contains(&value) {
                all.push(value);
            }
        }
        all
    }

    /// Speed-up of replication at 10:1 on two threads, with a target of at least 1.7.
    fn bound(&self) -> Option<Bound> {
        let row = self.row((10, 1), Strategy::Replication, 2)?;
        let (speedup, left_out) = self.speedups(row)?;
        let left = left_out.map_or_else(String::new, |some| {
            format!(" ({some} disturbed rounds left out)")
        });
        let what = format!("replication at 10:1 on two threads over one{left}");
        let limit = Limit::AtLeast(1.7);
        Some(Bound::new(&what, Some(speedup), limit, left_out.is_none()))
    }

    /// A table with its picture for each ratio.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let strategies = self.list(|row| row.strategy);
        let ratios = self.list(|row| row.ratio).into_iter();
        let mut tables: Vec<Table> = ratios.map(|ratio| self.table(ratio, &strategies)).collect();
        if let Some(table) = tables.last_mut() {
            table.bounds.extend(self.bound());
            let ns = |ns: Option<f64>| ns.map_or_else(|| "?".to_owned(), |ns| format!("{ns:.0}"));
            table.note(format!(
                "seed {}; sequential part {:.0} ns; a line from core to core {} ns before, {} after",
                self.seed,
                self.sequential_ns,
                ns(self.line_ns[0]),
                ns(self.line_ns[1]),
            ));
            table.keep(&self.rows);
        }
        tables
    }

    fn table(&self, ratio: (u32, u32), strategies: &[Strategy]) -> Table {
        let mut columns = vec!["threads"];
        columns.extend(strategies.iter().map(|strategy| strategy.name()));
        columns.push(MODEL);
        let title = format!(
            "parallelizable to sequential {}:{}; million requests per second, speed-up over one thread [quartiles]",
            ratio.0, ratio.1
        );
        let mut table = Table::new(title, &columns);
        let names = columns[1..].iter().map(|name| (*name).to_owned());
        let mut lines: Vec<_> = names.map(|name| (name, Vec::new())).collect();
        for threads in self.list(|row| row.threads) {
            let mut cells = vec![threads.to_string()];
            let x = threads as f64;
            for (strategy, line) in strategies.iter().zip(&mut lines) {
                let row = self.row(ratio, *strategy, threads);
                let seen = row.and_then(|row| {
                    let rates = row.requests_per_second.iter().map(|rate| rate.value);
                    let rate = Spread::of(rates)?.median / 1e6;
                    let (speedup, left_out) = self.speedups(row)?;
                    let rounds = row.requests_per_second.len() - left_out.unwrap_or(0);
                    let measure = Measure::of(speedup, rounds);
                    Some((rate, measure.disturbed_if(left_out.is_none())))
                });
                let Some((rate, measure)) = seen else {
                    cells.push(String::new());
                    continue;
                };
                cells.push(format!("{rate:.3} {}", measure.ours));
                line.1.push((x, measure.ours.median));
                let name = format!("{}:{} {} on {threads}", ratio.0, ratio.1, strategy.name());
                table.measure(name, measure);
            }
            let model = model(ratio, threads, self.cores);
            cells.push(format!("{model:.2}"));
            if let Some(line) = lines.last_mut() {
                line.1.push((x, model));
            }
            table.row(cells);
        }
        table.lines(Lines {
            x: "threads".to_owned(),
            y: "speed-up over one thread".to_owned(),
            doubling: false,
            lines,
        });
        table
    }
}

const MODEL: &str = "model of replication";
