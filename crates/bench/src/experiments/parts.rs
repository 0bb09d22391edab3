//! Parts that other processes of this program play in an experiment: the code that Valgrind counts
//! and perf samples, and the ends of connections in network namespaces.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use super::nic;
use crate::instructions::functions;
#[cfg(target_os = "linux")]
use crate::kernel_echo;

/// Whether the program has called [`play`], so that it can be started again for a part.
static IS_PLAYED: AtomicBool = AtomicBool::new(false);

/// Plays the part that the arguments of this process name, if any. A program that runs experiments
/// calls this first; otherwise experiments that need a process are skipped with a message.
pub fn play() -> Option<ExitCode> {
    // ORDERING: Relaxed, since no other thread exists yet.
    IS_PLAYED.store(true, Ordering::Relaxed);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let part = arguments.first()?;
    if part == functions::INNER {
        return Some(functions::play(&arguments[1..], nic::counted));
    }
    #[cfg(target_os = "linux")]
    if part == kernel_echo::INNER {
        let done = kernel_echo::main(&arguments[1..]);
        let said = done.inspect_err(|error| eprintln!("{part}: {error}"));
        return Some(ExitCode::from(u8::from(said.is_err())));
    }
    None
}

/// Fails if this program plays no parts.
///
/// # Errors
/// The command to run instead.
pub(super) fn can_play() -> Result<(), String> {
    // ORDERING: Relaxed, since it was stored before another thread existed.
    match IS_PLAYED.load(Ordering::Relaxed) {
        true => Ok(()),
        false => Err("only cargo bench scalability starts processes of its own".to_owned()),
    }
}
