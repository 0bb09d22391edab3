//! Receives datagrams: in place, by a copy, or many at once.

use core::net::{IpAddr, SocketAddr};
use std::io;
use std::time::Duration;

use super::{UdpReceiver, UdpShared};
use crate::error::SocketError;
use crate::io::stream::{DeliveryCursor, StreamRef};
use crate::socket::interfaces;
use crate::socket::shared::Taken;
use crate::time::Instant;
use crate::udp::record::{HEADER, MORE, More, RecordHeader};

/// A datagram in its socket's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received<'a> {
    /// The sender. Port 0 means that it wants no answer (RFC 768).
    pub from: SocketAddr,
    /// Its bytes, in two parts; the second is often empty.
    pub parts: (&'a [u8], &'a [u8]),
    /// The remaining hops of its packet.
    pub ttl: u8,
    /// DSCP (RFC 2474) in the upper six bits, ECN (RFC 3168) in the lower two.
    pub tos: u8,
    /// Present if [`UdpSocket::set_packet_info`](super::UdpSocket::set_packet_info) was enabled.
    pub info: Option<PacketInfo>,
}

/// The destination and the time of arrival of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketInfo {
    /// The destination address: one of ours, a multicast group, or a broadcast address.
    pub local: IpAddr,
    /// The destination port; another one than the socket's only after
    /// [`Sockets::bind_any`](crate::Sockets::bind_any).
    pub port: u16,
    /// The number of the interface at which it arrived; the first is 1.
    pub interface: u32,
    /// When the stack took it from the device, as the age of the stack
    /// ([`Stack::now`](crate::Stack::now)); like Linux' `SO_TIMESTAMPNS`, but from another clock.
    /// Datagrams that were taken together have one time, so with many frames it may be some
    /// microseconds late.
    pub arrived: Instant,
}

/// A buffer for a datagram, for [`UdpSocket::recv_many`](super::UdpSocket::recv_many).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Datagram {
    /// The sender. Port 0 means that it wants no answer (RFC 768).
    pub from: SocketAddr,
    /// The remaining hops of its packet.
    pub ttl: u8,
    /// DSCP (RFC 2474) in the upper six bits, ECN (RFC 3168) in the lower two.
    pub tos: u8,
    /// Present if [`UdpSocket::set_packet_info`](super::UdpSocket::set_packet_info) was enabled.
    pub info: Option<PacketInfo>,
    /// The buffer.
    room: Box<[u8]>,
    len: usize,
}

impl Datagram {
    /// An empty buffer with room for `bytes` bytes. Longer datagrams are cut off.
    pub fn new(bytes: usize) -> Datagram {
        Datagram {
            from: SocketAddr::new([0, 0, 0, 0].into(), 0),
            ttl: 0,
            tos: 0,
            info: None,
            room: vec![0; bytes].into(),
            len: 0,
        }
    }

    /// The bytes of the datagram.
    pub fn bytes(&self) -> &[u8] {
        &self.room[..self.len]
    }

    fn fill(&mut self, received: Received<'_>) {
        (self.from, self.ttl, self.tos) = (received.from, received.ttl, received.tos);
        self.info = received.info;
        self.len = received.copy_to(&mut self.room);
    }
}

