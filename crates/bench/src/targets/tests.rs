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
    let run =
        |arguments: &[&str]| Decision::Run(arguments.iter().map(|&word| word.to_owned()).collect());
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
