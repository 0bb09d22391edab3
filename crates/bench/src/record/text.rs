//! Results as the tables that a bench prints.

use core::fmt::Write;

use super::{
    ExperimentResult, JoinSample, JoinsResult, PanelResult, ResultRow, SharesResult, Spread,
    StallSample, StallsResult, Table,
};
use crate::ratio::label;
use crate::workload::Workload;

impl ExperimentResult {
    /// The tables for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> core::fmt::Result {
        writeln!(out, "== {}: {}", self.experiment, self.about)?;
        for panel in &self.panels {
            panel.write(out)?;
        }
        if let Some(shares) = &self.shares {
            shares.write(out)?;
        }
        if let Some(stalls) = &self.stalls {
            stalls.write(out)?;
        }
        if let Some(joins) = &self.joins {
            joins.write(out)?;
        }
        if let Some(nic) = &self.nic {
            nic.write(out)?;
        }
        for table in &self.tables {
            write!(out, "{table}")?;
        }
        if self.panels.is_empty()
            && self.nic.is_none()
            && self.tables.is_empty()
            && self.shares.is_none()
            && self.stalls.is_none()
            && self.joins.is_none()
        {
            writeln!(out, "no row to be measured")?;
        }
        for why in &self.failures {
            writeln!(out, "FAILED: {why}")?;
        }
        let measures = self.measures();
        for figure in &self.published {
            writeln!(out, "published: {figure}")?;
            let outcome = figure.compare(&measures);
            if !outcome.sentence.is_empty() {
                writeln!(
                    out,
                    "  ours: {}: {}",
                    outcome.verdict.name(),
                    outcome.sentence
                )?;
            }
        }
        Ok(())
    }
}

/// A column of numbers ends at its right, one of words begins at its left.
impl core::fmt::Display for Table {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        writeln!(out, "-- {}", self.title)?;
        let cells = |column: usize| self.rows.iter().filter_map(move |row| row.get(column));
        let columns: Vec<(usize, bool)> = (self.columns.iter().enumerate())
            .map(|(i, name)| {
                let length = |text: &str| text.chars().count();
                let width = cells(i)
                    .map(|cell| length(cell))
                    .fold(length(name), usize::max);
                let is_word = |cell: &String| cell.starts_with(char::is_alphabetic);
                (width, cells(i).any(is_word))
            })
            .collect();
        let mut line = |values: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for (value, (width, are_words)) in values.zip(&columns) {
                // Writing to a string cannot fail.
                let _ = match are_words {
                    true => write!(text, "{value:<width$}  "),
                    false => write!(text, "{value:>width$}  "),
                };
            }
            writeln!(out, "{}", text.trim_end())
        };
        line(&mut self.columns.iter().copied())?;
        for row in &self.rows {
            line(&mut row.iter().map(String::as_str))?;
        }
        for note in &self.notes {
            writeln!(out, "{note}")?;
        }
        Ok(())
    }
}

