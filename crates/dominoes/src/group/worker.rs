//! A replica of a [`Group`](super::Group), turn by turn.

use super::{
    Code, GroupShared, join_check::CheckResult, observe::Post, perform::Pending, slots::WorkerState,
};
use crate::{Domain, DomainHandle, Meter, Park, Seq, Subscription, Turn, WaitSet};
use std::{
    any::Any,
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Instant,
};

/// Requests that a turn applies, and effects that it performs.
const BATCH: usize = 64;

/// A clone of a worker's state and position, with which another worker can continue.
pub(super) struct Snapshot<S, T, E> {
    state: S,
    log: Subscription<T, Park>,
    pending: Pending<E>,
}

/// The state of a worker, and its progress.
pub(super) struct Replica<S, T, E> {
    state: S,
    log: Subscription<T, Park>,
    pub(super) pending: Pending<E>,
    /// The workers that share the chunks, a bit each, as of this worker's last check.
    pub(super) owners: u64,
    /// The worker's own chunks below this position are performed, or begun by others.
    pub(super) own: Seq,
    /// The first pending effect, and the time since when it is the first.
    pub(super) oldest: Option<(Seq, Instant)>,
}

impl<S, T: Send + Sync, E> Replica<S, T, E> {
    fn new(snapshot: Snapshot<S, T, E>) -> Box<Self> {
        let Snapshot {
            state,
            log,
            pending,
        } = snapshot;
        Box::new(Replica {
            state,
            log,
            owners: 0,
            own: pending.first(),
            pending,
            oldest: None,
        })
    }

    fn snapshot(&self) -> Option<Snapshot<S, T, E>>
    where
        S: Clone,
        E: Clone,
    {
        Some(Snapshot {
            log: self.log.fork().ok()?,
            state: self.state.clone(),
            pending: self.pending.clone(),
        })
    }
}

/// A replica of a group: it applies every request of the log, and performs its share of the
/// effects. Its turns can be called by hand, from one thread or many; a [`Group`](super::Group)
/// runs each worker on its own thread. When a worker is dropped, also by a panic, the others take
/// over its share.
pub struct GroupWorker<S, T: Send + Sync, E, A, P> {
    pub(super) id: usize,
    name: String,
    pub(super) shared: Arc<GroupShared<S, T, E>>,
    pub(super) code: Arc<Code<A, P>>,
    state: WorkerState,
    /// Its state before it began to join.
    before: WorkerState,
    /// The active workers when this worker last woke them, while it joined.
    asked: u64,
    /// `None` while it has no state, and while the user's code runs, which may panic.
    replica: Option<Box<Replica<S, T, E>>>,
    pub(super) meter: Arc<Meter>,
}

impl<S, T: Send + Sync, E, A, P> GroupWorker<S, T, E, A, P> {
    fn new(
        shared: &Arc<GroupShared<S, T, E>>,
        code: &Arc<Code<A, P>>,
        id: usize,
        state: WorkerState,
    ) -> Self {
        GroupWorker {
            id,
            name: format!("replica {id}"),
            meter: shared.meters[id].clone(),
            shared: shared.clone(),
            code: code.clone(),
            state,
            before: WorkerState::Gone,
            asked: 0,
            replica: None,
        }
    }

    /// A worker that is active from the start of the group.
    pub(super) fn first(
        shared: &Arc<GroupShared<S, T, E>>,
        code: &Arc<Code<A, P>>,
        id: usize,
        state: S,
        log: Subscription<T, Park>,
    ) -> Self {
        let pending = Pending::from(log.position());
        let mut worker = GroupWorker::new(shared, code, id, WorkerState::Active);
        worker.replica = Some(Replica::new(Snapshot {
            state,
            log,
            pending,
        }));
        worker
    }

    /// A worker that waits for a state, in a slot that is reserved for it.
    pub(super) fn joining(
        shared: &Arc<GroupShared<S, T, E>>,
        code: &Arc<Code<A, P>>,
        id: usize,
    ) -> Self {
        GroupWorker::new(shared, code, id, WorkerState::Joining)
    }

    /// The number of its replica slot.
    pub fn id(&self) -> usize {
        self.id
    }

    /// Its state in the group.
    pub fn worker_state(&self) -> WorkerState {
        self.state
    }

