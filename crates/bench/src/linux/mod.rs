//! Our stack against a Linux kernel, beside Linux against Linux over the same interfaces.
//!
//! [`fixture`] makes namespaces and interfaces and puts everything back; [`end`] is one end of a
//! connection, another process; [`wire`] is the bad wire between two TAP interfaces, another
//! process; [`report`] compares.

pub(crate) mod end;
pub(crate) mod fixture;
pub(crate) mod report;
pub(crate) mod timed;
pub(crate) mod wire;

use std::net::Ipv4Addr;

/// Our stack's address on the pair of interfaces.
pub(crate) const OURS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// The kernel at the other end.
pub(crate) const PEER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// The kernel at our end, which takes our place for comparison.
pub(crate) const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 3);
/// Where the other end listens.
pub(crate) const PORT: u16 = 5001;

dominoes_bench::named! {
    /// How our stack reaches the kernel.
    pub(crate) enum Device {
        /// AF_PACKET, a mapped ring of slots.
        Slots = "v2",
        /// AF_PACKET, a mapped ring of blocks.
        Blocks = "v3",
        /// AF_XDP. Never receives merged frames.
        Xdp = "xdp",
        /// The kernel's end is the TAP interface itself.
        Tap = "tap",
        /// The same for a TUN.
        Tun = "tun",
    }
}

impl Device {
    /// The interface, our address, and the kernel's. A TAP and a TUN have other networks, or the
    /// kernel would have several routes to one.
    pub(crate) fn ends(self) -> (&'static str, Ipv4Addr, Ipv4Addr) {
        let network = |third| [1, 2].map(|host| Ipv4Addr::new(10, third, 0, host));
        let (interface, [ours, peer]) = match self {
            Device::Tap => ("tap0", network(79)),
            Device::Tun => ("tun0", network(80)),
            _ => ("veth0", [OURS, PEER]),
        };
        (interface, ours, peer)
    }

    /// Whether the kernel's end is the interface that we open.
    pub(crate) fn is_tunnel(self) -> bool {
        matches!(self, Device::Tap | Device::Tun)
    }
}

dominoes_bench::named! {
    /// Which way the bytes go, seen from our end.
    pub(crate) enum Way {
        /// Our end sends.
        Send = "send",
        /// Our end receives.
        Receive = "receive",
    }
}

impl Way {
    /// The way as the other end sees it.
    pub(crate) fn other(self) -> Way {
        match self {
            Way::Send => Way::Receive,
            Way::Receive => Way::Send,
        }
    }
}

dominoes_bench::named! {
    /// How long frames may get.
    pub(crate) enum Frames {
        /// Up to 64 KB, divided and merged by the kernels on both ends.
        Large = "large",
        /// No longer than the MTU on the way: TSO, GSO and GRO are off on both interfaces. A
        /// kernel's TCP still hands over what its own software then divides, and so does our stack.
        /// No interface divides our stack's frames for a TAP or TUN: the kernel there takes them in
        /// one piece, unless `--merged no` forbids it.
        Small = "small",
    }
}
