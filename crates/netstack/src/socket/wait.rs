//! How long calls wait.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::world::{Desk, World};
use crate::error::SocketError;
use crate::stack::now;

/// How long the calls of a socket wait. Default: for ever.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience {
    pub(super) nonblocking: bool,
    pub(super) timeout: Option<Duration>,
}

/// How long one call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Now,
    At(Instant),
    Never,
}

impl Patience {
    /// Sets the timeout.
    pub(super) fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        if timeout == Some(Duration::ZERO) {
            return Err(SocketError::Invalid);
        }
        self.timeout = timeout;
        Ok(())
    }

    /// A call begins.
    pub(super) fn begin(&self) -> Until {
        match self.timeout {
            _ if self.nonblocking => Until::Now,
            Some(timeout) => Until::after(timeout),
            None => Until::Never,
        }
    }
}

impl Until {
    pub(crate) fn after(timeout: Duration) -> Until {
        now().checked_add(timeout).map_or(Until::Never, Until::At)
    }

    /// How long the call may go on waiting; `None`: for ever.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`]: not any more.
    pub(crate) fn left(self) -> Result<Option<Duration>, SocketError> {
        match self {
            Until::Now => Err(SocketError::WouldBlock),
            Until::Never => Ok(None),
            Until::At(end) => match end.saturating_duration_since(now()) {
                Duration::ZERO => Err(SocketError::WouldBlock),
                left => Ok(Some(left)),
            },
        }
    }
}

/// Waits for news of opening, listening and accepting.
pub(super) fn wait_at_desk<'a>(
    world: &'a World,
    desk: MutexGuard<'a, Desk>,
    left: Option<Duration>,
) -> MutexGuard<'a, Desk> {
    let bell = &world.front.bell;
    match left {
        None => bell.wait(desk).unwrap_or_else(PoisonError::into_inner),
        Some(left) => {
            let waited = bell.wait_timeout(desk, left);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}
