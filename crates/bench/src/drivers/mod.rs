//! Drivers: each runs one driver part of a variant, and a thread calls it turn by turn.

pub(crate) mod app;
#[cfg(feature = "report")]
pub(crate) mod echo;
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
pub(crate) mod searched;
#[cfg(feature = "report")]
pub(crate) mod shares;
pub mod smoltcp;
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
use dominoes_netstack::variants::single::Single;

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

    /// Turns the comparison of all bytes on or off. Costs time; not while
    /// measuring.
    fn verify(&mut self, _on: bool) {}

    /// Whether to keep an account of where time goes, from now on. Costs time; not while measuring.
    fn observe(&mut self, _on: bool) {}

    /// The observations so far, and counters.
    fn account(&self) -> Account {
        Account::default()
    }

    /// Makes it driver `id`, which posts its work as a primary to `log` from now on. Costs
    /// time; not while measuring. Only variants with primaries do it.
    #[cfg(feature = "report")]
    fn log_shares(&mut self, _id: usize, _log: Arc<shares::ShareLog>) {}

    /// Segments that were sent again so far; reported by one driver of a row.
    fn sent_again(&self) -> u64 {
        0
    }

    /// Segments that were sent before one that belongs before them so far; reported by one driver
    /// of a row.
    fn out_of_order(&self) -> u64 {
        0
    }

    /// Reports the first other error so far, if there is one.
    fn check(&self) -> Result<(), String>;
}

/// The account of one driver. The account of a slice excludes everything before the slice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "report", derive(serde::Serialize))]
pub struct Account {
    /// Nanoseconds of the slice.
    pub slice_ns: u64,
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
    /// Segments that came to the state after one that had arrived later.
    pub misordered: u64,
    /// Nanoseconds that this driver waited for each of several locks, in the order of [`LOCKS`].
    pub waits_ns: [u64; LOCKS.len()],
    /// Requests that the application counted, if it does; reported by one driver of a row.
    pub counted: u64,
    /// ... after one that TCP had later.
    pub counted_misordered: u64,
}

/// The locks of `locked` that have separate wait times.
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
    /// The difference between this account and the earlier one.
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

/// A variant on a number of cores, ready to be driven.
pub struct Row {
    /// Name of the variant.
    pub variant: &'static str,
    /// One driver a core.
    pub(crate) drivers: Vec<Box<dyn Driver>>,
    /// The row's clock, which stops while other rows run.
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
    pub fn drive_until(&mut self, bytes: u64) -> Result<(), String> {
        for driver in &mut self.drivers {
            driver.verify(true);
        }
        self.move_until(bytes)?;
        for driver in &mut self.drivers {
            driver.verify(false);
        }
        match self.sent_again() {
            // All on one thread, by the row's clock: nothing was held up.
            1.. => Err(format!("{self:?}: segments were sent again")),
            0 => self.check(),
        }
    }

    /// As [`drive_until`](Self::drive_until), and compares nothing.
    pub(crate) fn move_until(&mut self, bytes: u64) -> Result<(), String> {
        let mut idle = 0;
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
        Ok(())
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

    /// Reports the errors of all drivers, except retransmissions.
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

/// One core's part of several stacks, in turn.
struct Several(Vec<Box<dyn Driver>>);

impl Several {
    /// These drivers, dealt out to `cores` cores.
    fn dealt(
        drivers: impl IntoIterator<Item = Box<dyn Driver>>,
        cores: usize,
    ) -> Vec<Box<dyn Driver>> {
        let mut dealt: Vec<Several> = (0..cores).map(|_| Several(Vec::new())).collect();
        for (number, driver) in drivers.into_iter().enumerate() {
            dealt[number % cores].0.push(driver);
        }
        let boxed = |one| -> Box<dyn Driver> { Box::new(one) };
        dealt.into_iter().map(boxed).collect()
    }
}

impl Driver for Several {
    fn turn(&mut self, now: Instant) -> usize {
        self.0.iter_mut().map(|driver| driver.turn(now)).sum()
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|driver| driver.bytes()).sum()
    }

    fn verify(&mut self, on: bool) {
        self.0.iter_mut().for_each(|driver| driver.verify(on));
    }

    fn account(&self) -> Account {
        let mut sum = Account::default();
        for one in self.0.iter().map(|driver| driver.account()) {
            sum.segments += one.segments;
            sum.lock_wait_ns += one.lock_wait_ns;
            sum.lock_acquired += one.lock_acquired;
            sum.misordered += one.misordered;
        }
        sum
    }

    fn sent_again(&self) -> u64 {
        self.0.iter().map(|driver| driver.sent_again()).sum()
    }

    fn out_of_order(&self) -> u64 {
        self.0.iter().map(|driver| driver.out_of_order()).sum()
    }

    fn check(&self) -> Result<(), String> {
        self.0.iter().try_for_each(|driver| driver.check())
    }
}

/// Time that [`app::App::accept`] may use up.
const SETUP_NS: u64 = 10_000;

/// A variant of the stack, or a rival, and how to make a row of it.
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
    /// Makes a row for a number of cores.
    pub make: fn(Direction, &Workload, usize) -> Result<Row, String>,
}

