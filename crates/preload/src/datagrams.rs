//! UDP sockets that are ours.

use core::ffi::c_int;
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use dominoes_netstack::poller::direct::Watchable;
use dominoes_netstack::{SocketError, UdpReceiver, UdpSender, UdpSocket};

use crate::addr;
use crate::control::Marks;
use crate::options;
use crate::socket::{Common, Live, Object, Socket, errno_of, families, lock, stack};
use crate::sys::{self, Errno, Fd};

/// The most bytes of a datagram (RFC 768), without headers.
const MOST_BYTES: usize = 65_527;

/// A bound UDP socket.
pub(crate) struct Udp {
    pub(crate) whole: UdpSocket,
    is_at_any_address: bool,
    receiver: Mutex<UdpReceiver>,
    sender: Mutex<UdpSender>,
    /// The control messages that the program wants, as [`control::wanted`] has them.
    pub(crate) wanted: AtomicU8,
    /// The hops and the traffic class of its datagrams, and the hops of those to a group.
    pub(crate) marks: [AtomicU8; 3],
    /// The bytes that were sent with `MSG_MORE`, and their destination.
    begun: Mutex<Option<(Vec<u8>, Option<SocketAddr>)>>,
}

/// A received datagram.
pub(crate) struct Arrived {
    pub(crate) copied: usize,
    /// Its whole length.
    pub(crate) len: usize,
    pub(crate) from: SocketAddr,
    pub(crate) hops: u8,
    pub(crate) class: u8,
    /// Its destination, and the number of the interface.
    pub(crate) to: Option<(IpAddr, u32)>,
}

impl Udp {
    fn new(whole: UdpSocket, is_at_any_address: bool) -> Result<Udp, Errno> {
        let (receiver, sender) = whole.try_clone().map_err(|_| libc::ENOBUFS)?.split();
        Ok(Udp {
            whole,
            is_at_any_address,
            receiver: Mutex::new(receiver),
            sender: Mutex::new(sender),
            wanted: AtomicU8::new(0),
            marks: Default::default(),
            begun: Mutex::new(None),
        })
    }

    pub(crate) fn recv(
        &self,
        common: &Common,
        live: &Live,
        into: &mut [IoSliceMut<'_>],
        flags: c_int,
    ) -> Result<Arrived, Errno> {
        if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
            return Err(libc::EAGAIN);
        }
        loop {
            let result = self.take(into, flags & libc::MSG_PEEK != 0);
            live.mirror.refresh();
            match result {
                Err(SocketError::WouldBlock) if !common.may_wait(flags) => {
                    return Err(libc::EAGAIN);
                }
                Err(SocketError::WouldBlock) => live.mirror.wait_readable()?,
                result => return result.map_err(errno_of),
            }
        }
    }

