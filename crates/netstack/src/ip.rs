//! IPv4 beyond its header: fragments, and the way to a destination.
//!
//! None of it is replicated. The receive pump puts datagrams together before anything else sees
//! them, and looks up where frames go; what connections must know of that stands in the log.
//!
//! # Departures from the RFCs
//!
//! Those of TCP are listed in [`tcp`](crate::tcp).
//!
//! - Reassembly gives up after 30 s. RFC 1122 section 3.3.2 wants 60 s to 120 s; what is slower is
//!   lost today, and its identification may come again (RFC 4963). Linux waits as long. Overlaps
//!   cost a datagram in IPv4 as well, as RFC 5722 section 3 has it for IPv6.
//! - Routers may fragment datagrams. There is no path MTU discovery for UDP (RFC 1191 leaves it to
//!   the application): datagrams leave without the don't-fragment bit, those longer than the MTU as
//!   fragments.
//! - An address is used at once. It is announced and defended (RFC 5227 sections 2.3 and 2.4 (c)),
//!   but not probed for first (section 2.1), which would take seconds; and it is never given up.
//! - Nothing leads back into the stack. Connections and datagrams to its own address or to
//!   127.0.0.0/8 are refused ([`SocketError::Ourselves`](crate::SocketError::Ourselves)). RFC 1122
//!   section 3.2.1.3 (g) has the latter for programs of one host to speak to each other.
//! - A new link-layer address of a neighbour is believed once a second, and 10 times a second for
//!   all neighbours. RFC 826 has no such bound, but every replica looks at all connections for
//!   each.
//! - Datagrams are sent to multicast groups, and none is received: level 1 of RFC 1112.

pub(crate) mod fragment;
pub(crate) mod identification;
pub(crate) mod neighbor;
pub(crate) mod rate_limit;
pub mod reassembly;
pub mod route;

use crate::packet as wire;
use crate::packet::ETHERNET_HEADER;
use reassembly::{Datagram, DatagramId, Fragment};

/// Reads a fragment. `None` if the frame is not what the parser called one.
pub(crate) fn fragment(frame: &[u8]) -> Option<Fragment<'_>> {
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

/// The frame that a datagram would have come in, had no network cut it. `None` if it is longer than
/// a packet may be.
pub(crate) fn whole(datagram: &Datagram) -> Option<Vec<u8>> {
    let all = datagram.head.len() + datagram.payload.len();
    let total_len = u16::try_from(all.checked_sub(ETHERNET_HEADER)?).ok()?;
    let mut frame = [&*datagram.head, &datagram.payload].concat();
    wire::set_piece(&mut frame, total_len, 0, false, datagram.ce);
    Some(frame)
}
