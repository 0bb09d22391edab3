//! Receive buffers of devices for which the kernel copies frames.

use crate::frame::zeroed;
use crate::{ETHERNET_HEADER_LEN, Frame, VLAN_TAG_LEN};

/// Longest frame that these devices deliver: 65,535 bytes of IP after a tagged Ethernet header.
pub(crate) const MAX_FRAME_LEN: usize = 65_535 + ETHERNET_HEADER_LEN + VLAN_TAG_LEN;

/// Length of a buffer, in bytes. It exceeds `MAX_FRAME_LEN` plus the TAP header, so a frame that
/// fills a buffer must have been cut. It is not a multiple of the page size, so that the headers
/// of successive frames do not compete for the same cache sets.
const BUFFER_LEN: usize = 65_536 + 17 * 64;

/// Buffers of one receiving half, handed out last in, first out: the kernel writes into them
/// through the cache, so the most recently used one is the best.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Vec<Box<[u8]>>,
    /// Buffers allocated so far, up to `limit`.
    made: usize,
    limit: usize,
    /// Buffers allocated beyond `limit`.
    exhausted: u64,
}

impl Pool {
    /// A pool that allocates buffers on demand and keeps at most `limit`.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            free: Vec::with_capacity(limit),
            made: 0,
            limit,
            exhausted: 0,
        }
    }

    /// Returns a buffer with arbitrary contents.
    #[inline]
    pub(crate) fn take(&mut self) -> Box<[u8]> {
        self.free.pop().unwrap_or_else(|| {
            if self.made < self.limit {
                self.made += 1;
            } else {
                self.exhausted += 1;
            }
            zeroed(BUFFER_LEN)
        })
    }

    /// Returns a buffer to the pool.
    #[inline]
    pub(crate) fn put(&mut self, buffer: Box<[u8]>) {
        if buffer.len() == BUFFER_LEN && self.free.len() < self.limit {
            self.free.push(buffer);
        }
    }

    /// Returns the buffers of all frames to the pool.
    pub(crate) fn release(&mut self, frames: &mut Vec<Frame>) {
        for frame in frames.drain(..) {
            self.put(frame.into_buffer());
        }
    }

    /// Number of buffers allocated beyond the limit.
    pub(crate) fn exhausted(&self) -> u64 {
        self.exhausted
    }
}

const _: () = assert!(BUFFER_LEN > MAX_FRAME_LEN + 12 && !BUFFER_LEN.is_multiple_of(4096));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RxMeta;

    #[test]
    fn released_buffers_are_used_again() {
        let mut pool = Pool::new(2);
        let buffers = [pool.take(), pool.take()];
        let addresses = buffers.each_ref().map(|buffer| buffer.as_ptr());
        let mut frames: Vec<_> = buffers
            .into_iter()
            .map(|buffer| Frame::from_buffer(buffer, 0, 60, RxMeta::default()))
            .collect();
        frames.push(Frame::from_bytes(&[0; 60]));
        pool.release(&mut frames);
        assert!(frames.is_empty());
        let again = [pool.take(), pool.take()];
        assert_eq!(
            again.each_ref().map(|buffer| buffer.as_ptr()),
            [addresses[1], addresses[0]]
        );
        assert_eq!(pool.exhausted(), 0);
        let _third = pool.take();
        assert_eq!(pool.exhausted(), 1);
    }
}
