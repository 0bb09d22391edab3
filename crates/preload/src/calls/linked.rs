//! The calls with a prefix, for programs that are linked with this library: `include/dominoes.h`,
//! which cbindgen generates from this file.

#![allow(
    unreachable_pub,
    reason = "cbindgen passes over functions that are not public"
)]
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "each function passes the promise of its caller on"
)]

use libc::{
    addrinfo, c_char, c_int, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr,
    nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

use super::{bytes, descriptors, messages, names, open, ready};

/// As `socket`. Without `LD_PRELOAD` only the sockets of this function may become ours.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_socket(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    let fd = open::socket(domain, kind, protocol);
    open::offer(fd, domain, kind, protocol);
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_read(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
) -> ssize_t {
    bytes::read(fd, into, len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_readv(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    bytes::readv(fd, vector, count)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_recv(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    bytes::recv(fd, into, len, flags)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_recvfrom(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    bytes::recvfrom(fd, into, len, flags, address, address_len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_recvmsg(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    messages::recvmsg(fd, message, flags)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    messages::recvmmsg(fd, messages, count, flags, timeout)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_write(
    fd: c_int,
    from: *const c_void,
    len: size_t,
) -> ssize_t {
    bytes::write(fd, from, len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_writev(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    bytes::writev(fd, vector, count)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_send(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    bytes::send(fd, from, len, flags)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_sendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    bytes::sendto(fd, from, len, flags, to, to_len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    messages::sendmsg(fd, message, flags)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    messages::sendmmsg(fd, messages, count, flags)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_sendfile(
    fd: c_int,
    file: c_int,
    offset: *mut off_t,
    len: size_t,
) -> ssize_t {
    bytes::sendfile(fd, file, offset, len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_bind(
    fd: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> c_int {
    open::bind(fd, address, len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_listen(fd: c_int, backlog: c_int) -> c_int {
    open::listen(fd, backlog)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_connect(
    fd: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> c_int {
    open::connect(fd, address, len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_accept(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    open::accept(fd, address, len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    open::accept4(fd, address, len, flags)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_shutdown(fd: c_int, how: c_int) -> c_int {
    open::shutdown(fd, how)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_getsockname(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    open::getsockname(fd, address, len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_getpeername(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    open::getpeername(fd, address, len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    open::getsockopt(fd, level, name, value, len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    open::setsockopt(fd, level, name, value, len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_close(fd: c_int) -> c_int {
    descriptors::close(fd)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_dup(fd: c_int) -> c_int {
    descriptors::dup(fd)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_dup2(fd: c_int, to: c_int) -> c_int {
    descriptors::dup2(fd, to)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    descriptors::dup3(fd, to, flags)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_fcntl(
    fd: c_int,
    command: c_int,
    argument: c_ulong,
) -> c_int {
    descriptors::fcntl(fd, command, argument)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_ioctl(
    fd: c_int,
    request: c_ulong,
    argument: c_ulong,
) -> c_int {
    descriptors::ioctl(fd, request, argument)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_poll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
) -> c_int {
    ready::poll(fds, count, timeout)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    ready::ppoll(fds, count, timeout, signals)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    ready::select(count, read, write, except, timeout)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    ready::pselect(count, read, write, except, timeout, signals)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    ready::epoll_wait(set, events, most, timeout)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    signals: *const sigset_t,
) -> c_int {
    ready::epoll_pwait(set, events, most, timeout, signals)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    ready::epoll_ctl(set, operation, fd, event)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
    found: *mut *mut addrinfo,
) -> c_int {
    names::getaddrinfo(node, service, hints, found)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dominoes_freeaddrinfo(list: *mut addrinfo) {
    names::freeaddrinfo(list);
}
