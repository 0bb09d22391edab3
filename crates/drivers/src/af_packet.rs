//! A network interface shared with the kernel's stack, through a packet socket.
//!
//! Works on any Ethernet interface, real or veth. Frames carry a virtio header
//! (`PACKET_VNET_HDR`), so merged frames of up to 64 KB pass in both directions together with
//! their checksum state. On a veth this is the only way to distinguish a frame whose checksum was
//! left unfinished on purpose from a damaged one.
//!
//! Received frames are read in a ring that is mapped into this process, by any number of threads;
//! see [`RxRing`]. No thread can write to them there.
//!
//! The kernel continues to receive the same frames. It does not answer them as long as it does not
//! own our address: give the interface no IPv4 address, or at least not ours.
//! [`AfPacketOptions::address`] checks that.

mod copying;
mod ring;
mod transmit;

use crate::af_xdp::bpf_error;
use crate::bpf;
use crate::fd_event::FdEvent;
use crate::interface::{check_name, local_mac};
use crate::link::{Kept, Link};
use crate::pool::{MAX_FRAME_LEN, Pool};
use crate::sys::{AttachedProgram, BpfHook, FrameLengths};
use crate::umem::PacketMemory;
use crate::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, ETHERNET_HEADER_LEN, RxChecksum,
    RxChecksumSupport, RxMeta, VLAN_TAG_LEN, sys,
};
use copying::CopyingRx;
use ring::{RingPair, RingRx};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
pub(crate) use transmit::AfPacketTx;

/// Longest slot of a TPACKET_V2 ring that the options accept, in bytes.
const MAX_SLOT_LEN: usize = 1 << 20;

/// Length of a block of a TPACKET_V3 ring, in bytes. Room for three merged frames: of a TCP window
/// of a few hundred KB most blocks are full, so only its last part waits for [`RETIRE`].
const BLOCK_LEN: u32 = 256 << 10;

/// Length of a slot for frames of Ethernet length, and for merged ones, in bytes. The kernel
/// allocates powers of two, and its TCP sends frames that fit the longer one.
const SHORT_SLOT: usize = 4096;
const LONG_SLOT: usize = 64 << 10;

/// Bytes of a slot that no frame uses: the kernel puts its header in front, and a VLAN tag takes 4.
const SLOT_HEADROOM: usize = 128;

/// Age at which the kernel hands over a block that is not full; the shortest possible.
const RETIRE: Duration = Duration::from_millis(1);

