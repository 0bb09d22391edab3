//! Waiting for several event counts at once. A context with many sources sleeps on a wait set.
//!
//! # Why no wake-up is lost
//!
//! A [`WaitSet`] has its own event count, on which its thread sleeps. With each of its sources it
//! behaves like a waiter of one [`EventCount`]: it counts itself as a waiter, passes a SeqCst
//! fence, checks, and joins the list of sleepers, with its event count in place of a thread.
//!
//! 1. One fence serves all sources, since it comes after all the counting and before the check. So
//!    the argument of [`EventCount`] holds for each source separately. A notifier that does not
//!    see the waiter made its change before the check. A notifier that sees the waiter advances
//!    the epoch of the source: either before the set is on the list, in which case
//!    [`WaitSet::wait`] notices, or after, in which case it finds the set on the list and advances
//!    the epoch of the set's event count.
//! 2. The thread also counted itself as a waiter of its own event count before the fence. It parks
//!    only if that epoch has not changed since, and a notifier that advances it later finds the
//!    thread on the list.
//! 3. A set leaves a source under the lock of that source's list. A notifier that removed it
//!    earlier may advance the epoch of the set later, at worst during the set's next wait, which
//!    then ends spuriously.
//!
//! The thread is on one list of threads, so it is unparked once per wait, however many sources
//! notify. A notifier pays a fence and a load of one count, whether its channel is in a set or
//! not, and takes a lock only while a thread does its last check or sleeps. The set pays two locks
//! per source and sleep.

use crate::{
    EventCount, Wait,
    sync::{Arc, Ordering, fence},
    wait::Sleeper,
};
use crossbeam_utils::CachePadded;
use std::{ops::Deref, sync::atomic::AtomicU64, time::Instant};

/// An [`EventCount`] that notifiers and waiters share, and that can be added to a [`WaitSet`]. A
/// clone is another handle of the same event count.
#[derive(Debug, Clone)]
pub struct WakeSource(Arc<CachePadded<WaitSetShared>>);

#[derive(Debug)]
struct WaitSetShared {
    event: EventCount,
    /// Orders the sources of a set. (Addresses would do, but differ between runs of a model.)
    number: u64,
}

static SOURCES: AtomicU64 = AtomicU64::new(0);

impl WakeSource {
    /// A new event count.
    pub fn new() -> Self {
        WakeSource(Arc::new(CachePadded::new(WaitSetShared {
            event: EventCount::new(),
            number: SOURCES.fetch_add(1, Ordering::Relaxed),
        })))
    }

    /// Whether both are handles of the same event count.
    pub(crate) fn is(&self, other: &WakeSource) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn number(&self) -> u64 {
        self.0.number
    }
}

impl Default for WakeSource {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for WakeSource {
    type Target = EventCount;

    #[inline(always)]
    fn deref(&self) -> &EventCount {
        &self.0.event
    }
}

/// How a thread may sleep.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SleepMode {
    /// The sources of the set notify of everything that it waits for.
    #[default]
    OnSources,
    /// The only domain sleeps by itself.
    ByDomain,
    /// The set waits for something that does not notify.
    NeverSleep,
}

/// The sources for which an idle thread waits: any number of [`WakeSource`]s, and a deadline.
///
/// A [`Context`](crate::Context) has one. While its domains are idle, it asks each of them for its
/// [wake sources](crate::Domain::wake_sources), checks them once more, and sleeps. Your own thread
/// can do the same:
///
/// ```
/// use dominoes::{NoBatch, Park, WaitSet, channel};
///
/// let (mut left, left_log) = channel::<u32, Park>(8);
/// let (right, right_log) = channel::<u32, Park>(8);
/// let mut subscriptions = [left_log.subscribe()?, right_log.subscribe()?];
/// let publisher = std::thread::spawn(move || {
///     left.publish(7).unwrap();
///     drop((left, right));
/// });
///
/// let mut set = WaitSet::new();
/// let (mut sum, mut open) = (0, 2);
/// while open > 0 {
///     subscriptions.iter().for_each(|subscription| subscription.wake_sources(&mut set));
///     set.prepare();
///     open = 2;
///     let mut found = false;
///     for subscription in &mut subscriptions {
///         match subscription.try_next_batch() {
///             Ok(batch) => (sum, found) = (sum + batch.iter().map(|(_, n)| n).sum::<u32>(), true),
///             Err(NoBatch::Empty) => {}
///             Err(_) => open -= 1,
///         }
///     }
///     if !found && open == 2 {
///         set.wait(); // until either of them has news
///     }
///     set.clear();
/// }
/// assert_eq!(sum, 7);
/// # publisher.join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct WaitSet {
    /// The event count on which the thread sleeps, and its epoch when the set was prepared.
    own: WakeSource,
    epoch: u64,
    /// The sources, each with its epoch when the set was prepared.
    sources: Vec<(WakeSource, u64)>,
    deadline: Option<Instant>,
    sleep_mode: SleepMode,
    prepared: bool,
}

