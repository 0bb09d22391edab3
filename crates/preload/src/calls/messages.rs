//! Messages: bytes in parts, with addresses.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::Ordering;

use libc::{mmsghdr, msghdr, sockaddr, ssize_t, timespec};

use super::bytes::{receive, sender, transmit_marked};
use super::{Ours, answer, interpose, ours, parts, view, view_mut, views, views_mut};
use crate::control::Marks;
use crate::socket::Object;
use crate::sys::Errno;
use crate::{addr, control, table};

interpose! {
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t |next| {
        match ours(fd) {
            Some(ours) => answer(receive_message(&ours, message, flags)),
            None => {
                let received = next(fd, message, flags);
                if received >= 0 && !(*message).msg_control.is_null() {
                    adopt(&*message);
                }
                received
            }
        }
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t |next| {
        if message.is_null() {
            return next(fd, message, flags);
        }
        match sender(fd, ((*message).msg_name.cast(), (*message).msg_namelen), flags) {
            Ok(Some(ours)) => answer(send_message(&ours, message, flags)),
            Ok(None) => next(fd, message, flags),
            Err(errno) => answer(Err(errno)),
        }
    }

    fn recvmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> c_int |next| {
        let Some(ours) = ours(fd) else {
            return next(fd, messages, count, flags, timeout);
        };
        let mut done = 0;
        while done < count {
            let message = messages.add(done as usize);
            // Only the first one waits, as with a timeout that is over.
            let later = if done > 0 { libc::MSG_DONTWAIT } else { 0 };
            let flags = flags & !libc::MSG_WAITFORONE | later;
            match receive_message(&ours, &raw mut (*message).msg_hdr, flags) {
                Ok(len) => (*message).msg_len = len as c_uint,
                Err(errno) if done == 0 => return answer(Err(errno)) as c_int,
                Err(_) => break,
            }
            done += 1;
        }
        done as c_int
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int |next| {
        if messages.is_null() || count == 0 {
            return next(fd, messages, count, flags);
        }
        let first = &(*messages).msg_hdr;
        let ours = match sender(fd, (first.msg_name.cast(), first.msg_namelen), flags) {
            Ok(Some(ours)) => ours,
            Ok(None) => return next(fd, messages, count, flags),
            Err(errno) => return answer(Err(errno)) as c_int,
        };
        for done in 0..count {
            let message = messages.add(done as usize);
            match send_message(&ours, &raw const (*message).msg_hdr, flags) {
                Ok(len) => (*message).msg_len = len as c_uint,
                Err(errno) if done == 0 => return answer(Err(errno)) as c_int,
                Err(_) => return done as c_int,
            }
        }
        count as c_int
    }
}

/// Finds the sockets of the descriptors that have arrived in a message over a Unix socket, from this
/// process: each is a further number of one.
///
/// # Safety
/// The kernel has filled `message`.
unsafe fn adopt(message: &msghdr) {
    // SAFETY: the kernel has written control messages of this length there; `CMSG_NXTHDR` ends at
    // it, and the data of a message of `SCM_RIGHTS` are numbers.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header).cast::<c_int>();
            let bytes = (*header)
                .cmsg_len
                .saturating_sub(data.byte_offset_from(header) as usize);
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                (0..bytes / size_of::<c_int>())
                    .for_each(|i| table::adopt(data.add(i).read_unaligned()));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// # Safety
/// `message` is null or describes live memory.
unsafe fn receive_message(ours: &Ours, message: *mut msghdr, flags: c_int) -> Result<usize, Errno> {
    if message.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise, for the structure and its pointers.
    unsafe {
        let parts = parts((*message).msg_iov, (*message).msg_iovlen, libc::EMSGSIZE)?;
        let (len, arrived) = receive(ours, &mut views_mut(parts)?, flags)?;
        (*message).msg_flags = 0;
        let room = core::mem::take(&mut (*message).msg_controllen);
        match arrived {
            Some(arrived) => {
                if arrived.len > arrived.copied {
                    (*message).msg_flags |= libc::MSG_TRUNC;
                }
                if let Object::Udp(udp) = &ours.live()?.object {
                    let room = if (*message).msg_control.is_null() {
                        0
                    } else {
                        room
                    };
                    let mut control = view_mut((*message).msg_control, room)?;
                    let wanted = udp.wanted.load(Ordering::Relaxed);
                    let (used, has_room) = control::write(&mut control, wanted, &arrived);
                    (*message).msg_controllen = used;
                    if !has_room {
                        (*message).msg_flags |= libc::MSG_CTRUNC;
                    }
                }
                if !(*message).msg_name.is_null() {
                    let name: *mut c_void = (*message).msg_name;
                    let name_len = &raw mut (*message).msg_namelen;
                    addr::write(
                        arrived.from,
                        ours.0.common.domain,
                        name.cast::<sockaddr>(),
                        name_len,
                    )?;
                }
            }
            None => (*message).msg_namelen = 0,
        }
        Ok(len)
    }
}

/// # Safety
/// `message` describes live memory.
unsafe fn send_message(ours: &Ours, message: *const msghdr, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the caller's promise, for the structure and its pointers.
    unsafe {
        let parts = parts((*message).msg_iov, (*message).msg_iovlen, libc::EMSGSIZE)?;
        let (name, len) = ((*message).msg_name, (*message).msg_namelen);
        let marks = match ours.live()?.object {
            Object::Udp(_) => {
                control::read(&view((*message).msg_control, (*message).msg_controllen)?)?
            }
            Object::Tcp(_) => Marks::default(),
        };
        transmit_marked(ours, &views(parts)?, flags, (name.cast(), len), marks)
    }
}
