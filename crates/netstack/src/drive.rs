//! How a stack is driven: a turn of a worker, by hand or on a thread.
//!
//! Every variant is made of [`Worker`]s, one for each thread, and a [`Handle`], by which other
//! threads ask something of them. [`Stack`](crate::Stack) gives each worker to a thread.
//! [`ByHand`] has all of them in one place: time is an argument, and every step is a call.
//!
//! # A turn
//!
//! [`Worker::turn`] calls the steps of a worker in this order. Each variant fills in the steps.
//!
//! 1. *Begin*: join, leave or park, if that is asked for (a group only).
//! 2. *Receive*: claim frames from the device, parse them, and publish them as requests. In the
//!    same step the receive pump publishes the news of applications, and the time for timers that
//!    are due. One worker at a time has the pump.
//! 3. *Process*: prepare requests (verify checksums), apply them, and perform their effects.
//! 4. *Transmit*: send frames that are built. One worker at a time has the transmit pump.
//! 5. *Help*: steal work from workers that are late (a group only).
//! 6. *Units*: process TLS records or messages of framed streams.
//!
//! If a turn found nothing to do, the thread rests ([`Worker::rest`]) or sleeps until the earliest
//! timer ([`Worker::wait`]). The stages of `pipelined` each do their part of steps 2 to 4 in one.

pub(crate) mod coalescing;

#[cfg(feature = "record")]
use std::io::{self, Read};
use std::sync::Arc;

use dominoes::{ChannelStats, Mismatch};

use crate::config::Limits;
use crate::error::MembershipError;
#[cfg(feature = "record")]
use crate::io::record::Recording;
use crate::io::record::{Entry, Recorder};
use crate::io::sleep::{RECHECK, Sleeper};
use crate::io::world::World;
use crate::socket::Sockets;
use crate::socket::poller::hold_wakeups;
use crate::state::apply::ReplicaState;
use crate::stats::{
    AutoscaleStats, EffectStats, MembershipStats, PumpStats, StackStats, WorkerStats,
};
use crate::time::{Duration, Instant};

/// How long threads used cores, and how long they were ready but waited for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// Time on a core.
    pub used: Duration,
    /// Time in the queue of a core.
    pub waited: Duration,
}

/// A step of a worker, for callers that choose their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TurnStep {
    /// Takes the receive pump for one turn, if it is free.
    Pump,
    /// Claims a batch of frames from the device; only `replicated` has this step by itself, and the
    /// next two.
    Claim,
    /// Parses the batch that it claimed, or an older one whose worker is late.
    Parse,
    /// Publishes parsed frames and the news of applications.
    Publish,
    /// Verifies the checksums of the request at this distance after the next one to apply. `locked`
    /// ignores the distance.
    Prepare(u64),
    /// Applies the next request that is prepared.
    Apply,
    /// Performs an effect of the next applied request, or a part of one.
    Perform,
    /// Takes the transmit pump for one turn, if it is free.
    Send,
    /// Sends one frame; `locked` has a turn of the pump.
    SendOne,
    /// Everything that can be done now, once.
    Turn,
}

/// One thread's part of a variant. A [`turn`](Self::turn) calls the steps from
/// [`begin`](Self::begin) to [`end`](Self::end).
pub trait Worker: Send {
    /// Which of the variant's workers it is: of a group its replica slot.
    fn id(&self) -> usize {
        0
    }

    /// Its name in reports.
    fn name(&self) -> String;

    /// Everything that can be done now, once. Returns how much that was; 0 means that nothing will
    /// happen before [`next_deadline`](Self::next_deadline) unless a frame, an application or
    /// another worker does something.
    #[inline]
    fn turn(&mut self, now: Instant) -> usize {
        turn(self, now)
    }

    /// A turn without new frames, news and time. Returns how much was done.
    fn work(&mut self) -> usize {
        match self.begin(None) {
            Ok(()) => work(self),
            Err(done) => done,
        }
    }

    /// Begins a turn, with the time if that has passed.
    ///
    /// # Errors
    /// How much was done, if that was the whole turn.
    #[inline]
    fn begin(&mut self, _now: Option<Instant>) -> Result<(), usize> {
        Ok(())
    }

