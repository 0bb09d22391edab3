//! A network interface beside the kernel's own stack, through a packet socket.
//!
//! Works on any Ethernet interface, real or veth. Frames carry a virtio header (`PACKET_VNET_HDR`),
//! so merged frames of up to 64 KB pass both ways with the state of their checksum; on a veth this
//! is the only way to tell a frame whose checksum was left unfinished on purpose from a damaged
//! one.
//!
//! Received frames lie in a ring that is mapped into this process and are read there, by as many
//! threads as like; see [`RxRing`]. Nobody can write to them there.
//!
//! The kernel goes on receiving the same frames. As long as it does not own our address it stays
//! silent: give the interface no IPv4 address, or at least not ours; [`AfPacketOptions::address`]
//! checks that.

mod copying;
mod ring;
mod transmit;

use crate::af_xdp::bpf_error;
use crate::bpf;
use crate::fd_event::FdEvent;
use crate::interface::{check_name, local_mac};
use crate::link::Link;
use crate::pool::{MAX_FRAME_LEN, Pool};
use crate::sys::Hook;
use crate::umem::PacketMemory;
use crate::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, ETHERNET_HEADER_LEN, RxChecksum,
    RxChecksumSupport, RxMeta, VLAN_TAG_LEN, sys,
};
use copying::CopyingRx;
use ring::RingRx;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
pub(crate) use transmit::AfPacketTx;

/// Longest slot of a TPACKET_V2 ring that may be asked for, in bytes.
const MAX_SLOT_LEN: usize = 1 << 20;

/// Bytes of a block of a TPACKET_V3 ring. Many blocks of this length leave little of the ring
/// unused, and the kernel finds the memory for them.
const BLOCK_LEN: u32 = 1 << 20;

/// How old a block may get before it is handed over though it is not full; the least that the
/// kernel knows.
const RETIRE: Duration = Duration::from_millis(1);

/// How an [`AfPacket`] is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AfPacketOptions {
    /// The IPv4 address that our stack is going to use. Opening fails if the kernel owns it, on
    /// whichever interface, since it would answer in our place. Where that is allowed (see
    /// [`guard`](Self::guard)), frames to it are dropped behind our socket: the kernel would look
    /// up a route for each of them only to find that they are not its own, which costs more than
    /// receiving them. Default, `None`: not checked.
    pub address: Option<Ipv4Addr>,
    /// Open though the kernel owns the address, and drop the frames to it on this interface before
    /// the kernel's stack gets them, so that it stays silent. Needs `CAP_BPF`, `CAP_NET_ADMIN` and
    /// Linux 6.6; ends with the device. Default: no.
    pub guard: bool,
    /// Our Ethernet address. Default: the interface's.
    pub mac: MacChoice,
    /// Whether checksums and segmentation of frames that we send may be left to the kernel.
    /// Received frames say what was left to us either way. Default: yes.
    pub offloads: bool,
    /// Whether frames that we send pass by the queueing discipline. Then packet captures on this
    /// machine do not see them. Default: no.
    pub qdisc_bypass: bool,
    /// Room for received frames that wait, in bytes. More than `net.core.rmem_max` needs
    /// `CAP_NET_ADMIN`; without it there is less room. Default 8 MiB.
    pub receive_buffer: usize,
    /// Receive buffers kept for reuse, 65 KB each; memory that no frame touches is not used.
    /// Default 256. For frames that are copied from the socket's queue.
    pub rx_pool: usize,
    /// Where received frames wait and are read. Default: [`RxRing::Slots`].
    pub ring: RxRing,
    /// Length of the ring, in bytes: [`slot_bytes`](Self::slot_bytes) for each frame of
    /// [`RxRing::Slots`], 1 MiB for each block of [`RxRing::Blocks`], of which there are at least
    /// 4. Default 16 MiB.
    pub ring_bytes: usize,
    /// Length of a slot of [`RxRing::Slots`], in bytes, rounded up to whole pages. A longer frame,
    /// with about 90 bytes for the kernel, waits in the socket's queue instead and is copied, in
    /// its turn. Default 4096: room for many frames of an Ethernet's length, as a window of TCP
    /// without merging needs it. 69632 holds merged frames of 64 KB in place.
    pub slot_bytes: usize,
    /// Whether [`Frame::timestamp`](crate::Frame::timestamp) is the network card's, where it has
    /// one, instead of the kernel's. Default: no.
    pub hardware_timestamps: bool,
}

