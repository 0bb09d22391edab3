//! A device with a bad wire.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{ImpairedLink, LinkConfig, LinkStats};
use crate::{
    AddressFilter, Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, Frame,
    RxStats, TxFrame, TxStats, checked,
};

/// Pause before frames are offered again to a busy device.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
/// Most frames claimed from the device, or given to it, at once.
const BATCH: usize = 64;

/// Returns the time since some start.
pub type ImpairClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A device with a bad wire in each direction.
///
/// Sent frames leave when the receiving half is used ([`claim`](DeviceRx::claim) or
/// [`wait`](DeviceRx::wait)), or when more frames are sent, so keep polling the device. The
/// wrapper offers no segmentation, so that each segment meets its own faults. The inner device may
/// still merge received segments, unless it was opened without offloads. A sender never sees the
/// device busy.
pub struct Impaired<D> {
    device: D,
    inbound: LinkConfig,
    outbound: LinkConfig,
    clock: ImpairClock,
    controls: LinkControls,
}

/// The inbound and the outbound link.
type Ways = [Arc<Mutex<ImpairedLink>>; 2];

/// Access to both wires of an [`Impaired`] device, also after the device has moved.
#[derive(Clone, Default)]
pub struct LinkControls {
    links: Arc<Mutex<Option<Ways>>>,
}

impl LinkControls {
    /// Counts of the inbound and the outbound link. Zero before the device is split.
    pub fn stats(&self) -> [LinkStats; 2] {
        match &*lock(&self.links) {
            Some(links) => [0, 1].map(|way| lock(&links[way]).stats()),
            None => [LinkStats::default(); 2],
        }
    }

    /// Calls [`ImpairedLink::clear_faults`] on both links.
    pub fn clear_faults(&self) {
        for link in lock(&self.links).iter().flatten() {
            lock(link).clear_faults();
        }
    }
}

impl fmt::Debug for LinkControls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switches").finish_non_exhaustive()
    }
}

impl<D: Device> Impaired<D> {
    /// Puts `device` at the end of bad wires, with the clock of this machine.
    pub fn new(device: D, inbound: LinkConfig, outbound: LinkConfig) -> Self {
        let start = Instant::now();
        Self::with_clock(device, inbound, outbound, Arc::new(move || start.elapsed()))
    }

    /// As [`new`](Self::new), with another clock, which must never go back.
    pub fn with_clock(
        device: D,
        inbound: LinkConfig,
        outbound: LinkConfig,
        clock: ImpairClock,
    ) -> Self {
        Self {
            device,
            inbound,
            outbound,
            clock,
            controls: LinkControls::default(),
        }
    }

    /// A handle to both links, which stays valid when the device is split.
    pub fn controls(&self) -> LinkControls {
        self.controls.clone()
    }
}

impl<D: fmt::Debug> fmt::Debug for Impaired<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Impaired")
            .field("device", &self.device)
            .field("inbound", &self.inbound)
            .field("outbound", &self.outbound)
            .finish_non_exhaustive()
    }
}

impl<D: Device> Device for Impaired<D> {
    fn capabilities(&self) -> Capabilities {
        let mut caps = self.device.capabilities();
        caps.tso4_max_bytes = 0;
        caps.uso_max_bytes = 0;
        caps.added_latency = caps.added_latency.saturating_add(self.inbound.delay);
        caps
    }

    fn mac(&self) -> [u8; 6] {
        self.device.mac()
    }

    fn address_filter(&self) -> Option<Arc<dyn AddressFilter>> {
        self.device.address_filter()
    }

    fn check_address(&self, address: IpAddr) -> Result<(), DeviceError> {
        self.device.check_address(address)
    }

