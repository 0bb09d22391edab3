//! Medians with their spread, ours beside Linux's.

use dominoes_bench::spread::Spread;
use dominoes_bench::table::{Bar, Table, columns};
use dominoes_bench::topology::Distance;

use super::fixture::Both;
use super::{Device, Frames, Way};

/// Runs of one combination, ours and Linux's in turn.
#[derive(serde::Serialize)]
pub(crate) struct Row {
    /// Which way the bytes went.
    pub(crate) way: Way,
    /// How far apart the cores were.
    pub(crate) distance: Distance,
    /// Ours and Linux's of the same round.
    pub(crate) rounds: Vec<[Both; 2]>,
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

/// An empty table of rows with the same device and frames.
pub(crate) fn table(device: Device, frames: Frames) -> Table {
    let title = format!(
        "{}, {} frames: ours, Linux's and their ratio; CPU s/GB",
        device.name(),
        frames.name()
    );
    let columns = columns(
        "way | cores | rounds | ours Gbit/s | Linux Gbit/s | ratio | ours CPU | Linux \
         CPU | ratio | whole machine's | our end/Linux's | pumps % | frames a call, \
         in | out",
    );
    Table::new(title, &columns)
}

impl Row {
    /// Our rate, and Linux's below it.
    pub(crate) fn bar(&self) -> Option<Bar> {
        let rate = |i: usize| Spread::of(self.rounds.iter().map(|pair| pair[i].gigabits(self.way)));
        let (ours, linux) = (rate(0)?, rate(1)?);
        let name = format!("{}, cores {}", self.way.name(), self.distance.name());
        Some(Bar {
            beside: Some(linux.median),
            text: format!("{:.2}, Linux {:.2}", ours.median, linux.median),
            ..Bar::new(name, self.way.name(), ours, 2)
        })
    }

    /// Its line of the table.
    pub(crate) fn cells(&self, replicas: usize) -> Vec<String> {
        let of = |value: &dyn Fn(&[Both; 2]) -> f64| Spread::text(self.rounds.iter().map(value), 2);
        let median = |value: &dyn Fn(&[Both; 2]) -> f64, digits: usize| {
            let spread = Spread::of(self.rounds.iter().map(value));
            let median = spread.map_or(f64::NAN, |spread| spread.median);
            format!("{median:.digits$}")
        };
        let rate = |i: usize| move |round: &[Both; 2]| round[i].gigabits(self.way);
        let cpu = |i: usize, whose: usize| move |round: &[Both; 2]| round[i].cpu()[whose];
        let ratio = |[ours, linux]: [f64; 2]| ours / linux.max(f64::MIN_POSITIVE);
        vec![
            self.way.name().to_owned(),
            self.distance.name().to_owned(),
            self.rounds.len().to_string(),
            of(&rate(0)),
            of(&rate(1)),
            of(&|round| ratio([0, 1].map(|i| rate(i)(round)))),
            of(&cpu(0, 1)),
            of(&cpu(1, 1)),
            of(&|round| ratio([0, 1].map(|i| cpu(i, 1)(round)))),
            of(&|round| ratio([0, 1].map(|i| round[i].machine()))),
            of(&|round| ratio([0, 1].map(|i| cpu(i, 0)(round)))),
            median(&|round| round[0].pumps(replicas) * 100.0, 0),
            median(&|round| round[0].near.device.batch[0], 1),
            median(&|round| round[0].near.device.batch[1], 1),
        ]
    }
}
