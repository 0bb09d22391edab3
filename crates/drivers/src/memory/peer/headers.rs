//! Ethernet, IPv4, TCP and UDP headers of prebuilt frames, and their checksums.
//!
//! A simulated peer builds each kind of frame once, with [`tcp_frame`] or [`udp_frame`], and sends
//! copies of it. A [`Patch`] stores the few fields that differ between copies, and updates the
//! checksum as in RFC 1624: it knows the sum of all constant words and adds the changed ones.
//! [`TcpHeader`] parses the frames that the stack sends.

use crate::ETHERNET_HEADER_LEN as ETHERNET;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Length of an IPv4 header without options, in bytes.
const IPV4: usize = 20;
/// Bytes before the payload of a TCP frame without TCP options: Ethernet, IPv4 and TCP headers.
pub const HEADERS_LEN: usize = TCP + 20;
/// Difference between the lengths of an IPv6 and an IPv4 header, in bytes.
pub const IPV6_LONGER: usize = 20;
/// Length of the option that [`timestamps`] builds, in bytes, including two of padding before it.
pub const TIMESTAMPS_LEN: usize = 12;

/// Offset of the TCP or UDP header.
const TCP: usize = ETHERNET + IPV4;
const TCP_PROTOCOL: u8 = 6;
const UDP_PROTOCOL: u8 = 17;
/// Longest IPv4 packet, in bytes.
pub(super) const LONGEST_PACKET: usize = u16::MAX as usize;

/// TCP's control bits (RFC 9293 section 3.1).
pub mod flags {
    /// No more data follows.
    pub const FIN: u8 = 0x01;
    /// The sequence number is the first one.
    pub const SYN: u8 = 0x02;
    /// The connection is reset.
    pub const RST: u8 = 0x04;
    /// Deliver the data to the application now.
    pub const PSH: u8 = 0x08;
    /// The acknowledgment number is valid.
    pub const ACK: u8 = 0x10;
}

/// Addresses of both ends of a connection; the sender of the frames is `from`.
///
/// The default is a peer at 10.0.0.2, port 40000, and a stack at 10.0.0.1, port 5001, with the
/// Ethernet addresses 02:00:00:00:00:02 and 02:00:00:00:00:01.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ends {
    /// Ethernet address of the sender.
    pub from_mac: [u8; 6],
    /// Ethernet address of the receiver.
    pub to_mac: [u8; 6],
    /// IP address and port of the sender.
    pub from: SocketAddrV4,
    /// IP address and port of the receiver.
    pub to: SocketAddrV4,
}

impl Default for Ends {
    fn default() -> Self {
        let end = |last, port| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), port);
        Ends {
            from_mac: [0x02, 0, 0, 0, 0, 2],
            to_mac: [0x02, 0, 0, 0, 0, 1],
            from: end(2, 40_000),
            to: end(1, 5_001),
        }
    }
}

impl Ends {
    /// The addresses of frames in the other direction.
    #[must_use]
    pub fn reversed(&self) -> Ends {
        Ends {
            from_mac: self.to_mac,
            to_mac: self.from_mac,
            from: self.to,
            to: self.from,
        }
    }
}

/// Ethernet and IPv4 headers of a packet with `len` bytes after the IPv4 header.
fn packet(ends: &Ends, protocol: u8, len: usize) -> Vec<u8> {
    assert!(
        IPV4 + len <= LONGEST_PACKET,
        "{len} bytes do not fit a packet"
    );
    let total = (IPV4 + len) as u16;
    let mut f = Vec::with_capacity(TCP + len);
    f.extend(ends.to_mac);
    f.extend(ends.from_mac);
    f.extend([0x08, 0x00, 0x45, 0]);
    f.extend(total.to_be_bytes());
    // No identification, do not fragment, 64 hops.
    f.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    f.extend(ends.from.ip().octets());
    f.extend(ends.to.ip().octets());
    let header_checksum = !fold(sum(&f[ETHERNET..]));
    f[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&header_checksum.to_be_bytes());
    f.extend(ends.from.port().to_be_bytes());
    f.extend(ends.to.port().to_be_bytes());
    f
}

