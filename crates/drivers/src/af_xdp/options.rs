//! Options for opening an AF_XDP socket.

use super::Redirect;
use crate::af_packet::MacChoice;
use std::net::IpAddr;

crate::settings! {
    /// Options for opening an [`AfXdp`](super::AfXdp).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AfXdpOptions {
        /// The frames that are ours. Default: [`Redirect::Everything`]. [`address`](Self::address)
        /// selects the other kind.
        pub redirect: Redirect = Redirect::default();
        /// Our Ethernet address. Default: the interface's.
        pub mac: MacChoice = MacChoice::default();
        /// Where the program runs. Default: [`XdpMode::Auto`].
        pub mode: XdpMode = XdpMode::default();
        /// How frames are moved. Default: [`XdpBind::Auto`].
        pub bind: XdpBind = XdpBind::default();
        /// Chunks of 4 KiB for received frames, per queue: rounded up to a power of two, 64 to
        /// 65536. Default 2048.
        pub rx_chunks: u32 = 2048;
        /// Chunks of 4 KiB for frames to send, per queue: rounded up to a power of two, 64 to
        /// 65536. Default 1024.
        pub tx_chunks: u32 = 1024;
        /// Whether all received frames are marked [`RxChecksum::Valid`](crate::RxChecksum::Valid).
        /// Default: no. For links that cannot damage a frame, such as a veth, whose peer leaves
        /// checksums unfinished.
        pub trust_checksums: bool = false;
        /// Whether the kernel may finish checksums of frames that we send, where it supports that
        /// for AF_XDP (Linux 6.8 and later, when frames are copied). Default: yes.
        pub offloads: bool = true;
        /// How frames leave. Default: [`XdpTransmit::Packet`].
        pub transmit: XdpTransmit = XdpTransmit::default();
        /// Whether to open the device although the kernel owns an address of
        /// [`Redirect::Addresses`]. Frames to that address come to us, so the kernel does not
        /// answer them on this interface. Default: no.
        pub guard: bool = false;
    }
}

/// Where the program that selects our frames runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpMode {
    /// In the driver if it supports that, otherwise after it.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// After the driver, on any interface; slower. Peers must not send merged segments, since
    /// those do not fit a chunk.
    Generic,
}

/// How frames move between the kernel and the shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpBind {
    /// Without a copy if the driver supports that, otherwise with one.
    #[default]
    Auto,
    /// The kernel copies them.
    Copy,
    /// The network card reads and writes the shared memory. Few drivers can do that.
    ZeroCopy,
}

/// How frames leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpTransmit {
    /// Through the socket's send ring, which takes frames no longer than the MTU. Where the kernel
    /// copies them, it makes a packet of each, and a veth wakes the receiver for each.
    Ring,
    /// Through a packet socket, unless the network card reads the shared memory itself. The kernel
    /// copies frames either way, but the socket also takes frames of up to 64 KiB, which the kernel
    /// or the card divides into segments, and leaves checksums to them (with
    /// [`offloads`](AfXdpOptions::offloads)).
    #[default]
    Packet,
}

impl AfXdpOptions {
    /// Adds an address of our stack, or a multicast group that it listens to, to
    /// [`Redirect::Addresses`]. Replaces [`Redirect::Everything`].
    pub fn address(mut self, address: impl Into<IpAddr>) -> Self {
        let address = address.into();
        match &mut self.redirect {
            Redirect::Addresses(ours) => ours.push(address),
            Redirect::Everything => self.redirect = Redirect::Addresses(vec![address]),
        }
        self
    }
}
