//! Inline processors: work on every byte of a stream, done by primaries while they copy it.
//!
//! On receive a processor stands between a frame and the receive ring, on send between the send
//! ring and a frame (Sizemore, *Parallel network protocol stacks using replication*, 2011, section
//! 5.4.3: decryption by the primary). Checksums are over what is on the wire.
//!
#![cfg_attr(feature = "search", doc = "```")]
#![cfg_attr(not(feature = "search"), doc = "```ignore")]
//! use dominoes_drivers::memory::{self, MemoryConfig};
//! use dominoes_netstack::{Stack, processor::Search};
//! use std::io::{Read, Write};
//! use std::sync::Arc;
//!
//! let (left, right) = memory::pair(MemoryConfig::default());
//! let search = Arc::new(Search::new(["needle"])?);
//! let server = Stack::builder("10.0.0.1/24")
//!     .replicas(2)
//!     .processor(search.clone())
//!     .start(left)?;
//! let client = Stack::builder("10.0.0.2/24").start(right)?;
//!
//! let listener = server.listen(7, 16)?;
//! let mut ours = client.connect("10.0.0.1:7")?;
//! ours.write_all(b"hay needle hay")?;
//! ours.shutdown_write();
//! let mut heard = String::new();
//! listener.accept()?.0.read_to_string(&mut heard)?;
//! assert_eq!(heard, "hay needle hay");
//! assert_eq!(search.received(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds them together
//! Several primaries process different pieces of one stream at the same time and in no order, a piece may be
//! processed twice (a retransmission is built again), and a segment that is processed has been acknowledged
//! already. So:
//!
//! * **Processing is a function of the position.** A processor is told which stream it is and at which offset
//!   its bytes stand, and keeps nothing from one call to the next that would change what comes out.
//! * **Boundaries of segments do not matter.** What leaves at an offset depends on the stream's bytes alone,
//!   not on how they were cut, so every retransmission carries the same bytes as before, however it is cut.
//!   Processors that need bytes together say so by [`Processor::unit`]: units lie at multiples of it.
//! * **A failure ends the connection.** Nobody can take the acknowledgment back. The primary marks the stream
//!   as ending before the bad unit and asks the pump to abort the connection, which is a request in the log: all
//!   replicas reset it alike. The application reads what had arrived before the bad unit, nothing of it or behind
//!   it, and then [`SocketError::Processing`](crate::SocketError::Processing).
//!
//! # Units
//! A unit that one segment carries whole goes straight from the frame to the ring. Of one that arrives in
//! pieces (the peer cut it otherwise, or the window did) the pieces are stored as they are, and the reader
//! processes it when it is complete; [`InlineStats::split`] counts these, since they are slow and not
//! shared among replicas. On send, a frame that carries a piece of a unit costs the unit's beginning, too; so
//! units go fast when they are as long as segments. The send ring keeps a unit until all of it is acknowledged.

#[cfg(feature = "ciphers")]
mod cipher;
#[cfg(feature = "search")]
mod search;

use core::fmt;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::io::stream::{AppRequest, DeliveryCursor, StreamRef};
use crate::io::world::World;
use crate::log::effect::{Deliver, Transmit};
use crate::packet as wire;

#[cfg(feature = "ciphers")]
pub use cipher::{Aes256Ctr, Aes256Gcm};
#[cfg(feature = "search")]
pub use search::{Needles, Search};

/// One direction of one connection, as both ends see it where no address is translated between
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    /// Who sends it.
    pub source: SocketAddr,
    /// Who receives it.
    pub destination: SocketAddr,
    /// The sender's initial sequence number (RFC 9293 section 3.4.1): tells connections between the
    /// same ends apart, as far as 32 bits can.
    pub isn: u32,
}

/// Work on the bytes of streams.
///
/// Offsets count the bytes of a stream since its initial sequence number: the byte after the SYN is
/// 0. Calls come from all threads of the stack, in any order, and for the same bytes perhaps twice.
/// They must not block, and cost what they cost on every segment.
pub trait Processor: fmt::Debug + Send + Sync {
    /// How many bytes belong together, 1 if they may be cut anywhere. Must not change. At most a
    /// quarter of the smaller ring.
    fn unit(&self) -> u32 {
        1
    }

