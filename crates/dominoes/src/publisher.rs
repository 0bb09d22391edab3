//! The publishing side.

use crate::{
    BatchError, Closed, Log, Seq, SpinYield, TryPublishError, Wait, WaitSet,
    ring::{Refusal, Ring, Writer},
    slots::Staged,
    sync::Arc,
};
use std::{fmt, mem, ops::Range, time::Instant};

/// Publishes entries into a channel. Clone it for more publishers. The channel closes when the
/// last one is dropped.
///
/// A publisher detects that it is the only one, and then publishes without locked instructions.
///
/// Blocking calls wait while the channel is full. They never return if the calling thread also
/// owns the slowest subscription; use the `try_` calls there.
///
/// A publisher is `Send`, not `Sync`, so each thread needs its own:
///
/// ```compile_fail,E0277
/// fn sync<T: Sync>() {}
/// sync::<dominoes::Publisher<u32>>();
/// ```
pub struct Publisher<T, W: Wait = SpinYield> {
    writer: Writer<T, W>,
    /// The writer's ring, for waiting while the writer is borrowed.
    ring: Arc<Ring<T, W>>,
    /// Collects batches before they are claimed.
    buffer: Staged<T>,
}

impl<T: Send + Sync, W: Wait> Publisher<T, W> {
    pub(crate) fn new(writer: Writer<T, W>) -> Self {
        Publisher {
            ring: writer.ring().clone(),
            writer,
            buffer: Staged::new(),
        }
    }

    /// Publishes `value`; waits while the channel is full. Returns the value's position.
    ///
    /// # Errors
    /// Returns the value if the channel is closed.
    #[inline]
    pub fn publish(&mut self, value: T) -> Result<Seq, Closed<T>> {
        match self.writer.try_push(value) {
            Ok(seq) => Ok(seq),
            Err((refusal, value)) => self.publish_slowly(refusal, value),
        }
    }

    #[cold]
    #[inline(never)]
    fn publish_slowly(&mut self, mut refusal: Refusal, mut value: T) -> Result<Seq, Closed<T>> {
        loop {
            if refusal == Refusal::Closed {
                return Err(Closed(value));
            }
            self.wait_for(1, None);
            match self.writer.try_push(value) {
                Ok(seq) => return Ok(seq),
                Err((again, back)) => (refusal, value) = (again, back),
            }
        }
    }

    /// Adds to `set` the source that notifies when there may be room, or the channel is closed. A
    /// wait strategy that wakes no thread makes the set [unknown](WaitSet::unknown).
    pub fn room_sources(&self, set: &mut WaitSet) {
        set.add_strategy(&self.ring.room);
    }

    /// Publishes `value` if there is room now.
    ///
    /// # Errors
    /// Returns the value if the channel is full or closed. A failed call has no effect.
    #[inline]
    pub fn try_publish(&mut self, value: T) -> Result<Seq, TryPublishError<T>> {
        self.writer
            .try_push(value)
            .map_err(|(refusal, value)| match refusal {
                Refusal::Full => TryPublishError::Full(value),
                Refusal::Closed => TryPublishError::Closed(value),
            })
    }

    /// Publishes `value`; waits for room until `deadline`.
    ///
    /// # Errors
    /// Returns the value if the channel is still full then, or closed.
    pub fn publish_deadline(
        &mut self,
        value: T,
        deadline: Instant,
    ) -> Result<Seq, TryPublishError<T>> {
        let mut value = value;
        loop {
            match self.try_publish(value) {
                Err(TryPublishError::Full(back)) => value = back,
                other => return other,
            }
            if !self.wait_for(1, Some(deadline)) {
                return self.try_publish(value);
            }
        }
    }

    /// Publishes all values of an iterator as one uninterrupted batch; waits until it fits.
    /// Returns the positions. An empty batch is valid and has an empty range.
    ///
    /// Nothing is published if the iterator panics, or has more values than the capacity. There is
    /// one exception: a sole publisher may write straight into the ring, and then publishes the
    /// values yielded before the panic.
    ///
    /// # Errors
    /// Returns the values if the channel is closed or the batch is longer than the capacity.
    pub fn publish_all<I: IntoIterator<Item = T>>(
        &mut self,
        values: I,
    ) -> Result<Range<Seq>, BatchError<Vec<T>>> {
        self.publish_iter(values.into_iter(), Patience::Endless)
    }

    /// Publishes all values of an iterator as one uninterrupted batch, if it fits now.
    ///
    /// # Errors
    /// Returns the values if the batch does not fit now, is longer than the capacity, or the
    /// channel is closed.
    pub fn try_publish_all<I: IntoIterator<Item = T>>(
        &mut self,
        values: I,
    ) -> Result<Range<Seq>, BatchError<Vec<T>>> {
        self.publish_iter(values.into_iter(), Patience::None)
    }

