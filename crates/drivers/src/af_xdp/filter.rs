//! The program in the kernel, and the addresses whose packets it passes to us.

use super::open::bpf_error;
use crate::af_packet::refuse_owned;
use crate::bpf::{self, Redirect};
use crate::sys::{self, AttachedProgram, BpfHook};
use crate::{AddressFilter, DeviceError};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError, Weak};

/// The objects that keep the program attached. It is removed when the last of them is dropped.
#[derive(Debug)]
pub(super) struct AttachedFilter {
    pub(super) interface: String,
    pub(super) program: AttachedProgram,
    pub(super) map: OwnedFd,
    /// A packet socket that makes the interface receive frames to multicast groups or to any
    /// address.
    pub(super) _widened: OwnedFd,
    /// Whether frames may be longer than a chunk.
    pub(super) pieces: bool,
    /// Whether addresses that the kernel owns may be ours, too.
    pub(super) guard: bool,
    /// The frames that the attached program passes to us.
    pub(super) redirect: Mutex<Redirect>,
}

impl AttachedFilter {
    /// Changes our addresses, unless all frames are ours. `change` returns whether it did so.
    fn change(&self, change: impl FnOnce(&mut Vec<IpAddr>) -> bool) -> Result<(), DeviceError> {
        let mut redirect = self.redirect.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = redirect.clone();
        let Redirect::Addresses(ours) = &mut changed else {
            return Ok(());
        };
        if !change(ours) {
            return Ok(());
        }
        if ours.len() > Redirect::MAX_ADDRESSES {
            return Err(DeviceError::Unsuitable {
                interface: self.interface.clone(),
                reason: "no more than 64 addresses can be ours",
            });
        }
        let error = |error: io::Error| bpf_error(&self.interface, "change the program", &error);
        let program = bpf::redirect(&changed, self.map.as_raw_fd());
        let program = sys::bpf_load(BpfHook::Xdp, &program, self.pieces).map_err(error)?;
        self.program.replace(program.as_fd()).map_err(error)?;
        *redirect = changed;
        Ok(())
    }
}

/// A stack's handle to the program. It does not keep the program attached.
#[derive(Debug)]
pub(super) struct Filter(pub(super) Weak<AttachedFilter>);

impl AddressFilter for Filter {
    fn add(&self, address: IpAddr) -> Result<(), DeviceError> {
        let Some(attached) = self.0.upgrade() else {
            return Ok(());
        };
        if !attached.guard {
            let list = |error: io::Error| {
                DeviceError::system("list addresses", &attached.interface, &error)
            };
            refuse_owned(&[address], sys::addresses().map_err(list)?)?;
        }
        attached.change(|ours| {
            let is_new = !ours.contains(&address);
            if is_new {
                ours.push(address);
            }
            is_new
        })
    }

    fn remove(&self, address: IpAddr) -> Result<(), DeviceError> {
        let Some(attached) = self.0.upgrade() else {
            return Ok(());
        };
        attached.change(|ours| {
            let before = ours.len();
            ours.retain(|own| *own != address);
            ours.len() < before
        })
    }
}
