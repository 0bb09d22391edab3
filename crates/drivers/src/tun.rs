//! IP devices: a TUN interface of this kernel, or a descriptor that carries bare IP packets.
//!
//! A VPN client, a sandbox or a network of virtual machines receives such a descriptor from another
//! program or from the kernel, which is then the peer. As with a [`Tap`](crate::tap::Tap), packets
//! of a TUN interface carry a virtio header, so both sides pass TCP data in pieces of up to 64 KB
//! and never compute a checksum.
//!
//! ```console
//! $ sudo ip tuntap add dev tun0 mode tun user $USER
//! $ sudo ip addr add 10.0.0.1/24 dev tun0
//! $ sudo ip link set tun0 up
//! ```
//!
//! # Frames of an IP device
//!
//! An IP device has the link type [`LinkType::Ip`] in its [`Capabilities::link`]. A stack over it
//! uses no ARP, no neighbor discovery and no duplicate address detection. Still each frame has an
//! Ethernet header, with constant addresses: the device writes it in front of a received packet,
//! where the virtio header was, and skips it in a frame to send. This copies nothing. So all code
//! that reads frames (parsers, classifiers, wrappers, the software card) has one format, and the
//! cost on Ethernet is unchanged.
//!
//! Two other designs were rejected. If frames began with the IP header, every parser and every
//! builder of headers would need a branch. If the device answered ARP and neighbor discovery, it
//! would need a protocol stack; and its user would need a table of neighbors, with an entry and a
//! question for each address that the tunnel reaches.

mod pipe;

use crate::fd_event::FdEvent;
use crate::fd_halves::{FdLink, FdRx, FdTx};
use crate::ip_link::IP_MAC;
use crate::pool::{MAX_FRAME_LEN, Pool};
use crate::tun_interface::{InterfaceKind, Offers, adopt_tun, check_address_of, new_event};
use crate::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, ETHERNET_HEADER_LEN, LinkType,
    RxChecksumSupport, sys,
};
use pipe::PipeRx;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes that a pipe should hold: as many as the kernel allows unprivileged users by default.
const PIPE_CAPACITY: i32 = 1 << 20;

/// Options for opening a [`Tun`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TunOptions {
    /// Whether checksums and segmentation are left to the other side, both ways. Default: yes.
    pub offloads: bool,
    /// Whether packets longer than the MTU pass, for the other side to divide. Requires
    /// [`offloads`](Self::offloads). Default: yes.
    pub segmentation: bool,
    /// As [`TapOptions::merged`](crate::tap::TapOptions::merged). Default: no.
    pub merged: bool,
    /// Longest IP packet, in bytes, at most 65,535. Default, `None`: the interface's MTU when the
    /// device is opened, or 1500 if there is no interface. An interface of another network
    /// namespace needs a value: its MTU cannot be read.
    pub mtu: Option<usize>,
    /// Bytes of the virtio header in front of each packet of a socket: 10, 12, or 0 if there is
    /// none. For an interface the device asks the kernel. Default 0.
    pub vnet_header: usize,
    /// Receive buffers kept for reuse, 65 KB each. Pages that no packet touches take no memory.
    /// Default 256.
    pub rx_pool: usize,
}

impl Default for TunOptions {
    fn default() -> Self {
        Self {
            offloads: true,
            segmentation: true,
            merged: false,
            mtu: None,
            vnet_header: 0,
            rx_pool: 256,
        }
    }
}

impl TunOptions {
    /// Sets [`offloads`](Self::offloads).
    pub fn offloads(mut self, offloads: bool) -> Self {
        self.offloads = offloads;
        self
    }

    /// Sets [`segmentation`](Self::segmentation).
    pub fn segmentation(mut self, segmentation: bool) -> Self {
        self.segmentation = segmentation;
        self
    }

    /// Sets [`merged`](Self::merged).
    pub fn merged(mut self, merged: bool) -> Self {
        self.merged = merged;
        self
    }

    /// Sets [`mtu`](Self::mtu).
    pub fn mtu(mut self, bytes: usize) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Sets [`vnet_header`](Self::vnet_header).
    pub fn vnet_header(mut self, bytes: usize) -> Self {
        self.vnet_header = bytes;
        self
    }

    /// Sets [`rx_pool`](Self::rx_pool).
    pub fn rx_pool(mut self, packets: usize) -> Self {
        self.rx_pool = packets;
        self
    }

    /// Opens the interface `name` with these options; see [`Tun::open`].
    ///
    /// # Errors
    /// As for [`Tun::open`].
    pub fn open(self, name: &str) -> Result<Tun, DeviceError> {
        Tun::attach(name, &self, 0)
    }

