//! The other end of a virtual Ethernet interface of this kernel.
//!
//! The kernel's stack is the peer: the frames that it sends on the interface arrive here, and it
//! receives the frames that are sent here. Frames carry a virtio header, so both sides pass TCP
//! data in pieces of up to 64 KB and never compute a checksum.
//!
//! ```console
//! $ sudo ip tuntap add dev tap0 mode tap user $USER
//! $ sudo ip addr add 10.0.0.1/24 dev tap0
//! $ sudo ip link set tap0 up
//! ```

use crate::af_packet::refuse_owned;
use crate::fd_event::FdEvent;
use crate::interface::{check_name, local_mac};
use crate::pool::{MAX_FRAME_LEN, Pool};
use crate::vnet::{HEADER_LEN, HEADER_LEN_WITH_COUNT, VnetHeader};
use crate::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, ETHERNET_HEADER_LEN, Frame,
    RxChecksumSupport, RxStats, TxFrame, TxStats, sys,
};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

const TCP_OFFLOADS: u32 =
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;

/// Bytes read for the shortest frame.
const SHORTEST: usize = HEADER_LEN_WITH_COUNT + ETHERNET_HEADER_LEN;

/// Sets of offloads that the kernel may use, best first. The UDP ones came with Linux 6.2.
const OFFLOADS: [u32; 4] = [
    TCP_OFFLOADS | libc::TUN_F_USO4 | libc::TUN_F_USO6,
    TCP_OFFLOADS,
    libc::TUN_F_CSUM,
    0,
];

/// Options for opening a [`Tap`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TapOptions {
    /// Whether checksums and segmentation are left to the other side, both ways. Default: yes.
    pub offloads: bool,
    /// Whether frames longer than the MTU pass, for the other side to divide. Requires
    /// [`offloads`](Self::offloads). Overrides the settings of `ethtool -K`. Default: yes.
    pub segmentation: bool,
    /// Whether we may send frames longer than the MTU even without
    /// [`segmentation`](Self::segmentation). Requires [`offloads`](Self::offloads). The kernel
    /// takes such a frame in one system call, as if a network card had merged it; otherwise it
    /// takes one call for each segment and wakes its receiver for each. No setting of the
    /// interface can prevent that. Default: no.
    pub merged: bool,
    /// Our Ethernet address. Default, `None`: a locally administered address derived from the
    /// interface's name. It differs from the interface's address, which is the kernel's.
    pub mac: Option<[u8; 6]>,
    /// Receive buffers kept for reuse, 65 KB each. Pages that no frame touches take no memory.
    /// Default 256.
    pub rx_pool: usize,
}

impl Default for TapOptions {
    fn default() -> Self {
        Self {
            offloads: true,
            segmentation: true,
            merged: false,
            mac: None,
            rx_pool: 256,
        }
    }
}

impl TapOptions {
    /// Sets [`offloads`](Self::offloads).
    pub fn offloads(mut self, offloads: bool) -> Self {
        self.offloads = offloads;
        self
    }

    /// Sets [`segmentation`](Self::segmentation).
    pub fn segmentation(mut self, segmentation: bool) -> Self {
        self.segmentation = segmentation;
        self
    }

    /// Sets [`merged`](Self::merged).
    pub fn merged(mut self, merged: bool) -> Self {
        self.merged = merged;
        self
    }

    /// Sets [`mac`](Self::mac).
    pub fn mac(mut self, mac: [u8; 6]) -> Self {
        self.mac = Some(mac);
        self
    }

    /// Sets [`rx_pool`](Self::rx_pool).
    pub fn rx_pool(mut self, frames: usize) -> Self {
        self.rx_pool = frames;
        self
    }

    /// Opens the interface `name` with these options; see [`Tap::open`].
    ///
    /// # Errors
    /// As for [`Tap::open`].
    pub fn open(self, name: &str) -> Result<Tap, DeviceError> {
        Tap::attach(name, &self, 0)
    }
}

/// The other end of a TAP interface.
///
/// The interface's MTU is read once, when the device is opened.
#[derive(Debug)]
pub struct Tap {
    caps: Capabilities,
    mac: [u8; 6],
    fd: Arc<OwnedFd>,
    event: FdEvent,
    pool: Pool,
}

impl Tap {
    /// Opens the interface `name`, with all offloads that the kernel supports. An interface that
    /// does not exist is created, and lives as long as the device; it has no address and is down
    /// until someone configures it.
    ///
    /// # Errors
    /// The name is invalid; creating an interface needs `CAP_NET_ADMIN`, and opening one is
    /// reserved to its owner; another process has it open; the kernel does not support TAP.
    pub fn open(name: &str) -> Result<Self, DeviceError> {
        Self::attach(name, &TapOptions::default(), 0)
    }

    /// The default options, to change before opening:
    /// `Tap::options().offloads(false).open("tap0")`.
    pub fn options() -> TapOptions {
        TapOptions::default()
    }

