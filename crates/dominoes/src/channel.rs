//! The interface of all kinds of channels.

use crate::{
    Closed, Log, NoBatch, Publisher, SubscribeError, Subscription, TryPublishError, Wait, WaitSet,
};

/// The order in which a subscription receives entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// All subscriptions receive all entries in one order.
    Total,
    /// The newest entry first, among those still in the channel.
    NewestFirst,
    /// No order is promised.
    Unordered,
}

/// Which subscriptions receive an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Every subscription that existed when it was published.
    Everyone,
    /// One of the subscriptions.
    Someone,
}

/// A kind of channel: publishers on one side, subscriptions on the other, and bounded memory
/// between them.
///
/// [`Log`] is the multicast kind; [`WorkShare`](crate::WorkShare) gives each entry to one
/// subscription. Implement this trait to use your own channel wherever a kind is a parameter.
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
    /// The type of entries.
    type Item;
    /// The publishing side.
    type Publisher: Publish<Self::Item>;
    /// The reading side.
    type Subscription: Receive<Self::Item>;
    /// The promised order.
    const ORDER: Order;
    /// Which subscriptions receive an entry.
    const DELIVERY: Delivery;

    /// Creates a channel for at most `capacity` entries, and its first publisher. Clone it for more
    /// publishers.
    fn open(capacity: usize) -> (Self::Publisher, Self);

    /// Adds a subscription, which receives the entries published from now on.
    ///
    /// # Errors
    /// If there are too many.
    fn join(&self) -> Result<Self::Subscription, SubscribeError>;

    /// Entries in the channel at this moment.
    fn backlog(&self) -> usize;
}

/// The publishing side of a [`Channel`].
pub trait Publish<T>: Clone + Send {
    /// Publishes a value if there is room now.
    ///
    /// # Errors
    /// Returns the value if there is no room, or the channel is closed.
    fn offer(&mut self, value: T) -> Result<(), TryPublishError<T>>;

    /// Publishes a value; waits for room.
    ///
    /// # Errors
    /// Returns the value if the channel is closed.
    fn put(&mut self, value: T) -> Result<(), Closed<T>>;
}

/// The reading side of a [`Channel`].
pub trait Receive<T>: Send {
    /// Calls `handler` for up to `limit` available entries. Returns their number, at least one.
    ///
    /// # Errors
    /// The reason why there are none.
    fn receive(&mut self, limit: usize, handler: impl FnMut(&T)) -> Result<usize, NoBatch>;

    /// Adds to `set` the sources that notify when entries may be available, or the channel is
    /// closed. By default the set becomes [unknown](WaitSet::unknown).
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
