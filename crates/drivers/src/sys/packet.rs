//! Packet sockets (`AF_PACKET`).

use libc::c_int;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use super::{check, check_len, option, own, part, part_mut, set_option};

/// A packet socket that receives nothing until it is bound.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes integers only.
    own(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })
}

/// Sets an integer option of a packet socket: `PACKET_*`.
pub(crate) fn set_packet_option(fd: BorrowedFd<'_>, option: c_int, value: c_int) -> io::Result<()> {
    set_option(fd, libc::SOL_PACKET, option, &value)
}

/// Sets the receive buffer to `bytes`, above the system's limit if we may. Returns the size as the
/// kernel counts it: twice the requested size, or less.
pub(crate) fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX / 2);
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)
        .or_else(|_| set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes))?;
    let room: c_int = option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF)?;
    Ok(usize::try_from(room).unwrap_or(0))
}

/// Returns and clears the pending error of a socket; 0 if there is none.
pub(crate) fn socket_error(fd: BorrowedFd<'_>) -> io::Result<c_int> {
    option(fd, libc::SOL_SOCKET, libc::SO_ERROR)
}

/// Frames dropped since the last call because the receive buffer was full.
pub(crate) fn packet_drops(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // struct tpacket_stats: tp_packets, tp_drops.
    let [_, drops]: [u32; 2] = option(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS)?;
    Ok(drops.into())
}

/// Starts to receive all protocols of one interface; without `receives` it only binds the socket
/// to the interface.
pub(crate) fn packet_bind(fd: BorrowedFd<'_>, index: i32, receives: bool) -> io::Result<()> {
    // SAFETY: integers and an array of them; all zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    // Without a protocol the socket receives nothing.
    let protocol = if receives { libc::ETH_P_ALL } else { 0 };
    address.sll_protocol = (protocol as u16).to_be();
    address.sll_ifindex = index;
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of an address of that size.
    check(unsafe { libc::bind(fd.as_raw_fd(), ptr::from_ref(&address).cast(), len) }).map(drop)
}

/// Receives frames to any multicast group, or with `promiscuous` to any Ethernet address, as long
/// as the socket is open.
pub(crate) fn packet_widen(fd: BorrowedFd<'_>, index: i32, promiscuous: bool) -> io::Result<()> {
    let kind = match promiscuous {
        true => libc::PACKET_MR_PROMISC,
        false => libc::PACKET_MR_ALLMULTI,
    };
    let request = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: kind as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Chooses the version of the mapped ring's headers: `tpacket_versions`.
pub(crate) fn packet_version(fd: BorrowedFd<'_>, version: c_int) -> io::Result<()> {
    set_packet_option(fd, libc::PACKET_VERSION, version)
}

/// Creates a receive ring of `blocks` blocks with one frame each.
pub(crate) fn packet_ring_v2(fd: BorrowedFd<'_>, blocks: u32, block_len: u32) -> io::Result<()> {
    let request = libc::tpacket_req {
        tp_block_size: block_len,
        tp_block_nr: blocks,
        tp_frame_size: block_len,
        tp_frame_nr: blocks,
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
}

/// Creates a receive ring of blocks. The kernel hands over a block when it is full or `retire_ms`
/// milliseconds old.
pub(crate) fn packet_ring_v3(
    fd: BorrowedFd<'_>,
    blocks: u32,
    block_len: u32,
    retire_ms: u32,
) -> io::Result<()> {
    // The kernel does not use the frame size, but checks that it divides the block.
    let frame = 2048;
    let request = libc::tpacket_req3 {
        tp_block_size: block_len,
        tp_block_nr: blocks,
        tp_frame_size: frame,
        tp_frame_nr: block_len / frame * blocks,
        tp_retire_blk_tov: retire_ms,
        tp_sizeof_priv: 0,
        tp_feature_req_word: 0,
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
}

/// The frames that a packet socket receives, by their length in bytes without a VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameLengths {
    UpTo(u32),
    Above(u32),
}

/// Limits a packet socket to frames of these lengths.
pub(crate) fn packet_filter(fd: BorrowedFd<'_>, lengths: FrameLengths) -> io::Result<()> {
    let (limit, [above, else_]) = match lengths {
        FrameLengths::UpTo(limit) => (limit, [0, u32::MAX]),
        FrameLengths::Above(limit) => (limit, [u32::MAX, 0]),
    };
    let line = |code: u32, jf, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let mut program = [
        line(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0),
        line(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 1, limit),
        line(libc::BPF_RET | libc::BPF_K, 0, above),
        line(libc::BPF_RET | libc::BPF_K, 0, else_),
    ];
    // The kernel copies the program.
    let request = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &request)
}

/// A received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Length of the frame in bytes. Longer than the buffer if the frame was cut.
    pub(crate) len: usize,
    /// The VLAN tag that the kernel removed: protocol and control information.
    pub(crate) vlan: Option<(u16, u16)>,
}

