//! UDP sockets (RFC 768, RFC 1122 section 4.1).
//!
//! As streams do, they move cursors of shared rings and publish nothing. What a socket sends is on
//! its way when the call returns, in the order of the calls; what arrives waits in a bounded queue,
//! and is dropped and counted when that is full.

use core::net::SocketAddrV4;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::Sockets;
use super::wait::WaitPolicy;
use crate::error::SocketError;
use crate::io::stream::{DeliveryCursor, StreamRef};
use crate::io::world::{Command, World};
use crate::ip::route::AddressKind;
use crate::keys::Domain;
use crate::log::request::ConnId;
use crate::udp::record::{self, HEADER, Header, MAX_PAYLOAD};

/// Time to live of what we send, unless told otherwise (RFC 1122 section 3.2.1.7).
const TTL: u8 = 64;

impl Sockets {
    /// A UDP socket at `port`, or with 0 at a port that is free. Never blocks.
    ///
    /// # Errors
    /// [`SocketError::PortTaken`], [`SocketError::NoRoom`], [`SocketError::Down`].
    pub fn bind_udp(&self, port: u16) -> Result<UdpSocket, SocketError> {
        self.check_up()?;
        let world = self.world();
        let mut table = world.socket_table();
        let random = |count| world.random_port(Domain::UdpPort, count);
        let (socket, port) = table.bindings.bind(port, &world.limits, random)?;
        // While the socket table is held, so that what begins and ends reaches the pump in this
        // order.
        world.command(Command::Bind { socket, port });
        drop(table);
        let shared = Arc::new(UdpShared {
            world: Arc::clone(world),
            socket,
            port,
        });
        Ok(UdpSocket {
            receiver: UdpReceiver {
                shared: Arc::clone(&shared),
                seen: DeliveryCursor::default(),
                wait: WaitPolicy::default(),
            },
            sender: UdpSender {
                shared,
                remote: None,
                ttl: TTL,
                tos: 0,
                broadcast: false,
                wait: WaitPolicy::default(),
            },
        })
    }
}

/// What both halves of a socket share. When the last of them goes, so does the socket.
struct UdpShared {
    world: Arc<World>,
    socket: ConnId,
    port: u16,
}

impl UdpShared {
    fn queue(&self) -> Result<StreamRef<'_>, SocketError> {
        if self.world.is_down() {
            return Err(SocketError::Down);
        }
        // The place stays ours until we let go of it.
        self.world
            .queues
            .streams
            .get(self.socket)
            .ok_or(SocketError::Aborted)
    }

    fn local_addr(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.world.address, self.port)
    }

    /// Tries until it need not wait any more, or patience ends.
    fn until<T>(
        &self,
        patience: WaitPolicy,
        mut attempt: impl FnMut() -> Result<T, SocketError>,
    ) -> Result<T, SocketError> {
        let until = patience.begin();
        loop {
            match attempt() {
                Err(SocketError::WouldBlock) => {}
                done => return done,
            }
            let left = until.left()?;
            let queue = self.queue()?;
            let key = queue.waiting().prepare();
            match attempt() {
                Err(SocketError::WouldBlock) => {
                    queue.waiting().wait(key, left);
                }
                done => return done,
            }
        }
    }
}

impl Drop for UdpShared {
    fn drop(&mut self) {
        let mut table = self.world.socket_table();
        table.bindings.unbind(self.socket);
        let socket = self.socket;
        self.world.command(Command::Unbind { socket });
    }
}

/// A socket: datagrams in and out.
///
/// Datagrams for everybody on the link arrive as others do, unless the socket is connected to
/// somebody else. Dropping it sends what is under way, and forgets what arrived.
pub struct UdpSocket {
    receiver: UdpReceiver,
    sender: UdpSender,
}

/// The half of a socket that receives.
pub struct UdpReceiver {
    shared: Arc<UdpShared>,
    seen: DeliveryCursor,
    wait: WaitPolicy,
}

/// The half of a socket that sends.
pub struct UdpSender {
    shared: Arc<UdpShared>,
    remote: Option<SocketAddrV4>,
    ttl: u8,
    tos: u8,
    broadcast: bool,
    wait: WaitPolicy,
}

/// A datagram where it lies in its socket's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received<'a> {
    /// Who sent it. Port 0 wants no answer (RFC 768).
    pub from: SocketAddrV4,
    /// Its bytes, in two parts of which the second is often empty.
    pub parts: (&'a [u8], &'a [u8]),
    /// Hops that its packet had left.
    pub ttl: u8,
    /// DSCP (RFC 2474) in the upper six bits, ECN (RFC 3168) in the lower two.
    pub tos: u8,
}

