//! How a datagram stands in a socket's ring.
//!
//! ```text
//! 0..4 address  4..6 port  6..8 payload bytes  8 TTL  9 DSCP and ECN  10..16 zero  16.. payload, padding
//! ```
//! The other end's address and port, payload bytes and all that the application may know or choose
//! of its packet. Everything is in network order; a record takes a multiple of [`HEADER`], so no
//! header wraps around the ring's end.

use core::net::{Ipv4Addr, SocketAddrV4};

/// Bytes of a header, and what records are padded to.
pub(crate) const HEADER: usize = 16;

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
    pub(crate) remote: SocketAddrV4,
    /// Payload bytes.
    pub(crate) len: u16,
    /// Time to live.
    pub(crate) ttl: u8,
    /// DSCP and ECN.
    pub(crate) tos: u8,
}

impl Header {
    /// The header as it stands in the ring; `source` is address and port in network order.
    #[inline]
    pub(crate) const fn write(source: [u8; 6], len: u16, ttl: u8, tos: u8) -> [u8; HEADER] {
        let [a, b, c, d, e, f] = source;
        let [g, h] = len.to_be_bytes();
        [a, b, c, d, e, f, g, h, ttl, tos, 0, 0, 0, 0, 0, 0]
    }

    /// As [`Header::write`].
    pub(crate) const fn to_bytes(self) -> [u8; HEADER] {
        let [a, b, c, d] = self.remote.ip().octets();
        let [e, f] = self.remote.port().to_be_bytes();
        Self::write([a, b, c, d, e, f], self.len, self.ttl, self.tos)
    }

    /// Reads a header from the front of `bytes`.
    #[inline]
    pub(crate) fn read(bytes: &[u8]) -> Option<Header> {
        let [a, b, c, d, e, f, g, h, ttl, tos] = *bytes.first_chunk()?;
        Some(Header {
            remote: SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([e, f])),
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
            remote: "10.1.2.3:456".parse().unwrap(),
            len: 77,
            ttl: 3,
            tos: 9,
        };
        assert_eq!(Header::read(&header.to_bytes()), Some(header));
        assert_eq!(Header::read(&[0; 9]), None);
        assert_eq!([len(0), len(1), len(16), len(17)], [16, 32, 32, 48]);
        assert_eq!(len(MAX_PAYLOAD as u16), 65_536);
    }
}
