//! The receiving half: chunks go to the kernel through the fill ring and come back, filled with
//! frames, through the receive ring.

use super::filter::AttachedFilter;
use crate::fd_event::{FdEvent, is_other_ready};
use crate::link::{Link, Reporter};
use crate::umem::{Lent, Region};
use crate::xsk_ring::{Consumer, Producer, XskDescriptor};
use crate::{
    DeviceError, DeviceRx, DeviceWaker, ETHERNET_HEADER_LEN, Frame, RxChecksum, RxMeta, RxStats,
    sys,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a wait without frames checks that the link is up; an AF_XDP socket does not report it.
const LINK_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The receiving half of an [`AfXdp`](super::AfXdp).
#[derive(Debug)]
pub(super) struct XdpRx {
    reporter: Reporter,
    event: FdEvent,
    /// An edge-triggered epoll descriptor: it reports each arrival once, whereas the socket itself
    /// stays readable until its frames are taken.
    edge: OwnedFd,
    region: Arc<Region>,
    /// Number of this socket in the region.
    queue: usize,
    /// Number of receive chunks of this socket.
    chunks: usize,
    fill: Producer<u64>,
    ring: Consumer<XskDescriptor>,
    /// The pieces of a frame whose last piece has not arrived.
    pieces: Vec<(Lent, usize)>,
    /// The metadata of all frames.
    meta: RxMeta,
    checked_at: Instant,
    stats: RxStats,
    _attached: Arc<AttachedFilter>,
}

impl XdpRx {
    pub(super) fn new(
        link: Arc<Link>,
        event: FdEvent,
        region: Arc<Region>,
        queue: usize,
        (fill, ring): (Producer<u64>, Consumer<XskDescriptor>),
        attached: Arc<AttachedFilter>,
        trust_checksums: bool,
    ) -> io::Result<Self> {
        let edge = sys::epoll()?;
        sys::epoll_watch(edge.as_fd(), link.fd(), true)?;
        let checksum = if trust_checksums {
            RxChecksum::Valid
        } else {
            RxChecksum::Verify
        };
        let mut rx = Self {
            reporter: Reporter::new(link),
            event,
            edge,
            chunks: region.free(queue),
            region,
            queue,
            fill,
            ring,
            pieces: Vec::new(),
            meta: RxMeta {
                checksum,
                gso: None,
            },
            checked_at: Instant::now(),
            stats: RxStats::default(),
            _attached: attached,
        };
        rx.refill();
        Ok(rx)
    }

    pub(super) fn link(&self) -> &Link {
        self.reporter.link()
    }

    /// See [`BareXdp::receive`](crate::bare::BareXdp::receive).
    #[cfg(feature = "bare")]
    pub(crate) fn bare_receive(&mut self, max: usize) -> (usize, u64) {
        let (mut received, mut sum) = (0, 0u64);
        while received < max {
            let Some(found) = self.ring.pop() else { break };
            sum = sum.wrapping_add(self.region.bare_head(found.at));
            let chunk = found.at - found.at % self.region.unit_len() as u64;
            self.fill.push(chunk);
            received += 1;
        }
        self.ring.release();
        if self.fill.publish() && self.fill.needs_wakeup() {
            sys::xsk_kick_fill(self.link().fd());
        }
        (received, sum)
    }

    /// Gives all free chunks to the kernel.
    #[inline]
    fn refill(&mut self) {
        while self.fill.room(1) > 0 {
            let Some(unit) = self.region.take_free(self.queue) else {
                break;
            };
            self.fill
                .push(u64::from(unit) * self.region.unit_len() as u64);
        }
        if self.fill.publish() && self.fill.needs_wakeup() {
            sys::xsk_kick_fill(self.link().fd());
        }
    }

    /// Whether frames must be copied out, because the kernel has less than a quarter of the chunks.
    #[inline]
    fn is_behind(&mut self) -> bool {
        let with_kernel = self.fill.pending() as usize + self.region.free(self.queue);
        with_kernel < self.chunks / 4
    }

    /// The frame that ends with this descriptor. `None` if more pieces follow, or it is too short.
    #[inline]
    fn frame(&mut self, found: XskDescriptor, behind: bool) -> Option<Frame> {
        let lent = self.region.lend_chunk(found.at as u32);
        let len = found.len as usize;
        if found.options & libc::XDP_PKT_CONTD != 0 || !self.pieces.is_empty() {
            self.pieces.push((lent, len));
            if found.options & libc::XDP_PKT_CONTD != 0 {
                return None;
            }
            // A frame is one slice, so its pieces are joined by a copy, which frees their chunks.
            let parts = self.pieces.iter().map(|(lent, len)| lent.bytes(0, *len));
            let bytes = parts.collect::<Vec<_>>().concat().into_boxed_slice();
            self.pieces.clear();
            self.stats.copied += 1;
            let len = bytes.len();
            return Some(Frame::from_buffer(bytes, 0, len, self.meta));
        }
        if len < ETHERNET_HEADER_LEN {
            self.stats.truncated += 1;
            return None;
        }
        let mut frame = Frame::from_lent(lent, 0, found.len, self.meta);
        if behind {
            frame.copy_out();
            self.stats.copied += 1;
        }
        Some(frame)
    }
}

impl DeviceRx for XdpRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        self.reporter.check()?;
        self.refill();
        let mut claimed = 0;
        let behind = self.is_behind();
        for _ in 0..max {
            let Some(found) = self.ring.pop() else { break };
            if let Some(frame) = self.frame(found, behind) {
                self.stats.bytes += frame.len() as u64;
                out.push(frame);
                claimed += 1;
            }
        }
        self.ring.release();
        self.stats.frames += claimed as u64;
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        frames.clear();
        self.refill();
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        self.reporter.check()?;
        self.refill();
        if self.ring.is_ready() {
            // Frames end the wait, but a waker may have been used as well, and must be counted.
            let waited = self.event.wait(self.edge.as_fd(), Some(Duration::ZERO));
            return waited
                .map_err(|error| DeviceError::system("wait", &self.link().name, &error))
                .map(drop);
        }
        let begin = Instant::now();
        let wakes = self.event.wakes();
        loop {
            if self.checked_at.elapsed() >= LINK_CHECK_INTERVAL {
                self.reporter.check_state()?;
                self.checked_at = Instant::now();
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
            let step = left.map_or(LINK_CHECK_INTERVAL, |left| left.min(LINK_CHECK_INTERVAL));
            let waited = self.event.wait(self.edge.as_fd(), Some(step));
            waited.map_err(|error| DeviceError::system("wait", &self.link().name, &error))?;
            if sys::epoll_take(self.edge.as_fd()) {
                return self.reporter.fetch_error();
            }
            let over = left.is_some_and(|left| left <= step) || is_other_ready();
            if self.ring.is_ready() || self.event.wakes() > wakes || over {
                return Ok(());
            }
        }
    }

    fn waker(&self) -> DeviceWaker {
        self.event.waker()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.reporter.link().fd()]
    }

    fn stats(&self) -> RxStats {
        let counts = sys::xsk_statistics(self.reporter.link().fd()).unwrap_or_default();
        let [dropped, _, _, ring_full, fill_empty, _] = counts;
        RxStats {
            dropped: dropped + ring_full,
            starved: fill_empty,
            wakes: self.event.wakes(),
            ..self.stats
        }
    }
}