impl UdpSocket {
    /// The two halves, each for a thread of its own.
    pub fn split(self) -> (UdpReceiver, UdpSender) {
        (self.receiver, self.sender)
    }

    /// Both halves by reference.
    pub fn halves(&mut self) -> (&mut UdpReceiver, &mut UdpSender) {
        (&mut self.receiver, &mut self.sender)
    }

    /// Our end.
    pub fn local_addr(&self) -> SocketAddrV4 {
        self.sender.shared.local_addr()
    }

    /// The peer's end, of a connected socket.
    pub fn peer_addr(&self) -> Option<SocketAddrV4> {
        self.sender.remote
    }

    /// As [`UdpSender::connect`].
    ///
    /// # Errors
    /// As [`UdpSender::connect`].
    pub fn connect(&mut self, remote: SocketAddrV4) -> Result<(), SocketError> {
        self.sender.connect(remote)
    }

    /// As [`UdpSender::set_broadcast`].
    pub fn set_broadcast(&mut self, allowed: bool) {
        self.sender.set_broadcast(allowed);
    }

    /// As [`UdpSender::set_ttl`].
    pub fn set_ttl(&mut self, ttl: u8) {
        self.sender.set_ttl(ttl);
    }

    /// As [`UdpSender::set_tos`].
    pub fn set_tos(&mut self, tos: u8) {
        self.sender.set_tos(tos);
    }

    /// As [`UdpReceiver::set_read_timeout`].
    ///
    /// # Errors
    /// As [`UdpReceiver::set_read_timeout`].
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.receiver.set_read_timeout(timeout)
    }

    /// As [`UdpSender::set_write_timeout`].
    ///
    /// # Errors
    /// As [`UdpSender::set_write_timeout`].
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.sender.set_write_timeout(timeout)
    }

    /// Whether calls return [`SocketError::WouldBlock`] where they would wait. Default: no.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.receiver.wait.nonblocking = nonblocking;
        self.sender.wait.nonblocking = nonblocking;
    }

    /// As [`UdpReceiver::try_peek`].
    ///
    /// # Errors
    /// As [`UdpReceiver::try_peek`].
    pub fn try_peek(&mut self) -> Result<Received<'_>, SocketError> {
        self.receiver.try_peek()
    }

    /// As [`UdpReceiver::try_recv_from`].
    ///
    /// # Errors
    /// As [`UdpReceiver::try_recv_from`].
    pub fn try_recv_from(&mut self, into: &mut [u8]) -> Result<(usize, SocketAddrV4), SocketError> {
        self.receiver.try_recv_from(into)
    }

    /// As [`UdpReceiver::recv_from`].
    ///
    /// # Errors
    /// As [`UdpReceiver::recv_from`].
    pub fn recv_from(&mut self, into: &mut [u8]) -> io::Result<(usize, SocketAddrV4)> {
        self.receiver.recv_from(into)
    }

    /// As [`UdpReceiver::recv_from`], of a connected socket.
    ///
    /// # Errors
    /// As [`UdpReceiver::recv_from`].
    pub fn recv(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.receiver.recv_from(into)?.0)
    }

    /// As [`UdpSender::try_send_to`].
    ///
    /// # Errors
    /// As [`UdpSender::try_send_to`].
    pub fn try_send_to(&mut self, from: &[u8], remote: SocketAddrV4) -> Result<(), SocketError> {
        self.sender.try_send_to(from, remote)
    }

    /// As [`UdpSender::send_to`].
    ///
    /// # Errors
    /// As [`UdpSender::send_to`].
    pub fn send_to(&mut self, from: &[u8], remote: SocketAddrV4) -> io::Result<()> {
        self.sender.send_to(from, remote)
    }

    /// As [`UdpSender::try_send`].
    ///
    /// # Errors
    /// As [`UdpSender::try_send`].
    pub fn try_send(&mut self, from: &[u8]) -> Result<(), SocketError> {
        self.sender.try_send(from)
    }

    /// As [`UdpSender::send`].
    ///
    /// # Errors
    /// As [`UdpSender::send`].
    pub fn send(&mut self, from: &[u8]) -> io::Result<()> {
        self.sender.send(from)
    }
}

