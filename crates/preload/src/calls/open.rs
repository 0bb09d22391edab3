//! Making, naming and connecting sockets.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use libc::{sockaddr, socklen_t};

use super::{Ours, answer, answer_unit, interpose, ours, view};
use crate::socket::{Object, Socket};
use crate::sys::{self, Errno, Fd};
use crate::{addr, datagrams, options, stack, stream, table};

/// Whether the stack could have such a socket.
fn may_be_ours(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    let is_known = match kind & 0xf {
        libc::SOCK_STREAM => protocol == 0 || protocol == libc::IPPROTO_TCP,
        libc::SOCK_DGRAM => protocol == 0 || protocol == libc::IPPROTO_UDP,
        _ => false,
    };
    is_known && matches!(domain, libc::AF_INET | libc::AF_INET6) && stack::takes_sockets()
}

/// Lets a new socket become ours when its addresses are known.
pub(super) fn offer(fd: Fd, domain: c_int, kind: c_int, protocol: c_int) {
    if fd >= 0 && may_be_ours(domain, kind, protocol) {
        table::insert(fd, &Socket::undecided(domain, kind));
    }
}

/// Leaves a socket to the kernel for good.
fn release(socket: &Socket) {
    for number in socket.numbers() {
        table::remove(number);
        stack::log(|| format!("socket {number} uses the kernel"));
    }
    stack::KERNELS.fetch_add(1, Ordering::Relaxed);
}

interpose! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int |next| {
        let fd = next(domain, kind, protocol);
        if stack::is_preloaded() {
            offer(fd, domain, kind, protocol);
        }
        fd
    }

    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int |next| {
        let Some(socket) = table::socket(fd) else {
            return next(fd, address, len);
        };
        if stack::is_fork() {
            return answer_unit(Err(libc::ENETDOWN));
        }
        let local = addr::read(address, len, socket.common.domain);
        if socket.live.is_some() {
            let wrong = if local.is_some() { libc::EINVAL } else { libc::EAFNOSUPPORT };
            let short = (len as usize) < size_of::<libc::sockaddr_in>();
            return answer_unit(Err(if short { libc::EINVAL } else { wrong }));
        }
        match local.filter(|local| stack::for_local(*local).is_some()) {
            Some(local) if socket.common.is_stream => {
                answer_unit(stream::bind(&socket, fd, local))
            }
            Some(local) => answer_unit(datagrams::bind(&socket, fd, local).map(|_| ())),
            None => {
                let result = next(fd, address, len);
                if result == 0 && socket.common.is_stream {
                    release(&socket);
                }
                result
            }
        }
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int |next| {
        match table::socket(fd) {
            Some(_) if stack::is_fork() => answer_unit(Err(libc::ENETDOWN)),
            Some(socket) if socket.common.is_stream => {
                let local = socket.common.local();
                if socket.live.is_none() && stack::for_local(local).is_none() {
                    release(&socket);
                    return next(fd, backlog);
                }
                answer_unit(stream::listen(&socket, fd, backlog))
            }
            Some(socket) if socket.live.is_some() => answer_unit(Err(libc::EOPNOTSUPP)),
            _ => next(fd, backlog),
        }
    }

    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int |next| {
        let Some(socket) = table::socket(fd) else {
            return next(fd, address, len);
        };
        if socket.live.is_some() || stack::is_fork() {
            return answer_unit(connect_ours(&Ours(socket), address, len));
        }
        let remote = addr::read(address, len, socket.common.domain);
        let remote = remote.filter(|remote| stack::for_remote(*remote).is_some());
        let Some(remote) = remote else {
            let result = next(fd, address, len);
            let has_begun = result == 0 || sys::errno() == libc::EINPROGRESS;
            if has_begun && socket.common.is_stream {
                release(&socket);
            }
            return result;
        };
        answer_unit(if socket.common.is_stream {
            stream::connect(&socket, remote)
        } else {
            let any = socket.common.unspecified();
            datagrams::bind(&socket, fd, any).and_then(|socket| {
                connect_ours(&Ours(socket), address, len)
            })
        })
    }

    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int |next| {
        match ours(fd) {
            Some(ours) => accept_ours(&ours, address, len, 0),
            None => next(fd, address, len),
        }
    }

    fn accept4(
        fd: c_int,
        address: *mut sockaddr,
        len: *mut socklen_t,
        flags: c_int,
    ) -> c_int |next| {
        match ours(fd) {
            Some(_) if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 => {
                answer_unit(Err(libc::EINVAL))
            }
            Some(ours) => accept_ours(&ours, address, len, flags),
            None => next(fd, address, len, flags),
        }
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int |next| {
        let Some(ours) = ours(fd) else { return next(fd, how) };
        answer_unit(ours.live().and_then(|live| match &live.object {
            _ if !(0..=2).contains(&how) => Err(libc::EINVAL),
            Object::Tcp(tcp) => tcp.shutdown(live, how),
            Object::Udp(udp) => match udp.whole.peer_addr() {
                Ok(_) => {
                    live.mirror.shut(how);
                    Ok(())
                }
                Err(_) => Err(libc::ENOTCONN),
            },
        }))
    }

    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int |next| {
        let Some(socket) = table::socket(fd) else {
            return next(fd, address, len);
        };
        let local = match &socket.live {
            _ if stack::is_fork() => return answer_unit(Err(libc::ENETDOWN)),
            Some(live) => options::local(&socket.common, live),
            None if socket.common.local().port() == 0 => return next(fd, address, len),
            None => socket.common.local(),
        };
        answer_unit(addr::write(local, socket.common.domain, address, len))
    }

    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int |next| {
        let Some(ours) = ours(fd) else {
            return next(fd, address, len);
        };
        let peer = ours.live().and_then(|live| match &live.object {
            Object::Tcp(tcp) => tcp.peer(live),
            Object::Udp(udp) => udp.whole.peer_addr().map_err(|_| libc::ENOTCONN),
        });
        let domain = ours.0.common.domain;
        answer_unit(peer.and_then(|peer| addr::write(peer, domain, address, len)))
    }

    fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> c_int |next| {
        let Some(ours) = ours(fd) else {
            return next(fd, level, name, value, len);
        };
        let result = ours.live().and_then(|live| {
            let Some(bytes) = options::own_value(live, level, name) else {
                return Ok(Err(live.shadow(&ours.0.common)?.number()));
            };
            if len.is_null() {
                return Err(libc::EFAULT);
            }
            let told = bytes.len().min(len.read_unaligned() as usize);
            addr::write_bytes(&bytes, told, value.cast(), len).map(Ok)
        });
        match result {
            Ok(Err(shadow)) => next(shadow, level, name, value, len),
            Ok(Ok(())) => 0,
            Err(errno) => answer_unit(Err(errno)),
        }
    }

    fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: socklen_t,
    ) -> c_int |next| {
        let Some(socket) = table::socket(fd) else {
            return next(fd, level, name, value, len);
        };
        if stack::is_fork() {
            return answer_unit(Err(libc::ENETDOWN));
        }
        let Some(live) = &socket.live else {
            let result = next(fd, level, name, value, len);
            if result == 0 {
                socket.common.has_options.store(true, Ordering::Relaxed);
                options::note_buffer(&socket.common, fd, level, name);
            }
            return result;
        };
        if let Object::Udp(udp) = &live.object
            && let Ok(bytes) = view(value, len as usize)
            && let Some(done) = options::multicast(udp, (level, name), &bytes)
        {
            return answer_unit(done);
        }
        let shadow = match Ours(socket.clone()).live().and_then(|live| live.shadow(&socket.common)) {
            Ok(shadow) => shadow.number(),
            Err(errno) => return answer_unit(Err(errno)),
        };
        let result = next(shadow, level, name, value, len);
        if result == 0 {
            socket.common.has_options.store(true, Ordering::Relaxed);
            options::note_buffer(&socket.common, shadow, level, name);
            options::apply(&socket.common, live, shadow, level, name);
        }
        result
    }
}