impl WaitSet {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty set whose thread sleeps on `own`; no other set may use it.
    pub(crate) fn on(own: &WakeSource) -> Self {
        let mut set = Self::default();
        set.own = own.clone();
        set
    }

    /// The event count on which the thread of this set sleeps. Notifying it ends the wait. Do not
    /// add it.
    pub fn wake_source(&self) -> &WakeSource {
        &self.own
    }

    /// Adds a source; notifying it ends the wait. A source that is added twice counts once.
    ///
    /// # Panics
    /// If the set is already prepared.
    pub fn add(&mut self, source: &WakeSource) {
        assert!(!self.prepared, "a set that is prepared takes no source");
        self.sources.push((source.clone(), 0));
    }

    /// Adds the source of a wait strategy, if it has one.
    pub(crate) fn add_strategy(&mut self, strategy: &impl Wait) {
        match strategy.wake_source() {
            Some(source) => self.add(source),
            None => self.unknown(),
        }
    }

    /// Adds a moment that ends the wait. The earliest one counts.
    pub fn until(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |now| now.min(deadline)));
    }

    /// Records that the thread waits for something that notifies no source of the set. A context
    /// with such a set does not sleep, but yields the core between checks.
    pub fn unknown(&mut self) {
        self.sleep_mode = SleepMode::NeverSleep;
    }

    /// Records that the domain sleeps by itself, in [`Domain::park`](crate::Domain::park). In a
    /// context with other domains this is equivalent to [`unknown`](Self::unknown).
    pub fn by_itself(&mut self) {
        self.sleep_mode = self.sleep_mode.max(SleepMode::ByDomain);
    }

    /// Whether the set contains everything that can end the wait.
    pub fn is_complete(&self) -> bool {
        self.sleep_mode == SleepMode::OnSources
    }

    /// Whether a domain sleeps by itself, and no source is [unknown](Self::unknown).
    pub(crate) fn is_by_itself(&self) -> bool {
        self.sleep_mode == SleepMode::ByDomain
    }

    /// The earliest moment that ends the wait, if any.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Number of sources. Until the set is prepared, a source counts as often as it was added.
    pub fn len(&self) -> usize {
        self.sources.len()
    }

    /// Whether there are no sources.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Registers with every source. Check all conditions after this and before
    /// [`wait`](Self::wait).
    pub fn prepare(&mut self) {
        if self.prepared {
            return;
        }
        self.sources
            .sort_unstable_by_key(|(source, _)| source.number());
        self.sources.dedup_by_key(|(source, _)| source.number());
        self.prepared = true;
        self.epoch = self.own.announce();
        for (source, epoch) in &mut self.sources {
            *epoch = source.announce();
        }
        // ORDERING: SeqCst fence, pairs with the one in `EventCount::notify_all`, for each source:
        // either the caller's next check sees the change made before that fence, or the notifier's
        // load of `waiters` sees this registration.
        fence(Ordering::SeqCst);
    }

    /// Whether a thread that has prepared this set may sleep on it even though its sources are now
    /// `latest`.
    pub(crate) fn covers(&self, latest: &WaitSet) -> bool {
        let holds = |source: &WakeSource| {
            let place = |(held, _): &(WakeSource, u64)| held.number().cmp(&source.number());
            self.sources.binary_search_by(place).is_ok()
        };
        let in_time = match (self.deadline, latest.deadline) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(held), Some(wanted)) => held <= wanted,
        };
        self.prepared
            && latest.is_complete()
            && in_time
            && latest.sources.iter().all(|(source, _)| holds(source))
    }

    /// Sleeps until a source is notified after [`prepare`](Self::prepare), or until the deadline.
    /// False after the deadline. Removes the registrations.
    ///
    /// May also return true spuriously (after a stray [`unpark`](std::thread::Thread::unpark) of
    /// the thread), so check again.
    ///
    /// # Panics
    /// If the set is not prepared, since a change before the registration would be missed.
    pub fn wait(&mut self) -> bool {
        assert!(self.prepared, "a set is prepared before the last look");
        let me = || Sleeper::Set(self.own.clone());
        let mut sources = self.sources.iter();
        let late = sources.position(|(source, epoch)| !source.enlist(*epoch, me()));
        let listed = &self.sources[..late.unwrap_or(self.sources.len())];
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let mut woken = late.is_some() || self.own.sleep(self.epoch, self.deadline.map(left));
        for (source, epoch) in listed {
            woken |= source.delist(*epoch, &me());
        }
        self.withdraw();
        woken
    }

    fn withdraw(&mut self) {
        if std::mem::take(&mut self.prepared) {
            self.own.withdraw();
            self.sources
                .iter()
                .for_each(|(source, _)| source.withdraw());
        }
    }

    /// Removes the registrations and all sources.
    pub fn clear(&mut self) {
        self.withdraw();
        self.sources.clear();
        self.deadline = None;
        self.sleep_mode = SleepMode::OnSources;
    }
}

