//! Addresses of sockets, as C programs pass them.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use crate::sys::Errno;

/// Reads an address of `domain`; `None` if it is of another family, too short, or null.
///
/// # Safety
/// `address` is null or points to `len` bytes.
pub(crate) unsafe fn read(
    address: *const sockaddr,
    len: socklen_t,
    domain: c_int,
) -> Option<SocketAddr> {
    // SAFETY: the caller's promise.
    if unsafe { family(address, len) } != Some(domain) {
        return None;
    }
    match domain {
        libc::AF_INET if len as usize >= size_of::<sockaddr_in>() => {
            // SAFETY: the memory is long enough, and any bytes are a valid value.
            let raw = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(ip.into(), u16::from_be(raw.sin_port)))
        }
        libc::AF_INET6 if len as usize >= size_of::<sockaddr_in6>() => {
            // SAFETY: as above.
            let raw = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            let scope = raw.sin6_scope_id;
            Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, scope).into())
        }
        _ => None,
    }
}

/// The address to which a call for `remote` leads: as on Linux, an unspecified one means this host.
pub(crate) fn destination(remote: SocketAddr) -> SocketAddr {
    let ip = match remote.ip().to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, remote.port())
}

/// The family of an address.
///
/// # Safety
/// As [`read`].
pub(crate) unsafe fn family(address: *const sockaddr, len: socklen_t) -> Option<c_int> {
    if address.is_null() || (len as usize) < size_of::<sa_family_t>() {
        return None;
    }
    // SAFETY: the caller promises this memory.
    let family = unsafe { address.cast::<sa_family_t>().read_unaligned() };
    Some(c_int::from(family))
}

/// Writes bytes into memory of `*len` bytes, cut to its length, and sets `*len` to `whole`.
///
/// # Errors
/// `EFAULT` for null, `EINVAL` for a negative length.
///
/// # Safety
/// `to` and `len` are null or point to live memory, `to` of `*len` bytes.
pub(crate) unsafe fn write_bytes(
    bytes: &[u8],
    whole: usize,
    to: *mut u8,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    if len.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let room = len.read_unaligned();
        if (room as i32) < 0 {
            return Err(libc::EINVAL);
        }
        let copied = bytes.len().min(room as usize);
        if copied > 0 {
            if to.is_null() {
                return Err(libc::EFAULT);
            }
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, copied);
        }
        len.write_unaligned(whole as socklen_t);
    }
    Ok(())
}

/// Writes an address as a socket of `domain` has it.
///
/// # Errors
/// As [`write_bytes`].
///
/// # Safety
/// As [`write_bytes`].
pub(crate) unsafe fn write(
    address: SocketAddr,
    domain: c_int,
    to: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    let mut bytes = [0; size_of::<sockaddr_in6>()];
    bytes[..2].copy_from_slice(&(domain as sa_family_t).to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let used = match (domain, address.ip()) {
        (libc::AF_INET6, ip) => {
            let ip = match ip {
                IpAddr::V4(ip) if ip.is_unspecified() => Ipv6Addr::UNSPECIFIED,
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes[8..24].copy_from_slice(&ip.octets());
            if let SocketAddr::V6(address) = address {
                bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
            }
            size_of::<sockaddr_in6>()
        }
        (_, IpAddr::V4(ip)) => {
            bytes[4..8].copy_from_slice(&ip.octets());
            size_of::<sockaddr_in>()
        }
        _ => size_of::<sockaddr_in>(),
    };
    // SAFETY: the caller's promise.
    unsafe { write_bytes(&bytes[..used], used, to.cast(), len) }
}