/// A complete frame with sequence and acknowledgment number 0, window `wnd`, and correct checksums.
///
/// # Panics
/// If `options` are longer than 40 bytes or not a multiple of 4 (RFC 9293 section 3.1), or if the
/// IPv4 packet would be longer than 65,535 bytes.
pub fn tcp_frame(ends: &Ends, flags: u8, wnd: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    assert!(
        options.len().is_multiple_of(4) && options.len() <= 40,
        "{} bytes of options",
        options.len()
    );
    let mut f = packet(ends, TCP_PROTOCOL, 20 + options.len() + payload.len());
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

/// A complete frame with a UDP datagram and correct checksums.
///
/// # Panics
/// If the IPv4 packet would be longer than 65,535 bytes.
pub fn udp_frame(ends: &Ends, payload: &[u8]) -> Vec<u8> {
    let mut f = packet(ends, UDP_PROTOCOL, 8 + payload.len());
    let len = (8 + payload.len()) as u16;
    f.extend(len.to_be_bytes());
    f.extend([0, 0]);
    f.extend(payload);
    let pseudo = sum(&f[ETHERNET + 12..TCP]) + u64::from(UDP_PROTOCOL) + u64::from(len);
    let checksum = match !fold(pseudo + sum(&f[TCP..])) {
        0 => 0xffff,
        checksum => checksum,
    };
    f[TCP + 6..TCP + 8].copy_from_slice(&checksum.to_be_bytes());
    f
}

/// A complete frame with an ARP reply (RFC 826) with the sender's Ethernet address.
pub fn arp_reply(ends: &Ends) -> Vec<u8> {
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

/// Whether a frame is an ARP message.
pub(super) fn is_arp(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x08, 0x06])
}

/// Stores `id` as the identification of an IPv4 frame. The field has no use where fragments are
/// forbidden (RFC 6864), so here it holds the number of a prebuilt frame.
pub(super) fn identify(frame: &mut [u8], id: u16) {
    frame[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&id.to_be_bytes());
    frame[ETHERNET + 10..ETHERNET + 12].fill(0);
    let checksum = !fold(sum(&frame[ETHERNET..TCP]));
    frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&checksum.to_be_bytes());
}

/// Returns the number that [`identify`] stored; `None` for a frame too short to have it.
#[inline]
pub(super) fn identification(frame: &[u8]) -> Option<u16> {
    let id = frame.get(ETHERNET + 4..ETHERNET + 6)?;
    Some(u16::from_be_bytes([id[0], id[1]]))
}

/// The timestamps option (RFC 7323 section 3.2, laid out as in its appendix A) with TSval and
/// TSecr.
pub fn timestamps(val: u32, ecr: u32) -> [u8; TIMESTAMPS_LEN] {
    let mut option = [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0];
    option[4..8].copy_from_slice(&val.to_be_bytes());
    option[8..].copy_from_slice(&ecr.to_be_bytes());
    option
}

/// Options of a SYN: MSS in bytes and window scale (RFC 9293 section 3.2, RFC 7323 section 2.2),
/// and timestamps of zero if `stamped`.
pub fn syn_options(mss: u16, scale: u8, stamped: bool) -> Vec<u8> {
    let [high, low] = mss.to_be_bytes();
    let mut options = vec![2, 4, high, low, 1, 3, 3, scale];
    if stamped {
        options.extend(timestamps(0, 0));
    }
    options
}

/// Whether a frame, with an IPv4 header without options, has a correct TCP checksum. False for a
/// frame that is too short.
pub fn checksum_is_good(frame: &[u8]) -> bool {
    frame.len() >= HEADERS_LEN && fold(segment_sum(frame)) == 0xffff
}

/// The sum whose complement is the TCP checksum: pseudo-header, header and payload.
fn segment_sum(frame: &[u8]) -> u64 {
    header_sum(frame, frame.len())
}

/// As `segment_sum`, over the first bytes (`head`) of a frame of `len` bytes.
pub(super) fn header_sum(head: &[u8], len: usize) -> u64 {
    let len = (len - TCP) as u64;
    sum(&head[ETHERNET + 12..ETHERNET + 20]) + u64::from(TCP_PROTOCOL) + len + sum(&head[TCP..])
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
pub(super) fn fold(sum: u64) -> u16 {
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

/// The fields that differ between copies of a TCP frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Port of the sender.
    pub source_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// TSval and TSecr (RFC 7323 section 3.2). Ignored for frames without the option.
    pub timestamps: (u32, u32),
}

/// Stores [`Numbers`] and the matching checksum into copies of one TCP frame. Never reads the copy.
///
/// ```
/// use dominoes_drivers::memory::peer::headers::{self, Ends, Numbers, Patch, TcpHeader, flags};
///
/// let mut frame = headers::tcp_frame(&Ends::default(), flags::ACK, u16::MAX, &[], b"payload");
/// let patch = Patch::new(&frame);
/// let numbers = Numbers { source_port: 40_001, seq: 7, ack: 9, ..Numbers::default() };
/// patch.bare(&mut frame, &numbers);
/// assert!(headers::checksum_is_good(&frame));
/// assert_eq!(TcpHeader::read(&frame).map(|header| (header.seq, header.ack)), Some((7, 9)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Patch {
    /// Sum of all constant words.
    base: u64,
    /// Whether the frame has a timestamps option as built by [`timestamps`].
    stamped: bool,
}

