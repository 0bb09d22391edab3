//! What the report shows of it.

use super::strategies::Strategy;
use dominoes_bench::paper;
use dominoes_bench::record::{Chart, ExperimentResult, Table};
use dominoes_bench::spread::Spread;

/// One strategy at one ratio on so many threads.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) ratio: (u32, u32),
    pub(crate) strategy: Strategy,
    pub(crate) threads: usize,
    /// Requests per second, by round.
    pub(crate) rates: Vec<f64>,
    /// Whether a thread had to wait for its core, by round.
    pub(crate) disturbed: Vec<bool>,
}

#[derive(Debug)]
pub(crate) struct Report {
    /// Of the machine.
    pub(crate) cores: usize,
    pub(crate) seed: u64,
    pub(crate) sequential_ns: f64,
    pub(crate) line_ns: [Option<f64>; 2],
    pub(crate) rows: Vec<Row>,
}

/// What replication can reach: P / (1 + L (P - 1)), L being the sequential part of the whole
/// (Sizemore 2011, section 3.1.3), on as many threads as there are cores; beyond, redundant work
/// takes the place of useful work.
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

    /// Rate over that of the same strategy on one thread, round by round, without the rounds in
    /// which either was disturbed; and how many these are. If there are no others, of all rounds
    /// and `None`.
    fn speedups(&self, row: &Row) -> (Option<Spread>, Option<usize>) {
        let Some(one) = self.row(row.ratio, row.strategy, 1) else {
            return (None, None);
        };
        let all: Vec<f64> = row
            .rates
            .iter()
            .zip(&one.rates)
            .map(|(many, one)| many / one)
            .collect();
        let disturbed = row
            .disturbed
            .iter()
            .zip(&one.disturbed)
            .map(|(many, one)| *many || *one);
        let calm: Vec<f64> = all
            .iter()
            .zip(disturbed)
            .filter_map(|(value, disturbed)| (!disturbed).then_some(*value))
            .collect();
        match calm.is_empty() {
            true => (Spread::of(all), None),
            false => {
                let left_out = all.len() - calm.len();
                (Spread::of(calm), Some(left_out))
            }
        }
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

    /// Speed-up of replication at 10:1 on two threads, which is to be at least 1.7, and what to say
    /// of it.
    fn verdict(&self) -> Option<(Spread, &'static str, String)> {
        let row = self.row((10, 1), Strategy::Replication, 2)?;
        let (speedup, left_out) = self.speedups(row);
        let speedup = speedup?;
        Some(match left_out {
            None => (speedup, "?   ", ", ALL rounds disturbed".to_owned()),
            Some(some) => {
                let holds = if speedup.median >= 1.7 {
                    "ok  "
                } else {
                    "MISS"
                };
                (
                    speedup,
                    holds,
                    format!(", {some} disturbed rounds left out"),
                )
            }
        })
    }

    /// A table with its picture for each ratio.
    pub(crate) fn result(&self, seconds: f64) -> ExperimentResult {
        let strategies = self.list(|row| row.strategy);
        let mut tables = Vec::new();
        for ratio in self.list(|row| row.ratio) {
            tables.push(self.table(ratio, &strategies));
        }
        if let (Some(table), Some((s, holds, note))) = (tables.last_mut(), self.verdict()) {
            table.note(format!(
                "{holds} replication at 10:1 on two threads over one: {s}, wanted 1.70{note}"
            ));
            let ns = |ns: Option<f64>| ns.map_or_else(|| "?".to_owned(), |ns| format!("{ns:.0}"));
            table.note(format!(
                "seed {}; sequential part {:.0} ns; a line from core to core {} ns before, {} after",
                self.seed,
                self.sequential_ns,
                ns(self.line_ns[0]),
                ns(self.line_ns[1]),
            ));
        }
        ExperimentResult {
            tables,
            seconds,
            ..ExperimentResult::new("synthetic", ABOUT, paper::SYNTHETIC)
        }
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
                    let rate = Spread::of(row.rates.iter().copied())?.median / 1e6;
                    let (speedup, left_out) = self.speedups(row);
                    Some((rate, speedup?, left_out.is_none()))
                });
                let Some((rate, s, disturbed)) = seen else {
                    cells.push(String::new());
                    continue;
                };
                cells.push(format!("{rate:.3} {s}"));
                line.1.push((x, s.median));
                let name = format!("{}:{} {} on {threads}", ratio.0, ratio.1, strategy.name());
                table.measure(name, s.median, disturbed);
            }
            let model = model(ratio, threads, self.cores);
            cells.push(format!("{model:.2}"));
            if let Some(line) = lines.last_mut() {
                line.1.push((x, model));
            }
            table.row(cells);
        }
        table.chart = Some(Chart {
            x: "threads".to_owned(),
            y: "speed-up over one thread".to_owned(),
            doubling: false,
            lines,
        });
        table
    }
}

const MODEL: &str = "model of replication";
const ABOUT: &str = "requests with a sequential and a parallelizable part, by four strategies";
