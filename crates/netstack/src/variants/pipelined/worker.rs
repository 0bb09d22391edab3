//! A thread of a pipeline: its stages, and how it sleeps.

use std::sync::Arc;

use super::message::WakeUp;
use super::stage::{Protocol, Stage};
use super::{PipelinedShared, StageKind};
use crate::drive::{self, TurnStep};
use crate::io::record::{Entry, Recorder};
use crate::io::sleep::timeout;
use crate::state::apply::ReplicaState;
use crate::stats::{EffectStats, PumpStats, WorkerStats};
use crate::time::Instant;

/// Counts of a stage since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageStats {
    /// The stage.
    pub stage: StageKind,
    /// Turns in which it found something to do.
    pub turns: u64,
    /// Nanoseconds of those turns; 0 without
    /// [`PipelinedLayout::timed`](super::PipelinedLayout::timed).
    pub busy_ns: u64,
    /// Requests that it verified, bytes that it copied and frames that it built.
    pub effects: EffectStats,
}

/// One thread's part: its stages.
pub struct PipelinedWorker {
    id: usize,
    shared: Arc<PipelinedShared>,
    wake: Arc<WakeUp>,
    stages: Vec<Timed>,
    is_timed: bool,
}

/// A stage, and its busy time.
struct Timed {
    kind: StageKind,
    stage: Stage,
    turns: u64,
    busy_ns: u64,
}

impl PipelinedWorker {
    pub(super) fn new(id: usize, shared: Arc<PipelinedShared>, is_timed: bool) -> PipelinedWorker {
        PipelinedWorker {
            id,
            wake: Arc::clone(&shared.wakes[id]),
            shared,
            stages: Vec::new(),
            is_timed,
        }
    }

    pub(super) fn add(&mut self, kind: StageKind, stage: Stage) {
        self.stages.push(Timed {
            kind,
            stage,
            turns: 0,
            busy_ns: 0,
        });
    }

