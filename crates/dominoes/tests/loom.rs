//! Small models of the lock-free parts, run under every interleaving and every outcome that the
//! memory model allows.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dominoes --test loom --release`. The models run
//! the code as shipped, including fences. Every slot access is reported to loom, so a slot that is
//! written while a thread may read it fails a model even if the bytes come out right. The comment
//! of each model lists the faults that it would catch.
#![cfg(loom)]

use dominoes::{
    Assignment, BatchError, Chunks, EventCount, Greedy, Lifo, NoBatch, Park, Pool, Publisher,
    Replicated, Spin, StateMachine, Subscription, TryLock, TryPublishError, Verdicts, Wait,
    WaitSet, WakeSource, Watch, Work, WorkState,
};
use loom::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

/// A channel under loom. Unless noted otherwise, entries have no destructor.
fn channel<T: Send + Sync>(capacity: usize) -> (Publisher<T, Spin>, dominoes::Log<T, Spin>) {
    dominoes::channel(capacity)
}

/// Runs all interleavings with at most `preemptions` involuntary switches: finite, and enough for
/// each of the races named here.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // `LOOM_MAX_PREEMPTIONS=3` in the environment explores more, in about an hour.
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 20_000;
    builder.check(f);
}

type Entries = Vec<(u64, u32)>;

/// Offers each value once. Returns the accepted values with their positions.
fn offer<W: Wait>(publisher: &mut Publisher<u32, W>, values: &[u32]) -> Entries {
    values
        .iter()
        .filter_map(|value| publisher.try_publish(*value).ok().map(|seq| (seq, *value)))
        .collect()
}

/// A subscription, and the entries that it has read.
struct Follower(Subscription<u32, Spin>, Entries);

impl Follower {
    fn new(subscription: Subscription<u32, Spin>) -> Self {
        Follower(subscription, Vec::new())
    }

    /// Polls `times` times. (No model waits in a loop, since loom would follow it forever.)
    fn look(mut self, times: usize) -> Self {
        for _ in 0..times {
            if let Ok(batch) = self.0.try_next_batch() {
                self.1
                    .extend(batch.iter().map(|(seq, value)| (seq, *value)));
            }
        }
        self
    }

    /// Called when all publishers are gone. Reads the rest, and checks that all accepted entries
    /// from `start` on were read, in order.
    fn settle(self, start: u64, accepted: &[(u64, u32)]) {
        let mut accepted: Entries = accepted
            .iter()
            .copied()
            .filter(|(seq, _)| *seq >= start)
            .collect();
        accepted.sort_unstable();
        let Follower(mut subscription, mut seen) = self;
        while let Some(batch) = subscription.next_batch() {
            seen.extend(batch.iter().map(|(seq, value)| (seq, *value)));
        }
        assert_eq!(seen, accepted);
    }
}

/// Catches: an entry read before it is published or after its slot is reused (a missing Release or
/// Acquire on `published` or on the cursor); the end of the channel seen before the last entry.
#[test]
fn one_publisher_one_subscriber_around_the_ring() {
    model(3, || {
        let (mut publisher, log) = channel::<u32>(2);
        let mut subscription = log.subscribe().unwrap();
        let reader = thread::spawn(move || {
            let mut seen = Vec::new();
            while let Some(batch) = subscription.next_batch() {
                seen.extend(batch.iter().map(|(_, value)| *value));
            }
            seen
        });
        for n in 0..3 {
            publisher.publish(n).unwrap();
        }
        drop(publisher);
        assert_eq!(reader.join().unwrap(), [0, 1, 2]);
    });
}

/// Catches: two publishers in one slot; an entry visible before it is written; different orders in
/// different subscribers.
#[test]
fn two_publishers_one_subscriber() {
    model(2, || {
        let (mut publisher, log) = channel::<u32>(2);
        let mut second = publisher.clone();
        let follower = Follower::new(log.subscribe().unwrap());
        let writer = thread::spawn(move || offer(&mut second, &[10, 11]));
        let reader = thread::spawn(move || follower.look(2));
        let mut accepted = offer(&mut publisher, &[20, 21]);
        drop(publisher);
        accepted.extend(writer.join().unwrap());
        assert!(accepted.len() >= 2);
        reader.join().unwrap().settle(0, &accepted);
    });
}

/// Catches: one subscriber's cursor freeing a slot that another still reads.
#[test]
fn one_publisher_two_subscribers() {
    model(3, || {
        let (mut publisher, log) = channel::<u32>(1);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let follower = Follower::new(log.subscribe().unwrap());
                thread::spawn(move || follower.look(2))
            })
            .collect();
        let accepted = offer(&mut publisher, &[1, 2, 3]);
        drop(publisher);
        for reader in readers {
            reader.join().unwrap().settle(0, &accepted);
        }
    });
}

