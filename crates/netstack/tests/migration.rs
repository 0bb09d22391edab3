//! Connections that move from group to group while they run: every byte arrives all the same,
//! whatever the wire does and whoever stalls, dies, joins or leaves meanwhile.

use core::ops::ControlFlow;

use dominoes_drivers::memory::Faults;
use dominoes_drivers::memory::peer::headers::Ends;
use dominoes_drivers::memory::peer::{PeerConfig, PeerDevice, Role};
use dominoes_drivers::split::SplitDevice;
use dominoes_drivers::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, Frame, RxStats, Waker,
};
use dominoes_netstack::group::{Group, Layout, Tuning};
use dominoes_netstack::stats::StateStats;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::groups;
use dominoes_netstack::variants::groups::INBOX;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::variants::{self, Setup, Step};
use dominoes_netstack::{Connecting, Limits, TcpStream};
use dominoes_testkit::{
    FaultPlan, HostConfig, HostId, LinkConfig, Net, Rng, Stalls, Traffic, Variant,
};

const PORT: u16 = 7;

/// What happened in a run, or in all of them.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    left: u64,
    came: u64,
    stayed: u64,
    held_back: u64,
    handed_over: u64,
    lost: u64,
    stalls: u64,
    joins: u64,
    leaves: u64,
    deaths: u64,
    segments: u64,
    no_connection: u64,
    panicked: u64,
}

impl Tally {
    fn add(&mut self, net: &mut Net, id: HostId) {
        for host in net.groups(id) {
            let stats: StateStats = host.state_stats();
            let (pump, life) = (host.pump_stats(), host.fault_stats());
            self.left += stats.migrated_out;
            self.came += stats.migrated_in;
            self.stayed += stats.migration_declined;
            self.segments += stats.segments;
            self.no_connection += stats.no_connection;
            self.panicked += stats.panicked;
            self.held_back += pump.deferred;
            self.handed_over += pump.forwarded;
            self.lost += stats.dropped_while_migrating + pump.deferred_dropped;
            self.stalls += host.stall_count();
            self.joins += life.joins;
            self.leaves += life.leaves;
            self.deaths += life.failures + life.failures_performing + life.failures_applying;
        }
    }
}

/// Some conversations over bad wires, between a stack of several groups and one of one, in both
/// directions.
struct Case {
    net: Net,
    near: HostId,
    far: HostId,
    octets: u64,
    conversations: u64,
}

fn wire(rng: &mut Rng, is_bad: bool) -> LinkConfig {
    let wire = LinkConfig::default()
        .delay(core::time::Duration::from_micros(50 + rng.below(3_000)))
        .rate(4_000_000 + rng.below(40_000_000), 60_000);
    if !is_bad {
        return wire;
    }
    let faults = Faults::new(0).loss(5_000).duplicate(5_000);
    wire.faults(faults.reorder(10_000, 4))
}

impl Case {
    fn new(seed: u64, variant: Variant, groups: usize, life: FaultPlan, is_bad: bool) -> Case {
        let mut rng = Rng::new(seed);
        let mut net = Net::new(seed);
        let mut limits = Limits::default();
        limits.connections = 16;
        limits.receive_buffer = 1 << (13 + rng.below(3));
        limits.send_buffer = 1 << (13 + rng.below(3));
        limits.tx_slots = 64;
        let stalls = Stalls {
            // Several microseconds are many frames' time where nobody else stalls.
            ppm: 500 + 49_500 * u32::from(life.is_empty()),
            longest: Duration::from_millis(5),
        };
        let near = HostConfig::new(variant)
            .limits(limits)
            .stalls(stalls)
            .fault_plan(life)
            .groups(groups, 50_000)
            .wires(wire(&mut rng, is_bad), wire(&mut rng, is_bad));
        let far = HostConfig::new(Variant::Single)
            .limits(limits)
            .wires(wire(&mut rng, is_bad), wire(&mut rng, is_bad));
        Case {
            near: net.add(near).unwrap(),
            far: net.add(far).unwrap(),
            net,
            octets: 60_000 + rng.below(60_000),
            conversations: 6,
        }
    }

