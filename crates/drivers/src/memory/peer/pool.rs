//! The peer's prebuilt frames, and the order in which they circulate.

use std::collections::VecDeque;
use std::ops::Range;

use crate::prefetch::prefetch;
use crate::{Frame, RxMeta};

/// Prebuilt frames that differ only in their numbers. The pool keeps their buffers, as a card's
/// ring does; a buffer becomes a frame when it is taken.
#[derive(Debug)]
pub(super) struct PeerPool {
    buffers: Buffers,
    len: usize,
    meta: RxMeta,
}

#[derive(Debug)]
enum Buffers {
    /// Few enough to stay in a cache, where order makes no difference. A queue: the buffer that
    /// has been unused for longest is next.
    Few(VecDeque<Box<[u8]>>),
    Many(InOrder),
}

/// Most bytes of buffers that stay in a cache.
const FEW: usize = 1 << 20;

impl PeerPool {
    /// `count` frames with the content `bytes`, in buffers that begin with a cache line, as a
    /// network card's do, so that the headers take one line. To get such buffers, this allocates
    /// small fillers until the allocator returns an aligned one, and then requests whole lines.
    pub(super) fn new(bytes: &[u8], capacity: usize, count: usize, meta: RxMeta) -> PeerPool {
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
        let buffers = (0..count).map(|_| copy());
        PeerPool {
            buffers: if count * capacity <= FEW {
                Buffers::Few(buffers.collect())
            } else {
                Buffers::Many(InOrder::new(buffers.collect()))
            },
            len: bytes.len(),
            meta,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        match &self.buffers {
            Buffers::Few(buffers) => buffers.is_empty(),
            Buffers::Many(buffers) => buffers.free == 0,
        }
    }

    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<Frame> {
        let buffer = match &mut self.buffers {
            Buffers::Few(buffers) => buffers.pop_front(),
            Buffers::Many(buffers) => buffers.take(),
        };
        Some(Frame::from_buffer(buffer?, 0, self.len, self.meta))
    }

    #[inline(always)]
    pub(super) fn give_back(&mut self, frame: Frame) {
        let buffer = frame.into_buffer();
        match &mut self.buffers {
            Buffers::Few(buffers) => buffers.push_back(buffer),
            Buffers::Many(buffers) => buffers.give_back(buffer),
        }
    }

    /// Prefetches the first `len` bytes of the next `count` frames (those that are in the pool)
    /// into the cache of the calling core, where a network card would put them.
    #[inline(always)]
    pub(super) fn prefetch(&self, count: usize, len: usize) {
        let fetch = |buffer: &[u8]| prefetch(&buffer[..len]);
        match &self.buffers {
            Buffers::Few(buffers) => buffers.iter().take(count).for_each(|buffer| fetch(buffer)),
            Buffers::Many(buffers) => buffers.next(count).for_each(fetch),
        }
    }
}

/// Shift for division by multiplication: exact up to 2^40 bytes in less than 2^24 buffers.
const SHIFT: u32 = 40;

/// A stretch of evenly spaced buffers: its addresses, up to the next stretch, and the index of its
/// first buffer.
#[derive(Clone, Debug, Default)]
struct Stretch {
    addresses: Range<usize>,
    first: usize,
}

/// Buffers that are taken in the order of their addresses, in a circle, whatever the order in
/// which they are returned. Reading buffers in random order takes half as long again, and would
/// happen after a while with stacks whose cores finish in another order than they began.
#[derive(Debug)]
struct InOrder {
    /// `None`: the buffer is out.
    buffers: Vec<Option<Box<[u8]>>>,
    /// The start of every stretch of evenly spaced buffers: address and index of its first buffer.
    stretches: Vec<(usize, usize)>,
    /// The stretch of the buffer that was returned last.
    last: Stretch,
    /// 2 to the power of [`SHIFT`], divided by the distance of buffers, rounded up.
    inverse: u64,
    /// Index of the next buffer to take, or to skip if it is out.
    next: usize,
    /// Number of buffers in the pool.
    free: usize,
}

impl InOrder {
    fn new(mut buffers: Vec<Box<[u8]>>) -> InOrder {
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
        InOrder {
            free: buffers.len(),
            buffers: buffers.into_iter().map(Some).collect(),
            stretches,
            last: Stretch::default(),
            inverse: (1_u64 << SHIFT).div_ceil(stride as u64),
            next: 0,
        }
    }

    #[inline]
    fn take(&mut self) -> Option<Box<[u8]>> {
        if self.free == 0 {
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
                return Some(buffer);
            }
        }
    }

    /// Puts a buffer back in its place. A buffer that has no place here, or whose place is
    /// occupied, is freed.
    #[inline]
    fn give_back(&mut self, buffer: Box<[u8]>) {
        let place = self.place(address(&buffer));
        if let Some(place @ None) = self.buffers.get_mut(place) {
            *place = Some(buffer);
            self.free += 1;
        }
    }

