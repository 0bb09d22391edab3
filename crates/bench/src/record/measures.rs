//! What an experiment measured, by the names that published figures ask for.
//!
//! | name | value |
//! |---|---|
//! | what a ratio compares | its median |
//! | `PANEL: speed-up of ROW`, `Gbit/s of ROW`, `waits of ROW` | of one row; waits in percent |
//! | `VARIANT: least share` | of a replica in the payload, percent |
//! | `share of EVENT`, `FIRMWARE over one, ...` | of a programmable card |
//! | anything else | from a [`Table`](super::Table), which says what it measures |

use super::nic::{NicResult, Traffic};
use super::{ExperimentResult, PanelResult, SharesResult, Spread};
use crate::paper::{Measure, Measures};
use crate::ratio::label;

impl ExperimentResult {
    /// All of it.
    pub fn measures(&self) -> Measures {
        let mut all = Measures::new();
        for panel in &self.panels {
            panel.add_to(&mut all);
        }
        for table in &self.tables {
            all.extend(table.measures.clone());
        }
        if let Some(shares) = &self.shares {
            shares.add_to(&mut all);
        }
        if let Some(nic) = &self.nic {
            nic.add_to(&mut all);
        }
        all
    }
}

fn add(all: &mut Measures, name: String, value: f64, disturbed: bool) {
    if value.is_finite() {
        all.insert(name, Measure { value, disturbed });
    }
}

impl PanelResult {
    fn add_to(&self, all: &mut Measures) {
        for line in &self.ratios {
            if let Some(ratio) = &line.ratio {
                add(all, line.what.clone(), ratio.median, line.all_disturbed);
            }
        }
        for row in &self.rows {
            let disturbed = row.all_disturbed;
            let row_name = label(row.variant, row.cores, &row.case);
            let name = |what: &str| format!("{}: {what} of {row_name}", self.name);
            add(all, name("Gbit/s"), row.gbit_per_s.median, disturbed);
            if let Some(speedup) = &row.speedup {
                add(all, name("speed-up"), speedup.median, disturbed);
            }
            let waits = &row.lock_wait_share;
            if !waits.is_empty() {
                let mean = waits.iter().sum::<f64>() / waits.len() as f64;
                add(all, name("waits"), 100.0 * mean, disturbed);
            }
        }
    }
}

impl SharesResult {
    fn add_to(&self, all: &mut Measures) {
        for row in &self.rows {
            let medians = row.share.iter().map(|share| share.median);
            let least = medians.fold(f64::INFINITY, f64::min);
            let name = format!("{}: least share", row.variant);
            add(all, name, 100.0 * least, row.samples.is_empty());
        }
    }
}

impl NicResult {
    fn add_to(&self, all: &mut Measures) {
        for row in &self.events {
            if let Some(share) = &row.share {
                let name = format!("share of {}", row.event);
                add(all, name, 100.0 * share.median, false);
            }
        }
        if let Some(share) = &self.share_of_a {
            let name = "share of processor A".to_owned();
            add(all, name, 100.0 * share.median, false);
        }
        for row in &self.rows {
            let way = match row.traffic {
                Traffic::Send => "send",
                Traffic::Receive => "receive",
                Traffic::Both => "both ways",
            };
            if let Some(speedup) = &row.speedup {
                let name = format!("{} over one, {way}, {} bytes", row.firmware, row.size);
                add(all, name, speedup.median, false);
            }
        }
        let mut over_one = |what: &str, rows: &[(&str, Option<Spread>)]| {
            let Some((_, Some(one))) = rows.first() else {
                return;
            };
            for (firmware, value) in rows {
                if let Some(value) = value {
                    let name = format!("{firmware} over one, {what}");
                    add(all, name, value.median / one.median, false);
                }
            }
        };
        over_one("ping", &self.pings);
        for (service, rows) in &self.services {
            over_one(service, rows);
        }
    }
}