/// Catches: an entry missed or read twice, or a stale lap byte trusted, when one publisher becomes
/// two and then one again.
#[test]
fn alone_then_shared_then_alone() {
    model(2, || {
        let (mut publisher, log) = channel::<u32>(1);
        let follower = Follower::new(log.subscribe().unwrap());
        let reader = thread::spawn(move || follower.look(4));
        let mut accepted = offer(&mut publisher, &[0]);
        let mut second = publisher.clone();
        let writer = thread::spawn(move || offer(&mut second, &[10]));
        accepted.extend(offer(&mut publisher, &[1]));
        accepted.extend(writer.join().unwrap());
        accepted.extend(offer(&mut publisher, &[2, 3]));
        drop(publisher);
        reader.join().unwrap().settle(0, &accepted);
    });
}

/// Catches: a channel marked as having several publishers before its lap bytes are reset for this
/// lap. In the first lap the old bytes happen to equal those of a published entry.
#[test]
fn nothing_is_published_by_cloning_a_publisher() {
    model(3, || {
        let (mut publisher, log) = channel::<u32>(2);
        let mut subscription = log.subscribe().unwrap();
        publisher.publish(1).unwrap();
        let reader = thread::spawn(move || {
            let end = subscription.poll();
            assert_eq!(end, 1, "an entry that was not published");
            subscription
        });
        let mut second = publisher.clone();
        let mut subscription = reader.join().unwrap();
        second.publish(2).unwrap();
        assert_eq!(subscription.poll(), 2);
        assert_eq!(subscription.get(1), Some(&2));
    });
}

/// Catches: a publisher that considers itself alone while another's claim is not yet published.
#[test]
fn the_survivor_takes_over_while_the_other_leaves() {
    model(2, || {
        let (mut publisher, log) = channel::<u32>(2);
        let mut second = publisher.clone();
        let follower = Follower::new(log.subscribe().unwrap());
        let writer = thread::spawn(move || offer(&mut second, &[10]));
        let reader = thread::spawn(move || follower.look(2));
        let mut accepted = offer(&mut publisher, &[1, 2]);
        drop(publisher);
        accepted.extend(writer.join().unwrap());
        reader.join().unwrap().settle(0, &accepted);
    });
}

/// Catches: the same fault, when the survivor continues alone around the ring over a slot
/// published by a lap byte.
#[test]
fn the_survivor_goes_around_the_ring() {
    model(3, || {
        let (mut publisher, log) = channel::<u32>(1);
        let mut second = publisher.clone();
        let follower = Follower::new(log.subscribe().unwrap());
        let writer = thread::spawn(move || {
            let mut accepted = offer(&mut second, &[10]);
            drop(second);
            accepted.extend(offer(&mut publisher, &[1, 2]));
            accepted
        });
        let follower = follower.look(3);
        follower.settle(0, &writer.join().unwrap());
    });
}

/// Catches: a publisher that computed its limit before the join and overwrites entries of the new
/// subscription; a start in the past; a gap after the start.
#[test]
fn subscribing_against_a_publisher_that_is_alone() {
    model(4, || {
        let (mut publisher, log) = channel::<u32>(1);
        let writer = thread::spawn(move || offer(&mut publisher, &[0, 1, 2]));
        let follower = Follower::new(log.subscribe().unwrap());
        let start = follower.0.position();
        let follower = follower.look(2);
        follower.settle(start, &writer.join().unwrap());
    });
}

/// Catches: the same faults, and a gate that read a running subscriber's cursor after the new one
/// had joined at an earlier position.
#[test]
fn subscribing_while_another_subscription_runs_ahead() {
    model(2, || {
        let (mut publisher, log) = channel::<u32>(1);
        let first = Follower::new(log.subscribe().unwrap());
        let mut accepted = offer(&mut publisher, &[0]);
        let reader = thread::spawn(move || first.look(2));
        let writer = thread::spawn(move || offer(&mut publisher, &[1, 2]));
        let second = Follower::new(log.subscribe().unwrap());
        let start = second.0.position();
        assert!(start >= 1, "a start in the past");
        let second = second.look(1);
        accepted.extend(writer.join().unwrap());
        second.settle(start, &accepted);
        reader.join().unwrap().settle(0, &accepted);
    });
}

/// Catches: two publishers a lap apart in one slot while there is no subscription (claims bounded
/// by the tail instead of by the published position).
#[test]
fn two_publishers_and_nobody_reads() {
    model(3, || {
        let (mut publisher, log) = channel::<u32>(1);
        let mut second = publisher.clone();
        let writer = thread::spawn(move || offer(&mut second, &[10, 11]).len());
        let accepted = offer(&mut publisher, &[20, 21]).len();
        let other = writer.join().unwrap();
        assert!(accepted + other >= 2);
        assert_eq!(publisher.next_seq(), (accepted + other) as u64);
        assert_eq!(log.len(), 0);
    });
}

/// Catches: faults of subscribing while two publishers run without any subscription; a lap byte
/// from two laps ago trusted.
#[test]
fn subscribing_against_two_publishers() {
    model(2, || {
        let (mut publisher, log) = channel::<u32>(1);
        let mut second = publisher.clone();
        let writer = thread::spawn(move || offer(&mut second, &[10]));
        let other = thread::spawn(move || offer(&mut publisher, &[20, 21]));
        let follower = Follower::new(log.subscribe().unwrap());
        let start = follower.0.position();
        let follower = follower.look(1);
        let mut accepted = writer.join().unwrap();
        accepted.extend(other.join().unwrap());
        follower.settle(start, &accepted);
    });
}

