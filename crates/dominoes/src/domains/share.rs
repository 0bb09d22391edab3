//! Work-sharing channels: each entry goes to one subscription, newest first or in no particular
//! order.

use crate::{
    Channel, Closed, NoBatch, Publish, Receive, SpinYield, SubscribeError, TryPublishError, Wait,
    WaitSet,
    channel::{Delivery, Order},
    sync::{Arc, AtomicUsize, Ordering},
};
use crossbeam_queue::ArrayQueue;
use std::{fmt, marker::PhantomData, time::Instant};

/// A bounded collection that stores the entries of a [`WorkShare`] channel. Implement it for
/// another order.
pub trait Pool<T>: Send + Sync {
    /// The order in which entries are returned.
    const ORDER: Order;

    /// An empty pool with room for `capacity` entries.
    fn with_capacity(capacity: usize) -> Self;

    /// Stores a value, or returns it if the pool is full.
    ///
    /// # Errors
    /// The value.
    fn push(&self, value: T) -> Result<(), T>;

    /// Removes and returns a value.
    fn pop(&self) -> Option<T>;

    /// Number of values. May already be out of date.
    fn len(&self) -> usize;

    /// Whether there are no values.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Values in no particular order, in the lock-free array queue of `crossbeam-queue`.
pub struct Unordered<T>(ArrayQueue<T>);

impl<T: Send> Pool<T> for Unordered<T> {
    const ORDER: Order = Order::Unordered;

    fn with_capacity(capacity: usize) -> Self {
        Unordered(ArrayQueue::new(capacity))
    }

    fn push(&self, value: T) -> Result<(), T> {
        self.0.push(value)
    }

    fn pop(&self) -> Option<T> {
        self.0.pop()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl<T> fmt::Debug for Unordered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unordered")
            .field("capacity", &self.0.capacity())
            .finish()
    }
}

struct PoolShared<P, W> {
    pool: P,
    publishers: AtomicUsize,
    workers: AtomicUsize,
    entries: W,
    room: W,
}

/// A channel that gives each entry to one of its workers. Like a [`Log`](crate::Log), a handle
/// that any thread may use.
///
/// ```
/// use dominoes::{Channel, Publish, Receive, SpinYield, Unordered, WorkShare};
///
/// let (mut publisher, share) = WorkShare::<u32, Unordered<u32>, SpinYield>::open(4);
/// let (mut one, mut other) = (share.join()?, share.join()?);
/// publisher.put(1)?;
/// publisher.put(2)?;
/// let mut seen = Vec::new();
/// one.receive(1, |n| seen.push(*n))?;
/// other.receive(1, |n| seen.push(*n))?;
/// seen.sort();
/// assert_eq!(seen, [1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WorkShare<T, P: Pool<T> = Unordered<T>, W: Wait = SpinYield> {
    shared: Arc<PoolShared<P, W>>,
    _item: PhantomData<fn() -> T>,
}

/// Publishes into a [`WorkShare`]. The channel closes when the last publisher is dropped.
pub struct SharePublisher<T, P: Pool<T> = Unordered<T>, W: Wait = SpinYield> {
    shared: Arc<PoolShared<P, W>>,
    _item: PhantomData<fn() -> T>,
}

/// Takes entries out of a [`WorkShare`]. Entries that it has taken are its alone; all others go to
/// any worker.
pub struct PoolWorker<T, P: Pool<T> = Unordered<T>, W: Wait = SpinYield> {
    shared: Arc<PoolShared<P, W>>,
    active: bool,
    _item: PhantomData<fn() -> T>,
}

impl<T: Send, P: Pool<T>, W: Wait> Channel for WorkShare<T, P, W> {
    type Item = T;
    type Publisher = SharePublisher<T, P, W>;
    type Subscription = PoolWorker<T, P, W>;
    const ORDER: Order = P::ORDER;
    const DELIVERY: Delivery = Delivery::Someone;

    fn open(capacity: usize) -> (SharePublisher<T, P, W>, Self) {
        assert!(capacity >= 1, "a channel has a capacity of at least 1");
        let shared = Arc::new(PoolShared {
            pool: P::with_capacity(capacity),
            publishers: AtomicUsize::new(1),
            workers: AtomicUsize::new(0),
            entries: W::default(),
            room: W::default(),
        });
        (
            SharePublisher {
                shared: shared.clone(),
                _item: PhantomData,
            },
            WorkShare {
                shared,
                _item: PhantomData,
            },
        )
    }

