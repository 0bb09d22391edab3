//! Replicated state fed from one totally ordered, lock-free multicast log.
//!
//! Put everything that can change some state into one ordered log, give each core its own copy of
//! the state, and let every copy apply the whole log. Copies that apply the same entries in the
//! same order stay equal, and no copy needs a lock. The costly part of each entry, which does not
//! change the state, is done by one copy only. This crate contains the log and the parts around
//! it; it knows nothing of networks.
//!
//! # A tour
//!
//! [`Replicated`] is state that every core reads from a copy of its own. Reads are linearizable, and
//! need no entry of the log.
//!
//! ```
//! use dominoes::replicated::{MapOp, Replicated};
//!
//! let map = Replicated::new(std::collections::BTreeMap::new())?;
//! let mut handle = map.handle()?; // one for each thread
//! handle.write(MapOp::Insert("a", 1))?;
//! assert_eq!(handle.read(|map| map.len())?, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Group`] combines the parts: replicas of any state, each on its own thread, over one log.
//! Replicas join and leave, and are compared and repaired; other replicas do the work that a dead
//! one had left.
//!
//! ```
//! use dominoes::Group;
//!
//! let apply = |sum: &mut u64, _seq, n: &u64| { *sum += n; *sum }; // every replica, in log order
//! let perform = |sum, seq| println!("{seq}: {sum}"); // one replica, the primary of the entry
//! let group = Group::spawn(0, 3, apply, perform)?;
//! group.publisher().publish_all([1, 2, 3])?;
//! assert_eq!(group.shut_down()?, [6, 6, 6]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The parts can also be used directly. A channel has any number of publishers and up to
//! [`MAX_SUBSCRIBERS`] subscriptions. Every subscription sees every entry, in the same order and
//! in place: a batch borrows slices of the ring.
//!
//! ```
//! use dominoes::{SpinYield, channel};
//!
//! // At most 1024 entries that a subscription has not released; the wait strategy is a type.
//! let (mut publisher, log) = channel::<u64, SpinYield>(1024);
//! let mut subscription = log.subscribe()?; // sees everything from here on
//!
//! publisher.publish(1)?; // waits while the channel is full; an error means that it is closed
//! publisher.try_publish(2)?; // does not wait, and gives the value back if it cannot go in
//! publisher.publish_all([3, 4])?; // one claim for the lot, whole or not at all
//! publisher.publish_slice(&[5, 6])?; // as `publish_all`, for `Copy` entries
//! drop(publisher); // the last publisher closes the channel
//!
//! let mut sum = 0;
//! while let Some(batch) = subscription.next_batch() {
//!     for (seq, n) in &batch {
//!         sum += n * (seq + 1);
//!     }
//! } // dropping a batch releases its entries
//! assert_eq!(sum, 1 + 4 + 9 + 16 + 25 + 36);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A subscription can also read ahead of the entries that it releases. A replica uses this to
//! prepare entries before it applies them:
//!
//! ```
//! # use dominoes::{SpinYield, channel};
//! # let (mut publisher, log) = channel::<&str, SpinYield>(8);
//! # let mut subscription = log.subscribe()?;
//! publisher.publish_all(["a", "b", "c"])?;
//! let end = subscription.poll(); // how far the channel is published
//! for seq in (subscription.position()..end).rev() {
//!     assert!(subscription.get(seq).is_some()); // in any order, any number of times
//! }
//! subscription.advance_to(2); // "a" and "b" may be overwritten
//! assert_eq!(subscription.get(1), None);
//! assert_eq!(subscription.get(2), Some(&"c"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Replicas can be added and removed while the channel runs. A [fork](Subscription::fork) starts
//! at the position of its parent; together with a clone of the parent's state it makes a replica
//! that is up to date. Dropping a subscription, even by a panic, releases its entries.
//!
//! ```
//! # use dominoes::{SpinYield, channel};
//! # let (mut publisher, log) = channel::<u64, SpinYield>(8);
//! let (mut state, mut subscription) = (0, log.subscribe()?);
//! publisher.publish(40)?;
//! subscription.next_batch().unwrap().iter().for_each(|(_, n)| state += n);
//! let (mut twin_state, mut twin) = (state, subscription.fork()?);
//! publisher.publish(2)?;
//! twin.next_batch().unwrap().iter().for_each(|(_, n)| twin_state += n);
//! assert_eq!(twin_state, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The parts
//!
//! | part | purpose |
//! |---|---|
//! | [`Replicated`], [`replicated`] | any state on all cores, with local reads |
//! | [`Group`], [`group`] | replicas of any state: threads, membership, divergence, repair |
//! | [`channel`], [`Publisher`], [`Log`], [`Subscription`], [`Batch`] | the multicast log |
//! | [`Verdicts`], [`batch_records`], [`TryLock`] | small results and owned values beside the slots; a value that one thread at a time can take |
//! | [`Assignment`], [`PrimaryPolicy`] | which replica does the costly part of an entry |
//! | [`Chunks`], [`BatchRecords`] | progress of that part, so that others can take it over |
//! | [`Context`], [`Domain`], [`Service`], [`Replica`] | pinned threads that run state machines and never block |
//! | [`Wheel`], [`TimerFeed`], [`TimerPublisher`] | timers, local to a domain or published |
//! | [`Snapshot`], [`Meter`] | statistics of domains and channels |
//! | [`Fingerprints`] | whether the copies still agree |
//! | `check` (feature `proptest`) | whether `apply` is deterministic, by random operations and faults |
//! | [`Channel`], [`WorkShare`] | a trait for channels, and other kinds of them |
//! | [`EventCount`], [`WaitSet`], [`Wait`], [`Semaphore`] | sleeping on one source or on many without losing a wake-up |
//!
//! # When a primary dies
//!
//! The log replicates *state*. A replica whose thread panics loses none of it: its subscription
//! leaves, publishers no longer wait for it, and the others apply the same entries as before.
//! *Effects* are different: an effect is the costly part of an entry, which only the entry's
//! primary performs. When the primary dies, a [`Group`] hands its effects over: each is completed
//! once, by the primary or by another replica. [`group`] describes what happens to an effect whose
//! primary died while performing it. If you use the parts directly:
//!
//! * *The parts hand over nothing on their own.* A [`PrimaryPolicy`] computes its answer and does
//!   not know that a replica died; [`Greedy`] still names the dead replica as the owner of its
//!   chunks. The rest of those chunks is never done, and no part of the crate reports that.
//! * *Later chunks* go to others at once under [`Greedy`], which gives chunks to the replicas that
//!   ask. Under the other policies the user must make all replicas agree on the entry from which
//!   another replica is the primary.
//! * *Chunks of the dead replica* are taken over only if all replicas do their work through
//!   [`Chunks`] and look for late ones. A thread that unwinds releases the chunk that it had begun;
//!   any other replica can [begin](Chunks::begin) it after the last piece reported done. That
//!   replica needs the chunk's inputs, so every replica must keep them until the
//!   [state](Chunks::state) is [`Done`](WorkState::Done).
//! * *The piece that it was performing when it died* counts as not done, so it may be performed
//!   twice. Pieces reported done are not. If that matters, the receiver of the effects must
//!   recognise a piece by its number.
//! * *A thread that hangs, or leaks its [`BegunChunk`],* does not count as dead, since the crate
//!   cannot detect this. It keeps its chunk, and publishers wait once they are `capacity` entries ahead of
//!   its subscription.
//! * *Beside the slots:* unwinding releases a [`ReadBatch`], a [`BegunBatch`], an
//!   [`TryLockGuard`] and a [`BegunVerdict`]. A batch that the dead replica did not
//!   [finish](BegunBatch::finish) stays in its slot, and the [`BatchWriter`] runs out of room, unless
//!   another replica finishes it.
//! * *Work taken out of a [`WorkShare`]* is lost with the worker that took it, since no other
//!   worker has seen it. So are the timers of a [`TimerPublisher`].
//!
//! If the process aborts, everything is lost: the log is in memory only.
//!
//! ```
//! use dominoes::{Chunks, WorkState};
//! use std::thread;
//!
//! let chunks = Chunks::new(4, 2); // chunks of four effects each
//! let primary = |chunks: &Chunks| {
//!     let mut chunk = chunks.begin(0).unwrap();
//!     chunk.done(0); // the first effect is performed
//!     panic!("in the middle of the second");
//! };
//! thread::scope(|scope| scope.spawn(|| primary(&chunks)).join()).unwrap_err();
//!
//! // Another replica finds the chunk late, and continues where the dead one stopped.
//! assert_eq!(chunks.state(1), WorkState::Free);
//! let mut chunk = chunks.begin(1).unwrap();
//! assert_eq!(chunk.next(), 1);
//! (1..4).for_each(|effect| chunk.done(effect));
//! drop(chunk);
//! assert_eq!(chunks.state(3), WorkState::Done);
//! ```
//!
//! # Guarantees
//!
//! * *Bounded and lossless.* When the slowest subscription lags by `capacity` entries, a publisher
//!   waits, or gets an error that the channel is full. No entry is overwritten before it
//!   is released, and no subscription is removed unless it agrees: [`Log::evict`] only asks.
//!   Without any subscription, entries are discarded and publishers continue.
//! * *One order.* All subscriptions see the same entries at the same positions, without holes,
//!   however many publishers there are.
//! * *Closing loses nothing.* Every subscription that existed sees an entry whose publish returned
//!   `Ok`; after the last entry comes the end.
//! * *Owned entries.* Each value is dropped exactly once, after its last subscription has released
//!   it: by a publisher that needs room, by [`Log::tidy`], by a subscription that leaves, or with
//!   the channel.
//! * *Panics.* User code never runs between claim and publication, nor while an operation is half
//!   done. A panic in a handler, an iterator or a destructor leaves a working channel.
//! * *Progress.* Reading is wait-free. Publishing is wait-free for a sole publisher while there is
//!   room. Several publishers claim lock-free, but an entry becomes visible only after those
//!   claimed before it, since there is one order: a publisher that is preempted in the few
//!   instructions between claim and publication delays all later entries. One thread at a time
//!   drops entries with destructors; other publishers find no room meanwhile.
//!
//! # Limits
//!
//! * A thread that waits for room while it owns the slowest subscription waits forever. Use the
//!   `try_` calls there.
//! * An entry that is never released is kept: a forgotten [`Batch`] guard holds its entries until
//!   the subscription moves on or is dropped.
//! * Memory: entries without destructors get more slots than the capacity, up to 4 MiB of them,
//!   because a ring that fits into a core's cache is several times slower. [`Log::slots`] returns
//!   their number.
//!
//! # Tests
//!
//! `tests/loom.rs` models each race that the design must win. `tests/model.rs` compares random
//! calls with a plain model. `tests/pitfalls.rs` has a test for each bug known from other
//! channels. `tests/group.rs` steps groups by hand, with kills, joins, leaves and flipped bits at
//! every step. `tests/adversarial.rs` has a test for each block of `unsafe`, with user code that
//! panics, breaks contracts and reenters. `examples/stress.rs` joins, forks, leaves and panics
//! under load, also under AddressSanitizer, ThreadSanitizer (`.ci/sanitize`) and Valgrind.
//! `src/replicated/linearizable.rs` checks histories of random programs. Seven files
//! contain `unsafe`: `ring.rs`, `slots.rs`, `batches.rs`, `try_lock.rs`, and in `replicated`
//! `op_log.rs`, `state_lock.rs` and `barrier.rs`. The module documentation of `ring.rs`,
//! `batches.rs`, `op_log.rs` and `state_lock.rs` has the soundness arguments.
#![deny(unsafe_code)]

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod channel;
#[cfg(all(any(test, feature = "proptest"), not(loom)))]
mod check;
mod domains;
mod error;
pub mod group;
mod log;
mod primary;
mod publisher;
pub mod replicated;
mod stats;
mod subscription;
mod sync;
mod verdicts;
mod wait;
mod wait_set;
mod work;

