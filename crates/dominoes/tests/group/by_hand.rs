//! Workers stepped by hand. Any of them may run within the `apply` or `perform` of another, as if
//! that worker had lost its core there.

use super::{Chain, Planned, Random, die};
use dominoes::{
    Group, Park, Publisher, Seq, Turn,
    group::{
        Divergence, GroupByHand, GroupStats, GroupWorker, OnDivergence, ReplicaSlotError,
        WorkerState,
    },
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    env,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    rc::Rc,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

type Apply = Box<dyn Fn(&mut Chain, Seq, &u64) -> u64>;
type Perform = Box<dyn Fn(u64, Seq)>;
type Hand = GroupWorker<Chain, u64, u64, Apply, Perform>;

const PATIENCE: Duration = Duration::from_millis(1);

/// The point at which a worker dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    BeforeApply,
    WithinApply,
    BetweenApplyAndPerform,
    BeforePerform,
    WithinPerform,
}

const FAULTS: [Fault; 5] = [
    Fault::BeforeApply,
    Fault::WithinApply,
    Fault::BetweenApplyAndPerform,
    Fault::BeforePerform,
    Fault::WithinPerform,
];

/// Counts of the events in the cases of a test, by name.
type Counts = BTreeMap<String, u64>;

/// A group, its workers, and the effects that they perform.
struct Fixture {
    group: GroupByHand<Chain, u64, u64, Apply, Perform>,
    /// `None` while a worker is within a step.
    workers: RefCell<Vec<Option<Hand>>>,
    publisher: RefCell<Option<Publisher<u64, Park>>>,
    random: RefCell<Random>,
    now: Cell<Instant>,
    requests: RefCell<Vec<u64>>,
    /// Effects that were performed, by position.
    performed: RefCell<BTreeMap<Seq, Vec<u64>>>,
    /// How often a worker died directly after it performed an effect, by position.
    repeats: RefCell<BTreeMap<Seq, u64>>,
    /// The next fault.
    fault: Cell<Option<Fault>>,
    depth: Cell<u32>,
    /// Whether other workers run within the code of a worker.
    interleaves: Cell<bool>,
    /// A worker whose state was changed and is not yet repaired.
    flipped: Cell<Option<usize>>,
    divergences: Arc<Mutex<Vec<Divergence>>>,
    counts: RefCell<Counts>,
}

impl Fixture {
    fn new(seed: u64, attempts: u32) -> Rc<Fixture> {
        let mut random = Random(seed);
        let replicas = 1 + random.below(4) as usize;
        let divergences = Arc::<Mutex<Vec<Divergence>>>::default();
        let heard = divergences.clone();
        let capacity = 4 << random.below(5);
        let chunk = (1usize << random.below(4)).min(capacity);
        let settings = Group::builder(Chain::default(), replicas)
            .slots(replicas + random.below(3) as usize)
            .capacity(capacity)
            .chunk(chunk)
            .patience(PATIENCE)
            .attempts(attempts)
            .observe(1 + random.below(12))
            .on_divergence(move |divergence| {
                heard.lock().unwrap().push(divergence.clone());
                OnDivergence::Repair
            });
        Rc::new_cyclic(|fixture: &std::rc::Weak<Fixture>| {
            let (one, other) = (fixture.clone(), fixture.clone());
            let apply: Apply = Box::new(move |chain, seq, request| {
                one.upgrade().unwrap().apply(chain, seq, *request)
            });
            let perform: Perform =
                Box::new(move |effect, seq| other.upgrade().unwrap().perform(effect, seq));
            let mut group = settings.by_hand(apply, perform).unwrap();
            let workers = group.workers.drain(..).map(Some).collect();
            Fixture {
                publisher: RefCell::new(Some(group.handle().publisher())),
                group,
                workers: RefCell::new(workers),
                random: RefCell::new(random),
                now: Cell::new(Instant::now()),
                requests: RefCell::default(),
                performed: RefCell::default(),
                repeats: RefCell::default(),
                fault: Cell::new(None),
                depth: Cell::new(0),
                interleaves: Cell::new(true),
                flipped: Cell::new(None),
                divergences,
                counts: RefCell::default(),
            }
        })
    }

