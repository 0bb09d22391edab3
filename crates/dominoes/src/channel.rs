//! What every kind of channel answers to.

use crate::{
    Closed, Log, NoBatch, Publisher, SubscribeError, Subscription, TryPublishError, Wait, WaitSet,
};

/// In which order a subscription sees entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// One order for all.
    Total,
    /// The newest first, as far as it is still there.
    NewestFirst,
    /// None is promised.
    Unordered,
}

/// Who sees an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Every subscription that was there.
    Everyone,
    /// One of the subscriptions.
    Someone,
}

/// A kind of channel: publishers on one side, subscriptions on the other, something bounded
/// between.
///
/// [`Log`] is the multicast kind; [`WorkShare`](crate::WorkShare) gives each entry to one
/// subscription. Implement it for a channel of your own to use that wherever a kind is a parameter.
///
/// ```
/// use dominoes::{Channel, Lifo, Log, Publish, Receive, SpinYield, WorkShare};
///
/// fn sum<C: Channel<Item = u32>>() -> u32 {
///     let (mut publisher, channel) = C::open(8);
///     let mut subscription = channel.join().unwrap();
///     for n in 1..=4 {
///         publisher.offer(n).unwrap();
///     }
///     let mut sum = 0;
///     while subscription.receive(8, |n| sum += n).is_ok() {}
///     sum
/// }
///
/// assert_eq!(sum::<Log<u32, SpinYield>>(), 10);
/// assert_eq!(sum::<WorkShare<u32, Lifo<u32>, SpinYield>>(), 10);
/// ```
pub trait Channel: Clone + Send + Sized {
    /// What goes through.
    type Item;
    /// The publishing side.
    type Publisher: Publish<Self::Item>;
    /// The reading side.
    type Subscription: Receive<Self::Item>;
    /// The order that is promised.
    const ORDER: Order;
    /// Who sees an entry.
    const DELIVERY: Delivery;

    /// A channel for at most `capacity` entries, with its first publisher. More come from cloning
    /// that.
    fn open(capacity: usize) -> (Self::Publisher, Self);

    /// A subscription to what is published from now on.
    ///
    /// # Errors
    /// If there are too many.
    fn join(&self) -> Result<Self::Subscription, SubscribeError>;

    /// Entries in the channel. A moment's view.
    fn backlog(&self) -> usize;
}

/// The publishing side of a [`Channel`].
pub trait Publish<T>: Clone + Send {
    /// Publishes a value if there is room now.
    ///
    /// # Errors
    /// Gives the value back if there is none, or the channel is closed.
    fn offer(&mut self, value: T) -> Result<(), TryPublishError<T>>;

    /// Publishes a value; waits for room.
    ///
    /// # Errors
    /// Gives the value back if the channel is closed.
    fn put(&mut self, value: T) -> Result<(), Closed<T>>;
}

/// The reading side of a [`Channel`].
pub trait Receive<T>: Send {
    /// Shows up to `limit` entries that are there to `handler`. Returns how many there were: at
    /// least one.
    ///
    /// # Errors
    /// Says why there are none.
    fn receive(&mut self, limit: usize, handler: impl FnMut(&T)) -> Result<usize, NoBatch>;

    /// Adds to `set` what notifies when there may be entries, or the channel is closed. By default
    /// the set becomes [unknown](WaitSet::unknown).
    fn wake_sources(&self, set: &mut WaitSet) {
        set.unknown();
    }
}

impl<T: Send + Sync, W: Wait> Channel for Log<T, W> {
    type Item = T;
    type Publisher = Publisher<T, W>;
    type Subscription = Subscription<T, W>;
    const ORDER: Order = Order::Total;
    const DELIVERY: Delivery = Delivery::Everyone;

    fn open(capacity: usize) -> (Publisher<T, W>, Self) {
        crate::channel(capacity)
    }

    fn join(&self) -> Result<Subscription<T, W>, SubscribeError> {
        self.subscribe()
    }

    fn backlog(&self) -> usize {
        self.len()
    }
}

impl<T: Send + Sync, W: Wait> Publish<T> for Publisher<T, W> {
    fn offer(&mut self, value: T) -> Result<(), TryPublishError<T>> {
        self.try_publish(value).map(drop)
    }

    fn put(&mut self, value: T) -> Result<(), Closed<T>> {
        self.publish(value).map(drop)
    }
}

impl<T: Send + Sync, W: Wait> Receive<T> for Subscription<T, W> {
    fn receive(&mut self, limit: usize, mut handler: impl FnMut(&T)) -> Result<usize, NoBatch> {
        let mut batch = self.try_next_batch()?;
        let limit = batch.first_seq().saturating_add(limit as u64);
        let end = batch.end_seq().min(limit);
        let n = (end - batch.first_seq()) as usize;
        batch.iter().take(n).for_each(|(_, entry)| handler(entry));
        batch.truncate(end);
        Ok(n)
    }

    fn wake_sources(&self, set: &mut WaitSet) {
        Subscription::wake_sources(self, set);
    }
}
