//! Watches replicas from outside, and repairs them from each other.
//!
//! The dissertation wants a consistency manager out of band that watches and repairs divergence (C.
//! D. Sizemore, *Parallel network protocol stacks using replication*, University of New Mexico,
//! 2011, section 3.1.5). Here replicas post fingerprints of each field of their state at equal
//! positions of the log; the [`Manager`] compares them, reports which ones differ, from where on
//! and in which field, and has a healthy replica hand the others its state, between two entries and
//! without stopping any of them.
//!
//! A snapshot is a clone of the state beside a [fork](Subscription::fork) of the subscription, so
//! it stands at a position by construction. Handing over is the one part that takes a lock, of a
//! mailbox that a replica locks only if a relaxed flag says that there is something in it.

use super::Fingerprints;
use crate::{NoBatch, Seq, Subscription, Turn, Wait};
use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
};

/// State that can be compared field by field.
pub trait Observe {
    /// The names of the fields, in the order in which a verdict looks at them.
    const FIELDS: &'static [&'static str];

    /// A fingerprint of each field, in that order: equal fields have equal ones, different fields
    /// almost surely different ones. Cheap if the state keeps them up to date as it changes.
    fn fingerprints(&self, out: &mut [u64]);
}

/// Replicas differ: which ones, from where on, in which fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// The first position, as far as it is still known, after whose entries they differ.
    pub position: Seq,
    /// The newest position before that at which they were seen to agree: what went wrong lies
    /// between the two.
    pub agreed: Option<Seq>,
    /// The fields that differ there, in the order of [`Observe::FIELDS`].
    pub fields: Vec<&'static str>,
    /// The replicas that posted there.
    pub compared: Vec<usize>,
    /// Those that differ from the majority; `None` if there is no majority, as with two replicas.
    pub minority: Option<Vec<usize>>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.minority {
            Some(minority) => write!(f, "replicas {minority:?}")?,
            None => write!(f, "some of replicas {:?}", self.compared)?,
        }
        let fields = self.fields.join(", ");
        write!(f, " differ in {fields} at position {}", self.position)?;
        if let Some(agreed) = self.agreed {
            write!(f, ", and did not at {agreed}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Verdict {}

/// What is to be done about a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Replace the state of the minority by that of a healthy replica, if there is a majority.
    Repair,
    /// Only report it.
    Report,
}

/// No replica uses this slot.
const FREE: u8 = 0;
/// Its replica runs and is not known to differ.
const ACTIVE: u8 = 1;
/// Its replica waits for a snapshot.
const JOINING: u8 = 2;

/// What the manager and one replica share.
struct Mailbox<S, T, W: Wait> {
    status: AtomicU8,
    /// A bit for each replica that this one is to give a snapshot.
    requests: AtomicU64,
    /// Whether there is something in `mail`.
    has_mail: AtomicBool,
    mail: Mutex<Option<Snapshot<S, T, W>>>,
}

type Snapshot<S, T, W> = (S, Subscription<T, W>);

struct Shared<S, T, W: Wait> {
    /// By field.
    prints: Vec<Fingerprints>,
    every: u64,
    mailboxes: Box<[Mailbox<S, T, W>]>,
}

impl<S, T, W: Wait> Shared<S, T, W> {
    fn status(&self, replica: usize) -> u8 {
        // ORDERING: Acquire, pairs with the Release stores of a status: a replica that is seen
        // active has withdrawn what it posted before.
        self.mailboxes[replica].status.load(Ordering::Acquire)
    }

    fn set_status(&self, replica: usize, status: u8) {
        // ORDERING: Release, pairs with the Acquire in `status`.
        self.mailboxes[replica]
            .status
            .store(status, Ordering::Release);
    }

    fn forget(&self, replica: usize) {
        for prints in &self.prints {
            prints.forget(replica);
        }
    }

    fn mail(&self, replica: usize) -> MutexGuard<'_, Option<Snapshot<S, T, W>>> {
        let mail = self.mailboxes[replica].mail.lock();
        mail.unwrap_or_else(|poison| poison.into_inner())
    }

    /// Takes the snapshot that is meant for a replica.
    fn take_snapshot(&self, replica: usize) -> Option<Snapshot<S, T, W>> {
        // ORDERING: Acquire, pairs with the Release in `ReplicaHandle::give_snapshot`; the lock
        // orders the rest.
        if !self.mailboxes[replica]
            .has_mail
            .swap(false, Ordering::Acquire)
        {
            return None;
        }
        let mut mail = self.mail(replica);
        let snapshot = mail.take()?;
        self.forget(replica);
        // While the mailbox is locked, so that a second source sees it and gives no snapshot.
        self.set_status(replica, ACTIVE);
        Some(snapshot)
    }
}

