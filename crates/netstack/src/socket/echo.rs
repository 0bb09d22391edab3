//! Sends echo requests to other hosts (RFC 792, RFC 4443 section 4): ping.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU8, Ordering};
use core::time::Duration;
use std::io;
use std::sync::Arc;

use super::poller::{Target, Watched};
use super::wait::WaitPolicy;
use super::{Sockets, interfaces, valid_ttl};
use crate::error::SocketError;
use crate::io::echo::{EchoQueues, EchoReply, EchoRequest};
use crate::io::world::{Command, World};
use crate::keys::KeyUse;
use crate::log::request::Address;

/// The most data bytes of a request: 65,535 minus the headers of IPv4 and ICMP.
const MOST_DATA: usize = 65_535 - 20 - 8;
/// Default time to live of requests (RFC 1122 section 3.2.1.7).
const TTL: u8 = 64;

/// A socket that sends echo requests and receives their replies. An identifier distinguishes it
/// from other sockets. A queue holds 256 replies; a new reply replaces the oldest if it is full.
///
/// ```
/// use dominoes_drivers::memory::{self, MemoryConfig};
/// use dominoes_netstack::Stack;
///
/// let (left, right) = memory::pair(MemoryConfig::default());
/// let _host = Stack::builder("10.0.0.1/24").start(left)?;
/// let stack = Stack::builder("10.0.0.2/24").start(right)?;
/// let ping = stack.sockets().open_echo()?;
/// ping.send([10, 0, 0, 1].into(), 1, b"hello")?;
/// let reply = ping.recv()?;
/// assert_eq!((reply.sequence, &reply.data[..]), (1, &b"hello"[..]));
/// println!("{} after {:?}", reply.from, reply.round_trip);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EchoSocket {
    pub(super) watched: Watched,
    worlds: Arc<[Arc<World>]>,
    ident: u16,
    queues: Arc<EchoQueues>,
    wait: WaitPolicy,
    ttl: AtomicU8,
}

impl Sockets {
    /// Opens a socket for echo requests, with an identifier that no other socket of the stack
    /// has.
    ///
    /// # Errors
    /// [`SocketError::NoPort`] if all identifiers are taken; [`SocketError::Down`].
    pub fn open_echo(&self) -> Result<EchoSocket, SocketError> {
        self.check_up()?;
        let world = self.world();
        let mut table = world.socket_table();
        let start = world.random_port(KeyUse::UdpPort, table.next_request_id()) as u16;
        let mut all = (0..=u16::MAX).map(|i| start.wrapping_add(i));
        let ident = all.find(|ident| !table.echoes.contains_key(ident));
        let ident = ident.ok_or(SocketError::NoPort)?;
        let queues = Arc::new(EchoQueues::new());
        table.echoes.insert(ident, Arc::clone(&queues));
        drop(table);
        Ok(EchoSocket {
            watched: Watched::default(),
            worlds: self.worlds.clone(),
            ident,
            queues,
            wait: WaitPolicy::default(),
            ttl: AtomicU8::new(TTL),
        })
    }
}

impl EchoSocket {
    /// The identifier in the requests of this socket.
    pub fn ident(&self) -> u16 {
        self.ident
    }

    /// The object that a poller checks.
    pub(super) fn target(&self) -> Target {
        Target::Echo {
            // All groups of a stack end together.
            world: Arc::clone(&self.worlds[0]),
            queues: Arc::clone(&self.queues),
        }
    }

    /// Sends a request, in fragments if it is long. Never blocks. The request waits for the
    /// link-layer address of the next hop, and is lost if no neighbour answers for it. Only a reply
    /// from `to` counts.
    ///
    /// # Errors
    /// [`SocketError::TooLong`] above 65,507 bytes; [`SocketError::NoRoute`] if no route leads
    /// there; [`SocketError::Unreachable`] if it is not the address of one host;
    /// [`SocketError::WouldBlock`] if too many requests wait to be sent; [`SocketError::Down`].
    pub fn send(&self, to: IpAddr, sequence: u16, data: &[u8]) -> Result<(), SocketError> {
        let address = Address::from(to);
        let interface = interfaces::towards(&self.worlds, (to, 0).into()).unwrap_or(0);
        // The first of several groups sends requests and receives the replies.
        let world = &self.worlds[interfaces::groups_of(&self.worlds, interface).start];
        if world.is_closing() {
            return Err(SocketError::Down);
        }
        if data.len() > MOST_DATA {
            return Err(SocketError::TooLong);
        }
        world.with_site_for(address, |site| {
            let leads = site.next_hop(address).is_some() && !address.ip().is_loopback();
            match site.is_one_host(address) {
                false => Err(SocketError::Unreachable),
                true if site.source(address).is_none() => Err(SocketError::NoRoute),
                true if site.is_ourselves(address) || leads && !world.is_link_down() => Ok(()),
                true => Err(SocketError::NoRoute),
            }
        })?;
        let request = EchoRequest {
            to: address,
            sequence,
            ttl: self.ttl.load(Ordering::Relaxed),
            data: data.to_vec(),
        };
        if !self.queues.ask(request) {
            return Err(SocketError::WouldBlock);
        }
        world.command(Command::Echo { ident: self.ident });
        Ok(())
    }

    /// Takes the oldest reply, if there is one.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`], [`SocketError::Down`].
    pub fn try_recv(&self) -> Result<EchoReply, SocketError> {
        match self.queues.take() {
            Some(reply) => Ok(reply),
            None if self.worlds[0].is_down() => Err(SocketError::Down),
            None => Err(SocketError::WouldBlock),
        }
    }

    /// As [`EchoSocket::try_recv`], but waits for a reply.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] after the timeout, or if the socket does not block;
    /// [`SocketError::Down`].
    pub fn recv(&self) -> io::Result<EchoReply> {
        let until = self.wait.begin();
        Ok(until.retry(&self.worlds[0], &self.queues.event, || self.try_recv())?)
    }

    /// How long [`EchoSocket::recv`] waits; `None`, the default: without limit.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(self.wait.set_timeout(timeout)?)
    }

    /// Whether [`EchoSocket::recv`] returns [`SocketError::WouldBlock`] where it would wait.
    /// Default: no.
    ///
    /// # Errors
    /// None as yet.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.wait.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Hops that requests may make, 1 to 255. Default 64.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] out of this range.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.ttl.store(valid_ttl(ttl)?, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for EchoSocket {
    fn drop(&mut self) {
        self.worlds[0].socket_table().echoes.remove(&self.ident);
    }
}

impl core::fmt::Debug for EchoSocket {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EchoSocket")
            .field("ident", &self.ident)
            .finish_non_exhaustive()
    }
}
