//! The table, the JSON file and the picture.

use super::{Point, median, peers::Peer};
use std::{fmt::Write as _, fs, io, path::Path};

/// Table 5.2 of the dissertation this project goes back to: requests per second, by publishers and
/// subscribers.
pub(crate) const TABLE_5_2: [((usize, usize), f64); 9] = [
    ((1, 1), 1_693_834.0),
    ((1, 2), 1_294_543.0),
    ((1, 4), 915_600.0),
    ((2, 1), 1_780_225.0),
    ((2, 2), 1_376_557.0),
    ((2, 4), 894_457.0),
    ((4, 1), 1_037_426.0),
    ((4, 2), 851_383.0),
    ((4, 4), 645_374.0),
];

/// All that was measured of one peer at one point, messages per second.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Where.
    pub(crate) point: Point,
    /// Who.
    pub(crate) peer: Peer,
    /// One value per round.
    pub(crate) rates: Vec<f64>,
}

/// Everything that was measured.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// By point, then peer.
    pub(crate) rows: Vec<Row>,
    /// Anything else, as name and value.
    pub(crate) figures: Vec<(String, f64)>,
    /// Each bound with what was measured: name, worst ratio, where, whether it holds.
    pub(crate) verdicts: Vec<(String, f64, String, bool)>,
}

fn published(point: Point) -> f64 {
    let shape = (point.publishers, point.subscribers);
    TABLE_5_2
        .iter()
        .find(|(at, _)| *at == shape)
        .map_or(f64::NAN, |(_, rate)| *rate)
}

fn at(point: Point) -> String {
    format!(
        "{}x{} batch {} capacity {}",
        point.publishers, point.subscribers, point.batch, point.capacity
    )
}

impl Report {
    /// The median rate of a peer at a point.
    pub(crate) fn rate(&self, point: Point, peer: Peer) -> Option<f64> {
        self.rows
            .iter()
            .find(|row| row.point == point && row.peer == peer)
            .map(|row| median(&row.rates))
    }

    fn points(&self) -> Vec<Point> {
        let mut points: Vec<Point> = self.rows.iter().map(|row| row.point).collect();
        points.dedup();
        points
    }

    /// Checks a bound: at each point that `of` accepts, ours is at least `factor` times what
    /// `other` says.
    fn bound(
        &mut self,
        name: &str,
        factor: f64,
        of: impl Fn(Point) -> bool,
        other: impl Fn(&Self, Point) -> Option<f64>,
    ) {
        let mut worst = (f64::INFINITY, String::new());
        for point in self.points().into_iter().filter(|point| of(*point)) {
            if let (Some(ours), Some(theirs)) =
                (self.rate(point, Peer::Dominoes), other(self, point))
                && ours / theirs < worst.0
            {
                worst = (ours / theirs, at(point));
            }
        }
        if worst.0.is_finite() {
            self.verdicts.push((
                format!("{name}: at least {factor}x"),
                worst.0,
                worst.1,
                worst.0 >= factor,
            ));
        }
    }

    /// Works out every bound.
    pub(crate) fn judge(&mut self) {
        use Peer::*;
        let big = |point: Point| point.capacity == 4096;
        let alone = move |point: Point| big(point) && point.publishers == 1;
        let several = move |point: Point| big(point) && point.publishers > 1;
        self.bound(
            "1 publisher, batch 16, against disruptor's better build",
            0.95,
            |p| alone(p) && p.batch == 16,
            |r, p| Some(r.rate(p, DisruptorSingle)?.max(r.rate(p, DisruptorMulti)?)),
        );
        self.bound(
            "1 publisher, single, against disruptor-1p",
            0.8,
            |p| alone(p) && p.batch == 1,
            |r, p| r.rate(p, DisruptorSingle),
        );
        self.bound(
            "1 publisher, single, against disruptor-mp",
            5.0,
            |p| alone(p) && p.batch == 1,
            |r, p| r.rate(p, DisruptorMulti),
        );
        for batch in [1, 16] {
            let name = format!(
                "several publishers, batch {batch}, against the best of disruptor-mp, multiqueue2, bus"
            );
            self.bound(
                &name,
                1.0,
                |p| several(p) && p.batch == batch,
                |r, p| {
                    [DisruptorMulti, Multiqueue, Bus]
                        .into_iter()
                        .filter_map(|peer| r.rate(p, peer))
                        .reduce(f64::max)
                },
            );
        }
        let logs: Vec<f64> = self
            .points()
            .into_iter()
            .filter_map(|p| Some((self.rate(p, Dominoes)? / self.rate(p, DisruptorMulti)?).ln()))
            .collect();
        if !logs.is_empty() {
            let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
            let name =
                "geometric mean of all points against disruptor-mp: at least 1.5x".to_string();
            self.verdicts
                .push((name, mean, format!("{} points", logs.len()), mean >= 1.5));
        }
        self.bound(
            "1x1, batch 64, against rtrb's chunks",
            0.85,
            |p| alone(p) && p.subscribers == 1 && p.batch == 64,
            |r, p| r.rate(p, Rtrb),
        );
        self.bound(
            "1x1, single, capacity 1024, against disruptor-1p",
            1.5,
            |p| p.capacity == 1024 && p.publishers == 1 && p.subscribers == 1 && p.batch == 1,
            |r, p| r.rate(p, DisruptorSingle),
        );
        self.bound(
            "batch 16 against Table 5.2",
            10.0,
            |p| p.batch == 16,
            |_, p| Some(published(p)),
        );
        self.bound(
            "single against Table 5.2",
            3.0,
            |p| p.batch == 1,
            |_, p| Some(published(p)),
        );
    }

