//! Chooses the thread that drives a stack of one replica.
//!
//! A thread of the program that waits drives the stack itself: it takes frames from the device,
//! processes them, and sleeps until a frame, a descriptor of the program or a timer wakes it. So a
//! request needs one wake-up, as with the kernel, and its answer leaves when the program waits
//! again.
//!
//! The stack is in a mutex. The thread that has locked it may sleep in the device; then other
//! threads wake it as they wake a thread of the stack.
//!
//! - *A thread of the program* takes the mutex in a call that waits, or in passing
//!   ([`Drive::pass`]) if no thread has driven for [`STALE`].
//! - *The deputy*, a thread of this library, drives if no thread of the program has done so for
//!   [`AWAY`]: the program computes, or waits for something else.
//! - *Several threads* that wait at a time cannot all drive. If a thread finds the mutex locked, it waits
//!   in the kernel, for its [mirrors](crate::mirror), and for [`CONTENDED`] the deputy alone drives.
//!
//! A signal handler that ends the wait of a call by `longjmp` takes the mutex with it; then nothing
//! drives any more.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{self, Thread};

use dominoes_netstack::time::Instant;
use dominoes_netstack::{ByHand, Sockets, Stack};
use libc::pollfd;

use crate::stack;
use crate::sys::{self, Kept};

/// After this time without a turn, a call drives the stack in passing.
const STALE: u64 = 100_000;
/// After this time without a turn, the deputy drives.
const AWAY: u64 = 2_000_000;
/// The time for which the deputy drives after several threads have waited.
const CONTENDED: u64 = 100_000_000;
/// The most turns without a look at what the thread waits for.
const TURNS: usize = 64;
/// The longest sleep of a thread that may be cancelled.
const CANCELLABLE: u64 = 1_000_000_000;
/// How long the end of the process waits for the stack.
const PATIENCE: Duration = Duration::from_secs(5);

static DRIVE: OnceLock<Drive> = OnceLock::new();

