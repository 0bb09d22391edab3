//! Configuration of a simulated peer.

use super::headers::{self, Ends, HEADERS_LEN, TIMESTAMPS_LEN};
use std::fmt;
use std::sync::Arc;

/// Most connections of a peer, if its first port leaves room for them.
const MOST_CONNECTIONS: usize = 1 << 15;
/// Most frames in circulation, so that the index of a buffer follows exactly from its address.
const MOST_FRAMES: usize = 1 << 22;
/// Longest receive buffer, in bytes.
const LONGEST_BUFFER: usize = 1 << 17;
/// Buffer length of pure acknowledgments, in bytes. Buffers of segments are longer.
pub(super) const ACK_BUFFER: usize = 112;
/// Shortest segment payload, in bytes: the mark has four.
const SHORTEST_SEGMENT: usize = 4;

/// The role of the peer. The stack has the opposite one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The peer sends as much as the stack's window allows, and the stack receives.
    Sender,
    /// The peer receives, and acknowledges every second segment.
    Receiver,
    /// The peer sends and receives on the same connections.
    Both,
    /// The peer sends frames that belong to no connection: without handshake, as fast as they are
    /// claimed. It reads only the headers of the frames that it receives. For loops without a TCP.
    Free,
    /// The counterpart of [`Role::Free`]: the peer acknowledges every second segment of frames that
    /// belong to no connection, and sends no payload.
    FreeReceiver,
}

impl Role {
    /// Without a connection.
    pub(super) fn is_free(self) -> bool {
        matches!(self, Role::Free | Role::FreeReceiver)
    }
}

/// The payload of the peer's segments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Payload {
    /// All segments carry these bytes, repeated up to the length of a segment. The first four are
    /// replaced by the segment's offset in the stream, modulo 2^32 and in network order.
    Marked(Vec<u8>),
    /// The payloads of the first segment of each connection, of the second, and so on; after the
    /// last one comes the first again. Each is as long as a segment. For payload that depends on
    /// its place in the stream, as in a cipher. At most 65,536.
    Round(Vec<Vec<u8>>),
}

impl Default for Payload {
    /// The bytes 0 to 255, marked.
    fn default() -> Self {
        Payload::Marked((0..=255).collect())
    }
}

/// The transformation, for example encryption, that the stack applies to the bytes of
/// [`PeerConfig::expected`] before it sends them.
#[derive(Clone)]
pub struct Encoding(Arc<Encode>);

type Encode = dyn Fn(u64, &[u8], &mut [u8]) + Send + Sync;

