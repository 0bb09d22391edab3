//! One replica: its state, its place in the log, and the operations that its handles posted.
//!
//! A thread that holds the replica's `core` is its combiner. It alone reads the log for this
//! replica and writes to the state. Nothing in here waits for a core while it holds one, except
//! [`Shared::adopt`], which waits for active replicas only and on behalf of one that is not; so no
//! two threads wait for each other.

use super::{
    Pieces, ReplicatedError, StateMachine, WriteError,
    op_log::{Cursor, OpLog, Refusal},
    state_lock::{CoreGuard, MAX_READERS, StateLock, Unwritable},
    steps::{Fault, is_planted, step},
};
use crate::{
    Fingerprints, Seq, TryLock,
    sync::{Arc, AtomicU8, AtomicU64, Ordering, spin_loop, thread},
    wait::pause,
};
use crossbeam_utils::CachePadded;
use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

/// Looks at a state lock that readers hold, before a thread that helps another replica gives up.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 200 };

/// Waits a few nanoseconds, twice as long each time, and then yields the core. The first waits are
/// as short as most reads and writes.
pub(super) struct Backoff(u32);

impl Backoff {
    /// Waits before the first yield.
    const SPINS: u32 = if cfg!(loom) { 0 } else { 7 };

    pub(super) fn new() -> Self {
        Backoff(0)
    }

    pub(super) fn wait(&mut self) {
        step("a thread waits");
        if self.0 < Self::SPINS {
            (0..1 << self.0).for_each(|_| spin_loop());
            self.0 += 1;
        } else {
            thread::yield_now();
        }
    }
}

/// Drops a value of the user, whose destructor may panic.
pub(super) fn drop_quietly<T>(value: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        std::mem::forget(payload);
    }
}

/// The state of a replica slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReplicaStatus {
    /// No replica has this slot: none joined yet, or it left.
    Absent,
    /// It applies the log.
    Active,
    /// User code panicked while it changed the state, or the state differs from the majority. The
    /// next handle that needs the state replaces it with a copy of another replica's.
    Poisoned,
}

impl ReplicaStatus {
    fn of(value: u8) -> Self {
        match value {
            1 => ReplicaStatus::Active,
            2 => ReplicaStatus::Poisoned,
            _ => ReplicaStatus::Absent,
        }
    }
}

const EMPTY: u8 = 0;
const POSTED: u8 = 1;
const ANSWERED: u8 = 2;

/// A handle's operation on its way to a combiner, and the answer on its way back.
pub(super) struct Post<M: StateMachine> {
    state: AtomicU8,
    content: TryLock<Content<M>>,
}

enum Content<M: StateMachine> {
    Nothing,
    Operation(M::Op),
    Answer(Result<M::Answer, WriteError<M::Op>>),
}

impl<M: StateMachine> Post<M> {
    fn new() -> Self {
        Post {
            state: AtomicU8::new(EMPTY),
            content: TryLock::new(Content::Nothing),
        }
    }

    /// Only the side whose turn it is takes the content: the handle unless the post is `POSTED`,
    /// else the combiner. So nobody waits here.
    fn swap(&self, content: Content<M>) -> Content<M> {
        loop {
            if let Some(mut place) = self.content.try_take() {
                return std::mem::replace(&mut *place, content);
            }
            pause();
        }
    }

    pub(super) fn put(&self, op: M::Op) {
        drop(self.swap(Content::Operation(op)));
        // ORDERING: Release, pairs with the Acquire in `take_operation`.
        self.state.store(POSTED, Ordering::Release);
    }

    fn take_operation(&self) -> Option<M::Op> {
        // ORDERING: Acquire, pairs with the Release in `put`.
        if self.state.load(Ordering::Acquire) != POSTED {
            return None;
        }
        match self.swap(Content::Nothing) {
            Content::Operation(op) => Some(op),
            Content::Nothing | Content::Answer(_) => None,
        }
    }

