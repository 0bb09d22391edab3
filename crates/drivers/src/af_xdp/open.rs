//! Opens the memory, the sockets of all queues, and the program.

use super::filter::AttachedFilter;
use super::options::{AfXdpOptions, XdpBind, XdpMode, XdpTransmit};
use super::receive::XdpRx;
use super::transmit::XdpTx;
use super::{AfXdp, CHUNK_LEN, Redirect};
use crate::af_packet::{AfPacketTx, MacChoice, offer_offloads, refuse_owned, sending_socket};
use crate::bpf;
use crate::fd_event::FdEvent;
use crate::interface::{local_mac, while_busy};
use crate::link::Link;
use crate::sys::{self, BpfHook, Mapping, UmemRequest};
use crate::umem::{Region, TransmitMemory};
use crate::xsk_ring::{Consumer, Offsets, Producer, XskDescriptor};
use crate::{Capabilities, DeviceError, ETHERNET_HEADER_LEN, RxChecksumSupport, VLAN_TAG_LEN};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// Bytes that the kernel keeps free in front of a received frame.
const HEADROOM: usize = 256;
/// Longest frame that fits one chunk with any driver, in bytes; drivers keep a `struct
/// skb_shared_info` after the frame.
const SINGLE_FRAME_LEN: usize = 3506 + ETHERNET_HEADER_LEN;
/// Length of `struct xsk_tx_metadata` in bytes.
const METADATA_LEN: usize = 24;
/// Socket option `XDP_MAX_TX_SKB_BUDGET`, of Linux 6.18: most frames sent per system call when the
/// kernel copies them.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

const _: () = assert!(SINGLE_FRAME_LEN + HEADROOM < CHUNK_LEN);

/// The properties of the interface, collected while its queues are opened.
pub(super) struct Opening<'a> {
    interface: &'a str,
    options: &'a AfXdpOptions,
    control: OwnedFd,
    index: i32,
    caps: Capabilities,
    mac: [u8; 6],
    interface_mac: [u8; 6],
    /// Whether frames may be longer than a chunk.
    pieces: bool,
}

impl<'a> Opening<'a> {
    pub(super) fn new(interface: &'a str, options: &'a AfXdpOptions) -> Result<Self, DeviceError> {
        let system = |what| move |error: io::Error| DeviceError::system(what, interface, &error);
        let control = sys::control_socket().map_err(system("open a socket"))?;
        let index =
            sys::interface_index(control.as_fd(), interface).map_err(|error| {
                match error.raw_os_error() {
                    Some(libc::ENODEV) => DeviceError::NoSuchInterface {
                        interface: interface.to_owned(),
                    },
                    _ => DeviceError::system("find the interface", interface, &error),
                }
            })?;
        let interface_mac = sys::interface_mac(control.as_fd(), interface)
            .map_err(system("read the Ethernet address"))?
            .ok_or_else(|| DeviceError::Unsuitable {
                interface: interface.to_owned(),
                reason: "it is no Ethernet",
            })?;
        if let Redirect::Addresses(ours) = &options.redirect {
            if !(1..=Redirect::MAX_ADDRESSES).contains(&ours.len()) {
                return Err(DeviceError::Unsuitable {
                    interface: interface.to_owned(),
                    reason: "1 to 64 addresses can be ours",
                });
            }
            if !options.guard {
                refuse_owned(ours, sys::addresses().map_err(system("list addresses"))?)?;
            }
        }
        let mut caps = Capabilities::new(interface);
        caps.has_descriptor = true;
        caps.mtu =
            sys::interface_mtu(control.as_fd(), interface).map_err(system("read the MTU"))?;
        caps.rx_max_frame = caps.mtu + ETHERNET_HEADER_LEN + VLAN_TAG_LEN;
        caps.max_batch = 64;
        if options.trust_checksums {
            caps.rx_checksum = RxChecksumSupport::Always;
        }
        let pieces = caps.mtu + ETHERNET_HEADER_LEN > SINGLE_FRAME_LEN;
        let mac = match options.mac {
            MacChoice::Interface => interface_mac,
            MacChoice::Local => local_mac(interface),
            MacChoice::Fixed(mac) => mac,
        };
        Ok(Self {
            interface,
            options,
            control,
            index,
            caps,
            mac,
            interface_mac,
            pieces,
        })
    }

