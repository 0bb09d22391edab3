//! Frames as the far side writes and reads them: nothing of it comes from the stack.

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;

/// Bytes before the TCP header: Ethernet and IPv4 without options.
pub(crate) const LOWER: usize = 34;

pub(crate) const STACK: [u8; 4] = [10, 0, 0, 1];
pub(crate) const FAR: [u8; 4] = [10, 0, 0, 2];
pub(crate) const STACK_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// The fields of a TCP segment (RFC 9293 section 3.1) that a model of a peer needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) wnd: u16,
    /// The ECN field of the IP header (RFC 3168 section 5).
    pub(crate) ecn: u8,
    /// DSCP and time to live, as the stack sent them.
    pub(crate) dscp: u8,
    pub(crate) ttl: u8,
    pub(crate) mss: Option<u16>,
    pub(crate) scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    pub(crate) timestamps: Option<(u32, u32)>,
    pub(crate) sack: Vec<(u32, u32)>,
    pub(crate) payload: Vec<u8>,
}

impl Segment {
    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    fn options(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(mss) = self.mss {
            out.extend([2, 4]);
            out.extend(mss.to_be_bytes());
        }
        if let Some(scale) = self.scale {
            out.extend([1, 3, 3, scale]);
        }
        if self.sack_permitted {
            out.extend([1, 1, 4, 2]);
        }
        if let Some((value, echo)) = self.timestamps {
            out.extend([1, 1, 8, 10]);
            out.extend(value.to_be_bytes());
            out.extend(echo.to_be_bytes());
        }
        if !self.sack.is_empty() {
            out.extend([1, 1, 5, 2 + 8 * self.sack.len() as u8]);
            for (left, right) in &self.sack {
                out.extend(left.to_be_bytes());
                out.extend(right.to_be_bytes());
            }
        }
        out
    }

