//! Lets a thread of the program that waits drive the stack.
//!
//! Such a thread takes frames from the device, processes them, and sleeps until a frame, a
//! descriptor of the program or a timer wakes it. So a request needs one wake-up, as with the
//! kernel, and its answer leaves when the program waits again.
//!
//! The stack chooses the thread (`stack/handover.rs` of `dominoes-netstack`), as long as one
//! replica works: one thread of the program that waits, or else its own. A thread that may not
//! drive waits in the kernel, for its [mirrors](crate::mirror).
//!
//! A signal handler that ends the wait of a call by `longjmp` takes the stack with it; then nothing
//! drives any more.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{LazyLock, OnceLock};
use std::thread;
use std::time::Instant;

use dominoes_netstack::Sockets;
use dominoes_netstack::poller::direct::{Driver, Waits};
use libc::pollfd;

use crate::stack;
use crate::sys;

/// After this time without a turn, a call drives the stack in passing.
const STALE: u64 = 100_000;
/// The longest sleep of a thread that may be cancelled.
const CANCELLABLE: Duration = Duration::from_secs(1);
/// How long the end of the process waits for the stack.
const PATIENCE: Duration = Duration::from_secs(5);

static DRIVER: OnceLock<Driver> = OnceLock::new();
static START: LazyLock<Instant> = LazyLock::new(Instant::now);
/// When a thread of the program last drove, in nanoseconds since the start.
static LAST: AtomicU64 = AtomicU64::new(0);
/// How many threads of the program drive, or try to.
static DRIVING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Descriptors for which the device waits, too, while this thread sleeps in it.
    static BESIDE: Cell<(*mut pollfd, usize)> = const { Cell::new((core::ptr::null_mut(), 0)) };
    /// The result of that sleep.
    static SLEPT: Cell<Slept> = const { Cell::new(Slept::Other) };
    /// Whether this thread is within the stack's choice of a thread; a signal handler then is not.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// Whether a mirror has changed since this thread has looked.
    static HAS_CHANGED: Cell<bool> = const { Cell::new(false) };
}

/// How a sleep in the device ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slept {
    /// One of the descriptors beside the device is ready.
    Beside,
    /// A signal handler has run.
    Interrupted,
    /// By the device, a waker or the time.
    Other,
}

/// How a thread of the program has waited.
pub(crate) enum Waited<R> {
    Found(R),
    TimedOut,
    Interrupted,
}

/// Lets threads that wait drive the stack of these sockets from now on.
pub(crate) fn start(sockets: &Sockets) {
    if let Some(driver) = Driver::new(sockets) {
        let _ = DRIVER.set(driver);
    }
}

/// Makes the threads of the program return the stack at the end of the process, and not take it
/// again as long as the result exists. `None`: one has not returned it in time.
pub(crate) fn end() -> Option<impl Drop> {
    let until = Instant::now() + PATIENCE;
    let waits = driver().and_then(Driver::wait_without);
    // ORDERING: Relaxed: the stack's own lock orders the rest.
    while DRIVING.load(Ordering::Relaxed) > 0 {
        if IS_INSIDE.get() || Instant::now() > until {
            stack::say("the stack is busy, so its connections end without a FIN");
            return None;
        }
        thread::sleep(Duration::from_micros(50));
    }
    Some(Sleeper(waits))
}

/// Notes that a mirror shows another state than before.
pub(crate) fn note_change() {
    HAS_CHANGED.set(true);
}

/// The descriptors for which the device of this thread waits, too; once.
pub(crate) fn take_beside() -> Option<(*mut pollfd, usize)> {
    let (fds, count) = BESIDE.replace((core::ptr::null_mut(), 0));
    (!fds.is_null()).then_some((fds, count))
}

/// Notes how a sleep in the device ended.
pub(crate) fn note_sleep(slept: Slept) {
    SLEPT.set(slept);
}

