//! BPF maps and programs of the kernel.

use libc::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use super::{check, own};

/// The argument of bpf(2): zeros, except for fields that a command sets.
struct BpfAttributes([u64; 18]);

impl BpfAttributes {
    fn new() -> Self {
        Self([0; 18])
    }

    fn set32(mut self, at: usize, value: u32) -> Self {
        let shift = if cfg!(target_endian = "little") {
            at % 8 * 8
        } else {
            32 - at % 8 * 8
        };
        self.0[at / 8] |= u64::from(value) << shift;
        self
    }

    fn set64(mut self, at: usize, value: u64) -> Self {
        self.0[at / 8] = value;
        self
    }

    /// # Safety
    /// Pointers in the attributes are valid for their use by the command.
    unsafe fn call(&self, command: c_int) -> io::Result<c_int> {
        // SAFETY: pointer and length describe `self.0`; the caller guarantees the pointers in it.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                command,
                self.0.as_ptr(),
                size_of_val(&self.0),
            )
        };
        check(result as c_int)
    }
}

/// Creates a map from queue numbers to AF_XDP sockets.
pub(crate) fn bpf_socket_map(entries: u32) -> io::Result<OwnedFd> {
    const BPF_MAP_CREATE: c_int = 0;
    const XSKMAP: u32 = 17;
    let attributes = BpfAttributes::new()
        .set32(0, XSKMAP)
        .set32(4, 4)
        .set32(8, 4)
        .set32(12, entries);
    // SAFETY: no pointers.
    own(unsafe { attributes.call(BPF_MAP_CREATE) }?)
}

/// Puts a socket into a map.
pub(crate) fn bpf_map_set(map: BorrowedFd<'_>, key: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    const BPF_MAP_UPDATE_ELEM: c_int = 2;
    let value = socket.as_raw_fd();
    let attributes = BpfAttributes::new()
        .set32(0, map.as_raw_fd() as u32)
        .set64(8, ptr::from_ref(&key).addr() as u64)
        .set64(16, ptr::from_ref(&value).addr() as u64);
    // SAFETY: key and value have four bytes each, the sizes that the map was created with, and
    // live until the call returns.
    unsafe { attributes.call(BPF_MAP_UPDATE_ELEM) }.map(drop)
}

/// The place where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BpfHook {
    /// In the driver or directly after it, before packet sockets and the kernel's stack.
    Xdp,
    /// After packet sockets and before the kernel's stack.
    Ingress,
}

/// Loads a program. With `fragments` (XDP only) it accepts packets in several pieces.
pub(crate) fn bpf_load(hook: BpfHook, program: &[u64], fragments: bool) -> io::Result<OwnedFd> {
    const BPF_PROG_LOAD: c_int = 5;
    const XDP_HAS_FRAGS: u32 = 1 << 5;
    let (kind, attach) = match hook {
        BpfHook::Xdp => (6, 37),
        BpfHook::Ingress => (3, 46),
    };
    let license = c"Dual MIT/GPL";
    let attributes = BpfAttributes::new()
        .set32(0, kind)
        .set32(4, program.len() as u32)
        .set64(8, program.as_ptr().addr() as u64)
        .set64(16, license.as_ptr().addr() as u64)
        .set32(44, if fragments { XDP_HAS_FRAGS } else { 0 })
        .set32(68, attach);
    // SAFETY: the length is the number of instructions, and the license ends in zero; both live
    // until the call returns.
    own(unsafe { attributes.call(BPF_PROG_LOAD) }?)
}

/// Runs an XDP program `count` times on a frame, and each time performs the action that it returns.
#[cfg(feature = "bare")]
pub(crate) fn bpf_run_live(program: BorrowedFd<'_>, frame: &[u8], count: u32) -> io::Result<()> {
    const BPF_PROG_TEST_RUN: c_int = 10;
    const LIVE_FRAMES: u32 = 1 << 1;
    let attributes = BpfAttributes::new()
        .set32(0, program.as_raw_fd() as u32)
        .set32(8, frame.len() as u32)
        .set64(16, frame.as_ptr().addr() as u64)
        .set32(32, count)
        .set32(64, LIVE_FRAMES);
    // SAFETY: pointer and length describe `frame`, which the kernel only reads and which lives
    // until the call returns.
    unsafe { attributes.call(BPF_PROG_TEST_RUN) }.map(drop)
}

/// A program that is attached to an interface until this is dropped.
#[derive(Debug)]
pub(crate) struct AttachedProgram(OwnedFd);

impl AttachedProgram {
    /// Replaces the program, for every frame from now on.
    pub(crate) fn replace(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        const BPF_LINK_UPDATE: c_int = 29;
        let attributes = BpfAttributes::new()
            .set32(0, self.0.as_raw_fd() as u32)
            .set32(4, program.as_raw_fd() as u32);
        // SAFETY: no pointers.
        unsafe { attributes.call(BPF_LINK_UPDATE) }.map(drop)
    }
}

impl AsFd for AttachedProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for AttachedProgram {
    /// Detaches the program even while a child process has a copy of the descriptor, as between
    /// fork(2) and execve(2).
    fn drop(&mut self) {
        const BPF_LINK_DETACH: c_int = 34;
        let attributes = BpfAttributes::new().set32(0, self.0.as_raw_fd() as u32);
        // If this fails, the program stays until the last copy is closed.
        // SAFETY: no pointers.
        let _ = unsafe { attributes.call(BPF_LINK_DETACH) };
    }
}

/// Flag for an XDP program that runs after the driver.
pub(crate) const XDP_MODE_GENERIC: u32 = 1 << 1;

/// Flag for an XDP program that runs in the driver.
pub(crate) const XDP_MODE_NATIVE: u32 = 1 << 2;

/// Attaches a program to an interface.
pub(crate) fn bpf_attach(
    hook: BpfHook,
    program: BorrowedFd<'_>,
    index: i32,
    flags: u32,
) -> io::Result<AttachedProgram> {
    const BPF_LINK_CREATE: c_int = 28;
    let attach = match hook {
        BpfHook::Xdp => 37,
        BpfHook::Ingress => 46,
    };
    let attributes = BpfAttributes::new()
        .set32(0, program.as_raw_fd() as u32)
        .set32(4, index as u32)
        .set32(8, attach)
        .set32(12, flags);
    // SAFETY: no pointers.
    own(unsafe { attributes.call(BPF_LINK_CREATE) }?).map(AttachedProgram)
}
