//! Every value is dropped exactly once, and not later than promised.

use dominoes::{BatchError, SpinYield, TryPublishError, channel};
use std::sync::{
    Arc,
    atomic::{AtomicIsize, Ordering},
};

#[derive(Default, Clone)]
struct Live(Arc<AtomicIsize>);

struct Counted(Live);

impl Live {
    fn value(&self) -> Counted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(self.clone())
    }
    fn alive(&self) -> isize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        assert!(
            self.0.0.fetch_sub(1, Ordering::Relaxed) > 0,
            "dropped twice"
        );
    }
}

#[test]
fn what_is_still_queued_is_dropped_with_the_channel() {
    let live = Live::default();
    let (mut publisher, log) = channel::<Counted, SpinYield>(8);
    let subscription = log.subscribe().unwrap();
    for _ in 0..5 {
        publisher.publish(live.value()).map_err(drop).unwrap();
    }
    assert_eq!(live.alive(), 5);
    drop((publisher, log, subscription));
    assert_eq!(live.alive(), 0);
}

#[test]
fn released_entries_are_dropped_while_publishing_goes_on() {
    let live = Live::default();
    let (mut publisher, log) = channel::<Counted, SpinYield>(8);
    let mut subscription = log.subscribe().unwrap();
    for round in 0..100 {
        publisher.publish(live.value()).map_err(drop).unwrap();
        drop(subscription.next_batch().unwrap());
        assert!(live.alive() <= 3, "{} alive in round {round}", live.alive());
    }
    log.tidy();
    assert_eq!(live.alive(), 0);
}

#[test]
fn a_refused_value_comes_back_whole() {
    let live = Live::default();
    let (mut publisher, log) = channel::<Counted, SpinYield>(2);
    let _subscription = log.subscribe().unwrap();
    publisher.try_publish(live.value()).map_err(drop).unwrap();
    publisher.try_publish(live.value()).map_err(drop).unwrap();
    match publisher.try_publish(live.value()) {
        Err(TryPublishError::Full(value)) => drop(value),
        _ => panic!("there is no room"),
    }
    match publisher.try_publish_all([live.value(), live.value()]) {
        Err(BatchError::Full(values)) => assert_eq!(values.len(), 2),
        _ => panic!("there is no room"),
    }
    match publisher.try_publish_all([live.value(), live.value(), live.value()]) {
        Err(BatchError::TooLong(values)) => assert_eq!(values.len(), 3),
        _ => panic!("too long"),
    }
    assert_eq!(live.alive(), 2);
}
