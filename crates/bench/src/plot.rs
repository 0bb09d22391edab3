//! Pictures of results, as SVG: a bar for each row with its quartiles, shares over time, lines of a
//! chart, and published numbers beside ours.

use crate::paper::{Figure, Measures, TIMES, shown};
use crate::ratio::label;
use crate::record::nic::{NicResult, Traffic};
use crate::record::{
    Chart, ExperimentResult, JoinRow, PanelResult, ResultRow, SharesRow, StallRow,
};
use crate::spread::Spread;
use crate::svg::{Anchor, Canvas, GRID, INK, MARGIN, number, text_width, ticks};

/// Pixels from left to right.
const WIDTH: f64 = 960.0;
/// Size of headings, of names and values, and of notes, in pixels.
const HEADING: f64 = 16.0;
const NAME: f64 = 13.0;
const NOTE: f64 = 12.0;
/// Pixels of a bar with its gap.
const BAR: f64 = 24.0;
/// Pixels from top to bottom of shares over time.
const SHARES: f64 = 170.0;

/// The colour of each variant, the same in every picture.
const COLOURS: &[(&str, &str)] = &[
    ("limit", "#9a9a9a"),
    ("single", "#4678b4"),
    ("locked-mutex", "#b03a3a"),
    ("locked-mcs", "#e79c9c"),
    ("pipelined", "#d4508f"),
    ("partitioned", "#8c62a8"),
    ("replicated", "#2f8f4e"),
    ("replicated-auto", "#8fd08f"),
    ("groups", "#20b2b2"),
    ("replicated-by-position", "#b5a71e"),
    ("replicated-greedy", "#5e6b1f"),
    ("replicated-by-kind", "#c9e265"),
    ("replicated-by-load", "#0b4f45"),
    ("smoltcp", "#c2762a"),
    ("smoltcp-8", "#f2cf8c"),
];
/// That of a variant which has none of its own.
const OTHER: &str = "#000";

/// The colours of replicas 0, 1 and so on.
const REPLICAS: [&str; 8] = [
    "#2f8f4e", "#c2762a", "#4678b4", "#b03a3a", "#8c62a8", "#20b2b2", "#b5a71e", "#9a9a9a",
];

/// The experiment as an SVG document; `None` if there is nothing to be seen.
pub fn svg(result: &ExperimentResult) -> Option<String> {
    canvas(result).map(Canvas::finish)
}

fn canvas(result: &ExperimentResult) -> Option<Canvas> {
    let panels: Vec<&PanelResult> = result
        .panels
        .iter()
        .filter(|p| !p.rows.is_empty())
        .collect();
    let shares: &[SharesRow] = result.shares.as_ref().map_or(&[], |shares| &shares.rows);
    let charts: Vec<(&str, &Chart)> = result
        .tables
        .iter()
        .filter_map(|table| Some((table.title.as_str(), table.chart.as_ref()?)))
        .collect();
    let of_samples = sampled(result);
    let nothing = panels.is_empty() && shares.is_empty() && charts.is_empty();
    if nothing && result.nic.is_none() && of_samples.is_empty() {
        return None;
    }
    let mut canvas = Canvas::new(WIDTH);
    let mut y = MARGIN;
    for panel in panels {
        y = bars(&mut canvas, y, result.experiment, panel) + 2.0 * MARGIN;
    }
    for row in shares {
        y = over_time(&mut canvas, y, row) + 2.0 * MARGIN;
    }
    if let Some(nic) = &result.nic {
        y = handlers(&mut canvas, y, nic);
        y = speedups(&mut canvas, y + 2.0 * MARGIN, nic) + 2.0 * MARGIN;
    }
    for (heading, rows) in &of_samples {
        y = pairs(&mut canvas, y, heading, rows) + 2.0 * MARGIN;
    }
    for (title, chart) in charts {
        y = lines(&mut canvas, y, title, chart) + 2.0 * MARGIN;
    }
    Some(canvas)
}