    fn queues(&self) -> usize {
        self.device.queues()
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        let caps = self.capabilities();
        let (rx, tx) = Box::new(self.device).split();
        let inbound = Arc::new(Mutex::new(ImpairedLink::new(self.inbound)));
        let link = Arc::new(Mutex::new(ImpairedLink::new(self.outbound)));
        *lock(&self.controls.links) = Some([Arc::clone(&inbound), Arc::clone(&link)]);
        let outlet = Arc::new(Outlet {
            link,
            device: Mutex::new((tx, VecDeque::new())),
            clock: self.clock,
            waker: rx.waker(),
        });
        let rx = ImpairedRx {
            rx,
            inbound,
            outlet: Arc::clone(&outlet),
            batch: Vec::new(),
            stats: RxStats::default(),
        };
        let tx = ImpairedTx {
            outlet,
            caps,
            stats: TxStats::default(),
        };
        (Box::new(rx), Box::new(tx))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The outbound side, which both halves drive.
struct Outlet {
    link: Arc<Mutex<ImpairedLink>>,
    /// The device, and frames that it was too busy to take.
    device: Mutex<(Box<dyn DeviceTx>, VecDeque<Frame>)>,
    clock: ImpairClock,
    waker: DeviceWaker,
}

impl Outlet {
    fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Gives the device the frames that have come through the link. Returns when to call again;
    /// `None`: not before more frames are sent.
    fn flush(&self) -> Result<Option<Duration>, DeviceError> {
        let now = self.now();
        let mut device = lock(&self.device);
        let (tx, waiting) = &mut *device;
        let mut link = lock(&self.link);
        waiting.extend(std::iter::from_fn(|| link.take(now)));
        let next = link.next_arrival();
        drop(link);
        while !waiting.is_empty() {
            let batch: Vec<TxFrame<'_>> = waiting.iter().take(BATCH).map(Frame::as_tx).collect();
            let offered = batch.len();
            let taken = checked::transmit(&mut **tx, &batch)?;
            waiting.drain(..taken);
            if taken < offered {
                let pause = now.saturating_add(BUSY_PAUSE);
                return Ok(Some(next.map_or(pause, |next| next.min(pause))));
            }
        }
        Ok(next)
    }
}

struct ImpairedRx {
    rx: Box<dyn DeviceRx>,
    inbound: Arc<Mutex<ImpairedLink>>,
    outlet: Arc<Outlet>,
    batch: Vec<Frame>,
    stats: RxStats,
}

impl ImpairedRx {
    /// Moves all frames that the device has received onto the inbound link.
    fn pull(&mut self) -> Result<(), DeviceError> {
        loop {
            let result = checked::claim(&mut *self.rx, BATCH, &mut self.batch);
            let now = self.outlet.now();
            let mut link = lock(&self.inbound);
            for frame in &self.batch {
                link.offer(now, frame.clone());
            }
            drop(link);
            let claimed = self.batch.len();
            checked::release(&mut *self.rx, &mut self.batch);
            result?;
            if claimed < BATCH {
                return Ok(());
            }
        }
    }
}

impl DeviceRx for ImpairedRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let before = out.len();
        let flushed = self.outlet.flush();
        let pulled = self.pull();
        let now = self.outlet.now();
        let mut link = lock(&self.inbound);
        while out.len() - before < max
            && let Some(frame) = link.take(now)
        {
            self.stats.bytes += frame.len() as u64;
            out.push(frame);
        }
        drop(link);
        let claimed = out.len() - before;
        self.stats.frames += claimed as u64;
        // An error is reported only if no frame was appended; a device that is gone reports it
        // again.
        if claimed == 0 {
            flushed?;
            pulled?;
        }
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        frames.clear();
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        let departure = self.outlet.flush()?;
        let arrival = lock(&self.inbound).next_arrival();
        let now = self.outlet.now();
        let due = [departure, arrival].into_iter().flatten().min();
        let due = due.map(|at| at.saturating_sub(now));
        if due == Some(Duration::ZERO) {
            return Ok(());
        }
        let timeout = [timeout, due].into_iter().flatten().min();
        self.rx.wait(timeout)
    }

    fn waker(&self) -> DeviceWaker {
        self.rx.waker()
    }

    fn stats(&self) -> RxStats {
        let inner = self.rx.stats();
        let link = lock(&self.inbound).stats();
        RxStats {
            frames: self.stats.frames,
            bytes: self.stats.bytes,
            dropped: inner
                .dropped
                .saturating_add(link.overflowed + link.faults.lost),
            ..inner
        }
    }
}

struct ImpairedTx {
    outlet: Arc<Outlet>,
    caps: Capabilities,
    stats: TxStats,
}

