//! Results of the programmable network card.

use core::fmt::Write;

use serde::Serialize;

use super::Spread;

/// Which way datagrams go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Traffic {
    /// From the host to the wire.
    Send,
    /// From the wire to the host.
    Receive,
    /// Both at once.
    Both,
}

impl Traffic {
    /// All of them.
    pub const ALL: [Traffic; 3] = [Traffic::Send, Traffic::Receive, Traffic::Both];
}

/// What one handler costs, on one processor, both ways, with the smallest frames.
#[derive(Clone, Debug, Serialize)]
pub struct EventRow {
    /// Its event.
    pub event: &'static str,
    /// Nanoseconds for a frame.
    pub ns_per_frame: Option<Spread>,
    /// Share in that of all handlers.
    pub share: Option<Spread>,
    /// The published share: from, and to.
    pub published: (f64, f64),
}

/// One firmware with one kind of traffic, in processor time.
#[derive(Clone, Debug, Serialize)]
pub struct NicRow {
    /// Name of the firmware.
    pub firmware: &'static str,
    /// Which way.
    pub traffic: Traffic,
    /// Bytes of a datagram.
    pub size: usize,
    /// Nanoseconds for a frame.
    pub ns_per_frame: Option<Spread>,
    /// How many times as fast as on one processor.
    pub speedup: Option<Spread>,
    /// Payload of a card whose one processor is as fast as the paper's, on a gigabit Ethernet.
    pub scaled_mbit_per_s: Option<f64>,
}

/// Something that the paper says, and whether it is so here.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What it says.
    pub what: &'static str,
    /// Its figure.
    pub published: String,
    /// Ours.
    pub ours: String,
    /// Whether ours confirms it.
    pub holds: bool,
}

/// A figure for each firmware, by its name.
pub type ByFirmware = Vec<(&'static str, Option<Spread>)>;

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct NicResult {
    /// What reading the clock cost, in nanoseconds; it is taken off every call of a handler.
    pub overhead_ns: f64,
    /// By event.
    pub events: Vec<EventRow>,
    /// Share of processor A's handlers in what one processor does.
    pub share_of_a: Option<Spread>,
    /// Processor A's share in what both processors of the partition do.
    pub busy_share: Option<Spread>,
    /// By traffic, size and firmware.
    pub rows: Vec<NicRow>,
    /// Nanoseconds of all handlers between a datagram and its answer, by firmware.
    pub pings: ByFirmware,
    /// Nanoseconds for a received frame of the longest kind whose checksum the firmware computes.
    pub heavy: ByFirmware,
    /// Frames per second on threads, by traffic and firmware.
    pub walls: Vec<(Traffic, ByFirmware)>,
    /// Gbit/s that a client gets from a server over a card, and through a router over two, on
    /// threads; by service and firmware.
    pub services: Vec<(&'static str, ByFirmware)>,
    /// What the paper found.
    pub findings: Vec<Finding>,
}

fn some(value: Option<Spread>, digits: usize) -> String {
    value.map_or_else(|| "?".to_owned(), |value| format!("{value:.digits$}"))
}

impl NicResult {
    pub(super) fn write(&self, out: &mut String) -> core::fmt::Result {
        let overhead = self.overhead_ns;
        writeln!(
            out,
            "-- handlers on one processor, both ways, 18-byte datagrams; the clock's {overhead:.0} ns taken off"
        )?;
        writeln!(
            out,
            "{:30}  {:>18}  {:>18}  {:>10}",
            "event", "ns/frame", "share", "published"
        )?;
        for row in &self.events {
            let share = row.share.map(|s| Spread {
                q1: s.q1 * 100.0,
                median: s.median * 100.0,
                q3: s.q3 * 100.0,
            });
            let (from, to) = row.published;
            let published = if from == to {
                format!("{from} %")
            } else {
                format!("{from}-{to} %")
            };
            writeln!(
                out,
                "{:30}  {:>18}  {:>18}  {:>10}",
                row.event,
                some(row.ns_per_frame, 1),
                some(share, 1),
                published
            )?;
        }
        writeln!(
            out,
            "processor A: {} of what one processor does, {} of what both do (published: 0.53)",
            some(self.share_of_a, 2),
            some(self.busy_share, 2)
        )?;
        writeln!(
            out,
            "-- processor time; scaled to the paper's processor, on a gigabit Ethernet"
        )?;
        writeln!(
            out,
            "{:8} {:>5}  {:13}  {:>20}  {:>17}  {:>13}",
            "traffic", "bytes", "firmware", "ns/frame", "/ uniprocessor", "scaled Mbit/s"
        )?;
        for row in &self.rows {
            writeln!(
                out,
                "{:8} {:>5}  {:13}  {:>20}  {:>17}  {:>13}",
                format!("{:?}", row.traffic).to_lowercase(),
                row.size,
                row.firmware,
                some(row.ns_per_frame, 1),
                some(row.speedup, 2),
                row.scaled_mbit_per_s
                    .map_or_else(String::new, |rate| format!("{rate:.0}")),
            )?;
        }
        writeln!(
            out,
            "-- ping: nanoseconds of handlers between an 18-byte datagram and its answer"
        )?;
        for (name, ns) in &self.pings {
            writeln!(out, "{name:13}  {}", some(*ns, 0))?;
        }
        writeln!(
            out,
            "-- receive, 1472 bytes, checksum by the firmware: ns/frame of processor time"
        )?;
        for (name, ns) in &self.heavy {
            writeln!(out, "{name:13}  {}", some(*ns, 0))?;
        }
        writeln!(
            out,
            "-- on threads, 1472 bytes: million frames per second, host and far end on one more thread"
        )?;
        for (traffic, rows) in &self.walls {
            for (name, rate) in rows {
                let mega = rate.map(|s| Spread {
                    q1: s.q1 * 1e-6,
                    median: s.median * 1e-6,
                    q3: s.q3 * 1e-6,
                });
                writeln!(
                    out,
                    "{:8} {name:13}  {}",
                    format!("{traffic:?}").to_lowercase(),
                    some(mega, 3)
                )?;
            }
        }
        writeln!(
            out,
            "-- services over cards, on threads: Gbit/s of one TCP connection"
        )?;
        for (service, rows) in &self.services {
            for (name, rate) in rows {
                writeln!(out, "{service:8} {name:13}  {}", some(*rate, 2))?;
            }
        }
        writeln!(out, "-- findings")?;
        for finding in &self.findings {
            let verdict = if finding.holds {
                "confirmed"
            } else {
                "REFUTED"
            };
            writeln!(
                out,
                "{verdict}: {}; published: {}; here: {}",
                finding.what, finding.published, finding.ours
            )?;
        }
        Ok(())
    }
}
