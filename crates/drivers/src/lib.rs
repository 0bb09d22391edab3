//! Network devices that move frames: in memory, TAP, TUN, AF_PACKET, AF_XDP.
//!
//! A [`Device`] splits into a receiving and a sending half; one thread at a time uses each. Both
//! work in batches, never block (except in [`DeviceRx::wait`]), and carry merged frames of up to
//! 64 KB together with their checksum and segmentation state, the most valuable feature that a
//! device can have.
//!
//! | device | description | needs |
//! |---|---|---|
//! | [`memory::pair`] | two devices joined in memory, optionally by a seeded bad wire | nothing |
//! | [`memory::peer::PeerDevice`] | a device whose other end is a simulated TCP peer, for benchmarks | nothing |
//! | [`memory::ip_pair`] | the same, with bare IP packets | nothing |
//! | [`memory::scripted`] | a device whose other end is the test itself | nothing |
//! | [`tap::Tap`] | the other end of a virtual interface of this kernel | `CAP_NET_ADMIN` |
//! | [`tun::Tun`] | the same without Ethernet, or a descriptor that carries IP packets | `CAP_NET_ADMIN`, or the descriptor |
//! | [`af_packet::AfPacket`] | a real (or veth) interface, shared with the kernel's stack | `CAP_NET_RAW` |
//! | [`af_xdp::AfXdp`] | the same below the kernel's stack, which keeps all other packets | also `CAP_NET_ADMIN`, `CAP_BPF` |
//! | `pnet::Pnet` (feature `pnet`) | any platform's raw frames, as a baseline | the platform's privileges |
//! | [`nic::Nic`] | a programmable card in software, in front of any of them | that device's privileges |
//! | [`split::split`] | one of them divided into several by a classifier | that device's privileges |
//! | [`impair::Impaired`] | any of them with a bad wire: loss, delay, rate, bursts | that device's privileges |
//! | `Vec<D>` | the queues of one interface, as `open_queues` returns them | that device's privileges |
//!
//! `pcap::Capture` (feature `pcap`) writes the frames that pass through any of them to a file.
//! `phy` (feature `smoltcp`) adapts them to smoltcp, and smoltcp's devices to our stack.
//!
//! Devices know frames, not protocols. These rules hold for every device:
//!
//! - Frames arrive and leave with their Ethernet header and without the frame check sequence. A
//!   device of [`LinkType::Ip`] adds a constant one and removes it ([`tun`] says why).
//! - [`DeviceRx::claim`] and [`DeviceTx::transmit`] keep the order of the medium.
//! - A frame that can never be sent (it is too long, or needs a feature that [`Capabilities`] does
//!   not offer) is dropped and counted, since offering it again could not help.
//! - An error means that the device is down or gone; everything else is a count in [`RxStats`] or
//!   [`TxStats`].
//!
//! Callers here and in `dominoes-netstack` do not trust a device that you implement: they count
//! the frames that [`DeviceRx::claim`] appended, return those above `max`, and treat a number of
//! sent frames above the number offered as all of them.
//!
//! Linux does the following silently, and no device can report it:
//!
//! - A veth interface whose peer has GRO on, or an XDP program in its driver, buffers 256 frames
//!   for a reader; the *sender's* interface counts further ones as dropped.
//! - A veth pair reorders frames that several cores send.
//! - An XDP program in the driver of a veth turns the peer's segmentation off while it is
//!   attached. A generic XDP program does not, and merged frames are dropped (and counted).
//! - A persistent TAP interface keeps its last user's offloads until the next one sets its own.
//! - An AF_XDP queue stays busy for about 30 ms after it is closed; opening it waits that long.
//! - In your own user namespace (`unshare -Urn`), packet sockets, their rings and AF_XDP sockets
//!   need no privileges. XDP programs do, and so does a TAP unless `/dev/net/tun` may be opened.
//!
//! ```
//! use dominoes_drivers::memory::{self, MemoryConfig};
//! use dominoes_drivers::{Device, TxFrame};
//!
//! let (left, right) = memory::pair(MemoryConfig::default());
//! let (_, mut tx) = Box::new(left).split();
//! let (mut rx, _) = Box::new(right).split();
//!
//! let ethernet = [0xff; 60];
//! assert_eq!(tx.transmit(&[TxFrame::new(&ethernet)])?, 1);
//!
//! let mut frames = Vec::new();
//! assert_eq!(rx.claim(32, &mut frames)?, 1);
//! assert_eq!(frames[0].bytes(), ethernet);
//! rx.release(&mut frames);
//! # Ok::<(), dominoes_drivers::DeviceError>(())
//! ```

