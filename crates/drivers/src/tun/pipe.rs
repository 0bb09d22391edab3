//! IP packets from a pipe, which has no separators between them.

use crate::fd_event::FdEvent;
use crate::frame::zeroed;
use crate::ip_link::ip_header;
use crate::pool::Pool;
use crate::{DeviceError, DeviceRx, DeviceWaker, ETHERNET_HEADER_LEN, Frame, RxMeta, RxStats, sys};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Most bytes that are read at once. Two of the longest packets fit.
const READ: usize = 2 * 65_536;

/// The receiving half of a [`Tun`](super::Tun) made of pipes.
#[derive(Debug)]
pub(super) struct PipeRx {
    pipe: OwnedFd,
    name: String,
    event: FdEvent,
    pool: Pool,
    /// Bytes that were read; `begin..end` was not claimed yet.
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
    /// Nothing more can arrive: the other end is closed, or wrote bytes that are no packet.
    is_gone: bool,
    stats: RxStats,
}

/// The length of the packet at the start of `bytes`; `None`: its header is incomplete. `Err`: it is
/// no packet, so the start of the next one is unknown.
fn packet_len(bytes: &[u8]) -> Result<Option<usize>, ()> {
    let word = |at: usize| {
        Some(usize::from(u16::from_be_bytes([
            *bytes.get(at)?,
            *bytes.get(at + 1)?,
        ])))
    };
    match bytes.first().map(|first| first >> 4) {
        None => Ok(None),
        Some(4) => match word(2) {
            Some(len) if len < 20 => Err(()),
            len => Ok(len),
        },
        Some(6) => Ok(word(4).map(|len| 40 + len)),
        Some(_) => Err(()),
    }
}

impl PipeRx {
    pub(super) fn new(pipe: OwnedFd, name: &str, event: FdEvent, pool: Pool) -> Self {
        Self {
            pipe,
            name: name.to_owned(),
            event,
            pool,
            bytes: zeroed(READ),
            begin: 0,
            end: 0,
            is_gone: false,
            stats: RxStats::default(),
        }
    }

    /// The length of the next packet, if all of it was read.
    fn whole(&mut self) -> Option<usize> {
        match packet_len(&self.bytes[self.begin..self.end]) {
            Ok(len) => len.filter(|len| *len <= self.end - self.begin),
            Err(()) => {
                self.stats.truncated += 1;
                self.is_gone = true;
                None
            }
        }
    }

    /// Reads more bytes. Returns whether there were any.
    fn read(&mut self) -> bool {
        self.bytes.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        match sys::read_frame(self.pipe.as_fd(), &mut self.bytes[self.end..]) {
            Ok(0) => {
                self.is_gone = true;
                false
            }
            Ok(len) => {
                self.end += len;
                true
            }
            Err(_) => false,
        }
    }

    fn gone(&self) -> DeviceError {
        DeviceError::Gone {
            interface: self.name.clone(),
        }
    }

    /// The next packet as a frame, and removes it; `None`: its header is too short.
    fn take(&mut self, len: usize) -> Option<Frame> {
        let packet = &self.bytes[self.begin..self.begin + len];
        self.begin += len;
        let header = ip_header(packet)?;
        let mut buffer = self.pool.take();
        buffer[..ETHERNET_HEADER_LEN].copy_from_slice(&header);
        let end = ETHERNET_HEADER_LEN + len;
        buffer
            .get_mut(ETHERNET_HEADER_LEN..end)?
            .copy_from_slice(packet);
        Some(Frame::from_buffer(buffer, 0, end, RxMeta::default()))
    }
}

impl DeviceRx for PipeRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let mut claimed = 0;
        // One step more, to read.
        for _ in 0..=max {
            if self.is_gone || claimed == max {
                break;
            }
            let Some(len) = self.whole() else {
                if !self.is_gone && self.read() {
                    continue;
                }
                break;
            };
            match self.take(len) {
                Some(frame) => {
                    self.stats.bytes += frame.len() as u64;
                    out.push(frame);
                    claimed += 1;
                }
                None => self.stats.truncated += 1,
            }
        }
        self.stats.frames += claimed as u64;
        match claimed {
            0 if self.is_gone => Err(self.gone()),
            _ => Ok(claimed),
        }
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        self.pool.release(frames);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        if self.is_gone {
            return Err(self.gone());
        }
        if self.whole().is_some() || self.is_gone {
            return Ok(());
        }
        // After the other end is closed, there may still be bytes to read.
        match self.event.wait(self.pipe.as_fd(), timeout) {
            Ok(_) => Ok(()),
            Err(error) => Err(DeviceError::system("wait", &self.name, &error)),
        }
    }

    fn waker(&self) -> DeviceWaker {
        self.event.waker()
    }

    fn stats(&self) -> RxStats {
        RxStats {
            pool_exhausted: self.pool.exhausted(),
            wakes: self.event.wakes(),
            ..self.stats
        }
    }
}
