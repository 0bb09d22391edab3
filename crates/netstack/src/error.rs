//! Errors, by the kind of caller that can act on them.

use core::fmt;
use std::io;

pub use dominoes_proto::config::ConfigError;
pub(crate) use dominoes_proto::config::VARIANT_NAMES;

/// Why a call on a socket failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketError {
    /// The peer refused the connection.
    Refused,
    /// The peer reset the connection.
    Reset,
    /// The peer, or a neighbour on the path to it, did not answer in time.
    TimedOut,
    /// We aborted the connection.
    Aborted,
    /// The connection's local address was removed from its interface.
    AddressLost,
    /// The stack has the address already.
    AddressTaken,
    /// The interface has this route already.
    RouteTaken,
    /// The interface has no such route.
    NoSuchRoute,
    /// The gateway of a route is on no network of its interface.
    NotNeighbor,
    /// The network reports that the peer cannot be reached.
    Unreachable,
    /// The number of connections, pending opens included, has reached [`Limits::connections`].
    ///
    /// [`Limits::connections`]: crate::Limits::connections
    NoRoom,
    /// All automatically assigned ports, or identifiers of echo requests, are taken.
    NoPort,
    /// There are as many UDP sockets as [`Limits::udp_sockets`] allows.
    ///
    /// [`Limits::udp_sockets`]: crate::Limits::udp_sockets
    TooManySockets,
    /// The socket already listens to 64 groups and sources.
    TooManyGroups,
    /// The interface already has 64 addresses of this family.
    TooManyAddresses,
    /// The interface already has 1024 routes of this family.
    TooManyRoutes,
    /// A listener or socket already has the port.
    PortTaken,
    /// A unit of a framed stream could not be processed: the connection was reset.
    Failed(Failure),
    /// The stream ended within a unit.
    Truncated,
    /// Clones or halves of the stream are in use, so it cannot have units.
    NotAlone,
    /// A unit, or a record of TLS, may be longer than the buffers of the connection allow.
    BufferTooShort,
    /// A unit processor called this, in the middle of a unit.
    InProcessor,
    /// The sending side was shut down.
    ShutDown,
    /// The stack was shut down.
    Down,
    /// The call would have to wait, and may not.
    WouldBlock,
    /// The call has waited until its timeout.
    WaitedTooLong,
    /// A setting is out of its range.
    Invalid,
    /// The text is no address with a port, and no name that resolves to one.
    NoAddress,
    /// Port 0 cannot be a destination.
    PortZero,
    /// The message is longer than the longest datagram or than the send ring.
    TooLong,
    /// The datagram must not be fragmented, and is longer than the path to its destination
    /// allows.
    LongerThanPath {
        /// The longest packet of the path as far as known, in bytes, IP header included.
        mtu: u16,
    },
    /// The socket is not connected, and the call names no destination.
    NotConnected,
    /// The destination is a broadcast address, and the socket does not allow broadcasts.
    NotAllowed,
    /// No route leads to the destination.
    NoRoute,
    /// The address to bind to is not an address of the stack.
    NotOurs,
    /// The listener was closed.
    Closed,
    /// The thread has entered no sockets, and there are no default sockets.
    NoStack,
}

impl SocketError {
    /// The corresponding kind of `std::io` error.
    pub const fn kind(self) -> io::ErrorKind {
        match self {
            SocketError::Refused => io::ErrorKind::ConnectionRefused,
            SocketError::Reset => io::ErrorKind::ConnectionReset,
            SocketError::TimedOut => io::ErrorKind::TimedOut,
            SocketError::Aborted | SocketError::AddressLost | SocketError::Down => {
                io::ErrorKind::ConnectionAborted
            }
            SocketError::Unreachable => io::ErrorKind::HostUnreachable,
            SocketError::Failed(_) => io::ErrorKind::InvalidData,
            SocketError::Truncated => io::ErrorKind::UnexpectedEof,
            SocketError::InProcessor => io::ErrorKind::Deadlock,
            SocketError::NoRoute | SocketError::NotNeighbor => io::ErrorKind::NetworkUnreachable,
            SocketError::RouteTaken => io::ErrorKind::AlreadyExists,
            SocketError::NoSuchRoute => io::ErrorKind::NotFound,
            SocketError::NoStack => io::ErrorKind::NetworkDown,
            SocketError::NotOurs | SocketError::NoPort => io::ErrorKind::AddrNotAvailable,
            SocketError::NoRoom
            | SocketError::TooManySockets
            | SocketError::TooManyGroups
            | SocketError::TooManyAddresses
            | SocketError::TooManyRoutes => io::ErrorKind::OutOfMemory,
            SocketError::PortTaken | SocketError::AddressTaken => io::ErrorKind::AddrInUse,
            SocketError::ShutDown => io::ErrorKind::BrokenPipe,
            // As with the timeouts of `std::net` on Unix.
            SocketError::WouldBlock | SocketError::WaitedTooLong => io::ErrorKind::WouldBlock,
            SocketError::Invalid
            | SocketError::NoAddress
            | SocketError::PortZero
            | SocketError::TooLong
            | SocketError::LongerThanPath { .. }
            | SocketError::NotAlone
            | SocketError::BufferTooShort
            | SocketError::Closed => io::ErrorKind::InvalidInput,
            SocketError::NotConnected => io::ErrorKind::NotConnected,
            SocketError::NotAllowed => io::ErrorKind::PermissionDenied,
        }
    }

