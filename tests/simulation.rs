//! Connections over bad wires, in virtual time: every octet arrives, every connection ends, none is left behind.
//!
//! `SIMULATION_CASES=1000000` sets the number of connections, `SIMULATION_FIRST=0x...` begins with fresh seeds,
//! `SIMULATION_SEED=0x...` repeats one.

use core::cell::RefCell;
use core::ops::ControlFlow;
use std::rc::Rc;

use dominoes_drivers::impair::LinkStats;
use dominoes_drivers::memory::Faults;
use dominoes_netstack::testkit::{
    Cases, HostConfig, HostId, LinkConfig, Net, Rng, RunError, Stalls, Talk, Variant,
};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::{Limits, SocketError};

/// Octets each way, about.
const OCTETS: u64 = 20_000;
/// The wire is mended after so much virtual time.
const FAULTS_END: Duration = Duration::from_secs(120);
/// A connection that is healthy must be over so much later: the longest timeout, and what it delays.
const GRACE: Duration = Duration::from_secs(240);
/// Both stacks must have forgotten the connection after two maximum segment lifetimes.
const FORGOTTEN: Duration = Duration::from_secs(130);

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    lost: u64,
    bursts: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
    overflowed: u64,
    stalls: u64,
    frames: u64,
    retransmissions: u64,
    zero_windows: u64,
    window_probes: u64,
    reopened: u64,
    seconds: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.lost += other.lost;
        self.bursts += other.bursts;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
        self.overflowed += other.overflowed;
        self.stalls += other.stalls;
        self.frames += other.frames;
        self.retransmissions += other.retransmissions;
        self.zero_windows += other.zero_windows;
        self.window_probes += other.window_probes;
        self.reopened += other.reopened;
        self.seconds += other.seconds;
    }

    fn links(&mut self, links: [LinkStats; 2]) {
        for link in links {
            self.lost += link.faults.lost;
            self.bursts += link.faults.bursts;
            self.duplicated += link.faults.duplicated;
            self.reordered += link.faults.reordered;
            self.corrupted += link.faults.corrupted;
            self.overflowed += link.overflowed;
        }
    }
}

fn wire(rng: &mut Rng) -> LinkConfig {
    let mut part = |most: u64| {
        // Often none, seldom the most.
        let (a, b) = (rng.below(most + 1), rng.below(most + 1));
        if rng.chance(300_000) {
            0
        } else {
            a.min(b) as u32
        }
    };
    let faults = Faults::new(0)
        .loss(part(50_000))
        .bursts(part(5_000), 8)
        .duplicate(part(20_000))
        .reorder(part(50_000), 5)
        .corrupt(part(20_000));
    let delay = core::time::Duration::from_micros(rng.below(30_000));
    let jitter = core::time::Duration::from_micros(rng.below(3_000) * rng.below(2));
    let mut config = LinkConfig::default()
        .faults(faults)
        .delay(delay)
        .jitter(jitter);
    if rng.chance(500_000) {
        config = config.rate(500_000 + rng.below(20_000_000), 5_000 + rng.below(20_000));
    }
    config
}

fn host(rng: &mut Rng) -> HostConfig {
    let variants = [
        Variant::Single,
        Variant::Replicated(1),
        Variant::Replicated(2),
        Variant::Replicated(3),
        Variant::Replicated(4),
    ];
    let variant = variants[rng.below(5) as usize];
    let mut limits = Limits::default();
    limits.connections = 4;
    limits.receive_buffer = 1 << (10 + rng.below(7));
    limits.send_buffer = 1 << (10 + rng.below(7));
    limits.tx_slots = 8 << rng.below(5);
    limits.mtu = [576, 1500, 1500, 9000][rng.below(4) as usize];
    let stalls = Stalls {
        ppm: if rng.chance(500_000) { 2_000 } else { 0 },
        longest: Duration::from_millis(20),
    };
    // A frame crosses two wires, and the checksum does not notice every second flipped bit in it.
    let mut down = wire(rng);
    down.faults.corrupt_ppm = 0;
    HostConfig::new(variant)
        .limits(limits)
        .stalls(stalls)
        .wires(wire(rng), down)
}

