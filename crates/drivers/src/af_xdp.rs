//! A network interface below the kernel's stack, through AF_XDP sockets.
//!
//! A small program in the driver passes frames to the device: by default all frames, with
//! [`AfXdpOptions::address`] only those to our addresses. The kernel keeps all others and never
//! sees ours, so it can use the same interface with other addresses. When a stack gets or loses an
//! address, it updates the program through [`Device::address_filter`]. The program is removed with
//! the devices, even when the process is killed.
//!
//! Frames are received into memory shared with the kernel, where any number of threads may read
//! them; no thread can write to them. Chunks return to the kernel in any order, so a frame that is
//! kept for long delays no other frame.
//!
//! AF_XDP does not report checksums of received frames, and does not divide segments. If an
//! interface leaves checksums to the receiver, as veth does, received frames look damaged unless
//! the sender computes the checksums or [`AfXdpOptions::trust_checksums`] is set.
//! [`AfXdp::advice`] reports this case.
//!
//! | needs | for |
//! |---|---|
//! | `CAP_NET_RAW` | the socket |
//! | `CAP_NET_ADMIN`, `CAP_BPF` | the program |
//! | `CAP_IPC_LOCK`, or a high `ulimit -l` | the memory |

mod filter;
mod open;
mod options;
mod receive;
mod transmit;

pub use crate::bpf::Redirect;
pub use options::{AfXdpOptions, XdpBind, XdpMode, XdpTransmit};

use crate::af_packet::AfPacketTx;
use crate::interface::check_name;
use crate::{AddressFilter, Capabilities, Device, DeviceError, DeviceRx, DeviceTx};
use filter::{AttachedFilter, Filter};
use open::Opening;
pub(crate) use open::bpf_error;
use receive::XdpRx;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use transmit::XdpTx;

/// Length of a chunk in bytes: one page, so that no chunk crosses a page boundary.
const CHUNK_LEN: usize = 4096;
/// Most pieces of a frame: the kernel's `MAX_SKB_FRAGS` plus the first one.
const MAX_PIECES: usize = 18;

/// A queue of a network interface, opened as an AF_XDP socket.
///
/// The interface's MTU is read once, when the device is opened.
#[derive(Debug)]
pub struct AfXdp {
    caps: Capabilities,
    mac: [u8; 6],
    zero_copy: bool,
    advice: Option<&'static str>,
    rx: XdpRx,
    tx: XdpTx,
    /// If set, frames are sent through this instead of `tx`.
    packets: Option<AfPacketTx>,
    attached: Arc<AttachedFilter>,
    /// Whether only frames to some addresses are ours.
    is_filtered: bool,
}

impl AfXdp {
    /// Opens the first queue of the interface. The kernel keeps the frames of the other queues, if
    /// there are any.
    ///
    /// # Errors
    /// The name is invalid, or names no Ethernet interface of this network namespace; a capability
    /// is missing, or memory may not be locked; the kernel owns the address; another program is
    /// attached; the driver does not support an option.
    pub fn open(interface: &str, options: &AfXdpOptions) -> Result<Self, DeviceError> {
        let mut devices = Self::open_queues(interface, options, 1)?;
        Ok(devices.remove(0))
    }

    /// Opens the first `count` queues of the interface, one device each. The devices share their
    /// memory; each receives the frames of its queue.
    ///
    /// # Errors
    /// As for [`open`](Self::open); also if the interface has fewer queues.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn open_queues(
        interface: &str,
        options: &AfXdpOptions,
        count: u32,
    ) -> Result<Vec<Self>, DeviceError> {
        assert!(count > 0, "at least one queue");
        check_name(interface)?;
        Opening::new(interface, options)?.queues(count)
    }

    /// Whether frames move without a copy by the kernel.
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// A change that would make this device work well, in words for the user.
    pub fn advice(&self) -> Option<&'static str> {
        self.advice
    }
}

#[cfg(feature = "bare")]
impl AfXdp {
    /// Both halves, for measuring.
    pub(crate) fn halves(&mut self) -> (&mut dyn DeviceRx, &mut dyn DeviceTx) {
        (&mut self.rx, &mut self.tx)
    }

    /// See [`BareXdp::receive`](crate::bare::BareXdp::receive).
    pub(crate) fn bare_receive(&mut self, max: usize) -> (usize, u64) {
        self.rx.bare_receive(max)
    }

    /// See [`BareXdp::send`](crate::bare::BareXdp::send).
    pub(crate) fn bare_send(&mut self, frame: &[u8], count: usize) -> usize {
        self.tx.bare_send(frame, count)
    }
}

/// Readable while a frame can be claimed. A program that sleeps in `poll` or `epoll` instead of
/// [`DeviceRx::wait`] clones the descriptor ([`BorrowedFd::try_clone_to_owned`]) before it gives
/// the device to a stack.
impl AsFd for AfXdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rx.link().fd()
    }
}

impl Device for AfXdp {
    fn capabilities(&self) -> Capabilities {
        self.caps.clone()
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn address_filter(&self) -> Option<Arc<dyn AddressFilter>> {
        let filter =
            || -> Arc<dyn AddressFilter> { Arc::new(Filter(Arc::downgrade(&self.attached))) };
        self.is_filtered.then(filter)
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        let tx: Box<dyn DeviceTx> = match self.packets {
            Some(packets) => Box::new(packets),
            None => Box::new(self.tx),
        };
        (Box::new(self.rx), tx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_bad_name_is_refused_before_anything_is_opened() {
        let result = AfXdp::open("not a name", &AfXdpOptions::default());
        assert!(matches!(result, Err(DeviceError::BadName { .. })));
    }

    #[test]
    fn an_error_of_the_program_says_what_helps() {
        let text = |errno| {
            let error = io::Error::from_raw_os_error(errno);
            bpf_error("eth0", "attach an XDP program", &error).to_string()
        };
        assert!(text(libc::EPERM).contains("CAP_BPF and CAP_NET_ADMIN"));
        assert!(text(libc::EPERM).contains("sudo setcap"));
        assert!(text(libc::EBUSY).contains("xdp off"));
        assert!(text(libc::ERANGE).contains("mtu 1500"));
    }
}