crate::settings! {
    /// Options for opening an [`AfPacket`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AfPacketOptions {
        /// Our stack's IPv4 address. Opening fails if the kernel owns it, on any interface, since
        /// the kernel would answer in our place. If it does not, frames to the address are also
        /// dropped after our socket where that is allowed (see [`guard`](Self::guard)). This is for
        /// speed: the kernel would look up a route for each frame only to find that it is not its
        /// own, which costs more than receiving it. Default, `None`: not checked.
        pub address: Option<Ipv4Addr> = None => some Ipv4Addr;
        /// The same for an IPv6 address of our stack, but [`guard`](Self::guard) is about
        /// [`address`](Self::address) alone. Default, `None`: not checked.
        pub address6: Option<Ipv6Addr> = None => some Ipv6Addr;
        /// Opens the device even if the kernel owns the address, and drops frames to it on this
        /// interface before the kernel's stack gets them, so that the kernel does not answer. Needs
        /// `CAP_BPF`, `CAP_NET_ADMIN` and Linux 6.6; ends with the device. Default: no.
        pub guard: bool = false;
        /// Our Ethernet address. Default: the interface's.
        pub mac: MacChoice = MacChoice::Interface;
        /// Whether the kernel may finish checksums and segmentation of frames that we send.
        /// Received frames carry their checksum and segmentation state in either case. Default:
        /// yes.
        pub offloads: bool = true;
        /// Whether frames that we send bypass the queueing discipline. Packet captures on this
        /// machine do not see them then. Default: no.
        pub qdisc_bypass: bool = false;
        /// Size of the socket's receive queue, in bytes. More than `net.core.rmem_max` needs
        /// `CAP_NET_ADMIN`; without it the queue is smaller. Default 8 MiB.
        pub receive_buffer: usize = 8 << 20;
        /// Receive buffers kept for reuse, 65 KB each, for frames copied from the socket's queue.
        /// Pages that no frame touches take no memory. Default 256.
        pub rx_pool: usize = 256;
        /// Where received frames are stored and read. Default: [`RxRing::Slots`].
        pub ring: RxRing = RxRing::default();
        /// Length of a ring, in bytes. [`RxRing::Slots`] takes [`slot_bytes`](Self::slot_bytes)
        /// for each frame, [`RxRing::Blocks`] takes 256 KiB for each block; there are at least four
        /// slots or blocks. Default 16 MiB.
        pub ring_bytes: usize = 16 << 20;
        /// Length of a slot of [`RxRing::Slots`], in bytes, rounded up to whole pages. The kernel
        /// uses about 90 bytes of it. A longer frame is stored in the socket's queue instead and
        /// copied from there when its turn comes, which costs a system call. Default, `None`: 4096,
        /// room for many frames of Ethernet length. If longer frames may arrive, because the
        /// interface merges segments or has a long MTU, there is a second ring for those, with
        /// slots of 64 KiB and the same length.
        pub slot_bytes: Option<usize> = None => some usize;
        /// Whether [`Frame::timestamp`](crate::Frame::timestamp) comes from the network card, if it
        /// has timestamps, instead of the kernel. Default: no.
        pub hardware_timestamps: bool = false;
    }
}

/// Where received frames are stored and read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RxRing {
    /// In the socket's queue, from which a system call copies each frame.
    /// [`AfPacketOptions::receive_buffer`] and [`AfPacketOptions::rx_pool`] apply to this, and to
    /// frames that are too long for a slot.
    None,
    /// In a mapped ring of slots with one frame each, readable as soon as they arrive (TPACKET_V2).
    #[default]
    Slots,
    /// In a mapped ring of blocks, filled with frames of any length and handed over when they are
    /// full or a millisecond old (TPACKET_V3). By far the cheapest for many frames, but too slow
    /// for requests and replies.
    Blocks,
}

/// How the kernel distributes frames to the sockets of [`AfPacket::open_queues`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spread {
    /// By a hash of addresses and ports, so that all frames of a connection go to the same socket.
    #[default]
    Flow,
    /// Round robin.
    Turn,
    /// By the core on which the frame arrived.
    Core,
    /// By the receive queue of the interface.
    Queue,
    /// All to the first socket that has room.
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

/// The Ethernet address of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MacChoice {
    /// The address of the interface.
    #[default]
    Interface,
    /// A locally administered address derived from the interface's name. Makes the interface
    /// promiscuous while it is open.
    Local,
    /// This address. Makes the interface promiscuous while it is open.
    Fixed([u8; 6]),
}

/// A network interface, opened as a packet socket.
///
/// The interface's MTU is read once, when the device is opened.
#[derive(Debug)]
pub struct AfPacket {
    caps: Capabilities,
    mac: [u8; 6],
    receive_buffer: usize,
    /// The second socket, if there are two rings.
    long: Option<TwoSockets>,
    rx: Rx,
    link: Arc<Link>,
}

#[derive(Debug)]
enum Rx {
    Copying(CopyingRx),
    Ring(RingRx),
    Pair(Box<RingPair>),
}

#[derive(Debug)]
struct TwoSockets {
    link: Arc<Link>,
    /// An epoll descriptor that is readable while one of both sockets is.
    readable: OwnedFd,
}

