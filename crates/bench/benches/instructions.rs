//! `cargo bench instructions [FILTER] [-- [--check | --accept] [--list]]`
//!
//! Counts executed instructions under Valgrind's callgrind: calls of the ring, `apply` alone, and
//! whole segments through every variant of the stack. FILTER is part of a case's name, such as
//! `apply/` or `single/send/1448`. `--check` fails if a key count differs from `instructions.toml`
//! by more than 3 % or 3 instructions, or vector loops are not inlined; `--accept` writes that
//! file. What Valgrind writes is in `target/instructions`; the counts are a section of the report.
//! It takes less than a minute, on a busy machine, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dominoes_bench::instructions::gate::{Accepted, MARGIN, Tools, check_inlining};
use dominoes_bench::instructions::{callgrind, cases, processor, report};
use dominoes_bench::report::Run;
use dominoes_bench::start;

#[derive(Debug, clap::Parser)]
struct Options {
    #[arg(default_value = "")]
    filter: String,
    #[arg(long)]
    check: bool,
    #[arg(long)]
    accept: bool,
    #[arg(long)]
    list: bool,
    /// This process runs under Valgrind.
    #[arg(long, hide = true)]
    count: bool,
}

fn main() -> ExitCode {
    start::main("instructions", |options: Options| {
        if options.count {
            println!("{}", processor());
            cases(&options.filter).iter().for_each(|case| case.count());
            return Ok(());
        }
        if options.list {
            for case in cases(&options.filter) {
                println!("{}", case.name);
            }
            return Ok(());
        }
        run(&options)
    })
}

fn run(options: &Options) -> Result<(), String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.toml");
    let valgrind = match callgrind::version() {
        Ok(version) => version,
        // A check without Valgrind must fail, or the counts would seem right.
        Err(what) if options.check || options.accept => return Err(what),
        Err(what) => {
            println!("{what}");
            return Ok(());
        }
    };
    let cases = cases(&options.filter);
    if cases.is_empty() {
        return Err(format!(
            "no case has {:?} in its name; see --list",
            options.filter
        ));
    }
    let run = Run::begin("instructions");
    let accepted = Accepted::read(&file);
    let directory = directory();
    let (counted, processor) = callgrind::count(&["--count", &options.filter], &cases, &directory)?;
    let tools = Tools::here(valgrind, processor);
    let tables = report::tables(&tools, &cases, &counted, accepted.as_ref().ok());
    run.end(tables)?;

    let now = Accepted::new(tools, &cases, &counted);
    let all = options.filter.is_empty();
    if options.accept {
        let newer = match accepted {
            Ok(old) => old.updated(now, all),
            Err(_) if all => now,
            Err(what) => return Err(what),
        };
        newer.write(&file)?;
        println!("{} was written", file.display());
    } else if options.check {
        check_inlining()?;
        check(&accepted?, &now, all)?;
    }
    Ok(())
}

/// `target/instructions`, or a temporary directory if this user cannot write there.
fn directory() -> PathBuf {
    let usual = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("instructions");
    let probe = usual.join("probe");
    let made = fs::create_dir_all(&usual).and_then(|()| {
        let mut file = fs::OpenOptions::new();
        file.create(true).append(true).open(probe)
    });
    match made {
        Ok(_) => usual,
        Err(_) => std::env::temp_dir().join(format!("instructions-{}", std::process::id())),
    }
}

fn check(accepted: &Accepted, now: &Accepted, all: bool) -> Result<(), String> {
    let differences = accepted.differences(now, all);
    if differences.is_empty() {
        println!(
            "{} key counts are within {:.0} %",
            now.counts.len(),
            MARGIN * 100.0
        );
        return Ok(());
    }
    let mut message = format!("Key counts differ by more than {:.0} %:\n", MARGIN * 100.0);
    for difference in differences {
        message += &format!("  {difference}\n");
    }
    if accepted.tools != now.tools {
        message += &format!(
            "The file was made with other tools, which may be why: {:?} instead of {:?}.\n",
            accepted.tools, now.tools
        );
    }
    message += "If that is meant: cargo bench instructions -- --accept";
    Err(message)
}