    fn take(&self, into: &mut [IoSliceMut<'_>], peeks: bool) -> Result<Arrived, SocketError> {
        let mut receiver = lock(&self.receiver);
        let received = receiver.try_peek()?;
        let (mut a, mut b) = received.parts;
        let mut arrived = Arrived {
            copied: 0,
            len: a.len() + b.len(),
            from: received.from,
            hops: received.ttl,
            class: received.tos,
            to: received.info.map(|info| (info.local, info.interface)),
        };
        for part in into {
            let mut done = 0;
            for bytes in [&mut a, &mut b] {
                let now = bytes.len().min(part.len() - done);
                part[done..done + now].copy_from_slice(&bytes[..now]);
                *bytes = &bytes[now..];
                done += now;
            }
            arrived.copied += done;
        }
        if !peeks {
            receiver.consume();
        }
        Ok(arrived)
    }

    /// Sends a datagram to `remote`, or to the connected peer.
    pub(crate) fn send(
        &self,
        common: &Common,
        live: &Live,
        from: &[IoSlice<'_>],
        (remote, marks): (Option<SocketAddr>, Marks),
        flags: c_int,
    ) -> Result<usize, Errno> {
        let mut remote = remote.map(addr::destination);
        if remote.is_some_and(|to| to.port() == 0) {
            return Err(libc::EINVAL);
        }
        let len = from.iter().map(|part| part.len()).sum();
        let mut joined = Vec::new();
        let mut begun = lock(&self.begun);
        if flags & libc::MSG_MORE != 0 || begun.is_some() || from.len() != 1 {
            let before = begun.take();
            if before.as_ref().map_or(0, |(bytes, _)| bytes.len()) + len > MOST_BYTES {
                return Err(libc::EMSGSIZE);
            }
            (joined, remote) = before.unwrap_or((joined, remote));
            from.iter().for_each(|part| joined.extend_from_slice(part));
            if flags & libc::MSG_MORE != 0 {
                *begun = Some((joined, remote));
                return Ok(len);
            }
        }
        drop(begun);
        let bytes: &[u8] = match from {
            [one] if joined.is_empty() => one,
            _ => &joined,
        };
        loop {
            let mut sender = lock(&self.sender);
            let [hops, class, to_group] = [0, 1, 2].map(|index| self.marks[index].load(Relaxed));
            let is_to_group = remote.is_some_and(|to| to.ip().is_multicast());
            let its_hops = marks.hops.or(is_to_group.then_some(to_group));
            let is_marked = its_hops.is_some() || marks.class.is_some();
            if is_marked {
                let _ = sender.set_ttl(its_hops.unwrap_or(hops).into());
                sender.set_tos(marks.class.unwrap_or(class));
            }
            let result = match remote {
                Some(remote) => sender.try_send_to(bytes, remote),
                None => sender.try_send(bytes),
            };
            if is_marked {
                let _ = sender.set_ttl(hops.into());
                sender.set_tos(class);
            }
            drop(sender);
            live.mirror.refresh();
            match result {
                Err(SocketError::WouldBlock) if !common.may_wait(flags) => {
                    return Err(libc::EAGAIN);
                }
                Err(SocketError::WouldBlock) => live.mirror.wait_writable()?,
                Err(SocketError::NotConnected) => return Err(libc::EDESTADDRREQ),
                result => return result.map(|()| len).map_err(errno_of),
            }
        }
    }

    /// The value of `SO_ERROR`, which it clears.
    pub(crate) fn take_error(&self) -> Errno {
        let error = self.whole.take_error().ok().flatten();
        error.as_ref().and_then(SocketError::of).map_or(0, errno_of)
    }

    /// The length of the next datagram.
    pub(crate) fn unread(&self) -> usize {
        let mut receiver = lock(&self.receiver);
        receiver
            .try_peek()
            .map_or(0, |next| next.parts.0.len() + next.parts.1.len())
    }

    pub(crate) fn connect(&self, remote: SocketAddr) -> Result<(), Errno> {
        lock(&self.sender)
            .connect(addr::destination(remote))
            .map_err(errno_of)
    }

    /// Its address. One that is at any address has one of ours while it is connected.
    pub(crate) fn local(&self, common: &Common) -> SocketAddr {
        let any = common.unspecified();
        match self.whole.local_addr() {
            Ok(local) if self.is_at_any_address && self.whole.peer_addr().is_err() => {
                SocketAddr::new(any.ip(), local.port())
            }
            Ok(local) => local,
            Err(_) => any,
        }
    }

    pub(crate) fn disconnect(&self) {
        lock(&self.sender).disconnect();
    }
}

/// Makes a UDP socket ours, bound to `local`.
///
/// # Errors
/// `EADDRINUSE`, `EADDRNOTAVAIL`, `ENOBUFS`, `EMFILE`; `EINVAL` if it is ours.
pub(crate) fn bind(socket: &Arc<Socket>, fd: Fd, local: SocketAddr) -> Result<Arc<Socket>, Errno> {
    if socket.live.is_some() {
        return Err(libc::EINVAL);
    }
    let is_only_v6 = socket.is_only_v6(fd);
    let canonical = SocketAddr::new(local.ip().to_canonical(), local.port());
    let (families, sharing) = (families(local, is_only_v6), sys::sharing(fd));
    let whole = stack()?.bind_udp_shared(canonical, families, sharing.into());
    let whole = whole.map_err(errno_of)?;
    socket.become_ours(|shadow| {
        let watchable = Watchable::new(&whole);
        let udp = Udp::new(whole, local.ip().is_unspecified())?;
        options::apply_to_datagrams(&udp, shadow.number(), socket.common.domain);
        Ok((Object::Udp(Box::new(udp)), watchable))
    })
}
