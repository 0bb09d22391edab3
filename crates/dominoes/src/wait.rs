//! Ways to wait: strategies for both sides of a channel, and the event count used for parking.

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
    /// Waits until `ready` returns true (returns true) or `deadline` has passed (returns false).
    ///
    /// The caller has just checked in vain, so a strategy that spins pauses before it calls
    /// `ready` for the first time.
    fn wait_until(&self, deadline: Option<Instant>, ready: impl FnMut() -> bool) -> bool;

    /// Called after each change that could make a waiter's `ready` return true.
    fn notify(&self);

    /// The source that [`notify`](Self::notify) notifies, for a thread that waits for several
    /// channels at once with a [`WaitSet`](crate::WaitSet). `None` by default: this strategy wakes
    /// no thread.
    fn wake_source(&self) -> Option<&WakeSource> {
        None
    }

    /// A short pause of a thread that could continue but should not yet. By default it does not
    /// give up the core.
    fn hesitate(&self) {
        pause();
    }
}

/// Rounds of pausing before the first yield.
const SPIN_ROUNDS: u32 = if cfg!(loom) { 0 } else { 4 };
/// Pauses between two checks, so that the cache line stays with the thread that writes it.
const PAUSES: u32 = if cfg!(loom) { 1 } else { 16 };
/// Yields before the first park.
const YIELD_ROUNDS: u32 = if cfg!(loom) { 0 } else { 16 };

/// Pauses before a reader or writer checks again.
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

/// Spins without ever giving up the core. Only for threads with a core of their own.
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

/// Spins for a moment, then yields the core between checks.
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

/// Spins, yields, then sleeps until woken. Costs the other side one fence and one load per publish
/// or release.
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

/// Lets threads sleep until data changes that is not guarded by a lock, without losing a wake-up.
///
/// The waiter calls [`prepare`](Self::prepare), checks its condition once more, and then calls
/// either [`cancel`](Self::cancel) or [`wait`](Self::wait). The other side changes the data of the
/// condition and calls [`notify_all`](Self::notify_all), which costs a fence and a load while no
/// thread waits. Either the waiter's check sees the change or the notifier sees the waiter,
/// because both sides have a sequentially consistent fence between their two steps.
#[derive(Debug, Default)]
pub struct EventCount {
    /// Threads between `prepare` and the end of `wait` or `cancel`.
    waiters: AtomicUsize,
    /// Counts notifications that found a waiter.
    epoch: AtomicU64,
    sleepers: Mutex<Vec<Sleeper>>,
}

/// A callback for notifications, for a waiter that does not sleep ([`EventCount::watch`]).
pub trait Watch: fmt::Debug + Send + Sync {
    /// Whether the awaited condition holds. A notifier calls this after its change, while it holds
    /// the lock of the event count, so this must not use the event count.
    fn is_due(&self) -> bool;

    /// Called after [`is_due`](Self::is_due) returned true. The event count has removed the watch
    /// by then, so this is not called again unless it is watched again.
    fn fire(self: std::sync::Arc<Self>);
}

/// The target of a notification.
#[derive(Debug)]
pub(crate) enum Sleeper {
    Thread(thread::Thread),
    /// Counts as a waiter as long as it is on the list.
    Watch(std::sync::Arc<dyn Watch>),
    /// A [`WaitSet`](crate::WaitSet): contains the event count on which its thread sleeps.
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
                    // ThreadSanitizer would report the fence in std's `Arc` as a race with the
                    // thread that drops the last handle.
                    std::mem::forget(thread);
                }
            }
            Sleeper::Set(event) => event.wake(),
            Sleeper::Watch(watch) => watch.fire(),
        }
    }
}

