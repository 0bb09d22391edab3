//! Joining, leaving, divergence and repeated effects: one case each, stepped by hand.

use super::{Chain, Planned, die};
use dominoes::{
    Group, Park, Publisher, Seq, Turn,
    group::{
        Divergence, GroupByHand, GroupWorker, Membership, OnDivergence, ReplicaSlotError,
        WorkerState,
    },
};
use std::{
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

type Apply = Box<dyn Fn(&mut Chain, Seq, &u64) -> u64>;
type Perform = Box<dyn Fn(u64, Seq)>;
type Hand = GroupWorker<Chain, u64, u64, Apply, Perform>;

/// A group that compares fingerprints every 4 positions.
struct Fixture {
    group: GroupByHand<Chain, u64, u64, Apply, Perform>,
    workers: Vec<Hand>,
    publisher: Publisher<u64, Park>,
    requests: Vec<u64>,
    /// Effects that were performed, in order.
    performed: Rc<RefCell<Vec<Seq>>>,
    /// `perform` panics this often at this position.
    poison: Rc<Cell<(Seq, u32)>>,
    divergences: Arc<Mutex<Vec<Divergence>>>,
    now: Instant,
}

impl Fixture {
    fn new(replicas: usize) -> Fixture {
        Fixture::with(replicas, OnDivergence::Repair, 3)
    }

    fn with(replicas: usize, action: OnDivergence, attempts: u32) -> Fixture {
        let divergences = Arc::<Mutex<Vec<Divergence>>>::default();
        let performed = Rc::<RefCell<Vec<Seq>>>::default();
        let poison = Rc::new(Cell::new((0, 0)));
        let heard = divergences.clone();
        let settings = Group::builder(Chain::default(), replicas)
            .capacity(64)
            .chunk(4)
            .attempts(attempts)
            .observe(4)
            .on_divergence(move |divergence| {
                heard.lock().unwrap().push(divergence.clone());
                action
            });
        let apply: Apply = Box::new(|chain, seq, request| chain.apply(seq, *request));
        let (done, poisoned) = (performed.clone(), poison.clone());
        let perform: Perform = Box::new(move |_, seq| {
            let (at, times) = poisoned.get();
            if seq == at && times > 0 {
                poisoned.set((at, times - 1));
                die();
            }
            done.borrow_mut().push(seq);
        });
        let mut group = settings.by_hand(apply, perform).unwrap();
        Fixture {
            workers: group.workers.drain(..).collect(),
            publisher: group.handle().publisher(),
            group,
            requests: Vec::new(),
            performed,
            poison,
            divergences,
            now: Instant::now(),
        }
    }

    fn publish(&mut self, requests: u64) {
        for n in 0..requests {
            self.publisher.try_publish(n).unwrap();
            self.requests.push(n);
        }
    }

    /// Steps all workers until none finds work.
    fn settle(&mut self) {
        for round in 0.. {
            let now = self.now;
            let turns = self.workers.iter_mut().map(|worker| worker.turn(now));
            let turns: Vec<Turn> = turns.collect();
            if !turns.contains(&Turn::Worked) {
                return;
            }
            assert!(round < 1000, "{turns:?}");
        }
    }

    fn run(&mut self, requests: u64) {
        self.publish(requests);
        self.settle();
    }

    /// Steps a worker that dies in this step.
    fn step_to_death(&mut self, at: usize) {
        let now = self.now;
        let worker = &mut self.workers[at];
        let died = catch_unwind(AssertUnwindSafe(|| worker.turn(now)));
        assert!(died.unwrap_err().is::<Planned>());
        drop(self.workers.remove(at));
    }

    fn all_agree(&self) {
        let (chain, _) = Chain::of(&self.requests);
        for worker in &self.workers {
            assert_eq!(worker.state(), Some(&chain), "{worker:?}");
        }
    }

    /// Checks that every effect so far was performed, and that there were `times` in total.
    fn all_performed(&self, times: usize) {
        let mut performed = self.performed.borrow().clone();
        assert_eq!(performed.len(), times);
        performed.sort_unstable();
        performed.dedup();
        assert!(performed.iter().copied().eq(0..self.requests.len() as u64));
    }

    fn divergences(&self) -> Vec<Divergence> {
        std::mem::take(&mut self.divergences.lock().unwrap())
    }
}

#[test]
fn two_replicas_that_differ_are_reported_and_left_alone() {
    let mut fixture = Fixture::new(2);
    fixture.run(8);
    fixture.workers[0].state_mut().unwrap().sum ^= 1;
    fixture.run(4);
    let [divergence] = &fixture.divergences()[..] else {
        panic!("it is reported once");
    };
    assert_eq!((divergence.position, divergence.agreed), (12, Some(8)));
    assert_eq!(
        (&divergence.fields[..], &divergence.minority),
        (&["sum"][..], &None)
    );
    let stats = fixture.group.handle().stats();
    assert_eq!(
        (stats.membership.undecided, stats.membership.repaired),
        (1, 0)
    );
    assert_eq!(stats.membership.active, 2);
}

#[test]
fn two_of_five_in_different_fields_are_both_repaired() {
    let mut fixture = Fixture::new(5);
    fixture.run(10);
    fixture.workers[1].state_mut().unwrap().sum ^= 4;
    fixture.workers[3].state_mut().unwrap().last ^= 8;
    fixture.run(2);
    let divergences = fixture.divergences();
    let last = divergences.last().unwrap();
    assert_eq!(last.fields, ["last", "sum"]);
    assert_eq!(last.minority, Some(vec![1, 3]));
    assert_eq!(fixture.group.handle().stats().membership.repaired, 2);
    fixture.all_agree();
    fixture.run(21);
    fixture.all_agree();
    assert!(fixture.divergences().is_empty());
    assert_eq!(
        fixture.publisher.log().subscribers(),
        5,
        "nothing is left of the old subscriptions"
    );
}

#[test]
fn no_worker_is_reported_without_a_majority_while_a_third_one_is_on_its_way() {
    let mut fixture = Fixture::new(3);
    fixture.run(4);
    fixture.workers[0].state_mut().unwrap().sum ^= 1;
    let late = fixture.workers.pop().unwrap();
    fixture.run(4);
    assert!(fixture.divergences().is_empty(), "two against each other");
    fixture.workers.push(late);
    fixture.settle();
    let [divergence] = &fixture.divergences()[..] else {
        panic!("it is reported once");
    };
    assert_eq!(
        (divergence.position, &divergence.minority),
        (8, &Some(vec![0]))
    );
    fixture.all_agree();
}

#[test]
fn a_hook_can_forbid_the_repair() {
    let mut fixture = Fixture::with(3, OnDivergence::Report, 3);
    fixture.run(2);
    fixture.workers[2].state_mut().unwrap().sum ^= 1;
    fixture.run(6);
    let positions: Vec<Seq> = fixture.divergences().iter().map(|d| d.position).collect();
    assert_eq!(positions, [4], "it is reported once");
    assert_eq!(fixture.group.handle().stats().membership.repaired, 0);
}

#[test]
fn one_that_leaves_is_forgotten_and_a_fresh_one_joins() {
    let mut fixture = Fixture::new(3);
    fixture.run(6);
    drop(fixture.workers.remove(1));
    fixture.run(6);
    fixture.workers.push(fixture.group.join().unwrap());
    assert_eq!(fixture.workers[2].id(), 1);
    let full = fixture.group.join().map(|_| ());
    assert_eq!(
        full,
        Err(ReplicaSlotError::NoFreeSlot),
        "there are three replicas"
    );
    assert!(fixture.workers[2].state().is_none());
    fixture.run(10);
    fixture.all_agree();
    fixture.all_performed(22);
    let stats = fixture.group.handle().stats().membership;
    assert_eq!((stats.active, stats.failed, stats.joined), (3, 1, 1));
    assert!(fixture.divergences().is_empty());
}

#[test]
fn another_source_is_asked_if_the_first_dies_before_it_gives() {
    let mut fixture = Fixture::new(3);
    fixture.run(4);
    drop(fixture.workers.remove(2));
    let mut joiner = fixture.group.join().unwrap();
    assert_eq!(joiner.turn(fixture.now), Turn::Idle);
    drop(fixture.workers.remove(0));
    assert_eq!(joiner.turn(fixture.now), Turn::Idle);
    fixture.workers.push(joiner);
    fixture.run(3);
    assert_eq!(fixture.workers[1].worker_state(), WorkerState::Active);
    fixture.all_agree();
}

#[test]
fn a_snapshot_is_refused_if_its_source_is_gone_before_it_is_checked() {
    let mut fixture = Fixture::new(4);
    fixture.run(4);
    drop(fixture.workers.remove(3));
    let mut joiner = fixture.group.join().unwrap();
    let now = fixture.now;
    fixture.workers[0].turn(now);
    assert_eq!(joiner.turn(now), Turn::Idle, "no other one has attested");
    assert_eq!(joiner.worker_state(), WorkerState::JoinCheck);
    drop(fixture.workers.remove(0));
    assert_eq!(joiner.turn(now), Turn::Worked);
    assert_eq!(
        (joiner.worker_state(), joiner.state()),
        (WorkerState::Joining, None)
    );
    fixture.workers.push(joiner);
    fixture.run(4);
    fixture.all_agree();
}

#[test]
fn a_state_that_was_flipped_is_given_to_no_joiner() {
    let mut fixture = Fixture::new(4);
    fixture.run(5);
    drop(fixture.workers.remove(3));
    fixture.workers[0].state_mut().unwrap().sum ^= 2;
    let joiner = fixture.group.join().unwrap();
    let now = fixture.now;
    fixture.workers[0].turn(now); // provides its state
    fixture.workers.push(joiner);
    fixture.settle();
    let joiner = fixture.workers.last().unwrap();
    assert_eq!(joiner.worker_state(), WorkerState::Active);
    assert_eq!(joiner.state(), fixture.workers[1].state());
    fixture.run(7); // and the next fingerprint leads to its repair
    fixture.all_agree();
    assert_eq!(fixture.group.handle().stats().membership.repaired, 1);
}

#[test]
fn a_joiner_that_gives_up_frees_its_slot() {
    let mut fixture = Fixture::new(2);
    drop(fixture.workers.remove(1));
    drop(fixture.group.join().unwrap());
    let joiner = fixture.group.join().unwrap();
    fixture.run(4); // the snapshot is there
    drop(joiner);
    assert_eq!(fixture.publisher.log().subscribers(), 1);
    assert_eq!(fixture.group.join().unwrap().id(), 1);
    fixture.run(60);
    fixture.all_performed(64);
}

#[test]
fn the_last_replica_neither_leaves_nor_parks_and_a_parked_one_comes_back() {
    let mut fixture = Fixture::new(2);
    let handle = fixture.group.handle().clone();
    fixture.run(3);
    handle.park(0).unwrap();
    assert_eq!(handle.leave(1), Err(ReplicaSlotError::LastReplica));
    assert_eq!(handle.park(7), Err(ReplicaSlotError::NoSuchReplica));
    fixture.run(3);
    assert_eq!(fixture.workers[0].worker_state(), WorkerState::Parked);
    assert_eq!(fixture.publisher.log().subscribers(), 1, "it has no state");
    assert_eq!(handle.unpark(1), Err(ReplicaSlotError::NoSuchReplica));
    handle.unpark(0).unwrap();
    fixture.run(3);
    fixture.all_agree();
    handle.leave(1).unwrap();
    fixture.run(3);
    assert_eq!(fixture.workers[1].worker_state(), WorkerState::Gone);
    drop(fixture.workers.remove(1));
    fixture.all_agree();
    fixture.all_performed(12);
    let stats = handle.stats().membership;
    assert_eq!(
        (stats.left, stats.parked, stats.unparked, stats.failed),
        (1, 1, 1, 0)
    );
    drop(fixture.workers.remove(0));
    assert_eq!(handle.unpark(0), Err(ReplicaSlotError::NoSuchReplica));
    assert!(fixture.publisher.is_closed(), "the state is lost");
    assert_eq!(
        fixture.group.join().map(|_| ()),
        Err(ReplicaSlotError::NoReplicaLeft)
    );
}

#[test]
fn a_worker_that_stands_still_holds_up_no_effect_that_it_has_not_begun() {
    let mut fixture = Fixture::new(3);
    let stalled = fixture.workers.remove(0);
    fixture.publish(60);
    fixture.settle();
    assert!(
        fixture.performed.borrow().len() < 60,
        "chunks of its own are open"
    );
    fixture.now += Duration::from_millis(1);
    fixture.settle();
    fixture.all_performed(60);
    // It returns, finds everything done, and continues.
    fixture.workers.push(stalled);
    fixture.run(4);
    fixture.all_performed(64);
    fixture.all_agree();
    let stats = fixture.group.handle().stats();
    let stolen: u64 = stats.replicas.iter().map(|replica| replica.steals).sum();
    assert_eq!((stolen, stats.performed()), (20, 64));
}

#[test]
fn an_effect_in_the_middle_of_which_its_primary_died_is_performed_by_another() {
    let mut fixture = Fixture::new(2);
    fixture.publish(8);
    fixture.poison.set((1, 1));
    fixture.step_to_death(0);
    assert_eq!(*fixture.performed.borrow(), [0]);
    fixture.settle();
    fixture.all_performed(8);
    let stats = fixture.group.handle().stats();
    assert_eq!((stats.interrupted, stats.abandoned), (1, 0));
}

#[test]
fn an_effect_that_is_to_be_begun_once_is_not_begun_again() {
    let mut fixture = Fixture::with(2, OnDivergence::Repair, 1);
    fixture.publish(8);
    fixture.poison.set((1, 1));
    fixture.step_to_death(0);
    fixture.settle();
    let mut performed = fixture.performed.borrow().clone();
    performed.sort_unstable();
    assert_eq!(performed, [0, 2, 3, 4, 5, 6, 7]);
    let stats = fixture.group.handle().stats();
    assert_eq!((stats.interrupted, stats.abandoned), (1, 1));
}

#[test]
fn an_effect_at_which_every_replica_dies_is_given_up_after_as_many_attempts() {
    let mut fixture = Fixture::new(4);
    fixture.publish(8);
    fixture.poison.set((0, u32::MAX));
    for _ in 0..3 {
        fixture.step_to_death(0);
    }
    fixture.settle();
    let mut performed = fixture.performed.borrow().clone();
    performed.sort_unstable();
    assert!(performed.iter().copied().eq(1..8));
    let stats = fixture.group.handle().stats();
    assert_eq!((stats.interrupted, stats.abandoned), (3, 1));
    assert_eq!(stats.membership.failed, 3);
}

#[test]
fn a_difference_without_a_majority_counts_once_until_a_worker_with_a_vote_is_gone() {
    let members = Membership::<()>::new(4, 3, false);
    assert!(members.count_undecided());
    for state in [WorkerState::Joining, WorkerState::JoinCheck] {
        let id = members.request_snapshot(None).unwrap();
        members.release(id, state);
        assert!(!members.count_undecided(), "{state:?}");
    }
    for (id, state) in [(2, WorkerState::Parked), (1, WorkerState::Gone)] {
        members.release(id, state);
        assert!(members.count_undecided(), "{state:?}");
    }
    assert_eq!(members.stats().undecided, 3);
}