#![deny(unsafe_code)]

// Used by `dominoes-netstack`.
#[doc(hidden)]
pub mod checked;
pub mod impair;
pub mod memory;
pub mod nic;
// Used by `dominoes-netstack`.
#[doc(hidden)]
pub mod prefetch;
// Used by `dominoes-netstack`.
#[doc(hidden)]
pub mod queues;
pub mod split;

#[cfg(target_os = "linux")]
pub mod af_packet;
#[cfg(target_os = "linux")]
pub mod af_xdp;
#[cfg(target_os = "linux")]
pub mod tap;
#[cfg(target_os = "linux")]
pub mod tun;

#[cfg(all(target_os = "linux", feature = "bare"))]
pub mod bare;
#[cfg(target_os = "linux")]
mod bpf;
#[cfg(feature = "pcap")]
pub mod pcap;
#[cfg(feature = "smoltcp")]
pub mod phy;
#[cfg(feature = "pnet")]
pub mod pnet;

#[cfg(target_os = "linux")]
mod descriptors;
mod error;
#[cfg(target_os = "linux")]
mod event_fd;
#[cfg(target_os = "linux")]
mod fd_event;
#[cfg(target_os = "linux")]
mod fd_halves;
mod frame;
#[cfg(target_os = "linux")]
mod interface;
mod ip_link;
#[cfg(target_os = "linux")]
mod link;
#[cfg(target_os = "linux")]
mod pool;
mod prepared;
mod settings;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(all(target_os = "linux", feature = "testkit"))]
#[doc(hidden)]
pub mod testkit;
#[cfg(target_os = "linux")]
mod tun_interface;
#[cfg(target_os = "linux")]
mod umem;
#[cfg(target_os = "linux")]
mod vnet;
mod waker;
#[cfg(target_os = "linux")]
mod xsk_ring;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use error::DeviceError;
#[cfg(target_os = "linux")]
pub use event_fd::EventFd;
// Used by `dominoes-netstack`.
#[doc(hidden)]
#[cfg(target_os = "linux")]
pub use descriptors::{DescriptorState, Descriptors, Wanted};
#[doc(hidden)]
#[cfg(target_os = "linux")]
pub use fd_event::{Beside, wait_beside};
/// There are no such descriptors on this platform.
#[doc(hidden)]
#[cfg(not(target_os = "linux"))]
pub type Beside<'a> = std::marker::PhantomData<&'a std::convert::Infallible>;
#[doc(hidden)]
#[cfg(not(target_os = "linux"))]
pub fn wait_beside(_: Option<Beside<'_>>, wait: impl FnOnce()) -> bool {
    wait();
    false
}
pub use frame::{
    ETHERNET_HEADER_LEN, Frame, Gso, GsoKind, RxChecksum, RxMeta, TxChecksum, TxFrame, TxMeta,
    VLAN_TAG_LEN, complete_checksum,
};
pub use ip_link::{IP_MAC, IP_PEER_MAC, LinkType, ip_header};
pub use waker::DeviceWaker;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// A network interface with one receive and one transmit side.
pub trait Device: Send {
    /// The device's features. They do not change once it is open.
    fn capabilities(&self) -> Capabilities;

    /// Our Ethernet address: the destination of frames for us. [`IP_MAC`] for [`LinkType::Ip`].
    fn mac(&self) -> [u8; 6];

    /// If the device takes packets to some addresses only, the filter that learns which ones.
    /// `None`, the default: it takes all. Call this before the device is split.
    fn address_filter(&self) -> Option<Arc<dyn AddressFilter>> {
        None
    }

    /// Checks that a stack over this device may use `address`. The default always allows it.
    ///
    /// # Errors
    /// [`DeviceError::AddressInUse`]: another stack here has the address and would answer, too.
    fn check_address(&self, address: IpAddr) -> Result<(), DeviceError> {
        let _ = address;
        Ok(())
    }

    /// Number of its queues, which a stack checks before any other call: 1 to 256. The default: 1.
    fn queues(&self) -> usize {
        1
    }

