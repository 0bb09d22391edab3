//! Where the peer's frames come from.

use dominoes_drivers::{Frame, RxMeta};
use dominoes_netstack::variants::kernel;

/// Prebuilt frames that are alike but for their numbers. What all of them say is kept once, as a card's ring would: a buffer
/// is a few octets here, and becomes a frame where it is taken.
///
/// They are taken in the order in which they lie in memory, round and round, whoever gave them back in which order: reading
/// them goes half as fast again where they come from all over the pool, and after a while they would in rows whose cores
/// finish in another order than they began.
#[derive(Debug)]
pub(super) struct Pool {
    /// Those that are out are `None`.
    buffers: Vec<Option<Box<[u8]>>>,
    /// Wherever they do not follow each other every `stride` octets: the address of a buffer, and which one it is.
    stretches: Vec<(usize, usize)>,
    stride: usize,
    /// Where to look for the next one.
    next: usize,
    /// How many are there.
    free: usize,
    len: usize,
    meta: RxMeta,
}

impl Pool {
    /// `count` frames like `bytes` in buffers that begin with a cache line, as a network card's do, so that the
    /// headers are one line. For that the allocator is moved on until it gives such buffers, and asked for whole
    /// lines from then on.
    pub(super) fn new(bytes: &[u8], capacity: usize, count: usize, meta: RxMeta) -> Pool {
        let copy = || {
            let mut buffer = vec![0; capacity].into_boxed_slice();
            buffer[..bytes.len()].copy_from_slice(bytes);
            buffer
        };
        let begins_with_a_line = |buffer: &[u8]| address(buffer).is_multiple_of(64);
        let mut fillers: Vec<Vec<u8>> = Vec::new();
        while fillers.len() < 16 && !begins_with_a_line(&copy()) {
            fillers.push(Vec::with_capacity(72));
        }
        Pool::of((0..count).map(|_| copy()).collect(), bytes.len(), meta)
    }

    /// Frames of `len` octets in these buffers.
    fn of(mut buffers: Vec<Box<[u8]>>, len: usize, meta: RxMeta) -> Pool {
        buffers.sort_unstable_by_key(|buffer| address(buffer));
        let steps = buffers
            .windows(2)
            .map(|two| address(&two[1]) - address(&two[0]));
        let stride = steps.min().unwrap_or(1);
        let mut stretches: Vec<(usize, usize)> = Vec::new();
        for (i, buffer) in buffers.iter().enumerate() {
            let follows = |(from, first)| from + (i - first) * stride == address(buffer);
            if !stretches.last().copied().is_some_and(follows) {
                stretches.push((address(buffer), i));
            }
        }
        Pool {
            free: buffers.len(),
            buffers: buffers.into_iter().map(Some).collect(),
            stretches,
            stride,
            next: 0,
            len,
            meta,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.free == 0
    }

    #[inline]
    pub(super) fn take(&mut self) -> Option<Frame> {
        if self.is_empty() {
            return None;
        }
        loop {
            let place = self.next;
            self.next = if place + 1 == self.buffers.len() {
                0
            } else {
                place + 1
            };
            if let Some(buffer) = self.buffers[place].take() {
                self.free -= 1;
                return Some(Frame::from_buffer(buffer, 0, self.len, self.meta));
            }
        }
    }

    /// A frame that no buffer is missing for is freed.
    #[inline]
    pub(super) fn give_back(&mut self, frame: Frame) {
        let buffer = frame.into_buffer();
        let address = address(&buffer);
        let behind = self.stretches.partition_point(|(from, _)| *from <= address);
        let Some((from, first)) = behind.checked_sub(1).map(|at| self.stretches[at]) else {
            return;
        };
        let place = self.buffers.get_mut(first + (address - from) / self.stride);
        if let Some(place @ None) = place {
            *place = Some(buffer);
            self.free += 1;
        }
    }

    /// Fetches the first `len` octets of the next `count` frames, as far as they are there, into a cache, where a network
    /// card leaves them: into that of who takes them now.
    #[inline]
    pub(super) fn prefetch(&self, count: usize, len: usize) {
        let upto = (self.next + count).min(self.buffers.len());
        for buffer in self.buffers[self.next..upto].iter().flatten() {
            kernel::prefetch(&buffer[..len]);
        }
    }
}

#[inline]
fn address(buffer: &[u8]) -> usize {
    buffer.as_ptr().addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(count: usize) -> Pool {
        Pool::new(&[7; 60], 128, count, RxMeta::default())
    }

    fn addresses(frames: &[Frame]) -> Vec<usize> {
        frames.iter().map(|frame| address(frame.bytes())).collect()
    }

    #[test]
    fn frames_are_taken_in_the_order_in_which_they_lie_however_they_come_back() {
        let mut pool = pool(100);
        let frames: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(frames.len(), 100);
        assert!(pool.is_empty());
        let lie = addresses(&frames);
        assert!(lie.is_sorted());
        let (even, odd): (Vec<_>, Vec<_>) =
            frames.into_iter().zip(0..).partition(|(_, i)| i % 2 == 0);
        for (frame, _) in odd.into_iter().chain(even).rev() {
            pool.give_back(frame);
        }
        let some: Vec<_> = (0..30).filter_map(|_| pool.take()).collect();
        assert_eq!(addresses(&some), lie[..30]);
        // Behind the last one comes the first that is there.
        let held: Vec<_> = (0..70).filter_map(|_| pool.take()).collect();
        for frame in some.into_iter().skip(10) {
            pool.give_back(frame);
        }
        let again: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(addresses(&again), lie[10..30]);
        drop(held);
    }

    #[test]
    fn buffers_that_lie_apart_come_back_to_their_places() {
        let (mut buffers, mut between) = (Vec::new(), Vec::new());
        for size in [1, 3, 7] {
            buffers.extend((0..10).map(|_| vec![0; 128].into_boxed_slice()));
            between.push(vec![0u8; size * 1_000]);
        }
        let mut pool = Pool::of(buffers, 60, RxMeta::default());
        let all: Vec<_> = (pool.buffers.iter().flatten())
            .map(|buffer| address(buffer))
            .collect();
        for _ in 0..3 {
            let frames: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
            assert_eq!(addresses(&frames), all);
            (frames.into_iter().rev()).for_each(|frame| pool.give_back(frame));
            assert_eq!(pool.free, all.len());
        }
        drop(between);
    }

    #[test]
    fn what_is_of_another_pool_is_freed() {
        let (mut one, mut other) = (pool(4), pool(4));
        for _ in 0..10 {
            one.give_back(Frame::from_bytes(&[0; 60]));
            other.give_back(Frame::from_bytes(&[0; 60]));
        }
        assert_eq!((one.free, other.free), (4, 4));
    }
}
