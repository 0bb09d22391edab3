//! Receiving in place, from a ring that the kernel fills and this process has mapped.
//!
//! Frames stay where the kernel put them, and every thread reads them there. A unit of the ring is
//! a slot of TPACKET_V2 or a block of TPACKET_V3. It goes back to the kernel when all its frames
//! have been released or dropped. Units go back in order, because the kernel fills the ring in
//! order and stops at the first unit that it does not have. So one frame that is kept for long
//! would stop the ring. Two limits prevent that:
//!
//! 1. When more than half of the ring is out, new frames are copied, so their units go back at
//!    once.
//! 2. When more than three quarters are out, the units of the oldest frames are copied out: their
//!    readers then read the copy without noticing (see [`PacketMemory::detach`]), and the unit
//!    goes back.
//!
//! The kernel stores a frame that is longer than a slot in the socket's queue as well; it is
//! copied from there when its slot's turn comes.
//!
//! [`RxStats::copied`] and [`RxStats::copied_out`] count these cases.

mod pair;

use super::{copying, insert_vlan_tag};
use crate::fd_event::FdEvent;
use crate::link::{Link, Reporter};
use crate::pool::Pool;
use crate::umem::PacketMemory;
use crate::vnet::{HEADER_LEN, VnetHeader};
use crate::{
    DeviceError, DeviceRx, DeviceWaker, ETHERNET_HEADER_LEN, Frame, RxMeta, RxStats, VLAN_TAG_LEN,
    sys,
};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

pub(super) use pair::RingPair;

/// The receiving half of an [`AfPacket`](super::AfPacket) with a mapped ring.
#[derive(Debug)]
pub(super) struct RingRx {
    /// Dropped before the link, which then closes the socket at last.
    memory: PacketMemory,
    reporter: Reporter,
    event: FdEvent,
    /// An epoll descriptor that watches the socket while a unit is out, because the socket itself
    /// is readable all that time; the epoll reports each frame once. At other times it watches
    /// nothing, because watching costs a callback for every frame.
    edge: OwnedFd,
    /// Buffers for frames that do not fit a slot.
    pool: Pool,
    blocks: bool,
    /// Units taken from the kernel and units given back, since the start.
    taken: u64,
    returned: u64,
    /// The block whose frames are being claimed; the last one taken.
    block: Option<RingBlock>,
    /// The value of `taken` at which detached units may be restored next. Restoring is slow.
    reuse_at: u64,
    stats: RxStats,
    /// Sum of the kernel's count of drops, which restarts at 0 each time it is read.
    kernel_drops: Cell<u64>,
}

/// A TPACKET_V3 block with unclaimed frames.
#[derive(Clone, Copy, Debug)]
struct RingBlock {
    unit: u32,
    /// Offset of the next frame's header, in bytes from the start of the block.
    next: usize,
    left: u32,
}

/// A frame in the ring.
struct RingFound {
    unit: u32,
    /// Offset of its header, in bytes from the start of the unit.
    within: usize,
    header: RingHeader,
}

/// The fields that `tpacket2_hdr` and `tpacket3_hdr` have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingHeader {
    status: u32,
    len: u32,
    /// Number of its bytes in the ring.
    snaplen: u32,
    /// Offset of the Ethernet header, in bytes from the start of this header.
    mac: u16,
    vlan_control: u16,
    vlan_protocol: u16,
    /// TPACKET_V3: offset of the next header, in bytes from the start of this one.
    next: u32,
}

impl RingHeader {
    const V2_LEN: usize = 28;
    const V3_LEN: usize = 40;

    fn v2(bytes: &[u8; Self::V2_LEN]) -> Self {
        Self {
            status: word(bytes, 0),
            len: word(bytes, 4),
            snaplen: word(bytes, 8),
            mac: half(bytes, 12),
            vlan_control: half(bytes, 24),
            vlan_protocol: half(bytes, 26),
            next: 0,
        }
    }

    fn v3(bytes: &[u8; Self::V3_LEN]) -> Self {
        Self {
            status: word(bytes, 20),
            len: word(bytes, 16),
            snaplen: word(bytes, 12),
            mac: half(bytes, 24),
            vlan_control: word(bytes, 32) as u16,
            vlan_protocol: half(bytes, 36),
            next: word(bytes, 0),
        }
    }

