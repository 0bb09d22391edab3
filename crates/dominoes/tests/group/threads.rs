//! Groups on threads.

use super::{Chain, Planned, Random, die};
use dominoes::{
    Group, GroupError,
    group::{Divergence, GroupHandle, OnDivergence},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Waits until `ready` returns true.
fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !ready() {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn effects_are_performed_once_while_threads_die_join_leave_and_park() {
    const REQUESTS: u64 = 6_000;
    const SEEDS: u64 = 8;
    let (mut survived, mut failed, mut joined) = (0, 0, 0);
    for seed in 0..SEEDS {
        let performed = Arc::<Mutex<BTreeMap<u64, u64>>>::default();
        let draws = AtomicU64::new(seed << 32);
        // Checks the group through its handle, so that the last replica does not die.
        let handle = Arc::new(OnceLock::<GroupHandle<Chain, u64, u64>>::new());
        let group_handle = handle.clone();
        let fault = Arc::new(move |one_in: u64| {
            let draw = draws.fetch_add(1, Ordering::Relaxed);
            if Random(draw).below(one_in) == 0
                && let Some(handle) = group_handle.get()
                && handle.stats().membership.active >= 2
            {
                die();
            }
        });
        let (within_apply, before_perform, done) = (fault.clone(), fault, performed.clone());
        let mut group = Group::builder(Chain::default(), 3)
            .slots(4)
            .capacity(128)
            .attempts(u32::MAX)
            .observe(32)
            .spawn(
                move |chain: &mut Chain, seq, request: &u64| {
                    let effect = chain.apply(seq, *request);
                    within_apply(4_000);
                    effect
                },
                move |effect, seq| {
                    before_perform(2_000);
                    let twice = done.lock().unwrap().insert(seq, effect);
                    assert_eq!(twice, None, "effect {seq} is performed again");
                },
            )
            .unwrap();
        handle.set(group.handle()).unwrap();
        let clients: Vec<_> = (0..3)
            .map(|client| {
                let mut publisher = group.publisher();
                thread::spawn(move || {
                    let mut random = Random(client);
                    let requests = (0..REQUESTS / 3).map(|_| random.next());
                    // Closed if every replica died at the same time.
                    let publish = |n| publisher.publish(n).ok().map(|seq| (seq, n));
                    requests.map_while(publish).collect::<Vec<_>>()
                })
            })
            .collect();
        let mut random = Random(seed);
        while !clients.iter().all(|client| client.is_finished()) {
            let replica = random.below(4) as usize;
            match random.below(4) {
                0 => drop(group.handle().leave(replica)),
                1 => drop(group.handle().park(replica)),
                2 => drop(group.handle().unpark(replica)),
                _ => drop(group.join()),
            }
            thread::sleep(Duration::from_micros(100));
        }
        let accepted = clients
            .into_iter()
            .flat_map(|client| client.join().unwrap());
        let accepted: BTreeMap<u64, u64> = accepted.collect();
        let stats = group.stats();
        let states = match group.shut_down() {
            Ok(states) => states,
            Err(GroupError::NoReplicaLeft) => continue,
            Err(error) => panic!("{error}"),
        };
        survived += 1;
        failed += stats.membership.failed;
        joined += stats.membership.joined;
        let requests: Vec<u64> = accepted.values().copied().collect();
        assert!(accepted.keys().copied().eq(0..requests.len() as u64));
        let (chain, effects) = Chain::of(&requests);
        for state in &states {
            assert_eq!(state, &chain, "seed {seed}: {stats:?}");
        }
        let performed = performed.lock().unwrap();
        assert!(performed.values().eq(&effects), "seed {seed}: {stats:?}");
    }
    println!("{survived} of {SEEDS} groups survived {failed} failures, {joined} joins");
    assert!(survived > SEEDS / 2 && failed > SEEDS && joined > SEEDS);
}

#[test]
fn the_states_come_back_when_a_group_is_shut_down_and_publishers_are_refused() {
    let group = Group::spawn(0, 2, |sum: &mut u64, _, n: &u64| *sum += n, |(), _| ()).unwrap();
    let mut publisher = group.publisher();
    let other = thread::spawn({
        let mut publisher = publisher.clone();
        move || {
            (
                publisher.publish_all(0..500),
                publisher.publish_all(500..1000),
            )
        }
    });
    let ranges = other.join().unwrap();
    assert_eq!(ranges, (Ok(0..500), Ok(500..1000)));
    assert_eq!(group.stats().published, 1000);
    assert_eq!(group.shut_down().unwrap(), [499_500; 2]);
    assert!(publisher.publish(1).is_err());
}

#[test]
fn a_thread_that_panics_joins_again_and_one_that_may_not_leaves_its_slot_to_another() {
    for revive in [true, false] {
        let poison = Arc::new(AtomicBool::new(false));
        let poisoned = poison.clone();
        let mut group = Group::builder(0, 2)
            .revive(revive)
            .spawn(
                move |sum: &mut u64, _, n: &u64| {
                    *sum += n;
                    if poisoned.swap(false, Ordering::Relaxed) {
                        die();
                    }
                },
                |(), _| (),
            )
            .unwrap();
        let mut publisher = group.publisher();
        publisher.publish(1).unwrap();
        poison.store(true, Ordering::Relaxed);
        publisher.publish(2).unwrap();
        wait_until("the fault", || group.stats().membership.failed == 1);
        if !revive {
            publisher.publish(3).unwrap();
            group.join().unwrap();
        }
        wait_until("the join", || group.stats().membership.joined == 1);
        publisher.publish(4).unwrap();
        let sum = if revive { 7 } else { 10 };
        assert_eq!(group.shut_down().unwrap(), [sum; 2]);
    }
}

#[test]
fn a_request_at_which_every_replica_dies_ends_the_group_with_an_error() {
    let apply = |_: &mut (), _, poison: &bool| {
        if *poison {
            die();
        }
    };
    let group = Group::spawn((), 3, apply, |(), _| ()).unwrap();
    let mut publisher = group.publisher();
    publisher.publish(false).unwrap();
    publisher.publish(true).unwrap();
    wait_until("the end", || publisher.publish(false).is_err());
    assert!(matches!(group.shut_down(), Err(GroupError::NoReplicaLeft)));
}

#[test]
fn an_effect_in_the_middle_of_a_stall_is_waited_for_and_all_others_are_performed() {
    let gate = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicUsize::new(0));
    let (closed, counted) = (gate.clone(), count.clone());
    let group = Group::builder((), 3)
        .chunk(1)
        .spawn(
            |_: &mut (), _, n: &u64| *n,
            move |n, _| {
                while n == 7 && !closed.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                counted.fetch_add(1, Ordering::Relaxed);
            },
        )
        .unwrap();
    let mut publisher = group.publisher();
    publisher.publish_all(0..200).unwrap();
    wait_until("the others", || count.load(Ordering::Relaxed) == 199);
    gate.store(true, Ordering::Release);
    group.shut_down().unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 200);
}

