//! Properties of interfaces, and the kernel's addresses.

use libc::c_int;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use super::{check, own};

/// A request about the interface `name`; all other fields are zero.
pub(super) fn request(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` consists of integers, arrays of them, and pointers in a union; all zeros are
    // valid for each.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays zero. Names were checked to be shorter; longer ones are cut.
    let room = request.ifr_name.len() - 1;
    for (place, byte) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request
}

/// Sends a request about an interface; the kernel writes the answer into it.
pub(super) fn ask(
    fd: BorrowedFd<'_>,
    number: libc::Ioctl,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    // SAFETY: all callers pass a SIOCGIF* number, TUNSETIFF or TUNGETIFF, for which the kernel reads and
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

/// A socket for requests about interfaces.
pub(crate) fn control_socket() -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    own(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })
}

/// The index of an interface.
pub(crate) fn interface_index(fd: BorrowedFd<'_>, name: &str) -> io::Result<i32> {
    let mut request = request(name);
    ask(fd, libc::SIOCGIFINDEX as _, &mut request)?;
    // SAFETY: the kernel has filled in this member, and any bits are a valid integer.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex })
}

/// The present name of the interface with this index; ENODEV if there is none.
pub(crate) fn interface_name(fd: BorrowedFd<'_>, index: i32) -> io::Result<String> {
    let mut request = request("");
    request.ifr_ifru.ifru_ifindex = index;
    ask(fd, libc::SIOCGIFNAME as _, &mut request)?;
    Ok(name_of(&request))
}

/// The name in the kernel's answer.
pub(super) fn name_of(request: &libc::ifreq) -> String {
    let bytes = request
        .ifr_name
        .iter()
        .map(|&byte| byte as u8)
        .take_while(|&byte| byte != 0)
        .collect::<Vec<_>>();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Longest IP packet of an interface, in bytes.
pub(crate) fn interface_mtu(fd: BorrowedFd<'_>, name: &str) -> io::Result<usize> {
    let mut request = request(name);
    ask(fd, libc::SIOCGIFMTU as _, &mut request)?;
    // SAFETY: the kernel has filled in this member, and any bits are a valid integer.
    Ok(usize::try_from(unsafe { request.ifr_ifru.ifru_mtu }).unwrap_or(0))
}

/// Whether an interface is administratively up.
pub(crate) fn interface_is_up(fd: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    let mut request = request(name);
    ask(fd, libc::SIOCGIFFLAGS as _, &mut request)?;
    // SAFETY: the kernel has filled in this member, and any bits are a valid integer.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(c_int::from(flags) & libc::IFF_UP != 0)
}

/// The Ethernet address of an interface; `None` if it is not an Ethernet.
pub(crate) fn interface_mac(fd: BorrowedFd<'_>, name: &str) -> io::Result<Option<[u8; 6]>> {
    let mut request = request(name);
    ask(fd, libc::SIOCGIFHWADDR as _, &mut request)?;
    // SAFETY: the kernel has filled in this member, and any bits are valid integers.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut mac = [0; 6];
    for (place, &byte) in mac.iter_mut().zip(&address.sa_data) {
        *place = byte as u8;
    }
    Ok((address.sa_family == libc::ARPHRD_ETHER).then_some(mac))
}

/// An address that the kernel owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnedAddress {
    pub(crate) interface: String,
    pub(crate) address: IpAddr,
    pub(crate) prefix_len: u8,
}

/// All IPv4 and IPv6 addresses that the kernel owns in this network namespace.
pub(crate) fn addresses() -> io::Result<Vec<OwnedAddress>> {
    let mut list = ptr::null_mut();
    // SAFETY: the kernel's answer is stored through a valid pointer.
    check(unsafe { libc::getifaddrs(&mut list) })?;
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: not null, so it is an entry of getifaddrs' list, which is freed only below.
        let entry = unsafe { &*next };
        // SAFETY: both are null or point to an address that lives as long as the list.
        let (address, mask) = unsafe { (ip(entry.ifa_addr), ip(entry.ifa_netmask)) };
        if let Some(address) = address {
            // SAFETY: every entry has a name that ends in zero and lives as long as the list.
            let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
            found.push(OwnedAddress {
                interface: name.to_string_lossy().into_owned(),
                address,
                prefix_len: prefix_len(address, mask),
            });
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs, and no reference into it is left.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// The number of ones in the mask. Without a mask, the length of the address in bits.
fn prefix_len(address: IpAddr, mask: Option<IpAddr>) -> u8 {
    let ones = match mask {
        Some(IpAddr::V4(mask)) => mask.to_bits().count_ones(),
        Some(IpAddr::V6(mask)) => mask.to_bits().count_ones(),
        None if address.is_ipv4() => 32,
        None => 128,
    };
    ones as u8
}

/// The address in a socket address of any family.
///
/// # Safety
/// `address` is null, or points to a socket address of the length that its family implies.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null; every socket address begins with its family.
    match c_int::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: with this family it is a `sockaddr_in`; read without assuming its alignment.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above, a `sockaddr_in6`.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(address.sin6_addr.s6_addr.into())
        }
        _ => None,
    }
}

/// The name of an interface's driver, if the driver reports it.
pub(crate) fn interface_driver(fd: BorrowedFd<'_>, name: &str) -> Option<String> {
    // struct ethtool_drvinfo: after the command number comes the name, in 32 bytes.
    let info: [u32; 49] = ethtool(fd, name, 3)?; // ETHTOOL_GDRVINFO
    let bytes = info[1..9].iter().flat_map(|word| word.to_ne_bytes());
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8(bytes).ok()
}

/// Whether frames longer than the MTU may arrive on an interface: it merges received segments, or
/// it leaves segmentation to its other end, as virtual interfaces do.
pub(crate) fn interface_merges(fd: BorrowedFd<'_>, name: &str) -> bool {
    // ETHTOOL_GGRO, ETHTOOL_GTSO, and ETHTOOL_GFLAGS for ETH_FLAG_LRO; struct ethtool_value.
    [(0x2b, 1), (0x1e, 1), (0x25, 1 << 15)]
        .into_iter()
        .filter_map(|(command, bit)| Some(ethtool::<2>(fd, name, command)?[1] & bit))
        .any(|set| set != 0)
}

/// The answer to an `ethtool` command, whose structure has `N` words with the command number as
/// the first. `None` if the interface does not know the command.
fn ethtool<const N: usize>(fd: BorrowedFd<'_>, name: &str, command: u32) -> Option<[u32; N]> {
    let mut answer = [0; N];
    answer[0] = command;
    let mut request = request(name);
    request.ifr_ifru.ifru_data = answer.as_mut_ptr().cast();
    // SAFETY: the kernel reads one `ifreq` and writes the structure of the command: one
    // `ethtool_drvinfo` of 196 bytes, or one `ethtool_value` of 8. The callers pass its length.
    check(unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::SIOCETHTOOL,
            ptr::from_mut(&mut request),
        )
    })
    .ok()?;
    Some(answer)
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
        assert!(interface_merges(socket.as_fd(), "lo"));
    }

    #[test]
    fn an_interface_that_is_not_there_is_no_device() {
        let socket = control_socket().unwrap();
        let error = interface_index(socket.as_fd(), "no-such-iface").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn the_list_of_addresses_can_be_iterated_and_freed() {
        for owned in addresses().unwrap() {
            let bits = if owned.address.is_ipv4() { 32 } else { 128 };
            assert!(
                !owned.interface.is_empty() && owned.prefix_len <= bits,
                "{owned:?}"
            );
        }
    }
}