    #[inline]
    fn publish_iter(
        &mut self,
        values: impl Iterator<Item = T>,
        patience: Patience,
    ) -> Result<Range<Seq>, BatchError<Vec<T>>> {
        let (least, most) = values.size_hint();
        if most == Some(least) && (1..=self.capacity()).contains(&least) {
            // The length is known, so a sole publisher need not collect the values first.
            loop {
                match self.writer.can_fill(least) {
                    None => break,
                    Some(Ok(())) => return Ok(self.writer.fill(least, values)),
                    Some(Err(Refusal::Closed)) => return Err(BatchError::Closed(values.collect())),
                    Some(Err(Refusal::Full)) => {
                        if !self.wait_patiently(least, patience) {
                            return Err(BatchError::Full(values.collect()));
                        }
                    }
                }
            }
        }
        // If the iterator panics, this drops the values collected so far.
        let mut buffer = mem::replace(&mut self.buffer, Staged::new());
        buffer.extend(values);
        if buffer.len() > self.capacity() {
            return Err(BatchError::TooLong(buffer.take()));
        }
        match self.publish_buffer(&mut buffer, patience) {
            Ok(range) => {
                self.buffer = buffer;
                Ok(range)
            }
            Err(Refusal::Full) => Err(BatchError::Full(buffer.take())),
            Err(Refusal::Closed) => Err(BatchError::Closed(buffer.take())),
        }
    }

    /// Publishes `values`, which must fit into the capacity, and empties it. On an error it is
    /// unchanged.
    fn publish_buffer(
        &mut self,
        values: &mut Staged<T>,
        patience: Patience,
    ) -> Result<Range<Seq>, Refusal> {
        let n = values.len();
        if n == 0 {
            let next = self.next_seq();
            return Ok(next..next);
        }
        loop {
            match self.writer.try_push_all(values) {
                Ok(first) => return Ok(first..first + n as u64),
                Err(Refusal::Closed) => return Err(Refusal::Closed),
                Err(Refusal::Full) => {
                    if !self.wait_patiently(n, patience) {
                        return Err(Refusal::Full);
                    }
                }
            }
        }
    }

    /// Publishes copies of all `values` as one uninterrupted batch; waits until it fits. Returns
    /// the positions.
    ///
    /// # Errors
    /// The channel is closed, or there are more values than the capacity.
    pub fn publish_slice<'a>(&mut self, values: &'a [T]) -> Result<Range<Seq>, BatchError<&'a [T]>>
    where
        T: Copy,
    {
        self.publish_copies(values, Patience::Endless)
    }

    /// Publishes copies of all `values` as one uninterrupted batch, if it fits now.
    ///
    /// # Errors
    /// The batch does not fit now, is longer than the capacity, or the channel is closed.
    pub fn try_publish_slice<'a>(
        &mut self,
        values: &'a [T],
    ) -> Result<Range<Seq>, BatchError<&'a [T]>>
    where
        T: Copy,
    {
        self.publish_copies(values, Patience::None)
    }

    #[inline]
    fn publish_copies<'a>(
        &mut self,
        values: &'a [T],
        patience: Patience,
    ) -> Result<Range<Seq>, BatchError<&'a [T]>>
    where
        T: Copy,
    {
        let n = values.len();
        if n > self.capacity() {
            return Err(BatchError::TooLong(values));
        }
        if n == 0 {
            let next = self.next_seq();
            return Ok(next..next);
        }
        loop {
            match self.writer.try_push_slice(values) {
                Ok(first) => return Ok(first..first + n as u64),
                Err(Refusal::Closed) => return Err(BatchError::Closed(values)),
                Err(Refusal::Full) => {
                    if !self.wait_patiently(n, patience) {
                        return Err(BatchError::Full(values));
                    }
                }
            }
        }
    }

    #[cold]
    fn wait_patiently(&mut self, n: usize, patience: Patience) -> bool {
        match patience {
            Patience::None => false,
            Patience::Endless => self.wait_for(n, None),
        }
    }

    /// Waits until `n` entries fit or the channel is closed.
    #[cold]
    fn wait_for(&mut self, n: usize, deadline: Option<Instant>) -> bool {
        let (ring, writer) = (&*self.ring, &mut self.writer);
        let mut ready = || ring.is_closed() || writer.room(n as u64) >= n as u64;
        // A strategy that always returns true must not hold the caller beyond the deadline.
        ring.room.wait_until(deadline, &mut ready)
            && (deadline.is_none_or(|deadline| Instant::now() < deadline) || ready())
    }

    /// Number of entries that this publisher can publish now without waiting. Other publishers may
    /// use the room first.
    #[inline]
    pub fn room(&mut self) -> usize {
        let enough = self.capacity().div_ceil(2) as u64;
        self.writer.room(enough) as usize
    }

    /// The position of the next entry, unless another publisher publishes first.
    #[inline]
    pub fn next_seq(&self) -> Seq {
        self.writer.next_seq()
    }

    /// Most entries that can be published and not yet released by the slowest subscription.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// How often this publisher found too little room for what it wanted to publish.
    pub fn times_full(&self) -> u64 {
        self.writer.times_full()
    }

    /// Collects `n` values at a time and publishes them as one batch, with one claim.
    ///
    /// # Panics
    /// If `n` is 0 or more than the capacity.
    pub fn buffered(&mut self, n: usize) -> Buffered<'_, T, W> {
        assert!(
            (1..=self.capacity()).contains(&n),
            "{n} values do not fit into a capacity of {}",
            self.capacity()
        );
        Buffered {
            values: Staged::new(),
            n,
            publisher: self,
        }
    }

    /// Closes the channel for all publishers. Subscriptions read the entries published so far,
    /// then see the end.
    pub fn close(&mut self) {
        self.writer.close();
    }

    /// Whether the channel is closed for publishing.
    pub fn is_closed(&self) -> bool {
        self.ring.is_closed()
    }

    /// A handle of the channel, for subscribing and for statistics.
    pub fn log(&self) -> Log<T, W> {
        Log::of(&self.ring)
    }
}

