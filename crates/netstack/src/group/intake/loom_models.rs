//! Loom models of the batches (`.ci/run`). Each names the faults that it would catch.
//!
//! Batches are recognised by their length: batch k has k + 1 frames. Each model fixes which
//! worker has the device and which has the receive pump, since [`Exclusive`] has its own models.

use std::sync::Arc;

use dominoes_drivers::Frame;
use loom::thread;

use super::*;

/// All interleavings with at most three involuntary switches.
fn model(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

/// Claims the next batch, number `number`; `None` if there is no place for it.
fn claim(waiting: &WaitingBatches, number: u64) -> Option<Batch> {
    let frames = (0..=number).map(|_| Frame::from_bytes(&[]));
    match waiting.claim((0, Instant::ZERO), || Some(frames.collect())) {
        Claim::Batch(claimed, batch) => {
            assert_eq!(claimed, number);
            Some(batch)
        }
        Claim::NoPlace => None,
        Claim::DeviceEmpty => unreachable!("the device has frames"),
    }
}

/// The result of worker `worker` for `batch`.
fn parse(worker: u8, batch: &Batch) -> Box<Parsed> {
    Box::new(Parsed {
        batch: Some(Batch::clone(batch)),
        worker,
        segments: batch.len() as u64,
        ..Parsed::default()
    })
}

/// Puts a result into its place, and retries if that is taken. Returns whether it was the first.
fn put(waiting: &WaitingBatches, number: u64, mut parsed: Box<Parsed>) -> bool {
    loop {
        match waiting.put(number, parsed) {
            Put::Done => return true,
            Put::Late(_) => return false,
            Put::Again(again) => parsed = again,
        }
        thread::yield_now();
    }
}

/// Parses the oldest batch if it waits for that. Returns whether the result counted.
fn help(waiting: &WaitingBatches, worker: u8) -> bool {
    match waiting.oldest_unparsed(Instant::ZERO) {
        Some((number, batch)) => put(waiting, number, parse(worker, &batch)),
        None => false,
    }
}

/// Publishes all parsed batches. Returns each with the worker that parsed it.
fn publish(waiting: &WaitingBatches) -> Vec<(u64, u8)> {
    let mut published = Vec::new();
    while let Oldest::Place(place) = waiting.oldest() {
        let Place::Parsed(parsed) = &*place.content else {
            break;
        };
        published.push((parsed.segments - 1, parsed.worker));
        waiting.publish(place);
    }
    published
}

fn numbers(published: &[(u64, u8)]) -> Vec<u64> {
    published.iter().map(|(number, _)| *number).collect()
}

/// Catches: a batch that is published before it is parsed, or before an older one; one that is
/// lost; a result that is read before it is written.
#[test]
fn batches_are_published_in_the_order_in_which_they_were_claimed() {
    model(|| {
        let waiting = Arc::new(WaitingBatches::new());
        let parsers = [0, 1].map(|number| {
            let batch = claim(&waiting, number).expect("there are two places");
            let waiting = Arc::clone(&waiting);
            thread::spawn(move || put(&waiting, number, parse(number as u8, &batch)))
        });
        let mut published = publish(&waiting);
        for parser in parsers {
            assert!(parser.join().unwrap(), "nobody else parses it");
        }
        published.extend(publish(&waiting));
        assert_eq!(published, [(0, 0), (1, 1)]);
        assert!(!waiting.is_any_waiting());
    });
}

/// Catches: a batch that is published twice, or never, because the results of two workers
/// replace each other.
#[test]
fn of_a_claimer_and_two_helpers_that_race_one_result_counts() {
    model(|| {
        let waiting = Arc::new(WaitingBatches::new());
        let batch = claim(&waiting, 0).expect("there is a place");
        let helpers = [1, 2].map(|worker| {
            let waiting = Arc::clone(&waiting);
            thread::spawn(move || help(&waiting, worker))
        });
        let mut counted = vec![put(&waiting, 0, parse(0, &batch))];
        let mut published = publish(&waiting);
        counted.extend(helpers.map(|helper| helper.join().unwrap()));
        published.extend(publish(&waiting));
        let parser = counted.iter().position(|first| *first).expect("one counts");
        assert_eq!(counted.iter().filter(|first| **first).count(), 1);
        assert_eq!(published, [(0, parser as u8)]);
    });
}

/// Catches: a batch that no worker parses any more, because a worker that died had it.
#[test]
fn a_batch_outlives_its_claimer_and_a_helper_that_dies() {
    model(|| {
        let waiting = Arc::new(WaitingBatches::new());
        // The claimer dies at once.
        drop(claim(&waiting, 0));
        let dies = {
            let waiting = Arc::clone(&waiting);
            thread::spawn(move || {
                let found = waiting.oldest_unparsed(Instant::ZERO);
                let parsed = found.map(|(_, batch)| parse(1, &batch));
                drop(parsed);
            })
        };
        let mut counted = help(&waiting, 2);
        dies.join().unwrap();
        // The place was taken while the other worker looked at it.
        counted |= help(&waiting, 2);
        assert!(counted);
        assert_eq!(publish(&waiting), [(0, 2)]);
    });
}

/// Catches: a result that comes late and replaces a later batch in the same place, or its result; a
/// place that is claimed again while it is read.
#[test]
fn a_late_result_leaves_the_next_batch_of_its_place_alone() {
    model(|| {
        let waiting = Arc::new(WaitingBatches::new());
        let first = claim(&waiting, 0).expect("there is a place");
        let late = {
            let waiting = Arc::clone(&waiting);
            thread::spawn(move || put(&waiting, 0, parse(9, &first)))
        };
        let claimer = {
            let waiting = Arc::clone(&waiting);
            thread::spawn(move || {
                // Batch 2 has the place of batch 0.
                let batches = [1, 2].map(|number| (number, claim(&waiting, number)));
                for (number, batch) in batches {
                    if let Some(batch) = batch {
                        assert!(put(&waiting, number, parse(number as u8, &batch)));
                    }
                }
            })
        };
        let helped = help(&waiting, 8);
        let mut published = publish(&waiting);
        claimer.join().unwrap();
        assert!(late.join().unwrap() || helped);
        published.extend(publish(&waiting));
        let [zero, rest @ ..] = &published[..] else {
            panic!("batch 0 is lost");
        };
        assert_eq!(*zero, (0, if helped { 8 } else { 9 }));
        assert!(rest.starts_with(&[(1, 1)]) && rest.len() <= 2, "{rest:?}");
        assert!(
            rest.iter()
                .all(|(number, worker)| *number == u64::from(*worker))
        );
        assert_eq!(
            numbers(&published),
            (0..published.len() as u64).collect::<Vec<_>>()
        );
    });
}

/// Catches: a claimer that does not see that a place is free again.
#[test]
fn a_published_batch_makes_room_for_another_one() {
    model(|| {
        let waiting = Arc::new(WaitingBatches::new());
        for number in [0, 1] {
            let batch = claim(&waiting, number).expect("there are two places");
            assert!(put(&waiting, number, parse(0, &batch)));
        }
        assert!(claim(&waiting, 2).is_none(), "both places are in use");
        let publisher = {
            let waiting = Arc::clone(&waiting);
            thread::spawn(move || numbers(&publish(&waiting)))
        };
        let early = claim(&waiting, 2);
        assert_eq!(publisher.join().unwrap(), [0, 1]);
        let batch = early
            .or_else(|| claim(&waiting, 2))
            .expect("a place is free");
        assert!(put(&waiting, 2, parse(0, &batch)));
        assert_eq!(numbers(&publish(&waiting)), [2]);
    });
}
