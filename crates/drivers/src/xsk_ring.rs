//! The rings between an AF_XDP socket and the kernel, each with a producer and a consumer side.
//!
//! Indices only grow and wrap at 2^32; an index modulo the length selects an entry. The producer
//! writes entries and then advances its index; the consumer reads them and then advances its own.
//! Each side keeps a copy of the other's index and reads the real one only when the copy does not
//! suffice.
//!
//! Shared memory is accessed through raw pointers and atomics only. The kernel is trusted not to
//! break memory safety: entries are plain integers, and code checks those that it uses as
//! addresses.

#![allow(unsafe_code)]

use crate::sys::Mapping;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Offsets of the parts of a ring, in bytes from the start of its mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub(crate) producer: usize,
    pub(crate) consumer: usize,
    pub(crate) entries: usize,
    pub(crate) flags: usize,
}

/// A type that can be an entry.
///
/// # Safety
/// Every bit pattern is a value, and the alignment divides 8.
pub(crate) unsafe trait Entry: Copy {}

// SAFETY: an integer.
unsafe impl Entry for u64 {}

/// A frame or a piece of one: `struct xdp_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct XskDescriptor {
    /// Offset from the start of the region, in bytes.
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) options: u32,
}

// SAFETY: integers without padding between them.
unsafe impl Entry for XskDescriptor {}

/// A ring in shared memory.
#[derive(Debug)]
struct XskRing<T> {
    mapping: Mapping,
    offsets: Offsets,
    /// The number of entries minus one. The number is a power of two.
    mask: u32,
    entry: std::marker::PhantomData<T>,
}

impl<T: Entry> XskRing<T> {
    /// # Panics
    /// If the length is not a power of two, or a part is not in the mapping or not at a multiple of
    /// 8.
    fn new(mapping: Mapping, offsets: Offsets, len: u32) -> Self {
        assert!(len.is_power_of_two(), "{len} entries");
        let Offsets {
            producer,
            consumer,
            entries,
            flags,
        } = offsets;
        for word in [producer, consumer, flags] {
            assert!(word % 4 == 0 && word + 4 <= mapping.len(), "{offsets:?}");
        }
        assert!(
            entries % 8 == 0 && entries + len as usize * size_of::<T>() <= mapping.len(),
            "{offsets:?}"
        );
        Self {
            mapping,
            offsets,
            mask: len - 1,
            entry: std::marker::PhantomData,
        }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `at` is one of the offsets, which `new` has checked: inside the mapping and
        // aligned. Both sides access these words only atomically.
        unsafe { AtomicU32::from_ptr(self.mapping.start().add(at).cast()) }
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    fn entry(&self, index: u32) -> *mut T {
        let at = self.offsets.entries + (index & self.mask) as usize * size_of::<T>();
        // SAFETY: the index is below the length, so the entry is in the mapping, as `new` has
        // checked.
        unsafe { self.mapping.start().add(at).cast() }
    }
}

/// The side that writes entries. Neither side is `Clone`, so each is unique.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    ring: XskRing<T>,
    /// Index of the next entry to write. The consumer can see entries below `published`.
    next: u32,
    published: u32,
    /// The consumer's index as last read.
    consumed: u32,
}

impl<T: Entry> Producer<T> {
    /// Panics as [`XskRing::new`].
    pub(crate) fn new(mapping: Mapping, offsets: Offsets, len: u32) -> Self {
        let ring = XskRing::<T>::new(mapping, offsets, len);
        let next = ring.producer().load(Relaxed);
        let consumed = ring.consumer().load(Relaxed);
        Self {
            ring,
            next,
            published: next,
            consumed,
        }
    }

    /// Number of entries that can be written without waiting. Exact if it is less than `wanted`.
    #[inline]
    pub(crate) fn room(&mut self, wanted: u32) -> u32 {
        let room = |producer: &Self| {
            producer.ring.mask + 1 - producer.next.wrapping_sub(producer.consumed)
        };
        if room(self) < wanted {
            // ORDERING: Acquire, pairs with the consumer's release of its index: the consumer has
            // read the entries that are overwritten next.
            self.consumed = self.ring.consumer().load(Acquire);
        }
        room(self)
    }

