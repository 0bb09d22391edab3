//! IPv4 beyond its header: fragments, and the way to a destination.
//!
//! None of it is replicated. The receive pump puts datagrams together before anything else sees them, and looks up
//! where frames go; what connections must know of that stands in the log.

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

/// The frame that a datagram would have come in, had no network cut it. `None` if it is longer than a packet may be.
pub(crate) fn whole(datagram: &Datagram) -> Option<Vec<u8>> {
    let all = datagram.head.len() + datagram.payload.len();
    let total_len = u16::try_from(all.checked_sub(ETHERNET_HEADER)?).ok()?;
    let mut frame = [&*datagram.head, &datagram.payload].concat();
    wire::set_piece(&mut frame, total_len, 0, false, datagram.ce);
    Some(frame)
}
