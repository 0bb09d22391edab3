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

/// Our stack's address on the pair of interfaces, and on the TAP.
pub(crate) const OURS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// The kernel at the other end.
pub(crate) const PEER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// The kernel at our end, which takes our place for comparison.
pub(crate) const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 3);
/// Our stack and the kernel over the TAP: another network, or the kernel would have two routes to
/// one.
pub(crate) const TAP_OURS: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
/// The kernel over the TAP.
pub(crate) const TAP_PEER: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
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
        /// No interface divides our stack's frames for a TAP: the kernel there takes them in
        /// one piece, unless `--merged no` forbids it.
        Small = "small",
    }
}