    /// The index of the buffer at `address`.
    #[inline]
    fn place(&mut self, address: usize) -> usize {
        if !self.last.addresses.contains(&address) {
            self.last = self.stretch(address);
        }
        // Exact for a buffer of this pool, since the distance divides its offset; arbitrary for
        // any other.
        let times = ((address - self.last.addresses.start) as u64).wrapping_mul(self.inverse);
        self.last.first + (times >> SHIFT) as usize
    }

    #[cold]
    fn stretch(&self, address: usize) -> Stretch {
        let behind = self.stretches.partition_point(|(from, _)| *from <= address);
        let (from, first) = match behind.checked_sub(1) {
            Some(at) => self.stretches[at],
            // Not a buffer of this pool.
            None => (address, self.buffers.len()),
        };
        let to = self
            .stretches
            .get(behind)
            .map_or(usize::MAX, |(from, _)| *from);
        Stretch {
            addresses: from..to,
            first,
        }
    }

    /// Of the next `count` buffers, those in the pool.
    #[inline]
    fn next(&self, count: usize) -> impl Iterator<Item = &[u8]> {
        let upto = (self.next + count).min(self.buffers.len());
        let buffers = self.buffers[self.next..upto].iter().flatten();
        buffers.map(|buffer| &**buffer)
    }
}

#[inline]
fn address(buffer: &[u8]) -> usize {
    buffer.as_ptr().addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: usize = 1600;

    fn pool(count: usize) -> PeerPool {
        PeerPool::new(&[7; 60], CAPACITY, count, RxMeta::default())
    }

    fn addresses(frames: &[Frame]) -> Vec<usize> {
        frames.iter().map(|frame| address(frame.bytes())).collect()
    }

    #[test]
    fn frames_of_many_are_taken_in_the_order_in_which_they_lie_however_they_come_back() {
        let mut pool = pool(1_000);
        let frames: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(frames.len(), 1_000);
        assert!(pool.is_empty());
        let lie = addresses(&frames);
        assert!(lie.is_sorted());
        let numbered = frames.into_iter().zip(0..);
        let (even, odd): (Vec<_>, Vec<_>) = numbered.partition(|(_, i)| i % 2 == 0);
        for (frame, _) in odd.into_iter().chain(even).rev() {
            pool.give_back(frame);
        }
        let some: Vec<_> = (0..300).filter_map(|_| pool.take()).collect();
        assert_eq!(addresses(&some), lie[..300]);
        // After the last buffer comes the first one that is in the pool.
        let held: Vec<_> = (0..700).filter_map(|_| pool.take()).collect();
        for frame in some.into_iter().skip(100) {
            pool.give_back(frame);
        }
        let again: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(addresses(&again), lie[100..300]);
        drop(held);
    }

    #[test]
    fn frames_of_few_come_again_when_all_others_have() {
        let mut pool = pool(3);
        let first: Vec<_> = (0..3).filter_map(|_| pool.take()).collect();
        assert!(pool.take().is_none());
        let lie = addresses(&first);
        first
            .into_iter()
            .rev()
            .for_each(|frame| pool.give_back(frame));
        let second: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert!(addresses(&second).iter().rev().eq(&lie));
    }

    #[test]
    fn buffers_that_lie_apart_come_back_to_their_places() {
        let (mut buffers, mut between) = (Vec::new(), Vec::new());
        for size in [1, 3, 7] {
            buffers.extend((0..10).map(|_| vec![0; CAPACITY].into_boxed_slice()));
            between.push(vec![0u8; size * 1_000]);
        }
        let mut pool = InOrder::new(buffers);
        let all: Vec<_> = pool.next(30).map(address).collect();
        assert_eq!(all.len(), 30);
        for _ in 0..3 {
            let taken: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
            assert!(
                taken
                    .iter()
                    .map(|buffer| address(buffer))
                    .eq(all.iter().copied())
            );
            taken
                .into_iter()
                .rev()
                .for_each(|buffer| pool.give_back(buffer));
            assert_eq!(pool.free, all.len());
        }
        drop(between);
    }

    #[test]
    fn what_is_of_another_pool_is_freed() {
        let buffer = || vec![0; CAPACITY].into_boxed_slice();
        let four = || InOrder::new((0..4).map(|_| buffer()).collect());
        let (mut one, mut other) = (four(), four());
        for _ in 0..10 {
            one.give_back(buffer());
            other.give_back(buffer());
        }
        assert_eq!((one.free, other.free), (4, 4));
        assert!(InOrder::new(Vec::new()).take().is_none());
        InOrder::new(Vec::new()).give_back(buffer());
    }
}
