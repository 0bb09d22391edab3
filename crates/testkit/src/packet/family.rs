//! The same traffic in either family: translates packets of IPv4 to IPv6 and back as RFC 7915
//! does, and ARP messages to neighbour discovery (RFC 4861).
//!
//! So a peer that is written for IPv4 can talk to a stack that has both. IPv6 headers are 20
//! bytes longer, so a packet of `n` bytes becomes one of `n + 20`, and a path MTU grows equally.
//! Checksums are adjusted, not computed: a wrong one stays wrong.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::checksum;

use super::v6::{self, ICMPV6, Packet, group_mac, solicited_node};
use super::{
    Address, ETHERNET, EVERY_MAC, EVERYBODY, ICMP, LOWER, Mac, Path, Right, TCP, UDP, address, arp,
    completed, half, headers, put, sum, word,
};

/// The group of all nodes of a link (RFC 4291 section 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The number of the fragment header (RFC 8200 section 4.5).
const FRAGMENT: u8 = 44;
/// By how many bytes the header of IPv6 is longer.
const LONGER: u32 = 20;

/// A family of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl core::fmt::Display for Family {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

impl Family {
    /// All families.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// An address in this family.
    pub fn address(self, address: Address) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::from(address).into(),
            Family::V6 => v6_of(address).into(),
        }
    }

    /// By how many bytes its packets are longer than those of IPv4.
    pub const fn longer(self) -> u16 {
        match self {
            Family::V4 => 0,
            Family::V6 => LONGER as u16,
        }
    }

    /// Bytes before the transport header, without options and extension headers.
    pub const fn lower(self) -> usize {
        match self {
            Family::V4 => LOWER,
            Family::V6 => v6::LOWER,
        }
    }

    /// As [`complete`](super::complete), for a frame of this family.
    ///
    /// # Panics
    /// If the frame is shorter than its headers.
    pub fn complete(self, frame: &mut [u8]) -> bool {
        if self == Family::V4 {
            return super::complete(frame);
        }
        let (field, pseudo) = partial_v6(frame);
        if half(frame, field) != pseudo {
            return false;
        }
        let checksum = completed(frame[20], !sum(&frame[v6::LOWER..]));
        put(frame, field, checksum);
        true
    }

    /// As [`leave_partial`](super::leave_partial), for a frame of this family.
    ///
    /// # Panics
    /// If the frame is shorter than its headers.
    pub fn leave_partial(self, frame: &mut [u8]) {
        if self == Family::V4 {
            return super::leave_partial(frame);
        }
        let (field, pseudo) = partial_v6(frame);
        put(frame, field, pseudo);
    }

    /// The packets into which a device divides a UDP frame of this family: each has `size`
    /// payload bytes, except the last. `None` if its checksum is not the sum of the
    /// pseudo-header.
    ///
    /// # Panics
    /// If the frame is shorter than its headers, or `size` is 0.
    pub fn divide(self, frame: &[u8], size: usize) -> Option<Vec<Vec<u8>>> {
        if !self.complete(&mut frame.to_vec()) {
            return None;
        }
        let (head, payload) = frame.split_at(self.lower() + 8);
        let packet = |(i, piece): (usize, &[u8])| {
            let mut packet = [head, piece].concat();
            if self == Family::V4 {
                let ident = half(head, 18).wrapping_add(i as u16);
                put(&mut packet, 18, ident);
            }
            self.finish(&mut packet, Right::ALL);
            packet
        };
        Some(payload.chunks(size).enumerate().map(packet).collect())
    }

    /// As [`finish`](super::finish), for a frame of this family. Does nothing after extension
    /// headers.
    pub fn finish(self, frame: &mut [u8], right: Right) {
        if self == Family::V4 {
            return super::finish(frame, right);
        }
        if frame.len() < v6::LOWER || frame[12..14] != [0x86, 0xdd] {
            return;
        }
        let payload = frame.len() - v6::LOWER;
        let field = match frame[20] {
            ICMPV6 => 2,
            TCP => 16,
            UDP => 6,
            _ => usize::MAX,
        };
        if right.lengths {
            put(frame, 18, payload as u16);
            if frame[20] == UDP && payload >= 8 {
                put(frame, v6::LOWER + 4, payload as u16);
            }
        }
        if right.transport && field < payload.saturating_sub(1) {
            put(frame, v6::LOWER + field, 0);
            let pseudo = [
                sum(&frame[22..v6::LOWER]),
                payload as u16,
                u16::from(frame[20]),
            ];
            let pseudo = checksum::combine(&pseudo);
            let checksum = !checksum::combine(&[pseudo, sum(&frame[v6::LOWER..])]);
            put(frame, v6::LOWER + field, completed(frame[20], checksum));
        }
    }

    /// Translates a frame of IPv4 or ARP to this family; `None` if it has no translation.
    pub fn write(self, frame: &[u8]) -> Option<Vec<u8>> {
        match self {
            Family::V4 => Some(frame.to_vec()),
            Family::V6 => to_v6(frame),
        }
    }

    /// Translates a frame of this family to IPv4 or ARP; `None` as for [`write`](Self::write).
    pub fn read(self, frame: &[u8]) -> Option<Vec<u8>> {
        match self {
            Family::V4 => Some(frame.to_vec()),
            Family::V6 => to_v4(frame),
        }
    }
}

