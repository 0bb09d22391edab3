//! A device whose other end is the test itself.

use super::MemoryConfig;
use crate::prepared::PreparedSlots;
use crate::waker::Event;
use crate::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, ETHERNET_HEADER_LEN, Frame,
    LinkType, RxStats, TxFrame, TxMeta, TxPrepare, TxStats, ip_header,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A device with default settings, and the script that acts as its other end.
///
/// ```
/// use dominoes_drivers::{Device, TxFrame, memory};
///
/// let (device, script) = memory::scripted();
/// let (mut rx, mut tx) = Box::new(device).split();
/// script.push(vec![1; 60]);
/// let mut frames = Vec::new();
/// assert_eq!(rx.claim(8, &mut frames)?, 1);
///
/// script.accept_at_most(Some(1));
/// let bytes = [2; 60];
/// assert_eq!(tx.transmit(&[TxFrame::new(&bytes), TxFrame::new(&bytes)])?, 1);
/// assert_eq!(script.take_sent().len(), 1);
/// # Ok::<(), dominoes_drivers::DeviceError>(())
/// ```
pub fn scripted() -> (ManualDevice, Script) {
    scripted_with(MemoryConfig::default())
}

/// As [`scripted`], with link, MTU, first Ethernet address and offloads from `config`. Queues are
/// unlimited, and buffers are not pooled.
pub fn scripted_with(config: MemoryConfig) -> (ManualDevice, Script) {
    let (mut queues, script) = scripted_queues(config, 1);
    (queues.remove(0), script)
}

/// As [`scripted_with`], for a device with this many queues. The script lets frames arrive in any
/// of them; it takes sent frames, allows sending, and fails for all together.
pub fn scripted_queues(config: MemoryConfig, queues: usize) -> (Vec<ManualDevice>, Script) {
    let shared = Arc::new(ManualShared {
        link: config.link,
        ..ManualShared::default()
    });
    let device = |queue| ManualDevice {
        caps: config.capabilities("manual0"),
        mac: config.mac(0),
        queue,
        shared: Arc::clone(&shared),
    };
    let devices = (0..queues).map(device).collect();
    (devices, Script { shared })
}

/// A device that receives the frames that its [`Script`] pushes, and keeps sent frames until the
/// script takes them.
#[derive(Debug)]
pub struct ManualDevice {
    caps: Capabilities,
    mac: [u8; 6],
    queue: usize,
    shared: Arc<ManualShared>,
}

/// The other end of a [`ManualDevice`]. Clones control the same device.
#[derive(Clone, Debug)]
pub struct Script {
    shared: Arc<ManualShared>,
}

#[derive(Debug, Default)]
struct ManualShared {
    link: LinkType,
    state: Mutex<ManualState>,
    event: Event,
}

#[derive(Debug, Default)]
struct ManualState {
    /// In each queue.
    arriving: Vec<VecDeque<Frame>>,
    sent: Vec<(Vec<u8>, TxMeta)>,
    /// The queue of each of these.
    sent_by: Vec<usize>,
    credit: Option<usize>,
    failure: Option<DeviceError>,
}

impl ManualShared {
    fn state(&self) -> MutexGuard<'_, ManualState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Script {
    /// Lets a frame arrive whose checksum is [`RxChecksum::Verify`](crate::RxChecksum::Verify).
    pub fn push(&self, bytes: Vec<u8>) {
        self.push_frame(Frame::from_bytes(&bytes));
    }

    /// Lets a frame arrive with its own metadata. The header of one on a [`LinkType::Ip`] is
    /// replaced, as if its packet had come alone; what is no packet is lost.
    pub fn push_frame(&self, frame: Frame) {
        self.push_to(0, frame);
    }

    /// As [`push_frame`](Self::push_frame), in this queue.
    pub fn push_to(&self, queue: usize, mut frame: Frame) {
        if self.shared.link == LinkType::Ip {
            let Some((header, packet)) =
                frame.bytes_mut().split_at_mut_checked(ETHERNET_HEADER_LEN)
            else {
                return;
            };
            let Some(added) = ip_header(packet) else {
                return;
            };
            header.copy_from_slice(&added);
        }
        let mut state = self.shared.state();
        let queues = state.arriving.len().max(queue + 1);
        state.arriving.resize_with(queues, VecDeque::new);
        state.arriving[queue].push_back(frame);
        drop(state);
        self.shared.event.notify();
    }

    /// Takes all frames sent since the last call, in order.
    pub fn take_sent(&self) -> Vec<(Vec<u8>, TxMeta)> {
        let mut state = self.shared.state();
        state.sent_by.clear();
        std::mem::take(&mut state.sent)
    }

    /// The queue of each frame that [`take_sent`](Self::take_sent) would return.
    pub fn sent_by(&self) -> Vec<usize> {
        self.shared.state().sent_by.clone()
    }

    /// Lets the device take `frames` more frames and then be busy until the next call. `None`, the
    /// initial setting: no limit.
    pub fn accept_at_most(&self, frames: Option<usize>) {
        self.shared.state().credit = frames;
    }

    /// Makes every call of the device fail with `error`. `None` ends that. Frames wait meanwhile.
    pub fn fail_with(&self, error: Option<DeviceError>) {
        self.shared.state().failure = error;
        self.shared.event.notify();
    }

    /// Number of frames pushed and not yet claimed.
    pub fn unclaimed(&self) -> usize {
        self.shared.state().arriving.iter().map(VecDeque::len).sum()
    }
}

