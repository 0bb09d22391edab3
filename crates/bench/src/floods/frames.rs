//! The frames of a flood: valid, addressed to a server, from many senders that do not exist, in an
//! order that a seed fixes.

use std::net::Ipv4Addr;

use dominoes_testkit::Rng;
use dominoes_testkit::packet::{self, ACK, EVERY_MAC, FIN, ICMP, Path, RST, SYN, Segment, UDP};

/// Bytes that a fragment, and an echo request, carry.
const FRAGMENT: usize = 512;
const ECHO: usize = 56;

/// What a flood consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// SYNs for the port that the server listens on.
    Syn,
    /// Acknowledgments for that port, of no connection.
    Ack,
    /// Resets for that port, of no connection.
    Rst,
    /// FINs for that port, of no connection.
    Fin,
    /// Fragments of datagrams that never become whole.
    Fragment,
    /// Echo requests.
    Icmp,
    /// ARP requests for the server's address.
    Arp,
    /// Datagrams for ports without a socket.
    Udp,
}

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Kind; 8] = [
        Kind::Syn,
        Kind::Ack,
        Kind::Rst,
        Kind::Fin,
        Kind::Fragment,
        Kind::Icmp,
        Kind::Arp,
        Kind::Udp,
    ];

    /// As on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::Syn => "syn",
            Kind::Ack => "ack",
            Kind::Rst => "rst",
            Kind::Fin => "fin",
            Kind::Fragment => "fragments",
            Kind::Icmp => "icmp",
            Kind::Arp => "arp",
            Kind::Udp => "udp",
        }
    }

    /// The kind of this name.
    pub(crate) fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
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
    /// Those that follow from `seed`.
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
        }
    }

    /// An address behind the client, which the server has a route to: 10.99.0.0/16.
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

    fn datagram(&mut self, source: Ipv4Addr) -> Vec<u8> {
        let ports = (self.high_port(), self.high_port());
        packet::udp(self.link.path(source), ports, &[0x55; 32])
    }
}
