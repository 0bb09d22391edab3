//! The virtual interfaces of `/dev/net/tun`: TAP and TUN.

use crate::af_packet::refuse_owned;
use crate::fd_event::FdEvent;
use crate::fd_halves::{FdLink, LONGEST_VNET};
use crate::interface::{check_name, while_busy};
use crate::pool::MAX_FRAME_LEN;
use crate::vnet::{HEADER_LEN, HEADER_LEN_WITH_COUNT};
use crate::{Capabilities, DeviceError, ETHERNET_HEADER_LEN, LinkType, RxChecksumSupport, sys};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

const TCP_OFFLOADS: u32 =
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;

/// Sets of offloads that the kernel may use, best first. The UDP ones came with Linux 6.2.
const OFFLOADS: [u32; 4] = [
    TCP_OFFLOADS | libc::TUN_F_USO4 | libc::TUN_F_USO6,
    TCP_OFFLOADS,
    libc::TUN_F_CSUM,
    0,
];

/// The work that may be left to the other side, as in the options of the devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offers {
    pub(crate) offloads: bool,
    pub(crate) segmentation: bool,
    pub(crate) merged: bool,
}

/// A kind of virtual interface.
#[derive(Debug)]
pub(crate) struct InterfaceKind {
    flag: i32,
    link: LinkType,
    mode: &'static str,
    attach: &'static str,
    mismatch: &'static str,
}

impl InterfaceKind {
    pub(crate) const TAP: Self = Self {
        flag: libc::IFF_TAP,
        link: LinkType::Ethernet,
        mode: "tap",
        attach: "attach to a TAP interface",
        mismatch: "it exists and is no TAP, or has one queue instead of several or the other way \
                   round; see: ip -d link show",
    };
    pub(crate) const TUN: Self = Self {
        flag: libc::IFF_TUN,
        link: LinkType::Ip,
        mode: "tun",
        attach: "attach to a TUN interface",
        mismatch: "it exists and is no TUN, or has one queue instead of several or the other way \
                   round; see: ip -d link show",
    };

    /// Opens the interface `name`, or creates it.
    pub(crate) fn open(
        &self,
        name: &str,
        offers: Offers,
        flags: i32,
    ) -> Result<(FdLink, Capabilities), DeviceError> {
        check_name(name)?;
        let fd = sys::open_tun().map_err(|error| open_error(&error))?;
        let flags = flags | self.flag | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        let attached = while_busy(|| sys::tun_attach(fd.as_fd(), name, flags));
        attached.map_err(|error| self.attach_error(name, &error))?;
        let system = |what| move |error: io::Error| DeviceError::system(what, name, &error);
        sys::tun_set_header_len(fd.as_fd(), HEADER_LEN_WITH_COUNT as i32)
            .map_err(system("set the virtio header's length"))?;
        let mtu = mtu(name).map_err(system("read the MTU"))?;
        Ok(self.link(name, fd, HEADER_LEN_WITH_COUNT, mtu, offers))
    }

    /// Uses an interface that is open already, of which frames have a virtio header of `vnet`
    /// bytes.
    fn link(
        &self,
        name: &str,
        fd: OwnedFd,
        vnet: usize,
        mtu: usize,
        offers: Offers,
    ) -> (FdLink, Capabilities) {
        let mut caps = Capabilities::new(name);
        caps.has_descriptor = true;
        caps.link = self.link;
        caps.mtu = mtu;
        caps.rx_max_frame = MAX_FRAME_LEN;
        offer(fd.as_fd(), vnet > 0, offers, &mut caps);
        let link = FdLink {
            fd: Arc::new(fd),
            name: name.to_owned(),
            link: self.link,
            vnet,
            is_socket: false,
            ends_empty: false,
        };
        (link, caps)
    }

    fn attach_error(&self, name: &str, error: &io::Error) -> DeviceError {
        let errno = error.raw_os_error().unwrap_or(0);
        let interface = name.to_owned();
        match errno {
            libc::EPERM | libc::EACCES => DeviceError::Privilege {
                what: self.attach,
                capability: "CAP_NET_ADMIN, or an interface made for this user",
                command: format!(
                    "sudo ip tuntap add dev {name} mode {} user $USER",
                    self.mode
                ),
                errno,
            },
            libc::EBUSY => DeviceError::Busy { interface },
            libc::EINVAL => DeviceError::Unsuitable {
                interface,
                reason: self.mismatch,
            },
            _ => DeviceError::System {
                what: self.attach,
                interface,
                errno,
            },
        }
    }
}

