//! Workers that lose their core in the middle of a step.
//!
//! Each worker of a group has its own thread, and all threads share one baton: only its holder
//! runs. A worker gives up the baton between two turns, and sometimes within a turn, after it has
//! begun a piece of work and before that work is done. Meanwhile the other workers find the work
//! begun, skip it, retry it, and steal what is late. A seed decides which worker runs next, and for
//! how long a worker is paused, so a seed repeats a schedule that free-running threads would meet
//! once a day.
//!
//! A group and a `single` stack send bytes to each other. All bytes must arrive unharmed, no effect
//! may find its transmit slot taken, and the transfer must not stall once no worker is held up.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use dominoes_drivers::Frame;
use dominoes_drivers::memory::{MemoryConfig, Script, scripted_with};
use dominoes_netstack::group::{FaultHooks, Layout, Primaries, ReplicatedGroup, ReplicatedWorker};
use dominoes_netstack::stats::EffectStats;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::variants::Worker as _;
use dominoes_netstack::variants::single::Single;
use dominoes_proto::log::effect::Effect;
use dominoes_testkit::{Rng, Traffic, mix, number};

const GROUP: [u8; 4] = [10, 0, 0, 1];
const PEER: [u8; 4] = [10, 0, 0, 2];
/// Nanoseconds between two rounds of the scheduler.
const ROUND: u64 = 5_000;
/// Rounds without progress of an application after which the case counts as stalled: 0.2 s, less
/// than any retransmission timeout and far more than the longest pause. Twice as long while a
/// segment is missing that the peer had to discard, because more than a window of newer
/// acknowledgments went past its hole (RFC 5961 section 5.2): if a probe is answered faster than
/// any measured round trip, only the timeout repairs that (RFC 8985 section 6.2, step 2).
const PATIENCE: u64 = 40_000;
/// Bytes in each direction.
const BYTES: u64 = 400_000;

/// The thread that may run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    Scheduler,
    Worker(usize),
    /// The case is over: every worker's thread ends.
    Over,
}

struct Round {
    holder: Holder,
    now: u64,
    /// Whether the worker that last gave up the baton was in the middle of a step.
    amid: bool,
    panicked: bool,
}

struct Baton {
    round: Mutex<Round>,
    passed: Condvar,
}

impl Baton {
    fn lock(&self) -> MutexGuard<'_, Round> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets worker `id` run until it gives up the baton. Returns whether that was in the middle of
    /// a step.
    fn run(&self, id: usize, now: u64) -> bool {
        let mut round = self.lock();
        (round.holder, round.now, round.amid) = (Holder::Worker(id), now, false);
        self.passed.notify_all();
        while round.holder != Holder::Scheduler {
            round = wait(&self.passed, round);
        }
        round.amid
    }

    /// Waits until worker `id` gets the baton; `None` if the case is over.
    fn take(&self, id: usize) -> Option<Instant> {
        let mut round = self.lock();
        loop {
            match round.holder {
                Holder::Over => return None,
                Holder::Worker(holder) if holder == id => {
                    return Some(Instant::from_nanos(round.now));
                }
                _ => round = wait(&self.passed, round),
            }
        }
    }

    fn give_up(&self, amid: bool, panicked: bool) {
        let mut round = self.lock();
        round.amid = amid;
        round.panicked |= panicked;
        if round.holder != Holder::Over {
            round.holder = Holder::Scheduler;
        }
        self.passed.notify_all();
    }
}

fn wait<'a>(condvar: &Condvar, guard: MutexGuard<'a, Round>) -> MutexGuard<'a, Round> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Sometimes takes the core away from its worker after that has begun a piece of work.
struct Preempt {
    id: usize,
    baton: Arc<Baton>,
    rng: Rng,
    per_mille: u32,
}

impl FaultHooks for Preempt {
    const ACTIVE: bool = true;

    fn before_performing(&mut self, seq: u64, _effect: &Effect) {
        self.before_preparing(seq);
    }

    fn before_preparing(&mut self, _seq: u64) {
        if self.rng.per_mille(self.per_mille) {
            self.baton.give_up(true, false);
            let _ = self.baton.take(self.id);
        }
    }
}