    /// Takes the operation back that no combiner has taken. The caller holds the core.
    pub(super) fn withdraw(&self) -> Option<M::Op> {
        let op = self.take_operation()?;
        self.state.store(EMPTY, Ordering::Relaxed);
        Some(op)
    }

    fn give_back(&self, op: M::Op) {
        drop(self.swap(Content::Operation(op)));
    }

    fn answer(&self, answer: Result<M::Answer, WriteError<M::Op>>) {
        drop(self.swap(Content::Answer(answer)));
        // ORDERING: Release, pairs with the Acquire in `take_answer`.
        self.state.store(ANSWERED, Ordering::Release);
    }

    pub(super) fn take_answer(&self) -> Option<Result<M::Answer, WriteError<M::Op>>> {
        // ORDERING: Acquire, pairs with the Release in `answer`.
        if self.state.load(Ordering::Acquire) != ANSWERED {
            return None;
        }
        let content = self.swap(Content::Nothing);
        self.state.store(EMPTY, Ordering::Relaxed);
        match content {
            Content::Answer(answer) => Some(answer),
            Content::Nothing | Content::Operation(_) => None,
        }
    }
}

/// What the combiner of a replica holds.
pub(super) struct Core<M: StateMachine> {
    /// Where the replica is in the log; `None` if it has no state.
    cursor: Option<Cursor<M::Op>>,
    /// Operations of others that are not published yet, and the posts that they are from.
    batch: Vec<M::Op>,
    owners: Vec<usize>,
    /// Operations that have left the log.
    released: Vec<M::Op>,
}

/// A replica's state, `None` if it has none, and its core.
pub(super) type Lock<M> = StateLock<Option<M>, Core<M>>;
pub(super) type Holder<'a, M> = CoreGuard<'a, Option<M>, Core<M>>;

pub(super) struct LocalReplica<M: StateMachine> {
    pub(super) state: Arc<Lock<M>>,
    /// By the place of the handle's reader.
    pub(super) posts: Box<[CachePadded<Post<M>>]>,
    status: AtomicU8,
    /// Threads that need the core in order to copy or remove the replica.
    awaited: AtomicU64,
}

impl<M: StateMachine> LocalReplica<M> {
    pub(super) fn new() -> Self {
        let core = Core {
            cursor: None,
            batch: Vec::with_capacity(MAX_READERS),
            owners: Vec::with_capacity(MAX_READERS),
            released: Vec::with_capacity(MAX_READERS),
        };
        LocalReplica {
            state: Arc::new(StateLock::new(None, core)),
            posts: (0..MAX_READERS)
                .map(|_| CachePadded::new(Post::new()))
                .collect(),
            status: AtomicU8::new(ReplicaStatus::Absent as u8),
            awaited: AtomicU64::new(0),
        }
    }

    pub(super) fn status(&self) -> ReplicaStatus {
        ReplicaStatus::of(self.status.load(Ordering::Relaxed))
    }

    /// The core for the handle with this place, unless another thread has it or awaits it.
    #[inline]
    pub(super) fn try_core(&self, place: usize) -> Option<Holder<'_, M>> {
        match self.awaited.load(Ordering::Relaxed) {
            0 => self.state.try_take(Some(place)),
            _ => None,
        }
    }

    /// Waits for the core for as long as `wanted` returns true. Handles leave it to this thread: as
    /// they read and write all the time, it would hardly ever find the core free.
    pub(super) fn await_core(&self, mut wanted: impl FnMut() -> bool) -> Option<Holder<'_, M>> {
        let mut backoff = Backoff::new();
        self.awaited.fetch_add(1, Ordering::Relaxed);
        let core = loop {
            if !wanted() {
                break None;
            }
            if let Some(core) = self.state.try_take(None) {
                break Some(core);
            }
            backoff.wait();
        };
        self.awaited.fetch_sub(1, Ordering::Relaxed);
        core
    }

    fn set_status(&self, status: ReplicaStatus) {
        self.status.store(status as u8, Ordering::Relaxed);
    }

    pub(super) fn is_active(&self) -> bool {
        self.status() == ReplicaStatus::Active
    }
}

