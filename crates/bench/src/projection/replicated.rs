//! What the workers of `replicated` do: a batch is claimed, parsed and published, prepared by its
//! claimer, and applied by every worker. The claimer performs a received batch. In sending the
//! workers build frames by chunks, each the next one that no worker has begun, and send in order. The
//! first worker has the application.
//!
//! In sending a batch is the acknowledgments of some segments, and the segments that may leave
//! for that.

use std::collections::VecDeque;

use super::costs::Replicated;
use super::engine::{Handover, Machine, Program, Ps, Step, ps};
use super::programs::{DEVICE, LOOK, SECOND, Setting, TRANSMIT};

/// Batches that may be claimed and not published.
const WAITING: u64 = 16;
/// Payload bytes that a worker prepares before it performs them.
const AHEAD: usize = 256 << 10;
/// Frames in a row that one worker builds.
const FRAME_CHUNK: usize = 32;
/// Lines of a parsed batch that its publisher reads, in addition to the lines of its requests:
/// its place, its box, its list of runs.
const PARSED_LINES: u64 = 3;
/// Lines of a request that a worker reads which did not make it: digest and verdict.
const REQUEST_LINES: u64 = 2;
/// Lines of a chunk of frames that its sender reads: which are built, and which were prepared
/// of them for the device.
const CHUNK_LINES: u64 = 2;
/// Lines of a batch that the application reads: its delivery.
const DELIVERY_LINES: u64 = 1;

/// A batch on its way.
#[derive(Clone, Copy, Debug)]
struct Batch {
    segments: usize,
    claimer: usize,
    is_parsed: bool,
    is_prepared: bool,
    /// Chunks that are not performed, and in sending not sent.
    left: usize,
}

/// What one worker performs of a batch.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    batch: u64,
    /// In sending, no worker at first.
    owner: Option<usize>,
    segments: usize,
    is_built: bool,
}

/// The step that a worker ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Begin,
    Claim(u64),
    Parse(u64),
    /// As far as the batch before this one.
    Publish(u64),
    Prepare(u64),
    Apply(u64),
    /// A chunk.
    Perform(u64),
    /// This number of chunks, from the oldest on.
    Send(usize),
    App(u64),
}

#[derive(Clone, Debug)]
struct Replica {
    doing: Doing,
    /// Batches that it applied.
    applied: u64,
    /// Its own batches that are not prepared; the oldest first.
    own: VecDeque<u64>,
    /// Its own chunks that are not performed; the oldest first. In sending, the one that it builds.
    chunks: VecDeque<u64>,
    /// Payload bytes of batches that it claimed and has not performed.
    ahead: usize,
    did_something: bool,
}

/// One log, a copy of the state for each worker.
#[derive(Debug)]
pub(super) struct ReplicatedProgram {
    costs: Replicated,
    setting: Setting,
    workers: Vec<Replica>,
    /// Batches that are claimed, and not read or not applied by all.
    batches: VecDeque<Batch>,
    /// How many were before these.
    first: u64,
    /// How many the application has read.
    read: u64,
    claimed: u64,
    published: u64,
    /// Chunks that are not performed, or not sent; the oldest first.
    chunks: VecDeque<Chunk>,
    /// How many were before these.
    first_chunk: u64,
    in_flight: usize,
    done: u64,
    claims: u64,
    /// How long workers applied, all together, and how many segments that were.
    applying: (Ps, u64),
}

impl ReplicatedProgram {
    pub(super) const EXCLUSIVES: [Handover; 3] = [Handover::Queue; 3];

    pub(super) fn new(costs: Replicated, setting: Setting, workers: usize) -> Self {
        let worker = Replica {
            doing: Doing::Begin,
            applied: 0,
            own: VecDeque::new(),
            chunks: VecDeque::new(),
            ahead: 0,
            did_something: false,
        };
        ReplicatedProgram {
            costs,
            setting,
            workers: vec![worker; workers],
            batches: VecDeque::new(),
            first: 0,
            read: 0,
            claimed: 0,
            published: 0,
            chunks: VecDeque::new(),
            first_chunk: 0,
            in_flight: 0,
            done: 0,
            claims: 0,
            applying: (0, 0),
        }
    }

