//! Domains: typed state and its sources of work, run by a [`Context`](crate::Context).

use crate::{DomainHandle, Meter, Seq, SpinYield, Subscription, Wait, WaitSet};
use std::{any::Any, fmt, io, sync::Arc};

/// The result of a turn of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The domain did some work; there may be more.
    Worked,
    /// There was nothing to do.
    Idle,
    /// There is work, but it must wait for another thread. Try again later.
    Waiting,
    /// There will never be work again.
    Finished,
}

/// A state machine that a [`Context`](crate::Context) runs in turns. A turn must not block.
pub trait Domain: Send + Any {
    /// Does some work, if there is any.
    fn run(&mut self) -> Turn;

    /// Adds to `set` all sources that notify when there may be work. Called after a turn that was
    /// [idle](Turn::Idle), or in which the domain [waits](Turn::Waiting) for something; the set
    /// must then contain the source of that, too.
    ///
    /// The context sleeps only if one more turn finds no work and a second call adds no new
    /// source. By default the domain [sleeps by itself](WaitSet::by_itself).
    fn wake_sources(&mut self, set: &mut WaitSet) {
        set.by_itself();
    }

    /// Sleeps until there may be work. For a domain that [sleeps by itself](WaitSet::by_itself),
    /// for instance in a device. Called only if it is the context's only domain and stayed idle
    /// through spinning and yielding. May return spuriously. Must return when work may have
    /// arrived, or when the thread is unparked. Yields by default.
    fn park(&mut self) {
        std::thread::yield_now();
    }

    /// A name for reports.
    fn name(&self) -> &str {
        "domain"
    }

    /// A number by which its context finds the domain to remove or move it. If several domains
    /// have the same number, the first is used.
    fn id(&self) -> u64 {
        0
    }

    /// The domain's counts, if it keeps any.
    fn meter(&self) -> Option<Arc<Meter>> {
        None
    }

    /// Returns the state and drops the rest, for a [`DomainHandle`]. `None` by default: a domain
    /// whose type can be named is taken out of [`ContextHandle::join`](crate::ContextHandle::join)
    /// by downcasting.
    fn into_state(self: Box<Self>) -> Option<Box<dyn Any + Send>> {
        None
    }
}

impl fmt::Debug for dyn Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({})", self.name())
    }
}

/// A ready-made domain: some state, a subscription, and a handler that applies each entry to the
/// state.
///
/// ```
/// use dominoes::{Park, Replica, channel};
///
/// let (mut publisher, log) = channel::<u64, Park>(16);
/// let add = |sum: &mut u64, _seq, entry: &u64| *sum += entry;
/// let sum = Replica::new("sum", 0u64, log.subscribe()?, add).spawn(None)?;
/// for n in 1..=10 {
///     publisher.publish(n)?;
/// }
/// drop(publisher); // the replica finishes when it has applied the last entry
/// assert_eq!(sum.join()?, 55);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Replica<S, T, W: Wait = SpinYield, F = fn(&mut S, Seq, &T)> {
    name: String,
    state: S,
    subscription: Subscription<T, W>,
    handler: F,
    id: u64,
    meter: Arc<Meter>,
}

impl<S, T, W, F> Replica<S, T, W, F>
where
    T: Send + Sync,
    W: Wait,
    F: FnMut(&mut S, Seq, &T),
{
    /// A replica with this state, which applies the entries of this subscription with `handler`.
    pub fn new(
        name: impl Into<String>,
        state: S,
        subscription: Subscription<T, W>,
        handler: F,
    ) -> Self {
        Replica {
            name: name.into(),
            state,
            subscription,
            handler,
            id: 0,
            meter: Arc::default(),
        }
    }

    /// Sets the number by which its context finds the replica.
    pub fn with_id(mut self, id: u64) -> Self {
        self.id = id;
        self
    }

    /// The state.
    pub fn state(&self) -> &S {
        &self.state
    }

    /// The subscription.
    pub fn subscription(&self) -> &Subscription<T, W> {
        &self.subscription
    }

    /// Returns state and subscription.
    pub fn into_parts(self) -> (S, Subscription<T, W>) {
        (self.state, self.subscription)
    }

    /// Starts a context for the replica, under the replica's name, pinned to `core` if given. The
    /// handle returns the state at the end.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn spawn(self, core: Option<usize>) -> io::Result<DomainHandle<S>>
    where
        S: Send + 'static,
        T: 'static,
        F: Send + 'static,
    {
        let meter = self.meter.clone();
        DomainHandle::spawn(Box::new(self), meter, core)
    }

    /// Applies the entries published so far, at most a batch.
    pub fn turn(&mut self) -> Turn {
        let handled = match self.subscription.try_next_batch() {
            Ok(batch) => {
                for (seq, entry) in &batch {
                    (self.handler)(&mut self.state, seq, entry);
                }
                batch.len() as u64
            }
            Err(crate::NoBatch::Empty) => return Turn::Idle,
            Err(crate::NoBatch::Closed | crate::NoBatch::Evicted) => return Turn::Finished,
        };
        self.meter.handled(handled);
        self.meter.set_lag(self.subscription.lag());
        Turn::Worked
    }
}

impl<S, T, W, F> Domain for Replica<S, T, W, F>
where
    S: Send + 'static,
    T: Send + Sync + 'static,
    W: Wait,
    F: FnMut(&mut S, Seq, &T) + Send + 'static,
{
    fn run(&mut self) -> Turn {
        self.turn()
    }

    fn wake_sources(&mut self, set: &mut WaitSet) {
        self.subscription.wake_sources(set);
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

impl<S: fmt::Debug, T, W: Wait, F> fmt::Debug for Replica<S, T, W, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica")
            .field("name", &self.name)
            .field("state", &self.state)
            .field("subscription", &self.subscription)
            .finish()
    }
}
