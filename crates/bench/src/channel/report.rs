//! What the report shows of it, and pictures.

use super::{Point, median, peers::Peer};
use dominoes_bench::paper;
use dominoes_bench::record::{Chart, ExperimentResult, Table};
use dominoes_bench::report;
use dominoes_bench::svg::{Anchor, Canvas, GRID, MARGIN, number, text_width};
use std::path::Path;

/// Table 5.2 of the dissertation this project goes back to: requests per second, by publishers and
/// subscribers.
pub(crate) const TABLE_5_2: [((usize, usize), f64); 17] = [
    ((1, 1), 1_693_834.0),
    ((1, 2), 1_294_543.0),
    ((1, 4), 915_600.0),
    ((2, 1), 1_780_225.0),
    ((2, 2), 1_376_557.0),
    ((2, 4), 894_457.0),
    ((3, 1), 1_191_606.0),
    ((3, 2), 1_086_044.0),
    ((3, 4), 805_402.0),
    ((4, 1), 1_037_427.0),
    ((4, 2), 851_383.0),
    ((4, 4), 645_374.0),
    ((5, 1), 871_465.0),
    ((5, 2), 849_828.0),
    ((6, 1), 847_435.0),
    ((6, 2), 639_468.0),
    ((7, 1), 660_352.0),
];

/// Capacity at which the shapes of the paper are measured.
pub(crate) const PUBLISHED_CAPACITY: usize = 4096;

/// Subscribers of one publisher in figure 5.3.
pub(crate) const FIGURE_5_3: std::ops::RangeInclusive<usize> = 1..=7;

/// Messages a second that 10 Gbit/s of 1500-byte frames are, in millions.
const WANTED: f64 = 0.833;

/// All that was measured of one peer at one point, messages per second.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Where.
    pub(crate) point: Point,
    /// Who.
    pub(crate) peer: Peer,
    /// One value per round in which the cores were close.
    pub(crate) rates: Vec<f64>,
    /// One per round in which they were further apart although that was waited for.
    pub(crate) apart: Vec<f64>,
}

