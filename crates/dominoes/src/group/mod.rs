//! [`Group`]: replicas of any state, on threads, over one log.
//!
//! Every replica applies every request of the log, in order, to its own copy of the state. Applying
//! returns an *effect*: what is to be done about the request besides changing the state. One
//! replica, the request's primary, performs it.
//!
//! # What is guaranteed
//!
//! - *Order.* All replicas apply the same requests at the same positions. `apply` must be
//!   deterministic: it reads the state, the position and the request, and nothing else.
//! - *No effect is lost* while one replica lives. Every replica retains every effect until it is
//!   performed. If a primary panics, parks or leaves, others perform what it had not begun; if it
//!   stands still, they do so after [`Builder::patience`], or when the log has gone on by a quarter
//!   of its capacity.
//! - *An effect is completed once.* Before a worker performs effects it claims their *chunk*,
//!   [`Builder::chunk`] positions, by one compare-and-swap; no other worker performs effects of
//!   that chunk until the claim is released, and then it goes on behind the last one completed. So
//!   an effect is begun twice only if `perform` panicked in the middle of it. It is begun at most
//!   [`Builder::attempts`] times, 3 unless set, and then given up and counted; with 1, no effect is
//!   ever begun twice.
//! - *A worker that stands still in the middle of `perform`* is not known to have failed. The
//!   others wait for the rest of its chunk, and do all other work. They go on applying until the
//!   log is full; then publishers wait. The same holds for a worker that stands still in `apply`.
//! - *Effects of one chunk* are performed in ascending order, those of different chunks
//!   concurrently.
//! - *Failure.* A replica whose `apply`, `perform` or `clone` panics is gone, with its copy of the
//!   state. With [`Builder::revive`], which is the default, its thread joins again with a copy of
//!   another replica's. A request at which `apply` panics in every replica ends the group:
//!   publishers find the log closed, and [`Group::shut_down`] says so.
//! - *Divergence.* With [`Builder::observe`] or [`Builder::fingerprint`], replicas compare
//!   fingerprints of their states at equal positions, and one that differs from the majority takes
//!   over the state of one of the majority. What it performed until then is done, and may be wrong.
//!   With two replicas there is no majority: the difference is counted and reported.
//!
//! # Layers
//!
//! A [`Worker`] is one replica, whose turns can be called by hand: [`Builder::by_hand`]. A group
//! runs each on a thread. The rest of this module is what workers agree by, for those who build
//! workers of their own: [`Membership`] is who is there and who gives a state to whom,
//! [`Fingerprints`](crate::Fingerprints) with [`Agreement`] is who is right,
//! [`Units`](crate::Units) is what is performed.

mod join_check;
mod majority;
mod membership;
mod observe;
mod slots;
mod worker;

pub use join_check::CheckResult;
pub use majority::{Agreement, Fingerprints, Mismatch};
pub use membership::{MAX_REPLICAS, MembershipTable, replicas};
pub use observe::{Action, Divergence, Observe};
pub use slots::{Membership, MembershipError, MembershipStats, Served, WorkerState};
pub use worker::Worker;

use crate::{
    DomainHandle, DomainStats, Log, Meter, Park, Publisher, Seq, Units, WakeSource, channel,
};
use observe::{Hook, Observer, Prints};
use std::{
    collections::HashMap,
    error::Error,
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};
use worker::Snapshot;

/// What the user gives: how a request is applied, and how an effect is performed.
struct Code<A, P> {
    apply: A,
    perform: P,
}

/// What all workers share.
struct Shared<S, T: Send + Sync, E> {
    membership: Membership<Snapshot<S, T, E>>,
    /// Which effects are performed.
    units: Units,
    settings: Settings,
    observer: Option<Observer<S>>,
    /// For each slot.
    meters: Box<[Arc<Meter>]>,
    log: Log<T, Park>,
    /// Keeps the log open, and closes it.
    publisher: Mutex<Publisher<T, Park>>,
    interrupted: Mutex<Interrupted>,
    /// Notified when effects are performed, and of what happens in the slot table.
    news: WakeSource,
}

