//! Ethernet, IPv4 and TCP headers of the simulated peer, and its checksums.
//!
//! The peer is one host with one connection, so everything but a few fields is fixed when a frame is built.
//! What changes from frame to frame is patched by [`Patch`], with the checksum brought up to date as
//! RFC 1624 says: the sum over everything fixed is known, and only the changed words are added to it.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Octets of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;
/// Octets of an IPv4 header without options.
pub(crate) const IPV4: usize = 20;
/// Octets before the payload of a frame without TCP options.
pub(crate) const HEADERS: usize = ETHERNET + IPV4 + 20;

const TCP: usize = ETHERNET + IPV4;
const PROTOCOL: u8 = 6;
const UDP: u8 = 17;

/// TCP's control bits (RFC 9293 section 3.1).
pub(crate) mod flags {
    pub(crate) const SYN: u8 = 0x02;
    pub(crate) const RST: u8 = 0x04;
    pub(crate) const FIN: u8 = 0x01;
    pub(crate) const ACK: u8 = 0x10;
}

/// Who talks to whom, the sender of the frames first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) from_mac: [u8; 6],
    pub(crate) to_mac: [u8; 6],
    pub(crate) from: SocketAddrV4,
    pub(crate) to: SocketAddrV4,
}

/// A whole frame with sequence and acknowledgment number 0 and a right checksum.
pub(crate) fn frame(ends: &Ends, flags: u8, wnd: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    assert!(options.len().is_multiple_of(4) && options.len() <= 40);
    let mut f = Vec::with_capacity(HEADERS + options.len() + payload.len());
    f.extend(ends.to_mac);
    f.extend(ends.from_mac);
    f.extend([0x08, 0x00]);
    let total = (IPV4 + 20 + options.len() + payload.len()) as u16;
    f.extend([0x45, 0]);
    f.extend(total.to_be_bytes());
    // No identification, do not fragment, 64 hops.
    f.extend([0, 0, 0x40, 0, 64, PROTOCOL, 0, 0]);
    f.extend(ends.from.ip().octets());
    f.extend(ends.to.ip().octets());
    let header_checksum = !fold(sum(&f[ETHERNET..]));
    f[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&header_checksum.to_be_bytes());
    f.extend(ends.from.port().to_be_bytes());
    f.extend(ends.to.port().to_be_bytes());
    f.extend([0; 8]);
    f.extend([((20 + options.len()) / 4 * 16) as u8, flags]);
    f.extend(wnd.to_be_bytes());
    f.extend([0; 4]);
    f.extend(options);
    f.extend(payload);
    let checksum = !fold(segment_sum(&f));
    f[TCP + 16..TCP + 18].copy_from_slice(&checksum.to_be_bytes());
    f
}

/// A whole frame with a UDP datagram and a right checksum.
pub(crate) fn datagram(ends: &Ends, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let mut f = Vec::with_capacity(TCP + usize::from(len));
    f.extend(ends.to_mac);
    f.extend(ends.from_mac);
    f.extend([0x08, 0x00, 0x45, 0]);
    f.extend((IPV4 as u16 + len).to_be_bytes());
    f.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
    f.extend(ends.from.ip().octets());
    f.extend(ends.to.ip().octets());
    let header_checksum = !fold(sum(&f[ETHERNET..]));
    f[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&header_checksum.to_be_bytes());
    f.extend(ends.from.port().to_be_bytes());
    f.extend(ends.to.port().to_be_bytes());
    f.extend(len.to_be_bytes());
    f.extend([0, 0]);
    f.extend(payload);
    let pseudo = sum(&f[ETHERNET + 12..TCP]) + u64::from(UDP) + u64::from(len);
    let checksum = match !fold(pseudo + sum(&f[TCP..])) {
        0 => 0xffff,
        checksum => checksum,
    };
    f[TCP + 6..TCP + 8].copy_from_slice(&checksum.to_be_bytes());
    f
}

