//! Results of the programmable network card, as tables.
//!
//! Their measures are `share of EVENT` and `share of processor A` in percent, and
//! `FIRMWARE over one, ...`.

use dominoes_drivers::nic::NicEvent;
use serde::Serialize;

use super::{FIRMWARE, Traffic};
use crate::instructions::functions::Costs;
use crate::paper::{self, Measure};
use crate::spread::Spread;
use crate::table::{Bar, Bars, Table, columns};

/// What one handler costs, on one processor, both ways, with the smallest frames.
#[derive(Debug, Serialize)]
pub(super) struct EventRow {
    pub(super) event: &'static str,
    pub(super) ns_per_frame: Option<Spread>,
    /// Its share in the time of all handlers.
    pub(super) share: Option<Spread>,
    /// The published share: from, and to.
    pub(super) published: (f64, f64),
}

/// One firmware with one kind of traffic, in processor time.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) firmware: &'static str,
    pub(super) traffic: Traffic,
    /// Bytes of a datagram.
    pub(super) size: usize,
    pub(super) ns_per_frame: Option<Spread>,
    /// How many times as fast as on one processor.
    pub(super) speedup: Option<Spread>,
    /// Payload of a card whose one processor is as fast as the paper's, on a gigabit Ethernet.
    pub(super) scaled_mbit_per_s: Option<f64>,
}

