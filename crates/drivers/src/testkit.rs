//! Receiving halves of the devices that the kernel normally fills, over memory and sockets that a
//! test fills instead.
//!
//! For the tests of this workspace; not covered by semantic versioning. Everything here runs the
//! devices' own code, so a fault found here is a fault of the device.

use crate::fd_event::FdEvent;
use crate::fd_halves::{FdLink, FdRx};
use crate::link::Link;
use crate::pool::Pool;
use crate::umem::PacketMemory;
use crate::vnet::HEADER_LEN_WITH_COUNT;
use crate::{DeviceRx, Frame, LinkType, af_packet, sys};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Buffers in the pool of a receiving half.
const POOL: usize = 4;

/// The receiving half of a [`Tap`](crate::tap::Tap) that reads frames from `fd`, each preceded by
/// a virtio header with buffer count. `fd` is a non-blocking datagram socket, or an interface.
///
/// # Errors
/// The process has no file descriptor left.
pub fn tap_rx(fd: OwnedFd) -> io::Result<Box<dyn DeviceRx>> {
    let link = FdLink {
        fd: Arc::new(fd),
        name: "test".to_owned(),
        link: LinkType::Ethernet,
        vnet: HEADER_LEN_WITH_COUNT,
        is_socket: false,
        ends_empty: false,
    };
    let rx = FdRx::new(link, FdEvent::new()?, Pool::new(POOL));
    Ok(Box::new(rx))
}

/// A descriptor that is attached to the interface `name` with these `IFF_` flags, as another
/// program would hand it over.
///
/// # Errors
/// There is no such interface and `CAP_NET_ADMIN` is missing, or it is another one.
pub fn attached(name: &str, flags: i32) -> io::Result<OwnedFd> {
    let fd = sys::open_tun()?;
    sys::tun_attach(fd.as_fd(), name, flags)?;
    Ok(fd)
}

/// The receiving half of an [`AfPacket`](crate::af_packet::AfPacket) without a ring. It reads
/// frames from the datagram socket `fd`, each preceded by a virtio header.
///
/// # Errors
/// The process has no file descriptor left.
pub fn packet_rx(fd: OwnedFd) -> io::Result<Box<dyn DeviceRx>> {
    let link = Arc::new(Link::new(fd, "test", 0, None));
    Ok(af_packet::copying_rx(
        link,
        FdEvent::new()?,
        Pool::new(POOL),
    ))
}

/// The receiving half of an [`AfPacket`](crate::af_packet::AfPacket) with a ring of `units` slots
/// (or blocks) of `unit_len` bytes, and the [`Ring`] that fills it.
///
/// # Errors
/// There is no memory, or `unit_len` is not a multiple of the page size.
pub fn ring_rx(units: u32, unit_len: usize, blocks: bool) -> io::Result<(Box<dyn DeviceRx>, Ring)> {
    let file = sys::shared_memory(units as usize * unit_len)?;
    let memory = PacketMemory::new(file.as_fd(), units, unit_len, blocks)?;
    let ring = Ring {
        file: File::from(file.try_clone()?),
        start: memory.view().addr(),
        units,
        unit_len,
        status: if blocks { 8 } else { 0 },
    };
    let link = Arc::new(Link::new(file, "test", 0, None));
    let rx = af_packet::ring_rx(link, FdEvent::new()?, Pool::new(POOL), memory, blocks)?;
    Ok((rx, ring))
}

/// The kernel's side of a ring.
#[derive(Debug)]
pub struct Ring {
    file: File,
    /// Address at which the receiving half maps the ring.
    start: usize,
    units: u32,
    unit_len: usize,
    /// Offset of the status word in a unit.
    status: usize,
}

impl Ring {
    /// Fills a unit with `bytes`, from its first byte, and hands it to the receiver. The status
    /// word in `bytes` is replaced by `status` with the hand-over bit set. Returns false if the
    /// receiver has not yet given the unit back.
    ///
    /// # Errors
    /// The memory cannot be written.
    ///
    /// # Panics
    /// If there is no such unit, or `bytes` is longer than a unit.
    pub fn fill(&self, unit: u32, bytes: &[u8], status: u32) -> io::Result<bool> {
        assert!(unit < self.units && bytes.len() <= self.unit_len);
        let start = u64::from(unit) * self.unit_len as u64;
        let word = start + self.status as u64;
        let mut old = [0; 4];
        self.file.read_exact_at(&mut old, word)?;
        if u32::from_ne_bytes(old) & libc::TP_STATUS_USER != 0 {
            return Ok(false);
        }
        // The status word is written last.
        let (head, rest) = bytes.split_at(bytes.len().min(self.status));
        self.file.write_all_at(head, start)?;
        self.file
            .write_all_at(rest.get(4..).unwrap_or(&[]), word + 4)?;
        let status = status | libc::TP_STATUS_USER;
        self.file.write_all_at(&status.to_ne_bytes(), word)?;
        Ok(true)
    }

    /// The unit in which the bytes of a frame are, and their range in it; `None` if they are not
    /// within one unit of the ring.
    pub fn place(&self, frame: &Frame) -> Option<(u32, Range<usize>)> {
        let bytes = frame.bytes();
        let start = bytes.as_ptr().addr().checked_sub(self.start)?;
        let (unit, within) = (start / self.unit_len, start % self.unit_len);
        let place = within..within + bytes.len();
        let fits = unit < self.units as usize && place.end <= self.unit_len;
        fits.then_some((unit as u32, place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_was_filled_by_hand_is_received_in_place_and_given_back() {
        let (mut rx, ring) = ring_rx(2, 4096, true).unwrap();
        let mut block = [7; 256];
        block[12..20].copy_from_slice(&[1, 0, 0, 0, 48, 0, 0, 0]);
        // The frame's 60 bytes follow a virtio header and begin 64 bytes after the frame's header.
        block[48..48 + 40].fill(0);
        block[48 + 12] = 60;
        block[48 + 16] = 60;
        block[48 + 24] = 64;
        block[48 + 54..48 + 64].fill(0);
        assert!(ring.fill(0, &block, 0).unwrap());
        assert!(!ring.fill(0, &block, 0).unwrap(), "it was not given back");

        let mut frames = Vec::new();
        assert_eq!(rx.claim(8, &mut frames), Ok(1));
        assert_eq!(frames[0].bytes(), [7; 60]);
        assert_eq!(ring.place(&frames[0]), Some((0, 112..172)));
        assert_eq!(ring.place(&Frame::from_bytes(&[1])), None);
        rx.release(&mut frames);
        assert!(ring.fill(0, &block, 0).unwrap());
    }
}
