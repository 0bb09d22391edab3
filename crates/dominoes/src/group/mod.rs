//! [`Group`]: replicas of any state, on threads, over one log.
//!
//! Every replica applies every request of the log, in order, to its own copy of the state.
//! `apply` returns an *effect*: the work that a request needs after the change of state. One
//! replica, the request's primary, performs it.
//!
//! # Guarantees
//!
//! - *Order.* All replicas apply the same requests at the same positions. `apply` must be
//!   deterministic: it reads the state, the position and the request, and nothing else.
//! - *No effect is lost* while one replica lives. Every replica retains every effect until it is
//!   performed. If a primary panics, parks or leaves, others perform the effects that it had not
//!   begun. If it stalls, they do so after [`GroupBuilder::patience`], or when the log has advanced
//!   by a quarter of its capacity.
//! - *An effect is completed once.* Before a worker performs effects it begins their *chunk*,
//!   [`GroupBuilder::chunk`] positions, by one compare-and-swap. No other worker performs effects
//!   of that chunk until that one ends; then work continues after the last completed one.
//!   So an effect is begun twice only if `perform` panicked in the middle of it. It is begun at
//!   most [`GroupBuilder::attempts`] times, 3 unless set, and then given up and counted; with 1, no
//!   effect is ever begun twice.
//! - *A worker that stalls in the middle of `perform`* is not known to have failed. The others wait
//!   for the rest of its chunk, and do all other work. They continue to apply until the log is
//!   full; then publishers wait. The same holds for a worker that stalls in `apply`.
//! - *Effects of one chunk* are performed in ascending order, effects of different chunks
//!   concurrently.
//! - *Failure.* A replica whose `apply`, `perform` or `clone` panics is gone, with its copy of the
//!   state. With [`GroupBuilder::revive`], the default, its thread joins again with a copy of
//!   another replica's state. A request at which `apply` panics in every replica ends the group:
//!   publishers find the log closed, and [`Group::shut_down`] returns an error.
//! - *Divergence.* With [`GroupBuilder::observe`] or [`GroupBuilder::fingerprint`], replicas
//!   compare fingerprints of their states at equal positions. A replica that differs from the
//!   majority takes over the state of one in the majority. Effects that it performed before are
//!   done, and may be wrong. With two replicas there is no majority: the difference is counted and
//!   reported.
//!
//! # Layers
//!
//! A [`GroupWorker`] is one replica, whose turns can be called by hand: [`GroupBuilder::by_hand`].
//! A group runs each on a thread. The rest of this module is for code with its own workers:
//! [`Membership`] records which workers exist and hands over states, [`Fingerprints`] with
//! [`Agreement`] decide which replicas are right, [`Chunks`] records which effects are performed.

mod builder;
mod join_check;
mod majority;
mod membership;
mod observe;
mod perform;
mod slots;
mod worker;

pub use builder::GroupBuilder;
pub use join_check::CheckResult;
pub use majority::{Agreement, Fingerprints, Mismatch};
pub use membership::{MAX_REPLICAS, MembershipTable, replicas};
pub use observe::{Divergence, Observe, OnDivergence};
pub use slots::{JoinersServed, Membership, MembershipStats, ReplicaSlotError, WorkerState};
pub use worker::GroupWorker;

use crate::{Chunks, DomainHandle, DomainStats, Log, Meter, Park, Publisher, Seq, WakeSource};
use observe::Observer;
use std::{
    collections::HashMap,
    error::Error,
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};
use worker::Snapshot;

/// The user's functions: how to apply a request, and how to perform an effect.
struct Code<A, P> {
    apply: A,
    perform: P,
}

/// The state that all workers share.
struct GroupShared<S, T: Send + Sync, E> {
    membership: Membership<Snapshot<S, T, E>>,
    /// Which effects are performed.
    chunks: Chunks,
    settings: GroupSettings,
    observer: Option<Observer<S>>,
    /// By replica slot.
    meters: Box<[Arc<Meter>]>,
    log: Log<T, Park>,
    /// Keeps the log open, and closes it.
    publisher: Mutex<Publisher<T, Park>>,
    interrupted: Mutex<Interrupted>,
    /// Notified when effects are performed and when the slot table changes.
    news: WakeSource,
}

/// Effects during which `perform` panicked.
#[derive(Default)]
struct Interrupted {
    /// Panics per effect that is not performed yet.
    attempts: HashMap<Seq, u32>,
    count: u64,
    abandoned: u64,
}

#[derive(Clone, Copy)]
struct GroupSettings {
    /// log2 of the positions in a chunk.
    chunk_shift: u32,
    /// Chunks that have a word each.
    words: u64,
    steal_after: u64,
    patience: Duration,
    attempts: u32,
    revive: bool,
}

impl<S, T: Send + Sync, E> GroupShared<S, T, E> {
    fn chunk(&self, seq: Seq) -> u64 {
        seq >> self.settings.chunk_shift
    }

    /// The first position after the chunk of `seq`.
    fn chunk_end(&self, seq: Seq) -> Seq {
        (self.chunk(seq) + 1) << self.settings.chunk_shift
    }

