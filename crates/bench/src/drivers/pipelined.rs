//! Stages in a row: whole frames, payload, headers.

use std::time::{Duration, Instant};

use dominoes_netstack::time;
use dominoes_netstack::variants::Worker as _;
use dominoes_netstack::variants::pipelined::{
    Pipeline, PipelinedLayout, PipelinedWorker, StageKind,
};
use dominoes_netstack::variants::single::Single;

use crate::drivers::app::App;
use crate::drivers::worker::Application;
use crate::drivers::{Direction, Row, worker};
use crate::workload::Workload;

/// The variant on `cores` cores: from three on, a core for each stage.
pub(crate) fn row(direction: Direction, workload: &Workload, cores: usize) -> Result<Row, String> {
    let layout = PipelinedLayout::default()
        .workers(cores)
        .window(workload.log_requests);
    let (workers, app) = build(direction, workload, layout)?;
    Ok(worker::row("pipelined", workers, [app]))
}

fn build(
    direction: Direction,
    workload: &Workload,
    layout: PipelinedLayout,
) -> Result<(Vec<PipelinedWorker>, App), String> {
    let make = |setup, device| Pipeline::new(setup, layout, device);
    let (pipeline, app) = App::on(direction, workload, make)?;
    Ok((pipeline.into_workers(), app))
}

/// What the stages of a pipeline take, each alone on a core. In nanoseconds a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StageCosts {
    pub(crate) interface: f64,
    /// All data stages together.
    pub(crate) data: f64,
    /// The busiest protocol stage.
    pub(crate) protocol: f64,
}

/// Time that is not counted.
const WARM_UP: Duration = Duration::from_millis(5);
/// Segments that are counted at least, however long that takes on a busy machine,
const ENOUGH: usize = 4096;
/// but no longer than this.
const PATIENCE: Duration = Duration::from_secs(10);

/// Drives a stack and its application for this time. Returns the number of segments it moved.
fn drive(
    app: &mut App,
    (segment, pool): (usize, u64),
    slice: Duration,
    turn: &mut dyn FnMut(time::Instant),
    warm: &mut dyn FnMut(),
) -> Result<f64, String> {
    // What the peer compares would count as time of the interface stage.
    app.verify(false);
    let begin = Instant::now();
    let mut from = None;
    loop {
        let elapsed = begin.elapsed();
        // Memory that is used for the first time costs a page fault.
        if from.is_none() && elapsed >= WARM_UP && app.bytes() >= pool {
            from = Some(app.bytes());
            warm();
        }
        let moved = from.map_or(0, |from| app.bytes() - from);
        let is_enough = moved >= (ENOUGH * segment) as u64;
        if elapsed >= WARM_UP + slice && is_enough || elapsed >= PATIENCE {
            break;
        }
        let now = 10_000 + elapsed.as_nanos() as u64;
        turn(time::Instant::from_nanos(now));
        app.turn();
    }
    app.check()?;
    let moved = app.bytes() - from.unwrap_or(0);
    if moved == 0 {
        return Err("nothing moves".to_owned());
    }
    Ok(moved as f64 / segment as f64)
}

/// Measures how long each stage is busy, all of them on this thread for `slice`.
pub(crate) fn stage_costs(
    direction: Direction,
    workload: &Workload,
    (data_stages, protocol_stages): (usize, usize),
    slice: Duration,
) -> Result<StageCosts, String> {
    let layout = PipelinedLayout::default()
        .workers(1)
        .data_stages(data_stages)
        .protocol_stages(protocol_stages)
        .window(workload.log_requests)
        .timed(true);
    let (workers, mut app) = build(direction, workload, layout)?;
    let workers = std::cell::RefCell::new(workers);
    let busy = || {
        let mut costs = [0.0, 0.0, 0.0];
        for stats in workers.borrow().iter().flat_map(PipelinedWorker::stages) {
            let ns = stats.busy_ns as f64;
            match stats.stage {
                StageKind::Interface => costs[0] += ns,
                StageKind::Data(_) => costs[1] += ns,
                // Connections are spread over them, evenly at best.
                _ => costs[2] += ns / protocol_stages as f64,
            }
        }
        costs
    };
    let mut before = [0.0; 3];
    let segments = drive(
        &mut app,
        (workload.segment_bytes, workload.pool_bytes as u64),
        slice,
        &mut |now| {
            for worker in &mut *workers.borrow_mut() {
                worker.turn(now);
            }
        },
        &mut || before = busy(),
    )?;
    let after = busy();
    let [interface, data, protocol] =
        core::array::from_fn(|i: usize| (after[i] - before[i]) / segments);
    Ok(StageCosts {
        interface,
        data,
        protocol,
    })
}

/// Nanoseconds a segment that the same takes where one thread does everything by direct calls.
pub(crate) fn single_cost(
    direction: Direction,
    workload: &Workload,
    slice: Duration,
) -> Result<f64, String> {
    let (mut single, mut app) = App::on(direction, workload, Single::new)?;
    let mut busy = Duration::ZERO;
    let counted = std::cell::Cell::new(false);
    let segments = drive(
        &mut app,
        (workload.segment_bytes, workload.pool_bytes as u64),
        slice,
        &mut |now| {
            let begin = Instant::now();
            if single.turn(now) > 0 && counted.get() {
                busy += begin.elapsed();
            }
        },
        &mut || counted.set(true),
    )?;
    Ok(busy.as_nanos() as f64 / segments)
}