impl UdpReceiver {
    /// How long [`UdpReceiver::recv_from`] waits; `None`, the default: without limit.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.shared.read_wait.set_timeout(timeout)
    }

    /// Borrows the oldest datagram in place. It stays in the queue until
    /// [`UdpReceiver::consume`].
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there is none; [`SocketError::Refused`] or
    /// [`SocketError::Unreachable`] if the network reported this for a datagram of a connected
    /// socket; [`SocketError::Down`].
    pub fn try_peek(&mut self) -> Result<Received<'_>, SocketError> {
        let (group, _, seen) = self.shared.oldest(self.user, self.lent_in.take())?;
        self.lent = seen.lent_copy();
        seen.keep(self.user);
        self.lent_in = Some(group);
        // The slices borrow `self`. Every call that releases their bytes either takes `self`
        // mutably or has to wait for the cursor that this half keeps.
        let received = Received::first(self.shared.queue(group)?.received(&self.lent))?;
        Ok(received.at(&self.shared, group))
    }

    /// Removes the oldest datagram, or the one that [`UdpReceiver::try_peek`] lent. Does nothing
    /// if there is none, or if the socket was read by reference since.
    pub fn consume(&mut self) {
        let shared = &*self.shared;
        let lent_in = self.lent_in.take();
        for group in shared.in_turn(lent_in) {
            let Ok(queue) = shared.queue(group) else {
                return;
            };
            let taken = shared.readers[group].take(self.user, queue.waiting());
            if lent_in == Some(group) && !taken.as_ref().is_ok_and(Taken::was_kept) {
                return;
            }
            if let Ok(mut seen) = taken
                && consume_first(&queue, &mut seen)
            {
                return shared.taken(group);
            }
        }
    }

    /// Takes the oldest datagram. Returns the number of bytes copied to `into`, and the sender.
    /// Bytes for which `into` has no room are lost.
    ///
    /// # Errors
    /// As [`UdpReceiver::try_peek`].
    pub fn try_recv_from(&mut self, into: &mut [u8]) -> Result<(usize, SocketAddr), SocketError> {
        let first = self.lent_in.take();
        self.copy(into, first, true)
    }

    /// As [`UdpReceiver::try_recv_from`], but waits for a datagram.
    ///
    /// # Errors
    /// As [`UdpReceiver::try_peek`]; [`SocketError::WouldBlock`] after the timeout, or if the
    /// socket does not block.
    pub fn recv_from(&mut self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let first = self.lent_in.take();
        let shared = &*self.shared;
        Ok(shared.receiving(|| self.copy(into, first, true))?)
    }

    /// Takes as many arrived datagrams as `into` has buffers, each peer's in the order of
    /// arrival; waits for the first. Returns their number.
    ///
    /// ```
    /// use dominoes_drivers::memory;
    /// use dominoes_netstack::{Datagram, Stack};
    ///
    /// let (left, right) = memory::pair(Default::default());
    /// let server = Stack::builder("10.0.0.1/24").start(left)?;
    /// let client = Stack::builder("10.0.0.2/24").start(right)?;
    /// let (here, there) = (server.bind_udp(7)?, client.bind_udp(0)?);
    ///
    /// let to = "10.0.0.1:7".parse()?;
    /// assert_eq!(there.send_many([(&b"one"[..], to), (b"two", to)])?, 2);
    /// let mut into = vec![Datagram::new(2048); 16];
    /// let mut got = Vec::new();
    /// while got.len() < 2 {
    ///     let count = here.recv_many(&mut into)?;
    ///     got.extend(into[..count].iter().map(|datagram| datagram.bytes().to_vec()));
    /// }
    /// assert_eq!(got, [b"one", b"two"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpReceiver::recv_from`].
    pub fn recv_many(&mut self, into: &mut [Datagram]) -> io::Result<usize> {
        let first = self.lent_in.take();
        self.copy_many(into, first)
    }

    /// As [`UdpReceiver::recv_many`], beginning with the queue that lent a datagram.
    pub(super) fn copy_many(
        &self,
        into: &mut [Datagram],
        first: Option<usize>,
    ) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let shared = &*self.shared;
        let attempt = || {
            shared.queue(0)?;
            shared.take_error()?;
            let mut places = into.iter_mut();
            let mut count = 0;
            for group in shared.in_turn(first) {
                let Some((queue, mut seen)) = shared.follow(self.user, group)? else {
                    continue;
                };
                while let Ok(received) = Received::first(queue.received(&seen)) {
                    let Some(place) = places.next() else {
                        return Ok(count);
                    };
                    place.fill(received.at(shared, group));
                    consume_first(&queue, &mut seen);
                    shared.taken(group);
                    count += 1;
                }
            }
            if count > 0 {
                Ok(count)
            } else {
                Err(SocketError::WouldBlock)
            }
        };
        Ok(shared.receiving(attempt)?)
    }

    /// Copies the oldest datagram, or the lent one if the queue of group `first` lent one, and
    /// removes it if `consumes`.
    pub(super) fn copy(
        &self,
        into: &mut [u8],
        first: Option<usize>,
        consumes: bool,
    ) -> Result<(usize, SocketAddr), SocketError> {
        let (group, queue, mut seen) = self.shared.oldest(self.user, first)?;
        let received = Received::first(queue.received(&seen))?.at(&self.shared, group);
        let (len, from) = (received.copy_to(into), received.from);
        if consumes {
            consume_first(&queue, &mut seen);
            self.shared.taken(group);
        }
        Ok((len, from))
    }

    /// As [`UdpReceiver::copy`], but waits.
    pub(super) fn copy_waiting(
        &self,
        into: &mut [u8],
        consumes: bool,
    ) -> io::Result<(usize, SocketAddr)> {
        let first = self.lent_in;
        let shared = &*self.shared;
        Ok(shared.receiving(|| self.copy(into, first, consumes))?)
    }
}