/// What can be seen on the wires.
#[derive(Debug, Default)]
struct Eyes {
    retransmissions: u64,
    zero_windows: u64,
    window_probes: u64,
    /// For each host, the number after its newest octet of the newest connection, and whether its newest window
    /// was zero.
    newest: [(u32, bool); 2],
}

impl Eyes {
    fn see(&mut self, from: usize, frame: &[u8]) {
        let Some(tcp) = frame
            .get(34..)
            .filter(|tcp| tcp.len() >= 20 && frame[23] == 6)
        else {
            return;
        };
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let (flags, len) = (tcp[13], (tcp.len() - usize::from(tcp[12] >> 4) * 4) as u32);
        if flags & 0x04 != 0 {
            return;
        }
        let closed = tcp[14..16] == [0, 0] && flags & 0x02 == 0;
        self.zero_windows += u64::from(closed && !self.newest[from].1);
        self.newest[from].1 = closed;
        let newest = &mut self.newest[from].0;
        if flags & 0x02 != 0 {
            *newest = seq.wrapping_add(1);
        } else if len > 0 {
            let end = seq.wrapping_add(len);
            self.window_probes += u64::from(len == 1 && self.newest[1 - from].1);
            if (end.wrapping_sub(*newest) as i32) > 0 {
                *newest = end;
            } else {
                self.retransmissions += 1;
            }
        }
    }
}

/// What both stacks know of their connections.
fn states(net: &mut Net, hosts: [HostId; 2]) -> String {
    let mut all = format!("at {} ms", net.now().as_nanos() / 1_000_000);
    for id in hosts {
        let links = net
            .link_stats(id)
            .map(|link| (link.offered, link.delivered));
        let host = net.host(id);
        let replicas = host.replicas();
        let states: Vec<_> = replicas[0]
            .connections()
            .map(|(_, tcb)| tcb.state())
            .collect();
        all += &format!("; host {id:?}: {states:?}, frames offered and delivered {links:?}");
    }
    all
}