    /// Opens several queues of the interface `name`, one device each. The kernel distributes the
    /// frames it sends by flow, and keeps a flow with the device that last sent a frame of it. All
    /// devices have the same Ethernet address.
    ///
    /// # Errors
    /// As for [`open`](Self::open); also if the interface exists and was not created for several
    /// queues (`ip tuntap add ... multi_queue`).
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn open_queues(
        name: &str,
        options: &TapOptions,
        count: usize,
    ) -> Result<Vec<Self>, DeviceError> {
        assert!(count > 0, "at least one device");
        let open = |_| Self::attach(name, options, libc::IFF_MULTI_QUEUE);
        (0..count).map(open).collect()
    }

    fn attach(name: &str, options: &TapOptions, flags: i32) -> Result<Self, DeviceError> {
        check_name(name)?;
        let fd = sys::open_tun().map_err(|error| open_error(&error))?;
        let flags = flags | libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        sys::tun_attach(fd.as_fd(), name, flags).map_err(|error| attach_error(name, &error))?;
        let system = |what| move |error: io::Error| DeviceError::system(what, name, &error);
        sys::tun_set_header_len(fd.as_fd(), HEADER_LEN_WITH_COUNT as i32)
            .map_err(system("set the virtio header's length"))?;
        let accepted = OFFLOADS.into_iter().find(|&offloads| {
            (options.offloads || offloads == 0)
                && (options.segmentation || offloads & !libc::TUN_F_CSUM == 0)
                && sys::tun_set_offloads(fd.as_fd(), offloads).is_ok()
        });
        let accepts = |offload| accepted.unwrap_or(0) & offload != 0;
        // The accepted offloads concern frames from the kernel only. The kernel itself takes any
        // frame that its TCP would send.
        let merged = options.merged && accepts(libc::TUN_F_CSUM);

        let socket = sys::control_socket().map_err(system("open a socket"))?;
        let mut caps = Capabilities::new(name);
        caps.mtu = sys::interface_mtu(socket.as_fd(), name).map_err(system("read the MTU"))?;
        caps.rx_max_frame = MAX_FRAME_LEN;
        if accepts(libc::TUN_F_CSUM) {
            caps.rx_checksum = RxChecksumSupport::PerFrame;
            caps.tx_checksum = true;
        }
        let longest = |accepted| {
            if accepted {
                65_535 + ETHERNET_HEADER_LEN
            } else {
                0
            }
        };
        caps.tso4_max_bytes = longest(merged || accepts(libc::TUN_F_TSO4));
        caps.tso6_max_bytes = longest(merged || accepts(libc::TUN_F_TSO6));
        caps.uso_max_bytes = longest(accepts(libc::TUN_F_USO4));
        let event = FdEvent::new().map_err(system("make an event"))?;
        let mac = options.mac.unwrap_or_else(|| local_mac(name));
        Ok(Self {
            caps,
            mac,
            fd: Arc::new(fd),
            event,
            pool: Pool::new(options.rx_pool),
        })
    }
}

