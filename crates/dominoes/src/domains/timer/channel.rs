//! Clocks, and both ways to feed expiries to domains.

use super::{Tick, TimerId, Wheel};
use crate::{
    Domain, Feed, Meter, Publisher, Served, Then, TryPublishError, Turn, Wait, WaitSet, WakeSource,
};
use crossbeam_queue::SegQueue;
use std::{
    collections::HashMap,
    fmt,
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// A source of time.
pub trait Clock: Send {
    /// The time now, in ticks. Never decreases.
    fn now(&self) -> Tick;

    /// Adds to `set` what ends a sleep at `deadline`: the moment itself, or a source that notifies
    /// when the time changes. By default the set becomes [unknown](WaitSet::unknown).
    fn wake_sources(&self, deadline: Tick, set: &mut WaitSet) {
        let _ = deadline;
        set.unknown();
    }
}

/// The machine's clock, starting at 0 when it is created.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: Instant,
    tick: Duration,
}

impl SystemClock {
    /// A clock with ticks of this length.
    ///
    /// # Panics
    /// If `tick` is zero.
    pub fn new(tick: Duration) -> Self {
        assert!(!tick.is_zero(), "a tick has a length");
        SystemClock {
            origin: Instant::now(),
            tick,
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Tick {
        let ticks = self.origin.elapsed().as_nanos() / self.tick.as_nanos();
        Tick::try_from(ticks).unwrap_or(Tick::MAX)
    }

    fn wake_sources(&self, deadline: Tick, set: &mut WaitSet) {
        const SECOND: u128 = 1_000_000_000;
        let after = self.tick.as_nanos().saturating_mul(deadline.into());
        // A moment beyond the range of the machine's clock never comes.
        let moment = u64::try_from(after / SECOND).ok().and_then(|seconds| {
            let after = Duration::new(seconds, (after % SECOND) as u32);
            self.origin.checked_add(after)
        });
        if let Some(moment) = moment {
            set.until(moment);
        }
    }
}

/// A clock that is moved by hand, for tests and simulations. Clones share the time.
#[derive(Debug, Default, Clone)]
pub struct ManualClock(Arc<ManualTime>);

#[derive(Debug, Default)]
struct ManualTime {
    now: AtomicU64,
    moved: WakeSource,
}

impl ManualClock {
    /// A clock at 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Advances the time by `ticks`, and wakes contexts with running timers.
    pub fn pass(&self, ticks: Tick) {
        self.0.now.fetch_add(ticks, Ordering::Relaxed);
        self.0.moved.notify_all();
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Tick {
        self.0.now.load(Ordering::Relaxed)
    }

    fn wake_sources(&self, _: Tick, set: &mut WaitSet) {
        set.add(&self.0.moved);
    }
}

/// The timers of one domain, as a feed of its service: the first mode.
///
/// The wheel is in the domain's state, so every handler can start and cancel timers. This feed
/// advances the wheel's time and passes on expiries.
///
/// ```
/// use dominoes::{Domain, ManualClock, Service, Tick, TimerFeed, Wheel};
///
/// struct State { timers: Wheel<&'static str>, log: Vec<(Tick, &'static str)> }
///
/// let clock = ManualClock::new();
/// let mut service = Service::new(0, "own timers", State { timers: Wheel::new(0), log: vec![] });
/// service.add_feed(0, TimerFeed::new(
///     clock.clone(),
///     |state: &mut State| &mut state.timers,
///     |state: &mut State, deadline, what| state.log.push((deadline, what)),
/// ));
/// service.state_mut().timers.start(100, "ack");
/// clock.pass(99);
/// service.run();
/// assert!(service.state().log.is_empty());
/// clock.pass(1);
/// service.run();
/// assert_eq!(service.state().log, [(100, "ack")]);
/// ```
pub struct TimerFeed<S, V, C, G, F> {
    clock: C,
    timers: G,
    handler: F,
    kind: PhantomData<fn(S) -> V>,
}

impl<S, V, C, G, F> TimerFeed<S, V, C, G, F>
where
    C: Clock,
    G: Fn(&mut S) -> &mut Wheel<V> + Send,
    F: FnMut(&mut S, Tick, V) + Send,
{
    /// Passes the timers that expire to `handler`, with their deadlines. `timers` finds the wheel
    /// in the state.
    pub fn new(clock: C, timers: G, handler: F) -> Self {
        TimerFeed {
            clock,
            timers,
            handler,
            kind: PhantomData,
        }
    }
}

impl<S, V, C, G, F> Feed<S> for TimerFeed<S, V, C, G, F>
where
    C: Clock,
    G: Fn(&mut S) -> &mut Wheel<V> + Send,
    F: FnMut(&mut S, Tick, V) + Send,
{
    fn serve(&mut self, state: &mut S, limit: usize) -> Served {
        let now = self.clock.now();
        for handled in 0..limit {
            // One at a time, since a handler may cancel later timers.
            let Some((deadline, value)) = (self.timers)(state).pop_due(now) else {
                let then = Then::Empty;
                return Served { handled, then };
            };
            (self.handler)(state, deadline, value);
        }
        Served {
            handled: limit,
            then: Then::More,
        }
    }

    fn lag(&self) -> u64 {
        0 // the number of due timers is known only when time advances
    }

    fn wake_sources(&mut self, state: &mut S, set: &mut WaitSet) {
        if let Some(deadline) = (self.timers)(state).next_deadline() {
            self.clock.wake_sources(deadline, set);
        }
    }
}

impl<S, V, C: fmt::Debug, G, F> fmt::Debug for TimerFeed<S, V, C, G, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerFeed")
            .field("clock", &self.clock)
            .finish()
    }
}

enum TimerOrder<V> {
    Start(u64, Tick, V),
    Cancel(u64),
}

/// Starts and cancels timers of a [`TimerPublisher`], from any thread, without waiting. The caller
/// chooses keys to name the timers.
pub struct TimerControl<V> {
    orders: Arc<Orders<V>>,
}

/// State that a [`TimerPublisher`] shares with its controls.
struct Orders<V> {
    queue: SegQueue<TimerOrder<V>>,
    controls: AtomicUsize,
    /// Notified of each order, and when the last control is dropped.
    news: WakeSource,
}

impl<V> Orders<V> {
    fn push(&self, order: TimerOrder<V>) {
        self.queue.push(order);
        self.news.notify_all();
    }
}

impl<V> TimerControl<V> {
    /// Starts the timer `key`, which fires at `deadline`. Replaces a running timer of that key.
    pub fn start(&self, key: u64, deadline: Tick, value: V) {
        self.orders.push(TimerOrder::Start(key, deadline, value));
    }