/// A copy of a state, and its place in the log.
type Copied<M> = (M, Cursor<<M as StateMachine>::Op>);

/// Takes the operations published below `to` into a copy.
fn follow<M: StateMachine>(pieces: &mut (dyn Pieces<M> + '_), cursor: &mut Cursor<M::Op>, to: Seq) {
    let end = cursor.poll().min(to);
    cursor.operations(end).for_each(|op| pieces.apply(op));
    cursor.advance_to(end);
}

/// Compares replicas by fingerprints of their states.
pub(super) struct Watch<M> {
    pub(super) prints: Fingerprints,
    pub(super) of: Box<dyn Fn(&M) -> u64 + Send + Sync>,
}

/// Counts of rare events.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) panicked: AtomicU64,
    pub(super) repaired: AtomicU64,
    pub(super) diverged: AtomicU64,
    pub(super) undecided: AtomicU64,
    pub(super) helped: AtomicU64,
}

impl Counts {
    pub(super) fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) struct Shared<M: StateMachine> {
    pub(super) log: Arc<OpLog<M::Op>>,
    pub(super) replicas: Box<[LocalReplica<M>]>,
    pub(super) patience: Duration,
    pub(super) watch: Option<Watch<M>>,
    pub(super) counts: Counts,
    /// One replica at a time joins or leaves.
    pub(super) changes: TryLock<()>,
}

/// How long a writer waits for the readers of its replica.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readers {
    /// Until they have left.
    Await,
    /// A moment.
    Try,
}

impl<M: StateMachine> Shared<M> {
    /// Gives the first state to a replica.
    pub(super) fn install(&self, state: M, cursor: Cursor<M::Op>) -> Result<(), ReplicatedError> {
        let mut core = self.core(0);
        self.place_state(0, &mut core, state, cursor)
    }

    /// How far the log is published.
    pub(super) fn end(&self) -> Seq {
        let positions = self.replicas.iter().map(|it| it.state.position());
        self.log.end(positions.max().unwrap_or(0))
    }

