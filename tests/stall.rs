//! A replica that stalls between two steps delays no other, and a replica that panics leaves no
//! work undone.
//!
//! Two stacks on one simulated link, in virtual time: a group of replicas, and a `single` stack as
//! the peer. In the middle of a transfer at full speed one replica does nothing for 100 ms, or
//! panics in the middle of an effect. The application must keep receiving unharmed bytes, and
//! neither side may send a byte twice.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use dominoes_drivers::Frame;
use dominoes_drivers::memory::{MemoryConfig, Script, scripted_with};
use dominoes_netstack::group::{FaultHooks, Layout, Primaries, ReplicatedGroup, ReplicatedWorker};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::Setup;
use dominoes_netstack::variants::Worker as _;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::{SocketError, TcpStream};
use dominoes_proto::log::effect::Effect;
use dominoes_testkit::link::{ImpairedLink, LinkConfig};
use dominoes_testkit::packet::Header;
use dominoes_testkit::{Rng, number};

const GROUP: [u8; 4] = [10, 0, 0, 1];
const PEER: [u8; 4] = [10, 0, 0, 2];
const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
/// Between two rounds of turns.
const STEP: u64 = 10 * MICRO;
/// Delay in each direction.
const DELAY: Duration = Duration::from_micros(20);
/// Time after which the transfer has full speed.
const WARM: u64 = 30 * MILLI;
const STALL: u64 = 100 * MILLI;
const AFTER: u64 = 10 * MILLI;
/// The longest time that an application may wait for data.
const PATIENCE: u64 = MILLI;
/// Positions for 100 ms: at 8 Gbit/s 6.6 frames arrive between two turns, which are one run, and
/// the application reports progress as often: 20,000.
const LOG: usize = 1 << 15;

/// The bytes of a stream, with a period that divides no buffer's length.
struct Pattern(Vec<u8>);

impl Pattern {
    const PERIOD: usize = 251;
    const LEN: usize = 1 << 20;

    fn new() -> Pattern {
        Pattern(
            (0..Self::LEN + Self::PERIOD)
                .map(|i| (i % Self::PERIOD) as u8)
                .collect(),
        )
    }

    fn at(&self, offset: u64, len: usize) -> &[u8] {
        let from = (offset % Self::PERIOD as u64) as usize;
        &self.0[from..][..len.min(Self::LEN)]
    }
}

/// One direction of a link of 8 Gbit/s: a byte takes a nanosecond.
struct Lane {
    link: ImpairedLink,
    /// The sequence number after the highest byte sent.
    highest: Option<u32>,
    /// Bytes that were sent again.
    again: u64,
}

impl Lane {
    fn new() -> Lane {
        let config = LinkConfig::default().rate(8_000_000_000, 0);
        Lane {
            link: ImpairedLink::new(config.delay(DELAY)),
            highest: None,
            again: 0,
        }
    }

    fn carry(&mut self, now: u64, from: &Script, to: &Script) {
        let now = Duration::from_nanos(now);
        for (bytes, _) in from.take_sent() {
            self.watch(&bytes);
            self.link.offer(now, Frame::from_bytes(&bytes));
        }
        while let Some(frame) = self.link.take(now) {
            to.push_frame(frame);
        }
    }

