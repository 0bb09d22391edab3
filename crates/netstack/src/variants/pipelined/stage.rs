//! The three kinds of stages, and how each processes a message.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use dominoes_drivers::split::Target;
use dominoes_drivers::{Frame, RxChecksum};

use super::front::Inbox;
use super::message::{Build, Delivered, Jobs, LastLook, Receiver, RemoteRun, Sender, WakeUp};
use crate::io::claim::Claimer;
use crate::io::direct;
use crate::io::perform::{self, BuiltHeaders};
use crate::io::prepare::{is_verified_by_device, prepare, transport_is_good};
use crate::io::record::Entry;
use crate::io::rx::Log;
use crate::io::tx::TxPump;
use crate::io::world::{Wakes, World};
use crate::io::{ClaimedFrames, FrameRecycler, Run, RunFrames};
use crate::log::effect::Effect;
use crate::log::request::{Request, Verdict};
use crate::state::apply::{ReplicaState, Requests};
use crate::stats::EffectStats;
use crate::time::Instant;
use crate::variants::groups::Classify;

/// Most messages that the interface stage makes in a turn.
const MAX_CLAIMS: usize = 8;
/// Most messages that a protocol stage takes in a turn.
const MAX_MESSAGES: usize = 8;
/// Frames of an effect are dealt to data stages in aligned chunks of this many frame numbers.
const FRAMES_IN_A_ROW: u64 = 16;
/// Most empty vectors that the interface stage keeps for later messages.
const MAX_SPARE: usize = 256;

/// A stage.
pub(super) enum Stage {
    Interface(Box<Interface>),
    Data(Box<Data>),
    Protocol(Box<Protocol>),
}

impl Stage {
    /// Does everything that can be done now, once. Returns how much that was.
    pub(super) fn turn(&mut self, now: Instant) -> usize {
        match self {
            Stage::Interface(stage) => stage.receive(now) + stage.send(),
            Stage::Data(stage) => stage.perform() + stage.prepare(),
            Stage::Protocol(stage) => stage.turn(now),
        }
    }

    /// Does everything that needs no new frames, time or socket calls.
    pub(super) fn work(&mut self) -> usize {
        match self {
            Stage::Interface(stage) => stage.give_back() + stage.send(),
            Stage::Data(stage) => stage.perform(),
            Stage::Protocol(stage) => stage.apply(usize::MAX),
        }
    }

    pub(super) fn has_work(&mut self) -> bool {
        match self {
            Stage::Interface(stage) => stage.has_work(),
            Stage::Data(stage) => stage.has_work(),
            Stage::Protocol(stage) => stage.has_work(),
        }
    }

    pub(super) fn effect_stats(&self) -> EffectStats {
        match self {
            Stage::Interface(_) => EffectStats::default(),
            Stage::Data(stage) => stage.stats,
            Stage::Protocol(stage) => stage.stats,
        }
    }
}

/// Moves whole frames.
pub(super) struct Interface {
    claimer: Claimer,
    /// Frames to return to the device.
    returned: Receiver<Vec<Frame>>,
    to_data: Vec<Sender<Vec<Frame>>>,
    /// Which data stage gets the next message.
    next: usize,
    /// Most frames of a message.
    most: usize,
    spare: Vec<Vec<Frame>>,
    /// How many messages were sent.
    sent: u64,
    last_look: Arc<LastLook>,
    /// The transmit pump of each protocol stage, and the waker of that stage.
    transmit: Vec<(TxPump, Arc<WakeUp>)>,
}

impl Interface {
    pub(super) fn new(
        (claimer, returned): (Claimer, Receiver<Vec<Frame>>),
        (to_data, last_look): (Vec<Sender<Vec<Frame>>>, Arc<LastLook>),
        transmit: Vec<(TxPump, Arc<WakeUp>)>,
        most: usize,
    ) -> Interface {
        Interface {
            claimer,
            returned,
            to_data,
            next: 0,
            most,
            spare: Vec::new(),
            sent: 0,
            last_look,
            transmit,
        }
    }

    /// Returns frames to the device. Returns how many messages of frames there were.
    pub(super) fn give_back(&mut self) -> usize {
        let mut done = 0;
        while let Some(mut frames) = self.returned.receive() {
            self.claimer.put_back(&mut frames);
            if self.spare.len() < MAX_SPARE {
                self.spare.push(frames);
            }
            done += 1;
        }
        done
    }

