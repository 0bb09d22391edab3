//! The reading side: one reader's cursor, batches, lag, deactivate and activate.

use crate::wait::pause;
use crate::{
    Log, NoBatch, Seq, SpinYield, SubscribeError, Wait, WaitSet,
    ring::{CursorSlot, Reader},
};
use std::{
    fmt,
    iter::Chain,
    slice,
    time::{Duration, Instant},
};

/// A reader that found fewer entries than this (and than a quarter of the capacity) is close to
/// the publisher.
const SHORT: u64 = 256;
/// Delay of such a reader for each entry that it found, and the maximum of the delay.
const PER_ENTRY: Duration = Duration::from_nanos(100);
const PATIENCE: Duration = Duration::from_micros(6);

/// A reader of a channel. Entries are kept until it releases them. Dropping it, even by a panic,
/// releases them all.
///
/// There are two ways to read. [`next_batch`](Self::next_batch) lends the next entries and
/// releases them when its guard is dropped. To read ahead instead, call [`poll`](Self::poll),
/// which returns how far the channel is published, and [`get`](Self::get), which reads any entry
/// from [`position`](Self::position) up to there in place; [`advance_to`](Self::advance_to)
/// releases entries from the front.
///
/// An entry cannot be released while it is borrowed:
///
/// ```compile_fail,E0502
/// let (_publisher, log) = dominoes::channel::<u32, dominoes::Spin>(4);
/// let mut subscription = log.subscribe().unwrap();
/// let entry = subscription.get(0);
/// subscription.advance_to(1);
/// println!("{entry:?}");
/// ```
pub struct Subscription<T, W: Wait = SpinYield> {
    reader: Reader<T, W>,
    batch_limit: u64,
    high_water: u64,
    /// Number of entries that were available when the last batch was taken.
    last: u64,
    /// The limit below which a batch counts as short.
    short: u64,
    patience: Duration,
}

impl<T: Send + Sync, W: Wait> Subscription<T, W> {
    pub(crate) fn new(reader: Reader<T, W>) -> Self {
        let batch_limit = (reader.ring().capacity() as u64 / 4).max(1);
        let short = batch_limit.min(SHORT);
        Subscription {
            reader,
            batch_limit,
            high_water: 0,
            last: short,
            short,
            patience: PATIENCE,
        }
    }

    /// The position of the first entry that is not yet released.
    #[inline]
    pub fn position(&self) -> Seq {
        self.reader.position()
    }

    /// Checks how far the channel is published. Returns the position after the last entry that can
    /// be read.
    #[inline]
    pub fn poll(&mut self) -> Seq {
        self.reader.poll()
    }

    /// The result of the last [`poll`](Self::poll).
    #[inline]
    pub fn end(&self) -> Seq {
        self.reader.end()
    }

    /// The entry at `seq`, in place. `None` unless it is at or above the position and below the
    /// polled end.
    #[inline]
    pub fn get(&self, seq: Seq) -> Option<&T> {
        self.reader.get(seq)
    }

    /// The entries of `from..to`, in place, as two slices, the second of which follows the first.
    ///
    /// # Panics
    /// If the range is not between position and polled end.
    #[inline]
    pub fn slices(&self, from: Seq, to: Seq) -> (&[T], &[T]) {
        self.reader.slices(from, to)
    }

    /// Releases all entries below `seq`. Does nothing if they are released already.
    ///
    /// # Panics
    /// If `seq` is above the polled end.
    #[inline]
    pub fn advance_to(&mut self, seq: Seq) {
        self.reader.advance_to(seq);
    }