impl Patch {
    /// A patch for copies of `frame`, which [`tcp_frame`] built. Bytes before the TCP header are
    /// ignored, so for an IPv6 frame pass its bytes from [`IPV6_LONGER`] on.
    ///
    /// # Panics
    /// If `frame` is shorter than its TCP header.
    pub fn new(frame: &[u8]) -> Self {
        Patch::without(frame, 0)
    }

    /// A patch for copies of `frame` that also differ in the first four bytes of payload.
    ///
    /// # Panics
    /// If `frame` is shorter than its TCP header plus four bytes.
    pub fn with_mark(frame: &[u8]) -> Self {
        Patch::without(frame, 4)
    }

    fn without(frame: &[u8], mark: usize) -> Self {
        let head = TCP + usize::from(frame[TCP + 12] >> 4) * 4;
        let stamped = frame[HEADERS_LEN..head] == timestamps(0, 0);
        let changes = [TCP..TCP + 2, TCP + 4..TCP + 12, head..head + mark];
        let changing: u64 = changes.into_iter().map(|at| sum(&frame[at])).sum();
        // The complement of the checksum is the sum of all other words, including the changing
        // ones (RFC 1624).
        let checksum = u16::from_be_bytes([frame[TCP + 16], frame[TCP + 17]]);
        Patch {
            base: u64::from(!checksum) + u64::from(!fold(changing)),
            stamped,
        }
    }

    /// Stores the numbers into `frame`, a copy of this patch's frame.
    ///
    /// # Panics
    /// If `frame` is shorter than the headers.
    #[inline(always)]
    pub fn bare(&self, frame: &mut [u8], numbers: &Numbers) {
        self.store(frame, numbers, 0);
    }

    /// Stores the numbers, and `mark` into the first four bytes of the payload in network order.
    /// The patch must come from [`with_mark`](Self::with_mark).
    ///
    /// # Panics
    /// If `frame` is shorter than the headers plus the mark.
    #[inline]
    pub fn marked(&self, frame: &mut [u8], numbers: &Numbers, mark: u32) {
        self.store(frame, numbers, words(mark));
        let head = HEADERS_LEN + if self.stamped { TIMESTAMPS_LEN } else { 0 };
        frame[head..head + 4].copy_from_slice(&mark.to_be_bytes());
    }

    #[inline(always)]
    fn store(&self, frame: &mut [u8], numbers: &Numbers, mark: u64) {
        let Numbers {
            source_port,
            seq,
            ack,
            timestamps: (val, ecr),
        } = *numbers;
        let mut sum = self.base + mark + u64::from(source_port) + words(seq) + words(ack);
        if self.stamped {
            sum += words(val) + words(ecr);
            frame[HEADERS_LEN + 4..HEADERS_LEN + 8].copy_from_slice(&val.to_be_bytes());
            frame[HEADERS_LEN + 8..HEADERS_LEN + 12].copy_from_slice(&ecr.to_be_bytes());
        }
        // A constant length, so that the compiler drops the bounds checks below.
        let frame = &mut frame[..HEADERS_LEN];
        frame[TCP..TCP + 2].copy_from_slice(&source_port.to_be_bytes());
        frame[TCP + 4..TCP + 8].copy_from_slice(&seq.to_be_bytes());
        frame[TCP + 8..TCP + 12].copy_from_slice(&ack.to_be_bytes());
        frame[TCP + 16..TCP + 18].copy_from_slice(&(!fold(sum)).to_be_bytes());
    }
}

/// The fields of a TCP frame that a simulated peer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpHeader {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// Window field, not scaled.
    pub wnd: u16,
    /// Control bits, as in [`flags`].
    pub flags: u8,
    /// Length of all headers, in bytes, according to the data offset. The frame may be shorter.
    pub headers_len: usize,
    /// Port of the receiver.
    pub destination_port: u16,
}

impl TcpHeader {
    /// Parses the first bytes of a frame. `None` for anything but TCP over IPv4 without IP
    /// options. Does not verify checksums.
    #[inline]
    pub fn read(head: &[u8]) -> Option<TcpHeader> {
        let head: &[u8; HEADERS_LEN] = head.first_chunk()?;
        let is_tcp = head[12..14] == [0x08, 0x00]
            && head[ETHERNET] == 0x45
            && head[ETHERNET + 9] == TCP_PROTOCOL;
        is_tcp.then(|| TcpHeader::behind(head))
    }

