//! Settings and limits: defaults, ranges, and the reasons for them.
//!
//! # Fixed limits
//!
//! [`Limits`] does not set the bounds of the following table. "Waits": the owner keeps the excess
//! and tries again later, so nothing is lost. Where something is lost, the table names the counter
//! or the error that reports it.
//!
//! | resource | limit | beyond the limit |
//! |---|---|---|
//! | ARP, ICMP and neighbour discovery that we send, and datagrams that waited for a neighbour | 256 KiB, then 8 MiB (`io/rx/host.rs`) | frames wait in the device, opens and echo requests in their queues; if the device takes nothing for 10 ms, frames beyond 8 MiB are dropped: [`PumpStats::control_dropped`] |
//! | opens that wait for a neighbour, or for an IPv6 address | [`Limits::connections`] | [`SocketError::NoRoom`] |
//! | datagrams that wait for a neighbour | four times [`Limits::udp_send_buffer`], at least 212,992 bytes; 4 MiB for all (`ip/neighbor.rs`) | the oldest for this neighbour make room (RFC 1122 section 2.3.2.2); beyond 4 MiB, new ones are dropped: [`PumpStats::unresolved`] |
//! | segments without a connection that wait for the next hop of their answer | 64 runs for one hop; 1 MiB for all (`io/rx/unanswered.rs`) | dropped: [`PumpStats::unresolved`] |
//! | known neighbours that are not next hops of connections | 1024 | the least recently needed are forgotten, and resolved again when needed |
//! | neighbours that are being resolved for datagrams | 1024 | the datagram is dropped: [`PumpStats::unresolved`] |
//! | changes of neighbours' link-layer addresses | one per second for each neighbour; 16 at once, then 10 per second for all | accepted when the neighbour repeats its claim: [`PumpStats::neighbor_moves_rejected`] |
//! | fragments of a datagram, and memory for all of them | [`Limits::reassembly_pieces`], [`Limits::reassembly_bytes`] | the datagram is dropped: [`PumpStats::bad_fragments`] |
//! | extension headers, and options in one | 8 (RFC 8504 section 5.3) | the packet is dropped: [`PumpStats::malformed`] |
//! | addresses and prefixes that IPv6 routers advertise | 16 of each, 8 routers | accepted when another one has expired and the router repeats it |
//! | known path MTUs | 256 | the oldest is forgotten, and learned again from the router |
//! | frames to ourselves that wait | 1024 a group | later frames wait in their transmit slots |
//! | echo requests of a socket that are not sent yet | 256 | [`SocketError::WouldBlock`] |
//! | unread echo replies | 256 a socket | the oldest makes room: [`PumpStats::echo_replies_unread`] |
//! | echo requests without a reply | 1024 | the reply to the oldest is ignored: [`PumpStats::echo_requests_forgotten`] |
//! | UDP sockets; ephemeral ports | [`Limits::udp_sockets`]; 32,768 | [`SocketError::TooManySockets`]; [`SocketError::NoPort`] |
//! | multicast groups and sources of a socket | 64 | [`SocketError::TooManyGroups`] |
//! | sources of a multicast record, records of a report | 50, 20 | the rest goes into more records and reports |
//! | addresses and routes of an interface | 64 and 1024 of each family | [`SocketError::TooManyAddresses`], [`SocketError::TooManyRoutes`], or [`ConfigError`] |
//! | segments of a run, datagrams of a request | 60, 16 | the rest goes into the next request |
//! | batches that are claimed but not published | 16 of 120 frames | frames wait in the device |
//! | ranges that arrived out of order | 256 a connection (`tcp/reassembly.rs`) | the segment is dropped; its sender retransmits |
//! | ranges of the scoreboard | 512 a connection | adjacent ranges are merged; their details are learned again |
//! | changes of routes that are kept for connections reported late | 16 | the connection keeps its next hop until the next change |
//! | connections whose application has made progress | twice [`Limits::connections`] | an overflow list grows |
//! | consecutive TLS messages without text; a handshake message | 32; 64 KiB | the connection ends with an alert |
//! | groups; replicas of a group | 64; 56 | [`ConfigError`]; [`MembershipError::NoFreeSlot`] |
//! | frames that a router holds for a device | 1024 | [`RouterStats::overflowed`] |
//! | frames between a device and one of several groups (`split`) | `groups::INBOX` | frames wait in the device, or the device drops and counts them |
//! | buffers, results and frames kept for reuse | 32 to 1024 | memory is allocated |
//!
//! [`PumpStats::control_dropped`]: crate::stats::PumpStats::control_dropped
//! [`PumpStats::echo_replies_unread`]: crate::stats::PumpStats::echo_replies_unread
//! [`PumpStats::echo_requests_forgotten`]: crate::stats::PumpStats::echo_requests_forgotten
//! [`PumpStats::unresolved`]: crate::stats::PumpStats::unresolved
//! [`PumpStats::neighbor_moves_rejected`]: crate::stats::PumpStats::neighbor_moves_rejected
//! [`PumpStats::bad_fragments`]: crate::stats::PumpStats::bad_fragments
//! [`PumpStats::malformed`]: crate::stats::PumpStats::malformed
//! [`SocketError::NoRoom`]: crate::SocketError::NoRoom
//! [`SocketError::NoPort`]: crate::SocketError::NoPort
//! [`SocketError::WouldBlock`]: crate::SocketError::WouldBlock
//! [`SocketError::TooManySockets`]: crate::SocketError::TooManySockets
//! [`SocketError::TooManyGroups`]: crate::SocketError::TooManyGroups
//! [`SocketError::TooManyAddresses`]: crate::SocketError::TooManyAddresses
//! [`SocketError::TooManyRoutes`]: crate::SocketError::TooManyRoutes
//! [`MembershipError::NoFreeSlot`]: crate::MembershipError::NoFreeSlot
//! [`ConfigError`]: crate::ConfigError
//! [`RouterStats::overflowed`]: crate::router::RouterStats::overflowed

#[doc(no_inline)]
pub use dominoes_proto::config::{
    CongestionControl, Ecn, Keepalive, Limits, Settings, TcpPolicy, Tuning,
};
pub(crate) use dominoes_proto::config::{PowersOfTwo, tx_chunk};