/// A figure for each firmware, by its name.
pub(super) type ByFirmware = Vec<(&'static str, Option<Spread>)>;

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct Found {
    /// What reading the clock cost, in nanoseconds; it is taken off every call of a handler.
    pub(super) overhead_ns: f64,
    /// Rounds in processor time.
    pub(super) rounds: usize,
    /// Whether the thread that drives the card waited for its core meanwhile.
    pub(super) is_disturbed: bool,
    /// Rounds of the services, on threads.
    pub(super) service_rounds: usize,
    pub(super) events: Vec<EventRow>,
    /// Share of processor A's handlers in what one processor does.
    pub(super) share_of_a: Option<Spread>,
    /// The same if it sends alone.
    pub(super) share_of_a_sending: Option<Spread>,
    /// Processor A's share in what both processors of the partition do.
    pub(super) busy_share: Option<Spread>,
    /// By traffic, size and firmware.
    pub(super) rows: Vec<Row>,
    /// Nanoseconds of all handlers between a datagram and its answer.
    pub(super) pings: ByFirmware,
    /// Nanoseconds for a received frame of the longest kind whose checksum the firmware computes.
    pub(super) heavy: ByFirmware,
    /// Frames per second on threads, by traffic.
    pub(super) walls: Vec<(Traffic, ByFirmware)>,
    /// Gbit/s that a client gets from a server over a card, and through a router over two, on
    /// threads.
    pub(super) services: Vec<(&'static str, ByFirmware)>,
}

fn some(value: Option<Spread>, digits: usize) -> String {
    value.map_or_else(|| "?".to_owned(), |value| format!("{value:.digits$}"))
}

fn percent((from, to): (f64, f64)) -> String {
    match from == to {
        true => format!("{from} %"),
        false => format!("{from}-{to} %"),
    }
}

/// A table with a row for each firmware.
fn by_firmware(title: &str, unit: &'static str, rows: &ByFirmware, digits: usize) -> Table {
    let mut table = Table::new(title, &["firmware", unit]);
    for (name, value) in rows {
        table.row(vec![(*name).to_owned(), some(*value, digits)]);
    }
    table
}

/// The functions of each handler, in the order of [`NicEvent::ALL`].
const HANDLERS: [&[&str]; NicEvent::COUNT] = [
    &["mailbox"],
    &["dma_read_complete"],
    &["dma_write_complete"],
    &[
        "receive_complete",
        "begin",
        "receivable",
        "can_receive",
        "transfer",
        "end",
    ],
    &["send_descriptors_ready"],
    &["send_data_ready"],
    &["update_send_consumer", "write_send_consumer"],
    &["receive_descriptors_ready"],
    &["update_return_producer"],
];

/// What each handler executes for a frame each way. Its measures are `instructions of EVENT`, in
/// percent of all handlers.
pub(super) fn instructions(counted: Result<Costs, String>) -> Table {
    let title = "instructions of each handler, a frame each way, 18-byte datagrams";
    let columns = ["event", "instructions", "share, %", "published"];
    let mut table = Table::new(title, &columns);
    let costs = match counted {
        Ok(costs) => costs,
        Err(why) => {
            table.note(format!("skipped: {why}"));
            return table;
        }
    };
    let of = |functions: &&[&str]| -> f64 {
        let own = costs
            .iter()
            .filter(|((_, name), _)| functions.contains(&&**name));
        own.map(|(_, cost)| cost.instructions).sum()
    };
    let each = HANDLERS.each_ref().map(of);
    let whole: f64 = each.iter().sum();
    for ((event, count), published) in NicEvent::ALL.iter().zip(each).zip(paper::NIC_EVENTS) {
        let share = 100.0 * count / whole;
        table.row(vec![
            event.name().to_owned(),
            format!("{count:.1}"),
            format!("{share:.1}"),
            percent(published),
        ]);
        let name = format!("instructions of {}", event.name());
        table.measure(name, Measure::exact(share));
    }
    table.note("published: shares of time");
    table
}

/// What each firmware has over one processor, as measures.
fn over_one(table: &mut Table, what: &str, rows: &ByFirmware, measure: impl Fn(Spread) -> Measure) {
    let Some((_, Some(one))) = rows.first() else {
        return;
    };
    for (firmware, value) in rows {
        if let Some(value) = value {
            let name = format!("{firmware} over one, {what}");
            table.measure(name, measure(value.over(*one)));
        }
    }
}

impl Found {
    fn measure(&self, ours: Spread) -> Measure {
        Measure::of(ours, self.rounds).disturbed_if(self.is_disturbed)
    }

    pub(super) fn tables(&self) -> Vec<Table> {
        let ping = "ping: handlers between an 18-byte datagram and its answer";
        let mut pings = by_firmware(ping, "ns", &self.pings, 0);
        over_one(&mut pings, "ping", &self.pings, |ours| self.measure(ours));
        let heavy = "receive, 1472 bytes, checksum by the firmware, processor time";
        let heavy = by_firmware(heavy, "ns/frame", &self.heavy, 0);
        let mut walls = Table::new(
            "on threads, 1472 bytes; host and far end on one more thread",
            &["traffic", "firmware", "million frames/s"],
        );
        for (traffic, rows) in &self.walls {
            for (name, rate) in rows {
                let mega = some(rate.map(|rate| rate.times(1e-6)), 3);
                walls.row(vec![traffic.name().to_owned(), (*name).to_owned(), mega]);
            }
        }
        let mut services = Table::new(
            "services over cards, on threads: one TCP connection",
            &["service", "firmware", "Gbit/s"],
        );
        for (service, rows) in &self.services {
            for (name, rate) in rows {
                let cells = [(*service).to_owned(), (*name).to_owned(), some(*rate, 2)];
                services.row(cells.into());
            }
            over_one(&mut services, service, rows, |ours| {
                Measure::of(ours, self.service_rounds)
            });
        }
        services.keep(self);
        vec![self.handlers(), self.rates(), pings, heavy, walls, services]
    }

    /// The time of each handler, ours and the published one.
    fn handlers(&self) -> Table {
        let title = format!(
            "handlers on one processor, both ways, 18-byte datagrams; the clock's {:.0} ns taken off",
            self.overhead_ns
        );
        let mut table = Table::new(title, &["event", "ns/frame", "share, %", "published"]);
        let mut bars = Bars {
            heading: "share of each handler on one processor; thin: published".to_owned(),
            ..Bars::default()
        };
        for row in &self.events {
            let share = row.share.map(|share| share.times(100.0));
            let published = percent(row.published);
            table.row(vec![
                row.event.to_owned(),
                some(row.ns_per_frame, 1),
                some(share, 1),
                published.clone(),
            ]);
            let Some(share) = share else { continue };
            table.measure(format!("share of {}", row.event), self.measure(share));
            bars.bars.push(Bar {
                beside: Some((row.published.0 + row.published.1) / 2.0),
                text: format!("{:.1} % (published: {published})", share.median),
                ..Bar::new(row.event, "", share, 1)
            });
        }
        for (name, share) in [
            ("share of processor A", self.share_of_a),
            ("share of processor A, send", self.share_of_a_sending),
        ] {
            if let Some(share) = share {
                table.measure(name, self.measure(share.times(100.0)));
            }
        }
        table.note(format!(
            "processor A: {} of what one processor does, {} of what both do (published: 0.53)",
            some(self.share_of_a, 2),
            some(self.busy_share, 2)
        ));
        table.bars(bars);
        table
    }

    /// How many times as fast each firmware is as one processor.
    fn rates(&self) -> Table {
        let mut table = Table::new(
            "processor time; scaled to the paper's processor, on a gigabit Ethernet",
            &columns(
                "traffic | bytes | firmware | ns/frame | / uniprocessor | scaled \
                 Mbit/s",
            ),
        );
        let heading =
            "both ways, processor time: times one processor; thin: the middle of those published";
        let mut bars = Bars {
            heading: heading.to_owned(),
            ..Bars::default()
        };
        for row in &self.rows {
            let (firmware, size, traffic) = (row.firmware, row.size, row.traffic.name());
            let scaled = row.scaled_mbit_per_s.map(|rate| format!("{rate:.0}"));
            table.row(vec![
                traffic.to_owned(),
                size.to_string(),
                firmware.to_owned(),
                some(row.ns_per_frame, 1),
                some(row.speedup, 2),
                scaled.unwrap_or_default(),
            ]);
            let Some(speedup) = row.speedup else { continue };
            let name = format!("{firmware} over one, {traffic}, {size} bytes");
            table.measure(name, self.measure(speedup));
            if row.traffic == Traffic::Both && firmware != FIRMWARE[0].1 {
                bars.bars.push(Bar {
                    beside: match (firmware, size) {
                        ("partitioned", 18 | 1472) => Some(1.66),
                        _ => None,
                    },
                    ..Bar::new(format!("{firmware}, {size} bytes"), "", speedup, 2)
                });
            }
        }
        table.bars(bars);
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::functions::Cost;

    #[test]
    fn every_handler_is_in_the_sources_and_has_its_share() {
        let firmware = include_str!("../../../../drivers/src/nic/firmware.rs");
        let sources =
            firmware.to_owned() + include_str!("../../../../drivers/src/nic/processor.rs");
        let mut costs = Costs::new();
        for functions in HANDLERS {
            for name in functions {
                assert!(sources.contains(&format!("fn {name}(")), "{name}");
                let cost = Cost {
                    instructions: 1.0,
                    ..Cost::default()
                };
                costs.insert(("firmware.rs".to_owned(), (*name).to_owned()), cost);
            }
        }
        // The hardware has no share.
        let hardware = Cost {
            instructions: 1e6,
            ..Cost::default()
        };
        costs.insert(("firmware.rs".to_owned(), "dma_read".to_owned()), hardware);
        let all: usize = HANDLERS.iter().map(|functions| functions.len()).sum();
        let table = instructions(Ok(costs));
        let ours = table.measures["instructions of receive complete"]
            .ours
            .median;
        assert!((ours - 600.0 / all as f64).abs() < 1e-9, "{ours}");
        let skipped = instructions(Err("no Valgrind".to_owned()));
        assert!(skipped.measures.is_empty());
    }
}
