//! A device that measures its calls: while a pump makes them, no other worker can use the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use dominoes_drivers::{
    Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, Frame, RxStats, TxFrame, TxStats,
};
use dominoes_testkit::device::Around;

/// Nanoseconds and counts so far.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Claiming and releasing frames.
    pub(crate) receiving: AtomicU64,
    /// Sending frames.
    pub(crate) sending: AtomicU64,
    /// Sleeping in the device.
    pub(crate) asleep: AtomicU64,
    /// Frames received and sent.
    pub(crate) frames: [AtomicU64; 2],
    /// Calls that claimed something, and calls that sent something.
    pub(crate) calls: [AtomicU64; 2],
}

/// The device, timed.
pub(crate) fn timed(device: impl Device + 'static) -> (Around, Arc<Times>) {
    let times = Arc::<Times>::default();
    let [of_rx, of_tx] = [&times, &times].map(Arc::clone);
    let device = Around::new(device).rx(|half| TimedHalf { half, times: of_rx });
    (device.tx(|half| TimedHalf { half, times: of_tx }), times)
}

struct TimedHalf<H> {
    half: H,
    times: Arc<Times>,
}

/// Runs `work` and adds its time to `to`.
fn time<T>(to: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let done = work();
    // ORDERING: Relaxed here and below: the counts are only printed.
    to.fetch_add(begin.elapsed().as_nanos() as u64, Relaxed);
    done
}

impl DeviceRx for TimedHalf<Box<dyn DeviceRx>> {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let half = &mut self.half;
        let claimed = time(&self.times.receiving, || half.claim(max, out));
        if let Ok(count @ 1..) = claimed {
            self.times.frames[0].fetch_add(count as u64, Relaxed);
            self.times.calls[0].fetch_add(1, Relaxed);
        }
        claimed
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        let half = &mut self.half;
        time(&self.times.receiving, || half.release(frames));
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        let half = &mut self.half;
        time(&self.times.asleep, || half.wait(timeout))
    }

    fn waker(&self) -> DeviceWaker {
        self.half.waker()
    }

    fn stats(&self) -> RxStats {
        self.half.stats()
    }
}

impl DeviceTx for TimedHalf<Box<dyn DeviceTx>> {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        let half = &mut self.half;
        let sent = time(&self.times.sending, || half.transmit(frames));
        if let Ok(count @ 1..) = sent {
            self.times.frames[1].fetch_add(count as u64, Relaxed);
            self.times.calls[1].fetch_add(1, Relaxed);
        }
        sent
    }

    fn stats(&self) -> TxStats {
        self.half.stats()
    }
}
