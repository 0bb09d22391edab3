//! The machine: cores to pin to, and the conditions of a figure.

use core::fmt;
use core::hash::{Hash, Hasher};
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use core_affinity::CoreId;

/// Cores that this process may use, as found by the first call: a pinned thread sees only its own.
pub fn cores() -> &'static [CoreId] {
    static CORES: OnceLock<Vec<CoreId>> = OnceLock::new();
    CORES.get_or_init(|| core_affinity::get_core_ids().unwrap_or_default())
}

/// Pins the calling thread to the core with this index, modulo the number of cores. Returns whether
/// that worked.
pub fn pin_to(index: usize) -> bool {
    let cores = cores();
    !cores.is_empty() && core_affinity::set_for_current(cores[index % cores.len()])
}

/// The core that the calling thread runs on, if the system has it.
pub(crate) fn current_core() -> Option<usize> {
    let stat = fs::read_to_string("/proc/thread-self/stat").ok()?;
    // Fields after the name, which may hold anything but a closing bracket; the 39th of all is the
    // core.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(36)?
        .parse()
        .ok()
}

/// How long the calling thread was ready to run but had no core, in nanoseconds.
pub fn waited_ns() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .unwrap_or(0)
}

/// Share of its time that a thread may wait for its core while it is measured.
pub(crate) const MAY_WAIT: f64 = 0.02;

/// Whether the calling thread has its core, from one moment on.
#[cfg(feature = "report")]
#[derive(Debug)]
pub(crate) struct Calm {
    begin: Instant,
    waited_ns: u64,
}

#[cfg(feature = "report")]
impl Calm {
    /// From now on.
    pub(crate) fn begin() -> Calm {
        Calm {
            begin: Instant::now(),
            waited_ns: waited_ns(),
        }
    }

    /// Whether it waited too long for what was measured so far.
    pub(crate) fn is_disturbed(&self) -> bool {
        let waited = waited_ns().saturating_sub(self.waited_ns) as f64;
        waited / self.begin.elapsed().as_nanos().max(1) as f64 > MAY_WAIT
    }
}

/// How long a cache line takes from the first core to the second, in nanoseconds; `None` if there
/// is no second. It is the present cost of sharing: hosts move the cores of a virtual
/// machine about.
pub fn line_transfer_ns() -> Option<f64> {
    const THROWS: u64 = 10_000;
    if cores().len() < 2 {
        return None;
    }
    let ball = AtomicU64::new(0);
    let play = |core, parity: u64| {
        pin_to(core);
        let begin = Instant::now();
        for throw in 0..THROWS {
            let mine = 2 * throw + parity;
            let mut patience = 10_000;
            // ORDERING: Relaxed, nothing but the ball is passed on.
            while ball.load(Ordering::Relaxed) != mine {
                core::hint::spin_loop();
                patience -= 1;
                if patience == 0 {
                    patience = 10_000;
                    thread::yield_now();
                }
            }
            ball.store(mine + 1, Ordering::Relaxed);
        }
        begin.elapsed().as_nanos() as f64 / (2 * THROWS) as f64
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| play(1, 1));
        let one = scope.spawn(|| play(0, 0)).join().ok();
        other.join().ok().and(one)
    })
}

/// Nanoseconds for a line from core to core up to which cores are near.
const NEAR_NS: f64 = 100.0;

/// How far apart the first two cores are, which a host may change at any time, several times a
/// second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "report",
    derive(serde::Serialize),
    serde(rename_all = "lowercase")
)]
pub enum Distance {
    /// As cores are that share a cache; or there is only one.
    Near,
    /// In different clusters or sockets: whatever goes from core to core takes several times as
    /// long.
    Far,
}

impl Distance {
    /// Both, the near one first.
    pub const ALL: [Distance; 2] = [Distance::Near, Distance::Far];

    /// As it is just now; takes some milliseconds.
    pub fn now() -> Distance {
        if line_transfer_ns().is_none_or(|nanos| nanos <= NEAR_NS) {
            Distance::Near
        } else {
            Distance::Far
        }
    }

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Distance::Near => "near",
            Distance::Far => "far",
        }
    }
}

/// The conditions of a figure.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "report", derive(serde::Deserialize, serde::Serialize))]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Caches of the first core, as the system names their sizes.
    pub caches: Vec<String>,
    /// Release of the kernel.
    pub kernel: String,
    /// Load average over one minute when the run began.
    pub load_1min: Option<f64>,
    /// Commit of the sources; if they were changed since, with a plus sign and a hash of that.
    pub commit: Option<String>,
}

impl Machine {
    /// This machine, now.
    pub fn here() -> Machine {
        let read = |path: &str| {
            fs::read_to_string(path)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let cpu = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| {
                Some(
                    line.strip_prefix("model name")?
                        .split_once(':')?
                        .1
                        .trim()
                        .to_owned(),
                )
            })
            .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        let cache = |index: usize| {
            let file = |name| {
                read(&format!(
                    "/sys/devices/system/cpu/cpu0/cache/index{index}/{name}"
                ))
            };
            let (level, kind, size) = (file("level"), file("type"), file("size"));
            (!size.is_empty() && kind != "Instruction").then(|| format!("L{level} {size}"))
        };
        Machine {
            cpu,
            cores: cores().len(),
            caches: (0..8).filter_map(cache).collect(),
            kernel: read("/proc/sys/kernel/osrelease"),
            load_1min: read("/proc/loadavg")
                .split_whitespace()
                .next()
                .and_then(|w| w.parse().ok()),
            commit: commit(),
        }
    }
}

/// As at the head of a bench's output.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} cores, ", self.cpu, self.cores)?;
        for cache in &self.caches {
            write!(f, "{cache} ")?;
        }
        let load = self.load_1min.map(|load| load.to_string());
        write!(
            f,
            "Linux {}, load {}, commit {}",
            self.kernel,
            load.as_deref().unwrap_or("?"),
            self.commit.as_deref().unwrap_or("unknown")
        )
    }
}

fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git")
            .args(args)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // Pages and stored results are no sources.
    const SOURCES: [&str; 4] = [
        "--",
        ":(top)",
        ":(top,exclude)crates/bench/results.json",
        ":(top,exclude,glob)**/*.md",
    ];
    let of_sources = |command: &[&str]| git(&[command, &SOURCES].concat());
    let hash = git(&["rev-parse", "--short=12", "HEAD"])?;
    let files = of_sources(&["status", "--porcelain"])?;
    Some(changed(hash, &(files + &of_sources(&["diff", "HEAD"])?)))
}

/// The name of sources that differ from a commit by these changes.
fn changed(commit: String, changes: &str) -> String {
    if changes.is_empty() {
        return commit;
    }
    let mut hasher = DefaultHasher::new();
    changes.hash(&mut hasher);
    format!("{commit}+{:04x}", hasher.finish() as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_sources_are_named_by_their_changes() {
        let name = |changes| changed("abc".to_owned(), changes);
        assert_eq!(name(""), "abc");
        assert!(name("one").starts_with("abc+"));
        assert_eq!(name("one"), name("one"));
        assert_ne!(name("one"), name("other"));
    }

    #[test]
    fn a_machine_has_a_core_and_a_thread_is_on_one() {
        assert!(Machine::here().cores >= 1);
        if cfg!(target_os = "linux") {
            assert!(current_core().is_some());
        }
    }
}
