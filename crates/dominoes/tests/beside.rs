//! The data beside the slots: verdicts, attachments with their pins, exclusive values,
//! fingerprints.
#![cfg(not(loom))]

use dominoes::{Exclusive, Pin, Verdicts, attachments};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
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
    let (mut stocker, frames) = attachments::<Counted>(4, 2);
    // Out of order, and a lap too early.
    assert!(catch_unwind(AssertUnwindSafe(|| stocker.put(1, Counted::new(1, &alive)))).is_err());
    for seq in 0..4 {
        assert!(stocker.put(seq, Counted::new(seq, &alive)).is_ok());
    }
    assert!(stocker.put(4, Counted::new(4, &alive)).is_err());
    assert_eq!(alive.load(Ordering::Relaxed), 4);
    // More done than the chunk has, in one step and in two.
    assert!(catch_unwind(AssertUnwindSafe(|| frames.done(0, 3))).is_err());
    frames.done(0, 1);
    assert!(catch_unwind(AssertUnwindSafe(|| frames.done(1, 2))).is_err());
    assert_eq!(frames.done_count(0), Some(1));
    // Positions of past and future laps.
    assert!(frames.pin(4).is_none());
    assert!(frames.pin(u64::MAX).is_none());
    assert!(catch_unwind(AssertUnwindSafe(|| frames.done(8, 1))).is_err());
    // Reported done before it is stocked: taken back only after stocking.
    frames.done(1, 1);
    assert!(stocker.reclaim(&mut |_, _| {}));
    assert!(!stocker.reclaim(&mut |_, _| {}));
    frames.done(4, 2);
    assert!(frames.pin(5).unwrap().get(5).is_none());
    frames.done(2, 2);
    assert!(stocker.reclaim(&mut |_, _| {}));
    assert!(!stocker.reclaim(&mut |_, _| {}), "nothing is stocked there");
    // Work reported after the chunk was taken back is a divergence.
    assert!(catch_unwind(AssertUnwindSafe(|| frames.done(0, 1))).is_err());
    assert!(stocker.put(4, Counted::new(4, &alive)).is_ok());
    drop((stocker, frames));
    assert_eq!(alive.load(Ordering::Relaxed), 0);
    assert!(catch_unwind(|| attachments::<u8>(4, 8)).is_err());
}

#[test]
fn a_receiver_that_panics_gets_the_rest_next_time() {
    let alive = Arc::new(AtomicIsize::new(0));
    let (mut stocker, frames) = attachments::<Counted>(4, 4);
    for seq in 0..4 {
        assert!(stocker.put(seq, Counted::new(seq, &alive)).is_ok());
    }
    frames.done(3, 4);
    let mut seen = Vec::new();
    let failed = catch_unwind(AssertUnwindSafe(|| {
        stocker.reclaim(&mut |seq, _| {
            assert!(seq < 2, "enough");
            seen.push(seq);
        })
    }));
    assert!(failed.is_err());
    assert_eq!(alive.load(Ordering::Relaxed), 1);
    assert!(frames.pin(3).is_none() && !stocker.can_put(4));
    assert!(stocker.reclaim(&mut |seq, _| seen.push(seq)));
    assert_eq!(seen, [0, 1, 3]);
    assert!(stocker.can_put(4));
}

#[test]
fn values_taken_out_go_once_even_if_their_receiver_panics() {
    let alive = Arc::new(AtomicIsize::new(0));
    let (mut stocker, frames) = attachments::<Counted>(4, 2);
    for seq in 0..4 {
        assert!(stocker.put(seq, Counted::new(seq, &alive)).is_ok());
    }
    assert_eq!(frames.done(2, 2), 2);
    let failed = catch_unwind(AssertUnwindSafe(|| {
        frames.take_out(3, &mut |_, _| panic!("not now"))
    }));
    assert!(failed.is_err());
    assert_eq!(alive.load(Ordering::Relaxed), 2);
    assert!(frames.pin(2).is_none() && !frames.take_out(2, &mut |_, _| unreachable!()));
    // The first chunk must be reclaimed first.
    assert!(!stocker.reclaim(&mut |_, _| unreachable!()));
    drop((stocker, frames));
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn frames_go_back_under_load_and_nobody_reads_one_that_went() {
    const SLOTS: u64 = 64;
    const TOTAL: u64 = 40_000;
    let alive = Arc::new(AtomicIsize::new(0));
    let (mut stocker, frames) = attachments::<Counted>(SLOTS as usize, 16);
    let stocked = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..2u64)
        .map(|me| {
            let (frames, stocked) = (frames.clone(), stocked.clone());
            thread::spawn(move || {
                let mut missed = 0;
                for seq in 0..TOTAL {
                    while stocked.load(Ordering::Acquire) <= seq {
                        thread::yield_now();
                    }
                    let mine = seq % 2 == me;
                    match frames.pin(seq) {
                        Some(pin) => assert_eq!(pin.get(seq).unwrap().0, seq),
                        None => {
                            assert!(!mine, "what I have not done cannot be gone");
                            missed += 1;
                        }
                    }
                    if mine {
                        frames.done(seq, 1);
                    }
                }
                missed
            })
        })
        .collect();
    let mut back = 0;
    for seq in 0..TOTAL {
        while !stocker.can_put(seq) {
            stocker.reclaim(&mut |at, frame| {
                assert_eq!((at, frame.0), (back, back));
                back += 1;
            });
            thread::yield_now();
        }
        assert!(stocker.put(seq, Counted::new(seq, &alive)).is_ok());
        stocked.store(seq + 1, Ordering::Release);
    }
    for worker in workers {
        assert!(worker.join().unwrap() <= TOTAL);
    }
    while stocker.reclaim(&mut |_, _| back += 1) {}
    assert_eq!((back, alive.load(Ordering::Relaxed)), (TOTAL, 0));
}

