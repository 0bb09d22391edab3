//! [`check`]: whether replicas of any state stay equal, by random operations and faults.

use crate::{
    Group, Seq, Turn,
    group::{GroupByHand, GroupWorker, WorkerState},
};
use proptest::{
    collection::vec,
    prelude::{Just, Strategy, any, prop_oneof},
    test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner},
};
use std::{
    error::Error,
    fmt,
    panic::resume_unwind,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The most operations of a case, and the most events of its schedule.
const MOST: (usize, usize) = (64, 96);
/// Rounds in which every worker finishes.
const ROUNDS: usize = 10_000;
/// Time without progress after which the workers of a case perform each other's effects.
const PATIENCE: Duration = Duration::from_millis(1);

/// The faults that [`check`] may plant, beside any interleaving of the replicas' steps.
#[derive(Clone, Debug)]
pub struct CheckFaults<S> {
    replicas: usize,
    kills: bool,
    joins: bool,
    delays: bool,
    flips: Option<Flips<S>>,
}

/// How to change a state, and how to find out.
type Flips<S> = (fn(&mut S, u64), fn(&S) -> u64);

impl<S> CheckFaults<S> {
    /// None: three replicas apply the operations in steps of any size.
    pub fn none() -> Self {
        CheckFaults {
            replicas: 3,
            kills: false,
            joins: false,
            delays: false,
            flips: None,
        }
    }

    /// Kills, joins and delays. A replica is killed between two operations, or directly after one,
    /// before it has reported it. A joining replica gets a clone of another one's state. A delay
    /// lets at least a millisecond pass, at most once in a case.
    pub fn all() -> Self {
        CheckFaults {
            kills: true,
            joins: true,
            delays: true,
            ..CheckFaults::none()
        }
    }

    /// Also changes the state of a replica, as a faulty memory would: `flip` changes the state
    /// according to a random number. The group must find that by `fingerprint`, and replace the
    /// state by a copy from the majority.
    pub fn flips(mut self, flip: fn(&mut S, u64), fingerprint: fn(&S) -> u64) -> Self {
        self.flips = Some((flip, fingerprint));
        self
    }

    /// This many replicas at the start, 2 to 50, instead of 3. Flips need three of them.
    ///
    /// # Panics
    /// If it is out of this range.
    pub fn replicas(mut self, replicas: usize) -> Self {
        assert!((2..=50).contains(&replicas), "2 to 50 replicas");
        self.replicas = replicas;
        self
    }
}

/// An event of a schedule. Workers are counted modulo their number.
#[derive(Clone, Debug)]
enum Event {
    /// Publishes the next operations.
    Publish(usize),
    /// A worker applies this many operations, at most.
    Step(usize, usize),
    /// A worker dies, `true`: when it has applied another operation.
    Kill(usize, bool),
    Join,
    /// A worker's state changes, according to this number.
    Flip(usize, u64),
    Delay,
}

fn events() -> impl Strategy<Value = Event> {
    let worker = || 0..8usize;
    prop_oneof![
        6 => (1..6usize).prop_map(Event::Publish),
        16 => (worker(), 1..6usize).prop_map(|(worker, most)| Event::Step(worker, most)),
        2 => (worker(), any::<bool>()).prop_map(|(worker, within)| Event::Kill(worker, within)),
        2 => Just(Event::Join),
        1 => (worker(), any::<u64>()).prop_map(|(worker, bits)| Event::Flip(worker, bits)),
        1 => Just(Event::Delay),
    ]
}

/// The shortest case that was found in which replicas differ.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CheckError<O> {
    /// The operations, in the order of the log.
    pub operations: Vec<O>,
    /// Which replica differs from the one replica, at which position, and how.
    pub difference: String,
    /// What happened between the operations.
    pub schedule: String,
}

impl<O: fmt::Debug> fmt::Display for CheckError<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (difference, schedule) = (&self.difference, &self.schedule);
        write!(f, "{difference}\noperations: {:?}\n", self.operations)?;
        write!(f, "schedule: {schedule}")
    }
}

impl<O: fmt::Debug> Error for CheckError<O> {}