    /// Cancels the timer `key` if it runs. An expiry that is already published stays published.
    pub fn cancel(&self, key: u64) {
        self.orders.push(TimerOrder::Cancel(key));
    }
}

impl<V> Clone for TimerControl<V> {
    fn clone(&self) -> Self {
        self.orders.controls.fetch_add(1, Ordering::Relaxed);
        TimerControl {
            orders: self.orders.clone(),
        }
    }
}

impl<V> Drop for TimerControl<V> {
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the Acquire in `TimerPublisher::turn`: its orders are in
        // the queue. (Every decrement is a Release, so a load of zero acquires from all of them.)
        self.orders.controls.fetch_sub(1, Ordering::Release);
        self.orders.news.notify_all();
    }
}

impl<V> fmt::Debug for TimerControl<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerControl").finish_non_exhaustive()
    }
}

/// Owns timers for other domains and publishes their expiries into the main channel of those
/// domains: the second mode. It is a domain itself, so any context can run it.
///
/// An expiry is an entry like any other, at one position for all replicas. If the channel is full,
/// the expiry waits, and later ones wait for it, without blocking the context.
///
/// ```
/// use dominoes::{Domain, ManualClock, SpinYield, TimerPublisher, channel};
///
/// let (publisher, log) = channel::<String, SpinYield>(8);
/// let mut main = log.subscribe()?;
/// let clock = ManualClock::new();
/// let (mut timers, control) =
///     TimerPublisher::new(clock.clone(), publisher, |at, key, who: &str| format!("{key} {who} {at}"));
/// control.start(1, 50, "x");
/// control.start(2, 60, "y");
/// control.cancel(1);
/// clock.pass(60);
/// timers.run();
/// let batch = main.try_next_batch()?;
/// assert_eq!(batch.iter().map(|(_, s)| s.as_str()).collect::<Vec<_>>(), ["2 y 60"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TimerPublisher<T, V, W: Wait, C, F> {
    clock: C,
    orders: Arc<Orders<V>>,
    wheel: Wheel<(u64, V)>,
    /// Running timers, by key.
    running: HashMap<u64, TimerId>,
    publisher: Publisher<T, W>,
    entry: F,
    /// An expiry that found the channel full, with its key.
    stuck: Option<(u64, T)>,
    meter: Arc<Meter>,
}