    /// The corresponding error number of Linux, for programs that use these numbers. An
    /// [`io::Error`] made from a [`SocketError`] keeps the typed error: `error.get_ref()` returns
    /// it, and so its number.
    pub const fn errno(self) -> i32 {
        match self {
            SocketError::NoSuchRoute => 2,
            SocketError::WouldBlock | SocketError::WaitedTooLong => 11,
            SocketError::NoRoom => 12,
            SocketError::NotAllowed => 13,
            SocketError::RouteTaken => 17,
            SocketError::Invalid
            | SocketError::NoAddress
            | SocketError::PortZero
            | SocketError::NotAlone
            | SocketError::BufferTooShort
            | SocketError::Closed => 22,
            SocketError::ShutDown => 32,
            SocketError::InProcessor => 35,
            SocketError::Failed(_) | SocketError::Truncated => 74,
            SocketError::TooLong | SocketError::LongerThanPath { .. } => 90,
            SocketError::PortTaken | SocketError::AddressTaken => 98,
            SocketError::NotOurs | SocketError::NoPort => 99,
            SocketError::NoStack => 100,
            SocketError::NoRoute | SocketError::NotNeighbor => 101,
            SocketError::Aborted | SocketError::AddressLost => 103,
            SocketError::Reset => 104,
            SocketError::TooManySockets
            | SocketError::TooManyGroups
            | SocketError::TooManyAddresses
            | SocketError::TooManyRoutes => 105,
            SocketError::NotConnected => 107,
            SocketError::Down => 108,
            SocketError::TimedOut => 110,
            SocketError::Refused => 111,
            SocketError::Unreachable => 113,
        }
    }
}

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SocketError::Refused => "the peer refused the connection",
            SocketError::Reset => "the peer reset the connection",
            SocketError::TimedOut => "the peer did not answer",
            SocketError::Aborted => "the connection was aborted",
            SocketError::AddressLost => "the address of the connection was removed",
            SocketError::AddressTaken => "the stack has this address already",
            SocketError::RouteTaken => "the interface has this route; remove it first",
            SocketError::NoSuchRoute => "the interface has no such route; `routes` lists them",
            SocketError::NotNeighbor => {
                "the gateway is on no network of the interface; add an address there first"
            }
            SocketError::Unreachable => "there is no way to the peer; is the gateway set?",
            SocketError::NoRoom => "the connection table is full; raise `Limits::connections`",
            SocketError::NoPort => "every port that is given out is taken; name one",
            SocketError::TooManySockets => {
                "there are as many UDP sockets as may be; raise `Limits::udp_sockets`"
            }
            SocketError::TooManyGroups => {
                "the socket listens to 64 groups and sources; use another socket"
            }
            SocketError::TooManyAddresses => "the interface has 64 addresses; remove one",
            SocketError::TooManyRoutes => "the interface has 1024 routes; remove one",
            SocketError::PortTaken => "the port is taken",
            SocketError::Failed(failure) => {
                return write!(f, "a unit cannot be processed: {failure}");
            }
            SocketError::Truncated => "the stream ended within a unit",
            SocketError::NotAlone => "clones or halves of the stream are in use",
            SocketError::BufferTooShort => {
                "a unit may be too long; raise `Limits::receive_buffer` or `Limits::send_buffer`"
            }
            SocketError::InProcessor => "a unit processor may not use framed streams",
            SocketError::ShutDown => "the sending side was shut down",
            SocketError::Down => "the stack was shut down",
            SocketError::WouldBlock => "the call would have to wait",
            SocketError::WaitedTooLong => "the call has waited for as long as its timeout allows",
            SocketError::Invalid => "a setting is out of its range",
            SocketError::NoAddress => {
                "no address; write it like 10.0.0.2:80 or [2001:db8::2]:80, or name a host and port"
            }
            SocketError::PortZero => "port 0 is nobody's; name another one",
            SocketError::TooLong => {
                "the message is longer than a datagram can be, or than `Limits::udp_send_buffer`"
            }
            SocketError::LongerThanPath { mtu } => {
                return write!(f, "the path takes packets of {mtu} bytes, and no fragments");
            }
            SocketError::NotConnected => "the socket is not connected; name a destination",
            SocketError::NotAllowed => "this goes to everybody; call `set_broadcast` first",
            SocketError::NoRoute => "no route leads there; is the gateway set?",
            SocketError::NotOurs => "the stack has not this address",
            SocketError::Closed => "the listener was closed",
            SocketError::NoStack => "no stack to use; call `Sockets::enter` on this thread",
        })
    }
}

