//! TAP and TUN devices, and other descriptors that carry frames.

use libc::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use super::interface::{ask, name_of, request};
use super::{check, check_len, option, own, part};

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

/// The name and the flags of the interface behind `fd`; an error if `fd` is no such interface.
pub(crate) fn tun_interface(fd: BorrowedFd<'_>) -> io::Result<(String, c_int)> {
    let mut request = request("");
    ask(fd, libc::TUNGETIFF as _, &mut request)?;
    // SAFETY: the kernel has filled in this member, and any bits are a valid integer.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok((name_of(&request), c_int::from(flags) & 0xffff))
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

/// Returns that length.
pub(crate) fn tun_header_len(fd: BorrowedFd<'_>) -> io::Result<c_int> {
    let mut len = 0;
    // SAFETY: this request writes one integer through a valid pointer.
    check(unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::TUNGETVNETHDRSZ,
            ptr::from_mut(&mut len),
        )
    })?;
    Ok(len)
}

/// Adds status flags, such as `O_NONBLOCK`, to those of a descriptor.
pub(crate) fn add_status_flags(fd: BorrowedFd<'_>, flags: c_int) -> io::Result<()> {
    // SAFETY: takes integers only.
    let before = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: takes integers only.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, before | flags) }).map(drop)
}

/// Sets how many bytes a pipe holds.
pub(crate) fn set_pipe_capacity(pipe: BorrowedFd<'_>, bytes: c_int) -> io::Result<()> {
    // SAFETY: takes integers only.
    check(unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) }).map(drop)
}

/// The type of a socket, such as `SOCK_DGRAM`; an error for other descriptors.
pub(crate) fn socket_type(fd: BorrowedFd<'_>) -> io::Result<c_int> {
    option(fd, libc::SOL_SOCKET, libc::SO_TYPE)
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
