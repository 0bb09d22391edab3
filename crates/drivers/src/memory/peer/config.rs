//! What a simulated peer is asked to do.

use super::headers::{self, Ends, HEADERS_LEN, TIMESTAMPS_LEN};
use std::fmt;
use std::sync::Arc;

/// Most connections that a peer can be asked for, if its first port leaves room for them.
const MOST_CONNECTIONS: usize = 1 << 15;
/// Most frames in circulation, so that the place of a buffer can be computed exactly.
const MOST_FRAMES: usize = 1 << 22;
/// Longest receive buffer, in bytes.
const LONGEST_BUFFER: usize = 1 << 17;
/// Bytes of the buffers of pure acknowledgments. Buffers of segments are larger.
pub(super) const ACK_BUFFER: usize = 112;
/// Shortest segment: the mark is four bytes long.
const SHORTEST_SEGMENT: usize = 4;

/// What the peer does. The stack does the opposite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The peer sends as much as the stack's window allows, and the stack receives.
    Sender,
    /// The peer takes what the stack sends, and acknowledges every second segment.
    Receiver,
    /// Both at once, on the same connections.
    Both,
    /// The peer sends frames of no connection: without handshake, as fast as they are claimed. Of
    /// what it is sent it reads only the headers. For loops without a TCP.
    Free,
}

/// The payload of the segments that the peer sends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Payload {
    /// All segments carry these bytes, repeated up to the length of a segment, but for the first
    /// four: they are the offset of the segment in the stream, modulo 2^32 and in network order.
    Marked(Vec<u8>),
    /// The payload of the first segment of each connection, of the second, and so on; after the
    /// last one the first follows again. Each is as long as a segment. For payload that depends on
    /// its place in the stream, as that of a cipher does. At most 65,536.
    Round(Vec<Vec<u8>>),
}

impl Default for Payload {
    /// The bytes 0 to 255, marked.
    fn default() -> Self {
        Payload::Marked((0..=255).collect())
    }
}

/// What the stack does to the bytes of [`PeerConfig::expected`] before it sends them, for example
/// encryption.
#[derive(Clone)]
pub struct Encoding(Arc<Encode>);

type Encode = dyn Fn(u64, &[u8], &mut [u8]) + Send + Sync;

impl Encoding {
    /// `encode` gets the offset of some bytes in their stream, the bytes, and a buffer of the same
    /// length for what the stack sends in their place.
    pub fn new(encode: impl Fn(u64, &[u8], &mut [u8]) + Send + Sync + 'static) -> Self {
        Encoding(Arc::new(encode))
    }

    pub(super) fn encode(&self, offset: u64, plain: &[u8], sent: &mut [u8]) {
        (self.0)(offset, plain, sent);
    }
}

impl fmt::Debug for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoding").finish_non_exhaustive()
    }
}

/// How a simulated peer is built.
///
/// ```
/// use dominoes_drivers::memory::peer::{Payload, PeerConfig, PeerDevice, Role};
///
/// let config = PeerConfig::new(Role::Both)
///     .segment_bytes(512)
///     .connections(3)
///     .timestamps(true)
///     .payload(Payload::Marked(b"pattern".to_vec()))
///     .expected(b"what the stack sends, again and again".to_vec());
/// let (_device, peer) = PeerDevice::new(config)?;
/// assert_eq!(peer.received_bytes(2), 0);
/// assert!(PeerDevice::new(PeerConfig::new(Role::Sender).connections(0)).is_err());
/// # Ok::<(), dominoes_drivers::memory::peer::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerConfig {
    /// What the peer does.
    pub role: Role,
    /// Payload bytes of a segment that the peer sends, and that it announces as MSS: 4 to 65,483.
    /// The MTU of the device grows with it beyond 1500. Default 1448.
    pub segment_bytes: usize,
    /// Connections, which the peer opens one after the other: 1 to 32,768, from the port of
    /// [`ends`](Self::ends) on. Default 1.
    pub connections: usize,
    /// Segments of one connection in a row, if there are several connections: 1 to 65,536. With 1,
    /// each segment is of another connection than the one before. Default 8.
    pub burst: usize,
    /// Frames with payload in circulation: 1 to 4,194,304, and at least one for each payload of a
    /// round. They take [`buffer_bytes`](Self::buffer_bytes) each; a pool larger than a cache
    /// leaves it, as the frames of a network card do. Default 1024.
    pub pool_frames: usize,
    /// Bytes of the buffer of each of these frames: at least those of the frame and 113, at most
    /// 131,072. `None`, the default: whole cache lines with what the allocator usually keeps beside
    /// them.
    pub buffer_bytes: Option<usize>,
    /// Whether segments carry timestamps (RFC 7323), both ways. Default: no.
    pub timestamps: bool,
    /// Whether the device vouches for the checksums of what it delivers, and takes partial ones, as
    /// a card with checksum offload does. Default: no, the stack verifies and computes them.
    pub checksum_offload: bool,
    /// What the peer sends.
    pub payload: Payload,
    /// What the stack sends on every connection, again and again. Empty, the default: payload is
    /// not compared.
    pub expected: Vec<u8>,
    /// What the stack does to it before it sends it. Default: nothing.
    pub encoding: Option<Encoding>,
    /// Whether the TCP checksum of every segment is compared with that of the expected bytes, also
    /// while [`PeerHandle::verify`](super::PeerHandle::verify) is off. The peer knows their sums
    /// beforehand, so it does not read the payload. Not for [`Role::Free`] or with an encoding,
    /// whose sums it does not know; partial checksums are skipped. Default: no, at no cost.
    pub verify_checksums: bool,
    /// Addresses of the peer, the sender here, and of the stack.
    pub ends: Ends,
}