/// Where received frames wait and are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RxRing {
    /// In the socket's queue, from which each is copied by a system call.
    /// [`AfPacketOptions::receive_buffer`] and [`AfPacketOptions::rx_pool`] are for this, and for
    /// frames that are too long for a slot.
    None,
    /// In a mapped ring of slots, one frame each, readable as soon as they come (TPACKET_V2).
    #[default]
    Slots,
    /// In a mapped ring of blocks, filled with frames of any length and handed over when they are
    /// full or a millisecond old (TPACKET_V3). The cheapest by far for many frames, and too slow
    /// for questions and answers.
    Blocks,
}

/// How frames are spread over the sockets of [`AfPacket::open_queues`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spread {
    /// By a hash of addresses and ports, so that a connection stays with one.
    #[default]
    Flow,
    /// In turn.
    Turn,
    /// By the core that the frame came in on.
    Core,
    /// By the receive queue of the interface.
    Queue,
    /// The first takes all that it has room for, then the next.
    Overflow,
}

impl Spread {
    fn mode(self) -> u32 {
        match self {
            Spread::Flow => libc::PACKET_FANOUT_HASH,
            Spread::Turn => libc::PACKET_FANOUT_LB,
            Spread::Core => libc::PACKET_FANOUT_CPU,
            Spread::Queue => libc::PACKET_FANOUT_QM,
            Spread::Overflow => libc::PACKET_FANOUT_ROLLOVER,
        }
    }
}

/// Which Ethernet address a device answers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MacChoice {
    /// The interface's own.
    #[default]
    Interface,
    /// A locally administered one, made from the interface's name. Makes the interface promiscuous
    /// while it is open.
    Local,
    /// This one. Makes the interface promiscuous while it is open.
    Fixed([u8; 6]),
}

impl Default for AfPacketOptions {
    fn default() -> Self {
        Self {
            address: None,
            guard: false,
            mac: MacChoice::Interface,
            offloads: true,
            qdisc_bypass: false,
            receive_buffer: 8 << 20,
            rx_pool: 256,
            ring: RxRing::default(),
            ring_bytes: 16 << 20,
            slot_bytes: 4096,
            hardware_timestamps: false,
        }
    }
}

impl AfPacketOptions {
    /// Sets [`address`](Self::address).
    pub fn address(mut self, address: Ipv4Addr) -> Self {
        self.address = Some(address);
        self
    }

    /// Sets [`guard`](Self::guard).
    pub fn guard(mut self, guard: bool) -> Self {
        self.guard = guard;
        self
    }

    /// Sets [`mac`](Self::mac).
    pub fn mac(mut self, mac: MacChoice) -> Self {
        self.mac = mac;
        self
    }

    /// Sets [`offloads`](Self::offloads).
    pub fn offloads(mut self, offloads: bool) -> Self {
        self.offloads = offloads;
        self
    }

    /// Sets [`qdisc_bypass`](Self::qdisc_bypass).
    pub fn qdisc_bypass(mut self, bypass: bool) -> Self {
        self.qdisc_bypass = bypass;
        self
    }