    /// The counts of each of its stages.
    pub fn stages(&self) -> impl Iterator<Item = StageStats> + '_ {
        self.stages.iter().map(|timed| StageStats {
            stage: timed.kind,
            turns: timed.turns,
            busy_ns: timed.busy_ns,
            effects: timed.stage.effect_stats(),
        })
    }

    pub(super) fn effect_stats(&self) -> EffectStats {
        let all = self.stages.iter().map(|timed| timed.stage.effect_stats());
        all.fold(EffectStats::default(), EffectStats::and)
    }

    pub(super) fn protocols(&self) -> impl Iterator<Item = &Protocol> {
        self.stages.iter().filter_map(|timed| match &timed.stage {
            Stage::Protocol(protocol) => Some(&**protocol),
            _ => None,
        })
    }

    pub(super) fn protocols_mut(&mut self) -> impl Iterator<Item = &mut Protocol> {
        let stages = self.stages.iter_mut();
        stages.filter_map(|timed| match &mut timed.stage {
            Stage::Protocol(protocol) => Some(&mut **protocol),
            _ => None,
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "busy time is measured, and no state is told"
)]
fn clock() -> std::time::Instant {
    std::time::Instant::now()
}

impl drive::Worker for PipelinedWorker {
    fn id(&self) -> usize {
        self.id
    }

    fn name(&self) -> String {
        match &self.stages[..] {
            [only] => match only.kind {
                StageKind::Interface => "interface".to_owned(),
                StageKind::Data(index) => format!("data {index}"),
                StageKind::Protocol(index) => format!("protocol {index}"),
            },
            _ => format!("stages {}", self.id),
        }
    }

    /// Runs a turn of each of its stages.
    fn receive(&mut self, now: Instant) -> usize {
        let mut done = 0;
        for timed in &mut self.stages {
            let start = self.is_timed.then(clock);
            let now_done = timed.stage.turn(now);
            timed.turns += u64::from(now_done > 0);
            if let Some(start) = start.filter(|_| now_done > 0) {
                timed.busy_ns += start.elapsed().as_nanos() as u64;
            }
            done += now_done;
        }
        done
    }

    /// [`receive`](drive::Worker::receive) ran whole turns.
    fn process(&mut self) -> usize {
        0
    }

    /// [`receive`](drive::Worker::receive) ran whole turns.
    fn transmit(&mut self, _is_idle: bool) -> usize {
        0
    }

    fn work(&mut self) -> usize {
        let stages = self.stages.iter_mut();
        let done: usize = stages.map(|timed| timed.stage.work()).sum();
        done + self.serve_units()
    }

    fn serve_units(&mut self) -> usize {
        let worlds = self.shared.worlds.iter();
        worlds.map(|world| world.serve_units(|| ())).sum()
    }

    /// Runs one step of each of its stages that has this step.
    fn step(&mut self, step: TurnStep, now: Instant) -> bool {
        if step == TurnStep::Turn {
            return self.turn(now) > 0;
        }
        let one = |timed: &mut Timed| match (&mut timed.stage, step) {
            (Stage::Interface(stage), TurnStep::Pump) => stage.receive(now),
            (Stage::Interface(stage), TurnStep::Send | TurnStep::SendOne) => stage.send(),
            (Stage::Data(stage), TurnStep::Prepare(_)) => stage.prepare(),
            (Stage::Data(stage), TurnStep::Perform) => stage.perform(),
            (Stage::Protocol(stage), TurnStep::Pump) => stage.receive(now),
            (Stage::Protocol(stage), TurnStep::Apply) => stage.apply(1),
            _ => 0,
        };
        self.stages.iter_mut().map(one).sum::<usize>() > 0
    }

    fn next_deadline(&self) -> Instant {
        self.shared.next_deadline()
    }

    /// The deadline of this worker's stages only.
    fn state_deadline(&self) -> Instant {
        let deadlines = self.protocols().map(Protocol::next_deadline);
        deadlines.min().unwrap_or(Instant::NEVER)
    }

    fn has_work(&mut self) -> bool {
        self.stages.iter_mut().any(|timed| timed.stage.has_work())
            || self.shared.worlds.iter().any(|world| world.has_units())
    }

    fn is_pump_busy(&self) -> bool {
        self.protocols().any(Protocol::is_pump_busy)
    }

    fn stats(&self) -> WorkerStats {
        let effects = self.effect_stats();
        WorkerStats {
            applied: effects.requests,
            effects,
            ..WorkerStats::default()
        }
    }

    fn pump_stats(&self) -> Option<PumpStats> {
        let all = self.protocols().map(|protocol| protocol.rx.pump.stats());
        all.reduce(PumpStats::and)
    }

    fn inspect(&self, look: &mut dyn FnMut(&ReplicaState)) {
        self.protocols()
            .for_each(|protocol| look(&protocol.replica));
    }

    fn attend(&mut self) -> bool {
        let goes_on = !self.shared.is_down();
        for protocol in self.protocols().filter(|_| goes_on) {
            let view = &protocol.world.view;
            if view.is_asked() {
                view.answer(&protocol.replica);
            }
        }
        goes_on
    }

    fn post(&mut self) {
        for protocol in self.protocols() {
            let (pump, state) = (protocol.rx.pump.stats(), protocol.replica.stats());
            let post = |posted: &mut crate::stats::StackStats| {
                (posted.pump, posted.state) = (pump, state);
            };
            protocol.world.post(post);
        }
    }

    fn wait(&mut self, now: Instant) {
        let timeout = timeout(self.state_deadline(), now);
        let wake = Arc::clone(&self.wake);
        self.protocols().for_each(|p| p.world.before_sleep());
        let has_interface = self.id == 0;
        let key = if has_interface {
            wake.before_device();
            None
        } else {
            Some(wake.event().prepare())
        };
        if !self.has_work() && !self.shared.is_down() {
            match (key, self.stages.first_mut().map(|timed| &mut timed.stage)) {
                (Some(key), _) => {
                    wake.event().wait(key, timeout);
                }
                (None, Some(Stage::Interface(interface))) => interface.wait(timeout),
                (None, _) => {}
            }
        }
        wake.after_device();
        self.protocols().for_each(|p| p.world.after_sleep());
    }

    /// One thread drives all workers, so it can be woken through any of them.
    fn wait_alone(
        &mut self,
        (deadline, now): (Instant, Instant),
        others_have_work: &mut dyn FnMut() -> bool,
    ) {
        let shared = Arc::clone(&self.shared);
        shared.wakes.iter().for_each(|wake| wake.before_device());
        shared.worlds.iter().for_each(|world| world.before_sleep());
        let may_sleep = !self.has_work() && !others_have_work() && !shared.is_down();
        let first = self.stages.first_mut().map(|timed| &mut timed.stage);
        if let (true, Some(Stage::Interface(interface))) = (may_sleep, first) {
            interface.wait(timeout(deadline, now));
        }
        shared.wakes.iter().for_each(|wake| wake.after_device());
        shared.worlds.iter().for_each(|world| world.after_sleep());
    }

    fn replay(&mut self, entry: &Entry) -> bool {
        let first = self.protocols_mut().next();
        first.map(|protocol| protocol.replay(entry)).is_some()
    }

    fn take_recorder(&mut self) -> Option<Recorder> {
        self.protocols_mut().next()?.rx.pump.take_recorder()
    }
}

/// If a worker panics, the messages of its stages are lost. No application may wait for them, so
/// the stack shuts down.
impl Drop for PipelinedWorker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.shut_down();
        }
    }
}