/// `connect` of a socket that is ours.
///
/// # Errors
/// As `connect`.
///
/// # Safety
/// As [`addr::read`].
unsafe fn connect_ours(ours: &Ours, address: *const sockaddr, len: socklen_t) -> Result<(), Errno> {
    let live = ours.live()?;
    let domain = ours.0.common.domain;
    // SAFETY: the caller's promise.
    let (remote, family) =
        unsafe { (addr::read(address, len, domain), addr::family(address, len)) };
    match (&live.object, remote) {
        (Object::Tcp(_), Some(remote)) => stream::connect(&ours.0, remote),
        (Object::Udp(udp), Some(remote)) => udp.connect(remote),
        (Object::Udp(udp), None) if family == Some(libc::AF_UNSPEC) => {
            udp.disconnect();
            Ok(())
        }
        (Object::Tcp(tcp), None) if tcp.is_connected() => Err(libc::EISCONN),
        (_, None) if (len as usize) < size_of::<libc::sockaddr_in>() => Err(libc::EINVAL),
        (_, None) => Err(libc::EAFNOSUPPORT),
    }
}

/// `accept` of a socket that is ours. Returns the new descriptor, as C does.
///
/// # Safety
/// As [`addr::write`].
unsafe fn accept_ours(
    ours: &Ours,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Fd {
    let accepted = ours.live().and_then(|live| match &live.object {
        Object::Tcp(tcp) => tcp.accept(&ours.0.common, live, flags),
        Object::Udp(_) => Err(libc::EOPNOTSUPP),
    });
    let accepted = accepted.and_then(|(fd, peer)| {
        if address.is_null() {
            return Ok(fd);
        }
        // SAFETY: the caller's promise.
        let written = unsafe { addr::write(peer, ours.0.common.domain, address, len) };
        written.map(|()| fd).inspect_err(|_| {
            table::remove(fd);
            let _ = sys::close(fd);
        })
    });
    answer(accepted.map(|fd| fd as usize)) as Fd
}
