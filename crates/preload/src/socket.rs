//! A socket of the program: the kernel's until its addresses are known, then perhaps ours.
//!
//! `socket` makes a socket of the kernel. `listen`, `connect` and, for datagrams, `bind` and
//! `sendto` decide. If the address is ours, the number of the descriptor gets one end of a
//! [`Mirror`], and the kernel's socket stays as the *shadow*, which checks and stores options.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use dominoes_netstack::poller::direct::Watchable;
use dominoes_netstack::{Families, SocketError, Sockets, TcpListener};

use crate::datagrams::Udp;
use crate::mirror::Mirror;
use crate::options;
use crate::stack;
use crate::stream::Tcp;
use crate::sys::{self, Errno, Fd, Kept};
use crate::table;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket of a program.
pub(crate) struct Socket {
    pub(crate) common: Arc<Common>,
    /// The parts of a socket that is ours.
    pub(crate) live: Option<Live>,
}

/// The parts that a socket keeps when it becomes ours.
pub(crate) struct Common {
    pub(crate) domain: c_int,
    /// Whether it is a socket of TCP, not UDP.
    pub(crate) is_stream: bool,
    /// Whether calls return `EAGAIN` where they would wait. The flag itself is the kernel's.
    pub(crate) is_nonblocking: AtomicBool,
    numbers: Mutex<Vec<Fd>>,
    /// The epoll sets that contain it: set, number, event.
    epolls: Mutex<Vec<(Fd, Fd, libc::epoll_event)>>,
    /// The address that a TCP socket is bound to.
    pub(crate) bound: Mutex<Option<Arc<Bound>>>,
    /// Whether the program has set an option that our stack knows.
    pub(crate) has_options: AtomicBool,
    /// The sizes of the buffers that the program has set, receiving first; 0 for others.
    pub(crate) buffers: Arc<[AtomicU32; 2]>,
    /// Held while the kernel's socket becomes ours.
    deciding: Mutex<()>,
}

/// The parts of a socket that is ours.
pub(crate) struct Live {
    pub(crate) mirror: Arc<Mirror>,
    /// Made when needed for a connection that was accepted.
    shadow: OnceLock<Arc<Kept>>,
    /// The shadow of the listener, if it has options.
    parent: Option<Arc<Kept>>,
    pub(crate) object: Object,
}

pub(crate) enum Object {
    Tcp(Box<Tcp>),
    Udp(Box<Udp>),
}

impl Common {
    pub(crate) fn new(domain: c_int, is_stream: bool, is_nonblocking: bool) -> Arc<Common> {
        Arc::new(Common {
            domain,
            is_stream,
            is_nonblocking: AtomicBool::new(is_nonblocking),
            numbers: Mutex::default(),
            epolls: Mutex::default(),
            bound: Mutex::new(None),
            has_options: AtomicBool::new(false),
            buffers: Default::default(),
            deciding: Mutex::new(()),
        })
    }

    /// Whether a call with these flags of `recv` or `send` may wait.
    pub(crate) fn may_wait(&self, flags: c_int) -> bool {
        flags & libc::MSG_DONTWAIT == 0 && !self.is_nonblocking.load(Ordering::Relaxed)
    }

    /// The address of a bound socket, or of none.
    pub(crate) fn local(&self) -> SocketAddr {
        let bound = lock(&self.bound).as_ref().map(|bound| bound.local);
        bound.unwrap_or_else(|| self.unspecified())
    }

    /// Any address of the family, and port 0.
    pub(crate) fn unspecified(&self) -> SocketAddr {
        let ip = match self.domain {
            libc::AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        SocketAddr::new(ip, 0)
    }
}

impl Socket {
    /// A socket of the kernel that may become ours.
    pub(crate) fn undecided(domain: c_int, kind: c_int) -> Arc<Socket> {
        let is_stream = kind & 0xf == libc::SOCK_STREAM;
        Arc::new(Socket {
            common: Common::new(domain, is_stream, kind & libc::SOCK_NONBLOCK != 0),
            live: None,
        })
    }

    /// Makes a new socket of ours, at the number of a new pair.
    ///
    /// # Errors
    /// `EMFILE`, if the number is too large.
    pub(crate) fn accepted(
        (parent, listener): (&Common, &Live),
        flags: c_int,
        object: Object,
        (mirror, fd): (Arc<Mirror>, Fd),
    ) -> Result<(), Errno> {
        let common = Common::new(parent.domain, true, flags & libc::SOCK_NONBLOCK != 0);
        let mut live = Live::new(mirror, OnceLock::new(), object);
        if parent.has_options.load(Ordering::Relaxed) {
            live.parent = listener.shadow.get().cloned();
            live.mirror.inherit_timeouts(&listener.mirror);
        }
        let socket = Arc::new(Socket {
            common,
            live: Some(live),
        });
        match table::insert(fd, &socket) {
            true => Ok(()),
            false => Err(libc::EMFILE),
        }
    }

    pub(crate) fn add_number(&self, fd: Fd) {
        let mut numbers = lock(&self.common.numbers);
        if !numbers.contains(&fd) {
            numbers.push(fd);
        }
    }

