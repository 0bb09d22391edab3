//! The data beside the slots: verdicts, records of batches, exclusive values.

use dominoes::{BatchRecords, BegunBatch, ReadBatch, TryLock, Verdicts, WorkState, batch_records};
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicIsize, AtomicU64, Ordering},
    },
    thread,
};

/// Counts live values.
struct Counted(u64, Arc<AtomicIsize>);

impl Counted {
    fn new(number: u64, alive: &Arc<AtomicIsize>) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        Counted(number, alive.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        assert!(self.1.fetch_sub(1, Ordering::Relaxed) > 0, "dropped twice");
    }
}

#[test]
fn a_verdict_belongs_to_its_lap() {
    let verdicts = Verdicts::new(4);
    for lap in 0..5 {
        for slot in 0..4 {
            let seq = lap * 4 + slot;
            assert_eq!(verdicts.get(seq), None);
            verdicts.set(seq, seq * 3);
            verdicts.set(seq, seq * 3);
            assert_eq!(verdicts.get(seq), Some(seq * 3));
        }
    }
    assert!(catch_unwind(|| verdicts.set(20, 1 << 62)).is_err());
    assert!(catch_unwind(|| Verdicts::new(3)).is_err());
}

#[test]
fn a_verdict_is_found_out_by_one_at_a_time_and_by_another_if_that_one_gives_up() {
    let verdicts = Verdicts::new(2);
    for seq in 0..6 {
        let first = verdicts.begin(seq).unwrap();
        assert!(verdicts.begin(seq).is_none());
        assert_eq!(verdicts.get(seq), None);
        assert_eq!(
            seq.checked_sub(2).and_then(|old| verdicts.get(old)),
            seq.checked_sub(2).map(|_| 9)
        );
        let gave_up = catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _first = first;
            panic!("in the middle");
        }));
        assert!(gave_up.is_err());
        verdicts.begin(seq).unwrap().set(9);
        assert_eq!(verdicts.get(seq), Some(9));
        assert!(verdicts.begin(seq).is_none());
    }
}

#[test]
fn calling_wrongly_panics_and_breaks_nothing() {
    let alive = Arc::new(AtomicIsize::new(0));
    let (mut writer, shared) = batch_records::<Counted>(4);
    // Nothing was put yet.
    assert!(shared.read(0).is_none());
    assert_eq!(shared.begin(0).err(), Some(WorkState::Done));
    assert!(catch_unwind(AssertUnwindSafe(|| writer.put(0, Counted::new(0, &alive)))).is_err());
    assert!(writer.put(5, Counted::new(0, &alive)).is_err());
    assert!(writer.put(3, Counted::new(0, &alive)).is_ok());
    assert!(writer.put(2, Counted::new(3, &alive)).is_err());
    assert!(writer.put(1, Counted::new(3, &alive)).is_ok());
    // Positions within a batch, and of past and future laps.
    for seq in [1, 2, 4, 7, u64::MAX] {
        assert!(shared.read(seq).is_none() && shared.begin(seq).is_err());
        assert_eq!(shared.state(seq, 0), WorkState::Done);
    }
    let mut begun = shared.begin(0).unwrap();
    let beyond = BatchRecords::<Counted>::MAX_PIECES;
    assert!(catch_unwind(AssertUnwindSafe(|| begun.done_before(beyond))).is_err());
    begun.done_before(beyond - 1);
    begun.done_before(3);
    drop(begun);
    assert_eq!(shared.state(0, beyond - 2), WorkState::Done);
    assert_eq!(shared.state(0, beyond - 1), WorkState::Free);
    let readers: Vec<_> = (0..BatchRecords::<Counted>::MAX_READERS)
        .map(|_| shared.read(0).unwrap())
        .collect();
    assert!(catch_unwind(AssertUnwindSafe(|| shared.read(0).is_some())).is_err());
    assert!(shared.begin(0).unwrap().finish().is_none());
    assert!(shared.read(0).is_none(), "it is done");
    drop(readers);
    assert_eq!((alive.load(Ordering::Relaxed), writer.room()), (1, 3));
    drop((writer, shared));
    assert_eq!(alive.load(Ordering::Relaxed), 0);
    assert!(catch_unwind(|| batch_records::<u8>(3)).is_err());
}

