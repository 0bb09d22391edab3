//! Lets SIGINT (Ctrl-C) and SIGTERM (`kill`, a service manager) end an example cleanly.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Returns a flag that the first SIGINT or SIGTERM sets. From then on either signal ends the
/// process at once, as it does without a handler.
///
/// # Errors
/// The system does not accept a handler.
pub(crate) fn end_requested() -> io::Result<Arc<AtomicBool>> {
    let requested = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Actions run in the order of registration, so the first signal finds the flag clear.
        flag::register_conditional_default(signal, Arc::clone(&requested))?;
        flag::register(signal, Arc::clone(&requested))?;
    }
    Ok(requested)
}
