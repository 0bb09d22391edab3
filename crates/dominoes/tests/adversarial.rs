//! Programs without `unsafe` that try to access freed, empty or shared memory.
//!
//! User code runs inside calls of the crate: destructors, callbacks, iterators, wait strategies.
//! Here it panics, returns false values, calls the same channel again, and forgets guards. Each
//! value owns a box, so AddressSanitizer (`.ci/sanitize`) detects faults that a count of drops
//! does not.
//!
//! | `unsafe` in | block | test |
//! |---|---|---|
//! | `slots.rs`, `try_lock.rs` | `Slots: Send`, `Slots: Sync`, `TryLock: Sync` | [`what_may_go_to_another_thread`], and the examples marked `compile_fail` |
//! | `slots.rs` | `Slots::new`, `Slots::drop`, `Slots::at` | [`entries_of_any_size_and_alignment`], [`a_capacity_that_no_memory_holds`] |
//! | `slots.rs` | `View::write` | [`an_iterator_that_panics`], [`an_iterator_that_lies_about_its_length`], [`an_iterator_that_uses_the_channel`] |
//! | `slots.rs` | `Slots::write` | [`entries_of_any_size_and_alignment`], [`a_publisher_that_changes_threads`] |
//! | `slots.rs` | `Slots::copy_in` | [`batches_of_every_length_at_every_slot`] |
//! | `slots.rs` | `Slots::get`, `Slots::slice` | [`a_forgotten_guard_keeps_its_entries`], [`a_range_that_is_not_readable`] |
//! | `slots.rs` | `Slots::take` | all tests of destructors |
//! | `batches.rs` | `BatchRecords::value` | [`a_forgotten_reader_keeps_its_batch`], [`a_forgotten_worker_keeps_its_batch`] |
//! | `batches.rs` | `BatchRecords::release` | [`a_destructor_that_panics_as_the_last_thread_leaves`] |
//! | `batches.rs` | `BatchRecords::drop` | [`a_destructor_that_panics_while_the_records_go`] |
//! | `batches.rs` | `BatchWriter::put` | [`a_lap_that_has_wrapped_around`] |
//! | `try_lock.rs` | `TryLockGuard::deref`, `deref_mut` | [`a_try_lock_whose_guard_is_forgotten`] |
//! | `ring.rs` | `Ring::drop_below` | [`a_destructor_that_panics_while_a_publisher_looks_for_room`], [`a_destructor_that_uses_the_channel`] |
//! | `ring.rs` | `Ring::drop` | [`a_destructor_that_panics_while_the_channel_goes`] |
//! | `ring.rs` | `Writer::try_push` | [`a_destructor_that_panics_while_a_publisher_looks_for_room`], [`a_wait_strategy_that_panics`] |
//! | `ring.rs` | `Writer::try_push_all`, `try_push_slice` | [`batches_of_every_length_at_every_slot`] |
//! | `ring.rs` | `Writer::fill` | as for `View::write` |
//! | `ring.rs` | `Reader::get`, `Reader::slices` | as for `Slots::get`, and [`a_wait_strategy_that_panics`] |
//! | `state_lock.rs`, `op_log.rs` | all | [`replicated_state_whose_code_panics_anywhere`], and `replicated.rs` here |
#![forbid(unsafe_code)]