/// Checks that `apply` is deterministic and that replicas of `S` stay equal, for `apply` of a
/// [`Group`] or of a [`StateMachine`](crate::StateMachine).
///
/// A case is up to 64 operations and a schedule. One replica applies the operations first. Then the
/// replicas of a group apply them, in steps of any size, with `faults` between and within the
/// steps. At every position, answer and state must equal those of the one replica. Each step runs
/// on another thread, and every replica begins with its own `S::default()`. So the check finds an
/// `apply` that depends on a clock, the order of a `HashMap`, a thread, an address or a random
/// number, and a `clone` that shares memory. If a case fails, shorter ones are tried.
///
/// Every run has the same cases. Their number is `PROPTEST_CASES`, 256 unless set.
///
/// ```
/// use dominoes::{CheckFaults, StateMachine, check};
/// use proptest::prelude::*;
/// use std::collections::HashMap;
///
/// #[derive(Clone, Debug, Default, PartialEq)]
/// struct Counters(HashMap<u8, u64>);
///
/// impl StateMachine for Counters {
///     type Op = (u8, u64);
///     type Answer = Option<u8>;
///     /// Answers with the name of the largest count; of equal ones, with the first name.
///     fn apply(&mut self, (name, amount): &(u8, u64)) -> Option<u8> {
///         *self.0.entry(*name).or_default() += amount;
///         self.0.iter().max_by_key(|(name, count)| (**count, u8::MAX - **name)).map(|(name, _)| *name)
///     }
/// }
///
/// let operations = (0..8u8, 0..3u64);
/// let apply = |counters: &mut Counters, _seq, op: &(u8, u64)| counters.apply(op);
/// check(operations.clone(), apply, CheckFaults::all())?;
///
/// // Without the rule for equal counts, the answer depends on the order of the map.
/// let apply = |counters: &mut Counters, _seq, op: &(u8, u64)| {
///     counters.apply(op);
///     counters.0.iter().max_by_key(|(_, count)| **count).map(|(name, _)| *name)
/// };
/// let error = check(operations, apply, CheckFaults::all()).unwrap_err();
/// assert!(error.operations.len() >= 2); // with one name, the order does not matter
/// # Ok::<(), dominoes::CheckError<(u8, u64)>>(())
/// ```
///
/// # Errors
/// The shortest case found in which a replica differs, or `apply` panics.
///
/// # Panics
/// If `operations` has no values.
pub fn check<S, O, A>(
    operations: impl Strategy<Value = O>,
    apply: impl Fn(&mut S, Seq, &O) -> A + Sync,
    faults: CheckFaults<S>,
) -> Result<(), CheckError<O>>
where
    S: Clone + Default + PartialEq + fmt::Debug + Send + Sync + 'static,
    O: fmt::Debug + Sync,
    A: PartialEq + fmt::Debug + Sync,
{
    let config = Config {
        failure_persistence: None,
        ..Config::default()
    };
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let cases = (vec(operations, 1..=MOST.0), vec(events(), 0..=MOST.1));
    let result = TestRunner::new_with_rng(config, random).run(&cases, |(operations, schedule)| {
        case(&operations, &schedule, &apply, &faults).map_err(TestCaseError::fail)
    });
    match result {
        Ok(()) => Ok(()),
        Err(TestError::Fail(why, (operations, schedule))) => Err(CheckError {
            operations,
            difference: why.message().to_owned(),
            schedule: format!("{schedule:?}"),
        }),
        Err(TestError::Abort(why)) => panic!("no operations: {why}"),
    }
}

/// An effect that does nothing.
type Perform = fn((), Seq);
type Worker<S, F> = GroupWorker<S, (), (), F, Perform>;

/// A group of a case, and its workers.
struct Case<'a, S: Send + Sync, F: Fn(&mut S, Seq, &())> {
    group: GroupByHand<S, (), (), F, Perform>,
    workers: Vec<Option<Worker<S, F>>>,
    now: Instant,
    flipped: Option<usize>,
    watch: &'a Watch,
}

/// Shared by the steps of workers and the case.
#[derive(Default)]
struct Watch {
    /// The worker dies when it has applied an operation.
    dies: AtomicBool,
    /// The worker's state was changed, and has not been equal to the right one since.
    flipped: AtomicBool,
    difference: Mutex<Option<String>>,
}