    /// Segments of a claim, on average.
    pub(super) fn segments_of_claim(&self) -> f64 {
        let all = self.done as f64 + self.in_flight as f64;
        all / self.claims.max(1) as f64
    }

    /// Nanoseconds that a worker takes to apply a segment, on average.
    pub(super) fn applied_ns(&self) -> f64 {
        let (time, segments) = self.applying;
        time as f64 / 1e3 / segments.max(1) as f64
    }

    /// How many batches every worker has applied.
    fn slowest(&self) -> u64 {
        let applied = self.workers.iter().map(|worker| worker.applied);
        applied.min().unwrap_or(0)
    }

    fn batch(&mut self, number: u64) -> &mut Batch {
        &mut self.batches[(number - self.first) as usize]
    }

    fn chunk(&mut self, number: u64) -> &mut Chunk {
        &mut self.chunks[(number - self.first_chunk) as usize]
    }

    /// The oldest chunk is done.
    fn finish_chunk(&mut self) {
        if let Some(chunk) = self.chunks.pop_front() {
            self.first_chunk += 1;
            self.batch(chunk.batch).left -= 1;
        }
    }

    /// Ends the step of a worker.
    fn end(&mut self, id: usize) {
        match self.workers[id].doing {
            Doing::Begin | Doing::Claim(_) => return,
            Doing::Parse(number) => self.batch(number).is_parsed = true,
            Doing::Publish(end) => self.published = end,
            Doing::Prepare(number) => {
                self.batch(number).is_prepared = true;
                self.workers[id].own.pop_front();
            }
            Doing::Apply(number) => self.workers[id].applied = number + 1,
            Doing::Perform(number) => {
                self.workers[id].chunks.pop_front();
                let chunk = self.chunk(number);
                chunk.is_built = true;
                let segments = chunk.segments;
                if !self.setting.sends {
                    let bytes = segments * self.setting.segment_bytes;
                    self.workers[id].ahead -= bytes;
                    while self.chunks.front().is_some_and(|chunk| chunk.is_built) {
                        self.finish_chunk();
                    }
                }
            }
            Doing::Send(count) => (0..count).for_each(|_| self.finish_chunk()),
            Doing::App(end) => {
                while self.read < end {
                    let segments = self.batch(self.read).segments;
                    self.read += 1;
                    self.in_flight -= segments;
                    self.done += segments as u64;
                }
                let end = self.slowest().min(self.read);
                self.batches.drain(..(end - self.first) as usize);
                self.first = end;
            }
        }
        self.workers[id].did_something = true;
    }

    fn begin(&mut self, id: usize, doing: Doing, step: Step) -> Step {
        self.workers[id].doing = doing;
        step
    }

    fn claim(&mut self, id: usize, machine: &Machine) -> Option<Step> {
        let has_enough = self.workers[id].ahead >= AHEAD;
        let room = self.setting.window - self.in_flight;
        let places = self.claimed - self.published < WAITING;
        if has_enough || room == 0 || !places || !machine.is_free(DEVICE) {
            return None;
        }
        let segments = room.min(self.setting.most());
        let number = self.claimed;
        let left = self.divide(id, number, segments);
        self.batches.push_back(Batch {
            segments,
            claimer: id,
            is_parsed: false,
            is_prepared: false,
            left,
        });
        self.workers[id].own.push_back(number);
        self.claimed += 1;
        self.claims += 1;
        self.in_flight += segments;
        let hold = Step::Hold {
            what: DEVICE,
            time: ps(self.costs.claim.of(segments as f64)),
            lines: 2,
        };
        Some(self.begin(id, Doing::Claim(number), hold))
    }