    /// Sets [`receive_buffer`](Self::receive_buffer).
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = bytes;
        self
    }

    /// Sets [`rx_pool`](Self::rx_pool).
    pub fn rx_pool(mut self, frames: usize) -> Self {
        self.rx_pool = frames;
        self
    }

    /// Sets [`ring`](Self::ring).
    pub fn ring(mut self, ring: RxRing) -> Self {
        self.ring = ring;
        self
    }

    /// Sets [`ring_bytes`](Self::ring_bytes).
    pub fn ring_bytes(mut self, bytes: usize) -> Self {
        self.ring_bytes = bytes;
        self
    }

    /// Sets [`slot_bytes`](Self::slot_bytes).
    pub fn slot_bytes(mut self, bytes: usize) -> Self {
        self.slot_bytes = bytes;
        self
    }

    /// Sets [`hardware_timestamps`](Self::hardware_timestamps).
    pub fn hardware_timestamps(mut self, wanted: bool) -> Self {
        self.hardware_timestamps = wanted;
        self
    }
}

/// A network interface, through a packet socket.
///
/// The interface's MTU is read once, when it is opened.
#[derive(Debug)]
pub struct AfPacket {
    caps: Capabilities,
    mac: [u8; 6],
    receive_buffer: usize,
    link: Arc<Link>,
    rx: Rx,
}

#[derive(Debug)]
enum Rx {
    Copying(CopyingRx),
    Ring(RingRx),
}

impl AfPacket {
    /// Opens the interface. It may be down: the first calls then report [`DeviceError::Down`].
    ///
    /// # Errors
    /// The name cannot be one, or names no Ethernet interface of this network namespace;
    /// `CAP_NET_RAW` is missing; the kernel owns [`AfPacketOptions::address`].
    pub fn open(interface: &str, options: AfPacketOptions) -> Result<Self, DeviceError> {
        check_name(interface)?;
        let system = |what| move |error: io::Error| DeviceError::system(what, interface, &error);
        // The socket has no protocol until it is bound, lest it collects frames of all interfaces
        // meanwhile.
        let fd = sys::packet_socket().map_err(|error| socket_error(interface, &error))?;
        let socket = fd.as_fd();
        let index = sys::interface_index(socket, interface).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ENODEV) => DeviceError::NoSuchInterface {
                    interface: interface.to_owned(),
                },
                _ => DeviceError::system("find the interface", interface, &error),
            }
        })?;
        let interface_mac = sys::interface_mac(socket, interface)
            .map_err(system("read the Ethernet address"))?
            .ok_or_else(|| DeviceError::Unsuitable {
                interface: interface.to_owned(),
                reason: "it is no Ethernet",
            })?;
        let mut guard = None;
        if let (Some(address), true) = (options.address, options.guard) {
            guard = Some(attach_guard(interface, index, address)?);
        } else if let Some(address) = options.address {
            let owned = sys::addresses().map_err(system("list addresses"))?;
            refuse_owned(&[address.into()], owned)?;
            // The kernel is silent either way, so this is for speed, and does without what it is
            // not allowed.
            guard = attach_guard(interface, index, address).ok();
        }
        let set = |option, value, what| {
            sys::set_packet_option(socket, option, value).map_err(system(what))
        };
        set(libc::PACKET_VNET_HDR, 1, "ask for virtio headers")?;
        set(libc::PACKET_AUXDATA, 1, "ask for VLAN tags")?;
        set(libc::PACKET_IGNORE_OUTGOING, 1, "ignore outgoing frames")?;
        set(
            libc::PACKET_QDISC_BYPASS,
            options.qdisc_bypass.into(),
            "choose the queueing discipline",
        )?;
        let receive_buffer = sys::set_receive_buffer(socket, options.receive_buffer)
            .map_err(system("set the receive buffer"))?;
        if options.hardware_timestamps {
            let wanted = libc::SOF_TIMESTAMPING_RAW_HARDWARE as i32;
            set(libc::PACKET_TIMESTAMP, wanted, "ask for timestamps")?;
        }
        let memory = make_ring(socket, &options).map_err(|error| ring_error(interface, &error))?;
        let mac = match options.mac {
            MacChoice::Interface => interface_mac,
            MacChoice::Local => local_mac(interface),
            MacChoice::Fixed(mac) => mac,
        };
        // Which groups a stack listens to is not known here, and changes.
        sys::packet_widen(socket, index, mac != interface_mac)
            .map_err(system("open the interface for more frames"))?;
        let mut caps = Capabilities::new(interface);
        caps.mtu = sys::interface_mtu(socket, interface).map_err(system("read the MTU"))?;
        caps.rx_max_frame = MAX_FRAME_LEN;
        caps.rx_checksum = RxChecksumSupport::PerFrame;
        if options.offloads {
            offer_offloads(&mut caps);
        }
        if options.ring == RxRing::Blocks {
            caps.added_latency = RETIRE;
        }
        sys::packet_bind(socket, index, true).map_err(system("bind"))?;
        let event = FdEvent::new().map_err(system("make an event"))?;
        let link = Arc::new(Link::new(fd, interface, index, guard));
        let rx = match memory {
            None => Rx::Copying(CopyingRx::new(
                Arc::clone(&link),
                event,
                Pool::new(options.rx_pool),
            )),
            Some(memory) => {
                let blocks = options.ring == RxRing::Blocks;
                let ring = RingRx::new(
                    Arc::clone(&link),
                    event,
                    Pool::new(options.rx_pool),
                    memory,
                    blocks,
                );
                Rx::Ring(ring.map_err(system("watch the ring"))?)
            }
        };
        Ok(Self {
            caps,
            mac,
            receive_buffer,
            link,
            rx,
        })
    }

    /// Opens the interface several times, so that each frame is received by one of the devices,
    /// chosen by `spread`. All of them send on the same interface.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn open_queues(
        interface: &str,
        options: &AfPacketOptions,
        count: usize,
        spread: Spread,
    ) -> Result<Vec<Self>, DeviceError> {
        assert!(count > 0, "at least one device");
        let mut group = None;
        let mut devices = Vec::new();
        for _ in 0..count {
            let device = Self::open(interface, options.clone())?;
            let joined = sys::packet_fanout(device.link.fd(), spread.mode(), group);
            let error =
                |error| DeviceError::system("share the interface's frames", interface, &error);
            group = Some(joined.map_err(error)?);
            devices.push(device);
        }
        Ok(devices)
    }

    /// Room for received frames that wait, in bytes as the kernel counts them (buffers and their
    /// management); up to twice of what the options asked for.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }
}