impl DeviceTx for ImpairedTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        let now = self.outlet.now();
        let mut link = lock(&self.outlet.link);
        let before = link.next_arrival();
        for frame in frames {
            if !self.caps.admits(frame) {
                self.stats.dropped += 1;
                continue;
            }
            self.stats.frames += 1;
            self.stats.bytes += frame.len() as u64;
            link.offer(now, frame.to_frame());
        }
        let after = link.next_arrival();
        drop(link);
        let next = self.outlet.flush();
        // The thread in `wait` knows of `before` only.
        if after.is_some() && before.is_none_or(|before| after < Some(before)) {
            self.outlet.waker.wake();
        }
        match next {
            Err(error) if frames.is_empty() => Err(error),
            _ => Ok(frames.len()),
        }
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{self, Faults, Script};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    const MS: Duration = Duration::from_millis(1);

    /// A scripted device with two bad wires, and its time in milliseconds.
    struct Fixture {
        rx: Box<dyn DeviceRx>,
        tx: Box<dyn DeviceTx>,
        script: Script,
        time: Arc<AtomicU64>,
        switches: LinkControls,
    }

    fn impaired(inbound: LinkConfig, outbound: LinkConfig) -> Fixture {
        let (device, script) = memory::scripted();
        let time = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&time);
        let clock: ImpairClock = Arc::new(move || MS * clock.load(Relaxed) as u32);
        let device = Impaired::with_clock(device, inbound, outbound, clock);
        let switches = device.controls();
        let (rx, tx) = Box::new(device).split();
        Fixture {
            rx,
            tx,
            script,
            time,
            switches,
        }
    }

    #[test]
    fn frames_come_and_go_late() {
        let late = LinkConfig::default().delay(MS * 10);
        let Fixture {
            mut rx,
            mut tx,
            script,
            time,
            ..
        } = impaired(late.clone(), late);
        let mut frames = Vec::new();
        script.push(vec![1; 60]);
        assert_eq!(tx.transmit(&[TxFrame::new(&[2; 60])]), Ok(1));
        assert_eq!(rx.claim(8, &mut frames), Ok(0));
        time.store(9, Relaxed);
        assert_eq!(rx.claim(8, &mut frames), Ok(0));
        assert!(script.take_sent().is_empty());
        time.store(10, Relaxed);
        assert_eq!(rx.claim(8, &mut frames), Ok(1));
        assert_eq!(script.take_sent().len(), 1);
    }

    #[test]
    fn a_wait_ends_when_the_next_frame_leaves_or_arrives() {
        let (device, script) = memory::scripted();
        let late = LinkConfig::default().delay(MS * 5);
        let (mut rx, mut tx) = Box::new(Impaired::new(device, LinkConfig::default(), late)).split();
        tx.transmit(&[TxFrame::new(&[2; 60])]).unwrap();
        while script.take_sent().is_empty() {
            rx.wait(None).unwrap();
            rx.claim(8, &mut Vec::new()).unwrap();
        }
    }

    #[test]
    fn a_busy_device_gets_its_frames_later_and_in_order() {
        let Fixture {
            mut rx,
            mut tx,
            script,
            ..
        } = impaired(LinkConfig::default(), LinkConfig::default());
        script.accept_at_most(Some(1));
        let frames: Vec<_> = (1..=3).map(|number| [number; 60]).collect();
        let frames: Vec<_> = frames.iter().map(|bytes| TxFrame::new(bytes)).collect();
        assert_eq!(tx.transmit(&frames), Ok(3));
        assert_eq!(script.take_sent().len(), 1);
        script.accept_at_most(None);
        rx.claim(8, &mut Vec::new()).unwrap();
        let sent: Vec<u8> = script
            .take_sent()
            .iter()
            .map(|(bytes, _)| bytes[0])
            .collect();
        assert_eq!(sent, [2, 3]);
    }

    #[test]
    fn the_switches_count_and_mend() {
        let bad = LinkConfig::default().faults(Faults::new(1).loss(1_000_000));
        let Fixture {
            mut rx,
            mut tx,
            script,
            switches,
            ..
        } = impaired(bad, LinkConfig::default());
        let mut frames = Vec::new();
        script.push(vec![1; 60]);
        assert_eq!(rx.claim(8, &mut frames), Ok(0));
        switches.clear_faults();
        script.push(vec![1; 60]);
        assert_eq!(rx.claim(8, &mut frames), Ok(1));
        tx.transmit(&[TxFrame::new(&[2; 60])]).unwrap();
        let [inbound, outbound] = switches.stats();
        assert_eq!((inbound.faults.lost, inbound.delivered), (1, 1));
        assert_eq!(outbound.delivered, 1);
        assert_eq!(rx.stats().dropped, 1);
    }

    #[test]
    fn a_device_that_is_down_says_so_and_loses_nothing() {
        let Fixture { mut rx, script, .. } = impaired(LinkConfig::default(), LinkConfig::default());
        let down = DeviceError::Down {
            interface: "manual0".to_owned(),
        };
        script.push(vec![1; 60]);
        script.fail_with(Some(down.clone()));
        assert_eq!(rx.claim(8, &mut Vec::new()), Err(down));
        script.fail_with(None);
        assert_eq!(rx.claim(8, &mut Vec::new()), Ok(1));
    }
}