    /// Its copy of the user's state, between two turns; `None` if it has none.
    pub fn state(&self) -> Option<&S> {
        self.replica.as_ref().map(|replica| &replica.state)
    }

    /// A mutable reference to its copy, to change it without the group's knowledge in tests.
    pub fn state_mut(&mut self) -> Option<&mut S> {
        self.replica.as_mut().map(|replica| &mut replica.state)
    }

    /// Gives up its slot, and returns its copy of the state, if it has one. The worker counts as
    /// failed unless everything is applied and performed.
    pub fn into_state(mut self) -> Option<S> {
        self.replica.take().map(|replica| replica.state)
    }

    /// Gives up its slot, and with it its share, after a panic or when it is dropped.
    fn give_up(&mut self) {
        self.replica = None;
        if self.state == WorkerState::Gone {
            return;
        }
        let state = match self.state {
            WorkerState::Parked => WorkerState::Joining,
            state => state,
        };
        self.shared.membership.release(self.id, state);
        self.state = WorkerState::Gone;
        self.shared.close_if_lost();
        self.shared.news.notify_all();
    }

    /// Leaves the group after everything is applied and performed.
    fn finish(&mut self) -> Turn {
        self.shared.membership.deactivate(self.id);
        self.state = WorkerState::Gone;
        self.shared.news.notify_all();
        Turn::Finished
    }
}

