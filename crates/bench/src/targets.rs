//! The bench targets of this package, and how each one starts.
//!
//! `cargo bench -p dominoes-bench --bench NAME -- OPTIONS` runs one. `cargo bench NAME` in the root
//! of the workspace does the same through the launcher. Without `--bench`, Cargo starts every
//! target of a package with the same words, so a target returns at once if the words name another
//! one.

use core::fmt::Display;
use std::ffi::OsString;
use std::path::PathBuf;

/// A bench target of this package.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is also the name of its file in `benches`.
    pub name: &'static str,
    /// The subject of its measurements.
    pub about: &'static str,
    /// How long it takes in full.
    pub takes: &'static str,
}

impl Target {
    /// Whether it has a section of the report: not `scalability`, whose experiments have one each,
    /// nor `micro`, of which criterion reports.
    pub fn has_section(&self) -> bool {
        !["scalability", "micro"].contains(&self.name)
    }
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target {
        name: "scalability",
        about: "how variants of the stack scale with cores, and smoltcp beside them",
        takes: "about 25 minutes; --quick: half a minute for each experiment",
    },
    Target {
        name: "linux",
        about: "one connection to a Linux kernel over each device; needs root, ip and ethtool",
        takes: "about 10 minutes",
    },
    Target {
        name: "tun",
        about: "stacks over a TUN interface: ours, netstack-smoltcp, gVisor's, and Linux over veth; needs root and ip",
        takes: "about 12 minutes; --quick: 4 minutes",
    },
    Target {
        name: "field",
        about: "examples as users start them and Linux' servers, with clients that others wrote; needs root and programs",
        takes: "about 30 minutes; --quick: 4 minutes",
    },
    Target {
        name: "floods",
        about: "honest clients of a server, ours and Linux's, under floods; needs root, ip, curl and wrk",
        takes: "about 40 minutes; --quick: 4 minutes",
    },
    Target {
        name: "channel",
        about: "the log beside other multicast channels: throughput and latency",
        takes: "about 6 minutes; --quick: 2 minutes",
    },
    Target {
        name: "replicated",
        about: "a replicated map beside locks and concurrent maps: reads and writes, one thread and two",
        takes: "about 6 minutes; --quick: 1 minute",
    },
    Target {
        name: "micro",
        about: "single calls of the log and of timers on one thread, by criterion",
        takes: "about 2 minutes; --quick: 15 seconds",
    },
    Target {
        name: "instructions",
        about: "executed instructions of single calls, of apply and of whole segments; needs Valgrind",
        takes: "half a minute",
    },
    Target {
        name: "synthetic",
        about: "requests with a sequential and a parallelizable part, by four strategies",
        takes: "about a minute; --quick: 15 seconds",
    },
    Target {
        name: "idle",
        about: "what a stack with a thousand idle connections uses of a core, and how fast it wakes up",
        takes: "about 40 seconds",
    },
];

/// The usual place of the report: beside what cargo builds.
pub fn directory() -> PathBuf {
    let fallback = || PathBuf::from("target");
    let program = std::env::current_exe().ok();
    // target/release/deps/NAME
    let target = program.and_then(|path| Some(path.parent()?.parent()?.parent()?.to_owned()));
    target.unwrap_or_else(fallback).join("scalability")
}

/// The arguments of this process that concern the target `name`; `None` if they name another one.
pub fn arguments(name: &str) -> Option<Vec<OsString>> {
    chosen(name, std::env::args_os().skip(1))
}

fn chosen(name: &str, all: impl Iterator<Item = OsString>) -> Option<Vec<OsString>> {
    // Cargo adds `--bench` to the arguments of every target.
    let mut arguments: Vec<OsString> = all.filter(|argument| argument != "--bench").collect();
    let is_option = |argument: &OsString| argument.to_string_lossy().starts_with('-');
    let words = arguments
        .iter()
        .position(is_option)
        .unwrap_or(arguments.len());
    let options = arguments.split_off(words);
    let is_target = |word: &OsString| TARGETS.iter().any(|target| word == target.name);
    let (targets, mut kept): (Vec<_>, Vec<_>) = arguments.into_iter().partition(is_target);
    if !targets.is_empty() && !targets.iter().any(|target| target == name) {
        return None;
    }
    kept.extend(options);
    Some(kept)
}

/// Whether the target `name` can measure, as `probe` found; if not, prints why, the privileges and
/// programs that it `needs`, and the packages that have them.
pub fn can_run<E: Display>(name: &str, probe: Result<(), E>, needs: &str, packages: &str) -> bool {
    if let Err(what) = &probe {
        println!("{name}: nothing is measured: {what}");
        println!("It needs root ({needs}:");
        println!("  apt-get install {packages}");
        println!("  sudo -E env \"PATH=$PATH\" cargo bench {name}");
    }
    probe.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: &str, line: &str) -> Option<String> {
        let arguments = line.split(' ').filter(|word| !word.is_empty());
        let kept = chosen(name, arguments.map(OsString::from))?;
        Some(kept.join(" ".as_ref()).into_string().expect("it is text"))
    }

    #[test]
    fn a_target_runs_unless_the_words_name_others() {
        let idle = |line| words("idle", line);
        assert_eq!(idle("--bench").as_deref(), Some(""));
        assert_eq!(idle("idle --quick --bench").as_deref(), Some("--quick"));
        assert_eq!(idle("channel idle --bench").as_deref(), Some(""));
        assert_eq!(idle("channel --quick --bench"), None);
        // The value of an option names no target.
        assert_eq!(
            idle("--rounds linux --bench").as_deref(),
            Some("--rounds linux")
        );
        assert_eq!(words("micro", "micro publish").as_deref(), Some("publish"));
        assert_eq!(
            words("scalability", "tcp-rx --quick").as_deref(),
            Some("tcp-rx --quick")
        );
    }

    #[test]
    fn every_file_of_benches_is_a_target() {
        let benches = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("benches");
        let files = std::fs::read_dir(benches).expect("there are benches");
        let name = |file: std::io::Result<std::fs::DirEntry>| {
            let path = file.expect("it can be read").path();
            path.file_stem()
                .map(|stem| stem.to_string_lossy().into_owned())
        };
        let mut files: Vec<String> = files.filter_map(name).collect();
        let mut targets: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        files.sort_unstable();
        targets.sort_unstable();
        assert_eq!(files, targets);
    }
}
