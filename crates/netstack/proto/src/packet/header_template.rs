//! Recognizes the next segment of a flow by comparing its header with the previous one.

use crate::packet::checksum::Sum;
use crate::packet::{ETHERNET_HEADER, Tcp};

/// The expected headers of the next segment. Only identification, checksums, the sequence number
/// and PSH may differ; in segments without payload, acknowledgment number and window. Nearly every
/// segment of a bulk transfer matches, and then needs no parsing.
///
/// A template is built from a frame that [`parse`](crate::packet::parse) accepted; a matching
/// frame would be parsed alike. The headers without options are `HEAD` bytes long, and those
/// before the sequence number `WORDS` words.
#[derive(Clone, Copy, Debug)]
pub struct Template<const WORDS: usize, const HEAD: usize> {
    /// The headers up to the sequence number, as words that begin at [`Template::AT`].
    words: [u64; WORDS],
    /// Acknowledgment number.
    ack: u32,
    /// Header length, flags, and window.
    kind: [u8; 4],
    /// The sum of the IPv4 header's words, except identification and checksum.
    ip_sum: u32,
    /// The sum of pseudo header, ports and options of a segment without payload.
    tcp_sum: Sum,
    /// The options, if they are timestamps.
    timestamps: Option<[u8; 12]>,
    /// Bytes of the whole frame, without padding.
    len: usize,
}

/// The template of an IPv4 segment without IP options.
pub type HeaderTemplate = Template<5, { ETHERNET_HEADER + 40 }>;
/// The template of an IPv6 segment without extension headers. Its IP header has no checksum,
/// and all of it must be equal.
pub type HeaderTemplateV6 = Template<8, { ETHERNET_HEADER + 60 }>;

/// The flag of the last segment of a write.
const PSH: u8 = 8;
/// The protocol number of TCP.
const TCP: u8 = 6;

/// The fields in which an acknowledgment differs from its template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Acknowledgment number.
    pub ack: u32,
    /// Window field.
    pub wnd: u16,
    /// Whether the TCP checksum is right.
    pub is_good: bool,
}

const fn ones_but<const WORDS: usize>(bytes: &[usize]) -> [u64; WORDS] {
    let mut words = [!0; WORDS];
    let mut i = 0;
    while i < bytes.len() {
        let at = bytes[i];
        let mut word = u64::to_ne_bytes(words[at / 8]);
        word[at % 8] = 0;
        words[at / 8] = u64::from_ne_bytes(word);
        i += 1;
    }
    words
}

/// `N` bytes of the headers, from `at` on.
#[inline(always)]
fn bytes_at<const N: usize, const HEAD: usize>(head: &[u8; HEAD], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&head[at..at + N]);
    bytes
}

impl<const WORDS: usize, const HEAD: usize> Template<WORDS, HEAD> {
    const IS_V4: bool = HEAD == ETHERNET_HEADER + 40;
    /// Offset of the TCP header.
    const TCP: usize = HEAD - 20;
    /// Offset of the sequence and acknowledgment numbers.
    const NUMBERS: usize = HEAD - 16;
    /// Offset of header length, flags and window. Checksum and (ignored) urgent pointer follow.
    const KIND: usize = Self::NUMBERS + 8;
    /// Offsets of the words in which all bytes before the numbers are compared. The last one
    /// overlaps the one before it.
    const AT: [usize; WORDS] = {
        let mut at = [0; WORDS];
        let mut i = 0;
        while i < WORDS {
            at[i] = if i + 1 < WORDS {
                8 * i
            } else {
                Self::NUMBERS - 8
            };
            i += 1;
        }
        at
    };
    /// Ones where bytes must be equal: all except identification and IPv4 checksum.
    const COMPARED: [u64; WORDS] = ones_but(if Self::IS_V4 { &[18, 19, 24, 25] } else { &[] });

    /// The template of `frame`, whose parsed headers are `tcp`, without PSH; `None` unless it
    /// has this family and the usual header length.
    #[inline]
    pub fn new(frame: &[u8], tcp: &Tcp) -> Option<Self> {
        let (head, rest) = frame.split_first_chunk::<HEAD>()?;
        let timestamps = match usize::from(tcp.payload_offset) {
            len if len == HEAD => None,
            len if len == HEAD + 12 => Some(*rest.first_chunk()?),
            _ => return None,
        };
        Some(Template {
            words: Self::AT.map(|at| u64::from_ne_bytes(bytes_at(head, at))),
            ack: tcp.ack,
            kind: without_push(bytes_at(head, Self::KIND)),
            ip_sum: if Self::IS_V4 {
                sum_of_what_agrees(head)
            } else {
                0
            },
            tcp_sum: Sum::default()
                .pseudo_header(
                    tcp.src,
                    tcp.dst,
                    TCP,
                    usize::from(tcp.payload_offset) - Self::TCP,
                )
                .with(&head[Self::TCP..Self::NUMBERS])
                .with(timestamps.as_ref().map_or(&[], |options| &options[..])),
            timestamps,
            len: usize::from(tcp.payload_offset) + tcp.payload_len as usize,
        })
        .filter(|_| !tcp.options.any && tcp.src.is_v4() == Self::IS_V4)
    }

