//! A domain with several subscriptions: typed state, a scheduler that chooses the subscription to
//! serve next, and handlers that return when they have to wait.
//!
//! This is the domain of C. D. Sizemore, *Parallel network protocol stacks using replication*,
//! University of New Mexico, 2011, section 3.2.4, with one difference. There, code that had to
//! wait on a semaphore called back into the scheduler from inside a request (section 4.3.1, figure
//! 4.4). So waits nested on one stack: they had to be released in the opposite order, and could
//! deadlock. Here a handler that cannot continue returns [`Handled::Wait`]. Its entry stays in
//! place and its subscription pauses, but the domain's other subscriptions and the context's other
//! domains continue. At the next turn the handler gets the entry again.

mod feed;
mod schedule;

pub use feed::{Feed, Served, Then};
pub use schedule::{FeedView, Priority, RoundRobin, Scheduler};

use crate::{
    Assignment, Domain, DomainHandle, Meter, Receive, Seq, Subscription, Turn, Wait, WaitSet,
    WakeSource, Work,
};
use feed::{ChannelFeed, LogFeed};
use std::{any::Any, fmt, io, sync::Arc};

/// A handler's result for an entry. A handler that returns nothing counts as
/// [`Done`](Handled::Done).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// The entry was handled.
    Done,
    /// The entry was handled, and this many units of work were done as its primary.
    Primary(u32),
    /// The entry was handled, and this many units of work were done in place of another primary.
    Stolen(u32),
    /// The entry has to wait: call the handler again later. The handler must not have made a
    /// change that it would then repeat.
    ///
    /// Register the source that it waits for with [`Service::with_wake_source`]. Otherwise the
    /// context does not sleep until the entry is handled, but yields the core between turns.
    Wait,
}

impl From<()> for Handled {
    fn from((): ()) -> Self {
        Handled::Done
    }
}

/// Identifies a subscription of a [`Service`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FeedId(u64);

type SubscriptionHook<S> = Box<dyn FnMut(&mut S, FeedId) + Send>;

struct FeedEntry<S> {
    feed: Box<dyn Feed<S>>,
    view: FeedView,
}

/// A domain: state, an id, subscriptions with one handler each, a scheduler, and hooks for
/// subscribing and unsubscribing.
///
/// ```
/// use dominoes::{Domain, Priority, Service, SpinYield, Turn, channel};
///
/// let (mut data, data_log) = channel::<u32, SpinYield>(8);
/// let (mut control, control_log) = channel::<&str, SpinYield>(8);
/// let mut service = Service::new(7, "adder", (0, Vec::new())).with_scheduler(Priority);
/// service.subscribe(0, data_log.subscribe()?, |state: &mut (u32, Vec<&str>), _, n: &u32| {
///     state.0 += n;
/// });
/// service.subscribe(1, control_log.subscribe()?, |state: &mut (u32, Vec<&str>), _, s: &&str| {
///     state.1.push(*s);
/// });
/// data.publish_all([1, 2, 3])?;
/// control.publish("urgent")?;
/// assert_eq!(service.run_one(), Turn::Worked);
/// assert_eq!(service.state(), &(0, vec!["urgent"]));
/// while service.run() == Turn::Worked {}
/// assert_eq!(service.state().0, 6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Service<S> {
    id: u64,
    name: String,
    state: S,
    feeds: Vec<FeedEntry<S>>,
    next_feed: u64,
    scheduler: Box<dyn Scheduler>,
    batch: usize,
    on_subscribe: Option<SubscriptionHook<S>>,
    on_unsubscribe: Option<SubscriptionHook<S>>,
    meter: Arc<Meter>,
    /// The sources for which entries may wait.
    wake_sources: Vec<WakeSource>,
    /// Views of the feeds, kept to reuse the allocation.
    views: Vec<FeedView>,
}

