//! The table, the JSON file and the picture.

use super::{PUBLISHED, strategies::Strategy};
use dominoes_bench::svg::{Anchor, Canvas, GRID, INK, MARGIN, number, text_width, ticks};
use dominoes_bench::{record::Spread, topology::Machine};
use std::{fmt::Write as _, fs, io, path::Path};

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
    pub(crate) machine: Machine,
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

    /// Rate over that of the same strategy on one thread, round by round; without the rounds in
    /// which either was disturbed, unless there are no others.
    fn speedup(&self, row: &Row) -> Option<Spread> {
        self.speedups(row).0
    }

    /// The same, and how many rounds were left out; `None` if all were disturbed and none was left
    /// out.
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

    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        let m = &self.machine;
        let ns = |ns: Option<f64>| ns.map_or_else(|| "?".to_owned(), |ns| format!("{ns:.0}"));
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{}, {} cores, load {:?}, commit {}, seed {}; sequential part {:.0} ns; a line from core to core {} ns before, {} after",
            m.cpu,
            m.cores,
            m.load_1min.unwrap_or(f64::NAN),
            m.commit.as_deref().unwrap_or("?"),
            self.seed,
            self.sequential_ns,
            ns(self.line_ns[0]),
            ns(self.line_ns[1]),
        );
        let strategies = self.list(|row| row.strategy);
        for ratio in self.list(|row| row.ratio) {
            let _ = writeln!(
                out,
                "\nparallelizable to sequential {}:{}; million requests per second, and speed-up over one thread [quartiles]",
                ratio.0, ratio.1
            );
            let _ = write!(out, "{:>7}", "threads");
            for strategy in &strategies {
                let _ = write!(out, "  {:>27}", strategy.name());
            }
            let _ = writeln!(out, "  {:>9}", "model");
            for threads in self.list(|row| row.threads) {
                let _ = write!(out, "{threads:>7}");
                for strategy in &strategies {
                    let cell = self.row(ratio, *strategy, threads).and_then(|row| {
                        let rate = Spread::of(row.rates.iter().copied())?.median / 1e6;
                        let s = self.speedup(row)?;
                        Some(format!(
                            "{rate:.3} {:.2} [{:.2} {:.2}]",
                            s.median, s.q1, s.q3
                        ))
                    });
                    let _ = write!(out, "  {:>27}", cell.unwrap_or_default());
                }
                let _ = writeln!(out, "  {:>9.2}", model(ratio, threads, m.cores));
            }
            let at = super::RATIOS.iter().position(|r| *r == ratio);
            if let Some(text) = at.and_then(|at| PUBLISHED.get(at)) {
                let _ = writeln!(out, "published: Sizemore 2011, {text}");
            }
        }
        if let Some((s, holds, note)) = self.verdict() {
            let _ = writeln!(
                out,
                "\n{} replication at 10:1 on two threads over one: {:.2} [{:.2} {:.2}], wanted 1.70{note}",
                holds, s.median, s.q1, s.q3
            );
        }
        out
    }

    /// Writes `synthetic.json` and `synthetic.svg` into a directory.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        let row = |row: &Row| {
            serde_json::json!({
                "parallelizable": row.ratio.0,
                "sequential": row.ratio.1,
                "strategy": row.strategy.name(),
                "threads": row.threads,
                "requests_per_s": row.rates,
                "disturbed": row.disturbed,
                "speedup": self.speedup(row),
                "model": model(row.ratio, row.threads, self.machine.cores),
            })
        };
        let all = serde_json::json!({
            "machine": self.machine,
            "seed": self.seed,
            "sequential_ns": self.sequential_ns,
            "line_transfer_ns": self.line_ns,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "published": PUBLISHED,
        });
        fs::write(directory.join("synthetic.json"), format!("{all:#}\n"))?;
        fs::write(directory.join("synthetic.svg"), self.picture().finish())
    }

    /// A panel per ratio: speed-up over threads.
    fn picture(&self) -> Canvas {
        const SIZE: f64 = 12.0;
        let (ratios, threads) = (self.list(|r| r.ratio), self.list(|r| r.threads));
        let strategies = self.list(|r| r.strategy);
        let (wide, high, gap) = (400.0, 220.0, 60.0);
        let speedups = self.rows.iter().filter_map(|row| self.speedup(row));
        let most = speedups
            .map(|s| s.median)
            .fold(self.machine.cores as f64, f64::max)
            * 1.1;
        let largest = threads.iter().copied().max().unwrap_or(1) as f64;
        let mut canvas = Canvas::new(2.0 * (wide + gap) + MARGIN);
        let names = strategies
            .iter()
            .map(|s| s.name())
            .chain(["model of replication"]);
        let mut at = gap;
        for (i, name) in names.enumerate() {
            canvas.rect((at, MARGIN), (SIZE, SIZE), COLOURS[i % COLOURS.len()]);
            canvas.text((at + 18.0, MARGIN + SIZE), SIZE, Anchor::Start, name);
            at += 18.0 + text_width(name, SIZE) + 16.0;
        }
        for (panel, ratio) in ratios.iter().enumerate() {
            let left = gap + (panel % 2) as f64 * (wide + gap);
            let top = gap + (panel / 2) as f64 * (high + 1.5 * gap);
            let bottom = top + high;
            let x = |t: usize| left + wide * (t as f64 / largest);
            let y = |s: f64| bottom - high * s / most;
            let title = format!("{}:{} parallelizable to sequential", ratio.0, ratio.1);
            canvas.text((left, top - 6.0), 13.0, Anchor::Start, &title);
            for tick in ticks(most, 5) {
                canvas.line(&[(left, y(tick)), (left + wide, y(tick))], GRID, 1.0);
                let place = (left - 6.0, y(tick) + 0.35 * SIZE);
                canvas.text(place, SIZE, Anchor::End, &number(tick));
            }
            for t in &threads {
                canvas.line(&[(x(*t), bottom), (x(*t), bottom + 4.0)], INK, 1.0);
                let place = (x(*t), bottom + 4.0 + SIZE);
                canvas.text(place, SIZE, Anchor::Middle, &t.to_string());
            }
            let place = (left + wide / 2.0, bottom + 4.0 + 2.3 * SIZE);
            canvas.text(place, SIZE, Anchor::Middle, "speed-up over threads");
            for (i, strategy) in strategies.iter().enumerate() {
                let point = |t: &usize| {
                    let speedup = self.speedup(self.row(*ratio, *strategy, *t)?)?;
                    Some((x(*t), y(speedup.median)))
                };
                let points: Vec<(f64, f64)> = threads.iter().filter_map(point).collect();
                canvas.line(&points, COLOURS[i % COLOURS.len()], 2.0);
            }
            let model = |t: &usize| (x(*t), y(model(*ratio, *t, self.machine.cores)));
            let points: Vec<(f64, f64)> = threads.iter().map(model).collect();
            canvas.line(&points, COLOURS[strategies.len() % COLOURS.len()], 2.0);
        }
        canvas
    }
}

const COLOURS: [&str; 5] = ["#225ea8", "#41b6c4", "#ff7f00", "#c22222", "#999999"];