    /// Takes in frames, news of applications and the time, if no other worker does.
    fn receive(&mut self, now: Instant) -> usize;

    /// Prepares and applies requests, and performs their effects.
    fn process(&mut self) -> usize;

    /// Sends frames, if no other worker does. `is_idle`: this turn found nothing to process; a
    /// worker that was so for some turns does not leave frames to others.
    fn transmit(&mut self, is_idle: bool) -> usize;

    /// Does what other workers are late with.
    #[inline]
    fn help(&mut self, _is_idle: bool) -> usize {
        0
    }

    /// Processes units of streams.
    fn serve_units(&mut self) -> usize;

    /// Ends a turn that did so much.
    #[inline]
    fn end(&mut self, _done: usize) {}

    /// One step by itself; a worker whose steps are not to be had so has a turn. Returns whether
    /// something was done.
    fn step(&mut self, _step: TurnStep, now: Instant) -> bool {
        self.turn(now) > 0
    }

    /// The latest time for the next [`turn`](Self::turn): the earliest timer of a connection, or of
    /// the receive pump, which waits for neighbours and fragments. It leaves out a pump that
    /// another worker holds at this moment: that worker asks after its turn.
    fn next_deadline(&self) -> Instant;

    /// The same without the pump's.
    fn state_deadline(&self) -> Instant;

    /// Whether a turn may find something to do, apart from the receive pump.
    fn has_work(&mut self) -> bool;

    /// Whether it leaves lone requests to another worker, so that its thread may sleep although its
    /// turns report work.
    fn is_aside(&self) -> bool {
        false
    }

    /// Whether the receive pump has to publish a count of sent frames for this worker's state.
    fn needs_pump(&self) -> bool {
        false
    }

    /// Whether the receive pump has something to do without a new frame and before a timer, or
    /// another worker has the pump.
    fn is_pump_busy(&self) -> bool;

    /// Whether it must look again soon, since others may leave work to it.
    fn waits_for_others(&mut self) -> bool {
        false
    }

    /// Counters of its work.
    fn stats(&self) -> WorkerStats;

    /// Takes note of how its thread used cores so far, for autoscaling. By hand nobody calls this.
    fn note_core_time(&mut self, _used: CoreTime) {}

    /// Requests that are published and that it has not applied; 0 without a log.
    fn lag(&mut self) -> u64 {
        0
    }

    /// Whether it works without others, so that any thread may drive it.
    fn is_alone(&self) -> bool {
        false
    }

    /// What the receive pump saw; `None` while another worker has it.
    fn pump_stats(&self) -> Option<PumpStats>;

    /// Shows the state to `look`, if it has one. A state that workers share has the first.
    fn inspect(&self, look: &mut dyn FnMut(&ReplicaState));

    /// Called between two turns: lists connections if another thread asked for that. Returns
    /// whether there will be another turn; not once the stack is down, or the worker has left.
    fn attend(&mut self) -> bool;

    /// Posts its counters where other threads read them.
    fn post(&mut self);

    /// Sleeps for a moment if it is likely that several frames come meanwhile. Called when a turn
    /// found nothing to do. Returns whether it did.
    fn rest(&mut self, _now: Instant) -> bool {
        false
    }

    /// Sleeps until there may be something to do; `now` is the time at the call.
    fn wait(&mut self, now: Instant);

    /// Sleeps in the device until `deadline`, for all workers of a variant that one thread drives,
    /// unless it has work or `others_have`. `now` is the time at the call.
    fn wait_alone(&mut self, when: (Instant, Instant), others_have_work: &mut dyn FnMut() -> bool);

    /// Publishes an entry of a recorded log as if it came from the receive pump. Returns whether it
    /// is a worker that can.
    fn replay(&mut self, entry: &Entry) -> bool;

    /// Ends the recording and returns it; `None` without one, or if another worker has the pump.
    fn take_recorder(&mut self) -> Option<Recorder>;

    /// Whether another worker can take its place if its thread fails at this moment.
    fn is_replaceable(&self) -> bool {
        false
    }
}

