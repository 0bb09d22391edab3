//! What the workers of each row do, step by step, as programs of the [engine](super::engine).
//!
//! A program knows batches, not bytes: the claimer of each, how many segments it has, and how far
//! it is. The times of steps come from [`Costs`](super::costs::Costs).

use std::collections::VecDeque;

use dominoes_proto::log::request::MAX_RUN;

use super::Bound;
use super::costs::Locked;
use super::engine::{Handover, Machine, Program, Ps, Shape, Step, TryLock, ps};
use super::linear::Linear;

/// Frames that a worker claims at a time, at most: two runs.
pub(super) const MOST: usize = 2 * MAX_RUN;
/// How long it takes to find nothing to do.
pub(super) const LOOK: Ps = 100_000;
/// Lines of the state of a connection that move with the lock.
const STATE_LINES: u32 = 8;
/// The device.
pub(super) const DEVICE: TryLock = TryLock(0);
/// The receive pump, or the lock.
pub(super) const SECOND: TryLock = TryLock(1);
/// The transmit pump.
pub(super) const TRANSMIT: TryLock = TryLock(2);

/// What bounds the work in progress, and how payload moves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    /// Whether payload is sent; else it is received.
    pub(super) sends: bool,
    /// Segments that the window or the send ring allows.
    pub(super) window: usize,
    /// Bytes from memory, of a segment.
    pub(super) memory_bytes: u64,
    /// Payload of a segment.
    pub(super) segment_bytes: usize,
    /// Requests of a segment.
    pub(super) requests: f64,
    /// Requests that the log holds.
    pub(super) log: usize,
    /// By how much payload takes longer here than where it was measured.
    pub(super) payload: f64,
}

impl Setting {
    pub(super) fn requests_of(&self, segments: usize) -> u64 {
        (self.requests * segments as f64).ceil().max(1.0) as u64
    }

    /// Segments of a claim, at most: in sending, an acknowledgment is for two.
    pub(super) fn most(&self) -> usize {
        if self.sends { 2 * MOST } else { MOST }
    }

    /// A step of the payload, with its bytes if it is the one that moves them.
    pub(super) fn payload(&self, cost: Linear, segments: usize, moves: bool) -> Step {
        let bytes = if moves { self.memory_bytes } else { 0 };
        Step::Move {
            time: ps(cost.of(segments as f64) * self.payload),
            bytes: bytes * segments as u64,
        }
    }
}

/// One worker that does everything for itself: `single`, one replica, and each worker of
/// `partitioned`.
#[derive(Debug)]
pub(super) struct Alone {
    pub(super) setting: Setting,
    /// Of a segment.
    pub(super) cost: f64,
    /// Workers that have a connection.
    pub(super) busy: usize,
    pub(super) begun: Vec<bool>,
    pub(super) done: u64,
}

impl Program for Alone {
    fn step(&mut self, worker: usize, _: &Machine) -> Step {
        if worker >= self.busy {
            return Step::Stop;
        }
        if self.begun[worker] {
            self.done += MOST as u64;
        }
        self.begun[worker] = true;
        self.setting.payload(Linear::each(self.cost), MOST, true)
    }

    fn segments(&self) -> u64 {
        self.done
    }
}

/// One state with a lock; any worker takes any batch.
#[derive(Debug)]
pub(super) struct LockedProgram {
    costs: Locked,
    setting: Setting,
    /// What each worker does, and with how many segments.
    doing: Vec<(Carrying, usize)>,
    in_flight: usize,
    /// Batches that the application has still to take.
    complete: Vec<usize>,
    done: u64,
}

/// The step of a worker of `locked` with its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrying {
    Nothing,
    Pump,
    Prepare,
    Lock,
    Perform,
    Send,
    App,
}

impl LockedProgram {
    pub(super) fn exclusives(lock: Handover) -> [Handover; 3] {
        [Handover::Queue, lock, Handover::Queue]
    }

    pub(super) fn new(costs: Locked, setting: Setting, workers: usize) -> Self {
        LockedProgram {
            costs,
            setting,
            doing: vec![(Carrying::Nothing, 0); workers],
            in_flight: 0,
            complete: Vec::new(),
            done: 0,
        }
    }

    /// What follows for a worker that carries nothing any more.
    fn begin(&mut self, id: usize) -> (Carrying, usize, Step) {
        if id == 0 && !self.complete.is_empty() {
            let all: usize = self.complete.iter().sum();
            let app = Linear {
                fixed: self.costs.app.fixed * self.complete.len() as f64,
                ..self.costs.app
            };
            self.complete.clear();
            return (Carrying::App, all, Step::Work(ps(app.of(all as f64))));
        }
        let most = match self.setting.sends {
            true => (self.costs.turn.round() as usize).max(1),
            false => MOST,
        };
        let room = (self.setting.window - self.in_flight).min(most);
        if room == 0 {
            return (Carrying::Nothing, 0, Step::Idle(LOOK));
        }
        self.in_flight += room;
        let hold = Step::Hold {
            what: DEVICE,
            time: ps(self.costs.pump.of(room as f64)),
            lines: 2,
        };
        (Carrying::Pump, room, hold)
    }
}