/// Effects in the middle of which `perform` panicked.
#[derive(Default)]
struct Interrupted {
    /// How often, of those that are not performed.
    attempts: HashMap<Seq, u32>,
    count: u64,
    abandoned: u64,
}

#[derive(Clone, Copy)]
struct Settings {
    /// log2 of the positions in a chunk.
    chunk_shift: u32,
    /// Chunks that have a word each.
    words: u64,
    steal_after: u64,
    patience: Duration,
    attempts: u32,
    revive: bool,
}

impl<S, T: Send + Sync, E> Shared<S, T, E> {
    fn chunk(&self, seq: Seq) -> u64 {
        seq >> self.settings.chunk_shift
    }

    /// The first position behind the chunk of `seq`.
    fn chunk_end(&self, seq: Seq) -> Seq {
        (self.chunk(seq) + 1) << self.settings.chunk_shift
    }

    /// Where the words end for a worker whose first pending effect is that of `first`.
    fn reach(&self, first: Seq) -> Seq {
        (self.chunk(first) + self.settings.words) << self.settings.chunk_shift
    }

    fn publisher(&self) -> Publisher<T, Park> {
        self.with_publisher(|publisher| publisher.clone())
    }

    fn with_publisher<R>(&self, use_it: impl FnOnce(&mut Publisher<T, Park>) -> R) -> R {
        use_it(
            &mut self
                .publisher
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    fn close(&self) {
        self.with_publisher(Publisher::close);
        self.news.notify_all();
    }

    /// Closes the log if no worker has the state any more.
    fn close_if_lost(&self) {
        if !self.membership.has_state() {
            self.close();
        }
    }
}

/// Why a group cannot do what it was asked to.
#[derive(Debug)]
#[non_exhaustive]
pub enum GroupError {
    /// A setting is out of its range.
    OutOfRange {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        allowed: &'static str,
    },
    /// A thread could not be started.
    Io(io::Error),
    /// No replica can join or leave.
    Membership(MembershipError),
    /// Every replica has failed: the state is lost, and effects may be.
    NoReplicaLeft,
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupError::OutOfRange {
                field,
                value,
                allowed,
            } => write!(f, "`{field}` is {value}; allowed is {allowed}"),
            GroupError::Io(error) => write!(f, "a replica's thread does not start: {error}"),
            GroupError::Membership(error) => error.fmt(f),
            GroupError::NoReplicaLeft => f.write_str("every replica has failed"),
        }
    }
}

impl Error for GroupError {}

impl From<MembershipError> for GroupError {
    fn from(error: MembershipError) -> Self {
        GroupError::Membership(error)
    }
}

/// What a group did so far. A moment's view.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStats {
    /// Replicas that are active, joined, failed, and so on.
    pub membership: MembershipStats,
    /// By replica slot: requests applied (`handled`), effects performed as a primary (`primary`)
    /// and in another primary's place (`steals`).
    pub replicas: Vec<DomainStats>,
    /// Requests published.
    pub published: u64,
    /// Times that `perform` panicked.
    pub interrupted: u64,
    /// Effects that were given up after as many attempts as are allowed.
    pub abandoned: u64,
}

impl GroupStats {
    /// Effects performed, by all replicas.
    pub fn performed(&self) -> u64 {
        let of = |replica: &DomainStats| replica.primary + replica.steals;
        self.replicas.iter().map(of).sum()
    }
}

/// Settings of a group; [`Group::builder`] makes one.
#[must_use = "a builder does nothing until it spawns a group"]
pub struct Builder<S> {
    state: S,
    replicas: usize,
    slots: usize,
    capacity: usize,
    chunk: usize,
    patience: Duration,
    attempts: u32,
    revive: bool,
    cores: Vec<usize>,
    every: u64,
    fields: &'static [&'static str],
    prints: Option<Prints<S>>,
    hook: Hook,
}

