//! Drivers: each runs one driver part of a variant, and a thread calls it turn by turn.

pub(crate) mod app;
#[cfg(feature = "report")]
pub(crate) mod echo;
#[cfg(feature = "report")]
#[cfg(feature = "report")]
pub(crate) mod joining;
pub mod limit;
#[cfg(feature = "report")]
pub mod locked;
#[cfg(feature = "report")]
pub mod locks;
#[cfg(feature = "report")]
pub mod partitioned;
#[cfg(feature = "report")]
pub mod pipelined;
pub mod replicated;
#[cfg(feature = "report")]
pub(crate) mod samples;
#[cfg(feature = "report")]
pub(crate) mod shares;
pub mod single;
pub mod smoltcp;
#[cfg(feature = "report")]
pub(crate) mod stall;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(feature = "report")]
pub(crate) mod udp;
pub(crate) mod worker;

#[cfg(feature = "report")]
use std::sync::Arc;

#[cfg(feature = "report")]
use dominoes_netstack::group::Primaries;
use dominoes_netstack::time::Instant;

use crate::workload::{Processing, Workload};

/// Which way the payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "report",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum Direction {
    /// The stack receives.
    Receive,
    /// The stack sends.
    Send,
    /// Both at once, on the same connections.
    Both,
}

impl Direction {
    /// Whether the stack receives payload.
    pub fn receives(self) -> bool {
        self != Direction::Send
    }

    /// Whether the stack sends payload.
    pub fn sends(self) -> bool {
        self != Direction::Receive
    }
}

/// One core's part of a variant.
pub(crate) trait Driver: Send {
    /// Everything that can be done now, once. Returns how much that was.
    fn turn(&mut self, now: Instant) -> usize;

    /// Payload bytes that this driver has brought to their end so far. Summed over the drivers of
    /// a row.
    fn bytes(&self) -> u64;

    /// Whether bytes are compared with what they should be, from now on. Costs time; not while
    /// measuring.
    fn verify(&mut self, _on: bool) {}

    /// Whether to keep an account of where time goes, from now on. Costs time; not while measuring.
    fn observe(&mut self, _on: bool) {}

    /// What was seen while observed, and counters.
    fn account(&self) -> Account {
        Account::default()
    }

    /// It is driver `id`, and posts to `log` from now on what it was the primary of. Costs
    /// time; not while measuring. Only variants with primaries do it.
    #[cfg(feature = "report")]
    fn log_shares(&mut self, _id: usize, _log: Arc<shares::ShareLog>) {}

    /// Requests that are in the log and that it has not applied.
    #[cfg(feature = "report")]
    fn lag(&mut self) -> u64 {
        0
    }

    /// Segments that were sent again so far; reported by one driver of a row.
    fn sent_again(&self) -> u64 {
        0
    }

    /// Segments that were sent before one that belongs before them so far; reported by one driver
    /// of a row.
    fn out_of_order(&self) -> u64 {
        0
    }

    /// Says what else went wrong so far, if anything did.
    fn check(&self) -> Result<(), String>;
}

/// What one driver reports of itself. Of a slice, nothing is left of what was counted before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "report", derive(serde::Serialize))]
pub struct Account {
    /// Nanoseconds under observation.
    pub observed_ns: u64,
    /// ... of which it had the receiving half of the device.
    pub claim_ns: u64,
    /// Frames that it claimed meanwhile.
    pub claimed: u64,
    /// ... of which it held the receive pump.
    pub rx_pump_ns: u64,
    /// ... of which it found nothing to do.
    pub idle_ns: u64,
    /// Turns under observation.
    pub turns: u64,
    /// Sum over these turns of how many published requests it had not applied.
    pub lag_requests: u64,
    /// Payload bytes that it copied or sent as primary, since the start.
    pub primary_bytes: u64,
    /// Segments that the pump saw, since the start; reported by one driver of a row.
    pub segments: u64,
    /// Runs that these made up.
    pub runs: u64,
    /// Times that the log was full.
    pub log_full: u64,
    /// Nanoseconds that this driver waited for a lock on the state, since the start, if the variant
    /// has one.
    pub lock_wait_ns: u64,
    /// Times that it took that lock.
    pub lock_acquired: u64,
    /// Segments that came to the state behind one that had arrived later.
    pub misordered: u64,
    /// Nanoseconds that this driver waited for each of several locks, in the order of [`LOCKS`].
    pub waits_ns: [u64; LOCKS.len()],
    /// Requests that the application counted, if it does; reported by one driver of a row.
    pub counted: u64,
    /// ... behind one that TCP had later.
    pub counted_misordered: u64,
}

