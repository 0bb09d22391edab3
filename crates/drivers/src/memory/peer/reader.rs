//! Parses the frames that the stack sends, either at transmission or in advance on any thread.

use super::config::{Encoding, PeerConfig, Role};
use super::handle::{PeerShared, VERIFY_CHECKSUMS, VERIFY_FRAMES};
use super::headers::{self, HEADERS_LEN, TcpHeader, flags};
use super::sums::Sums;
use crate::{TxChecksum, TxFrame, TxPrepare};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most frames of one call of [`TxPrepare::prepare`] that are handled as one run.
const MAX_ALIKE: usize = 64;

/// A parsed frame, and the number of frames after it that continue it. A frame continues another
/// if it belongs to the same connection, follows its sequence number, repeats its acknowledgment
/// number, window field and timestamp, and both have payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) wnd: u16,
    /// TSval; 0 without timestamps.
    pub(super) stamp: u32,
    /// Bytes of payload.
    pub(super) len: u32,
    /// Bytes of payload in the run.
    pub(super) run_len: u32,
    /// Length of the run: this frame and those that continue it.
    pub(super) run: u16,
    pub(super) connection: u16,
    pub(super) kind: Kind,
    /// Window scale, in a SYN.
    pub(super) scale: u8,
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// Not TCP, of no connection, or with unexpected flags.
    #[default]
    Unexpected,
    /// A request for the peer's Ethernet address (ARP).
    Asks,
    /// SYN and ACK.
    SynAck,
    /// Payload, an acknowledgment, or both.
    Segment,
}

impl Read {
    /// This frame as a run of one.
    pub(super) fn alone(self) -> Read {
        Read {
            run_len: self.len,
            run: 1,
            ..self
        }
    }

    /// Whether `next` continues this frame. If not `ordered`, the numbers may be arbitrary.
    fn is_continued_by(&self, next: &Read, ordered: bool) -> bool {
        let in_order = next.seq == self.seq.wrapping_add(self.len)
            && (next.ack, next.wnd, next.stamp) == (self.ack, self.wnd, self.stamp);
        self.kind == Kind::Segment
            && next.kind == Kind::Segment
            && self.connection == next.connection
            && (in_order || !ordered)
            && self.len > 0
            && next.len > 0
    }

    fn to_words(self) -> [u64; 4] {
        let high = |value: u32| u64::from(value) << 32;
        let kind = match self.kind {
            Kind::Unexpected => 0,
            Kind::SynAck => 1,
            Kind::Segment => 2,
            Kind::Asks => 3,
        };
        [
            high(self.seq) | u64::from(self.ack),
            high(self.stamp) | u64::from(self.len),
            high(self.run_len) | u64::from(self.connection) << 16 | u64::from(self.wnd),
            u64::from(self.run) << 16 | u64::from(self.scale) << 8 | kind,
        ]
    }

    fn from_words([numbers, stamp, run, rest]: [u64; 4]) -> Read {
        Read {
            seq: (numbers >> 32) as u32,
            ack: numbers as u32,
            wnd: run as u16,
            stamp: (stamp >> 32) as u32,
            len: stamp as u32,
            run_len: (run >> 32) as u32,
            run: (rest >> 16) as u16,
            connection: (run >> 16) as u16,
            kind: match rest as u8 {
                1 => Kind::SynAck,
                2 => Kind::Segment,
                3 => Kind::Asks,
                _ => Kind::Unexpected,
            },
            scale: (rest >> 8) as u8,
        }
    }
}

/// Parses frames. Changes nothing but counts of faults, so any thread may use it.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) shared: Arc<PeerShared>,
    pub(super) role: Role,
    stamped: bool,
    first_port: u16,
    /// One period of the stack's stream before encoding; empty if payload is not compared.
    expected: Vec<u8>,
    encoding: Option<Encoding>,
    /// The sums of the expected stream, if checksums are compared with it.
    sums: Option<Sums>,
}