    /// The chunks of a batch; returns how many.
    fn divide(&mut self, claimer: usize, batch: u64, segments: usize) -> usize {
        let whole = match self.setting.sends {
            true => FRAME_CHUNK,
            false => {
                self.workers[claimer].ahead += segments * self.setting.segment_bytes;
                segments
            }
        };
        let (mut left, mut count) = (segments, 0);
        while left > 0 {
            let number = self.first_chunk + self.chunks.len() as u64;
            let owner = (!self.setting.sends).then_some(claimer);
            self.chunks.push_back(Chunk {
                batch,
                owner,
                segments: left.min(whole),
                is_built: false,
            });
            if owner.is_some() {
                self.workers[claimer].chunks.push_back(number);
            }
            left -= left.min(whole);
            count += 1;
        }
        count
    }

    /// All batches that are parsed, in the order of their claims, as far as the log has room.
    fn publish(&mut self, id: usize, machine: &Machine) -> Option<Step> {
        if !machine.is_free(SECOND) {
            return None;
        }
        let waiting = self.slowest()..self.published;
        let used: u64 = waiting.map(|number| self.requests_of(number)).sum();
        let mut room = (self.setting.log as u64).saturating_sub(used);
        let (mut end, mut time) = (self.published, 0);
        while end < self.claimed {
            let batch = *self.batch(end);
            let requests = self.setting.requests_of(batch.segments);
            if !batch.is_parsed || room < requests {
                break;
            }
            room -= requests;
            let line = machine.shape().line_between(batch.claimer, id);
            time += ps(self.costs.publish.of(batch.segments as f64));
            time += (PARSED_LINES + requests) * line;
            end += 1;
        }
        if end == self.published {
            return None;
        }
        let hold = Step::Hold {
            what: SECOND,
            time,
            lines: 1,
        };
        Some(self.begin(id, Doing::Publish(end), hold))
    }

    fn requests_of(&self, number: u64) -> u64 {
        let batch = &self.batches[(number - self.first) as usize];
        self.setting.requests_of(batch.segments)
    }

    fn prepare(&mut self, id: usize) -> Option<Step> {
        let number = *self.workers[id].own.front()?;
        if number >= self.published {
            return None;
        }
        let segments = self.batch(number).segments;
        let is_payload = !self.setting.sends;
        let step = self
            .setting
            .payload(self.costs.prepare, segments, is_payload);
        Some(self.begin(id, Doing::Prepare(number), step))
    }

    fn apply(&mut self, id: usize, machine: &Machine) -> Option<Step> {
        let number = self.workers[id].applied;
        if number >= self.published || !self.batch(number).is_prepared {
            return None;
        }
        let batch = *self.batch(number);
        let lines = REQUEST_LINES * self.setting.requests_of(batch.segments);
        let line = machine.shape().line_between(batch.claimer, id);
        let time = ps(self.costs.apply.of(batch.segments as f64)) + lines * line;
        self.applying.0 += time;
        self.applying.1 += batch.segments as u64;
        Some(self.begin(id, Doing::Apply(number), Step::Work(time)))
    }

    /// Claims the oldest chunk of frames that no worker has, if this worker has applied what
    /// numbers them.
    fn claim_frames(&mut self, id: usize) {
        let applied = self.workers[id].applied;
        let free = self.chunks.iter().position(|chunk| chunk.owner.is_none());
        if let Some(at) = free.filter(|&at| self.chunks[at].batch < applied) {
            self.chunks[at].owner = Some(id);
            let number = self.first_chunk + at as u64;
            self.workers[id].chunks.push_back(number);
        }
    }