impl Watch {
    fn report(&self, difference: String) {
        let mut first = self
            .difference
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(difference);
    }
}

/// The payload of a planted panic.
struct Killed;

fn case<S, O, A>(
    operations: &[O],
    schedule: &[Event],
    apply: &(impl Fn(&mut S, Seq, &O) -> A + Sync),
    faults: &CheckFaults<S>,
) -> Result<(), String>
where
    S: Clone + Default + PartialEq + fmt::Debug + Send + Sync + 'static,
    O: fmt::Debug + Sync,
    A: PartialEq + fmt::Debug + Sync,
{
    let mut state = S::default();
    let one = (0..).zip(operations).map(|(seq, operation)| {
        let answer = apply(&mut state, seq, operation);
        (state.clone(), answer)
    });
    let right: Vec<(S, A)> = one.collect();
    let watch = Watch::default();
    let compared = |state: &mut S, seq: Seq, _: &()| {
        let operation = &operations[seq as usize];
        let answer = apply(state, seq, operation);
        let (right_state, right_answer) = &right[seq as usize];
        let is_flipped = watch.flipped.load(Ordering::Relaxed);
        let at = || format!("after {operation:?} at position {seq}");
        if state == right_state {
            watch.flipped.store(false, Ordering::Relaxed);
        } else if !is_flipped {
            watch.report(format!("{}: {state:?}, not {right_state:?}", at()));
        }
        if answer != *right_answer && !is_flipped {
            watch.report(format!("{}: answer {answer:?}, not {right_answer:?}", at()));
        }
        if watch.dies.swap(false, Ordering::Relaxed) {
            resume_unwind(Box::new(Killed));
        }
    };
    let mut settings = Group::builder(S::default(), faults.replicas)
        .slots(faults.replicas + 2)
        .capacity(operations.len().max(4))
        .chunk(4)
        .patience(PATIENCE);
    if let Some((_, fingerprint)) = faults.flips {
        settings = settings.fingerprint(1, fingerprint);
    }
    let perform: Perform = |(), _| {};
    let mut group = settings
        .by_hand(compared, perform)
        .map_err(|error| error.to_string())?;
    let workers = group.workers.drain(..).map(Some).collect();
    let mut case = Case {
        group,
        workers,
        now: Instant::now(),
        flipped: None,
        watch: &watch,
    };
    for worker in case.workers.iter_mut().flatten() {
        if let Some(state) = worker.state_mut() {
            *state = S::default();
        }
    }
    case.play(schedule, operations.len(), faults)?;
    for worker in case.workers.iter().flatten() {
        let found = worker.state();
        let last = right.last().map(|(state, _)| state);
        if found.is_some() && found != last {
            let id = worker.id();
            return Err(match case.flipped {
                Some(_) => format!("the fingerprint does not show that replica {id} was changed"),
                None => format!("at the end: replica {id} is {found:?}, not {last:?}"),
            });
        }
    }
    Ok(())
}