impl Device for ManualDevice {
    fn capabilities(&self) -> Capabilities {
        self.caps.clone()
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        let rx = ManualRx {
            queue: self.queue,
            shared: Arc::clone(&self.shared),
            stats: RxStats::default(),
        };
        let tx = ManualTx {
            queue: self.queue,
            caps: self.caps,
            shared: self.shared,
            prepared: None,
            stats: TxStats::default(),
        };
        (Box::new(rx), Box::new(tx))
    }
}

struct ManualRx {
    queue: usize,
    shared: Arc<ManualShared>,
    stats: RxStats,
}

impl DeviceRx for ManualRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let mut state = self.shared.state();
        if let Some(error) = &state.failure {
            return Err(error.clone());
        }
        let Some(arriving) = state.arriving.get_mut(self.queue) else {
            return Ok(0);
        };
        let claimed = max.min(arriving.len());
        for frame in arriving.drain(..claimed) {
            self.stats.bytes += frame.len() as u64;
            out.push(frame);
        }
        self.stats.frames += claimed as u64;
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        frames.clear();
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        self.shared.event.wait(timeout, || {
            let state = self.shared.state();
            let has_frames = |queue: &VecDeque<Frame>| !queue.is_empty();
            let found = state.arriving.get(self.queue).is_some_and(has_frames);
            state.failure.is_some() || found
        });
        self.shared.state().failure.clone().map_or(Ok(()), Err)
    }

    fn waker(&self) -> DeviceWaker {
        let shared = Arc::clone(&self.shared);
        DeviceWaker::new(move || shared.event.wake())
    }

    fn stats(&self) -> RxStats {
        RxStats {
            wakes: self.shared.event.wakes(),
            ..self.stats
        }
    }
}

struct ManualTx {
    queue: usize,
    caps: Capabilities,
    shared: Arc<ManualShared>,
    prepared: Option<Arc<ManualPrepared>>,
    stats: TxStats,
}

/// Copies of frames, made in advance.
struct ManualPrepared(PreparedSlots<(Vec<u8>, TxMeta)>);

impl TxPrepare for ManualPrepared {
    fn prepare(&self, first: usize, frames: &[TxFrame<'_>]) {
        for (slot, frame) in (first..).zip(frames) {
            self.0.put(slot, copy(frame));
        }
    }
}

fn copy(frame: &TxFrame<'_>) -> (Vec<u8>, TxMeta) {
    ([frame.head, frame.payload].concat(), frame.meta)
}

impl ManualTx {
    /// Sends up to `count` frames, as long as there is credit.
    fn send(
        &mut self,
        count: usize,
        frame: impl Fn(usize) -> Option<(Vec<u8>, TxMeta)>,
    ) -> Result<usize, DeviceError> {
        let mut state = self.shared.state();
        if let Some(error) = &state.failure {
            return Err(error.clone());
        }
        for taken in 0..count {
            if state.credit == Some(0) {
                self.stats.busy += 1;
                return Ok(taken);
            }
            let frame = frame(taken).filter(|(bytes, meta)| {
                let (head, payload, meta) = (&bytes[..], &[][..], *meta);
                self.caps.admits(&TxFrame {
                    head,
                    payload,
                    meta,
                })
            });
            let Some((bytes, meta)) = frame else {
                self.stats.dropped += 1;
                continue;
            };
            state.credit = state.credit.map(|credit| credit - 1);
            self.stats.frames += 1;
            self.stats.bytes += bytes.len() as u64;
            state.sent.push((bytes, meta));
            state.sent_by.push(self.queue);
        }
        Ok(count)
    }
}

impl DeviceTx for ManualTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        self.send(frames.len(), |i| Some(copy(&frames[i])))
    }

    fn preparer(&mut self, slots: usize) -> Option<Arc<dyn TxPrepare>> {
        let prepared = Arc::new(ManualPrepared(PreparedSlots::new(slots)));
        self.prepared = Some(Arc::clone(&prepared));
        Some(prepared)
    }

    fn transmit_prepared(&mut self, first: usize, count: usize) -> Result<usize, DeviceError> {
        let Some(prepared) = self.prepared.clone() else {
            return Ok(0);
        };
        self.send(count, |i| prepared.0.take(first + i))
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_used_up_and_then_the_device_is_busy() {
        let (device, script) = scripted();
        let (_, mut tx) = Box::new(device).split();
        let bytes = [0; 60];
        script.accept_at_most(Some(3));
        assert_eq!(tx.transmit(&[TxFrame::new(&bytes); 2]), Ok(2));
        assert_eq!(tx.transmit(&[TxFrame::new(&bytes); 2]), Ok(1));
        assert_eq!(tx.transmit(&[TxFrame::new(&bytes); 2]), Ok(0));
        script.accept_at_most(None);
        assert_eq!(tx.transmit(&[TxFrame::new(&bytes); 2]), Ok(2));
        assert_eq!(script.take_sent().len(), 5);
        assert_eq!(tx.stats().busy, 2);
    }

    #[test]
    fn a_failure_ends_a_wait_and_frames_survive_it() {
        let (device, script) = scripted();
        let (mut rx, mut tx) = Box::new(device).split();
        let down = DeviceError::Down {
            interface: "manual0".to_owned(),
        };
        script.push(vec![1; 60]);
        script.fail_with(Some(down.clone()));
        assert_eq!(rx.wait(None), Err(down.clone()));
        assert_eq!(tx.transmit(&[]), Err(down));
        script.fail_with(None);
        assert_eq!(rx.claim(1, &mut Vec::new()), Ok(1));
        assert_eq!(script.unclaimed(), 0);
    }
}
