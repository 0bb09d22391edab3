//! All system calls of this crate, each as a safe function.
//!
//! Descriptors are std's owned and borrowed types, errors are `io::Error` with the kernel's
//! number. Data from the kernel is read only as plain integers and byte arrays, for which every
//! bit pattern is valid.

#![allow(unsafe_code)]

mod bpf;
mod interface;
mod memory;
mod packet;
mod tap;
mod wait;
mod xdp;

pub(crate) use self::bpf::*;
pub(crate) use self::interface::*;
pub(crate) use self::memory::*;
pub(crate) use self::packet::*;
pub(crate) use self::tap::*;
pub(crate) use self::wait::*;
pub(crate) use self::xdp::*;

use libc::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn check_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Takes ownership of a descriptor that a system call has just returned.
fn own(result: c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the caller passes the result of a call that creates a descriptor. It is not
    // negative, so it is open, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an option of any plain type.
fn set_option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes through a pointer to a value of that size.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            ptr::from_ref(value).cast(),
            len,
        )
    })
    .map(drop)
}

/// Reads an option. Callers choose types made of plain integers.
fn option<T: Copy + Default>(fd: BorrowedFd<'_>, level: c_int, option: c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    let place: *mut c_void = ptr::from_mut(&mut value).cast();
    // SAFETY: the kernel writes at most `len` bytes into a value of that size, made of plain
    // integers.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, place, &mut len) })?;
    Ok(value)
}

fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

fn part_mut(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}
