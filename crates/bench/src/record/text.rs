//! A panel as a [`Table`], and a result as text.

use super::{ExperimentResult, PanelResult, ResultRow, Spread};
use crate::paper::Measure;
use crate::ratio::label;
use crate::table::{Bar, Bars, Table, columns};
use crate::workload::Workload;

/// The text that a bench prints.
impl core::fmt::Display for ExperimentResult {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        writeln!(out, "== {}: {}", self.experiment, self.about)?;
        for table in self.all_tables() {
            write!(out, "{table}")?;
        }
        if self.panels.is_empty() && self.tables.is_empty() {
            writeln!(out, "no row to be measured")?;
        }
        out.write_str(&self.verdicts())
    }
}

impl ExperimentResult {
    /// Failures, and the comparison of the tables with published figures.
    pub(crate) fn verdicts(&self) -> String {
        let failures = self.failures.iter();
        let mut out: String = failures.map(|why| format!("FAILED: {why}\n")).collect();
        let measures = self.measures();
        for figure in self.published {
            out += &format!("published: {figure}\n");
            let outcome = figure.compare(&measures);
            out += &format!("  ours: {outcome}\n");
        }
        out
    }
}

/// Names of the columns of a panel's table.
const COLUMNS: &str = "variant/cores | Gbit/s | ns/segment | / single | / limit | speed-up | of it \
     device";

impl PanelResult {
    /// The rows with their ratios and their picture.
    ///
    /// Its measures are the ratios by name, `PANEL: speed-up of ROW`, `PANEL: Gbit/s of ROW`, and
    /// `PANEL: waits of ROW` in percent.
    pub fn table(&self) -> Table {
        let mut table = Table::new(self.name.clone(), &[]);
        if let Some(why) = &self.failed {
            table.note(format!("FAILED: {why}"));
        } else if let Some(why) = &self.disturbed {
            table.note(format!("DISTURBED, no figures: {why}"));
        } else if self.rows.is_empty() {
            table.note("no row to be measured");
        } else {
            table.columns = columns(COLUMNS);
            table.conditions = vec![conditions(&self.workload), self.course()];
            self.rows.iter().for_each(|row| self.add(&mut table, row));
            table.bars(self.bars());
        }
        for line in &self.ratios {
            table.bounds.push(line.into());
            if let Some(ratio) = &line.ratio {
                let measure = Measure::of(*ratio, line.pairs).disturbed_if(line.all_disturbed);
                table.measure(line.what.clone(), measure);
            }
            for at in &line.at {
                let measure = Measure::of(at.ratio, at.pairs).disturbed_if(line.all_disturbed);
                table.measure(format!("{}, {}", line.what, at.distance.name()), measure);
            }
        }
        table
    }

    /// The conditions of the measurement.
    fn course(&self) -> String {
        let cores = self.thread_cores.iter();
        let cores: Vec<String> = cores
            .map(|core| core.map_or_else(|| "?".to_owned(), |core| core.to_string()))
            .collect();
        let pinned = if self.pinned { "pinned" } else { "not pinned" };
        let over_committed = match self.over_committed {
            0 => String::new(),
            some => format!(", over-committed by {some}"),
        };
        let [before, after] = self.line_transfer_ns.map(nanoseconds);
        format!(
            "{} rounds of {} ms slices; threads on cores {} ({pinned}{over_committed}); \
             a line from core to core {before} ns before, {after} after; \
             {} rounds measured again, {} kept although disturbed",
            self.rounds,
            self.workload.slice.as_millis(),
            cores.join(", "),
            self.repeated_rounds,
            self.disturbed_rounds,
        )
    }

    fn add(&self, table: &mut Table, row: &ResultRow) {
        let name = label(row.variant, row.cores, &row.case);
        let some = |ratio: &Option<Spread>| ratio.map_or_else(String::new, |r| r.to_string());
        table.row(vec![
            name.clone(),
            row.gbit_per_s.to_string(),
            format!("{:.0}", row.ns_per_segment),
            some(&row.ratio_to_single),
            some(&row.ratio_to_limit),
            some(&row.speedup),
            row.device_share
                .map_or_else(String::new, |share| percent(&[share])),
        ]);
        let seen = row.details();
        if !seen.is_empty() {
            table.note(format!("{name}: {}", seen.join(", ")));
        }
        let mut measure = |what: &str, ours: Option<Spread>, rounds: usize| {
            let Some(ours) = ours else { return };
            let measure = Measure::of(ours, rounds).disturbed_if(row.all_disturbed);
            table.measure(format!("{}: {what} of {name}", self.name), measure);
        };
        let rounds = self.rounds - row.disturbed_samples;
        measure("Gbit/s", Some(row.gbit_per_s), rounds);
        measure("speed-up", row.speedup, rounds);
        // It was observed in one slice.
        let waits = Spread::of(row.lock_wait_share.iter().map(|share| 100.0 * share));
        measure("waits", waits, 1);
    }