/// Readable while a frame can be claimed. A program that sleeps in `poll` or `epoll` instead of
/// [`DeviceRx::wait`] clones it ([`BorrowedFd::try_clone_to_owned`]) before the device is given to a
/// stack.
impl AsFd for AfPacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }
}

impl Device for AfPacket {
    fn capabilities(&self) -> Capabilities {
        self.caps.clone()
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        let tx = AfPacketTx::new(self.caps, self.link);
        let rx: Box<dyn DeviceRx> = match self.rx {
            Rx::Copying(rx) => Box::new(rx),
            Rx::Ring(rx) => Box::new(rx),
        };
        (rx, Box::new(tx))
    }
}

/// A receiving half without a ring, over any datagram socket.
#[cfg(feature = "testkit")]
pub(crate) fn copying_rx(link: Arc<Link>, event: FdEvent, pool: Pool) -> Box<dyn DeviceRx> {
    Box::new(CopyingRx::new(link, event, pool))
}

/// A receiving half over a ring in any memory.
#[cfg(feature = "testkit")]
pub(crate) fn ring_rx(
    link: Arc<Link>,
    event: FdEvent,
    pool: Pool,
    memory: PacketMemory,
    blocks: bool,
) -> io::Result<Box<dyn DeviceRx>> {
    Ok(Box::new(RingRx::new(link, event, pool, memory, blocks)?))
}