/// Watches a group of replicas. One thread owns it; no replica waits for it.
///
/// ```
/// use dominoes::{Manager, Observe, SpinYield, Turn, channel};
///
/// #[derive(Clone, Default)]
/// struct Account { balance: u64, bookings: u64 }
/// impl Observe for Account {
///     const FIELDS: &'static [&'static str] = &["balance", "bookings"];
///     fn fingerprints(&self, out: &mut [u64]) {
///         out.copy_from_slice(&[self.balance, self.bookings]);
///     }
/// }
/// fn book(account: &mut Account, _: u64, amount: &u64) {
///     account.balance += amount;
///     account.bookings += 1;
/// }
///
/// let (mut publisher, log) = channel::<u64, SpinYield>(64);
/// let mut manager = Manager::<Account, u64, SpinYield>::new(3, 8, 4); // compares every 4 entries
/// let mut replicas = Vec::new();
/// for n in 0..3 {
///     replicas.push((manager.replica(n).unwrap(), Account::default(), log.subscribe()?));
/// }
/// let mut run = |replicas: &mut Vec<(_, Account, _)>| {
///     publisher.publish_all(1..=8).unwrap();
///     for _ in 0..8 {
///         for (handle, account, subscription) in replicas.iter_mut() {
///             dominoes::ReplicaHandle::turn(handle, account, subscription, book);
///         }
///     }
/// };
/// run(&mut replicas);
/// assert!(manager.check().is_none());
/// replicas[1].1.balance += 1; // behind its back
/// run(&mut replicas);
/// let verdict = manager.check().unwrap();
/// assert_eq!((verdict.position, verdict.agreed), (12, Some(8)));
/// assert_eq!((verdict.fields, verdict.minority), (vec!["balance"], Some(vec![1])));
/// run(&mut replicas); // the snapshot is handed over on the way
/// assert_eq!(replicas[1].1.balance, replicas[0].1.balance);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Manager<S, T, W: Wait> {
    shared: Arc<Shared<S, T, W>>,
    /// For each replica, the replica that was last asked to give it a snapshot.
    sources: Vec<Option<usize>>,
    hook: Box<dyn FnMut(&Verdict) -> Action + Send>,
    repairs: Arc<AtomicU64>,
    /// The last verdict that was reported, as long as it stays and nothing was done about it.
    reported: Option<Verdict>,
}