impl AfPacket {
    /// Opens the interface. It may be down: the first calls then report [`DeviceError::Down`].
    ///
    /// # Errors
    /// The name is invalid, or names no Ethernet interface of this network namespace;
    /// `CAP_NET_RAW` is missing; the kernel owns [`AfPacketOptions::address`].
    pub fn open(interface: &str, options: AfPacketOptions) -> Result<Self, DeviceError> {
        check_name(interface)?;
        let system = |what| move |error: io::Error| DeviceError::system(what, interface, &error);
        // The socket has no protocol until it is bound, so that it collects no frames of other
        // interfaces.
        let fd = sys::packet_socket().map_err(|error| socket_error(interface, &error))?;
        let socket = fd.as_fd();
        let (index, interface_mac) = examine(socket, interface, &options)?;
        let mtu = sys::interface_mtu(socket, interface).map_err(system("read the MTU"))?;
        let is_long = mtu + ETHERNET_HEADER_LEN > SHORT_SLOT - SLOT_HEADROOM;
        let is_pair = options.ring == RxRing::Slots
            && options.slot_bytes.is_none()
            && (is_long || sys::interface_merges(socket, interface));
        let slot = options.slot_bytes.unwrap_or(SHORT_SLOT);
        let second = is_pair.then(sys::packet_socket).transpose();
        let second = second.map_err(|error| socket_error(interface, &error))?;
        // The kernel waits for every core before a ring or a guard is set up, so all begin at once.
        let (ring, long_ring, guards) = thread::scope(|scope| {
            let long_ring = second
                .as_ref()
                .map(|fd| aside(scope, || set_up(fd.as_fd(), interface, &options, LONG_SLOT)));
            let addresses = [
                options.address.map(IpAddr::from),
                options.address6.map(IpAddr::from),
            ];
            let guards = addresses.map(|address| {
                let guard = move |address| move || attach_guard(interface, index, address);
                address.map(|address| aside(scope, guard(address)))
            });
            let ring = set_up(socket, interface, &options, slot);
            let guards = guards.map(|guard| guard.map(|get| get()));
            (ring, long_ring.map(|get| get()), guards)
        });
        let (receive_buffer, memory) = ring?;
        // The link closes both sockets and the guards.
        let mut others = Vec::new();
        for (guard, is_needed) in guards.into_iter().zip([options.guard, false]) {
            match guard {
                Some(guard) if is_needed => others.push(Kept::Program(guard?)),
                // The kernel does not answer in any case, so this is for speed, and errors such
                // as a missing capability do not matter.
                guard => others.extend(guard.and_then(Result::ok).map(Kept::Program)),
            }
        }
        let mac = match options.mac {
            MacChoice::Interface => interface_mac,
            MacChoice::Local => local_mac(interface),
            MacChoice::Fixed(mac) => mac,
        };
        // The device does not know to which groups a stack listens, and they change.
        sys::packet_widen(socket, index, mac != interface_mac)
            .map_err(system("open the interface for more frames"))?;
        let mut caps = Capabilities::new(interface);
        caps.has_descriptor = true;
        caps.mtu = mtu;
        caps.rx_max_frame = MAX_FRAME_LEN;
        caps.rx_checksum = RxChecksumSupport::PerFrame;
        if options.offloads {
            offer_offloads(&mut caps);
        }
        if options.ring == RxRing::Blocks {
            caps.added_latency = RETIRE;
        }
        let (mut long, mut long_memory) = (None, None);
        if let (Some(fd), Some(long_ring)) = (second, long_ring) {
            let (_, memory) = long_ring?;
            let limit = (SHORT_SLOT - SLOT_HEADROOM) as u32;
            let both = [
                (socket, FrameLengths::UpTo(limit)),
                (fd.as_fd(), FrameLengths::Above(limit)),
            ];
            let readable = sys::epoll().map_err(system("watch the rings"))?;
            for (socket, lengths) in both {
                sys::packet_filter(socket, lengths).map_err(system("divide frames"))?;
                sys::epoll_watch(readable.as_fd(), socket, false)
                    .map_err(system("watch the rings"))?;
            }
            sys::packet_bind(fd.as_fd(), index, true).map_err(system("bind"))?;
            let kept = fd.try_clone().map_err(system("watch the rings"))?;
            others.push(Kept::Socket(kept));
            let link = Arc::new(Link::new(fd, interface, index, None));
            long_memory = memory.map(|memory| (Arc::clone(&link), memory));
            long = Some(TwoSockets { link, readable });
        }
        sys::packet_bind(socket, index, true).map_err(system("bind"))?;
        let event = || FdEvent::new().map_err(system("make an event"));
        let link = Arc::new(Link::new(fd, interface, index, others));
        let ring = |link: &Arc<Link>, memory| {
            let blocks = options.ring == RxRing::Blocks;
            let pool = Pool::new(options.rx_pool);
            RingRx::new(Arc::clone(link), event()?, pool, memory, blocks)
                .map_err(system("watch the ring"))
        };
        let rx = match (memory, long_memory) {
            (None, _) => Rx::Copying(CopyingRx::new(
                Arc::clone(&link),
                event()?,
                Pool::new(options.rx_pool),
            )),
            (Some(memory), None) => Rx::Ring(ring(&link, memory)?),
            (Some(memory), Some((other, long))) => {
                let pair = RingPair::new(ring(&link, memory)?, ring(&other, long)?);
                Rx::Pair(Box::new(pair.map_err(system("watch the rings"))?))
            }
        };
        Ok(Self {
            caps,
            mac,
            receive_buffer,
            long,
            rx,
            link,
        })
    }

