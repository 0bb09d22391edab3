//! The table, the JSON file and the picture.

use super::{PUBLISHED, strategies::Strategy};
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

    /// Rate over that of the same strategy on one thread, round by round.
    fn speedup(&self, row: &Row) -> Option<Spread> {
        let one = self.row(row.ratio, row.strategy, 1)?;
        Spread::of(
            row.rates
                .iter()
                .zip(&one.rates)
                .map(|(many, one)| many / one),
        )
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

    /// Speed-up of replication at 10:1 on two threads, which is to be at least 1.7.
    pub(crate) fn verdict(&self) -> Option<(Spread, bool)> {
        let row = self.row((10, 1), Strategy::Replication, 2)?;
        let speedup = self.speedup(row)?;
        Some((speedup, speedup.median >= 1.7))
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
        if let Some((s, holds)) = self.verdict() {
            let _ = writeln!(
                out,
                "\n{} replication at 10:1 on two threads over one: {:.2} [{:.2} {:.2}], wanted 1.70",
                if holds { "ok  " } else { "MISS" },
                s.median,
                s.q1,
                s.q3
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
        fs::write(directory.join("synthetic.svg"), self.picture())
    }

    /// A panel per ratio: speed-up over threads.
    fn picture(&self) -> String {
        const COLOURS: [&str; 5] = ["#225ea8", "#41b6c4", "#ff7f00", "#c22", "#999"];
        let (ratios, threads) = (self.list(|r| r.ratio), self.list(|r| r.threads));
        let strategies = self.list(|r| r.strategy);
        let (wide, high, gap) = (320.0, 220.0, 60.0);
        let most = self
            .rows
            .iter()
            .filter_map(|row| self.speedup(row))
            .map(|s| s.median)
            .fold(self.machine.cores as f64, f64::max);
        let mut out = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='{}' height='{}' font-family='sans-serif' font-size='11'>\n<rect width='100%' height='100%' fill='white'/>\n",
            2.0 * (wide + gap) + gap,
            ratios.len().div_ceil(2) as f64 * (high + gap) + gap
        );
        let names = strategies.iter().map(|s| s.name()).chain(["model"]);
        for (i, name) in names.enumerate() {
            let x = gap + 130.0 * i as f64;
            let _ = writeln!(
                out,
                "<rect x='{x}' y='8' width='10' height='10' fill='{}'/><text x='{}' y='17'>{name}</text>",
                COLOURS[i % COLOURS.len()],
                x + 14.0
            );
        }
        for (panel, ratio) in ratios.iter().enumerate() {
            let left = gap + (panel % 2) as f64 * (wide + gap);
            let top = gap + (panel / 2) as f64 * (high + gap);
            let largest = threads.iter().copied().max().unwrap_or(1) as f64;
            let x = |t: usize| left + wide * (t as f64 / largest);
            let y = |s: f64| top + high * (1.0 - s / (most * 1.1));
            let _ = writeln!(
                out,
                "<rect x='{left}' y='{top}' width='{wide}' height='{high}' fill='none' stroke='#bbb'/><text x='{}' y='{}'>{}:{}, speed-up over threads</text>",
                left + 6.0,
                top - 6.0,
                ratio.0,
                ratio.1
            );
            for s in 0..=most as usize {
                let _ = writeln!(
                    out,
                    "<line x1='{left}' x2='{}' y1='{1}' y2='{1}' stroke='#eee'/><text x='{2}' y='{1}' text-anchor='end'>{s}</text>",
                    left + wide,
                    y(s as f64),
                    left - 4.0
                );
            }
            for t in &threads {
                let _ = writeln!(
                    out,
                    "<text x='{}' y='{}' text-anchor='middle'>{t}</text>",
                    x(*t),
                    top + high + 14.0
                );
            }
            let mut line = |colour: &str, points: Vec<(usize, f64)>| {
                let points: Vec<String> = points
                    .into_iter()
                    .map(|(t, s)| format!("{:.1},{:.1}", x(t), y(s)))
                    .collect();
                let _ = writeln!(
                    out,
                    "<polyline fill='none' stroke='{colour}' stroke-width='2' points='{}'/>",
                    points.join(" ")
                );
            };
            for (i, strategy) in strategies.iter().enumerate() {
                let point = |t: &usize| {
                    let speedup = self.speedup(self.row(*ratio, *strategy, *t)?)?;
                    Some((*t, speedup.median))
                };
                line(COLOURS[i], threads.iter().filter_map(point).collect());
            }
            let ideal = |t: &usize| (*t, model(*ratio, *t, self.machine.cores));
            line(COLOURS[4], threads.iter().map(ideal).collect());
        }
        out + "</svg>\n"
    }
}
