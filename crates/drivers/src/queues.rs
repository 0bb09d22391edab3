//! A list of the queues of one interface is a device, too.
//!
//! `open_queues` of [`Tap`](crate::tap::Tap), [`Tun`](crate::tun::Tun),
//! [`AfPacket`](crate::af_packet::AfPacket) and [`AfXdp`](crate::af_xdp::AfXdp) return such lists.
//!
//! - [`Device::split_queues`] returns the halves of each queue, so that as many threads receive at
//!   once. [`Device::split`] returns halves that serve all queues: it claims from them in turn.
//! - Each received frame names its queue, and is released to it.
//! - A frame leaves by the queue that a hash of its addresses and ports selects, so the frames of
//!   a flow stay in order. The hash does not depend on the direction, so two lists of joined
//!   devices use one queue for both.

#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::{
    AddressFilter, Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, Frame,
    RxStats, TxFrame, TxStats, checked,
};
#[cfg(target_os = "linux")]
use crate::{fd_event, sys};

/// Longest sleep in one of several queues that have no descriptors.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The queues of one interface, as `open_queues` returns them; at most 256. All have the features
/// and the address of the first.
///
/// ```
/// use dominoes_drivers::memory::{self, MemoryConfig};
/// use dominoes_drivers::{Device, TxFrame};
///
/// let pairs = (0..3).map(|_| memory::pair(MemoryConfig::default()));
/// let (left, right): (Vec<_>, Vec<_>) = pairs.unzip();
/// let (_, mut tx) = Box::new(left).split();
/// let (mut rx, _) = Box::new(right).split();
/// tx.transmit(&[TxFrame::new(&[7; 60])])?;
/// assert_eq!(rx.claim(32, &mut Vec::new())?, 1);
/// # Ok::<(), dominoes_drivers::DeviceError>(())
/// ```
///
/// # Panics
/// Every call but [`queues`](Device::queues), if the list is empty.
impl<D: Device> Device for Vec<D> {
    fn capabilities(&self) -> Capabilities {
        self[0].capabilities()
    }

    fn mac(&self) -> [u8; 6] {
        self[0].mac()
    }

    fn address_filter(&self) -> Option<Arc<dyn AddressFilter>> {
        self[0].address_filter()
    }

    fn check_address(&self, address: std::net::IpAddr) -> Result<(), DeviceError> {
        self[0].check_address(address)
    }

    fn queues(&self) -> usize {
        self.iter().map(Device::queues).sum()
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        let (mut rx, tx): (Vec<_>, Vec<_>) = self.split_queues().into_iter().unzip();
        let rx = match rx.len() {
            1 => rx.remove(0),
            _ => Box::new(QueuesRx {
                wait: QueueWait::new(rx.iter().map(|queue| &**queue)),
                queues: rx,
                next: 0,
                own: Vec::new(),
            }),
        };
        (rx, join_tx(tx))
    }

    fn split_queues(self: Box<Self>) -> Vec<(Box<dyn DeviceRx>, Box<dyn DeviceTx>)> {
        let queues = self.into_iter();
        let queues = queues.flat_map(|device| Box::new(device).split_queues());
        queues.collect()
    }
}

/// Makes frames name the queue that they were claimed from.
pub fn mark(frames: &mut [Frame], queue: usize) {
    for frame in frames {
        frame.queue = queue as u8;
    }
}

/// Releases the `frames` that were claimed from this queue. `own` is empty between two calls.
pub fn release(rx: &mut dyn DeviceRx, queue: usize, frames: &mut Vec<Frame>, own: &mut Vec<Frame>) {
    own.extend(frames.extract_if(.., |frame| usize::from(frame.queue) == queue));
    if !own.is_empty() {
        checked::release(rx, own);
    }
}

/// The receiving half of all queues.
struct QueuesRx {
    queues: Vec<Box<dyn DeviceRx>>,
    wait: QueueWait,
    /// The queue from which the next call claims first.
    next: usize,
    /// Frames that go to one queue; empty between two calls.
    own: Vec<Frame>,
}