impl<S> fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("replicas", &self.replicas)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl<S> Builder<S> {
    /// The most replicas at a time, 1 to 56: room for [`Group::join`]. Values below the number of
    /// replicas at the beginning count as that. Default 0.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// Requests that may be published and not yet applied by the slowest replica, at least 4.
    /// Default 1024.
    pub fn capacity(mut self, requests: usize) -> Self {
        self.capacity = requests;
        self
    }

    /// Requests in a row that one worker performs, a power of two, at most the capacity. Default
    /// 16.
    pub fn chunk(mut self, requests: usize) -> Self {
        self.chunk = requests;
        self
    }

    /// How long nothing of what is due may be performed before others perform it. Default 1 ms.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How often an effect is begun, at least 1, if `perform` panics in the middle of it. Default
    /// 3.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Whether the thread of a replica that panicked joins again, with a copy of another replica's
    /// state. Default true. Without it the replica's slot is free for [`Group::join`].
    pub fn revive(mut self, revive: bool) -> Self {
        self.revive = revive;
        self
    }

    /// The cores of the replicas' threads, by replica slot. Threads without one run anywhere.
    pub fn cores(mut self, cores: &[usize]) -> Self {
        self.cores = cores.to_vec();
        self
    }

    /// Compares the states every `every` positions, at least 1, field by field.
    pub fn observe(mut self, every: u64) -> Self
    where
        S: Observe + 'static,
    {
        (self.every, self.fields) = (every, S::FIELDS);
        self.prints = Some(Box::new(S::fingerprints));
        self
    }

    /// Compares the states every `every` positions, at least 1, by a fingerprint of all that is to
    /// be compared: equal states have equal ones.
    pub fn fingerprint(
        mut self,
        every: u64,
        of: impl Fn(&S) -> u64 + Send + Sync + 'static,
    ) -> Self {
        (self.every, self.fields) = (every, &["state"]);
        self.prints = Some(Box::new(move |state, out| out[0] = of(state)));
        self
    }

    /// Calls `hook` where replicas differ, on the thread of a replica: once for the same replicas,
    /// until one of them has another one's state. It decides what is done about those that differ
    /// from the majority. By default they are repaired.
    pub fn on_divergence(
        mut self,
        hook: impl Fn(&Divergence) -> Action + Send + Sync + 'static,
    ) -> Self {
        self.hook = Box::new(hook);
        self
    }

    fn check(&self) -> Result<(), GroupError> {
        let fail = |field, value: u64, allowed| {
            Err(GroupError::OutOfRange {
                field,
                value,
                allowed,
            })
        };
        if !(1..=MAX_REPLICAS).contains(&self.replicas) {
            return fail("replicas", self.replicas as u64, "1 to 56");
        }
        if self.slots > MAX_REPLICAS {
            return fail("slots", self.slots as u64, "0 to 56");
        }
        if !(4..=1 << 32).contains(&self.capacity) {
            return fail("capacity", self.capacity as u64, "4 to 2^32");
        }
        if !self.chunk.is_power_of_two() || self.chunk > self.capacity {
            let allowed = "a power of two, at most the capacity";
            return fail("chunk", self.chunk as u64, allowed);
        }
        if self.attempts == 0 {
            return fail("attempts", 0, "at least 1");
        }
        if self.prints.is_some() && self.every == 0 {
            return fail("every", 0, "at least 1");
        }
        Ok(())
    }