/// Receives one frame with its header.
pub(crate) fn receive_frame(
    fd: BorrowedFd<'_>,
    header: &mut [u8],
    frame: &mut [u8],
) -> io::Result<Received> {
    let header_len = header.len();
    let mut parts = [part_mut(header), part_mut(frame)];
    let mut control = [0u64; 8];
    // SAFETY: integers and pointers; all zeros are valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the message names two valid parts, borrowed mutably, and a control buffer of its
    // true length.
    let len = check_len(unsafe { libc::recvmsg(fd.as_raw_fd(), &mut message, flags) })?;
    // SAFETY: the kernel has filled in `message`, and its control buffer is still there.
    let vlan = unsafe { vlan_tag(&message) };
    Ok(Received {
        len: len.saturating_sub(header_len),
        vlan,
    })
}

/// The VLAN tag in the control data of a received packet.
///
/// # Safety
/// `recvmsg` filled in `message`, and its control buffer is alive and aligned for a `cmsghdr`.
unsafe fn vlan_tag(message: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: the caller's promise.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !next.is_null() {
        // SAFETY: not null, so a header inside the control buffer, which is aligned.
        let entry = unsafe { &*next };
        // SAFETY: computes a length; accesses no memory.
        let enough = unsafe { libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as u32) };
        if entry.cmsg_level == libc::SOL_PACKET
            && entry.cmsg_type == libc::PACKET_AUXDATA
            && entry.cmsg_len as usize >= enough as usize
        {
            // SAFETY: the entry is long enough for this type, which consists of integers; read
            // without assuming its alignment.
            let data = unsafe {
                libc::CMSG_DATA(next)
                    .cast::<libc::tpacket_auxdata>()
                    .read_unaligned()
            };
            if data.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
                return None;
            }
            let protocol = if data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
                data.tp_vlan_tpid
            } else {
                libc::ETH_P_8021Q as u16
            };
            return Some((protocol, data.tp_vlan_tci));
        }
        // SAFETY: `next` is an entry of this message.
        next = unsafe { libc::CMSG_NXTHDR(message, next) };
    }
    None
}

/// Sends at most `MAX` frames of three parts each. Returns the number that the kernel took. An
/// error means that the first frame failed.
pub(crate) fn send_frames<const MAX: usize>(
    fd: BorrowedFd<'_>,
    frames: &[[&[u8]; 3]],
) -> io::Result<usize> {
    let frames = &frames[..frames.len().min(MAX)];
    let mut parts = [[part(&[]); 3]; MAX];
    // SAFETY: integers and pointers; all zeros are valid.
    let mut messages: [libc::mmsghdr; MAX] = unsafe { mem::zeroed() };
    for ((message, parts), frame) in messages.iter_mut().zip(&mut parts).zip(frames) {
        *parts = frame.map(part);
        message.msg_hdr.msg_iov = parts.as_mut_ptr();
        message.msg_hdr.msg_iovlen = parts.len() as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the length is at most the number of messages; each names three valid parts, which
    // are only read, and nothing else.
    let sent = check(unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            messages.as_mut_ptr(),
            frames.len() as _,
            flags as _,
        )
    })?;
    Ok(usize::try_from(sent).unwrap_or(0))
}

/// Adds a bound packet socket to a group of sockets that share the frames of the interface, or
/// creates a group. Returns the group.
pub(crate) fn packet_fanout(fd: BorrowedFd<'_>, mode: u32, group: Option<u16>) -> io::Result<u16> {
    let new = if group.is_none() {
        libc::PACKET_FANOUT_FLAG_UNIQUEID
    } else {
        0
    };
    let value = u32::from(group.unwrap_or(0)) | (mode | new) << 16;
    set_packet_option(fd, libc::PACKET_FANOUT, value as c_int)?;
    let value: c_int = option(fd, libc::SOL_PACKET, libc::PACKET_FANOUT)?;
    Ok(value as u16)
}