fn connection(seed: u64) -> Result<Tally, String> {
    let mut rng = Rng::new(seed);
    let mut net = Net::new(rng.next());
    let mut add = |net: &mut Net| net.add(host(&mut rng)).map_err(|error| error.to_string());
    let hosts: [HostId; 2] = [add(&mut net)?, add(&mut net)?];
    let eyes = Rc::new(RefCell::new(Eyes::default()));
    let seen = Rc::clone(&eyes);
    let first = hosts[0];
    net.watch(move |_, from, frame| seen.borrow_mut().see(usize::from(from != first), frame));
    let lens = [0, 1].map(|_| match rng.below(4) {
        0 => 0,
        _ => OCTETS / 2 + rng.below(OCTETS),
    });
    let fail = |what: &dyn std::fmt::Display| what.to_string();
    let listener = net
        .sockets(hosts[0])
        .listen(7, 4)
        .map_err(|error| fail(&error))?;
    let to = net.address_of(hosts[0], 7);
    let sockets = net.sockets(hosts[1]).clone();
    let mut reopened = 0;
    let mut connecting = sockets.begin_connect(to).map_err(|error| fail(&error))?;
    let keys = [rng.next(), rng.next()];
    let mut talks: [Option<Talk>; 2] = [None, None];
    let mut trouble = None;
    // Applications that rest now and then fill windows.
    let resting = rng.below(2) * rng.below(20);
    let mut rests = [Instant::ZERO; 2];
    for (time, mend) in [(FAULTS_END, true), (GRACE, false)] {
        let run = net.run(time, |moment| {
            if talks[0].is_none()
                && let Ok((stream, _)) = listener.try_accept()
            {
                talks[0] = Some(Talk::new(stream, keys[0], keys[1], lens[0], lens[1]));
            }
            if talks[1].is_none() {
                match connecting.try_finish() {
                    Ok(Some(stream)) => {
                        let talk = Talk::new(stream, keys[1], keys[0], lens[1], lens[0]);
                        talks[1] = Some(talk);
                    }
                    Ok(None) => {}
                    // Three questions or seven SYNs in a row were lost: the application tries again.
                    Err(SocketError::Unreachable | SocketError::TimedOut) => {
                        reopened += 1;
                        connecting = sockets.begin_connect(to)?;
                    }
                    Err(error) => return Err(error),
                }
            }
            let mut done = 0;
            for (talk, rest) in talks.iter_mut().zip(&mut rests) {
                let Some(talk) = talk else { continue };
                if resting > 0 && rng.below(100) < resting && *rest <= moment.now() {
                    *rest = moment.now() + Duration::from_millis(rng.below(2_000));
                }
                if *rest > moment.now() {
                    moment.wake_at(*rest);
                    continue;
                }
                match talk.step() {
                    Ok(did) => done += did,
                    Err(what) => trouble = Some(format!("{what}: {talk:?}")),
                }
            }
            let over = |talk: &Option<Talk>| talk.as_ref().is_some_and(Talk::is_over);
            let all = talks.iter().all(over) || trouble.is_some();
            Ok(if all {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(done)
            })
        });
        if let Some(what) = trouble {
            return Err(format!("{what}, {}", states(&mut net, hosts)));
        }
        match run {
            Ok(()) => break,
            Err(RunError::OutOfTime | RunError::Stuck) if mend => net.mend(),
            Err(error) => return Err(format!("{error}: {talks:?}, {}", states(&mut net, hosts))),
        }
    }
    drop(talks);
    let mut tally = Tally {
        reopened,
        seconds: net.now().as_nanos() / 1_000_000_000,
        ..Tally::default()
    };
    net.mend();
    net.pass(FORGOTTEN);
    net.check()?;
    for id in hosts {
        tally.links(net.link_stats(id));
        let host = net.host(id);
        tally.stalls += host.stall_count();
        let stats = host.effect_stats();
        tally.frames += stats.frames;
        for replica in host.replicas() {
            if let Some((conn, tcb)) = replica.connections().next() {
                return Err(format!("{conn:?} is left in {:?}", tcb.state()));
            }
        }
    }
    let eyes = eyes.borrow();
    tally.retransmissions = eyes.retransmissions;
    tally.zero_windows = eyes.zero_windows;
    tally.window_probes = eyes.window_probes;
    Ok(tally)
}

#[test]
fn every_connection_over_a_bad_wire_ends_with_every_octet() {
    let command = "cargo test --release --test main every_connection_over_a_bad_wire";
    let tallies = Cases::new("SIMULATION", command, 3_000).run(connection);
    let mut sum = Tally::default();
    for tally in &tallies {
        sum.add(tally);
    }
    println!("{} connections: {sum:?}", tallies.len());
    if tallies.len() >= 1_000 {
        let happened = [
            sum.lost,
            sum.bursts,
            sum.duplicated,
            sum.reordered,
            sum.corrupted,
            sum.overflowed,
            sum.stalls,
            sum.retransmissions,
            sum.zero_windows,
            sum.window_probes,
        ];
        assert!(
            happened.iter().all(|&count| count > 100),
            "too calm: {sum:?}"
        );
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| {
        let mut rng = Rng::new(seed);
        let mut net = Net::new(seed);
        let hosts = [0, 1].map(|_| net.add(host(&mut rng)).expect("its bounds are right"));
        let listener = net
            .sockets(hosts[0])
            .listen(7, 4)
            .expect("nobody else listens");
        let to = net.address_of(hosts[0], 7);
        let connecting = net
            .sockets(hosts[1])
            .begin_connect(to)
            .expect("the stack is up");
        net.pass(Duration::from_secs(20));
        drop((listener, connecting));
        net.pass(Duration::from_secs(200));
        net.fingerprint()
    };
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(1), run(2));
}