    /// Writes an entry, which the consumer sees after [`publish`](Self::publish). False if the
    /// ring is full.
    #[inline]
    pub(crate) fn push(&mut self, entry: T) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        // SAFETY: inside the ring. The consumer does not read the entry before the index moves,
        // and has finished reading its old value.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Makes written entries visible to the consumer. False if there are none.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        if self.published == self.next {
            return false;
        }
        // ORDERING: Release, pairs with the consumer's Acquire load: writes to entries, and to the
        // frames they name, come before.
        self.ring.producer().store(self.next, Release);
        self.published = self.next;
        true
    }

    /// Number of published entries that the consumer has not taken.
    pub(crate) fn pending(&mut self) -> u32 {
        // ORDERING: Acquire, as in `room`.
        self.consumed = self.ring.consumer().load(Acquire);
        self.published.wrapping_sub(self.consumed)
    }

    /// Whether the consumer sleeps until a system call wakes it.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        // ORDERING: Relaxed, as in the kernel's own libraries: the consumer sets the flag before
        // it checks the ring a last time.
        self.ring.word(self.ring.offsets.flags).load(Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// The side that reads entries.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    ring: XskRing<T>,
    next: u32,
    /// The producer's index as last read.
    produced: u32,
}

impl<T: Entry> Consumer<T> {
    /// Panics as [`XskRing::new`].
    pub(crate) fn new(mapping: Mapping, offsets: Offsets, len: u32) -> Self {
        let ring = XskRing::<T>::new(mapping, offsets, len);
        let next = ring.consumer().load(Relaxed);
        Self {
            ring,
            next,
            produced: next,
        }
    }

    /// Whether there is an entry.
    #[inline]
    pub(crate) fn is_ready(&mut self) -> bool {
        if self.produced == self.next {
            // ORDERING: Acquire, pairs with the producer's Release: its earlier writes are visible.
            self.produced = self.ring.producer().load(Acquire);
        }
        self.produced != self.next
    }

    /// Reads an entry. The producer can reuse it after [`release`](Self::release).
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if !self.is_ready() {
            return None;
        }
        // SAFETY: inside the ring. The producer has written the entry, and does not write it again
        // before `release`.
        let entry = unsafe { self.ring.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Lets the producer reuse all entries read so far.
    #[inline]
    pub(crate) fn release(&mut self) {
        // ORDERING: Release, pairs with the producer's Acquire in `room`: entries were read before.
        self.ring.consumer().store(self.next, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::os::fd::AsFd;
    use std::thread;

    const OFFSETS: Offsets = Offsets {
        producer: 0,
        consumer: 64,
        flags: 128,
        entries: 192,
    };

    /// Both sides of a ring in plain memory, with indices that begin at `start`.
    fn pair(len: u32, start: u32) -> (Producer<u64>, Consumer<u64>) {
        let bytes = OFFSETS.entries + len as usize * 8;
        let memory = crate::sys::shared_memory(bytes).unwrap();
        let map = || Mapping::shared(memory.as_fd(), bytes, 0, true).unwrap();
        let ring = XskRing::<u64>::new(map(), OFFSETS, len);
        ring.producer().store(start, Relaxed);
        ring.consumer().store(start, Relaxed);
        (
            Producer::new(map(), OFFSETS, len),
            Consumer::new(map(), OFFSETS, len),
        )
    }

    proptest! {
        #[test]
        fn a_ring_is_a_bounded_queue_also_where_indices_wrap(
            before in 0u32..20, steps in prop::collection::vec((0u8..4, 1usize..9), 1..200)
        ) {
            let (mut producer, mut consumer) = pair(8, u32::MAX - before);
            // Entries that are written, that are published, and that are read but not released.
            let (mut written, mut shown, mut held) = (VecDeque::new(), VecDeque::new(), 0);
            let mut number = 0u64;
            for (step, times) in steps {
                for _ in 0..times {
                    match step {
                        0 => {
                            let room = written.len() + shown.len() + held < 8;
                            prop_assert_eq!(producer.push(number), room);
                            if room {
                                written.push_back(number);
                            }
                            number += 1;
                        }
                        1 => {
                            prop_assert_eq!(producer.publish(), !written.is_empty());
                            shown.append(&mut written);
                        }
                        2 => {
                            let expected = shown.pop_front();
                            held += usize::from(expected.is_some());
                            prop_assert_eq!(consumer.pop(), expected);
                        }
                        _ => {
                            consumer.release();
                            held = 0;
                            prop_assert_eq!(producer.pending() as usize, shown.len());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn entries_pass_between_threads_in_order() {
        let (mut producer, mut consumer) = pair(16, u32::MAX - 1000);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..10_000 {
                    while !producer.push(number) {
                        thread::yield_now();
                    }
                    producer.publish();
                }
            });
            for number in 0..10_000 {
                while !consumer.is_ready() {
                    thread::yield_now();
                }
                assert_eq!(consumer.pop(), Some(number));
                consumer.release();
            }
        });
    }

    #[test]
    #[should_panic(expected = "12 entries")]
    fn a_length_that_is_no_power_of_two_is_refused() {
        pair(12, 0);
    }
}
