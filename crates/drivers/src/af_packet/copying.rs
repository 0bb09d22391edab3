//! Receiving with one system call per frame, which copies the frame into a buffer.

use super::insert_vlan_tag;
use crate::fd_event::FdEvent;
use crate::link::{Link, Reporter};
use crate::pool::Pool;
use crate::vnet::{HEADER_LEN, VnetHeader};
use crate::{
    DeviceError, DeviceRx, DeviceWaker, ETHERNET_HEADER_LEN, Frame, RxStats, VLAN_TAG_LEN, sys,
};
use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// The receiving half of an [`AfPacket`](super::AfPacket) without a mapped ring.
#[derive(Debug)]
pub(super) struct CopyingRx {
    reporter: Reporter,
    event: FdEvent,
    pool: Pool,
    stats: RxStats,
    /// Sum of the kernel's count of drops, which restarts at 0 each time it is read.
    kernel_drops: Cell<u64>,
}

impl CopyingRx {
    pub(super) fn new(link: Arc<Link>, event: FdEvent, pool: Pool) -> Self {
        Self {
            reporter: Reporter::new(link),
            event,
            pool,
            stats: RxStats::default(),
            kernel_drops: Cell::new(0),
        }
    }
}

impl DeviceRx for CopyingRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        self.reporter.check()?;
        let mut claimed = 0;
        // Dropped frames count as well, so that a flood of them cannot keep the loop running.
        for _ in 0..max {
            let mut header = [0; HEADER_LEN];
            let mut buffer = self.pool.take();
            // Leaves room for a VLAN tag before the frame.
            let result = sys::receive_frame(
                self.reporter.link().fd(),
                &mut header,
                &mut buffer[VLAN_TAG_LEN..],
            );
            let received = match result {
                Ok(received) => received,
                Err(error) => {
                    self.pool.put(buffer);
                    match error.raw_os_error() {
                        Some(libc::EINTR) => continue,
                        Some(libc::EAGAIN) => break,
                        // The kernel dropped this frame because a virtio header cannot express it.
                        Some(libc::EINVAL) => {
                            self.stats.truncated += 1;
                            continue;
                        }
                        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                            self.reporter.link().report_error();
                            if claimed == 0 {
                                self.reporter.check_state()?;
                            }
                            break;
                        }
                        // The kernel has no memory at the moment.
                        _ => break,
                    }
                }
            };
            let Some(frame) = frame(&mut self.pool, buffer, &header, &received) else {
                self.stats.truncated += 1;
                continue;
            };
            self.stats.bytes += frame.len() as u64;
            out.push(frame);
            claimed += 1;
        }
        self.stats.frames += claimed as u64;
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        self.pool.release(frames);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        let timeout = self.reporter.bound(timeout)?;
        let link = self.reporter.link();
        match self.event.wait(link.fd(), timeout) {
            Ok(false) => Ok(()),
            Ok(true) => self.reporter.fetch_error(),
            Err(error) => Err(DeviceError::system("wait", &link.name, &error)),
        }
    }

    fn waker(&self) -> DeviceWaker {
        self.event.waker()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.reporter.link().fd()]
    }

    fn stats(&self) -> RxStats {
        let new = sys::packet_drops(self.reporter.link().fd()).unwrap_or(0);
        self.kernel_drops.set(self.kernel_drops.get() + new);
        RxStats {
            dropped: self.kernel_drops.get(),
            pool_exhausted: self.pool.exhausted(),
            wakes: self.event.wakes(),
            ..self.stats
        }
    }
}

/// The frame in a buffer that was filled after room for a VLAN tag. `None` if the frame was cut or
/// is malformed.
#[inline]
pub(super) fn frame(
    pool: &mut Pool,
    mut buffer: Box<[u8]>,
    header: &[u8; HEADER_LEN],
    received: &sys::Received,
) -> Option<Frame> {
    let fits = (ETHERNET_HEADER_LEN..=buffer.len() - VLAN_TAG_LEN).contains(&received.len);
    let (Ok(meta), true) = (VnetHeader::from_bytes(header).rx_meta(), fits) else {
        pool.put(buffer);
        return None;
    };
    Some(match received.vlan {
        None => Frame::from_buffer(buffer, VLAN_TAG_LEN as u16, received.len, meta),
        Some((protocol, control)) => {
            let meta = insert_vlan_tag(&mut buffer, protocol, control, meta);
            Frame::from_buffer(buffer, 0, received.len + VLAN_TAG_LEN, meta)
        }
    })
}
