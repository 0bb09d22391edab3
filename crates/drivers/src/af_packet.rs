//! A network interface beside the kernel's own stack, through a packet socket.
//!
//! Works on any Ethernet interface, real or veth. Frames carry a virtio header (`PACKET_VNET_HDR`), so merged frames of
//! up to 64 KB pass both ways with the state of their checksum; on a veth this is the only way to tell a frame whose
//! checksum was left unfinished on purpose from a damaged one.
//!
//! The kernel goes on receiving the same frames. As long as it does not own our address it stays silent: give the
//! interface no IPv4 address, or at least not ours; [`AfPacketOptions::address`] checks that.

use crate::fd_event::FdEvent;
use crate::interface::{check_name, local_mac};
use crate::pool::{MAX_FRAME_LEN, Pool};
use crate::vnet::{HEADER_LEN, VnetHeader};
use crate::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, ETHERNET_HEADER_LEN, Frame, RxChecksum,
    RxChecksumSupport, RxMeta, RxStats, TxFrame, TxStats, VLAN_TAG_LEN, Waker, sys,
};
use std::cell::Cell;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How often a wait looks whether a link that is down has come back or gone for good: the kernel does not tell.
const DOWN_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How an [`AfPacket`] is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AfPacketOptions {
    /// The IPv4 address that our stack is going to use. Opening fails if the kernel owns it, on whichever interface,
    /// since it would answer in our place. Default, `None`: not checked.
    pub address: Option<Ipv4Addr>,
    /// Our Ethernet address. Default: the interface's.
    pub mac: MacChoice,
    /// Whether checksums and segmentation of frames that we send may be left to the kernel. Received frames say what
    /// was left to us either way. Default: yes.
    pub offloads: bool,
    /// Whether frames that we send pass by the queueing discipline. Then packet captures on this machine do not see
    /// them. Default: no.
    pub qdisc_bypass: bool,
    /// Room for received frames that wait, in bytes. More than `net.core.rmem_max` needs `CAP_NET_ADMIN`; without it
    /// there is less room. Default 8 MiB.
    pub receive_buffer: usize,
    /// Receive buffers kept for reuse, 65 KB each; memory that no frame touches is not used. Default 256.
    pub rx_pool: usize,
}

/// Which Ethernet address a device answers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MacChoice {
    /// The interface's own.
    #[default]
    Interface,
    /// A locally administered one, made from the interface's name. Makes the interface promiscuous while it is open.
    Local,
    /// This one. Makes the interface promiscuous while it is open.
    Fixed([u8; 6]),
}

impl Default for AfPacketOptions {
    fn default() -> Self {
        Self {
            address: None,
            mac: MacChoice::Interface,
            offloads: true,
            qdisc_bypass: false,
            receive_buffer: 8 << 20,
            rx_pool: 256,
        }
    }
}

