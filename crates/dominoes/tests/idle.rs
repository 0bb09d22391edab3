//! An idle context sleeps until a source of one of its domains notifies it.
//!
//! Time passes in these tests, but decides nothing: a context that sleeps until it is notified
//! counts the same number of sleeps, however long the test waits. Only a context that polls can
//! fail, by counting more sleeps.

use dominoes::{
    Channel, Context, ContextHandle, Domain, Feed, Handled, Log, ManualClock, NoBatch, Park,
    PoolWorker, Publish, Publisher, Receive, Replica, Semaphore, Served, Service, SpinYield, Then,
    Tick, TimerFeed, TimerPublisher, Unordered, WaitSet, Wheel, WorkShare, channel,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

/// Long enough for dozens of checks by a context that polls.
const A_WHILE: Duration = Duration::from_millis(40);

type Wire = (Publisher<u32, Park>, Log<u32, Park>);

fn wire() -> Wire {
    channel(16)
}

/// A domain that adds up the entries of `wires`.
fn adder(id: u64, wires: &[&Wire]) -> Box<dyn Domain> {
    let mut service = Service::new(id, "adder", 0u64);
    for (_, log) in wires {
        let add = |sum: &mut u64, _, n: &u32| *sum += u64::from(*n);
        service.subscribe(0, log.subscribe().unwrap(), add);
    }
    Box::new(service)
}

fn total(context: &ContextHandle, count: fn(&dominoes::DomainStats) -> u64) -> u64 {
    context.stats().iter().map(count).sum()
}

/// Waits until the context has slept once more, and returns the sum of its domains' sleeps.
fn asleep(context: &ContextHandle, before: u64) -> u64 {
    let domains = loop {
        match context.stats().len() {
            0 => thread::yield_now(), // it is being added
            domains => break domains as u64,
        }
    };
    loop {
        let parks = total(context, |domain| domain.parks);
        if parks >= before + domains {
            return parks;
        }
        thread::yield_now();
    }
}

/// Checks that the context sleeps, stays asleep, and wakes for each publisher.
fn sleeps_until_published(context: &ContextHandle, wires: &mut [Wire]) {
    let mut parks = asleep(context, 0);
    let mut handled = total(context, |domain| domain.handled);
    for round in 0..3 {
        thread::sleep(A_WHILE);
        let now = total(context, |domain| domain.parks);
        assert_eq!(now, parks, "round {round}: it looked though nothing came");
        for (publisher, log) in &mut *wires {
            publisher.publish(1).unwrap();
            handled += log.subscribers() as u64;
            while total(context, |domain| domain.handled) < handled {
                thread::yield_now();
            }
            parks = asleep(context, parks);
        }
    }
}

#[test]
fn a_domain_with_two_feeds_sleeps_until_one_of_them_has_an_entry() {
    let mut wires = [wire(), wire()];
    let domain = adder(1, &[&wires[0], &wires[1]]);
    let context = Context::spawn("t", None, vec![domain]).unwrap();
    sleeps_until_published(&context, &mut wires);
    drop(wires);
    assert_eq!(context.join().unwrap().len(), 1);
}

#[test]
fn a_context_with_three_domains_sleeps_until_one_of_them_has_an_entry() {
    let mut wires = [wire(), wire(), wire()];
    let replica = Replica::new(
        "replica",
        0u64,
        wires[2].1.subscribe().unwrap(),
        |sum: &mut u64, _, n: &u32| *sum += u64::from(*n),
    );
    let domains = vec![
        adder(1, &[&wires[0], &wires[1]]),
        adder(2, &[&wires[1]]),
        Box::new(replica),
    ];
    let context = Context::spawn("t", None, domains).unwrap();
    sleeps_until_published(&context, &mut wires);
    drop(wires);
    assert_eq!(context.join().unwrap().len(), 3);
}

/// Checks that the context sleeps and does not poll for a while. Returns its sleeps so far.
fn stays_asleep(context: &ContextHandle, before: u64) -> u64 {
    let parks = asleep(context, before);
    thread::sleep(A_WHILE);
    let now = total(context, |domain| domain.parks);
    assert_eq!(now, parks, "it looked though nothing came");
    parks
}

fn wait_for(count: &AtomicU64, value: u64) {
    while count.load(Ordering::Relaxed) < value {
        thread::yield_now();
    }
}

#[test]
fn an_entry_that_waits_for_permits_is_shown_again_when_they_are_released() {
    let (mut publisher, log) = wire();
    let shown = Arc::new(AtomicU64::new(0));
    let resolved = Arc::new(Semaphore::new(0));
    let (count, permits) = (shown.clone(), resolved.clone());
    let mut service = Service::new(0, "", ()).with_wake_source(resolved.wake_source());
    service.subscribe(
        0,
        log.subscribe().unwrap(),
        move |_: &mut (), _, _: &u32| {
            if !permits.try_take() {
                return Handled::Wait;
            }
            count.fetch_add(1, Ordering::Relaxed);
            Handled::Done
        },
    );
    publisher.publish_all([1, 2]).unwrap();
    let context = Context::spawn("t", None, vec![Box::new(service)]).unwrap();
    let parks = stays_asleep(&context, 0);
    resolved.release(1);
    wait_for(&shown, 1);
    stays_asleep(&context, parks);
    resolved.release(1);
    wait_for(&shown, 2);
    drop(publisher);
    context.join().unwrap();
}

struct Timers {
    wheel: Wheel<()>,
    fired: Arc<AtomicU64>,
}

#[test]
fn a_domain_with_timers_sleeps_until_its_clock_moves_or_an_entry_comes() {
    let (mut publisher, log) = wire();
    let (clock, fired) = (ManualClock::new(), Arc::new(AtomicU64::new(0)));
    let state = Timers {
        wheel: Wheel::new(0),
        fired: fired.clone(),
    };
    let mut service = Service::new(0, "", state);
    let start = |state: &mut Timers, _, ticks: &u32| {
        state.wheel.start(Tick::from(*ticks), ());
    };
    service.subscribe(0, log.subscribe().unwrap(), start);
    let fire = |state: &mut Timers, _, ()| {
        state.fired.fetch_add(1, Ordering::Relaxed);
    };
    service.add_feed(
        0,
        TimerFeed::new(clock.clone(), |state: &mut Timers| &mut state.wheel, fire),
    );
    let context = Context::spawn("t", None, vec![Box::new(service)]).unwrap();
    let mut parks = stays_asleep(&context, 0);
    for round in 1..=2 {
        publisher.publish(round * 10).unwrap();
        while context.stats()[0].handled < u64::from(round) * 2 - 1 {
            thread::yield_now();
        }
        parks = stays_asleep(&context, parks);
        clock.pass(10);
        wait_for(&fired, round.into());
        parks = stays_asleep(&context, parks);
    }
    context.stop();
    context.join().unwrap();
}

#[test]
fn a_timer_publisher_sleeps_until_an_order_comes_or_time_passes_or_there_is_room() {
    let (publisher, log) = channel::<u64, Park>(1);
    let mut expiries = log.subscribe().unwrap();
    let clock = ManualClock::new();
    let (timers, control) = TimerPublisher::new(clock.clone(), publisher, |_, key, ()| key);
    let context = Context::spawn("t", None, vec![Box::new(timers)]).unwrap();
    let parks = stays_asleep(&context, 0);
    control.start(1, 10, ());
    let parks = stays_asleep(&context, parks);
    control.start(2, 10, ());
    let parks = stays_asleep(&context, parks);
    clock.pass(10); // one is published, the other waits for room
    while context.stats()[0].waits == 0 {
        thread::yield_now();
    }
    stays_asleep(&context, parks);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(expiries.next_batch().unwrap().iter().map(|(_, key)| *key));
    }
    assert_eq!(seen, [1, 2]);
    drop(control); // the last control: no more timers can be started
    assert_eq!(context.join().unwrap().len(), 1);
}