impl Encoding {
    /// `encode` gets the offset of some bytes in their stream, the bytes, and a buffer of the same
    /// length for its output.
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

crate::settings! {
    /// Builds the configuration of a simulated peer.
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
    /// # Ok::<(), dominoes_drivers::memory::peer::PeerConfigError>(())
    /// ```
    #[derive(Clone, Debug)]
    pub struct PeerConfig {
        /// The role of the peer. Default: both.
        pub role: Role = Role::Both => none;
        /// Payload bytes of a segment from the peer, and the MSS that it announces: 4 to 65,483. A
        /// value that does not fit an MTU of 1500 raises the MTU of the device. Default 1448.
        pub segment_bytes: usize = 1448;
        /// Number of connections: 1 to 32,768. The peer opens them one after the other, on ports
        /// from that of [`ends`](Self::ends) upward. Default 1.
        pub connections: usize = 1;
        /// With several connections, the number of consecutive segments of one connection: 1 to
        /// 65,536. With 1, successive segments belong to different connections. Default 8.
        pub burst: usize = 8;
        /// Frames with payload in circulation: 1 to 4,194,304, and at least one for each payload of
        /// a round. Each takes [`buffer_bytes`](Self::buffer_bytes). If they exceed a cache, they
        /// drop out of it, as the frames of a network card do. Default 1024.
        pub pool_frames: usize = 1024;
        /// Buffer length of each of these frames, in bytes: at least the length of the frame and
        /// 113, at most 131,072. `None`, the default: whole cache lines less what the allocator
        /// usually stores beside them.
        pub buffer_bytes: Option<usize> = None => some usize;
        /// Whether segments of both directions carry timestamps (RFC 7323). Default: no.
        pub timestamps: bool = false;
        /// Whether the device offers checksum offload: it reports checksums of received frames as
        /// valid and accepts partial ones. Default: no, the stack verifies and computes checksums.
        pub checksum_offload: bool = false;
        /// The payload of the peer's segments.
        pub payload: Payload = Payload::default();
        /// One period of the stream that the stack sends on every connection. Empty, the default:
        /// payload is not compared.
        pub expected: Vec<u8> = Vec::new();
        /// The transformation that the stack applies to that stream. Default: none.
        pub encoding: Option<Encoding> = None => some Encoding;
        /// Whether the TCP checksum of every segment is compared with that of the expected bytes,
        /// also while [`PeerHandle::verify`](super::PeerHandle::verify) is off. The peer computes
        /// the sums of the stream in advance, so it does not read the payload. Not possible for
        /// [`Role::Free`] or [`Role::FreeReceiver`] or with an encoding, since their sums are unknown; partial checksums are
        /// skipped. Default: no, at no cost.
        pub verify_checksums: bool = false;
        /// Addresses of the peer (the sender) and of the stack.
        pub ends: Ends = Ends::default();
    }
}

impl PeerConfig {
    /// A configuration with the default of every field.
    pub fn new(role: Role) -> Self {
        PeerConfig {
            role,
            ..PeerConfig::default()
        }
    }

    /// Length of all headers of a segment, in bytes.
    pub(super) fn head_bytes(&self) -> usize {
        HEADERS_LEN + if self.timestamps { TIMESTAMPS_LEN } else { 0 }
    }

    /// Buffer length of a segment, in bytes.
    pub(super) fn buffer_len(&self) -> usize {
        let needed = (self.head_bytes() + self.segment_bytes).next_multiple_of(64) + 48;
        self.buffer_bytes.unwrap_or(needed.max(ACK_BUFFER + 64))
    }

    /// The payloads of the prebuilt frames.
    pub(super) fn payloads(&self) -> Vec<Vec<u8>> {
        match &self.payload {
            Payload::Marked(pattern) => {
                let repeated = pattern.iter().cycle().take(self.segment_bytes);
                vec![repeated.copied().collect()]
            }
            Payload::Round(payloads) => payloads.clone(),
        }
    }

    pub(super) fn check(&self) -> Result<(), PeerConfigError> {
        let within = |what, asked, least, most| {
            if (least..=most).contains(&asked) {
                Ok(())
            } else {
                Err(PeerConfigError::OutOfRange {
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
            Payload::Marked(pattern) if pattern.is_empty() => {
                return Err(PeerConfigError::NoPayload);
            }
            Payload::Marked(_) => 1,
            Payload::Round(payloads) => {
                let unequal = |payload: &Vec<u8>| payload.len() != self.segment_bytes;
                if let Some(index) = payloads.iter().position(unequal) {
                    return Err(PeerConfigError::PayloadLength {
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
        let unknown = |reason| Err(PeerConfigError::UnknownChecksums { reason });
        if self.expected.is_empty() {
            return unknown("no bytes are expected");
        }
        if self.encoding.is_some() {
            return unknown("the expected bytes are encoded");
        }
        if self.role.is_free() {
            return unknown("free frames have no place in a stream");
        }
        Ok(())
    }
}

/// The reason why a peer cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerConfigError {
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
        /// Its index in the round.
        index: usize,
        /// Its length in bytes.
        bytes: usize,
        /// The length of a segment in bytes.
        segment_bytes: usize,
    },
    /// [`PeerConfig::verify_checksums`] is on, but the peer cannot know the checksums.
    UnknownChecksums {
        /// The reason.
        reason: &'static str,
    },
}

impl fmt::Display for PeerConfigError {
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

impl std::error::Error for PeerConfigError {}

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