impl UdpReceiver {
    /// How long [`UdpReceiver::recv_from`] waits; `None`, the default, for ever.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.wait.set_timeout(timeout)
    }

    /// The oldest datagram in place. It stays the oldest until [`UdpReceiver::consume`].
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there is none; [`SocketError::Refused`] or
    /// [`SocketError::Unreachable`] if the network said so of what a connected socket sent;
    /// [`SocketError::Down`].
    pub fn try_peek(&mut self) -> Result<Received<'_>, SocketError> {
        let queue = self.shared.queue()?;
        self.shared.world.queues.take_error(self.shared.socket)?;
        queue.follow(&mut self.seen);
        self.seen.end = self.seen.arrived;
        let (a, b) = queue.received(&self.seen);
        // Neither a header nor the ring's length is odd, so headers do not wrap.
        let first = if a.is_empty() { b } else { a };
        let header = Header::read(first).ok_or(SocketError::WouldBlock)?;
        let len = usize::from(header.len);
        let payload = &first[HEADER..];
        let parts = match payload.get(..len) {
            Some(whole) => (whole, &[][..]),
            None => (payload, &b[..len - payload.len()]),
        };
        Ok(Received {
            from: header.remote,
            parts,
            ttl: header.ttl,
            tos: header.tos,
        })
    }

    /// The oldest datagram is not needed any more. Does nothing if there is none.
    pub fn consume(&mut self) {
        let Ok(queue) = self.shared.queue() else {
            return;
        };
        let (a, b) = queue.received(&self.seen);
        let first = if a.is_empty() { b } else { a };
        if let Some(header) = Header::read(first) {
            queue.read(record::len(header.len) as usize, &mut self.seen, 0);
        }
    }

    /// Takes the oldest datagram: how many bytes were copied to `into`, and who sent it. What
    /// `into` has no room for is lost.
    ///
    /// # Errors
    /// As [`UdpReceiver::try_peek`].
    pub fn try_recv_from(&mut self, into: &mut [u8]) -> Result<(usize, SocketAddrV4), SocketError> {
        let Received {
            from,
            parts: (a, b),
            ..
        } = self.try_peek()?;
        let front = a.len().min(into.len());
        into[..front].copy_from_slice(&a[..front]);
        let back = b.len().min(into.len() - front);
        into[front..front + back].copy_from_slice(&b[..back]);
        self.consume();
        Ok((front + back, from))
    }

    /// As [`UdpReceiver::try_recv_from`], waiting for a datagram.
    ///
    /// # Errors
    /// As [`UdpReceiver::try_peek`]; [`SocketError::WouldBlock`] after the timeout, or if the
    /// socket does not block.
    pub fn recv_from(&mut self, into: &mut [u8]) -> io::Result<(usize, SocketAddrV4)> {
        let place = Arc::clone(&self.shared);
        let patience = self.wait;
        Ok(place.until(patience, || self.try_recv_from(into))?)
    }
}

impl UdpSender {
    /// Sends to `remote` what names nobody, takes datagrams from nobody else any more, and tells of
    /// errors that the network reports (RFC 1122 section 4.1.3.3). What has arrived already stays.
    ///
    /// # Errors
    /// [`SocketError::Unreachable`] if there is no way, [`SocketError::Invalid`] for port 0,
    /// [`SocketError::NotAllowed`] for a broadcast address.
    pub fn connect(&mut self, remote: SocketAddrV4) -> Result<(), SocketError> {
        self.check(remote)?;
        self.remote = Some(remote);
        self.shared.world.command(Command::Connect {
            socket: self.shared.socket,
            remote: Some(remote),
        });
        Ok(())
    }

    /// Takes datagrams from everybody again.
    pub fn disconnect(&mut self) {
        self.remote = None;
        self.shared.world.command(Command::Connect {
            socket: self.shared.socket,
            remote: None,
        });
    }

    /// Whether datagrams may be sent to everybody on the link. Default: no.
    pub fn set_broadcast(&mut self, allowed: bool) {
        self.broadcast = allowed;
    }

    /// Hops that datagrams may make, at least 1 (RFC 1122 section 4.1.4). Default 64.
    pub fn set_ttl(&mut self, ttl: u8) {
        self.ttl = ttl.max(1);
    }