    /// A group whose workers are stepped by hand, in any order and interleaving.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn by_hand<T, E, A, P>(
        self,
        apply: A,
        perform: P,
    ) -> Result<ByHand<S, T, E, A, P>, GroupError>
    where
        S: Clone,
        T: Send + Sync,
        A: Fn(&mut S, Seq, &T) -> E,
        P: Fn(E, Seq),
    {
        self.check()?;
        let (publisher, log) = channel::<T, Park>(self.capacity);
        let slots = self.slots.max(self.replicas);
        let words = (2 * self.capacity / self.chunk).next_power_of_two();
        let settings = Settings {
            chunk_shift: self.chunk.trailing_zeros(),
            words: words as u64,
            steal_after: (self.capacity / 4) as u64,
            patience: self.patience,
            attempts: self.attempts,
            revive: self.revive,
        };
        let (every, fields, hook) = (self.every, self.fields, self.hook);
        let observer = |prints| Observer::new(fields, every, slots, prints, hook);
        let shared = Arc::new(Shared {
            membership: Membership::new(slots, self.replicas, false),
            units: Units::new(words, settings.chunk_shift),
            settings,
            observer: self.prints.map(observer),
            meters: (0..slots).map(|_| Arc::default()).collect(),
            publisher: Mutex::new(publisher),
            interrupted: Mutex::default(),
            news: WakeSource::new(),
            log,
        });
        let code = Arc::new(Code { apply, perform });
        let mut workers = Vec::new();
        for id in 0..self.replicas {
            let log = shared.log.subscribe();
            let log = log.expect("a log has room for as many readers as a group has replicas");
            let state = self.state.clone();
            workers.push(Worker::first(&shared, &code, id, state, log));
        }
        Ok(ByHand {
            handle: MembershipHandle { shared },
            code,
            workers,
        })
    }

    /// Starts the group, with a thread for each replica.
    ///
    /// # Errors
    /// If a setting is out of its range, or a thread cannot be started.
    pub fn spawn<T, E, A, P>(self, apply: A, perform: P) -> Result<Group<S, T, E>, GroupError>
    where
        S: Clone + Send + 'static,
        T: Send + Sync + 'static,
        E: Clone + Send + 'static,
        A: Fn(&mut S, Seq, &T) -> E + Send + Sync + 'static,
        P: Fn(E, Seq) + Send + Sync + 'static,
    {
        let cores = self.cores.clone();
        let ByHand {
            handle,
            code,
            workers,
        } = self.by_hand(apply, perform)?;
        let start = move |worker: Worker<S, T, E, A, P>| {
            let core = cores.get(worker.id()).copied();
            worker.spawn(core).map_err(GroupError::Io)
        };
        // If a thread does not start, those that did are ended with this.
        let mut group = Group {
            threads: (0..handle.shared.meters.len()).map(|_| None).collect(),
            shared: handle.shared.clone(),
            start: Box::new(|_| unreachable!("it is replaced below")),
        };
        for worker in workers {
            let id = worker.id();
            group.threads[id] = Some(start(worker)?);
        }
        let shared = handle.shared;
        group.start = Box::new(move |id| start(Worker::joining(&shared, &code, id)));
        Ok(group)
    }
}

/// Asks workers to leave, to park and to go on, and tells what they do. Cheap to clone, may go to
/// any thread.
pub struct MembershipHandle<S, T: Send + Sync, E> {
    shared: Arc<Shared<S, T, E>>,
}

impl<S, T: Send + Sync, E> Clone for MembershipHandle<S, T, E> {
    fn clone(&self) -> Self {
        MembershipHandle {
            shared: self.shared.clone(),
        }
    }
}

impl<S, T: Send + Sync, E> fmt::Debug for MembershipHandle<S, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MembershipHandle").finish_non_exhaustive()
    }
}

impl<S, T: Send + Sync, E> MembershipHandle<S, T, E> {
    /// A publisher of the group's log. Clone it for other threads.
    pub fn publisher(&self) -> Publisher<T, Park> {
        self.shared.publisher()
    }

    /// Asks a replica to leave. Its thread ends; the others perform what it has not begun. Does not
    /// wait.
    ///
    /// # Errors
    /// If there is no such replica, or it is the last.
    pub fn leave(&self, replica: usize) -> Result<(), MembershipError> {
        self.ask_to_leave(replica, false)
    }

    /// Asks a replica to park: its thread drops its copy of the state and sleeps until it is
    /// [unparked](Self::unpark). Does not wait.
    ///
    /// # Errors
    /// If there is no such replica, or it is the last.
    pub fn park(&self, replica: usize) -> Result<(), MembershipError> {
        self.ask_to_leave(replica, true)
    }

