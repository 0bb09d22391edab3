//! The rings of UDP sockets, which applications, pump and primaries share.
//!
//! They are the rings of connections ([`crate::io::stream`]), but hold records
//! ([`crate::udp::record`]). The same rules define which thread may access which byte, and stamps
//! show the application the end of its queue. Instead of a connection's status there is a word with
//! a reported error, which the application's next call returns.

use crate::keys::ephemeral_from;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::HashMap;

use crossbeam_queue::{ArrayQueue, SegQueue};

use crate::config::Limits;
use crate::error::SocketError;
use crate::io::stream::Streams;
use crate::log::request::{Binding, ConnId};

/// An error that the network reported for a socket's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingError {
    /// No socket has the port, or the host does not support UDP.
    Refused,
    /// The host or its network cannot be reached.
    Unreachable,
    /// A datagram that must not be fragmented exceeds the path MTU, in bytes.
    TooBig { mtu: u16 },
}

const REFUSED: u32 = 1;
const UNREACHABLE: u32 = 2;
/// The upper half of the word is the MTU.
const TOO_BIG: u32 = 3;

/// The rings of all UDP sockets of a stack.
pub(crate) struct Queues {
    pub(crate) streams: Streams,
    /// For each place, the reported error that no call has returned yet.
    pending_errors: Box<[AtomicU32]>,
    /// Sockets that sent something, each at most once; drained by the pump.
    pub(crate) dirty: ArrayQueue<ConnId>,
    /// Sockets that `apply` has closed; drained by the pump.
    pub(crate) unbound: SegQueue<ConnId>,
}

impl Queues {
    pub(crate) fn new(limits: &Limits, delivery_slots: usize) -> Self {
        let of_sockets = limits
            .connections(limits.udp_sockets)
            .receive_buffer(limits.udp_receive_buffer)
            .send_buffer(limits.udp_send_buffer);
        let mut streams = Streams::new(&of_sockets, delivery_slots);
        // No peer acknowledges datagrams, so there is no slow start, and the first one may have
        // the full length.
        streams.first_send = limits.udp_send_buffer.into();
        Queues {
            streams,
            pending_errors: (0..limits.udp_sockets).map(|_| AtomicU32::new(0)).collect(),
            dirty: ArrayQueue::new(2 * limits.udp_sockets as usize + 1),
            unbound: SegQueue::new(),
        }
    }

    /// Stores an error for the next call of `socket`.
    pub(crate) fn report(&self, socket: ConnId, trouble: PendingError) {
        let word = match trouble {
            PendingError::Refused => REFUSED,
            PendingError::Unreachable => UNREACHABLE,
            PendingError::TooBig { mtu } => u32::from(mtu) << 16 | TOO_BIG,
        };
        if let (Some(place), Some(stream)) = (
            self.pending_errors.get(socket.index as usize),
            self.streams.get(socket),
        ) {
            // ORDERING: Relaxed: the word is the whole value.
            place.store(word, Ordering::Relaxed);
            stream.waiting().notify_all();
        }
    }

    /// Whether an error was reported since the last call.
    pub(crate) fn has_error(&self, socket: ConnId) -> bool {
        let place = self.pending_errors.get(socket.index as usize);
        place.is_some_and(|place| place.load(Ordering::Relaxed) != 0)
    }

    /// Returns the error that was reported since the last call, if any.
    pub(crate) fn take_error(&self, socket: ConnId) -> Result<(), SocketError> {
        let Some(place) = self.pending_errors.get(socket.index as usize) else {
            return Ok(());
        };
        if place.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        match place.swap(0, Ordering::Relaxed) {
            REFUSED => Err(SocketError::Refused),
            UNREACHABLE => Err(SocketError::Unreachable),
            0 => Ok(()),
            word => Err(SocketError::LongerThanPath {
                mtu: (word >> 16) as u16,
            }),
        }
    }

    /// Recycles a place until its socket is `socket`. A replay needs this, because a recording
    /// shows the end of a socket only by the start of the next one.
    pub(crate) fn recycle_for(&self, socket: ConnId) {
        let last = ConnId {
            generation: socket.generation.wrapping_sub(1),
            ..socket
        };
        if self.streams.get(last).is_some() {
            self.recycle(last);
        }
    }

    /// Gives a place to its next socket and returns the socket's name. Only the pump may call
    /// it, when all work of the former socket is done.
    pub(crate) fn recycle(&self, socket: ConnId) -> ConnId {
        self.streams.recycle(socket);
        if let Some(place) = self.pending_errors.get(socket.index as usize) {
            place.store(0, Ordering::Relaxed);
        }
        ConnId {
            generation: socket.generation.wrapping_add(1),
            ..socket
        }
    }
}

/// Whether other sockets may have the port of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// With sockets that do so, too; the newest takes a datagram.
    pub(crate) newest: bool,
    /// With sockets that do so, too; a hash of the sender chooses.
    pub(crate) balanced: bool,
}

impl Sharing {
    const fn is_allowed_beside(self, other: Sharing) -> bool {
        self.newest && other.newest || self.balanced && other.balanced
    }
}