    /// Waits for the core of a replica.
    pub(super) fn core(&self, id: usize) -> Holder<'_, M> {
        let core = self.replicas[id].await_core(|| true);
        core.expect("it waits until it has the core")
    }

    fn place_state(
        &self,
        id: usize,
        core: &mut Holder<'_, M>,
        state: M,
        cursor: Cursor<M::Op>,
    ) -> Result<(), ReplicatedError> {
        let position = cursor.position();
        let before = Self::replace(id, core, Some(state))?;
        core.set_position(position);
        core.clear_suspicion();
        core.cursor = Some(cursor);
        self.replicas[id].set_status(ReplicaStatus::Active);
        drop_quietly(before);
        Ok(())
    }

    /// Replaces a state once its readers have left. Readers of the old one stay out until the core
    /// is released.
    fn replace(
        id: usize,
        core: &mut Holder<'_, M>,
        state: Option<M>,
    ) -> Result<Option<M>, ReplicatedError> {
        let mut backoff = Backoff::new();
        let write = core.write(|| {
            backoff.wait();
            true
        });
        match write {
            Ok((place, _)) => Ok(std::mem::replace(place, state)),
            Err(_) => Err(ReplicatedError::NoFence { replica: id }),
        }
    }

    /// Takes the state of a replica away, and its place in the log. If the system refuses the fence
    /// for that, the state stays, and no new reader gets it.
    pub(super) fn remove_state(&self, id: usize, core: &mut Holder<'_, M>, status: ReplicaStatus) {
        let state = Self::replace(id, core, None);
        core.suspect();
        self.leave_log(id, core, status);
        drop_quietly(state);
    }

    /// Takes the place in the log from a replica that has no state any more.
    fn leave_log(&self, id: usize, core: &mut Core<M>, status: ReplicaStatus) {
        self.replicas[id].set_status(status);
        if let Some(watch) = &self.watch {
            watch.prints.forget(id);
        }
        core.cursor = None;
    }

    /// Applies everything published to a replica. Calls `answer` with each answer and its position.
    /// Returns false if readers kept the state.
    #[inline]
    fn apply(
        &self,
        id: usize,
        core: &mut Holder<'_, M>,
        readers: Readers,
        mut answer: impl FnMut(Seq, M::Answer),
    ) -> Result<bool, ReplicatedError> {
        let Some(cursor) = &mut core.cursor else {
            return Ok(true);
        };
        let end = cursor.poll();
        let from = cursor.position();
        if from == end {
            return Ok(true);
        }
        step("a replica is to apply");
        let (mut looks, mut backoff) = (0, Backoff::new());
        let write = core.write(|| {
            looks += 1;
            backoff.wait();
            readers == Readers::Await || looks < LOOKS
        });
        let (place, inside) = match write {
            Ok(inside) => inside,
            Err(Unwritable::IsRead) => return Ok(false),
            Err(Unwritable::NoFence) => {
                core.suspect();
                self.leave_log(id, core, ReplicaStatus::Poisoned);
                return Err(ReplicatedError::NoFence { replica: id });
            }
        };
        let (Some(state), Some(cursor)) = (&mut *place, &mut inside.cursor) else {
            return Ok(true);
        };
        let at = Cell::new(from);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for op in cursor.operations(end) {
                answer(at.get(), state.apply(op));
                at.set(at.get() + 1);
                if let Some(watch) = &self.watch
                    && watch.prints.is_due(at.get())
                {
                    self.compare(id, watch, at.get(), (watch.of)(state));
                }
            }
        }));
        match outcome {
            Ok(()) => {
                cursor.advance_to(end);
                core.set_position(end);
                Ok(true)
            }
            Err(payload) => {
                // No thread sees the state that the panic left.
                let state = place.take();
                drop_quietly(payload);
                Counts::add(&self.counts.panicked);
                self.leave_log(id, core, ReplicaStatus::Poisoned);
                drop_quietly(state);
                let position = at.get();
                Err(ReplicatedError::Panicked {
                    replica: id,
                    position,
                })
            }
        }
    }

    /// Posts a fingerprint, and suspects the replicas that differ from the majority there.
    fn compare(&self, id: usize, watch: &Watch<M>, position: Seq, print: u64) {
        watch.prints.post(id, position, print);
        let active = || (0..self.replicas.len()).filter(|id| self.replicas[*id].is_active());
        let prints: Vec<(usize, u64)> = active()
            .filter_map(|id| Some((id, watch.prints.at(id, position)?)))
            .collect();
        let votes = |of: u64| prints.iter().filter(|(_, print)| *print == of).count();
        let all = active().count();
        match prints.iter().find(|(_, print)| 2 * votes(*print) > all) {
            Some((_, right)) => {
                for (id, _) in prints.iter().filter(|(_, print)| print != right) {
                    if !self.replicas[*id].state.is_suspect() {
                        Counts::add(&self.counts.diverged);
                        self.replicas[*id].state.suspect();
                    }
                }
            }
            None if prints.len() == all => Counts::add(&self.counts.undecided),
            None => {}
        }
    }

    /// Copies the state of an active replica to one that has none. The others continue; the one
    /// that is copied answers only reads while its state, or a piece of it, is copied.
    pub(super) fn adopt(&self, id: usize, core: &mut Holder<'_, M>) -> Result<(), ReplicatedError> {
        let mut why = ReplicatedError::NoReplicaLeft;
        for from in (0..self.replicas.len()).filter(|from| *from != id) {
            match catch_unwind(AssertUnwindSafe(|| self.copy(from))) {
                Ok(Some(copied)) => {
                    let (state, cursor) = copied?;
                    return self.place_state(id, core, state, cursor);
                }
                // It is none to copy from.
                Ok(None) => {}
                Err(payload) => {
                    drop_quietly(payload);
                    why = ReplicatedError::ClonePanicked { replica: from };
                }
            }
        }
        Err(why)
    }

    /// The core of an active replica, which has applied everything published. Readers may come.
    /// Calls `wait` while another thread has the core.
    fn source(&self, from: usize, mut wait: impl FnMut()) -> Option<Holder<'_, M>> {
        let replica = &self.replicas[from];
        let is_source = || replica.is_active() && !replica.state.is_suspect();
        let mut source = replica.await_core(|| {
            wait();
            is_source()
        })?;
        // Its state is then beyond an operation at which the other may have panicked.
        let applied = self.apply(from, &mut source, Readers::Await, |_, _| ());
        if applied.is_err() || !is_source() {
            return None;
        }
        source.open();
        Some(source)
    }

    /// A copy of a replica's state and its place in the log. `None` if the replica has no state, or
    /// loses it before the last piece is copied.
    fn copy(&self, from: usize) -> Option<Result<Copied<M>, ReplicatedError>> {
        let mut source = self.source(from, || ())?;
        let Some(mut fork) = source.cursor.as_ref()?.fork() else {
            return Some(Err(ReplicatedError::NoReplicaSlot));
        };
        let state = source.state().as_ref()?;
        let Some(mut pieces) = state.pieces() else {
            return Some(Ok((state.clone(), fork)));
        };
        loop {
            let is_whole = pieces.copy(source.state().as_ref()?);
            drop(source);
            if is_whole {
                return Some(Ok((pieces.finish(), fork)));
            }
            follow(&mut *pieces, &mut fork, Seq::MAX);
            // Handles that wait for the core look for it at least once in this time.
            let mut backoff = Backoff::new();
            (0..=Backoff::SPINS).for_each(|_| backoff.wait());
            // The thread that has the core may wait for room in the log, and the copy holds it up.
            source = self.source(from, || follow(&mut *pieces, &mut fork, Seq::MAX))?;
            let position = source.cursor.as_ref()?.position();
            follow(&mut *pieces, &mut fork, position);
        }
    }

    /// Makes sure that the replica has a state that counts.
    #[inline(always)]
    fn ready(&self, id: usize, core: &mut Holder<'_, M>) -> Result<(), ReplicatedError> {
        let replica = &self.replicas[id];
        match replica.is_active() && !replica.state.is_suspect() {
            true => Ok(()),
            false => self.repair(id, core),
        }
    }

    #[cold]
    fn repair(&self, id: usize, core: &mut Holder<'_, M>) -> Result<(), ReplicatedError> {
        let replica = &self.replicas[id];
        if replica.state.is_suspect() && replica.is_active() {
            self.remove_state(id, core, ReplicaStatus::Poisoned);
        }
        match replica.status() {
            ReplicaStatus::Active => Ok(()),
            ReplicaStatus::Absent => Err(ReplicatedError::Left { replica: id }),
            ReplicaStatus::Poisoned => {
                drop_quietly(Self::replace(id, core, None)?);
                self.adopt(id, core)?;
                Counts::add(&self.counts.repaired);
                Ok(())
            }
        }
    }

    /// Applies everything published to this replica, for its handle with this place, if no other
    /// thread does. The guard that it returns keeps other writers out.
    pub(super) fn advance(
        &self,
        id: usize,
        place: usize,
    ) -> Result<Option<Holder<'_, M>>, ReplicatedError> {
        let Some(mut core) = self.replicas[id].try_core(place) else {
            return Ok(None);
        };
        self.ready(id, &mut core)?;
        self.apply(id, &mut core, Readers::Await, |_, _| ())?;
        Ok(Some(core))
    }

    /// Publishes the caller's operation with all that the other handles of the replica posted, and
    /// applies the log up to there. `place` is the caller's.
    pub(super) fn combine(
        &self,
        id: usize,
        core: Holder<'_, M>,
        place: usize,
        own: M::Op,
    ) -> Result<M::Answer, WriteError<M::Op>> {
        let replica = &self.replicas[id];
        let mut batch = Combined {
            posts: &replica.posts,
            core,
        };
        batch.collect(
            replica.state.readers() & !(1 << place),
            self.log.capacity as usize - 1,
        );
        if let Err(why) = self.ready(id, &mut batch.core) {
            return batch.refuse(own, why);
        }
        let (first, others) = match self.publish(id, &mut batch.core, own) {
            Ok(published) => published,
            Err((op, why @ ReplicatedError::Stalled { .. })) => {
                return Err(WriteError { op: Some(op), why });
            }
            Err((own, why)) => return batch.refuse(own, why),
        };
        step("a combiner has published");
        let owners = std::mem::take(&mut batch.core.owners);
        let (mut own, mut answered) = (None, 0);
        let outcome = self.apply(id, &mut batch.core, Readers::Await, |seq, answer| match seq
            .wrapping_sub(first)
        {
            at if at < others => {
                replica.posts[owners[at as usize]].answer(Ok(answer));
                answered += 1;
            }
            at if at == others => own = Some(answer),
            _ => {}
        });
        batch.core.owners = owners;
        if outcome.is_ok()
            && let Some(own) = own
        {
            // All are answered.
            batch.core.owners.clear();
            return Ok(own);
        }
        let why = outcome.err().unwrap_or(ReplicatedError::NoReplicaLeft);
        for place in batch.core.owners.drain(..).skip(answered) {
            replica.posts[place].answer(Err(WriteError { op: None, why }));
        }
        own.ok_or(WriteError { op: None, why })
    }

    /// Publishes the batch of a replica and then `own`; makes room for them if the log is full.
    /// Returns the position of the first operation and the length of the batch.
    fn publish(
        &self,
        id: usize,
        core: &mut Holder<'_, M>,
        own: M::Op,
    ) -> Result<(Seq, u64), (M::Op, ReplicatedError)> {
        // Their destructors, which are the user's, run before anything is published.
        core.released.clear();
        let (mut own, mut since, mut backoff) = (own, None, Backoff::new());
        loop {
            let inside = &mut **core;
            let Some(cursor) = &mut inside.cursor else {
                return Err((own, ReplicatedError::Left { replica: id }));
            };
            let n = inside.batch.len() as u64;
            let released = |op| inside.released.push(op);
            own = match cursor.publish(&mut inside.batch, own, released) {
                Ok(first) => return Ok((first, n)),
                Err((Refusal::Busy, own)) => own,
                Err((Refusal::Full, own)) => {
                    // Readers may come while this thread waits.
                    core.open();
                    let applied = self.apply(id, core, Readers::Try, |_, _| ());
                    let room = applied.and_then(|_| self.make_room(Some(id), &mut since));
                    if let Err(why) = room {
                        return Err((own, why));
                    }
                    core.open();
                    own
                }
            };
            backoff.wait();
        }
    }

    /// Applies the log to the slowest replica, unless that is `own`, which the caller has at hand.
    /// An error names the replica once the patience is over.
    pub(super) fn make_room(
        &self,
        own: Option<usize>,
        since: &mut Option<Instant>,
    ) -> Result<(), ReplicatedError> {
        let active = (0..self.replicas.len()).filter(|id| self.replicas[*id].is_active());
        let slowest = active.min_by_key(|id| self.replicas[*id].state.position());
        let Some(slowest) = slowest else {
            return Err(ReplicatedError::NoReplicaLeft);
        };
        let before = self.replicas[slowest].state.position();
        if own != Some(slowest)
            && let Some(mut core) = self.replicas[slowest].state.try_take(None)
        {
            // After a panic the replica leaves the log, which makes room, too.
            let applied = self.apply(slowest, &mut core, Readers::Try, |_, _| ());
            if applied.is_err() || self.replicas[slowest].state.position() > before {
                Counts::add(&self.counts.helped);
                return Ok(());
            }
        }
        let since = since.get_or_insert_with(Instant::now);
        match since.elapsed() >= self.patience {
            true => Err(ReplicatedError::Stalled { replica: slowest }),
            false => Ok(()),
        }
    }
}

