//! Lets a thread that waits for a socket drive the stack meanwhile.

use core::time::Duration;
use std::sync::Arc;
use std::time;

use dominoes::EventCount;
use dominoes_drivers::Beside;

use crate::io::world::World;

/// The only active worker of a stack. A thread that waits may drive it: run its turns, and sleep in
/// the device.
pub(crate) trait Driven: Send + Sync {
    /// Drives until `wait` is over. Returns false if this thread cannot drive (any more).
    fn drive(&self, wait: &mut Wait<'_>) -> bool;

    /// Runs a turn if no thread drives at this moment, but one did just before.
    fn pass(&self);

    /// Notes that a thread waits and does not drive, until [`end_wait`](Self::end_wait).
    fn begin_wait(&self);

    /// See [`begin_wait`](Self::begin_wait).
    fn end_wait(&self);
}

/// Bytes of payload in a full frame. Threads whose frames are full leave the driving to others; a
/// thread that answers many small requests does more if it drives.
pub(crate) const FULL: u64 = 1_000;

/// The end of a wait.
pub(crate) struct Wait<'a> {
    /// Notified of news, which may come from threads that do not drive. `None`: such threads wake
    /// the pump.
    pub(crate) event: Option<&'a EventCount>,
    /// When the time of the call is over.
    pub(crate) until: Option<time::Instant>,
    /// Ends the wait when it is readable.
    pub(crate) beside: Option<Beside<'a>>,
    /// The mean payload of a frame, in bytes, from which on the thread leaves the driving of a stack
    /// without pauses to the worker's own thread: it works on the bytes that it waits for, so two
    /// cores do more. `None`: it never does.
    pub(crate) leaves: Option<u64>,
    /// Whether the thread need not wait any more.
    pub(crate) is_over: &'a mut dyn FnMut() -> bool,
}

impl Wait<'_> {
    /// How long to wait yet; `None` without limit.
    pub(crate) fn left(&self, now: time::Instant) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(now))
    }
}

/// A thread that waits without driving.
pub struct Waits(Arc<dyn Driven>);

impl Waits {
    pub(crate) fn new(driven: &Arc<dyn Driven>) -> Waits {
        driven.begin_wait();
        Waits(Arc::clone(driven))
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.end_wait();
    }
}

impl World {
    /// The worker that waiting threads may drive.
    pub(crate) fn driven(&self) -> Option<Arc<dyn Driven>> {
        self.driven.get()?.upgrade()
    }

    /// Notes that this thread waits without driving, until the result is dropped.
    pub(crate) fn wait_without(&self) -> Option<Waits> {
        self.driven().as_ref().map(Waits::new)
    }
}