    fn below(&self, n: u64) -> u64 {
        self.random.borrow_mut().below(n)
    }

    fn count(&self, what: &str) {
        *self.counts.borrow_mut().entry(what.to_owned()).or_default() += 1;
    }

    fn stats(&self) -> GroupStats {
        self.group.handle().stats()
    }

    /// Whether a worker may die: another one has the state, and no state is known to be wrong.
    fn may_lose_one(&self) -> bool {
        self.stats().membership.active >= 2 && self.flipped.get().is_none()
    }

    /// Dies if this fault is next.
    fn fault(&self, fault: Fault) {
        if self.fault.get() == Some(fault) && self.may_lose_one() {
            self.fault.set(None);
            self.count(&format!("{fault:?}"));
            die();
        }
    }

    /// Runs other workers, as if this one had lost its core.
    fn lose_core(&self) {
        if self.interleaves.get() && self.depth.get() < 3 && self.below(8) == 0 {
            self.count("lost its core");
            for _ in 0..self.below(12) {
                self.act();
            }
        }
    }

    fn apply(&self, chain: &mut Chain, seq: Seq, request: u64) -> u64 {
        self.fault(Fault::BeforeApply);
        self.lose_core();
        let mut half = chain.clone();
        let effect = half.apply(seq, request);
        chain.last = half.last;
        self.fault(Fault::WithinApply);
        *chain = half;
        effect
    }

    fn perform(&self, effect: u64, seq: Seq) {
        self.fault(Fault::BeforePerform);
        self.lose_core();
        self.performed
            .borrow_mut()
            .entry(seq)
            .or_default()
            .push(effect);
        if self.fault.get() == Some(Fault::WithinPerform) && self.may_lose_one() {
            *self.repeats.borrow_mut().entry(seq).or_default() += 1;
        }
        self.fault(Fault::WithinPerform);
    }

    /// Steps a worker. Removes it if it panics or has left.
    fn step(&self, at: usize, apply: usize, perform: usize) -> Turn {
        let Some(mut worker) = self.workers.borrow_mut()[at].take() else {
            return Turn::Idle;
        };
        self.depth.set(self.depth.get() + 1);
        let step = AssertUnwindSafe(|| worker.step(self.now.get(), apply, perform));
        let turn = catch_unwind(step);
        self.depth.set(self.depth.get() - 1);
        let payload = match turn {
            Ok(Turn::Finished) if worker.state().is_none() => return Turn::Finished,
            Ok(turn) => {
                self.workers.borrow_mut()[at] = Some(worker);
                return turn;
            }
            Err(payload) => payload,
        };
        if !payload.is::<Planned>() {
            resume_unwind(payload);
        }
        assert!(worker.state().is_none());
        // Half of them are dropped, as by a thread that unwinds; the others find out in their next
        // step.
        if self.below(2) == 0 {
            assert_eq!(worker.step(self.now.get(), 1, 1), Turn::Finished);
        }
        Turn::Finished
    }

    fn some_worker(&self) -> usize {
        self.below(self.workers.borrow().len() as u64) as usize
    }