/// Catches: a fork whose cursor is missed while its parent's new cursor is counted.
#[test]
fn forking_against_a_publisher() {
    model(4, || {
        let (mut publisher, log) = channel::<u32>(1);
        let parent = Follower::new(log.subscribe().unwrap());
        let mut accepted = offer(&mut publisher, &[0]);
        let writer = thread::spawn(move || offer(&mut publisher, &[1, 2]));
        let child = Follower::new(parent.0.fork().unwrap());
        let parent = parent.look(2);
        let child = child.look(1);
        accepted.extend(writer.join().unwrap());
        child.settle(0, &accepted);
        parent.settle(0, &accepted);
    });
}

/// Catches: a subscription number reused by a fork at an earlier position than its last user,
/// while the last user's cursor is counted for it.
#[test]
fn a_place_is_used_again_by_a_fork_behind_it() {
    model(4, || {
        let (mut publisher, log) = channel::<u32>(1);
        let fast = Follower::new(log.subscribe().unwrap());
        let parent = Follower::new(log.subscribe().unwrap());
        let mut accepted = offer(&mut publisher, &[0]);
        let fast = fast.look(1);
        let writer = thread::spawn(move || offer(&mut publisher, &[1, 2]));
        drop(fast);
        let child = Follower::new(parent.0.fork().unwrap());
        assert_eq!(child.0.number(), 0);
        let parent = parent.look(2);
        accepted.extend(writer.join().unwrap());
        child.settle(0, &accepted);
        parent.settle(0, &accepted);
    });
}

/// Catches: a publisher that waits forever for a subscription that left, or that reuses a slot
/// while the leaver still reads it.
#[test]
fn leaving_frees_a_full_publisher() {
    model(4, || {
        let (mut publisher, log) = channel::<u32>(1);
        let mut subscription = log.subscribe().unwrap();
        publisher.publish(0).unwrap();
        let leaver = thread::spawn(move || {
            subscription.poll();
            assert_eq!(subscription.get(0), Some(&0));
        });
        publisher.publish(1).unwrap();
        publisher.publish(2).unwrap();
        leaver.join().unwrap();
    });
}

/// Catches: an accepted entry that is never read because closing overtook it; an entry accepted
/// after closing.
#[test]
fn closing_against_the_last_publish() {
    model(3, || {
        let (mut publisher, log) = channel::<u32>(2);
        let mut second = publisher.clone();
        let mut subscription = log.subscribe().unwrap();
        let writer = thread::spawn(move || second.publish(1).is_ok());
        let closer = thread::spawn(move || {
            publisher.close();
            assert!(matches!(
                publisher.try_publish(9),
                Err(TryPublishError::Closed(9))
            ));
        });
        let mut seen = 0;
        while let Some(batch) = subscription.next_batch() {
            seen += batch.len();
        }
        closer.join().unwrap();
        let accepted = writer.join().unwrap();
        assert_eq!(seen, usize::from(accepted));
    });
}

/// Catches: a subscriber that sleeps through a publish (missing fence between store and check on
/// either side). loom reports the deadlock.
#[test]
fn a_parked_subscriber_is_woken() {
    model(3, || {
        let (mut publisher, log) = dominoes::channel::<u32, Park>(1);
        let mut subscription = log.subscribe().unwrap();
        let reader = thread::spawn(move || {
            assert_eq!(subscription.next_batch().unwrap().as_slices().0, [1]);
            assert!(subscription.next_batch().is_none());
        });
        publisher.publish(1).unwrap();
        drop(publisher);
        reader.join().unwrap();
    });
}

/// Catches: a publisher that sleeps through a release.
#[test]
fn a_parked_publisher_is_woken() {
    model(2, || {
        let (mut publisher, log) = dominoes::channel::<u32, Park>(1);
        let mut subscription = log.subscribe().unwrap();
        publisher.publish(1).unwrap();
        let writer = thread::spawn(move || {
            publisher.publish(2).unwrap();
        });
        drop(subscription.next_batch());
        writer.join().unwrap();
    });
}

/// Catches: a wake-up lost between the waiter's check and its sleep.
#[test]
fn an_event_count_loses_no_wake_up() {
    model(3, || {
        let shared = Arc::new((EventCount::new(), AtomicBool::new(false)));
        let waiter = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (event, flag) = &*shared;
                loop {
                    let key = event.prepare();
                    if flag.load(Ordering::Relaxed) {
                        event.cancel(key);
                        break;
                    }
                    event.wait(key, None);
                }
            })
        };
        shared.1.store(true, Ordering::Relaxed);
        shared.0.notify_all();
        waiter.join().unwrap();
    });
}

/// A growing value with a watch: the largest value seen, and whether the watch has fired since.
#[derive(Debug, Default)]
struct Growing {
    value: AtomicU64,
    seen: AtomicU64,
    queued: AtomicBool,
}

impl Watch for Growing {
    fn is_due(&self) -> bool {
        self.value.load(Ordering::Relaxed) != self.seen.load(Ordering::Relaxed)
    }

    fn fire(self: std::sync::Arc<Self>) {
        self.queued.store(true, Ordering::Release);
    }
}