    /// Turns received bytes `from` into what the application reads, `to`, which is as long, and all
    /// 0 before the call.
    ///
    /// With units, this is one whole unit. Without, `from` lies within one segment.
    ///
    /// # Errors
    /// When these bytes cannot be what the peer's processor sent. `to` is never read then.
    fn receive(
        &self,
        stream: &StreamId,
        offset: u64,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), Failure>;

    /// Turns what the application wrote, `from`, into what goes out, `to`, which is as long, and
    /// all 0 before the call.
    ///
    /// With units, `offset` is where one begins, and `from` is all of it or only its beginning,
    /// when no more is to be sent yet. What is sent of the beginning must be the same then as when
    /// the unit is complete.
    fn send(&self, stream: &StreamId, offset: u64, from: &[u8], to: &mut [u8]);

    /// Whether every call that does not fail writes all of `to`, so that the stack need not zero it
    /// before. Only this crate can name the argument, so only its own processors say so.
    #[doc(hidden)]
    fn writes_all(&self, _: sealed::Ours) -> bool {
        false
    }
}

mod sealed {
    /// Says that a processor belongs to this crate.
    #[derive(Debug)]
    pub struct Ours;
}
use sealed::Ours;

/// Why received bytes cannot be processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// They are not authentic.
    Forged,
    /// The stream is longer than the processor can tell positions apart.
    TooLong,
    /// A reason of a processor of your own.
    Other(&'static str),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Failure::Forged => "the record is not authentic",
            Failure::TooLong => "the stream is too long for its nonces",
            Failure::Other(reason) => reason,
        })
    }
}

impl std::error::Error for Failure {}

/// What became of inline processing, over all connections of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InlineStats {
    /// Units that were [`Failure::Forged`].
    pub forged: u64,
    /// Pieces or units that failed for another reason.
    pub failed: u64,
    /// Streams whose peer finished within a unit.
    pub truncated: u64,
    /// Units that did not come in one segment and were processed by their reader.
    pub split: u64,
}

impl InlineStats {
    /// Both together.
    pub(crate) const fn and(self, other: Self) -> Self {
        InlineStats {
            forged: self.forged + other.forged,
            failed: self.failed + other.failed,
            truncated: self.truncated + other.truncated,
            split: self.split + other.split,
        }
    }
}

/// The processor of a stack, and what it met. Counters are Relaxed: each is right by itself.
pub(crate) struct Inline {
    pub(crate) processor: Arc<dyn Processor>,
    /// As the processor said at the beginning.
    pub(crate) unit: u64,
    /// [`Processor::writes_all`], also said at the beginning.
    writes_all: bool,
    forged: AtomicU64,
    failed: AtomicU64,
    truncated: AtomicU64,
    split: AtomicU64,
}

impl Inline {
    pub(crate) fn new(processor: Arc<dyn Processor>) -> Self {
        Inline {
            unit: u64::from(processor.unit()),
            writes_all: processor.writes_all(Ours),
            processor,
            forged: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            truncated: AtomicU64::new(0),
            split: AtomicU64::new(0),
        }
    }

    pub(crate) fn stats(&self) -> InlineStats {
        InlineStats {
            forged: self.forged.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            truncated: self.truncated.load(Ordering::Relaxed),
            split: self.split.load(Ordering::Relaxed),
        }
    }

