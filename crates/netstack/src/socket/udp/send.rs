//! Sends datagrams: to a peer, or to many destinations at once.

use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use std::io;
use std::time::Duration;

use super::UdpSender;
use crate::error::SocketError;
use crate::ip::fragment::Cut;
use crate::log::request::{ALL_PORTS, Endpoint};
use crate::socket::wait::WaitUntil;
use crate::udp::record::{self, HEADER, MAX_PAYLOAD, MORE, RecordHeader};

impl UdpSender {
    /// Connects to `remote`: from now on [`UdpSender::send`] sends there, the socket accepts
    /// datagrams from there only, and calls return errors that the network reports (RFC 1122
    /// section 4.1.3.3). Datagrams that have arrived already stay.
    ///
    /// # Errors
    /// [`SocketError::NoRoute`] if no route leads there, [`SocketError::PortZero`] for port 0,
    /// [`SocketError::NotAllowed`] for a broadcast address.
    pub fn connect(&mut self, remote: SocketAddr) -> Result<(), SocketError> {
        self.shared.connect(Some(remote))
    }

    /// Accepts datagrams from all senders again.
    pub fn disconnect(&mut self) {
        // Only an address could be refused.
        let _ = self.shared.connect(None);
    }

    /// Whether broadcasts are allowed. Default: no.
    pub fn set_broadcast(&mut self, allowed: bool) {
        self.shared.broadcast.store(allowed, Ordering::Relaxed);
    }

    /// Hops that datagrams may make, 1 to 255 (RFC 1122 section 4.1.4). Default 64.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] out of this range.
    pub fn set_ttl(&mut self, ttl: u32) -> Result<(), SocketError> {
        self.shared.set_ttl(ttl)
    }