impl<T, V, W, C, F> TimerPublisher<T, V, W, C, F>
where
    T: Send + Sync,
    W: Wait,
    C: Clock,
    F: FnMut(Tick, u64, V) -> T,
{
    /// For each timer that expires, publishes the entry that `entry` makes from deadline, key and
    /// value. The domain is finished when the channel is closed, or when the last control is
    /// dropped and no timer runs.
    pub fn new(clock: C, publisher: Publisher<T, W>, entry: F) -> (Self, TimerControl<V>) {
        let orders = Arc::new(Orders {
            queue: SegQueue::new(),
            controls: AtomicUsize::new(1),
            news: WakeSource::new(),
        });
        let control = TimerControl {
            orders: orders.clone(),
        };
        let wheel = Wheel::new(clock.now());
        let timers = TimerPublisher {
            clock,
            orders,
            wheel,
            running: HashMap::new(),
            publisher,
            entry,
            stuck: None,
            meter: Arc::default(),
        };
        (timers, control)
    }

    /// The time at which the next timer expires; `None` if none runs.
    pub fn next_deadline(&self) -> Option<Tick> {
        self.wheel.next_deadline()
    }

    fn cancel(&mut self, key: u64) {
        if let Some(id) = self.running.remove(&key) {
            self.wheel.cancel(id);
        }
        if self.stuck.as_ref().is_some_and(|(stuck, _)| *stuck == key) {
            self.stuck = None;
        }
    }

    /// Carries out pending orders. Returns whether there were any.
    fn obey(&mut self) -> bool {
        let mut any = false;
        while let Some(order) = self.orders.queue.pop() {
            any = true;
            match order {
                TimerOrder::Start(key, deadline, value) => {
                    self.cancel(key);
                    let id = self.wheel.start(deadline, (key, value));
                    self.running.insert(key, id);
                }
                TimerOrder::Cancel(key) => self.cancel(key),
            }
        }
        any
    }

    /// Runs one turn: first the orders, then the timers that are due.
    pub fn turn(&mut self) -> Turn {
        // Read before the orders, so that no order can be missed.
        // ORDERING: Acquire, pairs with the Release in `TimerControl::drop`: the orders of all
        // controls are visible below.
        let last = self.orders.controls.load(Ordering::Acquire) == 0;
        let mut worked = self.obey();
        let now = self.clock.now();
        loop {
            let (key, entry) = match self.stuck.take() {
                Some(stuck) => stuck,
                None => {
                    let Some((deadline, (key, value))) = self.wheel.pop_due(now) else {
                        break;
                    };
                    self.running.remove(&key);
                    (key, (self.entry)(deadline, key, value))
                }
            };
            match self.publisher.try_publish(entry) {
                Ok(_) => {
                    worked = true;
                    self.meter.handled(1);
                }
                Err(TryPublishError::Full(entry)) => {
                    self.stuck = Some((key, entry));
                    self.meter.waited();
                    return if worked { Turn::Worked } else { Turn::Waiting };
                }
                Err(TryPublishError::Closed(_)) => return Turn::Finished,
            }
        }
        if worked {
            Turn::Worked
        } else if last && self.wheel.is_empty() {
            Turn::Finished
        } else {
            Turn::Idle
        }
    }
}

impl<T, V, W, C, F> Domain for TimerPublisher<T, V, W, C, F>
where
    T: Send + Sync + 'static,
    V: Send + 'static,
    W: Wait,
    C: Clock + 'static,
    F: FnMut(Tick, u64, V) -> T + Send + 'static,
{
    fn run(&mut self) -> Turn {
        self.turn()
    }

    fn wake_sources(&mut self, set: &mut WaitSet) {
        set.add(&self.orders.news);
        if self.stuck.is_some() {
            // Due timers wait for it.
            self.publisher.room_sources(set);
        } else if let Some(deadline) = self.wheel.next_deadline() {
            self.clock.wake_sources(deadline, set);
        }
    }

    fn name(&self) -> &str {
        "timers"
    }

    fn meter(&self) -> Option<Arc<Meter>> {
        Some(self.meter.clone())
    }
}