impl PeerConfig {
    /// A peer with the defaults of all fields.
    pub fn new(role: Role) -> Self {
        PeerConfig {
            role,
            segment_bytes: 1448,
            connections: 1,
            burst: 8,
            pool_frames: 1024,
            buffer_bytes: None,
            timestamps: false,
            checksum_offload: false,
            payload: Payload::default(),
            expected: Vec::new(),
            encoding: None,
            verify_checksums: false,
            ends: Ends::default(),
        }
    }

    /// Sets [`segment_bytes`](Self::segment_bytes).
    #[must_use]
    pub fn segment_bytes(mut self, bytes: usize) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// Sets [`connections`](Self::connections).
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Sets [`burst`](Self::burst).
    #[must_use]
    pub fn burst(mut self, segments: usize) -> Self {
        self.burst = segments;
        self
    }

    /// Sets [`pool_frames`](Self::pool_frames).
    #[must_use]
    pub fn pool_frames(mut self, frames: usize) -> Self {
        self.pool_frames = frames;
        self
    }

    /// Sets [`buffer_bytes`](Self::buffer_bytes).
    #[must_use]
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.buffer_bytes = Some(bytes);
        self
    }

    /// Sets [`timestamps`](Self::timestamps).
    #[must_use]
    pub fn timestamps(mut self, carried: bool) -> Self {
        self.timestamps = carried;
        self
    }

    /// Sets [`checksum_offload`](Self::checksum_offload).
    #[must_use]
    pub fn checksum_offload(mut self, offered: bool) -> Self {
        self.checksum_offload = offered;
        self
    }

    /// Sets [`payload`](Self::payload).
    #[must_use]
    pub fn payload(mut self, payload: Payload) -> Self {
        self.payload = payload;
        self
    }

    /// Sets [`expected`](Self::expected).
    #[must_use]
    pub fn expected(mut self, stream: Vec<u8>) -> Self {
        self.expected = stream;
        self
    }

    /// Sets [`encoding`](Self::encoding).
    #[must_use]
    pub fn encoding(mut self, encoding: Encoding) -> Self {
        self.encoding = Some(encoding);
        self
    }

    /// Sets [`verify_checksums`](Self::verify_checksums).
    #[must_use]
    pub fn verify_checksums(mut self, on: bool) -> Self {
        self.verify_checksums = on;
        self
    }

    /// Sets [`ends`](Self::ends).
    #[must_use]
    pub fn ends(mut self, ends: Ends) -> Self {
        self.ends = ends;
        self
    }

    /// Bytes of all headers of a segment.
    pub(super) fn head_bytes(&self) -> usize {
        HEADERS_LEN + if self.timestamps { TIMESTAMPS_LEN } else { 0 }
    }

    /// Bytes of the buffer of a segment.
    pub(super) fn buffer_len(&self) -> usize {
        let needed = (self.head_bytes() + self.segment_bytes).next_multiple_of(64) + 48;
        self.buffer_bytes.unwrap_or(needed.max(ACK_BUFFER + 64))
    }

    /// The prebuilt payloads.
    pub(super) fn payloads(&self) -> Vec<Vec<u8>> {
        match &self.payload {
            Payload::Marked(pattern) => {
                let repeated = pattern.iter().cycle().take(self.segment_bytes);
                vec![repeated.copied().collect()]
            }
            Payload::Round(payloads) => payloads.clone(),
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let within = |what, asked, least, most| {
            if (least..=most).contains(&asked) {
                Ok(())
            } else {
                Err(ConfigError::OutOfRange {
                    what,
                    asked,
                    least,
                    most,
                })
            }
        };
        let longest = headers::LONGEST_PACKET - (HEADERS_LEN - 14) - TIMESTAMPS_LEN;
        within(
            "segment_bytes",
            self.segment_bytes,
            SHORTEST_SEGMENT,
            longest,
        )?;
        let ports = usize::from(u16::MAX - self.ends.from.port()) + 1;
        let most = MOST_CONNECTIONS.min(ports);
        within("connections", self.connections, 1, most)?;
        within("burst", self.burst, 1, 1 << 16)?;
        let rounds = match &self.payload {
            Payload::Marked(pattern) if pattern.is_empty() => return Err(ConfigError::NoPayload),
            Payload::Marked(_) => 1,
            Payload::Round(payloads) => {
                let unequal = |payload: &Vec<u8>| payload.len() != self.segment_bytes;
                if let Some(index) = payloads.iter().position(unequal) {
                    return Err(ConfigError::PayloadLength {
                        index,
                        bytes: payloads[index].len(),
                        segment_bytes: self.segment_bytes,
                    });
                }
                within("payloads of a round", payloads.len(), 1, 1 << 16)?;
                payloads.len()
            }
        };
        within("pool_frames", self.pool_frames, rounds, MOST_FRAMES)?;
        let least = (self.head_bytes() + self.segment_bytes).max(ACK_BUFFER + 1);
        within("buffer_bytes", self.buffer_len(), least, LONGEST_BUFFER)?;
        if !self.verify_checksums {
            return Ok(());
        }
        let unknown = |reason| Err(ConfigError::UnknownChecksums { reason });
        if self.expected.is_empty() {
            return unknown("no bytes are expected");
        }
        if self.encoding.is_some() {
            return unknown("the expected bytes are encoded");
        }
        if self.role == Role::Free {
            return unknown("free frames have no place in a stream");
        }
        Ok(())
    }
}

