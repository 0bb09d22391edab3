//! The format of a datagram in a socket's ring.
//!
//! ```text
//! 0..16 address  16..18 port  18..20 payload bytes  20 TTL  21 DSCP and ECN  22 1 with more
//! 23 1 if a copy comes back  24 1 if it must not be fragmented  25..32 zero
//! more: 32..48 the address that it was sent to  48..56 time of arrival, in ns  56..58 the port
//! then payload, padding
//! ```
//! If a socket sends from any address, such 32 bytes precede the header, with our end.
//! A record holds the other end's address and port, the payload, and the packet's fields that
//! the application may read or set. An IPv4 address is stored as its IPv4-mapped address.
//! Everything is in network order; a record takes a multiple of [`HEADER`], so no header wraps
//! around the ring's end.

use crate::log::request::{Address, Endpoint, Lengths};
use crate::time::Instant;

/// Bytes of a header; records are padded to a multiple of it.
pub const HEADER: usize = 32;

/// Maximum payload of a datagram in bytes: 65,535 minus the headers of IPv4 and UDP (RFC 768).
pub const MAX_PAYLOAD: usize = 65_535 - 20 - 8;

/// Bytes of the record of a datagram with `payload` bytes.
#[inline]
pub const fn len(payload: u16) -> u64 {
    (HEADER + payload as usize).next_multiple_of(HEADER) as u64
}

/// Bytes of the records of datagrams with these lengths: the first `count`, or all merged ones.
pub fn total(lengths: &Lengths, count: usize) -> u64 {
    match lengths {
        Lengths::Each(lens) => lens.iter().take(count).map(|len| self::len(*len)).sum(),
        Lengths::Merged(merged) => {
            let (whole, rest) = merged.split();
            let last = if rest > 0 { len(rest) } else { 0 };
            u64::from(whole) * len(merged.size) + last
        }
    }
}

/// Bytes of [`More`], which follows the header if a socket asked for it.
pub const MORE: usize = 32;

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The other end.
    pub remote: Endpoint,
    /// Payload bytes.
    pub len: u16,
    /// Time to live.
    pub ttl: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Whether [`More`] follows it.
    pub has_more: bool,
    /// For a datagram to a group: whether sockets of this host receive it too.
    pub loops: bool,
    /// For an outgoing datagram: whether it must not be fragmented.
    pub dont_fragment: bool,
}

/// Further fields of a received datagram that a socket may ask for; our end of one that is sent from
/// any address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct More {
    /// Our end: the destination of a received datagram.
    pub local: Endpoint,
    /// When it was taken from the device.
    pub arrived: Instant,
}

impl More {
    /// The bytes in the ring.
    pub fn to_bytes(self) -> [u8; MORE] {
        let mut bytes = [0; MORE];
        bytes[..16].copy_from_slice(&self.local.address.bytes());
        bytes[24..26].copy_from_slice(&self.local.port.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.arrived.as_nanos().to_be_bytes());
        bytes
    }

    /// Reads it from the front of `bytes`.
    pub fn read(bytes: &[u8]) -> Option<More> {
        let (address, rest) = bytes.split_first_chunk()?;
        let (time, rest) = rest.split_first_chunk()?;
        let port = u16::from_be_bytes(*rest.first_chunk()?);
        Some(More {
            local: Endpoint::new(Address::v6(*address), port),
            arrived: Instant::from_nanos(u64::from_be_bytes(*time)),
        })
    }
}

impl RecordHeader {
    /// Bytes of the record.
    #[inline]
    pub const fn record_len(&self) -> u64 {
        len(self.len) + if self.has_more { MORE as u64 } else { 0 }
    }

    /// The bytes in the ring.
    #[inline]
    pub fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..16].copy_from_slice(&self.remote.address.bytes());
        bytes[16..18].copy_from_slice(&self.remote.port.to_be_bytes());
        bytes[18..20].copy_from_slice(&self.len.to_be_bytes());
        [bytes[20], bytes[21]] = [self.ttl, self.tos];
        let flags = [self.has_more, self.loops, self.dont_fragment];
        bytes[22..25].copy_from_slice(&flags.map(u8::from));
        bytes
    }

    /// Reads a header from the front of `bytes`.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<RecordHeader> {
        let (address, rest) = bytes.split_first_chunk()?;
        let [e, f, g, h, ttl, tos, more, loops, dont_fragment] = *rest.first_chunk()?;
        Some(RecordHeader {
            remote: Endpoint::new(Address::v6(*address), u16::from_be_bytes([e, f])),
            len: u16::from_be_bytes([g, h]),
            ttl,
            tos,
            has_more: more != 0,
            loops: loops != 0,
            dont_fragment: dont_fragment != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_records_keep_their_alignment() {
        let header = RecordHeader {
            remote: Endpoint::new(Address::ipv4(10, 1, 2, 3), 456),
            len: 77,
            ttl: 3,
            tos: 9,
            has_more: true,
            loops: false,
            dont_fragment: false,
        };
        let sent = RecordHeader {
            has_more: false,
            loops: true,
            dont_fragment: true,
            ..header
        };
        assert_eq!(RecordHeader::read(&sent.to_bytes()), Some(sent));
        assert_eq!(RecordHeader::read(&header.to_bytes()), Some(header));
        let more = More {
            local: Endpoint::new(Address::v6([7; 16]), 99),
            arrived: Instant::from_millis(77),
        };
        assert_eq!(More::read(&more.to_bytes()), Some(more));
        assert_eq!(header.record_len(), 160);
        assert_eq!(RecordHeader::read(&[0; 23]), None);
        assert_eq!([len(0), len(1), len(32), len(33)], [32, 64, 64, 96]);
        assert_eq!(len(MAX_PAYLOAD as u16), 65_568);
    }
}