    /// How long [`UdpSender::send_to`] waits; `None`, the default, for ever.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.wait.set_timeout(timeout)
    }

    /// DSCP (RFC 2474) in the upper six bits, ECN (RFC 3168) in the lower two. Default 0.
    pub fn set_tos(&mut self, tos: u8) {
        self.tos = tos;
    }

    /// Sends a datagram to `remote`; longer ones than a packet go in fragments.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if too much is under way, [`SocketError::TooLong`] above 65,507
    /// bytes or the send ring's length, [`SocketError::Unreachable`] if there is no way,
    /// [`SocketError::Invalid`] for port 0, [`SocketError::NotAllowed`] for a broadcast address
    /// without [`UdpSender::set_broadcast`], or as [`UdpReceiver::try_peek`].
    pub fn try_send_to(&mut self, from: &[u8], remote: SocketAddrV4) -> Result<(), SocketError> {
        self.check(remote)?;
        self.put(from, remote)
    }

    fn put(&mut self, from: &[u8], remote: SocketAddrV4) -> Result<(), SocketError> {
        self.put_by(from.len(), remote, |queue| {
            queue.write(from);
        })
    }

    /// Sends `len` bytes, which `write` puts into the ring behind the record's header.
    fn put_by(
        &mut self,
        bytes: usize,
        remote: SocketAddrV4,
        write: impl FnOnce(&StreamRef<'_>),
    ) -> Result<(), SocketError> {
        let place = &*self.shared;
        let queue = place.queue()?;
        place.world.queues.take_error(place.socket)?;
        let len = u16::try_from(bytes).unwrap_or(u16::MAX);
        let record = record::len(len) as usize;
        if bytes > MAX_PAYLOAD || record > place.world.limits.udp_send_buffer as usize {
            return Err(SocketError::TooLong);
        }
        if queue.writable() < record {
            return Err(SocketError::WouldBlock);
        }
        let header = Header {
            remote,
            len,
            ttl: self.ttl,
            tos: self.tos,
        };
        queue.write(&header.to_bytes());
        write(&queue);
        // What pads a record is overwritten, too: it may be sent again.
        queue.write(&[0; HEADER][..record - HEADER - bytes]);
        place.world.raise_socket(&queue);
        Ok(())
    }

    /// As [`UdpSender::try_send`], of `len` bytes that this socket put into its queue one length of
    /// it ([`Limits::udp_send_buffer`](crate::Limits::udp_send_buffer)) before, headers of records
    /// included. They lie there already, so nothing is copied: for measuring.
    ///
    /// # Errors
    /// As [`UdpSender::try_send`]; [`SocketError::Invalid`] until the socket has sent as much as
    /// the queue holds.
    pub fn try_send_again(&mut self, len: usize) -> Result<(), SocketError> {
        let remote = self.remote.ok_or(SocketError::NotConnected)?;
        if !self.shared.queue()?.was_filled() {
            return Err(SocketError::Invalid);
        }
        self.put_by(len, remote, |queue| {
            queue.write_again(len);
        })
    }

    /// Sends a datagram to whom the socket is connected.
    ///
    /// # Errors
    /// [`SocketError::NotConnected`], or as [`UdpSender::try_send_to`].
    pub fn try_send(&mut self, from: &[u8]) -> Result<(), SocketError> {
        let remote = self.remote.ok_or(SocketError::NotConnected)?;
        self.put(from, remote)
    }

    /// As [`UdpSender::try_send_to`], waiting for room.
    ///
    /// # Errors
    /// As [`UdpSender::try_send_to`]; `WouldBlock` only after the timeout, or if the socket does
    /// not block.
    pub fn send_to(&mut self, from: &[u8], remote: SocketAddrV4) -> io::Result<()> {
        let place = Arc::clone(&self.shared);
        let patience = self.wait;
        Ok(place.until(patience, || self.try_send_to(from, remote))?)
    }

    /// As [`UdpSender::try_send`], waiting for room.
    ///
    /// # Errors
    /// As [`UdpSender::send_to`].
    pub fn send(&mut self, from: &[u8]) -> io::Result<()> {
        let place = Arc::clone(&self.shared);
        let patience = self.wait;
        Ok(place.until(patience, || self.try_send(from))?)
    }

    /// Whether a datagram may go there.
    fn check(&self, remote: SocketAddrV4) -> Result<(), SocketError> {
        let site = &self.shared.world.site;
        if site.is_ourselves(*remote.ip()) {
            return Err(SocketError::Ourselves);
        }
        if remote.port() == 0 {
            return Err(SocketError::Invalid);
        }
        match site.classify(*remote.ip()) {
            AddressKind::Broadcast if !self.broadcast => Err(SocketError::NotAllowed),
            AddressKind::Broadcast => Ok(()),
            _ if remote.ip().is_multicast() => Ok(()),
            _ if !site.is_one_host(*remote.ip()) => Err(SocketError::Unreachable),
            _ if site.next_hop(*remote.ip()).is_some() => Ok(()),
            _ => Err(SocketError::Unreachable),
        }
    }
}

macro_rules! debug_as_port {
    ($($socket:ident: $($field:ident).+;)*) => {$(
        impl core::fmt::Debug for $socket {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($socket)).field("port", &self.$($field).+).finish_non_exhaustive()
            }
        }
    )*};
}

debug_as_port! {
    UdpSocket: sender.shared.port;
    UdpReceiver: shared.port;
    UdpSender: shared.port;
}
