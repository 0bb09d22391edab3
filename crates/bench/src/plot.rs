//! Pictures of results, as SVG: a bar for each row with its quartiles, or shares over time.

use crate::ratio::label;
use crate::record::{ExperimentResult, PanelResult, ResultRow, SharesRow, Spread};
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
    if panels.is_empty() && shares.is_empty() {
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
    y += NOTE;
    for figure in &result.published {
        y = canvas.paragraph((MARGIN, y), NOTE, &format!("published: {figure}")) + 4.0;
    }
    Some(canvas)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::{VARIANTS, udp};
    use crate::paper;
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
            experiment: "load-share",
            about: "",
            panels: Vec::new(),
            stalls: None,
            joins: None,
            shares: Some(SharesResult {
                every_requests: 1,
                workload: Workload::default(),
                rows: vec![row],
            }),
            published: Vec::new(),
            seconds: 0.0,
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
        for figures in [paper::TCP_RECEIVE, paper::CHECKSUM, paper::INLINE] {
            result.published.extend_from_slice(figures);
        }
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
