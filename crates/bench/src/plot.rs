//! Pictures of results, as SVG: bars with their quartiles, published numbers below ours, and lines
//! over a common axis.

use crate::paper::{Figure, Measures, TIMES, shown};
use crate::record::ExperimentResult;
use crate::spread::Spread;
use crate::svg::{Anchor, Canvas, GRID, INK, MARGIN, number, text_width, ticks};
use crate::table::{Bar, Bars, Chart, Lines};

/// Pixels from left to right.
const WIDTH: f64 = 960.0;
/// Size of headings, of names and values, and of notes, in pixels.
const HEADING: f64 = 16.0;
const NAME: f64 = 13.0;
const NOTE: f64 = 12.0;
/// Pixels of a bar with its gap.
const BAR: f64 = 24.0;
/// The colour of each variant in every picture.
const COLOURS: &[(&str, &str)] = &[
    ("limit", "#9a9a9a"),
    ("single", "#4678b4"),
    ("locked-mutex", "#b03a3a"),
    ("locked-mcs", "#e79c9c"),
    ("lock-each-mcs", "#6e1f1f"),
    ("pipelined", "#d4508f"),
    ("partitioned", "#8c62a8"),
    ("replicated", "#2f8f4e"),
    ("replicated-auto", "#8fd08f"),
    ("replicated-by-position", "#b5a71e"),
    ("replicated-greedy", "#5e6b1f"),
    ("replicated-by-kind", "#c9e265"),
    ("replicated-by-load", "#0b4f45"),
    ("smoltcp", "#c2762a"),
    ("smoltcp-8", "#f2cf8c"),
];
/// The colours of series that are no variants, in the order in which they come.
const SERIES: [&str; 8] = [
    "#2f8f4e", "#c2762a", "#4678b4", "#b03a3a", "#8c62a8", "#20b2b2", "#b5a71e", "#9a9a9a",
];
/// The colour of thin bars.
const BESIDE: &str = "#9a9a9a";

/// The pictures of a result below each other, as an SVG document; `None` if it has none.
pub fn svg(result: &ExperimentResult) -> Option<String> {
    canvas(result).map(Canvas::finish)
}

fn canvas(result: &ExperimentResult) -> Option<Canvas> {
    let mut canvas = None;
    let mut y = MARGIN;
    for table in result.all_tables() {
        for chart in &table.charts {
            let canvas = canvas.get_or_insert_with(|| Canvas::new(WIDTH));
            y = 2.0 * MARGIN
                + match chart {
                    Chart::Bars(bars) => draw_bars(canvas, y, bars),
                    Chart::Lines(chart) => lines(canvas, y, &table.title, chart),
                };
        }
    }
    canvas
}

/// Published numbers and ours, as far as both are there: a bar each, by their unit. `None` if there
/// are none.
pub fn compared(figures: &[Figure], measures: &Measures) -> Option<String> {
    let mut units: Vec<(&str, Bars)> = Vec::new();
    for figure in figures {
        for check in &figure.checks {
            let (Some(ours), Some(published)) = (check.ours(measures), check.number_published())
            else {
                continue;
            };
            let unit = check.unit.as_str();
            let known = units.iter().position(|(known, _)| *known == unit);
            let at = known.unwrap_or_else(|| {
                let heading = match unit {
                    TIMES => "how many times as fast: ours, and thin as published".to_owned(),
                    unit => format!("{unit}: ours, and thin as published"),
                };
                let bars = Bars {
                    heading,
                    ..Bars::default()
                };
                units.push((unit, bars));
                units.len() - 1
            });
            let [here, there] = [ours.median, published].map(|value| shown(value, unit));
            units[at].1.bars.push(Bar {
                name: format!("{}: {}", figure.place, check.what),
                series: String::new(),
                ours,
                beside: Some(published),
                text: format!("{here}, published {there}"),
            });
        }
    }
    let mut canvas = Canvas::new(WIDTH);
    let mut y = MARGIN;
    for (_, bars) in &units {
        y = draw_bars(&mut canvas, y, bars) + MARGIN;
    }
    (!units.is_empty()).then(|| canvas.finish())
}

/// Pixels from top to bottom of a chart.
const CHART: f64 = 240.0;

/// The lines of a chart, with a legend below its heading. Begins at `y` and returns where it ends.
fn lines(canvas: &mut Canvas, y: f64, heading: &str, chart: &Lines) -> f64 {
    let mut top = canvas.paragraph((MARGIN, y + HEADING), HEADING, heading) - HEADING / 2.0;
    let left = MARGIN + 60.0;
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

/// The colour of a variant, or of the series that comes so late.
fn colour(series: &str, number: usize) -> &'static str {
    let own = COLOURS.iter().find(|(name, _)| *name == series);
    own.map_or(SERIES[number % SERIES.len()], |(_, colour)| colour)
}

