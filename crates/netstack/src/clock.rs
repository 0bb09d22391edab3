//! The clock of stacks that run on threads.

use std::time;

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the stack looks at a clock; sockets ask here how long they have waited"
)]
pub(crate) fn now() -> time::Instant {
    time::Instant::now()
}