impl Drop for WaitSet {
    fn drop(&mut self) {
        self.withdraw();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_notification_of_any_source_between_prepare_and_wait_ends_the_wait() {
        for notified in 0..3 {
            let sources = [(); 3].map(|()| WakeSource::new());
            let mut set = WaitSet::new();
            sources
                .iter()
                .chain(&sources)
                .for_each(|source| set.add(source));
            set.prepare();
            assert_eq!(set.len(), 3, "each counts once");
            assert!(sources.iter().all(|source| source.waiters() == 1));
            sources[notified].notify_all();
            assert!(set.wait());
            set.prepare();
            set.wake_source().notify_all();
            assert!(set.wait());
            assert!(sources.iter().all(|source| source.waiters() == 0));
            assert!(sources.iter().all(|source| source.sleepers() == 0));
        }
    }

    #[test]
    fn a_deadline_ends_the_wait_and_leaves_no_registration() {
        let source = WakeSource::new();
        let mut set = WaitSet::new();
        set.add(&source);
        set.until(Instant::now() + Duration::from_secs(3600));
        set.until(Instant::now() - Duration::from_millis(1));
        set.prepare();
        assert!(!set.wait());
        assert_eq!((source.waiters(), source.sleepers()), (0, 0));
    }

    #[test]
    fn a_set_that_is_dropped_or_cleared_leaves_no_registration() {
        let source = WakeSource::new();
        let mut set = WaitSet::new();
        set.add(&source);
        set.prepare();
        set.clear();
        assert_eq!((source.waiters(), set.len()), (0, 0));
        set.add(&source);
        set.prepare();
        drop(set);
        assert_eq!(source.waiters(), 0);
    }

    #[test]
    fn a_set_covers_what_it_holds_and_no_more() {
        let sources = [(); 3].map(|()| WakeSource::new());
        let soon = Instant::now();
        let set_of = |held: &[&WakeSource], deadline: Option<Instant>| {
            let mut set = WaitSet::new();
            held.iter().for_each(|source| set.add(source));
            deadline
                .into_iter()
                .for_each(|deadline| set.until(deadline));
            set
        };
        let [a, b, c] = &sources;
        let mut set = set_of(&[b, a], Some(soon));
        assert!(!set.covers(&set_of(&[a], None)), "it is not prepared");
        set.prepare();
        assert!(set.covers(&set_of(&[a, b, b], Some(soon))));
        assert!(set.covers(&set_of(&[], None)));
        assert!(!set.covers(&set_of(&[a, c], None)));
        assert!(!set.covers(&set_of(&[a], Some(soon - Duration::from_millis(1)))));
        let mut unknown = set_of(&[a], None);
        unknown.unknown();
        assert!(!set.covers(&unknown));
        let mut endless = set_of(&[a], None);
        endless.prepare();
        assert!(!endless.covers(&set_of(&[a], Some(soon))));
    }
}