impl<S, T, E, A, P> GroupWorker<S, T, E, A, P>
where
    S: Clone,
    T: Send + Sync,
    E: Clone,
    A: Fn(&mut S, Seq, &T) -> E,
    P: Fn(E, Seq),
{
    /// Does the work that is due now, at most 64 requests and 64 effects.
    ///
    /// If the user's code panics, the worker loses its state. It gives up its slot in its next
    /// turn, or when it is dropped.
    pub fn turn(&mut self, now: Instant) -> Turn {
        self.step(now, BATCH, BATCH)
    }

    /// Like [`turn`](Self::turn), with at most `apply` requests to apply and `perform` effects to
    /// perform, either of which may be 0.
    pub fn step(&mut self, now: Instant, apply: usize, perform: usize) -> Turn {
        let has_state = matches!(self.state, WorkerState::Active | WorkerState::JoinCheck);
        if has_state && self.replica.is_none() {
            self.give_up();
        }
        if self.state == WorkerState::Gone {
            return Turn::Finished;
        }
        let changed = match self.handle_membership(now) {
            Membership::Stays => false,
            Membership::Changed => true,
            Membership::Turn(turn) => return turn,
        };
        // If the user's code panics, this drops the state.
        let Some(mut replica) = self.replica.take() else {
            unreachable!("an active worker has a state");
        };
        let applied = self.apply(&mut replica, apply);
        let performed = self.perform(&mut replica, now, perform);
        let forgotten = self.forget(&mut replica, now);
        let is_finished = replica.log.is_finished();
        let is_pending = !replica.pending.is_empty();
        if applied > 0 {
            self.meter.handled(applied as u64);
        }
        self.meter.set_lag(replica.log.lag());
        self.replica = Some(replica);
        if performed > 0 {
            self.shared.news.notify_all();
        }
        match changed || applied > 0 || performed > 0 || forgotten {
            true => Turn::Worked,
            false if is_finished && !is_pending => self.finish(),
            false if is_pending || is_finished => Turn::Waiting,
            false => Turn::Idle,
        }
    }

    /// Applies requests, up to the next position at which a fingerprint is due.
    fn apply(&self, replica: &mut Replica<S, T, E>, most: usize) -> usize {
        let shared = &*self.shared;
        let from = replica.log.position();
        let mut end = replica.log.poll();
        end = end.min(shared.reach(replica.pending.first()));
        end = end.min(from.saturating_add(most as u64));
        if let Some(observer) = &shared.observer {
            end = end.min(observer.next_due(from));
        }
        for seq in from..end {
            let request = replica
                .log
                .get(seq)
                .expect("it is published, and not released");
            let effect = (self.code.apply)(&mut replica.state, seq, request);
            replica.pending.push(effect);
        }
        if from == end {
            return 0;
        }
        replica.log.advance_to(end);
        // A state in a join check has no vote.
        if let Some(observer) = &shared.observer
            && self.state == WorkerState::Active
        {
            match observer.post(&shared.membership, self.id, end, &replica.state) {
                Post::Nothing => {}
                Post::Undecided => drop(shared.membership.count_undecided()),
                Post::Wrong(wrong) => {
                    shared.membership.report_divergence(wrong);
                    shared.news.notify_all();
                }
            }
        }
        (end - from) as usize
    }

    /// Does the work that the slot table has for this worker.
    fn handle_membership(&mut self, now: Instant) -> Membership {
        match self.state {
            WorkerState::Active if !self.shared.membership.is_notified(self.id) => {
                Membership::Stays
            }
            WorkerState::Active => self.handle_notification(),
            WorkerState::Parked if self.shared.membership.parked() >> self.id & 1 != 0 => {
                if self.shared.log.is_closed() {
                    self.give_up();
                    return Membership::Turn(Turn::Finished);
                }
                Membership::Turn(Turn::Idle)
            }
            WorkerState::Parked => {
                (self.state, self.before) = (WorkerState::Joining, WorkerState::Parked);
                Membership::Turn(Turn::Worked)
            }
            WorkerState::Joining | WorkerState::JoinCheck => self.join(now),
            WorkerState::Leaving(_) | WorkerState::Diverged(_) | WorkerState::Gone => {
                unreachable!("{:?} lasts for no turn", self.state)
            }
        }
    }

    #[cold]
    fn handle_notification(&mut self) -> Membership {
        let shared = self.shared.clone();
        let membership = &shared.membership;
        membership.clear_notification(self.id);
        if membership.take_divergence_report(self.id)
            && let Some(observer) = &shared.observer
            && let Some(right) = observer.diverged_from(membership, self.id)
        {
            self.replica = None;
            let diverged = WorkerState::Diverged(right);
            membership.release(self.id, diverged);
            (self.state, self.before) = (WorkerState::Joining, diverged);
            shared.close_if_lost();
            shared.news.notify_all();
            return Membership::Turn(Turn::Worked);
        }
        if membership.is_leaving(self.id) && membership.try_leave(self.id) {
            // The others perform its remaining share; between two turns it has begun nothing.
            self.replica = None;
            let parks = membership.take_park_request(self.id);
            self.state = match parks {
                true => WorkerState::Parked,
                false => WorkerState::Gone,
            };
            membership.release(self.id, self.state);
            shared.news.notify_all();
            return Membership::Turn(if parks { Turn::Worked } else { Turn::Finished });
        }
        // Cloning a state runs the user's code, which may panic.
        let Some(mut replica) = self.replica.take() else {
            return Membership::Stays;
        };
        let fingerprint = |replica: &Replica<S, T, E>| {
            let observer = shared.observer.as_ref();
            observer.map_or(0, |observer| observer.fingerprint(&replica.state))
        };
        let position = replica.log.position();
        let served = membership.serve_joiners(
            self.id,
            position,
            &mut *replica,
            |replica| replica.snapshot(),
            fingerprint,
        );
        self.replica = Some(replica);
        if served.is_waiting {
            membership.notify(1 << self.id);
        }
        shared.news.notify_all();
        match served.is_waiting {
            true => Membership::Stays,
            false => Membership::Changed,
        }
    }

    /// Takes a snapshot if one is there, and continues the join check.
    fn join(&mut self, now: Instant) -> Membership {
        let shared = self.shared.clone();
        let membership = &shared.membership;
        if self.state == WorkerState::Joining {
            let Some(snapshot) = membership.take_snapshot(self.id) else {
                if !membership.has_state() {
                    self.give_up();
                    return Membership::Turn(Turn::Finished);
                }
                return self.wait_for_others();
            };
            self.replica = Some(Replica::new(snapshot));
            self.state = WorkerState::JoinCheck;
            self.asked = 0;
        }
        let Some(mut replica) = self.replica.take() else {
            return Membership::Stays;
        };
        let Some(observer) = &shared.observer else {
            membership.skip_check(self.id);
            return self.activate(replica);
        };
        loop {
            let print = || observer.fingerprint(&replica.state);
            let position = replica.log.position();
            match membership.check_join(self.id, position, print, |result| result) {
                Some(CheckResult::Passed | CheckResult::Undecided) => {
                    return self.activate(replica);
                }
                Some(CheckResult::Failed) | None => {
                    self.state = WorkerState::Joining;
                    shared.news.notify_all();
                    return Membership::Turn(Turn::Worked);
                }
                Some(CheckResult::ContinueTo(position)) => {
                    // Effects that others have performed make room in the log.
                    self.forget(&mut replica, now);
                    let missing = position - replica.log.position();
                    if self.apply(&mut replica, missing as usize) == 0 {
                        self.replica = Some(replica);
                        return Membership::Turn(Turn::Waiting);
                    }
                }
                Some(CheckResult::Open) => {
                    self.replica = Some(replica);
                    return self.wait_for_others();
                }
            }
        }
    }

    /// Becomes active at the position of its state.
    fn activate(&mut self, replica: Box<Replica<S, T, E>>) -> Membership {
        let membership = &self.shared.membership;
        membership.activate(self.id, replica.log.position());
        membership.end_join(self.id);
        membership.count_join(self.before);
        self.replica = Some(replica);
        (self.state, self.before) = (WorkerState::Active, WorkerState::Gone);
        self.shared.news.notify_all();
        Membership::Changed
    }

    /// Wakes the active workers, unless the same ones were woken before.
    fn wait_for_others(&mut self) -> Membership {
        let active = self.shared.membership.active();
        if self.asked != active {
            self.asked = active;
            self.shared.news.notify_all();
        }
        Membership::Turn(Turn::Idle)
    }
}

