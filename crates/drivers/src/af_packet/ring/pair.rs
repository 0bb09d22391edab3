//! Receiving from two rings of slots: one for frames of Ethernet length, one for merged frames.
//!
//! A slot for a merged frame takes 64 KB, so a ring of them has few slots, and a burst of short
//! frames would fill it; a long ring of short slots cannot hold a merged frame. Each ring belongs
//! to a separate socket that receives only frames of its lengths. Frames are claimed in the order
//! in which they came, by the time that the kernel notes in each slot. Frames of a flow come one
//! after the other on one core, so when the later of two can be seen, the earlier can be, too.

use super::{RingRx, word};
use crate::{DeviceError, DeviceRx, DeviceWaker, Frame, RxStats, sys};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The receiving half of an [`AfPacket`](super::super::AfPacket) with two rings.
#[derive(Debug)]
pub(in super::super) struct RingPair {
    /// Dropped first: the link of `short` closes both sockets.
    long: RingRx,
    short: RingRx,
    /// See [`RingRx::edge`]; watches both sockets, and only while a thread waits.
    edge: OwnedFd,
}

impl RingPair {
    pub(in super::super) fn new(short: RingRx, long: RingRx) -> io::Result<Self> {
        let edge = sys::epoll()?;
        Ok(Self { short, long, edge })
    }

    /// Whether the next frame is in the ring of long slots; `None` if no frame is ready.
    #[inline]
    fn is_next_long(&self) -> Option<bool> {
        let mut times = [self.short.head_time(), self.long.head_time()];
        // A frame that the first look missed may have come before the one that was found.
        if times[0].is_none() && times[1].is_some() {
            times[0] = self.short.head_time();
        }
        match times {
            [None, None] => None,
            [short, None] => short.map(|_| false),
            [None, long] => long.map(|_| true),
            [short, long] => Some(long < short),
        }
    }

    /// Waits for a new frame in either ring while units are out. Returns whether the link has an
    /// error.
    fn wait_for_either(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let edge = self.edge.as_fd();
        let sockets = [&self.short.reporter, &self.long.reporter].map(|of| of.link().fd());
        for socket in sockets {
            sys::epoll_watch(edge, socket, true)?;
        }
        // As in `RingRx::wait_for_another`, once for each socket.
        let has_error = || (0..sockets.len()).fold(false, |any, _| any | sys::epoll_take(edge));
        let waited = if has_error() {
            Ok(true)
        } else if self.short.is_ready() || self.long.is_ready() {
            Ok(false)
        } else {
            let waited = self.short.event.wait(edge, timeout);
            waited.map(|_| has_error())
        };
        for socket in sockets {
            sys::epoll_forget(edge, socket)?;
        }
        waited
    }
}

impl RingRx {
    /// The time of the next frame, if one is ready: seconds and nanoseconds.
    #[inline]
    fn head_time(&self) -> Option<(u32, u32)> {
        if !self.is_ready() {
            return None;
        }
        let unit = (self.taken % self.units()) as u32;
        let header: [u8; 24] = self.memory.header(unit, 0)?;
        Some((word(&header, 16), word(&header, 20)))
    }
}

impl DeviceRx for RingPair {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        self.short.begin_claim()?;
        self.long.begin_claim()?;
        let mut claimed = 0;
        for _ in 0..max {
            let ring = match self.is_next_long() {
                None => break,
                Some(false) => &mut self.short,
                Some(true) => &mut self.long,
            };
            claimed += ring.claim_one(out).unwrap_or(0);
        }
        self.short.end_claim();
        self.long.end_claim();
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        self.short.release(frames);
        self.long.give_back();
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        let timeout = self.short.reporter.bound(timeout)?;
        self.short.give_back();
        self.long.give_back();
        let units_out = self.short.out() + self.long.out();
        let sockets = [&self.short.reporter, &self.long.reporter].map(|of| of.link().fd());
        let trouble = match units_out {
            0 => self.short.event.wait_for_any(&sockets, timeout),
            _ => self.wait_for_either(timeout),
        };
        match trouble {
            Ok(false) => Ok(()),
            // Until both are fetched, every wait returns at once.
            Ok(true) => {
                let fetched = self.long.reporter.fetch_error();
                self.short.reporter.fetch_error().and(fetched)
            }
            Err(error) => {
                let name = &self.short.reporter.link().name;
                Err(DeviceError::system("wait", name, &error))
            }
        }
    }

    fn waker(&self) -> DeviceWaker {
        self.short.waker()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![
            self.short.reporter.link().fd(),
            self.long.reporter.link().fd(),
        ]
    }

    fn stats(&self) -> RxStats {
        let (short, long) = (self.short.stats(), self.long.stats());
        RxStats {
            frames: short.frames + long.frames,
            bytes: short.bytes + long.bytes,
            dropped: short.dropped + long.dropped,
            truncated: short.truncated + long.truncated,
            copied: short.copied + long.copied,
            copied_out: short.copied_out + long.copied_out,
            pool_exhausted: short.pool_exhausted + long.pool_exhausted,
            ..short
        }
    }
}
