//! A driver whose replica leaves and joins again, and what the application gets meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dominoes_netstack::group::{JoiningWorker, MembershipHandle};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::Worker as _;

use super::replicated::{self, ReplicaDriver};
use crate::drivers::samples::{Look, Samples, Watched};
use crate::drivers::{Direction, Driver, Row};
use crate::workload::Workload;

/// From one join to the next; half of it the replica is away.
pub(crate) const PERIOD_NS: u64 = 200_000_000;
/// The length of one counted slice.
pub(crate) const SLICE_NS: u64 = 5_000_000;
/// Slices before a join that give the usual rate, and slices after it that are compared with that.
const BEFORE: usize = 10;
const BEHIND: usize = 19;

/// No worker joins.
const NONE: u64 = 0;

/// One join.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct JoinSample {
    /// The median of the slices before.
    pub(crate) before_gbit_per_s: f64,
    /// The slowest slice after the join, as a share of the median.
    pub(crate) worst_share: f64,
    /// The longest time below 80 % of that, in milliseconds.
    pub(crate) below_ms: f64,
    /// From asking for a state to taking part, in milliseconds.
    pub(crate) took_ms: f64,
}

/// The joins of a row so far.
#[derive(Debug)]
struct JoinLog {
    /// When the last one asked for a state, by the row's clock, or [`NONE`]; and when it had one.
    asked: AtomicU64,
    joined_at: AtomicU64,
    samples: Arc<Samples<JoinSample>>,
}

/// A row of replicas the last of which comes and goes, until there were `wanted` joins.
pub(crate) fn row(
    direction: Direction,
    workload: &Workload,
    cores: usize,
    wanted: usize,
) -> Result<(Row, Arc<Samples<JoinSample>>), String> {
    let log = Arc::new(JoinLog {
        asked: AtomicU64::new(NONE),
        joined_at: AtomicU64::new(NONE),
        samples: Arc::new(Samples::new(wanted)),
    });
    let (mut drivers, membership) = replicated::drivers(direction, workload, cores, |_| ())?;
    let last = drivers.pop().ok_or("no replica")?;
    let mut drivers = drivers.into_iter();
    let first = drivers.next().ok_or("one replica, which cannot leave")?;
    let mut all: Vec<Box<dyn Driver>> = vec![Box::new(Watched {
        driver: Box::new(first),
        look: Counting::new(Arc::clone(&log)),
    })];
    all.extend(drivers.map(|driver| -> Box<dyn Driver> { Box::new(driver) }));
    all.push(Box::new(JoiningDriver {
        state: MemberState::Working(Box::new(last)),
        membership,
        due: 0,
        log: Arc::clone(&log),
    }));
    Ok((Row::new("replicated", all), Arc::clone(&log.samples)))
}

enum MemberState {
    Working(Box<ReplicaDriver>),
    Away,
    Joining(Box<JoiningWorker>),
}

/// Comes and goes.
struct JoiningDriver {
    state: MemberState,
    membership: MembershipHandle,
    /// When it leaves next, or joins.
    due: u64,
    log: Arc<JoinLog>,
}

impl Driver for JoiningDriver {
    fn turn(&mut self, now: Instant) -> usize {
        let at = now.as_nanos();
        if self.due == 0 {
            self.due = at + PERIOD_NS;
        }
        match &mut self.state {
            MemberState::Working(driver) => {
                if at >= self.due {
                    self.due = at + PERIOD_NS / 2;
                    // Asked in vain, it asks again the next time.
                    let _ = self.membership.leave(driver.worker().id());
                }
                let done = driver.turn(now);
                if driver.worker().has_left() {
                    self.state = MemberState::Away;
                }
                done
            }
            MemberState::Away => {
                if at >= self.due
                    && let Ok(joining) = self.membership.join(())
                {
                    self.due = at + PERIOD_NS / 2;
                    self.log.joined_at.store(NONE, Ordering::Relaxed);
                    // ORDERING: Release, pairs with the Acquire in `Counting::count`.
                    self.log.asked.store(at, Ordering::Release);
                    self.state = MemberState::Joining(Box::new(joining));
                }
                0
            }
            MemberState::Joining(joining) => {
                let Some(worker) = joining.try_join() else {
                    return 0;
                };
                self.log.joined_at.store(at, Ordering::Relaxed);
                self.state = MemberState::Working(Box::new(ReplicaDriver::new(worker, None)));
                1
            }
        }
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn check(&self) -> Result<(), String> {
        match &self.state {
            MemberState::Working(driver) => driver.check(),
            MemberState::Away | MemberState::Joining(_) => Ok(()),
        }
    }
}

/// Counts what the application moves in each slice.
struct Counting {
    log: Arc<JoinLog>,
    /// When the slice began, and what had been moved by then.
    slice: (u64, u64),
    /// Bytes per millisecond in the slices before.
    before: VecDeque<f64>,
    /// The current join, and the slices after it.
    join: Option<(u64, Vec<f64>)>,
    /// The last one that was looked at.
    known: u64,
}

impl Counting {
    fn new(log: Arc<JoinLog>) -> Self {
        Counting {
            log,
            slice: (0, 0),
            before: VecDeque::new(),
            join: None,
            known: NONE,
        }
    }

    fn count(&mut self, has: u64, now: u64) {
        let (began, had) = self.slice;
        let ms = (now - began) as f64 / 1e6;
        let rate = (has - had) as f64 / ms;
        self.slice = (now, has);
        if ms > 4.0 * SLICE_NS as f64 / 1e6 {
            // Nothing ran meanwhile: the end of a slice of the whole row.
            self.before.clear();
            self.join = None;
            return;
        }
        // ORDERING: Acquire, pairs with the Release in `JoiningDriver::turn`.
        let asked = self.log.asked.load(Ordering::Acquire);
        if asked != self.known && self.before.len() == BEFORE {
            self.join = Some((asked, Vec::new()));
        }
        self.known = asked;
        let Some((asked, behind)) = &mut self.join else {
            self.before.push_back(rate);
            if self.before.len() > BEFORE {
                self.before.pop_front();
            }
            return;
        };
        behind.push(rate);
        let joined_at = self.log.joined_at.load(Ordering::Relaxed);
        if behind.len() < BEHIND || joined_at == NONE {
            return;
        }
        let mut before: Vec<f64> = self.before.iter().copied().collect();
        before.sort_by(f64::total_cmp);
        let usual = before[BEFORE / 2];
        let slices = behind.split(|rate| *rate >= 0.8 * usual).map(<[f64]>::len);
        let sample = JoinSample {
            before_gbit_per_s: usual * 8.0 / 1e6,
            worst_share: behind.iter().copied().fold(f64::MAX, f64::min) / usual,
            below_ms: slices.max().unwrap_or(0) as f64 * SLICE_NS as f64 / 1e6,
            took_ms: (joined_at - *asked) as f64 / 1e6,
        };
        self.log.samples.push(sample);
        self.join = None;
        self.before.clear();
    }
}

impl Look for Counting {
    fn look(&mut self, driver: &dyn Driver, now: u64) {
        if now >= self.slice.0 + SLICE_NS {
            self.count(driver.bytes(), now);
        }
    }
}