/// The places and ports in use. Accessed when a socket begins or ends, never for a datagram.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    /// The bindings of the sockets at a port. A datagram to one host matches two of them only if
    /// both share the port.
    ports: HashMap<u16, Vec<(Binding, Sharing)>>,
    /// Places that have been used and are free again.
    free: Vec<ConnId>,
    /// Places that not all groups have finished with, and how many groups have.
    ending: HashMap<ConnId, usize>,
    /// Places that were ever used.
    used: u32,
    /// Ports chosen so far, so that the next choice differs.
    chosen: u64,
    /// Port and binding of each socket, needed only to unbind it.
    ports_by_socket: HashMap<ConnId, (u16, Binding, Sharing)>,
}

impl Bindings {
    /// Gives a socket a place and `port`. For port 0 it takes the first free port from `random` on:
    /// a hash of the count of choices that an attacker cannot know (RFC 6056 section 3.3.1).
    pub(crate) fn bind(
        &mut self,
        (port, binding, sharing): (u16, Binding, Sharing),
        limits: &Limits,
        random: impl Fn(u64) -> u64,
    ) -> Result<(ConnId, u16), SocketError> {
        let port = match port {
            0 => self.choose(random).ok_or(SocketError::NoPort)?,
            port => port,
        };
        Ok((self.take(port, (binding, sharing), limits)?, port))
    }

    /// As [`Bindings::bind`], for this very port, or
    /// [`ALL_PORTS`](crate::log::request::ALL_PORTS).
    pub(crate) fn take(
        &mut self,
        port: u16,
        (binding, sharing): (Binding, Sharing),
        limits: &Limits,
    ) -> Result<ConnId, SocketError> {
        if self.is_taken(port, &binding, sharing) {
            return Err(SocketError::PortTaken);
        }
        let socket = match self.free.pop() {
            Some(socket) => socket,
            None if self.used < limits.udp_sockets => {
                self.used += 1;
                ConnId {
                    index: self.used - 1,
                    generation: 0,
                }
            }
            None => return Err(SocketError::TooManySockets),
        };
        let of_port = self.ports.entry(port).or_default();
        of_port.push((binding, sharing));
        self.ports_by_socket
            .insert(socket, (port, binding, sharing));
        Ok(socket)
    }

    fn is_taken(&self, port: u16, binding: &Binding, sharing: Sharing) -> bool {
        let excludes = |(other, its): &(Binding, Sharing)| {
            other.overlaps(binding) && !its.is_allowed_beside(sharing)
        };
        let of_port = self.ports.get(&port);
        of_port.is_some_and(|of_port| of_port.iter().any(excludes))
    }

    fn choose(&mut self, random: impl Fn(u64) -> u64) -> Option<u16> {
        self.chosen += 1;
        let start = random(self.chosen) as u16;
        ephemeral_from(start).find(|port| !self.ports.contains_key(port))
    }

    /// Removes an ended socket from its port.
    pub(crate) fn unbind(&mut self, socket: ConnId) {
        let Some((port, binding, sharing)) = self.ports_by_socket.remove(&socket) else {
            return;
        };
        if let Some(of_port) = self.ports.get_mut(&port) {
            // Others may have the same.
            if let Some(at) = of_port.iter().position(|one| *one == (binding, sharing)) {
                of_port.swap_remove(at);
            }
            if of_port.is_empty() {
                self.ports.remove(&port);
            }
        }
    }

    /// Notes that one of `groups` groups has finished with a place. After all have, the place is
    /// free for a socket with this name.
    pub(crate) fn free(&mut self, next: ConnId, groups: usize) {
        let done = self.ending.entry(next).or_insert(0);
        *done += 1;
        if *done >= groups {
            self.ending.remove(&next);
            self.free.push(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits::default().udp_sockets(2)
    }

    /// A port, with a binding to all addresses.
    fn all(port: u16) -> (u16, Binding, Sharing) {
        (port, Binding::default(), Sharing::default())
    }

    #[test]
    fn a_port_and_a_place_have_one_socket() {
        let mut bindings = Bindings::default();
        let (first, port) = bindings.bind(all(53), &limits(), |n| n).unwrap();
        assert_eq!(port, 53);
        assert_eq!(
            bindings.bind(all(53), &limits(), |n| n),
            Err(SocketError::PortTaken)
        );
        let (second, chosen) = bindings.bind(all(0), &limits(), |n| n).unwrap();
        assert!(chosen >= crate::keys::EPHEMERAL && second.index != first.index);
        assert_eq!(
            bindings.bind(all(54), &limits(), |n| n),
            Err(SocketError::TooManySockets)
        );
        bindings.unbind(first);
        assert_eq!(
            bindings.bind(all(53), &limits(), |n| n),
            Err(SocketError::TooManySockets),
            "its place may still have work to do"
        );
        let next = ConnId {
            generation: 1,
            ..first
        };
        bindings.free(next, 2);
        assert_eq!(
            bindings.bind(all(53), &limits(), |n| n),
            Err(SocketError::TooManySockets),
            "another group may still have work to do"
        );
        bindings.free(next, 2);
        assert_eq!(bindings.bind(all(53), &limits(), |n| n), Ok((next, 53)));
    }

    #[test]
    fn an_error_is_reported_once() {
        let queues = Queues::new(&limits(), 4);
        let socket = ConnId {
            index: 1,
            generation: 0,
        };
        assert_eq!(queues.take_error(socket), Ok(()));
        queues.report(socket, PendingError::Refused);
        assert_eq!(queues.take_error(socket), Err(SocketError::Refused));
        assert_eq!(queues.take_error(socket), Ok(()));
        queues.report(socket, PendingError::Unreachable);
        queues.recycle(socket);
        assert_eq!(queues.take_error(socket), Ok(()));
    }
}
