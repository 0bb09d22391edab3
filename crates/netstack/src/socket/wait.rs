//! Timeouts of calls.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dominoes::EventCount;
use dominoes_drivers::Beside;

use crate::error::SocketError;
use crate::io::sleep::{Wait, now};
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
    /// `waiting`. This thread drives the stack meanwhile, if it can.
    ///
    /// # Errors
    /// As `attempt`.
    pub(super) fn retry<T, E: From<SocketError> + PartialEq>(
        self,
        world: &World,
        waiting: &EventCount,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let would_block = E::from(SocketError::WouldBlock);
        loop {
            match attempt() {
                Err(error) if error == would_block => {}
                done => return done,
            }
            self.left()?;
            let mut done = None;
            let mut is_over = || {
                done = Some(attempt())
                    .filter(|done| !matches!(done, Err(error) if *error == would_block));
                done.is_some()
            };
            self.wait(world, waiting, &mut is_over);
            if let Some(done) = done {
                return done;
            }
        }
    }

    /// Waits until `is_over`, the time is over, or there may be news, of which `event` is notified.
    /// This thread drives the stack meanwhile, if it can. The caller has seen that time is left.
    pub(super) fn wait(self, world: &World, event: &EventCount, is_over: &mut dyn FnMut() -> bool) {
        if self.drive(world, Some(event), None, Some(0), is_over) {
            return;
        }
        let _waits = world.wait_without();
        let key = event.prepare();
        if !is_over()
            && let Ok(left) = self.left()
        {
            event.wait(key, left);
        }
    }

    /// Drives the stack until `is_over`, the time is over, or `beside` is readable. Returns false
    /// if this thread cannot. `leaves` as in [`Wait`].
    pub(super) fn drive(
        self,
        world: &World,
        event: Option<&EventCount>,
        beside: Option<Beside<'_>>,
        leaves: Option<u64>,
        is_over: &mut dyn FnMut() -> bool,
    ) -> bool {
        let until = match self {
            WaitUntil::Now => return false,
            WaitUntil::At(end) => Some(end),
            WaitUntil::Never => None,
        };
        let mut wait = Wait {
            event,
            until,
            beside,
            leaves,
            is_over,
        };
        world.driven().is_some_and(|driven| driven.drive(&mut wait))
    }

    /// As [`WaitUntil::retry`], for an attempt that changes the socket table.
    ///
    /// # Errors
    /// As `attempt`.
    pub(super) fn retry_in_table<T>(
        self,
        world: &World,
        mut attempt: impl FnMut(&mut SocketTable) -> Result<T, SocketError>,
    ) -> Result<T, SocketError> {
        loop {
            match attempt(&mut world.socket_table()) {
                Err(SocketError::WouldBlock) => {}
                done => return done,
            }
            self.left()?;
            let mut done = None;
            let mut is_over = || {
                let tried = attempt(&mut world.socket_table());
                done = Some(tried).filter(|done| !matches!(done, Err(SocketError::WouldBlock)));
                done.is_some()
            };
            // Threads that change the table wake the pump, or drive.
            let drove = self.drive(world, None, None, None, &mut is_over);
            if let Some(done) = done {
                return done;
            }
            if drove {
                continue;
            }
            let _waits = world.wait_without();
            let mut table = world.socket_table();
            match attempt(&mut table) {
                Err(SocketError::WouldBlock) => {}
                done => return done,
            }
            drop(wait_for_socket_table(world, table, self.left()?));
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