    /// Does one random action.
    fn act(&self) {
        self.see_repair();
        match self.below(41) {
            0..8 => {
                let mut publisher = self.publisher.borrow_mut();
                let Some(publisher) = publisher.as_mut() else {
                    return;
                };
                for _ in 0..self.below(8) {
                    let request = self.random.borrow_mut().next();
                    match publisher.try_publish(request) {
                        Ok(seq) => {
                            assert_eq!(seq as usize, self.requests.borrow().len());
                            self.requests.borrow_mut().push(request);
                        }
                        Err(full) => assert!(full.is_full() && full.into_inner() == request),
                    }
                }
            }
            8..32 => {
                let at = self.some_worker();
                let (apply, perform) = (self.below(6), self.below(6));
                self.step(at, apply as usize, perform as usize);
            }
            32 => self
                .now
                .set(self.now.get() + PATIENCE * self.below(3) as u32 / 2),
            33 if self.fault.get().is_none() => {
                self.fault.set(Some(FAULTS[self.below(5) as usize]));
            }
            34 if self.fault.get() == Some(Fault::BetweenApplyAndPerform)
                && self.may_lose_one() =>
            {
                let at = self.some_worker();
                let turn = self.step(at, 3, 0);
                let worker = self.workers.borrow_mut()[at].take();
                if turn == Turn::Worked && self.may_lose_one() && worker.is_some() {
                    self.fault.set(None);
                    self.count("BetweenApplyAndPerform");
                    drop(worker);
                } else {
                    self.workers.borrow_mut()[at] = worker;
                }
            }
            35 => match self.group.join() {
                Ok(worker) => {
                    self.count("join");
                    let mut workers = self.workers.borrow_mut();
                    workers.push(Some(worker));
                }
                Err(ReplicaSlotError::NoFreeSlot) => self.count("no free slot"),
                Err(error) => panic!("{error}"),
            },
            36 if self.may_lose_one() => {
                let handle = self.group.handle();
                let replica = self.below(7) as usize;
                if handle.leave(replica).is_ok() {
                    self.count("leave");
                }
            }
            37 if self.may_lose_one() => {
                let replica = self.below(7) as usize;
                if self.group.handle().park(replica).is_ok() {
                    self.count("park");
                }
            }
            38 => {
                let replica = self.below(7) as usize;
                if self.group.handle().unpark(replica).is_ok() {
                    self.count("unpark");
                }
            }
            40 if self.flipped.get().is_none() => {
                // A worker without a share, or whose state is not yet known to be right, simply
                // leaves.
                let at = self.some_worker();
                let idle = |worker: &mut Hand| worker.worker_state() != WorkerState::Active;
                let dropped = self.workers.borrow_mut()[at].take_if(idle);
                if let Some(worker) = dropped {
                    self.count(&format!("dropped in {:?}", worker.worker_state()));
                }
            }
            39 if self.flipped.get().is_none() && self.depth.get() == 0 => {
                let at = self.some_worker();
                let mut workers = self.workers.borrow_mut();
                let all = workers.iter().flatten();
                // All others are active, stay so until the repair, and are a majority.
                let mut states = all.map(GroupWorker::worker_state);
                if self.stats().membership.active < 3
                    || states
                        .any(|state| !matches!(state, WorkerState::Active | WorkerState::Parked))
                    || self.is_any_leaving()
                {
                    return;
                }
                let Some(worker) = &mut workers[at] else {
                    return;
                };
                let id = worker.id();
                if let Some(chain) = worker.state_mut() {
                    chain.sum ^= 1 << self.below(64);
                    self.flipped.set(Some(id));
                    self.count("flip");
                }
            }
            _ => {}
        }
    }

    /// Whether a worker was asked to leave and has not left.
    fn is_any_leaving(&self) -> bool {
        self.leaving_asked() > 0
    }

    fn leaving_asked(&self) -> u64 {
        let counts = self.counts.borrow();
        let of = |what: &str| counts.get(what).copied().unwrap_or(0);
        let stats = self.stats().membership;
        of("leave") + of("park") - stats.left - stats.parked
    }

    /// Clears `flipped` after the repair.
    fn see_repair(&self) {
        if self.flipped.get().is_some() {
            let counts = self.counts.borrow();
            if self.stats().membership.repaired == counts.get("flip").copied().unwrap_or(0) {
                self.flipped.set(None);
            }
        }
    }