    /// Divides the device into its two halves. One thread at a time may use each.
    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>);

    /// Divides the device into the halves of each of its queues, at least one, which different
    /// threads may use at the same time. A frame is released to the queue that it came from. The
    /// default: one queue. A list of devices has those of all.
    fn split_queues(self: Box<Self>) -> Vec<(Box<dyn DeviceRx>, Box<dyn DeviceTx>)> {
        vec![self.split()]
    }
}

/// Selects the packets that a device takes. Another stack gets the others: with AF_XDP the kernel.
pub trait AddressFilter: Send + Sync {
    /// Takes packets to this address from now on, and ARP and neighbor discovery messages about
    /// it. Does nothing if the address is taken already. Never waits for a frame.
    ///
    /// # Errors
    /// Another stack on this machine has the address, there is no room for another address, or a
    /// privilege is missing.
    fn add(&self, address: IpAddr) -> Result<(), DeviceError>;

    /// Stops taking packets to this address. Does nothing if they are not taken.
    ///
    /// # Errors
    /// A privilege is missing.
    fn remove(&self, address: IpAddr) -> Result<(), DeviceError>;
}

/// A device whose type is chosen at run time.
impl Device for Box<dyn Device> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn mac(&self) -> [u8; 6] {
        (**self).mac()
    }

    fn address_filter(&self) -> Option<Arc<dyn AddressFilter>> {
        (**self).address_filter()
    }

    fn check_address(&self, address: IpAddr) -> Result<(), DeviceError> {
        (**self).check_address(address)
    }

    fn queues(&self) -> usize {
        (**self).queues()
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        (*self).split()
    }

    fn split_queues(self: Box<Self>) -> Vec<(Box<dyn DeviceRx>, Box<dyn DeviceTx>)> {
        (*self).split_queues()
    }
}

/// The receiving half of a device.
pub trait DeviceRx: Send {
    /// Appends up to `max` frames to `out`, in order of arrival. Returns their number. Never
    /// blocks.
    ///
    /// More frames may be ready even if it returns fewer than `max`: frames that the device cannot
    /// deliver whole are dropped and counted, but count toward `max`. In that case
    /// [`wait`](Self::wait) returns at once.
    ///
    /// # Errors
    /// The device is down or gone, and no frame was appended.
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError>;

    /// Returns frames for reuse, in the order in which they were claimed, and empties `frames`.
    /// Frames from elsewhere are freed.
    fn release(&mut self, frames: &mut Vec<Frame>);

    /// Blocks until a frame may be ready, the [`DeviceWaker`] is used, or `timeout` is over
    /// (`None`: no timeout). It may return spuriously.
    ///
    /// # Errors
    /// The device is down or gone. Each change is reported once, here or by
    /// [`claim`](Self::claim); a device that is gone reports it at every call.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError>;

    /// A handle that ends a [`wait`](Self::wait) from any thread.
    fn waker(&self) -> DeviceWaker;

    /// Descriptors of which one becomes readable when a frame arrives, for a thread that waits in
    /// several queues. None, the default: such a thread looks again every millisecond.
    #[cfg(target_os = "linux")]
    fn descriptors(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
        Vec::new()
    }

    /// Counts since the device was opened.
    fn stats(&self) -> RxStats;
}

/// The sending half of a device.
pub trait DeviceTx: Send {
    /// Sends frames in order. `Ok(n)`: the device took the first `n`. If that is fewer than
    /// offered, it is busy; offer the others again later. Never blocks.
    ///
    /// A frame that can never be sent ([`Capabilities::admits`]) counts as dropped and as taken.
    ///
    /// # Errors
    /// The device is down or gone, and no frame was taken.
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError>;

    /// For stacks in which several threads build frames, each in one of `slots` numbered slots.
    /// Returns the object with which those threads prepare their frames, which leaves less work to
    /// [`transmit_prepared`], called by one thread at a time. Called at most once. `None`, the
    /// default: there is no preparation, use [`transmit`].
    ///
    /// [`transmit`]: Self::transmit
    /// [`transmit_prepared`]: Self::transmit_prepared
    fn preparer(&mut self, slots: usize) -> Option<Arc<dyn TxPrepare>> {
        let _ = slots;
        None
    }

    /// Like [`transmit`](Self::transmit), for the frames prepared in `count` slots from `first`
    /// on. A device without [`preparer`](Self::preparer) takes no frame.
    ///
    /// # Errors
    /// As for [`transmit`](Self::transmit).
    fn transmit_prepared(&mut self, first: usize, count: usize) -> Result<usize, DeviceError> {
        let _ = (first, count);
        Ok(0)
    }