/// A whole frame that tells the receiver the sender's link-layer address.
pub(crate) fn arp_reply(ends: &Ends) -> Vec<u8> {
    let mut f = Vec::with_capacity(42);
    f.extend(ends.to_mac);
    f.extend(ends.from_mac);
    f.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 2]);
    f.extend(ends.from_mac);
    f.extend(ends.from.ip().octets());
    f.extend(ends.to_mac);
    f.extend(ends.to.ip().octets());
    f
}

/// Gives a frame the identification `id` (RFC 6864: of no use where fragments are forbidden, so that it may say
/// which of several prebuilt frames this is).
pub(crate) fn identify(frame: &mut [u8], id: u16) {
    frame[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&id.to_be_bytes());
    frame[ETHERNET + 10..ETHERNET + 12].fill(0);
    let checksum = !fold(sum(&frame[ETHERNET..TCP]));
    frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&checksum.to_be_bytes());
}

/// What [`identify`] stored.
#[inline]
pub(crate) fn identification(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[ETHERNET + 4], frame[ETHERNET + 5]])
}

/// Octets of the timestamps option as it is usually sent, with two octets of padding before it.
pub(crate) const STAMP: usize = 12;

/// The timestamps option (RFC 7323 section 3.2, laid out as in its appendix A).
pub(crate) fn timestamps(val: u32, ecr: u32) -> [u8; STAMP] {
    let mut option = [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0];
    option[4..8].copy_from_slice(&val.to_be_bytes());
    option[8..].copy_from_slice(&ecr.to_be_bytes());
    option
}

/// Options of the peer's SYN: MSS and window scale (RFC 9293 section 3.2, RFC 7323 section 2.2), and
/// timestamps if they are wanted.
pub(crate) fn syn_options(mss: u16, scale: u8, stamped: bool) -> Vec<u8> {
    let [high, low] = mss.to_be_bytes();
    let mut options = vec![2, 4, high, low, 1, 3, 3, scale];
    if stamped {
        options.extend(timestamps(0, 0));
    }
    options
}

/// Whether the frame's TCP checksum is right.
pub(crate) fn checksum_is_good(frame: &[u8]) -> bool {
    fold(segment_sum(frame)) == 0xffff
}

/// The sum that a TCP checksum is the complement of: pseudo header, header and payload.
fn segment_sum(frame: &[u8]) -> u64 {
    let len = (frame.len() - TCP) as u64;
    sum(&frame[ETHERNET + 12..ETHERNET + 20]) + u64::from(PROTOCOL) + len + sum(&frame[TCP..])
}

/// Adds 16-bit words in network order (RFC 1071 section 1).
fn sum(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| {
        u64::from(u16::from_be_bytes([
            pair[0],
            pair.get(1).copied().unwrap_or(0),
        ]))
    };
    bytes.chunks(2).map(word).sum()
}

#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

#[inline]
fn words(value: u32) -> u64 {
    u64::from(value >> 16) + u64::from(value & 0xffff)
}

/// What differs between frames that were built alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// Port of the peer's end.
    pub(crate) port: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// Timestamp value and echo (RFC 7323 section 3.2), if frames carry them.
    pub(crate) stamp: (u32, u32),
}

/// Changes what differs between frames that were built alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patch {
    /// Sum of everything that is fixed.
    base: u64,
    /// Whether there is a timestamps option, as [`timestamps`] makes it.
    stamped: bool,
}

impl Patch {
    /// For copies of `frame`, as [`frame`] built it, whose numbers change.
    pub(crate) fn new(frame: &[u8]) -> Self {
        Patch::without(frame, 0)
    }

    /// For copies of `frame` whose first four octets of payload change too.
    pub(crate) fn with_mark(frame: &[u8]) -> Self {
        Patch::without(frame, 4)
    }