    /// The VLAN tag that the kernel removed: protocol and control information.
    fn vlan(&self) -> Option<(u16, u16)> {
        if self.status & libc::TP_STATUS_VLAN_VALID == 0 {
            return None;
        }
        let protocol = if self.status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
            self.vlan_protocol
        } else {
            libc::ETH_P_8021Q as u16
        };
        Some((protocol, self.vlan_control))
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

impl RingRx {
    pub(super) fn new(
        link: Arc<Link>,
        event: FdEvent,
        pool: Pool,
        memory: PacketMemory,
        blocks: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            reporter: Reporter::new(link),
            event,
            edge: sys::epoll()?,
            pool,
            memory,
            blocks,
            taken: 0,
            returned: 0,
            block: None,
            reuse_at: 0,
            stats: RxStats::default(),
            kernel_drops: Cell::new(0),
        })
    }

    /// Number of units that the kernel has not got back.
    fn out(&self) -> u64 {
        self.taken - self.returned
    }

    fn units(&self) -> u64 {
        self.memory.units().into()
    }

    /// Takes the next unit if the kernel has handed it over.
    #[inline]
    fn take_unit(&mut self) -> Option<u32> {
        let unit = (self.taken % self.units()) as u32;
        // If all units are out, the next unit is the oldest of those.
        if self.out() == self.units() || !self.memory.is_ours(unit) {
            return None;
        }
        self.taken += 1;
        Some(unit)
    }

    /// Whether `claim` would find a frame.
    fn is_ready(&self) -> bool {
        let unit = (self.taken % self.units()) as u32;
        self.block.is_some() || self.out() < self.units() && self.memory.is_ours(unit)
    }

    #[inline]
    fn next(&mut self) -> Option<RingFound> {
        if !self.blocks {
            let unit = self.take_unit()?;
            let header = RingHeader::v2(&self.memory.header(unit, 0)?);
            return Some(RingFound {
                unit,
                within: 0,
                header,
            });
        }
        loop {
            let block = match self.block.take() {
                Some(block) => block,
                None => {
                    let unit = self.take_unit()?;
                    // struct tpacket_block_desc
                    let head: [u8; 20] = self.memory.header(unit, 0)?;
                    RingBlock {
                        unit,
                        next: word(&head, 16) as usize,
                        left: word(&head, 12),
                    }
                }
            };
            if block.left == 0 {
                continue;
            }
            // A header outside the block ends the block.
            let Some(header) = self.memory.header(block.unit, block.next) else {
                continue;
            };
            let header = RingHeader::v3(&header);
            if block.left > 1 {
                self.block = Some(RingBlock {
                    next: block.next + header.next as usize,
                    left: block.left - 1,
                    ..block
                });
            }
            return Some(RingFound {
                unit: block.unit,
                within: block.next,
                header,
            });
        }
    }

    /// The frame, in place unless too much of the ring is out. `None` if incomplete or malformed.
    #[inline]
    fn frame(&mut self, found: &RingFound) -> Option<Frame> {
        let RingFound {
            unit,
            within,
            header,
        } = *found;
        if header.status & libc::TP_STATUS_COPY != 0 {
            return self.queued();
        }
        let (mac, len) = (usize::from(header.mac), header.len as usize);
        if header.snaplen != header.len || len < ETHERNET_HEADER_LEN || mac < HEADER_LEN {
            return None;
        }
        let vnet = self.memory.header(unit, within + mac - HEADER_LEN)?;
        let meta = VnetHeader::from_bytes(&vnet).rx_meta().ok()?;
        if within + mac + len > self.memory.unit_len() {
            return None;
        }
        let behind = self.out() > self.units() / 2;
        if behind || header.status & libc::TP_STATUS_VLAN_VALID != 0 || !self.memory.can_lend(unit)
        {
            self.stats.copied += 1;
            return Some(self.copy(found, meta));
        }
        let lent = self.memory.lend(unit, within);
        Some(Frame::from_lent(lent, header.mac, header.len, meta))
    }

    /// The next frame that did not fit a slot. The socket's queue has it whole, in slot order.
    fn queued(&mut self) -> Option<Frame> {
        let mut header = [0; HEADER_LEN];
        let mut buffer = self.pool.take();
        let fd = self.reporter.link().fd();
        loop {
            match sys::receive_frame(fd, &mut header, &mut buffer[VLAN_TAG_LEN..]) {
                Ok(received) => {
                    self.stats.copied += 1;
                    return copying::frame(&mut self.pool, buffer, &header, &received);
                }
                // A pending error of the link comes before the frame, and this call clears it.
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                        self.reporter.link().report_error();
                    }
                    _ => {
                        self.pool.put(buffer);
                        return None;
                    }
                },
            }
        }
    }

    #[cold]
    fn copy(&mut self, found: &RingFound, meta: RxMeta) -> Frame {
        let (mac, len) = (usize::from(found.header.mac), found.header.len as usize);
        let mut buffer = vec![0; VLAN_TAG_LEN + len].into_boxed_slice();
        self.memory
            .copy(found.unit, found.within + mac, &mut buffer[VLAN_TAG_LEN..]);
        match found.header.vlan() {
            None => Frame::from_buffer(buffer, VLAN_TAG_LEN as u16, len, meta),
            Some((protocol, control)) => {
                let meta = insert_vlan_tag(&mut buffer, protocol, control, meta);
                Frame::from_buffer(buffer, 0, VLAN_TAG_LEN + len, meta)
            }
        }
    }

    /// Gives units back in order, up to the first one in use, and copies out units that are late.
    #[inline]
    fn give_back(&mut self) {
        let claiming = u64::from(self.block.is_some());
        while self.returned + claiming < self.taken {
            let unit = (self.returned % self.units()) as u32;
            if !self.memory.is_done(unit) && !self.copy_out(unit) {
                break;
            }
            self.memory.give_back(unit);
            self.returned += 1;
        }
    }

    /// Whether the kernel needs units back: more than three quarters are out.
    fn is_late(&self) -> bool {
        self.out() > self.units() / 4 * 3
    }

    /// Copies out a unit whose frames are late, so that it can be given back. False if it is not
    /// late enough, or there is no memory.
    fn copy_out(&mut self, unit: u32) -> bool {
        let copied = self.is_late() && self.memory.detach(unit).is_ok();
        self.stats.copied_out += u64::from(copied);
        copied
    }

    /// Waits for new frames while a unit is out. Returns whether the link has an error.
    fn wait_for_another(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let (edge, socket) = (self.edge.as_fd(), self.reporter.link().fd());
        sys::epoll_watch(edge, socket, true)?;
        // The first event may report the units that are already out, which is no news; an error is.
        let waited = if sys::epoll_take(edge) {
            Ok(true)
        } else if self.is_ready() {
            Ok(false)
        } else {
            self.event
                .wait(edge, timeout)
                .map(|_| sys::epoll_take(edge))
        };
        sys::epoll_forget(edge, socket)?;
        waited
    }

    /// Restores units that were copied out, once there are enough of them to be worth the cost.
    fn reuse_detached(&mut self) {
        if self.taken >= self.reuse_at && u64::from(self.memory.detached()) > self.units() / 8 {
            // If this fails, frames of those units continue to be copied.
            let _ = self.memory.reuse_detached(self.reporter.link().fd());
            self.reuse_at = self.taken + self.units();
        }
    }

    fn begin_claim(&mut self) -> Result<(), DeviceError> {
        self.reporter.check()?;
        self.give_back();
        self.reuse_detached();
        Ok(())
    }

    /// Claims the next frame. Returns how many that was; `None` if no frame is ready.
    #[inline]
    fn claim_one(&mut self, out: &mut Vec<Frame>) -> Option<usize> {
        let found = self.next()?;
        let Some(frame) = self.frame(&found) else {
            self.stats.truncated += 1;
            return Some(0);
        };
        self.stats.bytes += frame.len() as u64;
        self.stats.frames += 1;
        out.push(frame);
        Some(1)
    }

    #[inline]
    fn end_claim(&mut self) {
        if self.is_late() {
            self.give_back();
        }
    }
}

