//! The functions of Kim, Sung and Lee, each called by itself for one segment of 1412 bytes.
//!
//! The stack merges most of them: one pass over a segment that looks like the last one checks both
//! headers and finds the connection. Here each is a call of what the stack has for it, or of the
//! wire format that it is built on, with nothing shared between them. What TCP keeps private has
//! its work in place of it: `segment` and `ordering` are a comparison and a copy.

use std::collections::HashMap;
use std::hint::black_box;

use dominoes_netstack::time::Instant;
use dominoes_proto::ip::fragment::Cut;
use dominoes_proto::ip::neighbor::Neighbors;
use dominoes_proto::ip::route::{Route, Site};
use dominoes_proto::keys::{Keys, TableKey};
use dominoes_proto::log::request::ConnId;
use dominoes_proto::packet::checksum::Sum;
use dominoes_proto::packet::flow::{Address, Endpoint, Flow, IpFields, Mac};
use dominoes_proto::packet::{
    SackBlocks, TcpHeaders, emit_tcp, fragment_header, options, parse, set_tcp_checksum,
};
use dominoes_proto::seqnum::SeqNum;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv4Repr};

use super::Case;
use super::stack::SEGMENTS;

/// Payload of a segment, in bytes.
const PAYLOAD: usize = 1412;
/// Where the headers of IPv4 and TCP begin and end.
const IP: usize = 14;
const TCP: usize = IP + 20;
const TEXT: usize = TCP + 20;

/// A function of the paper.
pub(crate) struct Apart {
    pub(crate) component: &'static str,
    pub(crate) name: &'static str,
    /// Functions of a component with the same number run at the same time, lower numbers before.
    pub(crate) step: usize,
    call: fn(&mut Segment) -> bool,
}

/// Their input and output.
struct Segment {
    flow: Flow,
    frame: Vec<u8>,
    ring: Vec<u8>,
    site: Site,
    neighbors: Neighbors,
    connections: HashMap<Flow, ConnId, TableKey>,
    headers: TcpHeaders,
    seq: SeqNum,
}

impl Segment {
    fn new() -> Segment {
        let end = |last, port| Endpoint {
            address: Address::ipv4(10, 0, 0, last),
            port,
        };
        let flow = Flow {
            local: end(1, 80),
            remote: end(2, 5_000),
        };
        let headers = TcpHeaders {
            src_mac: [2; 6],
            dst_mac: [4; 6],
            flow,
            seq: 1,
            ack: 1,
            wnd: 1 << 10,
            flags: 0x10,
            ect: false,
            ip: IpFields::DEFAULT,
            label: 0,
            timestamps: None,
            mss: None,
            window_scale: None,
            sack_permitted: false,
            sack: SackBlocks::default(),
            payload_len: PAYLOAD,
        };
        let mut frame = vec![7; TEXT + PAYLOAD];
        emit_tcp(&mut frame, &headers);
        let mut neighbors = Neighbors::new(1 << 16);
        neighbors.learn(flow.remote.address, Mac([4; 6]), true, Instant::ZERO);
        let mut connections = HashMap::with_hasher(Keys::new([1, 2]).table());
        connections.insert(
            flow,
            ConnId {
                index: 0,
                generation: 0,
            },
        );
        let gateway = std::net::Ipv4Addr::new(10, 0, 0, 3).into();
        let mut segment = Segment {
            flow,
            frame,
            ring: vec![7; PAYLOAD],
            site: Site::new(flow.local.address, 24, None, &[Route::default_via(gateway)]),
            neighbors,
            connections,
            headers,
            seq: SeqNum(1),
        };
        let sum = segment.sum();
        set_tcp_checksum::<TCP>(&mut segment.frame, sum);
        segment
    }

    fn ip(&self) -> Ipv4Packet<&[u8]> {
        Ipv4Packet::new_unchecked(&self.frame[IP..])
    }

    /// The sum over addresses, TCP header and payload.
    fn sum(&self) -> u16 {
        let (local, remote) = (self.flow.local.address, self.flow.remote.address);
        let sum = Sum::default().pseudo_header(local, remote, 6, 20 + PAYLOAD);
        sum.with(&self.frame[TCP..]).finish()
    }
}