/// What the stalls and joins of a replica left, as bars below headings.
fn sampled(result: &ExperimentResult) -> Vec<(String, Vec<Pair>)> {
    let mut all = Vec::new();
    let bar = |name: String, value: Option<Spread>, unit: &str| {
        let ours = value.map_or(0.0, |spread| spread.median);
        Pair {
            name,
            ours,
            published: None,
            value: format!("{ours:.2} {unit}"),
        }
    };
    if let Some(stalls) = &result.stalls {
        let row = |row: &StallRow| {
            let rates = row
                .samples
                .iter()
                .map(|s| s.bytes as f64 * 8.0 / (s.ms * 1e6));
            let name = format!("{}/{}, {:?}", row.variant, row.cores, row.direction);
            bar(name, Spread::of(rates), "Gbit/s")
        };
        let heading = format!(
            "throughput while a replica stands still for {:.0} ms",
            stalls.stall_ms
        );
        all.push((heading, stalls.rows.iter().map(row).collect()));
    }
    if let Some(joins) = &result.joins {
        let row = |row: &JoinRow| {
            let shares = row.samples.iter().map(|s| 100.0 * s.worst_share);
            let name = format!("{} replicas, {:?}", row.cores, row.direction);
            bar(name, Spread::of(shares), "%")
        };
        let heading = format!(
            "the worst {:.0} ms behind a join, in percent of the throughput before it",
            joins.slice_ms
        );
        all.push((heading, joins.rows.iter().map(row).collect()));
    }
    all
}

/// Published numbers and ours, as far as both are there: a bar each, by their unit. `None` if there
/// are none.
pub fn compared(figures: &[Figure], measures: &Measures) -> Option<String> {
    let mut canvas = Canvas::new(WIDTH);
    let mut y = MARGIN;
    let checks = figures
        .iter()
        .flat_map(|figure| figure.checks.iter().map(move |check| (figure, check)));
    let mut units: Vec<&str> = Vec::new();
    for (_, check) in checks.clone() {
        if check.published.is_some() && !units.contains(&check.unit) {
            units.push(check.unit);
        }
    }
    let mut some = false;
    for unit in units {
        let rows: Vec<Pair> = checks
            .clone()
            .filter(|(_, check)| check.unit == unit)
            .filter_map(|(figure, check)| {
                let (ours, published) = (check.ours(measures)?, check.published?);
                Some(Pair {
                    name: format!("{}: {}", figure.place, check.what),
                    ours,
                    published: Some(published),
                    value: format!(
                        "{}, published {}",
                        shown(ours, unit),
                        shown(published, unit)
                    ),
                })
            })
            .collect();
        if !rows.is_empty() {
            some = true;
            let heading = match unit {
                TIMES => "how many times as fast: ours, and thin as published".to_owned(),
                unit => format!("{unit}: ours, and thin as published"),
            };
            y = pairs(&mut canvas, y, &heading, &rows) + MARGIN;
        }
    }
    some.then(|| canvas.finish())
}

/// Pixels from top to bottom of a chart.
const CHART: f64 = 240.0;

/// The lines of a chart, with a legend below its heading. Begins at `y` and returns where it ends.
fn lines(canvas: &mut Canvas, y: f64, heading: &str, chart: &Chart) -> f64 {
    let mut top = canvas.paragraph((MARGIN, y + HEADING), HEADING, heading) - HEADING / 2.0;
    let left = MARGIN + 60.0;
    let colour = |name: &str, number: usize| match COLOURS.iter().find(|(own, _)| *own == name) {
        Some((_, colour)) => *colour,
        None => REPLICAS[number % REPLICAS.len()],
    };
    let mut at = left;
    for (number, (name, _)) in chart.lines.iter().enumerate() {
        let wide = 18.0 + text_width(name, NOTE);
        if at + wide > canvas.width() - MARGIN {
            (at, top) = (left, top + 1.6 * NOTE);
        }
        canvas.rect((at, top), (NOTE, NOTE), colour(name, number));
        canvas.text((at + 18.0, top + 0.9 * NOTE), NOTE, Anchor::Start, name);
        at += wide + 2.0 * MARGIN;
    }
    top += 2.0 * NOTE;
    top = canvas.paragraph((left - 50.0, top + NOTE), NOTE, &chart.y) - 0.4 * NOTE;
    let (right, bottom) = (canvas.width() - 4.0 * MARGIN, top + CHART);
    let points = || chart.lines.iter().flat_map(|(_, points)| points);
    let across = |value: f64| {
        if chart.doubling {
            value.max(1e-9).log2()
        } else {
            value
        }
    };
    let ends = points().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), point| {
        (low.min(across(point.0)), high.max(across(point.0)))
    });
    let most = points().fold(f64::MIN_POSITIVE, |most, point| most.max(point.1));
    let x = |value: f64| {
        let whole = (ends.1 - ends.0).max(f64::MIN_POSITIVE);
        left + (right - left) * (across(value) - ends.0) / whole
    };
    let level = |value: f64| bottom - CHART * value / most;
    for tick in ticks(most, 6) {
        canvas.line(&[(left, level(tick)), (right, level(tick))], GRID, 1.0);
        let place = (left - 6.0, level(tick) + 0.35 * NOTE);
        canvas.text(place, NOTE, Anchor::End, &number(tick));
    }
    let mut places: Vec<f64> = points().map(|point| point.0).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let mut free = f64::NEG_INFINITY;
    for place in places {
        canvas.line(&[(x(place), bottom), (x(place), bottom + 4.0)], INK, 1.0);
        let text = number(place);
        let half = text_width(&text, NOTE) / 2.0;
        if x(place) - half > free {
            free = x(place) + half + 4.0;
            canvas.text((x(place), bottom + 4.0 + NOTE), NOTE, Anchor::Middle, &text);
        }
    }
    let middle = ((left + right) / 2.0, bottom + 4.0 + 2.4 * NOTE);
    canvas.text(middle, NOTE, Anchor::Middle, &chart.x);
    for (number, (name, points)) in chart.lines.iter().enumerate() {
        let points: Vec<(f64, f64)> = points.iter().map(|p| (x(p.0), level(p.1))).collect();
        let colour = colour(name, number);
        canvas.line(&points, colour, 2.0);
        for &(x, y) in &points {
            canvas.rect((x - 2.5, y - 2.5), (5.0, 5.0), colour);
        }
    }
    bottom + 4.0 + 2.8 * NOTE
}

