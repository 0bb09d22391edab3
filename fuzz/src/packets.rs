//! Frames as the far side writes and reads them. Nothing here comes from the stack.

use dominoes_testkit::packet::{self, Address, Mac, Path, TO_STACK};
pub(crate) use dominoes_testkit::packet::{
    ACK, FAR, FIN, Header, ICMP, LOWER, RST, Right, STACK, SYN, TCP, UDP, finish, tcp_header,
};

/// Opens connections after the others are done, and says only what is so.
pub(crate) const HONEST: Address = [10, 0, 0, 77];
pub(crate) const STACK_MAC: Mac = TO_STACK.to_mac;
pub(crate) const FAR_MAC: Mac = TO_STACK.from_mac;

/// An Ethernet and an IPv4 header from `from` to `to`; lengths and checksums are for [`finish`].
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
