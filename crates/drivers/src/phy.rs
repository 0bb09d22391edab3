//! Adapters between this crate's devices and smoltcp's, in both directions (feature `smoltcp`).
//!
//! [`ToPhy`] lets smoltcp use any device of this crate; [`FromPhy`] lets our stack use any device
//! of smoltcp, for Ethernet or IP. [`FromPhy::new`] takes devices that are `Send`; [`FromPhy::with`]
//! creates other devices, such as smoltcp's `TunTapInterface` and `RawSocket`, on a separate
//! thread. smoltcp's device trait has neither merged frames nor checksum state, so both directions
//! have a cost: unfinished checksums are finished in software, and each frame is copied.

mod thread;

pub use thread::PhyThread;

use crate::ip_link::ip_frame;
use crate::waker::Event;
use crate::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, ETHERNET_HEADER_LEN, Frame,
    IP_MAC, LinkType, RxChecksum, RxStats, TxFrame, TxStats, checked, complete_checksum, ip_header,
};
use ::smoltcp::phy::{self, DeviceCapabilities, Medium, RxToken as _, TxToken as _};
use ::smoltcp::time;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Frames that may wait for a busy device. With this many, smoltcp gets no send token.
const BACKLOG: usize = 64;

/// How often a smoltcp device is polled during a wait; it cannot wake a thread.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Adapts a device of this crate to smoltcp.
pub struct ToPhy {
    rx: Box<dyn DeviceRx>,
    tx: Sender,
    capabilities: Capabilities,
    claimed: VecDeque<Frame>,
    batch: Vec<Frame>,
}

struct Sender {
    tx: Box<dyn DeviceTx>,
    link: LinkType,
    /// Frames for which the device had no room.
    backlog: VecDeque<Vec<u8>>,
    error: Option<DeviceError>,
}

impl fmt::Debug for ToPhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToPhy")
            .field("capabilities", &self.capabilities)
            .finish_non_exhaustive()
    }
}

impl ToPhy {
    /// Takes a device over for smoltcp.
    pub fn new(device: impl Device + 'static) -> Self {
        let capabilities = device.capabilities();
        let (rx, tx) = Box::new(device).split();
        Self {
            rx,
            tx: Sender {
                tx,
                link: capabilities.link,
                backlog: VecDeque::new(),
                error: None,
            },
            capabilities,
            claimed: VecDeque::new(),
            batch: Vec::new(),
        }
    }

    /// Returns the error that the device has reported since the last call. smoltcp's trait has no
    /// place for it.
    pub fn take_error(&mut self) -> Option<DeviceError> {
        self.tx.error.take()
    }

    /// Blocks until a frame may be ready or the timeout is over; see [`DeviceRx::wait`].
    ///
    /// # Errors
    /// As for [`DeviceRx::wait`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        if self.claimed.is_empty() {
            self.rx.wait(timeout)
        } else {
            Ok(())
        }
    }
}

impl Sender {
    /// Sends waiting frames. Returns whether there is room for more.
    fn flush(&mut self) -> bool {
        while let Some(frame) = self.backlog.front() {
            match self.tx.transmit(&[TxFrame::new(frame)]) {
                Ok(0) => break,
                Ok(_) => {
                    self.backlog.pop_front();
                }
                Err(error) => {
                    self.error = Some(error);
                    break;
                }
            }
        }
        self.backlog.len() < BACKLOG
    }
}

impl phy::Device for ToPhy {
    type RxToken<'a> = ReceivedToken<'a>;
    type TxToken<'a> = SendToken<'a>;

    fn receive(&mut self, _: time::Instant) -> Option<(ReceivedToken<'_>, SendToken<'_>)> {
        if !self.tx.flush() {
            return None;
        }
        if self.claimed.is_empty() {
            if let Err(error) =
                checked::claim(&mut *self.rx, self.capabilities.max_batch, &mut self.batch)
            {
                self.tx.error = Some(error);
            }
            self.claimed.extend(self.batch.drain(..));
        }
        if self.claimed.is_empty() {
            return None;
        }
        let received = ReceivedToken {
            link: self.capabilities.link,
            claimed: &mut self.claimed,
            batch: &mut self.batch,
            rx: &mut *self.rx,
        };
        Some((received, SendToken(&mut self.tx)))
    }

