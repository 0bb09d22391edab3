//! Lets replicas die and says so: for trials of what a death costs those who are served, nothing
//! else.

use std::time::{Duration, Instant};

use dominoes_netstack::Stack;
use dominoes_netstack::stats::MembershipStats;

/// How often the stack is looked at: more often than its members change.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Lets one replica after the other fail, each when all are active.
pub(crate) struct Killer {
    every: Duration,
    start: Instant,
    next: Instant,
    replica: usize,
    replicas: usize,
    /// How many were told to die. On a busy machine that takes a while.
    told: u64,
    seen: MembershipStats,
}

impl Killer {
    /// The first of `replicas` dies `every` after now, and so on.
    pub(crate) fn new(every: Duration, replicas: usize) -> Killer {
        let start = Instant::now();
        Killer {
            every,
            start,
            next: start + every,
            replica: 0,
            replicas,
            told: 0,
            seen: MembershipStats::default(),
        }
    }

    /// Kills if it is time, and prints how many replicas failed and joined. Returns how long to
    /// wait until the next look.
    pub(crate) fn look(&mut self, stack: &Stack) -> Duration {
        let stats = stack.stats();
        let membership = stats.membership;
        if self.seen.failed != membership.failed || self.seen.joined != membership.joined {
            println!(
                "replicas after {:.3} s: {} failed, {} joined, {} active, {} segments arrived",
                self.start.elapsed().as_secs_f64(),
                membership.failed,
                membership.joined,
                membership.active,
                stats.state.segments,
            );
            self.seen = membership;
        }
        // With the last of them the state would be gone.
        let all =
            membership.active == self.replicas as u64 && membership.failed == membership.joined;
        let are_dead = membership.failed >= self.told;
        if all && are_dead && Instant::now() >= self.next {
            stack.kill_replica(self.replica);
            self.told += 1;
            self.replica = (self.replica + 1) % self.replicas;
            self.next = Instant::now() + self.every;
        }
        POLL_INTERVAL
    }
}
