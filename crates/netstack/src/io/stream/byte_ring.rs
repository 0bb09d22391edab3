//! A ring of bytes that several threads access, each in its own range.

use core::cell::UnsafeCell;
use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use crate::io::sync::{AtomicU64, Shadow};
use crate::packet::checksum::Cpu;

/// Bytes of a ring, oldest first, in up to two parts.
pub(crate) type Parts<'a> = (&'a [u8], &'a [u8]);

/// Most bytes of a block of rings. A block is a fresh mapping; the kernel supplies a page when it
/// is first written, so memory that no ring has used costs nothing.
const BLOCK: usize = 1 << 20;

/// A ring of this many bytes or more has its own block.
const ALONE: usize = 1 << 17;

/// Bytes of all mapped blocks of this process.
#[cfg(feature = "testkit")]
pub(crate) static MAPPED: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);

/// Memory of several rings, initially all zero. On Linux, a block of a page or more consists of
/// whole pages that contain nothing else.
struct Block {
    bytes: NonNull<[UnsafeCell<u8>]>,
    /// Whether it is a mapping of pages; otherwise it is a boxed slice of words.
    is_mapped: bool,
}

// SAFETY: the bytes are accessed only through the rings that the block is divided into, whose
// callers guarantee that no two threads access one byte at the same time unless both read it.
unsafe impl Sync for Block {}

// SAFETY: as above; any thread may free the memory.
unsafe impl Send for Block {}

impl Block {
    fn new(len: usize) -> Self {
        let mapped = if len < page_len() { None } else { map(len) };
        #[cfg(feature = "testkit")]
        if mapped.is_some() {
            MAPPED.fetch_add(len, core::sync::atomic::Ordering::Relaxed);
        }
        let start = mapped.unwrap_or_else(|| {
            // Allocated as words, since `Words` uses the memory as words.
            let words = vec![0u64; len.div_ceil(size_of::<u64>())].into_boxed_slice();
            NonNull::from(Box::leak(words)).cast()
        });
        Block {
            bytes: NonNull::slice_from_raw_parts(start, len),
            is_mapped: mapped.is_some(),
        }
    }

    fn part(&self, at: usize, len: usize) -> &[UnsafeCell<u8>] {
        // SAFETY: the block's own memory, all of which is initialised; it is only referred to as
        // cells and atomics.
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

/// Maps pages of zeros. Returns `None` if the system has none, so that the allocator reports the
/// failure.
#[cfg(target_os = "linux")]
fn map(len: usize) -> Option<NonNull<UnsafeCell<u8>>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel chooses the address, so no existing mapping changes.
    let start = unsafe { libc::mmap(core::ptr::null_mut(), len, access, flags, -1, 0) };
    NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED)
}

#[cfg(not(target_os = "linux"))]
fn map(_: usize) -> Option<NonNull<UnsafeCell<u8>>> {
    None
}