/// The locks of `locked` whose waits are told apart.
pub const LOCKS: [&str; 12] = [
    "state",
    "send",
    "receive",
    "receive window",
    "reassembly",
    "send window",
    "retransmission",
    "header remove",
    "header prepend",
    "references",
    "messages",
    "application",
];

impl Account {
    /// The same with what was counted since `before`.
    #[must_use]
    pub(crate) fn since(self, before: &Account) -> Account {
        Account {
            primary_bytes: self.primary_bytes.saturating_sub(before.primary_bytes),
            segments: self.segments.saturating_sub(before.segments),
            runs: self.runs.saturating_sub(before.runs),
            log_full: self.log_full.saturating_sub(before.log_full),
            lock_wait_ns: self.lock_wait_ns.saturating_sub(before.lock_wait_ns),
            lock_acquired: self.lock_acquired.saturating_sub(before.lock_acquired),
            misordered: self.misordered.saturating_sub(before.misordered),
            waits_ns: core::array::from_fn(|lock| {
                self.waits_ns[lock].saturating_sub(before.waits_ns[lock])
            }),
            counted: self.counted.saturating_sub(before.counted),
            counted_misordered: self
                .counted_misordered
                .saturating_sub(before.counted_misordered),
            ..self
        }
    }
}

/// A variant on so many cores, ready to be driven.
pub struct Row {
    /// Name of the variant.
    pub variant: &'static str,
    /// One driver a core.
    pub(crate) drivers: Vec<Box<dyn Driver>>,
    /// The row's own clock: it stands still while other rows run.
    pub(crate) clock_ns: u64,
}

impl core::fmt::Debug for Row {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} on {}", self.variant, self.drivers.len())
    }
}

impl Row {
    /// Drives all drivers from this thread until `bytes` bytes of payload were compared and found
    /// right. Before a row is measured.
    ///
    /// # Errors
    /// If something was wrong, or nothing moves any more.
    pub fn drive_until(&mut self, bytes: u64) -> Result<(), String> {
        let mut idle = 0;
        for driver in &mut self.drivers {
            driver.verify(true);
        }
        while self.bytes() < bytes {
            self.clock_ns += 1_000;
            let now = Instant::from_nanos(self.clock_ns);
            let done: usize = self.drivers.iter_mut().map(|driver| driver.turn(now)).sum();
            idle = if done == 0 { idle + 1 } else { 0 };
            if idle > 100_000 {
                let at = self.bytes();
                return Err(format!("{self:?}: stands still after {at} bytes"));
            }
        }
        for driver in &mut self.drivers {
            driver.verify(false);
        }
        match self.sent_again() {
            // All on one thread, by a clock of its own: nothing was held up.
            1.. => Err(format!("{self:?}: segments were sent again")),
            0 => self.check(),
        }
    }

    fn bytes(&self) -> u64 {
        self.drivers.iter().map(|driver| driver.bytes()).sum()
    }