use dominoes::{
    Assignment, Batch, BatchRecords, BatchWriter, BegunBatch, Buffered, Channel, Clock, Context,
    Domain, Feed, FeedView, Group, Inactive, Lifo, Log, NoBatch, Observe, Order, Park, Pool,
    PrimaryPolicy, Publish, Publisher, ReadBatch, Receive, Replicated, Served, Service, SpinYield,
    StateMachine, Subscription, Then, Tick, TimerPublisher, TryLock, TryLockGuard, TryPublishError,
    Turn, Verdicts, Wait, Work, WorkShare, WorkState, batch_records, channel, channel_with_slots,
};
use std::{
    cell::RefCell,
    mem,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// Counts live values.
#[derive(Clone, Default)]
struct Live(Arc<AtomicI64>);

type Action = Box<dyn FnOnce() + Send>;

/// A value that owns memory, checks itself, and can run an action when dropped.
struct Value {
    number: u64,
    owned: Box<u64>,
    live: Live,
    action: Mutex<Option<Action>>,
}

impl Live {
    fn value(&self, number: u64) -> Value {
        self.0.fetch_add(1, Relaxed);
        Value {
            number,
            owned: Box::new(!number),
            live: self.clone(),
            action: Mutex::new(None),
        }
    }

    /// A value whose destructor runs `action` last.
    fn acting(&self, number: u64, action: impl FnOnce() + Send + 'static) -> Value {
        let value = self.value(number);
        *value.action.lock().unwrap() = Some(Box::new(action));
        value
    }

    /// A value whose destructor panics.
    fn poisoned(&self, number: u64) -> Value {
        self.acting(number, || unwind())
    }

    fn poisoned_if(&self, is_poisoned: bool, number: u64) -> Value {
        match is_poisoned {
            true => self.poisoned(number),
            false => self.value(number),
        }
    }

    fn alive(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

impl Value {
    fn check(&self) {
        assert_eq!(*self.owned, !self.number, "a value was dropped or torn");
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.check();
        *self.owned = 0;
        assert!(self.live.0.fetch_sub(1, Relaxed) > 0, "dropped twice");
        let action = self.action.get_mut().unwrap().take();
        if let Some(action) = action {
            action();
        }
    }
}

/// Panics without a message.
fn unwind() -> ! {
    resume_unwind(Box::new("on purpose"))
}

/// Whether `call` panics on purpose; any other panic is resumed.
fn unwinds<R>(call: impl FnOnce() -> R) -> bool {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(_) => false,
        Err(payload) if payload.downcast_ref::<&str>() == Some(&"on purpose") => true,
        Err(payload) => resume_unwind(payload),
    }
}

// Records of batches.

/// Four places with batches of one position, of which `poisoned` panics when it is dropped.
fn put_but_poisoned(live: &Live, poisoned: u64) -> (BatchWriter<Value>, Arc<BatchRecords<Value>>) {
    let (mut writer, batches) = batch_records::<Value>(4);
    for seq in 0..4 {
        let value = if seq == poisoned {
            live.poisoned(seq)
        } else {
            live.value(seq)
        };
        assert!(writer.put(1, value).is_ok());
    }
    (writer, batches)
}

#[test]
fn a_destructor_that_panics_as_the_last_thread_leaves() {
    let live = Live::default();
    let (mut writer, batches) = put_but_poisoned(&live, 1);
    for seq in 0..4 {
        let reading = batches.read(seq).unwrap();
        assert!(batches.begin(seq).unwrap().finish().is_none());
        reading.value().check();
        assert_eq!(unwinds(|| drop(reading)), seq == 1);
        assert!(batches.read(seq).is_none() && batches.begin(seq).is_err());
    }
    assert_eq!((live.alive(), writer.room()), (0, 4));
    assert!(writer.put(4, live.value(4)).is_ok());
    let begun = batches.begin(4).unwrap();
    begun.value().check();
    assert!(unwinds(|| {
        let _begun = begun;
        unwind()
    }));
    drop((writer, batches));
    assert_eq!(live.alive(), 0);
}

#[test]
fn a_destructor_that_panics_while_the_records_go() {
    for poisoned in 0..4 {
        let live = Live::default();
        let (writer, batches) = put_but_poisoned(&live, poisoned);
        drop(batches.begin((poisoned + 1) % 4).unwrap().finish());
        assert_eq!(live.alive(), 3);
        drop(batches);
        assert!(unwinds(|| drop(writer)));
        assert_eq!(live.alive(), 0, "value {poisoned} panicked");
    }
}

#[test]
fn a_forgotten_reader_keeps_its_batch() {
    let live = Live::default();
    let (mut writer, batches) = batch_records::<Value>(4);
    assert!(writer.put(4, live.value(0)).is_ok());
    let lent = Box::leak(Box::new(batches.read(0).unwrap())).value();
    assert!(batches.begin(0).unwrap().finish().is_none());
    assert_eq!(writer.room(), 0);
    assert!(writer.put(1, live.value(4)).is_err());
    drop(writer); // the records still exist
    lent.check();
    assert_eq!(live.alive(), 1);
}

#[test]
fn a_forgotten_worker_keeps_its_batch() {
    let live = Live::default();
    let (mut writer, batches) = batch_records::<Value>(4);
    assert!(writer.put(4, live.value(0)).is_ok());
    let lent = Box::leak(Box::new(batches.begin(0).unwrap())).value();
    assert_eq!(batches.begin(0).err(), Some(WorkState::Begun));
    assert!(batches.read(0).unwrap().release().is_none());
    assert_eq!(writer.room(), 0);
    lent.check();
}

#[test]
fn a_lap_that_has_wrapped_around() {
    let live = Live::default();
    let (mut writer, batches) = batch_records::<Value>(4);
    assert!(writer.put(1, live.value(0)).is_ok());
    // After 2^24 laps a word shows the same lap: a caller finds a value, or nothing.
    let far = (1u64 << 24) * 4;
    batches.read(far).unwrap().value().check();
    assert!(batches.read(far + 1).is_none() && batches.begin(far + 1).is_err());
    let value = batches.begin(far).unwrap().finish();
    value.unwrap().check();
    assert!(batches.read(0).is_none() && batches.begin(0).is_err());
    assert_eq!((writer.room(), live.alive()), (4, 0));
}

#[test]
fn a_try_lock_whose_guard_is_forgotten() {
    let live = Live::default();
    let exclusive = TryLock::new(live.value(1));
    assert!(unwinds(|| {
        let mut guard = exclusive.try_take().unwrap();
        *guard = live.poisoned(2);
        assert!(exclusive.try_take().is_none());
        *guard = live.value(3); // drops the poisoned one
    }));
    let lent = Box::leak(Box::new(
        exclusive.try_take().expect("unwinding gave it back"),
    ));
    lent.check();
    lent.number = 3;
    assert!(exclusive.try_take().is_none());
    let value = exclusive.into_inner(); // no guard is borrowed any more
    value.check();
    drop(value);
    assert_eq!(live.alive(), 0);
}

// The ring.

/// Publishes one value, in one of four ways.
fn publish(way: usize, publisher: &mut Publisher<Value, SpinYield>, value: Value) -> bool {
    match way {
        0 => publisher.try_publish(value).is_ok(),
        1 => publisher.try_publish_all([value]).is_ok(),
        // The length is unknown, so the value is collected.
        2 => publisher
            .try_publish_all(Some(value).into_iter().filter(|_| true))
            .is_ok(),
        _ => {
            let mut buffered = publisher.buffered(2);
            buffered.push(value).is_ok() && buffered.flush().is_ok()
        }
    }
}

#[test]
fn a_destructor_that_panics_while_a_publisher_looks_for_room() {
    for way in 0..4 {
        for shared in [false, true] {
            for poisoned in 0..6 {
                let live = Live::default();
                let (mut publisher, log) = channel::<Value, SpinYield>(4);
                let other = shared.then(|| publisher.clone());
                let mut subscription = log.subscribe().unwrap();
                let (mut panics, mut expected) = (0, 0);
                for number in 0..20 {
                    let value = live.poisoned_if(number % 6 == poisoned, number);
                    match catch_unwind(AssertUnwindSafe(|| publish(way, &mut publisher, value))) {
                        Ok(true) => {}
                        Ok(false) => unreachable!("everything is released"),
                        Err(_) => panics += 1, // the value is dropped or published
                    }
                    while let Ok(batch) = subscription.try_next_batch() {
                        for (seq, value) in &batch {
                            assert_eq!(seq, expected);
                            value.check();
                            expected += 1;
                        }
                    }
                    assert!(live.alive() <= 4);
                }
                assert!(panics > 0, "no destructor ran while publishing");
                drop((publisher, other));
                while live.alive() > 0 {
                    unwinds(|| log.tidy());
                }
                drop((log, subscription));
            }
        }
    }
}

#[test]
fn a_destructor_that_panics_while_a_subscription_leaves() {
    for poisoned in 0..4 {
        let live = Live::default();
        let (mut publisher, log) = channel::<Value, SpinYield>(4);
        let subscription = log.subscribe().unwrap();
        for number in 0..4 {
            let value = live.poisoned_if(number == poisoned, number);
            assert!(publisher.try_publish(value).is_ok());
        }
        assert!(unwinds(|| match poisoned % 2 {
            0 => drop(subscription),
            _ => drop(subscription.deactivate()),
        }));
        assert_eq!(log.subscribers(), 0);
        log.tidy();
        assert_eq!(live.alive(), 0);
        // Every subscription number is free again.
        let all: Vec<_> = std::iter::from_fn(|| log.subscribe().ok()).collect();
        assert_eq!(all.len(), dominoes::MAX_SUBSCRIBERS);
    }
}

#[test]
fn a_destructor_that_panics_while_the_channel_goes() {
    for poisoned in 0..4 {
        let live = Live::default();
        let (mut publisher, log) = channel::<Value, SpinYield>(4);
        let subscription = log.subscribe().unwrap();
        for number in 0..4 {
            let value = live.poisoned_if(number == poisoned, number);
            assert!(publisher.try_publish(value).is_ok());
        }
        drop((publisher, log));
        assert!(unwinds(|| drop(subscription)));
        assert_eq!(live.alive(), 0);
    }
}

thread_local! {
    /// Handles of the channel under test, for user code that calls back.
    static HANDLES: RefCell<Vec<Publisher<Value, SpinYield>>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn a_destructor_that_uses_the_channel() {
    for shared in [false, true] {
        let live = Live::default();
        let (mut publisher, log) = channel::<Value, SpinYield>(4);
        if shared {
            HANDLES.set(vec![publisher.clone(), publisher.clone()]);
        }
        let mut subscription = log.subscribe().unwrap();
        let counted = Arc::new(AtomicUsize::new(0));
        for round in 0..40 {
            let (handle, of_value, count) = (log.clone(), live.clone(), counted.clone());
            let value = live.acting(round, move || {
                count.fetch_add(1, Relaxed);
                handle.tidy();
                let mut joined = handle.subscribe().unwrap();
                drop(joined.fork());
                HANDLES.with_borrow_mut(|handles| {
                    if let Some(other) = handles.first_mut() {
                        drop(other.try_publish(of_value.value(1000 + round)));
                        drop(other.try_publish_all([of_value.value(2000 + round)]));
                    }
                    if round == 20 {
                        handles.pop();
                    }
                });
                joined.poll();
                for seq in joined.position()..joined.end() {
                    joined.get(seq).unwrap().check();
                }
                drop(joined.deactivate().activate());
            });
            drop(publisher.try_publish(value));
            if let Ok(batch) = subscription.try_next_batch() {
                for (_, value) in &batch {
                    value.check();
                }
            }
            assert!(log.len() <= 4 && live.alive() <= 8);
        }
        assert!(counted.load(Relaxed) > 20);
        HANDLES.set(Vec::new());
        drop((publisher, subscription));
        log.tidy();
        assert!(log.is_closed());
        drop(log);
        assert_eq!(live.alive(), 0);
    }
}

/// An iterator with a false length hint, which calls `step` for each value.
struct Lying<F> {
    hint: (usize, Option<usize>),
    step: F,
}

impl<F: FnMut() -> Option<Value>> Iterator for Lying<F> {
    type Item = Value;
    fn next(&mut self) -> Option<Value> {
        (self.step)()
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.hint
    }
}

impl<F: FnMut() -> Option<Value>> ExactSizeIterator for Lying<F> {
    fn len(&self) -> usize {
        self.hint.0
    }
}

#[test]
fn an_iterator_that_panics() {
    for shared in [false, true] {
        for panics_at in 0..4 {
            let live = Live::default();
            let (mut publisher, log) = channel::<Value, SpinYield>(4);
            let _other = shared.then(|| publisher.clone());
            let mut subscription = log.subscribe().unwrap();
            for _ in 0..5 {
                let values = (0..4).map(|n| {
                    if n == panics_at {
                        unwind()
                    }
                    live.value(n)
                });
                assert!(unwinds(|| publisher.try_publish_all(values)));
                let published = subscription.poll() - subscription.position();
                assert_eq!(published, if shared { 0 } else { panics_at });
                for seq in subscription.position()..subscription.end() {
                    subscription.get(seq).unwrap().check();
                }
                subscription.advance_to(subscription.end());
            }
            drop((publisher, _other, subscription, log));
            assert_eq!(live.alive(), 0);
        }
    }
}

#[test]
fn an_iterator_that_lies_about_its_length() {
    for shared in [false, true] {
        for promised in [0, 1, 3, 4, 5, usize::MAX] {
            for length in [0, 1, 3, 4, 9] {
                let live = Live::default();
                let (mut publisher, log) = channel::<Value, SpinYield>(4);
                let _other = shared.then(|| publisher.clone());
                let mut subscription = log.subscribe().unwrap();
                let mut left = length;
                let published = publisher.try_publish_all(Lying {
                    // The collecting vector would reserve the promised length.
                    hint: (promised.min(5), Some(promised)),
                    step: || {
                        left = u64::checked_sub(left, 1)?;
                        Some(live.value(left))
                    },
                });
                let positions = match published {
                    Ok(positions) => positions,
                    Err(refused) => {
                        drop(refused);
                        0..0
                    }
                };
                assert_eq!(live.alive() as u64, positions.end - positions.start);
                assert_eq!(subscription.poll(), positions.end);
                let (head, rest) = subscription.slices(0, positions.end);
                head.iter().chain(rest).for_each(Value::check);
                drop((publisher, _other, subscription, log));
                assert_eq!(live.alive(), 0);
            }
        }
    }
}

#[test]
fn an_iterator_that_uses_the_channel() {
    for shared in [false, true] {
        let live = Live::default();
        let (mut publisher, log) = channel::<Value, SpinYield>(4);
        let mut others = Vec::new();
        if shared {
            others.extend([publisher.clone(), publisher.clone()]);
        }
        let mut subscription = log.subscribe().unwrap();
        let (mut joined, mut expected) = (Vec::new(), 0);
        for round in 0..30 {
            let mut left = 3;
            let _ = publisher.try_publish_all(Lying {
                hint: (3, Some(3)),
                step: || {
                    left = u64::checked_sub(left, 1)?;
                    // In the middle of a batch: join, read, release, and publish by another handle.
                    joined.push(log.subscribe().unwrap());
                    joined.truncate(2);
                    joined.iter_mut().for_each(|reader| {
                        for seq in reader.position()..reader.poll() {
                            reader.get(seq).unwrap().check();
                        }
                        reader.advance_to(reader.end());
                    });
                    if let Some(other) = others.first_mut() {
                        let _ = other.try_publish(live.value(100));
                    }
                    if round == 20 {
                        others.pop();
                    }
                    while let Ok(batch) = subscription.try_next_batch() {
                        assert_eq!(batch.first_seq(), expected);
                        batch.iter().for_each(|(_, value)| value.check());
                        expected = batch.end_seq();
                    }
                    log.tidy();
                    Some(live.value(left))
                },
            });
            joined.clear();
        }
        assert!(expected > 40, "{expected} entries");
        drop((publisher, others, subscription, log));
        assert_eq!(live.alive(), 0);
    }
}

#[test]
fn batches_of_every_length_at_every_slot() {
    for shared in [false, true] {
        let live = Live::default();
        let (mut publisher, log) = channel_with_slots::<Value, SpinYield>(5, 8);
        let (mut plain, numbers) = channel_with_slots::<u64, SpinYield>(5, 8);
        let _others = shared.then(|| (publisher.clone(), plain.clone()));
        let mut subscription = log.subscribe().unwrap();
        let mut reader = numbers.subscribe().unwrap();
        let mut next = 0;
        for step in 0..64 {
            let n = step % 6;
            let positions = next..next + n;
            // One batch is collected, since its length is unknown; the other is copied.
            let values = positions.clone().map(|seq| live.value(seq));
            let collected = publisher.try_publish_all(values.filter(|_| true));
            assert!(collected.is_ok_and(|published| published == positions));
            let copies: Vec<_> = positions.clone().collect();
            assert_eq!(plain.try_publish_slice(&copies), Ok(positions));
            next += n;
            assert_eq!((subscription.poll(), reader.poll()), (next, next));
            let (head, rest) = subscription.slices(next - n, next);
            for (value, seq) in head.iter().chain(rest).zip(next - n..) {
                value.check();
                assert_eq!((value.number, reader.get(seq)), (seq, Some(&seq)));
            }
            subscription.advance_to(next);
            reader.advance_to(next);
        }
        assert!(plain.try_publish_slice(&[0; 6]).is_err());
        drop((publisher, _others, subscription, log));
        assert_eq!(live.alive(), 0);
    }
}

#[test]
fn a_forgotten_guard_keeps_its_entries() {
    let live = Live::default();
    let (mut publisher, log) = channel::<Value, SpinYield>(4);
    let mut subscription = log.subscribe().unwrap();
    for number in 0..4 {
        assert!(publisher.try_publish(live.value(number)).is_ok());
    }
    mem::forget(subscription.try_next_batch().unwrap());
    mem::forget(publisher.buffered(3));
    let full =
        |publisher: &mut Publisher<Value, SpinYield>| publisher.try_publish(live.value(9)).is_err();
    assert!(full(&mut publisher));
    let leaked: &Subscription<_, _> = Box::leak(Box::new(subscription));
    let lent = leaked.get(0).unwrap();
    assert!(full(&mut publisher));
    // Forgotten publishers count forever, so the channel stays shared.
    mem::forget(publisher.clone());
    mem::forget(log.subscribe().unwrap().deactivate());
    assert!(full(&mut publisher));
    log.tidy();
    drop(publisher);
    lent.check();
    assert!(!log.is_closed());
    assert_eq!(live.alive(), 4);
}

#[test]
fn a_range_that_is_not_readable() {
    let (mut publisher, log) = channel::<u64, SpinYield>(4);
    let mut subscription = log.subscribe().unwrap();
    publisher.publish_slice(&[0, 1, 2]).unwrap();
    assert_eq!(subscription.get(0), None, "not polled yet");
    subscription.poll();
    subscription.advance_to(1);
    for (from, to) in [
        (0, 2),
        (1, 4),
        (2, 1),
        (u64::MAX, 0),
        (0, u64::MAX),
        (3, u64::MAX),
    ] {
        assert!(catch_unwind(AssertUnwindSafe(|| subscription.slices(from, to).0.len())).is_err());
    }
    for seq in [0, 3, 4, 1 << 63, u64::MAX] {
        assert_eq!(subscription.get(seq), None);
    }
    for seq in [4, u64::MAX] {
        assert!(catch_unwind(AssertUnwindSafe(|| subscription.advance_to(seq))).is_err());
        let mut batch = subscription.try_next_batch().unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| batch.release_to(seq))).is_err());
        batch.truncate(seq);
        batch.truncate(0);
        assert_eq!((batch.len(), batch.as_slices().0.len()), (0, 0));
    }
    assert_eq!(subscription.slices(1, 3).0, [1, 2]);
}

