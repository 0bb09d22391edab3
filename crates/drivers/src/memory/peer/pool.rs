//! The prebuilt frames of the peer, and the order in which they circulate.

use std::collections::VecDeque;
use std::ops::Range;

use crate::prefetch::prefetch;
use crate::{Frame, RxMeta};

/// Prebuilt frames that are alike but for their numbers. Only their buffers are kept, as in a
/// card's ring; a buffer becomes a frame when it is taken.
#[derive(Debug)]
pub(super) struct Pool {
    buffers: Buffers,
    len: usize,
    meta: RxMeta,
}

#[derive(Debug)]
enum Buffers {
    /// So few that they stay in a cache, where order makes no difference; the one that was unused
    /// for longest first.
    Few(VecDeque<Box<[u8]>>),
    Many(InOrder),
}

/// Bytes of buffers that stay in a cache, at most.
const FEW: usize = 1 << 20;

impl Pool {
    /// `count` frames like `bytes` in buffers that begin with a cache line, as a network card's do,
    /// so that the headers are one line. For that the allocator is moved on until it gives such
    /// buffers, and asked for whole lines from then on.
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
        let buffers = (0..count).map(|_| copy());
        Pool {
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

    /// Fetches the first `len` bytes of the next `count` frames, as far as they are there, into a
    /// cache, where a network card leaves them: the one of the core that takes them.
    #[inline(always)]
    pub(super) fn prefetch(&self, count: usize, len: usize) {
        let fetch = |buffer: &[u8]| prefetch(&buffer[..len]);
        match &self.buffers {
            Buffers::Few(buffers) => buffers.iter().take(count).for_each(|buffer| fetch(buffer)),
            Buffers::Many(buffers) => buffers.next(count).for_each(fetch),
        }
    }
}

/// For division by a multiplication: exact up to 2^40 bytes in less than 2^24 buffers.
const SHIFT: u32 = 40;

/// Addresses from that of a buffer up to the next stretch, and which buffer that is.
#[derive(Clone, Debug, Default)]
struct Stretch {
    addresses: Range<usize>,
    first: usize,
}

/// Buffers that are taken in the order of their addresses, round and round, in whichever order they
/// were given back. Reading buffers from all over the pool takes half as long again, and stacks
/// whose cores finish in another order than they began would get them so after a while.
#[derive(Debug)]
struct InOrder {
    /// Those that are out are `None`.
    buffers: Vec<Option<Box<[u8]>>>,
    /// Wherever they do not follow each other at the same distance: the address of a buffer, and
    /// which one it is.
    stretches: Vec<(usize, usize)>,
    /// Of the buffer that was given back last.
    last: Stretch,
    /// 2 to the power of [`SHIFT`] by that distance, rounded up.
    inverse: u64,
    /// Where to look for the next one.
    next: usize,
    /// How many are there.
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

    /// Puts a buffer back into its place. A buffer whose place is taken, or that has none, is
    /// freed.
    #[inline]
    fn give_back(&mut self, buffer: Box<[u8]>) {
        let place = self.place(address(&buffer));
        if let Some(place @ None) = self.buffers.get_mut(place) {
            *place = Some(buffer);
            self.free += 1;
        }
    }

    /// Which one lies there.
    #[inline]
    fn place(&mut self, address: usize) -> usize {
        if !self.last.addresses.contains(&address) {
            self.last = self.stretch(address);
        }
        // The distance divides it, so this is exact; of others it may be anything.
        let times = ((address - self.last.addresses.start) as u64).wrapping_mul(self.inverse);
        self.last.first + (times >> SHIFT) as usize
    }

    #[cold]
    fn stretch(&self, address: usize) -> Stretch {
        let behind = self.stretches.partition_point(|(from, _)| *from <= address);
        let (from, first) = match behind.checked_sub(1) {
            Some(at) => self.stretches[at],
            // None of them.
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

    /// Those of the next `count` that are there.
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

    fn pool(count: usize) -> Pool {
        Pool::new(&[7; 60], CAPACITY, count, RxMeta::default())
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
        // Behind the last one comes the first that is there.
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