impl AfPacketOptions {
    /// Sets [`address`](Self::address).
    pub fn address(mut self, address: Ipv4Addr) -> Self {
        self.address = Some(address);
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
    event: FdEvent,
    pool: Pool,
}

impl AfPacket {
    /// Opens the interface. It may be down: the first calls then report [`DeviceError::Down`].
    ///
    /// # Errors
    /// The name cannot be one, or names no Ethernet interface of this network namespace; `CAP_NET_RAW` is missing; the
    /// kernel owns [`AfPacketOptions::address`].
    pub fn open(interface: &str, options: AfPacketOptions) -> Result<Self, DeviceError> {
        check_name(interface)?;
        let system = |what| move |error: io::Error| DeviceError::system(what, interface, &error);
        // The socket has no protocol until it is bound, lest it collects frames of all interfaces meanwhile.
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
        if let Some(address) = options.address {
            refuse_owned(
                address,
                sys::ipv4_addresses().map_err(system("list addresses"))?,
            )?;
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
        let mac = match options.mac {
            MacChoice::Interface => interface_mac,
            MacChoice::Local => local_mac(interface),
            MacChoice::Fixed(mac) => mac,
        };
        if mac != interface_mac {
            sys::packet_promiscuous(socket, index)
                .map_err(system("make the interface promiscuous"))?;
        }
        let mut caps = Capabilities::new(interface);
        caps.mtu = sys::interface_mtu(socket, interface).map_err(system("read the MTU"))?;
        caps.rx_max_frame = MAX_FRAME_LEN;
        caps.rx_checksum = RxChecksumSupport::PerFrame;
        if options.offloads {
            caps.tx_checksum = true;
            caps.tso4_max_bytes = 65_535 + ETHERNET_HEADER_LEN;
            // The virtio type for UDP segments came with Linux 6.2.
            if kernel_is_at_least(6, 2) {
                caps.uso_max_bytes = 65_535 + ETHERNET_HEADER_LEN;
            }
        }
        sys::packet_bind(socket, index).map_err(system("bind"))?;
        let event = FdEvent::new().map_err(system("make an event"))?;
        let link = Link {
            fd,
            name: interface.to_owned(),
            index,
            down: AtomicBool::new(false),
        };
        Ok(Self {
            caps,
            mac,
            receive_buffer,
            link: Arc::new(link),
            event,
            pool: Pool::new(options.rx_pool),
        })
    }

    /// Room for received frames that wait, in bytes as the kernel counts them (buffers and their management); up to
    /// twice of what the options asked for.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer
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
        let Self {
            caps,
            link,
            event,
            pool,
            ..
        } = *self;
        let rx = AfPacketRx {
            link: Arc::clone(&link),
            event,
            pool,
            down_reported: false,
            stats: RxStats::default(),
            kernel_drops: Cell::new(0),
        };
        let tx = AfPacketTx {
            caps,
            link,
            stats: TxStats::default(),
        };
        (Box::new(rx), Box::new(tx))
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

/// Fails if one of `owned` is `address`.
fn refuse_owned(address: Ipv4Addr, owned: Vec<sys::OwnedAddress>) -> Result<(), DeviceError> {
    match owned.into_iter().find(|owned| owned.address == address) {
        Some(sys::OwnedAddress {
            interface,
            prefix_len,
            ..
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

/// The socket and what both halves know about the interface behind it.
#[derive(Debug)]
struct Link {
    fd: OwnedFd,
    name: String,
    index: i32,
    /// One of the halves was told that the link is down. The kernel tells only one of them, and only once.
    down: AtomicBool,
}

/// The state of an interface, asked for after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    Up,
    Down,
    Gone,
}

impl Link {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether the link was down when somebody last looked.
    #[inline]
    fn in_trouble(&self) -> bool {
        // ORDERING: Relaxed, a hint to look closer that orders nothing.
        self.down.load(Relaxed)
    }

    fn report_trouble(&self) {
        self.down.store(true, Relaxed);
    }

    /// Asks the kernel.
    fn look(&self) -> LinkState {
        let state = match sys::interface_name(self.fd(), self.index) {
            Err(_) => LinkState::Gone,
            // It may have been renamed.
            Ok(name) => match sys::interface_is_up(self.fd(), &name) {
                Ok(true) => LinkState::Up,
                Ok(false) => LinkState::Down,
                Err(_) => LinkState::Gone,
            },
        };
        self.down.store(state != LinkState::Up, Relaxed);
        state
    }

    fn down(&self) -> DeviceError {
        DeviceError::Down {
            interface: self.name.clone(),
        }
    }

    fn gone(&self) -> DeviceError {
        DeviceError::Gone {
            interface: self.name.clone(),
        }
    }
}

/// The receiving half of an [`AfPacket`].
#[derive(Debug)]
struct AfPacketRx {
    link: Arc<Link>,
    event: FdEvent,
    pool: Pool,
    down_reported: bool,
    stats: RxStats,
    /// The kernel's count starts anew each time it is read.
    kernel_drops: Cell<u64>,
}

impl AfPacketRx {
    /// Reports a link that is down, once, or gone, always.
    #[cold]
    fn look_at_link(&mut self) -> Result<(), DeviceError> {
        match self.link.look() {
            LinkState::Up => {
                self.down_reported = false;
                Ok(())
            }
            LinkState::Down if self.down_reported => Ok(()),
            LinkState::Down => {
                self.down_reported = true;
                Err(self.link.down())
            }
            LinkState::Gone => Err(self.link.gone()),
        }
    }
}

impl DeviceRx for AfPacketRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        if self.link.in_trouble() {
            self.look_at_link()?;
        }
        let mut claimed = 0;
        // A frame that is dropped counts too, so that a flood of them cannot keep us here.
        for _ in 0..max {
            let mut header = [0; HEADER_LEN];
            let mut buffer = self.pool.take();
            // Room before the frame for a VLAN tag.
            let result =
                sys::receive_frame(self.link.fd(), &mut header, &mut buffer[VLAN_TAG_LEN..]);
            let received = match result {
                Ok(received) => received,
                Err(error) => {
                    self.pool.put(buffer);
                    match error.raw_os_error() {
                        Some(libc::EINTR) => continue,
                        Some(libc::EAGAIN) => break,
                        // The kernel cannot express this frame in a virtio header and has dropped it.
                        Some(libc::EINVAL) => {
                            self.stats.truncated += 1;
                            continue;
                        }
                        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                            self.link.report_trouble();
                            if claimed == 0 {
                                self.look_at_link()?;
                            }
                            break;
                        }
                        // No memory in the kernel just now.
                        _ => break,
                    }
                }
            };
            let fits = (ETHERNET_HEADER_LEN..=buffer.len() - VLAN_TAG_LEN).contains(&received.len);
            let (Ok(meta), true) = (VnetHeader::from_bytes(&header).rx_meta(), fits) else {
                self.pool.put(buffer);
                self.stats.truncated += 1;
                continue;
            };
            let frame = match received.vlan {
                None => Frame::from_buffer(buffer, VLAN_TAG_LEN as u16, received.len, meta),
                Some((protocol, control)) => {
                    let meta = insert_vlan_tag(&mut buffer, protocol, control, meta);
                    Frame::from_buffer(buffer, 0, received.len + VLAN_TAG_LEN, meta)
                }
            };
            self.stats.bytes += frame.len() as u64;
            out.push(frame);
            claimed += 1;
        }
        self.stats.frames += claimed as u64;
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        self.pool.release(frames);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        let mut timeout = timeout;
        if self.link.in_trouble() {
            self.look_at_link()?;
            if self.link.in_trouble() {
                timeout = Some(timeout.map_or(DOWN_CHECK_INTERVAL, |timeout| {
                    timeout.min(DOWN_CHECK_INTERVAL)
                }));
            }
        }
        match self.event.wait(self.link.fd(), timeout) {
            Ok(false) => Ok(()),
            Ok(true) => {
                // Until it is fetched, every further wait would return at once.
                match sys::socket_error(self.link.fd()) {
                    Ok(0) => Ok(()),
                    _ => {
                        self.link.report_trouble();
                        self.look_at_link()
                    }
                }
            }
            Err(error) => Err(DeviceError::system("wait", &self.link.name, &error)),
        }
    }

    fn waker(&self) -> Waker {
        self.event.waker()
    }

    fn stats(&self) -> RxStats {
        let new = sys::packet_drops(self.link.fd()).unwrap_or(0);
        self.kernel_drops.set(self.kernel_drops.get() + new);
        RxStats {
            dropped: self.kernel_drops.get(),
            pool_exhausted: self.pool.exhausted(),
            wakes: self.event.wakes(),
            ..self.stats
        }
    }
}

/// Puts back the VLAN tag that the kernel has taken out. The frame begins `VLAN_TAG_LEN` bytes into the buffer before,
/// and at its start afterwards.
fn insert_vlan_tag(buffer: &mut [u8], protocol: u16, control: u16, mut meta: RxMeta) -> RxMeta {
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

/// The sending half of an [`AfPacket`].
#[derive(Debug)]
struct AfPacketTx {
    caps: Capabilities,
    link: Arc<Link>,
    stats: TxStats,
}

impl DeviceTx for AfPacketTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        let mut taken = 0;
        let mut old_error_fetched = false;
        while let Some(frame) = frames.get(taken) {
            if !self.caps.admits(frame) {
                self.stats.dropped += 1;
                taken += 1;
                continue;
            }
            let header = VnetHeader::for_transmit(&frame.meta).to_bytes();
            let Err(error) = sys::send_frame(self.link.fd(), &header, frame.head, frame.payload)
            else {
                self.stats.frames += 1;
                self.stats.bytes += frame.len() as u64;
                taken += 1;
                continue;
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                    self.stats.busy += 1;
                    break;
                }
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                    self.link.report_trouble();
                    if taken > 0 {
                        break;
                    }
                    match self.link.look() {
                        LinkState::Gone => return Err(self.link.gone()),
                        LinkState::Down => return Err(self.link.down()),
                        // The error was left over from before the link came back.
                        LinkState::Up if !old_error_fetched => old_error_fetched = true,
                        LinkState::Up => break,
                    }
                }
                // Too long for a link whose MTU has changed, or malformed.
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
        let ours = Ipv4Addr::new(10, 0, 0, 1);
        let owned = |address| sys::OwnedAddress {
            interface: "eth1".to_owned(),
            address,
            prefix_len: 24,
        };
        assert_eq!(
            refuse_owned(ours, vec![owned(Ipv4Addr::new(10, 0, 0, 2))]),
            Ok(())
        );
        let error = refuse_owned(ours, vec![owned(Ipv4Addr::LOCALHOST), owned(ours)]).unwrap_err();
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