    fn transmit(&mut self, _: time::Instant) -> Option<SendToken<'_>> {
        self.tx.flush().then_some(SendToken(&mut self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        (capabilities.medium, capabilities.max_transmission_unit) = match self.capabilities.link {
            LinkType::Ip => (Medium::Ip, self.capabilities.mtu),
            LinkType::Ethernet => {
                let longest = self.capabilities.mtu.saturating_add(ETHERNET_HEADER_LEN);
                (Medium::Ethernet, longest)
            }
        };
        capabilities.max_burst_size = Some(self.capabilities.max_batch);
        capabilities
    }
}

/// A frame for smoltcp. If the token is dropped, the frame stays.
pub struct ReceivedToken<'a> {
    link: LinkType,
    claimed: &'a mut VecDeque<Frame>,
    batch: &'a mut Vec<Frame>,
    rx: &'a mut dyn DeviceRx,
}

impl fmt::Debug for ReceivedToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivedToken").finish_non_exhaustive()
    }
}

impl phy::RxToken for ReceivedToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let Some(mut frame) = self.claimed.pop_front() else {
            unreachable!("there is a token only if there is a frame");
        };
        if let RxChecksum::Partial { start, offset } = frame.meta.checksum {
            complete_checksum(frame.bytes_mut(), start, offset);
        }
        let result = f(bare(self.link, frame.bytes()));
        self.batch.push(frame);
        checked::release(self.rx, self.batch);
        result
    }
}

/// Room for a frame from smoltcp.
pub struct SendToken<'a>(&'a mut Sender);

impl fmt::Debug for SendToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendToken").finish_non_exhaustive()
    }
}

impl phy::TxToken for SendToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let begin = ETHERNET_HEADER_LEN * usize::from(self.0.link == LinkType::Ip);
        let mut frame = vec![0; begin + len];
        let result = f(&mut frame[begin..]);
        if begin > 0 {
            // The device drops a frame with an empty header.
            let header = ip_header(&frame[begin..]).unwrap_or_default();
            frame[..begin].copy_from_slice(&header);
        }
        self.0.backlog.push_back(frame);
        self.0.flush();
        result
    }
}

/// The part of a frame that smoltcp's devices carry.
fn bare(link: LinkType, frame: &[u8]) -> &[u8] {
    match link {
        LinkType::Ethernet => frame,
        LinkType::Ip => frame.get(ETHERNET_HEADER_LEN..).unwrap_or_default(),
    }
}

/// The frame that a device of smoltcp received; `None`: it is no packet of IP, and nothing else
/// passes here.
fn frame_of(link: LinkType, bytes: &[u8]) -> Option<Frame> {
    match link {
        LinkType::Ethernet => Some(Frame::from_bytes(bytes)),
        LinkType::Ip => ip_frame(bytes),
    }
}

/// Adapts an Ethernet or IP device of smoltcp to our stack. The device is polled every millisecond while
/// a thread waits, since it cannot wake a thread.
#[derive(Debug)]
pub struct FromPhy<P> {
    phy: P,
    mac: [u8; 6],
}

impl<P: phy::Device + Send + 'static> FromPhy<P> {
    /// Takes over a device. `mac` is its Ethernet address, which smoltcp's devices do not have;
    /// one for IP needs none, and ignores it.
    ///
    /// # Panics
    /// If it is a device for IEEE 802.15.4.
    pub fn new(phy: P, mac: [u8; 6]) -> Self {
        let link = link(&phy.capabilities());
        let link = link.expect("a device for Ethernet or IP");
        Self {
            phy,
            mac: mac_of(link, mac),
        }
    }
}

impl<P: phy::Device + Send + 'static> Device for FromPhy<P> {
    fn capabilities(&self) -> Capabilities {
        capabilities(&self.phy.capabilities())
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        let caps = self.capabilities();
        let shared = Arc::new(PhyShared {
            phy: Mutex::new(self.phy),
            link: caps.link,
            start: Instant::now(),
        });
        let rx = PhyRx {
            shared: Arc::clone(&shared),
            found: None,
            event: Arc::new(Event::default()),
            stats: RxStats::default(),
        };
        let tx = PhyTx {
            shared,
            caps,
            stats: TxStats::default(),
        };
        (Box::new(rx), Box::new(tx))
    }
}

/// The link of a smoltcp device; `None` if there is no such link here.
fn link(theirs: &DeviceCapabilities) -> Option<LinkType> {
    match theirs.medium {
        Medium::Ethernet => Some(LinkType::Ethernet),
        Medium::Ip => Some(LinkType::Ip),
        #[allow(unreachable_patterns, reason = "features of smoltcp add media")]
        _ => None,
    }
}

