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

use core::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use crate::experiments::EXPERIMENTS;

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
        inner: &[],
        lists: true,
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
    },
    Target {
        name: "floods",
        about: "honest clients of a server, ours and Linux's, under floods; needs root, ip, curl and wrk",
        takes: "about 40 minutes; --quick: 4 minutes",
        parts: Parts::Whole,
        options: &[
            ("quick", FLAG),
            ("rounds", VALUE),
            ("seconds", VALUE),
            ("rate", VALUE),
            ("server", VALUE),
            ("scenario", VALUE),
            ("seed", VALUE),
            ("json", VALUE),
        ],
        inner: &["--serve", "--disturb"],
        lists: false,
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
    },
    Target {
        name: "timer",
        about: "starting, cancelling and firing timers in a wheel, a heap and a map",
        takes: "about 20 seconds; --quick: 2 seconds",
        parts: Parts::Whole,
        options: &[("quick", FLAG), ("rounds", VALUE), ("seed", VALUE)],
        inner: &[],
        lists: false,
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

/// How a target was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The arguments, without the program's name.
    pub arguments: Vec<String>,
    /// The command line of the `cargo bench` that started it, if the system shows it.
    pub cargo: Vec<String>,
}

/// What a target does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It runs, with those of the arguments that concern it.
    Run(Vec<String>),
    /// It ends with success, after these lines if there are any.
    End(String),
    /// It ends with failure, after this message. Only one of all targets does.
    Fail(String),
}

/// An option as it stands on a command line, with its value.
struct Given {
    name: String,
    arguments: Vec<String>,
    /// Whether it has a value exactly if it takes one.
    is_whole: bool,
}

impl Call {
    /// How this process was started.
    pub fn here() -> Call {
        let argument = |one: std::ffi::OsString| one.to_string_lossy().into_owned();
        Call {
            arguments: std::env::args_os().skip(1).map(argument).collect(),
            cargo: cargo_bench().unwrap_or_default(),
        }
    }

