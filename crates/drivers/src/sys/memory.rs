//! Memory mappings.

use libc::{c_int, c_void};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use super::check;

/// Pages that are mapped as long as this lives.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length. Code that reads or writes the pages justifies that itself.
unsafe impl Send for Mapping {}

// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Length of a memory page in bytes.
pub(crate) fn page_len() -> usize {
    // SAFETY: takes an integer only.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Mapping {
    /// Maps `len` bytes of the descriptor from `offset` on, and populates all pages.
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

    /// Maps `len` bytes of private memory, all zero.
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
        // SAFETY: the kernel chooses the address, so no existing mapping changes.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// Start of the mapping.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Length of the mapping in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes the pages read-only for good.
    pub(crate) fn forbid_writes(&self) -> io::Result<()> {
        // SAFETY: the pages are mapped as long as `self` lives. This makes no reference to them;
        // code that has the address justifies its accesses.
        check(unsafe { libc::mprotect(self.start.as_ptr().cast(), self.len, libc::PROT_READ) })
            .map(drop)
    }

    /// Replaces the pages at `target` by this mapping in one step: a thread that reads there
    /// meanwhile sees either the old or the new pages.
    ///
    /// # Safety
    /// `target` is the start of as many whole pages, mapped by the caller; they hold the same
    /// bytes as this mapping; and no thread writes to either.
    pub(crate) unsafe fn replace(self, target: *mut u8) -> io::Result<()> {
        // SAFETY: the caller's promise. The old address of this mapping is forgotten below.
        unsafe { move_pages(self.start.as_ptr(), target, self.len) }?;
        mem::forget(self);
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` mapped these pages for this value, and code that keeps an address in them
        // keeps the value alive.
        unsafe { unmap(self.start.as_ptr(), self.len) };
    }
}

/// Moves pages over others in one step. The old address becomes unmapped.
///
/// # Safety
/// Both are starts of `len` bytes of whole pages, mapped by the caller, and no thread uses those
/// at `from`.
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
/// They are whole pages, mapped by the caller, and no thread uses them any more.
pub(crate) unsafe fn unmap(start: *mut u8, len: usize) {
    // SAFETY: the caller's promise. Errors do not matter here.
    unsafe { libc::munmap(start.cast(), len) };
}