impl DeviceRx for RingRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        self.begin_claim()?;
        // Dropped frames count as well, so that a flood of them cannot keep the loop running.
        let claimed = (0..max).map_while(|_| self.claim_one(out)).sum();
        self.end_claim();
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        self.pool.release(frames);
        self.give_back();
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        let timeout = self.reporter.bound(timeout)?;
        self.give_back();
        let timeout = if self.is_ready() {
            Some(Duration::ZERO)
        } else {
            timeout
        };
        let trouble = if self.out() == 0 {
            self.event.wait(self.reporter.link().fd(), timeout)
        } else {
            self.wait_for_another(timeout)
        };
        match trouble {
            Ok(false) => Ok(()),
            Ok(true) => self.reporter.fetch_error(),
            Err(error) => {
                let name = &self.reporter.link().name;
                Err(DeviceError::system("wait", name, &error))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn headers_of_both_versions_are_read_field_by_field() {
        let expected = RingHeader {
            status: 0x51,
            len: 0x1000,
            snaplen: 0x0fff,
            mac: 0x4c,
            vlan_control: 7,
            vlan_protocol: 0x88a8,
            next: 0,
        };
        let mut v2 = [0xee; RingHeader::V2_LEN];
        v2[0..4].copy_from_slice(&[0x51, 0, 0, 0]);
        v2[4..8].copy_from_slice(&[0, 0x10, 0, 0]);
        v2[8..12].copy_from_slice(&[0xff, 0x0f, 0, 0]);
        v2[12..14].copy_from_slice(&[0x4c, 0]);
        v2[24..28].copy_from_slice(&[7, 0, 0xa8, 0x88]);
        assert_eq!(RingHeader::v2(&v2), expected);
        let mut v3 = [0xee; RingHeader::V3_LEN];
        v3[0..4].copy_from_slice(&[0x80, 0, 0, 0]);
        v3[12..16].copy_from_slice(&[0xff, 0x0f, 0, 0]);
        v3[16..20].copy_from_slice(&[0, 0x10, 0, 0]);
        v3[20..24].copy_from_slice(&[0x51, 0, 0, 0]);
        v3[24..26].copy_from_slice(&[0x4c, 0]);
        v3[32..36].copy_from_slice(&[7, 0, 0, 0]);
        v3[36..38].copy_from_slice(&[0xa8, 0x88]);
        assert_eq!(
            RingHeader::v3(&v3),
            RingHeader {
                next: 0x80,
                ..expected
            }
        );
        assert_eq!(expected.vlan(), Some((0x88a8, 7)));
        let plain = RingHeader {
            status: 1,
            ..expected
        };
        assert_eq!(plain.vlan(), None);
    }
}