impl Drop for UdpReceiver {
    fn drop(&mut self) {
        if let Some(group) = self.lent_in
            && let Ok(queue) = self.shared.queue(group)
        {
            // Releases the cursor that this half kept, for the other receivers.
            drop(self.shared.readers[group].take(self.user, queue.waiting()));
        }
    }
}

impl<'a> Received<'a> {
    /// Completes the information of a datagram that arrived in group `group` of a socket.
    fn at(mut self, shared: &UdpShared, group: usize) -> Self {
        self.from = interfaces::scoped(&shared.worlds, self.from, group);
        if let Some(info) = &mut self.info
            && shared.worlds[0].shared.has_interfaces()
        {
            info.interface = interfaces::number_of(&shared.worlds, group);
        }
        self
    }

    /// Copies as many bytes as fit, and returns their number.
    fn copy_to(&self, into: &mut [u8]) -> usize {
        let (a, b) = self.parts;
        let front = a.len().min(into.len());
        into[..front].copy_from_slice(&a[..front]);
        let back = b.len().min(into.len() - front);
        into[front..front + back].copy_from_slice(&b[..back]);
        front + back
    }

    /// The first datagram in these bytes of a queue.
    pub(super) fn first((a, b): (&'a [u8], &'a [u8])) -> Result<Received<'a>, SocketError> {
        // Headers and the ring have even lengths, so headers do not wrap.
        let first = if a.is_empty() { b } else { a };
        let header = RecordHeader::read(first).ok_or(SocketError::WouldBlock)?;
        let len = usize::from(header.len);
        let (mut payload, mut behind) = (&first[HEADER..], if a.is_empty() { a } else { b });
        let mut info = None;
        if header.has_more {
            // The payload does not wrap either.
            if payload.is_empty() {
                (payload, behind) = (behind, payload);
            }
            info = More::read(payload).map(|more| PacketInfo {
                local: more.local.address.ip(),
                port: more.local.port,
                interface: 1,
                arrived: more.arrived,
            });
            payload = payload.get(MORE..).unwrap_or_default();
        }
        let parts = match payload.get(..len) {
            Some(whole) => (whole, &[][..]),
            None => (payload, &behind[..len - payload.len()]),
        };
        Ok(Received {
            from: header.remote.into(),
            parts,
            ttl: header.ttl,
            tos: header.tos,
            info,
        })
    }
}

/// Removes the oldest datagram. Returns whether there was one.
fn consume_first(queue: &StreamRef<'_>, seen: &mut DeliveryCursor) -> bool {
    let (a, b) = queue.received(seen);
    let first = if a.is_empty() { b } else { a };
    let header = RecordHeader::read(first);
    if let Some(header) = header {
        queue.read(header.record_len() as usize, seen, 0);
    }
    header.is_some()
}