    /// Looks for what would keep [`open`](Self::open) from opening the interface, without a packet
    /// socket if this process has `CAP_NET_RAW`: the kernel takes milliseconds to close one.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn check(interface: &str, options: &AfPacketOptions) -> Result<(), DeviceError> {
        check_name(interface)?;
        let socket = match has_net_raw() {
            true => sys::control_socket(),
            false => sys::packet_socket(),
        };
        let socket = socket.map_err(|error| socket_error(interface, &error))?;
        examine(socket.as_fd(), interface, options).map(drop)
    }

    /// Opens the interface several times. Each frame is received by one of the devices, selected
    /// by `spread`. All of them send on the same interface.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
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
        // The sockets for long frames share those among themselves.
        let mut groups = [None; 2];
        let mut devices = Vec::new();
        for _ in 0..count {
            let device = Self::open(interface, options.clone())?;
            let links = [
                Some(&device.link),
                device.long.as_ref().map(|two| &two.link),
            ];
            for (group, link) in groups.iter_mut().zip(links.into_iter().flatten()) {
                let joined = sys::packet_fanout(link.fd(), spread.mode(), *group);
                let error =
                    |error| DeviceError::system("share the interface's frames", interface, &error);
                *group = Some(joined.map_err(error)?);
            }
            devices.push(device);
        }
        Ok(devices)
    }

    /// Size of the socket's receive queue in bytes, as the kernel counts it (buffers and their
    /// management): up to twice the size in the options.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }
}

/// Readable while a frame can be claimed. A program that sleeps in `poll` or `epoll` instead of
/// [`DeviceRx::wait`] clones the descriptor ([`BorrowedFd::try_clone_to_owned`]) before it gives
/// the device to a stack.
impl AsFd for AfPacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.long {
            Some(two) => two.readable.as_fd(),
            None => self.link.fd(),
        }
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
            Rx::Pair(rx) => rx,
        };
        (rx, Box::new(tx))
    }
}

