//! Workloads: which payload, how much of it at a time, and from which seed.

use dominoes_drivers::memory::peer::headers;
use dominoes_netstack::framed::MAX_PAYLOAD;
use std::time::Duration;

/// Work on the payload, in addition to moving it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "report",
    derive(serde::Serialize),
    serde(rename_all = "kebab-case")
)]
pub enum Processing {
    /// Nothing.
    #[default]
    None,
    /// A string search: four memory operations a byte.
    Search,
    /// AES-256 in counter mode.
    Aes256Ctr,
    /// AES-256 in Galois/counter mode, in records of some segments.
    Aes256Gcm,
    /// Records of TLS 1.3 with AES-128-GCM.
    TlsAes128Gcm,
    /// ... with AES-256-GCM.
    TlsAes256Gcm,
    /// ... with ChaCha20-Poly1305.
    #[cfg_attr(feature = "report", serde(rename = "tls-chacha20-poly1305"))]
    TlsChaCha20Poly1305,
}

impl Processing {
    /// As in tables.
    pub fn name(self) -> &'static str {
        match self {
            Processing::None => "plain",
            Processing::Search => "search",
            Processing::Aes256Ctr => "AES-256-CTR",
            Processing::Aes256Gcm | Processing::TlsAes256Gcm => "AES-256-GCM",
            Processing::TlsAes128Gcm => "AES-128-GCM",
            Processing::TlsChaCha20Poly1305 => "ChaCha20-Poly1305",
        }
    }

    /// Whether it is TLS, which runs above TCP.
    pub fn is_tls(self) -> bool {
        use Processing::{TlsAes128Gcm, TlsAes256Gcm, TlsChaCha20Poly1305};
        matches!(self, TlsAes128Gcm | TlsAes256Gcm | TlsChaCha20Poly1305)
    }
}

/// What all rows of an experiment have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "report", derive(serde::Serialize))]
pub struct Workload {
    /// Payload bytes of a segment. The peer announces it as its MSS, and the MTU grows with it.
    pub segment_bytes: usize,
    /// Frames in circulation, in bytes: above every private cache, as a network card would leave
    /// them.
    pub pool_bytes: usize,
    /// Receive and send ring of the connection, in bytes.
    pub ring_bytes: u32,
    /// Requests that may be in the log of a replicated stack.
    pub log_requests: usize,
    /// Whether segments carry timestamps (RFC 7323), both ways.
    pub timestamps: bool,
    /// Whether TCP checksums are verified and computed in software; otherwise the device vouches
    /// for received frames and finishes sent ones, as cards do.
    pub checksum: bool,
    /// Whether the peer compares the checksums of frames with expected ones,
    /// where it can compute these: not for enciphered payload.
    pub verify_checksums: bool,
    /// Connections that share the payload.
    pub connections: usize,
    /// Segments of one connection that arrive in a row, if there are several connections.
    pub burst: usize,
    /// Work on the payload, in addition to moving it.
    pub processing: Processing,
    /// Makes payloads and keys.
    pub seed: u64,
    /// How long one row runs before another takes its place.
    #[cfg_attr(
        feature = "report",
        serde(rename = "slice_ns", serialize_with = "nanos")
    )]
    pub slice: Duration,
    /// Slices per row that are measured.
    pub rounds: usize,
}

/// Segments after which positions in the stream repeat, where received payload is processed.
pub(crate) const RECORDS: usize = 128;
/// The most segments of a unit that is processed.
pub(crate) const UNIT: usize = 8;

/// The records of TLS that the peer sends.
#[cfg(feature = "tls")]
pub(crate) mod tls {
    use dominoes_netstack::tls::RecordKey;

    /// Records after which their numbers repeat.
    pub(crate) const RECORDS: usize = 256;
    /// The longest record of TLS 1.3 that is received, in bytes.
    pub(crate) const LONGEST: usize = RecordKey::MAX_TEXT + RecordKey::OVERHEAD;

    /// Segments after which the peer's payload repeats.
    pub(super) fn round(segment_bytes: usize) -> usize {
        (LONGEST / segment_bytes).max(1) * RECORDS
    }
}

/// What the allocator keeps beside a buffer, in bytes.
const OVERHEAD: usize = 16;

impl Default for Workload {
    fn default() -> Self {
        Workload {
            segment_bytes: 1448,
            pool_bytes: 64 << 20,
            ring_bytes: 1 << 20,
            log_requests: 512,
            timestamps: false,
            checksum: true,
            verify_checksums: false,
            connections: 1,
            burst: 8,
            processing: Processing::None,
            seed: 1,
            slice: Duration::from_millis(100),
            rounds: 40,
        }
    }
}

