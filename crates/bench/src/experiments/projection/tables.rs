//! The tables of the projection.

use super::{Case, MAY_MISS};
use crate::paper::Measure;
use crate::projection::counts::Count;
use crate::projection::linear::Linear;
use crate::projection::papers::{MAY_MISS as OF_A_POINT, Point, Scaled, WITHOUT};
use crate::projection::{
    Conditions, DOMAIN_BYTES_PER_NS, Kind, LINES_NS, Projected, WORKERS, stops_at,
};
use crate::spread::Spread;
use crate::table::{Bar, Bars, Lines, Table, columns};

/// Counts of runs by hand, and the model's assumptions.
pub(super) fn counted(case: &Case, counts: &[Count]) -> Table {
    let mut table = Table::new(
        format!("{}: counted by hand, workers in turn", case.name),
        &columns(
            "workers | frames a claim | in the model | requests a segment | applied a \
             segment, by all",
        ),
    );
    for count in counts {
        table.row(vec![
            count.workers.to_string(),
            format!("{:.1}", count.claimed),
            case.claimed(count.workers)
                .map_or_else(String::new, |claimed| format!("{claimed:.1}")),
            format!("{:.4}", count.requests),
            format!("{:.3}", count.applied),
        ]);
    }
    table
}

/// The cost of each step with one worker.
pub(super) fn measured_costs(cases: &[Case]) -> Table {
    let mut table = Table::new(
        "ns, measured with one worker: a segment + a step by itself",
        &columns(
            "workload | single | one replica | partitioned | claim | parse | publish \
             | prepare | apply | perform | transmit | application | locked: pump | \
             locked: prepare | locked: apply | locked: perform | stages",
        ),
    );
    for case in cases {
        let costs = &case.costs;
        let linear = |cost: Linear| format!("{:.1} + {:.0}", cost.each, cost.fixed);
        let (replicated, locked) = (&costs.replicated, &costs.locked);
        let mut row = vec![
            case.name.clone(),
            format!("{:.1}", costs.single),
            format!("{:.1}", costs.solo),
            format!("{:.1}", costs.partitioned),
        ];
        let steps = [
            replicated.claim,
            replicated.parse,
            replicated.publish,
            replicated.prepare,
            replicated.apply,
            replicated.perform,
            replicated.transmit,
            replicated.app,
            locked.pump,
            locked.prepare,
            locked.apply,
            locked.perform,
        ];
        row.extend(steps.map(linear));
        row.push(costs.stages.map(|ns| format!("{ns:.0}")).join(", "));
        table.row(row);
        let [line, large] = [costs.requests, costs.large_ring];
        table.note(format!(
            "{}: {line:.4} requests a segment, payload {large:.2} times as long with a ring of 8 MB, \
             {:.2} times while two cores work, {:.1} ns of a claim are the simulated peer's",
            case.name, case.two_at_once, costs.device.each
        ));
    }
    table
}

/// Each measured row with the model's prediction.
pub(super) fn checked(cases: &[Case]) -> Table {
    let mut table = Table::new(
        "the model against the rows of this run, ns a segment",
        &columns("workload | row | measured | quartiles | model | error % |"),
    );
    for case in cases {
        for check in &case.checks {
            let error = check.error(case.drift());
            let Spread { q1, median, q3 } = check.measured;
            let excuse = case.disturbed.or(check.excuse);
            let word = match excuse {
                Some(why) => format!("disturbed: {why}"),
                None if error.abs() > MAY_MISS => "missed: not projected".to_owned(),
                None => String::new(),
            };
            table.row(vec![
                case.name.clone(),
                format!("{}/{}", check.kind.name(), check.cores),
                format!("{median:.1}"),
                format!("{q1:.1} to {q3:.1}"),
                format!("{:.1}", case.drift() * check.model),
                format!("{:+.1}", 100.0 * error),
                word,
            ]);
        }
    }
    table
}

/// Which published figures come out of the papers' own parameters.
pub(super) fn validated(figures: &[Scaled]) -> Table {
    let mut table = Table::new(
        format!(
            "the papers' machines, with each paper's own parameters: within {:.0} % of every published \
             number, or not used",
            100.0 * OF_A_POINT
        ),
        &["figure", "numbers", "worst error %", "model", "why"],
    );
    for figure in figures {
        let word = match figure.is_validated() {
            true => "validated",
            false => "not validated",
        };
        table.row(vec![
            format!("{}, {}", figure.source, figure.place),
            figure.points().to_string(),
            format!("{:+.1}", 100.0 * figure.worst()),
            word.to_owned(),
            figure.why.to_owned(),
        ]);
    }
    for (figure, why) in WITHOUT.iter().filter_map(|line| line.split_once(": ")) {
        let none = String::new;
        table.row(vec![
            figure.to_owned(),
            none(),
            none(),
            "none".to_owned(),
            why.to_owned(),
        ]);
    }
    table
}