fn colour(variant: &str) -> &'static str {
    let own = COLOURS.iter().find(|(name, _)| *name == variant);
    own.map_or(OTHER, |(_, colour)| colour)
}

/// What stands behind the bar of a row.
fn value(row: &ResultRow) -> String {
    let ns = row.ns_per_segment.median;
    let disturbed = if row.all_disturbed { ", disturbed" } else { "" };
    format!("{:.2} ({ns:.0} ns{disturbed})", row.gbit_per_s.median)
}

/// Gbit/s of every row, the first on top. Begins at `y` and returns where it ends.
fn bars(canvas: &mut Canvas, y: f64, experiment: &str, panel: &PanelResult) -> f64 {
    let ns = panel.line_transfer_ns[0].map_or_else(String::new, |ns| format!(", line {ns:.0} ns"));
    let disturbed = match panel.disturbed_rounds {
        0 => String::new(),
        some => format!(", {some} of them disturbed"),
    };
    let heading = format!(
        "{experiment}: {}, {} rounds{disturbed}{ns}",
        panel.name, panel.rounds
    );
    let top = canvas.paragraph((MARGIN, y + HEADING), HEADING, &heading) - HEADING + MARGIN / 2.0;
    let names: Vec<String> = panel
        .rows
        .iter()
        .map(|row| label(row.variant, row.cores, &row.case))
        .collect();
    let widest = |texts: &mut dyn Iterator<Item = f64>| texts.fold(0.0, f64::max);
    let left = MARGIN + widest(&mut names.iter().map(|name| text_width(name, NAME))) + 8.0;
    let values = widest(&mut panel.rows.iter().map(|row| text_width(&value(row), NOTE)));
    let wide = (canvas.width() - MARGIN - 8.0 - values - left).max(100.0);
    let most = widest(&mut panel.rows.iter().map(|row| row.gbit_per_s.q3));
    let x = |rate: f64| left + wide * rate / most.max(f64::MIN_POSITIVE);
    let bottom = top + BAR * panel.rows.len() as f64;
    for tick in ticks(most, 8) {
        canvas.line(&[(x(tick), top), (x(tick), bottom + 4.0)], GRID, 1.0);
        let number = number(tick);
        canvas.text(
            (x(tick), bottom + 4.0 + NOTE),
            NOTE,
            Anchor::Middle,
            &number,
        );
    }
    for ((i, row), name) in panel.rows.iter().enumerate().zip(&names) {
        let upper = top + BAR * i as f64;
        let Spread { q1, median, q3 } = row.gbit_per_s;
        let size = (x(median) - left, 0.7 * BAR);
        canvas.rect((left, upper + 0.15 * BAR), size, colour(row.variant));
        let middle = upper + 0.5 * BAR;
        canvas.line(&[(x(q1), middle), (x(q3), middle)], INK, 1.5);
        let base = middle + 0.35 * NAME;
        canvas.text((left - 8.0, base), NAME, Anchor::End, name);
        let end = x(q3.max(median)) + 8.0;
        canvas.text((end, base), NOTE, Anchor::Start, &value(row));
    }
    let axis = bottom + 4.0 + 2.4 * NOTE;
    canvas.paragraph(
        (left, axis),
        NOTE,
        "Gbit/s of payload: median and quartiles, nanoseconds per segment",
    )
}