#[test]
fn limits_as_large_as_their_type() {
    let (mut publisher, log) = channel::<u64, SpinYield>(8);
    let mut subscription = log.subscribe().unwrap();
    publisher.publish_slice(&[0, 1, 2, 3]).unwrap();
    subscription.poll();
    subscription.advance_to(1);
    subscription.set_batch_limit(usize::MAX);
    let batch = subscription.try_next_batch().unwrap();
    assert_eq!(batch.as_slices().0, [1, 2, 3]);
    mem::forget(batch);
    let mut seen = Vec::new();
    assert_eq!(subscription.receive(usize::MAX, |n| seen.push(*n)), Ok(3));
    assert_eq!(subscription.try_next_batch().err(), Some(NoBatch::Empty));
    assert_eq!(seen, [1, 2, 3]);
}

#[test]
fn a_batch_that_could_not_be_flushed_is_not_lost() {
    let live = Live::default();
    let (mut publisher, log) = channel::<Value, SpinYield>(2);
    let mut subscription = log.subscribe().unwrap();
    for number in 0..2 {
        assert!(publisher.try_publish(live.poisoned(number)).is_ok());
    }
    drop(subscription.try_next_batch());
    drop(subscription.try_next_batch());
    let mut buffered = publisher.buffered(2);
    assert!(buffered.push(live.value(2)).is_ok());
    assert!(unwinds(|| buffered.push(live.value(3))), "drops value 0");
    assert!(unwinds(|| buffered.push(live.value(4))), "drops value 1");
    assert_eq!(buffered.len(), 2, "a batch that fits");
    assert!(buffered.flush().is_ok());
    assert_eq!((live.alive(), subscription.poll()), (2, 4));
    drop(buffered);
}

