//! What devices are measured against: loops over the same sockets with nothing around them, and a
//! source of frames that is faster than both. Feature `bare`; not for use beside measurements.

use crate::af_xdp::AfXdp;
use crate::sys::{self, Hook};
use crate::{DeviceError, DeviceRx, DeviceTx, bpf};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A device that also shows its bare rings.
#[derive(Debug)]
pub struct BareXdp(AfXdp);

impl BareXdp {
    /// Takes a device apart.
    pub fn new(device: AfXdp) -> Self {
        Self(device)
    }

    /// Its receiving half.
    pub fn rx(&mut self) -> &mut dyn DeviceRx {
        self.0.halves().0
    }

    /// Its sending half.
    pub fn tx(&mut self) -> &mut dyn DeviceTx {
        self.0.halves().1
    }

    /// Takes up to `max` frames from the receive ring, reads 8 bytes at their start, and puts their
    /// chunks onto the fill ring. Returns how many, and the sum of what was read.
    pub fn receive(&mut self, max: usize) -> (usize, u64) {
        self.0.bare_receive(max)
    }

    /// Copies the frame into as many chunks, at most `count`, as there is room for, and has them
    /// sent. Returns how many.
    pub fn send(&mut self, frame: &[u8], count: usize) -> usize {
        self.0.bare_send(frame, count)
    }
}

/// A source of frames in the kernel: a program that is run on the same frame again and again, and
/// redirects it to an interface (`BPF_PROG_TEST_RUN` with live frames, Linux 5.18).
#[derive(Debug)]
pub struct LiveSource {
    program: OwnedFd,
}

impl LiveSource {
    /// Frames leave through `interface`.
    ///
    /// # Errors
    /// There is no such interface, or `CAP_BPF` and `CAP_NET_ADMIN` are missing.
    pub fn new(interface: &str) -> Result<Self, DeviceError> {
        let system = |what| move |error: io::Error| DeviceError::system(what, interface, &error);
        let control = sys::control_socket().map_err(system("open a socket"))?;
        let index = sys::interface_index(control.as_fd(), interface)
            .map_err(system("find the interface"))?;
        let program = sys::bpf_load(Hook::Xdp, &bpf::forward(index), false)
            .map_err(|error| crate::af_xdp::bpf_error(interface, "load an XDP program", &error))?;
        Ok(Self { program })
    }

    /// Sends the frame `count` times. Who receives on the other end needs an XDP program, or all
    /// are lost there.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn run(&self, frame: &[u8], count: u32) -> io::Result<()> {
        sys::bpf_run_live(self.program.as_fd(), frame, count)
    }
}