    /// Runs it to its end. Says what happened at the near end.
    fn run(mut self, seed: u64) -> Tally {
        let (near, far, octets, count) = (self.near, self.far, self.octets, self.conversations);
        let backlog = count as u16;
        let ours = self.net.sockets(near).listen(PORT, backlog).unwrap();
        let theirs = self.net.sockets(far).listen(PORT, backlog).unwrap();
        let (to_near, to_far) = (
            self.net.address_of(near, PORT),
            self.net.address_of(far, PORT),
        );
        let mut opening: Vec<(bool, Connecting)> = (0..count)
            .map(|i| match i % 2 {
                0 => (true, self.net.sockets(near).begin_connect(to_far).unwrap()),
                _ => (false, self.net.sockets(far).begin_connect(to_near).unwrap()),
            })
            .collect();
        let mut all_traffic: Vec<Traffic> = Vec::new();
        let ended = self.net.run(Duration::from_secs(600), |_| {
            let mut done = 0;
            opening.retain_mut(|(_, connecting)| match connecting.try_finish() {
                Ok(None) => true,
                Ok(Some(stream)) => {
                    all_traffic.push(Traffic::new(stream, 1, 2, octets, octets));
                    done += 1;
                    false
                }
                Err(error) => panic!("{error}"),
            });
            for listener in [&ours, &theirs] {
                while let Ok((stream, _)) = listener.try_accept() {
                    all_traffic.push(Traffic::new(stream, 2, 1, octets, octets));
                    done += 1;
                }
            }
            for traffic in &mut all_traffic {
                done += traffic
                    .step()
                    .unwrap_or_else(|trouble| panic!("seed {seed:#x}: {traffic:?}: {trouble}"));
            }
            let over =
                all_traffic.len() as u64 == 2 * count && all_traffic.iter().all(Traffic::is_over);
            Ok(match over {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(done),
            })
        });
        assert!(ended.is_ok(), "seed {seed:#x}: {ended:?}: {all_traffic:?}");
        self.net.clear_faults();
        drop(all_traffic);
        self.net.pass(Duration::from_secs(130));
        let mut tally = Tally::default();
        for id in [near, far] {
            for host in self.net.groups(id) {
                let open = host.inspect(|replica| replica.connections().count());
                assert_eq!(
                    open.iter().sum::<usize>(),
                    0,
                    "seed {seed:#x}: some connection never ends"
                );
            }
        }
        let checked = self.net.check();
        assert!(checked.is_ok(), "seed {seed:#x}: {checked:?}");
        tally.add(&mut self.net, near);
        assert_eq!(tally.left, tally.came, "seed {seed:#x}: {tally:?}");
        tally
    }
}

fn all(seeds: core::ops::Range<u64>, case: impl Fn(u64) -> Case) -> Tally {
    let mut sum = Tally::default();
    for seed in seeds {
        let tally = case(seed).run(seed);
        sum.left += tally.left;
        sum.came += tally.came;
        sum.stayed += tally.stayed;
        sum.held_back += tally.held_back;
        sum.handed_over += tally.handed_over;
        sum.lost += tally.lost;
        sum.stalls += tally.stalls;
        sum.joins += tally.joins;
        sum.leaves += tally.leaves;
        sum.deaths += tally.deaths;
        sum.segments += tally.segments;
        sum.no_connection += tally.no_connection;
    }
    println!("{sum:?}");
    sum
}

#[test]
fn connections_of_groups_of_one_move_back_and_forth_and_every_byte_arrives() {
    let sum = all(0..20, |seed| {
        Case::new(
            seed,
            Variant::Single,
            2 + seed as usize % 2,
            FaultPlan::default(),
            true,
        )
    });
    assert!(sum.left > 100 && sum.held_back > 0, "{sum:?}");
}

#[test]
fn replicas_stall_come_go_and_die_while_connections_move() {
    let life = FaultPlan {
        free_slots: 2,
        joins_ppm: 300,
        leaves_ppm: 200,
        failures_ppm: 100,
        panics_ppm: 100,
        ..FaultPlan::default()
    };
    let sum = all(100..120, |seed| {
        let replicas = 1 + seed as usize % 3;
        Case::new(seed, Variant::Replicated(replicas), 2, life, true)
    });
    assert!(sum.left > 100 && sum.held_back > 0, "{sum:?}");
    let all = [sum.stalls, sum.joins, sum.leaves, sum.deaths];
    assert!(all.iter().all(|count| *count > 0), "{sum:?}");
}

#[test]
fn over_a_good_wire_a_move_loses_no_segment() {
    let sum = all(200..210, |seed| {
        Case::new(seed, Variant::Single, 2, FaultPlan::default(), false)
    });
    assert!(sum.left > 100 && sum.held_back > 0, "{sum:?}");
    assert_eq!((sum.lost, sum.no_connection), (0, 0), "{sum:?}");
}