// Wait strategies.

type Hook = Box<dyn FnMut()>;

thread_local! {
    /// The action of [`Hooked`] when it is notified on this thread.
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// A wait strategy that runs the hook, and calls `ready` both too often and too rarely.
#[derive(Default)]
struct Hooked;

impl Wait for Hooked {
    fn wait_until(&self, deadline: Option<Instant>, mut ready: impl FnMut() -> bool) -> bool {
        self.notify();
        for _ in 0..3 {
            let _ = ready();
        }
        self.notify();
        // Returns true without a reason.
        deadline.is_none()
    }

    fn notify(&self) {
        let hook = HOOK.take();
        if let Some(mut hook) = hook {
            // The hook is not set while it runs, since it may notify.
            hook();
            HOOK.set(Some(hook));
        }
    }
}

/// Runs `call` with a hook that panics at notification number `nth`. Returns whether it panicked.
fn with_a_panic(nth: u64, call: impl FnOnce()) -> bool {
    let mut left = nth;
    HOOK.set(Some(Box::new(move || {
        if thread::panicking() {
            return;
        }
        match left.checked_sub(1) {
            Some(less) => left = less,
            None => unwind(),
        }
    })));
    let panicked = unwinds(call);
    HOOK.set(None);
    panicked
}

#[test]
fn a_wait_strategy_that_panics() {
    for (shared, nth) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let live = Live::default();
        let (mut publisher, log) = channel::<Value, Hooked>(4);
        let other = shared.then(|| publisher.clone());
        let mut subscription = log.subscribe().unwrap();
        let mut panics = 0;
        for round in 0..20 {
            // Both looking for room and publishing notify. At most one value is lost, or it is
            // published in spite of the panic.
            panics += u32::from(with_a_panic(nth, || {
                let value = live.value(round);
                let _ = match round % 3 {
                    0 => publisher.try_publish(value).is_ok(),
                    1 => publisher.try_publish_all([value]).is_ok(),
                    _ => publisher
                        .try_publish_all([value].into_iter().filter(|_| true))
                        .is_ok(),
                };
            }));
            let end = subscription.poll();
            for seq in subscription.position()..end {
                subscription.get(seq).unwrap().check();
            }
            let releases = end > subscription.position();
            assert_eq!(
                with_a_panic(0, || subscription.advance_to(end)),
                releases,
                "a release notifies once"
            );
            assert_eq!(subscription.position(), end);
        }
        assert!(panics > 0);
        // Joining and leaving: every subscription number is free again.
        assert!(with_a_panic(0, || drop(log.subscribe())));
        assert_eq!(log.subscribers(), 1, "the one that could not join is gone");
        let fork = subscription.fork().unwrap();
        assert!(with_a_panic(0, || drop(fork)));
        let fork = subscription.fork().unwrap();
        assert!(with_a_panic(0, || drop(fork.deactivate())));
        let resting = subscription.fork().unwrap().deactivate();
        assert!(with_a_panic(0, || drop(resting.activate())));
        assert_eq!(log.subscribers(), 1);
        let all: Vec<_> = std::iter::from_fn(|| log.subscribe().ok()).collect();
        assert_eq!(all.len(), dominoes::MAX_SUBSCRIBERS - 1);
        drop(all);
        assert!(with_a_panic(0, || log.tidy()));
        assert_eq!(live.alive(), 0);
        assert!(with_a_panic(nth, || publisher.close()));
        assert!(publisher.try_publish(live.value(0)).is_err());
        drop(other);
        assert!(with_a_panic(nth, || drop(publisher)));
        assert_eq!(log.publishers(), 0);
        drop((subscription, log));
        assert_eq!(live.alive(), 0);
    }
}

