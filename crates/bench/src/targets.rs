//! Which bench target a command line means.
//!
//! `cargo bench WORDS -- OPTIONS` starts every bench target with the same words and options. Every
//! target of this package calls [`arguments`] first, which answers from one table, [`TARGETS`]: the
//! target runs, or another one is meant and it ends with success, or the command line means nothing
//! and exactly one target says so.
//!
//! | command line | what runs |
//! |---|---|
//! | `cargo bench` | `scalability`; every other target says in a line how to run it |
//! | `cargo bench NAME...` | the targets of these names |
//! | `cargo bench EXPERIMENT...` | these experiments, by the target that has them |
//! | `cargo bench micro WORD`, `cargo bench instructions WORD` | the cases with the word in their name |
//! | `cargo bench --bench NAME` | this target alone |
//! | any of these with `-- --list` | nothing: what there is is listed |
//!
//! An option has to be one of a target that runs; a target that does not have it does not see it.
//!
//! Cargo does not tell a target that `--bench NAME` chose it. [`Call::here`] reads that from
//! cargo's own command line, where the system shows it (`/proc`). Where it does not,
//! `cargo bench --bench NAME` has to be `cargo bench NAME`.

mod call;
#[cfg(test)]
mod tests;

use core::fmt::Write;
use std::process::ExitCode;

pub use self::call::{Call, Decision};
use crate::experiments::EXPERIMENTS;
use crate::paper::{self, Figure};

/// What the process that runs the target `name` was asked for: the arguments that concern it.
///
/// # Errors
/// If it is not to run: prints why, if that is worth a line, and says how the process ends.
pub fn arguments(name: &str) -> Result<Vec<String>, ExitCode> {
    match Call::here().decide(name) {
        Decision::Run(arguments) => Ok(arguments),
        Decision::End(text) => {
            print!("{text}");
            Err(ExitCode::SUCCESS)
        }
        Decision::Fail(text) => {
            eprint!("{text}");
            Err(ExitCode::from(2))
        }
    }
}

/// Runs the target `name` by `run` if that is wanted; `run` gets the arguments that concern it.
/// Says on standard error why it failed.
pub fn main<E: core::fmt::Display>(
    name: &str,
    run: impl FnOnce(Vec<String>) -> Result<(), E>,
) -> ExitCode {
    let arguments = match arguments(name) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the target `name` can measure, as `probe` found; if not, prints why, the privileges and
/// programs that it `needs`, and the packages that have them.
pub fn can_run<E: core::fmt::Display>(
    name: &str,
    probe: Result<(), E>,
    needs: &str,
    packages: &str,
) -> bool {
    if let Err(what) = &probe {
        println!("{name}: nothing is measured: {what}");
        println!("It needs root ({needs}:");
        println!("  apt-get install {packages}");
        println!("  sudo -E env \"PATH=$PATH\" cargo bench {name}");
    }
    probe.is_ok()
}

/// A bench target of this package.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, a word that means it.
    pub name: &'static str,
    /// What it measures.
    pub about: &'static str,
    /// How long it takes in full.
    pub takes: &'static str,
    /// Words that mean a part of it.
    parts: Parts,
    /// Its options without dashes in front, and whether a value follows.
    options: &'static [(&'static str, bool)],
    /// Options of a process that the target starts itself: nothing is decided there.
    inner: &'static [&'static str],
    /// Whether it handles `--list` itself.
    lists: bool,
    /// Published figures that it measures as a whole; those of experiments are with them.
    pub published: &'static [Figure],
}

/// What words mean to a target besides its name.
#[derive(Clone, Copy, Debug)]
enum Parts {
    /// Nothing: it runs as a whole.
    Whole,
    /// [`EXPERIMENTS`], whose names mean the target too.
    Experiments,
    /// Part of the name of a case, if the target is named as well; the cases begin with these
    /// words.
    Cases(&'static [&'static str]),
}

