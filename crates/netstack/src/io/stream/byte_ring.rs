//! A ring of bytes that several threads access, each a range of its own.

use core::cell::UnsafeCell;
use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use crate::io::copy::Copier;
use crate::io::sync::{AtomicU64, Shadow};

/// Bytes of a ring, oldest first, in up to two parts.
pub(crate) type Parts<'a> = (&'a [u8], &'a [u8]);

/// Bytes of a block of rings, at most. Allocators map as much as this afresh; the kernel gives a
/// page when it is written first, so what no ring has used takes no memory. A short ring alone
/// would lie in memory that was used before, all of which would be overwritten with zeros.
const BLOCK: usize = 1 << 20;

/// Bytes of a ring that allocators map even if it is alone.
const ALONE: usize = 1 << 17;

/// Memory of several rings, all zero in the beginning.
struct Block {
    bytes: Box<[UnsafeCell<u8>]>,
    /// Where the first ring begins: at a page if the block is as long as one, so that a ring of
    /// whole pages shares none of them.
    start: usize,
}

// SAFETY: the bytes are accessed only through the rings that the block is divided into, whose
// callers guarantee that no two threads access one byte at the same time unless both read it.
unsafe impl Sync for Block {}

impl Block {
    fn new(len: usize) -> Self {
        let page = page_len();
        let align = if len < page { align_of::<u64>() } else { page };
        // An allocator that is asked for pages writes all of them, one that is asked for zeros does
        // not.
        let zeros = vec![0u8; len + align - 1].into_boxed_slice();
        let start = zeros.as_ptr().align_offset(align);
        // SAFETY: `UnsafeCell<u8>` has the layout of `u8`, and the box is the only owner.
        let bytes = unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [UnsafeCell<u8>]) };
        Block { bytes, start }
    }

    fn part(&self, at: usize, len: usize) -> &[UnsafeCell<u8>] {
        &self.bytes[self.start + at..][..len]
    }
}

/// Bytes of a page of memory.
fn page_len() -> usize {
    #[cfg(target_os = "linux")]
    return rustix::param::page_size();
    #[cfg(not(target_os = "linux"))]
    4096
}