    /// As [`TcpHeader::read`], for TCP over IPv6 without extension headers.
    #[inline]
    pub fn read_ipv6(head: &[u8]) -> Option<TcpHeader> {
        let head: &[u8; IPV6_LONGER + HEADERS_LEN] = head.first_chunk()?;
        let last = head.last_chunk()?;
        let is_tcp = head[12..14] == [0x86, 0xdd] && head[ETHERNET + 6] == TCP_PROTOCOL;
        is_tcp.then(|| TcpHeader {
            headers_len: IPV6_LONGER + TcpHeader::behind(last).headers_len,
            ..TcpHeader::behind(last)
        })
    }

    #[inline]
    fn behind(head: &[u8; HEADERS_LEN]) -> TcpHeader {
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        TcpHeader {
            seq: word(TCP + 4),
            ack: word(TCP + 8),
            wnd: u16::from_be_bytes([head[TCP + 14], head[TCP + 15]]),
            flags: head[TCP + 13],
            headers_len: TCP + usize::from(head[TCP + 12] >> 4) * 4,
            destination_port: u16::from_be_bytes([head[TCP + 2], head[TCP + 3]]),
        }
    }
}

/// The TSval in the TCP options; 0 if there is none.
#[inline]
pub fn timestamp(mut options: &[u8]) -> u32 {
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

/// The window scale in the TCP options of a SYN, at most 14 (RFC 7323 section 2.3); 0 if none.
pub fn window_scale(mut options: &[u8]) -> u8 {
    loop {
        match *options {
            [3, 3, scale, ..] => return scale.min(14),
            [1, ref rest @ ..] => options = rest,
            [kind, len, ..] if kind > 1 && len >= 2 => {
                options = options.get(usize::from(len)..).unwrap_or(&[])
            }
            _ => return 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_built_frame_has_a_right_checksum_and_reads_back() {
        let options = syn_options(1448, 9, false);
        let f = tcp_frame(&Ends::default(), flags::SYN, 7, &options, &[]);
        assert!(checksum_is_good(&f));
        let seen = TcpHeader::read(&f).unwrap();
        assert_eq!(
            (seen.flags, seen.wnd, seen.headers_len),
            (flags::SYN, 7, HEADERS_LEN + 8)
        );
        assert_eq!(window_scale(&f[HEADERS_LEN..]), 9);
        assert_eq!(window_scale(&[1, 3, 3, 255]), 14);
        assert_eq!(window_scale(&[]), 0);
        assert_eq!(window_scale(&[2, 0, 0]), 0);
    }

    #[test]
    fn a_frame_keeps_its_identification_and_a_right_header_checksum() {
        let mut f = tcp_frame(&Ends::default(), flags::ACK, 7, &[], &[1, 2, 3]);
        identify(&mut f, 0x1234);
        assert_eq!(identification(&f), Some(0x1234));
        assert_eq!(fold(sum(&f[ETHERNET..TCP])), 0xffff);
        assert!(checksum_is_good(&f));
    }

    #[test]
    fn a_syn_with_options_is_patched_rightly() {
        let options = syn_options(1448, 9, true);
        let mut syn = tcp_frame(&Ends::default(), flags::SYN, 7, &options, &[]);
        let numbers = Numbers {
            source_port: 40_063,
            seq: 0x1234_5678,
            ..Numbers::default()
        };
        Patch::new(&syn).bare(&mut syn, &numbers);
        assert!(checksum_is_good(&syn));
    }

    #[test]
    fn a_timestamp_is_found_among_other_options() {
        assert_eq!(timestamp(&timestamps(0x0102_0304, 9)), 0x0102_0304);
        assert_eq!(timestamp(&syn_options(1448, 9, true)), 0);
        assert_eq!(
            timestamp(&[2, 4, 1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 0, 1, 1]),
            5
        );
        for broken in [&[][..], &[8, 10, 0], &[2, 0, 8], &[0; 12]] {
            assert_eq!(timestamp(broken), 0);
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
                let built = tcp_frame(&Ends::default(), flags::ACK, 0xffff, &options, &payload);
                let mut f = built.clone();
                for (seq, ack) in [(0, 0), (0xffff_fff0, 0x1234_5678), (1, 0xffff_ffff)] {
                    let numbers = Numbers {
                        source_port: 41_000,
                        seq,
                        ack,
                        timestamps: (seq ^ 7, !ack),
                    };
                    if len == 0 {
                        Patch::new(&built).bare(&mut f, &numbers);
                    } else {
                        Patch::with_mark(&built).marked(&mut f, &numbers, seq ^ 0x00ff_1234);
                    }
                    assert!(checksum_is_good(&f), "{len} bytes, {seq:#x}");
                    assert_eq!(
                        TcpHeader::read(&f).map(|s| (s.seq, s.ack)),
                        Some((seq, ack))
                    );
                    if stamped {
                        assert_eq!(timestamp(&f[HEADERS_LEN..]), seq ^ 7);
                    }
                }
            }
        }
    }
}