/// Shares of replicas, one line each. Begins at `y` and returns where it ends.
fn over_time(canvas: &mut Canvas, y: f64, row: &SharesRow) -> f64 {
    let ends: Vec<f64> = row
        .samples
        .iter()
        .scan(0.0, |at, sample| {
            *at += sample.ms;
            Some(*at)
        })
        .collect();
    let last = ends.last().copied().unwrap_or(1.0);
    let heading = format!(
        "{} on {}: share of each replica in the payload",
        row.variant, row.cores
    );
    let mut top = canvas.paragraph((MARGIN, y + HEADING), HEADING, &heading) - HEADING / 2.0;
    if let Some(note) = &row.note {
        top = canvas.paragraph((MARGIN, top + NOTE), NOTE, note);
    }
    let mut at = MARGIN + 50.0;
    for replica in 0..row.cores {
        let name = format!("replica {replica}");
        canvas.rect((at, top), (NOTE, NOTE), REPLICAS[replica % REPLICAS.len()]);
        canvas.text((at + 18.0, top + NOTE), NOTE, Anchor::Start, &name);
        at += 18.0 + text_width(&name, NOTE) + 2.0 * MARGIN;
    }
    let (left, top) = (MARGIN + 50.0, top + 2.0 * NOTE);
    let (wide, bottom) = (canvas.width() - left - 3.0 * MARGIN, top + SHARES);
    let x = |ms: f64| left + wide * ms / last.max(f64::MIN_POSITIVE);
    let level = |share: f64| bottom - SHARES * share;
    for tick in ticks(1.0, 5) {
        let height = level(tick);
        canvas.line(&[(left, height), (left + wide, height)], GRID, 1.0);
        let number = format!("{:.0} %", tick * 100.0);
        canvas.text(
            (left - 6.0, height + 0.35 * NOTE),
            NOTE,
            Anchor::End,
            &number,
        );
    }
    for tick in ticks(last, 8) {
        canvas.line(&[(x(tick), bottom), (x(tick), bottom + 4.0)], INK, 1.0);
        let number = format!("{} ms", number(tick));
        canvas.text(
            (x(tick), bottom + 4.0 + NOTE),
            NOTE,
            Anchor::Middle,
            &number,
        );
    }
    for replica in 0..row.cores {
        let points: Vec<(f64, f64)> = ends
            .iter()
            .zip(&row.samples)
            .map(|(at, sample)| (x(*at), level(sample.share[replica])))
            .collect();
        canvas.line(&points, REPLICAS[replica % REPLICAS.len()], 2.0);
    }
    bottom + 4.0 + NOTE
}

/// A bar with its name and its value, and a thin one below it to compare with.
struct Pair {
    name: String,
    ours: f64,
    published: Option<f64>,
    value: String,
}

/// Pairs of bars below a heading. Begins at `y` and returns where it ends.
fn pairs(canvas: &mut Canvas, y: f64, heading: &str, pairs: &[Pair]) -> f64 {
    let top = canvas.paragraph((MARGIN, y + HEADING), HEADING, heading) - HEADING + MARGIN / 2.0;
    let widest = |texts: &mut dyn Iterator<Item = f64>| texts.fold(0.0, f64::max);
    let left = MARGIN + widest(&mut pairs.iter().map(|p| text_width(&p.name, NAME))) + 8.0;
    let values = widest(&mut pairs.iter().map(|pair| text_width(&pair.value, NOTE)));
    let wide = (canvas.width() - MARGIN - 8.0 - values - left).max(100.0);
    let most = widest(&mut pairs.iter().map(|p| p.ours.max(p.published.unwrap_or(0.0))));
    let size = |value: f64| wide * value / most.max(f64::MIN_POSITIVE);
    for (number, pair) in pairs.iter().enumerate() {
        let upper = top + BAR * number as f64;
        canvas.rect(
            (left, upper + 2.0),
            (size(pair.ours), 0.5 * BAR),
            REPLICAS[0],
        );
        if let Some(published) = pair.published {
            let place = (left, upper + 2.0 + 0.5 * BAR);
            canvas.rect(place, (size(published), 0.25 * BAR), REPLICAS[7]);
        }
        let base = upper + 0.5 * BAR + 0.35 * NAME;
        canvas.text((left - 8.0, base), NAME, Anchor::End, &pair.name);
        let end = left + size(pair.ours.max(pair.published.unwrap_or(0.0))) + 8.0;
        canvas.text((end, base), NOTE, Anchor::Start, &pair.value);
    }
    top + BAR * pairs.len() as f64
}