    /// Words, and options with their values. Cargo's own `--bench` is neither.
    fn split(&self) -> (Vec<&str>, Vec<Given>) {
        let takes_value = |name: &str| {
            let mut all = TARGETS.iter().flat_map(|target| target.options);
            all.any(|(option, value)| *option == name && *value == VALUE)
        };
        let (mut words, mut options) = (Vec::new(), Vec::new());
        let mut rest = self.arguments.iter();
        while let Some(argument) = rest.next() {
            let dashes = argument.len() - argument.trim_start_matches('-').len();
            if dashes == 0 || argument.len() == dashes {
                words.push(argument.as_str());
                continue;
            }
            let text = &argument[dashes..];
            if text == "bench" {
                continue;
            }
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                // What cargo adds is no value.
                None if takes_value(text) => (
                    text,
                    rest.next().filter(|value| *value != "--bench").cloned(),
                ),
                None => (text, None),
            };
            let has_value = takes_value(name);
            let mut arguments = vec![format!("{}{name}", &argument[..dashes])];
            arguments.extend(value);
            options.push(Given {
                name: name.to_owned(),
                is_whole: arguments.len() == 1 + usize::from(has_value),
                arguments,
            });
        }
        (words, options)
    }

    /// The targets that cargo starts, or was told to: `None` for all.
    fn started(&self, me: &'static Target) -> Option<Vec<&'static Target>> {
        if !self.arguments.iter().any(|argument| argument == "--bench") {
            // Cargo did not start it: this program was.
            return Some(vec![me]);
        }
        let own = self.cargo.iter().take_while(|argument| *argument != "--");
        let mut names = Vec::new();
        let mut follows = false;
        for argument in own {
            if follows || argument.starts_with("--bench=") {
                names.push(argument.trim_start_matches("--bench="));
            }
            follows = argument == "--bench";
        }
        let named = |target: &&Target| {
            names
                .iter()
                .any(|name| match name.split_once(['*', '?', '[']) {
                    Some((start, _)) => target.name.starts_with(start),
                    None => target.name == *name,
                })
        };
        let all: Vec<&Target> = TARGETS.iter().filter(named).collect();
        (!all.is_empty()).then_some(all)
    }

    /// What the target `name` does.
    ///
    /// # Panics
    /// If there is no such target.
    pub fn decide(&self, name: &str) -> Decision {
        let me = TARGETS.iter().find(|target| target.name == name);
        let me = me.expect("a bench target stands in the table");
        let first = self.arguments.first().map(String::as_str);
        if first.is_some_and(|first| me.inner.contains(&first)) {
            return Decision::Run(self.arguments.clone());
        }
        let (words, options) = self.split();
        let started = self.started(me);
        let among: Vec<&Target> = started.clone().unwrap_or_else(|| TARGETS.iter().collect());
        let mut chosen: Vec<&Target> = among
            .iter()
            .copied()
            .filter(|target| words.iter().any(|word| target.is_meant_by(word)))
            .collect();
        let elsewhere = ELSEWHERE.iter().find(|(name, _)| words.contains(name));
        if chosen.is_empty() && elsewhere.is_none() {
            match &started {
                Some(all) => chosen.clone_from(all),
                None if words.is_empty() => chosen.push(&TARGETS[0]),
                None => {}
            }
        }
        let speaks = among.first().is_some_and(|first| first.name == me.name);
        let once = |text: String| Decision::End(if speaks { text } else { String::new() });
        let fail = |text: String| match speaks {
            true => Decision::Fail(text),
            false => Decision::End(String::new()),
        };
        let cases = chosen.iter().any(|target| target.has_cases());
        let known = |word: &&str| {
            cases
                || chosen.iter().any(|target| target.is_meant_by(word))
                || ELSEWHERE.iter().any(|(name, _)| name == word)
        };
        if let Some(word) = words.iter().find(|word| !known(word)) {
            return fail(unknown_word(word, &among));
        }
        let is_list = options.iter().any(|option| option.name == "list");
        if is_list && words.is_empty() && started.is_none() {
            return once(list(TARGETS));
        }
        if let (Some((name, how)), true) = (elsewhere, chosen.is_empty()) {
            return once(format!("{name} belongs to another package: {how}\n"));
        }
        let known = |option: &&Given| {
            option.name == "list" || chosen.iter().any(|target| target.has_option(&option.name))
        };
        if let Some(option) = options.iter().find(|option| !known(option)) {
            return fail(unknown_option(&option.name, &chosen));
        }
        if let Some(option) = options.iter().find(|option| !option.is_whole) {
            return fail(format!(
                "--{} lacks its value, or takes none\n",
                option.name
            ));
        }
        if !chosen.iter().any(|target| target.name == me.name) {
            return Decision::End(match words.is_empty() {
                true => format!("{name}: `cargo bench {name}` runs it, {}\n", me.takes),
                false => String::new(),
            });
        }
        if is_list && !me.lists {
            return Decision::End(me.describe());
        }
        let mut mine: Vec<String> = options
            .into_iter()
            .filter(|option| me.has_option(&option.name))
            .flat_map(|option| option.arguments)
            .collect();
        let names = |word: &&str| TARGETS.iter().any(|target| target.is_meant_by(word));
        let parts = words.into_iter().filter(|word| match me.has_cases() {
            true => !names(word),
            false => *word != me.name && me.is_meant_by(word),
        });
        mine.extend(parts.map(str::to_owned));
        Decision::Run(mine)
    }
}

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

/// Targets and their experiments, in lines.
fn list(targets: &[Target]) -> String {
    let mut out = String::from(
        "cargo bench [NAME | EXPERIMENT]... [-- OPTIONS]; without a name: scalability\n\n",
    );
    for target in targets {
        out += &target.describe();
    }
    for (name, how) in ELSEWHERE {
        let _ = writeln!(out, "{name:<13} of another package: {how}");
    }
    out
}

fn unknown_word(word: &str, among: &[&Target]) -> String {
    let owner = TARGETS.iter().find(|target| target.is_meant_by(word));
    let hint = match owner {
        Some(owner) => format!("it belongs to {}: cargo bench {word}\n", owner.name),
        None => format!("there is:\n{}", list(TARGETS)),
    };
    match among {
        [one] => format!("{}: there is no {word:?} here; {hint}", one.name),
        _ => format!("no bench or experiment is called {word:?}; {hint}"),
    }
}