/// All steps of a turn. [`Worker::turn`] of a worker may leave out those that find nothing.
#[inline]
pub(crate) fn turn(worker: &mut (impl Worker + ?Sized), now: Instant) -> usize {
    if let Err(done) = worker.begin(Some(now)) {
        return done;
    }
    let done = worker.receive(now) + work(worker);
    worker.end(done);
    done
}

/// The steps of a turn that need neither frames nor time.
#[inline]
pub(crate) fn work(worker: &mut (impl Worker + ?Sized)) -> usize {
    let mut done = worker.process();
    done += worker.transmit(done == 0);
    done + worker.help(done == 0) + worker.serve_units()
}

impl<W: Worker> Sleeper for W {
    fn has_work(&mut self) -> bool {
        Worker::has_work(self)
    }

    fn waits_for_others(&mut self) -> bool {
        Worker::waits_for_others(self)
    }

    fn needs_pump(&self) -> bool {
        Worker::needs_pump(self)
    }

    fn state_deadline(&self) -> Instant {
        Worker::state_deadline(self)
    }
}

/// A worker that waits for a state, and then becomes a [`Worker`].
pub trait Joining: Send {
    /// The replica slot that it will have.
    fn id(&self) -> usize;

    /// The worker, once it has a state; `None` before.
    fn try_join(&mut self) -> Option<Box<dyn Worker>>;

    /// Sleeps until the state may be there.
    fn wait(&mut self);
}

/// Answers questions of other threads about a variant while its workers run. The default answers
/// are for variants without a log.
pub trait Handle: Send + Sync {
    /// The sockets.
    fn sockets(&self) -> Sockets;

    /// Compares what replicas posted of their states at equal positions of the log. Returns how
    /// many could be compared.
    ///
    /// # Errors
    /// The first position at which two replicas differ, and which ones.
    fn compare(&self) -> Result<usize, Mismatch> {
        Ok(0)
    }

    /// The work of each replica slot so far, by all its workers.
    fn shares(&self) -> Vec<EffectStats> {
        Vec::new()
    }

    /// Counters of the replicas: how many joined, left, failed, and so on.
    fn membership_stats(&self) -> MembershipStats {
        MembershipStats::default()
    }

    /// What autoscaling did; `None` in [`AutoscaleStats::reason`] without it.
    fn autoscale_stats(&self) -> AutoscaleStats {
        AutoscaleStats::default()
    }

    /// Whether the group chooses the number of its active workers.
    fn autoscales(&self) -> bool {
        false
    }

    /// Whether at most one worker is active.
    fn has_one_active(&self) -> bool {
        true
    }

    /// The counters of the log, under this name.
    fn log_stats(&self, _name: String) -> Option<ChannelStats> {
        None
    }

    /// A worker that joins, in this replica slot or in any free one, to be given to a thread.
    ///
    /// # Errors
    /// If there is no log, no slot is free, or no worker is left.
    fn join(&self, _replica: Option<usize>) -> Result<Box<dyn Joining>, MembershipError> {
        Err(MembershipError::NoLog)
    }

    /// Asks a worker to leave, or the one in the last slot. Returns its slot.
    ///
    /// # Errors
    /// If there is no log, no such worker, or it is the last.
    fn leave(&self, _replica: Option<usize>) -> Result<usize, MembershipError> {
        Err(MembershipError::NoLog)
    }

    /// Whether a joining worker should replace one whose thread unwound.
    fn replaces_failed(&self) -> bool {
        false
    }

    /// Wakes workers that sleep, except one that sleeps in the device.
    fn wake_all(&self) {}
}

/// Of a variant without a log and with one worker.
impl Handle for Arc<World> {
    fn sockets(&self) -> Sockets {
        Sockets::new(self)
    }
}

