//! How a thread waits: strategies for both sides of a channel, and the event count behind parking.

use crate::{
    WakeSource,
    sync::{AtomicU64, AtomicUsize, Mutex, Ordering, fence, spin_loop, thread},
};
use std::{
    fmt,
    ops::DerefMut,
    time::{Duration, Instant},
};

/// Wait strategy of a channel, used by subscribers that wait for entries and by publishers that
/// wait for room.
///
/// A channel owns two values of the type, one for each side.
pub trait Wait: Default + Send + Sync + 'static {
    /// Waits until `ready` returns true (then true) or `deadline` has passed (then false).
    ///
    /// The caller has just looked in vain, so a strategy that spins pauses before it calls `ready`
    /// for the first time.
    fn wait_until(&self, deadline: Option<Instant>, ready: impl FnMut() -> bool) -> bool;

    /// Called after each change that could make somebody's `ready` true.
    fn notify(&self);

    /// What [`notify`](Self::notify) notifies, for a thread that waits for several channels at once
    /// with a [`WaitSet`](crate::WaitSet). `None` by default: this strategy wakes no thread.
    fn wake_source(&self) -> Option<&WakeSource> {
        None
    }

    /// A short pause of a thread that could go on but had better not, yet. Pauses without giving up
    /// the core by default.
    fn hesitate(&self) {
        pause();
    }
}

/// Rounds of pausing before the first yield.
const SPIN_ROUNDS: u32 = if cfg!(loom) { 0 } else { 4 };
/// Pauses between two looks, so that the line is not torn from the thread that writes it.
const PAUSES: u32 = if cfg!(loom) { 1 } else { 16 };
/// Yields before the first park.
const YIELD_ROUNDS: u32 = if cfg!(loom) { 0 } else { 16 };

/// What a reader or writer does before it looks again.
#[inline]
pub(crate) fn pause() {
    for _ in 0..PAUSES {
        spin_loop();
    }
}

#[inline]
fn passed(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// Spins without ever giving up the core. Only for threads that have a core each.
#[derive(Debug, Default)]
pub struct Spin;

impl Wait for Spin {
    #[inline]
    fn wait_until(&self, deadline: Option<Instant>, mut ready: impl FnMut() -> bool) -> bool {
        loop {
            pause();
            if ready() {
                return true;
            }
            if passed(deadline) {
                return false;
            }
        }
    }

    #[inline(always)]
    fn notify(&self) {}
}

/// Spins for a moment, then yields the core between looks.
#[derive(Debug, Default)]
pub struct SpinYield;

impl Wait for SpinYield {
    #[inline]
    fn wait_until(&self, deadline: Option<Instant>, mut ready: impl FnMut() -> bool) -> bool {
        let mut round = 0;
        loop {
            if round < SPIN_ROUNDS {
                round += 1;
                pause();
            } else {
                thread::yield_now();
            }
            if ready() {
                return true;
            }
            if passed(deadline) {
                return false;
            }
        }
    }

    #[inline(always)]
    fn notify(&self) {}

    fn hesitate(&self) {
        thread::yield_now();
    }
}

/// Spins, yields, then sleeps until it is woken. Costs the other side one fence and one load per
/// publish or release.
#[derive(Debug, Default)]
pub struct Park {
    event: WakeSource,
}

impl Wait for Park {
    fn wait_until(&self, deadline: Option<Instant>, mut ready: impl FnMut() -> bool) -> bool {
        for round in 0..SPIN_ROUNDS + YIELD_ROUNDS {
            if round < SPIN_ROUNDS {
                pause();
            } else {
                thread::yield_now();
            }
            if ready() {
                return true;
            }
            if passed(deadline) {
                return false;
            }
        }
        loop {
            let key = self.event.prepare();
            if ready() {
                return true;
            }
            let timeout = match deadline {
                None => None,
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => Some(left),
                    _ => return false,
                },
            };
            self.event.wait(key, timeout);
        }
    }

    #[inline]
    fn notify(&self) {
        self.event.notify_all();
    }

    fn wake_source(&self) -> Option<&WakeSource> {
        Some(&self.event)
    }

    fn hesitate(&self) {
        thread::yield_now();
    }
}

/// Lets threads sleep until something changes that is not guarded by a lock, without losing a
/// wake-up.
///
/// The waiter calls [`prepare`](Self::prepare), looks once more whether there is something to do,
/// and then either [`cancel`](Self::cancel)s or [`wait`](Self::wait)s. The other side changes what
/// the waiter looks at and calls [`notify_all`](Self::notify_all), which costs a fence and a load
/// while nobody waits. Either the waiter's look sees the change or the notifier sees the waiter:
/// between the two stands a sequentially consistent fence on both sides.
#[derive(Debug, Default)]
pub struct EventCount {
    /// Threads between `prepare` and the end of `wait` or `cancel`.
    waiters: AtomicUsize,
    /// Counts notifications that found a waiter.
    epoch: AtomicU64,
    sleepers: Mutex<Vec<Sleeper>>,
}