    /// Drives all drivers from this thread, and returns how many bytes they moved in a nanosecond
    /// of `long`. What the first quarter moves does not count.
    #[cfg(feature = "report")]
    pub(crate) fn rate(&mut self, long: std::time::Duration) -> f64 {
        let begin = std::time::Instant::now();
        let mut counted = None;
        loop {
            let elapsed = begin.elapsed();
            if counted.is_none() && elapsed >= long / 4 {
                counted = Some((elapsed, self.bytes()));
            }
            if let Some((from, bytes)) = counted
                && elapsed >= long
            {
                let ns = (elapsed - from).as_nanos().max(1) as f64;
                self.clock_ns += elapsed.as_nanos() as u64;
                return (self.bytes() - bytes) as f64 / ns;
            }
            let now = Instant::from_nanos(self.clock_ns + elapsed.as_nanos() as u64);
            for driver in &mut self.drivers {
                driver.turn(now);
            }
        }
    }

    /// Segments that were sent again.
    pub(crate) fn sent_again(&self) -> u64 {
        self.drivers.iter().map(|driver| driver.sent_again()).sum()
    }

    /// Segments that were sent before one that belongs before them.
    pub(crate) fn out_of_order(&self) -> u64 {
        self.drivers
            .iter()
            .map(|driver| driver.out_of_order())
            .sum()
    }

    /// What went wrong in any driver, but for what was sent again.
    ///
    /// # Errors
    /// The first complaint.
    pub(crate) fn check(&self) -> Result<(), String> {
        for driver in &self.drivers {
            driver.check().map_err(|what| format!("{self:?}: {what}"))?;
        }
        Ok(())
    }
}

impl Row {
    pub(crate) fn new(variant: &'static str, drivers: Vec<Box<dyn Driver>>) -> Row {
        Row {
            variant,
            drivers,
            clock_ns: SETUP_NS,
        }
    }
}

/// Time that [`app::App::accept`] may use up.
const SETUP_NS: u64 = 10_000;

/// A variant: its name, what it is, how many cores it can use, and how to make a row of it.
#[derive(Debug)]
pub struct Variant {
    /// As on the command line.
    pub name: &'static str,
    /// In a few words.
    pub about: &'static str,
    /// Whether it can use more than one core.
    pub scales: bool,
    /// Whether it can do this at all.
    pub can: fn(Direction, &Workload) -> bool,
    /// Makes a row for so many cores.
    pub make: fn(Direction, &Workload, usize) -> Result<Row, String>,
}

/// What our own stack does with payload: the peer has prebuilt frames for one connection only, and
/// `limit` has a kernel with checksums only.
fn processes(workload: &Workload) -> bool {
    let inline = workload.connections == 1 && workload.checksum && !workload.processing.is_tls();
    moves_only(workload) || inline
}

/// Whether payload is only moved.
fn moves_only(workload: &Workload) -> bool {
    workload.processing == Processing::None
}

/// The variant called `name`.
pub fn variant(name: &str) -> Option<&'static Variant> {
    VARIANTS.iter().find(|variant| variant.name == name)
}

/// The row called `name` of those that do TLS.
#[cfg(feature = "tls")]
pub fn tls_variant(name: &str) -> Option<&'static Variant> {
    tls::VARIANTS.iter().find(|variant| variant.name == name)
}

/// `replicated` with other primaries.
#[cfg(feature = "report")]
macro_rules! with_primaries {
    ($name:literal, $about:literal, $primaries:ident) => {
        Variant {
            name: $name,
            about: $about,
            scales: true,
            can: replicated::can,
            make: |direction, workload, cores| {
                replicated::row($name, direction, workload, cores, |layout| {
                    layout.primaries = Primaries::$primaries;
                })
            },
        }
    };
}

