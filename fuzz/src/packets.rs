//! Frames as the far side writes and reads them. Nothing here comes from the stack.

use dominoes_testkit::packet::{self, Address, ETHERNET, Mac, Path, TO_STACK};
pub(crate) use dominoes_testkit::packet::{
    ACK, FAR, FIN, ICMP, LOWER, RST, Right, STACK, SYN, TCP, UDP, finish, tcp_header,
};

/// Opens connections after the others are done, and says only what is so.
pub(crate) const HONEST: Address = [10, 0, 0, 77];
pub(crate) const STACK_MAC: Mac = TO_STACK.to_mac;
pub(crate) const FAR_MAC: Mac = TO_STACK.from_mac;

/// An Ethernet and an IPv4 header from `from` to `to`; lengths and checksums are for [`finish`].
pub(crate) fn headers(from: Address, to: Address, protocol: u8) -> Vec<u8> {
    packet::headers(Path { from, to, ..TO_STACK }, protocol)
}

/// An ARP message about `sender`, for the stack.
pub(crate) fn arp(operation: u16, sender_mac: Mac, from: Address, to: Address) -> Vec<u8> {
    let path = Path { from, to, ..TO_STACK };
    packet::arp(path.from_mac(sender_mac), operation, STACK_MAC)
}

/// An ICMP echo request with right checksums.
pub(crate) fn echo(from: Address, number: u16) -> Vec<u8> {
    let message = packet::echo(number, b"are you there");
    packet::ip(Path { from, ..TO_STACK }, ICMP, &message)
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