/// A published figure, the model's, and ours if the model meets ours.
pub(super) fn published(figure: &Scaled, case: Option<&Case>) -> Table {
    let mut table = Table::new(
        format!(
            "{}, {}: published and modelled",
            figure.source, figure.place
        ),
        &["curve", figure.x, "published", "model", "error %"],
    );
    let mut lines = Vec::new();
    for (name, points) in &figure.curves {
        for point in points {
            let (low, high) = point.published;
            let published = match (low == high, high.is_finite()) {
                _ if low.is_nan() => "no number".to_owned(),
                (true, _) => format!("{low:.2}"),
                (_, true) => format!("{low:.2} to {high:.2}"),
                _ => format!("at least {low:.2}"),
            };
            let error = match point.is_given {
                _ if low.is_nan() => String::new(),
                true => "given".to_owned(),
                false => format!("{:+.1}", 100.0 * point.error()),
            };
            table.row(vec![
                (*name).to_owned(),
                format!("{}", point.x),
                published,
                format!("{:.2}", point.model),
                error,
            ]);
        }
        let middle = |(low, high): (f64, f64)| {
            if high.is_finite() {
                (low + high) / 2.0
            } else {
                low
            }
        };
        let published = points
            .iter()
            .filter(|point| !point.published.0.is_nan())
            .map(|point| (point.x, middle(point.published)));
        lines.push((format!("{name}: published"), published.collect()));
        let modelled = points.iter().map(|point| (point.x, point.model));
        lines.push((format!("{name}: modelled"), modelled.collect()));
    }
    let stated = Conditions::stated(LINES_NS[0], 1);
    for (kind, case) in figure.ours.iter().zip(case.into_iter().cycle()) {
        let why = match figure.is_validated() {
            false => "the paper's model is not validated",
            true => "the model misses a measured row",
        };
        if !figure.is_validated() || !case.is_projected(*kind) {
            table.note(format!("ours, {}: not projected, since {why}", kind.name()));
            continue;
        }
        let all = case.project(*kind, &stated);
        for (workers, at) in WORKERS.iter().zip(&all).skip(1) {
            let name = format!("{}: {}, {workers} over 1", figure.place, kind.name());
            let measure = Measure::exact(all[0].ns / at.ns).projected();
            table.measure(name, measure.disturbed_if(case.is_excused(*kind)));
        }
        let points = WORKERS
            .iter()
            .zip(&all)
            .filter(|(workers, _)| **workers <= 16);
        let points = points.map(|(&workers, at)| (workers as f64, all[0].ns / at.ns));
        lines.push((
            format!("ours, projected: {}", kind.name()),
            points.collect(),
        ));
    }
    for parameter in figure.parameters {
        table.note(*parameter);
    }
    table.note("the picture has an interval at its middle, and a bound at its end");
    let single = |(name, points): &(&'static str, Vec<Point>)| match points[..] {
        [
            Point {
                published, model, ..
            },
        ] => Some(Bar {
            beside: Some(published.0),
            text: format!("{model:.2} (published: {:.2})", published.0),
            ..Bar::new(*name, "", Spread::one(model), 2)
        }),
        _ => None,
    };
    let bars: Option<Vec<Bar>> = figure.curves.iter().map(single).collect();
    match bars {
        Some(bars) => table.bars(Bars {
            heading: format!(
                "{}, {}: modelled; thin: published",
                figure.source, figure.place
            ),
            axis: figure.y.to_owned(),
            logarithmic_from: None,
            bars,
        }),
        None => table.lines(Lines {
            x: figure.x.to_owned(),
            y: figure.y.to_owned(),
            doubling: false,
            lines,
        }),
    }
    table
}

/// An error as text.
fn beside(error: Option<f64>) -> String {
    error.map_or_else(
        || "not checked".to_owned(),
        |error| format!("±{:.0} %", 100.0 * error),
    )
}

/// Throughput over workers, and where each row stops.
pub(super) fn table(case: &Case) -> Table {
    let line = LINES_NS[0];
    let stated = Conditions::stated(line, 1);
    let bits = case.workload.segment_bytes as f64 * 8.0;
    let mut columns = vec!["workers"];
    columns.extend(case.kinds.iter().map(|kind| kind.name()));
    let mut table = Table::new(
        format!(
            "{}: times single (error), {line:.0} ns a line, one memory domain of \
             {DOMAIN_BYTES_PER_NS:.0} GB/s",
            case.name
        ),
        &columns,
    );
    let rows: Vec<(Kind, Vec<Projected>)> = case
        .kinds
        .iter()
        .map(|&kind| (kind, case.project(kind, &stated)))
        .collect();
    let single = case.single_ns(&stated);
    for (place, workers) in WORKERS.into_iter().enumerate() {
        let mut row = vec![workers.to_string()];
        for (kind, projections) in &rows {
            let kind = *kind;
            if !case.is_projected(kind) {
                row.push("not projected".to_owned());
                continue;
            }
            let times = single / projections[place].ns;
            row.push(format!("{times:.2} ({})", beside(case.error(kind))));
            if kind == Kind::Replicated {
                let name = format!("{}: replicated/{workers} over single", case.name);
                let measure = Measure::exact(times).projected();
                table.measure(name, measure.disturbed_if(case.is_excused(kind)));
            }
        }
        table.row(row);
    }
    for (kind, projections) in &rows {
        table.note(match case.is_projected(*kind) {
            true => stop(*kind, projections, single, case),
            false => format!(
                "{} is not projected: the model misses a measured row of it by {}",
                kind.name(),
                beside(case.error(*kind))
            ),
        });
    }
    let points = |projections: &Vec<Projected>| -> Vec<(f64, f64)> {
        let places = WORKERS.iter().zip(projections);
        places
            .map(|(&workers, projected)| (workers as f64, bits / projected.ns))
            .collect()
    };
    let lines = rows.iter().filter(|(kind, _)| case.is_projected(*kind));
    table.lines(Lines {
        x: "workers".to_owned(),
        y: "Gbit/s of payload, projected".to_owned(),
        doubling: true,
        lines: lines
            .map(|(kind, projections)| (kind.name().to_owned(), points(projections)))
            .collect(),
    });
    table
}