impl<S, T, W> Manager<S, T, W>
where
    S: Observe + Clone + Send,
    T: Send + Sync,
    W: Wait,
{
    /// For up to 64 replicas, each of which keeps its last `depth` fingerprints, posted every
    /// `every` positions. A replica that is more than `depth * every` entries behind the others
    /// cannot be compared with them.
    ///
    /// # Panics
    /// If there are more than 64, or `depth` or `every` is 0.
    pub fn new(replicas: usize, depth: usize, every: u64) -> Self {
        assert!(replicas <= 64, "{replicas} replicas are more than 64");
        let mailbox = |_| Mailbox {
            status: AtomicU8::new(FREE),
            requests: AtomicU64::new(0),
            has_mail: AtomicBool::new(false),
            mail: Mutex::new(None),
        };
        let prints = |_| Fingerprints::new(replicas, depth, every);
        Manager {
            shared: Arc::new(Shared {
                prints: (0..S::FIELDS.len()).map(prints).collect(),
                every,
                mailboxes: (0..replicas).map(mailbox).collect(),
            }),
            sources: vec![None; replicas],
            hook: Box::new(|_| Action::Repair),
            repairs: Arc::default(),
            reported: None,
        }
    }

    /// Sets a hook that receives each verdict and decides what to do. Without one, minorities are
    /// repaired.
    pub fn on_verdict(mut self, hook: impl FnMut(&Verdict) -> Action + Send + 'static) -> Self {
        self.hook = Box::new(hook);
        self
    }

    /// The handle of a replica that begins with the others, from the same state at the same
    /// position. `None` if the slot is taken.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn replica(&mut self, replica: usize) -> Option<ReplicaHandle<S, T, W>> {
        (self.shared.status(replica) == FREE).then(|| {
            self.shared.forget(replica);
            self.shared.set_status(replica, ACTIVE);
            ReplicaHandle::new(&self.shared, replica, &self.repairs)
        })
    }

    /// Adds a replica while the others run: it gets its state from one of them. `None` if no slot
    /// is free.
    pub fn join(&mut self) -> Option<Joiner<S, T, W>> {
        let replicas = 0..self.shared.mailboxes.len();
        let free = replicas
            .into_iter()
            .find(|n| self.shared.status(*n) == FREE)?;
        self.request_snapshot(free, FREE);
        Some(Joiner(Some(ReplicaHandle::new(
            &self.shared,
            free,
            &self.repairs,
        ))))
    }

    /// Marks a replica as one that waits for a snapshot, unless it has left meanwhile.
    fn request_snapshot(&mut self, replica: usize, before: u8) {
        let status = &self.shared.mailboxes[replica].status;
        // ORDERING: AcqRel, as in `set_status` and `status`.
        if status
            .compare_exchange(before, JOINING, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            self.sources[replica] = None;
            self.assign_sources();
        }
    }

    /// Asks an active replica to give a snapshot to each replica that waits for one.
    fn assign_sources(&mut self) {
        let active = |n: &usize| self.shared.status(*n) == ACTIVE;
        let replicas = 0..self.shared.mailboxes.len();
        for replica in replicas.clone() {
            let served = self.shared.mailboxes[replica]
                .has_mail
                .load(Ordering::Relaxed);
            if self.shared.status(replica) != JOINING || served {
                continue;
            }
            let asked = self.sources[replica].filter(active);
            // Again, if it was asked before: another replica may use that slot now.
            let source = asked.or_else(|| replicas.clone().find(active));
            if let Some(source) = source {
                let bit = 1 << replica;
                // ORDERING: Release, pairs with the Acquire in `ReplicaHandle::exchange_snapshots`.
                self.shared.mailboxes[source]
                    .requests
                    .fetch_or(bit, Ordering::Release);
            }
            self.sources[replica] = source;
        }
    }

    /// Compares what the replicas have posted, calls the hook if they differ, and orders repairs.
    /// Call it now and then, from any one thread. `None`: nothing new.
    pub fn check(&mut self) -> Option<Verdict> {
        self.assign_sources();
        let verdict = self.compare();
        let Some(verdict) = verdict else {
            self.reported = None;
            return None;
        };
        if self.reported.as_ref() == Some(&verdict) {
            return None; // reported before, and nothing was to be done
        }
        match ((self.hook)(&verdict), &verdict.minority) {
            (Action::Repair, Some(minority)) => {
                for &replica in minority {
                    self.request_snapshot(replica, ACTIVE);
                }
            }
            _ => self.reported = Some(verdict.clone()),
        }
        Some(verdict)
    }

    fn compare(&self) -> Option<Verdict> {
        let active = |n: usize| self.shared.status(n) == ACTIVE;
        // How far every replica has posted for certain: looked up before comparing, and in the
        // field that is posted last.
        let newest = |n: usize| self.shared.prints.last().and_then(|p| p.newest(n));
        let slowest = self.active().into_iter().map(newest).min().flatten();
        let compared: Vec<_> = self
            .shared
            .prints
            .iter()
            .map(|prints| prints.compare_among(active))
            .collect();
        let differ = || {
            let fields = S::FIELDS.iter().zip(&compared);
            fields.filter_map(|(name, (result, _))| Some((*name, result.as_ref().err()?)))
        };
        let position = differ().map(|(_, mismatch)| mismatch.position).min()?;
        let here = || differ().filter(|(_, mismatch)| mismatch.position == position);
        let mut minority = Some(Vec::new());
        for (_, mismatch) in here() {
            minority = minority.zip(mismatch.minority()).map(|(mut all, some)| {
                all.extend(
                    some.into_iter()
                        .filter(|n| !all.contains(n))
                        .collect::<Vec<_>>(),
                );
                all
            });
        }
        // Two against each other: wait for a third that is on its way and can tell which one is
        // right.
        if minority.is_none() && slowest < Some(position) {
            return None;
        }
        let agreed = compared.iter().map(|(_, agreed)| *agreed).min().flatten();
        let (_, first) = here().next()?;
        Some(Verdict {
            position,
            agreed: agreed.filter(|agreed| *agreed < position),
            fields: here().map(|(name, _)| name).collect(),
            compared: first.fingerprints.iter().map(|(n, _)| *n).collect(),
            minority,
        })
    }

    /// Replicas that run and are not known to differ.
    pub fn active(&self) -> Vec<usize> {
        let replicas = 0..self.shared.mailboxes.len();
        replicas
            .filter(|n| self.shared.status(*n) == ACTIVE)
            .collect()
    }

    /// How many snapshots replicas have taken over: repairs and joins.
    pub fn repairs(&self) -> u64 {
        self.repairs.load(Ordering::Relaxed)
    }
}