impl Growing {
    /// Registers the watch, then checks the value, as a poller does with a queued item.
    fn collect(self: &std::sync::Arc<Self>, event: &EventCount) {
        self.queued.store(false, Ordering::Relaxed);
        event.watch(&(std::sync::Arc::clone(self) as std::sync::Arc<dyn Watch>));
        let value = self.value.load(Ordering::Relaxed);
        self.seen.store(value, Ordering::Relaxed);
    }
}

/// Catches: a change that neither the check after `watch` sees nor its notifier reports, because a
/// fence or the lock is missing; a watch that stays counted after it fired or was removed.
#[test]
fn what_is_watched_is_seen_or_fires() {
    model(3, || {
        let watch = std::sync::Arc::<Growing>::default();
        let event = Arc::new(EventCount::new());
        let notifier = {
            let (watch, event) = (watch.clone(), event.clone());
            thread::spawn(move || {
                for value in 1..=2 {
                    watch.value.store(value, Ordering::Relaxed);
                    event.notify_all();
                }
            })
        };
        watch.collect(&event);
        let late = watch.queued.load(Ordering::Acquire);
        if late {
            watch.collect(&event);
        }
        notifier.join().unwrap();
        let seen = watch.seen.load(Ordering::Relaxed);
        assert!(seen == 2 || watch.queued.load(Ordering::Acquire), "{seen}");
        event.unwatch(&(watch as std::sync::Arc<dyn Watch>));
        assert_eq!(event.waiters(), 0);
    });
}

/// Does what a context with several sources does: registers with all of them, checks all of them,
/// and sleeps if there is nothing. Returns all entries read when all channels are closed.
fn follow_all(subscriptions: &mut [Subscription<u32, Park>]) -> Vec<u32> {
    let mut set = WaitSet::new();
    let mut seen = Vec::new();
    loop {
        for subscription in &*subscriptions {
            subscription.wake_sources(&mut set);
        }
        set.prepare();
        let (mut found, mut closed) = (false, 0);
        for subscription in &mut *subscriptions {
            match subscription.try_next_batch() {
                Ok(batch) => {
                    seen.extend(batch.iter().map(|(_, value)| *value));
                    found = true;
                }
                Err(NoBatch::Empty) => {}
                Err(_) => closed += 1,
            }
        }
        if closed == subscriptions.len() {
            return seen;
        }
        // A closed channel stays closed and notifies no more, so it is no reason to stay awake.
        if !found {
            set.wait();
        }
        set.clear();
    }
}

/// Catches: a thread that sleeps on two channels and misses a publish or the end of either; a
/// thread that stays on the list of one after the other has woken it. loom reports the deadlock.
#[test]
fn a_thread_that_sleeps_on_two_channels_is_woken_by_each() {
    model(2, || {
        let (mut left, left_log) = dominoes::channel::<u32, Park>(1);
        let (right, right_log) = dominoes::channel::<u32, Park>(1);
        let mut subscriptions = [&left_log, &right_log].map(|log| log.subscribe().unwrap());
        let sleeper = thread::spawn(move || follow_all(&mut subscriptions));
        let closer = thread::spawn(move || drop(right));
        left.publish(1).unwrap();
        drop(left);
        closer.join().unwrap();
        assert_eq!(sleeper.join().unwrap(), [1]);
    });
}

/// Catches: a publish between subscribing, registering and sleeping that neither the subscriber's
/// check nor the publisher's check for sleepers finds.
#[test]
fn subscribing_and_registering_against_a_publisher_that_wakes() {
    model(2, || {
        let (mut publisher, log) = dominoes::channel::<u32, Park>(1);
        let (silent, silent_log) = dominoes::channel::<u32, Park>(1);
        let sleeper = thread::spawn(move || {
            let mut silent_one = silent_log.subscribe().unwrap();
            drop(silent); // closed, so only the other channel can end the sleep
            assert_eq!(silent_one.try_next_batch().err(), Some(NoBatch::Closed));
            let late = log.subscribe().unwrap();
            let start = late.position();
            (start, follow_all(&mut [silent_one, late]))
        });
        publisher.publish(7).unwrap();
        drop(publisher);
        let (start, seen) = sleeper.join().unwrap();
        assert_eq!(seen, [7][start as usize..]);
    });
}

/// Catches: a thread that removes itself from one source while that source's notifier wakes it,
/// and then misses the wake-up of the next source on which it sleeps, or leaves a registration.
#[test]
fn leaving_a_source_while_its_notifier_wakes() {
    model(3, || {
        let shared = Arc::new([WakeSource::new(), WakeSource::new()]);
        let flags = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let notifiers: Vec<_> = [0, 1]
            .into_iter()
            .map(|n| {
                let (shared, flags) = (shared.clone(), flags.clone());
                thread::spawn(move || {
                    flags[n].store(true, Ordering::Relaxed);
                    shared[n].notify_all();
                })
            })
            .collect();
        let mut set = WaitSet::new();
        // Sleeps on both until one has news, then on the other alone.
        let mut silent = vec![0, 1];
        while !silent.is_empty() {
            silent.iter().for_each(|n| set.add(&shared[*n]));
            set.prepare();
            let before = silent.len();
            silent.retain(|n| !flags[*n].load(Ordering::Relaxed));
            if silent.len() == before {
                set.wait();
            }
            set.clear();
        }
        for notifier in notifiers {
            notifier.join().unwrap();
        }
        assert!(shared.iter().all(|source| source.waiters() == 0));
    });
}