/// A registration with an [`EventCount`]. Dropping it is equivalent to [`EventCount::cancel`].
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
    /// An event count without waiters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers the calling thread as a waiter. Check the condition after this and before
    /// [`wait`](Self::wait).
    pub fn prepare(&self) -> Key<'_> {
        let epoch = self.announce();
        // ORDERING: SeqCst fence, pairs with the one in `notify_all`: either the caller's next
        // check sees the change made before that fence, or the notifier's load of `waiters` sees
        // this registration.
        fence(Ordering::SeqCst);
        Key { event: self, epoch }
    }

    /// Counts a waiter, which must pass a SeqCst fence before its next check. Returns the epoch.
    pub(crate) fn announce(&self) -> u64 {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        // ORDERING: Acquire, pairs with the Release increment in `wake`: a thread that reads the
        // new epoch here also sees the change made before it.
        self.epoch.load(Ordering::Acquire)
    }

    /// Undoes [`announce`](Self::announce).
    pub(crate) fn withdraw(&self) {
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// Removes the registration, for a waiter that found work after all.
    pub fn cancel(&self, key: Key<'_>) {
        drop(key);
    }

    /// Sleeps until a notification after `key` was prepared, or until `timeout`. False after the
    /// timeout.
    ///
    /// May also return true spuriously (after a stray [`unpark`](std::thread::Thread::unpark) of
    /// the thread), so check again.
    pub fn wait(&self, key: Key<'_>, timeout: Option<Duration>) -> bool {
        assert!(
            std::ptr::eq(self, key.event),
            "a key belongs to the event count that made it"
        );
        self.sleep(key.epoch, timeout)
    }

    /// Parks the calling thread until a notification after `epoch`, or until `timeout`. False
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

    /// Adds a sleeper to the list that the next notification wakes. False if there was a
    /// notification after `epoch`.
    pub(crate) fn enlist(&self, epoch: u64, sleeper: Sleeper) -> bool {
        let mut sleepers = self.lock_sleepers();
        // The epoch changes only under this lock, so either this sees the notification, or the
        // notification finds the sleeper on the list.
        let in_time = self.epoch.load(Ordering::Relaxed) == epoch;
        if in_time {
            sleepers.push(sleeper);
        }
        in_time
    }

    /// Removes a sleeper from the list. True if a notification after `epoch` has removed it
    /// already.
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

    /// Makes notifications call `watch`, until it [is due](Watch::is_due) or
    /// [removed](Self::unwatch). Check the condition after this: either the check sees a change,
    /// or its notifier asks `watch`. No effect if it is watched already.
    pub fn watch(&self, watch: &std::sync::Arc<dyn Watch>) {
        let new = Sleeper::Watch(std::sync::Arc::clone(watch));
        let mut sleepers = self.lock_sleepers();
        if !sleepers.iter().any(|sleeper| sleeper.is(&new)) {
            self.waiters.fetch_add(1, Ordering::Relaxed);
            sleepers.push(new);
        }
        drop(sleepers);
        // ORDERING: SeqCst fence, pairs with the one in `notify_all`: either the caller's next
        // check sees the change made before that fence, or the notifier's load of `waiters` sees
        // this watch. The notifier then finds it on the list: if it had locked the list earlier,
        // its fence would come first.
        fence(Ordering::SeqCst);
    }

    /// Undoes [`watch`](Self::watch). A notifier that found it due before may still
    /// [fire](Watch::fire) it.
    pub fn unwatch(&self, watch: &std::sync::Arc<dyn Watch>) {
        let old = Sleeper::Watch(std::sync::Arc::clone(watch));
        let mut sleepers = self.lock_sleepers();
        let found = sleepers.iter().position(|sleeper| sleeper.is(&old));
        let removed = found.map(|index| sleepers.swap_remove(index));
        if removed.is_some() {
            self.waiters.fetch_sub(1, Ordering::Relaxed);
        }
        // Drop the watch after the lock, since this may run its destructor.
        drop(sleepers);
    }

    fn lock_sleepers(&self) -> impl DerefMut<Target = Vec<Sleeper>> + '_ {
        self.sleepers
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Wakes every thread that prepared before this call. Call it after changing the data of their
    /// conditions.
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
        // Usually there is one sleeper, for which this allocates nothing.
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

    /// Number of threads that wait or are about to, plus the number of watches.
    pub fn waiters(&self) -> usize {
        self.waiters.load(Ordering::Relaxed)
    }
}

/// Parks. False when the timeout is over.
#[cfg(not(loom))]
fn park_timeout(timeout: Duration) -> bool {
    let start = Instant::now();
    thread::park_timeout(timeout);
    start.elapsed() < timeout
}

/// loom has no time.
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