const fn apart(
    component: &'static str,
    name: &'static str,
    step: usize,
    call: fn(&mut Segment) -> bool,
) -> Apart {
    Apart {
        component,
        name,
        step,
        call,
    }
}

/// All of them, in the paper's parallel structure (its section 2.2).
pub(crate) const APART: [Apart; 16] = [
    apart("IPReceive", "header checks", 0, |segment| {
        let ip = Ipv4Packet::new_checked(&segment.frame[IP..]);
        ip.is_ok_and(|ip| ip.version() == 4 && ip.next_header() == IpProtocol::Tcp)
    }),
    apart("IPReceive", "checksum", 0, |segment| {
        segment.ip().verify_checksum()
    }),
    apart("IPReceive", "options", 1, |segment| {
        options(&segment.frame[TCP..][..usize::from(segment.ip().header_len()) - 20]).count() == 0
    }),
    apart("IPReceive", "reassembly", 1, |segment| {
        let header = fragment_header(&segment.frame);
        header.is_some_and(|header| !header.more && header.offset == 0)
    }),
    apart("TCPReceive", "connection lookup", 0, |segment| {
        segment.connections.contains_key(&segment.flow)
    }),
    apart("TCPReceive", "header checks", 1, |segment| {
        parse(&segment.frame).is_ok()
    }),
    apart("TCPReceive", "checksum", 1, |segment| segment.sum() == 0),
    apart("TCPReceive", "ordering", 2, |segment| {
        segment.ring.copy_from_slice(&segment.frame[TEXT..]);
        !segment.seq.before(SeqNum(segment.headers.seq))
    }),
    apart("TCPSend", "segment", 0, |segment| {
        let len = PAYLOAD.min(usize::from(segment.headers.wnd) << 7);
        segment.frame[TEXT..][..len].copy_from_slice(&segment.ring[..len]);
        len == PAYLOAD
    }),
    apart("TCPSend", "header, with that of IP", 0, |segment| {
        emit_tcp(&mut segment.frame, &segment.headers) == TEXT
    }),
    apart("TCPSend", "checksum", 1, |segment| {
        let sum = segment.sum();
        set_tcp_checksum::<TCP>(&mut segment.frame, sum);
        true
    }),
    apart("IPSend", "routing", 0, |segment| {
        segment.site.next_hop(segment.flow.remote.address).is_some()
    }),
    apart("IPSend", "address translation", 1, |segment| {
        let address = segment.flow.remote.address;
        segment.neighbors.lookup(address, Instant::ZERO).is_some()
    }),
    apart("IPSend", "fragmentation", 1, |segment| {
        Cut::new(segment.flow.remote.address, 1500).count(20 + PAYLOAD as u32) == 1
    }),
    apart("IPSend", "header", 1, |segment| {
        let ip = Ipv4Repr {
            src_addr: [10, 0, 0, 1].into(),
            dst_addr: [10, 0, 0, 2].into(),
            next_header: IpProtocol::Tcp,
            payload_len: 20 + PAYLOAD,
            hop_limit: 64,
        };
        let mut packet = Ipv4Packet::new_unchecked(&mut segment.frame[IP..]);
        ip.emit(&mut packet, &ChecksumCapabilities::ignored());
        true
    }),
    apart("IPSend", "checksum", 2, |segment| {
        Ipv4Packet::new_unchecked(&mut segment.frame[IP..]).fill_checksum();
        true
    }),
];

/// A case for each, in the same order.
pub(super) fn cases() -> impl Iterator<Item = Case> {
    APART.iter().map(|function| {
        let name = format!("apart/{}/{}", function.component, function.name);
        Case::new(name, "segment", SEGMENTS, move || {
            let mut segment = Segment::new();
            move |units| {
                for _ in 0..units {
                    assert!((function.call)(black_box(&mut segment)));
                }
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_succeeds_with_the_segment() {
        for (function, case) in APART.iter().zip(cases()) {
            println!("{} {}", function.component, function.name);
            (case.make)()(2);
        }
    }
}
