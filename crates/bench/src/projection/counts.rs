//! Counts of runs by hand with many workers, and the slowdown of two cores by each other.

use std::time::{Duration, Instant};

use dominoes_drivers::memory::peer::Role;
use dominoes_drivers::memory::peer::headers::{self, Ends, flags};
use dominoes_drivers::{DeviceRx as _, DeviceTx as _, TxFrame};
use dominoes_netstack::group::ReplicatedWorker;
use dominoes_netstack::time;
use dominoes_netstack::variants::Worker as _;
use serde::Serialize;

use super::costs::{RING_FOR_WORKER, group, median, segments};
use crate::drivers::worker::Application as _;
use crate::drivers::{Direction, Row, limit};
use crate::peer;
use crate::topology;
use crate::workload::Workload;

/// Counts of a run by hand, in which all workers have their turns one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Count {
    pub(crate) workers: usize,
    /// Frames of a claim.
    pub(crate) claimed: f64,
    /// Requests of a segment.
    pub(crate) requests: f64,
    /// Requests that were applied, of a segment: by all workers together.
    pub(crate) applied: f64,
}

/// Segments that are counted.
const COUNTED: u64 = 20_000;
/// Bytes of frames where nothing is timed.
const COUNTED_POOL: usize = 16 << 20;

/// Drives `workers` by hand and counts.
pub(crate) fn count(
    direction: Direction,
    workload: &Workload,
    workers: usize,
) -> Result<Count, String> {
    let workload = Workload {
        pool_bytes: COUNTED_POOL,
        ring_bytes: ring_bytes(workers),
        ..*workload
    };
    let (mut group, mut app) = group(direction, &workload, workers)?;
    let (mut claims, mut claimed) = (0, 0);
    let (mut moved, mut all) = (0, 0);
    segments(&app, &workload, &mut moved);
    let before = group[0].pump_stats().unwrap_or_default();
    let applied = |group: &[ReplicatedWorker]| -> u64 {
        group.iter().map(|worker| worker.replica().position()).sum()
    };
    let begun = applied(&group);
    let mut now = 10_000_000;
    while all < COUNTED {
        let mut done = 0;
        for worker in &mut group {
            now += 1_000;
            let at = time::Instant::from_nanos(now);
            let some = worker.claim(at).unwrap_or(0) as u64;
            (claims, claimed) = (claims + u64::from(some > 0), claimed + some);
            worker.parse();
            done += worker.publish(at).unwrap_or(0) + worker.work() + some as usize;
        }
        app.turn();
        all += segments(&app, &workload, &mut moved) as u64;
        if done == 0 && now > 60_000_000_000 {
            return Err(format!("{workers} workers stand still"));
        }
    }
    while group.iter_mut().map(|worker| worker.work()).sum::<usize>() > 0 {}
    app.check()?;
    let stats = group[0].pump_stats().unwrap_or_default();
    let segments = all.max(1) as f64;
    Ok(Count {
        workers,
        claimed: claimed as f64 / claims.max(1) as f64,
        requests: (stats.requests - before.requests) as f64 / segments,
        applied: (applied(&group) - begun) as f64 / segments,
    })
}

/// What the simulated peer takes of a claim of frames with payload, in which it writes their
/// headers: without any stack, and with this number of frames at a time.
pub(super) fn device_ns(workload: &Workload, frames: usize) -> Result<f64, String> {
    const CLAIMS: usize = 300;
    let (device, _peer) = peer::new(Role::Free, workload)?;
    let (mut rx, _tx) = device.into_halves();
    let mut held = Vec::new();
    let mut times = Vec::new();
    // Every frame is used once before that counts.
    let warm = workload.frames() / frames;
    for claim in 0..warm + CLAIMS {
        let begin = Instant::now();
        rx.release(&mut held);
        let claimed = rx.claim(frames, &mut held).map_err(|e| e.to_string())?;
        let ns = begin.elapsed().as_nanos() as f64;
        if claimed == 0 {
            return Err("the peer has no frames".to_owned());
        }
        if claim >= warm && claimed == frames {
            times.push(ns);
        }
    }
    Ok(median(times.into_iter()))
}

/// Frames that [`device_ns_per_segment`] claims or sends at a time.
const AT_ONCE: usize = 32;

/// What the simulated device and peer take of a segment: without any stack.
pub(crate) fn device_ns_per_segment(
    direction: Direction,
    workload: &Workload,
) -> Result<f64, String> {
    let mut ns = 0.0;
    if direction.receives() {
        ns += device_ns(workload, AT_ONCE)?;
    }
    if direction.sends() {
        ns += device_ns_of_sent(workload)?;
    }
    Ok(ns / AT_ONCE as f64)
}