    fn system(&self, what: &'static str) -> impl Fn(io::Error) -> DeviceError + use<'_> {
        move |error| DeviceError::system(what, self.interface, &error)
    }

    pub(super) fn queues(mut self, count: u32) -> Result<Vec<AfXdp>, DeviceError> {
        let power = |chunks: u32| chunks.clamp(64, 65536).next_power_of_two();
        let (receive, transmit) = (power(self.options.rx_chunks), power(self.options.tx_chunks));
        let sockets = (0..count)
            .map(|_| sys::xsk_socket().map_err(|error| self.socket_error(&error)))
            .collect::<Result<Vec<_>, _>>()?;
        let len = count as usize * (receive + transmit) as usize * CHUNK_LEN;
        let memory = sys::shared_memory(len).map_err(self.system("make shared memory"))?;
        let region = Region::chunks(memory.as_fd(), count, receive, transmit, CHUNK_LEN);
        let region = Arc::new(region.map_err(self.system("map shared memory"))?);
        let metadata = self.register(sockets[0].as_fd(), &region)?;

        // Attach the program first: the kernel must see no more frames to a guarded address.
        let (attached, map) = self.attach(count)?;
        let attached = Arc::new(attached);
        let mut devices: Vec<AfXdp> = Vec::new();
        for (queue, socket) in (0..).zip(sockets) {
            let rings = Rings::new(socket.as_fd(), receive, transmit)
                .map_err(self.system("make the rings"))?;
            let first = devices.first().map(|device| device.rx.link().fd());
            self.bind(socket.as_fd(), queue, first)?;
            let zero_copy =
                sys::xsk_is_zero_copy(socket.as_fd()).map_err(self.system("read options"))?;
            // Without a copy the driver has to finish checksums; not all drivers do, and the
            // kernel does not report which.
            self.caps.tx_checksum = metadata && !zero_copy && self.options.offloads;
            let packets = self.packets(zero_copy)?;
            // Older kernels send 32 frames per call.
            let _ = sys::xsk_set(socket.as_fd(), XDP_MAX_TX_SKB_BUDGET, transmit);
            sys::bpf_map_set(map.as_fd(), queue, socket.as_fd())
                .map_err(self.system("enter the socket into the map"))?;
            let event = FdEvent::new().map_err(self.system("make an event"))?;
            let control = self
                .control
                .try_clone()
                .map_err(self.system("keep a socket"))?;
            let link = Link::new(socket, self.interface, self.index, None).control(control);
            let link = Arc::new(link);
            let rx = XdpRx::new(
                Arc::clone(&link),
                event,
                Arc::clone(&region),
                queue as usize,
                (rings.fill, rings.receive),
                Arc::clone(&attached),
                self.options.trust_checksums,
            );
            let tx = XdpTx::new(
                self.caps.clone(),
                link,
                TransmitMemory::new(&region, queue),
                (rings.send, rings.completion),
                if metadata { METADATA_LEN } else { 0 },
                Arc::clone(&attached),
            );
            devices.push(AfXdp {
                caps: self.caps.clone(),
                mac: self.mac,
                zero_copy,
                advice: self.advice(),
                rx: rx.map_err(self.system("watch the socket"))?,
                tx,
                packets,
                attached: Arc::clone(&attached),
                is_filtered: self.options.redirect != Redirect::Everything,
            });
        }
        Ok(devices)
    }

    /// Opens the packet socket to send through, if the options ask for one.
    fn packets(&mut self, zero_copy: bool) -> Result<Option<AfPacketTx>, DeviceError> {
        if self.options.transmit == XdpTransmit::Ring || zero_copy {
            return Ok(None);
        }
        if self.options.offloads {
            offer_offloads(&mut self.caps);
        }
        let socket =
            sending_socket(self.index).map_err(self.system("make a packet socket to send"))?;
        let link = Arc::new(Link::new(socket, self.interface, self.index, None));
        Ok(Some(AfPacketTx::new(self.caps.clone(), link)))
    }

    fn advice(&self) -> Option<&'static str> {
        let driver = sys::interface_driver(self.control.as_fd(), self.interface);
        (driver.as_deref() == Some("veth") && !self.options.trust_checksums).then_some(
            "a veth leaves checksums to the receiver, and AF_XDP does not say so: \
             try ethtool -K PEER tx off at the other end, or trust checksums here",
        )
    }