#[test]
fn values_go_back_under_load_and_nobody_reads_one_that_went() {
    const SLOTS: usize = 64;
    const TOTAL: u64 = 40_000;
    let alive = Arc::new(AtomicIsize::new(0));
    let (mut writer, shared) = batch_records::<Counted>(SLOTS);
    let put = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..2u64)
        .map(|me| {
            let (shared, put) = (shared.clone(), put.clone());
            thread::spawn(move || {
                let mut back = 0;
                // Batches have 1 to 3 positions.
                let mut first = 0;
                for number in 0..TOTAL {
                    while put.load(Ordering::Acquire) <= number {
                        thread::yield_now();
                    }
                    let reading = shared.read(first);
                    let is_mine = number % 2 == me;
                    assert!(
                        reading.is_some() || !is_mine,
                        "what I have not done is gone"
                    );
                    if let Some(reading) = reading {
                        assert_eq!(reading.value().0, number);
                        back += u64::from(reading.release().is_some());
                    }
                    if is_mine {
                        let begun = shared.begin(first).unwrap();
                        assert_eq!(begun.value().0, number);
                        back += u64::from(begun.finish().is_some());
                    }
                    first += number % 3 + 1;
                }
                back
            })
        })
        .collect();
    for number in 0..TOTAL {
        let len = (number % 3 + 1) as usize;
        while writer.room() < len {
            thread::yield_now();
        }
        assert!(writer.put(len, Counted::new(number, &alive)).is_ok());
        put.store(number + 1, Ordering::Release);
    }
    let back: u64 = workers
        .into_iter()
        .map(|worker| worker.join().unwrap())
        .sum();
    assert_eq!((back, writer.room()), (TOTAL, SLOTS));
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn an_exclusive_is_released_by_a_panic_too() {
    let exclusive = TryLock::new(vec![1]);
    let failed = catch_unwind(AssertUnwindSafe(|| {
        let mut mine = exclusive.try_take().unwrap();
        mine.push(2);
        panic!("while I have it");
    }));
    assert!(failed.is_err() && !exclusive.is_taken());
    assert_eq!(exclusive.into_inner(), [1, 2]);
}

#[derive(Debug, Clone)]
enum Call {
    Put(usize),
    Read(usize),
    Release(usize),
    Begin(usize),
    Do(usize, u64),
    Stop(usize),
    Finish(usize),
}

/// A batch of the model.
struct Model {
    number: u64,
    len: u64,
    next: u64,
    is_begun: bool,
    is_done: bool,
    readers: u32,
}

