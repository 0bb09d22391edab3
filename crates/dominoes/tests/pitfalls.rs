//! Bugs that other channels had, numbered as in our notes. Each has a test that shows that this
//! channel does not have it.
//!
//! The bugs were reported or described for these projects: LMAX Disruptor, disruptor-rs,
//! photon-ring, bus, multiqueue, tokio's broadcast, async-broadcast, crossbeam, heapless.

use dominoes::{BatchError, Closed, NoBatch, Park, SpinYield, TryPublishError, channel};
use std::{
    mem,
    panic::catch_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Counts drops.
#[derive(Clone)]
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(20)
}

#[test]
fn p02_publishing_with_nobody_there_does_not_overrun_who_comes_later() {
    let (mut publisher, log) = channel::<u32, SpinYield>(4);
    for n in 0..1000 {
        publisher.try_publish(n).unwrap();
    }
    let mut subscription = log.subscribe().unwrap();
    for n in 0..4 {
        publisher.try_publish(n).unwrap();
    }
    assert!(publisher.try_publish(4).unwrap_err().is_full());
    subscription.set_batch_limit(4);
    assert_eq!(
        subscription
            .try_next_batch()
            .unwrap()
            .iter()
            .map(|(_, n)| *n)
            .collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
}

#[test]
fn p03_a_subscriber_that_joins_under_load_is_not_lapped() {
    let (mut publisher, log) = channel::<u64, SpinYield>(2);
    let writer =
        thread::spawn(move || (0..30_000).for_each(|n| assert!(publisher.publish(n).is_ok())));
    loop {
        let mut subscription = log.subscribe().unwrap();
        let start = subscription.position();
        let Some(batch) = subscription.next_batch() else {
            break;
        };
        for ((seq, n), expected) in batch.iter().zip(start..) {
            assert_eq!((seq, *n), (expected, expected));
        }
    }
    writer.join().unwrap();
}

#[test]
fn p04_more_publishers_than_slots_never_meet_in_a_slot() {
    for subscribed in [true, false] {
        let (publisher, log) = channel::<[u64; 4], SpinYield>(1);
        let subscription = subscribed.then(|| log.subscribe().unwrap());
        let writers: Vec<_> = (0..4u64)
            .map(|id| {
                let mut publisher = publisher.clone();
                thread::spawn(move || {
                    (0..500).for_each(|n| assert!(publisher.publish([id << 32 | n; 4]).is_ok()))
                })
            })
            .collect();
        drop(publisher);
        let mut count = 0;
        if let Some(mut subscription) = subscription {
            while let Some(batch) = subscription.next_batch() {
                for (_, entry) in &batch {
                    assert!(
                        entry.iter().all(|word| *word == entry[0]),
                        "torn: {entry:?}"
                    );
                    count += 1;
                }
            }
            assert_eq!(count, 2000);
        }
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
    }
}

#[test]
fn p05_no_wake_up_is_lost_between_two_who_park() {
    let (mut there, out) = channel::<u32, Park>(1);
    let (mut back, home) = channel::<u32, Park>(1);
    let mut incoming = out.subscribe().unwrap();
    let mut replies = home.subscribe().unwrap();
    let echo = thread::spawn(move || {
        while let Some(batch) = incoming.next_batch() {
            back.publish(batch.as_slices().0[0]).unwrap();
        }
    });
    for n in 0..3000 {
        there.publish(n).unwrap();
        assert_eq!(replies.next_batch().unwrap().as_slices().0, [n]);
    }
    drop(there);
    echo.join().unwrap();
}

#[test]
fn p05_all_who_park_are_woken_at_once() {
    let (mut publisher, log) = channel::<u32, Park>(4);
    let sleepers: Vec<_> = (0..4)
        .map(|_| {
            let mut subscription = log.subscribe().unwrap();
            thread::spawn(move || subscription.next_batch().unwrap().len())
        })
        .collect();
    thread::sleep(Duration::from_millis(20));
    publisher.publish(1).unwrap();
    sleepers
        .into_iter()
        .for_each(|sleeper| assert_eq!(sleeper.join().unwrap(), 1));
}

// `adversarial.rs` has p01 (`an_iterator_that_panics` and the next one), p08
// (`a_range_that_is_not_readable`), p09 and p10 (`a_destructor_that_panics_while_...`) and p23
// (`a_forgotten_guard_keeps_its_entries`). tests/loom.rs checks p06 (orderings). The compiler
// rejects p07 (`&T` shared without `T: Sync`), which a documentation example of `channel` tests.

#[test]
fn p11_released_values_do_not_live_until_they_are_overwritten() {
    let drops = Arc::new(AtomicUsize::new(0));
    let (mut publisher, log) = channel::<Counted, SpinYield>(1000);
    let mut subscription = log.subscribe().unwrap();
    for n in 1..=1000 {
        publisher.publish(Counted(drops.clone())).ok().unwrap();
        drop(subscription.next_batch());
        assert!(
            n - drops.load(Ordering::Relaxed) <= 251,
            "a quarter of the capacity, and one"
        );
    }
    drop(subscription);
    assert_eq!(drops.load(Ordering::Relaxed), 1000);
}

#[test]
fn p12_a_thread_with_both_sides_uses_try_and_sees_full() {
    let (mut publisher, log) = channel::<u32, SpinYield>(1);
    let mut subscription = log.subscribe().unwrap();
    publisher.try_publish(1).unwrap();
    assert_eq!(publisher.try_publish(2), Err(TryPublishError::Full(2)));
    assert_eq!(
        publisher.publish_deadline(2, soon()),
        Err(TryPublishError::Full(2))
    );
    drop(subscription.try_next_batch().unwrap());
    publisher.publish_deadline(2, soon()).unwrap();
}

#[test]
fn p13_a_handler_that_panics_does_not_stop_the_publishers() {
    let (mut publisher, log) = channel::<u32, SpinYield>(2);
    let mut subscription = log.subscribe().unwrap();
    let handler = thread::spawn(move || {
        let batch = subscription.next_batch().unwrap();
        assert!(
            batch.is_empty(),
            "a handler that panics with its batch in hand"
        );
    });
    for n in 0..100 {
        publisher.publish(n).unwrap();
    }
    assert!(handler.join().is_err());
    assert_eq!(log.subscribers(), 0);
}

#[test]
fn p14_closing_loses_nothing_and_always_ends() {
    for _ in 0..200 {
        let (mut publisher, log) = channel::<u32, SpinYield>(4);
        let mut second = publisher.clone();
        let mut subscription = log.subscribe().unwrap();
        let reader = thread::spawn(move || {
            let mut count = 0;
            while let Some(batch) = subscription.next_batch() {
                count += batch.len();
            }
            assert!(subscription.is_finished());
            count
        });
        let writer =
            thread::spawn(move || (0..50).take_while(|n| second.publish(*n).is_ok()).count());
        (0..5).for_each(|n| assert!(publisher.publish(n).is_ok()));
        publisher.close();
        assert_eq!(publisher.publish(7), Err(Closed(7)));
        assert!(
            matches!(publisher.publish_all([7, 8]), Err(BatchError::Closed(back)) if back == [7, 8])
        );
        assert!(matches!(
            publisher.publish_slice(&[7, 8]),
            Err(BatchError::Closed(&[7, 8]))
        ));
        assert_eq!(reader.join().unwrap(), writer.join().unwrap() + 5);
    }
}

#[test]
fn p14_closing_wakes_publishers_that_wait_for_room() {
    let (mut publisher, log) = channel::<u32, Park>(1);
    let _subscription = log.subscribe().unwrap();
    let mut second = publisher.clone();
    publisher.publish(1).unwrap();
    let waiting = thread::spawn(move || second.publish(2));
    thread::sleep(Duration::from_millis(10));
    publisher.close();
    assert_eq!(waiting.join().unwrap(), Err(Closed(2)));
}

#[test]
fn p15_leaving_takes_no_entry_from_others() {
    let (mut publisher, log) = channel::<u32, SpinYield>(4);
    let mut stays = log.subscribe().unwrap();
    let mut leaves = log.subscribe().unwrap();
    publisher.publish_all([1, 2]).unwrap();
    let batch = leaves.next_batch().unwrap();
    mem::forget(batch);
    drop(leaves);
    assert_eq!(stays.try_next_batch().unwrap().as_slices().0, [1]);
    assert_eq!(stays.try_next_batch().unwrap().as_slices().0, [2]);
}

#[test]
fn p16_many_threads_on_few_cores_make_progress() {
    let (publisher, log) = channel::<u32, SpinYield>(2);
    let readers: Vec<_> = (0..6)
        .map(|_| {
            let mut subscription = log.subscribe().unwrap();
            thread::spawn(move || {
                let mut count = 0;
                while let Some(batch) = subscription.next_batch() {
                    count += batch.len();
                }
                count
            })
        })
        .collect();
    let writers: Vec<_> = (0..6)
        .map(|_| {
            let mut publisher = publisher.clone();
            thread::spawn(move || (0..50).for_each(|n| assert!(publisher.publish(n).is_ok())))
        })
        .collect();
    drop(publisher);
    writers
        .into_iter()
        .for_each(|writer| writer.join().unwrap());
    readers
        .into_iter()
        .for_each(|reader| assert_eq!(reader.join().unwrap(), 300));
}

#[test]
fn p17_a_batch_is_bounded_and_can_be_released_early() {
    let (mut publisher, log) = channel::<u32, SpinYield>(8);
    let mut subscription = log.subscribe().unwrap();
    publisher.publish_slice(&[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
    let batch = subscription.try_next_batch().unwrap();
    assert_eq!(batch.len(), 2);
    drop(batch);
    subscription.set_batch_limit(8);
    let mut batch = subscription.try_next_batch().unwrap();
    assert_eq!(batch.len(), 6);
    batch.release_to(5);
    assert_eq!(publisher.room(), 5);
    assert_eq!(batch.iter().next().unwrap(), (5, &5));
    drop(batch);
    publisher.publish_slice(&[8; 8]).unwrap();
}

#[test]
fn p18_counts_stay_right_over_clones_and_inactive_handles() {
    let (publisher, log) = channel::<u32, SpinYield>(4);
    let clones: Vec<_> = (0..3).map(|_| publisher.clone()).collect();
    assert_eq!(log.publishers(), 4);
    drop(clones);
    assert_eq!(log.publishers(), 1);
    let subscription = log.subscribe().unwrap();
    let fork = subscription.fork().unwrap();
    assert_eq!(log.subscribers(), 2);
    let inactive = fork.deactivate();
    assert_eq!(log.subscribers(), 1);
    drop(inactive.activate());
    drop(subscription.deactivate());
    assert_eq!((log.subscribers(), log.len()), (0, 0));
    let late = log.subscribe().unwrap();
    assert_eq!(late.lag(), 0);
    drop(publisher);
    assert_eq!((late.lag(), log.len(), log.publishers()), (0, 0, 0)); // closing adds no entry
}

#[test]
fn p18_an_inactive_subscription_holds_nobody_up() {
    let (mut publisher, log) = channel::<u32, SpinYield>(2);
    let mut subscription = log.subscribe().unwrap();
    publisher.publish_all([1, 2]).unwrap();
    assert_eq!(subscription.try_next_batch().unwrap().len(), 1);
    let inactive = subscription.deactivate();
    for n in 0..10 {
        publisher.try_publish(n).unwrap();
    }
    let mut subscription = inactive.activate();
    publisher.try_publish(77).unwrap();
    assert_eq!(subscription.try_next_batch().unwrap().as_slices().0, [77]);
}

/// CPU time of this thread in ticks, if the system reports it.
fn cpu_ticks() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[test]
fn p19_an_idle_reader_that_parks_burns_no_time() {
    let (publisher, log) = channel::<u32, Park>(2);
    let mut subscription = log.subscribe().unwrap();
    let reader = thread::spawn(move || {
        let before = cpu_ticks();
        assert!(subscription.next_batch().is_none());
        Some(cpu_ticks()? - before?)
    });
    thread::sleep(Duration::from_millis(300));
    drop(publisher);
    if let Some(ticks) = reader.join().unwrap() {
        assert!(
            ticks <= 10,
            "{ticks} ticks of 10 ms while asleep for 300 ms"
        );
    }
}

#[test]
fn p20_plain_load_from_all_sides_comes_to_an_end() {
    for round in 0..20 {
        let (publisher, log) = channel::<usize, Park>(3);
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let mut subscription = log.subscribe().unwrap();
                thread::spawn(move || {
                    let mut sum = 0;
                    while let Some(batch) = subscription.next_batch() {
                        sum += batch.iter().map(|(_, n)| n).sum::<usize>();
                    }
                    sum
                })
            })
            .collect();
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let mut publisher = publisher.clone();
                thread::spawn(move || {
                    (0..100).for_each(|n| assert!(publisher.publish(n + round).is_ok()))
                })
            })
            .collect();
        drop(publisher);
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        readers
            .into_iter()
            .for_each(|reader| assert_eq!(reader.join().unwrap(), 3 * (4950 + 100 * round)));
    }
}

