//! What a command line means.

use core::fmt::Write;
use std::path::Path;

use super::{ELSEWHERE, TARGETS, Target, VALUE};

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