    /// Deals received frames to the data stages in turn. Returns how much was done.
    pub(super) fn receive(&mut self, now: Instant) -> usize {
        let mut done = self.give_back();
        for _ in 0..MAX_CLAIMS {
            if !self.to_data[self.next].has_room() {
                break;
            }
            let mut frames = self.spare.pop().unwrap_or_default();
            let claimed = self.claimer.claim(self.most, &mut frames);
            if claimed == 0 {
                self.spare.push(frames);
                self.last_look.report(now, self.sent);
                break;
            }
            done += claimed;
            let sent = self.to_data[self.next].send(frames);
            debug_assert!(sent.is_ok(), "no other stage sends here");
            self.sent += 1;
            self.next = (self.next + 1) % self.to_data.len();
        }
        done
    }

    /// Sends built frames. Returns how many.
    pub(super) fn send(&mut self) -> usize {
        let mut done = 0;
        for (pump, protocol) in &mut self.transmit {
            let sent = pump.turn();
            if sent > 0 {
                // The stage has transmit credit again.
                protocol.wake();
            }
            done += sent;
        }
        done
    }

    fn has_work(&mut self) -> bool {
        let mut transmit = self.transmit.iter();
        !self.returned.is_empty() || transmit.any(|(pump, _)| pump.has_work())
    }

    /// Sleeps in the device until a frame arrives, the device's waker is called, or `timeout` has
    /// passed.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) {
        let again = self.transmit.iter().filter_map(|(pump, _)| pump.next_try());
        self.claimer.wait(again.chain(timeout).min());
    }
}

/// Jobs from one protocol stage to one data stage.
pub(super) struct JobInput {
    pub(super) world: Arc<World>,
    /// Kept by each protocol stage: connections of two protocol stages may have the same id,
    /// but not the same headers.
    pub(super) headers: BuiltHeaders,
    pub(super) receiver: Receiver<Jobs>,
    /// How many messages are done.
    pub(super) done: Arc<AtomicU64>,
    /// Wakes the protocol stage.
    pub(super) wake: Arc<WakeUp>,
}

/// Returns frames to the interface stage.
struct Returns {
    sender: Sender<Vec<Frame>>,
    /// Frames that are kept while the channel is full.
    waiting: Vec<Frame>,
}

impl Returns {
    fn put(&mut self, mut frames: Vec<Frame>) {
        if !self.waiting.is_empty() {
            frames.append(&mut self.waiting);
        }
        if !frames.is_empty()
            && let Err(refused) = self.sender.send(frames)
        {
            self.waiting = refused;
        }
    }

    /// Tries again to send the frames that were kept. Returns whether there were some and all are
    /// sent.
    fn retry(&mut self) -> bool {
        let had_some = !self.waiting.is_empty();
        if had_some {
            self.put(Vec::new());
        }
        had_some && self.waiting.is_empty()
    }
}

/// The channel to a protocol stage, and the message that is kept while it is full.
type Output = (Sender<Vec<Frame>>, Option<Vec<Frame>>);

/// Verifies frames, and owns and copies payload.
pub(super) struct Data {
    frames: Receiver<Vec<Frame>>,
    /// One for each protocol stage.
    outputs: Vec<Output>,
    jobs: Vec<JobInput>,
    returns: Returns,
    recycler: FrameRecycler,
    interface: Arc<WakeUp>,
    /// Finds the protocol stage of a frame, if there are several.
    classify: Option<Arc<Classify>>,
    stats: EffectStats,
}

impl Data {
    pub(super) fn new(
        frames: Receiver<Vec<Frame>>,
        outputs: Vec<Sender<Vec<Frame>>>,
        jobs: Vec<JobInput>,
        (returns, interface): (Sender<Vec<Frame>>, Arc<WakeUp>),
        classify: Option<Arc<Classify>>,
    ) -> Data {
        Data {
            frames,
            outputs: outputs.into_iter().map(|output| (output, None)).collect(),
            jobs,
            returns: Returns {
                sender: returns,
                waiting: Vec::new(),
            },
            recycler: FrameRecycler::default(),
            interface,
            classify,
            stats: EffectStats::default(),
        }
    }