const FLAG: bool = false;
const VALUE: bool = true;

/// All of them, the one that runs if nothing is named first.
pub const TARGETS: &[Target] = &[
    Target {
        name: "scalability",
        about: "how variants of the stack scale with cores, and smoltcp beside them",
        takes: "about 25 minutes; --quick: half a minute for each experiment",
        parts: Parts::Experiments,
        options: &[
            ("quick", FLAG),
            ("resume", FLAG),
            ("rounds", VALUE),
            ("side-rounds", VALUE),
            ("budget", VALUE),
            ("segment", VALUE),
            ("burst", VALUE),
            ("timestamps", FLAG),
            ("no-checksum", FLAG),
            ("connections", VALUE),
            ("pool", VALUE),
            ("ring", VALUE),
            ("log", VALUE),
            ("seed", VALUE),
            ("json", VALUE),
            ("out", VALUE),
            ("variant", VALUE),
            ("cores", VALUE),
        ],
        inner: &["--functions", "--echo"],
        lists: true,
        published: &[],
    },
    Target {
        name: "linux",
        about: "one connection to a Linux kernel over each device; needs root, ip and ethtool",
        takes: "about 10 minutes",
        parts: Parts::Whole,
        options: &[
            ("device", VALUE),
            ("frames", VALUE),
            ("way", VALUE),
            ("rounds", VALUE),
            ("millis", VALUE),
            ("replicas", VALUE),
            ("buffer", VALUE),
            ("ring", VALUE),
            ("pinned", VALUE),
            ("merged", VALUE),
            ("loss", VALUE),
            ("seeds", VALUE),
            ("rate", VALUE),
            ("delay", VALUE),
            ("queue", VALUE),
        ],
        inner: &["--end", "--wire"],
        lists: false,
        published: &[],
    },
    Target {
        name: "floods",
        about: "honest clients of a server, ours and Linux's, under floods; needs root, ip, curl and wrk",
        takes: "about 40 minutes; --quick: 4 minutes",
        parts: Parts::Whole,
        options: &[
            ("quick", FLAG),
            ("rounds", VALUE),
            ("turns", VALUE),
            ("cores", VALUE),
            ("seconds", VALUE),
            ("rate", VALUE),
            ("server", VALUE),
            ("scenario", VALUE),
            ("seed", VALUE),
            ("json", VALUE),
        ],
        inner: &["--serve", "--disturb"],
        lists: false,
        published: &[],
    },
    Target {
        name: "channel",
        about: "the log beside other multicast channels: throughput and latency",
        takes: "about 6 minutes; --quick: 2 minutes",
        parts: Parts::Whole,
        options: &[
            ("quick", FLAG),
            ("rounds", VALUE),
            ("millis", VALUE),
            ("capacity", VALUE),
            ("batch", VALUE),
            ("shape", VALUE),
            ("peer", VALUE),
            ("patience", VALUE),
            ("no-latency", FLAG),
        ],
        inner: &[],
        lists: false,
        published: paper::CHANNEL,
    },
    Target {
        name: "micro",
        about: "single calls of the log on one thread, by criterion",
        takes: "about 90 seconds; --quick: 10 seconds",
        parts: Parts::Cases(&[
            "publish",
            "read",
            "nothing to do",
            "members",
            "beside",
            "wait strategies",
        ]),
        options: &[
            ("quick", FLAG),
            ("exact", FLAG),
            ("noplot", FLAG),
            ("verbose", FLAG),
            ("quiet", FLAG),
            ("discard-baseline", FLAG),
            ("save-baseline", VALUE),
            ("baseline", VALUE),
            ("baseline-lenient", VALUE),
            ("load-baseline", VALUE),
            ("sample-size", VALUE),
            ("warm-up-time", VALUE),
            ("measurement-time", VALUE),
            ("nresamples", VALUE),
            ("noise-threshold", VALUE),
            ("confidence-level", VALUE),
            ("significance-level", VALUE),
            ("profile-time", VALUE),
            ("color", VALUE),
            ("output-format", VALUE),
        ],
        inner: &[],
        lists: true,
        published: &[],
    },
    Target {
        name: "instructions",
        about: "executed instructions of single calls, of apply and of whole segments; needs Valgrind",
        takes: "half a minute",
        parts: Parts::Cases(&[
            "ring/",
            "apply/",
            "kernel/",
            "single/",
            "replicated/",
            "logged/",
            "logged, step by step/",
        ]),
        options: &[("check", FLAG), ("accept", FLAG)],
        inner: &["--count"],
        lists: true,
        published: &[],
    },
    Target {
        name: "synthetic",
        about: "requests with a sequential and a parallelizable part, by four strategies",
        takes: "about a minute; --quick: 15 seconds",
        parts: Parts::Whole,
        options: &[
            ("quick", FLAG),
            ("rounds", VALUE),
            ("millis", VALUE),
            ("threads", VALUE),
            ("sequential", VALUE),
            ("seed", VALUE),
        ],
        inner: &[],
        lists: false,
        published: paper::SYNTHETIC,
    },
    Target {
        name: "idle",
        about: "what a stack with a thousand idle connections uses of a core, and how fast it wakes up",
        takes: "about 40 seconds",
        parts: Parts::Whole,
        options: &[
            ("connections", VALUE),
            ("seconds", VALUE),
            ("samples", VALUE),
            ("check", FLAG),
        ],
        inner: &[],
        lists: false,
        published: &[],
    },
    Target {
        name: "poller",
        about: "a thousand busy connections and 10,000 idle ones on one thread, ours and Linux's",
        takes: "about 3 minutes",
        parts: Parts::Whole,
        options: &[
            ("server", VALUE),
            ("connections", VALUE),
            ("idle", VALUE),
            ("rounds", VALUE),
            ("seconds", VALUE),
            ("tap", FLAG),
        ],
        inner: &["--serve", "--hold"],
        lists: false,
        published: &[],
    },
    Target {
        name: "timer",
        about: "starting, cancelling and firing timers in a wheel, a heap and a map",
        takes: "about 20 seconds; --quick: 2 seconds",
        parts: Parts::Whole,
        options: &[("quick", FLAG), ("rounds", VALUE), ("seed", VALUE)],
        inner: &[],
        lists: false,
        published: &[],
    },
];