impl<S: Send + 'static> Service<S> {
    /// A domain with this state and no subscriptions. Subscriptions are served round robin, in
    /// batches of up to 64 entries.
    ///
    /// The service does not use the id; handlers and reports may, and a context finds the domain
    /// by it.
    pub fn new(id: u64, name: impl Into<String>, state: S) -> Self {
        Service {
            id,
            name: name.into(),
            state,
            feeds: Vec::new(),
            next_feed: 0,
            scheduler: Box::new(RoundRobin::default()),
            batch: 64,
            on_subscribe: None,
            on_unsubscribe: None,
            meter: Arc::default(),
            wake_sources: Vec::new(),
            views: Vec::new(),
        }
    }

    /// Sets another scheduler: [`Priority`], or your own.
    pub fn with_scheduler(mut self, scheduler: impl Scheduler + 'static) -> Self {
        self.scheduler = Box::new(scheduler);
        self
    }

    /// Sets the maximum of entries that a turn handles, at least 1.
    pub fn with_batch(mut self, entries: usize) -> Self {
        self.batch = entries.max(1);
        self
    }

    /// Adds a source that is notified when an entry that [waits](Handled::Wait) may continue, such
    /// as [`Semaphore::wake_source`](crate::Semaphore::wake_source). Add every source for which
    /// handlers wait: if there is at least one, the context sleeps until one of them is notified.
    ///
    /// ```
    /// use dominoes::{Context, Park, Semaphore, Service, Handled, channel};
    /// use std::sync::Arc;
    ///
    /// let (mut publisher, log) = channel::<u32, Park>(8);
    /// let resolved = Arc::new(Semaphore::new(0));
    /// let permits = resolved.clone();
    /// let mut service = Service::new(0, "sender", Vec::new())
    ///     .with_wake_source(resolved.wake_source());
    /// service.subscribe(0, log.subscribe()?, move |sent: &mut Vec<u32>, _, packet: &u32| {
    ///     if !permits.try_take() {
    ///         return Handled::Wait;
    ///     }
    ///     sent.push(*packet);
    ///     Handled::Done
    /// });
    /// let context = Context::spawn("sender", None, vec![Box::new(service)])?;
    /// publisher.publish_all([1, 2])?;
    /// drop(publisher);
    /// resolved.release(2); // wakes the context
    /// context.join().expect("no panic");
    /// assert_eq!(resolved.permits(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_wake_source(mut self, source: &WakeSource) -> Self {
        self.wake_sources.push(source.clone());
        self
    }

    /// Sets a hook that is called after a subscription is added.
    pub fn on_subscribe(mut self, hook: impl FnMut(&mut S, FeedId) + Send + 'static) -> Self {
        self.on_subscribe = Some(Box::new(hook));
        self
    }

    /// Sets a hook that is called after a subscription is removed, also when its channel has ended.
    pub fn on_unsubscribe(mut self, hook: impl FnMut(&mut S, FeedId) + Send + 'static) -> Self {
        self.on_unsubscribe = Some(Box::new(hook));
        self
    }

    /// Adds a subscription to a multicast channel. A larger priority is more urgent, for
    /// schedulers that use it.
    pub fn subscribe<T, W, R>(
        &mut self,
        priority: u8,
        subscription: Subscription<T, W>,
        handler: impl FnMut(&mut S, Seq, &T) -> R + Send + 'static,
    ) -> FeedId
    where
        T: Send + Sync + 'static,
        W: Wait,
        R: Into<Handled> + 'static,
    {
        self.add_feed(
            priority,
            LogFeed::new(subscription, handler, self.meter.clone()),
        )
    }

    /// Like [`subscribe`](Self::subscribe), for one of several replicas that all get every entry.
    /// `assignment` decides which of them is the entry's primary: the handler's last argument is
    /// true in replica `me` of `replicas` if it is `me`. A chunk is one entry.
    ///
    /// ```
    /// use dominoes::{ByPosition, Domain, Service, SpinYield, Turn, channel};
    ///
    /// let (mut publisher, log) = channel::<u32, SpinYield>(8);
    /// let mut replicas = [0, 1].map(|me| {
    ///     let mut service = Service::new(me as u64, "replica", (0, Vec::new()));
    ///     let handler = |(sum, sent): &mut (u32, Vec<u32>), _, n: &u32, is_primary| {
    ///         *sum += n; // in both
    ///         if is_primary { sent.push(*n) } // in one of them
    ///     };
    ///     let log = log.subscribe().unwrap();
    ///     service.subscribe_assigned(0, log, (me, 2), ByPosition, handler);
    ///     service
    /// });
    /// publisher.publish_all([3, 4, 5])?;
    /// replicas.iter_mut().for_each(|replica| while replica.run() == Turn::Worked {});
    /// assert_eq!(replicas[0].state(), &(12, vec![3, 5]));
    /// assert_eq!(replicas[1].state(), &(12, vec![4]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn subscribe_assigned<T, W, R>(
        &mut self,
        priority: u8,
        subscription: Subscription<T, W>,
        (me, replicas): (usize, usize),
        assignment: impl Assignment + Send + 'static,
        mut handler: impl FnMut(&mut S, Seq, &T, bool) -> R + Send + 'static,
    ) -> FeedId
    where
        T: Send + Sync + 'static,
        W: Wait,
        R: Into<Handled> + 'static,
    {
        self.subscribe(priority, subscription, move |state, seq, entry| {
            let is_primary = assignment.is_mine(Work::chunk(seq), me, replicas);
            handler(state, seq, entry, is_primary)
        })
    }

    /// Adds the reading side of a [`Channel`](crate::Channel) of any kind. Its entries cannot
    /// [wait](Handled::Wait): some kinds hand out an entry only once.
    pub fn subscribe_to<T: 'static>(
        &mut self,
        priority: u8,
        source: impl Receive<T> + 'static,
        handler: impl FnMut(&mut S, &T) + Send + 'static,
    ) -> FeedId {
        self.add_feed(priority, ChannelFeed::new(source, handler))
    }

    /// Stops taking entries from a subscription to a log, which keeps none for it: what is
    /// published until [`activate`](Self::activate), and what was not handled before, is missed.
    /// The service is not finished while it has such a subscription. False if there is none with
    /// this id, or it is of another kind.
    pub fn deactivate(&mut self, id: FeedId) -> bool {
        self.set_active(id, false)
    }

    /// Takes entries again, from the next one that is published. False as for
    /// [`deactivate`](Self::deactivate).
    pub fn activate(&mut self, id: FeedId) -> bool {
        self.set_active(id, true)
    }

    fn set_active(&mut self, id: FeedId, active: bool) -> bool {
        let mut feeds = self.feeds.iter_mut();
        let found = feeds.find(|entry| entry.view.id == id);
        found.is_some_and(|entry| entry.feed.set_active(active))
    }

    /// Adds a feed of any kind.
    pub fn add_feed(&mut self, priority: u8, feed: impl Feed<S> + 'static) -> FeedId {
        let id = FeedId(self.next_feed);
        self.next_feed += 1;
        self.feeds.push(FeedEntry {
            feed: Box::new(feed),
            view: FeedView::new(id, priority),
        });
        if let Some(hook) = &mut self.on_subscribe {
            hook(&mut self.state, id);
        }
        id
    }

    /// Removes a subscription and releases its unhandled entries. False if it does not exist.
    pub fn unsubscribe(&mut self, id: FeedId) -> bool {
        let at = self.feeds.iter().position(|entry| entry.view.id == id);
        if let Some(at) = at {
            self.remove(at);
        }
        at.is_some()
    }

    fn remove(&mut self, at: usize) {
        let id = self.feeds[at].view.id;
        drop(self.feeds.remove(at));
        if let Some(hook) = &mut self.on_unsubscribe {
            hook(&mut self.state, id);
        }
    }

    /// Handles one entry.
    pub fn run_one(&mut self) -> Turn {
        self.run_batch(1)
    }

    /// Handles up to `limit` entries of one subscription: the first one with entries, in the order
    /// in which the scheduler asks them.
    ///
    /// [`Turn::Waiting`] if no entry could be handled and one waits; [`Turn::Finished`] if there
    /// were subscriptions and all have ended.
    pub fn run_batch(&mut self, limit: usize) -> Turn {
        for entry in &mut self.feeds {
            entry.view.asked = false;
            entry.view.lag = entry.feed.lag();
        }
        let mut waiting = false;
        loop {
            self.views.clear();
            self.views.extend(self.feeds.iter().map(|entry| entry.view));
            let Some(next) = self.scheduler.next(&self.views) else {
                break;
            };
            let Some(entry) = self.feeds.get_mut(next).filter(|entry| !entry.view.asked) else {
                break; // a scheduler that repeats a subscription ends its turn
            };
            let served = entry.feed.serve(&mut self.state, limit);
            entry.view.asked = true;
            entry.view.waiting = served.then == Then::Waiting;
            if entry.view.waiting {
                waiting = true;
                self.meter.waited();
            }
            if served.then == Then::Ended {
                self.remove(next);
            }
            if served.handled > 0 {
                self.meter.handled(served.handled as u64);
                let lags = self.feeds.iter().map(|entry| entry.feed.lag());
                self.meter.set_lag(lags.fold(0, u64::saturating_add));
                return Turn::Worked;
            }
        }
        if self.feeds.is_empty() && self.next_feed > 0 {
            Turn::Finished
        } else if waiting {
            Turn::Waiting
        } else {
            Turn::Idle
        }
    }

    /// The state.
    pub fn state(&self) -> &S {
        &self.state
    }

    /// The state, for the owner of the domain between turns.
    pub fn state_mut(&mut self) -> &mut S {
        &mut self.state
    }

    /// Drops the subscriptions and returns the state.
    pub fn into_state(self) -> S {
        self.state
    }

    /// Starts a context for the domain, under the domain's name, pinned to `core` if given. The
    /// handle returns the state at the end.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn spawn(self, core: Option<usize>) -> io::Result<DomainHandle<S>> {
        let meter = self.meter.clone();
        DomainHandle::spawn(Box::new(self), meter, core)
    }

    /// The subscriptions, in the order in which they were added.
    pub fn feeds(&self) -> Vec<FeedId> {
        self.feeds.iter().map(|entry| entry.view.id).collect()
    }
}

impl<S: Send + 'static> Domain for Service<S> {
    fn run(&mut self) -> Turn {
        self.run_batch(self.batch)
    }

    fn wake_sources(&mut self, set: &mut WaitSet) {
        for FeedEntry { feed, view } in &mut self.feeds {
            if !view.asked {
                // The scheduler skipped this feed, and may ask it at the next turn.
                set.unknown();
            } else if !view.waiting {
                feed.wake_sources(&mut self.state, set);
            } else if self.wake_sources.is_empty() {
                set.unknown();
            } else {
                self.wake_sources.iter().for_each(|source| set.add(source));
            }
        }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn meter(&self) -> Option<Arc<Meter>> {
        Some(self.meter.clone())
    }

    fn into_state(self: Box<Self>) -> Option<Box<dyn Any + Send>> {
        Some(Box::new(self.state))
    }
}

impl<S: fmt::Debug> fmt::Debug for Service<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("state", &self.state)
            .field("feeds", &self.feeds.len())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
