//! Descriptors: closing, duplicating, flags; and the end of the process.

use core::ffi::{c_int, c_ulong};
use core::sync::atomic::Ordering;

use super::{answer_unit, interpose, ours};
use crate::socket::Object;
use crate::sys::{self, Fd};
use crate::{stack, table};

/// Called when the library is loaded, before the program begins.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = stack::load;

/// Gives a duplicate to the socket of the original.
fn duplicate(original: Fd, new: Fd) {
    if new < 0 || new == original || stack::is_borrowed() {
        return;
    }
    table::remove(new);
    if let Some(socket) = table::socket(original) {
        table::insert(new, &socket);
    } else if table::is_set(original) {
        table::mark_set(new);
    }
}

/// Whether the program may replace or close a descriptor.
fn is_programs(fd: Fd) -> bool {
    !table::is_internal(fd)
}

interpose! {
    fn close(fd: c_int) -> c_int |next| {
        if table::is_internal(fd) && !stack::may_close_internal() {
            return answer_unit(Err(libc::EBADF));
        }
        // A child of `vfork` closes its own descriptor, in the memory of its parent.
        let is_known = table::is_known(fd) && !stack::is_borrowed();
        let removed = is_known.then(|| table::remove(fd));
        let result = next(fd);
        drop(removed);
        result
    }

    fn fclose(file: *mut libc::FILE) -> c_int |next| {
        let fd = if file.is_null() { -1 } else { libc::fileno(file) };
        if fd >= 0 && !stack::is_borrowed() {
            table::remove(fd);
        }
        next(file)
    }

    fn close_range(first: u32, last: u32, flags: c_int) -> c_int |next| {
        // A child of `vfork` has its own descriptors, so it may close all of them.
        if flags != 0 || first > last || stack::is_borrowed() {
            return next(first, last, flags);
        }
        let mut start = first;
        for fd in table::special(first, last).collect::<Vec<_>>() {
            if table::is_internal(fd) {
                if fd as u32 > start {
                    let _ = sys::close_range(start, fd as u32 - 1, 0);
                }
                start = fd as u32 + 1;
            } else {
                close(fd);
            }
        }
        match start <= last {
            true => next(start, last, 0),
            false => 0,
        }
    }

    fn closefrom(first: c_int) -> () |_next| {
        close_range(first.max(0) as u32, u32::MAX, 0);
    }

    fn dup(fd: c_int) -> c_int |next| {
        let new = next(fd);
        duplicate(fd, new);
        new
    }

    fn dup2(fd: c_int, to: c_int) -> c_int |next| {
        if !is_programs(to) {
            return answer_unit(Err(libc::EBUSY));
        }
        let new = next(fd, to);
        duplicate(fd, new);
        new
    }

    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int |next| {
        if !is_programs(to) {
            return answer_unit(Err(libc::EBUSY));
        }
        let new = next(fd, to, flags);
        duplicate(fd, new);
        new
    }

    fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int |next| {
        let result = next(fd, command, argument);
        note_fcntl(fd, command, argument, result);
        result
    }

    fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int |next| {
        let result = next(fd, command, argument);
        note_fcntl(fd, command, argument, result);
        result
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int |next| {
        let Some(socket) = table::socket(fd) else {
            return next(fd, request, argument);
        };
        if request == libc::FIONBIO {
            let result = next(fd, request, argument);
            if result == 0 {
                let is_set = (argument as *const c_int).read_unaligned() != 0;
                socket.common.is_nonblocking.store(is_set, Ordering::Relaxed);
            }
            return result;
        }
        let Some(ours) = ours(fd) else {
            return next(fd, request, argument);
        };
        let live = match ours.live() {
            Ok(live) => live,
            Err(errno) => return answer_unit(Err(errno)),
        };
        if request != libc::FIONREAD {
            // Questions about interfaces need a socket of the network.
            return match live.shadow(&ours.0.common) {
                Ok(shadow) => next(shadow.number(), request, argument),
                Err(errno) => answer_unit(Err(errno)),
            };
        }
        let unread = match &live.object {
            Object::Tcp(tcp) => tcp.unread(live),
            Object::Udp(udp) => Ok(udp.unread()),
        };
        answer_unit(unread.and_then(|unread| match argument {
            0 => Err(libc::EFAULT),
            place => {
                (place as *mut c_int).write_unaligned(unread as c_int);
                Ok(())
            }
        }))
    }

    fn _exit(code: c_int) -> () |_next| {
        stack::end();
        sys::exit_now(code)
    }

    fn _Exit(code: c_int) -> () |_next| {
        stack::end();
        sys::exit_now(code)
    }
}

/// Follows a change of flags, or a duplicate.
fn note_fcntl(fd: Fd, command: c_int, argument: c_ulong, result: c_int) {
    if result < 0 {
        return;
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicate(fd, result),
        libc::F_SETFL => {
            if let Some(socket) = table::socket(fd) {
                let is_set = argument as c_int & libc::O_NONBLOCK != 0;
                socket
                    .common
                    .is_nonblocking
                    .store(is_set, Ordering::Relaxed);
            }
        }
        _ => {}
    }
}