/// Bench targets of other packages of the workspace, and how to run them.
const ELSEWHERE: &[(&str, &str)] = &[(
    "rings",
    "sudo -E env \"PATH=$PATH\" cargo bench -p dominoes-drivers --features bare rings",
)];

impl Target {
    fn experiments(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let own = match self.parts {
            Parts::Experiments => EXPERIMENTS,
            Parts::Whole | Parts::Cases(_) => &[],
        };
        own.iter()
            .map(|experiment| (experiment.name, experiment.about))
    }

    fn is_meant_by(&self, word: &str) -> bool {
        self.name == word || self.experiments().any(|(name, _)| name == word)
    }

    fn has_cases(&self) -> bool {
        matches!(self.parts, Parts::Cases(_))
    }

    fn has_option(&self, name: &str) -> bool {
        let listed = name == "list" && self.lists;
        listed || self.options.iter().any(|(option, _)| *option == name)
    }

    /// The lines about it in a list.
    fn describe(&self) -> String {
        let mut out = format!("{:<13} {} ({})\n", self.name, self.about, self.takes);
        // Writing to a string cannot fail.
        for (name, about) in self.experiments() {
            let _ = writeln!(out, "  {name:<13} {about}");
        }
        if let Parts::Cases(groups) = self.parts {
            let _ = writeln!(
                out,
                "  cases by a part of their name, which follows {}: {}",
                self.name,
                groups.join(", ")
            );
        }
        out
    }
}