    /// The next entries, at most [`batch_limit`](Self::set_batch_limit) of them; waits for the
    /// first. `None` when the channel is closed and every entry was read, or this subscription was
    /// asked to leave.
    ///
    /// Dropping the guard releases the entries. A guard that is forgotten releases none, and the
    /// next batch contains them again.
    pub fn next_batch(&mut self) -> Option<Batch<'_, T, W>> {
        self.batch_by(None).ok()
    }

    /// The next entries, if there are any now.
    ///
    /// # Errors
    /// The reason why there are none.
    #[inline]
    pub fn try_next_batch(&mut self) -> Result<Batch<'_, T, W>, NoBatch> {
        match self.look() {
            Ok(to) => Ok(self.batch(to)),
            Err(why) => Err(why),
        }
    }

    /// The next entries; waits for the first until `deadline`.
    ///
    /// # Errors
    /// [`NoBatch::Empty`] if there are none then; otherwise as for
    /// [`try_next_batch`](Self::try_next_batch).
    pub fn next_batch_deadline(&mut self, deadline: Instant) -> Result<Batch<'_, T, W>, NoBatch> {
        self.batch_by(Some(deadline))
    }

    fn batch_by(&mut self, deadline: Option<Instant>) -> Result<Batch<'_, T, W>, NoBatch> {
        if self.last < self.short {
            self.hang_back();
        }
        let mut found = self.look();
        while found == Err(NoBatch::Empty) && self.reader.wait(deadline) {
            found = self.look();
        }
        match found {
            Ok(to) => Ok(self.batch(to)),
            Err(why) => Err(why),
        }
    }

    /// Lets the publisher get ahead. If a reader close to the publisher polled again at once, it
    /// would find very few entries, and both sides would keep waiting for the same cache lines.
    /// The more entries the reader found, the denser the stream, and the longer the delay may be.
    fn hang_back(&self) {
        let time = self
            .patience
            .min(PER_ENTRY.saturating_mul(self.last as u32));
        pause();
        if time > PER_ENTRY * 4 {
            let start = Instant::now();
            while start.elapsed() < time {
                self.reader.ring().entries.hesitate();
            }
        }
    }

    /// Finds the end of the next batch.
    #[inline]
    fn look(&mut self) -> Result<Seq, NoBatch> {
        let position = self.reader.position();
        let mut end = self.reader.poll();
        if self.reader.is_evicted() {
            return Err(NoBatch::Evicted);
        }
        if end == position {
            let drained = self.reader.is_drained();
            end = self.reader.end();
            if end == position {
                return Err(if drained {
                    NoBatch::Closed
                } else {
                    NoBatch::Empty
                });
            }
        }
        self.last = end - position;
        self.high_water = self.high_water.max(self.last);
        Ok(end.min(position.saturating_add(self.batch_limit)))
    }

    #[inline]
    fn batch(&mut self, to: Seq) -> Batch<'_, T, W> {
        Batch {
            subscription: self,
            to,
        }
    }

    /// Sets the maximum length of a batch; at least 1. Initially a quarter of the capacity, so
    /// that a slow handler does not make the channel look full.
    pub fn set_batch_limit(&mut self, limit: usize) {
        self.batch_limit = (limit as u64).max(1);
    }

    /// Sets the longest delay of [`next_batch`](Self::next_batch) after a short batch from a dense
    /// stream. Initially 6 µs.
    ///
    /// A subscription that stays close to a publisher slows both down, since every entry then
    /// moves from core to core on its own: 50 million entries per second where 300 million are
    /// possible. Zero gives the lowest latency instead. Sparse streams are not delayed in either
    /// case, and [`poll`](Self::poll) and [`try_next_batch`](Self::try_next_batch) never wait.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Creates a second subscription at the same position. Together with a clone of the state
    /// computed so far it makes a replica: same state, same next entry.
    ///
    /// # Errors
    /// There are [`MAX_SUBSCRIBERS`](crate::MAX_SUBSCRIBERS) subscriptions already.
    pub fn fork(&self) -> Result<Self, SubscribeError> {
        let reader = self.reader.fork().ok_or(SubscribeError)?;
        Ok(Subscription {
            batch_limit: self.batch_limit,
            patience: self.patience,
            ..Subscription::new(reader)
        })
    }

    /// Stops reading for a while: entries are no longer kept for this subscription, so it misses
    /// them. Its number stays reserved.
    pub fn deactivate(self) -> Inactive<T, W> {
        Inactive {
            batch_limit: self.batch_limit,
            patience: self.patience,
            place: self.reader.into_place(),
        }
    }

    /// Number of published entries that this subscription has not released. May already be out of
    /// date.
    pub fn lag(&self) -> u64 {
        self.reader
            .ring()
            .tail()
            .saturating_sub(self.reader.position())
    }

    /// The largest number of entries that were available when a batch was taken.
    pub fn high_water(&self) -> u64 {
        self.high_water
    }

    /// Whether the channel is closed for publishing. There may be entries left to read.
    pub fn is_closed(&self) -> bool {
        self.reader.ring().is_closed()
    }

    /// Whether the channel is closed and all its entries are released, so that there will never be
    /// another one.
    pub fn is_finished(&mut self) -> bool {
        self.reader.is_drained() && self.reader.position() == self.reader.end()
    }

    /// Whether this subscription was asked to leave; see [`Log::evict`].
    pub fn is_evicted(&self) -> bool {
        self.reader.is_evicted()
    }

    /// The number of this subscription, below [`MAX_SUBSCRIBERS`](crate::MAX_SUBSCRIBERS) and
    /// unique while it lives.
    pub fn number(&self) -> usize {
        self.reader.number()
    }

    /// A handle of the channel.
    pub fn log(&self) -> Log<T, W> {
        Log::of(self.reader.ring())
    }

    /// Adds to `set` the source that notifies when an entry is published, the channel is closed,
    /// or the subscription is asked to leave. A wait strategy that wakes no thread makes the set
    /// [unknown](WaitSet::unknown).
    pub fn wake_sources(&self, set: &mut WaitSet) {
        set.add_strategy(&self.reader.ring().entries);
    }

    /// Waits until an entry beyond the last polled end is published, the channel is closed, or the
    /// subscription is asked to leave (true), or until `deadline` (false). Call this after a poll
    /// that found no work.
    pub fn wait(&mut self, deadline: Option<Instant>) -> bool {
        self.reader.wait(deadline)
    }
}