/// Why a peer cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number is too small or too large.
    OutOfRange {
        /// The field.
        what: &'static str,
        /// Its value.
        asked: usize,
        /// The smallest possible value.
        least: usize,
        /// The largest possible value, given the other fields.
        most: usize,
    },
    /// The pattern of the payload is empty.
    NoPayload,
    /// A payload of a round is not as long as a segment.
    PayloadLength {
        /// Which one.
        index: usize,
        /// Its length.
        bytes: usize,
        /// The length of a segment.
        segment_bytes: usize,
    },
    /// [`PeerConfig::verify_checksums`] is on, and the peer cannot know the checksums.
    UnknownChecksums {
        /// Why not.
        reason: &'static str,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange {
                what,
                asked,
                least,
                most,
            } => write!(f, "{what}: {asked} is not within {least} to {most}"),
            Self::NoPayload => write!(f, "the pattern of the payload is empty"),
            Self::PayloadLength {
                index,
                bytes,
                segment_bytes,
            } => write!(
                f,
                "payload {index} of the round has {bytes} bytes, a segment {segment_bytes}"
            ),
            Self::UnknownChecksums { reason } => {
                write!(f, "checksums cannot be known beforehand: {reason}")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: PeerConfig) -> String {
        config
            .check()
            .map_or_else(|e| e.to_string(), |()| String::new())
    }

    #[test]
    fn a_value_that_cannot_work_is_refused_by_name() {
        let config = || PeerConfig::new(Role::Sender);
        assert_eq!(config().check(), Ok(()));
        for (bad, expected) in [
            (
                config().segment_bytes(3),
                "segment_bytes: 3 is not within 4 to 65483",
            ),
            (
                config().connections(0),
                "connections: 0 is not within 1 to 25536",
            ),
            (config().burst(0), "burst: 0 is not within 1 to 65536"),
            (
                config().connections(25_537),
                "connections: 25537 is not within 1 to 25536",
            ),
            (
                config().pool_frames(0),
                "pool_frames: 0 is not within 1 to 4194304",
            ),
            (
                config().buffer_bytes(1501),
                "buffer_bytes: 1501 is not within 1502 to 131072",
            ),
            (
                config().payload(Payload::Marked(Vec::new())),
                "the pattern of the payload is empty",
            ),
            (
                config().payload(Payload::Round(vec![vec![0; 1448], vec![0; 9]])),
                "payload 1 of the round has 9 bytes, a segment 1448",
            ),
            (
                config().payload(Payload::Round(Vec::new())),
                "payloads of a round: 0 is not within 1 to 65536",
            ),
            (
                config().verify_checksums(true),
                "checksums cannot be known beforehand: no bytes are expected",
            ),
        ] {
            assert_eq!(refused(bad), expected);
        }
        let known = config().expected(vec![1]).verify_checksums(true);
        assert_eq!(known.check(), Ok(()));
        let encoded = known.clone().encoding(Encoding::new(|_, _, _| ()));
        assert!(refused(encoded).ends_with("are encoded"));
        let mut free = known;
        free.role = Role::Free;
        assert!(refused(free).ends_with("no place in a stream"));
    }

    #[test]
    fn the_shortest_and_the_longest_segment_have_a_buffer() {
        for bytes in [4, 10, 11, 65_483] {
            for timestamps in [false, true] {
                let config = PeerConfig::new(Role::Both)
                    .segment_bytes(bytes)
                    .timestamps(timestamps);
                assert_eq!(config.check(), Ok(()));
                assert!(config.buffer_len() > ACK_BUFFER);
            }
        }
    }
}
