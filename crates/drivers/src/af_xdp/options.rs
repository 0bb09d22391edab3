//! Options for opening an AF_XDP socket.

use super::Redirect;
use crate::af_packet::MacChoice;
use std::net::IpAddr;

/// Options for opening an [`AfXdp`](super::AfXdp).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AfXdpOptions {
    /// The frames that are ours. Default: [`Redirect::Everything`]. [`address`](Self::address)
    /// selects the other kind.
    pub redirect: Redirect,
    /// Our Ethernet address. Default: the interface's.
    pub mac: MacChoice,
    /// Where the program runs. Default: [`XdpMode::Auto`].
    pub mode: XdpMode,
    /// How frames are moved. Default: [`XdpBind::Auto`].
    pub bind: XdpBind,
    /// Chunks of 4 KiB for received frames, per queue: rounded up to a power of two, 64 to 65536.
    /// Default 2048.
    pub rx_chunks: u32,
    /// Chunks of 4 KiB for frames to send, per queue: rounded up to a power of two, 64 to 65536.
    /// Default 1024.
    pub tx_chunks: u32,
    /// Whether all received frames are marked [`RxChecksum::Valid`](crate::RxChecksum::Valid).
    /// Default: no. For links that cannot damage a frame, such as a veth, whose peer leaves
    /// checksums unfinished.
    pub trust_checksums: bool,
    /// Whether the kernel may finish checksums of frames that we send, where it supports that for
    /// AF_XDP (Linux 6.8 and later, when frames are copied). Default: yes.
    pub offloads: bool,
    /// How frames leave. Default: [`XdpTransmit::Ring`].
    pub transmit: XdpTransmit,
    /// Whether to open the device although the kernel owns an address of [`Redirect::Addresses`].
    /// Frames to that address come to us, so the kernel does not answer them on this interface.
    /// Default: no.
    pub guard: bool,
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
    /// Through the socket's send ring.
    #[default]
    Ring,
    /// Through a packet socket, unless the network card reads the shared memory itself. Where the
    /// kernel copies frames anyway, a packet socket can also divide segments and compute checksums
    /// (with [`offloads`](AfXdpOptions::offloads)), and a veth delivers the segments together. The
    /// send ring takes frames no longer than the MTU, and a veth delivers each of them alone and
    /// wakes the receiver for each.
    Packet,
}

impl Default for AfXdpOptions {
    fn default() -> Self {
        Self {
            redirect: Redirect::default(),
            mac: MacChoice::default(),
            mode: XdpMode::default(),
            bind: XdpBind::default(),
            rx_chunks: 2048,
            tx_chunks: 1024,
            trust_checksums: false,
            offloads: true,
            transmit: XdpTransmit::default(),
            guard: false,
        }
    }
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

    /// Sets [`redirect`](Self::redirect).
    pub fn redirect(mut self, redirect: Redirect) -> Self {
        self.redirect = redirect;
        self
    }

    /// Sets [`mac`](Self::mac).
    pub fn mac(mut self, mac: MacChoice) -> Self {
        self.mac = mac;
        self
    }

    /// Sets [`mode`](Self::mode).
    pub fn mode(mut self, mode: XdpMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets [`bind`](Self::bind).
    pub fn bind(mut self, bind: XdpBind) -> Self {
        self.bind = bind;
        self
    }

    /// Sets [`rx_chunks`](Self::rx_chunks).
    pub fn rx_chunks(mut self, chunks: u32) -> Self {
        self.rx_chunks = chunks;
        self
    }

    /// Sets [`tx_chunks`](Self::tx_chunks).
    pub fn tx_chunks(mut self, chunks: u32) -> Self {
        self.tx_chunks = chunks;
        self
    }

    /// Sets [`trust_checksums`](Self::trust_checksums).
    pub fn trust_checksums(mut self, trust: bool) -> Self {
        self.trust_checksums = trust;
        self
    }

    /// Sets [`offloads`](Self::offloads).
    pub fn offloads(mut self, offloads: bool) -> Self {
        self.offloads = offloads;
        self
    }

    /// Sets [`transmit`](Self::transmit).
    pub fn transmit(mut self, transmit: XdpTransmit) -> Self {
        self.transmit = transmit;
        self
    }

    /// Sets [`guard`](Self::guard).
    pub fn guard(mut self, guard: bool) -> Self {
        self.guard = guard;
        self
    }
}
