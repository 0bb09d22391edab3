//! Raw frames on any platform, through the crate `pnet_datalink`: a baseline for comparisons, and
//! a last resort.
//!
//! The crate supports neither merged frames nor checksum state, so a peer on a veth has to finish
//! its checksums (`ethtool -K veth0 tx off`). Each frame costs two system calls and a copy in each
//! direction. A separate thread receives, since the crate cannot be polled without waiting, nor
//! woken. The interface's own frames come back, and are filtered out by their source address.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use pnet_datalink::{Channel, Config, DataLinkReceiver, DataLinkSender, NetworkInterface};

use crate::waker::Event;
use crate::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, ETHERNET_HEADER_LEN, Frame,
    RxStats, TxFrame, TxStats, VLAN_TAG_LEN,
};

/// Most frames that wait to be claimed; further ones are dropped and counted.
const QUEUE: usize = 4096;
/// The crate silently cuts longer frames; its default is 4096.
const BUFFER: usize = 65_536 + ETHERNET_HEADER_LEN + VLAN_TAG_LEN;
/// How often the receiving thread checks whether it should end.
const READ_TIMEOUT: Duration = Duration::from_millis(20);
/// Pause of the receiving thread while the link is down.
const DOWN: Duration = Duration::from_millis(100);

/// A network interface, opened through `pnet_datalink`.
///
/// The interface's MTU is read once, when the device is opened; on other systems than Linux it is
/// assumed to be 1500.
pub struct Pnet {
    caps: Capabilities,
    mac: [u8; 6],
    rx: PnetRx,
    tx: PnetTx,
}

/// State that the receiving thread fills for the receiving half.
struct PnetShared {
    name: String,
    frames: ArrayQueue<Frame>,
    event: Event,
    over: AtomicBool,
    dropped: AtomicU64,
    truncated: AtomicU64,
    trouble: Mutex<Option<DeviceError>>,
}

impl PnetShared {
    fn trouble(&self) -> MutexGuard<'_, Option<DeviceError>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports a link that is down once, and one that is gone at every call.
    fn check(&self) -> Result<(), DeviceError> {
        let mut trouble = self.trouble();
        match &*trouble {
            None => Ok(()),
            Some(gone @ DeviceError::Gone { .. }) => Err(gone.clone()),
            Some(_) => trouble.take().map_or(Ok(()), Err),
        }
    }
}

fn find(name: &str) -> Option<NetworkInterface> {
    let mut interfaces = pnet_datalink::interfaces().into_iter();
    interfaces.find(|interface| interface.name == name)
}

/// Distinguishes a link that is down from one that is gone with its interface.
fn trouble(name: &str) -> DeviceError {
    let interface = name.to_owned();
    match find(name) {
        Some(_) => DeviceError::Down { interface },
        None => DeviceError::Gone { interface },
    }
}

impl Pnet {
    /// Opens the interface.
    ///
    /// # Errors
    /// There is no interface of this name, it is not Ethernet, or a privilege is missing.
    pub fn open(name: &str) -> Result<Self, DeviceError> {
        let interface = find(name).ok_or_else(|| DeviceError::NoSuchInterface {
            interface: name.to_owned(),
        })?;
        let mac = interface
            .mac
            .filter(|_| !interface.is_loopback())
            .ok_or_else(|| DeviceError::Unsuitable {
                interface: name.to_owned(),
                reason: "it is no Ethernet",
            })?
            .octets();
        let config = Config {
            read_buffer_size: BUFFER,
            write_buffer_size: BUFFER,
            read_timeout: Some(READ_TIMEOUT),
            write_timeout: Some(Duration::ZERO),
            promiscuous: false,
            ..Config::default()
        };
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => DeviceError::Privilege {
                what: "open a raw channel",
                capability: "CAP_NET_RAW",
                command: "sudo setcap cap_net_raw+ep PROGRAM".to_owned(),
                errno: error.raw_os_error().unwrap_or(0),
            },
            _ => DeviceError::System {
                what: "open a raw channel",
                interface: name.to_owned(),
                errno: error.raw_os_error().unwrap_or(0),
            },
        };
        let channel = pnet_datalink::channel(&interface, config).map_err(failed)?;
        let Channel::Ethernet(sender, receiver) = channel else {
            return Err(DeviceError::Unsuitable {
                interface: name.to_owned(),
                reason: "it gives no Ethernet frames",
            });
        };
        let mut caps = Capabilities::new(name);
        caps.mtu = mtu(name)?;
        caps.rx_max_frame = BUFFER;
        let shared = Arc::new(PnetShared {
            name: name.to_owned(),
            frames: ArrayQueue::new(QUEUE),
            event: Event::default(),
            over: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            truncated: AtomicU64::new(0),
            trouble: Mutex::new(None),
        });
        let receiving = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name(format!("pnet-{name}"))
            .spawn(move || receive(&receiving, receiver, mac))
            .map_err(failed)?;
        let stats = RxStats::default();
        Ok(Self {
            tx: PnetTx {
                caps: caps.clone(),
                sender,
                frame: Vec::new(),
                stats: TxStats::default(),
            },
            rx: PnetRx {
                shared,
                thread: Some(thread),
                stats,
            },
            caps,
            mac,
        })
    }
}