/// Bars below a heading, the first on top. Begins at `y` and returns where it ends.
fn draw_bars(canvas: &mut Canvas, y: f64, chart: &Bars) -> f64 {
    let heading = &chart.heading;
    let top = canvas.paragraph((MARGIN, y + HEADING), HEADING, heading) - HEADING + MARGIN / 2.0;
    let widest = |of: fn(&Bar) -> f64| chart.bars.iter().map(of).fold(0.0, f64::max);
    let left = MARGIN + widest(|bar| text_width(&bar.name, NAME)) + 8.0;
    let values = widest(|bar| text_width(&bar.text, NOTE));
    let wide = (canvas.width() - MARGIN - 8.0 - values - left).max(100.0);
    let most = widest(|bar| {
        bar.ours
            .q3
            .max(bar.ours.median)
            .max(bar.beside.unwrap_or(0.0))
    });
    let x = |value: f64| match chart.logarithmic_from {
        Some(least) => {
            let whole = (most / least).max(10.0).log10();
            left + wide * (value / least).max(1.0).log10() / whole
        }
        None => left + wide * value / most.max(f64::MIN_POSITIVE),
    };
    let bottom = top + BAR * chart.bars.len() as f64;
    let marks = match (chart.axis.is_empty(), chart.logarithmic_from) {
        (true, _) => Vec::new(),
        (false, None) => ticks(most, 8),
        (false, Some(least)) => {
            let decades = (0..16).map(|power| least * 10f64.powi(power));
            decades.take_while(|mark| *mark <= most).collect()
        }
    };
    for mark in marks {
        canvas.line(&[(x(mark), top), (x(mark), bottom + 4.0)], GRID, 1.0);
        let place = (x(mark), bottom + 4.0 + NOTE);
        canvas.text(place, NOTE, Anchor::Middle, &number(mark));
    }
    let mut series: Vec<&str> = Vec::new();
    for (i, bar) in chart.bars.iter().enumerate() {
        let known = series.iter().position(|known| *known == bar.series);
        let at = known.unwrap_or_else(|| {
            series.push(&bar.series);
            series.len() - 1
        });
        let upper = top + BAR * i as f64;
        let Spread { q1, median, q3 } = bar.ours;
        let high = if bar.beside.is_some() { 0.5 } else { 0.7 } * BAR;
        let size = (x(median) - left, high);
        canvas.rect((left, upper + 3.0), size, colour(&bar.series, at));
        let middle = upper + 3.0 + high / 2.0;
        if q1 < q3 {
            canvas.line(&[(x(q1), middle), (x(q3), middle)], INK, 1.5);
        }
        if let Some(beside) = bar.beside {
            let size = (x(beside) - left, 0.25 * BAR);
            canvas.rect((left, upper + 3.0 + high), size, BESIDE);
        }
        let base = middle + 0.35 * NAME;
        canvas.text((left - 8.0, base), NAME, Anchor::End, &bar.name);
        let end = x(q3.max(median).max(bar.beside.unwrap_or(0.0))) + 8.0;
        canvas.text((end, base), NOTE, Anchor::Start, &bar.text);
    }
    match chart.axis.is_empty() {
        true => bottom,
        false => canvas.paragraph((left, bottom + 4.0 + 2.4 * NOTE), NOTE, &chart.axis),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::{VARIANTS, udp};
    use crate::table::Table;
    use std::collections::HashSet;

    fn result(table: Table) -> ExperimentResult {
        ExperimentResult {
            tables: vec![table],
            ..ExperimentResult::new("an experiment", "")
        }
    }

    #[test]
    fn every_line_of_a_chart_is_drawn_with_its_name() {
        let mut table = Table::new("shares", &[]);
        assert_eq!(svg(&result(table.clone())), None);
        table.lines(Lines {
            x: "ms".to_owned(),
            y: "percent".to_owned(),
            doubling: false,
            lines: ["replica 0", "replica 1"]
                .map(|name| (name.to_owned(), vec![(1.0, 40.0), (2.0, 60.0)]))
                .into(),
        });
        let picture = svg(&result(table)).unwrap();
        assert!(picture.contains("shares") && picture.contains("replica 1"));
        assert_eq!(picture.matches("stroke-width='2'").count(), 2);
    }

    #[test]
    fn bars_and_what_stands_around_them_stay_inside_the_picture() {
        let ours = Spread::of([1e6, 2e6, 3e7]).unwrap();
        for logarithmic_from in [None, Some(1e5)] {
            let mut table = Table::new("rates", &[]);
            table.bars(Bars {
                heading: "few samples ".repeat(20),
                axis: "messages a second".to_owned(),
                logarithmic_from,
                bars: vec![
                    Bar::new("a name of some length", "single", ours, 0),
                    Bar {
                        beside: Some(5e6),
                        ..Bar::new("another", "replicated", ours, 0)
                    },
                ],
            });
            let canvas = canvas(&result(table)).unwrap();
            assert!(canvas.right() <= WIDTH, "{}", canvas.right());
        }
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
            assert!(
                COLOURS.iter().any(|(own, _)| own == name),
                "{name} has no colour"
            );
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