    /// Lets everything end without further faults, and checks the result.
    fn finish(&self) -> Counts {
        self.fault.set(None);
        self.interleaves.set(false);
        // The next fingerprint reveals a flip.
        for round in 0.. {
            self.see_repair();
            if self.flipped.get().is_none() {
                break;
            }
            assert!(
                round < 10_000,
                "a flip is never repaired: {:?}",
                self.stats()
            );
            if let Some(publisher) = self.publisher.borrow_mut().as_mut()
                && publisher.try_publish(round).is_ok()
            {
                self.requests.borrow_mut().push(round);
            }
            let workers = self.workers.borrow().len();
            for at in 0..workers {
                self.step(at, 64, 64);
            }
            self.now.set(self.now.get() + PATIENCE);
        }
        self.group.handle().close();
        for round in 0.. {
            let all = 0..self.workers.borrow().len();
            let turns: Vec<Turn> = all
                .filter(|at| self.workers.borrow()[*at].is_some())
                .map(|at| self.step(at, 64, 64))
                .collect();
            if turns.iter().all(|turn| *turn == Turn::Finished) {
                break;
            }
            assert!(
                round < 10_000,
                "it never ends: {turns:?} {:?}",
                self.stats()
            );
            self.now.set(self.now.get() + PATIENCE);
        }
        let requests = self.requests.borrow();
        let (chain, effects) = Chain::of(&requests);
        let workers = self
            .workers
            .borrow_mut()
            .drain(..)
            .flatten()
            .collect::<Vec<_>>();
        let states: Vec<Chain> = workers
            .into_iter()
            .filter_map(GroupWorker::into_state)
            .collect();
        assert!(!states.is_empty(), "one replica has the state");
        for state in states {
            assert_eq!(state, chain, "a replica differs from the model");
        }
        let stats = self.stats();
        let performed = self.performed.borrow();
        let flips = self.counts.borrow().get("flip").copied().unwrap_or(0);
        assert_eq!(stats.membership.repaired, flips);
        for (seq, effect) in (0..).zip(&effects) {
            let times = performed.get(&seq).map_or(&[][..], Vec::as_slice);
            let repeats = self.repeats.borrow().get(&seq).copied().unwrap_or(0);
            assert_eq!(times.len() as u64, 1 + repeats, "effect {seq}: {times:?}");
            // `sum`, the flipped field, is in no effect.
            assert!(times.iter().all(|found| found == effect), "effect {seq}");
        }
        assert_eq!(performed.len(), effects.len());
        assert_eq!(stats.abandoned, 0);
        assert_eq!(stats.published, effects.len() as u64);
        for divergence in self.divergences.lock().unwrap().iter() {
            assert_eq!(divergence.fields, ["sum"], "{divergence}");
            // If the others began from a later snapshot, there is no majority yet.
            let minority = divergence.minority.as_ref();
            assert!(
                minority.is_none_or(|minority| minority.len() == 1),
                "{divergence}"
            );
        }
        let mut counts = self.counts.borrow().clone();
        let stolen: u64 = stats.replicas.iter().map(|replica| replica.steals).sum();
        for (what, n) in [
            ("stolen", stolen),
            ("requests", effects.len() as u64),
            ("joined", stats.membership.joined),
            ("left", stats.membership.left),
            ("parked", stats.membership.parked),
            ("unparked", stats.membership.unparked),
            ("repaired", stats.membership.repaired),
        ] {
            *counts.entry(what.to_owned()).or_default() += n;
        }
        counts
    }
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Runs `GROUP_CASES` cases, from `GROUP_SEED` on.
#[test]
fn any_interleaving_of_kills_joins_leaves_and_flips_gives_the_states_and_effects_of_the_model() {
    let (first, cases) = (number("GROUP_SEED", 1), number("GROUP_CASES", 400));
    let mut counts = Counts::new();
    for seed in first..first + cases {
        let case = catch_unwind(|| {
            let fixture = Fixture::new(seed, u32::MAX);
            for _ in 0..600 {
                fixture.act();
            }
            fixture.finish()
        });
        let case = case.unwrap_or_else(|payload| {
            eprintln!("GROUP_SEED={seed} GROUP_CASES=1 repeats this case");
            resume_unwind(payload);
        });
        for (what, n) in case {
            *counts.entry(what).or_default() += n;
        }
    }
    println!("{cases} cases: {counts:?}");
    if cases >= 100 {
        let wanted = [
            "lost its core",
            "joined",
            "left",
            "parked",
            "unparked",
            "repaired",
            "stolen",
            "dropped in Joining",
            "dropped in JoinCheck",
            "dropped in Parked",
        ];
        let faults = FAULTS.map(|fault| format!("{fault:?}"));
        for what in wanted.iter().map(|what| (*what).to_owned()).chain(faults) {
            let n = counts.get(&what).copied().unwrap_or(0);
            assert!(n >= cases / 40, "`{what}` happened {n} times: {counts:?}");
        }
    }
}