#[expect(unsafe_code, reason = "threads share the values beside the slots")]
mod batches;
#[expect(unsafe_code, reason = "it decides who accesses which slot of the ring")]
mod ring;
#[expect(unsafe_code, reason = "the one owner of slot memory")]
mod slots;
#[expect(unsafe_code, reason = "it lends its value to one thread at a time")]
mod try_lock;

pub use batches::{BatchRecords, BatchWriter, BegunBatch, ReadBatch, WorkState, batch_records};
pub use channel::{Channel, Delivery, Order, Publish, Receive};
#[cfg(all(any(test, feature = "proptest"), not(loom)))]
pub use check::{CheckError, CheckFaults, check};
pub use domains::{
    Clock, Context, ContextControl, ContextHandle, Domain, DomainHandle, Feed, FeedId, FeedView,
    Handled, Lifo, ManualClock, Pool, PoolWorker, Priority, Replica, Reply, RoundRobin, Scheduler,
    Semaphore, Served, Service, SharePublisher, SystemClock, Then, Tick, TimerControl, TimerFeed,
    TimerId, TimerPublisher, Turn, Unordered, Wheel, WorkShare,
};
pub use error::{BatchError, Closed, JoinError, NoBatch, SubscribeError, TryPublishError};
pub use group::{Fingerprints, Group, GroupError, Mismatch, Observe};
pub use log::{Log, Seq, channel, channel_with_slots};
pub use primary::{
    Assignment, Balancer, ByKind, ByLoad, ByPosition, ByPublisher, Greedy, PrimaryPolicy, Weights,
    Work, WorkKind,
};
pub use publisher::{Buffered, Publisher};
pub use replicated::{Replicated, StateMachine};
pub use ring::MAX_SUBSCRIBERS;
pub use stats::{ChannelStats, DomainStats, Meter, Snapshot};
pub use subscription::{Batch, Inactive, Iter, Subscription};
pub use try_lock::{TryLock, TryLockGuard};
pub use verdicts::{BegunVerdict, Verdicts};
pub use wait::{EventCount, Key, Park, Spin, SpinYield, Wait, Watch};
pub use wait_set::{WaitSet, WakeSource};
pub use work::{BegunChunk, Chunks};