#[test]
fn a_wait_strategy_that_uses_the_channel() {
    let live = Live::default();
    let (mut publisher, log) = channel::<Value, Hooked>(4);
    let mut other = publisher.clone();
    let mut subscription = log.subscribe().unwrap();
    subscription.set_batch_limit(4);
    let (hooked, of_hook) = (log.clone(), live.clone());
    HOOK.set(Some(Box::new(move || {
        let mut joined = hooked.subscribe().unwrap();
        let _ = other.try_publish(of_hook.value(7));
        for seq in joined.position()..joined.poll() {
            joined.get(seq).unwrap().check();
        }
        hooked.tidy();
    })));
    for round in 0..50 {
        let _ = publisher.try_publish(live.value(round));
        let _ = publisher.publish_deadline(live.value(round), Instant::now());
        if let Ok(batch) = subscription.next_batch_deadline(Instant::now()) {
            batch.iter().for_each(|(_, value)| value.check());
        }
        assert!(log.len() <= 4);
    }
    HOOK.set(None);
    assert!(
        subscription.position() > 50,
        "{} entries",
        subscription.position()
    );
    drop((publisher, subscription, log));
    assert_eq!(live.alive(), 0);
}

#[test]
fn a_wait_strategy_that_asks_too_often_loses_no_work() {
    let live = Live::default();
    let (mut publisher, share) = WorkShare::<Value, Lifo<Value>, Hooked>::open(1);
    let mut worker = share.join().unwrap();
    let taken = Arc::new(AtomicUsize::new(0));
    let (count, mut calls) = (taken.clone(), 0);
    HOOK.set(Some(Box::new(move || {
        // Not at every call, so that the publisher finds the channel full.
        calls += 1;
        if calls % 2 == 0 {
            count.fetch_add(usize::from(worker.try_take().is_ok()), Relaxed);
        }
    })));
    for number in 0..8 {
        assert!(publisher.put(live.value(number)).is_ok());
    }
    drop(HOOK.take());
    let left = usize::from(share.join().unwrap().try_take().is_ok());
    assert_eq!((taken.load(Relaxed) + left, live.alive()), (8, 0));

    // A worker that waits while every notification adds entries.
    let (mut publisher, share) = WorkShare::<Value, Lifo<Value>, Hooked>::open(32);
    let mut worker = share.join().unwrap();
    let offered = Arc::new(AtomicUsize::new(0));
    let (count, of_hook) = (offered.clone(), live.clone());
    HOOK.set(Some(Box::new(move || {
        for number in 0..2 {
            let offer = publisher.offer(of_hook.value(number));
            count.fetch_add(usize::from(offer.is_ok()), Relaxed);
        }
    })));
    assert!(worker.take(None).is_ok());
    // Not while the hook is borrowed: dropping a publisher notifies.
    drop(HOOK.take());
    let rest = std::iter::from_fn(|| worker.try_take().ok()).count();
    assert_eq!(rest + 1, offered.load(Relaxed), "entries were lost");
    assert_eq!(live.alive(), 0);
}

