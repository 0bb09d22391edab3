//! Network devices that hand over frames: in memory, TAP, AF_PACKET, AF_XDP.
//!
//! A [`Device`] splits into a half that receives and a half that sends, each for one thread at a
//! time. Both work in batches, never block (but for [`DeviceRx::wait`]), and carry merged frames of
//! up to 64 KB with their checksum and segmentation state, which is worth more than any other
//! single thing a device can do.
//!
//! | device | what it is | needs |
//! |---|---|---|
//! | [`memory::pair`] | two devices joined in memory, with a seeded bad wire on request | nothing |
//! | [`memory::peer::PeerDevice`] | a device whose far side is a simulated TCP peer, for benchmarks | nothing |
//! | [`memory::scripted`] | a device whose far side is the test itself | nothing |
//! | [`tap::Tap`] | the far end of a virtual interface of this kernel | `CAP_NET_ADMIN` |
//! | [`af_packet::AfPacket`] | a real (or veth) interface, beside the kernel's own stack | `CAP_NET_RAW` |
//! | [`af_xdp::AfXdp`] | the same below the kernel's stack, which keeps what is not ours | also `CAP_NET_ADMIN`, `CAP_BPF` |
//! | `pnet::Pnet` (feature `pnet`) | any platform's raw frames, as a baseline | what the platform asks for |
//! | [`nic::Nic`] | a programmable card in software, before any of them | what that one needs |
//! | [`split::split`] | one of them as several, by a classifier | what that one needs |
//! | [`impair::Impaired`] | any of them behind a bad wire: loss, delay, rate, bursts | what that one needs |
//!
//! `pcap::Capture` (feature `pcap`) writes down what passes through any of them; `phy` (feature
//! `smoltcp`) lets smoltcp use them, and our stack the devices of smoltcp.
//!
//! Devices know frames, not protocols. What is documented here holds for every device:
//!
//! - Frames arrive and leave with their Ethernet header and without frame check sequence.
//! - [`DeviceRx::claim`] and [`DeviceTx::transmit`] keep the order of the medium.
//! - A frame that can never be sent (too long, or asking for what [`Capabilities`] does not offer)
//!   is dropped and counted, since offering it again could not help.
//! - An error means that the device is down or gone; everything else is a count in [`RxStats`] or
//!   [`TxStats`].
//!
//! A device of your own is not believed where it could do harm. Whatever calls one here, or in
//! `dominoes-netstack`, counts the frames that [`DeviceRx::claim`] appended, gives back those above
//! `max`, and takes a number of sent frames above what was offered for all that was offered.
//!
//! What Linux does without a word, and no device can tell of:
//!
//! - A veth interface whose peer has GRO on, or a program in its driver, holds 256 frames for a
//!   reader; what comes on top is counted as dropped by the *sender's* interface.
//! - A veth pair reorders frames that several cores send.
//! - A program in the driver of a veth turns its peer's segmentation off while it is there; behind
//!   the driver it does not, and merged frames are dropped (they are counted).
//! - A lasting TAP interface keeps the offloads of its last user until the next one asks for its
//!   own.
//! - A queue of AF_XDP is busy for some 30 ms after it was closed; opening waits for it.
//! - In a user namespace of one's own (`unshare -Urn`) packet sockets, their rings and sockets of
//!   AF_XDP are to be had without privileges; programs are not, and a TAP only if `/dev/net/tun`
//!   may be opened.
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

// For `dominoes-netstack`.
#[doc(hidden)]
pub mod checked;
pub mod impair;
pub mod memory;
pub mod nic;
// For `dominoes-netstack`.
#[doc(hidden)]
pub mod prefetch;
pub mod split;

#[cfg(target_os = "linux")]
pub mod af_packet;
#[cfg(target_os = "linux")]
pub mod af_xdp;
#[cfg(target_os = "linux")]
pub mod tap;

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

mod error;
#[cfg(target_os = "linux")]
mod event_fd;
#[cfg(target_os = "linux")]
mod fd_event;
mod frame;
#[cfg(target_os = "linux")]
mod interface;
#[cfg(target_os = "linux")]
mod link;
#[cfg(target_os = "linux")]
mod pool;
mod prepared;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(all(target_os = "linux", feature = "testkit"))]
#[doc(hidden)]
pub mod testkit;
#[cfg(target_os = "linux")]
mod umem;
#[cfg(target_os = "linux")]
mod vnet;
mod waker;
#[cfg(target_os = "linux")]
mod xsk_ring;