    fn join(&self) -> Result<PoolWorker<T, P, W>, SubscribeError> {
        self.shared.workers.fetch_add(1, Ordering::Relaxed);
        Ok(PoolWorker {
            shared: self.shared.clone(),
            active: true,
            _item: PhantomData,
        })
    }

    fn backlog(&self) -> usize {
        self.shared.pool.len()
    }
}

impl<T: Send, P: Pool<T>, W: Wait> WorkShare<T, P, W> {
    /// Number of workers. May already be out of date.
    pub fn workers(&self) -> usize {
        self.shared.workers.load(Ordering::Relaxed)
    }

    /// Number of publishers. May already be out of date.
    pub fn publishers(&self) -> usize {
        self.shared.publishers.load(Ordering::Relaxed)
    }
}

impl<T: Send, P: Pool<T>, W: Wait> Publish<T> for SharePublisher<T, P, W> {
    fn offer(&mut self, value: T) -> Result<(), TryPublishError<T>> {
        match self.shared.pool.push(value) {
            Ok(()) => {
                self.shared.entries.notify();
                Ok(())
            }
            Err(value) => Err(TryPublishError::Full(value)),
        }
    }

    fn put(&mut self, value: T) -> Result<(), Closed<T>> {
        let mut value = Some(value);
        let shared = &*self.shared;
        // A wait strategy may call this again after the value is stored, and may return too early.
        let mut push = || match value.take().map(|value| shared.pool.push(value)) {
            None | Some(Ok(())) => true,
            Some(Err(back)) => {
                value = Some(back);
                false
            }
        };
        while !push() {
            shared.room.wait_until(None, &mut push);
        }
        shared.entries.notify();
        Ok(())
    }
}

impl<T: Send, P: Pool<T>, W: Wait> PoolWorker<T, P, W> {
    /// Takes an entry, if there is one.
    ///
    /// # Errors
    /// The reason why there is no entry. A worker that is not active finds none.
    pub fn try_take(&mut self) -> Result<T, NoBatch> {
        if !self.active {
            return Err(NoBatch::Empty);
        }
        // ORDERING: Acquire, pairs with the Release decrement in `SharePublisher::drop`. Read this
        // first, then check the pool a last time.
        let closed = self.shared.publishers.load(Ordering::Acquire) == 0;
        match self.shared.pool.pop() {
            Some(value) => {
                self.shared.room.notify();
                Ok(value)
            }
            None if closed => Err(NoBatch::Closed),
            None => Err(NoBatch::Empty),
        }
    }

    /// Takes an entry, and waits for one until `deadline`, or without limit.
    ///
    /// # Errors
    /// [`NoBatch::Empty`] after the deadline, or if this worker is not active; [`NoBatch::Closed`]
    /// when there will be no more entries.
    pub fn take(&mut self, deadline: Option<Instant>) -> Result<T, NoBatch> {
        let mut found = self.try_take();
        if self.active && matches!(found, Err(NoBatch::Empty)) {
            let shared = self.shared.clone();
            shared.entries.wait_until(deadline, || {
                // A wait strategy may call this again after an entry was found.
                if matches!(found, Err(NoBatch::Empty)) {
                    found = self.try_take();
                }
                !matches!(found, Err(NoBatch::Empty))
            });
        }
        found
    }

    /// Adds to `set` the source that notifies when there may be entries, or there will be no more.
    /// Adds none if this worker is not active. A wait strategy that wakes no thread makes the set
    /// [unknown](WaitSet::unknown).
    pub fn wake_sources(&self, set: &mut WaitSet) {
        if self.active {
            set.add_strategy(&self.shared.entries);
        }
    }

    /// Stops taking entries until [`activate`](Self::activate).
    pub fn deactivate(&mut self) {
        self.active = false;
    }

    /// Takes entries again.
    pub fn activate(&mut self) {
        self.active = true;
    }
}

