//! Control messages of datagrams: remaining hops, traffic class and destination (RFC 3542,
//! `ip(7)`).

use core::ffi::c_int;
use std::net::IpAddr;

use libc::{IPPROTO_IP, IPPROTO_IPV6, SOL_SOCKET};

use crate::datagrams::Arrived;
use crate::sys::{self, Errno, Fd};

const HEADER: usize = size_of::<libc::cmsghdr>();

/// The options that ask for control messages; a bit for each, in this order.
const OPTIONS: [(c_int, c_int); 6] = [
    (IPPROTO_IP, libc::IP_PKTINFO),
    (IPPROTO_IP, libc::IP_RECVTTL),
    (IPPROTO_IP, libc::IP_RECVTOS),
    (IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    (IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
    (IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
];
/// The bits that ask for destinations.
pub(crate) const DESTINATIONS: u8 = 1 | 1 << 3;

/// The options that are set, in bits. A socket of IPv4 has none of IPv6.
pub(crate) fn wanted(shadow: Fd, domain: c_int) -> u8 {
    let is_set = |(level, name)| {
        (domain == libc::AF_INET6 || level == IPPROTO_IP)
            && sys::option::<c_int>(shadow, level, name).is_ok_and(|on| on != 0)
    };
    let bits = OPTIONS.into_iter().enumerate();
    bits.fold(0, |all, (bit, option)| {
        all | u8::from(is_set(option)) << bit
    })
}

/// The settings of a control message, for one datagram.
#[derive(Clone, Copy, Default)]
pub(crate) struct Marks {
    pub(crate) hops: Option<u8>,
    pub(crate) class: Option<u8>,
}

/// Reads the control messages of a datagram that is sent. Its source stays the stack's choice.
///
/// # Errors
/// `EINVAL`.
pub(crate) fn read(mut bytes: &[u8]) -> Result<Marks, Errno> {
    let mut marks = Marks::default();
    while let Some((header, _)) = bytes.split_at_checked(HEADER) {
        let number = |at: usize| c_int::from_ne_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let len = usize::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| header[i]));
        let data = bytes.get(HEADER..len).ok_or(libc::EINVAL)?;
        let value = match data {
            [byte] => Some(c_int::from(*byte)),
            _ => data.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes)),
        };
        match (number(8), number(12)) {
            (IPPROTO_IP, libc::IP_TTL) => {
                let hops = value.and_then(|hops| u8::try_from(hops).ok());
                marks.hops = Some(hops.filter(|hops| *hops > 0).ok_or(libc::EINVAL)?);
            }
            // -1 means the default.
            (IPPROTO_IPV6, libc::IPV6_HOPLIMIT | libc::IPV6_TCLASS) if value == Some(-1) => {}
            (IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                let hops = value.and_then(|hops| u8::try_from(hops).ok());
                marks.hops = Some(hops.ok_or(libc::EINVAL)?);
            }
            (IPPROTO_IP, libc::IP_TOS) | (IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let class = value.and_then(|class| u8::try_from(class).ok());
                marks.class = Some(class.ok_or(libc::EINVAL)?);
            }
            (IPPROTO_IP, libc::IP_PKTINFO) if data.len() == size_of::<libc::in_pktinfo>() => {}
            (IPPROTO_IPV6, libc::IPV6_PKTINFO) if data.len() >= size_of::<libc::in6_pktinfo>() => {}
            // As on Linux, sockets of the network ignore these.
            (SOL_SOCKET, libc::SCM_RIGHTS | libc::SCM_CREDENTIALS) => {}
            _ => return Err(libc::EINVAL),
        }
        let next = len.next_multiple_of(align_of::<usize>());
        bytes = bytes.get(next..).unwrap_or_default();
    }
    Ok(marks)
}

/// Writes the control messages of a datagram that has arrived. Returns their length, and whether
/// there was room for all of them.
pub(crate) fn write(into: &mut [u8], wanted: u8, arrived: &Arrived) -> (usize, bool) {
    let is_v4 = arrived.from.ip().to_canonical().is_ipv4();
    let (mut used, mut has_room) = (0, true);
    for (bit, (level, name)) in OPTIONS.into_iter().enumerate() {
        if wanted >> bit & 1 == 0 || (level == IPPROTO_IP) != is_v4 {
            continue;
        }
        let (hops, class) = (c_int::from(arrived.hops), c_int::from(arrived.class));
        let (kind, data) = match (name, arrived.to) {
            (libc::IP_RECVTTL, _) if is_v4 => (libc::IP_TTL, hops.to_ne_bytes().to_vec()),
            (libc::IP_RECVTOS, _) if is_v4 => (libc::IP_TOS, vec![arrived.class]),
            (libc::IPV6_RECVHOPLIMIT, _) => (libc::IPV6_HOPLIMIT, hops.to_ne_bytes().to_vec()),
            (libc::IPV6_RECVTCLASS, _) => (libc::IPV6_TCLASS, class.to_ne_bytes().to_vec()),
            (_, Some((IpAddr::V4(to), interface))) => {
                let parts = [interface.to_ne_bytes(), to.octets(), to.octets()];
                (libc::IP_PKTINFO, parts.concat())
            }
            (_, Some((IpAddr::V6(to), interface))) => {
                let mut data = to.octets().to_vec();
                data.extend(interface.to_ne_bytes());
                (libc::IPV6_PKTINFO, data)
            }
            (_, None) => continue,
        };
        let room = &mut into[used..];
        if room.len() < HEADER {
            has_room = false;
            continue;
        }
        let len = (HEADER + data.len()).min(room.len());
        has_room &= len == HEADER + data.len();
        room[..8].copy_from_slice(&len.to_ne_bytes());
        room[8..12].copy_from_slice(&level.to_ne_bytes());
        room[12..HEADER].copy_from_slice(&kind.to_ne_bytes());
        room[HEADER..len].copy_from_slice(&data[..len - HEADER]);
        let whole = (HEADER + data.len()).next_multiple_of(align_of::<usize>());
        used += whole.min(room.len());
    }
    (used, has_room)
}