fn unknown_option(option: &str, chosen: &[&Target]) -> String {
    let names = |targets: &mut dyn Iterator<Item = &Target>| {
        targets
            .map(|target| target.name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let owners = names(&mut TARGETS.iter().filter(|target| target.has_option(option)));
    let hint = match owners.split(", ").next() {
        Some(owner) if !owner.is_empty() => {
            format!("it is an option of {owners}: cargo bench {owner} -- --{option}")
        }
        _ => "crates/bench/README.md lists the options".to_owned(),
    };
    let chosen = names(&mut chosen.iter().copied());
    format!("{chosen}: no option --{option}; {hint}\n")
}

/// The command line of the nearest process above this one that is `cargo bench`.
fn cargo_bench() -> Option<Vec<String>> {
    let mut process = "self".to_owned();
    // A driver, a shell or sudo may stand between.
    for _ in 0..8 {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // Behind the name, which may hold anything but a closing bracket: the state, and the
        // parent.
        let (_, fields) = stat.rsplit_once(')')?;
        process = fields.split_whitespace().nth(1)?.to_owned();
        let line = std::fs::read(format!("/proc/{process}/cmdline")).ok()?;
        let words: Vec<String> = String::from_utf8_lossy(&line)
            .split('\0')
            .map(str::to_owned)
            .collect();
        let (program, rest) = words.split_first()?;
        let is_cargo = Path::new(program).file_stem() == Some("cargo".as_ref());
        if is_cargo {
            return rest
                .iter()
                .any(|word| word == "bench")
                .then(|| rest.to_vec());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    /// The words of a command line; those in front of the first `--` are cargo's.
    fn call(line: &str) -> Call {
        let (cargo, rest) = line.split_once(" -- ").unwrap_or((line, ""));
        let words =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        let cargo = words(cargo);
        let mut arguments = Vec::new();
        let mut own = cargo.iter().skip(1);
        while let Some(word) = own.next() {
            if word == "--bench" {
                own.next();
            } else if !word.starts_with('-') {
                arguments.push(word.clone());
            }
        }
        arguments.extend(words(rest));
        arguments.push("--bench".to_owned());
        Call { arguments, cargo }
    }

    /// For each target that runs, the arguments it gets.
    fn runs(line: &str) -> Vec<(&'static str, String)> {
        let call = call(line);
        let one = |target: &Target| match call.decide(target.name) {
            Decision::Run(arguments) => Some((target.name, arguments.join(" "))),
            Decision::End(_) => None,
            Decision::Fail(text) => panic!("{line}: {text}"),
        };
        TARGETS.iter().filter_map(one).collect()
    }

    #[test]
    fn words_choose_what_runs() {
        let table: &[(&str, &[(&str, &str)])] = &[
            ("bench", &[("scalability", "")]),
            ("bench scalability", &[("scalability", "")]),
            ("bench -- --quick", &[("scalability", "--quick")]),
            (
                "bench scalability -- tcp-rx --quick",
                &[("scalability", "--quick tcp-rx")],
            ),
            ("bench tcp-rx warm", &[("scalability", "tcp-rx warm")]),
            ("bench linux", &[("linux", "")]),
            ("bench channel -- --quick", &[("channel", "--quick")]),
            (
                "bench channel timer -- --millis 10 --quick --seed=3",
                &[
                    ("channel", "--millis 10 --quick"),
                    ("timer", "--quick --seed 3"),
                ],
            ),
            (
                "bench scalability -- --variant single tcp-rx",
                &[("scalability", "--variant single tcp-rx")],
            ),
            ("bench micro publish", &[("micro", "publish")]),
            (
                "bench instructions apply/ -- --check",
                &[("instructions", "--check apply/")],
            ),
            (
                "bench --bench instructions -- --check",
                &[("instructions", "--check")],
            ),
            ("bench --bench=idle", &[("idle", "")]),
            ("bench rings", &[]),
            ("bench rings timer", &[("timer", "")]),
        ];
        for (line, expected) in table {
            let expected: Vec<(&str, String)> = expected
                .iter()
                .map(|(name, arguments)| (*name, (*arguments).to_owned()))
                .collect();
            let started = |name: &str| {
                let named = line.split_once("--bench").map(|(_, rest)| rest);
                named.is_none_or(|rest| rest[1..].starts_with(name))
            };
            // Cargo does not start the others.
            let mut found = runs(line);
            found.retain(|(name, _)| started(name));
            assert_eq!(found, expected, "{line}");
        }
    }

    #[test]
    fn a_command_line_that_means_nothing_fails_once() {
        let table = [
            ("bench nonsense", "\"nonsense\"", "tcp-rx"),
            ("bench channel nonsense -- --quick", "\"nonsense\"", "timer"),
            (
                "bench -- --check",
                "scalability: no option --check",
                "cargo bench instructions",
            ),
            (
                "bench timer -- --variant single",
                "timer: no option --variant",
                "scalability",
            ),
            ("bench -- --wrong", "no option --wrong", "README"),
            (
                "bench timer -- --rounds",
                "--rounds lacks its value, or takes none",
                "",
            ),
            (
                "bench timer -- --quick=3",
                "--quick lacks its value, or takes none",
                "",
            ),
        ];
        for (line, what, hint) in table {
            let call = call(line);
            let decisions: Vec<Decision> = TARGETS
                .iter()
                .map(|target| call.decide(target.name))
                .collect();
            let failed = decisions.iter().filter_map(|decision| match decision {
                Decision::Fail(text) => Some(text),
                _ => None,
            });
            let failed: Vec<&String> = failed.collect();
            assert_eq!(failed.len(), 1, "{line}: {decisions:?}");
            assert!(
                failed[0].contains(what) && failed[0].contains(hint),
                "{}",
                failed[0]
            );
            let silent = Decision::End(String::new());
            let others = decisions
                .iter()
                .filter(|decision| **decision == silent)
                .count();
            assert_eq!(others, TARGETS.len() - 1, "{line}");
        }
    }

    #[test]
    fn a_list_names_every_target_and_experiment_and_runs_nothing() {
        let call = call("bench -- --list");
        let said: Vec<String> = TARGETS
            .iter()
            .map(|target| match call.decide(target.name) {
                Decision::End(text) => text,
                other => panic!("{}: {other:?}", target.name),
            })
            .collect();
        for target in TARGETS {
            assert!(said[0].contains(target.name));
        }
        for experiment in EXPERIMENTS {
            assert!(said[0].contains(experiment.name), "{}", experiment.name);
        }
        assert!(said[1..].iter().all(String::is_empty), "it is said once");
    }

    #[test]
    fn a_list_of_one_target_is_its_own() {
        assert_eq!(
            runs("bench scalability -- --list"),
            [("scalability", "--list".to_owned())]
        );
        let Decision::End(text) = call("bench timer -- --list").decide("timer") else {
            panic!("it measures");
        };
        assert!(text.starts_with("timer "), "{text}");
    }

    #[test]
    fn plain_cargo_bench_says_how_to_run_the_others() {
        for target in &TARGETS[1..] {
            let Decision::End(text) = call("bench").decide(target.name) else {
                panic!("{} runs", target.name);
            };
            assert!(
                text.contains(&format!("cargo bench {}", target.name)),
                "{text}"
            );
            assert_eq!(text.lines().count(), 1);
        }
    }

    #[test]
    fn a_program_that_cargo_did_not_start_runs() {
        let alone = |arguments: &[&str]| Call {
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            cargo: Vec::new(),
        };
        let run = |arguments: &[&str]| {
            Decision::Run(arguments.iter().map(|&word| word.to_owned()).collect())
        };
        assert_eq!(alone(&["--quick"]).decide("timer"), run(&["--quick"]));
        assert_eq!(alone(&["apply/"]).decide("instructions"), run(&["apply/"]));
        // A process of its own that a target started.
        assert_eq!(
            alone(&["--end", "{}"]).decide("linux"),
            run(&["--end", "{}"])
        );
        assert_eq!(
            alone(&["--count", ""]).decide("instructions"),
            run(&["--count", ""])
        );
        assert!(matches!(
            alone(&["tcp-rx"]).decide("timer"),
            Decision::Fail(_)
        ));
    }

    #[test]
    fn no_word_means_two_things() {
        let mut words = HashSet::new();
        for target in TARGETS {
            assert!(words.insert(target.name), "{}", target.name);
            for (name, _) in target.experiments() {
                assert!(words.insert(name), "{name}");
            }
        }
        // An option has a value in all targets or in none: otherwise what follows it would be a
        // word to some.
        let mut values = HashMap::new();
        for (name, value) in TARGETS.iter().flat_map(|target| target.options) {
            assert_eq!(*values.entry(*name).or_insert(*value), *value, "{name}");
        }
    }
}