/// Unmaps the pages of a block, which is not used after that.
fn unmap(block: &Block) {
    #[cfg(target_os = "linux")]
    {
        let (start, len) = (block.bytes.as_ptr().cast(), block.bytes.len());
        // SAFETY: `map` mapped these pages for this block, and nothing uses the block any longer.
        // The only errors are for invalid arguments.
        unsafe { libc::munmap(start, len) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = block;
}

/// Returns the whole pages among the `len` bytes at `start`, a part of a block, to the system.
/// After that each byte is 0 or keeps its old value, and writing it takes memory again. Linux only;
/// elsewhere, and if the system refuses, nothing happens.
///
/// # Safety
/// Bytes that other threads write there meanwhile may be lost, and no thread relies on the old
/// value of the bytes.
unsafe fn discard_pages(start: *mut u8, len: usize) {
    #[cfg(target_os = "linux")]
    {
        let page = page_len();
        let skipped = start.align_offset(page);
        let len = len.saturating_sub(skipped) / page * page;
        if len > 0 {
            let start = start.wrapping_add(skipped);
            // SAFETY: the pages are within the bytes, which the caller allows to change.
            unsafe { libc::madvise(start.cast(), len, libc::MADV_DONTNEED) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, len);
}

/// The memory of the rings of all streams of a table, in blocks. A block is allocated when its
/// first ring is made.
pub(super) struct RingBlocks {
    /// Empty if each ring has its own block.
    blocks: Box<[OnceLock<Arc<Block>>]>,
    /// Number of rings in a block.
    each: usize,
    /// Bytes of a ring, and the distance between the starts of two rings.
    len: usize,
    stride: usize,
}

impl RingBlocks {
    /// Memory for `rings` rings of `len` bytes, a power of two.
    pub(super) fn new(rings: usize, len: usize) -> Self {
        let page = page_len();
        // A ring that fills more than half of a page has the page alone, so that it can be
        // returned.
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

    /// Makes ring `number`. Rings made with the same number would share their bytes, so each is
    /// made once; the functions of a ring document which thread may access them.
    #[cold]
    pub(super) fn make(&self, number: u32) -> ByteRing {
        let (block, at) = self.place(number);
        ByteRing::of(block, at, self.len, self.stride)
    }

    /// As [`RingBlocks::make`], for words.
    #[cold]
    pub(super) fn make_words(&self, number: u32) -> Words {
        let (block, at) = self.place(number);
        Words::of(block, at, self.len, self.stride)
    }

    /// The block of ring `number`, and the offset of the ring in it.
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

/// Words that threads share, initially all 0.
pub(super) struct Words {
    /// A part of the block.
    #[cfg(not(netstack_loom))]
    words: NonNull<[AtomicU64]>,
    /// Bytes from the first one on that nothing else uses, padding included.
    #[cfg(not(netstack_loom))]
    own: usize,
    /// Keeps the words alive.
    #[cfg(not(netstack_loom))]
    _block: Arc<Block>,
    /// Loom's atomics are larger than 8 bytes.
    #[cfg(netstack_loom)]
    words: Box<[AtomicU64]>,
}

// SAFETY: a slice of atomics, which any thread may use, and a share of the block that contains it.
#[cfg(not(netstack_loom))]
unsafe impl Sync for Words {}

// SAFETY: as above.
#[cfg(not(netstack_loom))]
unsafe impl Send for Words {}

#[cfg(not(netstack_loom))]
impl Words {
    /// The `len` bytes at `at` of a block, both multiples of 8. Nothing else uses `own` bytes
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

    /// Returns the words' whole pages to the system. After that each word is 0 or keeps its old
    /// value.
    ///
    /// # Safety
    /// No thread writes the words meanwhile; threads that read them may find either value.
    pub(super) unsafe fn discard(&self) {
        // Words outside whole pages would keep their values; tests clear them to detect use.
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
        // accessed there only as atomics; an atomic has the layout of its integer, and any bytes
        // are a valid integer.
        #[cfg(not(netstack_loom))]
        unsafe {
            self.words.as_ref()
        }
    }
}

/// Bytes that threads share. Callers of its functions agree on which thread accesses which bytes.
pub(super) struct ByteRing {
    /// A part of the block.
    bytes: NonNull<[UnsafeCell<u8>]>,
    /// Bytes from the first one on that nothing else uses, padding included.
    own: usize,
    mask: u64,
    /// Access checks for each byte (loom).
    shadow: Shadow,
    /// Keeps the bytes alive.
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

    /// Returns the ring's whole pages to the system. After that each byte is 0 or keeps its old
    /// value.
    ///
    /// # Safety
    /// No thread reads or writes bytes of the ring meanwhile, and none relies on their old values.
    #[cold]
    pub(super) unsafe fn discard(&self) {
        self.shadow.write(0, self.bytes().len());
        // A ring shorter than a page would keep its bytes; tests overwrite them to detect use.
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

    /// The position of `[offset, offset + len)` in the ring: index and length of one or two parts.
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
    /// No other thread reads or writes these bytes meanwhile, and `from` is no longer than the
    /// ring.
    #[inline(always)]
    pub(super) unsafe fn write(&self, offset: u64, from: &[u8]) {
        assert!(from.len() <= self.bytes().len());
        let [(at, len), (_, rest)] = self.spans(offset, from.len());
        self.shadow.write(at, len);
        self.shadow.write(0, rest);
        let (front, back) = from.split_at(len);
        // SAFETY: `at + len` is within the ring, and so is the rest, at its start. The caller has
        // exclusive access to both ranges, so each slice is the only reference to its bytes while
        // it lives. The cells were initialised in `Block::new`.
        unsafe {
            let ring = UnsafeCell::raw_get(self.bytes().as_ptr());
            Cpu::this().copy(front, core::slice::from_raw_parts_mut(ring.add(at), len));
            if rest > 0 {
                Cpu::this().copy(back, core::slice::from_raw_parts_mut(ring, rest));
            }
        }
    }

    /// Lets `fill` write the bytes at `offset`, which do not wrap.
    ///
    /// # Safety
    /// No other thread reads or writes these bytes meanwhile.
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

    /// The bytes at `offset`, which do not wrap, for writing.
    ///
    /// # Safety
    /// No other thread reads or writes these bytes while the slice lives.
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
    /// No thread writes these bytes while the slices live.
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