    /// Verifies the checksums of a message of frames, and passes it on. Returns how much was done.
    pub(super) fn prepare(&mut self) -> usize {
        let mut done = usize::from(self.returns.retry());
        for (output, waiting) in &mut self.outputs {
            if let Some(frames) = waiting.take() {
                match output.send(frames) {
                    Ok(()) => done += 1,
                    Err(refused) => *waiting = Some(refused),
                }
            }
        }
        if self.outputs.iter().any(|(_, waiting)| waiting.is_some()) {
            return done;
        }
        let Some(mut frames) = self.frames.receive() else {
            return done;
        };
        done += frames.len();
        let mut verified = 0;
        for frame in &mut frames {
            if !is_verified_by_device(frame) && transport_is_good(frame.bytes()) {
                frame.meta.checksum = RxChecksum::Valid;
                verified = 1;
            }
        }
        self.stats.prepared += verified;
        match &self.classify {
            None => pass(&mut self.outputs[0], frames),
            Some(classify) => {
                let mut sorted: Vec<_> = self.outputs.iter().map(|_| Vec::new()).collect();
                for frame in frames {
                    match classify(frame.bytes()) {
                        Target::One(stage) => {
                            if let Some(frames) = sorted.get_mut(stage) {
                                frames.push(frame);
                            }
                        }
                        Target::All => {
                            let (first, others) = sorted.split_first_mut().expect("one at least");
                            others.iter_mut().for_each(|all| all.push(frame.clone()));
                            first.push(frame);
                        }
                    }
                }
                // Each stage gets a message, even an empty one: protocol stages read data stages in
                // turn.
                for (output, frames) in self.outputs.iter_mut().zip(sorted) {
                    pass(output, frames);
                }
            }
        }
        done
    }

    /// Performs one message of jobs from each protocol stage. Returns how much was done.
    pub(super) fn perform(&mut self) -> usize {
        let mut done = 0;
        for input in &mut self.jobs {
            let Some(jobs) = input.receiver.receive() else {
                continue;
            };
            done += jobs.runs.len() + jobs.frames.len();
            let world = &input.world;
            let recycler = &mut self.recycler;
            let mut wakes = Wakes::new(world);
            let mut effects = &jobs.effects[..];
            for Delivered {
                run,
                effects: count,
            } in jobs.runs
            {
                let (own, rest) = effects.split_at(count);
                effects = rest;
                deliver(world, own, &run, &mut self.stats, &mut wakes);
                recycler.put(run);
            }
            drop(wakes);
            let builds = !jobs.frames.is_empty();
            for Build { effect, first, end } in jobs.frames {
                match &effect {
                    Effect::Transmit(transmit) => {
                        let (headers, range) = (&mut input.headers, (first, end - first));
                        perform::build(world, transmit, range, headers, &mut self.stats);
                    }
                    Effect::Send(send) => {
                        for i in first..end {
                            perform::build_datagram(world, send, i, &mut self.stats);
                        }
                    }
                    _ => {}
                }
            }
            // ORDERING: Release, pairs with the Acquire in `Outbox::performed`: all of the message
            // is done. Only this stage stores here.
            let count = input.done.load(Ordering::Relaxed) + 1;
            input.done.store(count, Ordering::Release);
            input.wake.wake();
            if builds {
                self.interface.wake();
            }
            self.returns.put(core::mem::take(&mut self.recycler.frames));
        }
        done
    }

    fn has_work(&mut self) -> bool {
        !self.frames.is_empty()
            || self.jobs.iter_mut().any(|input| !input.receiver.is_empty())
            || self.outputs.iter().any(|(_, waiting)| waiting.is_some())
            || !self.returns.waiting.is_empty()
    }
}

/// Sends a message, or keeps it if the channel is full.
fn pass((output, waiting): &mut Output, frames: Vec<Frame>) {
    if let Err(refused) = output.send(frames) {
        *waiting = Some(refused);
    }
}

/// Copies the pieces of a run that `effects` name.
fn deliver(
    world: &World,
    effects: &[Effect],
    run: &RunFrames,
    stats: &mut EffectStats,
    wakes: &mut Wakes<'_>,
) {
    for effect in effects {
        if matches!(effect, Effect::Deliver(_) | Effect::Queue(_)) {
            perform::one(world, effect, Some(run), stats, wakes);
        }
    }
}

