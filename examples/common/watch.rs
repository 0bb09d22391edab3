//! What an example looks for while its stack runs.

pub(crate) mod signals;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_netstack::Stack;

use crate::program::Outcome;
use crate::stack::killer::Killer;

/// How often a stack is looked after.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What peers have to acknowledge everything when an example ends.
const GRACE: Duration = Duration::from_secs(1);

/// Looks after a stack until `end_requested` is set, the `seconds` are over, its device is gone, or
/// its replicas disagree; `killer` lets some die meanwhile. Then ends the listeners, sends FIN on
/// every connection, and resets those that are left after `grace`, by default a second. `name` is
/// that of the example, for messages.
pub(crate) fn watch(
    name: &str,
    stack: Stack,
    end_requested: &AtomicBool,
    seconds: Option<u64>,
    killer: Option<Killer>,
    grace: Option<Duration>,
) -> Outcome<()> {
    let watched = watch_until_end(name, &stack, end_requested, seconds, killer);
    if let Err(error) = stack.close(grace.unwrap_or(GRACE)) {
        eprintln!("{name}: {error}");
    }
    watched
}

fn watch_until_end(
    name: &str,
    stack: &Stack,
    end_requested: &AtomicBool,
    seconds: Option<u64>,
    mut killer: Option<Killer>,
) -> Outcome<()> {
    // So far away that no clock shows it: never.
    let end = seconds.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
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
        thread::sleep(match &mut killer {
            Some(killer) => killer.look(stack),
            None => POLL_INTERVAL,
        });
    }
    Ok(())
}
