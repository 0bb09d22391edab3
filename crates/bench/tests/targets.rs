//! Which bench target a command line means, asked by processes as cargo starts them. Nothing is
//! measured.
//!
//! This program plays all parts: without [`AS`] in its environment it is the test, with it the
//! bench target of that name.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Output};

use dominoes_bench::targets::{self, TARGETS};

/// The target that a process plays.
const AS: &str = "DOMINOES_BENCH_AS";

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(AS) {
        return match targets::arguments(&name) {
            Ok(arguments) => {
                println!("RUNS {}", arguments.join(" "));
                ExitCode::SUCCESS
            }
            Err(code) => code,
        };
    }
    let tests: [(&str, fn()); 4] = [
        ("words_choose_one_target_and_the_others_are_silent", words),
        ("a_word_that_means_nothing_fails_in_one_target", nonsense),
        ("the_command_line_of_cargo_chooses_a_target", chosen),
        ("every_bench_target_asks_first", every_target),
    ];
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

/// How the target `name` ends with `arguments`, and what it says.
fn target(name: &str, arguments: &[&str]) -> Output {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    let run = command
        .args(arguments)
        .arg("--bench")
        .env(AS, name)
        .output();
    run.expect("this program can be started again")
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn words() {
    for one in TARGETS {
        let expect = |words: &[&str], running: &str, arguments: &str| {
            let expected = match one.name == running {
                true => format!("RUNS {arguments}\n"),
                false => String::new(),
            };
            assert_eq!(
                said(&target(one.name, words)),
                expected,
                "{} {words:?}",
                one.name
            );
        };
        expect(&["scalability"], "scalability", "");
        expect(&["tcp-rx", "--quick"], "scalability", "--quick tcp-rx");
        expect(&["timer", "--rounds", "3"], "timer", "--rounds 3");
        expect(&["micro", "publish"], "micro", "publish");
        let list = said(&target(one.name, &["--list"]));
        assert_eq!(list.contains("udp-tx"), one.name == "scalability", "{list}");
        let plain = said(&target(one.name, &[]));
        let how = format!("cargo bench {}", one.name);
        assert!(plain.contains(&how) || plain == "RUNS \n", "{plain}");
    }
}

fn nonsense() {
    let of = |name| target(name, &["timer", "nonsense"]);
    let failed: Vec<&str> = TARGETS
        .iter()
        .map(|one| one.name)
        .filter(|name| !of(name).status.success())
        .collect();
    assert_eq!(failed, ["scalability"]);
    let complaint = String::from_utf8_lossy(&of("scalability").stderr).into_owned();
    assert!(
        complaint.contains("nonsense") && complaint.contains("tcp-rx"),
        "{complaint}"
    );
}

/// Where the system shows command lines.
#[cfg(target_os = "linux")]
fn chosen() {
    use std::os::unix::process::CommandExt;

    let program = std::env::current_exe().expect("this program has a path");
    let under = |cargo: &[&str]| {
        let mut shell = Command::new("sh");
        // It is a shell that is called cargo, whose arguments follow its script.
        shell
            .arg0("cargo")
            .args(["-c", "\"$PROGRAM\" --bench; exit $?"]);
        let run = shell
            .args(cargo)
            .env("PROGRAM", &program)
            .env(AS, "timer")
            .output();
        said(&run.expect("there is a shell"))
    };
    assert_eq!(under(&["bench", "--bench", "timer"]), "RUNS \n");
    assert_eq!(
        under(&["bench", "-p", "dominoes-bench", "--bench=timer"]),
        "RUNS \n"
    );
    assert!(under(&["bench"]).contains("cargo bench timer"));
}

#[cfg(not(target_os = "linux"))]
fn chosen() {}

/// Each file of `benches` is a target of the table, and asks it.
fn every_target() {
    let benches = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches");
    let mut found = 0;
    for entry in fs::read_dir(&benches).expect("there are benches") {
        let path = entry.expect("it can be read").path();
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let text = fs::read_to_string(&path).expect("it is a text");
        let own_name = format!("const OWN_NAME: &str = \"{name}\"");
        let asks = text.contains(&format!("targets::arguments(\"{name}\")"))
            || text.contains(&format!("targets::main(\"{name}\", "))
            || text.contains("targets::arguments(OWN_NAME)") && text.contains(&own_name);
        assert!(asks, "{name} does not ask whether it is meant");
        assert!(TARGETS.iter().any(|target| target.name == name), "{name}");
        found += 1;
    }
    assert_eq!(found, TARGETS.len());
}