    fn ask_to_leave(&self, replica: usize, park: bool) -> Result<(), MembershipError> {
        self.shared.membership.ask_to_leave(Some(replica), park)?;
        self.shared.news.notify_all();
        Ok(())
    }

    /// Lets a parked replica join again, with a copy of another replica's state. Does not wait.
    ///
    /// # Errors
    /// If no such replica is parked, or no replica is left.
    pub fn unpark(&self, replica: usize) -> Result<(), MembershipError> {
        self.shared.membership.unpark(replica)?;
        self.shared.news.notify_all();
        Ok(())
    }

    /// Closes the log: workers finish when they have applied and performed what was published.
    pub fn close(&self) {
        self.shared.close();
    }

    /// What happened so far.
    pub fn stats(&self) -> GroupStats {
        let shared = &self.shared;
        let replicas = shared.meters.iter().enumerate();
        let replicas = replicas.map(|(id, meter)| meter.stats(id as u64, format!("replica {id}")));
        let interrupted = shared.interrupted.lock();
        let interrupted = interrupted.unwrap_or_else(PoisonError::into_inner);
        GroupStats {
            membership: shared.membership.stats(),
            replicas: replicas.collect(),
            published: shared.with_publisher(|publisher| publisher.next_seq()),
            interrupted: interrupted.count,
            abandoned: interrupted.abandoned,
        }
    }
}

/// A group whose workers are stepped by hand; see [`Builder::by_hand`].
pub struct ByHand<S, T: Send + Sync, E, A, P> {
    handle: MembershipHandle<S, T, E>,
    code: Arc<Code<A, P>>,
    /// The workers that the group begins with. A worker may go to any thread, and may be dropped.
    pub workers: Vec<Worker<S, T, E, A, P>>,
}

impl<S, T: Send + Sync, E, A, P> ByHand<S, T, E, A, P> {
    /// Asks workers to leave, to park and to go on, and tells what they do.
    pub fn handle(&self) -> &MembershipHandle<S, T, E> {
        &self.handle
    }

    /// A worker that joins: it gets its state from another one while both are stepped.
    ///
    /// # Errors
    /// If no slot is free, or no worker is active.
    pub fn join(&self) -> Result<Worker<S, T, E, A, P>, MembershipError> {
        let shared = &self.handle.shared;
        let id = shared.membership.request_snapshot(None)?;
        Ok(Worker::joining(shared, &self.code, id))
    }
}

impl<S, T: Send + Sync, E, A, P> fmt::Debug for ByHand<S, T, E, A, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByHand")
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}

type Start<S> = Box<dyn Fn(usize) -> Result<DomainHandle<S>, GroupError> + Send>;

/// Replicas of a state, each on a thread of its own, that apply one log; see the
/// [module](crate::group) for what is guaranteed.
///
/// ```
/// use dominoes::Group;
/// use std::sync::mpsc;
///
/// let (sent, replies) = mpsc::channel();
/// let group = Group::spawn(
///     0,
///     3, // replicas
///     |sum: &mut u64, _, n: &u64| { *sum += n; *sum }, // all of them apply each request
///     move |sum, seq| sent.send((seq, sum)).unwrap(), // one of them performs its effect
/// )?;
/// let mut publisher = group.publisher();
/// for n in 1..=4 {
///     publisher.publish(n)?;
/// }
/// assert_eq!(group.shut_down()?, [10, 10, 10]);
/// let mut replies: Vec<_> = replies.iter().collect();
/// replies.sort();
/// assert_eq!(replies, [(0, 1), (1, 3), (2, 6), (3, 10)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping a group is the same as [`shut_down`](Self::shut_down), except that a thread that
/// unwinds does not wait for the replicas.
pub struct Group<S: 'static, T: Send + Sync + 'static, E = ()> {
    shared: Arc<Shared<S, T, E>>,
    /// By replica slot.
    threads: Vec<Option<DomainHandle<S>>>,
    /// Starts a thread for a worker that joins in this slot.
    start: Start<S>,
}