impl std::error::Error for SocketError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SocketError::Failed(failure) => Some(failure),
            _ => None,
        }
    }
}

/// Why a unit cannot be processed, or a processor cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The unit is not authentic.
    Forged,
    /// The stream is longer than the processor can number positions.
    TooLong,
    /// A reason of one processor, or of your own.
    Other(&'static str),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Failure::Forged => "the unit is not authentic",
            Failure::TooLong => "the stream is too long for its nonces",
            Failure::Other(reason) => reason,
        })
    }
}

impl std::error::Error for Failure {}

impl SocketError {
    /// The [`SocketError`] that an [`io::Error`] was made from, if any.
    pub fn of(error: &io::Error) -> Option<SocketError> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl From<SocketError> for io::Error {
    fn from(error: SocketError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}

/// Why a stack could not start, change its number of replicas, or close in order.
#[derive(Debug)]
#[non_exhaustive]
pub enum StackError {
    /// A setting is wrong.
    Config(ConfigError),
    /// The address is not of the form `10.0.0.1/24`.
    Address(String),
    /// No thread could be started, no random numbers could be read, or the device refused an
    /// address because the kernel's end of it has the same.
    Io(io::Error),
    /// No replica can be added or removed.
    Membership(MembershipError),
    /// Some connections were reset before their peers had acknowledged everything.
    Unacknowledged {
        /// The number of these connections.
        connections: usize,
    },
}

/// Why no replica can join a group or leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MembershipError {
    /// Every replica slot is taken; `Builder::replica_slots` sets the number of slots.
    NoFreeSlot,
    /// There is no such replica, or it is already leaving.
    NoSuchReplica,
    /// All other replicas have left, or are about to leave: the state would be lost.
    LastReplica,
    /// Every replica has failed, so the state is lost.
    NoReplicaLeft,
    /// The stack runs without a log: it has a single replica slot, or its variant is not
    /// `replicated`.
    NoLog,
}

impl fmt::Display for MembershipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MembershipError::NoFreeSlot => {
                "every replica slot is taken; raise `Builder::replica_slots`"
            }
            MembershipError::NoSuchReplica => "no such replica, or it is leaving",
            MembershipError::LastReplica => "the last replica cannot leave",
            MembershipError::NoReplicaLeft => "no replica is left to take a state from",
            MembershipError::NoLog => {
                "this stack has no log to join; set `Builder::replica_slots`, and no other variant \
                 than `replicated`"
            }
        })
    }
}

impl std::error::Error for MembershipError {}

impl From<MembershipError> for StackError {
    fn from(error: MembershipError) -> Self {
        StackError::Membership(error)
    }
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StackError::Config(error) => error.fmt(f),
            StackError::Address(text) => {
                write!(
                    f,
                    "`{text}` is no address with prefix; write it like 10.0.0.1/24"
                )
            }
            StackError::Io(error) => write!(f, "the stack cannot start: {error}"),
            StackError::Membership(error) => error.fmt(f),
            StackError::Unacknowledged { connections } => {
                write!(f, "{connections} connections were cut short")
            }
        }
    }
}

impl StackError {
    /// The number of the operating system's error that caused this, if any.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            StackError::Io(error) => error.raw_os_error(),
            _ => None,
        }
    }
}

impl std::error::Error for StackError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StackError::Config(error) => Some(error),
            StackError::Address(_) | StackError::Unacknowledged { .. } => None,
            StackError::Io(error) => Some(error),
            StackError::Membership(error) => Some(error),
        }
    }
}

/// Checks the number of queues of a device. A frame names its queue in 8 bits.
pub(crate) fn check_queues(count: usize) -> Result<(), ConfigError> {
    let allowed = "1 to 256";
    let wrong = !(1..=256).contains(&count);
    ConfigError::check(wrong.then_some(("queues of the device", count as u64, allowed)))
}

impl From<ConfigError> for StackError {
    fn from(error: ConfigError) -> Self {
        StackError::Config(error)
    }
}

impl From<io::Error> for StackError {
    fn from(error: io::Error) -> Self {
        StackError::Io(error)
    }
}
