//! A ring of bytes that several threads access, each a range of its own.

use core::cell::UnsafeCell;
use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use crate::io::copy::Copier;
use crate::io::sync::{AtomicU64, Shadow};

/// Bytes of a ring, oldest first, in up to two parts.
pub(crate) type Parts<'a> = (&'a [u8], &'a [u8]);

/// Bytes of a block of rings, at most. A block is mapped afresh; the kernel gives a page when it is
/// written first, so what no ring has used takes no memory.
const BLOCK: usize = 1 << 20;

/// Bytes of a ring that has a block of its own.
const ALONE: usize = 1 << 17;

/// Bytes of all blocks of this process that are mapped.
#[cfg(feature = "testkit")]
pub(crate) static MAPPED: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);

/// Memory of several rings, all zero in the beginning. A block that is as long as a page is pages
/// of its own (Linux), so that a ring of whole pages shares none of them.
struct Block {
    bytes: NonNull<[UnsafeCell<u8>]>,
    /// Whether it is pages, or else words of the heap.
    is_mapped: bool,
}

// SAFETY: the bytes are accessed only through the rings that the block is divided into, whose
// callers guarantee that no two threads access one byte at the same time unless both read it.
unsafe impl Sync for Block {}

// SAFETY: as above; the memory may be freed by any thread.
unsafe impl Send for Block {}

impl Block {
    fn new(len: usize) -> Self {
        let mapped = if len < page_len() { None } else { map(len) };
        #[cfg(feature = "testkit")]
        if mapped.is_some() {
            MAPPED.fetch_add(len, core::sync::atomic::Ordering::Relaxed);
        }
        let start = mapped.unwrap_or_else(|| {
            // Words, as they may be used as such.
            let words = vec![0u64; len.div_ceil(size_of::<u64>())].into_boxed_slice();
            NonNull::from(Box::leak(words)).cast()
        });
        Block {
            bytes: NonNull::slice_from_raw_parts(start, len),
            is_mapped: mapped.is_some(),
        }
    }

    fn part(&self, at: usize, len: usize) -> &[UnsafeCell<u8>] {
        // SAFETY: the block's own memory, all of which was initialised; nothing refers to it but
        // as cells and atomics.
        let bytes = unsafe { self.bytes.as_ref() };
        &bytes[at..][..len]
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let (start, len) = (self.bytes.cast::<u64>(), self.bytes.len());
        if self.is_mapped {
            #[cfg(feature = "testkit")]
            MAPPED.fetch_sub(len, core::sync::atomic::Ordering::Relaxed);
            unmap(self);
            return;
        }
        let words = NonNull::slice_from_raw_parts(start, len.div_ceil(size_of::<u64>()));
        // SAFETY: `Block::new` leaked this box, and no ring is left that refers to it.
        drop(unsafe { Box::from_raw(words.as_ptr()) });
    }
}

/// Bytes of a page of memory.
#[cfg(target_os = "linux")]
fn page_len() -> usize {
    // SAFETY: takes an integer only.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(not(target_os = "linux"))]
const fn page_len() -> usize {
    4096
}

/// Pages of zeros; `None` if the system has no such, so that the allocator says what happens then.
#[cfg(target_os = "linux")]
fn map(len: usize) -> Option<NonNull<UnsafeCell<u8>>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel chooses the place, so nothing that is mapped already changes.
    let start = unsafe { libc::mmap(core::ptr::null_mut(), len, access, flags, -1, 0) };
    NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED)
}

#[cfg(not(target_os = "linux"))]
fn map(_: usize) -> Option<NonNull<UnsafeCell<u8>>> {
    None
}

/// Gives the pages of a block back, which is not used after that.
fn unmap(block: &Block) {
    #[cfg(target_os = "linux")]
    {
        let (start, len) = (block.bytes.as_ptr().cast(), block.bytes.len());
        // SAFETY: `map` mapped them for this block, whose last user is here. It cannot fail in a
        // way that matters.
        unsafe { libc::munmap(start, len) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = block;
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
            // SAFETY: the pages lie within the bytes, which the caller allows to change.
            unsafe { libc::madvise(start.cast(), len, libc::MADV_DONTNEED) };
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
    /// Bytes of a ring, and from the beginning of one to that of the next.
    len: usize,
    stride: usize,
}

impl RingBlocks {
    /// For so many rings of `len` bytes, a power of two.
    pub(super) fn new(rings: usize, len: usize) -> Self {
        let page = page_len();
        // What fills more than half of a page has it alone, so that it can be given back.
        let stride = if len < page && 2 * len >= page {
            page
        } else {
            len
        };
        let (blocks, each) = if stride < ALONE {
            let each = (BLOCK / stride).min(rings).max(1);
            (rings.div_ceil(each), each)
        } else {
            (0, 1)
        };
        RingBlocks {
            blocks: (0..blocks).map(|_| OnceLock::new()).collect(),
            each,
            len,
            stride,
        }
    }

    /// Makes ring `number`. Those that are made with one number share their bytes, so it is made
    /// once; the functions of a ring say who may access them.
    #[cold]
    pub(super) fn make(&self, number: u32) -> ByteRing {
        let (block, at) = self.place(number);
        ByteRing::of(block, at, self.len, self.stride)
    }

    /// As [`RingBlocks::make`], words in place of bytes.
    #[cold]
    pub(super) fn make_words(&self, number: u32) -> Words {
        let (block, at) = self.place(number);
        Words::of(block, at, self.len, self.stride)
    }

    /// Where ring `number` lies.
    fn place(&self, number: u32) -> (Arc<Block>, usize) {
        let (each, number) = (self.each, number as usize);
        match self.blocks.get(number / each) {
            Some(block) => {
                let block = block.get_or_init(|| Arc::new(Block::new(each * self.stride)));
                (Arc::clone(block), number % each * self.stride)
            }
            None => (Arc::new(Block::new(self.stride)), 0),
        }
    }
}

/// Words that threads share, all 0 in the beginning.
pub(super) struct Words {
    /// A part of the block.
    #[cfg(not(netstack_loom))]
    words: NonNull<[AtomicU64]>,
    /// Bytes from the first one on that nothing else uses.
    #[cfg(not(netstack_loom))]
    own: usize,
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
    /// The `len` bytes at `at` of a block, a multiple of 8 both. Nothing else uses `own` bytes
    /// there.
    fn of(block: Arc<Block>, at: usize, len: usize, own: usize) -> Self {
        let bytes = NonNull::from(block.part(at, own)).cast::<AtomicU64>();
        assert!(bytes.is_aligned() && len <= own);
        Words {
            words: NonNull::slice_from_raw_parts(bytes, len / size_of::<AtomicU64>()),
            own,
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
        unsafe { discard_pages(self.words.as_ptr().cast(), self.own) };
    }
}

#[cfg(netstack_loom)]
impl Words {
    fn of(_: Arc<Block>, _: usize, len: usize, _: usize) -> Self {
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
    /// Bytes from the first one on that nothing else uses.
    own: usize,
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
    /// The `len` bytes at `at` of a block; `len` is a power of two. Nothing else uses `own` bytes
    /// there.
    fn of(block: Arc<Block>, at: usize, len: usize, own: usize) -> Self {
        let bytes = NonNull::from(block.part(at, own)).cast();
        ByteRing {
            bytes: NonNull::slice_from_raw_parts(bytes, len),
            own,
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
        if self.own < page_len() {
            for byte in self.bytes() {
                // SAFETY: the caller's promise.
                unsafe { *byte.get() = 0xa5 };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { discard_pages(self.bytes.as_ptr().cast(), self.own) };
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