/// Runs a turn whenever the worker has the baton. Returns the worker's effect counters, and the
/// number of panics that its replica caught.
fn live(id: usize, mut worker: ReplicatedWorker<Preempt>, baton: &Baton) -> (EffectStats, u64) {
    while let Some(now) = baton.take(id) {
        let turn = catch_unwind(AssertUnwindSafe(|| worker.turn(now)));
        baton.give_up(false, turn.is_err());
        if turn.is_err() {
            break;
        }
    }
    (worker.stats().effects, worker.replica().unexpected_panics())
}

fn carry(lane: &mut VecDeque<Vec<u8>>, from: &Script, to: &Script) {
    for bytes in lane.drain(..) {
        to.push_frame(Frame::from_bytes(&bytes));
    }
    lane.extend(from.take_sent().into_iter().map(|(bytes, _)| bytes));
}

/// Counts of the events that a case met.
#[derive(Debug, Default)]
struct Seen {
    pauses: u64,
    stolen: u64,
    /// Cases that needed a retransmission timeout.
    timeouts: u64,
}

struct Case {
    rng: Rng,
    now: u64,
    baton: Arc<Baton>,
    /// For each worker, the round before which it does not get the baton.
    until: Vec<u64>,
    seen: Seen,
    pause: u32,
}

impl Case {
    /// Runs most of the workers that are not held up, beginning with a random one.
    fn round(&mut self, index: u64, calm: bool) {
        let workers = self.until.len();
        let first = self.rng.index(workers);
        for i in 0..workers {
            let id = (first + i) % workers;
            if self.until[id] > index && !calm || self.rng.per_mille(200) {
                continue;
            }
            let amid = self.baton.run(id, self.now);
            if amid || self.rng.per_mille(self.pause) {
                // Most pauses are short, some are long.
                let length = 1 << self.rng.below(12);
                self.until[id] = index + self.rng.below(length);
                self.seen.pauses += u64::from(amid);
            }
        }
        self.now += ROUND;
    }
}

fn layout(rng: &mut Rng, replicas: usize) -> Layout {
    let mut layout = Layout::default();
    layout.replicas = replicas;
    layout.primaries = Primaries::ALL[rng.index(Primaries::ALL.len())];
    layout.tuning.log = 64 << rng.below(3);
    layout.tuning.ahead_bytes = 4096 << rng.below(5);
    layout.tuning.frame_chunk = 1 << rng.below(5);
    layout.tuning.steal_after = rng.index(16);
    layout.tuning.patience = Duration::from_micros(rng.below(200));
    layout.tuning.past_hole = 1 << rng.below(8);
    layout.tuning.hole_turns = rng.below(64) as u32;
    layout
}

