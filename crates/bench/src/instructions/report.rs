//! The tables of all counts.

use std::collections::HashMap;

use serde::Serialize;

use crate::instructions::Case;
use crate::instructions::callgrind::Counted;
use crate::instructions::gate::{Accepted, Tools};
use crate::instructions::stack::OVER_IPV6;
use crate::spread::Spread;
use crate::table::{Bar, Bars, Table};

/// The most instructions of a group of one replica, as a ratio to `single`.
const GROUP_RATIO: f64 = 1.10;

/// The most instructions of a segment of a merged run over IPv6, as a ratio to IPv4.
const IPV6_RATIO: f64 = 1.03;

/// One count.
#[derive(Debug, Serialize)]
struct Row {
    /// The case.
    name: String,
    /// The unit of the count.
    unit: &'static str,
    /// Instructions per unit.
    instructions: f64,
    /// The target: at most this many instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<u64>,
    /// The ratio to the count of `single`.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_single: Option<f64>,
    /// The ratio to the count over IPv4.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_ipv4: Option<f64>,
    /// The count in the checked-in file.
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted: Option<f64>,
    /// Instructions per unit of some parts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shares: Vec<(&'static str, f64)>,
}

/// A table for each kind of case, with accepted counts.
pub fn tables(
    tools: &Tools,
    cases: &[Case],
    counted: &[Counted],
    accepted: Option<&Accepted>,
) -> Vec<Table> {
    let by_name: HashMap<&str, f64> = cases
        .iter()
        .zip(counted)
        .map(|(case, counted)| (case.name.as_str(), counted.per_unit))
        .collect();
    let row = |(case, counted): (&Case, &Counted)| Row {
        name: case.name.clone(),
        unit: case.unit,
        instructions: counted.per_unit,
        target: case.target,
        ratio_to_single: case.name.split_once('/').and_then(|(variant, rest)| {
            let single = by_name.get(format!("single/{rest}").as_str())?;
            (variant != "single").then_some(counted.per_unit / single)
        }),
        ratio_to_ipv4: case.name.contains(OVER_IPV6).then_some(()).and_then(|()| {
            let ipv4 = by_name.get(case.name.replace(OVER_IPV6, "").as_str())?;
            Some(counted.per_unit / ipv4)
        }),
        accepted: accepted.and_then(|file| file.counts.get(&case.name).copied()),
        shares: case
            .shares
            .iter()
            .map(|(name, _)| *name)
            .zip(counted.shares.iter().copied())
            .collect(),
    };
    let rows: Vec<Row> = cases.iter().zip(counted).map(row).collect();
    let kinds = rows.chunk_by(|one, next| one.kind() == next.kind());
    let mut tables: Vec<Table> = kinds.map(table).collect();
    if let Some(first) = tables.first_mut() {
        first.conditions = vec![
            format!("{}, {}, {}", tools.rustc, tools.valgrind, tools.libc),
            format!("processor as Valgrind shows it: {}", tools.processor),
        ];
    }
    tables
}

/// Rows of one kind.
fn table(rows: &[Row]) -> Table {
    let title = format!("{}: instructions per unit", rows[0].kind());
    let mut table = Table::new(title, &["case", "instructions", "a", "notes"]);
    let bar = |row: &Row| Bar {
        beside: row.accepted,
        ..Bar::new(row.name.clone(), "", Spread::one(row.instructions), 0)
    };
    table.bars(Bars {
        heading: format!("{}: instructions per unit", rows[0].kind()),
        axis: "instructions; thin: those of the checked-in file".to_owned(),
        logarithmic_from: None,
        bars: rows.iter().map(bar).collect(),
    });
    for row in rows {
        table.row(vec![
            row.name.clone(),
            format!("{:.1}", row.instructions),
            row.unit.to_owned(),
            row.notes(),
        ]);
    }
    table.keep(&rows);
    table
}

impl Row {
    fn kind(&self) -> &str {
        self.name.split('/').next().unwrap_or("")
    }

    fn notes(&self) -> String {
        let mut notes = Vec::new();
        if let Some(target) = self.target {
            let met = if self.instructions <= target as f64 {
                "met"
            } else {
                "MISSED"
            };
            notes.push(format!("at most {target}: {met}"));
        }
        if let Some(ratio) = self.ratio_to_single {
            let met = if ratio <= GROUP_RATIO {
                "met"
            } else {
                "MISSED"
            };
            notes.push(match self.name.starts_with("replicated/") {
                true => format!("{ratio:.2}x single, at most {GROUP_RATIO:.2}x: {met}"),
                false => format!("{ratio:.2}x single"),
            });
        }
        if let Some(ratio) = self.ratio_to_ipv4 {
            let met = if ratio <= IPV6_RATIO { "met" } else { "MISSED" };
            notes.push(match self.name.contains("/merged/") {
                true => format!("{ratio:.3}x IPv4, at most {IPV6_RATIO:.2}x: {met}"),
                false => format!("{ratio:.3}x IPv4"),
            });
        }
        if let Some(accepted) = self.accepted {
            let percent = (self.instructions / accepted - 1.0) * 100.0;
            if percent.abs() >= 0.5 {
                notes.push(format!("{percent:+.1} % against the file"));
            }
        }
        let shares: Vec<_> = self
            .shares
            .iter()
            .filter(|(_, share)| share.abs() >= 0.05)
            .map(|(name, share)| format!("{name} {share:.0}"))
            .collect();
        if !shares.is_empty() {
            notes.push(shares.join(", "));
        }
        notes.join("; ")
    }
}