    /// Counts since the device was opened.
    fn stats(&self) -> TxStats;
}

/// Prepares frames for a [`DeviceTx`], on the threads that build them: copies into the device's
/// memory, descriptors, and other work that needs no order.
pub trait TxPrepare: Send + Sync {
    /// Prepares `frames` in the slots from `first` on. Slot numbers are below the number given to
    /// [`DeviceTx::preparer`]. The frames are not read after the call. Different slots may be
    /// prepared concurrently. The caller makes sure that a slot is prepared before
    /// [`DeviceTx::transmit_prepared`] names it, and is prepared again only when the device has
    /// taken its frame or the frame will never leave.
    fn prepare(&self, first: usize, frames: &[TxFrame<'_>]);
}

/// The features of a device, and how to use it best.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Name of the interface, for messages.
    pub name: String,
    /// Whether there is an Ethernet, or bare IP packets pass.
    pub link: LinkType,
    /// Longest IP packet of the link, in bytes, without Ethernet header and VLAN tag.
    pub mtu: usize,
    /// The checksum state of received frames.
    pub rx_checksum: RxChecksumSupport,
    /// Whether the device finishes a [`TxChecksum::Partial`].
    pub tx_checksum: bool,
    /// Longest frame, including headers, that the device divides into TCP segments over IPv4, in
    /// bytes; 0: it does not divide them.
    pub tso4_max_bytes: usize,
    /// As [`tso4_max_bytes`](Self::tso4_max_bytes), over IPv6.
    pub tso6_max_bytes: usize,
    /// Longest frame, including headers, that the device divides into UDP datagrams, in bytes; 0:
    /// it does not divide them.
    pub uso_max_bytes: usize,
    /// Longest frame, including headers, that can be received, in bytes; far above the MTU if the
    /// device merges segments.
    pub rx_max_frame: usize,
    /// The largest batch, in frames, that is worth claiming or sending at once.
    pub max_batch: usize,
    /// Delay that the device adds on purpose (timers, coalescing) before a frame can be claimed.
    pub added_latency: Duration,
    /// Whether [`DeviceRx::wait`] sleeps on file descriptors of the kernel, so that a thread can
    /// wait for other descriptors beside the device.
    pub has_descriptor: bool,
}

/// The checksum state of a device's received frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RxChecksumSupport {
    /// Every frame is [`RxChecksum::Verify`].
    #[default]
    None,
    /// It differs by frame.
    PerFrame,
    /// The device verifies every frame.
    Always,
}

impl Capabilities {
    /// A plain Ethernet device called `name`: MTU 1500, no offloads, batches of 32.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            link: LinkType::Ethernet,
            mtu: 1500,
            rx_checksum: RxChecksumSupport::None,
            tx_checksum: false,
            tso4_max_bytes: 0,
            tso6_max_bytes: 0,
            uso_max_bytes: 0,
            rx_max_frame: 1500 + ETHERNET_HEADER_LEN + VLAN_TAG_LEN,
            max_batch: 32,
            added_latency: Duration::ZERO,
            has_descriptor: false,
        }
    }

    /// The Ethernet address of every other host, if the link has no such addresses
    /// ([`LinkType::Ip`]).
    pub fn only_peer(&self) -> Option<[u8; 6]> {
        (self.link == LinkType::Ip).then_some(IP_PEER_MAC)
    }

    /// Whether the device can send this frame: it holds an Ethernet header; a plain frame is no
    /// longer than the link allows; the device offers a requested partial checksum or
    /// segmentation; the checksum is within the frame; and the frame is IP if the link has nothing
    /// else.
    #[inline]
    pub fn admits(&self, frame: &TxFrame<'_>) -> bool {
        let len = frame.len();
        let checksum_fits = match frame.meta.checksum {
            TxChecksum::Done => frame.meta.gso.is_none(),
            TxChecksum::Partial { start, offset } => {
                self.tx_checksum && usize::from(start) + usize::from(offset) + 2 <= len
            }
        };
        let longest = match frame.meta.gso {
            None => {
                let tagged = matches!(frame.head.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]));
                let link = ETHERNET_HEADER_LEN + if tagged { VLAN_TAG_LEN } else { 0 };
                self.mtu.saturating_add(link)
            }
            Some(Gso { size: 0, .. }) => 0,
            Some(gso) if usize::from(gso.header_len) > len => 0,
            Some(gso) => match gso.kind {
                GsoKind::Tcp4 => self.tso4_max_bytes,
                GsoKind::Tcp6 => self.tso6_max_bytes,
                GsoKind::Udp => self.uso_max_bytes,
            },
        };
        checksum_fits
            && frame.head.len() >= ETHERNET_HEADER_LEN
            && len <= longest
            && (self.link == LinkType::Ethernet || ip_link::is_ip(frame.head))
    }
}