/// The example of the README is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use error::DeviceError;
#[cfg(target_os = "linux")]
pub use event_fd::EventFd;
pub use frame::{
    ETHERNET_HEADER_LEN, Frame, Gso, GsoKind, RxChecksum, RxMeta, TxChecksum, TxFrame, TxMeta,
    VLAN_TAG_LEN, complete_checksum,
};
pub use waker::Waker;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// A network interface with one receive and one transmit side.
pub trait Device: Send {
    /// What the device can do. Fixed once it is open.
    fn capabilities(&self) -> Capabilities;

    /// The Ethernet address that frames for us carry as destination.
    fn mac(&self) -> [u8; 6];

    /// What is to be told of addresses that come and go, if the device takes frames to some of them
    /// alone. `None`, the default: it takes all. To be asked before the device is split.
    fn address_filter(&self) -> Option<Arc<dyn AddressFilter>> {
        None
    }

    /// Checks that a stack over this device may have `address`. The default knows of nobody else.
    ///
    /// # Errors
    /// [`DeviceError::AddressInUse`]: somebody on this machine has it who would answer, too.
    fn check_address(&self, address: IpAddr) -> Result<(), DeviceError> {
        let _ = address;
        Ok(())
    }

    /// Divides the device into its two halves, each for one thread at a time.
    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>);
}

/// Which packets a device takes, where it leaves others to somebody else: AF_XDP to the kernel.
pub trait AddressFilter: Send + Sync {
    /// Packets to this address are for us from now on, and messages of ARP and neighbor discovery
    /// about it. Does nothing if they are. Never waits for a frame.
    ///
    /// # Errors
    /// Somebody else on this machine has the address; there is no room for another one; a privilege
    /// is missing.
    fn add(&self, address: IpAddr) -> Result<(), DeviceError>;

    /// Packets to this address are not for us any more. Does nothing if they are not.
    ///
    /// # Errors
    /// A privilege is missing.
    fn remove(&self, address: IpAddr) -> Result<(), DeviceError>;
}

/// A device whose kind is chosen while the program runs.
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

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        (*self).split()
    }
}

/// The half of a device that receives.
pub trait DeviceRx: Send {
    /// Appends up to `max` frames to `out`, in order of arrival, and returns how many. Never
    /// blocks.
    ///
    /// Fewer than `max` does not mean that no more are there: frames that the device cannot deliver
    /// whole are dropped and counted, and take a place. [`wait`](Self::wait) then returns at once.
    ///
    /// # Errors
    /// Only when the device is down or gone, and only when no frame was appended.
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError>;

    /// Gives frames back for reuse, in the order they were claimed, and empties `frames`. Frames of
    /// another origin are freed.
    fn release(&mut self, frames: &mut Vec<Frame>);

    /// Blocks until a frame may be there, the [`Waker`] was used, or `timeout` is over (`None`:
    /// never). It may return for no reason at all.
    ///
    /// # Errors
    /// When the device is down or gone. Each change is reported once, here or by
    /// [`claim`](Self::claim); a device that is gone goes on reporting it.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError>;

    /// A handle that ends a [`wait`](Self::wait) from any thread.
    fn waker(&self) -> Waker;

    /// Counts since the device was opened.
    fn stats(&self) -> RxStats;
}

/// The half of a device that sends.
pub trait DeviceTx: Send {
    /// Sends frames in order. `Ok(n)`: the first `n` were taken; if that is fewer than offered, the
    /// device is busy and the others are to be offered again later. Never blocks.
    ///
    /// A frame that can never be sent (see [`Capabilities::admits`]) is counted as dropped and
    /// counts as taken.
    ///
    /// # Errors
    /// Only when the device is down or gone, and only when no frame was taken.
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError>;

    /// Where several threads build frames, each in one of `slots` numbered slots: what they do to
    /// their frames beforehand, so that less is left to [`transmit_prepared`], which one thread
    /// does at a time. Called once. `None`, the default: nothing, and there is only [`transmit`].
    ///
    /// [`transmit`]: Self::transmit
    /// [`transmit_prepared`]: Self::transmit_prepared
    fn preparer(&mut self, slots: usize) -> Option<Arc<dyn TxPrepare>> {
        let _ = slots;
        None
    }