/// The IPv6 address that corresponds to `address`: `fd00::` and its four bytes, unless it is
/// special.
pub fn v6_of(address: Address) -> Ipv6Addr {
    let with = |first: u16| {
        let [a, b] = [half(&address, 0), half(&address, 2)];
        Ipv6Addr::new(first, 0, 0, 0, 0, 0, a, b)
    };
    match address {
        [0, 0, 0, 0] => Ipv6Addr::UNSPECIFIED,
        [127, ..] => Ipv6Addr::LOCALHOST,
        EVERYBODY => ALL_NODES,
        [224..=239, ..] => with(0xff0e),
        _ => with(0xfd00),
    }
}

/// The IPv4 address that corresponds to `address`.
fn v4_of(address: Ipv6Addr) -> Option<Address> {
    let [.., a, b, c, d] = address.octets();
    let plain = [a, b, c, d];
    match address {
        ALL_NODES => Some(EVERYBODY),
        Ipv6Addr::UNSPECIFIED => Some([0; 4]),
        _ => (v6_of(plain) == address).then_some(plain),
    }
}

/// The checksum after the sum of the covered bytes changed from `was` to `is` (RFC 1624).
fn adjusted(old: u16, was: u16, is: u16) -> u16 {
    !checksum::combine(&[!old, !was, is])
}

/// The offset of the checksum of a TCP or UDP frame of IPv6, and the sum of its pseudo-header.
fn partial_v6(frame: &[u8]) -> (usize, u16) {
    let field = v6::LOWER + if frame[20] == UDP { 6 } else { 16 };
    let len = (frame.len() - v6::LOWER) as u16;
    let addresses = sum(&frame[22..v6::LOWER]);
    let pseudo = checksum::combine(&[addresses, len, u16::from(frame[20])]);
    (field, pseudo)
}

/// Adjusts the checksum of a TCP segment or UDP datagram, or of its first fragment, to other
/// addresses.
fn adjust(protocol: u8, transport: &mut [u8], was: u16, is: u16) {
    let field = match protocol {
        TCP => 16,
        UDP => 6,
        _ => return,
    };
    if transport.len() < field + 2 || protocol == UDP && half(transport, field) == 0 {
        return;
    }
    let checksum = completed(protocol, adjusted(half(transport, field), was, is));
    put(transport, field, checksum);
}

/// The sum over two addresses.
fn addresses_sum(from: &[u8], to: &[u8]) -> u16 {
    checksum::combine(&[sum(from), sum(to)])
}

/// Makes the checksum of a message right, or keeps it wrong.
fn finish_message(message: &mut [u8], pseudo: u16, is_right: bool) {
    put(message, 2, 0);
    let right = !checksum::combine(&[pseudo, sum(message)]);
    put(message, 2, if is_right { right } else { right ^ 0x1100 });
}