/// The time of each handler, ours and the published one.
fn handlers(canvas: &mut Canvas, y: f64, nic: &NicResult) -> f64 {
    let rows = nic.events.iter().map(|row| {
        let ours = row.share.map_or(0.0, |share| share.median * 100.0);
        let (from, to) = row.published;
        let published = if from == to {
            format!("{from}")
        } else {
            format!("{from} to {to}")
        };
        Pair {
            name: row.event.to_owned(),
            ours,
            published: Some((from + to) / 2.0),
            value: format!("{ours:.1} % (published: {published} %)"),
        }
    });
    let rows: Vec<Pair> = rows.collect();
    pairs(
        canvas,
        y,
        "share of each handler on one processor; thin: published",
        &rows,
    )
}

/// How many times as fast each firmware is as one processor, both ways.
fn speedups(canvas: &mut Canvas, y: f64, nic: &NicResult) -> f64 {
    let both = nic.rows.iter().filter(|row| row.traffic == Traffic::Both);
    let rows = both
        .filter(|row| row.firmware != "uniprocessor")
        .map(|row| {
            let ours = row.speedup.map_or(0.0, |ratio| ratio.median);
            let published = match (row.firmware, row.size) {
                ("partitioned", 18) => Some(2.57),
                ("partitioned", 1472) => Some(1.65),
                _ => None,
            };
            Pair {
                name: format!("{}, {} bytes", row.firmware, row.size),
                ours,
                published,
                value: format!("{ours:.2}"),
            }
        });
    let rows: Vec<Pair> = rows.collect();
    let heading = "both ways, processor time: times one processor; thin: published";
    pairs(canvas, y, heading, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::{VARIANTS, udp};
    use crate::record::{ShareSample, SharesResult};
    use crate::workload::Workload;
    use std::collections::HashSet;

    fn shares() -> ExperimentResult {
        let sample = |first: f64| ShareSample {
            ms: 30.0,
            share: vec![first, 1.0 - first],
        };
        let row = SharesRow {
            variant: "replicated",
            cores: 2,
            line_transfer_ns: None,
            share: Vec::new(),
            samples: vec![sample(0.4), sample(0.6), sample(0.5)],
            note: None,
        };
        ExperimentResult {
            shares: Some(SharesResult {
                every_requests: 1,
                workload: Workload::default(),
                rows: vec![row],
            }),
            ..ExperimentResult::new("load-share", "", &[])
        }
    }

    #[test]
    fn shares_become_one_line_for_each_replica() {
        let mut result = shares();
        let picture = svg(&result).unwrap();
        assert!(picture.contains("share of each replica in the payload"));
        assert_eq!(picture.matches("stroke-width='2'").count(), 2);
        result.shares = None;
        assert_eq!(svg(&result), None);
    }

    #[test]
    fn long_notes_stay_inside_the_picture() {
        let mut result = shares();
        result.shares.as_mut().unwrap().rows[0].note = Some("few samples ".repeat(20));
        let canvas = canvas(&result).unwrap();
        assert!(canvas.right() <= WIDTH, "{}", canvas.right());
    }

    /// Differences of red, green and blue, squared.
    fn distance(one: &str, other: &str) -> i32 {
        let part = |text: &str, at| i32::from_str_radix(&text[at..at + 2], 16).unwrap();
        let square = |at| (part(one, at) - part(other, at)).pow(2);
        [1, 3, 5].map(square).iter().sum()
    }

    #[test]
    fn every_variant_has_a_colour_of_its_own() {
        let names: HashSet<&str> = VARIANTS
            .iter()
            .chain(udp::VARIANTS)
            .map(|variant| variant.name)
            .collect();
        for name in &names {
            assert_ne!(colour(name), OTHER, "{name} has no colour");
        }
        assert_eq!(COLOURS.len(), names.len(), "a colour for no variant");
        for (i, (one, first)) in COLOURS.iter().enumerate() {
            for (other, second) in &COLOURS[..i] {
                let apart = distance(first, second);
                assert!(apart >= 40 * 40, "{one} and {other} look alike: {apart}");
            }
        }
    }
}
