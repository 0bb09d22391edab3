//! How a datagram stands in a socket's ring.
//!
//! ```text
//! 0..16 address  16..18 port  18..20 payload bytes  20 TTL  21 DSCP and ECN  22..32 zero  32.. payload, padding
//! ```
//! The other end's address and port, payload bytes and all that the application may know or choose
//! of its packet. An IPv4 address stands as its IPv4-mapped one. Everything is in network order; a record takes a multiple of [`HEADER`], so no
//! header wraps around the ring's end.

use crate::log::request::{Address, Endpoint};

/// Bytes of a header, and what records are padded to.
pub(crate) const HEADER: usize = 32;

/// Payload bytes of a datagram, at most: 65,535 less the headers of IPv4 and UDP (RFC 768).
pub(crate) const MAX_PAYLOAD: usize = 65_535 - 20 - 8;

/// Bytes that a datagram with `payload` bytes takes.
#[inline]
pub(crate) const fn len(payload: u16) -> u64 {
    (HEADER + payload as usize).next_multiple_of(HEADER) as u64
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The other end.
    pub(crate) remote: Endpoint,
    /// Payload bytes.
    pub(crate) len: u16,
    /// Time to live.
    pub(crate) ttl: u8,
    /// DSCP and ECN.
    pub(crate) tos: u8,
}

impl Header {
    /// The header as it stands in the ring.
    #[inline]
    pub(crate) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..16].copy_from_slice(&self.remote.address.bytes());
        bytes[16..18].copy_from_slice(&self.remote.port.to_be_bytes());
        bytes[18..20].copy_from_slice(&self.len.to_be_bytes());
        [bytes[20], bytes[21]] = [self.ttl, self.tos];
        bytes
    }

    /// Reads a header from the front of `bytes`.
    #[inline]
    pub(crate) fn read(bytes: &[u8]) -> Option<Header> {
        let (address, rest) = bytes.split_first_chunk()?;
        let [e, f, g, h, ttl, tos] = *rest.first_chunk()?;
        Some(Header {
            remote: Endpoint::new(Address::v6(*address), u16::from_be_bytes([e, f])),
            len: u16::from_be_bytes([g, h]),
            ttl,
            tos,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_records_keep_their_alignment() {
        let header = Header {
            remote: Endpoint::new(Address::ipv4(10, 1, 2, 3), 456),
            len: 77,
            ttl: 3,
            tos: 9,
        };
        assert_eq!(Header::read(&header.to_bytes()), Some(header));
        assert_eq!(Header::read(&[0; 21]), None);
        assert_eq!([len(0), len(1), len(32), len(33)], [32, 64, 64, 96]);
        assert_eq!(len(MAX_PAYLOAD as u16), 65_568);
    }
}