    /// Whether `frame` has PSH, if it matches, begins at `seq`, and has a good IP checksum.
    #[inline]
    pub fn matches(&self, frame: &[u8], seq: u32) -> Option<bool> {
        const PUSHED: u32 = u32::from_ne_bytes([0, PSH, 0, 0]);
        let head = self.same_headers(frame)?;
        let numbers = u64::from_be_bytes(bytes_at(head, Self::NUMBERS));
        let kind = u32::from_ne_bytes(bytes_at(head, Self::KIND));
        let differs = kind ^ u32::from_ne_bytes(self.kind);
        let is_next = numbers == u64::from(seq) << 32 | u64::from(self.ack);
        (is_next && differs & !PUSHED == 0).then_some(differs != 0)
    }

    /// [`Template::matches`] for a segment without payload, with any acknowledgment number and
    /// window; returns both. The checksum costs little, as most of its sum is in the template.
    #[inline(always)]
    pub fn acknowledges(&self, frame: &[u8], seq: u32) -> Option<Acknowledged> {
        let head = self.same_headers(frame)?;
        let word = |at: usize| u32::from_be_bytes(bytes_at(head, Self::NUMBERS + at));
        let (number, ack, kind) = (word(0), word(4), word(8));
        let of_flow = u32::from_be_bytes(self.kind);
        let sum = self.tcp_sum.numbers([number, ack, kind, word(12)]);
        (number == seq && kind >> 16 == of_flow >> 16).then_some(Acknowledged {
            ack,
            wnd: kind as u16,
            is_good: sum.is_good(),
        })
    }

    /// Whether a segment in `frame` would have both ports, and the end of the destination address.
    #[inline(always)]
    pub fn has_ports_of(&self, frame: &[u8]) -> bool {
        let head: Option<&[u8; HEAD]> = frame.first_chunk();
        head.is_some_and(|head| {
            let word = u64::from_ne_bytes(bytes_at(head, Self::NUMBERS - 8));
            word == self.words[WORDS - 1]
        })
    }

    /// Whether all bytes before the numbers, and the options, are equal.
    #[inline(always)]
    fn same_headers<'f>(&self, frame: &'f [u8]) -> Option<&'f [u8; HEAD]> {
        let (head, rest) = frame.split_first_chunk::<HEAD>()?;
        let mut differ = 0;
        for (i, at) in Self::AT.into_iter().enumerate() {
            let word = u64::from_ne_bytes(bytes_at(head, at));
            differ |= (word ^ self.words[i]) & Self::COMPARED[i];
        }
        if let Some(timestamps) = &self.timestamps
            && rest.first_chunk() != Some(timestamps)
        {
            return None;
        }
        if differ != 0 || frame.len() < self.len {
            return None;
        }
        if Self::IS_V4 {
            // RFC 1071: the checksum is right if all words add up to a multiple of 0xffff.
            let ident = u32::from(u16::from_ne_bytes(bytes_at(head, 18)));
            let checksum = u32::from(u16::from_ne_bytes(bytes_at(head, 24)));
            let sum = self.ip_sum + ident + checksum;
            return sum.is_multiple_of(0xffff).then_some(head);
        }
        Some(head)
    }
}

const fn without_push([len, flags, a, b]: [u8; 4]) -> [u8; 4] {
    [len, flags & !PSH, a, b]
}

