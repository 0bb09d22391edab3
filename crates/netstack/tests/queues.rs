//! A device with several queues: all feed one log, and each flow keeps its order.

use std::io::{Read, Write};
use std::thread;

use dominoes_drivers::memory::{self, MemoryConfig, MemoryDevice};
use dominoes_netstack::group::{Layout, ReplicatedGroup};
use dominoes_netstack::router::Router;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::groups::{self, INBOX};
use dominoes_netstack::variants::pipelined::{Pipeline, PipelinedLayout};
use dominoes_netstack::variants::{VariantKind, Worker as _, single::Single};
use dominoes_netstack::{Stack, TcpStream};
use dominoes_testkit::Rng;

use crate::support::{Ends, pattern_byte, setup};

/// Bytes of each flow.
const BYTES: u64 = 300_000;
const FLOWS: usize = 6;

/// Joined devices with this many queues.
fn queues(count: usize) -> (Vec<MemoryDevice>, Vec<MemoryDevice>) {
    (0..count)
        .map(|_| memory::pair(MemoryConfig::default()))
        .unzip()
}

/// A group over several queues, and a peer without a log over their other ends.
struct Fixture {
    group: ReplicatedGroup,
    peer: Single,
    now: Instant,
    rng: Rng,
    flows: Vec<Ends>,
}

impl Fixture {
    /// The group receives (`true`) or sends.
    fn new(receives: bool, count: usize, layout: Layout, seed: u64) -> Fixture {
        let (left, right) = queues(count);
        let [ours, theirs] = if receives { [1, 2] } else { [2, 1] };
        let mut fixture = Fixture {
            group: ReplicatedGroup::new(setup(ours), layout, Box::new(left)).unwrap(),
            peer: Single::new(setup(theirs), Box::new(right)).unwrap(),
            now: Instant::ZERO,
            rng: Rng::new(seed),
            flows: Vec::new(),
        };
        let (ours, theirs) = (fixture.group.sockets(), fixture.peer.sockets());
        let [first, second] = if receives {
            [&ours, &theirs]
        } else {
            [&theirs, &ours]
        };
        for _ in 0..FLOWS {
            let flow = Ends::open(first, second, || fixture.step());
            fixture.flows.push(flow);
        }
        fixture
    }

    /// Workers do some of their steps, in any order.
    fn step(&mut self) {
        self.now += Duration::from_micros(5);
        self.peer.turn(self.now);
        for _ in 0..8 {
            let workers = self.group.workers();
            let worker = &mut workers[self.rng.index(workers.len())];
            match self.rng.below(4) {
                0 => drop(worker.claim(self.now)),
                1 => drop(worker.parse()),
                2 => drop(worker.publish(self.now)),
                _ => drop(worker.turn(self.now)),
            }
        }
        for flow in &mut self.flows {
            flow.go_on(BYTES.saturating_sub(flow.written).min(20_000));
        }
    }

    /// Ends when every byte has arrived.
    fn run(&mut self) {
        let is_done = |flow: &Ends| flow.read == BYTES;
        for _ in 0..200_000 {
            self.step();
            if self.flows.iter().all(is_done) {
                return;
            }
        }
        let read: Vec<_> = self.flows.iter().map(|flow| flow.read).collect();
        panic!("{read:?} of {BYTES} bytes each");
    }

    /// No segment was lost, and none overtook another of its flow.
    fn check_order(&self) {
        for stats in [self.group.stats().state, self.peer.stats().state] {
            let repaired = [stats.out_of_order, stats.retransmitted, stats.duplicates];
            assert_eq!(repaired, [0; 3]);
        }
        self.group.compare().unwrap();
    }
}

fn layout(replicas: usize) -> Layout {
    let mut layout = Layout::default();
    layout.replicas = replicas;
    layout.replica_slots = replicas;
    layout
}

#[test]
fn each_flow_keeps_its_order_whichever_worker_has_its_queue() {
    for seed in 0..12 {
        let (count, replicas) = (2 + seed as usize % 2, 2 + seed as usize / 2 % 2);
        let mut fixture = Fixture::new(seed % 4 < 2, count, layout(replicas), seed);
        fixture.run();
        fixture.check_order();
    }
}