#[test]
fn p21_a_new_subscription_starts_now() {
    let (mut publisher, log) = channel::<u32, SpinYield>(4);
    let mut old = log.subscribe().unwrap();
    publisher.publish_all([1, 2, 3]).unwrap();
    let mut new = log.subscribe().unwrap();
    assert_eq!(new.position(), 3);
    assert_eq!(new.try_next_batch().unwrap_err(), NoBatch::Empty);
    publisher.publish(4).unwrap();
    assert_eq!(
        new.try_next_batch().unwrap().iter().next().unwrap(),
        (3, &4)
    );
    assert_eq!(
        old.try_next_batch().unwrap().iter().next().unwrap(),
        (0, &1)
    );
}

#[test]
fn p22_no_values_are_a_batch_and_too_many_are_an_error() {
    for shared in [false, true] {
        let (mut publisher, log) = channel::<u32, SpinYield>(3);
        let _other = shared.then(|| publisher.clone());
        let mut subscription = log.subscribe().unwrap();
        assert_eq!(publisher.publish_all([]).unwrap(), 0..0);
        assert_eq!(publisher.publish_slice(&[]).unwrap(), 0..0);
        assert_eq!(publisher.try_publish_all(std::iter::empty()).unwrap(), 0..0);
        assert!(
            matches!(publisher.publish_all([1, 2, 3, 4]), Err(BatchError::TooLong(back)) if back == [1, 2, 3, 4])
        );
        assert!(matches!(
            publisher.publish_slice(&[1; 4]),
            Err(BatchError::TooLong(_))
        ));
        let endless = (0..).take_while(|n| *n < 5);
        assert!(
            matches!(publisher.try_publish_all(endless), Err(BatchError::TooLong(back)) if back.len() == 5)
        );
        assert_eq!(subscription.try_next_batch().unwrap_err(), NoBatch::Empty);
        assert_eq!(publisher.publish_slice(&[1, 2, 3]).unwrap(), 0..3);
        assert!(matches!(
            publisher.try_publish_slice(&[4]),
            Err(BatchError::Full(&[4]))
        ));
        assert_eq!(subscription.next_batch_deadline(soon()).unwrap().len(), 1);
        assert!(publisher.times_full() >= 1);
    }
    assert!(catch_unwind(|| channel::<u32, SpinYield>(0)).is_err());
}

