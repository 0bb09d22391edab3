//! The frames of a flood: valid, addressed to a server, from many senders that do not exist, in an
//! order that a seed fixes.

use std::net::{Ipv4Addr, Ipv6Addr};

use dominoes_testkit::Rng;
use dominoes_testkit::packet::v6::{self, ICMPV6, group_mac, solicited_node};
use dominoes_testkit::packet::{self, ACK, EVERY_MAC, FIN, ICMP, Path, RST, SYN, Segment, UDP};

use super::SERVER_V6;

/// Bytes that a fragment, and an echo request, carry.
const FRAGMENT: usize = 512;
const ECHO: usize = 56;

/// Groups of all nodes and all routers of a link, and of routers that support MLDv2.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

dominoes_testkit::named! {
    /// The kinds of floods.
    pub(crate) enum Kind {
        /// SYNs for the port that the server listens on.
        Syn = "syn",
        /// Acknowledgments for that port, of no connection.
        Ack = "ack",
        /// Resets for that port, of no connection.
        Rst = "rst",
        /// FINs for that port, of no connection.
        Fin = "fin",
        /// Fragments of datagrams that never become whole.
        Fragment = "fragments",
        /// Echo requests.
        Icmp = "icmp",
        /// ARP requests for the server's address.
        Arp = "arp",
        /// Datagrams for ports without a socket.
        Udp = "udp",
        /// Over IPv6, messages of neighbours and routers: questions for routers, advertisements of
        /// routers and networks that come and go, questions for the server, advertisements that no node
        /// asked for, and questions for multicast listeners.
        RouterSolicitation = "rs",
        RouterAdvertisement = "ra",
        NeighborSolicitation = "ns",
        NeighborAdvertisement = "na",
        Mld = "mld",
        /// Over IPv6, packets too big that the server has not sent.
        TooBig = "too-big",
        /// Over IPv6, fragments of datagrams that never become whole.
        FragmentV6 = "fragments6",
        /// Over IPv6, datagrams for ports without a socket after as many headers as are skipped.
        Extensions = "extensions",
    }
}

/// The two ends of the link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// The Ethernet address that frames come from.
    pub(crate) mac: [u8; 6],
    /// The server's Ethernet address.
    pub(crate) server_mac: [u8; 6],
    /// The server's address. Its network has a prefix of 16 bits.
    pub(crate) server: Ipv4Addr,
    /// The port that the server listens on.
    pub(crate) port: u16,
}

impl Link {
    /// From `source` to the server.
    pub(crate) const fn path(&self, source: Ipv4Addr) -> Path {
        Path {
            from_mac: self.mac,
            to_mac: self.server_mac,
            from: source.octets(),
            to: self.server.octets(),
        }
    }
}

/// Makes frames.
#[derive(Debug)]
pub(crate) struct Frames {
    link: Link,
    rng: Rng,
}

impl Frames {
    /// The frames that follow from `seed`.
    pub(crate) fn new(link: Link, seed: u64) -> Frames {
        Frames {
            link,
            rng: Rng::new(seed),
        }
    }

    /// The next one.
    pub(crate) fn next(&mut self, kind: Kind) -> Vec<u8> {
        let source = self.source();
        match kind {
            Kind::Syn => self.syn(source),
            Kind::Ack => self.segment(ACK).frame(self.link.path(source)),
            Kind::Rst => self.segment(RST | ACK).frame(self.link.path(source)),
            Kind::Fin => self.segment(FIN | ACK).frame(self.link.path(source)),
            Kind::Fragment => self.fragment(source),
            Kind::Icmp => self.echo(source),
            Kind::Arp => self.arp(),
            Kind::Udp => self.datagram(source),
            Kind::RouterSolicitation => self.link_message(ALL_ROUTERS, &[133, 0, 0, 0, 0, 0, 0, 0]),
            Kind::RouterAdvertisement => self.router(),
            Kind::NeighborSolicitation => self.neighbor([135, 0], solicited_node(SERVER_V6)),
            Kind::NeighborAdvertisement => self.neighbor([136, 0x20], ALL_NODES),
            Kind::Mld => self.listeners(),
            Kind::TooBig => self.too_big(),
            Kind::FragmentV6 => self.fragment_v6(),
            Kind::Extensions => self.extensions(),
        }
    }

    /// An address beyond the client, to which the server has a route: 10.99.0.0/16.
    fn source(&mut self) -> Ipv4Addr {
        let [_, _, high, low] = (self.rng.next() as u32).to_be_bytes();
        Ipv4Addr::new(10, 99, high, low)
    }

    /// A port that no service has.
    fn high_port(&mut self) -> u16 {
        1024 + self.rng.below(60_000) as u16
    }

    fn syn(&mut self, source: Ipv4Addr) -> Vec<u8> {
        let syn = Segment {
            ack: 0,
            scale: Some(7),
            mss: Some(1460),
            sack_permitted: true,
            ..self.segment(SYN)
        };
        syn.frame(self.link.path(source))
    }

    fn segment(&mut self, flags: u8) -> Segment {
        Segment {
            src_port: self.high_port(),
            dst_port: self.link.port,
            seq: self.rng.next() as u32,
            ack: self.rng.next() as u32,
            flags,
            wnd: 60_000,
            ..Segment::default()
        }
    }

    /// The first or a later piece of a datagram of which nothing else comes.
    fn fragment(&mut self, source: Ipv4Addr) -> Vec<u8> {
        let place = (self.rng.index(3) * FRAGMENT, true);
        let ident = self.rng.next() as u16;
        packet::fragment(self.link.path(source), UDP, ident, place, &[0; FRAGMENT])
    }

