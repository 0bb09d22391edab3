//! Carries frames between two devices over a bad wire.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::{ImpairedLink, LinkConfig, LinkStats};
use crate::{Device, DeviceError, DeviceRx, DeviceTx, Frame, TxFrame, checked};

/// Most frames moved at once.
const BATCH: usize = 64;
/// How often an idle wire checks `over`, and one whose interface is down checks whether it came up.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Carries frames between two devices until `over` is set, with one thread per direction. The
/// direction back uses the complement of the seed. Returns the counts of the direction there and
/// of the one back.
///
/// Frames to or from an interface that is down are lost, as on a cable that is not plugged in.
///
/// # Errors
/// A device is gone.
pub fn bridge(
    first: Box<dyn Device>,
    second: Box<dyn Device>,
    config: &LinkConfig,
    over: &AtomicBool,
) -> Result<[LinkStats; 2], DeviceError> {
    let (first_rx, first_tx) = first.split();
    let (second_rx, second_tx) = second.split();
    let start = Instant::now();
    let other = config.clone().seed(!config.faults.seed);
    thread::scope(|scope| {
        let there = scope.spawn(move || carry(first_rx, second_tx, config.clone(), start, over));
        let back = scope.spawn(move || carry(second_rx, first_tx, other, start, over));
        let mut stats = [LinkStats::default(); 2];
        for (stats, way) in stats.iter_mut().zip([there, back]) {
            *stats = way
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(stats)
    })
}

/// Carries one direction.
fn carry(
    mut rx: Box<dyn DeviceRx>,
    mut tx: Box<dyn DeviceTx>,
    config: LinkConfig,
    start: Instant,
    over: &AtomicBool,
) -> Result<LinkStats, DeviceError> {
    let mut link = ImpairedLink::new(config);
    let mut frames = Vec::new();
    // ORDERING: Relaxed, here and at the stores: the flag orders nothing, and may be seen late.
    while !over.load(Relaxed) {
        match checked::claim(&mut *rx, BATCH, &mut frames) {
            Ok(_) => {}
            // Interfaces come up late and go down early.
            Err(DeviceError::Down { .. }) => thread::sleep(POLL_INTERVAL),
            Err(error) => {
                // This ends the other direction, too.
                over.store(true, Relaxed);
                return Err(error);
            }
        }
        let now = start.elapsed();
        for frame in &frames {
            link.offer(now, frame.clone());
        }
        checked::release(&mut *rx, &mut frames);
        let arrived: Vec<Frame> = std::iter::from_fn(|| link.take(now)).collect();
        let mut rest: Vec<TxFrame<'_>> = arrived.iter().map(Frame::as_tx).collect();
        while !rest.is_empty() {
            match checked::transmit(&mut *tx, &rest) {
                Ok(0) => thread::yield_now(),
                Ok(taken) => drop(rest.drain(..taken)),
                Err(DeviceError::Down { .. }) => rest.clear(),
                Err(error) => {
                    over.store(true, Relaxed);
                    return Err(error);
                }
            }
        }
        let next = link
            .next_arrival()
            .map_or(POLL_INTERVAL, |at| at.saturating_sub(start.elapsed()));
        if next > Duration::ZERO {
            match rx.wait(Some(next.min(POLL_INTERVAL))) {
                Ok(()) | Err(DeviceError::Down { .. }) => {}
                Err(error) => {
                    over.store(true, Relaxed);
                    return Err(error);
                }
            }
        }
    }
    Ok(link.stats())
}