impl PanelResult {
    pub(super) fn write(&self, out: &mut String) -> core::fmt::Result {
        writeln!(out, "-- {}", self.name)?;
        if let Some(why) = &self.failed {
            writeln!(out, "FAILED: {why}")?;
        } else if let Some(why) = &self.disturbed {
            writeln!(out, "DISTURBED, no figures: {why}")?;
        } else if self.rows.is_empty() {
            writeln!(out, "no row to be measured")?;
        } else {
            self.write_conditions(out)?;
            self.write_rows(out)?;
        }
        for line in &self.ratios {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    fn write_conditions(&self, out: &mut String) -> core::fmt::Result {
        writeln!(out, "{}", conditions(&self.workload))?;
        let cores: Vec<String> = self
            .thread_cores
            .iter()
            .map(|core| core.map_or_else(|| "?".to_owned(), |core| core.to_string()))
            .collect();
        write!(
            out,
            "{} rounds of {} ms slices; threads on cores {} ({}",
            self.rounds,
            self.workload.slice.as_millis(),
            cores.join(", "),
            if self.pinned { "pinned" } else { "not pinned" },
        )?;
        if self.over_committed > 0 {
            write!(out, ", over-committed by {}", self.over_committed)?;
        }
        let ns = |at: Option<f64>| at.map_or_else(|| "?".to_owned(), |ns| format!("{ns:.0}"));
        let [before, after] = self.line_transfer_ns;
        writeln!(
            out,
            "); a line from core to core {} ns before, {} after; {} rounds measured again, {} kept although disturbed",
            ns(before),
            ns(after),
            self.repeated_rounds,
            self.disturbed_rounds,
        )
    }

    fn write_rows(&self, out: &mut String) -> core::fmt::Result {
        let name = |row: &ResultRow| label(row.variant, row.cores, &row.case);
        let width = self.rows.iter().map(|row| name(row).len()).max();
        let width = width.unwrap_or(0).max(13);
        writeln!(
            out,
            "{:<width$}  {:>20}  {:>18}  {:>17}  {:>17}  {:>8}",
            "variant/cores", "Gbit/s", "ns/segment", "/ single", "/ limit", "speed-up"
        )?;
        for row in &self.rows {
            let some = |ratio: &Option<Spread>| ratio.as_ref().map(Spread::to_string);
            writeln!(
                out,
                "{:<width$}  {:>20}  {:>18}  {:>17}  {:>17}  {:>8}",
                name(row),
                row.gbit_per_s.to_string(),
                format!("{:.0}", row.ns_per_segment),
                some(&row.ratio_to_single).unwrap_or_default(),
                some(&row.ratio_to_limit).unwrap_or_default(),
                row.speedup
                    .as_ref()
                    .map_or_else(String::new, |r| format!("{:.2}", r.median)),
            )?;
        }
        for row in &self.rows {
            let seen = row.details();
            if !seen.is_empty() {
                writeln!(out, "{}: {}", name(row), seen.join(", "))?;
            }
        }
        Ok(())
    }
}

impl ResultRow {
    /// What one more slice told.
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
            seen.push(format!("idle {}", percent(&self.idle_share)));
            let lag = list(&self.lag_requests, |lag| format!("{lag:.1}"));
            seen.push(format!("lag {lag}, log full {}", self.log_full));
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

impl SharesResult {
    fn write(&self, out: &mut String) -> core::fmt::Result {
        writeln!(out, "{}", conditions(&self.workload))?;
        for row in &self.rows {
            let times = row.samples.iter().map(|sample| sample.ms);
            let ns = row.line_transfer_ns;
            writeln!(
                out,
                "{} on {}: {} samples of {} requests, each {} ms; a line from core to core {} ns",
                row.variant,
                row.cores,
                row.samples.len(),
                self.every_requests,
                Spread::text(times, 1),
                ns.map_or_else(|| "?".to_owned(), |ns| format!("{ns:.0}")),
            )?;
            write_note(out, row.note.as_deref())?;
            for (replica, share) in row.share.iter().enumerate() {
                let all = row.samples.iter().map(|sample| sample.share[replica]);
                let (least, most) = all.fold((1.0f64, 0.0f64), |(a, b), s| (a.min(s), b.max(s)));
                writeln!(
                    out,
                    "  replica {replica}: {share:.3} of the payload, between {least:.3} and {most:.3}"
                )?;
            }
        }
        Ok(())
    }
}

impl JoinsResult {
    fn write(&self, out: &mut String) -> core::fmt::Result {
        writeln!(out, "{}", conditions(&self.workload))?;
        for row in &self.rows {
            let all = |what: &dyn Fn(&JoinSample) -> f64| -> Vec<f64> {
                row.samples.iter().map(what).collect()
            };
            let of = |what: &dyn Fn(&JoinSample) -> f64, digits| Spread::text(all(what), digits);
            writeln!(
                out,
                "{} replicas, {:?}: {} joins, one every {} ms; before them {} Gbit/s; the worst {} ms {} of that, at least {:.2}; \
                 below 80 % for {} ms, at most {:.0}; joining took {} ms, at most {:.2}",
                row.cores,
                row.direction,
                row.samples.len(),
                self.period_ms,
                of(&|s| s.before_gbit_per_s, 2),
                self.slice_ms,
                of(&|s| s.worst_share, 2),
                all(&|s| s.worst_share).into_iter().fold(f64::NAN, f64::min),
                of(&|s| s.below_ms, 0),
                all(&|s| s.below_ms).into_iter().fold(0.0, f64::max),
                of(&|s| s.took_ms, 2),
                all(&|s| s.took_ms).into_iter().fold(0.0, f64::max),
            )?;
            write_note(out, row.note.as_deref())?;
        }
        Ok(())
    }
}

impl StallsResult {
    fn write(&self, out: &mut String) -> core::fmt::Result {
        writeln!(out, "{}", conditions(&self.workload))?;
        for row in &self.rows {
            let of = |what: &dyn Fn(&StallSample) -> f64, digits| {
                Spread::text(row.samples.iter().map(what), digits)
            };
            let most = |what: &dyn Fn(&StallSample) -> f64| {
                row.samples.iter().map(what).fold(0.0, f64::max)
            };
            writeln!(
                out,
                "{} on {}, {:?}: {} stalls of {} ms; meanwhile {} Gbit/s; longest wait {} ms, at most {:.1}; \
                 requests behind at the end {}, at most {}; {} segments sent again",
                row.variant,
                row.cores,
                row.direction,
                row.samples.len(),
                of(&|s| s.ms, 0),
                of(&|s| s.bytes as f64 * 8.0 / (s.ms * 1e6), 2),
                of(&|s| s.longest_wait_ms, 2),
                most(&|s| s.longest_wait_ms),
                of(&|s| s.depth_requests as f64, 0),
                most(&|s| s.depth_requests as f64),
                row.samples.iter().map(|s| s.sent_again).sum::<u64>(),
            )?;
            write_note(out, row.note.as_deref())?;
        }
        Ok(())
    }
}

fn write_note(out: &mut String, note: Option<&str>) -> core::fmt::Result {
    note.map_or(Ok(()), |note| writeln!(out, "  {note}"))
}

/// What rows have in common, in words.
fn conditions(w: &Workload) -> String {
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