/// Where a row stops scaling, and the cause.
fn stop(kind: Kind, projections: &[Projected], single: f64, case: &Case) -> String {
    let place = stops_at(projections);
    let at = place.unwrap_or(projections.len() - 1);
    let best = projections
        .iter()
        .map(|p| p.ns)
        .fold(f64::INFINITY, f64::min);
    let times = single / best;
    let error = beside(case.error(kind));
    // The tightest bound where more workers do not help.
    let beyond = &projections[(at + 1).min(projections.len() - 1)];
    let cause = beyond.bounds.first().map_or_else(
        || "nothing in particular".to_owned(),
        |bound| {
            let share = 100.0 * bound.ns / beyond.ns;
            format!(
                "{}: {:.1} of {:.1} ns a segment ({share:.0} %)",
                bound.what, bound.ns, beyond.ns
            )
        },
    );
    let lost = 100.0 * beyond.lost;
    let name = kind.name();
    let most = WORKERS[WORKERS.len() - 1];
    let stops = match place {
        Some(0) => format!("{name} stops at one worker"),
        Some(place) => format!("{name} stops at {} workers", WORKERS[place]),
        None => format!("{name} does not stop up to {most} workers"),
    };
    format!(
        "{stops}, {times:.2} of single ({error}); nearest bound: {cause}; workers idle or waiting \
         {lost:.0} %"
    )
}

/// `replicated` by the time of a cache-line transfer, by memory domains, and by the core that
/// writes headers.
pub(super) fn sensitivity(case: &Case) -> Table {
    let columns = columns(
        "ns a line | memory domains | peer holds the device | 2 | 4 | 8 | 16 | 32 | \
         64 | error",
    );
    let title = format!("{}: replicated over single, by line and memory", case.name);
    let mut table = Table::new(title, &columns);
    let mut lines_ns = LINES_NS;
    lines_ns.sort_by(f64::total_cmp);
    let mut all = Vec::new();
    for line_ns in lines_ns {
        all.extend([1, 2].map(|domains| Conditions::stated(line_ns, domains)));
    }
    all.push(Conditions {
        peer_holds: true,
        ..Conditions::stated(LINES_NS[0], 1)
    });
    let mut lines = Vec::new();
    for stated in all {
        let single = case.single_ns(&stated);
        let projections = case.project(Kind::Replicated, &stated);
        let times: Vec<f64> = projections.iter().map(|p| single / p.ns).collect();
        let (line_ns, domains) = (stated.line_ns, stated.domains);
        let mut row = vec![format!("{line_ns:.0}"), domains.to_string()];
        row.push(if stated.peer_holds { "yes" } else { "no" }.to_owned());
        row.extend(times[1..].iter().map(|times| format!("{times:.2}")));
        row.push(beside(case.error(Kind::Replicated)));
        table.row(row);
        let holds = if stated.peer_holds {
            ", peer holds the device"
        } else {
            ""
        };
        let name = format!("{line_ns:.0} ns, {domains} domains{holds}");
        let points = WORKERS.iter().zip(times);
        let points = points.map(|(&workers, times)| (workers as f64, times));
        lines.push((name, points.collect()));
    }
    table.lines(Lines {
        x: "workers".to_owned(),
        y: "replicated over single, projected".to_owned(),
        doubling: true,
        lines,
    });
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::papers;

    #[test]
    fn every_published_figure_is_listed_with_its_outcome() {
        let figures = papers::all();
        let table = validated(&figures);
        let words: Vec<&str> = table.rows.iter().map(|row| row[3].as_str()).collect();
        let count = |what| words.iter().filter(|word| **word == what).count();
        assert_eq!(
            ["validated", "not validated", "none"].map(count),
            [4, 1, WITHOUT.len()]
        );
        for figure in &figures {
            let table = published(figure, None);
            assert_eq!(table.charts.len(), 1, "{}", figure.place);
            let numbers = table.rows.iter().filter(|row| row[2] != "no number");
            assert!(numbers.count() >= figure.points(), "{}", figure.place);
        }
    }
}
