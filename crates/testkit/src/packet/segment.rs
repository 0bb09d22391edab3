//! TCP segments.

use super::{
    Address, ETHERNET, FAR, FIN, LOWER, Path, Right, STACK, SYN, TCP, address, finish, half,
    headers, protocol, sum, transport_sum, word,
};

/// The header of a TCP segment (RFC 9293 section 3.1), read in place. Checksums are not verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Address of the sender.
    pub from: Address,
    /// Address of the receiver.
    pub to: Address,
    /// Port of the sender.
    pub src_port: u16,
    /// Port of the receiver.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// All of the control bits.
    pub flags: u8,
    /// The window field, not scaled.
    pub wnd: u16,
    /// TSval of the timestamps option (RFC 7323 section 3.2).
    pub timestamp: Option<u32>,
    /// The range of the payload in the frame.
    pub payload: (usize, usize),
}

impl Header {
    /// Reads a frame; `None` if it has no TCP segment after an IPv4 header without options.
    pub fn read(frame: &[u8]) -> Option<Header> {
        if protocol(frame)? != TCP || frame[ETHERNET] != 0x45 || frame.len() < LOWER + 20 {
            return None;
        }
        let begin = LOWER + usize::from(frame[LOWER + 12] >> 4) * 4;
        let end = ETHERNET + usize::from(half(frame, 16));
        (LOWER + 20 <= begin && begin <= end && end <= frame.len()).then(|| Header {
            from: address(frame, 26),
            to: address(frame, 30),
            src_port: half(frame, LOWER),
            dst_port: half(frame, LOWER + 2),
            seq: word(frame, LOWER + 4),
            ack: word(frame, LOWER + 8),
            flags: frame[LOWER + 13],
            wnd: half(frame, LOWER + 14),
            timestamp: timestamp(&frame[LOWER + 20..begin]),
            payload: (begin, end),
        })
    }

    /// Whether all of these control bits are set.
    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Bytes of payload.
    pub const fn payload_len(&self) -> u32 {
        (self.payload.1 - self.payload.0) as u32
    }

    /// The sequence number after the segment.
    pub const fn end(&self) -> u32 {
        end_of(self.seq, self.flags, self.payload_len())
    }
}

/// Finds TSval in these options.
fn timestamp(mut options: &[u8]) -> Option<u32> {
    loop {
        match *options {
            [8, 10, _, _, _, _, ..] => return Some(word(options, 2)),
            [1, ref rest @ ..] => options = rest,
            [kind, len, ..] if kind > 1 && len >= 2 => options = options.get(usize::from(len)..)?,
            _ => return None,
        }
    }
}

const fn end_of(seq: u32, flags: u8, payload_len: u32) -> u32 {
    let controls = (flags & SYN != 0) as u32 + (flags & FIN != 0) as u32;
    seq.wrapping_add(payload_len).wrapping_add(controls)
}

/// The fields of a TCP segment (RFC 9293 section 3.1) that a peer needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Port of the sender.
    pub src_port: u16,
    /// Port of the receiver.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// All of the control bits.
    pub flags: u8,
    /// The window field, not scaled.
    pub wnd: u16,
    /// The ECN field of the IP header (RFC 3168 section 5).
    pub ecn: u8,
    /// DSCP of the IP header.
    pub dscp: u8,
    /// Time to live of a received segment. Written segments have 64.
    pub ttl: u8,
    /// Maximum segment size, in bytes.
    pub mss: Option<u16>,
    /// Shift of the windows.
    pub scale: Option<u8>,
    /// Whether SACK blocks may be sent.
    pub sack_permitted: bool,
    /// TSval and TSecr (RFC 7323 section 3.2).
    pub timestamps: Option<(u32, u32)>,
    /// Left and right edges of SACK blocks (RFC 2018).
    pub sack: Vec<(u32, u32)>,
    /// Bytes of further options, for a written segment.
    pub more_options: Vec<u8>,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Segment {
    /// Whether all of these control bits are set.
    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// The sequence number after the segment.
    pub const fn end(&self) -> u32 {
        end_of(self.seq, self.flags, self.payload.len() as u32)
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
        out.extend(&self.more_options);
        out
    }

    /// The frame of the segment, with right checksums.
    pub fn frame(&self, path: Path) -> Vec<u8> {
        let mut frame = headers(path, TCP);
        frame[15] = self.dscp << 2 | self.ecn;
        // Don't Fragment is set, and so there is no identification.
        frame[18..22].copy_from_slice(&[0, 0, 0x40, 0]);
        let (ports, numbers) = ((self.src_port, self.dst_port), (self.seq, self.ack));
        tcp_header(
            &mut frame,
            ports,
            numbers,
            self.flags,
            self.wnd,
            &self.options(),
        );
        frame.extend(&self.payload);
        finish(&mut frame, Right::ALL);
        frame
    }

    /// Reads a frame from the stack to the far side; `None` if it has no such segment, or is
    /// damaged.
    pub fn sent(frame: &[u8]) -> Option<Segment> {
        let header = Header::read(frame)?;
        ((header.from, header.to) == (STACK, FAR)).then(|| Segment::read(frame))?
    }

    /// Reads a frame; `None` if it has no TCP segment after an IPv4 header without options, or is
    /// damaged.
    pub fn read(frame: &[u8]) -> Option<Segment> {
        let header = Header::read(frame)?;
        let (begin, end) = header.payload;
        let transport = transport_sum(header.from, header.to, TCP, &frame[LOWER..end]);
        if (sum(&frame[ETHERNET..LOWER]), transport) != (0xffff, 0xffff) {
            return None;
        }
        let mut segment = Segment {
            src_port: header.src_port,
            dst_port: header.dst_port,
            seq: header.seq,
            ack: header.ack,
            flags: header.flags,
            wnd: header.wnd,
            ecn: frame[15] & 0b11,
            dscp: frame[15] >> 2,
            ttl: frame[22],
            payload: frame[begin..end].to_vec(),
            ..Segment::default()
        };
        segment.read_options(&frame[LOWER + 20..begin])?;
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
                        (2, [_, _]) => self.mss = Some(half(body, 0)),
                        (3, [shift]) => self.scale = Some(*shift),
                        (4, []) => self.sack_permitted = true,
                        (5, blocks) => {
                            let blocks = blocks.chunks_exact(8);
                            self.sack = blocks.map(|b| (word(b, 0), word(b, 4))).collect();
                        }
                        (8, [_, _, _, _, _, _, _, _]) => {
                            self.timestamps = Some((word(body, 0), word(body, 4)));
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

/// Appends a TCP header, with at most 40 bytes of options; [`finish`] sets the checksum.
pub fn tcp_header(
    frame: &mut Vec<u8>,
    ports: (u16, u16),
    (seq, ack): (u32, u32),
    flags: u8,
    window: u16,
    options: &[u8],
) {
    let options = &options[..options.len().min(40)];
    let padded = options.len().next_multiple_of(4);
    frame.extend(ports.0.to_be_bytes());
    frame.extend(ports.1.to_be_bytes());
    frame.extend(seq.to_be_bytes());
    frame.extend(ack.to_be_bytes());
    frame.extend([((20 + padded) as u8 / 4) << 4, flags]);
    frame.extend(window.to_be_bytes());
    frame.extend([0; 4]);
    let end = frame.len() + padded;
    frame.extend(options);
    frame.resize(end, 0);
}
