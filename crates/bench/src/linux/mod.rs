//! Our stack against a Linux kernel, beside Linux against Linux over the same interfaces.
//!
//! [`fixture`] makes namespaces and interfaces and puts everything back; [`end`] is one end of a
//! connection, a process of its own; [`wire`] is the bad wire between two TAP interfaces, another
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

/// How our stack reaches the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// AF_PACKET, a mapped ring of slots.
    Slots,
    /// AF_PACKET, a mapped ring of blocks.
    Blocks,
    /// AF_XDP. Never receives merged frames.
    Xdp,
    /// The kernel's end is the TAP interface itself.
    Tap,
}

impl Device {
    /// All of them.
    pub(crate) const ALL: [Device; 4] = [Device::Slots, Device::Blocks, Device::Xdp, Device::Tap];

    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Device::Slots => "v2",
            Device::Blocks => "v3",
            Device::Xdp => "xdp",
            Device::Tap => "tap",
        }
    }

    /// The device of this name.
    pub(crate) fn named(name: &str) -> Option<Device> {
        Device::ALL.into_iter().find(|device| device.name() == name)
    }
}

/// Which way the bytes go, seen from our end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) enum Way {
    /// Our end sends.
    Send,
    /// Our end receives.
    Receive,
}

impl Way {
    /// Both.
    pub(crate) const ALL: [Way; 2] = [Way::Send, Way::Receive];

    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Send => "send",
            Way::Receive => "receive",
        }
    }

    /// The way of this name.
    pub(crate) fn named(name: &str) -> Option<Way> {
        Way::ALL.into_iter().find(|way| way.name() == name)
    }

    /// The same as the other end sees it.
    pub(crate) fn other(self) -> Way {
        match self {
            Way::Send => Way::Receive,
            Way::Receive => Way::Send,
        }
    }
}

/// How long frames may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frames {
    /// Up to 64 KB, divided and merged by the kernels on both ends.
    Large,
    /// No longer than the MTU on the way: TSO, GSO and GRO are off on both interfaces. A kernel's
    /// TCP goes on handing over what its own software then divides, and so does our stack. What it
    /// hands to a TAP no interface divides: the kernel behind it takes that in one piece, unless
    /// our stack is not to do so.
    Small,
}

impl Frames {
    /// Both.
    pub(crate) const ALL: [Frames; 2] = [Frames::Large, Frames::Small];

    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Frames::Large => "large",
            Frames::Small => "small",
        }
    }

    /// The kind of this name.
    pub(crate) fn named(name: &str) -> Option<Frames> {
        Frames::ALL.into_iter().find(|frames| frames.name() == name)
    }
}
