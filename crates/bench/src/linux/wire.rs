//! A bad wire between two TAP interfaces, in a separate process.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use dominoes_drivers::impair::{LinkConfig, bridge};
use dominoes_drivers::memory::Faults;
use dominoes_drivers::tap::Tap;
use serde::{Deserialize, Serialize};

use super::fixture::{Namespace, Outcome, Process};
use super::{KERNEL, PEER};

/// The properties of the wire, equal in both directions.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Wire {
    /// Lost frames per million.
    pub(crate) loss_ppm: u32,
    /// Microseconds of delay in each direction.
    pub(crate) delay_us: u64,
    /// Bits per second.
    pub(crate) rate: u64,
    /// Bytes that may wait for the rate.
    pub(crate) queue: u64,
    /// The seed of losses.
    pub(crate) seed: u64,
}

/// Counts of frames in each direction.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct WireReport {
    /// Frames from left to right: offered, lost, and dropped by a full queue.
    pub(crate) there: [u64; 3],
    /// Frames from right to left.
    pub(crate) back: [u64; 3],
}

/// Runs the wire that the JSON text describes until standard input ends, and prints its counts.
pub(crate) fn run(wire: &str) -> Outcome<()> {
    let wire: Wire = serde_json::from_str(wire)?;
    let config = LinkConfig::default()
        .faults(Faults::new(wire.seed).loss(wire.loss_ppm))
        .delay(Duration::from_micros(wire.delay_us))
        .rate(wire.rate, wire.queue);
    // Without offloads every segment is a separate frame, which can be lost alone.
    let open = |name: &str| Tap::options().offloads(false).open(name);
    let (left, right) = (open("left0")?, open("right0")?);
    println!("ready");
    let over = AtomicBool::new(false);
    let [there, back] = thread::scope(|scope| {
        scope.spawn(|| {
            let mut rest = [0; 64];
            while std::io::stdin().read(&mut rest).is_ok_and(|len| len > 0) {}
            over.store(true, Relaxed);
        });
        bridge(Box::new(left), Box::new(right), &config, &over)
    })?
    .map(|way| [way.offered, way.faults.lost, way.overflowed]);
    println!("{}", serde_json::to_string(&WireReport { there, back })?);
    Ok(())
}

/// A running wire: a kernel at each end, and room for our stack at the left end.
pub(crate) struct RunningWire {
    process: Process,
}

impl RunningWire {
    /// Connects `left` and `right`; the interfaces are named `left0` and `right0`.
    pub(crate) fn new(
        wire: &Wire,
        between: &Namespace,
        left: &Namespace,
        right: &Namespace,
    ) -> Outcome<RunningWire> {
        // The wire has priority, so that it does not wait for a core.
        let arguments = ["--wire", &serde_json::to_string(wire)?];
        let process = Process::start_first(between, &arguments)?;
        process.line(Duration::from_secs(5))?;
        for (namespace, interface, address) in [(left, "left0", KERNEL), (right, "right0", PEER)] {
            between.ip(&format!("link set {interface} netns {}", namespace.name))?;
            namespace.ip(&format!("addr add {address}/24 dev {interface}"))?;
            namespace.ip(&format!("link set {interface} up"))?;
        }
        Ok(RunningWire { process })
    }

    /// Ends the wire and returns its counts.
    pub(crate) fn end(mut self) -> Outcome<WireReport> {
        drop(self.process.input());
        Ok(serde_json::from_str(
            &self.process.line(Duration::from_secs(5))?,
        )?)
    }
}