    /// The position at which the words end for a worker whose first pending effect is at `first`.
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

/// Why a group refuses a call.
#[derive(Debug)]
#[non_exhaustive]
pub enum GroupError {
    /// A setting is out of its range.
    OutOfRange {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The allowed values.
        allowed: &'static str,
    },
    /// A thread could not be started.
    Io(io::Error),
    /// No replica can join or leave.
    Membership(ReplicaSlotError),
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

impl From<ReplicaSlotError> for GroupError {
    fn from(error: ReplicaSlotError) -> Self {
        GroupError::Membership(error)
    }
}

/// Counters of a group. Other threads change them meanwhile.
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
    /// Effects that were given up after the allowed number of attempts.
    pub abandoned: u64,
}

impl GroupStats {
    /// Effects performed, by all replicas.
    pub fn performed(&self) -> u64 {
        let of = |replica: &DomainStats| replica.primary + replica.steals;
        self.replicas.iter().map(of).sum()
    }
}

/// Asks workers to leave, park and unpark, and returns statistics. Cheap to clone, may go to any
/// thread.
pub struct GroupHandle<S, T: Send + Sync, E> {
    shared: Arc<GroupShared<S, T, E>>,
}

impl<S, T: Send + Sync, E> Clone for GroupHandle<S, T, E> {
    fn clone(&self) -> Self {
        GroupHandle {
            shared: self.shared.clone(),
        }
    }
}

impl<S, T: Send + Sync, E> fmt::Debug for GroupHandle<S, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupHandle").finish_non_exhaustive()
    }
}

impl<S, T: Send + Sync, E> GroupHandle<S, T, E> {
    /// A publisher of the group's log. Clone it for other threads.
    pub fn publisher(&self) -> Publisher<T, Park> {
        self.shared.publisher()
    }

    /// Asks a replica to leave. Its thread ends; the others perform the effects that it has not
    /// begun. Does not wait.
    ///
    /// # Errors
    /// If there is no such replica, or it is the last.
    pub fn leave(&self, replica: usize) -> Result<(), ReplicaSlotError> {
        self.ask_to_leave(replica, false)
    }

    /// Asks a replica to park: its thread drops its copy of the state and sleeps until it is
    /// [unparked](Self::unpark). Does not wait.
    ///
    /// # Errors
    /// If there is no such replica, or it is the last.
    pub fn park(&self, replica: usize) -> Result<(), ReplicaSlotError> {
        self.ask_to_leave(replica, true)
    }

    fn ask_to_leave(&self, replica: usize, park: bool) -> Result<(), ReplicaSlotError> {
        self.shared.membership.ask_to_leave(Some(replica), park)?;
        self.shared.news.notify_all();
        Ok(())
    }

    /// Lets a parked replica join again, with a copy of another replica's state. Does not wait.
    ///
    /// # Errors
    /// If no such replica is parked, or no replica is left.
    pub fn unpark(&self, replica: usize) -> Result<(), ReplicaSlotError> {
        self.shared.membership.unpark(replica)?;
        self.shared.news.notify_all();
        Ok(())
    }

    /// Closes the log: workers finish when they have applied and performed everything published.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Counters so far.
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

/// A group whose workers are stepped by hand; see [`GroupBuilder::by_hand`].
pub struct GroupByHand<S, T: Send + Sync, E, A, P> {
    handle: GroupHandle<S, T, E>,
    code: Arc<Code<A, P>>,
    /// The workers that the group begins with. A worker may go to any thread, and may be dropped.
    pub workers: Vec<GroupWorker<S, T, E, A, P>>,
}

impl<S, T: Send + Sync, E, A, P> GroupByHand<S, T, E, A, P> {
    /// The handle by which workers are asked to leave, park and unpark.
    pub fn handle(&self) -> &GroupHandle<S, T, E> {
        &self.handle
    }

    /// A worker that joins: it gets its state from another one while both are stepped.
    ///
    /// # Errors
    /// If no slot is free, or no worker is active.
    pub fn join(&self) -> Result<GroupWorker<S, T, E, A, P>, ReplicaSlotError> {
        let shared = &self.handle.shared;
        let id = shared.membership.request_snapshot(None)?;
        Ok(GroupWorker::joining(shared, &self.code, id))
    }
}

impl<S, T: Send + Sync, E, A, P> fmt::Debug for GroupByHand<S, T, E, A, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByHand")
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}

type Start<S> = Box<dyn Fn(usize) -> Result<DomainHandle<S>, GroupError> + Send>;

/// Replicas of a state, each on its own thread, that apply one log; see the
/// [module](crate::group) for its guarantees.
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
/// Dropping a group does [`shut_down`](Self::shut_down), but a thread that unwinds does not wait
/// for the replicas.
pub struct Group<S: 'static, T: Send + Sync + 'static, E = ()> {
    shared: Arc<GroupShared<S, T, E>>,
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
    /// `perform` may publish into the group's log, but only by `try_` calls: its replica applies
    /// nothing meanwhile, so a call that waits for room might wait for itself.
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
    /// Initial settings of a group of `replicas` replicas of `state`.
    pub fn builder(state: S, replicas: usize) -> GroupBuilder<S> {
        GroupBuilder::new(state, replicas)
    }
}

impl<S: 'static, T: Send + Sync + 'static, E> Group<S, T, E> {
    /// The handle by which workers are asked to leave, park and unpark.
    pub fn handle(&self) -> GroupHandle<S, T, E> {
        GroupHandle {
            shared: self.shared.clone(),
        }
    }

    /// A publisher of the group's log. Clone it for other threads.
    pub fn publisher(&self) -> Publisher<T, Park> {
        self.shared.publisher()
    }

    /// Counters so far.
    pub fn stats(&self) -> GroupStats {
        self.handle().stats()
    }

    /// Starts a further replica in the first free slot, and returns the slot. The replica gets
    /// its state from another one; nothing waits for that.
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

    /// Closes the log, waits until everything published is applied and performed, and returns
    /// the copies of the state, by replica slot, without replicas that left, parked or failed.
    ///
    /// Publishers are refused from now on, with [`Closed`](crate::Closed). This waits as long as
    /// any `perform` runs.
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