    fn without(frame: &[u8], mark: usize) -> Self {
        let head = TCP + usize::from(frame[TCP + 12] >> 4) * 4;
        let stamped = frame[HEADERS..head] == timestamps(0, 0);
        let mut plain = frame.to_vec();
        plain[TCP + 16..TCP + 18].fill(0);
        plain[TCP..TCP + 2].fill(0);
        plain[TCP + 4..TCP + 12].fill(0);
        plain[head..head + mark].fill(0);
        Patch {
            base: segment_sum(&plain),
            stamped,
        }
    }

    /// Sets the numbers of a frame without payload. Nothing of the frame is read.
    #[inline(always)]
    pub(crate) fn bare(&self, frame: &mut [u8], numbers: &Numbers) {
        self.store(frame, numbers, 0);
    }

    /// Sets the numbers, and the first four octets of the payload to `mark`. Nothing of the frame is read.
    #[inline]
    pub(crate) fn marked(&self, frame: &mut [u8], numbers: &Numbers, mark: u32) {
        self.store(frame, numbers, words(mark));
        let head = HEADERS + if self.stamped { STAMP } else { 0 };
        frame[head..head + 4].copy_from_slice(&mark.to_be_bytes());
    }

    #[inline(always)]
    fn store(&self, frame: &mut [u8], numbers: &Numbers, mark: u64) {
        let Numbers {
            port,
            seq,
            ack,
            stamp: (val, ecr),
        } = *numbers;
        let mut sum = self.base + mark + u64::from(port) + words(seq) + words(ack);
        if self.stamped {
            sum += words(val) + words(ecr);
            frame[HEADERS + 4..HEADERS + 8].copy_from_slice(&val.to_be_bytes());
            frame[HEADERS + 8..HEADERS + 12].copy_from_slice(&ecr.to_be_bytes());
        }
        // Of a length that is known, so that nothing below is out of bounds.
        let frame = &mut frame[..HEADERS];
        frame[TCP..TCP + 2].copy_from_slice(&port.to_be_bytes());
        frame[TCP + 4..TCP + 8].copy_from_slice(&seq.to_be_bytes());
        frame[TCP + 8..TCP + 12].copy_from_slice(&ack.to_be_bytes());
        frame[TCP + 16..TCP + 18].copy_from_slice(&(!fold(sum)).to_be_bytes());
    }
}

/// What the peer reads of a frame that the stack sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) wnd: u16,
    pub(crate) flags: u8,
    /// Octets of all headers.
    pub(crate) head: usize,
    /// Port of the peer's end.
    pub(crate) port: u16,
}

/// Reads the headers of a TCP frame; `None` for anything else.
#[inline]
pub(crate) fn read(head: &[u8]) -> Option<Seen> {
    let head: &[u8; HEADERS] = head.first_chunk()?;
    if head[12..14] != [0x08, 0x00] || head[ETHERNET] != 0x45 || head[ETHERNET + 9] != PROTOCOL {
        return None;
    }
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    Some(Seen {
        seq: word(TCP + 4),
        ack: word(TCP + 8),
        wnd: u16::from_be_bytes([head[TCP + 14], head[TCP + 15]]),
        flags: head[TCP + 13],
        head: TCP + usize::from(head[TCP + 12] >> 4) * 4,
        port: u16::from_be_bytes([head[TCP + 2], head[TCP + 3]]),
    })
}

/// The timestamp value among the options of a frame; 0 if there is none.
#[inline]
pub(crate) fn stamp(mut options: &[u8]) -> u32 {
    loop {
        match *options {
            [8, 10, a, b, c, d, ..] => return u32::from_be_bytes([a, b, c, d]),
            [1, ref rest @ ..] => options = rest,
            [kind, len, ..] if kind > 1 && len >= 2 => {
                options = options.get(usize::from(len)..).unwrap_or(&[])
            }
            _ => return 0,
        }
    }
}