    /// Gbit/s of every row.
    fn bars(&self) -> Bars {
        let line = self.line_transfer_ns[0];
        let line = line.map_or_else(String::new, |ns| format!(", line {ns:.0} ns"));
        let disturbed = match self.disturbed_rounds {
            0 => String::new(),
            some => format!(", {some} of them disturbed"),
        };
        let bar = |row: &ResultRow| {
            let name = label(row.variant, row.cores, &row.case);
            let disturbed = if row.all_disturbed { ", disturbed" } else { "" };
            let (rate, ns) = (row.gbit_per_s.median, row.ns_per_segment.median);
            Bar {
                text: format!("{rate:.2} ({ns:.0} ns{disturbed})"),
                ..Bar::new(name, row.variant, row.gbit_per_s, 2)
            }
        };
        Bars {
            heading: format!("{}, {} rounds{disturbed}{line}", self.name, self.rounds),
            axis: "Gbit/s of payload: median and quartiles, nanoseconds per segment".to_owned(),
            logarithmic_from: None,
            bars: self.rows.iter().map(bar).collect(),
        }
    }
}

impl ResultRow {
    /// Figures from an additional slice, which is observed in detail.
    fn details(&self) -> Vec<String> {
        let mut seen = Vec::new();
        match self.disturbed_samples {
            _ if self.all_disturbed => seen.push("ALL samples disturbed".to_owned()),
            0 => {}
            some => seen.push(format!("{some} disturbed samples left out")),
        }
        if let Some(run) = self.segments_per_run {
            seen.push(format!("{run:.2} segments a run"));
        }
        if let Some(pump) = self.rx_pump_cores {
            seen.push(format!("receive pump {} of a core", percent(&[pump])));
            if let Some([claim, publish]) = self.held_ns {
                seen.push(format!(
                    "a frame holds the device {claim:.0} ns and the pump {publish:.0} ns"
                ));
            }
            let lag = list(&self.lag_requests, |lag| format!("{lag:.1}"));
            seen.push(format!("lag {lag}, log full {}", self.log_full));
        }
        if !self.idle_share.is_empty() {
            seen.push(format!("idle {}", percent(&self.idle_share)));
        }
        if self.primary_share.len() > 1 {
            seen.push(format!("primary of {}", percent(&self.primary_share)));
        }
        if !self.lock_wait_share.is_empty() {
            seen.push(format!(
                "waits for the lock {}",
                percent(&self.lock_wait_share)
            ));
        }
        if let Some(per_lock) = self.segments_per_lock {
            seen.push(format!("{per_lock:.1} segments a lock"));
        }
        if let Some(misordered) = self.misordered_share {
            seen.push(format!("{:.2} % misordered", misordered * 100.0));
        }
        for (lock, share) in &self.waits {
            seen.push(format!("waits {:.1} % for {lock}", share * 100.0));
        }
        if let Some(misordered) = self.counted_misordered_share {
            seen.push(format!("{:.2} % misordered above TCP", misordered * 100.0));
        }
        if self.sent_again > 0 {
            let again = self.sent_again;
            let held_up = self.held_up_ms;
            seen.push(format!(
                "{again} segments sent again, a thread having been held up for {held_up:.0} ms in a slice"
            ));
        }
        if self.out_of_order > 0 {
            seen.push(format!("{} frames sent out of order", self.out_of_order));
        }
        seen
    }
}

/// The conditions that all rows share, as text.
pub(crate) fn conditions(w: &Workload) -> String {
    let on = |on: bool| if on { "on" } else { "off" };
    let pool = if w.pool_bytes >= 1 << 20 {
        format!("{} MB", w.pool_bytes >> 20)
    } else {
        format!("{} frames", w.frames())
    };
    format!(
        "{}-byte segments, {}, frame pool {pool}, rings {} KB, log {} requests, timestamps {}, checksums {}, seed {}",
        w.segment_bytes,
        match w.connections {
            1 => "one connection".to_owned(),
            n => format!("{n} connections in bursts of {}", w.burst),
        },
        w.ring_bytes >> 10,
        w.log_requests,
        on(w.timestamps),
        if w.checksum {
            "in software"
        } else {
            "by the device"
        },
        w.seed,
    )
}

fn list(values: &[f64], one: impl Fn(&f64) -> String) -> String {
    values.iter().map(one).collect::<Vec<_>>().join("/")
}

fn percent(shares: &[f64]) -> String {
    list(shares, |share| format!("{:.0}", share * 100.0)) + " %"
}

/// A time as text; `?` if it is not known.
pub(crate) fn nanoseconds(ns: Option<f64>) -> String {
    known(ns.unwrap_or(f64::NAN), 0)
}

/// A number with this many decimal places; `?` if it is not known.
pub(crate) fn known(value: f64, digits: usize) -> String {
    match value.is_nan() {
        true => "?".to_owned(),
        false => format!("{value:.digits$}"),
    }
}