    fn offers(&self) -> Offers {
        Offers {
            offloads: self.offloads,
            segmentation: self.segmentation,
            merged: self.merged,
        }
    }

    /// The given MTU, which must be possible.
    fn mtu_or(&self, name: &str, usual: usize) -> Result<usize, DeviceError> {
        match self.mtu.unwrap_or(usual) {
            mtu @ 68..=65_535 => Ok(mtu),
            _ => Err(unsuitable(name, "an MTU is 68 to 65,535 bytes")),
        }
    }
}

/// An IP device: the other end of a TUN interface, or of a descriptor with bare IP packets.
#[derive(Debug)]
pub struct Tun {
    caps: Capabilities,
    link: FdLink,
    /// Reads a pipe, where packets have no boundaries.
    pipe: Option<OwnedFd>,
    event: FdEvent,
    pool: Pool,
}

fn unsuitable(name: &str, reason: &'static str) -> DeviceError {
    DeviceError::Unsuitable {
        interface: name.to_owned(),
        reason,
    }
}

impl Tun {
    /// Opens the interface `name`, with all offloads that the kernel supports. An interface that
    /// does not exist is created, and lives as long as the device; it has no address and is down
    /// until someone configures it.
    ///
    /// # Errors
    /// The name is invalid; creating an interface needs `CAP_NET_ADMIN`, and opening one is
    /// reserved to its owner; another process has it open; the kernel does not support TUN.
    pub fn open(name: &str) -> Result<Self, DeviceError> {
        Self::attach(name, &TunOptions::default(), 0)
    }

    /// The default options, to change before opening:
    /// `Tun::options().offloads(false).open("tun0")`.
    pub fn options() -> TunOptions {
        TunOptions::default()
    }

    /// Opens several queues of the interface `name`, one device each. The kernel distributes the
    /// packets it sends by flow, and keeps a flow with the device that last sent a packet of it.
    ///
    /// # Errors
    /// As for [`open`](Self::open); also if the interface exists and was not created for several
    /// queues (`ip tuntap add ... multi_queue`).
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn open_queues(
        name: &str,
        options: &TunOptions,
        count: usize,
    ) -> Result<Vec<Self>, DeviceError> {
        assert!(count > 0, "at least one device");
        let open = |_| Self::attach(name, options, libc::IFF_MULTI_QUEUE);
        (0..count).map(open).collect()
    }

    fn attach(name: &str, options: &TunOptions, flags: i32) -> Result<Self, DeviceError> {
        let (link, mut caps) = InterfaceKind::TUN.open(name, options.offers(), flags)?;
        caps.mtu = options.mtu_or(name, caps.mtu)?;
        Self::new(link, None, caps, options)
    }