    fn watch(&mut self, bytes: &[u8]) {
        let Some(header) = Header::read(bytes) else {
            return;
        };
        let (seq, len) = (header.seq, header.payload_len());
        if len == 0 {
            return;
        }
        let end = seq.wrapping_add(len);
        let highest = *self.highest.get_or_insert(seq);
        if (end.wrapping_sub(highest) as i32) > 0 {
            self.highest = Some(end);
        }
        if (seq.wrapping_sub(highest) as i32) < 0 {
            self.again += u64::from(len);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Receive,
    Send,
}

#[derive(Clone, Copy, Debug)]
struct Scene {
    direction: Direction,
    primaries: Primaries,
    replicas: usize,
    seed: u64,
    panics: bool,
}

/// Panics once, in the middle of an effect.
struct PanicOnce {
    armed: bool,
    /// Effects before the panic.
    left: u64,
}

impl FaultHooks for PanicOnce {
    const ACTIVE: bool = true;

    fn before_performing(&mut self, seq: u64, _effect: &Effect) {
        if self.armed && seq > 1000 {
            if self.left == 0 {
                self.armed = false;
                resume_unwind(Box::new("on purpose"));
            }
            self.left -= 1;
        }
    }
}

#[derive(Debug)]
struct Outcome {
    /// The longest wait of the application for data, in nanoseconds, from just before the stall.
    gap: u64,
    /// Bytes that it received during the stall.
    got: u64,
    again: u64,
    stolen: u64,
    /// The most requests in flight.
    depth: u64,
    died: bool,
}

fn play(scene: Scene) -> Outcome {
    let pattern = Pattern::new();
    let mut rng = Rng::new(scene.seed);
    let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
    let (device, ours) = scripted_with(MemoryConfig::default().macs(macs[0], macs[1]));
    let (peer_device, theirs) = scripted_with(MemoryConfig::default().macs(macs[1], macs[0]));
    let mut layout = Layout::default();
    layout.replicas = scene.replicas;
    layout.primaries = scene.primaries;
    layout.tuning.log = LOG;
    let late = rng.index(scene.replicas);
    let stall_at = WARM + rng.below(5 * MILLI);
    let panic_at = rng.below(200);
    let group = ReplicatedGroup::with_fault_hooks(
        Setup::new(GROUP.into(), 24, [1, 2]),
        layout,
        Box::new(device),
        |id| PanicOnce {
            armed: scene.panics && id == late,
            left: panic_at,
        },
    )
    .unwrap();
    let mut single =
        Single::new(Setup::new(PEER.into(), 24, [3, 4]), Box::new(peer_device)).unwrap();
    let sockets = group.sockets();
    let listener = sockets.listen(80, 8).unwrap();
    let mut connecting = single
        .sockets()
        .begin_connect(SocketAddr::new(GROUP.into(), 80))
        .unwrap();
    let mut workers: Vec<Option<ReplicatedWorker<PanicOnce>>> =
        group.into_workers().into_iter().map(Some).collect();
    let (mut to_group, mut to_peer) = (Lane::new(), Lane::new());
    let (mut ends, mut peer_end) = (None::<TcpStream>, None::<TcpStream>);
    let (mut written, mut read) = (0, 0);
    let (mut last_news, mut now) = (0, MILLI);
    let mut outcome = Outcome {
        gap: 0,
        got: 0,
        again: 0,
        stolen: 0,
        depth: 0,
        died: false,
    };
    let stall = if scene.panics {
        0..0
    } else {
        stall_at..stall_at + STALL
    };
    while now < stall_at + STALL + AFTER {
        let time = Instant::from_nanos(now);
        let first = rng.index(workers.len());
        for i in 0..workers.len() {
            let id = (first + i) % scene.replicas;
            if id == late && stall.contains(&now) {
                continue;
            }
            let place = &mut workers[id];
            let Some(worker) = place else { continue };
            if catch_unwind(AssertUnwindSafe(|| worker.turn(time))).is_err() {
                outcome.died = true;
                *place = None;
            }
        }
        single.turn(time);
        to_group.carry(now, &theirs, &ours);
        to_peer.carry(now, &ours, &theirs);
        if ends.is_none() {
            ends = listener.try_accept().ok().map(|(stream, _)| stream);
        }
        if peer_end.is_none() {
            peer_end = connecting.try_finish().unwrap();
        }
        if let (Some(end), Some(peer_end)) = (&mut ends, &mut peer_end) {
            let (from, to) = match scene.direction {
                Direction::Receive => (peer_end, end),
                Direction::Send => (end, peer_end),
            };
            match from.try_write(pattern.at(written, Pattern::LEN)) {
                Ok(len) => written += len as u64,
                Err(SocketError::WouldBlock) => {}
                Err(error) => panic!("{scene:?}: {error}"),
            }
            let before = read;
            let (to, _) = to.halves();
            loop {
                let len = match to.try_fill() {
                    Ok(bytes) => {
                        assert!(
                            bytes == pattern.at(read, bytes.len()),
                            "{scene:?} at {read}"
                        );
                        bytes.len()
                    }
                    Err(SocketError::WouldBlock) => break,
                    Err(error) => panic!("{scene:?}: {error}"),
                };
                to.consume(len);
                read += len as u64;
            }
            if stall_at <= now && now < stall_at + STALL {
                outcome.got += read - before;
            }
            if read > before || now < WARM {
                last_news = now;
            }
            outcome.gap = outcome.gap.max(now - last_news);
        }
        let positions = workers.iter_mut().flatten();
        let lag = positions.map(|worker| worker.lag()).max().unwrap_or(0);
        outcome.depth = outcome.depth.max(lag);
        now += STEP;
    }
    for worker in workers.iter().flatten() {
        let stats = worker.stats().effects;
        assert_eq!(stats.diverged, 0, "{scene:?}");
        let panics = worker.replica().unexpected_panics();
        assert_eq!(panics, 0, "{scene:?}: panics were caught");
        outcome.stolen += stats.stolen;
    }
    let panics = single.replica().unexpected_panics();
    assert_eq!(panics, 0, "{scene:?}: the peer caught panics");
    outcome.again = to_group.again + to_peer.again;
    outcome
}

fn scenes(panics: bool) -> impl Iterator<Item = Scene> {
    let seeds = match number("STALL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..2,
    };
    let all = [Direction::Receive, Direction::Send];
    all.into_iter().flat_map(move |direction| {
        let seeds = seeds.clone();
        Primaries::ALL.into_iter().flat_map(move |primaries| {
            seeds.clone().map(move |seed| Scene {
                direction,
                primaries,
                replicas: 2 + seed as usize % 2,
                seed,
                panics,
            })
        })
    })
}

/// Bytes of 100 ms at 7 Gbit/s.
const AT_LEAST: u64 = 87_500_000;

#[test]
fn a_replica_that_stalls_for_100_ms_stops_no_delivery_and_causes_no_retransmission() {
    let mut stolen = 0;
    for scene in scenes(false) {
        let outcome = play(scene);
        println!("{scene:?}: {outcome:?}");
        assert!(!outcome.died, "{scene:?}");
        assert!(outcome.gap <= PATIENCE, "{scene:?}: {outcome:?}");
        assert_eq!(outcome.again, 0, "{scene:?}: {outcome:?}");
        assert!(outcome.got >= AT_LEAST, "{scene:?}: {outcome:?}");
        assert!(
            outcome.depth > 5_000,
            "the stall was none: {scene:?}: {outcome:?}"
        );
        stolen += outcome.stolen;
    }
    assert!(stolen > 0);
}

#[test]
fn what_an_unwinding_replica_had_begun_is_finished_by_the_others() {
    for scene in scenes(true) {
        let outcome = play(scene);
        println!("{scene:?}: {outcome:?}");
        assert!(outcome.died && outcome.stolen > 0, "{scene:?}: {outcome:?}");
        assert!(outcome.gap <= PATIENCE, "{scene:?}: {outcome:?}");
        assert_eq!(outcome.again, 0, "{scene:?}: {outcome:?}");
    }
}