fn mac_of(link: LinkType, mac: [u8; 6]) -> [u8; 6] {
    match link {
        LinkType::Ethernet => mac,
        LinkType::Ip => IP_MAC,
    }
}

/// The capabilities of a smoltcp device.
fn capabilities(theirs: &DeviceCapabilities) -> Capabilities {
    let mut caps = Capabilities::new("smoltcp");
    caps.link = link(theirs).unwrap_or_default();
    let longest = theirs.max_transmission_unit;
    (caps.mtu, caps.rx_max_frame) = match caps.link {
        LinkType::Ethernet => (longest.saturating_sub(ETHERNET_HEADER_LEN), longest),
        LinkType::Ip => (longest, longest.saturating_add(ETHERNET_HEADER_LEN)),
    };
    if let Some(burst) = theirs.max_burst_size {
        caps.max_batch = burst.max(1);
    }
    caps
}

/// Both halves share the device, since smoltcp's devices cannot be divided.
#[derive(Debug)]
struct PhyShared<P> {
    phy: Mutex<P>,
    link: LinkType,
    start: Instant,
}

impl<P> PhyShared<P> {
    fn lock(&self) -> MutexGuard<'_, P> {
        self.phy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> time::Instant {
        time::Instant::from_micros(self.start.elapsed().as_micros() as i64)
    }
}

#[derive(Debug)]
struct PhyRx<P> {
    shared: Arc<PhyShared<P>>,
    /// A frame found during a wait.
    found: Option<Frame>,
    event: Arc<Event>,
    stats: RxStats,
}

impl<P: phy::Device> PhyRx<P> {
    fn next(&mut self) -> Option<Frame> {
        if let Some(frame) = self.found.take() {
            return Some(frame);
        }
        let now = self.shared.now();
        let mut phy = self.shared.lock();
        let (token, _) = phy.receive(now)?;
        let frame = token.consume(|bytes| frame_of(self.shared.link, bytes));
        self.stats.truncated += u64::from(frame.is_none());
        frame
    }
}

impl<P: phy::Device + Send> DeviceRx for PhyRx<P> {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let mut claimed = 0;
        while claimed < max {
            let Some(frame) = self.next() else { break };
            self.stats.bytes += frame.len() as u64;
            out.push(frame);
            claimed += 1;
        }
        self.stats.frames += claimed as u64;
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        frames.clear();
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        let begin = Instant::now();
        let wakes = self.event.wakes();
        loop {
            self.found = self.next();
            let left = timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
            let step = match (&self.found, left) {
                (Some(_), _) => Duration::ZERO,
                (None, left) => left.map_or(POLL_INTERVAL, |left| left.min(POLL_INTERVAL)),
            };
            self.event.wait(Some(step), || false);
            let over = left.is_some_and(|left| left <= step);
            if self.found.is_some() || self.event.wakes() > wakes || over {
                return Ok(());
            }
        }
    }

    fn waker(&self) -> DeviceWaker {
        let event = Arc::clone(&self.event);
        DeviceWaker::new(move || event.wake())
    }

    fn stats(&self) -> RxStats {
        RxStats {
            wakes: self.event.wakes(),
            ..self.stats
        }
    }
}

#[derive(Debug)]
struct PhyTx<P> {
    shared: Arc<PhyShared<P>>,
    caps: Capabilities,
    stats: TxStats,
}

impl<P: phy::Device + Send> DeviceTx for PhyTx<P> {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        let mut phy = self.shared.lock();
        for (taken, frame) in frames.iter().enumerate() {
            if !self.caps.admits(frame) {
                self.stats.dropped += 1;
                continue;
            }
            let Some(token) = phy.transmit(self.shared.now()) else {
                self.stats.busy += 1;
                return Ok(taken);
            };
            match self.caps.link {
                LinkType::Ethernet => token.consume(frame.len(), |buffer| frame.copy_to(buffer)),
                LinkType::Ip => {
                    let packet = TxFrame {
                        head: bare(LinkType::Ip, frame.head),
                        ..*frame
                    };
                    token.consume(packet.len(), |buffer| packet.copy_to(buffer));
                }
            }
            self.stats.frames += 1;
            self.stats.bytes += frame.len() as u64;
        }
        Ok(frames.len())
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}