#[test]
fn dropping_a_group_performs_what_was_published_and_drops_every_value_once() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    #[derive(Clone)]
    struct Held(#[expect(dead_code, reason = "it is only dropped")] Arc<()>);

    let (requests, performed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (held, done) = (Arc::new(()), performed.clone());
    let effect = Held(held.clone());
    let apply = move |state: &mut Vec<Held>, _, _: &Counted| {
        state.push(effect.clone());
        effect.clone()
    };
    let group = Group::builder(Vec::new(), 3)
        .spawn(apply, move |_: Held, _| {
            done.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    let mut publisher = group.publisher();
    for _ in 0..500 {
        assert!(publisher.publish(Counted(requests.clone())).is_ok());
    }
    drop(group);
    assert_eq!(performed.load(Ordering::Relaxed), 500);
    let refused = publisher.publish(Counted(requests.clone()));
    drop(refused);
    drop(publisher);
    assert_eq!(requests.load(Ordering::Relaxed), 501);
    assert_eq!(
        Arc::strong_count(&held),
        1,
        "states and effects are dropped"
    );
}

#[test]
fn a_state_that_was_changed_is_found_and_repaired_on_threads() {
    let flip = Arc::new(AtomicBool::new(false));
    let (flips, found) = (flip.clone(), Arc::<Mutex<Vec<Divergence>>>::default());
    let heard = found.clone();
    let group = Group::builder(0, 3)
        .fingerprint(8, |sum: &u64| *sum)
        .on_divergence(move |divergence| {
            heard.lock().unwrap().push(divergence.clone());
            OnDivergence::Repair
        })
        .spawn(
            move |sum: &mut u64, _, n: &u64| {
                *sum += n;
                *sum ^= u64::from(flips.swap(false, Ordering::Relaxed)) << 40;
            },
            |(), _| (),
        )
        .unwrap();
    let mut publisher = group.publisher();
    publisher.publish_all(0..100).unwrap();
    flip.store(true, Ordering::Relaxed);
    let mut sum = 4950;
    wait_until("the repair", || {
        publisher.publish(1).unwrap();
        sum += 1;
        group.stats().membership.repaired == 1
    });
    assert_eq!(group.shut_down().unwrap(), [sum; 3]);
    let found = found.lock().unwrap();
    assert_eq!(found[0].minority.as_ref().map(Vec::len), Some(1));
    assert_eq!(found[0].fields, ["state"]);
}

#[test]
fn settings_out_of_their_range_are_named() {
    let name = |settings: dominoes::group::GroupBuilder<u8>| {
        let group = settings.by_hand(|_: &mut u8, _, _: &()| (), |(), _| ());
        match group.map(|_| ()) {
            Err(GroupError::OutOfRange { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(name(Group::builder(0, 0)), "replicas");
    assert_eq!(name(Group::builder(0, 57)), "replicas");
    assert_eq!(name(Group::builder(0, 1).slots(57)), "slots");
    assert_eq!(name(Group::builder(0, 1).capacity(3)), "capacity");
    assert_eq!(name(Group::builder(0, 1).chunk(3)), "chunk");
    assert_eq!(name(Group::builder(0, 1).capacity(8).chunk(16)), "chunk");
    assert_eq!(name(Group::builder(0, 1).attempts(0)), "attempts");
    assert_eq!(name(Group::builder(0, 1).fingerprint(0, |_| 0)), "every");
}

/// A planned fault has no message as its payload, so nothing is printed for it.
#[test]
fn a_planned_fault_is_told_from_a_failed_check() {
    let fault = std::panic::catch_unwind(|| die()).unwrap_err();
    assert!(fault.is::<Planned>());
}
