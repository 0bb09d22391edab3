//! Connections over bad wires, in virtual time: every octet arrives, every connection ends, none is left behind.
//!
//! `SIMULATION_CONNECTIONS=50000` sets about how many connections there are, `SIMULATION_FIRST=0x...` begins with fresh
//! seeds, `SIMULATION_SEED=0x...` repeats one. `.ci/simulate` runs a million of them and goes on where it was stopped.

mod case;
mod eyes;

use core::fmt;

use dominoes_drivers::impair::LinkStats;
use dominoes_netstack::testkit::{Cases, Net, Rng};
use dominoes_netstack::time::Duration;

use case::CONNECTIONS;

/// Declares the tally, so that adding up and showing leave nothing out.
macro_rules! tally {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// What happened in a run.
        #[derive(Clone, Copy, Debug, Default)]
        struct Tally {
            $($(#[$doc])* $field: u64,)*
        }

        impl Tally {
            fn add(&mut self, other: &Tally) {
                $(self.$field += other.$field;)*
            }
        }

        impl fmt::Display for Tally {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(write!(f, "{}={} ", stringify!($field), self.$field)?;)*
                Ok(())
            }
        }
    };
}

tally! {
    /// Connections that were opened, moved what they should, and closed.
    connections,
    /// Octets that applications read.
    octets,
    frames,
    /// Virtual time.
    seconds,
    lost,
    bursts,
    duplicated,
    reordered,
    corrupted,
    overflowed,
    /// Times that a worker stood still between two steps.
    stalls,
    retransmissions,
    zero_windows,
    window_probes,
    /// Opens that failed, because the wire lost every question, and were tried again.
    reopened,
    /// Options that were set on the way.
    settings,
    /// Times that a planted panic ended a connection of a stack.
    panicked,
    /// Conversations that ended so.
    cut,
    /// Replicas of both stacks.
    replicas,
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

    /// What must have happened for the run to say anything.
    fn faults(&self) -> [u64; 12] {
        [
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
        ]
    }
}

/// `SIMULATION_CONNECTIONS`, or what a run of all tests can bear.
fn connections() -> u64 {
    let Ok(text) = std::env::var("SIMULATION_CONNECTIONS") else {
        return 2_000;
    };
    let number = text.parse();
    number.unwrap_or_else(|error| panic!("SIMULATION_CONNECTIONS={text}: {error}"))
}

#[test]
fn every_connection_over_a_bad_wire_ends_with_every_octet() {
    let command = "cargo test --release --test main every_connection_over_a_bad_wire";
    let cases = connections().div_ceil(CONNECTIONS);
    let tallies = Cases::new("SIMULATION", command, cases).run(case::run);
    let mut sum = Tally::default();
    for tally in &tallies {
        sum.add(tally);
    }
    println!("tally {sum}");
    if sum.connections >= 1_000 {
        let calm = sum.faults().into_iter().any(|count| count == 0);
        assert!(!calm, "too calm: {sum}");
    }
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