#[test]
fn a_connection_that_is_aborted_by_either_end_while_it_moves_is_over_at_both() {
    let mut moved = 0;
    for seed in 300..340 {
        let case = Case::new(
            seed,
            Variant::Replicated(1),
            2,
            FaultPlan::default(),
            seed % 2 == 0,
        );
        let (mut net, near, far) = (case.net, case.near, case.far);
        let mut rng = Rng::new(seed);
        let listener = net.sockets(near).listen(PORT, 1).unwrap();
        let to_near = net.address_of(near, PORT);
        let mut opening = Some(net.sockets(far).begin_connect(to_near).unwrap());
        let (mut ours, mut theirs) = (None, None);
        let mut left = 20 + rng.below(200);
        let text = [7; 3000];
        let ended = net.run(Duration::from_secs(100), |_| {
            if let Some(connecting) = &mut opening
                && let Some(stream) = connecting.try_finish()?
            {
                (theirs, opening) = (Some(stream), None);
            }
            if ours.is_none() {
                ours = listener.try_accept().ok().map(|(stream, _)| stream);
            }
            let (Some(ours), Some(theirs)) = (&mut ours, &mut theirs) else {
                return Ok(ControlFlow::Continue(0));
            };
            let mut done = 0;
            for stream in [ours, theirs] {
                done += stream.try_write(&text).unwrap_or(0);
                done += stream.try_read(&mut [0; 3000]).unwrap_or(0);
            }
            left = left.saturating_sub(1);
            Ok(match left {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(done),
            })
        });
        assert!(ended.is_ok(), "seed {seed:#x}: {ended:?}");
        match rng.below(3) {
            0 => ours.take().map(TcpStream::abort),
            1 => theirs.take().map(TcpStream::abort),
            _ => None,
        };
        net.pass(Duration::from_millis(rng.below(20)));
        drop((ours, theirs));
        net.pass(Duration::from_millis(rng.below(20)));
        net.clear_faults();
        net.pass(Duration::from_secs(300));
        let mut tally = Tally::default();
        for id in [near, far] {
            for host in net.groups(id) {
                for open in host.inspect(|replica| replica.connections().count()) {
                    assert_eq!(open, 0, "seed {seed:#x}: it never ends");
                }
            }
        }
        tally.add(&mut net, near);
        assert_eq!(tally.left, tally.came, "seed {seed:#x}: {tally:?}");
        moved += tally.left;
    }
    assert!(moved > 50, "{moved}");
}

/// A sender without losses, and two groups whose workers stall, so that frames wait between the
/// device and their group, while connections move. Returns how many moved, and how many requests
/// came to a group after their connection had left it.
fn moved_between_groups_that_stall(seed: u64, replicas: Option<usize>) -> (u64, u64) {
    const CONNECTIONS: usize = 6;
    let mut rng = Rng::new(seed);
    let config = PeerConfig::new(Role::Sender)
        .connections(CONNECTIONS)
        .burst(1 + rng.below(8) as usize);
    let (device, peer) = PeerDevice::new(config).unwrap();
    let mut setup = Setup::new([10, 0, 0, 1].into(), 24, [seed, 2]);
    setup.limits.connections = 2 * CONNECTIONS as u32;
    setup.limits.receive_buffer = 1 << 17;
    let parts = groups::divide(setup, 2, Box::new(device), INBOX).unwrap();
    let group = |(setup, part)| -> Box<dyn variants::Variant> {
        match replicas {
            None => Box::new(Single::new(setup, Box::new(part)).unwrap()),
            Some(replicas) => {
                // A log that is often full.
                let tuning = Tuning::default().log(32).request_chunk(2);
                let layout = Layout::default().replicas(replicas).tuning(tuning);
                Box::new(Group::new(setup, layout, Box::new(part)).unwrap())
            }
        }
    };
    let mut near: Vec<_> = parts.into_iter().map(group).collect();
    let sockets = groups::sockets(near.iter().map(|group| group.sockets()));
    let port = Ends::default().to.port();
    let listener = sockets.listen(port, CONNECTIONS as u16).unwrap();
    let mut streams: Vec<TcpStream> = Vec::new();
    let mut read = vec![0; 1 << 17];
    let mut stalled_until = vec![vec![0; replicas.unwrap_or(1)]; near.len()];
    for step in 0..6_000_u64 {
        let now = Instant::from_nanos(1_000 * step);
        for (group, stalled_until) in near.iter_mut().zip(&mut stalled_until) {
            for (worker, until) in stalled_until.iter_mut().enumerate() {
                if *until > step {
                    continue;
                }
                if rng.below(50) == 0 {
                    // Perhaps with frames in its hands.
                    *until = step + rng.below(80);
                    if replicas.is_some() {
                        group.step(worker, Step::Claim, now);
                    }
                } else {
                    group.step(worker, Step::Turn, now);
                }
            }
        }
        streams.extend(listener.try_accept().ok().map(|(stream, _)| stream));
        for stream in &mut streams {
            let _ = stream.try_read(&mut read);
            if rng.below(200) == 0 {
                stream.migrate_to(1 - stream.group());
            }
        }
    }
    assert_eq!(streams.len(), CONNECTIONS);
    assert_eq!(peer.check(), Ok(()), "seed {seed:#x}");
    assert_eq!(peer.sent_again(), 0, "seed {seed:#x}");
    let (mut left, mut forwarded) = (0, 0);
    for group in &near {
        let stats = group.stats();
        assert_eq!(stats.pump.deferred_dropped, 0, "seed {seed:#x}");
        left += stats.state.migrated_out;
        forwarded += stats.pump.forwarded;
    }
    (left, forwarded)
}

