//! Packets as a far side writes them: nothing of it comes from the stack.

pub(crate) const STACK: [u8; 4] = [10, 0, 0, 1];
const STACK_MAC: [u8; 6] = [2, 0, 10, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 10, 0, 0, 2];

/// RFC 1071, without the complement.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// A fragment of an IPv4 packet for the stack.
pub(crate) fn fragment(
    source: [u8; 4],
    protocol: u8,
    ident: u16,
    offset: u32,
    more: bool,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = Vec::with_capacity(34 + payload.len());
    frame.extend(STACK_MAC);
    frame.extend(PEER_MAC);
    frame.extend([8, 0, 0x45, 0]);
    frame.extend(((20 + payload.len()) as u16).to_be_bytes());
    frame.extend(ident.to_be_bytes());
    let place = (offset / 8) as u16 | if more { 0x2000 } else { 0 };
    frame.extend(place.to_be_bytes());
    frame.extend([64, protocol, 0, 0]);
    frame.extend(source);
    frame.extend(STACK);
    let checksum = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A whole packet.
pub(crate) fn ip(source: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    fragment(source, protocol, 1, 0, false, payload)
}

/// The same packet, sent to 255.255.255.255.
pub(crate) fn to_everybody(mut frame: Vec<u8>) -> Vec<u8> {
    frame[..6].copy_from_slice(&[0xff; 6]);
    frame[30..34].copy_from_slice(&[0xff; 4]);
    frame[24..26].copy_from_slice(&[0, 0]);
    let checksum = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// Header and payload of a UDP datagram.
pub(crate) fn udp_payload(source: [u8; 4], from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let mut udp = Vec::new();
    udp.extend(from.to_be_bytes());
    udp.extend(to.to_be_bytes());
    udp.extend(len.to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    let pseudo = [&source[..], &STACK, &[0, 17], &len.to_be_bytes(), &udp].concat();
    let checksum = match !sum(&pseudo) {
        0 => 0xffff,
        checksum => checksum,
    };
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    udp
}

/// A UDP datagram.
pub(crate) fn udp(source: [u8; 4], from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    ip(source, 17, &udp_payload(source, from, to, payload))
}

/// An ICMP echo request.
pub(crate) fn echo(payload: &[u8]) -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0, 0, 7, 0, 1];
    icmp.extend(payload);
    let checksum = !sum(&icmp);
    icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    icmp
}

/// A packet's payload in fragments of `size` bytes.
pub(crate) fn fragments(payload: &[u8], ident: u16, size: usize, protocol: u8) -> Vec<Vec<u8>> {
    let count = payload.len().div_ceil(size);
    let one = |(i, piece): (usize, &[u8])| {
        let offset = (i * size) as u32;
        fragment([10, 0, 0, 2], protocol, ident, offset, i + 1 < count, piece)
    };
    payload.chunks(size).enumerate().map(one).collect()
}

/// The payload of fragments in order, all of one packet of the stack.
pub(crate) fn reassemble(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut whole = Vec::new();
    for (i, frame) in frames.iter().enumerate() {
        let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        assert_eq!(sum(&frame[14..34]), 0xffff);
        assert_eq!(usize::from(half(16)), frame.len() - 14);
        assert_eq!(frame[18..20], frames[0][18..20]);
        assert_eq!(usize::from(half(20) & 0x1fff) * 8, whole.len());
        assert_eq!(half(20) & 0x2000 != 0, i + 1 < frames.len());
        whole.extend(&frame[34..]);
    }
    whole
}

/// An error about a datagram that the stack sent from `port` to the peer's `remote`.
pub(crate) fn unreachable(port: u16, remote: u16) -> Vec<u8> {
    let mut icmp = vec![3, 3, 0, 0, 0, 0, 0, 0];
    icmp.extend([0x45, 0, 0, 36, 0, 1, 0, 0, 64, 17, 0, 0]);
    icmp.extend(STACK);
    icmp.extend([10, 0, 0, 2]);
    icmp.extend(port.to_be_bytes());
    icmp.extend(remote.to_be_bytes());
    icmp.extend([0, 16, 0, 0]);
    let checksum = !sum(&icmp);
    icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    ip([10, 0, 0, 2], 1, &icmp)
}

/// The peer asks for the stack.
pub(crate) fn arp() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(PEER_MAC);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(PEER_MAC);
    frame.extend([10, 0, 0, 2]);
    frame.extend([0; 6]);
    frame.extend(STACK);
    frame
}
