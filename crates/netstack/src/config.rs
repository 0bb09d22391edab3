//! What can be set: defaults, ranges, and the reasons for them.
//!
//! # Inner limits
//!
//! What [`Limits`] does not set is bounded as follows. "Waits": whoever has it keeps it and offers
//! it again, so nothing is lost. Where something is lost, the table says who notices.
//!
//! | what | how many | beyond that |
//! |---|---|---|
//! | ARP, ICMP and neighbour discovery that we send, and datagrams that waited for a neighbour | 256 KiB, then 8 MiB (`io/control.rs`) | frames wait in the device, opens and echo requests in their queues; if the device takes nothing for 10 ms, what is beyond 8 MiB is dropped: [`PumpStats::control_dropped`] |
//! | opens that wait for a neighbour, or for an address of IPv6 | [`Limits::connections`] | [`SocketError::NoRoom`] |
//! | datagrams that wait for a neighbour | four times [`Limits::udp_send_buffer`], at least 212,992 bytes; 4 MiB for all (`ip/neighbor.rs`) | the oldest make room (RFC 1122 section 2.3.2.2): [`PumpStats::unresolved`] |
//! | segments without a connection that wait for the next hop of their answer | 64 runs each; 1 MiB for all (`io/rx/unanswered.rs`) | dropped: [`PumpStats::unresolved`] |
//! | neighbours that are known, besides next hops of connections | 1024 | the one that was needed least lately is forgotten, and asked for when it is needed |
//! | neighbours that datagrams ask for at a time | 1024 | the datagram is dropped: [`PumpStats::unresolved`] |
//! | changes of a neighbour's address | one in a second each, 16 in a row | believed when it says so again: [`PumpStats::neighbor_moves_rejected`] |
//! | pieces of a datagram, and what is kept of datagrams | [`ReassemblyLimits`] | the datagram is dropped: [`PumpStats::bad_fragments`] |
//! | extension headers, and options in one | 8 (RFC 8504 section 5.3) | the packet is dropped: [`PumpStats::malformed`] |
//! | addresses and networks that routers of IPv6 give | 16 of each, 8 routers | the next is taken when one has ended, and the router repeats it |
//! | path MTUs that are known | 256 | the oldest is forgotten, and the router says it again |
//! | frames to ourselves that wait | 1024 a group | those behind wait in their transmit slots |
//! | echo requests of a socket that are not sent | 256 | [`SocketError::WouldBlock`] |
//! | echo replies that are not read | 256 a socket | the oldest makes room: [`PumpStats::echo_replies_unread`] |
//! | echo requests without a reply | 1024 | the reply to the oldest is ignored: [`PumpStats::echo_requests_forgotten`] |
//! | UDP sockets; ports that are given out | [`Limits::udp_sockets`]; 32,768 | [`SocketError::TooManySockets`]; [`SocketError::NoPort`] |
//! | groups and sources of a socket | 64 | [`SocketError::TooManyGroups`] |
//! | sources of a record, records of a report | 50, 20 | further records, further reports |
//! | addresses and routes of an interface | 64 and 1024 of each family | [`SocketError::TooManyAddresses`], [`SocketError::TooManyRoutes`], or [`ConfigError`] |
//! | segments of a run, datagrams of a request | 60, 16 | the next request has them |
//! | batches that are claimed and not published | 16 of 120 frames | frames wait in the device |
//! | ranges that arrived out of order | 256 a connection (`tcp/reassembly.rs`) | the segment is dropped; its sender sends it again |
//! | ranges of the scoreboard | 512 a connection | neighbours become one; what was known of them is learned again |
//! | changes of routes that late connections follow | 16 | the connection keeps the next hop that it has until the next change |
//! | connections, sockets whose application has news | as many as there are | more are in a list that grows |
//! | messages of TLS without text; a handshake message | 32; 64 KiB | the connection ends with an alert |
//! | groups; replicas of a group | 64; 56 | [`ConfigError`]; [`MembershipError::NoFreeSlot`] |
//! | frames that a router holds for a device | 1024 | [`RouterStats::overflowed`] |
//! | frames between a device and a group of several (`split`) | `groups::INBOX` | frames wait in the device, or the device drops and counts them |
//! | buffers, results and frames that are kept to be used again | 32 to 1024 | memory is allocated anew |
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
//! [`ReassemblyLimits`]: crate::ip::reassembly::ReassemblyLimits
//! [`RouterStats::overflowed`]: crate::router::RouterStats::overflowed

pub use dominoes_proto::config::*;