/// Readable while a frame can be claimed. A program that sleeps in `poll` or `epoll` instead of
/// [`DeviceRx::wait`] clones the descriptor ([`BorrowedFd::try_clone_to_owned`]) before it gives
/// the device to a stack.
impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Device for Tap {
    fn capabilities(&self) -> Capabilities {
        self.caps.clone()
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Checks the kernel's addresses on this interface, since its end is another host on the link.
    fn check_address(&self, address: IpAddr) -> Result<(), DeviceError> {
        let name = &self.caps.name;
        let owned = sys::addresses();
        let mut owned =
            owned.map_err(|error| DeviceError::system("read addresses", name, &error))?;
        owned.retain(|owned| owned.interface == *name);
        refuse_owned(&[address], owned)
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        let Self {
            caps,
            fd,
            event,
            pool,
            ..
        } = *self;
        let rx = TapRx::new(&caps.name, Arc::clone(&fd), event, pool);
        let tx = TapTx {
            caps,
            fd,
            stats: TxStats::default(),
        };
        (Box::new(rx), Box::new(tx))
    }
}

fn open_error(error: &io::Error) -> DeviceError {
    let errno = error.raw_os_error().unwrap_or(0);
    match errno {
        libc::EACCES | libc::EPERM => DeviceError::Privilege {
            what: "open /dev/net/tun",
            capability: "read and write access to it",
            command: "sudo chmod a+rw /dev/net/tun".to_owned(),
            errno,
        },
        libc::ENOENT | libc::ENODEV | libc::ENXIO => DeviceError::Unsupported {
            what: "open /dev/net/tun",
            hint: "try: sudo modprobe tun",
            errno,
        },
        _ => DeviceError::System {
            what: "open",
            interface: "/dev/net/tun".to_owned(),
            errno,
        },
    }
}

fn attach_error(name: &str, error: &io::Error) -> DeviceError {
    let errno = error.raw_os_error().unwrap_or(0);
    let interface = name.to_owned();
    match errno {
        libc::EPERM | libc::EACCES => DeviceError::Privilege {
            what: "attach to a TAP interface",
            capability: "CAP_NET_ADMIN, or an interface made for this user",
            command: format!("sudo ip tuntap add dev {name} mode tap user $USER"),
            errno,
        },
        libc::EBUSY => DeviceError::Busy { interface },
        libc::EINVAL => DeviceError::Unsuitable {
            interface,
            reason: "it exists and is no TAP, or has one queue instead of several or the other way round; \
                     see: ip -d link show",
        },
        _ => DeviceError::System {
            what: "attach to a TAP interface",
            interface,
            errno,
        },
    }
}

/// The receiving half of a [`Tap`].
#[derive(Debug)]
pub(crate) struct TapRx {
    name: String,
    fd: Arc<OwnedFd>,
    event: FdEvent,
    pool: Pool,
    stats: RxStats,
}

impl TapRx {
    pub(crate) fn new(name: &str, fd: Arc<OwnedFd>, event: FdEvent, pool: Pool) -> Self {
        Self {
            name: name.to_owned(),
            fd,
            event,
            pool,
            stats: RxStats::default(),
        }
    }

    fn gone(&self) -> DeviceError {
        DeviceError::Gone {
            interface: self.name.clone(),
        }
    }
}

impl DeviceRx for TapRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let mut claimed = 0;
        // Dropped frames count as well, so that a flood of them cannot keep the loop running.
        for _ in 0..max {
            let mut buffer = self.pool.take();
            let len = match sys::read_frame(self.fd.as_fd(), &mut buffer) {
                Ok(len) => len,
                Err(error) => {
                    self.pool.put(buffer);
                    match error.raw_os_error() {
                        Some(libc::EINTR) => continue,
                        Some(libc::EBADFD) if claimed == 0 => return Err(self.gone()),
                        // There is no frame, or the kernel has no memory for it at the moment.
                        _ => break,
                    }
                }
            };
            let header = buffer.first_chunk::<HEADER_LEN>();
            let meta = header.map(|header| VnetHeader::from_bytes(header).rx_meta());
            match meta {
                Some(Ok(meta)) if (SHORTEST..buffer.len()).contains(&len) => {
                    let len = len - HEADER_LEN_WITH_COUNT;
                    let start = HEADER_LEN_WITH_COUNT as u16;
                    out.push(Frame::from_buffer(buffer, start, len, meta));
                    self.stats.bytes += len as u64;
                    claimed += 1;
                }
                _ => {
                    self.pool.put(buffer);
                    self.stats.truncated += 1;
                }
            }
        }
        self.stats.frames += claimed as u64;
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        self.pool.release(frames);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        match self.event.wait(self.fd.as_fd(), timeout) {
            Ok(false) => Ok(()),
            Ok(true) => Err(self.gone()),
            Err(error) => Err(DeviceError::system("wait", &self.name, &error)),
        }
    }

    fn waker(&self) -> DeviceWaker {
        self.event.waker()
    }

    fn stats(&self) -> RxStats {
        RxStats {
            pool_exhausted: self.pool.exhausted(),
            wakes: self.event.wakes(),
            ..self.stats
        }
    }
}

/// The sending half of a [`Tap`].
#[derive(Debug)]
struct TapTx {
    caps: Capabilities,
    fd: Arc<OwnedFd>,
    stats: TxStats,
}

impl DeviceTx for TapTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        let mut taken = 0;
        while let Some(frame) = frames.get(taken) {
            if !self.caps.admits(frame) {
                self.stats.dropped += 1;
                taken += 1;
                continue;
            }
            let mut header = [0; HEADER_LEN_WITH_COUNT];
            header[..HEADER_LEN].copy_from_slice(&VnetHeader::for_transmit(&frame.meta).to_bytes());
            let Err(error) = sys::write_frame(self.fd.as_fd(), &header, frame.head, frame.payload)
            else {
                self.stats.frames += 1;
                self.stats.bytes += frame.len() as u64;
                taken += 1;
                continue;
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOMEM | libc::ENOBUFS) => {
                    self.stats.busy += 1;
                    break;
                }
                Some(libc::EIO | libc::EBADFD) if taken > 0 => break,
                Some(libc::EIO) => {
                    return Err(DeviceError::Down {
                        interface: self.caps.name.clone(),
                    });
                }
                Some(libc::EBADFD) => {
                    return Err(DeviceError::Gone {
                        interface: self.caps.name.clone(),
                    });
                }
                // The kernel considers the frame malformed.
                _ => {
                    self.stats.dropped += 1;
                    taken += 1;
                }
            }
        }
        Ok(taken)
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_name_is_refused_before_anything_is_opened() {
        assert!(matches!(
            Tap::open("not a name"),
            Err(DeviceError::BadName { .. })
        ));
    }

    #[test]
    fn a_missing_privilege_names_the_command_that_helps() {
        let error = attach_error("tap7", &io::Error::from_raw_os_error(libc::EPERM)).to_string();
        assert!(
            error.contains("CAP_NET_ADMIN") && error.contains("ip tuntap add dev tap7"),
            "{error}"
        );
        let error = open_error(&io::Error::from_raw_os_error(libc::ENOENT)).to_string();
        assert!(error.contains("modprobe tun"), "{error}");
    }
}