// Memory.

#[test]
fn entries_of_any_size_and_alignment() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    /// A type of size zero with a destructor.
    struct Nothing;
    impl Drop for Nothing {
        fn drop(&mut self) {
            DROPS.fetch_add(1, Relaxed);
        }
    }
    #[derive(Clone, Copy)]
    #[repr(align(4096))]
    struct Page(u64);
    #[derive(Clone, Copy)]
    #[repr(align(512))]
    struct EmptyAligned;

    let (mut publisher, log) = channel::<Nothing, SpinYield>(3);
    let mut subscription = log.subscribe().unwrap();
    for _ in 0..3 {
        let values = (0..3).map(|_| Nothing);
        assert!(publisher.try_publish_all(values.clone()).is_ok());
        assert!(publisher.try_publish(Nothing).is_err());
        subscription.poll();
        let (head, rest) = subscription.slices(subscription.position(), subscription.end());
        assert_eq!(head.len() + rest.len(), 3);
        subscription.advance_to(subscription.end());
    }
    drop((publisher, subscription, log));
    assert_eq!(DROPS.load(Relaxed), 9 + 3);

    let (mut publisher, log) = channel_with_slots::<Page, SpinYield>(3, 4);
    let mut subscription = log.subscribe().unwrap();
    for n in 0..9 {
        publisher.try_publish_slice(&[Page(n), Page(n)]).unwrap();
        let batch = subscription.try_next_batch().unwrap();
        for (_, page) in &batch {
            assert_eq!(std::ptr::from_ref(page).addr() % 4096, 0);
            assert_eq!(page.0, n);
        }
        drop(batch);
        subscription.advance_to(subscription.end());
    }

    let (mut publisher, log) = channel::<EmptyAligned, SpinYield>(3);
    let mut subscription = log.subscribe().unwrap();
    publisher.try_publish(EmptyAligned).unwrap();
    subscription.poll();
    let entry = subscription.get(0).unwrap();
    assert_eq!(std::ptr::from_ref(entry).addr() % 512, 0);

    let (mut writer, shared) = batch_records::<Page>(2);
    assert!(writer.put(1, Page(1)).is_ok());
    let reading = shared.read(0).unwrap();
    assert_eq!(std::ptr::from_ref(reading.value()).addr() % 4096, 0);
    let (mut writer, shared) = batch_records::<()>(2);
    assert!(writer.put(1, ()).is_ok());
    assert_eq!(shared.begin(0).unwrap().finish(), Some(()));
}

