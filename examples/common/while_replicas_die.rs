//! Lets replicas fail while an example works in the foreground.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use dominoes_netstack::Stack;

use crate::program::Outcome;
use crate::stack::killer::Killer;

/// Calls `work`; meanwhile `killer`, if any, lets replicas of the stack fail.
pub(crate) fn while_replicas_die(
    stack: &Stack,
    killer: Option<Killer>,
    work: impl FnOnce() -> Outcome<()>,
) -> Outcome<()> {
    let Some(mut killer) = killer else {
        return work();
    };
    let (stop, stopped) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while stopped.recv_timeout(killer.look(stack)) == Err(RecvTimeoutError::Timeout) {}
        });
        let done = work();
        drop(stop);
        done
    })
}
