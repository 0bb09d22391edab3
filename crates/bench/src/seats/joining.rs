//! A seat whose replica leaves and joins again, and what the application gets meanwhile.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::replicated::{Door, Joining};

use super::replicated::{self, WorkerSeat};
use crate::record::JoinSample;
use crate::seats::{Direction, Row, Seat};
use crate::workload::Workload;

/// From one join to the next; half of it the replica is away.
pub(crate) const PERIOD_NS: u64 = 200_000_000;
/// What is counted at once.
pub(crate) const SLICE_NS: u64 = 5_000_000;
/// Slices before a join that say what is usual, and slices behind it that are looked at.
const BEFORE: usize = 10;
const BEHIND: usize = 19;

/// Nobody joins.
const NOBODY: u64 = 0;

/// The joins of a row so far.
#[derive(Debug, Default)]
pub(crate) struct JoinLog {
    wanted: usize,
    /// When the last one asked for a state, by the row's clock, or [`NOBODY`]; and when it had one.
    asked: AtomicU64,
    sat: AtomicU64,
    samples: Mutex<Vec<JoinSample>>,
}

impl JoinLog {
    /// How many joins there were.
    pub(crate) fn taken(&self) -> usize {
        self.lock().len()
    }

    /// Whether there were as many as were wanted.
    pub(crate) fn is_full(&self) -> bool {
        self.taken() >= self.wanted
    }

    /// What they were like.
    pub(crate) fn samples(&self) -> Vec<JoinSample> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<JoinSample>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A row of replicas the last of which comes and goes, until there were `wanted` joins.
pub(crate) fn row(
    direction: Direction,
    workload: &Workload,
    cores: usize,
    wanted: usize,
) -> Result<(Row, Arc<JoinLog>), String> {
    let log = Arc::new(JoinLog {
        wanted,
        ..JoinLog::default()
    });
    let (mut seats, door) = replicated::seats(direction, workload, cores, |_| ())?;
    let last = seats.pop().ok_or("no replica")?;
    let mut seats = seats.into_iter();
    let first = seats.next().ok_or("one replica, which cannot leave")?;
    let mut all: Vec<Box<dyn Seat>> = vec![Box::new(Counting::new(first, Arc::clone(&log)))];
    all.extend(seats.map(|seat| -> Box<dyn Seat> { Box::new(seat) }));
    all.push(Box::new(Coming {
        member: Member::Here(Box::new(last)),
        door,
        due: 0,
        log: Arc::clone(&log),
    }));
    Ok((Row::new("replicated", all), log))
}

enum Member {
    Here(Box<WorkerSeat>),
    Away,
    Joining(Box<Joining>),
}

/// Comes and goes.
struct Coming {
    member: Member,
    door: Door,
    /// When it leaves next, or joins.
    due: u64,
    log: Arc<JoinLog>,
}

impl Seat for Coming {
    fn turn(&mut self, now: Instant) -> usize {
        let at = now.as_nanos();
        if self.due == 0 {
            self.due = at + PERIOD_NS;
        }
        match &mut self.member {
            Member::Here(seat) => {
                if at >= self.due {
                    self.due = at + PERIOD_NS / 2;
                    // Asked in vain, it asks again the next time.
                    let _ = self.door.leave(seat.worker().id());
                }
                let done = seat.turn(now);
                if seat.worker().has_left() {
                    self.member = Member::Away;
                }
                done
            }
            Member::Away => {
                if at >= self.due
                    && let Ok(joining) = self.door.join(())
                {
                    self.due = at + PERIOD_NS / 2;
                    self.log.sat.store(NOBODY, Ordering::Relaxed);
                    // ORDERING: Release, pairs with the Acquire in `Counting::turn`.
                    self.log.asked.store(at, Ordering::Release);
                    self.member = Member::Joining(Box::new(joining));
                }
                0
            }
            Member::Joining(joining) => {
                let Some(worker) = joining.try_sit() else {
                    return 0;
                };
                self.log.sat.store(at, Ordering::Relaxed);
                self.member = Member::Here(Box::new(WorkerSeat::new(worker, None)));
                1
            }
        }
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn check(&self) -> Result<(), String> {
        match &self.member {
            Member::Here(seat) => seat.check(),
            Member::Away | Member::Joining(_) => Ok(()),
        }
    }
}

/// Counts what the application moves in each slice.
struct Counting {
    seat: WorkerSeat,
    log: Arc<JoinLog>,
    /// When the slice began, and what had been moved by then.
    slice: (u64, u64),
    /// Octets per millisecond in the slices before.
    before: VecDeque<f64>,
    /// The join that is looked at, and the slices behind it.
    join: Option<(u64, Vec<f64>)>,
    /// The last one that was looked at.
    known: u64,
}

impl Counting {
    fn new(seat: WorkerSeat, log: Arc<JoinLog>) -> Self {
        Counting {
            seat,
            log,
            slice: (0, 0),
            before: VecDeque::new(),
            join: None,
            known: NOBODY,
        }
    }

    fn count(&mut self, now: u64) {
        let (began, had) = self.slice;
        let has = self.seat.bytes();
        let ms = (now - began) as f64 / 1e6;
        let rate = (has - had) as f64 / ms;
        self.slice = (now, has);
        if ms > 4.0 * SLICE_NS as f64 / 1e6 {
            // Nothing ran meanwhile: the end of a slice of the whole row.
            self.before.clear();
            self.join = None;
            return;
        }
        // ORDERING: Acquire, pairs with the Release in `Coming::turn`.
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
        let sat = self.log.sat.load(Ordering::Relaxed);
        if behind.len() < BEHIND || sat == NOBODY {
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
            took_ms: (sat - *asked) as f64 / 1e6,
        };
        self.log.lock().push(sample);
        self.join = None;
        self.before.clear();
    }
}

impl Seat for Counting {
    fn turn(&mut self, now: Instant) -> usize {
        let done = self.seat.turn(now);
        if now.as_nanos() >= self.slice.0 + SLICE_NS {
            self.count(now.as_nanos());
        }
        done
    }

    fn bytes(&self) -> u64 {
        self.seat.bytes()
    }

    fn verify(&mut self, on: bool) {
        self.seat.verify(on);
    }

    fn sent_again(&self) -> u64 {
        self.seat.sent_again()
    }

    fn out_of_order(&self) -> u64 {
        self.seat.out_of_order()
    }

    fn check(&self) -> Result<(), String> {
        self.seat.check()
    }
}
