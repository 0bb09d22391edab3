//! Both ends of a device, and programs at either one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

pub(crate) use dominoes_testkit::programs::{Device, Ends, Folder, Namespace, Program};
use libtest_mimic::Failed;

/// The addresses of our stack, and of the kernel at the other end.
pub(crate) const OURS: &str = "10.78.0.1";
pub(crate) const THEIRS: &str = "10.78.0.2";
pub(crate) const OURS_V6: &str = "fd78::1";
pub(crate) const THEIRS_V6: &str = "fd78::2";

/// Why a test cannot run, if so.
///
/// # Errors
/// A missing requirement that `REQUIRE` names.
pub(crate) fn missing(tools: &[&str]) -> Result<Option<String>, Failed> {
    let required = std::env::var("REQUIRE").unwrap_or_default();
    let is_required = |word: &str| required.split(',').any(|other| other.trim() == word);
    let lacks = |tool: &&&str| {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("command -v {tool}")])
            .stdout(Stdio::null());
        !command.status().is_ok_and(|status| status.success())
    };
    let (word, reason) = match tools.iter().find(lacks) {
        Some(tool) => ("tools", format!("needs {tool}")),
        None => match ends(Device::Tap).and_then(|_| ends(Device::Packet)) {
            Ok(_) => return Ok(None),
            Err(failed) => {
                let why = failed.message().unwrap_or_default().replace('\n', ", ");
                ("packet", format!("needs root, TAP and veth: {why}"))
            }
        },
    };
    match is_required(word) {
        true => Err(format!("required, but {reason}").into()),
        false => Ok(Some(reason)),
    }
}

/// The two ends of a device.
pub(crate) fn ends(device: Device) -> Result<Ends, Failed> {
    Ok(Ends::new(device, &format!("{THEIRS}/24"), false)?)
}

/// Gives an interface an address of IPv6, too.
pub(crate) fn add_ipv6(at: &Namespace, interface: &str, address: &str) -> Result<(), Failed> {
    at.enable_v6(interface)?;
    at.ip(&format!("addr add {address}/64 dev {interface} nodad"))?;
    Ok(())
}

/// The launcher in our namespace; the caller adds the program.
pub(crate) fn launcher(ends: &Ends, options: &[&str]) -> Command {
    let mut command = ends.ours().command(env!("CARGO_BIN_EXE_dominoes-run"));
    let address = format!("{OURS}/24");
    command.env("DOMINOES_LIBRARY", library());
    command.args([ends.device.option(), ends.interface(), "--addr", &address]);
    command.arg("--stats").args(options).arg("--");
    command
}

/// The library, in the profile of this program. Cargo builds it for no test. A library that exists
/// already can be named in `DOMINOES_LIBRARY`.
pub(crate) fn library() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(path) = std::env::var_os("DOMINOES_LIBRARY") {
            return path.into();
        }
        let folder = dominoes_testkit::programs::build(&["--lib"]);
        folder
            .expect("the library compiles")
            .join("libdominoes_preload.so")
    });
    &BUILT
}

/// Runs a program to its end, and returns its output.
pub(crate) fn run(command: &mut Command) -> Result<String, Failed> {
    Ok(Program::start(command)?.finish_all(false)?)
}