thread_local! {
    /// Descriptors for which the device waits, too, while this thread sleeps in it.
    static BESIDE: Cell<(*mut pollfd, usize)> = const { Cell::new((core::ptr::null_mut(), 0)) };
    /// The result of that sleep.
    static SLEPT: Cell<Slept> = const { Cell::new(Slept::Other) };
    static HAS_STACK: Cell<bool> = const { Cell::new(false) };
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

struct Drive {
    /// The stack, until the process ends.
    hand: Mutex<Option<ByHand>>,
    start: std::time::Instant,
    /// The time of the last turn, in nanoseconds since the start.
    last: AtomicU64,
    contended_until: AtomicU64,
    /// Threads that wait in the kernel for sockets of ours.
    sleepers: AtomicUsize,
    /// Threads that want the stack of the one that sleeps with it.
    wants: AtomicUsize,
    /// Wakes the one that sleeps with the stack.
    bell: Kept,
    deputy_drives: AtomicBool,
    is_deputy_parked: AtomicBool,
    deputy: OnceLock<Thread>,
}

/// Drives `hand` from now on.
///
/// # Errors
/// If the deputy cannot start.
pub(crate) fn start(hand: ByHand) -> Result<Sockets, String> {
    let sockets = hand.sockets();
    let bell = sys::event().map_err(|errno| format!("eventfd: {errno}"))?;
    let drive = Drive {
        hand: Mutex::new(Some(hand)),
        start: std::time::Instant::now(),
        last: AtomicU64::new(0),
        contended_until: AtomicU64::new(CONTENDED),
        sleepers: AtomicUsize::new(0),
        wants: AtomicUsize::new(0),
        bell,
        deputy_drives: AtomicBool::new(false),
        is_deputy_parked: AtomicBool::new(false),
        deputy: OnceLock::new(),
    };
    let drive = DRIVE.get_or_init(|| drive);
    let named = thread::Builder::new().name("dominoes-deputy".to_owned());
    let deputy = named.spawn(|| drive.stand_in());
    let deputy = deputy.map_err(|error| error.to_string())?;
    let _ = drive.deputy.set(deputy.thread().clone());
    Ok(sockets)
}

/// Takes the stack at the end of the process, and gives it threads.
pub(crate) fn end() -> Option<Stack> {
    let drive = DRIVE.get()?;
    let until = std::time::Instant::now() + PATIENCE;
    drive.wants.fetch_add(1, Ordering::Relaxed);
    sys::ring(&drive.bell);
    while std::time::Instant::now() < until {
        if let Some(mut hand) = drive.try_lock() {
            let hand = hand.take()?;
            return Stack::from_hand(hand, drive.now()).ok();
        }
        thread::sleep(Duration::from_micros(50));
    }
    stack::say("the stack is busy, so its connections end without a FIN");
    None
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

/// Runs a call that waits in the kernel for a socket of ours.
pub(crate) fn beside<R>(call: impl FnOnce() -> R) -> R {
    let Some(drive) = DRIVE.get().filter(|_| !stack::is_fork()) else {
        return call();
    };
    let until = drive.nanos() + CONTENDED;
    drive.contended_until.fetch_max(until, Ordering::Relaxed);
    // ORDERING: SeqCst, pairs with the load in `Held::drop`: either the thread that returns the
    // stack calls the deputy, or this one does.
    drive.sleepers.fetch_add(1, Ordering::SeqCst);
    if !drive.deputy_drives.load(Ordering::SeqCst) {
        drive.call_deputy();
    }
    let _sleeper = Sleeper(drive);
    call()
}

/// Counts a thread that waits in the kernel, until it returns or is cancelled.
struct Sleeper(&'static Drive);

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Drives the stack until `check` returns something. Sleeps until there is news, or one of `fds` is
/// ready. Looks after each sleep if `is_cheap`, else only if a mirror has changed.
///
/// `Err`: this thread cannot drive any more, and must wait in the kernel for the rest of the time.
pub(crate) fn wait<R>(
    fds: &mut [pollfd],
    timeout: Option<Duration>,
    is_cheap: bool,
    mut check: impl FnMut() -> Option<R>,
) -> Result<Waited<R>, Option<Duration>> {
    let drive = DRIVE.get().filter(|_| !stack::is_fork()).ok_or(timeout)?;
    let until = timeout.map(|timeout| {
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        drive.nanos().saturating_add(nanos)
    });
    loop {
        let could_end = sys::forbid_cancellation();
        let held = drive.take();
        let waited = held.map(|held| held.wait(fds, until, could_end, is_cheap, &mut check));
        sys::restore_cancellation(could_end);
        match waited {
            Some(Waited::CouldEnd) => sys::end_if_cancelled(),
            Some(Waited::Robbed) | None => {
                let left = until.map(|until| until.saturating_sub(drive.nanos()));
                return Err(left.map(Duration::from_nanos));
            }
            Some(waited) => return Ok(waited),
        }
    }
}

/// How a thread of the program has waited.
pub(crate) enum Waited<R> {
    Found(R),
    TimedOut,
    Interrupted,
    /// The thread may have been cancelled.
    CouldEnd,
    /// Another thread wants the stack.
    Robbed,
}

/// Drives the stack if no thread did so for a while, since a call may have made work for it.
pub(crate) fn pass() {
    let Some(drive) = DRIVE.get().filter(|_| !stack::is_fork()) else {
        return;
    };
    if drive
        .nanos()
        .saturating_sub(drive.last.load(Ordering::Relaxed))
        < STALE
    {
        return;
    }
    let cancels = sys::forbid_cancellation();
    if let Some(mut held) = drive.hold() {
        held.turns();
    }
    sys::restore_cancellation(cancels);
}

impl Drive {
    fn nanos(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.nanos())
    }

    fn is_contended(&self) -> bool {
        self.nanos() < self.contended_until.load(Ordering::Relaxed)
    }

    fn call_deputy(&self) {
        if let Some(deputy) = self.deputy.get() {
            deputy.unpark();
        }
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Option<ByHand>>> {
        match self.hand.try_lock() {
            Ok(hand) => Some(hand),
            Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The stack, if no thread has it.
    fn hold(&self) -> Option<Held<'_>> {
        // A signal handler may have interrupted a turn.
        if HAS_STACK.get() {
            return None;
        }
        let hand = self.try_lock()?;
        hand.is_some().then(|| {
            HAS_STACK.set(true);
            Held {
                drive: self,
                hand: Some(hand),
                is_deputy: false,
            }
        })
    }

    /// The stack, for a thread of the program that waits; the deputy returns it.
    fn take(&self) -> Option<Held<'_>> {
        if HAS_STACK.get() || self.is_contended() {
            return None;
        }
        if let Some(held) = self.hold() {
            return Some(held);
        }
        self.wants.fetch_add(1, Ordering::SeqCst);
        sys::ring(&self.bell);
        let held = loop {
            if let Some(held) = self.hold() {
                break Some(held);
            }
            if !self.deputy_drives.load(Ordering::SeqCst) {
                // A thread of the program has it.
                break None;
            }
            thread::yield_now();
        };
        self.wants.fetch_sub(1, Ordering::SeqCst);
        sys::silence(&self.bell);
        held
    }

    /// The work of the deputy.
    fn stand_in(&self) {
        loop {
            let is_needed = self.sleepers.load(Ordering::SeqCst) > 0 || self.is_contended();
            let away = self
                .nanos()
                .saturating_sub(self.last.load(Ordering::Relaxed));
            if away < AWAY && !is_needed {
                thread::park_timeout(Duration::from_nanos(AWAY));
                continue;
            }
            let Some(mut held) = self.hold() else {
                // ORDERING: SeqCst, pairs with the swap in `Held::drop`: either this thread gets
                // the stack now, or the one that returns it wakes this one.
                self.is_deputy_parked.store(true, Ordering::SeqCst);
                match self.hand.try_lock() {
                    Ok(hand) if hand.is_none() => return,
                    Ok(_) => {}
                    Err(_) => thread::park(),
                }
                self.is_deputy_parked.store(false, Ordering::SeqCst);
                continue;
            };
            held.is_deputy = true;
            self.deputy_drives.store(true, Ordering::SeqCst);
            while self.wants.load(Ordering::SeqCst) == 0 {
                if !held.turns() {
                    held.sleep(&mut [], None);
                }
            }
            drop(held);
            thread::park_timeout(Duration::from_nanos(AWAY));
        }
    }
}

/// The stack, in the hands of this thread.
struct Held<'a> {
    drive: &'a Drive,
    hand: Option<MutexGuard<'a, Option<ByHand>>>,
    is_deputy: bool,
}

impl Held<'_> {
    /// Runs turns. Returns whether there may be more to do.
    fn turns(&mut self) -> bool {
        let drive = self.drive;
        let Some(hand) = self.hand.as_mut().and_then(|hand| hand.as_mut()) else {
            return false;
        };
        let mut now = drive.now();
        // Answers questions of other threads.
        hand.admit();
        let has_more = (0..TURNS).all(|_| {
            let has_worked = hand.turn(now) > 0;
            now = drive.now();
            has_worked
        });
        drive.last.store(now.as_nanos(), Ordering::Relaxed);
        has_more
    }

    /// Sleeps in the device until there is news, or one of `fds` or the bell is ready.
    fn sleep(&mut self, fds: &mut [pollfd], until: Option<u64>) -> Slept {
        let drive = self.drive;
        let Some(hand) = self.hand.as_mut().and_then(|hand| hand.as_mut()) else {
            return Slept::Interrupted;
        };
        let mut all = Vec::with_capacity(fds.len() + 1);
        all.extend_from_slice(fds);
        all.push(pollfd {
            fd: drive.bell.number(),
            events: libc::POLLIN,
            revents: 0,
        });
        BESIDE.set((all.as_mut_ptr(), all.len()));
        SLEPT.set(Slept::Other);
        hand.wait(
            drive.now(),
            until.map_or(Instant::NEVER, Instant::from_nanos),
        );
        BESIDE.set((core::ptr::null_mut(), 0));
        fds.copy_from_slice(&all[..fds.len()]);
        SLEPT.get()
    }

    fn wait<R>(
        mut self,
        fds: &mut [pollfd],
        until: Option<u64>,
        could_end: bool,
        is_cheap: bool,
        check: &mut impl FnMut() -> Option<R>,
    ) -> Waited<R> {
        let drive = self.drive;
        HAS_CHANGED.set(true);
        let mut slept = Slept::Other;
        loop {
            let has_more = self.turns();
            if (HAS_CHANGED.replace(false) || is_cheap)
                && let Some(found) = check()
            {
                return Waited::Found(found);
            }
            let now = drive.nanos();
            if until.is_some_and(|until| until <= now) {
                return Waited::TimedOut;
            }
            if drive.wants.load(Ordering::SeqCst) > 0 {
                let until = drive.nanos() + CONTENDED;
                drive.contended_until.fetch_max(until, Ordering::Relaxed);
                return Waited::Robbed;
            }
            // `poll` reports a descriptor for which the program does not wait.
            if slept == Slept::Beside {
                return Waited::Robbed;
            }
            if has_more {
                continue;
            }
            let bound = could_end.then_some(now + CANCELLABLE);
            slept = self.sleep(fds, until.into_iter().chain(bound).min());
            match slept {
                Slept::Interrupted => return Waited::Interrupted,
                Slept::Beside => HAS_CHANGED.set(true),
                Slept::Other if bound.is_some_and(|bound| bound <= drive.nanos()) => {
                    return Waited::CouldEnd;
                }
                Slept::Other => {}
            }
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let drive = self.drive;
        drive.last.store(drive.nanos(), Ordering::Relaxed);
        if self.is_deputy {
            drive.deputy_drives.store(false, Ordering::SeqCst);
        }
        self.hand = None;
        HAS_STACK.set(false);
        if self.is_deputy {
            return;
        }
        // ORDERING: SeqCst, pairs with `beside` and `Drive::stand_in`.
        fence(Ordering::SeqCst);
        if drive.sleepers.load(Ordering::SeqCst) > 0
            || drive.is_deputy_parked.swap(false, Ordering::SeqCst)
        {
            drive.call_deputy();
        }
    }
}