/// All variants, in the order of the table.
pub const VARIANTS: &[Variant] = &[
    Variant {
        name: "limit",
        about: "the same copies and checksums, with no protocol",
        scales: true,
        can: limit::can,
        make: limit::row,
    },
    Variant {
        name: "single",
        about: "one core, no log",
        scales: false,
        can: |_, workload| processes(workload),
        make: single::row,
    },
    #[cfg(feature = "report")]
    Variant {
        name: "locked-mutex",
        about: "one state behind a mutex, any core takes any packet",
        scales: true,
        can: |_, workload| processes(workload),
        make: locked::mutex,
    },
    #[cfg(feature = "report")]
    Variant {
        name: "locked-mcs",
        about: "the same behind a queue lock",
        scales: true,
        can: |_, workload| processes(workload),
        make: locked::mcs,
    },
    #[cfg(feature = "report")]
    Variant {
        name: "pipelined",
        about: "stages for frames, payload and headers",
        scales: true,
        can: |_, workload| processes(workload),
        make: pipelined::row,
    },
    #[cfg(feature = "report")]
    Variant {
        name: "partitioned",
        about: "a group of one per core, connections spread by a hash",
        scales: true,
        can: |_, workload| processes(workload),
        make: partitioned::row,
    },
    Variant {
        name: "replicated",
        about: "one log, a copy of the state per core",
        scales: true,
        can: replicated::can,
        make: |direction, workload, cores| {
            replicated::row("replicated", direction, workload, cores, |_| ())
        },
    },
    #[cfg(feature = "report")]
    Variant {
        name: "replicated-auto",
        about: "the same, beginning with one replica that works, the others when they bring something",
        scales: true,
        can: replicated::can,
        make: |direction, workload, cores| {
            replicated::row("replicated-auto", direction, workload, cores, |layout| {
                layout.replica_slots = layout.replicas;
                layout.replicas = 1;
                layout.autoscale = true;
            })
        },
    },
    #[cfg(feature = "report")]
    with_primaries!(
        "replicated-by-position",
        "the same, primaries by chunks of the log in turn",
        ByPosition
    ),
    #[cfg(feature = "report")]
    with_primaries!(
        "replicated-greedy",
        "the same, primary is who comes first",
        Greedy
    ),
    #[cfg(feature = "report")]
    with_primaries!(
        "replicated-by-kind",
        "the same, payload by one half of the replicas and acknowledgments by the other",
        ByKind
    ),
    #[cfg(feature = "report")]
    with_primaries!(
        "replicated-by-load",
        "the same, primaries as they keep up",
        ByLoad
    ),
    Variant {
        name: "smoltcp",
        about: "smoltcp 0.14 over the same device",
        scales: false,
        can: |_, workload| processes(workload),
        make: |direction, workload, _| smoltcp::row("smoltcp", direction, workload, 32),
    },
    #[cfg(feature = "report")]
    Variant {
        name: "smoltcp-8",
        about: "the same, polled every 8 frames: it acknowledges once for 8",
        scales: false,
        can: |direction, workload| direction.receives() && processes(workload),
        make: |direction, workload, _| smoltcp::row("smoltcp-8", direction, workload, 8),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Every variant brings verified bytes through, whichever way and with whatever frames.
    #[test]
    fn every_row_moves_verified_bytes() {
        let plain = Workload {
            pool_bytes: 1 << 20,
            ..Workload::default()
        };
        let workloads = [
            plain,
            plain.warm(64),
            Workload {
                timestamps: true,
                ..plain
            },
            Workload {
                checksum: false,
                segment_bytes: 64,
                ..plain
            },
            Workload {
                connections: 9,
                segment_bytes: 512,
                ..plain
            },
            Workload {
                processing: Processing::Search,
                ..plain
            },
            Workload {
                processing: Processing::Aes256Ctr,
                ..plain
            },
            Workload {
                processing: Processing::Aes256Gcm,
                ..plain
            },
        ];
        for workload in &workloads {
            for variant in VARIANTS {
                for direction in [Direction::Receive, Direction::Send, Direction::Both] {
                    if !(variant.can)(direction, workload) {
                        continue;
                    }
                    for cores in if variant.scales { 1..=3 } else { 1..=1 } {
                        let mut row = (variant.make)(direction, workload, cores).unwrap();
                        row.drive_until(2 << 20)
                            .unwrap_or_else(|e| panic!("{direction:?} {workload:?}: {e}"));
                    }
                }
            }
        }
    }
}
