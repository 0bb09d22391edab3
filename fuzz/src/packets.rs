//! Writes and reads frames for the far side, without code of the stack.

use dominoes_testkit::packet::v6::{self, ICMPV6};
use dominoes_testkit::packet::{self, Address, Mac, Path, TO_STACK, v6_of};
pub(crate) use dominoes_testkit::packet::{
    ACK, FAR, FIN, Family, Header, ICMP, LOWER, RST, Right, STACK, SYN, TCP, UDP, finish,
    tcp_header,
};

/// A host that opens a connection after all others are done, and behaves well.
pub(crate) const HONEST: Address = [10, 0, 0, 77];
pub(crate) const STACK_MAC: Mac = TO_STACK.to_mac;
pub(crate) const FAR_MAC: Mac = TO_STACK.from_mac;

/// Writes an Ethernet and an IPv4 header from `from` to `to`; [`finish`] sets lengths and
/// checksums.
pub(crate) fn headers(from: Address, to: Address, protocol: u8) -> Vec<u8> {
    packet::headers(
        Path {
            from,
            to,
            ..TO_STACK
        },
        protocol,
    )
}

/// Builds a packet of IPv6 for the stack; messages that only neighbours may send come from a
/// neighbour.
pub(crate) fn packet_v6(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let [_, _, .., a, b] = v6_of(FAR).segments();
    let next = if protocol == ICMP { ICMPV6 } else { protocol };
    let is_of_link = next == ICMPV6 && matches!(payload.first(), Some(130..=143));
    let from = match is_of_link {
        true => [0xfe80, 0, 0, 0, 0, 0, a, b].into(),
        false => v6_of(FAR),
    };
    let path = v6::Path {
        from_mac: FAR_MAC,
        to_mac: STACK_MAC,
        from,
        to: v6_of(STACK),
        hop_limit: 255,
    };
    v6::frame(path, next, payload)
}

/// An ARP message about `sender`, for the stack.
pub(crate) fn arp(operation: u16, sender_mac: Mac, from: Address, to: Address) -> Vec<u8> {
    let path = Path {
        from,
        to,
        ..TO_STACK
    };
    packet::arp(path.from_mac(sender_mac), operation, STACK_MAC)
}

/// An ICMP echo request with right checksums.
pub(crate) fn echo(from: Address, number: u16) -> Vec<u8> {
    let message = packet::echo(number, b"are you there");
    packet::ip(TO_STACK.source(from), ICMP, &message)
}
