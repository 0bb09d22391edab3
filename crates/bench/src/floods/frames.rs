//! The frames of a flood: valid, addressed to a server, from many senders that do not exist, in an
//! order that a seed fixes.

use std::net::Ipv4Addr;

use dominoes_netstack::testkit::Rng;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, Icmpv4Packet, Icmpv4Repr, IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr,
    TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr,
};

/// Bytes of an Ethernet header, and of an IPv4 header without options.
const ETHERNET: usize = 14;
const IPV4: usize = 20;
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
            Kind::Ack => self.unsolicited(source, TcpControl::None),
            Kind::Rst => self.unsolicited(source, TcpControl::Rst),
            Kind::Fin => self.unsolicited(source, TcpControl::Fin),
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
        let repr = TcpRepr {
            control: TcpControl::Syn,
            ack_number: None,
            window_scale: Some(7),
            max_seg_size: Some(1460),
            sack_permitted: true,
            ..self.segment()
        };
        self.tcp(source, &repr)
    }

    fn unsolicited(&mut self, source: Ipv4Addr, control: TcpControl) -> Vec<u8> {
        let repr = TcpRepr {
            control,
            ..self.segment()
        };
        self.tcp(source, &repr)
    }

    fn segment(&mut self) -> TcpRepr<'static> {
        TcpRepr {
            src_port: self.high_port(),
            dst_port: self.link.port,
            control: TcpControl::None,
            seq_number: TcpSeqNumber(self.rng.next() as i32),
            ack_number: Some(TcpSeqNumber(self.rng.next() as i32)),
            window_len: 60_000,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        }
    }

    /// A segment from `source` to the server.
    pub(crate) fn tcp(&self, source: Ipv4Addr, repr: &TcpRepr<'_>) -> Vec<u8> {
        let server = IpAddress::Ipv4(self.link.server);
        let mut frame = self.ipv4(source, IpProtocol::Tcp, repr.buffer_len());
        let mut packet = TcpPacket::new_unchecked(&mut frame[ETHERNET + IPV4..]);
        let sums = ChecksumCapabilities::default();
        repr.emit(&mut packet, &IpAddress::Ipv4(source), &server, &sums);
        frame
    }

    /// The first or a later piece of a datagram of which nothing else comes.
    fn fragment(&mut self, source: Ipv4Addr) -> Vec<u8> {
        let mut frame = self.ipv4(source, IpProtocol::Udp, FRAGMENT);
        let offset = self.rng.below(3) as u16 * FRAGMENT as u16;
        let mut packet = Ipv4Packet::new_unchecked(&mut frame[ETHERNET..]);
        packet.set_dont_frag(false);
        packet.set_more_frags(true);
        packet.set_frag_offset(offset);
        packet.set_ident(self.rng.next() as u16);
        packet.fill_checksum();
        frame
    }

    fn echo(&mut self, source: Ipv4Addr) -> Vec<u8> {
        let repr = Icmpv4Repr::EchoRequest {
            ident: self.rng.next() as u16,
            seq_no: self.rng.next() as u16,
            data: &[0x55; ECHO],
        };
        let mut frame = self.ipv4(source, IpProtocol::Icmp, repr.buffer_len());
        let mut packet = Icmpv4Packet::new_unchecked(&mut frame[ETHERNET + IPV4..]);
        repr.emit(&mut packet, &ChecksumCapabilities::default());
        frame
    }

    /// A neighbour that does not exist asks for the server: in its network, but not among the first
    /// 256 addresses.
    fn arp(&mut self) -> Vec<u8> {
        let [a, b, ..] = self.link.server.octets();
        let (high, low) = (1 + self.rng.below(254) as u8, 1 + self.rng.below(254) as u8);
        let mac = EthernetAddress([2, 0x99, 0, 0, high, low]);
        let repr = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: mac,
            source_protocol_addr: Ipv4Addr::new(a, b, high, low),
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: self.link.server,
        };
        let mut frame = self.ethernet(EthernetProtocol::Arp, repr.buffer_len());
        let mut ethernet = EthernetFrame::new_unchecked(&mut frame);
        ethernet.set_src_addr(mac);
        ethernet.set_dst_addr(EthernetAddress::BROADCAST);
        repr.emit(&mut ArpPacket::new_unchecked(&mut frame[ETHERNET..]));
        frame
    }

    fn datagram(&mut self, source: Ipv4Addr) -> Vec<u8> {
        let repr = UdpRepr {
            src_port: self.high_port(),
            dst_port: self.high_port(),
        };
        let payload = [0x55; 32];
        let len = repr.header_len() + payload.len();
        let server = IpAddress::Ipv4(self.link.server);
        let mut frame = self.ipv4(source, IpProtocol::Udp, len);
        let mut packet = UdpPacket::new_unchecked(&mut frame[ETHERNET + IPV4..]);
        repr.emit(
            &mut packet,
            &IpAddress::Ipv4(source),
            &server,
            payload.len(),
            |into| into.copy_from_slice(&payload),
            &ChecksumCapabilities::default(),
        );
        frame
    }

    /// A packet to the server with room for so many bytes.
    fn ipv4(&self, source: Ipv4Addr, protocol: IpProtocol, len: usize) -> Vec<u8> {
        let mut frame = self.ethernet(EthernetProtocol::Ipv4, IPV4 + len);
        let repr = Ipv4Repr {
            src_addr: source,
            dst_addr: self.link.server,
            next_header: protocol,
            payload_len: len,
            hop_limit: 64,
        };
        let mut packet = Ipv4Packet::new_unchecked(&mut frame[ETHERNET..]);
        repr.emit(&mut packet, &ChecksumCapabilities::default());
        frame
    }

    fn ethernet(&self, ethertype: EthernetProtocol, len: usize) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET + len];
        let repr = EthernetRepr {
            src_addr: EthernetAddress(self.link.mac),
            dst_addr: EthernetAddress(self.link.server_mac),
            ethertype,
        };
        repr.emit(&mut EthernetFrame::new_unchecked(&mut frame));
        frame
    }
}