impl<T, W: Wait> fmt::Debug for Subscription<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("number", &self.reader.number())
            .field("position", &self.reader.position())
            .field("end", &self.reader.end())
            .finish()
    }
}

/// A subscription that does not read at the moment; no entries are kept for it.
pub struct Inactive<T, W: Wait = SpinYield> {
    place: CursorSlot<T, W>,
    batch_limit: u64,
    patience: Duration,
}

impl<T: Send + Sync, W: Wait> Inactive<T, W> {
    /// Resumes reading, from the next entry published. Cannot fail, since the number was reserved.
    pub fn activate(self) -> Subscription<T, W> {
        let (batch_limit, patience) = (self.batch_limit, self.patience);
        Subscription {
            batch_limit,
            patience,
            ..Subscription::new(Reader::from_now_at(self.place))
        }
    }

    /// A handle of the channel.
    pub fn log(&self) -> Log<T, W> {
        Log::of(self.place.ring())
    }
}

impl<T, W: Wait> fmt::Debug for Inactive<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inactive")
            .field("number", &self.place.number())
            .finish()
    }
}

/// Entries of a channel, lent in place. Dropping the guard releases those not yet released.
#[must_use = "dropping a batch releases its entries unread"]
pub struct Batch<'a, T: Send + Sync, W: Wait = SpinYield> {
    subscription: &'a mut Subscription<T, W>,
    to: Seq,
}

impl<T: Send + Sync, W: Wait> Batch<'_, T, W> {
    /// The position of the first entry.
    pub fn first_seq(&self) -> Seq {
        self.subscription.position()
    }

    /// The position after the last entry.
    pub fn end_seq(&self) -> Seq {
        self.to
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        (self.to - self.first_seq()) as usize
    }

    /// Whether all entries were released early.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries, as two slices, the second of which follows the first.
    #[inline]
    pub fn as_slices(&self) -> (&[T], &[T]) {
        self.subscription.slices(self.first_seq(), self.to)
    }

    /// The entries with their positions.
    #[inline]
    pub fn iter(&self) -> Iter<'_, T> {
        let (head, rest) = self.as_slices();
        Iter {
            seq: self.first_seq(),
            entries: head.iter().chain(rest),
        }
    }

    /// Removes the entries from `seq` on from this batch; the next batch contains them.
    pub fn truncate(&mut self, seq: Seq) {
        self.to = self.to.min(seq.max(self.first_seq()));
    }

    /// Releases the entries below `seq` now.
    ///
    /// # Panics
    /// If `seq` is above the end of the batch.
    pub fn release_to(&mut self, seq: Seq) {
        assert!(
            seq <= self.to,
            "{seq} is beyond the batch, which ends at {}",
            self.to
        );
        self.subscription.advance_to(seq);
    }
}

impl<T: Send + Sync, W: Wait> Drop for Batch<'_, T, W> {
    #[inline]
    fn drop(&mut self) {
        self.subscription.advance_to(self.to);
    }
}

impl<T: Send + Sync, W: Wait> fmt::Debug for Batch<'_, T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("first_seq", &self.first_seq())
            .field("end_seq", &self.to)
            .finish()
    }
}

impl<'a, T: Send + Sync, W: Wait> IntoIterator for &'a Batch<'_, T, W> {
    type Item = (Seq, &'a T);
    type IntoIter = Iter<'a, T>;
    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

/// Iterates over a [`Batch`].
#[derive(Debug, Clone)]
pub struct Iter<'a, T> {
    seq: Seq,
    entries: Chain<slice::Iter<'a, T>, slice::Iter<'a, T>>,
}

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = (Seq, &'a T);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.entries.next()?;
        let seq = self.seq;
        self.seq += 1;
        Some((seq, entry))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }

    #[inline]
    fn fold<B, F: FnMut(B, Self::Item) -> B>(self, init: B, mut f: F) -> B {
        let mut seq = self.seq;
        self.entries.fold(init, |folded, entry| {
            let item = (seq, entry);
            seq += 1;
            f(folded, item)
        })
    }
}

impl<T> ExactSizeIterator for Iter<'_, T> {}