/// What notifications call for a waiter that does not sleep ([`EventCount::watch`]).
pub trait Watch: fmt::Debug + Send + Sync {
    /// Whether there is what the waiter watches for. Called by a notifier, after its change, while
    /// it holds the lock of the event count: it must not use that.
    fn is_due(&self) -> bool;

    /// Called after [`is_due`](Self::is_due) returned true. The event count has let go of it by
    /// then, so it is not called again unless it is watched again.
    fn fire(self: std::sync::Arc<Self>);
}

/// What a notification wakes.
#[derive(Debug)]
pub(crate) enum Sleeper {
    Thread(thread::Thread),
    /// Is counted among the waiters as long as it is on the list.
    Watch(std::sync::Arc<dyn Watch>),
    /// A [`WaitSet`](crate::WaitSet): the event count on which its thread sleeps.
    Set(WakeSource),
}

impl Sleeper {
    fn this_thread() -> Self {
        Sleeper::Thread(thread::current())
    }

    fn is(&self, other: &Sleeper) -> bool {
        match (self, other) {
            (Sleeper::Thread(one), Sleeper::Thread(other)) => one.id() == other.id(),
            (Sleeper::Set(one), Sleeper::Set(other)) => one.is(other),
            (Sleeper::Watch(one), Sleeper::Watch(other)) => std::sync::Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    fn wake(self) {
        match self {
            Sleeper::Thread(thread) => {
                thread.unpark();
                if cfg!(tsan) {
                    // The fence in std's `Arc` would pass for a race of whoever drops the last
                    // handle.
                    std::mem::forget(thread);
                }
            }
            Sleeper::Set(event) => event.wake(),
            Sleeper::Watch(watch) => watch.fire(),
        }
    }
}

/// A registration with an [`EventCount`]. Dropping it is the same as [`EventCount::cancel`].
#[derive(Debug)]
#[must_use = "a key registers a waiter: wait with it, or cancel it"]
pub struct Key<'a> {
    event: &'a EventCount,
    epoch: u64,
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        self.event.withdraw();
    }
}

