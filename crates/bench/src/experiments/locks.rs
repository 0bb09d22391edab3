//! Locks around one state, taken for each packet of 4 KB: their number and kind, and the work outside
//! them.

use super::checksum::LONG;
use super::{DIRECTIONS, Experiment};
use crate::drivers::Direction;
use crate::drivers::locks::VARIANTS;
use crate::lineup::{Panel, Wanted};
use crate::paper::{self, Measure};
use crate::ratio::{Target, row};
use crate::record::text::known;
use crate::record::{PanelResult, ResultRow};
use crate::spread::Spread;
use crate::table::{Lines, Table, columns};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "locks",
    about: "one state behind one, two or six locks, for each packet: kinds of locks, order, tickets, reference counts, message memory",
    panels,
    besides: |_, result, _| Ok(conclude(&result.panels)),
    ..Experiment::NONE
};

/// Workers of table 1.
const MOST: usize = 8;
/// The fewest pairs of slices for a finding.
const LEAST_PAIRS: usize = 5;
/// The panel of table 1.
const ORDER: &str = "misordering, 1 to 8 workers";

/// The paper's findings: a sentence, and the two rows whose ratio is compared; the first
/// [`ON_ONE`] on one core, too.
type Finding = (&'static str, &'static str, &'static str);
const FINDINGS: [Finding; 10] = [
    ("TCP-1 beats TCP-2", "tcp-1-mcs", "tcp-2-mcs"),
    ("TCP-1 beats TCP-6", "tcp-1-mcs", "tcp-6-mcs"),
    (
        "TCP-1 beats TCP-6 with checksums outside",
        "tcp-1-mcs",
        "tcp-6-outside-mcs",
    ),
    (
        "checksums outside the locks of TCP-6 gain",
        "tcp-6-outside-mcs",
        "tcp-6-mcs",
    ),
    ("MCS locks beat mutexes", "tcp-1-mcs", "tcp-1"),
    (
        "order that is taken for granted gains",
        "in-order-mcs",
        "tcp-1-mcs",
    ),
    ("tickets cost", "counted-mcs", "tickets-mcs"),
    (
        "atomic reference counts gain over locks",
        "tcp-1-mcs",
        "locked-references-mcs",
    ),
    ("pools gain over malloc", "tcp-1-mcs", "malloc-mcs"),
    (
        "pools gain over a list behind a lock",
        "tcp-1-mcs",
        "shared-messages-mcs",
    ),
];

const ON_ONE: usize = 2;

/// Whether a finding applies to this direction: the order of arriving segments does not matter to a
/// sender.
fn is_about(direction: Direction, finding: &Finding) -> bool {
    let is_order = |name: &str| {
        ["in-order", "counted", "tickets"]
            .iter()
            .any(|n| name.starts_with(n))
    };
    direction.receives() || !is_order(finding.1) && !is_order(finding.2)
}

fn most_cores(wanted: &Wanted) -> usize {
    wanted.cores.iter().copied().max().unwrap_or(1)
}

fn panels(wanted: &Wanted) -> Vec<Panel> {
    let cores = most_cores(wanted);
    let base = Workload {
        segment_bytes: LONG,
        ..wanted.base
    };
    // Every finding is the ratio of two of these rows.
    let any = Wanted {
        variants: Vec::new(),
        ..wanted.clone()
    };
    let mut panels = Vec::new();
    for (direction, what) in DIRECTIONS {
        let mut panel = wanted.panel(what, direction, base);
        let entries = any.entries_of(VARIANTS, direction, &["*"], "", base);
        panel.entries = entries
            .into_iter()
            .filter(|entry| {
                let name = entry.variant.name;
                let mut found = FINDINGS.iter().filter(|f| is_about(direction, f));
                let is_found = found.any(|(_, a, b)| [*a, *b].contains(&name));
                is_found || name == "tcp-2" || name == "tcp-6"
            })
            .collect();
        let found = FINDINGS.iter().filter(|f| is_about(direction, f));
        let target = |on: &str, cores, (finding, one, other): &Finding| {
            let what = format!("{what}, {finding}{on}");
            Target::of(what, row(one, cores), row(other, cores), None)
        };
        let alone = FINDINGS[..ON_ONE].iter();
        panel.targets = found.map(|found| target("", cores, found)).collect();
        panel
            .targets
            .extend(alone.map(|found| target(" on one core", 1, found)));
        panels.push(panel);
    }
    let mut panel = wanted.panel(ORDER, Direction::Receive, base);
    let many = Wanted {
        cores: (1..=MOST).collect(),
        ..any
    };
    let names = ["tcp-1", "tcp-1-mcs"];
    panel.entries = many.entries_of(VARIANTS, panel.direction, &names, "", base);
    panel.rounds = 2;
    panels.push(panel);
    panels
}

fn conclude(panels: &[PanelResult]) -> Vec<Table> {
    let mut tables = vec![findings(panels)];
    if let Some(panel) = panels.iter().find(|panel| panel.name == ORDER) {
        tables.push(misordering(panel));
    }
    tables
}

/// Each of the paper's findings, and whether it holds here.
fn findings(panels: &[PanelResult]) -> Table {
    let mut table = Table::new(
        "what the paper found",
        &["finding", "ratio", "quartiles", "here"],
    );
    for line in panels.iter().flat_map(|panel| &panel.ratios) {
        let Some(ratio) = &line.ratio else {
            table.row(vec![
                line.what.clone(),
                String::new(),
                String::new(),
                "not measured".to_owned(),
            ]);
            continue;
        };
        let here = match ratio {
            _ if line.all_disturbed || line.pairs < LEAST_PAIRS => "not judged",
            ratio if ratio.q1 > 1.0 => "confirmed",
            ratio if ratio.q3 < 1.0 => "refuted",
            _ => "no difference",
        };
        let pairs = line.pairs;
        table.row(vec![
            line.what.clone(),
            format!("{:.2}", ratio.median),
            format!("{:.2} to {:.2}", ratio.q1, ratio.q3),
            format!("{here} ({pairs} pairs)"),
        ]);
    }
    table
}

/// Table 1 of the paper.
fn misordering(panel: &PanelResult) -> Table {
    let mut table = Table::new(
        "percent of segments out of order at TCP, receive (published: 100 MHz R4400)",
        &columns(
            "workers | mutex | published | MCS | published | waits, mutex % | waits, \
             MCS %",
        ),
    );
    let find = |name: &str, workers: usize| -> Option<&ResultRow> {
        let mut rows = panel.rows.iter();
        rows.find(|row| row.variant == name && row.cores == workers)
    };
    let percent =
        |share: Option<f64>| share.map_or_else(String::new, |s| format!("{:.2}", 100.0 * s));
    let waits = |row: Option<&ResultRow>| {
        let shares = &row?.lock_wait_share;
        Some(shares.iter().sum::<f64>() / shares.len().max(1) as f64)
    };
    let (mut sums, mut judged) = ([0.0, 0.0], 0);
    let names = ["mutex", "MCS", "mutex, published", "MCS, published"];
    let mut lines: Vec<(String, Vec<(f64, f64)>)> =
        names.map(|name| (name.to_owned(), Vec::new())).into();
    let published = (1..=MOST).zip(paper::MISORDERED);
    for (workers, (mutex_published, mcs_published)) in published {
        let rows = [find("tcp-1", workers), find("tcp-1-mcs", workers)];
        let shares = rows.map(|row| row.and_then(|row| row.misordered_share));
        // Workers that share cores reorder segments as the scheduler does.
        let calm = rows.iter().flatten().filter(|row| !row.all_disturbed);
        if let ([Some(mutex), Some(mcs)], 2) = (shares, calm.count()) {
            sums[0] += mutex;
            sums[1] += mcs;
            judged += 1;
        }
        for (line, share) in lines.iter_mut().zip(shares) {
            let point = |share| (workers as f64, 100.0 * share);
            line.1.extend(share.map(point));
        }
        for (line, percent) in lines[2..].iter_mut().zip([mutex_published, mcs_published]) {
            line.1.push((workers as f64, f64::from(percent)));
        }
        table.row(vec![
            workers.to_string(),
            percent(shares[0]),
            mutex_published.to_string(),
            percent(shares[1]),
            mcs_published.to_string(),
            percent(waits(rows[0])),
            percent(waits(rows[1])),
        ]);
    }
    table.lines(Lines {
        x: "workers".to_owned(),
        y: "percent of segments out of order".to_owned(),
        doubling: false,
        lines,
    });
    let [mutex, mcs] = sums;
    let published = paper::MISORDERED
        .iter()
        .fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    let published = f64::from(published.1) / f64::from(published.0);
    if judged > 0 && mutex > 0.0 {
        let measure = Measure::of(Spread::one(mcs / mutex), 1);
        table.measure(
            "misordering, MCS / mutex",
            measure.disturbed_if(judged <= 2),
        );
    }
    table.note(format!(
        "misordering with MCS locks over mutexes: {} (published: {published:.2}), by the {judged} numbers of \
         workers that had a core each",
        known(mcs / mutex, 2)
    ));
    if panel.over_committed > 0 {
        table.note(format!(
            "{} workers more than cores: they share cores, and a lock is lost with its holder's time slice",
            panel.over_committed
        ));
    }
    table
}