/// The outcome of a worker's look at the slot table.
enum Membership {
    /// The table had nothing for the worker.
    Stays,
    /// Something was done, and the turn continues.
    Changed,
    /// The turn ends.
    Turn(Turn),
}

impl<S, T, E, A, P> GroupWorker<S, T, E, A, P>
where
    S: Clone + Send + 'static,
    T: Send + Sync + 'static,
    E: Clone + Send + 'static,
    A: Fn(&mut S, Seq, &T) -> E + Send + Sync + 'static,
    P: Fn(E, Seq) + Send + Sync + 'static,
{
    /// Starts a thread for the worker, on this core if given.
    pub(super) fn spawn(self, core: Option<usize>) -> io::Result<DomainHandle<S>> {
        let meter = self.meter.clone();
        DomainHandle::spawn(Box::new(self), meter, core)
    }
}

impl<S, T: Send + Sync, E, A, P> Drop for GroupWorker<S, T, E, A, P> {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl<S, T: Send + Sync, E, A, P> fmt::Debug for GroupWorker<S, T, E, A, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupWorker")
            .field("id", &self.id)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl<S, T, E, A, P> Domain for GroupWorker<S, T, E, A, P>
where
    S: Clone + Send + 'static,
    T: Send + Sync + 'static,
    E: Clone + Send + 'static,
    A: Fn(&mut S, Seq, &T) -> E + Send + Sync + 'static,
    P: Fn(E, Seq) + Send + Sync + 'static,
{
    fn run(&mut self) -> Turn {
        let turn = catch_unwind(AssertUnwindSafe(|| self.turn(Instant::now())));
        turn.unwrap_or_else(|payload| {
            self.give_up();
            let shared = &self.shared;
            if !shared.settings.revive || shared.membership.request_snapshot(Some(self.id)).is_err()
            {
                resume_unwind(payload);
            }
            (self.state, self.before) = (WorkerState::Joining, WorkerState::Gone);
            self.asked = 0;
            Turn::Worked
        })
    }

    fn wake_sources(&mut self, set: &mut WaitSet) {
        set.add(&self.shared.news);
        if self.shared.membership.is_notified(self.id) && self.state == WorkerState::Active {
            // The slot table was locked, or this worker must first reach a later position.
            set.unknown();
        }
        if let Some(replica) = &self.replica {
            replica.log.wake_sources(set);
            if let Some((_, since)) = replica.oldest
                && since.elapsed() < self.shared.settings.patience
            {
                set.until(since + self.shared.settings.patience);
            }
        }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn id(&self) -> u64 {
        self.id as u64
    }

    fn meter(&self) -> Option<Arc<Meter>> {
        Some(self.meter.clone())
    }

    fn into_state(self: Box<Self>) -> Option<Box<dyn Any + Send>> {
        GroupWorker::into_state(*self).map(|state| Box::new(state) as Box<dyn Any + Send>)
    }
}