/// A feed that takes entries from a work share.
struct Taking(PoolWorker<u32, Unordered<u32>, Park>);

impl Feed<Arc<AtomicU64>> for Taking {
    fn serve(&mut self, state: &mut Arc<AtomicU64>, limit: usize) -> Served {
        let taken = self.0.receive(limit, |n| {
            state.fetch_add(u64::from(*n), Ordering::Relaxed);
        });
        let (handled, then) = match taken {
            Ok(handled) => (handled, Then::More),
            Err(NoBatch::Empty) => (0, Then::Empty),
            Err(_) => (0, Then::Ended),
        };
        Served { handled, then }
    }

    fn lag(&self) -> u64 {
        0
    }

    fn wake_sources(&mut self, _: &mut Arc<AtomicU64>, set: &mut WaitSet) {
        self.0.wake_sources(set);
    }
}

#[test]
fn a_domain_that_takes_from_a_work_share_sleeps_until_there_is_work() {
    let (mut publisher, share) = WorkShare::<u32, Unordered<u32>, Park>::open(4);
    let sum = Arc::new(AtomicU64::new(0));
    let (_other, log) = wire();
    let mut service = Service::new(0, "", sum.clone());
    service.add_feed(0, Taking(share.join().unwrap()));
    service.subscribe(0, log.subscribe().unwrap(), |_: &mut _, _, _: &u32| {});
    let context = Context::spawn("t", None, vec![Box::new(service)]).unwrap();
    let parks = stays_asleep(&context, 0);
    publisher.put(5).unwrap();
    wait_for(&sum, 5);
    stays_asleep(&context, parks);
    context.stop();
    context.join().unwrap();
}

