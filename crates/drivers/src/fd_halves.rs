//! The halves of a device that is a descriptor of the kernel: one system call for each frame.

use crate::fd_event::FdEvent;
use crate::ip_link::{ip_header, is_ip};
use crate::pool::Pool;
use crate::vnet::{HEADER_LEN, VnetHeader};
use crate::{
    Capabilities, DeviceError, DeviceRx, DeviceTx, DeviceWaker, ETHERNET_HEADER_LEN, Frame,
    LinkType, RxChecksum, RxMeta, RxStats, TxChecksum, TxFrame, TxMeta, TxStats, sys,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Longest virtio header that some kernel puts before a frame, in bytes.
pub(crate) const LONGEST_VNET: usize = 24;

/// A descriptor, and the form of what passes through it.
#[derive(Clone, Debug)]
pub(crate) struct FdLink {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) name: String,
    pub(crate) link: LinkType,
    /// Bytes of the virtio header before each frame: 0, or 10 to [`LONGEST_VNET`].
    pub(crate) vnet: usize,
    /// Whether it is a socket, whose errors may pass.
    pub(crate) is_socket: bool,
    /// Whether an empty read says that the other end was closed. A datagram may be empty.
    pub(crate) ends_empty: bool,
}

impl FdLink {
    pub(crate) fn gone(&self) -> DeviceError {
        DeviceError::Gone {
            interface: self.name.clone(),
        }
    }

    /// Bytes that a frame has here and not in the descriptor.
    fn added(&self) -> usize {
        match self.link {
            LinkType::Ethernet => 0,
            LinkType::Ip => ETHERNET_HEADER_LEN,
        }
    }

    /// The frame in `buffer`, of which `end` bytes are filled, from `begin` on by the kernel: where
    /// it starts, and its metadata. The Ethernet header of a bare packet overwrites the virtio
    /// header.
    #[inline]
    fn parse(&self, buffer: &mut [u8], (begin, end): (usize, usize)) -> Option<(usize, RxMeta)> {
        let packet = begin + self.vnet;
        // What fills the buffer was cut.
        let is_whole = (packet..buffer.len()).contains(&end);
        let mut meta = match buffer[begin..].first_chunk::<HEADER_LEN>() {
            _ if !is_whole => return None,
            Some(header) if self.vnet > 0 => VnetHeader::from_bytes(header).rx_meta().ok()?,
            _ => RxMeta::default(),
        };
        if self.link == LinkType::Ethernet {
            return (end - packet >= ETHERNET_HEADER_LEN).then_some((packet, meta));
        }
        let header = ip_header(&buffer[packet..end])?;
        let start = packet - ETHERNET_HEADER_LEN;
        buffer[start..packet].copy_from_slice(&header);
        if let RxChecksum::Partial { start, .. } = &mut meta.checksum {
            *start = start.checked_add(ETHERNET_HEADER_LEN as u16)?;
        }
        if let Some(gso) = meta.gso.as_mut().filter(|gso| gso.header_len > 0) {
            gso.header_len = gso.header_len.saturating_add(ETHERNET_HEADER_LEN as u16);
        }
        Some((start, meta))
    }

    /// The metadata of a frame without its Ethernet header.
    fn meta_of_packet(meta: &TxMeta) -> Option<TxMeta> {
        let mut meta = *meta;
        if let TxChecksum::Partial { start, .. } = &mut meta.checksum {
            *start = start.checked_sub(ETHERNET_HEADER_LEN as u16)?;
        }
        if let Some(gso) = &mut meta.gso {
            gso.header_len = gso.header_len.saturating_sub(ETHERNET_HEADER_LEN as u16);
        }
        Some(meta)
    }

    /// Sends a frame. `None`: it can never be sent.
    fn write(&self, frame: &TxFrame<'_>) -> Option<std::io::Result<usize>> {
        let (head, meta) = match self.link {
            LinkType::Ethernet => (frame.head, frame.meta),
            LinkType::Ip if !is_ip(frame.head) => return None,
            LinkType::Ip => (
                &frame.head[ETHERNET_HEADER_LEN..],
                Self::meta_of_packet(&frame.meta)?,
            ),
        };
        let mut header = [0; LONGEST_VNET];
        if self.vnet > 0 {
            header[..HEADER_LEN].copy_from_slice(&VnetHeader::for_transmit(&meta).to_bytes());
        }
        let header = &header[..self.vnet];
        Some(sys::write_frame(
            self.fd.as_fd(),
            header,
            head,
            frame.payload,
        ))
    }
}