/// Catches: of two threads that sleep on one channel, one is not woken.
#[test]
fn two_threads_that_sleep_on_one_channel_are_both_woken() {
    model(2, || {
        let (mut publisher, log) = dominoes::channel::<u32, Park>(1);
        let sleepers: Vec<_> = [log.subscribe().unwrap(), log.subscribe().unwrap()]
            .into_iter()
            .map(|subscription| thread::spawn(move || follow_all(&mut [subscription])))
            .collect();
        publisher.publish(1).unwrap();
        drop(publisher);
        for sleeper in sleepers {
            assert_eq!(sleeper.join().unwrap(), [1]);
        }
    });
}

/// A value that counts its drops.
#[derive(Clone)]
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Catches: a value dropped twice or never, or dropped while a subscriber reads it, when a
/// publisher that needs room and a subscriber that leaves both want to drop it.
#[test]
fn every_value_is_dropped_once() {
    model(2, || {
        let drops = Arc::new(AtomicUsize::new(0));
        {
            let (mut publisher, log) = channel::<Counted>(1);
            let mut subscription = log.subscribe().unwrap();
            let reader = thread::spawn(move || drop(subscription.next_batch()));
            publisher.publish(Counted(drops.clone())).ok().unwrap();
            publisher.publish(Counted(drops.clone())).ok().unwrap();
            drop(publisher);
            reader.join().unwrap();
            drop(log);
        }
        assert_eq!(drops.load(Ordering::Relaxed), 2);
    });
}

/// Catches: a head that is taken for the one that was read before, though others took its cell and
/// put it back before a different one (a stack without its tag); a value that is taken twice, or
/// lost, or read before it is written.
#[test]
fn a_stack_gives_each_value_to_one_thread() {
    model(2, || {
        let lifo = Arc::new(Lifo::with_capacity(2));
        (0..2).for_each(|n| lifo.push(n).unwrap());
        let run = |returns: bool| {
            let lifo = lifo.clone();
            thread::spawn(move || {
                let value: u32 = lifo.pop()?;
                match returns {
                    true => lifo.push(value).err(),
                    false => Some(value),
                }
            })
        };
        let (one, other) = (run(true), run(false));
        let mut all = vec![lifo.pop(), one.join().unwrap(), other.join().unwrap()];
        all.extend([lifo.pop(), lifo.pop()]);
        let mut values: Vec<u32> = all.into_iter().flatten().collect();
        values.sort();
        assert_eq!(values, [0, 1]);
    });
}

/// Catches: a batch interrupted by another publisher, or claimed beyond the limit.
#[test]
fn a_batch_is_published_whole() {
    model(2, || {
        let (mut publisher, log) = channel::<u32>(2);
        let mut second = publisher.clone();
        let mut subscription = log.subscribe().unwrap();
        subscription.set_batch_limit(2);
        let writer = thread::spawn(move || second.try_publish_all([1, 2]).is_ok());
        let follower = Follower::new(subscription);
        let reader = thread::spawn(move || follower.look(2));
        let mine = match publisher.try_publish_slice(&[3, 4]) {
            Ok(_) => true,
            Err(BatchError::Full(_)) => false,
            Err(_) => panic!("nobody closes"),
        };
        drop(publisher);
        let other = writer.join().unwrap();
        let accepted: &[(u64, u32)] = match (mine, other) {
            (true, false) => &[(0, 3), (1, 4)],
            (false, true) => &[(0, 1), (1, 2)],
            (true, true) => {
                let Follower(subscription, seen) = reader.join().unwrap().look(3);
                drop(subscription);
                assert!(
                    seen.iter().map(|(_, n)| *n).eq([1, 2, 3, 4])
                        || seen.iter().map(|(_, n)| *n).eq([3, 4, 1, 2])
                );
                return;
            }
            (false, false) => panic!("there is room for one of them"),
        };
        reader.join().unwrap().settle(0, accepted);
    });
}

/// Catches: a verdict visible without the earlier writes of its thread.
#[test]
fn a_verdict_carries_what_was_written_before_it() {
    model(3, || {
        let shared = Arc::new((Verdicts::new(2), AtomicUsize::new(0)));
        let setter = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.1.store(7, Ordering::Relaxed);
                shared.0.set(1, 5);
            })
        };
        if let Some(bits) = shared.0.get(1) {
            assert_eq!((bits, shared.1.load(Ordering::Relaxed)), (5, 7));
        }
        setter.join().unwrap();
        assert_eq!(shared.0.get(1), Some(5));
        assert_eq!(shared.0.get(3), None);
    });
}