    /// How long [`UdpSender::send_to`] waits; `None`, the default: without limit.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.shared.write_wait.set_timeout(timeout)
    }

    /// DSCP (RFC 2474) in the upper six bits, ECN (RFC 3168) in the lower two. Default 0.
    pub fn set_tos(&mut self, tos: u8) {
        self.shared.tos.store(tos, Ordering::Relaxed);
    }

    /// Whether to refuse datagrams that would need fragments, as Linux does with
    /// `IP_MTU_DISCOVER` set to `IP_PMTUDISC_DO` (ip(7), ipv6(7)). Default: no, as with
    /// `IP_PMTUDISC_DONT`: we fragment datagrams that are longer than the MTU of the link, or
    /// with IPv6 of the path, and routers may fragment packets of IPv4 again.
    ///
    /// If yes, packets of IPv4 have DF (RFC 791 section 3.1), and longer datagrams fail with
    /// [`SocketError::LongerThanPath`]. The same call returns it for datagrams above
    /// [`Limits::mtu`](crate::Limits::mtu). The next call returns it if the stack dropped a
    /// datagram because it knows that the path of IPv6 is narrower, or, for a connected socket,
    /// if a router of IPv4 dropped one (RFC 1191). The stack does not store path MTUs of IPv4;
    /// the program has to.
    ///
    /// Segments of TCP always have DF, and connections obey their path (RFC 1191, RFC 8201);
    /// [`Tuning::max_segment`](crate::Tuning::max_segment) makes segments shorter.
    pub fn set_dont_fragment(&mut self, dont_fragment: bool) {
        let shared = &self.shared.dont_fragment;
        shared.store(dont_fragment, Ordering::Relaxed);
    }

    /// Sends a datagram to `remote`, in fragments if it is longer than a packet.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if too many bytes wait to be sent, [`SocketError::TooLong`]
    /// above 65,507 bytes or the send ring's length, [`SocketError::LongerThanPath`] with
    /// [`UdpSender::set_dont_fragment`], [`SocketError::NoRoute`] if no route leads there,
    /// [`SocketError::Unreachable`] if it is not the address of one host,
    /// [`SocketError::PortZero`] for port 0, [`SocketError::NotAllowed`] for a broadcast address
    /// without [`UdpSender::set_broadcast`], or as [`try_peek`](super::UdpReceiver::try_peek).
    pub fn try_send_to(&mut self, from: &[u8], remote: SocketAddr) -> Result<(), SocketError> {
        self.put(from, Some(remote))
    }

    /// As [`UdpSender::try_send_to`], from the end `local`, for a socket that is bound to
    /// [all ports](crate::Sockets::bind_any). Its address is one of ours, or any with
    /// [`any_address`](crate::Builder::any_address).
    ///
    /// # Errors
    /// As [`UdpSender::try_send_to`]; [`SocketError::NotOurs`]; [`SocketError::PortZero`];
    /// [`SocketError::Invalid`] for another socket, or ends of two families.
    pub fn try_send_from(
        &mut self,
        from: &[u8],
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(), SocketError> {
        self.put_bytes(from.len(), Some(from), (Some(local), Some(remote)))
    }

    /// As [`UdpSender::try_send_from`], but waits for room.
    ///
    /// # Errors
    /// As [`UdpSender::try_send_from`] and [`UdpSender::send_to`].
    pub fn send_from(
        &mut self,
        from: &[u8],
        local: SocketAddr,
        remote: SocketAddr,
    ) -> io::Result<()> {
        Ok(self.put_from(from, local, remote)?)
    }

    pub(super) fn put_from(
        &self,
        from: &[u8],
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(), SocketError> {
        let ends = (Some(local), Some(remote));
        let attempt = || self.put_bytes(from.len(), Some(from), ends);
        let until = self.shared.write_wait.begin();
        self.shared.sending(until, Some(remote), attempt)
    }

    /// As [`UdpSender::put`], but waits.
    pub(super) fn put_until(
        &self,
        until: WaitUntil,
        from: &[u8],
        remote: Option<SocketAddr>,
    ) -> Result<(), SocketError> {
        let attempt = || self.put(from, remote);
        self.shared.sending(until, remote, attempt)
    }

    pub(super) fn put_many<'a>(
        &self,
        datagrams: impl IntoIterator<Item = (&'a [u8], SocketAddr)>,
    ) -> io::Result<usize> {
        let until = self.shared.write_wait.begin();
        let mut sent = 0;
        for (from, remote) in datagrams {
            if sent == 0 {
                self.put_until(until, from, Some(remote))?;
            } else if self.shared.has_error() || self.put(from, Some(remote)).is_err() {
                // If the error persists, the next call returns it.
                break;
            }
            sent += 1;
        }
        Ok(sent)
    }

    pub(super) fn put(&self, from: &[u8], remote: Option<SocketAddr>) -> Result<(), SocketError> {
        self.put_bytes(from.len(), Some(from), (None, remote))
    }

    /// Sends `bytes` bytes to `remote`, or to the connected peer: either `from`, or the bytes
    /// already at this position of the ring. `local` is our end, for a socket at all ports.
    fn put_bytes(
        &self,
        bytes: usize,
        from: Option<&[u8]>,
        (local, remote): (Option<SocketAddr>, Option<SocketAddr>),
    ) -> Result<(), SocketError> {
        let place = &*self.shared;
        if let Some(remote) = remote {
            place.check(remote)?;
        }
        let first = place.queue(0)?;
        let connected = place.remote.take(self.user, first.waiting())?;
        let remote = remote.or(*connected).ok_or(SocketError::NotConnected)?;
        place.take_error()?;
        let group = place.group_of(Some(remote));
        let (world, queue) = (&place.worlds[group], place.queue(group)?);
        let len = u16::try_from(bytes).unwrap_or(u16::MAX);
        let ours = match local {
            Some(local) => Some(place.local(world, local, remote)?),
            None if place.port == ALL_PORTS => return Err(SocketError::Invalid),
            None => None,
        };
        let padded = record::len(len) as usize;
        let record = padded + if ours.is_some() { MORE } else { 0 };
        if bytes > MAX_PAYLOAD || record > world.limits.udp_send_buffer as usize {
            return Err(SocketError::TooLong);
        }
        let dont_fragment = place.dont_fragment.load(Ordering::Relaxed);
        let mtu = world.limits.mtu;
        if dont_fragment && Cut::new(remote.ip().into(), mtu).count(bytes as u32 + 8) > 1 {
            return Err(SocketError::LongerThanPath { mtu });
        }
        if queue.writable() < record && queue.fell_short() < record {
            return Err(SocketError::WouldBlock);
        }
        let remote = Endpoint::from(remote);
        let loops = match remote.address.is_v4() {
            true => &place.loops_v4,
            false => &place.loops_v6,
        };
        let header = RecordHeader {
            remote,
            len,
            ttl: place.ttl.load(Ordering::Relaxed),
            tos: place.tos.load(Ordering::Relaxed),
            has_more: false,
            loops: loops.load(Ordering::Relaxed),
            dont_fragment,
        };
        let writing = queue.begin_writing();
        // `writing` keeps the ring's memory, so the pump cannot free it and change the answer.
        if from.is_none() && !queue.was_filled() {
            return Err(SocketError::Invalid);
        }
        if let Some(ours) = ours {
            queue.write_in(&writing, &ours.to_bytes());
        }
        queue.write_in(&writing, &header.to_bytes());
        match from {
            Some(from) => queue.write_in(&writing, from),
            None => queue.write_again_in(&writing, bytes),
        };
        // Also overwrites the padding of the record, since the record may be sent again.
        queue.write_in(&writing, &[0; HEADER][..padded - HEADER - bytes]);
        drop(writing);
        world.raise_socket(&queue);
        Ok(())
    }

    /// As [`UdpSender::try_send`], for `len` bytes that this socket wrote one queue length
    /// ([`Limits::udp_send_buffer`](crate::Limits::udp_send_buffer)) earlier, record headers
    /// included. They are still in the ring, so nothing is copied; this is for measurements.
    ///
    /// # Errors
    /// As [`UdpSender::try_send`]; [`SocketError::Invalid`] until the socket has sent a full
    /// queue.
    #[cfg(feature = "testkit")]
    #[doc(hidden)]
    pub fn try_send_again(&mut self, len: usize) -> Result<(), SocketError> {
        self.put_bytes(len, None, (None, None))
    }

    /// Sends datagrams in order, each to its destination, while there is room. Waits for room for
    /// the first one. Returns the number of accepted datagrams, which is smaller than given if
    /// room ends, or if [`UdpSender::send_to`] would refuse the next one. Datagrams of equal
    /// length to one destination may leave in one frame
    /// ([`Limits::datagrams_per_frame`](crate::Limits::datagrams_per_frame)).
    ///
    /// # Errors
    /// As [`UdpSender::send_to`], for the first one.
    pub fn send_many<'a>(
        &mut self,
        datagrams: impl IntoIterator<Item = (&'a [u8], SocketAddr)>,
    ) -> io::Result<usize> {
        self.put_many(datagrams)
    }

    /// Sends a datagram to the connected peer.
    ///
    /// # Errors
    /// [`SocketError::NotConnected`], or as [`UdpSender::try_send_to`].
    pub fn try_send(&mut self, from: &[u8]) -> Result<(), SocketError> {
        self.put(from, None)
    }

    /// As [`UdpSender::try_send_to`], but waits for room.
    ///
    /// # Errors
    /// As [`UdpSender::try_send_to`]; `WouldBlock` only after the timeout, or if the socket does
    /// not block.
    pub fn send_to(&mut self, from: &[u8], remote: SocketAddr) -> io::Result<()> {
        let until = self.shared.write_wait.begin();
        Ok(self.put_until(until, from, Some(remote))?)
    }

    /// As [`UdpSender::try_send`], but waits for room.
    ///
    /// # Errors
    /// As [`UdpSender::send_to`].
    pub fn send(&mut self, from: &[u8]) -> io::Result<()> {
        let until = self.shared.write_wait.begin();
        Ok(self.put_until(until, from, None)?)
    }
}
