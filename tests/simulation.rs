//! Connections over bad wires, in virtual time: every byte arrives, every connection ends, and no
//! state is left over. The seed selects IPv4 or IPv6.
//!
//! Cases with bad wires only also have rare events: options that change between writes, single
//! bytes sent to a large buffer that is read late, priority tags, atomic fragments, data on SYNs,
//! options of illegal length, Packet Too Big, redirects, router advertisements, and hosts whose
//! Ethernet address changes.
//!
//! A *schedule* is a connection that moves at least 96 KB each way while the workers of both hosts
//! stall, join, leave, fail and have bits flipped: at least one stall, and one worker that joins or
//! fails. Some stacks have two or three groups, and their connections move between groups.
//! `SCHEDULES=20000` sets their approximate number, `SCHEDULES_FIRST=0x...` begins with fresh
//! seeds, `SCHEDULES_SEED=0x...` repeats one, and `.ci/schedules` runs a million.
//!
//! For connections with bad wires only, `SIMULATION_CONNECTIONS=50000` sets their approximate
//! number, `SIMULATION_FIRST=0x...` begins with fresh seeds, `SIMULATION_SEED=0x...` repeats one,
//! and `SIMULATION_VARIANT=locked-6` makes every stack of that kind, by the names of
//! [`VariantKind`]. `.ci/simulate` runs a million of them, and resumes where it was stopped.

mod case;
mod clean_links;
mod oddities;
mod wire_observer;

use dominoes_netstack::time::Duration;
use dominoes_netstack::variants::VariantKind;
use dominoes_testkit::link::LinkStats;
use dominoes_testkit::{Cases, FaultPlanStats, Host, Net, Rng, Stalls, Variant};

use case::{About, CONNECTIONS};

dominoes_testkit::tally! {
    /// Connections that were opened, moved all of their bytes, and closed.
    connections,
    /// Connections over IPv6.
    over_ipv6,
    /// Connections that were schedules.
    schedules,
    /// Bytes that applications read.
    bytes,
    /// Requests in the logs of both stacks.
    positions,
    frames,
    /// Virtual time.
    seconds,
    lost,
    bursts,
    duplicated,
    reordered,
    corrupted,
    overflowed,
    /// Times that a worker stalled between two steps.
    stalls,
    retransmissions,
    zero_windows,
    window_probes,
    /// Opens that failed because the wire lost every attempt, and were repeated.
    reopened,
    /// Connections whose SYNs were held.
    held,
    /// Options that were set on open connections.
    settings,
    /// Bytes sent one by one to a large buffer that is read late.
    single_bytes,
    /// Frames with a priority tag (VLAN 0).
    tags,
    /// IPv6 packets with a fragment header that are not fragments.
    atomic,
    illegal_options,
    texts_on_syns,
    /// Packets that a router reported as too big.
    too_big,
    redirects,
    advertisements,
    /// Advertisements that differ from the previous one.
    changed_advertisements,
    /// Hosts whose Ethernet address changed.
    moves,
    /// Times that a planted panic ended a connection of a stack.
    panicked,
    /// Conversations that such a panic ended.
    cut,
    /// Replicas of both stacks at the end.
    replicas,
    joins,
    /// Joins in the slot of a worker that failed.
    revivals,
    leaves,
    /// Workers that failed between two steps.
    deaths,
    /// Workers that failed in the middle of an effect.
    deaths_performing,
    /// Workers that failed after they had applied a request.
    deaths_applying,
    /// Bits of states that flipped.
    flips,
    /// Flips that were found.
    found,
    /// Workers that received the state of the others.
    repairs,
    /// Flips that were overwritten before they had any effect.
    overwritten,
    /// Payload bytes that were stored while they were verified.
    stored_ahead,
    /// Effects and frames of stragglers that another worker performed.
    steals,
    /// Stacks of several groups.
    divided,
}

impl Tally {
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

    fn worker_faults(&mut self, stats: &FaultPlanStats) {
        self.joins += stats.joins;
        self.revivals += stats.replacements;
        self.leaves += stats.leaves;
        self.deaths += stats.failures;
        self.deaths_performing += stats.failures_performing;
        self.deaths_applying += stats.failures_applying;
        self.flips += stats.flips;
        self.found += stats.found;
        self.repairs += stats.repairs;
        self.overwritten += stats.overwritten;
    }

    /// Adds the counters of an idle group, in which nothing may be left over.
    fn group(&mut self, host: &mut Host) -> Result<(), String> {
        self.stalls += host.stall_count();
        self.worker_faults(&host.fault_stats());
        self.positions += host.position();
        let effects = host.effect_stats();
        self.frames += effects.frames;
        self.stored_ahead += effects.stored_ahead;
        self.steals += effects.stolen;
        let stats = host.state_stats();
        let unplanned = host.unexpected_panics();
        if unplanned > 0 {
            return Err(format!("{unplanned} panics that no test planted"));
        }
        self.panicked += stats.panicked;
        let left = host.inspect(|replica| {
            let mut left = replica.connections();
            left.next().map(|(conn, tcb)| (conn, tcb.state()))
        });
        self.replicas += left.len() as u64;
        match left.into_iter().flatten().next() {
            Some((conn, state)) => Err(format!("{conn:?} is left in {state:?}")),
            None => Ok(()),
        }
    }