    fn new(
        link: FdLink,
        pipe: Option<OwnedFd>,
        caps: Capabilities,
        options: &TunOptions,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            event: new_event(&caps.name)?,
            pool: Pool::new(options.rx_pool),
            caps,
            link,
            pipe,
        })
    }

    /// Takes over a descriptor: a queue of a TUN interface that is attached already, with or
    /// without virtio headers, or a connected socket of which each datagram (or sequenced packet)
    /// is one IP packet. The descriptor, and all its duplicates, become non-blocking.
    ///
    /// If the other end of a socket is closed, or sends an empty datagram, the device is gone. An
    /// interface must have been attached with `IFF_NO_PI`, which the kernel does not report;
    /// otherwise the device counts each packet as malformed.
    ///
    /// ```
    /// use std::os::unix::net::UnixDatagram;
    /// use dominoes_drivers::tun::Tun;
    /// use dominoes_drivers::{Device, LinkType};
    ///
    /// let (ours, _theirs) = UnixDatagram::pair()?;
    /// let device = Tun::from_fd(ours.into(), &Tun::options().mtu(9000))?;
    /// assert_eq!(device.capabilities().link, LinkType::Ip);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::Unsuitable`]: it is another descriptor or a TAP interface, or a value of
    /// `options` is impossible. An interface of unknown MTU: see [`TunOptions::mtu`].
    pub fn from_fd(fd: OwnedFd, options: &TunOptions) -> Result<Self, DeviceError> {
        nonblocking(fd.as_fd(), 0)?;
        let fd = match adopt_tun(fd, options.mtu, options.offers())? {
            Ok((link, mut caps)) => {
                caps.mtu = options.mtu_or(&caps.name, caps.mtu)?;
                return Self::new(link, None, caps, options);
            }
            Err(fd) => fd,
        };
        let kind = match sys::socket_type(fd.as_fd()) {
            Ok(kind @ (libc::SOCK_DGRAM | libc::SOCK_SEQPACKET)) => kind,
            _ => return Err(unsuitable("fd", "it is no TUN and no datagram socket")),
        };
        if !matches!(options.vnet_header, 0 | 10 | 12) {
            return Err(unsuitable("fd", "a virtio header has 10 or 12 bytes"));
        }
        let mut caps = capabilities("fd", options.mtu_or("fd", 1500)?);
        if options.vnet_header > 0 && options.offloads {
            caps.rx_checksum = RxChecksumSupport::PerFrame;
            caps.tx_checksum = true;
            if options.segmentation {
                caps.tso4_max_bytes = 65_535 + ETHERNET_HEADER_LEN;
                caps.tso6_max_bytes = 65_535 + ETHERNET_HEADER_LEN;
            }
        }
        let link = FdLink {
            fd: Arc::new(fd),
            name: caps.name.clone(),
            link: LinkType::Ip,
            vnet: options.vnet_header,
            is_socket: true,
            ends_empty: kind == libc::SOCK_SEQPACKET,
        };
        Self::new(link, None, caps, options)
    }

    /// Takes over the reading end of one pipe and the writing end of another, which carry bare IP
    /// packets without separators: the length in each header gives the start of the next packet.
    /// So after bytes that are no packet the device is gone. Both ends become non-blocking.
    ///
    /// The MTU is at most 4096 bytes, because the kernel may divide longer writes. There are no
    /// offloads. The program must ignore SIGPIPE; Rust programs do.
    ///
    /// # Errors
    /// [`DeviceError::Unsuitable`]: the MTU is impossible.
    pub fn from_pipes(
        reader: OwnedFd,
        writer: OwnedFd,
        options: &TunOptions,
    ) -> Result<Self, DeviceError> {
        nonblocking(reader.as_fd(), 0)?;
        // A reader may rely on one packet for each read.
        nonblocking(writer.as_fd(), libc::O_DIRECT)?;
        // Each packet takes a page; without this there is room for 16.
        let _ = sys::set_pipe_capacity(writer.as_fd(), PIPE_CAPACITY);
        let mtu = options.mtu_or("pipe", 1500)?;
        if mtu > libc::PIPE_BUF {
            return Err(unsuitable(
                "pipe",
                "the MTU of a pipe is at most 4096 bytes",
            ));
        }
        let caps = capabilities("pipe", mtu);
        let link = FdLink {
            fd: Arc::new(writer),
            name: caps.name.clone(),
            link: LinkType::Ip,
            vnet: 0,
            is_socket: false,
            ends_empty: false,
        };
        Self::new(link, Some(reader), caps, options)
    }
}

fn nonblocking(fd: BorrowedFd<'_>, flags: i32) -> Result<(), DeviceError> {
    let set = sys::add_status_flags(fd, flags | libc::O_NONBLOCK);
    set.map_err(|error| DeviceError::system("set O_NONBLOCK", "fd", &error))
}

fn capabilities(name: &str, mtu: usize) -> Capabilities {
    let mut caps = Capabilities::new(name);
    caps.has_descriptor = true;
    caps.link = LinkType::Ip;
    caps.mtu = mtu;
    caps.rx_max_frame = MAX_FRAME_LEN;
    caps
}

/// Readable while a packet can be claimed. A program that sleeps in `poll` or `epoll` instead of
/// [`DeviceRx::wait`] clones the descriptor ([`BorrowedFd::try_clone_to_owned`]) before it gives
/// the device to a stack.
impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let pipe = self.pipe.as_ref();
        pipe.map_or(self.link.fd.as_fd(), AsFd::as_fd)
    }
}

impl Device for Tun {
    fn capabilities(&self) -> Capabilities {
        self.caps.clone()
    }

    fn mac(&self) -> [u8; 6] {
        IP_MAC
    }

    /// Checks the kernel's addresses on this interface, since its end is another host on the link.
    fn check_address(&self, address: IpAddr) -> Result<(), DeviceError> {
        check_address_of(&self.caps.name, address)
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        let rx: Box<dyn DeviceRx> = match self.pipe {
            None => Box::new(FdRx::new(self.link.clone(), self.event, self.pool)),
            Some(pipe) => Box::new(PipeRx::new(pipe, &self.caps.name, self.event, self.pool)),
        };
        (rx, Box::new(FdTx::new(self.caps, self.link)))
    }
}

#[cfg(test)]
mod tests;
