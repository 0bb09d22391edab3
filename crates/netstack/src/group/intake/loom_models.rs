//! Loom models of the batches (`.ci/run`). Each names the faults that it would catch.
//!
//! Batches are recognised by their length: batch k has k + 1 frames. Each model fixes which
//! worker has the device and which has the receive pump, since [`TryLock`] has its own models.

use std::collections::VecDeque;
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

/// Claims the next batch, number `number`; `None` if there is no slot for it.
fn claim(waiting: &WaitingBatches, number: u64) -> Option<ClaimedFrames> {
    let (claimed, batch) = waiting.claim((0, Instant::ZERO), frames(number)).ok()?;
    assert_eq!(claimed, number);
    Some(batch)
}

fn frames(number: u64) -> Vec<Frame> {
    (0..=number).map(|_| Frame::from_bytes(&[])).collect()
}

/// The result of worker `worker` for `batch`.
fn parse(worker: u8, batch: &ClaimedFrames) -> Box<Parsed> {
    Box::new(Parsed {
        batch: Some(ClaimedFrames::clone(batch)),
        worker,
        segments: batch.len() as u64,
        ..Parsed::default()
    })
}

/// Puts a result into its slot, and retries if that is taken. Returns whether it was the first.
fn put(waiting: &WaitingBatches, number: u64, mut parsed: Box<Parsed>) -> bool {
    loop {
        match waiting.put(number, parsed) {
            Ok(late) => return late.is_none(),
            Err(again) => parsed = again,
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
    while waiting.is_any_waiting()
        && let Some(slot) = waiting.oldest()
    {
        let WaitingSlot::Parsed(parsed) = &*slot else {
            break;
        };
        published.push((parsed.segments - 1, parsed.worker));
        waiting.free_oldest(slot);
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
            let batch = claim(&waiting, number).expect("there are two slots");
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
        let batch = claim(&waiting, 0).expect("there is a slot");
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
        // The slot was taken while the other worker looked at it.
        counted |= help(&waiting, 2);
        assert!(counted);
        assert_eq!(publish(&waiting), [(0, 2)]);
    });
}

/// Catches: a result that comes late and replaces a later batch in the same slot, or its result; a
/// slot that is claimed again while it is read.
#[test]
fn a_late_result_leaves_the_next_batch_of_its_place_alone() {
    model(|| {
        let waiting = Arc::new(WaitingBatches::new());
        let first = claim(&waiting, 0).expect("there is a slot");
        let late = {
            let waiting = Arc::clone(&waiting);
            thread::spawn(move || put(&waiting, 0, parse(9, &first)))
        };
        let claimer = {
            let waiting = Arc::clone(&waiting);
            thread::spawn(move || {
                // Batch 2 has the slot of batch 0.
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

/// Catches: a claimer that does not see that a slot is free again.
#[test]
fn a_published_batch_makes_room_for_another_one() {
    model(|| {
        let waiting = Arc::new(WaitingBatches::new());
        for number in [0, 1] {
            let batch = claim(&waiting, number).expect("there are two slots");
            assert!(put(&waiting, number, parse(0, &batch)));
        }
        assert!(claim(&waiting, 2).is_none(), "both slots are in use");
        let publisher = {
            let waiting = Arc::clone(&waiting);
            thread::spawn(move || numbers(&publish(&waiting)))
        };
        let early = claim(&waiting, 2);
        assert_eq!(publisher.join().unwrap(), [0, 1]);
        let batch = early
            .or_else(|| claim(&waiting, 2))
            .expect("a slot is free");
        assert!(put(&waiting, 2, parse(0, &batch)));
        assert_eq!(numbers(&publish(&waiting)), [2]);
    });
}

/// A queue of the device, with the lengths of its batches.
type Queue = TryLock<VecDeque<u64>>;

/// Claims a batch from a queue as a worker does, and parses it. Returns its number.
fn claim_from(queue: &Queue, waiting: &WaitingBatches, worker: u8) -> Option<u64> {
    let mut claimer = queue.try_take()?;
    let next = claimer.pop_front()?;
    match waiting.claim((0, Instant::ZERO), frames(next)) {
        Ok((number, batch)) => {
            drop(claimer);
            assert!(put(waiting, number, parse(worker, &batch)));
            Some(number)
        }
        Err(frames) => {
            claimer.push_front(frames.len() as u64 - 1);
            None
        }
    }
}

/// Catches: two batches with one number, a number without a batch, batches of a queue out of order,
/// whichever worker claims them, and frames that are lost because there is no slot for them.
#[test]
fn two_workers_claim_from_two_queues_and_each_queue_keeps_its_order() {
    model(|| {
        let waiting = Arc::new(WaitingBatches::new());
        let queues: [Queue; 2] = [[0, 1], [10, 11]].map(|own| TryLock::new(own.into()));
        let queues = Arc::new(queues);
        let other = {
            let (waiting, queues) = (Arc::clone(&waiting), Arc::clone(&queues));
            // It has no more to do in its own queue.
            thread::spawn(move || [1, 0].map(|queue| claim_from(&queues[queue], &waiting, 1)))
        };
        let own = claim_from(&queues[0], &waiting, 0);
        let mut published = publish(&waiting);
        let others = other.join().unwrap();
        let claimed = others.into_iter().chain([own]).flatten().count();
        assert!(claimed > 0);
        published.extend(publish(&waiting));
        assert_eq!(published.len(), claimed, "each batch is published once");
        // What is left follows.
        for queue in queues.iter() {
            while claim_from(queue, &waiting, 0).is_some() {
                published.extend(publish(&waiting));
            }
        }
        let in_queue = |from: u64| {
            let all = numbers(&published).into_iter();
            all.filter(move |number| (from..from + 2).contains(number))
        };
        assert!(
            in_queue(0).eq([0, 1]) && in_queue(10).eq([10, 11]),
            "{published:?}"
        );
        assert!(!waiting.is_any_waiting());
    });
}

/// Catches: a frame that a worker publishes in one step before a batch that another worker claimed
/// earlier from the same queue.
#[test]
fn what_is_published_in_one_step_comes_after_all_batches_of_its_queue() {
    model(|| {
        let waiting = Arc::new(WaitingBatches::new());
        let queue: Arc<Queue> = Arc::new(TryLock::new([0, 1].into()));
        let other = {
            let (waiting, queue) = (Arc::clone(&waiting), Arc::clone(&queue));
            thread::spawn(move || claim_from(&queue, &waiting, 1))
        };
        let mut published = numbers(&publish(&waiting));
        if let Some(mut claimer) = queue.try_take()
            && !waiting.is_any_waiting()
        {
            published.extend(claimer.pop_front());
        }
        other.join().unwrap();
        published.extend(numbers(&publish(&waiting)));
        while claim_from(&queue, &waiting, 0).is_some() {
            published.extend(numbers(&publish(&waiting)));
        }
        assert_eq!(published, [0, 1]);
    });
}

/// Catches: a batch that is lost with the worker that claimed it from a queue, and a queue that
/// nobody serves any more.
#[test]
fn a_queue_outlives_a_worker_that_dies_between_claim_and_publish() {
    model(|| {
        let waiting = Arc::new(WaitingBatches::new());
        let queues: [Queue; 2] = [[0], [10]].map(|own| TryLock::new(own.into()));
        let queues = Arc::new(queues);
        let dies = {
            let (waiting, queues) = (Arc::clone(&waiting), Arc::clone(&queues));
            thread::spawn(move || {
                let mut claimer = queues[1].try_take()?;
                let frames = frames(claimer.pop_front()?);
                waiting.claim((0, Instant::ZERO), frames).err()
            })
        };
        let mut published = Vec::new();
        claim_from(&queues[0], &waiting, 0);
        published.extend(publish(&waiting));
        if let Some(frames) = dies.join().unwrap() {
            // There was no slot at that moment, and the worker lived on.
            let mut claimer = queues[1].try_take().expect("it was released");
            claimer.push_front(frames.len() as u64 - 1);
        }
        for queue in queues.iter() {
            claim_from(queue, &waiting, 0);
            help(&waiting, 0);
            published.extend(publish(&waiting));
        }
        let mut found = numbers(&published);
        found.sort_unstable();
        assert_eq!(found, [0, 10]);
    });
}