#[test]
fn a_domain_that_moved_is_woken_where_it_is() {
    let (mut publisher, log) = wire();
    let contexts = ["one", "two"].map(|name| Context::spawn(name, None, Vec::new()).unwrap());
    contexts[0]
        .add(adder(7, &[&(publisher.clone(), log.clone())]))
        .unwrap();
    let mut parks = 0;
    for round in 0..4u64 {
        let (here, there) = (
            &contexts[round as usize % 2],
            &contexts[1 - round as usize % 2],
        );
        parks = asleep(here, parks);
        publisher.publish(1).unwrap();
        while total(here, |domain| domain.handled) <= round {
            thread::yield_now();
        }
        assert_eq!(here.move_to(7, &there.control()).wait(), Some(true));
    }
    contexts.into_iter().for_each(|context| {
        context.stop();
        context.join().unwrap();
    });
}

/// The scheduler asks one feed per turn, alternately.
#[test]
fn a_feed_that_the_scheduler_left_out_is_served_though_no_more_comes() {
    let mut wires = [wire(), wire()];
    let mut next = 0;
    let alternate = move |feeds: &[dominoes::FeedView]| {
        if feeds.iter().any(|feed| feed.asked) {
            return None;
        }
        next += 1;
        Some(next % feeds.len())
    };
    let mut service = Service::new(0, "", 0u64).with_scheduler(alternate);
    for (_, log) in &wires {
        service.subscribe(0, log.subscribe().unwrap(), |_: &mut u64, _, _: &u32| {});
    }
    let context = Context::spawn("t", None, vec![Box::new(service)]).unwrap();
    for round in 0..100 {
        for (n, (publisher, _)) in wires.iter_mut().enumerate() {
            publisher.publish(1).unwrap();
            while total(&context, |domain| domain.handled) <= round * 2 + n as u64 {
                thread::yield_now();
            }
        }
    }
    context.stop();
    context.join().unwrap();
}

#[test]
fn a_context_with_a_channel_that_wakes_no_thread_yields_and_sees_everything() {
    let (mut quiet, quiet_log) = channel::<u32, SpinYield>(4);
    let mut waking = wire();
    let mut service = Service::new(0, "", 0u64);
    service.subscribe(
        0,
        quiet_log.subscribe().unwrap(),
        |_: &mut u64, _, _: &u32| {},
    );
    service.subscribe(
        0,
        waking.1.subscribe().unwrap(),
        |_: &mut u64, _, _: &u32| {},
    );
    let mut set = WaitSet::new();
    service.run();
    service.wake_sources(&mut set);
    assert!(!set.is_complete());
    let context = Context::spawn("t", None, vec![Box::new(service)]).unwrap();
    for handled in 1..=50 {
        if handled % 2 == 0 {
            quiet.publish(1).unwrap();
        } else {
            waking.0.publish(1).unwrap();
        }
        while total(&context, |domain| domain.handled) < handled {
            thread::yield_now();
        }
    }
    assert_eq!(total(&context, |domain| domain.parks), 0);
    context.stop();
    context.join().unwrap();
}