impl<S, T, W: Wait> fmt::Debug for Manager<S, T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager")
            .field("replicas", &self.shared.mailboxes.len())
            .field("every", &self.shared.every)
            .finish()
    }
}

/// A replica's side of a [`Manager`]: posts, gives snapshots and takes them. Dropping it, also by a
/// panic, frees the replica's slot.
pub struct ReplicaHandle<S, T, W: Wait> {
    shared: Arc<Shared<S, T, W>>,
    replica: usize,
    repairs: Arc<AtomicU64>,
    prints: Vec<u64>,
}

impl<S, T, W: Wait> ReplicaHandle<S, T, W> {
    fn new(shared: &Arc<Shared<S, T, W>>, replica: usize, repairs: &Arc<AtomicU64>) -> Self {
        ReplicaHandle {
            shared: shared.clone(),
            replica,
            repairs: repairs.clone(),
            prints: vec![0; shared.prints.len()],
        }
    }

    /// The replica's number.
    pub fn replica(&self) -> usize {
        self.replica
    }
}

impl<S, T, W> ReplicaHandle<S, T, W>
where
    S: Observe + Clone + Send,
    T: Send + Sync,
    W: Wait,
{
    /// One turn of the replica: takes a snapshot over if it was given one, applies what is there up
    /// to the next position to be compared, posts, and gives snapshots to those it was asked for.
    ///
    /// A replica that takes a snapshot over goes on from the snapshot's position, which may be
    /// before or behind its own; a replica that does work besides applying has to look at the
    /// positions.
    pub fn turn(
        &mut self,
        state: &mut S,
        subscription: &mut Subscription<T, W>,
        mut apply: impl FnMut(&mut S, Seq, &T),
    ) -> Turn {
        let tended = self.exchange_snapshots(state, subscription);
        let every = self.shared.every;
        let position = match subscription.try_next_batch() {
            Ok(mut batch) => {
                batch.truncate((batch.first_seq() / every + 1) * every);
                for (seq, entry) in &batch {
                    apply(state, seq, entry);
                }
                batch.end_seq()
            }
            Err(NoBatch::Empty) if tended => return Turn::Worked,
            Err(NoBatch::Empty) => return Turn::Idle,
            Err(NoBatch::Closed | NoBatch::Evicted) => return Turn::Finished,
        };
        self.post(position, state);
        Turn::Worked
    }

    /// Posts the fingerprints of the state after all entries below `position`, if it is one of
    /// those that are compared.
    pub fn post(&mut self, position: Seq, state: &S) {
        if !position.is_multiple_of(self.shared.every) {
            return;
        }
        state.fingerprints(&mut self.prints);
        for (prints, print) in self.shared.prints.iter().zip(&self.prints) {
            prints.post(self.replica, position, *print);
        }
    }

    /// Gives the snapshots that were asked for, and takes over one that was given. Call it between
    /// two batches, when the state is that after all entries below the subscription's position; a
    /// [`turn`](Self::turn) does. Two relaxed loads when there is nothing to do. Says whether
    /// there was.
    pub fn exchange_snapshots(
        &mut self,
        state: &mut S,
        subscription: &mut Subscription<T, W>,
    ) -> bool {
        let mailbox = &self.shared.mailboxes[self.replica];
        let mut any = false;
        if mailbox.has_mail.load(Ordering::Relaxed)
            && let Some((new, from)) = self.shared.take_snapshot(self.replica)
        {
            *state = new;
            *subscription = from;
            self.repairs.fetch_add(1, Ordering::Relaxed);
            any = true;
        }
        // A replica that was found to differ gives its state to no other replica.
        if mailbox.requests.load(Ordering::Relaxed) != 0
            && self.shared.status(self.replica) == ACTIVE
        {
            // ORDERING: Acquire, pairs with the Release in `Manager::assign_sources`.
            let asked = mailbox.requests.swap(0, Ordering::Acquire);
            for other in (0..self.shared.mailboxes.len()).filter(|n| asked >> n & 1 == 1) {
                any |= self.give_snapshot(other, state, subscription);
            }
        }
        any
    }

    fn give_snapshot(&self, other: usize, state: &S, subscription: &Subscription<T, W>) -> bool {
        if self.shared.status(other) != JOINING {
            return false; // it has left, or another replica gave it one
        }
        let Ok(fork) = subscription.fork() else {
            // No room for another subscription now: keep the request.
            let bit = 1 << other;
            // ORDERING: Release, pairs with the Acquire in `exchange_snapshots`.
            self.shared.mailboxes[self.replica]
                .requests
                .fetch_or(bit, Ordering::Release);
            return false;
        };
        let snapshot = (state.clone(), fork);
        let mut mail = self.shared.mail(other);
        if self.shared.status(other) != JOINING {
            return false; // meanwhile; a snapshot that is never taken would hold the log
        }
        *mail = Some(snapshot);
        // ORDERING: Release, pairs with the Acquire in `Shared::take_snapshot`.
        self.shared.mailboxes[other]
            .has_mail
            .store(true, Ordering::Release);
        true
    }
}