/// Uses a TUN interface that someone else opened. `None`: `fd` is no virtual interface, and comes
/// back.
pub(crate) fn adopt_tun(
    fd: OwnedFd,
    mtu_given: Option<usize>,
    offers: Offers,
) -> Result<Result<(FdLink, Capabilities), OwnedFd>, DeviceError> {
    let Ok((name, flags)) = sys::tun_interface(fd.as_fd()) else {
        return Ok(Err(fd));
    };
    let unsuitable = |reason| DeviceError::Unsuitable {
        interface: name.clone(),
        reason,
    };
    if flags & libc::IFF_TUN == 0 {
        return Err(unsuitable("it is a TAP, no TUN"));
    }
    // IFF_NO_PI cannot be seen: the kernel returns the same bit for something else.
    let vnet = match flags & libc::IFF_VNET_HDR {
        0 => 0,
        _ => {
            let len = sys::tun_header_len(fd.as_fd()).map_err(|error| {
                DeviceError::system("read the virtio header's length", &name, &error)
            })?;
            let len = usize::try_from(len).unwrap_or(0);
            let is_known = (HEADER_LEN..=LONGEST_VNET).contains(&len);
            is_known
                .then_some(len)
                .ok_or_else(|| unsuitable("its virtio header has an unknown length"))?
        }
    };
    let mtu = match mtu_given {
        Some(mtu) => mtu,
        None => mtu(&name).map_err(|error| DeviceError::system("read the MTU", &name, &error))?,
    };
    Ok(Ok(InterfaceKind::TUN.link(&name, fd, vnet, mtu, offers)))
}

/// Sets the work that the kernel may leave to us, and in `caps` the work that we may leave to it.
fn offer(fd: BorrowedFd<'_>, has_header: bool, offers: Offers, caps: &mut Capabilities) {
    let accepted = OFFLOADS.into_iter().find(|&offloads| {
        (offers.offloads && has_header || offloads == 0)
            && (offers.segmentation || offloads & !libc::TUN_F_CSUM == 0)
            && sys::tun_set_offloads(fd, offloads).is_ok()
    });
    let accepts = |offload| accepted.unwrap_or(0) & offload != 0;
    // The accepted offloads concern frames from the kernel only. The kernel itself takes any frame
    // that its TCP would send.
    let merged = offers.merged && accepts(libc::TUN_F_CSUM);
    if accepts(libc::TUN_F_CSUM) {
        caps.rx_checksum = RxChecksumSupport::PerFrame;
        caps.tx_checksum = true;
    }
    let longest = |accepted| match accepted {
        true => 65_535 + ETHERNET_HEADER_LEN,
        false => 0,
    };
    caps.tso4_max_bytes = longest(merged || accepts(libc::TUN_F_TSO4));
    caps.tso6_max_bytes = longest(merged || accepts(libc::TUN_F_TSO6));
    caps.uso_max_bytes = longest(accepts(libc::TUN_F_USO4));
}

/// The MTU of an interface of this network namespace.
fn mtu(name: &str) -> io::Result<usize> {
    sys::interface_mtu(sys::control_socket()?.as_fd(), name)
}

/// An event for the receiving half.
pub(crate) fn new_event(name: &str) -> Result<FdEvent, DeviceError> {
    FdEvent::new().map_err(|error| DeviceError::system("make an event", name, &error))
}

/// Checks the kernel's addresses on an interface, since its end is another host on the link.
pub(crate) fn check_address_of(name: &str, address: IpAddr) -> Result<(), DeviceError> {
    let owned = sys::addresses();
    let mut owned = owned.map_err(|error| DeviceError::system("read addresses", name, &error))?;
    owned.retain(|owned| owned.interface == name);
    refuse_owned(&[address], owned)
}

fn open_error(error: &io::Error) -> DeviceError {
    let errno = error.raw_os_error().unwrap_or(0);
    match errno {
        libc::EACCES | libc::EPERM => DeviceError::Privilege {
            what: "open /dev/net/tun",
            capability: "read and write access to it",
            command: "sudo chmod a+rw /dev/net/tun".to_owned(),
            errno,
        },
        libc::ENOENT | libc::ENODEV | libc::ENXIO => DeviceError::Unsupported {
            what: "open /dev/net/tun",
            hint: "try: sudo modprobe tun",
            errno,
        },
        _ => DeviceError::System {
            what: "open",
            interface: "/dev/net/tun".to_owned(),
            errno,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_privilege_names_the_command_that_helps() {
        for (kind, command) in [
            (InterfaceKind::TAP, "ip tuntap add dev x7 mode tap"),
            (InterfaceKind::TUN, "ip tuntap add dev x7 mode tun"),
        ] {
            let error = io::Error::from_raw_os_error(libc::EPERM);
            let error = kind.attach_error("x7", &error).to_string();
            assert!(
                error.contains("CAP_NET_ADMIN") && error.contains(command),
                "{error}"
            );
        }
        let error = open_error(&io::Error::from_raw_os_error(libc::ENOENT)).to_string();
        assert!(error.contains("modprobe tun"), "{error}");
    }
}