/// The window scale among the options of a SYN-ACK; 0 if there is none.
pub(crate) fn window_scale(mut options: &[u8]) -> u8 {
    loop {
        match *options {
            [3, 3, scale, ..] => return scale,
            [1, ref rest @ ..] => options = rest,
            [kind, len, ..] if kind > 1 && len >= 2 => {
                options = options.get(usize::from(len)..).unwrap_or(&[])
            }
            _ => return 0,
        }
    }
}

/// The peer at 10.0.0.2 and the stack at 10.0.0.1.
pub(crate) fn any_ends() -> Ends {
    let end = |last, port| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), port);
    Ends {
        from_mac: [0x02, 0, 0, 0, 0, 2],
        to_mac: [0x02, 0, 0, 0, 0, 1],
        from: end(2, 40_000),
        to: end(1, 5_001),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_built_frame_has_a_right_checksum_and_reads_back() {
        let options = syn_options(1448, 9, false);
        let f = frame(&any_ends(), flags::SYN, 7, &options, &[]);
        assert!(checksum_is_good(&f));
        let seen = read(&f).unwrap();
        assert_eq!(
            (seen.flags, seen.wnd, seen.head),
            (flags::SYN, 7, HEADERS + 8)
        );
        assert_eq!(window_scale(&f[HEADERS..]), 9);
        assert_eq!(window_scale(&[]), 0);
        assert_eq!(window_scale(&[2, 0, 0]), 0);
    }

    #[test]
    fn a_frame_keeps_its_identification_and_a_right_header_checksum() {
        let mut f = frame(&any_ends(), flags::ACK, 7, &[], &[1, 2, 3]);
        identify(&mut f, 0x1234);
        assert_eq!(identification(&f), 0x1234);
        assert_eq!(fold(sum(&f[ETHERNET..TCP])), 0xffff);
        assert!(checksum_is_good(&f));
    }

    #[test]
    fn a_syn_with_options_is_patched_rightly() {
        let options = syn_options(1448, 9, true);
        let mut syn = frame(&any_ends(), flags::SYN, 7, &options, &[]);
        let numbers = Numbers {
            port: 40_063,
            seq: 0x1234_5678,
            ..Numbers::default()
        };
        Patch::new(&syn).bare(&mut syn, &numbers);
        assert!(checksum_is_good(&syn));
    }

    #[test]
    fn a_timestamp_is_found_among_other_options() {
        assert_eq!(stamp(&timestamps(0x0102_0304, 9)), 0x0102_0304);
        assert_eq!(stamp(&syn_options(1448, 9, true)), 0);
        assert_eq!(stamp(&[2, 4, 1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 0, 1, 1]), 5);
        for broken in [&[][..], &[8, 10, 0], &[2, 0, 8], &[0; 12]] {
            assert_eq!(stamp(broken), 0);
        }
    }

    #[test]
    fn a_patched_frame_has_a_right_checksum() {
        for stamped in [false, true] {
            let options = if stamped {
                timestamps(0, 0).to_vec()
            } else {
                Vec::new()
            };
            for len in [0usize, 64, 512, 1447, 1448] {
                let payload: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
                let built = frame(&any_ends(), flags::ACK, 0xffff, &options, &payload);
                let mut f = built.clone();
                for (seq, ack) in [(0, 0), (0xffff_fff0, 0x1234_5678), (1, 0xffff_ffff)] {
                    let numbers = Numbers {
                        port: 41_000,
                        seq,
                        ack,
                        stamp: (seq ^ 7, !ack),
                    };
                    if len == 0 {
                        Patch::new(&built).bare(&mut f, &numbers);
                    } else {
                        Patch::with_mark(&built).marked(&mut f, &numbers, seq ^ 0x00ff_1234);
                    }
                    assert!(checksum_is_good(&f), "{len} octets, {seq:#x}");
                    assert_eq!(read(&f).map(|s| (s.seq, s.ack)), Some((seq, ack)));
                    if stamped {
                        assert_eq!(stamp(&f[HEADERS..]), seq ^ 7);
                    }
                }
            }
        }
    }
}