impl<S, T, W: Wait> Drop for ReplicaHandle<S, T, W> {
    fn drop(&mut self) {
        let (shared, replica) = (&self.shared, self.replica);
        let mailbox = &shared.mailboxes[replica];
        mailbox.requests.store(0, Ordering::Relaxed);
        shared.forget(replica);
        // While the mailbox is locked, so that no snapshot is put in afterwards.
        let mut mail = shared.mail(replica);
        mailbox.has_mail.store(false, Ordering::Relaxed);
        shared.set_status(replica, FREE);
        let unread = mail.take();
        drop(mail);
        drop(unread);
    }
}

impl<S, T, W: Wait> fmt::Debug for ReplicaHandle<S, T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicaHandle")
            .field("replica", &self.replica)
            .finish()
    }
}

/// A replica whose state is on its way.
pub struct Joiner<S, T, W: Wait>(Option<ReplicaHandle<S, T, W>>);

impl<S, T, W: Wait> Joiner<S, T, W> {
    /// The replica's handle with state and subscription, once another replica has handed them over:
    /// up to date, as of the subscription's position. Call it again until it returns them, and call
    /// [`Manager::check`] meanwhile.
    pub fn poll(&mut self) -> Option<Joined<S, T, W>> {
        let handle = self.0.as_ref()?;
        let (state, subscription) = handle.shared.take_snapshot(handle.replica)?;
        let handle = self.0.take()?;
        handle.repairs.fetch_add(1, Ordering::Relaxed);
        Some(Joined {
            handle,
            state,
            subscription,
        })
    }
}

