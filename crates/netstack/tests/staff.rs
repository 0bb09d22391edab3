//! A group that chooses how many of its replicas work: nothing is lost when one comes or rests.

mod support;

use std::io::{Read, Write};
use std::thread;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::Stack;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::replicated::{Group, Layout};
use dominoes_netstack::variants::single::Single;

use support::{Ends, octet, setup};

/// A group of up to three, and a peer that writes to it, in virtual time.
struct Lab {
    group: Group,
    peer: Single,
    now: Instant,
    ends: Option<Ends>,
}

impl Lab {
    /// With so many replicas at first, and whether the group chooses how many work.
    fn new(replicas: usize, adapt: bool) -> Lab {
        let (left, right) = memory::pair(MemoryConfig::default());
        let mut layout = Layout::default();
        (layout.replicas, layout.seats, layout.adapt) = (replicas, 3, adapt);
        let mut lab = Lab {
            group: Group::new(setup(1), layout, Box::new(left)).unwrap(),
            peer: Single::new(setup(2), Box::new(right)).unwrap(),
            now: Instant::ZERO,
            ends: None,
        };
        let (ours, theirs) = (lab.group.sockets(), lab.peer.sockets());
        lab.ends = Some(Ends::open(&ours, &theirs, || lab.turn()));
        lab
    }

    fn ends(&mut self) -> &mut Ends {
        self.ends.as_mut().unwrap()
    }

    fn turn(&mut self) {
        self.now += Duration::from_micros(100);
        self.peer.turn(self.now);
        self.group.turn(self.now);
        self.group.seat();
    }

    /// Lets so many milliseconds pass, in which octets move or do not.
    fn pass(&mut self, ms: u64, busy: bool) {
        for _ in 0..10 * ms {
            self.turn();
            self.ends().go_on(if busy { 200_000 } else { 0 });
        }
    }

    fn working(&mut self) -> usize {
        let workers = self.group.workers().iter();
        workers.filter(|worker| worker.is_member()).count()
    }
}

#[test]
fn replicas_are_tried_when_there_is_much_to_do_and_rest_when_there_is_not() {
    let mut lab = Lab::new(1, true);
    lab.pass(100, false);
    assert_eq!(lab.group.member_stats().recruited, 0, "nothing to do");
    let mut before = 0;
    for round in 1..=3 {
        lab.pass(400, true);
        let stats = lab.group.member_stats();
        assert!(stats.recruited > before, "round {round}: {stats:?}");
        before = stats.recruited;
        lab.pass(500, false);
        let stats = lab.group.member_stats();
        assert_eq!(
            (lab.working(), stats.members, stats.rested),
            (1, 1, stats.recruited),
            "round {round}"
        );
        assert!(lab.group.workers().iter().any(|worker| worker.is_alone()));
    }
    let (read, written) = (lab.ends().read, lab.ends().written);
    assert_eq!(read, written);
    assert!(read > 10_000_000, "{read} octets");
    lab.group.compare().unwrap();
    let stats = lab.group.member_stats();
    assert_eq!((stats.died, stats.left, stats.joined), (0, 0, 0));
}

#[test]
fn whoever_is_left_alone_under_load_does_without_the_log_again() {
    let mut lab = Lab::new(2, false);
    lab.pass(100, true);
    lab.group.leave(Some(1)).unwrap();
    lab.pass(10, true);
    while let Some(index) = lab
        .group
        .workers()
        .iter()
        .position(|worker| worker.has_left())
    {
        drop(lab.group.take(index));
    }
    lab.pass(10, true);
    let worker = &lab.group.workers()[0];
    assert!(worker.is_alone(), "{worker:?}");
    let position = worker.replica().position();
    lab.pass(100, true);
    assert_eq!(lab.group.workers()[0].replica().position(), position);
}

#[test]
fn threads_that_rest_wake_when_the_stack_ends() {
    let (left, right) = memory::pair(MemoryConfig::default());
    let server = Stack::builder("10.0.0.1/24").replicas_up_to(3);
    let server = server.start(left).unwrap();
    let client = Stack::builder("10.0.0.2/24").start(right).unwrap();
    let listener = server.listen(7, 4).unwrap();
    let mut ours = client.connect("10.0.0.1:7".parse().unwrap()).unwrap();
    let (mut theirs, _) = listener.accept().unwrap();
    let octets: Vec<u8> = (0..4_000_000).map(octet).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            ours.write_all(&octets).unwrap();
            ours.shutdown_write();
        });
        let mut came = Vec::new();
        theirs.read_to_end(&mut came).unwrap();
        assert!(came == octets, "other octets came");
    });
    let stats = server.stats().members;
    assert!((1..=3).contains(&stats.members), "{stats:?}");
    server.compare().unwrap();
}