#[test]
fn a_capacity_that_no_memory_holds() {
    fn refuses<T: Send + Sync>(capacity: usize) {
        assert!(
            catch_unwind(|| channel::<T, SpinYield>(capacity)).is_err(),
            "a capacity of {capacity}"
        );
    }
    refuses::<u64>(0);
    for capacity in [usize::MAX, usize::MAX / 2 + 1, usize::MAX / 2 + 2] {
        refuses::<()>(capacity);
        refuses::<u8>(capacity);
        refuses::<[u64; 9]>(capacity);
    }
    refuses::<u64>(1 << 60);
    refuses::<[u8; 4096]>(1 << 51);
    for (capacity, slots) in [(0, 1), (1, 0), (5, 4), (3, 3), (1, 1 << 63)] {
        assert!(catch_unwind(|| channel_with_slots::<u64, SpinYield>(capacity, slots)).is_err());
    }
    for slots in [0, 3, 1 << 63] {
        assert!(catch_unwind(|| batch_records::<u64>(slots)).is_err());
    }
    // Entries of size zero still take one byte each for their lap.
    let (mut publisher, log) = channel::<(), SpinYield>(1000);
    assert!(log.slots() <= 64 * 1024);
    assert!(publisher.try_publish(()).is_ok());
}

// Threads.

#[test]
fn a_publisher_that_changes_threads() {
    let live = Live::default();
    let (mut publisher, log) = channel::<Value, Park>(4);
    let mut subscription = log.subscribe().unwrap();
    let reader = thread::spawn(move || {
        let mut numbers = Vec::new();
        while let Some(batch) = subscription.next_batch() {
            for (_, value) in &batch {
                value.check();
                numbers.push(value.number);
            }
        }
        numbers
    });
    let mut second = None;
    for round in 0..60 {
        let live = live.clone();
        // Alone, then one of two, then alone again, each time on a new thread.
        (publisher, second) = thread::spawn(move || {
            assert!(publisher.publish(live.value(2 * round)).is_ok());
            let mut second = second.take().or_else(|| Some(publisher.clone()));
            if round % 3 == 2 {
                second = None;
            }
            assert!(publisher.publish_all([live.value(2 * round + 1)]).is_ok());
            (publisher, second)
        })
        .join()
        .unwrap();
    }
    drop((publisher, second, log));
    assert!(reader.join().unwrap().into_iter().eq(0..120));
    assert_eq!(live.alive(), 0);
}

#[test]
fn what_may_go_to_another_thread() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    type Entry = std::sync::Mutex<std::cell::Cell<u32>>;
    send::<Publisher<Entry, Park>>();
    send::<Buffered<'_, Entry, Park>>();
    send::<Subscription<Entry, Park>>();
    sync::<Subscription<Entry, Park>>();
    send::<Inactive<Entry, Park>>();
    send::<Batch<'_, Entry, Park>>();
    sync::<Batch<'_, Entry, Park>>();
    send::<Log<Entry, Park>>();
    sync::<Log<Entry, Park>>();
    send::<BatchWriter<Entry>>();
    send::<BatchRecords<Entry>>();
    sync::<BatchRecords<Entry>>();
    send::<ReadBatch<'_, Entry>>();
    send::<BegunBatch<'_, Entry>>();
    // A value that is `Send` but not `Sync`: one thread at a time has it.
    sync::<TryLock<std::cell::Cell<u32>>>();
    send::<TryLockGuard<'_, std::cell::Cell<u32>>>();
    sync::<TryLockGuard<'_, u32>>();
    sync::<Verdicts>();
}

/// A wait strategy that always returns true at once.
#[derive(Default)]
struct Yes;

impl Wait for Yes {
    fn wait_until(&self, _: Option<Instant>, _: impl FnMut() -> bool) -> bool {
        true
    }

    fn notify(&self) {}
}

#[test]
fn a_wait_strategy_that_always_says_yes_ends_at_the_deadline() {
    let (mut publisher, log) = channel::<u32, Yes>(1);
    let mut subscription = log.subscribe().unwrap();
    publisher.publish(1).unwrap();
    let late = publisher.publish_deadline(2, Instant::now());
    assert!(matches!(late, Err(TryPublishError::Full(2))));
    assert_eq!(subscription.try_next_batch().unwrap().iter().count(), 1);
    let late = subscription.next_batch_deadline(Instant::now());
    assert!(matches!(late, Err(NoBatch::Empty)));
}

/// Names a replica that does not exist.
struct Nobody;

impl PrimaryPolicy for Nobody {
    fn primary(&self, chunk: u64, replicas: usize) -> usize {
        [replicas, usize::MAX, replicas + 1][(chunk % 3) as usize]
    }
}

#[test]
fn a_policy_that_names_nobody_leaves_no_work_undone() {
    for replicas in 1..5 {
        for chunk in 0..9 {
            let takes = |me: &usize| Nobody.is_mine(Work::chunk(chunk), *me, replicas);
            assert_eq!(
                (0..replicas).filter(takes).count(),
                1,
                "{chunk} of {replicas}"
            );
        }
    }
    let _ = Nobody.is_mine(Work::chunk(1), 0, 0);
}

/// A feed with absurd numbers.
struct Boasting;

impl Feed<()> for Boasting {
    fn serve(&mut self, (): &mut (), _: usize) -> Served {
        Served {
            handled: usize::MAX,
            then: Then::More,
        }
    }

    fn lag(&self) -> u64 {
        u64::MAX
    }
}

/// A domain that shares its name, number and counts with others, and asks for more turns than it
/// needs.
struct Busy(usize);

impl Domain for Busy {
    fn run(&mut self) -> Turn {
        self.0 += 1;
        match self.0 {
            1..9 => Turn::Worked,
            _ => Turn::Finished,
        }
    }

    fn id(&self) -> u64 {
        u64::MAX
    }
}

