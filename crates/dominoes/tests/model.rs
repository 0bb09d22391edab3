//! Random call sequences compared with a plain model: a vector of all published entries and a
//! cursor for each subscription.

use dominoes::{BatchError, NoBatch, Publisher, SpinYield, Subscription, TryPublishError, channel};
use proptest::prelude::*;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

#[derive(Debug, Clone)]
enum Call {
    Publish(usize),
    PublishAll(usize, usize),
    ClonePublisher(usize),
    DropPublisher(usize),
    Close(usize),
    Subscribe,
    Fork(usize),
    Leave(usize),
    Pause(usize),
    Batch(usize, usize),
    Early(usize, usize),
    Peek(usize, usize),
    Advance(usize, usize),
    Tidy,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let i = 0..4usize;
    let n = 0..7usize;
    prop::collection::vec(
        prop_oneof![
            6 => i.clone().prop_map(Call::Publish),
            4 => (i.clone(), n.clone()).prop_map(|(i, n)| Call::PublishAll(i, n)),
            1 => i.clone().prop_map(Call::ClonePublisher),
            1 => i.clone().prop_map(Call::DropPublisher),
            1 => (0..40usize).prop_map(Call::Close),
            2 => Just(Call::Subscribe),
            2 => i.clone().prop_map(Call::Fork),
            1 => i.clone().prop_map(Call::Leave),
            1 => i.clone().prop_map(Call::Pause),
            5 => (i.clone(), 1..6usize).prop_map(|(i, n)| Call::Batch(i, n)),
            2 => (i.clone(), n.clone()).prop_map(|(i, n)| Call::Early(i, n)),
            3 => (i.clone(), n.clone()).prop_map(|(i, n)| Call::Peek(i, n)),
            3 => (i, n).prop_map(|(i, n)| Call::Advance(i, n)),
            1 => Just(Call::Tidy),
        ],
        1..80,
    )
}

/// A payload that is identified by a number.
trait Payload: Send + Sync {
    fn new(number: usize, alive: &Arc<AtomicUsize>) -> Self;
    fn number(&self) -> usize;
}

impl Payload for usize {
    fn new(number: usize, _: &Arc<AtomicUsize>) -> Self {
        number
    }
    fn number(&self) -> usize {
        *self
    }
}

struct Counted(usize, Arc<AtomicUsize>);

impl Payload for Counted {
    fn new(number: usize, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        Counted(number, alive.clone())
    }
    fn number(&self) -> usize {
        self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        assert!(self.1.fetch_sub(1, Ordering::Relaxed) > 0, "dropped twice");
    }
}

fn pick<T>(from: &[T], i: usize) -> Option<usize> {
    (!from.is_empty()).then(|| i % from.len())
}

