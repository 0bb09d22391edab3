//! A ring of bytes that several threads access, each a range of its own.

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use crate::io::copy::Copier;
use crate::io::sync::Shadow;

/// Bytes of a ring, oldest first, in up to two parts.
pub(crate) type Parts<'a> = (&'a [u8], &'a [u8]);

/// Bytes of a block of rings, at most. Allocators map as much as this afresh; the kernel gives a
/// page when it is written first, so what no ring has used takes no memory. A short ring alone
/// would lie in memory that was used before, all of which would be overwritten with zeros.
const BLOCK: usize = 1 << 20;

/// Bytes of a ring that allocators map even if it is alone.
const ALONE: usize = 1 << 17;

/// Memory of several rings, all zero in the beginning.
struct Block(Box<[UnsafeCell<u8>]>);

// SAFETY: the bytes are accessed only through the rings that the block is divided into, whose
// callers guarantee that no two threads access one byte at the same time unless both read it.
unsafe impl Sync for Block {}

impl Block {
    fn new(len: usize) -> Self {
        let zeros = vec![0u8; len].into_boxed_slice();
        // SAFETY: `UnsafeCell<u8>` has the layout of `u8`, and the box is the only owner.
        Block(unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [UnsafeCell<u8>]) })
    }
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
        let (each, number) = (self.each, number as usize);
        match self.blocks.get(number / each) {
            Some(block) => {
                let block = block.get_or_init(|| Arc::new(Block::new(each * self.len)));
                ByteRing::of(Arc::clone(block), number % each * self.len, self.len)
            }
            None => ByteRing::of(Arc::new(Block::new(self.len)), 0, self.len),
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
            bytes: NonNull::from(&block.0[at..][..len]),
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