impl Program for LockedProgram {
    fn step(&mut self, id: usize, _: &Machine) -> Step {
        let (carrying, segments) = self.doing[id];
        let (costs, setting) = (self.costs, self.setting);
        let n = segments as f64;
        let (next, segments, step) = match carrying {
            Carrying::Pump => {
                let step = setting.payload(costs.prepare, segments, !setting.sends);
                (Carrying::Prepare, segments, step)
            }
            Carrying::Prepare => {
                let hold = Step::Hold {
                    what: SECOND,
                    time: ps(costs.apply.of(n)),
                    lines: STATE_LINES,
                };
                (Carrying::Lock, segments, hold)
            }
            Carrying::Lock => {
                let step = setting.payload(costs.perform, segments, setting.sends);
                (Carrying::Perform, segments, step)
            }
            Carrying::Perform if setting.sends => {
                let hold = Step::Hold {
                    what: TRANSMIT,
                    time: ps(costs.transmit.of(n)),
                    lines: 2,
                };
                (Carrying::Send, segments, hold)
            }
            Carrying::Perform | Carrying::Send => {
                self.complete.push(segments);
                self.begin(id)
            }
            Carrying::App => {
                self.in_flight -= segments;
                self.done += segments as u64;
                self.begin(id)
            }
            Carrying::Nothing => self.begin(id),
        };
        self.doing[id] = (next, segments);
        step
    }

    fn segments(&self) -> u64 {
        self.done
    }
}

/// Frames of a message of the pipeline.
const MESSAGE: usize = 16;
/// Lines of a message: one for itself, and one for each frame, with its place.
const LINES_OF_MESSAGE: u64 = 1 + MESSAGE as u64;

/// Stages in a row: the interface stage, data stages, the protocol stage; with fewer than three
/// workers some share one.
#[derive(Debug)]
pub(super) struct Pipeline {
    setting: Setting,
    /// Of a segment: interface, data, protocol.
    costs: [f64; 3],
    workers: usize,
    /// Messages that wait for each worker: which stage of them is next, and where they come from.
    queues: Vec<VecDeque<(usize, usize)>>,
    doing: Vec<Option<usize>>,
    in_flight: usize,
    dealt: usize,
    done: u64,
}

impl Pipeline {
    pub(super) fn new(costs: [f64; 3], setting: Setting, workers: usize) -> Self {
        Pipeline {
            setting,
            costs,
            workers,
            queues: vec![VecDeque::new(); workers],
            doing: vec![None; workers],
            in_flight: 0,
            dealt: 0,
            done: 0,
        }
    }

    /// What one stage alone takes of a segment.
    pub(super) fn bounds(&self, shape: &Shape) -> Vec<Bound> {
        let [interface, data, protocol] = self.costs;
        let moved = match self.workers {
            1 => 0.0,
            _ => LINES_OF_MESSAGE as f64 * shape.line as f64 / 1e3 / MESSAGE as f64,
        };
        let bound = |what, ns| Bound { what, ns };
        match self.workers {
            1 => vec![bound("the one worker", interface + data + protocol)],
            2 => vec![
                bound("the data stage", data * self.setting.payload + moved),
                bound("the stages of headers", interface + protocol + moved),
            ],
            workers => {
                let each = data * self.setting.payload + moved;
                vec![
                    bound("the interface stage", interface),
                    bound("the data stages", each / (workers - 2) as f64),
                    bound("the protocol stage", protocol + moved),
                ]
            }
        }
    }

    /// Which worker has a stage; data stages are dealt out in turn.
    fn worker_of(&mut self, stage: usize) -> usize {
        match (self.workers, stage) {
            (0..=2, DATA) => self.workers - 1,
            (0..=2, _) | (_, INTERFACE) => 0,
            (workers, DATA) => {
                self.dealt = (self.dealt + 1) % (workers - 2);
                1 + self.dealt
            }
            (workers, _) => workers - 1,
        }
    }

    fn end(&mut self, id: usize, stage: usize) {
        if stage == PROTOCOL {
            self.in_flight -= MESSAGE;
            self.done += MESSAGE as u64;
            return;
        }
        let next = self.worker_of(stage + 1);
        self.queues[next].push_back((stage + 1, id));
    }
}

/// Stages of [`Pipeline`].
const INTERFACE: usize = 0;
const DATA: usize = 1;
const PROTOCOL: usize = 2;

impl Program for Pipeline {
    fn step(&mut self, id: usize, machine: &Machine) -> Step {
        if let Some(stage) = self.doing[id].take() {
            self.end(id, stage);
        }
        let room = self.in_flight + MESSAGE <= self.setting.window.max(MESSAGE);
        let (stage, from) = match self.queues[id].pop_front() {
            Some(next) => next,
            None if id == 0 && room => {
                self.in_flight += MESSAGE;
                (INTERFACE, 0)
            }
            None => return Step::Idle(LOOK),
        };
        self.doing[id] = Some(stage);
        let moved = LINES_OF_MESSAGE * machine.shape().line_between(from, id);
        let cost = Linear::each(self.costs[stage]);
        match self.setting.payload(cost, MESSAGE, true) {
            Step::Move { time, bytes } if stage == DATA => Step::Move {
                time: time + moved,
                bytes,
            },
            _ => Step::Work(ps(cost.of(MESSAGE as f64)) + moved),
        }
    }

    fn segments(&self) -> u64 {
        self.done
    }
}