/// The number and the Ethernet address of an interface that may be opened.
fn examine(
    socket: BorrowedFd<'_>,
    interface: &str,
    options: &AfPacketOptions,
) -> Result<(i32, [u8; 6]), DeviceError> {
    let system = |what| move |error: io::Error| DeviceError::system(what, interface, &error);
    let index =
        sys::interface_index(socket, interface).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => DeviceError::NoSuchInterface {
                interface: interface.to_owned(),
            },
            _ => DeviceError::system("find the interface", interface, &error),
        })?;
    let mac = sys::interface_mac(socket, interface)
        .map_err(system("read the Ethernet address"))?
        .ok_or_else(|| DeviceError::Unsuitable {
            interface: interface.to_owned(),
            reason: "it is no Ethernet",
        })?;
    let v4 = options.address.filter(|_| !options.guard);
    let v4 = v4.into_iter().map(IpAddr::from);
    let ours: Vec<IpAddr> = v4.chain(options.address6.map(IpAddr::from)).collect();
    if !ours.is_empty() {
        let owned = sys::addresses().map_err(system("list addresses"))?;
        refuse_owned(&ours, owned)?;
    }
    Ok((index, mac))
}

/// Whether this process has `CAP_NET_RAW`.
fn has_net_raw() -> bool {
    const NET_RAW: u32 = 13;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set >> NET_RAW & 1 == 1)
}

/// Begins work on another thread. The result waits for it, or does it if no thread could start.
fn aside<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    work: impl Fn() -> T + Copy + Send + 'scope,
) -> impl FnOnce() -> T {
    let thread = thread::Builder::new().spawn_scoped(scope, work);
    move || match thread {
        Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
        Err(_) => work(),
    }
}

/// A receiving half without a ring, for any datagram socket.
#[cfg(feature = "testkit")]
pub(crate) fn copying_rx(link: Arc<Link>, event: FdEvent, pool: Pool) -> Box<dyn DeviceRx> {
    Box::new(CopyingRx::new(link, event, pool))
}

/// A receiving half with a ring in any memory.
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

/// Adds the features that the kernel offers for frames sent through a packet socket.
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

/// Drops frames to the address after our socket and before the kernel's stack.
fn attach_guard(
    interface: &str,
    index: i32,
    address: IpAddr,
) -> Result<AttachedProgram, DeviceError> {
    let error = |error: io::Error| match error.raw_os_error() {
        Some(errno @ libc::EINVAL) => DeviceError::Unsupported {
            what: "guard the address",
            hint: "it takes Linux 6.6 or newer; remove the address from the interface instead",
            errno,
        },
        _ => bpf_error(interface, "guard the address", &error),
    };
    let program = sys::bpf_load(BpfHook::Ingress, &bpf::guard(address), false).map_err(error)?;
    sys::bpf_attach(BpfHook::Ingress, program.as_fd(), index, 0).map_err(error)
}

/// Sets a packet socket up, with its ring if the options request one. Returns the size of its
/// queue, and the ring.
fn set_up(
    socket: BorrowedFd<'_>,
    interface: &str,
    options: &AfPacketOptions,
    slot: usize,
) -> Result<(usize, Option<PacketMemory>), DeviceError> {
    let system = |what| move |error: io::Error| DeviceError::system(what, interface, &error);
    let set =
        |option, value, what| sys::set_packet_option(socket, option, value).map_err(system(what));
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
    let memory = make_ring(socket, options, slot).map_err(|error| ring_error(interface, &error))?;
    Ok((receive_buffer, memory))
}

/// Creates and maps the ring that the options request, if any, with slots of `slot` bytes.
fn make_ring(
    socket: BorrowedFd<'_>,
    options: &AfPacketOptions,
    slot: usize,
) -> io::Result<Option<PacketMemory>> {
    let units =
        |len: u32| (options.ring_bytes / len as usize).clamp(4, (u32::MAX / len) as usize) as u32;
    match options.ring {
        RxRing::None => Ok(None),
        RxRing::Slots => {
            let page = sys::page_len();
            let slot = slot.clamp(page, MAX_SLOT_LEN).next_multiple_of(page);
            let slots = units(slot as u32);
            sys::packet_version(socket, libc::tpacket_versions::TPACKET_V2 as i32)?;
            // Makes the kernel keep frames of any length that are cut in the ring complete in the
            // queue as well.
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

/// Restores the VLAN tag that the kernel removed. Before the call the frame begins `VLAN_TAG_LEN`
/// bytes into the buffer, afterwards at its start.
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