fn play(seed: u64) -> Result<Seen, String> {
    let mut rng = Rng::new(seed);
    let replicas = 2 + rng.index(2);
    let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
    let (device, ours) = scripted_with(MemoryConfig::default().macs(macs[0], macs[1]));
    let (peer_device, theirs) = scripted_with(MemoryConfig::default().macs(macs[1], macs[0]));
    let mut setup = Setup::new(GROUP.into(), 24, [1, 2]);
    setup.limits.tx_slots = 32 << rng.below(4);
    setup.limits.receive_buffer = 1 << rng.between(14, 17);
    let baton = Arc::new(Baton {
        round: Mutex::new(Round {
            holder: Holder::Scheduler,
            now: 0,
            amid: false,
            panicked: false,
        }),
        passed: Condvar::new(),
    });
    let per_mille = rng.below(200) as u32;
    let layout = layout(&mut rng, replicas);
    let group = ReplicatedGroup::with_fault_hooks(setup, layout, Box::new(device), |id| Preempt {
        id,
        baton: Arc::clone(&baton),
        rng: Rng::new(mix(seed ^ id as u64)),
        per_mille,
    });
    let group = group.expect("layouts are within their bounds");
    let single = Single::new(Setup::new(PEER.into(), 24, [3, 4]), Box::new(peer_device));
    let mut single = single.expect("the defaults are within their bounds");
    let sockets = group.sockets();
    let listener = sockets.listen(80, 8).map_err(|e| e.to_string())?;
    let mut connecting = single
        .sockets()
        .begin_connect(SocketAddr::new(GROUP.into(), 80))
        .map_err(|e| e.to_string())?;
    let threads: Vec<_> = group
        .into_workers()
        .into_iter()
        .enumerate()
        .map(|(id, worker)| {
            let baton = Arc::clone(&baton);
            thread::spawn(move || live(id, worker, &baton))
        })
        .collect();
    let mut case = Case {
        pause: rng.below(100) as u32,
        rng,
        now: 1_000_000,
        baton: Arc::clone(&baton),
        until: vec![0; replicas],
        seen: Seen::default(),
    };
    let (mut to_group, mut to_peer) = (VecDeque::new(), VecDeque::new());
    let (mut end, mut peer_end) = (None::<Traffic>, None::<Traffic>);
    let (mut moved, mut last_news) = (0, 0);
    // The bytes that the peer has received, and how many segments it had discarded by then.
    let mut repaired = (0, 0);
    let mut result = Ok(());
    for index in 0.. {
        // During the second half of `PATIENCE`, no worker is held up.
        case.round(index, index - last_news > PATIENCE / 2);
        single.turn(Instant::from_nanos(case.now));
        carry(&mut to_group, &theirs, &ours);
        carry(&mut to_peer, &ours, &theirs);
        let talker = |ours: u64| move |stream| Traffic::new(stream, ours, 1 - ours, BYTES, BYTES);
        if end.is_none() {
            let accepted = listener.try_accept().ok();
            end = accepted.map(|(stream, _)| talker(0)(stream));
        }
        if peer_end.is_none() {
            peer_end = connecting.try_finish().ok().flatten().map(talker(1));
        }
        let mut total = 0;
        for talker in [&mut end, &mut peer_end].into_iter().flatten() {
            while result.is_ok() {
                match talker.step() {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(what) => result = Err(what.to_string()),
                }
            }
            total += talker.received();
        }
        if total > moved {
            (moved, last_news) = (total, index);
        }
        if baton.lock().panicked {
            result = Err("a worker panicked".into());
        }
        if total == 2 * BYTES || result.is_err() {
            break;
        }
        let discarded = single.replica().stats().challenges_sent;
        let received = peer_end.as_ref().map_or(0, Traffic::received);
        if received > repaired.0 {
            repaired = (received, discarded);
        }
        case.seen.timeouts |= u64::from(index - last_news > PATIENCE);
        if index - last_news > PATIENCE << u8::from(discarded > repaired.1) {
            result = Err(format!("all stands still after {total} bytes"));
            break;
        }
    }
    baton.lock().holder = Holder::Over;
    baton.passed.notify_all();
    for thread in threads {
        let (stats, panics) = thread.join().map_err(|_| "a worker panicked")?;
        if panics > 0 {
            result = Err(format!("{panics} panics were caught"));
        }
        if stats.diverged > 0 && result.is_ok() {
            result = Err(format!("{} effects found no place", stats.diverged));
        }
        case.seen.stolen += stats.stolen;
    }
    if single.replica().unexpected_panics() > 0 {
        result = Err("the peer caught a panic".into());
    }
    result.map_err(|what| format!("{what} (with {layout:?})"))?;
    Ok(case.seen)
}

#[test]
fn workers_that_lose_their_core_in_the_middle_of_work_lose_nothing_and_stop_nobody_for_good() {
    let first = number("PREEMPT_SEED");
    let cases = number("PREEMPT_CASES").unwrap_or(60);
    let mut seen = Seen::default();
    for case in 0..if first.is_some() { 1 } else { cases } {
        let seed = first.unwrap_or_else(|| mix(case));
        match play(seed) {
            Ok(met) => {
                seen.pauses += met.pauses;
                seen.stolen += met.stolen;
                seen.timeouts += met.timeouts;
            }
            Err(what) => panic!("PREEMPT_SEED={seed:#x} repeats it: {what}"),
        }
    }
    println!("{cases} cases: {seen:?}");
    let is_usual = seen.pauses > cases && seen.stolen > cases && seen.timeouts <= cases / 50;
    assert!(first.is_some() || is_usual, "{seen:?}");
}
