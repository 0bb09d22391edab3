//! TAP devices.

use libc::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use super::interface::{ask, request};
use super::{check, check_len, own, part};

/// Opens `/dev/net/tun` in non-blocking mode.
pub(crate) fn open_tun() -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: the path ends in zero and is static.
    own(unsafe { libc::open(c"/dev/net/tun".as_ptr(), flags) })
}

/// Makes `fd` the other end of the interface `name`, which is created if it does not exist.
pub(crate) fn tun_attach(fd: BorrowedFd<'_>, name: &str, flags: c_int) -> io::Result<()> {
    let mut request = request(name);
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    ask(fd, libc::TUNSETIFF as _, &mut request)
}

/// Sets the work that the kernel may leave undone in frames that it gives us: `TUN_F_*`.
pub(crate) fn tun_set_offloads(fd: BorrowedFd<'_>, offloads: u32) -> io::Result<()> {
    // SAFETY: this request takes an integer by value.
    check(unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::TUNSETOFFLOAD,
            libc::c_ulong::from(offloads),
        )
    })
    .map(drop)
}

/// Sets the length of the virtio header in front of each frame, in bytes.
pub(crate) fn tun_set_header_len(fd: BorrowedFd<'_>, len: c_int) -> io::Result<()> {
    // SAFETY: this request reads one integer through a valid pointer.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, ptr::from_ref(&len)) })
        .map(drop)
}

/// Reads one frame and its header. Returns the length of both together, in bytes.
pub(crate) fn read_frame(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let (start, len) = (buffer.as_mut_ptr(), buffer.len());
    // Not `read`, which is a cancellation point and costs two more atomic operations. SAFETY: the
    // kernel writes at most `len` bytes, into memory borrowed mutably.
    let read = unsafe { libc::syscall(libc::SYS_read, fd.as_raw_fd(), start, len) };
    check_len(read as isize)
}

/// Writes one frame with its header. Returns the length of both together, in bytes.
pub(crate) fn write_frame(
    fd: BorrowedFd<'_>,
    header: &[u8],
    head: &[u8],
    payload: &[u8],
) -> io::Result<usize> {
    let parts = [part(header), part(head), part(payload)];
    let (start, count) = (parts.as_ptr(), parts.len());
    // Not `writev`, as above. SAFETY: three valid parts, which are only read.
    let written = unsafe { libc::syscall(libc::SYS_writev, fd.as_raw_fd(), start, count) };
    check_len(written as isize)
}
