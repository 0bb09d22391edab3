//! The other end of a virtual Ethernet interface of this kernel.
//!
//! The kernel's stack is the peer: the frames that it sends on the interface arrive here, and it
//! receives the frames that are sent here. Frames carry a virtio header, so both sides pass TCP
//! data in pieces of up to 64 KB and never compute a checksum.
//!
//! ```console
//! $ sudo ip tuntap add dev tap0 mode tap user $USER
//! $ sudo ip addr add 10.0.0.1/24 dev tap0
//! $ sudo ip link set tap0 up
//! ```

use crate::fd_event::FdEvent;
use crate::fd_halves::{FdLink, FdRx, FdTx};
use crate::interface::local_mac;
use crate::pool::Pool;
use crate::tun_interface::{InterfaceKind, Offers, check_address_of, new_event};
use crate::{Capabilities, Device, DeviceError, DeviceRx, DeviceTx};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

crate::settings! {
    /// Options for opening a [`Tap`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TapOptions {
        /// Whether checksums and segmentation are left to the other side, both ways. Default: yes.
        pub offloads: bool = true;
        /// Whether frames longer than the MTU pass, for the other side to divide. Requires
        /// [`offloads`](Self::offloads). Overrides the settings of `ethtool -K`. Default: yes.
        pub segmentation: bool = true;
        /// Whether we may send frames longer than the MTU even without
        /// [`segmentation`](Self::segmentation). Requires [`offloads`](Self::offloads). The kernel
        /// takes such a frame in one system call, as if a network card had merged it; otherwise it
        /// takes one call for each segment and wakes its receiver for each. No setting of the
        /// interface can prevent that. Default: no.
        pub merged: bool = false;
        /// Our Ethernet address. Default, `None`: a locally administered address derived from the
        /// interface's name. It differs from the interface's address, which is the kernel's.
        pub mac: Option<[u8; 6]> = None => some [u8; 6];
        /// Receive buffers kept for reuse, 65 KB each. Pages that no frame touches take no memory.
        /// Default 256.
        pub rx_pool: usize = 256;
    }
}

impl TapOptions {
    /// Opens the interface `name` with these options; see [`Tap::open`].
    ///
    /// # Errors
    /// As for [`Tap::open`].
    pub fn open(self, name: &str) -> Result<Tap, DeviceError> {
        Tap::attach(name, &self, 0)
    }
}

/// The other end of a TAP interface.
///
/// The interface's MTU is read once, when the device is opened.
#[derive(Debug)]
pub struct Tap {
    caps: Capabilities,
    mac: [u8; 6],
    link: FdLink,
    event: FdEvent,
    pool: Pool,
}

impl Tap {
    /// Opens the interface `name`, with all offloads that the kernel supports. An interface that
    /// does not exist is created, and lives as long as the device; it has no address and is down
    /// until someone configures it.
    ///
    /// # Errors
    /// The name is invalid; creating an interface needs `CAP_NET_ADMIN`, and opening one is
    /// reserved to its owner; another process has it open; the kernel does not support TAP.
    pub fn open(name: &str) -> Result<Self, DeviceError> {
        Self::attach(name, &TapOptions::default(), 0)
    }

    /// The default options, to change before opening:
    /// `Tap::options().offloads(false).open("tap0")`.
    pub fn options() -> TapOptions {
        TapOptions::default()
    }

    /// Opens several queues of the interface `name`, one device each. The kernel distributes the
    /// frames it sends by flow, and keeps a flow with the device that last sent a frame of it. All
    /// devices have the same Ethernet address.
    ///
    /// # Errors
    /// As for [`open`](Self::open); also if the interface exists and was not created for several
    /// queues (`ip tuntap add ... multi_queue`).
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn open_queues(
        name: &str,
        options: &TapOptions,
        count: usize,
    ) -> Result<Vec<Self>, DeviceError> {
        assert!(count > 0, "at least one device");
        let open = |_| Self::attach(name, options, libc::IFF_MULTI_QUEUE);
        (0..count).map(open).collect()
    }

    fn attach(name: &str, options: &TapOptions, flags: i32) -> Result<Self, DeviceError> {
        let offers = Offers {
            offloads: options.offloads,
            segmentation: options.segmentation,
            merged: options.merged,
        };
        let (link, caps) = InterfaceKind::TAP.open(name, offers, flags)?;
        Ok(Self {
            caps,
            mac: options.mac.unwrap_or_else(|| local_mac(name)),
            event: new_event(name)?,
            link,
            pool: Pool::new(options.rx_pool),
        })
    }
}

/// Readable while a frame can be claimed. A program that sleeps in `poll` or `epoll` instead of
/// [`DeviceRx::wait`] clones the descriptor ([`BorrowedFd::try_clone_to_owned`]) before it gives
/// the device to a stack.
impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.fd.as_fd()
    }
}

impl Device for Tap {
    fn capabilities(&self) -> Capabilities {
        self.caps.clone()
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Checks the kernel's addresses on this interface, since its end is another host on the link.
    fn check_address(&self, address: IpAddr) -> Result<(), DeviceError> {
        check_address_of(&self.caps.name, address)
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        let rx = FdRx::new(self.link.clone(), self.event, self.pool);
        (Box::new(rx), Box::new(FdTx::new(self.caps, self.link)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_name_is_refused_before_anything_is_opened() {
        assert!(matches!(
            Tap::open("not a name"),
            Err(DeviceError::BadName { .. })
        ));
    }
}