/// The stack that this thread may drive.
fn driver() -> Option<&'static Driver> {
    DRIVER
        .get()
        .filter(|_| !stack::is_fork() && !IS_INSIDE.get())
}

/// Runs `call`, during which a signal handler of this thread does not drive.
fn inside<R>(call: impl FnOnce() -> R) -> R {
    IS_INSIDE.set(true);
    let result = call();
    IS_INSIDE.set(false);
    result
}

/// Runs a call that waits in the kernel for a socket of ours.
pub(crate) fn beside<R>(call: impl FnOnce() -> R) -> R {
    let _waits = driver().map(|driver| Sleeper(inside(|| driver.wait_without())));
    call()
}

/// A thread that waits in the kernel, until it returns or is cancelled.
struct Sleeper(Option<Waits>);

impl Drop for Sleeper {
    fn drop(&mut self) {
        inside(|| self.0 = None);
    }
}

/// Drives the stack until `check` returns something. Sleeps until there is news, or one of `fds` is
/// ready. Looks after each turn if `is_cheap`, else only if a mirror has changed. `check` gets
/// `fds`, which say after a sleep what is ready.
///
/// `Err`: this thread cannot drive any more, and must wait in the kernel for the rest of the time.
pub(crate) fn wait<R>(
    fds: &mut [pollfd],
    timeout: Option<Duration>,
    is_cheap: bool,
    mut check: impl FnMut(&[pollfd]) -> Option<R>,
) -> Result<Waited<R>, Option<Duration>> {
    let driver = driver().ok_or(timeout)?;
    // The stack worked just now, so a look may do.
    if is_cheap
        && !is_stale()
        && let Some(found) = check(fds)
    {
        return Ok(Waited::Found(found));
    }
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        HAS_CHANGED.set(true);
        let could_end = sys::forbid_cancellation();
        let bound = could_end.then(|| Instant::now() + CANCELLABLE);
        let (mut found, mut slept) = (None, Slept::Other);
        let mut is_over = || {
            slept = SLEPT.replace(Slept::Other);
            if HAS_CHANGED.replace(false) || is_cheap || slept == Slept::Beside {
                found = check(fds);
            }
            // For the next sleep.
            BESIDE.set((fds.as_mut_ptr(), fds.len()));
            found.is_some() || slept != Slept::Other
        };
        DRIVING.fetch_add(1, Ordering::Relaxed);
        let sooner = until.into_iter().chain(bound).min();
        let has_driven = inside(|| driver.drive(sooner, &mut is_over));
        DRIVING.fetch_sub(1, Ordering::Relaxed);
        BESIDE.set((core::ptr::null_mut(), 0));
        LAST.store(nanos(), Ordering::Relaxed);
        sys::restore_cancellation(could_end);
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match (found, slept) {
            (Some(found), _) => return Ok(Waited::Found(found)),
            (None, Slept::Interrupted) => return Ok(Waited::Interrupted),
            // `poll` reports a descriptor for which the program does not wait.
            (None, Slept::Beside) => return Err(left),
            (None, Slept::Other) if !has_driven => return Err(left),
            (None, Slept::Other) if left.is_some_and(|left| left.is_zero()) => {
                return Ok(Waited::TimedOut);
            }
            (None, Slept::Other) => sys::end_if_cancelled(),
        }
    }
}

/// Drives the stack if no thread did so for a while, since a call may have made work for it.
pub(crate) fn pass() {
    let Some(driver) = driver() else { return };
    if !is_stale() {
        return;
    }
    LAST.store(nanos(), Ordering::Relaxed);
    let could_end = sys::forbid_cancellation();
    inside(|| driver.pass());
    sys::restore_cancellation(could_end);
}

/// Whether no thread of the program has driven for a while.
fn is_stale() -> bool {
    nanos().saturating_sub(LAST.load(Ordering::Relaxed)) >= STALE
}

fn nanos() -> u64 {
    START.elapsed().as_nanos() as u64
}