    /// As [`transmit`](Self::transmit), of the frames in `count` slots from `first` on, which were
    /// prepared in them. Of a device without [`preparer`](Self::preparer) no frame is taken.
    ///
    /// # Errors
    /// As there.
    fn transmit_prepared(&mut self, first: usize, count: usize) -> Result<usize, DeviceError> {
        let _ = (first, count);
        Ok(0)
    }

    /// Counts since the device was opened.
    fn stats(&self) -> TxStats;
}

/// What is done to frames before they are sent by a [`DeviceTx`], by the threads that build them:
/// copies into the device's memory, descriptors, whatever needs no order.
pub trait TxPrepare: Send + Sync {
    /// Prepares `frames` in the slots from `first` on, below the number that was given to
    /// [`DeviceTx::preparer`]. They are not read after the call. Different slots may be prepared at
    /// the same time. Whoever calls sees to it that this has happened before
    /// [`DeviceTx::transmit_prepared`] names a slot, and that no slot is prepared again before the
    /// device has taken its frame, or it is known that it never leaves.
    fn prepare(&self, first: usize, frames: &[TxFrame<'_>]);
}

/// What a device can do, and how it is best used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The interface, for messages.
    pub name: String,
    /// Longest IP packet the link carries, in bytes; Ethernet header and VLAN tag come on top.
    pub mtu: usize,
    /// What received frames say about their transport checksum.
    pub rx_checksum: RxChecksumSupport,
    /// Whether the device finishes a [`TxChecksum::Partial`].
    pub tx_checksum: bool,
    /// Longest frame, headers included, that the device divides into TCP segments over IPv4; 0:
    /// none.
    pub tso4_max_bytes: usize,
    /// The same over IPv6.
    pub tso6_max_bytes: usize,
    /// Longest frame, headers included, that the device divides into UDP datagrams; 0: none.
    pub uso_max_bytes: usize,
    /// Longest frame, headers included, that may be received; well above the MTU where the device
    /// merges.
    pub rx_max_frame: usize,
    /// Frames that may be out at a time, claimed and not released, before the device has nothing
    /// left to receive into; at least 1. `usize::MAX` where it makes more buffers or copies frames
    /// out instead, as every device here does.
    pub rx_held_max: usize,
    /// The largest batch, in frames, that is worth claiming or transmitting at once.
    pub max_batch: usize,
    /// Delay that the device adds on purpose (timers, coalescing) before a frame can be claimed.
    pub added_latency: Duration,
}

/// What received frames say about their transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RxChecksumSupport {
    /// Nothing: every frame is [`RxChecksum::Verify`].
    #[default]
    None,
    /// It differs from frame to frame.
    PerFrame,
    /// Every frame is vouched for.
    Always,
}

impl Capabilities {
    /// A plain Ethernet device called `name`: MTU 1500, no offloads, batches of 32.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            mtu: 1500,
            rx_checksum: RxChecksumSupport::None,
            tx_checksum: false,
            tso4_max_bytes: 0,
            tso6_max_bytes: 0,
            uso_max_bytes: 0,
            rx_max_frame: 1500 + ETHERNET_HEADER_LEN + VLAN_TAG_LEN,
            rx_held_max: usize::MAX,
            max_batch: 32,
            added_latency: Duration::ZERO,
        }
    }

    /// Whether the device can send this frame at all. It holds an Ethernet header; a plain frame is
    /// no longer than the link carries; a partial checksum, and segmentation with it, are offered
    /// by the device and lie inside the frame.
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
        checksum_fits && frame.head.len() >= ETHERNET_HEADER_LEN && len <= longest
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
    /// Frames that reached the interface but not us: no room in a queue, or an injected loss.
    pub dropped: u64,
    /// Frames dropped because they were longer than a buffer, or made no sense.
    pub truncated: u64,
    /// Frames that were copied out of the device's ring when they were claimed: too much of the
    /// ring was in use, a VLAN tag had to be put back, or they were longer than a slot. Only for
    /// devices whose frames lie in a ring.
    pub copied: u64,
    /// How often AF_XDP had no chunk to put a frame into.
    pub starved: u64,
    /// Slots or blocks of the ring that were copied out under frames that were released too late.
    pub copied_out: u64,
    /// How often the pool had no buffer ready and made a new one.
    pub pool_exhausted: u64,
    /// How often `wait` was ended by a [`Waker`].
    pub wakes: u64,
}

/// Counts of a [`DeviceTx`] since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TxStats {
    /// Frames handed to the medium. A frame to be divided counts once.
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
