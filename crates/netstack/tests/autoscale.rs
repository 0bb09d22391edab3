//! A group that chooses the number of its active replicas: parking and unparking lose nothing.

use std::io::{Read, Write};
use std::thread;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::Stack;
use dominoes_netstack::group::{Layout, ReplicatedGroup};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::single::Single;

use crate::support::{Ends, pattern_byte, setup};

/// A group of up to three replicas, and a peer that writes to it, in virtual time.
struct Fixture {
    group: ReplicatedGroup,
    peer: Single,
    now: Instant,
    ends: Option<Ends>,
}

impl Fixture {
    /// Starts with `replicas` active; `autoscale`: the group chooses the number.
    fn new(replicas: usize, autoscale: bool) -> Fixture {
        let (left, right) = memory::pair(MemoryConfig::default());
        let mut layout = Layout::default();
        (layout.replicas, layout.replica_slots, layout.autoscale) = (replicas, 3, autoscale);
        let mut fixture = Fixture {
            group: ReplicatedGroup::new(setup(1), layout, Box::new(left)).unwrap(),
            peer: Single::new(setup(2), Box::new(right)).unwrap(),
            now: Instant::ZERO,
            ends: None,
        };
        let (ours, theirs) = (fixture.group.sockets(), fixture.peer.sockets());
        fixture.ends = Some(Ends::open(&ours, &theirs, || fixture.turn()));
        fixture
    }

    fn ends(&mut self) -> &mut Ends {
        self.ends.as_mut().unwrap()
    }

    fn turn(&mut self) {
        self.now += Duration::from_micros(100);
        self.peer.turn(self.now);
        self.group.turn(self.now);
        self.group.admit();
    }

    /// Lets `ms` milliseconds pass; bytes move if `busy`.
    fn pass(&mut self, ms: u64, busy: bool) {
        for _ in 0..10 * ms {
            self.turn();
            self.ends().go_on(if busy { 200_000 } else { 0 });
        }
    }

    fn working(&mut self) -> usize {
        let workers = self.group.workers().iter();
        workers.filter(|worker| worker.is_active()).count()
    }
}

#[test]
fn replicas_are_tried_when_there_is_much_to_do_and_parked_when_there_is_not() {
    let mut fixture = Fixture::new(1, true);
    fixture.pass(100, false);
    assert_eq!(
        fixture.group.membership_stats().unparked,
        0,
        "nothing to do"
    );
    let mut before = 0;
    for round in 1..=3 {
        // Longer than the longest pause from one trial to the next.
        fixture.pass(1400, true);
        let stats = fixture.group.membership_stats();
        assert!(stats.unparked > before, "round {round}: {stats:?}");
        before = stats.unparked;
        fixture.pass(500, false);
        let stats = fixture.group.membership_stats();
        assert_eq!(
            (fixture.working(), stats.active, stats.parked),
            (1, 1, stats.unparked),
            "round {round}"
        );
        assert!(
            fixture
                .group
                .workers()
                .iter()
                .any(|worker| worker.is_solo())
        );
    }
    let (read, written) = (fixture.ends().read, fixture.ends().written);
    assert_eq!(read, written);
    assert!(read > 10_000_000, "{read} bytes");
    fixture.group.compare().unwrap();
    let stats = fixture.group.membership_stats();
    assert_eq!((stats.failed, stats.left, stats.joined), (0, 0, 0));
}

#[test]
fn a_worker_that_is_left_alone_under_load_works_without_the_log_again() {
    let mut fixture = Fixture::new(2, false);
    fixture.pass(100, true);
    fixture.group.leave(Some(1)).unwrap();
    fixture.pass(10, true);
    while let Some(index) = fixture
        .group
        .workers()
        .iter()
        .position(|worker| worker.has_left())
    {
        drop(fixture.group.take(index));
    }
    fixture.pass(10, true);
    let worker = &fixture.group.workers()[0];
    assert!(worker.is_solo(), "{worker:?}");
    let position = worker.replica().position();
    fixture.pass(100, true);
    assert_eq!(fixture.group.workers()[0].replica().position(), position);
}

#[test]
fn a_worker_alone_sleeps_for_several_frames_and_one_of_two_does_not() {
    for replicas in [1, 2] {
        let mut fixture = Fixture::new(replicas, false);
        fixture.pass(10, true);
        let mut has_slept = false;
        for _ in 0..100 {
            fixture.turn();
            fixture.ends().go_on(200_000);
            let now = fixture.now;
            has_slept |= fixture.group.workers()[0].rest_alone(now);
        }
        assert_eq!(has_slept, replicas == 1, "{replicas} replicas");
    }
}

#[test]
fn parked_threads_wake_up_when_the_stack_ends() {
    let (left, right) = memory::pair(MemoryConfig::default());
    let server = Stack::builder("10.0.0.1/24").replicas_up_to(3);
    let server = server.start(left).unwrap();
    let client = Stack::builder("10.0.0.2/24").start(right).unwrap();
    let listener = server.listen(7, 4).unwrap();
    let mut ours = client.connect("10.0.0.1:7").unwrap();
    let (mut theirs, _) = listener.accept().unwrap();
    let bytes: Vec<u8> = (0..4_000_000).map(pattern_byte).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            ours.write_all(&bytes).unwrap();
            ours.shutdown_write();
        });
        let mut came = Vec::new();
        theirs.read_to_end(&mut came).unwrap();
        assert!(came == bytes, "other bytes came");
    });
    let stats = server.stats().membership;
    assert!((1..=3).contains(&stats.active), "{stats:?}");
    server.compare().unwrap();
}