#[test]
fn an_exclusive_is_released_by_a_panic_too() {
    let exclusive = Exclusive::new(vec![1]);
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
    Put,
    Done(u64, u32),
    Pin(u64),
    Unpin(usize),
    Reclaim,
    TakeOut(u64),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Arbitrary calls, valid or not, compared with maps of the stocked, done and pinned positions.
    #[test]
    fn attachments_do_what_the_model_does(calls in prop::collection::vec(prop_oneof![
        6 => Just(Call::Put),
        6 => (0..12u64, 0..4u32).prop_map(|(at, n)| Call::Done(at, n)),
        3 => (0..16u64).prop_map(Call::Pin),
        3 => (0..3usize).prop_map(Call::Unpin),
        5 => Just(Call::Reclaim),
        4 => (0..10u64).prop_map(Call::TakeOut),
    ], 1..120)) {
        const SLOTS: u64 = 8;
        const CHUNK: u64 = 4;
        let alive = Arc::new(AtomicIsize::new(0));
        let (mut stocker, frames) = attachments::<Counted>(SLOTS as usize, CHUNK as usize);
        let (mut next, mut head) = (0u64, 0u64);
        let mut done: BTreeMap<u64, u32> = BTreeMap::new();
        let mut emptied: BTreeSet<u64> = BTreeSet::new();
        let mut pins: Vec<Pin<'_, Counted>> = Vec::new();
        for call in calls {
            match call {
                Call::Put => {
                    let fits = next < head + SLOTS;
                    assert_eq!(stocker.put(next, Counted::new(next, &alive)).is_ok(), fits);
                    next += u64::from(fits);
                }
                Call::Done(at, n) => {
                    let seq = head + at;
                    let chunk = seq / CHUNK;
                    let count = done.entry(chunk).or_default();
                    let right = at < SLOTS && *count + n <= CHUNK as u32 && !emptied.contains(&chunk);
                    let went = catch_unwind(AssertUnwindSafe(|| frames.done(seq, n)));
                    assert_eq!(went.ok(), right.then_some(*count + n));
                    *count += if right { n } else { 0 };
                }
                Call::Pin(at) => {
                    let seq = (head + at).saturating_sub(4);
                    let there = seq >= head && seq < head + SLOTS && !emptied.contains(&(seq / CHUNK));
                    let pin = frames.pin(seq);
                    assert_eq!(pin.is_some(), there);
                    if let Some(pin) = pin {
                        for seq in pin.range() {
                            assert_eq!(pin.get(seq).map(|value| value.0), (seq < next).then_some(seq));
                        }
                        assert!(pin.get(pin.range().end).is_none());
                        pins.push(pin);
                    }
                }
                Call::Unpin(i) if i < pins.len() => drop(pins.swap_remove(i)),
                Call::Unpin(_) => {}
                Call::TakeOut(at) => {
                    let chunk = (head + at).saturating_sub(1) / CHUNK;
                    let first = chunk * CHUNK;
                    let ready = first >= head
                        && next >= first + CHUNK
                        && done.get(&chunk) == Some(&(CHUNK as u32))
                        && !emptied.contains(&chunk)
                        && !pins.iter().any(|pin| pin.range().start == first);
                    let mut out = Vec::new();
                    let at = (head + at).saturating_sub(1);
                    assert_eq!(frames.take_out(at, &mut |seq, value| out.push((seq, value.0))), ready);
                    if ready {
                        assert!(out.into_iter().eq((first..first + CHUNK).map(|seq| (seq, seq))));
                        emptied.insert(chunk);
                    }
                }
                Call::Reclaim => {
                    let was_emptied = emptied.remove(&(head / CHUNK));
                    let ready = next >= head + CHUNK
                        && done.get(&(head / CHUNK)) == Some(&(CHUNK as u32))
                        && !pins.iter().any(|pin| pin.range().start == head);
                    assert!(ready || !was_emptied);
                    let mut back = Vec::new();
                    assert_eq!(stocker.reclaim(&mut |seq, value| back.push((seq, value.0))), ready);
                    if ready {
                        let count = if was_emptied { 0 } else { CHUNK };
                        assert!(back.into_iter().eq((head..head + count).map(|seq| (seq, seq))));
                        head += CHUNK;
                    }
                }
            }
            let kept = next - head - CHUNK * emptied.len() as u64;
            assert_eq!(alive.load(Ordering::Relaxed), kept as isize);
        }
        drop((pins, stocker));
        drop(frames);
        assert_eq!(alive.load(Ordering::Relaxed), 0);
    }
}
