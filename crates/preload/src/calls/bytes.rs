//! Reading and writing bytes.

use core::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};

use libc::{iovec, off_t, size_t, sockaddr, socklen_t, ssize_t};

use super::{Ours, answer, interpose, ours, parts, view, view_mut, views, views_mut};
use crate::control::Marks;
use crate::datagrams::Arrived;
use crate::socket::Object;
use crate::sys::{self, Errno};
use crate::{addr, datagrams, drive, stack, stream, table};

/// Bytes that `sendfile` moves at once.
const PIECE: usize = 64 << 10;

/// Receives; returns the sender for a datagram.
///
/// # Errors
/// As `recvfrom`.
pub(super) fn receive(
    ours: &Ours,
    into: &mut [IoSliceMut<'_>],
    flags: c_int,
) -> Result<(usize, Option<Arrived>), Errno> {
    let (live, common) = (ours.live()?, &ours.0.common);
    let received = match &live.object {
        Object::Tcp(tcp) => tcp.recv(common, live, into, flags).map(|len| (len, None)),
        Object::Udp(udp) => udp.recv(common, live, into, flags).map(|arrived| {
            let told = match flags & libc::MSG_TRUNC {
                0 => arrived.copied,
                _ => arrived.len,
            };
            (told, Some(arrived))
        }),
    };
    drive::pass();
    received
}

/// As [`receive`], into memory of the program. With `MSG_TRUNC` a stream discards its bytes.
///
/// # Errors
/// As `recvfrom`.
///
/// # Safety
/// As [`view_mut`].
unsafe fn receive_into(
    ours: &Ours,
    (into, len): (*mut c_void, size_t),
    flags: c_int,
) -> Result<(usize, Option<Arrived>), Errno> {
    if ours.0.common.is_stream && flags & libc::MSG_TRUNC != 0 {
        let mut discarded = vec![0; len.min(PIECE)];
        return receive(ours, &mut [IoSliceMut::new(&mut discarded)], flags);
    }
    // SAFETY: the caller's promise.
    receive(ours, &mut [unsafe { view_mut(into, len) }?], flags)
}

/// Sends, to an address for a datagram.
///
/// # Errors
/// As `sendto`.
///
/// # Safety
/// As [`addr::read`].
pub(super) unsafe fn transmit(
    ours: &Ours,
    from: &[IoSlice<'_>],
    flags: c_int,
    to: *const sockaddr,
    len: socklen_t,
) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { transmit_marked(ours, from, flags, (to, len), Marks::default()) }
}

/// As [`transmit`], with the marks of a control message.
///
/// # Errors
/// As `sendmsg`.
///
/// # Safety
/// As [`addr::read`].
pub(super) unsafe fn transmit_marked(
    ours: &Ours,
    from: &[IoSlice<'_>],
    flags: c_int,
    (to, len): (*const sockaddr, socklen_t),
    marks: Marks,
) -> Result<usize, Errno> {
    let (live, common) = (ours.live()?, &ours.0.common);
    let sent = match &live.object {
        Object::Tcp(tcp) => tcp.send(common, live, from, flags),
        Object::Udp(udp) => {
            // SAFETY: the caller's promise.
            let remote = unsafe { addr::read(to, len, common.domain) };
            if remote.is_none() && !to.is_null() {
                let short = (len as usize) < size_of::<libc::sockaddr_in>();
                return Err(if short {
                    libc::EINVAL
                } else {
                    libc::EAFNOSUPPORT
                });
            }
            udp.send(common, live, from, (remote, marks), flags)
        }
    };
    drive::pass();
    sent
}

/// The socket of a call that sends to an address. A socket without an address becomes ours if the
/// destination is: one of UDP is bound, and one of TCP connects with `MSG_FASTOPEN`.
///
/// # Errors
/// As `bind` and `connect`.
///
/// # Safety
/// As [`addr::read`].
pub(super) unsafe fn sender(
    fd: c_int,
    (to, len): (*const sockaddr, socklen_t),
    flags: c_int,
) -> Result<Option<Ours>, Errno> {
    let Some(socket) = table::socket(fd) else {
        return Ok(None);
    };
    let opens = socket.common.is_stream && flags & libc::MSG_FASTOPEN != 0;
    if socket.live.is_some() && !opens || stack::is_fork() {
        return Ok(Some(Ours(socket)));
    }
    // SAFETY: the caller's promise.
    let remote = unsafe { addr::read(to, len, socket.common.domain) };
    if opens && let Some(remote) = remote.filter(|_| socket.live.is_some()) {
        // It is connected, or has failed.
        stream::connect(&socket, remote)?;
        return Ok(ours(fd));
    }
    match remote.filter(|remote| stack::for_remote(*remote).is_some()) {
        Some(_) if !socket.common.is_stream => {
            let any = socket.common.unspecified();
            datagrams::bind(&socket, fd, any).map(|socket| Some(Ours(socket)))
        }
        Some(remote) if opens => {
            stream::connect(&socket, remote)?;
            Ok(ours(fd))
        }
        _ => Ok(None),
    }
}

interpose! {
    fn read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t |next| {
        match ours(fd) {
            Some(_) if len == 0 => 0,
            Some(ours) => answer(view_mut(into, len).and_then(|view| {
                receive(&ours, &mut [view], 0).map(|(len, _)| len)
            })),
            None => next(fd, into, len),
        }
    }

    fn recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t |next| {
        match ours(fd) {
            Some(ours) => answer(receive_into(&ours, (into, len), flags).map(|(len, _)| len)),
            None => next(fd, into, len, flags),
        }
    }

    fn recvfrom(
        fd: c_int,
        into: *mut c_void,
        len: size_t,
        flags: c_int,
        address: *mut sockaddr,
        address_len: *mut socklen_t,
    ) -> ssize_t |next| {
        let Some(ours) = ours(fd) else {
            return next(fd, into, len, flags, address, address_len);
        };
        answer(receive_into(&ours, (into, len), flags).and_then(|(len, arrived)| {
            match arrived {
                _ if address.is_null() => {}
                Some(arrived) => {
                    addr::write(arrived.from, ours.0.common.domain, address, address_len)?;
                }
                None => addr::write_bytes(&[], 0, address.cast(), address_len)?,
            }
            Ok(len)
        }))
    }

    fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t |next| {
        let Some(ours) = ours(fd) else { return next(fd, vector, count) };
        let parts = parts(vector, count as usize, libc::EINVAL);
        answer(parts.and_then(|parts| {
            receive(&ours, &mut views_mut(parts)?, 0).map(|(len, _)| len)
        }))
    }

    fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t |next| {
        match ours(fd) {
            Some(ours) => answer(view(from, len).and_then(|view| {
                transmit(&ours, &[view], 0, core::ptr::null(), 0)
            })),
            None => next(fd, from, len),
        }
    }

    fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t |next| {
        match ours(fd) {
            Some(ours) => answer(view(from, len).and_then(|view| {
                transmit(&ours, &[view], flags, core::ptr::null(), 0)
            })),
            None => next(fd, from, len, flags),
        }
    }

    fn sendto(
        fd: c_int,
        from: *const c_void,
        len: size_t,
        flags: c_int,
        to: *const sockaddr,
        to_len: socklen_t,
    ) -> ssize_t |next| {
        match sender(fd, (to, to_len), flags) {
            Ok(Some(ours)) => answer(view(from, len).and_then(|view| {
                transmit(&ours, &[view], flags, to, to_len)
            })),
            Ok(None) => next(fd, from, len, flags, to, to_len),
            Err(errno) => answer(Err(errno)),
        }
    }

    fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t |next| {
        let Some(ours) = ours(fd) else { return next(fd, vector, count) };
        let parts = parts(vector, count as usize, libc::EINVAL);
        answer(parts.and_then(|parts| {
            transmit(&ours, &views(parts)?, 0, core::ptr::null(), 0)
        }))
    }

    fn sendfile(fd: c_int, file: c_int, offset: *mut off_t, len: size_t) -> ssize_t |next| {
        if ours(file).is_some() {
            return answer(Err(libc::EINVAL));
        }
        let Some(ours) = ours(fd) else { return next(fd, file, offset, len) };
        let given = (!offset.is_null()).then(|| offset.read_unaligned());
        answer(send_file(&ours, file, given, len).map(|(done, end)| {
            match given {
                Some(_) => offset.write_unaligned(end),
                None => drop(sys::seek(file, end, libc::SEEK_SET)),
            }
            done
        }))
    }

    fn sendfile64(fd: c_int, file: c_int, offset: *mut off_t, len: size_t) -> ssize_t |next| {
        match ours(fd).or_else(|| ours(file)) {
            Some(_) => sendfile(fd, file, offset, len),
            None => next(fd, file, offset, len),
        }
    }

    fn splice(
        from: c_int,
        from_offset: *mut i64,
        to: c_int,
        to_offset: *mut i64,
        len: size_t,
        flags: u32,
    ) -> ssize_t |next| {
        match ours(from).or_else(|| ours(to)) {
            Some(_) => answer(Err(libc::EINVAL)),
            None => next(from, from_offset, to, to_offset, len, flags),
        }
    }

    fn __read_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t) -> ssize_t |next| {
        match ours(fd) {
            Some(_) if len <= room => read(fd, into, len),
            _ => next(fd, into, len, room),
        }
    }

    fn __recv_chk(
        fd: c_int,
        into: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int,
    ) -> ssize_t |next| {
        match ours(fd) {
            Some(_) if len <= room => recv(fd, into, len, flags),
            _ => next(fd, into, len, room, flags),
        }
    }

    fn __recvfrom_chk(
        fd: c_int,
        into: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int,
        address: *mut sockaddr,
        address_len: *mut socklen_t,
    ) -> ssize_t |next| {
        match ours(fd) {
            Some(_) if len <= room => recvfrom(fd, into, len, flags, address, address_len),
            _ => next(fd, into, len, room, flags, address, address_len),
        }
    }
}

/// Sends bytes of a file. Returns their number, and the offset after them. The bytes are copied:
/// the stack reads no files.
fn send_file(
    ours: &Ours,
    file: c_int,
    offset: Option<i64>,
    len: usize,
) -> Result<(usize, i64), Errno> {
    let start = match offset {
        Some(offset) => offset,
        None => sys::seek(file, 0, libc::SEEK_CUR)?,
    };
    let mut piece = vec![0; PIECE.min(len)];
    let mut done = 0;
    while done < len {
        let wanted = piece.len().min(len - done);
        let read = sys::read_at(file, &mut piece[..wanted], start + done as i64);
        let read = match read {
            Err(_) if done > 0 => break,
            read => read?,
        };
        if read == 0 {
            break;
        }
        // SAFETY: null is no address.
        let sent = unsafe {
            transmit(
                ours,
                &[IoSlice::new(&piece[..read])],
                0,
                core::ptr::null(),
                0,
            )
        };
        match sent {
            Ok(sent) => {
                done += sent;
                if sent < read {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok((done, start + done as i64))
}