    /// Registers the memory. Returns whether frames to send can carry metadata for the kernel.
    fn register(&self, socket: BorrowedFd<'_>, region: &Region) -> Result<bool, DeviceError> {
        let (address, len) = region.address();
        let request = |metadata_len| UmemRequest {
            address,
            len,
            chunk_len: CHUNK_LEN as u32,
            metadata_len,
        };
        if self.options.offloads && sys::xsk_register(socket, request(METADATA_LEN as u32)).is_ok()
        {
            return Ok(true);
        }
        match sys::xsk_register(socket, request(0)) {
            Ok(()) => Ok(false),
            Err(error) => match error.raw_os_error() {
                Some(errno @ (libc::ENOBUFS | libc::ENOMEM | libc::EPERM)) => {
                    Err(DeviceError::Privilege {
                        what: "lock memory for AF_XDP",
                        capability: "CAP_IPC_LOCK or a higher limit of locked memory",
                        command: format!("ulimit -l {}", len.div_ceil(1024) + 1024),
                        errno,
                    })
                }
                _ => Err(DeviceError::system(
                    "register memory",
                    self.interface,
                    &error,
                )),
            },
        }
    }

    fn attach(&self, count: u32) -> Result<(AttachedFilter, OwnedFd), DeviceError> {
        let privilege = |error: io::Error| bpf_error(self.interface, "load an XDP program", &error);
        let map = sys::bpf_socket_map(count).map_err(privilege)?;
        let program = bpf::redirect(
            &self.options.redirect,
            std::os::fd::AsRawFd::as_raw_fd(&map),
        );
        let program = sys::bpf_load(BpfHook::Xdp, &program, self.pieces).map_err(privilege)?;
        let widened = sys::packet_socket().map_err(self.system("open a packet socket"))?;
        sys::packet_widen(widened.as_fd(), self.index, self.mac != self.interface_mac)
            .map_err(self.system("open the interface for more frames"))?;
        let modes: &[u32] = match self.options.mode {
            XdpMode::Auto => &[sys::XDP_MODE_NATIVE, sys::XDP_MODE_GENERIC],
            XdpMode::Native => &[sys::XDP_MODE_NATIVE],
            XdpMode::Generic => &[sys::XDP_MODE_GENERIC],
        };
        let mut first_error = None;
        for &mode in modes {
            match sys::bpf_attach(BpfHook::Xdp, program.as_fd(), self.index, mode) {
                Ok(attached) => {
                    let kept = map.try_clone().map_err(self.system("keep the map"))?;
                    let attached = AttachedFilter {
                        interface: self.interface.to_owned(),
                        program: attached,
                        map: kept,
                        _widened: widened,
                        pieces: self.pieces,
                        guard: self.options.guard,
                        redirect: Mutex::new(self.options.redirect.clone()),
                    };
                    return Ok((attached, map));
                }
                Err(error) => {
                    // An error that does not depend on the mode would repeat in every mode.
                    let busy = matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST));
                    first_error.get_or_insert(error);
                    if busy {
                        break;
                    }
                }
            }
        }
        let error = first_error.unwrap_or_else(|| io::ErrorKind::Other.into());
        Err(bpf_error(self.interface, "attach an XDP program", &error))
    }

    fn bind(
        &self,
        socket: BorrowedFd<'_>,
        queue: u32,
        first: Option<BorrowedFd<'_>>,
    ) -> Result<(), DeviceError> {
        let mut flags = libc::XDP_USE_NEED_WAKEUP;
        flags |= match self.options.bind {
            XdpBind::Auto => 0,
            XdpBind::Copy => libc::XDP_COPY,
            XdpBind::ZeroCopy => libc::XDP_ZEROCOPY,
        };
        if self.pieces {
            flags |= libc::XDP_USE_SG;
        }
        let bound = while_busy(|| sys::xsk_bind(socket, self.index, queue, flags, first));
        bound.map_err(|error| {
            let interface = self.interface.to_owned();
            match error.raw_os_error() {
                Some(libc::EBUSY) => DeviceError::Busy { interface },
                Some(errno @ (libc::EOPNOTSUPP | libc::EINVAL))
                    if self.options.bind == XdpBind::ZeroCopy =>
                {
                    DeviceError::Unsupported {
                        what: "bind an AF_XDP socket without copies",
                        hint: "the driver cannot do that, or not with this MTU; choose XdpBind::Copy",
                        errno,
                    }
                }
                Some(libc::EINVAL) => DeviceError::Unsuitable {
                    interface,
                    reason: "it has no such queue; see: ethtool -l, ip -d link show",
                },
                Some(libc::ENETDOWN) => DeviceError::Down { interface },
                _ => DeviceError::system("bind an AF_XDP socket", self.interface, &error),
            }
        })
    }

    fn socket_error(&self, error: &io::Error) -> DeviceError {
        match error.raw_os_error() {
            Some(errno @ (libc::EPERM | libc::EACCES)) => DeviceError::Privilege {
                what: "open an AF_XDP socket",
                capability: "CAP_NET_RAW",
                command: set_capabilities(),
                errno,
            },
            Some(errno @ libc::EAFNOSUPPORT) => DeviceError::Unsupported {
                what: "open an AF_XDP socket",
                hint: "the kernel needs CONFIG_XDP_SOCKETS",
                errno,
            },
            _ => DeviceError::system("open an AF_XDP socket", self.interface, error),
        }
    }
}

