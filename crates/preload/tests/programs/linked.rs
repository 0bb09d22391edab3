//! `dominoes.h`, and a program in C that is linked with the library.

use std::path::Path;
use std::process::Command;

use libtest_mimic::Failed;

use crate::fixture::{Device, Folder, OURS, Program, THEIRS, ends, run};
use crate::rates::name_server;
use crate::tools::{Test, tests, words};

pub(crate) const ALL: &[Test] = tests! {
    the_header_is_what_cbindgen_generates: "cbindgen";
    a_program_in_c_is_linked: "cc" "dnsmasq";
};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

fn the_header_is_what_cbindgen_generates() -> Result<(), Failed> {
    let mut cbindgen = Command::new("cbindgen");
    let arguments = [
        "--quiet",
        "--config",
        "cbindgen.toml",
        "src/calls/linked.rs",
    ];
    let generated = cbindgen.args(arguments).current_dir(CRATE).output()?;
    let header = std::fs::read(Path::new(CRATE).join("include/dominoes.h"))?;
    match generated.status.success() && generated.stdout == header {
        true => Ok(()),
        false => Err(format!("generate it again, as `cbindgen.toml` says: {generated:?}").into()),
    }
}

/// The socket with the prefix is ours, and the one without is the kernel's: the kernel of the TAP's
/// namespace is the peer of both.
fn a_program_in_c_is_linked() -> Result<(), Failed> {
    let (ends, folder) = (ends(Device::Tap)?, Folder::new()?);
    let (library, program) = (
        folder.0.join("libdominoes_preload.so"),
        folder.0.join("linked"),
    );
    std::fs::copy(crate::fixture::library(), &library)?;
    let mut compiler = Command::new("cc");
    compiler.args([
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-Iinclude",
    ]);
    compiler
        .args(["tests/programs/linked.c", "-ldominoes_preload", "-o"])
        .arg(&program);
    compiler
        .arg("-L")
        .arg(&folder.0)
        .arg(format!("-Wl,-rpath,{}", folder.0.display()));
    run(compiler.current_dir(CRATE))?;
    // The header by itself, without the extensions of GNU.
    let line = "-std=c99 -Wall -Wpedantic -Werror -fsyntax-only -x c include/dominoes.h";
    run(words(&mut Command::new("cc"), line).current_dir(CRATE))?;
    let this = std::env::current_exe()?;
    let _peer = Program::serve(ends.peer.command(&this).arg("--peer"), "ready")?;
    let _names = name_server(&mut ends.peer.command("env"), THEIRS)?;
    let mut linked = ends.ours().command(&program);
    linked
        .env("DOMINOES_DEVICE", "tap:tap0")
        .env("DOMINOES_ADDR", format!("{OURS}/24"));
    linked
        .env("DOMINOES_DNS", THEIRS)
        .env("DOMINOES_STATS", "1");
    let text = run(linked.arg("both.test"))?;
    match text.contains("passed") && text.contains(" 1 sockets used Dominoes, 0 are open") {
        true => Ok(()),
        false => Err(text.into()),
    }
}
