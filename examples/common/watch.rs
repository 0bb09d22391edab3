//! What an example looks for while its stack runs.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_netstack::Stack;

use crate::Outcome;

/// How often a stack is looked after.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Looks after a stack until `end_requested` is set, the time is over, its device is gone, or its
/// replicas disagree. Each time it calls `look`, which says how long to wait until the next. `name`
/// is that of the example, for messages.
pub(crate) fn watch(
    name: &str,
    stack: &Stack,
    end_requested: &AtomicBool,
    end: Option<Instant>,
    mut look: impl FnMut(&Stack) -> Duration,
) -> Outcome<()> {
    while !end_requested.load(Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        match stack.take_device_error() {
            Some(error) if error.is_temporary() => eprintln!("{name}: {error}"),
            Some(error) => return Err(error.into()),
            None => {}
        }
        stack.compare()?;
        if stack.shares().iter().any(|share| share.diverged > 0) {
            return Err("replicas differ in the work they found to do".into());
        }
        thread::sleep(look(stack));
    }
    Ok(())
}