/// Counts of a [`DeviceRx`] since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RxStats {
    /// Frames claimed. A merged frame counts once.
    pub frames: u64,
    /// Bytes of these frames, Ethernet headers included.
    pub bytes: u64,
    /// Frames that reached the interface but not us: a queue was full, or the loss was injected.
    pub dropped: u64,
    /// Frames dropped because they were longer than a buffer, or malformed.
    pub truncated: u64,
    /// Frames copied out of the device's ring when they were claimed, because too much of the ring
    /// was in use, a VLAN tag had to be restored, or they were longer than a slot. Only for
    /// devices with a ring.
    pub copied: u64,
    /// How often AF_XDP had no free chunk for a frame.
    pub starved: u64,
    /// Slots or blocks of the ring that were copied out because their frames were released too
    /// late.
    pub copied_out: u64,
    /// How often the pool was empty and allocated a buffer.
    pub pool_exhausted: u64,
    /// How often a [`DeviceWaker`] ended a `wait`.
    pub wakes: u64,
}

/// Counts of a [`DeviceTx`] since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TxStats {
    /// Frames handed to the medium. A frame that the device divides counts once.
    pub frames: u64,
    /// Bytes of these frames, Ethernet headers included.
    pub bytes: u64,
    /// Frames that could never be sent, or had no receiver.
    pub dropped: u64,
    /// How often `transmit` took fewer frames than offered.
    pub busy: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partial() -> TxMeta {
        TxMeta {
            checksum: TxChecksum::Partial {
                start: 34,
                offset: 16,
            },
            gso: None,
        }
    }

    #[test]
    fn a_plain_frame_may_be_as_long_as_the_link_allows() {
        let caps = Capabilities::new("x");
        let bytes = [0; 1600];
        assert!(caps.admits(&TxFrame::new(&bytes[..1514])));
        assert!(!caps.admits(&TxFrame::new(&bytes[..1515])));
        assert!(
            !caps.admits(&TxFrame::new(&bytes[..13])),
            "shorter than an Ethernet header"
        );
        let mut tagged = bytes;
        tagged[12] = 0x81;
        assert!(caps.admits(&TxFrame::new(&tagged[..1518])));
    }

    #[test]
    fn only_what_the_device_offers_is_admitted() {
        let bytes = [0; 9000];
        let mut caps = Capabilities::new("x");
        let gso = |kind| {
            Some(Gso {
                kind,
                size: 1448,
                header_len: 54,
            })
        };
        let short = TxFrame {
            head: &bytes[..100],
            payload: &[],
            meta: partial(),
        };
        let long = TxFrame {
            head: &bytes,
            payload: &[],
            meta: TxMeta {
                gso: gso(GsoKind::Tcp4),
                ..partial()
            },
        };
        assert!(!caps.admits(&short) && !caps.admits(&long));
        caps.tx_checksum = true;
        assert!(caps.admits(&short) && !caps.admits(&long));
        caps.tso4_max_bytes = 65_549;
        assert!(caps.admits(&long));
        let udp = TxFrame {
            meta: TxMeta {
                gso: gso(GsoKind::Udp),
                ..partial()
            },
            ..long
        };
        assert!(!caps.admits(&udp));
        let done = TxFrame {
            meta: TxMeta {
                gso: gso(GsoKind::Tcp4),
                checksum: TxChecksum::Done,
            },
            ..long
        };
        assert!(!caps.admits(&done), "segments need checksums of their own");
    }

    #[test]
    fn a_checksum_field_outside_the_frame_is_refused() {
        let mut caps = Capabilities::new("x");
        caps.tx_checksum = true;
        let bytes = [0; 51];
        assert!(!caps.admits(&TxFrame {
            meta: partial(),
            ..TxFrame::new(&bytes)
        }));
    }
}