/// Collects values and publishes them in batches; see [`Publisher::buffered`]. Dropping it
/// publishes the values collected so far.
///
/// ```
/// let (mut publisher, log) = dominoes::channel::<u32, dominoes::SpinYield>(8);
/// let mut buffered = publisher.buffered(3);
/// for n in 0..4 {
///     buffered.push(n).unwrap();
/// }
/// assert_eq!(log.len(), 0); // nobody subscribes, so nothing waits
/// buffered.flush().unwrap();
/// drop(buffered);
/// assert_eq!(publisher.next_seq(), 4);
/// ```
pub struct Buffered<'a, T: Send + Sync, W: Wait> {
    publisher: &'a mut Publisher<T, W>,
    values: Staged<T>,
    n: usize,
}

impl<T: Send + Sync, W: Wait> Buffered<'_, T, W> {
    /// Adds a value. If the batch is complete, publishes it, and waits while it does not fit.
    ///
    /// # Errors
    /// Returns all collected values if the channel is closed.
    pub fn push(&mut self, value: T) -> Result<(), Closed<Vec<T>>> {
        // The batch is already complete if the flush of its last value unwound. If it grew beyond
        // the capacity, it would wait forever.
        if self.values.len() == self.n
            && let Err(Closed(mut values)) = self.flush()
        {
            values.push(value);
            return Err(Closed(values));
        }
        self.values.extend([value].into_iter());
        if self.values.len() == self.n {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Publishes the values collected so far; waits while they do not fit.
    ///
    /// # Errors
    /// Returns the values if the channel is closed.
    pub fn flush(&mut self) -> Result<(), Closed<Vec<T>>> {
        match self
            .publisher
            .publish_buffer(&mut self.values, Patience::Endless)
        {
            Ok(_) => Ok(()),
            Err(_) => Err(Closed(self.values.take())),
        }
    }

    /// Number of values collected and not yet published.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether no values are collected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Send + Sync, W: Wait> Drop for Buffered<'_, T, W> {
    fn drop(&mut self) {
        // A thread that unwinds does not wait for others; its values are published only if there
        // is room.
        let patience = if std::thread::panicking() {
            Patience::None
        } else {
            Patience::Endless
        };
        let _ = self.publisher.publish_buffer(&mut self.values, patience);
    }
}

impl<T: Send + Sync, W: Wait> fmt::Debug for Buffered<'_, T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffered")
            .field("len", &self.values.len())
            .field("of", &self.n)
            .finish()
    }
}

#[derive(Clone, Copy)]
enum Patience {
    None,
    Endless,
}

impl<T, W: Wait> Clone for Publisher<T, W> {
    fn clone(&self) -> Self {
        Publisher {
            writer: self.writer.clone(),
            ring: self.ring.clone(),
            buffer: Staged::new(),
        }
    }
}

impl<T: Send + Sync, W: Wait> fmt::Debug for Publisher<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher")
            .field("next_seq", &self.next_seq())
            .field("capacity", &self.capacity())
            .finish()
    }
}