/// What may be left to the kernel in frames that are sent through a packet socket.
pub(crate) fn offer_offloads(caps: &mut Capabilities) {
    caps.tx_checksum = true;
    caps.tso4_max_bytes = 65_535 + ETHERNET_HEADER_LEN;
    caps.tso6_max_bytes = caps.tso4_max_bytes;
    // The virtio type for UDP segments came with Linux 6.2.
    if kernel_is_at_least(6, 2) {
        caps.uso_max_bytes = 65_535 + ETHERNET_HEADER_LEN;
    }
}

/// A packet socket that only sends.
pub(crate) fn sending_socket(index: i32) -> io::Result<OwnedFd> {
    let fd = sys::packet_socket()?;
    sys::set_packet_option(fd.as_fd(), libc::PACKET_VNET_HDR, 1)?;
    sys::packet_bind(fd.as_fd(), index, false)?;
    Ok(fd)
}

/// Drops frames to the address behind our socket and before the kernel's stack.
fn attach_guard(interface: &str, index: i32, address: Ipv4Addr) -> Result<OwnedFd, DeviceError> {
    let error = |error: io::Error| match error.raw_os_error() {
        Some(errno @ libc::EINVAL) => DeviceError::Unsupported {
            what: "guard the address",
            hint: "it takes Linux 6.6 or newer; remove the address from the interface instead",
            errno,
        },
        _ => bpf_error(interface, "guard the address", &error),
    };
    let program = sys::bpf_load(Hook::Ingress, &bpf::guard(address), false).map_err(error)?;
    sys::bpf_attach(Hook::Ingress, program.as_fd(), index, 0).map_err(error)
}

/// Makes and maps the ring that the options ask for.
fn make_ring(
    socket: BorrowedFd<'_>,
    options: &AfPacketOptions,
) -> io::Result<Option<PacketMemory>> {
    let units =
        |len: u32| (options.ring_bytes / len as usize).clamp(4, (u32::MAX / len) as usize) as u32;
    match options.ring {
        RxRing::None => Ok(None),
        RxRing::Slots => {
            let page = sys::page_len();
            let slot = options
                .slot_bytes
                .clamp(page, MAX_SLOT_LEN)
                .next_multiple_of(page);
            let slots = units(slot as u32);
            sys::packet_version(socket, libc::tpacket_versions::TPACKET_V2 as i32)?;
            // Any length: all frames that are cut are kept whole in the queue as well.
            sys::set_packet_option(socket, libc::PACKET_COPY_THRESH, 1)?;
            sys::packet_ring_v2(socket, slots, slot as u32)?;
            PacketMemory::new(socket, slots, slot, false).map(Some)
        }
        RxRing::Blocks => {
            let blocks = units(BLOCK_LEN);
            sys::packet_version(socket, libc::tpacket_versions::TPACKET_V3 as i32)?;
            sys::packet_ring_v3(socket, blocks, BLOCK_LEN, RETIRE.as_millis() as u32)?;
            PacketMemory::new(socket, blocks, BLOCK_LEN as usize, true).map(Some)
        }
    }
}

fn ring_error(interface: &str, error: &io::Error) -> DeviceError {
    match error.raw_os_error() {
        Some(errno @ (libc::ENOMEM | libc::ENOBUFS)) => DeviceError::Unsupported {
            what: "make a packet ring",
            hint: "the kernel has no memory for it, ask for fewer ring_bytes or for RxRing::None",
            errno,
        },
        _ => DeviceError::system("make a packet ring", interface, error),
    }
}

fn socket_error(interface: &str, error: &io::Error) -> DeviceError {
    let errno = error.raw_os_error().unwrap_or(0);
    match errno {
        libc::EPERM | libc::EACCES => {
            let program =
                std::env::current_exe().map_or("PROGRAM".into(), |path| path.display().to_string());
            DeviceError::Privilege {
                what: "open a packet socket",
                capability: "CAP_NET_RAW",
                command: format!("sudo setcap cap_net_raw+ep {program}"),
                errno,
            }
        }
        libc::EAFNOSUPPORT => DeviceError::Unsupported {
            what: "open a packet socket",
            hint: "the kernel needs CONFIG_PACKET",
            errno,
        },
        _ => DeviceError::System {
            what: "open a packet socket",
            interface: interface.to_owned(),
            errno,
        },
    }
}