/// Catches: two threads that compute the same verdict at the same time; a thread that begins
/// without seeing the writes of one that gave up.
#[test]
fn a_verdict_is_found_out_by_one_at_a_time() {
    model(3, || {
        let shared = Arc::new((Verdicts::new(2), AtomicUsize::new(0)));
        let begin = |shared: &(Verdicts, AtomicUsize), gives_up: bool| {
            if let Some(begun) = shared.0.begin(1) {
                // Not atomic, so a second thread between the two would show.
                let count = shared.1.load(Ordering::Relaxed);
                shared.1.store(count + 1, Ordering::Relaxed);
                if !gives_up {
                    begun.set(count as u64 + 1);
                }
            }
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || begin(&shared, true))
        };
        begin(&shared, false);
        other.join().unwrap();
        let begun = shared.1.load(Ordering::Relaxed);
        match shared.0.get(1) {
            Some(bits) => assert!(bits <= begun as u64 && begun <= 2),
            None => assert_eq!(begun, 1, "one gave up while the other found it begun"),
        }
    });
}

/// Catches: a value that two threads take out, or none; one that is taken out, or written for the
/// next lap, while another thread reads it; a place that the writer uses before the value is out.
#[test]
fn the_last_thread_that_leaves_a_batch_gets_its_value() {
    model(3, || {
        let (mut writer, batches) = dominoes::batch_records::<Box<u32>>(2);
        writer.put(2, Box::new(10)).unwrap();
        let reader = {
            let batches = batches.clone();
            thread::spawn(move || {
                let reading = batches.read(0)?;
                assert_eq!(**reading.value(), 10);
                reading.release()
            })
        };
        let worker = {
            let batches = batches.clone();
            thread::spawn(move || {
                let begun = batches.begin(0).unwrap();
                assert_eq!(**begun.value(), 10);
                begun.finish()
            })
        };
        while writer.room() < 2 {
            thread::yield_now();
        }
        writer.put(1, Box::new(11)).unwrap();
        assert_eq!(batches.state(0, 0), WorkState::Done);
        assert_eq!(batches.state(2, 0), WorkState::Free);
        let out = [reader.join().unwrap(), worker.join().unwrap()];
        assert_eq!(
            out.into_iter().flatten().collect::<Vec<_>>(),
            [Box::new(10)]
        );
    });
}

/// Catches: two threads that have begun a batch at once; a thread that does not continue after the
/// pieces of the one before, or does not see what that one wrote.
#[test]
fn a_batch_has_one_worker_at_a_time_and_the_next_one_continues() {
    model(3, || {
        let (mut writer, batches) = dominoes::batch_records::<u32>(1);
        writer.put(1, 7).unwrap();
        let shared = Arc::new((batches, [AtomicUsize::new(0), AtomicUsize::new(0)]));
        let work = |shared: &(Arc<dominoes::BatchRecords<u32>>, [AtomicUsize; 2]), most: usize| {
            let mut begun = shared.0.begin(0).ok()?;
            let mut did = 0;
            for (piece, count) in shared.1.iter().enumerate() {
                if begun.has_done(piece as u64) {
                    continue;
                }
                if did == most {
                    return None;
                }
                // Not atomic, so a second thread between the two would show.
                let before = count.load(Ordering::Relaxed);
                count.store(before + 1, Ordering::Relaxed);
                begun.done_before(piece as u64 + 1);
                did += 1;
            }
            begun.finish()
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || work(&shared, 1))
        };
        let first = work(&shared, 1);
        let second = other.join().unwrap();
        let last = work(&shared, 2);
        let out = [first, second, last].into_iter().flatten();
        assert_eq!(out.collect::<Vec<_>>(), [7]);
        let counts = shared
            .1
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed));
        assert_eq!((counts, writer.room()), ([1, 1], 1));
    });
}

/// Catches: a value that is read before it is put.
#[test]
fn a_batch_can_be_read_once_its_record_is_put() {
    model(3, || {
        let (mut writer, batches) = dominoes::batch_records::<u32>(2);
        let reader = thread::spawn(move || {
            if let Some(reading) = batches.read(0) {
                assert_eq!(*reading.value(), 10);
            }
        });
        writer.put(1, 10).unwrap();
        reader.join().unwrap();
    });
}