fn run<T: Payload>(capacity: usize, calls: &[Call]) {
    let alive = Arc::new(AtomicUsize::new(0));
    let (publisher, log) = channel::<T, SpinYield>(capacity);
    let mut publishers: Vec<Publisher<T>> = vec![publisher];
    // Each with the model's cursor and its last polled end.
    let mut subscriptions: Vec<(Subscription<T>, usize, usize)> = Vec::new();
    let mut published: Vec<usize> = Vec::new();
    let mut closed = false;
    let mut number = 0;
    for call in calls {
        let least = subscriptions
            .iter()
            .map(|(_, cursor, _)| *cursor)
            .min()
            .unwrap_or(published.len());
        let room = capacity - (published.len() - least);
        match *call {
            Call::Publish(i) => {
                let Some(i) = pick(&publishers, i) else {
                    continue;
                };
                number += 1;
                match publishers[i].try_publish(T::new(number, &alive)) {
                    Ok(seq) => {
                        assert!(!closed && room > 0);
                        assert_eq!(seq, published.len() as u64);
                        published.push(number);
                    }
                    Err(TryPublishError::Full(back)) => {
                        assert!(!closed && room == 0);
                        assert_eq!(back.number(), number);
                    }
                    Err(TryPublishError::Closed(_)) => assert!(closed),
                }
            }
            Call::PublishAll(i, n) => {
                let Some(i) = pick(&publishers, i) else {
                    continue;
                };
                let values: Vec<T> = (0..n).map(|k| T::new(number + 1 + k, &alive)).collect();
                number += n;
                match publishers[i].try_publish_all(values) {
                    Ok(range) => {
                        assert!(n == 0 || (!closed && n <= room));
                        assert_eq!(range, published.len() as u64..(published.len() + n) as u64);
                        published.extend(number + 1 - n..=number);
                    }
                    Err(BatchError::Full(back)) => {
                        assert!(!closed && back.len() == n && n > room && n <= capacity)
                    }
                    Err(BatchError::Closed(back)) => assert!(closed && back.len() == n),
                    Err(BatchError::TooLong(back)) => assert!(back.len() == n && n > capacity),
                }
            }
            Call::ClonePublisher(i) => {
                if let Some(i) = pick(&publishers, i) {
                    let clone = publishers[i].clone();
                    publishers.push(clone);
                }
            }
            Call::DropPublisher(i) => {
                if let Some(i) = pick(&publishers, i) {
                    publishers.swap_remove(i);
                    closed |= publishers.is_empty();
                }
            }
            Call::Close(i) => {
                if let Some(publisher) = publishers.get_mut(i) {
                    publisher.close();
                    closed = true;
                }
            }
            Call::Subscribe => {
                let subscription = log.subscribe().unwrap();
                assert_eq!(subscription.position(), published.len() as u64);
                subscriptions.push((subscription, published.len(), published.len()));
            }
            Call::Fork(i) => {
                if let Some(i) = pick(&subscriptions, i) {
                    let (parent, cursor, seen) = &subscriptions[i];
                    let fork = (parent.fork().unwrap(), *cursor, *seen);
                    subscriptions.push(fork);
                }
            }
            Call::Leave(i) => {
                if let Some(i) = pick(&subscriptions, i) {
                    subscriptions.swap_remove(i);
                }
            }
            Call::Pause(i) => {
                if let Some(i) = pick(&subscriptions, i) {
                    let (subscription, ..) = subscriptions.swap_remove(i);
                    let subscription = subscription.deactivate().activate();
                    assert_eq!(subscription.position(), published.len() as u64);
                    subscriptions.push((subscription, published.len(), published.len()));
                }
            }
            Call::Batch(i, limit) => {
                let Some(i) = pick(&subscriptions, i) else {
                    continue;
                };
                let (subscription, cursor, seen) = &mut subscriptions[i];
                subscription.set_batch_limit(limit);
                match subscription.try_next_batch() {
                    Ok(batch) => {
                        let numbers: Vec<usize> =
                            batch.iter().map(|(_, value)| value.number()).collect();
                        let end = published.len().min(*cursor + limit);
                        assert_eq!(numbers, published[*cursor..end]);
                        assert_eq!(batch.first_seq(), *cursor as u64);
                        *cursor = end;
                    }
                    Err(NoBatch::Empty) => assert!(*cursor == published.len() && !closed),
                    Err(NoBatch::Closed) => assert!(*cursor == published.len() && closed),
                    Err(NoBatch::Evicted) => panic!("nobody evicts"),
                }
                *seen = published.len();
            }
            Call::Early(i, n) => {
                let Some(i) = pick(&subscriptions, i) else {
                    continue;
                };
                let (subscription, cursor, seen) = &mut subscriptions[i];
                if let Ok(mut batch) = subscription.try_next_batch() {
                    let to = batch.end_seq().min(batch.first_seq() + n as u64);
                    batch.release_to(to);
                    batch.truncate(to);
                    *cursor = to as usize;
                }
                *seen = published.len();
            }
            Call::Peek(i, n) => {
                let Some(i) = pick(&subscriptions, i) else {
                    continue;
                };
                let (subscription, cursor, seen) = &mut subscriptions[i];
                let at = *cursor + n;
                let expected = (at < *seen).then(|| published[at]);
                assert_eq!(subscription.get(at as u64).map(T::number), expected);
                assert_eq!(subscription.poll(), published.len() as u64);
                *seen = published.len();
                assert_eq!(
                    subscription.get(at as u64).map(T::number),
                    published.get(at).copied()
                );
                assert_eq!(subscription.lag(), (published.len() - *cursor) as u64);
            }
            Call::Advance(i, n) => {
                let Some(i) = pick(&subscriptions, i) else {
                    continue;
                };
                let (subscription, cursor, seen) = &mut subscriptions[i];
                let to = (*cursor + n).min(*seen);
                let (head, rest) = subscription.slices(*cursor as u64, to as u64);
                assert!(
                    head.iter()
                        .chain(rest)
                        .map(T::number)
                        .eq(published[*cursor..to].iter().copied())
                );
                subscription.advance_to(to as u64);
                *cursor = to;
            }
            Call::Tidy => log.tidy(),
        }
        let least = subscriptions
            .iter()
            .map(|(_, cursor, _)| *cursor)
            .min()
            .unwrap_or(published.len());
        assert_eq!(log.len(), published.len() - least);
        assert_eq!(
            (log.subscribers(), log.publishers()),
            (subscriptions.len(), publishers.len())
        );
        assert!(
            !std::mem::needs_drop::<T>()
                || alive.load(Ordering::Relaxed) >= published.len() - least
        );
    }
    drop((publishers, subscriptions, log));
    assert_eq!(alive.load(Ordering::Relaxed), 0, "every value is dropped");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn any_calls_do_what_the_model_does(capacity in 1..6usize, calls in calls()) {
        run::<usize>(capacity, &calls);
    }

    #[test]
    fn any_calls_do_what_the_model_does_with_destructors(capacity in 1..6usize, calls in calls()) {
        run::<Counted>(capacity, &calls);
    }
}