impl Workload {
    /// The same with a ring of `frames` frames, which stays in a core's own caches, and rings of
    /// the connection that are just as warm.
    #[must_use]
    pub fn warm(self, frames: usize) -> Workload {
        let warm = Workload {
            pool_bytes: frames * (self.buffer_bytes() + OVERHEAD),
            ..self
        };
        let payload = (frames * self.segment_bytes).next_power_of_two();
        Workload {
            ring_bytes: u32::try_from(payload).unwrap_or(u32::MAX).max(1 << 10),
            ..warm
        }
    }

    /// Bytes of all headers of a segment with payload.
    pub(crate) fn head_bytes(&self) -> usize {
        headers::HEADERS_LEN
            + if self.timestamps {
                headers::TIMESTAMPS_LEN
            } else {
                0
            }
    }

    /// Bytes of a receive buffer with one frame of this workload: whole cache lines, counting what
    /// the allocator keeps beside it.
    pub(crate) fn buffer_bytes(&self) -> usize {
        (self.head_bytes() + self.segment_bytes).next_multiple_of(64) + 48
    }

    /// Frames that make up the pool.
    pub(crate) fn frames(&self) -> usize {
        let frames = (self.pool_bytes / (self.buffer_bytes() + OVERHEAD)).max(64);
        // Whole rounds of prebuilt payloads.
        frames.next_multiple_of(match self.processing {
            Processing::None => 1,
            #[cfg(feature = "tls")]
            processing if processing.is_tls() => tls::round(self.segment_bytes),
            _ => RECORDS,
        })
    }

    /// Transmit slots that make up the pool as nearly as a power of two can.
    pub(crate) fn transmit_slots(&self) -> u32 {
        let slots = (self.pool_bytes / 1600).max(1) as u32;
        // The nearer of the two powers, on a logarithmic scale.
        let below = 1 << slots.ilog2();
        let nearer = if slots > below + below / 2 {
            2 * below
        } else {
            below
        };
        nearer.clamp(64, 1 << 20)
    }

    /// Whether payload is not only moved.
    pub(crate) fn processes(&self) -> bool {
        self.processing != Processing::None
    }

    /// Bytes of a unit that is processed, which is whole segments.
    pub(crate) fn unit_len(&self) -> usize {
        let most = (MAX_PAYLOAD / self.segment_bytes).clamp(1, UNIT);
        self.segment_bytes << most.ilog2()
    }

    /// Bytes that are written at once are a multiple of this: records are not left unfinished.
    pub(crate) fn whole(&self) -> usize {
        match self.processing {
            Processing::None => 1,
            processing if processing.is_tls() => self.segment_bytes,
            _ => self.unit_len(),
        }
    }

    /// The content of a send ring of `len` bytes; nothing is written after the last whole record.
    pub(crate) fn ring(&self, len: usize) -> Vec<u8> {
        let mut ring = bytes(self.seed, len);
        ring[len / self.whole() * self.whole()..].fill(0);
        ring
    }

    /// The bytes of every segment; the first four are replaced by the stream offset,
    /// unless the payload is processed.
    pub(crate) fn payload(&self) -> Vec<u8> {
        bytes(self.seed, self.segment_bytes)
    }
}

/// `len` bytes that follow from `seed` (splitmix64).
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let mut out: Vec<u8> = (0..len.div_ceil(8))
        .flat_map(|_| next().to_le_bytes())
        .collect();
    out.truncate(len);
    out
}

#[cfg(feature = "report")]
fn nanos<S: serde::Serializer>(slice: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(slice.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_about_as_large_as_it_is_said_to_be() {
        let w = Workload::default();
        let receive = w.frames() * (w.buffer_bytes() + 16);
        assert!(receive.abs_diff(w.pool_bytes) < w.pool_bytes / 100);
        let send = w.transmit_slots() as usize * 1600;
        assert!(send > w.pool_bytes / 2 && send < 2 * w.pool_bytes);
        let warm = w.warm(64);
        assert_eq!((warm.frames(), warm.transmit_slots()), (64, 64));
        assert_eq!(warm.ring_bytes, 128 << 10);
    }

    #[test]
    fn bytes_follow_from_the_seed() {
        assert_eq!(bytes(3, 1448), bytes(3, 1448));
        assert_ne!(bytes(3, 64), bytes(4, 64));
    }
}