fn macs(frame: &[u8]) -> Option<(Mac, Mac)> {
    let to = *frame.first_chunk::<6>()?;
    let from = *frame.get(6..)?.first_chunk::<6>()?;
    Some((from, to))
}

// To IPv6.

fn to_v6(frame: &[u8]) -> Option<Vec<u8>> {
    match *frame.get(12..14)? {
        [8, 6] => discovery(frame),
        [8, 0] => packet_to_v6(frame),
        _ => None,
    }
}

/// The frame of an IPv6 packet with this payload.
fn frame_v6(path: v6::Path, class: u8, next: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(v6::LOWER + payload.len());
    frame.extend(path.to_mac);
    frame.extend(path.from_mac);
    frame.extend([0x86, 0xdd, 0x60 | class >> 4, class << 4, 0, 0]);
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([next, path.hop_limit]);
    frame.extend(path.from.octets());
    frame.extend(path.to.octets());
    frame.extend(payload);
    frame
}

fn packet_to_v6(frame: &[u8]) -> Option<Vec<u8>> {
    let total = usize::from(half(frame.get(..LOWER)?, 16));
    let (from_mac, to_mac) = macs(frame)?;
    if frame[ETHERNET] != 0x45 || sum(&frame[ETHERNET..LOWER]) != 0xffff {
        return None;
    }
    let mut body = frame.get(LOWER..ETHERNET + total)?.to_vec();
    let (from, to) = (v6_of(address(frame, 26)), v6_of(address(frame, 30)));
    let (was, is) = (
        addresses_sum(&frame[26..30], &frame[30..34]),
        addresses_sum(&from.octets(), &to.octets()),
    );
    let to_mac = match to_mac {
        EVERY_MAC => group_mac(to),
        one => one,
    };
    let path = v6::Path {
        from_mac,
        to_mac,
        from,
        to,
        hop_limit: frame[22],
    };
    let (place, protocol) = (half(frame, 20), frame[23]);
    let (offset, more) = (place & 0x1fff, place & 0x2000 != 0);
    let is_piece = offset > 0 || more;
    if protocol == ICMP && is_piece {
        return None;
    }
    let next = match protocol {
        ICMP => ICMPV6,
        other => other,
    };
    match protocol {
        ICMP => body = message_to_v6(&body, path)?,
        _ if offset == 0 => adjust(protocol, &mut body, was, is),
        _ => {}
    }
    if !is_piece {
        return Some(frame_v6(path, frame[15], next, &body));
    }
    let mut piece = vec![next, 0];
    piece.extend((offset << 3 | u16::from(more)).to_be_bytes());
    piece.extend(u32::from(half(frame, 18)).to_be_bytes());
    piece.extend(body);
    Some(frame_v6(path, frame[15], FRAGMENT, &piece))
}

/// Translates an ICMP message to RFC 4443.
fn message_to_v6(message: &[u8], path: v6::Path) -> Option<Vec<u8>> {
    let is_right = sum(message) == 0xffff;
    let (head, rest) = message.split_at_checked(8)?;
    let pointer = |at: u32| at.to_be_bytes();
    let (numbers, field) = match [head[0], head[1]] {
        [8, 0] => ([128, 0], [head[4], head[5], head[6], head[7]]),
        [0, 0] => ([129, 0], [head[4], head[5], head[6], head[7]]),
        [3, 2] => ([4, 1], pointer(6)),
        [3, 3] => ([1, 4], [0; 4]),
        [3, 4] => ([2, 0], (u32::from(half(head, 6)) + LONGER).to_be_bytes()),
        [3, 9 | 10 | 13] => ([1, 1], [0; 4]),
        [3, _] => ([1, 0], [0; 4]),
        [11, code] => ([3, code], [0; 4]),
        [12, _] => ([4, 0], pointer(0)),
        _ => return None,
    };
    let mut out = vec![numbers[0], numbers[1], 0, 0];
    out.extend(field);
    match numbers[0] {
        128 | 129 => out.extend(rest),
        _ => out.extend(quote_to_v6(rest)?),
    }
    let pseudo = v6::transport_sum(path.from, path.to, ICMPV6, &[]);
    let pseudo = checksum::combine(&[pseudo, out.len() as u16]);
    finish_message(&mut out, pseudo, is_right);
    Some(out)
}