/// The sum over an IPv4 header without options, except identification and checksum. Never 0,
/// because the version is not.
fn sum_of_what_agrees(head: &[u8]) -> u32 {
    let (words, _) = head[ETHERNET_HEADER..ETHERNET_HEADER + 20].as_chunks::<2>();
    let counts = words.iter().enumerate().filter(|(i, _)| *i != 2 && *i != 5);
    counts
        .map(|(_, word)| u32::from(u16::from_ne_bytes(*word)))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::flow::Address;
    use crate::packet::tests::headers;
    use crate::packet::{
        Packet, TcpHeaders, checksummed, emit_tcp, parse, parse_plain, set_tcp_checksum,
    };
    use proptest::prelude::*;
    use smoltcp::wire as sw;

    fn fix_checksums(frame: &mut [u8]) {
        sw::Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]).fill_checksum();
    }

    fn tcp_sum(frame: &[u8]) -> Sum {
        let (src, dst, segment) = checksummed(frame).expect("a segment");
        let pseudo = Sum::default().pseudo_header(src, dst, TCP, segment.len());
        pseudo.with(segment)
    }

    /// Headers with no options but timestamps.
    fn plain(timestamps: bool, payload_len: usize) -> TcpHeaders {
        TcpHeaders {
            flags: 0x10,
            timestamps: timestamps.then_some((1, 2)),
            mss: None,
            window_scale: None,
            sack_permitted: false,
            payload_len,
            ..headers()
        }
    }

    proptest! {
        /// A frame that matches the template, even damaged, is the next segment for the parser too.
        #[test]
        fn a_match_is_what_the_parser_reads(
            at in 0usize..80,
            value in any::<u8>(),
            len in 50usize..120,
            repair in any::<bool>(),
            timestamps in any::<bool>(),
            payload_len in prop_oneof![Just(0usize), Just(20)],
        ) {
            let mut headers = plain(timestamps, payload_len);
            let mut frame = vec![7; 120];
            let head = emit_tcp(&mut frame, &headers);
            let Some(first) = parse_plain(&frame) else { panic!("not plain") };
            let like = HeaderTemplate::new(&frame, &first).unwrap();
            headers.seq = headers.seq.wrapping_add(payload_len as u32);
            emit_tcp(&mut frame, &headers);
            prop_assert_eq!(like.matches(&frame, headers.seq), Some(false));
            prop_assert_eq!(like.matches(&frame, headers.seq.wrapping_add(1)), None);
            frame[HeaderTemplate::KIND + 1] |= PSH;
            prop_assert_eq!(like.matches(&frame, headers.seq), Some(true));
            frame[HeaderTemplate::KIND + 1] &= !PSH;
            let checksum = tcp_sum(&frame).finish();
            set_tcp_checksum::<{ HeaderTemplate::TCP }>(&mut frame, checksum);
            let found = Acknowledged { ack: 17, wnd: 512, is_good: payload_len == 0 };
            prop_assert_eq!(like.acknowledges(&frame, headers.seq), Some(found));
            // Identification and checksums may have any value.
            frame[18] = value;
            fix_checksums(&mut frame);
            frame[50] = value;
            prop_assert_eq!(like.matches(&frame, headers.seq), Some(false));

            frame[at] = value;
            if repair && at != ETHERNET_HEADER {
                fix_checksums(&mut frame);
            }
            frame.truncate(len);
            if let Some(is_pushed) = like.matches(&frame, headers.seq) {
                prop_assert!(frame.len() >= head + payload_len);
                let Ok(Packet::Tcp(tcp)) = parse(&frame) else { panic!("not TCP") };
                let flags = first.flags | if is_pushed { PSH } else { 0 };
                prop_assert_eq!(tcp, Tcp { seq: headers.seq, flags, ..first });
            }
            if let Some(found) = like.acknowledges(&frame, headers.seq) {
                let Ok(Packet::Tcp(tcp)) = parse(&frame) else { panic!("not TCP") };
                let Acknowledged { ack, wnd, .. } = found;
                prop_assert_eq!(tcp, Tcp { seq: headers.seq, ack, wnd, ..first });
                let is_good = tcp_sum(&frame).is_good();
                prop_assert!(payload_len > 0 || found.is_good == is_good);
            }
        }

        /// The same over IPv6, where the whole IP header must be equal.
        #[test]
        fn a_match_of_ipv6_is_what_the_parser_reads(
            at in 0usize..100,
            value in any::<u8>(),
            len in 70usize..140,
            timestamps in any::<bool>(),
            payload_len in prop_oneof![Just(0usize), Just(20)],
        ) {
            let mut headers = TcpHeaders {
                label: 0x54321,
                ..plain(timestamps, payload_len)
            };
            headers.flow.local.address = Address::of_words([0x2001_0db8_0000_0000, 1]);
            headers.flow.remote.address = Address::of_words([0x2001_0db8_0000_0000, 2]);
            let mut frame = vec![7; 140];
            let head = emit_tcp(&mut frame, &headers);
            let Ok(Packet::Tcp(first)) = parse(&frame) else { panic!("not TCP") };
            prop_assert!(HeaderTemplate::new(&frame, &first).is_none());
            let like = HeaderTemplateV6::new(&frame, &first).unwrap();
            headers.seq = headers.seq.wrapping_add(payload_len as u32);
            emit_tcp(&mut frame, &headers);
            prop_assert_eq!(like.matches(&frame, headers.seq), Some(false));
            prop_assert_eq!(like.matches(&frame, headers.seq.wrapping_add(1)), None);
            let checksum = tcp_sum(&frame).finish();
            set_tcp_checksum::<{ HeaderTemplateV6::TCP }>(&mut frame, checksum);
            let found = Acknowledged { ack: 17, wnd: 512, is_good: payload_len == 0 };
            prop_assert_eq!(like.acknowledges(&frame, headers.seq), Some(found));
            frame[HeaderTemplateV6::KIND + 1] |= PSH;
            prop_assert_eq!(like.matches(&frame, headers.seq), Some(true));
            frame[HeaderTemplateV6::KIND + 1] &= !PSH;

            frame[at] = value;
            frame.truncate(len);
            if let Some(is_pushed) = like.matches(&frame, headers.seq) {
                prop_assert!(frame.len() >= head + payload_len);
                let Ok(Packet::Tcp(tcp)) = parse(&frame) else { panic!("not TCP") };
                let flags = first.flags | if is_pushed { PSH } else { 0 };
                prop_assert_eq!(tcp, Tcp { seq: headers.seq, flags, ..first });
            }
        }
    }
}