#[test]
fn segments_that_wait_for_a_stalled_group_keep_their_order_when_their_connection_moves() {
    for (replicas, seeds) in [(None, 400..404), (Some(1), 410..412), (Some(2), 420..423)] {
        let mut sum = (0, 0);
        for seed in seeds {
            let (left, forwarded) = moved_between_groups_that_stall(seed, replicas);
            sum = (sum.0 + left, sum.1 + forwarded);
        }
        println!("{replicas:?}: {sum:?}");
        assert!(sum.0 > 100, "{replicas:?}: {sum:?}");
        assert_eq!(
            sum.1, 0,
            "{replicas:?}: nothing comes too late to be deferred"
        );
    }
}

/// Says of itself that one more frame waits than does, as if one had been lost on its way.
struct LosesOne<D>(D);

impl Device for LosesOne<SplitDevice> {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn mac(&self) -> [u8; 6] {
        self.0.mac()
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        let (rx, tx) = Box::new(self.0).split();
        (Box::new(LosesOne(rx)), tx)
    }
}

impl DeviceRx for LosesOne<Box<dyn DeviceRx>> {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        self.0.claim(max, out)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        self.0.release(frames);
    }

    fn wait(&mut self, timeout: Option<core::time::Duration>) -> Result<(), DeviceError> {
        self.0.wait(timeout)
    }

    fn waiting(&self) -> Option<usize> {
        self.0.waiting().map(|waiting| waiting + 1)
    }

    fn waker(&self) -> Waker {
        self.0.waker()
    }

    fn stats(&self) -> RxStats {
        self.0.stats()
    }
}

#[test]
fn a_connection_waits_for_a_second_at_most_for_a_frame_that_was_lost_on_its_way() {
    let (device, peer) = PeerDevice::new(PeerConfig::new(Role::Sender)).unwrap();
    let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
    let parts = groups::divide(setup, 2, Box::new(device), INBOX).unwrap();
    let group = |(setup, part)| Single::new(setup, Box::new(LosesOne(part))).unwrap();
    let mut near: Vec<_> = parts.into_iter().map(group).collect();
    let sockets = groups::sockets(near.iter().map(Single::sockets));
    let listener = sockets.listen(Ends::default().to.port(), 1).unwrap();
    let mut now = Instant::ZERO;
    let mut turn = |millis: u64| {
        now += Duration::from_millis(millis);
        for group in &mut near {
            group.turn(now);
        }
    };
    let mut stream = loop {
        turn(0);
        if let Ok((stream, _)) = listener.try_accept() {
            break stream;
        }
    };
    let to = 1 - stream.group();
    stream.migrate_to(to);
    let mut read = [0; 1 << 12];
    for _ in 0..5_000 {
        turn(0);
        let _ = stream.try_read(&mut read);
    }
    assert_eq!(stream.group(), 1 - to, "time has to pass, too");
    let mut turns = 0;
    while stream.group() != to {
        turn(100);
        turns += 1;
        assert!(turns < 20, "it never leaves");
    }
    assert!(turns >= 10, "{turns}");
    for _ in 0..100 {
        turn(1);
        while stream.try_read(&mut read).is_ok() {}
    }
    assert_eq!(peer.check(), Ok(()));
}