/// Operations that a combiner has taken from others. When it is dropped, those not published return
/// to their posts, whose handles then try again.
struct Combined<'a, M: StateMachine> {
    posts: &'a [CachePadded<Post<M>>],
    core: Holder<'a, M>,
}

impl<M: StateMachine> Combined<'_, M> {
    /// Takes the operations posted in `places`, at most `most`.
    fn collect(&mut self, mut places: u64, most: usize) {
        while places != 0 && self.core.batch.len() < most {
            let place = places.trailing_zeros() as usize;
            places &= places - 1;
            let Some(op) = self.posts[place].take_operation() else {
                continue;
            };
            if is_planted(Fault::LostCombiner)
                && let Some(mut copy) = self.core.state().clone()
            {
                self.posts[place].answer(Ok(copy.apply(&op)));
                continue;
            }
            self.core.batch.push(op);
            self.core.owners.push(place);
        }
    }

    /// Refuses all operations, none of which is published. Returns the caller's.
    fn refuse(mut self, own: M::Op, why: ReplicatedError) -> Result<M::Answer, WriteError<M::Op>> {
        let core = &mut *self.core;
        for (op, place) in core.batch.drain(..).zip(core.owners.drain(..)) {
            self.posts[place].answer(Err(WriteError { op: Some(op), why }));
        }
        let op = Some(own);
        Err(WriteError { op, why })
    }
}