/// Jobs from one protocol stage to one data stage, as the protocol stage sees them.
pub(super) struct Outbox {
    sender: Sender<Jobs>,
    jobs: Jobs,
    /// Position of the first request with an effect in `jobs`.
    first: u64,
    /// The same position for each sent message that is not known to be done.
    sent: VecDeque<u64>,
    /// How many messages are known to be done, and how many are.
    known: u64,
    done: Arc<AtomicU64>,
}

impl Outbox {
    pub(super) fn new(sender: Sender<Jobs>, done: Arc<AtomicU64>) -> Outbox {
        Outbox {
            sender,
            jobs: Jobs::default(),
            first: 0,
            sent: VecDeque::new(),
            known: 0,
            done,
        }
    }

    /// The jobs of the next message, to which the caller adds some of the request at `position`.
    fn jobs(&mut self, position: u64) -> &mut Jobs {
        if self.jobs.is_empty() {
            self.first = position;
        }
        &mut self.jobs
    }

    fn flush(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        match self.sender.send(core::mem::take(&mut self.jobs)) {
            Ok(()) => self.sent.push_back(self.first),
            Err(refused) => self.jobs = refused,
        }
    }

    /// The position below which all jobs here are done; `None` if all jobs are done.
    fn performed(&mut self) -> Option<u64> {
        // ORDERING: Acquire, pairs with the Release in `Data::perform`.
        let done = self.done.load(Ordering::Acquire);
        while self.known < done {
            self.known += 1;
            self.sent.pop_front();
        }
        let waiting = (!self.jobs.is_empty()).then_some(self.first);
        self.sent.front().copied().or(waiting)
    }
}

/// A request that was published and is not yet applied.
struct Pending {
    position: u64,
    request: Request,
    verdict: Verdict,
    remote: RemoteRun,
}

/// Handles headers.
pub(super) struct Protocol {
    pub(super) world: Arc<World>,
    pub(super) rx: direct::Receiver,
    pub(super) replica: ReplicaState,
    inbox: Arc<Inbox>,
    last_look: Arc<LastLook>,
    /// A deadline that is due, and the number of messages that must arrive before its timer fires.
    barrier: Option<(Instant, u64)>,
    /// The next deadline, for other workers to read.
    deadline: Arc<AtomicU64>,
    /// Requests that were published and are not yet applied.
    pending: VecDeque<Pending>,
    /// How many requests were published.
    published: u64,
    window: usize,
    outboxes: Vec<Outbox>,
    /// Frames that no data stage needs any longer.
    recycler: FrameRecycler,
    returns: Returns,
    interface: Arc<WakeUp>,
    headers: BuiltHeaders,
    effects: Vec<Effect>,
    stats: EffectStats,
}

/// Fails a test in which the state caught an unexpected panic, however the test drove the pipeline.
#[cfg(feature = "testkit")]
impl Drop for Protocol {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.world
                .assert_no_panics(self.replica.unexpected_panics());
        }
    }
}

impl Protocol {
    pub(super) fn new(
        (world, rx): (Arc<World>, direct::Receiver),
        (inbox, last_look): (Arc<Inbox>, Arc<LastLook>),
        deadline: Arc<AtomicU64>,
        outboxes: Vec<Outbox>,
        (returns, interface): (Sender<Vec<Frame>>, Arc<WakeUp>),
        window: usize,
    ) -> Protocol {
        Protocol {
            replica: ReplicaState::new(world.limits),
            world,
            rx,
            inbox,
            last_look,
            barrier: None,
            deadline,
            pending: VecDeque::new(),
            published: 0,
            window,
            outboxes,
            recycler: FrameRecycler::default(),
            returns: Returns {
                sender: returns,
                waiting: Vec::new(),
            },
            interface,
            headers: BuiltHeaders::default(),
            effects: Vec::new(),
            stats: EffectStats::default(),
        }
    }

    fn turn(&mut self, now: Instant) -> usize {
        let mut done = 0;
        for _ in 0..MAX_MESSAGES {
            let now_done = self.receive(now);
            done += now_done + self.apply(usize::MAX);
            if now_done == 0 || self.inbox.is_empty() {
                break;
            }
        }
        done
    }

