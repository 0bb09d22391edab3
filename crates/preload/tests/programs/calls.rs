//! Runs the calls of `calls.txt`, and prints what each returns. The same program runs over the
//! kernel's sockets and over ours.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::fmt::Write;
use std::mem::zeroed;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{iovec, msghdr, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

/// The calls, in groups that begin with a line `# title`.
pub(crate) const CALLS: &str = include_str!("calls.txt");

static BROKEN_PIPES: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(signal: c_int) {
    if signal == libc::SIGPIPE {
        BROKEN_PIPES.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs all calls, and prints a line for each.
pub(crate) fn run() {
    // SAFETY: the handler only changes an atomic.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = count as extern "C" fn(c_int) as usize;
        libc::sigaction(libc::SIGPIPE, &raw const action, null_mut());
        libc::sigaction(libc::SIGALRM, &raw const action, null_mut());
    }
    let mut out = String::new();
    let mut script = Script::default();
    for line in CALLS.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with('#') {
            script.close_all();
            let _ = writeln!(out, "{line}");
            continue;
        }
        let (is_quiet, call) = match line.strip_prefix("quiet ") {
            Some(call) => (true, call),
            None => (false, line),
        };
        let words: Vec<&str> = call.split_whitespace().collect();
        let result = script.call(&words);
        if !is_quiet {
            let _ = writeln!(out, "{line} = {result}");
        }
    }
    script.close_all();
    print!("{out}");
}

#[derive(Default)]
struct Script {
    descriptors: HashMap<String, c_int>,
    /// Kept, since addresses are passed by pointer.
    bytes: Vec<u8>,
}

/// The value, or the number of the error.
fn said(result: isize) -> String {
    match result {
        -1 => {
            let error = std::io::Error::last_os_error();
            format!("error {}", error.raw_os_error().unwrap_or(0))
        }
        value => value.to_string(),
    }
}

fn polled(fd: c_int, events: i16) -> libc::pollfd {
    let revents = 0;
    libc::pollfd {
        fd,
        events,
        revents,
    }
}

fn flags(words: &[&str]) -> c_int {
    words.iter().fold(0, |flags, word| {
        flags
            | match *word {
                "peek" => libc::MSG_PEEK,
                "dontwait" => libc::MSG_DONTWAIT,
                "waitall" => libc::MSG_WAITALL,
                "nosignal" => libc::MSG_NOSIGNAL,
                "trunc" => libc::MSG_TRUNC,
                "oob" => libc::MSG_OOB,
                "errqueue" => libc::MSG_ERRQUEUE,
                "more" => libc::MSG_MORE,
                "nonblock" => libc::SOCK_NONBLOCK,
                "cloexec" => libc::SOCK_CLOEXEC,
                "in" => libc::POLLIN.into(),
                "out" => libc::POLLOUT.into(),
                "rdhup" => libc::POLLRDHUP.into(),
                "et" => libc::EPOLLET,
                "oneshot" => libc::EPOLLONESHOT,
                "exclusive" => libc::EPOLLEXCLUSIVE,
                "fastopen" => libc::MSG_FASTOPEN,
                number => number.parse().unwrap_or_else(|_| panic!("flag {number}")),
            }
    })
}

/// The level and name of an option.
fn option(word: &str) -> (c_int, c_int) {
    use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
    match word {
        "error" => (SOL_SOCKET, libc::SO_ERROR),
        "type" => (SOL_SOCKET, libc::SO_TYPE),
        "domain" => (SOL_SOCKET, libc::SO_DOMAIN),
        "protocol" => (SOL_SOCKET, libc::SO_PROTOCOL),
        "acceptconn" => (SOL_SOCKET, libc::SO_ACCEPTCONN),
        "reuseaddr" => (SOL_SOCKET, libc::SO_REUSEADDR),
        "reuseport" => (SOL_SOCKET, libc::SO_REUSEPORT),
        "fastopen" => (IPPROTO_TCP, libc::TCP_FASTOPEN),
        "keepalive" => (SOL_SOCKET, libc::SO_KEEPALIVE),
        "broadcast" => (SOL_SOCKET, libc::SO_BROADCAST),
        "linger" => (SOL_SOCKET, libc::SO_LINGER),
        "rcvtimeo" => (SOL_SOCKET, libc::SO_RCVTIMEO),
        "sndtimeo" => (SOL_SOCKET, libc::SO_SNDTIMEO),
        "rcvbuf" => (SOL_SOCKET, libc::SO_RCVBUF),
        "sndbuf" => (SOL_SOCKET, libc::SO_SNDBUF),
        "nodelay" => (IPPROTO_TCP, libc::TCP_NODELAY),
        "lowat" => (IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
        "cork" => (IPPROTO_TCP, libc::TCP_CORK),
        "keepidle" => (IPPROTO_TCP, libc::TCP_KEEPIDLE),
        "keepintvl" => (IPPROTO_TCP, libc::TCP_KEEPINTVL),
        "keepcnt" => (IPPROTO_TCP, libc::TCP_KEEPCNT),
        "usertimeout" => (IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
        "maxseg" => (IPPROTO_TCP, libc::TCP_MAXSEG),
        "tos" => (IPPROTO_IP, libc::IP_TOS),
        "ttl" => (IPPROTO_IP, libc::IP_TTL),
        "v6only" => (IPPROTO_IPV6, libc::IPV6_V6ONLY),
        "hops" => (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
        "unknown" => (IPPROTO_TCP, 9999),
        "level" => (7777, 1),
        _ => panic!("option {word}"),
    }
}

/// An address in memory, as the calls take it.
fn address(words: &[&str]) -> (Vec<u8>, socklen_t) {
    let name = words[0];
    let port: u16 = words.get(1).map_or(0, |port| port.parse().expect("a port"));
    // SAFETY: zeros are a value of both structures.
    let (mut v4, mut v6): (sockaddr_in, sockaddr_in6) = unsafe { (zeroed(), zeroed()) };
    let four = match name {
        "peer" => Some(Ipv4Addr::new(10, 78, 0, 2)),
        "own" => Some(Ipv4Addr::new(10, 78, 0, 1)),
        "any" => Some(Ipv4Addr::UNSPECIFIED),
        "foreign" => Some(Ipv4Addr::new(10, 78, 0, 77)),
        "outside" => Some(Ipv4Addr::new(192, 0, 2, 1)),
        "broadcast" => Some(Ipv4Addr::new(10, 78, 0, 255)),
        "limited" => Some(Ipv4Addr::BROADCAST),
        _ => None,
    };
    let six = match name {
        "any6" => Some(Ipv6Addr::UNSPECIFIED),
        "mapped" => Some(Ipv4Addr::new(10, 78, 0, 2).to_ipv6_mapped()),
        _ => None,
    };
    let bytes = match (four, six) {
        (Some(ip), _) => {
            v4.sin_family = libc::AF_INET as u16;
            v4.sin_port = port.to_be();
            v4.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
            // SAFETY: the structure is plain bytes.
            unsafe { std::slice::from_raw_parts((&raw const v4).cast::<u8>(), size_of_val(&v4)) }
        }
        (_, Some(ip)) => {
            v6.sin6_family = libc::AF_INET6 as u16;
            v6.sin6_port = port.to_be();
            v6.sin6_addr.s6_addr = ip.octets();
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts((&raw const v6).cast::<u8>(), size_of_val(&v6)) }
        }
        _ if name == "unspec" => &[0; 16],
        _ if name == "unix" => &[1, 0, 47, 120, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        _ if name == "short" => &[2, 0, 0, 7],
        _ => panic!("address {name}"),
    };
    (bytes.to_vec(), bytes.len() as socklen_t)
}

/// The text of an address that a call has written.
fn shown(bytes: &[u8], len: socklen_t) -> String {
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let port = match port {
        32_768.. => "chosen".to_owned(),
        port => port.to_string(),
    };
    let ip = match c_int::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
        _ if len == 0 => return "no address".to_owned(),
        libc::AF_INET => Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]).to_string(),
        libc::AF_INET6 => {
            let ip: [u8; 16] = bytes[8..24].try_into().expect("16 bytes");
            Ipv6Addr::from(ip).to_string()
        }
        other => format!("family {other}"),
    };
    format!("{ip} {port} ({len} bytes)")
}

impl Script {
    fn fd(&self, name: &str) -> c_int {
        self.descriptors.get(name).copied().unwrap_or(-1)
    }

    fn made(&mut self, name: &str, fd: c_int) -> String {
        let text = said(fd as isize);
        if fd < 0 {
            return text;
        }
        self.descriptors.insert(name.to_owned(), fd);
        "a descriptor".to_owned()
    }

    fn close_all(&mut self) {
        for (_, fd) in self.descriptors.drain() {
            // SAFETY: it belongs to this script.
            unsafe { libc::close(fd) };
        }
    }

    /// Makes room for `len` bytes, and returns their address.
    fn room(&mut self, len: usize) -> *mut c_void {
        self.bytes = (0..len).map(|i| b'a' + (i % 26) as u8).collect();
        self.bytes.as_mut_ptr().cast()
    }

    /// Makes room for two parts of a message.
    fn parts(&mut self, one: usize, two: usize) -> [iovec; 2] {
        let bytes = self.room(one + two);
        let part = |iov_base, iov_len| iovec { iov_base, iov_len };
        [part(bytes, one), part(bytes.wrapping_byte_add(one), two)]
    }

    fn received(&self, result: isize) -> String {
        let len = result.clamp(0, self.bytes.len() as isize) as usize;
        let sum = self.bytes[..len].iter().fold(0u32, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add((*byte).into())
        });
        let text = said(result);
        if len > 0 {
            format!("{text}, sum {sum}")
        } else {
            text
        }
    }

    fn call(&mut self, words: &[&str]) -> String {
        let name = words[0];
        let second = words.get(1).copied().unwrap_or_default();
        let number = |index: usize| -> i64 {
            words
                .get(index)
                .map_or(0, |word| word.parse().expect("a number"))
        };
        let fd = self.fd(second);
        // SAFETY: pointers are null, or to memory that lives during the call, with its length.
        unsafe {
            match name {
                "socket" => {
                    let family = if words[2] == "6" {
                        libc::AF_INET6
                    } else {
                        libc::AF_INET
                    };
                    let kind = match words[3] {
                        "stream" => libc::SOCK_STREAM,
                        "dgram" => libc::SOCK_DGRAM,
                        number => number.parse().expect("a kind"),
                    };
                    let fd = libc::socket(family, kind | flags(&words[4..]), 0);
                    self.made(second, fd)
                }
                "bind" | "connect" => {
                    let (bytes, len) = address(&words[2..]);
                    let call = if name == "bind" {
                        libc::bind
                    } else {
                        libc::connect
                    };
                    said(call(fd, bytes.as_ptr().cast::<sockaddr>(), len) as isize)
                }
                "listen" => said(libc::listen(fd, number(2) as c_int) as isize),
                "accept" => {
                    let new = match words.get(3) {
                        None => libc::accept(fd, null_mut(), null_mut()),
                        Some(_) => libc::accept4(fd, null_mut(), null_mut(), flags(&words[3..])),
                    };
                    self.made(words[2], new)
                }
                "acceptfrom" => {
                    let (mut bytes, mut len) = ([0u8; 64], 64);
                    let new = libc::accept(fd, bytes.as_mut_ptr().cast(), &raw mut len);
                    let text = self.made(words[2], new);
                    format!("{text} {}", shown(&bytes, len))
                }
                "send" | "write" => {
                    let len = number(2) as usize;
                    let bytes = self.room(len);
                    said(match name {
                        "send" => libc::send(fd, bytes, len, flags(&words[3..])),
                        _ => libc::write(fd, bytes, len),
                    })
                }
                "recv" | "read" => {
                    let len = number(2) as usize;
                    let bytes = self.room(len);
                    let result = match name {
                        "recv" => libc::recv(fd, bytes, len, flags(&words[3..])),
                        _ => libc::read(fd, bytes, len),
                    };
                    self.received(result)
                }
                "writev" | "readv" => {
                    let (one, two) = (number(2) as usize, number(3) as usize);
                    let vector = self.parts(one, two);
                    match name {
                        "writev" => said(libc::writev(fd, vector.as_ptr(), 2)),
                        _ => self.received(libc::readv(fd, vector.as_ptr(), 2)),
                    }
                }
                "vector" => said(libc::writev(fd, null_mut(), number(2) as c_int)),
                "sendto" => {
                    let len = number(2) as usize;
                    let bytes = self.room(len);
                    let (to, to_len) = address(&words[3..5.min(words.len())]);
                    let flags = flags(words.get(5..).unwrap_or_default());
                    said(libc::sendto(
                        fd,
                        bytes,
                        len,
                        flags,
                        to.as_ptr().cast(),
                        to_len,
                    ))
                }
                "recvfrom" => {
                    let len = number(2) as usize;
                    let room = self.room(len);
                    let (mut bytes, mut from) = ([0u8; 64], 64);
                    let to = bytes.as_mut_ptr().cast();
                    let flags = flags(&words[3..]);
                    let result = libc::recvfrom(fd, room, len, flags, to, &raw mut from);
                    let text = self.received(result);
                    if result < 0 {
                        text
                    } else {
                        format!("{text} {}", shown(&bytes, from))
                    }
                }
                "sendmsg" | "recvmsg" => {
                    let (one, two) = (number(2) as usize, number(3) as usize);
                    let mut vector = self.parts(one, two);
                    let (mut address, mut message): ([u8; 64], msghdr) = ([0; 64], zeroed());
                    message.msg_iov = vector.as_mut_ptr();
                    message.msg_iovlen = 2;
                    let flags = flags(&words[4..]);
                    if name == "sendmsg" {
                        return said(libc::sendmsg(fd, &raw const message, flags));
                    }
                    message.msg_name = address.as_mut_ptr().cast();
                    message.msg_namelen = 64;
                    let result = libc::recvmsg(fd, &raw mut message, flags);
                    let text = self.received(result);
                    let from = shown(&address, message.msg_namelen);
                    match result {
                        -1 => text,
                        _ => format!("{text} {from} flags {}", message.msg_flags),
                    }
                }
                // Messages of equal length, by one call; by `syscall` if the name begins with "raw".
                "sendmmsg" | "recvmmsg" | "rawsendmmsg" | "rawrecvmmsg" => {
                    let (count, len) = (number(2) as usize, number(3) as usize);
                    let bytes = self.room(count * len);
                    let mut parts = Vec::from_iter((0..count).map(|i| iovec {
                        iov_base: bytes.add(i * len),
                        iov_len: len,
                    }));
                    let mut messages: Vec<libc::mmsghdr> = vec![zeroed(); count];
                    for (message, part) in messages.iter_mut().zip(&mut parts) {
                        message.msg_hdr.msg_iov = part;
                        message.msg_hdr.msg_iovlen = 1;
                    }
                    let (place, flags) = (messages.as_mut_ptr(), flags(&words[4..]));
                    let none = null_mut::<libc::timespec>();
                    let result = match name {
                        "sendmmsg" => libc::sendmmsg(fd, place, count as u32, flags),
                        "recvmmsg" => libc::recvmmsg(fd, place, count as u32, flags, none),
                        "rawsendmmsg" => {
                            libc::syscall(libc::SYS_sendmmsg, fd, place, count, flags) as c_int
                        }
                        _ => libc::syscall(libc::SYS_recvmmsg, fd, place, count, flags, none)
                            as c_int,
                    };
                    let done = &messages[..result.max(0) as usize];
                    let lens: Vec<u32> = done.iter().map(|message| message.msg_len).collect();
                    format!("{} {lens:?}", said(result as isize))
                }
                "rawsend" => {
                    let len = number(2) as usize;
                    let bytes = self.room(len);
                    said(libc::syscall(libc::SYS_write, fd, bytes, len) as isize)
                }
                // Passes a descriptor through a pair of Unix sockets.
                "pass" => {
                    let (mut pair, mut room, mut control) = ([0; 2], [0u8; 1], [0u64; 3]);
                    libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr());
                    let mut part = iovec {
                        iov_base: room.as_mut_ptr().cast(),
                        iov_len: 1,
                    };
                    let mut message: msghdr = zeroed();
                    message.msg_iov = &raw mut part;
                    message.msg_iovlen = 1;
                    message.msg_control = control.as_mut_ptr().cast();
                    message.msg_controllen = 24;
                    let header = libc::CMSG_FIRSTHDR(&raw const message);
                    (*header).cmsg_level = libc::SOL_SOCKET;
                    (*header).cmsg_type = libc::SCM_RIGHTS;
                    (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
                    libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(fd);
                    let sent = libc::sendmsg(pair[0], &raw const message, 0);
                    let received = libc::recvmsg(pair[1], &raw mut message, 0);
                    let new = libc::CMSG_DATA(header).cast::<c_int>().read_unaligned();
                    libc::close(pair[0]);
                    libc::close(pair[1]);
                    format!("{sent} {received} {}", self.made(words[2], new))
                }
                "pipe" => {
                    let mut pair = [0; 2];
                    libc::pipe(pair.as_mut_ptr());
                    self.made(second, pair[0]) + &self.made(words[2], pair[1])
                }
                "outq" | "atmark" => {
                    let request = if name == "outq" {
                        libc::TIOCOUTQ
                    } else {
                        0x8905
                    };
                    let mut value: c_int = -7;
                    let result = libc::ioctl(fd, request, &raw mut value);
                    format!("{} {value}", said(result as isize))
                }
                "shutdown" => said(libc::shutdown(fd, number(2) as c_int) as isize),
                "close" => {
                    self.descriptors.remove(second);
                    said(libc::close(fd) as isize)
                }
                "getsockname" | "getpeername" => {
                    let (mut bytes, mut len) = ([0u8; 64], number(2) as socklen_t);
                    if words.len() < 3 {
                        len = 64;
                    }
                    let call = match name {
                        "getsockname" => libc::getsockname,
                        _ => libc::getpeername,
                    };
                    match call(fd, bytes.as_mut_ptr().cast(), &raw mut len) {
                        0 => shown(&bytes, len),
                        result => said(result as isize),
                    }
                }
                "getopt" => {
                    let (level, name) = option(words[2]);
                    let (mut value, mut len) = ([0i64; 2], 16);
                    if words.len() > 3 {
                        len = number(3) as socklen_t;
                    }
                    let place = value.as_mut_ptr().cast();
                    match libc::getsockopt(fd, level, name, place, &raw mut len) {
                        0 => format!("{value:?} ({len} bytes)"),
                        result => said(result as isize),
                    }
                }
                "setopt" => {
                    let (level, name) = option(words[2]);
                    let mut value = [number(3) as i32, 0, 0, 0];
                    let mut len = 4;
                    match words[2] {
                        "linger" => (value[1], len) = (number(4) as i32, 8),
                        // In microseconds.
                        "rcvtimeo" | "sndtimeo" => {
                            (value, len) = ([0, 0, number(3) as i32, 0], 16);
                        }
                        _ if words.len() > 4 => len = number(4) as socklen_t,
                        _ => {}
                    }
                    let place = value.as_ptr().cast();
                    said(libc::setsockopt(fd, level, name, place, len) as isize)
                }
                "poll" | "await" => {
                    let events = flags(&words[2..]) as i16;
                    let mut one = polled(fd, events);
                    let patience = if name == "await" { 5000 } else { 0 };
                    let result = libc::poll(&raw mut one, 1, patience);
                    assert!(
                        name == "poll" || result == 1,
                        "{words:?}: {}",
                        said(result as isize)
                    );
                    format!("{} events {:#x}", said(result as isize), one.revents)
                }
                "select" => {
                    let (mut read, mut write): (libc::fd_set, libc::fd_set) = (zeroed(), zeroed());
                    libc::FD_SET(fd, &raw mut read);
                    libc::FD_SET(fd, &raw mut write);
                    let mut now: libc::timeval = zeroed();
                    let (r, w) = (&raw mut read, &raw mut write);
                    let result = libc::select(fd + 1, r, w, null_mut(), &raw mut now);
                    let is_set = |set: *const libc::fd_set| libc::FD_ISSET(fd, set);
                    format!("{} {} {}", said(result as isize), is_set(r), is_set(w))
                }
                "epoll" => {
                    let fd = libc::epoll_create1(0);
                    self.made(second, fd)
                }
                "epadd" | "epmod" | "epdel" => {
                    let operation = match name {
                        "epadd" => libc::EPOLL_CTL_ADD,
                        "epmod" => libc::EPOLL_CTL_MOD,
                        _ => libc::EPOLL_CTL_DEL,
                    };
                    let events = flags(&words[3..]) as u32;
                    let mut event = libc::epoll_event { events, u64: 7 };
                    let other = self.fd(words[2]);
                    said(libc::epoll_ctl(fd, operation, other, &raw mut event) as isize)
                }
                "epwait" => {
                    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
                    let patience = number(2) as c_int;
                    let count = libc::epoll_wait(fd, events.as_mut_ptr(), 4, patience);
                    let found = &events[..count.max(0) as usize];
                    let texts = found.iter().map(|event| {
                        let (events, token) = (event.events, event.u64);
                        format!(" {events:#x} of {token}")
                    });
                    said(count as isize) + &texts.collect::<String>()
                }
                "fionread" => {
                    let mut unread: c_int = -7;
                    let result = libc::ioctl(fd, libc::FIONREAD, &raw mut unread);
                    format!("{} {unread}", said(result as isize))
                }
                "fionbio" => {
                    let value = number(2) as c_int;
                    said(libc::ioctl(fd, libc::FIONBIO, &raw const value) as isize)
                }
                "getfl" => said((libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK) as isize),
                "getfd" => said(libc::fcntl(fd, libc::F_GETFD) as isize),
                "setfl" => {
                    let flag = if number(2) == 1 { libc::O_NONBLOCK } else { 0 };
                    said(libc::fcntl(fd, libc::F_SETFL, libc::O_RDWR | flag) as isize)
                }
                "dup" => {
                    let new = libc::dup(fd);
                    self.made(words[2], new)
                }
                "dupfd" => {
                    let new = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 50);
                    self.made(words[2], new)
                }
                "dup2" => {
                    let other = self.fd(words[2]);
                    let new = libc::dup2(fd, other);
                    self.made(words[2], new)
                }
                "sendfile" => {
                    let len = number(2) as usize;
                    let bytes = self.room(len);
                    let file = libc::memfd_create(c"bytes".as_ptr(), 0);
                    libc::write(file, bytes, len);
                    let mut offset = number(3);
                    let text = said(libc::sendfile(fd, file, &raw mut offset, len));
                    libc::close(file);
                    format!("{text} to {offset}")
                }
                "nullrecv" => {
                    let flags = flags(&words[3..]);
                    said(libc::recv(fd, null_mut(), number(2) as usize, flags))
                }
                "nullsend" => said(libc::send(fd, null_mut(), number(2) as usize, 0)),
                "seek" => said(libc::lseek(fd, 0, libc::SEEK_CUR) as isize),
                "pread" => {
                    let bytes = self.room(4);
                    said(libc::pread(fd, bytes, 4, 0))
                }
                "alarmed" => {
                    let mut timer: libc::itimerval = zeroed();
                    timer.it_value.tv_usec = 30_000;
                    timer.it_interval.tv_usec = 30_000;
                    libc::setitimer(libc::ITIMER_REAL, &raw const timer, null_mut());
                    let result = self.call(&words[1..]);
                    let never: libc::itimerval = zeroed();
                    libc::setitimer(libc::ITIMER_REAL, &raw const never, null_mut());
                    result
                }
                "brokenpipes" => BROKEN_PIPES.swap(0, Ordering::Relaxed).to_string(),
                // Writes until no room appears any more, and reports whether there was any.
                "fill" => {
                    let bytes = self.room(65_536);
                    let mut sum = 0;
                    while libc::send(fd, bytes, 65_536, libc::MSG_DONTWAIT) > 0 || {
                        let mut one = polled(fd, libc::POLLOUT);
                        libc::poll(&raw mut one, 1, 300) > 0
                    } {
                        sum += 1;
                    }
                    (sum > 0).to_string()
                }
                // Waits until both directions of a connection have ended.
                "ended" => {
                    let (mut bytes, mut len) = ([0u8; 64], 64);
                    let place = bytes.as_mut_ptr().cast();
                    while libc::getpeername(fd, place, &raw mut len) == 0 {
                        std::thread::yield_now();
                    }
                    "ended".to_owned()
                }
                // Asks the peer to connect, with what to do next.
                "summon" => {
                    let helper = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
                    let text = words[1..].join(" ");
                    let (to, len) = address(&["peer", "21"]);
                    let bytes = text.as_ptr().cast();
                    libc::sendto(helper, bytes, text.len(), 0, to.as_ptr().cast(), len);
                    let mut answer = [0u8; 4];
                    libc::recv(helper, answer.as_mut_ptr().cast(), 4, 0);
                    libc::close(helper);
                    "asked".to_owned()
                }
                _ => panic!("call {name}"),
            }
        }
    }
}