/// A replica that has joined.
#[derive(Debug)]
pub struct Joined<S, T, W: Wait> {
    /// Its handle.
    pub handle: ReplicaHandle<S, T, W>,
    /// Its state, that after all entries below the subscription's position.
    pub state: S,
    /// Where it goes on.
    pub subscription: Subscription<T, W>,
}

impl<S, T, W: Wait> fmt::Debug for Joiner<S, T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Joiner").field(&self.0).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Log, Publisher, SpinYield, channel};

    #[derive(Debug, Clone, Default, PartialEq)]
    struct Sums {
        sum: u64,
        count: u64,
    }

    impl Observe for Sums {
        const FIELDS: &'static [&'static str] = &["sum", "count"];
        fn fingerprints(&self, out: &mut [u64]) {
            out.copy_from_slice(&[self.sum, self.count]);
        }
    }

    type One = (
        ReplicaHandle<Sums, u64, SpinYield>,
        Sums,
        Subscription<u64, SpinYield>,
    );

    struct Group {
        manager: Manager<Sums, u64, SpinYield>,
        publisher: Publisher<u64, SpinYield>,
        log: Log<u64, SpinYield>,
        replicas: Vec<One>,
        published: u64,
    }

    impl Group {
        fn new(replicas: usize) -> Self {
            let (publisher, log) = channel(64);
            let mut manager = Manager::new(replicas, 8, 4);
            let replicas = (0..replicas)
                .map(|n| {
                    (
                        manager.replica(n).unwrap(),
                        Sums::default(),
                        log.subscribe().unwrap(),
                    )
                })
                .collect();
            Group {
                manager,
                publisher,
                log,
                replicas,
                published: 0,
            }
        }

        fn run(&mut self, entries: u64) {
            for n in 0..entries {
                self.publisher.publish(n + 1).unwrap();
                self.published += 1;
                for (handle, sums, subscription) in &mut self.replicas {
                    let add = |sums: &mut Sums, _, n: &u64| {
                        sums.sum += n;
                        sums.count += 1;
                    };
                    while handle.turn(sums, subscription, add) == Turn::Worked {}
                }
            }
        }

        fn all_agree(&self) {
            for (handle, sums, _) in &self.replicas {
                assert_eq!(sums, &self.replicas[0].1, "replica {}", handle.replica());
                assert_eq!(sums.count, self.published);
            }
        }
    }

    #[test]
    fn two_replicas_that_differ_are_reported_once_and_left_alone() {
        let mut group = Group::new(2);
        group.run(8);
        group.replicas[0].1.count += 1;
        group.run(4);
        let verdict = group.manager.check().unwrap();
        assert_eq!(
            (&verdict.minority, &verdict.fields[..]),
            (&None, &["count"][..])
        );
        assert_eq!((verdict.position, verdict.agreed), (12, Some(8)));
        assert_eq!(group.manager.check(), None, "it was heard");
        assert_eq!(group.manager.repairs(), 0);
    }

    #[test]
    fn two_of_five_in_different_fields_are_both_repaired() {
        let mut group = Group::new(5);
        group.run(10);
        group.replicas[1].1.sum ^= 4;
        group.replicas[3].1.count ^= 8;
        group.run(4);
        let verdict = group.manager.check().unwrap();
        assert_eq!(verdict.fields, ["sum", "count"]);
        assert_eq!(verdict.minority, Some(vec![1, 3]));
        assert_eq!(group.manager.active(), [0, 2, 4]);
        group.run(1);
        assert_eq!(group.manager.active().len(), 5);
        assert_eq!(group.manager.repairs(), 2);
        group.all_agree();
        group.run(20);
        assert_eq!(group.manager.check(), None);
        assert_eq!(
            group.log.subscribers(),
            5,
            "nothing is left of the old subscriptions"
        );
    }

    #[test]
    fn no_verdict_without_a_majority_while_a_third_replica_is_on_its_way() {
        let mut group = Group::new(3);
        group.run(4);
        group.replicas[0].1.sum ^= 1;
        let late = group.replicas.pop().unwrap();
        group.run(4);
        assert_eq!(group.manager.check(), None, "two against each other");
        group.replicas.push(late);
        group.run(1);
        let verdict = group.manager.check().unwrap();
        assert_eq!((verdict.position, verdict.minority), (8, Some(vec![0])));
    }

    #[test]
    fn a_hook_can_forbid_the_repair() {
        let mut group = Group::new(3);
        let heard = Arc::new(AtomicU64::new(0));
        let count = heard.clone();
        group.manager = std::mem::replace(&mut group.manager, Manager::new(1, 1, 1)).on_verdict(
            move |verdict| {
                count.fetch_add(verdict.position, Ordering::Relaxed);
                Action::Report
            },
        );
        group.replicas[2].1.sum = 9;
        group.run(4);
        assert!(group.manager.check().is_some());
        group.run(4);
        assert_eq!(heard.load(Ordering::Relaxed), 4);
        assert_eq!(group.manager.repairs(), 0);
    }

    #[test]
    fn one_that_leaves_is_forgotten_and_a_fresh_one_joins() {
        let mut group = Group::new(3);
        group.run(6);
        drop(group.replicas.remove(1));
        group.run(6);
        assert_eq!(group.manager.check(), None);
        assert!(group.manager.replica(0).is_none());
        let mut joiner = group.manager.join().unwrap();
        assert!(group.manager.join().is_none(), "there are three replicas");
        assert!(joiner.poll().is_none());
        group.run(1);
        let one = joiner.poll().unwrap();
        group
            .replicas
            .push((one.handle, one.state, one.subscription));
        group.run(9);
        group.all_agree();
        assert_eq!(group.manager.check(), None);
    }

    #[test]
    fn another_source_is_asked_if_the_first_dies_before_it_gives() {
        let mut group = Group::new(3);
        group.run(4);
        drop(group.replicas.remove(2));
        let mut joiner = group.manager.join().unwrap();
        drop(group.replicas.remove(0)); // it was asked
        group.run(4);
        assert!(joiner.poll().is_none());
        assert_eq!(group.manager.check(), None);
        group.run(1);
        let one = joiner.poll().unwrap();
        group
            .replicas
            .push((one.handle, one.state, one.subscription));
        group.run(3);
        group.all_agree();
    }

    #[test]
    fn a_joiner_that_gives_up_frees_its_slot() {
        let mut group = Group::new(2);
        drop(group.replicas.remove(1));
        drop(group.manager.join().unwrap());
        group.run(4);
        assert_eq!(group.log.subscribers(), 1);
        assert!(group.manager.replica(1).is_some());
    }
}