    /// Runs one turn of the receive pump. Returns how much was done.
    pub(super) fn receive(&mut self, now: Instant) -> usize {
        let awaited = self.replica.awaited();
        if self.waits_for_frames(now) {
            return 0;
        }
        let mut intake = Intake {
            performed: performed(&mut self.outboxes, &self.pending, self.published),
            pending: &mut self.pending,
            published: &mut self.published,
            window: self.window,
            inbox: &self.inbox,
            stats: &mut self.stats,
        };
        let control = self.world.control.len();
        let mut done = self.rx.turn(now, awaited, &mut intake);
        if self.world.control.len() > control {
            self.interface.wake();
            done += 1;
        }
        self.post_deadline();
        done
    }

    /// Whether a deadline is due and frames that had arrived by then, such as an acknowledgment,
    /// may still be in the device or with a data stage. They are applied before the timer fires.
    fn waits_for_frames(&mut self, now: Instant) -> bool {
        let deadline = self.replica.next_deadline();
        if deadline > now || !self.inbox.is_empty() {
            return false;
        }
        if self.barrier.is_none_or(|(of, _)| of != deadline) {
            let messages = self.last_look.messages_by(deadline);
            self.barrier = messages.map(|messages| (deadline, messages));
        }
        let Some((_, messages)) = self.barrier else {
            self.interface.wake();
            return true;
        };
        !self.inbox.has_received(messages)
    }

    fn post_deadline(&self) {
        // ORDERING: Relaxed: a hint for threads that may sleep; this stage's own thread reads its
        // state.
        let deadline = self.next_deadline().as_nanos();
        self.deadline.store(deadline, Ordering::Relaxed);
    }

    /// Applies at most `most` requests, and passes their effects on. Returns how many it applied.
    pub(super) fn apply(&mut self, most: usize) -> usize {
        let frames_before = self.stats.frames;
        let mut applying = Applying {
            world: &self.world,
            wakes: Wakes::new(&self.world),
            pending: &mut self.pending,
            left: most,
            current: None,
            applied: 0,
            outboxes: &mut self.outboxes,
            recycler: &mut self.recycler,
            headers: &mut self.headers,
            stats: &mut self.stats,
        };
        self.replica.apply_each(&mut applying, &mut self.effects);
        let applied = applying.applied;
        drop(applying);
        self.outboxes.iter_mut().for_each(Outbox::flush);
        self.returns.retry();
        if !self.recycler.frames.is_empty() {
            self.returns.put(core::mem::take(&mut self.recycler.frames));
        }
        if self.stats.frames > frames_before {
            self.interface.wake();
        }
        if applied > 0 {
            self.post_deadline();
        }
        applied
    }

    pub(super) fn has_work(&mut self) -> bool {
        !self.pending.is_empty()
            || !self.inbox.is_empty()
            || self.is_pump_busy()
            || self.outboxes.iter().any(|outbox| !outbox.jobs.is_empty())
            || !self.returns.waiting.is_empty()
    }

    pub(super) fn is_pump_busy(&self) -> bool {
        self.rx.has_work() || self.world.is_awaited(self.replica.awaited())
    }

    pub(super) fn next_deadline(&self) -> Instant {
        self.replica
            .next_deadline()
            .min(self.rx.pump.next_deadline())
    }

    /// Publishes an entry of a recorded log, as the pump would.
    pub(super) fn replay(&mut self, entry: &Entry) {
        let mut run = entry.prepare_world(&self.world);
        let mut intake = Intake {
            performed: 0,
            pending: &mut self.pending,
            published: &mut self.published,
            window: self.window,
            inbox: &self.inbox,
            stats: &mut self.stats,
        };
        intake.publish(&mut run);
    }
}

/// The position below which every request is performed.
fn performed(outboxes: &mut [Outbox], pending: &VecDeque<Pending>, published: u64) -> u64 {
    let pending = pending.front().map(|pending| pending.position);
    let waiting = outboxes.iter_mut().filter_map(Outbox::performed);
    waiting.chain(pending).min().unwrap_or(published)
}