impl Reader {
    pub(super) fn new(config: PeerConfig, shared: Arc<PeerShared>) -> Reader {
        Reader {
            shared,
            role: config.role,
            stamped: config.timestamps,
            first_port: config.ends.from.port(),
            sums: config.verify_checksums.then(|| Sums::new(&config.expected)),
            expected: config.expected,
            encoding: config.encoding,
        }
    }

    /// Classifies a frame that is not a segment.
    #[cold]
    fn other(&self, frame: &[u8]) -> Read {
        let kind = match headers::is_arp(frame) {
            true => Kind::Asks,
            false => Kind::Unexpected,
        };
        Read {
            kind,
            ..Read::default()
        }
    }

    /// Parses the headers of `frame`, and runs the checks that are on.
    #[inline]
    pub(super) fn read(&self, frame: &TxFrame<'_>) -> Read {
        let Some(header) = TcpHeader::read(frame.head) else {
            return self.other(frame.head).alone();
        };
        let index = match self.role {
            Role::Free | Role::FreeReceiver => 0,
            _ => usize::from(header.destination_port.wrapping_sub(self.first_port)),
        };
        if index >= self.shared.connections.len() {
            return Read::default().alone();
        }
        // ORDERING: Relaxed, frames in transit may be checked or not.
        let verify = self.shared.verify.load(Ordering::Relaxed);
        if verify != 0 {
            self.verify(verify, index, frame);
        }
        let options = || frame.head.get(HEADERS_LEN..).unwrap_or(&[]);
        let mut read = Read {
            seq: header.seq,
            ack: header.ack,
            wnd: header.wnd,
            // A header longer than its frame gives a length that is never in order; `verify` counts
            // it.
            len: frame.len().wrapping_sub(header.headers_len) as u32,
            connection: index as u16,
            kind: Kind::Segment,
            ..Read::default()
        };
        if self.stamped {
            read.stamp = headers::timestamp(options());
        }
        if !self.role.is_free() && header.flags & (flags::SYN | flags::RST | flags::FIN) != 0 {
            (read.kind, read.scale) = match header.flags == flags::SYN | flags::ACK {
                true => (Kind::SynAck, headers::window_scale(options())),
                false => (Kind::Unexpected, 0),
            };
            read.stamp = headers::timestamp(options());
        }
        read.alone()
    }

    /// Whether segments carry timestamps.
    pub(super) fn is_stamped(&self) -> bool {
        self.stamped
    }

    /// Offset in the stack's stream of a segment that begins at `seq`.
    fn offset(&self, index: usize, seq: u32) -> u64 {
        let connection = &self.shared.connections[index];
        // ORDERING: Relaxed, any count less than 2 GB old leads to the same offset.
        let received = connection.received.load(Ordering::Relaxed);
        let first = connection.syn.load(Ordering::Relaxed) as u32;
        let next = first.wrapping_add(1).wrapping_add(received as u32);
        // Adds the signed distance between the segment and the bytes received in order.
        received.wrapping_add_signed(i64::from(seq.wrapping_sub(next) as i32))
    }

    /// Runs the checks in `what` on a frame.
    #[cold]
    fn verify(&self, what: u8, index: usize, frame: &TxFrame<'_>) {
        // Parses the header again: if it were an argument, callers would store it to memory even
        // when they do not call this.
        let Some(header) = TcpHeader::read(frame.head) else {
            return;
        };
        let faults = &self.shared.faults;
        if !(HEADERS_LEN..=frame.len()).contains(&header.headers_len) {
            return fault(&faults.unexpected);
        }
        let offset = self.offset(index, header.seq);
        let right = (what & VERIFY_FRAMES == 0 || self.is_right(frame, header.headers_len, offset))
            && (what & VERIFY_CHECKSUMS == 0
                || self.has_expected_checksum(frame, header.headers_len, offset));
        if !right {
            fault(&faults.wrong);
        }
    }