/// What the simulated peer takes of [`AT_ONCE`] frames of the stack, and of their acknowledgments.
fn device_ns_of_sent(workload: &Workload) -> Result<f64, String> {
    const TIMES: usize = 1000;
    let (device, peer) = peer::new(Role::FreeReceiver, workload)?;
    // As while rows are measured. The checksum of the frames is wrong, so that a peer that sums
    // them up is found out.
    peer.verify(false);
    let (mut rx, mut tx) = device.into_halves();
    let payload = vec![0; workload.segment_bytes];
    let mut whole = headers::tcp_frame(&Ends::default(), flags::ACK, u16::MAX, &[], &payload);
    if let Some(last) = whole.last_mut() {
        *last ^= 1;
    }
    let frame = TxFrame::new(&whole);
    let mut acks = Vec::new();
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let begin = Instant::now();
        tx.transmit(&[frame; AT_ONCE]).map_err(|e| e.to_string())?;
        limit::claim_acks(&mut rx, &mut acks);
        times.push(begin.elapsed().as_nanos() as f64);
    }
    peer.check().map_err(|fault| fault.to_string())?;
    Ok(median(times.into_iter()))
}

/// The receive ring of a group with this number of workers.
pub(crate) fn ring_bytes(workers: usize) -> u32 {
    (RING_FOR_WORKER * workers.max(2)).next_power_of_two() as u32
}

/// By how much the kernels of two cores take longer at the same time than one core's alone: what
/// both share in addition to cache lines. As in the rows, each of the two has half of the frames
/// that one alone has: with as many for each, both would have half of the shared cache.
pub(crate) fn two_at_once(direction: Direction, workload: &Workload) -> Result<f64, String> {
    const REPEATED: usize = 5;
    if topology::cores().len() < 2 {
        return Ok(1.0);
    }
    let half = Workload {
        pool_bytes: workload.pool_bytes / 2,
        ..*workload
    };
    let mut whole = [limit::row(direction, workload, 1)?];
    let mut halves = [
        limit::row(direction, &half, 1)?,
        limit::row(direction, &half, 1)?,
    ];
    let mut factors = Vec::new();
    for _ in 0..REPEATED {
        let alone = rates(&mut whole)[0];
        let both = rates(&mut halves);
        factors.push(alone / (both.iter().sum::<f64>() / both.len() as f64));
    }
    Ok(median(factors.into_iter()).max(1.0))
}

/// Bytes in a nanosecond of each row, all at once, each on another core.
fn rates(rows: &mut [Row]) -> Vec<f64> {
    const LONG: Duration = Duration::from_millis(20);
    std::thread::scope(|scope| {
        let one = |(core, row): (usize, &mut Row)| {
            topology::pin_to(core);
            row.rate(LONG)
        };
        let threads: Vec<_> = rows
            .iter_mut()
            .enumerate()
            .map(|pair| scope.spawn(move || one(pair)))
            .collect();
        let rates = threads.into_iter().map(|thread| thread.join());
        rates.map(|rate| rate.unwrap_or(f64::NAN)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dominoes_proto::log::request::MAX_RUN;

    #[test]
    fn the_device_takes_some_time_for_every_segment() {
        let workload = Workload {
            pool_bytes: 1 << 20,
            ..Workload::default()
        };
        let ns = |direction| device_ns_per_segment(direction, &workload).unwrap();
        assert!(ns(Direction::Receive) > 0.0 && ns(Direction::Send) > 0.0);
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_few_short_segments_have_room_for_a_unit() {
        let workload = Workload {
            segment_bytes: 64,
            processing: crate::workload::Processing::Aes256Gcm,
            ..Workload::default()
        };
        let few = super::super::costs::small(&workload);
        group(Direction::Receive, &few, 2).unwrap();
    }

    /// A worker of the lock ciphers between its steps, as its turns do.
    #[cfg(feature = "tls")]
    #[test]
    fn what_is_enciphered_is_sent_while_the_lock_is_calibrated() {
        let workload = Workload {
            pool_bytes: 1 << 20,
            processing: crate::workload::Processing::Aes256Gcm,
            ..Workload::default()
        };
        super::super::costs::locked_costs(Direction::Send, &workload).unwrap();
    }

    /// What by-hand runs count does not depend on the machine, and every worker applies everything.
    #[test]
    fn counts_are_the_same_every_time_and_every_worker_applies_all() {
        let workload = Workload::default();
        let two = count(Direction::Receive, &workload, 2).unwrap();
        assert_eq!(two, count(Direction::Receive, &workload, 2).unwrap());
        let eight = count(Direction::Receive, &workload, 8).unwrap();
        let ratio = eight.applied / two.applied;
        assert!((3.5..4.5).contains(&ratio), "{two:?} {eight:?}");
        assert!(two.requests >= 1.0 / MAX_RUN as f64 && two.requests <= 1.0);
    }
}
