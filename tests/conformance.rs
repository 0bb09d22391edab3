//! Rules of the RFCs as data: `tests/data/*.toml`, with each script run against every variant.
//!
//! A script is a conversation between the stack (10.0.0.1) and a peer that does exactly as the
//! script orders (10.0.0.2), in virtual time. [`script`] describes the language. A script with
//! `pending = "reason"` checks a rule that is not implemented yet: it runs too, and must fail, so
//! that it gets enabled once it passes.
//!
//! Every script runs over IPv4 and over IPv6, with its packets translated: words and numbers of a
//! script are the IPv4 ones, and the MTU is 20 bytes larger over IPv6, as much as the header is
//! longer. A rule of only one of them has `only_ipv4 = "reason"` or `only_ipv6`.
//!
//! `[[held]]` is a rule that no script can check, with the names of the tests that check it.
//!
//! `CONFORMANCE=name` runs only the scripts whose name contains `name`, and prints their frames.

mod run;
mod script;

use std::collections::BTreeMap;

use dominoes_testkit::Variant;
use dominoes_testkit::packet::Family;
use script::{File, Script};

use crate::support::root;

/// Every file with its path.
fn files() -> Vec<(std::path::PathBuf, File)> {
    let data = root().join("tests/data");
    let mut files: Vec<_> = std::fs::read_dir(&data)
        .unwrap_or_else(|error| panic!("{}: {error}", data.display()))
        .map(|entry| entry.expect("the directory can be read").path())
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .collect();
    files.sort();
    let read = |path: &std::path::PathBuf| -> File {
        let text = std::fs::read_to_string(path).expect("the file can be read");
        toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let files = files.into_iter();
    let files = files.map(|path| {
        let file = read(&path);
        (path, file)
    });
    files.collect()
}

/// Every script of every file, with the file's name.
fn scripts() -> Vec<(String, Script)> {
    let files = files();
    let mut shared = File::default();
    for (_, file) in &files {
        shared.prelude.extend(file.prelude.clone());
        shared.rows.extend(file.rows.clone());
    }
    let mut all = Vec::new();
    for (path, file) in files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        for written in file.script {
            let expanded = written.expand(&shared);
            let expanded = expanded.unwrap_or_else(|what| panic!("{}: {what}", path.display()));
            all.extend(
                expanded
                    .into_iter()
                    .map(|script| (name.to_string(), script)),
            );
        }
    }
    all
}

#[test]
fn every_rule_is_kept_by_every_variant_and_no_pending_one_is_kept_already() {
    let only = std::env::var("CONFORMANCE").ok();
    let (mut kept, mut kept_v6, mut pending, mut failures) = (0, 0, 0, Vec::new());
    let mut names = BTreeMap::new();
    for (file, script) in scripts() {
        assert!(
            names.insert(script.name.clone(), ()).is_none(),
            "two scripts are called `{}`",
            script.name
        );
        if only
            .as_ref()
            .is_some_and(|part| !script.name.contains(part))
        {
            continue;
        }
        let mut cases = script.families.iter().flat_map(|&family| {
            let variants = Variant::ALL.iter();
            variants.flat_map(move |&variant| (0..2).map(move |seed| (family, variant, seed)))
        });
        let broken = cases.find_map(|(family, variant, seed)| {
            let outcome = run::run(&script, variant, family, seed, only.is_some());
            let what = outcome.err()?;
            Some(format!(
                "{file}: {}\n  {} [{variant}, {family}]\n  {what}",
                script.name, script.rule
            ))
        });
        match (&script.pending, broken) {
            (None, None) => {
                kept += 1;
                kept_v6 += usize::from(script.families.contains(&Family::V6));
            }
            (None, Some(what)) => failures.push(what),
            (Some(_), Some(_)) => pending += 1,
            (Some(why), None) => failures.push(format!(
                "{file}: {}\n  is pending ({why}) and passes: enable it",
                script.name
            )),
        }
    }
    println!(
        "{kept} rules are kept by every variant, {kept_v6} of them over IPv6 too, {pending} are pending"
    );
    assert!(
        failures.is_empty(),
        "{} scripts failed ({kept} kept, {pending} pending):\n\n{}",
        failures.len(),
        failures.join("\n\n")
    );
    assert!(
        only.is_some() || kept_v6 >= 150,
        "only {kept_v6} scripts were run over both families"
    );
}

/// Each `[[held]]` rule must name existing tests.
#[test]
fn every_rule_that_another_test_holds_names_it() {
    let mut named = 0;
    for held in files().into_iter().flat_map(|(_, file)| file.held) {
        let path = root().join(&held.file);
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(!held.tests.is_empty(), "nothing holds `{}`", held.rule);
        for test in &held.tests {
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            let begins = format!("fn {test}(");
            let is_test = |pair: &[&str]| pair[0] == "#[test]" && pair[1].starts_with(&begins);
            assert!(
                lines.windows(2).any(is_test),
                "`{}`: {} has no test `{test}`",
                held.rule,
                held.file
            );
            named += 1;
        }
    }
    assert!(named >= 30, "only {named} tests are named");
}

/// The runner itself must find wrong steps.
#[test]
fn a_script_that_asks_for_something_else_fails_at_the_step_that_says_so() {
    let wrong = [
        ("< SYN seq=0\n> SYN-ACK ack=2", "step 2", "ack=1"),
        ("< SYN seq=0\n> nothing 1ms", "step 2", "SYN-ACK"),
        ("< SYN seq=0", "end", "SYN-ACK"),
        ("> ACK within=10ms", "step 1", "nothing came"),
        (
            "< SYN seq=0\n> SYN-ACK\nstate ESTABLISHED",
            "step 3",
            "SYN-RECEIVED",
        ),
        ("read eof", "step 1", "no connection"),
        ("dance", "step 1", "dance"),
        (
            "< SYN seq=0\n> SYN-ACK\n< ACK seq=1 ack=1 win=9\naccept\nwrite 1\n> ACK len=2",
            "step 6",
            "len=1",
        ),
    ];
    for (steps, place, what) in wrong {
        let script = Script::of_steps(&format!("listen\n{steps}"));
        // In these scripts `listen` is line 0.
        let place = place.replace("step ", "line ");
        for family in Family::ALL {
            let outcome = run::run(&script, Variant::Single, family, 1, false);
            let error = outcome.expect_err(steps);
            assert!(
                error.contains(&place) && error.contains(what),
                "{family}: {steps}: {error}"
            );
        }
    }
}