impl<T, V, W: Wait, C: fmt::Debug, F> fmt::Debug for TimerPublisher<T, V, W, C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerPublisher")
            .field("clock", &self.clock)
            .field("running", &self.running.len())
            .field("stuck", &self.stuck.is_some())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Service, SpinYield, Subscription, channel};

    type Entry = (Tick, u64, u32);

    fn timers(
        capacity: usize,
    ) -> (
        impl FnMut() -> Turn,
        TimerControl<u32>,
        ManualClock,
        Subscription<Entry, SpinYield>,
    ) {
        let (publisher, log) = channel(capacity);
        let subscription = log.subscribe().unwrap();
        let clock = ManualClock::new();
        let entry = |at, key, value| (at, key, value);
        let (mut timers, control) = TimerPublisher::new(clock.clone(), publisher, entry);
        (move || timers.turn(), control, clock, subscription)
    }

    fn take(subscription: &mut Subscription<Entry, SpinYield>) -> Vec<Entry> {
        let Ok(batch) = subscription.try_next_batch() else {
            return Vec::new();
        };
        batch.iter().map(|(_, entry)| *entry).collect()
    }

    #[test]
    fn expiries_enter_the_main_channel_in_order_and_once() {
        let (mut turn, control, clock, mut main) = timers(64);
        for (key, deadline) in [(1, 300), (2, 100), (3, 100), (4, 5000)] {
            control.start(key, deadline, 7);
        }
        control.start(3, 200, 8); // replaces the one at 100
        clock.pass(1000);
        assert_eq!(turn(), Turn::Worked);
        assert_eq!(take(&mut main), [(100, 2, 7), (200, 3, 8), (300, 1, 7)]);
        assert_eq!(turn(), Turn::Idle);
    }

    #[test]
    fn a_full_channel_delays_expiries_and_loses_none() {
        let (mut turn, control, clock, mut main) = timers(2);
        (0..5).for_each(|key| control.start(key, 10 + key, 0));
        clock.pass(50);
        assert_eq!((turn(), turn()), (Turn::Worked, Turn::Waiting));
        control.cancel(2); // the one that waits for room
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.extend(take(&mut main).iter().map(|entry| entry.1));
            turn();
        }
        assert_eq!(seen, [0, 1, 3, 4]);
    }

    #[test]
    fn it_is_finished_when_nobody_can_start_timers_and_none_runs() {
        let (mut turn, control, clock, mut main) = timers(2);
        control.start(1, 10, 0);
        drop(control);
        assert_eq!((turn(), turn()), (Turn::Worked, Turn::Idle));
        clock.pass(10);
        assert_eq!((turn(), turn()), (Turn::Worked, Turn::Finished));
        assert_eq!(take(&mut main).len(), 1);
    }

    #[test]
    fn a_timeout_of_one_domain_does_not_wait_for_its_queue_of_requests() {
        // The first timeout is seen before a long series of requests is completed.
        let (mut publisher, log) = channel::<u32, SpinYield>(64);
        let clock = ManualClock::new();
        struct TimerState(Wheel<u32>, Vec<u32>);
        let mut service = Service::new(0, "", TimerState(Wheel::new(0), Vec::new())).with_batch(4);
        let handle = |state: &mut TimerState, _, n: &u32| state.1.push(*n);
        service.subscribe(0, log.subscribe().unwrap(), handle);
        let expire = |state: &mut TimerState, _, n| state.1.push(n);
        service.add_feed(
            9,
            TimerFeed::new(clock.clone(), |s: &mut TimerState| &mut s.0, expire),
        );
        publisher.publish_all(0..12).unwrap();
        service.state_mut().0.start(1, 100);
        clock.pass(1);
        while service.run() == Turn::Worked {}
        assert_eq!(
            service.state().1,
            [0, 1, 2, 3, 100, 4, 5, 6, 7, 8, 9, 10, 11]
        );
    }

    #[test]
    fn a_sleep_until_a_tick_of_the_system_clock_ends_when_the_tick_begins() {
        let clock = SystemClock::new(Duration::from_micros(250));
        let deadline = |tick| {
            let mut set = WaitSet::new();
            clock.wake_sources(tick, &mut set);
            assert!(set.is_complete() && set.is_empty());
            set.deadline()
        };
        assert_eq!(deadline(0), Some(clock.origin));
        let later = clock.origin + Duration::from_micros(2_500_250);
        assert_eq!(deadline(10_001), Some(later));
        let never = SystemClock::new(Duration::MAX);
        let mut set = WaitSet::new();
        never.wake_sources(Tick::MAX, &mut set);
        assert!(set.is_complete() && set.deadline().is_none());
    }

    #[test]
    fn the_system_clock_counts_ticks_of_its_length() {
        let clock = SystemClock::new(Duration::from_micros(100));
        let before = clock.now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.now() >= before + 20);
    }
}