/// The receiving half.
#[derive(Debug)]
pub(crate) struct FdRx {
    link: FdLink,
    event: FdEvent,
    pool: Pool,
    is_gone: bool,
    stats: RxStats,
}

impl FdRx {
    pub(crate) fn new(link: FdLink, event: FdEvent, pool: Pool) -> Self {
        Self {
            link,
            event,
            pool,
            is_gone: false,
            stats: RxStats::default(),
        }
    }
}

impl DeviceRx for FdRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let mut claimed = 0;
        // There is room for an Ethernet header before the packet.
        let begin = self.link.added().saturating_sub(self.link.vnet);
        // Dropped frames count as well, so that a flood of them cannot keep the loop running.
        for _ in 0..max {
            if self.is_gone {
                break;
            }
            let mut buffer = self.pool.take();
            let len = match sys::read_frame(self.link.fd.as_fd(), &mut buffer[begin..]) {
                Ok(0) if self.link.ends_empty => {
                    // The other end was closed.
                    self.pool.put(buffer);
                    self.is_gone = true;
                    break;
                }
                Ok(len) => len,
                Err(error) => {
                    self.pool.put(buffer);
                    match error.raw_os_error() {
                        Some(libc::EINTR | libc::ECONNREFUSED) => continue,
                        Some(libc::EBADFD | libc::ECONNRESET | libc::ENOTCONN) => {
                            self.is_gone = true;
                        }
                        // There is no frame, or the kernel has no memory for it at the moment.
                        _ => {}
                    }
                    break;
                }
            };
            let end = begin + len;
            if let Some((start, meta)) = self.link.parse(&mut buffer, (begin, end)) {
                let len = end - start;
                out.push(Frame::from_buffer(buffer, start as u16, len, meta));
                self.stats.bytes += len as u64;
                claimed += 1;
            } else {
                self.pool.put(buffer);
                self.stats.truncated += 1;
            }
        }
        self.stats.frames += claimed as u64;
        match claimed {
            0 if self.is_gone => Err(self.link.gone()),
            _ => Ok(claimed),
        }
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        self.pool.release(frames);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        if self.is_gone {
            return Err(self.link.gone());
        }
        match self.event.wait(self.link.fd.as_fd(), timeout) {
            Ok(true) if !self.link.is_socket => Err(self.link.gone()),
            Ok(_) => Ok(()),
            Err(error) => Err(DeviceError::system("wait", &self.link.name, &error)),
        }
    }

    fn waker(&self) -> DeviceWaker {
        self.event.waker()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.link.fd.as_fd()]
    }

    fn stats(&self) -> RxStats {
        RxStats {
            pool_exhausted: self.pool.exhausted(),
            wakes: self.event.wakes(),
            ..self.stats
        }
    }
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct FdTx {
    caps: Capabilities,
    link: FdLink,
    stats: TxStats,
}

impl FdTx {
    pub(crate) fn new(caps: Capabilities, link: FdLink) -> Self {
        Self {
            caps,
            link,
            stats: TxStats::default(),
        }
    }
}

impl DeviceTx for FdTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        let mut taken = 0;
        while let Some(frame) = frames.get(taken) {
            let admitted = self.caps.admits(frame);
            let written = admitted.then(|| self.link.write(frame)).flatten();
            let Some(written) = written else {
                self.stats.dropped += 1;
                taken += 1;
                continue;
            };
            let Err(error) = written else {
                self.stats.frames += 1;
                self.stats.bytes += frame.len() as u64;
                taken += 1;
                continue;
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOMEM | libc::ENOBUFS) => {
                    self.stats.busy += 1;
                    break;
                }
                Some(
                    libc::EIO | libc::EBADFD | libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN,
                ) if taken > 0 => break,
                Some(libc::EIO) => {
                    return Err(DeviceError::Down {
                        interface: self.caps.name.clone(),
                    });
                }
                Some(libc::EBADFD | libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) => {
                    return Err(self.link.gone());
                }
                // The kernel considers the frame malformed, or the other end refuses it.
                _ => {
                    self.stats.dropped += 1;
                    taken += 1;
                }
            }
        }
        Ok(taken)
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}