    /// The frame from the far side to the stack.
    pub(crate) fn frame(&self, from_mac: [u8; 6]) -> Vec<u8> {
        let options = self.options();
        let header = 20 + options.len();
        let total = 20 + header + self.payload.len();
        let mut frame = Vec::with_capacity(14 + total);
        frame.extend(STACK_MAC);
        frame.extend(from_mac);
        frame.extend([0x08, 0x00]);
        frame.extend([0x45, self.ecn]);
        frame.extend((total as u16).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame.extend(FAR);
        frame.extend(STACK);
        let sum = !fold(sum(&frame[14..LOWER]));
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame.extend(self.src_port.to_be_bytes());
        frame.extend(self.dst_port.to_be_bytes());
        frame.extend(self.seq.to_be_bytes());
        frame.extend(self.ack.to_be_bytes());
        frame.extend([(header as u8 / 4) << 4, self.flags]);
        frame.extend(self.wnd.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(options);
        frame.extend(&self.payload);
        let sum = !fold(pseudo(FAR, STACK, total - 20) + sum_of_tcp(&frame));
        frame[LOWER + 16..LOWER + 18].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    /// Reads a frame that the stack sent; `None` if it is no TCP segment or damaged.
    pub(crate) fn read(frame: &[u8]) -> Option<Segment> {
        if frame.len() < LOWER + 20 || frame[12..14] != [0x08, 0x00] || frame[14] != 0x45 {
            return None;
        }
        let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        let ip_is_good = fold(sum(&frame[14..LOWER])) == 0xffff;
        if frame[23] != 6 || 14 + total > frame.len() || total < 40 || !ip_is_good {
            return None;
        }
        let frame = &frame[..14 + total];
        let pseudo = pseudo(STACK, FAR, total - 20);
        let good = fold(pseudo + sum_of_tcp(frame)) == 0xffff;
        let header = usize::from(frame[LOWER + 12] >> 4) * 4;
        if !good || header < 20 || LOWER + header > frame.len() {
            return None;
        }
        let half = |at: usize| u16::from_be_bytes([frame[LOWER + at], frame[LOWER + at + 1]]);
        let word = |at: usize| u32::from(half(at)) << 16 | u32::from(half(at + 2));
        let mut segment = Segment {
            src_port: half(0),
            dst_port: half(2),
            seq: word(4),
            ack: word(8),
            flags: frame[LOWER + 13],
            wnd: half(14),
            ecn: frame[15] & 0b11,
            dscp: frame[15] >> 2,
            ttl: frame[22],
            payload: frame[LOWER + header..].to_vec(),
            ..Segment::default()
        };
        segment.read_options(&frame[LOWER + 20..LOWER + header])?;
        Some(segment)
    }

    fn read_options(&mut self, mut bytes: &[u8]) -> Option<()> {
        while let [kind, rest @ ..] = bytes {
            match kind {
                0 => break,
                1 => bytes = rest,
                _ => {
                    let len = usize::from(*rest.first()?);
                    let body = bytes.get(2..len)?;
                    match (kind, body) {
                        (2, [a, b]) => self.mss = Some(u16::from_be_bytes([*a, *b])),
                        (3, [shift]) => self.scale = Some(*shift),
                        (4, []) => self.sack_permitted = true,
                        (5, blocks) => {
                            let edge = |b: &[u8]| u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
                            let blocks = blocks.chunks_exact(8);
                            self.sack = blocks.map(|b| (edge(b), edge(&b[4..]))).collect();
                        }
                        (8, [a, b, c, d, e, f, g, h]) => {
                            self.timestamps = Some((
                                u32::from_be_bytes([*a, *b, *c, *d]),
                                u32::from_be_bytes([*e, *f, *g, *h]),
                            ));
                        }
                        _ => {}
                    }
                    bytes = &bytes[len..];
                }
            }
        }
        Some(())
    }
}

/// The protocol number of ICMP.
pub(crate) const ICMP: u8 = 1;
/// The protocol number of UDP.
pub(crate) const UDP: u8 = 17;

/// Whether a frame holds an IPv4 packet of this protocol.
pub(crate) fn has_protocol(frame: &[u8], protocol: u8) -> bool {
    frame[12..14] == [0x08, 0x00] && frame[23] == protocol
}

/// A UDP datagram from the far side to the stack.
pub(crate) fn datagram(from_mac: [u8; 6], src_port: u16, dst_port: u16, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let mut frame = Vec::with_capacity(LOWER + usize::from(len));
    frame.extend(STACK_MAC);
    frame.extend(from_mac);
    frame.extend([0x08, 0x00, 0x45, 0]);
    frame.extend((20 + len).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
    frame.extend(FAR);
    frame.extend(STACK);
    let checksum = !fold(sum(&frame[14..LOWER]));
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(src_port.to_be_bytes());
    frame.extend(dst_port.to_be_bytes());
    frame.extend(len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    let pseudo = sum(&FAR) + sum(&STACK) + u64::from(UDP) + u64::from(len);
    let checksum = match !fold(pseudo + sum(&frame[LOWER..])) {
        0 => 0xffff,
        checksum => checksum,
    };
    frame[LOWER + 6..LOWER + 8].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// An ARP message from the far side: a reply to the stack, or a question about it.
pub(crate) fn arp(from_mac: [u8; 6], reply: bool) -> Vec<u8> {
    let mut frame = Vec::with_capacity(42);
    frame.extend(STACK_MAC);
    frame.extend(from_mac);
    frame.extend([
        0x08,
        0x06,
        0,
        1,
        0x08,
        0,
        6,
        4,
        0,
        if reply { 2 } else { 1 },
    ]);
    frame.extend(from_mac);
    frame.extend(FAR);
    frame.extend(if reply { STACK_MAC } else { [0; 6] });
    frame.extend(STACK);
    frame
}

/// An ICMP error about a frame of the stack (RFC 792): with an MTU, that it was too big for a
/// network behind (RFC 1191 section 4), else that it did not get there.
pub(crate) fn network_error(from_mac: [u8; 6], about: &[u8], mtu: Option<u16>) -> Vec<u8> {
    let mut frame = Vec::with_capacity(70);
    frame.extend(STACK_MAC);
    frame.extend(from_mac);
    frame.extend([0x08, 0x00, 0x45, 0, 0, 56, 0, 0, 0, 0, 64, 1, 0, 0]);
    frame.extend(FAR);
    frame.extend(STACK);
    let header = !fold(sum(&frame[14..LOWER]));
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    frame.extend([3, if mtu.is_some() { 4 } else { 1 }, 0, 0, 0, 0]);
    frame.extend(mtu.unwrap_or(0).to_be_bytes());
    frame.extend(&about[14..LOWER + 8]);
    let icmp = !fold(sum(&frame[LOWER..]));
    frame[LOWER + 2..LOWER + 4].copy_from_slice(&icmp.to_be_bytes());
    frame
}

/// Whether the stack asks for our address.
pub(crate) fn asks_for_us(frame: &[u8]) -> bool {
    frame.len() >= 42
        && frame[12..14] == [0x08, 0x06]
        && frame[20..22] == [0, 1]
        && frame[38..42] == FAR
}

fn sum(bytes: &[u8]) -> u64 {
    let mut sum = 0;
    let mut words = bytes.chunks_exact(2);
    for word in &mut words {
        sum += u64::from(u16::from_be_bytes([word[0], word[1]]));
    }
    sum + words
        .remainder()
        .first()
        .map_or(0, |last| u64::from(*last) << 8)
}

fn sum_of_tcp(frame: &[u8]) -> u64 {
    sum(&frame[LOWER..])
}

fn pseudo(from: [u8; 4], to: [u8; 4], len: usize) -> u64 {
    sum(&from) + sum(&to) + 6 + len as u64
}

/// RFC 1071, without the complement.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Completes the checksum of a TCP frame as a device does that was handed a partial one. Says
/// whether the field held what it must: the sum of the pseudo-header.
pub(crate) fn complete(frame: &mut [u8]) -> bool {
    let pseudo = fold(pseudo(STACK, FAR, frame.len() - LOWER));
    let field = LOWER + 16..LOWER + 18;
    if frame[field.clone()] != pseudo.to_be_bytes() {
        return false;
    }
    let sum = !fold(sum_of_tcp(frame));
    frame[field].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Takes back the checksum of a frame for the stack, as a sender on the same machine leaves it: the
/// sum of the pseudo-header only.
pub(crate) fn leave_partial(frame: &mut [u8]) {
    let pseudo = fold(pseudo(FAR, STACK, frame.len() - LOWER));
    frame[LOWER + 16..LOWER + 18].copy_from_slice(&pseudo.to_be_bytes());
}