impl Variant {
    /// One that uses one core, and can do whatever our stack can do with payload.
    const fn new(
        name: &'static str,
        about: &'static str,
        make: fn(Direction, &Workload, usize) -> Result<Row, String>,
    ) -> Variant {
        Variant {
            name,
            about,
            scales: false,
            can: |_, workload| processes(workload),
            make,
        }
    }

    /// It uses several cores.
    const fn scales(self) -> Variant {
        Variant {
            scales: true,
            ..self
        }
    }

    /// It can do this alone.
    const fn can(self, can: fn(Direction, &Workload) -> bool) -> Variant {
        Variant { can, ..self }
    }
}

/// Whether our stack can do this: the peer has prebuilt frames for one connection only, and
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

/// The TLS row called `name`.
#[cfg(feature = "tls")]
pub fn tls_variant(name: &str) -> Option<&'static Variant> {
    tls::VARIANTS.iter().find(|variant| variant.name == name)
}

/// `replicated` with other primaries.
#[cfg(feature = "report")]
macro_rules! with_primaries {
    ($name:literal, $about:literal, $primaries:ident) => {
        Variant::new($name, $about, |direction, workload, cores| {
            replicated::row($name, direction, workload, cores, |layout| {
                layout.primaries = Primaries::$primaries;
            })
        })
        .scales()
        .can(replicated::can)
    };
}

/// All variants, in the order of the table.
pub const VARIANTS: &[Variant] = &[
    Variant::new(
        "limit",
        "the same copies and checksums, with no protocol",
        limit::row,
    )
    .scales()
    .can(limit::can),
    Variant::new("single", "one core, no log", |direction, workload, _| {
        let (single, app) = app::App::on(direction, workload, Single::new)?;
        Ok(worker::row("single", single.into_workers(), [app]))
    }),
    #[cfg(feature = "report")]
    Variant::new(
        "locked-mutex",
        "one state behind a mutex, any core takes any packet",
        locked::mutex,
    )
    .scales(),
    #[cfg(feature = "report")]
    Variant::new("locked-mcs", "the same behind a queue lock", locked::mcs).scales(),
    #[cfg(feature = "report")]
    Variant::new(
        "lock-each-mcs",
        "connections dealt out to cores, each has its own queue lock, taken for each packet",
        locks::each,
    )
    .scales()
    .can(locks::can_each),
    #[cfg(feature = "report")]
    Variant::new(
        "pipelined",
        "stages for frames, payload and headers",
        pipelined::row,
    )
    .scales(),
    #[cfg(feature = "report")]
    Variant::new(
        "partitioned",
        "a group of one per core, connections spread by a hash",
        partitioned::row,
    )
    .scales(),
    Variant::new(
        "replicated",
        "one log, a copy of the state per core",
        |direction, workload, cores| {
            replicated::row("replicated", direction, workload, cores, |_| ())
        },
    )
    .scales()
    .can(replicated::can),
    #[cfg(feature = "report")]
    Variant::new(
        "replicated-auto",
        "the same, from one replica on, with more of them while each adds throughput",
        |direction, workload, cores| {
            replicated::row("replicated-auto", direction, workload, cores, |layout| {
                layout.replica_slots = layout.replicas;
                layout.replicas = 1;
                layout.autoscale = true;
            })
        },
    )
    .scales()
    .can(replicated::can),
    #[cfg(feature = "report")]
    with_primaries!(
        "replicated-by-position",
        "the same, batches have primaries in turn",
        ByPosition
    ),
    #[cfg(feature = "report")]
    with_primaries!(
        "replicated-greedy",
        "the same, the first replica that comes is primary",
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
    Variant::new(
        "smoltcp",
        "smoltcp 0.14 over the same device",
        |direction, workload, _| smoltcp::row("smoltcp", direction, workload, 32),
    ),
    #[cfg(feature = "report")]
    Variant::new(
        "smoltcp-8",
        "the same, polled every 8 frames: it acknowledges once for 8",
        |direction, workload, _| smoltcp::row("smoltcp-8", direction, workload, 8),
    )
    .can(|direction, workload| direction.receives() && processes(workload)),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Every variant moves verified bytes, in every direction and with all kinds of frames.
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