    /// The table for the terminal.
    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        let _ = write!(out, "{:<32}", "million messages/s, median");
        for peer in Peer::ALL {
            let _ = write!(out, "{:>17}", peer.name());
        }
        let _ = writeln!(out, "{:>11}", "Table 5.2");
        for point in self.points() {
            let _ = write!(out, "{:<32}", at(point));
            for peer in Peer::ALL {
                let _ = match self
                    .rows
                    .iter()
                    .find(|row| row.point == point && row.peer == peer)
                {
                    None => write!(out, "{:>17}", "-"),
                    Some(row) => {
                        let middle = median(&row.rates) / 1e6;
                        let least = row.rates.iter().copied().fold(f64::INFINITY, f64::min) / 1e6;
                        let most = row.rates.iter().copied().fold(0.0, f64::max) / 1e6;
                        write!(out, "{:>17}", format!("{middle:.1} ({least:.0}-{most:.0})"))
                    }
                };
            }
            let _ = writeln!(out, "{:>11.2}", published(point) / 1e6);
        }
        for (name, value) in &self.figures {
            let _ = writeln!(out, "{name}: {value:.1}");
        }
        for (name, ratio, at, holds) in &self.verdicts {
            let _ = writeln!(
                out,
                "{} {name}: {ratio:.2}x ({at})",
                if *holds { "ok  " } else { "MISS" }
            );
        }
        out
    }

    /// Writes `channel.json` and `channel.svg` into a directory.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                serde_json::json!({
                    "publishers": row.point.publishers,
                    "subscribers": row.point.subscribers,
                    "batch": row.point.batch,
                    "capacity": row.point.capacity,
                    "peer": row.peer.name(),
                    "messages_per_second": row.rates,
                    "median": median(&row.rates),
                    "table_5_2": published(row.point),
                })
            })
            .collect();
        let verdicts: Vec<_> = self
            .verdicts
            .iter()
            .map(|(name, ratio, at, holds)| serde_json::json!({"bound": name, "ratio": ratio, "at": at, "holds": holds}))
            .collect();
        let figures: Vec<_> = self
            .figures
            .iter()
            .map(|(name, value)| serde_json::json!({"name": name, "value": value}))
            .collect();
        let all = serde_json::json!({"rows": rows, "bounds": verdicts, "figures": figures});
        fs::write(directory.join("channel.json"), format!("{all:#}\n"))?;
        fs::write(directory.join("channel.svg"), self.picture())
    }

    /// A row of bars per point, on a logarithmic scale from 100 thousand to 1000 million messages
    /// per second.
    fn picture(&self) -> String {
        const COLOURS: [&str; 9] = [
            "#c22", "#225ea8", "#41b6c4", "#7fbc41", "#984ea3", "#ff7f00", "#a65628", "#f781bf",
            "#999",
        ];
        let points = self.points();
        let (left, wide, high) = (230.0, 700.0, 8.0);
        let group = high * Peer::ALL.len() as f64 + 8.0;
        let x = |rate: f64| left + wide * ((rate.max(1e5).log10() - 5.0) / 4.0);
        let total = group * points.len() as f64 + 60.0;
        let mut out = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='{}' height='{total}' font-family='sans-serif' font-size='11'>\n<rect width='100%' height='100%' fill='white'/>\n",
            left + wide + 40.0
        );
        for (i, peer) in Peer::ALL.into_iter().enumerate() {
            let at = 10.0 + 102.0 * i as f64;
            let _ = writeln!(
                out,
                "<rect x='{at}' y='8' width='10' height='10' fill='{}'/><text x='{}' y='17'>{}</text>",
                COLOURS[i],
                at + 13.0,
                peer.name()
            );
        }
        for (power, label) in [
            (1e5, "0.1 M/s"),
            (1e6, "1 M/s"),
            (1e7, "10 M/s"),
            (1e8, "100 M/s"),
            (1e9, "1000 M/s"),
        ] {
            let _ = writeln!(
                out,
                "<line x1='{0}' y1='40' x2='{0}' y2='{total}' stroke='#ddd'/><text x='{0}' y='36' text-anchor='middle'>{label}</text>",
                x(power)
            );
        }
        for (i, point) in points.iter().enumerate() {
            let top = 46.0 + group * i as f64;
            let _ = writeln!(
                out,
                "<text x='{}' y='{}' text-anchor='end'>{}</text>",
                left - 6.0,
                top + group / 2.0,
                at(*point)
            );
            for (j, peer) in Peer::ALL.into_iter().enumerate() {
                if let Some(rate) = self.rate(*point, peer) {
                    let _ = writeln!(
                        out,
                        "<rect x='{left}' y='{}' width='{:.1}' height='{}' fill='{}'/>",
                        top + high * j as f64,
                        x(rate) - left,
                        high - 1.0,
                        COLOURS[j]
                    );
                }
            }
        }
        out + "</svg>\n"
    }
}
