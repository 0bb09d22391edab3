//! Waiting for readiness. The kernel waits, with the program's descriptors; see
//! [`mirror`](crate::mirror).

use core::ffi::{c_int, c_ulong};

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use super::interpose;
use crate::sys::Fd;
use crate::table;

/// Begins to show the state of a socket of ours.
fn show(fd: Fd) {
    if let Some(socket) = table::socket(fd)
        && let Some(live) = &socket.live
    {
        live.mirror.activate();
    }
}

/// # Safety
/// `fds` is null or points to `count` structures.
unsafe fn show_all(fds: *const pollfd, count: nfds_t) {
    if !fds.is_null() {
        // SAFETY: the caller's promise.
        let fds = unsafe { core::slice::from_raw_parts(fds, count as usize) };
        fds.iter().for_each(|one| show(one.fd));
    }
}

/// # Safety
/// Each set is null or points to enough bits for `count` descriptors.
unsafe fn show_sets(count: c_int, sets: [*const fd_set; 3]) {
    const BITS: usize = c_ulong::BITS as usize;
    let count = usize::try_from(count).unwrap_or(0);
    for set in sets.into_iter().filter(|set| !set.is_null()) {
        // SAFETY: the caller's promise; a set is an array of words, and may be longer than the
        // type.
        let words =
            unsafe { core::slice::from_raw_parts(set.cast::<c_ulong>(), count.div_ceil(BITS)) };
        for (index, word) in words.iter().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                let fd = index * BITS + rest.trailing_zeros() as usize;
                rest &= rest - 1;
                if fd < count {
                    show(fd as Fd);
                }
            }
        }
    }
}

interpose! {
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int |next| {
        show_all(fds, count);
        next(fds, count, timeout)
    }

    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int |next| {
        show_all(fds, count.min((room / size_of::<pollfd>()) as nfds_t));
        next(fds, count, timeout, room)
    }

    fn ppoll(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        signals: *const sigset_t,
    ) -> c_int |next| {
        show_all(fds, count);
        next(fds, count, timeout, signals)
    }

    fn __ppoll_chk(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        signals: *const sigset_t,
        room: size_t,
    ) -> c_int |next| {
        show_all(fds, count.min((room / size_of::<pollfd>()) as nfds_t));
        next(fds, count, timeout, signals, room)
    }

    fn select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int |next| {
        show_sets(count, [read, write, except]);
        next(count, read, write, except, timeout)
    }

    fn pselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        signals: *const sigset_t,
    ) -> c_int |next| {
        show_sets(count, [read, write, except]);
        next(count, read, write, except, timeout, signals)
    }

    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int |next| {
        if let Some(socket) = table::socket(fd)
            && (!event.is_null() || operation == libc::EPOLL_CTL_DEL)
        {
            let none = epoll_event { events: 0, u64: 0 };
            let event = if event.is_null() { none } else { event.read_unaligned() };
            socket.note_epoll(set, operation, fd, event);
        }
        next(set, operation, fd, event)
    }
}
