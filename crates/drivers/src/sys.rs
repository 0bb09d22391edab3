//! Every system call of this crate, and the prefetch of the processor, one safe function each.
//!
//! Descriptors are std's owned and borrowed ones, errors are `io::Error` with the kernel's number.
//! What the kernel fills in is read back only as plain integers and byte arrays, for which every
//! bit pattern is a value.

#![allow(unsafe_code)]

use libc::{c_int, c_void};
use std::io;
use std::mem;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::time::Duration;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn check_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Takes ownership of a descriptor that a system call has just returned.
fn own(result: c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the caller passes what the kernel returned for a call that makes a new descriptor; it
    // is not negative, so it is open, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

// Interfaces
// ---------------------------------------------------------------------------------------------------------

/// A request about the interface `name`, with everything else zero.
fn request(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` is made of integers, arrays of them and pointers in a union; all zero is a
    // value of each.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays zero: names are checked to be shorter, longer ones are cut.
    let room = request.ifr_name.len() - 1;
    for (place, byte) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request
}

/// Asks about an interface, by a request that the kernel answers in place.
fn ask(fd: BorrowedFd<'_>, number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: all callers pass a SIOCGIF* number or TUNSETIFF, for which the kernel reads and
    // writes one `ifreq`; the reference makes it valid for both.
    check(unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            number as libc::Ioctl,
            ptr::from_mut(request),
        )
    })
    .map(drop)
}

/// A socket to ask about interfaces with.
pub(crate) fn control_socket() -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    own(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })
}

/// The index of an interface.
pub(crate) fn interface_index(fd: BorrowedFd<'_>, name: &str) -> io::Result<i32> {
    let mut request = request(name);
    ask(fd, libc::SIOCGIFINDEX as _, &mut request)?;
    // SAFETY: the kernel has filled in this member; an integer at any rate.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex })
}

/// The present name of the interface with this index; ENODEV if there is none.
pub(crate) fn interface_name(fd: BorrowedFd<'_>, index: i32) -> io::Result<String> {
    let mut request = request("");
    request.ifr_ifru.ifru_ifindex = index;
    ask(fd, libc::SIOCGIFNAME as _, &mut request)?;
    let bytes = request
        .ifr_name
        .iter()
        .map(|&byte| byte as u8)
        .take_while(|&byte| byte != 0)
        .collect::<Vec<_>>();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Longest IP packet of an interface, in bytes.
pub(crate) fn interface_mtu(fd: BorrowedFd<'_>, name: &str) -> io::Result<usize> {
    let mut request = request(name);
    ask(fd, libc::SIOCGIFMTU as _, &mut request)?;
    // SAFETY: the kernel has filled in this member; an integer at any rate.
    Ok(usize::try_from(unsafe { request.ifr_ifru.ifru_mtu }).unwrap_or(0))
}

/// Whether an interface is administratively up.
pub(crate) fn interface_is_up(fd: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    let mut request = request(name);
    ask(fd, libc::SIOCGIFFLAGS as _, &mut request)?;
    // SAFETY: the kernel has filled in this member; an integer at any rate.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(c_int::from(flags) & libc::IFF_UP != 0)
}

/// The Ethernet address of an interface; `None` if it is not an Ethernet.
pub(crate) fn interface_mac(fd: BorrowedFd<'_>, name: &str) -> io::Result<Option<[u8; 6]>> {
    let mut request = request(name);
    ask(fd, libc::SIOCGIFHWADDR as _, &mut request)?;
    // SAFETY: the kernel has filled in this member; integers at any rate.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut mac = [0; 6];
    for (place, &byte) in mac.iter_mut().zip(&address.sa_data) {
        *place = byte as u8;
    }
    Ok((address.sa_family == libc::ARPHRD_ETHER).then_some(mac))
}

/// An IPv4 address that the kernel owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnedAddress {
    pub(crate) interface: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) prefix_len: u8,
}

/// All IPv4 addresses that the kernel owns in this network namespace.
pub(crate) fn ipv4_addresses() -> io::Result<Vec<OwnedAddress>> {
    let mut list = ptr::null_mut();
    // SAFETY: the kernel's answer is stored through a valid pointer.
    check(unsafe { libc::getifaddrs(&mut list) })?;
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: not null, so an entry of the list that getifaddrs made; it is freed only below.
        let entry = unsafe { &*next };
        // SAFETY: both are null or point to an address that lives as long as the list.
        let (address, mask) = unsafe { (ipv4(entry.ifa_addr), ipv4(entry.ifa_netmask)) };
        if let Some(address) = address {
            // SAFETY: every entry has a name that ends in zero and lives as long as the list.
            let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
            found.push(OwnedAddress {
                interface: name.to_string_lossy().into_owned(),
                address,
                prefix_len: mask.map_or(32, |mask| mask.to_bits().count_ones() as u8),
            });
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs, and no reference into it is left.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// The IPv4 address in a socket address of any family.
///
/// # Safety
/// `address` is null, or points to a socket address as long as its family says.
unsafe fn ipv4(address: *const libc::sockaddr) -> Option<Ipv4Addr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null; every socket address begins with its family.
    if c_int::from(unsafe { (*address).sa_family }) != libc::AF_INET {
        return None;
    }
    // SAFETY: the family says that this is a `sockaddr_in`; read without assuming its alignment.
    let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
    Some(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)))
}

// TAP
// ----------------------------------------------------------------------------------------------------------------

/// Opens `/dev/net/tun`, without blocking.
pub(crate) fn open_tun() -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: the path ends in zero and lives for ever.
    own(unsafe { libc::open(c"/dev/net/tun".as_ptr(), flags) })
}

/// Makes `fd` the far end of the interface `name`, which is made if need be.
pub(crate) fn tun_attach(fd: BorrowedFd<'_>, name: &str, flags: c_int) -> io::Result<()> {
    let mut request = request(name);
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    ask(fd, libc::TUNSETIFF as _, &mut request)
}

/// Says what the kernel may leave undone in frames that it gives us: `TUN_F_*`.
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

/// Sets the length of the virtio header before each frame, in bytes.
pub(crate) fn tun_set_header_len(fd: BorrowedFd<'_>, len: c_int) -> io::Result<()> {
    // SAFETY: this request reads one integer through a valid pointer.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, ptr::from_ref(&len)) })
        .map(drop)
}

/// Reads one frame behind its header. Returns the bytes of both.
pub(crate) fn read_frame(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes no more than the length, into memory borrowed mutably.
    check_len(unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) })
}

/// Writes one frame with its header. Returns the bytes of both.
pub(crate) fn write_frame(
    fd: BorrowedFd<'_>,
    header: &[u8],
    head: &[u8],
    payload: &[u8],
) -> io::Result<usize> {
    let parts = [part(header), part(head), part(payload)];
    // SAFETY: three valid parts, only read from.
    check_len(unsafe { libc::writev(fd.as_raw_fd(), parts.as_ptr(), parts.len() as c_int) })
}

fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

fn part_mut(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

// AF_PACKET
// ----------------------------------------------------------------------------------------------------------

/// A packet socket that receives nothing until it is bound.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes integers only.
    own(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })
}

/// Sets an option of any plain type.
fn set_option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes through a pointer to a value of that size.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            ptr::from_ref(value).cast(),
            len,
        )
    })
    .map(drop)
}

/// Reads an option. Callers choose types of plain integers.
fn option<T: Copy + Default>(fd: BorrowedFd<'_>, level: c_int, option: c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    let place: *mut c_void = ptr::from_mut(&mut value).cast();
    // SAFETY: the kernel writes at most `len` bytes into a value of that size, made of plain
    // integers.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, place, &mut len) })?;
    Ok(value)
}

/// Sets an integer option of a packet socket: `PACKET_*`.
pub(crate) fn set_packet_option(fd: BorrowedFd<'_>, option: c_int, value: c_int) -> io::Result<()> {
    set_option(fd, libc::SOL_PACKET, option, &value)
}

/// Makes room for `bytes` of waiting frames, beyond the system's limit if we may. Returns the room
/// as the kernel counts it, which is twice what was asked for at best.
pub(crate) fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX / 2);
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)
        .or_else(|_| set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes))?;
    let room: c_int = option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF)?;
    Ok(usize::try_from(room).unwrap_or(0))
}

/// Fetches and clears the error that waits on a socket; 0 if there is none.
pub(crate) fn socket_error(fd: BorrowedFd<'_>) -> io::Result<c_int> {
    option(fd, libc::SOL_SOCKET, libc::SO_ERROR)
}

/// Frames that found no room in the receive buffer, since the last call.
pub(crate) fn packet_drops(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // struct tpacket_stats: tp_packets, tp_drops.
    let [_, drops]: [u32; 2] = option(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS)?;
    Ok(drops.into())
}

/// Begins to receive all protocols of one interface.
pub(crate) fn packet_bind(fd: BorrowedFd<'_>, index: i32, receives: bool) -> io::Result<()> {
    // SAFETY: integers and an array of them; all zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    // Without a protocol nothing is received.
    let protocol = if receives { libc::ETH_P_ALL } else { 0 };
    address.sll_protocol = (protocol as u16).to_be();
    address.sll_ifindex = index;
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of an address of that size.
    check(unsafe { libc::bind(fd.as_raw_fd(), ptr::from_ref(&address).cast(), len) }).map(drop)
}

/// Receives frames to any Ethernet address, for as long as the socket is open.
pub(crate) fn packet_promiscuous(fd: BorrowedFd<'_>, index: i32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Chooses the version of the mapped ring's headers: `tpacket_versions`.
pub(crate) fn packet_version(fd: BorrowedFd<'_>, version: c_int) -> io::Result<()> {
    set_packet_option(fd, libc::PACKET_VERSION, version)
}

/// Makes a ring of `blocks` blocks, each of one frame, to receive into.
pub(crate) fn packet_ring_v2(fd: BorrowedFd<'_>, blocks: u32, block_len: u32) -> io::Result<()> {
    let request = libc::tpacket_req {
        tp_block_size: block_len,
        tp_block_nr: blocks,
        tp_frame_size: block_len,
        tp_frame_nr: blocks,
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
}

/// Makes a ring of blocks that are handed over when they are full or `retire_ms` old.
pub(crate) fn packet_ring_v3(
    fd: BorrowedFd<'_>,
    blocks: u32,
    block_len: u32,
    retire_ms: u32,
) -> io::Result<()> {
    // The kernel does not use the frame size but checks that it divides the block.
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

/// A frame as the kernel gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Bytes of the frame; more than the buffer holds if it was cut.
    pub(crate) len: usize,
    /// The VLAN tag that the kernel has taken out: protocol and control information.
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
    // SAFETY: integers and pointers; all zero is a value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the message names two valid parts, borrowed mutably, and a control buffer of the
    // length it says.
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
/// `message` is as `recvmsg` left it, with its control buffer alive and aligned as a `cmsghdr`.
unsafe fn vlan_tag(message: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: the caller's promise.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !next.is_null() {
        // SAFETY: not null, so a header inside the control buffer, aligned as its start is.
        let entry = unsafe { &*next };
        // SAFETY: no memory is looked at.
        let enough = unsafe { libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as u32) };
        if entry.cmsg_level == libc::SOL_PACKET
            && entry.cmsg_type == libc::PACKET_AUXDATA
            && entry.cmsg_len as usize >= enough as usize
        {
            // SAFETY: the entry is long enough for this type of integers; read without assuming its
            // alignment.
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

/// Sends frames of three parts each, at most `MAX` of them. Returns how many the kernel took; an
/// error is that of the first.
pub(crate) fn send_frames<const MAX: usize>(
    fd: BorrowedFd<'_>,
    frames: &[[&[u8]; 3]],
) -> io::Result<usize> {
    let frames = &frames[..frames.len().min(MAX)];
    let mut parts = [[part(&[]); 3]; MAX];
    // SAFETY: integers and pointers; all zero is a value.
    let mut messages: [libc::mmsghdr; MAX] = unsafe { mem::zeroed() };
    for ((message, parts), frame) in messages.iter_mut().zip(&mut parts).zip(frames) {
        *parts = frame.map(part);
        message.msg_hdr.msg_iov = parts.as_mut_ptr();
        message.msg_hdr.msg_iovlen = parts.len() as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: as many messages as said, each of which names three valid parts, only read from, and
    // nothing else.
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

/// Joins a bound packet socket to a group that shares the frames of its interface, or founds one.
/// Returns the group.
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

// AF_XDP
// -------------------------------------------------------------------------------------------------------------

/// A socket for AF_XDP.
pub(crate) fn xsk_socket() -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    own(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })
}

/// Anonymous memory of `len` bytes that can be mapped more than once.
pub(crate) fn shared_memory(len: usize) -> io::Result<OwnedFd> {
    // SAFETY: the name ends in zero and lives for ever.
    let fd = own(unsafe { libc::memfd_create(c"umem".as_ptr(), libc::MFD_CLOEXEC) })?;
    let len = libc::off_t::try_from(len).map_err(io::Error::other)?;
    // SAFETY: takes integers only.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), len) })?;
    Ok(fd)
}

/// What is registered as the memory of AF_XDP sockets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UmemRequest {
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) chunk_len: u32,
    /// Bytes before each frame to send for what the device is to do; 0: none.
    pub(crate) metadata_len: u32,
}

/// Registers memory with a socket. The kernel keeps the pages for as long as it uses them, mapped
/// or not.
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

/// Where the parts of the rings for receiving, sending, filling and completion lie: producer,
/// consumer, descriptors and flags of each, in bytes from the start of its mapping.
pub(crate) fn xsk_offsets(fd: BorrowedFd<'_>) -> io::Result<[[u64; 4]; 4]> {
    option(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
}

/// The kernel's counts: dropped, invalid to receive, invalid to send, receive ring full, fill ring
/// empty, send ring empty.
pub(crate) fn xsk_statistics(fd: BorrowedFd<'_>) -> io::Result<[u64; 6]> {
    option(fd, libc::SOL_XDP, libc::XDP_STATISTICS)
}

/// Whether the device moves frames without copying them.
pub(crate) fn xsk_is_zero_copy(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let flags: u32 = option(fd, libc::SOL_XDP, libc::XDP_OPTIONS)?;
    Ok(flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// Binds a socket to a queue of an interface; `shared`: with the memory of another socket.
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

/// Makes the kernel look at the ring of frames to send.
pub(crate) fn xsk_kick_send(fd: BorrowedFd<'_>) -> io::Result<()> {
    let (nothing, flags) = (ptr::null(), libc::MSG_DONTWAIT);
    // SAFETY: no bytes and no address are passed.
    check_len(unsafe { libc::sendto(fd.as_raw_fd(), nothing, 0, flags, ptr::null(), 0) }).map(drop)
}

/// Makes the kernel look at the ring of chunks to fill.
pub(crate) fn xsk_kick_fill(fd: BorrowedFd<'_>) {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: no bytes and no address are passed. Errors show when waiting.
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

/// The name of the driver of an interface, if it tells.
pub(crate) fn interface_driver(fd: BorrowedFd<'_>, name: &str) -> Option<String> {
    let mut info = [0u32; 49]; // struct ethtool_drvinfo, 196 bytes
    info[0] = 3; // ETHTOOL_GDRVINFO
    let mut request = request(name);
    request.ifr_ifru.ifru_data = info.as_mut_ptr().cast();
    // SAFETY: the kernel reads one `ifreq` and writes one `ethtool_drvinfo`, for which there is
    // room.
    check(unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::SIOCETHTOOL,
            ptr::from_mut(&mut request),
        )
    })
    .ok()?;
    // The number of the command, then the name in 32 bytes.
    let bytes = info[1..9].iter().flat_map(|word| word.to_ne_bytes());
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8(bytes).ok()
}

// BPF
// ----------------------------------------------------------------------------------------------------------------

/// The argument of bpf(2): zero but for what a command sets.
struct BpfAttributes([u64; 18]);

impl BpfAttributes {
    fn new() -> Self {
        Self([0; 18])
    }

    fn set32(mut self, at: usize, value: u32) -> Self {
        let shift = if cfg!(target_endian = "little") {
            at % 8 * 8
        } else {
            32 - at % 8 * 8
        };
        self.0[at / 8] |= u64::from(value) << shift;
        self
    }

    fn set64(mut self, at: usize, value: u64) -> Self {
        self.0[at / 8] = value;
        self
    }

    /// # Safety
    /// Pointers among the attributes are valid for what the command does with them.
    unsafe fn call(&self, command: c_int) -> io::Result<c_int> {
        // SAFETY: as many bytes as said; the caller answers for pointers in them.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                command,
                self.0.as_ptr(),
                size_of_val(&self.0),
            )
        };
        check(result as c_int)
    }
}

/// Makes a map from queue numbers to AF_XDP sockets.
pub(crate) fn bpf_socket_map(entries: u32) -> io::Result<OwnedFd> {
    const BPF_MAP_CREATE: c_int = 0;
    const XSKMAP: u32 = 17;
    let attributes = BpfAttributes::new()
        .set32(0, XSKMAP)
        .set32(4, 4)
        .set32(8, 4)
        .set32(12, entries);
    // SAFETY: no pointers.
    own(unsafe { attributes.call(BPF_MAP_CREATE) }?)
}

/// Puts a socket into a map.
pub(crate) fn bpf_map_set(map: BorrowedFd<'_>, key: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    const BPF_MAP_UPDATE_ELEM: c_int = 2;
    let value = socket.as_raw_fd();
    let attributes = BpfAttributes::new()
        .set32(0, map.as_raw_fd() as u32)
        .set64(8, ptr::from_ref(&key).addr() as u64)
        .set64(16, ptr::from_ref(&value).addr() as u64);
    // SAFETY: key and value are four bytes each, as the map was made for, and live until the call
    // returns.
    unsafe { attributes.call(BPF_MAP_UPDATE_ELEM) }.map(drop)
}

/// Where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// In the driver or right behind it, before the kernel's stack and packet sockets.
    Xdp,
    /// Behind packet sockets and before the kernel's stack.
    Ingress,
}

/// Loads a program. `fragments`: it may get packets in several pieces (XDP only).
pub(crate) fn bpf_load(hook: Hook, program: &[u64], fragments: bool) -> io::Result<OwnedFd> {
    const BPF_PROG_LOAD: c_int = 5;
    const XDP_HAS_FRAGS: u32 = 1 << 5;
    let (kind, attach) = match hook {
        Hook::Xdp => (6, 37),
        Hook::Ingress => (3, 46),
    };
    let license = c"Dual MIT/GPL";
    let attributes = BpfAttributes::new()
        .set32(0, kind)
        .set32(4, program.len() as u32)
        .set64(8, program.as_ptr().addr() as u64)
        .set64(16, license.as_ptr().addr() as u64)
        .set32(44, if fragments { XDP_HAS_FRAGS } else { 0 })
        .set32(68, attach);
    // SAFETY: as many instructions as said, and a text that ends in zero; both live until the call
    // returns.
    own(unsafe { attributes.call(BPF_PROG_LOAD) }?)
}

/// Runs an XDP program on a frame, again and again, and does with the frame what it says.
#[cfg(feature = "bare")]
pub(crate) fn bpf_run_live(program: BorrowedFd<'_>, frame: &[u8], count: u32) -> io::Result<()> {
    const BPF_PROG_TEST_RUN: c_int = 10;
    const LIVE_FRAMES: u32 = 1 << 1;
    let attributes = BpfAttributes::new()
        .set32(0, program.as_raw_fd() as u32)
        .set32(8, frame.len() as u32)
        .set64(16, frame.as_ptr().addr() as u64)
        .set32(32, count)
        .set32(64, LIVE_FRAMES);
    // SAFETY: as many bytes as said, only read from, which live until the call returns.
    unsafe { attributes.call(BPF_PROG_TEST_RUN) }.map(drop)
}

/// How an XDP program is attached.
pub(crate) const XDP_MODE_GENERIC: u32 = 1 << 1;
/// As above.
pub(crate) const XDP_MODE_NATIVE: u32 = 1 << 2;

/// Attaches a program to an interface, for as long as the descriptor that is returned is open
/// somewhere.
pub(crate) fn bpf_attach(
    hook: Hook,
    program: BorrowedFd<'_>,
    index: i32,
    flags: u32,
) -> io::Result<OwnedFd> {
    const BPF_LINK_CREATE: c_int = 28;
    let attach = match hook {
        Hook::Xdp => 37,
        Hook::Ingress => 46,
    };
    let attributes = BpfAttributes::new()
        .set32(0, program.as_raw_fd() as u32)
        .set32(4, index as u32)
        .set32(8, attach)
        .set32(12, flags);
    // SAFETY: no pointers.
    own(unsafe { attributes.call(BPF_LINK_CREATE) }?)
}

// Waiting
// ------------------------------------------------------------------------------------------------------------

/// A counter that can be waited for.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Makes an event readable. Cannot fail in a way that matters: a counter that is full is readable.
pub(crate) fn signal(event: BorrowedFd<'_>) {
    let one = 1u64;
    // SAFETY: eight bytes are read from a value of eight.
    let _ = unsafe {
        libc::write(
            event.as_raw_fd(),
            ptr::from_ref(&one).cast(),
            size_of_val(&one),
        )
    };
}

/// Makes an event unreadable.
pub(crate) fn clear(event: BorrowedFd<'_>) {
    let mut count = 0u64;
    // SAFETY: eight bytes are written into a value of eight.
    let _ = unsafe {
        libc::read(
            event.as_raw_fd(),
            ptr::from_mut(&mut count).cast(),
            size_of_val(&count),
        )
    };
}

/// What ended a wait; nothing set: the time was over, or a signal came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    /// The device has an error to fetch, or is gone.
    pub(crate) device_error: bool,
    /// The event is readable.
    pub(crate) event: bool,
}

/// Waits until one of the two is readable or the time is over.
pub(crate) fn wait_readable(
    device: BorrowedFd<'_>,
    event: BorrowedFd<'_>,
    timeout: Option<Duration>,
) -> io::Result<Ready> {
    let mut fds = [device, event].map(|fd| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    let timeout = timeout.map(|timeout| {
        // SAFETY: integers; all zero is a value. (Not written as a literal, since some platforms
        // pad it.)
        let mut time: libc::timespec = unsafe { mem::zeroed() };
        time.tv_sec = timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX);
        time.tv_nsec = timeout.subsec_nanos() as _;
        time
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: two valid entries, a time that is null or valid, and no signal mask.
    let result = unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            timeout,
            ptr::null(),
        )
    };
    match check(result) {
        Ok(_) => Ok(Ready {
            device_error: fds[0].revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0,
            event: fds[1].revents & libc::POLLIN != 0,
        }),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Ready::default()),
        Err(error) => Err(error),
    }
}

/// A set of descriptors that is itself readable when one of them is; each tells of news once
/// ("edge-triggered").
pub(crate) fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// Makes a device tell an `epoll` of each frame that comes, once.
pub(crate) fn epoll_watch(epoll: BorrowedFd<'_>, device: BorrowedFd<'_>) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: (libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLET) as u32,
        u64: 0,
    };
    // SAFETY: the kernel reads one event through a valid pointer.
    check(unsafe {
        libc::epoll_ctl(
            epoll.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            device.as_raw_fd(),
            &mut event,
        )
    })
    .map(drop)
}

/// Undoes [`epoll_watch`].
pub(crate) fn epoll_forget(epoll: BorrowedFd<'_>, device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes integers, and no event for this.
    check(unsafe {
        libc::epoll_ctl(
            epoll.as_raw_fd(),
            libc::EPOLL_CTL_DEL,
            device.as_raw_fd(),
            ptr::null_mut(),
        )
    })
    .map(drop)
}

/// Takes the news out of an `epoll` with one device in it. Returns whether the device has an error.
pub(crate) fn epoll_take(epoll: BorrowedFd<'_>) -> bool {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: the kernel writes at most one event into a valid place.
    let taken = unsafe { libc::epoll_wait(epoll.as_raw_fd(), &mut event, 1, 0) };
    let events = event.events;
    taken > 0 && events & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0
}

// Memory
// -------------------------------------------------------------------------------------------------------------

/// Asks the processor to fetch `bytes` into its nearest cache, where that is known how. Waits for
/// nothing.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE: usize = 64;
        let (start, len) = (bytes.as_ptr(), bytes.len());
        let fetch = |at| {
            // SAFETY: a prefetch is a wish about any address, and never faults; SSE is in every
            // x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at).cast()) };
        };
        let mut at = 0;
        // Four lines a turn: counting would cost more than asking.
        while at + 4 * LINE <= len {
            fetch(at);
            fetch(at + LINE);
            fetch(at + 2 * LINE);
            fetch(at + 3 * LINE);
            at += 4 * LINE;
        }
        while at < len {
            fetch(at);
            at += LINE;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// Pages that are mapped for as long as this lives.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; whoever reads or writes there answers for it.
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

    /// Takes the right to write away, for good.
    pub(crate) fn forbid_writes(&self) -> io::Result<()> {
        // SAFETY: the pages are mapped as long as `self` lives. Nobody writes through references
        // here: those who have the address answer for it.
        check(unsafe { libc::mprotect(self.start.as_ptr().cast(), self.len, libc::PROT_READ) })
            .map(drop)
    }

    /// Puts this mapping into the place of the pages at `target`, in one step: who reads there
    /// meanwhile sees the old pages or the new ones.
    ///
    /// # Safety
    /// `target` is the start of as many whole pages that the caller has mapped, the bytes there are
    /// those of this mapping, and nobody writes to either.
    pub(crate) unsafe fn replace(self, target: *mut u8) -> io::Result<()> {
        // SAFETY: the caller's promise; the place where this mapping was is given up, see below.
        unsafe { move_pages(self.start.as_ptr(), target, self.len) }?;
        mem::forget(self);
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: these pages were mapped by `map` for this value, and whoever has an address in
        // them keeps it alive.
        unsafe { unmap(self.start.as_ptr(), self.len) };
    }
}

/// Moves pages over others, in one step. Their old place is unmapped.
///
/// # Safety
/// Both are starts of `len` bytes of whole pages that the caller has mapped, and nobody uses those
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
/// They are whole pages that the caller has mapped, and nobody uses them any more.
pub(crate) unsafe fn unmap(start: *mut u8, len: usize) {
    // SAFETY: the caller's promise. It cannot fail in a way that matters.
    unsafe { libc::munmap(start.cast(), len) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_loopback_interface_is_described() {
        let socket = control_socket().unwrap();
        let index = interface_index(socket.as_fd(), "lo").unwrap();
        assert_eq!(interface_name(socket.as_fd(), index).unwrap(), "lo");
        assert!(interface_mtu(socket.as_fd(), "lo").unwrap() >= 1500);
        assert_eq!(
            interface_mac(socket.as_fd(), "lo").unwrap(),
            None,
            "not an Ethernet"
        );
    }

    #[test]
    fn an_interface_that_is_not_there_is_no_device() {
        let socket = control_socket().unwrap();
        let error = interface_index(socket.as_fd(), "no-such-iface").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn the_list_of_addresses_can_be_iterated_and_freed() {
        for owned in ipv4_addresses().unwrap() {
            assert!(
                !owned.interface.is_empty() && owned.prefix_len <= 32,
                "{owned:?}"
            );
        }
    }
}