    fn perform(&mut self, id: usize) -> Option<Step> {
        if self.setting.sends && self.workers[id].chunks.is_empty() {
            self.claim_frames(id);
        }
        let number = *self.workers[id].chunks.front()?;
        let chunk = *self.chunk(number);
        if chunk.batch >= self.workers[id].applied {
            return None;
        }
        let is_payload = self.setting.sends;
        let cost = self.costs.perform;
        let step = self.setting.payload(cost, chunk.segments, is_payload);
        Some(self.begin(id, Doing::Perform(number), step))
    }

    /// Sends the oldest chunks that are built, up to one of another worker; chunks of others only
    /// if there is nothing else to do.
    fn send(&mut self, id: usize, machine: &Machine, is_idle: bool) -> Option<Step> {
        if !self.setting.sends || !machine.is_free(TRANSMIT) {
            return None;
        }
        let is_ready = |chunk: &&Chunk| chunk.is_built && (chunk.owner == Some(id) || is_idle);
        let ready = self.chunks.iter().take_while(is_ready);
        let (mut count, mut segments, mut far) = (0, 0, 0);
        for chunk in ready {
            let owner = chunk.owner.unwrap_or(id);
            let line = machine.shape().line_between(owner, id);
            far += CHUNK_LINES * line;
            (count, segments) = (count + 1, segments + chunk.segments);
        }
        let hold = Step::Hold {
            what: TRANSMIT,
            time: ps(self.costs.transmit.of(segments as f64)) + far,
            lines: 2,
        };
        (count > 0).then(|| self.begin(id, Doing::Send(count), hold))
    }

    /// The application takes complete batches, in order.
    fn app(&mut self, id: usize, machine: &Machine) -> Option<Step> {
        let (mut end, mut time) = (self.read, 0);
        while end < self.published && self.batch(end).left == 0 {
            let batch = *self.batch(end);
            let line = machine.shape().line_between(batch.claimer, id);
            time += ps(self.costs.app.of(batch.segments as f64)) + DELIVERY_LINES * line;
            end += 1;
        }
        (end > self.read).then(|| self.begin(id, Doing::App(end), Step::Work(time)))
    }

    /// The step after the one that ends: as in a turn, each kind as often as it has work.
    fn next(&mut self, id: usize, machine: &Machine) -> Option<Step> {
        let order = match self.workers[id].doing {
            Doing::Begin | Doing::App(_) => 0,
            Doing::Claim(number) => {
                let segments = self.batch(number).segments;
                let time = ps(self.costs.parse.of(segments as f64));
                return Some(self.begin(id, Doing::Parse(number), Step::Work(time)));
            }
            Doing::Parse(_) => 1,
            Doing::Publish(_) | Doing::Prepare(_) => 2,
            Doing::Apply(_) => 3,
            Doing::Perform(_) | Doing::Send(_) => 4,
        };
        let mut found = None;
        if order == 0 {
            found = self.claim(id, machine);
        }
        if order <= 1 {
            found = found.or_else(|| self.publish(id, machine));
        }
        if order <= 2 {
            found = found.or_else(|| self.prepare(id));
        }
        if order <= 3 {
            found = found.or_else(|| self.apply(id, machine));
        }
        // As soon as a chunk is built it is sent, if that is this worker's to do.
        if order == 4 {
            found = found.or_else(|| self.send(id, machine, false));
        }
        found = found.or_else(|| self.perform(id));
        found = found.or_else(|| self.send(id, machine, false));
        if id == 0 {
            found = found.or_else(|| self.app(id, machine));
        }
        found
    }
}

impl Program for ReplicatedProgram {
    fn step(&mut self, id: usize, machine: &Machine) -> Step {
        self.end(id);
        if let Some(step) = self.next(id, machine) {
            return step;
        }
        // A turn is over.
        self.workers[id].doing = Doing::Begin;
        if core::mem::take(&mut self.workers[id].did_something)
            && let Some(step) = self.next(id, machine)
        {
            return step;
        }
        if let Some(step) = self.send(id, machine, true) {
            return step;
        }
        Step::Idle(LOOK)
    }

    fn segments(&self) -> u64 {
        self.done
    }
}