impl<T: Send, P: Pool<T>, W: Wait> Receive<T> for PoolWorker<T, P, W> {
    fn receive(&mut self, limit: usize, mut handler: impl FnMut(&T)) -> Result<usize, NoBatch> {
        let mut n = 0;
        while n < limit {
            match self.try_take() {
                Ok(value) => handler(&value),
                Err(why) if n == 0 => return Err(why),
                Err(_) => break,
            }
            n += 1;
        }
        Ok(n)
    }

    fn wake_sources(&self, set: &mut WaitSet) {
        PoolWorker::wake_sources(self, set);
    }
}

impl<T, P: Pool<T>, W: Wait> Clone for WorkShare<T, P, W> {
    fn clone(&self) -> Self {
        WorkShare {
            shared: self.shared.clone(),
            _item: PhantomData,
        }
    }
}

impl<T, P: Pool<T>, W: Wait> Clone for SharePublisher<T, P, W> {
    fn clone(&self) -> Self {
        self.shared.publishers.fetch_add(1, Ordering::Relaxed);
        SharePublisher {
            shared: self.shared.clone(),
            _item: PhantomData,
        }
    }
}

impl<T, P: Pool<T>, W: Wait> Drop for SharePublisher<T, P, W> {
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the Acquire in `PoolWorker::try_take`: all published
        // entries are in the pool. (Every decrement is a Release, so a load of zero acquires from
        // all of them.)
        self.shared.publishers.fetch_sub(1, Ordering::Release);
        self.shared.entries.notify();
    }
}

impl<T, P: Pool<T>, W: Wait> Drop for PoolWorker<T, P, W> {
    fn drop(&mut self) {
        self.shared.workers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T, P: Pool<T>, W: Wait> fmt::Debug for WorkShare<T, P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkShare")
            .field("order", &P::ORDER)
            .field("backlog", &self.shared.pool.len())
            .finish()
    }
}

impl<T, P: Pool<T>, W: Wait> fmt::Debug for SharePublisher<T, P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharePublisher")
            .field("order", &P::ORDER)
            .finish()
    }
}

impl<T, P: Pool<T>, W: Wait> fmt::Debug for PoolWorker<T, P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolWorker")
            .field("order", &P::ORDER)
            .field("active", &self.active)
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Lifo, Park};
    use std::thread;

    #[test]
    fn lifo_gives_the_newest_first() {
        let (mut publisher, share) = WorkShare::<u32, Lifo<u32>>::open(3);
        let mut worker = share.join().unwrap();
        for n in 0..3 {
            publisher.offer(n).unwrap();
        }
        assert!(publisher.offer(9).unwrap_err().is_full());
        let mut seen = Vec::new();
        worker.receive(9, |n| seen.push(*n)).unwrap();
        assert_eq!(seen, [2, 1, 0]);
    }

    #[test]
    fn a_worker_that_is_not_active_leaves_entries_to_others() {
        let (mut publisher, share) = WorkShare::<u32>::open(3);
        let (mut one, mut other) = (share.join().unwrap(), share.join().unwrap());
        one.deactivate();
        publisher.put(1).unwrap();
        assert_eq!(one.take(None), Err(NoBatch::Empty));
        assert_eq!(other.try_take(), Ok(1));
        one.activate();
        publisher.put(2).unwrap();
        assert_eq!(one.try_take(), Ok(2));
    }

    fn every_entry_goes_to_one_worker<P: Pool<u64> + 'static>() {
        let (publisher, share) = WorkShare::<u64, P, Park>::open(8);
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let mut worker = share.join().unwrap();
                thread::spawn(move || {
                    let mut seen = Vec::new();
                    while let Ok(n) = worker.take(None) {
                        seen.push(n);
                    }
                    seen
                })
            })
            .collect();
        let publishers: Vec<_> = (0..2)
            .map(|id| {
                let mut publisher = publisher.clone();
                thread::spawn(move || (0..2000).for_each(|n| publisher.put(id * 2000 + n).unwrap()))
            })
            .collect();
        drop(publisher);
        publishers
            .into_iter()
            .for_each(|publisher| publisher.join().unwrap());
        let mut all: Vec<u64> = workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..4000));
    }

    #[test]
    fn every_entry_goes_to_one_worker_in_both_kinds() {
        every_entry_goes_to_one_worker::<Lifo<u64>>();
        every_entry_goes_to_one_worker::<Unordered<u64>>();
    }
}