/// Catches: two holders of an exclusive value at the same time; a second holder that does not see
/// the first one's writes.
#[test]
fn an_exclusive_has_one_holder() {
    model(3, || {
        let exclusive = Arc::new(TryLock::new(0));
        let taken = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (exclusive, taken) = (exclusive.clone(), taken.clone());
                thread::spawn(move || {
                    if let Some(mut mine) = exclusive.try_take() {
                        *mine += 1;
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(
            *exclusive.try_take().unwrap(),
            taken.load(Ordering::Relaxed)
        );
    });
}

/// Does at most `pieces` remaining pieces of the first chunk, in cells that only one thread may
/// hold at a time. Releases the chunk half done if there are more.
fn work_on(chunks: &Chunks, cells: &[TryLock<u32>; 2], pieces: usize) {
    let Ok(mut begun) = chunks.begin(0) else {
        return;
    };
    for _ in 0..pieces {
        let piece = begun.next();
        if piece == 2 {
            return;
        }
        let mut cell = cells[piece as usize]
            .try_take()
            .expect("nobody else is at it");
        *cell += 1;
        drop(cell);
        begun.done(piece);
    }
}

/// Catches: a piece done twice or never, or by two threads at the same time, when two threads
/// compete for a chunk that either may leave half done.
#[test]
fn a_unit_is_done_once_by_two_threads_together() {
    model(3, || {
        let shared = Arc::new((Chunks::new(1, 1), [TryLock::new(0), TryLock::new(0)]));
        let others: Vec<_> = [1, 2]
            .into_iter()
            .map(|pieces| {
                let shared = shared.clone();
                thread::spawn(move || work_on(&shared.0, &shared.1, pieces))
            })
            .collect();
        work_on(&shared.0, &shared.1, 1);
        for other in others {
            other.join().unwrap();
        }
        work_on(&shared.0, &shared.1, 2);
        assert_eq!(shared.0.state(1), WorkState::Done);
        for cell in &shared.1 {
            assert_eq!(*cell.try_take().unwrap(), 1);
        }
    });
}

/// Catches: a piece reported done before the writes of doing it are visible (a missing Release or
/// Acquire).
#[test]
fn a_thread_that_sees_a_piece_done_sees_what_it_wrote() {
    model(3, || {
        let shared = Arc::new((Chunks::new(1, 1), AtomicUsize::new(0)));
        let worker = {
            let shared = shared.clone();
            thread::spawn(move || {
                let Ok(mut begun) = shared.0.begin(0) else {
                    return;
                };
                shared.1.store(7, Ordering::Relaxed);
                begun.done(0);
            })
        };
        if shared.0.state(0) == WorkState::Done {
            assert_eq!(shared.1.load(Ordering::Relaxed), 7);
        }
        if let Ok(begun) = shared.0.begin(0)
            && begun.next() == 1
        {
            assert_eq!(shared.1.load(Ordering::Relaxed), 7);
        }
        worker.join().unwrap();
    });
}

/// Catches: a chunk of a later lap that starts from the previous lap's value of its word; a late
/// check of an earlier chunk that takes it for not done.
#[test]
fn a_word_serves_unit_after_unit() {
    model(3, || {
        let chunks = Arc::new(Chunks::new(1, 1));
        let late = {
            let chunks = chunks.clone();
            thread::spawn(move || match chunks.begin(0) {
                Ok(begun) => assert!(begun.next() < 2),
                Err(found) => assert_ne!(found, WorkState::Free),
            })
        };
        let Ok(mut begun) = chunks.begin(0) else {
            late.join().unwrap();
            return;
        };
        begun.done(1);
        drop(begun);
        let mut next = chunks.begin(2).expect("the chunk before is done");
        assert_eq!(next.next(), 2);
        next.done(2);
        late.join().unwrap();
    });
}

/// Catches: a chunk that no thread can begin any more because its thread unwound; a piece counted
/// as done although its thread unwound while doing it.
#[test]
fn who_unwinds_lets_go_of_what_it_had_begun() {
    model(3, || {
        let chunks = Arc::new(Chunks::new(1, 1));
        let other = {
            let chunks = chunks.clone();
            thread::spawn(move || {
                if let Ok(mut begun) = chunks.begin(0) {
                    let piece = begun.next();
                    begun.done(piece);
                }
            })
        };
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if let Ok(begun) = chunks.begin(0) {
                let piece = begun.next();
                std::panic::resume_unwind(Box::new(piece));
            }
        }));
        other.join().unwrap();
        let first_undone = match unwound {
            Err(piece) => *piece.downcast_ref::<u64>().unwrap(),
            Ok(()) => 1,
        };
        let next = chunks.begin(0).unwrap().next();
        assert!(next == 1 || next == first_undone, "{next}");
    });
}

/// Catches: a result other than [`NoBatch::Empty`] from `try_next_batch` on an empty, open channel.
#[test]
fn an_empty_channel_is_empty_until_closed() {
    model(3, || {
        let (publisher, log) = channel::<u32>(1);
        let mut subscription = log.subscribe().unwrap();
        let closer = thread::spawn(move || drop(publisher));
        assert!(matches!(
            subscription.try_next_batch().err().unwrap(),
            NoBatch::Empty | NoBatch::Closed
        ));
        closer.join().unwrap();
        assert_eq!(
            subscription.try_next_batch().err().unwrap(),
            NoBatch::Closed
        );
    });
}

/// Catches: a chunk with two primaries or none, when replicas race for it; a chunk taken again by
/// a replica that asks a lap too late.
#[test]
fn greedy_replicas_take_each_chunk_once() {
    model(3, || {
        let greedy = Arc::new(Greedy::new(&[1]));
        // Chunk 1 uses chunk 0's word, and is open once a replica has asked for chunk 0.
        let ask = |greedy: &Greedy, me| [0, 1].map(|c| greedy.is_mine(Work::chunk(c), me, 2));
        let other = {
            let greedy = greedy.clone();
            thread::spawn(move || ask(&greedy, 1))
        };
        let mine = ask(&greedy, 0);
        let theirs = other.join().unwrap();
        for chunk in [0, 1] {
            assert!(mine[chunk] != theirs[chunk], "{mine:?} {theirs:?}");
        }
    });
}

