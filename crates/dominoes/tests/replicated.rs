//! Replicated state through its public interface. `src/replicated/linearizable.rs` checks random
//! histories.

use dominoes::replicated::{
    MapOp, Pieces, ReplicaStatus, Replicated, ReplicatedError, ReplicatedStats, StateMachine,
    WriteError,
};
use std::{
    collections::{BTreeMap, HashMap},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// What the next calls of the user's code do.
#[derive(Default)]
struct Faults {
    /// `apply` panics once.
    apply: AtomicBool,
    /// `clone` panics once.
    clone: AtomicBool,
    /// `apply` changes the sum by one too many, once.
    sum: AtomicBool,
}

/// A sum, and how many operations it is of.
#[derive(Default)]
struct Sum {
    sum: u64,
    count: u64,
    faults: Arc<Faults>,
}

impl Clone for Sum {
    fn clone(&self) -> Self {
        fail_if(&self.faults.clone);
        Sum {
            faults: self.faults.clone(),
            ..*self
        }
    }
}

/// An operation at which `apply` always panics.
const POISON: u64 = u64::MAX;

impl StateMachine for Sum {
    type Op = u64;
    type Answer = u64;

    fn apply(&mut self, n: &u64) -> u64 {
        self.sum = self.sum.wrapping_add(*n);
        fail_if(&self.faults.apply);
        if *n == POISON {
            fail();
        }
        self.sum += u64::from(self.faults.sum.swap(false, Ordering::Relaxed));
        self.count += 1;
        self.sum
    }
}

fn fail() -> ! {
    resume_unwind(Box::new("on purpose"));
}

fn fail_if(fault: &AtomicBool) {
    if fault.swap(false, Ordering::Relaxed) {
        fail();
    }
}

/// Replicas of a sum, and the faults of their code.
fn sums(replicas: usize, capacity: usize) -> (Replicated<Sum>, Arc<Faults>) {
    let state = Sum::default();
    let faults = state.faults.clone();
    let builder = Replicated::builder(state)
        .replicas(replicas)
        .slots(4)
        .capacity(capacity)
        .patience(Duration::ZERO);
    (builder.build().unwrap(), faults)
}

fn statuses(stats: &ReplicatedStats) -> Vec<ReplicaStatus> {
    stats.replicas.iter().map(|(status, _)| *status).collect()
}

#[test]
fn a_write_through_one_replica_is_read_through_another() {
    let (replicas, _) = sums(2, 8);
    let mut here = replicas.handle_on(0).unwrap();
    let mut there = replicas.handle_on(1).unwrap();
    assert_eq!((here.replica(), there.replica()), (0, 1));
    assert_eq!(here.write(1), Ok(1));
    assert_eq!(there.read_stale(|state| state.sum), Ok(0));
    assert_eq!(there.read(|state| state.sum), Ok(1));
    assert_eq!(there.read_stale(|state| state.sum), Ok(1));
    assert_eq!(there.write(2), Ok(3));
    assert_eq!(here.submit(3), Ok(2));
    assert_eq!(here.read_stale(|state| state.count), Ok(1));
    assert_eq!(here.read_at(1, |state| state.count >= 2), Ok(true));
    let position = 3;
    let early = Err(ReplicatedError::NotPublished { position });
    assert_eq!(here.read_at(position, |_| ()), early);
    assert_eq!(there.read(|state| (state.sum, state.count)), Ok((6, 3)));
    assert_eq!(replicas.stats().published, 3);
}

#[test]
fn a_full_log_is_applied_to_the_slowest_replica() {
    let (replicas, _) = sums(3, 4);
    let mut handle = replicas.handle_on(0).unwrap();
    for n in 1..=100 {
        assert_eq!(handle.write(1), Ok(n));
    }
    for n in 100..200 {
        assert_eq!(handle.submit(1), Ok(n));
    }
    let stats = replicas.stats();
    assert!(stats.helped > 50, "{stats:?}");
    assert!(
        stats.replicas[..3]
            .iter()
            .all(|(_, position)| *position >= 196)
    );
    assert_eq!(handle.read(|state| state.sum), Ok(200));
}

#[test]
fn a_reader_that_holds_up_the_log_is_named_and_the_operation_comes_back() {
    let (replicas, _) = sums(2, 4);
    let mut writer = replicas.handle_on(0).unwrap();
    let mut submitter = replicas.handle_on(0).unwrap();
    let mut reader = replicas.handle_on(1).unwrap();
    let why = ReplicatedError::Stalled { replica: 1 };
    let refused = |op| WriteError { op: Some(op), why };
    reader
        .read(|state| {
            for n in 1..=4 {
                assert_eq!(writer.write(1), Ok(n));
            }
            assert_eq!(writer.write(5), Err(refused(5)));
            assert_eq!(submitter.submit(6), Err(refused(6)));
            assert_eq!(submitter.read(|state| state.sum), Ok(4));
            assert_eq!(state.sum, 0);
        })
        .unwrap();
    assert_eq!(writer.write(1), Ok(5));
    assert_eq!(reader.read(|state| state.sum), Ok(5));
}

#[test]
fn a_replica_whose_apply_panics_takes_over_the_state_of_another() {
    let (replicas, faults) = sums(2, 8);
    let mut here = replicas.handle_on(0).unwrap();
    let mut there = replicas.handle_on(1).unwrap();
    assert_eq!(here.write(1), Ok(1));
    faults.apply.store(true, Ordering::Relaxed);
    let (replica, position) = (0, 1);
    let why = ReplicatedError::Panicked { replica, position };
    assert_eq!(here.write(2), Err(WriteError { op: None, why }));
    let stats = replicas.stats();
    assert_eq!(
        statuses(&stats)[..2],
        [ReplicaStatus::Poisoned, ReplicaStatus::Active]
    );
    // The operation stays in the log.
    assert_eq!(there.read(|state| state.sum), Ok(3));
    assert_eq!(here.read(|state| state.sum), Ok(3));
    // In the middle of a read that helps, and of a write that finds the other's operations.
    assert_eq!(there.write(3), Ok(6));
    faults.apply.store(true, Ordering::Relaxed);
    assert_eq!(here.read(|state| state.sum), Ok(6));
    let stats = replicas.stats();
    assert_eq!((stats.panicked, stats.repaired), (2, 2), "{stats:?}");
    assert_eq!(here.write(4), Ok(10));
}

#[test]
fn an_operation_at_which_every_replica_panics_ends_the_state() {
    let (replicas, _) = sums(2, 8);
    let mut handle = replicas.handle_on(0).unwrap();
    let why = ReplicatedError::Panicked {
        replica: 0,
        position: 0,
    };
    assert_eq!(handle.write(POISON), Err(WriteError { op: None, why }));
    let why = ReplicatedError::NoReplicaLeft;
    assert_eq!(handle.read(|state| state.sum), Err(why));
    assert_eq!(handle.read_stale(|state| state.sum), Err(why));
    assert_eq!(handle.write(1), Err(WriteError { op: Some(1), why }));
    assert_eq!(handle.submit(2), Err(WriteError { op: Some(2), why }));
    assert_eq!(replicas.join(), Err(why));
    assert_eq!(replicas.stats().panicked, 2);
}

#[test]
fn a_panic_in_a_read_unwinds_into_its_caller_and_holds_up_nobody() {
    let (replicas, _) = sums(1, 8);
    let mut handle = replicas.handle().unwrap();
    let read = catch_unwind(AssertUnwindSafe(|| handle.read(|_| fail())));
    assert!(read.is_err());
    assert_eq!(handle.write(1), Ok(1));
    assert_eq!(handle.read(|state| state.sum), Ok(1));
}

/// Counts operations whose destructor may panic.
#[derive(Clone, Default)]
struct Armed(u64);
struct Bomb(Arc<AtomicBool>);

impl Drop for Bomb {
    fn drop(&mut self) {
        fail_if(&self.0);
    }
}

impl StateMachine for Armed {
    type Op = Bomb;
    type Answer = u64;
    fn apply(&mut self, _: &Bomb) -> u64 {
        self.0 += 1;
        self.0
    }
}

#[test]
fn a_destructor_that_panics_leaves_working_replicas() {
    let builder = Replicated::builder(Armed::default());
    let replicas = builder.replicas(2).capacity(2).build().unwrap();
    let mut handle = replicas.handle_on(0).unwrap();
    let bomb = Arc::new(AtomicBool::new(false));
    let mut unwound = 0;
    for n in 0..20 {
        bomb.store(n % 5 == 4, Ordering::Relaxed);
        let write = catch_unwind(AssertUnwindSafe(|| handle.write(Bomb(bomb.clone()))));
        unwound += u64::from(write.is_err());
        bomb.store(false, Ordering::Relaxed);
    }
    let counted = handle.read(|state| state.0).unwrap();
    assert!(
        unwound > 0 && counted + unwound >= 20,
        "{unwound} {counted}"
    );
    assert_eq!(handle.write(Bomb(bomb)).unwrap(), counted + 1);
}

#[test]
fn replicas_join_with_the_state_and_leave_and_their_handles_move() {
    let (replicas, faults) = sums(1, 8);
    let mut handle = replicas.handle_on(0).unwrap();
    assert_eq!(handle.write(1), Ok(1));
    assert_eq!(replicas.leave(0), Err(ReplicatedError::LastReplica));
    assert_eq!(replicas.leave(3), Err(ReplicatedError::Left { replica: 3 }));
    assert_eq!(replicas.leave(9), Err(ReplicatedError::Left { replica: 9 }));
    assert_eq!(
        replicas.handle_on(1).unwrap_err(),
        ReplicatedError::Left { replica: 1 }
    );
    faults.clone.store(true, Ordering::Relaxed);
    assert_eq!(
        replicas.join(),
        Err(ReplicatedError::ClonePanicked { replica: 0 })
    );
    assert_eq!(replicas.join(), Ok(1));
    let mut joined = replicas.handle_on(1).unwrap();
    assert_eq!(joined.read_stale(|state| state.sum), Ok(1));
    assert_eq!(replicas.leave(0), Ok(()));
    assert_eq!(handle.write(1), Ok(2));
    assert_eq!((handle.replica(), joined.replica()), (1, 1));
    assert_eq!(replicas.join(), Ok(0));
    assert_eq!(replicas.leave(1), Ok(()));
    assert_eq!(joined.read(|state| state.sum), Ok(2));
    assert_eq!(joined.replica(), 0);
    for id in 1..4 {
        assert_eq!(replicas.join(), Ok(id));
    }
    assert_eq!(replicas.join(), Err(ReplicatedError::NoReplicaSlot));
}

#[test]
fn handles_are_limited_and_their_places_are_used_again() {
    let (replicas, _) = sums(2, 8);
    let handles: Vec<_> = (0..64).map(|_| replicas.handle_on(1).unwrap()).collect();
    let none = ReplicatedError::NoHandleLeft { replica: 1 };
    assert_eq!(replicas.handle_on(1).unwrap_err(), none);
    // The one with the fewest handles.
    assert_eq!(replicas.handle().unwrap().replica(), 0);
    drop(handles);
    assert!(replicas.handle_on(1).is_ok());
}

#[test]
fn settings_out_of_range_are_refused() {
    let builder = || Replicated::builder(BTreeMap::<u64, u64>::new());
    let refused = |builder: dominoes::replicated::ReplicatedBuilder<_>| match builder.build() {
        Err(ReplicatedError::OutOfRange { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(builder().replicas(0)), "replicas");
    for replicas in [61, usize::MAX] {
        assert_eq!(refused(builder().replicas(replicas)), "replicas");
    }
    assert_eq!(refused(builder().slots(61)), "slots");
    assert_eq!(refused(builder().capacity(0)), "capacity");
    assert_eq!(refused(builder().fingerprint(0, |_| 0)), "every");
    assert!(builder().per_core().build().is_ok());
}

#[test]
fn a_replica_that_differs_from_the_majority_is_replaced_before_it_is_read() {
    let watched = |replicas| {
        let state = Sum::default();
        let faults = state.faults.clone();
        let builder = Replicated::builder(state).replicas(replicas);
        let replicas = builder.fingerprint(4, |state| state.sum).build().unwrap();
        (replicas, faults)
    };
    let (replicas, faults) = watched(3);
    let mut handles: Vec<_> = (0..3).map(|id| replicas.handle_on(id).unwrap()).collect();
    faults.sum.store(true, Ordering::Relaxed);
    for n in 1..=4 {
        assert_eq!(handles[1].write(1), Ok(n + 1), "wrong, and not known to be");
    }
    assert_eq!(handles[0].read(|state| state.sum), Ok(4));
    assert_eq!(
        handles[1].read_stale(|state| state.sum),
        Ok(5),
        "two do not decide"
    );
    assert_eq!(handles[2].read(|state| state.sum), Ok(4));
    assert_eq!(handles[1].read_stale(|state| state.sum), Ok(4));
    let stats = replicas.stats();
    assert_eq!((stats.diverged, stats.repaired, stats.undecided), (1, 1, 0));

    let (replicas, faults) = watched(2);
    let mut handles: Vec<_> = (0..2).map(|id| replicas.handle_on(id).unwrap()).collect();
    faults.sum.store(true, Ordering::Relaxed);
    for n in 2..=5 {
        assert_eq!(handles[0].write(1), Ok(n));
    }
    assert_eq!(handles[1].read(|state| state.sum), Ok(4));
    let stats = replicas.stats();
    assert_eq!(
        (stats.diverged, stats.undecided),
        (0, 1),
        "two have no majority"
    );
}

#[test]
fn the_maps_of_the_standard_library_are_state() {
    let replicas = Replicated::builder(BTreeMap::new())
        .replicas(2)
        .build()
        .unwrap();
    let (mut here, mut there) = (
        replicas.handle_on(0).unwrap(),
        replicas.handle_on(1).unwrap(),
    );
    for key in [10, 20, 30] {
        assert_eq!(
            here.write(MapOp::Insert(key, key.to_string())).unwrap(),
            None
        );
    }
    let keys = |map: &BTreeMap<u64, String>| map.range(15..).map(|(key, _)| *key).collect();
    let found: Vec<u64> = there.read(keys).unwrap();
    assert_eq!(found, [20, 30]);
    assert_eq!(
        there.write(MapOp::Remove(20)).unwrap().as_deref(),
        Some("20")
    );
    assert_eq!(there.write(MapOp::Clear).unwrap(), None);
    assert_eq!(here.read(BTreeMap::len), Ok(0));

    let replicas = Replicated::new(HashMap::new()).unwrap();
    let mut handle = replicas.handle().unwrap();
    assert_eq!(handle.write(MapOp::Insert("a", 1)).unwrap(), None);
    assert_eq!(handle.write(MapOp::Insert("a", 2)).unwrap(), Some(1));
    assert_eq!(handle.read(|map| map["a"]), Ok(2));
}

/// Longer than a thread is without a core on a busy machine, after which a write is given up.
const LONG: Duration = Duration::from_secs(300);

/// Threads write and read while `change` changes the replicas. Every answer is one sum, and every
/// thread's reads and answers grow.
fn hammer(replicas: &Replicated<Sum>, threads: usize, writes: u64, mut change: impl FnMut(u64)) {
    let lost = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..threads)
        .map(|me| {
            let (replicas, lost) = (replicas.clone(), lost.clone());
            thread::spawn(move || {
                let mut handle = loop {
                    match replicas.handle_on(me % 2) {
                        Ok(handle) => break handle,
                        Err(_) => thread::yield_now(),
                    }
                };
                let (mut last, mut answers) = (0, Vec::new());
                for n in 0..writes {
                    match handle.write(1) {
                        Ok(sum) => {
                            assert!(sum > last, "{sum} after {last}");
                            answers.push(sum);
                            last = sum;
                        }
                        Err(error) => {
                            assert!(
                                matches!(error.why, ReplicatedError::Panicked { .. }),
                                "{error}"
                            );
                            assert_eq!(error.op, None);
                            lost.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    if n % 3 == 0 {
                        let sum = handle.read(|state| state.sum).unwrap();
                        assert!(sum >= last, "{sum} after {last}");
                        last = sum;
                    }
                    if n % 64 == 0 {
                        drop(handle);
                        handle = replicas.handle().unwrap();
                    }
                }
                answers
            })
        })
        .collect();
    let mut round = 0;
    while !writers.iter().all(|writer| writer.is_finished()) {
        change(round);
        round += 1;
    }
    let answers = writers
        .into_iter()
        .flat_map(|writer| writer.join().unwrap());
    let mut answers: Vec<u64> = answers.collect();
    let all = threads as u64 * writes;
    answers.sort_unstable();
    answers.dedup();
    assert_eq!(answers.len() as u64 + lost.load(Ordering::Relaxed), all);
    assert_eq!(replicas.handle().unwrap().read(|state| state.sum), Ok(all));
}

#[test]
fn threads_write_and_read_through_one_and_two_replicas() {
    for (replicas, capacity) in [(1, 2), (1, 64), (2, 2), (2, 64)] {
        let state = Sum::default();
        let builder = Replicated::builder(state).replicas(replicas).slots(2);
        let replicas = builder.capacity(capacity).patience(LONG).build().unwrap();
        if replicas.stats().replicas[1].0 == ReplicaStatus::Absent {
            replicas.join().unwrap();
            replicas.leave(0).unwrap();
            replicas.join().unwrap();
        }
        hammer(&replicas, 4, 1_500, |_| thread::yield_now());
    }
}

#[test]
fn threads_write_and_read_while_replicas_fail_join_and_leave() {
    let state = Sum::default();
    let faults = state.faults.clone();
    let builder = Replicated::builder(state).replicas(3).slots(4);
    let replicas = builder.capacity(16).fingerprint(32, |state| state.sum);
    let replicas = replicas.patience(LONG);
    let replicas = replicas.build().unwrap();
    hammer(&replicas, 4, 1_500, |round| {
        let stats = replicas.stats();
        let active = statuses(&stats)
            .iter()
            .filter(|it| **it == ReplicaStatus::Active)
            .count();
        match round % 3 {
            0 if active >= 3 && !faults.apply.load(Ordering::Relaxed) => {
                faults.apply.store(true, Ordering::Relaxed);
            }
            1 if active >= 3 => drop(replicas.leave(round as usize % 4)),
            _ => drop(replicas.join()),
        }
        thread::sleep(Duration::from_micros(200));
    });
    let stats = replicas.stats();
    println!("{stats:?}");
    assert_eq!((stats.diverged, stats.undecided), (0, 0));
}

/// Called as each piece is copied, and for each operation that the copy takes in.
type Hook = Arc<Mutex<Box<dyn FnMut(&'static str) + Send>>>;

/// Numbers that are copied one at a time.
#[derive(Clone)]
struct Tiles([u64; 3], Hook);

impl StateMachine for Tiles {
    type Op = (usize, u64);
    type Answer = u64;
    fn apply(&mut self, (tile, n): &(usize, u64)) -> u64 {
        self.0[*tile] = self.0[*tile] * 10 + n;
        self.0[*tile]
    }
    fn pieces<'a>(&self) -> Option<Box<dyn Pieces<Self> + 'a>>
    where
        Self: 'a,
    {
        let copied = Vec::new();
        Some(Box::new(FirstTiles(copied, self.1.clone())))
    }
}

struct FirstTiles(Vec<u64>, Hook);

impl Pieces<Tiles> for FirstTiles {
    fn copy(&mut self, state: &Tiles) -> bool {
        self.0.push(state.0[self.0.len()]);
        self.1.lock().unwrap()("a piece");
        self.0.len() == state.0.len()
    }
    fn apply(&mut self, (tile, n): &(usize, u64)) {
        if let Some(tile) = self.0.get_mut(*tile) {
            *tile = *tile * 10 + n;
        }
        self.1.lock().unwrap()("an operation");
    }
    fn finish(self: Box<Self>) -> Tiles {
        Tiles([self.0[0], self.0[1], self.0[2]], self.1)
    }
}

#[test]
fn while_a_replica_is_copied_in_pieces_all_others_are_written() {
    let hook: Hook = Arc::new(Mutex::new(Box::new(|_| ())));
    let builder = Replicated::builder(Tiles([1, 2, 3], hook.clone()));
    let replicas = builder.replicas(2).slots(3).capacity(4).build().unwrap();
    let mut source = replicas.handle_on(0).unwrap();
    let mut other = replicas.handle_on(1).unwrap();
    let (mut pieces, mut operations) = (0, 0);
    *hook.lock().unwrap() = Box::new(move |at| match at {
        "a piece" => {
            pieces += 1;
            // This one, the previous one, and the next one.
            for tile in 0..3 {
                other.write((tile, pieces)).unwrap();
            }
            assert!(source.read_stale(|state| state.0[2]).is_ok());
        }
        _ => {
            operations += 1;
            // The first after each piece: no thread has the source or awaits it.
            if [1, 5].contains(&operations) {
                source.write((1, 9)).unwrap();
            }
        }
    });
    assert_eq!(replicas.join(), Ok(2));
    *hook.lock().unwrap() = Box::new(|_| ());
    let mut joined = replicas.handle_on(2).unwrap();
    let mut first = replicas.handle_on(0).unwrap();
    let expected = [1_123, 219_293, 3_123];
    assert_eq!(joined.read(|state| state.0), Ok(expected));
    assert_eq!(first.read(|state| state.0), Ok(expected));

    // A panic ends the join and nothing else.
    replicas.leave(2).unwrap();
    *hook.lock().unwrap() = Box::new(|_| fail());
    let join = replicas.join();
    assert!(matches!(join, Err(ReplicatedError::ClonePanicked { .. })));
    assert_eq!(first.write((0, 4)), Ok(11_234));
}

/// Joins a replica to a map with this many entries of 64 bytes, while two threads write to it.
/// Returns how long that took, and how long the longest write.
fn join_large(entries: u64) -> (Duration, Duration) {
    let map: BTreeMap<u64, [u64; 7]> = (0..entries).map(|key| (2 * key, [key; 7])).collect();
    let replicas = Replicated::builder(map).replicas(2).slots(3);
    let replicas = replicas.patience(LONG).build().unwrap();
    let (ends, begun) = (AtomicBool::new(false), AtomicU64::new(0));
    let (took, longest) = thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|replica| {
                let (mut handle, ends, begun) =
                    (replicas.handle_on(replica).unwrap(), &ends, &begun);
                scope.spawn(move || {
                    let (mut x, mut longest) = (1 + replica as u64, Duration::ZERO);
                    while !ends.load(Ordering::Relaxed) {
                        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                        let key = (x >> 32) % (2 * entries);
                        let op = match x >> 20 & 3 {
                            0 => MapOp::Remove(key),
                            _ => MapOp::Insert(key, [x; 7]),
                        };
                        let begin = Instant::now();
                        handle.write(op).unwrap();
                        longest = longest.max(begin.elapsed());
                        begun.fetch_add(1, Ordering::Relaxed);
                    }
                    longest
                })
            })
            .collect();
        while begun.load(Ordering::Relaxed) < 100 {
            thread::yield_now();
        }
        let begin = Instant::now();
        assert_eq!(replicas.join(), Ok(2));
        let took = begin.elapsed();
        ends.store(true, Ordering::Relaxed);
        let longest = writers.into_iter().map(|writer| writer.join().unwrap());
        (took, longest.max().unwrap())
    });
    let mut joined = replicas.handle_on(2).unwrap();
    let mut source = replicas.handle_on(0).unwrap();
    let is_equal = joined.read(|joined| source.read(|source| joined == source));
    assert_eq!(is_equal, Ok(Ok(true)));
    (took, longest)
}

#[test]
fn a_large_map_is_copied_in_pieces_while_two_threads_write() {
    let (took, longest) = join_large(400_000);
    println!("400,000 entries: joined in {took:?}, longest write {longest:?}");
}

/// A gigabyte in each of three replicas.
#[test]
#[ignore = "needs 4 GB and half a minute"]
fn a_gigabyte_is_copied_in_pieces_while_two_threads_write() {
    let (took, longest) = join_large(12_000_000);
    println!("12,000,000 entries: joined in {took:?}, longest write {longest:?}");
}