    /// The numbers by which the program knows it.
    pub(crate) fn numbers(&self) -> Vec<Fd> {
        lock(&self.common.numbers).clone()
    }

    pub(crate) fn remove_number(&self, fd: Fd) {
        lock(&self.common.numbers).retain(|other| *other != fd);
        lock(&self.common.epolls).retain(|(_, other, _)| *other != fd);
    }

    /// Changes an epoll set by `change`, which returns what the kernel returns.
    pub(crate) fn change_epoll(
        &self,
        (set, operation, fd, event): (Fd, c_int, Fd, libc::epoll_event),
        change: impl FnOnce() -> c_int,
    ) -> c_int {
        let stays = operation != libc::EPOLL_CTL_DEL;
        if let Some(live) = self.live.as_ref().filter(|_| stays) {
            live.poll_through(event);
        }
        let result = change();
        if result == 0 {
            let mut epolls = lock(&self.common.epolls);
            epolls.retain(|(other, number, _)| (*other, *number) != (set, fd));
            epolls.extend(stays.then_some((set, fd, event)));
        }
        result
    }

    /// Makes the socket ours. All its numbers get the end of a new pair; `object` makes the object
    /// of the stack, and gets the shadow.
    ///
    /// # Errors
    /// As `object`; `EMFILE`; `EBADF` if another thread has closed it.
    pub(crate) fn become_ours(
        self: &Arc<Self>,
        object: impl FnOnce(&Kept) -> Result<(Object, Watchable), Errno>,
    ) -> Result<Arc<Socket>, Errno> {
        let common = &self.common;
        let _deciding = lock(&common.deciding);
        let numbers = lock(&common.numbers).clone();
        let first = *numbers.first().ok_or(libc::EBADF)?;
        let old_shadow = self.live.as_ref().map(|live| live.shadow(common));
        let shadow = match old_shadow {
            Some(shadow) => Kept::duplicate(shadow?.number(), stack::least_descriptor())?,
            None => Kept::duplicate(first, stack::least_descriptor())?,
        };
        table::mark_internal(shadow.number());
        let (object, watchable) = object(&shadow)?;
        let flags = sys::flags(first, libc::F_GETFL)? & libc::O_NONBLOCK;
        let (mirror, end) = Mirror::new(flags, common.is_stream)?;
        // Timeouts are the kernel's, since calls wait there.
        for (direction, name) in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO]
            .into_iter()
            .enumerate()
        {
            if common.has_options.load(Ordering::Relaxed)
                && let Ok(value) =
                    sys::option::<libc::timeval>(shadow.number(), libc::SOL_SOCKET, name)
                && (value.tv_sec, value.tv_usec) != (0, 0)
            {
                mirror.set_timeout(direction, value);
            }
        }
        let epolls = lock(&common.epolls).clone();
        let none = libc::epoll_event { events: 0, u64: 0 };
        for (set, number, _) in &epolls {
            sys::epoll_change(*set, libc::EPOLL_CTL_DEL, *number, none);
        }
        for number in &numbers {
            let is_cloexec = sys::flags(*number, libc::F_GETFD)? & libc::FD_CLOEXEC != 0;
            let flags = if is_cloexec { libc::O_CLOEXEC } else { 0 };
            sys::replace(end, *number, flags)?;
        }
        let _ = sys::close(end);
        let live = Live::new(mirror, OnceLock::from(Arc::new(shadow)), object);
        live.mirror.follow(watchable);
        for (set, number, event) in epolls {
            live.poll_through(event);
            sys::epoll_change(set, libc::EPOLL_CTL_ADD, number, event);
        }
        let socket = Arc::new(Socket {
            common: Arc::clone(common),
            live: Some(live),
        });
        for number in numbers {
            table::swap(number, &socket);
        }
        stack::OURS.fetch_add(1, Ordering::Relaxed);
        stack::log(|| format!("socket {first} uses Dominoes"));
        Ok(socket)
    }

    /// Waits while another thread makes the socket ours.
    pub(crate) fn await_decision(&self) {
        drop(lock(&self.common.deciding));
    }