/// A stack driven by hand, which [`Builder::by_hand`](crate::Builder::by_hand) makes: all workers
/// of a group. Time is an argument, and no call but the lock of `locked` waits.
///
/// ```
/// use dominoes_drivers::memory::{self, MemoryConfig};
/// use dominoes_netstack::time::{Duration, Instant};
/// use dominoes_netstack::{Stack, VariantKind};
///
/// for kind in VariantKind::ALL {
///     let (left, right) = memory::pair(MemoryConfig::default());
///     let mut server = Stack::builder("10.0.0.1/24").variant(*kind).by_hand(left)?;
///     let mut client = Stack::builder("10.0.0.2/24").by_hand(right)?;
///     let _listener = server.sockets().listen(7, 4)?;
///     let mut connecting = client.sockets().begin_connect("10.0.0.1:7".parse()?)?;
///     let mut now = Instant::ZERO;
///     while connecting.try_finish()?.is_none() {
///         client.turn(now);
///         server.turn(now);
///         now += Duration::from_micros(10);
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ByHand<W: ?Sized = dyn Worker> {
    workers: Vec<Box<W>>,
    handle: Arc<dyn Handle>,
    /// Of all groups of the stack.
    sockets: Sockets,
    /// Those that wait for a state.
    joining: Vec<Box<dyn Joining>>,
}

#[doc(hidden)]
impl<W: Worker + 'static> ByHand<W> {
    pub(crate) fn new_over(workers: impl IntoIterator<Item = W>, handle: Arc<dyn Handle>) -> Self {
        ByHand {
            workers: workers.into_iter().map(Box::new).collect(),
            sockets: handle.sockets(),
            handle,
            joining: Vec::new(),
        }
    }

    /// The workers, to be given to threads.
    pub fn into_workers(self) -> Vec<W> {
        self.workers.into_iter().map(|worker| *worker).collect()
    }

    /// The same stack without the types of its variant.
    pub fn any(self) -> ByHand {
        let worker = |worker: Box<W>| -> Box<dyn Worker> { worker };
        ByHand {
            workers: self.workers.into_iter().map(worker).collect(),
            handle: self.handle,
            sockets: self.sockets,
            joining: self.joining,
        }
    }

    pub(crate) const fn list(&mut self) -> &mut Vec<Box<W>> {
        &mut self.workers
    }
}

impl ByHand {
    /// Adds a replica. It works once another one has given it a copy of the state, and
    /// [`admit`](Self::admit) was called. Returns its replica slot.
    ///
    /// # Errors
    /// If there is no log, no slot is free, or no replica is left.
    pub fn add_replica(&mut self) -> Result<usize, MembershipError> {
        let joining = self.handle.join(None)?;
        let replica = joining.id();
        self.joining.push(joining);
        Ok(replica)
    }

    /// Lets replicas work that were [added](Self::add_replica) and have their copy of the state,
    /// and ends those that have left. Returns how many were let in.
    pub fn admit(&mut self) -> usize {
        self.workers.retain_mut(|worker| worker.attend());
        let before = self.workers.len();
        let workers = &mut self.workers;
        self.joining.retain_mut(|joining| {
            let worker = joining.try_join();
            let waits = worker.is_none();
            workers.extend(worker);
            waits
        });
        self.workers.len() - before
    }

    /// Asks the replica in the last slot to leave: it performs its share first, and
    /// [`admit`](Self::admit) ends it then. Returns its slot.
    ///
    /// # Errors
    /// If there is no log, or no other replica would be left.
    pub fn remove_replica(&mut self) -> Result<usize, MembershipError> {
        self.handle.leave(None)
    }
}

/// Calls a worker. One that unwinds is dropped, as on a thread: a part of its step is done, and no
/// later call may do the rest with other frames.
#[inline]
fn call<W: ?Sized, R>(workers: &mut Vec<Box<W>>, at: usize, call: impl FnOnce(&mut W) -> R) -> R {
    struct Unwinds<'a, W: ?Sized>(&'a mut Vec<Box<W>>, usize);
    impl<W: ?Sized> Drop for Unwinds<'_, W> {
        fn drop(&mut self) {
            self.0.remove(self.1);
        }
    }
    assert!(at < workers.len(), "there is no worker {at}");
    let unwinds = Unwinds(workers, at);
    let done = call(&mut unwinds.0[at]);
    core::mem::forget(unwinds);
    done
}

impl<W: Worker + ?Sized> ByHand<W> {
    /// One turn of each worker, in order. Returns how much was done. If that is 0, and 0 again,
    /// nothing will happen before [`next_deadline`](Self::next_deadline) unless a frame comes or an
    /// application acts. A worker that panics, as the code of a device may, is gone afterwards.
    pub fn turn(&mut self, now: Instant) -> usize {
        hold_wakeups(|| self.each(|worker| worker.turn(now)))
    }