/// Fails if one of `owned` is one of `ours`.
pub(crate) fn refuse_owned(
    ours: &[IpAddr],
    owned: Vec<sys::OwnedAddress>,
) -> Result<(), DeviceError> {
    let found = owned
        .into_iter()
        .find(|owned| ours.contains(&owned.address));
    match found {
        Some(sys::OwnedAddress {
            interface,
            address,
            prefix_len,
        }) => Err(DeviceError::AddressInUse {
            address,
            interface,
            prefix_len,
        }),
        None => Ok(()),
    }
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

/// Puts back the VLAN tag that the kernel has taken out. The frame begins `VLAN_TAG_LEN` bytes into
/// the buffer before, and at its start afterwards.
pub(crate) fn insert_vlan_tag(
    buffer: &mut [u8],
    protocol: u16,
    control: u16,
    mut meta: RxMeta,
) -> RxMeta {
    buffer.copy_within(VLAN_TAG_LEN..VLAN_TAG_LEN + 12, 0);
    buffer[12..14].copy_from_slice(&protocol.to_be_bytes());
    buffer[14..16].copy_from_slice(&control.to_be_bytes());
    let tag_len = VLAN_TAG_LEN as u16;
    if let RxChecksum::Partial { start, .. } = &mut meta.checksum {
        *start = start.saturating_add(tag_len);
    }
    if let Some(gso) = &mut meta.gso
        && gso.header_len > 0
    {
        gso.header_len = gso.header_len.saturating_add(tag_len);
    }
    meta
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gso, GsoKind};

    #[test]
    fn a_bad_name_is_refused_before_anything_is_opened() {
        let result = AfPacket::open("a-name-too-long-for-linux", AfPacketOptions::default());
        assert!(matches!(result, Err(DeviceError::BadName { .. })));
    }

    #[test]
    fn a_missing_privilege_names_the_capability() {
        let error = socket_error("eth0", &io::Error::from_raw_os_error(libc::EPERM)).to_string();
        assert!(
            error.contains("CAP_NET_RAW") && error.contains("setcap cap_net_raw+ep"),
            "{error}"
        );
    }

    #[test]
    fn an_address_of_the_kernel_is_refused() {
        let ours = IpAddr::from([10, 0, 0, 1]);
        let owned = |address| sys::OwnedAddress {
            interface: "eth1".to_owned(),
            address,
            prefix_len: 24,
        };
        let other = owned([10, 0, 0, 2].into());
        assert_eq!(refuse_owned(&[ours], vec![other.clone()]), Ok(()));
        let error = refuse_owned(&[ours], vec![other, owned(ours)]).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("ip addr del 10.0.0.1/24 dev eth1"),
            "{error}"
        );
    }

    #[test]
    fn a_vlan_tag_is_put_back_and_offsets_move_with_it() {
        let mut buffer = vec![0xee; 4];
        buffer.extend(1..=12);
        buffer.extend([0x08, 0x00, 0x45]);
        let meta = RxMeta {
            checksum: RxChecksum::Partial {
                start: 34,
                offset: 16,
            },
            gso: Some(Gso {
                kind: GsoKind::Tcp4,
                size: 1448,
                header_len: 54,
            }),
        };
        let meta = insert_vlan_tag(&mut buffer, 0x8100, 100, meta);
        assert_eq!(
            buffer,
            [
                1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0, 0, 100, 8, 0, 0x45
            ]
        );
        assert_eq!(
            meta.checksum,
            RxChecksum::Partial {
                start: 38,
                offset: 16
            }
        );
        assert_eq!(meta.gso.map(|gso| gso.header_len), Some(58));
    }
}
