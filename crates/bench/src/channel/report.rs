//! Tables and pictures of the channel bench.

use super::{Point, peers::Peer};
use dominoes_bench::paper::Measure;
use dominoes_bench::rounds::{self, Reading};
use dominoes_bench::spread::Spread;
use dominoes_bench::table::{Bar, Bars, Limit, Lines, Table};
use serde::Serialize;

/// Table 5.2 of Sizemore's dissertation: requests per second, by publishers and subscribers.
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

/// The capacity for the shapes of the paper.
pub(crate) const PUBLISHED_CAPACITY: usize = 4096;

/// Subscribers of one publisher in figure 5.3.
pub(crate) const FIGURE_5_3: std::ops::RangeInclusive<usize> = 1..=7;

/// Million messages per second in 10 Gbit/s of 1500-byte frames.
const WANTED: f64 = 0.833;

/// The measurements of one peer at one point.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    /// The point.
    pub(crate) point: Point,
    /// The peer.
    pub(crate) peer: Peer,
    /// Messages per second for each round; calm if the cores were close.
    pub(crate) messages_per_second: Vec<Reading<f64>>,
}

impl Row {
    /// A row without measurements.
    pub(crate) fn new(point: Point, peer: Peer) -> Row {
        Row {
            point,
            peer,
            messages_per_second: Vec::new(),
        }
    }
}

