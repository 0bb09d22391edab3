//! Frames as the far side writes and reads them. Nothing here comes from the stack.

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;
/// Bytes before the transport header, where IPv4 has no options.
pub(crate) const LOWER: usize = 34;

pub(crate) const STACK: [u8; 4] = [10, 0, 0, 1];
pub(crate) const FAR: [u8; 4] = [10, 0, 0, 2];
/// Opens connections after the others are done, and says only what is so.
pub(crate) const HONEST: [u8; 4] = [10, 0, 0, 77];
pub(crate) const STACK_MAC: [u8; 6] = [2, 0, 10, 0, 0, 1];
pub(crate) const FAR_MAC: [u8; 6] = [2, 0, 10, 0, 0, 2];

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

/// The sum of RFC 1071, folded and not complemented.
pub(crate) fn sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u64;
    for part in parts {
        let mut words = part.chunks_exact(2);
        for word in &mut words {
            sum += u64::from(u16::from_be_bytes([word[0], word[1]]));
        }
        sum += words
            .remainder()
            .first()
            .map_or(0, |last| u64::from(*last) << 8);
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// An Ethernet and an IPv4 header from `source` to `destination`; lengths and checksums are for
/// [`finish`].
pub(crate) fn headers(source: [u8; 4], destination: [u8; 4], protocol: u8) -> Vec<u8> {
    let mut frame = Vec::with_capacity(128);
    frame.extend(STACK_MAC);
    frame.extend(FAR_MAC);
    frame.extend([8, 0, 0x45, 0, 0, 0, 0, 1, 0, 0, 64, protocol, 0, 0]);
    frame.extend(source);
    frame.extend(destination);
    frame
}

/// Where the transport header begins, by what the IPv4 header says of its own length; `None` if
/// that is none.
pub(crate) fn transport(frame: &[u8]) -> Option<usize> {
    let ihl = usize::from(frame.get(ETHERNET)? & 0xf) * 4;
    (ihl >= 20 && frame.len() >= ETHERNET + ihl).then_some(ETHERNET + ihl)
}

/// What of a frame is to be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Right {
    /// Total length of IPv4, length of UDP.
    pub(crate) lengths: bool,
    /// The checksum of the IPv4 header.
    pub(crate) network: bool,
    /// The checksum of TCP, UDP or ICMP. Of a fragment it is left as it is.
    pub(crate) transport: bool,
}

impl Right {
    pub(crate) const ALL: Right = Right {
        lengths: true,
        network: true,
        transport: true,
    };
}

/// Makes lengths and checksums of an IPv4 frame what they should be, as `right` says. Whatever is
/// no IPv4 frame stays.
pub(crate) fn finish(frame: &mut [u8], right: Right) {
    let is_ip = frame.len() >= LOWER && frame[12..14] == [8, 0];
    let Some(at) = transport(frame).filter(|_| is_ip) else {
        return;
    };
    let len = frame.len();
    if right.lengths {
        frame[16..18].copy_from_slice(&((len - ETHERNET) as u16).to_be_bytes());
    }
    let protocol = frame[23];
    let is_fragment = u16::from_be_bytes([frame[20], frame[21]]) & 0x3fff != 0;
    let payload = len - at;
    if !is_fragment {
        if right.lengths && protocol == UDP && payload >= 8 {
            frame[at + 4..at + 6].copy_from_slice(&(payload as u16).to_be_bytes());
        }
        let field = match protocol {
            ICMP => 2,
            TCP => 16,
            UDP => 6,
            _ => usize::MAX,
        };
        if right.transport && field < payload.saturating_sub(1) {
            let field = at + field;
            frame[field..field + 2].fill(0);
            let pseudo = [0, protocol, (payload >> 8) as u8, payload as u8];
            let sum = match protocol {
                ICMP => sum(&[&frame[at..]]),
                _ => sum(&[&frame[26..34], &pseudo, &frame[at..]]),
            };
            let checksum = match !sum {
                0 if protocol == UDP => 0xffff,
                checksum => checksum,
            };
            frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        }
    }
    if right.network {
        frame[24..26].fill(0);
        let checksum = !sum(&[&frame[ETHERNET..at]]);
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// An ARP message about `sender`, for the stack.
pub(crate) fn arp(
    operation: u16,
    sender_mac: [u8; 6],
    sender: [u8; 4],
    target: [u8; 4],
) -> Vec<u8> {
    let mut frame = Vec::with_capacity(42);
    frame.extend(STACK_MAC);
    frame.extend(sender_mac);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4]);
    frame.extend(operation.to_be_bytes());
    frame.extend(sender_mac);
    frame.extend(sender);
    frame.extend(STACK_MAC);
    frame.extend(target);
    frame
}

/// An ICMP echo request with right checksums.
pub(crate) fn echo(from: [u8; 4], number: u16) -> Vec<u8> {
    let mut frame = headers(from, STACK, ICMP);
    frame.extend([8, 0, 0, 0]);
    frame.extend(number.to_be_bytes());
    frame.extend(*b"\0\x01are you there");
    finish(&mut frame, Right::ALL);
    frame
}

/// What of a TCP segment of the stack a far side has to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) destination: [u8; 4],
    /// The stack's port, and the far side's.
    pub(crate) ports: (u16, u16),
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    /// The value of the timestamps option.
    pub(crate) stamp: Option<u32>,
    /// Where the payload lies in the frame.
    pub(crate) payload: (usize, usize),
}

impl Heard {
    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// The number behind the segment.
    pub(crate) fn end(&self) -> u32 {
        let controls = u32::from(self.has(SYN)) + u32::from(self.has(FIN));
        let len = (self.payload.1 - self.payload.0) as u32;
        self.seq.wrapping_add(len).wrapping_add(controls)
    }
}

/// Reads a frame that the stack sent; `None` if it holds no TCP segment.
pub(crate) fn hear(frame: &[u8]) -> Option<Heard> {
    if frame.len() < LOWER + 20 || frame[12..14] != [8, 0] || frame[14] != 0x45 || frame[23] != TCP
    {
        return None;
    }
    let end = ETHERNET + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let word = |at: usize| u32::from(half(at)) << 16 | u32::from(half(at + 2));
    let header = usize::from(frame[LOWER + 12] >> 4) * 4;
    let payload = (LOWER + header, end);
    if header < 20 || end > frame.len() || payload.0 > payload.1 {
        return None;
    }
    let mut options = &frame[LOWER + 20..payload.0];
    let mut stamp = None;
    while let [kind, rest @ ..] = options {
        if *kind == 0 {
            break;
        }
        let len = if *kind == 1 {
            1
        } else {
            usize::from(*rest.first()?).max(2)
        };
        if let [8, 10, a, b, c, d, ..] = *options {
            stamp = Some(u32::from_be_bytes([a, b, c, d]));
        }
        options = options.get(len..)?;
    }
    Some(Heard {
        destination: [frame[30], frame[31], frame[32], frame[33]],
        ports: (half(LOWER), half(LOWER + 2)),
        seq: word(LOWER + 4),
        ack: word(LOWER + 8),
        flags: frame[LOWER + 13],
        window: half(LOWER + 14),
        stamp,
        payload,
    })
}