/// The command that grants this program the capabilities for AF_XDP.
fn set_capabilities() -> String {
    let program =
        std::env::current_exe().map_or("PROGRAM".into(), |path| path.display().to_string());
    format!("sudo setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep {program}")
}

/// Maps an error of loading or attaching a program.
pub(crate) fn bpf_error(interface: &str, what: &'static str, error: &io::Error) -> DeviceError {
    let unsuitable = |reason| DeviceError::Unsuitable {
        interface: interface.to_owned(),
        reason,
    };
    match error.raw_os_error() {
        Some(errno @ (libc::EPERM | libc::EACCES)) => DeviceError::Privilege {
            what,
            capability: "CAP_BPF and CAP_NET_ADMIN",
            command: set_capabilities(),
            errno,
        },
        Some(libc::EBUSY | libc::EEXIST) => unsuitable(
            "another XDP program is attached; see: ip -d link show, bpftool net; try: ip link set DEV xdp off",
        ),
        Some(libc::ERANGE) => {
            unsuitable("its MTU is too large for XDP; try: ip link set DEV mtu 1500")
        }
        Some(errno @ libc::ENOSYS) => DeviceError::Unsupported {
            what,
            hint: "the kernel needs CONFIG_BPF_SYSCALL",
            errno,
        },
        _ => DeviceError::system(what, interface, error),
    }
}

/// The four rings of a socket.
struct Rings {
    fill: Producer<u64>,
    receive: Consumer<XskDescriptor>,
    send: Producer<XskDescriptor>,
    completion: Consumer<u64>,
}

impl Rings {
    pub(super) fn new(socket: BorrowedFd<'_>, receive: u32, transmit: u32) -> io::Result<Self> {
        // Received frames take at most half of the chunks, so the fill ring does not run empty.
        let lens = [receive / 2, transmit, receive, transmit];
        let options = [
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
        ];
        let places = [
            libc::XDP_PGOFF_RX_RING as u64,
            libc::XDP_PGOFF_TX_RING as u64,
            libc::XDP_UMEM_PGOFF_FILL_RING,
            libc::XDP_UMEM_PGOFF_COMPLETION_RING,
        ];
        for (option, len) in options.into_iter().zip(lens) {
            sys::xsk_set(socket, option, len)?;
        }
        let offsets = sys::xsk_offsets(socket)?;
        let map = |ring: usize, entry: usize| {
            let [producer, consumer, entries, flags] = offsets[ring].map(|at| at as usize);
            let len = entries + lens[ring] as usize * entry;
            let mapping = Mapping::shared(socket, len, places[ring], true)?;
            let offsets = Offsets {
                producer,
                consumer,
                entries,
                flags,
            };
            Ok::<_, io::Error>((mapping, offsets, lens[ring]))
        };
        let (mapping, offsets, len) = map(0, size_of::<XskDescriptor>())?;
        let receive = Consumer::new(mapping, offsets, len);
        let (mapping, offsets, len) = map(1, size_of::<XskDescriptor>())?;
        let send = Producer::new(mapping, offsets, len);
        let (mapping, offsets, len) = map(2, size_of::<u64>())?;
        let fill = Producer::new(mapping, offsets, len);
        let (mapping, offsets, len) = map(3, size_of::<u64>())?;
        let completion = Consumer::new(mapping, offsets, len);
        Ok(Self {
            fill,
            receive,
            send,
            completion,
        })
    }
}