/// Translates the packet that an error quotes.
fn quote_to_v6(quoted: &[u8]) -> Option<Vec<u8>> {
    let (header, rest) = quoted.split_at_checked(LOWER - ETHERNET)?;
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(half(header, 2).saturating_sub(20).to_be_bytes());
    packet.extend([header[9], header[8]]);
    packet.extend(v6_of(address(header, 12)).octets());
    packet.extend(v6_of(address(header, 16)).octets());
    packet.extend(rest);
    (header[9] != ICMP).then_some(packet)
}

/// Translates an ARP message to RFC 4861: a request becomes a solicitation, and a reply or an
/// announcement becomes an advertisement.
fn discovery(frame: &[u8]) -> Option<Vec<u8>> {
    let message = frame.get(..42)?;
    let (from_mac, to_mac) = macs(frame)?;
    let (sender, target) = (address(message, 28), address(message, 38));
    let mac: Mac = *message[22..].first_chunk()?;
    let (from, to) = (v6_of(sender), v6_of(target));
    let is_announcement = sender == target;
    let (numbers, about, option, to) = match message[21] {
        _ if is_announcement => ([136, 0x20], from, Some(2), ALL_NODES),
        1 if to_mac == EVERY_MAC => ([135, 0], to, Some(1), solicited_node(to)),
        1 => ([135, 0], to, Some(1), to),
        _ => ([136, 0x60], from, Some(2), to),
    };
    // A host without an address does not send its link-layer address.
    let option = option.filter(|_| sender != [0; 4]);
    let mut body = vec![numbers[0], 0, 0, 0, numbers[1], 0, 0, 0];
    body.extend(about.octets());
    if let Some(kind) = option {
        body.extend([kind, 1]);
        body.extend(mac);
    }
    let path = v6::Path {
        from_mac,
        to_mac: if to_mac == EVERY_MAC {
            group_mac(to)
        } else {
            to_mac
        },
        from,
        to,
        hop_limit: 255,
    };
    Some(v6::frame(path, ICMPV6, &body))
}

// To IPv4.

fn to_v4(frame: &[u8]) -> Option<Vec<u8>> {
    let packet = Packet::read(frame)?;
    let v6::Path { from, to, .. } = packet.path;
    if packet.next == ICMPV6 && matches!(packet.payload.first(), Some(135 | 136)) {
        return resolution(&packet);
    }
    let is_multicast = packet.path.to_mac[0] & 1 != 0;
    let path = Path {
        from_mac: packet.path.from_mac,
        to_mac: if is_multicast {
            EVERY_MAC
        } else {
            packet.path.to_mac
        },
        from: v4_of(from)?,
        to: v4_of(to)?,
    };
    let (mut next, mut body, mut place, mut ident) = (packet.next, packet.payload, 0x4000, 0);
    if next == FRAGMENT {
        let (header, rest) = body.split_at_checked(8)?;
        let field = half(header, 2);
        place = field >> 3 | (field & 1) << 13;
        (next, body, ident) = (header[0], rest, half(header, 6));
    }
    let mut body = body.to_vec();
    match next {
        ICMPV6 if place & 0x3fff != 0 => return None,
        ICMPV6 => {
            body = message_to_v4(&packet)?;
            next = ICMP;
        }
        _ if place & 0x1fff == 0 => {
            let was = addresses_sum(&from.octets(), &to.octets());
            adjust(next, &mut body, was, addresses_sum(&path.from, &path.to));
        }
        _ => {}
    }
    let mut out = headers(path, next);
    out[15] = frame[14] << 4 | frame[15] >> 4;
    put(&mut out, 16, u16::try_from(20 + body.len()).ok()?);
    put(&mut out, 18, ident);
    put(&mut out, 20, place);
    out[22] = packet.path.hop_limit;
    put(&mut out, 24, 0);
    let checksum = !sum(&out[ETHERNET..]);
    put(&mut out, 24, checksum);
    out.extend(body);
    Some(out)
}