    fn echo(&mut self, source: Ipv4Addr) -> Vec<u8> {
        let numbers = (self.rng.next() as u32).to_be_bytes();
        let echo = packet::icmp([8, 0], numbers, &[0x55; ECHO]);
        packet::ip(self.link.path(source), ICMP, &echo)
    }

    /// A neighbour that does not exist asks for the server: in its network, but not among the first
    /// 256 addresses.
    fn arp(&mut self) -> Vec<u8> {
        let [a, b, ..] = self.link.server.octets();
        let (high, low) = (1 + self.rng.below(254) as u8, 1 + self.rng.below(254) as u8);
        let path = self.link.path(Ipv4Addr::new(a, b, high, low));
        let mac = [2, 0x99, 0, 0, high, low];
        packet::arp_request(path.from_mac(mac).to_mac(EVERY_MAC))
    }

    /// From one of 65,536 hosts whose addresses begin so, to the server.
    fn path_v6(&mut self, network: u16) -> v6::Path {
        let host = self.rng.next() as u16;
        let [a, b] = host.to_be_bytes();
        v6::Path {
            from_mac: [2, 0x99, 0, 0, a, b],
            to_mac: self.link.server_mac,
            from: Ipv6Addr::new(network, 0, 0, 0, 0, 0, 1, host),
            to: SERVER_V6,
            hop_limit: 64,
        }
    }

    /// A message of a neighbour to a group.
    fn link_message(&mut self, to: Ipv6Addr, message: &[u8]) -> Vec<u8> {
        let path = v6::Path {
            to,
            to_mac: group_mac(to),
            hop_limit: 255,
            ..self.path_v6(0xfe80)
        };
        v6::frame(path, ICMPV6, message)
    }

    /// A router and a network, for a short time or no longer.
    fn router(&mut self) -> Vec<u8> {
        let lifetime = self.rng.below(2) as u8;
        let mut says = vec![134, 0, 0, 0, 64, 0, 0, lifetime, 0, 0, 0, 0, 0, 0, 0, 0];
        says.extend([
            3, 4, 64, 0xc0, 0, 0, 0, lifetime, 0, 0, 0, lifetime, 0, 0, 0, 0,
        ]);
        let network = Ipv6Addr::new(0xfd79, 0, 0, self.rng.below(32) as u16, 0, 0, 0, 0);
        says.extend(network.octets());
        self.link_message(ALL_NODES, &says)
    }

    /// A question for the server, or an advertisement of a neighbour, with a link-layer address.
    fn neighbor(&mut self, [kind, flags]: [u8; 2], to: Ipv6Addr) -> Vec<u8> {
        let [a, b] = (self.rng.next() as u16).to_be_bytes();
        let (target, option) = match kind {
            135 => (SERVER_V6, 1),
            _ => (self.path_v6(0xfe80).from, 2),
        };
        let mut says = vec![kind, 0, 0, 0, flags, 0, 0, 0];
        says.extend(target.octets());
        says.extend([option, 1, 2, 0x99, 0, 0, a, b]);
        self.link_message(to, &says)
    }

    /// A question for the listeners of all groups, after a router alert (RFC 3810 section 5.1).
    fn listeners(&mut self) -> Vec<u8> {
        let mut query = vec![130, 0, 0, 0, 0, 10, 0, 0];
        query.extend([0; 16]);
        query.extend([2, 1, 0, 0]);
        let path = v6::Path {
            to: ALL_NODES,
            to_mac: group_mac(ALL_NODES),
            hop_limit: 1,
            ..self.path_v6(0xfe80)
        };
        // The checksum covers the message, not the headers before it.
        let message = v6::frame(path, ICMPV6, &query);
        let options = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
        v6::frame(path, 0, &[&options, &message[v6::LOWER..]].concat())
    }

    fn too_big(&mut self) -> Vec<u8> {
        let path = self.path_v6(0xfd78);
        let sent = v6::Path {
            from: SERVER_V6,
            to: self.path_v6(0xfd79).from,
            ..path
        };
        let [a, b] = self.high_port().to_be_bytes();
        let quoted = v6::frame(
            sent,
            UDP,
            &[&[a, b, 0, 9, 4, 0, 0, 0], &[0x55; 1016][..]].concat(),
        );
        let message = [&[2, 0, 0, 0, 0, 0, 5, 0], &quoted[14..]].concat();
        v6::frame(path, ICMPV6, &message)
    }

    fn fragment_v6(&mut self) -> Vec<u8> {
        let [a, b] = (1 | (self.rng.index(3) * FRAGMENT) as u16).to_be_bytes();
        let [c, d, e, f] = (self.rng.next() as u32).to_be_bytes();
        let piece = [&[UDP, 0, a, b, c, d, e, f], &[0; FRAGMENT][..]].concat();
        v6::frame(self.path_v6(0xfd78), 44, &piece)
    }

    fn extensions(&mut self) -> Vec<u8> {
        const OPTIONS: u8 = 60;
        let [a, b] = self.high_port().to_be_bytes();
        let path = self.path_v6(0xfd78);
        let datagram = v6::frame(path, UDP, &[a, b, a, b, 0, 12, 0, 0, 1, 2, 3, 4]);
        let more = [OPTIONS, 0, 1, 4, 0, 0, 0, 0].repeat(7);
        let last = [UDP, 0, 1, 4, 0, 0, 0, 0];
        let packet = [&more, &last[..], &datagram[v6::LOWER..]].concat();
        v6::frame(path, OPTIONS, &packet)
    }

    fn datagram(&mut self, source: Ipv4Addr) -> Vec<u8> {
        let ports = (self.high_port(), self.high_port());
        packet::udp(self.link.path(source), ports, &[0x55; 32])
    }
}