impl<S: Clone + Send + 'static, T: Send + Sync + 'static, E: Clone + Send + 'static>
    Group<S, T, E>
{
    /// Starts `replicas` replicas, 1 to 56, of `state`. `apply` runs in each of them, for every
    /// request in the order of the log, and must be deterministic; `perform` runs once for each
    /// request, on the thread of its primary. The short form of [`builder`](Self::builder).
    ///
    /// `perform` may publish into the log of the group by `try_` calls only: its replica applies
    /// nothing meanwhile, so one that waits for room may wait for itself.
    ///
    /// # Errors
    /// If the number of replicas is out of its range, or a thread cannot be started.
    pub fn spawn<A, P>(state: S, replicas: usize, apply: A, perform: P) -> Result<Self, GroupError>
    where
        A: Fn(&mut S, Seq, &T) -> E + Send + Sync + 'static,
        P: Fn(E, Seq) + Send + Sync + 'static,
    {
        Group::builder(state, replicas).spawn(apply, perform)
    }
}

impl<S: 'static> Group<S, ()> {
    /// Settings for a group of `replicas` replicas of `state`, to begin with.
    pub fn builder(state: S, replicas: usize) -> Builder<S> {
        Builder {
            state,
            replicas,
            slots: 0,
            capacity: 1024,
            chunk: 16,
            patience: Duration::from_millis(1),
            attempts: 3,
            revive: true,
            cores: Vec::new(),
            every: 0,
            fields: &[],
            prints: None,
            hook: Box::new(|_| Action::Repair),
        }
    }
}

impl<S: 'static, T: Send + Sync + 'static, E> Group<S, T, E> {
    /// Asks replicas to leave, to park and to go on, and tells what they do.
    pub fn handle(&self) -> MembershipHandle<S, T, E> {
        MembershipHandle {
            shared: self.shared.clone(),
        }
    }

    /// A publisher of the group's log. Clone it for other threads.
    pub fn publisher(&self) -> Publisher<T, Park> {
        self.shared.publisher()
    }

    /// What happened so far.
    pub fn stats(&self) -> GroupStats {
        self.handle().stats()
    }

    /// Starts a replica more, in the first free slot, which it returns. It gets its state from
    /// another replica; nothing waits for that.
    ///
    /// # Errors
    /// If no slot is free, no replica is left, or the thread cannot be started.
    pub fn join(&mut self) -> Result<usize, GroupError> {
        let membership = &self.shared.membership;
        let id = membership.request_snapshot(None)?;
        let started = (self.start)(id);
        self.shared.news.notify_all();
        // The thread that had the slot before has ended, or is about to.
        self.threads[id] = Some(started?);
        Ok(id)
    }

    /// Closes the log, waits until everything published is applied and performed, and returns the
    /// copies of the state, by replica slot. Those of replicas that left, parked or failed are not
    /// among them.
    ///
    /// Publishers are refused from now on, with [`Closed`](crate::Closed). This waits for as long
    /// as a `perform` stands still.
    ///
    /// # Errors
    /// [`GroupError::NoReplicaLeft`] if every replica has failed.
    pub fn shut_down(mut self) -> Result<Vec<S>, GroupError> {
        let states = self.end();
        match states.is_empty() {
            true => Err(GroupError::NoReplicaLeft),
            false => Ok(states),
        }
    }

    fn end(&mut self) -> Vec<S> {
        self.shared.close();
        let threads = self.threads.iter_mut().filter_map(Option::take);
        threads.filter_map(|thread| thread.join().ok()).collect()
    }
}

impl<S: 'static, T: Send + Sync + 'static, E> Drop for Group<S, T, E> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.close();
        } else {
            self.end();
        }
    }
}

impl<S: 'static, T: Send + Sync + 'static, E> fmt::Debug for Group<S, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("membership", &self.shared.membership)
            .finish_non_exhaustive()
    }
}