#[cfg(target_os = "linux")]
fn mtu(name: &str) -> Result<usize, DeviceError> {
    use std::os::fd::AsFd;
    let mtu = crate::sys::control_socket()
        .and_then(|socket| crate::sys::interface_mtu(socket.as_fd(), name));
    mtu.map_err(|error| DeviceError::system("read the MTU", name, &error))
}

#[cfg(not(target_os = "linux"))]
fn mtu(_: &str) -> Result<usize, DeviceError> {
    Ok(1500)
}

impl Device for Pnet {
    fn capabilities(&self) -> Capabilities {
        self.caps.clone()
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        (Box::new(self.rx), Box::new(self.tx))
    }
}

/// Moves frames into the queue until the receiving half is dropped.
fn receive(shared: &PnetShared, mut from: Box<dyn DataLinkReceiver>, mac: [u8; 6]) {
    let mut down = false;
    // ORDERING: Relaxed, here and for the counts: they publish no other memory.
    while !shared.over.load(Relaxed) {
        match from.next() {
            // One of our own frames, which came back.
            Ok(bytes) if bytes.get(6..12) == Some(&mac) => continue,
            Ok(bytes) if (ETHERNET_HEADER_LEN..BUFFER).contains(&bytes.len()) => {
                if shared.frames.push(Frame::from_bytes(bytes)).is_err() {
                    shared.dropped.fetch_add(1, Relaxed);
                }
            }
            Ok(_) => {
                shared.truncated.fetch_add(1, Relaxed);
            }
            Err(error) => match error.kind() {
                io::ErrorKind::TimedOut
                | io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted => continue,
                _ => {
                    let trouble = trouble(&shared.name);
                    let gone = matches!(trouble, DeviceError::Gone { .. });
                    if !down || gone {
                        *shared.trouble() = Some(trouble);
                        shared.event.notify();
                    }
                    down = true;
                    thread::sleep(DOWN);
                    continue;
                }
            },
        }
        down = false;
        shared.event.notify();
    }
}

/// The receiving half of a [`Pnet`].
struct PnetRx {
    shared: Arc<PnetShared>,
    thread: Option<thread::JoinHandle<()>>,
    stats: RxStats,
}

impl DeviceRx for PnetRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        self.shared.check()?;
        let mut claimed = 0;
        while claimed < max {
            let Some(frame) = self.shared.frames.pop() else {
                break;
            };
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
        let shared = &self.shared;
        shared.event.wait(timeout, || {
            !shared.frames.is_empty() || shared.trouble().is_some()
        });
        shared.check()
    }

    fn waker(&self) -> DeviceWaker {
        let shared = Arc::clone(&self.shared);
        DeviceWaker::new(move || shared.event.wake())
    }

    fn stats(&self) -> RxStats {
        RxStats {
            dropped: self.shared.dropped.load(Relaxed),
            truncated: self.shared.truncated.load(Relaxed),
            wakes: self.shared.event.wakes(),
            ..self.stats
        }
    }
}

impl Drop for PnetRx {
    fn drop(&mut self) {
        self.shared.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is ignored here.
            let _ = thread.join();
        }
    }
}

/// The sending half of a [`Pnet`].
struct PnetTx {
    caps: Capabilities,
    sender: Box<dyn DataLinkSender>,
    /// A buffer in which head and payload are joined.
    frame: Vec<u8>,
    stats: TxStats,
}

impl DeviceTx for PnetTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        for (taken, frame) in frames.iter().enumerate() {
            if !self.caps.admits(frame) {
                self.stats.dropped += 1;
                continue;
            }
            self.frame.clear();
            self.frame.extend_from_slice(frame.head);
            self.frame.extend_from_slice(frame.payload);
            let kind = match self.sender.send_to(&self.frame, None) {
                Some(Ok(())) => {
                    self.stats.frames += 1;
                    self.stats.bytes += frame.len() as u64;
                    continue;
                }
                Some(Err(error)) => error.kind(),
                // The sender's buffer is full.
                None => io::ErrorKind::WouldBlock,
            };
            match kind {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted
                | io::ErrorKind::OutOfMemory => {
                    self.stats.busy += 1;
                    return Ok(taken);
                }
                io::ErrorKind::NetworkDown | io::ErrorKind::Other if taken > 0 => {
                    return Ok(taken);
                }
                io::ErrorKind::NetworkDown | io::ErrorKind::Other => {
                    return Err(trouble(&self.caps.name));
                }
                _ if find(&self.caps.name).is_none() => {
                    return Err(trouble(&self.caps.name));
                }
                // The frame is too long for a link whose MTU has changed, or malformed.
                _ => self.stats.dropped += 1,
            }
        }
        Ok(frames.len())
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}