    fn count(&self, failure: Failure) {
        let counter = match failure {
            Failure::Forged => &self.forged,
            _ => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// [`Processor::receive`], into memory that other connections have used.
    #[inline]
    fn received(
        &self,
        id: &StreamId,
        offset: u64,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), Failure> {
        self.zero(to);
        self.processor.receive(id, offset, from, to)
    }

    /// [`Processor::send`], into memory that other connections have used.
    #[inline]
    fn sent(&self, id: &StreamId, offset: u64, from: &[u8], to: &mut [u8]) {
        self.zero(to);
        self.processor.send(id, offset, from, to);
    }

    /// What a user's processor leaves as it is must not be what somebody else wrote there.
    #[inline]
    fn zero(&self, to: &mut [u8]) {
        if !self.writes_all {
            to.fill(0);
        }
    }

    /// Stores `bytes`, the piece of `deliver` that begins `skip` bytes into it, processed. `frame`
    /// is what they stand in, and `within` how far behind the beginning of its payload.
    pub(crate) fn receive(
        &self,
        world: &World,
        stream: &StreamRef<'_>,
        deliver: &Deliver,
        skip: u32,
        bytes: &[u8],
        (frame, within): (&[u8], u32),
    ) {
        let offset = deliver.stream_offset + u64::from(skip);
        let Some(id) = received(frame, offset.wrapping_sub(u64::from(within))) else {
            // The pump parsed these headers before.
            return self.fail(world, stream, offset, Failure::Other("no TCP frame"));
        };
        let mut at = 0;
        while at < bytes.len() {
            let here = offset + at as u64;
            let left = &bytes[at..];
            let skip = skip + at as u32;
            if self.unit == 1 {
                stream.store_by(deliver, skip, left.len(), |done, to| {
                    let from = &left[done..done + to.len()];
                    let offset = here + done as u64;
                    if let Err(failure) = self.received(&id, offset, from, to) {
                        self.fail(world, stream, offset, failure);
                    }
                });
                return;
            }
            let into = here % self.unit;
            let whole = into == 0 && left.len() as u64 >= self.unit;
            let len = left.len().min((self.unit - into) as usize);
            let from = &left[..len];
            if whole {
                let mut done = Ok(());
                let mut straight = false;
                stream.store_by(deliver, skip, len, |_, to| {
                    // Unless the ring ends within the unit.
                    if to.len() == len {
                        straight = true;
                        done = self.received(&id, here, from, to);
                    }
                });
                if !straight {
                    let mut whole = vec![0; len];
                    done = self.processor.receive(&id, here, from, &mut whole);
                    stream.store(deliver, skip, &whole);
                }
                if let Err(failure) = done {
                    self.fail(world, stream, here, failure);
                }
            } else {
                stream.store(deliver, skip, from);
                stream.split(here / self.unit, &id);
            }
            at += len;
        }
    }

    /// Fills `to` with what leaves for the bytes at `offset` of the send stream.
    pub(crate) fn send(&self, stream: &StreamRef<'_>, id: &StreamId, offset: u64, to: &mut [u8]) {
        if self.unit == 1 {
            let (a, b) = stream.sending(offset, to.len());
            let (front, back) = to.split_at_mut(a.len());
            self.sent(id, offset, a, front);
            if !b.is_empty() {
                self.sent(id, offset + a.len() as u64, b, back);
            }
            return;
        }
        let mut at = 0;
        while at < to.len() {
            let here = offset + at as u64;
            let into = (here % self.unit) as usize;
            let len = (to.len() - at).min(self.unit as usize - into);
            let begin = here - into as u64;
            let to = &mut to[at..at + len];
            // Kept from its beginning on, see `StreamRef::release`.
            match stream.sending(begin, into + len) {
                (from, []) if into == 0 => self.sent(id, begin, from, to),
                (a, b) => {
                    let mut out = vec![0; into + len];
                    self.processor.send(id, begin, &[a, b].concat(), &mut out);
                    to.copy_from_slice(&out[into..]);
                }
            }
            at += len;
        }
    }

    /// Makes what was received up to `seen` readable, as far as its units are complete.
    pub(crate) fn open(&self, world: &World, stream: &StreamRef<'_>, seen: &mut DeliveryCursor) {
        let end = stream.complete(seen, self.unit, |stream, offset, from, to| {
            self.split.fetch_add(1, Ordering::Relaxed);
            self.processor.receive(stream, offset, from, to)
        });
        if let Err((offset, failure)) = end {
            self.fail(world, stream, offset, failure);
        }
    }

    /// The peer finished within a unit.
    pub(crate) fn truncated(&self, world: &World, stream: &StreamRef<'_>, end: u64) {
        if stream.fail(end) {
            self.truncated.fetch_add(1, Ordering::Relaxed);
            self.abort(world, stream);
        }
    }

    fn fail(&self, world: &World, stream: &StreamRef<'_>, offset: u64, failure: Failure) {
        self.count(failure);
        stream.fail(offset - offset % self.unit);
        self.abort(world, stream);
    }

    /// Asks the pump to publish the abort.
    fn abort(&self, world: &World, stream: &StreamRef<'_>) {
        stream.request(AppRequest {
            abort: true,
            ..AppRequest::default()
        });
        world.raise(stream);
    }
}

/// Which stream the payload of a received frame belongs to, if it stands at `offset` of it.
fn received(frame: &[u8], offset: u64) -> Option<StreamId> {
    let (source, destination, segment) = wire::checksummed(frame)?;
    let [a, b, c, d, e, f, g, h] = *segment.first_chunk()?;
    let syn = segment.get(13)? >> 1 & 1;
    let seq = u32::from_be_bytes([e, f, g, h]).wrapping_add(u32::from(syn));
    Some(StreamId {
        source: SocketAddr::new(source.ip(), u16::from_be_bytes([a, b])),
        destination: SocketAddr::new(destination.ip(), u16::from_be_bytes([c, d])),
        isn: seq.wrapping_sub(offset as u32).wrapping_sub(1),
    })
}

/// Which stream the payload of frames belongs to that are to be sent.
pub(crate) fn sent(t: &Transmit) -> StreamId {
    StreamId {
        source: t.flow.local.into(),
        destination: t.flow.remote.into(),
        isn: t
            .seq
            .0
            .wrapping_sub(t.payload_offset as u32)
            .wrapping_sub(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limits;
    use crate::io::stream::Streams;
    use crate::log::request::ConnId;
    use core::net::{IpAddr, Ipv4Addr};
    use proptest::prelude::*;

    const CONN: ConnId = ConnId {
        index: 0,
        generation: 0,
    };
    const STREAM: StreamId = StreamId {
        source: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1),
        destination: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2),
        isn: 0,
    };
    const UNIT: u64 = 100;

    /// Every byte of a unit leaves as the sum of those before it; the last one as a sum over all.
    #[derive(Debug)]
    struct Chained;

    impl Processor for Chained {
        fn unit(&self) -> u32 {
            UNIT as u32
        }

        fn receive(&self, _: &StreamId, _: u64, _: &[u8], _: &mut [u8]) -> Result<(), Failure> {
            Err(Failure::Other("only sends"))
        }

        fn send(&self, _: &StreamId, offset: u64, from: &[u8], to: &mut [u8]) {
            assert!(offset.is_multiple_of(UNIT) && from.len() as u64 <= UNIT);
            let mut sum = offset as u8;
            for (from, to) in from.iter().zip(to) {
                sum = sum.wrapping_mul(3).wrapping_add(*from);
                *to = sum;
            }
        }
    }

    fn streams() -> Streams {
        let limits = Limits::default()
            .connections(1)
            .receive_buffer(1024)
            .send_buffer(1024);
        let mut streams = Streams::new(&limits, 4);
        streams.inline = Some(Inline::new(Arc::new(Chained)));
        streams
    }

    proptest! {
        /// Frames of any length, sent again from where an acknowledgment stands, over a ring that
        /// goes round.
        #[test]
        fn what_leaves_at_a_position_is_the_same_however_often_and_however_cut(
            steps in proptest::collection::vec((1usize..400, 1usize..300, 0u64..300), 1..60),
        ) {
            let streams = streams();
            let stream = streams.get(CONN).unwrap();
            let inline = streams.inline.as_ref().unwrap();
            let text: Vec<u8> = (0..60u32 * 400).map(|i| ((i * i) >> 5) as u8).collect();
            let mut expected = vec![0; text.len()];
            let units = text.chunks(UNIT as usize).zip(expected.chunks_mut(UNIT as usize));
            for (i, (from, to)) in units.enumerate() {
                Chained.send(&STREAM, i as u64 * UNIT, from, to);
            }
            let (mut written, mut acked) = (0, 0u64);
            for (write, frame, ack) in steps {
                written += stream.write(&text[written..written + write]);
                let begin = acked as usize;
                for at in (begin..written).step_by(frame) {
                    let mut to = vec![0; frame.min(written - at)];
                    inline.send(&stream, &STREAM, at as u64, &mut to);
                    prop_assert_eq!(&to, &expected[at..at + to.len()], "at {}", at);
                }
                acked = (acked + ack).min(written as u64);
                stream.release(acked);
            }
        }
    }

    #[test]
    fn a_unit_stays_in_the_send_ring_until_all_of_it_is_acknowledged() {
        let streams = streams();
        let stream = streams.get(CONN).unwrap();
        stream.write(&[1; 1024]);
        stream.release(UNIT + UNIT / 2);
        assert_eq!(stream.writable() as u64, UNIT);
        stream.release(2 * UNIT);
        assert_eq!(stream.writable() as u64, 2 * UNIT);
    }
}
