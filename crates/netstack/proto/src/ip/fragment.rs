//! Fragmentation of payloads that exceed the MTU (RFC 791 section 3.2, RFC 8200 section 4.5).

use crate::packet::flow::Address;
use crate::packet::ipv6::make_fragment;
use crate::packet::{
    ETHERNET_HEADER, IP_HEADERS, IPV6_MIN_MTU, ends, fragment_header, ip_headers_len, options,
    set_piece,
};

/// One piece of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its offset in the payload, in bytes; a multiple of 8.
    pub offset: u32,
    /// Its length in bytes; a multiple of 8 unless it is the last.
    pub len: u32,
    /// Whether others follow.
    pub more: bool,
}

/// How packets to a destination are fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Header bytes of a whole packet, and of a fragment.
    whole: u16,
    piece: u16,
    /// Maximum number of bytes of a packet.
    mtu: u16,
}

impl Cut {
    /// Creates the rule for packets to `destination` of at most `mtu` bytes, with our headers.
    #[inline]
    pub const fn new(destination: Address, mtu: u16) -> Self {
        // The minimum MTU of every network (RFC 791 section 3.2, RFC 8200 section 5).
        let least = if destination.is_v4() {
            68
        } else {
            IPV6_MIN_MTU
        };
        Cut {
            whole: (ip_headers_len(destination, false) - ETHERNET_HEADER) as u16,
            piece: (ip_headers_len(destination, true) - ETHERNET_HEADER) as u16,
            mtu: if mtu < least { least } else { mtu },
        }
    }

    /// Maximum payload bytes of an unfragmented packet.
    pub const fn longest_whole(self) -> u16 {
        self.mtu - self.whole
    }

    /// Payload bytes of every piece except the last.
    const fn step(self) -> u32 {
        ((self.mtu - self.piece) & !7) as u32
    }

    /// Frame length in bytes of every piece except the last.
    pub const fn longest_frame(self) -> usize {
        ETHERNET_HEADER + self.piece as usize + self.step() as usize
    }

    /// How many packets carry `len` bytes; at least one.
    pub const fn count(self, len: u32) -> u32 {
        if len + self.whole as u32 <= self.mtu as u32 {
            1
        } else {
            len.div_ceil(self.step())
        }
    }

    /// Piece `i` of `len` bytes, which make [`Cut::count`] pieces.
    pub fn piece(self, i: u32, len: u32) -> Piece {
        if self.count(len) == 1 {
            return Piece {
                offset: 0,
                len,
                more: false,
            };
        }
        let offset = i * self.step();
        let rest = len.saturating_sub(offset);
        Piece {
            offset,
            len: rest.min(self.step()),
            more: rest > self.step(),
        }
    }
}

/// Fragments one of our frames, whose IP header has neither options nor extension headers, into
/// packets of at most `mtu` bytes. `ident` is the identification for IPv6; an IPv4 frame
/// contains one.
pub fn cut_frame(frame: Vec<u8>, mtu: u16, ident: u32) -> Vec<Vec<u8>> {
    let destination = ends(&frame).map_or(Address::UNSPECIFIED, |(_, destination)| destination);
    let cut = Cut::new(destination, mtu);
    let headers = ip_headers_len(destination, false);
    let payload = frame.get(headers..).unwrap_or_default();
    let len = payload.len() as u32;
    let count = cut.count(len);
    if count == 1 {
        return vec![frame];
    }
    let one = |i| {
        let piece = cut.piece(i, len);
        let bytes = &payload[piece.offset as usize..][..piece.len as usize];
        let mut fragment = frame[..headers].to_vec();
        if destination.is_v4() {
            fragment.extend(bytes);
            let total_len = (20 + piece.len) as u16;
            set_piece(&mut fragment, total_len, piece.offset, piece.more, false);
        } else {
            make_fragment(&mut fragment, piece.offset, piece.more, ident, bytes);
        }
        fragment
    };
    (0..count).map(one).collect()
}