impl<S, F> Case<'_, S, F>
where
    S: Clone + PartialEq + Send + Sync,
    F: Fn(&mut S, Seq, &()) + Send + Sync,
{
    fn play(
        &mut self,
        schedule: &[Event],
        all: usize,
        faults: &CheckFaults<S>,
    ) -> Result<(), String> {
        let mut publisher = self.group.handle().publisher();
        let mut left = all;
        let mut publish = |most: usize| {
            let n = most.min(left);
            left -= n;
            let published = publisher.try_publish_all(std::iter::repeat_n((), n));
            published.expect("the log has room for all operations");
            left
        };
        let mut delays = faults.delays;
        for event in schedule {
            match *event {
                Event::Publish(most) => drop(publish(most)),
                Event::Step(at, most) => drop(self.step(at, most)?),
                Event::Kill(at, within) if faults.kills && self.may_lose_one() => {
                    self.kill(at, within)?;
                }
                Event::Join if faults.joins && self.flipped.is_none() => {
                    // It is refused if no slot is free.
                    self.workers.extend(self.group.join().ok().map(Some));
                }
                Event::Flip(at, bits) if publish(0) > 0 => self.flip(at, bits, faults),
                Event::Delay if std::mem::take(&mut delays) => {
                    thread::sleep(PATIENCE);
                    self.now += 2 * PATIENCE;
                }
                _ => {}
            }
        }
        publish(all);
        drop(publisher);
        // A state that was changed is replaced before the log is closed.
        let mut rounds = 0..ROUNDS;
        while rounds.next().is_some() && self.round()?.0 {}
        self.group.handle().close();
        match rounds.any(|_| self.round().is_ok_and(|(_, finished)| finished)) {
            true => self.result(),
            false => Err("the replicas do not finish".to_owned()),
        }
    }

    /// Steps every worker. Returns whether one did something, and whether all have finished.
    fn round(&mut self) -> Result<(bool, bool), String> {
        self.now += PATIENCE;
        let (mut worked, mut finished) = (false, true);
        for at in 0..self.workers.len() {
            let turn = self.step(at, usize::MAX)?;
            worked |= turn == Turn::Worked;
            finished &= turn == Turn::Finished;
        }
        Ok((worked, finished))
    }

    fn result(&self) -> Result<(), String> {
        let mut found = self
            .watch
            .difference
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        found.take().map_or(Ok(()), Err)
    }

    /// Steps a worker, on a thread of this step.
    fn step(&mut self, at: usize, most: usize) -> Result<Turn, String> {
        let at = at % self.workers.len();
        let Some(worker) = &mut self.workers[at] else {
            return Ok(Turn::Finished);
        };
        let is_flipped = self.flipped == Some(at);
        self.watch.flipped.store(is_flipped, Ordering::Relaxed);
        let now = self.now;
        let turn = thread::scope(|scope| {
            scope
                .spawn(|| worker.step(now, most.min(64), usize::MAX))
                .join()
        });
        let is_right = !self.watch.flipped.load(Ordering::Relaxed);
        if is_flipped && (is_right || worker.state().is_none()) {
            self.flipped = None;
        }
        let turn = match turn {
            Ok(turn) => turn,
            Err(payload) if payload.is::<Killed>() || is_flipped => {
                self.flipped = self.flipped.filter(|flipped| *flipped != at);
                self.workers[at] = None;
                Turn::Finished
            }
            Err(_) => return Err("`apply` panics, and does not in the one replica".to_owned()),
        };
        self.result().map(|()| turn)
    }

    fn active(&self) -> usize {
        let workers = self.workers.iter().flatten();
        workers
            .filter(|worker| worker.worker_state() == WorkerState::Active)
            .count()
    }

    /// Whether another replica has the state, and no state is known to be wrong.
    fn may_lose_one(&self) -> bool {
        self.flipped.is_none() && self.active() >= 2
    }

    fn kill(&mut self, at: usize, within: bool) -> Result<(), String> {
        if within {
            self.watch.dies.store(true, Ordering::Relaxed);
            self.step(at, 1)?;
            self.watch.dies.store(false, Ordering::Relaxed);
        } else {
            let at = at % self.workers.len();
            self.workers[at] = None;
        }
        Ok(())
    }

    /// Changes a state, if all others are active, so that they are the majority.
    fn flip(&mut self, at: usize, bits: u64, faults: &CheckFaults<S>) {
        let Some((flip, _)) = faults.flips else {
            return;
        };
        let all = self.workers.iter().flatten().count();
        if self.flipped.is_some() || all < 3 || self.active() < all {
            return;
        }
        let at = at % self.workers.len();
        if let Some(state) = self.workers[at].as_mut().and_then(GroupWorker::state_mut) {
            let before = state.clone();
            flip(state, bits);
            self.flipped = (*state != before).then_some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        collections::{BTreeMap, HashMap},
        sync::Arc,
        time::SystemTime,
    };

    #[derive(Clone, Debug, Default, PartialEq)]
    struct Chain {
        last: u64,
        sum: u64,
    }

    fn apply(chain: &mut Chain, seq: Seq, n: &u8) -> u64 {
        chain.last = (chain.last ^ u64::from(*n) ^ seq).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        chain.sum += u64::from(*n);
        chain.last >> 32
    }

    fn flip(chain: &mut Chain, bits: u64) {
        match bits % 2 {
            0 => chain.last ^= 1 << (bits >> 8 & 63),
            _ => chain.sum ^= 1 << (bits >> 8 & 31),
        }
    }

    fn found<S, A>(apply: impl Fn(&mut S, Seq, &u8) -> A + Sync) -> CheckError<u8>
    where
        S: Clone + Default + PartialEq + fmt::Debug + Send + Sync + 'static,
        A: PartialEq + fmt::Debug + Sync,
    {
        let error = check(any::<u8>(), apply, CheckFaults::all()).unwrap_err();
        println!("{error}");
        error
    }

    #[test]
    fn replicas_of_a_deterministic_state_agree_under_all_faults() {
        let faults = CheckFaults::all().flips(flip, |chain: &Chain| chain.last ^ chain.sum << 7);
        check(any::<u8>(), apply, faults).unwrap();
        check(any::<u8>(), apply, CheckFaults::<Chain>::none().replicas(2)).unwrap();
    }

    #[test]
    fn replicated_maps_agree_under_all_faults() {
        use crate::{StateMachine, replicated::MapOp};
        let operations = prop_oneof![
            8 => (0..9u8, any::<u8>()).prop_map(|(key, value)| MapOp::Insert(key, value)),
            3 => (0..9u8).prop_map(MapOp::Remove),
            1 => Just(MapOp::Clear),
        ];
        type Op = MapOp<u8, u8>;
        let apply = |map: &mut HashMap<u8, u8>, _, op: &Op| map.apply(op);
        check(operations.clone(), apply, CheckFaults::all()).unwrap();
        let apply = |map: &mut BTreeMap<u8, u8>, _, op: &Op| map.apply(op);
        check(operations, apply, CheckFaults::all()).unwrap();
    }

    #[test]
    fn an_apply_that_reads_a_clock_is_found() {
        let error = found(|last: &mut Option<SystemTime>, _, _| *last = Some(SystemTime::now()));
        assert_eq!(error.operations.len(), 1);
        // Milliseconds differ after a delay only.
        let begin = Instant::now();
        found(move |last: &mut u128, _, _| *last = begin.elapsed().as_millis());
    }

    #[test]
    fn an_apply_that_depends_on_the_order_of_a_hash_map_is_found() {
        let error = found(|map: &mut HashMap<u8, u8>, _, n| {
            map.insert(*n, 1);
            map.keys().next().copied()
        });
        assert!(error.operations.len() >= 2, "{error}");
        // A map for each operation: the state does not show its order.
        found(|sum: &mut u64, _, n| {
            let map: HashMap<u8, u64> = (0..9).map(|key| (key, 1 << key)).collect();
            *sum += map
                .values()
                .zip(1..=*n)
                .map(|(value, _)| value)
                .sum::<u64>();
        });
    }

    #[test]
    fn an_apply_that_reads_the_id_of_its_thread_is_found() {
        let error = found(|id: &mut String, _, _| *id = format!("{:?}", thread::current().id()));
        assert_eq!(error.operations.len(), 1);
        assert!(error.difference.starts_with("after"), "{error}");
    }

    #[test]
    fn an_answer_that_differs_is_found_though_the_states_agree() {
        let error = found(|(): &mut (), _, _| thread::current().id());
        assert!(error.difference.contains("answer"), "{error}");
    }

    #[test]
    fn a_clone_that_shares_memory_is_found() {
        #[derive(Clone, Debug, Default)]
        struct Shared(Arc<Mutex<u64>>);
        impl PartialEq for Shared {
            fn eq(&self, _: &Shared) -> bool {
                true
            }
        }
        let error = found(|shared: &mut Shared, _, _| {
            let mut count = shared.0.lock().unwrap();
            *count += 1;
            *count
        });
        assert!(error.schedule.contains("Join"), "{error}");
    }

    #[test]
    fn a_fingerprint_that_omits_a_field_is_found() {
        let faults = CheckFaults::all().flips(flip, |chain: &Chain| chain.last);
        let error = check(any::<u8>(), apply, faults).unwrap_err();
        println!("{error}");
        assert!(error.difference.contains("fingerprint"), "{error}");
    }

    #[test]
    fn an_apply_that_panics_is_found() {
        let error = found(|map: &mut BTreeMap<u8, u8>, seq, n| {
            assert!(map.insert(*n, seq as u8).is_none(), "it is there already");
        });
        assert_eq!(error.operations.len(), 2);
    }
}