/// All measurements.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// By point, then peer.
    pub(crate) rows: Vec<Row>,
    /// Other figures, by name.
    pub(crate) figures: Vec<(String, f64)>,
    /// Wake-up time through our channel, divided by the time through crossbeam's.
    pub(crate) waking: Option<f64>,
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
        let mut rows = self.rows.iter();
        let row = rows.find(|row| row.point == point && row.peer == peer)?;
        rounds::spread(&row.messages_per_second).map(|rate| rate.median)
    }

    fn points(&self) -> Vec<Point> {
        let mut points: Vec<Point> = self.rows.iter().map(|row| row.point).collect();
        points.dedup();
        points
    }

    /// At each point that `of` accepts, our rate must be at least `factor` times `other`.
    fn bound(
        &self,
        table: &mut Table,
        name: &str,
        factor: f64,
        of: impl Fn(Point) -> bool,
        other: impl Fn(&Self, Point) -> Option<f64>,
    ) {
        let points = self.points().into_iter().filter(|point| of(*point));
        let ratios = points.filter_map(|point| {
            let ratio = self.rate(point, Peer::Dominoes)? / other(self, point)?;
            ratio.is_finite().then(|| (ratio, at(point)))
        });
        if let Some((ratio, at)) = ratios.min_by(|one, other| one.0.total_cmp(&other.0)) {
            let what = format!("{name}, least at {at}");
            let limit = Limit::AtLeast(factor);
            table.bound(&what, Some(Spread::one(ratio)), limit);
        }
    }

    /// Adds all bounds.
    fn compare(&self, table: &mut Table) {
        use Peer::*;
        let big = |point: Point| point.capacity == 4096;
        let alone = move |point: Point| big(point) && point.publishers == 1;
        let several = move |point: Point| big(point) && point.publishers > 1;
        self.bound(
            table,
            "1 publisher, batch 16, against disruptor's better build",
            0.95,
            |p| alone(p) && p.batch == 16,
            |r, p| Some(r.rate(p, DisruptorSingle)?.max(r.rate(p, DisruptorMulti)?)),
        );
        self.bound(
            table,
            "1 publisher, single, against disruptor-1p",
            0.8,
            |p| alone(p) && p.batch == 1,
            |r, p| r.rate(p, DisruptorSingle),
        );
        self.bound(
            table,
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
                table,
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
            let what = format!(
                "geometric mean of all {} points against disruptor-mp",
                logs.len()
            );
            table.bound(&what, Some(Spread::one(mean)), Limit::AtLeast(1.5));
        }
        self.bound(
            table,
            "1x1, batch 64, against rtrb's chunks",
            0.85,
            |p| alone(p) && p.subscribers == 1 && p.batch == 64,
            |r, p| r.rate(p, Rtrb),
        );
        self.bound(
            table,
            "1x1, single, capacity 1024, against disruptor-1p",
            1.5,
            |p| p.capacity == 1024 && p.publishers == 1 && p.subscribers == 1 && p.batch == 1,
            |r, p| r.rate(p, DisruptorSingle),
        );
        self.bound(
            table,
            "batch 16 against Table 5.2",
            10.0,
            |p| p.batch == 16,
            |_, p| Some(published(p)),
        );
        self.bound(
            table,
            "single against Table 5.2",
            3.0,
            |p| p.batch == 1,
            |_, p| Some(published(p)),
        );
        if let Some(ratio) = self.waking {
            let what = "wake-up latency against crossbeam-channel";
            table.bound(what, Some(Spread::one(ratio)), Limit::AtMost(1.2));
        }
    }

    /// All tables.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut columns = vec!["publishers x subscribers"];
        columns.extend(Peer::ALL.map(Peer::name));
        columns.push("table 5.2");
        let title = "million messages per second, median (least to most)";
        let mut table = Table::new(title, &columns);
        let (mut left_out, mut without) = (0, 0);
        for point in self.points() {
            let mut cells = vec![at(point)];
            for peer in Peer::ALL {
                let mut rows = self.rows.iter();
                let row = rows.find(|row| row.point == point && row.peer == peer);
                let spread = row.and_then(|row| rounds::spread(&row.messages_per_second));
                let (Some(row), Some(spread)) = (row, spread) else {
                    cells.push("-".to_owned());
                    continue;
                };
                let (rates, some) = rounds::kept(&row.messages_per_second);
                let least = rates.iter().fold(f64::INFINITY, |a, b| a.min(**b)) / 1e6;
                let most = rates.iter().fold(0.0, |a: f64, b| a.max(**b)) / 1e6;
                let mark = if some.is_none() { "*" } else { "" };
                left_out += some.unwrap_or(0);
                without += usize::from(some.is_none());
                let middle = spread.median / 1e6;
                cells.push(format!("{middle:.1} ({least:.0}-{most:.0}){mark}"));
                let is_published = point.batch == 1 && point.capacity == PUBLISHED_CAPACITY;
                if peer == Peer::Dominoes && is_published {
                    let name = format!("{}x{}", point.publishers, point.subscribers);
                    let measure = Measure::of(spread.times(1e-6), rates.len());
                    table.measure(name, measure.disturbed_if(some.is_none()));
                }
            }
            cells.push(match published(point) {
                rate if rate.is_nan() => String::new(),
                rate => format!("{:.2}", rate / 1e6),
            });
            table.row(cells);
        }
        table.lines(self.figure_5_3());
        self.pictures(&mut table);
        table.note(format!(
            "{left_out} windows with the cores far apart are left out; {without} rows (*) have no others"
        ));
        self.compare(&mut table);
        table.keep(&self.rows);
        let mut figures = Table::new("the log alone, and beside it", &["what", "figure"]);
        for (name, value) in &self.figures {
            figures.row(vec![name.clone(), format!("{value:.1}")]);
        }
        vec![table, figures]
    }

    /// Rates of one publisher and of all its subscribers, by their number.
    fn figure_5_3(&self) -> Lines {
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
        Lines {
            x: "subscribers of one publisher (figure 5.3)".to_owned(),
            y: "million messages per second, one by one".to_owned(),
            doubling: false,
            lines,
        }
    }

    /// Bars for each capacity and number of publishers.
    fn pictures(&self, table: &mut Table) {
        // Rows of the published shapes come last, so they are sorted in.
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by_key(|Row { point: p, .. }| (p.capacity, p.publishers, p.subscribers, p.batch));
        let kind = |row: &Row| (row.point.capacity, row.point.publishers);
        for rows in rows.chunk_by(|one, next| kind(one) == kind(next)) {
            let (capacity, publishers) = kind(rows[0]);
            let bar = |row: &&Row| {
                let rate = rounds::spread(&row.messages_per_second)?;
                let (point, peer) = (row.point, row.peer.name());
                let shape = format!("subscribers {}, batch {}", point.subscribers, point.batch);
                Some(Bar::new(
                    format!("{shape}: {peer}"),
                    peer,
                    rate.times(1e-6),
                    1,
                ))
            };
            table.bars(Bars {
                heading: format!("publishers {publishers}, capacity {capacity}"),
                axis: "million messages per second, logarithmic: median and quartiles".to_owned(),
                logarithmic_from: Some(LEAST),
                bars: rows.iter().filter_map(bar).collect(),
            });
        }
    }
}

/// The least rate of a picture, in million messages per second.
const LEAST: f64 = 0.1;