#[test]
fn nothing_is_lost_with_a_worker_that_dies_between_claim_and_publish() {
    for seed in 0..8 {
        let mut fixture = Fixture::new(true, 2, layout(2), seed);
        let (mut claimed, parses) = (0, seed % 2 == 1);
        while claimed == 0 {
            fixture.step();
            // What the flows have just written is in the queues.
            fixture.peer.turn(fixture.now);
            let now = fixture.now;
            let worker = &mut fixture.group.workers()[1];
            claimed = worker.claim(now).unwrap_or(0);
            if claimed == 0 || parses {
                worker.parse();
            }
        }
        // Its queue has no worker any more.
        drop(fixture.group.take(1));
        fixture.run();
        fixture.check_order();
    }
}

#[test]
fn one_worker_serves_all_queues_with_the_log_and_without() {
    for always in [false, true] {
        let mut layout = layout(1);
        layout.tuning.always_log = always;
        let mut fixture = Fixture::new(true, 3, layout, 5);
        fixture.run();
        fixture.check_order();
    }
}

#[test]
fn a_parked_worker_leaves_its_queue_to_the_other() {
    let mut layout = layout(2);
    layout.autoscale = true;
    let mut fixture = Fixture::new(true, 2, layout, 9);
    fixture.group.park();
    fixture.run();
    assert!(fixture.group.workers()[1].is_parked());
    fixture.check_order();
}

/// Sends a pattern and reads it back.
fn echo(stream: TcpStream) {
    let (mut reader, mut writer) = stream.split();
    let writing = thread::spawn(move || {
        let bytes: Vec<u8> = (0..4 * BYTES).map(pattern_byte).collect();
        writer.write_all(&bytes).unwrap();
        writer.shutdown();
    });
    let mut back = Vec::new();
    reader.read_to_end(&mut back).unwrap();
    writing.join().unwrap();
    assert_eq!(back.len() as u64, 4 * BYTES);
    assert!((0..).zip(&back).all(|(at, byte)| *byte == pattern_byte(at)));
}

#[test]
fn threads_serve_the_queues_of_a_device_however_many_there_are() {
    for (count, replicas, most) in [(2, 2, 2), (3, 2, 2), (2, 3, 3), (2, 1, 1), (2, 1, 2)] {
        let (left, right) = queues(count);
        let builder = Stack::builder("10.0.0.1/24").replicas(replicas);
        let server = match most > replicas {
            true => builder.replicas_up_to(most).start(left).unwrap(),
            false => builder.start(left).unwrap(),
        };
        let client = Stack::builder("10.0.0.2/24")
            .replicas(1)
            .start(right)
            .unwrap();
        let listener = server.listen(7, 16).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                let ours = client.connect("10.0.0.1:7").unwrap();
                let (mut theirs, _) = listener.accept().unwrap();
                scope.spawn(move || echo(ours));
                scope.spawn(move || {
                    let mut bytes = vec![0; 1 << 16];
                    loop {
                        let len = theirs.read(&mut bytes).unwrap();
                        if len == 0 {
                            return theirs.shutdown_write();
                        }
                        theirs.write_all(&bytes[..len]).unwrap();
                    }
                });
            }
        });
        server.compare().unwrap();
    }
}

#[test]
fn a_device_without_queues_or_with_too_many_is_refused() {
    for count in [0, 257] {
        let refused = |error: String| {
            assert!(error.contains("queues"), "{error}");
            assert!(error.contains(&count.to_string()), "{error}");
        };
        let device = || queues(count).0;
        let stack = || Stack::builder("10.0.0.1/24");
        for stack in [
            stack().replicas(1),
            stack().replicas(2),
            stack().groups(2),
            stack().variant(VariantKind::Pipelined),
        ] {
            refused(stack.start(device()).map(|_| ()).unwrap_err().to_string());
        }
        let router = Router::builder().interface("10.0.0.1/24", device());
        refused(router.build().map(|_| ()).unwrap_err().to_string());
        let [setup, divided, pipelined] = [(); 3].map(|()| setup(1));
        refused(
            Single::new(setup, Box::new(device()))
                .map(|_| ())
                .unwrap_err()
                .to_string(),
        );
        let divided = groups::divide(divided, 2, Box::new(device()), INBOX);
        refused(divided.map(|_| ()).unwrap_err().to_string());
        let pipeline = Pipeline::new(pipelined, PipelinedLayout::default(), Box::new(device()));
        refused(pipeline.map(|_| ()).unwrap_err().to_string());
    }
}
