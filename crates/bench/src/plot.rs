//! Pictures of results, as SVG: a bar for each row with its quartiles, or shares over time.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::ratio::label;
use crate::record::{ExperimentResult, PanelResult, SharesRow, Spread};

/// Width of a picture, in pixels.
const WIDTH: u32 = 960;
/// Pixels of a bar with its gap.
const BAR: u32 = 24;
/// Pixels of everything else about a panel.
const FRAME: u32 = 110;
/// Pixels of a picture of shares.
const SHARES: u32 = 260;
/// Pixels for each line of published figures.
const LINE: u32 = 18;

/// The experiment as an SVG document; `None` if there is nothing to be seen.
///
/// # Errors
/// What the drawing crate says.
pub fn svg(result: &ExperimentResult) -> Result<Option<String>, String> {
    let panels: Vec<&PanelResult> = result
        .panels
        .iter()
        .filter(|p| !p.rows.is_empty())
        .collect();
    let shares: &[SharesRow] = result.shares.as_ref().map_or(&[], |shares| &shares.rows);
    let heights: Vec<u32> = panels
        .iter()
        .map(|panel| FRAME + BAR * panel.rows.len() as u32)
        .chain(shares.iter().map(|_| SHARES))
        .collect();
    if heights.is_empty() {
        return Ok(None);
    }
    let notes = LINE * result.published.len() as u32 + LINE;
    let height = heights.iter().sum::<u32>() + notes;
    let mut out = String::new();
    {
        let root = SVGBackend::with_string(&mut out, (WIDTH, height)).into_drawing_area();
        draw(&root, result, &panels, shares, &heights).map_err(|e| e.to_string())?;
        root.present().map_err(|e| e.to_string())?;
    }
    Ok(Some(out))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(
    root: &Area<'_>,
    result: &ExperimentResult,
    panels: &[&PanelResult],
    shares: &[SharesRow],
    heights: &[u32],
) -> Drawn {
    root.fill(&WHITE)?;
    let mut rest = root.clone();
    for (i, height) in heights.iter().enumerate() {
        let (area, below) = rest.split_vertically(*height);
        rest = below;
        match panels.get(i) {
            Some(panel) => bars(&area, result.experiment, panel)?,
            None => over_time(&area, &shares[i - panels.len()])?,
        }
    }
    let style = ("sans-serif", 13).into_font().color(&BLACK.mix(0.7));
    for (i, figure) in result.published.iter().enumerate() {
        let at = (10, (LINE * i as u32 + 4) as i32);
        rest.draw_text(&format!("published: {figure}"), &style, at)?;
    }
    Ok(())
}

fn color(variant: &str) -> RGBColor {
    match variant {
        "limit" => RGBColor(150, 150, 150),
        "single" => RGBColor(70, 120, 180),
        "smoltcp" => RGBColor(190, 140, 60),
        locked if locked.starts_with("locked") => RGBColor(180, 80, 80),
        _ => RGBColor(70, 150, 90),
    }
}

/// Gbit/s of every row, the first on top.
fn bars(area: &Area<'_>, experiment: &str, panel: &PanelResult) -> Drawn {
    let count = panel.rows.len();
    let most = panel.rows.iter().map(|row| row.gbit_per_s.q3);
    let most = most.fold(0.0, f64::max) * 1.15;
    let ns = panel.line_transfer_ns[0].map_or_else(String::new, |ns| format!(", line {ns:.0} ns"));
    let caption = format!("{experiment}: {}, {} rounds{ns}", panel.name, panel.rounds);
    let names: Vec<String> = panel
        .rows
        .iter()
        .map(|row| label(row.variant, row.cores, &row.case))
        .collect();
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 17))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(210)
        .build_cartesian_2d(0.0..most.max(f64::MIN_POSITIVE), rows_axis(count))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_desc("Gbit/s of payload: median, quartiles; ns per segment")
        .y_labels(0)
        .draw()?;
    let ink = BLACK.mix(0.8);
    for (i, row) in panel.rows.iter().enumerate() {
        let top = (count - i) as f64;
        let Spread { q1, median, q3 } = row.gbit_per_s;
        let bar = [(0.0, top - 0.85), (median, top - 0.15)];
        chart.draw_series([Rectangle::new(bar, color(row.variant).filled())])?;
        let middle = top - 0.5;
        chart.draw_series([PathElement::new([(q1, middle), (q3, middle)], ink)])?;
        let text = format!("{median:.2} ({:.0} ns)", row.ns_per_segment.median);
        let small = ("sans-serif", 12).into_font();
        chart.draw_series([Text::new(text, (q3 * 1.01, middle + 0.2), small)])?;
        // The axis has a place of its own for names, which the crate fills with numbers only.
        let (x, y) = chart.plotting_area().map_coordinate(&(0.0, middle + 0.2));
        let (left, upper) = area.get_base_pixel();
        let style = ("sans-serif", 13).into_font().color(&BLACK);
        let place = (x - left - 205, y - upper);
        area.draw_text(&names[i], &style, place)?;
    }
    Ok(())
}

fn rows_axis(count: usize) -> Range<f64> {
    0.0..count.max(1) as f64
}

/// Shares of replicas, one line each.
fn over_time(area: &Area<'_>, row: &SharesRow) -> Drawn {
    let ends: Vec<f64> = row
        .samples
        .iter()
        .scan(0.0, |at, sample| {
            *at += sample.ms;
            Some(*at)
        })
        .collect();
    let last = ends.last().copied().unwrap_or(1.0);
    let caption = format!("{} on {}: share in the payload", row.variant, row.cores);
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 17))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..last, 0.0..1.0)?;
    chart.configure_mesh().x_desc("ms").draw()?;
    for replica in 0..row.cores {
        let points = ends
            .iter()
            .zip(&row.samples)
            .map(|(at, sample)| (*at, sample.share[replica]));
        let style = Palette99::pick(replica).stroke_width(2);
        chart.draw_series(LineSeries::new(points, style))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{ShareSample, SharesResult};
    use crate::workload::Workload;

    #[test]
    fn shares_become_one_line_for_each_replica() {
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
        };
        let mut result = ExperimentResult {
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
        };
        let picture = svg(&result).unwrap().unwrap();
        assert!(picture.contains("share in the payload"));
        assert_eq!(picture.matches("stroke-width=\"2\"").count(), 2);
        result.shares = None;
        assert_eq!(svg(&result), Ok(None));
    }
}