/// Gives the whole pages among the `len` bytes at `start`, which are a part of a block, back to the
/// system. After that each byte is 0 or what it was, and takes memory when it is written. Linux
/// only; elsewhere, and if the system refuses, nothing happens.
///
/// # Safety
/// What other threads write there meanwhile may be lost, and no thread relies on the bytes being
/// what they were.
unsafe fn discard_pages(start: *mut u8, len: usize) {
    #[cfg(target_os = "linux")]
    {
        let page = page_len();
        let skipped = start.align_offset(page);
        let len = len.saturating_sub(skipped) / page * page;
        if len > 0 {
            let start = start.wrapping_add(skipped);
            let advice = rustix::mm::Advice::LinuxDontNeed;
            // SAFETY: the pages lie within the bytes, which the caller allows to change; they are
            // of a heap, which is memory without a file behind it.
            let _ = unsafe { rustix::mm::madvise(start.cast(), len, advice) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, len);
}

/// The memory of the rings of all streams of a table, in blocks that are allocated when the first
/// ring of each is made.
pub(super) struct RingBlocks {
    /// Empty if each ring has a block of its own.
    blocks: Box<[OnceLock<Arc<Block>>]>,
    /// Rings of a block.
    each: usize,
    /// Bytes of a ring.
    len: usize,
}

impl RingBlocks {
    /// For so many rings of `len` bytes, a power of two.
    pub(super) fn new(rings: usize, len: usize) -> Self {
        let (blocks, each) = if len < ALONE {
            let each = (BLOCK / len).min(rings).max(1);
            (rings.div_ceil(each), each)
        } else {
            (0, 1)
        };
        RingBlocks {
            blocks: (0..blocks).map(|_| OnceLock::new()).collect(),
            each,
            len,
        }
    }

    /// Makes ring `number`. Those that are made with one number share their bytes, so it is made
    /// once; the functions of a ring say who may access them.
    #[cold]
    pub(super) fn make(&self, number: u32) -> ByteRing {
        let (block, at) = self.place(number);
        ByteRing::of(block, at, self.len)
    }

    /// As [`RingBlocks::make`], words in place of bytes.
    #[cold]
    pub(super) fn make_words(&self, number: u32) -> Words {
        let (block, at) = self.place(number);
        Words::of(block, at, self.len)
    }

    /// Where ring `number` lies.
    fn place(&self, number: u32) -> (Arc<Block>, usize) {
        let (each, number) = (self.each, number as usize);
        match self.blocks.get(number / each) {
            Some(block) => {
                let block = block.get_or_init(|| Arc::new(Block::new(each * self.len)));
                (Arc::clone(block), number % each * self.len)
            }
            None => (Arc::new(Block::new(self.len)), 0),
        }
    }
}

/// Words that threads share, all 0 in the beginning.
pub(super) struct Words {
    /// A part of the block.
    #[cfg(not(netstack_loom))]
    words: NonNull<[AtomicU64]>,
    /// Keeps the words.
    #[cfg(not(netstack_loom))]
    _block: Arc<Block>,
    /// Loom's are more than their bytes.
    #[cfg(netstack_loom)]
    words: Box<[AtomicU64]>,
}

// SAFETY: a slice of atomics, which any thread may use, and a share of the block that it lies in.
#[cfg(not(netstack_loom))]
unsafe impl Sync for Words {}

// SAFETY: as above.
#[cfg(not(netstack_loom))]
unsafe impl Send for Words {}

#[cfg(not(netstack_loom))]
impl Words {
    /// The `len` bytes at `at` of a block, a multiple of 8 both.
    fn of(block: Arc<Block>, at: usize, len: usize) -> Self {
        let bytes = NonNull::from(block.part(at, len)).cast::<AtomicU64>();
        assert!(bytes.is_aligned());
        Words {
            words: NonNull::slice_from_raw_parts(bytes, len / size_of::<AtomicU64>()),
            _block: block,
        }
    }

    /// Gives their memory back to the system, as far as it is whole pages. After that each is 0 or
    /// what it was.
    ///
    /// # Safety
    /// No thread writes them meanwhile; threads that read them may find either.
    pub(super) unsafe fn discard(&self) {
        // What is not whole pages stays, but tests want to see the difference.
        #[cfg(any(test, feature = "testkit"))]
        for word in self.iter() {
            word.store(0, core::sync::atomic::Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { discard_pages(self.words.as_ptr().cast(), size_of_val(&**self)) };
    }
}

#[cfg(netstack_loom)]
impl Words {
    fn of(_: Arc<Block>, _: usize, len: usize) -> Self {
        let words = (0..len / 8).map(|_| AtomicU64::new(0)).collect();
        Words { words }
    }

    /// # Safety
    /// None is needed here.
    pub(super) unsafe fn discard(&self) {
        for word in self.iter() {
            word.store(0, core::sync::atomic::Ordering::Relaxed);
        }
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline(always)]
    fn deref(&self) -> &[AtomicU64] {
        #[cfg(netstack_loom)]
        return &self.words;
        // SAFETY: a part of the block, which lives as long as `self`, never moves its bytes and is
        // accessed there as atomics alone; an atomic has the layout of its integer, for which any
        // bytes are a value.
        #[cfg(not(netstack_loom))]
        unsafe {
            self.words.as_ref()
        }
    }
}

/// Bytes that threads share. The callers of its functions agree on which thread accesses which.
pub(super) struct ByteRing {
    /// A part of the block.
    bytes: NonNull<[UnsafeCell<u8>]>,
    mask: u64,
    /// Access checks for each byte (loom).
    shadow: Shadow,
    /// Keeps the bytes.
    _block: Arc<Block>,
}

// SAFETY: the bytes are accessed only through the `unsafe` functions below, whose callers guarantee
// that no two threads access one byte at the same time unless both read it.
unsafe impl Sync for ByteRing {}

// SAFETY: as above; it owns a share of the block, which may be dropped on any thread.
unsafe impl Send for ByteRing {}

impl ByteRing {
    /// The `len` bytes at `at` of a block; `len` is a power of two.
    fn of(block: Arc<Block>, at: usize, len: usize) -> Self {
        ByteRing {
            bytes: NonNull::from(block.part(at, len)),
            mask: len as u64 - 1,
            shadow: Shadow::new(len),
            _block: block,
        }
    }

    #[inline(always)]
    fn bytes(&self) -> &[UnsafeCell<u8>] {
        // SAFETY: a slice of the block, which lives as long as `self` and never moves its bytes.
        unsafe { self.bytes.as_ref() }
    }

    /// Gives the ring's memory back to the system, as far as it is whole pages. After that each
    /// byte is 0 or what it was.
    ///
    /// # Safety
    /// No thread reads or writes bytes of the ring meanwhile, and none relies on what they were.
    #[cold]
    pub(super) unsafe fn discard(&self) {
        self.shadow.write(0, self.bytes().len());
        // What is no page stays as it is, but tests want to see the difference.
        #[cfg(any(test, feature = "testkit"))]
        if self.bytes().len() < page_len() {
            for byte in self.bytes() {
                // SAFETY: the caller's promise.
                unsafe { *byte.get() = 0xa5 };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { discard_pages(self.bytes.as_ptr().cast(), self.bytes().len()) };
    }

    /// Where `[offset, offset + len)` lies: index and length of one or two parts.
    #[inline]
    pub(super) fn spans(&self, offset: u64, len: usize) -> [(usize, usize); 2] {
        debug_assert!(
            len as u64 <= self.mask + 1,
            "{len} bytes in a ring of {}",
            self.mask + 1
        );
        let at = (offset & self.mask) as usize;
        let first = len.min(self.bytes().len() - at);
        [(at, first), (0, len - first)]
    }

    /// Copies `from` to `offset`.
    ///
    /// # Safety
    /// Nobody else reads or writes these bytes meanwhile, and `from` is no longer than the ring.
    #[inline(always)]
    pub(super) unsafe fn write(&self, offset: u64, from: &[u8]) {
        assert!(from.len() <= self.bytes().len());
        let [(at, len), (_, rest)] = self.spans(offset, from.len());
        self.shadow.write(at, len);
        self.shadow.write(0, rest);
        let (front, back) = from.split_at(len);
        // SAFETY: `at + len` is within the ring, and so is the rest, at its beginning. The caller
        // has exclusive access to both ranges, so each slice is the only reference to its bytes
        // while it lives. The cells were initialised in `Block::new`.
        unsafe {
            let ring = UnsafeCell::raw_get(self.bytes().as_ptr());
            Copier::here().copy(front, core::slice::from_raw_parts_mut(ring.add(at), len));
            if rest > 0 {
                Copier::here().copy(back, core::slice::from_raw_parts_mut(ring, rest));
            }
        }
    }

    /// Lets `fill` write the bytes at `offset`, in up to two parts; its first argument is the
    /// number of bytes before the part.
    ///
    /// # Safety
    /// Nobody else reads or writes these bytes meanwhile, and they are no more than the ring has.
    #[inline]
    pub(super) unsafe fn write_by(
        &self,
        offset: u64,
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) {
        assert!(len <= self.bytes().len());
        let mut done = 0;
        for (at, len) in self.spans(offset, len) {
            if len == 0 {
                continue;
            }
            self.shadow.write(at, len);
            // SAFETY: `at + len` is within the ring, and the caller has exclusive access to the
            // range, so the slice is the only reference to its bytes while it lives. The cells were
            // initialised in `Block::new`.
            let part = unsafe {
                let first = UnsafeCell::raw_get(self.bytes().as_ptr().add(at));
                core::slice::from_raw_parts_mut(first, len)
            };
            fill(done, part);
            done += len;
        }
    }

    /// Lets `fill` write the bytes at `offset`, which do not wrap.
    ///
    /// # Safety
    /// Nobody else reads or writes these bytes meanwhile.
    #[inline]
    pub(super) unsafe fn write_at<R>(
        &self,
        offset: u64,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let at = (offset & self.mask) as usize;
        let part = &self.bytes()[at..][..len];
        self.shadow.write(at, len);
        // SAFETY: the caller has exclusive access to the range, so the slice is the only reference
        // to its bytes while it lives. The cells were initialised in `Block::new`.
        fill(unsafe {
            core::slice::from_raw_parts_mut(UnsafeCell::raw_get(part.as_ptr()), part.len())
        })
    }

    /// The bytes at `offset`, which do not wrap, to be written.
    ///
    /// # Safety
    /// Nobody else reads or writes these bytes while the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller has exclusive access to the bytes"
    )]
    pub(super) unsafe fn slice_mut(&self, offset: u64, len: usize) -> &mut [u8] {
        let at = (offset & self.mask) as usize;
        let part = &self.bytes()[at..][..len];
        self.shadow.write(at, len);
        // SAFETY: the caller has exclusive access to the range, so the slice is the only reference
        // to its bytes while it lives. The cells were initialised in `Block::new`.
        unsafe { core::slice::from_raw_parts_mut(UnsafeCell::raw_get(part.as_ptr()), part.len()) }
    }

    /// The bytes at `offset`, in up to two parts.
    ///
    /// # Safety
    /// Nobody writes these bytes while the slices live.
    #[inline]
    pub(super) unsafe fn read(&self, offset: u64, len: usize) -> (&[u8], &[u8]) {
        assert!(len <= self.bytes().len());
        let [(a, a_len), (b, b_len)] = self.spans(offset, len);
        self.shadow.read(a, a_len);
        self.shadow.read(b, b_len);
        // SAFETY: both ranges are within the ring, and the caller guarantees that no thread writes
        // them.
        unsafe {
            (
                core::slice::from_raw_parts(self.bytes().as_ptr().add(a).cast::<u8>(), a_len),
                core::slice::from_raw_parts(self.bytes().as_ptr().add(b).cast::<u8>(), b_len),
            )
        }
    }
}
