//! What the RFCs ask for, as data: `tests/data/*.toml`, each script run against every variant.
//!
//! A script is a conversation between the stack (10.0.0.1) and a peer that does exactly what the
//! script says (10.0.0.2), in virtual time. [`script`] describes the language. A script with
//! `pending = "reason"` tells of a rule that is not kept yet: it is run too, and must fail, so that
//! it gets enabled when it does not.
//!
//! `CONFORMANCE=name` runs the scripts whose name contains `name` only, and prints their frames.

mod run;
mod script;

use std::collections::BTreeMap;

use dominoes_testkit::Variant;
use script::{File, Script};

use crate::support::root;

/// Every script of every file, with the file's name.
fn scripts() -> Vec<(String, Script)> {
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
    let files: Vec<_> = files.iter().map(|path| (path, read(path))).collect();
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
    let (mut kept, mut pending, mut failures) = (0, 0, Vec::new());
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
        let outcomes: Vec<_> = Variant::ALL
            .iter()
            .flat_map(|&variant| (0..2).map(move |seed| (variant, seed)))
            .map(|(variant, seed)| (variant, run::run(&script, variant, seed, only.is_some())))
            .collect();
        let broken = outcomes.iter().find_map(|(variant, outcome)| {
            let what = outcome.as_ref().err()?;
            Some(format!(
                "{file}: {}\n  {} [{variant}]\n  {what}",
                script.name, script.rule
            ))
        });
        match (&script.pending, broken) {
            (None, None) => kept += 1,
            (None, Some(what)) => failures.push(what),
            (Some(_), Some(_)) => pending += 1,
            (Some(why), None) => failures.push(format!(
                "{file}: {}\n  is pending ({why}) and passes: enable it",
                script.name
            )),
        }
    }
    println!("{kept} rules are kept by every variant, {pending} are pending");
    assert!(
        failures.is_empty(),
        "{} scripts failed ({kept} kept, {pending} pending):\n\n{}",
        failures.len(),
        failures.join("\n\n")
    );
    assert!(
        only.is_some() || kept >= 150,
        "only {kept} scripts were run"
    );
}

/// The runner itself must find what is wrong.
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
        // `listen` is step 0 here, as a prelude is.
        let error = run::run(&script, Variant::Single, 1, false).expect_err(steps);
        let place = place.replace("step ", "line ");
        assert!(
            error.contains(&place) && error.contains(what),
            "{steps}: {error}"
        );
    }
}