    /// The latest time for the next [`turn`](Self::turn), for timers of connections and for what
    /// the receive pump waits for: neighbours that answer, and fragments.
    pub fn next_deadline(&self) -> Instant {
        let deadlines = self.workers.iter().map(|worker| worker.next_deadline());
        deadlines.min().unwrap_or(Instant::NEVER)
    }

    /// Sleeps until there may be something to do: a frame comes, an application acts, or
    /// [`next_deadline`](Self::next_deadline) or `until` is reached. `now` is the time at the call;
    /// `until` may be [`Instant::NEVER`]. Returns at once if there is work, so a thread that drives
    /// the stack calls [`turn`](Self::turn) until that returns 0, and then this:
    ///
    /// ```no_run
    /// # use dominoes_netstack::{ByHand, time::Instant};
    /// fn drive(stack: &mut ByHand, clock: impl Fn() -> Instant) {
    ///     loop {
    ///         while stack.turn(clock()) > 0 {}
    ///         stack.wait(clock(), Instant::NEVER);
    ///     }
    /// }
    /// ```
    ///
    /// Time passes as the system's clock does, so a device of a simulation is not waited for.
    pub fn wait(&mut self, now: Instant, until: Instant) {
        let mut deadline = until.min(self.next_deadline());
        let mut workers = self.workers.iter_mut();
        if workers.any(|worker| worker.waits_for_others()) {
            deadline = deadline.min(now + RECHECK.into());
        }
        if let [first, others @ ..] = &mut self.workers[..] {
            let mut have_work = || others.iter_mut().any(|worker| worker.has_work());
            first.wait_alone((deadline, now), &mut have_work);
        }
    }

    /// Whether a turn may find something to do without a new frame and before a timer: in any
    /// worker, or in the receive pump.
    pub fn has_work(&mut self) -> bool {
        let mut workers = self.workers.iter_mut();
        workers.any(|worker| worker.has_work() || worker.waits_for_others()) || self.is_pump_busy()
    }

    /// The sockets, of all groups and interfaces.
    pub fn sockets(&self) -> Sockets {
        self.sockets.clone()
    }

    /// The bounds in force, fitted to the device.
    pub fn limits(&self) -> Limits {
        self.handle.sockets().worlds()[0].limits
    }

    /// Counters as of now, of the pump, the state and the replicas.
    pub fn stats(&self) -> StackStats {
        let states = self.inspect(ReplicaState::stats);
        let scaled = self.handle.autoscale_stats();
        StackStats {
            pump: self.pump_stats(),
            state: states.first().copied().unwrap_or_default(),
            membership: self.handle.membership_stats(),
            scale_trials: scaled.trials,
            scale_reason: scaled.reason,
        }
    }

    /// What all workers performed.
    pub fn effect_stats(&self) -> EffectStats {
        let mut shares = self.handle.shares();
        if shares.is_empty() {
            shares.extend(self.workers.iter().map(|worker| worker.stats().effects));
        }
        shares
            .into_iter()
            .fold(EffectStats::default(), EffectStats::and)
    }

    /// The fingerprint of the copy that is farthest. Different states almost surely have different
    /// fingerprints.
    pub fn fingerprint(&self) -> u64 {
        let all = self.inspect(|replica| (replica.applied(), replica.fingerprint()));
        let farthest = all.into_iter().max_by_key(|(applied, _)| *applied);
        farthest.map_or(0, |(_, fingerprint)| fingerprint)
    }

    /// Compares the fingerprints that replicas posted at equal positions of the log. Returns how
    /// many could be compared.
    ///
    /// # Errors
    /// The first position at which two replicas differ, and which ones.
    pub fn compare(&self) -> Result<usize, Mismatch> {
        self.handle.compare()
    }

