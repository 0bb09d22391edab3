//! IP beyond its header: fragments, addresses, neighbours, and routes.
//!
//! None of it is replicated. The receive pump reassembles datagrams before anything else sees
//! them, and looks up next hops; the log holds the results that connections depend on.
//!
//! # Departures from the RFCs
//!
//! [`tcp`](crate::tcp) lists the departures of TCP.
//!
//! - Fragments that overlap cost their datagram in IPv4 as well, where RFC 5722 section 3
//!   requires that only for IPv6.
//! - Routers may fragment datagrams. There is no path MTU discovery for UDP (RFC 1191 leaves it
//!   to the application): datagrams leave without the don't-fragment bit, those longer than the
//!   MTU as fragments.
//! - If a device splits one frame into several datagrams, it counts identifications up from the
//!   first one's. Other datagrams to that destination may have had them more recently than RFC
//!   6864 section 4.3 allows. That matters only if a router fragments both, and UDP's checksum
//!   detects it.
//! - An address is used at once. It is announced and defended (RFC 5227 sections 2.3 and 2.4 (c)),
//!   but not probed for first (section 2.1), which would take seconds; and it is never given up.
//! - A neighbour may change its link-layer address once a second, and all neighbours together 10
//!   times a second. RFC 826 has no such bound, but the pump checks all connections at each change.
//! - Joining and leaving are reported in IGMPv3 and MLDv2 even where a router speaks an older
//!   version (RFC 3376 section 7.2.1); queries are answered in the router's version.
//! - The time between solicitations that routers advertise (RFC 4861 section 6.3.4) applies to
//!   the probes of our own addresses; neighbours are solicited once a second. The advertised
//!   hop limit replaces 64, even where an application set 64 itself.
//! - A redirect (section 8.3) is kept for the last 64 destinations, until its target stops
//!   answering or forwarding. IPv4 redirects are ignored, as RFC 1812 section 5.2.7.2 requires
//!   of routers.
//! - The next hop of a connection is probed when a connection or a datagram begins to need it,
//!   not while segments go unanswered (RFC 4861 section 7.3.3). A connection follows a
//!   neighbour that changes its link-layer address, and a change of routes; when no route is
//!   left, it keeps its next hop.
//! - Packets with more than eight extension headers, or eight options in one, are dropped (RFC
//!   8504 section 5.3).
//! - Queries for members of multicast groups are answered together, after one random delay, and
//!   with all sources of a group (RFC 3376 section 5.2 and RFC 3810 section 6.2 have a timer
//!   for each group, and answer only about the sources in the query).

pub mod fragment;
pub mod identification;
pub mod multicast;
pub mod neighbor;
pub mod pmtu;
pub mod rate_limit;
pub mod reassembly;
pub mod route;
pub mod v6;

use crate::packet as wire;
use crate::packet::ETHERNET_HEADER;
use reassembly::{DatagramId, Fragment, WholeDatagram};

/// Reads a fragment. `None` if the parser does not accept the frame as one.
pub fn fragment(frame: &[u8]) -> Option<Fragment<'_>> {
    let h = wire::fragment_header(frame)?;
    Some(Fragment {
        id: DatagramId {
            src: h.src,
            dst: h.dst,
            protocol: h.protocol,
            ident: h.ident,
        },
        offset: h.offset,
        more: h.more,
        ecn: h.ecn,
        head: frame.get(..h.head)?,
        payload: frame.get(h.head..h.end)?,
    })
}

/// The frame in which a datagram would have arrived without fragmentation. `None` if it is
/// longer than a packet may be.
pub fn whole(datagram: &WholeDatagram) -> Option<Vec<u8>> {
    if wire::is_ipv6(&datagram.head) {
        let (head, payload) = (&datagram.head, &datagram.payload);
        return wire::ipv6::without_fragment_header(head, payload, datagram.ce);
    }
    let all = datagram.head.len() + datagram.payload.len();
    let total_len = u16::try_from(all.checked_sub(ETHERNET_HEADER)?).ok()?;
    let mut frame = [&*datagram.head, &datagram.payload].concat();
    wire::set_piece(&mut frame, total_len, 0, false, datagram.ce);
    Some(frame)
}