/// Fragments a forwarded packet into packets of at most `mtu` bytes (RFC 791 section 3.2). The
/// packet may be a fragment itself, and its header may have options: the first piece has all of
/// them, the others those with the copied flag. `None` if the frame is not IPv4, or `mtu`
/// leaves no room for 8 bytes.
pub fn cut_packet(frame: &[u8], mtu: u16) -> Option<Vec<Vec<u8>>> {
    let header = fragment_header(frame)?;
    let (head, mut rest) = (&frame[..header.head], &frame[header.head..header.end]);
    let mut later = head[..IP_HEADERS].to_vec();
    for option in options(&head[IP_HEADERS..]).map_while(Result::ok) {
        if option[0] & 0x80 != 0 {
            later.extend(option);
        }
    }
    // Padding is an end of the options list.
    let header_len = (later.len() - ETHERNET_HEADER).next_multiple_of(4);
    later.resize(ETHERNET_HEADER + header_len, 0);
    let (mut head, mut offset, mut pieces) = (head, header.offset, Vec::new());
    loop {
        let header_len = head.len() - ETHERNET_HEADER;
        let room = usize::from(mtu).checked_sub(header_len)?;
        let is_last = rest.len() <= room;
        let len = if is_last { rest.len() } else { room & !7 };
        if len == 0 && !is_last {
            return None;
        }
        let (bytes, behind) = rest.split_at(len);
        let mut piece = [head, bytes].concat();
        piece[ETHERNET_HEADER] = 0x40 | (header_len / 4) as u8;
        let more = !is_last || header.more;
        set_piece(&mut piece, (header_len + len) as u16, offset, more, false);
        pieces.push(piece);
        if is_last {
            return Some(pieces);
        }
        offset += len as u32;
        (head, rest) = (&later, behind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::reassembly::{Reassembled, Reassembly, ReassemblyLimits};
    use crate::ip::{fragment, whole};
    use crate::packet::{IpHeaders, Packet, emit_ip, parse};
    use crate::time::Instant;
    use proptest::prelude::*;

    fn frame(payload: &[u8]) -> Vec<u8> {
        let headers = IpHeaders {
            src_mac: [2; 6],
            dst_mac: [4; 6],
            src: Address::ipv4(10, 0, 0, 2),
            dst: Address::ipv4(10, 0, 0, 1),
            protocol: 200,
            ttl: 9,
            tos: 0x2a,
            ident: 77,
            label: 0,
            offset: 0,
            more: false,
            payload_len: payload.len(),
        };
        let mut frame = vec![0; IP_HEADERS];
        emit_ip(&mut frame, &headers);
        frame.extend(payload);
        frame
    }

    const V4: Cut = Cut::new(Address::ipv4(10, 0, 0, 1), 1500);
    const V6: Cut = Cut::new(Address::of_words([0x2001_0db8_0000_0000, 1]), 1500);

    #[test]
    fn what_fits_is_not_cut() {
        assert_eq!(V4.count(1480), 1);
        assert_eq!(V4.count(1481), 2);
        assert_eq!(V4.count(0), 1);
        assert!(!V4.piece(0, 1480).more);
        assert_eq!(V6.count(1460), 1);
        assert_eq!(V6.count(1461), 2);
        assert_eq!(V6.piece(0, 1461).len, 1448);
    }

    proptest! {
        #[test]
        fn pieces_are_the_whole_in_order_and_each_fits(len in 0_u32..=65_515, mtu in 68_u16..9_000, is_v4 in any::<bool>()) {
            let to = if is_v4 { Address::ipv4(10, 0, 0, 1) } else { Address::of_words([1 << 61, 1]) };
            let cut = Cut::new(to, mtu);
            let (headers, mtu) = if is_v4 { (20, mtu) } else { (48, mtu.max(1280)) };
            let mut next = 0;
            for i in 0..cut.count(len) {
                let piece = cut.piece(i, len);
                prop_assert_eq!(piece.offset, next);
                let headers = if cut.count(len) == 1 { headers.min(40) } else { headers };
                prop_assert!(piece.len + headers <= u32::from(mtu));
                prop_assert_eq!(piece.more, i + 1 < cut.count(len));
                prop_assert!(!piece.more || piece.len.is_multiple_of(8) && piece.len > 0);
                next += piece.len;
            }
            prop_assert_eq!(next, len);
        }

        #[test]
        fn what_is_cut_is_put_together_again(len in 0_usize..20_000, mtu in 68_u16..3_000, mark in any::<bool>()) {
            let payload: Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
            let sent = frame(&payload);
            let mut pieces = cut_frame(sent.clone(), mtu, 0);
            if pieces.len() == 1 {
                prop_assert_eq!(&pieces[0], &sent);
                return Ok(());
            }
            if mark {
                let len = (pieces[0].len() - 14) as u16;
                set_piece(&mut pieces[0], len, 0, true, true);
            }
            let limits = ReassemblyLimits { pieces: 1_000, ..ReassemblyLimits::default() };
            let mut r = Reassembly::new(limits);
            let mut got = None;
            for piece in &pieces {
                prop_assert!(piece.len() <= usize::from(mtu) + 14);
                let is_fragment = matches!(parse(piece), Ok(Packet::Fragment { .. }));
                prop_assert!(is_fragment);
                if let Reassembled::Complete(datagram) = r.insert(&fragment(piece).expect("a fragment"), Instant::ZERO) {
                    got = whole(&datagram);
                }
            }
            let got = got.expect("all pieces are there");
            prop_assert_eq!(got[15] & 3, if mark { 3 } else { 2 });
            prop_assert_eq!(&got[IP_HEADERS..], &payload[..]);
            prop_assert_eq!(&got[IP_HEADERS - 8..IP_HEADERS], &sent[IP_HEADERS - 8..IP_HEADERS]);
        }

        #[test]
        fn what_is_cut_of_ipv6_is_put_together_again(len in 8_usize..20_000, mtu in 1280_u16..3_000, mark in any::<bool>(), ident in any::<u32>()) {
            let payload: Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
            let headers = IpHeaders {
                src_mac: [2; 6],
                dst_mac: [4; 6],
                src: Address::of_words([1 << 61, 2]),
                dst: Address::of_words([1 << 61, 1]),
                protocol: 17,
                ttl: 9,
                tos: 0x2a,
                ident,
                label: 0x12345,
                offset: 0,
                more: false,
                payload_len: len,
            };
            let mut sent = vec![0; headers.headers_len()];
            emit_ip(&mut sent, &headers);
            sent.extend(&payload);
            let mut pieces = cut_frame(sent.clone(), mtu, ident);
            if pieces.len() == 1 {
                prop_assert_eq!(&pieces[0], &sent);
                return Ok(());
            }
            if mark {
                pieces[0][15] |= 0x30;
                sent[15] |= 0x30;
            }
            let limits = ReassemblyLimits { pieces: 1_000, ..ReassemblyLimits::default() };
            let mut r = Reassembly::new(limits);
            let mut got = None;
            for piece in pieces.iter().rev() {
                prop_assert!(piece.len() <= usize::from(mtu) + 14);
                let is_fragment = matches!(parse(piece), Ok(Packet::Fragment { .. }));
                prop_assert!(is_fragment);
                let read = fragment(piece).expect("a fragment");
                prop_assert_eq!(read.id.ident, ident);
                if let Reassembled::Complete(datagram) = r.insert(&read, Instant::ZERO) {
                    got = whole(&datagram);
                }
            }
            prop_assert_eq!(got, Some(sent));
        }

        #[test]
        fn a_packet_that_is_cut_twice_is_put_together_again(
            len in 0_usize..9_000, first in 68_u16..3_000, second in 68_u16..3_000, options in any::<bool>(),
        ) {
            let payload: Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
            let mut sent = frame(&payload);
            if options {
                // A record-route option, which is not copied, and a security option, which is.
                let two = [7, 7, 4, 0, 0, 0, 0, 130, 3, 9, 0, 0];
                sent.splice(IP_HEADERS..IP_HEADERS, two);
                sent[ETHERNET_HEADER] = 0x48;
                let total = (sent.len() - ETHERNET_HEADER) as u16;
                set_piece(&mut sent, total, 0, false, false);
            }
            let limits = ReassemblyLimits { pieces: 10_000, ..ReassemblyLimits::default() };
            let mut r = Reassembly::new(limits);
            let mut got = None;
            for piece in cut_packet(&sent, first).expect("a packet") {
                for piece in cut_packet(&piece, second).expect("a packet") {
                    prop_assert!(piece.len() <= usize::from(first.min(second)) + ETHERNET_HEADER);
                    let read = fragment(&piece).expect("a fragment");
                    if options && read.offset > 0 {
                        prop_assert_eq!(&read.head[IP_HEADERS..], [130, 3, 9, 0]);
                    }
                    got = match r.insert(&read, Instant::ZERO) {
                        Reassembled::Complete(datagram) => whole(&datagram),
                        _ => got,
                    };
                }
            }
            if sent.len() - ETHERNET_HEADER > usize::from(first.min(second)) {
                prop_assert_eq!(got, Some(sent));
            }
        }

        #[test]
        fn no_frame_makes_reading_a_fragment_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = fragment(&bytes);
            let _ = cut_packet(&bytes, 100);
        }
    }
}
