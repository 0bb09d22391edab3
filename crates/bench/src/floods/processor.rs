//! Processor time of our processes during a measurement, and of other processes.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// Milliseconds of a tick (proc(5)).
const TICK_MS: u64 = 10;
/// The share of one core that other processes may use.
const SHARE: f64 = 0.1;

/// The parent of the kernel's threads.
const KERNEL: u32 = 2;

/// A process: its parent, and the ticks of itself and of its children that ended.
type Processes = HashMap<u32, (u32, u64)>;

/// Processor time of all processes at the beginning.
pub(crate) struct Watch {
    since: Instant,
    processes: Processes,
}

/// Processor time since then.
pub(crate) struct Used {
    /// By this process and its descendants.
    pub(crate) own: Duration,
    /// Whether other processes used so much that a figure means little.
    pub(crate) is_disturbed: bool,
}

impl Watch {
    pub(crate) fn begin() -> Watch {
        Watch {
            since: Instant::now(),
            processes: processes(),
        }
    }

    pub(crate) fn used(&self) -> Used {
        let now = processes();
        let ours = std::process::id();
        let (mut own, mut others) = (Duration::ZERO, Duration::ZERO);
        for (&pid, &(_, ticks)) in &now {
            let before = self.processes.get(&pid).map_or(0, |(_, ticks)| *ticks);
            let used = Duration::from_millis(ticks.saturating_sub(before) * TICK_MS);
            match () {
                () if descends(&now, pid, ours) => own += used,
                // Threads of the kernel work for all processes.
                () if descends(&now, pid, KERNEL) => {}
                () => others += used,
            }
        }
        // The parent's ticks include the whole of a child of ours that has ended.
        for (pid, (_, ticks)) in &self.processes {
            if !now.contains_key(pid) && descends(&self.processes, *pid, ours) {
                own = own.saturating_sub(Duration::from_millis(ticks * TICK_MS));
            }
        }
        let most = SHARE * self.since.elapsed().as_secs_f64();
        Used {
            own,
            is_disturbed: others.as_secs_f64() > most,
        }
    }
}

/// Whether `pid` is `of` or a descendant.
fn descends(all: &Processes, pid: u32, of: u32) -> bool {
    let mut at = pid;
    // A chain of parents is at most as long as the number of processes.
    for _ in 0..all.len() {
        if at == of {
            return true;
        }
        match all.get(&at) {
            Some((parent, _)) => at = *parent,
            None => return false,
        }
    }
    false
}

fn processes() -> Processes {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbered
        .filter_map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (_, fields) = stat.rsplit_once(')')?;
            let mut fields = fields.split_whitespace().skip(1);
            let parent = fields.next()?.parse().ok()?;
            let ticks = fields.skip(9).take(4);
            Some((
                pid,
                (parent, ticks.filter_map(|n| n.parse::<u64>().ok()).sum()),
            ))
        })
        .collect()
}