/// Translates a message of RFC 4443 to RFC 792.
fn message_to_v4(packet: &Packet<'_>) -> Option<Vec<u8>> {
    let (head, rest) = packet.payload.split_at_checked(8)?;
    let (numbers, field) = match [head[0], head[1]] {
        [128, 0] => ([8, 0], [head[4], head[5], head[6], head[7]]),
        [129, 0] => ([0, 0], [head[4], head[5], head[6], head[7]]),
        [1, 1] => ([3, 10], [0; 4]),
        [1, 4] => ([3, 3], [0; 4]),
        [1, _] => ([3, 1], [0; 4]),
        [2, 0] => ([3, 4], word(head, 4).saturating_sub(LONGER).to_be_bytes()),
        [3, code] => ([11, code], [0; 4]),
        [4, 1] => ([3, 2], [0; 4]),
        [4, _] => ([12, 0], [0; 4]),
        _ => return None,
    };
    let mut out = vec![numbers[0], numbers[1], 0, 0];
    out.extend(field);
    match numbers[0] {
        0 | 8 => out.extend(rest),
        _ => out.extend(quote_to_v4(rest)?),
    }
    finish_message(&mut out, 0, packet.is_right());
    Some(out)
}

/// Translates the packet that an error quotes, without its fragment header.
fn quote_to_v4(quoted: &[u8]) -> Option<Vec<u8>> {
    let (header, rest) = quoted.split_at_checked(v6::LOWER - ETHERNET)?;
    let address = |at: usize| -> Option<Address> {
        let bytes: [u8; 16] = *header[at..].first_chunk()?;
        v4_of(bytes.into())
    };
    let (next, rest) = match header[6] {
        FRAGMENT => (*rest.first()?, rest.get(8..)?),
        next => (next, rest),
    };
    let path = Path::new(address(8)?, address(24)?);
    let mut packet = headers(path, next).split_off(ETHERNET);
    put(&mut packet, 2, half(header, 4).saturating_add(20));
    packet.extend(rest);
    Some(packet)
}