impl<M: StateMachine> Drop for Combined<'_, M> {
    #[inline]
    fn drop(&mut self) {
        let core = &mut *self.core;
        if core.batch.is_empty() {
            return core.owners.clear();
        }
        for (op, place) in core.batch.drain(..).zip(core.owners.drain(..)) {
            self.posts[place].give_back(op);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicated::{MapOp, Replicated, barrier};
    use std::collections::BTreeMap;

    #[test]
    fn a_replica_whose_readers_no_fence_reaches_leaves_the_others_alone() {
        if !barrier::is_available() {
            return println!("skipped: the system has no membarrier(2)");
        }
        let builder = Replicated::builder(BTreeMap::<u8, u8>::new());
        let replicas = builder.replicas(2).capacity(4).build().unwrap();
        let mut writer = replicas.handle_on(0).unwrap();
        let mut other = replicas.handle_on(1).unwrap();
        // Without another reader, this makes the replica quiet.
        assert_eq!(writer.write(MapOp::Insert(1, 1)), Ok(None));
        let mut reader = replicas.handle_on(0).unwrap();
        assert_eq!(reader.read(BTreeMap::len), Ok(1));
        barrier::REFUSES.set(true);
        let why = ReplicatedError::NoFence { replica: 0 };
        let insert = |value| MapOp::Insert(1, value);
        let lost = Err(WriteError { op: None, why });
        assert_eq!(writer.write(insert(2)), lost);
        let op = Some(insert(3));
        assert_eq!(writer.write(insert(3)), Err(WriteError { op, why }));
        assert_eq!(reader.read(BTreeMap::len), Err(why));
        for value in 3..20 {
            assert_eq!(other.write(insert(value)), Ok(Some(value - 1)));
        }
        assert_eq!(replicas.leave(0), Ok(()));
        assert_eq!(reader.read(|map| map[&1]), Ok(19), "it has moved");
        assert_eq!(replicas.join(), Err(why));
        barrier::REFUSES.set(false);
        assert_eq!(replicas.join(), Ok(0));
        assert_eq!(writer.write(insert(20)), Ok(Some(19)));
    }

    #[test]
    fn handles_leave_the_core_to_a_thread_that_awaits_it() {
        let replica = LocalReplica::<BTreeMap<u8, u8>>::new();
        let handle = || replica.try_core(0);
        assert!(handle().is_some());
        let core = replica.await_core(|| handle().is_none());
        assert!(core.is_some(), "the handle has it");
        drop(core);
        assert!(handle().is_some());
    }
}