impl DeviceRx for QueuesRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let (mut claimed, mut failed) = (0, Ok(()));
        for _ in 0..self.queues.len() {
            let (queue, from) = (self.next, out.len());
            self.next = (queue + 1) % self.queues.len();
            match checked::claim(&mut *self.queues[queue], max - claimed, out) {
                Ok(found) => claimed += found,
                Err(error) => failed = Err(error),
            }
            mark(&mut out[from..], queue);
            if claimed == max {
                break;
            }
        }
        match failed {
            Err(error) if claimed == 0 => Err(error),
            _ => Ok(claimed),
        }
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        for (number, queue) in self.queues.iter_mut().enumerate() {
            release(&mut **queue, number, frames, &mut self.own);
        }
        frames.clear();
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        if self.wait.wait(&mut *self.queues[0], timeout)? {
            for queue in &mut self.queues[1..] {
                queue.wait(Some(Duration::ZERO))?;
            }
        }
        Ok(())
    }

    fn waker(&self) -> DeviceWaker {
        self.queues[0].waker()
    }

    fn stats(&self) -> RxStats {
        let all = self.queues.iter().map(|queue| queue.stats());
        all.fold(RxStats::default(), |sum, one| RxStats {
            frames: sum.frames + one.frames,
            bytes: sum.bytes + one.bytes,
            dropped: sum.dropped + one.dropped,
            truncated: sum.truncated + one.truncated,
            copied: sum.copied + one.copied,
            starved: sum.starved + one.starved,
            copied_out: sum.copied_out + one.copied_out,
            pool_exhausted: sum.pool_exhausted + one.pool_exhausted,
            wakes: sum.wakes + one.wakes,
        })
    }
}

/// One sending half for the sending halves of all queues, of which there is at least one.
pub fn join_tx(mut queues: Vec<Box<dyn DeviceTx>>) -> Box<dyn DeviceTx> {
    match queues.len() {
        1 => queues.remove(0),
        _ => Box::new(QueuesTx { queues }),
    }
}

struct QueuesTx {
    queues: Vec<Box<dyn DeviceTx>>,
}

impl QueuesTx {
    fn queue_of(&self, frame: &TxFrame<'_>) -> usize {
        flow(frame.head) as usize % self.queues.len()
    }
}

impl DeviceTx for QueuesTx {
    /// Frames leave in order, so a queue that is busy delays the frames for the others.
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        let mut taken = 0;
        while let Some((first, more)) = frames[taken..].split_first() {
            let queue = self.queue_of(first);
            let same = more.iter().take_while(|next| self.queue_of(next) == queue);
            let end = taken + 1 + same.count();
            let offered = &frames[taken..end];
            match checked::transmit(&mut *self.queues[queue], offered) {
                Err(error) if taken == 0 => return Err(error),
                // The next call reports it.
                Err(_) => break,
                Ok(now) => taken += now,
            }
            // The queue is busy.
            if taken < end {
                break;
            }
        }
        Ok(taken)
    }

    fn stats(&self) -> TxStats {
        let all = self.queues.iter().map(|queue| queue.stats());
        all.fold(TxStats::default(), |sum, one| TxStats {
            frames: sum.frames + one.frames,
            bytes: sum.bytes + one.bytes,
            dropped: sum.dropped + one.dropped,
            busy: sum.busy + one.busy,
        })
    }
}

/// A number of the frame's flow, in either direction; 0 for frames that are not IP.
/// Fragments have no ports, since only the first one contains them.
fn flow(head: &[u8]) -> u32 {
    const PORTS: [u8; 2] = [6, 17];
    let byte = |at: usize| head.get(at).copied().unwrap_or(0);
    let (addresses, ports) = match [byte(12), byte(13)] {
        [8, 0] => {
            let is_whole = byte(20) & 0x3f | byte(21) == 0;
            let has_ports = is_whole && PORTS.contains(&byte(23));
            let end = 14 + 4 * usize::from(byte(14) & 15);
            (26..34, has_ports.then_some(end))
        }
        [0x86, 0xdd] => (22..54, PORTS.contains(&byte(20)).then_some(54)),
        _ => return 0,
    };
    let ports = ports.map_or(0..0, |at| at..at + 4);
    let words = [addresses, ports].map(|range| head.get(range).unwrap_or_default());
    let words = words.into_iter().flat_map(|bytes| bytes.chunks_exact(2));
    let sum = words.fold(0, |sum, word| sum ^ u16::from_be_bytes([word[0], word[1]]));
    // Neighbouring ports go to different queues.
    u32::from(sum).wrapping_mul(0x9e37_79b1) >> 16
}

