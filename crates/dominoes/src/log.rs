//! Making a channel, and the handle from which subscriptions come.

use crate::{
    Publisher, SpinYield, SubscribeError, Subscription, Wait,
    ring::{self, Reader, Ring},
    sync::Arc,
};
use std::fmt;

/// A position in a log: the first entry has 0, the next 1, without gaps. Positions never wrap.
pub type Seq = u64;

/// A bounded multicast channel: every subscription sees every entry, all in the same order.
///
/// `capacity` is the exact bound on entries that are published but not yet released by the slowest
/// subscription. The number of slots is a power of two and may be larger; see [`Log::slots`].
///
/// ```
/// use dominoes::{SpinYield, channel};
///
/// let (mut publisher, log) = channel::<String, SpinYield>(8);
/// let mut first = log.subscribe()?;
/// let mut second = log.subscribe()?;
/// publisher.publish("hello".to_string())?;
/// drop(publisher); // the last one closes the channel
///
/// for subscription in [&mut first, &mut second] {
///     let mut seen = Vec::new();
///     while let Some(batch) = subscription.next_batch() {
///         seen.extend(batch.iter().map(|(seq, text)| (seq, text.clone())));
///     }
///     assert_eq!(seen, [(0, "hello".to_string())]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Many threads hold `&T` at once, so entries must be [`Sync`]:
///
/// ```compile_fail
/// dominoes::channel::<std::cell::Cell<u32>, dominoes::Spin>(1);
/// ```
///
/// # Panics
/// If `capacity` is 0, or so large that the slots do not fit into memory.
pub fn channel<T: Send + Sync, W: Wait>(capacity: usize) -> (Publisher<T, W>, Log<T, W>) {
    let (writer, ring) = ring::ring(capacity, None);
    (Publisher::new(writer), Log { ring })
}

/// Creates a [`channel`] with a given number of slots, to use less memory or to gain speed.
///
/// [`channel`] takes 4 MiB or 64 times the capacity, whichever is less, for entries without a
/// destructor. For entries with a destructor it takes as few slots as hold the capacity: more would
/// spread the values over more memory than is in use.
///
/// ```
/// let (_publisher, log) = dominoes::channel_with_slots::<u64, dominoes::Park>(100, 128);
/// assert_eq!((log.capacity(), log.slots()), (100, 128));
/// ```
///
/// # Panics
/// If `slots` is not a power of two or less than `capacity`, or `capacity` is 0.
pub fn channel_with_slots<T: Send + Sync, W: Wait>(
    capacity: usize,
    slots: usize,
) -> (Publisher<T, W>, Log<T, W>) {
    let (writer, ring) = ring::ring(capacity, Some(slots));
    (Publisher::new(writer), Log { ring })
}

/// A handle of a channel: adds subscriptions, and reads its counters. Cheap to clone, and may be
/// sent to any thread.
///
/// A `Log` is neither a publisher nor a subscription: it does not keep the channel open, and
/// entries do not wait for it.
pub struct Log<T, W: Wait = SpinYield> {
    ring: Arc<Ring<T, W>>,
}

impl<T: Send + Sync, W: Wait> Log<T, W> {
    pub(crate) fn of(ring: &Arc<Ring<T, W>>) -> Self {
        Log { ring: ring.clone() }
    }

    /// A subscription that sees everything published from now on.
    ///
    /// # Errors
    /// If there are [`MAX_SUBSCRIBERS`](crate::MAX_SUBSCRIBERS) subscriptions already.
    pub fn subscribe(&self) -> Result<Subscription<T, W>, SubscribeError> {
        Reader::from_now(&self.ring)
            .map(Subscription::new)
            .ok_or(SubscribeError)
    }

    /// The bound on entries that are published and not yet released by the slowest subscription.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// The number of slots, a power of two, at least the capacity. Entry `seq` lives in slot `seq %
    /// slots`. Size the [`Verdicts`](crate::Verdicts) and
    /// [`batch_records`](crate::batch_records) of this channel with it.
    pub fn slots(&self) -> usize {
        self.ring.slots()
    }

    /// Entries that the slowest subscription has not released at this moment.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether [`len`](Self::len) is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of subscriptions at this moment.
    pub fn subscribers(&self) -> usize {
        self.ring.members().count_ones() as usize
    }

    /// The number of publishers at this moment.
    pub fn publishers(&self) -> usize {
        self.ring.publishers()
    }

    /// Whether nothing can be published any more: it was closed, or the last publisher is gone.
    pub fn is_closed(&self) -> bool {
        self.ring.is_closed()
    }

    /// Each subscription's number, and how many entries it has not released, at this moment.
    pub fn lags(&self) -> Vec<(usize, u64)> {
        self.ring.lags()
    }

    /// Asks the subscription with this number to leave, which it learns when it next looks for a
    /// batch. Returns false if there is none. Numbers are used again: if the subscription leaves
    /// and another one takes its number before or during this call, the other one may be asked.
    ///
    /// A subscription may hold slices of the ring, so entries still wait for it until it is
    /// dropped.
    pub fn evict(&self, number: usize) -> bool {
        let there = self.ring.evict(number);
        self.ring.entries.notify();
        there
    }

    /// Drops the entries that every subscription has released, instead of leaving that to the next
    /// publisher that looks for room. Does nothing for payloads without a destructor.
    pub fn tidy(&self) {
        self.ring.tidy();
    }
}

impl<T, W: Wait> Clone for Log<T, W> {
    fn clone(&self) -> Self {
        Log {
            ring: self.ring.clone(),
        }
    }
}

impl<T, W: Wait> fmt::Debug for Log<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("capacity", &self.ring.capacity())
            .field("slots", &self.ring.slots())
            .field("len", &self.ring.len())
            .field("closed", &self.ring.is_closed())
            .finish()
    }
}