impl Model {
    fn is_out(&self) -> bool {
        self.is_done && self.readers == 0
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Arbitrary calls compared with a map of the batches that are not done, or whose places are
    /// not free.
    #[test]
    fn records_of_batches_do_what_the_model_does(calls in prop::collection::vec(prop_oneof![
        6 => (1..4usize).prop_map(Call::Put),
        3 => (0..6usize).prop_map(Call::Read),
        3 => (0..3usize).prop_map(Call::Release),
        6 => (0..6usize).prop_map(Call::Begin),
        3 => (0..3usize, 0..9u64).prop_map(|(which, piece)| Call::Do(which, piece)),
        2 => (0..3usize).prop_map(Call::Stop),
        5 => (0..3usize).prop_map(Call::Finish),
    ], 1..120)) {
        const SLOTS: u64 = 8;
        let alive = Arc::new(AtomicIsize::new(0));
        let (mut writer, shared) = batch_records::<Counted>(SLOTS as usize);
        let mut model: BTreeMap<u64, Model> = BTreeMap::new();
        let mut next = 0;
        let mut reading: Vec<ReadBatch<'_, Counted>> = Vec::new();
        let mut begun: Vec<BegunBatch<'_, Counted>> = Vec::new();
        for (number, call) in (0..).zip(calls) {
            let nth = |at: usize| model.keys().nth(at).copied();
            match call {
                Call::Put(len) => {
                    while model.first_key_value().is_some_and(|(_, batch)| batch.is_out()) {
                        model.pop_first();
                    }
                    let done = model.first_key_value().map_or(next, |(first, _)| *first);
                    let room = SLOTS - (next - done);
                    assert_eq!((writer.room() as u64, writer.done()), (room, done));
                    let fits = len as u64 <= room;
                    let put = writer.put(len, Counted::new(number, &alive));
                    assert_eq!(put.ok(), fits.then_some(next));
                    if fits {
                        let (is_begun, is_done) = (false, false);
                        let len = len as u64;
                        model.insert(next, Model { number, len, next: 0, is_begun, is_done, readers: 0 });
                        next += len;
                    }
                }
                Call::Read(at) => {
                    let Some(first) = nth(at) else { continue };
                    let batch = model.get_mut(&first).unwrap();
                    let read = shared.read(first);
                    assert_eq!(read.as_ref().map(|read| read.value().0), (!batch.is_done).then_some(batch.number));
                    batch.readers += u32::from(read.is_some());
                    reading.extend(read);
                }
                Call::Release(at) if at < reading.len() => {
                    let read = reading.swap_remove(at);
                    let batch = model.get_mut(&read.first()).unwrap();
                    batch.readers -= 1;
                    assert_eq!(read.release().map(|value| value.0), batch.is_out().then_some(batch.number));
                }
                Call::Begin(at) => {
                    let Some(first) = nth(at) else { continue };
                    let batch = model.get_mut(&first).unwrap();
                    let state = match (batch.is_done, batch.is_begun) {
                        (true, _) => Some(WorkState::Done),
                        (_, true) => Some(WorkState::Begun),
                        _ => None,
                    };
                    let found = shared.begin(first);
                    assert_eq!(found.as_ref().err(), state.as_ref());
                    // Others see what is done when the batch is released.
                    for piece in (0..9).filter(|_| state != Some(WorkState::Begun)) {
                        let expected = if batch.is_done || piece < batch.next {
                            WorkState::Done
                        } else {
                            WorkState::Begun
                        };
                        assert_eq!(shared.state(first, piece), expected);
                    }
                    if let Ok(found) = found {
                        assert_eq!(found.value().0, batch.number);
                        batch.is_begun = true;
                        begun.push(found);
                    }
                }
                Call::Do(at, piece) if at < begun.len() => {
                    let batch = model.get_mut(&begun[at].first()).unwrap();
                    assert_eq!(begun[at].has_done(piece), piece < batch.next);
                    begun[at].done_before(piece);
                    batch.next = batch.next.max(piece);
                }
                Call::Stop(at) if at < begun.len() => {
                    let stopped = begun.swap_remove(at);
                    model.get_mut(&stopped.first()).unwrap().is_begun = false;
                }
                Call::Finish(at) if at < begun.len() => {
                    let finished = begun.swap_remove(at);
                    let batch = model.get_mut(&finished.first()).unwrap();
                    (batch.is_begun, batch.is_done) = (false, true);
                    assert_eq!(finished.finish().map(|value| value.0), batch.is_out().then_some(batch.number));
                }
                _ => {}
            }
            let kept = model.values().filter(|batch| !batch.is_out()).count();
            assert_eq!(alive.load(Ordering::Relaxed), kept as isize);
            assert!(model.values().map(|batch| batch.len).sum::<u64>() <= SLOTS);
        }
        drop((reading, begun, writer));
        drop(shared);
        assert_eq!(alive.load(Ordering::Relaxed), 0);
    }
}
