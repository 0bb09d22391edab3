//! The functions of libc that this library defines.
//!
//! A program that has this library preloaded calls these. Each finds out whether its descriptor is
//! a socket of ours, and otherwise calls the next definition of its name. `fcntl`, `ioctl` and
//! `syscall` are variadic in C; on Linux they have at most one further argument, or six, all words,
//! so here they have exactly so many. Cancelling a thread unwinds it, so their ABI is `C-unwind`.

mod bytes;
mod descriptors;
mod linked;
mod messages;
mod names;
mod open;
mod raw;
mod ready;

use core::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use libc::{iovec, ssize_t};

use crate::socket::{Live, Socket};
use crate::sys::{Errno, Fd, set_errno};
use crate::{stack, table};

/// Defines functions of libc. `next` is the next definition of the function.
macro_rules! interpose {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $returned:ty |$next:ident| $body:block
    )*) => {$(
        $(#[$meta])*
        /// # Safety
        /// As the function of this name in C.
        #[allow(unused_unsafe, reason = "some bodies call only safe functions")]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $returned {
            type Function = unsafe extern "C-unwind" fn($($type),*) -> $returned;
            static NEXT: $crate::sys::Next = $crate::sys::Next::new(
                match core::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => panic!(),
                },
            );
            let address = NEXT.address();
            // SAFETY: the library that defines this name gives it this prototype.
            let $next = unsafe { core::mem::transmute::<*mut core::ffi::c_void, Function>(address) };
            // SAFETY: the caller keeps the contract that C has for this function: pointers are
            // null or point to live memory of the length that an argument gives. That is all that
            // the next function, and the views of memory that are made here, need.
            unsafe { $body }
        }
    )*};
}

use interpose;

/// A socket that is ours.
pub(super) fn ours(fd: Fd) -> Option<Ours> {
    let mut socket = table::socket(fd)?;
    if stack::is_fork() {
        return Some(Ours(socket));
    }
    if socket.live.is_none() {
        // Another thread may be making it ours.
        socket.await_decision();
        socket = table::socket(fd)?;
    }
    socket.live.is_some().then_some(Ours(socket))
}

/// A socket with its live parts.
pub(super) struct Ours(pub(super) Arc<Socket>);

impl Ours {
    /// The socket's parts, unless it belongs to the parent of this process.
    ///
    /// # Errors
    /// `ENETDOWN`.
    fn live(&self) -> Result<&Live, Errno> {
        match &self.0.live {
            Some(live) if !stack::is_fork() => Ok(live),
            _ => Err(libc::ENETDOWN),
        }
    }
}

/// Returns a result as C does.
pub(super) fn answer(result: Result<usize, Errno>) -> ssize_t {
    match result {
        Ok(value) => value as ssize_t,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// As [`answer`], for functions that return 0.
pub(super) fn answer_unit(result: Result<(), Errno>) -> c_int {
    answer(result.map(|()| 0)) as c_int
}

/// Views memory that a call fills.
///
/// # Errors
/// `EFAULT` for null.
///
/// # Safety
/// `bytes` is null or points to `len` bytes that nothing else uses during the call.
unsafe fn view_mut<'a>(bytes: *mut c_void, len: usize) -> Result<IoSliceMut<'a>, Errno> {
    if len == 0 {
        return Ok(IoSliceMut::new(&mut []));
    }
    if bytes.is_null() {
        return Err(libc::EFAULT);
    }
    let len = len.min(isize::MAX as usize);
    // SAFETY: the caller's promise. The stack only writes there.
    Ok(IoSliceMut::new(unsafe {
        core::slice::from_raw_parts_mut(bytes.cast(), len)
    }))
}

/// As [`view_mut`], for memory that a call reads.
///
/// # Errors
/// As [`view_mut`].
///
/// # Safety
/// As [`view_mut`], but others may read it.
unsafe fn view<'a>(bytes: *const c_void, len: usize) -> Result<IoSlice<'a>, Errno> {
    if len == 0 {
        return Ok(IoSlice::new(&[]));
    }
    if bytes.is_null() {
        return Err(libc::EFAULT);
    }
    let len = len.min(isize::MAX as usize);
    // SAFETY: the caller's promise.
    Ok(IoSlice::new(unsafe {
        core::slice::from_raw_parts(bytes.cast(), len)
    }))
}

/// The most parts of a message.
const MOST_PARTS: usize = 1024;

/// The parts of a message.
///
/// # Errors
/// `EINVAL` or `EMSGSIZE` (`too_many`) for a wrong number of them, `EFAULT`.
///
/// # Safety
/// `parts` is null or points to `count` structures.
unsafe fn parts<'a>(
    parts: *const iovec,
    count: usize,
    too_many: Errno,
) -> Result<&'a [iovec], Errno> {
    match count {
        0 => Ok(&[]),
        1..=MOST_PARTS if parts.is_null() => Err(libc::EFAULT),
        // SAFETY: the caller's promise.
        1..=MOST_PARTS => Ok(unsafe { core::slice::from_raw_parts(parts, count) }),
        _ => Err(too_many),
    }
}

/// Views the memory of the parts of a message, to fill it.
///
/// # Errors
/// As [`view_mut`].
///
/// # Safety
/// As [`view_mut`], for each part.
unsafe fn views_mut<'a>(parts: &[iovec]) -> Result<Vec<IoSliceMut<'a>>, Errno> {
    let filled = parts.iter().filter(|part| part.iov_len > 0);
    // SAFETY: the caller's promise.
    filled
        .map(|part| unsafe { view_mut(part.iov_base, part.iov_len) })
        .collect()
}

/// As [`views_mut`], to read it.
///
/// # Errors
/// As [`view_mut`].
///
/// # Safety
/// As [`view`], for each part.
unsafe fn views<'a>(parts: &[iovec]) -> Result<Vec<IoSlice<'a>>, Errno> {
    let filled = parts.iter().filter(|part| part.iov_len > 0);
    // SAFETY: the caller's promise.
    filled
        .map(|part| unsafe { view(part.iov_base, part.iov_len) })
        .collect()
}
