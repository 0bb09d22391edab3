//! Medians with their spread, ours beside Linux's.

use dominoes_bench::topology::Distance;

use super::fixture::Both;
use super::{Device, Frames, Way};

/// Runs of one combination, ours and Linux's in turn.
pub(crate) struct Row {
    /// How our stack reached the kernel.
    pub(crate) device: Device,
    /// How long frames were.
    pub(crate) frames: Frames,
    /// Which way the bytes went.
    pub(crate) way: Way,
    /// How far apart the cores were.
    pub(crate) distance: Distance,
    /// Ours and Linux's of the same round.
    pub(crate) rounds: Vec<[Both; 2]>,
}

/// A value that stands in the middle, and the quartiles around it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread {
    /// The lower quartile.
    pub(crate) low: f64,
    /// The median.
    pub(crate) median: f64,
    /// The upper quartile.
    pub(crate) high: f64,
}

impl Spread {
    /// Of these values; zero if there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |quarter: usize| {
            let last = values.len().checked_sub(1)?;
            values.get((last * quarter + 2) / 4).copied()
        };
        Spread {
            low: at(1).unwrap_or(0.0),
            median: at(2).unwrap_or(0.0),
            high: at(3).unwrap_or(0.0),
        }
    }
}

impl core::fmt::Display for Spread {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Spread { low, median, high } = self;
        write!(f, "{median:5.2} ({low:.2}-{high:.2})")
    }
}

impl Both {
    /// What the receiving end got, in Gbit/s; `way` as the near end sees it.
    pub(crate) fn gigabits(&self, way: Way) -> f64 {
        let done = match way {
            Way::Send => &self.far,
            Way::Receive => &self.near,
        };
        done.bytes as f64 * 8.0 / done.nanos.max(1) as f64
    }

    /// Seconds on cores for each gigabyte: of the near end, and of both with the kernel's own
    /// threads.
    pub(crate) fn cpu(&self) -> [f64; 2] {
        let each = |nanos: u64, bytes: u64| nanos as f64 / bytes.max(1) as f64;
        let near = each(self.near.cpu_nanos, self.near.bytes);
        let far = each(self.far.cpu_nanos, self.far.bytes);
        let softirq = each(self.far.softirq_nanos, self.far.bytes);
        [near, near + far + softirq]
    }

    /// What the whole machine worked for each gigabyte, in seconds on cores.
    fn machine(&self) -> f64 {
        self.far.machine_nanos as f64 / self.far.bytes.max(1) as f64
    }

    /// The part of the time awake that the stack spent in its device.
    fn pumps(&self, replicas: usize) -> f64 {
        let device = &self.near.device;
        let whole = self.near.nanos as f64 * replicas as f64;
        (device.receiving + device.sending) as f64 / (whole - device.asleep as f64).max(1.0)
    }
}

/// Prints the heading of the table.
pub(crate) fn heading() {
    println!(
        "{:5} {:5} {:7} {:4} {:>3}  {:>17}  {:>17}  {:>17}  {:>17}  {:>17}  {:>17}  {:>17}  {:>17}  pumps  frames/call",
        "",
        "",
        "",
        "",
        "n",
        "ours Gbit/s",
        "Linux Gbit/s",
        "ratio",
        "ours CPU s/GB",
        "Linux CPU s/GB",
        "ratio",
        "whole machine's",
        "our end/Linux's"
    );
}

impl Row {
    /// Prints a line of the table.
    pub(crate) fn print(&self, replicas: usize) {
        let of = |value: &dyn Fn(&[Both; 2]) -> f64| Spread::of(self.rounds.iter().map(value));
        let rate = |i: usize| move |round: &[Both; 2]| round[i].gigabits(self.way);
        let cpu = |i: usize, whose: usize| move |round: &[Both; 2]| round[i].cpu()[whose];
        let ratio = |[ours, linux]: [f64; 2]| ours / linux.max(f64::MIN_POSITIVE);
        println!(
            "{:5} {:5} {:7} {:4} {:>3}  {:>17}  {:>17}  {:>17}  {:>17}  {:>17}  {:>17}  {:>17}  {:>17}  {:4.0} %  {:.1} in {:.1} out",
            self.device.name(),
            self.frames.name(),
            self.way.name(),
            self.distance.name(),
            self.rounds.len(),
            of(&rate(0)).to_string(),
            of(&rate(1)).to_string(),
            of(&|round| ratio([0, 1].map(|i| rate(i)(round)))).to_string(),
            of(&cpu(0, 1)).to_string(),
            of(&cpu(1, 1)).to_string(),
            of(&|round| ratio([0, 1].map(|i| cpu(i, 1)(round)))).to_string(),
            of(&|round| ratio([0, 1].map(|i| round[i].machine()))).to_string(),
            of(&|round| ratio([0, 1].map(|i| cpu(i, 0)(round)))).to_string(),
            of(&|round| round[0].pumps(replicas) * 100.0).median,
            of(&|round| round[0].near.device.batch[0]).median,
            of(&|round| round[0].near.device.batch[1]).median,
        );
    }
}