/// The log as the pump sees it: a queue of requests to be applied.
struct Intake<'a> {
    performed: u64,
    pending: &'a mut VecDeque<Pending>,
    published: &'a mut u64,
    window: usize,
    inbox: &'a Inbox,
    stats: &'a mut EffectStats,
}

impl Log for Intake<'_> {
    fn room(&mut self) -> usize {
        let carried = (*self.published - self.performed) as usize;
        self.window.saturating_sub(carried)
    }

    fn publish(&mut self, run: &mut Run) {
        let (request, frames) = (run.request, core::mem::take(&mut run.frames));
        let verdict = run.verdict.unwrap_or_else(|| {
            // The checksum was wrong, or the datagram was reassembled from fragments.
            self.stats.prepared += u64::from(request.digest.kind.has_frames());
            prepare(&request, &frames)
        });
        let stage = self.inbox.stage();
        self.pending.push_back(Pending {
            position: *self.published,
            request,
            verdict,
            remote: RemoteRun { stage, run: frames },
        });
        *self.published += 1;
    }

    /// Frames return through `Protocol::returns` instead.
    fn reclaim(&mut self, _each: &mut dyn FnMut(ClaimedFrames)) {}

    fn end(&self) -> u64 {
        *self.published
    }

    fn performed(&mut self) -> u64 {
        self.performed
    }
}

/// Requests that are being applied.
struct Applying<'a> {
    world: &'a World,
    wakes: Wakes<'a>,
    pending: &'a mut VecDeque<Pending>,
    /// How many more may be applied.
    left: usize,
    current: Option<Pending>,
    applied: usize,
    outboxes: &'a mut [Outbox],
    recycler: &'a mut FrameRecycler,
    headers: &'a mut BuiltHeaders,
    stats: &'a mut EffectStats,
}

impl Requests<Vec<Effect>> for Applying<'_> {
    fn advance(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.current = self.pending.pop_front();
        let more = self.current.is_some();
        self.left -= usize::from(more);
        more
    }

    fn current(&self) -> (&Request, Verdict) {
        let current = self.current.as_ref();
        let current = current.expect("asked for while a request is applied");
        (&current.request, current.verdict)
    }

    fn take_effects(&mut self, asked: &mut Vec<Effect>) {
        let Some(current) = self.current.take() else {
            return;
        };
        self.applied += 1;
        self.stats.requests += 1;
        let run = current.remote.run;
        let stage = current.remote.stage;
        let mut delivered = 0;
        for effect in asked.drain(..) {
            match effect {
                Effect::Deliver(_) | Effect::Queue(_) => {
                    let outbox = &mut self.outboxes[stage];
                    outbox.jobs(current.position).effects.push(effect);
                    delivered += 1;
                }
                Effect::Transmit(transmit) if transmit.payload_len == 0 => {
                    for i in 0..transmit.count {
                        perform::build(self.world, &transmit, (i, 1), self.headers, self.stats);
                    }
                }
                Effect::Transmit(transmit) => {
                    let frames = (transmit.first_frame, transmit.count);
                    build(self.outboxes, current.position, effect, frames);
                }
                Effect::Send(send) => {
                    let frames = (send.first_frame, send.count);
                    build(self.outboxes, current.position, effect, frames);
                }
                other => {
                    perform::notify(self.world, &other, self.stats);
                    self.wakes.after(&other);
                }
            }
        }
        if delivered > 0 {
            let jobs = self.outboxes[stage].jobs(current.position);
            jobs.runs.push(Delivered {
                run,
                effects: delivered,
            });
        } else {
            self.recycler.put(run);
        }
    }
}

/// Deals `count` frames, numbered from `first` on, to data stages in chunks of [`FRAMES_IN_A_ROW`].
fn build(outboxes: &mut [Outbox], position: u64, effect: Effect, (first, count): (u64, u32)) {
    let mut i = 0;
    while i < count {
        let number = first + u64::from(i);
        let chunk = number / FRAMES_IN_A_ROW;
        let end = (chunk + 1) * FRAMES_IN_A_ROW - first;
        let end = end.min(u64::from(count)) as u32;
        let stage = (chunk % outboxes.len() as u64) as usize;
        outboxes[stage].jobs(position).frames.push(Build {
            effect,
            first: i,
            end,
        });
        i = end;
    }
}
