//! How long calls wait.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::now;
use crate::error::SocketError;
use crate::io::world::{SocketTable, World};

/// How long the calls of a socket wait. Default: for ever.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WaitPolicy {
    pub(super) nonblocking: bool,
    pub(super) timeout: Option<Duration>,
}

/// How long one call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitUntil {
    Now,
    At(Instant),
    Never,
}

impl WaitPolicy {
    /// Sets the timeout.
    pub(super) fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        if timeout == Some(Duration::ZERO) {
            return Err(SocketError::Invalid);
        }
        self.timeout = timeout;
        Ok(())
    }

    /// A call begins.
    pub(super) fn begin(&self) -> WaitUntil {
        match self.timeout {
            _ if self.nonblocking => WaitUntil::Now,
            Some(timeout) => WaitUntil::after(timeout),
            None => WaitUntil::Never,
        }
    }
}

impl WaitUntil {
    pub(crate) fn after(timeout: Duration) -> WaitUntil {
        now()
            .checked_add(timeout)
            .map_or(WaitUntil::Never, WaitUntil::At)
    }

    /// How long the call may go on waiting; `None`: for ever.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`]: not any more.
    pub(crate) fn left(self) -> Result<Option<Duration>, SocketError> {
        match self {
            WaitUntil::Now => Err(SocketError::WouldBlock),
            WaitUntil::Never => Ok(None),
            WaitUntil::At(end) => match end.saturating_duration_since(now()) {
                Duration::ZERO => Err(SocketError::WouldBlock),
                left => Ok(Some(left)),
            },
        }
    }
}

/// Waits for news of opening, listening and accepting.
pub(super) fn wait_for_socket_table<'a>(
    world: &'a World,
    table: MutexGuard<'a, SocketTable>,
    left: Option<Duration>,
) -> MutexGuard<'a, SocketTable> {
    let changed = &world.shared.socket_table_changed;
    match left {
        None => changed.wait(table).unwrap_or_else(PoisonError::into_inner),
        Some(left) => {
            let waited = changed.wait_timeout(table, left);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}
