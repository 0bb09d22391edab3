//! Unmodified programs, and a table of calls, over our stack and over the kernel's.
//!
//! They need root, for network namespaces, and some programs; a test that lacks one is listed as
//! ignored, with the reason. `REQUIRE=packet,tap,tools` makes it fail instead.

#[path = "programs/calls.rs"]
mod calls;
#[path = "programs/fixture.rs"]
mod fixture;
#[path = "programs/linked.rs"]
mod linked;
#[path = "programs/options.rs"]
mod options;
#[path = "programs/peer.rs"]
mod peer;
#[path = "programs/rates.rs"]
mod rates;
#[path = "programs/stress.rs"]
mod stress;
#[path = "programs/tools.rs"]
mod tools;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use fixture::{Device, Program, ends, launcher};

fn main() {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("--calls") => return calls::run(),
        Some("--peer") => return peer::serve(),
        Some("--stress") => return stress::run(&arguments.next().unwrap_or_default()),
        _ => {}
    }
    let mut trials = vec![
        trial(
            "every_call_returns_the_same_over_the_kernel_and_over_us",
            &[],
            every_call_returns_the_same_over_the_kernel_and_over_us,
        ),
        trial("threads_share_descriptors", &[], || {
            share_descriptors("300")
        }),
    ];
    let minute = || share_descriptors("60s");
    trials.push(trial("stress", &[], minute).with_ignored_flag(true));
    for (name, tools, test) in [tools::ALL, options::ALL, linked::ALL].concat() {
        trials.push(trial(name, tools, test));
    }
    trials.push(trial("rates", rates::TOOLS, rates::rates).with_ignored_flag(true));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// A test that is ignored if a requirement is missing.
fn trial(name: &str, tools: &'static [&'static str], test: fn() -> Result<(), Failed>) -> Trial {
    Trial::ignorable_test(name, move || match fixture::missing(tools)? {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => test().map(|()| Completion::Completed),
    })
}

/// Calls whose results differ: the call, and the reason.
const DIFFERENT: [(&str, &str); 0] = [];

fn every_call_returns_the_same_over_the_kernel_and_over_us() -> Result<(), Failed> {
    let ends = ends(Device::Packet)?;
    let this = std::env::current_exe()?;
    let _peer = Program::serve(ends.peer.command(&this).arg("--peer"), "ready")?;
    let ours = fixture::run(launcher(&ends, &[]).arg(&this).arg("--calls"))?;
    ends.ours().ip("addr add 10.78.0.1/24 dev veth0")?;
    let kernels = fixture::run(ends.ours().command(&this).arg("--calls"))?;
    // What the library prints is not a result.
    let ours: String = ours
        .lines()
        .filter(|line| !line.starts_with("dominoes["))
        .fold(String::new(), |text, line| text + line + "\n");
    let (mut group, mut equal, mut wrong) = ("", 0, Vec::new());
    for (kernel, our) in kernels.lines().zip(ours.lines()) {
        if kernel.starts_with('#') {
            group = kernel;
        } else if kernel == our {
            equal += 1;
        } else if !DIFFERENT.iter().any(|(call, _)| our.starts_with(call)) {
            let (call, our) = our.split_once(" = ").unwrap_or(("", our));
            let (_, kernel) = kernel.split_once(" = ").unwrap_or(("", kernel));
            wrong.push(format!("{group}: {call}: the kernel: {kernel}; we: {our}"));
        }
    }
    println!("{equal} calls return the same, {} differ", wrong.len());
    if kernels.lines().count() != ours.lines().count() || equal < 300 {
        wrong.push("too few calls were made".to_owned());
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n").into()),
    }
}

/// Runs [`stress`] over one replica and over two; `steps` are for each thread.
fn share_descriptors(steps: &str) -> Result<(), Failed> {
    for replicas in ["1", "2"] {
        let ends = ends(Device::Packet)?;
        let this = std::env::current_exe()?;
        let _peer = Program::serve(ends.peer.command(&this).arg("--peer"), "ready")?;
        let mut command = launcher(&ends, &["--replicas", replicas]);
        let text = fixture::run(command.arg(&this).args(["--stress", steps]))?;
        let counts: Vec<&str> = text
            .lines()
            .filter(|line| line.contains(" calls, "))
            .collect();
        println!("{replicas} replicas: {counts:?}");
        if !text.contains("passed") || !text.contains(" 0 are open") {
            return Err(text.into());
        }
    }
    Ok(())
}
