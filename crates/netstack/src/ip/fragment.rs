//! Cutting what is longer than a packet may be (RFC 791 section 3.2).

use crate::packet::{IP_HEADERS, set_piece};

/// One piece of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where it begins in the payload, in bytes; a multiple of 8.
    pub(crate) offset: u32,
    /// Its bytes; a multiple of 8 unless it is the last.
    pub(crate) len: u32,
    /// Whether others follow.
    pub(crate) more: bool,
}

/// Bytes of an IPv4 header without options, the only one that we send.
const HEADER: u16 = 20;

/// Payload bytes of every piece but the last, in packets of at most `mtu` bytes.
const fn step(mtu: u16) -> u32 {
    // 68 is the least that any network may have (RFC 791 section 3.2).
    let mtu = if mtu < 68 { 68 } else { mtu };
    ((mtu - HEADER) & !7) as u32
}

/// How many packets of at most `mtu` bytes carry `len` bytes; at least one.
pub(crate) const fn count(len: u32, mtu: u16) -> u32 {
    if len + HEADER as u32 <= mtu as u32 {
        1
    } else {
        len.div_ceil(step(mtu))
    }
}

/// Piece `i` of `len` bytes, which are cut into [`count`].
pub(crate) fn piece(i: u32, len: u32, mtu: u16) -> Piece {
    if count(len, mtu) == 1 {
        return Piece {
            offset: 0,
            len,
            more: false,
        };
    }
    let offset = i * step(mtu);
    let rest = len.saturating_sub(offset);
    Piece {
        offset,
        len: rest.min(step(mtu)),
        more: rest > step(mtu),
    }
}

/// Cuts a frame of ours, whose IPv4 header has no options, into frames of packets of at most `mtu`
/// bytes.
pub(crate) fn cut_frame(frame: Vec<u8>, mtu: u16) -> Vec<Vec<u8>> {
    let payload = frame.get(IP_HEADERS..).unwrap_or_default();
    let len = payload.len() as u32;
    let count = count(len, mtu);
    if count == 1 {
        return vec![frame];
    }
    let one = |i| {
        let piece = piece(i, len, mtu);
        let bytes = &payload[piece.offset as usize..][..piece.len as usize];
        let mut fragment = [&frame[..IP_HEADERS], bytes].concat();
        let total_len = (20 + piece.len) as u16;
        set_piece(&mut fragment, total_len, piece.offset, piece.more, false);
        fragment
    };
    (0..count).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::reassembly::{Reassembled, Reassembly, ReassemblyLimits};
    use crate::ip::{fragment, whole};
    use crate::packet::{IpHeaders, Packet, emit_ip, parse};
    use crate::time::Instant;
    use core::net::Ipv4Addr;
    use proptest::prelude::*;

    fn frame(payload: &[u8]) -> Vec<u8> {
        let headers = IpHeaders {
            src_mac: [2; 6],
            dst_mac: [4; 6],
            src: Ipv4Addr::new(10, 0, 0, 2),
            dst: Ipv4Addr::new(10, 0, 0, 1),
            protocol: 200,
            ttl: 9,
            tos: 0x2a,
            ident: 77,
            offset: 0,
            more: false,
            payload_len: payload.len(),
        };
        let mut frame = vec![0; IP_HEADERS];
        emit_ip(&mut frame, &headers);
        frame.extend(payload);
        frame
    }

    #[test]
    fn what_fits_is_not_cut() {
        assert_eq!(count(1480, 1500), 1);
        assert_eq!(count(1481, 1500), 2);
        assert_eq!(count(0, 1500), 1);
        assert!(!piece(0, 1480, 1500).more);
    }

    proptest! {
        #[test]
        fn pieces_are_the_whole_in_order_and_each_fits(len in 0_u32..=65_515, mtu in 68_u16..9_000) {
            let mut next = 0;
            for i in 0..count(len, mtu) {
                let piece = piece(i, len, mtu);
                prop_assert_eq!(piece.offset, next);
                prop_assert!(piece.len + 20 <= u32::from(mtu));
                prop_assert_eq!(piece.more, i + 1 < count(len, mtu));
                prop_assert!(!piece.more || piece.len.is_multiple_of(8) && piece.len > 0);
                next += piece.len;
            }
            prop_assert_eq!(next, len);
        }

        #[test]
        fn what_is_cut_is_put_together_again(len in 0_usize..20_000, mtu in 68_u16..3_000, mark in any::<bool>()) {
            let payload: Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
            let sent = frame(&payload);
            let mut pieces = cut_frame(sent.clone(), mtu);
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
        fn no_frame_makes_reading_a_fragment_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = fragment(&bytes);
        }
    }
}
