//! Lets replicas (copies of the connection state, one per thread) fail and prints it, to show
//! the cost of a failure to clients. Use it only for that.

use std::time::{Duration, Instant};

use dominoes_netstack::Stack;
use dominoes_netstack::stats::MembershipStats;

/// Time between two checks of the stack, shorter than changes of its members take.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Lets one replica after another fail, each when all are active.
pub(crate) struct Killer {
    every: Duration,
    start: Instant,
    next: Instant,
    replica: usize,
    replicas: usize,
    /// How many replicas were ordered to fail. On a busy machine they take a while.
    told: u64,
    seen: MembershipStats,
}

impl Killer {
    /// The first of `replicas` fails `every` from now, and so on.
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

    /// Lets a replica fail if it is time, and prints how many failed and joined. Returns the time
    /// until the next call.
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
        // If the last replica failed, the state would be lost.
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
