//! Watches the stack of an example while it runs.

pub(crate) mod signals;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_netstack::Stack;

use crate::program::Outcome;
use crate::stack::killer::Killer;

/// Time between two checks of the stack.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Time for peers to acknowledge everything when an example ends.
const GRACE: Duration = Duration::from_secs(1);

/// Watches a stack until `end_requested` is set, `seconds` have passed, its device is gone, or
/// its replicas disagree; meanwhile `killer` lets replicas fail. Then it ends the listeners,
/// sends FIN on every connection, and resets the remaining connections after `grace`, by default
/// a second. Messages begin with `name`, the name of the example.
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
    let mut last_message = String::new();
    // A time that the clock cannot express never comes.
    let end = seconds.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
    while !end_requested.load(Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        match stack.take_device_error() {
            Some(error) if error.is_temporary() => {
                let message = format!("{name}: {error}");
                if message != last_message {
                    eprintln!("{message}");
                    last_message = message;
                }
            }
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
