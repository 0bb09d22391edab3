//! Memory that is mapped.

use libc::{c_int, c_void};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use super::check;

/// Pages that are mapped for as long as this lives.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length. Code that reads or writes there says why it may.
unsafe impl Send for Mapping {}

// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Bytes of a page of memory.
pub(crate) fn page_len() -> usize {
    // SAFETY: takes an integer only.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Mapping {
    /// Maps `len` bytes of what the descriptor offers at `offset`, all of them present.
    pub(crate) fn shared(
        fd: BorrowedFd<'_>,
        len: usize,
        offset: u64,
        writable: bool,
    ) -> io::Result<Self> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Self::map(len, protection, flags, fd.as_raw_fd(), offset)
    }

    /// Maps `len` bytes of memory of our own, all zero.
    pub(crate) fn private(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::map(len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    }

    fn map(
        len: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: u64,
    ) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: the kernel chooses the place, so nothing that is mapped already changes.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// Where the mapping begins.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes the pages readable only, for good.
    pub(crate) fn forbid_writes(&self) -> io::Result<()> {
        // SAFETY: the pages are mapped as long as `self` lives. No reference to them is made here;
        // code that has the address says why it may access it.
        check(unsafe { libc::mprotect(self.start.as_ptr().cast(), self.len, libc::PROT_READ) })
            .map(drop)
    }

    /// Replaces the pages at `target` by this mapping, in one step: a thread that reads there
    /// meanwhile sees the old pages or the new ones.
    ///
    /// # Safety
    /// `target` is the start of as many whole pages that the caller has mapped, the bytes there are
    /// those of this mapping, and no thread writes to either.
    pub(crate) unsafe fn replace(self, target: *mut u8) -> io::Result<()> {
        // SAFETY: the caller's promise; the place where this mapping was is given up, see below.
        unsafe { move_pages(self.start.as_ptr(), target, self.len) }?;
        mem::forget(self);
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` mapped these pages for this value, and code that has an address in them
        // keeps the value alive.
        unsafe { unmap(self.start.as_ptr(), self.len) };
    }
}

/// Moves pages over others, in one step. Their old place is unmapped.
///
/// # Safety
/// Both are starts of `len` bytes of whole pages that the caller has mapped, and no thread uses
/// those at `from`.
pub(crate) unsafe fn move_pages(from: *mut u8, to: *mut u8, len: usize) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller's promise.
    let moved = unsafe { libc::mremap(from.cast(), len, len, flags, to.cast::<c_void>()) };
    if moved == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Unmaps pages.
///
/// # Safety
/// They are whole pages that the caller has mapped, and no thread uses them any more.
pub(crate) unsafe fn unmap(start: *mut u8, len: usize) {
    // SAFETY: the caller's promise. It cannot fail in a way that matters.
    unsafe { libc::munmap(start.cast(), len) };
}