impl Row {
    /// The rates that figures are made of: those with the cores close, or all if there are none.
    fn figures(&self) -> &[f64] {
        match self.rates.is_empty() {
            true => &self.apart,
            false => &self.rates,
        }
    }
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
            .map(|row| median(row.figures()))
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
    pub(crate) fn compare(&mut self) {
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
                "several publishers, batch {batch}, against the best of disruptor-mp and bus"
            );
            self.bound(
                &name,
                1.0,
                |p| several(p) && p.batch == batch,
                |r, p| {
                    [DisruptorMulti, Bus]
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

    /// The table, and what it says of the published one.
    pub(crate) fn result(&self, seconds: f64) -> ExperimentResult {
        let mut columns = vec!["publishers x subscribers"];
        columns.extend(Peer::ALL.map(Peer::name));
        columns.push("table 5.2");
        let title = "million messages per second, median (least to most)";
        let mut table = Table::new(title, &columns);
        for point in self.points() {
            let mut cells = vec![at(point)];
            for peer in Peer::ALL {
                let mut rows = self.rows.iter();
                let row = rows.find(|row| row.point == point && row.peer == peer);
                let Some(row) = row else {
                    cells.push("-".to_owned());
                    continue;
                };
                let rates = row.figures();
                let middle = median(rates) / 1e6;
                let least = rates.iter().copied().fold(f64::INFINITY, f64::min) / 1e6;
                let most = rates.iter().copied().fold(0.0, f64::max) / 1e6;
                let mark = if row.rates.is_empty() { "*" } else { "" };
                cells.push(format!("{middle:.1} ({least:.0}-{most:.0}){mark}"));
                if peer == Peer::Dominoes
                    && point.batch == 1
                    && point.capacity == PUBLISHED_CAPACITY
                {
                    let name = format!("{}x{}", point.publishers, point.subscribers);
                    table.measure(name, middle, row.rates.is_empty());
                }
            }
            cells.push(match published(point) {
                rate if rate.is_nan() => String::new(),
                rate => format!("{:.2}", rate / 1e6),
            });
            table.row(cells);
        }
        table.chart = Some(self.figure_5_3());
        let left_out: usize = self
            .rows
            .iter()
            .filter(|row| !row.rates.is_empty())
            .map(|row| row.apart.len())
            .sum();
        let without = self.rows.iter().filter(|row| row.rates.is_empty()).count();
        table.note(format!(
            "{left_out} windows with the cores far apart are left out; {without} rows (*) have no others"
        ));
        for (name, value) in &self.figures {
            table.note(format!("{name}: {value:.1}"));
        }
        for (name, ratio, at, holds) in &self.verdicts {
            let holds = if *holds { "ok  " } else { "MISS" };
            table.note(format!("{holds} {name}: {ratio:.2}x ({at})"));
        }
        ExperimentResult {
            tables: vec![table],
            seconds,
            ..ExperimentResult::new("channel", ABOUT, paper::CHANNEL)
        }
    }

    /// Rates of one publisher and of all its subscribers, by their number.
    fn figure_5_3(&self) -> Chart {
        let mut lines: Vec<(String, Vec<(f64, f64)>)> = [
            "publisher",
            "all subscribers",
            "10 Gbit/s of 1500-byte frames",
        ]
        .map(|name| (name.to_owned(), Vec::new()))
        .into();
        for subscribers in FIGURE_5_3 {
            let point = Point {
                publishers: 1,
                subscribers,
                batch: 1,
                capacity: PUBLISHED_CAPACITY,
            };
            if let Some(rate) = self.rate(point, Peer::Dominoes) {
                let (x, rate) = (subscribers as f64, rate / 1e6);
                lines[0].1.push((x, rate));
                lines[1].1.push((x, rate * x));
                lines[2].1.push((x, WANTED));
            }
        }
        Chart {
            x: "subscribers of one publisher (figure 5.3)".to_owned(),
            y: "million messages per second, one by one".to_owned(),
            doubling: false,
            lines,
        }
    }

    /// Writes `channel.json` and the pictures into a directory.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), String> {
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
                    "messages_per_second_cores_apart": row.apart,
                    "median": median(row.figures()),
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
        report::write_json(&directory.join("channel.json"), &all)?;
        for (name, picture) in self.pictures() {
            report::write(&directory.join(name).with_extension("svg"), &picture)?;
        }
        Ok(())
    }

    /// The pictures, each with its name: one for each capacity and number of publishers.
    fn pictures(&self) -> Vec<(String, String)> {
        let mut kinds: Vec<(usize, usize)> = Vec::new();
        for point in self.points() {
            let kind = (point.capacity, point.publishers);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let one = |(capacity, publishers): (usize, usize)| {
            let name = format!("channel-{capacity}-{publishers}-publishers");
            (name, self.picture(capacity, publishers).finish())
        };
        kinds.into_iter().map(one).collect()
    }

    /// A group of bars for each number of subscribers (from top to bottom) and each batch (from
    /// left to right), on a logarithmic scale.
    fn picture(&self, capacity: usize, publishers: usize) -> Canvas {
        const GAP: f64 = 18.0;
        const HIGH: f64 = 15.0;
        const SIZE: f64 = 11.0;
        let mut points = self.points();
        points.retain(|point| (point.capacity, point.publishers) == (capacity, publishers));
        let list = |of: &dyn Fn(&Point) -> usize| {
            let mut values: Vec<usize> = points.iter().map(of).collect();
            values.sort_unstable();
            values.dedup();
            values
        };
        let (batches, subscribers) = (list(&|p| p.batch), list(&|p| p.subscribers));
        let mut canvas = Canvas::new(1080.0);
        let plural = if publishers == 1 { "" } else { "s" };
        let heading = format!(
            "{publishers} publisher{plural}, capacity {capacity}: million messages per second, logarithmic scale"
        );
        let top = canvas.paragraph((MARGIN, MARGIN + 16.0), 16.0, &heading);
        let names = Peer::ALL.map(|peer| text_width(peer.name(), SIZE));
        let left = MARGIN + names.into_iter().fold(0.0, f64::max) + 8.0;
        let columns = batches.len().max(1) as f64;
        let wide = (canvas.width() - MARGIN - left - GAP * (columns - 1.0)) / columns;
        // Behind the longest bar there is room for its number.
        let scale = (wide - text_width("1000.0", SIZE) - 6.0) / SCALE.log10();
        let length = |rate: f64| scale * (rate / LEAST).max(1.0).log10();
        let group = HIGH * Peer::ALL.len() as f64;
        for (row, &subscribers) in subscribers.iter().enumerate() {
            let top = top + (group + 3.5 * GAP) * row as f64;
            for (column, &batch) in batches.iter().enumerate() {
                let point = Point {
                    publishers,
                    subscribers,
                    batch,
                    capacity,
                };
                let x = left + (wide + GAP) * column as f64;
                let plural = if subscribers == 1 { "" } else { "s" };
                let title = format!("{subscribers} subscriber{plural}, batches of {batch}");
                canvas.text((x, top + 13.0), 13.0, Anchor::Start, &title);
                let upper = top + 20.0;
                let mut tick = LEAST;
                while tick <= LEAST * SCALE {
                    let at = x + length(tick);
                    canvas.line(&[(at, upper), (at, upper + group + 3.0)], GRID, 1.0);
                    let text = number(tick / 1e6);
                    let base = upper + group + 3.0 + SIZE;
                    canvas.text((at, base), SIZE, Anchor::Middle, &text);
                    tick *= 10.0;
                }
                for (i, peer) in Peer::ALL.into_iter().enumerate() {
                    let y = upper + HIGH * i as f64;
                    let base = y + 0.75 * HIGH;
                    if column == 0 {
                        canvas.text((left - 6.0, base), SIZE, Anchor::End, peer.name());
                    }
                    let (long, text) = match self.rate(point, peer) {
                        Some(rate) => (length(rate), format!("{:.1}", rate / 1e6)),
                        None => (0.0, "-".to_owned()),
                    };
                    canvas.rect((x, y + 1.5), (long, HIGH - 3.0), COLOURS[i]);
                    canvas.text((x + long + 4.0, base), SIZE, Anchor::Start, &text);
                }
            }
        }
        canvas
    }
}

const ABOUT: &str = "the log beside other multicast channels: throughput and latency";

/// The least rate of a picture, and how many times that the most is.
const LEAST: f64 = 1e5;
const SCALE: f64 = 1e4;

/// A colour for each peer.
const COLOURS: [&str; Peer::ALL.len()] = [
    "#c22222", "#225ea8", "#41b6c4", "#7fbc41", "#984ea3", "#ff7f00", "#a65628", "#999999",
];
