//! Domains: typed state with what drives it, run by a [`Context`](crate::Context).

use crate::{DomainHandle, Meter, Seq, SpinYield, Subscription, Wait, WaitSet};
use std::{any::Any, fmt, io, sync::Arc};

/// What a turn of a domain came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Something was done; there may be more.
    Worked,
    /// There was nothing to do.
    Idle,
    /// There is something to do, but it waits for somebody else: ask again later.
    Waiting,
    /// There will never be anything to do again.
    Finished,
}

/// Something that a [`Context`](crate::Context) runs, turn by turn. A turn must not block.
pub trait Domain: Send + Any {
    /// Does some work, if there is any.
    fn run(&mut self) -> Turn;

    /// Adds to `set` all that notifies when there may be work. Called after a turn that was
    /// [idle](Turn::Idle), or in which the domain [waits](Turn::Waiting) for something: then that
    /// belongs into the set, too.
    ///
    /// The context sleeps only after one more turn has found nothing to do, and if this adds
    /// nothing new after that. By default the domain [sleeps by itself](WaitSet::by_itself).
    fn wake_sources(&mut self, set: &mut WaitSet) {
        set.by_itself();
    }

    /// Sleeps until there may be work: for a domain that [sleeps by itself](WaitSet::by_itself), in
    /// a device for instance. Called only if it is the context's only domain, and stayed idle
    /// through spinning and yielding. May return for no reason; must return when work may have
    /// come, or the thread is unparked. Yields by default.
    fn park(&mut self) {
        std::thread::yield_now();
    }

    /// A name for reports.
    fn name(&self) -> &str {
        "domain"
    }

    /// A number by which its context finds it, to remove or move it. Need not be unique: the first
    /// is meant.
    fn id(&self) -> u64 {
        0
    }

    /// Its counts, if it keeps any.
    fn meter(&self) -> Option<Arc<Meter>> {
        None
    }

    /// Gives up everything but its state, for a [`DomainHandle`]. `None` by default: a domain whose
    /// type can be named is taken out of [`ContextHandle::join`](crate::ContextHandle::join) by
    /// downcasting.
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
    /// A replica with this state, fed from this subscription through `handler`.
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

    /// With a number by which its context finds it.
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

    /// State and subscription.
    pub fn into_parts(self) -> (S, Subscription<T, W>) {
        (self.state, self.subscription)
    }

    /// Starts a context of its own for the replica, on this core if one is named, and under the
    /// replica's name. The handle gives the state back.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn spawn(self, core: Option<usize>) -> io::Result<DomainHandle<S>>
    where
        S: Send + 'static,
        T: 'static,
        F: Send + 'static,
    {
        let meter = self.meter.clone();
        DomainHandle::spawn(Box::new(self), meter, core)
    }

    /// Applies what is there now, at most a batch.
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