/// Sleeps in all queues of an interface at once.
pub struct QueueWait {
    /// The descriptors of all queues but the first; `None` if a queue has none.
    #[cfg(target_os = "linux")]
    others: Option<OwnedFd>,
}

impl QueueWait {
    /// For these queues. The first is the one to be given to [`wait`](Self::wait).
    pub fn new<'a>(queues: impl IntoIterator<Item = &'a dyn DeviceRx>) -> Self {
        #[cfg(not(target_os = "linux"))]
        let _ = queues;
        QueueWait {
            #[cfg(target_os = "linux")]
            others: Self::watch(queues),
        }
    }

    #[cfg(target_os = "linux")]
    fn watch<'a>(queues: impl IntoIterator<Item = &'a dyn DeviceRx>) -> Option<OwnedFd> {
        let others = sys::epoll().ok()?;
        for (number, queue) in queues.into_iter().enumerate() {
            let descriptors = queue.descriptors();
            if descriptors.is_empty() {
                return None;
            }
            for descriptor in descriptors.iter().filter(|_| number > 0) {
                sys::epoll_watch(others.as_fd(), *descriptor, false).ok()?;
            }
        }
        Some(others)
    }

    /// As [`DeviceRx::wait`] of the `first` queue, but a frame in any queue ends it. Returns
    /// whether another queue has a frame or an error. A wait in that queue returns the error.
    ///
    /// # Errors
    /// The first queue is down or gone.
    pub fn wait(
        &self,
        first: &mut dyn DeviceRx,
        timeout: Option<Duration>,
    ) -> Result<bool, DeviceError> {
        #[cfg(target_os = "linux")]
        if let Some(others) = &self.others {
            return fd_event::wait_for_queues(others.as_fd(), || first.wait(timeout));
        }
        first.wait(Some(
            timeout.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN)),
        ))?;
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{self, MemoryConfig};

    /// A frame of TCP from `src` to `dst`, hosts and ports.
    fn segment(src: (u8, u16), dst: (u8, u16)) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12] = 8;
        (frame[14], frame[23], frame[29], frame[33]) = (0x45, 6, src.0, dst.0);
        frame[34..36].copy_from_slice(&src.1.to_be_bytes());
        frame[36..38].copy_from_slice(&dst.1.to_be_bytes());
        frame
    }

    #[test]
    fn a_flow_has_one_queue_for_both_directions_and_flows_are_spread() {
        let mut flows = [0; 3];
        for port in 50_000..50_300 {
            let there = flow(&segment((1, port), (2, 80)));
            assert_eq!(there, flow(&segment((2, 80), (1, port))));
            flows[there as usize % 3] += 1;
        }
        assert!(flows.iter().all(|count| *count > 70), "{flows:?}");
        let fragment = |port, offset| {
            let mut frame = segment((1, port), (2, 80));
            (frame[20], frame[21]) = (0x20, offset);
            flow(&frame)
        };
        assert_eq!(fragment(1, 0), fragment(2, 5));
        assert_eq!(flow(&[0; 14]), 0);
        assert_eq!(flow(&segment((1, 5), (2, 80))[..20]), 0);
    }

    #[test]
    fn frames_of_a_flow_leave_in_order_and_a_busy_queue_ends_a_call() {
        let (queues, script) = memory::scripted_queues(MemoryConfig::default(), 2);
        let (_, mut tx) = Box::new(queues).split();
        let all: Vec<_> = (0..20).map(|port| segment((1, port), (2, 80))).collect();
        let frames: Vec<_> = all.iter().map(|frame| TxFrame::new(frame)).collect();
        script.accept_at_most(Some(7));
        assert_eq!(tx.transmit(&frames), Ok(7));
        script.accept_at_most(None);
        assert_eq!(tx.transmit(&frames[7..]), Ok(13));
        let by = script.sent_by();
        assert!(
            by.iter()
                .zip(&all)
                .all(|(queue, frame)| *queue == flow(frame) as usize % 2)
        );
        assert!(by.contains(&0) && by.contains(&1));
        let sent: Vec<_> = script
            .take_sent()
            .into_iter()
            .map(|(frame, _)| frame)
            .collect();
        assert_eq!(sent, all);
        assert_eq!((tx.stats().frames, tx.stats().busy), (20, 1));
    }

    #[test]
    fn queues_take_turns_and_a_frame_goes_back_to_its_own() {
        let pairs = (0..3).map(|_| memory::pair(MemoryConfig::default().rx_pool(4)));
        let (left, right): (Vec<_>, Vec<_>) = pairs.unzip();
        let mut tx: Vec<_> = Box::new(left)
            .split_queues()
            .into_iter()
            .unzip::<_, _, Vec<_>, _>()
            .1;
        let (mut rx, _) = Box::new(right).split();
        let mut turns = Vec::new();
        for round in 0..50 {
            for (queue, tx) in tx.iter_mut().enumerate() {
                let frame = [queue as u8 + 1; 60];
                // The middle queue has more.
                let count = if queue == 1 { 4 } else { 1 };
                for _ in 0..count {
                    assert_eq!(tx.transmit(&[TxFrame::new(&frame)]), Ok(1));
                }
            }
            let mut frames = Vec::new();
            while rx.claim(2, &mut frames).unwrap() > 0 {}
            turns.extend(frames.iter().map(|frame| frame.bytes()[0]));
            assert_eq!(frames.len(), 6, "round {round}");
            frames.rotate_left(round % 6);
            rx.release(&mut frames);
        }
        assert_eq!(rx.stats().frames, 300);
        assert_eq!(
            rx.stats().pool_exhausted,
            0,
            "no queue lost a buffer to another"
        );
        assert_ne!(
            turns[..6],
            [1, 2, 2, 2, 2, 3],
            "a full queue does not keep its turn"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_frame_in_any_queue_ends_the_wait_and_is_not_missed_before_it() {
        use crate::tun::Tun;
        use std::os::unix::net::UnixDatagram;
        use std::time::Instant;

        for queue in 0..3 {
            let pairs = [(); 3].map(|()| UnixDatagram::pair().unwrap());
            let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let open = |fd: UnixDatagram| Tun::from_fd(fd.into(), &Tun::options()).unwrap();
            let queues: Vec<_> = ours.into_iter().map(open).collect();
            let (mut rx, _tx) = Box::new(queues).split();
            let mut packet = [0; 60];
            packet[0] = 0x45;
            let claim = |rx: &mut Box<dyn DeviceRx>| rx.claim(8, &mut Vec::new()).unwrap();
            for _ in 0..3 {
                assert_eq!(claim(&mut rx), 0);
                theirs[queue].send(&packet).unwrap();
                rx.wait(None).unwrap();
                assert_eq!(claim(&mut rx), 1);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        std::thread::sleep(Duration::from_millis(5));
                        theirs[queue].send(&packet).unwrap();
                    });
                    // A wait may end early.
                    while claim(&mut rx) == 0 {
                        rx.wait(None).unwrap();
                    }
                });
                let waker = rx.waker();
                waker.wake();
                rx.wait(None).unwrap();
                let begin = Instant::now();
                rx.wait(Some(Duration::from_millis(5))).unwrap();
                rx.wait(Some(Duration::from_millis(5))).unwrap();
                assert!(
                    begin.elapsed() >= Duration::from_millis(4),
                    "it does not spin"
                );
            }
        }
    }
}
