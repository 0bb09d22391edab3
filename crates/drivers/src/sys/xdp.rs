//! XDP sockets (`AF_XDP`).

use libc::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use super::{check, check_len, option, own, set_option};

/// Opens an AF_XDP socket.
pub(crate) fn xsk_socket() -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    own(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })
}

/// Anonymous memory of `len` bytes that can be mapped more than once.
pub(crate) fn shared_memory(len: usize) -> io::Result<OwnedFd> {
    // SAFETY: the name ends in zero and is static.
    let fd = own(unsafe { libc::memfd_create(c"umem".as_ptr(), libc::MFD_CLOEXEC) })?;
    let len = libc::off_t::try_from(len).map_err(io::Error::other)?;
    // SAFETY: takes integers only.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), len) })?;
    Ok(fd)
}

/// The memory to register with AF_XDP sockets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UmemRequest {
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) chunk_len: u32,
    /// Bytes reserved in front of each frame to send for metadata to the kernel; 0: none.
    pub(crate) metadata_len: u32,
}

/// Registers memory with a socket. The kernel keeps the pages as long as it uses them, even if
/// they are unmapped.
pub(crate) fn xsk_register(fd: BorrowedFd<'_>, umem: UmemRequest) -> io::Result<()> {
    let request = libc::xdp_umem_reg {
        addr: umem.address,
        len: umem.len,
        chunk_size: umem.chunk_len,
        headroom: 0,
        flags: if umem.metadata_len > 0 {
            libc::XDP_UMEM_TX_METADATA_LEN
        } else {
            0
        },
        tx_metadata_len: umem.metadata_len,
    };
    set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &request)
}

/// Sets an integer option of an AF_XDP socket: `XDP_*`.
pub(crate) fn xsk_set(fd: BorrowedFd<'_>, option: c_int, value: u32) -> io::Result<()> {
    set_option(fd, libc::SOL_XDP, option, &value)
}

/// The offsets of producer index, consumer index, descriptors and flags, in bytes from the start
/// of the mapping, for the receive, send, fill and completion rings.
pub(crate) fn xsk_offsets(fd: BorrowedFd<'_>) -> io::Result<[[u64; 4]; 4]> {
    option(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
}

/// The kernel's counts: frames dropped, invalid receive descriptors, invalid send descriptors,
/// receive ring full, fill ring empty, send ring empty.
pub(crate) fn xsk_statistics(fd: BorrowedFd<'_>) -> io::Result<[u64; 6]> {
    option(fd, libc::SOL_XDP, libc::XDP_STATISTICS)
}

/// Whether the device moves frames without a copy.
pub(crate) fn xsk_is_zero_copy(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let flags: u32 = option(fd, libc::SOL_XDP, libc::XDP_OPTIONS)?;
    Ok(flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// Binds a socket to a queue of an interface, with the memory of the socket `shared` if given.
pub(crate) fn xsk_bind(
    fd: BorrowedFd<'_>,
    index: i32,
    queue: u32,
    flags: u16,
    shared: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: if shared.is_some() {
            libc::XDP_SHARED_UMEM
        } else {
            flags
        },
        sxdp_ifindex: index as u32,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: shared.map_or(0, |fd| fd.as_raw_fd() as u32),
    };
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of an address of that size.
    check(unsafe { libc::bind(fd.as_raw_fd(), ptr::from_ref(&address).cast(), len) }).map(drop)
}

/// Makes the kernel process the send ring.
pub(crate) fn xsk_kick_send(fd: BorrowedFd<'_>) -> io::Result<()> {
    let (nothing, flags) = (ptr::null(), libc::MSG_DONTWAIT);
    // SAFETY: no bytes and no address are passed.
    check_len(unsafe { libc::sendto(fd.as_raw_fd(), nothing, 0, flags, ptr::null(), 0) }).map(drop)
}

/// Makes the kernel process the fill ring.
pub(crate) fn xsk_kick_fill(fd: BorrowedFd<'_>) {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: no bytes and no address are passed. Errors appear in the next wait.
    unsafe {
        libc::recvfrom(
            fd.as_raw_fd(),
            ptr::null_mut(),
            0,
            flags,
            ptr::null_mut(),
            ptr::null_mut(),
        );
    }
}