/// Catches: a replica that is told that a chunk is not its own, since another one took it on its
/// behalf at the same moment. Then none would do that chunk's work.
#[test]
fn greedy_replicas_have_what_others_take_on_their_behalf() {
    model(3, || {
        let greedy = Arc::new(Greedy::new(&[1]));
        let other = {
            let greedy = greedy.clone();
            thread::spawn(move || greedy.is_mine(Work::chunk(0), 1, 2))
        };
        assert!(greedy.is_mine(Work::chunk(0), 1, 2));
        assert!(other.join().unwrap());
    });
}

/// A count in two halves, which a torn read would show to differ.
#[derive(Clone)]
struct Halves(u64, u64);

impl StateMachine for Halves {
    type Op = u64;
    type Answer = u64;
    fn apply(&mut self, n: &u64) -> u64 {
        self.0 += n;
        self.1 += n;
        self.0
    }
}

impl Halves {
    fn count(&self) -> u64 {
        assert_eq!(self.0, self.1, "a torn read");
        self.0
    }
}

fn replicated(replicas: usize) -> Replicated<Halves> {
    let builder = Replicated::builder(Halves(0, 0)).replicas(replicas);
    builder.capacity(2).build().unwrap()
}

/// Catches: a reader inside while a writer changes the state (a missing fence between raising the
/// flag and reading `closed`, or on the writer's side); a reader that does not see what an earlier
/// writer wrote (a missing Acquire of `closed`); a writer that does not see that a reader has left
/// (a missing Release of the flag).
#[test]
fn a_reader_and_a_writer_of_one_replica() {
    model(3, || {
        let replicas = replicated(1);
        let mut reader = replicas.handle_on(0).unwrap();
        let mut writer = replicas.handle_on(0).unwrap();
        let thread = thread::spawn(move || writer.write(1).unwrap());
        let before = reader.read_stale(Halves::count).unwrap();
        let after = reader.read(Halves::count).unwrap();
        assert!(before <= after && after <= 1);
        assert_eq!(thread.join().unwrap(), 1);
        assert_eq!(reader.read_stale(Halves::count), Ok(1));
    });
}

/// Catches: a read that begins after a write has returned, and misses it (a missing Release or
/// Acquire of the published end); a position of a replica that is seen before its state.
#[test]
fn a_read_through_another_replica_sees_a_write_that_has_returned() {
    model(2, || {
        let replicas = replicated(2);
        let mut reader = replicas.handle_on(0).unwrap();
        let mut writer = replicas.handle_on(1).unwrap();
        let written = Arc::new(AtomicBool::new(false));
        let thread = {
            let written = written.clone();
            thread::spawn(move || {
                writer.write(1).unwrap();
                written.store(true, Ordering::Release);
            })
        };
        let is_written = written.load(Ordering::Acquire);
        let count = reader.read(Halves::count).unwrap();
        assert!(count == 1 || !is_written, "a stale read");
        thread.join().unwrap();
        assert_eq!(reader.read(Halves::count), Ok(1));
    });
}

/// Catches: an operation that is overwritten while the other replica's reader applies it (a gate
/// beyond a cursor, a missing Release of the cursor or Acquire in the gate); one that is applied
/// before it is written (a missing Release or Acquire of its word); two claims of one entry.
#[test]
fn writers_of_two_replicas_go_around_the_log() {
    model(2, || {
        let builder = Replicated::builder(Halves(0, 0)).replicas(2);
        let replicas = builder.capacity(1).build().unwrap();
        let mut here = replicas.handle_on(0).unwrap();
        let mut there = replicas.handle_on(1).unwrap();
        let thread = thread::spawn(move || there.write(1).unwrap());
        let mut answers = [here.write(1).unwrap(), thread.join().unwrap()];
        answers.sort_unstable();
        assert_eq!(answers, [1, 2]);
        assert_eq!(here.read(Halves::count), Ok(2));
    });
}

/// Catches: a posted operation that two combiners or none publish; an answer taken before it is
/// there, or by another handle; two combiners at a time.
#[test]
fn writers_of_one_replica_combine() {
    model(2, || {
        let replicas = replicated(1);
        let mut here = replicas.handle_on(0).unwrap();
        let mut there = replicas.handle_on(0).unwrap();
        let thread = thread::spawn(move || there.write(1).unwrap());
        let mut answers = [here.write(1).unwrap(), thread.join().unwrap()];
        answers.sort_unstable();
        assert_eq!(answers, [1, 2]);
        assert_eq!(here.read(Halves::count), Ok(2));
    });
}

/// Catches: a place of a reader that is used again while a writer waits for its last user; a
/// writer that misses a reader whose place was taken after it looked.
#[test]
fn a_reader_comes_and_goes_while_a_writer_writes() {
    model(3, || {
        let replicas = replicated(1);
        let mut writer = replicas.handle_on(0).unwrap();
        let thread = {
            let replicas = replicas.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let mut reader = replicas.handle_on(0).unwrap();
                    assert!(reader.read_stale(Halves::count).unwrap() <= 1);
                }
            })
        };
        assert_eq!(writer.write(1), Ok(1));
        thread.join().unwrap();
    });
}
