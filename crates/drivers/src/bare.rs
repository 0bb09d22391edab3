//! Baselines for measurements of devices: bare loops over the same sockets, and a source of frames
//! that is faster than either. Feature `bare`; for measurements only.

use crate::af_xdp::AfXdp;
use crate::sys::{self, BpfHook};
use crate::{DeviceError, DeviceRx, DeviceTx, bpf};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A device that also gives access to its bare rings.
#[derive(Debug)]
pub struct BareXdp(AfXdp);

impl BareXdp {
    /// Takes over a device.
    pub fn new(device: AfXdp) -> Self {
        Self(device)
    }

    /// The receiving half.
    pub fn rx(&mut self) -> &mut dyn DeviceRx {
        self.0.halves().0
    }

    /// The sending half.
    pub fn tx(&mut self) -> &mut dyn DeviceTx {
        self.0.halves().1
    }

    /// Takes up to `max` frames from the receive ring, reads the first 8 bytes of each, and
    /// returns the chunks through the fill ring. Returns the number of frames and the sum of the
    /// values read.
    pub fn receive(&mut self, max: usize) -> (usize, u64) {
        self.0.bare_receive(max)
    }

    /// Copies the frame into up to `count` chunks, as many as there is room for, and sends them.
    /// Returns their number.
    pub fn send(&mut self, frame: &[u8], count: usize) -> usize {
        self.0.bare_send(frame, count)
    }
}

/// A source of frames in the kernel: it runs an XDP program repeatedly on the same frame, which
/// redirects the frame to an interface (`BPF_PROG_TEST_RUN` with live frames, Linux 5.18).
#[derive(Debug)]
pub struct LiveSource {
    program: OwnedFd,
}

impl LiveSource {
    /// A source whose frames leave through `interface`.
    ///
    /// # Errors
    /// There is no such interface, or `CAP_BPF` and `CAP_NET_ADMIN` are missing.
    pub fn new(interface: &str) -> Result<Self, DeviceError> {
        let system = |what| move |error: io::Error| DeviceError::system(what, interface, &error);
        let control = sys::control_socket().map_err(system("open a socket"))?;
        let index = sys::interface_index(control.as_fd(), interface)
            .map_err(system("find the interface"))?;
        let program = sys::bpf_load(BpfHook::Xdp, &bpf::forward(index), false)
            .map_err(|error| crate::af_xdp::bpf_error(interface, "load an XDP program", &error))?;
        Ok(Self { program })
    }

    /// Sends the frame `count` times. The receiver at the other end needs an XDP program; without
    /// one, all frames are lost there.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn run(&self, frame: &[u8], count: u32) -> io::Result<()> {
        sys::bpf_run_live(self.program.as_fd(), frame, count)
    }
}