/// Translates a solicitation or an advertisement to RFC 826; `None` if any field is wrong (RFC
/// 4861 sections 7.1.1 and 7.1.2).
fn resolution(packet: &Packet<'_>) -> Option<Vec<u8>> {
    let (head, options) = packet.payload.split_at_checked(24)?;
    let v6::Path { from, to, .. } = packet.path;
    let target = Ipv6Addr::from(*head[8..].first_chunk::<16>()?);
    let option: Option<&[u8; 8]> = options.first_chunk();
    let mac = option.and_then(|option| option[2..].first_chunk::<6>().copied());
    let says = option.map(|option| (option[0], option[1]));
    let is_solicitation = head[0] == 135;
    // A probe has no option, and goes to a group; all others contain the sender's link-layer
    // address.
    let wanted = match (is_solicitation, from.is_unspecified()) {
        (true, true) => None,
        (true, false) => Some((1, 1)),
        (false, _) => Some((2, 1)),
    };
    let to_group = to == solicited_node(target) || to == ALL_NODES;
    let reaches = to.is_multicast() == (packet.path.to_mac[0] & 1 != 0)
        && (!to.is_multicast() || packet.path.to_mac == group_mac(to) && to_group);
    let is_fine = packet.is_right()
        && packet.path.hop_limit == 255
        && head[1] == 0
        && says == wanted
        && reaches
        && !target.is_multicast();
    if !is_fine {
        return None;
    }
    let to_mac = match to.is_multicast() {
        true => EVERY_MAC,
        false => packet.path.to_mac,
    };
    let path = Path {
        from_mac: packet.path.from_mac,
        to_mac,
        from: v4_of(from)?,
        to: v4_of(target)?,
    };
    Some(match is_solicitation {
        true => arp(path, 1, [0; 6]),
        // An advertisement without a solicitation is an announcement (RFC 5227 section 2.3).
        false if to == ALL_NODES => arp(path.source(path.to), 1, [0; 6]),
        false => {
            let path = Path {
                from: v4_of(target)?,
                to: v4_of(to)?,
                ..path
            };
            let message = arp(path, 2, to_mac);
            (mac == Some(path.from_mac)).then_some(message)?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::{
        ACK, FIN, Right, Segment, arp_reply, arp_request, asked, echo, finish, fragments,
        icmp_error, ip, quote, reassemble, udp,
    };
    use super::*;

    const PATH: Path = Path::new([10, 0, 0, 2], [10, 0, 0, 1]);

    fn there(frame: &[u8]) -> Vec<u8> {
        Family::V6.write(frame).expect("it can be said")
    }

    fn back(frame: &[u8]) -> Vec<u8> {
        Family::V6.read(frame).expect("it can be read")
    }

    fn segment() -> Segment {
        Segment {
            src_port: 4000,
            dst_port: 80,
            seq: 7,
            flags: ACK | FIN,
            ecn: 2,
            dscp: 5,
            timestamps: Some((3, 4)),
            payload: b"odd".to_vec(),
            ..Segment::default()
        }
    }

    #[test]
    fn segments_and_datagrams_keep_their_fields_and_get_right_checksums() {
        for frame in [segment().frame(PATH), udp(PATH, (5, 9), b"hello")] {
            let wide = there(&frame);
            let packet = Packet::read(&wide).expect("IPv6");
            assert!(packet.is_right());
            assert_eq!(wide.len(), frame.len() + 20);
            assert_eq!(packet.path.from, "fd00::a00:2".parse::<Ipv6Addr>().unwrap());
            assert_eq!(packet.path.to, "fd00::a00:1".parse::<Ipv6Addr>().unwrap());
            let mut again = back(&wide);
            // The identification is not translated.
            again[18..22].copy_from_slice(&frame[18..22]);
            finish(&mut again, Right::NETWORK);
            assert_eq!(again, frame);
        }
    }

    #[test]
    fn a_partial_checksum_is_completed_to_the_whole_one() {
        for frame in [segment().frame(PATH), udp(PATH, (5, 9), b"hello")] {
            for family in Family::ALL {
                let whole = family.write(&frame).expect("it can be said");
                let mut partial = whole.clone();
                family.leave_partial(&mut partial);
                assert_ne!(partial, whole);
                assert!(family.complete(&mut partial));
                assert_eq!(partial, whole);
                assert!(!family.complete(&mut partial), "it is not partial any more");
            }
        }
    }

    #[test]
    fn what_is_damaged_is_made_right_again() {
        let messages = [segment().frame(PATH), udp(PATH, (5, 9), b"hello")];
        let ping = ip(PATH, ICMP, &echo(7, b"there"));
        for frame in messages.iter().chain([&ping]) {
            let wide = there(frame);
            let mut longer = wide.clone();
            longer.push(7);
            *longer.last_mut().unwrap() ^= 4;
            for (lengths, transport) in [(true, true), (true, false), (false, true)] {
                let mut finished = longer.clone();
                let network = true;
                Family::V6.finish(
                    &mut finished,
                    Right {
                        lengths,
                        network,
                        transport,
                    },
                );
                let read = Packet::read(&finished).expect("IPv6");
                assert_eq!(read.payload.len() == longer.len() - v6::LOWER, lengths);
                assert_eq!(read.is_right(), lengths && transport);
            }
            let mut same = wide.clone();
            Family::V6.finish(&mut same, Right::ALL);
            assert_eq!(same, wide);
        }
    }

    #[test]
    fn what_is_damaged_stays_damaged() {
        let frame = segment().frame(PATH);
        for at in LOWER..frame.len() {
            let mut damaged = frame.clone();
            damaged[at] ^= 4;
            let wide = there(&damaged);
            let packet = Packet::read(&wide).expect("IPv6");
            assert!(!packet.is_right(), "byte {at}");
            assert_eq!(Segment::read(&back(&wide)), None, "byte {at}");
        }
        let mut header = frame;
        header[22] ^= 1;
        assert_eq!(Family::V6.write(&header), None);
    }

    #[test]
    fn fragments_keep_their_places() {
        let text: Vec<u8> = (0..3000).map(|i| i as u8).collect();
        let whole = udp(PATH, (5, 9), &text).split_off(LOWER);
        let pieces: Vec<_> = fragments(PATH, UDP, 77, &whole, 1480);
        let wide: Vec<_> = pieces.iter().map(|piece| there(piece)).collect();
        let bodies: Vec<u8> = wide
            .iter()
            .flat_map(|frame| {
                let packet = Packet::read(frame).expect("IPv6");
                assert_eq!((packet.next, packet.payload[0]), (FRAGMENT, UDP));
                packet.payload[8..].to_vec()
            })
            .collect();
        let (from, to) = (v6_of(PATH.from), v6_of(PATH.to));
        assert_eq!(v6::transport_sum(from, to, UDP, &bodies), 0xffff);
        let again: Vec<_> = wide.iter().map(|frame| back(frame)).collect();
        assert_eq!(reassemble(&again), whole);
    }

    #[test]
    fn messages_are_those_of_the_other_family() {
        let ping = ip(PATH, ICMP, &echo(7, b"there"));
        let wide = there(&ping);
        let packet = Packet::read(&wide).expect("IPv6");
        assert!(packet.is_right());
        assert_eq!((packet.next, packet.payload[0]), (ICMPV6, 128));
        assert_eq!(back(&wide)[LOWER..], ping[LOWER..]);

        let about = quote(PATH.reversed(), UDP, 28, (9, 5), 8 << 16);
        for (numbers, wide_numbers) in [([3, 3], [1, 4]), ([3, 2], [4, 1]), ([11, 1], [3, 1])] {
            let error = ip(PATH, ICMP, &icmp_error(numbers, 0, &about));
            let wide = there(&error);
            let packet = Packet::read(&wide).expect("IPv6");
            assert!(packet.is_right());
            assert_eq!(packet.payload[..2], wide_numbers);
            let again = back(&wide);
            assert_eq!(again[LOWER..LOWER + 2], numbers);
            assert_eq!(sum(&again[LOWER..]), 0xffff);
            assert_eq!(again[LOWER + 28..], error[LOWER + 28..]);
        }
        let narrow = ip(PATH, ICMP, &icmp_error([3, 4], 1300, &about));
        let wide = there(&narrow);
        assert_eq!(word(&wide, v6::LOWER + 4), 1320);
        let mut damaged = narrow;
        damaged[LOWER + 2] ^= 0x11;
        let wide = there(&damaged);
        assert!(!Packet::read(&wide).expect("IPv6").is_right());
    }

    #[test]
    fn questions_for_neighbors_are_solicitations() {
        for to_mac in [EVERY_MAC, PATH.to_mac] {
            let question = arp_request(PATH.to_mac(to_mac));
            let wide = there(&question);
            let packet = Packet::read(&wide).expect("IPv6");
            assert!(packet.is_right() && packet.path.hop_limit == 255);
            assert_eq!(packet.path.to.is_multicast(), to_mac == EVERY_MAC);
            assert_eq!((back(&wide), asked(&question)), (question, Some(PATH.to)));
        }
        let answer = arp_reply(PATH);
        assert_eq!(back(&there(&answer)), answer);
        let probe = arp_request(PATH.source([0; 4]).to_mac(EVERY_MAC));
        assert_eq!(back(&there(&probe)), probe);
        let announcement = arp_request(PATH.source(PATH.to).to_mac(EVERY_MAC));
        assert_eq!(back(&there(&announcement)), announcement);
        let mut damaged = there(&answer);
        damaged[21] = 64;
        assert_eq!(Family::V6.read(&damaged), None);
    }
}
