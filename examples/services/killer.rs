//! Lets replicas die and says so: for trials of what a death costs those who are served, nothing else.

use std::time::{Duration, Instant};

use dominoes_netstack::Stack;
use dominoes_netstack::stats::MemberStats;

/// How often the stack is looked at: more often than its members change.
const GLANCE: Duration = Duration::from_millis(1);

/// Lets one replica after the other die, each when all are there.
pub(crate) struct Killer {
    every: Duration,
    start: Instant,
    next: Instant,
    seat: usize,
    replicas: usize,
    seen: MemberStats,
}

impl Killer {
    /// The first of `replicas` dies `every` after now, and so on.
    pub(crate) fn new(every: Duration, replicas: usize) -> Killer {
        let start = Instant::now();
        Killer {
            every,
            start,
            next: start + every,
            seat: 0,
            replicas,
            seen: MemberStats::default(),
        }
    }

    /// Kills if it is time, and prints what has become of the members; for [`pause`](Self::pause) there is nothing to do.
    pub(crate) fn look(&mut self, stack: &Stack) {
        let stats = stack.stats();
        let members = stats.members;
        if self.seen.died != members.died || self.seen.joined != members.joined {
            println!(
                "members after {:.3} s: {} died, {} joined, {} there, {} segments arrived",
                self.start.elapsed().as_secs_f64(),
                members.died,
                members.joined,
                members.members,
                stats.state.segments,
            );
            self.seen = members;
        }
        // With the last of them the state would be gone.
        let all = members.members == self.replicas as u64 && members.died == members.joined;
        if all && Instant::now() >= self.next {
            stack.kill_replica(self.seat);
            self.seat = (self.seat + 1) % self.replicas;
            self.next = Instant::now() + self.every;
        }
    }

    /// How long to wait until the next look.
    pub(crate) fn pause(&self) -> Duration {
        GLANCE
    }
}
