//! Timeouts of calls.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dominoes::EventCount;

use crate::clock::now;
use crate::error::SocketError;
use crate::io::world::{SocketTable, World};

/// How long the calls of a socket wait. Default: without limit.
#[derive(Debug, Default)]
pub(super) struct WaitPolicy {
    nonblocking: AtomicBool,
    /// In nanoseconds; 0: no timeout.
    timeout: AtomicU64,
}

/// How long one call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitUntil {
    Now,
    At(Instant),
    Never,
}

impl WaitPolicy {
    /// Whether calls do not wait at all.
    pub(super) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Sets the timeout.
    pub(super) fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), SocketError> {
        if timeout == Some(Duration::ZERO) {
            return Err(SocketError::Invalid);
        }
        let nanos = timeout.map_or(0, |timeout| {
            u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)
        });
        self.timeout.store(nanos, Ordering::Relaxed);
        Ok(())
    }

    /// The timeout.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let nanos = self.timeout.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// Starts the timeout of a call.
    pub(super) fn begin(&self) -> WaitUntil {
        if self.nonblocking.load(Ordering::Relaxed) {
            return WaitUntil::Now;
        }
        self.timeout().map_or(WaitUntil::Never, WaitUntil::after)
    }
}

impl WaitUntil {
    pub(crate) fn after(timeout: Duration) -> WaitUntil {
        now()
            .checked_add(timeout)
            .map_or(WaitUntil::Never, WaitUntil::At)
    }

    /// Waits at most until `deadline`.
    #[cfg(feature = "rustls")]
    pub(super) fn before(self, deadline: Option<Instant>) -> WaitUntil {
        match (self, deadline) {
            (WaitUntil::At(end), Some(deadline)) => WaitUntil::At(end.min(deadline)),
            (WaitUntil::Never, Some(deadline)) => WaitUntil::At(deadline),
            (until, _) => until,
        }
    }

    /// How long the call may still wait; `None`: without limit.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`]: it may not wait. [`SocketError::WaitedTooLong`]: its time is
    /// over.
    pub(crate) fn left(self) -> Result<Option<Duration>, SocketError> {
        match self {
            WaitUntil::Now => Err(SocketError::WouldBlock),
            WaitUntil::Never => Ok(None),
            WaitUntil::At(end) => match end.saturating_duration_since(now()) {
                Duration::ZERO => Err(SocketError::WaitedTooLong),
                left => Ok(Some(left)),
            },
        }
    }

    /// Repeats `attempt` until it need not wait, or the time is over. Notifications arrive at
    /// `waiting`.
    ///
    /// # Errors
    /// As `attempt`.
    pub(super) fn retry<T, E: From<SocketError> + PartialEq>(
        self,
        waiting: &EventCount,
        attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        self.retry_after(|| {}, waiting, attempt)
    }

    /// As [`WaitUntil::retry`], but `waiting` is notified only after each call of `prepare`.
    ///
    /// # Errors
    /// As `attempt`.
    pub(super) fn retry_after<T, E: From<SocketError> + PartialEq>(
        self,
        prepare: impl Fn(),
        waiting: &EventCount,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let would_block = E::from(SocketError::WouldBlock);
        loop {
            match attempt() {
                Err(error) if error == would_block => {}
                done => return done,
            }
            let left = self.left()?;
            prepare();
            let key = waiting.prepare();
            match attempt() {
                Err(error) if error == would_block => {
                    waiting.wait(key, left);
                }
                done => return done,
            }
        }
    }
}

/// Waits for a change of opening, listening or accepting.
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
