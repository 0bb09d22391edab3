//! The command lines of all examples: these tests need no privileges, and open no device.

use std::process::Command;

use dominoes_testkit::programs;
use libtest_mimic::Failed;

/// Examples, and values that each rejects.
const EXAMPLES: &[(&str, &[&[&str]])] = &[
    ("http_server", &[STACK, &["--port", "0"]]),
    ("https_get", &[STACK, &["http://10.78.0.2/"]]),
    ("https_server", &[STACK, &["--update-keys", "often"]]),
    (
        "kv_store",
        &[&["--clients", "0"], &["--operations", "5"], &["three"]],
    ),
    ("ingest", &[STACK, &["--port", "0"]]),
    ("lossy_wire", &[&["--loss", "200%"], &["--delay", "5"]]),
    (
        "matching_engine",
        &[&["--orders", "many"], &["--traders", "-1"]],
    ),
    (
        "ping",
        &[
            STACK,
            &["--count", "-1"],
            &["--size", "70000"],
            &["10.78.0.256"],
        ],
    ),
    (
        "router",
        &[
            &["xdp:veth0=10.0.0.1/24"],
            &["--route", "192.0.2.0=10.0.0.1"],
        ],
    ),
    (
        "services",
        &[
            STACK,
            &["--variant", "doubled"],
            &["--join", "us"],
            &["--process", "all"],
        ],
    ),
    ("throughput", &[&["--rounds", "0"], &["fast"]]),
    ("throughput_tls", &[&["--rounds", "1001"]]),
    ("tls_proxy", &[STACK, &["--to", "here"]]),
    ("top", &[STACK, &["--groups", "65"]]),
    (
        "tunnel",
        &[STACK, &["--socks", "here"], &["--udp-idle", "0"]],
    ),
    ("udp_echo", &[STACK, &["tap0"]]),
];

/// A placeholder for each of [`STACKS`].
const STACK: &[&str] = &[];
const STACKS: &[&[&str]] = &[
    &["--replicas", "abc"],
    &["--groups", "0"],
    &["--gateway", "nobody"],
    &["--kill-every", "-1"],
    &["--ring", "round"],
    &["--second", "veth1"],
];

/// Each example prints its help. An unknown option, or an invalid value, ends it with one line that
/// names the option or value.
pub(crate) fn each_has_help_and_names_what_is_wrong() -> Result<(), Failed> {
    let mut wrong = Vec::new();
    for &(name, values) in EXAMPLES {
        let program = programs::example(name)?;
        let run = |arguments: &[&str]| {
            let output = Command::new(&program).args(arguments).output()?;
            let [out, err] =
                [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
            Ok::<_, Failed>((output.status.code(), out, err))
        };
        for help in ["--help", "-h"] {
            let said = run(&[help])?;
            if said.0 != Some(0) || !said.1.contains("  --") || !said.2.is_empty() {
                wrong.push(format!("{name} {help}: {said:?}"));
            }
        }
        let values = values.iter().flat_map(|value| match value.is_empty() {
            true => STACKS,
            false => std::slice::from_ref(value),
        });
        let unknown: [&[&str]; 3] = [&["--nonsense"], &["-n"], &["--nonsense=7"]];
        for arguments in values.chain(&unknown) {
            let said = run(arguments)?;
            let lines = said.2.lines().count();
            let names = match arguments {
                ["--nonsense=7"] => said.2.contains("--nonsense"),
                _ => said.2.contains(&arguments.join(" ")),
            };
            let begins = said.2.starts_with(&format!("{name}: "));
            if said.0 != Some(1) || lines != 1 || !names || !begins {
                wrong.push(format!("{name} {arguments:?}: {said:?}"));
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n").into()),
    }
}