// p24 concerns benchmarks: crates/bench checks every message of every peer.

#[test]
fn an_evicted_subscription_sees_it_at_its_next_look_and_holds_its_entries_till_then() {
    let (mut publisher, log) = channel::<u32, SpinYield>(2);
    let mut slow = log.subscribe().unwrap();
    publisher.publish_all([1, 2]).unwrap();
    assert_eq!(log.lags(), [(slow.number(), 2)]);
    assert!(log.evict(slow.number()));
    assert!(!log.evict(60));
    assert!(publisher.try_publish(3).unwrap_err().is_full());
    assert!(slow.is_evicted());
    assert_eq!(slow.try_next_batch().unwrap_err(), NoBatch::Evicted);
    assert!(slow.next_batch().is_none());
    drop(slow);
    publisher.try_publish(3).unwrap();
    assert!(!log.subscribe().unwrap().is_evicted());
}

#[test]
fn a_fork_with_a_clone_of_the_state_is_a_replica() {
    let (mut publisher, log) = channel::<u64, SpinYield>(8);
    let mut subscription = log.subscribe().unwrap();
    let mut state = 0;
    publisher.publish_all([1, 2, 3]).unwrap();
    subscription
        .next_batch()
        .unwrap()
        .iter()
        .for_each(|(_, n)| state = state * 31 + n);
    let (mut twin, mut twin_state) = (subscription.fork().unwrap(), state);
    publisher.publish_all([4, 5]).unwrap();
    drop(publisher);
    while let Some(batch) = subscription.next_batch() {
        batch.iter().for_each(|(_, n)| state = state * 31 + n);
    }
    while let Some(batch) = twin.next_batch() {
        batch
            .iter()
            .for_each(|(_, n)| twin_state = twin_state * 31 + n);
    }
    assert_eq!(state, twin_state);
    assert_eq!(subscription.position(), twin.position());
}

#[test]
fn there_is_an_end_to_places_and_they_come_back() {
    let (_publisher, log) = channel::<u32, SpinYield>(1);
    let mut all: Vec<_> = (0..dominoes::MAX_SUBSCRIBERS)
        .map(|_| log.subscribe().unwrap())
        .collect();
    assert_eq!(log.subscribe().err(), Some(dominoes::SubscribeError));
    assert_eq!(all[0].fork().err(), Some(dominoes::SubscribeError));
    all.pop();
    assert!(log.subscribe().is_ok());
}