    /// Whether `frame` carries the bytes expected at `offset` of the stream, and its checksum is
    /// correct.
    fn is_right(&self, frame: &TxFrame<'_>, headers_len: usize, offset: u64) -> bool {
        let whole = [frame.head, frame.payload].concat();
        let payload = &whole[headers_len..];
        let checksum = match frame.meta.checksum {
            TxChecksum::Done => headers::checksum_is_good(&whole),
            // The device is to finish it.
            TxChecksum::Partial { .. } => true,
        };
        if self.role.is_free() || self.expected.is_empty() {
            return checksum;
        }
        let at = (offset % self.expected.len() as u64) as usize;
        let expected = self.expected.iter().cycle().skip(at).take(payload.len());
        let as_expected = match &self.encoding {
            None => payload.iter().eq(expected),
            Some(encoding) => {
                let plain: Vec<u8> = expected.copied().collect();
                let mut sent = vec![0; payload.len()];
                encoding.encode(offset, &plain, &mut sent);
                payload == sent
            }
        };
        as_expected && checksum
    }

    /// Whether the checksum of `frame` matches its header and the payload expected at `offset` of
    /// the stream. Does not read the payload.
    fn has_expected_checksum(&self, frame: &TxFrame<'_>, headers_len: usize, offset: u64) -> bool {
        let (Some(sums), TxChecksum::Done) = (&self.sums, frame.meta.checksum) else {
            return true;
        };
        let whole;
        let head = match frame.head.get(..headers_len) {
            Some(head) => head,
            None => {
                whole = [frame.head, frame.payload].concat();
                &whole[..headers_len]
            }
        };
        let payload = sums.of(offset, frame.len() - headers_len);
        headers::fold(headers::header_sum(head, frame.len()) + u64::from(payload)) == 0xffff
    }
}

pub(super) fn fault(count: &AtomicU64) {
    // ORDERING: Relaxed, a count.
    count.fetch_add(1, Ordering::Relaxed);
}

/// The parsed frame of each slot.
#[derive(Debug)]
pub(super) struct PeerPrepared {
    reader: Arc<Reader>,
    slots: Box<[PeerSlot]>,
}

/// A [`Read`] as words. The alignment keeps it within one cache line.
#[derive(Debug, Default)]
#[repr(align(32))]
struct PeerSlot([AtomicU64; 4]);

impl PeerPrepared {
    pub(super) fn new(reader: Arc<Reader>, slots: usize) -> PeerPrepared {
        PeerPrepared {
            reader,
            slots: (0..slots).map(|_| PeerSlot::default()).collect(),
        }
    }

    /// The parsed frame in `slot`; an unexpected frame if there is no such slot.
    #[inline]
    pub(super) fn get(&self, slot: usize) -> Read {
        let Some(PeerSlot(words)) = self.slots.get(slot) else {
            return Read::default().alone();
        };
        // ORDERING: Relaxed, the caller of `prepare` has synchronized with this thread since.
        Read::from_words(words.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }
}

impl TxPrepare for PeerPrepared {
    fn prepare(&self, first: usize, frames: &[TxFrame<'_>]) {
        for (part, frames) in frames.chunks(MAX_ALIKE).enumerate() {
            let mut next = Read::default();
            // Backwards, so that each frame knows how many continue it. Also, the headers of the
            // first frames, which are needed first, are then the last ones read.
            for (i, frame) in frames.iter().enumerate().rev() {
                let mut read = self.reader.read(frame);
                if read.is_continued_by(&next, !self.reader.role.is_free()) {
                    read.run += next.run;
                    read.run_len += next.run_len;
                }
                let Some(PeerSlot(words)) = self.slots.get(first + part * MAX_ALIKE + i) else {
                    continue;
                };
                for (word, value) in words.iter().zip(read.to_words()) {
                    // ORDERING: Relaxed, as in `get`.
                    word.store(value, Ordering::Relaxed);
                }
                next = read;
            }
        }
    }
}