    /// Applies the next request of a recorded log as if it came from the receive pump, and works
    /// until all its effects are done and its frames are sent. Returns false at the end of the
    /// recording.
    ///
    /// Puts the bytes that the application wrote into the send rings first. A recording counts
    /// the bytes that its application had read, and a replay overwrites these, whatever was read
    /// here. So a stack that replays has no sockets: connections and UDP sockets made later fail.
    ///
    /// # Errors
    /// If the recording cannot be read; [`io::ErrorKind::InvalidInput`] if the stack has had a
    /// connection or a UDP socket.
    #[cfg(feature = "record")]
    pub fn replay(&mut self, recording: &mut Recording<impl Read>) -> io::Result<bool> {
        let sockets = self.handle.sockets();
        if !sockets.worlds().iter().all(|world| world.admits_replay()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a stack that has had sockets replays no log",
            ));
        }
        let entry = recording.next_entry()?;
        if let Some(entry) = &entry {
            self.replay_one(entry);
        }
        Ok(entry.is_some())
    }

    /// The recording so far, which ends with this; `None` without one, or while a worker has the
    /// pump.
    pub fn take_recorder(&mut self) -> Option<Recorder> {
        let mut workers = self.workers.iter_mut();
        workers.find_map(|worker| worker.take_recorder())
    }
}

#[doc(hidden)]
impl ByHand {
    /// With the sockets of all groups of a stack, of which this is one.
    pub(crate) fn with_sockets(self, sockets: Sockets) -> Self {
        ByHand { sockets, ..self }
    }

    /// Its workers, to be given to threads, and what other threads ask of them. Workers of a group
    /// may join and leave later.
    pub fn into_parts(self) -> (Vec<Box<dyn Worker>>, Arc<dyn Handle>) {
        (self.workers, self.handle)
    }
}

#[doc(hidden)]
impl<W: Worker + ?Sized> ByHand<W> {
    /// The workers, in the order in which they came. One that unwinds must not be used again.
    #[cfg(any(test, feature = "testkit"))]
    pub fn workers(&mut self) -> &mut [Box<W>] {
        &mut self.workers
    }

    /// The same, to be looked at.
    pub(crate) fn all_workers(&self) -> &[Box<W>] {
        &self.workers
    }

    /// Whether the receive pump has something to do without a new frame and before a timer, or a
    /// worker has it.
    pub fn is_pump_busy(&self) -> bool {
        self.workers.iter().any(|worker| worker.is_pump_busy())
    }

    /// How many workers there are.
    pub fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// One step of worker `worker`, counted from 0. Returns whether something was done.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn step(&mut self, worker: usize, step: TurnStep, now: Instant) -> bool {
        call(&mut self.workers, worker, |worker| worker.step(step, now))
    }

    /// What the receive pump counted; of several, the first.
    pub fn pump_stats(&self) -> PumpStats {
        let mut workers = self.workers.iter();
        workers
            .find_map(|worker| worker.pump_stats())
            .unwrap_or_default()
    }

    /// What `look` finds in each copy of the state, as far as its worker has come; of a worker that
    /// joins or has left there is none.
    pub fn inspect<R>(&self, mut look: impl FnMut(&ReplicaState) -> R) -> Vec<R> {
        let mut found = Vec::new();
        for worker in &self.workers {
            worker.inspect(&mut |replica| found.push(look(replica)));
        }
        found
    }

    /// Counters of the replicas: how many joined, left, failed, and so on.
    pub fn membership_stats(&self) -> MembershipStats {
        self.handle.membership_stats()
    }

    /// As [`replay`](Self::replay), of this request, also if the stack has sockets. The test reads
    /// as much through these as the recorded application had read, and borrows nothing.
    #[cfg(feature = "testkit")]
    pub fn replay_entry(&mut self, entry: &Entry) {
        self.replay_one(entry);
    }

    fn replay_one(&mut self, entry: &Entry) {
        self.work();
        let mut is_taken = false;
        self.each(|worker| {
            is_taken = is_taken || worker.replay(entry);
            0
        });
        self.work();
    }

    fn work(&mut self) {
        while self.each(|worker| worker.work()) > 0 {}
    }

    /// Calls each worker, and adds up how much each did.
    fn each(&mut self, mut what: impl FnMut(&mut W) -> usize) -> usize {
        let workers = &mut self.workers;
        let each = 0..workers.len();
        each.map(|at| call(workers, at, &mut what)).sum()
    }
}

impl<W: Worker + ?Sized> core::fmt::Debug for ByHand<W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let names = self.workers.iter().map(|worker| worker.name());
        f.debug_list().entries(names).finish()
    }
}