#[test]
fn feeds_schedulers_and_domains_that_lie_about_their_numbers_are_counted_no_more() {
    for place in [0, 1, 2, usize::MAX] {
        let scheduler = move |_: &[FeedView]| Some(place);
        let mut service = Service::new(u64::MAX, "s", ()).with_scheduler(scheduler);
        service.add_feed(0, Boasting);
        service.add_feed(u8::MAX, Boasting);
        for _ in 0..3 {
            let turn = service.run_batch(4);
            assert_eq!(turn == Turn::Worked, place < 2, "{place}");
        }
    }
    let busy = || Box::new(Busy(0)) as Box<dyn Domain>;
    let context = Context::spawn("busy", None, vec![busy(), busy()]).unwrap();
    assert_eq!(context.join().unwrap().len(), 2);
}

/// A clock that goes back, stops, and reaches the end of time.
#[derive(Default)]
struct Wild(AtomicUsize);

impl Clock for Wild {
    fn now(&self) -> Tick {
        let call = self.0.fetch_add(1, Relaxed);
        [5, 0, 3, 1 << 40, 7, Tick::MAX - 1, 0, Tick::MAX][call % 8]
    }
}

#[test]
fn a_clock_that_goes_back_and_to_the_end_of_time_fires_each_timer_once() {
    let (publisher, log) = channel::<u64, SpinYield>(64);
    let mut subscription = log.subscribe().unwrap();
    let (mut timers, control) =
        TimerPublisher::new(Wild::default(), publisher, |_, key, (): ()| key);
    for key in 0..8 {
        control.start(
            key,
            [0, 4, 1 << 39, 1 << 50, Tick::MAX][key as usize % 5],
            (),
        );
    }
    drop(control);
    for _ in 0..64 {
        let _ = timers.turn();
    }
    drop(timers);
    let mut fired = Vec::new();
    while let Ok(batch) = subscription.try_next_batch() {
        fired.extend(batch.iter().map(|(_, key)| *key));
    }
    fired.sort_unstable();
    let len = fired.len();
    fired.dedup();
    assert_eq!(fired.len(), len, "a timer fired twice");
    assert!(len >= 6, "{fired:?}");
}

/// A pool that loses every second value, and claims a larger capacity than it has.
struct Leaky(Lifo<Value>);

impl Pool<Value> for Leaky {
    const ORDER: Order = Order::Total;

    fn with_capacity(_: usize) -> Self {
        Leaky(Lifo::with_capacity(4))
    }

    fn push(&self, value: Value) -> Result<(), Value> {
        match value.number % 2 {
            0 => Ok(()),
            _ => self.0.push(value),
        }
    }

    fn pop(&self) -> Option<Value> {
        self.0.pop()
    }

    fn len(&self) -> usize {
        usize::MAX
    }
}

#[test]
fn a_pool_that_loses_values_drops_each_once() {
    let live = Live::default();
    let (mut publisher, share) = WorkShare::<Value, Leaky, Yes>::open(1);
    let mut worker = share.join().unwrap();
    for number in 0..8 {
        assert!(publisher.offer(live.value(number)).is_ok());
    }
    assert_eq!(share.backlog(), usize::MAX);
    assert_eq!(std::iter::from_fn(|| worker.try_take().ok()).count(), 4);
    drop((publisher, share, worker));
    assert_eq!(live.alive(), 0);
}

/// A state whose fingerprints change with every call.
#[derive(Clone, Default)]
struct Unsteady(Arc<AtomicUsize>);

impl Observe for Unsteady {
    const FIELDS: &'static [&'static str] = &["one", "two"];

    fn fingerprints(&self, out: &mut [u64]) {
        out.fill(self.0.fetch_add(1, Relaxed) as u64);
    }
}

#[test]
fn a_state_whose_fingerprints_change_is_reported_and_keeps_no_replica() {
    let apply = |_: &mut Unsteady, _, _: &u64| ();
    let group = Group::builder(Unsteady::default(), 3)
        .observe(1)
        .spawn(apply, |(), _| ())
        .unwrap();
    let mut publisher = group.publisher();
    for n in 0..100 {
        publisher.publish(n).unwrap();
    }
    drop(publisher);
    assert!(group.shut_down().is_ok());
}

// Replicated state.

/// A state, whose operations and answers own memory, too. Any call of its code may panic.
struct Unruly(Value);

impl Clone for Unruly {
    fn clone(&self) -> Self {
        self.0.check();
        Hooked.notify();
        Unruly(self.0.live.acting(self.0.number, || Hooked.notify()))
    }
}

impl StateMachine for Unruly {
    type Op = Value;
    type Answer = Value;

    fn apply(&mut self, op: &Value) -> Value {
        op.check();
        Hooked.notify();
        let (live, sum) = (&op.live, self.0.number + op.number);
        let answer = live.acting(sum, || Hooked.notify());
        self.0 = live.acting(sum, || Hooked.notify());
        answer
    }
}

#[test]
fn replicated_state_whose_code_panics_anywhere() {
    for nth in 0..100 {
        let live = Live::default();
        let builder = Replicated::builder(Unruly(live.value(0)));
        let builder = builder.replicas(2).capacity(2).patience(Duration::ZERO);
        let replicas = builder.build().unwrap();
        let mut handles = [0, 1].map(|id| replicas.handle_on(id).unwrap());
        let panicked = with_a_panic(nth, || {
            for n in 0..12 {
                let handle = &mut handles[n % 2];
                let op = live.acting(1, || Hooked.notify());
                match n % 3 {
                    0 => drop(handle.submit(op)),
                    _ => drop(handle.write(op).map(|answer| answer.check())),
                }
                let _ = handle.read(|state| state.0.check());
                match n {
                    6 => drop(replicas.leave(1)),
                    8 => drop(replicas.join()),
                    _ => {}
                }
            }
        });
        let stats = replicas.stats();
        assert!(nth > 0 || panicked || stats.panicked > 0, "{stats:?}");
        for handle in &mut handles {
            let _ = handle.read(|state| state.0.check());
        }
        drop((handles, replicas));
        assert_eq!(live.alive(), 0, "after panic {nth}");
    }
}