    /// Counters that must not be 0, or the run of schedules covered too little.
    fn changes(&self) -> [u64; 22] {
        [
            self.over_ipv6,
            self.held,
            self.lost,
            self.bursts,
            self.duplicated,
            self.reordered,
            self.corrupted,
            self.stalls,
            self.retransmissions,
            self.zero_windows,
            self.joins,
            self.revivals,
            self.leaves,
            self.deaths,
            self.deaths_performing,
            self.deaths_applying,
            self.flips,
            self.found,
            self.repairs,
            self.stored_ahead,
            self.steals,
            self.divided,
        ]
    }

    /// Counters that must not be 0, or the run over bad wires covered too little.
    fn faults(&self) -> [u64; 25] {
        [
            self.over_ipv6,
            self.held,
            self.lost,
            self.bursts,
            self.duplicated,
            self.reordered,
            self.corrupted,
            self.overflowed,
            self.stalls,
            self.retransmissions,
            self.zero_windows,
            self.window_probes,
            self.panicked,
            self.cut,
            self.settings,
            self.single_bytes,
            self.tags,
            self.atomic,
            self.illegal_options,
            self.texts_on_syns,
            self.too_big,
            self.redirects,
            self.advertisements,
            self.changed_advertisements,
            self.moves,
        ]
    }
}

/// The value of the environment variable `name`, or the default of a run of all tests.
fn wanted(name: &str, usual: u64) -> u64 {
    let Ok(text) = std::env::var(name) else {
        return usual;
    };
    let number = text.parse();
    number.unwrap_or_else(|error| panic!("{name}={text}: {error}"))
}

/// The sum over all cases.
fn run(cases: Cases, about: About) -> Tally {
    let mut sum = Tally::default();
    for tally in cases.run(|seed| case::run(seed, about)) {
        sum.add(&tally);
    }
    println!("tally {sum}");
    sum
}

#[test]
fn every_connection_over_a_bad_wire_ends_with_every_byte() {
    const COMMAND: &str =
        "cargo test --release -p dominoes-tests --test main every_connection_over_a_bad_wire";
    let (kind, command) = match std::env::var("SIMULATION_VARIANT") {
        Err(_) => (None, COMMAND),
        Ok(name) => {
            let kind: VariantKind = name.parse().expect("SIMULATION_VARIANT names a variant");
            let command = format!("SIMULATION_VARIANT={kind} {COMMAND}");
            (Some(kind), &*command.leak())
        }
    };
    let cases = wanted("SIMULATION_CONNECTIONS", 2_000).div_ceil(CONNECTIONS);
    let sum = run(Cases::new("SIMULATION", command, cases), About::Wires(kind));
    if sum.connections >= 1_000 {
        let calm = sum.faults().into_iter().any(|count| count == 0);
        assert!(!calm, "too calm: {sum}");
    }
}

#[test]
fn every_schedule_of_stalls_deaths_joins_and_flips_ends_with_every_byte() {
    let command = "cargo test --release -p dominoes-tests --test main every_schedule_of_stalls";
    let cases = wanted("SCHEDULES", 400).div_ceil(CONNECTIONS);
    let sum = run(Cases::new("SCHEDULES", command, cases), About::Members);
    if sum.connections >= 400 {
        let calm = sum.changes().into_iter().any(|count| count == 0);
        assert!(!calm, "too calm: {sum}");
        // Nine of ten on average.
        let few = sum.schedules * 5 < sum.connections * 4;
        assert!(!few, "too few are schedules: {sum}");
    }
}

#[test]
fn over_perfect_wires_nothing_is_sent_again_while_workers_stall_for_a_moment() {
    let stalls = Stalls {
        ppm: 10_000,
        // Well below the 10 ms after which a tail loss probe is sent.
        longest: Duration::from_millis(3),
    };
    let mut stalled = 0;
    for seed in 0..60 {
        let variant = Variant::Replicated(1 + seed as usize % 3);
        let (again, times) = clean_links::both_ways(seed, variant, stalls);
        assert_eq!(again, 0, "seed {seed}: {times} stalls");
        stalled += times;
    }
    assert!(stalled > 500, "too calm: {stalled} stalls");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| {
        let mut rng = Rng::new(seed);
        let mut net = Net::new(seed);
        let hosts = [0, 1].map(|_| net.add(case::host(&mut rng)).expect("its bounds are right"));
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