    /// Whether a socket of IPv6 excludes IPv4.
    pub(crate) fn is_only_v6(&self, shadow: Fd) -> bool {
        self.common.domain == libc::AF_INET6
            && sys::option::<c_int>(shadow, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Ok(1)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        stack::OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Live {
    fn new(mirror: Arc<Mirror>, shadow: OnceLock<Arc<Kept>>, object: Object) -> Live {
        stack::OPEN.fetch_add(1, Ordering::Relaxed);
        let parent = None;
        Live {
            mirror,
            shadow,
            parent,
            object,
        }
    }

    /// The kernel's socket that checks and stores options.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(crate) fn shadow(&self, common: &Common) -> Result<&Kept, Errno> {
        if let Some(shadow) = self.shadow.get() {
            return Ok(shadow);
        }
        let kind = match common.is_stream {
            true => libc::SOCK_STREAM,
            false => libc::SOCK_DGRAM,
        };
        let fd = sys::socket(common.domain, kind | libc::SOCK_CLOEXEC, 0)?;
        let kept = Kept::duplicate(fd, stack::least_descriptor());
        let _ = sys::close(fd);
        let kept = kept?;
        table::mark_internal(kept.number());
        if let Some(parent) = &self.parent {
            options::inherit(parent.number(), kept.number());
        }
        Ok(self.shadow.get_or_init(|| Arc::new(kept)))
    }

    /// Begins to show the state to an epoll set.
    fn poll_through(&self, event: libc::epoll_event) {
        match event.events & libc::EPOLLET as u32 != 0 {
            true => self.mirror.activate_edges(),
            false => self.mirror.activate(),
        }
    }
}

/// The number of an error of the stack.
pub(crate) fn errno_of(error: SocketError) -> Errno {
    match error {
        SocketError::NotAllowed => libc::EACCES,
        SocketError::PortZero => libc::EADDRNOTAVAIL,
        other => other.errno(),
    }
}

/// The address of a socket of TCP before it listens or connects. A port is taken as long as one of
/// these exists.
pub(crate) struct Bound {
    pub(crate) local: SocketAddr,
    /// Whether it excludes IPv4.
    is_only_v6: bool,
    /// Whether it has `SO_REUSEADDR`, and `SO_REUSEPORT`.
    sharing: [bool; 2],
    /// Once it listens.
    pub(crate) listener: OnceLock<TcpListener>,
}

static BOUND: Mutex<Vec<Weak<Bound>>> = Mutex::new(Vec::new());

impl Bound {
    /// Reserves the port of `local`, or a free one for port 0.
    ///
    /// # Errors
    /// `EADDRINUSE`.
    pub(crate) fn new(
        local: SocketAddr,
        is_only_v6: bool,
        sharing: [bool; 2],
    ) -> Result<Arc<Bound>, Errno> {
        let mut all = lock(&BOUND);
        all.retain(|bound| bound.strong_count() > 0);
        let mut wanted = Bound {
            local,
            is_only_v6,
            sharing,
            listener: OnceLock::new(),
        };
        let is_taken = |wanted: &Bound| {
            let mut others = all.iter().filter_map(Weak::upgrade);
            others.any(|other| other.excludes(wanted))
        };
        if local.port() == 0 {
            let start = RandomState::new().hash_one(local) as u16 % EPHEMERAL;
            let ports = (0..EPHEMERAL).map(|i| FIRST_EPHEMERAL + (start + i) % EPHEMERAL);
            let mut free = ports.filter(|port| {
                wanted.local.set_port(*port);
                !is_taken(&wanted)
            });
            let port = free.next().ok_or(libc::EADDRINUSE)?;
            drop(free);
            wanted.local.set_port(port);
        } else if is_taken(&wanted) {
            return Err(libc::EADDRINUSE);
        }
        let bound = Arc::new(wanted);
        all.push(Arc::downgrade(&bound));
        Ok(bound)
    }

    fn excludes(&self, other: &Bound) -> bool {
        let (ours, theirs) = (self.local.ip(), other.local.ip());
        let [both_reuse, both_balance] = [0, 1].map(|i| self.sharing[i] && other.sharing[i]);
        let has_v4 = |bound: &Bound| !(bound.local.is_ipv6() && bound.is_only_v6);
        let meets = |any: &Bound, ip: IpAddr, one: &Bound| {
            any.local.ip().is_unspecified()
                && (any.local.is_ipv4() == ip.is_ipv4() || has_v4(any) && has_v4(one))
        };
        let overlaps = ours.to_canonical() == theirs.to_canonical()
            || meets(self, theirs, other)
            || meets(other, ours, self);
        let may_share = both_balance || both_reuse && self.listener.get().is_none();
        self.local.port() == other.local.port() && overlaps && !may_share
    }

    /// The listener of another socket at this address, if both have `SO_REUSEPORT`: then both
    /// accept from one queue.
    pub(crate) fn shared_listener(&self) -> Option<TcpListener> {
        let same = |other: &Arc<Bound>| {
            (other.local, other.is_only_v6) == (self.local, self.is_only_v6)
                && self.sharing[1]
                && other.sharing[1]
        };
        let all = lock(&BOUND);
        let mut others = all.iter().filter_map(Weak::upgrade).filter(same);
        others.find_map(|other| other.listener.get()?.try_clone().ok())
    }
}

/// The ports that Linux gives out.
const FIRST_EPHEMERAL: u16 = 32_768;
const EPHEMERAL: u16 = 28_232;

/// The families of a wildcard address.
pub(crate) fn families(local: SocketAddr, is_only_v6: bool) -> Families {
    match local {
        SocketAddr::V4(_) => Families::V4,
        SocketAddr::V6(_) if is_only_v6 => Families::V6,
        SocketAddr::V6(_) => Families::Both,
    }
}

/// The sockets of the stack, which runs.
pub(crate) fn stack() -> Result<&'static Sockets, Errno> {
    stack::sockets().ok_or(libc::ENETDOWN)
}