impl EventCount {
    /// An event count nobody waits on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers the calling thread as a waiter. Look at the condition after this and before
    /// [`wait`](Self::wait).
    pub fn prepare(&self) -> Key<'_> {
        let epoch = self.announce();
        // ORDERING: SeqCst fence, pairs with the one in `notify_all`: either the caller's next look
        // sees the change made before that fence, or the notifier's load of `waiters` sees this
        // registration.
        fence(Ordering::SeqCst);
        Key { event: self, epoch }
    }

    /// Counts a waiter, which passes a SeqCst fence before its next look; returns the epoch.
    pub(crate) fn announce(&self) -> u64 {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        // ORDERING: Acquire, pairs with the Release increment in `wake`: whoever finds the
        // new epoch here also finds what was changed before it.
        self.epoch.load(Ordering::Acquire)
    }

    /// Takes [`announce`](Self::announce) back.
    pub(crate) fn withdraw(&self) {
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes the registration back: there is something to do after all.
    pub fn cancel(&self, key: Key<'_>) {
        drop(key);
    }

    /// Sleeps until a notification that came after `key` was prepared, or `timeout`; false after
    /// the timeout.
    ///
    /// May also return true for no reason (after a stray [`unpark`](std::thread::Thread::unpark) of
    /// the thread), so look again.
    pub fn wait(&self, key: Key<'_>, timeout: Option<Duration>) -> bool {
        assert!(
            std::ptr::eq(self, key.event),
            "a key belongs to the event count that made it"
        );
        self.sleep(key.epoch, timeout)
    }

    /// Parks the calling thread until a notification that came after `epoch`, or `timeout`; false
    /// after the timeout.
    pub(crate) fn sleep(&self, epoch: u64, timeout: Option<Duration>) -> bool {
        if !self.enlist(epoch, Sleeper::this_thread()) {
            return true;
        }
        let woken = match timeout {
            None => {
                thread::park();
                true
            }
            Some(timeout) => park_timeout(timeout),
        };
        self.delist(epoch, &Sleeper::this_thread()) || woken
    }

    /// Puts a sleeper on the list of those that the next notification wakes. False if a
    /// notification came after `epoch`.
    pub(crate) fn enlist(&self, epoch: u64, sleeper: Sleeper) -> bool {
        let mut sleepers = self.lock_sleepers();
        // The epoch moves under this lock only, so a notification is either seen here or finds the
        // sleeper in the list.
        let in_time = self.epoch.load(Ordering::Relaxed) == epoch;
        if in_time {
            sleepers.push(sleeper);
        }
        in_time
    }

    /// Takes a sleeper off the list, unless a notification that came after `epoch` has done so;
    /// then true.
    pub(crate) fn delist(&self, epoch: u64, sleeper: &Sleeper) -> bool {
        // ORDERING: Acquire, pairs with the Release increment in `wake`.
        if self.epoch.load(Ordering::Acquire) != epoch {
            return true;
        }
        let mut sleepers = self.lock_sleepers();
        if let Some(index) = sleepers.iter().position(|other| other.is(sleeper)) {
            sleepers.swap_remove(index);
        }
        self.epoch.load(Ordering::Relaxed) != epoch
    }

    /// Lets notifications call `watch`, until it [is due](Watch::is_due) or
    /// [taken back](Self::unwatch). Look at the condition after this: either that look sees a
    /// change, or its notifier asks `watch`. Does nothing else if it is watched already.
    pub fn watch(&self, watch: &std::sync::Arc<dyn Watch>) {
        let new = Sleeper::Watch(std::sync::Arc::clone(watch));
        let mut sleepers = self.lock_sleepers();
        if !sleepers.iter().any(|sleeper| sleeper.is(&new)) {
            self.waiters.fetch_add(1, Ordering::Relaxed);
            sleepers.push(new);
        }
        drop(sleepers);
        // ORDERING: SeqCst fence, pairs with the one in `notify_all`: either the caller's next look
        // sees the change made before that fence, or the notifier's load of `waiters` sees this
        // one. The notifier then finds it on the list: had it locked that before, its fence would
        // be the earlier one.
        fence(Ordering::SeqCst);
    }

    /// Takes [`watch`](Self::watch) back. A notifier that found it due before may still
    /// [fire](Watch::fire) it.
    pub fn unwatch(&self, watch: &std::sync::Arc<dyn Watch>) {
        let old = Sleeper::Watch(std::sync::Arc::clone(watch));
        let mut sleepers = self.lock_sleepers();
        let found = sleepers.iter().position(|sleeper| sleeper.is(&old));
        let removed = found.map(|index| sleepers.swap_remove(index));
        if removed.is_some() {
            self.waiters.fetch_sub(1, Ordering::Relaxed);
        }
        // What it holds may be dropped with it.
        drop(sleepers);
    }

    fn lock_sleepers(&self) -> impl DerefMut<Target = Vec<Sleeper>> + '_ {
        self.sleepers
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Wakes every thread that prepared before this call. Call it after changing what they look at.
    #[inline]
    pub fn notify_all(&self) {
        // ORDERING: SeqCst fence, pairs with the ones in `prepare` and `WaitSet::prepare`.
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // Mostly there is one, for which this allocates nothing.
        let (mut first, mut others) = (None, Vec::new());
        {
            let mut sleepers = self.lock_sleepers();
            // ORDERING: Release, pairs with the Acquire loads in `announce` and `delist`.
            self.epoch.fetch_add(1, Ordering::Release);
            let mut index = 0;
            while let Some(sleeper) = sleepers.get(index) {
                if let Sleeper::Watch(watch) = sleeper {
                    if !watch.is_due() {
                        index += 1;
                        continue;
                    }
                    self.waiters.fetch_sub(1, Ordering::Relaxed);
                }
                let woken = sleepers.swap_remove(index);
                if first.is_none() {
                    first = Some(woken);
                } else {
                    others.push(woken);
                }
            }
        }
        first.into_iter().chain(others).for_each(Sleeper::wake);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn sleepers(&self) -> usize {
        self.lock_sleepers().len()
    }

    /// How many threads wait or are about to, and how many watch.
    pub fn waiters(&self) -> usize {
        self.waiters.load(Ordering::Relaxed)
    }
}

/// Parks; false when the time is up.
#[cfg(not(loom))]
fn park_timeout(timeout: Duration) -> bool {
    let start = Instant::now();
    thread::park_timeout(timeout);
    start.elapsed() < timeout
}

/// loom knows no time.
#[cfg(loom)]
fn park_timeout(_timeout: Duration) -> bool {
    thread::yield_now();
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::{Arc, atomic::AtomicBool};

    #[test]
    fn a_notification_after_prepare_is_never_lost() {
        let event = Arc::new(EventCount::new());
        let flag = Arc::new(AtomicBool::new(false));
        let waiter = {
            let (event, flag) = (event.clone(), flag.clone());
            std::thread::spawn(move || {
                while !flag.load(Ordering::Acquire) {
                    let key = event.prepare();
                    if flag.load(Ordering::Acquire) {
                        event.cancel(key);
                        break;
                    }
                    event.wait(key, None);
                }
            })
        };
        std::thread::sleep(Duration::from_millis(5));
        flag.store(true, Ordering::Release);
        event.notify_all();
        waiter.join().unwrap();
        assert_eq!(event.waiters(), 0);
    }

    #[test]
    fn waiting_with_a_timeout_ends_and_leaves_the_list() {
        let event = EventCount::new();
        let key = event.prepare();
        assert!(!event.wait(key, Some(Duration::from_millis(2))));
        assert_eq!(event.waiters(), 0);
        assert_eq!(event.sleepers(), 0);
    }

    #[test]
    fn a_notification_between_prepare_and_wait_makes_wait_return_at_once() {
        let event = EventCount::new();
        let key = event.prepare();
        event.notify_all();
        assert!(event.wait(key, None));
    }
}
